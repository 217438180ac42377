/* evals/control.c - the controller on machines that exist in numbers only: speed over off, beside the best fixed
 * depth, for passes that are bound by memory, sums and disk, drafts from useless to perfect, 1 to 64 sequences.
 *
 *     control > control.csv       worst and mean go to stderr */
#include "tests/speculative/machine.h"

#include <stdio.h>

#define STEPS 3000

int main(void)
{
    static const double accept[] = { 0, 0.2, 0.4, 0.6, 0.8, 0.9, 1 };
    static const int batch[] = { 1, 2, 4, 8, 16, 32, 64 };
    double worst = 9, worst_late = 9;
    printf("machine,draft,accept,batch,off,fixed,fixed_depth,control,settled,on\n");
    for (int i = 0; i < N_MACHINES; i++)
        for (int dear = 0; dear < 3; dear++)
            for (size_t a = 0; a < sizeof accept / sizeof *accept; a++)
                for (size_t b = 0; b < sizeof batch / sizeof *batch; b++) {
                    struct machine m = machines[i];
                    double pass = machine_pass_ns(&m, 1, 0, 0);
                    struct machine_drafter d = { dear == 0 ? "free" : dear == 1 ? "light" : "heavy", 8,
                        (dear == 0 ? 1e-5 : dear == 1 ? 0.04 : 0.25) * pass,
                        (dear == 0 ? 1e-5 : dear == 1 ? 0.002 : 0.02) * pass, accept[a], 0, 0 };
                    struct spec_control_options o = { .n_session = MACHINE_SESSIONS, .n_drafter = 1,
                        .drafter = { { d.name, d.most_depth } }, .rule = SPEC_COUPLED, .gamma = SPEC_AUTO };
                    struct spec_control *c;
                    if (spec_control_open(&c, &o))
                        return 1;
                    machine_seed = 1 + (uint64_t)(i * 1000 + dear * 100) + a * 10 + b;
                    struct machine_run r = machine_go(c, &m, &d, batch[b], STEPS, NULL, NULL);
                    int depth;
                    double best = machine_best(&m, &d, batch[b], &depth), all = r.off_ns / r.took_ns,
                           late = r.late_off_ns / r.late_took_ns;
                    printf("%s,%s,%g,%d,1,%.3f,%d,%.3f,%.3f,%.2f\n", m.name, d.name, d.accept, batch[b], best,
                           depth, all, late, (double)r.n_late_on / (STEPS - STEPS / 2));
                    worst = fmin(worst, all);
                    worst_late = fmin(worst_late, late / best);
                    spec_control_close(c);
                }
    fprintf(stderr, "worst over off: %.3f; worst over the best fixed depth, settled: %.3f\n", worst, worst_late);
    return 0;
}
