/* kernels/cpu/pass/host.h - the host's queue: runs each operation of pass.h over a team, when it is added.
 *
 * kn_host_x() in one of the files beside this one runs operation x.  An operation is one or more parallel regions; an
 * item of a region is a row, a head of a row, or a few panels of a matrix, and calls the functions of struct kn_ops for
 * its part.  Everything that only a team of threads needs is here and nowhere else: items and their cost, NUMA nodes, a
 * thread's scratch. */
#ifndef KERNELS_CPU_PASS_HOST_H
#define KERNELS_CPU_PASS_HOST_H

#include "kernels/pass.h"

/* Panels panel0 .. panel1 - 1 of a product, all on one node.  Work items item0, item0 + 1, .. compute per_item panels
 * each. */
struct kn_piece {
    int product, panel0, panel1, per_item, item0;
};

/* Memory for attention with spans as work items (attend.c). */
struct kn_span_item {
    int first;         /* number of the item's first span among those of all items */
    size_t part;       /* index of its first part in kn_spans.part */
    atomic_int n_left; /* spans still to be computed; the thread that makes it 0 joins the parts */
};

struct kn_spans {
    int n_item; /* most items; 0: rows are always the items */
    size_t n_float;
    float *part;               /* [n_float] */
    struct kn_span_item *item; /* [n_item] */
};

/* Attention of n_item items, each one row with some of its heads.  describe() sets up an item, or returns false if the
 * row has failed; the same item may be described several times, by several threads.  finish() handles its output. */
struct kn_attend_items {
    int n_item;
    bool (*describe)(const void *arg, int item, struct kn_attend *out);
    void (*finish)(const void *arg, int item);
    const void *arg;
};

struct kn_host_queue {
    struct kn_queue base;
    const struct kn_ops *ops;
    struct kn_team *team;
    struct kn_arena arena;
    int max_product;
    struct kn_product *product; /* [max_product] of the operation that runs */
    struct kn_piece *piece;     /* the pieces of these products */
    int *item0;                 /* [max_product + 1] first item of each group of the operation that runs */
    struct kn_spans spans;
    float *work; /* [threads, max_state_floats] a head's state while drafts run on it */
    size_t max_state_floats;
};

/* ops: NULL, or functions that a test puts in place of kn_ops(isa). */
struct kn_host_device {
    struct kn_device base;
    enum kn_isa isa;
    const struct kn_ops *ops;
};
extern const struct kn_backend kn_host_backend;

/* Argument of the items of an operation that needs only its own struct. */
struct kn_host_job {
    const struct kn_ops *ops;
    const void *op;
};

/* One parallel region: item(&job, i, thread) for i = 0 .. n - 1. */
static inline void kn_host_for(struct kn_host_queue *q, int n, void (*item)(void *job, int i, int thread),
                               const void *op)
{
    kn_parallel_for(q->team, n, item, &(struct kn_host_job){ q->ops, op });
}

#define KN_HOST(KIND, name) void kn_host_##name(struct kn_host_queue *q, const struct kn_op_##name *o);
KN_OPS(KN_HOST)
#undef KN_HOST

/* products.c: computes q->product[0 .. n - 1] in one parallel region.  At most 4 have node -1. */
void kn_host_run_products(struct kn_host_queue *q, int n);
size_t kn_host_piece_room(const struct kn_team *t, int n_product); /* pieces that n_product products need at most */

/* attend.c: one parallel region. */
void kn_host_attend_items(struct kn_host_queue *q, const struct kn_attend_items *m);
void kn_host_spans_lay_out(struct kn_spans *s, struct kn_arena *a, const struct kn_queue_options *opt);

/* rows.c: codes of one row, in the calling thread. */
void kn_host_code_row(const struct kn_ops *ops, const struct kn_acts *a, unsigned kinds, int n_in, int row);

/* The keys or the values of one KV head in one layer, from slot 0 on. */
struct kn_cache_head {
    uint8_t *number;
    float *scale; /* of int8; else NULL */
    int step;     /* values from a slot to the next */
};

static inline struct kn_cache_head kn_cache_keys(const struct kn_cache *c, int head)
{
    size_t at = (size_t)head * c->k_head;
    return (struct kn_cache_head){ c->k + at, c->k_scale ? c->k_scale + at / sizeof(float) : NULL, c->k_step };
}

static inline struct kn_cache_head kn_cache_values(const struct kn_cache *c, int head)
{
    size_t at = (size_t)head * c->v_head;
    return (struct kn_cache_head){ c->v + at, c->v_scale ? c->v_scale + at / sizeof(float) : NULL, c->v_step };
}

/* attention.c: x[n] to the head's vector of this slot. */
void kn_cache_put(const struct kn_ops *ops, enum kn_kv kv, struct kn_cache_head h, int32_t slot, const float *x, int n);

#endif
