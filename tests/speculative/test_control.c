/* The controller on simulated machines (machine.h): never slower than no drafting, near the best fixed depth, for every
 * machine, drafter, batch and change during a run; and its parts by hand.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/settled.h"
#include "tests/faults.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define STEPS 1500
#ifdef __SANITIZE_ADDRESS__ /* slow, and about memory alone */
#define THIN(all, few) (few)
#else
#define THIN(all, few) (all)
#endif

static struct machine_run run(const struct machine *machine, const struct machine_drafter *drafter, int n_drafter,
                              int n_due, int n_step, machine_change *change, void *arg)
{
    struct machine m = *machine;
    struct machine_drafter d[SPEC_DRAFTERS];
    memcpy(d, drafter, (size_t)n_drafter * sizeof *d);
    struct spec_control *c = open_for(d, n_drafter, SPEC_COUPLED);
    machine_seed = 1;
    kn_alloc_forbid(true);
    struct machine_run r = machine_go(c, &m, d, n_due, n_step, change, arg);
    kn_alloc_forbid(false);
    spec_control_close(c);
    return r;
}

/* A model drafter that takes this share of a plain step to draft a token for one sequence. */
static struct machine_drafter model(const struct machine *m, double share, double accept)
{
    double pass = machine_pass_ns(m, 1, 0, 0);
    return (struct machine_drafter){ "model", 8, share * pass, 0.05 * share * pass, accept, 0, 0 };
}

static void expect_never_slower(const struct machine *m, const struct machine_run *r, double accept, int n)
{
    if (r->took_ns > 1.02 * r->off_ns)
        fail_msg("%s, accept %g, %d sequences: %.3f of off", m->name, accept, n, r->off_ns / r->took_ns);
}

/* ---- scenarios -------------------------------------------------------------------------------------------- */

static void never_slower_and_near_the_best(void **state)
{
    (void)state;
    static const double accept[] = { 0, 0.4, 0.8, 0.95 };
    static const int batch[] = { 1, 4, 16, 64 };
    double sum = 0;
    int n = 0;
    for (int i = 0; i < N_MACHINES; i++)
        for (size_t a = 0; a < sizeof accept / sizeof *accept; a++)
            for (size_t b = 0; b < sizeof batch / sizeof *batch; b += THIN(1, 3)) {
                const struct machine *m = &machines[i];
                struct machine_drafter d = model(m, 0.04, accept[a]);
                int depth;
                double best = machine_best(m, &d, batch[b], &depth);
                struct machine_run r = run(m, &d, 1, batch[b], STEPS, NULL, NULL);
                expect_never_slower(m, &r, accept[a], batch[b]);
                double settled = r.late_off_ns / r.late_took_ns;
                sum += settled / best;
                n++;
                if (settled < 0.92 * best || (best > 1.15 && r.n_late_on < STEPS / 4))
                    fail_msg("%s, accept %g, %d sequences: %.3f, but %d deep %.3f", m->name, accept[a], batch[b],
                             settled, depth, best);
                if (depth == 0 && machine_fixed(m, &d, batch[b], 1) < 0.95 && r.n_late_on > STEPS / 20)
                    fail_msg("%s, accept %g, %d sequences: on in %d steps of %d", m->name, accept[a], batch[b],
                             r.n_late_on, STEPS / 2);
            }
    assert_true(sum / n > 0.98);
}

/* 24 layers of 128 experts, 8 used, 42 % of them in memory: pass times on two cores and a disk of 3 GB/s (1.23 s
 * with 16 rows, 2.2 s with 64: evals/results/drafts/drafts-2026-11-20.md), where memory has more of the experts that
 * few rows use; the same if it had not; and the engine's forecast of it from rates and sizes alone. */
static const struct machine tier[] = {
    { "tier",
      { .fixed_ns = 17e6,
        .dense_ns = 1.5e6,
        .load_ns = 2.1e6,
        .expert_ns = 0.32e6,
        .ridge = 1e-9,
        .growth = M_E,
        .n_expert = 128,
        .n_used = 8 },
      63.6e6,
      0.38,
      2.13e9,
      1,
      0.05,
      0.2 },
    { "even tier",
      { .fixed_ns = 17e6,
        .dense_ns = 1.5e6,
        .load_ns = 2.1e6,
        .expert_ns = 0.32e6,
        .ridge = 1e-9,
        .growth = M_E,
        .n_expert = 128,
        .n_used = 8 },
      63.6e6,
      0.5,
      2.13e9,
      1,
      0.05,
      0 },
};
static const struct spec_cost_model tier_foreseen = { .fixed_ns = 19e6,
                                                      .dense_ns = 1.6e6,
                                                      .load_ns = 2.1e6,
                                                      .disk_ns = 12.4e6,
                                                      .expert_ns = 0.35e6,
                                                      .ridge = 1e-9,
                                                      .growth = M_E,
                                                      .n_expert = 128,
                                                      .n_used = 8 };

static struct machine_run run_tier(int i, const struct machine_drafter *drafter, int n_due, int n_step, uint64_t seed,
                                   const struct spec_cost_model *foreseen)
{
    struct machine m = tier[i];
    struct machine_drafter d = *drafter;
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    spec_control_set_forecast(c, foreseen, &(struct spec_draft_forecast){ 0 });
    machine_seed = seed;
    struct machine_run r = machine_go(c, &m, &d, n_due, n_step, NULL, NULL);
    spec_control_close(c);
    return r;
}

/* The bound by bytes read: E(depth) N(n) / N(n (depth + 1)). */
static double bytes_allow(const struct machine *m, double accept, int n)
{
    double best = 1, off = spec_cost_distinct(m->cost.n_expert, m->cost.n_used, n);
    for (int depth = 1; depth <= 8; depth++)
        best = fmax(best, spec_cost_tokens(accept, depth) * off /
                              spec_cost_distinct(m->cost.n_expert, m->cost.n_used, n * (depth + 1)));
    return best;
}

/* From a cold start, within the steps of a short answer: with streamed experts drafts pay from eight sequences
 * on, at depths that cautious first trials would never reach. */
static void streamed_experts_are_gained_from_at_once(void **state)
{
    (void)state;
    static const int batch[] = { 8, 16, 32 };
    for (int i = 0; i < 2; i++)
        for (int b = 0; b < 3; b++)
            for (uint64_t seed = 1; seed < 6; seed++) {
                struct machine_drafter d = { "oracle", 8, 1, 1, 0.8, 0, 0 };
                int depth, n = batch[b];
                struct machine_run r = run_tier(i, &d, n, 64, seed, &tier_foreseen);
                double best = machine_best(&tier[i], &d, n, &depth), all = r.off_ns / r.took_ns,
                       late = r.late_off_ns / r.late_took_ns, bytes = bytes_allow(&tier[1], 0.8, n);
                if (late < 0.95 * best || all < 0.88 * best || (i == 1 && late < 0.85 * bytes))
                    fail_msg("%s, %d sequences: %.3f, in all %.3f, but %d deep %.3f, and bytes allow %.3f",
                             tier[i].name, n, late, all, depth, best, bytes);
            }
}

/* Times measured without drafts and with many rows give the times between them, by the forecast's bend. */
static void between_two_known_passes_it_bends(void **state)
{
    (void)state;
    struct machine m = tier[1];
    struct machine_drafter d = { "oracle", 8, 1, 1, 0.8, 0, 0 };
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    spec_control_set_forecast(c, &tier_foreseen, &(struct spec_draft_forecast){ 0 });
    machine_seed = 2;
    m.noise = 0;
    machine_go(c, &m, &d, 16, 40, NULL, NULL);
    for (int n = 0; n <= 128; n += 16) {
        double ns = spec_passes_ns(&c->passes, 16, 0, n, false), truth = machine_pass_ns(&m, 16, 0, n);
        if (fabs(ns / truth - 1) > 0.02)
            fail_msg("%d rows: %.1f ms for %.1f", 16 + n, ns * 1e-6, truth * 1e-6);
    }
    spec_control_close(c);
}

/* The measured time of a draft pass is extrapolated to more sequences by the bend of passes, unless it was measured. */
static void a_draft_pass_is_foreseen(void **state)
{
    (void)state;
    static const struct machine_drafter d[2] = { { "model", 8, 1, 1, 0.8, 0, 0 }, { "ngram", 8, 1, 1, 0.8, 0, 0 } };
    static const struct spec_cost_model pass = { .fixed_ns = 1, .ridge = 6, .growth = 1.5 };
    struct spec_control *c = open_for(d, 2, SPEC_COUPLED);
    spec_control_set_forecast(c, &pass, NULL);
    assert_true(spec_control_draft_ns(c, 0, 1, false) < 0);
    spec_control_set_forecast(c, &pass, (struct spec_draft_forecast[]){ { 100, 4, 0 }, { 7, 0, 0 } });
    for (int n = 1; n <= MACHINE_SESSIONS; n++) {
        double ns = spec_control_draft_ns(c, 0, n, false), expected = 100 + 4 * spec_cost_phi(n, 6, 1.5);
        if (fabs(ns / expected - 1) > 1e-12 || spec_control_draft_ns(c, 1, n, false) != 7)
            fail_msg("%d sequences: %g for %g", n, ns, expected);
    }
    spec_control_close(c);
}

/* Wrong forecasts, of no growth or of all growth: the first costs some steps where drafts do not pay, the
 * second is corrected step by step. */
static void a_wrong_forecast_is_mended(void **state)
{
    (void)state;
    static const struct spec_cost_model wrong[] = { { .fixed_ns = 1, .ridge = 1, .growth = 1 },
                                                    { .dense_ns = 1, .ridge = 1e-9, .growth = M_E } };
    static const int batch[] = { 1, 8, 16, 32 };
    for (int w = 0; w < 2; w++)
        for (int b = 0; b < 4; b++)
            for (uint64_t seed = 1; seed < 4; seed++) {
                struct machine_drafter d = { "oracle", 8, 1, 1, 0.8, 0, 0 };
                int depth, n = batch[b], n_step = w ? 400 : 64;
                struct machine_run r = run_tier(1, &d, n, n_step, seed, &wrong[w]);
                double late = r.late_off_ns / r.late_took_ns, best = machine_best(&tier[1], &d, n, &depth);
                double lost = (r.took_ns - r.off_ns) / machine_pass_ns(&tier[1], n, 0, 0);
                if (late < (w ? 0.88 : 0.95) * best || lost > (w ? 5 : 9))
                    fail_msg("forecast %d, %d sequences: %.3f, %d deep %.3f, %.1f steps lost", w, n, late, depth, best,
                             lost);
            }
}

/* With few sequences every row brings its own experts: drafting must not lose there, at first and in the long run. */
static void streamed_experts_are_not_lost_by(void **state)
{
    (void)state;
    static const double accept[] = { 0, 0.3, 0.6, 0.8 };
    for (int i = 0; i < 2; i++)
        for (int a = 0; a < 4; a++)
            for (int n = 1; n <= 4; n *= 2)
                for (uint64_t seed = 1; seed < THIN(4, 2); seed++) {
                    struct machine_drafter d = { "oracle", SPEC_DEPTHS, 1, 1, accept[a], 0, 0 };
                    struct machine_run r = run_tier(i, &d, n, 256, seed, &tier_foreseen);
                    expect_never_slower(&tier[i], &r, accept[a], n);
                }
}

/* The first plain steps took long by chance, so drafts seem to gain: soon plain steps tell otherwise. */
static void a_doubtful_gain_is_measured_again(void **state)
{
    (void)state;
    static const uint64_t seed[] = { 67, 89, 98, 222 };
    for (int i = 0; i < 4; i++) {
        struct machine_drafter d = { "oracle", SPEC_DEPTHS, 1, 1, 0.8, 0, 0 };
        struct machine_run r = run_tier(0, &d, 4, 256, seed[i], &tier_foreseen);
        expect_never_slower(&tier[0], &r, 0.8, 4);
    }
}

/* A small model on a fast disk: passes are so short that they vary by a third. */
static const struct machine restless = { "restless",
                                         { .fixed_ns = 0.2e6,
                                           .load_ns = 0.02e6,
                                           .dense_ns = 0.05e6,
                                           .expert_ns = 0.002e6,
                                           .ridge = 64,
                                           .growth = 1.01,
                                           .n_expert = 16,
                                           .n_used = 2 },
                                         0.4e6,
                                         0.7,
                                         0.7e9,
                                         0.8,
                                         0.3,
                                         0 };

/* Expects a gain on the mean of some runs, because single runs are noisy. */
static void expect_restless(double accept, int n, double text_ns)
{
    enum { RUNS = 16 };
    struct machine_drafter d = { "model", SPEC_DEPTHS, 0.12e6, 0.01e6, accept, 0, 0 };
    double sum = 0;
    int depth;
    machine_text_ns = text_ns;
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        struct machine m = restless;
        struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
        struct spec_cost_model pass = m.cost;
        pass.disk_ns = m.missing * m.expert_bytes / m.Bps * 1e9;
        spec_control_set_forecast(c, &pass, &(struct spec_draft_forecast){ .ns = d.fixed_ns });
        machine_seed = 77777 * seed;
        struct machine_run r = machine_go(c, &m, &d, n, STEPS, NULL, NULL);
        sum += r.off_ns / r.took_ns / RUNS;
        spec_control_close(c);
    }
    machine_text_ns = 0;
    double best = machine_best(&restless, &d, n, &depth);
    if (sum < 0.98 || sum < 0.9 * best)
        fail_msg("accept %g, %d sequences: %.3f of off on the mean, %.3f is best", accept, n, sum, best);
}

static void restless_passes_are_learnt_longer(void **state)
{
    (void)state;
    for (double accept = 0; accept < 0.9; accept += THIN(0.2, 0.8))
        expect_restless(accept, 8, 0);
}

/* Prefilling a token costs the drafter a fiftieth of a plain step: prefilling eight sequences costs as much as a trial,
 * and thirty-two cost more than may be lost at once. */
static void texts_are_taken_in_where_that_pays(void **state)
{
    (void)state;
    for (double accept = 0; accept < 0.9; accept += THIN(0.2, 0.8))
        for (int n = 8; n <= THIN(32, 8); n *= 4)
            expect_restless(accept, n, 20e3);
}

/* 1 to 32 sequences and back, each for a while. */
static void moves_load(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    static const int load[] = { 1, 2, 32, 7, 1, 16, 3, 32 };
    (void)arg;
    (void)m;
    (void)d;
    *n_due = load[step / 150 % 8];
}

static void load_moves(void **state)
{
    (void)state;
    for (int i = 0; i < N_MACHINES; i++)
        for (double accept = 0; accept < 1; accept += 0.4) {
            struct machine_drafter d = model(&machines[i], 0.04, accept);
            struct machine_run r = run(&machines[i], &d, 1, 1, 2400, moves_load, NULL);
            expect_never_slower(&machines[i], &r, accept, 0);
        }
    struct machine_drafter d = model(&machines[4], 0.04, 0.8);
    struct machine_run r = run(&machines[4], &d, 1, 1, 2400, moves_load, NULL);
    assert_true(r.late_off_ns > 1.3 * r.late_took_ns);
}

static void collapses(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    (void)m;
    (void)n_due;
    d->accept = step < *(int *)arg ? 0.9 : 0.05;
}

static void acceptance_collapses(void **state)
{
    (void)state;
    int half = 1000;
    for (int i = 0; i < N_MACHINES; i++)
        for (int n = 1; n <= 16; n *= 4) {
            /* the survival that it reports stays as it was */
            struct machine_drafter d = model(&machines[i], 0.04, 0.9);
            d.says = 0.9;
            struct machine_run r = run(&machines[i], &d, 1, n, 2000, collapses, &half);
            expect_never_slower(&machines[i], &r, 0.9, n);
            d.accept = 0.05;
            bool clear = machine_fixed(&machines[i], &d, n, 1) < 0.9;
            if (r.late_took_ns > 1.04 * r.late_off_ns || (clear && r.n_late_on > 60))
                fail_msg("%s, %d sequences, after the collapse: %.3f, %d steps with drafts", machines[i].name, n,
                         r.late_off_ns / r.late_took_ns, r.n_late_on);
        }
}

/* From step 1000 on everything takes twice as long, as with another process on the machine; or half. */
static void changes_speed(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    (void)n_due;
    if (step != 1000)
        return;
    double by = *(double *)arg;
    d->fixed_ns *= by;
    d->seq_ns *= by;
    m->cost.fixed_ns *= by;
    m->cost.dense_ns *= by;
    m->cost.load_ns *= by;
    m->cost.expert_ns *= by;
    m->cost.choose_row_ns *= by;
    m->Bps /= by;
}

static void machine_changes(void **state)
{
    (void)state;
    for (double by = 0.5; by < 3; by *= 4)
        for (int i = 0; i < N_MACHINES; i++) {
            struct machine_drafter d = model(&machines[i], 0.04, 0.85);
            struct machine m = machines[i];
            int depth;
            double best = machine_best(&m, &d, 8, &depth);
            struct machine_run r = run(&machines[i], &d, 1, 8, 2000, changes_speed, &by);
            expect_never_slower(&machines[i], &r, 0.85, 8);
            if (r.late_off_ns < 0.9 * best * r.late_took_ns)
                fail_msg("%s, times %g: %.3f after it, %.3f is best", m.name, by, r.late_off_ns / r.late_took_ns, best);
        }
}

/* Plain steps become twice as fast, and steps with drafts do not: only plain steps can show the change. */
static void frees_plain_steps(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    (void)arg;
    (void)d;
    (void)n_due;
    if (step == 1000) {
        m->cost.fixed_ns = 2e6;
        m->cost.choose_row_ns = 4.6e6;
    }
}

static void plain_steps_are_measured_again(void **state)
{
    (void)state;
    struct machine_run r = run(&hand, &by_hand, 1, 1, 2000, frees_plain_steps, NULL);
    assert_true(r.n_on - r.n_late_on > 800 && r.n_on - r.n_late_on < 993);
    expect_never_slower(&hand, &r, 0.7, 1);
    assert_true(r.n_late_on < 200);
    assert_true(r.late_took_ns < 1.06 * r.late_off_ns);
}

/* If everything takes longer with four sequences, the forecast for one grows too. */
static void change_is_for_all_sizes(void **state)
{
    (void)state;
    struct machine m = hand;
    struct machine_drafter d = by_hand;
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    machine_seed = 11;
    machine_go(c, &m, &d, 1, 100, NULL, NULL);
    machine_go(c, &m, &d, 4, 400, NULL, NULL);
    assert_true(fabs(spec_passes_ns(&c->passes, 1, 0, 0, false) / 13e6 - 1) < 0.01);
    m.cost.fixed_ns *= 2;
    m.cost.choose_row_ns *= 2;
    machine_go(c, &m, &d, 4, 60, NULL, NULL);
    assert_true(fabs(spec_passes_ns(&c->passes, 4, 0, 0, false) / 44e6 - 1) < 0.05);
    assert_true(fabs(spec_passes_ns(&c->passes, 1, 0, 0, false) / 26e6 - 1) < 0.1);
    spec_control_close(c);
}

/* ---- drafters -------------------------------------------------------------------------------------------------- */

static void boasts_are_seen_through(void **state)
{
    (void)state;
    for (int i = 0; i < N_MACHINES; i++)
        for (int n = 1; n <= 16; n *= 4) {
            struct machine_drafter d = model(&machines[i], 0.1, 0.3);
            d.says = 0.95;
            int depth;
            struct machine_run r = run(&machines[i], &d, 1, n, STEPS, NULL, NULL);
            expect_never_slower(&machines[i], &r, 0.3, n);
            assert_true(r.late_off_ns > 0.93 * machine_best(&machines[i], &d, n, &depth) * r.late_took_ns);
        }
}

/* With shared noise a drafter's token may have a low probability, and still be the target's token. */
static void modesty_is_seen_through(void **state)
{
    (void)state;
    for (int i = 0; i < N_MACHINES; i++)
        for (int n = 1; n <= 16; n *= 4) {
            struct machine_drafter d = model(&machines[i], 0.04, 0.8);
            d.says = 1e-3;
            int depth;
            struct machine_run r = run(&machines[i], &d, 1, n, STEPS, NULL, NULL);
            expect_never_slower(&machines[i], &r, 0.8, n);
            double best = machine_best(&machines[i], &d, n, &depth);
            if (r.late_off_ns < 0.9 * best * r.late_took_ns)
                fail_msg("%s, %d sequences: %.3f, %d deep %.3f", machines[i].name, n, r.late_off_ns / r.late_took_ns,
                         depth, best);
        }
}

/* The drafter that gains more is found, in either order. */
static void better_drafter_is_found(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct machine_drafter d[2];
        d[first] = model(&machines[4], 0.3, 0.9);
        d[1 - first] = model(&machines[4], 0.04, 0.8);
        struct machine m = machines[4];
        struct spec_control *c = open_for(d, 2, SPEC_COUPLED);
        machine_seed = 7;
        machine_go(c, &m, d, 2, 2000, NULL, NULL);
        struct spec_account good, bad;
        spec_control_account(c, 1 - first, &good);
        spec_control_account(c, first, &bad);
        assert_true(good.n_step > 10 * bad.n_step);
        assert_int_equal(good.verdict, SPEC_VERDICT_PAYS);
        spec_control_close(c);
    }
}

/* The best speedup by drafts that exist in some steps only. */
static double now_and_then(const struct machine *m, const struct machine_drafter *d)
{
    struct machine_drafter always = *d;
    always.sure = 0;
    int depth;
    double when = machine_best(m, &always, 1, &depth), tokens = spec_cost_tokens(d->accept, depth);
    return (1 - d->sure + d->sure * tokens) / (1 - d->sure + d->sure * tokens / when);
}

/* A free drafter with drafts in one step of five is asked in every step, and costs nothing in the others. */
static void free_drafts_are_taken_when_there_are_any(void **state)
{
    (void)state;
    struct machine_drafter d = { "ngram", 8, 1e3, 1e3, 0.9, 0, 0.2 };
    struct machine_run r = run(&machines[4], &d, 1, 1, 3000, NULL, NULL);
    expect_never_slower(&machines[4], &r, 0.9, 1);
    assert_true(r.late_off_ns > 0.95 * now_and_then(&machines[4], &d) * r.late_took_ns);
    /* so rare that the average row would not be worth verifying */
    d.sure = 0.06;
    d.accept = 0.95;
    r = run(&hand, &d, 1, 1, 3000, NULL, NULL);
    expect_never_slower(&hand, &r, 0.95, 1);
    assert_true(now_and_then(&hand, &d) > 1.1);
    assert_true(r.late_off_ns > 0.96 * now_and_then(&hand, &d) * r.late_took_ns);
}

static void memory_has_its_price(void **state)
{
    (void)state;
    struct machine m = machines[4];
    struct machine_drafter d = model(&m, 0.3, 0.6);
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    struct spec_account a;
    char line[256];
    spec_control_account(c, 0, &a);
    assert_int_equal(a.verdict, SPEC_VERDICT_UNTRIED);
    machine_seed = 3;
    machine_go(c, &m, &d, 1, 2000, NULL, NULL);
    spec_control_account(c, 0, &a);
    assert_int_equal(a.verdict, SPEC_VERDICT_PAYS);
    assert_true(a.gain > 1.02 && a.gain < 1.4);
    assert_true(fabs(a.accepted[0] - 0.6) < 0.1);
    assert_true(spec_account_text(c, 0, line, sizeof line) > 0 && strstr(line, "model: pays, gain 1."));
    spec_control_set_memory_value(c, 0, 0.5);
    spec_control_account(c, 0, &a);
    assert_int_equal(a.verdict, SPEC_VERDICT_MEMORY_WORTH_MORE);
    assert_true(spec_account_text(c, 0, line, sizeof line) > 0);
    assert_non_null(strstr(line, "as expert cache would gain 2.000: run without it"));
    spec_control_disable(c, 0, true);
    assert_int_equal(machine_go(c, &m, &d, 1, 500, NULL, NULL).n_on, 0);
    assert_int_equal(machine_go(c, &m, &d, 8, 500, NULL, NULL).n_on, 0);
    spec_control_close(c);

    d.accept = 0;
    c = open_for(&d, 1, SPEC_COUPLED);
    machine_go(c, &m, &d, 1, 6000, NULL, NULL);
    spec_control_account(c, 0, &a);
    assert_int_equal(a.verdict, SPEC_VERDICT_LOSES);
    assert_true(a.n_step < 24); /* losing trials are short, and become rarer */
    spec_control_close(c);
}

/* The gain that an unloaded drafter promises: as its drafts were; as they may be, if none were made; none where the time of a
 * plain step is not known. */
static void an_unloaded_drafter_promises(void **state)
{
    (void)state;
    struct machine m = machines[4];
    struct machine_drafter d = model(&m, 0.3, 0.6);
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    struct spec_decision decision;
    const int session[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    char line[512];
    assert_true(spec_control_promise(c, 0, session, 1, true) == 1);
    spec_control_disable(c, 0, true);
    machine_seed = 3;
    assert_true(machine_go(c, &m, &d, 1, 100, NULL, NULL).n_on == 0);
    assert_true(spec_control_promise(c, 0, session, 1, true) > 1.1);
    assert_true(spec_control_promise(c, 0, session, 1, false) == 1);
    spec_control_disable(c, 0, false);
    machine_go(c, &m, &d, 1, 2000, NULL, NULL);
    spec_control_disable(c, 0, true);
    assert_int_equal(machine_go(c, &m, &d, 1, 500, NULL, NULL).n_on, 0);
    double gain = spec_control_promise(c, 0, session, 1, false);
    assert_true(gain > 1.02 && gain < 1.4);
    assert_true(spec_control_promise(c, 0, session, 8, true) == 1); /* no step of eight was seen */

    spec_control_decide_plain(c, 1, 0, SPEC_WHY_UNLOADED, &decision);
    assert_true(decision.why == SPEC_WHY_UNLOADED && decision.drafter == SPEC_OFF && decision.n_due == 1);
    assert_true(decision.off_ns > 0 && decision.loss_limit_ns > 0 && decision.lost_ns >= 0);
    assert_true(decision.target.rows == 2);
    spec_decision_text(c, &decision, line, sizeof line);
    assert_non_null(strstr(line, "draft: off (the drafters are unloaded until they promise more)"));
    spec_control_close(c);

    d.accept = 0;
    c = open_for(&d, 1, SPEC_COUPLED);
    machine_go(c, &m, &d, 1, 3000, NULL, NULL);
    assert_true(spec_control_promise(c, 0, session, 1, true) == 1);
    spec_control_close(c);
}

/* Saved time is that of the last step. */
static void what_a_step_saved(void **state)
{
    (void)state;
    struct machine m = machines[4];
    struct machine_drafter d = model(&m, 0.3, 0.6);
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    machine_seed = 3;
    double all = 0;
    int n_on = 0;
    for (int i = 0; i < 2000; i++) {
        struct machine_run r = machine_go(c, &m, &d, 1, 1, NULL, NULL);
        assert_true(r.n_on || spec_control_saved_ns(c) == 0);
        all += spec_control_saved_ns(c);
        n_on += r.n_on;
    }
    assert_true(n_on > 100 && all > 0);
    spec_control_close(c);
}

/* ---- decisions by hand ---------------------------------------------------------------------------------------- */

/* A step of n sequences that took ns, without drafts. */
static void plain_step(struct spec_control *c, int n, double ns, struct spec_decision *d)
{
    int session[MACHINE_SESSIONS], nodes[MACHINE_SESSIONS];
    struct spec_session_outcome outcome[MACHINE_SESSIONS];
    for (int i = 0; i < n; i++) {
        session[i] = i;
        outcome[i] = (struct spec_session_outcome){ .session = i };
    }
    spec_control_decide(c, session, n, 0, d, nodes);
    assert_int_equal(d->drafter, SPEC_OFF);
    struct spec_outcome_of_pass s = { .n_row = n, .pass_ns = ns, .outcome = outcome, .n_due = n };
    spec_control_learn(c, &s);
}

static void starts_off_and_says_why(void **state)
{
    (void)state;
    struct machine_drafter d = { "model", 4, 1e6, 0, 0.8, 0, 0 };
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    struct spec_decision decision;
    char line[256];
    for (int i = 0; i < 3; i++) {
        plain_step(c, 2, 20e6, &decision);
        assert_int_equal(decision.why, SPEC_WHY_LEARN);
    }
    spec_decision_text(c, &decision, line, sizeof line);
    assert_string_equal(line, "draft: off (measuring steps without drafts)");
    int session[2] = { 0, 1 }, nodes[2];
    spec_control_decide(c, session, 2, 0, &decision, nodes);
    assert_int_equal(decision.why, SPEC_WHY_TRIAL);
    assert_int_equal(decision.drafter, 0);
    assert_true(nodes[0] > 0 && nodes[1] > 0);
    spec_decision_text(c, &decision, line, sizeof line);
    assert_non_null(strstr(line, "draft: model, depth 2 (trial); 6.0 rows for"));
    assert_non_null(strstr(line, "without drafts 2 rows in 20.00 ms"));
    /* a line longer than the buffer is cut, and its full length returned */
    int full = spec_decision_text(c, &decision, line, sizeof line);
    char little[20];
    assert_true(spec_decision_text(c, &decision, little, sizeof little) >= (int)sizeof little);
    assert_int_equal(strlen(line), full);
    assert_int_equal(strlen(little), sizeof little - 1);
    /* no session is due */
    spec_control_decide(c, session, 0, 5, &decision, nodes);
    assert_int_equal(decision.why, SPEC_WHY_NONE_DUE);
    for (int i = 0; i < SPEC_WHY_COUNT; i++)
        assert_non_null(spec_why_text((enum spec_why)i));
    spec_control_close(c);
}

static void does_as_told(void **state)
{
    (void)state;
    struct spec_control_options o = { .n_session = 4,
                                      .n_drafter = 1,
                                      .drafter = { { .name = "model", .max_depth = 6 } },
                                      .rule = SPEC_COUPLED,
                                      .gamma = 3,
                                      .max_rows = 10 };
    struct spec_control *c;
    struct spec_decision d;
    int session[4] = { 3, 1, 0, 2 }, nodes[4];
    assert_int_equal(spec_control_open(&c, &o), 0);
    spec_control_decide(c, session, 2, 0, &d, nodes);
    assert_int_equal(d.drafter, 0);
    assert_int_equal(d.depth, 3);
    assert_int_equal(nodes[0], 3);
    assert_int_equal(nodes[1], 3);
    /* the pass has capacity for ten rows: four sessions are due, two rows are prompts' */
    spec_control_decide(c, session, 4, 2, &d, nodes);
    assert_int_equal(nodes[0] + nodes[1] + nodes[2] + nodes[3], 4);
    spec_control_decide(c, session, 4, 6, &d, nodes);
    assert_int_equal(d.drafter, SPEC_OFF);
    spec_control_close(c);
    o.gamma = 0;
    assert_int_equal(spec_control_open(&c, &o), 0);
    spec_control_decide(c, session, 2, 0, &d, nodes);
    assert_int_equal(d.drafter, SPEC_OFF);
    assert_int_equal(d.why, SPEC_WHY_FIXED);
    spec_control_close(c);
}

/* Under a rule that must not look at draws, all requested nodes are verified, and the requested depth pays. */
static void other_rules_are_decided_beforehand(void **state)
{
    (void)state;
    for (int i = 0; i < N_MACHINES; i++) {
        struct machine m = machines[i];
        struct machine_drafter d = model(&m, 0.04, 0.9);
        struct spec_control *c = open_for(&d, 1, SPEC_RATIO);
        machine_seed = 5;
        struct machine_run r = machine_go(c, &m, &d, 4, 2000, NULL, NULL);
        int depth;
        double best = machine_best(&m, &d, 4, &depth);
        assert_true(r.took_ns < 1.02 * r.off_ns);
        assert_true(r.late_off_ns > 0.93 * best * r.late_took_ns);

        int session[4] = { 0, 1, 2, 3 }, nodes[4];
        struct spec_decision decision;
        static struct spec_tree tree[4];
        static struct spec_cut cut[4];
        spec_control_decide(c, session, 4, 0, &decision, nodes);
        for (int s = 0; s < 4; s++) {
            assert_true(nodes[s] <= decision.depth);
            machine_draft(&d, nodes[s], decision.depth, &tree[s]);
            for (int j = 0; j < tree[s].n; j++)
                tree[s].survival[j] *= 0.001f; /* as if the drawn tokens were unlikely */
            cut[s] = (struct spec_cut){ .session = s, .tree = &tree[s], .n_requested = 4 };
        }
        spec_control_cut(c, cut, 4, 0);
        for (int s = 0; s < 4; s++)
            assert_int_equal(cut[s].n_keep, tree[s].n);
        spec_control_close(c);
    }
}

/* A new session's tokens are all prefilled before it gets drafts: this time is not charged to the drafts. */
static void texts_taken_in_are_no_drafts(void **state)
{
    (void)state;
    for (int n_text = 4; n_text <= 400; n_text *= 10) {
        struct spec_control *c = settled(2);
        struct spec_decision d;
        int session[2] = { 0, 1 }, nodes[2];
        for (int i = 0; i < 20; i++) {
            struct spec_session_outcome outcome[2] = { { .session = 0 }, { .session = 1 } };
            spec_control_decide(c, session, 2, 0, &d, nodes);
            spec_control_learn(c, &(struct spec_outcome_of_pass){ .n_row = 2,
                                                                  .n_due = 2,
                                                                  .outcome = outcome,
                                                                  .n_text = n_text,
                                                                  .draft_ns = d.drafter == SPEC_OFF ? 0 : 4e6 * d.depth,
                                                                  .pass_ns = d.off_ns });
        }
        double per_draft = d.best_drafter == SPEC_OFF ? 0 : d.draft_ns / d.best_depth;
        if (n_text == 4 ? per_draft < 1e6 : fabs(per_draft / 0.2e6 - 1) > 0.1)
            fail_msg("%d tokens taken in: a draft takes %.2f ms", n_text, per_draft / 1e6);
        spec_control_close(c);
    }
}

/* A step that another process delayed for long is charged at most twice the usual time, and drafts stay on. */
static void strays_are_nobodys_fault(void **state)
{
    (void)state;
    struct spec_control *c = settled(4);
    static struct spec_tree tree[4];
    static struct spec_cut cut[4];
    struct spec_session_outcome outcome[4];
    struct spec_decision d;
    int session[4] = { 0, 1, 2, 3 }, nodes[4], n_row = 4;
    decide_on(c, 4);
    for (int i = 0; i < 4; i++) {
        machine_draft(&by_hand, 4, 4, &tree[i]);
        cut[i] = (struct spec_cut){ .session = i, .tree = &tree[i], .n_requested = 4 };
    }
    spec_control_cut(c, cut, 4, 0);
    for (int i = 0; i < 4; i++) {
        spec_tree_prune(&tree[i], cut[i].keep, false);
        outcome[i] = (struct spec_session_outcome){ i, &tree[i], 0, NULL };
        n_row += tree[i].n;
    }
    double usual = 10e6 + 3e6 * n_row;
    struct spec_outcome_of_pass s = {
        .n_row = n_row, .draft_ns = 0.8e6, .pass_ns = 100 * usual, .outcome = outcome, .n_due = 4
    };
    spec_control_learn(c, &s);
    spec_control_decide(c, session, 4, 0, &d, nodes);
    assert_true(d.lost_ns > usual && d.lost_ns < 2 * usual);
    assert_true(d.drafter == 0);
    spec_control_close(c);
}

/* Sixteen sequences with an acceptance rate of 0.8, where the first n_slow passes with drafts take `slow` times as long
 * as others. Reports trial steps that verified nothing, and the second half's share of steps that verified drafts. */
struct slow_start {
    int n_slow;
    double slow, noise;
    bool foreseen;
    uint64_t seed;
};

static double start_slowly(struct slow_start by, int n_step, int *n_idle)
{
    enum { N = 16 };
    struct machine_drafter d = { "oracle", 8, 1, 1, 0.8, 0, 0 };
    struct machine m = tier[1];
    struct spec_control *c = open_for(&d, 1, SPEC_COUPLED);
    static struct spec_tree tree[N];
    static struct spec_cut cut[N];
    struct spec_session_outcome outcome[N];
    int session[N], nodes[N], accepted[N], n_on = 0;
    m.noise = by.noise;
    if (by.foreseen)
        spec_control_set_forecast(c, &tier_foreseen, &(struct spec_draft_forecast){ 0 });
    machine_seed = by.seed;
    for (int i = 0; i < N; i++)
        session[i] = i;
    *n_idle = 0;
    for (int step = 0; step < n_step; step++) {
        struct spec_decision decision;
        int n_drafted = 0;
        spec_control_decide(c, session, N, 0, &decision, nodes);
        for (int i = 0; i < N; i++) {
            accepted[i] = machine_draft(&d, nodes[i], decision.depth, &tree[i]);
            cut[i] = (struct spec_cut){ .session = i, .tree = &tree[i], .n_requested = nodes[i] };
        }
        spec_control_cut(c, cut, N, 0);
        for (int i = 0; i < N; i++) {
            spec_tree_prune(&tree[i], cut[i].keep, false);
            n_drafted += tree[i].n;
            outcome[i] = (struct spec_session_outcome){ i, &tree[i], kn_min(accepted[i], tree[i].n), NULL };
        }
        double ns = machine_pass_ns(&m, N, 0, n_drafted) * machine_noise(&m);
        if (n_drafted && by.n_slow-- > 0)
            ns *= by.slow;
        *n_idle += decision.why == SPEC_WHY_TRIAL && n_drafted == 0;
        n_on += step >= n_step / 2 && n_drafted > 0;
        spec_control_learn(
            c, &(struct spec_outcome_of_pass){ .n_row = N + n_drafted, .n_due = N, .outcome = outcome, .pass_ns = ns });
    }
    spec_control_close(c);
    return (double)n_on / (n_step - n_step / 2);
}

/* The first pass with drafts takes four times as long as forecast: its trial ends as soon as no row is worth verifying,
 * and the gain of drafts is found all the same. */
static void a_stray_trial_is_over(void **state)
{
    (void)state;
    int n_idle;
    double on = start_slowly((struct slow_start){ 1, 4, 0, true, 1 }, 100, &n_idle);
    if (n_idle > 0 || on < 0.9)
        fail_msg("%d idle steps of trials, on in %.2f", n_idle, on);
}

/* Where passes are noisy, two slow ones at the start are chance: drafts are tried again until the estimate is right. */
static void a_slow_start_is_bad_luck(void **state)
{
    (void)state;
    enum { RUNS = 32 };
    int n_off = 0, n_idle;
    for (uint64_t seed = 1; seed <= RUNS; seed++)
        n_off += start_slowly((struct slow_start){ 2, 2.5, 0.3, false, 77777 * seed }, STEPS, &n_idle) < 0.5;
    if (n_off > 6)
        fail_msg("off in %d of %d", n_off, RUNS);
}

static void survives_no_memory(void **state)
{
    (void)state;
    struct spec_control_options o = {
        .n_session = 2, .n_drafter = 1, .drafter = { { .name = "model", .max_depth = 2 } }, .gamma = SPEC_AUTO
    };
    for (int n = 1;; n++) {
        struct spec_control *c = NULL;
        faults_reset();
        faults_at(FAULT_ALLOC, n, FAULT_ERROR, ENOMEM);
        int e = spec_control_open(&c, &o);
        if (!e) {
            assert_true(n > 3);
            spec_control_close(c);
            break;
        }
        assert_int_equal(e, KN_ENOMEM);
        assert_null(c);
        assert_true(faults_clean());
    }
    faults_off();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_slower_and_near_the_best),
        cmocka_unit_test(streamed_experts_are_gained_from_at_once),
        cmocka_unit_test(streamed_experts_are_not_lost_by),
        cmocka_unit_test(a_doubtful_gain_is_measured_again),
        cmocka_unit_test(between_two_known_passes_it_bends),
        cmocka_unit_test(a_draft_pass_is_foreseen),
        cmocka_unit_test(a_wrong_forecast_is_mended),
        cmocka_unit_test(strays_are_nobodys_fault),
        cmocka_unit_test(a_stray_trial_is_over),
        cmocka_unit_test(a_slow_start_is_bad_luck),
        cmocka_unit_test(restless_passes_are_learnt_longer),
        cmocka_unit_test(texts_are_taken_in_where_that_pays),
        cmocka_unit_test(load_moves),
        cmocka_unit_test(acceptance_collapses),
        cmocka_unit_test(machine_changes),
        cmocka_unit_test(plain_steps_are_measured_again),
        cmocka_unit_test(change_is_for_all_sizes),
        cmocka_unit_test(boasts_are_seen_through),
        cmocka_unit_test(modesty_is_seen_through),
        cmocka_unit_test(texts_taken_in_are_no_drafts),
        cmocka_unit_test(better_drafter_is_found),
        cmocka_unit_test(free_drafts_are_taken_when_there_are_any),
        cmocka_unit_test(memory_has_its_price),
        cmocka_unit_test(an_unloaded_drafter_promises),
        cmocka_unit_test(what_a_step_saved),
        cmocka_unit_test(starts_off_and_says_why),
        cmocka_unit_test(does_as_told),
        cmocka_unit_test(other_rules_are_decided_beforehand),
        cmocka_unit_test(survives_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
