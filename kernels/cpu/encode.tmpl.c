/* kernels/cpu/encode.tmpl.c - float32 values to blocks of a weight format, with the least squared
 * error that a short search finds.
 *
 * Comes in: any number of whole blocks of values.  Goes out: the blocks as a file has them.  A
 * block depends on its own values only.  Values too large for a block format become the largest it
 * can hold.
 *
 * A lane is a group: the values that share one scale (a sub-block of a k-quant, a whole block of
 * Q8_0). Lanes never meet, so every instruction set gives the same bits.  All groups are written
 *
 *     value = step * code - low               low is 0 where the format has no minimums
 *
 * For given codes the best step and low are a linear least-squares problem; for a given step and
 * low the best codes are the nearest ones.  From there:
 *
 *   1. fit     each group alone, as if steps and lows were real numbers: codes for several ranges
 *              around that of the values, step and low by least squares, the best range wins;
 *   2. unit    a block writes its groups' steps and lows as small integers times one unit each
 *              (d, dmin; half precision): of sixteen units the one that distorts them least;
 *   3. choose  each group takes those integers near its fit whose true error, every value coded
 *              anew, is least;
 *   4. refine  the units are solved for again with all codes fixed, and 3 repeated; a block keeps
 *              the better of what it had and what this gives.
 *
 * Every value's error counts the same: what the activations will be is not known here. */
#ifdef KN_ONE_LANE
#include "kernels/cpu/one_lane.h"
#else
#include "kernels/cpu/simd.h"
#endif
#include "kernels/internal.h"

#define GROUPS    16                        /* worked on together, KN_LANES at a time */
#define LARGEST   0x1p28f                   /* beyond half-precision units; its squares can be summed */
#define HALF_MOST 65504.0f
#define WORST     3e38f                     /* above every error */

/* What a format allows: constants to the compiler wherever a grid is used. */
struct grid {
    int n, per_block;                       /* values of a group, groups of a block */
    float least, most;                      /* codes */
    float sc_most;                          /* the integers are 0..sc_most; with no low, of either sign */
    bool has_low;
    int near;                               /* how far from the fit they are looked for */
    int n_range;                            /* ranges tried: over the values' own there are .. */
    float first, by;                        /* .. first + i * by codes */
};

static const struct grid q4_k = { 32, 8,  0,   15, 63,  true,  1, 16, 13.25f, 0.25f };
static const struct grid q6_k = { 16, 16, -32, 31, 127, false, 6, 16, 28.0f,  0.4f };

/* How each group is written: step is d * sc, low is dmin * m. */
struct written { float d[GROUPS], dmin[GROUPS], sc[GROUPS], m[GROUPS], error[GROUPS]; };

struct groups {
    _Alignas(64) float x[32][GROUPS];       /* value i of each group */
    float sum_x[GROUPS];
    float q[GROUPS], qq[GROUPS], xq[GROUPS];    /* sums over the codes: of q, q * q, x * q */
    float step[GROUPS], low[GROUPS];        /* the best for these codes */
    struct written w;
};

/* ---- lanes ----------------------------------------------------------------------------------- */

/* To the nearest integer, ties to even, for |x| < 2^22. */
KN_INLINE vf nearest(vf x)
{
    const vf magic = vf_set1(0x1.8p23f);
    return vf_sub(vf_add(x, magic), magic);
}

KN_INLINE vf clamp(vf x, float least, float most)
{
    return vf_min(vf_max(x, vf_set1(least)), vf_set1(most));
}

/* a / b, and 0 where b is. */
KN_INLINE vf ratio(vf a, vf b)
{
    vf r = vf_div(a, b), none = vf_zero();
    return vf_select(vf_less(b, none), r, vf_select(vf_less(none, b), r, none));
}

struct sums { vf q, qq, xq; };

/* Over the codes nearest to (x + low) * inverse. */
KN_INLINE struct sums sums_of(const struct grid *f, const float *x, vf inverse, vf low)
{
    struct sums s = { vf_zero(), vf_zero(), vf_zero() };
    for (int i = 0; i < f->n; i++) {
        vf v = vf_load(x + i * GROUPS);
        vf code = nearest(clamp(vf_mul(vf_add(v, low), inverse), f->least, f->most));
        s.q = vf_add(s.q, code);
        s.qq = vf_fma(code, code, s.qq);
        s.xq = vf_fma(v, code, s.xq);
    }
    return s;
}

/* Squared error of the group when every value has the code nearest to it. */
KN_INLINE vf error_of(const struct grid *f, const float *x, vf step, vf low)
{
    vf inverse = ratio(vf_set1(1), step), error = vf_zero();
    for (int i = 0; i < f->n; i++) {
        vf y = vf_add(vf_load(x + i * GROUPS), low);
        vf code = nearest(clamp(vf_mul(y, inverse), f->least, f->most));
        vf e = vf_fnma(step, code, y);
        error = vf_fma(e, e, error);
    }
    return error;
}

/* The best low for codes that sum to q, and a step. */
KN_INLINE vf low_for(const struct grid *f, vf step, vf q, vf sum_x)
{
    vf low = vf_div(vf_sub(vf_mul(step, q), sum_x), vf_set1((float)f->n));
    return f->has_low ? vf_max(low, vf_zero()) : vf_zero();
}

/* The best step and low for codes with these sums. */
KN_INLINE void solve(const struct grid *f, struct sums s, vf sum_x, vf *step, vf *low)
{
    vf n = vf_set1((float)f->n);
    *step = ratio(s.xq, s.qq);
    *low = vf_zero();
    if (f->has_low) {
        vf both = ratio(vf_fnma(sum_x, s.q, vf_mul(n, s.xq)), vf_fnma(s.q, s.q, vf_mul(n, s.qq)));
        *low = low_for(f, both, s.q, sum_x);
        *step = vf_select(vf_less(vf_zero(), *low), both, *step);
    }
}

KN_INLINE void keep_sums(struct groups *p, int g, struct sums s, vf step, vf low)
{
    vf_store(p->q + g, s.q);
    vf_store(p->qq + g, s.qq);
    vf_store(p->xq + g, s.xq);
    vf_store(p->step + g, step);
    vf_store(p->low + g, low);
}

/* ---- 1. fit ---------------------------------------------------------------------------------- */

/* The values' range: with a low that of the values and 0; without one the largest value becomes
 * the least code, which is the largest. */
KN_INLINE vf range_of(const struct grid *f, struct groups *p, int g, vf *low)
{
    const float *x = &p->x[0][g];
    vf least = vf_zero(), most = vf_load(x), sum = vf_zero();
    for (int i = 0; i < f->n; i++) {
        vf v = vf_load(x + i * GROUPS);
        least = vf_min(least, v);
        most = vf_max(most, v);
        sum = vf_add(sum, v);
    }
    vf_store(p->sum_x + g, sum);
    vf negated = vf_sub(vf_zero(), least);
    *low = f->has_low ? negated : vf_zero();
    if (f->has_low)
        return vf_add(most, negated);
    return vf_select(vf_less(negated, most), vf_sub(vf_zero(), most), negated);
}

/* What codes leave is sum(x^2) less what they explain; the most explained is the best. */
KN_INLINE void fit(const struct grid *f, struct groups *p, int g)
{
    vf low0, unit = ratio(vf_set1(1), range_of(f, p, g, &low0)), sum_x = vf_load(p->sum_x + g);
    struct sums best = { vf_zero(), vf_zero(), vf_zero() };
    vf best_step = vf_zero(), best_low = vf_zero(), most = vf_set1(-1);
    for (int c = 0; c < f->n_range; c++) {
        vf step, low, inverse = vf_mul(unit, vf_set1(f->first + (float)c * f->by));
        struct sums s = sums_of(f, &p->x[0][g], inverse, low0);
        solve(f, s, sum_x, &step, &low);
        vf explained = vf_fnma(low, sum_x, vf_mul(step, s.xq));
        vm better = vf_less(most, explained);
        most = vf_select(better, explained, most);
        best.q = vf_select(better, s.q, best.q);
        best.qq = vf_select(better, s.qq, best.qq);
        best.xq = vf_select(better, s.xq, best.xq);
        best_step = vf_select(better, step, best_step);
        best_low = vf_select(better, low, best_low);
    }
    keep_sums(p, g, best, best_step, best_low);
}

/* ---- 2. unit --------------------------------------------------------------------------------- */

static float half(float x)
{
    return kn_f16_to_f32(kn_f32_to_f16(x < HALF_MOST ? x : HALF_MOST));
}

/* The unit in which n numbers are best written as integers up to most: here a lane is a unit. */
static float best_unit(const float *value, const float *weight, int n, float most)
{
    float top = 0, unit[16], loss[16];
    uint16_t bits[16];
    for (int i = 0; i < n; i++) {
        float size = value[i] < 0 ? -value[i] : value[i];
        top = size > top ? size : top;
    }
    for (int c = 0; c < 16; c++) {
        float x = top / (most + 0.5f - (float)c * (most / 128));
        unit[c] = x < HALF_MOST ? x : HALF_MOST;
    }
    for (int c = 0; c < 16; c += KN_LANES)
        vf_store_f16(bits + c, vf_load(unit + c));
    for (int c = 0; c < 16; c += KN_LANES) {
        vf u = vf_load_f16(bits + c), inverse = ratio(vf_set1(1), u), sum = vf_zero();
        for (int i = 0; i < n; i++) {
            vf v = vf_set1(value[i]);
            vf e = vf_fnma(u, nearest(clamp(vf_mul(v, inverse), -most, most)), v);
            sum = vf_fma(vf_mul(e, vf_set1(weight[i])), e, sum);
        }
        vf_store(loss + c, sum);
    }
    int best = 0;
    for (int c = 1; c < 16; c++)
        best = loss[c] < loss[best] ? c : best;
    return kn_f16_to_f32(bits[best]);
}

/* Units of the block whose groups begin at g.  A step's error costs what its codes spread, since
 * the low makes up for their mean; a low's costs the same for every value. */
KN_INLINE void units(const struct grid *f, struct groups *p, int g)
{
    float weight[GROUPS], low[GROUPS], n = (float)f->n;
    for (int i = 0; i < f->per_block; i++)
        weight[i] = f->has_low ? p->qq[g + i] - p->q[g + i] * p->q[g + i] / n : p->qq[g + i];
    float d = best_unit(p->step + g, weight, f->per_block, f->sc_most), dmin = 0;
    if (f->has_low) {
        for (int i = 0; i < f->per_block; i++) {
            float sc = d > 0 ? (float)(int)(p->step[g + i] / d + 0.5f) : 0;
            sc = sc < f->sc_most ? sc : f->sc_most;
            low[i] = (d * sc * p->q[g + i] - p->sum_x[g + i]) / n;
            low[i] = low[i] > 0 ? low[i] : 0;
            weight[i] = n;
        }
        dmin = best_unit(low, weight, f->per_block, 63);
    }
    for (int i = 0; i < f->per_block; i++) {
        p->w.d[g + i] = d;
        p->w.dmin[g + i] = dmin;
    }
}

/* ---- 3. choose ------------------------------------------------------------------------------- */

struct choice { vf sc, m, error; };

KN_INLINE struct choice better_of(struct choice a, struct choice b)
{
    vm other = vf_less(b.error, a.error);
    return (struct choice){ vf_select(other, b.sc, a.sc), vf_select(other, b.m, a.m),
                            vf_select(other, b.error, a.error) };
}

KN_INLINE void choose(const struct grid *f, struct groups *p, int g)
{
    const float *x = &p->x[0][g];
    vf d = vf_load(p->w.d + g), dmin = vf_load(p->w.dmin + g), q = vf_load(p->q + g);
    vf sum_x = vf_load(p->sum_x + g), inverse = ratio(vf_set1(1), dmin);
    vf sc0 = nearest(vf_mul(vf_load(p->step + g), ratio(vf_set1(1), d)));
    struct choice best = { vf_zero(), vf_zero(), vf_set1(WORST) };
    for (int i = -f->near; i <= f->near; i++) {
        struct choice c;
        c.sc = clamp(vf_add(sc0, vf_set1((float)i)), f->has_low ? 0 : -f->sc_most, f->sc_most);
        vf step = vf_mul(d, c.sc), m0 = vf_mul(low_for(f, step, q, sum_x), inverse);
        m0 = nearest(clamp(m0, 0, 63));
        for (int k = f->has_low ? -1 : 0; k <= (f->has_low ? 1 : 0); k++) {
            c.m = clamp(vf_add(m0, vf_set1((float)k)), 0, 63);
            c.error = error_of(f, x, step, vf_mul(dmin, c.m));
            best = better_of(best, c);
        }
    }
    vf_store(p->w.sc + g, best.sc);
    vf_store(p->w.m + g, best.m);
    vf_store(p->w.error + g, best.error);
}

/* ---- 4. refine ------------------------------------------------------------------------------- */

/* Sums of the codes as chosen, and the step and low that would be best for them. */
KN_INLINE void sum_up(const struct grid *f, struct groups *p, int g)
{
    vf step = vf_mul(vf_load(p->w.d + g), vf_load(p->w.sc + g)), low;
    vf chosen = vf_mul(vf_load(p->w.dmin + g), vf_load(p->w.m + g));
    struct sums s = sums_of(f, &p->x[0][g], ratio(vf_set1(1), step), chosen);
    solve(f, s, vf_load(p->sum_x + g), &step, &low);
    keep_sums(p, g, s, step, low);
}

/* The block's units for its codes and integers as they are: least squares in two unknowns. */
KN_INLINE void solve_units(const struct grid *f, struct groups *p, int g)
{
    float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0, d = 0, dmin = 0;
    for (int i = g; i < g + f->per_block; i++) {
        float sc = p->w.sc[i], m = p->w.m[i];
        aa += sc * sc * p->qq[i];
        ab -= sc * m * p->q[i];
        bb += m * m * (float)f->n;
        ax += sc * p->xq[i];
        bx -= m * p->sum_x[i];
    }
    float det = aa * bb - ab * ab;
    if (det > 0) {
        d = (ax * bb - bx * ab) / det;
        dmin = (bx * aa - ax * ab) / det;
    }
    if (!(det > 0) || dmin < 0) {
        d = aa > 0 ? ax / aa : 0;
        dmin = 0;
    }
    for (int i = g; i < g + f->per_block; i++) {
        p->w.d[i] = half(d > 0 ? d : 0);
        p->w.dmin[i] = half(dmin);
    }
}

static float block_error(const float *error, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += error[i];
    return sum;
}

/* The block at g goes back to what it was where that was no worse. */
KN_INLINE void keep_better(const struct grid *f, struct written *now, const struct written *was,
                           int g)
{
    size_t bytes = (size_t)f->per_block * sizeof(float);
    if (block_error(now->error + g, f->per_block) < block_error(was->error + g, f->per_block))
        return;
    memcpy(now->d + g, was->d + g, bytes);
    memcpy(now->dmin + g, was->dmin + g, bytes);
    memcpy(now->sc + g, was->sc + g, bytes);
    memcpy(now->m + g, was->m + g, bytes);
}

/* All of it, for the sixteen groups in p.  A second refinement would take off 0.1 % more. */
KN_INLINE void search(const struct grid *f, struct groups *p)
{
    for (int g = 0; g < GROUPS; g += KN_LANES)
        fit(f, p, g);
    for (int g = 0; g < GROUPS; g += f->per_block)
        units(f, p, g);
    for (int g = 0; g < GROUPS; g += KN_LANES) {
        choose(f, p, g);
        sum_up(f, p, g);
    }
    struct written was = p->w;
    for (int g = 0; g < GROUPS; g += f->per_block)
        solve_units(f, p, g);
    for (int g = 0; g < GROUPS; g += KN_LANES)
        choose(f, p, g);
    for (int g = 0; g < GROUPS; g += f->per_block)
        keep_better(f, &p->w, &was, g);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Sixteen groups of n values; what is missing of them is zero. */
KN_INLINE void load_groups(struct groups *p, const float *x, int n, size_t n_value)
{
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)(g * n + i);
            float v = at < n_value ? x[at] : 0;
            p->x[i][g] = v > LARGEST ? LARGEST : v < -LARGEST ? -LARGEST : v;
        }
}

/* Values become codes, counted from the least one: those that the group's error was taken with. */
KN_INLINE void to_codes(const struct grid *f, struct groups *p)
{
    for (int g = 0; g < GROUPS; g += KN_LANES) {
        vf inverse = ratio(vf_set1(1), vf_mul(vf_load(p->w.d + g), vf_load(p->w.sc + g)));
        vf low = vf_mul(vf_load(p->w.dmin + g), vf_load(p->w.m + g));
        for (int i = 0; i < f->n; i++) {
            vf code = vf_mul(vf_add(vf_load(&p->x[i][g]), low), inverse);
            code = nearest(clamp(code, f->least, f->most));
            vf_store(&p->x[i][g], vf_sub(code, vf_set1(f->least)));
        }
    }
}

static uint8_t code_of(const struct groups *p, int g, int i) { return (uint8_t)(int)p->x[i][g]; }

static void pack_q4_k(const struct groups *p, int g, struct kn_q4_k *b)
{
    memset(b->sc, 0, sizeof b->sc);
    b->d = kn_f32_to_f16(p->w.d[g]);
    b->dmin = kn_f32_to_f16(p->w.dmin[g]);
    for (int s = 0; s < 8; s++)
        kn_q4_k_scale_put(b, s, (int)p->w.sc[g + s], (int)p->w.m[g + s]);
    for (int s = 0; s < 8; s += 2)
        for (int i = 0; i < 32; i++)
            b->q[16 * s + i] = (uint8_t)(code_of(p, g + s, i) | code_of(p, g + s + 1, i) << 4);
}

static void pack_q6_k(const struct groups *p, struct kn_q6_k *b)
{
    b->d = kn_f32_to_f16(p->w.d[0]);
    for (int s = 0; s < 16; s++)
        b->sc[s] = (int8_t)(int)p->w.sc[s];
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 32; l++) {
            int g = 8 * h + l / 16, i = l % 16;         /* values 32 apart are two groups apart */
            int c0 = code_of(p, g, i), c1 = code_of(p, g + 2, i);
            int c2 = code_of(p, g + 4, i), c3 = code_of(p, g + 6, i);
            b->ql[64 * h + l] = (uint8_t)((c0 & 15) | (c2 & 15) << 4);
            b->ql[64 * h + 32 + l] = (uint8_t)((c1 & 15) | (c3 & 15) << 4);
            b->qh[32 * h + l] = (uint8_t)(c0 >> 4 | c1 >> 4 << 2 | c2 >> 4 << 4 | c3 >> 4 << 6);
        }
}

static void encode_q4_k(const float *x, size_t n_block, struct kn_q4_k *b)
{
    struct groups p;
    for (size_t i = 0; i < n_block; i += 2) {
        size_t n = n_block - i < 2 ? 1 : 2;
        load_groups(&p, x + 256 * i, 32, 256 * n);
        search(&q4_k, &p);
        to_codes(&q4_k, &p);
        for (size_t k = 0; k < n; k++)
            pack_q4_k(&p, (int)k * 8, b + i + k);
    }
}

static void encode_q6_k(const float *x, size_t n_block, struct kn_q6_k *b)
{
    struct groups p;
    for (size_t i = 0; i < n_block; i++) {
        load_groups(&p, x + 256 * i, 16, 256);
        search(&q6_k, &p);
        to_codes(&q6_k, &p);
        pack_q6_k(&p, b + i);
    }
}

/* ---- Q8_0: one step, every half-precision number near the range's own tried ------------------ */

static const struct grid q8_0 = { .n = 32, .least = -127, .most = 127 };
#define BELOW 8                             /* bits of the step, in units of its last place */
#define TRIED 20

KN_INLINE void best_steps(struct groups *p, uint16_t step[GROUPS])
{
    uint16_t bits[GROUPS];
    float least[GROUPS], error[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        float top = 0;
        least[g] = WORST;
        for (int i = 0; i < 32; i++) {
            float size = p->x[i][g] < 0 ? -p->x[i][g] : p->x[i][g];
            top = size > top ? size : top;
        }
        top /= 127;
        int middle = kn_f32_to_f16(top < HALF_MOST ? top : HALF_MOST);
        step[g] = bits[g] = (uint16_t)kn_max(0, kn_min(middle - BELOW, 0x7BFF - TRIED + 1));
    }
    for (int c = 0; c < TRIED; c++) {
        for (int g = 0; g < GROUPS; g += KN_LANES)
            vf_store(error + g, error_of(&q8_0, &p->x[0][g], vf_load_f16(bits + g), vf_zero()));
        for (int g = 0; g < GROUPS; g++) {
            if (error[g] < least[g]) {
                least[g] = error[g];
                step[g] = bits[g];
            }
            bits[g]++;
        }
    }
}

static void encode_q8_0(const float *x, size_t n_block, struct kn_q8_0 *b)
{
    struct groups p;
    uint16_t step[GROUPS];
    for (size_t i = 0; i < n_block; i += GROUPS) {
        size_t n = n_block - i < GROUPS ? n_block - i : GROUPS;
        load_groups(&p, x + 32 * i, 32, 32 * n);
        best_steps(&p, step);
        for (int g = 0; g < GROUPS; g++) {
            p.w.d[g] = kn_f16_to_f32(step[g]);
            p.w.sc[g] = 1;
            p.w.dmin[g] = p.w.m[g] = 0;
        }
        to_codes(&q8_0, &p);
        for (size_t g = 0; g < n; g++) {
            b[i + g].d = step[g];
            for (int k = 0; k < 32; k++)
                b[i + g].q[k] = (int8_t)(code_of(&p, (int)g, k) - 127);
        }
    }
}

/* ---- MXFP4: the exponent of the largest value's own, or the next one up, which clips nothing -------- */

#define E2M1_MOST 12.0f                     /* codes are twice the format's values: whole numbers */

/* The nearest of 0 1 2 3 4 6 8 12, with x's sign: the gap doubles at 4 and at 8. */
KN_INLINE vf nearest_e2m1(vf x)
{
    const vf two = vf_set1(2), four = vf_set1(4);
    vf y = clamp(x, -E2M1_MOST, E2M1_MOST), size = vf_max(y, vf_sub(vf_zero(), y));
    vf near = nearest(y), far = vf_mul(four, nearest(vf_div(y, four)));
    vf middle = vf_mul(two, nearest(vf_div(y, two)));
    return vf_select(vf_less(size, four), near, vf_select(vf_less(size, vf_set1(8)), middle, far));
}

KN_INLINE vf error_e2m1(const float *x, vf inverse, vf step)
{
    vf error = vf_zero();
    for (int i = 0; i < 32; i++) {
        vf v = vf_load(x + i * GROUPS);
        vf e = vf_fnma(step, nearest_e2m1(vf_mul(v, inverse)), v);
        error = vf_fma(e, e, error);
    }
    return error;
}

/* The exponents of sixteen blocks; p->w.d becomes what values are multiplied by to be codes.  Steps are
 * powers of two, 2^-127 and above, so their inverses are exact. */
KN_INLINE void best_exponents(struct groups *p, uint8_t exponent[GROUPS])
{
    float least[GROUPS], error[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        uint32_t top = 0;
        least[g] = WORST;
        for (int i = 0; i < 32; i++) {
            uint32_t bits;
            memcpy(&bits, &p->x[i][g], sizeof bits);
            bits = bits << 1 >> 24;
            top = bits > top ? bits : top;
        }
        exponent[g] = top > 2 ? (uint8_t)(top - 2) : 1;         /* the largest becomes 8 to 16 steps */
    }
    for (uint8_t up = 0; up < 2; up++) {
        float step[GROUPS], inverse[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            step[g] = kn_mxfp4_step((uint8_t)(exponent[g] + up));
            inverse[g] = 1 / step[g];
        }
        for (int g = 0; g < GROUPS; g += KN_LANES)
            vf_store(error + g, error_e2m1(&p->x[0][g], vf_load(inverse + g), vf_load(step + g)));
        for (int g = 0; g < GROUPS; g++)
            if (error[g] < least[g]) {
                least[g] = error[g];
                p->w.m[g] = up;
                p->w.d[g] = inverse[g];
            }
    }
    for (int g = 0; g < GROUPS; g++)
        exponent[g] = (uint8_t)(exponent[g] + (int)p->w.m[g]);
}

static uint8_t nibble_of(float code)
{
    static const uint8_t nibble[13] = { 0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7 };
    return code < 0 ? (uint8_t)(nibble[(int)-code] | 8) : nibble[(int)code];
}

static void encode_mxfp4(const float *x, size_t n_block, struct kn_mxfp4 *b)
{
    struct groups p;
    uint8_t exponent[GROUPS];
    for (size_t i = 0; i < n_block; i += GROUPS) {
        size_t n = n_block - i < GROUPS ? n_block - i : GROUPS;
        load_groups(&p, x + 32 * i, 32, 32 * n);
        best_exponents(&p, exponent);
        for (int k = 0; k < 32; k++)
            for (int g = 0; g < GROUPS; g += KN_LANES)
                vf_store(&p.x[k][g], nearest_e2m1(vf_mul(vf_load(&p.x[k][g]), vf_load(p.w.d + g))));
        for (size_t g = 0; g < n; g++) {
            b[i + g].e = exponent[g];
            for (int k = 0; k < 16; k++)
                b[i + g].q[k] = (uint8_t)(nibble_of(p.x[k][g]) | nibble_of(p.x[k + 16][g]) << 4);
        }
    }
}

/* ---- all formats ----------------------------------------------------------------------------- */

void KN_FN(kn_encode)(enum kn_format f, const float *x, size_t n, void *blocks)
{
    uint16_t *half_out = blocks;
    size_t n_block = n / (size_t)kn_format_info(f)->block_values;
    kn_assert(n % (size_t)kn_format_info(f)->block_values == 0);
    switch (f) {
    case KN_F32:
        memcpy(blocks, x, n * sizeof *x);
        break;
    case KN_F16:
        for (size_t i = 0; i < n; i++)
            half_out[i] = kn_f32_to_f16(x[i]);
        break;
    case KN_BF16:
        for (size_t i = 0; i < n; i++)
            half_out[i] = kn_f32_to_bf16(x[i]);
        break;
    case KN_Q8_0:
        encode_q8_0(x, n_block, blocks);
        break;
    case KN_Q4_K:
        encode_q4_k(x, n_block, blocks);
        break;
    case KN_Q6_K:
        encode_q6_k(x, n_block, blocks);
        break;
    case KN_MXFP4:
        encode_mxfp4(x, n_block, blocks);
        break;
    default:
        kn_assert(!"a format without an encoder");
    }
}
