/* The parser of answers: content, reasoning and tool calls, for each format of calls. Each answer is fed whole, byte by
 * byte, and cut in two at every place, with the same result. Calls rendered by published templates are parsed back.
 *
 * The events of an answer are written as one line: c(content) r(reasoning) <name>arguments</> and, for a call that is
 * cut off, <name>arguments<cut>.
 *
 * One thread: not under MODE=tsan. */
#include "engine/text/jinja/jinja.h"
#include "tests/engine/tools/answers.h"
#include "tests/faults.h"

enum { MOST_LINE = 1 << 16 };

/* ---- formats --------------------------------------------------------------------------------- */

static void styles_by_template(void **state)
{
    (void)state;
    static const struct {
        const char *template, *name;
        bool thinks, variant;
    } known[] = {
        { "Qwen-Qwen2.5-7B-Instruct", "hermes", false, false },
        { "Qwen-Qwen3-0.6B", "hermes", true, false },
        { "Qwen-QwQ-32B", "hermes", true, false },
        { "HuggingFaceTB-SmolLM3-3B", "none", true, false },
        { "MiMo-VL", "hermes", false, false },
        { "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", false, false },
        { "Qwen3-Coder", "qwen-xml", false, false },
        { "stepfun-ai-Step-3.5-Flash", "qwen-xml", true, false },
        { "ByteDance-Seed-OSS", "qwen-xml", true, false },
        { "meta-llama-Llama-3.1-8B-Instruct", "llama-3", false, false },
        { "meta-llama-Llama-3.2-3B-Instruct", "llama-3", false, false },
        { "meta-llama-Llama-3.3-70B-Instruct", "llama-3", false, false },
        { "mistralai-Mistral-Nemo-Instruct-2407", "mistral", false, false },
        { "Mistral-Small-3.2-24B-Instruct-2506", "mistral", false, true },
        { "unsloth-mistral-Devstral-Small-2507", "mistral", false, true },
        { "deepseek-ai-DeepSeek-V3.1", "deepseek", true, false },
        { "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", true, true },
        { "llama-cpp-deepseek-r1", "deepseek", true, true },
        { "Kimi-K2-Instruct", "kimi-k2", false, false },
        { "moonshotai-Kimi-K2", "kimi-k2", false, false },
        { "deepseek-ai-DeepSeek-V4", "invoke", true, true },
        { MINIMAX, "invoke", true, false },
        { "GLM-4.6", "glm-4.5", true, false },
        { "GLM-5.2", "glm-4.5", true, false },
        { "openai-gpt-oss-120b", "gpt-oss", true, false },
        { "LFM2.5-Instruct", "pythonic", true, false },
        { LLAMA_3_LIST, "pythonic", false, true },
        { LLAMA_4_LIST, "pythonic", false, true },
        { "google-gemma-2-2b-it", "none", false, false },
        { "google-gemma-3-270m-it", "none", false, false },
        { "google-gemma-4-31B-it-interleaved", "gemma-4", true, false },
        { "meta-llama-Llama-4-Scout-17B-16E-Instruct", "llama-3", false, false },
        { "mistralai-tokenizer-v13", "mistral", true, true },
        { "mistralai-tokenizer-v15", "mistral", true, true },
        { "ibm-granite-granite-3.1-1b-a400m-instruct", "none", false, false },
        { "microsoft-Phi-3.5-mini-instruct", "none", false, false },
        { "tencent-Hunyuan-A13B-Instruct", "mistral", true, false },
        { "Apriel-1.6-15b-Thinker-fixed", "mistral", false, false },
        { "meetkai-functionary-medium-v3.1", "none", false, false },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct eng_tool_format s = style_of(known[i].template, NULL);
        if (strcmp(eng_tool_format_name(&s), known[i].name) || s.thinks != known[i].thinks ||
            s.variant != known[i].variant)
            fail_msg("%s: %s, thinks %d, variant %d", known[i].template, eng_tool_format_name(&s), s.thinks, s.variant);
    }
    struct eng_tool_format s;
    eng_tool_format_find(&s, NULL, 0, NULL);
    assert_string_equal(eng_tool_format_name(&s), "none");

    struct eng_vocab *v = vocab_with_marks(ENG_TOKEN_CONTROL);
    eng_tool_format_find(&s, "", 0, v); /* from the vocabulary alone */
    assert_true(s.thinks && s.mark[MARK_THINK].control >= 0);
    s = style_of("Qwen3-Coder", v);
    assert_true(s.mark[MARK_CALL].control >= 0 && s.mark[MARK_FUNCTION].control == ENG_NO_TOKEN);
    eng_vocab_close(v);
    v = vocab_with_marks(ENG_TOKEN_USER);
    s = style_of("Qwen3-Coder", v);
    assert_true(s.mark[MARK_CALL].control == ENG_NO_TOKEN);
    eng_vocab_close(v);

    s = style_of("Qwen-Qwen3-0.6B", NULL);
    assert_true(eng_tool_format_prompt_thinks(&s, "user\n<think>\n", 13));
    assert_false(eng_tool_format_prompt_thinks(&s, "<think>\n\n</think>\n\n", 18));
    assert_false(eng_tool_format_prompt_thinks(&s, "<think", 6));
}

/* ---- parsing --------------------------------------------------------------------------------- */

struct line {
    char text[MOST_LINE];
    size_t n;
    int kind; /* kind of the last event; -1: none */
};

static void line_add(struct line *l, const char *p, size_t n)
{
    assert_true(n < sizeof l->text - l->n);
    memcpy(l->text + l->n, p, n);
    l->n += n;
    l->text[l->n] = 0;
}

static void line_close(struct line *l)
{
    if (l->kind == ENG_ANSWER_CONTENT || l->kind == ENG_ANSWER_REASONING)
        line_add(l, ")", 1);
    l->kind = -1;
}

static void take_events(struct eng_answer_parser *s, struct line *l, int *n_call)
{
    struct eng_answer_event e;
    while (eng_answer_next(s, &e)) {
        const bool is_text = e.kind == ENG_ANSWER_CONTENT || e.kind == ENG_ANSWER_REASONING;
        if (is_text || e.kind == ENG_ANSWER_CALL) {
            if ((int)e.kind != l->kind || !is_text) {
                line_close(l);
                line_add(l, e.kind == ENG_ANSWER_CONTENT ? "c(" : is_text ? "r(" : "<", is_text ? 2 : 1);
            }
        }
        if (!is_text)
            assert_int_equal(e.call, *n_call);
        line_add(l, e.text, e.n);
        if (e.kind == ENG_ANSWER_CALL)
            line_add(l, ">", 1);
        if (e.kind == ENG_ANSWER_CALL_END) {
            line_add(l, e.whole ? "</>" : "<cut>", e.whole ? 3 : 5);
            (*n_call)++;
        }
        l->kind = (int)e.kind;
    }
}

/* Feeds p in pieces: up to `cut`, then `most` bytes each. Marks that are control tokens are fed as tokens. limited: a
 * limit ends the answer. */
static void read_until(const struct eng_answer_options *o, const char *p, size_t n, size_t cut, size_t most,
                       bool limited, struct line *l)
{
    struct eng_answer_parser *s;
    int n_call = 0;
    l->n = 0;
    l->text[0] = 0;
    l->kind = -1;
    assert_int_equal(eng_answer_open(&s, o), 0);
    for (size_t i = 0; i < n;) {
        size_t end = i < cut ? cut : i + most < n ? i + most : n, n_mark = 0;
        int32_t token = ENG_NO_TOKEN;
        for (size_t at = i; at < end && token < 0; at++)
            for (int m = 0; m < MARK_COUNT && token < 0; m++) {
                const struct eng_tool_marker *k = &o->format->mark[m];
                size_t k_n = k->text ? strlen(k->text) : 0;
                if (k->control < 0 || k_n > n - at || memcmp(k->text, p + at, k_n))
                    continue;
                token = k->control;
                n_mark = k_n;
                end = at;
            }
        assert_int_equal(eng_answer_feed(s, p + i, end - i), 0);
        take_events(s, l, &n_call);
        if (token >= 0) {
            assert_int_equal(eng_answer_control(s, token), 0);
            take_events(s, l, &n_call);
        }
        i = end + n_mark;
    }
    assert_int_equal(eng_answer_finish(s, limited), 0);
    take_events(s, l, &n_call);
    line_close(l);
    eng_answer_close(s);
}

static void read_pieces(const struct eng_answer_options *o, const char *p, size_t n, size_t cut, size_t most,
                        struct line *l)
{
    read_until(o, p, n, cut, most, false, l);
}

/* An answer of calls only, cut off by a limit after any byte, has no content, except a single byte that may be text. */
static void expect_no_content(const struct eng_answer_options *o, const char *text)
{
    static struct line l;
    for (size_t n = 1; n < strlen(text); n++) {
        read_until(o, text, n, 0, 1, true, &l);
        const char *content = strstr(l.text, "c(");
        size_t n_space = content ? strspn(content + 2, " \n") : 0;
        if (content && strcmp(content + 2 + n_space, ")") != 0 && strcmp(content + 3 + n_space, ")") != 0)
            fail_msg("%.*s\n has content: %s", (int)n, text, l.text);
    }
}

static void expect_line(const struct line *l, const char *want, const char *text)
{
    if (strcmp(l->text, want))
        fail_msg("%s\n is    %s\n and not %s", text, l->text, want);
}

/* Whole, byte by byte, and cut in two at every place. */
static void expect_answer(const struct eng_answer_options *o, const char *text, const char *want)
{
    static struct line l;
    size_t n = strlen(text);
    read_pieces(o, text, n, 0, n, &l);
    expect_line(&l, want, text);
    read_pieces(o, text, n, 0, 1, &l);
    expect_line(&l, want, text);
    for (size_t cut = 1; cut < n; cut++) {
        read_pieces(o, text, n, cut, n, &l);
        expect_line(&l, want, text);
    }
}

#define DS(x)   "<｜tool▁" x "｜>"
#define WEATHER "{\"city\": \"Paris\"}"
#define DEEP    "{\"a\":[1,{\"b\":{}},\"}]</tool_call>\\\"\"],\"c\":-1.5e+3}"

struct answer {
    const char *text, *want;
    int how;
};
enum {
    THINKS = 1 /* the prompt ends inside reasoning */,
    LETTERS = 2 /* contains marks in strings, so not with marks as tokens */
};

static const struct answer plain[] = {
    { "", "", 0 },
    { "Hello <b>, [x] <tool_call> {\"name\"", "c(Hello <b>, [x] <tool_call> {\"name\")", 0 },
    { " \n a \n", "c( \n a \n)", 0 },
    { NULL, NULL, 0 },
};

#define Q(text) "<|\"|>" text "<|\"|>"

static const struct answer gemma4[] = {
    { "<|channel>thought\nhm<channel|>Hi", "r(hm)c(Hi)", 0 },
    { "<|channel>thought\n<channel|>Hi", "c(Hi)", 0 },
    { "hm<channel|>Hi", "r(hm)c(Hi)", THINKS },
    { "Hi <|channel>", "c(Hi <|channel>)", 0 },
    { "<|tool_call>call:f{city:" Q("Paris") "}<tool_call|>", "<f>" WEATHER "</>", 0 },
    { "Ok\n<|tool_call>call:f{b:true,city:" Q("a \"b\"\n{c}, \\d") ",n:-1.5e3,o:{a:[1,None," Q(
          "x") ",{}],b c:{}}}"
               "<tool_call|><|tool_call>call:g{}<tool_call|>",
      "c(Ok)<f>{\"b\": true, \"city\": \"a \\\"b\\\"\\n{c}, \\\\d\", \"n\": -1.5e3, \"o\": {\"a\": [1, null, \"x\", {}], "
      "\"b c\": {}}}</><g>{}</>",
      0 },
    { "<|channel>thought\nhm<channel|><|tool_call>call:f{ " Q("city") " : " Q("") " }<tool_call|>",
      "r(hm)<f>{\"city\": \"\"}</>", 0 },
    { "<|tool_call>call:f{city:" Q("<tool_call|>") "}<tool_call|>!", "<f>{\"city\": \"<tool_call|>\"}</>c(!)",
      LETTERS },
    { "<|tool_call>call:f{city:" Q("<|\"<|"), "<f>{\"city\": \"<|\\\"<|\"<cut>", 0 },
    { "<|tool_call>call:f{city:<|\"|>Par", "<f>{\"city\": \"Par<cut>", 0 },
    { "<|tool_call>call:f{n:1", "<f>{\"n\": <cut>", 0 },
    { "<|tool_call>call:f{ci", "<f>{<cut>", 0 },
    { "<|tool_call>call:f{n:x}", "<f>{\"n\": <cut>c(x})", 0 },
    { "<|tool_call>call:f{n:1,}", "<f>{\"n\": 1, <cut>c(})", 0 },
    { "<|tool_call>call:f{n:1]", "<f>{\"n\": 1<cut>c(])", 0 },
    { "<|tool_call>call:f{a,b:1}", "<f>{<cut>c(a,b:1})", 0 },
    { "<|tool_call>call:{}", "c(<|tool_call>call:{})", 0 },
    { "<|tool_call>f{}", "c(<|tool_call>f{})", 0 },
    { "<|tool_call>call:f g{}", "c(<|tool_call>call:f g{})", 0 },
    { NULL, NULL, 0 },
};

static const struct answer hermes[] = {
    { "plain <text", "c(plain <text)", 0 },
    { "<think>\nhm\n\n</think>\n\nHi", "r(hm)c(Hi)", 0 },
    { "\n <think>a</think>b", "r(a)c(b)", 0 },
    { "\nhm</think>\n\nHi", "r(hm)c(Hi)", THINKS },
    { "<think>cut off", "r(cut off)", 0 },
    { "<think> <tool_cal>{}</thin </think>", "r(<tool_cal>{}</thin)", 0 },
    { "<tool_call>\n{\"name\": \"f\", \"arguments\": " WEATHER "}\n</tool_call>", "<f>" WEATHER "</>", 0 },
    { "<think>x</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "r(x)<f>{}</>", 0 },
    { "Let me.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
      "{\"name\": \"g\", \"arguments\": " DEEP "}\n</tool_call>\n",
      "c(Let me.)<f>{}</><g>" DEEP "</>", LETTERS },
    { "a\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nb", "c(a)<f>{}</>c(\nb)", 0 },
    { "<tool_call>{\"arguments\":{\"x\":\"\\u00e9é\"},\"id\":[1,2],\"name\":\"f\\u005f\"}</"
      "tool_call>",
      "<f_>{\"x\":\"\\u00e9é\"}</>", 0 },
    { "<tool_call>{\"name\":\"f\"}</tool_call>", "<f>{}</>", 0 },
    { "<tool_call>{\"name\":\"f\",\"parameters\":{}}", "<f>{}</>", 0 },
    { "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"a\nb\"}}</tool_call>", "<f>{\"x\":\"a\\nb\"}</>", 0 },
    { "<tool_call>{\"name\":\"f\"}\n</tool_call>b", "<f>{}</>c(b)", 0 },
    { "<tool_call>{\"x\":{\"name\":1},\"name\":\"f\",\"arguments\":{},\"y\":{}}", "<f>{}</>", 0 },
    { "<tool_call>{\"name\":\"f\",\"name\":\"g\"}", "c(<tool_call>{\"name\":\"f\",\"name\":\"g\"})", 0 },
    { "<tool_call>{\"arguments\":{},\"arguments\":{},\"name\":\"f\"}",
      "c(<tool_call>{\"arguments\":{},\"arguments\":{},\"name\":\"f\"})", 0 },
    /* cut off */
    { "<tool_call", "c(<tool_call)", 0 },
    { "<tool_call>\n{\"name\": \"f", "c(<tool_call>\n{\"name\": \"f)", 0 },
    { "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"ab", "<f>{\"x\":\"ab<cut>", 0 },
    { "<tool_call>{\"name\":\"f\",\"arguments\":{}", "<f>{}</>", 0 },
    /* no calls */
    { "<tool_call>what</tool_call>", "c(<tool_call>what</tool_call>)", LETTERS },
    { "<tool_call>{\"name\":7}</tool_call>", "c(<tool_call>{\"name\":7}</tool_call>)", LETTERS },
    { "<tool_call>{\"name\":\"\",\"arguments\":{}}", "c(<tool_call>{\"name\":\"\",\"arguments\":{}})", 0 },
    { "<tool_call>{\"name\":\"f\",\"arguments\":[1]}", "c(<tool_call>{\"name\":\"f\",\"arguments\":[1]})", 0 },
    { "<tool_call>{\"x\":1}</tool_call>", "c(<tool_call>{\"x\":1}</tool_call>)", LETTERS },
    { "<tool_call> <tool_call>{\"name\":\"f\"}</tool_call>", "c(<tool_call> )<f>{}</>", 0 },
    { "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":tru3}}</tool_call> y", "<f>{\"x\":tru<cut>c(3}}</tool_call> y)",
      LETTERS },
    { "<tool_call>{\"name\":\"f\",\"arguments\":{}},}</tool_call>", "<f>{}</>c(,}</tool_call>)", LETTERS },
    { "<tool_call>{\"name\":\"f\",\"arguments\":{}</tool_call>!", "<f>{}</>c(!)", 0 },
    { NULL, NULL, 0 },
};

static const struct answer qwen_xml[] = {
    { "Hi <function", "c(Hi <function)", 0 },
    { "Ok\n<tool_call>\n<function=f>\n<parameter=city>\nNew\n\"York\"\t\n</parameter>\n"
      "<parameter=n>\n42\n</parameter>\n<parameter=o>\n{\"a\": [\"</parameter>\"]}\n</parameter>\n"
      "</function>\n</tool_call>",
      "c(Ok)<f>{\"city\": \"New\\n\\\"York\\\"\\t\", \"n\": 42, \"o\": {\"a\": "
      "[\"</parameter>\"]}}</>",
      0 },
    { "<tool_call><function=f></function></tool_call>\n<tool_call>\n<function=g>\n</function>", "<f>{}</><g>{}</>", 0 },
    { "<function=f><parameter=city>\n\n5\n\n</parameter></function>", "<f>{\"city\": \"\\n5\\n\"}</>", 0 },
    { "<function=f><parameter=n>True</parameter><parameter=b>True</parameter>"
      "<parameter=z>true</parameter></tool_call>",
      "<f>{\"n\": \"True\", \"b\": true, \"z\": true}</>", 0 },
    { "<function=f><parameter=unit>c</parameter><parameter=unit>\"c\"</parameter></function>",
      "<f>{\"unit\": \"c\", \"unit\": \"c\"}</>", 0 },
    { "<function=f><parameter=k\"\\>1</parameter></function>", "<f>{\"k\\\"\\\\\": 1}</>", 0 },
    { "<function=f><parameter=o>[\"a\nb\"]</parameter></function>", "<f>{\"o\": \"[\\\"a\\nb\\\"]\"}</>", 0 },
    { "<function=f><parameter=n> 1 </parameter><parameter=n>1 2</parameter></function>",
      "<f>{\"n\": 1, \"n\": \"1 2\"}</>", 0 },
    { "<function=f><parameter=city>Par", "<f>{\"city\": \"Par<cut>", 0 },
    { "<function=f><parameter=n>4", "<f>{\"n\": 4<cut>", 0 },
    { "<function=f><parameter=ci", "<f><cut>", 0 },
    { "<function=f>oops</function>", "<f><cut>c(oops</function>)", 0 },
    { "<function=f g></function>", "c(<function=f g></function>)", 0 },
    { "<tool_call>\n{\"name\":\"f\"}\n</tool_call>", "c(<tool_call>\n{\"name\":\"f\"}\n</tool_call>)", LETTERS },
    { NULL, NULL, 0 },
};

static const struct answer llama[] = {
    { "Hello {\"name\"", "c(Hello {\"name\")", 0 },
    { "{\"name\": \"f\", \"parameters\": " WEATHER "}", "<f>" WEATHER "</>", 0 },
    { "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "<f>{}</>", 0 },
    { "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}", "<f>{}</><g>{}</>", 0 },
    { "{\"name\": \"Bob\", \"parameters\": {}}", "c({\"name\": \"Bob\", \"parameters\": {}})", 0 },
    { "Hi {\"name\": \"f\", \"parameters\": {}}", "c(Hi {\"name\": \"f\", \"parameters\": {}})", 0 },
    { "{\"name\": \"f\"}", "c({\"name\": \"f\"})", 0 },
    { "{\"answer\": 1}", "c({\"answer\": 1})", 0 },
    { "{\"name\": \"f\", \"age\": 1, \"parameters\": {}}", "c({\"name\": \"f\", \"age\": 1, \"parameters\": {}})", 0 },
    { "{}; x", "c({}; x)", 0 },
    { "{\"name\":\"f\",\"parameters\":{}}; x", "<f>{}</>c(; x)", 0 },
    { "ok<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "c(ok)<f>{}</>", 0 },
    { "<|python_tag|>print(1)", "c(<|python_tag|>print(1))", 0 },
    { NULL, NULL, 0 },
};

static const struct answer mistral[] = {
    { "[TOOL", "c([TOOL)", 0 },
    { "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": " WEATHER ", \"id\": \"abcdefghi\"}, "
      "{\"name\": \"g\", \"arguments\": {}}]",
      "<f>" WEATHER "</><g>{}</>", 0 },
    { "[TOOL_CALLS][{\"arguments\":{\"name\":\"x\",\"arguments\":{}},\"name\":\"f\"}]",
      "<f>{\"name\":\"x\",\"arguments\":{}}</>", 0 },
    { "Hm [TOOL_CALLS] [ {\"name\": \"f\", \"arguments\": {}} ]\n", "c(Hm)<f>{}</>", 0 },
    { "[TOOL_CALLS]f[ARGS]" WEATHER "[TOOL_CALLS]g{\"a\":1}", "<f>" WEATHER "</><g>{\"a\":1}</>", 0 },
    { "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", "<f>{}</>", 0 },
    { "[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{}}", "<f>{}</>", 0 },
    { "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, ", "<f>{}</>", 0 },
    { "[TOOL_CALLS][]", "c([TOOL_CALLS][])", 0 },
    { "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, x", "<f>{}</>c(, x)", 0 },
    { "[TOOL_CALLS]f[ARGS]nothing", "c([TOOL_CALLS]f[ARGS]nothing)", 0 },
    { "[TOOL_CALLS]f", "c([TOOL_CALLS]f)", 0 },
    { NULL, NULL, 0 },
};

static const struct answer hunyuan[] = {
    { "<think>a</think>\n<tool_calls>[{\"name\": \"f\", \"arguments\": " WEATHER "}, "
      "{\"name\": \"g\", \"arguments\": {}}]</tool_calls>",
      "r(a)<f>" WEATHER "</><g>{}</>", 0 },
    { "ok<tool_calls>\n[{\"name\":\"f\",\"arguments\":{}}]\n</tool_calls>\n", "c(ok)<f>{}</>", 0 },
    { "<tool_calls>[]</tool_calls>", "c(<tool_calls>[]</tool_calls>)", 0 },
    { "<tool_calls>[{\"name\":\"f\",\"arguments\":{}}", "<f>{}</>", 0 },
    { NULL, NULL, 0 },
};

static const struct answer deepseek[] = {
    { "hm</think>Hi", "r(hm)c(Hi)", 1 },
    { "Ok." DS("calls▁begin") DS("call▁begin") "f" DS("sep") WEATHER DS("call▁end")
          DS("call▁begin") "g" DS("sep") "{}" DS("call▁end") DS("calls▁end"),
      "c(Ok.)<f>" WEATHER "</><g>{}</>", 0 },
    { "<think>a</think>" DS("calls▁begin") DS("call▁begin") "function" DS("sep") "f\n```json\n" WEATHER "\n```" DS(
          "call▁end") "\n" DS("call▁begin") "function" DS("sep") "g\n```json\n{}\n```" DS("call▁end") DS("calls▁end"),
      "r(a)<f>" WEATHER "</><g>{}</>", 0 },
    { DS("call▁begin") "f" DS("sep") "{}", "<f>{}</>", 0 },
    { DS("calls▁begin") DS("call▁begin") "f\n```json\n{}\n```" DS("call▁end") DS("calls▁end"), "<f>{}</>", 0 },
    { DS("calls▁begin") DS("call▁begin") "f" DS("sep") "{\"a\":\""
                                                       "x",
      "<f>{\"a\":\"x<cut>", 0 },
    { DS("calls▁begin") DS("call▁begin") "f g", "c(" DS("calls▁begin") DS("call▁begin") "f g)", 0 },
    { DS("calls▁begin") "x", "c(" DS("calls▁begin") "x)", 0 },
    { DS("calls▁begin") DS("calls▁end"), "c(" DS("calls▁begin") ")", 0 },
    { NULL, NULL, 0 },
};

static const struct answer kimi[] = {
    { "Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|"
      ">" WEATHER "<|tool_call_end|><|tool_call_begin|>functions.g:11<|tool_call_argument_begin|>{}"
      "<|tool_call_end|><|tool_calls_section_end|>",
      "c(Ok)<f>" WEATHER "</><g>{}</>", 0 },
    { NULL, NULL, 0 },
};

static const struct answer glm[] = {
    { "\n<think>a</think>\nb", "r(a)c(b)", 0 },
    { "\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>a <b> "
      "\n</arg_value>\n<arg_key>n</arg_key>"
      "\n<arg_value>[1, \"</arg_value>\"]</arg_value>\n</tool_call>",
      "<f>{\"city\": \"a <b> \\n\", \"n\": [1, \"</arg_value>\"]}</>", LETTERS },
    { "<tool_call>f<arg_key>city</arg_key><arg_value>12</arg_value></tool_call><tool_call>g</"
      "tool_call>",
      "<f>{\"city\": \"12\"}</><g>{}</>", 0 },
    { "<tool_call>f\n<arg_key>city</arg_key>x", "<f><cut>c(<arg_key>city</arg_key>x)", 0 },
    { "<tool_call>{\"a\":1}", "c(<tool_call>{\"a\":1})", 0 },
    { NULL, NULL, 0 },
};

#define DSML      "｜DSML｜"
#define DSML_CITY "<" DSML "parameter name=\"city\" string=\"true\">"
#define DSML_END  "</" DSML "parameter>"

static const struct answer dsml[] = {
    { "hm</think>Hi <" DSML "x", "r(hm)c(Hi <" DSML "x)", THINKS },
    { "Ok\n\n<" DSML "tool_calls>\n<" DSML "invoke name=\"f\">\n" DSML_CITY "New\n\"York\" " DSML_END "\n<" DSML
      "parameter name=\"o\" string=\"false\">{\"a\": [\"" DSML_END "\"]}" DSML_END "\n</" DSML "invoke>\n<" DSML
      "invoke name=\"g\">\n</" DSML "invoke>\n</" DSML "tool_calls>",
      "c(Ok)<f>{\"city\": \"New\\n\\\"York\\\" \", \"o\": {\"a\": [\"" DSML_END "\"]}}</><g>{}</>", 0 },
    /* string="true" gives a string and string="false" JSON, whatever the schema says */
    { "<" DSML "invoke name=\"f\"><" DSML "parameter name=\"n\" string=\"true\">7" DSML_END "<" DSML
      "parameter name=\"city\" string=\"false\">\"7\"" DSML_END "</" DSML "invoke></" DSML "tool_calls>b",
      "<f>{\"n\": \"7\", \"city\": \"7\"}</>c(b)", 0 },
    { "<" DSML "invoke name=\"f\">" DSML_CITY "Par", "<f>{\"city\": \"Par<cut>", 0 },
    { "<" DSML "invoke name=\"f\">x", "<f><cut>c(x)", 0 },
    { "<" DSML "invoke name=\"f g\">", "c(<" DSML "invoke name=\"f g\">)", 0 },
    { "<" DSML "invoke name=f>", "c(<" DSML "invoke name=f>)", 0 },
    { NULL, NULL, 0 },
};

static const struct answer minimax[] = {
    { "<think>a</think>\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">a <b>"
      "</parameter>\n<parameter name=\"n\">[1, \"</parameter>\"]</parameter>\n</invoke>\n"
      "<invoke name=\"g\"></invoke>\n</minimax:tool_call>",
      "r(a)<f>{\"city\": \"a <b>\", \"n\": [1, \"</parameter>\"]}</><g>{}</>", 0 },
    { "<invoke name=\"f\"><parameter name=\"city\">12</parameter><parameter name=\"b\">True</parameter>",
      "<f>{\"city\": \"12\", \"b\": true<cut>", 0 },
    { "<minimax:tool_call>\nwhat", "c(<minimax:tool_call>\nwhat)", 0 },
    { NULL, NULL, 0 },
};

static const struct answer bare_list[] = {
    { "[f(city=\"Paris\")]", "<f>" WEATHER "</>", 0 },
    { "\n[ f ( city = 'Paris' , ) , g( ) ] \n", "<f>" WEATHER "</><g>{}</>", 0 },
    { "[f(n=-1.5e3, b=True, o={'a': [1, False, None, {}, [],], \"b\": {\"c\": 'd'},}, z=null)]",
      "<f>{\"n\": -1.5e3, \"b\": true, \"o\": {\"a\": [1, false, null, {}, []], \"b\": {\"c\": "
      "\"d\"}}, \"z\": null}</>",
      0 },
    { "[f(city='\"\\'\\n\\d\\x41\\u00e9\\U0001F600\\\nü]),\t', n=0)]; [g()]",
      "<f>{\"city\": \"\\\"'\\n\\\\d\\u0041\\u00e9\\ud83d\\ude00ü]),\\t\", \"n\": 0}</><g>{}</>", 0 },
    { "[f(n=1), Bob(n=2)]", "<f>{\"n\": 1}</>c(, Bob(n=2)])", 0 },
    { "[g()] done", "<g>{}</>c( done)", 0 },
    { "[g(),", "<g>{}</>", 0 },
    /* cut off, or not Python */
    { "[f(city=\"Par", "<f>{\"city\": \"Par<cut>", 0 },
    { "[f(n=1", "<f>{\"n\": <cut>", 0 },
    { "[f(n=", "<f>{\"n\": <cut>", 0 },
    { "[f(n", "<f><cut>", 0 },
    { "[f(1)]", "<f><cut>c(1)])", 0 },
    { "[f(n=x)]", "<f>{\"n\": <cut>c(x)])", 0 },
    { "[f(n=1 2)]", "<f>{\"n\": 1<cut>c( 2)])", 0 },
    { "[f(n=(1))]", "<f>{\"n\": <cut>c((1))])", 0 },
    { "[f(o=[1,,2])]", "<f>{\"o\": [1<cut>c(,,2])])", 0 },
    { "[f(o=[,])]", "<f>{\"o\": [<cut>c(,])])", 0 },
    { "[f(o={1: 2})]", "<f>{\"o\": {<cut>c(1: 2})])", 0 },
    { "[f(o=[1}", "<f>{\"o\": [1<cut>c(})", 0 },
    { "[f(city='\\N{x}')]", "<f>{\"city\": \"<cut>c(\\N{x}')])", 0 },
    { "[f(city='\\xg1')]", "<f>{\"city\": \"<cut>c(\\xg1')])", 0 },
    { "[f(city='\\UFFFFFFFF')]", "<f>{\"city\": \"<cut>c(\\UFFFFFFFF')])", 0 },
    /* no calls */
    { "[1] says [f(n=1)]", "c([1] says [f(n=1)])", 0 },
    { "[f]", "c([f])", 0 },
    { "[]", "c([])", 0 },
    { "[Bob(n=1)]", "c([Bob(n=1)])", 0 },
    { "[f g()]", "c([f g()])", 0 },
    { "see [f(n=1)]", "c(see [f(n=1)])", 0 },
    { NULL, NULL, 0 },
};

static const struct answer llama_4[] = {
    { "<|python_start|>[f(city=\"Paris\")]<|python_end|>", "<f>" WEATHER "</>", 0 },
    { "Ok <|python_start|> [g()]<|python_end|> x", "c(Ok)<g>{}</>c( x)", 0 },
    { "[g()]<|python_end|>", "<g>{}</>", 0 },
    { "<|python_start|>print(1)<|python_end|>", "c(<|python_start|>print(1)<|python_end|>)", LETTERS },
    { NULL, NULL, 0 },
};

static const struct answer llama_4_json[] = {
    { "{\"name\": \"f\", \"parameters\": " WEATHER "}", "<f>" WEATHER "</>", 0 },
    { "<|python_start|><|python_end|>{\"name\": \"f\", \"parameters\": {}}", "<f>{}</>", 0 },
    { "<|python_start|>Ok.<|python_end|>{\"name\": \"f\", \"parameters\": {}}", "c(Ok.)<f>{}</>", 0 },
    { "<|python_start|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}<|python_end|>",
      "<f>{}</><g>{}</>", 0 },
    { "<|python_start|><|python_end|>{\"name\": \"f\", \"parameters\": {}}{\"name\": \"g\", \"parameters\": {}}",
      "<f>{}</><g>{}</>", 0 },
    { "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}}\n", "<f>{}</><g>{}</>", 0 },
    { "<|python_start|>Ok.<|python_end|>", "c(Ok.)", 0 },
    { "<|python_start|>{\"name\": \"Bob\", \"parameters\": {}}<|python_end|> x",
      "c({\"name\": \"Bob\", \"parameters\": {}} x)", 0 },
    { NULL, NULL, 0 },
};

#define LFM(text) "<|tool_call_start|>" text "<|tool_call_end|>"

static const struct answer lfm[] = {
    { "<think>a</think>\n" LFM("[f(city=\"Paris\"), g()]") "\n", "r(a)<f>" WEATHER "</><g>{}</>", 0 },
    { LFM("f(city='Paris')") LFM(" g()"), "<f>" WEATHER "</><g>{}</>", 0 },
    { "[f(n=1)]", "c([f(n=1)])", 0 },
    { LFM("[f(city='a<|tool_call_end|>')]"), "<f>{\"city\": \"a<|tool_call_end|>\"}</>", LETTERS },
    { LFM("[f(n=1"), "<f>{\"n\": 1<cut>c(<|tool_call_end|>)", LETTERS },
    { NULL, NULL, 0 },
};

static const struct answer harmony[] = {
    { "<|channel|>analysis<|message|>Think. <|end|><|start|>assistant<|channel|>final<|message|>Hi "
      "<|return|>",
      "r(Think. )c(Hi )", 0 },
    { "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f "
      "<|constrain|>json<|message|>" WEATHER "<|call|>",
      "r(a)<f>" WEATHER "</>", 0 },
    { " to=functions.f<|channel|>commentary json<|message|>{}", "<f>{}</>", 0 },
    { "<|channel|>commentary<|message|>First<|end|><|start|>assistant to=functions.f<|channel|>"
      "commentary<|message|><|call|>",
      "c(First)<f>{}</>", 0 },
    { "<|channel|>commentary to=functions.f<|message|>{\"a\":1", "<f>{\"a\":1<cut>", 0 },
    { "<|channel|>commentary to=functions.f<|message|>code", "c(code)", 0 },
    { "<|channel|>analysis to=python<|message|>1+1<|call|>", "r(1+1)", 0 },
    { "Hello <|end|>", "c(Hello )", 0 },
    { "<|channel|>anal", "", 0 },
    { "to be", "c(to be)", 0 },
    { NULL, NULL, 0 },
};

static const struct {
    const char *template;
    const struct answer *answer;
} ways[] = {
    { "google-gemma-2-2b-it", plain },
    { "google-gemma-4-31B-it-interleaved", gemma4 },
    { "Qwen-Qwen3-0.6B", hermes },
    { "Qwen3-Coder", qwen_xml },
    { "meta-llama-Llama-3.1-8B-Instruct", llama },
    { "Mistral-Small-3.2-24B-Instruct-2506", mistral },
    { "tencent-Hunyuan-A13B-Instruct", hunyuan },
    { "deepseek-ai-DeepSeek-V3.1", deepseek },
    { "Kimi-K2-Instruct", kimi },
    { "deepseek-ai-DeepSeek-V4", dsml },
    { MINIMAX, minimax },
    { "GLM-4.6", glm },
    { "openai-gpt-oss-120b", harmony },
    { LLAMA_3_LIST, bare_list },
    { LLAMA_4_LIST, llama_4 },
    { "meta-llama-Llama-4-Scout-17B-16E-Instruct", llama_4_json },
    { "LFM2.5-Instruct", lfm },
};

static void answers_by_way(void **state)
{
    (void)state;
    json_t *tools = load(tools_text);
    for (int type = 0; type <= ENG_TOKEN_USER; type += ENG_TOKEN_CONTROL) { /* none, control */
        struct eng_vocab *v = vocab_with_marks(type);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            struct eng_tool_format format = style_of(ways[i].template, v);
            if (!strcmp(ways[i].template, "google-gemma-2-2b-it"))
                format = style_of(ways[i].template, NULL);
            for (const struct answer *a = ways[i].answer; a->text; a++)
                if (!(type && a->how & LETTERS))
                    expect_answer(
                        &(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = a->how & THINKS },
                        a->text, a->want);
        }
        eng_vocab_close(v);
    }
    json_decref(tools);
}

/* max_tokens may end an answer anywhere: nothing of a call's markup becomes content. */
static void limits_leak_no_markup(void **state)
{
    int n_answer = 0;
    (void)state;
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) { /* markers as text: a control token cannot be cut */
        struct eng_tool_format format = style_of(ways[i].template, NULL);
        for (const struct answer *a = ways[i].answer; a->text; a++) {
            if (strstr(a->want, "c(") || !strstr(a->want, "</>") || strstr(a->want, "<cut>"))
                continue;
            expect_no_content(
                &(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = a->how & THINKS }, a->text);
            n_answer++;
        }
    }
    json_decref(tools);
    assert_true(n_answer >= 40);
}

static void marks_that_are_tokens_are_not_letters(void **state)
{
    (void)state;
    static struct line l;
    struct eng_vocab *v = vocab_with_marks(ENG_TOKEN_CONTROL);
    struct eng_tool_format format = style_of("Qwen-Qwen3-0.6B", v);
    json_t *tools = load(tools_text);
    struct eng_answer_parser *s;
    int n_call = 0;
    l = (struct line){ .kind = -1 };
    assert_int_equal(
        eng_answer_open(&s, &(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false }), 0);
    eng_answer_feed(s, "<tool_call>{\"name\":\"f\"}</tool_call><think", 41);
    eng_answer_control(s, 262); /* <s> is no mark */
    take_events(s, &l, &n_call);
    assert_string_equal(l.text, "c(<tool_call>{\"name\":\"f\"}</tool_call><think");
    eng_answer_control(s, format.mark[MARK_CALL].control);
    eng_answer_feed(s, "{\"name\":\"f\",\"arguments\":{\"x\":\"", 30);
    eng_answer_control(s, format.mark[MARK_CALL].control); /* ends the call early */
    eng_answer_feed(s, "{\"name\":\"g\"}", 12);
    take_events(s, &l, &n_call);
    assert_string_equal(l.text, "c(<tool_call>{\"name\":\"f\"}</tool_call><think)<f>{\"x\":\"<cut><g>{}</>");
    eng_answer_feed(s, "x ", 2);
    eng_answer_control(s, format.mark[MARK_THINK].control); /* reasoning may start again */
    eng_answer_feed(s, "y</think>", 9);
    eng_answer_control(s, format.mark[MARK_THINK_END].control);
    eng_answer_feed(s, "\n\nz", 3);
    take_events(s, &l, &n_call);
    line_close(&l);
    assert_string_equal(strstr(l.text, "<g>"), "<g>{}</>c(x)r(y</think>)c(z)");
    eng_answer_close(s);
    format = style_of("Qwen-Qwen3-0.6B", NULL);
    expect_answer(&(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false },
                  "no <think>a</think>", "c(no <think>a</think>)");
    expect_answer(&(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = true },
                  "a <tool_call>{\"name\":\"f\"}", "r(a <tool_call>{\"name\":\"f\"})");
    json_decref(tools);
    eng_vocab_close(v);
}

/* Without tools, calls are content; reasoning is still recognised. */
static void no_tools_no_calls(void **state)
{
    (void)state;
    struct eng_tool_format format = style_of("Qwen-Qwen3-0.6B", NULL);
    struct eng_answer_options o = { .format = &format };
    expect_answer(&o, "<think>a</think>\n\n<tool_call>{\"name\":\"f\"}</tool_call> \n",
                  "r(a)c(<tool_call>{\"name\":\"f\"}</tool_call> \n)");
    expect_answer(&o, "\n<think>a</think>b", "r(a)c(b)");
    format = style_of("meta-llama-Llama-3.2-3B-Instruct", NULL);
    expect_answer(&o, "{\"name\": \"f\", \"parameters\": {}}", "c({\"name\": \"f\", \"parameters\": {}})");
    format = style_of("openai-gpt-oss-120b", NULL);
    expect_answer(&o, "<|channel|>commentary to=functions.f<|message|>{}", "c({})");
}

/* Each piece is passed on at once, except a possible start of a mark and the white space before it. */
static void nothing_waits_longer_than_it_must(void **state)
{
    (void)state;
    static struct line l;
    static const struct {
        const char *template, *piece, *want;
    } step[] = {
        { "Qwen-Qwen3-0.6B", "Hello ", "c(Hello" },
        { "Qwen-Qwen3-0.6B", "a                                                 ",
          "c(a                                                " },
        { "Qwen-Qwen3-0.6B", "Hello <tool_cat", "c(Hello <tool_cat" },
        { "Qwen-Qwen3-0.6B", "Hello <tool_ca", "c(Hello" },
        { "Qwen-Qwen3-0.6B", "<think>so", "r(so" },
        { "Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b", "<f>{\"a\":\"b" },
        { "Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"f\",\"arguments\":{}", "<f>{}</>" },
        { "Qwen3-Coder", "<function=f><parameter=city>\nPar\nis", "<f>{\"city\": \"Par\\nis" },
        { "GLM-4.6", "<tool_call>f\n", "<f>" },
        { MINIMAX, "<invoke name=\"f\"><parameter name=\"city\">Par", "<f>{\"city\": \"Par" },
        { "Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]f[ARGS]{\"a\"", "<f>{\"a\"" },
        { LLAMA_3_LIST, "[f(", "<f>" },
        { LLAMA_3_LIST, "[f(city='Par", "<f>{\"city\": \"Par" },
        { LLAMA_3_LIST, "[f(n=12", "<f>{\"n\": " },
        { LLAMA_3_LIST, "[f(n=12)", "<f>{\"n\": 12}</>" },
        { "google-gemma-4-31B-it-interleaved", "<|tool_call>call:f{city:<|\"|>Par", "<f>{\"city\": \"Par" },
        { "openai-gpt-oss-120b", "<|channel|>final<|message|>Hi ", "c(Hi " },
        { "openai-gpt-oss-120b", "Hi", "c(Hi" },
    };
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        struct eng_tool_format format = style_of(step[i].template, NULL);
        struct eng_answer_parser *s;
        int n_call = 0;
        l = (struct line){ .kind = -1 };
        assert_int_equal(
            eng_answer_open(&s, &(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false }), 0);
        eng_answer_feed(s, step[i].piece, strlen(step[i].piece));
        take_events(s, &l, &n_call);
        expect_line(&l, step[i].want, step[i].piece);
        eng_answer_close(s);
    }
    json_decref(tools);
}

static void the_scan_takes_json_and_nothing_else(void **state)
{
    (void)state;
    static const char *const good[] = { "0",     "-0",
                                        "10",    "-1.25",
                                        "0.5",   "1e5",
                                        "1E+05", "0e-1",
                                        " 7 ",   "true",
                                        "false", "null",
                                        "\"\"",  "\"\\u12aF\\n\\\"\\/\"",
                                        "[]",    "[ 1 , [] , {} ]",
                                        "{}",    "{\"a\":{\"b\":[0]},\"a\":null} " };
    static const char *const bad[] = { "",          "01",          "-",       "1.",       "1.e3",       ".5",    "+1",
                                       "1e",        "1e+",         "1e5e6",   "1e5.0",    "tru",        "nullx", "\"",
                                       "\"\\u12\"", "\"\\u123g\"", "\"\\x\"", "\"a\nb\"", "[",          "[1,]",  "[,1]",
                                       "[1 2]",     "[1}",         "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{1:2}", "{]",
                                       "1 2",       "{}{}",        "\"a\"b",  "'a'" };
    const size_t n_good = sizeof good / sizeof *good, n_bad = sizeof bad / sizeof *bad;
    for (size_t i = 0; i < n_good + n_bad; i++) {
        const char *text = i < n_good ? good[i] : bad[i - n_good];
        struct json_scan j = { 0 };
        for (const char *p = text; *p; p++)
            eng_json_step(&j, (uint8_t)*p);
        if (eng_json_whole(&j) != (i < n_good))
            fail_msg("%s", text);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static size_t feed_long(const char *template, const char *head, const char *again, size_t n_again)
{
    struct eng_tool_format format = style_of(template, NULL);
    json_t *tools = load(tools_text);
    struct eng_answer_event e;
    struct eng_answer_parser *s;
    size_t n = 0;
    assert_int_equal(
        eng_answer_open(&s, &(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false }), 0);
    eng_answer_feed(s, head, strlen(head));
    for (size_t i = 0; i < n_again; i++) {
        assert_int_equal(eng_answer_feed(s, again, strlen(again)), 0);
        while (eng_answer_next(s, &e))
            n += e.n;
        assert_true(s->held.n <= ENG_ANSWER_HELD_BYTES && s->value.n <= ENG_ANSWER_HELD_BYTES);
    }
    eng_answer_finish(s, false);
    while (eng_answer_next(s, &e))
        n += e.n;
    eng_answer_close(s);
    json_decref(tools);
    return n;
}

static void long_texts_are_given_up_not_kept(void **state)
{
    (void)state;
    const size_t n = 40000;
    const char *a = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"; /* 64 */
    static const char head[] = "<tool_call>{\"x\":\"";
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", head, a, n), sizeof head - 1 + 64 * n);
    assert_int_equal(feed_long("Qwen3-Coder", "<function=f><parameter=n>", a, n), strlen("f{\"n\": \"") + 64 * n);
    assert_int_equal(feed_long("openai-gpt-oss-120b", "<|channel|>", a, n), 11 + 64 * n);
    assert_int_equal(feed_long("openai-gpt-oss-120b", "to=", a, n), 3 + 64 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"", a, 5), 20 + 64 * 5);
    assert_int_equal(feed_long("GLM-4.6", "<tool_call>", a, n), 11 + 64 * n);
    assert_int_equal(feed_long("GLM-4.6", "<tool_call>f\n<arg_key>", a, n), 10 + 64 * n);
    assert_int_equal(feed_long(LLAMA_3_LIST, "[", a, n), 1 + 64 * n);
    assert_int_equal(feed_long(LLAMA_3_LIST, "[f(n=", a, n), strlen("f{\"n\": ") + 64 * n);
    assert_int_equal(feed_long(LLAMA_3_LIST, "[f(n='", a, n), strlen("f{\"n\": \"") + 64 * n);
    assert_int_equal(feed_long("google-gemma-4-31B-it-interleaved", "<|tool_call>call:", a, n), 17 + 64 * n);
    assert_int_equal(feed_long("google-gemma-4-31B-it-interleaved", "<|tool_call>call:f{", a, n), 2 + 64 * n);
    assert_int_equal(feed_long("google-gemma-4-31B-it-interleaved", "<|tool_call>call:f{n:", a, n), 7 + 64 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "", "<tool_call>", n), 11 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "", "<tool_call", n), 10 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "", " \n", n), 2 * n);
    assert_true(feed_long("Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":", "[", n) > n);
}

static void replace_name(char out[512], const char *form, const char *name)
{
    size_t n = (size_t)(strstr(form, "%s") - form);
    snprintf(out, 512, "%.*s%s%s", (int)n, form, name, form + n + 2);
}

static void long_names_are_no_names(void **state)
{
    (void)state;
    static const struct {
        const char *template, *text, *call, *other; /* %s: a name of 256 or 257 bytes */
    } shape[] = {
        { "Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"%s\"}", "<%s>{}</>", "c(<tool_call>{\"name\":\"%s\"})" },
        { "GLM-4.6", "<tool_call>%s</tool_call>", "<%s>{}</>", "c(<tool_call>%s</tool_call>)" },
        { "GLM-4.6", "<tool_call>f\n<arg_key>%s</arg_key><arg_value>1</arg_value></tool_call>", "<f>{\"%s\": 1}</>",
          "<f><cut>c(<arg_key>%s</arg_key><arg_value>1</arg_value></tool_call>)" },
    };
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (size_t n = ENG_ANSWER_NAME_BYTES; n <= ENG_ANSWER_NAME_BYTES + 1; n++) {
            struct eng_tool_format format = style_of(shape[i].template, NULL);
            char name[ENG_ANSWER_NAME_BYTES + 2], text[512], want[512];
            memset(name, 'n', n);
            name[n] = 0;
            replace_name(text, shape[i].text, name);
            replace_name(want, n <= ENG_ANSWER_NAME_BYTES ? shape[i].call : shape[i].other, name);
            expect_answer(&(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false }, text,
                          want);
        }
    json_decref(tools);
}

static void memory_may_end_anywhere(void **state)
{
    (void)state;
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct eng_tool_format format = style_of(ways[i].template, NULL);
        const struct answer *a = ways[i].answer;
        for (; a->text; a++)
            for (long nth = 1; nth == 1 || faults.struck; nth++) {
                struct eng_answer_parser *s = NULL;
                faults_reset();
                faults_at(FAULT_ALLOC, nth, FAULT_ERROR, ENOMEM);
                int error = eng_answer_open(
                    &s, &(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false });
                if (!error && !(error = eng_answer_feed(s, a->text, strlen(a->text))))
                    error = eng_answer_finish(s, false);
                assert_int_equal(error, faults.struck ? KN_ENOMEM : 0);
                eng_answer_close(s);
                assert_true(faults_clean());
            }
    }
    faults_off();
    json_decref(tools);
}

/* ---- calls rendered by templates ------------------------------------------------------------- */

static const struct turn {
    const char *template, *head, *end; /* text before the assistant's turn, and after it */
    bool text;                         /* arguments as a string */
} turns[] = {
    { "Qwen-Qwen3-0.6B", "<|im_start|>assistant\n", "<|im_end|>", false },
    { "Qwen-Qwen2.5-7B-Instruct", "<|im_start|>assistant\n", "<|im_end|>", false },
    { "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_start|>assistant\n", "<|im_end|>", false },
    { "Qwen3-Coder", "<|im_start|>assistant\n", "<|im_end|>", false },
    { "stepfun-ai-Step-3.5-Flash", "<|im_start|>assistant\n", "<|im_end|>", false },
    { "meta-llama-Llama-3.1-8B-Instruct", "<|end_header_id|>\n\n", "<|eot_id|>", false },
    { "mistralai-Mistral-Nemo-Instruct-2407", "[/INST]", "</s>", false },
    { "Mistral-Small-3.2-24B-Instruct-2506", "[/INST]", "</s>", false },
    { "unsloth-mistral-Devstral-Small-2507", "[/INST]", "</s>", false },
    { "deepseek-ai-DeepSeek-V3.1", "<｜Assistant｜>", "<｜end", false },
    { "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<｜Assistant｜>", "<｜end", false },
    { "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<｜Assistant｜>", "<｜end", true },
    { "moonshotai-Kimi-K2", "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>", false },
    { "GLM-4.6", "<|assistant|>", "<|user|>", false },
    { "GLM-5.2", "<|assistant|>", "<|user|>", false },
    { "openai-gpt-oss-120b", "<|start|>assistant", "<|start|>user", false },
    { "google-gemma-4-31B-it-interleaved", "<|turn>model\n", "<turn|>", false },
    { "meta-llama-Llama-4-Scout-17B-16E-Instruct", "assistant<|header_end|>\n\n", "<|eot|>", false },
    { "mistralai-tokenizer-v13", "[/INST]", "</s>", false },
    { "mistralai-tokenizer-v15", "[/INST]", "</s>", false },
    { "ByteDance-Seed-OSS", "assistant\n", "<seed:eos>", false },
};

/* Some templates need a description of each function and parameter. */
static json_t *described_tools(void)
{
    json_t *tools = load(tools_text), *f, *all, *p;
    const char *key;
    json_array_remove(tools, 1);
    f = json_object_get(json_array_get(tools, 0), "function");
    json_object_set_new(f, "description", json_string("what"));
    all = json_object_get(json_object_get(f, "parameters"), "properties");
    json_object_foreach(all, key, p) json_object_set_new(p, "description", json_string("what"));
    return tools;
}

static char *render_call(const struct turn *t, const json_t *arguments)
{
    struct eng_template *tp;
    struct eng_template_error e;
    size_t n;
    char *text = read_template(t->template, &n), *given = json_dumps(arguments, 0), *out;
    json_t *request = json_pack("{s:[{s:s,s:s},{s:s,s:s?,s:[{s:s,s:s,s:{s:s,s:o}}]}],s:o,s:s,s:s}", "messages", "role",
                                "user", "content", "q", "role", "assistant", "content",
                                strstr(t->template, "Distill") ? NULL : "", "tool_calls", "id", "abcdefghi", "type",
                                "function", "function", "name", "f", "arguments",
                                t->text ? json_string(given) : json_deep_copy(arguments), "tools", described_tools(),
                                "bos_token", "<s>", "eos_token", "</s>");
    assert_non_null(request);
    if (strstr(t->template, "Step-3") || strstr(t->template, "gpt-oss")) /* these templates test for content */
        json_object_del(json_array_get(json_object_get(request, "messages"), 1), "content");
    assert_int_equal(eng_template_open(&tp, text, n, &e), 0);
    if (eng_template_render(tp, request, 0, NULL, &out, &n, &e))
        fail_msg("%s: line %d: %s", t->template, e.line, e.text);
    eng_template_close(tp);
    json_decref(request);
    free(text);
    free(given);
    return out;
}

static void templates_calls_are_read_back(void **state)
{
    (void)state;
    static struct line l;
    json_t *tools = load(tools_text);
    json_t *arguments = load("{\"city\":\"S\u00e3o \\\"P\\\" <b>\\n 7\",\"n\":3,\"o\":{\"a\":"
                             "[true,null,\"x\"]},\"b\":true,\"unit\":\"f\"}");
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct eng_tool_format format = style_of(turns[i].template, NULL);
        if (strstr(turns[i].template, "Seed")) /* prints objects in Python syntax */
            json_object_del(arguments, "o");
        char *all = render_call(&turns[i], arguments), *p = NULL;
        for (char *at = all; (at = strstr(at, turns[i].head)); at++)
            p = at + strlen(turns[i].head);
        assert_non_null(p);
        char *end = strstr(p, turns[i].end);
        size_t n = end ? (size_t)(end - p) : strlen(p);
        read_pieces(&(struct eng_answer_options){ .format = &format, .tools = tools, .thinks = false }, p, n, 0, n, &l);
        char *begin = strstr(l.text, "<f>"), *stop = begin ? strstr(begin, "</>") : NULL;
        json_t *got = stop ? json_loadb(begin + 3, (size_t)(stop - begin) - 3, 0, NULL) : NULL;
        if (!got || !json_equal(got, arguments) || begin != l.text || stop[3])
            fail_msg("%s: %s from %.*s", turns[i].template, l.text, (int)n, p);
        json_decref(got);
        kn_free(all);
    }
    json_decref(arguments);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(styles_by_template),
        cmocka_unit_test(answers_by_way),
        cmocka_unit_test(limits_leak_no_markup),
        cmocka_unit_test(marks_that_are_tokens_are_not_letters),
        cmocka_unit_test(no_tools_no_calls),
        cmocka_unit_test(nothing_waits_longer_than_it_must),
        cmocka_unit_test(long_texts_are_given_up_not_kept),
        cmocka_unit_test(the_scan_takes_json_and_nothing_else),
        cmocka_unit_test(long_names_are_no_names),
        cmocka_unit_test(memory_may_end_anywhere),
        cmocka_unit_test(templates_calls_are_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
