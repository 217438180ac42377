/* kernels/cuda/block.cuh - steps that several kernels share, each done by one warp or one block.
 *
 * A kernel gets the operation's struct of pass.h as its parameter.  It equals the scalar functions (kernels/cpu/) bit
 * for bit, because it does the same float operations in the same order:
 *
 *   - a sum with 64 accumulators gives accumulator i to lane i % 32, or to thread i of a block; then the halving tree;
 *   - integer sums and largest values are exact in any order;
 *   - + - * / and sqrtf round as IEEE 754 says and nothing is contracted, by the flags of nvcc (Makefile): the PTX has
 *     .rn on each of them, which tests/cuda/check.sh checks.  A fused operation is an explicit fmaf.
 *
 * Functions named warp_ are called by all threads of a warp, those named block_ by all threads of a block. */
#ifndef KERNELS_CUDA_BLOCK_CUH
#define KERNELS_CUDA_BLOCK_CUH

extern "C" {
#include "kernels/pass.h"
}
#include "kernels/cpu/math.h"

#define KN_DEVICE static __device__ __forceinline__
#define KN_WARP   32
#define KN_ALL    0xffffffffu

/* A kernel that is launched with blocks of `threads`, at least `blocks` of which fit a processor: this bounds the
 * registers of a thread.  Without it ptxas may spill some for an occupancy that it prefers. */
#define KN_KERNEL(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) kn_run_##name

KN_DEVICE int lane_of() { return (int)threadIdx.x % KN_WARP; }
KN_DEVICE int warp_of() { return (int)threadIdx.x / KN_WARP; }
KN_DEVICE int n_warp_of() { return (int)blockDim.x / KN_WARP; }

/* ---- numbers ----------------------------------------------------------------------------------------------- */

KN_DEVICE float from_half(uint16_t h)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

KN_DEVICE uint16_t to_half(float x)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

KN_DEVICE float from_bfloat(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

KN_DEVICE float larger(float x, float most) { return x > most ? x : most; }
KN_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + kn_expf_inline(-x)); }
KN_DEVICE float gated(float x, float by) { return x / (1.0f + kn_expf_inline(-by)); }
KN_DEVICE float clamped(float x, float most) { return x > most ? most : x < -most ? -most : x; }

/* ---- blocks that end last ------------------------------------------------------------------------------------ */

/* Whether this block is the last of n that come here with this count; then it sees all that the others have written
 * before.  The count is 0 again.
 *
 * A fence makes visible what happened before it to its own thread: so the barrier, behind which thread 0 knows of the block's
 * writes, is before the fence, and its fence behind the count is before the barrier with which the others go on. */
KN_DEVICE bool block_is_last(uint32_t *count, int n)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(count, (unsigned)n - 1) == (unsigned)n - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* ---- sums -------------------------------------------------------------------------------------------------- */

/* The halving tree over 64 accumulators, of which the lane has numbers `lane` and `lane` + 32; the sum for all lanes.
 * */
KN_DEVICE float warp_tree(float low, float high)
{
    float sum = low + high;
    for (int half = 16; half > 0; half /= 2)
        sum += __shfl_down_sync(KN_ALL, sum, half);
    return __shfl_sync(KN_ALL, sum, 0);
}

KN_DEVICE float warp_dot(const float *x, const float *y, int n)
{
    float low = 0, high = 0;
    int i = lane_of();
    for (; i + KN_WARP < n; i += 2 * KN_WARP) {
        low = fmaf(x[i], y[i], low);
        high = fmaf(x[i + KN_WARP], y[i + KN_WARP], high);
    }
    if (i < n)
        low = fmaf(x[i], y[i], low);
    return warp_tree(low, high);
}

KN_DEVICE float inverse_rms(float square_sum, float eps, int n) { return 1.0f / sqrtf(square_sum / (float)n + eps); }

/* x = norm(x) * w, of n values. */
KN_DEVICE void warp_rms_norm(float *x, const float *w, float eps, int n)
{
    float inv = inverse_rms(warp_dot(x, x, n), eps, n);
    for (int i = lane_of(); i < n; i += KN_WARP)
        x[i] = (x[i] * inv) * w[i];
    __syncwarp();
}

/* The sum of x, or of its squares, for all threads.  Values go through shared memory, so that all threads load, and the 64
 * that add wait once for each tile. */
KN_DEVICE float block_sum_of(const float *x, int n, bool squares)
{
    const int n_tile = 2048;
    __shared__ float tile[n_tile], total;
    float acc = 0;
    int t = (int)threadIdx.x;
    for (int at = 0; at < n; at += n_tile) {
        int m = min(n_tile, n - at);
        for (int i = t; i < m; i += (int)blockDim.x)
            tile[i] = x[at + i];
        __syncthreads();
        for (int i = t; t < 64 && i < m; i += 64)
            acc = squares ? fmaf(tile[i], tile[i], acc) : acc + tile[i];
        __syncthreads();
    }
    if (t < 64)
        tile[t] = acc;
    __syncthreads();
    if (t < KN_WARP) {
        float sum = warp_tree(tile[t], tile[t + KN_WARP]);
        if (t == 0)
            total = sum;
    }
    __syncthreads();
    return total;
}

KN_DEVICE float block_square_sum(const float *x, int n) { return block_sum_of(x, n, true); }
KN_DEVICE float block_sum(const float *x, int n) { return block_sum_of(x, n, false); }

/* y = norm(x) * w; y may be x. */
KN_DEVICE void block_rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    float inv = inverse_rms(block_square_sum(x, n), eps, n);
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        y[i] = (x[i] * inv) * w[i];
    __syncthreads();
}

/* y = the norm of x by w; with a bias the layer norm.  y is not x. */
KN_DEVICE void block_norm(const float *x, const float *w, const float *bias, float eps, int n, float *y)
{
    if (bias) {
        float mean = block_sum(x, n) / (float)n;
        for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
            y[i] = x[i] - mean;
        __syncthreads();
    }
    block_rms_norm(bias ? y : x, w, eps, n, y);
    if (bias) {
        for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
            y[i] = y[i] + bias[i];
        __syncthreads();
    }
}

/* x becomes its softmax. */
KN_DEVICE void warp_softmax(float *x, int n)
{
    float most = -INFINITY, acc[2] = { 0, 0 };
    for (int i = lane_of(); i < n; i += KN_WARP)
        most = larger(x[i], most);
    for (int half = 16; half > 0; half /= 2)
        most = larger(__shfl_xor_sync(KN_ALL, most, half), most);
    for (int i = lane_of(), k = 0; i < n; i += KN_WARP, k ^= 1) {
        x[i] = kn_expf_inline(x[i] - most);
        if (k)
            acc[1] += x[i];
        else
            acc[0] += x[i];
    }
    float sum = warp_tree(acc[0], acc[1]);
    for (int i = lane_of(); i < n; i += KN_WARP)
        x[i] = x[i] / sum;
    __syncwarp();
}

/* ---- codes ------------------------------------------------------------------------------------------------- */

/* The scale of a block of codes whose largest |x| has these bits, and the factor of its values (kn_code_block()). */
struct code_scale {
    float d, inverse;
    bool zero; /* all codes are 0 */
};

KN_DEVICE struct code_scale code_scale(uint32_t largest_bits)
{
    float largest = __uint_as_float(largest_bits);
    if (largest_bits >= 0x7F800000)
        return { __uint_as_float(0x7FC00000), 0, true };
    if (largest < 0x1p-100f)
        return { 0, 0, true };
    return { largest / 127.0f, 127.0f / largest, false };
}

KN_DEVICE int code_of(float x, const struct code_scale &s)
{
    const float to_integer = 0x1.8p23f;
    return s.zero ? 0 : max(-127, min(127, (int)(x * s.inverse + to_integer - to_integer)));
}

KN_DEVICE uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFF; }

/* The largest value of the lanes that differ in the low bits: of `lanes` neighbouring lanes. */
KN_DEVICE uint32_t warp_largest(uint32_t x, int lanes)
{
    for (int half = lanes / 2; half > 0; half /= 2)
        x = max(x, __shfl_xor_sync(KN_ALL, x, half));
    return x;
}

/* The record of values 0 .. n - 1 (n at most 256; the others are 0) of x.  A lane has eight neighbouring values: 4
 * lanes a block of 32. */
KN_DEVICE void warp_code_record(int kind, const float *x, int n, struct kn_codes *out)
{
    float v[8];
    uint32_t largest = 0, packed[2] = { 0, 0 };
    int at = 8 * lane_of(), sum = 0;
    for (int i = 0; i < 8; i++) {
        v[i] = at + i < n ? x[at + i] : 0;
        largest = max(largest, magnitude(v[i]));
    }
    struct code_scale s = code_scale(warp_largest(largest, kind == KN_ACT_Q256 ? 32 : 4));
    for (int i = 0; i < 8; i++) {
        int q = code_of(v[i], s);
        sum += q;
        packed[i / 4] |= (uint32_t)(q & 255) << i % 4 * 8;
    }
    *(uint2 *)(out->q + at) = make_uint2(packed[0], packed[1]);
    sum += __shfl_xor_sync(KN_ALL, sum, 1);
    if (lane_of() % 2 == 0)
        out->sum[lane_of() / 2] = (int16_t)sum;
    if (lane_of() % 4 == 0)
        out->d[lane_of() / 4] = s.d;
}

/* Codes of the first n values of row `row` of a, of these kinds: records `first`, first + step .. */
KN_DEVICE void code_row(const struct kn_acts &a, unsigned kinds, int n, size_t row, int first, int step)
{
    const float *x = a.x + row * a.stride;
    for (int i = first; i < (n + KN_GROUP - 1) / KN_GROUP; i += step) {
        int at = i * KN_GROUP, m = min(KN_GROUP, n - at);
        if (kinds & 1u << KN_ACT_Q32)
            warp_code_record(KN_ACT_Q32, x + at, m,
                             (struct kn_codes *)((uint8_t *)a.code[KN_ACT_Q32] + row * a.code_stride[KN_ACT_Q32]) + i);
        if (kinds & 1u << KN_ACT_Q256)
            warp_code_record(KN_ACT_Q256, x + at, m,
                             (struct kn_codes *)((uint8_t *)a.code[KN_ACT_Q256] + row * a.code_stride[KN_ACT_Q256]) +
                                 i);
    }
}

KN_DEVICE void block_code_row(const struct kn_acts &a, unsigned kinds, int n, size_t row)
{
    code_row(a, kinds, n, row, warp_of(), n_warp_of());
}

/* Codes a block of n keys, values or weights, at most 64; the scale for all lanes. */
KN_DEVICE float warp_code_block(const float *x, int n, int8_t *q)
{
    int t = lane_of();
    float low = t < n ? x[t] : 0, high = t + KN_WARP < n ? x[t + KN_WARP] : 0;
    struct code_scale s = code_scale(warp_largest(max(magnitude(low), magnitude(high)), KN_WARP));
    if (t < n)
        q[t] = (int8_t)code_of(low, s);
    if (t + KN_WARP < n)
        q[t + KN_WARP] = (int8_t)code_of(high, s);
    return s.d;
}

/* ---- keys and values --------------------------------------------------------------------------------------- */

/* The keys or the values of one KV head, from slot 0 on. */
struct cache_head {
    int kv, step;
    uint8_t *number;
    float *scale;
};

KN_DEVICE struct cache_head cache_keys(const struct kn_cache &c, int head)
{
    size_t at = (size_t)head * c.k_head;
    return { c.kv, c.k_step, c.k + at, c.k_scale ? c.k_scale + at / sizeof(float) : NULL };
}

KN_DEVICE struct cache_head cache_values(const struct kn_cache &c, int head)
{
    size_t at = (size_t)head * c.v_head;
    return { c.kv, c.v_step, c.v + at, c.v_scale ? c.v_scale + at / sizeof(float) : NULL };
}

/* x[n] to a slot. */
KN_DEVICE void warp_put(const struct cache_head &h, int slot, const float *x, int n)
{
    size_t at = (size_t)slot * (size_t)h.step;
    if (h.kv == KN_KV_INT8) {
        float *scale = h.scale + (size_t)slot * (size_t)kn_kv_blocks(h.step);
        for (int i = 0; i < n; i += KN_KV_BLOCK) {
            float d = warp_code_block(x + i, min(KN_KV_BLOCK, n - i), (int8_t *)h.number + at + i);
            if (lane_of() == 0)
                scale[i / KN_KV_BLOCK] = d;
        }
        return;
    }
    for (int i = lane_of(); i < n; i += KN_WARP)
        if (h.kv == KN_KV_F32)
            ((float *)h.number)[at + i] = x[i];
        else
            ((uint16_t *)h.number)[at + i] = to_half(x[i]);
}

KN_DEVICE int slot_of(const struct kn_row &r, int p) { return p < r.n_base ? r.base[p] : r.tail[p - r.n_base]; }

/* Pair i of a head's n_rot rotated values (kn_ops.rope). */
KN_DEVICE void rotate_pair(float *x, int n_rot, const float (*rotation)[2], int i, int kind)
{
    float *pa = kind == KN_ROPE_PAIRS ? &x[2 * i] : &x[i], *pb = kind == KN_ROPE_PAIRS ? pa + 1 : pa + n_rot / 2;
    float a = *pa, b = *pb, c = rotation[i][0], s = rotation[i][1];
    *pa = fmaf(a, c, -(b * s));
    *pb = fmaf(a, s, b * c);
}

#endif
