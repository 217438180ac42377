/* Operations with one block of threads for each row: embedding, residual addition with norm and codes, features,
 * inputs of draft heads; and copies. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/values.cuh"

#define THREADS KN_CUDA_ROW_THREADS

KN_KERNEL(embed, THREADS, 2)(const __grid_constant__ struct kn_op_embed o)
{
    size_t row = blockIdx.x;
    const struct kn_row *r = &o.rows.row[row];
    int token = r->token, position = r->position;
    for (int k = (int)threadIdx.x; o.w.n_out && k < o.w.n_in; k += THREADS) {
        float x = value_of(o.w, token, k) * o.w.scale;
        o.x[row * (size_t)o.w.n_in + (size_t)k] = o.w_scale != 1 ? x * o.w_scale : x;
    }
    for (int i = (int)threadIdx.x; i < o.n_pair; i += THREADS) {
        double s, c;
        float *turn = o.rotation[row * (size_t)o.n_pair + (size_t)i];
        kn_sincos_inline((float)position * o.freq[i], &s, &c); /* the angle is a float32 */
        turn[0] = (float)c * o.scale;
        turn[1] = (float)s * o.scale;
    }
}

KN_KERNEL(add_norm_code, THREADS, 2)(const __grid_constant__ struct kn_op_add_norm_code o)
{
    block_add_norm_code(o, blockIdx.x);
}

/* Codes of rows, one warp for each record. */
KN_KERNEL(code, THREADS, 2)(const __grid_constant__ struct kn_op_code o)
{
    int n_record = (o.n_in + KN_GROUP - 1) / KN_GROUP;
    long item = (long)blockIdx.x * n_warp_of() + warp_of();
    if (item < (long)o.n * n_record)
        code_row(o.acts, o.kinds, o.n_in, (size_t)(item / n_record), (int)(item % n_record), n_record);
}

KN_KERNEL(keep_features, THREADS, 2)(const __grid_constant__ struct kn_op_keep_features o)
{
    size_t row = blockIdx.x;
    const struct kn_features &f = o.features;
    const float *x = o.x + row * (size_t)f.n;
    float *out = o.scratch.x + row * o.scratch.stride, most = f.kv == KN_KV_F16 ? 65504.0f : INFINITY;
    if (o.rows.status[row])
        return;
    uint8_t *slot = f.base + (size_t)o.rows.row[row].slot * f.slot_bytes;
    if (o.weight)
        block_norm(x, o.weight, o.norm_bias, o.eps, f.n, out);
    for (int i = (int)threadIdx.x; i < f.n; i += THREADS) {
        if (!o.weight)
            out[i] = clamped(x[i], most);
        if (f.kv == KN_KV_F16)
            ((uint16_t *)slot)[i] = to_half(out[i]);
        else
            ((float *)slot)[i] = out[i];
    }
}

KN_KERNEL(scale, THREADS, 2)(float *x, float by, float cap, size_t n, const float *bias, int d)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float y = bias ? x[i] * by + bias[i % (size_t)d] : x[i] * by;
    x[i] = cap > 0 ? cap * kn_tanhf_inline(y / cap) : y;
}

/* A thread moves one column, row by row: rows ascend, so that no value is overwritten before it has moved. */
KN_KERNEL(pack, THREADS, 2)(const int32_t *row, int n, float *x, int d)
{
    int column = (int)(blockIdx.x * THREADS + threadIdx.x);
    for (int i = 0; column < d && i < n; i++)
        x[(size_t)i * (size_t)d + (size_t)column] = x[(size_t)row[i] * (size_t)d + (size_t)column];
}

/* ---- draft heads ------------------------------------------------------------------------------------------- */

/* A row's own feature, or that of its slot, as floats. */
KN_DEVICE void block_feature(const struct kn_row *r, const struct kn_features &f, int n, float *out)
{
    const float *own = r->feature;
    const uint8_t *slot = f.base + (size_t)r->feature_slot * f.slot_bytes;
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        out[i] = own ? own[i] : f.kv == KN_KV_F16 ? from_half(((const uint16_t *)slot)[i]) : ((const float *)slot)[i];
}

KN_DEVICE void block_embedding(const struct kn_mat &w, int token, float *out)
{
    for (int k = (int)threadIdx.x; k < w.n_in; k += THREADS)
        out[k] = value_of(w, token, k) * w.scale;
}

KN_KERNEL(join, THREADS, 2)(const __grid_constant__ struct kn_op_join o)
{
    size_t row = blockIdx.x;
    const struct kn_row *r = &o.rows.row[row];
    int d = o.embed.n_in;
    float *out = o.out.x + row * o.out.stride, *feature = o.token_first ? out + d : out;
    float *token = o.token_first ? out : out + d;
    block_feature(r, o.features, d, feature);
    block_embedding(o.embed, r->token, token);
    __syncthreads();
    if (o.feature_norm)
        block_rms_norm(feature, o.feature_norm, o.eps, d, feature);
    if (o.embed_norm)
        block_rms_norm(token, o.embed_norm, o.eps, d, token);
    block_code_row(o.out, o.kinds, 2 * d, row);
}

KN_KERNEL(fuse, THREADS, 2)(const __grid_constant__ struct kn_op_fuse o)
{
    size_t row = blockIdx.x;
    const struct kn_row *r = &o.rows.row[row];
    float *out = o.out.x + row * o.out.stride;
    if (!r->feature)
        block_feature(r, o.features, o.features.n, out);
    for (int i = (int)threadIdx.x; r->feature && i < o.features.n; i += THREADS)
        out[i] = 0;
    __syncthreads();
    for (int i = 0, n = o.n_norm ? o.features.n / o.n_norm : 0; i < o.n_norm; i++)
        block_rms_norm(out + i * n, o.norm[i], o.eps, n, out + i * n);
    block_code_row(o.out, o.kinds, o.features.n, row);
}

KN_KERNEL(pair, THREADS, 2)(const __grid_constant__ struct kn_op_pair o)
{
    size_t row = blockIdx.x;
    const struct kn_row *r = &o.rows.row[row];
    int d = o.embed.n_in;
    float *x = o.x + row * (size_t)d, *token = o.out.x + row * o.out.stride, *stream = token + d;
    for (int i = (int)threadIdx.x; r->feature && i < d; i += THREADS)
        x[i] = r->feature[i];
    block_embedding(o.embed, r->token, token);
    __syncthreads();
    if (o.embed_norm)
        block_rms_norm(token, o.embed_norm, o.eps, d, token);
    block_rms_norm(x, o.x_norm, o.eps, d, stream);
    for (int i = (int)threadIdx.x; o.norm_first && i < d; i += THREADS)
        x[i] = stream[i];
    block_code_row(o.out, o.kinds, 2 * d, row);
}

KN_KERNEL(spread, THREADS, 2)(const __grid_constant__ struct kn_op_spread o)
{
    size_t i = blockIdx.x, from = (size_t)(o.row ? o.row[i] : (int32_t)i), d = (size_t)o.d_model;
    float *logits = o.logits + i * (size_t)o.n_vocab;
    for (size_t k = threadIdx.x; o.out && k < d; k += THREADS)
        o.out[i * d + k] = o.x[from * d + k];
    if (!o.token)
        return;
    for (int k = (int)threadIdx.x; k < o.n_vocab; k += THREADS)
        logits[k] = -INFINITY;
    __syncthreads();
    for (int k = (int)threadIdx.x; k < o.n_guess; k += THREADS)
        logits[o.token[k]] = o.guessed[i * (size_t)o.n_guess + (size_t)k];
}

/* ---- copies ------------------------------------------------------------------------------------------------ */

/* Grid: parts of a piece, pieces.  from NULL: zeros.  Units of 16 bytes if all addresses and sizes are multiples. */
template <class T> KN_DEVICE void copy_piece(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t n = bytes / sizeof(T), step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        ((T *)to)[i] = from ? ((const T *)from)[i] : T{};
}

KN_KERNEL(copy_16, THREADS, 2)(const __grid_constant__ struct kn_op_copy o)
{
    size_t at = blockIdx.y * o.stride;
    copy_piece<uint4>(o.to + at, o.from ? o.from + at : NULL, o.bytes);
}

KN_KERNEL(copy_1, THREADS, 2)(const __grid_constant__ struct kn_op_copy o)
{
    size_t at = blockIdx.y * o.stride;
    copy_piece<uint8_t>(o.to + at, o.from ? o.from + at : NULL, o.bytes);
}

KN_KERNEL(transfer_16, THREADS, 2)(const __grid_constant__ struct kn_op_transfer o)
{
    if (*o.when)
        copy_piece<uint4>(o.to, o.from, o.bytes);
}

KN_KERNEL(transfer_1, THREADS, 2)(const __grid_constant__ struct kn_op_transfer o)
{
    if (*o.when)
        copy_piece<uint8_t>(o.to, o.from, o.bytes);
}

/* Pieces that overlap their copies: one block for each, which reads THREADS bytes before it writes them, from the end
 * that the copy does not reach first. */
KN_KERNEL(copy_overlapping, THREADS, 2)(const __grid_constant__ struct kn_op_copy o)
{
    size_t piece = blockIdx.x * o.stride;
    bool backward = o.to > o.from;
    for (size_t done = 0; done < o.bytes; done += THREADS) {
        size_t i = done + threadIdx.x, at = piece + (backward ? o.bytes - 1 - i : i);
        uint8_t byte = i < o.bytes ? o.from[at] : 0;
        __syncthreads();
        if (i < o.bytes)
            o.to[at] = byte;
        __syncthreads();
    }
}
