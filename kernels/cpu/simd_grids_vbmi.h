/* kernels/cpu/simd_grids_vbmi.h - simd_grids.h for processors that look up bytes in tables of 128 (AVX-512 VBMI).
 *
 * The 16 values of a sub-block item are four groups g of four neighbours; line i of the item has value 4 * g + i in byte
 * g of each lane.  So that byte g of a lane's activations is the same value, each 16 codes of activations are transposed
 * (turn_codes).  Then nothing is moved byte by byte:
 *   scales_*()  looks up two bytes for 64 points at once (kn_plane in grids.c): they hold the numbers of the points' sizes,
 *               four of two bits (IQ1, IQ2) or two of three bits (IQ3)
 *   line_*()    joins these bits and those of the signs in one byte and looks up the signed code: an index of 6 bits
 *
 * Instructions for a line (64 weights) and one row: the line 3 or 4 (IQ3), its product 1; points, for each plane a
 * look-up of 128 entries and a choice between two: IQ2_XXS 0.75, IQ2_XS 2, IQ3_XXS 1.5, IQ3_S and IQ2_S 4, IQ1 8; signs
 * and scales 1 to 2.  A Zen 5 does four of them in a cycle, three of them if they are look-ups and products. */
#ifndef KERNELS_CPU_SIMD_GRIDS_VBMI_H
#define KERNELS_CPU_SIMD_GRIDS_VBMI_H

/* Moves bytes within each 16: byte i comes from byte from[i], or is 0 if from[i] < 0. */
KN_INLINE vi move_bytes(vi x, __m128i from) { return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(from)); }

KN_INLINE vi turn_16(vi x) /* of each 16 bytes, byte 4 * g + i becomes byte 4 * i + g */
{
    return move_bytes(x, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}

/* Each lane gets four bytes of the same lane of a or b: byte i is number from >> 8 * i & 3, of b if bit 6 is set too. */
KN_INLINE vi bytes_of_two(vi a, vi b, int32_t from)
{
    static const uint8_t lane[64] __attribute__((aligned(64))) = {
#define FOUR(x) x, x, x, x
        FOUR(0),  FOUR(4),  FOUR(8),  FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28),
        FOUR(32), FOUR(36), FOUR(40), FOUR(44), FOUR(48), FOUR(52), FOUR(56), FOUR(60)
#undef FOUR
    };

    return _mm512_permutex2var_epi8(a, vi_add(vi_load(lane), vi_set1(from)), b);
}

static inline void turn_codes(const struct kn_codes *x, struct kn_codes *out)
{
    for (int i = 0; i < KN_GROUP; i += 64)
        vi_store(out->q + i, turn_16(vi_load(x->q + i)));
    vi_store(out->sum, vi_load(x->sum)); /* and d */
}

/* ---- points ---------------------------------------------------------------------------------- */

/* Bytes of 64 points: low has the low eight bits of the indices, high those above. */
#define BELOW_128(t, low) _mm512_permutex2var_epi8((t)[0], low, (t)[1])

KN_INLINE vi bytes_256(const vi *t, vi low)
{
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(low), BELOW_128(t, low), BELOW_128(t + 2, low));
}

KN_INLINE vi bytes_512(const vi *t, vi low, vi high)
{
    const __mmask64 above = _mm512_test_epi8_mask(high, vi_bytes(1));
    return _mm512_mask_blend_epi8(above, bytes_256(t, low), bytes_256(t + 4, low));
}

KN_INLINE vi bytes_1024(const vi *t, vi low, vi high)
{
    const __mmask64 above = _mm512_test_epi8_mask(high, vi_bytes(2));
    return _mm512_mask_blend_epi8(above, bytes_512(t, low, high), bytes_512(t + 8, low, high));
}

/* The indices of the points of item i, byte by byte: low, and above it high. */
typedef void index_fn(const void *block, int i, vi *low, vi *high);

/* From the tables of one plane, or of 1,024 of its points. */
KN_INLINE vi bytes_of(const vi *t, int n_point, vi low, vi high)
{
    return n_point == 256 ? bytes_256(t, low) : n_point == 512 ? bytes_512(t, low, high) : bytes_1024(t, low, high);
}

KN_INLINE void load_tables(vi *t, const uint8_t *plane, int n_point)
{
    UNROLL
    for (int i = 0; i < n_point / 64; i++)
        t[i] = vi_load(plane + 64 * i);
}

/* Looks up a plane of more than 512 points for eight items; item i goes to c->index[step * i + at].  Its tables fill half
 * the registers, so 2,048 points take two rounds. */
KN_INLINE void look_up_large(const void *block, struct codes *c, const uint8_t *plane, int n_point, index_fn *index,
                             int step, int at)
{
    ROLLED for (int from = 0; from < n_point; from += 1024)
    {
        vi t[16];

        load_tables(t, plane + from, 1024);
        UNROLL
        for (int i = 0; i < 8; i++) {
            void *const out = c->index[step * i + at];
            vi low, high, byte;

            index(block, i, &low, &high);
            byte = bytes_1024(t, low, high);
            if (from)
                byte = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(high, vi_bytes(4)), vi_load(out), byte);
            vi_store(out, byte);
            forget_loads();
        }
    }
}

/* Four points of eight values of each row, in two planes, are two items: bytes a.0 b.0 a.1 b.1, and 2 and 3. */
KN_INLINE void store_items(struct codes *c, int i, vi a, vi b)
{
    vi_store(c->index[2 * i], bytes_of_two(a, b, 0x41014000));
    vi_store(c->index[2 * i + 1], bytes_of_two(a, b, 0x43034202));
}

KN_INLINE void look_up_8(const void *block, struct codes *c, const uint8_t *plane, int n_point, index_fn *index)
{
    vi t[2][8];

    if (n_point > 512) {
        look_up_large(block, c, plane, n_point, index, 2, 0);
        look_up_large(block, c, plane + n_point, n_point, index, 2, 1);
        UNROLL
        for (int i = 0; i < 8; i++)
            store_items(c, i, vi_load(c->index[2 * i]), vi_load(c->index[2 * i + 1]));
        return;
    }
    load_tables(t[0], plane, n_point);
    load_tables(t[1], plane + n_point, n_point);
    UNROLL
    for (int i = 0; i < 8; i++) {
        vi low, high;

        index(block, i, &low, &high);
        store_items(c, i, bytes_of(t[0], n_point, low, high), bytes_of(t[1], n_point, low, high));
        forget_loads();
    }
}

/* Points of four values: four points of each row are one item, in two planes. */
KN_INLINE void look_up_4(const void *block, struct codes *c, const uint8_t *plane, int n_point, index_fn *index)
{
    vi t[2][8];

    load_tables(t[0], plane, n_point);
    load_tables(t[1], plane + n_point, n_point);
    UNROLL
    for (int i = 0; i < 16; i++) {
        vi low, high;

        index(block, i, &low, &high);
        vi_store(c->index[2 * i], bytes_of(t[0], n_point, low, high));
        vi_store(c->index[2 * i + 1], bytes_of(t[1], n_point, low, high));
        forget_loads();
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Eight bits of each lane to each of its bytes: from bit a to byte 0, from bit b to byte 1, and so on; bits wrap around
 * within pairs of lanes. */
KN_INLINE vi bits_to_bytes(vi x, int a, int b, int c, int d)
{
    const int32_t even = (a & 63) | (b & 63) << 8 | (c & 63) << 16 | (d & 63) << 24;
    const int32_t odd = even ^ 0x20202020;

    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((int64_t)((uint64_t)(uint32_t)odd << 32 | (uint32_t)even)),
                                        x);
}

KN_INLINE vi bits_from(vi x, int at, int step) { return bits_to_bytes(x, at, at + step, at + 2 * step, at + 3 * step); }

/* Bit `at` + i of each byte g is that of value 4 * g + i of item `item`, from the 32 bits of two items. */
KN_INLINE vi signs_at(vi signs, int item, int at)
{
    const int bit = item % 2 * 16 - at;

    return bits_from(signs, bit, 4);
}

KN_INLINE vi choose(vi mask, vi a, vi b) { return _mm512_ternarylogic_epi32(b, a, mask, 0xD8); } /* mask ? a : b */

/* Line i of the points' values; value: two tables, for numbers at bits 0 and 2 with signs at bits 4 and 5. */
KN_INLINE vi line_of_8(const struct codes *c, vi signs, int half, int i, uint8_t (*value)[64])
{
    const int item = 8 * half + i / 4, pair = i % 4 / 2;
    vi numbers = vi_load(c->index[2 * (item / 2) + item % 2]);
    vi index = choose(vi_bytes(0x0F), pair ? vi_shr(numbers, 4) : numbers, signs_at(signs, item, 4 - 2 * pair));

    return _mm512_permutexvar_epi8(index, vi_load(value[i % 2]));
}

/* value: four tables, one for each i % 4; numbers are at bits 0 or 3, signs at bits 3, 0, 5, 2. */
KN_INLINE vi line_of_4(const struct codes *c, vi signs, int half, int i, uint8_t (*value)[64])
{
    const int item = 8 * half + i / 4, j = i % 4;
    vi numbers = vi_load(c->index[2 * item + j / 2]);
    vi index = choose(vi_bytes(j % 2 ? 0x38 : 0x07), numbers, signs_at(signs, item, j % 2 ? -1 : 3));

    return _mm512_permutexvar_epi8(index, vi_load(value[j]));
}

/* ---- signs and scales ------------------------------------------------------------------------ */

/* The parity of the lower seven bits of each byte becomes its eighth bit; of the upper seven, moved down. */
KN_INLINE vi with_eighth(vi x) { return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64(0x010204081020407F), 0); }
KN_INLINE vi upper_with_eighth(vi x)
{
    return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64(0x02040810204080FE), 0);
}

/* Four times 7 bits of each lane. */
KN_INLINE vi four_signs(vi x) { return with_eighth(bits_from(x, 0, 7)); }

/* Shuffles within lanes: byte b to bytes 0 and 2 or to 0 and 3, the others 0. */
KN_INLINE vi byte_to(vi x, int b, int to)
{
    const __m128i kept = _mm_set1_epi32((int32_t)(0xFF | UINT32_C(0xFF) << (8 * to)));

    return move_bytes(x, _mm_blendv_epi8(_mm_set1_epi8(-128), vi_byte_of_lanes(b), kept));
}

/* The factor of sub-block i of 32: byte b of each lane. */
KN_INLINE void set_scale_32(struct codes *c, int i, vi scale, int b)
{
    c->scale[0][i] = byte_to(scale, b, 3);
    c->min[0][i] = byte_to(scale, b, 2);
}

/* The factors of sub-blocks i and i + 1 of 16. */
KN_INLINE void set_scales_16(struct codes *c, int i, vi even, vi odd, int b)
{
    c->scale[0][i] = byte_to(even, b, 3);
    c->scale[0][i + 1] = byte_to(odd, b, 3);
    c->min[0][i / 2] = vi_and(bytes_of_two(even, odd, b | b << 8 | (64 + b) << 16 | (64 + b) << 24),
                              vi_set1(0x00FF00FF));
}

/* 2 * s + 1 of the low (high) four bits of each byte. */
KN_INLINE vi odd_low(vi x) { return vi_or(vi_and(vi_add(x, x), vi_bytes(0x1E)), vi_bytes(1)); }
KN_INLINE vi odd_high(vi x) { return vi_or(vi_and(vi_shr(x, 3), vi_bytes(0x1E)), vi_bytes(1)); }

KN_INLINE void scales_16(struct codes *c, const uint8_t sc[2][16][4])
{
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        vi x = vi_load(sc[i / 8]);

        set_scales_16(c, i, odd_low(x), odd_high(x), i % 8 / 2);
    }
}

KN_INLINE vf eighth_of(const uint16_t *d) { return vf_mul(vf_load_f16(d), vf_set1(0.125f)); }

/* ---- formats --------------------------------------------------------------------------------- */

KN_INLINE vi line_iq2_xxs(const struct codes *c, int half, int i, int part)
{
    (void)part;
    return line_of_8(c, c->sign[0][4 * half + i / 8], half, i, kn_values_iq2);
}

KN_INLINE void index_iq2_xxs(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq2_xxs_x16 *w = block;

    *low = vi_load(w->q[2 * i]);
    *high = vi_zero();
}

static void scales_iq2_xxs(const void *block, struct codes *c)
{
    const struct kn_iq2_xxs_x16 *w = block;

    look_up_8(block, c, kn_plane_iq2_xxs[0], 256, index_iq2_xxs);
    UNROLL
    for (int i = 0; i < 8; i++) {
        vi word = vi_load(w->q[2 * i + 1]);

        c->sign[0][i] = four_signs(word);
        set_scale_32(c, i, vi_or(vi_shr(word, 27), vi_set1(1)), 0);
    }
    c->d[0] = eighth_of(w->d);
}

KN_INLINE vi line_iq2_xs(const struct codes *c, int half, int i, int part) { return line_iq2_xxs(c, half, i, part); }

KN_INLINE void index_iq2_xs(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq2_xs_x16 *w = block;
    vi a = vi_load(w->q[2 * i]), b = vi_load(w->q[2 * i + 1]);

    *low = bytes_of_two(a, b, 0x42400200);
    *high = bytes_of_two(a, b, 0x43410301);
}

static void scales_iq2_xs(const void *block, struct codes *c)
{
    const struct kn_iq2_xs_x16 *w = block;

    look_up_8(block, c, kn_plane_iq2_xs[0], 512, index_iq2_xs);
    UNROLL
    for (int i = 0; i < 8; i++) {
        vi low, high;

        index_iq2_xs(block, i, &low, &high);
        c->sign[0][i] = upper_with_eighth(high);
    }
    scales_16(c, w->sc);
    c->d[0] = eighth_of(w->d);
}

KN_INLINE vi line_iq2_s(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq2_s_x16 *w = c->block;

    (void)part;
    return line_of_8(c, vi_load(w->sign[4 * half + i / 8]), half, i, kn_values_iq2);
}

KN_INLINE void index_iq2_s(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq2_s_x16 *w = block;

    *low = vi_load(w->q[i]);
    *high = bits_from(vi_load(w->qh[i / 4]), i % 4 * 8, 2);
}

static void scales_iq2_s(const void *block, struct codes *c)
{
    const struct kn_iq2_s_x16 *w = block;

    look_up_8(block, c, kn_plane_iq2_s[0], 1024, index_iq2_s);
    scales_16(c, w->sc);
    c->d[0] = eighth_of(w->d);
}

KN_INLINE vi line_iq3_xxs(const struct codes *c, int half, int i, int part)
{
    (void)part;
    return line_of_4(c, c->sign[0][4 * half + i / 8], half, i, kn_values_iq3_xxs);
}

KN_INLINE void index_iq3_xxs(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq3_xxs_x16 *w = block;

    *low = vi_load(w->q[i]);
    *high = vi_zero();
}

static void scales_iq3_xxs(const void *block, struct codes *c)
{
    const struct kn_iq3_xxs_x16 *w = block;

    look_up_4(block, c, kn_plane_iq3_xxs[0], 256, index_iq3_xxs);
    UNROLL
    for (int i = 0; i < 8; i++) {
        vi word = vi_load(w->s[i]);

        c->sign[0][i] = four_signs(word);
        set_scale_32(c, i, vi_or(vi_shr(word, 27), vi_set1(1)), 0);
    }
    c->d[0] = vf_mul(vf_load_f16(w->d), vf_set1(0.5f));
}

KN_INLINE vi line_iq3_s(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq3_s_x16 *w = c->block;

    (void)part;
    return line_of_4(c, vi_load(w->sign[4 * half + i / 8]), half, i, kn_values_iq3_s);
}

KN_INLINE void index_iq3_s(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq3_s_x16 *w = block;

    *low = vi_load(w->q[i]);
    *high = bits_from(vi_load(w->qh[i / 8]), i % 8 * 4, 1);
}

static void scales_iq3_s(const void *block, struct codes *c)
{
    const struct kn_iq3_s_x16 *w = block;
    vi sc = vi_load(w->sc), even = odd_low(sc), odd = odd_high(sc);

    look_up_4(block, c, kn_plane_iq3_s[0], 512, index_iq3_s);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        set_scale_32(c, i, even, i / 2);
        set_scale_32(c, i + 1, odd, i / 2);
    }
    c->d[0] = vf_load_f16(w->d);
}

/* The sign of a value of IQ1 tells that 1 is subtracted from all of its point. */
KN_INLINE vi line_iq1_s(const struct codes *c, int half, int i, int part)
{
    (void)part;
    return line_of_8(c, c->sign[0][4 * half + i / 8], half, i, kn_values_iq1);
}

KN_INLINE vi line_iq1_m(const struct codes *c, int half, int i, int part) { return line_iq1_s(c, half, i, part); }

KN_INLINE void index_iq1_s(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq1_s_x16 *w = block;

    *low = vi_load(w->q[i]);
    *high = bits_from(vi_load(w->qh[i / 2]), i % 2 * 16, 3);
}

static void scales_iq1_s(const void *block, struct codes *c)
{
    const struct kn_iq1_s_x16 *w = block;

    look_up_8(block, c, kn_plane_iq1[0], 2048, index_iq1_s);
    UNROLL
    for (int i = 0; i < 8; i++) {
        vi bits = vi_load(w->qh[i / 2]), top = i % 2 ? bits : vi_shl(bits, 16);

        c->sign[0][i] = _mm512_srai_epi32(top, 31);
        set_scale_32(c, i, vi_and(odd_high(top), vi_bytes(0x0F)), 3); /* without the twelfth bit */
    }
    c->d[0] = eighth_of(w->d);
}

KN_INLINE void index_iq1_m(const void *block, int i, vi *low, vi *high)
{
    const struct kn_iq1_m_x16 *w = block;

    *low = vi_load(w->q[i]);
    *high = bits_from(vi_load(w->qh[i / 2]), i % 2 * 16, 4);
}

static void scales_iq1_m(const void *block, struct codes *c)
{
    const struct kn_iq1_m_x16 *w = block;
    const vi three = vi_bytes(7);
    uint16_t d[KN_PANEL];

    look_up_8(block, c, kn_plane_iq1[0], 2048, index_iq1_m);
    for (int i = 0; i < 8; i++) {
        vi low, high;

        index_iq1_m(block, i, &low, &high);
        c->sign[0][i] = _mm512_movm_epi8(_mm512_test_epi8_mask(high, vi_bytes(8)));
    }
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        vi x = vi_load(w->sc[i / 8]);

        set_scales_16(c, i, odd_low(vi_and(bits_to_bytes(x, 0, 6, 16, 22), three)),
                      odd_low(vi_and(bits_to_bytes(x, 3, 9, 19, 25), three)), i % 8 / 2);
    }
    for (int l = 0; l < KN_PANEL; l++)
        d[l] = (uint16_t)(w->sc[0][l][1] >> 4 | w->sc[0][l][3] >> 4 << 4 | w->sc[1][l][1] >> 4 << 8 |
                          w->sc[1][l][3] >> 4 << 12);
    c->d[0] = eighth_of(d);
}

#endif
