/* kernels/cpu/simd_grids.h - a part of matmul_256.tmpl.c: lines and scales of the IQ1, IQ2 and IQ3 formats.
 *
 * Each row's index selects a point of the format's grid (grids.c): 8 bytes with the sizes of eight values, or 4 bytes
 * with those of four.  Points are loaded one by one: an instruction for the index, one for the point and, for 8 bytes, a
 * quarter to put it into its place.  Points of 4 bytes lie in windows with zeros around them, so that a load that begins
 * earlier has the point at a later place, and its place is given by an OR with the load.  scales_*() prepares, for several
 * rows at once, long indices and the eighth of seven stored signs.
 *
 * An octet is eight neighbouring values of four (AVX2) or eight (AVX-512) rows, in lanes of 64 bits.  Those of two sides,
 * which have the lanes of 32 bits 0, 1, 4, 5 .. and 2, 3, 6, 7 .. of a part, are two lines of a part when shuffled. */
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

/* Bytes 4 * i .. 4 * i + 3 are the point, the others are 0; an index is 32 times the number of a point. */
KN_INLINE __m128i at_place(const void *window, size_t index, int i)
{
    return _mm_loadu_si128((const void *)((const uint8_t *)window + index + 12 - 4 * i));
}

/* Of two rows, lanes apart as those of two_points(), two points each. */
KN_INLINE __m128i four_points(const void *window, const void *first, const void *second)
{
    __m128i a = at_place(window, index_of(first, 0, true), 0), b = at_place(window, index_of(first, 1, true), 2);

    a = _mm_or_si128(a, at_place(window, index_of(second, 0, true), 1));
    return _mm_or_si128(a, _mm_or_si128(b, at_place(window, index_of(second, 1, true), 3)));
}

#if KN_LANES == 16
KN_INLINE vi join_parts(__m128i a, __m128i b, __m128i c, __m128i d)
{
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);

    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
#define EACH_PART(x)     join_parts(x(0), x(4), x(8), x(12))
#define even_lanes(a, b) _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88))
#define odd_lanes(a, b)  _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xDD))
#else
#define EACH_PART(x)     _mm256_inserti128_si256(_mm256_castsi128_si256(x(0)), x(4), 1)
#define even_lanes(a, b) _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88))
#define odd_lanes(a, b)  _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xDD))
#endif

/* An octet of points of 8 bytes; index: of the octet's first lane. */
KN_INLINE vi octet_of_8(uint8_t (*grid)[8], const void *index, bool wide)
{
#define PART(lane) two_points(grid, index, lane, wide)
    return EACH_PART(PART);
#undef PART
}

/* An octet of two points of 4 bytes each. */
KN_INLINE vi octet_of_4(uint32_t (*window)[8], const void *first, const void *second)
{
#define PART(lane) four_points(window, (const uint8_t *)first + 4 * (lane), (const uint8_t *)second + 4 * (lane))
    return EACH_PART(PART);
#undef PART
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

/* sizes_*(): octet o of sub-block `sub` of 32, from lane `lane` on.  signs_*(): the signs of a sub-block, a byte for each
 * octet. */
KN_INLINE vi signs_ready(const struct codes *c, int part, int sub) { return c->sign[part][sub]; }

KN_INLINE vi sizes_iq2_xxs(const struct codes *c, int lane, int sub, int o)
{
    const struct kn_iq2_xxs_x16 *w = c->block;

    return octet_of_8(kn_grid_iq2_xxs, &w->q[2 * sub][lane][o], false);
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
KN_INLINE vi sizes_iq2_xs(const struct codes *c, int lane, int sub, int o)
{
    return octet_of_8(kn_grid_iq2_xs, &c->index[2 * sub + o / 2][lane][o % 2], true);
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
KN_INLINE vi sizes_iq2_s(const struct codes *c, int lane, int sub, int o)
{
    return octet_of_8(kn_grid_iq2_s, &c->index[2 * sub + o % 2][lane][o / 2], true);
}

KN_INLINE vi signs_iq2_s(const struct codes *c, int part, int sub)
{
    const struct kn_iq2_s_x16 *w = c->block;

    return vi_load(w->sign[sub][part * KN_LANES]);
}

/* Indices 4 * i .. 4 * i + 3 of each lane, times 2^shift: low bytes from q, and above them `bits` bits each from h. */
KN_INLINE void store_indices(struct codes *c, int part, int i, vi q, vi h, int bits, int shift)
{
    const int top = (1 << bits) - 1;
    const vi bytes = vi_set1(0x00FF00FF), low = vi_set1(top << 8), high = vi_set1(top << 24);
    vi even = vi_or(vi_and(vi_shl(h, 8), low), vi_and(vi_shl(h, 24 - 2 * bits), high));
    vi odd = vi_or(vi_and(vi_shl(h, 8 - bits), low), vi_and(vi_shl(h, 24 - 3 * bits), high));

    vi_store(c->index[2 * i][part * KN_LANES], vi_shl(vi_or(even, vi_and(q, bytes)), shift));
    vi_store(c->index[2 * i + 1][part * KN_LANES], vi_shl(vi_or(odd, vi_and(vi_shr(q, 8), bytes)), shift));
}

static void scales_iq2_s(const void *block, struct codes *c)
{
    const struct kn_iq2_s_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++)
            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]),
                          vi_shr_by(vi_load(w->qh[i / 4][part * KN_LANES]), i % 4 * 8), 2, 0);
        scales_16(c, part, w->sc);
        c->d[part] = eighth_of(w->d + part * KN_LANES);
    }
}

/* Four points are in an item of four bytes; their indices as in IQ2_S. */
KN_INLINE vi sizes_iq3(const struct codes *c, uint32_t (*window)[8], int lane, int sub, int o)
{
    const int item = 2 * sub + o / 2;

    return octet_of_4(window, &c->index[2 * item][lane][o % 2], &c->index[2 * item + 1][lane][o % 2]);
}

KN_INLINE vi sizes_iq3_xxs(const struct codes *c, int lane, int sub, int o)
{
    return sizes_iq3(c, kn_window_iq3_xxs, lane, sub, o);
}

static void scales_iq3_xxs(const void *block, struct codes *c)
{
    const struct kn_iq3_xxs_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi word = vi_load(w->s[i][part * KN_LANES]);

            for (int j = 2 * i; j < 2 * i + 2; j++)
                store_indices(c, part, j, vi_load(w->q[j][part * KN_LANES]), vi_zero(), 0, 5);
            c->sign[part][i] = four_signs(word);
            scale_32(c, part, i, vi_shr(word, 28));
        }
        c->d[part] = vf_mul(vf_load_f16(w->d + part * KN_LANES), vf_set1(0.5f));
    }
}

KN_INLINE vi sizes_iq3_s(const struct codes *c, int lane, int sub, int o)
{
    return sizes_iq3(c, kn_window_iq3_s, lane, sub, o);
}

KN_INLINE vi signs_iq3_s(const struct codes *c, int part, int sub)
{
    const struct kn_iq3_s_x16 *w = c->block;

    return vi_load(w->sign[sub][part * KN_LANES]);
}

static void scales_iq3_s(const void *block, struct codes *c)
{
    const struct kn_iq3_s_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        vi sc = vi_load(w->sc[part * KN_LANES]);

        for (int i = 0; i < 16; i++)
            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]),
                          vi_shr_by(vi_load(w->qh[i / 8][part * KN_LANES]), i % 8 * 4), 1, 5);
        for (int i = 0; i < 8; i++)
            scale_32(c, part, i, vi_and(vi_shr_by(sc, 4 * i), vi_set1(15)));
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
    }
}

/* Points with their signs, plus IQ1_BIAS; indices as in IQ2_S. */
KN_INLINE vi sizes_iq1(const struct codes *c, int lane, int sub, int o)
{
    return octet_of_8(kn_grid_iq1_biased, &c->index[2 * sub + o % 2][lane][o / 2], true);
}

KN_INLINE vi sizes_iq1_s(const struct codes *c, int lane, int sub, int o) { return sizes_iq1(c, lane, sub, o); }
KN_INLINE vi sizes_iq1_m(const struct codes *c, int lane, int sub, int o) { return sizes_iq1(c, lane, sub, o); }

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

            store_indices(c, part, i, vi_load(w->q[i][part * KN_LANES]), four_nibbles(bits), 4, 0);
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
                          vi_shr_by(vi_load(w->qh[i / 2][part * KN_LANES]), i % 2 * 16), 4, 0);
        for (int i = 0; i < 16; i += 2) {
            vi bits = vi_shr_by(vi_load(w->sc[i / 8][part * KN_LANES]), i / 4 % 2 * 16 + i % 4 * 3);

            set_scale(c, part, i, odd_scale(vi_and(bits, vi_set1(7))), odd_scale(vi_and(vi_shr(bits, 3), vi_set1(7))),
                      KN_SIGNED(0));
        }
        c->d[part] = eighth_of(d + part * KN_LANES);
    }
}

#endif
