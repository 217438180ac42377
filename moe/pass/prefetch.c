/* Prefetch of experts during a pass: which reads a layer requests for the next one, and when they are released.
 *
 * Two predictors name experts: prefetch_router.c runs the next layer's router on the present rows, prefetch_token.c
 * remembers the experts that a token used last time.  Predictions by token are requested between passes
 * (moe_context_expect()), with one ticket for each layer; predictions by router are requested here, for one layer at a
 * time, and replace the ticket by token for this layer.  When the experts that a layer really uses are requested, the
 * layer's open ticket is released.
 *
 * On request the accuracy of both predictors is counted (moe_context_watch()), at distances up to MOE_FAR layers. */
#include "moe/pass/pass.h"

#include <string.h>

/* ---- accuracy -------------------------------------------------------------------------------------------- */

static bool *seen_of(const struct moe_context *c, int layer, enum moe_sight_of how)
{
    return c->guess.seen + ((size_t)(layer % (MOE_FAR + 1)) * MOE_SIGHTS + how) * (size_t)c->model->desc.n_expert;
}

static void see_far(struct moe_context *c, int layer, int far)
{
    int expert0 = c->model->layer[layer + far].expert0;
    bool *seen = seen_of(c, layer + far, (enum moe_sight_of)(MOE_SIGHT_FAR1 + far - 1));
    memset(seen, 0, (size_t)c->model->desc.n_expert * sizeof *seen);
    for (int n = moe_guess_experts(c, layer + far); n-- > 0;)
        seen[c->guess.expert[n] - expert0] = true;
}

/* Compares the predictions for this layer with the experts that its rows chose, then predicts for later layers. */
static void count_accuracy(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct kn_plan *p = &c->plan;
    if (!c->guess.sight)
        return;
    moe_token_history_mark(c, layer, seen_of(c, layer, MOE_SIGHT_TOKEN));
    for (int how = 0; how < MOE_SIGHTS; how++) {
        struct moe_sight *s = &c->guess.sight[(size_t)layer * MOE_SIGHTS + (size_t)how];
        bool *seen = seen_of(c, layer, (enum moe_sight_of)how);
        if (how < MOE_FAR && (layer <= how || !moe_has_experts(d, layer - how - 1)))
            continue; /* no layer with experts lies how + 1 layers earlier: nothing was predicted */
        for (int e = 0; e < d->n_expert; e++)
            s->guessed += seen[e];
        for (int i = 0; i < *p->n_expert; i++)
            s->right += seen[p->expert[i] - c->model->layer[layer].expert0];
        s->used += (uint64_t)*p->n_expert;
    }
    for (int far = 1; far <= MOE_FAR && layer + far < d->n_layer; far++)
        if (moe_has_experts(d, layer + far))
            see_far(c, layer, far);
}

void moe_context_watch(struct moe_context *c, struct moe_sight *sight) { c->guess.sight = sight; }

/* ---- the pass -------------------------------------------------------------------------------------------- */

void moe_prefetch_release(struct moe_context *c, int layer)
{
    if (c->present.only) /* requests are for the next pass by all experts */
        return;
    moe_recall_end(c, layer);
    if (c->guess.ticket.n)
        off_release(c->model->store, &c->guess.ticket);
}

/* A prediction for a layer that drops rows would name experts that no row needs. */
int moe_prefetched_layer(const struct moe_context *c, int layer)
{
    int next = moe_next_sparse(&c->model->desc, layer);
    return c->present.only || next == c->model->desc.n_layer || off_store_is_whole(c->model->store) ||
                   moe_drops_rows(c, next)
               ? -1
               : next;
}

static void request(struct moe_context *c, int next, int n)
{
    const struct moe_model *m = c->model;
    struct moe_guess *g = &c->guess;
    int n_rest = 0;
    for (int i = 0; i < n; i++) /* the device has the others */
        if (!moe_is_resident(c, g->expert[i]))
            g->expert[n_rest++] = g->expert[i];
    n = n_rest;
    moe_recall_end(c, next); /* the router predicts better than the tokens, and its reads have a higher urgency */
    off_fetch(m->store, g->expert, g->mark, n, OFF_SOON, &g->ticket);
}

void moe_prefetch_begin(struct moe_context *c)
{
    if (!c->present.only)
        moe_recall_begin(c);
}

void moe_prefetch_layer(struct moe_context *c, int layer, const struct moe_listing *g)
{
    int next = g ? g->next : moe_prefetched_layer(c, layer); /* the store may have changed since the listing */
    moe_prefetch_release(c, layer);
    count_accuracy(c, layer);
    moe_recall_learn(c, layer);
    if (next >= 0)
        request(c, next, g ? moe_guessed(c, g) : moe_guess_experts(c, next));
}
