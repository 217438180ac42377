/* kernels/cpu/simd_int8.h - codes of int8 keys, values and attention weights, for vector.tmpl.c and attention.tmpl.c.
 *
 * Keys and weights are staged so that one instruction does four multiply-adds per lane without a sum over lanes:
 *   scores   a lane is a position, its four bytes are four neighbouring values of the key (transpose_keys)
 *   values   a lane is an output, its four bytes are the codes of four neighbouring positions (mix_values) */
#ifndef KERNELS_CPU_SIMD_INT8_H
#define KERNELS_CPU_SIMD_INT8_H

#include "kernels/cpu/simd_math.h"
#include "kernels/kernels.h"

#define KN_REG_BYTES (4 * KN_LANES)

#if KN_LANES == 16

/* acc + dot product of the four bytes of each lane: u in 0..127, s in -127..127 */
KN_INLINE vi vi_dot_weights(vi acc, vi u, vi s) { return _mm512_dpbusd_epi32(acc, u, s); }
KN_INLINE int32_t vi_largest(vi x) { return _mm512_reduce_max_epi32(x); }

KN_INLINE vi vi_load_bytes(const int8_t *p, int n) /* zeros beyond n */
{
    return n >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8((UINT64_C(1) << kn_max(n, 0)) - 1, p);
}

/* 16 bytes of each of the rows j, j + 4, .. */
KN_INLINE vi rows_apart(const __m128i row[16], int j)
{
    __m512i x = _mm512_castsi128_si512(row[j]);
    x = _mm512_inserti32x4(x, row[j + 4], 1);
    x = _mm512_inserti32x4(x, row[j + 8], 2);
    return _mm512_inserti32x4(x, row[j + 12], 3);
}

#define vi_low_8(a, b)   _mm512_unpacklo_epi8(a, b)
#define vi_high_8(a, b)  _mm512_unpackhi_epi8(a, b)
#define vi_low_16(a, b)  _mm512_unpacklo_epi16(a, b)
#define vi_high_16(a, b) _mm512_unpackhi_epi16(a, b)
#define vi_low_32(a, b)  _mm512_unpacklo_epi32(a, b)
#define vi_high_32(a, b) _mm512_unpackhi_epi32(a, b)
#define vi_low_64(a, b)  _mm512_unpacklo_epi64(a, b)
#define vi_high_64(a, b) _mm512_unpackhi_epi64(a, b)

/* Part l (128 bits) of x[r] becomes part r of x[l]. */
KN_INLINE void in_order(vi x[4])
{
    vi a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    vi c = _mm512_shuffle_i32x4(x[0], x[1], 0xee), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

#else

KN_INLINE vi vi_dot_weights(vi acc, vi u, vi s) /* two products are at most 2 * 127 * 127 < 2^15 */
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}

KN_INLINE int32_t vi_largest(vi x)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

KN_INLINE vi vi_load_bytes(const int8_t *p, int n)
{
    int8_t some[32] = { 0 };
    if (n >= 32)
        return _mm256_loadu_si256((const __m256i *)p);
    if (n > 0)
        memcpy(some, p, (size_t)n);
    return _mm256_loadu_si256((const __m256i *)some);
}

KN_INLINE vi rows_apart(const __m128i row[8], int j)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(row[j]), row[j + 4], 1);
}

#define vi_low_8(a, b)   _mm256_unpacklo_epi8(a, b)
#define vi_high_8(a, b)  _mm256_unpackhi_epi8(a, b)
#define vi_low_16(a, b)  _mm256_unpacklo_epi16(a, b)
#define vi_high_16(a, b) _mm256_unpackhi_epi16(a, b)
#define vi_low_32(a, b)  _mm256_unpacklo_epi32(a, b)
#define vi_high_32(a, b) _mm256_unpackhi_epi32(a, b)
#define vi_low_64(a, b)  _mm256_unpacklo_epi64(a, b)
#define vi_high_64(a, b) _mm256_unpackhi_epi64(a, b)

KN_INLINE void in_order(vi x[4]) /* part l of x[r] becomes part 4 l + r of all */
{
    vi a = _mm256_permute2x128_si256(x[0], x[1], 0x20), b = _mm256_permute2x128_si256(x[2], x[3], 0x20);
    vi c = _mm256_permute2x128_si256(x[0], x[1], 0x31), d = _mm256_permute2x128_si256(x[2], x[3], 0x31);
    x[0] = a;
    x[1] = b;
    x[2] = c;
    x[3] = d;
}

#endif

/* Codes 64 floats; returns their scale. The rule is in kernels.h. */
KN_INLINE float code_64(const vf x[KN_ACCS], int8_t *code)
{
    const vi most = vi_set1(127), least = vi_set1(-127);
    vi bits = vi_zero();
    for (int j = 0; j < KN_ACCS; j++)
        bits = vi_max(bits, vi_and(vi_bits(x[j]), vi_set1(0x7FFFFFFF)));
    int32_t largest_bits = vi_largest(bits);
    float largest;
    memcpy(&largest, &largest_bits, sizeof largest);
    if (largest_bits >= 0x7F800000 || largest < 0x1p-100f) {
        memset(code, 0, 64);
        return largest_bits >= 0x7F800000 ? kn_f16_to_f32(0x7E00) : 0.0f;
    }
    vf inverse = vf_set1(127.0f / largest);
    for (int j = 0; j < KN_ACCS; j++)
        vi_store_i8(code + j * KN_LANES, vi_max(least, vi_min(most, vf_to_int(vf_mul(x[j], inverse)))));
    return largest / 127.0f;
}

/* Codes n <= 64 floats at x; code has room for 64, those from n on become 0. */
KN_INLINE float code_some(const float *x, int n, int8_t *code)
{
    vf all[KN_ACCS];
    for (int j = 0; j < KN_ACCS; j++, n -= KN_LANES)
        all[j] = n > 0 ? load_some(x + j * KN_LANES, n) : vf_zero();
    return code_64(all, code);
}

/* 16 codes of each of KN_LANES rows: to[i] has codes 4 i .. 4 i + 3 of row l in lane l. */
KN_INLINE void transpose_keys(const __m128i row[KN_LANES], vi to[4])
{
    vi r[4];
    for (int j = 0; j < 4; j++)
        r[j] = rows_apart(row, j);
    vi a = vi_low_32(r[0], r[1]), b = vi_low_32(r[2], r[3]), c = vi_high_32(r[0], r[1]), d = vi_high_32(r[2], r[3]);
    to[0] = vi_low_64(a, b);
    to[1] = vi_high_64(a, b);
    to[2] = vi_low_64(c, d);
    to[3] = vi_high_64(c, d);
}

/* A register of codes of each of four positions: to[r] has in part l (128 bits) outputs 16 l + 4 r .. + 3, four
 * positions each. in_order() then orders the sums. */
KN_INLINE void mix_values(const vi v[4], vi to[4])
{
    vi a = vi_low_8(v[0], v[1]), b = vi_low_8(v[2], v[3]), c = vi_high_8(v[0], v[1]), d = vi_high_8(v[2], v[3]);
    to[0] = vi_low_16(a, b);
    to[1] = vi_high_16(a, b);
    to[2] = vi_low_16(c, d);
    to[3] = vi_high_16(c, d);
}

#endif
