/* engine/tools/internal.h - parts of the answer parser.  Only the files of engine/tools include it.
 *
 *     format_of_model.c   finds a model's format and markers
 *     parser.c            bytes to markers and text, text to events
 *     call.c              tool calls, one state machine for all formats
 *     call_json.c         calls that are one JSON object
 *     call_python.c       calls in Python syntax
 *     call_marked.c       calls with strings between markers
 *     value.c             incremental JSON validator; argument values that are not quoted
 *     schemas.c           checks the tools of a request
 *     grammar.c           grammars of the same formats
 *
 * parser.c searches the bytes for the markers that are valid in the current state.  The bytes and
 * markers then arrive at eng_answer_byte and eng_answer_marker. */
#ifndef ENGINE_TOOLS_INTERNAL_H
#define ENGINE_TOOLS_INTERNAL_H

#include "engine/tools/tools.h"

enum mark {
    MARK_THINK,
    MARK_THINK_END,
    MARK_CALLS,
    MARK_CALLS_END, /* CALLS, CALLS_END: around the list of calls */
    MARK_CALL,
    MARK_CALL_END, /* CALL, CALL_END: around one call */
    MARK_SEPARATOR,
    MARK_ID, /* SEPARATOR, ID: between a call's name and its arguments */
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
    MARK_QUOTE, /* around a string */
    MARK_COUNT,
    MARK_BYTES = 48 /* every marker is shorter than this */
};
_Static_assert((int)MARK_COUNT == (int)ENG_TOOL_MARKERS, "the header's number of marks");
#define BIT(mark) (UINT32_C(1) << (mark))

/* ---- value.c --------------------------------------------------------------------------------- */

enum { JSON_DEPTH = 512 }; /* nesting levels, at most */

enum json_step { JSON_MORE, JSON_DONE, JSON_BAD };

/* Validator of one JSON value, byte by byte.  All zero: at the start of the value. */
struct json_scan {
    uint8_t state, hex, depth_bits[JSON_DEPTH / 8]; /* bit per level: 1 object, 0 array */
    bool key;                                       /* the current string is a member's name */
    bool bad, lax;                                  /* lax: accept control characters in strings */
    const char *word;                               /* remaining bytes of true, false or null */
    int depth;
};

/* Reads the next byte of a JSON value.  Returns JSON_DONE for the last byte of an object, array, string or
 * word (true, false, null).  If the value is a number, its end shows only at the byte after it: JSON_DONE
 * if that byte is white space, else JSON_BAD. */
enum json_step eng_json_step(struct json_scan *j, uint8_t c);
bool eng_json_whole(const struct json_scan *j); /* the value is complete if the text ends here */
bool eng_json_in_string(const struct json_scan *j);
bool eng_json_wants_value(const struct json_scan *j);
bool eng_json_wants_key(const struct json_scan *j);
bool eng_json_after_value(const struct json_scan *j);

struct text { /* a growing buffer; all zero: empty */
    char *p;
    size_t n, cap;
};
bool eng_text_add(struct text *t, const char *p, size_t n); /* appends; false: no memory */

enum { ENG_JSON_ESCAPE = 8 };
/* Writes c to out as it stands in a JSON string; returns the number of bytes. */
size_t eng_json_escape(uint8_t c, char out[ENG_JSON_ESCAPE]);
bool eng_is_json_space(uint8_t c);

/* The {"name": .., "parameters": ..} of a tool, which may be wrapped as {"function": {..}}. */
const json_t *eng_tool_function(const json_t *tool);
const json_t *eng_tool_find(const json_t *tools, const char *name, size_t n);
bool eng_schema_is_string(const json_t *schema);      /* the schema's type is string and no other */
bool eng_schema_is_free_string(const json_t *schema); /* is_string, and no keyword restricts the string */

/* ---- format_of_model.c ----------------------------------------------------------------------- */

/* In formats in which the marker before calls is optional: the first byte of a call without it.  0: the
 * format requires the marker. */
uint8_t eng_tool_format_first_byte(const struct eng_tool_format *s);
/* The markers before calls may also stand around text (Llama 4): they are dropped if no call follows. */
bool eng_tool_format_marks_text(const struct eng_tool_format *s);

/* ---- parser.c -------------------------------------------------------------------------------- */

enum state {
    IN_TEXT,
    IN_THOUGHTS,
    BEFORE_OBJECT,
    IN_OBJECT, /* {"name": .., "arguments": ..} */
    BEFORE_CALLS,
    BEFORE_ITEM, /* BEFORE_CALLS: after [TOOL_CALLS]; BEFORE_ITEM: in a list, before a call */
    IN_NAME,
    AFTER_NAME,
    IN_ID,
    IN_FENCE,
    IN_ARGUMENTS,
    IN_SECTION, /* between calls that each have a marker */
    BEFORE_FUNCTION,
    IN_PARAMETERS,
    IN_KEY,
    AFTER_KEY,
    IN_VALUE,
    AFTER_ARGUMENT,
    IN_HEADER,
    BETWEEN_MESSAGES
};

struct queued { /* an event; its text is out.p[at .. at + n) */
    enum eng_answer_kind kind;
    int call;
    bool whole;
    size_t at, n;
};

/* The parser's state inside a Python literal. */
struct python {
    uint8_t quote; /* closing quote of the current string; 0: outside a string */
    bool escaped;  /* the last byte was a backslash */
    uint8_t n_hex; /* hex digits still missing in the current escape */
    uint32_t code; /* the value of the current escape's digits so far */
    bool comma;    /* a comma was read; emitted only when an item follows */
};

struct eng_answer_parser {
    const struct eng_tool_format *format;
    json_t *tools; /* a reference; NULL: calls are not recognised */
    int error;     /* 0 or KN_ENOMEM */

    struct text out; /* the text of all queued events */
    struct queued *event;
    size_t n_event, cap_event, next_event;

    char pending[MARK_BYTES]; /* [n_pending] possibly the beginning of a marker */
    size_t n_pending;
    bool again;       /* set by a handler: process the same byte again in the new state */
    bool begins[256]; /* [first byte] a marker begins with it */

    enum state state;
    struct text held; /* bytes of a call from its marker until the CALL event; content if there is no call */
    bool at_start;    /* no content yet: reasoning, or a call without a marker, may begin */
    bool after_call;  /* no content since the last call */
    bool drop_space;  /* drop white space until other text comes */

    int call;     /* number of the current call; outside calls, the number of calls so far */
    bool in_call; /* the CALL event was emitted, CALL_END was not */
    struct text name, key, value;
    struct json_scan json;

    enum { ROLE_NONE, ROLE_NAME, ROLE_ARGUMENTS, ROLE_OTHER } role; /* current member of the object */
    bool has_name, has_arguments;                                   /* members read in the object */
    bool name_done;                                                 /* the name is complete */
    bool listed;                                                    /* the call is in a list */
    bool any_call;                                     /* a call was read since the marker that opens calls */
    bool first_key;                                    /* no argument was emitted yet */
    enum { KIND_UNSAID, KIND_STRING, KIND_JSON } kind; /* of the value; UNSAID: no attribute gives its kind */
    bool free_string;                                  /* the value is a string, written without quotes */
    bool first_line,
        line_end; /* free string of QWEN_XML: no byte was read yet; its last byte was a line end, not emitted yet */
    struct python python; /* state inside a Python literal */
};

void eng_answer_emit(struct eng_answer_parser *s, enum eng_answer_kind kind, const char *p, size_t n);
void eng_answer_emit_arguments(struct eng_answer_parser *s, const char *json);  /* emits ARGUMENTS */
void eng_answer_emit_string_byte(struct eng_answer_parser *s, uint8_t c);       /* c, escaped as in a JSON string */
void eng_answer_append(struct eng_answer_parser *s, struct text *t, uint8_t c); /* appends c to t, a member of s */
void eng_answer_hold(struct eng_answer_parser *s, const char *p, size_t n);     /* appends to held */
void eng_answer_byte(struct eng_answer_parser *s, uint8_t c);
void eng_answer_marker(struct eng_answer_parser *s, enum mark m);
/* Leaves the states of a call for IN_TEXT and clears held.  after_call: a call has ended here, so white space
 * or another call may follow; false: the text was not a call. */
void eng_answer_to_text(struct eng_answer_parser *s, bool after_call);

/* ---- call.c ---------------------------------------------------------------------------------- */

uint32_t eng_call_watch(
    const struct eng_answer_parser *s); /* bit set of the markers that are valid in the state of s */
void eng_call_open(struct eng_answer_parser *s, enum mark m);
void eng_call_open_bare(struct eng_answer_parser *s);
void eng_call_byte(struct eng_answer_parser *s, uint8_t c);
void eng_call_mark(struct eng_answer_parser *s, enum mark m);
void eng_call_finish(struct eng_answer_parser *s);
/* Emits the CALL event with s->name. */
void eng_call_begin(struct eng_answer_parser *s);
void eng_call_end(struct eng_answer_parser *s, bool whole);

/* The call is not valid: ends it if its CALL event was emitted, then emits the held bytes as content and
 * continues in IN_TEXT.  eng_call_give_up_before also processes the current byte again, as text. */
void eng_call_give_up(struct eng_answer_parser *s);
void eng_call_give_up_before(struct eng_answer_parser *s);
/* Appends c to held and returns true.  If held then has more than ENG_ANSWER_HELD_BYTES bytes, gives the call up
 * (c becomes content with the other bytes) and returns false. */
bool eng_call_hold(struct eng_answer_parser *s, uint8_t c);
void eng_call_open_name(struct eng_answer_parser *s);
bool eng_call_is_name(uint8_t c);
void eng_call_argument(struct eng_answer_parser *s,
                       uint8_t c); /* emits c, a byte of the arguments that s->json accepted */

/* ---- call_json.c ----------------------------------------------------------------------------- */

void eng_object_before(struct eng_answer_parser *s, uint8_t c);
void eng_object_open(struct eng_answer_parser *s); /* call after adding the { to held */
void eng_object_byte(struct eng_answer_parser *s, uint8_t c);
void eng_object_break(struct eng_answer_parser *s); /* gives the call up unless its events were emitted */

/* ---- call_python.c --------------------------------------------------------------------------- */

void eng_python_byte(struct eng_answer_parser *s, uint8_t c);

/* Numbers and words, of which s->value has the bytes so far: true, True, null, None ...; these return false for text
 * that is not valid here. */
bool eng_python_is_word(uint8_t c);
bool eng_python_word_byte(struct eng_answer_parser *s, uint8_t c);
bool eng_python_word_end(struct eng_answer_parser *s); /* emits the word in JSON spelling */
bool eng_python_emit(struct eng_answer_parser *s, const char *json);

/* ---- call_marked.c --------------------------------------------------------------------------- */

void eng_marked_open(struct eng_answer_parser *s); /* at the { of the arguments; s->name is the tool's name */
void eng_marked_byte(struct eng_answer_parser *s, uint8_t c);
void eng_marked_quote(struct eng_answer_parser *s);           /* the marker around strings */
bool eng_marked_may_quote(const struct eng_answer_parser *s); /* it is valid here */

/* ---- value.c --------------------------------------------------------------------------------- */

/* Argument values that stand between markers (formats GLM, QWEN_XML and INVOKE): opening marker, bytes,
 * closing marker; or _cut if the answer ends within the value. */
void eng_value_open(struct eng_answer_parser *s);
void eng_value_byte(struct eng_answer_parser *s, uint8_t c);
void eng_value_close(struct eng_answer_parser *s);
void eng_value_cut(struct eng_answer_parser *s);
bool eng_value_hides_marks(const struct eng_answer_parser *s); /* inside a JSON string: markers are text */

/* ---- schemas.c ------------------------------------------------------------------------------- */

enum { MOST_TOOLS = 1024, MOST_PARAMETERS = 256 };

struct tool {
    const char *name;
    json_t *parameters; /* the JSON schema of its arguments, an object */
};

struct tool_list {
    struct tool tool[MOST_TOOLS]; /* [n] tools that may be called */
    size_t n;
    json_t *made; /* an array that owns the schemas made here until the grammar is compiled */
};

/* Checks the tools that may be called and adds them to out; the caller has set out->made.  Returns 0,
 * or an error code with one line for the client in why[n_why]. */
int eng_tool_list(struct tool_list *out, const struct eng_tool_format *s, const struct eng_answer_rules *t, char *why,
                  size_t n_why);

#endif
