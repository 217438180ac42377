/* Draft heads: the features that a target's pass stores for them, the inputs of their rows, and their logits.
 *
 * A row of a target stores its features at its KV slot, in moe_feature_format().  A row of an EAGLE or MTP head starts
 * from one matrix product of a feature and the token's embedding.  A row of an EAGLE-3 head starts from a matrix
 * product of three features, and its attention reads the token's embedding beside it.  Later rows of a draft start, in
 * place of the target's feature, from the head's own hidden state in the row before them: after the final norm, for
 * EAGLE-3 before it unless desc.norm_last.  An EAGLE-3 head may predict a part of the vocabulary only: other tokens get the
 * logit -infinity. */
#include "moe/pass/pass.h"

#include <string.h>

/* ---- features of the target ------------------------------------------------------------------------------- */

/* Stores a vector of each row: with weight NULL the residual stream as it is. */
static void keep_features(struct moe_context *c, struct kn_features to, const float *weight, const float *bias)
{
    kn_enqueue(c->queue, KEEP_FEATURES, keep_features, .rows = moe_rows(c), .x = c->x, .weight = weight,
               .eps = c->model->desc.eps, .scratch = c->norm, .features = to, .norm_bias = bias);
}

void moe_keep_last(struct moe_context *c)
{
    keep_features(c, moe_last_feature(c), c->model->out_norm, c->model->out_norm_bias);
}

void moe_keep_inner(struct moe_context *c, int layer)
{
    int d_model = c->model->desc.d_model;
    for (int i = 0; i < c->opt.features.n_inner; i++)
        if (c->opt.features.inner[i] == layer) {
            struct kn_features to = moe_inner_features(c);
            to.base += (size_t)(i * d_model) * kn_kv_value_bytes(to.kv);
            to.n = d_model;
            keep_features(c, to, NULL, NULL);
        }
}

void moe_context_features(struct moe_context *c, const int32_t *slot, int n, float *out)
{
    struct kn_features f = moe_last_feature(c);
    const void *x[MOE_LANDINGS];
    for (int first = 0, n_here; first < n; first += n_here) {
        n_here = kn_min(n - first, MOE_LANDINGS);
        for (int i = 0; i < n_here; i++) {
            kn_assert(slot[first + i] >= 0 && slot[first + i] < f.n_slot);
            x[i] = f.base + (size_t)slot[first + i] * f.slot_bytes;
        }
        moe_read_several(c, x, n_here, (size_t)f.n * kn_kv_value_bytes(f.kv));
        for (int i = 0; i < n_here; i++)
            kn_row_decode(f.kv == KN_KV_F16 ? KN_F16 : KN_F32, x[i], f.n, out + (size_t)(first + i) * (size_t)f.n);
    }
}

void moe_context_feature(struct moe_context *c, int32_t slot, float *out) { moe_context_features(c, &slot, 1, out); }

const float *moe_last_feature_at(const struct moe_context *c, int i)
{
    return c->thought ? c->thought + (size_t)i * (size_t)c->model->desc.d_model
                      : c->norm.x + (size_t)i * c->norm.stride;
}

void moe_context_last_feature(struct moe_context *c, int i, float *out)
{
    size_t bytes = (size_t)c->model->desc.d_model * sizeof *out;
    kn_assert(i >= 0 && i < c->n_want);
    memcpy(out, moe_read(c, moe_last_feature_at(c, i), bytes), bytes);
}

/* ---- how a head's rows begin --------------------------------------------------------------------------------- */

static void begin_eagle3(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    bool fuses = false;
    for (int i = 0; i < c->n_row; i++)
        fuses |= !c->batch->row[i].from_result;
    if (fuses) {
        kn_enqueue(c->queue, FUSE, fuse, .rows = moe_rows(c), .features = moe_inner_features(c->opt.target),
                   .out = c->inner, .kinds = kn_act_bit(&m->fc), .n_norm = m->desc.n_inner_norm,
                   .norm = { m->inner_norm[0], m->inner_norm[1], m->inner_norm[2] }, .eps = m->desc.eps);
        moe_multiply(c, &c->inner, &m->fc, c->x, c->n_row);
    }
    kn_enqueue(c->queue, PAIR, pair, .rows = moe_rows(c), .embed = m->embed, .x = c->x,
               .embed_norm = m->layer[0].attn_norm, .x_norm = m->feature_norm, .norm_first = m->desc.norm_first,
               .eps = m->desc.eps, .out = c->join, .kinds = moe_acts_of_attention(&m->layer[0]));
}

void moe_head_begin(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    if (m->desc.head == MOE_HEAD_EAGLE3) {
        begin_eagle3(c);
        return;
    }
    kn_enqueue(c->queue, JOIN, join, .rows = moe_rows(c), .embed = m->embed,
               .features = moe_last_feature(c->opt.target), .token_first = m->desc.head == MOE_HEAD_AHEAD,
               .feature_norm = m->feature_norm, .embed_norm = m->embed_norm, .eps = m->desc.eps, .out = c->join,
               .kinds = kn_act_bit(&m->fc));
    moe_multiply(c, &c->join, &m->fc, c->x, c->n_row);
}

/* ---- EAGLE-3: results ---------------------------------------------------------------------------------------- */

void moe_head_end(struct moe_context *c)
{
    const struct moe_desc *d = &c->model->desc;
    kn_enqueue(c->queue, SPREAD, spread, .x = c->x, .row = moe_last_rows(c), .n = c->n_want, .n_from = c->n_row,
               .d_model = d->d_model, .out = c->thought, .token = c->model->guess ? c->model->guess_token : NULL,
               .guessed = c->guessed, .logits = c->logits, .n_guess = d->n_guess, .n_vocab = d->n_vocab);
}
