/* kernels/cpu/matmul_float.tmpl.c - products of float weights: k ascending, one fma each, in groups of 256.
 *
 * F32 is used in place, and so are F16, BF16 and FP8 for the rows of one tile.  For more rows these three are widened to
 * float once for all rows of the job, 128 k at a time, into a few KiB that stay in the L1 cache.  Row r has its sum in
 * acc[r]; a group of which only a part is computed has its in acc[GROUP + r]. */
#include "kernels/cpu/simd_matmul.h"

#define PAIR  FLOAT_PANELS
#define CHUNK 128 /* k widened at a time: 16 KiB */
#define WIDE  (KN_PANEL * sizeof(float))
#define HALF  (KN_PANEL * sizeof(uint16_t))
#define AHEAD 4096 /* prefetch distance of weights in place, in bytes */

/* Panel p of a job's PAIR panels.  If the job has only one, it is used twice; the second sums are not stored. */
KN_INLINE const uint8_t *panel_of_pair(const struct job *j, int p)
{
    return j->w + (size_t)kn_min(p, j->n_panel - 1) * j->panel_bytes;
}

typedef vf load_fn(const void *w);

KN_INLINE vf load_f32(const void *w) { return vf_load(w); }
KN_INLINE vf load_f16(const void *w) { return vf_load_f16(w); }
KN_INLINE vf load_bf16(const void *w) { return vf_load_bf16(w); }

KN_INLINE void add_k(const uint8_t *const w[PAIR], int size, load_fn *load, const float *const *x, int k, int n,
                     vf (*acc)[TILE])
{
    vf v[2];

    UNROLL
    for (int i = 0; i < 2; i++)
        v[i] = load(w[i / KN_PARTS] + (k * KN_PANEL + i % KN_PARTS * KN_LANES) * size);
    UNROLL
    for (int r = 0; r < n; r++) {
        vf a = vf_set1(x[r][k]);

        UNROLL
        for (int i = 0; i < 2; i++)
            acc[i][r] = vf_fma(v[i], a, acc[i][r]);
    }
}

/* Adds all groups of weights of `size` bytes in the panels. */
KN_INLINE void rows_in_place(const struct tile *t, int n, int size, load_fn *load)
{
    const uint8_t *w[PAIR];
    const float *x[TILE];

    UNROLL
    for (int p = 0; p < PAIR; p++)
        w[p] = panel_of_pair(t->job, p);
    UNROLL
    for (int r = 0; r < n; r++)
        x[r] = (const void *)t->x[r];
    for (int left = t->n_step; left > 0; left -= KN_GROUP) {
        vf acc[2][TILE];
        const int n_k = kn_min(left, KN_GROUP);
        int k = 0;

        UNROLL
        for (int i = 0; i < 2 * n; i++)
            acc[i % 2][i / 2] = vf_zero();
        for (; k + 2 <= n_k; k += 2) {
            UNROLL
            for (int i = 0; i < PAIR * size / 2; i++) /* the lines that two k fill */
                prefetch(w[i % PAIR] + k * KN_PANEL * size + i / PAIR * 64 + AHEAD);
            add_k(w, size, load, x, k, n, acc);
            add_k(w, size, load, x, k + 1, n, acc);
        }
        if (k < n_k)
            add_k(w, size, load, x, k, n, acc);
        UNROLL
        for (int p = 0; p < PAIR; p++)
            w[p] += KN_GROUP * KN_PANEL * size;
        UNROLL
        for (int r = 0; r < n; r++) {
            x[r] += KN_GROUP;
            UNROLL
            for (int i = 0; i < 2; i++)
                add_to(t->acc[r] + i * KN_LANES, acc[i][r]);
        }
    }
}

/* Weights widened to float, and the panels that they come from. */
struct wide {
    uint8_t w[PAIR][CHUNK * WIDE];
    const uint8_t *from[PAIR];
};

/* Adds a part of a group, t->n_step widened k.  Eight activation rows leave few registers for addresses: so the
 * prefetched address is a single pointer, with which each tile prefetches its share of the next chunk. */
KN_INLINE void rows_wide(const struct tile *t, int n)
{
    const struct wide *wide = t->w;
    const int n_k = t->n_step;
    const int k0 = (int)(t->at / sizeof(float));
    const bool begins = k0 % KN_GROUP == 0, ends = !begins || k0 + n_k == t->job->n_in;
    const size_t share = HALF * (size_t)n_k / (size_t)t->of, stride = PAIR * HALF / (size_t)t->of;
    const uint8_t *w[PAIR];
    const float *x[TILE];
    vf acc[2][TILE];

    UNROLL
    for (int p = 0; p < PAIR; p++)
        w[p] = wide->w[p];
    UNROLL
    for (int r = 0; r < n; r++) {
        x[r] = (const void *)(t->x[r] + t->at);
        UNROLL
        for (int i = 0; i < 2; i++)
            acc[i][r] = begins ? vf_zero() : vf_load(t->acc[GROUP + r] + i * KN_LANES);
    }
    for (int p = 0; p < PAIR; p++) {
        const uint8_t *ahead = wide->from[p] + CHUNK * HALF + (size_t)t->i * share;
        const int end = (p + 1) * n_k / PAIR;
        int k = p * n_k / PAIR;

        for (; k + 2 <= end; k += 2, ahead += 2 * stride) {
            prefetch(ahead);
            add_k(w, sizeof(float), load_f32, x, k, n, acc);
            add_k(w, sizeof(float), load_f32, x, k + 1, n, acc);
        }
        if (k < end)
            add_k(w, sizeof(float), load_f32, x, k, n, acc);
    }
    UNROLL
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            if (ends)
                add_to(t->acc[r] + i * KN_LANES, acc[i][r]);
            else
                vf_store(t->acc[GROUP + r] + i * KN_LANES, acc[i][r]);
        }
    }
}

#define STEP_K (4 / KN_PARTS) /* k of a panel that fill four registers */

/* kn_e4m3_part() of STEP_K * KN_PANEL codes; a register has KN_LANES in turn. */
KN_INLINE void load_parts(const uint8_t *q, vf v[4])
{
#if defined(__AVX512VBMI__)
    /* The upper two bytes of 64 floats are looked up; then 16 lanes at a time get both. */
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vi both = vi_or(vi_shl(lane, 16), vi_shl(lane, 24));
    const uint8_t *t = kn_e4m3_bytes[0];
    vi code = vi_load(q), low = _mm512_permutex2var_epi8(vi_load(t), code, vi_load(t + 64));
    vi high = _mm512_permutex2var_epi8(vi_load(t + 128), code, vi_load(t + 192));

    high = _mm512_ternarylogic_epi32(high, code, vi_bytes(0x80), 0xF8); /* high | (code & 0x80) */
    UNROLL
    for (int i = 0; i < 4; i++) {
        vi from = vi_add(both, vi_set1((0x40 + 16 * i) << 24 | (16 * i) << 16));

        v[i] = vf_bits(_mm512_maskz_permutex2var_epi8(UINT64_C(0xCCCCCCCCCCCCCCCC), low, from, high));
    }
#else
    UNROLL
    for (int i = 0; i < 4; i += 2)
        vf_load_e4m3_parts(q + i * KN_LANES, v + i);
#endif
}

#define FP8_SIDE(n) ((n) <= 2 ? 2 : 1) /* groups at once: the sums of one group of so few rows wait for each other */

/* Adds `side` groups of n_block blocks each; w: the panels' blocks, x: the rows' activations. */
KN_INLINE void groups_fp8(const struct tile *t, const struct kn_fp8_x16 *const w[PAIR], const float *const *x, int side,
                          int n_block, int n)
{
    vf acc[2][2][TILE];

    UNROLL
    for (int i = 0; i < 4 * n; i++)
        acc[i % 2][i / 2 % 2][i / 4] = vf_zero();
    for (int b = 0; b < n_block; b++) {
        vf d[2][2];

        UNROLL
        for (int i = 0; i < 2 * side; i++)
            d[i / 2][i % 2] = vf_mul(vf_set1(256.0f),
                                     vf_load(w[i % 2 / KN_PARTS][i / 2 * 2 + b].d + i % 2 % KN_PARTS * KN_LANES));
        for (int k = 0; k < 128; k += STEP_K) {
            UNROLL
            for (int i = 0; i < PAIR * side; i++) {
                const int g = i / PAIR;
                const uint8_t *q = w[i % PAIR][2 * g + b].q[k];
                vf v[4];

                prefetch(q + 2 * side * sizeof *w[0]);
                load_parts(q, v);
                UNROLL
                for (int j = 0; j < 4; j++) {
                    const int half = i % PAIR + j % KN_PARTS;

                    v[j] = vf_mul(d[g][half], v[j]);
                    UNROLL
                    for (int r = 0; r < n; r++)
                        acc[g][half][r] = vf_fma(v[j], vf_set1(x[r][g * KN_GROUP + 128 * b + k + j / KN_PARTS]),
                                                 acc[g][half][r]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < 2 * side; i++) {
        UNROLL
        for (int r = 0; r < n; r++)
            add_to(t->acc[r] + i % 2 * KN_LANES, acc[i / 2][i % 2][r]);
    }
}

/* Adds all groups of FP8 blocks in the panels; the last may be one block. */
KN_INLINE void rows_fp8(const struct tile *t, int n)
{
    const struct kn_fp8_x16 *w[PAIR];
    const float *x[TILE];

    UNROLL
    for (int p = 0; p < PAIR; p++)
        w[p] = (const void *)panel_of_pair(t->job, p);
    UNROLL
    for (int r = 0; r < n; r++)
        x[r] = (const void *)t->x[r];
    for (int left = t->n_step; left > 0;) {
        const int side = left >= FP8_SIDE(n) * KN_GROUP ? FP8_SIDE(n) : 1;

        if (FP8_SIDE(n) == 2 && side == 2)
            groups_fp8(t, w, x, 2, 2, n);
        else
            groups_fp8(t, w, x, 1, kn_min(left, KN_GROUP) / 128, n);
        left -= side * KN_GROUP;
        UNROLL
        for (int p = 0; p < PAIR; p++)
            w[p] += 2 * side;
        UNROLL
        for (int r = 0; r < n; r++)
            x[r] += side * KN_GROUP;
    }
}

KN_INLINE void rows_f32(const struct tile *t, int n) { rows_in_place(t, n, sizeof(float), load_f32); }
KN_INLINE void rows_f16(const struct tile *t, int n) { rows_in_place(t, n, sizeof(uint16_t), load_f16); }
KN_INLINE void rows_bf16(const struct tile *t, int n) { rows_in_place(t, n, sizeof(uint16_t), load_bf16); }

TILES(rows_f32)
TILES(rows_f16)
TILES(rows_bf16)
TILES(rows_fp8)
TILES(rows_wide)

static void run_in_place(const struct job *j, tile_fn *const *tiles)
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    each_tile(&(struct tile){ .job = j, .n_step = j->n_in }, acc, tiles, TILE);
    store_sums(j, acc);
}

KN_INLINE void run_halves(const struct job *j, load_fn *load)
{
    float acc[2 * GROUP][ACC] __attribute__((aligned(64)));
    struct wide wide __attribute__((aligned(64)));
    struct tile t = { .job = j, .w = &wide };

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int k0 = 0; k0 < j->n_in; k0 += CHUNK) {
        t.at = (size_t)k0 * sizeof(float);
        t.n_step = kn_min(CHUNK, j->n_in - k0);
        for (int p = 0; p < PAIR; p++) {
            const uint16_t *from = (const void *)(panel_of_pair(j, p) + (size_t)k0 * HALF);
            float *to = (void *)wide.w[p];

            for (int i = 0; i < t.n_step * KN_PANEL; i += KN_LANES)
                vf_store(to + i, load(from + i));
            wide.from[p] = (const void *)from;
        }
        each_tile(&t, acc, rows_wide_tiles, TILE);
    }
    store_sums(j, acc);
}

/* The row functions prefetch for 2-byte weights.  FP8 has one byte per weight, so here they prefetch each cache line
 * about twice: four and two blocks before its use. */
static void run_fp8(const struct job *j)
{
    float acc[2 * GROUP][ACC] __attribute__((aligned(64)));
    struct wide wide __attribute__((aligned(64)));
    struct tile t = { .job = j, .w = &wide, .n_step = CHUNK };

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int b = 0; b < j->n_in / CHUNK; b++) {
        t.at = (size_t)b * CHUNK * sizeof(float);
        for (int p = 0; p < PAIR; p++) {
            const struct kn_fp8_x16 *from = (const struct kn_fp8_x16 *)(const void *)panel_of_pair(j, p) + b;

            float *to = (float *)(void *)wide.w[p];
            vf d[KN_PARTS], v[4];

            UNROLL
            for (int part = 0; part < KN_PARTS; part++)
                d[part] = vf_mul(vf_set1(256.0f), vf_load(from->d + part * KN_LANES));
            for (int k = 0; k < CHUNK; k += STEP_K, to += 4 * KN_LANES) {
                load_parts(from->q[k], v);
                UNROLL
                for (int i = 0; i < 4; i++)
                    vf_store(to + i * KN_LANES, vf_mul(d[i % KN_PARTS], v[i]));
            }
            wide.from[p] = (const void *)from;
        }
        each_tile(&t, acc, rows_wide_tiles, TILE);
    }
    store_sums(j, acc);
}

void KN_FN(kn_job_floats)(const struct job *j)
{
    const bool few = j->n <= TILE;

    if (j->format == KN_F32)
        run_in_place(j, rows_f32_tiles);
    else if (j->format == KN_FP8 && few)
        run_in_place(j, rows_fp8_tiles);
    else if (j->format == KN_FP8)
        run_fp8(j);
    else if (j->format == KN_F16 && few)
        run_in_place(j, rows_f16_tiles);
    else if (j->format == KN_F16)
        run_halves(j, load_f16);
    else if (few)
        run_in_place(j, rows_bf16_tiles);
    else
        run_halves(j, load_bf16);
}
