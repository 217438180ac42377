/* Grammars (engine/text/grammar): a completion for every prefix, token masks compared with the acceptance of each single
 * token, and vocabularies without tokens for some bytes.
 *
 * tests/engine/data/schemas.jsonl has random schemas with instances that an independent validator classified as valid
 * or invalid (evals/grammar.py, which also checks random texts of the grammars with that validator).
 *
 * One thread: not under MODE=tsan. */
#include <pthread.h>

#include "engine/text/grammar/automaton.h"
#include "speculative/speculative.h"
#include "tests/engine/text/recipe.h"
#include "tests/engine/text/schemas.h"
#include "tests/faults.h"

enum { MOST_TEXT = 1 << 18 };

static uint64_t random_state;
static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }

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
                if (accepts(g, json_string_value(json_array_get(texts, i))) != want)
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
    assert_true(accepts(g, ""));
    assert_true(accepts(g, "just text <to <tool {"));
    assert_false(accepts(g, "text <tool>"));
    assert_false(accepts(g, "text <to<tool>x"));
    assert_true(accepts(g, "<tool>{\"name\": \"add\", \"arguments\": {\"x\":1}}</tool>"));
    assert_true(accepts(g, "<to<tool>{\"name\": \"address\", \"arguments\": {\"x\": \"1\"}}</tool> more"));
    assert_false(accepts(g, "<tool>{\"name\": \"add\", \"arguments\": {\"x\":\"1\"}}</tool>"));
    assert_true(accepts(g, "<to<tx"));
    assert_false(accepts(g, "<to<txx"));
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
        cmocka_unit_test(deep_values_end_in_time),
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
