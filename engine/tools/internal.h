/* engine/tools/internal.h - what reading an answer is made of.  For the files behind speech.h
 * only.
 *
 *     speech_style.c      which marks a model uses
 *     speech.c            bytes to marks and text, text to events
 *     speech_call.c       calls, way by way
 *     speech_object.c     those that are one JSON object
 *     speech_python.c     the one that writes them as Python does
 *     speech_value.c      JSON as it goes by; values that stand written out
 *     speech_tools.c      a request's tools, checked
 *     speech_grammar.c    the same ways as grammars
 *
 * Bytes go through a reader of marks (speech.c), which looks only for those that mean something in
 * the present state, and arrive as eng_speech_byte or eng_speech_mark. */
#ifndef ENGINE_SPEECH_PARTS_H
#define ENGINE_SPEECH_PARTS_H

#include "engine/tools/tools.h"

enum mark {
    MARK_THINK,
    MARK_THINK_END,
    MARK_CALLS,
    MARK_CALLS_END, /* around all calls */
    MARK_CALL,
    MARK_CALL_END, /* around one */
    MARK_SEPARATOR,
    MARK_ID, /* between a name and its arguments */
    MARK_FUNCTION,
    MARK_FUNCTION_END,
    MARK_KEY,
    MARK_KEY_END,
    MARK_VALUE,
    MARK_VALUE_END,
    MARK_START,
    MARK_CHANNEL,
    MARK_CONSTRAIN,
    MARK_MESSAGE,
    MARK_END,
    MARK_CALL_STOP,
    MARK_RETURN,
    MARK_COUNT,
    MARK_BYTES = 48 /* none is longer */
};
_Static_assert((int)MARK_COUNT == (int)ENG_SPEECH_MARKS, "the header's number of marks");
#define BIT(mark) (UINT32_C(1) << (mark))

/* ---- speech_value.c -------------------------------------------------------------------------- */

enum { JSON_DEPTH = 512 };

enum json_step { JSON_MORE, JSON_DONE, JSON_BAD };

/* One JSON value, byte by byte.  All zero: before it. */
struct json_scan {
    uint8_t state, hex, depth_bits[JSON_DEPTH / 8]; /* bit: an object */
    bool key;                                       /* the string is a member's name */
    bool bad, lax;                                  /* lax: control characters within strings */
    const char *word;                               /* what is left of true, false, null */
    int depth;
};

/* DONE with the byte that closes an object, array or string; a number or word only shows its end by
 * what follows, which is JSON_DONE with white space and JSON_BAD with anything else. */
enum json_step eng_json_step(struct json_scan *j, uint8_t c);
bool eng_json_whole(const struct json_scan *j); /* could the value end here? */
bool eng_json_in_string(const struct json_scan *j);
bool eng_json_wants_value(const struct json_scan *j);
bool eng_json_after_value(const struct json_scan *j);

struct text {
    char *p;
    size_t n, cap;
};
bool eng_text_add(struct text *t, const char *p, size_t n); /* false: no memory */

enum { ENG_JSON_ESCAPE = 8 };
size_t eng_json_escape(uint8_t c, char out[ENG_JSON_ESCAPE]); /* a byte within a string */
bool eng_speech_space(uint8_t c);

/* A tool is {"function": {..}} or what is in it. */
const json_t *eng_speech_tool(const json_t *tool);
const json_t *eng_speech_find_tool(const json_t *tools, const char *name, size_t n);
bool eng_speech_is_string(const json_t *schema);      /* nothing but strings */
bool eng_speech_is_free_string(const json_t *schema); /* and all of them */

/* ---- speech_style.c -------------------------------------------------------------------------- */

/* The byte that opens calls where no mark has to; 0: none does. */
uint8_t eng_speech_bare(const struct eng_speech_style *s);

/* ---- speech.c -------------------------------------------------------------------------------- */

enum state {
    IN_TEXT,
    IN_THOUGHTS,
    BEFORE_OBJECT,
    IN_OBJECT, /* {"name": .., "arguments": ..} */
    BEFORE_CALLS,
    BEFORE_ITEM, /* after [TOOL_CALLS]; in its array */
    IN_NAME,
    AFTER_NAME,
    IN_ID,
    IN_FENCE,
    IN_ARGUMENTS,
    IN_SECTION, /* between calls with marks of their own */
    BEFORE_FUNCTION,
    IN_PARAMETERS,
    IN_KEY,
    AFTER_KEY,
    IN_VALUE,
    AFTER_ARGUMENT,
    IN_HEADER,
    BETWEEN_MESSAGES
};

struct queued {
    enum eng_speech_kind kind;
    int call;
    bool whole;
    size_t at, n;
};

/* Where a literal of Python's stands. */
struct python {
    uint8_t quote;     /* that ends the string; 0: outside */
    bool escaped;      /* a backslash came */
    uint8_t n_hex;     /* digits that its escape still wants */
    uint32_t code;     /* and what they say so far */
    bool comma;        /* one that is told when something follows */
};

struct eng_speech {
    const struct eng_speech_style *style;
    json_t *tools; /* NULL: no calls */
    int error;

    struct text out; /* of the events */
    struct queued *event;
    size_t n_event, cap_event, next_event;

    char pending[MARK_BYTES]; /* [n_pending] what may become a mark */
    size_t n_pending;
    bool again;       /* the byte is to be read once more */
    bool begins[256]; /* the first bytes of marks */

    enum state state;
    struct text
        held; /* becomes content if this is no call: from the mark on, until its name is told */
    bool at_start;   /* nothing was said yet: thoughts, or a bare object, may come */
    bool after_call; /* nothing was said since a call */
    bool drop_space; /* white space is no part of the text here */

    int call;     /* the present one's number, or how many there were */
    bool in_call; /* it has been told */
    struct text name, key, value;
    struct json_scan json;

    enum { ROLE_NONE, ROLE_NAME, ROLE_ARGUMENTS, ROLE_OTHER } role; /* of a member of the object */
    bool has_name, has_arguments;                                   /* in the object */
    bool name_done;                                                 /* white space came after it */
    bool listed;                                                    /* the object is an item */
    bool any_call;             /* since the mark that opens calls */
    bool first_key;            /* no argument was told yet */
    enum { KIND_UNSAID, KIND_STRING, KIND_JSON } kind; /* of the value, where it is said beside it */
    bool free_string;          /* the value is text as it stands */
    bool first_line, line_end; /* of it: nothing was there yet; a line end is held back */
    struct python python;      /* of a value as Python writes it */
};

void eng_speech_emit(struct eng_speech *s, enum eng_speech_kind kind, const char *p, size_t n);
void eng_speech_tell(struct eng_speech *s, const char *json); /* more of the arguments */
void eng_speech_keep(struct eng_speech *s, struct text *t, uint8_t c);
void eng_speech_hold(struct eng_speech *s, const char *p, size_t n);
void eng_speech_byte(struct eng_speech *s, uint8_t c);
void eng_speech_mark(struct eng_speech *s, enum mark m);
/* Text after thoughts or a call. */
void eng_speech_to_text(struct eng_speech *s, bool after_call);

/* ---- speech_call.c --------------------------------------------------------------------------- */

uint32_t
eng_call_watch(const struct eng_speech *s); /* the marks that mean something in its state */
void eng_call_open(struct eng_speech *s, enum mark m);
void eng_call_open_bare(struct eng_speech *s);
void eng_call_byte(struct eng_speech *s, uint8_t c);
void eng_call_mark(struct eng_speech *s, enum mark m);
void eng_call_finish(struct eng_speech *s);
/* Takes s->name; the arguments follow. */
void eng_call_begin(struct eng_speech *s);
void eng_call_end(struct eng_speech *s, bool whole);

/* Gives the call up: what is held is content; _before: and the present byte is read again. */
void eng_call_give_up(struct eng_speech *s);
void eng_call_give_up_before(struct eng_speech *s);
/* False when it is too much: the call is then given up, the byte with it. */
bool eng_call_hold(struct eng_speech *s, uint8_t c);
void eng_call_open_name(struct eng_speech *s);
bool eng_call_is_name(uint8_t c);
void eng_call_argument(struct eng_speech *s, uint8_t c); /* a byte of them, as s->json stands after it */

/* ---- speech_object.c ------------------------------------------------------------------------- */

void eng_object_before(struct eng_speech *s, uint8_t c);
void eng_object_open(struct eng_speech *s); /* its { is held already */
void eng_object_byte(struct eng_speech *s, uint8_t c);
void eng_object_break(struct eng_speech *s); /* what was told stays told */

/* ---- speech_python.c ------------------------------------------------------------------------- */

void eng_python_byte(struct eng_speech *s, uint8_t c);

/* ---- speech_value.c -------------------------------------------------------------------------- */

/* Values as they stand: GLM's, Qwen's XML and <invoke>. */
void eng_value_open(struct eng_speech *s);
void eng_value_byte(struct eng_speech *s, uint8_t c);
void eng_value_close(struct eng_speech *s);
void eng_value_cut(struct eng_speech *s);
bool eng_value_hides_marks(const struct eng_speech *s); /* they are within a JSON string */

/* ---- speech_tools.c -------------------------------------------------------------------------- */

enum { MOST_TOOLS = 1024, MOST_PARAMETERS = 256 };

struct tool {
    const char *name;
    json_t *parameters; /* an object's schema */
};

struct tool_list {
    struct tool tool[MOST_TOOLS]; /* [n] that may be called */
    size_t n;
    json_t *made; /* an array: schemas that live until all is compiled */
};

/* Adds those that may be called to out, which is empty but for `made`; or says why not. */
int eng_speech_list_tools(struct tool_list *out, const struct eng_speech_style *s,
                          const struct eng_speech_tools *t, char *why, size_t n_why);

#endif
