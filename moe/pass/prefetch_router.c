/* Predicts the experts of the next layer while this layer's are read, and prefetches them.
 *
 * The next layer's router is run on the current residual stream, which lacks the output of this layer's experts.  The
 * stream changes little from layer to layer, so most predictions are right.  The store reads predicted experts only
 * when no needed expert is waiting to be read: a wrong prediction costs time and never changes the result.  With so
 * many rows that nearly every expert is used, all experts are requested without prediction.
 *
 * Cost: a norm and n_expert * d_model weights, some 1 MB of a layer's 20 at batch 1. */
#include "moe/internal.h"

#include <string.h>

struct guess_job { struct moe_context *c; const struct moe_layer *next; };

/* Beyond so many rows an expert is left out by one layer in some thousand. */
int moe_guess_rows(const struct moe_desc *d, int max_row)
{
    return kn_min(max_row, d->n_used ? 8 * d->n_expert / d->n_used : 0);
}

static void norm_item(void *arg, int row, int thread)
{
    (void)thread;
    const struct guess_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    struct moe_acts *a = &c->guess.norm;
    c->model->ops->rms_norm(c->x + (size_t)row * (size_t)d->d_model, j->next->ffn_norm, d->eps, d->d_model,
                            a->x + (size_t)row * a->stride);
    moe_code_row(c, a, moe_act_bit(&j->next->router), d->d_model, row);
}

static void choose_item(void *arg, int row, int thread)
{
    (void)thread;
    const struct guess_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    struct moe_guess *g = &c->guess;
    size_t at = (size_t)row * (size_t)d->n_expert, used = (size_t)row * (size_t)d->n_used;
    moe_route_row(c, j->next, (struct moe_routing){ g->logit + at, g->rank + at, g->id + used,
                                                    g->weight + used });
}

/* By the weight that all rows together give an expert, the largest first. */
static int rank(struct moe_context *c, int expert0)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_guess *g = &c->guess;
    int n = 0;
    memset(g->sum, 0, (size_t)d->n_expert * sizeof *g->sum);
    for (int row = 0; row < c->n_row; row++)
        for (int i = 0; !c->status[row] && i < d->n_used; i++) {
            int at = row * d->n_used + i;
            g->sum[g->id[at]] += g->weight[at];
        }
    for (int e = 0; e < d->n_expert; e++) {
        if (!(g->sum[e] > 0))
            continue;
        int at = n++;
        for (; at > 0 && g->sum[g->expert[at - 1] - expert0] < g->sum[e]; at--)
            g->expert[at] = g->expert[at - 1];
        g->expert[at] = expert0 + e;
    }
    return n;
}

/* Into guess.expert; how many. */
static int guess(struct moe_context *c, const struct moe_layer *next)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_guess *g = &c->guess;
    struct guess_job job = { c, next };
    if (c->n_row >= moe_guess_rows(d, INT32_MAX)) {
        for (int e = 0; e < d->n_expert; e++)
            g->expert[e] = next->expert0 + e;
        return d->n_expert;
    }
    kn_parallel_for(c->team, c->n_row, norm_item, &job);
    c->product[0] = moe_product(&g->norm, &next->router, g->logit, c->n_row);
    moe_products(c, 1);
    kn_parallel_for(c->team, c->n_row, choose_item, &job);
    return rank(c, next->expert0);
}

void moe_guess_next(struct moe_context *c, int layer)
{
    const struct moe_model *m = c->model;
    struct moe_guess *g = &c->guess;
    if (layer + 1 == m->desc.n_layer || off_store_is_whole(m->store))
        return;
    int n = guess(c, &m->layer[layer + 1]);
    moe_recall_end(c, layer + 1);               /* the router knows better, and asks more urgently */
    off_fetch(m->store, g->expert, g->mark, n, OFF_SOON, &g->ticket);
}

void moe_guess_end(struct moe_context *c)
{
    if (c->guess.ticket.n)
        off_release(c->model->store, &c->guess.ticket);
}

/* ---- how well that goes ---------------------------------------------------------------------------------- */

static bool *seen_of(const struct moe_context *c, int layer, enum moe_sight_of how)
{
    return c->guess.seen + ((size_t)(layer % (MOE_FAR + 1)) * MOE_SIGHTS + how) * (size_t)c->model->desc.n_expert;
}

static void see_far(struct moe_context *c, int layer, int far)
{
    const struct moe_layer *l = &c->model->layer[layer + far];
    bool *seen = seen_of(c, layer + far, (enum moe_sight_of)(MOE_SIGHT_FAR1 + far - 1));
    memset(seen, 0, (size_t)c->model->desc.n_expert * sizeof *seen);
    for (int n = guess(c, l); n-- > 0; )
        seen[c->guess.expert[n] - l->expert0] = true;
}

/* What was guessed of this layer, beside what its rows have chosen; then guesses for those to come. */
void moe_guess_watch(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_plan *p = &c->plan;
    if (!c->guess.sight)
        return;
    moe_recall_see(c, layer, seen_of(c, layer, MOE_SIGHT_TOKEN));
    for (int how = 0; how < MOE_SIGHTS; how++) {
        struct moe_sight *s = &c->guess.sight[(size_t)layer * MOE_SIGHTS + (size_t)how];
        bool *seen = seen_of(c, layer, (enum moe_sight_of)how);
        if (how < MOE_FAR && layer - d->n_lead <= how)
            continue;                           /* nothing came so long before */
        for (int e = 0; e < d->n_expert; e++)
            s->guessed += seen[e];
        for (int i = 0; i < p->n_expert; i++)
            s->right += seen[p->expert[i] - c->model->layer[layer].expert0];
        s->used += (uint64_t)p->n_expert;
    }
    for (int far = 1; far <= MOE_FAR && layer + far < d->n_layer; far++)
        see_far(c, layer, far);
}

void moe_context_watch(struct moe_context *c, struct moe_sight *sight) { c->guess.sight = sight; }
