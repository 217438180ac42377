/* engine/tools/format_of_model.c - finds the format of a model's reasoning and calls.
 *
 * In: the chat template's text and the vocabulary.  Out: a struct eng_tool_format.  A template
 * renders the model's earlier calls, so it contains the markers that the model was trained to write.
 * The table is searched in order, from markers that only one format uses to those that several
 * use.  A marker that is a control token of the vocabulary is recognised as that token only (tools.h).
 */
#include <string.h>

#include "engine/base/bytes.h"
#include "engine/tools/internal.h"

#define BAR            "\xEF\xBD\x9C" /* U+FF5C, a wide | */
#define LOW            "\xE2\x96\x81" /* U+2581, a low block that stands for a space */
#define DEEPSEEK(name) "<" BAR name BAR ">"
#define DSML           BAR "DSML" BAR
#define INVOKE(open, close, calls)                                                                                     \
    {                                                                                                                  \
        [MARK_CALLS] = "<" calls, [MARK_CALLS_END] = "</" calls, [MARK_FUNCTION] = open "invoke name=\"",              \
        [MARK_FUNCTION_END] = close "invoke>", [MARK_KEY] = open "parameter name=\"",                                  \
        [MARK_VALUE_END] = close "parameter>"                                                                          \
    }

struct known {
    enum eng_tool_syntax syntax;
    const char *sign[2]; /* the template must contain both; NULL: always met */
    const char *variant; /* if the template contains this text, it uses the format's variant; NULL: no variant */
    const char *mark[MARK_COUNT];
};

static const struct known known[] = {
    /* after <|start|>assistant come channel and recipient; the reasoning is a channel */
    { ENG_SYNTAX_HARMONY,
      { "<|channel|>", "<|message|>" },
      NULL,
      { [MARK_START] = "<|start|>",
        [MARK_CHANNEL] = "<|channel|>",
        [MARK_CONSTRAIN] = "<|constrain|>",
        [MARK_MESSAGE] = "<|message|>",
        [MARK_END] = "<|end|>",
        [MARK_CALL_STOP] = "<|call|>",
        [MARK_RETURN] = "<|return|>" } },
    /* variant (V3): function<sep>name, a line end, and the arguments inside ```json fences */
    { ENG_SYNTAX_DEEPSEEK,
      { DEEPSEEK("tool" LOW "call" LOW "begin") },
      "```json",
      { [MARK_CALLS] = DEEPSEEK("tool" LOW "calls" LOW "begin"),
        [MARK_CALLS_END] = DEEPSEEK("tool" LOW "calls" LOW "end"),
        [MARK_CALL] = DEEPSEEK("tool" LOW "call" LOW "begin"),
        [MARK_CALL_END] = DEEPSEEK("tool" LOW "call" LOW "end"),
        [MARK_SEPARATOR] = DEEPSEEK("tool" LOW "sep") } },
    { ENG_SYNTAX_KIMI,
      { "<|tool_call_begin|>", "<|tool_call_argument_begin|>" },
      NULL,
      { [MARK_CALLS] = "<|tool_calls_section_begin|>",
        [MARK_CALLS_END] = "<|tool_calls_section_end|>",
        [MARK_CALL] = "<|tool_call_begin|>",
        [MARK_CALL_END] = "<|tool_call_end|>",
        [MARK_SEPARATOR] = "<|tool_call_argument_begin|>" } },
    /* variant (DSML): an attribute of each parameter gives whether it is a string */
    { ENG_SYNTAX_INVOKE, { DSML, "function_calls>" }, DSML, INVOKE("<" DSML, "</" DSML, DSML "function_calls>") },
    { ENG_SYNTAX_INVOKE, { DSML, "tool_calls>" }, DSML, INVOKE("<" DSML, "</" DSML, DSML "tool_calls>") },
    { ENG_SYNTAX_INVOKE, { "<minimax:tool_call>", "<invoke name=" }, DSML, INVOKE("<", "</", "minimax:tool_call>") },
    { ENG_SYNTAX_GLM,
      { "<arg_key>", "<arg_value>" },
      NULL,
      { [MARK_CALL] = "<tool_call>",
        [MARK_CALL_END] = "</tool_call>",
        [MARK_KEY] = "<arg_key>",
        [MARK_KEY_END] = "</arg_key>",
        [MARK_VALUE] = "<arg_value>",
        [MARK_VALUE_END] = "</arg_value>" } },
    { ENG_SYNTAX_QWEN_XML,
      { "<seed:tool_call>", "<parameter=" },
      NULL,
      { [MARK_CALL] = "<seed:tool_call>",
        [MARK_CALL_END] = "</seed:tool_call>",
        [MARK_FUNCTION] = "<function=",
        [MARK_FUNCTION_END] = "</function>",
        [MARK_KEY] = "<parameter=",
        [MARK_VALUE_END] = "</parameter>" } },
    { ENG_SYNTAX_QWEN_XML,
      { "<function=", "<parameter=" },
      NULL,
      { [MARK_CALL] = "<tool_call>",
        [MARK_CALL_END] = "</tool_call>",
        [MARK_FUNCTION] = "<function=",
        [MARK_FUNCTION_END] = "</function>",
        [MARK_KEY] = "<parameter=",
        [MARK_VALUE_END] = "</parameter>" } },
    /* variant (newer): a name, optionally [CALL_ID], and [ARGS] */
    { ENG_SYNTAX_MISTRAL,
      { "[TOOL_CALLS]" },
      "[ARGS]",
      { [MARK_CALLS] = "[TOOL_CALLS]", [MARK_ID] = "[CALL_ID]", [MARK_SEPARATOR] = "[ARGS]" } },
    /* Hunyuan, Apriel: the older form of Mistral, between other markers */
    { ENG_SYNTAX_MISTRAL,
      { "<tool_calls>[", "arguments" },
      "[ARGS]",
      { [MARK_CALLS] = "<tool_calls>", [MARK_CALLS_END] = "</tool_calls>" } },
    { ENG_SYNTAX_MARKED,
      { "<|tool_call>call:", "<|\"|>" },
      NULL,
      { [MARK_CALL] = "<|tool_call>", [MARK_CALL_END] = "<tool_call|>", [MARK_QUOTE] = "<|\"|>" } },
    { ENG_SYNTAX_HERMES,
      { "<tool_call>", "arguments" },
      NULL,
      { [MARK_CALL] = "<tool_call>", [MARK_CALL_END] = "</tool_call>" } },
    /* variant: the marker before the list is optional */
    { ENG_SYNTAX_PYTHONIC,
      { "[func_name1(", "<|header_start|>" },
      "[func_name1(",
      { [MARK_CALLS] = "<|python_start|>", [MARK_CALLS_END] = "<|python_end|>" } },
    { ENG_SYNTAX_PYTHONIC, { "[func_name1(" }, "[func_name1(", { [MARK_CALLS] = "<|python_tag|>" } },
    /* LFM2: its template contains no markers of calls */
    { ENG_SYNTAX_PYTHONIC,
      { "List of tools: ", "<|im_start|>" },
      NULL,
      { [MARK_CALLS] = "<|tool_call_start|>", [MARK_CALLS_END] = "<|tool_call_end|>" } },
    { ENG_SYNTAX_LLAMA, { "<|start_header_id|>", "\"parameters\": " }, NULL, { [MARK_CALLS] = "<|python_tag|>" } },
    /* Llama 4: its template writes both markers before calls, with the text of the message between them */
    { ENG_SYNTAX_LLAMA,
      { "<|header_start|>", "\"parameters\": " },
      NULL,
      { [MARK_CALLS] = "<|python_start|>", [MARK_CALL] = "<|python_end|>" } },
    { ENG_SYNTAX_NONE, { "" }, NULL, { 0 } },
};

static const char *const thoughts[][2] = { { "[THINK]", "[/THINK]" },
                                           { "<seed:think>", "</seed:think>" },
                                           { "<|channel>thought\n", "<channel|>" }, /* gemma4 */
                                           { "<think>", "</think>" } };

static bool has(const char *text, size_t n, const char *part) { return !part || memmem(text, n, part, strlen(part)); }

static bool is_special(const struct eng_vocab *v, const char *text)
{
    return v && eng_vocab_find_special(v, text, strlen(text)) != ENG_NO_TOKEN;
}

/* Finds the pair of markers around reasoning.  A pair is chosen if the template contains either marker of
 * it, because some templates never write the opening marker, and others only use the closing marker to
 * strip reasoning.  Otherwise a pair is chosen if both markers are special tokens of the vocabulary. */
static void find_thoughts(struct eng_tool_format *s, const char *text, size_t n, const struct eng_vocab *v)
{
    const size_t n_known = sizeof thoughts / sizeof *thoughts;
    for (size_t i = 0; i < 2 * n_known && !s->thinks; i++) {
        const char *const *t = thoughts[i % n_known];
        s->thinks = i < n_known ? has(text, n, t[0]) || has(text, n, t[1]) : is_special(v, t[0]) && is_special(v, t[1]);
        for (int end = 0; s->thinks && end < 2; end++)
            s->mark[MARK_THINK + end].text = t[end];
    }
}

static int32_t control(const struct eng_vocab *v, const char *text)
{
    int32_t id = v ? eng_vocab_find_special(v, text, strlen(text)) : ENG_NO_TOKEN;
    return id != ENG_NO_TOKEN && eng_vocab_type(v, id) == ENG_TOKEN_CONTROL ? id : ENG_NO_TOKEN;
}

void eng_tool_format_find(struct eng_tool_format *out, const char *template_text, size_t n, const struct eng_vocab *v)
{
    const struct known *k = known;
    const char *text = template_text ? template_text : "";
    n = template_text ? n : 0;
    while (!has(text, n, k->sign[0]) || !has(text, n, k->sign[1]))
        k++;
    *out = (struct eng_tool_format){ .syntax = k->syntax, .variant = k->variant && has(text, n, k->variant) };
    for (int i = 0; i < MARK_COUNT; i++)
        out->mark[i].text = k->mark[i];
    if (out->syntax == ENG_SYNTAX_HARMONY)
        out->thinks = true;
    else
        find_thoughts(out, text, n, v);
    for (int i = 0; i < MARK_COUNT; i++)
        out->mark[i].control = out->mark[i].text ? control(v, out->mark[i].text) : ENG_NO_TOKEN;
}

void eng_tool_format_generic(struct eng_tool_format *s)
{
    s->syntax = ENG_SYNTAX_HERMES;
    s->variant = false;
    for (int i = MARK_CALLS; i < MARK_COUNT; i++)
        s->mark[i] = (struct eng_tool_marker){ NULL, ENG_NO_TOKEN };
    s->mark[MARK_CALL].text = ENG_GENERIC_CALL;
    s->mark[MARK_CALL_END].text = ENG_GENERIC_CALL_END;
}

const char *eng_tool_format_name(const struct eng_tool_format *s)
{
    static const char *const names[] = {
#define NAME(name, text) [ENG_SYNTAX_##name] = text,
        ENG_TOOL_SYNTAXES(NAME)
#undef NAME
    };
    return names[s->syntax];
}

const char *eng_tool_format_thought(const struct eng_tool_format *s, bool close)
{
    return s->mark[close ? MARK_THINK_END : MARK_THINK].text;
}

uint8_t eng_tool_format_first_byte(const struct eng_tool_format *s)
{
    return s->syntax == ENG_SYNTAX_LLAMA ? '{' : s->syntax == ENG_SYNTAX_PYTHONIC && s->variant ? '[' : 0;
}

bool eng_tool_format_marks_text(const struct eng_tool_format *s)
{
    return s->syntax == ENG_SYNTAX_LLAMA && s->mark[MARK_CALL].text;
}

bool eng_tool_format_text_thinks(const struct eng_tool_format *s, const char *text, size_t n, size_t *after)
{
    const char *open = s->mark[MARK_THINK].text, *close = s->mark[MARK_THINK_END].text;
    bool thinks = false;
    *after = 0;
    for (size_t i = 0; open && i < n; i++)
        if (n - i >= strlen(close) && !memcmp(text + i, close, strlen(close))) {
            *after = i + strlen(close);
            thinks = false;
        } else if (n - i >= strlen(open) && !memcmp(text + i, open, strlen(open))) {
            thinks = true;
        }
    return thinks;
}

bool eng_tool_format_prompt_thinks(const struct eng_tool_format *s, const char *prompt, size_t n)
{
    const char *mark = s->mark[MARK_THINK].text;
    if (!mark)
        return false;
    while (n && eng_is_json_space((uint8_t)prompt[n - 1]))
        n--;
    size_t n_mark = strlen(mark);
    return n >= n_mark && !memcmp(prompt + n - n_mark, mark, n_mark);
}

bool eng_tool_format_tokens_think(const struct eng_tool_format *s, const struct eng_vocab *v,
                                  const struct eng_ids *prompt)
{
    enum { TAIL = 16 }; /* the most tokens of the marker and the white space behind it */
    struct eng_bytes b = { 0 };
    for (size_t i = prompt->n > TAIL ? prompt->n - TAIL : 0; i < prompt->n; i++) {
        struct moe_string text = eng_vocab_text(v, prompt->id[i]);
        eng_bytes_add(&b, text.data, text.n);
    }
    bool thinks = b.n && !b.failed && eng_tool_format_prompt_thinks(s, b.data, b.n);
    eng_bytes_free(&b);
    return thinks;
}
