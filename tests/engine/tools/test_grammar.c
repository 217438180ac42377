/* Grammars of requests with tools. Random texts of each grammar parse as calls of the request's tools, with arguments
 * that conform to the schema. Also: text outside calls is free, and impossible requests are refused.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/speculative.h"
#include "tests/engine/tools/answers.h"
#include "tests/faults.h"
#include "tests/engine/text/accepts.h"

enum { MOST_WALK = 200 };

static uint64_t random_state;
static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }

/* ---- grammars -------------------------------------------------------------------------------- */

static const char grammar_tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"find_city\",\"parameters\":{\"t"
                                    "ype\":\"object\",\"$defs\":{\"list\":{\"type\":\"array\",\"items\":{\"type\":\"s"
                                    "tring\"}}},\"properties\":{\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\",\""
                                    "7\",\"[\\\"\"]},\"e\":{\"enum\":[\"7\",\"x\"]},\"l\":{\"$ref\":\"#/$defs/list\"}"
                                    ",\"n\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\",\"maxLength\":5},\"q\":"
                                    "{\"type\":[\"string\",\"null\"]},\"city\":{\"type\":\"string\"}},\"required\":[\""
                                    "city\",\"unit\",\"e\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"find\""
                                    ",\"parameters\":{\"type\":\"object\",\"properties\":{\"q\":{\"type\":[\"string\""
                                    ",\"null\"]}}}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

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

/* A validator for the part of JSON schema that these tests use. */
static bool conforms(const json_t *root, const json_t *schema, const json_t *v)
{
    const json_t *values = json_object_get(schema, "enum"), *most = json_object_get(schema, "maxLength");
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
    for (void *i = json_object_iter((json_t *)v); i && good; i = json_object_iter_next((json_t *)v, i)) {
        json_t *p = json_object_get(json_object_get(schema, "properties"), json_object_iter_key(i));
        good = p && conforms(root, p, json_object_iter_value(i));
    }
    return good;
}

struct walk {
    const struct eng_vocab *vocab;
    const struct eng_tool_format *format;
    struct gr_tokens *tokens;
    struct gr_scratch *scratch;
    const json_t *tools;
    int n_call, n_whole;
    char name[64], arguments[1 << 14], all[1 << 15];
    size_t n_arguments, n_all;
};

/* The last 300 bytes of the walk, for messages. */
#define LAST(w) (int)((w)->n_all < 300 ? (w)->n_all : 300), (w)->all + ((w)->n_all < 300 ? 0 : (w)->n_all - 300)

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
        fail_msg("%s: %s %.*s from %.*s", eng_tool_format_name(w->format), w->name, (int)w->n_arguments, w->arguments,
                 LAST(w));
    json_decref(none);
    json_decref(v);
}

static void walk_events(struct walk *w, struct eng_answer_parser *s)
{
    struct eng_answer_event e;
    while (eng_answer_next(s, &e)) {
        if (e.kind == ENG_ANSWER_CALL) {
            w->n_call++;
            w->n_arguments = 0;
            snprintf(w->name, sizeof w->name, "%.*s", (int)e.n, e.text);
        } else if (e.kind == ENG_ANSWER_ARGUMENTS) {
            assert_true(e.n < sizeof w->arguments - w->n_arguments);
            memcpy(w->arguments + w->n_arguments, e.text, e.n);
            w->n_arguments += e.n;
        } else if (e.kind == ENG_ANSWER_CALL_END) {
            if (!e.whole)
                fail_msg("cut off: %.*s", LAST(w));
            w->n_whole++;
            check_call(w);
        }
    }
}

static void walk_text(struct walk *w, struct eng_answer_parser *s, const char *p, size_t n)
{
    assert_true(n < sizeof w->all - w->n_all);
    memcpy(w->all + w->n_all, p, n);
    w->n_all += n;
    assert_int_equal(eng_answer_feed(s, p, n), 0);
    walk_events(w, s);
}

static void walk_control(struct walk *w, struct eng_answer_parser *s, struct eng_decoder *d, int32_t id)
{
    struct moe_string t = eng_vocab_text(w->vocab, id);
    char cut[4];
    walk_text(w, s, cut, eng_decoder_finish(d, cut));
    memcpy(w->all + w->n_all, t.data, t.n);
    w->n_all += t.n;
    eng_answer_control(s, id);
    walk_events(w, s);
}

static bool bit(const uint32_t *mask, int32_t i) { return mask[i >> 5] >> (i & 31) & 1; }

/* A random allowed token, more often one of the marks; ENG_NO_TOKEN: only the end is allowed. */
static int32_t choose(const struct walk *w, const struct gr_grammar *g, const struct gr_state *st)
{
    uint32_t mask[16] = { 0 };
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
    struct eng_answer_parser *s;
    struct eng_decoder d;
    struct gr_state st;
    w->n_call = w->n_whole = 0;
    w->n_all = 0;
    eng_decoder_init(&d, w->vocab, ENG_DECODE_CONTINUE | ENG_DECODE_SKIP_SPECIAL);
    struct eng_answer_options o = { .format = w->format, .tools = w->tools, .thinks = thinks };
    assert_int_equal(eng_answer_open(&s, &o), 0);
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
            walk_text(w, s, piece, eng_decoder_feed(&d, (uint8_t)rest[i], piece)); /* token b is byte b */
        } else {
            walk_control(w, s, &d, (uint8_t)rest[i + 1] << 16 | (uint8_t)rest[i + 2] << 8 | (uint8_t)rest[i + 3]);
            i += 3;
        }
    walk_text(w, s, piece, eng_decoder_finish(&d, piece));
    eng_answer_finish(s, false);
    walk_events(w, s);
    eng_answer_close(s);
}

static void walk_style(struct walk *w, const char *template)
{
    for (int i = (int)(random_bits() % 2); i < 12; i += 2) {
        struct eng_answer_rules t = { .tools = w->tools, .choice = ENG_TOOL_AUTO, .name = "find_city" };
        static const enum eng_tool_choice choices[] = { ENG_TOOL_AUTO, ENG_TOOL_REQUIRED, ENG_TOOL_NAMED };
        struct gr_grammar *g;
        char why[256];
        t.choice = choices[i / 2 % 3];
        t.parallel = i % 2;
        t.thinks = i / 6 && w->format->thinks;
        if (eng_answer_grammar(&g, w->format, &t, why, sizeof why))
            fail_msg("%s: %s", template, why);
        for (int k = 0; k < 6; k++) {
            const enum mark m = w->format->mark[MARK_CALLS].text ? MARK_CALLS : MARK_CALL;
            const char *mark = w->format->mark[m].text;
            const bool lead = t.choice == ENG_TOOL_AUTO && k % 2 && mark && w->format->mark[m].control == ENG_NO_TOKEN;
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

static const char *const templates[] = { "Qwen-Qwen3-0.6B",
                                         "Qwen3-Coder",
                                         "ByteDance-Seed-OSS",
                                         "meta-llama-Llama-3.1-8B-Instruct",
                                         "mistralai-Mistral-Nemo-Instruct-2407",
                                         "Mistral-Small-3.2-24B-Instruct-2506",
                                         "tencent-Hunyuan-A13B-Instruct",
                                         "deepseek-ai-DeepSeek-V3.1",
                                         "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
                                         "Kimi-K2-Instruct",
                                         "deepseek-ai-DeepSeek-V4",
                                         MINIMAX,
                                         "GLM-4.6",
                                         "openai-gpt-oss-120b",
                                         LLAMA_3_LIST,
                                         LLAMA_4_LIST,
                                         "meta-llama-Llama-4-Scout-17B-16E-Instruct",
                                         "google-gemma-4-31B-it-interleaved",
                                         "LFM2.5-Instruct" };

static void grammars_texts_are_calls_that_conform(void **state)
{
    (void)state;
    static struct walk w;
    json_t *tools = load(grammar_tools);
    random_state = 7;
    for (int type = 0; type <= ENG_TOKEN_USER; type += type ? 1 : ENG_TOKEN_CONTROL) {
        struct eng_vocab *v = vocab_with_marks(type);
        w = (struct walk){ .vocab = v, .tools = tools };
        assert_int_equal(gr_tokens_open(&w.tokens, v, 1 << 20), 0);
        assert_int_equal(gr_scratch_open(&w.scratch, w.tokens), 0);
        for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
            struct eng_tool_format format = style_of(templates[i], v);
            w.format = &format;
            walk_style(&w, templates[i]);
        }
        gr_scratch_close(w.scratch);
        gr_tokens_close(w.tokens);
        eng_vocab_close(v);
    }
    json_decref(tools);
}

/* A list of calls ends with the marker behind it, if the format has one. */
static void lists_are_closed(void **state)
{
    (void)state;
    static const struct {
        const char *template, *list;
    } lists[] = { { "tencent-Hunyuan-A13B-Instruct", "[{\"name\": \"g\", \"arguments\": {}}]" },
                  { "LFM2.5-Instruct", "[g()]" } };
    json_t *tools = load(tools_text);
    struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_REQUIRED, .parallel = true };
    char why[256], text[256];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct eng_tool_format format = style_of(lists[i].template, NULL);
        const char *open = format.mark[MARK_CALLS].text, *close = format.mark[MARK_CALLS_END].text;
        struct gr_grammar *g;
        assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
        snprintf(text, sizeof text, "%s%s", open, lists[i].list);
        assert_false(accepts(g, text));
        snprintf(text, sizeof text, "%s%s%s", open, lists[i].list, close);
        assert_true(accepts(g, text));
        gr_close(g);
    }
    json_decref(tools);
}

/* Several calls of Llama 4 as its template, other engines and Llama 3 join them. */
static void llama_joins_calls(void **state)
{
    (void)state;
    static const char f[] = "{\"name\": \"g\", \"parameters\": {}}";
    static const char *const join[] = { "", "\n", ";", "; ", ";\n" };
    struct eng_tool_format format = style_of("meta-llama-Llama-4-Scout-17B-16E-Instruct", NULL);
    json_t *tools = load(tools_text);
    struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_REQUIRED, .parallel = true };
    struct gr_grammar *one, *several;
    char why[256], text[256];
    assert_int_equal(eng_answer_grammar(&several, &format, &t, why, sizeof why), 0);
    t.parallel = false;
    assert_int_equal(eng_answer_grammar(&one, &format, &t, why, sizeof why), 0);
    for (size_t i = 0; i < sizeof join / sizeof *join; i++) {
        snprintf(text, sizeof text, "%s%s%s", f, join[i], f);
        assert_true(accepts(several, text));
        assert_false(accepts(one, text));
    }
    snprintf(text, sizeof text, "%s\n", f);
    assert_true(accepts(several, text));
    snprintf(text, sizeof text, "%s, %s", f, f);
    assert_false(accepts(several, text));
    gr_close(one);
    gr_close(several);
    json_decref(tools);
}

static void grammars_leave_room(void **state)
{
    (void)state;
    struct eng_tool_format format = style_of("Qwen-Qwen3-0.6B", NULL);
    json_t *tools = load(tools_text);
    struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_AUTO };
    struct gr_grammar *g;
    char why[256];
    static const char call[] = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    static char text[512];
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, "") && accepts(g, "just text") && accepts(g, "<think>\nno") && accepts(g, call));
    assert_false(accepts(g, "a <tool_call> b"));
    snprintf(text, sizeof text, "<think>\nwhat <tool_call> is\n</think>\n\nOk\n%s", call);
    assert_true(accepts(g, text));
    snprintf(text, sizeof text, "%s\n%s", call, call);
    assert_false(accepts(g, text));
    gr_close(g);

    t.parallel = true;
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, text));
    gr_close(g);

    t.choice = ENG_TOOL_REQUIRED;
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, call) && accepts(g, text));
    assert_false(accepts(g, "") || accepts(g, "just text") || accepts(g, "<think>no"));
    snprintf(text, sizeof text, "<think>\na\n</think>\n\n%s", call);
    assert_true(accepts(g, text));
    gr_close(g);

    t.choice = ENG_TOOL_AUTO;
    format = style_of("meta-llama-Llama-3.1-8B-Instruct", NULL);
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, " a {") && accepts(g, "{\"name\": \"g\", \"parameters\": {}}"));
    assert_false(accepts(g, "{a") || accepts(g, " {a"));
    gr_close(g);

    format = style_of(LLAMA_3_LIST, NULL);
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, " a [") && accepts(g, "[g()]") && accepts(g, "[f(city='\"'), f(city=\"\\'\")]"));
    assert_true(accepts(g, "[f(city='a', n=1, o={'x': None}, b=True, unit='c')]"));
    assert_false(accepts(g, "[1]") || accepts(g, "[f(n=1)]") || accepts(g, "[f(city='a', b=true)]"));
    assert_false(accepts(g, "[f(city='\\/')]") || accepts(g, "[f(city=\"a')]") || accepts(g, "[g()"));
    gr_close(g);

    format = style_of("google-gemma-4-31B-it-interleaved", NULL);
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, "a { <|\"|>") && accepts(g, "<|tool_call>call:g{}<tool_call|>"));
    assert_true(accepts(g,
                        "<|tool_call>call:f{b:true,city:<|\"|>a <b>\"\n<|\"|>,n:-3,o:{x:[1,None]},unit:<|\"|>c<|\"|>}"
                        "<tool_call|><|tool_call>call:g{}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{city:\"a\"}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{city:<|\"|>a<|\"|>,unit:<|\"|>k<|\"|>}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{city:<|\"|>a<|\"|>, n:1}<tool_call|>"));
    gr_close(g);

    format = style_of("openai-gpt-oss-120b", NULL);
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    snprintf(text, sizeof text, "<|channel|>final<|message|>a<|end|>");
    assert_true(accepts(g, text));
    assert_false(accepts(g, "<|channel|>final<|message|>a<|end|><|channel|>final<|message|>b"));
    gr_close(g);

    t.choice = ENG_TOOL_NONE;
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_null(g);
    t.choice = ENG_TOOL_AUTO;
    format = style_of("google-gemma-2-2b-it", NULL);
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_null(g);
    json_decref(tools);
}

/* No string between markers contains the marker, whatever its schema allows. */
static void marked_strings_end_at_the_marker(void **state)
{
    (void)state;
    struct eng_tool_format format = style_of("google-gemma-4-31B-it-interleaved", NULL);
    json_t *tools = load(
        "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":9},"
        "\"e\":{\"enum\":[\"a<|\\\"|>b\",\"a<b\",\"c\"]},\"a:b\":{\"type\":\"string\",\"pattern\":\"^.<?$\"}}}}]");
    struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_REQUIRED };
    struct gr_grammar *g;
    char why[256];
    assert_int_equal(eng_answer_grammar(&g, &format, &t, why, sizeof why), 0);
    assert_true(accepts(g, "<|tool_call>call:f{s:<|\"|>a\"\n}b<|\"|>}<tool_call|>"));
    assert_true(accepts(g, "<|tool_call>call:f{e:<|\"|>a<b<|\"|>}<tool_call|>"));
    assert_true(accepts(g, "<|tool_call>call:f{<|\"|>a:b<|\"|>:<|\"|>x<|\"|>}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{s:<|\"|>a<|\"|>b<|\"|>}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{e:<|\"|>a<|\"|>b<|\"|>}<tool_call|>"));
    assert_false(accepts(g, "<|tool_call>call:f{<|\"|>a:b<|\"|>:<|\"|>x<<|\"|>}<tool_call|>"));
    gr_close(g);
    json_decref(tools);
}

static void requests_are_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *template, *tools, *part;
        int code;
    } bad[] = {
        { "Qwen-Qwen3-0.6B", "[{\"name\":\"a b\"}]", "a name is", KN_EINVAL },
        { "Qwen-Qwen3-0.6B", "[{}]", "a name is", KN_EINVAL },
        { "Qwen-Qwen3-0.6B", "[7]", "a name is", KN_EINVAL },
        { "Qwen-Qwen3-0.6B", "[]", "no tool", KN_EINVAL },
        { "Qwen-Qwen3-0.6B", "[{\"name\":\"f\",\"parameters\":[]}]", "not an object", KN_EINVAL },
        { "Qwen-Qwen3-0.6B", "[{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}]", "\"object\"", KN_EINVAL },
        { "Qwen-Qwen3-0.6B", "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"not\":{}}}}}]", "\"not\"",
          KN_EUNSUPPORTED },
        { "Qwen3-Coder", "[{\"name\":\"f\",\"parameters\":{\"anyOf\":[]}}]", "one by one", KN_EUNSUPPORTED },
        { "GLM-4.6", "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"<\":{}}}}]", "< or >", KN_EUNSUPPORTED },
        { "GLM-4.6", "[{\"name\":\"f\",\"parameters\":{\"required\":[\"x\"]}}]", "\"required\"", KN_EINVAL },
        { LLAMA_3_LIST, "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a b\":{}}}}]", "128 letters",
          KN_EUNSUPPORTED },
        { "google-gemma-2-2b-it", "[{\"name\":\"f\"}]", "does not support tool calls", KN_EUNSUPPORTED },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct eng_tool_format format = style_of(bad[i].template, NULL);
        json_t *tools = load(bad[i].tools);
        struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_REQUIRED };
        struct gr_grammar *g;
        char why[256];
        int error = eng_answer_grammar(&g, &format, &t, why, sizeof why);
        if (error != bad[i].code || g || !strstr(why, bad[i].part) || strchr(why, '\n'))
            fail_msg("%s: %d %s", bad[i].tools, error, why);
        json_decref(tools);
    }
}

/* Names as long as a request may have are accepted in every format, and longer ones in none. */
static void names_have_one_limit(void **state)
{
    static const char *const forms[] = { "Qwen-Qwen3-0.6B",
                                         "Qwen3-Coder",
                                         "GLM-4.6",
                                         "Kimi-K2-Instruct",
                                         "meta-llama-Llama-3.1-8B-Instruct",
                                         "openai-gpt-oss-120b",
                                         LLAMA_3_LIST,
                                         "google-gemma-4-31B-it-interleaved",
                                         "deepseek-ai-DeepSeek-V4",
                                         "mistralai-Mistral-Nemo-Instruct-2407" };
    char name[ENG_TOOL_NAME_BYTES + 2];
    (void)state;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    for (size_t i = 0; i < 2 * sizeof forms / sizeof *forms; i++) {
        struct eng_tool_format format = style_of(forms[i / 2], NULL);
        json_t *tools = json_pack("[{s:s#}]", "name", name, (int)(ENG_TOOL_NAME_BYTES + i % 2));
        struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_REQUIRED };
        struct gr_grammar *g;
        char why[256];
        int error = eng_answer_grammar(&g, &format, &t, why, sizeof why);
        if (error != (i % 2 ? KN_EINVAL : 0))
            fail_msg("%s: %d %s", forms[i / 2], error, why);
        gr_close(g);
        json_decref(tools);
    }
}

/* A grammar that lacks memory is refused, and is no wider one: each allocation fails once. */
static void memory_may_end_anywhere(void **state)
{
    static const char *const own[] = { "Qwen-Qwen3-0.6B", "Qwen3-Coder", "google-gemma-4-31B-it-interleaved" };
    char why[200];
    (void)state;
    json_t *tools = load(tools_text);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        struct eng_tool_format format = style_of(own[i], NULL);
        struct eng_answer_rules t = { .tools = tools, .choice = ENG_TOOL_REQUIRED };
        for (long nth = 1; nth == 1 || faults.struck; nth += 1 + nth / 16) {
            struct gr_grammar *g = NULL;
            faults_reset();
            faults_at(FAULT_ALLOC, nth, FAULT_ERROR, ENOMEM);
            int error = eng_answer_grammar(&g, &format, &t, why, sizeof why);
            assert_int_equal(error, faults.struck ? KN_ENOMEM : 0);
            assert_int_equal(g == NULL, faults.struck);
            assert_string_equal(why, faults.struck ? "no memory for the grammar" : "");
            gr_close(g);
            assert_true(faults_clean());
        }
    }
    faults_off();
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_texts_are_calls_that_conform),
        cmocka_unit_test(grammars_leave_room),
        cmocka_unit_test(lists_are_closed),
        cmocka_unit_test(llama_joins_calls),
        cmocka_unit_test(marked_strings_end_at_the_marker),
        cmocka_unit_test(requests_are_refused_in_one_line),
        cmocka_unit_test(names_have_one_limit),
        cmocka_unit_test(memory_may_end_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
