/* kernels/cpu/reference_matmul.c - the specification of quantize, repack and matmul, in plain C.
 *
 * Every other implementation gives the same bits: it keeps the order of float operations that kernels.h states under
 * "products".  It may change the order of integer operations, because no sum below exceeds 32 bits.
 *
 * Input: activation rows and panels (formats.h).  Output: y rows, activations, panels. */
#include "kernels/internal.h"

#include <math.h>
#include <string.h>

/* ---- activations ----------------------------------------------------------------------------- */

/* Largest magnitude of the block, compared as bits: NaN above infinity above all numbers. */
static uint32_t largest_bits(const float *x, int n)
{
    uint32_t largest = 0;

    for (int i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, x + i, sizeof u);
        u &= 0x7FFFFFFF;
        if (u > largest)
            largest = u;
    }
    return largest;
}

float kn_code_block(const float *x, int n, int8_t *q)
{
    const float to_integer = 0x1.8p23f; /* adding it leaves no bits below 1: rounds to nearest even */
    uint32_t bits = largest_bits(x, n);
    float largest, inverse;

    for (int i = 0; i < n; i++)
        q[i] = 0;
    if (bits >= 0x7F800000)
        return kn_f16_to_f32(0x7E00); /* the NaN 0x7FC00000 */
    memcpy(&largest, &bits, sizeof largest);
    if (largest < 0x1p-100f)
        return 0.0f;

    inverse = 127.0f / largest;
    for (int i = 0; i < n; i++) {
        int code = (int)(x[i] * inverse + to_integer - to_integer);

        q[i] = (int8_t)kn_max(-127, kn_min(127, code));
    }
    return largest / 127.0f;
}

void kn_quantize_scalar(enum kn_act a, const float *x, int n, void *out)
{
    const int step = a == KN_ACT_Q256 ? 256 : 32;

    if (a == KN_ACT_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    kn_assert(n % step == 0);
    memset(out, 0, kn_act_bytes(a, n));
    for (int k = 0; k < n; k += step) {
        struct kn_codes *c = (struct kn_codes *)out + k / KN_GROUP;
        int at = k % KN_GROUP;
        float d = kn_code_block(x + k, step, c->q + at);

        for (int i = at; i < at + step; i++)
            c->sum[i / 16] = (int16_t)(c->sum[i / 16] + c->q[i]);
        for (int i = at; i < at + step; i += 32)
            c->d[i / 32] = d;
    }
}

/* ---- repack ---------------------------------------------------------------------------------- */

/* Writes one row's block to its lane of a panel: item i of a field becomes item i * 16 + lane of the panel's field. */
static void scatter_block(enum kn_format f, uint8_t *p, int lane, const uint8_t *in)
{
    for (const struct kn_field *w = kn_format_fields(f); w->n; p += w->n * KN_PANEL * w->size, w++)
        for (int i = 0; i < w->n; i++)
            memcpy(p + (i * KN_PANEL + lane) * w->size, in + w->at + i * w->size, w->size);
}

void kn_repack_scalar(enum kn_format f, const void *rows, int n_out, int n_in, void *panels, int panel0, int panel1)
{
    const struct kn_format_info *info = kn_format_info(f);
    size_t row_bytes = kn_row_bytes(f, n_in), block = (size_t)info->block_bytes;

    kn_assert(row_bytes > 0 && panel0 >= 0 && panel1 <= kn_ceil_div(n_out, KN_PANEL));
    for (int panel = panel0; panel < panel1; panel++) {
        uint8_t *out = (uint8_t *)panels + (size_t)panel * KN_PANEL * row_bytes;

        memset(out, 0, KN_PANEL * row_bytes);
        for (int lane = 0; lane < KN_PANEL && panel * KN_PANEL + lane < n_out; lane++) {
            size_t i = (size_t)panel * KN_PANEL + (size_t)lane;
            const uint8_t *row = (const uint8_t *)rows + i * row_bytes;

            for (size_t at = 0; at < row_bytes; at += block)
                scatter_block(f, out + at * KN_PANEL, lane, row + at);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* The activations of one block: codes with their sums and scale, or floats. */
struct input {
    const int8_t *q;
    const int16_t *sum;
    float d;
    const float *x;
};

/* One block of one row: returns acc plus the block's product. */
typedef float block_fn(const void *w, int lane, const struct input *a, float acc);

static float block_f32(const void *w, int lane, const struct input *a, float acc)
{
    return fmaf(((const float *)w)[lane], *a->x, acc);
}

static float block_f16(const void *w, int lane, const struct input *a, float acc)
{
    return fmaf(kn_f16_to_f32(((const uint16_t *)w)[lane]), *a->x, acc);
}

static float block_bf16(const void *w, int lane, const struct input *a, float acc)
{
    return fmaf(kn_bf16_to_f32(((const uint16_t *)w)[lane]), *a->x, acc);
}

static float block_fp8(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_fp8_x16 *b = w;
    float d = 256.0f * b->d[lane];

    for (int k = 0; k < 128; k++)
        acc = fmaf(d * kn_e4m3_part(b->q[k][lane]), a->x[k], acc);
    return acc;
}

static float block_q8_0(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q8_0_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += b->q[k / 4][lane][k % 4] * a->q[k];
    return fmaf(kn_f16_to_f32(b->d[lane]) * a->d, (float)isum, acc);
}

/* Code k of a block of 32: its nibble, and its fifth bit. */
static int nibble_of(const uint8_t q[4][16][4], int lane, int k)
{
    return q[k % 16 / 4][lane][k % 4] >> k / 16 * 4 & 15;
}

static int fifth_of(const uint8_t qh[16][4], int lane, int k) { return (qh[lane][k / 8] >> k % 8 & 1) << 4; }

/* acc + d * dx * isum; then, with a minimum, + m * dx * the sum of the activation's codes. */
static float add_32(uint16_t d, const uint16_t *m, const struct input *a, int32_t isum, float acc)
{
    acc = fmaf(kn_f16_to_f32(d) * a->d, (float)isum, acc);
    return m ? fmaf(kn_f16_to_f32(*m) * a->d, (float)(a->sum[0] + a->sum[1]), acc) : acc;
}

static float block_q4_0(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q4_0_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += (nibble_of(b->q, lane, k) - 8) * a->q[k];
    return add_32(b->d[lane], NULL, a, isum, acc);
}

static float block_int4(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q4_0_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += (nibble_of(b->q, lane, k) - 8) * a->q[k];
    return fmaf(kn_bf16_to_f32(b->d[lane]) * a->d, (float)isum, acc);
}

static float block_iq4_nl(const void *w, int lane, const struct input *a, float acc)
{
    static const int8_t value[16] = { KN_IQ4 };
    const struct kn_q4_0_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += value[nibble_of(b->q, lane, k)] * a->q[k];
    return add_32(b->d[lane], NULL, a, isum, acc);
}

static float block_q4_1(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q4_1_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += nibble_of(b->q, lane, k) * a->q[k];
    return add_32(b->d[lane], &b->m[lane], a, isum, acc);
}

static float block_q5_0(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q5_0_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += ((nibble_of(b->q, lane, k) | fifth_of(b->qh, lane, k)) - 16) * a->q[k];
    return add_32(b->d[lane], NULL, a, isum, acc);
}

static float block_q5_1(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q5_1_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += (nibble_of(b->q, lane, k) | fifth_of(b->qh, lane, k)) * a->q[k];
    return add_32(b->d[lane], &b->m[lane], a, isum, acc);
}

/* acc + d * dx * isum; then, with minimums, - dmin * dx * msum. */
static float add_256(uint16_t d, const uint16_t *dmin, float dx, int32_t isum, int32_t msum, float acc)
{
    acc = fmaf(kn_f16_to_f32(d) * dx, (float)isum, acc);
    return dmin ? fmaf(-(kn_f16_to_f32(*dmin) * dx), (float)msum, acc) : acc;
}

/* isum: at most 8 * 63 * 32 * 15 * 127 = 2^24.9;  msum: at most 8 * 63 * 32 * 127 */
static float block_q4_k(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q4_k_x16 *b = w;
    uint8_t scale[8], min[8];
    int32_t isum = 0, msum = 0;

    kn_q4_k_scales(&b->sc[0][lane], KN_PANEL, scale, min);
    for (int k = 0; k < 256; k++) {
        int sub = k / 32, byte = b->q[k / 64 * 8 + k % 32 / 4][lane][k % 4];

        isum += scale[sub] * (sub % 2 ? byte >> 4 : byte & 15) * a->q[k];
        msum += min[sub] * a->q[k];
    }
    return add_256(b->d[lane], &b->dmin[lane], a->d, isum, msum, acc);
}

/* isum: at most 2^26 */
static float block_q5_k(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q5_k_x16 *b = w;
    uint8_t scale[8], min[8];
    int32_t isum = 0, msum = 0;

    kn_q4_k_scales(&b->sc[0][lane], KN_PANEL, scale, min);
    for (int k = 0; k < 256; k++) {
        int sub = k / 32, i = k % 32 / 4, byte = b->q[k / 64 * 8 + i][lane][k % 4];
        int q = (sub % 2 ? byte >> 4 : byte & 15) | (b->qh[i][lane][k % 4] >> sub & 1) << 4;

        isum += scale[sub] * q * a->q[k];
        msum += min[sub] * a->q[k];
    }
    return add_256(b->d[lane], &b->dmin[lane], a->d, isum, msum, acc);
}

/* isum: at most 16 * 128 * 16 * 32 * 127 = 2^27 */
static float block_q6_k(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q6_k_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 256; k++) {
        int half = k / 128, field = k / 32 % 4, i = k % 32 / 4, j = k % 4;
        int low = b->ql[16 * half + 8 * (field & 1) + i][lane][j];
        int high = b->qh[8 * half + i][lane][j];
        int q = (field < 2 ? low & 15 : low >> 4) | (high >> 2 * field & 3) << 4;

        isum += b->sc[k / 16][lane] * (q - 32) * a->q[k];
    }
    return add_256(b->d[lane], NULL, a->d, isum, 0, acc);
}

static float block_q2_k(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q2_k_x16 *b = w;
    int32_t isum = 0, msum = 0;

    for (int k = 0; k < 256; k++) {
        int sc = b->sc[k / 16][lane], q = b->q[k / 128 * 8 + k % 32 / 4][lane][k % 4];

        isum += (sc & 15) * (q >> k / 32 % 4 * 2 & 3) * a->q[k];
        msum += (sc >> 4) * a->q[k];
    }
    return add_256(b->d[lane], &b->dmin[lane], a->d, isum, msum, acc);
}

static float block_q3_k(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_q3_k_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 256; k++) {
        int i = k % 32 / 4, low = b->q[k / 128 * 8 + i][lane][k % 4] >> k / 32 % 4 * 2 & 3;
        int high = b->qh[i][lane][k % 4] >> k / 32 & 1;

        isum += kn_q3_k_scale(&b->sc[0][lane], KN_PANEL, k / 16) * ((low | high << 2) - 4) * a->q[k];
    }
    return add_256(b->d[lane], NULL, a->d, isum, 0, acc);
}

/* isum: at most 8 * 32 * 32 * 127 * 127 = 2^27 */
static float block_iq4_xs(const void *w, int lane, const struct input *a, float acc)
{
    static const int8_t value[16] = { KN_IQ4 };
    const struct kn_iq4_xs_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 256; k++) {
        int sub = k / 32, byte = b->q[4 * sub + k % 16 / 4][lane][k % 4];

        isum += kn_iq4_xs_scale(b->sl[lane], b->sh[lane], sub) * value[byte >> k / 16 % 2 * 4 & 15] * a->q[k];
    }
    return add_256(b->d[lane], NULL, a->d, isum, 0, acc);
}

/* isum: at most 256 * 31 * 43 * 127 = 2^25.4 */
static float block_grid(enum kn_format f, const void *w, int lane, const struct input *a, float acc)
{
    _Alignas(4) uint8_t block[KN_BLOCK_MOST];
    int16_t integer[256];
    int32_t isum = 0;

    kn_block_gather(f, w, lane, block);
    kn_grid_integers(f, block, integer);
    for (int k = 0; k < 256; k++)
        isum += integer[k] * a->q[k];
    return fmaf(kn_grid_step(f, block) * a->d, (float)isum, acc);
}

#define BLOCK_GRID(name, F)                                                                                            \
    static float block_##name(const void *w, int lane, const struct input *a, float acc)                               \
    {                                                                                                                  \
        return block_grid(KN_##F, w, lane, a, acc);                                                                    \
    }
BLOCK_GRID(iq2_xxs, IQ2_XXS)
BLOCK_GRID(iq2_xs, IQ2_XS)
BLOCK_GRID(iq2_s, IQ2_S)
BLOCK_GRID(iq3_xxs, IQ3_XXS)
BLOCK_GRID(iq3_s, IQ3_S)
BLOCK_GRID(iq1_s, IQ1_S)
BLOCK_GRID(iq1_m, IQ1_M)

/* isum: at most 32 * 12 * 127 */
static float block_mxfp4(const void *w, int lane, const struct input *a, float acc)
{
    static const int8_t value[16] = { KN_E2M1_TWICE };
    const struct kn_mxfp4_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += value[nibble_of(b->q, lane, k)] * a->q[k];
    return fmaf(kn_mxfp4_step(b->e[lane]) * a->d, (float)isum, acc);
}

/* isum: at most 16 * 12 * 127 */
static float block_nvfp4(const void *w, int lane, const struct input *a, float acc)
{
    static const int8_t value[16] = { KN_E2M1_TWICE };
    const struct kn_nvfp4_half_x16 *b = w;

    for (int s = 0; s < 2; s++) {
        int32_t isum = 0;

        for (int k = 0; k < 16; k++)
            isum += value[b->q[2 * s + k % 8 / 4][lane][k % 4] >> k / 8 * 4 & 15] * a->q[16 * s + k];
        acc = fmaf(kn_nvfp4_step(b->d[s][lane]) * a->d, (float)isum, acc);
    }
    return acc;
}

static float block_uint4(const void *w, int lane, const struct input *a, float acc)
{
    const struct kn_uint4_x16 *b = w;
    int32_t isum = 0;

    for (int k = 0; k < 32; k++)
        isum += (nibble_of(b->q, lane, k) - b->z[lane]) * a->q[k];
    return fmaf(kn_f16_to_f32(b->d[lane]) * a->d, (float)isum, acc);
}

/* The activations of the row x from input k on. */
static struct input input_at(enum kn_act act, const void *x, int k)
{
    const struct kn_codes *c = (const struct kn_codes *)x + k / KN_GROUP;
    const int at = k % KN_GROUP;

    if (act == KN_ACT_F32)
        return (struct input){ .x = (const float *)x + k };
    return (struct input){ c->q + at, c->sum + at / 16, c->d[at / 32], NULL };
}

/* The product of one row of weights, `lane` of the panel w, with one row of activations. */
static float product(const struct kn_mat *m, const uint8_t *w, int lane, const void *x)
{
    static block_fn *const blocks[KN_FORMAT_COUNT] = {
        [KN_F32] = block_f32,       [KN_F16] = block_f16,         [KN_BF16] = block_bf16,
        [KN_Q8_0] = block_q8_0,     [KN_Q4_K] = block_q4_k,       [KN_Q6_K] = block_q6_k,
        [KN_MXFP4] = block_mxfp4,   [KN_Q4_0] = block_q4_0,       [KN_Q4_1] = block_q4_1,
        [KN_Q5_0] = block_q5_0,     [KN_Q5_1] = block_q5_1,       [KN_Q5_K] = block_q5_k,
        [KN_Q2_K] = block_q2_k,     [KN_Q3_K] = block_q3_k,       [KN_IQ4_NL] = block_iq4_nl,
        [KN_IQ4_XS] = block_iq4_xs, [KN_IQ2_XXS] = block_iq2_xxs, [KN_IQ2_XS] = block_iq2_xs,
        [KN_IQ2_S] = block_iq2_s,   [KN_IQ3_XXS] = block_iq3_xxs, [KN_IQ3_S] = block_iq3_s,
        [KN_IQ1_S] = block_iq1_s,   [KN_IQ1_M] = block_iq1_m,     [KN_FP8] = block_fp8,
        [KN_INT4] = block_int4,     [KN_NVFP4] = block_nvfp4,     [KN_UINT4] = block_uint4,
    };
    const struct kn_format_info *info = kn_format_info(m->format);
    const int step = kn_panel_values(info), bytes = info->block_bytes * step / info->block_values;
    float sum = 0;

    for (int group = 0; group < m->n_in; group += KN_GROUP) {
        float acc = 0;

        for (int k = group; k < kn_min(group + KN_GROUP, m->n_in); k += step) {
            const struct input a = input_at(info->act, x, k);

            acc = blocks[m->format](w, lane, &a, acc);
            w += KN_PANEL * bytes;
        }
        sum += acc;
    }
    return sum * m->scale;
}

void kn_matmul_scalar(const struct kn_matmul *m, int panel0, int panel1)
{
    size_t panel_bytes = KN_PANEL * kn_row_bytes(m->w.format, m->w.n_in);

    kn_assert(panel_bytes > 0 && panel0 >= 0 && panel1 <= kn_ceil_div(m->w.n_out, KN_PANEL));
    kn_assert(kn_format_info(m->w.format)->act == KN_ACT_F32 || ((uintptr_t)m->x | m->x_stride) % 16 == 0);
    for (int r = KN_PANEL * panel0; r < kn_min(KN_PANEL * panel1, m->w.n_out); r++) {
        const uint8_t *w = (const uint8_t *)m->w.data + (size_t)(r / KN_PANEL) * panel_bytes;

        for (int i = 0; i < m->n_row; i++) {
            const uint8_t *x = (const uint8_t *)m->x + (size_t)(m->x_row ? m->x_row[i] : i) * m->x_stride;

            m->y[(size_t)(m->y_row ? m->y_row[i] : i) * m->y_stride + (size_t)r] = product(&m->w, w, r % KN_PANEL, x);
        }
    }
}
