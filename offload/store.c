/* The expert store: experts by number, in slots.
 *
 * Every expert has a slot of its own in one host arena, filled when the store opens, so a fetch finds all
 * it asks for and a wait hands everything out at once.  A slot holds the expert's matrices one after
 * another in the interleaved layout; where each starts is computed from the sources, not stored. */
#include "offload/internal.h"

#include <string.h>

struct off_store {
    struct off_expert *expert;                  /* [n_expert] */
    size_t *slot;                               /* [n_expert] offset of the slot in the arena */
    int n_expert;
    struct kn_arena arena;
    atomic_uint_fast64_t hits, reads, read_bytes;
};

static size_t matrix_bytes(const struct off_source *s)
{
    return s->n_out ? kn_align_up(kn_mat_bytes(s->format, s->n_out, s->n_in), 64) : 0;
}

static size_t expert_bytes(const struct off_expert *e)
{
    size_t bytes = 0;
    for (int i = 0; i < OFF_MATRICES; i++)
        bytes += matrix_bytes(&e->matrix[i]);
    return bytes;
}

size_t off_store_bytes(const struct off_expert *expert, int n_expert)
{
    size_t bytes = 0;
    for (int i = 0; i < n_expert; i++)
        bytes += expert_bytes(&expert[i]);
    return bytes;
}

static void fill_view(const struct off_store *s, int32_t expert, struct off_view *view)
{
    const uint8_t *at = s->arena.base + s->slot[expert];
    *view = (struct off_view){ .tier = OFF_HOST };
    for (int i = 0; i < OFF_MATRICES; i++) {
        const struct off_source *m = &s->expert[expert].matrix[i];
        view->matrix[i] = (struct kn_mat){ m->format, m->n_out, m->n_in, m->n_out ? at : NULL };
        at += matrix_bytes(m);
    }
}

/* Reads in file order, so that a disk that seeks is read forwards: GGUF keeps all gates of a layer, then
 * all ups, then all downs. */
static int read_all(struct off_store *s, const struct off_store_options *opt)
{
    struct off_load *load = kn_calloc((size_t)s->n_expert * OFF_MATRICES, sizeof *load);
    if (!load)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", s->n_expert);
    int n = 0, error;
    for (int begin = 0; begin < s->n_expert; ) {
        int end = begin;                        /* experts of one tensor: their sources are consecutive */
        while (end < s->n_expert && (end == begin ||
               s->expert[end].matrix[0].offset > s->expert[end - 1].matrix[0].offset) &&
               end - begin < 1024)
            end++;
        for (int i = 0; i < OFF_MATRICES; i++)
            for (int e = begin; e < end; e++) {
                struct off_view view;
                fill_view(s, e, &view);
                if (view.matrix[i].n_out)
                    load[n++] = (struct off_load){ s->expert[e].matrix[i], (void *)view.matrix[i].data };
            }
        begin = end;
    }
    error = off_load(&opt->files, load, n, opt->ops, opt->team, opt->progress);
    for (int i = 0; !error && i < n; i++) {
        const struct off_source *m = &load[i].source;
        s->read_bytes += (uint64_t)m->n_out * kn_row_bytes(m->format, m->n_in);
        s->reads++;
    }
    kn_free(load);
    return error;
}

int off_store_open(struct off_store **out, const struct off_store_options *opt)
{
    size_t need = off_store_bytes(opt->expert, opt->n_expert);
    if (opt->host_bytes && need > opt->host_bytes)
        return kn_fail(KN_ELIMIT, "the experts take %zu MiB and the budget leaves %zu MiB: raise --host-mem",
                       (need + (1 << 20) - 1) >> 20, opt->host_bytes >> 20);
    struct off_store *s = kn_calloc(1, sizeof *s);
    if (!s)
        return kn_fail(KN_ENOMEM, "no memory for the expert store");
    s->n_expert = opt->n_expert;
    s->expert = kn_calloc((size_t)opt->n_expert, sizeof *s->expert);
    s->slot = kn_calloc((size_t)opt->n_expert, sizeof *s->slot);
    int error = s->expert && s->slot ? kn_arena_open(&s->arena, need, -1)
                                     : kn_fail(KN_ENOMEM, "no memory to list %d experts", opt->n_expert);
    if (error)
        goto fail;
    memcpy(s->expert, opt->expert, (size_t)opt->n_expert * sizeof *s->expert);
    for (int i = 0; i < s->n_expert; i++) {
        s->slot[i] = s->arena.used;
        kn_arena_take(&s->arena, 1, expert_bytes(&s->expert[i]));
    }
    if ((error = read_all(s, opt)) != 0)
        goto fail;
    *out = s;
    return 0;
fail:
    off_store_close(s);
    return error;
}

void off_store_close(struct off_store *s)
{
    if (!s)
        return;
    kn_arena_close(&s->arena);
    kn_free(s->slot);
    kn_free(s->expert);
    kn_free(s);
}

int off_fetch(struct off_store *s, const int32_t *expert, int n, enum off_urgency urgency,
              struct off_ticket *out)
{
    (void)urgency;
    for (int i = 0; i < n; i++)
        kn_assert(expert[i] >= 0 && expert[i] < s->n_expert);
    *out = (struct off_ticket){ .expert = expert, .n = n };
    atomic_fetch_add_explicit(&s->hits, (uint64_t)n, memory_order_relaxed);
    return 0;
}

int off_wait(struct off_store *s, struct off_ticket *t, int32_t *index, struct off_view *view, int *status)
{
    int n = 0;
    for (; t->n_given < t->n; t->n_given++, n++) {
        index[n] = t->n_given;
        status[n] = 0;
        fill_view(s, t->expert[t->n_given], &view[n]);
    }
    return n;
}

void off_release(struct off_store *s, struct off_ticket *t)
{
    (void)s;
    *t = (struct off_ticket){ 0 };
}

void off_stats_get(const struct off_store *s, struct off_stats *out)
{
    *out = (struct off_stats){ .hits = s->hits, .reads = s->reads, .read_bytes = s->read_bytes };
}
