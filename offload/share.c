/* The number of slots per pool (store.h), for a given amount of memory.
 *
 * Every pool gets two slots; the remaining memory is divided so that every pool has slots for the same share of its
 * remaining experts. */
#include "offload/store.h"

#include <string.h>

#define LEAST_SLOT   2
#define WINDOW_BYTES ((size_t)20 << 20) /* the smallest window: experts of so many bytes, */
#define LEAST_WINDOW 2                  /* at least this many */
#define SMALL_WINDOW 8                  /* and at most this many */
#define MOST_WINDOW  24                 /* the largest window */
#define WINDOW_PART  24                 /* between the two, the window is 1/WINDOW_PART of the experts without a slot */

int off_sizes_find(const struct off_sizes *s, size_t bytes)
{
    int at = 0;
    while (at < s->n && s->bytes[at] < bytes)
        at++;
    return at;
}

/* If the list is full, a larger size replaces the largest one, and a smaller one is left out: its experts use the next larger
 * size. */
void off_sizes_add(struct off_sizes *s, size_t bytes)
{
    int at = off_sizes_find(s, bytes);
    if (at < s->n && s->bytes[at] == bytes)
        return;
    if (s->n == OFF_SLOT_SIZES) {
        if (at == OFF_SLOT_SIZES)
            s->bytes[OFF_SLOT_SIZES - 1] = bytes;
        return;
    }
    memmove(&s->bytes[at + 1], &s->bytes[at], (size_t)(s->n - at) * sizeof *s->bytes);
    s->bytes[at] = bytes;
    s->n++;
}

int off_share_pools(const struct off_expert *expert, int n_expert, int n_node, struct off_pool *pool, uint8_t *pool_of)
{
    struct off_sizes size = { .n = 0 };
    for (int e = 0; e < n_expert; e++)
        off_sizes_add(&size, off_slot_bytes(&expert[e]));
    for (int i = 0; i < size.n * n_node; i++)
        pool[i] = (struct off_pool){ .slot_bytes = size.bytes[i / n_node], .node = i % n_node };
    for (int e = 0, first = 0; e < n_expert; e++) {
        int at = off_sizes_find(&size, off_slot_bytes(&expert[e]));
        if (expert[e].group != expert[first].group)
            first = e;
        at = at * n_node + (e - first) % n_node;
        pool[at].n_expert++;
        pool[at].experts_bytes += pool[at].slot_bytes;
        if (pool_of)
            pool_of[e] = (uint8_t)at;
    }
    return size.n * n_node;
}

static size_t least_bytes(const struct off_pool *pool, int n)
{
    size_t bytes = 0;
    while (n-- > 0)
        bytes += (size_t)kn_min(LEAST_SLOT, pool[n].n_expert) * pool[n].slot_bytes;
    return bytes;
}

size_t off_store_bytes(const struct off_expert *expert, int n_expert)
{
    struct off_pool pool[OFF_SLOT_SIZES]; /* for one node */
    size_t bytes = 0;
    for (int i = off_share_pools(expert, n_expert, 1, pool, NULL); i-- > 0;)
        bytes += pool[i].experts_bytes;
    return bytes;
}

size_t off_store_least(const struct off_expert *expert, int n_expert)
{
    struct off_pool pool[OFF_MAX_POOL];
    struct kn_machine machine;
    kn_machine_get(&machine);
    return least_bytes(pool, off_share_pools(expert, n_expert, machine.n_node, pool, NULL));
}

/* The share of its experts beyond the first two for which every pool gets slots, with `bytes` of memory; 0..1. */
static double share_of(const struct off_store *s, size_t bytes)
{
    size_t least = least_bytes(s->pool, s->n_pool), all = off_store_bytes(s->expert, s->n_expert);
    return bytes >= all ? 1 : (double)(bytes - least) / (double)(all - least);
}

static int slots_of(const struct off_pool *p, double share)
{
    int first = kn_min(LEAST_SLOT, p->n_expert);
    return first + (int)(share * (p->n_expert - first));
}

/* The slots of the window keep nothing from one pass to the next, so a pass that uses all experts reads
 * (experts - slots + window): at most 1/WINDOW_PART more than without a window, except where few experts have no slot.
 * There the window is as small as the disk allows: WINDOW_BYTES are two to three times the bytes in flight that keep a
 * drive busy (off_reader_most). With a window of 8 experts of 2.65 MB the disk had nothing to read for a quarter of the
 * time, with 16 to 32 for an eighth (evals/results/offload/window-speed-2026-11-24.md). */
static void set_window(struct off_store *s)
{
    size_t all = off_store_bytes(s->expert, s->n_expert), n = all ? WINDOW_BYTES * (size_t)s->n_expert / all : 0;
    int small = n < SMALL_WINDOW ? kn_max(LEAST_WINDOW, (int)n + 1) : SMALL_WINDOW;
    s->window = kn_max(small, kn_min(MOST_WINDOW, (s->n_expert - s->n_slot) / WINDOW_PART));
}

void off_share_slots(struct off_store *s, size_t bytes, size_t later)
{
    double now = share_of(s, bytes), most = share_of(s, later > SIZE_MAX - bytes ? SIZE_MAX : bytes + later);
    for (int i = 0; i < s->n_pool; i++) {
        struct off_pool *p = &s->pool[i];
        p->slot0 = s->n_listed;
        p->n_slot = slots_of(p, now);
        p->n_listed = slots_of(p, most);
        s->n_slot += p->n_slot;
        s->n_listed += p->n_listed;
    }
    s->n_empty = s->n_slot;
    s->bytes = bytes;
    set_window(s);
}

/* Adds empty slots to the pools, up to the number listed for them when the store was opened. */
void off_store_grow(struct off_store *s, size_t bytes)
{
    pthread_mutex_lock(&s->lock);
    s->bytes = bytes > SIZE_MAX - s->bytes ? SIZE_MAX : s->bytes + bytes;
    double share = share_of(s, s->bytes);
    for (int i = 0; i < s->n_pool; i++) {
        struct off_pool *p = &s->pool[i];
        int more = kn_min(p->n_listed, slots_of(p, share)) - p->n_slot;
        p->n_slot += more;
        s->n_slot += more;
        s->n_empty += more;
    }
    set_window(s);
    pthread_cond_signal(&s->pinnable);
    pthread_mutex_unlock(&s->lock);
    off_io_nudge(s->io);
}
