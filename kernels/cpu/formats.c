/* kernels/cpu/formats.c - the table of weight formats, and the values behind their bits.
 *
 * Comes in: a format, a file row or an interleaved matrix.  Goes out: sizes, and float32 values
 * by each format's usual dequantisation.  Nothing here is on the path of a matrix product: this
 * is the plain meaning of the bits, for embedding look-ups, for making files, and for tests to
 * hold kernels against.
 *
 * A row inside a panel is read by gathering its bytes back into a file block; so every format is
 * decoded in one place only. */
#include "kernels/internal.h"

#include <strings.h>
#include <string.h>

static const struct kn_format_info formats[KN_FORMAT_COUNT] = {
#define KN_ENTRY(name, type, values, bytes, act) [KN_##name] = { #name, type, values, bytes, act },
    KN_FORMATS(KN_ENTRY)
#undef KN_ENTRY
};

const struct kn_format_info *kn_format_info(enum kn_format f)
{
    kn_assert(f >= 0 && f < KN_FORMAT_COUNT);
    return &formats[f];
}

int kn_format_find(const char *name, enum kn_format *out)
{
    for (int f = 0; f < KN_FORMAT_COUNT; f++) {
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
    size_t n = (size_t)n_in;

    kn_assert(n_in >= 0);
    switch (a) {
    case KN_ACT_F32:
        return n * sizeof(float);
    case KN_ACT_Q32:
        kn_assert(n % 32 == 0);
        return n / 32 * sizeof(struct kn_x32);
    default:
        kn_assert(a == KN_ACT_Q256 && n % 256 == 0);
        return n / 256 * sizeof(struct kn_x256);
    }
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
        /* The quiet bit is set, as the processor's conversion does. */
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
    if (a >= 0x477FF000)                        /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000) {
        /* Below 2^-14: adding 1/2 leaves the value in units of 2^-24 in the fraction, rounded. */
        return (uint16_t)(sign | (to_bits(from_bits(a) + 0.5f) - to_bits(0.5f)));
    }
    return (uint16_t)(sign | (a - 0x38000000 + 0xFFF + (a >> 13 & 1)) >> 13);
}

float kn_bf16_to_f32(uint16_t h)
{
    return from_bits((uint32_t)h << 16);
}

uint16_t kn_f32_to_bf16(float x)
{
    uint32_t u = to_bits(x);

    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* ---- values of one block --------------------------------------------------------------------- */

/* Eight scales and eight minimums of 6 bits.  The first four of each lie in the low bits of bytes
 * 0..3 and 4..7; of the last four, the low halves share bytes 8..11 and the top two bits fill the
 * rest of bytes 0..7. */
void kn_q4_k_scales(const uint8_t *sc, int stride, uint8_t scale[8], uint8_t min[8])
{
    for (int j = 0; j < 4; j++) {
        uint8_t a = sc[j * stride], b = sc[(j + 4) * stride], c = sc[(j + 8) * stride];

        scale[j]     = a & 63;
        min[j]       = b & 63;
        scale[j + 4] = (uint8_t)((c & 15) | a >> 6 << 4);
        min[j + 4]   = (uint8_t)(c >> 4 | b >> 6 << 4);
    }
}

/* The other way round: six bits each, spread over the twelve bytes. */
void kn_q4_k_scale_put(struct kn_q4_k *b, int i, int scale, int min)
{
    kn_assert(i >= 0 && i < 8);
    if (i < 4) {
        b->sc[i] |= (uint8_t)scale;
        b->sc[i + 4] |= (uint8_t)min;
    } else {
        b->sc[i - 4] |= (uint8_t)(scale >> 4 << 6);
        b->sc[i] |= (uint8_t)(min >> 4 << 6);
        b->sc[i + 4] |= (uint8_t)((scale & 15) | (min & 15) << 4);
    }
}

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

/* 2^(e - 127) has e for its exponent bits, but for 2^-127, which has no bit of them. */
float kn_mxfp4_step(uint8_t e)
{
    return 0.5f * from_bits(e ? (uint32_t)e << 23 : 0x00400000);
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

static void decode(enum kn_format f, const void *blocks, int n_block, float *out)
{
    const uint16_t *half = blocks;

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
    case KN_Q8_0:
        for (int i = 0; i < n_block; i++)
            decode_q8_0((const struct kn_q8_0 *)blocks + i, out + 32 * i);
        break;
    case KN_Q4_K:
        for (int i = 0; i < n_block; i++)
            decode_q4_k((const struct kn_q4_k *)blocks + i, out + 256 * i);
        break;
    case KN_Q6_K:
        for (int i = 0; i < n_block; i++)
            decode_q6_k((const struct kn_q6_k *)blocks + i, out + 256 * i);
        break;
    case KN_MXFP4:
        for (int i = 0; i < n_block; i++)
            decode_mxfp4((const struct kn_mxfp4 *)blocks + i, out + 32 * i);
        break;
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

/* ---- a row out of a panel -------------------------------------------------------------------- */

/* Row `lane`'s share of a field: n items of `size` bytes, KN_PANEL items apart. */
static const uint8_t *gather(const uint8_t *field, int n, int size, int lane, void *out)
{
    for (int i = 0; i < n; i++)
        memcpy((uint8_t *)out + i * size, field + (i * KN_PANEL + lane) * size, (size_t)size);
    return field + n * KN_PANEL * size;
}

/* Fields lie in the order of struct kn_*_x16; within a block's codes, four bytes are one item. */
static void gather_block(enum kn_format f, const uint8_t *p, int lane, void *out)
{
    struct kn_q8_0 *q8 = out;
    struct kn_q4_k *q4 = out;
    struct kn_q6_k *q6 = out;
    struct kn_mxfp4 *mx = out;

    switch (f) {
    case KN_Q8_0:
        p = gather(p, 1, 2, lane, &q8->d);
        gather(p, 8, 4, lane, q8->q);
        break;
    case KN_Q4_K:
        p = gather(p, 1, 2, lane, &q4->d);
        p = gather(p, 1, 2, lane, &q4->dmin);
        p = gather(p, 12, 1, lane, q4->sc);
        gather(p, 32, 4, lane, q4->q);
        break;
    case KN_Q6_K:
        p = gather(p, 1, 2, lane, &q6->d);
        p = gather(p, 16, 1, lane, q6->sc);
        p = gather(p, 32, 4, lane, q6->ql);
        gather(p, 16, 4, lane, q6->qh);
        break;
    case KN_MXFP4:
        p = gather(p, 1, 1, lane, &mx->e);
        gather(p, 4, 4, lane, mx->q);
        break;
    default:
        gather(p, 1, kn_format_info(f)->block_bytes, lane, out);
    }
}

void kn_mat_row(const struct kn_mat *w, int r, float *out)
{
    const struct kn_format_info *info = kn_format_info(w->format);
    size_t panel_bytes = KN_PANEL * kn_row_bytes(w->format, w->n_in);
    const uint8_t *p = (const uint8_t *)w->data + (size_t)(r / KN_PANEL) * panel_bytes;
    union { struct kn_q8_0 q8; struct kn_q4_k q4; struct kn_q6_k q6; struct kn_mxfp4 mx; float f; } block;

    kn_assert(r >= 0 && r < w->n_out && panel_bytes > 0);
    for (int k = 0; k < w->n_in; k += info->block_values, p += KN_PANEL * info->block_bytes) {
        gather_block(w->format, p, r % KN_PANEL, &block);
        decode(w->format, &block, 1, out + k);
    }
}
