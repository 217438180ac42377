/* kernels/cpu/encode_grid.tmpl.c - float32 values to blocks of the IQ1, IQ2 and IQ3 formats, for encode.tmpl.c.
 *
 * A group is the values that share a scale; sixteen groups are searched together, and a lane is one group.
 *
 *     value = sign * step * size              step = d * (2 * s + 1), s 0..15 (IQ1: 0..7); the sizes of eight or four neighbouring
 *                                             values are a point of the format's grid
 *
 * In the IQ1 formats a size has a sign, and is a multiple of 8 plus or minus 1, the shift, of all points of a group (IQ1_S)
 * or of each (IQ1_M).  Each shift is tried.  In the others signs come first: those of the values; where a format stores seven of eight, the number of negative values must be
 * even, and otherwise the value with the least product of weight and size gets the wrong sign.  Along its sign a value is then at least 0, but for that
 * one.  For a given step the best point is the nearest one, which pick() finds by trying all: the error of a point is
 * the sum of the errors of its halves, and there are few halves.  For given points the best step is a linear
 * least-squares problem.  So the search is that of simd_search.h: fit() finds each group's step alone, unit() the
 * block's d, choose() the scales near the fit with the least error; then d is solved for again with all points fixed,
 * and a block keeps the better of both results.
 *
 * The squared error of a value counts by its weight, as in simd_search.h. */
#ifdef KN_ONE_LANE
#include "kernels/cpu/one_lane.h"
#else
#include "kernels/cpu/simd.h"
#endif
#include "kernels/internal.h"

#define GROUPS    16
#define MOST_HALF 81
#define LARGEST   0x1p28f /* as in simd_search.h */
#define HALF_MOST 65504.0f
#define N_RANGE   8 /* of the largest value, tried in fit(): FIRST + i * BY of the largest size */
#define FIRST     0.84f
#define BY        0.045f
#define N_UNIT    32 /* d tried in unit() */

/* A result for each group: its scale, its points and their sums. */
struct found {
    int s[GROUPS];
    uint16_t point[8][GROUPS];
    float xq[GROUPS], qq[GROUPS], error[GROUPS]; /* weighted sums of value * size, size * size, squared errors */
};

struct search {
    _Alignas(64) float x[32][GROUPS];      /* value i of each group along its sign */
    _Alignas(64) float weight[32][GROUPS]; /* its weight, above 0 */
    const struct kn_grid *grid;
    int n;           /* values of a group */
    bool shift_each; /* each point has a shift of its own */
    uint8_t sign[4][GROUPS];
    float step[GROUPS], step_weight[GROUPS], d[2];
    struct found f;
};

/* The d that a block can store: a half times grid->part. */
static float stored(const struct search *p, float d)
{
    float x = d / p->grid->part;

    return kn_f16_to_f32(kn_f32_to_f16(x < HALF_MOST ? x : HALF_MOST)) * p->grid->part;
}

/* ---- the nearest point ----------------------------------------------------------------------- */

#define PARTS (GROUPS / KN_LANES) /* registers with a number for each group */

/* The scores of all halves of points, for values x with weights w and the inverse steps.  The score of a value x with the
 * size g is w * (x * inverse * g - g * g / 2), the largest where g is nearest. */
KN_INLINE void score_halves(const struct kn_grid *grid, const float (*x)[GROUPS], const float (*w)[GROUPS], int shift,
                            const float *inverse, vf (*score)[PARTS])
{
    int n = 1;

    for (int part = 0; part < PARTS; part++)
        score[0][part] = vf_zero();
    for (int i = 0; i < grid->n_value / 2; i++, n *= grid->base) {
        for (int digit = grid->base - 1; digit >= 0; digit--) {
            const vf size = vf_set1((float)(grid->digit[digit] + shift)),
                     square = vf_mul(size, vf_mul(size, vf_set1(0.5f)));

            for (int part = 0; part < PARTS; part++) {
                vf y = vf_mul(vf_load(x[i] + part * KN_LANES), vf_load(inverse + part * KN_LANES));
                vf term = vf_mul(vf_load(w[i] + part * KN_LANES), vf_sub(vf_mul(y, size), square));

                for (int c = 0; c < n; c++)
                    score[digit * n + c][part] = vf_add(score[c][part], term);
            }
        }
    }
}

/* The indices of the points nearest to the groups' values, among those with this shift, and their scores.  Points with the same second half follow one another: the
 * best first half of them is found, then compared with the best point so far. */
KN_INLINE void nearest_points(const struct kn_grid *grid, const float (*x)[GROUPS], const float (*w)[GROUPS], int shift,
                              const float *inverse, float *index, float *best_score)
{
    const vf one = vf_set1(1), worst = vf_set1(-3e38f);
    vf first[MOST_HALF][PARTS], second[MOST_HALF][PARTS], best[PARTS], best_at[PARTS], at = vf_zero();

    score_halves(grid, x, w, shift, inverse, first);
    score_halves(grid, x + grid->n_value / 2, w + grid->n_value / 2, shift, inverse, second);
    for (int part = 0; part < PARTS; part++) {
        best[part] = worst;
        best_at[part] = vf_zero();
    }
    for (int p = 0; p < grid->n_point;) {
        const int last = grid->half[p][1];
        vf top[PARTS], top_at[PARTS];

        for (int part = 0; part < PARTS; part++) {
            top[part] = worst;
            top_at[part] = at;
        }
        for (; p < grid->n_point && grid->half[p][1] == last; p++) {
            for (int part = 0; part < PARTS; part++) {
                vf score = first[grid->half[p][0]][part];

                top_at[part] = vf_select(vf_less(top[part], score), at, top_at[part]);
                top[part] = vf_max(score, top[part]);
            }
            at = vf_add(at, one);
        }
        for (int part = 0; part < PARTS; part++) {
            vf score = vf_add(top[part], second[last][part]);

            best_at[part] = vf_select(vf_less(best[part], score), top_at[part], best_at[part]);
            best[part] = vf_max(score, best[part]);
        }
    }
    for (int part = 0; part < PARTS; part++) {
        vf_store(index + part * KN_LANES, best_at[part]);
        vf_store(best_score + part * KN_LANES, best[part]);
    }
}

/* The points of the groups with the shift that is best for all points of a group, or with shift_each for each point. */
KN_INLINE void pick_points(const struct search *p, const float *inverse, struct found *f)
{
    const struct kn_grid *grid = p->grid;
    const int n_point = p->n / grid->n_value;
    float index[8][GROUPS], score[8][GROUPS], best[8][GROUPS];

    for (int shift = grid->shifted ? 1 : 0; shift >= (grid->shifted ? -1 : 0); shift -= 2) {
        for (int v = 0; v < n_point; v++)
            nearest_points(grid, p->x + v * grid->n_value, p->weight + v * grid->n_value, shift, inverse, index[v],
                           score[v]);
        for (int g = 0; g < GROUPS && !p->shift_each; g++) {
            for (int v = 1; v < n_point; v++)
                score[0][g] += score[v][g];
            for (int v = 1; v < n_point; v++)
                score[v][g] = score[0][g];
        }
        for (int v = 0; v < n_point; v++)
            for (int g = 0; g < GROUPS; g++) {
                if (shift < 0 && !(score[v][g] > best[v][g]))
                    continue;
                best[v][g] = score[v][g];
                f->point[v][g] = (uint16_t)((int)index[v][g] + (shift < 0 ? grid->n_point : 0));
            }
    }
}

/* Sets the points nearest for each group's inverse step, and their sums. */
static __attribute__((noinline)) void pick(const struct search *p, const float *inverse, struct found *f)
{
    const struct kn_grid *grid = p->grid;

    memset(f->xq, 0, sizeof f->xq);
    memset(f->qq, 0, sizeof f->qq);
    pick_points(p, inverse, f);
    for (int v = 0; v < p->n / grid->n_value; v++) {
        const float(*x)[GROUPS] = p->x + v * grid->n_value, (*w)[GROUPS] = p->weight + v * grid->n_value;

        for (int g = 0; g < GROUPS; g++) {
            const int8_t *size = grid->size + f->point[v][g] * grid->n_value;
            float xq = 0, qq = 0;

            for (int i = 0; i < grid->n_value; i++) {
                float part = w[i][g] * (float)size[i];
                xq += x[i][g] * part;
                qq += (float)size[i] * part;
            }
            f->xq[g] += xq;
            f->qq[g] += qq;
        }
    }
}

static void measure(const struct search *p, const float *step, struct found *f)
{
    const struct kn_grid *grid = p->grid;

    for (int g = 0; g < GROUPS; g++) {
        float sum = 0;

        for (int v = 0; v < p->n / grid->n_value; v++) {
            const int8_t *size = grid->size + f->point[v][g] * grid->n_value;
            const float(*x)[GROUPS] = p->x + v * grid->n_value, (*w)[GROUPS] = p->weight + v * grid->n_value;

            for (int i = 0; i < grid->n_value; i++) {
                float e = x[i][g] - step[g] * (float)size[i];
                sum += w[i][g] * e * e;
            }
        }
        f->error[g] = sum;
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

static void keep_fit(struct search *p, const struct found *f, float explained[GROUPS])
{
    for (int g = 0; g < GROUPS; g++) {
        float e = f->xq[g] > 0 ? f->xq[g] * (f->xq[g] / f->qq[g]) : 0;

        if (e > explained[g]) {
            explained[g] = e;
            p->step[g] = f->xq[g] / f->qq[g];
            p->step_weight[g] = f->qq[g];
        }
    }
}

static float size_of(float x) { return x < 0 ? -x : x; }

/* Each group's step: tries several for the largest value, one with which it has the smallest size, and the best again
 * with its own points. */
static void fit(struct search *p)
{
    const float smallest = p->grid->shifted ? 1 : p->grid->digit[0], largest = p->grid->digit[p->grid->base - 1];
    float top[GROUPS] = { 0 }, explained[GROUPS] = { 0 }, inverse[GROUPS];
    struct found f;

    for (int g = 0; g < GROUPS; g++) {
        p->step[g] = p->step_weight[g] = 0;
        for (int i = 0; i < p->n; i++)
            top[g] = size_of(p->x[i][g]) > top[g] ? size_of(p->x[i][g]) : top[g];
    }
    for (int c = -1; c < N_RANGE; c++) {
        float range = c < 0 ? smallest : largest * (FIRST + (float)c * BY);

        for (int g = 0; g < GROUPS; g++)
            inverse[g] = top[g] > 0 ? range / top[g] : 0;
        pick(p, inverse, &f);
        keep_fit(p, &f, explained);
    }
    for (int g = 0; g < GROUPS; g++)
        inverse[g] = p->step[g] > 0 ? 1 / p->step[g] : 0;
    pick(p, inverse, &f);
    keep_fit(p, &f, explained);
}

/* The scale whose 2 * s + 1 is nearest to x. */
static int scale_for(const struct search *p, float x)
{
    float s = (x - 1) / 2;

    return s > (float)p->grid->scale_most ? p->grid->scale_most : s > 0 ? (int)(s + 0.5f) : 0;
}

/* The d with which the steps of n groups from g on are best stored as odd multiples. */
static float unit(const struct search *p, int g, int n)
{
    const float most = (float)(2 * p->grid->scale_most + 2);
    float top = 0, best = 0, least = 3e38f;

    for (int i = g; i < g + n; i++)
        top = p->step[i] > top ? p->step[i] : top;
    for (int c = 0; c < N_UNIT; c++) {
        float d = stored(p, top / (most - (float)c * (most * 0.375f / 32))), loss = 0;

        for (int i = g; i < g + n && d > 0; i++) {
            float e = p->step[i] - d * (float)(2 * scale_for(p, p->step[i] / d) + 1);
            loss += p->step_weight[i] * e * e;
        }
        if (d > 0 && loss < least) {
            least = loss;
            best = d;
        }
    }
    return best;
}

/* The scales within one of the fit's, with the nearest points, that have the least error. */
static void choose(const struct search *p, struct found *best)
{
    float step[GROUPS], inverse[GROUPS];
    struct found f;

    for (int g = 0; g < GROUPS; g++)
        best->error[g] = 3e38f;
    for (int near = -1; near <= 1; near++) {
        for (int g = 0; g < GROUPS; g++) {
            float d = p->d[g * p->n / 256];

            f.s[g] = d > 0 ? kn_max(0, kn_min(p->grid->scale_most, scale_for(p, p->step[g] / d) + near)) : 0;
            step[g] = d * (float)(2 * f.s[g] + 1);
            inverse[g] = step[g] > 0 ? 1 / step[g] : 0;
        }
        pick(p, inverse, &f);
        measure(p, step, &f);
        for (int g = 0; g < GROUPS; g++) {
            if (!(f.error[g] < best->error[g]))
                continue;
            best->s[g] = f.s[g];
            best->xq[g] = f.xq[g];
            best->qq[g] = f.qq[g];
            best->error[g] = f.error[g];
            for (int v = 0; v < 8; v++)
                best->point[v][g] = f.point[v][g];
        }
    }
}

static float block_error(const struct found *f, int g, int n)
{
    float sum = 0;

    for (int i = g; i < g + n; i++)
        sum += f->error[i];
    return sum;
}

static void search(struct search *p)
{
    const int n = 256 / p->n; /* groups of a block */
    float d[2];
    struct found again;

    memset(&again, 0, sizeof again);
    memset(&p->f, 0, sizeof p->f);
    fit(p);
    for (int b = 0; b < GROUPS / n; b++)
        d[b] = p->d[b] = unit(p, b * n, n);
    choose(p, &p->f);
    for (int b = 0; b < GROUPS / n; b++) {
        float xq = 0, qq = 0;

        for (int g = b * n; g < b * n + n; g++) {
            float scale = (float)(2 * p->f.s[g] + 1);
            xq += scale * p->f.xq[g];
            qq += scale * scale * p->f.qq[g];
        }
        p->d[b] = stored(p, xq > 0 ? xq / qq : 0);
    }
    choose(p, &again);
    for (int b = 0; b < GROUPS / n; b++) {
        if (!(block_error(&again, b * n, n) < block_error(&p->f, b * n, n))) {
            p->d[b] = d[b];
            continue;
        }
        for (int g = b * n; g < b * n + n; g++) {
            p->f.s[g] = again.s[g];
            for (int v = 0; v < 8; v++)
                p->f.point[v][g] = again.point[v][g];
        }
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static float cost(const struct search *p, int i, int g) { return p->weight[i][g] * p->x[i][g]; }

/* Loads the groups; values that do not exist are 0.  seven: the number of negative values of eight must be even; where it
 * is odd, the value that loses least gets the wrong sign. */
static void load(struct search *p, const float *x, const float *weight, size_t n_value, bool seven)
{
    for (int g = 0; g < GROUPS; g++) {
        for (int v = 0; v < p->n / 8; v++) {
            int signs = 0, least = 0;

            for (int i = 0; i < 8; i++) {
                size_t at = (size_t)(g * p->n + v * 8 + i);
                float value = at < n_value ? x[at] : 0, size = value < 0 ? -value : value;

                p->x[8 * v + i][g] = size < LARGEST ? size : LARGEST;
                p->weight[8 * v + i][g] = weight && at < n_value ? weight[at] : 1;
                signs |= (value < 0) << i;
                least = cost(p, 8 * v + i, g) < cost(p, 8 * v + least, g) ? i : least;
            }
            if (seven && __builtin_parity((unsigned)signs)) {
                signs ^= 1 << least;
                p->x[8 * v + least][g] = -p->x[8 * v + least][g];
            }
            p->sign[v][g] = (uint8_t)signs;
        }
    }
}

/* Loads the groups for sizes with signs. */
static void load_signed(struct search *p, const float *x, const float *weight, size_t n_value)
{
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < p->n; i++) {
            size_t at = (size_t)(g * p->n + i);
            float value = at < n_value ? x[at] : 0;

            p->x[i][g] = value > LARGEST ? LARGEST : value < -LARGEST ? -LARGEST : value;
            p->weight[i][g] = weight && at < n_value ? weight[at] : 1;
        }
}

static void put_word(uint8_t p[4], uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

/* Seven signs of each of four eights, and the scale. */
static uint32_t signs_and_scale(const struct search *p, int g)
{
    uint32_t x = (uint32_t)p->f.s[g] << 28;

    for (int v = 0; v < 4; v++)
        x |= (uint32_t)(p->sign[v][g] & 127) << 7 * v;
    return x;
}

static void pack_iq2_xxs(const struct search *p, int g, struct kn_iq2_xxs *b)
{
    for (int s = 0; s < 8; s++) {
        for (int v = 0; v < 4; v++)
            b->q[8 * s + v] = (uint8_t)p->f.point[v][g + s];
        put_word(b->q + 8 * s + 4, signs_and_scale(p, g + s));
    }
}

static void pack_iq2_xs(const struct search *p, int g, struct kn_iq2_xs *b)
{
    for (int i = 0; i < 32; i++) {
        int at = g + i / 2, pair = p->f.point[i % 2][at] | (p->sign[i % 2][at] & 127) << 9;

        b->q[2 * i] = (uint8_t)pair;
        b->q[2 * i + 1] = (uint8_t)(pair >> 8);
        b->sc[i / 4] |= (uint8_t)(i % 2 ? p->f.s[at] << i / 2 % 2 * 4 : 0);
    }
}

static void pack_iq2_s(const struct search *p, int g, struct kn_iq2_s *b)
{
    for (int i = 0; i < 32; i++) {
        int at = g + i / 2, point = p->f.point[i % 2][at];

        b->q[i] = (uint8_t)point;
        b->qh[i / 4] |= (uint8_t)(point >> 8 << i % 4 * 2);
        b->sign[i] = p->sign[i % 2][at];
        b->sc[i / 4] |= (uint8_t)(i % 2 ? p->f.s[at] << i / 2 % 2 * 4 : 0);
    }
}

static void pack_iq3_xxs(const struct search *p, int g, struct kn_iq3_xxs *b)
{
    for (int s = 0; s < 8; s++) {
        for (int v = 0; v < 8; v++)
            b->q[8 * s + v] = (uint8_t)p->f.point[v][g + s];
        put_word(b->s + 4 * s, signs_and_scale(p, g + s));
    }
}

static void pack_iq3_s(const struct search *p, int g, struct kn_iq3_s *b)
{
    for (int s = 0; s < 8; s++) {
        for (int v = 0; v < 8; v++) {
            int point = p->f.point[v][g + s];

            b->q[8 * s + v] = (uint8_t)point;
            b->qh[s] |= (uint8_t)(point >> 8 << v);
        }
        for (int v = 0; v < 4; v++)
            b->sign[4 * s + v] = p->sign[v][g + s];
        b->sc[s / 2] |= (uint8_t)(p->f.s[g + s] << s % 2 * 4);
    }
}

/* The twelfth bits of a group's four indices are equal. */
static void pack_iq1_s(const struct search *p, int g, struct kn_iq1_s *b)
{
    for (int s = 0; s < 8; s++) {
        int bits = p->f.s[g + s] << 12 | p->f.point[0][g + s] >> 11 << 15;

        for (int v = 0; v < 4; v++) {
            b->q[4 * s + v] = (uint8_t)p->f.point[v][g + s];
            bits |= (p->f.point[v][g + s] >> 8 & 7) << 3 * v;
        }
        b->qh[2 * s] = (uint8_t)bits;
        b->qh[2 * s + 1] = (uint8_t)(bits >> 8);
    }
}

static void pack_iq1_m(const struct search *p, uint16_t d, struct kn_iq1_m *b)
{
    for (int i = 0; i < 32; i++) {
        int point = p->f.point[i % 2][i / 2];

        b->q[i] = (uint8_t)point;
        b->qh[i / 2] |= (uint8_t)(point >> 8 << i % 2 * 4);
    }
    for (int i = 0; i < 4; i++) {
        int bits = (d >> 4 * i & 15) << 12;

        for (int k = 0; k < 4; k++)
            bits |= p->f.s[4 * i + k] << 3 * k;
        b->sc[2 * i] = (uint8_t)bits;
        b->sc[2 * i + 1] = (uint8_t)(bits >> 8);
    }
}

static void pack(enum kn_format f, const struct search *p, int b, void *block)
{
    uint16_t d = kn_f32_to_f16(p->d[b] / p->grid->part);

    memset(block, 0, (size_t)kn_format_info(f)->block_bytes);
    if (f == KN_IQ1_M) {
        pack_iq1_m(p, d, block);
        return;
    }
    memcpy(block, &d, sizeof d);
    if (f == KN_IQ1_S)
        pack_iq1_s(p, 8 * b, block);
    else if (f == KN_IQ2_XXS)
        pack_iq2_xxs(p, 8 * b, block);
    else if (f == KN_IQ2_XS)
        pack_iq2_xs(p, 0, block);
    else if (f == KN_IQ2_S)
        pack_iq2_s(p, 0, block);
    else if (f == KN_IQ3_XXS)
        pack_iq3_xxs(p, 8 * b, block);
    else
        pack_iq3_s(p, 8 * b, block);
}

void KN_FN(kn_encode_grid)(enum kn_format f, const float *x, const float *weight, size_t n_block, void *blocks)
{
    const size_t bytes = (size_t)kn_format_info(f)->block_bytes;
    const bool by_16 = f == KN_IQ2_XS || f == KN_IQ2_S || f == KN_IQ1_M;
    struct search p = { .grid = kn_grid(f), .n = by_16 ? 16 : 32, .shift_each = f == KN_IQ1_M };
    size_t most = p.n == 16 ? 1 : 2;

    for (size_t i = 0; i < n_block; i += most) {
        size_t n = n_block - i < most ? n_block - i : most;

        if (p.grid->shifted)
            load_signed(&p, x + 256 * i, weight ? weight + 256 * i : NULL, 256 * n);
        else
            load(&p, x + 256 * i, weight ? weight + 256 * i : NULL, 256 * n, f != KN_IQ2_S && f != KN_IQ3_S);
        search(&p);
        for (size_t b = 0; b < n; b++)
            pack(f, &p, (int)b, (uint8_t *)blocks + (i + b) * bytes);
    }
}
