/* Lookahead decoding (speculative/lookahead.c, drafter.c): where the window's rows lie in a draft, which of them continue
 * as n-grams, how the window follows a sequence, and drafts from the pool. The target is a table: its token depends on
 * the one before it alone, so that the n-grams of a window are known.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/model.h"

#include "speculative/internal.h"

enum { COLUMNS = 4, GRAM = 4, LEVELS = GRAM - 1, ROWS = COLUMNS - 1 + COLUMNS * (GRAM - 2) };

static struct kn_arena arena;
static struct spec_recall text;
static struct spec_pool pool;

static int32_t target(int32_t token) { return (7 * token + 3) % 50; }

static int start(void **state)
{
    (void)state;
    assert_int_equal(kn_arena_open(&arena, 1 << 20, -1), 0);
    spec_recall_init(&text, &arena, 256, false);
    spec_pool_init(&pool, &arena, GRAM);
    spec_pool_clear(&pool);
    for (int i = 0; i < 60; i++)
        spec_recall_add(&text, 100 + i);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    kn_arena_close(&arena);
    return 0;
}

static void say(const struct spec_tree *t, int32_t *said)
{
    for (int i = 0; i < t->n; i++)
        said[i] = target(t->token[i]);
}

/* Token j of column i lies i + j behind the root, after the columns before it. */
static void rows_lie_on_their_paths(void **state)
{
    struct spec_window w;
    struct spec_tree t;
    (void)state;
    spec_window_start(&w, COLUMNS, GRAM);
    spec_window_advance(&w, &text, 60, 159);
    assert_int_equal(w.token[0][0], 159);
    for (int i = 0; i < COLUMNS; i++)
        for (int j = 0; j < LEVELS; j++)
            w.token[j][i] = 10 * i + j; /* all different */
    assert_int_equal(spec_window_rows(COLUMNS, GRAM), ROWS);
    spec_tree_clear(&t);
    assert_int_equal(spec_window_lay(&w, &t, ROWS, 0.5f), ROWS);
    assert_int_equal(t.n, ROWS);
    assert_int_equal(spec_tree_n_drafted(&t), 0);
    int n_asked = 0;
    for (int k = 0; k < t.n; k++) {
        int i = t.token[k] / 10, j = t.token[k] % 10, parent = t.parent[k];
        assert_true(t.window_row[k] && t.survival[k] == 0.5f);
        assert_int_equal(t.depth[k], i + j);
        assert_int_equal(t.wants_target_token[k], j == LEVELS - 1);
        n_asked += t.wants_target_token[k];
        int32_t before = j > 0 ? t.token[k] - 1 : 10 * (i - 1); /* the path: tokens of its column, then of level 0 */
        if (before == 0)
            assert_int_equal(parent, SPEC_ROOT);
        else
            assert_int_equal(t.token[parent], before);
    }
    assert_int_equal(n_asked, COLUMNS);
    for (int n = 0; n < ROWS; n++) { /* whole columns only */
        spec_tree_clear(&t);
        int laid = spec_window_lay(&w, &t, n, 0.5f);
        assert_true(laid <= n && laid == t.n);
        assert_int_equal(laid, n < 2 ? 0 : 2 + (n - 2) / LEVELS * LEVELS);
    }
}

/* A guess that is drafted already keeps its node, its survival and its rule; a draft that comes later owns the node. */
static void drafts_and_rows_share_nodes(void **state)
{
    struct spec_tree t;
    (void)state;
    spec_tree_clear(&t);
    int a = spec_tree_add(&t, SPEC_ROOT, 5, 0.75f, 1);
    assert_int_equal(spec_tree_add_window_row(&t, SPEC_ROOT, 5, 0.9f), a);
    int b = spec_tree_add_window_row(&t, a, 6, 0.25f);
    assert_true(!t.window_row[a] && t.survival[a] == 0.75f && t.window_row[b]);
    t.wants_target_token[b] = true;
    int c = spec_tree_add_window_row(&t, SPEC_ROOT, 7, 0.25f), d = spec_tree_add_window_row(&t, c, 8, 0.25f);
    t.wants_target_token[d] = true;
    assert_int_equal(spec_tree_n_drafted(&t), 1);
    bool keep[] = { true, false, true, true };
    spec_tree_prune(&t, keep, false);
    assert_int_equal(t.n, 3);
    assert_true(!t.window_row[0] && !t.wants_target_token[0] && t.window_row[1] && !t.wants_target_token[1] &&
                t.window_row[2] && t.wants_target_token[2]);
    assert_int_equal(spec_tree_add(&t, SPEC_ROOT, 7, 0.1f, 2), 1);
    assert_true(!t.window_row[1] && t.survival[1] == 0.1f && t.source[1] == 2);
}

/* Whatever the window holds at first, after LEVELS passes its columns are text of the target, and so are the n-grams;
 * the pool has them by their first token. */
static void guesses_become_text(void **state)
{
    struct spec_window w;
    struct spec_tree t;
    int32_t said[SPEC_NODES], last = 1;
    (void)state;
    spec_window_start(&w, COLUMNS, GRAM);
    spec_window_advance(&w, &text, 60, last);
    for (int pass = 0; pass < 12; pass++) {
        spec_tree_clear(&t);
        spec_window_lay(&w, &t, ROWS, 0.5f);
        say(&t, said);
        spec_window_learn(&w, &t, said);
        spec_window_give(&w, &pool);
        int n_new = 1 + (pass > 6 && pass % 2);
        for (int i = 0; i < n_new; i++)
            spec_recall_add(&text, last = target(last));
        spec_window_advance(&w, &text, n_new, last);
        assert_int_equal(w.token[0][0], last);
        for (int i = 0; pass + 1 >= LEVELS && pass <= 6 && i < COLUMNS; i++)
            for (int j = 1 + (i == 0); j < LEVELS; j++) /* token 0 of column 0 was replaced by the sequence's */
                assert_int_equal(w.token[j][i], target(w.token[j - 1][i]));
    }
    struct spec_match m[SPEC_POOL_WAYS];
    int n = spec_pool_find(&pool, &w.token[0][1], 1, m, SPEC_POOL_WAYS);
    assert_true(n >= 0);
    int n_true = 0;
    for (int32_t first = 0; first < 50; first++)
        for (int k = spec_pool_find(&pool, &first, 1, m, SPEC_POOL_WAYS) - 1; k >= 0; k--) {
            assert_true(m[k].gram[0] == first && m[k].n_gram == GRAM && m[k].length == 1);
            n_true += m[k].gram[1] == target(first) && m[k].gram[2] == target(m[k].gram[1]) &&
                      m[k].gram[3] == target(m[k].gram[2]);
        }
    assert_true(n_true >= COLUMNS);
}

/* N-grams of the pool; each must end with the target's token after the one before. */
static int count_true_grams(void)
{
    struct spec_match m[SPEC_POOL_WAYS];
    int n_gram = 0;
    for (int32_t first = 0; first < 200; first++)
        for (int k = spec_pool_find(&pool, &first, 1, m, SPEC_POOL_WAYS) - 1; k >= 0; k--, n_gram++)
            assert_int_equal(m[k].gram[GRAM - 1], target(m[k].gram[GRAM - 2]));
    return n_gram;
}

/* Rows that were cut, or failed, give no n-gram; the window goes on. */
static void missing_rows_do_no_harm(void **state)
{
    struct spec_window w;
    struct spec_tree t;
    int32_t said[SPEC_NODES], last = 2;
    bool keep[SPEC_NODES];
    (void)state;
    random_state = 3;
    spec_pool_clear(&pool);
    spec_window_start(&w, COLUMNS, GRAM);
    spec_window_advance(&w, &text, 60, last);
    for (int pass = 0; pass < 300; pass++) {
        spec_tree_clear(&t);
        spec_window_lay(&w, &t, (int)(random_bits() % (ROWS + 1)), 0.5f);
        for (int i = 0; i < t.n; i++)
            keep[i] = random_bits() % 8 > 0;
        spec_tree_prune(&t, keep, false);
        say(&t, said);
        for (int i = 0; i < t.n; i++)
            said[i] = random_bits() % 8 ? said[i] : -1;
        spec_window_learn(&w, &t, said);
        spec_window_give(&w, &pool);
        int n_new = 1 + (int)(random_bits() % 6);
        for (int i = 0; i < n_new; i++)
            spec_recall_add(&text, last = target(last));
        spec_window_advance(&w, &text, n_new, last);
        for (int i = 0; i < COLUMNS; i++)
            for (int j = 0; j < LEVELS; j++)
                assert_true(w.token[j][i] >= 0);
    }
    assert_true(count_true_grams() > 50);
}

/* The newest n-grams of a first token stay; an n-gram that comes again is stored once. */
static void the_pool_keeps_the_newest(void **state)
{
    struct spec_match m[2 * SPEC_POOL_WAYS];
    int32_t tail[] = { 9, 4, 1 };
    (void)state;
    spec_pool_clear(&pool);
    assert_int_equal(spec_pool_find(&pool, tail, 2, m, 16), 0);
    for (int32_t i = 0; i < 2 * SPEC_POOL_WAYS; i++)
        spec_pool_add(&pool, (int32_t[]){ 4, i, 2, 3 });
    spec_pool_add(&pool, (int32_t[]){ 4, 2 * SPEC_POOL_WAYS - 3, 2, 3 }); /* again */
    assert_int_equal(spec_pool_find(&pool, tail, 2, m, 16), SPEC_POOL_WAYS);
    assert_int_equal(m[0].gram[1], 2 * SPEC_POOL_WAYS - 3);
    for (int i = 1; i < SPEC_POOL_WAYS; i++)
        assert_int_equal(m[i].gram[1], 2 * SPEC_POOL_WAYS - i - (i >= 3));
    spec_pool_add(&pool, (int32_t[]){ 4, 1, 7, 8 });
    spec_pool_add(&pool, (int32_t[]){ 9, 4, 1, 6 });
    int n = spec_pool_find(&pool, tail, 3, m, 16); /* the longest match first: 9 4 1, then 4 1 */
    assert_true(n == 2 && m[0].length == 3 && m[0].gram[3] == 6 && m[1].length == 2 && m[1].gram[2] == 7);
}

/* A text that never repeats, of which the target knows each place: the drafter drafts the n-grams of its window, and
 * prices its rows by the tokens they give. */
static void the_drafter_drafts_from_its_pool(void **state)
{
    struct spec_drafter_options o = {
        .kind = SPEC_DRAFT_LOOKAHEAD, .n_vocab = 1000, .n_session = 2, .n_own = 512, .n_column = COLUMNS, .n_gram = GRAM
    };
    struct spec_drafter *d;
    struct spec_tree t;
    int32_t said[SPEC_NODES], prompt[20], last = 0;
    int n_drafted = 0, n_right = 0;
    float first_value = 0, value = 0;
    (void)state;
    for (int i = 0; i < 20; i++)
        prompt[i] = last = (last + 1) % 997;
    assert_int_equal(spec_drafter_open(&d, &o), 0);
    spec_drafter_begin(d, 1, 0);
    spec_drafter_commit(d, 1, prompt, 20);
    for (int pass = 0; pass < 60; pass++) {
        spec_tree_clear(&t);
        spec_draft(d, 1, 4, 4, 1, &t);
        n_drafted += t.n > 0;
        for (int i = 0; i < t.n; i++)
            n_right += t.depth[i] == 1 && t.token[i] == (last + 1) % 997;
        assert_true(spec_draft_window(d, 1, ROWS, &t) <= ROWS);
        for (int i = 0; i < t.n; i++) {
            value = t.window_row[i] ? t.survival[i] : value;
            said[i] = (last + t.depth[i] + 1) % 997;
        }
        first_value = pass ? first_value : value;
        spec_drafter_learn_window(d, 1, &t, said, NULL, 0);
        last = (last + 1) % 997;
        spec_drafter_commit(d, 1, &last, 1);
    }
    assert_true(n_drafted > 40 && n_right > 40);
    assert_true(value > first_value); /* a token in each pass, for ROWS rows */
    spec_drafter_begin(d, 1, 0);      /* nothing is left of the sequence before but the value */
    spec_drafter_commit(d, 1, &last, 1);
    spec_tree_clear(&t);
    spec_draft(d, 1, 4, 4, 1, &t);
    assert_int_equal(t.n, 0);
    spec_drafter_close(d);
}

/* Every pass accepts a row of the window, which is a random guess, and the target's token after it. The n-gram of these
 * tokens is made in the same pass, so it is no draft that was right: matches in the text are not trusted more for it.
 * But the accepted row counts in the value of a row, also for the next session. */
static void a_pass_does_not_draft_itself(void **state)
{
    struct spec_drafter_options o = {
        .kind = SPEC_DRAFT_LOOKAHEAD, .n_vocab = 1000000, .n_session = 2, .n_own = 8192, .n_column = 1, .n_gram = 3
    };
    int32_t prompt[40], again[] = { 700001, 700002, 700003, 700001, 700002 }, said[SPEC_NODES];
    struct spec_drafter *d;
    struct spec_tree t;
    (void)state;
    for (int i = 0; i < 40; i++)
        prompt[i] = 1000 + i;
    assert_int_equal(spec_drafter_open(&d, &o), 0);
    spec_drafter_begin(d, 0, 0);
    spec_drafter_commit(d, 0, prompt, 40);
    for (int pass = 0; pass < 200; pass++) {
        spec_tree_clear(&t);
        assert_int_equal(spec_draft_window(d, 0, 1, &t), 1);
        said[0] = 100000 + pass;
        spec_drafter_learn_window(d, 0, &t, said, (int16_t[]){ 0 }, 1);
        spec_drafter_commit(d, 0, (int32_t[]){ t.token[0], said[0] }, 2);
    }
    spec_drafter_commit(d, 0, again, 5);
    spec_tree_clear(&t);
    spec_draft(d, 0, 4, 4, 1, &t);
    assert_int_equal(t.token[0], 700003);
    if (t.survival[0] > 0.7f)
        fail_msg("survival of a match of two tokens: %.2f", (double)t.survival[0]);
    double value = spec_window_value(d);
    assert_true(value > 0.7 && value < 1);
    spec_drafter_begin(d, 1, 0);
    spec_drafter_commit(d, 1, prompt, 40); /* a prompt does not change the value */
    assert_true(spec_window_value(d) == value);
    spec_drafter_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_lie_on_their_paths),      cmocka_unit_test(drafts_and_rows_share_nodes),
        cmocka_unit_test(guesses_become_text),          cmocka_unit_test(missing_rows_do_no_harm),
        cmocka_unit_test(the_pool_keeps_the_newest),    cmocka_unit_test(the_drafter_drafts_from_its_pool),
        cmocka_unit_test(a_pass_does_not_draft_itself),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
