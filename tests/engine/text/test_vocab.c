/* Vocabularies of GGUF files: accepted and refused files, failing allocations, tokens with a role (BOS, EOS, stop
 * tokens), and special tokens in text.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/text/recipe.h"

static const unsigned both = ENG_TEXT_ADD_BOS | ENG_TEXT_PARSE_SPECIAL;

static struct recipe r;
static char said[1024]; /* the last line of log */

static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static char long_text[5000];

static void no_model(void) { r.model = NULL; }
static void bad_model(void) { r.model = "bert"; }
static void bad_pre(void) { r.pre = "gpt-5-maybe"; }
static void no_tokens(void) { r.n_token = 0; }
static void short_types(void) { r.n_type--; }
static void no_merges(void) { r.n_merge = 0; }
static void bad_type(void) { r.type[5] = 7; }
static void minus_type(void) { r.type[5] = -1; }
static void empty_token(void) { r.token[7].n = 0; }
static void twice(void) { r.token[8] = r.token[9]; }
static void not_utf8(void) { r.token[10] = (struct moe_string){ .data = "\xC3\x28", .n = 2 }; }
static void surrogate(void) { r.token[10] = (struct moe_string){ .data = "\xED\xA0\x80", .n = 3 }; }
static void half_utf8(void) { r.token[10] = (struct moe_string){ .data = "\xE2\x96", .n = 2 }; }
static void merge_left(void) { recipe_merge(&r, "whol e"); }
static void merge_right(void) { recipe_merge(&r, "w hole"); }
static void merge_joint(void) { recipe_merge(&r, "x y"); }
static void merge_one(void) { recipe_merge(&r, "xy"); }
static void merge_late(void) { recipe_merge(&r, "h e"); }
static void merge_lost(void) { r.n_merge--; }
static void merge_empty(void) { recipe_merge(&r, ""); }
static void merge_space(void) { recipe_merge(&r, " "); }
static void merge_no_right(void) { recipe_merge(&r, "x "); }
static void bos_out(void) { recipe_scalar(&r, KEY "bos_token_id", (int64_t)r.n_token); }
static void eot_out(void) { recipe_scalar(&r, KEY "eot_token_id", 1 << 30); }
static void sep(void) { recipe_scalar(&r, KEY "add_sep_token", 1); }
static void squeeze(void) { recipe_scalar(&r, KEY "remove_extra_whitespaces", 1); }
static void no_scores(void) { r.n_score = 0; }
static void short_scores(void) { r.n_score--; }
static void nan_score(void) { r.score[3] = 0.0f / 0.0f; }
static void bad_byte(void) { r.token[4].data = "<0xZZ>"; }

static void long_token(void)
{
    memset(long_text, 'x', sizeof long_text);
    r.token[11] = (struct moe_string){ .data = long_text, .n = sizeof long_text };
}

static void long_merge(void)
{
    memset(long_text, 'x', sizeof long_text);
    long_text[2500] = ' ';
    r.merge[0] = (struct moe_string){ .data = long_text, .n = sizeof long_text };
}

static void bos_without(void)
{
    recipe_scalar(&r, KEY "add_bos_token", 1);
    recipe_scalar(&r, KEY "bos_token_id", UINT32_MAX);
}

static void eos_without(void)
{
    recipe_scalar(&r, KEY "add_eos_token", 1);
    recipe_scalar(&r, KEY "eos_token_id", UINT32_MAX);
}

static const struct {
    void (*base)(struct recipe *);
    void (*spoil)(void);
    int code;
    const char *line; /* after "<file>: tokenizer.ggml." */
} refusals[] = {
    { recipe_bpe, no_model, KN_ECORRUPT, "model: missing" },
    { recipe_bpe, bad_model, KN_EUNSUPPORTED, "model: tokenizer 'bert' is not supported" },
    { recipe_bpe, bad_pre, KN_EUNSUPPORTED, "pre: pre-tokeniser 'gpt-5-maybe' is not supported" },
    { recipe_bpe, no_tokens, KN_ECORRUPT, "tokens: missing" },
    { recipe_bpe, short_types, KN_ECORRUPT, "token_type: 266 entries for 267 tokens" },
    { recipe_bpe, no_merges, KN_ECORRUPT, "merges: missing" },
    { recipe_bpe, bad_type, KN_ECORRUPT, "token_type: token 5 has type 7" },
    { recipe_bpe, minus_type, KN_ECORRUPT, "token_type: token 5 has type -1" },
    { recipe_bpe, empty_token, KN_ECORRUPT, "tokens: token 7 is empty" },
    { recipe_bpe, twice, KN_ECORRUPT, "tokens: token 9 is a duplicate" },
    { recipe_bpe, not_utf8, KN_ECORRUPT, "tokens: token 10 is not UTF-8" },
    { recipe_bpe, surrogate, KN_ECORRUPT, "tokens: token 10 is not UTF-8" },
    { recipe_bpe, half_utf8, KN_ECORRUPT, "tokens: token 10 is not UTF-8" },
    { recipe_bpe, long_token, KN_ECORRUPT, "tokens: token 11 has 5000 bytes, more than 4096" },
    { recipe_bpe, merge_left, KN_ECORRUPT, "merges: merge 5, 'whol e', does not join two tokens" },
    { recipe_bpe, merge_right, KN_ECORRUPT, "merges: merge 5, 'w hole', does not join two tokens" },
    { recipe_bpe, merge_joint, KN_ECORRUPT, "merges: merge 5, 'x y', does not join two tokens" },
    { recipe_bpe, merge_one, KN_ECORRUPT, "merges: merge 5, 'xy', does not join two tokens" },
    { recipe_bpe, merge_empty, KN_ECORRUPT, "merges: merge 5, '', does not join two tokens" },
    { recipe_bpe, merge_space, KN_ECORRUPT, "merges: merge 5, ' ', does not join two tokens" },
    { recipe_bpe, merge_no_right, KN_ECORRUPT, "merges: merge 5, 'x ', does not join two tokens" },
    { recipe_bpe, long_merge, KN_ECORRUPT, "merges: merge 0, 'xxx" },
    { recipe_bpe, bos_out, KN_ECORRUPT, "bos_token_id: 267 is not an id of the 267 tokens" },
    { recipe_bpe, eot_out, KN_ECORRUPT, "eot_token_id: 1073741824 is not an id of the 267 tokens" },
    { recipe_bpe, bos_without, KN_ECORRUPT, "add_bos_token: true without a bos token" },
    { recipe_bpe, eos_without, KN_ECORRUPT, "add_eos_token: true without an eos token" },
    { recipe_bpe, sep, KN_EUNSUPPORTED, "add_sep_token: true is not supported" },
    { recipe_spm, no_scores, KN_ECORRUPT, "scores: missing" },
    { recipe_spm, short_scores, KN_ECORRUPT, "scores: 270 entries for 271 tokens" },
    { recipe_spm, nan_score, KN_ECORRUPT, "scores: token 3 has no number" },
    { recipe_spm, bad_byte, KN_ECORRUPT, "tokens: byte token 4 is not <0x00> to <0xFF>" },
    { recipe_spm, squeeze, KN_EUNSUPPORTED, "remove_extra_whitespaces: true is not supported" },
    { recipe_gemma4, no_merges, KN_ECORRUPT, "merges: missing" },
    { recipe_gemma4, merge_left, KN_ECORRUPT, "merges: merge 6, 'whol e', does not join two tokens" },
    { recipe_gemma4, merge_late, KN_EUNSUPPORTED, "merges: merge 6 is not in the order of the tokens" },
    { recipe_gemma4, merge_lost, KN_EUNSUPPORTED, "merges: 5 merges, but 6 pairs of tokens join to a token" },
};

static void spoilt_files_are_refused_with_their_field(void **state)
{
    (void)state;
    kn_log_set(keep_line, KN_LOG_INFO);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct eng_vocab *v = NULL;
        const char *field;

        refusals[i].base(&r);
        refusals[i].spoil();
        said[0] = 0;
        assert_int_equal(recipe_open(&r, &v), refusals[i].code);
        assert_null(v);
        field = strstr(said, ": " KEY);
        if (!field || strncmp(field + 17, refusals[i].line, strlen(refusals[i].line)))
            fail_msg("said '%s', not '%s'", said, refusals[i].line);
        assert_int_equal(strncmp(said, "/tmp/spillway-vocab-", 20), 0);
        assert_null(strchr(said, '\n'));
    }
    kn_log_set(NULL, KN_LOG_INFO);
}

static void arrays_of_another_kind_are_refused(void **state)
{
    (void)state;
    static const char *const keys[] = { KEY "tokens", KEY "token_type", KEY "merges", KEY "scores" };
    static const char *const kinds[] = { "strings", "integers", "strings", "floats" };

    kn_log_set(keep_line, KN_LOG_INFO);
    for (int i = 0; i < 8; i++) {
        struct eng_vocab *v = NULL;
        char want[64];

        (i / 2 == 3 ? recipe_spm : recipe_bpe)(&r);
        r.other = keys[i / 2];
        r.other_scalar = i % 2;
        snprintf(want, sizeof want, "%s: not an array%s%s", r.other, i % 2 ? "" : " of ", i % 2 ? "" : kinds[i / 2]);
        assert_int_equal(recipe_open(&r, &v), KN_ECORRUPT);
        assert_non_null(strstr(said, want));
    }
    kn_log_set(NULL, KN_LOG_INFO);
}

static void unused_tokens_may_be_empty_and_none_is_an_id(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_bpe(&r);
    recipe_token(&r, "", ENG_TOKEN_UNUSED, 0);
    recipe_token(&r, "", ENG_TOKEN_UNUSED, 0);
    recipe_scalar(&r, KEY "padding_token_id", UINT32_MAX);
    r.pre = NULL; /* as in older files: the default */
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_int_equal(eng_vocab_size(v), 269);
    assert_int_equal(eng_vocab_pad(v), ENG_NO_TOKEN);
    assert_int_equal(eng_vocab_text(v, 268).n, 0);
    expect_ids(v, "hello", 0, "259");
    eng_vocab_close(v);
    eng_vocab_close(NULL);
}

/* ---- the n-th allocation fails, for all n ---------------------------------------------------- */

static int allowed;

static void *alloc_some(size_t bytes) { return allowed-- > 0 ? malloc(bytes) : NULL; }

static void opening_and_tokenizing_survive_every_failed_allocation(void **state)
{
    (void)state;
    struct kn_io io = kn_io_system;
    const char text[] = "hello <u> hello\xFF whole <s>";

    io.alloc = alloc_some;
    kn_log_set(keep_line, KN_LOG_INFO);
    for (int kind = 0; kind < 2; kind++) {
        char path[64];
        int err = KN_ENOMEM;

        (kind ? recipe_spm : recipe_bpe)(&r);
        snprintf(path, sizeof path, "/tmp/spillway-vocab-%d.gguf", (int)getpid());
        recipe_write(&r, path);
        kn_io_set(&io);
        for (int n = 0; err; n++) {
            struct eng_vocab *v = NULL;
            struct eng_ids ids = { 0 };

            assert_true(n < 1000);
            allowed = n;
            err = vocab_from(&v, path);
            if (!err)
                err = eng_tokenize(v, text, sizeof text - 1, both, &ids);
            assert_true(err == 0 || err == KN_ENOMEM);
            assert_true(err == 0 || ids.n == 0);
            eng_ids_free(&ids);
            eng_vocab_close(v);
        }
        kn_io_set(NULL);
        unlink(path);
    }
    kn_log_set(NULL, KN_LOG_INFO);
}

/* ---- roles ----------------------------------------------------------------------------------- */

static void bos_and_eos_stand_where_the_file_asks(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_false(eng_vocab_adds_bos(v));
    expect_ids(v, "hello", both, "259");
    eng_vocab_close(v);
    r.pre = "llama-bpe"; /* adds BOS by default */
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "hello", both, "262 259");
    expect_ids(v, "hello", 0, "259");
    expect_ids(v, "", both, "262");
    eng_vocab_close(v);
    recipe_scalar(&r, KEY "add_bos_token", 0);
    recipe_scalar(&r, KEY "add_eos_token", 1);
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "hello", both, "259 263");
    eng_vocab_close(v);
    recipe_spm(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_int_equal(eng_vocab_bos(v), 1); /* default of SentencePiece */
    assert_int_equal(eng_vocab_eos(v), 2);
    expect_ids(v, "hell", both, "1 268");
    eng_vocab_close(v);
}

static void special_text_is_parsed_only_when_asked(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "<s>hello<s>", ENG_TEXT_PARSE_SPECIAL, "262 259 262");
    expect_ids(v, "<s>hello", 0, "60 115 62 259");
    expect_ids(v, "<u>hello<u>v", 0, "264 259 265"); /* USER tokens always match, the longest first */
    expect_ids(v, "<u>vw", 0, "265 119");            /* the longer match is CONTROL, so text */
    expect_ids(v, "<u>vw", ENG_TEXT_PARSE_SPECIAL, "266");
    expect_ids(v, "<u><u", ENG_TEXT_PARSE_SPECIAL, "264 60 117");
    expect_ids(v, "<<u>", 0, "60 264");
    assert_int_equal(eng_vocab_find_special(v, "<s>", 3), 262);
    assert_int_equal(eng_vocab_find_special(v, "<s", 2), ENG_NO_TOKEN);
    assert_int_equal(eng_vocab_find_special(v, "<s>x", 4), ENG_NO_TOKEN);
    assert_int_equal(eng_vocab_find_special(v, "hello", 5), ENG_NO_TOKEN);
    eng_vocab_close(v);
}

static void generation_stops_at_named_and_known_tokens(void **state)
{
    (void)state;
    struct eng_vocab *v;
    int32_t end, normal_end, html, eot;

    recipe_bpe(&r);
    recipe_scalar(&r, KEY "eos_token_id", 262);
    normal_end = recipe_token(&r, "<|eot_id|>", ENG_TOKEN_NORMAL, 0);
    html = recipe_token(&r, "</s>", ENG_TOKEN_NORMAL, 0);
    end = recipe_token(&r, "<|end|>", ENG_TOKEN_CONTROL, 0);
    eot = recipe_token(&r, "<my_end>", ENG_TOKEN_CONTROL, 0);
    recipe_scalar(&r, KEY "eot_token_id", eot);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_true(eng_vocab_is_stop(v, 262)); /* eos */
    assert_true(eng_vocab_is_stop(v, 263)); /* <|im_end|> by name */
    assert_true(eng_vocab_is_stop(v, eot));
    assert_true(eng_vocab_is_stop(v, end));
    assert_true(eng_vocab_is_stop(v, normal_end)); /* the type in the file is wrong */
    assert_int_equal(eng_vocab_type(v, normal_end), ENG_TOKEN_CONTROL);
    assert_false(eng_vocab_is_stop(v, html));
    assert_false(eng_vocab_is_stop(v, 65));
    assert_false(eng_vocab_is_stop(v, -1));
    assert_false(eng_vocab_is_stop(v, eng_vocab_size(v)));
    eng_vocab_close(v);
    recipe_token(&r, "<|return|>", ENG_TOKEN_CONTROL, 0);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_false(eng_vocab_is_stop(v, end)); /* gpt-oss: ends a message, not the turn */
    assert_true(eng_vocab_is_stop(v, eng_vocab_size(v) - 1));
    eng_vocab_close(v);
}

static void llama_bpe_takes_whole_words(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "whole", 0, "119 104 111 108 101");
    eng_vocab_close(v);
    r.pre = "llama-bpe";
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "whole", 0, "261");
    expect_ids(v, "wholes", 0, "119 104 111 108 101 115");
    eng_vocab_close(v);
}

/* The order of merges says the same as scores. */
static void merges_of_gemma4_are_scores(void **state)
{
    (void)state;
    static const char *const texts[] = { "hello", " hello hell", "lol", "he", "ohell", "h\xC3\xA9l lo", "  h" };
    struct eng_vocab *v[2];

    recipe_spm(&r);
    assert_int_equal(recipe_open(&r, &v[0]), 0);
    recipe_gemma4(&r);
    assert_int_equal(recipe_open(&r, &v[1]), 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct eng_ids a = { 0 }, b = { 0 };

        assert_int_equal(eng_tokenize(v[0], texts[i], strlen(texts[i]), 0, &a), 0);
        assert_int_equal(eng_tokenize(v[1], texts[i], strlen(texts[i]), 0, &b), 0);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.id, b.id, a.n * sizeof *a.id);
        eng_ids_free(&a);
        eng_ids_free(&b);
    }
    eng_vocab_close(v[0]);
    eng_vocab_close(v[1]);
}

static void of_equal_merges_the_first_counts(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_bpe(&r);
    recipe_token(&r, "el", ENG_TOKEN_NORMAL, 0);
    recipe_merge(&r, "e l");
    recipe_merge(&r, "l l"); /* the same pair is in an earlier merge */
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "ell", 0, "101 257");
    eng_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spoilt_files_are_refused_with_their_field),
        cmocka_unit_test(arrays_of_another_kind_are_refused),
        cmocka_unit_test(unused_tokens_may_be_empty_and_none_is_an_id),
        cmocka_unit_test(opening_and_tokenizing_survive_every_failed_allocation),
        cmocka_unit_test(bos_and_eos_stand_where_the_file_asks),
        cmocka_unit_test(special_text_is_parsed_only_when_asked),
        cmocka_unit_test(generation_stops_at_named_and_known_tokens),
        cmocka_unit_test(llama_bpe_takes_whole_words),
        cmocka_unit_test(of_equal_merges_the_first_counts),
        cmocka_unit_test(merges_of_gemma4_are_scores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
