/* kernels/cpu/reference.c - the specification of norm, rope, swiglu, softmax, sums, attention and the
 * delta rule, in plain C.
 *
 * Every other implementation of these operations (vector.tmpl.c, attention.tmpl.c, delta.tmpl.c, cuda/)
 * gives the same bits, and the tests compare them with memcmp.  So the order of every float operation
 * is specified here:
 *
 *   - a sum over n elements has 64 accumulators that start at +0; element i goes to accumulator
 *     i mod 64, i ascending; then acc[i] += acc[i + 32] for i < 32, and so on with 16, 8, 4, 2, 1;
 *   - a maximum starts at minus infinity and becomes x where x > max; so a NaN never becomes the
 *     maximum, and the order does not matter;
 *   - exp is kn_expf (cpu/expf.h); sqrtf and / are IEEE's. */
#include "kernels/cpu/expf.h"
#include "kernels/internal.h"

#include <math.h>
#include <string.h>

#define N_ACC KN_ACCUMULATORS

float kn_tree_sum(float acc[N_ACC])
{
    for (int half = N_ACC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            acc[i] += acc[i + half];
    return acc[0];
}

static float dot(const float *x, const float *y, int n)
{
    float acc[N_ACC] = { 0 };
    for (int i = 0; i < n; i++)
        acc[i % N_ACC] = fmaf(x[i], y[i], acc[i % N_ACC]);
    return kn_tree_sum(acc);
}

static float larger(float x, float most) { return x > most ? x : most; }

/* ---- rows of floats ------------------------------------------------------------------------- */

void kn_rms_norm_scalar(const float *x, const float *w, float eps, int n, float *y)
{
    float inv = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = (x[i] * inv) * w[i];
}

void kn_center_scalar(const float *x, int n, float *y)
{
    float acc[N_ACC] = { 0 };
    for (int i = 0; i < n; i++)
        acc[i % N_ACC] += x[i];
    float mean = kn_tree_sum(acc) / (float)n;
    for (int i = 0; i < n; i++)
        y[i] = x[i] - mean;
}

void kn_softmax_scalar(float *x, int n)
{
    float most = -HUGE_VALF, acc[N_ACC] = { 0 };
    for (int i = 0; i < n; i++)
        most = larger(x[i], most);
    for (int i = 0; i < n; i++) {
        x[i] = kn_expf(x[i] - most);
        acc[i % N_ACC] += x[i];
    }
    float sum = kn_tree_sum(acc);
    for (int i = 0; i < n; i++)
        x[i] = x[i] / sum;
}

void kn_swiglu_scalar(const float *gate, const float *up, int n, float *y)
{
    for (int i = 0; i < n; i++)
        y[i] = (gate[i] / (1.0f + kn_expf(-gate[i]))) * up[i];
}

/* A NaN in gate or up stays NaN: it is not replaced by the limit. */
void kn_swiglu_clamped_scalar(const float *gate, const float *up, float alpha, float limit, int n, float *y)
{
    for (int i = 0; i < n; i++) {
        float g = limit < gate[i] ? limit : gate[i], u = limit < up[i] ? limit : up[i];
        u = -limit > u ? -limit : u;
        y[i] = (g / (1.0f + kn_expf(-(alpha * g)))) * (u + 1.0f);
    }
}

void kn_gate_scalar(float *x, const float *by, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + kn_expf(-by[i]));
}

void kn_cap_scalar(float *x, float cap, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = cap * kn_tanhf_inline(x[i] / cap);
}

void kn_conv_scalar(const float *const *x, const float *w, int n_tap, int n, float *y)
{
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int j = 0; j < n_tap; j++)
            sum = fmaf(w[(size_t)j * (size_t)n + (size_t)i], x[j][i], sum);
        y[i] = sum / (1.0f + kn_expf(-sum));
    }
}

void kn_add_scalar(float *x, const float *y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] + y[i];
}

void kn_add_scaled_scalar(float *x, float a, const float *y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = fmaf(a, y[i], x[i]);
}

/* The pair (a, b) becomes (a cos - b sin, a sin + b cos). */
void kn_rope_scalar(float *x, int n_head, int d_head, int n_rot, const float (*turn)[2], enum kn_rope kind)
{
    int n_pair = n_rot / 2;
    for (int h = 0; h < n_head; h++, x += d_head) {
        for (int i = 0; i < n_pair; i++) {
            float *pa = kind == KN_ROPE_PAIRS ? &x[2 * i] : &x[i];
            float *pb = kind == KN_ROPE_PAIRS ? &x[2 * i + 1] : &x[n_pair + i];
            float a = *pa, b = *pb, c = turn[i][0], s = turn[i][1];
            *pa = fmaf(a, c, -(b * s));
            *pb = fmaf(a, s, b * c);
        }
    }
}

/* ---- keys, values, attention ---------------------------------------------------------------- */

static void code_vector(const float *x, int n, int8_t *q, float *scale)
{
    for (int at = 0; at < n; at += KN_KV_BLOCK)
        scale[at / KN_KV_BLOCK] = kn_code_block(x + at, kn_min(KN_KV_BLOCK, n - at), q + at);
}

void kn_kv_store_scalar(enum kn_kv kv, const float *x, int n, void *out, float *scale)
{
    uint16_t *half = out;
    switch (kv) {
    case KN_KV_F32:
        memcpy(out, x, (size_t)n * sizeof *x);
        break;
    case KN_KV_INT8:
        code_vector(x, n, out, scale);
        break;
    default:
        for (int i = 0; i < n; i++)
            half[i] = kn_f32_to_f16(x[i]);
    }
}

/* Converts n values from index `at` on to floats. */
static void load_row(enum kn_kv kv, const void *rows, size_t at, int n, float *x)
{
    for (int i = 0; i < n; i++)
        x[i] = kv == KN_KV_F32 ? ((const float *)rows)[at + (size_t)i]
                               : kn_f16_to_f32(((const uint16_t *)rows)[at + (size_t)i]);
}

static size_t slot_of(const struct kn_attend *a, int p)
{
    return (size_t)(p < a->n_base ? a->base[p] : a->tail[p - a->n_base]);
}

/* A query, and its codes if keys and values are int8. */
struct query {
    const float *x;
    int8_t code[KN_MAX_D_HEAD];
    float scale[KN_MAX_D_HEAD / KN_KV_BLOCK];
};

static void load_query(const struct kn_attend *a, int head, struct query *q)
{
    q->x = a->q + head * a->d_key;
    if (a->kv == KN_KV_INT8)
        code_vector(q->x, a->d_key, q->code, q->scale);
}

/* Dot product of the query with the key of position p. */
static float score_of(const struct kn_attend *a, const struct query *q, int p)
{
    float row[KN_MAX_D_HEAD], x = 0;
    size_t slot = slot_of(a, p), at = slot * (size_t)a->k_step;
    if (a->kv != KN_KV_INT8) {
        load_row(a->kv, a->k, at, a->d_key, row);
        return dot(q->x, row, a->d_key);
    }
    const int8_t *code = (const int8_t *)a->k + at;
    const float *scale = a->k_scale + slot * (size_t)kn_kv_blocks(a->k_step);
    for (int b = 0; b < kn_kv_blocks(a->d_key); b++) {
        int sum = 0;
        for (int i = KN_KV_BLOCK * b; i < kn_min(a->d_key, KN_KV_BLOCK * (b + 1)); i++)
            sum += q->code[i] * code[i];
        x = fmaf((float)sum, q->scale[b] * scale[b], x);
    }
    return x;
}

/* One head's attention over positions of one chunk, or of several after merge(): the largest score; sum of the weights
 * exp(score - most); sum of weight * value.  kernels.h has the order. */
struct part {
    float most, sum, o[KN_MAX_D_HEAD];
};

static void add_values(const struct kn_attend *a, int lo, int hi, const float weight[KN_CHUNK], float *o)
{
    float row[KN_MAX_D_HEAD];
    memset(o, 0, (size_t)a->d_value * sizeof *o);
    for (int p = lo; p < hi; p++) {
        load_row(a->kv, a->v, slot_of(a, p) * (size_t)a->v_step, a->d_value, row);
        for (int i = 0; i < a->d_value; i++)
            o[i] = fmaf(weight[p % KN_CHUNK], row[i], o[i]);
    }
}

/* Values from d on, of one block. */
static void add_coded_values(const struct kn_attend *a, int lo, int hi, const float weight[KN_CHUNK], int d, float *o)
{
    float t[KN_CHUNK] = { 0 };
    int8_t code[KN_CHUNK];
    for (int p = lo; p < hi; p++) {
        size_t at = slot_of(a, p) * (size_t)kn_kv_blocks(a->v_step) + (size_t)(d / KN_KV_BLOCK);
        t[p % KN_CHUNK] = weight[p % KN_CHUNK] * a->v_scale[at];
    }
    float scale = kn_code_block(t, KN_CHUNK, code);
    for (int i = d; i < kn_min(a->d_value, d + KN_KV_BLOCK); i++) {
        int sum = 0;
        for (int p = lo; p < hi; p++)
            sum += code[p % KN_CHUNK] * ((const int8_t *)a->v)[slot_of(a, p) * (size_t)a->v_step + (size_t)i];
        o[i] = (float)sum * scale;
    }
}

static void attend_chunk(const struct kn_attend *a, const struct query *q, int lo, int hi, struct part *c)
{
    float score[KN_CHUNK], weight[KN_CHUNK] = { 0 };

    c->most = -HUGE_VALF;
    for (int p = lo; p < hi; p++) {
        score[p % KN_CHUNK] = a->scale * score_of(a, q, p);
        c->most = larger(score[p % KN_CHUNK], c->most);
    }
    for (int p = lo; p < hi; p++)
        weight[p % KN_CHUNK] = kn_expf(score[p % KN_CHUNK] - c->most);
    float acc[KN_CHUNK];
    memcpy(acc, weight, sizeof acc);
    c->sum = kn_tree_sum(acc);
    if (a->kv != KN_KV_INT8)
        add_values(a, lo, hi, weight, c->o);
    else
        for (int d = 0; d < a->d_value; d += KN_KV_BLOCK)
            add_coded_values(a, lo, hi, weight, d, c->o);
}

/* Merges c into total; both become relative to the larger maximum. */
static void merge(struct part *total, const struct part *c, int d_value)
{
    float most = larger(c->most, total->most);
    float keep = kn_expf(total->most - most), take = kn_expf(c->most - most);
    total->most = most;
    total->sum = fmaf(c->sum, take, total->sum * keep);
    for (int i = 0; i < d_value; i++)
        total->o[i] = fmaf(c->o[i], take, total->o[i] * keep);
}

/* Adds one position with score `sink` and no value: it only makes the other positions' shares smaller. */
static void add_sink(struct part *total, float sink, int d_value)
{
    float most = larger(sink, total->most), keep = kn_expf(total->most - most);
    total->sum = fmaf(total->sum, keep, kn_expf(sink - most));
    for (int i = 0; i < d_value; i++)
        total->o[i] = total->o[i] * keep;
}

/* Chunks and spans are absolute: chunk c holds positions 64 c .. 64 c + 63, even if only some are attended to.  So a
 * row's result does not depend on how its past was computed, stored or cut.  lo..last: attended positions of a span. */
static void attend_span(const struct kn_attend *a, int head, int lo, int last, struct part *total)
{
    struct part c;
    struct query q;
    load_query(a, head, &q);
    for (int from = lo; from <= last;) {
        int hi = kn_min(last, from / KN_CHUNK * KN_CHUNK + KN_CHUNK - 1) + 1;
        attend_chunk(a, &q, from, hi, from == lo ? total : &c);
        if (from != lo)
            merge(total, &c, a->d_value);
        from = hi;
    }
}

static void finish_head(const struct kn_attend *a, int head, struct part *total)
{
    if (a->sink)
        add_sink(total, a->sink[head], a->d_value);
    for (int i = 0; i < a->d_value; i++)
        a->out[head * a->d_value + i] = total->o[i] / total->sum;
}

void kn_attend_scalar(const struct kn_attend *a)
{
    for (int h = 0; h < a->n_q; h++) {
        struct part total, span;
        for (int lo = a->first; lo <= a->last;) {
            int last = kn_min(a->last, lo / KN_SPAN * KN_SPAN + KN_SPAN - 1);
            attend_span(a, h, lo, last, lo == a->first ? &total : &span);
            if (lo != a->first)
                merge(&total, &span, a->d_value);
            lo = last + 1;
        }
        finish_head(a, h, &total);
    }
}

void kn_attend_span_scalar(const struct kn_attend *a, float *out)
{
    kn_assert(a->first <= a->last && a->first / KN_SPAN == a->last / KN_SPAN);
    for (int h = 0; h < a->n_q; h++) {
        struct part span;
        attend_span(a, h, a->first, a->last, &span);
        out[h] = span.most;
        out[a->n_q + h] = span.sum;
        memcpy(out + 2 * a->n_q + h * a->d_value, span.o, (size_t)a->d_value * sizeof *out);
    }
}

static void load_part(const struct kn_attend *a, int head, const float *in, struct part *out)
{
    out->most = in[head];
    out->sum = in[a->n_q + head];
    memcpy(out->o, in + 2 * a->n_q + head * a->d_value, (size_t)a->d_value * sizeof *in);
}

void kn_attend_join_scalar(const struct kn_attend *a, const float *part, int n_part)
{
    for (int h = 0; h < a->n_q; h++) {
        struct part total, span;
        load_part(a, h, part, &total);
        for (int i = 1; i < n_part; i++) {
            load_part(a, h, part + (size_t)i * kn_part_floats(a->n_q, a->d_value), &span);
            merge(&total, &span, a->d_value);
        }
        finish_head(a, h, &total);
    }
}

/* ---- the gated delta rule ------------------------------------------------------------------- */

/* Dot product of x with one column of a tile. */
static float column_dot(const float *x, const float *column, int d_key)
{
    float acc[4] = { 0 };
    for (int i = 0; i < d_key; i++)
        acc[i % 4] = fmaf(x[i], column[i * KN_DELTA_TILE], acc[i % 4]);
    return (acc[0] + acc[2]) + (acc[1] + acc[3]);
}

/* Padding columns, beyond d_value, are computed with value 0. */
static void delta_column(const struct kn_delta *d, const struct kn_delta_row *r, int at, float *column)
{
    float v = at < d->d_value ? r->v[at] : 0;
    float e = r->beta * fmaf(-r->decay, column_dot(r->k, column, d->d_key), v);
    for (int i = 0; i < d->d_key; i++) {
        float *s = &column[i * KN_DELTA_TILE];
        *s = fmaf(r->k[i], e, r->decay * *s);
    }
    if (r->out && at < d->d_value)
        r->out[at] = column_dot(r->q, column, d->d_key);
}

void kn_delta_scalar(const struct kn_delta *d)
{
    for (int at = 0; at < (int)kn_align_up((size_t)d->d_value, KN_DELTA_TILE); at++) {
        float *tile = d->state + (size_t)(at / KN_DELTA_TILE * KN_DELTA_TILE) * (size_t)d->d_key;
        for (int r = 0; r < d->n_row; r++)
            delta_column(d, &d->row[r], at, tile + at % KN_DELTA_TILE);
    }
}
