/* JSON schemas as grammars (engine/text/grammar/schema.c and the files that it uses): accepted and refused texts of each
 * keyword, and refused schemas.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/text/schemas.h"

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
    expect("{\"enum\":[1,2],\"const\":2}", "2", "1");
    expect("{\"type\":\"integer\",\"enum\":[1,\"1\",2.5,3.0]}", "1|3", "\"1\"|2.5|3.0");
    expect("{\"type\":\"string\",\"format\":\"email\"}",
           "\"a.b@example.com\"|\"x@a.b.c.de\"|\"abcdefghijklmnopqrstuvwxyz012345@a-b.org\"",
           "\"a@b\"|\"@b.de\"|\"abcdefghijklmnopqrstuvwxyz0123456@b.de\"|\"a.b.c.d@b.de\"");
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
    assert_true(accepts(g, "\"a\\u0000b\"") && accepts(g, "\"a\"") && accepts(g, "{\"k\":[\"\\u0000\"]}"));
    assert_false(accepts(g, "\"a\\u0000\"") || accepts(g, "{\"k\":[\"\"]}"));
    gr_close(g);
    json_decref(schema);
    schema = json_loads("{\"properties\":{\"x\":{\"const\":\"\\u0000z\"}},\"required\":[\"x\"],\"type\":\"object\"}",
                        JSON_ALLOW_NUL, NULL);
    g = compile_json(schema);
    assert_true(accepts(g, "{\"x\":\"\\u0000z\"}"));
    assert_false(accepts(g, "{\"x\":\"\"}"));
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
            assert_true(accepts(g, "\"a-b\"") && !accepts(g, "\"a\""));
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
    /* the texts of the second conform to the first, not the other way round */
    { ONE("{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"]}",
          "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\",\"b\"]}"),
      KN_EUNSUPPORTED, "\"oneOf\"" },
    { "{\"enum\":[1,2],\"const\":3}", KN_EINVAL, "nothing satisfies" },
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
    assert_true(accepts(g, "[[[]]]"));
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
    assert_true(accepts(g, "{\"p0\":1,\"p838\":2}"));
    gr_close(g);
    json_decref(deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keywords_by_hand),
        cmocka_unit_test(multiples_of_one_are_whole),
        cmocka_unit_test(fixed_values_hold_u0000),
        cmocka_unit_test(one_of_disjoint_schemas),
        cmocka_unit_test(many_patterns_in_one_string),
        cmocka_unit_test(refusals_are_one_line),
        cmocka_unit_test(large_schemas_are_refused_or_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
