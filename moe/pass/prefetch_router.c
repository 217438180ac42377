/* Predicts the experts of the next layer while this layer's are read; prefetch.c prefetches them.
 *
 * The next layer's router is run on the current residual stream, which lacks the output of this layer's experts.  The
 * stream changes little from layer to layer, so most predictions are right.  The store reads predicted experts only
 * when no needed expert is waiting to be read: a wrong prediction costs time and never changes the result.  With so
 * many rows that nearly every expert is used, all experts are requested without prediction.
 *
 * Cost: a norm and a product with n_expert * d_model weights: at batch 1 some 1 MB of the 20 MB that a layer reads. */
#include "moe/pass/pass.h"

int moe_guess_experts(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *next = &c->model->layer[layer];
    struct moe_guess *g = &c->guess;
    if (c->n_row >= moe_guess_rows(d, INT32_MAX)) {
        for (int e = 0; e < d->n_expert; e++)
            g->expert[e] = next->expert0 + e;
        return d->n_expert;
    }
    kn_enqueue(c->queue, ADD_NORM_CODE, add_norm_code, .x = c->x,
               .weight = next->router_norm ? next->router_norm : next->ffn_norm, .eps = d->eps, .n = c->n_row,
               .n_from = c->n_row, .d = d->d_model, .out = g->norm, .kinds = kn_act_bit(&next->router),
               .norm_bias = next->ffn_norm_bias);
    moe_multiply(c, &g->norm, &next->router, g->choices.logit, c->n_row);
    moe_choose(c, layer, &g->choices);
    kn_enqueue(c->queue, GUESS, guess, .rows = moe_rows(c), .n_expert = d->n_expert, .n_used = d->n_used,
               .expert0 = next->expert0, .id = g->choices.id, .weight = g->choices.weight, .sum = g->sum,
               .expert = moe_at(c, g->expert), .n_listed = moe_at(c, g->n_listed));
    moe_download(c, g->n_listed, sizeof *g->n_listed);
    moe_download(c, g->expert, (size_t)d->n_expert * sizeof *g->expert);
    return moe_wait(c) ? 0 : *g->n_listed;
}
