/* Draft heads: the features that a target's pass stores for them, the inputs of their rows, and their logits.
 *
 * Every row of a target stores its features at its KV slot, in moe_feature_format().  A row of an EAGLE or MTP head starts
 * from one matrix product of a feature and the token's embedding.  A row of an EAGLE-3 head starts from a matrix
 * product of three features, and its attention reads the token's embedding beside it.  Later rows of a draft start, in
 * place of the target's feature, from the head's own hidden state in the row before them: after the final norm, for
 * EAGLE-3 before it.  An EAGLE-3 head may predict a part of the vocabulary only: other tokens get the
 * logit -infinity. */
#include "moe/pass/pass.h"

#include <math.h>
#include <string.h>

/* ---- features of the target ------------------------------------------------------------------------------- */

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
    m->ops->kv_store(moe_feature_format(c->opt.kv), out, d->d_model,
                     c->feature + (size_t)moe_own_slot(&c->batch->row[row]) * c->feature_bytes, NULL);
}

void moe_keep_last(struct moe_context *c) { kn_parallel_for(c->team, c->n_row, keep_last_row, c); }

static size_t last_bytes(const struct moe_context *c)
{
    return c->opt.features.last ? (size_t)c->model->desc.d_model * kn_kv_value_bytes(moe_feature_format(c->opt.kv)) : 0;
}

struct inner_job {
    struct moe_context *c;
    int nth;
};

/* Stores one row's residual stream as its nth inner feature.  In F16 values are clamped to F16's range. */
static void keep_inner_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct inner_job *j = arg;
    struct moe_context *c = j->c;
    enum kn_kv kept = moe_feature_format(c->opt.kv);
    int d_model = c->model->desc.d_model;
    const float *x = c->x + (size_t)row * (size_t)d_model;
    float *out = c->norm.x + (size_t)row * c->norm.stride, most = kept == KN_KV_F16 ? 65504.0f : INFINITY;
    if (c->status[row])
        return;
    for (int i = 0; i < d_model; i++)
        out[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
    c->model->ops->kv_store(kept, out, d_model,
                            c->feature + (size_t)moe_own_slot(&c->batch->row[row]) * c->feature_bytes + last_bytes(c) +
                                (size_t)(j->nth * d_model) * kn_kv_value_bytes(kept),
                            NULL);
}

void moe_keep_inner(struct moe_context *c, int layer)
{
    for (int i = 0; i < c->opt.features.n_inner; i++)
        if (c->opt.features.inner[i] == layer)
            kn_parallel_for(c->team, c->n_row, keep_inner_row, &(struct inner_job){ c, i });
}

static void read_inner(const struct moe_context *target, int32_t slot, float *out)
{
    kn_assert(slot >= 0 && slot < target->opt.n_slot);
    kn_row_decode(target->opt.kv == KN_KV_F32 ? KN_F32 : KN_F16,
                  target->feature + (size_t)slot * target->feature_bytes + last_bytes(target),
                  target->opt.features.n_inner * target->model->desc.d_model, out);
}

void moe_context_feature(const struct moe_context *c, int32_t slot, float *out)
{
    kn_assert(c->opt.features.last && slot >= 0 && slot < c->opt.n_slot);
    kn_row_decode(c->opt.kv == KN_KV_F32 ? KN_F32 : KN_F16, c->feature + (size_t)slot * c->feature_bytes,
                  c->model->desc.d_model, out);
}

/* ---- how a head's rows begin --------------------------------------------------------------------------------- */

static void join_norm(const struct moe_model *m, const float *weight, float *x)
{
    if (weight)
        m->ops->rms_norm(x, weight, m->desc.eps, m->desc.d_model, x);
}

/* Input of fc for one row of an EAGLE or MTP head: [feature, embedding of the token], for MTP in the other order. */
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

/* EAGLE-3: input of fc, the target's inner features.  A row that starts from a hidden state of the head gets zeros: its
 * product is not used. */
static void fuse_row(void *arg, int row, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_row *r = &c->batch->row[row];
    int n = c->model->desc.reads.n_inner * c->model->desc.d_model;
    float *inner = c->inner.x + (size_t)row * c->inner.stride;
    if (r->feature)
        memset(inner, 0, (size_t)n * sizeof *inner);
    else
        read_inner(c->opt.target, r->feature_slot, inner);
    moe_code_row(c, &c->inner, moe_act_bit(&c->model->fc), n, row);
}

/* EAGLE-3: sets the residual stream to r->feature, if given, and makes the input of attention: [embedding, stream],
 * each normalised. */
static void pair_row(void *arg, int row, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_model *m = c->model;
    const struct moe_row *r = &c->batch->row[row];
    int d_model = m->desc.d_model;
    float *x = c->x + (size_t)row * (size_t)d_model, *token = c->join.x + (size_t)row * c->join.stride;
    float *stream = token + d_model;
    if (r->feature)
        memcpy(x, r->feature, (size_t)d_model * sizeof *x);
    kn_mat_row(&m->embed, r->token, token);
    join_norm(m, m->layer[0].attn_norm, token);
    m->ops->rms_norm(x, m->feature_norm, m->desc.eps, d_model, stream);
    if (m->desc.norm_first)
        memcpy(x, stream, (size_t)d_model * sizeof *x);
    moe_code_row(c, &c->join, moe_acts_of_attention(&m->layer[0]), 2 * d_model, row);
}

static void begin_eagle3(struct moe_context *c)
{
    bool fuses = false;
    for (int i = 0; i < c->n_row; i++)
        fuses |= !c->batch->row[i].feature;
    if (fuses) {
        kn_parallel_for(c->team, c->n_row, fuse_row, c);
        c->product[0] = moe_product(&c->inner, &c->model->fc, c->x, c->n_row);
        moe_products(c, 1);
    }
    kn_parallel_for(c->team, c->n_row, pair_row, c);
}

void moe_head_begin(struct moe_context *c)
{
    if (c->model->desc.head == MOE_HEAD_EAGLE3) {
        begin_eagle3(c);
        return;
    }
    kn_parallel_for(c->team, c->n_row, join_row, c);
    c->product[0] = moe_product(&c->join, &c->model->fc, c->x, c->n_row);
    moe_products(c, 1);
}

/* ---- EAGLE-3: results ---------------------------------------------------------------------------------------- */

static void end_row(void *arg, int i, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_model *m = c->model;
    const struct moe_desc *d = &m->desc;
    size_t d_model = (size_t)d->d_model;
    float *logits = c->logits + (size_t)i * (size_t)d->n_vocab;
    const float *guessed = c->guessed + (size_t)i * (size_t)d->n_guess;
    memcpy(c->thought + (size_t)i * d_model, c->x + (size_t)c->want_row[i] * d_model, d_model * sizeof *c->x);
    if (!m->guess)
        return;
    for (int token = 0; token < d->n_vocab; token++)
        logits[token] = -INFINITY;
    for (int k = 0; k < d->n_guess; k++)
        logits[m->guess_token[k]] = guessed[k];
}

void moe_head_end(struct moe_context *c) { kn_parallel_for(c->team, c->n_want, end_row, c); }
