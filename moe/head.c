/* Heads: what they read of their target's pass, and how their rows begin.
 *
 * A target's rows leave their features at their slots, in the precision of KV.  A head's row begins with a feature and a
 * token, put together by a matrix. */
#include "moe/internal.h"

#include <string.h>

/* ---- what a target leaves --------------------------------------------------------------------------------- */

static void keep_last_row(void *arg, int row, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_model *m = c->model;
    const struct moe_desc *d = &m->desc;
    float *out = c->norm.x + (size_t)row * c->norm.stride;
    if (c->status[row])
        return;
    m->ops->rms_norm(c->x + (size_t)row * (size_t)d->d_model, m->out_norm, d->eps, d->d_model, out);
    m->ops->kv_store(c->opt.kv, out, d->d_model,
                     c->feature + (size_t)moe_own_slot(&c->batch->row[row]) * c->feature_bytes);
}

void moe_keep_last(struct moe_context *c) { kn_parallel_for(c->team, c->n_row, keep_last_row, c); }

void moe_context_feature(const struct moe_context *c, int32_t slot, float *out)
{
    kn_assert(c->opt.features.last && slot >= 0 && slot < c->opt.n_slot);
    kn_row_decode(c->opt.kv == KN_KV_F16 ? KN_F16 : KN_F32, c->feature + (size_t)slot * c->feature_bytes,
                  c->model->desc.d_model, out);
}

/* ---- how a head's rows begin --------------------------------------------------------------------------------- */

static void join_norm(const struct moe_model *m, const float *weight, float *x)
{
    if (weight)
        m->ops->rms_norm(x, weight, m->desc.eps, m->desc.d_model, x);
}

/* A head's row begins with what was thought before its token, and the token. */
static void join_row(void *arg, int row, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_model *m = c->model;
    const struct moe_row *r = &c->batch->row[row];
    int d_model = m->desc.d_model, token_first = m->desc.head == MOE_HEAD_AHEAD;
    float *join = c->join.x + (size_t)row * c->join.stride;
    float *feature = join + token_first * d_model, *token = join + !token_first * d_model;
    if (r->feature)
        memcpy(feature, r->feature, (size_t)d_model * sizeof *feature);
    else
        moe_context_feature(c->opt.target, r->feature_slot, feature);
    kn_mat_row(&m->embed, r->token, token);
    join_norm(m, m->feature_norm, feature);
    join_norm(m, m->embed_norm, token);
    moe_code_row(c, &c->join, moe_act_bit(&m->fc), 2 * d_model, row);
}

void moe_head_begin(struct moe_context *c)
{
    kn_parallel_for(c->team, c->n_row, join_row, c);
    c->product[0] = moe_product(&c->join, &c->model->fc, c->x, c->n_row);
    moe_products(c, 1);
}
