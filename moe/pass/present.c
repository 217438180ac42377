/* Passes by the experts in memory (moe_forward_present): each row chooses among the experts that were on the device or in the
 * host's memory when the pass began.
 *
 * The list is made once, so the choice does not change within a pass, whatever prefetches and other contexts move meanwhile.  It
 * goes to the device with the pass's rows, as a bias for the router: the device goes through layers of which it has all chosen
 * experts without the host, as in other passes.  The pass copies no expert, and changes no heat, no slot and no measured time.
 *
 * It reads none either: a chosen expert that is not in memory when its layer is computed adds nothing, and its weight goes to the
 * row's others.  Such experts are chosen in layers with fewer experts in memory than a row uses, or the host has evicted them since
 * the pass began.  Where a weight multiplies an expert's input the others keep their own: the device has begun with them. */
#include "moe/pass/pass.h"

#include <string.h>

#define ABSENT -1e30f /* finite: the best two of a group are added */

void moe_present_lay_out(struct moe_context *c, struct moe_arenas *a)
{
    c->present.there = kn_arena_take(&a->host, (size_t)c->model->shape.n_expert_total, sizeof(bool));
    c->present.held = kn_arena_take(&a->host, (size_t)c->model->desc.n_expert, sizeof(bool));
}

/* Lists the experts on the device or in memory.  Returns whether all are. */
static bool list_present(struct moe_context *c)
{
    bool all = true, *there = c->present.there;
    off_store_present(c->model->store, 0, c->model->shape.n_expert_total, there);
    for (int e = 0; e < c->model->shape.n_expert_total; e++) {
        there[e] |= moe_is_resident(c, e);
        all &= there[e];
    }
    return all;
}

bool moe_context_is_whole(struct moe_context *c)
{
    return !c->model->store || c->residents.is_whole || off_store_is_whole(c->model->store) ||
           (c->residents.n_slot && list_present(c));
}

void moe_present_begin(struct moe_context *c)
{
    struct moe_present *p = &c->present;
    int n_expert = c->model->desc.n_expert;
    if (!p->only)
        return;
    list_present(c);
    p->rank_bias = moe_sheet_take(c, (size_t)c->model->shape.n_expert_total, sizeof *p->rank_bias);
    for (int i = 0; i < c->model->desc.n_layer; i++) {
        const struct moe_layer *l = &c->model->layer[i];
        for (int e = 0; l->router.n_out && e < n_expert; e++)
            p->rank_bias[l->expert0 + e] = (l->select_bias_image ? l->select_bias_image[e] : 0) +
                                           (p->there[l->expert0 + e] ? 0 : ABSENT);
    }
}

const float *moe_select_bias(const struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    return c->present.only ? moe_at(c, c->present.rank_bias + l->expert0) : l->select_bias;
}

/* The rows of the plan's e-th expert get nothing from it. */
static void clear_outputs(struct moe_context *c, int e)
{
    const int32_t *at = moe_computes_twice(c) ? c->residents.out : c->plan.pair;
    size_t d_model = (size_t)c->model->desc.d_model;
    float *y = moe_image(c, c->y);
    for (int k = c->plan.first[e]; k < c->plan.first[e + 1]; k++)
        memset(y + (size_t)at[k] * d_model, 0, d_model * sizeof *y);
}

/* Gives the weights of a row's absent experts to its others. */
static void share_weights(const bool *there, const int32_t *id, float *weight, int n)
{
    float all = 0, present = 0;
    for (int i = 0; i < n; i++) {
        all += weight[i];
        present += there[id[i]] ? weight[i] : 0;
    }
    for (int i = 0; present > 0 && i < n; i++)
        weight[i] *= there[id[i]] ? all / present : 0;
}

static void share_all_weights(struct moe_context *c, const bool *there)
{
    int n_used = c->model->desc.n_used;
    const int32_t *id = moe_image(c, c->route.id);
    float *weight = moe_image(c, c->route.weight);
    for (int row = 0; row < c->n_row; row++)
        share_weights(there, id + row * n_used, weight + row * n_used, n_used);
    moe_upload_beside(c, weight, (size_t)(c->n_row * n_used) * sizeof *weight);
}

void moe_present_fetch(struct moe_context *c, int layer)
{
    struct moe_residents *r = &c->residents;
    struct moe_present *p = &c->present;
    int n_absent = 0;
    off_fetch_draft(c->model->store, r->rest, c->mark, r->n_rest, p->held, &r->ticket);
    for (int i = 0; i < r->n_rest; i++) {
        r->passes[i] = false;
        p->there[r->rest[i]] = p->held[i];
        if (p->held[i])
            continue;
        clear_outputs(c, r->rest_of[i]);
        n_absent++;
    }
    if (n_absent && !c->model->desc.scaled_input)
        share_all_weights(c, p->there + c->model->layer[layer].expert0);
}
