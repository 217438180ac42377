/* tests/engine/quick.h - a simulated clock: it advances at every reading, except while the first drafter's kind drafts, so that
 * drafting costs next to nothing and pays. */
#ifndef TESTS_ENGINE_QUICK_H
#define TESTS_ENGINE_QUICK_H

#include "tests/engine/same_answers.h"

static atomic_ullong told_ns;
static atomic_bool stands;
static const struct eng_drafter_kind *model_kind;
static struct eng_drafter_kind quick_kind;

static uint64_t clock_of_steps(void)
{
    uint64_t more = atomic_load(&stands) ? 0 : 1000000;
    return atomic_fetch_add(&told_ns, more) + more;
}

static int draft_quickly(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n, int depth)
{
    atomic_store(&stands, true);
    int error = model_kind->draft(d, s, n_node, n, depth);
    atomic_store(&stands, false);
    return error;
}

static inline void set_quick_clock(void)
{
    static struct kn_io io;
    io = kn_io_system;
    io.now_ns = clock_of_steps;
    kn_io_set(&io);
}

static inline void make_quick(struct eng_engine *e)
{
    model_kind = e->drafting->drafter[0]->kind;
    quick_kind = *model_kind;
    quick_kind.draft = draft_quickly;
    for (int i = 0; i < e->drafting->n_drafter; i++)
        if (e->drafting->drafter[i]->kind == model_kind)
            e->drafting->drafter[i]->kind = &quick_kind;
}

#endif
