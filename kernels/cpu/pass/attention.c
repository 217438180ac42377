/* Softmax attention and latent attention.
 *
 * finish_qkv and latent_keep write each row's own slot; attend reads the slots of the row's path.  They are separate
 * operations, so rows of a prefill chunk see each other through the KV cache only: a row's result is the same whether
 * earlier tokens are rows of this batch or of an earlier one. */
#include "kernels/cpu/pass/host.h"

#include <string.h>

#define HEADS_AT_ONCE 16 /* most query heads of one item, computed by one kernel call */
#define HEADS_LEAST   4  /* fewest heads of one item, if the heads of a KV head are divided */

/* ---- queries, keys and values -------------------------------------------------------------------------------- */

void kn_cache_put(const struct kn_ops *ops, enum kn_kv kv, struct kn_cache_head h, int32_t slot, const float *x, int n)
{
    ops->kv_store(kv, x, n, h.number + (size_t)slot * (size_t)h.step * kn_kv_value_bytes(kv),
                  h.scale ? h.scale + slot * kn_kv_blocks(h.step) : NULL);
}

struct finish_job {
    const struct kn_ops *ops;
    const struct kn_op_finish_qkv *o;
};

/* x[n_head][d_head]: each head normalised by w[d_head], or all of them as one by w[n_head * d_head]. */
static void norm_heads(const struct finish_job *j, float *x, int n_head, const float *w)
{
    const struct kn_op_finish_qkv *o = j->o;
    int n = o->norm_all ? n_head * o->d_head : o->d_head;
    for (int at = 0; at < n_head * o->d_head; at += n)
        j->ops->rms_norm(x + at, w, o->eps, n, x + at);
}

static void norm_values(const struct finish_job *j, float *v)
{
    const struct kn_op_finish_qkv *o = j->o;
    for (int h = 0; o->v_norm && h < o->n_kv; h++)
        j->ops->rms_norm(v + h * o->d_value, o->v_norm, o->eps, o->d_value, v + h * o->d_value);
}

static void norm_qk(const struct finish_job *j, float *q, float *k)
{
    if (!j->o->q_norm)
        return;
    norm_heads(j, q, j->o->n_head, j->o->q_norm);
    norm_heads(j, k, j->o->n_kv, j->o->k_norm);
}

static void rotate_qk(const struct finish_job *j, int row, float *q, float *k)
{
    const struct kn_op_finish_qkv *o = j->o;
    if (!o->rotation)
        return;
    const float(*rotation)[2] = o->rotation + (size_t)row * (size_t)(o->n_rot / 2);
    j->ops->rope(q, o->n_head, o->d_head, o->n_rot, rotation, o->rope);
    j->ops->rope(k, o->n_kv, o->d_head, o->n_rot, rotation, o->rope);
}

static void clamp(float *x, int n, float most)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

/* Copies the queries of one row from q_gate, where each head's gate follows its query, to q: [n_head][d_head]. */
static void take_queries(const struct kn_op_finish_qkv *o, int row, float *q)
{
    size_t d_head = (size_t)o->d_head, n_head = (size_t)o->n_head;
    const float *from = o->q_gate + (size_t)row * 2 * n_head * d_head;
    for (size_t h = 0; h < n_head; h++)
        memcpy(q + h * d_head, from + 2 * h * d_head, d_head * sizeof *q);
}

static void finish_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct finish_job *j = arg;
    const struct kn_op_finish_qkv *o = j->o;
    const struct kn_ops *ops = j->ops;
    if (o->rows.status[row])
        return;
    int n_q = o->n_head * o->d_head, n_k = o->n_kv * o->d_head, n_v = o->n_kv * o->d_value;
    float *q = o->q + (size_t)row * (size_t)n_q, *k = o->k + (size_t)row * (size_t)n_k;
    float *v = o->v + (size_t)row * (size_t)n_v;
    if (o->q_gate)
        take_queries(o, row, q);
    if (o->q_bias) {
        ops->add(q, o->q_bias, n_q);
        ops->add(k, o->k_bias, n_k);
        ops->add(v, o->v_bias, n_v);
    }
    if (o->v_is_k)
        memcpy(v, k, (size_t)n_v * sizeof *v);
    norm_values(j, v);
    if (!o->late_norm)
        norm_qk(j, q, k);
    if (o->clamp > 0) {
        clamp(q, n_q, o->clamp);
        clamp(k, n_k, o->clamp);
        clamp(v, n_v, o->clamp);
    }
    rotate_qk(j, row, q, k);
    if (o->late_norm)
        norm_qk(j, q, k);
    for (int i = 0; o->scale_q && i < n_q; i++)
        q[i] = q[i] * o->rows.row[row].q_scale;
    for (int i = 0; o->v_scale > 0 && i < n_v; i++)
        v[i] = v[i] * o->v_scale;
    int32_t slot = o->rows.row[row].slot;
    for (int h = 0; h < o->n_kv; h++) {
        kn_cache_put(ops, o->cache.kv, kn_cache_keys(&o->cache, h), slot, k + h * o->d_head, o->d_head);
        kn_cache_put(ops, o->cache.kv, kn_cache_values(&o->cache, h), slot, v + h * o->d_value, o->d_value);
    }
}

void kn_host_finish_qkv(struct kn_host_queue *q, const struct kn_op_finish_qkv *o)
{
    kn_parallel_for(q->team, o->rows.n, finish_row, &(struct finish_job){ q->ops, o });
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

struct attend_job {
    const struct kn_ops *ops;
    const struct kn_op_attend *o;
    int n_part, n_q; /* items of one row and KV head; most query heads of an item */
};

/* An item: n_q query heads from `head` on of one KV head of one row.  All rows of a KV head come before the next head, so
 * its keys stay in the CPU cache.  Rows are taken from the last to the first, because later rows of a prefill chunk attend
 * to more positions: the longest items start first. */
struct place {
    int row, kv_head, head, n_q;
    float *out;
};

static struct place place_of(const struct attend_job *j, int item)
{
    const struct kn_op_attend *o = j->o;
    int n_each = o->n_head / o->n_kv, part = item % j->n_part, n_row = o->rows.n;
    struct place p = { .row = n_row - 1 - item / j->n_part % n_row, .kv_head = item / j->n_part / n_row };
    p.head = p.kv_head * n_each + part * j->n_q;
    p.n_q = kn_min(j->n_q, n_each - part * j->n_q);
    p.out = o->by_head ? o->out.x + ((size_t)p.row * (size_t)o->n_head + (size_t)p.head) * o->out.stride
                       : o->out.x + (size_t)p.row * o->out.stride + (size_t)p.head * (size_t)o->d_value;
    return p;
}

static const float *query_of(const struct kn_op_attend *o, const struct place *p, const float *q, int values)
{
    return q + ((size_t)p->row * (size_t)o->n_head + (size_t)p->head) * (size_t)values;
}

static bool describe_item(const void *arg, int item, struct kn_attend *out)
{
    const struct attend_job *j = arg;
    const struct kn_op_attend *o = j->o;
    struct place p = place_of(j, item);
    const struct kn_row *r = &o->rows.row[p.row];
    if (o->rows.status[p.row])
        return false;
    struct kn_cache_head keys = kn_cache_keys(&o->cache, p.kv_head), values = kn_cache_values(&o->cache, p.kv_head);
    kn_assert(!o->by_head || p.n_q == 1 || o->out.stride == (size_t)o->d_value);
    *out = (struct kn_attend){
        .q = query_of(o, &p, o->q, o->d_key),
        .out = p.out,
        .k = keys.number,
        .v = values.number,
        .k_step = keys.step,
        .v_step = values.step,
        .k_scale = keys.scale,
        .v_scale = values.scale,
        .base = r->base,
        .tail = r->tail,
        .n_base = r->n_base,
        .first = kn_first_position(r, o->window, o->chunked),
        .last = r->position,
        .n_q = p.n_q,
        .d_key = o->d_key,
        .d_value = o->d_value,
        .kv = o->cache.kv,
        .scale = o->scale,
        .sink = o->sink ? o->sink + p.head : NULL,
    };
    return true;
}

/* Applies the gate of each head, and codes the heads' outputs if they are rows. */
static void finish_item(const void *arg, int item)
{
    const struct attend_job *j = arg;
    const struct kn_op_attend *o = j->o;
    struct place p = place_of(j, item);
    const float *by = o->q_gate ? query_of(o, &p, o->q_gate, 2 * o->d_key) + o->d_key : NULL;
    for (int h = 0; o->q_gate && h < p.n_q; h++)
        j->ops->gate(p.out + h * o->d_value, by + 2 * h * o->d_key, o->d_value);
    for (int h = 0; o->by_head && h < p.n_q; h++)
        kn_host_code_row(j->ops, &o->out, o->kinds, o->d_value, p.row * o->n_head + p.head + h);
}

/* The query heads of a KV head are one item, because each item reads the head's keys and values.  If the values are a
 * part of the keys (latent attention), arithmetic is the bound, so the heads are divided: HEADS_AT_ONCE to an item, or
 * fewer (to HEADS_LEAST) if each thread would get less than two spans of the items: splitting spans over threads is
 * better than splitting heads, because then no latent is read twice. */
static int heads_per_item(const struct kn_host_queue *q, const struct kn_op_attend *o)
{
    int n_each = o->n_head / o->n_kv, n = HEADS_AT_ONCE, n_span = 0;
    if (o->cache.k != o->cache.v)
        return n_each;
    for (int i = 0; i < o->rows.n; i++)
        n_span += 1 + o->rows.row[i].position / KN_SPAN;
    while (n > HEADS_LEAST && n_span * kn_ceil_div(n_each, n) < 2 * kn_team_size(q->team))
        n /= 2;
    return n;
}

void kn_host_attend(struct kn_host_queue *q, const struct kn_op_attend *o)
{
    int n_q = heads_per_item(q, o);
    struct attend_job job = { q->ops, o, kn_ceil_div(o->n_head / o->n_kv, n_q), n_q };
    int n_item = o->rows.n * o->n_kv * job.n_part;
    kn_host_attend_items(q, &(struct kn_attend_items){ n_item, describe_item, finish_item, &job });
    if (!o->by_head)
        kn_host_code(q, &(struct kn_op_code){ o->out, o->kinds, o->rows.n, o->n_head * o->d_value });
}

/* ---- latent attention ------------------------------------------------------------------------------------------- */

static void latent_keep_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_latent_keep *o = j->op;
    int d_key = o->d_latent + o->n_rot;
    float *k = o->k + (size_t)row * (size_t)d_key;
    if (o->rows.status[row])
        return;
    j->ops->rms_norm(k, o->k_norm, o->eps, o->d_latent, k);
    j->ops->rope(k + o->d_latent, 1, o->n_rot, o->n_rot, o->rotation + (size_t)row * (size_t)(o->n_rot / 2), o->rope);
    kn_cache_put(j->ops, o->cache.kv, kn_cache_keys(&o->cache, 0), o->rows.row[row].slot, k, d_key);
    if (o->d_low) {
        float *low = o->low.x + (size_t)row * o->low.stride;
        j->ops->rms_norm(low, o->low_norm, o->eps, o->d_low, low);
        kn_host_code_row(j->ops, &o->low, o->low_kinds, o->d_low, row);
    }
}

void kn_host_latent_keep(struct kn_host_queue *q, const struct kn_op_latent_keep *o)
{
    kn_host_for(q, o->rows.n, latent_keep_row, o);
}

static void latent_place_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_latent_place *o = j->op;
    int row = item / o->n_head;
    if (o->rows.status[row])
        return;
    const float *q = o->q + (size_t)item * (size_t)(o->d_plain + o->n_rot);
    float *rotated = o->absorbed + (size_t)item * (size_t)(o->d_latent + o->n_rot) + o->d_latent;
    float *plain = o->plain.x + (size_t)item * o->plain.stride, by = o->rows.row[row].q_scale;
    memcpy(plain, q, (size_t)o->d_plain * sizeof *q);
    memcpy(rotated, q + o->d_plain, (size_t)o->n_rot * sizeof *q);
    j->ops->rope(rotated, 1, o->n_rot, o->n_rot, o->rotation + (size_t)row * (size_t)(o->n_rot / 2), o->rope);
    for (int i = 0; o->scale_q && i < o->d_plain; i++)
        plain[i] = plain[i] * by;
    for (int i = 0; o->scale_q && i < o->n_rot; i++)
        rotated[i] = rotated[i] * by;
    kn_host_code_row(j->ops, &o->plain, o->kinds, o->d_plain, item);
}

void kn_host_latent_place(struct kn_host_queue *q, const struct kn_op_latent_place *o)
{
    kn_host_for(q, o->rows.n * o->n_head, latent_place_item, o);
}
