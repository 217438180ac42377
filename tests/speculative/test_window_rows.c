/* Rows of lookahead windows in the controller (cut.c, learn.c): which of them the cut keeps, and that they are no drafts
 * when they are accepted.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/machine.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* A controller that drafts: 10 ms a pass and 3 ms a row, drafts of 0.2 ms that are right at a rate of 0.7. */
static struct spec_control *settled(void)
{
    struct machine machine = {
        "hand", { .fixed_ns = 10e6, .choose_row_ns = 3e6, .ridge = 1, .growth = 1 }, 0, 0, 0, 0, 0, 0
    };
    struct machine_drafter drafter = { "model", 4, 0.2e6, 0, 0.7, 0, 0 };
    struct spec_control_options o = {
        .n_session = MACHINE_SESSIONS, .n_drafter = 1, .rule = SPEC_COUPLED, .gamma = SPEC_AUTO, .n_expert = 16
    };
    struct spec_control *c;
    struct spec_decision d = { .drafter = SPEC_OFF };
    int session = 0, nodes;
    o.drafter[0].name = drafter.name;
    o.drafter[0].max_depth = drafter.max_depth;
    assert_int_equal(spec_control_open(&c, &o), 0);
    machine_seed = 9;
    machine_go(c, &machine, &drafter, 1, 600, NULL, NULL);
    for (int i = 0; i < 50; i++) {
        spec_control_decide(c, &session, 1, 0, &d, &nodes);
        if (d.why == SPEC_WHY_GAINS || d.why == SPEC_WHY_SMALL_DIFFERENCE)
            break;
        machine_go(c, &machine, &drafter, 1, 1, NULL, NULL);
    }
    assert_int_equal(d.drafter, 0);
    return c;
}

/* A row of a window counts as much as it gives, but only with all rows of its column. */
static void columns_are_kept_whole(void **state)
{
    (void)state;
    struct spec_control *c = settled();
    static struct spec_tree tree;
    static struct spec_cut cut;
    spec_tree_clear(&tree);
    cut = (struct spec_cut){ .session = 0, .tree = &tree, .n_requested = 4 };
    int poor = spec_tree_add_window_row(&tree, SPEC_ROOT, 8, 0.2f);
    int good = spec_tree_add_window_row(&tree, SPEC_ROOT, 9, 0.9f);
    tree.wants_target_token[poor] = tree.wants_target_token[good] = true;
    int part = spec_tree_add_window_row(&tree, good, 7, 0.9f); /* the last row of its column is too dear */
    int last = spec_tree_add_window_row(&tree, part, 7, 0.01f);
    tree.wants_target_token[last] = true;
    spec_control_cut(c, &cut, 1, 0);
    assert_true(cut.keep[good] && !cut.keep[poor] && !cut.keep[part] && !cut.keep[last]);
    assert_int_equal(cut.n_keep, 1);
    spec_control_close(c);
}

/* Under the other rules all drafted nodes are kept, whatever they cost, and rows of windows if they are worth it. */
static void drawn_drafts_keep_their_nodes(void **state)
{
    (void)state;
    struct spec_control *c = settled();
    static struct spec_tree tree;
    static struct spec_cut cut;
    c->opt.rule = SPEC_RATIO;
    for (int dear = 0; dear < 2; dear++) {
        spec_tree_clear(&tree);
        spec_tree_add(&tree, SPEC_ROOT, 1, 0.01f, 1);
        int row = spec_tree_add_window_row(&tree, SPEC_ROOT, 2, dear ? 0.01f : 0.9f);
        tree.wants_target_token[row] = true;
        cut = (struct spec_cut){ .session = 0, .tree = &tree, .n_requested = 4 };
        spec_control_cut(c, &cut, 1, 0);
        assert_true(cut.keep[0] && cut.keep[row] == !dear && cut.blind);
        assert_int_equal(cut.n_keep, 1 + !dear);
    }
    spec_control_close(c);
}

/* The draft is always wrong, and a row of a window beside it right: no drafted node is accepted, and the drafter is not
 * trusted for it. */
static void accepted_rows_of_windows_are_no_drafts(void **state)
{
    (void)state;
    struct spec_control *c = settled();
    struct spec_account a;
    static struct spec_tree tree;
    spec_control_account(c, 0, &a);
    uint64_t n_before = a.n_accepted, n_drafted = a.n_drafted;
    int session = 0, nodes;
    struct spec_decision d = { .drafter = 0 };
    double trust = c->arm[0].correction[0];
    for (int i = 0; i < 30 && d.drafter == 0; i++) {
        spec_tree_clear(&tree);
        spec_tree_add(&tree, SPEC_ROOT, 1, 0.8f, 1);
        int16_t path[] = { (int16_t)spec_tree_add_window_row(&tree, SPEC_ROOT, 2, 0.5f) };
        struct spec_session_outcome outcome = { 0, &tree, 1, path };
        spec_control_learn(
            c, &(struct spec_outcome_of_pass){ .n_row = 3, .pass_ns = 1e6, .n_due = 1, .outcome = &outcome });
        spec_control_decide(c, &session, 1, 0, &d, &nodes);
    }
    spec_control_account(c, 0, &a);
    assert_true(a.n_drafted > n_drafted);
    assert_int_equal(a.n_accepted, n_before);
    assert_true(c->arm[0].correction[0] < trust);
    spec_control_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_kept_whole),
        cmocka_unit_test(drawn_drafts_keep_their_nodes),
        cmocka_unit_test(accepted_rows_of_windows_are_no_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
