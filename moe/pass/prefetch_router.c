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

static bool guesses_all(const struct moe_context *c) { return c->n_row >= moe_guess_rows(&c->model->desc, INT32_MAX); }

static int guess_all(struct moe_context *c, int layer)
{
    for (int e = 0; e < c->model->desc.n_expert; e++)
        c->guess.expert[e] = c->model->layer[layer].expert0 + e;
    return c->model->desc.n_expert;
}

/* Adds the operations that predict a layer's experts, to these addresses in shared memory. */
static void add_guess(struct moe_context *c, int layer, int32_t *expert, int32_t *n_listed)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *next = &c->model->layer[layer];
    struct moe_guess *g = &c->guess;
    kn_enqueue(c->queue, ADD_NORM_CODE, add_norm_code, .x = c->x,
               .weight = next->router_norm ? next->router_norm : next->ffn_norm, .eps = d->eps, .n = c->n_row,
               .n_from = c->n_row, .d = d->d_model, .out = g->norm, .kinds = kn_act_bit(&next->router),
               .norm_bias = next->ffn_norm_bias);
    moe_multiply(c, &g->norm, &next->router, g->choices.logit, c->n_row);
    moe_choose(c, layer, &g->choices);
    kn_enqueue(c->queue, GUESS, guess, .rows = moe_rows(c), .n_expert = d->n_expert, .n_used = d->n_used,
               .expert0 = next->expert0, .id = g->choices.id, .weight = g->choices.weight, .sum = g->sum,
               .expert = moe_at(c, expert), .n_listed = moe_at(c, n_listed));
}

int moe_guess_experts(struct moe_context *c, int layer)
{
    struct moe_guess *g = &c->guess;
    if (guesses_all(c))
        return guess_all(c, layer);
    add_guess(c, layer, g->expert, g->n_listed);
    moe_download(c, g->n_listed, sizeof *g->n_listed);
    moe_download(c, g->expert, (size_t)c->model->desc.n_expert * sizeof *g->expert);
    return moe_wait(c) ? 0 : *g->n_listed;
}

void moe_guess_next(struct moe_context *c, struct moe_listing *g)
{
    g->next = moe_prefetched_layer(c, g->layer);
    if (g->next >= 0 && !guesses_all(c))
        add_guess(c, g->next, g->guessed, g->n_guessed);
}

int moe_guessed(struct moe_context *c, const struct moe_listing *g)
{
    if (guesses_all(c))
        return guess_all(c, g->next);
    memcpy(c->guess.expert, g->guessed, (size_t)*g->n_guessed * sizeof *g->guessed);
    return *g->n_guessed;
}
