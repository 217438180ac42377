/* engine/api/dialect.h - what a reply keeps of its choices, and how the four dialects write it.
 * Internal to engine/serve.
 *
 * reply.c turns tokens into parts: thoughts, text, calls, one after the other.  A dialect is six
 * functions that put what happens to them into bytes: five for a stream's events, one for a whole
 * body.  None of them decides anything. */
#ifndef ENGINE_SERVE_DIALECT_H
#define ENGINE_SERVE_DIALECT_H

#include "engine/api/reply.h"

enum eng_part_kind { ENG_PART_THOUGHTS, ENG_PART_TEXT, ENG_PART_CALL };

enum { ENG_CALL_ID = 10 };

struct eng_part {
    enum eng_part_kind kind;
    int call;              /* CALL: counted from 0 within the choice */
    char id[ENG_CALL_ID];  /* of a call: nine letters and digits, which every template takes */
    struct eng_bytes name; /* of what is called */
    struct eng_bytes text; /* all of it, where the reply keeps texts */
    int first_entry;       /* TEXT: c->entry[first_entry ..] until the next part's */
};

/* A token of the text, for logprobs. */
struct eng_entry {
    int32_t token;
    float logprob;
    size_t at, at_char; /* once it is sure: where it begins in the choice's text, in bytes and in
                           characters */
};

/* A token of the prompt, where they are told. */
struct eng_prompt_token {
    float logprob;
    int rank;
    struct spec_top top[ENG_TOP]; /* [n_top] */
    int n_top;
};

enum eng_end {
    ENG_END_NONE,
    ENG_END_STOP,
    ENG_END_STRING,
    ENG_END_LENGTH,
    ENG_END_CALLS,
    ENG_END_FAILED
};

struct eng_choice {
    int index;
    struct eng_decoder decoder;
    struct eng_stop stop; /* stop.which: the string that ended it */
    struct eng_speech *speech;
    struct eng_part *part; /* [n_part] */
    int n_part, part_cap, n_call;
    bool is_open; /* the last part goes on */
    enum eng_end end;
    int n_token, n_thought, n_cached;

    struct eng_entry *entry; /* [n_entry] */
    struct spec_top *top;    /* [n_entry][n_top] */
    int n_entry, entry_cap;
    struct eng_prompt_token *given; /* [n_given] NULL: they are not; the first is never told */
    int n_given;
    int n_sure, n_told; /* known to be text; told, or dropped as soon as they are */
    size_t n_text, n_text_char, n_shown; /* of the text: all that came, and what was let out */
};

struct eng_reply {
    const struct eng_ask *ask;
    const struct eng_api_setup *desk;
    const struct eng_dialect *dialect;
    struct eng_choice *choice; /* [n_choice] */
    int n_choice, n_ended;
    bool keeps; /* whole texts and entries: for the body, or the last events */
    bool began, done;
    int status;
    int n_event;
    struct eng_bytes out;          /* not yet taken */
    struct eng_bytes taken;        /* what take() gave last */
    struct eng_bytes head;         /* members that all of an answer's objects begin with */
    struct eng_bytes piece, shown; /* of one token: its text, what the stop strings let through */
};

struct eng_dialect {
    void (*begin)(struct eng_reply *r);
    void (*part_begin)(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p);
    /* More of p; for text, c->entry[first .. c->n_told) are its tokens. */
    void (*part_more)(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p,
                      const char *text, size_t n, int first);
    void (*part_end)(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p);
    void (*choice_end)(struct eng_reply *r, struct eng_choice *c);
    void (*end)(struct eng_reply *r);
    void (*error)(struct eng_reply *r, const struct eng_refusal *why);
    void (*body)(struct eng_reply *r); /* instead of all these */
};

extern const struct eng_dialect eng_dialect_completions, eng_dialect_chat, eng_dialect_responses,
    eng_dialect_messages;

/* ---- what they share ------------------------------------------------------------------------- */

struct eng_usage {
    int prompt, cached, answer, thoughts;
};
struct eng_usage eng_usage_of(const struct eng_reply *r);

/* An entry's likeliest tokens; NULL: none were asked for. */
const struct spec_top *eng_entry_top(const struct eng_reply *r, const struct eng_choice *c, int i);

/* The entries [first, last) as OpenAI's list of logprobs. */
void eng_write_entries(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c,
                       int first, int last);
/* All the texts of a kind, as one string. */
void eng_write_texts(struct eng_bytes *out, const struct eng_choice *c, enum eng_part_kind kind);
/* "usage": of chat and completions. */
void eng_write_usage(struct eng_bytes *out, const struct eng_reply *r);
void eng_write_number(struct eng_bytes *out, double x);
/* ,"prompt_logprobs": of a choice, as vLLM has it; nothing where nobody asked. */
void eng_write_given(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c);

#endif
