/* Softmax attention: norm, Q/K/V projections, RoPE, write to the KV cache, attention, output projection, residual add.
 *
 * Every row writes its own slot before any row of the batch reads.  So rows of a prefill chunk see each other through
 * the KV cache only: a row's result is the same whether earlier tokens are rows of this batch or of an earlier one. */
#include "moe/pass/pass.h"

#include <string.h>

struct attention_job {
    struct moe_context *c;
    const struct moe_layer *l;
    int layer;
};

/* x[n_head][d_head]: each head normalised by w[d_head], or all of them as one by w[n_head * d_head]. */
static void norm_heads(const struct moe_context *c, float *x, int n_head, const float *w)
{
    const struct moe_desc *d = &c->model->desc;
    int n = d->qk_norm == MOE_QK_NORM_ALL ? n_head * d->d_head : d->d_head;
    for (int at = 0; at < n_head * d->d_head; at += n)
        c->model->ops->rms_norm(x + at, w, d->eps, n, x + at);
}

static void norm_qk(const struct moe_context *c, const struct moe_layer *l, float *q, float *k)
{
    const struct moe_desc *d = &c->model->desc;
    if (!l->q_norm)
        return;
    norm_heads(c, q, d->n_head, l->q_norm);
    norm_heads(c, k, d->n_kv, l->k_norm);
}

static void clamp(float *x, int n, float most)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

/* Copies the queries of one row from c->q_gate, where each head's gate follows its query, to q: [n_head][d_head]. */
static void take_queries(const struct moe_context *c, int row, float *q)
{
    size_t d_head = (size_t)c->model->desc.d_head, n_head = (size_t)c->model->desc.n_head;
    const float *from = c->q_gate + (size_t)row * 2 * n_head * d_head;
    for (size_t h = 0; h < n_head; h++)
        memcpy(q + h * d_head, from + 2 * h * d_head, d_head * sizeof *q);
}

/* Applies bias, QK norm, clamp and rotation to one row's Q, K and V, and stores its key and value in its slot. */
static void finish_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct attention_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    const struct kn_ops *ops = c->model->ops;
    const struct moe_layer *l = j->l;
    if (c->status[row])
        return;
    int n_q = d->n_head * d->d_head, n_k = d->n_kv * d->d_head, n_v = d->n_kv * d->d_value;
    float *q = c->q + (size_t)row * (size_t)n_q, *k = c->k + (size_t)row * (size_t)n_k;
    float *v = c->v + (size_t)row * (size_t)n_v;
    if (d->out_gate)
        take_queries(c, row, q);
    if (l->q_bias) {
        ops->add(q, l->q_bias, n_q);
        ops->add(k, l->k_bias, n_k);
        ops->add(v, l->v_bias, n_v);
    }
    if (!d->late_qk_norm)
        norm_qk(c, l, q, k);
    if (d->clamp_qkv > 0) {
        clamp(q, n_q, d->clamp_qkv);
        clamp(k, n_k, d->clamp_qkv);
        clamp(v, n_v, d->clamp_qkv);
    }
    if (moe_is_rotated(d, j->layer)) {
        ops->rope(q, d->n_head, d->d_head, d->n_rot, moe_rotation_of(c, j->layer, row), d->rope);
        ops->rope(k, d->n_kv, d->d_head, d->n_rot, moe_rotation_of(c, j->layer, row), d->rope);
    }
    if (d->late_qk_norm)
        norm_qk(c, l, q, k);
    int32_t slot = moe_own_slot(&c->batch->row[row]);
    for (int h = 0; h < d->n_kv; h++) {
        moe_kv_put(c, moe_kv_keys(c, j->layer, h), slot, k + h * d->d_head);
        moe_kv_put(c, moe_kv_values(c, j->layer, h), slot, v + h * d->d_value);
    }
}

/* Where an item's values are: those of one row with the query heads of one KV head.  All rows of a KV head come before
 * the next head, so its keys stay in the CPU cache.  Rows are taken from the last to the first, because later rows of a
 * prefill chunk attend to more positions: the longest items start first. */
struct place {
    int row, head, n_q;
    size_t q, out; /* its first value in c->q, in c->att.x */
};

static struct place place_of(const struct moe_context *c, int item)
{
    const struct moe_desc *d = &c->model->desc;
    struct place p = { .row = c->n_row - 1 - item % c->n_row, .head = item / c->n_row, .n_q = d->n_head / d->n_kv };
    p.q = ((size_t)p.row * (size_t)d->n_head + (size_t)(p.head * p.n_q)) * (size_t)d->d_head;
    p.out = (size_t)p.row * c->att.stride + (size_t)(p.head * p.n_q) * (size_t)d->d_value;
    return p;
}

static bool describe_item(const void *arg, int item, struct kn_attend *out)
{
    const struct attention_job *j = arg;
    const struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = j->l;
    struct place p = place_of(c, item);
    const struct moe_row *r = &c->batch->row[p.row];
    if (c->status[p.row])
        return false;
    struct moe_kv_array keys = moe_kv_keys(c, j->layer, p.head), values = moe_kv_values(c, j->layer, p.head);
    *out = (struct kn_attend){
        .q = c->q + p.q,
        .out = c->att.x + p.out,
        .k = keys.value,
        .v = values.value,
        .k_step = d->d_head,
        .v_step = d->d_value,
        .k_scale = keys.scale,
        .v_scale = values.scale,
        .base = r->base,
        .tail = r->tail,
        .n_base = r->n_base,
        .first = l->window ? kn_max(0, r->position - l->window + 1) : 0,
        .last = r->position,
        .n_q = p.n_q,
        .d_key = d->d_head,
        .d_value = d->d_value,
        .kv = c->opt.kv,
        .scale = d->attend_scale,
        .sink = l->sinks ? l->sinks + p.head * p.n_q : NULL,
    };
    return true;
}

/* Multiplies each head's output by its gate. */
static void finish_item(const void *arg, int item)
{
    const struct attention_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    struct place p = place_of(c, item);
    for (int h = 0; d->out_gate && h < p.n_q; h++) {
        const float *by = c->q_gate + 2 * (p.q + (size_t)(h * d->d_head)) + d->d_head;
        c->model->ops->gate(c->att.x + p.out + h * d->d_head, by, d->d_head);
    }
}

void moe_attention(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct attention_job job = { c, l, layer };
    const struct moe_acts *in = d->head == MOE_HEAD_EAGLE3 ? &c->join : &c->norm;
    if (in == &c->norm)
        moe_rows_norm(c, l->attn_norm, moe_acts_of_attention(l), NULL, c->n_row);
    c->product[0] = moe_product(in, &l->q, d->out_gate ? c->q_gate : c->q, c->n_row);
    c->product[1] = moe_product(in, &l->k, c->k, c->n_row);
    c->product[2] = moe_product(in, &l->v, c->v, c->n_row);
    moe_products(c, 3);
    kn_parallel_for(c->team, c->n_row, finish_row, &job);
    moe_drop_rows(c, layer);
    if (!c->n_row)
        return;
    moe_attend(&(struct moe_attend){ c, c->n_row * d->n_kv, describe_item, finish_item, &job });
    moe_rows_code(c, &c->att, moe_act_bit(&l->o), d->n_head * d->d_value, NULL, c->n_row);
    c->product[0] = moe_product(&c->att, &l->o, c->y, c->n_row);
    moe_products(c, 1);
    moe_rows_add(c, c->y, l->o_bias, l->attn_out_norm);
}
