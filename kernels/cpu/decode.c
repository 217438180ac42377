/* kernels/cpu/decode.c - from a format's bits to values.
 *
 * Input: a file row, or an interleaved matrix.  Output: float32 values by each format's usual
 * dequantisation.  Matrix products do not use this file: it serves embedding lookups, file
 * conversion, and tests that compare kernels with it.
 *
 * A row of a panel is read by gathering its bytes back into a file block, so that every format is
 * decoded in one place only. */
#include "kernels/internal.h"

#include <string.h>

/* ---- packed scales --------------------------------------------------------------------------- */

/* Eight scales and eight minimums of 6 bits.  The first four of each are in the low bits of bytes
 * 0..3 and 4..7.  Of the last four, the low 4 bits share bytes 8..11, and the top 2 bits are in the
 * top bits of bytes 0..7. */
void kn_q4_k_scales(const uint8_t *sc, int stride, uint8_t scale[8], uint8_t min[8])
{
    for (int j = 0; j < 4; j++) {
        uint8_t a = sc[j * stride], b = sc[(j + 4) * stride], c = sc[(j + 8) * stride];

        scale[j] = a & 63;
        min[j] = b & 63;
        scale[j + 4] = (uint8_t)((c & 15) | a >> 6 << 4);
        min[j + 4] = (uint8_t)(c >> 4 | b >> 6 << 4);
    }
}

void kn_q4_k_scale_put(uint8_t sc[12], int i, int scale, int min)
{
    kn_assert(i >= 0 && i < 8);
    if (i < 4) {
        sc[i] |= (uint8_t)scale;
        sc[i + 4] |= (uint8_t)min;
    } else {
        sc[i - 4] |= (uint8_t)(scale >> 4 << 6);
        sc[i] |= (uint8_t)(min >> 4 << 6);
        sc[i + 4] |= (uint8_t)((scale & 15) | (min & 15) << 4);
    }
}

/* The low 4 bits of scales 0..7 and 8..15 share bytes 0..7; byte 8 + i has the top 2 bits of scales i,
 * i + 4, i + 8 and i + 12. */
int kn_q3_k_scale(const uint8_t *sc, int stride, int i)
{
    int low = sc[i % 8 * stride] >> i / 8 * 4 & 15, high = sc[(8 + i % 4) * stride] >> i / 4 * 2 & 3;

    return (low | high << 4) - 32;
}

void kn_q3_k_scale_put(uint8_t sc[12], int i, int scale)
{
    int bits = scale + 32;

    kn_assert(i >= 0 && i < 16 && bits >= 0 && bits < 64);
    sc[i % 8] |= (uint8_t)((bits & 15) << i / 8 * 4);
    sc[8 + i % 4] |= (uint8_t)(bits >> 4 << i / 4 * 2);
}

int kn_iq4_xs_scale(const uint8_t sl[4], uint16_t sh, int i)
{
    return ((sl[i / 2] >> i % 2 * 4 & 15) | (sh >> 2 * i & 3) << 4) - 32;
}

/* ---- values of one block --------------------------------------------------------------------- */

static void decode_q8_0(const struct kn_q8_0 *w, float *out)
{
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)w->q[k];
}

static void decode_q4_k(const struct kn_q4_k *w, float *out)
{
    float d = kn_f16_to_f32(w->d), dmin = kn_f16_to_f32(w->dmin);
    uint8_t scale[8], min[8];

    kn_q4_k_scales(w->sc, 1, scale, min);
    for (int sub = 0; sub < 8; sub += 2, out += 64) {
        const uint8_t *q = w->q + 16 * sub;

        for (int k = 0; k < 32; k++) {
            out[k] = d * scale[sub] * (float)(q[k] & 15) - dmin * min[sub];
            out[k + 32] = d * scale[sub + 1] * (float)(q[k] >> 4) - dmin * min[sub + 1];
        }
    }
}

static void decode_q6_k(const struct kn_q6_k *w, float *out)
{
    float d = kn_f16_to_f32(w->d);

    for (int part = 0; part < 8; part++, out += 32) {
        int field = part % 4;
        const uint8_t *low = w->ql + 64 * (part / 4) + 32 * (field & 1);
        const uint8_t *high = w->qh + 32 * (part / 4);
        const int8_t *sc = w->sc + 2 * part;

        for (int k = 0; k < 32; k++) {
            int q = (low[k] >> 4 * (field >> 1) & 15) | (high[k] >> 2 * field & 3) << 4;

            out[k] = d * sc[k / 16] * (float)(q - 32);
        }
    }
}

/* 2^(e - 127) has exponent bits e; 2^-127 is denormal, so has exponent bits 0. */
float kn_mxfp4_step(uint8_t e)
{
    uint32_t bits = e ? (uint32_t)e << 23 : 0x00400000;
    float twice;

    memcpy(&twice, &bits, sizeof twice);
    return 0.5f * twice;
}

static void decode_mxfp4(const struct kn_mxfp4 *w, float *out)
{
    static const int8_t value[16] = { KN_E2M1_TWICE };
    float step = kn_mxfp4_step(w->e);

    for (int k = 0; k < 16; k++) {
        out[k] = step * (float)value[w->q[k] & 15];
        out[k + 16] = step * (float)value[w->q[k] >> 4];
    }
}

/* Code k of a block of 32: k < 16 in the low nibble of q[k], others in the high nibble of q[k - 16]; a fifth bit
 * in bit k of high_bits. */
static int code_of(const uint8_t q[16], uint32_t high_bits, int k)
{
    return (q[k % 16] >> k / 16 * 4 & 15) | (int)(high_bits >> k & 1) << 4;
}

static uint32_t bits_of(const uint8_t qh[4])
{
    return qh[0] | (uint32_t)qh[1] << 8 | (uint32_t)qh[2] << 16 | (uint32_t)qh[3] << 24;
}

static void decode_q4_0(const struct kn_q4_0 *w, float *out)
{
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)(code_of(w->q, 0, k) - 8);
}

static void decode_iq4_nl(const struct kn_q4_0 *w, float *out)
{
    static const int8_t value[16] = { KN_IQ4 };
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)value[code_of(w->q, 0, k)];
}

static void decode_q4_1(const struct kn_q4_1 *w, float *out)
{
    float d = kn_f16_to_f32(w->d), m = kn_f16_to_f32(w->m);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)code_of(w->q, 0, k) + m;
}

static void decode_q5_0(const struct kn_q5_0 *w, float *out)
{
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)(code_of(w->q, bits_of(w->qh), k) - 16);
}

static void decode_q5_1(const struct kn_q5_1 *w, float *out)
{
    float d = kn_f16_to_f32(w->d), m = kn_f16_to_f32(w->m);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)code_of(w->q, bits_of(w->qh), k) + m;
}

static void decode_q5_k(const struct kn_q5_k *w, float *out)
{
    float d = kn_f16_to_f32(w->d), dmin = kn_f16_to_f32(w->dmin);
    uint8_t scale[8], min[8];

    kn_q4_k_scales(w->sc, 1, scale, min);
    for (int k = 0; k < 256; k++) {
        int sub = k / 32, low = w->q[k / 64 * 32 + k % 32] >> sub % 2 * 4 & 15;
        int high = w->qh[k % 32] >> sub & 1;

        out[k] = d * scale[sub] * (float)(low | high << 4) - dmin * min[sub];
    }
}

static void decode_q2_k(const struct kn_q2_k *w, float *out)
{
    float d = kn_f16_to_f32(w->d), dmin = kn_f16_to_f32(w->dmin);

    for (int k = 0; k < 256; k++) {
        int sc = w->sc[k / 16], q = w->q[k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3;

        out[k] = d * (float)(sc & 15) * (float)q - dmin * (float)(sc >> 4);
    }
}

static void decode_q3_k(const struct kn_q3_k *w, float *out)
{
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 256; k++) {
        int low = w->q[k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3;
        int high = w->qh[k % 32] >> k / 32 & 1;

        out[k] = d * (float)kn_q3_k_scale(w->sc, 1, k / 16) * (float)((low | high << 2) - 4);
    }
}

static void decode_iq4_xs(const struct kn_iq4_xs *w, float *out)
{
    static const int8_t value[16] = { KN_IQ4 };
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 256; k++) {
        int sub = k / 32;

        out[k] = d * (float)kn_iq4_xs_scale(w->sl, w->sh, sub) * (float)value[code_of(w->q + 16 * sub, 0, k % 32)];
    }
}

/* ---- grids ------------------------------------------------------------------------------------- */

/* Eight neighbouring values: the sizes of each four, a bit for each sign, and four bits of scale. */
struct eight {
    const void *size[2];
    int sign, scale;
};

/* Seven signs and the eighth, with which the number of negative values is even. */
static int all_signs(uint32_t seven)
{
    int s = (int)(seven & 127), odd = s ^ s >> 4;

    odd ^= odd >> 2;
    return s | ((odd ^ odd >> 1) & 1) << 7;
}

static int nibble_at(const uint8_t *p, int i) { return p[i / 2] >> i % 2 * 4 & 15; }

static struct eight eight_iq2_xxs(const struct kn_iq2_xxs *w, int i)
{
    const uint8_t *q = w->q + i / 4 * 8, *size = kn_grid_iq2_xxs[q[i % 4]];
    uint32_t signs = bits_of(q + 4);

    return (struct eight){ { size, size + 4 }, all_signs(signs >> i % 4 * 7), (int)(signs >> 28) };
}

static struct eight eight_iq2_xs(const struct kn_iq2_xs *w, int i)
{
    uint32_t q = w->q[2 * i] | (uint32_t)w->q[2 * i + 1] << 8;
    const uint8_t *size = kn_grid_iq2_xs[q & 511];

    return (struct eight){ { size, size + 4 }, all_signs(q >> 9), nibble_at(w->sc, i / 2) };
}

static struct eight eight_iq2_s(const struct kn_iq2_s *w, int i)
{
    const uint8_t *size = kn_grid_iq2_s[w->q[i] | (w->qh[i / 4] >> i % 4 * 2 & 3) << 8];

    return (struct eight){ { size, size + 4 }, w->sign[i], nibble_at(w->sc, i / 2) };
}

static struct eight eight_iq3_xxs(const struct kn_iq3_xxs *w, int i)
{
    uint32_t signs = bits_of(w->s + i / 4 * 4);

    return (struct eight){ { kn_grid_iq3_xxs[w->q[2 * i]], kn_grid_iq3_xxs[w->q[2 * i + 1]] },
                           all_signs(signs >> i % 4 * 7),
                           (int)(signs >> 28) };
}

static struct eight eight_iq3_s(const struct kn_iq3_s *w, int i)
{
    int high = w->qh[i / 4] >> i % 4 * 2;

    return (struct eight){ { kn_grid_iq3_s[w->q[2 * i] | (high & 1) << 8],
                             kn_grid_iq3_s[w->q[2 * i + 1] | (high & 2) << 7] },
                           w->sign[i],
                           nibble_at(w->sc, i / 4) };
}

/* Point i of an IQ1 block: its index has twelve bits. */
static struct eight eight_iq1(const uint8_t *q, int i, int high, int scale)
{
    const int8_t *value = kn_grid_iq1[q[i] | high << 8];

    return (struct eight){ { value, value + 4 }, 0, scale };
}

static struct eight eight_iq1_s(const struct kn_iq1_s *w, int i)
{
    int bits = w->qh[i / 4 * 2] | w->qh[i / 4 * 2 + 1] << 8;

    return eight_iq1(w->q, i, (bits >> i % 4 * 3 & 7) | (bits >> 15) << 3, bits >> 12 & 7);
}

static struct eight eight_iq1_m(const struct kn_iq1_m *w, int i)
{
    int bits = w->sc[i / 8 * 2] | w->sc[i / 8 * 2 + 1] << 8;

    return eight_iq1(w->q, i, nibble_at(w->qh, i), bits >> i / 2 % 4 * 3 & 7);
}

void kn_grid_integers(enum kn_format f, const void *block, int16_t w[256])
{
    for (int i = 0; i < 32; i++, w += 8) {
        struct eight e = f == KN_IQ2_XXS   ? eight_iq2_xxs(block, i)
                         : f == KN_IQ2_XS  ? eight_iq2_xs(block, i)
                         : f == KN_IQ2_S   ? eight_iq2_s(block, i)
                         : f == KN_IQ3_XXS ? eight_iq3_xxs(block, i)
                         : f == KN_IQ3_S   ? eight_iq3_s(block, i)
                         : f == KN_IQ1_S   ? eight_iq1_s(block, i)
                                           : eight_iq1_m(block, i);

        for (int k = 0; k < 8; k++)
            w[k] = (int16_t)((e.sign >> k & 1 ? -1 : 1) * ((const int8_t *)e.size[k / 4])[k % 4] * (2 * e.scale + 1));
    }
}

float kn_grid_step(enum kn_format f, const void *block)
{
    const uint8_t *sc = ((const struct kn_iq1_m *)block)->sc;
    uint16_t d;

    if (f == KN_IQ1_M)
        d = (uint16_t)(sc[1] >> 4 | sc[3] >> 4 << 4 | sc[5] >> 4 << 8 | sc[7] >> 4 << 12);
    else
        memcpy(&d, block, sizeof d);
    return kn_f16_to_f32(d) * kn_grid(f)->part;
}

static void decode_grid(enum kn_format f, const void *block, float *out)
{
    float step = kn_grid_step(f, block);
    int16_t w[256];

    kn_grid_integers(f, block, w);
    for (int k = 0; k < 256; k++)
        out[k] = step * (float)w[k];
}

float kn_e4m3_part(uint8_t q)
{
    bool none = (q & 0x7F) == 0x7F;

    return kn_f16_to_f32((uint16_t)((q & 0x80) << 8 | (none ? 0x7E00 : (q & 0x7F) << 7)));
}

_Alignas(64) uint8_t kn_e4m3_bytes[2][128];

static __attribute__((constructor)) void make_e4m3_bytes(void)
{
    for (int q = 0; q < 128; q++) {
        float part = kn_e4m3_part((uint8_t)q);
        uint32_t bits;

        memcpy(&bits, &part, sizeof bits);
        kn_e4m3_bytes[0][q] = (uint8_t)(bits >> 16);
        kn_e4m3_bytes[1][q] = (uint8_t)(bits >> 24);
    }
}

float kn_nvfp4_step(uint8_t d) { return (d & 0x7F) == 0x7F ? 0 : 128.0f * kn_e4m3_part(d & 0x7F); }

/* Nibbles k and k + 8 of each 16 values share a byte. */
static void decode_nvfp4(const struct kn_nvfp4 *w, float *out)
{
    static const int8_t value[16] = { KN_E2M1_TWICE };

    for (int k = 0; k < 64; k++)
        out[k] = kn_nvfp4_step(w->d[k / 16]) * (float)value[w->q[k / 16 * 8 + k % 8] >> k % 16 / 8 * 4 & 15];
}

static void decode_fp8(const struct kn_fp8 *w, float *out)
{
    float d = 256.0f * w->d;

    for (int k = 0; k < 128; k++)
        out[k] = d * kn_e4m3_part(w->q[k]);
}

static void decode_int4(const struct kn_q4_0 *w, float *out)
{
    float d = kn_bf16_to_f32(w->d);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)(code_of(w->q, 0, k) - 8);
}

static void decode_uint4(const struct kn_uint4 *w, float *out)
{
    float d = kn_f16_to_f32(w->d);

    for (int k = 0; k < 32; k++)
        out[k] = d * (float)(code_of(w->q, 0, k) - w->z);
}

/* ---- separate codes and scales ----------------------------------------------------------------- */

size_t kn_code_bytes(enum kn_format f)
{
    return f == KN_FP8                                                      ? 128
           : f == KN_NVFP4                                                  ? 32
           : f == KN_MXFP4 || f == KN_INT4 || f == KN_UINT4 || f == KN_Q4_0 ? 16
                                                                            : 0;
}

/* Moves bytes 0..3 of x to bytes 0, 2, 4, 6 of the result; the odd bytes are 0. */
static uint64_t spread(uint32_t x)
{
    uint64_t y = x;

    y = (y | y << 16) & 0x0000FFFF0000FFFF;
    return (y | y << 8) & 0x00FF00FF00FF00FF;
}

/* From bytes that hold values 2 i and 2 i + 1, to bytes that hold values i and i + 16. */
static void unpair(const uint8_t in[16], uint8_t out[16])
{
    const uint64_t low = 0x0F0F0F0F0F0F0F0F;
    uint64_t a, b, even, odd, y[2];

    memcpy(&a, in, 8); /* values 0..15 */
    memcpy(&b, in + 8, 8);
    even = (a & low) | (b & low) << 4;
    odd = (a >> 4 & low) | (b & ~low);
    for (int i = 0; i < 2; i++)
        y[i] = spread((uint32_t)(even >> 32 * i)) | spread((uint32_t)(odd >> 32 * i)) << 8;
    memcpy(out, y, sizeof y);
}

/* From bytes that hold values 2 i and 2 i + 1, to bytes that hold values i and i + 8: of 16 values. */
static void unpair_8(const uint8_t in[8], uint8_t out[8])
{
    const uint64_t low = 0x0F0F0F0F;
    uint64_t a, y;
    uint32_t x[2];

    memcpy(x, in, sizeof x); /* values 0..7, 8..15 */
    a = x[0];
    y = spread((uint32_t)((a & low) | (x[1] & low) << 4)) | spread((uint32_t)((a >> 4 & low) | (x[1] & ~low))) << 8;
    memcpy(out, &y, sizeof y);
}

void kn_join(enum kn_format f, const void *codes, const void *scales, int scale_bytes, int per_scale, size_t n_block,
             void *blocks)
{
    size_t n_code = kn_code_bytes(f), n = (size_t)kn_format_info(f)->block_bytes, scale = (size_t)scale_bytes;
    const uint8_t *from = codes, *d = scales;
    uint8_t *to = blocks;

    kn_assert(n_code && scale <= n - n_code);
    for (size_t i = 0; i < n_block; i++, from += n_code, to += n) {
        memset(to, 0, n - n_code);
        memcpy(to + n - n_code - scale, d + i / (size_t)per_scale * scale, scale);
        if (f == KN_FP8)
            memcpy(to + n - n_code, from, n_code);
        else if (f == KN_NVFP4)
            for (size_t s = 0; s < n_code; s += 8)
                unpair_8(from + s, to + n - n_code + s);
        else
            unpair(from, to + n - n_code);
    }
}

/* The four nibbles of the low 16 bits of x, each in a byte. */
static uint32_t nibbles(uint32_t x)
{
    x = (x & 0xFF) | (x & 0xFF00) << 8;
    return (x | x << 4) & 0x0F0F0F0F;
}

int kn_columns_output(const struct kn_columns *c, int row)
{
    int at = row - c->turn_first;

    if (!c->turn_n || at < 0)
        return row;
    int unit = at / c->turn_rows, i = unit % c->turn_n;
    unit += i % c->turn_by * (c->turn_n / c->turn_by) + i / c->turn_by - i;
    return c->turn_first + unit * c->turn_rows + at % c->turn_rows;
}

/* Nibble i, as AWQ counts, of eight. */
static int awq_nibble(uint32_t word, int i)
{
    static const uint8_t at[8] = { KN_AWQ_ORDER };

    return (int)(word >> 4 * at[i] & 15);
}

static int code_at(const struct kn_columns *c, int output, int k)
{
    size_t n_out = (size_t)c->n_out, o = (size_t)output;

    if (c->awq)
        return awq_nibble(c->codes[((size_t)k * n_out + o) / 8], output % 8);
    return (int)(c->codes[(size_t)(k / 8) * n_out + o] >> k % 8 * 4 & 15);
}

static uint8_t zero_at(const struct kn_columns *c, int output, int group)
{
    uint32_t word = c->zeros[((size_t)group * (size_t)c->n_out + (size_t)output) / 8];
    int stored = c->awq ? awq_nibble(word, output % 8) : (int)(word >> output % 8 * 4 & 15);

    return (uint8_t)((stored + c->zero_less) & 15);
}

/* Codes of block b of the rows output[n], one by one, as in a panel. */
static void gather_codes(const struct kn_columns *c, size_t b, const int *output, int n, uint8_t q[4][KN_PANEL][4])
{
    memset(q, 0, 4 * KN_PANEL * 4);
    for (int l = 0; l < n; l++)
        for (int k = 0; k < 32; k++)
            q[k % 16 / 4][l][k % 4] |= (uint8_t)(code_at(c, output[l], (int)b * 32 + k) << k / 16 * 4);
}

/* The same of GPTQ codes in order: the blocks of n rows from row0 on are read as 64 bytes from each of four rows of words,
 * and written as four items of 64 bytes: whole cache lines in and out, with only shifts within 32-bit lanes in between. */
static void move_codes(const struct kn_columns *c, size_t b, size_t row0, size_t n, uint8_t out[4][KN_PANEL][4])
{
    uint32_t w[4][KN_PANEL] = { 0 }, q[4][KN_PANEL];

    for (size_t i = 0; i < 4; i++)
        memcpy(w[i], c->codes + (4 * b + i) * (size_t)c->n_out + row0, n * sizeof *c->codes);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < KN_PANEL; l++)
            q[i][l] = nibbles(w[i / 2][l] >> i % 2 * 16) | nibbles(w[2 + i / 2][l] >> i % 2 * 16) << 4;
    memcpy(out, q, sizeof q);
}

void kn_join_columns(const struct kn_columns *c, int panel, void *out)
{
    const int row0 = panel * KN_PANEL, n = kn_min(KN_PANEL, c->n_out - row0);
    const bool zeros = c->format == KN_UINT4, in_order = !c->awq && !c->turn_n;
    int output[KN_PANEL];
    uint8_t *to = out;

    kn_assert(c->n_in % 32 == 0 && panel >= 0 && n > 0 && (in_order || c->n_out % 8 == 0));
    for (int l = 0; l < n; l++)
        output[l] = kn_columns_output(c, row0 + l);
    for (int b = 0; b < c->n_in / 32; b++) {
        struct kn_q4_0_x16 *plain = (void *)to;
        struct kn_uint4_x16 *block = (void *)to;
        const int group = b / c->per_scale;
        uint16_t *d = zeros ? block->d : plain->d;
        uint8_t(*q)[KN_PANEL][4] = zeros ? block->q : plain->q;

        for (int l = 0; l < KN_PANEL; l++) {
            d[l] = l < n ? c->scales[(size_t)group * (size_t)c->n_out + (size_t)output[l]] : 0;
            if (zeros)
                block->z[l] = l < n ? zero_at(c, output[l], group) : 0;
        }
        if (in_order)
            move_codes(c, (size_t)b, (size_t)row0, (size_t)n, q);
        else
            gather_codes(c, (size_t)b, output, n, q);
        to += zeros ? sizeof *block : sizeof *plain;
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define BLOCKS(F, name, values)                                                                                        \
    case KN_##F:                                                                                                       \
        for (int i = 0; i < n_block; i++)                                                                              \
            decode_##name((const void *)(raw + i * info->block_bytes), out + values * i);                              \
        break;

static void decode(enum kn_format f, const void *blocks, int n_block, float *out)
{
    const struct kn_format_info *info = kn_format_info(f);
    const uint16_t *half = blocks;
    const uint8_t *raw = blocks;

    switch (f) {
    case KN_F32:
        memcpy(out, blocks, (size_t)n_block * sizeof *out);
        break;
    case KN_F16:
        for (int i = 0; i < n_block; i++)
            out[i] = kn_f16_to_f32(half[i]);
        break;
    case KN_BF16:
        for (int i = 0; i < n_block; i++)
            out[i] = kn_bf16_to_f32(half[i]);
        break;
        BLOCKS(Q8_0, q8_0, 32)
        BLOCKS(Q4_0, q4_0, 32)
        BLOCKS(Q4_1, q4_1, 32)
        BLOCKS(Q5_0, q5_0, 32)
        BLOCKS(Q5_1, q5_1, 32)
        BLOCKS(IQ4_NL, iq4_nl, 32)
        BLOCKS(MXFP4, mxfp4, 32)
        BLOCKS(Q4_K, q4_k, 256)
        BLOCKS(Q5_K, q5_k, 256)
        BLOCKS(Q6_K, q6_k, 256)
        BLOCKS(Q2_K, q2_k, 256)
        BLOCKS(Q3_K, q3_k, 256)
        BLOCKS(IQ4_XS, iq4_xs, 256)
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S:
    case KN_IQ1_M:
        for (int i = 0; i < n_block; i++)
            decode_grid(f, raw + i * info->block_bytes, out + 256 * i);
        break;
        BLOCKS(NVFP4, nvfp4, 64)
        BLOCKS(FP8, fp8, 128)
        BLOCKS(INT4, int4, 32)
        BLOCKS(UINT4, uint4, 32)
    default:
        kn_assert(!"a format without a decoder");
    }
}

void kn_row_decode(enum kn_format f, const void *row, int n_in, float *out)
{
    int n = kn_format_info(f)->block_values;

    kn_assert(n_in % n == 0);
    decode(f, row, n_in / n, out);
}

void kn_block_gather(enum kn_format f, const void *panel_block, int lane, uint8_t *out)
{
    const uint8_t *p = panel_block;

    for (const struct kn_field *w = kn_format_fields(f); w->n; p += w->n * KN_PANEL * w->size, w++)
        for (int i = 0; i < w->n; i++)
            memcpy(out + w->at + i * w->size, p + (i * KN_PANEL + lane) * w->size, w->size);
}

void kn_panel_row(enum kn_format f, const void *panel, int n_in, int lane, void *row)
{
    const struct kn_format_info *info = kn_format_info(f);
    const uint8_t *p = panel;
    uint8_t *to = row;

    for (int k = 0; k < n_in; k += info->block_values, p += KN_PANEL * info->block_bytes, to += info->block_bytes)
        kn_block_gather(f, p, lane, to);
}

void kn_mat_row(const struct kn_mat *w, int r, float *out)
{
    const struct kn_format_info *info = kn_format_info(w->format);
    size_t panel_bytes = KN_PANEL * kn_row_bytes(w->format, w->n_in);
    const uint8_t *p = (const uint8_t *)w->data + (size_t)(r / KN_PANEL) * panel_bytes;
    _Alignas(4) uint8_t block[KN_BLOCK_MOST];

    kn_assert(r >= 0 && r < w->n_out && panel_bytes > 0);
    for (int k = 0; k < w->n_in; k += info->block_values, p += KN_PANEL * info->block_bytes) {
        kn_block_gather(w->format, p, r % KN_PANEL, block);
        decode(w->format, block, 1, out + k);
    }
    for (int k = 0; k < w->n_in; k++)
        out[k] *= w->scale;
}
