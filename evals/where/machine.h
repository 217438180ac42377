/* evals/where/machine.h - a simulated machine with a device, on which the lists, the slots and the choice of moe/pass run; and the
 * routes that they get.  Each program that includes it has one machine and one clock of its own. */
#ifndef EVALS_WHERE_MACHINE_H
#define EVALS_WHERE_MACHINE_H

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
#define MOST_LAYERS  24
#define MOST_ROWS    4352 /* of a pass */

struct machine {
    const char *name;
    double link, dram, host_mac, device_bytes, device_memory, device_mac; /* per second; bytes */
};

/* Speed of products and of copies while both run; SHARED: by the memory's rate; SERIAL: one after the other (memory that is
 * not pinned). */
enum law { ALONE, SLOWER, SHARED, SERIAL, LITTLE, LINK_FIRST, HOST_FIRST, STAGED, MEASURED, N_LAW };
#define FIRST_HELD_LAW LINK_FIRST
static const char *const laws[N_LAW] = { "none",       "both slower", "shared memory", "one by one", "a little slower",
                                         "link first", "host first",  "staged",        "measured" };

/* ---- routes -------------------------------------------------------------------------------------------------------- */

struct layer_plan {
    int32_t n, *expert, *first;
};

struct routes {
    int n_layer, n_expert, n_used;
    struct off_store *store; /* knows no uses of earlier runs; nothing is read from it */
};

/* The experts of n_row rows, and their rows, from pass `at` of the trace on.  free_plan() returns the memory. */
static inline void plan_layer(struct layer_plan *p, const struct trace *t, int group, int n_row, int at)
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

static inline void free_plan(struct layer_plan *p)
{
    free(p->expert);
    free(p->first);
}

/* A store of as many experts, of one panel each. */
static inline struct off_store *open_store(int n_layer, int n_expert)
{
    static FILE *file;
    static int fd;
    static const char *path = "zeros";
    int n = n_layer * n_expert;
    struct off_expert *expert = calloc((size_t)n, sizeof *expert);
    struct off_store_options o = {
        .files = { 1, &fd, &path, NULL }, .expert = expert, .n_expert = n, .io = OFF_IO_PREAD
    };
    struct off_store *s = NULL;
    for (int i = 0; i < n; i++)
        expert[i] = (struct off_expert){ .matrix[0] = { .format = KN_F32, .n_out = KN_PANEL, .n_in = 1, .scale = 1 },
                                         .group = i / n_expert };
    o.slot_bytes = off_store_least(expert, n);
    if (!file && (!(file = tmpfile()) || ftruncate(fd = fileno(file), 1 << 16)))
        exit(1);
    if (off_store_open(&s, &o))
        exit(1);
    free(expert);
    return s;
}

static inline struct routes open_routes(const struct trace *t)
{
    struct routes r = { .n_layer = t->n_group, .n_expert = t->first[1] };
    for (int e = 0; e < r.n_expert; e++)
        r.n_used += is_used(t->bits, e);
    r.store = open_store(r.n_layer, r.n_expert);
    return r;
}

/* ---- a machine ------------------------------------------------------------------------------------------------------ */

struct world {
    const struct machine *m;
    enum law law;
    uint64_t random;
    bool held_out; /* more noise, other changes of the rates */
    double at;     /* part of the run that is over, 0 to 1 */
};

static inline double uniform(struct world *w) { return (double)(kn_mix(w->random += KN_GOLDEN) >> 11) * 0x1p-53; }

static inline double noise(struct world *w, double deviation)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(w);
    return exp(deviation * sum);
}

/* How fast the host is now: another program takes part of it, more and less; and for a fifth of the run the link is slower. */
static inline double host_speed(const struct world *w)
{
    if (w->held_out) /* by steps */
        return w->at > 0.3 && w->at < 0.45 ? 0.65 : w->at > 0.8 ? 1.15 : 1;
    return 1 + 0.2 * sin(w->at * 40);
}

static inline double link_speed(const struct world *w)
{
    if (w->held_out)
        return 1 - 0.25 * w->at;
    return w->at > 0.5 && w->at < 0.7 ? 0.6 : 1;
}

/* The slowdowns of products and copies that run at once. */
static inline void contend(const struct world *w, double *host, double *copy)
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
static inline double both_ns(const struct world *w, double host, double copies, double device)
{
    double h, c;
    if (w->law == SERIAL)
        return copies + fmax(host, device);
    contend(w, &h, &c);
    double t = fmin(host / h, copies / c); /* both are busy so long */
    double host_end = t + (host - t * h), copy_end = t + (copies - t * c);
    return fmax(host_end, copy_end + device);
}

static inline double host_ns(const struct machine *m, int n_row)
{
    return 2e3 + 1e9 * fmax(EXPERT_BYTES / m->dram, n_row * EXPERT_MACS / m->host_mac);
}

static inline double device_ns(const struct machine *m, int n_row)
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

static inline void lay_out(struct run *r)
{
    struct moe_arenas a = { .host = r->host, .shared = r->shared };
    int most = r->model.desc.n_expert;
    r->listed = kn_arena_take(&a.host, (size_t)most, sizeof *r->listed);
    a.device = (struct kn_arena){ .base = (uint8_t *)r->listed, .bytes = (size_t)most * sizeof *r->listed };
    moe_residents_lay_out(&r->c, &a);
    r->host.used = a.host.used;
    r->shared.used = a.shared.used;
}

/* other_bytes: the part of the device's memory that holds no experts. */
static inline void open_run(struct run *r, const struct routes *route, const struct machine *m, double other_bytes)
{
    struct kn_queue_options queue = { .device = kn_host_device(KN_ISA_SCALAR), .max_product = KN_PRODUCTS };
    memset(r, 0, sizeof *r);
    int n_all = route->n_layer * route->n_expert;
    double part = fmin(0.98, (m->device_bytes - other_bytes) / MODEL_BYTES);
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
    r->c.opt.max_row = MOST_ROWS;
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

static inline void close_run(struct run *r)
{
    kn_queue_close(r->c.queue);
    kn_memory_close(&r->c.residents.memory);
    free(r->model.resident_size_of);
    kn_arena_close(&r->host);
    kn_arena_close(&r->shared);
    kn_team_close(r->team);
}

/* One layer, with the calls of moe/pass/experts.c, on the virtual clock. */
static inline double run_layer(struct run *r, struct world *w, const struct layer_plan *p, int layer, int n_row)
{
    struct moe_context *c = &r->c;
    struct moe_residents *s = &c->residents;
    static int32_t pair[MOST_ROWS * 64], n_planned;
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
    host *= noise(w, w->held_out ? 0.12 : 0.08) / host_speed(w);
    copies *= noise(w, 0.05) / link_speed(w);
    double ns = (ATTEND_NS + ATTEND_ROW * n_row) * noise(w, 0.03) + both_ns(w, host, copies, device);
    return uniform(w) < 0.0005 ? ns + 3e6 : ns; /* the system is busy with something else */
}

#endif
