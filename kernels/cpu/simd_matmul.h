/* kernels/cpu/simd_matmul.h - what the bodies of products share: the work they are given, and tiles.
 *
 * A product's work is cut into jobs, of a panel and up to GROUP activation rows, by matmul.tmpl.c.  One
 * file for each way of coding weights does a job: matmul_256 and matmul_32 for blocks of so many
 * values, matmul_float for floats.  They cut its rows into tiles whose sums fit the registers; a tile
 * of any size costs in proportion, for each size has a function of its own.
 *
 * Those functions are what takes a compiler's time.  So each is short: loops over a tile's rows are
 * unrolled, since rows are registers, and loops along the row of weights are not. */
#ifndef KERNELS_CPU_SIMD_MATMUL_H
#define KERNELS_CPU_SIMD_MATMUL_H

#include "kernels/cpu/simd.h"
#include "kernels/internal.h"

#if KN_LANES == 16
#define TILE 8                            /* activation rows whose sums fit the registers, */
#define WIDE_TILE 16                      /* when a row has but one */
#define HOLD(run) (run)                   /* lines of codes that stay in registers meanwhile */
#define GROUP_256 24                      /* with blocks of 256: each of more than 28 takes a Zen 5 half as long again */
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6) X(of, 7) X(of, 8)
/* The sizes that more than TILE rows fall into. */
#define EACH_WIDE_TILE(X, of) \
    X(of, 8) X(of, 9) X(of, 10) X(of, 11) X(of, 12) X(of, 13) X(of, 14) X(of, 15) X(of, 16)
#else
#define TILE 6
#define WIDE_TILE TILE
#define HOLD(run) 1
#define GROUP_256 GROUP
#define EACH_TILE(X, of) X(of, 1) X(of, 2) X(of, 3) X(of, 4) X(of, 5) X(of, 6)
#define EACH_WIDE_TILE(X, of) X(of, 3) X(of, 4) X(of, 5) X(of, 6)
#endif
#define GROUP 64                          /* activation rows that share what is unpacked */
#define ACC (2 * KN_PANEL)                /* sums kept for an activation row */

/* Arrays of registers are registers only when the loops over them are unrolled; code under a
 * sanitizer is not meant to be fast, and would take minutes to compile: there one function does tiles
 * of any size, by the same body. */
#define ROLLED _Pragma("GCC unroll 1")
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#define ANY_TILE
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* What was loaded before is loaded again after: keeps the compiler from carrying so much in registers
 * that sums leave them. */
KN_INLINE void forget_loads(void) { __asm__ volatile("" : : : "memory"); }

/* A panel, or two, and up to GROUP activation rows. */
struct job {
    enum kn_format format;
    const uint8_t *w;
    const uint8_t *x[GROUP];
    float *y[GROUP];
    size_t panel_bytes;
    int n, n_block, n_panel;
    int n_lane;                           /* 16 a panel, fewer in a matrix's last */
};

void KN_FN(kn_job_256)(const struct job *j);
void KN_FN(kn_job_32)(const struct job *j);
void KN_FN(kn_job_floats)(const struct job *j);
#define FLOAT_PANELS (2 / KN_PARTS)       /* panels of a job of floats: their rows fill two registers */

/* A step of the work: some k of the panel, some of the activation rows. */
struct tile {
    const struct job *job;
    const void *w;                        /* what was unpacked, if something was */
    const uint8_t *const *x;              /* the rows, which start at byte `at` */
    size_t at;
    float (*acc)[ACC];                    /* their sums so far */
    int n;                                /* how many rows */
    int i, of;                            /* which of the tiles over the same weights, */
    int ask0, ask1;                       /* and of 64 parts of the step those to ask for what is next in */
    int n_step;                           /* blocks of 32, k of floats */
};

typedef void tile_fn(const struct tile *t);

/* body(t, n) made a function for each n; apart, so that one n's constants crowd no other's
 * registers. */
#ifdef ANY_TILE
#define TILE_BODIES(each, body) static void body##_any(const struct tile *t) { body(t, t->n); }
#define TILE_ENTRY(body, n) [n] = body##_any,
#else
#define TILE_BODY(body, n) \
    static __attribute__((noinline)) void body##_##n(const struct tile *t) { body(t, n); }
#define TILE_BODIES(each, body) each(TILE_BODY, body)
#define TILE_ENTRY(body, n) [n] = body##_##n,
#endif
#define TILES(body)              \
    TILE_BODIES(EACH_TILE, body) \
    static tile_fn *const body##_tiles[TILE + 1] = { EACH_TILE(TILE_ENTRY, body) };
#define WIDE_TILES(body)              \
    TILE_BODIES(EACH_WIDE_TILE, body) \
    static tile_fn *const body##_tiles[WIDE_TILE + 1] = { EACH_WIDE_TILE(TILE_ENTRY, body) };

/* The i-th of so many tiles.  It takes divisions, so whoever has but one does this once, not step by step. */
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

/* All rows through one step, in tiles of about equal size, at most `most`.  What t says of the step is the
 * caller's.  It is not copied: compilers copy by whole registers, and to load one over words that were just
 * stored a processor waits until they have left it, so that no block would overlap with the one before. */
static inline void each_tile(struct tile *t, float (*acc)[ACC], tile_fn *const *tiles, int most)
{
    const int n_tile = kn_ceil_div(t->job->n, most);

    for (int i = 0; i < n_tile; i++) {
        set_tile(t, acc, i, n_tile);
        tiles[t->n](t);
    }
}

static inline void store_sums(const struct job *j, float (*acc)[ACC])
{
    for (int r = 0; r < j->n; r++) {
        for (int lane = 0; lane < j->n_lane; lane += KN_LANES)
            vf_store_n(j->y[r] + lane, vf_load(acc[r] + lane), kn_min(j->n_lane - lane, KN_LANES));
    }
}

KN_INLINE void prefetch(const void *p)     { _mm_prefetch((const char *)p, _MM_HINT_T0); }
KN_INLINE void prefetch_far(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T2); }

/* Rows of a tile of n that are taken abreast, so that their sums' latencies hide each other: up to
 * TILE, in groups of about equal size. */
KN_INLINE int abreast(int n) { return kn_ceil_div(n, kn_ceil_div(n, TILE)); }

#endif
