/* tests/emulated/late_memory.h - the structs of late.h, its memory, and the memory of the host that it pins. */
#ifndef TESTS_EMULATED_LATE_MEMORY_H
#define TESTS_EMULATED_LATE_MEMORY_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* without the library */
#include <xxhash.h>

#include "kernels/pass.h"
#include "tests/emulated/clocks.h"

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

/* The order in which queues run: by chance; as late as it can be, and only operations that a wait needs; each operation as soon as it
 * can; or first the queues that the host does not wait for. */
enum late_order { LATE_RANDOM, LATE_LAST, LATE_FIRST, LATE_OTHERS, LATE_ORDERS };

/* Whether run n takes place; runs count the orders fastest. AddressSanitizer is slow, and all orders use the same memory, so
 * under it every third run does: of 12 runs each order has one. */
static inline bool late_has_run(int n)
{
#ifdef __SANITIZE_ADDRESS__
    return n % 3 == 2;
#else
    return n >= 0;
#endif
}

/* Numbers of the allocation (of memory, or of a queue) and of the operation that fail; 0: none. */
struct late_faults {
    int open_at, op_at;
    int n_open, n_op;
    bool dead;
};

/* A copy that has run and that the host has not waited for: a source, or the bytes for a target. */
struct late_copy {
    int queue;
    uint32_t step;
    uint8_t *at, *held; /* held: the target's bytes; NULL: a source, */
    size_t bytes;
    uint64_t hash; /* with this hash */
};

/* A word that queues await: the clocks of the last operations that have written it. */
#define LATE_SIGNALS 64
struct late_word {
    const uint32_t *word;
    int n; /* of all time; the last LATE_SIGNALS are kept */
    struct late_signal {
        uint32_t value;
        struct clock clock;
    } signal[LATE_SIGNALS];
};

/* memory: all that is open, if the device has its own; it is accessible while n_accessible is over 0. */
#define LATE_MEMORIES 64
struct late_queue;
struct late_device {
    struct kn_device base;
    const struct kn_device *host;
    uint64_t random;
    enum late_order order;
    struct late_faults faults;
    struct late_memory memory[LATE_MEMORIES];
    int n_memory, n_accessible;
    struct late_pins pins;
    size_t free_bytes; /* when nothing was taken; 0: without limit */
    int n_await;       /* operations that wait for a word, in all queues */
    pthread_mutex_t mutex;

    pthread_mutex_t turn; /* held while operations are added or run; guards all below */
    struct kn_team *team; /* runs them: one thread, the caller */
    struct late_queue *queue[CLOCK_ACTORS];
    struct clock clock; /* the host's */
    struct clock_memory touched;
    struct late_copy *copy; /* in the order in which they ran */
    int n_copy, copy_room;
    struct late_word **word;
    int n_word;
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
    struct clock added; /* the steps that the host knew to be done */
};

/* Operations 1, 2, .. are numbered over the life of the queue; those from n_run + 1 on have not run. */
struct late_queue {
    struct kn_queue base;
    struct kn_queue *host;
    struct late_device *device;
    struct late_page **table; /* [LATE_TABLE], of a device without memory of its own */
    int actor, group;         /* group: the actor of the first of the queues that may await each other's words */
    struct clock clock;
    struct late_op *waiting; /* [n_added - n_run] */
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

#define LATE_HUGE ((size_t)2 << 20)

/* The huge pages that end with the memory. The kernel changes the access to them much faster than to each page of 4 KiB. */
static struct late_memory late_pages_of(struct late_memory m)
{
    size_t before = (uintptr_t)m.base % LATE_HUGE;
    return (struct late_memory){ m.base - before, m.bytes + before };
}

/* The device begins, or with `on` false ends, to use its memory. */
static void late_access(struct late_device *d, bool on)
{
    if (!late_is_apart(d))
        return;
    pthread_mutex_lock(&d->mutex);
    d->n_accessible += on ? 1 : -1;
    for (int i = 0; i < d->n_memory && d->n_accessible == on; i++) {
        struct late_memory m = late_pages_of(d->memory[i]);
        if (mprotect(m.base, m.bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE))
            abort();
    }
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

/* When nothing is open any more. */
static void late_free(struct late_device *d)
{
    for (int i = 1; i < CLOCK_ACTORS; i++)
        if (d->queue[i])
            return;
    if (d->n_memory)
        return;
    kn_assert(!d->n_copy || d->faults.dead);
    for (int i = 0; i < d->n_copy; i++)
        free(d->copy[i].held);
    for (int i = 0; i < d->n_word; i++)
        free(d->word[i]);
    free(d->copy);
    free(d->word);
    clock_free(&d->touched);
    kn_team_close(d->team);
    d->copy = NULL;
    d->word = NULL;
    d->team = NULL;
    d->n_copy = d->copy_room = d->n_word = 0;
}

/* Whether an allocation has the number that fails. */
static bool late_open_fails(struct late_device *d)
{
    struct late_faults *f = &d->faults;
    if (++f->n_open != f->open_at && !f->dead)
        return false;
    kn_fail(KN_ENOMEM, "the emulated device %s", f->dead ? "has failed" : "is out of memory");
    return true;
}

/* Memory that is closed: nothing may wait to touch it. */
static void late_forget(struct late_device *d, const uint8_t *base, size_t bytes)
{
    pthread_mutex_lock(&d->turn);
    clock_forget(&d->touched, base, bytes);
    for (int i = 0; i < d->n_copy; i++)
        if (d->copy[i].at < base + bytes && base < d->copy[i].at + d->copy[i].bytes) {
            if (!d->faults.dead)
                snprintf(late_message, sizeof late_message, "memory is closed that a copy may still touch");
            free(d->copy[i].held);
            memmove(d->copy + i, d->copy + i + 1, (size_t)(--d->n_copy - i) * sizeof *d->copy);
            i--;
        }
    for (int i = 0; i < d->n_word; i++)
        if ((const uint8_t *)d->word[i]->word >= base && (const uint8_t *)d->word[i]->word < base + bytes) {
            free(d->word[i]);
            d->word[i--] = d->word[--d->n_word];
        }
    late_free(d);
    pthread_mutex_unlock(&d->turn);
}

static size_t late_apart_free(const struct kn_device *d)
{
    size_t bytes = ((const struct late_device *)d)->free_bytes;
    return bytes ? bytes : (size_t)1 << 40;
}

/* Maps memory that no thread may access yet, at the end of whole huge pages (late_pages_of). */
static uint8_t *late_map(size_t bytes)
{
    const size_t all = kn_align_up(bytes, LATE_HUGE), room = all + LATE_HUGE;
    uint8_t *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    uint8_t *first = (uint8_t *)kn_align_up((size_t)p, LATE_HUGE), *end = first + all;
    if (first > p)
        munmap(p, (size_t)(first - p));
    if (end < p + room)
        munmap(end, (size_t)(p + room - end));
    (void)madvise(first, all, MADV_HUGEPAGE); /* only slower without */
    return end - bytes;
}

static int late_apart_open(struct kn_memory *m, bool image)
{
    struct late_device *d = (struct late_device *)(uintptr_t)m->device;
    size_t bytes = kn_align_up(m->bytes + 1, LATE_PAGE);
    if (late_open_fails(d))
        return KN_ENOMEM;
    m->base = late_map(bytes);
    m->image = image ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
    if (m->image == MAP_FAILED || d->n_memory == LATE_MEMORIES)
        abort();
    pthread_mutex_lock(&d->mutex);
    d->memory[d->n_memory++] = (struct late_memory){ m->base, bytes };
    pthread_mutex_unlock(&d->mutex);
    return 0;
}

static void late_apart_close(struct kn_memory *m)
{
    struct late_device *d = (struct late_device *)(uintptr_t)m->device;
    size_t bytes = kn_align_up(m->bytes + 1, LATE_PAGE);
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < d->n_memory; i++)
        if (d->memory[i].base == m->base)
            d->memory[i] = d->memory[--d->n_memory];
    pthread_mutex_unlock(&d->mutex);
    late_forget(d, m->base, bytes);
    if (m->image)
        late_forget(d, m->image, bytes);
    struct late_memory pages = late_pages_of((struct late_memory){ m->base, bytes });
    munmap(pages.base, pages.bytes);
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

/* The host reads or writes memory now. */
static void late_host_touch(struct late_device *d, const void *at, size_t bytes, bool writes, const char *what)
{
    pthread_mutex_lock(&d->turn);
    if (!d->faults.dead && !clock_access(&d->touched, at, bytes, writes, 0, &d->clock, false) && !*late_message)
        snprintf(late_message, sizeof late_message, "%s by the host, which has not waited for an operation", what);
    pthread_mutex_unlock(&d->turn);
}

static int late_apart_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    struct late_device *d = (struct late_device *)(uintptr_t)m->device;
    pthread_mutex_lock(&d->turn);
    bool dead = d->faults.dead;
    if (!dead) {
        late_host_touch(d, m->base + at, bytes, true, "memory is written");
        late_access(d, true);
        memcpy(m->base + at, from, bytes);
        late_access(d, false);
    }
    pthread_mutex_unlock(&d->turn);
    return dead ? kn_fail(KN_EIO, "the emulated device has failed") : 0;
}

#endif
