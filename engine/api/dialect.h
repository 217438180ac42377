/* engine/api/dialect.h - state of a reply, and the interface of the API dialects that write it.
 * Internal to engine/api.
 *
 * reply.c turns the tokens of a choice into a sequence of parts: reasoning, text, tool calls.  A
 * dialect is eight functions that append bytes to eng_reply.out: seven for the events of a stream,
 * one for a whole body.  Dialects only format; all decisions are in reply.c. */
#ifndef ENGINE_API_DIALECT_H
#define ENGINE_API_DIALECT_H

#include "engine/api/reply.h"

enum eng_part_kind { ENG_PART_THOUGHTS, ENG_PART_TEXT, ENG_PART_CALL };

enum { ENG_CALL_ID = 10 };

struct eng_part {
    enum eng_part_kind kind;
    int call;              /* CALL: counted from 0 within the choice */
    char id[ENG_CALL_ID];  /* CALL: nine letters and digits, a form that every template accepts */
    struct eng_bytes name; /* CALL: of the tool */
    struct eng_bytes text; /* of this part so far (CALL: its arguments); empty unless eng_reply.keeps */
    uint64_t hash;         /* CALL: of its name and its arguments so far */
    int first_entry;       /* TEXT: index of its first token in eng_choice.entry; it ends where the next part begins */
};

/* A token of the answer's text, for logprobs. */
struct eng_entry {
    int32_t token;
    float logprob;
    size_t at, at_char; /* valid for the first n_sure entries: start of the token in the choice's
                           text, in bytes and in characters */
};

/* A token of the prompt, if the request asks for the prompt's logprobs. */
struct eng_prompt_token {
    float logprob;
    int rank;                     /* of this token at its position; 1: the most probable */
    struct spec_top top[ENG_TOP]; /* [n_top] */
    int n_top;
};

enum eng_end { ENG_END_NONE, ENG_END_STOP, ENG_END_STRING, ENG_END_LENGTH, ENG_END_CALLS, ENG_END_FAILED };

struct eng_choice {
    int index;
    struct eng_decoder decoder;
    struct eng_stop stop; /* stop.which: the stop string that ended the choice */
    struct eng_answer_parser *parser;
    struct eng_part *part; /* [n_part] */
    int n_part, part_cap, n_call;
    bool is_open;                     /* the last part may still grow */
    bool repeats;                     /* the same call again and again: the answer ends */
    enum eng_end end;                 /* NONE while the choice is running */
    int n_token, n_thought, n_cached; /* generated; of these reasoning; cached prompt tokens */
    struct spec_copy copy;            /* the answer's place in the request's prediction */

    struct eng_entry *entry; /* [n_entry] */
    struct spec_top *top;    /* [n_entry][n_top] */
    int n_entry, entry_cap;
    struct eng_prompt_token *given; /* [n_given] of prompt tokens, NULL: not requested; [0] is unused */
    int n_given;
    int n_sure, n_told; /* entries known to be text; of these, passed to the dialect (then dropped if !keeps) */
    size_t n_text, n_text_char, n_shown; /* text so far: bytes, characters; bytes that eng_stop has released */
};

struct eng_reply {
    const struct eng_api_request *ask;
    const struct eng_api_setup *setup;
    const struct eng_dialect *dialect;
    struct eng_choice *choice; /* [n_choice] */
    int n_choice, n_ended;
    bool keeps; /* keep the whole text and all entries, for the body or for the last events */
    bool began, done;
    int status;                   /* HTTP status */
    int n_event;                  /* of a stream, so far */
    uint64_t opened_ns, first_ns; /* when the reply was opened, and when its first token came; 0: none yet */
    struct eng_bytes out;         /* bytes not yet taken by the caller */
    size_t n_whole;         /* of out: the bytes of complete events, without those of a feed that ran out of memory */
    struct eng_bytes taken; /* the bytes that eng_reply_take returned last */
    struct eng_bytes head;  /* id, created, model, fingerprint: members of each JSON object of completions and chat */
    struct eng_bytes piece, shown; /* scratch: text of one token; text released by eng_stop */
};

struct eng_dialect {
    void (*begin)(struct eng_reply *r);
    void (*part_begin)(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p);
    /* Writes text[n], which continues part p; of a TEXT part the tokens of text are c->entry[first .. c->n_told). */
    void (*part_more)(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p, const char *text, size_t n,
                      int first);
    void (*part_end)(struct eng_reply *r, struct eng_choice *c, const struct eng_part *p);
    void (*choice_end)(struct eng_reply *r, struct eng_choice *c);
    void (*end)(struct eng_reply *r);
    void (*error)(struct eng_reply *r, const struct eng_refusal *why);
    void (*body)(struct eng_reply *r); /* for a request without a stream: called once, instead of all others */
    bool lines;                        /* a stream is JSON lines, not server-sent events */
    bool whole_calls;                  /* part_end writes a call from its whole text */
};

extern const struct eng_dialect eng_dialect_completions, eng_dialect_chat, eng_dialect_responses, eng_dialect_messages,
    eng_dialect_llama, eng_dialect_ollama;

/* ---- shared by the dialects ------------------------------------------------------------------ */

struct eng_usage {
    int prompt, cached, answer, thoughts; /* tokens, over all choices; cached is part of prompt */
    int copied, not_copied; /* tokens of the prediction, over all choices: those that the answer repeats, and others */
};
struct eng_usage eng_usage_of(const struct eng_reply *r);

/* The most probable tokens at entry i, [ask->n_top]; NULL if the request asks for none. */
const struct spec_top *eng_entry_top(const struct eng_reply *r, const struct eng_choice *c, int i);

/* Writes entries [first, last) of the choice as the list logprobs.content of OpenAI's chat completions. */
void eng_write_entries(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c, int first,
                       int last);
/* Writes the arguments of a call, which must be an object: those of its text, or {} if that is incomplete. */
void eng_write_arguments(struct eng_bytes *out, const struct eng_part *p);
bool eng_has_part(const struct eng_choice *c, enum eng_part_kind kind);
/* Writes the texts of all parts of this kind, concatenated, as one JSON string. */
void eng_write_texts(struct eng_bytes *out, const struct eng_choice *c, enum eng_part_kind kind);
/* Writes the member "usage" of chat and completions. */
void eng_write_usage(struct eng_bytes *out, const struct eng_reply *r);
void eng_write_number(struct eng_bytes *out, double x); /* -9999 instead of any smaller x: JSON has no infinity */
/* Writes the member ,"prompt_logprobs": in vLLM's form, from c->given; nothing if the request did not ask for it. */
void eng_write_given(struct eng_bytes *out, const struct eng_reply *r, const struct eng_choice *c);

#endif
