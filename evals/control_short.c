/* evals/control_short.c - the controller in its first passes, with many users: speed over no drafting and beside the best fixed
 * depth, in passes 1 to 50 and 51 to 100, on simulated machines with 8, 16 and 32 sequences, which stay, or come and go, with
 * prompt rows in most passes.  Each depth is known to the eval, and runs the same load.  A virtual clock: the result is
 * the same on every machine.
 *
 *     control_short [NOISE] > control_short.csv       NOISE: relative variation of passes, 0.05; a summary goes to stderr */
#include "tests/speculative/machine.h"

#include <stdio.h>
#include <stdlib.h>

#define WINDOW        50
#define PASSES        (2 * WINDOW)
#define SEEDS         8
#define PROMPT        32 /* tokens of a prompt */
#define PROMPT_PASSES 2
#define STAY          30.0 /* passes for which a user stays, */
#define AWAY          3.0  /* and until the next one comes */
#define MAX_DEEP      8

enum { NONE, RATES, KEPT, N_FIRST };
static const char *const first_name[N_FIRST] = { "none", "rates", "kept" };

/* ---- the load ---------------------------------------------------------------------------------------------------- */

struct load {
    int n_due[PASSES], n_beside[PASSES], n_new[PASSES]; /* n_new: of the sequences due, those with their first token */
    struct spec_control *control;
};

/* Users come and go: a user stays for STAY passes on average, the next one comes after some passes, and its prompt is read in
 * two passes. */
static void make_load(struct load *l, int n, bool moves)
{
    int state[MACHINE_SESSIONS]; /* of a seat: passes until its user is due; 0: due; -1: no user */
    memset(state, 0, sizeof state);
    for (int i = 0; i < PASSES; i++) {
        l->n_due[i] = l->n_beside[i] = l->n_new[i] = 0;
        for (int s = 0; s < n; s++) {
            if (moves && i > 0 && state[s] == 0 && machine_random() < 1.0 / STAY)
                state[s] = -1;
            else if (state[s] < 0 && machine_random() < 1.0 / AWAY)
                state[s] = PROMPT_PASSES;
            else if (state[s] > 0)
                l->n_new[i] += --state[s] == 0;
            l->n_beside[i] += state[s] > 0 ? PROMPT / PROMPT_PASSES : 0;
            l->n_due[i] += state[s] == 0;
        }
    }
}

static void follow(void *arg, int step, struct machine *m, struct machine_drafter *d, int *n_due)
{
    struct load *l = arg;
    (void)m, (void)d;
    *n_due = l->n_due[step];
    machine_beside = l->n_beside[step];
    for (int i = 0; i < l->n_new[step]; i++)
        spec_control_begin(l->control, (int)(machine_random() * l->n_due[step]));
}

/* ---- one run ------------------------------------------------------------------------------------------------------ */

struct windows {
    double off_ns[2], took_ns[2];
};

static void add(struct windows *w, int pass, double off_ns, double took_ns)
{
    w->off_ns[pass >= WINDOW] += off_ns;
    w->took_ns[pass >= WINDOW] += took_ns;
}

static double ratio(const struct windows *w, int i) { return w->off_ns[i] / w->took_ns[i]; }
static double whole(const struct windows *w) { return (w->off_ns[0] + w->off_ns[1]) / (w->took_ns[0] + w->took_ns[1]); }

static void run_fixed(struct windows *w, const struct machine *m, const struct machine_drafter *d, const struct load *l,
                      int depth)
{
    for (int i = 0; i < PASSES; i++) {
        int n = l->n_due[i], beside = l->n_beside[i];
        double off = machine_pass_ns(m, n, beside, 0) +
                     machine_pass_ns(m, n, 0, 0) * (spec_cost_tokens(d->accept, depth) - 1);
        add(w, i, off, depth * (d->fixed_ns + d->seq_ns * n) + machine_pass_ns(m, n, beside, n * depth));
    }
}

static void run_controller(struct windows *w, const struct machine *machine, const struct machine_drafter *drafter,
                           struct load *l, const struct spec_cost_model *pass, const struct spec_draft_forecast *draft)
{
    struct machine m = *machine;
    struct machine_drafter d = *drafter;
    struct machine_pass trace[PASSES];
    l->control = machine_control(&d);
    if (!l->control)
        exit(1);
    if (pass)
        spec_control_set_forecast(l->control, pass, draft);
    machine_trace = trace;
    machine_go(l->control, &m, &d, l->n_due[0], PASSES, follow, l);
    machine_trace = NULL;
    machine_beside = 0;
    for (int i = 0; i < PASSES; i++)
        add(w, i, trace[i].off_ns, trace[i].took_ns);
    spec_control_close(l->control);
}

/* Runs of other sizes and of another drafter leave the fit. */
static struct spec_cost_model kept_of(const struct machine *machine, const struct spec_cost_model *rates)
{
    static struct spec_observed seen;
    struct spec_cost_model kept = *rates;
    struct machine m = *machine;
    struct machine_drafter d = { "model", 8, 1e-3 * machine_pass_ns(&m, 1, 0, 0), 0, 0.7, 0, 0 };
    memset(&seen, 0, sizeof seen);
    machine_observed = &seen;
    for (int n = 1; n <= 16; n *= 4) {
        struct spec_control *c = machine_control(&d);
        if (!c)
            exit(1);
        spec_control_set_forecast(c, rates, NULL);
        machine_go(c, &m, &d, n, 200, NULL, NULL);
        spec_control_close(c);
    }
    machine_observed = NULL;
    if (!machine_keep(&kept, &seen, &m, rates))
        exit(1);
    return kept;
}

/* ---- all settings --------------------------------------------------------------------------------------------------- */

struct summary {
    int n, below_best, below_none[2];
    double worst_best, worst_none, sum;
};

static void measure(const struct machine *m, const struct spec_cost_model *const *first, double share, double accept,
                    int n, bool moves, struct summary *sum)
{
    double pass = machine_pass_ns(m, 8, 0, 0);
    struct machine_drafter d = { "model", MAX_DEEP, share * pass, 0.05 * share * pass, accept, 0, 0 };
    struct windows fixed[MAX_DEEP + 1] = { 0 }, control[N_FIRST] = { 0 };
    for (int seed = 0; seed < SEEDS; seed++) {
        struct load l;
        machine_seed = (uint64_t)seed * 1000 + 7;
        make_load(&l, n, moves);
        for (int depth = 0; depth <= MAX_DEEP; depth++)
            run_fixed(&fixed[depth], m, &d, &l, depth);
        for (int f = 0; f < N_FIRST; f++) {
            struct spec_draft_forecast by_size = { d.fixed_ns / 3, 0, 0 }, its = { d.fixed_ns, d.seq_ns, d.accept };
            machine_seed = (uint64_t)seed * 1000 + 8;
            run_controller(&control[f], m, &d, &l, first[f], f == KEPT ? &its : &by_size);
        }
    }
    int best = 0;
    for (int depth = 1; depth <= MAX_DEEP; depth++)
        if (ratio(&fixed[depth], 1) > ratio(&fixed[best], 1))
            best = depth;
    printf("%s,%g,%g,%d,%s,%d,%.3f", m->name, share, accept, n, moves ? "move" : "stay", best, ratio(&fixed[best], 1));
    for (int f = 0; f < N_FIRST; f++) {
        double late = ratio(&control[f], 1), of_best = late / ratio(&fixed[best], 1), all = whole(&control[f]);
        printf(",%.3f,%.3f,%.3f", ratio(&control[f], 0), late, of_best);
        sum[f].n++;
        sum[f].below_best += of_best < 0.95;
        sum[f].below_none[0] += all < 0.98;
        sum[f].below_none[1] += late < 0.98;
        sum[f].worst_best = fmin(sum[f].worst_best, of_best);
        sum[f].worst_none = fmin(sum[f].worst_none, all);
        sum[f].sum += kn_log(of_best);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const double accept[] = { 0, 0.2, 0.4, 0.6, 0.8, 0.9 }, share[] = { 1e-5, 0.02, 0.1 };
    static const int batch[] = { 8, 16, 32 };
    struct summary sum[N_FIRST] = { 0 };
    for (int f = 0; f < N_FIRST; f++)
        sum[f].worst_best = sum[f].worst_none = INFINITY;
    printf("machine,draft,accept,batch,load,best_depth,best");
    for (int f = 0; f < N_FIRST; f++)
        printf(",%s_1_50,%s_51_100,%s_of_best", first_name[f], first_name[f], first_name[f]);
    printf("\n");
    for (int i = 0; i < N_MACHINES; i++) {
        struct machine m = machines[i];
        m.noise = argc > 1 ? atof(argv[1]) : m.noise;
        machine_seed = 3;
        struct spec_cost_model rates = machine_by_rates(&m), kept = kept_of(&m, &rates);
        const struct spec_cost_model *first[N_FIRST] = { NULL, &rates, &kept };
        for (int k = 0; k < 3 * 6 * 3 * 2; k++)
            measure(&m, first, share[k / 36], accept[k / 6 % 6], batch[k / 2 % 3], k % 2, sum);
    }
    for (int f = 0; f < N_FIRST; f++)
        fprintf(stderr,
                "%-5s of %d settings, passes 51 to 100: %d below 0.95 of the best fixed depth, lowest %.3f, mean %.4f, "
                "%d below 0.98 of none; passes 1 to 100: %d below 0.98 of none, lowest %.3f\n",
                first_name[f], sum[f].n, sum[f].below_best, sum[f].worst_best, kn_exp(sum[f].sum / sum[f].n),
                sum[f].below_none[1], sum[f].below_none[0], sum[f].worst_none);
    return 0;
}
