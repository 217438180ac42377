/* tests/kernels/plain_encode.h - the obvious encoder, for the search to be held against: a block's scale
 * comes from its extremes, and every code is the nearest one. */
#ifndef TESTS_KERNELS_PLAIN_ENCODE_H
#define TESTS_KERNELS_PLAIN_ENCODE_H

#include <string.h>

#include "kernels/kernels.h"

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

static inline void plain_q4_k(const float *x, struct kn_q4_k *b)
{
    float scale[8], low[8], scale_most = 0, low_most = 0;
    for (int s = 0; s < 8; s++) {
        float least = 0, most = 0;                      /* 0 is always in range: min has no sign */
        for (int i = 0; i < 32; i++) {
            least = x[32 * s + i] < least ? x[32 * s + i] : least;
            most = x[32 * s + i] > most ? x[32 * s + i] : most;
        }
        scale[s] = (most - least) / 15;
        low[s] = -least;
        scale_most = scale[s] > scale_most ? scale[s] : scale_most;
        low_most = low[s] > low_most ? low[s] : low_most;
    }
    memset(b, 0, sizeof *b);
    b->d = kn_f32_to_f16(scale_most / 63);
    b->dmin = kn_f32_to_f16(low_most / 63);
    float d = kn_f16_to_f32(b->d), dmin = kn_f16_to_f32(b->dmin);
    for (int s = 0; s < 8; s++) {
        int sc = plain_nearest(scale[s] * plain_inverse(d), 0, 63);
        int m = plain_nearest(low[s] * plain_inverse(dmin), 0, 63);
        kn_q4_k_scale_put(b, s, sc, m);
        float step = plain_inverse(d * (float)sc), shift = dmin * (float)m;
        for (int i = 0; i < 32; i++) {
            int code = plain_nearest((x[32 * s + i] + shift) * step, 0, 15);
            b->q[32 * (s / 2) + i] |= (uint8_t)(code << 4 * (s & 1));
        }
    }
}

static inline void plain_q6_k(const float *x, struct kn_q6_k *b)
{
    float scale[16], scale_most = 0;
    for (int s = 0; s < 16; s++) {
        scale[s] = plain_largest(x + 16 * s, 16) / 31;
        scale_most = scale[s] > scale_most ? scale[s] : scale_most;
    }
    memset(b, 0, sizeof *b);
    b->d = kn_f32_to_f16(scale_most / 127);
    float d = kn_f16_to_f32(b->d);
    for (int s = 0; s < 16; s++) {
        int sc = plain_nearest(scale[s] * plain_inverse(d), 0, 127);
        float step = plain_inverse(d * (float)sc);
        b->sc[s] = (int8_t)sc;
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            int code = plain_nearest(x[i] * step, -32, 31) + 32, h = i / 128, f = i / 32 % 4;
            b->ql[64 * h + 32 * (f & 1) + i % 32] |= (uint8_t)((code & 15) << 4 * (f >> 1));
            b->qh[32 * h + i % 32] |= (uint8_t)((code >> 4) << 2 * f);
        }
    }
}

/* The largest value's exponent is the format's largest; every value takes the nearest of the sixteen. */
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

/* One block. */
static inline void plain_encode(enum kn_format f, const float *x, void *block)
{
    kn_assert(f == KN_Q8_0 || f == KN_Q4_K || f == KN_Q6_K || f == KN_MXFP4);
    if (f == KN_Q8_0)
        plain_q8_0(x, block);
    else if (f == KN_MXFP4)
        plain_mxfp4(x, block);
    else if (f == KN_Q4_K)
        plain_q4_k(x, block);
    else
        plain_q6_k(x, block);
}

#endif
