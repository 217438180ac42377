/* kernels/cpu/delta.tmpl.c - one value head of a gated delta net, per instruction set.
 *
 * Equal to kn_delta_scalar in cpu/reference.c bit for bit. Columns of the state are independent, so the
 * columns of two registers (STEP) go through all rows of the call before the next columns do: with many
 * rows these columns stay in the L1 cache, and a single row reads and writes the state once. The 4 accumulators
 * of a sum in 2 registers are 8 chains of fma, enough to fill two ports with a latency of 4 cycles.
 *
 * Bytes and operations at d_key = d_value = 128: 64 KiB read and written, 4 operations for each of
 * 1024 registers of 16 lanes. At 12 GB/s and 3 GHz per core a row takes 32000 cycles with the state
 * in DRAM, 2048 with the state in cache. */
#include "kernels/cpu/simd_math.h"
#include "kernels/internal.h"

#define REGS 2
#define STEP (REGS * KN_LANES) /* columns computed together */

struct columns {
    vf x[REGS];
};

/* Loads n columns, the others 0; n may be 0 or less. */
KN_INLINE struct columns load_columns(const float *p, int n)
{
    struct columns c;
    for (int j = 0; j < REGS; j++) {
        int left = n - j * KN_LANES;
        c.x[j] = left > 0 ? load_some(p + j * KN_LANES, left) : vf_zero();
    }
    return c;
}

KN_INLINE void store_columns(float *p, struct columns c, int n)
{
    for (int j = 0; j < REGS; j++) {
        int left = n - j * KN_LANES;
        if (left > 0)
            store_some(p + j * KN_LANES, c.x[j], left);
    }
}

KN_INLINE struct columns sum_of(vf acc[4][REGS])
{
    struct columns c;
    for (int j = 0; j < REGS; j++)
        c.x[j] = vf_add(vf_add(acc[0][j], acc[2][j]), vf_add(acc[1][j], acc[3][j]));
    return c;
}

/* acc += x * s, where s is one row of the STEP columns. */
KN_INLINE void add_row(vf acc[REGS], vf x, const float *s)
{
    for (int j = 0; j < REGS; j++)
        acc[j] = vf_fma(x, vf_load(s + j * KN_LANES), acc[j]);
}

KN_INLINE struct columns dot(const float *x, const float *s, int d_key)
{
    vf acc[4][REGS];
    for (int a = 0; a < 4; a++)
        for (int j = 0; j < REGS; j++)
            acc[a][j] = vf_zero();
    int i = 0;
    for (; i + 4 <= d_key; i += 4)
        for (int a = 0; a < 4; a++)
            add_row(acc[a], vf_set1(x[i + a]), s + (i + a) * KN_DELTA_TILE);
    for (int a = 0; a < 3; a++)
        if (i + a < d_key)
            add_row(acc[a], vf_set1(x[i + a]), s + (i + a) * KN_DELTA_TILE);
    return sum_of(acc);
}

/* Updates row i of the columns; with `out`, adds q[i] times the new row to acc. */
KN_INLINE void advance(vf acc[REGS], const struct kn_delta_row *r, int i, struct columns e, float *s, bool out)
{
    vf k = vf_set1(r->k[i]), decay = vf_set1(r->decay), q = out ? vf_set1(r->q[i]) : k;
    for (int j = 0; j < REGS; j++) {
        float *p = s + i * KN_DELTA_TILE + j * KN_LANES;
        vf x = vf_fma(k, e.x[j], vf_mul(decay, vf_load(p)));
        vf_store(p, x);
        if (out)
            acc[j] = vf_fma(q, x, acc[j]);
    }
}

KN_INLINE struct columns advance_all(const struct kn_delta_row *r, struct columns e, float *s, int d_key, bool out)
{
    vf acc[4][REGS];
    for (int a = 0; a < 4; a++)
        for (int j = 0; j < REGS; j++)
            acc[a][j] = vf_zero();
    int i = 0;
    for (; i + 4 <= d_key; i += 4)
        for (int a = 0; a < 4; a++)
            advance(acc[a], r, i + a, e, s, out);
    for (int a = 0; a < 3; a++)
        if (i + a < d_key)
            advance(acc[a], r, i + a, e, s, out);
    return sum_of(acc);
}

/* Applies one row r to columns at..at + STEP - 1 of the state; s points to their first row. */
static void run_row(const struct kn_delta *d, const struct kn_delta_row *r, int at, float *s)
{
    struct columns m = dot(r->k, s, d->d_key), v = load_columns(r->v + at, d->d_value - at), e;
    vf decay = vf_set1(r->decay), beta = vf_set1(r->beta);
    for (int j = 0; j < REGS; j++)
        e.x[j] = vf_mul(beta, vf_fnma(decay, m.x[j], v.x[j]));
    if (r->out)
        store_columns(r->out + at, advance_all(r, e, s, d->d_key, true), d->d_value - at);
    else
        advance_all(r, e, s, d->d_key, false);
}

void KN_FN(kn_delta)(const struct kn_delta *d)
{
    int n = (int)kn_align_up((size_t)d->d_value, KN_DELTA_TILE);
    for (int at = 0; at < n; at += STEP) {
        float *tile = d->state + (size_t)(at / KN_DELTA_TILE * KN_DELTA_TILE) * (size_t)d->d_key;
        for (int r = 0; r < d->n_row; r++)
            run_row(d, &d->row[r], at, tile + at % KN_DELTA_TILE);
    }
}
