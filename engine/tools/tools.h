/* engine/tools/tools.h - streaming parser of a model's answer (content, reasoning, tool calls), and
 * the grammars that constrain it.  Internal to engine.
 *
 *     eng_speech_style                                                        once per model
 *     eng_speech_grammar                                                      once per request with tools
 *     eng_speech_open -> [ feed or control, next* ]* -> finish, next* -> close       once per answer
 *
 *     eng_speech_style   the format in which a model writes its reasoning and its tool calls, found
 *                        from its chat template and vocabulary.
 *     eng_speech         the parser of one answer; it gives events.  Pass to eng_speech_feed the text
 *                        that eng_decoder gives (with ENG_DECODE_SKIP_SPECIAL).  For each token of
 *                        type ENG_TOKEN_CONTROL, first pass the text of eng_decoder_finish, then the
 *                        token to eng_speech_control.  Passing a stop token is optional.
 *
 * A format has markers, such as <tool_call>.  A marker that is a control token of the vocabulary is
 * recognised as that token only: the same characters as plain text are content.  Every other marker is
 * recognised as text.
 *
 * Events are given as soon as they are certain.  The parser holds back only a possible beginning of a
 * marker, the white space before that, and a call until its name is complete.  How the caller splits
 * the text changes only how a text is split into adjacent events of the same kind.  A possible call
 * that turns out not to be valid becomes content; only markers and the white space around reasoning
 * and calls are dropped.  The concatenated ENG_SPEECH_ARGUMENTS of a call are a JSON object if its
 * CALL_END is `whole`.  If a call turns out not to be valid after its CALL event, its CALL_END has
 * `whole` false, and the text after that is content.
 *
 * Time is linear in the length of the text; at most ENG_SPEECH_HELD bytes are held back.  A style is
 * immutable and shared by threads; a parser belongs to one thread.  No dependency on the engine or the
 * network. */
#ifndef ENGINE_SPEECH_H
#define ENGINE_SPEECH_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/text.h"

enum { ENG_SPEECH_HELD = 1 << 20, ENG_SPEECH_NAME = 256 }; /* most bytes held back; most bytes of a name */

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
    bool variant; /* the template uses the variant of `way` that the table in format_of_model.c names */
    struct eng_speech_mark {
        const char *text; /* NULL: the format has no such marker */
        int32_t control;  /* the control token that is the marker; ENG_NO_TOKEN: the marker is recognised as text */
    } mark[ENG_SPEECH_MARKS];
};

/* Finds the format of a model from the text of its chat template, template_text[n], and its vocabulary.
 * Either may be NULL. */
void eng_speech_style(struct eng_speech_style *out, const char *template_text, size_t n, const struct eng_vocab *v);
const char *eng_speech_style_name(const struct eng_speech_style *s); /* the second name in ENG_SPEECH_WAYS */

/* True if the prompt, without white space at its end, ends with the marker that opens reasoning (some
 * templates write <think> last).  The answer then begins inside the reasoning. */
bool eng_speech_prompt_thinks(const struct eng_speech_style *s, const char *prompt, size_t n);

/* ---- an answer ------------------------------------------------------------------------------- */

enum eng_speech_kind {
    ENG_SPEECH_CONTENT,   /* text */
    ENG_SPEECH_REASONING, /* text */
    ENG_SPEECH_CALL,      /* call number `call` begins; text is the name of its tool */
    ENG_SPEECH_ARGUMENTS, /* text is the next part of the call's arguments, a JSON object */
    ENG_SPEECH_CALL_END,  /* `whole` says if the arguments are complete */
};

struct eng_speech_event {
    enum eng_speech_kind kind;
    int call;         /* of CALL, ARGUMENTS, CALL_END: the call's number in the answer, from 0 */
    bool whole;       /* of CALL_END: the arguments are a complete JSON object */
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

/* Read the next text, or the next control token; or end the answer.  Each returns 0 or KN_ENOMEM, and
 * adds events for eng_speech_next. */
int eng_speech_feed(struct eng_speech *s, const char *text, size_t n);
int eng_speech_control(struct eng_speech *s, int32_t token);
int eng_speech_finish(struct eng_speech *s); /* the CALL_END of an open call has whole false */

bool eng_speech_next(struct eng_speech *s, struct eng_speech_event *e); /* false: no events until more text */

/* ---- a request's grammar --------------------------------------------------------------------- */

enum eng_tool_choice { ENG_TOOL_AUTO, ENG_TOOL_NONE, ENG_TOOL_REQUIRED, ENG_TOOL_NAMED };

struct eng_speech_tools {
    const json_t *tools; /* [{"type": "function", "function": {"name": .., "parameters": ..}}] */
    enum eng_tool_choice choice;
    const char *name;     /* of NAMED: the tool to call */
    bool parallel;        /* allow more than one call */
    const json_t *schema; /* JSON schema of an answer without calls; NULL: any text */
    bool thinks;          /* the answer begins inside the reasoning */
};

/* Builds the grammar of an answer; the caller closes *out with gr_close.
 *   AUTO             any text, which may contain calls; each call names one of the tools, and its
 *                    arguments conform to the tool's parameters (in formats without a marker, an
 *                    answer that begins like a call must be a call).
 *   REQUIRED, NAMED  a call and no other text, except reasoning before it if the model has reasoning.
 *   with a schema    JSON that conforms to the schema; or calls and no other text, if calls are
 *                    allowed.
 * eng_speech parses every text that the grammar accepts into exactly the calls that the grammar put
 * there.  *out is NULL (returns 0) if nothing needs a constraint: there is no schema, and there are
 * no tools, or the choice is NONE, or the choice is AUTO and the format has no calls.  On failure
 * returns KN_EINVAL, KN_EUNSUPPORTED, KN_ELIMIT or KN_ENOMEM and writes one line for the client into
 * why[n_why]. */
int eng_speech_grammar(struct gr_grammar **out, const struct eng_speech_style *s, const struct eng_speech_tools *t,
                       char *why, size_t n_why);

#endif
