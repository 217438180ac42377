/* kernels/cpu/expf.h - exp of a float, made of correctly rounded operations only. Valid in C and
 * CUDA C.
 *
 * One sequence of operations for every backend: the scalar specification and the device use this
 * function, the SIMD bodies (vf_exp) repeat it lane by lane with the same constants.
 *
 *   x = n ln2 + r, |r| <= ln2 / 2;   e^r = 1 + (r + r^2 Q(r));   result = e^r * 2^n
 *
 * n is rounded by adding 1.5 * 2^23: there the last bit of a float is 1. n LN2_HI has few enough bits
 * for the first fmaf to be exact. 2^n is applied in two factors, so that only a denormal result is
 * rounded. Q is of degree 4, fitted to (e^r - 1 - r) / r^2 by Chebyshev interpolation (its own error
 * is at most 0.13 ulp). Over all floats the error of the result is at most 1.0954 ulp
 * (tests/kernels/test_math.c). */
#ifndef KERNELS_CPU_EXPF_H
#define KERNELS_CPU_EXPF_H

#include "kernels/core.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define KN_EXPF_LOWEST  -104.0f /* below: rounds to zero */
#define KN_EXPF_HIGHEST 89.0f   /* above: infinite */
#define KN_EXPF_SHIFT   12582912.0f
#define KN_EXPF_LOG2E   0x1.715476p+0f
#define KN_EXPF_LN2_HI  0x1.62e4p-1f /* 15 bits */
#define KN_EXPF_LN2_LO  0x1.7f7d1cp-20f
#define KN_EXPF_Q0      0x1.000000p-1f
#define KN_EXPF_Q1      0x1.5554dcp-3f
#define KN_EXPF_Q2      0x1.55551ap-5f
#define KN_EXPF_Q3      0x1.120b6ep-7f
#define KN_EXPF_Q4      0x1.6d110ap-10f

/* 2^k for -126 <= k <= 127. */
KN_SHARED float kn_pow2f(int32_t k)
{
    uint32_t bits = (uint32_t)(k + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

KN_SHARED float kn_expf_inline(float x)
{
    if (x != x)
        return x;
    x = x < KN_EXPF_LOWEST ? KN_EXPF_LOWEST : x;
    x = x > KN_EXPF_HIGHEST ? KN_EXPF_HIGHEST : x;

    float n = fmaf(x, KN_EXPF_LOG2E, KN_EXPF_SHIFT) - KN_EXPF_SHIFT;
    float r = fmaf(n, -KN_EXPF_LN2_HI, x);
    r = fmaf(n, -KN_EXPF_LN2_LO, r);

    float q = KN_EXPF_Q4;
    q = fmaf(q, r, KN_EXPF_Q3);
    q = fmaf(q, r, KN_EXPF_Q2);
    q = fmaf(q, r, KN_EXPF_Q1);
    q = fmaf(q, r, KN_EXPF_Q0);
    float e = fmaf(q, r * r, r) + 1.0f;

    int32_t k = (int32_t)n, half = k / 2;
    return e * kn_pow2f(half) * kn_pow2f(k - half);
}

/* tanh of a float, by the same rules; SIMD bodies repeat it (vf_tanh).  From KN_TANHF_NEAR on it is (1 - e) / (1 + e)
 * with e = exp(-2 |x|); below, where 1 - e would lose bits, x + x^3 T(x^2), the Taylor series, whose next term is
 * 1e-8 x. */
#define KN_TANHF_NEAR 0.25f
#define KN_TANHF_T0   -0x1.555556p-2f
#define KN_TANHF_T1   0x1.111112p-3f
#define KN_TANHF_T2   -0x1.ba1ba2p-5f
#define KN_TANHF_T3   0x1.664f48p-6f

KN_SHARED float kn_tanhf_inline(float x)
{
    float size = fabsf(x), s = x * x;
    if (size < KN_TANHF_NEAR) {
        float t = fmaf(KN_TANHF_T3, s, KN_TANHF_T2);
        t = fmaf(t, s, KN_TANHF_T1);
        t = fmaf(t, s, KN_TANHF_T0);
        return fmaf(t * s, x, x);
    }
    float e = kn_expf_inline(-2.0f * size);
    return copysignf((1.0f - e) / (1.0f + e), x);
}

#endif
