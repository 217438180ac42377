/* speculative/cut.c - the nodes of all drafts that get a row: one budget, and the experts that nodes need.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/settled.h"

#define ROUNDS 64

/* The likeliest of all sessions' nodes are accepted, from the root on, and none that costs more than it gains. */
static void one_budget_for_all(void **state)
{
    (void)state;
    struct spec_control *c = settled(4);
    decide_on(c, 4);
    static struct spec_tree tree[4];
    static struct spec_cut cut[4];
    static const float first[4] = { 0.97f, 0.8f, 0.2f, 0.02f };
    for (int i = 0; i < 4; i++) {
        spec_tree_clear(&tree[i]);
        float survival = 1;
        for (int j = 0; j < 4; j++)
            spec_tree_add(&tree[i], j - 1, j, survival *= first[i], 1);
        cut[i] = (struct spec_cut){ .session = i, .tree = &tree[i], .n_requested = 4 };
    }
    spec_control_cut(c, cut, 4, 0);
    assert_int_equal(cut[0].n_keep, 4);
    assert_true(cut[1].n_keep >= 1 && cut[1].n_keep < 4);
    assert_int_equal(cut[2].n_keep, 0);
    assert_int_equal(cut[3].n_keep, 0);
    for (int i = 0; i < 4; i++)
        for (int j = 1; j < 4; j++)
            assert_true(!cut[i].keep[j] || cut[i].keep[j - 1]);
    spec_control_close(c);
}

/* Steps that waited 1 ms for every expert teach the cost of a missing one. Of two equal nodes, the one is accepted
 * that needs experts already brought in by another node. */
static void experts_that_others_bring_are_free(void **state)
{
    (void)state;
    struct spec_control *c = settled(2);
    struct spec_decision decision;
    struct spec_session_outcome outcome[2] = { { .session = 0 }, { .session = 1 } };
    int nodes[2], session[2] = { 0, 1 };
    for (int i = 0; i < 50; i++) {
        spec_control_decide(c, session, 2, 0, &decision, nodes);
        struct spec_outcome_of_pass s = {
            .n_row = 2, .n_due = 2, .pass_ns = 16e6, .stall_ns = 4e6, .missed_bytes = 4e6, .outcome = outcome
        };
        if (decision.drafter == SPEC_OFF || i < 40)
            spec_control_learn(c, &s);
    }
    decide_on(c, 2);
    static const int32_t often[5] = { 1, 2, 3, 4, 5 }, alone[10] = { 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    static struct spec_tree tree[2];
    static struct spec_cut cut[2];
    const struct spec_need need[2][2] = { { { NULL, 0 }, { often, 5 } }, { { often, 5 }, { alone, 10 } } };
    for (int i = 0; i < 2; i++) {
        spec_tree_clear(&tree[i]);
        spec_tree_add(&tree[i], SPEC_ROOT, 1, 0.9f, 1);
        spec_tree_add(&tree[i], SPEC_ROOT, 2, 0.8f, 1);
        cut[i] = (struct spec_cut){ .session = i, .tree = &tree[i], .n_requested = 2, .need = need[i] };
    }
    spec_control_cut(c, cut, 2, 0.5e6);
    assert_true(cut[0].keep[0]);  /* needs no missing expert */
    assert_true(cut[1].keep[0]);  /* brings five in, and is likely enough */
    assert_true(cut[0].keep[1]);  /* uses the five experts of the last one */
    assert_false(cut[1].keep[1]); /* as likely, but brings in ten of its own */
    spec_control_close(c);
}

/* A controller with four sequences, whose rows take 3 ms, and for which an expert seems to take expert_ms. */
static struct spec_control *waiting(double expert_ms, int n_expert)
{
    struct spec_control *c = settled(4);
    struct spec_cost_model pass = hand.cost;
    struct spec_session_outcome outcome[4] = { { .session = 0 }, { .session = 1 }, { .session = 2 }, { .session = 3 } };
    struct spec_decision decision;
    int nodes[4], session[4] = { 0, 1, 2, 3 };
    pass.n_expert = n_expert;
    pass.n_used = 2;
    spec_control_set_forecast(c, &pass, NULL);
    for (int i = 0; i < 20; i++) {
        spec_control_decide(c, session, 4, 0, &decision, nodes);
        spec_control_learn(c, &(struct spec_outcome_of_pass){ .n_row = 4,
                                                              .n_due = 4,
                                                              .pass_ns = 22e6,
                                                              .stall_ns = 8e6,
                                                              .missed_bytes = 8e6 / expert_ms,
                                                              .outcome = outcome });
    }
    decide_on(c, 4);
    return c;
}

/* The nodes kept of a chain of four for each of four sequences. */
static int n_kept(struct spec_control *c, const struct spec_need (*need)[4])
{
    static struct spec_tree tree[4];
    static struct spec_cut cut[4];
    int n_keep = 0;
    for (int i = 0; i < 4; i++) {
        float survival = 1;
        spec_tree_clear(&tree[i]);
        for (int j = 0; j < 4; j++)
            spec_tree_add(&tree[i], j - 1, j, survival *= 0.87f, 1);
        cut[i] = (struct spec_cut){ .session = i, .tree = &tree[i], .n_requested = 4, .need = need ? need[i] : NULL };
    }
    spec_control_cut(c, cut, 4, 1e6);
    for (int i = 0; i < 4; i++)
        n_keep += cut[i].n_keep;
    return n_keep;
}

/* The measured time of a row includes the loads of an average row.  Nodes that need as many experts as the average are
 * worth about as many rows as nodes whose needs are not known, also where the experts of only some have numbers: the
 * others load some of the same.  A few less, since the nodes that share no expert are dropped. */
static void average_needs_add_no_time(void **state)
{
    (void)state;
    struct spec_control *c = waiting(4, 16);
    int32_t expert[16][2];
    struct spec_need need[4][4];
    int by_rows = n_kept(c, NULL);
    assert_in_range(by_rows, 8, 16);
    for (int one_in = 2; one_in <= 4; one_in++) {
        int n = 0;
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < 16; i++) {
                for (int k = 0; k < 2; k++)
                    expert[i][k] = (int32_t)(kn_mix((uint64_t)(32 * round + 2 * i + k)) % 16);
                need[i / 4][i % 4] = (struct spec_need){ i % one_in ? NULL : expert[i], 2 };
            }
            n += n_kept(c, need);
        }
        if (n < by_rows * ROUNDS * 85 / 100 || n > by_rows * ROUNDS * 105 / 100)
            fail_msg("one node in %d with numbers: %d kept, by rows %d", one_in, n, by_rows * ROUNDS);
    }
    spec_control_close(c);
}

/* The loads of an average node take longer than a row, since they overlap with products.  If every second node needs two
 * experts and the others none, as many nodes are kept as without needs. */
static void loads_take_at_most_a_row(void **state)
{
    (void)state;
    struct spec_control *c = waiting(8, 1024);
    int32_t expert[16];
    struct spec_need need[4][4];
    for (int i = 0; i < 16; i++) {
        expert[i] = i;
        need[i / 4][i % 4] = (struct spec_need){ expert + i, i % 2 ? 0 : 2 };
    }
    int by_rows = n_kept(c, NULL);
    assert_in_range(by_rows, 8, 16);
    assert_in_range(n_kept(c, need), by_rows - 1, by_rows + 1);
    spec_control_close(c);
}

/* Where every row uses all experts, a further row loads none, whatever it needs. */
static void all_experts_are_used_anyway(void **state)
{
    (void)state;
    struct spec_control *c = waiting(4, 2);
    struct spec_need need[4][4];
    for (int i = 0; i < 16; i++)
        need[i / 4][i % 4] = (struct spec_need){ NULL, 2 };
    int by_rows = n_kept(c, NULL);
    assert_in_range(by_rows, 8, 16);
    assert_int_equal(n_kept(c, need), by_rows);
    spec_control_close(c);
}

static void another_text_starts_anew(void **state)
{
    (void)state;
    struct spec_control *c = settled(2);
    static struct spec_tree tree[2];
    static struct spec_cut cut[2];
    struct spec_session_outcome outcome[2] = { { 0, &tree[0], 4, NULL }, { 1, &tree[1], 0, NULL } };
    for (int s = 0; s < 2; s++) {
        machine_draft(&by_hand, 4, 4, &tree[s]);
        cut[s] = (struct spec_cut){ .session = s, .tree = &tree[s], .n_requested = 4 };
    }
    for (int i = 0; i < 40; i++) { /* session 0 accepts all, session 1 none */
        decide_on(c, 2);
        struct spec_outcome_of_pass s = {
            .n_row = 10, .draft_ns = 0.8e6, .pass_ns = 40e6, .n_due = 2, .outcome = outcome
        };
        spec_control_learn(c, &s);
    }
    decide_on(c, 2);
    spec_control_cut(c, cut, 2, 0);
    assert_true(cut[0].n_keep > cut[1].n_keep);
    spec_control_begin(c, 0);
    spec_control_begin(c, 1);
    decide_on(c, 2);
    spec_control_cut(c, cut, 2, 0);
    assert_int_equal(cut[0].n_keep, cut[1].n_keep);
    spec_control_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_budget_for_all),          cmocka_unit_test(experts_that_others_bring_are_free),
        cmocka_unit_test(average_needs_add_no_time),   cmocka_unit_test(loads_take_at_most_a_row),
        cmocka_unit_test(all_experts_are_used_anyway), cmocka_unit_test(another_text_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
