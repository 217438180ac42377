/* moe/write/synth_fill.c - random weights, generated in the format in which they are stored.
 *
 * Quantising float32 noise would take minutes for a model of ten gigabytes.  Instead the codes themselves are random,
 * and the scales are chosen so that the values have mean 0 and the standard deviation asked for.  A block is a function
 * of the seed and its number, so any thread may make it.
 *
 * Deviation of the values for uniform codes and a scale that varies around d (factors with a mean square of about 1):
 *   Q8_0   code in [-127, 127], deviation 73.3
 *   Q4_K   d * sc * code - dmin * m with m = sc and dmin = 7.5 d: deviation 4.61 of the code times
 *          48.4, the root mean square of sc uniform in 32..63
 *   Q6_K   d * sc * (code - 32): deviation 18.5 times 96.7, the same for |sc| uniform in 64..127;
 *          a random sign of sc makes up for the mean of the codes, which is -1/2
 *   Q5_K   as Q4_K with dmin = 15.5 d: 9.23 times 48.4
 *   Q2_K   as Q4_K with sc in 8..15 and dmin = 1.5 d: 1.118 times 11.73
 *   Q3_K   d * sc * (code - 4): 2.345 times 23.95, |sc| uniform in 16..31 and its sign random
 *   IQ4_XS d * sc * one of 16 values: 67.44 times 23.95, sc as in Q3_K
 *   IQ2, IQ3   d * (2 * s + 1) * size * sign: the root mean square of the grid's sizes times 24.43, that of 2 * s + 1
 *          for s uniform in 8..15, times 1/8, 1/2 or 1
 *   IQ1        as IQ2, the values of the grid by 12.21: s in 4..7
 *   Q4_0, Q5_0, IQ4_NL   d * (code - 8), d * (code - 16), d * value: 4.637, 9.247, 67.44; sign of d random
 *   Q4_1, Q5_1           d * code + m, m = -7.5 d and -15.5 d: 4.61, 9.23
 *   MXFP4, NVFP4   step * one of 16 integers, deviation 5.852; steps are powers of two, or have four bits, so a share of the
 *          blocks, or of 16 values each, has the next larger step, chosen to give the right mean square */
#include "moe/write/write.h"

#include <stddef.h>
#include <string.h>

#define ROOT_3 1.7320508f /* uniform in [-1, 1] has deviation 1 / ROOT_3 */

static inline uint64_t word(const struct moe_synth_fill *f, uint64_t i) { return kn_mix(f->seed + KN_GOLDEN * i); }

/* Sets f->d to 16 exponents of MXFP4 blocks: e, and in the last `up` of them e + 1.  With 2^e as the smaller step the
 * mean square of the steps is 4^e * (16 + 3 * up) / 16. */
static void init_mxfp4(struct moe_synth_fill *f)
{
    float step = f->deviation / 5.852f, power = 0x1p-100f;
    int e = 28, up;
    for (; e < 250 && 2 * power <= step; e++)
        power *= 2;
    up = (int)((step / power * (step / power) - 1) * 16 / 3 + 0.5f);
    for (int i = 0; i < 16; i++)
        f->d[i] = (uint16_t)(e + (i >= 16 - up));
}

/* kn_nvfp4_step() of a scale without a sign. */
static float nvfp4_step(int d)
{
    struct kn_nvfp4 b = { .d = { (uint8_t)d }, .q = { 1 } };
    float x[64];
    kn_row_decode(KN_NVFP4, &b, 64, x);
    return x[0];
}

/* The same for NVFP4: scales d and d + 1. */
static void init_nvfp4(struct moe_synth_fill *f)
{
    float step = f->deviation / 5.852f;
    int d = 1;
    while (d < 125 && nvfp4_step(d + 1) <= step)
        d++;
    float low = nvfp4_step(d), high = nvfp4_step(d + 1);
    int up = kn_max(0, (int)((step * step - low * low) / (high * high - low * low) * 16 + 0.5f));
    for (int i = 0; i < 16; i++)
        f->d[i] = (uint16_t)(d + (i >= 16 - up));
}

void moe_synth_fill_init(struct moe_synth_fill *f)
{
    /* code: standard deviation of the values with d = 1.  middle: mean of the codes; dmin, or -m, is middle * d */
    static const struct {
        float code, middle;
    } of[KN_FORMAT_COUNT] = {
        [KN_Q8_0] = { 73.3f, 0 },
        [KN_Q4_0] = { 4.637f, 0 },
        [KN_Q4_1] = { 4.61f, 7.5f },
        [KN_Q5_0] = { 9.247f, 0 },
        [KN_Q5_1] = { 9.23f, 15.5f },
        [KN_IQ4_NL] = { 67.44f, 0 },
        [KN_Q4_K] = { 4.61f * 48.4f, 7.5f },
        [KN_Q5_K] = { 9.23f * 48.4f, 15.5f },
        [KN_Q6_K] = { 18.5f * 96.7f, 0 },
        [KN_Q2_K] = { 1.118f * 11.73f, 1.5f },
        [KN_Q3_K] = { 2.345f * 23.95f, 0 },
        [KN_IQ4_XS] = { 67.44f * 23.95f, 0 },
        [KN_IQ2_XXS] = { 23.12f * 24.43f / 8, 0 },
        [KN_IQ2_XS] = { 24.22f * 24.43f / 8, 0 },
        [KN_IQ2_S] = { 24.43f * 24.43f / 8, 0 },
        [KN_IQ3_XXS] = { 15.42f * 24.43f / 2, 0 },
        [KN_IQ3_S] = { 7.594f * 24.43f, 0 },
        [KN_IQ1_S] = { 6.247f * 12.21f / 8, 0 },
        [KN_IQ1_M] = { 6.247f * 12.21f / 8, 0 },
    };
    if (f->format == KN_MXFP4 || f->format == KN_NVFP4) {
        (f->format == KN_MXFP4 ? init_mxfp4 : init_nvfp4)(f);
        return;
    }
    if (!(of[f->format].code > 0)) /* floats have no scales */
        return;
    for (int i = 0; i < 16; i++) {
        float factor = 0.75f + (float)i / 32; /* 0.75 .. 1.22 */
        f->d[i] = kn_f32_to_f16(f->deviation / of[f->format].code * factor);
        f->dmin[i] = kn_f32_to_f16(of[f->format].middle * kn_f16_to_f32(f->d[i]));
    }
}

static void fill_float(const struct moe_synth_fill *f, uint64_t i, size_t n, void *out)
{
    float *wide = out;
    uint16_t *half = out;
    for (size_t k = 0; k < n; k++) {
        int32_t noise = (int32_t)(word(f, i + k) >> 32);
        float x = f->mean + f->deviation * ROOT_3 * ((float)noise * 0x1p-31f);
        if (f->format == KN_F32)
            wide[k] = x;
        else
            half[k] = f->format == KN_F16 ? kn_f32_to_f16(x) : kn_f32_to_bf16(x);
    }
}

static void fill_q8_0(const struct moe_synth_fill *f, uint64_t i, struct kn_q8_0 *b)
{
    uint64_t code[4], at = i * 5;
    b->d = f->d[word(f, at) & 15];
    for (int k = 0; k < 4; k++)
        code[k] = word(f, at + 1 + (uint64_t)k);
    memcpy(b->q, code, sizeof b->q);
    for (int k = 0; k < 32; k++)
        b->q[k] = b->q[k] == -128 ? 0 : b->q[k];
}

static void fill_q4_k(const struct moe_synth_fill *f, uint64_t i, struct kn_q4_k *b)
{
    uint64_t code[16], at = i * 17, head = word(f, at);
    b->d = f->d[head & 15];
    b->dmin = f->dmin[head & 15];
    memset(b->sc, 0, sizeof b->sc);
    for (int s = 0; s < 8; s++) {
        int sc = 32 + (int)(head >> (4 + 5 * s) & 31);
        kn_q4_k_scale_put(b->sc, s, sc, sc);
    }
    for (int k = 0; k < 16; k++)
        code[k] = word(f, at + 1 + (uint64_t)k);
    memcpy(b->q, code, sizeof b->q);
}

static void fill_q6_k(const struct moe_synth_fill *f, uint64_t i, struct kn_q6_k *b)
{
    uint64_t code[24], at = i * 27, head[2] = { word(f, at), word(f, at + 1) };
    b->d = f->d[word(f, at + 2) & 15];
    for (int s = 0; s < 16; s++) {
        int bits = (int)(head[s / 8] >> 8 * (s % 8)) & 0xff, size = 64 + (bits & 63);
        b->sc[s] = (int8_t)(bits & 64 ? size : -size);
    }
    for (int k = 0; k < 24; k++)
        code[k] = word(f, at + 3 + (uint64_t)k);
    memcpy(b->ql, code, sizeof b->ql);
    memcpy(b->qh, code + 16, sizeof b->qh);
}

static void fill_mxfp4(const struct moe_synth_fill *f, uint64_t i, struct kn_mxfp4 *b)
{
    uint64_t code[2] = { word(f, 3 * i), word(f, 3 * i + 1) };
    b->e = (uint8_t)f->d[word(f, 3 * i + 2) & 15];
    memcpy(b->q, code, sizeof b->q);
}

/* Fills `bytes` bytes with random words, from number `at` on. */
static void fill_codes(const struct moe_synth_fill *f, uint64_t at, void *out, size_t bytes)
{
    for (size_t k = 0; k < bytes; k += sizeof at) {
        uint64_t code = word(f, at + k / sizeof at);
        memcpy((uint8_t *)out + k, &code, bytes - k < sizeof code ? bytes - k : sizeof code);
    }
}

static void fill_nvfp4(const struct moe_synth_fill *f, uint64_t i, struct kn_nvfp4 *b)
{
    uint64_t scale = word(f, 5 * i);
    for (int s = 0; s < 4; s++)
        b->d[s] = (uint8_t)f->d[scale >> 4 * s & 15];
    fill_codes(f, 5 * i + 1, b->q, sizeof b->q);
}

static uint16_t with_sign(uint16_t half, uint64_t bit) { return (uint16_t)(half ^ (bit & 1) << 15); }

/* Fills block i of a format with blocks of 32 values: d, in Q4_1 and Q5_1 also m, and codes. */
static void fill_nibbles(const struct moe_synth_fill *f, uint64_t i, uint8_t *b)
{
    const size_t bytes = (size_t)kn_format_info(f->format)->block_bytes;
    const bool low = f->format == KN_Q4_1 || f->format == KN_Q5_1;
    uint64_t at = i * 4, head = word(f, at);
    uint16_t d = with_sign(f->d[head & 15], low ? 0 : head >> 4), m = with_sign(f->dmin[head & 15], 1);
    fill_codes(f, at + 1, b, bytes);
    memcpy(b, &d, sizeof d);
    if (low)
        memcpy(b + 2, &m, sizeof m);
}

static void fill_q5_k(const struct moe_synth_fill *f, uint64_t i, struct kn_q5_k *b)
{
    uint64_t at = i * 23, head = word(f, at);
    fill_codes(f, at + 1, b, sizeof *b);
    b->d = f->d[head & 15];
    b->dmin = f->dmin[head & 15];
    memset(b->sc, 0, sizeof b->sc);
    for (int s = 0; s < 8; s++) {
        int sc = 32 + (int)(head >> (4 + 5 * s) & 31);
        kn_q4_k_scale_put(b->sc, s, sc, sc);
    }
}

static void fill_q2_k(const struct moe_synth_fill *f, uint64_t i, struct kn_q2_k *b)
{
    uint64_t at = i * 12, head = word(f, at);
    fill_codes(f, at + 1, b, sizeof *b);
    b->d = f->d[head & 15];
    b->dmin = f->dmin[head & 15];
    for (int s = 0; s < 16; s++)
        b->sc[s] = (uint8_t)((8 + (head >> (4 + 3 * s) & 7)) * 0x11);
}

/* A scale of size 16..31 from the low four bits, positive if the fifth bit is set. */
static int signed_scale(uint64_t bits)
{
    int size = 16 + (int)(bits & 15);
    return bits >> 4 & 1 ? size : -size;
}

static void fill_q3_k(const struct moe_synth_fill *f, uint64_t i, struct kn_q3_k *b)
{
    uint64_t at = i * 16, head[2] = { word(f, at), word(f, at + 1) };
    fill_codes(f, at + 2, b, sizeof *b);
    b->d = f->d[head[0] & 15];
    memset(b->sc, 0, sizeof b->sc);
    for (int s = 0; s < 16; s++)
        kn_q3_k_scale_put(b->sc, s, signed_scale(head[s / 8] >> (4 + s % 8 * 5)));
}

static void fill_iq4_xs(const struct moe_synth_fill *f, uint64_t i, struct kn_iq4_xs *b)
{
    uint64_t at = i * 18, head = word(f, at);
    fill_codes(f, at + 1, b, sizeof *b);
    b->d = f->d[head & 15];
    b->sh = 0;
    memset(b->sl, 0, sizeof b->sl);
    for (int s = 0; s < 8; s++) {
        int bits = 32 + signed_scale(head >> (4 + s * 5));
        b->sl[s / 2] |= (uint8_t)((bits & 15) << s % 2 * 4);
        b->sh |= (uint16_t)(bits >> 4 << 2 * s);
    }
}

/* Every number is a valid index; the top bit of each scale is set. */
static void fill_grid(const struct moe_synth_fill *f, uint64_t i, uint8_t *b)
{
    /* the bytes of scales: n of them, from byte `at` on, `step` apart; `top`: the top bits of their scales */
    static const struct {
        size_t at, n, step;
        uint8_t top;
    } scales[KN_FORMAT_COUNT] = {
        [KN_IQ2_XXS] = { offsetof(struct kn_iq2_xxs, q) + 7, 8, 8, 0x80 },
        [KN_IQ2_XS] = { offsetof(struct kn_iq2_xs, sc), 8, 1, 0x88 },
        [KN_IQ2_S] = { offsetof(struct kn_iq2_s, sc), 8, 1, 0x88 },
        [KN_IQ3_XXS] = { offsetof(struct kn_iq3_xxs, s) + 3, 8, 4, 0x80 },
        [KN_IQ3_S] = { offsetof(struct kn_iq3_s, sc), 4, 1, 0x88 },
        [KN_IQ1_S] = { offsetof(struct kn_iq1_s, qh) + 1, 8, 2, 0x40 },
    };
    const size_t bytes = (size_t)kn_format_info(f->format)->block_bytes;
    uint64_t at = i * 15, head = word(f, at);
    uint16_t d = f->d[head & 15];
    fill_codes(f, at + 1, b, bytes);
    memcpy(b, &d, sizeof d);
    for (size_t k = 0; k < scales[f->format].n; k++)
        b[scales[f->format].at + k * scales[f->format].step] |= scales[f->format].top;
}

/* As fill_grid(); the scales are three bits each, with d above. */
static void fill_iq1_m(const struct moe_synth_fill *f, uint64_t i, struct kn_iq1_m *b)
{
    uint64_t at = i * 15, head = word(f, at);
    uint16_t d = f->d[head & 15];
    fill_codes(f, at + 1, b, sizeof *b);
    for (int k = 0; k < 4; k++) {
        int bits = b->sc[2 * k] | (b->sc[2 * k + 1] & 15) << 8 | 0x924 | (d >> 4 * k & 15) << 12;
        b->sc[2 * k] = (uint8_t)bits;
        b->sc[2 * k + 1] = (uint8_t)(bits >> 8);
    }
}

static void fill_block(const struct moe_synth_fill *f, uint64_t i, void *b)
{
    switch (f->format) {
    case KN_Q8_0:
        fill_q8_0(f, i, b);
        break;
    case KN_Q4_K:
        fill_q4_k(f, i, b);
        break;
    case KN_Q5_K:
        fill_q5_k(f, i, b);
        break;
    case KN_Q6_K:
        fill_q6_k(f, i, b);
        break;
    case KN_Q2_K:
        fill_q2_k(f, i, b);
        break;
    case KN_Q3_K:
        fill_q3_k(f, i, b);
        break;
    case KN_IQ4_XS:
        fill_iq4_xs(f, i, b);
        break;
    case KN_MXFP4:
        fill_mxfp4(f, i, b);
        break;
    case KN_NVFP4:
        fill_nvfp4(f, i, b);
        break;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S:
        fill_grid(f, i, b);
        break;
    case KN_IQ1_M:
        fill_iq1_m(f, i, b);
        break;
    default:
        fill_nibbles(f, i, b);
    }
}

void moe_synth_fill(const struct moe_synth_fill *f, uint64_t block0, size_t n_block, void *out)
{
    const struct kn_format_info *info = kn_format_info(f->format);
    if (info->block_values == 1)
        fill_float(f, block0, n_block, out);
    else
        for (size_t i = 0; i < n_block; i++)
            fill_block(f, block0 + i, (uint8_t *)out + i * (size_t)info->block_bytes);
}
