/* Random weights and activations: blocks of every format, ordinary and extreme.  tests/kernels/bits.txt depends on the
 * numbers that come from here. */
#ifndef TESTS_KERNELS_DRAW_H
#define TESTS_KERNELS_DRAW_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

static uint64_t seed;

static inline uint64_t draw(void) { return kn_mix(seed += KN_GOLDEN); }
static inline int below(int n) { return (int)(draw() >> 33) % n; }
static inline float uniform(void) { return (float)(int32_t)(draw() >> 32) * 0x1p-31f; }

enum fill { PLAIN, LARGEST, TINY, HUGE_SCALE, ZERO, N_FILL };

static inline uint16_t draw_half(enum fill fill)
{
    uint16_t sign = (uint16_t)(below(2) << 15);

    switch (fill) {
    case TINY:
        return (uint16_t)(sign | below(0x400));
    case HUGE_SCALE:
        return (uint16_t)(sign | (0x7BFF - below(16)));
    case ZERO:
        return sign;
    default:
        return (uint16_t)(sign | (0x1800 + below(0x800)));
    }
}

/* A byte of codes or scales: `edge` where the fill tests extremes, otherwise random. */
static inline uint8_t draw_byte(enum fill fill, uint8_t edge)
{
    return (uint8_t)(fill == LARGEST || (fill == HUGE_SCALE && below(2)) ? edge : below(256));
}

/* Offsets of a block's half-precision numbers; its other bytes are codes and scales. */
static const struct {
    int n, at[2];
} halves_of[KN_FORMAT_COUNT] = {
    [KN_Q8_0] = { 1, { 0 } },      [KN_Q4_0] = { 1, { 0 } },    [KN_Q4_1] = { 2, { 0, 2 } },
    [KN_Q5_0] = { 1, { 0 } },      [KN_Q5_1] = { 2, { 0, 2 } }, [KN_IQ4_NL] = { 1, { 0 } },
    [KN_Q4_K] = { 2, { 0, 2 } },   [KN_Q5_K] = { 2, { 0, 2 } }, [KN_Q6_K] = { 1, { 208 } },
    [KN_Q2_K] = { 2, { 80, 82 } }, [KN_Q3_K] = { 1, { 108 } },  [KN_IQ4_XS] = { 1, { 0 } },
    [KN_IQ2_XXS] = { 1, { 0 } },   [KN_IQ2_XS] = { 1, { 0 } },  [KN_IQ2_S] = { 1, { 0 } },
    [KN_IQ3_XXS] = { 1, { 0 } },   [KN_IQ3_S] = { 1, { 0 } },   [KN_IQ1_S] = { 1, { 0 } },
    [KN_UINT4] = { 1, { 0 } },
};

/* The extreme byte: the codes of Q8_0 and the scales of Q6_K are signed. */
static inline uint8_t edge_of(enum kn_format f, int i)
{
    if (f == KN_Q8_0 || (f == KN_Q6_K && i >= 192))
        return below(2) ? 0x80 : 0x7F;
    if (f == KN_MXFP4 || f == KN_NVFP4)
        return below(2) ? 0x77 : 0xFF;
    return below(2) ? 0xFF : 0;
}

static inline void fill_block(enum kn_format f, enum fill fill, uint8_t *p)
{
    uint8_t edge = edge_of(f, 0);
    uint16_t half = draw_half(fill);
    float x = kn_f16_to_f32(half);

    switch (f) {
    case KN_F32:
    case KN_BF16:
        x = fill == TINY ? uniform() * 0x1p-127f : fill == HUGE_SCALE ? uniform() * 0x1p127f : x;
        half = kn_f32_to_bf16(x);
        memcpy(p, f == KN_F32 ? (void *)&x : &half, f == KN_F32 ? sizeof x : sizeof half);
        return;
    case KN_F16:
        memcpy(p, &half, sizeof half);
        return;
    default:
        for (int i = 0; i < kn_format_info(f)->block_bytes; i++)
            p[i] = draw_byte(fill, f == KN_MXFP4 || f == KN_NVFP4 || f == KN_Q6_K ? edge_of(f, i) : edge);
    }
    for (int i = 0; i < halves_of[f].n; i++) {
        half = draw_half(fill);
        memcpy(p + halves_of[f].at[i], &half, sizeof half);
    }
    if (f == KN_IQ1_M) {
        half = draw_half(fill);
        for (int i = 0; i < 4; i++)
            p[49 + 2 * i] = (uint8_t)((p[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
    }
    if (f == KN_Q4_K || f == KN_Q5_K)
        for (int i = 4; i < 16; i++)
            p[i] = draw_byte(fill, 0xFF);
    if (f == KN_INT4) {
        half = kn_f32_to_bf16(fill == TINY ? uniform() * 0x1p-127f : fill == HUGE_SCALE ? uniform() * 0x1p127f : x);
        memcpy(p, &half, sizeof half);
    }
    if (f == KN_FP8) {
        x = fill == TINY ? uniform() * 0x1p-120f : fill == HUGE_SCALE ? uniform() * 0x1p118f : x;
        memcpy(p, &x, sizeof x);
        for (int i = 4; i < 132 && fill != HUGE_SCALE; i++) /* one NaN makes the whole sum NaN */
            p[i] = (uint8_t)((p[i] & 0x7F) == 0x7F ? p[i] - 1 : p[i]);
    }
    for (int i = 0; f == KN_NVFP4 && i < 4 && fill != LARGEST; i++)
        p[i] = (uint8_t)(fill == ZERO ? 0 : fill == TINY ? below(9) : fill == HUGE_SCALE ? 120 + below(8) : below(256));
    if (f == KN_UINT4)
        p[2] = (uint8_t)(fill == LARGEST ? 16 * below(2) : below(17));
    if (f == KN_MXFP4)
        p[0] = (uint8_t)(fill == TINY || fill == ZERO ? below(3)
                         : fill == HUGE_SCALE         ? 255 - below(16)
                                                      : 110 + below(20));
}

enum inputs { USUAL, OUTLIERS, SATURATED, DENORMALS, GIANTS, STRANGE, N_INPUTS };

static inline float draw_input(enum inputs kind, int i, int sign)
{
    static const float strange[] = { NAN, INFINITY, -INFINITY, -0.0f, 0x1p-101f, 3e38f, 1e-45f };

    switch (kind) {
    case OUTLIERS:
        return i % 37 == 5 ? 100 * uniform() : uniform();
    case SATURATED:
        return (float)sign * 3.0f;
    case DENORMALS:
        return uniform() * (i / 256 % 2 ? 0x1p-100f : 0x1p-127f);
    case GIANTS:
        return uniform() * 0x1p127f;
    case STRANGE:
        return i % 300 == 7 ? strange[below(7)] : uniform();
    default:
        return uniform();
    }
}

#endif
