/* tests/emulated/late.h - a device that runs operations late: on the host, in order, but only when the queue is waited
 * for, or in part at a random moment before.  It finds callers that depend on the host's queue, which runs every
 * operation at once:
 *
 *   - the memory that an operation reads must be the same when it runs as when it was added, unless an operation before
 *     it in the queue writes there: the caller may write or free it only after a wait;
 *   - the memory that an operation writes is filled with 0xee when it is added, where no operation in the queue touches
 *     it: a caller that reads a result before a wait finds no result.
 *
 *     struct late_device d = late_device(isa, seed);     options.device = &d.base
 *     ...                                                late_found(): the first finding, or NULL
 *
 * late_device_apart() makes a device that also has memory of its own, as a GPU has.  The caller cannot read or write it
 * (the process faults), and all that operations name must lie in it but for the host's end of a TRANSFER.  New memory of
 * the device is 0, and so is the host's image: a piece that was not copied is missed.  The device must stay where it is
 * while it has memory.  It pins memory of the host, or refuses to (late_pins); a transfer must not have a part of a pinned
 * range.
 *
 * Its queues may await words, while which no memory may be pinned.  A queue runs no operation behind an AWAIT whose word has not got its value; a host that waits then for
 * the queue would wait for ever, which is found.
 *
 * kn_op_fields() names the memory that an operation reads and writes. */
#ifndef TESTS_EMULATED_LATE_H
#define TESTS_EMULATED_LATE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* without the library */
#include <xxhash.h>

#include "kernels/pass.h"

/* ---- which operation touched memory last ---------------------------------------------------------------------- */

/* Granules of 16 bytes, each with the numbers of the last operation that writes it and of the last that touches it; in
 * pages, which a hash table finds by address. */
#define LATE_GRANULE 16
#define LATE_PAGE    4096
#define LATE_TABLE   (1 << 18) /* pages */

struct late_page {
    uintptr_t number;
    uint32_t wrote[LATE_PAGE / LATE_GRANULE], touched[LATE_PAGE / LATE_GRANULE];
};

struct late_memory {
    uint8_t *base;
    size_t bytes;
};

/* Pinned memory of the host.  refuse_at: the call with this number is refused, and with refuse_all all later ones; 0: none.  room:
 * most bytes at a time; 0: no limit. */
struct late_pins {
    struct late_memory *range;
    int n, n_most, n_call, refuse_at;
    bool refuse_all;
    size_t bytes, room;
    uint64_t n_direct, n_other; /* transfers to the device, from pinned memory and from other */
};

/* memory: all that is open, if the device has its own; it is accessible while n_open is over 0. */
#define LATE_MEMORIES 64
struct late_device {
    struct kn_device base;
    const struct kn_device *host;
    uint64_t random;
    struct late_memory memory[LATE_MEMORIES];
    int n_memory, n_open;
    struct late_pins pins;
    size_t free_bytes; /* when nothing was taken; 0: without limit */
    int n_await;       /* operations that wait for a word, in all queues */
    pthread_mutex_t mutex;
};

struct late_piece {
    const char *field;
    enum kn_access access;
    uint8_t *at;
    size_t bytes;
    bool checked; /* hash: of the contents when the operation was added */
    uint64_t hash;
};

struct late_op {
    struct kn_op op;
    struct late_piece *piece;
    int n_piece, room;
};

/* Operations 1, 2, .. are numbered over the life of the queue; those from n_run + 1 on have not run. */
struct late_queue {
    struct kn_queue base;
    struct kn_queue *host;
    struct late_device *device;
    struct late_page **table;  /* [LATE_TABLE] */
    struct late_queue *beside; /* of the same owner */
    struct late_op *waiting;   /* [n_added - n_run] */
    int room;
    uint32_t n_added, n_run;
};

static char late_message[200];

static inline const char *late_found(void) { return *late_message ? late_message : NULL; }

static void late_find(const struct kn_op *op, const char *field, const char *what)
{
    if (!*late_message)
        snprintf(late_message, sizeof late_message, "%s: %s %s", kn_op_name(op->kind), field, what);
}

static struct late_page *late_page_of(struct late_queue *q, uintptr_t number)
{
    for (size_t i = kn_mix(number) % LATE_TABLE;; i = (i + 1) % LATE_TABLE) {
        if (!q->table[i]) {
            q->table[i] = calloc(1, sizeof **q->table);
            q->table[i]->number = number;
        }
        if (q->table[i]->number == number)
            return q->table[i];
    }
}

/* Whether an operation that has not run writes, or with `any` reads, some of the piece. */
static bool late_is_touched(struct late_queue *q, const struct late_piece *p, bool any)
{
    uintptr_t first = (uintptr_t)p->at / LATE_GRANULE, last = ((uintptr_t)p->at + p->bytes - 1) / LATE_GRANULE;
    const uint32_t per_page = LATE_PAGE / LATE_GRANULE;
    for (uintptr_t g = first; g <= last; g++) {
        const struct late_page *page = late_page_of(q, g / per_page);
        if ((any ? page->touched : page->wrote)[g % per_page] > q->n_run)
            return true;
    }
    return false;
}

static void late_mark(struct late_queue *q, const struct late_piece *p, uint32_t number)
{
    uintptr_t first = (uintptr_t)p->at / LATE_GRANULE, last = ((uintptr_t)p->at + p->bytes - 1) / LATE_GRANULE;
    const uint32_t per_page = LATE_PAGE / LATE_GRANULE;
    for (uintptr_t g = first; g <= last; g++) {
        struct late_page *page = late_page_of(q, g / per_page);
        page->touched[g % per_page] = number;
        if (p->access != KN_READS)
            page->wrote[g % per_page] = number;
    }
}

/* ---- memory of its own ---------------------------------------------------------------------------------------- */

static inline bool late_is_apart(const struct late_device *d) { return d->base.backend->own_memory; }

/* The device begins, or with `on` false ends, to use its memory. */
static void late_access(struct late_device *d, bool on)
{
    if (!late_is_apart(d))
        return;
    pthread_mutex_lock(&d->mutex);
    d->n_open += on ? 1 : -1;
    for (int i = 0; i < d->n_memory && d->n_open == on; i++)
        if (mprotect(d->memory[i].base, d->memory[i].bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE))
            abort();
    pthread_mutex_unlock(&d->mutex);
}

static bool late_is_ours(const struct late_device *d, const void *at, size_t bytes)
{
    for (int i = 0; i < d->n_memory; i++) {
        uintptr_t from = (uintptr_t)at - (uintptr_t)d->memory[i].base;
        if (from < d->memory[i].bytes && bytes <= d->memory[i].bytes - from)
            return true;
    }
    return false;
}

static size_t late_apart_free(const struct kn_device *d)
{
    size_t bytes = ((const struct late_device *)d)->free_bytes;
    return bytes ? bytes : (size_t)1 << 40;
}

static int late_apart_open(struct kn_memory *m, bool image)
{
    struct late_device *d = (struct late_device *)(uintptr_t)m->device;
    size_t bytes = kn_align_up(m->bytes + 1, LATE_PAGE);
    m->base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->image = image ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    if (m->base == MAP_FAILED || m->image == MAP_FAILED || d->n_memory == LATE_MEMORIES)
        abort();
    d->memory[d->n_memory++] = (struct late_memory){ m->base, bytes };
    return 0;
}

static void late_apart_close(struct kn_memory *m)
{
    struct late_device *d = (struct late_device *)(uintptr_t)m->device;
    size_t bytes = kn_align_up(m->bytes + 1, LATE_PAGE);
    for (int i = 0; i < d->n_memory; i++)
        if (d->memory[i].base == m->base)
            d->memory[i] = d->memory[--d->n_memory];
    munmap(m->base, bytes);
    if (m->image)
        munmap(m->image, bytes);
}

static int late_host_pin(const struct kn_device *device, void *at, size_t bytes, const char **why)
{
    struct late_device *d = (struct late_device *)(uintptr_t)device;
    struct late_pins *p = &d->pins;
    if ((uintptr_t)at % LATE_PAGE || bytes % LATE_PAGE || !bytes)
        abort();
    if (__atomic_load_n(&d->n_await, __ATOMIC_RELAXED))
        snprintf(late_message, sizeof late_message, "memory is pinned while a queue awaits the host");
    pthread_mutex_lock(&d->mutex);
    p->n_call++;
    bool refused = p->refuse_at && (p->refuse_all ? p->n_call >= p->refuse_at : p->n_call == p->refuse_at);
    refused |= p->room && p->bytes + bytes > p->room;
    if (!refused) {
        p->range = realloc(p->range, sizeof *p->range * (size_t)(p->n + 1));
        p->range[p->n++] = (struct late_memory){ at, bytes };
        p->n_most = kn_max(p->n_most, p->n);
        p->bytes += bytes;
    }
    pthread_mutex_unlock(&d->mutex);
    *why = "there is a limit";
    return refused ? KN_ENOMEM : 0;
}

static void late_host_unpin(const struct kn_device *device, void *at)
{
    struct late_device *d = (struct late_device *)(uintptr_t)device;
    struct late_pins *p = &d->pins;
    pthread_mutex_lock(&d->mutex);
    int i = 0;
    while (i < p->n && p->range[i].base != at)
        i++;
    if (i == p->n)
        abort();
    p->bytes -= p->range[i].bytes;
    (void)*(volatile uint8_t *)at; /* it must still be there */
    p->range[i] = p->range[--p->n];
    if (!p->n) {
        free(p->range);
        p->range = NULL;
    }
    pthread_mutex_unlock(&d->mutex);
}

/* A transfer to the device reads pinned memory, or memory of which no byte is pinned. */
static void late_check_pins(struct late_device *d, const struct kn_op *op)
{
    const struct kn_op_transfer *t = &op->transfer;
    bool whole = false, meets = false;
    if (op->kind != KN_OP_TRANSFER || late_is_ours(d, t->from, t->bytes))
        return;
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < d->pins.n; i++) {
        const struct late_memory *m = &d->pins.range[i];
        meets |= t->from < m->base + m->bytes && m->base < t->from + t->bytes;
        whole |= t->from >= m->base && t->from + t->bytes <= m->base + m->bytes;
    }
    *(whole ? &d->pins.n_direct : &d->pins.n_other) += 1;
    pthread_mutex_unlock(&d->mutex);
    if (meets && !whole)
        late_find(op, "from", "is pinned in part");
}

static int late_apart_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    struct late_device *d = (struct late_device *)(uintptr_t)m->device;
    late_access(d, true);
    memcpy(m->base + at, from, bytes);
    late_access(d, false);
    return 0;
}

/* ---- the queue ------------------------------------------------------------------------------------------------ */

static void late_note(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes)
{
    struct late_op *o = arg;
    if (o->n_piece == o->room)
        o->piece = realloc(o->piece, sizeof *o->piece * (size_t)(o->room = 2 * o->room + 64));
    o->piece[o->n_piece++] = (struct late_piece){ field, access, (uint8_t *)(uintptr_t)at, bytes, false, 0 };
}

/* The pieces of an operation that the host may touch too early, on a device with memory of its own. */
static void late_note_host(struct late_op *o)
{
    const struct kn_op *op = &o->op;
    if (op->kind == KN_OP_TRANSFER) {
        late_note(o, "from", KN_READS, op->transfer.from, op->transfer.bytes);
        late_note(o, "to", op->transfer.when ? KN_CHANGES : KN_WRITES, op->transfer.to, op->transfer.bytes);
    }
}

struct late_check {
    const struct late_device *device;
    const struct kn_op *op;
};

/* Checks that a piece lies in the device's memory; of a transfer, one of its two ends. */
static void late_check_place(void *arg, const char *field, enum kn_access access, const void *at, size_t bytes)
{
    const struct late_check *c = arg;
    (void)access;
    if (c->op->kind == KN_OP_TRANSFER && strcmp(field, "when")) {
        if (!late_is_ours(c->device, c->op->transfer.from, bytes) ==
            !late_is_ours(c->device, c->op->transfer.to, bytes))
            late_find(c->op, field, "is not one end in the device's memory");
    } else if (!late_is_ours(c->device, at, bytes) && strcmp(field, "done")) { /* words are the host's */
        late_find(c->op, field, "is not in the device's memory");
    }
}

static bool late_reads(const struct late_piece *p) { return p->access == KN_READS || p->access == KN_CHANGES; }

static bool late_is_blocked(const struct late_op *o)
{
    return o->op.kind == KN_OP_AWAIT && !kn_word_reached(o->op.await.word, o->op.await.value);
}

/* Runs the first operations that wait, at most `most`. */
static void late_run(struct late_queue *q, uint32_t most)
{
    uint32_t n = 0;
    late_access(q->device, true);
    for (; n < most && !late_is_blocked(&q->waiting[n]); n++) {
        struct late_op *o = &q->waiting[n];
        for (int k = 0; k < o->n_piece; k++)
            if (o->piece[k].checked && XXH3_64bits(o->piece[k].at, o->piece[k].bytes) != o->piece[k].hash)
                late_find(&o->op, o->piece[k].field, "was changed after the operation was added, before it ran");
        if (late_is_apart(q->device))
            kn_op_fields(&o->op, late_check_place, &(struct late_check){ q->device, &o->op });
        late_check_pins(q->device, &o->op);
        kn_queue_add(q->host, &o->op);
        kn_queue_wait(q->host);
        if (o->op.kind == KN_OP_AWAIT)
            __atomic_fetch_sub(&q->device->n_await, 1, __ATOMIC_RELAXED);
        o->n_piece = 0;
        q->n_run++;
    }
    late_access(q->device, false);
    for (uint32_t i = n; i < n + q->n_added - q->n_run; i++) { /* the rest moves up; each keeps its array of pieces */
        struct late_op moved = q->waiting[i - n];
        q->waiting[i - n] = q->waiting[i];
        q->waiting[i] = moved;
    }
}

static uint32_t late_below(struct late_queue *q, uint32_t n)
{
    return (uint32_t)(kn_mix(q->device->random += KN_GOLDEN) % n);
}

static void late_add(struct kn_queue *queue, const struct kn_op *op)
{
    struct late_queue *q = (struct late_queue *)queue;
    int n = (int)(q->n_added - q->n_run);
    if (n == q->room) {
        q->waiting = realloc(q->waiting, sizeof *q->waiting * (size_t)(q->room = 2 * q->room + 16));
        memset(q->waiting + n, 0, sizeof *q->waiting * (size_t)(q->room - n));
    }
    struct late_op *o = &q->waiting[n];
    o->op = *op;
    if (op->kind == KN_OP_AWAIT)
        __atomic_fetch_add(&q->device->n_await, 1, __ATOMIC_RELAXED);
    if (late_is_apart(q->device))
        late_note_host(o);
    else
        kn_op_fields(op, late_note, o);
    for (int i = 0; i < o->n_piece; i++) {
        struct late_piece *p = &o->piece[i];
        p->checked = late_reads(p) && !late_is_ours(q->device, p->at, p->bytes) && !late_is_touched(q, p, false);
        if (p->checked)
            p->hash = XXH3_64bits(p->at, p->bytes);
    }
    uint32_t number = ++q->n_added;
    for (int i = 0; i < o->n_piece; i++) /* inputs of the operation itself are not filled */
        if (late_reads(&o->piece[i]))
            late_mark(q, &o->piece[i], number);
    for (int i = 0; i < o->n_piece; i++)
        if (!late_reads(&o->piece[i]) && !late_is_ours(q->device, o->piece[i].at, o->piece[i].bytes) &&
            !late_is_touched(q, &o->piece[i], true))
            memset(o->piece[i].at, 0xee, o->piece[i].bytes);
    for (int i = 0; i < o->n_piece; i++)
        if (!late_reads(&o->piece[i]))
            late_mark(q, &o->piece[i], number);
    if (late_below(q, 4) == 0)
        late_run(q, late_below(q, (uint32_t)n + 2));
}

static int late_error;  /* set by a test: the device has failed */
static int late_n_wait; /* waits, of all queues */

static uint32_t late_n(const struct late_queue *q) { return q->n_added - q->n_run; }

/* Runs some operations of a queue, or of the one beside it.  False: none can run. */
static bool late_step(struct late_queue *q)
{
    uint32_t before = q->n_run + (q->beside ? q->beside->n_run : 0);
    struct late_queue *first = q->beside && late_below(q, 2) ? q->beside : q;
    for (int i = 0; i < 2 && first; i++, first = first == q ? q->beside : q) {
        if (late_n(first))
            late_run(first, 1 + late_below(q, late_n(first)));
        if (q->n_run + (q->beside ? q->beside->n_run : 0) != before)
            return true;
    }
    return false;
}

static int late_n_await; /* waits for words */

static int late_wait(struct kn_queue *queue)
{
    struct late_queue *q = (struct late_queue *)queue;
    late_n_wait++;
    while (late_n(q))
        if (!late_step(q)) {
            late_find(&q->waiting[0].op, "the operation", "waits for the host, which waits for it");
            return KN_EIO;
        }
    return late_error;
}

static bool late_can_await(const struct kn_device *d) { return late_is_apart((const struct late_device *)d); }

static int late_await(struct kn_queue *queue, const uint32_t *word, uint32_t value)
{
    struct late_queue *q = (struct late_queue *)queue;
    late_n_await++;
    while (!late_error && !kn_word_reached(word, value))
        if (!late_step(q)) {
            snprintf(late_message, sizeof late_message, "the host waits for a word that no operation writes");
            return KN_EIO;
        }
    return late_error;
}

static struct kn_queue_options late_host_options(const struct kn_queue_options *opt)
{
    struct kn_queue_options host = *opt;
    host.device = ((const struct late_device *)opt->device)->host;
    return host;
}

static struct kn_bytes late_bytes(const struct kn_queue_options *opt)
{
    struct kn_queue_options host = late_host_options(opt);
    return kn_queue_bytes(&host);
}

static int late_open(struct kn_queue **out, const struct kn_queue_options *opt)
{
    struct kn_queue_options options = late_host_options(opt);
    struct kn_queue *host;
    int error = kn_queue_open(&host, &options);
    if (error)
        return error;
    struct late_queue *q = calloc(1, sizeof *q);
    *q = (struct late_queue){ .base.backend = opt->device->backend,
                              .host = host,
                              .device = (struct late_device *)(uintptr_t)opt->device,
                              .beside = (struct late_queue *)opt->beside,
                              .table = calloc(LATE_TABLE, sizeof *q->table) };
    if (q->beside)
        q->beside->beside = q;
    *out = &q->base;
    return 0;
}

static void late_close(struct kn_queue *queue)
{
    struct late_queue *q = (struct late_queue *)queue;
    if (q->beside)
        q->beside->beside = NULL;
    if (q->n_added > q->n_run)
        late_find(&q->waiting[0].op, "the operation", "had not run when its queue was closed");
    kn_queue_close(q->host);
    for (int i = 0; i < q->room; i++)
        free(q->waiting[i].piece);
    for (int i = 0; i < LATE_TABLE; i++)
        free(q->table[i]);
    free(q->waiting);
    free(q->table);
    free(q);
}

static void late_set_team(struct kn_queue *queue, struct kn_team *team)
{
    struct late_queue *q = (struct late_queue *)queue;
    if (q->n_added > q->n_run)
        late_find(&q->waiting[0].op, "the operation", "had not run when the team was changed");
    kn_queue_set_team(q->host, team);
}

static int late_memory_open(struct kn_memory *m, bool image)
{
    return ((const struct late_device *)m->device)->host->backend->memory_open(m, image);
}

static void late_memory_close(struct kn_memory *m)
{
    ((const struct late_device *)m->device)->host->backend->memory_close(m);
}

static int late_memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    return ((const struct late_device *)m->device)->host->backend->memory_write(m, at, from, bytes);
}

#define LATE_QUEUE                                                                                                     \
    .queue_bytes = late_bytes, .queue_open = late_open, .queue_close = late_close, .queue_set_team = late_set_team,    \
    .queue_add = late_add, .queue_wait = late_wait, .can_await = late_can_await, .queue_await = late_await

static inline struct late_device late_device(enum kn_isa isa, uint64_t seed)
{
    static const struct kn_backend backend = { .name = "late",
                                               .memory_open = late_memory_open,
                                               .memory_close = late_memory_close,
                                               .memory_write = late_memory_write,
                                               LATE_QUEUE };
    return (struct late_device){
        .base.backend = &backend, .host = kn_host_device(isa), .random = seed, .mutex = PTHREAD_MUTEX_INITIALIZER
    };
}

static inline struct late_device late_device_apart(enum kn_isa isa, uint64_t seed)
{
    static const struct kn_backend backend = { .name = "late",
                                               .own_memory = true,
                                               .memory_free = late_apart_free,
                                               .memory_open = late_apart_open,
                                               .memory_close = late_apart_close,
                                               .memory_write = late_apart_write,
                                               .host_pin = late_host_pin,
                                               .host_unpin = late_host_unpin,
                                               LATE_QUEUE };
    struct late_device d = late_device(isa, seed);
    d.base.backend = &backend;
    return d;
}

#endif
