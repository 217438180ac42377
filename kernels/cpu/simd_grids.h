/* kernels/cpu/simd_grids.h - a part of matmul_256.tmpl.c: lines and scales of the IQ1, IQ2 and IQ3 formats.
 *
 * A line is looked up: each row's index selects a point of the format's grid (grids.c), 8 bytes with the sizes of two
 * lines or 4 bytes with those of one; then the signs negate bytes.  Points are loaded one by one: an instruction for
 * the index, one for the point and about one to put it into its lane.  With one activation row these are most of the
 * work.  scales_*() prepares, for several rows at once, long indices and the eighth of seven stored signs. */
#ifndef KERNELS_CPU_SIMD_GRIDS_H
#define KERNELS_CPU_SIMD_GRIDS_H

/* ---- points ---------------------------------------------------------------------------------- */

/* The index of a lane, 8 bits or 16 (wide); p: that of lane 0.  Lanes are four bytes apart. */
KN_INLINE size_t index_of(const void *p, int lane, bool wide)
{
    uint16_t index;

    if (!wide)
        return ((const uint8_t *)p)[4 * lane];
    memcpy(&index, (const uint8_t *)p + 4 * lane, sizeof index);
    return index;
}

KN_INLINE __m128i two_points(uint8_t (*grid)[8], const void *index, int lane, bool wide)
{
    __m128i first = _mm_loadl_epi64((const void *)grid[index_of(index, lane, wide)]);
    const void *second = grid[index_of(index, lane + 1, wide)];

    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), second));
}

KN_INLINE __m128i four_points(uint8_t (*grid)[4], const void *index, int lane, bool wide)
{
    int32_t size[4];

    UNROLL
    for (int i = 0; i < 4; i++)
        memcpy(&size[i], grid[index_of(index, lane + i, wide)], 4);
    return _mm_setr_epi32(size[0], size[1], size[2], size[3]);
}

#if KN_LANES == 16
KN_INLINE vi join_4(__m128i a, __m128i b, __m128i c, __m128i d)
{
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);

    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Points of pairs of rows, from `lane` on; every second pair. */
KN_INLINE vi pairs_of_points(uint8_t (*grid)[8], const void *index, int lane, bool wide)
{
    return join_4(two_points(grid, index, lane, wide), two_points(grid, index, lane + 4, wide),
                  two_points(grid, index, lane + 8, wide), two_points(grid, index, lane + 12, wide));
}

/* The even (odd) lanes of a and b: two of a, two of b, and so on. */
#define even_lanes(a, b) _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88))
#define odd_lanes(a, b)  _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xDD))

KN_INLINE vi line_of_4(uint8_t (*grid)[4], const void *index, bool wide)
{
    return join_4(four_points(grid, index, 0, wide), four_points(grid, index, 4, wide),
                  four_points(grid, index, 8, wide), four_points(grid, index, 12, wide));
}
#else
KN_INLINE vi pairs_of_points(uint8_t (*grid)[8], const void *index, int lane, bool wide)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(two_points(grid, index, lane, wide)),
                                   two_points(grid, index, lane + 4, wide), 1);
}

#define even_lanes(a, b) _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88))
#define odd_lanes(a, b)  _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xDD))

KN_INLINE vi line_of_4(uint8_t (*grid)[4], const void *index, bool wide)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(four_points(grid, index, 0, wide)),
                                   four_points(grid, index, 4, wide), 1);
}
#endif

/* Sizes of KN_LANES rows: the first four (half 0) or the last four of each row's point. */
KN_INLINE vi line_of_8(uint8_t (*grid)[8], const void *index, bool wide, int half)
{
    vi a = pairs_of_points(grid, index, 0, wide), b = pairs_of_points(grid, index, 2, wide);

    return half ? odd_lanes(a, b) : even_lanes(a, b);
}

/* ---- signs and scales ------------------------------------------------------------------------ */

/* Sets the top bit of each byte, which is clear, so that the number of set bits is even. */
KN_INLINE vi with_eighth(vi x)
{
    const __m128i top = _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);

    return vi_or(x, vi_look_up(top, vi_and(vi_xor(x, vi_shr(x, 4)), vi_bytes(15))));
}

/* Bits 7 * i .. 7 * i + 6 of each lane, i 0..3, to byte i, and their eighth. */
KN_INLINE vi four_signs(vi x)
{
    vi a = vi_and(x, vi_set1(0x7F)), b = vi_and(vi_shl(x, 1), vi_set1(0x7F00));
    vi c = vi_and(vi_shl(x, 2), vi_set1(0x7F0000)), d = vi_and(vi_shl(x, 3), vi_set1(0x7F000000));

    return with_eighth(vi_or(vi_or(a, b), vi_or(c, d)));
}

KN_INLINE vi odd_scale(vi x) { return vi_or(vi_add(x, x), vi_set1(1)); }

/* The factors of sub-block i of 32, or of sub-blocks i and i + 1 of 16: 2 * s + 1 each. */
KN_INLINE void scale_32(struct codes *c, int part, int i, vi s)
{
    vi scale = odd_scale(s);

    c->scale[part][i] = dot_scale(scale, KN_SIGNED(0));
    c->min[part][i] = pair(scale, scale);
}

KN_INLINE void scales_16(struct codes *c, int part, const uint8_t sc[2][16][4])
{
    for (int i = 0; i < 16; i += 2) {
        vi word = vi_load(sc[i / 8][part * KN_LANES]);
        vi even = vi_and(vi_shr_by(word, i % 8 * 4), vi_set1(15));
        vi odd = vi_and(vi_shr_by(word, i % 8 * 4 + 4), vi_set1(15));

        set_scale(c, part, i, odd_scale(even), odd_scale(odd), KN_SIGNED(0));
    }
}

KN_INLINE vf eighth_of(const uint16_t *d) { return vf_mul(vf_load_f16(d), vf_set1(0.125f)); }

/* ---- formats --------------------------------------------------------------------------------- */

/* Line `line` of a block from its sizes. */
KN_INLINE vi with_signs(vi size, vi signs, int i) { return signed_codes(vi_negate_at_bits(size, signs, i % 8)); }

KN_INLINE vi line_iq2_xxs(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq2_xxs_x16 *w = c->block;
    const int sub = 4 * half + i / 8;
    vi size = line_of_8(kn_grid_iq2_xxs, &w->q[2 * sub][part * KN_LANES][i % 8 / 2], false, i % 2);

    return with_signs(size, c->sign[part][sub], i);
}

static void scales_iq2_xxs(const void *block, struct codes *c)
{
    const struct kn_iq2_xxs_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi word = vi_load(w->q[2 * i + 1][part * KN_LANES]);

            c->sign[part][i] = four_signs(word);
            scale_32(c, part, i, vi_shr(word, 28));
        }
        c->d[part] = eighth_of(w->d + part * KN_LANES);
    }
}

/* The indices of two points are in a lane: those of points 2 * p and 2 * p + 1. */
KN_INLINE vi line_iq2_xs(const struct codes *c, int half, int i, int part)
{
    const int point = 16 * half + i / 2;
    vi size = line_of_8(kn_grid_iq2_xs, &c->index[point / 2][part * KN_LANES][point % 2], true, i % 2);

    return with_signs(size, c->sign[part][4 * half + i / 8], i);
}

static void scales_iq2_xs(const void *block, struct codes *c)
{
    const struct kn_iq2_xs_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi a = vi_load(w->q[2 * i][part * KN_LANES]), b = vi_load(w->q[2 * i + 1][part * KN_LANES]);
            vi sa = vi_or(vi_and(vi_shr(a, 9), vi_set1(0x7F)), vi_and(vi_shr(a, 17), vi_set1(0x7F00)));
            vi sb = vi_or(vi_and(vi_shl(b, 7), vi_set1(0x7F0000)), vi_and(vi_shr(b, 1), vi_set1(0x7F000000)));

            vi_store(c->index[2 * i][part * KN_LANES], vi_and(a, vi_set1(0x01FF01FF)));
            vi_store(c->index[2 * i + 1][part * KN_LANES], vi_and(b, vi_set1(0x01FF01FF)));
            c->sign[part][i] = with_eighth(vi_or(sa, sb));
        }
        scales_16(c, part, w->sc);
        c->d[part] = eighth_of(w->d + part * KN_LANES);
    }
}

/* The indices of two points are in a lane: those of even (odd) points p and p + 2 of a sub-block of 32. */
KN_INLINE vi line_iq2_s(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq2_s_x16 *w = c->block;
    const int sub = 4 * half + i / 8, point = i % 8 / 2;
    const void *index = &c->index[2 * sub + point % 2][part * KN_LANES][point / 2];

    return with_signs(line_of_8(kn_grid_iq2_s, index, true, i % 2), vi_load(w->sign[sub][part * KN_LANES]), i);
}

/* Indices 4 * i .. 4 * i + 3 of each lane: low bytes from q, and above them `bits` bits each from h. */
KN_INLINE void store_indices(struct codes *c, int part, int i, vi q, vi h, int bits)
{
    const int top = (1 << bits) - 1;
    const vi bytes = vi_set1(0x00FF00FF), low = vi_set1(top << 8), high = vi_set1(top << 24);
    vi even = vi_or(vi_and(vi_shl(h, 8), low), vi_and(vi_shl(h, 24 - 2 * bits), high));
    vi odd = vi_or(vi_and(vi_shl(h, 8 - bits), low), vi_and(vi_shl(h, 24 - 3 * bits), high));

    vi_store(c->index[2 * i][part * KN_LANES], vi_or(even, vi_and(q, bytes)));
    vi_store(c->index[2 * i + 1][part * KN_LANES], vi_or(odd, vi_and(vi_shr(q, 8), bytes)));
}

static void scales_iq2_s(const void *block, struct codes *c)
{
    const struct kn_iq2_s_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++)
            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]),
                          vi_shr_by(vi_load(w->qh[i / 4][part * KN_LANES]), i % 4 * 8), 2);
        scales_16(c, part, w->sc);
        c->d[part] = eighth_of(w->d + part * KN_LANES);
    }
}

KN_INLINE vi line_iq3_xxs(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq3_xxs_x16 *w = c->block;
    vi size = line_of_4(kn_grid_iq3_xxs, &w->q[8 * half + i / 4][part * KN_LANES][i % 4], false);

    return with_signs(size, c->sign[part][4 * half + i / 8], i);
}

static void scales_iq3_xxs(const void *block, struct codes *c)
{
    const struct kn_iq3_xxs_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi word = vi_load(w->s[i][part * KN_LANES]);

            c->sign[part][i] = four_signs(word);
            scale_32(c, part, i, vi_shr(word, 28));
        }
        c->d[part] = vf_mul(vf_load_f16(w->d + part * KN_LANES), vf_set1(0.5f));
    }
}

/* Four points are in an item of four bytes; their indices as in IQ2_S. */
KN_INLINE vi line_iq3_s(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq3_s_x16 *w = c->block;
    const int item = 8 * half + i / 4, point = i % 4;
    const void *index = &c->index[2 * item + point % 2][part * KN_LANES][point / 2];

    return with_signs(line_of_4(kn_grid_iq3_s, index, true), vi_load(w->sign[item / 2][part * KN_LANES]), i);
}

static void scales_iq3_s(const void *block, struct codes *c)
{
    const struct kn_iq3_s_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        vi sc = vi_load(w->sc[part * KN_LANES]);

        for (int i = 0; i < 16; i++)
            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]),
                          vi_shr_by(vi_load(w->qh[i / 8][part * KN_LANES]), i % 8 * 4), 1);
        for (int i = 0; i < 8; i++)
            scale_32(c, part, i, vi_and(vi_shr_by(sc, 4 * i), vi_set1(15)));
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
    }
}

/* Points with their signs; indices as in IQ2_S. */
KN_INLINE vi line_iq1(const struct codes *c, int half, int i, int part)
{
    const int sub = 4 * half + i / 8, point = i % 8 / 2;
    const void *index = &c->index[2 * sub + point % 2][part * KN_LANES][point / 2];

    return signed_codes(line_of_8((uint8_t(*)[8])kn_grid_iq1, index, true, i % 2));
}

KN_INLINE vi line_iq1_s(const struct codes *c, int half, int i, int part) { return line_iq1(c, half, i, part); }
KN_INLINE vi line_iq1_m(const struct codes *c, int half, int i, int part) { return line_iq1(c, half, i, part); }

/* Three bits of each of four indices, at bits 0, 3, 6 and 9, and bit 15 for all, to four nibbles. */
KN_INLINE vi four_nibbles(vi x)
{
    vi a = vi_and(x, vi_set1(7)), b = vi_and(vi_shl(x, 1), vi_set1(0x70));
    vi c = vi_and(vi_shl(x, 2), vi_set1(0x700)), d = vi_and(vi_shl(x, 3), vi_set1(0x7000));
    vi top = vi_and(vi_shr(x, 15), vi_set1(1)), tops = vi_or(vi_shl(top, 3), vi_shl(top, 7));

    return vi_or(vi_or(vi_or(a, b), vi_or(c, d)), vi_or(tops, vi_shl(tops, 8)));
}

static void scales_iq1_s(const void *block, struct codes *c)
{
    const struct kn_iq1_s_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi bits = vi_shr_by(vi_load(w->qh[i / 2][part * KN_LANES]), i % 2 * 16);

            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]), four_nibbles(bits), 4);
            scale_32(c, part, i, vi_and(vi_shr(bits, 12), vi_set1(7)));
        }
        c->d[part] = eighth_of(w->d + part * KN_LANES);
    }
}

static void scales_iq1_m(const void *block, struct codes *c)
{
    const struct kn_iq1_m_x16 *w = block;
    uint16_t d[KN_PANEL];

    for (int l = 0; l < KN_PANEL; l++)
        d[l] = (uint16_t)(w->sc[0][l][1] >> 4 | w->sc[0][l][3] >> 4 << 4 | w->sc[1][l][1] >> 4 << 8 |
                          w->sc[1][l][3] >> 4 << 12);
    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++)
            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]),
                          vi_shr_by(vi_load(w->qh[i / 2][part * KN_LANES]), i % 2 * 16), 4);
        for (int i = 0; i < 16; i += 2) {
            vi bits = vi_shr_by(vi_load(w->sc[i / 8][part * KN_LANES]), i / 4 % 2 * 16 + i % 4 * 3);

            set_scale(c, part, i, odd_scale(vi_and(bits, vi_set1(7))), odd_scale(vi_and(vi_shr(bits, 3), vi_set1(7))),
                      KN_SIGNED(0));
        }
        c->d[part] = eighth_of(d + part * KN_LANES);
    }
}

#endif
