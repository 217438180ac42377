/* Softmax attention: norm, Q/K/V projections, RoPE, write to the KV cache, attention, output projection.
 *
 * Every row writes its own slot before any row of the batch reads.  So rows of a prefill chunk see each other through
 * the KV cache only: a row's result is the same whether earlier tokens are rows of this batch or of an earlier one. */
#include "moe/pass/pass.h"

void moe_attention(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    const struct moe_heads h = moe_heads(d, layer);
    const struct kn_acts *in = d->head == MOE_HEAD_EAGLE3 ? &c->join : &c->norm;
    float *gate = d->out_gate ? c->q_gate : NULL;
    bool rotated = moe_is_rotated(d, layer);
    const float *unit = d->unit_qk_norm && rotated ? c->model->unit_norm : NULL;
    struct kn_op_products p = { .n = 0 };
    if (in == &c->norm)
        moe_add_norm(c, NULL, l->attn_norm, l->attn_norm_bias, moe_acts_of_attention(l));
    moe_product_add(&p, in, &l->q, gate ? gate : c->q, c->n_row);
    moe_product_add(&p, in, &l->k, c->k, c->n_row);
    if (l->v.n_out)
        moe_product_add(&p, in, &l->v, c->v, c->n_row);
    moe_products(c, &p);
    kn_enqueue(c->queue, FINISH_QKV, finish_qkv, .rows = moe_rows(c), .n_head = d->n_head, .n_kv = h.n_kv,
               .d_head = h.d_head, .d_value = h.d_value, .n_rot = h.n_rot, .q = c->q, .k = c->k, .v = c->v,
               .q_gate = gate, .q_bias = l->q_bias, .k_bias = l->k_bias, .v_bias = l->v_bias,
               .q_norm = unit ? unit : l->q_norm, .k_norm = unit ? unit : l->k_norm,
               .norm_all = d->qk_norm == MOE_QK_NORM_ALL, .late_norm = d->late_qk_norm, .eps = d->eps,
               .clamp = d->clamp_qkv, .rotation = rotated ? moe_rotation(c, layer) : NULL, .rope = d->rope,
               .cache = moe_cache(c, layer), .scale_q = d->query_growth > 0 && !(d->query_unrotated && rotated),
               .v_is_k = !l->v.n_out, .v_norm = l->v_norm, .v_scale = d->v_scale != 1 ? d->v_scale : 0);
    moe_drop_rows(c, layer);
    if (!c->n_row)
        return;
    kn_enqueue(c->queue, ATTEND, attend, .rows = moe_rows(c), .n_head = d->n_head, .n_kv = h.n_kv, .d_key = h.d_head,
               .d_value = h.d_value, .window = l->window, .q = c->q, .q_gate = gate, .sink = l->sinks,
               .scale = d->attend_scale, .cache = moe_cache(c, layer), .out = c->att, .kinds = kn_act_bit(&l->o),
               .chunked = d->chunked);
    moe_multiply(c, &c->att, &l->o, c->y, c->n_row);
}
