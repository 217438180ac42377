/* The arithmetic of plan, against numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/plan.h"

/* One context of 100 positions is two blocks of 64: 1280 bytes.  The least is 1000 + 12280 and, for page
 * tables, a 512th of the latter: 24. */
static const struct eng_need need = {
    .fixed_bytes = 1000, .dense_bytes = 5000, .step_bytes = 2000, .kv_slot_bytes = 10, .n_ctx = 100,
    .n_parallel = 8, .expert_bytes = 100000, .expert_least = 4000, .n_expert = 50,
};
#define LEAST 13304

static void check_parts(const struct eng_split *s, size_t kv, size_t expert, int n_resident, size_t fixed,
                        size_t spare)
{
    if (s->kv != kv || s->expert != expert || s->n_resident != n_resident || s->fixed != fixed ||
        s->spare != spare)
        fail_msg("total %zu: KV %zu, experts %zu (%d), fixed %zu, spare %zu", s->total, s->kv, s->expert,
                 s->n_resident, s->fixed, s->spare);
    assert_int_equal(s->dense, 5000);
    assert_int_equal(s->step, 2000);
    assert_int_equal(s->n_kv_slot, s->kv / 10);
    assert_int_equal(s->fixed + s->dense + s->step + s->kv + s->expert + s->spare, s->total);
}

static void a_budget_is_split_from_the_top(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    assert_int_equal(eng_plan_split(&s, &n, LEAST), 0);         /* one context, and the least of experts */
    check_parts(&s, 1280, 4000, 2, 1024, 0);

    assert_int_equal(eng_plan_split(&s, &n, 60000), 0);         /* 51880 are left: eight contexts are less */
    check_parts(&s, 10240, 41640, 20, 1115, 5);                 /* than 30 % of it */

    n.n_parallel = 100;                                         /* 24 blocks are in 30 % */
    assert_int_equal(eng_plan_split(&s, &n, 60000), 0);
    check_parts(&s, 15360, 36520, 18, 1115, 5);

    assert_int_equal(eng_plan_split(&s, &n, 1000000), 0);       /* all that is wanted, and something over */
    check_parts(&s, 128000, 100000, 50, 1459, 763541);

    n.n_parallel = 1000;                                        /* experts leave over more than 30 % */
    assert_int_equal(eng_plan_split(&s, &n, 1000000), 0);
    check_parts(&s, 889600, 100000, 50, 2947, 453);

    n.kv_mem = 6410;                                            /* a wish, to whole blocks */
    assert_int_equal(eng_plan_split(&s, &n, 60000), 0);
    check_parts(&s, 6400, 45480, 22, 1115, 5);

    n = need;                                                   /* one context is more than 30 % */
    n.expert_least = 100;
    assert_int_equal(eng_plan_split(&s, &n, 9397), 0);
    check_parts(&s, 1280, 100, 0, 1017, 0);
}

static void too_little_is_refused_with_what_is_enough(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    assert_int_equal(eng_plan_split(&s, &n, 0), KN_ELIMIT);
    assert_int_equal(eng_plan_split(&s, &n, LEAST - 1), KN_ELIMIT);
    assert_int_equal(s.least, LEAST);
    assert_int_equal(s.kv_least, 1280);

    n.kv_mem = 1279;
    assert_int_equal(eng_plan_split(&s, &n, 60000), KN_EINVAL);
    assert_int_equal(s.kv_least, 1280);
    n.kv_mem = 1280 + 512;                                      /* what was asked for is not made less */
    assert_int_equal(eng_plan_split(&s, &n, LEAST), KN_ELIMIT);
    assert_int_equal(s.least, LEAST + 513);
    assert_int_equal(eng_plan_split(&s, &n, s.least), 0);
}

static void from_the_least_on_everything_works(void **state)
{
    (void)state;
    struct eng_split s;
    for (size_t total = LEAST; total < LEAST + 200000; total += total < LEAST + 2000 ? 1 : 997) {
        assert_int_equal(eng_plan_split(&s, &need, total), 0);
        assert_int_equal(s.fixed + s.dense + s.step + s.kv + s.expert + s.spare, total);
        assert_true(s.kv >= 1280 && s.expert >= 4000 && s.spare < total);
        assert_true(s.fixed >= 1000 + (s.dense + s.step + s.kv + s.expert) / 512);
    }
}

static void a_dense_model_has_no_experts(void **state)
{
    (void)state;
    struct eng_split s;
    struct eng_need n = need;
    n.expert_bytes = n.expert_least = 0;
    n.n_expert = 0;
    assert_int_equal(eng_plan_split(&s, &n, 20000), 0);         /* nobody else wants it: KV may have it all */
    check_parts(&s, 10240, 0, 0, 1034, 1726);
}

static bool near(double a, double b) { return a > b * 0.999999 - 1e-9 && a < b * 1.000001 + 1e-9; }

static void distinct_experts_are_counted(void **state)
{
    (void)state;
    assert_true(near(eng_plan_distinct(4, 1, 0), 0));
    assert_true(near(eng_plan_distinct(4, 1, 1), 1));
    assert_true(near(eng_plan_distinct(4, 1, 2), 1.75));
    assert_true(near(eng_plan_distinct(128, 8, 1), 8));
    assert_true(near(eng_plan_distinct(128, 8, 4), 29.123046875));      /* 128 (1 - (15/16)^4) */
    assert_true(near(eng_plan_distinct(8, 8, 3), 8));
}

/* Cores reach 0.88 of what their probes do. */
static void the_slowest_tier_sets_the_pace(void **state)
{
    (void)state;
    struct moe_shape shape = { .n_layer = 2, .n_head = 2, .d_head = 3, .n_expert = 4, .n_used = 1,
                               .n_expert_total = 8, .expert_file_bytes = 800, .pass_bytes = 300,
                               .row_macs = 1000 };
    struct eng_split split = { .n_expert = 8, .n_resident = 6 };
    struct eng_machine machine = { .disk_Bps = 50, .dram_Bps = 1000, .mac_ps = 10000 };
    struct eng_forecast f;
    eng_plan_forecast(&f, &shape, &split, &machine, 10, 5, 2);
    assert_true(near(f.experts, 1.75) && near(f.misses, 0.875) && near(f.disk_bytes, 87.5));
    assert_true(near(f.dram_bytes, 300 + 350 + 100));           /* dense, 3.5 experts, 10 positions */
    assert_true(near(f.macs, 2000 + 240));                      /* 10 positions of 2 x 12 */
    assert_true(near(f.disk_s, 1.75) && near(f.dram_s, 0.75) && near(f.mac_s, 0.224));
    assert_true(near(f.pass_s, 1.75) && near(f.tokens_per_s, 2 / 1.75));
    assert_string_equal(f.bound_by, "disk");

    machine.disk_Bps = 1000;
    eng_plan_forecast(&f, &shape, &split, &machine, 10, 5, 2);
    assert_true(near(f.tokens_per_s, 2 * 0.88 / (0.75 + 0.224)));
    assert_string_equal(f.bound_by, "dram");

    machine.mac_ps = 1000;
    eng_plan_forecast(&f, &shape, &split, &machine, 10, 5, 2);
    assert_true(near(f.tokens_per_s, 2 * 0.88 / (0.75 + 2.24)));
    assert_string_equal(f.bound_by, "operations");

    split.n_resident = 8;                                       /* nothing to read: the disk need not be known */
    machine.disk_Bps = 0;
    eng_plan_forecast(&f, &shape, &split, &machine, 10, 5, 2);
    assert_true(f.disk_s == 0 && f.misses == 0);

    shape = (struct moe_shape){ .n_layer = 2, .n_head = 2, .d_head = 3, .pass_bytes = 300, .row_macs = 1000 };
    split = (struct eng_split){ 0 };
    eng_plan_forecast(&f, &shape, &split, &machine, 10, 0, 4);
    assert_true(near(f.dram_bytes, 300) && near(f.macs, 4000) && near(f.tokens_per_s, 4 * 0.88 / 4.3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_is_split_from_the_top),
        cmocka_unit_test(too_little_is_refused_with_what_is_enough),
        cmocka_unit_test(from_the_least_on_everything_works),
        cmocka_unit_test(a_dense_model_has_no_experts),
        cmocka_unit_test(distinct_experts_are_counted),
        cmocka_unit_test(the_slowest_tier_sets_the_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
