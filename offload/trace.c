/* Recordings of fetches, and the fewest reads that a cache would have needed for them.
 *
 * A recording is an array: for each turn (one NOW fetch) the number of experts, then their numbers.  The optimum
 * is Belady's cache: it knows the future, keeps the experts that are used soonest, and gets its initial contents
 * without reads.  No real cache can reach it; its reads are a lower bound for every cache of that size.
 *
 * A cache without foresight can know at most how often each expert is used, not when.  off_trace_by_share replays the
 * recording through such a cache: it knows each expert's share of its group's turns in the recording, and evicts as
 * policy.c does. */
#include "offload/internal.h"

#include <string.h>

void off_trace_add(struct off_trace *t, const int32_t *expert, int n)
{
    if (t->room - t->n < (size_t)n + 1) {
        t->full = true;
        return;
    }
    t->item[t->n++] = n;
    memcpy(t->item + t->n, expert, (size_t)n * sizeof *expert);
    t->n += (size_t)n;
}

/* ---- the experts to evict first ---------------------------------------------------------------------------- */

struct entry {
    float key;
    int32_t expert;
}; /* the largest key is evicted first */

struct heap {
    struct entry *entry; /* [n] max-heap by key */
    size_t n;
};

static void push(struct heap *h, struct entry e)
{
    size_t at = h->n++;
    for (; at > 0 && h->entry[(at - 1) / 2].key < e.key; at = (at - 1) / 2)
        h->entry[at] = h->entry[(at - 1) / 2];
    h->entry[at] = e;
}

static int32_t pop(struct heap *h)
{
    struct entry top = h->entry[0], last = h->entry[--h->n];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && h->entry[child + 1].key > h->entry[child].key)
            child++;
        if (last.key >= h->entry[child].key)
            break;
        h->entry[at] = h->entry[child];
    }
    h->entry[at] = last;
    return top.expert;
}

/* ---- with foresight ---------------------------------------------------------------------------------------- */

#define MOST_TURNS (1 << 24) /* whole numbers up to here are exact as float */

struct future {
    int32_t *next; /* [trace items] turn of the next use after this one of the same expert */
    int32_t *now;  /* [n_expert] turn of its first use from the turn on that look_ahead, going backwards, has reached */
    bool *there;   /* [n_expert] is cached */
    struct heap heap; /* by turn of the next use; outdated entries are skipped */
    int n_there;
};

/* Goes backwards over the turns: sets f->next, and leaves the turn of each expert's first use in f->now (INT32_MAX: no
 * use). */
static void look_ahead(struct future *f, const struct off_trace *t, int n_expert, const size_t *turn, int n_turn)
{
    for (int e = 0; e < n_expert; e++)
        f->now[e] = INT32_MAX;
    for (int i = n_turn; i-- > 0;)
        for (int k = 0; k < t->item[turn[i]]; k++) {
            size_t at = turn[i] + 1 + (size_t)k;
            f->next[at] = f->now[t->item[at]];
            f->now[t->item[at]] = i;
        }
}

static void keep(struct future *f, int32_t expert, int32_t next)
{
    f->n_there += !f->there[expert];
    f->there[expert] = true;
    push(&f->heap, (struct entry){ (float)next, expert });
}

static void shrink(struct future *f, int n_slot)
{
    while (f->n_there > n_slot) {
        int32_t e = pop(&f->heap);
        f->n_there -= f->there[e]; /* else the entry is outdated: a newer one was popped first */
        f->there[e] = false;
    }
}

static uint64_t least_misses(struct future *f, const struct off_trace *t, const bool *counts, int n_expert,
                             const size_t *turn, int n_turn, int n_slot)
{
    uint64_t misses = 0;
    look_ahead(f, t, n_expert, turn, n_turn);
    for (int32_t e = 0; e < n_expert; e++)
        if (counts[e])
            keep(f, e, f->now[e]);
    shrink(f, n_slot);
    for (int i = 0; i < n_turn; i++) {
        for (int k = 0; k < t->item[turn[i]]; k++) {
            size_t at = turn[i] + 1 + (size_t)k;
            int32_t e = t->item[at];
            if (!counts[e])
                continue;
            misses += !f->there[e];
            keep(f, e, f->next[at]);
        }
        shrink(f, n_slot);
    }
    return misses;
}

int off_trace_least(const struct off_trace *t, const bool *counts, int n_expert, int n_slot, uint64_t *misses)
{
    int n_turn = 0;
    for (size_t at = 0; at < t->n; at += (size_t)t->item[at] + 1)
        n_turn++;
    size_t *turn = kn_calloc((size_t)n_turn, sizeof *turn), n = (size_t)n_expert;
    struct future f = { .next = kn_calloc(t->n, sizeof *f.next),
                        .now = kn_calloc(n, sizeof *f.now),
                        .there = kn_calloc(n, sizeof *f.there),
                        .heap.entry = kn_calloc(t->n + n, sizeof *f.heap.entry) };
    bool room = turn && f.next && f.now && f.there && f.heap.entry;
    kn_assert(n_turn < MOST_TURNS);
    for (size_t at = 0, i = 0; room && at < t->n; at += (size_t)t->item[at] + 1)
        turn[i++] = at;
    if (room)
        *misses = least_misses(&f, t, counts, n_expert, turn, n_turn, n_slot);
    kn_free(f.heap.entry);
    kn_free(f.there);
    kn_free(f.now);
    kn_free(f.next);
    kn_free(turn);
    return room ? 0 : kn_fail(KN_ENOMEM, "no memory to analyse a recording of %d turns", n_turn);
}

/* ---- without foresight ----------------------------------------------------------------------------------- */

struct shares {
    int n_expert, n_group;
    int32_t *group;   /* [n_expert] index of its group, from 0 */
    int32_t *n_turn;  /* [n_expert] turns of the group with this index */
    int32_t *n_use;   /* [n_expert] */
    bool *there;      /* [n_expert] is cached */
    struct heap heap; /* the cached experts */
};

/* Turns from a turn of `group` until the next turn of the expert's group, divided by the share of its group's turns that
 * use the expert. */
static float wait_of(const struct shares *s, int group, int32_t e)
{
    int ahead = s->group[e] - group + (s->group[e] > group ? 0 : s->n_group), turns = s->n_turn[s->group[e]];
    return s->n_use[e] ? (float)ahead * (float)turns / (float)s->n_use[e] : 1e30f;
}

/* Evicts the experts with the largest waits in a turn of `group`, until n_slot are left. */
static void evict(struct shares *s, int group, int n_slot)
{
    size_t n = s->heap.n;
    if (n <= (size_t)n_slot)
        return;
    for (s->heap.n = 0; s->heap.n < n;) { /* in place: pushing entry i writes entries 0 to i */
        int32_t e = s->heap.entry[s->heap.n].expert;
        push(&s->heap, (struct entry){ wait_of(s, group, e), e });
    }
    while (s->heap.n > (size_t)n_slot)
        s->there[pop(&s->heap)] = false;
}

/* Its key is set when experts are evicted. */
static void add(struct shares *s, int32_t e)
{
    s->there[e] = true;
    s->heap.entry[s->heap.n++].expert = e;
}

static void count_uses(struct shares *s, const struct off_trace *t, const struct off_expert *expert)
{
    for (int e = 0; e < s->n_expert; e++) {
        s->n_group += e > 0 && expert[e].group != expert[e - 1].group;
        s->group[e] = s->n_group;
    }
    s->n_group++;
    for (size_t at = 0; at < t->n; at += (size_t)t->item[at] + 1)
        for (int k = 0; k < t->item[at]; k++) {
            int32_t e = t->item[at + 1 + (size_t)k];
            s->n_use[e]++;
            s->n_turn[s->group[e]] += k == 0;
        }
}

static uint64_t misses_by_share(struct shares *s, const struct off_trace *t, const bool *counts, int n_slot)
{
    uint64_t misses = 0;
    for (int32_t e = 0; e < s->n_expert; e++)
        if (counts[e])
            add(s, e);
    evict(s, s->n_group - 1, n_slot);
    for (size_t at = 0; at < t->n; at += (size_t)t->item[at] + 1) {
        for (int k = 0; k < t->item[at]; k++) {
            int32_t e = t->item[at + 1 + (size_t)k];
            if (!counts[e] || s->there[e])
                continue;
            misses++;
            add(s, e);
        }
        if (t->item[at])
            evict(s, s->group[t->item[at + 1]], n_slot);
    }
    return misses;
}

int off_trace_by_share(const struct off_trace *t, const struct off_expert *expert, const bool *counts, int n_expert,
                       int n_slot, uint64_t *misses)
{
    size_t n = (size_t)n_expert;
    struct shares s = { .n_expert = n_expert,
                        .group = kn_calloc(n, sizeof *s.group),
                        .n_turn = kn_calloc(n, sizeof *s.n_turn),
                        .n_use = kn_calloc(n, sizeof *s.n_use),
                        .there = kn_calloc(n, sizeof *s.there),
                        .heap.entry = kn_calloc(n, sizeof *s.heap.entry) };
    bool room = s.group && s.n_turn && s.n_use && s.there && s.heap.entry;
    if (room) {
        count_uses(&s, t, expert);
        *misses = misses_by_share(&s, t, counts, n_slot);
    }
    kn_free(s.group);
    kn_free(s.n_turn);
    kn_free(s.n_use);
    kn_free(s.there);
    kn_free(s.heap.entry);
    return room ? 0 : kn_fail(KN_ENOMEM, "no memory to analyse a recording of %d experts", n_expert);
}
