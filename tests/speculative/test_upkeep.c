/* Is a drafter worth its upkeep?  On a machine with plain numbers: a step takes 1 without the drafter, 1 / (1 - value) with its
 * memory taken, and drafts shorten it.  Kept if drafts gain more; unloaded in time if not; back if they promise more; and
 * never much slower than without the drafter.  The same for a head, for which the model computes features.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/upkeep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct machine {
    double value, gain; /* of its memory; of drafts, as they are */
    double promised;    /* gain that is expected of them */
    double load_steps;  /* time of loading it again, and of reading the sequences, in plain steps */
    double n_token;     /* plain steps' tokens of a step with drafts; 0: one plain step's */
};

struct result {
    double ns, none_ns; /* time taken; and without the drafter at all, for the same tokens */
    int n_loaded, n_step;
    int n_unload, n_load, first_unload; /* first_unload: the step; 0: none */
};

/* Without the drafter's memory a plain step takes 1. */
static void go(struct spec_upkeep *m, const struct machine *a, int n_step, struct result *r)
{
    for (int i = 1; i <= n_step; i++) {
        double plain = m->unloaded ? 1 : 1 / (1 - a->value), n = !m->unloaded && a->n_token > 0 ? a->n_token : 1;
        double took = m->unloaded ? 1 : n * plain / a->gain;
        r->ns += took;
        r->none_ns += n;
        r->n_loaded += !m->unloaded;
        r->n_step++;
        struct spec_upkeep_step s = {
            .value = a->value, .step_ns = took, .plain_ns = plain, .saved_ns = n * plain - took
        };
        enum spec_upkeep_move move = spec_upkeep_learn(m, &s);
        if (move == SPEC_UPKEEP_UNLOAD) {
            assert_false(m->unloaded);
            spec_upkeep_unloaded(m);
            r->n_unload++;
            r->first_unload = r->first_unload ? r->first_unload : i;
        }
        if (move == SPEC_UPKEEP_MAY_LOAD && spec_upkeep_pays(m, a->promised, a->value)) {
            assert_true(m->unloaded);
            spec_upkeep_loaded(m);
            m->lost += a->load_steps;
            r->ns += a->load_steps;
            r->n_load++;
        }
    }
}

static struct result run(struct machine a, int n_step)
{
    struct spec_upkeep m = { 0 };
    struct result r = { 0 };
    go(&m, &a, n_step, &r);
    return r;
}

/* The loss is that of 64 steps, and four steps, and 0.8 % of the time. */
static void a_useless_one_goes(void **state)
{
    static const double value[] = { 0.011, 0.02, 0.036, 0.06, 0.1, 0.3 };
    (void)state;
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        struct machine a = { .value = value[i], .gain = 1, .promised = 1 };
        struct result r = run(a, 10000);
        assert_int_equal(r.n_unload, 1);
        assert_true(r.first_unload > 64);
        assert_true(r.ns - r.none_ns <= 64 * value[i] / (1 - value[i]) + 5 + 0.008 * r.first_unload);
        if (value[i] >= 0.036)
            assert_true(r.first_unload < 64 + 150);
    }
}

/* If the memory could hold few experts more, or no expert is on disk, a drafter stays, even if its drafts lose. */
static void a_drafter_of_little_memory_stays(void **state)
{
    (void)state;
    for (double value = 0; value < 0.01; value += 0.003) {
        struct result r = run((struct machine){ .value = value, .gain = 0.8, .promised = 1 }, 10000);
        assert_int_equal(r.n_unload, 0);
    }
}

static void a_drafter_that_gains_stays(void **state)
{
    (void)state;
    for (double value = 0.01; value < 0.35; value += 0.03)
        for (int n_token = 1; n_token < 8; n_token += 3) { /* steps with drafts may be long */
            struct machine a = { .value = value, .gain = 1 / (1 - value) + 0.01, .promised = 1.5, .n_token = n_token };
            struct result r = run(a, 5000);
            assert_int_equal(r.n_unload, 0);
            a.gain = 1 / (1 - value) - 0.03; /* less than is allowed */
            a.promised = 1;
            r = run(a, 5000);
            assert_int_equal(r.n_unload, 1);
        }
}

/* A drafter that always promises more than it holds is loaded again and again, for 0.8 % of the time. */
static void broken_promises_cost_little(void **state)
{
    (void)state;
    for (double value = 0.02; value < 0.35; value += 0.03)
        for (int slow = 0; slow < 3; slow++) {
            struct machine a = {
                .value = value, .gain = 1, .promised = 2, .load_steps = slow ? 10 * slow * slow : 0.3
            };
            struct result r = run(a, 50000);
            assert_true(r.n_load >= 1);
            assert_true((r.ns - r.none_ns) / r.none_ns < 0.008 + (64 * value / (1 - value) + 5 + a.load_steps) / 50000);
            assert_true(r.n_loaded >= 64 * r.n_load);
        }
}

/* The drafts of one sequence by night lose, those of many by day gain: the drafter is loaded in the morning and stays, though
 * reading it and the sequences takes the time of 40 steps. */
static void a_drafter_is_loaded_by_day(void **state)
{
    (void)state;
    for (double load_steps = 0.5; load_steps < 50; load_steps += 39.5) {
        struct machine night = { .value = 0.05, .gain = 1, .promised = 0.9, .load_steps = load_steps },
                       day = { .value = 0.04, .gain = 1.4, .promised = 1.3, .load_steps = load_steps };
        struct spec_upkeep m = { 0 };
        for (int i = 0; i < 5; i++) {
            struct result dark = { 0 }, light = { 0 };
            go(&m, &night, 6000, &dark);
            assert_true(m.unloaded);
            assert_int_equal(dark.n_unload, 1);
            assert_true(dark.ns / dark.none_ns < 1.003);
            go(&m, &day, 6000, &light);
            assert_true(!m.unloaded && light.n_load == 1 && light.n_unload == 0);
            assert_true(light.n_loaded > 6000 - 17);
            assert_true(light.none_ns / light.ns > 1.3);
        }
    }
}

/* The first steps after a load are not held against it, but are paid off before the next. */
static void a_load_is_given_time(void **state)
{
    (void)state;
    struct spec_upkeep m = { 0 };
    struct spec_upkeep_step reads = { .value = 0.05, .step_ns = 3, .plain_ns = 1, .saved_ns = -2 },
                            gains = { .value = 0.05, .step_ns = 2, .plain_ns = 1, .saved_ns = 1 };
    for (int i = 0; i < 64; i++)
        assert_int_equal(spec_upkeep_learn(&m, &reads), SPEC_UPKEEP_STAY);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(spec_upkeep_learn(&m, &gains), SPEC_UPKEEP_STAY);
    spec_upkeep_unloaded(&m);
    spec_upkeep_loaded(&m);
    for (int i = 0; i < 64; i++)
        assert_int_equal(spec_upkeep_learn(&m, &reads), SPEC_UPKEEP_STAY);
    assert_int_equal(spec_upkeep_learn(&m, &reads), SPEC_UPKEEP_STAY);
    assert_int_equal(spec_upkeep_learn(&m, &reads), SPEC_UPKEEP_UNLOAD);
    spec_upkeep_unloaded(&m);
    struct spec_upkeep_step plain = { .value = 0.05, .step_ns = 1, .plain_ns = 1 };
    double lost = m.lost;
    assert_true(lost > 66 * 2);
    int n = 1;
    while (spec_upkeep_learn(&m, &plain) != SPEC_UPKEEP_MAY_LOAD)
        n++;
    assert_in_range(n, lost / 0.008 - 2, lost / 0.008 + 17);
}

/* Nor is the reading of the sequences in these steps; a later one is. All of it is paid off in the end. */
static void a_load_is_given_time_to_read(void **state)
{
    (void)state;
    struct spec_upkeep u = { 0 };
    struct spec_upkeep_step reads = { .value = 0.05, .step_ns = 1, .plain_ns = 1, .reading_ns = 2 },
                            even = { .value = 0.05, .step_ns = 1, .plain_ns = 1, .saved_ns = 0.06 };
    int n = 0;
    for (int i = 0; i < 64; i++)
        assert_int_equal(spec_upkeep_learn(&u, &reads), SPEC_UPKEEP_STAY);
    double lost = u.lost;
    assert_true(lost > 64 * 2 + 64 * 0.04);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(spec_upkeep_learn(&u, &even), SPEC_UPKEEP_STAY);
    lost = u.lost;
    while (spec_upkeep_learn(&u, &reads) == SPEC_UPKEEP_STAY)
        assert_true(++n < 100);
    spec_upkeep_unloaded(&u);
    assert_true(u.lost > lost + 2 * n && n > 10);
}

/* A head in memory: the model's work for it makes one step of four longer, and the others are shorter by its drafts. */
static void go_with_features(struct spec_upkeep *u, double feature, double saved, int n_step, struct result *r)
{
    for (int i = 1; i <= n_step; i++) {
        bool reads = i % 4 == 0;
        double plain = reads ? 3 : 1, took = u->unloaded ? plain : reads ? plain + feature : plain - saved;
        struct spec_upkeep_step s = { .step_ns = took,
                                      .plain_ns = 1,
                                      .feature_ns = reads ? feature : 0,
                                      .saved_ns = u->unloaded || reads ? 0 : saved };
        r->ns += took;
        r->none_ns += plain;
        if (spec_upkeep_learn(u, &s) != SPEC_UPKEEP_UNLOAD)
            continue;
        spec_upkeep_unloaded(u);
        r->n_unload++;
        r->first_unload = i;
    }
}

/* It goes if the work is more than its drafts save, and soon if they save little; it stays if they save more. */
static void features_must_be_worth_their_time(void **state)
{
    (void)state;
    for (double feature = 0.1; feature < 2; feature *= 1.5) {
        struct spec_upkeep little = { 0 }, less = { 0 }, more = { 0 };
        struct result bad = { 0 }, poor = { 0 }, good = { 0 };
        go_with_features(&little, feature, 0, 5000, &bad);
        assert_int_equal(bad.n_unload, 1);
        assert_in_range(bad.first_unload, 65, 64 + 32 + 2 * sqrt(4 * 128 * 4 / feature) + 4 * 4 / feature);
        assert_true(bad.ns - bad.none_ns <= bad.first_unload * feature / 4 + 1e-6);
        go_with_features(&less, feature, (feature - 0.1) / 3, 5000, &poor);
        assert_int_equal(poor.n_unload, 1);
        assert_true(poor.ns - poor.none_ns < 25);
        go_with_features(&more, feature, (feature + 0.1) / 3, 5000, &good);
        assert_int_equal(good.n_unload, 0);
        assert_true(good.ns < good.none_ns);
    }
}

/* A prompt costs the time of ten steps, the first drafts behind it make up for half of that, and the later ones for twice as
 * much: a drafter that gains in the end stays.  If the later ones make up for nothing, it goes. */
static void prompts_are_paid_by_their_answers(void **state)
{
    (void)state;
    for (int gains = 0; gains < 2; gains++) {
        struct spec_upkeep u = { 0 };
        int n = 0, n_unload = 0;
        for (; n < 20000 && !n_unload; n++) {
            bool prompt = n % 400 == 0;
            struct spec_upkeep_step s = { .step_ns = 1,
                                          .plain_ns = 1,
                                          .saved_ns = n % 400 < 50 ? 0.1
                                                      : gains      ? 0.06
                                                                   : 0 };
            if (prompt)
                s.feature_ns = 4, s.reading_ns = 6;
            n_unload += spec_upkeep_learn(&u, &s) == SPEC_UPKEEP_UNLOAD;
        }
        assert_int_equal(n_unload, !gains);
        assert_true(gains || n < 2000);
    }
}

/* Features below 1 % of the time, and savings that are noise, are no reason to unload. */
static void few_prompts_do_not_count(void **state)
{
    (void)state;
    struct spec_upkeep u = { 0 };
    for (int i = 0; i < 20000; i++) {
        struct spec_upkeep_step s = { .step_ns = 1, .plain_ns = 1, .saved_ns = i / 16 % 2 ? 0.5 : -0.5 };
        s.feature_ns = i % 4 ? 0 : 0.03;
        assert_int_equal(spec_upkeep_learn(&u, &s), SPEC_UPKEEP_STAY);
    }
}

/* Drafts of an unloaded head must promise more than the work that it would cost. */
static void a_promise_must_beat_the_features(void **state)
{
    (void)state;
    struct spec_upkeep u = { 0 };
    struct result r = { 0 };
    spec_upkeep_unloaded(&u);
    go_with_features(&u, 0.6, 0, 3000, &r); /* 0.6 in four steps */
    assert_true(r.ns == r.none_ns);
    assert_in_range(1000 * spec_upkeep_feature_part(&u), 145, 155);
    assert_true(spec_upkeep_pays(&u, 1.25, 0));
    assert_false(spec_upkeep_pays(&u, 1.2, 0));
    assert_false(spec_upkeep_pays(&u, 1.25, 0.05));
    go_with_features(&u, 4.4, 0, 3000, &r); /* more than any drafts can save */
    assert_false(spec_upkeep_pays(&u, 100, 0));
}

static void a_promise_must_beat_the_upkeep(void **state)
{
    struct spec_upkeep u = { 0 };
    (void)state;
    assert_true(spec_upkeep_pays(&u, 1.1, 0.05));
    assert_false(spec_upkeep_pays(&u, 1.1, 0.08));
    assert_false(spec_upkeep_pays(&u, 1, 0));
    assert_true(spec_upkeep_pays(&u, 1.04, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_useless_one_goes),
        cmocka_unit_test(a_drafter_of_little_memory_stays),
        cmocka_unit_test(a_drafter_that_gains_stays),
        cmocka_unit_test(broken_promises_cost_little),
        cmocka_unit_test(a_drafter_is_loaded_by_day),
        cmocka_unit_test(a_load_is_given_time),
        cmocka_unit_test(a_load_is_given_time_to_read),
        cmocka_unit_test(features_must_be_worth_their_time),
        cmocka_unit_test(prompts_are_paid_by_their_answers),
        cmocka_unit_test(few_prompts_do_not_count),
        cmocka_unit_test(a_promise_must_beat_the_features),
        cmocka_unit_test(a_promise_must_beat_the_upkeep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
