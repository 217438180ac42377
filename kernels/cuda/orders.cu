/* kernels/cuda/orders.cu - the trial of orders.h: Q4_K by dp4a and mma, a norm, attention.
 *
 * These kernels equal the scalar specification because:
 *   - integer sums are exact in any order, so tensor cores may compute them; each sub-block of 32
 *     codes is one mma of depth 32, and the panel's interleaving (formats.h) is its A fragment;
 *   - each lane of a warp holds two of the 64 accumulators of a float sum; step 32 of the tree is
 *     within a lane, and steps 16, 8, 4, 2, 1 are shuffles;
 *   - every multiplication, addition, division and root is the correctly rounded intrinsic, so
 *     compiler flags cannot contract them; exp is the function of kernels/cpu/expf.h itself. */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cpu/expf.h"
extern "C" {
#include "kernels/cuda/orders.h"
}

#define WARP 32
#define ALL  0xffffffffu

__device__ static float half_at(const uint16_t *p)
{
    return __half2float(__ushort_as_half(*p));
}

/* ---- Q4_K ----------------------------------------------------------------------------------- */

/* 6-bit scale and minimum of sub-block `sub` of row l, from twelve packed bytes. */
__device__ static void q4_k_scale(const struct kn_q4_k_x16 *b, int l, int sub, int *scale, int *min)
{
    if (sub < 4) {
        *scale = b->sc[sub][l] & 63;
        *min = b->sc[sub + 4][l] & 63;
    } else {
        *scale = (b->sc[sub + 4][l] & 15) | (b->sc[sub - 4][l] >> 6) << 4;
        *min = b->sc[sub + 4][l] >> 4 | (b->sc[sub][l] >> 6) << 4;
    }
}

/* Four codes of row l: k = 32 * sub + 4 * i .. + 3. */
__device__ static uint32_t q4_k_codes(const struct kn_q4_k_x16 *b, int l, int sub, int i)
{
    uint32_t both;
    memcpy(&both, b->q[sub / 2 * 8 + i][l], sizeof both);
    return (sub % 2 ? both >> 4 : both) & 0x0f0f0f0f;
}

__device__ static uint32_t x_codes(const struct kn_codes *x, int sub, int i)
{
    uint32_t four;
    memcpy(&four, &x->q[32 * sub + 4 * i], sizeof four);
    return four;
}

/* sum plus a block, which is a group (kernels.h, "products"). */
__device__ static float add_block(const struct kn_q4_k_x16 *b, int l, const struct kn_codes *x,
                                  int isum, int msum, float sum)
{
    float dx = x->d[0];
    float acc = __fmaf_rn(__fmul_rn(half_at(&b->d[l]), dx), __int2float_rn(isum), 0.0f);
    acc = __fmaf_rn(-__fmul_rn(half_at(&b->dmin[l]), dx), __int2float_rn(msum), acc);
    return __fadd_rn(sum, acc);
}

struct q4_k {
    const struct kn_q4_k_x16 *w;                /* [panels][n_block] */
    const struct kn_codes *x;                   /* [n_row][n_block] */
    float *y;                                   /* [n_row][n_out] */
    int n_out, n_block, n_row;
};

/* One thread per element of y.  Grid: (panels, n_row), 16 threads. */
__global__ static void q4_k_dp4a(struct q4_k m)
{
    int l = threadIdx.x, r = blockIdx.x * KN_PANEL + l;
    const struct kn_q4_k_x16 *w = m.w + (size_t)blockIdx.x * m.n_block;
    const struct kn_codes *x = m.x + (size_t)blockIdx.y * m.n_block;
    float acc = 0;

    for (int b = 0; b < m.n_block; b++) {
        int isum = 0, msum = 0;
        for (int sub = 0; sub < 8; sub++) {
            int dot = 0, scale, min;
            for (int i = 0; i < 8; i++)
                dot = __dp4a((int)q4_k_codes(w + b, l, sub, i), (int)x_codes(x + b, sub, i), dot);
            q4_k_scale(w + b, l, sub, &scale, &min);
            isum += scale * dot;
            msum += min * (x[b].sum[2 * sub] + x[b].sum[2 * sub + 1]);
        }
        acc = add_block(w + b, l, x + b, isum, msum, acc);
    }
    if (r < m.n_out) m.y[(size_t)blockIdx.y * m.n_out + r] = acc;
}

/* c[16][8] = a[16][32] b[32][8]. Lane t holds of a: rows t / 4 and t / 4 + 8 at k = 4 (t % 4) + 0..3,
 * and the same rows at k + 16; of b: column t / 4 at the same k; of c: rows t / 4 and t / 4 + 8 at
 * columns 2 (t % 4) and 2 (t % 4) + 1. */
__device__ static void mma_16x8x32(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}

/* One warp per panel and 8 rows of x.  Grid: (panels, n_row / 8 rounded up), 32 threads. */
__global__ static void q4_k_mma(struct q4_k m)
{
    int row = threadIdx.x / 4, quad = threadIdx.x % 4;
    int mine = blockIdx.y * 8 + row;            /* the row of x that this lane loads */
    const struct kn_q4_k_x16 *w = m.w + (size_t)blockIdx.x * m.n_block;
    float acc[4] = {0, 0, 0, 0};

    for (int b = 0; b < m.n_block; b++) {
        int isum[4] = {0, 0, 0, 0}, msum[4] = {0, 0, 0, 0};
        for (int sub = 0; sub < 8; sub++) {
            uint32_t codes[2] = {0, 0}, weights[4];
            int dot[4];
            if (mine < m.n_row)
                for (int i = 0; i < 2; i++)
                    codes[i] = x_codes(m.x + (size_t)mine * m.n_block + b, sub, quad + 4 * i);
            for (int i = 0; i < 4; i++)
                weights[i] = q4_k_codes(w + b, row + i % 2 * 8, sub, quad + i / 2 * 4);
            mma_16x8x32(dot, weights, codes);
            for (int i = 0; i < 4; i++) {
                int scale, min, col = blockIdx.y * 8 + 2 * quad + i % 2;
                if (col >= m.n_row) continue;
                const struct kn_codes *x = m.x + (size_t)col * m.n_block + b;
                q4_k_scale(w + b, row + i / 2 * 8, sub, &scale, &min);
                isum[i] += scale * dot[i];
                msum[i] += min * (x->sum[2 * sub] + x->sum[2 * sub + 1]);
            }
        }
        for (int i = 0; i < 4; i++) {
            int col = blockIdx.y * 8 + 2 * quad + i % 2;
            if (col >= m.n_row) continue;
            acc[i] = add_block(w + b, row + i / 2 * 8, m.x + (size_t)col * m.n_block + b, isum[i],
                               msum[i], acc[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        int col = blockIdx.y * 8 + 2 * quad + i % 2, r = blockIdx.x * KN_PANEL + row + i / 2 * 8;
        if (col < m.n_row && r < m.n_out) m.y[(size_t)col * m.n_out + r] = acc[i];
    }
}

/* ---- float sums ----------------------------------------------------------------------------- */

/* The halving tree over 64 accumulators: lane t holds t and t + 32; every lane gets the sum. */
__device__ static float tree_sum(float low, float high)
{
    float x = __fadd_rn(low, high);
    for (int half = 16; half > 0; half /= 2) x = __fadd_rn(x, __shfl_down_sync(ALL, x, half));
    return __shfl_sync(ALL, x, 0);
}

/* Accumulators t and t + 32 of the dot product, then the tree. */
__device__ static float warp_dot(const float *x, const float *y, int n)
{
    float acc[2] = {0, 0};
    for (int i = threadIdx.x % WARP; i < n; i += 64) {
        acc[0] = __fmaf_rn(x[i], y[i], acc[0]);
        if (i + WARP < n) acc[1] = __fmaf_rn(x[i + WARP], y[i + WARP], acc[1]);
    }
    return tree_sum(acc[0], acc[1]);
}

/* Run by one warp. */
__global__ static void rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    float mean = __fdiv_rn(warp_dot(x, x, n), (float)n);
    float inv = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
    for (int i = threadIdx.x; i < n; i += WARP) y[i] = __fmul_rn(__fmul_rn(x[i], inv), w[i]);
}

/* ---- attention ------------------------------------------------------------------------------ */

__device__ static void load_row(const struct kn_attend *a, const void *rows, int step, int p, int n,
                                float *x)
{
    size_t at = (size_t)(p < a->n_base ? a->base[p] : a->tail[p - a->n_base]) * step;
    for (int i = threadIdx.x; i < n; i += WARP)
        x[i] = a->kv == KN_KV_F32 ? ((const float *)rows)[at + i]
                                  : half_at((const uint16_t *)rows + at + i);
    __syncwarp();
}

__device__ static float larger(float x, float most)
{
    return x > most ? x : most;
}

/* Scores of positions lo..hi-1 of a chunk: lane t holds t and t + 32; returns their maximum. */
__device__ static float score_chunk(const struct kn_attend *a, const float *q, int lo, int hi,
                                    float *row, float score[2])
{
    int t = threadIdx.x;
    float most = -INFINITY;
    score[0] = score[1] = -INFINITY;
    for (int p = lo; p < hi; p++) {
        load_row(a, a->k, a->k_step, p, a->d_key, row);
        float s = __fmul_rn(a->scale, warp_dot(q, row, a->d_key));
        if (p % WARP == t) score[p % KN_CHUNK / WARP] = s;
        most = larger(s, most);
        __syncwarp();
    }
    return most;
}

/* A head's maximum, sum and outputs over some positions; a lane holds outputs t, t + 32, ... */
struct part {
    float most, sum, o[KN_MAX_D_HEAD / WARP];
};

__device__ static void attend_chunk(const struct kn_attend *a, const float *q, int lo, int hi, int n_part, float *row,
                                    struct part *c)
{
    int t = threadIdx.x, base = lo / KN_CHUNK * KN_CHUNK;
    float score[2], e[2];
    c->most = score_chunk(a, q, lo, hi, row, score);
    for (int i = 0; i < 2; i++) {
        int p = base + t + i * WARP;
        e[i] = p >= lo && p < hi ? kn_expf_inline(__fsub_rn(score[i], c->most)) : 0.0f;
    }
    c->sum = tree_sum(e[0], e[1]);
    for (int i = 0; i < n_part; i++) c->o[i] = 0;
    for (int p = lo; p < hi; p++) {
        float weight = __shfl_sync(ALL, p - base < WARP ? e[0] : e[1], p % WARP);
        load_row(a, a->v, a->v_step, p, a->d_value, row);
        for (int i = 0; i < n_part; i++) c->o[i] = __fmaf_rn(weight, row[t + i * WARP], c->o[i]);
        __syncwarp();
    }
}

/* Merges the part `next` into `to`; first: copies it. */
__device__ static void merge(struct part *to, const struct part *next, bool first, int n_part)
{
    if (first) {
        *to = *next;
        return;
    }
    float most = larger(next->most, to->most);
    float keep = kn_expf_inline(__fsub_rn(to->most, most)), take = kn_expf_inline(__fsub_rn(next->most, most));
    to->most = most;
    to->sum = __fmaf_rn(next->sum, take, __fmul_rn(to->sum, keep));
    for (int i = 0; i < n_part; i++) to->o[i] = __fmaf_rn(next->o[i], take, __fmul_rn(to->o[i], keep));
}

/* One warp per query head. */
__global__ static void attend(struct kn_attend a)
{
    __shared__ float row[KN_MAX_D_HEAD];
    const float *q = a.q + (size_t)blockIdx.x * a.d_key;
    struct part chunk, span, total;
    int t = threadIdx.x, n_part = (a.d_value - t + WARP - 1) / WARP;
    bool first_span = true;

    for (int lo = a.first; lo <= a.last;) {
        int end = min(a.last, lo / KN_SPAN * KN_SPAN + KN_SPAN - 1) + 1;
        for (int from = lo; from < end;) {
            int hi = min(end, from / KN_CHUNK * KN_CHUNK + KN_CHUNK);
            attend_chunk(&a, q, from, hi, n_part, row, &chunk);
            merge(&span, &chunk, from == lo, n_part);
            from = hi;
        }
        merge(&total, &span, first_span, n_part);
        first_span = false;
        lo = end;
    }
    if (a.sink) {
        float most = larger(a.sink[blockIdx.x], total.most);
        float keep = kn_expf_inline(__fsub_rn(total.most, most));
        total.sum = __fmaf_rn(total.sum, keep, kn_expf_inline(__fsub_rn(a.sink[blockIdx.x], most)));
        for (int i = 0; i < n_part; i++) total.o[i] = __fmul_rn(total.o[i], keep);
    }
    for (int i = 0; i < n_part; i++)
        a.out[(size_t)blockIdx.x * a.d_value + t + i * WARP] = __fdiv_rn(total.o[i], total.sum);
}

/* ---- launchers ------------------------------------------------------------------------------ */

static int failed(cudaError_t e)
{
    if (e == cudaSuccess) return 0;
    int code = e == cudaErrorMemoryAllocation ? KN_ENOMEM
             : e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver ? KN_ENODEV : KN_EIO;
    return kn_fail(code, "CUDA: %s", cudaGetErrorString(e));
}

/* Device copies of a call's arrays; finish() frees them.  copy_in() with in NULL makes a zeroed array. */
struct copies { void *at[7]; int n, error; };

static void *copy_in(struct copies *c, const void *in, size_t bytes)
{
    void *at = NULL;
    if (c->error == 0) c->error = failed(cudaMalloc(&at, bytes ? bytes : 1));
    if (c->error) return NULL;
    c->at[c->n++] = at;
    c->error = failed(in ? cudaMemcpy(at, in, bytes, cudaMemcpyHostToDevice)
                         : cudaMemset(at, 0, bytes));
    return at;
}

/* After the launch: waits, copies the result to the host, frees c's memory; returns 0 or KN_E*. */
static int finish(struct copies *c, void *out, const void *result, size_t bytes)
{
    if (c->error == 0) c->error = failed(cudaGetLastError());
    if (c->error == 0) c->error = failed(cudaMemcpy(out, result, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < c->n; i++) cudaFree(c->at[i]);
    return c->error;
}

int kn_orders_matmul(enum kn_orders_dot how, const struct kn_matmul *m)
{
    kn_assert(m->w.format == KN_Q4_K && !m->x_row && !m->y_row);
    kn_assert(m->y_stride == (size_t)m->w.n_out);
    struct copies c = {};
    struct q4_k d = {};
    int panels = kn_ceil_div(m->w.n_out, KN_PANEL), groups = kn_ceil_div(m->n_row, 8);
    size_t y_bytes = (size_t)m->n_row * m->y_stride * sizeof(float);
    d.n_out = m->w.n_out;
    d.n_block = m->w.n_in / 256;
    d.n_row = m->n_row;
    kn_assert(m->x_stride == d.n_block * sizeof *d.x);
    size_t w_bytes = (size_t)panels * d.n_block * sizeof *d.w;
    d.w = (const struct kn_q4_k_x16 *)copy_in(&c, m->w.data, w_bytes);
    d.x = (const struct kn_codes *)copy_in(&c, m->x, (size_t)m->n_row * m->x_stride);
    d.y = (float *)copy_in(&c, NULL, y_bytes);
    if (c.error == 0 && how == KN_ORDERS_DP4A) q4_k_dp4a<<<dim3(panels, d.n_row), KN_PANEL>>>(d);
    if (c.error == 0 && how == KN_ORDERS_MMA) q4_k_mma<<<dim3(panels, groups), WARP>>>(d);
    return finish(&c, m->y, d.y, y_bytes);
}

int kn_orders_rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    struct copies c = {};
    size_t bytes = (size_t)n * sizeof *x;
    const float *dx = (const float *)copy_in(&c, x, bytes);
    const float *dw = (const float *)copy_in(&c, w, bytes);
    float *dy = (float *)copy_in(&c, NULL, bytes);
    if (c.error == 0) rms_norm<<<1, WARP>>>(dx, dw, eps, n, dy);
    return finish(&c, y, dy, bytes);
}

int kn_orders_attend(const struct kn_attend *a, int n_slot)
{
    kn_assert(a->kv != KN_KV_INT8);
    struct copies c = {};
    struct kn_attend d = *a;
    size_t q_bytes = (size_t)a->n_q * a->d_key * sizeof(float);
    size_t out_bytes = (size_t)a->n_q * a->d_value * sizeof(float);
    size_t step_bytes = (size_t)n_slot * (a->kv == KN_KV_F16 ? 2 : 4);
    int n_base = kn_min(a->n_base, a->last + 1);
    d.q = (const float *)copy_in(&c, a->q, q_bytes);
    d.k = copy_in(&c, a->k, step_bytes * a->k_step);
    d.v = copy_in(&c, a->v, step_bytes * a->v_step);
    d.base = (const int32_t *)copy_in(&c, a->base, (size_t)n_base * sizeof *a->base);
    size_t tail_bytes = (size_t)(a->last + 1 - n_base) * sizeof *a->tail;
    d.tail = (const int32_t *)copy_in(&c, a->tail, tail_bytes);
    d.sink = a->sink ? (const float *)copy_in(&c, a->sink, a->n_q * sizeof *a->sink) : NULL;
    d.out = (float *)copy_in(&c, NULL, out_bytes);
    if (c.error == 0) attend<<<a->n_q, WARP>>>(d);
    return finish(&c, a->out, d.out, out_bytes);
}
