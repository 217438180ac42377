/* kernels/cpu/matmul_256.tmpl.c - products of weights in blocks of 256.
 *
 * A format is two functions: a scales_fn, which unpacks a block's factors into struct codes, and a line_fn, which gives
 * a line: four codes of each of the 16 rows.  A tile (simd_matmul.h) decodes lines as it uses them, and holds them in
 * registers while it goes through its activation rows.  Where this needs too many registers or instructions, lines are
 * decoded once and shared by all tiles.  All else differs only in the constants of FORMAT.
 *
 * Folding: the products of a few lines (a run) with activations are summed as unsigned codes, and this sum times the
 * scale is added to isum.  The sums of each 16 activation codes (struct kn_codes) then correct the result: times the
 * minimums they give msum; or, if weight codes are stored with an offset, times offset and scale they are subtracted
 * from isum. */
#include "kernels/cpu/simd_matmul.h"

#define FAR_BLOCKS 7 /* the prefetch to the outer caches is this many blocks beyond the next block */

/* Up to so many rows have two sums in a run, as the latency of one would be the bound, and keep loaded codes in
 * registers. */
#define FEW_ROWS (KN_LANES / 8)

/* The block of 16 rows, unpacked.  Line i holds the codes of k = 4 * i .. 4 * i + 3. */
struct codes {
    uint8_t q[64][64];
    vi scale[KN_PARTS][16]; /* of each sub-block, prepared by dot_scale() */
    vi min[KN_PARTS][8];    /* two int16 per lane: the factors of the activations' sum[2 * i] and sum[2 * i + 1] */
    vf d[KN_PARTS], dmin[KN_PARTS];
    const void *block;    /* the block, packed */
    const uint8_t *ahead; /* the next block, for prefetch */
    /* of the grid formats (simd_grids.h): signs and indices */
    vi sign[KN_PARTS][8];
    uint16_t index[32][16][2];
};

/* Meaning of min.  MINS: dmin * min * sum is subtracted from the row's sum. ABOVE(b): codes are stored with 2^b added;
 * min is the scale, and 2^b * min * sum is subtracted from isum. */
enum mins { MINS = -1, NO_MINS = 0 };
#define ABOVE(b)    (b)
#define SIGNED_MINS (KN_SIGNED_BIAS ? ABOVE(7) : NO_MINS)

/* How a job of more than TILE rows gets its lines.  HELD: each tile decodes them, if a whole run fits the registers
 * (is_held()); SHARED, and HELD where it does not fit: they are decoded once, into struct codes. */
enum lines { HELD, SHARED };

/* Register `part` of line 32 * half + i of a block, i 0..31; i is a compile-time constant, so shifts are constant
 * too. */
typedef vi line_fn(const struct codes *c, int half, int i, int part);
typedef void scales_fn(const void *block, struct codes *c);
typedef void turn_fn(const struct kn_codes *x, struct kn_codes *out);

/* ---- formats --------------------------------------------------------------------------------- */

/* Packs two int16 into each lane. */
KN_INLINE vi pair(vi even, vi odd) { return vi_or(vi_and(even, vi_set1(0xFFFF)), vi_shl(odd, 16)); }

KN_INLINE vi nibbles(const void *p, int high)
{
    vi q = vi_load(p);

    return vi_and(high ? vi_shr(q, 4) : q, vi_bytes(0x0F));
}

/* Bits 2 * f and 2 * f + 1 of each byte. */
KN_INLINE vi pairs(const void *p, int f)
{
    vi q = vi_load(p);

    return vi_and(f ? vi_shr(q, 2 * f) : q, vi_bytes(3));
}

/* Moves bit b of each byte to bit `to`; b need not be a compile-time constant. */
KN_INLINE vi bit_to(const void *p, int b, int to)
{
    return vi_and(vi_shl(vi_shr_by(vi_load(p), b), to), vi_bytes((uint8_t)(1 << to)));
}

/* Scales and minimums as in kn_q4_k_scales(), many rows at once. */
KN_INLINE void scales_6_bit(const uint8_t sc[12][16], const uint16_t *d, const uint16_t *dmin, int largest,
                            struct codes *c)
{
    const vi low = vi_bytes(0x0F), high = vi_bytes(0x30), six = vi_bytes(0x3F);
    uint8_t scale[8][16] __attribute__((aligned(64))), min[8][16] __attribute__((aligned(64)));

    for (int i = 0; i < 64; i += (int)sizeof(vi)) {
        vi s = vi_load(sc[0] + i), m = vi_load(sc[4] + i), both = vi_load(sc[8] + i);

        vi_store(scale[0] + i, vi_and(s, six));
        vi_store(min[0] + i, vi_and(m, six));
        vi_store(scale[4] + i, vi_or(vi_and(both, low), vi_and(vi_shr(s, 2), high)));
        vi_store(min[4] + i, vi_or(vi_and(vi_shr(both, 4), low), vi_and(vi_shr(m, 2), high)));
    }
    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi m = vi_load_u8(min[i] + part * KN_LANES);

            c->scale[part][i] = dot_scale(vi_load_u8(scale[i] + part * KN_LANES), largest);
            c->min[part][i] = pair(m, m);
        }
        c->d[part] = vf_load_f16(d + part * KN_LANES);
        c->dmin[part] = vf_load_f16(dmin + part * KN_LANES);
    }
}

KN_INLINE vi line_q4_k(const struct codes *c, int half, int i, int part)
{
    const struct kn_q4_k_x16 *w = c->block;

    return nibbles(w->q[16 * half + i / 16 * 8 + i % 8][part * KN_LANES], i / 8 % 2);
}

static void scales_q4_k(const void *block, struct codes *c)
{
    const struct kn_q4_k_x16 *w = block;

    scales_6_bit(w->sc, w->d, w->dmin, 15, c);
}

KN_INLINE vi line_q5_k(const struct codes *c, int half, int i, int part)
{
    const struct kn_q5_k_x16 *w = c->block;

    return vi_or(nibbles(w->q[16 * half + i / 16 * 8 + i % 8][part * KN_LANES], i / 8 % 2),
                 bit_to(w->qh[i % 8][part * KN_LANES], 4 * half + i / 8, 4));
}

static void scales_q5_k(const void *block, struct codes *c)
{
    const struct kn_q5_k_x16 *w = block;

    scales_6_bit(w->sc, w->d, w->dmin, 31, c);
}

/* Sets the factors of two sub-blocks of codes with an offset. */
KN_INLINE void set_scale(struct codes *c, int part, int i, vi even, vi odd, int largest)
{
    c->scale[part][i] = dot_scale(even, largest);
    c->scale[part][i + 1] = dot_scale(odd, largest);
    c->min[part][i / 2] = pair(even, odd);
}

/* Codes keep their offset: 0..63. */
KN_INLINE vi line_q6_k(const struct codes *c, int half, int i, int part)
{
    const struct kn_q6_k_x16 *w = c->block;
    vi high = vi_load(w->qh[8 * half + i % 8][part * KN_LANES]);

    high = i < 8 ? vi_shl(high, 4) : i < 16 ? vi_shl(high, 2) : i < 24 ? high : vi_shr(high, 2);
    return vi_or(nibbles(w->ql[16 * half + i % 16][part * KN_LANES], i / 16), vi_and(high, vi_bytes(0x30)));
}

static void scales_q6_k(const void *block, struct codes *c)
{
    const struct kn_q6_k_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 16; i += 2)
            set_scale(c, part, i, vi_load_i8(w->sc[i] + part * KN_LANES), vi_load_i8(w->sc[i + 1] + part * KN_LANES),
                      63);
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
    }
}

KN_INLINE vi line_q2_k(const struct codes *c, int half, int i, int part)
{
    const struct kn_q2_k_x16 *w = c->block;
    return pairs(w->q[8 * half + i % 8][part * KN_LANES], i / 8);
}

static void scales_q2_k(const void *block, struct codes *c)
{
    const struct kn_q2_k_x16 *w = block;
    const vi low = vi_set1(15);

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 16; i += 2) {
            vi even = vi_load_u8(w->sc[i] + part * KN_LANES);
            vi odd = vi_load_u8(w->sc[i + 1] + part * KN_LANES);

            c->scale[part][i] = dot_scale(vi_and(even, low), 3);
            c->scale[part][i + 1] = dot_scale(vi_and(odd, low), 3);
            c->min[part][i / 2] = pair(vi_shr(even, 4), vi_shr(odd, 4));
        }
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
        c->dmin[part] = vf_load_f16(w->dmin + part * KN_LANES);
    }
}

/* Codes keep their offset: 0..7. */
KN_INLINE vi line_q3_k(const struct codes *c, int half, int i, int part)
{
    const struct kn_q3_k_x16 *w = c->block;
    return vi_or(pairs(w->q[8 * half + i % 8][part * KN_LANES], i / 8),
                 bit_to(w->qh[i % 8][part * KN_LANES], 4 * half + i / 8, 2));
}

KN_INLINE vi scale_q3_k(const struct kn_q3_k_x16 *w, int i, int part) /* kn_q3_k_scale() */
{
    vi low = vi_load_u8(w->sc[i % 8] + part * KN_LANES);
    vi high = vi_load_u8(w->sc[8 + i % 4] + part * KN_LANES);

    low = vi_and(vi_shr_by(low, i / 8 * 4), vi_set1(15));
    high = vi_and(vi_shr_by(high, i / 4 * 2), vi_set1(3));
    return vi_sub(vi_or(low, vi_shl(high, 4)), vi_set1(32));
}

static void scales_q3_k(const void *block, struct codes *c)
{
    const struct kn_q3_k_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 16; i += 2)
            set_scale(c, part, i, scale_q3_k(w, i, part), scale_q3_k(w, i + 1, part), 7);
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
    }
}

KN_INLINE vi line_iq4_xs(const struct codes *c, int half, int i, int part)
{
    const struct kn_iq4_xs_x16 *w = c->block;
    const __m128i value = _mm_setr_epi8(KN_IQ4);

    return vi_look_up(signed_table(value), nibbles(w->q[16 * half + i / 8 * 4 + i % 4][part * KN_LANES], i / 4 % 2));
}

static void scales_iq4_xs(const void *block, struct codes *c) /* kn_iq4_xs_scale() */
{
    const struct kn_iq4_xs_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        vi low = vi_load(w->sl[part * KN_LANES]), high = vi_load_u16(w->sh + part * KN_LANES);

        for (int i = 0; i < 8; i++) {
            vi bits = vi_or(vi_and(vi_shr_by(low, 4 * i), vi_set1(15)),
                            vi_shl(vi_and(vi_shr_by(high, 2 * i), vi_set1(3)), 4));
            vi scale = vi_sub(bits, vi_set1(32));

            c->scale[part][i] = dot_scale(scale, KN_SIGNED(128));
            c->min[part][i] = pair(scale, scale);
        }
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
    }
}

#if defined(__AVX512VBMI__)
#include "kernels/cpu/simd_grids_vbmi.h"
#define TURN_GRID turn_codes
#else
#include "kernels/cpu/simd_grids.h"
#define TURN_GRID NULL
#endif

/* ---- rows ------------------------------------------------------------------------------------ */

/* Called once per run: prefetches the part of the next block (and of one FAR_BLOCKS further) that corresponds to this
 * run, which begins at `line` of 64. */
KN_INLINE void ask_for(const struct codes *c, int line, int run, int part, int bytes)
{
    const int n = kn_ceil_div(bytes / 64 * run, 64 * KN_PARTS);
    const uint8_t *next = c->ahead + part * (bytes / KN_PARTS) + line / run * n * 64;

    if (64 / run * n * 64 >= 2 * bytes / KN_PARTS && line / run * n * 64 >= bytes / KN_PARTS)
        return; /* short runs: the first ones have prefetched all */
    UNROLL
    for (int i = 0; i < n; i++) {
        prefetch(next + 64 * i);
        prefetch_far(next + 64 * i + FAR_BLOCKS * bytes);
    }
}

/* Number of lines in a run: those of one sub-block (8 or 4), or fewer so that the sum does not overflow; a power of
 * two. */
KN_INLINE int run_of(int n_sub, int largest)
{
    const int most = kn_min(64 / n_sub, KN_RUN(largest));

    return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

KN_INLINE bool is_held(int run, enum lines lines)
{
    const int most = HOLD(run);

    return lines == HELD && most == run;
}

/* Adds to isum of rows from..to - 1 the run that begins with line 32 * half + i; x: the rows' codes, from the half on.
 * Lines are in `held`; if it is NULL, `unpack` decodes them; if this is NULL too, they are in c->q. */
KN_INLINE void run_rows(const struct codes *c, int part, int half, int i, int run, const vi *held, line_fn *unpack,
                        vi scale, int largest, const int8_t *const *x, int from, int to, vi *isum)
{
    const bool few = to - from <= FEW_ROWS;
    const int n_sum = few && run > 4 ? 2 : 1;
    vi dot[2][WIDE_TILE];

    UNROLL
    for (int r = from; r < to; r++)
        dot[0][r] = dot[1][r] = vi_zero();
    UNROLL
    for (int h = 0; h < run; h++) {
        vi q = held     ? held[h]
               : unpack ? unpack(c, half, i + h, part)
                        : vi_load(c->q[32 * half + i + h] + part * (int)sizeof(vi));

        UNROLL
        for (int r = from; r < to; r++)
            dot[h % n_sum][r] = few || held ? dot_spread(dot[h % n_sum][r], q, x[r] + 4 * (i + h), largest)
                                            : dot_codes(dot[h % n_sum][r], q, vi_spread(x[r] + 4 * (i + h)), largest);
    }
    UNROLL
    for (int r = from; r < to; r++)
        isum[r] = dot_fold(isum[r], n_sum == 2 ? dot_add(dot[0][r], dot[1][r]) : dot[0][r], scale, largest);
}

/* Computes msum of rows from..to - 1, and adds the block's products, from isum and msum, to t->acc.  A block is a whole
 * group.  The group's sum begins with a product, not with an fmaf from +0: the two differ only in the sign of a zero,
 * which is lost in t->acc, as a sum that starts at +0 is never -0. */
KN_INLINE void finish_rows(const struct tile *t, int part, int mins, int from, int to, vi *isum)
{
    const struct codes *c = t->w;
    const struct kn_codes *x[WIDE_TILE];
    vi msum[WIDE_TILE];

    UNROLL
    for (int r = from; r < to; r++) {
        x[r] = (const void *)(t->x[r] + t->at);
        msum[r] = vi_zero();
    }
    if (mins != NO_MINS) {
        UNROLL
        for (int i = 0; i < 8; i++) {
            UNROLL
            for (int r = from; r < to; r++)
                msum[r] = vi_dot_i16(msum[r], c->min[part][i], vi_spread(x[r]->sum + 2 * i));
        }
    }
    UNROLL
    for (int r = from; r < to; r++) {
        vf dx = vf_set1(x[r]->d[0]), group;
        vi sum = mins > 0 ? vi_sub(isum[r], vi_shl(msum[r], mins)) : isum[r];

        group = vf_mul(vf_mul(c->d[part], dx), vf_from_int(sum));
        if (mins == MINS)
            group = vf_fnma(vf_mul(c->dmin[part], dx), vf_from_int(msum[r]), group);
        add_to(t->acc[r] + part * KN_LANES, group);
    }
}

/* Adds a block to up to TILE rows, decoding its lines on the way; all parameters but t are compile-time constants where
 * this is inlined. */
KN_INLINE void rows_256(const struct tile *t, int n, int bytes, int n_sub, int largest, int mins, line_fn *unpack)
{
    const struct codes *c = t->w;
    const int n_line = 64 / n_sub, run = run_of(n_sub, largest);

    ROLLED for (int part = 0; part < KN_PARTS; part++)
    {
        const int8_t *x[TILE];
        vi isum[TILE];

        UNROLL
        for (int r = 0; r < n; r++) {
            x[r] = ((const struct kn_codes *)(const void *)(t->x[r] + t->at))->q;
            isum[r] = vi_zero();
        }
        ROLLED for (int half = 0; half < 2; half++)
        {
            UNROLL
            for (int i = 0; i < 32; i += run) {
                vi scale = c->scale[part][half * (32 / n_line) + i / n_line];

                if (n > FEW_ROWS)
                    forget_loads();
                else
                    keep_order();
                ask_for(c, 32 * half + i, run, part, bytes);
                run_rows(c, part, half, i, run, NULL, unpack, scale, largest, x, 0, n, isum);
            }
            UNROLL
            for (int r = 0; r < n; r++)
                x[r] += 128;
        }
        finish_rows(t, part, mins, 0, n, isum);
    }
}

/* Adds all runs of a part of a block to isum of n rows, more than TILE.  The lines of a run are decoded into registers
 * once, and used for groups of abreast(n) rows.  Advances each x[r] by the block. */
KN_INLINE void held_runs(const struct tile *t, int n, int part, int bytes, int run, int n_line, int largest,
                         line_fn *unpack, const int8_t **x, vi *isum)
{
    const struct codes *c = t->w;
    const int side = abreast(n);

    ROLLED for (int half = 0; half < 2; half++)
    {
        UNROLL
        for (int i = 0; i < 32; i += run) {
            const int line = 32 * half + i;
            vi held[16], scale = c->scale[part][half * (32 / n_line) + i / n_line];

            forget_loads();
            if (line >= t->ask0 && line < t->ask1)
                ask_for(c, line, run, part, bytes);
            UNROLL
            for (int h = 0; h < run; h++)
                held[h] = unpack(c, half, i + h, part);
            UNROLL
            for (int from = 0; from < n; from += side)
                run_rows(c, part, half, i, run, held, NULL, scale, largest, x, from, kn_min(from + side, n), isum);
        }
        UNROLL
        for (int r = 0; r < n; r++)
            x[r] += 128;
    }
}

/* As held_runs, with lines that are decoded in c->q; does not advance x. */
KN_INLINE void shared_runs(const struct tile *t, int n, int part, int bytes, int run, int n_line, int largest,
                           const int8_t *const *x, vi *isum)
{
    const struct codes *c = t->w;
    const int side = abreast(n);

    ROLLED for (int line = 0; line < 64; line += run)
    {
        vi scale = c->scale[part][line / n_line];

        if (line >= t->ask0 && line < t->ask1)
            ask_for(c, line, run, part, bytes);
        UNROLL
        for (int from = 0; from < n; from += side)
            run_rows(c, part, 0, line, run, NULL, NULL, scale, largest, x, from, kn_min(from + side, n), isum);
    }
}

/* Adds a block to more than TILE rows. */
KN_INLINE void rows_256_wide(const struct tile *t, int n, int bytes, int n_sub, int largest, int mins, line_fn *unpack,
                             enum lines lines)
{
    const int n_line = 64 / n_sub, run = run_of(n_sub, largest);

    ROLLED for (int part = 0; part < KN_PARTS; part++)
    {
        const int8_t *x[WIDE_TILE];
        vi isum[WIDE_TILE];

        UNROLL
        for (int r = 0; r < n; r++) {
            x[r] = ((const struct kn_codes *)(const void *)(t->x[r] + t->at))->q;
            isum[r] = vi_zero();
        }
        if (is_held(run, lines))
            held_runs(t, n, part, bytes, run, n_line, largest, unpack, x, isum);
        else
            shared_runs(t, n, part, bytes, run, n_line, largest, x, isum);
        finish_rows(t, part, mins, 0, n, isum);
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

#define ROWS(name, n_sub, largest, mins)                                                                               \
    KN_INLINE void rows_##name(const struct tile *t, int n)                                                            \
    {                                                                                                                  \
        rows_256(t, n, sizeof(struct kn_##name##_x16), n_sub, largest, mins, line_##name);                             \
    }
#define DECODE(name, held)                                                                                             \
    static void decode_##name(struct codes *c)                                                                         \
    {                                                                                                                  \
        if (held)                                                                                                      \
            return;                                                                                                    \
        ROLLED for (int half = 0; half < 2; half++)                                                                    \
        {                                                                                                              \
            UNROLL                                                                                                     \
            for (int i = 0; i < 32; i++) {                                                                             \
                UNROLL                                                                                                 \
                for (int part = 0; part < KN_PARTS; part++)                                                            \
                    vi_store(c->q[32 * half + i] + part * (int)sizeof(vi), line_##name(c, half, i, part));             \
            }                                                                                                          \
        }                                                                                                              \
    }
#define WIDE(name, bytes, n_sub, largest, mins, line, lines)                                                           \
    KN_INLINE void wide_##name(const struct tile *t, int n)                                                            \
    {                                                                                                                  \
        rows_256_wide(t, n, bytes, n_sub, largest, mins, line, lines);                                                 \
    }
#define FORMAT(name, n_sub, largest, mins, lines)                                                                      \
    ROWS(name, n_sub, largest, mins)                                                                                   \
    TILES(rows_##name)                                                                                                 \
    DECODE(name, is_held(run_of(n_sub, largest), lines))                                                               \
    WIDE(name, sizeof(struct kn_##name##_x16), n_sub, largest, mins, line_##name, lines)                               \
    WIDE_TILES(wide_##name)
#define KIND(name)                                                                                                     \
    {                                                                                                                  \
        sizeof(struct kn_##name##_x16), scales_##name, rows_##name##_tiles, TILE, wide_##name##_tiles, decode_##name,  \
            NULL                                                                                                       \
    }

/* Sizes of tiles that share decoded lines. */
#define EACH_SHARED_TILE(X, of) X(of, 1) X(of, 2) EACH_SMALL_TILE(X, of) EACH_WIDE_TILE(X, of)
#if KN_LANES == 16
#define EACH_SMALL_TILE(X, of) X(of, 3) X(of, 4) X(of, 5) X(of, 6) X(of, 7)
#else
#define EACH_SMALL_TILE(X, of)
#endif
#define SHARED_TILES(body)                                                                                             \
    TILE_BODIES(EACH_SHARED_TILE, body)                                                                                \
    static tile_fn *const body##_tiles[WIDE_TILE + 1] = { EACH_SHARED_TILE(TILE_ENTRY, body) };

/* Looking points up takes most of the time of the grid formats, so of more rows than a few lines are decoded once.  The
 * tiles are then those of wide_grid_8 or wide_grid_16 for all of these formats, which saves most of the time to compile
 * them; `bytes` only matters for the prefetch. */
#if defined(__AVX512VBMI__)
#define FEW_OF_GRIDS                                 2
#define EACH_FEW(X, of)                              X(of, 1) X(of, 2)
#define GRID_ROWS(name, n_sub, largest, bias, signs) ROWS(name, n_sub, largest, SIGNED_MINS)
/* Lines of a pair are stored together: the compiler takes a store for a change of the tables. */
#define DECODE_GRID(name, signs)                                                                                       \
    static void decode_##name(struct codes *c)                                                                         \
    {                                                                                                                  \
        UNROLL                                                                                                         \
        for (int i = 0; i < 64; i += 2) {                                                                              \
            vi even = line_##name(c, i / 32, i % 32, 0), odd = line_##name(c, i / 32, i % 32 + 1, 0);                  \
                                                                                                                       \
            vi_store(c->q[i], even);                                                                                   \
            vi_store(c->q[i + 1], odd);                                                                                \
        }                                                                                                              \
    }
#else
#include "kernels/cpu/simd_grid_rows.h"
#define EACH_FEW(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4)
#define GRID_ROWS(name, n_sub, largest, bias, signs)                                                                   \
    KN_INLINE void rows_##name(const struct tile *t, int n)                                                            \
    {                                                                                                                  \
        rows_of_octets(t, n, sizeof(struct kn_##name##_x16), n_sub, (bias) + (largest)-KN_SIGNED(0),                   \
                       (bias) ? ABOVE(4) : NO_MINS, sizes_##name, signs);                                              \
    }
#define DECODE_GRID(name, signs)                                                                                       \
    static void decode_##name(struct codes *c)                                                                         \
    {                                                                                                                  \
        ROLLED for (int i = 0; i < 8 * KN_PARTS; i++) decode_octets(c, i / 8, i % 8, sizes_##name, signs);             \
    }
#endif
#define FEW_TILES(body)                                                                                                \
    TILE_BODIES(EACH_FEW, body)                                                                                        \
    static tile_fn *const body##_tiles[FEW_OF_GRIDS + 1] = { EACH_FEW(TILE_ENTRY, body) };
#define GRID(name, n_sub, largest, bias, signs)                                                                        \
    GRID_ROWS(name, n_sub, largest, bias, signs)                                                                       \
    FEW_TILES(rows_##name)                                                                                             \
    DECODE_GRID(name, signs)
#define GRID_KIND(name, n_sub)                                                                                         \
    {                                                                                                                  \
        sizeof(struct kn_##name##_x16), scales_##name, rows_##name##_tiles, FEW_OF_GRIDS, wide_grid_##n_sub##_tiles,   \
            decode_##name, TURN_GRID                                                                                   \
    }

FORMAT(q4_k, 8, 15, MINS, HELD)
FORMAT(q5_k, 8, 31, MINS, HELD)
FORMAT(q6_k, 16, 63, ABOVE(5), SHARED)
FORMAT(q2_k, 16, 3, MINS, HELD)
FORMAT(q3_k, 16, 7, ABOVE(2), HELD)
FORMAT(iq4_xs, 8, KN_SIGNED(128), SIGNED_MINS, HELD)
GRID(iq2_xxs, 8, KN_SIGNED(43), 0, signs_ready)
GRID(iq2_xs, 16, KN_SIGNED(43), 0, signs_ready)
GRID(iq2_s, 16, KN_SIGNED(43), 0, signs_iq2_s)
GRID(iq3_xxs, 8, KN_SIGNED(31), 0, signs_ready)
GRID(iq3_s, 8, KN_SIGNED(KN_SMALL + 1), 0, signs_iq3_s) /* scales are prepared for large codes */
GRID(iq1_s, 8, KN_SIGNED(9), KN_IQ1_BIAS, NULL)
GRID(iq1_m, 16, KN_SIGNED(9), KN_IQ1_BIAS, NULL)
WIDE(grid_8, sizeof(struct kn_iq3_xxs_x16), 8, KN_SIGNED(43), SIGNED_MINS, NULL, SHARED)
WIDE(grid_16, sizeof(struct kn_iq2_xs_x16), 16, KN_SIGNED(43), SIGNED_MINS, NULL, SHARED)
SHARED_TILES(wide_grid_8)
SHARED_TILES(wide_grid_16)

/* A block's activations in the order of a format's lines, and a job with these. */
struct turned {
    struct kn_codes x[GROUP_256] __attribute__((aligned(64)));
    struct job job;
};

static const struct job *turned_job(struct turned *t, const struct job *j)
{
    t->job = *j;
    for (int r = 0; r < j->n; r++)
        t->job.x[r] = (const void *)&t->x[r];
    return &t->job;
}

void KN_FN(kn_job_256)(const struct job *j)
{
    static const struct kind {
        size_t bytes;
        scales_fn *scales;
        tile_fn *const *few;
        int most_few;
        tile_fn *const *many; /* of more rows than most_few */
        void (*decode)(struct codes *c);
        turn_fn *turn; /* if not NULL, orders codes as lines have them */
    } kinds[KN_FORMAT_COUNT] = {
        [KN_Q4_K] = KIND(q4_k),
        [KN_Q5_K] = KIND(q5_k),
        [KN_Q6_K] = KIND(q6_k),
        [KN_Q2_K] = KIND(q2_k),
        [KN_Q3_K] = KIND(q3_k),
        [KN_IQ4_XS] = KIND(iq4_xs),
        [KN_IQ2_XXS] = GRID_KIND(iq2_xxs, 8),
        [KN_IQ2_XS] = GRID_KIND(iq2_xs, 16),
        [KN_IQ2_S] = GRID_KIND(iq2_s, 16),
        [KN_IQ3_XXS] = GRID_KIND(iq3_xxs, 8),
        [KN_IQ3_S] = GRID_KIND(iq3_s, 8),
        [KN_IQ1_S] = GRID_KIND(iq1_s, 8),
        [KN_IQ1_M] = GRID_KIND(iq1_m, 16),
    };
    const struct kind *k = &kinds[j->format];
    const bool many = j->n > k->most_few;
    float acc[GROUP_256][ACC] __attribute__((aligned(64)));
    struct codes c;
    struct turned turned;
    struct tile t = { .job = j, .w = &c };
    tile_fn *whole = j->n > WIDE_TILE ? NULL : many ? k->many[j->n] : k->few[j->n];

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    if (k->turn)
        t.job = turned_job(&turned, j);
    set_tile(&t, acc, 0, 1);
    for (int b = 0; b < j->n_block; b++) {
        c.block = j->w + (size_t)b * k->bytes;
        c.ahead = (const uint8_t *)c.block + k->bytes;
        for (int r = 0; k->turn && r < j->n; r++) /* long before its loads, which are smaller than its stores */
            k->turn((const struct kn_codes *)(const void *)j->x[r] + b, &turned.x[r]);
        k->scales(c.block, &c);
        if (many)
            k->decode(&c);
        t.at = k->turn ? 0 : (size_t)b * sizeof(struct kn_codes);
        if (whole)
            whole(&t);
        else
            each_tile(&t, acc, k->many, WIDE_TILE);
    }
    store_sums(j, acc);
}
