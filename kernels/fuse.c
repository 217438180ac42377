/* kernels/fuse.c - which neighbouring operations a device may run as one: in one launch, in which `next` follows `op`
 * without a wait for the whole device.
 *
 * That is so where each part of `next` reads results of `op` from one part only, as a row that reads its own row; or where
 * `next` is one part, which the last of op's parts can go on with.  The bits are those of the two operations, one after the
 * other: tests/cuda/test_fused.c compares every pair of the table, test_launches.c counts a layer's launches. */
#include "kernels/pass.h"

static bool row_after_sum(const struct kn_op *op, const struct kn_op *next)
{
    const struct kn_op_combine *o = &op->combine;
    const struct kn_op_add_norm_code *a = &next->add_norm_code;
    return a->x == o->x && !a->y && !a->row && a->n == o->rows.n && a->d == o->d_model;
}

static bool row_after_logits(const struct kn_op *op, const struct kn_op *next)
{
    const struct kn_op_products *o = &op->products;
    for (int i = 0; i < o->n; i++)
        if (o->product[i].mul.y == next->route.logit)
            return o->product[i].mul.n_row == 1 && next->route.n == 1 &&
                   o->product[i].mul.w.n_out == next->route.n_expert;
    return false;
}

static bool plan_of_choices(const struct kn_op *op, const struct kn_op *next)
{
    const struct kn_op_route *o = &op->route;
    return next->plan.id == o->id && next->plan.rows.n == o->n && next->plan.n_used == o->n_used &&
           next->plan.n_expert == o->n_expert;
}

static bool guess_of_choices(const struct kn_op *op, const struct kn_op *next)
{
    const struct kn_op_route *o = &op->route;
    return next->guess.id == o->id && next->guess.weight == o->weight && next->guess.rows.n == o->n &&
           next->guess.n_used == o->n_used && next->guess.n_expert == o->n_expert;
}

static bool groups_of_plan(const struct kn_op *op, const struct kn_op *next)
{
    const struct kn_plan *p = &op->plan.plan, *g = &next->group.plan; /* `fill` is the plan's scratch */
    return g->n_expert == p->n_expert && g->expert == p->expert && g->first == p->first && g->row == p->row &&
           g->pair == p->pair && next->group.expert0 == op->plan.expert0 && next->group.n_expert == op->plan.n_expert;
}

static const struct {
    enum kn_op_kind kind, next;
    bool (*fits)(const struct kn_op *op, const struct kn_op *next);
} table[] = {
    { KN_OP_COMBINE, KN_OP_ADD_NORM_CODE, row_after_sum }, /* the norm of a row reads the sum of this row */
    { KN_OP_PRODUCTS, KN_OP_ROUTE, row_after_logits },     /* the last part of one row's logits goes on with the row */
    { KN_OP_ROUTE, KN_OP_PLAN, plan_of_choices },          /* a plan is one part: of the last row to be routed */
    { KN_OP_ROUTE, KN_OP_GUESS, guess_of_choices },        /* and so is a guess */
    { KN_OP_PLAN, KN_OP_GROUP, groups_of_plan },           /* one part, after one */
};

bool kn_may_fuse(const struct kn_op *op, const struct kn_op *next)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].kind == op->kind && table[i].next == next->kind)
            return table[i].fits(op, next);
    return false;
}
