/* Passes of requests as measurements: the collected means, the fit near an earlier opinion, and the controller on
 * simulated machines (machine.h, a virtual clock) that starts with a kept fit, right or wrong.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/machine.h"
#include "tests/faults.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define FIRST_PASSES  200
#define PASSES        600
#define MAX_MEAN_LOSS 0.005 /* of a kept fit against exact rates: chance */

static void near_to(double x, double expected, double share)
{
    if (!(fabs(x - expected) <= share * fabs(expected)))
        fail_msg("%.6g is not %.6g", x, expected);
}

/* ---- collecting and fitting --------------------------------------------------------------------------------- */

static const struct spec_cost_model truth = { .fixed_ns = 8e6,
                                              .dense_ns = 4e6,
                                              .load_ns = 0.5e6,
                                              .expert_ns = 0.2e6,
                                              .wait = 0.8,
                                              .ridge = 16,
                                              .growth = 1.02,
                                              .kv_ns = 400,
                                              .copy_ns = 1e6,
                                              .n_expert = 64,
                                              .n_used = 8 };

static double true_ns(const struct spec_fit_point *p)
{
    return spec_cost_pass_ns(&truth, p->rows, p->distinct, p->miss_ns) + truth.kv_ns * p->kv +
           truth.copy_ns * p->copied;
}

/* n_seq sequences with `each` rows and `context` positions each. */
static struct spec_fit_point pass_of(int n_seq, int each, double context, double missing, double copied)
{
    struct spec_fit_point p = { .rows = n_seq * each, .kv = n_seq * context };
    p.distinct = spec_cost_distinct(64, 8, p.rows);
    p.miss_ns = missing * p.distinct * 1e6;
    p.copied = copied * p.distinct;
    p.ns = true_ns(&p);
    return p;
}

/* A mean follows the last passes; one stray pass among them counts as twice the mean at most; two passes are no point. */
static void means_are_collected(void **state)
{
    (void)state;
    static struct spec_observed seen;
    struct spec_fit_point point[SPEC_OBSERVED_POINTS];
    struct spec_fit_point p = { .rows = 4, .distinct = 20, .miss_ns = 3, .kv = 4000, .copied = 2, .ns = 100 };
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < 2; i++)
        spec_observe(&seen, &p, 4);
    assert_int_equal(spec_observed_points(&seen, point), 0);
    spec_observe(&seen, &p, 4);
    assert_int_equal(spec_observed_points(&seen, point), 1);
    near_to(point[0].ns, 100, 1e-12);
    assert_true(point[0].rows == 4 && point[0].distinct == 20 && point[0].miss_ns == 3 && point[0].kv == 4000 &&
                point[0].copied == 2 && point[0].weight > 0 && point[0].weight < 1);
    p.ns = 1e6;
    spec_observe(&seen, &p, 4);
    spec_observed_points(&seen, point);
    near_to(point[0].ns, 125, 1e-9);
    p.ns = 50;
    for (int i = 0; i < 400; i++)
        spec_observe(&seen, &p, 4);
    spec_observed_points(&seen, point);
    near_to(point[0].ns, 50, 0.01);
    p.kv = 400; /* shorter contexts are another point */
    for (int i = 0; i < 3; i++)
        spec_observe(&seen, &p, 4);
    assert_int_equal(spec_observed_points(&seen, point), 2);
    assert_int_equal(seen.n_pass, 407);
}

/* Passes of all kinds give all terms, whatever was expected. */
static void terms_are_found(void **state)
{
    (void)state;
    static struct spec_observed seen;
    struct spec_fit_point point[SPEC_OBSERVED_POINTS];
    struct spec_cost_model wrong = truth;
    struct spec_fit fit;
    memset(&seen, 0, sizeof seen);
    for (int n = 1; n <= 32; n *= 2)
        for (int each = 1; each <= 4; each++)
            for (int k = 0; k < 4; k++)
                for (int i = 0; i < 48; i++) {
                    struct spec_fit_point p = pass_of(n, each, 100 << 2 * k, 0.1 * ((k + each) % 3), 0.1 * (n % 3));
                    spec_observe(&seen, &p, n);
                }
    wrong.kv_ns *= 3;
    wrong.load_ns /= 2;
    wrong.dense_ns *= 2;
    int n = spec_observed_points(&seen, point);
    struct spec_fit_input in = { 64, 8, 1, 128, 0, 0, point, NULL, NULL, n, 0, 0, &wrong };
    assert_int_equal(spec_fit(&fit, &in), 0);
    near_to(fit.cost.kv_ns, truth.kv_ns, 0.1);
    near_to(fit.cost.copy_ns, truth.copy_ns, 0.25);
    near_to(fit.cost.wait, truth.wait, 0.1);
    assert_true(fit.error < 0.03);
    for (int rows = 1; rows <= 128; rows *= 2)
        near_to(spec_cost_pass_ns(&fit.cost, rows, 0, 0), spec_cost_pass_ns(&truth, rows, 0, 0), 0.06);
}

/* One number of rows alone: the time there is as measured, and other rows keep the expected shape. */
static void one_size_scales_the_expected(void **state)
{
    (void)state;
    static struct spec_observed seen;
    struct spec_fit_point point[SPEC_OBSERVED_POINTS];
    struct spec_cost_model expected = {
        .fixed_ns = 8e6, .dense_ns = 0.1e6, .load_ns = 0.5e6, .ridge = 1e-9, .growth = M_E, .n_expert = 64, .n_used = 8
    };
    struct spec_fit fit;
    memset(&seen, 0, sizeof seen);
    struct spec_fit_point p = { .rows = 1, .distinct = 8, .ns = 3 * spec_cost_pass_ns(&expected, 1, 8, 0) };
    for (int i = 0; i < 48; i++)
        spec_observe(&seen, &p, 1);
    struct spec_fit_input in = { 64, 8, 1,        128, 0, 0, point, NULL, NULL, spec_observed_points(&seen, point),
                                 0,  0, &expected };
    assert_int_equal(spec_fit(&fit, &in), 0);
    for (int rows = 1; rows <= 64; rows *= 2)
        near_to(spec_cost_pass_ns(&fit.cost, rows, 0, 0), 3 * spec_cost_pass_ns(&expected, rows, 0, 0), 0.06);
    in.expected = NULL;
    faults_listen();
    assert_int_equal(spec_fit(&fit, &in), KN_EINVAL); /* without an earlier opinion one size is too little */
    faults_listen_off();
}

static void terms_of_moesd(void **state)
{
    (void)state;
    static const double rho[][3] = { { 8, 2, 11 }, { 128, 8, 47 }, { 256, 8, 95 }, { 64, 8, 23 }, { 4, 4, 1 } };
    for (size_t i = 0; i < sizeof rho / sizeof *rho; i++)
        near_to(spec_cost_full_rows(rho[i][0], rho[i][1]), rho[i][2], 0);
    near_to(spec_cost_distinct(64, 8, 23) / 64, 0.95, 0.01);
    double plain = spec_cost_pass_ns(&truth, 4, 0, 0), drafted = spec_cost_pass_ns(&truth, 12, 0, 0);
    near_to(spec_cost_efficiency(&truth, 4, 2, 0), plain / drafted, 1e-12);
    near_to(spec_cost_efficiency(&truth, 4, 2, 1000), (plain + 1.6e6) / (drafted + 1.6e6), 1e-12);
}

/* A context of a sequence is read once for all its rows: with long contexts drafted rows weigh less. */
static void contexts_are_read_once(void **state)
{
    (void)state;
    struct spec_passes p = { 0 };
    assert_int_equal(spec_passes_open(&p, 0), 0);
    spec_passes_set_forecast(&p, &truth);
    for (int k = 0; k < 2; k++) {
        double context = k ? 30000 : 0, plain = spec_cost_pass_ns(&truth, 4, 0, 0) + 4 * truth.kv_ns * context;
        spec_passes_set_context(&p, context);
        for (int i = 0; i < 12; i++)
            spec_passes_learn(&p, 4, 0, 0, 2 * plain);
        near_to(spec_passes_forecast_efficiency(&p, 4, 8), spec_cost_efficiency(&truth, 4, 2, context), 1e-9);
        near_to(spec_passes_plain_ns(&p, 4) / spec_passes_ns(&p, 4, 0, 8, false),
                spec_cost_efficiency(&truth, 4, 2, context), 0.02);
        assert_true(spec_passes_measured_efficiency(&p, 4, 8) == 0);
    }
    spec_passes_close(&p);
}

/* Plain passes measured at other times may contradict each other: the expected time of drafts stays positive, and near the
 * measured ones. */
static void contradictions_stay_positive(void **state)
{
    (void)state;
    struct spec_cost_model contexts = truth;
    struct spec_passes p = { 0 };
    contexts.kv_ns = 1e5;
    assert_int_equal(spec_passes_open(&p, 0), 0);
    spec_passes_set_forecast(&p, &contexts);
    spec_passes_set_context(&p, 1000);
    for (int i = 0; i < 12; i++) {
        spec_passes_learn(&p, 4, 0, 0, 4e8); /* while another process had the cores */
        spec_passes_learn(&p, 12, 0, 0, 1e8);
    }
    double ns = spec_passes_ns(&p, 4, 0, 8, false);
    assert_true(ns > 0.2e8 && ns < 4e8);
    spec_passes_close(&p);
}

/* Shallow drafts that take clearly longer than a flat forecast correct the forecast of deep ones, up to a straight line;
 * drafts that take as long as forecast do not. */
static void slow_shallow_drafts_correct_deep_ones(void **state)
{
    (void)state;
    static const struct spec_cost_model flat = { .fixed_ns = 100, .dense_ns = 1, .ridge = 1e-9, .growth = M_E };
    for (int k = 0; k < 2; k++) {
        struct spec_passes p = { 0 };
        assert_int_equal(spec_passes_open(&p, 0), 0);
        spec_passes_set_forecast(&p, &flat);
        for (int i = 0; i < 12; i++)
            spec_passes_learn(&p, 4, 0, 0, 100);
        for (int i = 0; i < 4; i++)
            spec_passes_learn(&p, 4, 0, 8, k ? 200 : 107.7);
        near_to(spec_passes_ns(&p, 4, 0, 8, false), k ? 200 : 107.7, 0.01);
        near_to(spec_passes_ns(&p, 4, 0, 32, false), k ? 500 : 130.8, 0.03);
        assert_true(spec_passes_ns(&p, 4, 0, 32, true) < (k ? 260 : 130)); /* a trial stays hopeful */
        spec_passes_close(&p);
    }
}

/* ---- the controller with a kept fit ------------------------------------------------------------------------------- */

static struct machine_run run(const struct machine *machine, const struct machine_drafter *drafter, int n_due,
                              int n_step, uint64_t seed, const struct spec_cost_model *first, double accept)
{
    struct machine m = *machine;
    struct machine_drafter d = *drafter;
    struct spec_control *c = machine_control(&d);
    assert_non_null(c);
    spec_control_set_forecast(c, first, &(struct spec_draft_forecast){ d.fixed_ns, d.seq_ns, accept });
    machine_seed = seed;
    struct machine_run r = machine_go(c, &m, &d, n_due, n_step, NULL, NULL);
    spec_control_close(c);
    return r;
}

static struct spec_cost_model times(const struct spec_cost_model *c, double by)
{
    struct spec_cost_model x = *c;
    x.fixed_ns *= by;
    x.dense_ns *= by;
    x.load_ns *= by;
    x.expert_ns *= by;
    x.disk_ns *= by;
    return x;
}

/* Everything that depends on rows takes so many times as long; the fixed part does not. */
static struct spec_cost_model rows_times(const struct spec_cost_model *c, double by)
{
    struct spec_cost_model x = times(c, by);
    x.fixed_ns = c->fixed_ns;
    return x;
}

enum { BY_RATES, KEPT, HALVED, DOUBLED, HALF_ROWS, TWICE_ROWS, FOREIGN, N_OPINION };
static const char *const opinion_name[] = { "rates",       "kept",         "halved",           "doubled",
                                            "rows halved", "rows doubled", "another machine's" };

/* The fit that runs of 1, 4 and 16 sequences on this machine keep. */
static struct spec_cost_model kept_of(int machine)
{
    static struct spec_observed seen;
    const struct machine *m = &machines[machine];
    struct spec_cost_model rates = machine_by_rates(m), kept = rates;
    struct machine_drafter d = { "model", 8, 1e-3 * machine_pass_ns(m, 1, 0, 0), 0, 0.7, 0, 0 };
    memset(&seen, 0, sizeof seen);
    machine_observed = &seen;
    for (int n = 1; n <= 16; n *= 4)
        run(m, &d, n, FIRST_PASSES, 7, &rates, 0);
    machine_observed = NULL;
    assert_true(machine_keep(&kept, &seen, m, &rates));
    return kept;
}

/* Runs of PASSES from the start, for every opinion, the drafter's acceptance rate known with a kept one: speed over that
 * without drafts.  A kept fit is as good as the machine's exact rates on the mean; a wrong one holds 0.98 of no drafts, as does
 * every other: the account of lost time has its four plain steps paid off by then. */
static void wrong_fits_cost_nothing(void **state)
{
    (void)state;
    static const double accept[] = { 0, 0.4, 0.8 };
    static const int batch[] = { 1, 4, 16, 32 };
    struct spec_cost_model kept[N_MACHINES];
    double sum[N_OPINION] = { 0 };
    for (int i = 0; i < N_MACHINES; i++)
        kept[i] = kept_of(i);
    for (int i = 0; i < N_MACHINES; i++)
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < 4; b++) {
                const struct machine *m = &machines[i];
                double pass = machine_pass_ns(m, 1, 0, 0);
                struct machine_drafter d = { "model", 8, 0.04 * pass, 0.002 * pass, accept[a], 0, 0 };
                struct spec_cost_model first[N_OPINION] = { machine_by_rates(m),       kept[i],
                                                            times(&kept[i], 0.5),      times(&kept[i], 2),
                                                            rows_times(&kept[i], 0.5), rows_times(&kept[i], 2),
                                                            kept[(i + 2) % N_MACHINES] };
                for (int o = 0; o < N_OPINION; o++) {
                    struct machine_run r = run(m, &d, batch[b], PASSES, 3, &first[o], o ? accept[a] : 0);
                    double speed = r.off_ns / r.took_ns;
                    sum[o] += kn_log(speed);
                    if (speed < 0.98)
                        fail_msg("%s, %s, accept %g, %d sequences: %.3f of none", opinion_name[o], m->name, accept[a],
                                 batch[b], speed);
                }
            }
    if (sum[KEPT] < sum[BY_RATES] - N_MACHINES * 12 * MAX_MEAN_LOSS)
        fail_msg("kept %.4f, by rates %.4f", sum[KEPT], sum[BY_RATES]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_collected),          cmocka_unit_test(terms_are_found),
        cmocka_unit_test(one_size_scales_the_expected), cmocka_unit_test(terms_of_moesd),
        cmocka_unit_test(contexts_are_read_once),       cmocka_unit_test(slow_shallow_drafts_correct_deep_ones),
        cmocka_unit_test(contradictions_stay_positive), cmocka_unit_test(wrong_fits_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
