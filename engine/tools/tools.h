/* engine/tools/tools.h - what a model says, split into what it means, while it comes.  Internal to
 * engine.
 *
 *     eng_speech_style                                               once per model
 *     eng_speech_grammar                                             once per request with tools
 *     eng_speech_open -> [ feed or control, next* ]* -> finish, next* -> close       once per
 * answer
 *
 *     style    how a model writes its thoughts and its tool calls: known by its chat template.
 *     speech   reads one answer and gives events.  Text goes to feed as eng_decoder (with
 * ENG_DECODE_SKIP_SPECIAL) gives it; a token of ENG_TOKEN_CONTROL goes to control, after what
 * eng_decoder_finish still had; a stop token may be given or not.  Where a style's mark is a
 * control token of the vocabulary, that token alone is the mark, and the same letters written out
 * are text; where it is none, the letters are the mark.
 *
 * What is certain comes out at once; held back is only what may become a mark, the white space
 * before one, and a call until its name is known.  The events do not depend on how the text was cut
 * into pieces, adjacent ones of a kind aside.  What turns out to be no call comes out as content:
 * nothing is lost but the marks and the white space around thoughts and calls.  A call's argument
 * texts, one after the other, are a JSON object when it ends `whole`; one that breaks off after its
 * name was told ends without, and what follows is content.
 *
 * Time grows with the length of the text; an answer holds at most ENG_SPEECH_HELD bytes back.  A
 * style is immutable; a speech belongs to one thread.  It uses no engine and no network. */
#ifndef ENGINE_SPEECH_H
#define ENGINE_SPEECH_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/text.h"

enum { ENG_SPEECH_HELD = 1 << 20, ENG_SPEECH_NAME = 256 };

/* ---- styles ---------------------------------------------------------------------------------- */

#define ENG_SPEECH_WAYS(X)                                                                         \
    X(NONE, "none")         /* no tool calls */                                                    \
    X(HERMES, "hermes")     /* <tool_call>{"name": .., "arguments": {..}}</tool_call> */           \
    X(QWEN_XML, "qwen-xml") /* <tool_call><function=..><parameter=..>..</parameter></function> */  \
    X(LLAMA, "llama-3")     /* {"name": .., "parameters": {..}}, maybe after <|python_tag|> */     \
    X(MISTRAL, "mistral")   /* [TOOL_CALLS][{..}] or [TOOL_CALLS]name[ARGS]{..} */                 \
    X(DEEPSEEK, "deepseek") /* <|tool calls begin|><|tool call begin|>name<|tool sep|>{..} */      \
    X(KIMI, "kimi-k2")      /* the same with other marks and functions.name:0 */                   \
    X(INVOKE, "invoke")     /* <invoke name=".."><parameter name="..">..</parameter></invoke> */   \
    X(PYTHONIC, "pythonic") /* [name(key="value", other=1), ..], maybe after a mark */             \
    X(GLM, "glm-4.5")       /* <tool_call>name<arg_key>..</arg_key><arg_value>..</arg_value> */    \
    X(HARMONY, "gpt-oss")   /* channels, to=functions.name */

enum eng_speech_way {
#define ENG_SPEECH_ENUM(name, text) ENG_SPEECH_##name,
    ENG_SPEECH_WAYS(ENG_SPEECH_ENUM)
#undef ENG_SPEECH_ENUM
};

enum { ENG_SPEECH_MARKS = 21 };

struct eng_speech_style {
    enum eng_speech_way way;
    bool thinks;  /* it may think aloud before it answers */
    bool variant; /* of its way: see style.c */
    struct eng_speech_mark {
        const char *text; /* NULL: the style has none such */
        int32_t control;  /* or ENG_NO_TOKEN: it is written out */
    } mark[ENG_SPEECH_MARKS];
};

/* template_text may be NULL. */
void eng_speech_style(struct eng_speech_style *out, const char *template_text, size_t n,
                      const struct eng_vocab *v);
const char *eng_speech_style_name(const struct eng_speech_style *s); /* one of the names above */

/* Does an answer to this prompt begin within the thoughts?  Some templates end with <think>. */
bool eng_speech_prompt_thinks(const struct eng_speech_style *s, const char *prompt, size_t n);

/* ---- an answer ------------------------------------------------------------------------------- */

enum eng_speech_kind {
    ENG_SPEECH_CONTENT,   /* text */
    ENG_SPEECH_REASONING, /* text */
    ENG_SPEECH_CALL,      /* call `call` begins; text is its name */
    ENG_SPEECH_ARGUMENTS, /* text: more of the JSON of its arguments */
    ENG_SPEECH_CALL_END,  /* whole: its arguments are complete */
};

struct eng_speech_event {
    enum eng_speech_kind kind;
    int call;         /* counted from 0; the last three kinds */
    bool whole;       /* CALL_END */
    const char *text; /* [n] not terminated; valid until the next feed, control or finish */
    size_t n;
};

struct eng_speech;

struct eng_speech_options {
    const struct eng_speech_style *style; /* outlives the speech */
    const json_t *tools; /* as in a request; NULL: calls are not looked for.  Kept */
    bool thinks;         /* the answer begins within the thoughts */
};

int eng_speech_open(struct eng_speech **out, const struct eng_speech_options *o);
void eng_speech_close(struct eng_speech *s);

/* 0 or KN_ENOMEM. */
int eng_speech_feed(struct eng_speech *s, const char *text, size_t n);
int eng_speech_control(struct eng_speech *s, int32_t token);
int eng_speech_finish(struct eng_speech *s); /* the text is at its end; a call may be cut off */

bool eng_speech_next(struct eng_speech *s, struct eng_speech_event *e);

/* ---- a request's grammar --------------------------------------------------------------------- */

enum eng_tool_choice { ENG_TOOL_AUTO, ENG_TOOL_NONE, ENG_TOOL_REQUIRED, ENG_TOOL_NAMED };

struct eng_speech_tools {
    const json_t *tools; /* [{"type": "function", "function": {"name": .., "parameters": ..}}] */
    enum eng_tool_choice choice;
    const char *name;     /* NAMED: which */
    bool parallel;        /* more than one call */
    const json_t *schema; /* what an answer that is no call has to be; NULL: any text */
    bool thinks;          /* the answer begins within the thoughts */
};

/* What an answer may be: auto is any text, but a call is one of the tools', with arguments that
 * conform to its parameters (where calls need no mark, an answer that begins as they do is one);
 * required and named are a call at once, after thoughts if the model has them.  Every text of the
 * grammar is read by eng_speech as such calls.  With a schema an answer is either one call or more,
 * at once, or JSON that conforms to it.  *out is NULL where nothing is to be kept to: no schema, and
 * no tools, `none`, or auto with a style that has no calls.  Otherwise KN_EINVAL, KN_EUNSUPPORTED or
 * KN_ELIMIT, and one line for whoever sent the request in why[n_why]. */
int eng_speech_grammar(struct gr_grammar **out, const struct eng_speech_style *s,
                       const struct eng_speech_tools *t, char *why, size_t n_why);

#endif
