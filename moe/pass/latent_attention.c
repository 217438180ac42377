/* Multi-head latent attention (DeepSeek's MLA) in its absorbed form.
 *
 * A row stores one vector for all heads: d_latent values c, normalised, and n_rot values r, rotated.  The key of head h
 * is [K_h c, r] and its value V_h c; its query is [q, s], of which s is rotated.  Keys and values are never computed:
 *
 *     q . K_h c + s . r  =  [K_h^T q, s] . [c, r]        K_h^T q, the absorbed query, is computed once for each row
 *     sum p (V_h c)      =  V_h (sum p c)                p: attention weights; latents are summed, then V_h is applied
 *
 * So this is attention of n_head queries over one KV head; its value is the first part of its key.  Prefill rows use
 * the same form, so every row has the same arithmetic.
 *
 * Cost of one position in V3's shape (128 heads, 512 + 64 values, f16): 1,152 bytes of KV, against 40,960 bytes of full
 * keys and values; 128 * (576 + 512) = 139,264 multiply-adds, 3.4 times as many as with full keys and values.  That is
 * 121 multiply-adds per byte, so arithmetic is the bound, and the heads of a row may be split over threads, each of
 * which reads the latents again.  Absorbing costs d_latent * (d_head - n_rot + d_value) multiply-adds more per head.
 *
 * K_h and V_h are the layer's k_b and v_b (model/latent_weights.c). */
#include "moe/pass/pass.h"

#include <string.h>

#define HEADS_AT_ONCE 16   /* most heads of one item, computed by one kernel call */
#define HEADS_LEAST   4    /* fewest heads of one item */
#define HEAD_ROWS     2048 /* most rows times heads that struct moe_latent holds: more take several rounds */

/* A row and head takes 5 to 6 KiB with d_latent 512, so HEAD_ROWS take 10 to 12 MiB.  With 128 heads k_b and v_b, 18 MB
 * in Q8_0, are read once for 16 rows, which costs a twentieth of these rows' attention over 1,000 positions. */
int moe_latent_rows(const struct moe_desc *d, int max_row) { return kn_min(max_row, kn_max(1, HEAD_ROWS / d->n_head)); }

/* ---- attention ----------------------------------------------------------------------------------------- */

struct latent_job {
    struct moe_context *c;
    const struct moe_layer *l;
    int layer, n_q; /* n_q: heads of an item */
};

/* Stores one row's latent in its slot, and quantises the input of its query projection. */
static void keep_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct latent_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    const struct kn_ops *ops = c->model->ops;
    float *k = c->k + (size_t)row * (size_t)d->d_key;
    if (c->status[row])
        return;
    ops->rms_norm(k, j->l->kv_a_norm, d->latent_eps, d->d_latent, k);
    ops->rope(k + d->d_latent, 1, d->n_rot, d->n_rot, moe_rotation_of(c, j->layer, row), d->rope);
    moe_kv_put(c, moe_kv_keys(c, j->layer, 0), moe_own_slot(&c->batch->row[row]), k);
    if (d->d_query_latent) {
        float *low = c->latent.low.x + (size_t)row * c->latent.low.stride;
        ops->rms_norm(low, j->l->q_a_norm, d->latent_eps, d->d_query_latent, low);
        moe_code_row(c, &c->latent.low, moe_act_bit(&j->l->q), d->d_query_latent, row);
    }
}

/* Splits the query of one row and head: the last n_rot values are rotated and become the end of the absorbed query, the
 * others are quantised as input of k_b. */
static void place_query(void *arg, int item, int thread)
{
    (void)thread;
    const struct latent_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    struct moe_latent *m = &c->latent;
    int row = m->first + item / d->n_head, d_plain = d->d_head - d->n_rot;
    if (c->status[row])
        return;
    const float *q = c->q + ((size_t)m->first * (size_t)d->n_head + (size_t)item) * (size_t)d->d_head;
    float *rotated = m->absorbed + (size_t)item * (size_t)d->d_key + d->d_latent;
    memcpy(m->query.x + (size_t)item * m->query.stride, q, (size_t)d_plain * sizeof *q);
    memcpy(rotated, q + d_plain, (size_t)d->n_rot * sizeof *q);
    c->model->ops->rope(rotated, 1, d->n_rot, d->n_rot, moe_rotation_of(c, j->layer, row), d->rope);
    moe_code_row(c, &m->query, moe_act_bit(&j->l->k_b), d_plain, item);
}

/* An item: n_q heads from head on of one row, the row own of c->latent's arrays.  Rows are taken from the last to the
 * first, because later rows of a prefill chunk attend to more positions: the longest items start first. */
struct place {
    int own, first, n_q; /* first: own * n_head + head */
};

static struct place place_of(const struct latent_job *j, int item)
{
    const struct moe_context *c = j->c;
    int n_head = c->model->desc.n_head, n_part = kn_ceil_div(n_head, j->n_q), head = item % n_part * j->n_q;
    int own = kn_min(c->latent.max_row, c->n_row - c->latent.first) - 1 - item / n_part;
    return (struct place){ own, own * n_head + head, kn_min(j->n_q, n_head - head) };
}

static bool describe_item(const void *arg, int item, struct kn_attend *out)
{
    const struct latent_job *j = arg;
    const struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    const struct moe_latent *m = &c->latent;
    struct place p = place_of(j, item);
    const struct moe_row *r = &c->batch->row[m->first + p.own];
    struct moe_kv_array kept = moe_kv_keys(c, j->layer, 0);
    if (c->status[m->first + p.own])
        return false;
    *out = (struct kn_attend){
        .q = m->absorbed + (size_t)p.first * (size_t)d->d_key,
        .out = m->mixed.x + (size_t)p.first * m->mixed.stride,
        .k = kept.value,
        .v = kept.value,
        .k_step = d->d_key,
        .v_step = d->d_key,
        .k_scale = kept.scale,
        .v_scale = kept.scale,
        .base = r->base,
        .tail = r->tail,
        .n_base = r->n_base,
        .last = r->position,
        .n_q = p.n_q,
        .d_key = d->d_key,
        .d_value = d->d_kept,
        .kv = c->opt.kv,
        .scale = d->attend_scale,
    };
    return true;
}

/* Quantises the item's outputs. */
static void finish_item(const void *arg, int item)
{
    const struct latent_job *j = arg;
    struct moe_context *c = j->c;
    struct place p = place_of(j, item);
    for (int i = p.first; i < p.first + p.n_q; i++)
        moe_code_row(c, &c->latent.mixed, moe_act_bit(&j->l->v_b), c->model->desc.d_latent, i);
}

/* The product with a stack of one matrix for each head.  A head's matrix reads row (row * n_head + head) of in, and
 * writes its values to a row of y from head * y_part on; y_part may leave a gap behind them, which is not written. */
static struct moe_product per_head(const struct moe_context *c, const struct moe_acts *in, const struct kn_mat *w,
                                   float *y, size_t y_part, size_t y_stride, int n_row)
{
    struct moe_product p = moe_product(in, w, y, n_row);
    p.n_stack = c->model->desc.n_head;
    p.x_part = p.mul.x_stride;
    p.mul.x_stride *= (size_t)p.n_stack;
    p.y_part = y_part;
    p.mul.y_stride = y_stride;
    return p;
}

/* Heads of an attention item: HEADS_AT_ONCE, or fewer (to HEADS_LEAST) if each thread would get less than two spans of
 * the items: splitting spans over threads is better than splitting heads, because then no latent is read twice. */
static int heads_per_item(const struct moe_context *c, int n_row)
{
    int n = HEADS_AT_ONCE, n_head = c->model->desc.n_head, n_span = 0;
    for (int i = 0; i < n_row; i++)
        n_span += 1 + c->batch->row[c->latent.first + i].position / KN_SPAN;
    while (n > HEADS_LEAST && n_span * kn_ceil_div(n_head, n) < 2 * kn_team_size(c->team))
        n /= 2;
    return n;
}

/* Attention of the rows from m->first on, at most m->max_row; the latents of all rows of the batch are in
 * their slots. */
static void attend_rows(struct moe_context *c, struct latent_job *j)
{
    const struct moe_desc *d = &c->model->desc;
    struct moe_latent *m = &c->latent;
    int n_row = kn_min(m->max_row, c->n_row - m->first);
    size_t n_head = (size_t)d->n_head, d_key = (size_t)d->d_key;
    j->n_q = heads_per_item(c, n_row);
    kn_parallel_for(c->team, n_row * d->n_head, place_query, j);
    c->product[0] = per_head(c, &m->query, &j->l->k_b, m->absorbed, d_key, n_head * d_key, n_row);
    moe_products(c, 1);
    moe_attend(&(struct moe_attend){ c, n_row * kn_ceil_div(d->n_head, j->n_q), describe_item, finish_item, j });
    c->product[0] = per_head(c, &m->mixed, &j->l->v_b, c->att.x + (size_t)m->first * c->att.stride, (size_t)d->d_value,
                             c->att.stride, n_row);
    moe_products(c, 1);
}

void moe_latent_attention(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct latent_job job = { c, l, layer, 0 };
    bool low = d->d_query_latent > 0;
    const struct kn_mat *first = low ? &l->q_a : &l->q;
    moe_rows_norm(c, l->attn_norm, moe_act_bit(first) | moe_act_bit(&l->kv_a), NULL, c->n_row);
    c->product[0] = moe_product(&c->norm, first, low ? c->latent.low.x : c->q, c->n_row);
    c->product[1] = moe_product(&c->norm, &l->kv_a, c->k, c->n_row);
    if (low)
        c->product[0].mul.y_stride = c->latent.low.stride;
    moe_products(c, 2);
    kn_parallel_for(c->team, c->n_row, keep_row, &job);
    if (low) {
        c->product[0] = moe_product(&c->latent.low, &l->q, c->q, c->n_row);
        moe_products(c, 1);
    }
    moe_drop_rows(c, layer);
    if (!c->n_row)
        return;
    for (c->latent.first = 0; c->latent.first < c->n_row; c->latent.first += c->latent.max_row)
        attend_rows(c, &job);
    moe_rows_code(c, &c->att, moe_act_bit(&l->o), d->n_head * d->d_value, NULL, c->n_row);
    c->product[0] = moe_product(&c->att, &l->o, c->y, c->n_row);
    moe_products(c, 1);
    moe_rows_add(c, c->y, NULL, l->attn_out_norm);
}
