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
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evals/offload/trace_file.h"
#include "moe/pass/pass.h"

#define EXPERT_BYTES 10.6e6 /* qwen3-235b-a22b in Q4_K */
#define EXPERT_MACS  18.9e6 /* of one row */
#define MODEL_BYTES  128e9  /* all its experts: a device keeps the same part of the trace's */
#define OTHER_BYTES  6e9    /* of the device: dense weights, KV cache */
#define ATTEND_NS    100e3  /* of a layer: attention and the rest, */
#define ATTEND_ROW   500.0  /* and of each row */
#define DEVICE_NS    10e3   /* launches of a list of experts */
#define COPY_NS      4e3    /* of each copy */
#define MOST_PASSES  2000
#define MOST_LAYERS  24

struct machine {
    const char *name;
    double link, dram, host_mac, device_bytes, device_memory, device_mac; /* per second; bytes */
};

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

/* Speed of products and of copies while both run; SHARED: by the memory's rate; SERIAL: one after the other (memory that is
 * not pinned). */
enum law { ALONE, SLOWER, SHARED, SERIAL, LITTLE, LINK_FIRST, HOST_FIRST, STAGED, MEASURED, N_LAW };
#define FIRST_HELD_LAW LINK_FIRST
static const char *const laws[N_LAW] = { "none",       "both slower", "shared memory", "one by one", "a little slower",
                                         "link first", "host first",  "staged",        "measured" };

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

struct layer_plan {
    int32_t n, *expert, *first;
};

struct route {
    int n_pass, n_layer, n_expert, n_used, *n_row;
    struct layer_plan *plan; /* [n_pass][n_layer] */
    struct off_store *store; /* knows no uses of earlier runs; nothing is read from it */
};

static void plan_layer(struct layer_plan *p, const struct trace *t, int group, int n_row, int at)
{
    int n_expert = t->first[group + 1] - t->first[group], n_pair = 0;
    p->expert = malloc(sizeof *p->expert * (size_t)n_expert);
    p->first = malloc(sizeof *p->first * (size_t)(n_expert + 1));
    p->n = 0;
    for (int e = 0; e < n_expert; e++) {
        int before = n_pair;
        for (int row = 0; row < n_row; row++) { /* rows beyond the streams continue them */
            int stream = row % t->n_stream, pass = (at + row / t->n_stream * 3 + stream) % t->n_pass;
            const uint8_t *bits = t->bits + ((size_t)stream * (size_t)t->n_pass + (size_t)pass) * t->pass_bytes;
            n_pair += is_used(bits + t->at[group], e);
        }
        p->first[p->n] = before;
        if (n_pair > before)
            p->expert[p->n++] = t->first[group] + e;
    }
    p->first[p->n] = n_pair;
}

/* A store of as many experts, of one panel each. */
static struct off_store *open_store(const struct route *r)
{
    static FILE *file;
    static int fd;
    static const char *path = "zeros";
    int n = r->n_layer * r->n_expert;
    struct off_expert *expert = calloc((size_t)n, sizeof *expert);
    struct off_store_options o = {
        .files = { 1, &fd, &path, NULL }, .expert = expert, .n_expert = n, .io = OFF_IO_PREAD
    };
    struct off_store *s = NULL;
    for (int i = 0; i < n; i++)
        expert[i] = (struct off_expert){ .matrix[0] = { .format = KN_F32, .n_out = KN_PANEL, .n_in = 1, .scale = 1 },
                                         .group = i / r->n_expert };
    o.slot_bytes = off_store_least(expert, n);
    if (!file && (!(file = tmpfile()) || ftruncate(fd = fileno(file), 1 << 16)))
        exit(1);
    if (off_store_open(&s, &o))
        exit(1);
    free(expert);
    return s;
}

static struct route open_route(const struct load *load, const struct trace *t)
{
    struct route r = { load->n_pass,
                       t->n_group,
                       t->first[1],
                       0,
                       calloc((size_t)load->n_pass, sizeof(int)),
                       calloc((size_t)(load->n_pass * t->n_group), sizeof(struct layer_plan)),
                       NULL };
    for (int e = 0; e < r.n_expert; e++)
        r.n_used += is_used(t->bits, e);
    for (int i = 0; i < r.n_pass; i++) {
        int which = load->rows[i % 4] ? i % 4 : (int)(kn_mix(KN_GOLDEN * (uint64_t)i) % 3);
        int at = i + (int)(set.seed - 7) * 37;
        r.n_row[i] = load->rows[which] + (load->prompt_every && i % load->prompt_every == 0 ? PROMPT : 0);
        for (int g = 0; g < t->n_group; g++)
            plan_layer(&r.plan[i * t->n_group + g], t, g, r.n_row[i], at);
    }
    r.store = open_store(&r);
    return r;
}

/* ---- a machine ------------------------------------------------------------------------------------------------------ */

struct world {
    const struct machine *m;
    enum law law;
    uint64_t random;
    double at; /* part of the run that is over, 0 to 1 */
};

static double uniform(struct world *w) { return (double)(kn_mix(w->random += KN_GOLDEN) >> 11) * 0x1p-53; }

static double noise(struct world *w, double deviation)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(w);
    return exp(deviation * sum);
}

/* How fast the host is now: another program takes part of it, more and less; and for a fifth of the run the link is slower. */
static double host_speed(const struct world *w)
{
    if (set.held_out) /* by steps */
        return w->at > 0.3 && w->at < 0.45 ? 0.65 : w->at > 0.8 ? 1.15 : 1;
    return 1 + 0.2 * sin(w->at * 40);
}

static double link_speed(const struct world *w)
{
    if (set.held_out)
        return 1 - 0.25 * w->at;
    return w->at > 0.5 && w->at < 0.7 ? 0.6 : 1;
}

/* The slowdowns of products and copies that run at once. */
static void contend(const struct world *w, double *host, double *copy)
{
    const struct machine *m = w->m;
    *host = *copy = 1;
    if (w->law == SLOWER) { /* as others measured on PCIe 3 */
        *host = 0.73;
        *copy = 0.64;
    } else if (w->law == LITTLE) { /* an assumption */
        *host = 0.85;
        *copy = 0.80;
    } else if (w->law == SHARED) {
        *host = *copy = fmin(1, m->dram / (m->dram + m->link));
    } else if (w->law == LINK_FIRST) {
        *host = fmax(0.2, 1 - m->link / m->dram);
    } else if (w->law == HOST_FIRST) {
        *copy = 0.4;
    } else if (w->law == STAGED) { /* each byte is moved two times more */
        *host = *copy = fmin(1, m->dram / (m->dram + 3 * m->link));
    } else if (w->law == MEASURED) { /* contention.c, products of one row: results/offload/contention-2026-11-26.csv */
        *host = 0.75;
        *copy = 0.79;
    }
}

/* Nanoseconds until both have ended, the device's products last. */
static double both_ns(const struct world *w, double host, double copies, double device)
{
    double h, c;
    if (w->law == SERIAL)
        return copies + fmax(host, device);
    contend(w, &h, &c);
    double t = fmin(host / h, copies / c); /* both are busy so long */
    double host_end = t + (host - t * h), copy_end = t + (copies - t * c);
    return fmax(host_end, copy_end + device);
}

static double host_ns(const struct machine *m, int n_row)
{
    return 2e3 + 1e9 * fmax(EXPERT_BYTES / m->dram, n_row * EXPERT_MACS / m->host_mac);
}

static double device_ns(const struct machine *m, int n_row)
{
    return 1e9 * fmax(EXPERT_BYTES / m->device_memory, n_row * EXPERT_MACS / m->device_mac);
}

/* ---- moe/pass on it ------------------------------------------------------------------------------------------------- */

struct run {
    struct moe_context c;
    struct moe_model model;
    struct moe_layer layer[MOST_LAYERS];
    struct kn_arena host, shared;
    struct kn_team *team;
    float weights[KN_PANEL];
    struct kn_group *listed;
};

static void lay_out(struct run *r)
{
    struct moe_arenas a = { .host = r->host, .shared = r->shared };
    int most = r->model.desc.n_expert;
    r->listed = kn_arena_take(&a.host, (size_t)most, sizeof *r->listed);
    a.device = (struct kn_arena){ .base = (uint8_t *)r->listed, .bytes = (size_t)most * sizeof *r->listed };
    moe_residents_lay_out(&r->c, &a);
    r->host.used = a.host.used;
    r->shared.used = a.shared.used;
}

static void open_run(struct run *r, const struct route *route, const struct machine *m)
{
    struct kn_queue_options queue = { .device = kn_host_device(KN_ISA_SCALAR), .max_product = KN_PRODUCTS };
    memset(r, 0, sizeof *r);
    int n_all = route->n_layer * route->n_expert;
    double part = fmin(0.98, (m->device_bytes - OTHER_BYTES) / MODEL_BYTES);
    if (kn_team_open(&r->team, 1))
        exit(1);
    queue.team = r->team;
    r->model = (struct moe_model){
        .layer = r->layer, .store = route->store, .resident_sizes = { 1, { 3 * 256 } }, .shape.n_expert_total = n_all
    };
    r->model.resident_size_of = calloc((size_t)n_all, sizeof *r->model.resident_size_of);
    r->model.desc.n_expert = route->n_expert;
    r->model.desc.n_layer = route->n_layer;
    r->model.desc.n_used = route->n_used;
    for (int i = 0; i < route->n_layer; i++)
        r->layer[i].expert0 = i * route->n_expert;
    r->c.model = &r->model;
    r->c.opt.max_row = 2 * PROMPT;
    r->c.opt.resident_bytes = (size_t)(part * n_all) * r->model.resident_sizes.bytes[0];
    lay_out(r);
    if (kn_arena_open(&r->host, r->host.used, -1) || kn_arena_open(&r->shared, r->shared.used, -1))
        exit(1);
    lay_out(r);
    r->c.shared = (struct kn_memory){ .base = r->shared.base, .image = r->shared.base };
    r->c.device.device = queue.device;
    if (kn_queue_open(&r->c.queue, &queue))
        exit(1);
    r->c.copies = r->c.queue;
    if (moe_residents_open(&r->c))
        exit(1);
}

static void close_run(struct run *r)
{
    kn_queue_close(r->c.queue);
    kn_memory_close(&r->c.residents.memory);
    free(r->model.resident_size_of);
    kn_arena_close(&r->host);
    kn_arena_close(&r->shared);
    kn_team_close(r->team);
}

/* One layer, with the calls of moe/pass/experts.c, on the virtual clock. */
static double run_layer(struct run *r, struct world *w, const struct layer_plan *p, int layer, int n_row)
{
    struct moe_context *c = &r->c;
    struct moe_residents *s = &c->residents;
    static int32_t pair[2 * PROMPT * 64], n_planned;
    struct kn_mat matrix[3] = { { KN_F32, KN_PANEL, 1, 1, r->weights }, { .n_out = 0 }, { .n_out = 0 } };
    double host = 0, device = DEVICE_NS, copies;
    uint64_t before = s->total.n_copied;
    n_planned = p->n;
    for (int i = 0; i < p->first[p->n]; i++)
        pair[i] = i;
    c->plan = (struct kn_plan){ .n_expert = &n_planned, .expert = p->expert, .first = p->first, .pair = pair };
    c->n_row = n_row;
    moe_residents_list(c);
    moe_residents_choose(c, layer);
    for (int e = 0; e < p->n; e++)
        if (moe_is_resident(c, p->expert[e]))
            device += device_ns(w->m, p->first[e + 1] - p->first[e]);
    for (int i = 0; i < s->n_rest; i++) {
        int e = s->rest_of[i], n = p->first[e + 1] - p->first[e];
        if (s->passes[i]) {
            if (moe_residents_window_is_full(c, s->rest[i]))
                moe_residents_round(c, &(int){ 0 });
            moe_residents_pass(c, &r->layer[layer], e, matrix);
            device += device_ns(w->m, n);
        } else {
            host += host_ns(w->m, n);
        }
    }
    moe_residents_round(c, &(int){ 0 });
    for (int i = 0; i < s->n_rest; i++)
        if (!s->passes[i])
            moe_residents_copy(c, s->rest[i], matrix);
    copies = (double)(s->total.n_copied - before) * (COPY_NS + 1e9 * EXPERT_BYTES / w->m->link);
    host *= noise(w, set.held_out ? 0.12 : 0.08) / host_speed(w);
    copies *= noise(w, 0.05) / link_speed(w);
    double ns = (ATTEND_NS + ATTEND_ROW * n_row) * noise(w, 0.03) + both_ns(w, host, copies, device);
    return uniform(w) < 0.0005 ? ns + 3e6 : ns; /* the system is busy with something else */
}

struct outcome {
    double ns, late_ns, share, lost;
};

/* share -1: as learnt. */
static struct outcome run(const struct route *route, const struct machine *m, enum law law, int share)
{
    struct run *r = malloc(sizeof *r);
    struct world w = { m, law, set.seed, 0 };
    struct outcome out = { 0, 0, 0, 0 };
    open_run(r, route, m);
    struct moe_where *where = &r->c.residents.where;
    where->plans = share < 0 ? MOE_PLANS_LEARNT : MOE_PLANS_FIXED;
    where->random = set.seed - 7;
    for (int i = 0; share >= 0 && i < MOE_ROW_BUCKETS; i++)
        where->bucket[i].share = share;
    for (int i = 0; i < route->n_pass; i++) {
        w.at = (double)i / route->n_pass;
        moe_residents_begin(&r->c);
        for (int l = 0; l < route->n_layer; l++) {
            double ns = run_layer(r, &w, &route->plan[i * route->n_layer + l], l, route->n_row[i]);
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
        off_store_close(route.store);
    }
    fprintf(stderr, "%d settings, %d below 0.97 of the better of none and all; the lowest %.3f\n", n, n_below, worst);
    return 0;
}
