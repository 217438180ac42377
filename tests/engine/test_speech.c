/* Answers: what is told of them in each way of writing calls, whole, in pieces and byte by byte;
 * templates' own calls read back; and the texts of a request's grammar as calls that conform.
 *
 * An answer's events are written as one line: c(content) r(reasoning) <name>arguments</> and, for a
 * call that is cut off, <name>arguments<cut>. */
#include "engine/jinja/jinja.h"
#include "engine/serve/speech_parts.h"
#include "speculative/speculative.h"
#include "tests/engine/recipe.h"
#include "tests/faults.h"

enum { MOST_LINE = 1 << 16, MOST_WALK = 200 };
#define TEMPLATES "tests/engine/data/templates/"

static uint64_t random_state;
static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }

/* ---- styles ---------------------------------------------------------------------------------- */

static char *read_template(const char *name, size_t *n)
{
    char path[256];
    snprintf(path, sizeof path, TEMPLATES "%s.jinja", name);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, MOST_LINE);
    assert_non_null(f);
    *n = fread(text, 1, MOST_LINE - 1, f);
    fclose(f);
    return text;
}

static const char *const all_marks[] = {"<think>",
                                        "</think>",
                                        "<tool_call>",
                                        "</tool_call>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "<|python_tag|>",
                                        "[TOOL_CALLS]",
                                        "[CALL_ID]",
                                        "[ARGS]",
                                        "<seed:tool_call>",
                                        "</seed:tool_call>",
                                        "<seed:think>",
                                        "</seed:think>",
                                        "<|start|>",
                                        "<|channel|>",
                                        "<|constrain|>",
                                        "<|message|>",
                                        "<|end|>",
                                        "<|call|>",
                                        "<|return|>",
                                        "<|tool_calls_section_begin|>",
                                        "<|tool_calls_section_end|>",
                                        "<|tool_call_begin|>",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_call_end|>",
                                        "<｜tool▁calls▁begin｜>",
                                        "<｜tool▁calls▁end｜>",
                                        "<｜tool▁call▁begin｜>",
                                        "<｜tool▁call▁end｜>",
                                        "<｜tool▁sep｜>"};

/* Bytes, a few words, and every mark as a token of one type (or as none). */
static struct eng_vocab *vocab_with_marks(int type)
{
    static struct recipe r;
    struct eng_vocab *v;
    recipe_bpe(&r);
    recipe_token(&r, "\",\"", ENG_TOKEN_NORMAL, -9);
    recipe_token(&r, "\":\"", ENG_TOKEN_NORMAL, -9);
    recipe_token(&r, "\"}", ENG_TOKEN_NORMAL, -9);
    for (size_t i = 0; type && i < sizeof all_marks / sizeof *all_marks; i++)
        recipe_token(&r, all_marks[i], type, 0);
    assert_int_equal(recipe_open(&r, &v), 0);
    return v;
}

static struct eng_speech_style style_of(const char *template, const struct eng_vocab *v)
{
    struct eng_speech_style style;
    size_t n;
    char *text = read_template(template, &n);
    eng_speech_style(&style, text, n, v);
    free(text);
    return style;
}

static void styles_by_template(void **state)
{
    (void)state;
    static const struct {
        const char *template, *name;
        bool thinks, variant;
    } known[] = {
        {"Qwen-Qwen2.5-7B-Instruct", "hermes", false, false},
        {"Qwen-Qwen3-0.6B", "hermes", true, false},
        {"Qwen-QwQ-32B", "hermes", true, false},
        {"HuggingFaceTB-SmolLM3-3B", "none", true, false},
        {"MiMo-VL", "hermes", false, false},
        {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", false, false},
        {"Qwen3-Coder", "qwen-xml", false, false},
        {"stepfun-ai-Step-3.5-Flash", "qwen-xml", true, false},
        {"ByteDance-Seed-OSS", "qwen-xml", true, false},
        {"meta-llama-Llama-3.1-8B-Instruct", "llama-3", false, false},
        {"meta-llama-Llama-3.2-3B-Instruct", "llama-3", false, false},
        {"meta-llama-Llama-3.3-70B-Instruct", "llama-3", false, false},
        {"mistralai-Mistral-Nemo-Instruct-2407", "mistral", false, false},
        {"Mistral-Small-3.2-24B-Instruct-2506", "mistral", false, true},
        {"unsloth-mistral-Devstral-Small-2507", "mistral", false, true},
        {"deepseek-ai-DeepSeek-V3.1", "deepseek", true, false},
        {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", true, true},
        {"llama-cpp-deepseek-r1", "deepseek", true, true},
        {"Kimi-K2-Instruct", "kimi-k2", false, false},
        {"moonshotai-Kimi-K2", "kimi-k2", false, false},
        {"GLM-4.6", "glm-4.5", true, false},
        {"GLM-5.2", "glm-4.5", true, false},
        {"openai-gpt-oss-120b", "gpt-oss", true, false},
        {"google-gemma-2-2b-it", "none", false, false},
        {"microsoft-Phi-3.5-mini-instruct", "none", false, false},
        {"meetkai-functionary-medium-v3.1", "none", false, false},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct eng_speech_style s = style_of(known[i].template, NULL);
        if (strcmp(eng_speech_style_name(&s), known[i].name) || s.thinks != known[i].thinks ||
            s.variant != known[i].variant)
            fail_msg("%s: %s, thinks %d, variant %d", known[i].template, eng_speech_style_name(&s),
                     s.thinks, s.variant);
    }
    struct eng_speech_style s;
    eng_speech_style(&s, NULL, 0, NULL);
    assert_string_equal(eng_speech_style_name(&s), "none");

    struct eng_vocab *v = vocab_with_marks(ENG_TOKEN_CONTROL);
    eng_speech_style(&s, "", 0, v); /* by its vocabulary alone */
    assert_true(s.thinks && s.mark[MARK_THINK].control >= 0);
    s = style_of("Qwen3-Coder", v);
    assert_true(s.mark[MARK_CALL].control >= 0 && s.mark[MARK_FUNCTION].control == ENG_NO_TOKEN);
    eng_vocab_close(v);
    v = vocab_with_marks(ENG_TOKEN_USER);
    s = style_of("Qwen3-Coder", v);
    assert_true(s.mark[MARK_CALL].control == ENG_NO_TOKEN);
    eng_vocab_close(v);

    s = style_of("Qwen-Qwen3-0.6B", NULL);
    assert_true(eng_speech_prompt_thinks(&s, "user\n<think>\n", 13));
    assert_false(eng_speech_prompt_thinks(&s, "<think>\n\n</think>\n\n", 18));
    assert_false(eng_speech_prompt_thinks(&s, "<think", 6));
}

/* ---- reading --------------------------------------------------------------------------------- */

struct line {
    char text[MOST_LINE];
    size_t n;
    int kind; /* of what is open; -1: nothing */
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
    if (l->kind == ENG_SPEECH_CONTENT || l->kind == ENG_SPEECH_REASONING)
        line_add(l, ")", 1);
    l->kind = -1;
}

static void take_events(struct eng_speech *s, struct line *l, int *n_call)
{
    struct eng_speech_event e;
    while (eng_speech_next(s, &e)) {
        const bool is_text = e.kind == ENG_SPEECH_CONTENT || e.kind == ENG_SPEECH_REASONING;
        if (is_text || e.kind == ENG_SPEECH_CALL) {
            if ((int)e.kind != l->kind || !is_text) {
                line_close(l);
                line_add(l,
                         e.kind == ENG_SPEECH_CONTENT ? "c("
                         : is_text                    ? "r("
                                                      : "<",
                         is_text ? 2 : 1);
            }
        }
        if (!is_text)
            assert_int_equal(e.call, *n_call);
        line_add(l, e.text, e.n);
        if (e.kind == ENG_SPEECH_CALL)
            line_add(l, ">", 1);
        if (e.kind == ENG_SPEECH_CALL_END) {
            line_add(l, e.whole ? "</>" : "<cut>", e.whole ? 3 : 5);
            (*n_call)++;
        }
        l->kind = (int)e.kind;
    }
}

/* Feeds p in pieces that end at `cut` and then of `most` bytes; marks that are control tokens go in
 * as such. */
static void read_pieces(const struct eng_speech_options *o, const char *p, size_t n, size_t cut,
                        size_t most, struct line *l)
{
    struct eng_speech *s;
    int n_call = 0;
    l->n = 0;
    l->text[0] = 0;
    l->kind = -1;
    assert_int_equal(eng_speech_open(&s, o), 0);
    for (size_t i = 0; i < n;) {
        size_t end = i < cut ? cut : i + most < n ? i + most : n, n_mark = 0;
        int32_t token = ENG_NO_TOKEN;
        for (size_t at = i; at < end && token < 0; at++)
            for (int m = 0; m < MARK_COUNT && token < 0; m++) {
                const struct eng_speech_mark *k = &o->style->mark[m];
                size_t k_n = k->text ? strlen(k->text) : 0;
                if (k->control < 0 || k_n > n - at || memcmp(k->text, p + at, k_n))
                    continue;
                token = k->control;
                n_mark = k_n;
                end = at;
            }
        assert_int_equal(eng_speech_feed(s, p + i, end - i), 0);
        take_events(s, l, &n_call);
        if (token >= 0) {
            assert_int_equal(eng_speech_control(s, token), 0);
            take_events(s, l, &n_call);
        }
        i = end + n_mark;
    }
    assert_int_equal(eng_speech_finish(s), 0);
    take_events(s, l, &n_call);
    line_close(l);
    eng_speech_close(s);
}

static void expect_line(const struct line *l, const char *want, const char *text)
{
    if (strcmp(l->text, want))
        fail_msg("%s\n is    %s\n and not %s", text, l->text, want);
}

/* Whole, byte by byte, and in all pairs of pieces. */
static void expect_answer(const struct eng_speech_options *o, const char *text, const char *want)
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

#define DS(x) "<｜tool▁" x "｜>"
#define WEATHER "{\"city\": \"Paris\"}"
#define DEEP "{\"a\":[1,{\"b\":{}},\"}]</tool_call>\\\"\"],\"c\":-1.5e+3}"

struct answer {
    const char *text, *want;
    int how;
};
enum {
    THINKS = 1 /* in the prompt already */,
    LETTERS = 2 /* marks within strings, as letters only */
};

static const struct answer plain[] = {
    {"", "", 0},
    {"Hello <b>, [x] <tool_call> {\"name\"", "c(Hello <b>, [x] <tool_call> {\"name\")", 0},
    {" \n a \n", "c( \n a \n)", 0},
    {NULL, NULL, 0},
};

static const struct answer hermes[] = {
    {"plain <text", "c(plain <text)", 0},
    {"<think>\nhm\n\n</think>\n\nHi", "r(hm)c(Hi)", 0},
    {"\n <think>a</think>b", "r(a)c(b)", 0},
    {"hm</think>\n\nHi", "r(hm)c(Hi)", 1},
    {"<think>cut off", "r(cut off)", 0},
    {"<think> <tool_cal>{}</thin </think>", "r(<tool_cal>{}</thin)", 0},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": " WEATHER "}\n</tool_call>",
     "<f>" WEATHER "</>", 0},
    {"<think>x</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "r(x)<f>{}</>",
     0},
    {"Let me.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
     "{\"name\": \"g\", \"arguments\": " DEEP "}\n</tool_call>\n",
     "c(Let me.)<f>{}</><g>" DEEP "</>", LETTERS},
    {"a\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nb", "c(a)<f>{}</>c(\nb)", 0},
    {"<tool_call>{\"arguments\":{\"x\":\"\\u00e9é\"},\"id\":[1,2],\"name\":\"f\\u005f\"}</"
     "tool_call>",
     "<f_>{\"x\":\"\\u00e9é\"}</>", 0},
    {"<tool_call>{\"name\":\"f\"}</tool_call>", "<f>{}</>", 0},
    {"<tool_call>{\"name\":\"f\",\"parameters\":{}}", "<f>{}</>", 0},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"a\nb\"}}</tool_call>",
     "<f>{\"x\":\"a\\nb\"}</>", 0},
    /* cut off */
    {"<tool_call", "c(<tool_call)", 0},
    {"<tool_call>\n{\"name\": \"f", "c(<tool_call>\n{\"name\": \"f)", 0},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"ab", "<f>{\"x\":\"ab<cut>", 0},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}", "<f>{}</>", 0},
    /* no calls */
    {"<tool_call>what</tool_call>", "c(<tool_call>what</tool_call>)", LETTERS},
    {"<tool_call>{\"name\":7}</tool_call>", "c(<tool_call>{\"name\":7}</tool_call>)", LETTERS},
    {"<tool_call>{\"name\":\"\",\"arguments\":{}}",
     "c(<tool_call>{\"name\":\"\",\"arguments\":{}})", 0},
    {"<tool_call>{\"name\":\"f\",\"arguments\":[1]}",
     "c(<tool_call>{\"name\":\"f\",\"arguments\":[1]})", 0},
    {"<tool_call>{\"x\":1}</tool_call>", "c(<tool_call>{\"x\":1}</tool_call>)", LETTERS},
    {"<tool_call> <tool_call>{\"name\":\"f\"}</tool_call>", "c(<tool_call> )<f>{}</>", 0},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":tru3}}</tool_call> y",
     "<f>{\"x\":tru<cut>c(3}}</tool_call> y)", LETTERS},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}},}</tool_call>", "<f>{}</>c(,}</tool_call>)",
     LETTERS},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}</tool_call>!", "<f>{}</>c(!)", 0},
    {NULL, NULL, 0},
};

static const struct answer qwen_xml[] = {
    {"Hi <function", "c(Hi <function)", 0},
    {"Ok\n<tool_call>\n<function=f>\n<parameter=city>\nNew\n\"York\"\t\n</parameter>\n"
     "<parameter=n>\n42\n</parameter>\n<parameter=o>\n{\"a\": [\"</parameter>\"]}\n</parameter>\n"
     "</function>\n</tool_call>",
     "c(Ok)<f>{\"city\": \"New\\n\\\"York\\\"\\t\", \"n\": 42, \"o\": {\"a\": "
     "[\"</parameter>\"]}}</>",
     0},
    {"<tool_call><function=f></function></tool_call>\n<tool_call>\n<function=g>\n</function>",
     "<f>{}</><g>{}</>", 0},
    {"<function=f><parameter=city>\n\n5\n\n</parameter></function>",
     "<f>{\"city\": \"\\n5\\n\"}</>", 0},
    {"<function=f><parameter=n>five</parameter><parameter=b>True</parameter>"
     "<parameter=z>true</parameter></tool_call>",
     "<f>{\"n\": \"five\", \"b\": true, \"z\": true}</>", 0},
    {"<function=f><parameter=unit>c</parameter><parameter=unit>\"c\"</parameter></function>",
     "<f>{\"unit\": \"c\", \"unit\": \"c\"}</>", 0},
    {"<function=f><parameter=k\"\\>1</parameter></function>", "<f>{\"k\\\"\\\\\": 1}</>", 0},
    {"<function=f><parameter=city>Par", "<f>{\"city\": \"Par<cut>", 0},
    {"<function=f><parameter=n>4", "<f>{\"n\": 4<cut>", 0},
    {"<function=f><parameter=ci", "<f><cut>", 0},
    {"<function=f>oops</function>", "<f><cut>c(oops</function>)", 0},
    {"<function=f g></function>", "c(<function=f g></function>)", 0},
    {"<tool_call>\n{\"name\":\"f\"}\n</tool_call>",
     "c(<tool_call>\n{\"name\":\"f\"}\n</tool_call>)", LETTERS},
    {NULL, NULL, 0},
};

static const struct answer llama[] = {
    {"Hello {\"name\"", "c(Hello {\"name\")", 0},
    {"{\"name\": \"f\", \"parameters\": " WEATHER "}", "<f>" WEATHER "</>", 0},
    {"\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "<f>{}</>", 0},
    {"{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}", "<f>{}</><g>{}</>",
     0},
    {"{\"name\": \"Bob\", \"parameters\": {}}", "c({\"name\": \"Bob\", \"parameters\": {}})", 0},
    {"{\"name\": \"f\"}", "c({\"name\": \"f\"})", 0},
    {"{\"answer\": 1}", "c({\"answer\": 1})", 0},
    {"{\"name\": \"f\", \"age\": 1}", "c({\"name\": \"f\", \"age\": 1})", 0},
    {"{}; x", "c({}; x)", 0},
    {"{\"name\":\"f\",\"parameters\":{}}; x", "<f>{}</>c(; x)", 0},
    {"ok<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "c(ok)<f>{}</>", 0},
    {"<|python_tag|>print(1)", "c(<|python_tag|>print(1))", 0},
    {NULL, NULL, 0},
};

static const struct answer mistral[] = {
    {"[TOOL", "c([TOOL)", 0},
    {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": " WEATHER ", \"id\": \"abcdefghi\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "<f>" WEATHER "</><g>{}</>", 0},
    {"[TOOL_CALLS][{\"arguments\":{\"name\":\"x\",\"arguments\":{}},\"name\":\"f\"}]",
     "<f>{\"name\":\"x\",\"arguments\":{}}</>", 0},
    {"Hm [TOOL_CALLS] [ {\"name\": \"f\", \"arguments\": {}} ]\n", "c(Hm)<f>{}</>", 0},
    {"[TOOL_CALLS]f[ARGS]" WEATHER "[TOOL_CALLS]g{\"a\":1}", "<f>" WEATHER "</><g>{\"a\":1}</>", 0},
    {"[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", "<f>{}</>", 0},
    {"[TOOL_CALLS]{\"name\":\"f\",\"arguments\":{}}", "<f>{}</>", 0},
    {"[TOOL_CALLS][]", "c([TOOL_CALLS][])", 0},
    {"[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, x", "<f>{}</>c(, x)", 0},
    {"[TOOL_CALLS]f[ARGS]nothing", "c([TOOL_CALLS]f[ARGS]nothing)", 0},
    {"[TOOL_CALLS]f", "c([TOOL_CALLS]f)", 0},
    {NULL, NULL, 0},
};

static const struct answer deepseek[] = {
    {"hm</think>Hi", "r(hm)c(Hi)", 1},
    {"Ok." DS("calls▁begin") DS("call▁begin") "f" DS("sep") WEATHER DS("call▁end")
         DS("call▁begin") "g" DS("sep") "{}" DS("call▁end") DS("calls▁end"),
     "c(Ok.)<f>" WEATHER "</><g>{}</>", 0},
    {"<think>a</think>" DS("calls▁begin") DS("call▁begin") "function" DS(
         "sep") "f\n```json\n" WEATHER
                "\n```" DS("call▁end") "\n" DS("call▁begin") "function" DS(
                    "sep") "g\n```json\n{}\n```" DS("call▁end") DS("calls▁end"),
     "r(a)<f>" WEATHER "</><g>{}</>", 0},
    {DS("call▁begin") "f" DS("sep") "{}", "<f>{}</>", 0},
    {DS("calls▁begin") DS("call▁begin") "f\n```json\n{}\n```" DS("call▁end") DS("calls▁end"),
     "<f>{}</>", 0},
    {DS("calls▁begin") DS("call▁begin") "f" DS("sep") "{\"a\":\""
                                                      "x",
     "<f>{\"a\":\"x<cut>", 0},
    {DS("calls▁begin") DS("call▁begin") "f g", "c(" DS("calls▁begin") DS("call▁begin") "f g)", 0},
    {DS("calls▁begin") "x", "c(" DS("calls▁begin") "x)", 0},
    {DS("calls▁begin") DS("calls▁end"), "c(" DS("calls▁begin") ")", 0},
    {NULL, NULL, 0},
};

static const struct answer kimi[] = {
    {"Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|"
     ">" WEATHER "<|tool_call_end|><|tool_call_begin|>functions.g:11<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "c(Ok)<f>" WEATHER "</><g>{}</>", 0},
    {NULL, NULL, 0},
};

static const struct answer glm[] = {
    {"\n<think>a</think>\nb", "r(a)c(b)", 0},
    {"\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>a <b> "
     "\n</arg_value>\n<arg_key>n</arg_key>"
     "\n<arg_value>[1, \"</arg_value>\"]</arg_value>\n</tool_call>",
     "<f>{\"city\": \"a <b> \\n\", \"n\": [1, \"</arg_value>\"]}</>", LETTERS},
    {"<tool_call>f<arg_key>city</arg_key><arg_value>12</arg_value></tool_call><tool_call>g</"
     "tool_call>",
     "<f>{\"city\": \"12\"}</><g>{}</>", 0},
    {"<tool_call>f\n<arg_key>city</arg_key>x", "<f><cut>c(<arg_key>city</arg_key>x)", 0},
    {"<tool_call>{\"a\":1}", "c(<tool_call>{\"a\":1})", 0},
    {NULL, NULL, 0},
};

static const struct answer harmony[] = {
    {"<|channel|>analysis<|message|>Think. <|end|><|start|>assistant<|channel|>final<|message|>Hi "
     "<|return|>",
     "r(Think. )c(Hi )", 0},
    {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>" WEATHER "<|call|>",
     "r(a)<f>" WEATHER "</>", 0},
    {" to=functions.f<|channel|>commentary json<|message|>{}", "<f>{}</>", 0},
    {"<|channel|>commentary<|message|>First<|end|><|start|>assistant to=functions.f<|channel|>"
     "commentary<|message|><|call|>",
     "c(First)<f>{}</>", 0},
    {"<|channel|>commentary to=functions.f<|message|>{\"a\":1", "<f>{\"a\":1<cut>", 0},
    {"<|channel|>commentary to=functions.f<|message|>code", "c(code)", 0},
    {"<|channel|>analysis to=python<|message|>1+1<|call|>", "r(1+1)", 0},
    {"Hello <|end|>", "c(Hello )", 0},
    {"<|channel|>anal", "", 0},
    {"to be", "c(to be)", 0},
    {NULL, NULL, 0},
};

static const struct {
    const char *template;
    const struct answer *answer;
} ways[] = {
    {"google-gemma-2-2b-it", plain},
    {"Qwen-Qwen3-0.6B", hermes},
    {"Qwen3-Coder", qwen_xml},
    {"meta-llama-Llama-3.1-8B-Instruct", llama},
    {"Mistral-Small-3.2-24B-Instruct-2506", mistral},
    {"deepseek-ai-DeepSeek-V3.1", deepseek},
    {"Kimi-K2-Instruct", kimi},
    {"GLM-4.6", glm},
    {"openai-gpt-oss-120b", harmony},
};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"o\":{\"type\":"
    "\"object\"},\"b\":{\"type\":\"boolean\"},\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\"]}"
    "},"
    "\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static json_t *load(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

static void answers_by_way(void **state)
{
    (void)state;
    json_t *tools = load(tools_text);
    for (int type = 0; type <= ENG_TOKEN_USER; type += ENG_TOKEN_CONTROL) { /* none, control */
        struct eng_vocab *v = vocab_with_marks(type);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            struct eng_speech_style style = style_of(ways[i].template, v);
            if (!strcmp(ways[i].template, "google-gemma-2-2b-it"))
                style = style_of(ways[i].template, NULL);
            for (const struct answer *a = ways[i].answer; a->text; a++)
                if (!(type && a->how & LETTERS))
                    expect_answer(&(struct eng_speech_options){&style, tools, a->how & THINKS},
                                  a->text, a->want);
        }
        eng_vocab_close(v);
    }
    json_decref(tools);
}

static void marks_that_are_tokens_are_not_letters(void **state)
{
    (void)state;
    static struct line l;
    struct eng_vocab *v = vocab_with_marks(ENG_TOKEN_CONTROL);
    struct eng_speech_style style = style_of("Qwen-Qwen3-0.6B", v);
    json_t *tools = load(tools_text);
    struct eng_speech *s;
    int n_call = 0;
    l = (struct line){.kind = -1};
    assert_int_equal(eng_speech_open(&s, &(struct eng_speech_options){&style, tools, false}), 0);
    eng_speech_feed(s, "<tool_call>{\"name\":\"f\"}</tool_call><think", 41);
    eng_speech_control(s, 262); /* <s> means nothing */
    take_events(s, &l, &n_call);
    assert_string_equal(l.text, "c(<tool_call>{\"name\":\"f\"}</tool_call><think");
    eng_speech_control(s, style.mark[MARK_CALL].control);
    eng_speech_feed(s, "{\"name\":\"f\",\"arguments\":{\"x\":\"", 30);
    eng_speech_control(s, style.mark[MARK_CALL].control); /* breaks the call off */
    eng_speech_feed(s, "{\"name\":\"g\"}", 12);
    take_events(s, &l, &n_call);
    assert_string_equal(
        l.text, "c(<tool_call>{\"name\":\"f\"}</tool_call><think)<f>{\"x\":\"<cut><g>{}</>");
    eng_speech_feed(s, "x ", 2);
    eng_speech_control(s, style.mark[MARK_THINK].control); /* thoughts may come again */
    eng_speech_feed(s, "y</think>", 9);
    eng_speech_control(s, style.mark[MARK_THINK_END].control);
    eng_speech_feed(s, "\n\nz", 3);
    take_events(s, &l, &n_call);
    line_close(&l);
    assert_string_equal(strstr(l.text, "<g>"), "<g>{}</>c(x)r(y</think>)c(z)");
    eng_speech_close(s);
    style = style_of("Qwen-Qwen3-0.6B", NULL);
    expect_answer(&(struct eng_speech_options){&style, tools, false}, "no <think>a</think>",
                  "c(no <think>a</think>)");
    expect_answer(&(struct eng_speech_options){&style, tools, true},
                  "a <tool_call>{\"name\":\"f\"}", "r(a <tool_call>{\"name\":\"f\"})");
    json_decref(tools);
    eng_vocab_close(v);
}

/* Without tools there are no calls, but thoughts there are. */
static void no_tools_no_calls(void **state)
{
    (void)state;
    struct eng_speech_style style = style_of("Qwen-Qwen3-0.6B", NULL);
    struct eng_speech_options o = {.style = &style};
    expect_answer(&o, "<think>a</think>\n\n<tool_call>{\"name\":\"f\"}</tool_call> \n",
                  "r(a)c(<tool_call>{\"name\":\"f\"}</tool_call> \n)");
    style = style_of("meta-llama-Llama-3.2-3B-Instruct", NULL);
    expect_answer(&o, "{\"name\": \"f\", \"parameters\": {}}",
                  "c({\"name\": \"f\", \"parameters\": {}})");
    style = style_of("openai-gpt-oss-120b", NULL);
    expect_answer(&o, "<|channel|>commentary to=functions.f<|message|>{}", "c({})");
}

/* What has to come at once: all but the beginnings of marks and the white space before them. */
static void nothing_waits_longer_than_it_must(void **state)
{
    (void)state;
    static struct line l;
    static const struct {
        const char *template, *piece, *want;
    } step[] = {
        {"Qwen-Qwen3-0.6B", "Hello ", "c(Hello"},
        {"Qwen-Qwen3-0.6B", "Hello <tool_cat", "c(Hello <tool_cat"},
        {"Qwen-Qwen3-0.6B", "Hello <tool_ca", "c(Hello"},
        {"Qwen-Qwen3-0.6B", "<think>so", "r(so"},
        {"Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b", "<f>{\"a\":\"b"},
        {"Qwen-Qwen3-0.6B", "<tool_call>{\"name\":\"f\",\"arguments\":{}", "<f>{}</>"},
        {"Qwen3-Coder", "<function=f><parameter=city>\nPar\nis", "<f>{\"city\": \"Par\\nis"},
        {"GLM-4.6", "<tool_call>f\n", "<f>"},
        {"Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]f[ARGS]{\"a\"", "<f>{\"a\""},
        {"openai-gpt-oss-120b", "<|channel|>final<|message|>Hi ", "c(Hi "},
        {"openai-gpt-oss-120b", "Hi", "c(Hi"},
    };
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        struct eng_speech_style style = style_of(step[i].template, NULL);
        struct eng_speech *s;
        int n_call = 0;
        l = (struct line){.kind = -1};
        assert_int_equal(eng_speech_open(&s, &(struct eng_speech_options){&style, tools, false}),
                         0);
        eng_speech_feed(s, step[i].piece, strlen(step[i].piece));
        take_events(s, &l, &n_call);
        expect_line(&l, step[i].want, step[i].piece);
        eng_speech_close(s);
    }
    json_decref(tools);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static size_t feed_long(const char *template, const char *head, const char *again, size_t n_again)
{
    struct eng_speech_style style = style_of(template, NULL);
    json_t *tools = load(tools_text);
    struct eng_speech_event e;
    struct eng_speech *s;
    size_t n = 0;
    assert_int_equal(eng_speech_open(&s, &(struct eng_speech_options){&style, tools, false}), 0);
    eng_speech_feed(s, head, strlen(head));
    for (size_t i = 0; i < n_again; i++) {
        assert_int_equal(eng_speech_feed(s, again, strlen(again)), 0);
        while (eng_speech_next(s, &e))
            n += e.n;
        assert_true(s->held.n <= ENG_SPEECH_HELD && s->value.n <= ENG_SPEECH_HELD);
    }
    eng_speech_finish(s);
    while (eng_speech_next(s, &e))
        n += e.n;
    eng_speech_close(s);
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
    assert_int_equal(feed_long("Qwen3-Coder", "<function=f><parameter=n>", a, n),
                     strlen("f{\"n\": \"") + 64 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "", "<tool_call>", n), 11 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "", "<tool_call", n), 10 * n);
    assert_int_equal(feed_long("Qwen-Qwen3-0.6B", "", " \n", n), 2 * n);
    assert_true(feed_long("Qwen-Qwen3-0.6B",
                          "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":", "[", n) > n);
}

static void memory_may_end_anywhere(void **state)
{
    (void)state;
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct eng_speech_style style = style_of(ways[i].template, NULL);
        const struct answer *a = ways[i].answer;
        for (; a->text; a++)
            for (long nth = 1; nth == 1 || faults.struck; nth++) {
                struct eng_speech *s = NULL;
                faults_reset();
                faults_at(FAULT_ALLOC, nth, FAULT_ERROR, ENOMEM);
                int error = eng_speech_open(&s, &(struct eng_speech_options){&style, tools, false});
                if (!error && !(error = eng_speech_feed(s, a->text, strlen(a->text))))
                    error = eng_speech_finish(s);
                assert_int_equal(error, faults.struck ? KN_ENOMEM : 0);
                eng_speech_close(s);
                assert_true(faults_clean());
            }
    }
    faults_off();
    json_decref(tools);
}

/* ---- what templates write -------------------------------------------------------------------- */

static const struct turn {
    const char *template, *head, *end; /* what the turn begins with and ends before */
    bool text;                         /* it wants arguments as text */
} turns[] = {
    {"Qwen-Qwen3-0.6B", "<|im_start|>assistant\n", "<|im_end|>", false},
    {"Qwen-Qwen2.5-7B-Instruct", "<|im_start|>assistant\n", "<|im_end|>", false},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_start|>assistant\n", "<|im_end|>", false},
    {"Qwen3-Coder", "<|im_start|>assistant\n", "<|im_end|>", false},
    {"stepfun-ai-Step-3.5-Flash", "<|im_start|>assistant\n", "<|im_end|>", false},
    {"meta-llama-Llama-3.1-8B-Instruct", "<|end_header_id|>\n\n", "<|eot_id|>", false},
    {"mistralai-Mistral-Nemo-Instruct-2407", "[/INST]", "</s>", false},
    {"Mistral-Small-3.2-24B-Instruct-2506", "[/INST]", "</s>", false},
    {"unsloth-mistral-Devstral-Small-2507", "[/INST]", "</s>", false},
    {"deepseek-ai-DeepSeek-V3.1", "<｜Assistant｜>", "<｜end", false},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<｜Assistant｜>", "<｜end", false},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<｜Assistant｜>", "<｜end", true},
    {"moonshotai-Kimi-K2", "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>", false},
    {"GLM-4.6", "<|assistant|>", "<|user|>", false},
    {"GLM-5.2", "<|assistant|>", "<|user|>", false},
    {"openai-gpt-oss-120b", "<|start|>assistant", "<|start|>user", false},
    {"ByteDance-Seed-OSS", "assistant\n", "<seed:eos>", false},
};

/* Some templates want a description of everything. */
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
    json_t *request =
        json_pack("{s:[{s:s,s:s},{s:s,s:s?,s:[{s:s,s:s,s:{s:s,s:o}}]}],s:o,s:s,s:s}", "messages",
                  "role", "user", "content", "q", "role", "assistant", "content",
                  strstr(t->template, "Distill") ? NULL : "", "tool_calls", "id", "abcdefghi",
                  "type", "function", "function", "name", "f", "arguments",
                  t->text ? json_string(given) : json_deep_copy(arguments), "tools",
                  described_tools(), "bos_token", "<s>", "eos_token", "</s>");
    assert_non_null(request);
    if (strstr(t->template, "Step-3") || strstr(t->template, "gpt-oss")) /* these test for it */
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
        struct eng_speech_style style = style_of(turns[i].template, NULL);
        if (strstr(turns[i].template, "Seed")) /* prints it as Python does */
            json_object_del(arguments, "o");
        char *all = render_call(&turns[i], arguments), *p = NULL;
        for (char *at = all; (at = strstr(at, turns[i].head)); at++)
            p = at + strlen(turns[i].head);
        assert_non_null(p);
        char *end = strstr(p, turns[i].end);
        size_t n = end ? (size_t)(end - p) : strlen(p);
        read_pieces(&(struct eng_speech_options){&style, tools, false}, p, n, 0, n, &l);
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

/* ---- grammars -------------------------------------------------------------------------------- */

static const char grammar_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"find_city\",\"parameters\":{\"type\":"
    "\"object\",\"$defs\":{\"list\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},"
    "\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"l\":{\"$ref\":"
    "\"#/$defs/list\"},\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\",\"7\",\"[\"]},\"s\":"
    "{\"type\":\"string\",\"maxLength\":5},\"q\":{\"type\":[\"string\",\"null\"]}},"
    "\"required\":[\"city\",\"unit\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"q\":{\"type\":[\"string\",\"null\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

static bool has_type(const json_t *schema, const json_t *v)
{
    const json_t *type = json_object_get(schema, "type");
    const char *name = json_is_object(v)    ? "object"
                       : json_is_array(v)   ? "array"
                       : json_is_string(v)  ? "string"
                       : json_is_integer(v) ? "integer"
                       : json_is_null(v)    ? "null"
                                            : "other";
    if (json_is_string(type))
        return !strcmp(json_string_value(type), name);
    for (size_t i = 0; i < json_array_size(type); i++)
        if (!strcmp(json_string_value(json_array_get(type, i)), name))
            return true;
    return !type;
}

/* As far as the schemas here go. */
static bool conforms(const json_t *root, const json_t *schema, const json_t *v)
{
    const json_t *values = json_object_get(schema, "enum"),
                 *most = json_object_get(schema, "maxLength");
    const json_t *required = json_object_get(schema, "required");
    if (json_object_get(schema, "$ref"))
        schema = json_object_get(json_object_get(root, "$defs"), "list");
    bool good = has_type(schema, v), found = !values;
    for (size_t i = 0; i < json_array_size(values); i++)
        found |= json_equal(json_array_get(values, i), v);
    size_t n_character = 0;
    for (size_t i = 0; i < json_string_length(v); i++)
        n_character += (json_string_value(v)[i] & 0xC0) != 0x80;
    good = good && found && (!most || n_character <= (size_t)json_integer_value(most));
    for (size_t i = 0; i < json_array_size(required); i++)
        good &= json_object_get(v, json_string_value(json_array_get(required, i))) != NULL;
    for (size_t i = 0; i < json_array_size(v) && good; i++)
        good = conforms(root, json_object_get(schema, "items"), json_array_get(v, i));
    for (void *i = json_object_iter((json_t *)v); i && good;
         i = json_object_iter_next((json_t *)v, i)) {
        json_t *p = json_object_get(json_object_get(schema, "properties"), json_object_iter_key(i));
        good = p && conforms(root, p, json_object_iter_value(i));
    }
    return good;
}

struct walk {
    const struct eng_vocab *vocab;
    const struct eng_speech_style *style;
    struct gr_tokens *tokens;
    struct gr_scratch *scratch;
    const json_t *tools;
    int n_call, n_whole;
    char name[64], arguments[1 << 14], all[1 << 15];
    size_t n_arguments, n_all;
};

/* For messages: the end of what was walked. */
#define LAST(w)                                                                                    \
    (int)((w)->n_all < 300 ? (w)->n_all : 300), (w)->all + ((w)->n_all < 300 ? 0 : (w)->n_all - 300)

static void check_call(struct walk *w)
{
    const json_t *tool = NULL;
    for (size_t i = 0; i < json_array_size(w->tools) && !tool; i++) {
        const json_t *f = json_object_get(json_array_get(w->tools, i), "function");
        if (!strcmp(json_string_value(json_object_get(f, "name")), w->name))
            tool = f;
    }
    json_t *v = json_loadb(w->arguments, w->n_arguments, JSON_ALLOW_NUL, NULL);
    json_t *none = load("{\"type\":\"object\"}"), *p = json_object_get(tool, "parameters");
    if (!tool || !json_is_object(v) || !conforms(p ? p : none, p ? p : none, v))
        fail_msg("%s: %s %.*s from %.*s", eng_speech_style_name(w->style), w->name,
                 (int)w->n_arguments, w->arguments, LAST(w));
    json_decref(none);
    json_decref(v);
}

static void walk_events(struct walk *w, struct eng_speech *s)
{
    struct eng_speech_event e;
    while (eng_speech_next(s, &e)) {
        if (e.kind == ENG_SPEECH_CALL) {
            w->n_call++;
            w->n_arguments = 0;
            snprintf(w->name, sizeof w->name, "%.*s", (int)e.n, e.text);
        } else if (e.kind == ENG_SPEECH_ARGUMENTS) {
            assert_true(e.n < sizeof w->arguments - w->n_arguments);
            memcpy(w->arguments + w->n_arguments, e.text, e.n);
            w->n_arguments += e.n;
        } else if (e.kind == ENG_SPEECH_CALL_END) {
            if (!e.whole)
                fail_msg("cut off: %.*s", LAST(w));
            w->n_whole++;
            check_call(w);
        }
    }
}

static void walk_text(struct walk *w, struct eng_speech *s, const char *p, size_t n)
{
    assert_true(n < sizeof w->all - w->n_all);
    memcpy(w->all + w->n_all, p, n);
    w->n_all += n;
    assert_int_equal(eng_speech_feed(s, p, n), 0);
    walk_events(w, s);
}

static void walk_control(struct walk *w, struct eng_speech *s, struct eng_decoder *d, int32_t id)
{
    struct moe_string t = eng_vocab_text(w->vocab, id);
    char cut[4];
    walk_text(w, s, cut, eng_decoder_finish(d, cut));
    memcpy(w->all + w->n_all, t.data, t.n);
    w->n_all += t.n;
    eng_speech_control(s, id);
    walk_events(w, s);
}

static bool bit(const uint32_t *mask, int32_t i) { return mask[i >> 5] >> (i & 31) & 1; }

/* One of the tokens that may come, those of marks more often; ENG_NO_TOKEN: only the end. */
static int32_t choose(const struct walk *w, const struct gr_grammar *g, const struct gr_state *st)
{
    uint32_t mask[16] = {0};
    int32_t may[MAX_TOKEN], n = 0;
    const int n_vocab = eng_vocab_size(w->vocab);
    assert_true(spec_mask_words(n_vocab) <= 16);
    gr_mask(g, st, w->tokens, w->scratch, mask);
    for (int32_t id = 0; id < n_vocab; id++)
        if (bit(mask, id) && !eng_vocab_is_stop(w->vocab, id))
            may[n++] = id;
    if (!n)
        return ENG_NO_TOKEN;
    int32_t id = may[random_bits() % (uint64_t)n];
    for (int32_t i = n; i-- && random_bits() % 2;)
        if (may[i] >= 270)
            id = may[i];
    return id;
}

static void walk_once(struct walk *w, const struct gr_grammar *g, bool thinks, const char *lead)
{
    static char rest[1 << 14], piece[256];
    struct eng_speech *s;
    struct eng_decoder d;
    struct gr_state st;
    w->n_call = w->n_whole = 0;
    w->n_all = 0;
    eng_decoder_init(&d, w->vocab, ENG_DECODE_CONTINUE | ENG_DECODE_SKIP_SPECIAL);
    struct eng_speech_options o = {w->style, w->tools, thinks};
    assert_int_equal(eng_speech_open(&s, &o), 0);
    gr_start(g, &st);
    const int n_step = (int)(random_bits() % MOST_WALK);
    for (const char *p = lead; *p && gr_advance(g, &st, (uint8_t)*p); p++)
        walk_text(w, s, p, 1);
    for (int i = 0; i < n_step; i++) {
        int32_t id = choose(w, g, &st);
        if (id == ENG_NO_TOKEN)
            break;
        assert_true(gr_advance_token(g, &st, w->tokens, id));
        if (eng_vocab_type(w->vocab, id) == ENG_TOKEN_CONTROL)
            walk_control(w, s, &d, id);
        else
            walk_text(w, s, piece, eng_decoder_feed(&d, id, piece));
    }
    size_t n = gr_finish(g, &st, rest, sizeof rest);
    assert_true(n < sizeof rest);
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)rest[i] != 0xFF) {
            walk_text(w, s, piece, eng_decoder_feed(&d, (uint8_t)rest[i], piece)); /* its token */
        } else {
            walk_control(w, s, &d,
                         (uint8_t)rest[i + 1] << 16 | (uint8_t)rest[i + 2] << 8 |
                             (uint8_t)rest[i + 3]);
            i += 3;
        }
    walk_text(w, s, piece, eng_decoder_finish(&d, piece));
    eng_speech_finish(s);
    walk_events(w, s);
    eng_speech_close(s);
}

static void walk_style(struct walk *w, const char *template)
{
    for (int i = (int)(random_bits() % 2); i < 12; i += 2) {
        struct eng_speech_tools t = {
            .tools = w->tools, .choice = ENG_TOOL_AUTO, .name = "find_city"};
        static const enum eng_tool_choice choices[] = {ENG_TOOL_AUTO, ENG_TOOL_REQUIRED,
                                                       ENG_TOOL_NAMED};
        struct gr_grammar *g;
        char why[256];
        t.choice = choices[i / 2 % 3];
        t.parallel = i % 2;
        t.thinks = i / 6 && w->style->thinks;
        if (eng_speech_grammar(&g, w->style, &t, why, sizeof why))
            fail_msg("%s: %s", template, why);
        for (int k = 0; k < 6; k++) {
            const enum mark m = w->style->mark[MARK_CALLS].text ? MARK_CALLS : MARK_CALL;
            const char *mark = w->style->mark[m].text;
            const bool lead = t.choice == ENG_TOOL_AUTO && k % 2 && mark &&
                              w->style->mark[m].control == ENG_NO_TOKEN;
            walk_once(w, g, t.thinks, lead ? mark : "");
            if (t.choice != ENG_TOOL_AUTO && !w->n_call)
                fail_msg("%s: no call in %.*s", template, LAST(w));
            if (t.choice == ENG_TOOL_NAMED)
                assert_string_equal(w->name, "find_city");
            if (!t.parallel && w->n_call > 1)
                fail_msg("%s: %d calls in %.*s", template, w->n_call, LAST(w));
            assert_int_equal(w->n_call, w->n_whole);
        }
        gr_close(g);
    }
}

static void grammars_texts_are_calls_that_conform(void **state)
{
    (void)state;
    static struct walk w;
    json_t *tools = load(grammar_tools);
    random_state = 7;
    for (int type = 0; type <= ENG_TOKEN_USER; type += type ? 1 : ENG_TOKEN_CONTROL) {
        struct eng_vocab *v = vocab_with_marks(type);
        w = (struct walk){.vocab = v, .tools = tools};
        assert_int_equal(gr_tokens_open(&w.tokens, v, 1 << 20), 0);
        assert_int_equal(gr_scratch_open(&w.scratch, w.tokens), 0);
        for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
            struct eng_speech_style style = style_of(turns[i].template, v);
            w.style = &style;
            walk_style(&w, turns[i].template);
        }
        gr_scratch_close(w.scratch);
        gr_tokens_close(w.tokens);
        eng_vocab_close(v);
    }
    json_decref(tools);
}

static bool takes(const struct gr_grammar *g, const char *text)
{
    struct gr_state s;
    gr_start(g, &s);
    for (; *text; text++)
        if (!gr_advance(g, &s, (uint8_t)*text))
            return false;
    return gr_can_end(&s);
}

static void grammars_leave_room(void **state)
{
    (void)state;
    struct eng_speech_style style = style_of("Qwen-Qwen3-0.6B", NULL);
    json_t *tools = load(tools_text);
    struct eng_speech_tools t = {.tools = tools, .choice = ENG_TOOL_AUTO};
    struct gr_grammar *g;
    char why[256];
    static const char call[] = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    static char text[512];
    assert_int_equal(eng_speech_grammar(&g, &style, &t, why, sizeof why), 0);
    assert_true(takes(g, "") && takes(g, "just text") && takes(g, "<think>\nno") && takes(g, call));
    assert_false(takes(g, "a <tool_call> b"));
    snprintf(text, sizeof text, "<think>\nwhat <tool_call> is\n</think>\n\nOk\n%s", call);
    assert_true(takes(g, text));
    snprintf(text, sizeof text, "%s\n%s", call, call);
    assert_false(takes(g, text));
    gr_close(g);

    t.parallel = true;
    assert_int_equal(eng_speech_grammar(&g, &style, &t, why, sizeof why), 0);
    assert_true(takes(g, text));
    gr_close(g);

    t.choice = ENG_TOOL_REQUIRED;
    assert_int_equal(eng_speech_grammar(&g, &style, &t, why, sizeof why), 0);
    assert_true(takes(g, call) && takes(g, text));
    assert_false(takes(g, "") || takes(g, "just text") || takes(g, "<think>no"));
    snprintf(text, sizeof text, "<think>\na\n</think>\n\n%s", call);
    assert_true(takes(g, text));
    gr_close(g);

    t.choice = ENG_TOOL_NONE;
    assert_int_equal(eng_speech_grammar(&g, &style, &t, why, sizeof why), 0);
    assert_null(g);
    json_decref(tools);
}

static void requests_are_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *template, *tools, *part;
        int code;
    } bad[] = {
        {"Qwen-Qwen3-0.6B", "[{\"name\":\"a b\"}]", "a name is", KN_EINVAL},
        {"Qwen-Qwen3-0.6B", "[{}]", "a name is", KN_EINVAL},
        {"Qwen-Qwen3-0.6B", "[7]", "a name is", KN_EINVAL},
        {"Qwen-Qwen3-0.6B", "[]", "no tool", KN_EINVAL},
        {"Qwen-Qwen3-0.6B", "[{\"name\":\"f\",\"parameters\":[]}]", "not an object", KN_EINVAL},
        {"Qwen-Qwen3-0.6B", "[{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}]", "\"object\"",
         KN_EINVAL},
        {"Qwen-Qwen3-0.6B",
         "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"not\":{}}}}}]", "\"not\"",
         KN_EUNSUPPORTED},
        {"Qwen3-Coder", "[{\"name\":\"f\",\"parameters\":{\"anyOf\":[]}}]", "one by one",
         KN_EUNSUPPORTED},
        {"GLM-4.6", "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"<\":{}}}}]", "< or >",
         KN_EUNSUPPORTED},
        {"GLM-4.6", "[{\"name\":\"f\",\"parameters\":{\"required\":[\"x\"]}}]", "\"required\"",
         KN_EINVAL},
        {"google-gemma-2-2b-it", "[{\"name\":\"f\"}]", "no way to call", KN_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct eng_speech_style style = style_of(bad[i].template, NULL);
        json_t *tools = load(bad[i].tools);
        struct eng_speech_tools t = {.tools = tools, .choice = ENG_TOOL_REQUIRED};
        struct gr_grammar *g;
        char why[256];
        int error = eng_speech_grammar(&g, &style, &t, why, sizeof why);
        if (error != bad[i].code || g || !strstr(why, bad[i].part) || strchr(why, '\n'))
            fail_msg("%s: %d %s", bad[i].tools, error, why);
        json_decref(tools);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(styles_by_template),
        cmocka_unit_test(answers_by_way),
        cmocka_unit_test(marks_that_are_tokens_are_not_letters),
        cmocka_unit_test(no_tools_no_calls),
        cmocka_unit_test(nothing_waits_longer_than_it_must),
        cmocka_unit_test(long_texts_are_given_up_not_kept),
        cmocka_unit_test(memory_may_end_anywhere),
        cmocka_unit_test(templates_calls_are_read_back),
        cmocka_unit_test(grammars_texts_are_calls_that_conform),
        cmocka_unit_test(grammars_leave_room),
        cmocka_unit_test(requests_are_refused_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
