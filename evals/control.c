/* evals/control.c - the controller on simulated machines: speedup over no drafting, beside the best fixed
 * depth, for passes bound by memory, arithmetic and disk, drafts from useless to perfect, 1 to 64 sequences; from
 * a cold start, and with an engine's forecast (the machine's own terms, but with distinct experts for every row and
 * the disk's time hidden or not).
 *
 *     control [NOISE] > control.csv       NOISE: relative variation of passes, 0.05; the worst case goes to stderr */
#include "tests/speculative/machine.h"

#include <stdio.h>
#include <stdlib.h>

#define STEPS 3000

static void foresee(struct spec_control *c, const struct machine *m, const struct machine_drafter *d)
{
    struct spec_cost_model pass = m->cost;
    if (m->Bps > 0)
        pass.disk_ns = m->missing * m->expert_bytes / m->Bps * 1e9;
    spec_control_set_forecast(c, &pass, &(struct spec_draft_forecast){ .ns = d->fixed_ns });
}

static struct machine_run run(struct machine m, struct machine_drafter d, int n_due, bool foreseen)
{
    struct spec_control *c = machine_control(&d);
    if (!c)
        exit(1);
    if (foreseen)
        foresee(c, &m, &d);
    struct machine_run r = machine_go(c, &m, &d, n_due, STEPS, NULL, NULL);
    spec_control_close(c);
    return r;
}

/* Measures one setting and prints its line. */
static void measure(const struct machine *m, int dear, double accept, int n_due, bool foreseen, double *worst)
{
    static const char *const name[] = { "free", "light", "heavy" };
    static const double fixed[] = { 1e-5, 0.04, 0.25 }, each[] = { 1e-5, 0.002, 0.02 };
    double pass = machine_pass_ns(m, 1, 0, 0);
    struct machine_drafter d = { name[dear], 8, fixed[dear] * pass, each[dear] * pass, accept, 0, 0 };
    struct machine_run r = run(*m, d, n_due, foreseen);
    int depth;
    double best = machine_best(m, &d, n_due, &depth), all = r.off_ns / r.took_ns;
    double late = r.late_off_ns / r.late_took_ns;
    printf("%s,%s,%g,%d,%d,1,%.3f,%d,%.3f,%.3f,%.2f\n", m->name, d.name, accept, n_due, foreseen, best, depth, all,
           late, (double)r.n_late_on / (STEPS - STEPS / 2));
    worst[0] = fmin(worst[0], all);
    worst[1] = fmin(worst[1], late / best);
}

int main(int argc, char **argv)
{
    static const double accept[] = { 0, 0.2, 0.4, 0.6, 0.8, 0.9, 1 };
    static const int batch[] = { 1, 2, 4, 8, 16, 32, 64 };
    printf("machine,draft,accept,batch,foreseen,off,fixed,fixed_depth,control,settled,on\n");
    for (int foreseen = 0; foreseen < 2; foreseen++) {
        double worst[2] = { 9, 9 };
        for (int i = 0; i < N_MACHINES; i++)
            for (int dear = 0; dear < 3; dear++)
                for (size_t a = 0; a < sizeof accept / sizeof *accept; a++)
                    for (size_t b = 0; b < sizeof batch / sizeof *batch; b++) {
                        struct machine m = machines[i];
                        m.noise = argc > 1 ? atof(argv[1]) : m.noise;
                        machine_seed = 1 + (uint64_t)(i * 1000 + dear * 100) + a * 10 + b;
                        measure(&m, dear, accept[a], batch[b], foreseen, worst);
                    }
        fprintf(stderr, "%s: worst over off %.3f; worst over the best fixed depth, settled, %.3f\n",
                foreseen ? "foreseen" : "nothing known", worst[0], worst[1]);
    }
    return 0;
}
