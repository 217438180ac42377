/* kernels/cpu/matmul.tmpl.c - y = W x for 16 weight rows at a time.
 *
 * Comes in: panels (formats.h) and activation rows.  Goes out: y rows, to the bit what
 * reference_matmul.c gives.  One lane is one weight row, so nothing is summed across lanes; an
 * activation is spread from memory into all of them.
 *
 * A panel is read once and serves up to GROUP activation rows, in tiles of up to TILE whose sums
 * fit the registers; a tile of any size costs in proportion.  What is costly to unpack is
 * unpacked once for the group, into a few KiB that stay in the nearest cache: the codes of a
 * block of 256, or 64 k of half-width floats.  Q8_0 and F32 are used as they lie.
 *
 * Bytes against operations.  One row of Q4_K: 144 bytes for 256 products, so memory bounds it;
 * what one core can read (17 GB/s where this was measured) it reaches only if the next bytes are
 * asked for while it computes, for its own window of instructions is shorter than a block.  Many
 * rows: 64 instructions of 64 products for a block and activation row, two a cycle, and half as
 * many again for scales, so 3 GHz allow 250 GMAC/s.  Memory idles while a panel is read again from
 * the cache; so a tile is as large as registers allow, and what does not fit goes through a few
 * KiB of the panel before more is asked for. */
#include "kernels/cpu/simd.h"
#include "kernels/internal.h"

#if KN_LANES == 16
#define TILE 8                            /* activation rows whose sums fit the registers, */
#define WIDE_TILE 16                      /* when a row has but one */
#define HOLD(run) (run)                   /* lines of codes that stay in registers meanwhile */
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6) X(of, 7) X(of, 8)
#define EACH_WIDE_TILE(X, of) \
    X(of, 9) X(of, 10) X(of, 11) X(of, 12) X(of, 13) X(of, 14) X(of, 15) X(of, 16)
#else
#define TILE 6
#define WIDE_TILE TILE
#define HOLD(run) 1
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6)
#define EACH_WIDE_TILE(X, of)
#endif
#define GROUP 64                          /* activation rows that share what is unpacked */
#define ACC (2 * KN_PANEL)                /* sums kept for an activation row */
#define FAR_BLOCKS 7                      /* from the next to what the outer caches are asked for */
#define NEAR 1024                         /* bytes of Q8_0 from use to what the inner cache is */
#define FAR 16384                         /* and the outer ones are asked for */
#define AHEAD 4096                        /* the same of F32 */

/* Arrays of registers are registers only when the loops over them are unrolled; code under a
 * sanitizer is not meant to be fast, and would take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#define UNROLL_LINES
#else
#define UNROLL _Pragma("GCC unroll 16")
#define UNROLL_LINES _Pragma("GCC unroll 64")
#endif

/* A panel, or two, and up to GROUP activation rows. */
struct job {
    const uint8_t *w;
    const uint8_t *x[GROUP];
    float *y[GROUP];
    size_t panel_bytes;
    int n, n_block, n_panel;
    int n_lane;                           /* 16 a panel, fewer in a matrix's last */
};

/* A step of the work: some k of the panel, some of the activation rows. */
struct tile {
    const struct job *job;
    const void *w;                        /* what was unpacked, if something was */
    const uint8_t *const *x;              /* the rows, which start at byte `at` */
    size_t at;
    float (*acc)[ACC];                    /* their sums so far */
    int i, of;                            /* which of the tiles over the same weights */
    int n_step;                           /* blocks of Q8_0, k of floats */
};

typedef void tile_fn(const struct tile *t);

/* body(t, n) made a function for each n; apart, so that one n's constants crowd no other's
 * registers. */
#define TILE_BODY(body, n) \
    static __attribute__((noinline)) void body##_##n(const struct tile *t) { body(t, n); }
#define TILE_ENTRY(body, n) [n] = body##_##n,
#define TILES(body)            \
    EACH_TILE(TILE_BODY, body) \
    static tile_fn *const body##_tiles[TILE + 1] = { EACH_TILE(TILE_ENTRY, body) };
#define WIDE_TILES(body)                                    \
    EACH_TILE(TILE_BODY, body)                              \
    EACH_WIDE_TILE(TILE_BODY, body)                         \
    static tile_fn *const body##_tiles[WIDE_TILE + 1] = {   \
        EACH_TILE(TILE_ENTRY, body) EACH_WIDE_TILE(TILE_ENTRY, body) };

/* All rows through one step, in tiles of about equal size, at most `most`. */
static void each_tile(struct tile t, float (*acc)[ACC], tile_fn *const *tiles, int most)
{
    const struct job *j = t.job;
    const int n_tile = kn_ceil_div(j->n, most);

    t.of = n_tile;
    for (int i = 0; i < n_tile; i++) {
        int from = i * j->n / n_tile, to = (i + 1) * j->n / n_tile;

        t.i = i;
        t.x = j->x + from;
        t.acc = acc + from;
        tiles[to - from](&t);
    }
}

static void store_sums(const struct job *j, float (*acc)[ACC])
{
    for (int r = 0; r < j->n; r++) {
        for (int lane = 0; lane < j->n_lane; lane += KN_LANES)
            vf_store_n(j->y[r] + lane, vf_load(acc[r] + lane), kn_min(j->n_lane - lane, KN_LANES));
    }
}

/* Panel p of the two.  An odd one at the end is taken twice; its second sums are not stored. */
KN_INLINE const uint8_t *panel_of_pair(const struct job *j, int p)
{
    return j->w + (size_t)kn_min(p, j->n_panel - 1) * j->panel_bytes;
}

KN_INLINE void prefetch(const void *p)    { _mm_prefetch((const char *)p, _MM_HINT_T0); }
KN_INLINE void prefetch_far(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T2); }

/* Rows of a tile of n that are taken abreast, so that their sums' latencies hide each other: up to
 * TILE, in groups of about equal size. */
KN_INLINE int abreast(int n) { return kn_ceil_div(n, kn_ceil_div(n, TILE)); }

/* ---- blocks of 256 --------------------------------------------------------------------------- */

/* Sixteen rows' block, unpacked.  Line i holds the codes of k = 4 * i .. 4 * i + 3. */
struct codes {
    uint8_t q[64][64];
    vi scale[KN_PARTS][16];               /* of each sub-block, for dot_fold() */
    vi min[KN_PARTS][8];                  /* two int16: the factors of sums 2 * i and 2 * i + 1 */
    vf d[KN_PARTS], dmin[KN_PARTS];
    const void *block;                    /* which these are */
    const uint8_t *ahead;                 /* the next block, to ask for meanwhile */
};

/* Part of line k of a block. */
typedef vi line_fn(const void *block, int k, int part);

/* acc and what a block adds to it: isum of scaled codes, msum of scaled sums. */
typedef vf finish_fn(const struct codes *c, int part, vi isum, vi msum, vf dx, vf acc);

/* isum of one part for n rows, which pass over a run of lines that stays in registers, or over one
 * line where folding takes registers too.  Each of the tiles asks for its share of what is next;
 * that test also keeps the compiler from carrying one run's registers into the next, which costs a
 * fifth of the speed. */
KN_INLINE void scaled_codes(const struct tile *t, int part, int n, int n_sub, int largest,
                            int bytes, line_fn *unpack, const struct kn_x256 *const *x, vi *isum)
{
    const struct codes *c = t->w;
    const int n_line = 64 / n_sub, run = kn_min(n_line, KN_RUN(largest));
    const int hold = largest <= KN_SMALL ? HOLD(run) : 1;
    const int n_ahead = kn_ceil_div(bytes / 64 * run, 64 * KN_PARTS), side = abreast(n);
    const int ahead0 = 64 * t->i / t->of, ahead1 = 64 * (t->i + 1) / t->of;
    const uint8_t *ahead = c->ahead + part * (bytes / KN_PARTS);

    UNROLL for (int line = 0; line < 64; line += run) {
        vi dot[WIDE_TILE], q[HOLD(16)], scale = c->scale[part][line / n_line];

        if (line >= ahead0 && line < ahead1) {
            UNROLL for (int i = 0; i < n_ahead; i++) {
                const uint8_t *next = ahead + 64 * (line / run * n_ahead + i);
                prefetch(next);
                prefetch_far(next + FAR_BLOCKS * bytes);
            }
        }
        UNROLL for (int i = line; i < line + run; i += hold) {
            UNROLL for (int h = 0; h < hold; h++)
                q[h] = unpack ? unpack(c->block, i + h, part)
                              : vi_load(c->q[i + h] + part * (int)sizeof(vi));
            UNROLL for (int from = 0; from < n; from += side) {
                const int to = kn_min(from + side, n);

                if (i == line) {
                    UNROLL for (int r = from; r < to; r++)
                        dot[r] = vi_zero();
                }
                UNROLL for (int h = 0; h < hold; h++) {
                    UNROLL for (int r = from; r < to; r++)
                        dot[r] = dot_codes(dot[r], q[h], vi_spread(x[r]->q + 4 * (i + h)));
                }
                if (i + hold == line + run) {
                    UNROLL for (int r = from; r < to; r++)
                        isum[r] = dot_fold(isum[r], dot[r], scale, largest);
                }
            }
        }
    }
}

/* A block's share in n rows; the other arguments are constants where this is inlined. */
KN_INLINE void block_rows(const struct tile *t, int n, int n_sub, int largest, int bytes,
                          line_fn *unpack, finish_fn *finish)
{
    const struct codes *c = t->w;
    const struct kn_x256 *x[WIDE_TILE];

    UNROLL for (int r = 0; r < n; r++)
        x[r] = (const void *)(t->x[r] + t->at);
    for (int part = 0; part < KN_PARTS; part++) {
        vi isum[WIDE_TILE], msum[WIDE_TILE];

        UNROLL for (int r = 0; r < n; r++)
            isum[r] = msum[r] = vi_zero();
        scaled_codes(t, part, n, n_sub, largest, bytes, unpack, x, isum);
        UNROLL for (int i = 0; i < 8; i++) {
            UNROLL for (int r = 0; r < n; r++)
                msum[r] = vi_dot_i16(msum[r], c->min[part][i], vi_spread(x[r]->sum + 2 * i));
        }
        UNROLL for (int r = 0; r < n; r++) {
            float *acc = t->acc[r] + part * KN_LANES;
            vf_store(acc, finish(c, part, isum[r], msum[r], vf_set1(x[r]->d), vf_load(acc)));
        }
    }
}

KN_INLINE vi line_q4_k(const void *block, int k, int part)
{
    const struct kn_q4_k_x16 *w = block;
    vi q = vi_load(w->q[k / 16 * 8 + k % 8][part * KN_LANES]);

    return vi_and(k / 8 % 2 ? vi_shr(q, 4) : q, vi_bytes(0x0F));
}

static void scales_q4_k(const void *block, struct codes *c)
{
    const struct kn_q4_k_x16 *w = block;
    const vi low = vi_bytes(0x0F), high = vi_bytes(0x30), six = vi_bytes(0x3F);
    uint8_t scale[8][16] __attribute__((aligned(64))), min[8][16] __attribute__((aligned(64)));

    for (int i = 0; i < 64; i += (int)sizeof(vi)) {              /* kn_q4_k_scales, bytes abreast */
        vi s = vi_load(w->sc[0] + i), m = vi_load(w->sc[4] + i), both = vi_load(w->sc[8] + i);

        vi_store(scale[0] + i, vi_and(s, six));
        vi_store(min[0] + i, vi_and(m, six));
        vi_store(scale[4] + i, vi_or(vi_and(both, low), vi_and(vi_shr(s, 2), high)));
        vi_store(min[4] + i, vi_or(vi_and(vi_shr(both, 4), low), vi_and(vi_shr(m, 2), high)));
    }
    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 8; i++) {
            vi m = vi_load_u8(min[i] + part * KN_LANES);

            c->scale[part][i] = dot_scale(vi_load_u8(scale[i] + part * KN_LANES));
            c->min[part][i] = vi_or(m, vi_shl(m, 16));
        }
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
        c->dmin[part] = vf_load_f16(w->dmin + part * KN_LANES);
    }
}

KN_INLINE vf finish_q4_k(const struct codes *c, int part, vi isum, vi msum, vf dx, vf acc)
{
    acc = vf_fma(vf_mul(c->d[part], dx), vf_from_int(isum), acc);
    return vf_fnma(vf_mul(c->dmin[part], dx), vf_from_int(msum), acc);
}

/* Codes are left at 0..63; the 32 that they are above themselves comes off by the sums. */
KN_INLINE vi line_q6_k(const void *block, int k, int part)
{
    const struct kn_q6_k_x16 *w = block;
    const int half = k / 32, field = k / 8 % 4;
    vi low = vi_load(w->ql[16 * half + 8 * (field % 2) + k % 8][part * KN_LANES]);
    vi high = vi_load(w->qh[8 * half + k % 8][part * KN_LANES]);

    high = field == 0 ? vi_shl(high, 4) : field == 1 ? vi_shl(high, 2)
         : field == 2 ? high : vi_shr(high, 2);
    low = field < 2 ? low : vi_shr(low, 4);
    return vi_or(vi_and(low, vi_bytes(0x0F)), vi_and(high, vi_bytes(0x30)));
}

static void scales_q6_k(const void *block, struct codes *c)
{
    const struct kn_q6_k_x16 *w = block;

    for (int part = 0; part < KN_PARTS; part++) {
        for (int i = 0; i < 16; i++)
            c->scale[part][i] = dot_scale(vi_load_i8(w->sc[i] + part * KN_LANES));
        for (int i = 0; i < 8; i++) {
            vi even = vi_load_i8(w->sc[2 * i] + part * KN_LANES);
            vi odd = vi_load_i8(w->sc[2 * i + 1] + part * KN_LANES);

            c->min[part][i] = vi_or(vi_and(even, vi_set1(0xFFFF)), vi_shl(odd, 16));
        }
        c->d[part] = vf_load_f16(w->d + part * KN_LANES);
    }
}

KN_INLINE vf finish_q6_k(const struct codes *c, int part, vi isum, vi msum, vf dx, vf acc)
{
    isum = vi_sub(isum, vi_shl(msum, 5));
    return vf_fma(vf_mul(c->d[part], dx), vf_from_int(isum), acc);
}

#define BLOCKS_OF(format, n_sub, largest)                                                        \
    KN_INLINE void direct_##format(const struct tile *t, int n)                                   \
    {                                                                                             \
        block_rows(t, n, n_sub, largest, sizeof(struct kn_##format##_x16), line_##format,         \
                   finish_##format);                                                              \
    }                                                                                             \
    KN_INLINE void shared_##format(const struct tile *t, int n)                                   \
    {                                                                                             \
        block_rows(t, n, n_sub, largest, sizeof(struct kn_##format##_x16), NULL, finish_##format); \
    }                                                                                             \
    TILES(direct_##format)                                                                        \
    WIDE_TILES(shared_##format)                                                                   \
    static void run_##format(const struct job *j)                                                 \
    {                                                                                             \
        run_blocks(j, sizeof(struct kn_##format##_x16), direct_##format##_tiles,                  \
                   shared_##format##_tiles, scales_##format, line_##format);                      \
    }

/* A tile that is alone unpacks the codes on its way, if small; others share them unpacked.  Several
 * are small, for two sizes of large ones (20 KiB of code each) would drive each other from the
 * instruction cache at every block. */
KN_INLINE void run_blocks(const struct job *j, size_t bytes, tile_fn *const *direct,
                          tile_fn *const *shared, void (*scales)(const void *, struct codes *),
                          line_fn *line)
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));
    struct codes c;
    struct tile t = { .job = j, .w = &c };

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int b = 0; b < j->n_block; b++) {
        c.block = j->w + (size_t)b * bytes;
        c.ahead = (const uint8_t *)c.block + bytes;
        scales(c.block, &c);
        if (j->n > TILE) {
            UNROLL_LINES for (int k = 0; k < 64; k++) {
                UNROLL for (int part = 0; part < KN_PARTS; part++)
                    vi_store(c.q[k] + part * (int)sizeof(vi), line(c.block, k, part));
            }
        }
        t.at = (size_t)b * sizeof(struct kn_x256);
        each_tile(t, acc, j->n > TILE ? shared : direct, j->n > WIDE_TILE ? TILE : WIDE_TILE);
    }
    store_sums(j, acc);
}

BLOCKS_OF(q4_k, 8, 15)
BLOCKS_OF(q6_k, 16, 63)

/* ---- blocks of 32 ----------------------------------------------------------------------------- */

#define STEP_32 16                        /* blocks that all tiles go through: 8.5 KiB of Q8_0 */

/* Part of line k, 0..7, of a block: signed codes of 4 * k .. 4 * k + 3 as signed_dot() takes them; and
 * the factors of its 16 rows. */
typedef vi line_32_fn(const void *block, int k, int part);
typedef vf factor_fn(const void *block, int part);

KN_INLINE vi line_q8_0(const void *block, int k, int part)
{
    const struct kn_q8_0_x16 *w = block;

    return signed_codes(vi_load(w->q[k][part * KN_LANES]));
}

KN_INLINE vf factor_q8_0(const void *block, int part)
{
    const struct kn_q8_0_x16 *w = block;

    return vf_load_f16(w->d + part * KN_LANES);
}

KN_INLINE vi line_mxfp4(const void *block, int k, int part)
{
    const struct kn_mxfp4_x16 *w = block;
    const __m128i value = _mm_setr_epi8(KN_E2M1_TWICE);
    vi q = vi_load(w->q[k % 4][part * KN_LANES]);

    return signed_codes(vi_look_up(value, vi_and(k < 4 ? q : vi_shr(q, 4), vi_bytes(0x0F))));
}

KN_INLINE vf factor_mxfp4(const void *block, int part)                    /* kn_mxfp4_step() */
{
    const struct kn_mxfp4_x16 *w = block;
    vi e = vi_shl(vi_load_u8(w->e + part * KN_LANES), 23);

    return vf_mul(vf_set1(0.5f), vf_bits(vi_max(e, vi_set1(0x00400000))));
}

/* Codes of a block stay in registers while rows pass.  A block and row: 8 products, and 4 or 5 more
 * instructions for start and scale, two a cycle. */
KN_INLINE void rows_32(const struct tile *t, int n, int bytes, line_32_fn *line, factor_fn *factor)
{
    const uint8_t *w = t->w;
    const struct kn_x32 *x[WIDE_TILE];
    const int hold = HOLD(8), side = abreast(n);
    vf acc[KN_PARTS][WIDE_TILE];

    UNROLL for (int r = 0; r < n; r++) {
        x[r] = (const void *)(t->x[r] + t->at);
        UNROLL for (int part = 0; part < KN_PARTS; part++)
            acc[part][r] = vf_load(t->acc[r] + part * KN_LANES);
    }
    for (int b = 0; b < t->n_step; b++, w += bytes) {
        if (t->i == 0) {
            UNROLL for (int i = 0; i <= bytes / 64; i++) {
                prefetch(w + NEAR + 64 * i);
                prefetch_far(w + FAR + 64 * i);
            }
        }
        UNROLL for (int part = 0; part < KN_PARTS; part++) {
            vf d = factor(w, part);
            vi dot[WIDE_TILE], q[HOLD(8)];

            UNROLL for (int i = 0; i < 8; i += hold) {
                UNROLL for (int h = 0; h < hold; h++)
                    q[h] = line(w, i + h, part);
                UNROLL for (int from = 0; from < n; from += side) {
                    const int to = kn_min(from + side, n);

                    if (i == 0) {
                        UNROLL for (int r = from; r < to; r++)
                            dot[r] = signed_start(vi_spread(x[r][b].sum));
                    }
                    UNROLL for (int h = 0; h < hold; h++) {
                        UNROLL for (int r = from; r < to; r++)
                            dot[r] = signed_dot(dot[r], q[h], vi_spread(x[r][b].q + 4 * (i + h)));
                    }
                    if (i + hold == 8) {
                        UNROLL for (int r = from; r < to; r++)
                            acc[part][r] = vf_fma(vf_mul(d, vf_set1(x[r][b].d)),
                                                  vf_from_int(dot[r]), acc[part][r]);
                    }
                }
            }
        }
    }
    UNROLL for (int r = 0; r < n; r++) {
        UNROLL for (int part = 0; part < KN_PARTS; part++)
            vf_store(t->acc[r] + part * KN_LANES, acc[part][r]);
    }
}

KN_INLINE void rows_q8_0(const struct tile *t, int n)
{
    rows_32(t, n, sizeof(struct kn_q8_0_x16), line_q8_0, factor_q8_0);
}

KN_INLINE void rows_mxfp4(const struct tile *t, int n)
{
    rows_32(t, n, sizeof(struct kn_mxfp4_x16), line_mxfp4, factor_mxfp4);
}

WIDE_TILES(rows_q8_0)
WIDE_TILES(rows_mxfp4)

static void run_32(const struct job *j, size_t bytes, tile_fn *const *tiles)
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));
    const int step = j->n > WIDE_TILE ? STEP_32 : j->n_block;
    struct tile t = { .job = j };

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int b = 0; b < j->n_block; b += step) {
        t.w = j->w + (size_t)b * bytes;
        t.at = (size_t)b * sizeof(struct kn_x32);
        t.n_step = kn_min(step, j->n_block - b);
        each_tile(t, acc, tiles, WIDE_TILE);
    }
    store_sums(j, acc);
}

static void run_q8_0(const struct job *j)  { run_32(j, sizeof(struct kn_q8_0_x16), rows_q8_0_tiles); }
static void run_mxfp4(const struct job *j) { run_32(j, sizeof(struct kn_mxfp4_x16), rows_mxfp4_tiles); }

/* ---- floats ---------------------------------------------------------------------------------- */

#define PAIR (2 / KN_PARTS)               /* panels of a tile: their rows fill two registers */
#define CHUNK 128                         /* most k widened at a time: 16 KiB */
#define WIDE (KN_PANEL * sizeof(float))
#define HALF (KN_PANEL * sizeof(uint16_t))

/* Weights as wide as float, and the panels they were widened from. */
struct wide { uint8_t w[PAIR][CHUNK * WIDE]; const uint8_t *from[PAIR]; };

/* F32 is used as it lies, the other formats out of a struct wide.  Eight activation rows leave few
 * registers for addresses: what is asked for is at a fixed distance, or behind a single pointer,
 * where each tile has its share of the next chunk. */
KN_INLINE void rows_floats(const struct tile *t, int n, bool f32)
{
    const struct wide *wide = t->w;
    const struct job *j = t->job;
    const uint8_t *w[PAIR];
    const int n_k = t->n_step;
    const size_t share = HALF * (size_t)n_k / (size_t)t->of, stride = PAIR * HALF / (size_t)t->of;
    const float *x[TILE];
    vf acc[2][TILE];

    UNROLL for (int p = 0; p < PAIR; p++)
        w[p] = f32 ? panel_of_pair(j, p) : wide->w[p];
    UNROLL for (int r = 0; r < n; r++) {
        x[r] = (const void *)(t->x[r] + t->at);
        UNROLL for (int i = 0; i < 2; i++)
            acc[i][r] = vf_load(t->acc[r] + i * KN_LANES);
    }
    for (int p = 0; p < PAIR; p++) {
        const uint8_t *ahead = f32 ? w[p] : wide->from[p] + CHUNK * HALF + (size_t)t->i * share;

        for (int k = p * n_k / PAIR; k < (p + 1) * n_k / PAIR; k++, ahead += stride) {
            vf v[2];

            UNROLL for (int i = 0; i < 2; i++)
                v[i] = vf_load((const float *)(const void *)(w[i / KN_PARTS] + (size_t)k * WIDE)
                               + i % KN_PARTS * KN_LANES);
            if (f32) {
                UNROLL for (int i = 0; i < PAIR; i++)
                    prefetch(w[i] + (size_t)k * WIDE + AHEAD);
            } else {
                prefetch(ahead);
            }
            UNROLL for (int r = 0; r < n; r++) {
                vf a = vf_set1(x[r][k]);

                UNROLL for (int i = 0; i < 2; i++)
                    acc[i][r] = vf_fma(v[i], a, acc[i][r]);
            }
        }
    }
    UNROLL for (int r = 0; r < n; r++) {
        UNROLL for (int i = 0; i < 2; i++)
            vf_store(t->acc[r] + i * KN_LANES, acc[i][r]);
    }
}

KN_INLINE void rows_f32(const struct tile *t, int n)    { rows_floats(t, n, true); }
KN_INLINE void rows_halves(const struct tile *t, int n) { rows_floats(t, n, false); }

TILES(rows_f32)
TILES(rows_halves)

static void run_f32(const struct job *j)
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    each_tile((struct tile){ .job = j, .n_step = j->n_block }, acc, rows_f32_tiles, TILE);
    store_sums(j, acc);
}

KN_INLINE void run_halves(const struct job *j, vf (*widen)(const uint16_t *))
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));
    struct wide wide __attribute__((aligned(64)));
    struct tile t = { .job = j, .w = &wide };
    const int step = j->n > TILE ? CHUNK : CHUNK / 2;

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int k0 = 0; k0 < j->n_block; k0 += step) {
        t.at = (size_t)k0 * sizeof(float);
        t.n_step = kn_min(step, j->n_block - k0);
        for (int p = 0; p < PAIR; p++) {
            const uint16_t *from = (const void *)(panel_of_pair(j, p) + (size_t)k0 * HALF);
            float *to = (void *)wide.w[p];

            for (int i = 0; i < t.n_step * KN_PANEL; i += KN_LANES)
                vf_store(to + i, widen(from + i));
            wide.from[p] = (const void *)from;
        }
        each_tile(t, acc, rows_halves_tiles, TILE);
    }
    store_sums(j, acc);
}

static void run_f16(const struct job *j)  { run_halves(j, vf_load_f16); }
static void run_bf16(const struct job *j) { run_halves(j, vf_load_bf16); }

/* ---- the operation --------------------------------------------------------------------------- */

/* Panels outermost, so that a panel is read from memory once and serves a group of rows from
 * cache. */
void KN_FN(kn_matmul)(const struct kn_matmul *m, int panel0, int panel1)
{
    static const struct { void (*run)(const struct job *); int n_panel; } runs[KN_FORMAT_COUNT] = {
        [KN_F32]  = { run_f32, PAIR },
        [KN_F16]  = { run_f16, PAIR },
        [KN_BF16] = { run_bf16, PAIR },
        [KN_Q8_0] = { run_q8_0, 1 },
        [KN_Q4_K] = { run_q4_k, 1 },
        [KN_Q6_K] = { run_q6_k, 1 },
        [KN_MXFP4] = { run_mxfp4, 1 },
    };
    struct job j;

    j.panel_bytes = KN_PANEL * kn_row_bytes(m->w.format, m->w.n_in);
    j.n_block = m->w.n_in / kn_format_info(m->w.format)->block_values;
    kn_assert(j.panel_bytes > 0 && panel0 >= 0 && panel1 <= kn_ceil_div(m->w.n_out, KN_PANEL));
    for (int panel = panel0; panel < panel1; panel += j.n_panel) {
        j.n_panel = kn_min(runs[m->w.format].n_panel, panel1 - panel);
        j.w = (const uint8_t *)m->w.data + (size_t)panel * j.panel_bytes;
        j.n_lane = kn_min(KN_PANEL * j.n_panel, m->w.n_out - panel * KN_PANEL);
        for (int row = 0; row < m->n_row; row += GROUP) {
            j.n = kn_min(GROUP, m->n_row - row);
            for (int i = 0; i < j.n; i++) {
                int from = m->x_row ? m->x_row[row + i] : row + i;
                int to = m->y_row ? m->y_row[row + i] : row + i;

                j.x[i] = (const uint8_t *)m->x + (size_t)from * m->x_stride;
                j.y[i] = m->y + (size_t)to * m->y_stride + (size_t)panel * KN_PANEL;
            }
            runs[m->w.format].run(&j);
        }
    }
}
