/* The forward pass: embedding, layers, final norm, logits of the rows that want them.
 *
 * It calls the other files of this folder in order.  It checks the batch, so they need not.  A pass allocates no
 * memory: an allocation during it traps.
 *
 * Of a row without logits, nothing is needed from the last layer but its key and value.  So that layer's attention and
 * feed-forward half are computed for the rows with logits alone, unless the features of all rows are kept: of a
 * prompt, one row. */
#include "moe/pass/pass.h"

static void embed(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    const struct moe_desc *d = &m->desc;
    int n_pair = d->n_rot / 2;
    struct kn_mat none = { .n_out = 0 };
    kn_enqueue(c->queue, EMBED, embed, .rows = moe_rows(c), .w = d->head ? none : m->embed, .w_scale = d->embed_scale,
               .x = c->x, .freq = moe_rotates_long(d, c->opt.max_pos) ? m->long_freq : m->rope_freq,
               .rotation = c->rotation, .n_pair = n_pair, .scale = d->scaling_attn);
    if (moe_window_rot(d)) /* the rotation of layers with a window has no scaling */
        kn_enqueue(c->queue, EMBED, embed, .rows = moe_rows(c), .w = none, .freq = m->rope_freq + n_pair,
                   .rotation = c->rotation + (size_t)c->opt.max_row * (size_t)n_pair, .n_pair = moe_window_rot(d) / 2,
                   .scale = 1);
    if (d->head)
        moe_head_begin(c);
}

static int32_t own_slot(const struct moe_row *r)
{
    return r->position < r->n_base ? r->base[r->position] : r->tail[r->position - r->n_base];
}

/* Where a draft head's row begins: the address of a feature of the last result; NULL: the target's feature. */
static const float *own_feature(const struct moe_context *c, const struct moe_row *r)
{
    if (!c->model->desc.head || !r->from_result)
        return NULL;
    kn_assert(r->feature_at >= 0 && r->feature_at < c->opt.max_want);
    return moe_last_feature_at(c, r->feature_at);
}

/* Checks the batch, describes its rows for the operations, and lists the rows that want logits.  Batches come from the
 * engine only, so checks are assertions. */
static void begin(struct moe_context *c, const struct moe_batch *b)
{
    const struct moe_desc *d = &c->model->desc;
    kn_assert(b->n_row > 0 && b->n_row <= c->opt.max_row);
    c->batch = b;
    c->n_row = b->n_row;
    c->sheet.used = 0;
    c->sheet.base = NULL;
    c->all.row = moe_sheet_take(c, (size_t)b->n_row, sizeof *c->all.row);
    c->all.status = moe_sheet_take(c, (size_t)b->n_row, sizeof *c->all.status);
    c->want_row = moe_sheet_take(c, (size_t)kn_min(b->n_row, c->opt.max_want), sizeof *c->want_row);
    c->now = c->all;
    c->n_want = 0;
    c->distinct = 0;
    for (int i = 0; i < b->n_row; i++) {
        const struct moe_row *r = &b->row[i];
        kn_assert(r->token >= 0 && r->token < d->n_vocab);
        kn_assert(r->position >= 0 && r->position < c->opt.max_pos && r->n_base >= 0);
        int32_t slot = own_slot(r);
        kn_assert(slot >= 0 && slot < c->opt.n_slot);
        c->all.row[i] = (struct kn_row){ .token = r->token,
                                         .position = r->position,
                                         .slot = slot,
                                         .n_base = r->n_base,
                                         .first = r->first,
                                         .base = moe_base_table(c, r->base, kn_min(r->n_base, c->opt.max_pos)),
                                         .tail = moe_tail_table(c, r->tail, r->position + 1 - r->n_base),
                                         .feature = own_feature(c, r),
                                         .feature_slot = r->feature_at,
                                         .q_scale = d->query_growth > 0 ? moe_query_scale(d, r->position) : 1 };
        c->all.status[i] = 0;
        if (r->want_logits) {
            kn_assert(c->n_want < c->opt.max_want);
            c->want_row[c->n_want++] = i;
        }
    }
}

/* ---- rows without logits in the last layer ----------------------------------------------------------------- */

/* Whether rows without logits need no more of the last layer than key and value, but for their features: no experts are counted,
 * and no recurrent state goes through them. */
static bool may_end_early(const struct moe_context *c)
{
    const struct moe_desc *d = &c->model->desc;
    return !moe_is_delta(d, d->n_layer - 1) && !c->guess.sight && !c->recall.learns;
}

bool moe_drops_rows(const struct moe_context *c, int layer)
{
    bool stores = !c->batch->features_of_wanted && moe_features_of_end(&c->opt.features, c->model);
    return layer == c->model->desc.n_layer - 1 && c->n_want < c->n_row && !stores && may_end_early(c);
}

void moe_drop_rows(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    int n_q = d->n_head * moe_heads(d, layer).d_head;
    if (!moe_drops_rows(c, layer))
        return;
    moe_experts_see_all(c); /* rows may fail until then */
    struct kn_op_pack p = { .row = moe_at(c, c->want_row), .n = c->n_want, .n_from = c->n_row };
    p.array[p.n_array++] = (struct kn_pack){ c->x, d->d_model };
    p.array[p.n_array++] = (struct kn_pack){ c->q, n_q };
    if (c->q_gate)
        p.array[p.n_array++] = (struct kn_pack){ c->q_gate, 2 * n_q };
    if (moe_is_latent(d)) /* other queries are rotated already */
        p.array[p.n_array++] = (struct kn_pack){ (float *)moe_rotation(c, layer), d->n_rot };
    kn_queue_add(c->queue, &(struct kn_op){ .kind = KN_OP_PACK, .pack = p });
    for (int i = 0; i < c->n_want; i++) {
        c->want.row[i] = c->all.row[c->want_row[i]];
        c->want.status[i] = c->all.status[c->want_row[i]];
    }
    moe_upload(c, c->want.row, (size_t)c->n_want * sizeof *c->want.row);
    moe_upload(c, c->want.status, (size_t)c->n_want * sizeof *c->want.status);
    c->now = c->want;
    c->n_row = c->n_want;
}

/* After the pass: the rows are all those of the batch again. */
static void restore_rows(struct moe_context *c)
{
    for (int i = 0; c->now.row == c->want.row && i < c->n_want; i++)
        c->all.status[c->want_row[i]] = c->want.status[i];
    c->now = c->all;
    c->n_row = c->batch->n_row;
}

static void finish(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    if (c->opt.features.last)
        moe_keep_last(c);
    kn_enqueue(c->queue, ADD_NORM_CODE, add_norm_code, .x = c->x, .weight = m->out_norm, .eps = m->desc.eps,
               .row = moe_last_rows(c), .n = c->n_want, .n_from = c->n_row, .d = m->desc.d_model, .out = c->norm,
               .kinds = kn_act_bit(&m->head), .norm_bias = m->out_norm_bias);
    moe_multiply(c, &c->norm, &m->head, m->guess ? c->guessed : c->logits, c->n_want);
    if (m->desc.logit_scale != 1 || m->out_bias || m->desc.logit_cap > 0)
        kn_enqueue(c->queue, SCALE, scale, .x = c->logits, .by = m->desc.logit_scale, .n = c->n_want,
                   .d = m->desc.n_vocab, .bias = m->out_bias, .cap = m->desc.logit_cap);
    if (m->desc.head == MOE_HEAD_EAGLE3)
        moe_head_end(c);
    float *logits = moe_image(c, c->logits);
    moe_download(c, logits, (size_t)c->n_want * (size_t)m->desc.n_vocab * sizeof *logits);
    moe_residents_download(c);
    int error = moe_wait(c);
    moe_experts_end(c);
    moe_residents_end(c);
    restore_rows(c);
    for (int i = 0; error && i < c->n_row; i++)
        c->all.status[i] = error;
    if (m->desc.delta_period)
        moe_states_end(c);
}

/* Lists the dense FFN of each layer, or its shared expert, for the layer's rows. */
static void list_dense(struct moe_context *c)
{
    c->dense = moe_sheet_take(c, (size_t)c->model->desc.n_layer, sizeof *c->dense);
    for (int i = 0; i < c->model->desc.n_layer; i++) {
        const struct moe_layer *l = &c->model->layer[i];
        c->dense[i] = (struct kn_group){
            l->gate, l->up, l->down, -1, 0, 0, moe_drops_rows(c, i) ? c->n_want : c->n_row
        };
    }
}

static void run(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out)
{
    const struct moe_desc *d = &c->model->desc;
    begin(c, batch);
    moe_prefetch_begin(c);
    moe_residents_begin(c);
    moe_present_begin(c);
    moe_listings_begin(c);
    list_dense(c);
    moe_upload(c, c->sheet.at, c->sheet.used);
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
        if (!c->n_row)
            moe_prefetch_release(c, layer);
        else if (c->model->layer[layer].router.n_out)
            moe_experts(c, layer);
        else
            moe_dense_ffn(c, layer);
        if (c->model->layer[layer].scale != 1 && c->n_row)
            kn_enqueue(c->queue, SCALE, scale, .x = c->x, .by = c->model->layer[layer].scale, .n = c->n_row,
                       .d = d->d_model);
        moe_advance(c);
    }
    moe_keep_inner(c, d->n_layer);
    finish(c);
    moe_advance(c);
    moe_listings_leave(c);
    kn_alloc_forbid(false);
    *out = (struct moe_result){ .logits = moe_image(c, c->logits),
                                .status = c->all.status,
                                .n_want = c->n_want,
                                .experts_per_layer = c->distinct / kn_max(1, moe_n_sparse_before(d, d->n_layer)),
                                .may_end_early = may_end_early(c) };
}

int moe_forward(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out)
{
    run(c, batch, out);
    return 0;
}

int moe_forward_present(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out)
{
    kn_assert(!c->model->desc.delta_period && !c->model->target);
    c->present.only = c->model->store != NULL;
    run(c, batch, out);
    c->present.only = false;
    return 0;
}
