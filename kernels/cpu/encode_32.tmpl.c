/* kernels/cpu/encode_32.tmpl.c - float32 values to blocks of 32, for encode.tmpl.c.
 *
 * A lane is a block, in NVFP4 16 values of a block of 64.  For Q8_0, MXFP4 and NVFP4, only few steps (scales) fit a
 * block's range, so all of them are tried. */
#include "kernels/cpu/simd_search.h"

/* The columns are the fields of struct grid (simd_search.h); `of` is per_block, - is not used:
                                   low      iq4    n   of  codes      -        -  ranges          again */
static const struct grid q4_0 = { NO_LOW, false, 32, 1, -8, 7, 0, 0, 0, 16, 6.8f, 0.2f, 2 };
static const struct grid q4_1 = { ANY_LOW, false, 32, 1, 0, 15, 0, 0, 0, 16, 13.25f, 0.25f, 2 };
static const struct grid q5_0 = { NO_LOW, false, 32, 1, -16, 15, 0, 0, 0, 16, 13.75f, 0.25f, 2 };
static const struct grid q5_1 = { ANY_LOW, false, 32, 1, 0, 31, 0, 0, 0, 16, 28.75f, 0.25f, 2 };
static const struct grid iq4_nl = { NO_LOW, true, 32, 1, -127, 113, 0, 0, 0, 16, 100.0f, 3.0f, 2 };

/* ---- nibbles, with a step and for some formats a low ----------------------------------------- */

/* Value k is in the low and k + 16 in the high nibble; returns the codes' fifth bits. */
static uint32_t pack_nibbles(const struct groups *p, int g, uint8_t q[16])
{
    uint32_t high = 0;
    for (int i = 0; i < 16; i++)
        q[i] = (uint8_t)((code_of(p, g, i) & 15) | (code_of(p, g, i + 16) & 15) << 4);
    for (int i = 0; i < 32; i++)
        high |= (uint32_t)(code_of(p, g, i) >> 4) << i;
    return high;
}

static void put_bits(uint32_t bits, uint8_t qh[4])
{
    for (int i = 0; i < 4; i++)
        qh[i] = (uint8_t)(bits >> 8 * i);
}

static void pack_q4_0(const struct groups *p, int g, struct kn_q4_0 *b)
{
    b->d = kn_f32_to_f16(p->w.d[g]);
    pack_nibbles(p, g, b->q);
}

static void pack_q4_1(const struct groups *p, int g, struct kn_q4_1 *b)
{
    b->d = kn_f32_to_f16(p->w.d[g]);
    b->m = kn_f32_to_f16(0 - p->w.dmin[g]);
    pack_nibbles(p, g, b->q);
}

static void pack_q5_0(const struct groups *p, int g, struct kn_q5_0 *b)
{
    b->d = kn_f32_to_f16(p->w.d[g]);
    put_bits(pack_nibbles(p, g, b->q), b->qh);
}

static void pack_q5_1(const struct groups *p, int g, struct kn_q5_1 *b)
{
    b->d = kn_f32_to_f16(p->w.d[g]);
    b->m = kn_f32_to_f16(0 - p->w.dmin[g]);
    put_bits(pack_nibbles(p, g, b->q), b->qh);
}

#define BLOCKS(grid, name)                                                                                             \
    static void encode_##grid(const float *x, const float *weight, size_t n_block, struct kn_##name *b)                \
    {                                                                                                                  \
        struct groups p;                                                                                               \
        for (size_t i = 0; i < n_block; i += GROUPS) {                                                                 \
            size_t n = n_block - i < GROUPS ? n_block - i : GROUPS;                                                    \
            load_groups(&p, x + 32 * i, weight ? weight + 32 * i : NULL, 32, 32 * n);                                  \
            once(&grid, &p);                                                                                           \
            to_codes(&grid, &p);                                                                                       \
            for (size_t g = 0; g < n; g++)                                                                             \
                pack_##name(&p, (int)g, b + i + g);                                                                    \
        }                                                                                                              \
    }
BLOCKS(q4_0, q4_0)
BLOCKS(q4_1, q4_1)
BLOCKS(q5_0, q5_0)
BLOCKS(q5_1, q5_1)
BLOCKS(iq4_nl, q4_0)

/* ---- Q8_0: tries the half-precision steps near the largest magnitude / 127 ------------------- */

static const struct grid q8_0 = { .n = 32, .least = -127, .most = 127 };
#define BELOW 8  /* the first step tried is this many half-precision numbers below range / 127 */
#define TRIED 20 /* steps tried: neighbouring half-precision numbers */

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
            vf_store(error + g, error_of(&q8_0, p, g, vf_load_f16(bits + g), vf_zero()));
        for (int g = 0; g < GROUPS; g++) {
            if (error[g] < least[g]) {
                least[g] = error[g];
                step[g] = bits[g];
            }
            bits[g]++;
        }
    }
}

static void encode_q8_0(const float *x, const float *weight, size_t n_block, struct kn_q8_0 *b)
{
    struct groups p;
    uint16_t step[GROUPS];
    for (size_t i = 0; i < n_block; i += GROUPS) {
        size_t n = n_block - i < GROUPS ? n_block - i : GROUPS;
        load_groups(&p, x + 32 * i, weight ? weight + 32 * i : NULL, 32, 32 * n);
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

/* ---- MXFP4: tries the exponent of the largest value, and the next one, which clips nothing --------- */

#define E2M1_MOST 12.0f /* codes are twice the format's values, so integers */

/* The nearest of 0 1 2 3 4 6 8 12, with the sign of x: the gap doubles at 4 and at 8. */
KN_INLINE vf nearest_e2m1(vf x)
{
    const vf two = vf_set1(2), four = vf_set1(4);
    vf y = clamp(x, -E2M1_MOST, E2M1_MOST), size = vf_max(y, vf_sub(vf_zero(), y));
    vf near = nearest(y), far = vf_mul(four, nearest(vf_div(y, four)));
    vf middle = vf_mul(two, nearest(vf_div(y, two)));
    return vf_select(vf_less(size, four), near, vf_select(vf_less(size, vf_set1(8)), middle, far));
}

KN_INLINE vf error_e2m1(const struct groups *p, int g, vf inverse, vf step)
{
    vf error = vf_zero();
    for (int i = 0; i < 32; i++) {
        vf v = vf_load(&p->x[i][g]);
        vf e = vf_fnma(step, nearest_e2m1(vf_mul(v, inverse)), v);
        error = vf_fma(vf_mul(vf_load(&p->weight[i][g]), e), e, error);
    }
    return error;
}

/* Sets the exponents of sixteen blocks, and p->w.d to the inverse of each block's step, the factor from values to
 * codes. Steps are powers of two from 2^-127 on, so their inverses are exact. */
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
        exponent[g] = top > 2 ? (uint8_t)(top - 2) : 1; /* the largest value becomes 8 to 16 steps */
    }
    for (uint8_t up = 0; up < 2; up++) {
        float step[GROUPS], inverse[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            step[g] = kn_mxfp4_step((uint8_t)(exponent[g] + up));
            inverse[g] = 1 / step[g];
        }
        for (int g = 0; g < GROUPS; g += KN_LANES)
            vf_store(error + g, error_e2m1(p, g, vf_load(inverse + g), vf_load(step + g)));
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

static void encode_mxfp4(const float *x, const float *weight, size_t n_block, struct kn_mxfp4 *b)
{
    struct groups p;
    uint8_t exponent[GROUPS];
    for (size_t i = 0; i < n_block; i += GROUPS) {
        size_t n = n_block - i < GROUPS ? n_block - i : GROUPS;
        load_groups(&p, x + 32 * i, weight ? weight + 32 * i : NULL, 32, 32 * n);
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

/* ---- NVFP4: tries the scales with which the largest value is 6 to 4 of them ------------------------- */

/* The integer i of a scale: kn_nvfp4_step(i) grows with i up to 126. */
static int nearest_scale(float d)
{
    int low = 0, high = 126;
    while (low < high) { /* the first that is not below d */
        int middle = (low + high) / 2;
        if (kn_nvfp4_step((uint8_t)middle) < d)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#define NV_TRIED 8 /* scales tried: six from the largest value / 6 on, which clip nothing much, and two below */

KN_INLINE vf error_nvfp4(const struct groups *p, int g, vf inverse, vf step)
{
    vf error = vf_zero();
    for (int i = 0; i < 16; i++) {
        vf v = vf_load(&p->x[i][g]);
        vf e = vf_fnma(step, nearest_e2m1(vf_mul(v, inverse)), v);
        error = vf_fma(vf_mul(vf_load(&p->weight[i][g]), e), e, error);
    }
    return error;
}

/* Sets the scales of sixteen groups, and p->w.d to the inverse of each group's step; 0: the group is zeros. */
KN_INLINE void best_nvfp4(struct groups *p, uint8_t scale[GROUPS])
{
    float least[GROUPS], error[GROUPS], step[GROUPS], inverse[GROUPS];
    int first[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        float top = 0;
        for (int i = 0; i < 16; i++) {
            float size = p->x[i][g] < 0 ? -p->x[i][g] : p->x[i][g];
            top = size > top ? size : top;
        }
        first[g] = kn_max(0, kn_min(nearest_scale(top / E2M1_MOST) - 2, 126 - NV_TRIED + 1));
        least[g] = WORST;
        scale[g] = 0;
        p->w.d[g] = 0;
    }
    for (int c = 0; c < NV_TRIED; c++) {
        for (int g = 0; g < GROUPS; g++) {
            step[g] = kn_nvfp4_step((uint8_t)(first[g] + c));
            inverse[g] = step[g] > 0 ? 1 / step[g] : 0;
        }
        for (int g = 0; g < GROUPS; g += KN_LANES)
            vf_store(error + g, error_nvfp4(p, g, vf_load(inverse + g), vf_load(step + g)));
        for (int g = 0; g < GROUPS; g++)
            if (error[g] < least[g]) {
                least[g] = error[g];
                scale[g] = (uint8_t)(first[g] + c);
                p->w.d[g] = inverse[g];
            }
    }
}

static void encode_nvfp4(const float *x, const float *weight, size_t n_block, struct kn_nvfp4 *b)
{
    struct groups p;
    uint8_t scale[GROUPS];
    for (size_t i = 0; i < n_block; i += GROUPS / 4) {
        size_t n = n_block - i < GROUPS / 4 ? n_block - i : GROUPS / 4;
        load_groups(&p, x + 64 * i, weight ? weight + 64 * i : NULL, 16, 64 * n);
        best_nvfp4(&p, scale);
        for (int k = 0; k < 16; k++)
            for (int g = 0; g < GROUPS; g += KN_LANES)
                vf_store(&p.x[k][g], nearest_e2m1(vf_mul(vf_load(&p.x[k][g]), vf_load(p.w.d + g))));
        for (size_t g = 0; g < 4 * n; g++) {
            b[i + g / 4].d[g % 4] = scale[g];
            for (int k = 0; k < 8; k++)
                b[i + g / 4].q[g % 4 * 8 + (size_t)k] = (uint8_t)(nibble_of(p.x[k][g]) | nibble_of(p.x[k + 8][g]) << 4);
        }
    }
}

/* ---- all formats ----------------------------------------------------------------------------- */

void KN_FN(kn_encode_32)(enum kn_format f, const float *x, const float *weight, size_t n_block, void *blocks)
{
    switch (f) {
    case KN_Q8_0:
        encode_q8_0(x, weight, n_block, blocks);
        break;
    case KN_Q4_0:
        encode_q4_0(x, weight, n_block, blocks);
        break;
    case KN_Q4_1:
        encode_q4_1(x, weight, n_block, blocks);
        break;
    case KN_Q5_0:
        encode_q5_0(x, weight, n_block, blocks);
        break;
    case KN_Q5_1:
        encode_q5_1(x, weight, n_block, blocks);
        break;
    case KN_IQ4_NL:
        encode_iq4_nl(x, weight, n_block, blocks);
        break;
    case KN_MXFP4:
        encode_mxfp4(x, weight, n_block, blocks);
        break;
    case KN_NVFP4:
        encode_nvfp4(x, weight, n_block, blocks);
        break;
    default:
        kn_assert(!"a format without an encoder");
    }
}
