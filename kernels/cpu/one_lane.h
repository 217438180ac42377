/* kernels/cpu/one_lane.h - the operations of cpu/simd.h for a register of one float, in plain C.
 *
 * A *.tmpl.c whose lanes are independent can also be compiled with this header, and is then its own scalar
 * specification (encode.c, encode_32.c).
 * Every operation gives the same bits as one lane of simd.h. */
#ifndef KERNELS_CPU_ONE_LANE_H
#define KERNELS_CPU_ONE_LANE_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

#define KN_FN(name) name##_scalar
#define KN_INLINE   static inline __attribute__((always_inline))

#define KN_LANES 1
typedef float vf;
typedef bool vm;

KN_INLINE vf vf_zero(void) { return 0; }
KN_INLINE vf vf_set1(float x) { return x; }
KN_INLINE vf vf_load(const float *p) { return *p; }
KN_INLINE void vf_store(float *p, vf x) { *p = x; }
KN_INLINE vf vf_add(vf a, vf b) { return a + b; }
KN_INLINE vf vf_sub(vf a, vf b) { return a - b; }
KN_INLINE vf vf_mul(vf a, vf b) { return a * b; }
KN_INLINE vf vf_div(vf a, vf b) { return a / b; }
KN_INLINE vf vf_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
KN_INLINE vf vf_fnma(vf a, vf b, vf c) { return fmaf(-a, b, c); }
KN_INLINE vf vf_max(vf a, vf b) { return a > b ? a : b; }
KN_INLINE vf vf_min(vf a, vf b) { return a < b ? a : b; }
KN_INLINE vm vf_less(vf a, vf b) { return a < b; }
KN_INLINE vf vf_select(vm m, vf a, vf b) { return m ? a : b; }
KN_INLINE vf vf_load_f16(const uint16_t *p) { return kn_f16_to_f32(*p); }
KN_INLINE void vf_store_f16(uint16_t *p, vf x) { *p = kn_f32_to_f16(x); }

#endif
