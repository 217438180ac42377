/* kernels/cpu/formats.c - the table of weight formats: names, sizes, the fields of their blocks; and
 * half precision.
 *
 * The fields of a format's block are listed once, in panel order.  Code that moves blocks without
 * decoding them (the scalar repack, reading a row of a panel) uses kn_format_fields(); decode.c decodes
 * values. */
#include "kernels/internal.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

static const struct kn_format_info formats[KN_FORMAT_COUNT] = {
#define KN_ENTRY(name, type, values, bytes, act) [KN_##name] = { #name, type, values, bytes, act },
    KN_FORMATS(KN_ENTRY)
#undef KN_ENTRY
};

#define KN_NAME(name, type, values, bytes, act) " " #name
const char kn_format_list[] = KN_GGUF_FORMATS(KN_NAME);
#undef KN_NAME

const struct kn_format_info *kn_format_info(enum kn_format f)
{
    kn_assert(f >= 0 && f < KN_FORMAT_COUNT);
    return &formats[f];
}

int kn_format_find(const char *name, enum kn_format *out)
{
    for (int f = 0; f < KN_GGUF_FORMAT_COUNT; f++) {
        if (strcasecmp(name, formats[f].name) == 0) {
            *out = (enum kn_format)f;
            return 0;
        }
    }
    return KN_EUNSUPPORTED;
}

int kn_format_from_gguf(uint32_t type, enum kn_format *out)
{
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
        if ((uint32_t)formats[f].gguf_type == type) {
            *out = (enum kn_format)f;
            return 0;
        }
    }
    return KN_EUNSUPPORTED;
}

/* ---- fields ---------------------------------------------------------------------------------- */

#define FIELD(format, member, size)                                                                                    \
    {                                                                                                                  \
        offsetof(struct kn_##format, member), sizeof(((struct kn_##format *)0)->member) / size, size                   \
    }

/* The fields of each format as { at, n, size } of struct kn_field.  Codes are items of four bytes (one byte in FP8). */
static const struct kn_field fields[KN_FORMAT_COUNT][KN_FIELDS] = {
    [KN_F32] = { { 0, 1, 4 } },
    [KN_F16] = { { 0, 1, 2 } },
    [KN_BF16] = { { 0, 1, 2 } },
    [KN_Q8_0] = { FIELD(q8_0, d, 2), FIELD(q8_0, q, 4) },
    [KN_Q4_0] = { FIELD(q4_0, d, 2), FIELD(q4_0, q, 4) },
    [KN_IQ4_NL] = { FIELD(q4_0, d, 2), FIELD(q4_0, q, 4) },
    [KN_Q4_1] = { FIELD(q4_1, d, 2), FIELD(q4_1, m, 2), FIELD(q4_1, q, 4) },
    [KN_Q5_0] = { FIELD(q5_0, d, 2), FIELD(q5_0, qh, 4), FIELD(q5_0, q, 4) },
    [KN_Q5_1] = { FIELD(q5_1, d, 2), FIELD(q5_1, m, 2), FIELD(q5_1, qh, 4), FIELD(q5_1, q, 4) },
    [KN_MXFP4] = { FIELD(mxfp4, e, 1), FIELD(mxfp4, q, 4) },
    [KN_Q4_K] = { FIELD(q4_k, d, 2), FIELD(q4_k, dmin, 2), FIELD(q4_k, sc, 1), FIELD(q4_k, q, 4) },
    [KN_Q5_K] = { FIELD(q5_k, d, 2), FIELD(q5_k, dmin, 2), FIELD(q5_k, sc, 1), FIELD(q5_k, qh, 4), FIELD(q5_k, q, 4) },
    [KN_Q6_K] = { FIELD(q6_k, d, 2), FIELD(q6_k, sc, 1), FIELD(q6_k, ql, 4), FIELD(q6_k, qh, 4) },
    [KN_Q2_K] = { FIELD(q2_k, d, 2), FIELD(q2_k, dmin, 2), FIELD(q2_k, sc, 1), FIELD(q2_k, q, 4) },
    [KN_Q3_K] = { FIELD(q3_k, d, 2), FIELD(q3_k, sc, 1), FIELD(q3_k, qh, 4), FIELD(q3_k, q, 4) },
    [KN_IQ4_XS] = { FIELD(iq4_xs, d, 2), FIELD(iq4_xs, sh, 2), FIELD(iq4_xs, sl, 4), FIELD(iq4_xs, q, 4) },
    [KN_IQ2_XXS] = { FIELD(iq2_xxs, d, 2), FIELD(iq2_xxs, q, 4) },
    [KN_IQ2_XS] = { FIELD(iq2_xs, d, 2), FIELD(iq2_xs, sc, 4), FIELD(iq2_xs, q, 4) },
    [KN_IQ2_S] = { FIELD(iq2_s, d, 2), FIELD(iq2_s, qh, 4), FIELD(iq2_s, sc, 4), FIELD(iq2_s, sign, 4),
                   FIELD(iq2_s, q, 4) },
    [KN_IQ3_XXS] = { FIELD(iq3_xxs, d, 2), FIELD(iq3_xxs, q, 4), FIELD(iq3_xxs, s, 4) },
    [KN_IQ3_S] = { FIELD(iq3_s, d, 2), FIELD(iq3_s, qh, 4), FIELD(iq3_s, sc, 4), FIELD(iq3_s, sign, 4),
                   FIELD(iq3_s, q, 4) },
    [KN_IQ1_S] = { FIELD(iq1_s, d, 2), FIELD(iq1_s, q, 4), FIELD(iq1_s, qh, 4) },
    [KN_IQ1_M] = { FIELD(iq1_m, q, 4), FIELD(iq1_m, qh, 4), FIELD(iq1_m, sc, 4) },
    [KN_NVFP4] = { { 0, 2, 1 }, { 4, 4, 4 }, { 2, 2, 1 }, { 20, 4, 4 } }, /* d and q of either half */
    [KN_FP8] = { FIELD(fp8, d, 4), FIELD(fp8, q, 1) },
    [KN_INT4] = { FIELD(q4_0, d, 2), FIELD(q4_0, q, 4) },
    [KN_UINT4] = { FIELD(uint4, d, 2), FIELD(uint4, z, 1), FIELD(uint4, q, 4) },
};

const struct kn_field *kn_format_fields(enum kn_format f) { return fields[f]; }

/* ---- sizes ----------------------------------------------------------------------------------- */

size_t kn_row_bytes(enum kn_format f, int n_in)
{
    const struct kn_format_info *info = kn_format_info(f);
    size_t bytes;

    if (n_in <= 0 || n_in % info->block_values != 0)
        return 0;
    if (!kn_mul((size_t)(n_in / info->block_values), (size_t)info->block_bytes, &bytes))
        return 0;
    return bytes;
}

size_t kn_mat_bytes(enum kn_format f, int n_out, int n_in)
{
    size_t row = kn_row_bytes(f, n_in), n_panel, bytes;

    if (n_out <= 0)
        return 0;
    n_panel = ((size_t)n_out + KN_PANEL - 1) / KN_PANEL;
    return kn_mul(row, n_panel * KN_PANEL, &bytes) ? bytes : 0;
}

size_t kn_act_bytes(enum kn_act a, int n_in)
{
    kn_assert(n_in >= 0);
    if (a == KN_ACT_F32)
        return (size_t)n_in * sizeof(float);
    kn_assert(n_in % (a == KN_ACT_Q32 ? 32 : 256) == 0);
    return ((size_t)n_in + KN_GROUP - 1) / KN_GROUP * sizeof(struct kn_codes);
}

/* ---- half precision -------------------------------------------------------------------------- */

static float from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

float kn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, fraction = h & 0x3FF;

    if (exponent == 31) {
        /* sets the quiet bit, as the processor's conversion does */
        return from_bits(sign | 0x7F800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    }
    if (exponent == 0) {
        float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t kn_f32_to_f16(float x)
{
    uint32_t u = to_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;

    if (a > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x3FF));
    if (a >= 0x477FF000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000) {
        /* below 2^-14: adding 1/2 leaves the value in the fraction, rounded, in units of 2^-24 */
        return (uint16_t)(sign | (to_bits(from_bits(a) + 0.5f) - to_bits(0.5f)));
    }
    return (uint16_t)(sign | (a - 0x38000000 + 0xFFF + (a >> 13 & 1)) >> 13);
}

float kn_bf16_to_f32(uint16_t h) { return from_bits((uint32_t)h << 16); }

uint16_t kn_f32_to_bf16(float x)
{
    uint32_t u = to_bits(x);

    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
