/* Chooses the experts of each row and groups the rows by expert; kernels/pass.h says how (route, plan).
 *
 * The shared expert's gate reads the same rows as the router, so its product is computed with the router's. */
#include "moe/pass/pass.h"

void moe_choose(struct moe_context *c, int layer, const struct moe_choices *r)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    kn_enqueue(c->queue, ROUTE, route, .n = c->n_row, .n_expert = d->n_expert, .n_used = d->n_used, .logit = r->logit,
               .rank = r->rank, .bias = l->router_bias, .select_bias = moe_select_bias(c, layer),
               .gating = (enum kn_gating)d->gating, .n_group = d->n_group, .n_group_used = d->n_group_used,
               .group_best = d->group_best, .norm_topk = d->norm_topk, .scale = d->expert_scale, .id = r->id,
               .weight = r->weight, .mixer_gap = d->mixer_gap, .expert_scale = l->expert_scale);
}

void moe_route(struct moe_context *c, int layer, const struct kn_acts *in)
{
    const struct moe_layer *l = &c->model->layer[layer];
    struct kn_op_products p = { .n = 0 };
    moe_product_add(&p, in, &l->router, c->route.logit, c->n_row);
    if (l->shared_gate.n_out)
        moe_product_add(&p, in, &l->shared_gate, c->shared_weight, c->n_row);
    moe_products(c, &p);
    moe_choose(c, layer, &c->route);
}

struct kn_plan moe_plan_at(const struct moe_context *c)
{
    return (struct kn_plan){ .n_expert = moe_at(c, c->plan.n_expert),
                             .expert = moe_at(c, c->plan.expert),
                             .first = moe_at(c, c->plan.first),
                             .row = moe_at(c, c->plan.row),
                             .pair = moe_at(c, c->plan.pair),
                             .fill = moe_at(c, c->plan.fill) };
}

void moe_plan_rows(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    kn_enqueue(c->queue, PLAN, plan, .rows = moe_rows(c), .n_expert = d->n_expert, .n_used = d->n_used,
               .expert0 = c->model->layer[layer].expert0, .id = c->route.id, .plan = moe_plan_at(c));
}

struct kn_group moe_plan_group(const struct kn_plan *p, int e, const struct kn_mat *matrix, int32_t expert0)
{
    return (struct kn_group){ .gate = matrix[0],
                              .up = matrix[1],
                              .down = matrix[2],
                              .bias = p->expert[e] - expert0,
                              .first = p->first[e],
                              .n = p->first[e + 1] - p->first[e] };
}
