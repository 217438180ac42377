/* kernels/cpu/simd_grid_rows.h - a part of matmul_256.tmpl.c: products of the IQ1, IQ2 and IQ3 formats by octets.
 *
 * Used without AVX-512 VBMI.  Eight values of a row fill a lane of 64 bits, so a point of eight values is used where its
 * load puts it.  Sizes are unsigned, and the signs go to the activations, so a product is that of unsigned codes: runs are
 * as long as the sums of 16 bits allow.  A lane then has two sums of a row, which are added after the block.
 *
 * Instructions of AVX2 for 64 weights and one activation row: 55 (IQ1, IQ2) or 80 (IQ3), of which points take 18 or 34 and
 * addresses a fifth.  The bound is the loads: an index and a point for 8 or 4 weights; a Zen 5 loads two points in a cycle. */
#ifndef KERNELS_CPU_SIMD_GRID_ROWS_H
#define KERNELS_CPU_SIMD_GRID_ROWS_H

#include "kernels/cpu/simd_int8.h"

#define FEW_OF_GRIDS 4 /* most rows for which points are loaded in place; of more, lines are decoded once */

typedef vi sizes_fn(const struct codes *c, int lane, int sub, int o);
typedef vi signs_fn(const struct codes *c, int part, int sub);

/* ---- signs of an octet ----------------------------------------------------------------------- */

#if KN_LANES == 16
typedef __mmask64 negative_bytes;

KN_INLINE vi vi_spread_64(const void *p)
{
    int64_t x;

    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi64(x);
}

KN_INLINE negative_bytes set_bytes(vi x, vi bit) { return _mm512_test_epi8_mask(x, bit); }
KN_INLINE vi negate_bytes(vi x, negative_bytes negative)
{
    return _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
}
#else
typedef vi negative_bytes; /* of each byte 1, or less than 0 where it is to be negated */

KN_INLINE vi vi_spread_64(const void *p)
{
    int64_t x;

    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi64x(x);
}

/* 1 - x is negative if x is one of the bits 1 to 7; bit 0 would give 0. */
KN_INLINE negative_bytes set_bytes(vi x, vi bit) { return vi_sub_bytes(vi_bytes(1), vi_and(x, bit)); }
KN_INLINE vi negate_bytes(vi x, negative_bytes negative) { return _mm256_sign_epi8(x, negative); }
#endif

/* Lanes of 64 bits from those of one side. */
KN_INLINE vi lanes_64(vi a, vi b, int side) { return side ? vi_high_32(a, b) : vi_low_32(a, b); }

/* Bit i of byte o of each lane of 64 bits tells the sign of value i of octet o; bit 0 is also bit 1 of byte 4 + o. */
KN_INLINE vi signs_of_side(vi signs, int side) { return lanes_64(signs, vi_shl(signs, 1), side); }

KN_INLINE negative_bytes signs_of_octet(vi signs, int o)
{
    const __m128i first = _mm_setr_epi8(4, 0, 0, 0, 0, 0, 0, 0, 12, 8, 8, 8, 8, 8, 8, 8);
    const __m128i bit = _mm_set1_epi64x((int64_t)UINT64_C(0x8040201008040202));
    const __m128i from = _mm_add_epi8(first, _mm_set1_epi8((char)o));
#if KN_LANES == 16
    return set_bytes(_mm512_shuffle_epi8(signs, _mm512_broadcast_i32x4(from)), _mm512_broadcast_i32x4(bit));
#else
    return set_bytes(_mm256_shuffle_epi8(signs, _mm256_broadcastsi128_si256(from)), _mm256_broadcastsi128_si256(bit));
#endif
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Octets of a run: those of a sub-block, or fewer so that the sum does not overflow. */
KN_INLINE int octets_of(int n_sub, int largest)
{
    const int most = kn_min(32 / n_sub, KN_RUN(largest));

    return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

/* Adds sub-block `sub` of 32 to isum of n rows; x: the rows' codes of this sub-block. */
KN_INLINE void rows_of_sub_block(const struct codes *c, int part, int side, int sub, int n, int n_sub, int largest,
                                 sizes_fn *sizes, signs_fn *signs, const int8_t *const *x, vi *isum)
{
    const int run = octets_of(n_sub, largest);
    vi sign = signs ? signs_of_side(signs(c, part, sub), side) : vi_zero();
    vi dot[TILE];

    UNROLL
    for (int o = 0; o < 4; o++) {
        vi size = sizes(c, part * KN_LANES + 2 * side, sub, o);
        negative_bytes negative = signs_of_octet(sign, o);

        UNROLL
        for (int r = 0; r < n; r++) {
            vi codes = vi_spread_64(x[r] + 8 * o);

            codes = signs ? negate_bytes(codes, negative) : codes;
            dot[r] = dot_codes(o % run ? dot[r] : vi_zero(), size, codes, largest);
        }
        if (o % run == run - 1) {
            const vi *scale = &c->scale[part][n_sub / 8 * sub + o * n_sub / 32];
            vi both = lanes_64(*scale, *scale, side);

            UNROLL
            for (int r = 0; r < n; r++)
                isum[r] = dot_fold(isum[r], dot[r], both, largest);
        }
    }
}

/* Adds a block to n rows; all parameters but t are compile-time constants where this is inlined. */
KN_INLINE void rows_of_octets(const struct tile *t, int n, int bytes, int n_sub, int largest, int mins, sizes_fn *sizes,
                              signs_fn *signs)
{
    const struct codes *c = t->w;

    ROLLED for (int part = 0; part < KN_PARTS; part++)
    {
        vi isum[2][TILE];

        UNROLL
        for (int side = 0; side < 2; side++) {
            const int8_t *x[TILE];

            UNROLL
            for (int r = 0; r < n; r++) {
                x[r] = ((const struct kn_codes *)(const void *)(t->x[r] + t->at))->q;
                isum[side][r] = vi_zero();
            }
            ROLLED for (int sub = 0; sub < 8; sub++)
            {
                keep_order();
                ask_for(c, 32 * side + 4 * sub, 4, part, bytes);
                rows_of_sub_block(c, part, side, sub, n, n_sub, largest, sizes, signs, x, isum[side]);
                UNROLL
                for (int r = 0; r < n; r++)
                    x[r] += 32;
            }
        }
        UNROLL
        for (int r = 0; r < n; r++)
            isum[0][r] = vi_add(even_lanes(isum[0][r], isum[1][r]), odd_lanes(isum[0][r], isum[1][r]));
        finish_rows(t, part, mins, 0, n, isum[0]);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Decodes sub-block `sub` of 32 of a part to lines of signed codes. */
KN_INLINE void decode_octets(struct codes *c, int part, int sub, sizes_fn *sizes, signs_fn *signs)
{
    vi sign = signs ? signs(c, part, sub) : vi_zero();

    UNROLL
    for (int o = 0; o < 4; o++) {
        uint8_t *const line = c->q[8 * sub + 2 * o] + part * (int)sizeof(vi);
        vi octet[2];

        UNROLL
        for (int side = 0; side < 2; side++) {
            octet[side] = sizes(c, part * KN_LANES + 2 * side, sub, o);
            octet[side] = signs ? signed_codes(negate_bytes(octet[side], signs_of_octet(signs_of_side(sign, side), o)))
                                : vi_sub_bytes(octet[side], vi_bytes((uint8_t)(KN_IQ1_BIAS - KN_SIGNED_BIAS)));
        }
        vi_store(line, even_lanes(octet[0], octet[1]));
        vi_store(line + sizeof c->q[0], odd_lanes(octet[0], octet[1]));
    }
}

#endif
