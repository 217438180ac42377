/* The controller while users come and go: nearly every pass of some batch sizes has prompt rows beside the sequences due.
 * One thread: not under MODE=tsan. */
#include "tests/speculative/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define PASSES 100

/* 16 sequences at first; then 10 to 15, always with the prompt rows of those that come. */
static void come_and_go(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    (void)m, (void)d;
    int *first = arg;
    *n_due = step < *first ? 16 : 10 + (int)(machine_random() * 6);
    machine_beside = step < *first ? 0 : 4 * (16 - *n_due);
}

/* Speed over no drafts in passes 51 to 100. */
static double run_load(const struct machine *machine, struct machine_drafter *d, int first, double noise)
{
    struct machine m = *machine;
    struct spec_control *c = machine_control(d);
    struct spec_cost_model rates = machine_by_rates(machine);
    struct machine_pass trace[PASSES];
    double off = 0, took = 0;
    assert_non_null(c);
    spec_control_set_forecast(c, &rates, NULL);
    m.noise = noise;
    machine_trace = trace;
    machine_go(c, &m, d, 16, PASSES, come_and_go, &first);
    machine_trace = NULL;
    machine_beside = 0;
    spec_control_close(c);
    for (int i = PASSES / 2; i < PASSES; i++) {
        off += trace[i].off_ns;
        took += trace[i].took_ns;
    }
    return off / took;
}

/* Sizes that are never seen without prompt rows draft, whether other sizes were (first 10) or not. */
static void users_that_come_and_go_get_drafts(void **state)
{
    (void)state;
    for (int first = 0; first <= 10; first += 10)
        for (int noise = 0; noise < 2; noise++)
            for (int i = 0; i < N_MACHINES; i++) {
                double pass = machine_pass_ns(&machines[i], 12, 0, 0);
                struct machine_drafter d = { "model", 8, 0.01 * pass, 0, 0.8, 0, 0 };
                int depth;
                double best = machine_best(&machines[i], &d, 12, &depth);
                machine_seed = 5;
                double late = run_load(&machines[i], &d, first, noise ? 0.3 : 0.05);
                if (late < (noise ? 0.7 : 0.92) * best)
                    fail_msg("%s, first %d, noise %d: %.3f, %d deep %.3f", machines[i].name, first, noise, late, depth,
                             best);
            }
}

/* Eight drafts of which none is accepted end a trial, after one step or, with 4 sequences, after two. */
static void useless_drafts_cost_few_steps(void **state)
{
    (void)state;
    for (int n = 4; n <= 16; n *= 2)
        for (int i = 0; i < N_MACHINES; i++) {
            double pass = machine_pass_ns(&machines[i], n, 0, 0);
            struct machine_drafter d = { "model", 8, 0.01 * pass, 0, 0, 0, 0 };
            struct spec_control *c = machine_control(&d);
            struct spec_cost_model rates = machine_by_rates(&machines[i]);
            struct machine m = machines[i];
            assert_non_null(c);
            spec_control_set_forecast(c, &rates, NULL);
            machine_seed = 5;
            struct machine_run r = machine_go(c, &m, &d, n, 60, NULL, NULL);
            spec_control_close(c);
            if (r.n_on > (n < 16 ? 3 : 1))
                fail_msg("%s, %d sequences: drafts in %d of %d steps", m.name, n, r.n_on, r.n_step);
        }
}

/* The reason of the first decision for 9 sequences, after 30 passes with 16. */
static enum spec_why first_of_nine(const struct machine *machine, struct machine_drafter *d)
{
    struct spec_control *c = machine_control(d);
    struct spec_cost_model rates = machine_by_rates(machine);
    struct machine m = *machine;
    struct spec_decision decision;
    int session[9], nodes[9];
    assert_non_null(c);
    spec_control_set_forecast(c, &rates, NULL);
    machine_seed = 5;
    machine_go(c, &m, d, 16, 30, NULL, NULL);
    for (int i = 0; i < 9; i++)
        session[i] = i;
    spec_control_decide(c, session, 9, 0, &decision, nodes);
    spec_control_close(c);
    return decision.why;
}

/* The time of a pass with 9 sequences is known within a factor from passes with 16: enough for a gain that is larger, and not for
 * a small one. */
static void a_new_size_drafts_at_once_if_the_gain_is_clear(void **state)
{
    (void)state;
    const struct machine *disk = &machines[2];
    double pass = machine_pass_ns(disk, 16, 0, 0);
    struct machine_drafter gains = { "model", 8, 0.001 * pass, 0, 0.9, 0, 0 },
                           gains_little = { "model", 8, 0.04 * pass, 0, 0.7, 0, 0 };
    int depth;
    assert_true(machine_best(disk, &gains, 9, &depth) > 2.5);
    assert_int_equal(first_of_nine(disk, &gains), SPEC_WHY_GAINS);
    assert_in_range(1000 * machine_best(disk, &gains_little, 9, &depth), 1200, 1700);
    assert_int_equal(first_of_nine(disk, &gains_little), SPEC_WHY_LEARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(users_that_come_and_go_get_drafts),
        cmocka_unit_test(useless_drafts_cost_few_steps),
        cmocka_unit_test(a_new_size_drafts_at_once_if_the_gain_is_clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
