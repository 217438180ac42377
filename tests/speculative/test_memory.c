/* Is a drafter's memory worth more as expert cache?  On a machine with plain numbers: a step takes 1 without the drafter,
 * 1 / (1 - value) with its memory taken, and drafts shorten it.  Kept if drafts gain more; unloaded in time if not; back if
 * they promise more; and never much slower than without the drafter.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct machine {
    double value, gain; /* of its memory; of drafts, as they are */
    double promised;    /* gain that is expected of them */
    double load_steps;  /* time of loading it again */
};

struct result {
    double ns, none_ns; /* time taken, and without the drafter at all */
    int n_loaded, n_step;
    int n_unload, n_load, first_unload; /* first_unload: the step; 0: none */
};

static double saved_ns;

static void go(struct spec_memory *m, const struct machine *a, int n_step, struct result *r)
{
    for (int i = 1; i <= n_step; i++) {
        double plain = m->unloaded ? 1 : 1 / (1 - a->value), took = m->unloaded ? 1 : plain / a->gain;
        saved_ns += plain - took;
        r->ns += took;
        r->none_ns += 1;
        r->n_loaded += !m->unloaded;
        r->n_step++;
        enum spec_memory_move move = spec_memory_step(m, a->value, took, saved_ns, true);
        if (move == SPEC_MEMORY_UNLOAD) {
            assert_false(m->unloaded);
            spec_memory_set_loaded(m, false);
            r->n_unload++;
            r->first_unload = r->first_unload ? r->first_unload : i;
        }
        if (move == SPEC_MEMORY_MAY_LOAD && spec_memory_pays(a->promised, a->value)) {
            assert_true(m->unloaded);
            spec_memory_set_loaded(m, true);
            m->lost += a->load_steps;
            r->ns += a->load_steps;
            r->n_load++;
        }
    }
}

static struct result run(struct machine a, int n_step)
{
    struct spec_memory m = { 0 };
    struct result r = { 0 };
    saved_ns = 0;
    go(&m, &a, n_step, &r);
    return r;
}

/* The loss is four steps, or that of 64 steps if they lose more, and 0.8 % of the time. */
static void a_useless_one_goes(void **state)
{
    static const double value[] = { 0.009, 0.02, 0.036, 0.06, 0.1, 0.3 };
    (void)state;
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        struct machine a = { .value = value[i], .gain = 1, .promised = 1 };
        struct result r = run(a, 10000);
        double least = 64 * value[i] / (1 - value[i]);
        assert_int_equal(r.n_unload, 1);
        assert_true(r.first_unload >= 64);
        assert_true(r.ns - r.none_ns <= fmax(5, least) + 0.01 * r.none_ns);
        assert_true(i == 0 || r.ns / r.none_ns < 1.0085);
        if (value[i] >= 0.036)
            assert_true(r.first_unload < 160);
    }
    struct result r = run((struct machine){ .value = 0.008, .gain = 1, .promised = 1 }, 10000);
    assert_int_equal(r.n_unload, 0); /* that little is allowed */
}

static void who_gains_stays(void **state)
{
    (void)state;
    for (double value = 0.01; value < 0.35; value += 0.03) {
        struct machine a = { .value = value, .gain = 1 / (1 - value) + 0.01, .promised = 1.5 };
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
        for (int slow = 0; slow < 2; slow++) {
            struct machine a = { .value = value, .gain = 1, .promised = 2, .load_steps = slow ? 10 : 0.3 };
            struct result r = run(a, 20000);
            assert_true(r.n_load >= 1);
            assert_true(r.ns / r.none_ns < 1.012);
            assert_true(r.n_loaded >= 64 * r.n_load);
        }
}

/* By night one sequence, whose drafts lose; by day many, whose drafts gain: back in the morning, and at once. */
static void it_is_back_by_day(void **state)
{
    (void)state;
    struct machine night = { .value = 0.05, .gain = 1, .promised = 0.9, .load_steps = 0.5 },
                   day = { .value = 0.04, .gain = 1.4, .promised = 1.3, .load_steps = 0.5 };
    struct spec_memory m = { 0 };
    saved_ns = 0;
    for (int i = 0; i < 5; i++) {
        struct result dark = { 0 }, light = { 0 };
        go(&m, &night, 3000, &dark);
        assert_true(m.unloaded);
        assert_int_equal(dark.n_unload, 1);
        assert_true(dark.ns / dark.none_ns < 1.003);
        go(&m, &day, 3000, &light);
        assert_true(!m.unloaded && light.n_load == 1 && light.n_unload == 0);
        assert_true(light.n_loaded > 3000 - 17);
        assert_true(light.none_ns / light.ns > 1.3);
    }
}

/* Steps in which nothing could be drafted are no reason to unload, but count as lost. */
static void who_could_not_draft_waits(void **state)
{
    (void)state;
    struct spec_memory m = { 0 };
    for (int i = 0; i < 1000; i++)
        assert_int_equal(spec_memory_step(&m, 0.05, 1, 0, i >= 900 && i < 963), SPEC_MEMORY_STAY);
    assert_int_equal(spec_memory_step(&m, 0.05, 1, 0, true), SPEC_MEMORY_UNLOAD);
}

static void a_promise_must_beat_the_memory(void **state)
{
    (void)state;
    assert_true(spec_memory_pays(1.1, 0.05));
    assert_false(spec_memory_pays(1.1, 0.08));
    assert_false(spec_memory_pays(1, 0));
    assert_true(spec_memory_pays(1.04, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_useless_one_goes),          cmocka_unit_test(who_gains_stays),
        cmocka_unit_test(broken_promises_cost_little), cmocka_unit_test(it_is_back_by_day),
        cmocka_unit_test(who_could_not_draft_waits),   cmocka_unit_test(a_promise_must_beat_the_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
