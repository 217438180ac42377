/* The share of a layer's missing experts that is copied to a device: on simulated layers it finds the share that is fastest, comes
 * back when the machine changes, keeps its account, and leaves a machine alone on which copies never pay.
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "moe/pass/where.h"

#define N_LAYER   24
#define N_MISSING 16

static struct moe_where where;
static struct kn_arena arena;
static uint64_t random_state;

/* Milliseconds of one expert on the host, and of one copy; they run at once. */
struct machine {
    double host, copy;
};

static int open_where(void **state)
{
    (void)state;
    where = (struct moe_where){ .n_layer = 0 };
    random_state = 5;
    if (kn_arena_open(&arena, 1 << 20, -1))
        return -1;
    moe_where_lay_out(&where, N_LAYER, &arena);
    moe_where_init(&where);
    return 0;
}

static int close_where(void **state)
{
    (void)state;
    kn_arena_close(&arena);
    return 0;
}

static double uniform(void) { return (double)(kn_mix(random_state += KN_GOLDEN) >> 11) * 0x1p-53; }

static double layer_ns(const struct machine *m, int n_copy, int n_missing)
{
    return 1e6 * (0.2 + fmax(m->host * (n_missing - n_copy), m->copy * n_copy)) * (0.9 + 0.2 * uniform());
}

/* Runs layers; returns their time over that of layers without copies. */
static double go(const struct machine *m, int n_row, int n_pass)
{
    double ns = 0, none = 0;
    for (int i = 0; i < n_pass * N_LAYER; i++) {
        int n = moe_where_copies(&where, i % N_LAYER, n_row, N_MISSING);
        double took = layer_ns(m, n, N_MISSING);
        moe_where_learn(&where, took);
        ns += took;
        none += layer_ns(m, 0, N_MISSING);
    }
    return ns / none;
}

static void the_fastest_share_is_found(void **state)
{
    static const struct {
        struct machine m;
        double share;
    } known[] = { { { 1, 1 }, 0.5 }, { { 1, 0.05 }, 1 }, { { 0.3, 1 }, 0.25 }, { { 0.05, 1 }, 0 } };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        go(&known[i].m, 1 << 2 * (4 - (int)i), 300); /* a bucket for each */
        assert_true(moe_where_share(&where, 1 << 2 * (4 - (int)i)) == known[i].share);
    }
}

static void a_machine_that_changes_is_followed(void **state)
{
    (void)state;
    go(&(struct machine){ 1, 0.05 }, 64, 100);
    assert_true(moe_where_share(&where, 64) == 1);
    go(&(struct machine){ 0.05, 1 }, 64, 300); /* the link is taken by something else */
    assert_true(moe_where_share(&where, 64) == 0);
}

/* A few copies pay while the host is slow.  When it is fast again all layers take less time, and with it the samples of no copies tell
 * nothing any more. */
static void samples_of_another_time_are_doubted(void **state)
{
    (void)state;
    go(&(struct machine){ 0.6, 6 }, 64, 200);
    assert_true(moe_where_share(&where, 64) == 0);
    go(&(struct machine){ 1, 6 }, 64, 200);
    assert_true(moe_where_share(&where, 64) == 0.125);
    go(&(struct machine){ 0.6, 6 }, 64, 15);
    assert_true(moe_where_share(&where, 64) == 0);
}

/* Copies take 20 times as long as products: trials stay within the account's one percent and a few layers. */
static void trials_cost_little(void **state)
{
    (void)state;
    double took = go(&(struct machine){ 0.05, 1 }, 1, 2000);
    assert_true(moe_where_share(&where, 1) == 0);
    assert_true(where.n_trial > 0);
    if (took > 1.015)
        fail_msg("%f of the time without copies", took);
}

/* A first trial that takes 200 times as long uses up the account: no other share is tried for a long time. */
static void a_dear_trial_ends_trials(void **state)
{
    (void)state;
    go(&(struct machine){ 0.05, 100 }, 1, 100);
    assert_int_equal(where.n_trial, 1);
}

static void a_near_bucket_begins_with_the_share_of_its_neighbour(void **state)
{
    (void)state;
    go(&(struct machine){ 1, 0.05 }, 256, 20);
    assert_int_equal(moe_where_copies(&where, 0, 100, N_MISSING), N_MISSING);
    assert_int_equal(moe_where_copies(&where, 0, 1, N_MISSING), 0);
}

static void exchanges_keep_their_account(void **state)
{
    double ns = 0, lost = 0;
    int n = 0;
    (void)state;
    for (int i = 0; i < 2000 * N_LAYER; i++) { /* whenever it is allowed, for three times the layer's own time */
        moe_where_copies(&where, i % N_LAYER, 1, 0);
        assert_false(moe_where_may_exchange(&where));
        int n_copy = moe_where_copies(&where, i % N_LAYER, 1, N_MISSING);
        double took = layer_ns(&(struct machine){ 0.05, 1 }, n_copy, N_MISSING);
        if (moe_where_may_exchange(&where)) {
            moe_where_exchanged(&where);
            lost += 3e6;
            took += 3e6;
            n++;
        }
        ns += took;
        moe_where_learn(&where, took);
    }
    assert_true(n > 10);
    if (lost > 0.012 * ns)
        fail_msg("%d exchanges took %f of the time", n, lost / ns);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_fastest_share_is_found, open_where, close_where),
        cmocka_unit_test_setup_teardown(a_machine_that_changes_is_followed, open_where, close_where),
        cmocka_unit_test_setup_teardown(samples_of_another_time_are_doubted, open_where, close_where),
        cmocka_unit_test_setup_teardown(trials_cost_little, open_where, close_where),
        cmocka_unit_test_setup_teardown(a_dear_trial_ends_trials, open_where, close_where),
        cmocka_unit_test_setup_teardown(a_near_bucket_begins_with_the_share_of_its_neighbour, open_where, close_where),
        cmocka_unit_test_setup_teardown(exchanges_keep_their_account, open_where, close_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
