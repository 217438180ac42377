/* The cost model against independent numbers: MoESD's tables, and a pass added up by hand.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

static void near_to(double x, double expected, double error)
{
    if (!(fabs(x - expected) <= error))
        fail_msg("%.10g is not %.10g", x, expected);
}

/* Growth is s^t - 1 up to the ridge, then a straight line with the same slope there. */
static void phi_bends_once(void **state)
{
    (void)state;
    near_to(spec_cost_phi(0, 40, 1.02), 0, 0);
    near_to(spec_cost_phi(1, 40, 1.02), 0.02, 1e-12);
    near_to(spec_cost_phi(10, 40, 1.02), pow(1.02, 10) - 1, 1e-12);
    near_to(spec_cost_phi(60, 40, 1.02), pow(1.02, 40) * (1 + log(1.02) * 20) - 1, 1e-12);
    double left = spec_cost_phi(40, 40, 1.02) - spec_cost_phi(39.999, 40, 1.02);
    double right = spec_cost_phi(40.001, 40, 1.02) - spec_cost_phi(40, 40, 1.02);
    near_to(left / right, 1, 1e-4);
    near_to(spec_cost_phi(5, 40, 1), 0, 0);
    near_to(spec_cost_phi(3, 1000, 1 + 1e-9), 3 * (1 + 1e-9 - 1), 1e-16);
    near_to(spec_cost_phi(3, 1e-9, M_E), 3, 1e-8);
}

/* N(t) / N(1) of published models. */
static void distinct_experts(void **state)
{
    (void)state;
    static const struct {
        double n, used, two, sixteen, many;
    } row[] = {
        { 8, 2, 1.75, 3.96, 4.00 },    { 64, 8, 1.88, 7.06, 8.0 },   { 128, 8, 1.94, 10.3, 15.7 },
        { 256, 8, 1.97, 12.75, 27.8 }, { 384, 8, 1.98, 13.7, 35.5 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        double n = row[i].n, k = row[i].used;
        near_to(spec_cost_distinct(n, k, 1), k, 1e-9);
        near_to(spec_cost_distinct(n, k, 2) / k, row[i].two, 0.0051);
        near_to(spec_cost_distinct(n, k, 16) / k, row[i].sixteen, 0.051);
        near_to(spec_cost_distinct(n, k, 64) / k, row[i].many, 0.051);
    }
    near_to(spec_cost_distinct(4, 4, 3), 4, 0);
    near_to(spec_cost_rows_of_expert(8, 16, 32), 4, 0);
}

static void pass_adds_up(void **state)
{
    (void)state;
    struct spec_cost_model c = { .fixed_ns = 100,
                                 .dense_ns = 10,
                                 .load_ns = 3,
                                 .expert_ns = 2,
                                 .ridge = 50,
                                 .growth = 1.1,
                                 .wait = 2,
                                 .n_expert = 8,
                                 .n_used = 2,
                                 .draft_ns = 5,
                                 .draft_row_ns = 4,
                                 .choose_ns = 1,
                                 .choose_row_ns = 0.5 };
    double u = 8 * (1 - pow(0.75, 3)), each = 3 * 2 / u;
    near_to(spec_cost_pass_ns(&c, 3, 0, 0), 100 + 10 * (pow(1.1, 3) - 1) + 3 * u + 2 * u * (pow(1.1, each) - 1), 1e-9);
    near_to(spec_cost_pass_ns(&c, 3, 4, 7), 100 + 10 * (pow(1.1, 3) - 1) + 3 * 4 + 2 * 4 * (pow(1.1, 1.5) - 1) + 14,
            1e-9);
    near_to(spec_cost_draft_ns(&c, 2), 5 + 4 * 0.21, 1e-9);
    near_to(spec_cost_choose_ns(&c, 6), 4, 1e-12);
    c.disk_ns = 1; /* the disk is hidden by the rest; or the rest by the disk */
    near_to(spec_cost_pass_ns(&c, 3, 4, 7), 100 + 10 * (pow(1.1, 3) - 1) + 3 * 4 + 2 * 4 * (pow(1.1, 1.5) - 1) + 14,
            1e-9);
    c.disk_ns = 1000;
    near_to(spec_cost_pass_ns(&c, 3, 4, 7), 4000, 0);
    c.n_expert = 0;
    near_to(spec_cost_pass_ns(&c, 3, 0, 0), 100 + 10 * (pow(1.1, 3) - 1), 1e-9);
}

static void tokens_of_a_round(void **state)
{
    (void)state;
    near_to(spec_cost_tokens(0.7, 2), (1 - pow(0.7, 3)) / 0.3, 1e-12);
    near_to(spec_cost_tokens(1, 4), 5, 1e-12);
    near_to(spec_cost_tokens(0, 4), 1, 1e-12);
    for (int depth = 1; depth < 9; depth++) {
        for (double accept = 0.05; accept < 1.01; accept += 0.19)
            near_to(spec_cost_accept(spec_cost_tokens(accept, depth), depth), accept, 1e-12);
        near_to(spec_cost_accept(1, depth), 0, 0);
        near_to(spec_cost_accept(0.5, depth), 0, 0);
        assert_true(spec_cost_accept(depth + 1.001, depth) > 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phi_bends_once),
        cmocka_unit_test(distinct_experts),
        cmocka_unit_test(pass_adds_up),
        cmocka_unit_test(tokens_of_a_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
