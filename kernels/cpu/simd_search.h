/* kernels/cpu/simd_search.h - shared by the encoders: a short search for the step, the low and the codes
 * of sixteen groups of values, with the least squared error.
 *
 * A group is the values that share one scale (a sub-block of a k-quant, a whole block of 32); one lane
 * is one group.  Lanes are independent, so every instruction set gives the same bits.  In all formats
 *
 *     value = step * code - low               low is 0 if the format has no minimums
 *
 * where a code is an integer, or in the IQ4 formats one of the sixteen values of KN_IQ4.
 *
 * For given codes the best step and low are a linear least-squares problem; for a given step and
 * low the best codes are the nearest ones.  The search:
 *
 *   1. fit     for each group alone, with real step and low: tries codes for several ranges around
 *              that of the values, with step and low by least squares, and takes the best range;
 *              formats with few codes then alternate new codes and new step and low some times;
 *   2. unit    a block stores its groups' steps as small integers times one unit d, and its lows as
 *              integers times a unit dmin (both in half precision): tries sixteen candidates for each
 *              unit and takes the one that stores the fitted steps or lows most exactly;
 *   3. choose  for each group, of the integers near its fit, takes those with the least squared error,
 *              with the nearest code for each value;
 *   4. refine  solves for the units again with all codes fixed, and repeats 3; a block keeps the
 *              better of both results.
 *
 * A block of 32 is one group with step and low in half precision: 1, then a simpler form of 4 (once()).
 *
 * The squared error of a value counts by the value's weight.  All sums over values are weighted; without weights, each
 * is 1, and every operation gives the bits that it would give without the factor. */
#ifndef KERNELS_CPU_SIMD_SEARCH_H
#define KERNELS_CPU_SIMD_SEARCH_H

#ifdef KN_ONE_LANE
#include "kernels/cpu/one_lane.h"
#else
#include "kernels/cpu/simd.h"
#endif
#include "kernels/internal.h"

#define GROUPS    16      /* searched together, KN_LANES at a time */
#define LARGEST   0x1p28f /* values are cut to this: more than half-precision units can store; squares can be summed */
#define HALF_MOST 65504.0f
#define WORST     3e38f /* above any error */

enum low { NO_LOW, LOW, ANY_LOW }; /* LOW is at least 0, ANY_LOW may be negative */

/* The limits of a format.  low and iq4 are compile-time constants wherever a grid is used. */
struct grid {
    enum low low;
    bool iq4;              /* codes are the values of KN_IQ4 */
    int n, per_block;      /* values per group, groups per block */
    float least, most;     /* smallest and largest code */
    float sc_most, m_most; /* integers: sc 0..sc_most, or with NO_LOW -sc_most..sc_most; m 0..m_most */
    int near;              /* values of sc tried on each side of the fit; m: one */
    int n_range;           /* ranges tried in the fit: in try i < n_range, */
    float first, by;       /* the values' range becomes first + i * by codes */
    int n_again;           /* how often the fit then alternates new codes and new step and low */
};

/* The result for each group: step is d * sc, low is dmin * m. */
struct written {
    float d[GROUPS], dmin[GROUPS], sc[GROUPS], m[GROUPS], error[GROUPS];
};

struct groups {
    _Alignas(64) float x[32][GROUPS];        /* value i of each group */
    _Alignas(64) float weight[32][GROUPS];   /* its weight, above 0 */
    float sum_x[GROUPS], sum_weight[GROUPS]; /* weighted: of the values; of 1 */
    float q[GROUPS], qq[GROUPS], xq[GROUPS]; /* weighted sums over the codes: of q, q * q, x * q */
    float step[GROUPS], low[GROUPS];         /* the best for these codes */
    struct written w;
};

/* ---- lanes ----------------------------------------------------------------------------------- */

/* To the nearest integer, ties to even, for |x| < 2^22. */
KN_INLINE vf nearest(vf x)
{
    const vf magic = vf_set1(0x1.8p23f);
    return vf_sub(vf_add(x, magic), magic);
}

KN_INLINE vf clamp(vf x, float least, float most) { return vf_min(vf_max(x, vf_set1(least)), vf_set1(most)); }

/* a / b, or 0 where b is 0. */
KN_INLINE vf ratio(vf a, vf b)
{
    vf r = vf_div(a, b), none = vf_zero();
    return vf_select(vf_less(b, none), r, vf_select(vf_less(none, b), r, none));
}

/* The code nearest to x; for IQ4 formats the nearest value of KN_IQ4. */
KN_INLINE vf code_for(const struct grid *f, vf x)
{
    static const float value[16] = { KN_IQ4 };
    if (!f->iq4)
        return nearest(clamp(x, f->least, f->most));
    vf code = vf_set1(value[0]);
    for (int i = 1; i < 16; i++)
        code = vf_select(vf_less(vf_set1((value[i - 1] + value[i]) / 2), x), vf_set1(value[i]), code);
    return code;
}

struct sums {
    vf q, qq, xq;
};

/* Sums over the codes nearest to (x + low) * inverse, of the groups from g on. */
KN_INLINE struct sums sums_of(const struct grid *f, const struct groups *p, int g, vf inverse, vf low)
{
    struct sums s = { vf_zero(), vf_zero(), vf_zero() };
    for (int i = 0; i < f->n; i++) {
        vf v = vf_load(&p->x[i][g]);
        vf code = code_for(f, vf_mul(vf_add(v, low), inverse)), part = vf_mul(vf_load(&p->weight[i][g]), code);
        s.q = vf_add(s.q, part);
        s.qq = vf_fma(part, code, s.qq);
        s.xq = vf_fma(v, part, s.xq);
    }
    return s;
}

/* Squared error of each group from g on if every value has its nearest code. */
KN_INLINE vf error_of(const struct grid *f, const struct groups *p, int g, vf step, vf low)
{
    vf inverse = ratio(vf_set1(1), step), error = vf_zero();
    for (int i = 0; i < f->n; i++) {
        vf y = vf_add(vf_load(&p->x[i][g]), low);
        vf code = code_for(f, vf_mul(y, inverse));
        vf e = vf_fnma(step, code, y);
        error = vf_fma(vf_mul(vf_load(&p->weight[i][g]), e), e, error);
    }
    return error;
}

/* The best low for a given step and codes with sum q. */
KN_INLINE vf low_for(const struct grid *f, const struct groups *p, int g, vf step, vf q)
{
    vf low = vf_div(vf_sub(vf_mul(step, q), vf_load(p->sum_x + g)), vf_load(p->sum_weight + g));
    return f->low == ANY_LOW ? low : f->low == LOW ? vf_max(low, vf_zero()) : vf_zero();
}

/* The best step and low for codes with these sums. */
KN_INLINE void solve(const struct grid *f, const struct groups *p, int g, struct sums s, vf *step, vf *low)
{
    vf n = vf_load(p->sum_weight + g), sum_x = vf_load(p->sum_x + g);
    *step = ratio(s.xq, s.qq);
    *low = vf_zero();
    if (f->low) {
        vf both = ratio(vf_fnma(sum_x, s.q, vf_mul(n, s.xq)), vf_fnma(s.q, s.q, vf_mul(n, s.qq)));
        *low = low_for(f, p, g, both, s.q);
        *step = f->low == ANY_LOW ? both : vf_select(vf_less(vf_zero(), *low), both, *step);
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

/* The range of the values.  LOW: from the smaller of 0 and the least value, to the largest; ANY_LOW: from the least
 * value.  In both *low is set so that the range starts at code 0.  NO_LOW: the value of largest magnitude gets the
 * least code, which has the largest magnitude of all codes; the range is negative if this value is positive. */
KN_INLINE vf range_of(const struct grid *f, struct groups *p, int g, vf *low)
{
    const float *x = &p->x[0][g];
    vf most = vf_load(x), least = f->low == ANY_LOW ? most : vf_zero(), sum = vf_zero(), all = vf_zero();
    for (int i = 0; i < f->n; i++) {
        vf v = vf_load(x + i * GROUPS), weight = vf_load(&p->weight[i][g]);
        least = vf_min(least, v);
        most = vf_max(most, v);
        sum = vf_fma(weight, v, sum);
        all = vf_add(all, weight);
    }
    vf_store(p->sum_x + g, sum);
    vf_store(p->sum_weight + g, all);
    vf negated = vf_sub(vf_zero(), least);
    *low = f->low ? negated : vf_zero();
    if (f->low)
        return vf_add(most, negated);
    return vf_select(vf_less(negated, most), vf_sub(vf_zero(), most), negated);
}

/* A fit of step and low to given codes.  Its squared error is sum(weight * x^2) - explained, so the largest explained is
 * best. */
struct fitted {
    struct sums s;
    vf step, low, explained;
};

KN_INLINE struct fitted fit_codes(const struct grid *f, const struct groups *p, int g, vf inverse, vf low)
{
    struct fitted r = { .s = sums_of(f, p, g, inverse, low) };
    solve(f, p, g, r.s, &r.step, &r.low);
    r.explained = vf_fnma(r.low, vf_load(p->sum_x + g), vf_mul(r.step, r.s.xq));
    return r;
}

KN_INLINE struct fitted better_fit(struct fitted a, struct fitted b)
{
    vm other = vf_less(a.explained, b.explained);
    return (struct fitted){ { vf_select(other, b.s.q, a.s.q), vf_select(other, b.s.qq, a.s.qq),
                              vf_select(other, b.s.xq, a.s.xq) },
                            vf_select(other, b.step, a.step),
                            vf_select(other, b.low, a.low),
                            vf_select(other, b.explained, a.explained) };
}

KN_INLINE void fit(const struct grid *f, struct groups *p, int g)
{
    vf low0, unit = ratio(vf_set1(1), range_of(f, p, g, &low0));
    struct fitted best = { { vf_zero(), vf_zero(), vf_zero() }, vf_zero(), vf_zero(), vf_set1(-1) };
    for (int c = 0; c < f->n_range; c++) {
        vf inverse = vf_mul(unit, vf_set1(f->first + (float)c * f->by));
        best = better_fit(best, fit_codes(f, p, g, inverse, low0));
        if (f->iq4) /* IQ4 codes are denser below 0 than above: tries both signs */
            best = better_fit(best, fit_codes(f, p, g, vf_sub(vf_zero(), inverse), low0));
    }
    for (int i = 0; i < f->n_again; i++) {
        vf inverse = ratio(vf_set1(1), best.step);
        best = better_fit(best, fit_codes(f, p, g, inverse, best.low));
    }
    keep_sums(p, g, best.s, best.step, best.low);
}

/* ---- 2. unit --------------------------------------------------------------------------------- */

static float half(float x) { return kn_f16_to_f32(kn_f32_to_f16(x < HALF_MOST ? x : HALF_MOST)); }

/* The unit with which n numbers are best stored as integers up to `most`; a lane is one candidate unit. */
static float best_unit(const float *value, const float *weight, int n, float most)
{
    float top = 0, unit[16], loss[16];
    uint16_t bits[16];
    for (int i = 0; i < n; i++) {
        float size = value[i] < 0 ? -value[i] : value[i];
        top = size > top ? size : top;
    }
    for (int c = 0; c < 16; c++) {
        float x = top / (most + 0.5f - (float)c * ((most + 1) / 128));
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

/* The units of the block with groups g .. g + per_block - 1.  Weights: an error of a step counts by the spread of its
 * codes, since the low compensates their mean; an error of a low counts by the weights of the values. */
KN_INLINE void units(const struct grid *f, struct groups *p, int g)
{
    float weight[GROUPS] = { 0 }, low[GROUPS] = { 0 };
    for (int i = 0; i < f->per_block; i++)
        weight[i] = f->low ? p->qq[g + i] - p->q[g + i] * p->q[g + i] / p->sum_weight[g + i] : p->qq[g + i];
    float d = best_unit(p->step + g, weight, f->per_block, f->sc_most), dmin = 0;
    if (f->low) {
        for (int i = 0; i < f->per_block; i++) {
            float sc = d > 0 ? (float)(int)(p->step[g + i] / d + 0.5f) : 0;
            sc = sc < f->sc_most ? sc : f->sc_most;
            low[i] = (d * sc * p->q[g + i] - p->sum_x[g + i]) / p->sum_weight[g + i];
            low[i] = low[i] > 0 ? low[i] : 0;
            weight[i] = p->sum_weight[g + i];
        }
        dmin = best_unit(low, weight, f->per_block, f->m_most);
    }
    for (int i = 0; i < f->per_block; i++) {
        p->w.d[g + i] = d;
        p->w.dmin[g + i] = dmin;
    }
}

/* ---- 3. choose ------------------------------------------------------------------------------- */

struct choice {
    vf sc, m, error;
};

KN_INLINE struct choice better_of(struct choice a, struct choice b)
{
    vm other = vf_less(b.error, a.error);
    return (struct choice){ vf_select(other, b.sc, a.sc), vf_select(other, b.m, a.m),
                            vf_select(other, b.error, a.error) };
}

KN_INLINE void choose(const struct grid *f, struct groups *p, int g)
{
    vf d = vf_load(p->w.d + g), dmin = vf_load(p->w.dmin + g), q = vf_load(p->q + g);
    vf inverse = ratio(vf_set1(1), dmin);
    vf sc0 = nearest(vf_mul(vf_load(p->step + g), ratio(vf_set1(1), d)));
    struct choice best = { vf_zero(), vf_zero(), vf_set1(WORST) };
    for (int i = -f->near; i <= f->near; i++) {
        struct choice c;
        c.sc = clamp(vf_add(sc0, vf_set1((float)i)), f->low ? 0 : -f->sc_most, f->sc_most);
        vf step = vf_mul(d, c.sc), m0 = vf_mul(low_for(f, p, g, step, q), inverse);
        m0 = nearest(clamp(m0, 0, f->m_most));
        for (int k = f->low ? -1 : 0; k <= (f->low ? 1 : 0); k++) {
            c.m = clamp(vf_add(m0, vf_set1((float)k)), 0, f->m_most);
            c.error = error_of(f, p, g, step, vf_mul(dmin, c.m));
            best = better_of(best, c);
        }
    }
    vf_store(p->w.sc + g, best.sc);
    vf_store(p->w.m + g, best.m);
    vf_store(p->w.error + g, best.error);
}

/* ---- 4. refine ------------------------------------------------------------------------------- */

/* Sums of the chosen codes, and the best real step and low for them. */
KN_INLINE void sum_up(const struct grid *f, struct groups *p, int g)
{
    vf step = vf_mul(vf_load(p->w.d + g), vf_load(p->w.sc + g)), low;
    vf chosen = vf_mul(vf_load(p->w.dmin + g), vf_load(p->w.m + g));
    struct sums s = sums_of(f, p, g, ratio(vf_set1(1), step), chosen);
    solve(f, p, g, s, &step, &low);
    keep_sums(p, g, s, step, low);
}

/* The block's best units for its present codes and integers: least squares with two unknowns. */
KN_INLINE void solve_units(const struct grid *f, struct groups *p, int g)
{
    float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0, d = 0, dmin = 0;
    for (int i = g; i < g + f->per_block; i++) {
        float sc = p->w.sc[i], m = p->w.m[i];
        aa += sc * sc * p->qq[i];
        ab -= sc * m * p->q[i];
        bb += m * m * p->sum_weight[i];
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

/* Returns the block with groups g .. g + per_block - 1 in `now` to its earlier solution `was`, unless its error in
 * `now` is smaller.  The error itself is not copied. */
KN_INLINE void keep_better(const struct grid *f, struct written *now, const struct written *was, int g)
{
    size_t bytes = (size_t)f->per_block * sizeof(float);
    if (block_error(now->error + g, f->per_block) < block_error(was->error + g, f->per_block))
        return;
    memcpy(now->d + g, was->d + g, bytes);
    memcpy(now->dmin + g, was->dmin + g, bytes);
    memcpy(now->sc + g, was->sc + g, bytes);
    memcpy(now->m + g, was->m + g, bytes);
}

/* The whole search, for the sixteen groups in p.  A second refinement would reduce the error by 0.1 % more. */
KN_INLINE void search_all(const struct grid *f, struct groups *p)
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

/* Calls search_all() in one of three places, so that iq4 and low are compile-time constants in each. */
static __attribute__((noinline, unused)) void search(const struct grid *f, struct groups *p)
{
    struct grid g = *f;
    if (g.iq4) {
        g.low = NO_LOW;
        search_all(&g, p);
    } else if (g.low) {
        g.low = LOW;
        search_all(&g, p);
    } else {
        g.low = NO_LOW;
        search_all(&g, p);
    }
}

/* ---- blocks with a single group -------------------------------------------------------------- */

struct pair {
    vf step, low, error;
};

KN_INLINE vf to_half(vf x)
{
    uint16_t bits[KN_LANES];
    vf_store_f16(bits, clamp(x, -HALF_MOST, HALF_MOST));
    return vf_load_f16(bits);
}

/* The best of `best` and three candidates.  Their steps are `step` and step * (1 +- 2^-11), about one unit in the last
 * place, all rounded to half precision; each has the best low, in half precision, for codes with sum q. */
KN_INLINE struct pair better_half(const struct grid *f, const struct groups *p, int g, struct pair best, vf step, vf q)
{
    for (int i = -1; i <= 1; i++) {
        struct pair c = { .step = to_half(vf_fma(step, vf_set1((float)i * 0x1p-11f), step)) };
        c.low = to_half(low_for(f, p, g, c.step, q));
        c.error = error_of(f, p, g, c.step, c.low);
        vm other = vf_less(c.error, best.error);
        best.step = vf_select(other, c.step, best.step);
        best.low = vf_select(other, c.low, best.low);
        best.error = vf_select(other, c.error, best.error);
    }
    return best;
}

/* The search for sixteen blocks of one group each: in p->w, d and dmin become step and low, both in half precision; sc
 * and m become 1. */
KN_INLINE void once_of(const struct grid *f, struct groups *p)
{
    for (int g = 0; g < GROUPS; g += KN_LANES) {
        fit(f, p, g);
        vf step = vf_load(p->step + g), q = vf_load(p->q + g), low;
        struct pair best = { vf_zero(), vf_zero(), vf_set1(WORST) };
        best = better_half(f, p, g, best, step, q);
        struct sums s = sums_of(f, p, g, ratio(vf_set1(1), best.step), best.low);
        solve(f, p, g, s, &step, &low);
        best = better_half(f, p, g, best, step, s.q);
        vf_store(p->w.d + g, best.step);
        vf_store(p->w.dmin + g, best.low);
        vf_store(p->w.sc + g, vf_set1(1));
        vf_store(p->w.m + g, vf_set1(1));
    }
}

static __attribute__((noinline, unused)) void once(const struct grid *f, struct groups *p)
{
    struct grid g = *f;
    if (g.iq4) {
        g.low = NO_LOW;
        once_of(&g, p);
    } else if (g.low) {
        g.low = ANY_LOW;
        once_of(&g, p);
    } else {
        g.low = NO_LOW;
        once_of(&g, p);
    }
}

/* ---- groups in and out ----------------------------------------------------------------------- */

/* Loads sixteen groups of n values with their weights; missing values are 0. */
static void load_groups(struct groups *p, const float *x, const float *weight, int n, size_t n_value)
{
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)(g * n + i);
            float v = at < n_value ? x[at] : 0;
            p->x[i][g] = v > LARGEST ? LARGEST : v < -LARGEST ? -LARGEST : v;
            p->weight[i][g] = weight && at < n_value ? weight[at] : 1;
        }
}

/* Replaces values in p->x by their codes for step and low in p->w, counted from the least code.  For IQ4 formats this
 * is the index into KN_IQ4, which is the nibble. */
static void to_codes(const struct grid *f, struct groups *p)
{
    static const float value[16] = { KN_IQ4 };
    for (int g = 0; g < GROUPS; g += KN_LANES) {
        vf inverse = ratio(vf_set1(1), vf_mul(vf_load(p->w.d + g), vf_load(p->w.sc + g)));
        vf low = vf_mul(vf_load(p->w.dmin + g), vf_load(p->w.m + g));
        for (int i = 0; i < f->n; i++) {
            vf x = vf_mul(vf_add(vf_load(&p->x[i][g]), low), inverse), code = vf_zero();
            if (!f->iq4)
                code = vf_sub(code_for(f, x), vf_set1(f->least));
            for (int c = 1; f->iq4 && c < 16; c++) {
                vf above = vf_set1((value[c - 1] + value[c]) / 2);
                code = vf_add(code, vf_select(vf_less(above, x), vf_set1(1), vf_zero()));
            }
            vf_store(&p->x[i][g], code);
        }
    }
}

static inline uint8_t code_of(const struct groups *p, int g, int i) { return (uint8_t)(int)p->x[i][g]; }

#endif
