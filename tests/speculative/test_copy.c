/* Reference texts (speculative/copy.c): the place that an answer has reached, after copies, replaced, inserted, left out
 * and moved tokens; and drafts from the text (drafter.c).
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/model.h"

#include "speculative/internal.h"

enum { N = 300 };

static int32_t text[N];

static int start(void **state)
{
    (void)state;
    random_state = 7;
    for (int i = 0; i < N; i++) /* all different, but for a common one */
        text[i] = i % 10 == 9 ? 1 : 100 + i;
    return 0;
}

static void add(struct spec_copy *c, int from, int to)
{
    for (int i = from; i < to; i++)
        spec_copy_add(c, text[i]);
}

static void a_text_is_followed_to_its_end(void **state)
{
    struct spec_copy c;
    (void)state;
    spec_copy_start(&c, text, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(c.at, i);
        spec_copy_add(&c, text[i]);
    }
    assert_true(c.at == N && c.n_copied == N);
    spec_copy_add(&c, 7); /* beyond its end */
    spec_copy_add(&c, text[20]);
    assert_true(c.n_copied == N && c.at <= N);
}

/* After each change, the first token that equals the text's again finds the place; all after it are copied. */
static void changes_lose_few_tokens(void **state)
{
    struct spec_copy c;
    (void)state;
    spec_copy_start(&c, text, N); /* one replaced: the place is guessed */
    add(&c, 0, 50);
    spec_copy_add(&c, 7);
    assert_int_equal(c.at, 51);
    add(&c, 51, N);
    assert_true(c.at == N && c.n_copied == N - 1);

    spec_copy_start(&c, text, N); /* 20 inserted */
    add(&c, 0, 50);
    for (int i = 0; i < 20; i++)
        spec_copy_add(&c, 10 + i);
    assert_int_equal(c.at, -1);
    add(&c, 50, N);
    assert_true(c.at == N && c.n_copied == N - 1);

    spec_copy_start(&c, text, N); /* 10 left out */
    add(&c, 0, 50);
    add(&c, 60, N);
    assert_true(c.at == N && c.n_copied == N - 11);

    spec_copy_start(&c, text, N); /* a part from elsewhere: one token is not enough, two are */
    add(&c, 0, 50);
    spec_copy_add(&c, text[203]);
    assert_int_equal(c.at, 51);
    spec_copy_add(&c, text[204]);
    assert_int_equal(c.at, 205);
    add(&c, 205, N);
    assert_int_equal(c.n_copied, 50 + N - 205);
}

/* A token that occurs everywhere finds the place behind the last run. */
static void the_nearest_place_is_taken(void **state)
{
    struct spec_copy c;
    (void)state;
    spec_copy_start(&c, text, N);
    add(&c, 0, 105);
    spec_copy_add(&c, 7);
    spec_copy_add(&c, 8);
    spec_copy_add(&c, 1); /* text[109] */
    assert_true(c.at == 110 && c.run == 1);
}

static void any_answer_is_safe(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        int32_t few[40];
        int n = random_below(40);
        struct spec_copy c;
        for (int i = 0; i < n; i++)
            few[i] = random_below(4);
        spec_copy_start(&c, few, n);
        for (int i = 0; i < 200; i++) {
            int32_t t = random_below(5);
            int was = c.at, copied = c.n_copied;
            spec_copy_add(&c, t);
            assert_int_equal(c.n_copied - copied, was >= 0 && was < n && few[was] == t);
            assert_in_range(c.at + 1, 0, n + 1);
            for (int k = 0; k < kn_min(c.run, SPEC_COPY_RECENT); k++)
                assert_int_equal(few[c.at - 1 - k], c.recent[(c.n_recent - 1 - (uint32_t)k) % SPEC_COPY_RECENT]);
        }
    }
}

/* ---- drafts ------------------------------------------------------------------------------------------- */

static void drafts_are_the_next_tokens(void **state)
{
    static const enum spec_drafter_kind kinds[] = { SPEC_DRAFT_COPY, SPEC_DRAFT_NGRAM, SPEC_DRAFT_SUFFIX };
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct spec_drafter *d;
        struct spec_drafter_options o = { .kind = kinds[k], .n_vocab = 1000, .n_session = 2, .n_own = 64 };
        struct spec_tree t = { 0 };
        const int32_t prompt[] = { 5, 6, 7 };
        assert_int_equal(spec_drafter_open(&d, &o), 0);
        for (int session = 0; session < 2; session++) {
            spec_drafter_begin(d, session, 0);
            spec_drafter_commit(d, session, prompt, 3);
        }
        spec_drafter_set_reference(d, 1, text, N);
        for (int at = 0; at < N; at += 5) { /* more and more of it is trusted */
            spec_tree_clear(&t);
            spec_draft(d, 1, 16, 8, 2, &t);
            assert_in_range(t.n, at < 10 ? 1 : kn_min(8, N - at), 16);
            for (int i = 0, node = SPEC_ROOT; i < kn_min(at < 10 ? 1 : 8, N - at); i++) {
                node = spec_tree_child(&t, node, text[at + i]);
                assert_true(node >= 0 && t.source[node] == 2);
            }
            spec_drafter_commit(d, 1, text + at, 5);
            spec_drafter_commit(d, 0, text + at, 5);
        }
        spec_tree_clear(&t);
        spec_draft(d, 0, 16, 8, 2, &t); /* another session's text is not read */
        assert_int_equal(t.n, 0);
        spec_drafter_begin(d, 1, 0); /* nor that of an ended one */
        spec_drafter_commit(d, 1, text, 20);
        spec_draft(d, 1, 16, 8, 2, &t);
        assert_int_equal(t.n, 0);
        spec_drafter_close(d);
    }
}

/* A text that has nothing to do with the answer is soon not drafted any more. */
static void a_wrong_text_is_not_drafted(void **state)
{
    struct spec_drafter *d;
    struct spec_drafter_options o = { .kind = SPEC_DRAFT_COPY, .n_vocab = 1000, .n_session = 1 };
    struct spec_tree t;
    int n_drafted = 0;
    (void)state;
    assert_int_equal(spec_drafter_open(&d, &o), 0);
    spec_drafter_begin(d, 0, 0);
    spec_drafter_set_reference(d, 0, text, N);
    for (int i = 0; i < 500; i++) {
        int32_t other = 500 + random_below(400);
        spec_tree_clear(&t);
        spec_draft(d, 0, 16, 8, 1, &t);
        n_drafted += t.n;
        spec_drafter_commit(d, 0, &other, 1);
    }
    assert_in_range(n_drafted, 1, 40); /* of the first GUESSES + 1 tokens */
    spec_drafter_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_followed_to_its_end), cmocka_unit_test(changes_lose_few_tokens),
        cmocka_unit_test(the_nearest_place_is_taken),    cmocka_unit_test(any_answer_is_safe),
        cmocka_unit_test(drafts_are_the_next_tokens),    cmocka_unit_test(a_wrong_text_is_not_drafted),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
