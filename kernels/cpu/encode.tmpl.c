/* kernels/cpu/encode.tmpl.c - float32 values to blocks of a weight format, with the least squared
 * error that a short search finds (simd_search.h).
 *
 * Input: whole blocks of values.  Output: blocks in file layout.  A block depends on its own values
 * only.  A value too large for a block format becomes the largest that the format can hold.  This
 * file has blocks of 256 and plain floats; encode_32.tmpl.c has blocks of 32, encode_grid.tmpl.c the
 * IQ2 and IQ3 formats.
 */
#include "kernels/cpu/simd_search.h"

/* The columns are the fields of struct grid (simd_search.h); `of` is per_block:
                                   low    iq4    n   of  codes      integers  near  ranges          again */
static const struct grid q4_k = { LOW, false, 32, 8, 0, 15, 63, 63, 1, 16, 13.25f, 0.25f, 0 };
static const struct grid q5_k = { LOW, false, 32, 8, 0, 31, 63, 63, 1, 16, 28.75f, 0.25f, 0 };
static const struct grid q6_k = { NO_LOW, false, 16, 16, -32, 31, 127, 0, 6, 16, 28.0f, 0.4f, 0 };
static const struct grid q2_k = { LOW, false, 16, 16, 0, 3, 15, 15, 1, 16, 2.1f, 0.15f, 3 };
static const struct grid q3_k = { NO_LOW, false, 16, 16, -4, 3, 31, 0, 2, 16, 3.0f, 0.15f, 2 };
static const struct grid iq4_xs = { NO_LOW, true, 32, 8, -127, 113, 31, 0, 2, 16, 100.0f, 3.0f, 1 };

static void pack_q4_k(const struct groups *p, int g, struct kn_q4_k *b)
{
    memset(b->sc, 0, sizeof b->sc);
    b->d = kn_f32_to_f16(p->w.d[g]);
    b->dmin = kn_f32_to_f16(p->w.dmin[g]);
    for (int s = 0; s < 8; s++)
        kn_q4_k_scale_put(b->sc, s, (int)p->w.sc[g + s], (int)p->w.m[g + s]);
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
            int g = 8 * h + l / 16, i = l % 16; /* values 32 apart are two groups apart */
            int c0 = code_of(p, g, i), c1 = code_of(p, g + 2, i);
            int c2 = code_of(p, g + 4, i), c3 = code_of(p, g + 6, i);
            b->ql[64 * h + l] = (uint8_t)((c0 & 15) | (c2 & 15) << 4);
            b->ql[64 * h + 32 + l] = (uint8_t)((c1 & 15) | (c3 & 15) << 4);
            b->qh[32 * h + l] = (uint8_t)(c0 >> 4 | c1 >> 4 << 2 | c2 >> 4 << 4 | c3 >> 4 << 6);
        }
}

static void pack_q5_k(const struct groups *p, int g, struct kn_q5_k *b)
{
    memset(b, 0, sizeof *b);
    b->d = kn_f32_to_f16(p->w.d[g]);
    b->dmin = kn_f32_to_f16(p->w.dmin[g]);
    for (int s = 0; s < 8; s++) {
        kn_q4_k_scale_put(b->sc, s, (int)p->w.sc[g + s], (int)p->w.m[g + s]);
        for (int i = 0; i < 32; i++) {
            int code = code_of(p, g + s, i);
            b->q[s / 2 * 32 + i] |= (uint8_t)((code & 15) << s % 2 * 4);
            b->qh[i] |= (uint8_t)(code >> 4 << s);
        }
    }
}

static void pack_q2_k(const struct groups *p, struct kn_q2_k *b)
{
    memset(b, 0, sizeof *b);
    b->d = kn_f32_to_f16(p->w.d[0]);
    b->dmin = kn_f32_to_f16(p->w.dmin[0]);
    for (int s = 0; s < 16; s++) {
        b->sc[s] = (uint8_t)((int)p->w.sc[s] | (int)p->w.m[s] << 4);
        for (int i = 0; i < 16; i++)
            b->q[s / 8 * 32 + s % 2 * 16 + i] |= (uint8_t)(code_of(p, s, i) << s / 2 % 4 * 2);
    }
}

static void pack_q3_k(const struct groups *p, struct kn_q3_k *b)
{
    memset(b, 0, sizeof *b);
    b->d = kn_f32_to_f16(p->w.d[0]);
    for (int s = 0; s < 16; s++) {
        kn_q3_k_scale_put(b->sc, s, (int)p->w.sc[s]);
        for (int i = 0; i < 16; i++) {
            int code = code_of(p, s, i);
            b->q[s / 8 * 32 + s % 2 * 16 + i] |= (uint8_t)((code & 3) << s / 2 % 4 * 2);
            b->qh[s % 2 * 16 + i] |= (uint8_t)(code >> 2 << s / 2);
        }
    }
}

static void pack_iq4_xs(const struct groups *p, int g, struct kn_iq4_xs *b)
{
    memset(b, 0, sizeof *b);
    b->d = kn_f32_to_f16(p->w.d[g]);
    for (int s = 0; s < 8; s++) {
        int bits = (int)p->w.sc[g + s] + 32;
        b->sl[s / 2] |= (uint8_t)((bits & 15) << s % 2 * 4);
        b->sh |= (uint16_t)(bits >> 4 << 2 * s);
        for (int i = 0; i < 16; i++)
            b->q[16 * s + i] = (uint8_t)(code_of(p, g + s, i) | code_of(p, g + s, i + 16) << 4);
    }
}

/* The encoder of n_block blocks of a format.  One search has 16 groups: one block of 16 groups, or two blocks of 8. */
#define BLOCKS_OF_16(name)                                                                                             \
    static void encode_##name(const float *x, const float *weight, size_t n_block, struct kn_##name *b)                \
    {                                                                                                                  \
        struct groups p;                                                                                               \
        for (size_t i = 0; i < n_block; i++) {                                                                         \
            load_groups(&p, x + 256 * i, weight ? weight + 256 * i : NULL, 16, 256);                                   \
            search(&name, &p);                                                                                         \
            to_codes(&name, &p);                                                                                       \
            pack_##name(&p, b + i);                                                                                    \
        }                                                                                                              \
    }
#define BLOCKS_OF_8(name)                                                                                              \
    static void encode_##name(const float *x, const float *weight, size_t n_block, struct kn_##name *b)                \
    {                                                                                                                  \
        struct groups p;                                                                                               \
        for (size_t i = 0; i < n_block; i += 2) {                                                                      \
            size_t n = n_block - i < 2 ? 1 : 2;                                                                        \
            load_groups(&p, x + 256 * i, weight ? weight + 256 * i : NULL, 32, 256 * n);                               \
            search(&name, &p);                                                                                         \
            to_codes(&name, &p);                                                                                       \
            for (size_t k = 0; k < n; k++)                                                                             \
                pack_##name(&p, (int)k * 8, b + i + k);                                                                \
        }                                                                                                              \
    }
BLOCKS_OF_8(q4_k)
BLOCKS_OF_8(q5_k)
BLOCKS_OF_8(iq4_xs)
BLOCKS_OF_16(q6_k)
BLOCKS_OF_16(q2_k)
BLOCKS_OF_16(q3_k)

/* ---- all formats ----------------------------------------------------------------------------- */

void KN_FN(kn_encode)(enum kn_format f, const float *x, const float *weight, size_t n, void *blocks)
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
    case KN_Q4_K:
        encode_q4_k(x, weight, n_block, blocks);
        break;
    case KN_Q5_K:
        encode_q5_k(x, weight, n_block, blocks);
        break;
    case KN_Q6_K:
        encode_q6_k(x, weight, n_block, blocks);
        break;
    case KN_Q2_K:
        encode_q2_k(x, weight, n_block, blocks);
        break;
    case KN_Q3_K:
        encode_q3_k(x, weight, n_block, blocks);
        break;
    case KN_IQ4_XS:
        encode_iq4_xs(x, weight, n_block, blocks);
        break;
    default:
        if (kn_grid(f))
            KN_FN(kn_encode_grid)(f, x, weight, n_block, blocks);
        else
            KN_FN(kn_encode_32)(f, x, weight, n_block, blocks);
    }
}
