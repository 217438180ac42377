/* Filling: while slots are empty, one thread reads the most probable experts, at the lowest priority.  After that it
 * looks once a second whether the model's files have changed.  Other threads touch the memory of slots in advance, in
 * the order in which the filler uses them. */
#include "offload/store.h"

#include <stdlib.h>
#include <time.h>

#define N_FILL 4 /* experts that the filler reads at a time */
#define LOOK_S 1

struct rank {
    float share;
    int in_group;
    int32_t expert;
};

static int by_rank(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->share != y->share)
        return x->share > y->share ? -1 : 1;
    if (x->in_group != y->in_group)
        return x->in_group < y->in_group ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

/* Sorts the experts into s->fill, the most often used first.  Experts used equally often are sorted by their index in
 * their group, so that all groups get some of the slots. */
int off_fill_order(struct off_store *s)
{
    struct rank *rank = kn_calloc((size_t)s->n_expert, sizeof *rank);
    if (!rank)
        return kn_fail(KN_ENOMEM, "no memory to rank %d experts", s->n_expert);
    for (int32_t e = 0, first = 0; e < s->n_expert; e++) {
        if (s->expert[e].group != s->expert[first].group)
            first = e;
        rank[e] = (struct rank){ off_policy_share(s->policy, e), e - first, e };
    }
    qsort(rank, (size_t)s->n_expert, sizeof *rank, by_rank);
    for (int i = 0; i < s->n_expert; i++)
        s->fill[i] = rank[i].expert;
    kn_free(rank);
    return 0;
}

static struct off_slot *find_empty(struct off_store *s, int pool)
{
    const struct off_pool *p = &s->pool[pool];
    for (int i = p->slot0; i < p->slot0 + p->n_slot; i++)
        if (s->slot[i].state == SLOT_EMPTY)
            return &s->slot[i];
    return NULL;
}

/* Starts reads into empty slots until N_FILL are under way; *next: index in s->fill of the next expert to try.  Returns
 * the number under way; 0: the filler is finished. */
static int fill_slots(struct off_store *s, int *next)
{
    int n_under_way = 0;
    for (int i = 0; i < s->n_listed; i++) {
        off_slot_settle(s, &s->slot[i]);
        n_under_way += s->slot[i].state == SLOT_READING && s->slot[i].urgency == OFF_IDLE;
    }
    for (; s->n_empty > 0 && n_under_way < N_FILL && *next < s->n_expert; ++*next) {
        int32_t e = s->fill[*next];
        struct off_slot *slot = s->slot_of[e] < 0 ? find_empty(s, s->pool_of[e]) : NULL;
        if (slot) {
            off_slot_read(s, slot, e, OFF_IDLE);
            n_under_way++;
        }
    }
    return n_under_way;
}

/* Looks at the model's files every LOOK_S, until the store closes.  Call with the lock held. */
static void watch_files(struct off_store *s)
{
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    while (!s->stop) {
        next.tv_sec += LOOK_S;
        while (!s->stop && pthread_cond_timedwait(&s->ending, &s->lock, &next) == 0)
            ;
        if (s->stop)
            return;
        pthread_mutex_unlock(&s->lock);
        off_watch_look(s->watch);
        pthread_mutex_lock(&s->lock);
        clock_gettime(CLOCK_MONOTONIC, &next);
    }
}

void *off_fill_main(void *arg)
{
    struct off_store *s = arg;
    int next = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        uint64_t seen = off_io_events(s->io);
        if (fill_slots(s, &next) == 0)
            break;
        pthread_mutex_unlock(&s->lock);
        off_io_wait(s->io, seen);
        pthread_mutex_lock(&s->lock);
    }
    s->filled = true;
    watch_files(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- touching ---------------------------------------------------------------------------------------- */

/* The next slot to touch, from each pool in turn, because experts of all pools are read side by side.  NULL: all slots are
 * touched, or the store is closing. */
static struct off_slot *next_touch(struct off_store *s, size_t *bytes)
{
    struct off_slot *found = NULL;
    pthread_mutex_lock(&s->lock);
    while (!found && !s->stop && s->touch_slot < s->n_slot) {
        const struct off_pool *p = &s->pool[s->touch_pool];
        found = s->touch_slot < p->n_slot ? &s->slot[p->slot0 + s->touch_slot] : NULL;
        if (found)
            found->touching = true;
        *bytes = p->slot_bytes;
        s->touch_pool = (s->touch_pool + 1) % s->n_pool;
        s->touch_slot += s->touch_pool == 0;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

void *off_touch_main(void *arg)
{
    struct off_store *s = arg;
    struct off_slot *slot;
    size_t bytes;
    kn_thread_give_way();
    while ((slot = next_touch(s, &bytes))) {
        kn_map_touch(slot->place, bytes);
        pthread_mutex_lock(&s->lock);
        slot->touched = true;
        slot->touching = false;
        pthread_cond_signal(&s->pinnable);
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}
