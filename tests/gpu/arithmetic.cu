/* A kernel for each list of arithmetic.h: result [row, thread] of the operands in [thread, 3], as bits of 64. */
#include "tests/gpu/arithmetic.h"

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;

__device__ static u16 from(u64 v, u16) { return (u16)v; }
__device__ static u32 from(u64 v, u32) { return (u32)v; }
__device__ static u64 from(u64 v, u64) { return v; }
__device__ static f32 from(u64 v, f32) { return __uint_as_float((u32)v); }
__device__ static f64 from(u64 v, f64) { return __longlong_as_double((long long)v); }
__device__ static u64 bits(u16 v) { return v; }
__device__ static u64 bits(u32 v) { return v; }
__device__ static u64 bits(u64 v) { return v; }
__device__ static u64 bits(f32 v) { return __float_as_uint(v); }
__device__ static u64 bits(f64 v) { return (u64)__double_as_longlong(v); }

#define OUT_u16 "=h"
#define OUT_u32 "=r"
#define OUT_u64 "=l"
#define OUT_f32 "=f"
#define OUT_f64 "=d"
#define IN_u16  "h"
#define IN_u32  "r"
#define IN_u64  "l"
#define IN_f32  "f"
#define IN_f64  "d"

#define X(text, D, A, expression)                                                                                      \
    {                                                                                                                  \
        A a = from(in[3 * i], A()), b = from(in[3 * i + 1], A()), c = from(in[3 * i + 2], A());                        \
        D r;                                                                                                           \
        asm(text : OUT_##D(r) : IN_##A(a), IN_##A(b), IN_##A(c));                                                      \
        out[row++ * n + i] = bits(r);                                                                                  \
    }

#define KERNEL(name, list)                                                                                             \
    extern "C" __global__ void name(const u64 *in, u64 *out, int n)                                                    \
    {                                                                                                                  \
        int i = blockIdx.x * blockDim.x + threadIdx.x, row = 0;                                                        \
        if (i < n) {                                                                                                   \
            list(X)                                                                                                    \
        }                                                                                                              \
    }
KERNEL(integers, GPU_INTEGERS)
KERNEL(floats, GPU_FLOATS)
KERNEL(halves, GPU_HALVES)
