/* Softmax attention and latent attention (kernels/cpu/reference.c).
 *
 * attend: a block computes one query head of a row, either over all of the row's spans, or over one of them; then the last
 * of a head's blocks merges its parts, in order.  The last of the heads that share a record of codes makes it.  Within a chunk of 64 positions each warp computes the scores of its
 * positions, and each thread sums its outputs over the positions, ascending: the values of a position are read by
 * neighbouring threads. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.h"

#define ROW_THREADS KN_CUDA_ROW_THREADS
#define THREADS     KN_CUDA_ATTEND_THREADS
#define MAX_BLOCK   (KN_MAX_D_HEAD / KN_KV_BLOCK)

/* ---- queries, keys and values ------------------------------------------------------------------------------- */

/* x[n_head][d_head]: each head normalised by w[d_head], or all of them as one by w[n_head * d_head]. */
KN_DEVICE void block_norm_heads(const struct kn_op_finish_qkv &o, float *x, int n_head, const float *w)
{
    if (o.norm_all)
        block_rms_norm(x, w, o.eps, n_head * o.d_head, x);
    else
        for (int h = warp_of(); h < n_head; h += n_warp_of())
            warp_rms_norm(x + h * o.d_head, w, o.eps, o.d_head);
    __syncthreads();
}

KN_DEVICE void block_add(float *x, const float *bias, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        x[i] = x[i] + bias[i];
}

KN_DEVICE void block_clamp(float *x, int n, float most)
{
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        x[i] = clamped(x[i], most);
}

KN_DEVICE void block_rotate(float *x, int n_head, int d_head, int n_rot, const float (*rotation)[2], int kind)
{
    int n_pair = n_rot / 2;
    for (int i = (int)threadIdx.x; i < n_head * n_pair; i += ROW_THREADS)
        rotate_pair(x + i / n_pair * d_head, n_rot, rotation, i % n_pair, kind);
}

KN_KERNEL(finish_qkv, ROW_THREADS, 2)(const __grid_constant__ struct kn_op_finish_qkv o)
{
    size_t row = blockIdx.x;
    int n_q = o.n_head * o.d_head, n_k = o.n_kv * o.d_head, n_v = o.n_kv * o.d_value, t = (int)threadIdx.x;
    float *q = o.q + row * (size_t)n_q, *k = o.k + row * (size_t)n_k, *v = o.v + row * (size_t)n_v;
    if (o.rows.status[row])
        return;
    for (int i = t; o.q_gate && i < n_q; i += ROW_THREADS)
        q[i] = o.q_gate[2 * row * (size_t)n_q + (size_t)(2 * (i / o.d_head) * o.d_head + i % o.d_head)];
    if (o.q_bias) {
        __syncthreads();
        block_add(q, o.q_bias, n_q);
        block_add(k, o.k_bias, n_k);
        block_add(v, o.v_bias, n_v);
    }
    __syncthreads();
    if (o.v_is_k) {
        for (int i = t; i < n_v; i += ROW_THREADS)
            v[i] = k[i];
        __syncthreads();
    }
    if (o.v_norm) {
        for (int h = warp_of(); h < o.n_kv; h += n_warp_of())
            warp_rms_norm(v + h * o.d_value, o.v_norm, o.eps, o.d_value);
        __syncthreads();
    }
    if (o.q_norm && !o.late_norm) {
        block_norm_heads(o, q, o.n_head, o.q_norm);
        block_norm_heads(o, k, o.n_kv, o.k_norm);
    }
    if (o.clamp > 0) {
        block_clamp(q, n_q, o.clamp);
        block_clamp(k, n_k, o.clamp);
        block_clamp(v, n_v, o.clamp);
        __syncthreads();
    }
    if (o.rotation) {
        const float(*rotation)[2] = o.rotation + row * (size_t)(o.n_rot / 2);
        block_rotate(q, o.n_head, o.d_head, o.n_rot, rotation, o.rope);
        block_rotate(k, o.n_kv, o.d_head, o.n_rot, rotation, o.rope);
        __syncthreads();
    }
    if (o.q_norm && o.late_norm) {
        block_norm_heads(o, q, o.n_head, o.q_norm);
        block_norm_heads(o, k, o.n_kv, o.k_norm);
    }
    for (int i = t; o.scale_q && i < n_q; i += ROW_THREADS)
        q[i] = q[i] * o.rows.row[row].q_scale;
    if (o.v_scale > 0) {
        for (int i = t; i < n_v; i += ROW_THREADS)
            v[i] = v[i] * o.v_scale;
        __syncthreads();
    }
    int slot = o.rows.row[row].slot;
    for (int i = warp_of(); i < 2 * o.n_kv; i += n_warp_of()) {
        int h = i / 2;
        if (i % 2)
            warp_put(cache_values(o.cache, h), slot, v + h * o.d_value, o.d_value);
        else
            warp_put(cache_keys(o.cache, h), slot, k + h * o.d_head, o.d_head);
    }
}

KN_KERNEL(latent_keep, ROW_THREADS, 2)(const __grid_constant__ struct kn_op_latent_keep o)
{
    size_t row = blockIdx.x;
    int d_key = o.d_latent + o.n_rot;
    float *k = o.k + row * (size_t)d_key;
    if (o.rows.status[row])
        return;
    block_rms_norm(k, o.k_norm, o.eps, o.d_latent, k);
    block_rotate(k + o.d_latent, 1, o.n_rot, o.n_rot, o.rotation + row * (size_t)(o.n_rot / 2), o.rope);
    __syncthreads();
    if (warp_of() == 0)
        warp_put(cache_keys(o.cache, 0), o.rows.row[row].slot, k, d_key);
    if (o.d_low) {
        float *low = o.low.x + row * o.low.stride;
        block_rms_norm(low, o.low_norm, o.eps, o.d_low, low);
        block_code_row(o.low, o.low_kinds, o.d_low, row);
    }
}

/* Grid: heads of rows. */
KN_KERNEL(latent_place, ROW_THREADS, 2)(const __grid_constant__ struct kn_op_latent_place o)
{
    size_t item = blockIdx.x, row = item / (size_t)o.n_head;
    if (o.rows.status[row])
        return;
    const float *q = o.q + item * (size_t)(o.d_plain + o.n_rot);
    float *rotated = o.absorbed + item * (size_t)(o.d_latent + o.n_rot) + o.d_latent;
    float *plain = o.plain.x + item * o.plain.stride;
    for (int i = (int)threadIdx.x; i < o.d_plain + o.n_rot; i += ROW_THREADS)
        *(i < o.d_plain ? &plain[i] : &rotated[i - o.d_plain]) = q[i];
    __syncthreads();
    block_rotate(rotated, 1, o.n_rot, o.n_rot, o.rotation + row * (size_t)(o.n_rot / 2), o.rope);
    if (o.scale_q) {
        float by = o.rows.row[row].q_scale;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < o.d_plain + o.n_rot; i += ROW_THREADS) {
            float *x = i < o.d_plain ? &plain[i] : &rotated[i - o.d_plain];
            *x = *x * by;
        }
        __syncthreads();
    }
    block_code_row(o.plain, o.kinds, o.d_plain, item);
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

/* One query head of one row. */
struct head {
    const struct kn_row *row;
    struct cache_head keys, values;
    const float *q;
    int d_key, d_value;
    float scale;
};

/* A maximum, a sum and outputs over some positions; a thread has outputs threadIdx.x + i * THREADS for i < OWN. */
template <int OWN> struct part {
    float most, sum, o[OWN];
};

/* A chunk's memory, and the query's codes if the cache is int8. */
struct chunk_memory {
    int slot[KN_CHUNK];
    float weight[KN_CHUNK]; /* first the scores */
    int8_t q[KN_MAX_D_HEAD];
    float q_scale[MAX_BLOCK];
    int8_t code[MAX_BLOCK][KN_CHUNK]; /* of weights times the scales of the values */
    float scaled[THREADS / KN_WARP][KN_CHUNK], code_scale[MAX_BLOCK];
    float sum;
};

template <int KV> KN_DEVICE float cached(const struct cache_head &h, size_t at)
{
    return KV == KN_KV_F32 ? ((const float *)h.number)[at] : from_half(((const uint16_t *)h.number)[at]);
}

template <int KV> KN_DEVICE float warp_score(const struct head &h, const struct chunk_memory &m, int slot)
{
    size_t at = (size_t)slot * (size_t)h.keys.step;
    int t = lane_of();
    if (KV == KN_KV_INT8) {
        const float *scale = h.keys.scale + (size_t)slot * (size_t)kn_kv_blocks(h.keys.step);
        const int8_t *key = (const int8_t *)h.keys.number + at;
        float x = 0;
        for (int b = 0; b < kn_kv_blocks(h.d_key); b++) {
            int sum = 0;
            for (int i = KN_KV_BLOCK * b + t; i < min(h.d_key, KN_KV_BLOCK * (b + 1)); i += KN_WARP)
                sum += (int)m.q[i] * (int)key[i];
            for (int half = 16; half > 0; half /= 2)
                sum += __shfl_xor_sync(KN_ALL, sum, half);
            x = fmaf((float)sum, m.q_scale[b] * scale[b], x);
        }
        return x;
    }
    float low = 0, high = 0;
    for (int i = t; i < h.d_key; i += 2 * KN_WARP) {
        low = fmaf(h.q[i], cached<KV>(h.keys, at + i), low);
        if (i + KN_WARP < h.d_key)
            high = fmaf(h.q[i + KN_WARP], cached<KV>(h.keys, at + i + KN_WARP), high);
    }
    return warp_tree(low, high);
}

/* Outputs of a chunk from int8 values: the weights times the values' scales are coded, block by block. */
template <int OWN>
KN_DEVICE void block_coded_values(const struct head &h, struct chunk_memory &m, int n, struct part<OWN> &c)
{
    int t = lane_of(), warp = warp_of(), n_block = kn_kv_blocks(h.d_value);
    for (int b = warp; b < n_block; b += THREADS / KN_WARP) {
        for (int p = t; p < KN_CHUNK; p += KN_WARP)
            m.scaled[warp][p] =
                m.slot[p] < 0
                    ? 0
                    : m.weight[p] * h.values.scale[(size_t)m.slot[p] * (size_t)kn_kv_blocks(h.values.step) + (size_t)b];
        __syncwarp();
        float scale = warp_code_block(m.scaled[warp], KN_CHUNK, m.code[b]);
        if (t == 0)
            m.code_scale[b] = scale;
        __syncwarp();
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        int i = (int)threadIdx.x + k * THREADS, sum = 0;
        for (int p = 0; i < h.d_value && p < n; p++)
            if (m.slot[p] >= 0)
                sum += (int)m.code[i / KN_KV_BLOCK][p] *
                       (int)((const int8_t *)h.values.number)[(size_t)m.slot[p] * (size_t)h.values.step + (size_t)i];
        c.o[k] = i < h.d_value ? (float)sum * m.code_scale[i / KN_KV_BLOCK] : 0;
    }
}

/* The part of positions lo .. hi - 1, of one chunk. */
template <int KV, int OWN>
KN_DEVICE void block_chunk(const struct head &h, struct chunk_memory &m, int lo, int hi, struct part<OWN> &c)
{
    int t = (int)threadIdx.x, base = lo / KN_CHUNK * KN_CHUNK, n = hi - base;
    if (t < KN_CHUNK)
        m.slot[t] = base + t >= lo && base + t < hi ? slot_of(*h.row, base + t) : -1;
    __syncthreads();
    for (int p = warp_of(); p < n; p += THREADS / KN_WARP) {
        if (m.slot[p] < 0)
            continue;
        float score = h.scale * warp_score<KV>(h, m, m.slot[p]);
        if (lane_of() == 0)
            m.weight[p] = score;
    }
    __syncthreads();
    c.most = -INFINITY;
    for (int p = lo - base; p < n; p++)
        c.most = larger(m.weight[p], c.most);
    __syncthreads();
    if (t < KN_CHUNK)
        m.weight[t] = m.slot[t] < 0 ? 0 : kn_expf_inline(m.weight[t] - c.most);
    __syncthreads();
    if (t < KN_WARP) {
        float sum = warp_tree(m.weight[t], m.weight[t + KN_WARP]);
        if (t == 0)
            m.sum = sum;
    }
    if (KV == KN_KV_INT8)
        block_coded_values(h, m, n, c);
    else {
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            int i = t + k * THREADS;
            c.o[k] = 0;
#pragma unroll 8
            for (int p = lo - base; i < h.d_value && p < n; p++) {
                size_t at = (size_t)m.slot[p] * (size_t)h.values.step + (size_t)i;
                c.o[k] = fmaf(m.weight[p], cached<KV>(h.values, at), c.o[k]);
            }
        }
    }
    __syncthreads();
    c.sum = m.sum;
    __syncthreads();
}

/* Merges c into total, or with `first` copies it. */
template <int OWN> KN_DEVICE void merge(struct part<OWN> &total, const struct part<OWN> &c, bool first)
{
    if (first) {
        total = c;
        return;
    }
    float most = larger(c.most, total.most);
    float keep = kn_expf_inline(total.most - most), take = kn_expf_inline(c.most - most);
    total.most = most;
    total.sum = fmaf(c.sum, take, total.sum * keep);
#pragma unroll
    for (int k = 0; k < OWN; k++)
        total.o[k] = fmaf(c.o[k], take, total.o[k] * keep);
}

/* The part of positions lo .. last, of one span. */
template <int KV, int OWN>
KN_DEVICE void block_span(const struct head &h, struct chunk_memory &m, int lo, int last, struct part<OWN> &total)
{
    for (int from = lo; from <= last;) {
        struct part<OWN> c;
        int hi = min(last, from / KN_CHUNK * KN_CHUNK + KN_CHUNK - 1) + 1;
        block_chunk<KV>(h, m, from, hi, c);
        merge(total, c, from == lo);
        from = hi;
    }
}

KN_DEVICE void block_query_codes(const struct head &h, struct chunk_memory &m)
{
    for (int b = warp_of(); b < kn_kv_blocks(h.d_key); b += THREADS / KN_WARP) {
        int at = b * KN_KV_BLOCK;
        float scale = warp_code_block(h.q + at, min(KN_KV_BLOCK, h.d_key - at), m.q + at);
        if (lane_of() == 0)
            m.q_scale[b] = scale;
    }
}

/* Adds the sink, divides, and applies the gate. */
template <int OWN>
KN_DEVICE void finish_head(const struct kn_op_attend &o, size_t row, int head, struct part<OWN> &total)
{
    size_t at = row * (size_t)o.n_head + (size_t)head;
    float *out = o.by_head ? o.out.x + at * o.out.stride
                           : o.out.x + row * o.out.stride + (size_t)head * (size_t)o.d_value;
    float keep = 1;
    if (o.sink) {
        float sink = o.sink[head], most = larger(sink, total.most);
        keep = kn_expf_inline(total.most - most);
        total.sum = fmaf(total.sum, keep, kn_expf_inline(sink - most));
    }
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        int i = (int)threadIdx.x + k * THREADS;
        if (i >= o.d_value)
            continue;
        float x = (o.sink ? total.o[k] * keep : total.o[k]) / total.sum;
        out[i] = o.q_gate ? gated(x, o.q_gate[at * 2 * (size_t)o.d_key + (size_t)(o.d_key + i)]) : x;
    }
}

/* The codes of this head's outputs, which are written: by the last of the heads whose outputs fill whole records. */
KN_DEVICE void block_code_head(const struct kn_op_attend &o, size_t row, int head, uint32_t *count)
{
    if (o.by_head) {
        __syncthreads();
        block_code_row(o.out, o.kinds, o.d_value, row * (size_t)o.n_head + (size_t)head);
        return;
    }
    int n = kn_cuda_heads_of_record(o.d_value), first = head / n * n, end = min(first + n, o.n_head);
    if (block_is_last(count + row * (size_t)o.n_head + (size_t)head / n, end - first))
        code_row(o.out, o.kinds, end * o.d_value, row, first * o.d_value / KN_GROUP + warp_of(), n_warp_of());
}

/* Merges the n parts of a head, in order. */
template <int OWN> KN_DEVICE void join(const struct kn_op_attend &o, const float *from, int n, struct part<OWN> &total)
{
    struct part<OWN> span;
    for (int s = 0; s < n; s++, from += o.d_value + 2) {
        span.most = from[0];
        span.sum = from[1];
#pragma unroll
        for (int k = 0; k < OWN; k++)
            span.o[k] = (int)threadIdx.x + k * THREADS < o.d_value ? from[2 + threadIdx.x + k * THREADS] : 0;
        merge(total, span, s == 0);
    }
}

template <int OWN> KN_DEVICE void put_part(const struct kn_op_attend &o, const struct part<OWN> &x, float *to)
{
    if (threadIdx.x == 0) {
        to[0] = x.most;
        to[1] = x.sum;
    }
#pragma unroll
    for (int k = 0; k < OWN; k++)
        if ((int)threadIdx.x + k * THREADS < o.d_value)
            to[2 + threadIdx.x + k * THREADS] = x.o[k];
}

/* The attention of a live row's head, or if there are parts of one span of it.  Returns whether total is the whole. */
template <int KV, int OWN>
KN_DEVICE bool block_attend(const struct kn_op_attend &o, const struct kn_cuda_parts &p, struct part<OWN> &total)
{
    __shared__ struct chunk_memory m;
    size_t row = blockIdx.y, item = row * (size_t)o.n_head + blockIdx.x;
    int head = (int)blockIdx.x, kv_head = head / (o.n_head / o.n_kv);
    const struct kn_row *r = &o.rows.row[row];
    struct head h = { r,         cache_keys(o.cache, kv_head),        cache_values(o.cache, kv_head),
                      o.q + item * (size_t)o.d_key, o.d_key, o.d_value, o.scale };
    int last = r->position, first = kn_first_position(r, o.window, o.chunked);
    int span0 = first / KN_SPAN, n_span = last / KN_SPAN - span0 + 1;
    if (p.part && (int)blockIdx.z >= n_span)
        return false;
    if (KV == KN_KV_INT8)
        block_query_codes(h, m);
    __syncthreads();
    for (int i = p.part ? (int)blockIdx.z : 0; i < (p.part ? (int)blockIdx.z + 1 : n_span); i++) {
        struct part<OWN> span;
        int lo = max(first, (span0 + i) * KN_SPAN);
        block_span<KV>(h, m, lo, min(last, (span0 + i) * KN_SPAN + KN_SPAN - 1), span);
        merge(total, span, i == 0 || p.part);
    }
    if (!p.part || n_span == 1)
        return true;
    float *parts = p.part + item * gridDim.z * (size_t)(o.d_value + 2);
    put_part(o, total, parts + blockIdx.z * (size_t)(o.d_value + 2));
    if (!block_is_last(p.spans + item, n_span))
        return false;
    join(o, parts, n_span, total);
    return true;
}

/* Grid: heads, rows, spans.  Without parts a block goes through all spans of its row; else it computes span blockIdx.z of the
 * row, counted from the first that is attended to. */
template <int KV, int OWN> KN_DEVICE void attend(const struct kn_op_attend &o, const struct kn_cuda_parts &p)
{
    size_t row = blockIdx.y;
    struct part<OWN> total = {
    };
    if (!o.rows.status[row]) {
        if (!block_attend<KV, OWN>(o, p, total))
            return;
        finish_head(o, row, (int)blockIdx.x, total);
    } else if (o.by_head || blockIdx.z) {
        return;
    }
    if (o.kinds & ~(1u << KN_ACT_F32))
        block_code_head(o, row, (int)blockIdx.x, p.heads);
}

/* For d_value up to THREADS, and for all others. */
#define MANY ((KN_MAX_D_HEAD + THREADS - 1) / THREADS)
#define ATTEND(KV, name, OWN)                                                                                          \
    KN_KERNEL(attend_##KV##name, THREADS, 3)                                                               \
    (const __grid_constant__ struct kn_op_attend o, const __grid_constant__ struct kn_cuda_parts p)                    \
    {                                                                                                                  \
        attend<KN_KV_##KV, OWN>(o, p);                                                                                 \
    }
ATTEND(F16, , 1)
ATTEND(F16, _wide, MANY)
ATTEND(F32, , 1)
ATTEND(F32, _wide, MANY)
ATTEND(INT8, , 1)
ATTEND(INT8, _wide, MANY)
