/* The forward pass: embedding, layers, final norm, logits of the rows that want them.
 *
 * It calls the other files of this folder in order.  It checks the batch, so they need not.  A pass allocates no
 * memory: an allocation during it traps.
 *
 * Of a row without logits, nothing is needed from the last layer but its key and value.  So that layer's attention and
 * feed-forward half are computed for the rows with logits alone, unless the features of all rows are kept: of a
 * prompt, one row. */
#include "moe/pass/pass.h"

#include <string.h>

static void scale(float *x, float by, int n)
{
    for (int i = 0; by != 1 && i < n; i++)
        x[i] *= by;
}

static void embed_row(void *arg, int row, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_desc *d = &c->model->desc;
    const struct moe_row *r = &c->batch->row[row];
    float *x = c->x + (size_t)row * (size_t)d->d_model;
    int n_pair = d->n_rot / 2, n = moe_n_rotation(d) * n_pair;
    if (!d->head) {
        kn_mat_row(&c->model->embed, r->token, x);
        scale(x, d->embed_scale, d->d_model);
    }
    for (int i = 0; i < n; i++) {
        double s, co;
        float *rope_cos_sin = c->rope_cos_sin[(size_t)row * (size_t)n + (size_t)i];
        float scaling = i < n_pair ? d->scaling_attn : 1; /* the rotation of layers with a window has no scaling */
        kn_sincos((float)r->position * c->model->rope_freq[i], &s, &co); /* the angle is a float32 */
        rope_cos_sin[0] = (float)co * scaling;
        rope_cos_sin[1] = (float)s * scaling;
    }
}

static void embed(struct moe_context *c)
{
    kn_parallel_for(c->team, c->n_row, embed_row, c);
    if (c->model->desc.head)
        moe_head_begin(c);
}

/* Checks the batch and lists the rows that want logits.  Batches come from the engine only, so checks
 * are assertions. */
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
        int32_t slot = moe_own_slot(r);
        kn_assert(slot >= 0 && slot < c->opt.n_slot);
        c->status[i] = 0;
        if (r->want_logits) {
            kn_assert(c->n_want < c->opt.max_want);
            c->want_row[c->n_want++] = i;
        }
    }
}

/* ---- rows without logits in the last layer ----------------------------------------------------------------- */

/* Whether the last layer of this pass is computed for all rows: their features are kept, or their experts counted. */
static bool needs_all_rows(const struct moe_context *c)
{
    return c->opt.features.last || c->guess.sight || c->recall.learns;
}

/* Moves row `from` of an array of n values a row to row `to`. */
static void move_row(float *x, size_t n, int from, int to)
{
    if (x)
        memmove(x + (size_t)to * n, x + (size_t)from * n, n * sizeof *x);
}

bool moe_drops_rows(const struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    return layer == d->n_layer - 1 && c->n_want < c->n_row && !moe_is_delta(d, layer) && !needs_all_rows(c);
}

void moe_drop_rows(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    size_t n_q = (size_t)(d->n_head * d->d_head);
    if (!moe_drops_rows(c, layer))
        return;
    for (int i = 0; i < c->n_want; i++) {
        int from = c->want_row[i]; /* ascending: no row is overwritten before it has moved */
        move_row(c->x, (size_t)d->d_model, from, i);
        move_row(c->q, n_q, from, i);
        move_row(c->q_gate, 2 * n_q, from, i);
        move_row((float *)c->rope_cos_sin, (size_t)(moe_n_rotation(d) * d->n_rot), from, i);
        c->want_status[i] = c->status[from];
        c->want[i] = c->batch->row[from];
    }
    c->want_batch = (struct moe_batch){ c->want, c->n_want };
    c->all = (struct moe_all_rows){ c->batch, c->status };
    c->batch = &c->want_batch;
    c->status = c->want_status;
    c->n_row = c->n_want;
}

/* After the last layer: the batch and its statuses are those of all rows again.  c->x has the rows with logits: row i,
 * or if no row was dropped, row want_row[i]. */
static void restore_rows(struct moe_context *c)
{
    if (!c->all.batch)
        return;
    for (int i = 0; i < c->n_want; i++) {
        c->all.status[c->want_row[i]] = c->status[i];
        c->want_row[i] = i;
    }
    c->batch = c->all.batch;
    c->status = c->all.status;
    c->n_row = c->batch->n_row;
    c->all.batch = NULL;
}

static void scale_row(void *arg, int row, int thread)
{
    (void)thread;
    struct moe_context *c = arg;
    const struct moe_desc *d = &c->model->desc;
    scale(c->logits + (size_t)row * (size_t)d->n_vocab, d->logit_scale, d->n_vocab);
}

static void finish(struct moe_context *c)
{
    const struct moe_model *m = c->model;
    if (c->opt.features.last)
        moe_keep_last(c);
    moe_rows_norm(c, m->out_norm, moe_act_bit(&m->head), c->want_row, c->n_want);
    c->product[0] = moe_product(&c->norm, &m->head, m->guess ? c->guessed : c->logits, c->n_want);
    moe_products(c, 1);
    if (m->desc.logit_scale != 1)
        kn_parallel_for(c->team, c->n_want, scale_row, c);
    if (m->desc.head == MOE_HEAD_EAGLE3)
        moe_head_end(c);
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
        if (!c->n_row)
            moe_prefetch_release(c, layer);
        else if (c->model->layer[layer].router.n_out)
            moe_experts(c, layer);
        else
            moe_dense_ffn(c, layer);
    }
    restore_rows(c);
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
