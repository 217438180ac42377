/* kernels/cpu/simd.h - the few vector operations that the kernels use, per instruction set.
 *
 * A *.tmpl.c file is compiled once per instruction set, with -DKN_ISA=avx2, avx512 or vbmi and the compiler
 * flags for it.  It names an exported function KN_FN(kn_matmul), for example, which becomes kn_matmul_avx2.  Its
 * functions use vf and vi: one register of KN_LANES floats or int32s.  One value for each of a panel's 16 rows
 * takes KN_PARTS registers; the 64 accumulators of a sum are 64 / KN_LANES registers.
 *
 * Every operation here is exact or correctly rounded, so both instruction sets give the same bits if
 * the caller fixes the order of operations.  The compiler must not fuse a * b + c (-ffp-contract=off): the only
 * fma are vf_fma and vf_fnma.  Names are short and without the folder's prefix, to keep expressions readable: none
 * is exported.  If the arguments of max or min are equal or one is NaN, the result is the second argument. */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define KN_PASTE2(a, b) a##_##b
#define KN_PASTE(a, b)  KN_PASTE2(a, b)
#define KN_FN(name)     KN_PASTE(name, KN_ISA)

#define KN_INLINE static inline __attribute__((always_inline))

#define KN_SMALL 15 /* largest code for which dot_fold() needs only one multiplication */

/* As `largest` in dot_codes(): codes are signed, made by signed_codes(), and at most `size` in magnitude. */
#define KN_SIGNED(size) (0x100 | (size))

/* Control of a byte shuffle that copies byte i of each of the four lanes of 32 bits to all bytes of the same lane. */
KN_INLINE __m128i vi_byte_of_lanes(int i)
{
    return _mm_add_epi8(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C), _mm_set1_epi8((char)i));
}

#if defined(__AVX512F__)

#define KN_LANES 16
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm; /* one truth value per lane */

/* ---- floats ---------------------------------------------------------------------------------- */

KN_INLINE vm first_lanes(int n) { return (vm)((UINT32_C(1) << n) - 1); } /* n <= KN_LANES */

KN_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
KN_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
KN_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
KN_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
KN_INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
KN_INLINE void vf_store_n(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
KN_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
KN_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
KN_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
KN_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
KN_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /* a*b + c */
KN_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a*b */
KN_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
KN_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
KN_INLINE vm vf_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
KN_INLINE unsigned vf_equal_bits(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); } /* bit i: lane i */
KN_INLINE unsigned vf_not_less_bits(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
KN_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
KN_INLINE vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
KN_INLINE vi vf_to_int(vf a) { return _mm512_cvtps_epi32(a); } /* nearest even */
KN_INLINE vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
KN_INLINE vi vi_bits(vf a) { return _mm512_castps_si512(a); }

KN_INLINE vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

KN_INLINE vf vf_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* kn_e4m3_part() of 2 * KN_LANES codes: shifted by 7 bits, sign and fraction are in their places in a half. */
KN_INLINE void vf_load_e4m3_parts(const uint8_t *p, vf out[2])
{
    const __m512i ones = _mm512_set1_epi16(0x3F80);
    __m512i half = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)), 7);
    __mmask32 none = _mm512_cmpeq_epi16_mask(_mm512_and_si512(half, ones), ones);

    half = _mm512_and_si512(half, _mm512_set1_epi16((short)0xBF80));
    half = _mm512_or_si512(half, _mm512_maskz_mov_epi16(none, _mm512_set1_epi16(0x7E00)));
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
}

/* kn_nvfp4_step() of KN_LANES codes. */
KN_INLINE vf vf_load_ue4m3_half(const uint8_t *p)
{
    __m128i ones = _mm_set1_epi8(0x7F), code = _mm_and_si128(_mm_loadu_si128((const __m128i *)p), ones);
    __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_andnot_si128(_mm_cmpeq_epi8(code, ones), code)), 7);

    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(128));
}

KN_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)p, half);
}

/* ---- integers -------------------------------------------------------------------------------- */

KN_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
KN_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
KN_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
KN_INLINE void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x); }
KN_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
KN_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
KN_INLINE vi vi_sub_bytes(vi a, vi b) { return _mm512_sub_epi8(a, b); }
KN_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
KN_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
KN_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
KN_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
KN_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)

/* Replaces each byte of i, a number 0..15, by the table's byte with that number. */
KN_INLINE vi vi_look_up(__m128i table, vi i) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i); }

KN_INLINE vi vi_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }

KN_INLINE vi vi_load_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

KN_INLINE vi vi_load_u16(const uint16_t *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); }

KN_INLINE void vi_store_i8(int8_t *p, vi x) /* x in [-128, 127] */
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
}

/* Right shift by a number of bits that is not a compile-time constant. */
KN_INLINE vi vi_shr_by(vi a, int n) { return _mm512_srlv_epi32(a, _mm512_set1_epi32(n)); }

/* Adds `amount` to byte j of each lane where bit 4 * i + j of the same lane of `bits` is set. */
KN_INLINE vi vi_add_at_bits(vi x, vi bits, int i, int8_t amount)
{
    vi byte = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(vi_byte_of_lanes(i / 2)));
    __mmask64 set = _mm512_test_epi8_mask(byte, _mm512_set1_epi32(i % 2 ? (int32_t)0x80402010 : 0x08040201));
    return _mm512_mask_add_epi8(x, set, x, _mm512_set1_epi8(amount));
}

/* Negates byte j of each lane where bit 4 * i + j of the same lane of `bits` is set. */
KN_INLINE vi vi_negate_at_bits(vi x, vi bits, int i)
{
    vi byte = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(vi_byte_of_lanes(i / 2)));
    __mmask64 set = _mm512_test_epi8_mask(byte, _mm512_set1_epi32(i % 2 ? (int32_t)0x80402010 : 0x08040201));
    return _mm512_mask_sub_epi8(x, set, _mm512_setzero_si512(), x);
}

/* acc + dot product of the two int16 of each lane. */
KN_INLINE vi vi_dot_i16(vi acc, vi a, vi b) { return _mm512_dpwssd_epi32(acc, a, b); }

/* A run is a sequence of calls of dot_codes(), which starts from vi_zero().  Each call adds to a lane the dot product
 * of its four bytes of u (unsigned codes) and s (activations in [-127, 127]).  dot_fold() then adds the run's sum times
 * the lane's scale to acc; the scale is a signed byte prepared by dot_scale().  A run has at most KN_RUN(largest u)
 * calls.  So the sum of a run of small codes (KN_SMALL) has 16 bits, and one multiplication folds it.  That of large
 * codes has 24 bits: a shuffle moves its lowest 8 bits to one half of the lane and the upper 16 to the other half,
 * whose scale is 256 times as large, and the same instruction folds it; a 32-bit multiplication would be two
 * instructions and an addition. */
#define KN_MOST(largest) ((largest) < KN_SIGNED(0) ? (largest) : 255)
#define KN_RUN(largest)  (((largest) <= KN_SMALL ? INT16_MAX : (1 << 23) - 1) / (4 * 127 * KN_MOST(largest)))
KN_INLINE vi dot_codes(vi run, vi u, vi s, int largest)
{
    (void)largest;
    return _mm512_dpbusd_epi32(run, u, s);
}
KN_INLINE vi dot_spread(vi run, vi u, const int8_t s[4], int largest) /* with the same four s in each lane */
{
    (void)largest;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(run) : "v"(u), "m"(*(const int8_t(*)[4])s));
    return run;
}
KN_INLINE vi dot_add(vi a, vi b) { return _mm512_add_epi32(a, b); } /* of two parts of a run */
KN_INLINE vi dot_scale(vi scale, int largest)
{
    vi low = vi_and(scale, vi_set1(0xFFFF));

    return largest <= KN_SMALL ? low : vi_or(low, vi_shl(scale, 24));
}
KN_INLINE vi dot_fold(vi acc, vi run, vi scale, int largest)
{
    const __m128i cut = _mm_setr_epi32(0x02018000, 0x06058004, 0x0A098008, 0x0E0D800C);

    if (largest > KN_SMALL)
        run = _mm512_shuffle_epi8(run, _mm512_broadcast_i32x4(cut));
    return _mm512_dpwssd_epi32(acc, run, scale);
}

/* Signed codes w are prepared by signed_codes(), or looked up in a table from signed_table(); both add KN_SIGNED_BIAS.
 * A run of signed_dot() starts from signed_start(sums), which subtracts the bias times the sum of the activations s of
 * the run; `sums` has this sum in each lane, in two int16 that are added. */
#define KN_SIGNED_BIAS 128
KN_INLINE vi signed_codes(vi w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
KN_INLINE __m128i signed_table(__m128i w) { return _mm_xor_si128(w, _mm_set1_epi8(-128)); }
KN_INLINE vi signed_start(vi sums)
{
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_set1_epi16(-128), sums);
}
KN_INLINE vi signed_dot(vi acc, vi w, vi s) { return _mm512_dpbusd_epi32(acc, w, s); }

#else /* AVX2 */

#define KN_LANES        8
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vm; /* all bits of a lane 1 where true */

/* ---- floats ---------------------------------------------------------------------------------- */

KN_INLINE vm first_lanes(int n) /* n <= KN_LANES */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

KN_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
KN_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
KN_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
KN_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
KN_INLINE vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
KN_INLINE void vf_store_n(float *p, vf x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
KN_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
KN_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
KN_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
KN_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
KN_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }   /* a*b + c */
KN_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); } /* c - a*b */
KN_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
KN_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
KN_INLINE vm vf_less(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
KN_INLINE unsigned vf_equal_bits(vf a, vf b) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
KN_INLINE unsigned vf_not_less_bits(vf a, vf b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
KN_INLINE vf vf_select(vm m, vf a, vf b) /* m ? a : b */ { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m)); }
KN_INLINE vf vf_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
KN_INLINE vi vf_to_int(vf a) { return _mm256_cvtps_epi32(a); } /* nearest even */
KN_INLINE vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
KN_INLINE vi vi_bits(vf a) { return _mm256_castps_si256(a); }

KN_INLINE vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

KN_INLINE vf vf_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

KN_INLINE void vf_load_e4m3_parts(const uint8_t *p, vf out[2])
{
    const __m256i ones = _mm256_set1_epi16(0x3F80);
    __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    __m256i none = _mm256_cmpeq_epi16(_mm256_and_si256(half, ones), ones);

    half = _mm256_and_si256(half, _mm256_set1_epi16((short)0xBF80));
    half = _mm256_or_si256(half, _mm256_and_si256(none, _mm256_set1_epi16(0x7E00)));
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

KN_INLINE vf vf_load_ue4m3_half(const uint8_t *p)
{
    __m128i ones = _mm_set1_epi8(0x7F), code = _mm_and_si128(_mm_loadl_epi64((const __m128i *)p), ones);
    __m128i half = _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_andnot_si128(_mm_cmpeq_epi8(code, ones), code)), 7);

    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(128));
}

KN_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128((__m128i *)p, half);
}

/* ---- integers -------------------------------------------------------------------------------- */

KN_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
KN_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
KN_INLINE vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
KN_INLINE void vi_store(void *p, vi x) { _mm256_storeu_si256(p, x); }
KN_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
KN_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
KN_INLINE vi vi_sub_bytes(vi a, vi b) { return _mm256_sub_epi8(a, b); }
KN_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
KN_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
KN_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
KN_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
KN_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
#define vi_shl(a, n)    _mm256_slli_epi32(a, n)
#define vi_shr(a, n)    _mm256_srli_epi32(a, n)

KN_INLINE vi vi_look_up(__m128i table, vi i) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i); }

KN_INLINE vi vi_load_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

KN_INLINE vi vi_load_i8(const int8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

KN_INLINE vi vi_load_u16(const uint16_t *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)); }

KN_INLINE void vi_store_i8(int8_t *p, vi x) /* x in [-128, 127] */
{
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}

KN_INLINE vi vi_shr_by(vi a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }

KN_INLINE vi vi_add_at_bits(vi x, vi bits, int i, int8_t amount)
{
    vi byte = _mm256_shuffle_epi8(bits, _mm256_broadcastsi128_si256(vi_byte_of_lanes(i / 2)));
    vi one = _mm256_set1_epi32(i % 2 ? (int32_t)0x80402010 : 0x08040201);
    vi set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, one), one);
    return _mm256_add_epi8(x, _mm256_and_si256(set, _mm256_set1_epi8(amount)));
}

KN_INLINE vi vi_negate_at_bits(vi x, vi bits, int i)
{
    vi byte = _mm256_shuffle_epi8(bits, _mm256_broadcastsi128_si256(vi_byte_of_lanes(i / 2)));
    vi one = _mm256_set1_epi32(i % 2 ? (int32_t)0x80402010 : 0x08040201);
    vi set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, one), one);
    return _mm256_sign_epi8(x, _mm256_or_si256(set, _mm256_set1_epi8(1)));
}

KN_INLINE vi vi_dot_i16(vi acc, vi a, vi b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }

/* As above, but a run is added up in two int16 per lane, before dot_fold() multiplies and widens them.
 * Each call adds two products of a code (at most `largest`) and an activation s in [-127, 127], so at most
 * 2 * 127 * largest; KN_RUN calls cannot overflow.  Signed codes w: maddubs needs an unsigned factor, so it gets |w|,
 * and s gets the sign of w.  With |w| <= 128, two products are at most 2 * 128 * 127 < 2^15, so a run is one call. */
#define KN_RUN(largest) (32767 / (2 * 127 * ((largest) < KN_SIGNED(0) ? (largest) : (largest)-KN_SIGNED(0))))
KN_INLINE vi signed_pairs(vi w, vi s) { return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(s, w)); }
KN_INLINE vi dot_codes(vi run, vi u, vi s, int largest)
{
    return _mm256_add_epi16(run, largest >= KN_SIGNED(0) ? signed_pairs(u, s) : _mm256_maddubs_epi16(u, s));
}
KN_INLINE vi dot_spread(vi run, vi u, const int8_t s[4], int largest)
{
    int32_t four;

    memcpy(&four, s, sizeof four);
    return dot_codes(run, u, vi_set1(four), largest);
}
KN_INLINE vi dot_add(vi a, vi b) { return _mm256_add_epi16(a, b); }
KN_INLINE vi dot_scale(vi scale, int largest)
{
    (void)largest;
    return _mm256_blend_epi16(scale, _mm256_slli_epi32(scale, 16), 0xAA);
}
KN_INLINE vi dot_fold(vi acc, vi run, vi scale, int largest)
{
    (void)largest;
    return _mm256_add_epi32(acc, _mm256_madd_epi16(run, scale));
}

#define KN_SIGNED_BIAS 0
KN_INLINE vi signed_codes(vi w) { return w; }
KN_INLINE __m128i signed_table(__m128i w) { return w; }
KN_INLINE vi signed_start(vi sums)
{
    (void)sums;
    return _mm256_setzero_si256();
}
KN_INLINE vi signed_dot(vi acc, vi w, vi s)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(signed_pairs(w, s), _mm256_set1_epi16(1)));
}

#endif

#define KN_PARTS (16 / KN_LANES) /* registers for a panel's 16 rows */

KN_INLINE __m128i vi_quarter_sum(vi x)
{
#if KN_LANES == 16
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
#else
    __m256i half = x;
#endif
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

KN_INLINE int32_t vi_sum(vi x) /* sum of all lanes */
{
    __m128i quarter = vi_quarter_sum(x);
    quarter = _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0x4E));
    return _mm_cvtsi128_si32(quarter) + _mm_extract_epi32(quarter, 1);
}

/* Broadcasts a byte, or four bytes from memory, to every lane. */
KN_INLINE vi vi_bytes(uint8_t byte) { return vi_set1((int32_t)(byte * UINT32_C(0x01010101))); }

/* Byte l of p in all four bytes of lane l. */
KN_INLINE vi vi_load_u8_bytes(const uint8_t *p)
{
    vi x = vi_load_u8(p);

    x = vi_or(x, vi_shl(x, 8));
    return vi_or(x, vi_shl(x, 16));
}

KN_INLINE vi vi_spread(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof x);
    return vi_set1(x);
}

KN_INLINE vf vf_spread(const void *p)
{
    float x;

    memcpy(&x, p, sizeof x);
    return vf_set1(x);
}

#endif
