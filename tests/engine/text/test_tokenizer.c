/* Text to ids and back. Ids equal those of other implementations, for reference texts and random texts; decoding gives
 * back the text, whole UTF-8 characters at a time; runs of a mebibyte take linear time; several threads share a
 * vocabulary.
 *
 * One thread: not under MODE=tsan. */
#include <dlfcn.h>
#include <pthread.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/base.h"
#include "tests/engine/text/recipe.h"

#define DATA "tests/engine/data/"

/* ---- files of texts and ids ------------------------------------------------------------------ */

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *data;

    if (!f)
        return NULL;
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    data = malloc(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    data[*n] = 0;
    fclose(f);
    return data;
}

/* Decoding the ids gives back the text. */
static void expect_text(const struct eng_vocab *v, const struct eng_ids *ids, const char *text, size_t n)
{
    char *piece = malloc(eng_decoder_room(v)), *all = malloc(n + eng_decoder_room(v));
    struct eng_decoder d;
    size_t got = 0;

    eng_decoder_init(&d, v, ENG_DECODE_RAW);
    for (size_t i = 0; i < ids->n && got <= n; i++) {
        const size_t len = eng_decoder_feed(&d, ids->id[i], piece);

        memcpy(all + got, piece, len);
        got += len;
    }
    assert_int_equal(got, n);
    assert_memory_equal(all, text, n);
    free(piece);
    free(all);
}

/* Compares the ids of one text with a line of ids; returns the start of the next line. */
static const char *expect_line(const struct eng_vocab *v, const char *text, size_t n, unsigned flags, const char *line)
{
    struct eng_ids ids = { 0 };

    assert_int_equal(eng_tokenize(v, text, n, flags, &ids), 0);
    for (size_t i = 0; i < ids.n; i++) {
        char *end;

        assert_int_equal(ids.id[i], strtol(line, &end, 10));
        assert_ptr_not_equal(line, end);
        line = end;
    }
    while (*line == ' ')
        line++;
    assert_true(*line == '\n' || !*line);
    if (!memmem(text, n, "\xE2\x96\x81", 3) && v->byte_id[0] != ENG_NO_TOKEN)
        expect_text(v, &ids, text, n);
    eng_ids_free(&ids);
    return *line ? line + 1 : line;
}

static void expect_reference(const char *vocab, const char *inp, const char *out)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    struct eng_vocab *v;
    size_t n, n_line;
    char *text = read_file(inp, &n), *lines = read_file(out, &n_line);
    const char *at = text, *end = text + n, *line = lines;
    int count = 0;

    assert_non_null(text);
    assert_non_null(lines);
    assert_int_equal(vocab_from(&v, vocab), 0);
    for (const char *next; at; at = next ? next + strlen(between) : NULL, count++) {
        next = strstr(at, between);
        line = expect_line(v, at, (size_t)((next ? next : end) - at), 0, line);
    }
    assert_int_equal(count, 47);
    eng_vocab_close(v);
    free(text);
    free(lines);
}

static void published_texts_have_their_published_ids(void **state)
{
    (void)state;
    expect_reference(DATA "gpt-2.gguf", DATA "reference.inp", DATA "reference-gpt-2.out");
}

static void large_vocabularies_too(void **state)
{
    (void)state;
    static const char *const names[] = { "deepseek-coder", "deepseek-llm", "gpt-2", "llama-spm", "refact" };
    const char *folder = getenv("TOKENIZERS");

    if (!folder) {
        printf("skipped: large vocabularies: TOKENIZERS names no folder with them\n");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char vocab[512], inp[520], out[520];

        snprintf(vocab, sizeof vocab, "%s/ggml-vocab-%s.gguf", folder, names[i]);
        snprintf(inp, sizeof inp, "%s.inp", vocab);
        snprintf(out, sizeof out, "%s.out", vocab);
        expect_reference(vocab, inp, out);
    }
}

/* texts.bin with this vocabulary against NAME.ids. */
static void expect_random(const struct eng_vocab *v, const char *name)
{
    char path[128];
    size_t n, n_line;
    char *texts = read_file(DATA "texts.bin", &n), *lines;
    const char *line;
    int count = 0;

    snprintf(path, sizeof path, DATA "%s.ids", name);
    line = lines = read_file(path, &n_line);
    assert_non_null(lines);
    for (size_t at = 0; at < n; count++) {
        uint32_t len;

        memcpy(&len, texts + at, 4);
        line = expect_line(v, texts + at + 4, len, ENG_TEXT_PARSE_SPECIAL, line);
        at += 4 + len;
    }
    assert_int_equal(count, 206);
    assert_int_equal(*line, 0);
    free(texts);
    free(lines);
}

/* Every pre-tokenizer; other names are aliases of these. */
static const char *const names[] = { "gpt-2",  "llama-bpe", "qwen2",   "deepseek-llm", "deepseek-coder", "starcoder",
                                     "refact", "falcon",    "default", "gpt-4o",       "deepseek-v3",    "glm4",
                                     "tekken", "kimi-k2",   "qwen35",  "seed-coder",   "bailingmoe" };

static void random_texts_are_cut_as_by_the_original(void **state)
{
    (void)state;
    struct eng_vocab *v;
    struct eng_pre *own;

    assert_int_equal(vocab_from(&v, DATA "gpt-2.gguf"), 0);
    own = v->pre;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct moe_string name = { .data = names[i], .n = strlen(names[i]) };

        assert_int_equal(eng_pre_open(&v->pre, name, "file"), 0);
        expect_random(v, names[i]);
        eng_pre_close(v->pre);
    }
    v->pre = own;
    eng_vocab_close(v);
}

static void random_texts_are_as_by_sentencepiece(void **state)
{
    (void)state;
    struct eng_vocab *v;

    assert_int_equal(vocab_from(&v, DATA "spm-bytes.gguf"), 0);
    expect_random(v, "spm-bytes");
    eng_vocab_close(v);
    assert_int_equal(vocab_from(&v, DATA "spm-unknown.gguf"), 0);
    expect_random(v, "spm-unknown");
    eng_vocab_close(v);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static struct recipe r;

static void pieces_merge_by_score_with_a_space_before(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_spm(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "", 0, "");
    expect_ids(v, "hello", 0, "268 263"); /* "▁hell" "o" */
    expect_ids(v, " hello", 0, "259 268 263");
    expect_ids(v, "ello", 0, "259 261 265 263"); /* "ll" scores above "lo" */
    expect_ids(v, "lo", 0, "259 269");
    expect_ids(v, "h<u>h", 0, "267 270 267");     /* a space after special tokens */
    expect_ids(v, "\xE2\x96\x81h", 0, "259 267"); /* U+2581 is a space */
    expect_ids(v, "x", 0, "259 123");             /* byte 0x78 is 3 + 120 */
    expect_ids(v, "\xC3\xA9", 0, "259 198 172");
    expect_ids(v, "\xFFh", 0, "259 258 260");
    eng_vocab_close(v);
    r.score[265] = 1;
    r.score[269] = 2;
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "ello", 0, "259 261 262 269"); /* scores above 0 count like others */
    eng_vocab_close(v);
    recipe_scalar(&r, KEY "add_space_prefix", 0);
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "hell", 0, "266");
    eng_vocab_close(v);
    for (int id = 3; id < 259; id++)
        r.type[id] = ENG_TOKEN_UNUSED; /* no byte tokens: one unknown per run */
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "xyhxyz", 0, "0 260 0");
    eng_vocab_close(v);
}

static void bytes_that_are_not_utf8_come_back(void **state)
{
    (void)state;
    static const char text[] = "hello\xFF\xFE hello \xE2\x96h\xC0\x80 \xED\xA0\x80\xF4\x90\x80\x80.\xC3";
    struct eng_ids ids = { 0 };
    struct eng_vocab *v;

    for (int kind = 0; kind < 2; kind++) {
        (kind ? recipe_spm : recipe_bpe)(&r);
        assert_int_equal(recipe_open(&r, &v), 0);
        assert_int_equal(eng_tokenize(v, text, sizeof text - 1, 0, &ids), 0);
        expect_text(v, &ids, text, sizeof text - 1);
        ids.n = 0;
        eng_vocab_close(v);
    }
    eng_ids_free(&ids);
    recipe_bpe(&r); /* bytes without a token are dropped */
    r.type[255] = ENG_TOKEN_USER;
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_ids(v, "he\xFFllo", 0, "256 257 111");
    eng_vocab_close(v);
}

static void characters_begin_and_end_where_unicode_says(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        int len, bad;
        bool cut;
    } cases[] = {
        { "a", 1, 1, 1, false },
        { "\xC3\xA9", 2, 2, 1, false },
        { "\xC3", 1, 0, 1, true },
        { "\xC3(", 2, 0, 1, false },
        { "\xC1\x81", 2, 0, 1, false },
        { "\x80", 1, 0, 1, false },
        { "\xE0\x80\x80", 3, 0, 1, false },
        { "\xE0\xA0\x80", 3, 3, 2, false },
        { "\xED\x9F\xBF", 3, 3, 2, false },
        { "\xED\xA0\x80", 3, 0, 1, false },
        { "\xE2\x96", 2, 0, 2, true },
        { "\xE2\x96(", 3, 0, 2, false },
        { "\xF0\x90\x80\x80", 4, 4, 3, false },
        { "\xF0\x8F\x80\x80", 4, 0, 1, false },
        { "\xF4\x8F\xBF\xBF", 4, 4, 3, false },
        { "\xF4\x90\x80\x80", 4, 0, 1, false },
        { "\xF5\x80", 2, 0, 1, false },
        { "\xF0\x9F\x98", 3, 0, 3, true },
        { "", 0, 0, 1, true },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool cut = false;
        int bad, len = eng_utf8_next(cases[i].text, cases[i].n, &bad, &cut);

        assert_int_equal(len, cases[i].len);
        if (len)
            continue;
        assert_int_equal(bad, cases[i].bad);
        assert_int_equal(cut, cases[i].cut);
    }
}

/* Feeds token b for each byte b (recipe_bpe); "|" in `want` ends the output of each call. */
static void expect_decoded(const struct eng_vocab *v, unsigned flags, const char *bytes, const char *want)
{
    char out[512], got[1024] = "";
    struct eng_decoder d;
    size_t n = 0;

    eng_decoder_init(&d, v, flags);
    for (const char *p = bytes; *p; p++) {
        n += eng_decoder_feed(&d, (uint8_t)*p, out);
        strncat(got, out, n);
        strcat(got, "|");
        n = 0;
    }
    n = eng_decoder_finish(&d, out);
    strncat(got, out, n);
    assert_string_equal(got, want);
    assert_int_equal(eng_decoder_finish(&d, out), 0);
}

static void only_whole_characters_are_given_out(void **state)
{
    (void)state;
    struct eng_vocab *v;

    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    expect_decoded(v, 0, "a\xC3\xA9z", "a||\xC3\xA9|z|");
    expect_decoded(v, 0, "\xF0\x9F\x98\x80", "|||\xF0\x9F\x98\x80|");
    expect_decoded(v, 0, "\xF0\x9F\x98", "|||\xEF\xBF\xBD"); /* the incomplete rest, once */
    expect_decoded(v, 0, "\xE2\x96z", "||\xEF\xBF\xBDz|");
    expect_decoded(v, 0, "\xE2\xC3\xA9", "|\xEF\xBF\xBD|\xC3\xA9|");
    expect_decoded(v, 0, "\xFF\x80", "\xEF\xBF\xBD|\xEF\xBF\xBD|");
    expect_decoded(v, 0, "\xED\xA0\x80", "|\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD|");
    expect_decoded(v, ENG_DECODE_RAW, "\xFF\xC3", "\xFF|\xC3|");
    eng_vocab_close(v);
}

/* Decodes a list of ids. */
static const char *decoded(const struct eng_vocab *v, unsigned flags, const int32_t *id, size_t n_id)
{
    static char got[512];
    struct eng_decoder d;
    size_t n = 0;

    eng_decoder_init(&d, v, flags);
    for (size_t i = 0; i < n_id; i++)
        n += eng_decoder_feed(&d, id[i], got + n);
    n += eng_decoder_finish(&d, got + n);
    got[n] = 0;
    return got;
}

static void spaces_and_special_tokens_decode_as_they_were_put(void **state)
{
    (void)state;
    static const int32_t spm[] = { 1, 267, 259, 270, 267, 2 }, mark[] = { 122, 259 };
    static const int32_t bpe[] = { 262, 259, 264, 260, 263 };
    struct eng_vocab *v;

    recipe_spm(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_string_equal(decoded(v, 0, spm, 6), "<s>h <u>h</s>");
    assert_string_equal(decoded(v, ENG_DECODE_SKIP_SPECIAL, spm, 6), "h <u>h");
    assert_string_equal(decoded(v, 0, spm + 1, 2), "h ");
    assert_string_equal(decoded(v, ENG_DECODE_CONTINUE, spm + 1, 2), " h ");
    assert_string_equal(decoded(v, 0, mark, 2), "w ");
    eng_vocab_close(v);
    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_string_equal(decoded(v, 0, bpe, 5), "<s>hello<u> h<|im_end|>");
    assert_string_equal(decoded(v, ENG_DECODE_SKIP_SPECIAL, bpe, 5), "hello<u> h");
    assert_string_equal(decoded(v, 0, bpe + 3, 1), " h"); /* no added space to remove */
    eng_vocab_close(v);
}

/* The decoder's output is UTF-8 and at most eng_decoder_room() bytes, for any ids. */
static void any_ids_give_utf8_within_the_room(void **state)
{
    (void)state;
    const size_t room = 3 * (10 + 3); /* longest token: "<|im_end|>" */
    struct eng_vocab *v;
    struct eng_decoder d;
    char out[64];

    recipe_bpe(&r);
    assert_int_equal(recipe_open(&r, &v), 0);
    assert_int_equal(eng_decoder_room(v), room);
    eng_decoder_init(&d, v, 0);
    for (uint64_t i = 0; i < 200000; i++) {
        const uint64_t h = kn_mix(i * KN_GOLDEN);
        const int32_t id = h & 1 ? (int32_t)(0x80 | (h >> 8 & 0x7F)) : (int32_t)(h >> 8) & 0xFF;
        const size_t n = eng_decoder_feed(&d, id, out);
        bool cut;
        int bad;

        assert_true(n <= room);
        for (size_t at = 0, len; at < n; at += len) {
            len = (size_t)eng_utf8_next(out + at, n - at, &bad, &cut);
            assert_true(len > 0);
        }
    }
    eng_vocab_close(v);
}

/* ---- long runs ------------------------------------------------------------------------------- */

/* clang-format off */
static const char *const runs[] = {
    "Z", "a", " ", "1", "\n", "!", "\xE4\xB8\xAD", "\xCC\x81", "Aa", " \n", "\xFF", "'s",
    "\xFF" "a", " ", "\xF0\x9F\x98\x80", "<", "\xD7\x90", "\xD7\x90" "A", "\xC7\x85",
    "\r", "\t", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x85\xA7", "\xC2\xB2", "\xCA\xB0", "+", "/", "'", "\x01",
    "\xE3\x81\x82", "\xE2\x80\x8D", "\xEF\xBC\x81", "\xE0\xA4\x83", "\xEE\x80\x80", "\xED\x95\x9C",
    "\xE0\xA5\xA6",
};
/* clang-format on */
#ifdef __SANITIZE_ADDRESS__ /* slow; longer than any buffer, too */
#define LONG_BYTES ((size_t)1 << 18)
#else
#define LONG_BYTES ((size_t)1 << 20)
#endif
enum { N_RUN = sizeof runs / sizeof *runs, N_WHOLE_RUN = 16, BLANK = 2 };

/* Run i uses pre-tokenizer i % 4, and SentencePiece. Quadratic time would take hours or reach the limits. */
static void a_mebibyte_of_anything_is_tokenized(void **state)
{
    (void)state;
    static const char *const some[] = { "gpt-2", "llama-bpe", "deepseek-llm", "falcon" };
    const size_t n = LONG_BYTES;
    char *text = malloc(n);
    struct eng_ids ids = { 0 };
    struct eng_vocab *v[2];
    struct eng_pre *own, *pre[4];

    assert_int_equal(vocab_from(&v[0], DATA "gpt-2.gguf"), 0);
    assert_int_equal(vocab_from(&v[1], DATA "spm-bytes.gguf"), 0);
    own = v[0]->pre;
    for (int k = 0; k < 4; k++) {
        const struct moe_string name = { .data = some[k], .n = strlen(some[k]) };

        assert_int_equal(eng_pre_open(&pre[k], name, "file"), 0);
    }
    for (size_t i = 0; i < 2 * N_WHOLE_RUN; i++) {
        const char *run = runs[i / 2];
        const size_t len = strlen(run), whole = n / len * len;

        for (size_t at = 0; at < whole; at++)
            text[at] = run[at % len];
        if (run[0] == ' ')
            text[whole - 1] = '1'; /* blanks before the end only */
        v[0]->pre = pre[i / 2 % 4];
        assert_int_equal(eng_tokenize(v[i % 2], text, whole, 0, &ids), 0);
        expect_text(v[i % 2], &ids, text, whole);
        ids.n = 0;
    }
    v[0]->pre = own;
    for (int k = 0; k < 4; k++)
        eng_pre_close(pre[k]);
    eng_ids_free(&ids);
    eng_vocab_close(v[0]);
    eng_vocab_close(v[1]);
    free(text);
}

/* ---- windows --------------------------------------------------------------------------------- */

enum { N_LETTER = 3, N_MADE = 40, WINDOW_TEXT = 400 };

/* A vocabulary of the letters a, b, c and of random pairs of its tokens.  The ranks (or scores) are random, too, so a
 * pair may be merged before the pairs that its tokens are made of: any table of merges that a file could hold. */
struct made_vocab {
    struct eng_vocab v;
    char bytes[N_LETTER + N_MADE][64];
    struct moe_string text[N_LETTER + N_MADE];
    float score[N_LETTER + N_MADE];
};

static uint64_t next_random(uint64_t *state) { return kn_mix(*state += KN_GOLDEN); }

static void make_vocab(struct made_vocab *m, enum eng_vocab_kind kind, uint64_t *random)
{
    *m = (struct made_vocab){ .v = { .kind = kind, .score = m->score, .unk = ENG_NO_TOKEN } };
    assert_int_equal(eng_pairs_open(&m->v.pairs, N_MADE), 0);
    assert_int_equal(eng_words_open(&m->v.words, m->text, N_LETTER + N_MADE), 0);
    for (int b = 0; b < 256; b++)
        m->v.byte_id[b] = b >= 'a' && b < 'a' + N_LETTER ? b - 'a' : ENG_NO_TOKEN;
    for (int id = 0; id < N_LETTER + N_MADE; id++) {
        struct moe_string *t = &m->text[id];
        int left = 0, right = 0;

        *t = (struct moe_string){ .data = m->bytes[id], .n = 1 };
        m->bytes[id][0] = (char)('a' + id % N_LETTER);
        if (id >= N_LETTER) {
            do {
                left = (int)(next_random(random) % (uint64_t)id);
                right = (int)(next_random(random) % (uint64_t)id);
            } while (m->text[left].n + m->text[right].n > 12);
            t->n = m->text[left].n + m->text[right].n;
            memcpy(m->bytes[id], m->text[left].data, m->text[left].n);
            memcpy(m->bytes[id] + m->text[left].n, m->text[right].data, m->text[right].n);
        }
        m->score[id] = (float)(next_random(random) % 8);
        if (eng_words_add(&m->v.words, id) != ENG_NO_TOKEN)
            t->n = 0; /* the text has a token already */
        else if (id >= N_LETTER)
            eng_pairs_add(&m->v.pairs, (struct eng_pair){ .left = left,
                                                          .right = right,
                                                          .id = id,
                                                          .rank = (uint32_t)(next_random(random) % N_MADE) });
        m->v.max_bytes = t->n > m->v.max_bytes ? t->n : m->v.max_bytes;
    }
}

/* Runs of one letter, repeated beginnings, and random letters; '?' is a byte without a token. */
static size_t make_text(char *text, uint64_t *random)
{
    size_t n = 0, period;

    while (n < WINDOW_TEXT - 80) {
        const uint64_t way = next_random(random) % 4, len = next_random(random) % 80;

        period = way == 0 ? 1 : way == 1 ? 2 + next_random(random) % 5 : len;
        for (size_t i = 0; i < len; i++, n++)
            text[n] = i < period ? "abc?"[next_random(random) % (way == 3 ? 4 : 3)] : text[n - period];
    }
    return n;
}

static void merge_with(struct eng_merge *m, const struct eng_vocab *v, const char *text, size_t n, size_t window,
                       struct eng_ids *ids)
{
    ids->n = 0;
    m->window = window;
    assert_int_equal((v->kind == ENG_VOCAB_BYTES ? eng_merge_bytes : eng_merge_pieces)(m, v, text, n, ids), 0);
}

static void windows_give_the_ids_of_the_whole_piece(void **state)
{
    static const size_t windows[] = { 1, 2, 3, 5, 8, 13, 24, 32, 64, 100 };
    struct eng_merge m = { 0 };
    struct eng_ids whole = { 0 }, ids = { 0 };
    uint64_t random = 24;
    char text[WINDOW_TEXT];

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct made_vocab *made = malloc(sizeof *made);
        const size_t n = make_text(text, &random);

        make_vocab(made, round % 2 ? ENG_VOCAB_BYTES : ENG_VOCAB_PIECES, &random);
        merge_with(&m, &made->v, text, n, WINDOW_TEXT, &whole);
        for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
            merge_with(&m, &made->v, text, n, windows[i], &ids);
            if (ids.n != whole.n || memcmp(ids.id, whole.id, ids.n * sizeof *ids.id) != 0)
                fail_msg("round %d: windows of %zu symbols give other ids for '%.*s'", round, windows[i], (int)n, text);
        }
        eng_pairs_close(&made->v.pairs);
        eng_words_close(&made->v.words);
        free(made);
    }
    eng_merge_free(&m);
    eng_ids_free(&whole);
    eng_ids_free(&ids);
}

/* Each run as one piece, in windows of the usual size and in one window: the same ids, and little memory. */
static void long_pieces_take_little_memory(void **state)
{
    static const char *const files[] = { DATA "gpt-2.gguf", DATA "spm-bytes.gguf" };
    const size_t n = LONG_BYTES;
    char *text = malloc(n);
    struct eng_ids whole = { 0 }, ids = { 0 };

    (void)state;
    for (size_t k = 0; k < 2 * N_WHOLE_RUN; k++) {
        struct eng_merge small = { 0 }, large = { 0 };
        const char *run = runs[k / 2];
        struct eng_vocab *v;

        assert_int_equal(vocab_from(&v, files[k % 2]), 0);
        for (size_t at = 0; at < n; at++)
            text[at] = run[at % strlen(run)];
        merge_with(&large, v, text, n, n, &whole);
        merge_with(&small, v, text, n, 0, &ids);
        assert_int_equal(ids.n, whole.n);
        assert_memory_equal(ids.id, whole.id, ids.n * sizeof *ids.id);
        assert_true(small.cap <= 1 << 16);
        eng_merge_free(&small);
        eng_merge_free(&large);
        eng_vocab_close(v);
    }
    eng_ids_free(&whole);
    eng_ids_free(&ids);
    free(text);
}

/* ids->most: a text that is too long by its bytes is refused before it is tokenized, another one at the limit. */
static void tokenizing_stops_at_the_limit(void **state)
{
    const size_t n = LONG_BYTES;
    char *text = malloc(n);
    struct eng_vocab *v;
    struct eng_ids ids = { 0 };

    (void)state;
    assert_int_equal(vocab_from(&v, DATA "gpt-2.gguf"), 0);
    memset(text, ' ', n);
    size_t least = eng_least_tokens(v, (struct moe_string){ text, n });
    assert_int_equal(least, (n + v->max_bytes - 1) / v->max_bytes);
    assert_int_equal(eng_tokenize(v, text, n, 0, &ids), 0);
    assert_true(ids.n >= least);
    size_t exact = ids.n;

    for (size_t i = 0; i < 5; i++) {
        const size_t most[] = { 1, least - 1, exact - 1, exact, exact + 1 };

        ids.n = 0;
        ids.most = most[i];
        assert_int_equal(eng_tokenize(v, text, n, 0, &ids), most[i] < exact ? KN_ELIMIT : 0);
        assert_int_equal(ids.full, most[i] < exact);
        assert_int_equal(ids.n, most[i] < exact ? 0 : exact);
    }
    eng_ids_free(&ids);
    eng_vocab_close(v);
    free(text);
}

static int count_down(void *arg) { return --*(int *)arg ? 0 : KN_ECANCELLED; }

/* ids->checkpoint is reached while a text of one piece is merged, and while one of many is; its error ends the work. */
static void tokenizing_reaches_the_checkpoint(void **state)
{
    const size_t n = LONG_BYTES;
    char *text = malloc(n);
    struct eng_vocab *v;

    (void)state;
    assert_int_equal(vocab_from(&v, DATA "gpt-2.gguf"), 0);
    for (int words = 0; words < 2; words++) {
        int left = INT_MAX;
        struct eng_checkpoint checkpoint = { .reach = count_down, .arg = &left };
        struct eng_ids ids = { .checkpoint = &checkpoint };

        memset(text, ' ', n);
        for (size_t i = 0; words && i < n; i += 3)
            text[i] = 'a';
        assert_int_equal(eng_tokenize(v, text, n, 0, &ids), 0);
        const int n_reached = INT_MAX - left;
        assert_in_range(n_reached, n / ENG_CHECKPOINT_BYTES / 2, 2 * n / ENG_CHECKPOINT_BYTES);
        left = n_reached;
        ids.n = 0;
        assert_int_equal(eng_tokenize(v, text, n, 0, &ids), KN_ECANCELLED);
        assert_int_equal(left, 0);
        assert_int_equal(ids.n, 0);
        eng_ids_free(&ids);
    }
    eng_vocab_close(v);
    free(text);
}

/* Overrides of two PCRE2 functions: no_jit simulates a machine without the JIT, steps limits the steps of a search. */
static struct {
    bool no_jit;
    uint32_t steps;
} held;

int pcre2_jit_compile(pcre2_code *code, uint32_t options)
{
    int (*own)(pcre2_code *, uint32_t);

    *(void **)&own = dlsym(RTLD_NEXT, "pcre2_jit_compile_8");
    return held.no_jit ? PCRE2_ERROR_JIT_BADOPTION : own(code, options);
}

int pcre2_set_match_limit(pcre2_match_context *context, uint32_t limit)
{
    int (*own)(pcre2_match_context *, uint32_t);

    *(void **)&own = dlsym(RTLD_NEXT, "pcre2_set_match_limit_8");
    return own(context, held.steps ? held.steps : limit);
}

/* Pieces are contiguous. */
static int next_piece(void *arg, const char *p, size_t n)
{
    const char **at = arg;

    assert_ptr_equal(p, *at);
    assert_true(n > 0);
    *at += n;
    return 0;
}

/* Splits runs first..last, n bytes each. */
static void cut_long_runs(const char *pre_name, size_t first, size_t last, char *text, size_t n)
{
    const struct moe_string name = { .data = pre_name, .n = strlen(pre_name) };
    struct eng_pre *pre;
    struct eng_split *split;

    assert_int_equal(eng_pre_open(&pre, name, "file"), 0);
    assert_int_equal(eng_split_open(&split, pre), 0);
    for (size_t i = first; i <= last; i++) {
        const size_t len = strlen(runs[i]), whole = n / len * len;
        const char *at = text;

        if ((uint8_t)runs[i][0] == 0xFF)
            continue; /* the splitter gets UTF-8 only */
        for (size_t b = 0; b < whole; b++)
            text[b] = runs[i][b % len];
        if (i == BLANK)
            text[whole - 1] = '1'; /* blanks before the end only */
        if (eng_split_run(split, text, whole, next_piece, &at) != 0)
            fail_msg("%s: run %zu, '%s', takes too many steps", pre_name, i, runs[i]);
        assert_ptr_equal(at, text + whole);
    }
    eng_split_close(split);
    eng_pre_close(pre);
}

/* Each class of characters through each pattern, split without merges. Without the JIT the runs are shorter, and a
 * search takes at most four steps a byte: kimi-k2 scans a run of capitals twice, and tests the script of each. A blank
 * that starts no piece counts no step, so only the run time would show quadratic behaviour there. */
static void long_runs_are_cut_by_any_pattern(void **state)
{
    (void)state;
    const size_t n = LONG_BYTES, fewer = 1 << 16;
    char *text = malloc(n);

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        cut_long_runs(names[k], 0, N_RUN - 1, text, n);
        held.no_jit = true;
        cut_long_runs(names[k], BLANK, BLANK, text, n);
        held.steps = 4 * (uint32_t)fewer + 1000;
        cut_long_runs(names[k], 0, N_RUN - 1, text, fewer);
        held.no_jit = false;
        held.steps = 0;
    }
    free(text);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct job {
    const struct eng_vocab *v;
    const char *text;
    size_t n;
    struct eng_ids ids;
    int err;
};

static void *tokenize_often(void *arg)
{
    struct job *job = arg;

    for (int i = 0; i < 20 && !job->err; i++)
        job->err = eng_tokenize(job->v, job->text, job->n, 0, &job->ids);
    return NULL;
}

static void threads_share_a_vocabulary(void **state)
{
    (void)state;
    struct eng_vocab *v;
    struct job job[4];
    pthread_t thread[4];
    size_t n;
    char *text = read_file(DATA "texts.bin", &n);

    assert_int_equal(vocab_from(&v, DATA "gpt-2.gguf"), 0);
    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){ .v = v, .text = text, .n = n };
        assert_int_equal(pthread_create(&thread[i], NULL, tokenize_often, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(job[i].err, 0);
        assert_int_equal(job[i].ids.n, job[0].ids.n);
        assert_memory_equal(job[i].ids.id, job[0].ids.id, job[0].ids.n * sizeof *job[0].ids.id);
    }
    for (int i = 0; i < 4; i++)
        eng_ids_free(&job[i].ids);
    eng_vocab_close(v);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_texts_have_their_published_ids),
        cmocka_unit_test(large_vocabularies_too),
        cmocka_unit_test(random_texts_are_cut_as_by_the_original),
        cmocka_unit_test(random_texts_are_as_by_sentencepiece),
        cmocka_unit_test(pieces_merge_by_score_with_a_space_before),
        cmocka_unit_test(bytes_that_are_not_utf8_come_back),
        cmocka_unit_test(characters_begin_and_end_where_unicode_says),
        cmocka_unit_test(only_whole_characters_are_given_out),
        cmocka_unit_test(spaces_and_special_tokens_decode_as_they_were_put),
        cmocka_unit_test(any_ids_give_utf8_within_the_room),
        cmocka_unit_test(a_mebibyte_of_anything_is_tokenized),
        cmocka_unit_test(windows_give_the_ids_of_the_whole_piece),
        cmocka_unit_test(long_pieces_take_little_memory),
        cmocka_unit_test(tokenizing_stops_at_the_limit),
        cmocka_unit_test(tokenizing_reaches_the_checkpoint),
        cmocka_unit_test(long_runs_are_cut_by_any_pattern),
        cmocka_unit_test(threads_share_a_vocabulary),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
