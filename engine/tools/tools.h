/* engine/tools/tools.h - streaming parser of a model's answer (content, reasoning, tool calls), and
 * the grammars that constrain it.  Internal to engine.
 *
 *     eng_speech_style                                                        once per model
 *     eng_speech_grammar                                                      once per request with tools
 *     eng_speech_open -> [ feed or control, next* ]* -> finish, next* -> close       once per answer
 *
 *     eng_speech_style   the format in which a model writes its reasoning and its tool calls, found
 *                        from its chat template.
 *     eng_speech         the parser of one answer; it gives events.  Pass to eng_speech_feed the text
 *                        that eng_decoder gives (with ENG_DECODE_SKIP_SPECIAL), and to
 *                        eng_speech_control each token of type ENG_TOKEN_CONTROL, after the text of
 *                        eng_decoder_finish.  Passing a stop token is optional.
 *
 * A format has markers, such as <tool_call>.  A marker that is a control token of the vocabulary is
 * recognised as that token only: the same characters as plain text are content.  Every other marker is
 * recognised as text.
 *
 * Events are given as soon as they are certain.  The parser holds back only a possible beginning of a
 * marker, the white space before it, and a call until its name is complete.  Apart from the splitting
 * of text into adjacent events, the events do not depend on how the caller splits the text.  A
 * candidate that is not a valid call becomes content; only markers and the white space around
 * reasoning and calls are dropped.  The concatenated ENG_SPEECH_ARGUMENTS of a call are a JSON object
 * if its CALL_END is `whole`.  A call that breaks off after its CALL event ends with `whole` false, and
 * the text after it is content.
 *
 * Time is linear in the length of the text; at most ENG_SPEECH_HELD bytes are held back.  A style is
 * immutable and shared by threads; a parser belongs to one thread.  No dependency on the engine or the
 * network. */
#ifndef ENGINE_SPEECH_H
#define ENGINE_SPEECH_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/text.h"

enum { ENG_SPEECH_HELD = 1 << 20, ENG_SPEECH_NAME = 256 }; /* bytes: held back; of a name, at most */

/* ---- formats --------------------------------------------------------------------------------- */

#define ENG_SPEECH_WAYS(X)                                                                                             \
    X(NONE, "none")         /* no tool calls */                                                                        \
    X(HERMES, "hermes")     /* <tool_call>{"name": .., "arguments": {..}}</tool_call> */                               \
    X(QWEN_XML, "qwen-xml") /* <tool_call><function=..><parameter=..>..</parameter></function> */                      \
    X(LLAMA, "llama-3")     /* [<|python_tag|>] {"name": .., "parameters": {..}} */                                    \
    X(MISTRAL, "mistral")   /* [TOOL_CALLS][{..}] or [TOOL_CALLS]name[ARGS]{..} */                                     \
    X(DEEPSEEK, "deepseek") /* <|tool calls begin|><|tool call begin|>name<|tool sep|>{..} */                          \
    X(KIMI, "kimi-k2")      /* as DEEPSEEK, with other markers; the name is functions.name:0 */                        \
    X(INVOKE, "invoke")     /* <invoke name=".."><parameter name="..">..</parameter></invoke> */                       \
    X(PYTHONIC, "pythonic") /* [name(key="value", other=1), ..], with or without a marker */                           \
    X(GLM, "glm-4.5")       /* <tool_call>name<arg_key>..</arg_key><arg_value>..</arg_value> */                        \
    X(HARMONY, "gpt-oss")   /* messages in channels; a call is a message to=functions.name */

enum eng_speech_way {
#define ENG_SPEECH_ENUM(name, text) ENG_SPEECH_##name,
    ENG_SPEECH_WAYS(ENG_SPEECH_ENUM)
#undef ENG_SPEECH_ENUM
};

enum { ENG_SPEECH_MARKS = 21 };

struct eng_speech_style {
    enum eng_speech_way way;
    bool thinks;  /* the model may write reasoning before its answer */
    bool variant; /* a variant of `way`: see the table in format_of_model.c */
    struct eng_speech_mark {
        const char *text; /* NULL: the format has no such marker */
        int32_t control;  /* its control token; ENG_NO_TOKEN: recognised as text */
    } mark[ENG_SPEECH_MARKS];
};

/* Finds the format of a model from its template, [n] bytes, which may be NULL, and its vocabulary,
 * which may be NULL too. */
void eng_speech_style(struct eng_speech_style *out, const char *template_text, size_t n, const struct eng_vocab *v);
const char *eng_speech_style_name(const struct eng_speech_style *s); /* a name of the table above */

/* True if the prompt ends with the marker that opens reasoning (some templates write <think> last), so
 * that the answer begins inside the reasoning. */
bool eng_speech_prompt_thinks(const struct eng_speech_style *s, const char *prompt, size_t n);

/* ---- an answer ------------------------------------------------------------------------------- */

enum eng_speech_kind {
    ENG_SPEECH_CONTENT,   /* text */
    ENG_SPEECH_REASONING, /* text */
    ENG_SPEECH_CALL,      /* call number `call` begins; text: its name */
    ENG_SPEECH_ARGUMENTS, /* text: more of the JSON of the call's arguments */
    ENG_SPEECH_CALL_END,  /* whole: the arguments are complete */
};

struct eng_speech_event {
    enum eng_speech_kind kind;
    int call;         /* of the last three kinds: the call's number in the answer, from 0 */
    bool whole;       /* of CALL_END */
    const char *text; /* [n] not terminated; valid until the next feed, control or finish */
    size_t n;
};

struct eng_speech;

struct eng_speech_options {
    const struct eng_speech_style *style; /* must outlive the parser */
    const json_t *tools;                  /* the request's array, referenced; NULL: calls are not recognised */
    bool thinks;                          /* the answer begins inside the reasoning */
};

int eng_speech_open(struct eng_speech **out, const struct eng_speech_options *o);
void eng_speech_close(struct eng_speech *s);

/* Each returns 0 or KN_ENOMEM. */
int eng_speech_feed(struct eng_speech *s, const char *text, size_t n);
int eng_speech_control(struct eng_speech *s, int32_t token);
int eng_speech_finish(struct eng_speech *s); /* the answer ends; an open call ends with whole false */

bool eng_speech_next(struct eng_speech *s, struct eng_speech_event *e); /* false: no more events now */

/* ---- a request's grammar --------------------------------------------------------------------- */

enum eng_tool_choice { ENG_TOOL_AUTO, ENG_TOOL_NONE, ENG_TOOL_REQUIRED, ENG_TOOL_NAMED };

struct eng_speech_tools {
    const json_t *tools; /* [{"type": "function", "function": {"name": .., "parameters": ..}}] */
    enum eng_tool_choice choice;
    const char *name;     /* of NAMED: the tool to call */
    bool parallel;        /* allow more than one call */
    const json_t *schema; /* of an answer that is not a call; NULL: any text */
    bool thinks;          /* the answer begins inside the reasoning */
};

/* Builds the grammar of an answer; the caller closes *out with gr_close.
 *   AUTO             any text; each call names one of the tools, and its arguments conform to the
 *                    tool's parameters (in formats without a marker, an answer that begins like a
 *                    call must be one).
 *   REQUIRED, NAMED  a call, directly or after reasoning if the model has it.
 *   with a schema    JSON that conforms to it; or directly one or more calls, where they are allowed.
 * eng_speech parses every text of the grammar into exactly those calls.  *out is NULL (returns 0) when
 * there is nothing to constrain: no schema, and either no tools, NONE, or AUTO with a format without
 * calls.  On failure returns KN_EINVAL, KN_EUNSUPPORTED, KN_ELIMIT or KN_ENOMEM and writes one line
 * for the client into why[n_why]. */
int eng_speech_grammar(struct gr_grammar **out, const struct eng_speech_style *s, const struct eng_speech_tools *t,
                       char *why, size_t n_why);

#endif
