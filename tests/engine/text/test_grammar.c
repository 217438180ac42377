/* Grammars (engine/text/grammar): accepted and refused texts, a completion for every prefix, refused schemas, and token
 * masks compared with the acceptance of each single token.
 *
 * tests/engine/data/schemas.jsonl has random schemas with instances that an independent validator classified as valid
 * or invalid (evals/grammar.py, which also checks random texts of the grammars with that validator).
 *
 * One thread: not under MODE=tsan. */
#include <pthread.h>

#include "engine/text/grammar/automaton.h"
#include "speculative/speculative.h"
#include "tests/engine/text/recipe.h"
#include "tests/faults.h"

enum { MOST_TEXT = 1 << 18 };

static uint64_t random_state;
static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }

static struct gr_grammar *compile_json(const json_t *schema)
{
    struct gr_builder *b;
    struct gr_grammar *g = NULL;
    assert_int_equal(gr_builder_open(&b), 0);
    if (gr_compile(&g, b, gr_schema(b, schema, GR_END), NULL))
        fail_msg("%s", gr_builder_why(b));
    assert_string_equal(gr_builder_why(b), "");
    gr_builder_close(b);
    return g;
}

static struct gr_grammar *compile(const char *text)
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    struct gr_grammar *g = compile_json(schema);
    json_decref(schema);
    return g;
}

static bool feed(const struct gr_grammar *g, struct gr_state *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!gr_advance(g, s, (uint8_t)p[i]))
            return false;
    return true;
}

static bool takes(const struct gr_grammar *g, const char *text)
{
    struct gr_state s;
    gr_start(g, &s);
    return feed(g, &s, text, strlen(text)) && gr_can_end(&s);
}

static void expect(const char *schema, const char *valid, const char *invalid)
{
    struct gr_grammar *g = compile(schema);
    char text[4096], *rest;
    for (int want = 0; want < 2; want++) {
        snprintf(text, sizeof text, "%s", want ? valid : invalid);
        for (char *t = strtok_r(text, "|", &rest); t; t = strtok_r(NULL, "|", &rest))
            if (takes(g, t) != want)
                fail_msg("%s is %s by %s", t, want ? "refused" : "taken", schema);
    }
    gr_close(g);
}

/* The state's completion is accepted and may end. With `json`, the whole text is JSON. */
static void expect_finish(const struct gr_grammar *g, const struct gr_state *s, char *text, size_t n, bool json)
{
    static struct gr_state end;
    size_t more = gr_finish(g, s, text + n, MOST_TEXT - n);
    assert_true(more <= MOST_TEXT - n);
    gr_copy(&end, s);
    assert_true(feed(g, &end, text + n, more) && gr_can_end(&end));
    if (!json)
        return;
    json_t *value = json_loadb(text, n + more, JSON_DECODE_ANY, NULL);
    if (!value)
        fail_msg("no JSON: %.*s", (int)(n + more), text);
    json_decref(value);
}

static void walk_and_finish(const struct gr_grammar *g, int n_step)
{
    static char text[MOST_TEXT];
    struct gr_state s, before;
    size_t n = 0;
    gr_start(g, &s);
    for (int i = 0; i < n_step; i++) {
        uint8_t byte = (uint8_t)(random_bits() % 4 ? random_bits() % 95 + 32 : random_bits());
        gr_copy(&before, &s);
        if (!gr_advance(g, &s, byte)) {
            assert_int_equal(s.n_config, before.n_config); /* unchanged */
            assert_memory_equal(s.config, before.config, s.n_config * sizeof *s.config);
            continue;
        }
        text[n++] = (char)byte;
        if (i % 8 == 0)
            expect_finish(g, &s, text, n, true);
    }
    expect_finish(g, &s, text, n, true);
}

/* ---- schemas --------------------------------------------------------------------------------- */

static void golden_instances_are_told_apart(void **state)
{
    (void)state;
    FILE *f = fopen("tests/engine/data/schemas.jsonl", "r");
    char *line = NULL;
    size_t cap = 0, n_line = 0, n_text[2] = { 0 };
    assert_non_null(f);
    random_state = 1;
    while (getline(&line, &cap, f) > 0) {
        json_t *c = json_loads(line, JSON_DECODE_ANY, NULL);
        struct gr_builder *b;
        struct gr_grammar *g;
        assert_non_null(c);
        assert_int_equal(gr_builder_open(&b), 0);
        n_line++;
        int e = gr_compile(&g, b, gr_schema(b, json_object_get(c, "schema"), GR_END), NULL);
        if (e == KN_EINVAL) /* no instance is valid */
            assert_int_equal(json_array_size(json_object_get(c, "valid")), 0);
        for (int want = 0; want < 2 && !e; want++) {
            const json_t *texts = json_object_get(c, want ? "valid" : "invalid");
            for (size_t i = 0; i < json_array_size(texts); i++, n_text[want]++)
                if (takes(g, json_string_value(json_array_get(texts, i))) != want)
                    fail_msg("%s: %s", json_string_value(json_array_get(texts, i)), line);
        }
        for (int i = 0; i < 4 && !e; i++)
            walk_and_finish(g, 300);
        if (!e)
            gr_close(g);
        gr_builder_close(b);
        json_decref(c);
    }
    fclose(f);
    free(line);
    assert_in_range(n_line, 100, 1000);
    assert_in_range(n_text[0], 200, 10000);
    assert_in_range(n_text[1], 200, 10000);
}

static void keywords_by_hand(void **state)
{
    (void)state;
    expect("{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":305}", "-12|-9|-1|0|7|10|99|100|299|304",
           "-13|-20|305|1000|-0|01|1.0|1e2|+1|");
    expect("{\"type\":\"number\",\"exclusiveMinimum\":0.1,\"maximum\":12.5}",
           "0.11|0.2|1|9.99999|12|12.5|12.50|12.49999", "0.1|0.10|0|12.51|13|-1|12.500001|1e1|.5|1.");
    expect("{\"type\":\"number\",\"minimum\":-2.5,\"exclusiveMaximum\":0}", "-2.5|-0.1|-1|-2.49", "-2.51|0|1|-3|-0");
    expect("{\"type\":\"integer\"}", "0|-1|999999999999999999", "1000000000000000000|00|-|1.5");
    expect("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           "\"ab\"|\"abc\"|\"\xC3\xA9\xE2\x82\xAC\"|\"\\ud83d\\ude00\\n\"|\"a\xF0\x9F\x98\x80z\"",
           "\"a\"|\"abcd\"|\"\"|\"\\ud83d\"|\"\\ud83dab\"|\"\\ude00a\"|\"a\\u0000\"|\"a\xC3\"|"
           "\"\xED\xA0\x80x\"|ab");
    expect("{\"type\":\"string\",\"pattern\":\"^(a+)+b$\",\"maxLength\":4}", "\"ab\"|\"aaab\"",
           "\"b\"|\"aaaab\"|\"abb\"");
    expect("{\"type\":\"string\",\"pattern\":\"a.c\"}",
           "\"abc\"|\"xxa\xE2\x82\xAC"
           "cyy\"|\"a\\\"c\"",
           "\"ac\"|\"\"|\"a\\nc\"");
    expect("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{\"type\":\"null\"}},\"required\":["
           "\"b\"]}",
           "{\"b\":null}|{\"a\":[1,{}],\"b\":null}|{ \"b\": null }|{\n  \"a\": 1,\n  \"b\": null\n}",
           "{}|{\"a\":1}|{\"b\":null,\"a\":1}|{\"b\":null,\"c\":1}|{\"b\":null,}|{  "
           "\"b\":null}|{\"b\" :null}|{\"b\":null}x");
    expect("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},"
           "\"additionalProperties\":{\"type\":\"integer\"}}",
           "{}|{\"ab\":null,\"a\":1}|{\"abc\":1,\"\":2}|{\"\xC3\xA9\":1}",
           "{\"ab\":1}|{\"a\":null}|{\"\\u0061b\":1}|{\"a\\u0062\":1}");
    expect("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],"
           "\"items\":{\"type\":\"integer\"},"
           "\"minItems\":1,\"maxItems\":3}",
           "[null]|[null,true]|[null,false,1]|[ null, true ]", "[]|[true]|[null,1]|[null,true,1,2]");
    expect("{\"type\":[\"string\",\"null\"]}", "null|\"x\"", "1|nul");
    expect("{\"type\":\"string\",\"nullable\":true}", "null|\"x\"", "1");
    expect("{\"const\":{\"b\":[1,0.1,\"\\u20ac\\n\"],\"a\":null}}", "{\"b\":[1,0.1,\"\xE2\x82\xAC\\n\"],\"a\":null}",
           "{\"a\":null}");
    expect("{\"type\":\"integer\",\"enum\":[1,\"1\",2.5,3.0]}", "1|3", "\"1\"|2.5|3.0");
    expect("{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"|\"1900-02-28\"",
           "\"2023-02-29\"|\"1900-02-29\"|\"2023-04-31\"|\"0000-01-01\"");
    expect("{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":3}},\"required\":["
           "\"a\"]},{\"properties\":"
           "{\"a\":{\"type\":\"integer\",\"maximum\":4},\"b\":{}}}]}",
           "{\"a\":3}|{\"a\":4,\"b\":1}", "{\"a\":2}|{\"a\":5}|{\"b\":1}|{\"a\":3.5}");
    expect("{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"x\"}},\"anyOf\":[{\"required\":"
           "[\"k\"]},{\"properties\":{\"z\":{}},"
           "\"required\":[\"z\"]}]}",
           "{\"k\":\"x\"}|{\"k\":\"x\",\"z\":0}|{\"z\":0}", "{}|{\"k\":1}");
    expect("{\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
           "t\"}}},\"$ref\":\"#/$defs/t\"}",
           "[]|[[],[[]]]", "[1]|[");
    expect("{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0},\"minItems\":3}", "[1,2,3]|[1,2,3,4]",
           "[1,2]|[1,2,]");
    expect("true", "{\"a\":[null,-1.5e-7,\"\"]}|0|-0.5", "{\"a\"}|1e100|[1,]|");
}

static void deep_values_end_in_time(void **state)
{
    (void)state;
    static char text[MOST_TEXT];
    const char *schemas[] = { "true", "{\"$ref\":\"#/$defs/"
                                      "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":"
                                      "[{\"$ref\":\"#/$defs/n\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
                                      "n\"},\"minItems\":2}]}}}}}" };
    const char *step[] = { "[", "{\"a\":[" };
    for (int i = 0; i < 2; i++) {
        struct gr_grammar *g = compile(schemas[i]);
        struct gr_state s;
        size_t n = 0, n_step = strlen(step[i]);
        gr_start(g, &s);
        while (n < MOST_TEXT / 2 && gr_advance(g, &s, (uint8_t)step[i][n % n_step])) {
            text[n] = step[i][n % n_step];
            n++;
            expect_finish(g, &s, text, n, false);
        }
        assert_in_range(n, GR_DEPTH / 2, GR_DEPTH * 8);
        expect_finish(g, &s, text, n, true);
        gr_close(g);
    }
}

static void expect_refusal(const json_t *schema, int code, const char *part)
{
    struct gr_builder *b;
    struct gr_grammar *g = NULL;
    assert_non_null(schema);
    assert_int_equal(gr_builder_open(&b), 0);
    int e = gr_compile(&g, b, gr_schema(b, schema, GR_END), NULL);
    if (e != code || !strstr(gr_builder_why(b), part) || strchr(gr_builder_why(b), '\n') || g)
        fail_msg("%d '%s', not %d '%s'", e, gr_builder_why(b), code, part);
    gr_builder_close(b);
}

static void multiples_of_one_are_whole(void **state)
{
    (void)state;
    expect("{\"type\":\"number\",\"multipleOf\":1,\"minimum\":1.2,\"maximum\":3.5}", "2|3", "1.2013|1|2.5|4|2.0");
    expect("{\"multipleOf\":1.0}", "2|null|\"x\"|[1.5]", "1.5|1e1");
    expect("{\"allOf\":[{\"multipleOf\":1},{\"type\":[\"number\",\"null\"]}]}", "-7|null", "0.5|true");
    expect("{\"enum\":[1,1.5,2.0],\"multipleOf\":1}", "1|2", "1.5");
    expect("{\"type\":\"string\",\"multipleOf\":7}", "\"x\"", "7"); /* no effect on strings */
}

static void fixed_values_hold_u0000(void **state)
{
    (void)state;
    json_t *schema = json_loads("{\"enum\":[\"a\\u0000b\",{\"k\":[\"\\u0000\"]},\"a\"]}", JSON_ALLOW_NUL, NULL);
    struct gr_grammar *g = compile_json(schema);
    assert_true(takes(g, "\"a\\u0000b\"") && takes(g, "\"a\"") && takes(g, "{\"k\":[\"\\u0000\"]}"));
    assert_false(takes(g, "\"a\\u0000\"") || takes(g, "{\"k\":[\"\"]}"));
    gr_close(g);
    json_decref(schema);
    schema = json_loads("{\"properties\":{\"x\":{\"const\":\"\\u0000z\"}},\"required\":[\"x\"],\"type\":\"object\"}",
                        JSON_ALLOW_NUL, NULL);
    g = compile_json(schema);
    assert_true(takes(g, "{\"x\":\"\\u0000z\"}"));
    assert_false(takes(g, "{\"x\":\"\"}"));
    gr_close(g);
    json_decref(schema);
}

#define ONE(a, b) "{\"oneOf\":[" a "," b "]}"
#define OBJECT(properties, required)                                                                                   \
    "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "],\"additionalProperties\":false}"

static void one_of_disjoint_schemas(void **state)
{
    (void)state;
    expect(ONE("{\"type\":\"string\"}", "{\"type\":[\"integer\",\"null\"]}"), "\"x\"|1|null", "1.5|true");
    expect(ONE("{\"enum\":[1,2,\"x\"]}", "{\"enum\":[3,\"y\"]}"), "1|2|3|\"x\"|\"y\"", "4|\"z\"");
    expect(ONE("{\"type\":\"integer\",\"maximum\":2}", "{\"type\":\"number\",\"exclusiveMinimum\":2}"), "2|-7|2.5|3",
           "2.0");
    expect(ONE("{\"type\":\"string\",\"maxLength\":1}", "{\"type\":\"string\",\"minLength\":2,\"maxLength\":2}"),
           "\"\"|\"a\"|\"ab\"", "\"abc\"");
    expect(
        ONE("{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":1}", "{\"type\":\"array\",\"maxItems\":0}"),
        "[]|[null]", "[1]");
    expect(ONE(OBJECT("\"kind\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}", "\"kind\""),
               OBJECT("\"kind\":{\"enum\":[\"b\",\"c\"]},\"y\":{\"type\":\"null\"}", "\"kind\",\"y\"")),
           "{\"kind\":\"a\"}|{\"kind\":\"a\",\"x\":1}|{\"kind\":\"c\",\"y\":null}",
           "{\"kind\":\"b\"}|{\"kind\":\"b\",\"x\":1}|{\"kind\":\"d\"}");
    /* each requires a member that the other's texts lack, and nested members that tell apart */
    expect(ONE("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":[\"a\"]}",
               "{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}"),
           "{\"a\":null}|{\"b\":null}", "{}|{\"a\":null,\"b\":null}");
    expect(
        ONE(OBJECT("\"o\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}},\"required\":[\"t\"]}", "\"o\""),
            OBJECT("\"o\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":2}},\"required\":[\"t\"]}", "\"o\"")),
        "{\"o\":{\"t\":1}}|{\"o\":{\"t\":2}}", "{\"o\":{\"t\":3}}|{\"o\":{}}");
    /* a discriminator is required in every schema */
    expect("{\"discriminator\":{\"propertyName\":\"t\"},\"oneOf\":[" OBJECT(
               "\"t\":{\"const\":\"a\",\"default\":\"a\"}", "") "," OBJECT("\"t\":{\"const\":\"b\"}", "") "]}",
           "{\"t\":\"a\"}|{\"t\":\"b\"}", "{}|{\"t\":\"c\"}");
    /* a schema that refers to itself */
    expect("{\"$defs\":{\"e\":{\"oneOf\":[{\"type\":\"integer\"}," OBJECT("\"l\":{\"$ref\":\"#/$defs/e\"}",
                                                                          "\"l\"") "]}},\"$ref\":\"#/$defs/e\"}",
           "1|{\"l\":1}|{\"l\":{\"l\":2}}", "{}|{\"l\":null}");
    /* beside other keywords */
    expect(
        "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"},\"v\":{}},\"required\":[\"k\"],\"oneOf\":[{\"properties\":{\"k\":"
        "{\"const\":\"n\"},\"v\":{\"type\":\"number\"}}},{\"properties\":{\"k\":{\"const\":\"s\"}},\"required\":[\"v\"]}]}",
        "{\"k\":\"n\"}|{\"k\":\"n\",\"v\":1}|{\"k\":\"s\",\"v\":null}",
        "{\"k\":\"s\"}|{\"k\":\"n\",\"v\":null}|{\"k\":\"x\"}");
}

static void many_patterns_in_one_string(void **state)
{
    (void)state;
    for (int n = 31; n <= 33; n += 2) {
        json_t *all = json_array(), *schema = json_pack("{s:s,s:o}", "type", "string", "allOf", all);
        for (int i = 0; i < n; i++)
            json_array_append_new(all, json_pack("{s:s}", "pattern", i % 2 ? "^a" : "b$"));
        if (n <= GR_MOST_PATTERNS) {
            struct gr_grammar *g = compile_json(schema);
            assert_true(takes(g, "\"a-b\"") && !takes(g, "\"a\""));
            gr_close(g);
        } else {
            expect_refusal(schema, KN_ELIMIT, "a string has more than 32 patterns");
        }
        json_decref(schema);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    const char *schema;
    int code;
    const char *part;
} refusals[] = {
    { "3", KN_EINVAL, "neither an object nor a boolean" },
    { "false", KN_EINVAL, "nothing satisfies" },
    { "{\"not\":{}}", KN_EUNSUPPORTED, "\"not\"" },
    { "{\"properties\":{\"a\":{\"items\":{\"uniqueItems\":true}}}}", KN_EUNSUPPORTED, "\"uniqueItems\"" },
    { "{\"if\":{}}", KN_EUNSUPPORTED, "\"if\"" },
    { "{\"patternProperties\":{\"a\":{}}}", KN_EUNSUPPORTED, "\"patternProperties\"" },
    { "{\"type\":\"integer\",\"multipleOf\":3}", KN_EUNSUPPORTED, "\"multipleOf\"" },
    { "{\"multipleOf\":0}", KN_EINVAL, "\"multipleOf\"" },
    { "{\"type\":\"number\",\"multipleOf\":0.01}", KN_EUNSUPPORTED, "\"multipleOf\"" },
    { ONE("{\"type\":\"integer\"}", "{\"type\":\"number\"}"), KN_EUNSUPPORTED, "schemas 1 and 2 of a \"oneOf\"" },
    { ONE("{\"enum\":[1,2]}", "{\"enum\":[2.0,3]}"), KN_EUNSUPPORTED, "\"oneOf\"" },
    { ONE("{\"type\":\"integer\",\"maximum\":2}", "{\"type\":\"number\",\"minimum\":2}"), KN_EUNSUPPORTED,
      "\"oneOf\"" },
    { ONE("{\"type\":\"string\",\"pattern\":\"^a\"}", "{\"type\":\"string\",\"pattern\":\"^b\"}"), KN_EUNSUPPORTED,
      "\"oneOf\"" },
    { ONE("{\"type\":\"null\"}", "{}"), KN_EUNSUPPORTED, "\"oneOf\"" },
    { ONE(OBJECT("\"t\":{\"const\":1}", ""), OBJECT("\"t\":{\"const\":2}", "")), KN_EUNSUPPORTED, "\"oneOf\"" },
    { ONE("{\"type\":\"array\",\"items\":{\"const\":1}}", "{\"type\":\"array\",\"items\":{\"const\":2}}"),
      KN_EUNSUPPORTED, "\"oneOf\"" },
    { "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
      KN_EUNSUPPORTED, "\"oneOf\"" },
    { "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}}}," /* merging makes both writable */
      ONE("{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"]}",
          "{\"type\":\"object\",\"properties\":{\"b\":{}},\"required\":[\"b\"]}") "]}",
      KN_EUNSUPPORTED, "\"oneOf\"" },
    { "{\"oneOf\":[]}", KN_EINVAL, "\"oneOf\"" },
    { "{\"type\":\"text\"}", KN_EINVAL, "\"type\"" },
    { "{\"type\":7}", KN_EINVAL, "\"type\"" },
    { "{\"minItems\":\"1\"}", KN_EINVAL, "\"minItems\"" },
    { "{\"minItems\":-1}", KN_EINVAL, "\"minItems\"" },
    { "{\"minItems\":1000000000}", KN_ELIMIT, "\"minItems\"" },
    { "{\"minLength\":1e9}", KN_ELIMIT, "\"minLength\"" },
    { "{\"required\":[1]}", KN_EINVAL, "\"required\"" },
    { "{\"anyOf\":[]}", KN_EINVAL, "\"anyOf\"" },
    { "{\"allOf\":1}", KN_EINVAL, "\"allOf\"" },
    { "{\"$ref\":\"other.json\"}", KN_EUNSUPPORTED, "within the schema" },
    { "{\"$ref\":\"#/$defs/x\\u000ay\"}", KN_EINVAL, "does not exist in the schema" },
    { "{\"$ref\":\"#\"}", KN_EINVAL, "nothing satisfies" },
    { "{\"$ref\":\"#\",\"type\":\"object\"}", KN_ELIMIT, "form a cycle" },
    { "{\"anyOf\":[{\"$ref\":\"#\"}]}", KN_EINVAL, "nothing satisfies" },
    { "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"],\"type\":\"object\"}", KN_EINVAL,
      "nothing satisfies" },
    { "{\"type\":\"string\",\"pattern\":\"(?=a)\"}", KN_EUNSUPPORTED, "pattern" },
    { "{\"type\":\"string\",\"pattern\":\"a\\\\1\"}", KN_EUNSUPPORTED, "escape" },
    { "{\"type\":\"string\",\"pattern\":\"a{2,1}\"}", KN_EINVAL, "maximum below its minimum" },
    { "{\"type\":\"string\",\"pattern\":\"[z-a]\"}", KN_EINVAL, "in descending order" },
    { "{\"type\":\"string\",\"pattern\":\"(a\"}", KN_EINVAL, "without its )" },
    { "{\"type\":\"string\",\"pattern\":\"a)\"}", KN_EINVAL, "without its (" },
    { "{\"type\":\"string\",\"pattern\":\"*\"}", KN_EINVAL, "nothing to repeat" },
    { "{\"type\":\"string\",\"pattern\":\"((((a{1000}){1000}){1000}){1000})\"}", KN_ELIMIT, "too large" },
    { "{\"type\":\"string\",\"pattern\":\"((((()){1000}){1000}){1000}){1000}\"}", KN_ELIMIT, "too large" },
    { "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){40}\"}", KN_ELIMIT, "too large" },
    { "{\"type\":\"string\",\"pattern\":\"^ab$\",\"minLength\":3}", KN_EINVAL, "nothing satisfies" },
    { "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", KN_EINVAL, "nothing satisfies" },
    { "{\"enum\":[1],\"minimum\":0}", KN_EUNSUPPORTED, "\"minimum\"" },
};

static void refusals_are_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        json_t *schema = json_loads(refusals[i].schema, JSON_DECODE_ANY, NULL);
        expect_refusal(schema, refusals[i].code, refusals[i].part);
        json_decref(schema);
    }
    static const char *const nul[] = { "{\"required\":[\"a\\u0000\"]}", "{\"pattern\":\"a\\u0000\"}",
                                       "{\"$ref\":\"#\\u0000\"}" };
    static const char *const part[] = { "\"required\"", "\"pattern\"", "within the schema" };
    for (int i = 0; i < 3; i++) {
        json_t *schema = json_loads(nul[i], JSON_ALLOW_NUL, NULL);
        expect_refusal(schema, i == 2 ? KN_EUNSUPPORTED : KN_EINVAL, part[i]);
        json_decref(schema);
    }
}

static void large_schemas_are_refused_or_taken(void **state)
{
    (void)state;
    json_t *deep = json_pack("{s:s}", "type", "null"), *wide = json_object(), *list = json_array();
    for (int i = 0; i < 10000; i++)
        deep = json_pack("{s:s,s:o}", "type", "array", "items", deep);
    struct gr_grammar *g = compile_json(deep); /* empty arrays need no depth */
    assert_true(takes(g, "[[[]]]"));
    gr_close(g);
    json_decref(deep);

    deep = json_pack("{s:s}", "type", "null");
    for (int i = 0; i < 10000; i++)
        deep = json_pack("{s:s,s:o,s:i}", "type", "array", "items", deep, "minItems", 1);
    expect_refusal(deep, KN_ELIMIT, "nested more than");
    json_decref(deep);

    deep = json_pack("{s:s}", "type", "null");
    for (int i = 0; i < 10000; i++)
        deep = json_pack("{s:[o]}", "allOf", deep);
    expect_refusal(deep, KN_ELIMIT, "too deep");
    json_decref(deep);

    for (int i = 0; i < 1000000; i++)
        json_array_append_new(list, json_integer(i));
    deep = json_pack("{s:o}", "enum", list);
    expect_refusal(deep, KN_ELIMIT, "too large");
    json_decref(deep);

    for (int i = 0; i < 500; i++) { /* none required: each may be next */
        char name[16];
        snprintf(name, sizeof name, "p%d", i * 7919 % 1000);
        json_object_set_new(wide, name, json_pack("{s:s}", "type", "integer"));
    }
    deep = json_pack("{s:s,s:o}", "type", "object", "properties", wide);
    g = compile_json(deep);
    assert_true(takes(g, "{\"p0\":1,\"p838\":2}"));
    gr_close(g);
    json_decref(deep);
}

/* ---- builders -------------------------------------------------------------------------------- */

/* Free text until <tool>, then one of two calls, then free text again. */
static struct gr_grammar *tool_calls(int32_t control)
{
    static const char *const name[] = { "add", "address" };
    struct gr_builder *b;
    struct gr_grammar *g;
    int32_t call[2], back;
    assert_int_equal(gr_builder_open(&b), 0);
    back = gr_forward(b);
    for (int i = 0; i < 2; i++) {
        char head[64];
        json_t *schema = json_pack("{s:s,s:{s:{s:s}},s:[s]}", "type", "object", "properties", "x", "type",
                                   i ? "string" : "integer", "required", "x");
        snprintf(head, sizeof head, "{\"name\": \"%s\", \"arguments\": ", name[i]);
        int32_t tail = gr_schema(b, schema, gr_literal(b, "}</tool>", 8, back));
        call[i] = gr_literal(b, head, strlen(head), tail);
        json_decref(schema);
    }
    struct gr_trigger t[] = { { "<tool>", 6, ENG_NO_TOKEN, gr_alternatives(b, call, 2) },
                              { "<to<tx", 6, ENG_NO_TOKEN, GR_END },
                              { NULL, 0, control, GR_END } };
    int32_t start = gr_free_until(b, t, control >= 0 ? 3 : 2, true);
    gr_set(b, back, start);
    assert_int_equal(gr_compile(&g, b, start, NULL), 0);
    gr_builder_close(b);
    return g;
}

static void tools_by_triggers(void **state)
{
    (void)state;
    struct gr_grammar *g = tool_calls(ENG_NO_TOKEN);
    struct gr_state s;
    char out[256];
    assert_true(takes(g, ""));
    assert_true(takes(g, "just text <to <tool {"));
    assert_false(takes(g, "text <tool>"));
    assert_false(takes(g, "text <to<tool>x"));
    assert_true(takes(g, "<tool>{\"name\": \"add\", \"arguments\": {\"x\":1}}</tool>"));
    assert_true(takes(g, "<to<tool>{\"name\": \"address\", \"arguments\": {\"x\": \"1\"}}</tool> more"));
    assert_false(takes(g, "<tool>{\"name\": \"add\", \"arguments\": {\"x\":\"1\"}}</tool>"));
    assert_true(takes(g, "<to<tx"));
    assert_false(takes(g, "<to<txx"));
    gr_start(g, &s);
    assert_true(feed(g, &s, "a<tool>{\"name\": \"addr", 21));
    size_t n = gr_finish(g, &s, out, sizeof out);
    assert_int_equal(n, strlen("ess\", \"arguments\": {\"x\":\"\"}}</tool>"));
    assert_memory_equal(out, "ess\", \"arguments\": {\"x\":\"\"}}</tool>", n);
    assert_int_equal(gr_finish(g, &s, out, 5), 6); /* longer than the buffer: more than 5 */
    assert_false(gr_must_end(g, &s));
    gr_close(g);

    g = compile("{\"type\":\"object\",\"properties\":{}}");
    gr_start(g, &s);
    assert_true(feed(g, &s, "{", 1) && !gr_must_end(g, &s) && feed(g, &s, "}", 1) && gr_must_end(g, &s));
    gr_close(g);
}

/* ---- masks ----------------------------------------------------------------------------------- */

static bool bit(const uint32_t *mask, int32_t i) { return mask[i >> 5] >> (i & 31) & 1; }

/* Random walks. In each step the mask bit of every token equals whether the token is accepted. */
static void expect_masks(const struct gr_grammar *g, const struct eng_vocab *v, struct gr_tokens *t, int n_walk,
                         int n_step)
{
    const int n_vocab = eng_vocab_size(v);
    struct gr_scratch *x;
    struct gr_state s, next;
    uint32_t *mask = calloc(spec_mask_words(n_vocab) + 1, sizeof *mask), *may = calloc((size_t)n_vocab, sizeof *may);
    assert_int_equal(gr_scratch_open(&x, t), 0);
    for (int w = 0; w < n_walk; w++) {
        gr_start(g, &s);
        for (int i = 0; i < n_step; i++) {
            size_t n = 0;
            mask[spec_mask_words(n_vocab)] = 0x12345678;
            gr_mask(g, &s, t, x, mask);
            assert_int_equal(mask[spec_mask_words(n_vocab)], 0x12345678);
            for (int32_t id = 0; id < n_vocab; id++) {
                gr_copy(&next, &s);
                if (gr_advance_token(g, &next, t, id) != bit(mask, id))
                    fail_msg("step %d: token %d is %s", i, id, bit(mask, id) ? "set" : "not set");
                if (bit(mask, id) && !eng_vocab_is_stop(v, id))
                    may[n++] = (uint32_t)id;
            }
            if (n == 0) {
                assert_true(gr_can_end(&s) && (g->tokens || gr_must_end(g, &s)));
                break;
            }
            assert_true(gr_advance_token(g, &s, t, (int32_t)may[random_bits() % n]));
        }
    }
    gr_scratch_close(x);
    free(mask);
    free(may);
}

static const char *const mask_schemas[] = {
    "true",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},\"n\":{"
    "\"type\":\"integer\"},"
    "\"t\":{\"enum\":[\"he\",\"hello\",1]}},\"required\":[\"name\"],\"additionalProperties\":{"
    "\"type\":\"string\"}}",
    "{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-z "
    "]*$\"},\"minItems\":3},"
    "{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"number\"]},\"maxItems\":2}]}",
};

static void masks_hold_what_may_come(void **state)
{
    (void)state;
    static struct recipe r;
    struct eng_vocab *v;
    struct gr_tokens *t;
    random_state = 3;
    for (int kind = 0; kind < 2; kind++) {
        (kind ? recipe_spm : recipe_bpe)(&r);
        recipe_token(&r, "\",\"", ENG_TOKEN_NORMAL, -9);
        recipe_token(&r, "\"],", ENG_TOKEN_NORMAL, -9);
        recipe_token(&r, "[[[[[[[[", ENG_TOKEN_NORMAL, -9);
        recipe_token(&r, "[[[[[[", ENG_TOKEN_NORMAL, -9);
        int32_t tool = recipe_token(&r, "<t>", ENG_TOKEN_CONTROL, 0);
        assert_int_equal(recipe_open(&r, &v), 0);
        assert_int_equal(gr_tokens_open(&t, v, 1), 0);
        for (size_t i = 0; i < sizeof mask_schemas / sizeof *mask_schemas; i++) {
            struct gr_grammar *g = compile(mask_schemas[i]);
            expect_masks(g, v, t, 20, 60);
            gr_close(g);
        }
        struct gr_grammar *g = tool_calls(tool);
        expect_masks(g, v, t, 20, 60);
        struct gr_state s;
        gr_start(g, &s);
        assert_true(gr_advance_token(g, &s, t, kind ? 1 : 262));          /* a control token in free text */
        assert_false(gr_advance_token(g, &s, t, kind ? 3 + 0xFF : 0xFF)); /* first byte of its internal form alone */
        assert_true(gr_can_end(&s) && feed(g, &s, "<to", 3));
        assert_true(gr_advance_token(g, &s, t, tool) && gr_must_end(g, &s));
        gr_close(g);
        gr_tokens_close(t);
        eng_vocab_close(v);
    }
}

struct sharing {
    const struct gr_grammar *g;
    const struct eng_vocab *v;
    struct gr_tokens *t;
    uint32_t hash;
};

/* Thread: a walk chosen by a hash of all its masks; the result is in a->hash. */
static void *share(void *arg)
{
    struct sharing *a = arg;
    const int n_vocab = eng_vocab_size(a->v);
    uint32_t *mask = calloc(spec_mask_words(n_vocab), sizeof *mask);
    struct gr_scratch *x;
    struct gr_state s;
    uint64_t h = 1;
    if (gr_scratch_open(&x, a->t))
        return NULL;
    for (int w = 0; w < 6; w++) {
        gr_start(a->g, &s);
        for (int i = 0; i < 40; i++) {
            gr_mask(a->g, &s, a->t, x, mask);
            for (size_t k = 0; k < spec_mask_words(n_vocab); k++)
                h = kn_mix(h ^ mask[k]) + KN_GOLDEN;
            int32_t id = (int32_t)(h % (uint64_t)n_vocab), n = n_vocab;
            while (n-- > 0 && (!bit(mask, id) || eng_vocab_is_stop(a->v, id)))
                id = (id + 1) % n_vocab;
            if (n < 0)
                break;
            gr_advance_token(a->g, &s, a->t, id);
        }
    }
    gr_scratch_close(x);
    free(mask);
    a->hash = (uint32_t)h;
    return NULL;
}

/* GPT-2's 50,257 tokens with cached masks, with evicted masks, and in two threads at once. */
static void masks_of_a_real_vocabulary(void **state)
{
    (void)state;
    struct moe_file *file;
    struct eng_vocab *v;
    struct gr_tokens *t;
    uint32_t hash[2];
    assert_int_equal(moe_file_open(&file, "tests/engine/data/gpt-2.gguf"), 0);
    assert_int_equal(eng_vocab_open(&v, file), 0);
    moe_file_close(file);
    random_state = 4;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(gr_tokens_open(&t, v, round ? (size_t)32 << 20 : 1), 0);
        struct gr_grammar *g = compile(mask_schemas[1]);
        expect_masks(g, v, t, 2, 12);
        pthread_t thread[2];
        struct sharing a[2] = { { g, v, t, 0 }, { g, v, t, 1 } };
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, share, &a[i]), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(thread[i], NULL);
        assert_int_equal(a[0].hash, a[1].hash);
        hash[round] = a[0].hash;
        gr_close(g);
        gr_tokens_close(t);
    }
    assert_int_equal(hash[0], hash[1]); /* equal with and without a cache */
    eng_vocab_close(v);
}

/* Nested free text: a state with many next tokens, in which "[[" opens two more frames. */
static void kept_masks_end_at_the_depth_limit(void **state)
{
    (void)state;
    struct moe_file *file;
    struct eng_vocab *v;
    struct gr_tokens *t;
    struct gr_builder *b;
    struct gr_grammar *g;
    struct gr_scratch *x;
    struct gr_state s, next;
    int n_refused = 0;
    assert_int_equal(moe_file_open(&file, "tests/engine/data/gpt-2.gguf"), 0);
    assert_int_equal(eng_vocab_open(&v, file), 0);
    moe_file_close(file);
    assert_int_equal(gr_tokens_open(&t, v, 1), 0);
    assert_int_equal(gr_scratch_open(&x, t), 0);
    assert_int_equal(gr_builder_open(&b), 0);
    int32_t rule = gr_forward(b), back = gr_forward(b);
    struct gr_trigger trigger[] = { { "[", 1, ENG_NO_TOKEN, gr_call(b, rule, back) },
                                    { "]", 1, ENG_NO_TOKEN, GR_END } };
    gr_set(b, rule, gr_free_until(b, trigger, 2, false));
    gr_set(b, back, rule);
    assert_int_equal(gr_compile(&g, b, rule, NULL), 0);
    gr_builder_close(b);
    uint32_t *mask = calloc(spec_mask_words(eng_vocab_size(v)), sizeof *mask);
    gr_start(g, &s);
    for (int depth = 1; gr_advance(g, &s, '['); depth++) {
        if (depth > 2 && depth < GR_DEPTH - 3)
            continue;
        gr_mask(g, &s, t, x, mask);
        for (int32_t id = 0; id < eng_vocab_size(v); id++) {
            gr_copy(&next, &s);
            bool may = gr_advance_token(g, &next, t, id);
            n_refused += !may && !eng_vocab_is_stop(v, id);
            if (may != bit(mask, id))
                fail_msg("depth %d: token %d is %s", depth, id, may ? "not set" : "set");
        }
    }
    assert_in_range(n_refused, 1, 1000); /* "[[" at the depth limit */
    free(mask);
    gr_close(g);
    gr_scratch_close(x);
    gr_tokens_close(t);
    eng_vocab_close(v);
}

/* ---- bytes without a token ------------------------------------------------------------------- */

/* A vocabulary like recipe_bpe's in which the bytes of `missing` are no tokens, with further tokens more[n_more]. */
static struct gr_tokens *open_lacking(struct eng_vocab **v, const char *missing, const char *const *more, int n_more)
{
    static struct recipe r;
    static char letter[8][64];
    struct gr_tokens *t;
    recipe_bpe(&r);
    for (; *missing; missing++)
        r.type[(uint8_t)*missing] = ENG_TOKEN_UNUSED;
    for (int i = 0; i < n_more; i++) {
        *letter[i] = 0;
        for (const char *p = more[i]; *p; p++)
            strcat(letter[i], letters.of_byte[(uint8_t)*p]);
        recipe_token(&r, letter[i], ENG_TOKEN_NORMAL, 0);
    }
    assert_int_equal(recipe_open(&r, v), 0);
    assert_int_equal(gr_tokens_open(&t, *v, 1), 0);
    return t;
}

/* Compiles a schema for the tokens; returns the code, and the reason in why. */
static int compile_for(struct gr_grammar **g, const char *text, const struct gr_tokens *t, char why[256])
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    struct gr_builder *b;
    assert_non_null(schema);
    assert_int_equal(gr_builder_open(&b), 0);
    int e = gr_compile(g, b, gr_schema(b, schema, GR_END), t);
    snprintf(why, 256, "%s", gr_builder_why(b));
    gr_builder_close(b);
    json_decref(schema);
    return e;
}

static const char *const lacking_schemas[] = {
    "true",
    "{\"type\":\"string\",\"minLength\":3}",
    "{\"type\":\"string\",\"pattern\":\"^[^a-z]{2,4}$\"}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"\\u00e9\",\"\\u00e8!\"]}}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"\\u00e9\":{\"type\":\"null\"}},\"required\":[\"a\"]}",
    "{\"anyOf\":[{\"const\":\"\\u00e9\"},{\"const\":\"\\u20ac\"},{\"const\":1}]}",
};

/* 0xF1 and 0xF2 begin code points of unassigned planes; 0xA9 continues many; all continuation bytes; a lead byte, a
 * quotation mark's escape and letters. */
static const char *const lacking_bytes[] = {
    "\xf1\xf2",
    "\xa9",
    "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f"
    "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4\xb5\xb6\xb7\xb8\xb9\xba\xbb\xbc\xbd\xbe\xbf",
    "\xc3\\uh",
};

/* Random walks: each allowed token leads to a state in which the text may end or a token is allowed. */
static void no_vocabulary_leads_to_a_dead_end(void **state)
{
    (void)state;
    static const char *const more[] = { "\xc3\xa9", "\xc3\xa8!\"", "\x82\xac" };
    struct eng_vocab *v;
    char why[256];
    random_state = 5;
    for (size_t i = 0; i < sizeof lacking_bytes / sizeof *lacking_bytes; i++)
        for (int n_more = 0; n_more < 4; n_more += 3) {
            struct gr_tokens *t = open_lacking(&v, lacking_bytes[i], more, n_more);
            for (size_t k = 0; k < sizeof lacking_schemas / sizeof *lacking_schemas; k++) {
                struct gr_grammar *g;
                assert_int_equal(compile_for(&g, lacking_schemas[k], t, why), 0);
                expect_masks(g, v, t, 20, 40);
                gr_close(g);
            }
            gr_tokens_close(t);
            eng_vocab_close(v);
        }
}

/* GPT-2's vocabulary without tokens that begin with a continuation byte: masks that are cached, with tokens that begin a
 * character and end in its middle. */
static void cached_masks_end_in_whole_tokens(void **state)
{
    (void)state;
    struct moe_file *file;
    struct eng_vocab *v;
    struct gr_tokens *t;
    struct gr_grammar *g;
    char why[256];
    assert_int_equal(moe_file_open(&file, "tests/engine/data/gpt-2.gguf"), 0);
    assert_int_equal(eng_vocab_open(&v, file), 0);
    moe_file_close(file);
    for (int32_t id = 0; id < eng_vocab_size(v); id++)
        if (v->text[id].n > 0 && ((uint8_t)*v->text[id].data & 0xc0) == 0x80)
            v->type[id] = ENG_TOKEN_UNUSED;
    assert_int_equal(gr_tokens_open(&t, v, 1), 0);
    random_state = 6;
    for (size_t i = 0; i < sizeof mask_schemas / sizeof *mask_schemas; i++) {
        assert_int_equal(compile_for(&g, mask_schemas[i], t, why), 0);
        assert_false(g->is_exact);
        expect_masks(g, v, t, 1, 8);
        gr_close(g);
    }
    gr_tokens_close(t);
    eng_vocab_close(v);
}

/* Is the token allowed after the text? */
static bool allows(const char *schema, struct gr_tokens *t, const char *text, int32_t token)
{
    struct gr_grammar *g;
    struct gr_state s;
    char why[256];
    assert_int_equal(compile_for(&g, schema, t, why), 0);
    gr_start(g, &s);
    assert_true(feed(g, &s, text, strlen(text)));
    bool allowed = gr_advance_token(g, &s, t, token);
    gr_close(g);
    return allowed;
}

static void a_character_is_begun_if_tokens_end_it(void **state)
{
    (void)state;
    static const char *const more[] = { "\xc3\xa9" };
    static const char e_acute[] = "{\"enum\":[\"\\u00e9\",\"x\"]}", any[] = "{\"type\":\"string\"}";
    struct eng_vocab *v;
    struct gr_tokens *t = open_lacking(&v, "\xf1", NULL, 0);
    assert_true(allows(any, t, "\"", 0xc3) && allows(any, t, "\"", 0xf0) && allows(any, t, "\"", 0xf3));
    assert_false(allows(any, t, "\"", 0xf1));
    gr_tokens_close(t);
    eng_vocab_close(v);

    t = open_lacking(&v, "\xa9", more, 0);
    assert_true(allows(any, t, "\"", 0xc3)); /* then another byte than 0xA9 */
    assert_false(allows(e_acute, t, "\"", 0xc3));
    assert_true(allows(e_acute, t, "\"", 'x'));
    gr_tokens_close(t);
    eng_vocab_close(v);

    t = open_lacking(&v, "\xa9", more, 1);
    int32_t whole = eng_vocab_size(v) - 1;
    assert_false(allows(e_acute, t, "\"", 0xc3)); /* no token begins with 0xA9 */
    assert_true(allows(e_acute, t, "\"", whole) && allows(any, t, "\"", whole));
    gr_tokens_close(t);
    eng_vocab_close(v);

    t = open_lacking(&v, lacking_bytes[2], more, 1);
    assert_false(allows(any, t, "\"", 0xc3));
    assert_true(allows(any, t, "\"", eng_vocab_size(v) - 1));
    gr_tokens_close(t);
    eng_vocab_close(v);
}

static void calls_and_control_tokens_are_ways(void **state)
{
    (void)state;
    struct eng_vocab *v;
    struct gr_tokens *t = open_lacking(&v, "\xa9", NULL, 0);
    struct gr_builder *b;
    struct gr_grammar *g;
    struct gr_state s;
    assert_int_equal(gr_builder_open(&b), 0);
    /* a call of a rule for "ab", followed by a text that no tokens write; or "cd" */
    int32_t called = gr_call(b, gr_literal(b, "ab", 2, GR_END), gr_literal(b, "\xc3\xa9", 2, GR_END));
    assert_int_equal(gr_compile(&g, b, gr_either(b, called, gr_literal(b, "cd", 2, GR_END)), t), 0);
    gr_start(g, &s);
    assert_false(gr_advance_token(g, &s, t, 'a'));
    assert_true(gr_advance_token(g, &s, t, 'c'));
    gr_close(g);
    /* token 262 is a control token, 263 a control token that ends texts */
    assert_int_equal(gr_compile(&g, b, gr_literal(b, "a", 1, gr_control(b, 262, gr_literal(b, "b", 1, GR_END))), t), 0);
    gr_start(g, &s);
    assert_true(gr_advance_token(g, &s, t, 'a') && gr_advance_token(g, &s, t, 262) && gr_advance_token(g, &s, t, 'b'));
    gr_close(g);
    assert_int_equal(gr_compile(&g, b, gr_control(b, 263, gr_literal(b, "b", 1, GR_END)), t), KN_EUNSUPPORTED);
    gr_builder_close(b);
    gr_tokens_close(t);
    eng_vocab_close(v);
}

static void what_no_tokens_write_is_refused(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "{\"const\":\"\\u00e9\"}",
        "{\"type\":\"object\",\"properties\":{\"\\u00e9\":{}},\"required\":[\"\\u00e9\"]}",
        "{\"type\":\"array\",\"items\":{\"const\":\"\\u00e9\"},\"minItems\":1}",
        "{\"type\":\"array\",\"items\":{\"const\":\"\\u00e9\"},\"minItems\":3}",
        "{\"type\":\"string\",\"pattern\":\"^a\\u00e9*\\u00e9$\"}",
    };
    static const char *const more[] = { "\xc3\xa9\"", "a\xc3\xa9" };
    struct eng_vocab *v;
    struct gr_grammar *g;
    char why[256];
    struct gr_tokens *t = open_lacking(&v, "\xa9", NULL, 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(compile_for(&g, refused[i], t, why), KN_EUNSUPPORTED);
        assert_string_equal(why,
                            "this model's vocabulary has no tokens for a text that the schema requires (byte 0xa9)");
    }
    assert_int_equal(compile_for(&g, "{\"type\":\"array\",\"items\":{\"const\":\"\\u00e9\"}}", t, why), 0);
    expect_masks(g, v, t, 4, 9); /* only the empty array */
    gr_close(g);

    /* a repetition that no tokens write, needed twice before its end */
    struct gr_builder *b;
    assert_int_equal(gr_builder_open(&b), 0);
    int32_t loop = gr_forward(b);
    gr_set(b, loop,
           gr_either(b, gr_count(b, 2, GR_NO_LIMIT, gr_literal(b, "\xc3\xa9", 2, loop)),
                     gr_at_least(b, 2, gr_literal(b, ".", 1, GR_END))));
    assert_int_equal(gr_compile(&g, b, gr_literal(b, ":", 1, loop), t), KN_EUNSUPPORTED);
    gr_builder_close(b);
    gr_tokens_close(t);
    eng_vocab_close(v);

    t = open_lacking(&v, "\xa9", more, 2);
    for (size_t i = 0; i < 2; i++) {
        int e = compile_for(&g, refused[i], t, why);
        if (e)
            fail_msg("%s: %s", refused[i], why);
        expect_masks(g, v, t, 4, 20);
        gr_close(g);
    }
    gr_tokens_close(t);
    eng_vocab_close(v);
}

static void nothing_stays_when_memory_ends(void **state)
{
    (void)state;
    static struct recipe r;
    struct eng_vocab *v;
    json_t *schema = json_loads(mask_schemas[2], 0, NULL);
    int e = KN_ENOMEM;
    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    for (long n = 1; e; n++) {
        struct gr_builder *b = NULL;
        struct gr_grammar *g = NULL;
        struct gr_tokens *t = NULL;
        struct gr_scratch *x = NULL;
        faults_reset();
        faults_at(FAULT_ALLOC, n, FAULT_ERROR, ENOMEM);
        e = gr_builder_open(&b);
        e = e ? e : gr_compile(&g, b, gr_schema(b, schema, GR_END), NULL);
        e = e ? e : gr_tokens_open(&t, v, 1);
        e = e ? e : gr_scratch_open(&x, t);
        assert_true(e == 0 || e == KN_ENOMEM);
        gr_scratch_close(x);
        gr_tokens_close(t);
        gr_close(g);
        gr_builder_close(b);
        assert_true(faults_clean());
        assert_true(n < 10000);
    }
    faults_off();
    json_decref(schema);
    eng_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_instances_are_told_apart),
        cmocka_unit_test(keywords_by_hand),
        cmocka_unit_test(multiples_of_one_are_whole),
        cmocka_unit_test(fixed_values_hold_u0000),
        cmocka_unit_test(one_of_disjoint_schemas),
        cmocka_unit_test(many_patterns_in_one_string),
        cmocka_unit_test(deep_values_end_in_time),
        cmocka_unit_test(refusals_are_one_line),
        cmocka_unit_test(large_schemas_are_refused_or_taken),
        cmocka_unit_test(tools_by_triggers),
        cmocka_unit_test(masks_hold_what_may_come),
        cmocka_unit_test(masks_of_a_real_vocabulary),
        cmocka_unit_test(kept_masks_end_at_the_depth_limit),
        cmocka_unit_test(no_vocabulary_leads_to_a_dead_end),
        cmocka_unit_test(cached_masks_end_in_whole_tokens),
        cmocka_unit_test(a_character_is_begun_if_tokens_end_it),
        cmocka_unit_test(calls_and_control_tokens_are_ways),
        cmocka_unit_test(what_no_tokens_write_is_refused),
        cmocka_unit_test(nothing_stays_when_memory_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
