/* Recordings of fetches, and the fewest reads that a cache would have needed for them.
 *
 * A recording is an array: for each turn (one NOW fetch) the number of experts, then their numbers.  The optimum
 * is Belady's cache: it knows the future, keeps the experts that are used soonest, and gets its initial contents
 * without reads.  No real cache can reach it; its reads are a lower bound for every cache of that size. */
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
