/* Drafting overlap (the drafter runs during the pass) as one more arm of the controller, on simulated machines: chosen
 * only where it is faster; its estimates of times alone and together; and its parts by hand.
 *
 * One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "tests/speculative/machine.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define STEPS 1200
#define MOST  64 /* nodes of a chain */

/* contention: a pass and a draft together take the longer of the two plus this share of the shorter one. */
struct world {
    const struct machine *machine;
    struct machine_drafter drafter;
    double contention;
};

struct chain {
    int n;
    bool right[MOST];
};
static struct chain chain[MACHINE_SESSIONS];
static struct spec_tree tree[MACHINE_SESSIONS];
static struct spec_cut cut[MACHINE_SESSIONS];

struct result {
    double took_ns, off_ns;
    int n_overlap_pass, n_step;
};

static struct spec_control *open_for(const struct world *w, bool overlap)
{
    struct spec_control_options o = { .n_session = MACHINE_SESSIONS, .n_drafter = 2, .gamma = SPEC_AUTO };
    struct spec_control *c = NULL;
    for (int i = 0; i < 2; i++) {
        o.drafter[i].name = i ? "ahead" : "model";
        o.drafter[i].max_depth = w->drafter.max_depth;
        o.drafter[i].overlap = i;
    }
    assert_int_equal(spec_control_open(&c, &o), 0);
    spec_control_disable(c, 1, !overlap);
    return c;
}

/* Makes a tree of the chain's nodes to verify; returns how many of them are right. */
static int lay(const struct world *w, int i)
{
    int accepted = 0;
    spec_tree_clear(&tree[i]);
    for (int k = 0; k < chain[i].n; k++)
        spec_tree_add(&tree[i], k - 1, k, (float)pow(w->drafter.accept, k + 1), 1);
    while (accepted < chain[i].n && chain[i].right[accepted])
        accepted++;
    return accepted;
}

/* The drafter extended the chain during the pass; then the pass gives the accepted nodes and the token after them. */
static void go_on(const struct world *w, int i, int n_verified, int n_accepted, int depth)
{
    struct chain *k = &chain[i];
    while (k->n < MOST && k->n < n_verified + depth)
        k->right[k->n++] = machine_random() < w->drafter.accept;
    if (n_accepted < n_verified || n_accepted == k->n || !k->right[n_accepted]) {
        k->n = 0;
        return;
    }
    k->n -= n_accepted + 1;
    memmove(k->right, k->right + n_accepted + 1, (size_t)k->n * sizeof *k->right);
}

/* One step; depth > 0: a fixed depth, without the controller. Returns the number of tokens. */
static int step(const struct world *w, struct spec_control *c, int n_due, int depth, struct result *r)
{
    struct spec_session_outcome outcome[MACHINE_SESSIONS];
    int session[MACHINE_SESSIONS], nodes[MACHINE_SESSIONS], accepted[MACHINE_SESSIONS], n_drafted = 0, n_accepted = 0;
    struct spec_decision d = { .drafter = 1, .depth = depth };
    for (int i = 0; i < n_due; i++)
        session[i] = i;
    if (c)
        spec_control_decide(c, session, n_due, 0, &d, nodes);
    bool overlap = d.drafter == 1;
    double draft_ns = d.drafter == SPEC_OFF ? 0 : d.depth * (w->drafter.fixed_ns + w->drafter.seq_ns * n_due);
    for (int i = 0; i < n_due; i++) {
        chain[i].n = overlap ? chain[i].n : 0;
        accepted[i] = overlap          ? lay(w, i)
                      : d.drafter == 0 ? machine_draft(&w->drafter, nodes[i], d.depth, &tree[i])
                                       : 0;
        cut[i] = (struct spec_cut){ .session = i, .tree = &tree[i], .n_requested = overlap ? tree[i].n : nodes[i] };
        outcome[i] = (struct spec_session_outcome){ .session = i };
    }
    if (c && d.drafter != SPEC_OFF)
        spec_control_cut(c, cut, n_due, 0);
    for (int i = 0; i < n_due && d.drafter != SPEC_OFF; i++) {
        if (c)
            spec_tree_prune(&tree[i], cut[i].keep, false);
        outcome[i] = (struct spec_session_outcome){ i, &tree[i], kn_min(accepted[i], tree[i].n), NULL };
        n_drafted += tree[i].n;
        n_accepted += outcome[i].n_accepted;
        if (overlap)
            go_on(w, i, tree[i].n, outcome[i].n_accepted, d.depth);
    }
    double pass = machine_pass_ns(w->machine, n_due, 0, n_drafted) * machine_noise(w->machine);
    struct spec_outcome_of_pass s = { .n_row = n_due + n_drafted, .n_due = n_due, .outcome = outcome };
    s.draft_ns = overlap ? 0 : draft_ns;
    s.overlap_ns = overlap ? draft_ns * (1 + w->contention) : 0;
    s.n_overlap_pass = overlap ? d.depth : 0;
    s.pass_ns = overlap ? fmax(pass, draft_ns) + w->contention * fmin(pass, draft_ns) : pass;
    if (c)
        spec_control_learn(c, &s);
    r->took_ns += s.draft_ns + s.pass_ns;
    r->off_ns += machine_pass_ns(w->machine, n_due, 0, 0) * (n_due + n_accepted) / n_due;
    r->n_overlap_pass += overlap;
    r->n_step++;
    return n_due + n_accepted;
}

/* Speedup over plain steps: of all steps (returned), and of the second half. */
static double run(const struct world *w, bool overlap, int n_due, double *settled, int *n_overlap_pass)
{
    struct spec_control *c = open_for(w, overlap);
    struct result all = { 0 }, late = { 0 };
    machine_seed = 5;
    memset(chain, 0, sizeof chain);
    kn_alloc_forbid(true);
    for (int i = 0; i < STEPS; i++)
        step(w, c, n_due, 0, i < STEPS / 2 ? &all : &late);
    kn_alloc_forbid(false);
    spec_control_close(c);
    *settled = late.off_ns / late.took_ns;
    *n_overlap_pass = late.n_overlap_pass;
    return (all.off_ns + late.off_ns) / (all.took_ns + late.took_ns);
}

/* The best speedup of overlap at any fixed depth. */
static double best_ahead(const struct world *w, int n_due)
{
    double best = 0;
    for (int depth = 2; depth <= w->drafter.max_depth; depth++) {
        struct result r = { 0 };
        machine_seed = 6;
        memset(chain, 0, sizeof chain);
        for (int i = 0; i < 400; i++)
            step(w, NULL, n_due, depth, &r);
        best = fmax(best, r.off_ns / r.took_ns);
    }
    return best;
}

static struct world world(const struct machine *m, double share, double accept, double contention)
{
    double pass = machine_pass_ns(m, 1, 0, 0);
    return (struct world){ m, { "model", 8, share * pass, 0.05 * share * pass, accept, 0, 0 }, contention };
}

/* Every seventh of all combinations. */
static void chosen_where_it_wins_and_nowhere_else(void **state)
{
    (void)state;
    static const double accept[] = { 0, 0.5, 0.8, 0.95 }, share[] = { 0.05, 0.2, 0.5 }, contention[] = { 0, 0.4, 1 };
    static const int batch[] = { 1, 4, 16 };
    double sum = 0;
    int n_won = 0, none, n_overlap_pass;
    for (int i = 0; i < N_MACHINES * 108; i += 7) {
        int n = batch[i % 3];
        struct world w = world(&machines[i / 108], share[i / 3 % 3], accept[i / 9 % 4], contention[i / 36 % 3]);
        double in_turn, with, overlap = best_ahead(&w, n);
        run(&w, false, n, &in_turn, &none);
        double whole = run(&w, true, n, &with, &n_overlap_pass), best = fmax(1, in_turn);
        bool chosen = n_overlap_pass > STEPS / 20, wrong = chosen && overlap < 0.93 * best;
        assert_int_equal(none, 0);
        if (overlap > 1.1 * best) {
            n_won++;
            sum += with / overlap;
            wrong |= with < 0.85 * overlap;
        }
        if (wrong || whole < 0.98 || with < (chosen ? 0.98 : 0.93) * best)
            fail_msg("%s, accept %g, draft %g, contention %g, %d sequences: %.3f, ahead in %d steps; in turn %.3f, "
                     "ahead %.3f; all of it %.3f",
                     w.machine->name, w.drafter.accept, share[i / 3 % 3], w.contention, n, with, n_overlap_pass,
                     in_turn, overlap, whole);
    }
    if (n_won < 5 || sum / n_won < 0.88)
        fail_msg("it would win in %d, of which %.3f are had", n_won, sum / n_won);
}

/* The contention changes after 1000 of 4000 steps: counts the passes with overlap before and after. */
static void change_contention(double from, double to, uint64_t seed, int *n_before, int *n_after)
{
    struct world w = world(&machines[4], 0.3, 0.9, from);
    struct spec_control *c = open_for(&w, true);
    struct result before = { 0 }, after = { 0 };
    machine_seed = seed;
    memset(chain, 0, sizeof chain);
    for (int i = 0; i < 1000; i++)
        step(&w, c, 2, 0, &before);
    w.contention = to;
    for (int i = 0; i < 3000; i++)
        step(&w, c, 2, 0, &after);
    *n_before = before.n_overlap_pass;
    *n_after = after.n_overlap_pass;
    spec_control_close(c);
}

/* Another process begins to use the cores, so that overlap takes as long as turns; or it stops. The time until the next
 * trial is random: in one of five cases overlap may not be found again within the run. */
static void contention_changes(void **state)
{
    (void)state;
    enum { SEEDS = 5 };
    int n_lost = 0, n_found = 0, before, after;
    for (uint64_t seed = 6; seed < 6 + SEEDS; seed++) {
        change_contention(0, 1.2, seed, &before, &after);
        n_lost += before >= 500 && after / 3 <= 150;
        change_contention(1.2, 0, seed, &before, &after);
        n_found += before <= 150 && after / 3 >= 500;
    }
    if (n_lost < SEEDS || n_found < SEEDS - 1)
        fail_msg("of %d times it was left in %d, and taken up in %d", SEEDS, n_lost, n_found);
}

/* ---- by hand ------------------------------------------------------------------------------------------------- */

static void shares_by_hand(void **state)
{
    (void)state;
    static const double half[] = { 0.5, 0.25, 0.125 }, sure[] = { 1, 1, 1, 1 }, never[] = { 0, 0 };
    struct spec_overlap_mean s = spec_overlap_mean(half, 3);
    double ready = 0.5 / (1 - 0.125 + 0.5);
    assert_true(fabs(s.rows - 2 * ready) < 1e-12 && fabs(s.accepted - 0.75 * ready) < 1e-12);
    s = spec_overlap_mean(sure, 4);
    assert_true(s.rows == 3 && s.accepted == 3);
    s = spec_overlap_mean(never, 2);
    assert_true(s.rows == 0 && s.accepted == 0);
    assert_true(spec_overlap_ns(10, 4, 0) == 10 && spec_overlap_ns(10, 4, 1) == 14 &&
                spec_overlap_ns(4, 10, 0.5) == 12);
}

/* The explanation has the times alone and together, and they are the machine's. */
static void it_explains_itself(void **state)
{
    (void)state;
    struct world w = world(&machines[4], 0.3, 0.9, 0.25);
    struct spec_control *c = open_for(&w, true);
    struct result r = { 0 };
    char line[512];
    machine_seed = 9;
    memset(chain, 0, sizeof chain);
    for (int i = 0; i < 600; i++)
        step(&w, c, 1, 0, &r);
    const struct spec_decision *d = &c->last;
    assert_true(r.n_overlap_pass > 300 && d->overlap.depth >= 2);
    if (fabs(d->overlap.contention - 0.25) > 0.12 || d->overlap.gain < 1.2)
        fail_msg("contention %.2f, gain %.2f", d->overlap.contention, d->overlap.gain);
    spec_decision_text(c, d, line, sizeof line);
    assert_non_null(strstr(line, "; during the pass, depth "));
    assert_non_null(strstr(line, "contention 0."));
    spec_control_disable(c, 1, true);
    r.n_overlap_pass = 0;
    for (int i = 0; i < 100; i++)
        step(&w, c, 1, 0, &r);
    assert_int_equal(r.n_overlap_pass, 0);
    spec_control_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_where_it_wins_and_nowhere_else),
        cmocka_unit_test(contention_changes),
        cmocka_unit_test(shares_by_hand),
        cmocka_unit_test(it_explains_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
