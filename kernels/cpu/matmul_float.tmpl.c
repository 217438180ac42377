/* kernels/cpu/matmul_float.tmpl.c - products of float weights: k ascending, one fma each.
 *
 * F32 is used in place.  F16 and BF16 are widened to float once for all rows of the job, 64 or 128 k at a time,
 * into a few KiB that stay in the L1 cache; FP8 is widened in the same way, a block (128 k) at a time. */
#include "kernels/cpu/simd_matmul.h"

#define PAIR  FLOAT_PANELS
#define CHUNK 128 /* most k widened at a time: 16 KiB */
#define WIDE  (KN_PANEL * sizeof(float))
#define HALF  (KN_PANEL * sizeof(uint16_t))
#define AHEAD 4096 /* prefetch distance in F32, in bytes */

/* Panel p of a job's PAIR panels.  If the job has only one, it is used twice; the second sums are not stored. */
KN_INLINE const uint8_t *panel_of_pair(const struct job *j, int p)
{
    return j->w + (size_t)kn_min(p, j->n_panel - 1) * j->panel_bytes;
}

/* Weights widened to float, and the panels that they come from. */
struct wide {
    uint8_t w[PAIR][CHUNK * WIDE];
    const uint8_t *from[PAIR];
};

/* F32 is used in place, the other formats from a struct wide.  Eight activation rows leave few registers for
 * addresses: so the prefetched address is at a fixed distance (F32), or a single pointer, with which each
 * tile prefetches its share of the next chunk. */
KN_INLINE void rows_floats(const struct tile *t, int n, bool f32)
{
    const struct wide *wide = t->w;
    const struct job *j = t->job;
    const uint8_t *w[PAIR];
    const int n_k = t->n_step;
    const size_t share = HALF * (size_t)n_k / (size_t)t->of, stride = PAIR * HALF / (size_t)t->of;
    const float *x[TILE];
    vf acc[2][TILE];

    UNROLL
    for (int p = 0; p < PAIR; p++)
        w[p] = f32 ? panel_of_pair(j, p) : wide->w[p];
    UNROLL
    for (int r = 0; r < n; r++) {
        x[r] = (const void *)(t->x[r] + t->at);
        UNROLL
        for (int i = 0; i < 2; i++)
            acc[i][r] = vf_load(t->acc[r] + i * KN_LANES);
    }
    for (int p = 0; p < PAIR; p++) {
        const uint8_t *ahead = f32 ? w[p] : wide->from[p] + CHUNK * HALF + (size_t)t->i * share;

        for (int k = p * n_k / PAIR; k < (p + 1) * n_k / PAIR; k++, ahead += stride) {
            vf v[2];

            UNROLL
            for (int i = 0; i < 2; i++)
                v[i] = vf_load((const float *)(const void *)(w[i / KN_PARTS] + (size_t)k * WIDE) +
                               i % KN_PARTS * KN_LANES);
            if (f32) {
                UNROLL
                for (int i = 0; i < PAIR; i++)
                    prefetch(w[i] + (size_t)k * WIDE + AHEAD);
            } else {
                prefetch(ahead);
            }
            UNROLL
            for (int r = 0; r < n; r++) {
                vf a = vf_set1(x[r][k]);

                UNROLL
                for (int i = 0; i < 2; i++)
                    acc[i][r] = vf_fma(v[i], a, acc[i][r]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int i = 0; i < 2; i++)
            vf_store(t->acc[r] + i * KN_LANES, acc[i][r]);
    }
}

KN_INLINE void rows_f32(const struct tile *t, int n) { rows_floats(t, n, true); }
KN_INLINE void rows_halves(const struct tile *t, int n) { rows_floats(t, n, false); }

TILES(rows_f32)
TILES(rows_halves)

static void run_f32(const struct job *j)
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    each_tile(&(struct tile){ .job = j, .n_step = j->n_block }, acc, rows_f32_tiles, TILE);
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
        each_tile(&t, acc, rows_halves_tiles, TILE);
    }
    store_sums(j, acc);
}

/* The row functions prefetch for 2-byte weights.  FP8 has one byte per weight, so here they prefetch each cache line
 * about twice: four and two blocks before its use. */
static void run_fp8(const struct job *j)
{
    float acc[GROUP][ACC] __attribute__((aligned(64)));
    struct wide wide __attribute__((aligned(64)));
    struct tile t = { .job = j, .w = &wide, .n_step = CHUNK };

    memset(acc, 0, (size_t)j->n * sizeof acc[0]);
    for (int b = 0; b < j->n_block; b++) {
        t.at = (size_t)b * CHUNK * sizeof(float);
        for (int p = 0; p < PAIR; p++) {
            const struct kn_fp8_x16 *from = (const struct kn_fp8_x16 *)(const void *)panel_of_pair(j, p) + b;

            for (int part = 0; part < KN_PARTS; part++) {
                const vf d = vf_mul(vf_set1(256.0f), vf_load(from->d + part * KN_LANES));
                float *to = (float *)(void *)wide.w[p] + part * KN_LANES;

                for (int k = 0; k < CHUNK; k++)
                    vf_store(to + k * KN_PANEL, vf_mul(d, vf_load_e4m3_part(from->q[k] + part * KN_LANES)));
            }
            wide.from[p] = (const void *)from;
        }
        each_tile(&t, acc, rows_halves_tiles, TILE);
    }
    store_sums(j, acc);
}

void KN_FN(kn_job_floats)(const struct job *j)
{
    if (j->format == KN_F32)
        run_f32(j);
    else if (j->format == KN_F16)
        run_halves(j, vf_load_f16);
    else if (j->format == KN_FP8)
        run_fp8(j);
    else
        run_halves(j, vf_load_bf16);
}
