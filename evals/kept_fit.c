/* evals/kept_fit.c - the first 200 passes of the controller on simulated machines, by its first estimate: none at all, the
 * machine's rates, rates that are off by a factor, and the fit that earlier passes on the machine left, with the times and
 * the acceptance rate of the drafter.  A virtual clock: the result is the same on every machine.
 *
 *     kept_fit > kept_fit.csv       the means and the worst cases go to stderr */
#include "tests/speculative/machine.h"

#include <stdio.h>
#include <stdlib.h>

#define PASSES 200

enum { NONE, RATES, CHEAP_ROWS, DEAR_ROWS, KEPT, N_FIRST };
static const char *const name[N_FIRST] = { "none", "rates", "rates_rows_half", "rates_rows_double", "kept" };

static double run(const struct machine *machine, const struct machine_drafter *drafter, int n_due,
                  const struct spec_cost_model *pass, const struct spec_draft_forecast *draft)
{
    struct machine m = *machine;
    struct machine_drafter d = *drafter;
    struct spec_control *c = machine_control(&d);
    if (!c)
        exit(1);
    if (pass)
        spec_control_set_forecast(c, pass, draft);
    machine_seed = 3;
    struct machine_run r = machine_go(c, &m, &d, n_due, PASSES, NULL, NULL);
    spec_control_close(c);
    return r.off_ns / r.took_ns;
}

static struct spec_cost_model rows_times(struct spec_cost_model c, double by)
{
    c.dense_ns *= by;
    c.load_ns *= by;
    c.expert_ns *= by;
    c.disk_ns *= by;
    return c;
}

/* Runs of other sizes and of another drafter leave the fit. */
static struct spec_cost_model kept_of(const struct machine *m, const struct spec_cost_model *rates)
{
    static struct spec_observed seen;
    struct spec_cost_model kept = *rates;
    struct machine_drafter d = { "model", 8, 1e-3 * machine_pass_ns(m, 1, 0, 0), 0, 0.7, 0, 0 };
    memset(&seen, 0, sizeof seen);
    machine_observed = &seen;
    for (int n = 1; n <= 16; n *= 4)
        run(m, &d, n, rates, NULL);
    machine_observed = NULL;
    if (!machine_keep(&kept, &seen, m, rates))
        exit(1);
    return kept;
}

int main(void)
{
    static const double accept[] = { 0, 0.2, 0.4, 0.6, 0.8, 0.9 }, draft_share[] = { 1e-5, 0.04, 0.25 };
    static const int batch[] = { 1, 2, 4, 8, 16, 32, 64 };
    double sum[N_FIRST] = { 0 }, worst[N_FIRST], n = 0;
    for (int f = 0; f < N_FIRST; f++)
        worst[f] = INFINITY;
    printf("machine,draft,accept,batch,best_fixed");
    for (int f = 0; f < N_FIRST; f++)
        printf(",%s", name[f]);
    printf("\n");
    for (int i = 0; i < N_MACHINES; i++) {
        const struct machine *m = &machines[i];
        struct spec_cost_model rates = machine_by_rates(m), kept = kept_of(m, &rates);
        struct spec_cost_model cheap = rows_times(rates, 0.5), dear = rows_times(rates, 2);
        const struct spec_cost_model *first[N_FIRST] = { NULL, &rates, &cheap, &dear, &kept };
        for (int a = 0; a < 6 * 3 * 7; a++, n++) {
            double pass = machine_pass_ns(m, 1, 0, 0), share = draft_share[a / 7 % 3];
            struct machine_drafter d = { "model", 8, share * pass, 0.05 * share * pass, accept[a / 21], 0, 0 };
            int depth, n_due = batch[a % 7];
            printf("%s,%g,%g,%d,%.3f", m->name, share, d.accept, n_due, machine_best(m, &d, n_due, &depth));
            for (int f = 0; f < N_FIRST; f++) {
                struct spec_draft_forecast by_size = { d.fixed_ns / 3, 0, 0 }, its = { d.fixed_ns, d.seq_ns, d.accept };
                double speed = run(m, &d, n_due, first[f], f == KEPT ? &its : &by_size);
                printf(",%.3f", speed);
                sum[f] += kn_log(speed);
                worst[f] = fmin(worst[f], speed);
            }
            printf("\n");
        }
    }
    for (int f = 0; f < N_FIRST; f++)
        fprintf(stderr, "%s: mean %.4f, worst %.4f\n", name[f], kn_exp(sum[f] / n), worst[f]);
    return 0;
}
