/* kernels/device.h - where a forward pass runs: devices, and queues of operations.
 *
 * A device runs the operations of pass.h.  Today there is one kind, the host: kn_host_device().  A further backend is a
 * table struct kn_backend with its own struct behind struct kn_queue; its callers do not change.
 *
 *     kn_queue_open()      once for each context: memory and workers of one sequence of operations
 *     kn_queue_add()       adds one operation.  The struct is copied; the memory that it names must stay until the
 *                          queue has run the operation.  Operations run in the order in which they were added
 *     kn_queue_wait()      returns when all added operations have run: before the host reads their results, or writes
 *                          or frees memory that they name
 *
 * The host's queue runs an operation over its team within kn_queue_add(); its wait returns at once.  Callers may not
 * depend on this.  One thread at a time uses a queue. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/kernels.h"

struct kn_op; /* pass.h */
struct kn_device;
struct kn_queue;

struct kn_queue_options {
    const struct kn_device *device;
    struct kn_team *team;      /* of the host's queue: the threads that run its operations */
    int max_row, max_pos;      /* most rows of an attention, most positions */
    int n_head, n_kv, d_value; /* the shape of all attentions */
    int max_product;           /* most matrices of one operation */
    size_t max_state_floats;   /* floats of the largest state matrix of a delta net; 0: no delta nets */
};

struct kn_backend {
    const char *name;
    size_t (*queue_bytes)(const struct kn_queue_options *opt);
    int (*queue_open)(struct kn_queue **out, const struct kn_queue_options *opt);
    void (*queue_close)(struct kn_queue *q);
    void (*queue_set_team)(struct kn_queue *q, struct kn_team *team);
    void (*queue_add)(struct kn_queue *q, const struct kn_op *op);
    void (*queue_wait)(struct kn_queue *q);
};

/* The members that every backend has; a backend's own struct begins with this one. */
struct kn_device {
    const struct kn_backend *backend;
};
struct kn_queue {
    const struct kn_backend *backend;
};

/* The host with instruction set `most`, or the best one that the processor has below it. */
const struct kn_device *kn_host_device(enum kn_isa most);

static inline size_t kn_queue_bytes(const struct kn_queue_options *opt)
{
    return opt->device->backend->queue_bytes(opt);
}

static inline int kn_queue_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    return opt->device->backend->queue_open(out, opt);
}

static inline void kn_queue_close(struct kn_queue *q)
{
    if (q)
        q->backend->queue_close(q);
}

/* The next operations run with this team: not larger, on not more nodes, than that of the options.  Not while operations
 * wait. */
static inline void kn_queue_set_team(struct kn_queue *q, struct kn_team *team) { q->backend->queue_set_team(q, team); }
static inline void kn_queue_add(struct kn_queue *q, const struct kn_op *op) { q->backend->queue_add(q, op); }
static inline void kn_queue_wait(struct kn_queue *q) { q->backend->queue_wait(q); }

#endif
