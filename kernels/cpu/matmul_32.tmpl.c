/* kernels/cpu/matmul_32.tmpl.c - products of weights in blocks of 32.
 *
 * A format is a line_fn, which gives a line (four signed codes of each of the 16 rows), a factor_fn for the scales,
 * and for some formats one for the minimums.  Up to TILE activation rows are one tile, which decodes each block.  More
 * rows are several tiles, which all go through STEP blocks before the next STEP: with enough registers to hold a
 * block's codes (HELD), each tile decodes them; else they are decoded once for all tiles.  Q8_0 needs no decoding.
 *
 * A block's codes stay in registers while a tile goes through its rows.  Instructions for a block and row: 8
 * products, and 4 or 5 more for start and scale, two per cycle.  Eight blocks are a group: its sum starts at +0, and is
 * added to the row's. */
#include "kernels/cpu/simd_matmul.h"

#include <stddef.h>

#define PER_GROUP (KN_GROUP / 32)
#define STEP      (2 * PER_GROUP) /* blocks per round of all tiles: 8.5 KiB of Q8_0 */
#define NEAR      1024            /* prefetch distance in bytes, to the L1 cache */
#define FAR       16384           /* and to the outer caches */
#define HELD      (HOLD(8) == 8)  /* registers can hold a block's codes */

/* Some formats have a factor for each 16 inputs: factor_fn is that of the first 16, `second` that of the others.
 *
 * line_fn: register `part` of line i, 0..7, of a block: codes of k = 4 * i .. 4 * i + 3, as signed_dot() needs them.
 * factor_fn: register `part` of the factors, or of the minimums, of the block's 16 rows. */
typedef vi line_fn(const void *block, int i, int part);
typedef vf factor_fn(const void *block, int part);

/* A decoded block. */
struct plain {
    uint8_t q[8][64];
    float d[16], m[16]; /* m: minimums or second factors */
};

/* ---- formats --------------------------------------------------------------------------------- */

KN_INLINE vi line_q8_0(const void *block, int i, int part)
{
    const struct kn_q8_0_x16 *w = block;

    return signed_codes(vi_load(w->q[i][part * KN_LANES]));
}

/* Looks up the values of the nibbles of k = 4 * i .. 4 * i + 3. */
KN_INLINE vi line_nibbles(const uint8_t q[4][16][4], int i, int part, __m128i value)
{
    vi both = vi_load(q[i % 4][part * KN_LANES]);

    return vi_look_up(signed_table(value), vi_and(i < 4 ? both : vi_shr(both, 4), vi_bytes(0x0F)));
}

KN_INLINE __m128i count_from(int8_t first) /* first, first + 1 ... */
{
    return _mm_add_epi8(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm_set1_epi8(first));
}

KN_INLINE vi line_q4_0(const void *block, int i, int part)
{
    return line_nibbles(((const struct kn_q4_0_x16 *)block)->q, i, part, count_from(-8));
}

KN_INLINE vi line_q4_1(const void *block, int i, int part)
{
    return line_nibbles(((const struct kn_q4_1_x16 *)block)->q, i, part, count_from(0));
}

KN_INLINE vi line_q5_0(const void *block, int i, int part)
{
    const struct kn_q5_0_x16 *w = block;
    vi low = line_nibbles(w->q, i, part, count_from(-16));

    return vi_add_at_bits(low, vi_load(w->qh[part * KN_LANES]), i, 16);
}

KN_INLINE vi line_q5_1(const void *block, int i, int part)
{
    const struct kn_q5_1_x16 *w = block;
    vi low = line_nibbles(w->q, i, part, count_from(0));

    return vi_add_at_bits(low, vi_load(w->qh[part * KN_LANES]), i, 16);
}

KN_INLINE vi line_iq4_nl(const void *block, int i, int part)
{
    return line_nibbles(((const struct kn_q4_0_x16 *)block)->q, i, part, _mm_setr_epi8(KN_IQ4));
}

KN_INLINE vi line_mxfp4(const void *block, int i, int part)
{
    return line_nibbles(((const struct kn_mxfp4_x16 *)block)->q, i, part, _mm_setr_epi8(KN_E2M1_TWICE));
}

/* Line i of half a block of NVFP4: the nibbles of 16 values are in two registers of codes. */
KN_INLINE vi line_nvfp4(const void *block, int i, int part)
{
    vi both = vi_load(((const struct kn_nvfp4_half_x16 *)block)->q[i / 4 * 2 + i % 2][part * KN_LANES]);

    return vi_look_up(signed_table(_mm_setr_epi8(KN_E2M1_TWICE)),
                      vi_and(i % 4 < 2 ? both : vi_shr(both, 4), vi_bytes(0x0F)));
}

/* Codes are 0..15 and zero points 0..16. */
KN_INLINE vi line_uint4(const void *block, int i, int part)
{
    const struct kn_uint4_x16 *w = block;

    return vi_sub_bytes(line_nibbles(w->q, i, part, count_from(0)), vi_load_u8_bytes(w->z + part * KN_LANES));
}

KN_INLINE vi line_plain(const void *block, int i, int part)
{
    return vi_load(((const struct plain *)block)->q[i] + part * (int)sizeof(vi));
}

KN_INLINE vi line_int4(const void *block, int i, int part) { return line_q4_0(block, i, part); }

KN_INLINE vf factor_int4(const void *block, int part)
{
    return vf_load_bf16(((const struct kn_q4_0_x16 *)block)->d + part * KN_LANES);
}

/* A block begins with 16 halves d; where there is m, its 16 halves follow. */
KN_INLINE vf factor_half(const void *block, int part) { return vf_load_f16((const uint16_t *)block + part * KN_LANES); }

KN_INLINE vf least_half(const void *block, int part)
{
    return vf_load_f16((const uint16_t *)block + KN_PANEL + part * KN_LANES);
}

KN_INLINE vf factor_mxfp4(const void *block, int part) /* kn_mxfp4_step() */
{
    const struct kn_mxfp4_x16 *w = block;
    vi e = vi_shl(vi_load_u8(w->e + part * KN_LANES), 23);

    return vf_mul(vf_set1(0.5f), vf_bits(vi_max(e, vi_set1(0x00400000))));
}

KN_INLINE vf factor_nvfp4(const void *block, int part) /* kn_nvfp4_step() */
{
    return vf_load_ue4m3_half(((const struct kn_nvfp4_half_x16 *)block)->d[0] + part * KN_LANES);
}

KN_INLINE vf second_nvfp4(const void *block, int part)
{
    return vf_load_ue4m3_half(((const struct kn_nvfp4_half_x16 *)block)->d[1] + part * KN_LANES);
}

KN_INLINE vf factor_plain(const void *block, int part)
{
    return vf_load(((const struct plain *)block)->d + part * KN_LANES);
}

KN_INLINE vf least_plain(const void *block, int part)
{
    return vf_load(((const struct plain *)block)->m + part * KN_LANES);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* In a record, a block's scale is this many bytes behind its two sums. */
#define TO_SCALE (offsetof(struct kn_codes, d) - offsetof(struct kn_codes, sum))

/* Adds register `part` of block w to acc of rows from..to - 1.  A row's codes are at x[r] + codes, their sums at
 * x[r] + sums.  The block's codes are in q, or with q NULL `line` gives them. */
KN_INLINE void block_rows(const uint8_t *const *x, size_t codes, size_t sums, int from, int to, const void *w, int part,
                          const vi *q, line_fn *line, factor_fn *factor, factor_fn *least, factor_fn *second, vf *acc)
{
    const int n_line = second ? 4 : 8;
    vi dot[WIDE_TILE];

    UNROLL
    for (int first = 0; first < 8; first += n_line) {
        vf d = first ? second(w, part) : factor(w, part);

        UNROLL
        for (int r = from; r < to; r++) {
            vi sum = vi_spread(x[r] + sums);

            dot[r] = signed_start(second ? vi_and(sum, vi_set1(first ? (int32_t)0xFFFF0000 : 0xFFFF)) : sum);
        }
        UNROLL
        for (int i = first; i < first + n_line; i++) {
            vi four = q ? q[i] : line(w, i, part);

            UNROLL
            for (int r = from; r < to; r++)
                dot[r] = signed_dot(dot[r], four, vi_spread(x[r] + codes + 4 * i));
        }
        UNROLL
        for (int r = from; r < to; r++)
            acc[r] = vf_fma(vf_mul(d, vf_spread(x[r] + sums + TO_SCALE)), vf_from_int(dot[r]), acc[r]);
    }
    if (least) {
        vf m = least(w, part);
        const vi one = vi_set1(0x00010001);

        UNROLL
        for (int r = from; r < to; r++) {
            vi sum = vi_dot_i16(vi_zero(), one, vi_spread(x[r] + sums)); /* of the 32 codes */

            acc[r] = vf_fma(vf_mul(m, vf_spread(x[r] + sums + TO_SCALE)), vf_from_int(sum), acc[r]);
        }
    }
}

/* Prefetches as many cache lines as a block has, or part i of `of` of them, NEAR and FAR bytes behind w.  All at once
 * would occupy every slot for outstanding loads, and products that load much themselves would wait for a slot. */
KN_INLINE void ask_for(const uint8_t *w, int bytes, int i, int of)
{
    const int n_line = kn_ceil_div(bytes, 64);

    UNROLL
    for (int line = i * n_line / of; line < (i + 1) * n_line / of; line++) {
        prefetch(w + NEAR + 64 * line);
        prefetch_far(w + FAR + 64 * line);
    }
}

/* The only tile of a job, up to TILE rows: the sums of a group stay in registers. */
KN_INLINE void rows_32(const struct tile *t, int n, int bytes, line_fn *line, factor_fn *factor, factor_fn *least,
                       factor_fn *second)
{
    const uint8_t *w = t->w, *const end = w + (size_t)t->n_step * (size_t)bytes;
    float(*const sum)[ACC] = t->acc;
    const uint8_t *x[TILE];

    UNROLL
    for (int r = 0; r < n; r++)
        x[r] = t->x[r] + t->at;
    do {
        const uint8_t *const group_end = end - w < PER_GROUP * bytes ? end : w + PER_GROUP * bytes;
        vf acc[KN_PARTS][TILE];
        size_t codes = 0, sums = offsetof(struct kn_codes, sum);

        UNROLL
        for (int i = 0; i < KN_PARTS * n; i++)
            acc[i % KN_PARTS][i / KN_PARTS] = vf_zero();
        do {
            ask_for(w, bytes, 0, 1);
            UNROLL
            for (int part = 0; part < KN_PARTS; part++)
                block_rows(x, codes, sums, 0, n, w, part, NULL, line, factor, least, second, acc[part]);
            codes += 32;
            sums += 2 * sizeof(int16_t);
            w += bytes;
        } while (w < group_end);
        forget_loads();
        UNROLL
        for (int r = 0; r < n; r++) {
            x[r] += sizeof(struct kn_codes);
            UNROLL
            for (int part = 0; part < KN_PARTS; part++)
                add_to(sum[r] + part * KN_LANES, acc[part][r]);
        }
    } while (w < end);
}

/* Adds a block to the sums of a group of one of several tiles; codes and sums as in block_rows().  The block's codes
 * stay in registers, if HELD, while the rows' sums are loaded, increased and stored, for abreast(n) rows at a time. */
KN_INLINE void block_32_wide(const struct tile *t, int n, size_t codes, size_t sums, const uint8_t *w, int bytes,
                             line_fn *line, factor_fn *factor, factor_fn *least, factor_fn *second, bool ask)
{
    float(*const group)[ACC] = t->acc + GROUP;
    const int side = abreast(n);

    UNROLL
    for (int part = 0; part < KN_PARTS; part++) {
        vi q[8];

        if (HELD) {
            UNROLL
            for (int i = 0; i < 8; i++)
                q[i] = line(w, i, part);
        }
        UNROLL
        for (int from = 0; from < n; from += side) {
            const int to = kn_min(from + side, n);
            vf acc[WIDE_TILE];

            UNROLL
            for (int r = from; r < to; r++)
                acc[r] = vf_load(group[r] + part * KN_LANES);
            block_rows(t->x, codes, sums, from, to, w, part, HELD ? q : NULL, line, factor, least, second, acc);
            UNROLL
            for (int r = from; r < to; r++) {
                vf_store(group[r] + part * KN_LANES, acc[r]);
                if (ask && t->i == 0)
                    ask_for(w, bytes, part * n + r, KN_PARTS * n);
            }
        }
    }
}

/* One of several tiles: groups one after the other.  The sum of row r's group is in t->acc[GROUP + r]. */
KN_INLINE void rows_32_wide(const struct tile *t, int n, int bytes, line_fn *line, factor_fn *factor, factor_fn *least,
                            factor_fn *second, bool ask)
{
    const uint8_t *w = t->w, *const end = w + (size_t)t->n_step * (size_t)bytes;
    float(*const sum)[ACC] = t->acc, (*const group)[ACC] = sum + GROUP;
    size_t at = t->at;

    do {
        const uint8_t *const group_end = end - w < PER_GROUP * bytes ? end : w + PER_GROUP * bytes;
        size_t codes = at, sums = at + offsetof(struct kn_codes, sum);

        UNROLL
        for (int i = 0; i < KN_PARTS * n; i++)
            vf_store(group[i / KN_PARTS] + i % KN_PARTS * KN_LANES, vf_zero());
        do {
            block_32_wide(t, n, codes, sums, w, bytes, line, factor, least, second, ask);
            codes += 32;
            sums += 2 * sizeof(int16_t);
            w += bytes;
        } while (w < group_end);
        UNROLL
        for (int i = 0; i < KN_PARTS * n; i++)
            add_to(sum[i / KN_PARTS] + i % KN_PARTS * KN_LANES, vf_load(group[i / KN_PARTS] + i % KN_PARTS * KN_LANES));
        at += sizeof(struct kn_codes);
    } while (w < end);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

#define FORMAT(name, type, factor, least, second)                                                                      \
    KN_INLINE void rows_##name(const struct tile *t, int n)                                                            \
    {                                                                                                                  \
        rows_32(t, n, sizeof(struct kn_##type##_x16), line_##name, factor, least, second);                             \
    }                                                                                                                  \
    KN_INLINE void wide_##name(const struct tile *t, int n)                                                            \
    {                                                                                                                  \
        rows_32_wide(t, n, sizeof(struct kn_##type##_x16), line_##name, factor, least, second, true);                  \
    }                                                                                                                  \
    TILES(rows_##name)                                                                                                 \
    WIDE_TILES(wide_##name)
#define DECODED(name, type, factor, least, second)                                                                     \
    FORMAT(name, type, factor, least, second)                                                                          \
    static void decode_##name(const void *block, struct plain *out)                                                    \
    {                                                                                                                  \
        ask_for(block, sizeof(struct kn_##type##_x16), 0, 1);                                                          \
        UNROLL                                                                                                         \
        for (int part = 0; part < KN_PARTS; part++) {                                                                  \
            factor_fn *two = second, *m = two ? two : least;                                                           \
            UNROLL                                                                                                     \
            for (int i = 0; i < 8; i++)                                                                                \
                vi_store(out->q[i] + part * (int)sizeof(vi), line_##name(block, i, part));                             \
            vf_store(out->d + part * KN_LANES, factor(block, part));                                                   \
            if (m)                                                                                                     \
                vf_store(out->m + part * KN_LANES, m(block, part));                                                    \
        }                                                                                                              \
    }

FORMAT(q8_0, q8_0, factor_half, NULL, NULL)
DECODED(q4_0, q4_0, factor_half, NULL, NULL)
DECODED(q4_1, q4_1, factor_half, least_half, NULL)
DECODED(q5_0, q5_0, factor_half, NULL, NULL)
DECODED(q5_1, q5_1, factor_half, least_half, NULL)
DECODED(iq4_nl, q4_0, factor_half, NULL, NULL)
DECODED(mxfp4, mxfp4, factor_mxfp4, NULL, NULL)
DECODED(nvfp4, nvfp4_half, factor_nvfp4, NULL, second_nvfp4)
DECODED(int4, q4_0, factor_int4, NULL, NULL)
DECODED(uint4, uint4, factor_half, NULL, NULL)

KN_INLINE void wide_plain(const struct tile *t, int n)
{
    rows_32_wide(t, n, sizeof(struct plain), line_plain, factor_plain, NULL, NULL, false);
}

KN_INLINE void wide_least(const struct tile *t, int n)
{
    rows_32_wide(t, n, sizeof(struct plain), line_plain, factor_plain, least_plain, NULL, false);
}

KN_INLINE void wide_second(const struct tile *t, int n)
{
    rows_32_wide(t, n, sizeof(struct plain), line_plain, factor_plain, NULL, least_plain, false);
}

WIDE_TILES(wide_plain)
WIDE_TILES(wide_least)
WIDE_TILES(wide_second)

/* The functions of a format.  Without a decoder its blocks are used in place. */
#define KIND(name, how)                                                                                                \
    {                                                                                                                  \
        rows_##name##_tiles, HELD ? wide_##name##_tiles : how##_tiles, HELD ? NULL : decode_##name                     \
    }
static const struct kind {
    tile_fn *const *few, *const *many;
    void (*decode)(const void *block, struct plain *out);
} kinds[KN_FORMAT_COUNT] = {
    [KN_Q8_0] = { rows_q8_0_tiles, wide_q8_0_tiles, NULL },
    [KN_Q4_0] = KIND(q4_0, wide_plain),
    [KN_Q4_1] = KIND(q4_1, wide_least),
    [KN_Q5_0] = KIND(q5_0, wide_plain),
    [KN_Q5_1] = KIND(q5_1, wide_least),
    [KN_IQ4_NL] = KIND(iq4_nl, wide_plain),
    [KN_MXFP4] = KIND(mxfp4, wide_plain),
    [KN_NVFP4] = KIND(nvfp4, wide_second),
    [KN_INT4] = KIND(int4, wide_plain),
    [KN_UINT4] = KIND(uint4, wide_plain),
};

static void many_rows(const struct job *j, const struct kind *k, size_t bytes, float (*acc)[ACC])
{
    struct plain plain[STEP] __attribute__((aligned(64)));
    struct tile t = { .job = j };

    for (int b = 0; b < j->n_block; b += STEP) {
        const uint8_t *w = j->w + (size_t)b * bytes;

        t.at = (size_t)(b / PER_GROUP) * sizeof(struct kn_codes);
        t.n_step = kn_min(STEP, j->n_block - b);
        t.w = k->decode ? (const void *)plain : w;
        for (int i = 0; k->decode && i < t.n_step; i++)
            k->decode(w + (size_t)i * bytes, &plain[i]);
        each_tile(&t, acc, k->many, WIDE_TILE);
    }
}

void KN_FN(kn_job_32)(const struct job *j)
{
    const struct kind *k = &kinds[j->format];
    float acc[2 * GROUP][ACC] __attribute__((aligned(64)));

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    if (j->n <= TILE)
        each_tile(&(struct tile){ .job = j, .w = j->w, .n_step = j->n_block }, acc, k->few, TILE);
    else
        many_rows(j, k, j->panel_bytes / (size_t)j->n_block, acc);
    store_sums(j, acc);
}
