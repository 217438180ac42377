/* Kernels with branches, calls, exchanges between lanes, atomics and every kind of memory give the bytes of the same
 * computation in C, with blocks, warps and atomics in several orders.
 *
 * The device is a thread of its own; the interpreter has no other: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>
#include <cmocka.h>

#include "tests/gpu/kernels.h"

typedef uint32_t u32;

static const char *program;
static const float constants[5] = { 1.5f, -2, 0.25f, 1000, -0.125f };
static const uint16_t shorts[3] = { 1, 2, 0xfffe };
static uint64_t random_state;

static u32 next(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)(random_state >> 32);
}

static void run(void *module, const char *kernel, unsigned blocks, unsigned threads, unsigned shared, void **parameters)
{
    void *f;
    assert_int_equal(cuModuleGetFunction(&f, module, kernel), 0);
    if (cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, shared, NULL, parameters, NULL) || cuCtxSynchronize())
        fail_msg("%s", spillway_gpu_last_error());
}

static void *get(uint64_t at, void *to, size_t bytes)
{
    assert_int_equal(cuMemcpyDtoH_v2(to, at, bytes), 0);
    cuMemFree_v2(at);
    return to;
}

static void branches(void *module)
{
    enum { N = 3 * 96 };
    u32 in[N], want[N], got[N];
    for (int i = 0; i < N; i++) {
        u32 v = in[i] = next() % 100000 + 1, n = 0;
        while (v != 1 && n < 1000) {
            v = v & 1 ? 3 * v + 1 : v / 2;
            n++;
            if (n % 7 == 6 && v % 5 == 3)
                continue;
            if (v % 97 == 13)
                break;
        }
        want[i] = n << 16 | (v & 0xffff);
    }
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof got);
    run(module, "branches", 3, 96, 0, (void *[]){ &d_in, &d_out });
    assert_memory_equal(get(d_out, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_in);
}

static float power(float x, int n)
{
    float r = 1;
    for (int i = 0; i < n; i++)
        r = r * (x + constants[i % 5]);
    return r;
}

static void calls(void *module)
{
    enum { N = 2 * 48 };
    float in[N];
    double want[N], got[N];
    for (int i = 0; i < N; i++) {
        in[i] = (float)(next() % 1000) * 0.01f - 5;
        float a = i % 3 ? power(in[i], i % 11) : power(in[i], 2);
        want[i] = a + (i % 3 ? i + i % 11 : i) * 2.0 + (i % 3 ? in[i] * 3.0 : in[i]);
    }
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof got);
    run(module, "calls", 2, 48, 0, (void *[]){ &d_in, &d_out });
    assert_memory_equal(get(d_out, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_in);
}

static void choices(void *module)
{
    enum { N = 64 };
    u32 in[N], want[N], got[N];
    for (int i = 0; i < N; i++) {
        u32 v = in[i] = next();
        want[i] = v % 4 == 0 ? 10 : v % 4 == 1 ? v + 1 : v % 4 == 2 ? v * 5 : ~v;
    }
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof got);
    run(module, "choices", 1, N, 0, (void *[]){ &d_in, &d_out });
    assert_memory_equal(get(d_out, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_in);
}

static void memories(void *module)
{
    enum { BLOCKS = 4, N = 64 * BLOCKS };
    u32 in[N], want[N], got[N];
    int n = 5;
    for (int i = 0; i < N; i++)
        in[i] = next();
    for (int b = 0; b < BLOCKS; b++) {
        u32 sum[64], total = 0;
        const u32 *x = in + 64 * b;
        for (int t = 0; t < 64; t++) {
            u32 first, last;
            uint8_t bytes[16];
            for (int k = 0; k < 16; k++)
                bytes[k] = (uint8_t)x[t / 16 * 16 + k];
            memcpy(&first, bytes, 4);
            memcpy(&last, bytes + 12, 4);
            total += sum[t] = x[(t + 1) % 64] + x[63 - t] + 1 + x[t] * ((x[t] + (u32)n) % 17) + first + last;
        }
        for (int t = 0; t < 64; t++)
            want[64 * b + t] = sum[t] ^ total ^ shorts[t % 3] ^ (u32)(int)(constants[t % 5] * 8);
    }
    for (int b = 0; b < N; b++) /* a negative float as u32 saturates to 0 */
        if (constants[b % 64 % 5] < 0)
            want[b] ^= (u32)(int)(constants[b % 64 % 5] * 8);
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof got);
    run(module, "memories", BLOCKS, 64, 256, (void *[]){ &d_in, &d_out, &n });
    assert_memory_equal(get(d_out, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_in);
}

static void want_lanes(const u32 *v, u32 t, u32 *to)
{
    memset(to, 0, 16 * sizeof *to);
    to[0] = v[t ^ 5];
    to[1] = v[t + 3 < 32 ? t + 3 : t];
    to[2] = v[t >= 3 ? t - 3 : t];
    to[3] = v[v[t] & 31];
    to[4] = v[t ^ 5];
    to[5] = v[t / 16 * 16 + 9];
    u32 any = 0, most = v[0], odd = 0;
    for (u32 k = 0; k < 32; k++) {
        to[6] |= (v[k] & 1) << k;
        any |= v[k] == 5;
        to[8] |= (u32)(v[k] % 5 == v[t] % 5) << k;
        to[9] += v[k];
        most = (int32_t)v[k] > (int32_t)most ? v[k] : most;
        odd |= k < 20 && k & 1 ? v[k] : 0;
    }
    to[7] = any | (u32)!any << 1;
    to[10] = most;
    if (t < 20) {
        to[11] = 0xfffff;
        to[12] = v[19];
        to[13] = t & 1 ? odd : 0;
    }
    to[14] = (u32)(v[t < 31 ? t + 1 : t] * 0x100000001ull >> 20);
    to[15] = ((1u << t) - 1) ^ t ^ (u32)(t + 3 < 32) << 31;
}

static void lanes(void *module)
{
    u32 in[64], want[64][16], got[64][16];
    for (int i = 0; i < 64; i++)
        in[i] = next() % (i < 32 ? 10 : UINT32_MAX);
    for (u32 t = 0; t < 64; t++)
        want_lanes(in + t / 32 * 32, t % 32, want[t]);
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof got);
    run(module, "lanes", 1, 64, 0, (void *[]){ &d_in, &d_out });
    get(d_out, got, sizeof got);
    for (int t = 0; t < 64; t++)
        for (int k = 0; k < 16; k++)
            if (got[t][k] != want[t][k])
                fail_msg("thread %d, result %d: %#x in place of %#x", t, k, got[t][k], want[t][k]);
    cuMemFree_v2(d_in);
}

static void atomics(void *module)
{
    enum { BLOCKS = 3, THREADS = 80, N = BLOCKS * THREADS };
    u32 in[N], want[13] = { 0 }, got[13], zero[13] = { 0 }, counter = 0, counter_before;
    int low = INT32_MAX, got_low;
    unsigned long long big = 1, got_big;
    float f = 1, got_f;
    uint64_t at;
    size_t bytes;
    assert_int_equal(cuModuleGetGlobal_v2(&at, &bytes, module, "counter"), 0);
    assert_int_equal(bytes, 4);
    assert_int_equal(cuMemcpyDtoH_v2(&counter_before, at, 4), 0);
    uint64_t d_low = gpu_put(&low, 4), d_big = gpu_put(&big, 8), d_f = gpu_put(&f, 4);
    for (int i = 0; i < N; i++) {
        in[i] = next();
        want[in[i] % 8]++;
        want[8] = in[i] > want[8] ? in[i] : want[8];
        low = (int)in[i] < low ? (int)in[i] : low;
        big += (unsigned long long)in[i] << 20;
        want[9] ^= in[i];
        f += 0.5f;
        want[10] = want[10] >= 100 ? 0 : want[10] + 1;
        want[11] = want[11] * 3 + 1;
        want[12] += in[i];
    }
    uint64_t d_sums = gpu_put(zero, sizeof zero), d_in = gpu_put(in, sizeof in);
    run(module, "atomics", BLOCKS, THREADS, 0, (void *[]){ &d_sums, &d_in, &d_low, &d_big, &d_f });
    assert_memory_equal(get(d_sums, got, sizeof got), want, sizeof want);
    assert_int_equal(*(int *)get(d_low, &got_low, 4), low);
    assert_true(*(unsigned long long *)get(d_big, &got_big, 8) == big);
    assert_true(*(float *)get(d_f, &got_f, 4) == f);
    assert_int_equal(cuMemcpyDtoH_v2(&counter, at, 4), 0);
    assert_int_equal(counter, counter_before + N);
    cuMemFree_v2(d_in);
}

static void votes(void *module)
{
    enum { THREADS = 80 };
    u32 in[THREADS], out[THREADS], count = 0, zero[3] = { 0 };
    uint16_t sums[4], others[2];
    for (int i = 0; i < THREADS; i++) {
        in[i] = next() % 2 ? 100 : 101;
        if (i == 70 || i == 5)
            in[i] = next() % 2 ? 78 - (i == 70) : 3;
        count += in[i] & 1;
    }
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof out), d_sums = gpu_put(zero, 8);
    uint64_t d_others = gpu_put(zero, 4);
    run(module, "votes", 1, THREADS, 0, (void *[]){ &d_in, &d_out, &d_sums, &d_others });
    get(d_out, out, sizeof out);
    get(d_sums, sums, sizeof sums);
    get(d_others, others, sizeof others);
    bool any = false, all = true;
    for (int i = 0; i < THREADS; i++) {
        any |= in[i] == 77;
        all &= in[i] != 78;
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(out[i], count | (u32)any << 16 | (u32)all << 17);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(sums[2 * k], 0x5100);     /* 40 */
        assert_int_equal(sums[2 * k + 1], 0xd500); /* -80 */
    }
    assert_int_equal(others[0], 0x42a0); /* 80 */
    assert_int_equal(others[1], 0x4320); /* 160 */
    cuMemFree_v2(d_in);
}

static void async_copies(void *module)
{
    enum { TILES = 5, N = TILES * 64 };
    u32 in[N][4], want[N][4], got[N][4];
    int n = TILES;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++)
            in[i][k] = next();
    for (int i = 0; i < N; i++) {
        int from = i / 64 * 64 + (i + 1) % 64;
        for (int k = 0; k < 4; k++)
            want[i][k] = from % 64 < 60 || k < from % 64 - 60 ? in[from][k] : 0;
    }
    uint64_t d_in = gpu_put(in, sizeof in), d_out = gpu_put(NULL, sizeof got);
    run(module, "async", 1, 64, 0, (void *[]){ &d_in, &d_out, &n });
    assert_memory_equal(get(d_out, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_in);
}

static void products(void *module)
{
    int8_t a[16][32];
    uint8_t b[8][32];
    int c[16][8], want[320] = { 0 }, got[320];
    uint16_t halves[16][16];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 32; k++) {
            a[i][k] = (int8_t)next();
            b[i % 8][k] = (uint8_t)next();
            c[i][k % 8] = (int)next();
        }
    memcpy(halves, a, sizeof a);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            u32 sum = (u32)c[m][n], half = 0;
            for (int k = 0; k < 32; k++) {
                sum += (u32)(a[m][k] * b[n][k]);
                half += k < 16 ? (u32)(a[m][k] * b[n][k]) : 0;
            }
            want[m * 8 + n] = (int)sum;
            want[128 + m * 8 + n] = (int)(sum + half);
        }
    for (int l = 0; l < 32; l++)
        for (int j = 0; j < 2; j++) /* the matrices of lanes 0 to 7 and 8 to 15, transposed */
            want[256 + 32 * j + l] = (int)(halves[8 * j + l % 4 * 2][l / 4] | (u32)halves[8 * j + l % 4 * 2 + 1][l / 4]
                                                                                  << 16);
    uint64_t d_a = gpu_put(a, sizeof a), d_b = gpu_put(b, sizeof b), d_c = gpu_put(c, sizeof c);
    uint64_t d_d = gpu_put(NULL, sizeof got);
    run(module, "products", 1, 32, 0, (void *[]){ &d_a, &d_b, &d_c, &d_d });
    assert_memory_equal(get(d_d, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_a);
    cuMemFree_v2(d_b);
    cuMemFree_v2(d_c);
}

/* Says how many instructions of threads are run in a second of processor time. */
static void busy(void *module)
{
    enum { THREADS = 256, BLOCKS = 16 };
    int x[1024], n = 300;
    float want[BLOCKS * THREADS], got[BLOCKS * THREADS];
    for (int i = 0; i < 1024; i++)
        x[i] = (int)next();
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        want[i] = 0;
        for (int k = 0; k < n; k++) {
            int v = x[(k * 4 + i) & 1023], w = x[(k * 4 + i + 32) & 1023], dot = k;
            for (int j = 0; j < 32; j += 8)
                dot += (int8_t)(v >> j) * (int8_t)(w >> j) + (int8_t)((v & 0x0f0f0f0f) >> j) * (int8_t)(w >> j);
            want[i] = __builtin_fmaf((float)dot, 0.001f, want[i]);
        }
    }
    uint64_t d_x = gpu_put(x, sizeof x), d_y = gpu_put(NULL, sizeof got);
    unsigned long long before = spillway_gpu_thread_instructions();
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    run(module, "busy", BLOCKS, THREADS, 0, (void *[]){ &d_x, &d_y, &n });
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double s = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    printf("%.1f M thread instructions, %.0f M in a second of processor time\n",
           (double)(spillway_gpu_thread_instructions() - before) / 1e6,
           (double)(spillway_gpu_thread_instructions() - before) / 1e6 / s);
    assert_memory_equal(get(d_y, got, sizeof got), want, sizeof want);
    cuMemFree_v2(d_x);
}

/* With nvcc's PTX of now and the kept one; blocks, warps and atomics in their order and in random ones. */
static void with_all(void (*test)(void *module))
{
    for (int kept = 0; kept < 2; kept++)
        for (unsigned seed = 0; seed < 4; seed++) {
            random_state = seed;
            spillway_gpu_seed(seed);
            void *module = gpu_module(program, "warps", kept);
            assert_true(module || !kept);
            if (module)
                test(module);
            cuModuleUnload(module);
        }
}

#define TEST(name)                                                                                                     \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        with_all(name);                                                                                                \
    }
TEST(branches)
TEST(calls)
TEST(choices)
TEST(memories)
TEST(lanes)
TEST(atomics)
TEST(votes)
TEST(async_copies)
TEST(products)
TEST(busy)

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_branches), cmocka_unit_test(test_calls),        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_memories), cmocka_unit_test(test_lanes),        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_votes),    cmocka_unit_test(test_async_copies), cmocka_unit_test(test_products),
        cmocka_unit_test(test_busy),
    };
    program = argv[0];
    if (!gpu_open(program)) {
        printf("skipped: the PTX interpreter needs AVX2 and FMA\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
