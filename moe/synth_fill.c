/* moe/synth_fill.c - random weights, made in the format they are stored in.
 *
 * Quantising float32 noise would take minutes for a model of ten gigabytes; here the codes
 * themselves are random and the scales chosen so that the values have mean 0 and the deviation
 * asked for.  A block is a function of the seed and its number, so any thread may make it.
 *
 * For uniform codes and a scale that varies around d (a mean square of the factors of about 1):
 *   Q8_0   code in [-127, 127], deviation 73.3
 *   Q4_K   d * sc * code - dmin * m with m = sc and dmin = 7.5 d: deviation 4.61 of the code times
 *          48.4, the root mean square of sc uniform in 32..63
 *   Q6_K   d * sc * (code - 32): deviation 18.5 times 96.7, the same for |sc| uniform in 64..127;
 *          a random sign of sc makes up for the mean of the codes, which is -1/2
 *   MXFP4  step * one of 16 whole numbers, deviation 5.852; steps are powers of two, so some blocks
 *          take the next one up, as many as make the mean square what it should be */
#include "moe/internal.h"

#include <string.h>

#define ROOT_3 1.7320508f                   /* uniform in [-1, 1] has deviation 1 / ROOT_3 */

static inline uint64_t word(const struct moe_synth_fill *f, uint64_t i)
{
    return kn_mix(f->seed + KN_GOLDEN * i);
}

/* Of 16 exponents the last `up` are one larger: 4^e * (16 + 3 * up) / 16 is the mean square. */
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

void moe_synth_fill_init(struct moe_synth_fill *f)
{
    if (f->format == KN_MXFP4) {
        init_mxfp4(f);
        return;
    }
    float code = f->format == KN_Q8_0   ? 73.3f
                 : f->format == KN_Q4_K ? 4.61f * 48.4f
                                        : 18.5f * 96.7f;
    for (int i = 0; i < 16; i++) {
        float factor = 0.75f + (float)i / 32;           /* 0.75 .. 1.22 */
        f->d[i] = kn_f32_to_f16(f->deviation / code * factor);
        f->dmin[i] = kn_f32_to_f16(7.5f * kn_f16_to_f32(f->d[i]));
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
        kn_q4_k_scale_put(b, s, sc, sc);
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

void moe_synth_fill(const struct moe_synth_fill *f, uint64_t block0, size_t n_block, void *out)
{
    if (f->format == KN_F32 || f->format == KN_F16 || f->format == KN_BF16)
        fill_float(f, block0, n_block, out);
    else
        for (size_t i = 0; i < n_block; i++)
            switch (f->format) {
            case KN_Q8_0: fill_q8_0(f, block0 + i, (struct kn_q8_0 *)out + i); break;
            case KN_Q4_K: fill_q4_k(f, block0 + i, (struct kn_q4_k *)out + i); break;
            case KN_Q6_K: fill_q6_k(f, block0 + i, (struct kn_q6_k *)out + i); break;
            case KN_MXFP4: fill_mxfp4(f, block0 + i, (struct kn_mxfp4 *)out + i); break;
            default:      kn_assert(!"a format that cannot be made");
            }
}
