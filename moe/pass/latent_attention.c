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

#define HEAD_ROWS 2048 /* most rows times heads that struct moe_latent holds: more take several rounds */

/* A row and head takes 5 to 6 KiB with d_latent 512, so HEAD_ROWS take 10 to 12 MiB.  With 128 heads k_b and v_b, 18 MB
 * in Q8_0, are read once for 16 rows, which costs a twentieth of these rows' attention over 1,000 positions. */
int moe_latent_rows(const struct moe_desc *d, int max_row) { return kn_min(max_row, kn_max(1, HEAD_ROWS / d->n_head)); }

/* The product with a stack of one matrix for each head.  A head's matrix reads row (row * n_head + head) of in, and
 * writes its values to a row of y from head * y_part on; y_part may leave a gap behind them, which is not written. */
static void multiply_heads(struct moe_context *c, const struct kn_acts *in, const struct kn_mat *w, float *y,
                           size_t y_part, size_t y_stride, int n_row)
{
    struct kn_product p = kn_product(in, w, y, n_row);
    p.n_stack = c->model->desc.n_head;
    p.x_part = p.mul.x_stride;
    p.mul.x_stride *= (size_t)p.n_stack;
    p.y_part = y_part;
    p.mul.y_stride = y_stride;
    kn_enqueue(c->queue, PRODUCTS, products, .product[0] = p, .n = 1);
}

/* Attention of n rows of the batch from row `first` on; the latents of all rows of the batch are in their slots. */
static void attend_rows(struct moe_context *c, int layer, int first, int n)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_latent *m = &c->latent;
    size_t at = (size_t)first, n_head = (size_t)d->n_head, d_key = (size_t)d->d_key;
    struct kn_rows rows = moe_rows_from(c, first, n);
    kn_enqueue(c->queue, LATENT_PLACE, latent_place, .rows = rows, .n_head = d->n_head, .d_plain = d->d_head - d->n_rot,
               .n_rot = d->n_rot, .d_latent = d->d_latent, .q = c->q + at * n_head * (size_t)d->d_head,
               .absorbed = m->absorbed, .rotation = moe_rotation(c, layer) + at * (size_t)(d->n_rot / 2),
               .rope = d->rope, .plain = m->query, .kinds = kn_act_bit(&l->k_b), .scale_q = d->query_growth > 0);
    multiply_heads(c, &m->query, &l->k_b, m->absorbed, d_key, n_head * d_key, n);
    kn_enqueue(c->queue, ATTEND, attend, .rows = rows, .n_head = d->n_head, .n_kv = 1, .d_key = d->d_key,
               .d_value = d->d_kept, .q = m->absorbed, .scale = d->attend_scale, .cache = moe_cache(c, layer),
               .by_head = true, .out = m->mixed, .kinds = kn_act_bit(&l->v_b));
    multiply_heads(c, &m->mixed, &l->v_b, c->att.x + at * c->att.stride, (size_t)d->d_value, c->att.stride, n);
}

void moe_latent_attention(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    bool low = d->d_query_latent > 0;
    const struct kn_mat *first = low ? &l->q_a : &l->q;
    struct kn_op_products p = { .n = 0 };
    moe_add_norm(c, NULL, l->attn_norm, NULL, kn_act_bit(first) | kn_act_bit(&l->kv_a));
    moe_product_add(&p, &c->norm, first, low ? c->latent.low.x : c->q, c->n_row);
    moe_product_add(&p, &c->norm, &l->kv_a, c->k, c->n_row);
    if (low)
        p.product[0].mul.y_stride = c->latent.low.stride;
    moe_products(c, &p);
    kn_enqueue(c->queue, LATENT_KEEP, latent_keep, .rows = moe_rows(c), .d_latent = d->d_latent, .n_rot = d->n_rot,
               .d_low = d->d_query_latent, .k = c->k, .k_norm = l->kv_a_norm, .low_norm = l->q_a_norm,
               .eps = d->latent_eps, .low = c->latent.low, .low_kinds = kn_act_bit(&l->q),
               .rotation = moe_rotation(c, layer), .rope = d->rope, .cache = moe_cache(c, layer));
    if (low)
        moe_multiply(c, &c->latent.low, &l->q, c->q, c->n_row);
    moe_drop_rows(c, layer);
    if (!c->n_row)
        return;
    for (int row = 0; row < c->n_row; row += c->latent.max_row)
        attend_rows(c, layer, row, kn_min(c->latent.max_row, c->n_row - row));
    kn_enqueue(c->queue, CODE, code, .acts = c->att, .kinds = kn_act_bit(&l->o), .n = c->n_row,
               .n_in = d->n_head * d->d_value);
    moe_multiply(c, &c->att, &l->o, c->y, c->n_row);
}
