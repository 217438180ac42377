/* The controller's times of draft passes: outliers, and forecasts or measurements that are far too long. A drafter that is off is
 * not measured, so each of these could keep it off for good.  One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STEPS 2000
#define N_SEQ 8

/* The times of a run's draft passes, and its control. */
struct play {
    struct spec_control *c;
    double usual_ns, slow_ns;
    int n_slow;        /* steps at the start of the run in which draft passes take slow_ns */
    uint64_t stall_at; /* this draft of the run takes slow_ns: another process had the cores */
};

static void act(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    (void)m, (void)n_due;
    const struct play *p = arg;
    bool slow = step < p->n_slow || p->c->arm[0].n_step + 1 == p->stall_at;
    d->fixed_ns = slow ? p->slow_ns : p->usual_ns;
}

/* The machine on which such drafts pay, and the drafter whose passes take this share of a plain one. */
static const struct machine *streaming(void)
{
    for (int i = 0; i < N_MACHINES; i++)
        if (machines[i].Bps > 0)
            return &machines[i];
    return NULL;
}

static struct machine_drafter drafter(double share, double accept)
{
    return (
        struct machine_drafter){ "resident", 8, share * machine_pass_ns(streaming(), N_SEQ, 0, 0), 0, accept, 0, 0 };
}

/* forecast_ns: of a draft pass; < 0: nothing is forecast. */
static struct machine_run play(struct play *p, struct machine_drafter d, double forecast_ns)
{
    struct machine m = *streaming();
    struct spec_cost_model rates = machine_by_rates(&m);
    p->c = machine_control(&d);
    assert_non_null(p->c);
    if (forecast_ns >= 0)
        spec_control_set_forecast(p->c, &rates, &(struct spec_draft_forecast){ .ns = forecast_ns });
    p->usual_ns = d.fixed_ns;
    machine_seed = 7;
    struct machine_run r = machine_go(p->c, &m, &d, N_SEQ, STEPS, act, p);
    spec_control_close(p->c);
    return r;
}

static void expect_drafts(const struct machine_run *r, const char *when, double number)
{
    if (r->n_late_on < STEPS / 2 * 0.9)
        fail_msg("%s %g: drafts in %d of %d late steps", when, number, r->n_late_on, STEPS / 2);
}

/* One draft pass of ten plain steps, of the first trial or later, is not the drafter's doing. */
static void a_stalled_draft_turns_nothing_off(void **state)
{
    (void)state;
    for (int foreseen = 0; foreseen < 2; foreseen++)
        for (uint64_t at = foreseen ? 1 : 2; at < 100; at = at * 5 + 1) {
            struct machine_drafter d = drafter(0.05, 0.7);
            struct play p = { .slow_ns = 200 * d.fixed_ns, .stall_at = at };
            struct machine_run r = play(&p, d, foreseen ? d.fixed_ns : -1);
            int n_off = STEPS - r.n_on;
            if (n_off > STEPS / 10)
                fail_msg("a stall in draft %d: %d of %d steps without drafts", (int)at, n_off, STEPS);
        }
}

static void a_forecast_that_is_too_dear_is_tried(void **state)
{
    (void)state;
    for (double times = 4; times <= 32; times *= 8) {
        struct machine_drafter d = drafter(0.05, 0.7);
        struct play p = { 0 };
        struct machine_run r = play(&p, d, times * d.fixed_ns);
        expect_drafts(&r, "forecast times", times);
    }
}

/* Draft passes took long for some time, and then not any more. */
static void a_drafter_that_was_slow_is_tried_again(void **state)
{
    (void)state;
    for (double times = 4; times <= 32; times *= 8) {
        struct machine_drafter d = drafter(0.05, 0.7);
        struct play p = { .slow_ns = times * d.fixed_ns, .n_slow = 200 };
        struct machine_run r = play(&p, d, d.fixed_ns);
        expect_drafts(&r, "slow times", times);
    }
}

/* Drafts that do not pay are tried now and then, and cost less than 2 % in all. */
static void trials_of_dear_drafts_cost_little(void **state)
{
    (void)state;
    static const double share[] = { 0.2, 1, 3 }, accept[] = { 0.1, 0.7 };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            for (int f = 0; f < 4; f += 1 + k) { /* not forecast; a quarter of the time, all, four times */
                struct machine_drafter d = drafter(share[i], accept[k]);
                struct play p = { 0 };
                struct machine_run r = play(&p, d, f ? d.fixed_ns * (1 << 2 * f) / 16 : -1);
                if (r.off_ns < 0.98 * r.took_ns)
                    fail_msg("share %g, accept %g, forecast %d: %.3f of off", share[i], accept[k], f,
                             r.off_ns / r.took_ns);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stalled_draft_turns_nothing_off),
        cmocka_unit_test(a_forecast_that_is_too_dear_is_tried),
        cmocka_unit_test(a_drafter_that_was_slow_is_tried_again),
        cmocka_unit_test(trials_of_dear_drafts_cost_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
