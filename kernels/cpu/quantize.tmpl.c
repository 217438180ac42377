/* kernels/cpu/quantize.tmpl.c - float32 activations to int8 codes with a scale per block.
 *
 * Input: a row of floats.  Output: its blocks (formats.h), with the bits that reference_matmul.c
 * gives.  The largest magnitude is an integer maximum over the bits, so NaN and infinity are found
 * the same way everywhere; division and product are correctly rounded; the conversion rounds to
 * nearest even.  A block with a NaN scale, or with no value of 2^-100 or more, has codes of 0. */
#include "kernels/cpu/simd.h"
#include "kernels/internal.h"

/* Largest of all lanes. */
static int32_t largest_lane(vi v)
{
    int32_t lane[KN_LANES], largest = 0;

    vi_store(lane, v);
    for (int i = 0; i < KN_LANES; i++)
        largest = kn_max(largest, lane[i]);
    return largest;
}

/* Writes the codes of 16 values to q and returns their sum; inverse: 1 / scale. */
KN_INLINE int16_t codes_of_16(const float *x, vf inverse, int8_t *q)
{
    const vi most = vi_set1(127), least = vi_set1(-127);
    vi total = vi_zero();

    for (int part = 0; part < KN_PARTS; part++) {
        vi code = vf_to_int(vf_mul(vf_load(x + part * KN_LANES), inverse));

        code = vi_max(least, vi_min(most, code));
        vi_store_i8(q + part * KN_LANES, code);
        total = vi_add(total, code);
    }
    return (int16_t)vi_sum(total);
}

KN_INLINE float quantize_block(const float *x, int n, int8_t *q, int16_t *sum)
{
    vi bits = vi_zero();
    int32_t largest_bits;
    float largest;

    for (int i = 0; i < n; i += KN_LANES)
        bits = vi_max(bits, vi_and(vi_bits(vf_load(x + i)), vi_set1(0x7FFFFFFF)));
    largest_bits = largest_lane(bits);
    memcpy(&largest, &largest_bits, sizeof largest);
    if (largest_bits >= 0x7F800000 || largest < 0x1p-100f) {
        memset(q, 0, (size_t)n);
        memset(sum, 0, (size_t)n / 16 * sizeof *sum);
        return largest_bits >= 0x7F800000 ? kn_f16_to_f32(0x7E00) : 0.0f;
    }
    for (int i = 0; i < n; i += 16)
        sum[i / 16] = codes_of_16(x + i, vf_set1(127.0f / largest), q + i);
    return largest / 127.0f;
}

/* One record: the codes of n values, n at most 256; zeros follow. */
static void quantize_32(const float *x, int n, struct kn_codes *c)
{
    if (n < KN_GROUP)
        memset(c, 0, sizeof *c);
    for (int k = 0; k < n; k += 32)
        c->d[k / 32] = quantize_block(x + k, 32, c->q + k, c->sum + k / 16);
}

static void quantize_256(const float *x, struct kn_codes *c)
{
    float d = quantize_block(x, 256, c->q, c->sum);

    for (int i = 0; i < KN_GROUP / 32; i++)
        c->d[i] = d;
}

void KN_FN(kn_quantize)(enum kn_act a, const float *x, int n, void *out)
{
    struct kn_codes *c = out;

    kn_assert(n % (a == KN_ACT_Q256 ? 256 : a == KN_ACT_Q32 ? 32 : 1) == 0);
    if (a == KN_ACT_F32)
        memcpy(out, x, (size_t)n * sizeof *x);
    for (; a == KN_ACT_Q32 && n > 0; n -= KN_GROUP, x += KN_GROUP, c++)
        quantize_32(x, kn_min(n, KN_GROUP), c);
    for (; a == KN_ACT_Q256 && n > 0; n -= KN_GROUP, x += KN_GROUP, c++)
        quantize_256(x, c);
}
