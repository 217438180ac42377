/* tests/engine/text/schemas.h - grammars of JSON schemas, and the texts that they accept. */
#ifndef TESTS_ENGINE_TEXT_SCHEMAS_H
#define TESTS_ENGINE_TEXT_SCHEMAS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/grammar/automaton.h"
#include "tests/engine/text/accepts.h"

static inline struct gr_grammar *compile_json(const json_t *schema)
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

static inline struct gr_grammar *compile(const char *text)
{
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    struct gr_grammar *g = compile_json(schema);
    json_decref(schema);
    return g;
}

static inline void expect(const char *schema, const char *valid, const char *invalid)
{
    struct gr_grammar *g = compile(schema);
    char text[4096], *rest;
    for (int want = 0; want < 2; want++) {
        snprintf(text, sizeof text, "%s", want ? valid : invalid);
        for (char *t = strtok_r(text, "|", &rest); t; t = strtok_r(NULL, "|", &rest))
            if (accepts(g, t) != want)
                fail_msg("%s is %s by %s", t, want ? "refused" : "taken", schema);
    }
    gr_close(g);
}

static inline void expect_refusal(const json_t *schema, int code, const char *part)
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

#endif
