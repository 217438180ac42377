/* kernels/cpu/logits.tmpl.c - operations on a row of logits, per instruction set.
 *
 * Equal to cpu/logits.c bit for bit.  A row of 150,000 logits is 600 KB, in the L2 cache at best, so each operation reads it once. */
#include "kernels/cpu/simd_math.h"
#include "kernels/internal.h"

#include <float.h>
#include <math.h>

KN_INLINE vf larger_of(const float *z, int i, int n, vf most)
{
    if (i + KN_LANES <= n)
        return vf_max(vf_load(z + i), most);
    return vf_max(vf_select(first_lanes(n - i), vf_load_n(z + i, n - i), most), most);
}

float KN_FN(kn_largest)(const float *z, int n)
{
    vf most[4];
    for (int k = 0; k < 4; k++)
        most[k] = vf_set1(-HUGE_VALF);
    for (int i = 0; i < n; i += 4 * KN_LANES)
        for (int k = 0; k < 4 && i + k * KN_LANES < n; k++)
            most[k] = larger_of(z, i + k * KN_LANES, n, most[k]);
    return vf_largest(vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3])));
}

float KN_FN(kn_clean_logits)(const float *x, int n, float *z)
{
    vf lowest = vf_set1(-HUGE_VALF), highest = vf_set1(FLT_MAX), most[4];
    for (int k = 0; k < 4; k++)
        most[k] = lowest;
    for (int i = 0; i < n; i += 4 * KN_LANES)
        for (int k = 0, at = i; k < 4 && at < n; k++, at += KN_LANES) {
            vf clean = vf_min(vf_max(load_some(x + at, n - at), lowest), highest);
            store_some(z + at, clean, n - at);
            most[k] = vf_max(n - at < KN_LANES ? vf_select(first_lanes(n - at), clean, lowest) : clean, most[k]);
        }
    return vf_largest(vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3])));
}

int KN_FN(kn_find_first)(const float *z, float value, int n)
{
    vf wanted = vf_set1(value);
    int i = 0;
    for (; i + KN_LANES <= n; i += KN_LANES) {
        unsigned equal = vf_equal_bits(vf_load(z + i), wanted);
        if (equal)
            return i + __builtin_ctz(equal);
    }
    while (i < n && z[i] != value)
        i++;
    return i;
}

float KN_FN(kn_exp_sum)(const float *z, float most, int n) { return sum_exp(z, most, n, NULL); }

/* ---- doubles: half as many lanes ---------------------------------------------------------------- */

#if KN_LANES == 16

typedef __m512d wf;
typedef __m512i wi;

KN_INLINE wf wf_set1(double x) { return _mm512_set1_pd(x); }
KN_INLINE wf wf_load(const float *z) { return _mm512_cvtps_pd(_mm256_loadu_ps(z)); }
KN_INLINE void wf_store(float *x, wf v) { _mm256_storeu_ps(x, _mm512_cvtpd_ps(v)); }
KN_INLINE wf wf_add(wf a, wf b) { return _mm512_add_pd(a, b); }
KN_INLINE wf wf_sub(wf a, wf b) { return _mm512_sub_pd(a, b); }
KN_INLINE wf wf_mul(wf a, wf b) { return _mm512_mul_pd(a, b); }
KN_INLINE wf wf_div(wf a, wf b) { return _mm512_div_pd(a, b); }
KN_INLINE unsigned wf_greater_bits(wf a, wf b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
KN_INLINE wf wf_bits(wi a) { return _mm512_castsi512_pd(a); }
KN_INLINE wi wi_bits(wf a) { return _mm512_castpd_si512(a); }
KN_INLINE wi wi_set1(uint64_t x) { return _mm512_set1_epi64((int64_t)x); }
KN_INLINE wi wi_steps(uint64_t x) /* 0, x, 2x .. */
{
    return _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), wi_set1(x));
}
KN_INLINE wi wi_add(wi a, wi b) { return _mm512_add_epi64(a, b); }
KN_INLINE wi wi_xor(wi a, wi b) { return _mm512_xor_si512(a, b); }
KN_INLINE wi wi_or(wi a, wi b) { return _mm512_or_si512(a, b); }
KN_INLINE wi wi_mul(wi a, uint64_t b) { return _mm512_mullo_epi64(a, wi_set1(b)); }
#define wi_shr(a, n) _mm512_srli_epi64(a, n)

#else

typedef __m256d wf;
typedef __m256i wi;

KN_INLINE wf wf_set1(double x) { return _mm256_set1_pd(x); }
KN_INLINE wf wf_load(const float *z) { return _mm256_cvtps_pd(_mm_loadu_ps(z)); }
KN_INLINE void wf_store(float *x, wf v) { _mm_storeu_ps(x, _mm256_cvtpd_ps(v)); }
KN_INLINE wf wf_add(wf a, wf b) { return _mm256_add_pd(a, b); }
KN_INLINE wf wf_sub(wf a, wf b) { return _mm256_sub_pd(a, b); }
KN_INLINE wf wf_mul(wf a, wf b) { return _mm256_mul_pd(a, b); }
KN_INLINE wf wf_div(wf a, wf b) { return _mm256_div_pd(a, b); }
KN_INLINE unsigned wf_greater_bits(wf a, wf b) { return (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ)); }
KN_INLINE wf wf_bits(wi a) { return _mm256_castsi256_pd(a); }
KN_INLINE wi wi_bits(wf a) { return _mm256_castpd_si256(a); }
KN_INLINE wi wi_set1(uint64_t x) { return _mm256_set1_epi64x((int64_t)x); }
KN_INLINE wi wi_add(wi a, wi b) { return _mm256_add_epi64(a, b); }
KN_INLINE wi wi_xor(wi a, wi b) { return _mm256_xor_si256(a, b); }
KN_INLINE wi wi_or(wi a, wi b) { return _mm256_or_si256(a, b); }
#define wi_shr(a, n) _mm256_srli_epi64(a, n)
KN_INLINE wi wi_mul(wi a, uint64_t b) /* three products of halves */
{
    wi low = wi_set1(b & UINT32_MAX), high = wi_set1(b >> 32);
    wi across = wi_add(_mm256_mul_epu32(wi_shr(a, 32), low), _mm256_mul_epu32(a, high));
    return wi_add(_mm256_mul_epu32(a, low), _mm256_slli_epi64(across, 32));
}
KN_INLINE wi wi_steps(uint64_t x) { return wi_mul(_mm256_setr_epi64x(0, 1, 2, 3), x); }

#endif

#define WIDE (KN_LANES / 2)

/* Division by 1 is exact, and a difference of floats rounds to the same float by way of double, so no double is needed. */
void KN_FN(kn_temper)(const float *z, float most, double temperature, int n, float *x)
{
    if (temperature == 1) {
        vf top = vf_set1(most);
        for (int i = 0; i < n; i += KN_LANES)
            store_some(x + i, vf_sub(load_some(z + i, n - i), top), n - i);
        return;
    }
    wf top = wf_set1((double)most), by = wf_set1(temperature);
    int i = 0;
    for (; i + WIDE <= n; i += WIDE)
        wf_store(x + i, wf_div(wf_sub(wf_load(z + i), top), by));
    for (; i < n; i++)
        x[i] = (float)(((double)z[i] - (double)most) / temperature);
}

/* ---- lists of tokens ---------------------------------------------------------------------------- */

/* Appends first + k for each set bit k of the mask. */
KN_INLINE int list_bits(unsigned mask, int first, int32_t *id, int n)
{
    for (; mask; mask &= mask - 1)
        id[n++] = first + __builtin_ctz(mask);
    return n;
}

int KN_FN(kn_list_above)(const float *z, float least, int n, int32_t *id)
{
    vf bound = vf_set1(least);
    int found = 0, i = 0;
    for (; i + KN_LANES <= n; i += KN_LANES)
        found = list_bits(vf_not_less_bits(vf_load(z + i), bound), i, id, found);
    for (; i < n; i++)
        if (z[i] >= least)
            id[found++] = i;
    return found;
}

KN_INLINE wi mixed(wi z)
{
    z = wi_mul(wi_xor(z, wi_shr(z, 30)), UINT64_C(0xBF58476D1CE4E5B9));
    z = wi_mul(wi_xor(z, wi_shr(z, 27)), UINT64_C(0x94D049BB133111EB));
    return wi_xor(z, wi_shr(z, 31));
}

/* With t the upper 52 bits of the inverted hash: a double with t in its fraction and the exponent of 2^52, less 2^52 - 1/2, is
 * t + 1/2; its exponent has the number of leading zeros.  An integer below 2^52 becomes a double in the same way. */
int KN_FN(kn_list_noisy)(const float *z, int from, int to, const struct kn_noise *noise, int32_t *id)
{
    const wi two52 = wi_bits(wf_set1(0x1p52)), ones = wi_set1(UINT64_MAX);
    const wf inverse = wf_set1(noise->inverse), least = wf_set1(noise->least), bit = wf_set1(KN_NOISE_BIT);
    wi key = wi_add(wi_set1(noise->stream + KN_GOLDEN * ((uint64_t)(uint32_t)from + 1)), wi_steps(KN_GOLDEN));
    wi step = wi_set1(WIDE * KN_GOLDEN);
    int found = 0, i = from;
    for (; i + WIDE <= to; i += WIDE, key = wi_add(key, step)) {
        wi t = wi_shr(wi_xor(mixed(key), ones), 12);
        wf half = wf_sub(wf_bits(wi_or(t, two52)), wf_set1(0x1p52 - 0.5));
        wf exponent = wf_sub(wf_bits(wi_or(wi_shr(wi_bits(half), 52), two52)), wf_set1(0x1p52));
        wf most = wf_mul(wf_sub(wf_set1(1075), exponent), bit);
        found = list_bits(wf_greater_bits(wf_add(wf_mul(wf_load(z + i), inverse), most), least), i, id, found);
    }
    return found + kn_list_noisy_scalar(z, i, to, noise, id + found);
}
