/* Kernels whose lanes branch, call, exchange values, use every kind of memory; test_warps.c has the same in C. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef uint32_t u32;

__constant__ float constants[5] = { 1.5f, -2, 0.25f, 1000, -0.125f };
__device__ u32 counter = 7;
__device__ uint16_t shorts[3] = { 1, 2, 0xfffe };
__device__ u32 *pointer = &counter;
extern __shared__ u32 dynamic[];

__device__ __noinline__ float power(float x, int n)
{
    float r = 1;
    for (int i = 0; i < n; i++)
        r = __fmul_rn(r, __fadd_rn(x, constants[i % 5]));
    return r;
}

struct pair {
    float a;
    int b;
    double c;
};
__device__ __noinline__ pair change(pair p, int n)
{
    p.a = power(p.a, n);
    p.b += n;
    p.c = __dmul_rn(p.c, 3);
    return p;
}

extern "C" __global__ void branches(const u32 *in, u32 *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 v = in[i], n = 0;
    while (v != 1 && n < 1000) { /* a different number of turns in each lane */
        v = v & 1 ? 3 * v + 1 : v / 2;
        n++;
        if (n % 7 == 6 && v % 5 == 3)
            continue;
        if (v % 97 == 13)
            break;
    }
    out[i] = n << 16 | (v & 0xffff);
}

extern "C" __global__ void calls(const float *in, double *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    pair p = { in[i], i, in[i] };
    if (i % 3)
        p = change(p, i % 11);
    else
        p.a = power(p.a, 2);
    out[i] = p.a + p.b * 2.0 + p.c;
}

extern "C" __global__ void choices(const u32 *in, u32 *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    u32 v = in[i], r;
    asm volatile("{.reg .u32 k; and.b32 k, %1, 3;\n"
                 "targets: .branchtargets A, B, C, D;\n"
                 "brx.idx k, targets;\n"
                 "A: mov.u32 %0, 10; bra.uni E;\n"
                 "B: add.u32 %0, %1, 1; bra.uni E;\n"
                 "C: mul.lo.u32 %0, %1, 5; bra.uni E;\n"
                 "D: not.b32 %0, %1;\n"
                 "E: }"
                 : "=r"(r)
                 : "r"(v));
    out[i] = r;
}

extern "C" __global__ void memories(const u32 *in, u32 *out, int n)
{
    __shared__ u32 shared[64];
    __shared__ __align__(16) unsigned char bytes[64 * 4];
    u32 local[17];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    for (int k = 0; k < 17; k++)
        local[k] = in[i] * k;
    shared[t] = in[i];
    dynamic[63 - t] = in[i] + 1;
    bytes[t] = (unsigned char)in[i];
    bytes[64 + t] = bytes[128 + t] = bytes[192 + t] = 1;
    __syncthreads();
    uint4 four = *(const uint4 *)(bytes + t / 16 * 16);
    u32 sum = shared[(t + 1) % 64] + dynamic[t] + local[(in[i] + n) % 17] + four.x + four.w;
    __syncthreads();
    shared[t] = sum;
    __syncthreads();
    for (int step = 32; step; step /= 2) {
        if (t < step)
            shared[t] += shared[t + step];
        __syncthreads();
    }
    out[i] = sum ^ shared[0] ^ shorts[t % 3] ^ (u32)(constants[t % 5] * 8);
}

extern "C" __global__ void lanes(const u32 *in, u32 *out)
{
    u32 t = threadIdx.x, v = in[t], *to = out + t * 16;
    to[0] = __shfl_xor_sync(~0u, v, 5);
    to[1] = __shfl_down_sync(~0u, v, 3);
    to[2] = __shfl_up_sync(~0u, v, 3);
    to[3] = __shfl_sync(~0u, v, v & 31);
    to[4] = __shfl_xor_sync(~0u, v, 5, 8);
    to[5] = __shfl_sync(~0u, v, 9, 16);
    to[6] = __ballot_sync(~0u, v & 1);
    to[7] = __any_sync(~0u, v == 5) | __all_sync(~0u, v != 5) << 1;
    to[8] = __match_any_sync(~0u, v % 5);
    to[9] = __reduce_add_sync(~0u, v);
    to[10] = (u32)__reduce_max_sync(~0u, (int)v);
    to[11] = to[12] = to[13] = 0;
    if (t % 32 < 20) {
        to[11] = __activemask();
        to[12] = __shfl_sync(0xfffff, v, 19);
        if (t & 1)
            to[13] = __reduce_or_sync(0xaaaaa, v);
    }
    __syncwarp();
    to[14] = __shfl_down_sync(~0u, (unsigned long long)v * 0x100000001ull, 1) >> 20;
    u32 mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    u32 inside; /* does the shuffle read a lane? */
    asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %1, 3, 31, -1; selp.u32 %0, 1, 0, p;}"
                 : "=r"(inside)
                 : "r"(v));
    to[15] = mask ^ (t % 32) ^ inside << 31;
}

extern "C" __global__ void atomics(u32 *sums, const u32 *in, int *low, unsigned long long *big, float *f)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ u32 local;
    if (!threadIdx.x)
        local = 0;
    __syncthreads();
    atomicAdd(&local, in[i]);
    atomicAdd(sums + in[i] % 8, 1);
    atomicMax(sums + 8, in[i]);
    atomicMin(low, (int)in[i]);
    atomicAdd(big, (unsigned long long)in[i] << 20);
    atomicXor(sums + 9, in[i]);
    atomicAdd(f, 0.5f);
    atomicInc(sums + 10, 100);
    u32 seen = *(volatile u32 *)(sums + 11), old;
    do {
        old = seen;
        seen = atomicCAS(sums + 11, old, old * 3 + 1);
    } while (seen != old);
    __syncthreads();
    if (!threadIdx.x)
        atomicAdd(sums + 12, local);
    atomicAdd(threadIdx.x % 2 ? pointer : &counter, 1);
}

/* Halves in pairs, and barriers that count. */
extern "C" __global__ void votes(const u32 *in, u32 *out, __half2 *sums, __nv_bfloat162 *others)
{
    int t = threadIdx.x;
    out[t] = __syncthreads_count(in[t] & 1);
    out[t] |= __syncthreads_or(in[t] == 77) ? 1 << 16 : 0;
    out[t] |= __syncthreads_and(in[t] != 78) ? 1 << 17 : 0;
    atomicAdd(sums + t % 2, __halves2half2(__ushort_as_half(0x3c00), __ushort_as_half(0xc000)));
    atomicAdd(others, __halves2bfloat162(__ushort_as_bfloat16(0x3f80), __ushort_as_bfloat16(0x4000)));
}

extern "C" __global__ void async(const uint4 *in, uint4 *out, int n)
{
    __shared__ uint4 stage[2][64];
    u32 t = threadIdx.x;
    for (int k = 0; k < n + 1; k++) {
        if (k < n) {
            u32 to = (u32)__cvta_generic_to_shared(&stage[k % 2][t]), bytes = t < 60 ? 16 : 4 * (t - 60);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(in + k * 64 + t), "r"(bytes));
            asm volatile("cp.async.commit_group;");
        }
        if (k) {
            if (k < n)
                asm volatile("cp.async.wait_group 1;" : : : "memory");
            else
                asm volatile("cp.async.wait_all;" : : : "memory");
            __syncthreads();
            out[(k - 1) * 64 + t] = stage[(k - 1) % 2][(t + 1) % 64];
            __syncthreads();
        }
    }
}

/* d [16, 8] = a [16, k] b [8, k] + c for k = 32 and 16; a by ldmatrix. */
extern "C" __global__ void products(const signed char *a, const unsigned char *b, const int *c, int *d)
{
    __shared__ __align__(16) signed char tile[16][32];
    int l = threadIdx.x, row = l / 4, column = l % 4 * 2;
    for (int k = 0; k < 16; k++)
        tile[k][l] = a[k * 32 + l];
    __syncwarp();
    u32 f[4], g[2];
    u32 at = (u32)__cvta_generic_to_shared(&tile[l % 16][l / 16 * 16]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
    for (int k = 0; k < 2; k++)
        g[k] = *(const u32 *)(b + row * 32 + l % 4 * 4 + k * 16);
    int r[4] = { c[row * 8 + column], c[row * 8 + column + 1], c[row * 8 + 64 + column], c[row * 8 + 65 + column] };
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
                 : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[0]), "r"(g[1]));
    for (int k = 0; k < 4; k++)
        d[(row + k / 2 * 8) * 8 + column + k % 2] = r[k];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
                 : "r"(f[0]), "r"(f[1]), "r"(g[0]));
    for (int k = 0; k < 4; k++)
        d[128 + (row + k / 2 * 8) * 8 + column + k % 2] = r[k];
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(f[0]), "=r"(f[1])
                 : "r"(at)
                 : "memory");
    d[256 + l] = (int)f[0];
    d[288 + l] = (int)f[1];
}

/* Speed: instructions such as those of a product of codes. */
extern "C" __global__ void busy(const int *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k++) {
        int v = x[(k * 4 + i) & 1023], w = x[(k * 4 + i + 32) & 1023];
        int dot = __dp4a(v, w, __dp4a(v & 0x0f0f0f0f, w, k));
        sum = __fmaf_rn((float)dot, 0.001f, sum);
    }
    y[i] = sum;
}
