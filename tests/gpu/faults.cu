/* Kernels that are wrong if `wrong` is set, and right otherwise. */
#include <stdint.h>

typedef uint32_t u32;

#define KERNEL extern "C" __global__ void
#define T      ((int)threadIdx.x)
#define I      ((int)(blockIdx.x * blockDim.x + threadIdx.x))
/* Threads beyond n compute, too, but write nothing. */
#define PUT(value)                                                                                                     \
    {                                                                                                                  \
        u32 put = value;                                                                                               \
        if (I < n)                                                                                                     \
            out[I] = put;                                                                                              \
    }

KERNEL bounds(const u32 *in, u32 *out, int n, int wrong)
{
    if (I < n || wrong)
        out[I] = in[I < n ? I : 0];
}

KERNEL bounds_below(const u32 *in, u32 *out, int n, int wrong)
{
    if (I < n)
        out[I] = in[I - wrong];
}

KERNEL alignment(const u32 *in, u32 *out, int n, int wrong)
{
    if (I < n - 4)
        out[I] = *(const u32 *)((const char *)(in + I) + wrong);
}

KERNEL vector_alignment(const u32 *in, u32 *out, int n, int wrong)
{
    if (I < n / 4 - 1) {
        uint4 v = ((const uint4 *)(in + wrong))[I];
        out[I] = v.x ^ v.y ^ v.z ^ v.w;
    }
}

KERNEL shared_bounds(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ u32 s[64];
    s[T % 64] = in[I % n];
    __syncthreads();
    if (I < n)
        out[I] = s[(T + 1) % 64 + 64 * wrong];
}

KERNEL local_bounds(const u32 *in, u32 *out, int n, int wrong)
{
    u32 a[9];
    for (int k = 0; k < 9; k++)
        a[k] = in[(I + k) % n];
    if (I < n)
        out[I] = a[in[I % n] % 9 + 9 * wrong];
}

/* The second half of `out` is not written before. */
KERNEL undefined_global(const u32 *in, u32 *out, int n, int wrong)
{
    if (I < n / 2)
        out[I] = in[I];
    if (I < n / 2)
        out[n / 2 + I] = wrong ? out[n / 2 + I] + 1 : 1;
}

KERNEL undefined_shared(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ u32 s[65];
    s[T % 64] = in[I % n];
    if (!wrong && !T)
        s[64] = 5;
    __syncthreads();
    if (I < n && s[64] != 7)
        out[I] = s[T % 64];
}

KERNEL shared_race(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ u32 s[64];
    s[T] = in[I % n];
    if (!wrong)
        __syncthreads();
    u32 v = s[63 - T];
    __syncthreads();
    s[T] = v;
    if (I < n)
        out[I] = s[T];
}

/* Read by one warp, then written by the other. */
KERNEL shared_race_read(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ u32 s[64];
    s[T] = in[I % n];
    __syncthreads();
    u32 v = T < 32 ? s[T + 32] : 0;
    if (!wrong)
        __syncthreads();
    if (T >= 32)
        s[T] = 1;
    if (I < n)
        out[I] = v;
}

KERNEL warp_race(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ u32 s[64];
    s[T] = in[I % n];
    if (wrong)
        asm volatile("" : : : "memory");
    else
        __syncwarp();
    if (I < n)
        out[I] = s[T ^ 1];
}

KERNEL block_race(const u32 *in, u32 *out, int n, int wrong)
{
    if (I < n)
        out[wrong ? T : I] = in[I];
}

KERNEL block_race_read(u32 *in, u32 *out, int n, int wrong)
{
    if (I < n) {
        out[I] = in[wrong ? n - 1 - I : I];
        in[I] = 1;
    }
}

/* The last block to finish adds the results of all; wrong: it does not fence them, or counts without an atomic. */
KERNEL last_block(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ u32 is_last;
    u32 *count = out + n - 1; /* 0 at first */
    if (I < n - 2)
        out[I] = in[I];
    if (!wrong)
        __threadfence();
    __syncthreads();
    if (!T)
        is_last = atomicAdd(count, 1) == gridDim.x - 1;
    __syncthreads();
    if (is_last && !T) {
        u32 sum = 0;
        for (int k = 0; k < n - 2; k++)
            sum += out[k];
        out[n - 2] = sum;
    }
}

KERNEL barrier(const u32 *in, u32 *out, int n, int wrong)
{
    if (T < (wrong ? 16 : 64)) {
        __syncthreads();
        PUT(in[I % n]);
    } else
        __syncthreads();
    __syncthreads();
}

/* A lane is read that is elsewhere. */
KERNEL lost_lanes(const u32 *in, u32 *out, int n, int wrong)
{
    u32 v = in[I % n];
    if (!wrong || T % 32 < 16)
        v = __shfl_sync(wrong ? 0xffff : 0xffffffff, v, 20);
    PUT(v);
}

KERNEL stuck(const u32 *in, u32 *out, int n, int wrong)
{
    if (wrong && T % 32 >= 16)
        __syncthreads();
    PUT(__shfl_sync(~0u, in[I % n], 3));
}

KERNEL early_copy(const u32 *in, u32 *out, int n, int wrong)
{
    __shared__ __align__(16) u32 s[64 * 4];
    u32 to = (u32)__cvta_generic_to_shared(s + 4 * T);
    s[4 * T] = 0;
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(in + I % n));
    asm volatile("cp.async.commit_group;");
    if (!wrong)
        asm volatile("cp.async.wait_group 0;" : : : "memory");
    else
        asm volatile("cp.async.wait_group 1;" : : : "memory");
    PUT(s[4 * T]);
}

KERNEL trapped(const u32 *in, u32 *out, int n, int wrong)
{
    if (wrong && I == 5)
        __trap();
    PUT(in[I % n]);
}
