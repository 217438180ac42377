/* tests/kernels/plain_encode.h - a plain encoder, the baseline that the searching encoder must not be worse than:
 * a block's scale comes from its extremes, and every value is rounded to the nearest code. */
#ifndef TESTS_KERNELS_PLAIN_ENCODE_H
#define TESTS_KERNELS_PLAIN_ENCODE_H

#include <math.h>
#include <string.h>

#include "kernels/internal.h"

static inline int plain_nearest(float x, int least, int most)
{
    float bounded = x > (float)most ? (float)most : x < (float)least ? (float)least : x;
    int i = (int)(bounded < 0 ? bounded - 0.5f : bounded + 0.5f);
    return kn_max(least, kn_min(most, i));
}

static inline float plain_inverse(float x) { return x > 0 ? 1 / x : 0; }

static inline float plain_largest(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        most = a > most ? a : most;
    }
    return most;
}

static inline void plain_q8_0(const float *x, struct kn_q8_0 *b)
{
    b->d = kn_f32_to_f16(plain_largest(x, 32) / 127);
    float inv = plain_inverse(kn_f16_to_f32(b->d));
    for (int i = 0; i < 32; i++)
        b->q[i] = (int8_t)plain_nearest(x[i] * inv, -127, 127);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------- */

/* ORs the n bits of value into a bit string at bit offset `at`. */
static inline void plain_put(uint8_t *p, int at, int n, int value)
{
    for (int i = 0; i < n; i++)
        p[(at + i) / 8] |= (uint8_t)((value >> i & 1) << (at + i) % 8);
}

static inline void plain_half(uint8_t *p, float x)
{
    uint16_t half = kn_f32_to_f16(x);
    memcpy(p, &half, sizeof half);
}

static inline float plain_rounded(float x) { return kn_f16_to_f32(kn_f32_to_f16(x)); }

static const int plain_iq4_value[16] = { KN_IQ4 };

static inline int plain_iq4(float x)
{
    int best = 0;
    for (int c = 1; c < 16; c++)
        if (2 * x > (float)(plain_iq4_value[c] + plain_iq4_value[c - 1]))
            best = c;
    return best;
}

struct plain_k {
    float d, dmin;
    int sc[16], m[16], q[256];
};

/* Groups of n values as d * sc * (0..most) - dmin * m. */
static inline void plain_with_low(const float *x, int n, int most, int sc_most, int m_most, struct plain_k *k)
{
    float scale[16], low[16], scale_most = 0, low_most = 0;
    for (int s = 0; s < 256 / n; s++) {
        float least = 0, top = 0; /* 0 is always in range: min has no sign */
        for (int i = n * s; i < n * s + n; i++) {
            least = x[i] < least ? x[i] : least;
            top = x[i] > top ? x[i] : top;
        }
        scale[s] = (top - least) / (float)most;
        low[s] = -least;
        scale_most = scale[s] > scale_most ? scale[s] : scale_most;
        low_most = low[s] > low_most ? low[s] : low_most;
    }
    k->d = plain_rounded(scale_most / (float)sc_most);
    k->dmin = plain_rounded(low_most / (float)m_most);
    for (int s = 0; s < 256 / n; s++) {
        k->sc[s] = plain_nearest(scale[s] * plain_inverse(k->d), 0, sc_most);
        k->m[s] = plain_nearest(low[s] * plain_inverse(k->dmin), 0, m_most);
        float step = plain_inverse(k->d * (float)k->sc[s]), shift = k->dmin * (float)k->m[s];
        for (int i = n * s; i < n * s + n; i++)
            k->q[i] = plain_nearest((x[i] + shift) * step, 0, most);
    }
}

/* Groups of n values as d * sc * (-below..below - 1), codes stored with an offset of `below`; below 127: codes are
 * indices into the sixteen values of KN_IQ4. */
static inline void plain_signed(const float *x, int n, int below, int sc_most, struct plain_k *k)
{
    float scale[16], scale_most = 0;
    for (int s = 0; s < 256 / n; s++) {
        scale[s] = plain_largest(x + n * s, n) / (float)(below == 127 ? 113 : below - 1);
        scale_most = scale[s] > scale_most ? scale[s] : scale_most;
    }
    k->d = plain_rounded(scale_most / (float)sc_most);
    for (int s = 0; s < 256 / n; s++) {
        k->sc[s] = plain_nearest(scale[s] * plain_inverse(k->d), 0, sc_most);
        float step = plain_inverse(k->d * (float)k->sc[s]);
        for (int i = n * s; i < n * s + n; i++)
            k->q[i] = below == 127 ? plain_iq4(x[i] * step) : plain_nearest(x[i] * step, -below, below - 1) + below;
    }
}

static inline void plain_q4_k(const float *x, struct kn_q4_k *b)
{
    struct plain_k k;
    plain_with_low(x, 32, 15, 63, 63, &k);
    b->d = kn_f32_to_f16(k.d);
    b->dmin = kn_f32_to_f16(k.dmin);
    for (int s = 0; s < 8; s++)
        kn_q4_k_scale_put(b->sc, s, k.sc[s], k.m[s]);
    for (int i = 0; i < 256; i++)
        b->q[i / 64 * 32 + i % 32] |= (uint8_t)(k.q[i] << i / 32 % 2 * 4);
}

static inline void plain_q5_k(const float *x, struct kn_q5_k *b)
{
    struct plain_k k;
    plain_with_low(x, 32, 31, 63, 63, &k);
    b->d = kn_f32_to_f16(k.d);
    b->dmin = kn_f32_to_f16(k.dmin);
    for (int s = 0; s < 8; s++)
        kn_q4_k_scale_put(b->sc, s, k.sc[s], k.m[s]);
    for (int i = 0; i < 256; i++) {
        b->q[i / 64 * 32 + i % 32] |= (uint8_t)((k.q[i] & 15) << i / 32 % 2 * 4);
        b->qh[i % 32] |= (uint8_t)(k.q[i] >> 4 << i / 32);
    }
}

static inline void plain_q2_k(const float *x, struct kn_q2_k *b)
{
    struct plain_k k;
    plain_with_low(x, 16, 3, 15, 15, &k);
    b->d = kn_f32_to_f16(k.d);
    b->dmin = kn_f32_to_f16(k.dmin);
    for (int s = 0; s < 16; s++)
        b->sc[s] = (uint8_t)(k.sc[s] | k.m[s] << 4);
    for (int i = 0; i < 256; i++)
        b->q[i / 128 * 32 + i % 32] |= (uint8_t)(k.q[i] << i / 32 % 4 * 2);
}

static inline void plain_q3_k(const float *x, struct kn_q3_k *b)
{
    struct plain_k k;
    plain_signed(x, 16, 4, 31, &k);
    b->d = kn_f32_to_f16(k.d);
    for (int s = 0; s < 16; s++) {
        plain_put(b->sc, s % 8 * 8 + s / 8 * 4, 4, k.sc[s] + 32);
        plain_put(b->sc + 8, s % 4 * 8 + s / 4 * 2, 2, (k.sc[s] + 32) >> 4);
    }
    for (int i = 0; i < 256; i++) {
        b->q[i / 128 * 32 + i % 32] |= (uint8_t)((k.q[i] & 3) << i / 32 % 4 * 2);
        b->qh[i % 32] |= (uint8_t)(k.q[i] >> 2 << i / 32);
    }
}

static inline void plain_q6_k(const float *x, struct kn_q6_k *b)
{
    struct plain_k k;
    plain_signed(x, 16, 32, 127, &k);
    b->d = kn_f32_to_f16(k.d);
    for (int s = 0; s < 16; s++)
        b->sc[s] = (int8_t)k.sc[s];
    for (int i = 0; i < 256; i++) {
        int h = i / 128, f = i / 32 % 4;
        b->ql[64 * h + 32 * (f & 1) + i % 32] |= (uint8_t)((k.q[i] & 15) << 4 * (f >> 1));
        b->qh[32 * h + i % 32] |= (uint8_t)((k.q[i] >> 4) << 2 * f);
    }
}

static inline void plain_iq4_xs(const float *x, struct kn_iq4_xs *b)
{
    struct plain_k k;
    plain_signed(x, 32, 127, 31, &k);
    b->d = kn_f32_to_f16(k.d);
    for (int s = 0; s < 8; s++) {
        plain_put(b->sl, 4 * s, 4, k.sc[s] + 32);
        b->sh |= (uint16_t)((k.sc[s] + 32) >> 4 << 2 * s);
    }
    for (int i = 0; i < 256; i++)
        b->q[i / 32 * 16 + i % 16] |= (uint8_t)(k.q[i] << i / 16 % 2 * 4);
}

/* ---- grids ------------------------------------------------------------------------------------- */

/* The point nearest to n sizes, by index. */
static inline int plain_point(const struct kn_grid *g, const float *x, float step)
{
    int best = 0;
    float least = INFINITY;
    for (int p = 0; p < g->n_point; p++) {
        float error = 0;
        for (int i = 0; i < g->n_value; i++) {
            float e = x[i] - step * (float)g->size[p * g->n_value + i];
            error += e * e;
        }
        if (error < least) {
            least = error;
            best = p;
        }
    }
    return best;
}

static inline void plain_put_point(enum kn_format f, uint8_t *p, int i, int point)
{
    if (f == KN_IQ2_XXS)
        plain_put(p + 2, 64 * (i / 4) + 8 * (i % 4), 8, point);
    else if (f == KN_IQ2_XS)
        plain_put(p + 2, 16 * i, 9, point);
    else
        plain_put(p + 2, 8 * i, 8, point);
    if (f == KN_IQ2_S)
        plain_put(p + 66, 2 * i, 2, point >> 8);
    if (f == KN_IQ3_S)
        plain_put(p + 66, i, 1, point >> 8);
}

static inline void plain_put_signs(enum kn_format f, uint8_t *p, int v, int signs)
{
    if (f == KN_IQ2_S || f == KN_IQ3_S)
        plain_put(p + (f == KN_IQ2_S ? 34 : 74), 8 * v, 8, signs);
    else if (f == KN_IQ2_XS)
        plain_put(p + 2, 16 * v + 9, 7, signs);
    else if (f == KN_IQ2_XXS)
        plain_put(p + 2, 64 * (v / 4) + 32 + 7 * (v % 4), 7, signs);
    else
        plain_put(p + 66, 32 * (v / 4) + 7 * (v % 4), 7, signs);
}

static inline void plain_put_scale(enum kn_format f, uint8_t *p, int s, int scale)
{
    if (f == KN_IQ2_XXS)
        plain_put(p + 2, 64 * s + 60, 4, scale);
    else if (f == KN_IQ3_XXS)
        plain_put(p + 66, 32 * s + 28, 4, scale);
    else
        plain_put(p + (f == KN_IQ2_XS ? 66 : f == KN_IQ2_S ? 74 : 106), 4 * s, 4, scale);
}

/* A group's largest value has the largest size; the eighth sign is right or, where it is not stored, wrong. */
static inline void plain_grid(enum kn_format f, const float *x, uint8_t *p)
{
    const struct kn_grid *g = kn_grid(f);
    const int n = f == KN_IQ2_XS || f == KN_IQ2_S ? 16 : 32;
    const bool seven = f != KN_IQ2_S && f != KN_IQ3_S;
    float part = g->part, size[256], top = plain_largest(x, 256);
    float d = plain_rounded(top / (float)g->digit[g->base - 1] / 31 / part);
    plain_half(p, d);
    for (int v = 0; v < 32; v++) {
        int signs = 0;
        for (int i = 0; i < 8; i++) {
            size[8 * v + i] = fabsf(x[8 * v + i]);
            signs |= (x[8 * v + i] < 0) << i;
        }
        if (seven && __builtin_parity((unsigned)signs))
            size[8 * v + 7] = -size[8 * v + 7];
        plain_put_signs(f, p, v, signs & (seven ? 127 : 255));
    }
    for (int s = 0; s < 256 / n; s++) {
        float step = plain_largest(x + n * s, n) / (float)g->digit[g->base - 1] / part;
        int scale = plain_nearest((step * plain_inverse(d) - 1) / 2, 0, 15);
        plain_put_scale(f, p, s, scale);
        for (int i = n * s; i < n * s + n; i += g->n_value)
            plain_put_point(f, p, i / g->n_value, plain_point(g, size + i, d * part * (float)(2 * scale + 1)));
    }
}

/* IQ1: all values plus 1; a group's largest value becomes 9. */
static inline void plain_iq1(enum kn_format f, const float *x, uint8_t *p)
{
    const struct kn_grid *g = kn_grid(f);
    const bool m = f == KN_IQ1_M;
    const int n = m ? 16 : 32;
    float d = plain_rounded(plain_largest(x, 256) / 9 / 15 / g->part);
    uint16_t half = kn_f32_to_f16(d);
    for (int i = 0; m && i < 4; i++)
        plain_put(p + 48, 16 * i + 12, 4, half >> 4 * i & 15);
    if (!m)
        plain_half(p, d);
    for (int s = 0; s < 256 / n; s++) {
        float step = plain_largest(x + n * s, n) / 9 / g->part;
        int scale = plain_nearest((step * plain_inverse(d) - 1) / 2, 0, 7);
        plain_put(p + (m ? 48 : 34), m ? 16 * (s / 4) + 3 * (s % 4) : 16 * s + 12, 3, scale);
        for (int v = n / 8 * s; v < n / 8 * (s + 1); v++) {
            int point = plain_point(g, x + 8 * v, d * g->part * (float)(2 * scale + 1));
            plain_put(p + (m ? 0 : 2), 8 * v, 8, point);
            plain_put(p + (m ? 32 : 34), m ? 4 * v : 16 * (v / 4) + 3 * (v % 4), 3, point >> 8);
        }
    }
}

/* ---- blocks of 32 ------------------------------------------------------------------------------ */

/* Puts the low 4 bits of a code after a head of `head` bytes, and its fifth bit (if any) inside the head. */
static inline void plain_nibble(uint8_t *p, int head, bool fifth, int k, int code)
{
    plain_put(p + head + 4 * fifth, k % 16 * 8 + k / 16 * 4, 4, code);
    if (fifth)
        plain_put(p + head, k, 1, code >> 4);
}

/* Q4_0, Q5_0 and IQ4_NL: the value of largest magnitude is mapped to the lowest code. */
static inline void plain_one_step(enum kn_format f, const float *x, uint8_t *p)
{
    float top = 0, below = f == KN_Q4_0 ? 8 : f == KN_Q5_0 ? 16 : 127;
    for (int i = 0; i < 32; i++)
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    float d = plain_rounded(top / -below), inverse = d < 0 || d > 0 ? 1 / d : 0;
    plain_half(p, d);
    for (int i = 0; i < 32; i++)
        plain_nibble(p, 2, f == KN_Q5_0, i,
                     f == KN_IQ4_NL ? plain_iq4(x[i] * inverse)
                                    : plain_nearest(x[i] * inverse, -(int)below, (int)below - 1) + (int)below);
}

static inline void plain_step_and_low(enum kn_format f, const float *x, uint8_t *p)
{
    float least = x[0], top = x[0];
    int most = f == KN_Q4_1 ? 15 : 31;
    for (int i = 0; i < 32; i++) {
        least = x[i] < least ? x[i] : least;
        top = x[i] > top ? x[i] : top;
    }
    plain_half(p, (top - least) / (float)most);
    plain_half(p + 2, least);
    float inverse = plain_inverse(plain_rounded((top - least) / (float)most));
    for (int i = 0; i < 32; i++)
        plain_nibble(p, 4, f == KN_Q5_1, i, plain_nearest((x[i] - plain_rounded(least)) * inverse, 0, most));
}

/* The shared exponent maps the largest value to the format's largest exponent; values take the nearest code. */
static inline void plain_mxfp4(const float *x, struct kn_mxfp4 *b)
{
    static const float value[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    float most = plain_largest(x, 32), scale = 0x1p-127f;
    memset(b, 0, sizeof *b);
    while (b->e < 254 && scale * 8 <= most) {
        scale *= 2;
        b->e++;
    }
    for (int i = 0; i < 32; i++) {
        float size = (x[i] < 0 ? -x[i] : x[i]) / scale;
        int best = 0;
        for (int c = 1; c < 8; c++)
            if (2 * size > value[c] + value[c - 1])
                best = c;
        b->q[i % 16] |= (uint8_t)((best | (x[i] < 0 ? 8 : 0)) << (i < 16 ? 0 : 4));
    }
}

/* A scale maps the largest of 16 values to the format's largest, and is rounded to the nearest; values take the nearest
 * code. */
static inline void plain_nvfp4(const float *x, struct kn_nvfp4 *b)
{
    static const float value[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    for (int s = 0; s < 4; s++) {
        float most = plain_largest(x + 16 * s, 16) / 6, step = 0, next = 0x1p-9f;
        while (b->d[s] < 126 && most > (step + next) / 2) {
            step = next;
            b->d[s]++;
            next = b->d[s] < 7 ? (float)(b->d[s] + 1) * 0x1p-9f
                               : ldexpf((float)(8 + (b->d[s] + 1) % 8), (b->d[s] + 1) / 8 - 10);
        }
        for (int i = 0; i < 16; i++) {
            float v = x[16 * s + i], size = step > 0 ? (v < 0 ? -v : v) / step : 0;
            int best = 0;
            for (int c = 1; c < 8; c++)
                if (2 * size > value[c] + value[c - 1])
                    best = c;
            b->q[8 * s + i % 8] |= (uint8_t)((best | (v < 0 ? 8 : 0)) << (i < 8 ? 0 : 4));
        }
    }
}

/* Encodes one block of format f. */
static inline void plain_encode(enum kn_format f, const float *x, void *block)
{
    memset(block, 0, (size_t)kn_format_info(f)->block_bytes);
    switch (f) {
    case KN_Q8_0:
        plain_q8_0(x, block);
        break;
    case KN_MXFP4:
        plain_mxfp4(x, block);
        break;
    case KN_NVFP4:
        plain_nvfp4(x, block);
        break;
    case KN_Q4_K:
        plain_q4_k(x, block);
        break;
    case KN_Q5_K:
        plain_q5_k(x, block);
        break;
    case KN_Q6_K:
        plain_q6_k(x, block);
        break;
    case KN_Q2_K:
        plain_q2_k(x, block);
        break;
    case KN_Q3_K:
        plain_q3_k(x, block);
        break;
    case KN_IQ4_XS:
        plain_iq4_xs(x, block);
        break;
    case KN_Q4_1:
    case KN_Q5_1:
        plain_step_and_low(f, x, block);
        break;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
        plain_grid(f, x, block);
        break;
    case KN_IQ1_S:
    case KN_IQ1_M:
        plain_iq1(f, x, block);
        break;
    default:
        kn_assert(f == KN_Q4_0 || f == KN_Q5_0 || f == KN_IQ4_NL);
        plain_one_step(f, x, block);
    }
}

#endif
