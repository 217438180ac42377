/* engine/tools/tools.h - streaming parser of a model's answer (content, reasoning, tool calls), and
 * the grammars that constrain it.  Internal to engine.
 *
 *     eng_tool_format_find                                                            once per model
 *     eng_answer_grammar                                                              once per request with tools
 *     eng_answer_open -> [ feed or control, next* ]* -> finish, next* -> close        once per answer
 *
 *     eng_tool_format    the format in which a model writes its reasoning and its tool calls, found from its chat
 *                        template and vocabulary.
 *     eng_answer_parser  the parser of one answer; it gives events.  Pass to eng_answer_feed the text that
 *                        eng_decoder gives (with ENG_DECODE_SKIP_SPECIAL).  For each token of type
 *                        ENG_TOKEN_CONTROL, first pass the text of eng_decoder_finish, then the token to
 *                        eng_answer_control.  Passing a stop token is optional.
 *
 * A format has markers, such as <tool_call>.  A marker that is a control token of the vocabulary is
 * recognised as that token only: the same characters as plain text are content.  Every other marker is
 * recognised as text.
 *
 * Events are given as soon as they are certain.  The parser holds back only a possible beginning of a
 * marker, the white space before that, and a call until its name is complete.  How the caller splits
 * the text changes only how a text is split into adjacent events of the same kind.  A possible call
 * that turns out not to be valid becomes content; only markers and the white space around reasoning
 * and calls are dropped.  The concatenated ENG_ANSWER_ARGUMENTS of a call are a JSON object if its
 * CALL_END is `whole`.  If a call turns out not to be valid after its CALL event, its CALL_END has
 * `whole` false, and the text after that is content.
 *
 * Time is linear in the length of the text; at most ENG_ANSWER_HELD_BYTES bytes are held back.  A format is
 * immutable and shared by threads; a parser belongs to one thread.  No dependency on the engine or the
 * network. */
#ifndef ENGINE_TOOLS_TOOLS_H
#define ENGINE_TOOLS_TOOLS_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/text.h"

enum {
    ENG_ANSWER_HELD_BYTES = 1 << 20, /* bytes held back, at most */
    ENG_ANSWER_NAME_BYTES = 256,     /* a name in an answer, at most, with text that a format puts around it */
    ENG_TOOL_NAME_BYTES = 128        /* the name of a tool of a request, at most */
};

/* ---- formats --------------------------------------------------------------------------------- */

#define ENG_TOOL_SYNTAXES(X)                                                                                           \
    X(NONE, "none")         /* no tool calls */                                                                        \
    X(HERMES, "hermes")     /* <tool_call>{"name": .., "arguments": {..}}</tool_call> */                               \
    X(QWEN_XML, "qwen-xml") /* <tool_call><function=..><parameter=..>..</parameter></function> */                      \
    X(LLAMA, "llama-3")     /* [<|python_tag|>] {"name": .., "parameters": {..}} */                                    \
    X(MISTRAL, "mistral")   /* [TOOL_CALLS][{..}], <tool_calls>[{..}]</tool_calls>, [TOOL_CALLS]name[ARGS]{..} */      \
    X(DEEPSEEK, "deepseek") /* <|tool calls begin|><|tool call begin|>name<|tool sep|>{..} */                          \
    X(KIMI, "kimi-k2")      /* as DEEPSEEK, with other markers; the name is functions.name:0 */                        \
    X(INVOKE, "invoke")     /* <invoke name=".."><parameter name="..">..</parameter></invoke> */                       \
    X(PYTHONIC, "pythonic") /* [name(key="value", other=1), ..], with or without a marker */                           \
    X(GLM, "glm-4.5")       /* <tool_call>name<arg_key>..</arg_key><arg_value>..</arg_value> */                        \
    X(MARKED, "gemma-4")    /* call:name{key:<|"|>text<|"|>,other:[1,true]}, between markers */                        \
    X(HARMONY, "gpt-oss")   /* messages in channels; a call is a message to=functions.name */

enum eng_tool_syntax {
#define ENG_TOOL_SYNTAX_ENUM(name, text) ENG_SYNTAX_##name,
    ENG_TOOL_SYNTAXES(ENG_TOOL_SYNTAX_ENUM)
#undef ENG_TOOL_SYNTAX_ENUM
};

enum { ENG_TOOL_MARKERS = 22 };

struct eng_tool_format {
    enum eng_tool_syntax syntax;
    bool thinks;  /* the model may write reasoning before its answer */
    bool variant; /* the template uses the variant of `syntax` that the table in format_of_model.c names */
    struct eng_tool_marker {
        const char *text; /* NULL: the format has no such marker */
        int32_t control;  /* the control token that is the marker; ENG_NO_TOKEN: the marker is recognised as text */
    } mark[ENG_TOOL_MARKERS];
};

/* Finds the format of a model from the text of its chat template, template_text[n], and its vocabulary.
 * Either may be NULL. */
void eng_tool_format_find(struct eng_tool_format *out, const char *template_text, size_t n, const struct eng_vocab *v);
/* Makes the tool calls of a format, but not its reasoning, the generic ones of a model that has no calls of its own: JSON
 * between two markers in plain text.  The prompt must ask for them. */
void eng_tool_format_generic(struct eng_tool_format *s);
#define ENG_GENERIC_CALL     "<tool_call>"
#define ENG_GENERIC_CALL_END "</tool_call>"
/* The marker that opens or, with `close`, closes reasoning; NULL: the format has none. */
const char *eng_tool_format_thought(const struct eng_tool_format *s, bool close);
const char *eng_tool_format_name(const struct eng_tool_format *s); /* the second name in ENG_TOOL_SYNTAXES */

/* True if the prompt, without white space at its end, ends with the marker that opens reasoning (some
 * templates write <think> last).  The answer then begins inside the reasoning. */
bool eng_tool_format_prompt_thinks(const struct eng_tool_format *s, const char *prompt, size_t n);
bool eng_tool_format_tokens_think(const struct eng_tool_format *s, const struct eng_vocab *v,
                                  const struct eng_ids *prompt);

/* True if reasoning is open at the end of text[n]: the marker that opens it has no closing marker after it.  *after is
 * set to the end of the last closing marker, 0 without one. */
bool eng_tool_format_text_thinks(const struct eng_tool_format *s, const char *text, size_t n, size_t *after);

/* ---- an answer ------------------------------------------------------------------------------- */

enum eng_answer_kind {
    ENG_ANSWER_CONTENT,   /* text */
    ENG_ANSWER_REASONING, /* text */
    ENG_ANSWER_CALL,      /* call number `call` begins; text is the name of its tool */
    ENG_ANSWER_ARGUMENTS, /* text is the next part of the call's arguments, a JSON object */
    ENG_ANSWER_CALL_END,  /* `whole` says if the arguments are complete */
};

struct eng_answer_event {
    enum eng_answer_kind kind;
    int call;         /* of CALL, ARGUMENTS, CALL_END: the call's number in the answer, from 0 */
    bool whole;       /* of CALL_END: the arguments are a complete JSON object */
    const char *text; /* [n] not terminated; valid until the next feed, control or finish */
    size_t n;
};

struct eng_answer_parser;

struct eng_answer_options {
    const struct eng_tool_format *format; /* must outlive the parser */
    const json_t *tools;                  /* the request's array, referenced; NULL: calls are not recognised */
    bool thinks;                          /* the answer begins inside the reasoning */
    bool continues;                       /* the answer continues a message of the prompt, */
    bool in_text;                         /* in its text, of which there is some, not in its reasoning */
};

int eng_answer_open(struct eng_answer_parser **out, const struct eng_answer_options *o);
void eng_answer_close(struct eng_answer_parser *s);

/* Read the next text, or the next control token; or end the answer.  Each returns 0 or KN_ENOMEM, and
 * adds events for eng_answer_next. */
int eng_answer_feed(struct eng_answer_parser *s, const char *text, size_t n);
int eng_answer_control(struct eng_answer_parser *s, int32_t token);
/* The CALL_END of an open call has whole false.  cut: the answer was cut off by a limit, so a text that may be the
 * beginning of a call or of a marker is dropped; else it is content. */
int eng_answer_finish(struct eng_answer_parser *s, bool cut);

bool eng_answer_next(struct eng_answer_parser *s, struct eng_answer_event *e); /* false: no events until more text */

/* ---- a request's grammar --------------------------------------------------------------------- */

enum eng_tool_choice { ENG_TOOL_AUTO, ENG_TOOL_NONE, ENG_TOOL_REQUIRED, ENG_TOOL_NAMED };

struct eng_answer_rules {
    const json_t *tools; /* [{"type": "function", "function": {"name": .., "parameters": ..}}] */
    enum eng_tool_choice choice;
    const char *name; /* of NAMED: the tool to call */
    bool parallel;    /* allow more than one call */
    /* The form of an answer without calls, at most one of these; all NULL: any text. */
    const json_t *schema;           /* JSON that conforms to this schema */
    const char *regex;              /* text that matches this regular expression as a whole */
    const json_t *choices;          /* one of these strings, an array */
    const struct gr_tokens *tokens; /* of the model; NULL: every byte is a token */
    bool thinks;                    /* the answer begins inside the reasoning */
    bool continues;                 /* the answer continues a message of the prompt, */
    bool in_text;                   /* in its text, of which there is some, not in its reasoning */
};

/* Builds the grammar of an answer; the caller closes *out with gr_close.
 *   AUTO             any text, which may contain calls; each call names one of the tools, and its
 *                    arguments conform to the tool's parameters (in formats without a marker, an
 *                    answer that begins like a call must be a call).
 *   REQUIRED, NAMED  a call and no other text, except reasoning before it if the model has reasoning.
 *   with a form      text of this form; or calls and no other text, if calls are allowed.
 * eng_answer_parser parses every text that the grammar accepts into exactly the calls that the grammar put
 * there.  *out is NULL (returns 0) if nothing needs a constraint: there is no form, and there are
 * no tools, or the choice is NONE, or the choice is AUTO and the format has no calls.  On failure
 * returns KN_EINVAL, KN_EUNSUPPORTED, KN_ELIMIT or KN_ENOMEM and writes one line for the client into
 * why[n_why]. */
int eng_answer_grammar(struct gr_grammar **out, const struct eng_tool_format *s, const struct eng_answer_rules *t,
                       char *why, size_t n_why);

#endif
