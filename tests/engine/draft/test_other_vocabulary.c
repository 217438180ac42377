/* Draft models with another vocabulary (engine/draft/other_vocabulary.c).
 *
 * The demo's draft model with its token ids exchanged has another vocabulary and says the same: at temperature 0 its drafts
 * are those of the model itself. With another pre-tokenizer beside, its tokens begin and end elsewhere than the target's. The
 * answers are the same with any of them, and with random models whose drafts cut characters in two.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/base.h"
#include "tests/engine/draft/drafted.h"

#define DRAFT "evals/train/models/demo-draft-q8_0.gguf"

enum { N_VOCAB = 4096, FIRST = 3, N_TEXT = 200 };

static char exchanged[96], split_anew[96], random_other[96];

/* ---- the models ----------------------------------------------------------------------------------------- */

static uint64_t u64_at(const char *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static void swap_bytes(char *a, char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = a[i];
        a[i] = b[i];
        b[i] = c;
    }
}

/* Exchanges texts and rows of tokens i and j, whose texts have the same length. */
static void exchange(char *file, char **text, const struct moe_file *f, int i, int j)
{
    static const char *const names[] = { "token_embd.weight", "output.weight" };
    swap_bytes(text[i], text[j], u64_at(text[i] - 8));
    for (int k = 0; k < 2; k++) {
        const struct moe_tensor *t = moe_file_find_tensor(f, names[k]);
        size_t row = t->bytes / N_VOCAB;
        swap_bytes(file + t->offset + (size_t)i * row, file + t->offset + (size_t)j * row, row);
    }
}

/* Writes the demo's draft model with its token ids exchanged; pre: its pre-tokenizer, of as many letters as "gpt-2". */
static void write_exchanged(const char *to, const char *pre)
{
    static const char tokens[] = "tokenizer.ggml.tokens", kind[] = "tokenizer.ggml.pre";
    static char *text[N_VOCAB];
    struct moe_file *f;
    char *file;
    size_t n;
    assert_int_equal(eng_read_file(DRAFT, &file, &n), 0);
    assert_int_equal(moe_file_open(&f, DRAFT), 0);
    char *at = memmem(file, n, tokens, sizeof tokens - 1);
    assert_non_null(at);
    at += sizeof tokens - 1 + 4 + 4 + 8; /* types of the value and of its items, number of items */
    for (int i = 0; i < N_VOCAB; i++) {
        text[i] = at + 8;
        at = text[i] + u64_at(at);
    }
    for (int i = FIRST, last[64] = { 0 }; i < N_VOCAB; i++) {
        uint64_t length = u64_at(text[i] - 8);
        if (length < 64 && last[length])
            exchange(file, text, f, i, last[length]);
        if (length < 64)
            last[length] = last[length] ? 0 : i;
    }
    memcpy((char *)memmem(file, n, kind, sizeof kind - 1) + sizeof kind - 1 + 4 + 8, pre, 5);
    FILE *out = fopen(to, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    moe_file_close(f);
    kn_free(file);
}

static struct eng_engine *open_with(const char *file, int gamma)
{
    char draft[160];
    snprintf(draft, sizeof draft, "model:%s", file);
    struct eng_options o = demo_options(draft, KN_ISA_COUNT - 1, 64);
    struct eng_engine *e;
    o.gamma = gamma;
    assert_int_equal(eng_open(&e, &o), 0);
    assert_true(eng_draft_is_model(e->drafting->drafter[0]) == !strcmp(file, DRAFT));
    return e;
}

/* ---- the demo --------------------------------------------------------------------------------------------- */

static const char question[] =
    "A farmer keeps 14 hens. Each hen lays 3 eggs a day, and the farmer sells a dozen eggs for 2 dollars at the market. On "
    "Sundays the market is closed, and the farmer's family eats 6 of them. How much does the farmer earn in a week? "
    "Na\xC3\xAFve caf\xC3\xA9s \xE2\x82\xAC 5. Janet has 12 apples and buys 30 more. She gives 7 to each of her 3 friends. How "
    "many apples does she have left?";

static uint64_t n_accepted, n_steps;

/* The drafter has read the sequence's text, byte for byte. */
static void check_text(const struct eng_engine *e, const struct eng_session *s, int n_read)
{
    static char own[8192], its[8192];
    struct moe_file *f;
    struct eng_vocab *v;
    int n = 0, n_own = 0, n_its = 0;
    const struct eng_drafter *d = e->drafting->drafter[0];
    const int32_t *token = eng_draft_is_model(d) ? NULL : eng_draft_other_text(d, s->seq.number, &n);
    if (!token)
        return;
    assert_int_equal(moe_file_open(&f, split_anew), 0);
    assert_int_equal(eng_vocab_open(&v, f), 0);
    for (int i = 0; i < n_read; i++) {
        struct moe_string t = eng_vocab_text(e->assets.vocab, s->seq.token[i]);
        memcpy(own + n_own, t.data, t.n);
        n_own += (int)t.n;
    }
    for (int i = 0; i < n; i++) {
        struct moe_string t = eng_vocab_text(v, token[i]);
        memcpy(its + n_its, t.data, t.n);
        n_its += (int)t.n;
    }
    assert_int_equal(n_its, n_own);
    assert_memory_equal(its, own, (size_t)n_own);
    eng_vocab_close(v);
    moe_file_close(f);
}

/* The tokens of an answer, and its draft trees in pass[]. Returns the number of passes with a tree. */
static int answer_with(const char *file, int32_t *text, int *n_text)
{
    struct eng_engine *e = open_with(file, 4);
    struct eng_ids ids = { 0 };
    assert_int_equal(eng_tokenize(e->assets.vocab, question, strlen(question), 0, &ids), 0);
    int n = record(e, &ids, text, 40);
    *n_text = n ? pass[n - 1].n_token : 0;
    n_accepted = e->stats.n_draft_kept;
    n_steps = e->stats.n_pass;
    eng_ids_free(&ids);
    close_engine(e);
    return n;
}

/* Ids do not matter, nor does it matter if the drafter is loaded again: the same text is drafted. */
static void exchanged_ids_draft_the_same(void **state)
{
    static struct pass own[MOST_PASS];
    int32_t a[N_CTX], b[N_CTX];
    int n_a, n_b, n_same = 0;
    (void)state;
    int n = answer_with(DRAFT, a, &n_a);
    uint64_t accepted = n_accepted, steps = n_steps;
    memcpy(own, pass, sizeof own);
    before_pass = reload; /* it computes all of the text again */
    int k = answer_with(exchanged, b, &n_b);
    before_pass = NULL;
    assert_true(n >= 20 && accepted > 20);
    assert_memory_equal(a, b, (size_t)kn_min(n_a, n_b) * sizeof *a);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++)
            if (own[i].n_token == pass[j].n_token) {
                int n_node = kn_min(own[i].tree.n, pass[j].tree.n);
                n_same += n_node && !memcmp(own[i].tree.token, pass[j].tree.token, (size_t)n_node * sizeof(int32_t));
            }
    if (n_same * 10 < n * 7 || n_accepted * 10 < accepted * 9 || n_steps * 9 > steps * 10)
        fail_msg("%d of %d trees, %d of %d accepted, %d for %d steps", n_same, n, (int)n_accepted, (int)accepted,
                 (int)n_steps, (int)steps);
}

/* Tokens that begin and end elsewhere are aligned: drafts are still accepted. */
static void other_cuts_are_aligned(void **state)
{
    int32_t a[N_CTX], b[N_CTX];
    int n_a, n_b;
    (void)state;
    answer_with(DRAFT, a, &n_a);
    answer_with(split_anew, b, &n_b);
    assert_memory_equal(a, b, (size_t)kn_min(n_a, n_b) * sizeof *a);
    if (n_accepted < 10)
        fail_msg("%d accepted in %d steps", (int)n_accepted, (int)n_steps);
}

/* A text that was read token by token gets the drafts of the text read at once. */
static void texts_are_read_in_any_parts(void **state)
{
    static struct pass by_token[MOST_PASS];
    int32_t text[N_CTX];
    int n_text, n_same = 0;
    (void)state;
    int n = answer_with(split_anew, text, &n_text);
    memcpy(by_token, pass, sizeof by_token);
    struct eng_engine *e = open_with(split_anew, 4);
    for (int i = 2; i < n; i += 3) {
        int n_token = by_token[i].n_token;
        struct eng_session *s = start(e, text, n_token - 1, 0);
        while (s->seq.n_token < n_token)
            step(e);
        assert_int_equal(s->seq.token[n_token - 1], text[n_token - 1]);
        step(e);
        check_text(e, s, n_token);
        const struct spec_tree *whole = s->seq.tree, *parts = &by_token[i].tree;
        assert_int_equal(whole->n, parts->n);
        assert_memory_equal(whole->token, parts->token, (size_t)whole->n * sizeof *whole->token);
        n_same += whole->n;
        eng_session_close(s);
    }
    assert_true(n_same > 10);
    close_engine(e);
}

/* A long answer, read token by token while tails become long and are fixed. */
static void no_byte_is_lost(void **state)
{
    (void)state;
    struct eng_engine *e = open_with(split_anew, 3);
    struct eng_ids ids = { 0 };
    int n_checked = 0;
    assert_int_equal(eng_tokenize(e->assets.vocab, question, 20, 0, &ids), 0);
    struct eng_session *s = start(e, ids.id, (int)ids.n, 0);
    while (s->seq.n_token < N_CTX - 8) {
        int before = s->seq.n_token;
        step(e);
        if (s->seq.tree && s->seq.tree->n && before > (int)ids.n) {
            check_text(e, s, before);
            n_checked++;
        }
    }
    assert_true(n_checked > 40);
    eng_session_close(s);
    eng_ids_free(&ids);
    close_engine(e);
}

/* ---- any models ------------------------------------------------------------------------------------------- */

/* Random models over vocabularies of bytes: drafts have half characters, and are rarely right. */
static void answers_are_the_same(void **state)
{
    (void)state;
    static const int gammas[] = { 4, 12, ENG_GAMMA_AUTO }, blocks[] = { 9, 0, 9 };
    for (int i = 0; i < 3; i++) {
        struct eng_options o = {
            .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .gamma = gammas[i], .n_draft = 2, .predictions = true
        };
        snprintf(o.draft[0].file, sizeof o.draft[0].file, "%s", random_other);
        o.draft[0].kind = ENG_DRAFT_MODEL;
        assert_int_equal(eng_draft_parse(&o.draft[1], "ngram"), 0);
        struct eng_engine *e = open_engine_with(o, blocks[i]);
        asked_meddle = i == 1 ? reload_at_times : NULL;
        run_crowd(e, SHARE(24));
        asked_meddle = NULL;
        assert_false(e->drafting->drafter[0]->broken);
        assert_true(gammas[i] < 0 || e->stats.n_draft > 0);
        close_engine(e);
    }
}

static void trees_and_passes_need_the_same_vocabulary(void **state)
{
    char draft[160];
    struct eng_engine *e;
    (void)state;
    snprintf(draft, sizeof draft, "model:%s,tree=static", random_other);
    struct eng_options o = { .n_parallel = 1, .gamma = 4, .n_draft = 1 };
    o = asked_options(o, 0);
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    faults_listen();
    assert_int_equal(eng_open(&e, &o), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "leave out tree=static"));
    o.draft[0].tree = ENG_TREE_CHAIN;
    o.dsi = ENG_DSI_ON;
    assert_int_equal(eng_open(&e, &o), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "another vocabulary"));
    faults_listen_off();
}

/* ---- cutting ------------------------------------------------------------------------------------------------ */

/* Parts of a text get the tokens that they have as whole texts, without an allocation; whatever their bytes are. */
static void parts_are_cut_as_texts(void **state)
{
    struct moe_file *f;
    struct eng_vocab *v;
    struct eng_recutter *r;
    struct eng_ids ids = { 0 };
    char text[N_TEXT];
    (void)state;
    assert_int_equal(moe_file_open(&f, DRAFT), 0);
    assert_int_equal(eng_vocab_open(&v, f), 0);
    assert_int_equal(eng_recutter_open(&r, v, N_TEXT), 0);
    for (int i = 0; i < 400; i++) {
        int n = below(N_TEXT + 1), from = below((int)sizeof question - 1);
        const int32_t *got;
        for (int k = 0; k < n; k++)
            text[k] = i % 2 ? (char)below(256) : question[(from + k) % ((int)sizeof question - 1)];
        ids.n = 0;
        assert_int_equal(eng_tokenize(v, text, (size_t)n, ENG_TEXT_PARSE_SPECIAL, &ids), 0);
        kn_alloc_forbid(true);
        int n_got = eng_recut(r, (struct moe_string){ .data = text, .n = (size_t)n }, ENG_TEXT_PARSE_SPECIAL, &got);
        kn_alloc_forbid(false);
        assert_int_equal(n_got, ids.n);
        if (n_got)
            assert_memory_equal(got, ids.id, ids.n * sizeof *got);
    }
    eng_ids_free(&ids);
    eng_recutter_close(r);
    eng_vocab_close(v);
    moe_file_close(f);
}

static int start_all(void **state)
{
    struct kn_team *team;
    int error = setup_asked(state, 11);
    snprintf(exchanged, sizeof exchanged, "%s.exchanged", path);
    snprintf(split_anew, sizeof split_anew, "%s.split", path);
    snprintf(random_other, sizeof random_other, "%s.other", path);
    write_exchanged(exchanged, "gpt-2");
    write_exchanged(split_anew, "qwen2");
    if (error || kn_team_open(&team, 1))
        return -1;
    struct moe_synth_options so = {
        .shape = "tiny", .n_layer = 1, .n_vocab = 360, .format = KN_Q4_K, .seed = 4, .team = team
    };
    error = moe_synth(random_other, &so);
    kn_team_close(team);
    return error;
}

static int end_all(void **state)
{
    unlink(exchanged);
    unlink(split_anew);
    unlink(random_other);
    return teardown_asked(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_cut_as_texts),
        cmocka_unit_test(exchanged_ids_draft_the_same),
        cmocka_unit_test(other_cuts_are_aligned),
        cmocka_unit_test(texts_are_read_in_any_parts),
        cmocka_unit_test(no_byte_is_lost),
        cmocka_unit_test(answers_are_the_same),
        cmocka_unit_test(trees_and_passes_need_the_same_vocabulary),
    };
    return cmocka_run_group_tests(tests, start_all, end_all);
}
