/* kernels/cpu/matmul.tmpl.c - y = W x for 16 weight rows at a time.
 *
 * Comes in: panels (formats.h) and activation rows.  Goes out: y rows, to the bit what
 * reference_matmul.c gives.  One lane is one weight row, so nothing is summed across lanes; an
 * activation is spread from memory into all of them.
 *
 * Two bodies.  The blocks of 256 are costly to unpack: a block's codes are unpacked once, into 4 KiB
 * that stay in the first-level cache, and serve every activation row.  Floats and Q8_0 need little or
 * no unpacking: they stream, with their accumulators in registers for a whole panel.  Both take the
 * activation rows in tiles of up to TILE; a tile of any size costs in proportion.
 *
 * What it costs.  One row: 144 bytes of Q4_K per 256 products, so memory bounds it (17 GB/s a core
 * are 30 GMAC/s) while the instructions, about 120 cycles a block of 16 rows, would allow 50 GB/s.
 * Many rows: 64 products of 64 bytes a block and row, two a cycle, and a third as much again for
 * scales. */
#include "kernels/cpu/simd.h"
#include "kernels/internal.h"

#if KN_LANES == 16
#define CHAINS 2
#define TILE 8                            /* activation rows that fit the registers */
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6) X(of, 7) X(of, 8)
#else
#define TILE 4
#define CHAINS 1
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4)
#endif
#define GROUP 64                          /* activation rows that share an unpacked block */

#define UNROLL _Pragma("GCC unroll 16")

/* A panel, or two, and up to GROUP activation rows. */
struct job {
    const uint8_t *w;
    const uint8_t *x[GROUP];
    float *y[GROUP];
    size_t panel_bytes;
    int n, n_block, n_panel;
    int n_lane;                           /* 16 a panel, fewer in a matrix's last */
};

#ifndef DIST
#define DIST 2
#endif
#ifndef STREAM_AHEAD
#define STREAM_AHEAD 4096
#endif
KN_INLINE void prefetch(const void *p)    { _mm_prefetch((const char *)p, _MM_HINT_T0); }

/* Register i of a row's results, as far as the matrix goes. */
static void store_lanes(float *y, int n_lane, int i, vf v)
{
    int n = kn_min(n_lane - i * KN_LANES, KN_LANES);

    if (n > 0)
        vf_store_n(y + i * KN_LANES, v, n);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------- */

/* Sixteen rows' block, unpacked.  Line i holds the codes of k = 4 * i .. 4 * i + 3. */
struct codes {
    uint8_t q[64][64];
    vi scale[KN_PARTS][16];               /* of each sub-block, for dot_fold() */
    vi min[KN_PARTS][8];                  /* two int16: what sums 2*i and 2*i + 1 are multiplied by */
    vf d[KN_PARTS], dmin[KN_PARTS];
};

/* acc and what a block adds to it: isum of scaled codes, msum of scaled sums. */
typedef vf finish_fn(const struct codes *c, int part, vi isum, vi msum, vf dx, vf acc);

/* The block's share in n rows' results; n, n_sub and largest are constants where this is inlined. */
KN_INLINE void block_rows(const struct codes *c, const uint8_t *const *x, size_t at, int n, int n_sub,
                          int largest, finish_fn *finish, float (*acc)[KN_PANEL],
                          const uint8_t *ahead, int ahead_bytes)
{
    const int n_line = 64 / n_sub, run = kn_min(n_line, KN_RUN(largest));
    const int n_ahead = (ahead_bytes / 64 * run + KN_PARTS * 64 - 1) / (KN_PARTS * 64);
    const struct kn_x256 *a[TILE];

    UNROLL for (int r = 0; r < n; r++)
        a[r] = (const struct kn_x256 *)(x[r] + at);
    for (int part = 0; part < KN_PARTS; part++) {
        vi isum[TILE], msum[TILE], dot[CHAINS * TILE];

        UNROLL for (int r = 0; r < n; r++)
            isum[r] = msum[r] = vi_zero();
        UNROLL for (int line = 0; line < 64; line += CHAINS * run) {
            UNROLL for (int r = 0; r < CHAINS * n; r++)
                dot[r] = vi_zero();
            if (ahead) {
                UNROLL for (int i = 0; i < CHAINS * n_ahead; i++)
                    prefetch(ahead + 64 * i);
                ahead += 64 * CHAINS * n_ahead;
            }
            UNROLL for (int i = 0; i < run; i++) {
                UNROLL for (int h = 0; h < CHAINS; h++) {
                    int at_line = line + h * run + i;
                    vi q = vi_load(c->q[at_line] + part * (int)sizeof(vi));

                    UNROLL for (int r = 0; r < n; r++)
                        dot[h * n + r] = dot_codes(dot[h * n + r], q, vi_spread(a[r]->q + 4 * at_line));
                }
            }
            UNROLL for (int h = 0; h < CHAINS; h++) {
                vi scale = c->scale[part][(line + h * run) / n_line];

                UNROLL for (int r = 0; r < n; r++)
                    isum[r] = dot_fold(isum[r], dot[h * n + r], scale);
            }
        }
        UNROLL for (int i = 0; i < 8; i++) {
            UNROLL for (int r = 0; r < n; r++)
                msum[r] = vi_dot_i16(msum[r], c->min[part][i], vi_spread(a[r]->sum + 2 * i));
        }
        UNROLL for (int r = 0; r < n; r++) {
            float *y = acc[r] + part * KN_LANES;
            vf_store(y, finish(c, part, isum[r], msum[r], vf_set1(a[r]->d), vf_load(y)));
        }
    }
}

static void unpack_q4_k(const void *block, struct codes *c)
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
    for (int line = 0; line < 32; line++) {
        uint8_t *to = c->q[line / 8 * 16 + line % 8];

        for (int i = 0; i < 64; i += (int)sizeof(vi)) {
            vi q = vi_load(w->q[line][0] + i);

            vi_store(to + i, vi_and(q, low));
            vi_store(to + 8 * 64 + i, vi_and(vi_shr(q, 4), low));
        }
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
static void unpack_q6_k(const void *block, struct codes *c)
{
    const struct kn_q6_k_x16 *w = block;
    const vi low = vi_bytes(0x0F), fields = vi_bytes(0x33), high = vi_bytes(0xF0);

    for (int line = 0; line < 32; line++) {
        uint8_t *to = c->q[line / 16 * 32 + line % 16];
        const uint8_t *from = w->qh[line / 16 * 8 + line % 8][0];

        for (int i = 0; i < 64; i += (int)sizeof(vi)) {
            vi q = vi_load(w->ql[line][0] + i), h = vi_load(from + i);

            h = vi_and(line % 16 < 8 ? h : vi_shr(h, 2), fields);
            vi_store(to + i, vi_or(vi_and(q, low), vi_and(vi_shl(h, 4), high)));
            vi_store(to + 16 * 64 + i, vi_or(vi_and(vi_shr(q, 4), low), vi_and(h, high)));
        }
    }
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

typedef void unpack_fn(const void *block, struct codes *c);
typedef void rows_fn(const struct codes *c, const uint8_t *const *x, size_t at, float (*acc)[KN_PANEL], const uint8_t *ahead);

struct block_kind {
    size_t bytes;
    unpack_fn *unpack;
    rows_fn *rows[TILE + 1];              /* for as many activation rows */
};

/* One function per tile size, kept apart so that what is const in one tile is not carried through all. */
#define ROWS(format, n)                                                                           \
    static __attribute__((noinline)) void rows_##format##_##n(                                    \
        const struct codes *c, const uint8_t *const *x, size_t at, float (*acc)[KN_PANEL], const uint8_t *ahead)        \
    {                                                                                             \
        block_rows(c, x, at, n, N_SUB_##format, LARGEST_##format, finish_##format, acc, ahead, sizeof(struct kn_##format##_x16));          \
    }
#define ROWS_ENTRY(format, n) [n] = rows_##format##_##n,

#define N_SUB_q4_k 8
#define N_SUB_q6_k 16
#define LARGEST_q4_k 15
#define LARGEST_q6_k 63
EACH_TILE(ROWS, q4_k)
EACH_TILE(ROWS, q6_k)

static const struct block_kind q4_k = {
    sizeof(struct kn_q4_k_x16), unpack_q4_k, { EACH_TILE(ROWS_ENTRY, q4_k) }
};
static const struct block_kind q6_k = {
    sizeof(struct kn_q6_k_x16), unpack_q6_k, { EACH_TILE(ROWS_ENTRY, q6_k) }
};

/* Every row of the job through every block. */
static void run_blocks(const struct job *j, const struct block_kind *kind)
{
    const int n_tile = kn_ceil_div(j->n, TILE);
    float acc[GROUP][KN_PANEL] __attribute__((aligned(64)));
    struct codes c;

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int b = 0; b < j->n_block; b++) {
        size_t at = (size_t)b * sizeof(struct kn_x256);

        kind->unpack(j->w + (size_t)b * kind->bytes, &c);
        for (int t = 0; t < n_tile; t++) {
            int r0 = t * j->n / n_tile, r1 = (t + 1) * j->n / n_tile;

            kind->rows[r1 - r0](&c, j->x + r0, at, acc + r0, t ? NULL : j->w + (size_t)(b+DIST) * kind->bytes);
        }
    }
    for (int r = 0; r < j->n; r++)
        for (int part = 0; part < KN_PARTS; part++)
            store_lanes(j->y[r], j->n_lane, part, vf_load(acc[r] + part * KN_LANES));
}

static void run_q4_k(const struct job *j) { run_blocks(j, &q4_k); }
static void run_q6_k(const struct job *j) { run_blocks(j, &q6_k); }

/* ---- streams: Q8_0 ----------------------------------------------------------------------------- */

#define TILES_OF(j, tile)                                                       \
    for (int t = 0, n_tile = kn_ceil_div(j->n, TILE); t < n_tile; t++) {        \
        int r0 = t * j->n / n_tile, r1 = (t + 1) * j->n / n_tile;               \
        switch (r1 - r0) {                                                      \
            EACH_TILE(TILE_CASE, tile)                                          \
        }                                                                       \
    }

KN_INLINE void tile_q8_0(const struct job *j, int r0, int n)
{
    const struct kn_q8_0_x16 *w = (const void *)j->w;
    const struct kn_x32 *x[TILE];
    vf acc[KN_PARTS][TILE];

    UNROLL for (int r = 0; r < n; r++) {
        x[r] = (const void *)j->x[r0 + r];
        UNROLL for (int part = 0; part < KN_PARTS; part++)
            acc[part][r] = vf_zero();
    }
    for (int b = 0; b < j->n_block; b++) {
        UNROLL for (int i = 0; i <= (int)sizeof *w / 64; i++)
            prefetch((const uint8_t *)(w + b) + STREAM_AHEAD + 64 * i);
        UNROLL for (int part = 0; part < KN_PARTS; part++) {
            vf d = vf_load_f16(w[b].d + part * KN_LANES);
            vi dot[CHAINS][TILE];

            UNROLL for (int r = 0; r < n; r++) {
                dot[CHAINS - 1][r] = vi_zero();
                dot[0][r] = signed_start(vi_spread(x[r][b].sum));
            }
            UNROLL for (int i = 0; i < 8; i++) {
                vi q = signed_codes(vi_load(w[b].q[i][part * KN_LANES]));

                UNROLL for (int r = 0; r < n; r++)
                    dot[i % CHAINS][r] = signed_dot(dot[i % CHAINS][r], q, vi_spread(x[r][b].q + 4 * i));
            }
            UNROLL for (int r = 0; r < n; r++) {
                vi sum = CHAINS == 1 ? dot[0][r] : vi_add(dot[0][r], dot[CHAINS - 1][r]);

                acc[part][r] = vf_fma(vf_mul(d, vf_set1(x[r][b].d)), vf_from_int(sum), acc[part][r]);
            }
        }
    }
    UNROLL for (int r = 0; r < n; r++) {
        UNROLL for (int part = 0; part < KN_PARTS; part++)
            store_lanes(j->y[r0 + r], j->n_lane, part, acc[part][r]);
    }
}

/* ---- streams: floats --------------------------------------------------------------------------- */

#define REGS 2                            /* weight registers a tile works on: two panels, or one */

typedef vf value_fn(const void *p);       /* KN_LANES rows' values of one k */

KN_INLINE vf value_f32(const void *p)     { return vf_load(p); }
KN_INLINE vf value_f16(const void *p)     { return vf_load_f16(p); }
KN_INLINE vf value_bf16(const void *p)    { return vf_load_bf16(p); }

/* An odd panel at the end is taken twice, and its second results go nowhere. */
KN_INLINE void tile_floats(const struct job *j, int r0, int n, size_t bytes, value_fn *value)
{
    const uint8_t *w[REGS];
    const float *x[TILE];
    vf acc[REGS][TILE];

    UNROLL for (int i = 0; i < REGS; i++) {
        w[i] = j->w + (size_t)kn_min(i / KN_PARTS, j->n_panel - 1) * j->panel_bytes
             + (size_t)(i % KN_PARTS * KN_LANES) * bytes;
    }
    UNROLL for (int r = 0; r < n; r++) {
        x[r] = (const void *)j->x[r0 + r];
        UNROLL for (int i = 0; i < REGS; i++)
            acc[i][r] = vf_zero();
    }
    for (int k = 0; k < j->n_block; k++) {
        vf v[REGS];

        UNROLL for (int i = 0; i < REGS; i++) {
            v[i] = value(w[i] + (size_t)k * KN_PANEL * bytes);
            prefetch(w[i] + (size_t)k * KN_PANEL * bytes + STREAM_AHEAD);
        }
        UNROLL for (int r = 0; r < n; r++) {
            vf a = vf_set1(x[r][k]);

            UNROLL for (int i = 0; i < REGS; i++)
                acc[i][r] = vf_fma(v[i], a, acc[i][r]);
        }
    }
    UNROLL for (int r = 0; r < n; r++) {
        UNROLL for (int i = 0; i < REGS; i++)
            store_lanes(j->y[r0 + r], j->n_lane, i, acc[i][r]);
    }
}

KN_INLINE void tile_f32(const struct job *j, int r0, int n)  { tile_floats(j, r0, n, 4, value_f32); }
KN_INLINE void tile_f16(const struct job *j, int r0, int n)  { tile_floats(j, r0, n, 2, value_f16); }
KN_INLINE void tile_bf16(const struct job *j, int r0, int n) { tile_floats(j, r0, n, 2, value_bf16); }

#define TILE_CASE(tile, n) case n: tile(j, r0, n); break;
static void run_f32(const struct job *j)  { TILES_OF(j, tile_f32) }
static void run_f16(const struct job *j)  { TILES_OF(j, tile_f16) }
static void run_bf16(const struct job *j) { TILES_OF(j, tile_bf16) }
static void run_q8_0(const struct job *j) { TILES_OF(j, tile_q8_0) }

/* ---- the operation ----------------------------------------------------------------------------- */

/* Panels outermost, so that a panel is read from memory once and serves a group of rows from cache. */
void KN_FN(kn_matmul)(const struct kn_matmul *m, int panel0, int panel1)
{
    static const struct { void (*run)(const struct job *); int n_panel; } runs[KN_FORMAT_COUNT] = {
        [KN_F32]  = { run_f32, REGS / KN_PARTS },
        [KN_F16]  = { run_f16, REGS / KN_PARTS },
        [KN_BF16] = { run_bf16, REGS / KN_PARTS },
        [KN_Q8_0] = { run_q8_0, 1 },
        [KN_Q4_K] = { run_q4_k, 1 },
        [KN_Q6_K] = { run_q6_k, 1 },
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
