/* The controller while users come and go: nearly every pass of some batch sizes has prompt rows beside the sequences due.
 * One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/settled.h"

#define PASSES 100

/* 16 sequences at first; then 10 to 15, always with the prompt rows of those that come. */
static void come_and_go(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    (void)m, (void)d;
    int *first = arg;
    *n_due = step < *first ? 16 : 10 + (int)(machine_random() * 6);
    machine_beside = step < *first ? 0 : 4 * (16 - *n_due);
}

/* A controller that knows the machine's rates. */
static struct spec_control *open_by_rates(const struct machine *m, const struct machine_drafter *d)
{
    struct spec_control *c = machine_control(d);
    struct spec_cost_model rates = machine_by_rates(m);
    assert_non_null(c);
    spec_control_set_forecast(c, &rates, NULL);
    return c;
}

/* Speed over no drafts in passes 51 to 100. */
static double run_load(const struct machine *machine, struct machine_drafter *d, int first, double noise)
{
    struct machine m = *machine;
    struct spec_control *c = open_by_rates(machine, d);
    struct machine_pass trace[PASSES];
    double off = 0, took = 0;
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
            struct spec_control *c = open_by_rates(&machines[i], &d);
            struct machine m = machines[i];
            machine_seed = 5;
            struct machine_run r = machine_go(c, &m, &d, n, 60, NULL, NULL);
            spec_control_close(c);
            if (r.n_on > (n < 16 ? 3 : 1))
                fail_msg("%s, %d sequences: drafts in %d of %d steps", m.name, n, r.n_on, r.n_step);
        }
}

static void decide_for_nine(struct spec_control *c, struct spec_decision *out)
{
    int session[9] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 }, nodes[9];
    spec_control_decide(c, session, 9, 0, out, nodes);
}

/* A controller after 30 passes with 16 sequences, which decides for 9. */
static struct spec_control *after_sixteen(const struct machine *machine, struct machine_drafter *d,
                                          struct spec_decision *decision)
{
    struct spec_control *c = open_by_rates(machine, d);
    struct machine m = *machine;
    machine_seed = 5;
    machine_go(c, &m, d, 16, 30, NULL, NULL);
    decide_for_nine(c, decision);
    return c;
}

/* A step of 9 sequences with n_drafted nodes each, of which none is accepted. */
static void learn_of_nine(struct spec_control *c, int n_drafted, double draft_ns, double pass_ns)
{
    static struct spec_tree tree;
    struct spec_session_outcome outcome[9];
    spec_tree_clear(&tree);
    for (int i = 0; i < n_drafted; i++)
        spec_tree_add(&tree, i - 1, i, 0.9f, 1);
    for (int i = 0; i < 9; i++)
        outcome[i] = (struct spec_session_outcome){ i, n_drafted ? &tree : NULL, 0, NULL };
    spec_control_learn(
        c,
        &(struct spec_outcome_of_pass){
            .n_row = 9 * (1 + n_drafted), .n_due = 9, .outcome = outcome, .draft_ns = draft_ns, .pass_ns = pass_ns });
}

/* The time of a pass with 9 sequences is known within a factor from passes with 16: enough for a gain that is larger, and
 * not for a small one. */
static void a_new_size_drafts_at_once_if_the_gain_is_clear(void **state)
{
    (void)state;
    const struct machine *disk = &machines[2];
    struct spec_decision d;
    double pass = machine_pass_ns(disk, 16, 0, 0);
    struct machine_drafter gains = { "model", 8, 0.001 * pass, 0, 0.9, 0, 0 },
                           gains_little = { "model", 8, 0.04 * pass, 0, 0.7, 0, 0 };
    int depth;
    assert_true(machine_best(disk, &gains, 9, &depth) > 2.5);
    spec_control_close(after_sixteen(disk, &gains, &d));
    assert_int_equal(d.why, SPEC_WHY_GAINS);
    assert_in_range(1000 * machine_best(disk, &gains_little, 9, &depth), 1200, 1700);
    spec_control_close(after_sixteen(disk, &gains_little, &d));
    assert_int_equal(d.why, SPEC_WHY_LEARN);
}

/* A drafter that was never tried promises much.  The drafter that would run gains little, so the new size is measured
 * first. */
static void the_gain_that_counts_is_that_of_the_plan(void **state)
{
    (void)state;
    struct machine m = machines[2];
    double pass = machine_pass_ns(&m, 16, 0, 0);
    struct machine_drafter d[2] = { { "model", 8, 0.04 * pass, 0, 0.7, 0, 0 }, { "ngram", 8, 1, 0, 0.95, 0, 0 } };
    struct spec_draft_forecast forecast[2] = { { d[0].fixed_ns, 0, 0 }, { 1, 0, 0.95 } };
    struct spec_control *c = open_for(d, 2, SPEC_COUPLED);
    struct spec_cost_model rates = machine_by_rates(&m);
    struct spec_decision decision;
    spec_control_set_forecast(c, &rates, forecast);
    spec_control_disable(c, 1, true);
    machine_seed = 5;
    machine_go(c, &m, d, 16, 30, NULL, NULL);
    spec_control_disable(c, 1, false);
    decide_for_nine(c, &decision);
    assert_int_equal(decision.why, SPEC_WHY_LEARN);
    spec_control_close(c);
}

static void open_passes(struct spec_passes *p)
{
    struct spec_cost_model rates = machine_by_rates(&machines[2]);
    memset(p, 0, sizeof *p);
    assert_int_equal(spec_passes_open(p, 0), 0);
    spec_passes_set_forecast(p, &rates);
}

/* From three passes with 16 sequences: a gain of 9 remains if it is above 16/9 and the noise; nothing is known of more
 * sequences, nor after one pass with 9, which may have been slow. */
static void passes_of_more_sequences_tell_a_size(void **state)
{
    (void)state;
    struct spec_passes p;
    open_passes(&p);
    for (int i = 0; i < 3; i++) {
        assert_false(spec_passes_has_size(&p, 9, 0, 9));
        spec_passes_learn(&p, 16, 0, 0, 100e6);
    }
    assert_true(spec_passes_has_size(&p, 9, 0, 2));
    assert_false(spec_passes_has_size(&p, 9, 0, 1.7));
    assert_false(spec_passes_has_size(&p, 32, 0, 9));
    p.noise = 0.3;
    assert_true(spec_passes_has_size(&p, 9, 0, 3.5));
    assert_false(spec_passes_has_size(&p, 9, 0, 2));
    p.noise = 0;
    spec_passes_learn(&p, 9, 0, 0, 300e6);
    assert_false(spec_passes_has_size(&p, 9, 0, 9));
    spec_passes_close(&p);
}

/* With 9 sequences all experts may fit, and a pass with drafts takes less time than a plain one was expected to: it
 * counts as no gain, and a plain step is next. */
static void a_new_size_that_is_faster_is_measured(void **state)
{
    (void)state;
    const struct machine *disk = &machines[2];
    struct spec_decision d;
    struct machine_drafter gains = { "model", 8, 0.001 * machine_pass_ns(disk, 16, 0, 0), 0, 0.9, 0, 0 };
    struct spec_control *c = after_sixteen(disk, &gains, &d);
    assert_true(d.drafter == 0 && d.depth > 0);
    double expected_ns = d.off_ns, draft_ns = 0.01 * expected_ns;
    learn_of_nine(c, d.depth, draft_ns, 0.5 * expected_ns);
    decide_for_nine(c, &d);
    assert_int_equal(d.why, SPEC_WHY_REFRESH);
    assert_true(d.lost_ns > 0.9 * draft_ns);
    spec_control_close(c);
}

/* Drafted passes were measured before plain ones of their size: they keep their times when those are. */
static void drafted_passes_keep_their_times(void **state)
{
    (void)state;
    struct spec_passes p;
    open_passes(&p);
    for (int i = 0; i < 10; i++)
        spec_passes_learn(&p, 16, 0, 0, 100e6);
    for (int i = 0; i < 10; i++)
        spec_passes_learn(&p, 9, 0, 18, 90e6);
    for (int i = 0; i < 4; i++) {
        double ns = spec_passes_ns(&p, 9, 0, 18, false);
        if (fabs(ns / 90e6 - 1) > 0.01)
            fail_msg("after %d plain passes: %.1f ms, not 90", i, ns * 1e-6);
        spec_passes_learn(&p, 9, 0, 0, 30e6);
    }
    spec_passes_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(users_that_come_and_go_get_drafts),
        cmocka_unit_test(useless_drafts_cost_few_steps),
        cmocka_unit_test(a_new_size_drafts_at_once_if_the_gain_is_clear),
        cmocka_unit_test(the_gain_that_counts_is_that_of_the_plan),
        cmocka_unit_test(passes_of_more_sequences_tell_a_size),
        cmocka_unit_test(a_new_size_that_is_faster_is_measured),
        cmocka_unit_test(drafted_passes_keep_their_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
