/* kernels/cpu/attention.tmpl.c - one row's attention over one KV head, per instruction set.
 *
 * Equal to kn_attend in cpu/reference.c bit for bit.  The query heads that share a KV head are worked on
 * together, so that a key or value is read and widened once for all of them: rows of TILE positions are
 * staged as floats in the nearest cache, then every head runs over them out of registers.
 *
 * Bytes and operations at d_head 128, f16, 8 heads: a position is 512 bytes and 2048 products, 128 fma of
 * 16 lanes.  At 12 GB/s and 3 GHz per core the bytes take 128 cycles and the products 64, so a long past
 * runs at the speed of DRAM, and prefill, whose keys are in the cache, at that of the arithmetic.
 *
 *   scores   a register holds 16 (8) of a dot product's 64 accumulators; NP dot products run at once and
 *            their trees are finished together (sum_quads), 16 (8) scores to a register
 *   weights  a register is 16 (8) positions of the chunk; the 64 are the 64 accumulators of their sum
 *   values   a register is 16 (8) of a head's outputs; positions ascend, each e is broadcast */
#include "kernels/cpu/simd_math.h"
#include "kernels/internal.h"

#include <math.h>

#define TILE  16                                         /* positions staged at once */
#define GROUP 16                                         /* heads worked on at once */
#define AHEAD 32                                         /* positions between asking and staging */
#define NP    KN_QUADS                                   /* dot products at once */
#define PART  (KN_ACCS / 4)                              /* passes over them: 4 accumulators each */

struct heads { float most[GROUP], sum[GROUP]; };         /* what the outputs are relative to */

/* Rows are padded to whole sets of 64 accumulators.  A query's padding is -0, a staged row's +0: their
 * product is -0, which leaves every accumulator as it is, even one that holds -0. */
struct work {
    const struct kn_attend *a;
    int n_q, d_pad, n_merged;                            /* heads, padded d_head, chunks so far */
    float *out;                                          /* [n_q][d_head] */
    struct heads so_far, chunk;                          /* of all chunks, of this one */
    _Alignas(64) float e[GROUP][KN_CHUNK];                            /* scores, then weights */
    _Alignas(64) float row[TILE * KN_MAX_D_HEAD];                     /* [TILE][d_pad] keys or values */
    _Alignas(64) float q[GROUP * KN_MAX_D_HEAD];                      /* [n_q][d_pad] */
    _Alignas(64) float o[GROUP * KN_MAX_D_HEAD];                      /* [n_q][d_pad] of this chunk */
    _Alignas(64) float total[GROUP * KN_MAX_D_HEAD];                  /* [n_q][d_pad] of all so far */
};

/* ---- staging ----------------------------------------------------------------------------------- */

/* n halves to floats; asks for as many at next, to be staged a while later. */
KN_INLINE void stage_f16(const uint16_t *from, const uint16_t *next, int n, float *to)
{
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        _mm_prefetch(next + i, _MM_HINT_T0);
        _mm_prefetch(next + i + 32, _MM_HINT_T0);
        for (int j = i; j < i + 64; j += KN_LANES) vf_store(to + j, vf_load_f16(from + j));
    }
    if (i < n) _mm_prefetch(next + i, _MM_HINT_T0);
    for (; i + KN_LANES <= n; i += KN_LANES) vf_store(to + i, vf_load_f16(from + i));
    if (i < n) {
        uint16_t last[KN_LANES] = {0};
        memcpy(last, from + i, (size_t)(n - i) * sizeof *from);
        vf_store(to + i, vf_load_f16(last));
    }
}

KN_INLINE void stage_f32(const float *from, const float *next, int n, float *to)
{
    for (int i = 0; i < n; i += 16) _mm_prefetch(next + i, _MM_HINT_T0);
    memcpy(to, from, (size_t)n * sizeof *to);
}

KN_INLINE size_t slot_of(const struct kn_attend *a, int p)
{
    return (size_t)(p < a->n_base ? a->base[p] : a->tail[p - a->n_base]);
}

/* Positions lo..hi-1 of one tile to rows of w->row; row 0 is the tile's first position, seen or not. */
static void stage(struct work *w, const void *rows, int lo, int hi)
{
    const struct kn_attend a = *w->a;                    /* a copy: no store below can change it */
    size_t d_head = (size_t)a.d_head, d_pad = (size_t)w->d_pad;
    float *to = w->row + (size_t)(lo % TILE) * d_pad;
    for (int p = lo; p < hi; p++, to += d_pad) {
        size_t at = slot_of(&a, p) * d_head, next = slot_of(&a, kn_min(p + AHEAD, a.last)) * d_head;
        if (a.kv == KN_KV_F16)
            stage_f16((const uint16_t *)rows + at, (const uint16_t *)rows + next, a.d_head, to);
        else
            stage_f32((const float *)rows + at, (const float *)rows + next, a.d_head, to);
    }
}

/* ---- scores ------------------------------------------------------------------------------------ */

/* NP dot products of q with rows that lie 4 apart, each down to 4 lanes, side by side. */
KN_INLINE vf dot_quads(const float *q, const float *row, int d_pad)
{
    vf dot[NP];
    for (int part = 0; part < PART; part++) {
        vf acc[NP][4];
        for (int k = 0; k < NP; k++)
            for (int j = 0; j < 4; j++) acc[k][j] = vf_zero();
        for (int d = part * KN_LANES; d < d_pad; d += 64) {
            for (int j = 0; j < 4; j++) {
                int at = d + j * PART * KN_LANES;
                vf v = vf_load(q + at);
                for (int k = 0; k < NP; k++)
                    acc[k][j] = vf_fma(v, vf_load(row + 4 * k * d_pad + at), acc[k][j]);
            }
        }
        for (int k = 0; k < NP; k++) {
            vf sum = vf_add(vf_add(acc[k][0], acc[k][2]), vf_add(acc[k][1], acc[k][3]));
            dot[k] = part == 0 ? sum : vf_add(dot[k], sum);
        }
    }
    return fold_to_quads(dot);
}

static void score_tile(struct work *w, int tile)
{
    vf scale = vf_set1(w->a->scale);
    for (int h = 0; h < w->n_q; h++) {
        const float *q = w->q + h * w->d_pad;
        for (int p = 0; p < TILE; p += KN_LANES) {
            vf quad[4];
            for (int k = 0; k < 4; k++)
                quad[k] = dot_quads(q, w->row + (p + k) * w->d_pad, w->d_pad);
            vf_store(&w->e[h][tile * TILE + p], vf_mul(scale, sum_quads(quad)));
        }
    }
}

/* Scores of the chunk's positions lo..hi-1 to weights relative to their maximum; the others to +0.
 * An unseen position is first given the score of a seen one: that leaves the maximum alone, and unlike
 * minus infinity it does not underflow in exp, which costs the processor a detour. */
static void weigh(struct work *w, int lo, int hi)
{
    for (int h = 0; h < w->n_q; h++) {
        float *e = w->e[h];
        for (int p = 0; p < lo; p++) e[p] = e[lo];
        for (int p = hi; p < KN_CHUNK; p++) e[p] = e[lo];

        vf most = vf_set1(-HUGE_VALF), weight[KN_ACCS];
        for (int j = 0; j < KN_ACCS; j++) most = vf_max(vf_load(e + j * KN_LANES), most);
        w->chunk.most[h] = vf_largest(most);
        most = vf_set1(w->chunk.most[h]);
        for (int j = 0; j < KN_ACCS; j++)
            vf_store(e + j * KN_LANES, vf_exp(vf_sub(vf_load(e + j * KN_LANES), most)));

        for (int p = 0; p < lo; p++) e[p] = 0;
        for (int p = hi; p < KN_CHUNK; p++) e[p] = 0;
        for (int j = 0; j < KN_ACCS; j++) weight[j] = vf_load(e + j * KN_LANES);
        w->chunk.sum[h] = sum_accumulators(weight);
    }
}

/* ---- values ------------------------------------------------------------------------------------ */

/* n_head heads by n_reg registers of outputs, over n_row positions.  Both counts are constants. */
KN_INLINE void add_values(float *o, int o_stride, const float *e, const float *row, int row_stride,
                          int n_row, int n_head, int n_reg)
{
    vf acc[4][4];
    for (int h = 0; h < n_head; h++)
        for (int j = 0; j < n_reg; j++) acc[h][j] = vf_load(o + h * o_stride + j * KN_LANES);
    for (int p = 0; p < n_row; p++, row += row_stride) {
        vf v[4];
        for (int j = 0; j < n_reg; j++) v[j] = vf_load(row + j * KN_LANES);
        for (int h = 0; h < n_head; h++)
            for (int j = 0; j < n_reg; j++)
                acc[h][j] = vf_fma(vf_set1(e[h * KN_CHUNK + p]), v[j], acc[h][j]);
    }
    for (int h = 0; h < n_head; h++)
        for (int j = 0; j < n_reg; j++) vf_store(o + h * o_stride + j * KN_LANES, acc[h][j]);
}

#define N_REG (KN_LANES == 16 ? 4 : 2)                   /* 4 heads by N_REG fill the registers */

/* Positions lo..hi-1 of the chunk, all of one tile. */
static void add_tile(struct work *w, int lo, int hi)
{
    int step = N_REG * KN_LANES, d_pad = w->d_pad, h = 0;
    const float *row = w->row + lo % TILE * d_pad;
    for (; h + 4 <= w->n_q; h += 4)
        for (int d = 0; d < w->a->d_head; d += step)
            add_values(w->o + h * d_pad + d, d_pad, &w->e[h][lo], row + d, d_pad, hi - lo, 4, N_REG);
    for (; h < w->n_q; h++)
        for (int d = 0; d < w->a->d_head; d += step)
            add_values(w->o + h * d_pad + d, d_pad, &w->e[h][lo], row + d, d_pad, hi - lo, 1, N_REG);
}

/* ---- chunks ------------------------------------------------------------------------------------ */

static void merge(struct work *w)
{
    float keep[GROUP], take[GROUP];
    for (int h = 0; h < GROUP; h += KN_LANES) {
        vf old = vf_load(w->so_far.most + h), new = vf_load(w->chunk.most + h);
        vf most = vf_max(new, old), k = vf_exp(vf_sub(old, most)), t = vf_exp(vf_sub(new, most));
        vf sum = vf_fma(vf_load(w->chunk.sum + h), t, vf_mul(vf_load(w->so_far.sum + h), k));
        vf_store(w->so_far.most + h, most);
        vf_store(w->so_far.sum + h, sum);
        vf_store(keep + h, k);
        vf_store(take + h, t);
    }
    for (int h = 0; h < w->n_q; h++) {
        vf k = vf_set1(keep[h]), t = vf_set1(take[h]);
        float *total = w->total + h * w->d_pad;
        const float *o = w->o + h * w->d_pad;
        for (int d = 0; d < w->a->d_head; d += KN_LANES)
            vf_store(total + d, vf_fma(vf_load(o + d), t, vf_mul(vf_load(total + d), k)));
    }
}

/* Positions lo..hi-1, all of one chunk. */
static void attend_chunk(struct work *w, int lo, int hi)
{
    int base = lo / KN_CHUNK * KN_CHUNK;
    for (int p = lo / TILE * TILE; p < hi; p += TILE) {
        stage(w, w->a->k, kn_max(p, lo), kn_min(p + TILE, hi));
        score_tile(w, (p - base) / TILE);
    }
    weigh(w, lo - base, hi - base);
    memset(w->o, 0, (size_t)(w->n_q * w->d_pad) * sizeof *w->o);
    for (int p = lo / TILE * TILE; p < hi; p += TILE) {
        int from = kn_max(p, lo), to = kn_min(p + TILE, hi);
        stage(w, w->a->v, from, to);
        add_tile(w, from - base, to - base);
    }
    if (w->n_merged++ > 0) {
        merge(w);
        return;
    }
    w->so_far = w->chunk;
    memcpy(w->total, w->o, (size_t)(w->n_q * w->d_pad) * sizeof *w->o);
}

static void attend_group(struct work *w, const float *q)
{
    const struct kn_attend *a = w->a;
    for (int h = 0; h < w->n_q; h++) {
        float *to = w->q + h * w->d_pad;
        memcpy(to, q + h * a->d_head, (size_t)a->d_head * sizeof *q);
        for (int d = a->d_head; d < w->d_pad; d++) to[d] = -0.0f;
    }
    for (int lo = a->first; lo <= a->last;) {
        int hi = kn_min(a->last, lo / KN_CHUNK * KN_CHUNK + KN_CHUNK - 1) + 1;
        attend_chunk(w, lo, hi);
        lo = hi;
    }
    for (int h = 0; h < w->n_q; h++) {
        vf sum = vf_set1(w->so_far.sum[h]);
        for (int d = 0; d < a->d_head; d += KN_LANES)
            store_some(w->out + h * a->d_head + d, vf_div(vf_load(w->total + h * w->d_pad + d), sum),
                       a->d_head - d);
    }
}

void KN_FN(kn_attend)(const struct kn_attend *a)
{
    kn_assert(a->n_q <= KN_MAX_Q && a->d_head <= KN_MAX_D_HEAD && a->first <= a->last);
    struct work w;
    w.a = a;
    w.d_pad = (int)kn_align_up((size_t)a->d_head, 64);
    memset(&w.chunk, 0, sizeof w.chunk);
    memset(w.row, 0, (size_t)(TILE * w.d_pad) * sizeof *w.row);
    for (int h = 0; h < a->n_q; h += GROUP) {
        w.n_q = kn_min(GROUP, a->n_q - h);
        w.n_merged = 0;
        w.out = a->out + h * a->d_head;
        attend_group(&w, a->q + h * a->d_head);
    }
}
