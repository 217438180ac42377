/* Chooses the experts of each row (route) and groups the rows by expert (plan).
 *
 * Route: probabilities are the softmax over the router's logits, or the sigmoid of each.  The n_used largest are
 * chosen, in the order of choices (kernels.h).  The weights of the chosen experts are their probabilities, scaled to
 * sum to 1 if the family does so.  A selection bias may change the choice but not the weights, and the choice may be
 * limited to the best groups of experts.  With MOE_GATING_CHOSEN the largest logits are chosen, and the weights are the
 * softmax over these only.  Plan: a counting sort of (row, choice) pairs by expert, so an expert gets its rows in
 * ascending order and is read once for any number of rows. */
#include "moe/pass/pass.h"

#include <math.h>
#include <string.h>

/* Sets id to the indices of the n_used largest values of p, in the order of choices (kernels.h).  Sorts by insertion,
 * since n_used is small compared with n_expert. */
static void choose(const float *p, int n_expert, int n_used, int32_t *id)
{
    uint32_t least = 0; /* the rank of the last one, once there are n_used */
    int n = 0;
    for (int e = 0; e < n_expert; e++) {
        uint32_t rank = kn_rank(p[e]);
        int at = n;
        if (n == n_used && rank <= least)
            continue;
        while (at > 0 && kn_rank(p[id[at - 1]]) < rank)
            at--;
        n = kn_min(n + 1, n_used);
        for (int i = n - 1; i > at; i--)
            id[i] = id[i - 1];
        id[at] = e;
        least = kn_rank(p[id[n - 1]]);
    }
}

/* Expert groups, all of one size: a group's score is its largest rank, or the sum of its two largest.  Ranks outside
 * the n_group_used groups with the best scores become -infinity. */
static void limit_groups(const struct moe_desc *d, float *rank)
{
    float score[MOE_MAX_GROUP];
    int32_t best[MOE_MAX_GROUP];
    bool keep[MOE_MAX_GROUP] = { false };
    int n = d->n_expert / d->n_group;
    for (int g = 0; g < d->n_group; g++) {
        int32_t two[2];
        choose(rank + g * n, n, d->group_best, two);
        score[g] = rank[g * n + two[0]];
        if (d->group_best > 1)
            score[g] += rank[g * n + two[1]];
    }
    choose(score, d->n_group, d->n_group_used, best);
    for (int i = 0; i < d->n_group_used; i++)
        keep[best[i]] = true;
    for (int e = 0; e < d->n_expert; e++)
        rank[e] = keep[e / n] ? rank[e] : -HUGE_VALF;
}

/* The values by which experts are chosen: r.p, or in r.rank a copy with the selection bias and the limit to groups. */
static const float *rank_of(const struct moe_context *c, const struct moe_layer *l, struct moe_routing r)
{
    const struct moe_desc *d = &c->model->desc;
    if (!l->select_bias && d->n_group <= 1)
        return r.p;
    memcpy(r.rank, r.p, (size_t)d->n_expert * sizeof *r.rank);
    if (l->select_bias)
        c->model->ops->add(r.rank, l->select_bias, d->n_expert);
    if (d->n_group > 1)
        limit_groups(d, r.rank);
    return r.rank;
}

void moe_route_row(const struct moe_context *c, const struct moe_layer *l, struct moe_routing r)
{
    const struct moe_desc *d = &c->model->desc;
    const struct kn_ops *ops = c->model->ops;
    float sum = 0;
    if (l->router_bias)
        ops->add(r.p, l->router_bias, d->n_expert);
    if (d->gating == MOE_GATING_SOFTMAX)
        ops->softmax(r.p, d->n_expert);
    for (int e = 0; d->gating == MOE_GATING_SIGMOID && e < d->n_expert; e++)
        r.p[e] = moe_sigmoid(r.p[e]);
    choose(rank_of(c, l, r), d->n_expert, d->n_used, r.id);
    for (int i = 0; i < d->n_used; i++)
        r.weight[i] = r.p[r.id[i]];
    if (d->gating == MOE_GATING_CHOSEN)
        ops->softmax(r.weight, d->n_used);
    for (int i = 0; i < d->n_used; i++)
        sum += r.weight[i];
    for (int i = 0; i < d->n_used; i++) {
        r.weight[i] = d->norm_topk ? r.weight[i] / (sum + 1e-20f) : r.weight[i]; /* all may be 0 */
        r.weight[i] *= d->expert_scale;
    }
}

struct route_job {
    struct moe_context *c;
    const struct moe_layer *l;
};

static void route_item(void *arg, int row, int thread)
{
    (void)thread;
    const struct route_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    size_t at = (size_t)row * (size_t)d->n_expert, used = (size_t)row * (size_t)d->n_used;
    moe_route_row(
        c, j->l,
        (struct moe_routing){ c->route_logit + at, c->route_rank + at, c->route_id + used, c->route_weight + used });
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
    int32_t *fill = p->fill; /* number of rows of each expert, then the index of its next row in p->row */
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
