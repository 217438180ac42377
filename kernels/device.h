/* kernels/device.h - where a forward pass runs: devices, their memory, and queues of operations.
 *
 * A device runs the operations of pass.h, on memory that it can read.  Today there is one kind, the host:
 * kn_host_device().  A further backend is a table struct kn_backend with its own structs behind struct kn_device and
 * struct kn_queue; its callers do not change.
 *
 *     kn_memory_open()     memory for operations, and if asked for the host's image of it.  On the host both are the same
 *                          bytes.  A device with memory of its own has two copies: the operation TRANSFER copies pieces
 *                          between them, and the host touches nothing but the image
 *     kn_host_pin()        memory of the host from which a device with memory of its own shall copy by itself, beside the
 *                          host's work; other memory is copied through a buffer, more slowly
 *     kn_queue_open()      once for each context: memory and workers of one sequence of operations
 *     kn_queue_add()       adds one operation.  The struct is copied; the memory that it names must stay until the
 *                          queue has run the operation.  Operations run in the order in which they were added
 *     kn_queue_wait()      returns when all added operations have run: before the host reads their results, or writes
 *                          or frees memory that they name.  An error of the device is returned by each later wait, too:
 *                          no result of the queue is valid any more
 *     kn_queue_await()     on some devices: returns when an operation has written a word, while later ones go on
 *
 * The host's queue runs an operation over its team within kn_queue_add(); its wait returns at once.  Callers may not
 * depend on this.  One thread at a time uses a queue. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/kernels.h"

struct kn_op; /* pass.h, as is enum kn_op_kind */
struct kn_device;
struct kn_queue;

struct kn_memory {
    const struct kn_device *device;
    uint8_t *base;  /* address in operations; all bytes are 0 at first */
    uint8_t *image; /* where the host reads and writes: base on the host; NULL: the memory has no image */
    size_t bytes;
};

/* A need of memory: of the host, and of a device with memory of its own. */
struct kn_bytes {
    size_t host, device;
};

struct kn_queue_options {
    const struct kn_device *device;
    struct kn_team *team;      /* of the host's queue: the threads that run its operations */
    int max_row, max_pos;      /* most rows of an attention, most positions */
    int n_head, n_kv, d_value; /* of all attentions: query heads, the fewest KV heads, the widest value */
    int max_product;           /* most matrices of one operation */
    size_t max_state_floats;   /* floats of the largest state matrix of a delta net; 0: no delta nets */
    struct kn_queue *beside;   /* either queue may await words that the other writes; closed before it; or NULL */
    bool stages; /* TRANSFERs may read memory of the host that is not pinned: a buffer is taken for them */
};

struct kn_backend {
    const char *name;
    void (*close)(struct kn_device *d); /* NULL: the device is static */
    bool own_memory;                    /* the host cannot read the device's memory, nor the device the host's */
    bool (*has_format)(const struct kn_device *d, enum kn_format f); /* NULL: it has all formats */
    int (*admit)(const struct kn_device *d, enum kn_format f);       /* NULL: it has all formats */
    size_t (*memory_free)(const struct kn_device *d); /* of a device with memory of its own: free bytes */
    int (*memory_open)(struct kn_memory *m, bool image);
    void (*memory_close)(struct kn_memory *m);
    int (*memory_write)(struct kn_memory *m, size_t at, const void *from, size_t bytes);
    int (*host_pin)(const struct kn_device *d, void *at, size_t bytes, const char **why); /* NULL: nothing to pin */
    void (*host_unpin)(const struct kn_device *d, void *at);
    struct kn_bytes (*queue_bytes)(const struct kn_queue_options *opt);
    int (*queue_open)(struct kn_queue **out, const struct kn_queue_options *opt);
    void (*queue_close)(struct kn_queue *q);
    void (*queue_set_team)(struct kn_queue *q, struct kn_team *team);
    void (*queue_add)(struct kn_queue *q, const struct kn_op *op);
    int (*queue_wait)(struct kn_queue *q);
    bool (*can_await)(const struct kn_device *d); /* NULL: it cannot */
    int (*queue_await)(struct kn_queue *q, const uint32_t *word, uint32_t value);
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

/* Opens a device by its name: "host" or NULL, "cuda" (the first GPU) or "cuda:1".  Close accepts NULL; models and contexts on the
 * device are closed first. */
int kn_device_open(const struct kn_device **out, const char *name, enum kn_isa isa);
void kn_device_close(const struct kn_device *d);

/* Before devices are opened: results of their self-tests are kept in this folder, which is made if it is not there.  NULL, as at
 * first: nowhere, and each start tests. */
void kn_device_keep_tests(const char *folder);

/* For tests: adds a kind of device. */
struct kn_device_kind {
    const char *name;
    int (*open)(struct kn_device **out, int number);
};
void kn_device_offer(const char *name, int (*open)(struct kn_device **out, int number));

static inline bool kn_device_has_format(const struct kn_device *d, enum kn_format f)
{
    return !d->backend->has_format || d->backend->has_format(d, f);
}

/* Free bytes of a device with memory of its own. */
static inline size_t kn_device_free_bytes(const struct kn_device *d) { return d->backend->memory_free(d); }

/* Matrices of format f will be named in operations.  KN_EUNSUPPORTED, reported: the device has no such format. */
static inline int kn_device_admit(const struct kn_device *d, enum kn_format f)
{
    return d->backend->admit ? d->backend->admit(d, f) : 0;
}

/* Returns 0, or a code that has been reported: the device lacks memory.  Memory and queues of devices that can await are not
 * opened or closed by a thread between its kn_awaits_begin() and kn_awaits_end(); they wait for the end of other threads'. */
int kn_memory_open(struct kn_memory *m, const struct kn_device *d, size_t bytes, bool image);

/* Frees the memory; no queued operation may name it.  Memory that was never opened is fine. */
void kn_memory_close(struct kn_memory *m);

/* Writes bytes at `at`, from any memory of the host, and returns when they are there. */
static inline int kn_memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    kn_assert(at <= m->bytes && bytes <= m->bytes - at);
    return m->device->backend->memory_write(m, at, from, bytes);
}

/* Whether memory of the host can be pinned for the device. */
static inline bool kn_device_pins(const struct kn_device *d) { return d->backend->host_pin != NULL; }

/* Pins whole pages of the host's memory for the device until kn_host_unpin(at); the pages get their memory, if they have
 * none yet.  A piece that a TRANSFER names lies in one such range, or touches none.  A device may refuse, which is no
 * fault: returns KN_E*, not reported, and *why in the driver's words.  Any thread, while queues run, but not between
 * kn_awaits_begin() and kn_awaits_end(): it waits for their end.  It may take milliseconds for each MB. */
int kn_host_pin(const struct kn_device *d, void *at, size_t bytes, const char **why);

/* Before the memory is freed; no queued operation may name it. */
void kn_host_unpin(const struct kn_device *d, void *at);

/* Around operations by which a queue awaits the host.  A driver that pins memory may let other calls wait until all queues are
 * idle, and a queue that awaits the host's next call never is; so no memory of any device is pinned in between.  False: some
 * is being pinned, and no queue may await the host now. */
bool kn_awaits_begin(void);
void kn_awaits_end(void); /* by the same thread */

static inline struct kn_bytes kn_queue_bytes(const struct kn_queue_options *opt)
{
    return opt->device->backend->queue_bytes(opt);
}

int kn_queue_open(struct kn_queue **out, const struct kn_queue_options *opt);
void kn_queue_close(struct kn_queue *q);

/* The next operations run with this team: not larger, on not more nodes, than that of the options.  Not while operations
 * wait. */
static inline void kn_queue_set_team(struct kn_queue *q, struct kn_team *team) { q->backend->queue_set_team(q, team); }
static inline void kn_queue_add(struct kn_queue *q, const struct kn_op *op) { q->backend->queue_add(q, op); }
static inline int kn_queue_wait(struct kn_queue *q) { return q->backend->queue_wait(q); }

/* Whether queues and the host may wait for words in memory (kn_op_signal, kn_op_await). */
static inline bool kn_device_can_await(const struct kn_device *d)
{
    return d->backend->can_await && d->backend->can_await(d);
}

/* Returns when the queue, or one beside it, has brought the word to the value.  An error of the device, or a queue that ends
 * without the value, is returned as by kn_queue_wait(). */
static inline int kn_queue_await(struct kn_queue *q, const uint32_t *word, uint32_t value)
{
    return q->backend->queue_await(q, word, value);
}

#endif
