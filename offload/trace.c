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

struct use {
    int32_t next, expert;
}; /* next: the turn of the next use */

struct future {
    int32_t *next; /* [trace items] turn of the next use after this one of the same expert */
    int32_t *now;  /* [n_expert] turn of its first use from the turn on that look_ahead, going backwards, has reached */
    bool *there;   /* [n_expert] is cached */
    struct use *heap; /* max-heap by next; outdated entries are skipped */
    size_t n_heap;
    int n_there;
};

static void push(struct future *f, struct use u)
{
    size_t at = f->n_heap++;
    for (; at > 0 && f->heap[(at - 1) / 2].next < u.next; at = (at - 1) / 2)
        f->heap[at] = f->heap[(at - 1) / 2];
    f->heap[at] = u;
}

static struct use pop(struct future *f)
{
    struct use top = f->heap[0], last = f->heap[--f->n_heap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < f->n_heap; at = child) {
        if (child + 1 < f->n_heap && f->heap[child + 1].next > f->heap[child].next)
            child++;
        if (last.next >= f->heap[child].next)
            break;
        f->heap[at] = f->heap[child];
    }
    f->heap[at] = last;
    return top;
}

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
    push(f, (struct use){ next, expert });
}

static void shrink(struct future *f, int n_slot)
{
    while (f->n_there > n_slot) {
        struct use u = pop(f);
        if (!f->there[u.expert]) /* outdated: a newer entry was popped first */
            continue;
        f->there[u.expert] = false;
        f->n_there--;
    }
}

static uint64_t least_misses(struct future *f, const struct off_trace *t, const bool *counts, int n_expert,
                             const size_t *turn, int n_turn, int n_slot)
{
    uint64_t misses = 0;
    look_ahead(f, t, n_expert, turn, n_turn);
    f->n_heap = 0;
    f->n_there = 0;
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
                        .heap = kn_calloc(t->n + n, sizeof *f.heap) };
    bool room = turn && f.next && f.now && f.there && f.heap;
    for (size_t at = 0, i = 0; room && at < t->n; at += (size_t)t->item[at] + 1)
        turn[i++] = at;
    if (room)
        *misses = least_misses(&f, t, counts, n_expert, turn, n_turn, n_slot);
    kn_free(f.heap);
    kn_free(f.there);
    kn_free(f.now);
    kn_free(f.next);
    kn_free(turn);
    return room ? 0 : kn_fail(KN_ENOMEM, "no memory to analyse a recording of %d turns", n_turn);
}

/* ---- without foresight ----------------------------------------------------------------------------------- */

struct rank {
    float wait;
    int32_t expert;
}; /* wait: turns until the group's next turn, divided by the share of the group's turns that use the expert; the
    * largest is evicted first */

struct shares {
    int n_expert, n_group, n_there;
    int32_t *group;    /* [n_expert] index of its group, from 0 */
    int32_t *n_turn;   /* [n_expert] turns of the group with this index */
    int32_t *n_use;    /* [n_expert] */
    int32_t *resident; /* [n_there] */
    bool *there;       /* [n_expert] is cached */
    struct rank *heap; /* [n_expert] max-heap by wait */
};

static void sift(struct rank *heap, int n, int at)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].wait > heap[child].wait)
            child++;
        if (heap[at].wait >= heap[child].wait)
            return;
        struct rank r = heap[at];
        heap[at] = heap[child];
        heap[child] = r;
    }
}

/* Evicts the experts with the largest waits in a turn of `group`, until n_slot are left. */
static void evict(struct shares *s, int group, int n_slot)
{
    int n = s->n_there;
    if (n <= n_slot)
        return;
    for (int i = 0; i < n; i++) {
        int32_t e = s->resident[i];
        int ahead = s->group[e] - group + (s->group[e] > group ? 0 : s->n_group), turns = s->n_turn[s->group[e]];
        s->heap[i] = (struct rank){ s->n_use[e] ? (float)ahead * (float)turns / (float)s->n_use[e] : 1e30f, e };
    }
    for (int at = n / 2; at-- > 0;)
        sift(s->heap, n, at);
    while (n > n_slot) {
        s->there[s->heap[0].expert] = false;
        s->heap[0] = s->heap[--n];
        sift(s->heap, n, 0);
    }
    for (s->n_there = 0; s->n_there < n; s->n_there++)
        s->resident[s->n_there] = s->heap[s->n_there].expert;
}

static void add(struct shares *s, int32_t e)
{
    s->there[e] = true;
    s->resident[s->n_there++] = e;
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
                        .resident = kn_calloc(n, sizeof *s.resident),
                        .there = kn_calloc(n, sizeof *s.there),
                        .heap = kn_calloc(n, sizeof *s.heap) };
    bool room = s.group && s.n_turn && s.n_use && s.resident && s.there && s.heap;
    if (room) {
        count_uses(&s, t, expert);
        *misses = misses_by_share(&s, t, counts, n_slot);
    }
    kn_free(s.group);
    kn_free(s.n_turn);
    kn_free(s.n_use);
    kn_free(s.resident);
    kn_free(s.there);
    kn_free(s.heap);
    return room ? 0 : kn_fail(KN_ENOMEM, "no memory to analyse a recording of %d experts", n_expert);
}
