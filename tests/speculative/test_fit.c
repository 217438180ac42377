/* Bounded least squares on problems with known solutions, and the cost model recovered from its own passes.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/fit.h"
#include "tests/faults.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>

static void near_to(double x, double expected, double error)
{
    if (!(fabs(x - expected) <= error))
        fail_msg("%.12g is not %.12g", x, expected);
}

static void unheard(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

static uint64_t random_state;
static double random_unit(void) { return (double)(kn_mix(random_state += KN_GOLDEN) >> 11) * 0x1p-53; }

/* ---- the solver --------------------------------------------------------------------------------------------- */

static void valley(const void *arg, const double *x, double *out)
{
    (void)arg;
    out[0] = 10 * (x[1] - x[0] * x[0]);
    out[1] = 1 - x[0];
}

/* Rosenbrock's valley: the minimum is (1, 1); with x0 <= 0.5 or x1 >= 2 the bound is active and fixes the other x. */
static void bounds_bind_or_do_not(void **state)
{
    (void)state;
    struct spec_fit_solution s;
    struct spec_fit_param free[2] = { { -3, 3, -1.2 }, { -3, INFINITY, 1 } };
    assert_int_equal(spec_fit_solve(&s, free, 2, 2, valley, NULL, 1), 0);
    near_to(s.x[0], 1, 1e-8);
    near_to(s.x[1], 1, 1e-8);
    near_to(s.sum_squares, 0, 1e-15);
    struct spec_fit_param low[2] = { { -3, 0.5, -1.2 }, { -3, 3, 1 } };
    assert_int_equal(spec_fit_solve(&s, low, 2, 2, valley, NULL, 1), 0);
    near_to(s.x[0], 0.5, 1e-8);
    near_to(s.x[1], 0.25, 1e-6);
    struct spec_fit_param high[2] = { { 0, 3, 1.2 }, { 2, INFINITY, 5 } };
    assert_int_equal(spec_fit_solve(&s, high, 2, 2, valley, NULL, 4), 0);
    near_to(s.x[1], 2, 1e-8);
    near_to(100 * 2 * (s.x[0] * s.x[0] - 2) * 2 * s.x[0] - 2 * (1 - s.x[0]), 0, 1e-3); /* the gradient is 0 */
    struct spec_fit_param told[2] = { { 0.3, 0.3, 0.3 }, { -3, 3, 1 } };
    assert_int_equal(spec_fit_solve(&s, told, 2, 2, valley, NULL, 1), 0);
    near_to(s.x[0], 0.3, 0);
    near_to(s.x[1], 0.09, 1e-8);
}

static void two_valleys(const void *arg, const double *x, double *out)
{
    (void)arg;
    out[0] = (x[0] + 1) * (x[0] - 3);
    out[1] = (x[0] - 3) / 2;
}

/* A start at -1.2 ends near -1; other starts find the lower minimum at 3. */
static void deeper_valley_is_found(void **state)
{
    (void)state;
    struct spec_fit_solution s;
    const struct spec_fit_param p = { -4, 6, -1.2 };
    assert_int_equal(spec_fit_solve(&s, &p, 1, 2, two_valleys, NULL, 1), 0);
    near_to(s.x[0], -1, 0.3);
    assert_int_equal(spec_fit_solve(&s, &p, 1, 2, two_valleys, NULL, 8), 0);
    near_to(s.x[0], 3, 1e-6);
    assert_true(s.n_call > 16);
}

/* NIST's Misra1a: certified to eleven digits. */
static const double misra[14][2] = {
    { 10.07, 77.6 },  { 14.73, 114.9 }, { 17.94, 141.1 }, { 23.93, 190.8 }, { 29.61, 239.9 },
    { 35.18, 289.0 }, { 40.02, 332.8 }, { 44.82, 378.4 }, { 50.76, 434.8 }, { 55.05, 477.3 },
    { 61.01, 536.8 }, { 66.40, 593.1 }, { 75.47, 689.1 }, { 81.78, 760.0 },
};
static void misra1a(const void *arg, const double *x, double *out)
{
    (void)arg;
    for (int i = 0; i < 14; i++)
        out[i] = misra[i][0] - x[0] * (1 - exp(-x[1] * misra[i][1]));
}

static void certified_values(void **state)
{
    (void)state;
    struct spec_fit_solution s;
    const struct spec_fit_param p[2] = { { 0, INFINITY, 500 }, { 0, 0.01, 0.0001 } };
    assert_int_equal(spec_fit_solve(&s, p, 2, 14, misra1a, NULL, 1), 0);
    near_to(s.x[0], 238.94212918, 1e-4);
    near_to(s.x[1], 5.5015643181e-4, 1e-9);
    near_to(s.sum_squares, 0.12455138894, 1e-9);
}

/* ---- the cost model ------------------------------------------------------------------------------------------- */

static const struct spec_cost_model truths[] = {
    { .fixed_ns = 8e6,
      .dense_ns = 5e6,
      .load_ns = 0.5e6,
      .expert_ns = 0.3e6,
      .ridge = 24,
      .growth = 1.03,
      .choose_ns = 0.2e6,
      .choose_row_ns = 0.1e6,
      .draft_ns = 1e6,
      .draft_row_ns = 0.5e6,
      .n_expert = 128,
      .n_used = 8 },
    { .fixed_ns = 3e6,
      .dense_ns = 60e6,
      .load_ns = 0.1e6,
      .expert_ns = 9e6,
      .ridge = 4,
      .growth = 1.05,
      .choose_ns = 0.2e6,
      .choose_row_ns = 0.1e6,
      .draft_ns = 1e6,
      .draft_row_ns = 0.5e6,
      .n_expert = 32,
      .n_used = 4 },
    { .fixed_ns = 40e6,
      .dense_ns = 4e6,
      .ridge = 32,
      .growth = 1.04,
      .choose_ns = 0.2e6,
      .choose_row_ns = 0.1e6,
      .draft_ns = 1e6,
      .draft_row_ns = 0.5e6 },
};
static const double rows[] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128 };
#define N_ROWS 14

static struct spec_fit_input measure(const struct spec_cost_model *c, double noise, struct spec_fit_point *pass,
                                     struct spec_fit_point *draft, struct spec_fit_point *choose)
{
    for (int i = 0; i < N_ROWS; i++) {
        double off = 1 + noise * sqrt(3) * (2 * random_unit() - 1);
        pass[i] = (struct spec_fit_point){ .rows = rows[i],
                                           .ns = spec_cost_pass_ns(c, rows[i], 0, 0) * off,
                                           .hold = i % 4 == 2 };
        draft[i] = (struct spec_fit_point){ .rows = rows[i], .ns = spec_cost_draft_ns(c, rows[i]) };
        choose[i] = (struct spec_fit_point){ .rows = rows[i], .ns = spec_cost_choose_ns(c, rows[i]) };
    }
    return (struct spec_fit_input){ .n_expert = c->n_expert,
                                    .n_used = c->n_used,
                                    .ridge_least = 2,
                                    .ridge_most = 100,
                                    .pass = pass,
                                    .draft = draft,
                                    .choose = choose,
                                    .n_pass = N_ROWS,
                                    .n_draft = N_ROWS,
                                    .n_choose = N_ROWS };
}

static void gets_back_what_was_measured(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        struct spec_fit_point pass[N_ROWS], draft[N_ROWS], choose[N_ROWS];
        struct spec_fit_input m = measure(&truths[i], 0, pass, draft, choose);
        struct spec_fit f;
        assert_int_equal(spec_fit(&f, &m), 0);
        assert_true(f.worst < 2e-3 && f.held_worst < 5e-3);
        near_to(f.rows_most, 128, 0);
        near_to(f.cost.choose_ns, 0.2e6, 1);
        near_to(f.cost.choose_row_ns, 0.1e6, 1);
        near_to(spec_cost_draft_ns(&f.cost, 20) / spec_cost_draft_ns(&truths[i], 20), 1, 0.02);
        near_to(spec_fit_residual(&f, &pass[3]), spec_cost_pass_ns(&f.cost, 4, 0, 0) / pass[3].ns - 1, 1e-12);
    }
}

static void noise_is_not_learnt(void **state)
{
    (void)state;
    random_state = 1;
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        struct spec_fit_point pass[N_ROWS], draft[N_ROWS], choose[N_ROWS];
        struct spec_fit_input m = measure(&truths[i], 0.03, pass, draft, choose);
        struct spec_fit f;
        assert_int_equal(spec_fit(&f, &m), 0);
        assert_true(f.error < 0.03);
        assert_true(f.held_error < 0.06);
        for (int t = 2; t < 128; t++) /* the error between the measured points */
            near_to(spec_cost_pass_ns(&f.cost, t, 0, 0) / spec_cost_pass_ns(&truths[i], t, 0, 0), 1, 0.1);
    }
}

/* Bytes waited for, counted experts, and the lower bound of the loading time are taken from the samples. */
static void knows_what_it_is_told(void **state)
{
    (void)state;
    struct spec_fit_point pass[N_ROWS];
    struct spec_cost_model truth = truths[0];
    truth.wait = 0.6; /* the rest is hidden */
    for (int i = 0; i < N_ROWS; i++) {
        double distinct = 8 * sqrt(rows[i]), miss = 1e6 * (double)(i % 3);
        pass[i] = (struct spec_fit_point){ .rows = rows[i],
                                           .distinct = distinct,
                                           .miss_ns = miss,
                                           .ns = spec_cost_pass_ns(&truth, rows[i], distinct, miss) };
    }
    struct spec_fit_input m = {
        .n_expert = 128, .n_used = 8, .ridge_least = 2, .ridge_most = 100, .pass = pass, .n_pass = N_ROWS
    };
    struct spec_fit f;
    assert_int_equal(spec_fit(&f, &m), 0);
    assert_true(f.worst < 2e-3);
    near_to(f.cost.load_ns / 0.5e6, 1, 0.1);
    near_to(f.cost.wait, 0.6, 0.02);
    near_to(f.held_error, 0, 0);
    m.load_least_ns = 0.9e6;
    m.fixed_least_ns = 1e6;
    assert_int_equal(spec_fit(&f, &m), 0);
    assert_true(f.cost.load_ns >= 0.9e6 && f.cost.fixed_ns >= 1e6);
    assert_true(f.worst > 0.01);
}

static void refuses(void **state)
{
    (void)state;
    struct spec_fit_point pass[N_ROWS], draft[N_ROWS], choose[N_ROWS];
    struct spec_fit_input good = measure(&truths[0], 0, pass, draft, choose), m = good;
    struct spec_fit f = { .error = 7 };
    kn_log_set(unheard, KN_LOG_ERROR);
    m.n_pass = 7; /* two of them for the hold-out */
    assert_int_equal(spec_fit(&f, &m), KN_EINVAL);
    m.n_pass = 8; /* enough for the constants, until misses add one */
    pass[0].miss_ns = 1e6;
    assert_int_equal(spec_fit(&f, &m), KN_EINVAL);
    pass[0].miss_ns = 0;
    assert_int_equal(spec_fit(&(struct spec_fit){ 0 }, &m), 0);
    m = good;
    m.n_draft = 1;
    assert_int_equal(spec_fit(&f, &m), KN_EINVAL);
    m = good;
    m.n_choose = SPEC_FIT_POINTS + 1;
    assert_int_equal(spec_fit(&f, &m), KN_ELIMIT);
    m = good;
    m.ridge_least = 0;
    assert_int_equal(spec_fit(&f, &m), KN_EINVAL);
    pass[5].ns = 0;
    assert_int_equal(spec_fit(&f, &good), KN_EINVAL);
    pass[5].ns = NAN;
    assert_int_equal(spec_fit(&f, &good), KN_EINVAL);
    near_to(f.error, 7, 0);
    kn_log_set(NULL, KN_LOG_INFO);
}

static void survives_no_memory(void **state)
{
    (void)state;
    struct spec_fit_point pass[N_ROWS], draft[N_ROWS], choose[N_ROWS];
    struct spec_fit_input m = measure(&truths[2], 0, pass, draft, choose);
    struct spec_fit f;
    kn_log_set(unheard, KN_LOG_ERROR);
    for (int n = 1;; n++) {
        faults_reset();
        faults_at(FAULT_ALLOC, n, FAULT_ERROR, ENOMEM);
        int e = spec_fit(&f, &m);
        assert_true(faults_clean());
        if (!e) {
            assert_true(n > 3);
            break;
        }
        assert_int_equal(e, KN_ENOMEM);
    }
    faults_off();
    kn_log_set(NULL, KN_LOG_INFO);
}

/* ---- the paper's formula ---------------------------------------------------------------------------------------- */

static void paper_formula(void **state)
{
    (void)state;
    const double x[SPEC_PAPER_PARAMS] = { 5, 2, 0.3, 1, 1, 0.2, 0.1, 0.01, 0.5, 1.02 };
    const struct spec_paper_point at = { .n_seq = 4, .depth = 2, .n_used = 8, .n_expert = 64, .sigma = 0.8 };
    double n4 = 64 * (1 - pow(7 / 8., 4)), n8 = 64 * (1 - pow(7 / 8., 8));
    double ar = 5 + 2 * pow(1.02, 4) + 0.3 * n4 + pow(1.02, 32 / n4);
    double verify = 5 + 2 * pow(1.02, 8) + 0.3 * n8 + pow(1.02, 64 / n8);
    double draft = 1 + 0.2 * pow(1.02, 4), reject = 0.1 + 0.04;
    near_to(spec_paper_speedup(x, 150, &at), 0.8 * 3 * ar / (2 * draft + verify + reject), 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_bind_or_do_not),
        cmocka_unit_test(deeper_valley_is_found),
        cmocka_unit_test(certified_values),
        cmocka_unit_test(gets_back_what_was_measured),
        cmocka_unit_test(noise_is_not_learnt),
        cmocka_unit_test(knows_what_it_is_told),
        cmocka_unit_test(refuses),
        cmocka_unit_test(survives_no_memory),
        cmocka_unit_test(paper_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
