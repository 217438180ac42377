/* The number of slots per pool (store.h), for a given amount of memory, which may change later.
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

static size_t sum(size_t a, size_t b) { return b > SIZE_MAX - a ? SIZE_MAX : a + b; }

void off_share_slots(struct off_store *s, size_t bytes, size_t later)
{
    double now = share_of(s, bytes), most = share_of(s, sum(bytes, later));
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

/* ---- later changes ---------------------------------------------------------------------------------- */

/* The pool's slots, of those listed at the open. */
static int slots_listed(const struct off_pool *p, double share) { return kn_min(p->n_listed, slots_of(p, share)); }

/* Sets the numbers of slots for `grown` bytes beyond those of the open.  Slots that are added or taken away are empty. */
static void set_slots(struct off_store *s, size_t grown)
{
    double share = share_of(s, sum(s->bytes, grown));
    for (int i = 0; i < s->n_pool; i++) {
        struct off_pool *p = &s->pool[i];
        int more = slots_listed(p, share) - p->n_slot;
        p->n_slot += more;
        s->n_slot += more;
        s->n_empty += more;
    }
    s->grown = grown;
    set_window(s);
}

void off_store_grow(struct off_store *s, size_t bytes)
{
    size_t grown;
    pthread_mutex_lock(&s->lock);
    kn_assert(kn_add(s->grown, bytes, &grown));
    set_slots(s, grown);
    pthread_cond_signal(&s->pinnable);
    pthread_mutex_unlock(&s->lock);
    off_io_nudge(s->io);
}

/* Whether the pool's slots behind the first n can be taken away.  Cancels the prefetches there that have not begun. */
static bool can_lose(struct off_store *s, const struct off_pool *p, int n)
{
    bool can = p->n_pinned + p->n_pinning <= n;
    for (int i = p->slot0 + n; i < p->slot0 + p->n_slot; i++) {
        struct off_slot *slot = &s->slot[i];
        off_slot_settle(s, slot);
        off_slot_cancel(s, slot);
        can = can && !slot->touching && !off_slot_is_used(slot);
    }
    return can;
}

static void empty_slots(struct off_store *s, const struct off_pool *p, int n)
{
    for (int i = p->slot0 + n; i < p->slot0 + p->n_slot; i++) {
        if (s->slot[i].expert >= 0)
            off_slot_empty(s, &s->slot[i]);
        s->slot[i].touched = false;
    }
}

/* The memory is given back without the lock, because that takes a while; nothing uses it then. */
bool off_store_shrink(struct off_store *s, size_t bytes)
{
    int before[OFF_MAX_POOL];
    bool can = true;
    pthread_mutex_lock(&s->lock);
    kn_assert(bytes <= s->grown);
    double share = share_of(s, sum(s->bytes, s->grown - bytes));
    for (int i = 0; i < s->n_pool; i++) {
        before[i] = s->pool[i].n_slot;
        can = can_lose(s, &s->pool[i], slots_listed(&s->pool[i], share)) && can;
    }
    for (int i = 0; can && i < s->n_pool; i++)
        empty_slots(s, &s->pool[i], slots_listed(&s->pool[i], share));
    if (can)
        set_slots(s, s->grown - bytes);
    pthread_mutex_unlock(&s->lock);
    off_io_nudge(s->io); /* a read that was cancelled ends without an event */
    for (int i = 0; can && i < s->n_pool; i++) {
        const struct off_pool *p = &s->pool[i];
        if (p->n_slot < before[i])
            kn_map_drop(s->slot[p->slot0 + p->n_slot].place, (size_t)(before[i] - p->n_slot) * p->slot_bytes);
    }
    return can;
}
