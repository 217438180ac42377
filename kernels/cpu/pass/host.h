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

struct kn_host_queue {
    struct kn_queue base;
    const struct kn_ops *ops;
    struct kn_team *team;
    struct kn_arena arena;
    int max_product;
    struct kn_product *product; /* [max_product] of the operation that runs */
    struct kn_piece *piece;     /* the pieces of these products */
    int *item0;                 /* [max_product + 1] first item of each group of the operation that runs */
    float *work;                /* [threads, max_state_floats] a head's state while drafts run on it */
    size_t max_state_floats;
};

/* ops: NULL, or functions that a test puts in place of kn_ops(isa). */
struct kn_host_device {
    struct kn_device base;
    enum kn_isa isa;
    const struct kn_ops *ops;
};
extern const struct kn_backend kn_host_backend;

#define KN_HOST(KIND, name) void kn_host_##name(struct kn_host_queue *q, const struct kn_op_##name *o);
KN_OPS(KN_HOST)
#undef KN_HOST

/* products.c: computes q->product[0 .. n - 1] in one parallel region.  At most 4 have node -1. */
void kn_host_run_products(struct kn_host_queue *q, int n);
size_t kn_host_piece_room(const struct kn_team *t, int n_product); /* pieces that n_product products need at most */

/* rows.c: codes of one row, in the calling thread. */
void kn_host_code_row(const struct kn_ops *ops, const struct kn_acts *a, unsigned kinds, int n_in, int row);

/* The address of slot `slot` in the array of KV head `head` of one layer. */
static inline uint8_t *kn_cache_key(const struct kn_cache *c, int head, int32_t slot)
{
    return c->k + (size_t)head * c->k_head + (size_t)slot * (size_t)c->k_step * kn_kv_value_bytes(c->kv);
}
static inline uint8_t *kn_cache_value(const struct kn_cache *c, int head, int32_t slot)
{
    return c->v + (size_t)head * c->v_head + (size_t)slot * (size_t)c->v_step * kn_kv_value_bytes(c->kv);
}

#endif
