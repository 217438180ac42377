/* moe/quantize.c - float32 rows to file rows, one encoder per format.
 *
 * In comes a row of n_in finite values, out goes the row as it stands in a GGUF file.  The encoders
 * are plain: a block's scale comes from its extremes and every code is the nearest one.  Decoding
 * is the kernels' (kn_row_decode); a value comes back within half a step of its block. */
#include "moe/internal.h"

#include <string.h>

static int nearest(float x, int least, int most)
{
    int i = (int)(x < 0 ? x - 0.5f : x + 0.5f);
    return kn_max(least, kn_min(most, i));
}

static float inverse(float x) { return x > 0 ? 1 / x : 0; }

static float largest(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        most = a > most ? a : most;
    }
    return most;
}

static void encode_q8_0(const float *x, struct kn_q8_0 *b)
{
    b->d = kn_f32_to_f16(largest(x, 32) / 127);
    float inv = inverse(kn_f16_to_f32(b->d));
    for (int i = 0; i < 32; i++)
        b->q[i] = (int8_t)nearest(x[i] * inv, -127, 127);
}

/* value = d * scale * code - dmin * min, scale and min 6 bits per 32 values, code 4 bits. */
static void encode_q4_k(const float *x, struct kn_q4_k *b)
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
    b->d = kn_f32_to_f16(scale_most / 63);
    b->dmin = kn_f32_to_f16(low_most / 63);
    float d = kn_f16_to_f32(b->d), dmin = kn_f16_to_f32(b->dmin);

    memset(b->sc, 0, sizeof b->sc);
    memset(b->q, 0, sizeof b->q);
    for (int s = 0; s < 8; s++) {
        int sc = nearest(scale[s] * inverse(d), 0, 63), m = nearest(low[s] * inverse(dmin), 0, 63);
        moe_q4_k_scale(b, s, sc, m);
        float step = inverse(d * (float)sc), shift = dmin * (float)m;
        for (int i = 0; i < 32; i++) {
            int code = nearest((x[32 * s + i] + shift) * step, 0, 15);
            b->q[32 * (s / 2) + i] |= (uint8_t)(code << 4 * (s & 1));
        }
    }
}

/* Six bits of scale and min of sub-block s, spread over the twelve bytes as the format has it. */
void moe_q4_k_scale(struct kn_q4_k *b, int s, int sc, int m)
{
    if (s < 4) {
        b->sc[s] |= (uint8_t)sc;
        b->sc[s + 4] |= (uint8_t)m;
    } else {
        b->sc[s - 4] |= (uint8_t)((sc >> 4) << 6);
        b->sc[s] |= (uint8_t)((m >> 4) << 6);
        b->sc[s + 4] |= (uint8_t)((sc & 15) | (m & 15) << 4);
    }
}

/* value = d * scale * (code - 32), scale 8 bits per 16 values, code 6 bits. */
static void encode_q6_k(const float *x, struct kn_q6_k *b)
{
    float scale[16], scale_most = 0;
    for (int s = 0; s < 16; s++) {
        scale[s] = largest(x + 16 * s, 16) / 31;
        scale_most = scale[s] > scale_most ? scale[s] : scale_most;
    }
    b->d = kn_f32_to_f16(scale_most / 127);
    float d = kn_f16_to_f32(b->d);

    memset(b->ql, 0, sizeof b->ql);
    memset(b->qh, 0, sizeof b->qh);
    for (int s = 0; s < 16; s++) {
        int sc = nearest(scale[s] * inverse(d), 0, 127);
        float step = inverse(d * (float)sc);
        b->sc[s] = (int8_t)sc;
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            int code = nearest(x[i] * step, -32, 31) + 32, h = i / 128, f = i / 32 % 4, l = i % 32;
            b->ql[64 * h + 32 * (f & 1) + l] |= (uint8_t)((code & 15) << 4 * (f >> 1));
            b->qh[32 * h + l] |= (uint8_t)((code >> 4) << 2 * f);
        }
    }
}

void moe_row_encode(enum kn_format f, const float *x, int n_in, void *row)
{
    kn_assert(kn_row_bytes(f, n_in));
    uint16_t *half = row;
    int n_block = n_in / kn_format_info(f)->block_values;
    switch (f) {
    case KN_F32:
        memcpy(row, x, (size_t)n_in * sizeof *x);
        break;
    case KN_F16:
        for (int i = 0; i < n_in; i++)
            half[i] = kn_f32_to_f16(x[i]);
        break;
    case KN_BF16:
        for (int i = 0; i < n_in; i++)
            half[i] = kn_f32_to_bf16(x[i]);
        break;
    case KN_Q8_0:
        for (int i = 0; i < n_block; i++)
            encode_q8_0(x + 32 * i, (struct kn_q8_0 *)row + i);
        break;
    case KN_Q4_K:
        for (int i = 0; i < n_block; i++)
            encode_q4_k(x + 256 * i, (struct kn_q4_k *)row + i);
        break;
    case KN_Q6_K:
        for (int i = 0; i < n_block; i++)
            encode_q6_k(x + 256 * i, (struct kn_q6_k *)row + i);
        break;
    default:
        kn_assert(!"a format without an encoder");
    }
}
