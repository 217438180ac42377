/* kernels/cpu/simd_math.h - shared by vector.tmpl.c, attention.tmpl.c and delta.tmpl.c, on top of simd.h:
 * exp, partial registers, and sums in the order of cpu/reference.c.
 *
 * The 64 accumulators of a sum are KN_ACCS registers: accumulator i is lane i mod KN_LANES of
 * register i / KN_LANES. The first steps of the halving tree (kernels.h) add whole registers, the last
 * ones add halves of a register. To finish many sums at once, halves of several registers are first put
 * side by side, so that every addition fills a register. The order of additions is the tree's in both cases. */
#ifndef KERNELS_CPU_SIMD_MATH_H
#define KERNELS_CPU_SIMD_MATH_H

#include "kernels/cpu/expf.h"
#include "kernels/cpu/simd.h"

#define KN_ACCS  (64 / KN_LANES)
#define KN_QUADS (KN_LANES / 4) /* 128-bit parts of a register */

/* ---- partial registers: n > 0, may exceed KN_LANES ------------------------------------------ */

KN_INLINE vf load_some(const float *p, int n) { return n >= KN_LANES ? vf_load(p) : vf_load_n(p, n); }

KN_INLINE void store_some(float *p, vf x, int n)
{
    if (n >= KN_LANES)
        vf_store(p, x);
    else
        vf_store_n(p, x, n);
}

/* ---- operations that differ between the instruction sets ------------------------------------ */

#if KN_LANES == 16

KN_INLINE vm lanes_between(int lo, int hi) /* lanes lo..hi-1; both may be out of range */
{
    vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cmpge_epi32_mask(lane, vi_set1(lo)) & _mm512_cmplt_epi32_mask(lane, vi_set1(hi));
}

KN_INLINE vf vf_times_pow2(vf x, vf n) { return _mm512_scalef_ps(x, n); }

KN_INLINE vf vf_low_pairs(vf a, vf b) /* in each 128 bits: a0 a1 b0 b1 */
{
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
KN_INLINE vf vf_high_pairs(vf a, vf b) /* a2 a3 b2 b3 */
{
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
KN_INLINE vf vf_evens(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0x88); } /* a0 a2 b0 b2 */
KN_INLINE vf vf_odds(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0xdd); }  /* a1 a3 b1 b3 */

/* Adds 16 lanes down to 4, for each of 4 registers: 128-bit part i of the result belongs to x[i]. */
KN_INLINE vf fold_to_quads(const vf x[KN_QUADS])
{
    vf a = _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
    vf b = _mm512_add_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

KN_INLINE __m128 fold_to_quad(vf x)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

KN_INLINE float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }

#else

KN_INLINE vm lanes_between(int lo, int hi)
{
    vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(vi_set1(lo), lane), _mm256_cmpgt_epi32(vi_set1(hi), lane));
}

KN_INLINE vf vf_times_pow2(vf x, vf n) /* two factors, as in expf.h */
{
    vi k = vf_to_int(n), half = _mm256_srai_epi32(k, 1), bias = vi_set1(127);
    x = vf_mul(x, vf_bits(vi_shl(vi_add(half, bias), 23)));
    return vf_mul(x, vf_bits(vi_shl(vi_add(vi_sub(k, half), bias), 23)));
}

KN_INLINE vf vf_low_pairs(vf a, vf b)
{
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
KN_INLINE vf vf_high_pairs(vf a, vf b)
{
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
KN_INLINE vf vf_evens(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0x88); }
KN_INLINE vf vf_odds(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0xdd); }

KN_INLINE vf fold_to_quads(const vf x[KN_QUADS]) /* 8 lanes down to 4, for 2 registers */
{
    return _mm256_add_ps(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
}

KN_INLINE __m128 fold_to_quad(vf x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }

KN_INLINE float vf_largest(vf x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

#endif

/* ---- sums ----------------------------------------------------------------------------------- */

/* 64 accumulators to one register: steps 32 and 16 of the tree, and step 8 with 8 lanes. */
KN_INLINE vf fold_accumulators(const vf acc[KN_ACCS])
{
    vf x[KN_ACCS];
    for (int i = 0; i < KN_ACCS; i++)
        x[i] = acc[i];
    for (int half = KN_ACCS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] = vf_add(x[i], x[i + half]);
    return x[0];
}

KN_INLINE float sum_accumulators(const vf acc[KN_ACCS])
{
    __m128 x = fold_to_quad(fold_accumulators(acc));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* Steps 2 and 1 of the tree, for each 128-bit part of four registers: lane 4 i + k is the sum of part i of x[k]. */
KN_INLINE vf sum_quads(const vf x[4])
{
    vf a = vf_add(vf_low_pairs(x[0], x[1]), vf_high_pairs(x[0], x[1]));
    vf b = vf_add(vf_low_pairs(x[2], x[3]), vf_high_pairs(x[2], x[3]));
    return vf_add(vf_evens(a, b), vf_odds(a, b));
}

/* ---- exp: kn_expf_inline, lane by lane ------------------------------------------------------ */

KN_INLINE vf vf_exp(vf x)
{
    x = vf_max(vf_set1(KN_EXPF_LOWEST), x); /* if one is NaN, the second: NaN stays */
    x = vf_min(vf_set1(KN_EXPF_HIGHEST), x);

    vf shift = vf_set1(KN_EXPF_SHIFT);
    vf n = vf_sub(vf_fma(x, vf_set1(KN_EXPF_LOG2E), shift), shift);
    vf r = vf_fnma(n, vf_set1(KN_EXPF_LN2_HI), x);
    r = vf_fnma(n, vf_set1(KN_EXPF_LN2_LO), r);

    vf q = vf_set1(KN_EXPF_Q4);
    q = vf_fma(q, r, vf_set1(KN_EXPF_Q3));
    q = vf_fma(q, r, vf_set1(KN_EXPF_Q2));
    q = vf_fma(q, r, vf_set1(KN_EXPF_Q1));
    q = vf_fma(q, r, vf_set1(KN_EXPF_Q0));
    vf e = vf_add(vf_fma(q, vf_mul(r, r), r), vf_set1(1.0f));
    return vf_times_pow2(e, n);
}

KN_INLINE vf vf_tanh(vf x) /* kn_tanhf_inline, lane by lane */
{
    vi sign = vi_and(vi_bits(x), vi_bits(vf_set1(-0.0f)));
    vf size = vf_bits(vi_xor(vi_bits(x), sign)), s = vf_mul(x, x), one = vf_set1(1.0f);
    vf t = vf_fma(vf_set1(KN_TANHF_T3), s, vf_set1(KN_TANHF_T2));
    t = vf_fma(t, s, vf_set1(KN_TANHF_T1));
    t = vf_fma(t, s, vf_set1(KN_TANHF_T0));
    vf near = vf_fma(vf_mul(t, s), x, x), e = vf_exp(vf_mul(vf_set1(-2.0f), size));
    vf far = vf_bits(vi_or(vi_bits(vf_div(vf_sub(one, e), vf_add(one, e))), sign));
    return vf_select(vf_less(size, vf_set1(KN_TANHF_NEAR)), near, far);
}

/* The sum of exp(x[i] - most); y, if it is not NULL, gets the terms and may be x. */
KN_INLINE float sum_exp(const float *x, float most, int n, float *y)
{
    vf top = vf_set1(most), acc[KN_ACCS];
    for (int j = 0; j < KN_ACCS; j++)
        acc[j] = vf_zero();
    for (int i = 0; i < n; i += 64) {
        for (int j = 0; j < KN_ACCS; j++) {
            int at = i + j * KN_LANES;
            if (at >= n)
                break;
            vf e = vf_exp(vf_sub(load_some(x + at, n - at), top));
            if (n - at < KN_LANES)
                e = vf_select(first_lanes(n - at), e, vf_zero());
            if (y)
                store_some(y + at, e, n - at);
            acc[j] = vf_add(acc[j], e);
        }
    }
    return sum_accumulators(acc);
}

#endif
