/* The steps of sampling by hand: typical-p, XTC, DRY, top-n-sigma, orders, banned sequences and late tokens.  The
 * figures are those that llama.cpp's documentation and tests give for the same inputs.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/speculative.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

enum { MOST = 8 };

static void unheard(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

/* The distribution at `position` of a row whose probabilities are given must be want. */
static void expect_at(const struct spec_params *p, const double *prob, int n, const int32_t *history, int n_history,
                      int64_t position, const double *want)
{
    float logits[MOST];
    struct spec_sampler *s;
    struct spec_dist d;
    for (int i = 0; i < n; i++)
        logits[i] = (float)log(prob[i]);
    assert_int_equal(spec_sampler_open(&s, n), 0);
    assert_int_equal(spec_target(s, p, logits, history, n_history, position, &d), 0);
    for (int i = 0; i < n; i++)
        if (fabs(spec_dist_prob(&d, i) - want[i]) > 2e-6)
            fail_msg("token %d: %.6f, not %.6f", i, spec_dist_prob(&d, i), want[i]);
    spec_sampler_close(s);
}

static void expect(const struct spec_params *p, const double *prob, int n, const double *want)
{
    expect_at(p, prob, n, NULL, 0, 0, want);
}

static void typical_by_hand(void **state)
{
    (void)state;
    struct spec_params p;
    spec_params_default(&p);
    p.typical_p = 0.5f;
    expect(&p, (double[]){ .97, .01, .01, .01 }, 4, (double[]){ 1, 0, 0, 0 });
    expect(&p, (double[]){ .4, .2, .2, .2 }, 4, (double[]){ 0, 1 / 3.0, 1 / 3.0, 1 / 3.0 });
    p.typical_p = 0.1f; /* of equal ones the lowest id */
    expect(&p, (double[]){ .4, .2, .2, .2 }, 4, (double[]){ 0, 1, 0, 0 });
    p.temperature = 0; /* the likeliest token */
    expect(&p, (double[]){ .4, .2, .2, .2 }, 4, (double[]){ 1, 0, 0, 0 });
}

static void sigma_by_hand(void **state)
{
    (void)state;
    struct spec_params p;
    spec_params_default(&p);
    p.top_n_sigma = 1;
    expect(&p, (double[]){ .1, .2, .3, .4 }, 4, (double[]){ 0, 0, 3 / 7.0, 4 / 7.0 });
    p.top_n_sigma = 3;
    expect(&p, (double[]){ .1, .2, .3, .4 }, 4, (double[]){ .1, .2, .3, .4 });
    p.top_n_sigma = 0;
    expect(&p, (double[]){ .1, .2, .3, .4 }, 4, (double[]){ .1, .2, .3, .4 });
}

static void xtc_by_hand(void **state)
{
    (void)state;
    const double row[] = { .4, .3, .2, .1 };
    struct spec_params p;
    spec_params_default(&p);
    p.xtc_probability = 1;
    p.xtc_threshold = 0.09f;
    expect(&p, row, 4, (double[]){ 0, 0, 0, 1 });
    p.xtc_threshold = 0.19f;
    expect(&p, row, 4, (double[]){ 0, 0, 2 / 3.0, 1 / 3.0 });
    p.xtc_threshold = 0.29f;
    expect(&p, row, 4, (double[]){ 0, .5, 1 / 3.0, 1 / 6.0 });
    p.xtc_threshold = 0.39f;
    expect(&p, row, 4, row);
    p.xtc_threshold = 0.19f;
    p.top_k = 2; /* the prefix comes first */
    expect(&p, row, 4, (double[]){ 0, 1, 0, 0 });
}

/* XTC applies at the given share of positions, by its own numbers: not by those that sample the token. */
static void xtc_has_its_own_dice(void **state)
{
    (void)state;
    enum { N = 20000 };
    const float logits[3] = { 1, 1, 1 };
    struct spec_sampler *s;
    struct spec_params p;
    struct spec_dist d;
    struct spec_sampled c;
    int n_applied = 0, taken[2][3] = { { 0 } };
    spec_params_default(&p);
    p.seed = 5;
    p.xtc_probability = 0.3f;
    p.xtc_threshold = 0.2f;
    assert_int_equal(spec_sampler_open(&s, 3), 0);
    for (int64_t position = 0; position < N; position++) {
        struct spec_params plain = p;
        assert_int_equal(spec_target(s, &p, logits, NULL, 0, position, &d), 0);
        bool applied = spec_dist_prob(&d, 0) == 0;
        plain.xtc_probability = 0;
        assert_int_equal(spec_sample(s, &plain, logits, NULL, 0, position, &c), 0);
        taken[applied][c.token]++;
        n_applied += applied;
        assert_int_equal(spec_sample(s, &p, logits, NULL, 0, position, &c), 0);
        assert_true(!applied || c.token == 2);
    }
    spec_sampler_close(s);
    assert_in_range(n_applied, (int)(0.3 * N) - 330, (int)(0.3 * N) + 330); /* five standard deviations */
    for (int t = 0; t < 3; t++)
        assert_in_range(taken[1][t], n_applied / 3 - 190, n_applied / 3 + 190);
}

static void dry_by_hand(void **state)
{
    (void)state;
    const double four[] = { .25, .25, .25, .25 }, five[] = { .2, .2, .2, .2, .2 };
    struct spec_params p;
    uint32_t head = 1 << 3;
    struct spec_breaker breaker = { &head, NULL, 0 };
    spec_params_default(&p);
    p.dry_multiplier = 1;
    p.dry_base = 1.1f;
    expect_at(&p, four, 4, (int32_t[]){ 0, 1 }, 2, 2, four);
    expect_at(&p, four, 4, (int32_t[]){ 0, 1, 2, 0, 1 }, 5, 5, (double[]){ .296923, .296923, .109232, .296923 });
    p.dry_last = 4; /* the window begins within the first occurrence: one token is in common */
    expect_at(&p, four, 4, (int32_t[]){ 0, 1, 2, 0, 1 }, 5, 5, four);
    p.dry_last = -1;
    p.breaker = &breaker;
    p.n_breaker = 1;
    expect_at(&p, five, 5, (int32_t[]){ 0, 1, 3, 4, 0, 1 }, 6, 6, five); /* token 3 is a breaker */
    p.n_breaker = 0;
    p.dry_multiplier = 2;
    expect_at(&p, five, 5, (int32_t[]){ 0, 1, 2, 0, 1 }, 5, 5,
              (double[]){ .241818, .241818, .032727, .241818, .241818 });
    p.dry_allowed = 4;
    expect_at(&p, five, 5, (int32_t[]){ 0, 1, 2, 3, 4, 0, 1 }, 7, 7, five);

    /* 1 2 | 1 2 3 1 2: the longest of both repetitions counts for token 3, and 1 was only after a shorter one */
    p.dry_allowed = 1;
    p.dry_multiplier = 1;
    p.dry_base = 2;
    double sum = .2 * 3 + .2 * exp(-2) + .2 * exp(-2);
    expect_at(&p, five, 5, (int32_t[]){ 1, 2, 1, 2, 3, 1, 2 }, 7, 7,
              (double[]){ .2 / sum, .2 * exp(-2) / sum, .2 / sum, .2 * exp(-2) / sum, .2 / sum });
}

/* A long repetition: the penalty ends at 2^100, the lengths at SPEC_DRY_LONGEST, and the time is linear. */
static void dry_long(void **state)
{
    (void)state;
    enum { N = 200000 };
    int32_t *history = calloc(N, sizeof *history);
    const float logits[3] = { 0, 0, -9 };
    struct spec_sampler *s;
    struct spec_params p;
    struct spec_sampled c;
    spec_params_default(&p);
    p.temperature = 0;
    p.dry_multiplier = 0.8f;
    assert_int_equal(spec_sampler_open(&s, 3), 0);
    assert_int_equal(spec_sample(s, &p, logits, history, N, N, &c), 0);
    assert_int_equal(c.token, 1);
    p.dry_allowed = SPEC_DRY_LONGEST; /* exactly reached */
    assert_int_equal(spec_sample(s, &p, logits, history, N, N, &c), 0);
    assert_int_equal(c.token, 1);
    assert_int_equal(spec_sample(s, &p, logits, history, SPEC_DRY_LONGEST, N, &c), 0);
    assert_int_equal(c.token, 0);
    spec_sampler_close(s);
    free(history);
}

static void orders_by_hand(void **state)
{
    (void)state;
    const double row[] = { .4, .3, .2, .1 };
    struct spec_params p;
    spec_params_default(&p);
    p.has_order = true; /* no steps: the softmax */
    p.top_k = 1;
    p.temperature = 0.5f;
    expect(&p, row, 4, row);

    p.n_order =
        2; /* top-p of 0.5 of the whole: two tokens; after top-k 3 of 9 / 10: also two, after top-k 2 of 7: one */
    p.order[0] = SPEC_STEP_TOP_P;
    p.order[1] = SPEC_STEP_TOP_K;
    p.top_k = 2;
    p.top_p = 0.5f;
    expect(&p, row, 4, (double[]){ 4 / 7.0, 3 / 7.0, 0, 0 });
    p.order[0] = SPEC_STEP_TOP_K;
    p.order[1] = SPEC_STEP_TOP_P;
    expect(&p, row, 4, (double[]){ 1, 0, 0, 0 });

    p.order[0] = SPEC_STEP_MIN_P; /* before the temperature at T = 1: .2 / .4 stays; after it .25 does not */
    p.order[1] = SPEC_STEP_TEMPERATURE;
    p.min_p = 0.49f;
    expect(&p, row, 4, (double[]){ .16 / .29, .09 / .29, .04 / .29, 0 });
    p.order[0] = SPEC_STEP_TEMPERATURE;
    p.order[1] = SPEC_STEP_MIN_P;
    expect(&p, row, 4, (double[]){ .16 / .25, .09 / .25, 0, 0 });

    p.order[0] = SPEC_STEP_XTC; /* the likeliest of the tokens that XTC leaves */
    p.order[1] = SPEC_STEP_TEMPERATURE;
    p.xtc_probability = 1;
    p.xtc_threshold = 0.25f;
    p.temperature = 0;
    expect(&p, row, 4, (double[]){ 0, 1, 0, 0 });
    p.n_order = 1;
    expect(&p, row, 4, (double[]){ 0, .5, 1 / 3.0, 1 / 6.0 });

    p.repetition = 2; /* not in the order: off */
    p.repeat_last = -1;
    expect_at(&p, row, 4, (int32_t[]){ 1, 1 }, 2, 2, (double[]){ 0, .5, 1 / 3.0, 1 / 6.0 });
    p.order[0] = SPEC_STEP_PENALTIES; /* 2 ln .3 */
    expect_at(&p, row, 4, (int32_t[]){ 1, 1 }, 2, 2, (double[]){ .4 / .79, .09 / .79, .2 / .79, .1 / .79 });
}

static void bans_by_hand(void **state)
{
    (void)state;
    const double row[] = { .4, .3, .2, .1 };
    struct spec_sequence banned[] = { { (int32_t[]){ 1, 2, 0 }, 3 }, { (int32_t[]){ 3 }, 1 } };
    struct spec_params p;
    int32_t late[] = { 0 };
    uint32_t allowed = 6;
    spec_params_default(&p);
    p.banned = banned;
    p.n_banned = 1;
    expect_at(&p, row, 4, (int32_t[]){ 3, 1, 2 }, 3, 3, (double[]){ 0, .5, 1 / 3.0, 1 / 6.0 });
    expect_at(&p, row, 4, (int32_t[]){ 1, 1, 2 }, 2, 3, row);
    expect_at(&p, row, 4, (int32_t[]){ 2 }, 1, 1, row);
    p.n_banned = 2;
    expect(&p, row, 4, (double[]){ 4 / 9.0, 3 / 9.0, 2 / 9.0, 0 });
    p.n_banned = 0;
    p.late = late;
    p.n_late = 1;
    p.late_from = 7;
    expect_at(&p, row, 4, NULL, 0, 6, (double[]){ 0, .5, 1 / 3.0, 1 / 6.0 });
    expect_at(&p, row, 4, NULL, 0, 7, row);
    p.allowed = &allowed;
    expect_at(&p, row, 4, NULL, 0, 7, (double[]){ 0, .6, .4, 0 });
}

static void names_of_steps(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int step;
    } names[] = { { "penalties", SPEC_STEP_PENALTIES },
                  { "dry", SPEC_STEP_DRY },
                  { "top_n_sigma", SPEC_STEP_TOP_N_SIGMA },
                  { "top_k", SPEC_STEP_TOP_K },
                  { "typ_p", SPEC_STEP_TYPICAL_P },
                  { "typical", SPEC_STEP_TYPICAL_P },
                  { "nucleus", SPEC_STEP_TOP_P },
                  { "min-p", SPEC_STEP_MIN_P },
                  { "xtc", SPEC_STEP_XTC },
                  { "temp", SPEC_STEP_TEMPERATURE },
                  { "infill", -1 },
                  { "top", -1 },
                  { "", -1 } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(spec_step_find(names[i].name, strlen(names[i].name)), names[i].step);
    for (int i = 0; i < SPEC_STEPS; i++) {
        assert_int_equal(spec_step_find(spec_step_name((enum spec_step)i), strlen(spec_step_name((enum spec_step)i))),
                         i);
        assert_int_equal(spec_step_of_letter("edskypmxt"[i]), i);
    }
    assert_int_equal(spec_step_of_letter('i'), -1);
}

static void refuses(void **state)
{
    (void)state;
    struct spec_params bad[10];
    struct spec_sequence empty = { NULL, 0 };
    for (int i = 0; i < 10; i++)
        spec_params_default(&bad[i]);
    assert_int_equal(spec_params_check(&bad[0], 3), 0);
    bad[0].typical_p = 1.5f;
    bad[1].top_n_sigma = -1;
    bad[2].xtc_probability = 2;
    bad[3].xtc_threshold = -1;
    bad[4].dry_multiplier = -1;
    bad[5].dry_base = 0.5f;
    bad[6].dry_allowed = SPEC_DRY_LONGEST + 1;
    bad[7].dry_last = -2;
    bad[8].banned = &empty;
    bad[8].n_banned = 1;
    bad[9].has_order = true;
    bad[9].n_order = 2; /* penalties twice */
    kn_log_set(unheard, KN_LOG_ERROR);
    for (int i = 0; i < 10; i++)
        assert_int_equal(spec_params_check(&bad[i], 3), KN_EINVAL);
    kn_log_set(NULL, KN_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typical_by_hand), cmocka_unit_test(sigma_by_hand),
        cmocka_unit_test(xtc_by_hand),     cmocka_unit_test(xtc_has_its_own_dice),
        cmocka_unit_test(dry_by_hand),     cmocka_unit_test(dry_long),
        cmocka_unit_test(orders_by_hand),  cmocka_unit_test(bans_by_hand),
        cmocka_unit_test(names_of_steps),  cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
