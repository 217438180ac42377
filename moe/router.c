/* Which experts a row goes to, and which rows an expert gets.
 *
 * Route: softmax over the router's logits; the n_used largest, in descending order, the lowest id first
 * on a tie; their probabilities, made to sum to 1 (in choice order) where the family does so.  Or the
 * largest logits, and softmax over those alone.
 * Plan: a counting sort of (row, choice) pairs by expert, so that an expert meets its rows in ascending
 * order and is read once however many rows chose it. */
#include "moe/internal.h"

/* The largest n_used of p, by insertion: n_used is small beside n_expert. */
void moe_choose(const float *p, int n_expert, int n_used, int32_t *id)
{
    int n = 0;
    for (int e = 0; e < n_expert; e++) {
        int at = n;
        while (at > 0 && !(p[id[at - 1]] >= p[e]))
            at--;
        if (at == n_used)
            continue;
        n = kn_min(n + 1, n_used);
        for (int i = n - 1; i > at; i--)
            id[i] = id[i - 1];
        id[at] = e;
    }
}

/* p[n_expert]: the router's logits, which become probabilities; id and weight: [n_used]. */
void moe_route_row(const struct moe_context *c, const struct moe_layer *l, float *p, int32_t *id, float *weight)
{
    const struct moe_desc *d = &c->model->desc;
    const struct kn_ops *ops = c->model->ops;
    float sum = 0;
    if (l->router_bias)
        ops->add(p, l->router_bias, d->n_expert);
    if (d->gating == MOE_GATING_SOFTMAX)
        ops->softmax(p, d->n_expert);
    moe_choose(p, d->n_expert, d->n_used, id);
    for (int i = 0; i < d->n_used; i++)
        weight[i] = p[id[i]];
    if (d->gating == MOE_GATING_CHOSEN)
        ops->softmax(weight, d->n_used);
    for (int i = 0; i < d->n_used; i++)
        sum += weight[i];
    for (int i = 0; i < d->n_used; i++) {
        weight[i] = d->norm_topk ? weight[i] / sum : weight[i];
        weight[i] *= d->expert_scale;
    }
}

struct route_job { struct moe_context *c; const struct moe_layer *l; };

static void route_item(void *arg, int row, int thread)
{
    (void)thread;
    const struct route_job *j = arg;
    struct moe_context *c = j->c;
    size_t n_used = (size_t)c->model->desc.n_used, at = (size_t)row;
    moe_route_row(c, j->l, c->route_logit + at * (size_t)c->model->desc.n_expert, c->route_id + at * n_used,
                  c->route_weight + at * n_used);
}

void moe_route(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    c->product[0] = moe_product(&c->norm, &l->router, c->route_logit, c->n_row);
    moe_products(c, 1);
    struct route_job job = { c, l };
    kn_parallel_for(c->team, c->n_row, route_item, &job);
}

void moe_plan_rows(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_plan *p = &c->plan;
    int32_t *fill = p->fill;                    /* rows of each expert, then where its next row goes */
    for (int e = 0; e < d->n_expert; e++)
        fill[e] = 0;
    for (int row = 0; row < c->n_row; row++)
        for (int i = 0; !c->status[row] && i < d->n_used; i++)
            fill[c->route_id[row * d->n_used + i]]++;
    int n = 0, n_pair = 0;
    for (int e = 0; e < d->n_expert; e++) {
        int count = fill[e];
        fill[e] = n_pair;
        if (!count)
            continue;
        p->expert[n] = c->model->layer[layer].expert0 + e;
        p->first[n++] = n_pair;
        n_pair += count;
    }
    p->first[n] = n_pair;
    p->n_expert = n;
    for (int row = 0; row < c->n_row; row++)
        for (int i = 0; !c->status[row] && i < d->n_used; i++) {
            int pair = row * d->n_used + i, at = fill[c->route_id[pair]]++;
            p->row[at] = row;
            p->pair[at] = pair;
        }
}
