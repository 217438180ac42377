/* kernels/cpu/simd_matmul.h - shared by the product kernels: jobs and tiles.
 *
 * matmul.tmpl.c cuts a product into jobs: one panel (two for floats with AVX-512) and up to GROUP activation
 * rows.  Each kind of format has a file that does a job: matmul_256 and matmul_32 for blocks of 256 and 32
 * values, matmul_float for floats.  A job cuts its activation rows into tiles, so that the sums of a tile fit
 * the registers.  Each tile size has a function of its own, so the cost of a tile is proportional to its size.
 *
 * These functions take most of the compile time, so each is short: loops over a tile's rows are
 * unrolled, since rows are registers; loops along the row of weights are not. */
#ifndef KERNELS_CPU_SIMD_MATMUL_H
#define KERNELS_CPU_SIMD_MATMUL_H

#include "kernels/cpu/simd.h"
#include "kernels/internal.h"

#if KN_LANES == 16
#define TILE             8     /* activation rows of a tile, all with sums in registers */
#define WIDE_TILE        16    /* the same in jobs of several tiles, where each row has only one sum register */
#define HOLD(run)        (run) /* of `run` lines of codes, the number that stay in registers with such a tile */
#define GROUP_256        24    /* GROUP for blocks of 256: above 28 rows, a row takes a Zen 5 1.5 times as long */
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6) X(of, 7) X(of, 8)
/* The tile sizes that occur when more than TILE rows are cut evenly. */
#define EACH_WIDE_TILE(X, of) X(of, 8) X(of, 9) X(of, 10) X(of, 11) X(of, 12) X(of, 13) X(of, 14) X(of, 15) X(of, 16)
#else
#define TILE                  6
#define WIDE_TILE             TILE
#define HOLD(run)             1
#define GROUP_256             GROUP
#define EACH_TILE(X, of)      X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6)
#define EACH_WIDE_TILE(X, of) X(of, 3) X(of, 4) X(of, 5) X(of, 6)
#endif
#define GROUP 64             /* most activation rows of a job: they share unpacked weights */
#define ACC   (2 * KN_PANEL) /* sums per activation row */

/* Arrays of vf or vi stay in registers only if the loops over them are unrolled.  Sanitizer builds need no
 * speed, and would compile for minutes: there, one function with the same body handles tiles of any size. */
#define ROLLED _Pragma("GCC unroll 1")
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#define ANY_TILE
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Makes the compiler load values again after this point, because keeping them all in registers would push
 * sums out of registers. */
KN_INLINE void forget_loads(void) { __asm__ volatile("" : : : "memory"); }

/* Makes the compiler keep instructions before this point before it: it would move all prefetches of a block to one
 * place. */
KN_INLINE void keep_order(void) { __asm__ volatile(""); }

/* One panel, or two, and up to GROUP activation rows. */
struct job {
    enum kn_format format;
    const uint8_t *w;
    const uint8_t *x[GROUP];
    float *y[GROUP];
    size_t panel_bytes;
    int n, n_in, n_block, n_panel;
    int n_lane; /* rows of weights: 16 per panel, fewer in a matrix's last panel */
    float scale;
};

void KN_FN(kn_job_256)(const struct job *j);
void KN_FN(kn_job_32)(const struct job *j);
void KN_FN(kn_job_floats)(const struct job *j);
#define FLOAT_PANELS (2 / KN_PARTS) /* panels of a float job: its sums fill two registers */

/* A part of a job: some blocks (for floats some k) of the panel, for some of the job's activation rows. */
struct tile {
    const struct job *job;
    const void *w;           /* weights: in the panel, or unpacked */
    const uint8_t *const *x; /* the rows; this tile starts at byte `at` of each */
    size_t at;
    float (*acc)[ACC]; /* sums of the rows so far */
    int n;             /* number of rows */
    int i, of;         /* this is tile i of `of` over the same weights */
    int ask0, ask1;    /* this tile prefetches parts ask0..ask1-1 of 64 of the next weights */
    int n_step;        /* blocks of 32, or k of floats */
};

typedef void tile_fn(const struct tile *t);

/* Makes a function of body(t, n) for each tile size n.  With all sizes in one function, the constants of one size would
 * use registers that another needs. */
#ifdef ANY_TILE
#define TILE_BODIES(each, body)                                                                                        \
    static void body##_any(const struct tile *t) { body(t, t->n); }
#define TILE_ENTRY(body, n) [n] = body##_any,
#else
#define TILE_BODY(body, n)                                                                                             \
    static __attribute__((noinline)) void body##_##n(const struct tile *t) { body(t, n); }
#define TILE_BODIES(each, body) each(TILE_BODY, body)
#define TILE_ENTRY(body, n)     [n] = body##_##n,
#endif
#define TILES(body)                                                                                                    \
    TILE_BODIES(EACH_TILE, body)                                                                                       \
    static tile_fn *const body##_tiles[TILE + 1] = { EACH_TILE(TILE_ENTRY, body) };
#define WIDE_TILES(body)                                                                                               \
    TILE_BODIES(EACH_WIDE_TILE, body)                                                                                  \
    static tile_fn *const body##_tiles[WIDE_TILE + 1] = { EACH_WIDE_TILE(TILE_ENTRY, body) };

/* Makes t the i-th of `of` tiles of its job, with sums in acc.  It divides, which is slow: a caller with only one tile
 * should call it once, not in each step. */
static inline void set_tile(struct tile *t, float (*acc)[ACC], int i, int of)
{
    const struct job *j = t->job;
    int from = i * j->n / of;

    t->i = i;
    t->of = of;
    t->n = (i + 1) * j->n / of - from;
    t->ask0 = 64 * i / of;
    t->ask1 = 64 * (i + 1) / of;
    t->x = j->x + from;
    t->acc = acc + from;
}

/* Does one step (t->n_step blocks or k) for all rows of the job, in tiles of about equal size, at most `most` rows.
 * The caller sets the fields of t that set_tile() does not set.  t is not copied: compilers copy by whole registers,
 * and a processor cannot load a register from words that were just stored until they have left the store buffer, so no
 * block would overlap with the previous one. */
static inline void each_tile(struct tile *t, float (*acc)[ACC], tile_fn *const *tiles, int most)
{
    const int n_tile = kn_ceil_div(t->job->n, most);

    for (int i = 0; i < n_tile; i++) {
        set_tile(t, acc, i, n_tile);
        tiles[t->n](t);
    }
}

/* Adds to a sum in memory, after a group. */
KN_INLINE void add_to(float *sum, vf group) { vf_store(sum, vf_add(vf_load(sum), group)); }

static inline void store_sums(const struct job *j, float (*acc)[ACC])
{
    const vf scale = vf_set1(j->scale);

    for (int r = 0; r < j->n; r++) {
        for (int lane = 0; lane < j->n_lane; lane += KN_LANES)
            vf_store_n(j->y[r] + lane, vf_mul(vf_load(acc[r] + lane), scale), kn_min(j->n_lane - lane, KN_LANES));
    }
}

KN_INLINE void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
KN_INLINE void prefetch_far(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T2); }

/* n rows are computed in groups of abreast(n), so that the latencies of a group's sums overlap.  A group has up to TILE
 * rows, and all have about equal size. */
KN_INLINE int abreast(int n) { return kn_ceil_div(n, kn_ceil_div(n, TILE)); }

#endif
