/* evals/where/where.c - experts on the device, copied to it, or on the host: the choice of moe/pass/where.c on simulated
 * machines, over the better of no copies and copies of all.
 *
 * Recorded routes go through the lists, the slots and the choice of moe/pass; only the machine is simulated, on a virtual clock.
 * The choice sees the times of layers and nothing else: rates, the law by which copies and products slow each other,
 * noise and changes of the rates are hidden from it.  The fixed shares run on the same machine with the same noise, keep
 * and exchange experts by the same rules, and start as empty.
 *
 *     where [SEED [MACHINE LAW LOAD]] > where.csv          the settings on which the constants of where.c were chosen, with seed 7
 *     where held-out [SEED [MACHINE LAW LOAD]]             machines, laws and loads that were not used for that, other noise
 *
 * SEED: of the noise, of the choice's trials, and of the pass at which the routes begin.  Three numbers: one setting. */
#include "evals/where/machine.h"

#define MOST_PASSES 2000

static const struct machine machines[] = {
    { "pcie3 2ch 8GB", 12e9, 40e9, 0.3e12, 8e9, 300e9, 10e12 },
    { "pcie4 2ch 12GB", 24e9, 60e9, 0.6e12, 12e9, 350e9, 20e12 },
    { "pcie5 2ch 16GB", 52e9, 80e9, 0.8e12, 16e9, 600e9, 40e12 },
    { "pcie4 4ch 24GB", 24e9, 120e9, 1e12, 24e9, 900e9, 60e12 },
    { "pcie5 4ch 32GB", 52e9, 150e9, 1.2e12, 32e9, 1500e9, 80e12 },
    { "pcie3 8ch 24GB", 12e9, 160e9, 1e12, 24e9, 900e9, 40e12 },
    { "pcie4 8ch 48GB", 24e9, 200e9, 1.5e12, 48e9, 900e9, 60e12 },
    { "pcie5 12ch 80GB", 52e9, 460e9, 4e12, 80e9, 2000e9, 100e12 },
    { "pcie5 12ch 8 cores 80GB", 52e9, 460e9, 0.3e12, 80e9, 2000e9, 100e12 },
};
static const struct machine held_machines[] = {
    { "pcie3 x4 2ch 12GB", 3e9, 38e9, 0.4e12, 12e9, 360e9, 20e12 },
    { "pcie4 x8 2ch 16GB", 12.5e9, 70e9, 0.9e12, 16e9, 450e9, 40e12 },
    { "pcie3 4ch 12GB", 12e9, 85e9, 0.25e12, 12e9, 480e9, 12e12 },
    { "pcie5 8ch 24GB", 50e9, 300e9, 2.5e12, 24e9, 1000e9, 80e12 },
    { "pcie4 12ch 80GB", 25e9, 380e9, 3e12, 80e9, 2000e9, 90e12 },
    { "pcie5 2ch 4 cores 32GB", 54e9, 90e9, 0.15e12, 32e9, 1790e9, 100e12 },
    { "pcie5 8ch 96GB", 54e9, 250e9, 2e12, 96e9, 1790e9, 100e12 },
};

struct load {
    const char *name, *trace;
    int n_pass;
    int rows[4];      /* of passes, in turns; 0: by chance one of those before */
    int prompt_every; /* passes: one in so many has PROMPT rows more */
};

#define PROMPT 512
static const struct load loads[] = {
    { "1 row", "q30", 800, { 1, 1, 1, 1 }, 0 },
    { "4 rows", "q30", 500, { 4, 4, 4, 4 }, 0 },
    { "16 rows", "q30", 300, { 16, 16, 16, 16 }, 0 },
    { "drafts", "q30", 500, { 4, 12, 20, 0 }, 0 },
    { "prompts", "q30", 200, { 512, 512, 512, 256 }, 0 },
    { "8 rows and prompts", "q30", 300, { 8, 8, 8, 8 }, 12 },
    { "trained 8 rows", "demo", 2000, { 8, 8, 8, 8 }, 0 },
};
static const struct load held_loads[] = {
    { "2 rows", "q30", 600, { 2, 2, 2, 2 }, 0 },
    { "6 rows", "q30", 400, { 6, 6, 6, 6 }, 0 },
    { "48 rows", "q30", 250, { 48, 48, 48, 48 }, 0 },
    { "few and many rows", "q30", 400, { 1, 32, 3, 0 }, 0 },
    { "1 row and prompts", "q30", 400, { 1, 1, 1, 1 }, 25 },
    { "trained 2 rows", "demo", 2000, { 2, 2, 2, 2 }, 0 },
    { "trained 24 rows", "demo", 1000, { 24, 24, 24, 24 }, 0 },
};

#define N_LOAD ((int)(sizeof loads / sizeof *loads))
_Static_assert(sizeof loads == sizeof held_loads, "as many");

/* The settings of this run. */
static struct {
    const struct machine *machine;
    const struct load *load;
    int n_machine, first_law, end_law;
    bool held_out;
    uint64_t seed;
} set = { machines, loads, (int)(sizeof machines / sizeof *machines), 0, FIRST_HELD_LAW, false, 7 };

/* ---- routes -------------------------------------------------------------------------------------------------------- */

struct route {
    struct routes of;
    int n_pass, *n_row;
    struct layer_plan *plan; /* [n_pass][n_layer] */
};

static struct route open_route(const struct load *load, const struct trace *t)
{
    struct route r = { open_routes(t), load->n_pass, calloc((size_t)load->n_pass, sizeof(int)),
                       calloc((size_t)(load->n_pass * t->n_group), sizeof(struct layer_plan)) };
    for (int i = 0; i < r.n_pass; i++) {
        int which = load->rows[i % 4] ? i % 4 : (int)(kn_mix(KN_GOLDEN * (uint64_t)i) % 3);
        int at = i + (int)(set.seed - 7) * 37;
        r.n_row[i] = load->rows[which] + (load->prompt_every && i % load->prompt_every == 0 ? PROMPT : 0);
        for (int g = 0; g < t->n_group; g++)
            plan_layer(&r.plan[i * t->n_group + g], t, g, r.n_row[i], at);
    }
    return r;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

struct outcome {
    double ns, late_ns, share, lost;
};

/* share -1: as learnt. */
static struct outcome run(const struct route *route, const struct machine *m, enum law law, int share)
{
    struct run *r = malloc(sizeof *r);
    struct world w = { m, law, set.seed, set.held_out, 0 };
    struct outcome out = { 0, 0, 0, 0 };
    open_run(r, &route->of, m, OTHER_BYTES);
    struct moe_where *where = &r->c.residents.where;
    where->plans = share < 0 ? MOE_PLANS_LEARNT : MOE_PLANS_FIXED;
    where->random = set.seed - 7;
    for (int i = 0; share >= 0 && i < MOE_ROW_BUCKETS; i++)
        where->bucket[i].share = share;
    for (int i = 0; i < route->n_pass; i++) {
        w.at = (double)i / route->n_pass;
        moe_residents_begin(&r->c);
        for (int l = 0; l < route->of.n_layer; l++) {
            double ns = run_layer(r, &w, &route->plan[i * route->of.n_layer + l], l, route->n_row[i]);
            moe_where_learn(where, ns);
            out.ns += ns;
            out.late_ns += 2 * i >= route->n_pass ? ns : 0;
        }
    }
    out.share = moe_where_share(where, route->n_row[1]);
    out.lost = where->trials.lost_ns / out.ns;
    close_run(r);
    free(r);
    return out;
}

static double measure(const struct route *route, int machine, int law, int load)
{
    const struct machine *m = &set.machine[machine];
    struct outcome learnt = run(route, m, (enum law)law, -1), fixed[MOE_SHARES];
    int best = 0;
    for (int i = 0; i < MOE_SHARES; i++) {
        fixed[i] = run(route, m, (enum law)law, i);
        if (fixed[i].ns < fixed[best].ns)
            best = i;
    }
    const struct outcome *none = &fixed[0], *all = &fixed[MOE_SHARES - 1];
    double better = fmin(none->ns, all->ns) / learnt.ns, late = fmin(none->late_ns, all->late_ns) / learnt.late_ns;
    printf("%s,%s,%s,%.3f,%.3f,%.3f,%.3f,%.3f,%d,%.3f\n", m->name, laws[law], set.load[load].name,
           learnt.ns / route->n_pass * 1e-6, none->ns / learnt.ns, all->ns / learnt.ns, better, late, best,
           fixed[best].ns / learnt.ns);
    return better;
}

static void choose_held_out(void)
{
    set.machine = held_machines;
    set.load = held_loads;
    set.n_machine = (int)(sizeof held_machines / sizeof *held_machines);
    set.first_law = FIRST_HELD_LAW;
    set.end_law = N_LAW;
    set.held_out = true;
}

int main(int argc, char **argv)
{
    struct trace q30 = { 0 }, demo = { 0 };
    int one[3] = { -1, -1, -1 }, n = 0, n_below = 0, at = 1;
    double worst = 9;
    if (argc > at && strcmp(argv[at], "held-out") == 0) {
        choose_held_out();
        at++;
    }
    if (argc > at)
        set.seed = (uint64_t)atol(argv[at++]);
    for (int i = 0; i < 3 && at < argc; i++)
        one[i] = atoi(argv[at++]);
    if (at < argc || set.seed < 7 || !open_trace(&q30, "evals/offload/traces/q30.trace.gz") ||
        !open_trace(&demo, "evals/offload/traces/demo.trace.gz")) {
        fputs("where [held-out] [SEED [MACHINE LAW LOAD]], from the root of the tree; seeds from 7 on\n", stderr);
        return 2;
    }
    puts("machine,law,load,ms_per_pass,none,all,better,better_late,best_share,best");
    for (int load = 0; load < N_LOAD; load++) {
        if (one[2] >= 0 && load != one[2])
            continue;
        struct route route = open_route(&set.load[load], strcmp(set.load[load].trace, "q30") ? &demo : &q30);
        for (int m = 0; m < set.n_machine; m++)
            for (int law = set.first_law; law < set.end_law; law++) {
                if ((one[0] >= 0 && m != one[0]) || (one[1] >= 0 && law != one[1]))
                    continue;
                double better = measure(&route, m, law, load);
                n++;
                n_below += better < 0.97;
                worst = fmin(worst, better);
                fflush(stdout);
            }
        off_store_close(route.of.store);
    }
    fprintf(stderr, "%d settings, %d below 0.97 of the better of none and all; the lowest %.3f\n", n, n_below, worst);
    return 0;
}
