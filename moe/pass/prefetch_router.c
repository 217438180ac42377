/* Predicts the experts of the next layer while this layer's are read; prefetch.c prefetches them.
 *
 * The next layer's router is run on the current residual stream, which lacks the output of this layer's experts.  The
 * stream changes little from layer to layer, so most predictions are right.  The store reads predicted experts only
 * when no needed expert is waiting to be read: a wrong prediction costs time and never changes the result.  With so
 * many rows that nearly every expert is used, all experts are requested without prediction.
 *
 * Cost: a norm and a product with n_expert * d_model weights: at batch 1 some 1 MB of the 20 MB that a layer reads. */
#include "moe/pass/pass.h"

#include <string.h>

struct guess_job {
    struct moe_context *c;
    const struct moe_layer *next;
};

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
    moe_route_row(c, j->next, (struct moe_routing){ g->logit + at, g->rank + at, g->id + used, g->weight + used });
}

/* Writes the experts that any row chose to g->expert, by the sum of their weights over all rows, the largest first.
 * Returns their number. */
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

int moe_guess_experts(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *next = &c->model->layer[layer];
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
