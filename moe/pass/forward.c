/* The forward pass: embedding, layers, final norm, logits of the rows that want them.
 *
 * It calls the other files of this folder in order.  It checks the batch, so they need not.  A pass allocates no
 * memory: an allocation during it traps. */
#include "moe/pass/pass.h"

static void embed(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    const struct moe_desc *d = &m->desc;
    kn_enqueue(c->queue, EMBED, embed, .rows = moe_rows(c), .w = d->head ? (struct kn_mat){ .n_out = 0 } : m->embed,
               .x = c->x, .freq = m->rope_freq, .rotation = c->rope_cos_sin, .n_pair = d->n_rot / 2,
               .scale = d->scaling_attn);
    if (d->head)
        moe_head_begin(c);
}

static int32_t own_slot(const struct moe_row *r)
{
    return r->position < r->n_base ? r->base[r->position] : r->tail[r->position - r->n_base];
}

/* Checks the batch, describes its rows for the operations, and lists the rows that want logits.  Batches come from the
 * engine only, so checks are assertions. */
static void begin(struct moe_context *c, const struct moe_batch *b)
{
    const struct moe_desc *d = &c->model->desc;
    kn_assert(b->n_row > 0 && b->n_row <= c->opt.max_row);
    c->batch = b;
    c->n_row = b->n_row;
    c->n_want = 0;
    c->distinct = 0;
    for (int i = 0; i < b->n_row; i++) {
        const struct moe_row *r = &b->row[i];
        kn_assert(r->token >= 0 && r->token < d->n_vocab);
        kn_assert(r->position >= 0 && r->position < c->opt.max_pos && r->n_base >= 0);
        int32_t slot = own_slot(r);
        kn_assert(slot >= 0 && slot < c->opt.n_slot);
        c->row[i] = (struct kn_row){ .token = r->token,
                                     .position = r->position,
                                     .slot = slot,
                                     .n_base = r->n_base,
                                     .base = r->base,
                                     .tail = r->tail,
                                     .feature = r->feature,
                                     .feature_slot = r->feature_slot };
        c->status[i] = 0;
        if (r->want_logits) {
            kn_assert(c->n_want < c->opt.max_want);
            c->want_row[c->n_want++] = i;
        }
    }
}

static void finish(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    if (c->opt.features.last)
        moe_keep_last(c);
    kn_enqueue(c->queue, ADD_NORM_CODE, add_norm_code, .x = c->x, .weight = m->out_norm, .eps = m->desc.eps,
               .row = c->want_row, .n = c->n_want, .n_from = c->n_row, .d = m->desc.d_model, .out = c->norm,
               .kinds = kn_act_bit(&m->head));
    moe_multiply(c, &c->norm, &m->head, m->guess ? c->guessed : c->logits, c->n_want);
    if (m->desc.head == MOE_HEAD_EAGLE3)
        moe_head_end(c);
    kn_queue_wait(c->queue);
}

int moe_forward(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out)
{
    const struct moe_desc *d = &c->model->desc;
    begin(c, batch);
    moe_prefetch_begin(c);
    kn_alloc_forbid(true);
    if (d->delta_period)
        moe_states_begin(c);
    embed(c);
    for (int layer = 0; layer < d->n_layer; layer++) {
        moe_keep_inner(c, layer);
        if (moe_is_delta(d, layer))
            moe_delta(c, layer);
        else if (moe_is_latent(d))
            moe_latent_attention(c, layer);
        else
            moe_attention(c, layer);
        if (c->model->layer[layer].router.n_out)
            moe_experts(c, layer);
        else
            moe_dense_ffn(c, layer);
    }
    if (d->delta_period)
        moe_states_end(c);
    finish(c);
    kn_alloc_forbid(false);
    *out = (struct moe_result){ .logits = c->logits,
                                .status = c->status,
                                .n_want = c->n_want,
                                .feature = c->thought ? c->thought : c->norm.x,
                                .feature_stride = c->thought ? (size_t)d->d_model : c->norm.stride,
                                .experts_per_layer = c->distinct / (d->n_layer - d->n_lead) };
    return 0;
}
