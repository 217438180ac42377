/* evals/measure.h - shared by the kernel measurements: the best rate of a pass on one core, and
 * the arithmetic peaks used as bounds. */
#ifndef EVALS_MEASURE_H
#define EVALS_MEASURE_H

#include <immintrin.h>

#include "kernels/kernels.h"

#define WINDOW_NS 5000000u   /* a figure is the best of many windows, */
#define FIGURE_NS 300000000u /* because other processes share the machine */

typedef double pass_fn(void *arg); /* does a unit of work once, returns its amount */

static inline double best_per_ns(pass_fn *pass, void *arg)
{
    uint64_t begin = kn_now_ns(), now = begin;
    double best = 0;

    while (now - begin < FIGURE_NS) {
        uint64_t start = now;
        double amount = 0;

        do {
            amount += pass(arg);
            now = kn_now_ns();
        } while (now - start < WINDOW_NS);
        if (amount / (double)(now - start) > best)
            best = amount / (double)(now - start);
    }
    return best;
}

/* n steps of independent chains of one instruction, enough chains to hide its latency; the results are used, so
 * that the compiler cannot remove a chain. */
#define CHAINS 12
#define PEAK(name, isa, type, zero, step)                                                                              \
    __attribute__((target(isa))) static inline void name(long n)                                                       \
    {                                                                                                                  \
        type v[CHAINS], x = zero;                                                                                      \
        for (int i = 0; i < CHAINS; i++)                                                                               \
            v[i] = zero;                                                                                               \
        __asm__ volatile("" : "+v"(x));                                                                                \
        for (long k = 0; k < n; k++) {                                                                                 \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) v[i] = step;                                     \
        }                                                                                                              \
        for (int i = 0; i < CHAINS; i++)                                                                               \
            __asm__ volatile("" : : "v"(v[i]));                                                                        \
    }
PEAK(fma_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_fmadd_ps(v[i], x, x))
PEAK(fma_avx512, "avx512f", __m512, _mm512_setzero_ps(), _mm512_fmadd_ps(v[i], x, x))

/* One pass of fmas of the instruction set at arg; returns the number of products. */
static inline double fma_pass(void *arg)
{
    const enum kn_isa *isa = arg;
    const long n = 10000;

    (*isa >= KN_ISA_AVX512 ? fma_avx512 : fma_avx2)(n);
    return (double)n * CHAINS * (*isa >= KN_ISA_AVX512 ? 16 : 8);
}

#endif
