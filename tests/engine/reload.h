/* tests/engine/reload.h - drafters that are unloaded and loaded again between two steps: their keys and values are lost, and
 * answers and drafts stay the same. */
#ifndef TESTS_ENGINE_RELOAD_H
#define TESTS_ENGINE_RELOAD_H

#include "tests/engine/same_answers.h"

/* Each drafter with a network is loaded afterwards, unless the store is busy: then a later call loads it. */
static inline void reload(struct eng_engine *e)
{
    struct eng_drafting *g = e->drafting;
    for (int i = 0; i < g->n_drafter; i++) {
        if (!g->drafter[i]->kind->unload)
            continue;
        if (!g->drafter[i]->upkeep.unloaded)
            eng_draft_unload(g, i);
        eng_draft_load_again(g, i);
        assert_false(g->drafter[i]->broken);
    }
}

/* Before one of 12 steps, heads that read features of all tokens are unloaded, or loaded again. Returns whether one was. */
static inline bool heads_come_and_go(struct eng_engine *e)
{
    struct eng_drafting *g = e->drafting;
    bool any = false;
    for (int i = 0; i < g->n_drafter; i++) {
        if (!g->drafter[i]->reads_last_layer || below(12))
            continue;
        if (g->drafter[i]->upkeep.unloaded)
            eng_draft_load_again(g, i);
        else
            eng_draft_unload(g, i);
        any = true;
    }
    return any;
}

/* For asked_meddle: before one of 16 steps. */
static inline void reload_at_times(struct eng_engine *e)
{
    if (below(16) == 0)
        reload(e);
}

#endif
