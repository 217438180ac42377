/* Streams and events: works of one stream keep their order, those of several come in any that events allow, and a wait
 * that is missing is found whatever order came.
 *
 * Here the host looks at memory while the device writes it: not under MODE=tsan. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/gpu/kernels.h"

typedef uint32_t u32;

enum { N = 1000, SEEDS = 12, NON_BLOCKING = 1, GEQ = 0, NEVER = 1000000000 /* ms */ };

static const char *program;
static void *module, *add_kernel, *tell_kernel;

static void add(void *stream, uint64_t to, uint64_t from, u32 value)
{
    int n = N;
    assert_int_equal(cuLaunchKernel(add_kernel, (N + 127) / 128, 1, 1, 128, 1, 1, 0, stream,
                                    (void *[]){ &to, &from, &value, &n }, NULL),
                     0);
}

static void *new_stream(unsigned flags)
{
    void *s;
    assert_int_equal(cuStreamCreate(&s, flags), 0);
    return s;
}

static void *new_event(void)
{
    void *e;
    assert_int_equal(cuEventCreate(&e, 2), 0);
    return e;
}

/* 0, or the error of the device, which then works again. */
static int end(void *a, void *b)
{
    int error = cuCtxSynchronize();
    spillway_gpu_forget_error();
    assert_int_equal(cuStreamDestroy_v2(a), 0);
    if (b)
        assert_int_equal(cuStreamDestroy_v2(b), 0);
    return error;
}

static void one_stream_keeps_its_order(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        spillway_gpu_seed(seed);
        void *s = new_stream(NON_BLOCKING);
        static u32 in[N], out[N];
        for (u32 i = 0; i < N; i++)
            in[i] = i * i;
        uint64_t a = gpu_put(NULL, sizeof in), b = gpu_put(NULL, sizeof in);
        assert_int_equal(cuMemcpyAsync(a, (uint64_t)(uintptr_t)in, sizeof in, s), 0);
        memset(in, 0, sizeof in); /* the copy has staged it: it is not pinned */
        for (u32 k = 0; k < 5; k++) {
            add(s, b, a, k);
            add(s, a, b, 1);
        }
        assert_int_equal(cuMemsetD8Async(b, 7, 40, s), 0);
        assert_int_equal(cuMemcpyAsync(b + 40, a + 40, sizeof in - 40, s), 0);
        assert_int_equal(cuMemcpyAsync((uint64_t)(uintptr_t)out, b, sizeof out, s), 0);
        assert_int_equal(cuStreamSynchronize(s), 0);
        for (u32 i = 0; i < N; i++)
            assert_int_equal(out[i], i < 10 ? 0x07070707 : i * i + 15);
        assert_int_equal(end(s, NULL), 0);
        cuMemFree_v2(a);
        cuMemFree_v2(b);
    }
}

enum way { NOTHING, EVENT, EVENT_TOO_EARLY, HOST_WAITS, WAY_COUNT };

/* Stream s writes memory that t then reads, or reads memory that t then writes. */
static int two_streams(enum way way, bool read_first, u32 *out)
{
    static u32 in[N];
    void *s = new_stream(NON_BLOCKING), *t = new_stream(NON_BLOCKING), *e = new_event();
    for (u32 i = 0; i < N; i++)
        in[i] = i;
    uint64_t a = gpu_put(in, sizeof in), b = gpu_put(in, sizeof in), c = gpu_put(in, sizeof in);
    if (way == EVENT_TOO_EARLY)
        assert_int_equal(cuEventRecord(e, s), 0);
    if (read_first)
        add(s, c, b, 1);
    else
        add(s, b, a, 1);
    if (way == EVENT)
        assert_int_equal(cuEventRecord(e, s), 0);
    if (way == EVENT || way == EVENT_TOO_EARLY)
        assert_int_equal(cuStreamWaitEvent(t, e, 0), 0);
    if (way == HOST_WAITS)
        assert_int_equal(cuStreamSynchronize(s), 0);
    if (read_first)
        add(t, b, a, 5);
    else
        add(t, c, b, 1);
    int error = end(s, t);
    if (!error)
        assert_int_equal(cuMemcpyDtoH_v2(out, c, N * sizeof *out), 0);
    assert_int_equal(cuEventDestroy_v2(e), 0);
    cuMemFree_v2(a);
    cuMemFree_v2(b);
    cuMemFree_v2(c);
    return error;
}

static void a_missing_wait_is_found(void **state)
{
    (void)state;
    static u32 out[N];
    for (unsigned seed = 0; seed < SEEDS; seed++)
        for (int way = 0; way < WAY_COUNT; way++)
            for (int read_first = 0; read_first < 2; read_first++) {
                spillway_gpu_seed(seed);
                int error = two_streams((enum way)way, read_first, out);
                bool right = way == EVENT || way == HOST_WAITS;
                if (error != (right ? 0 : 719))
                    fail_msg("seed %u, way %d, read first %d: error %d", seed, way, read_first, error);
                if (!right)
                    assert_non_null(strstr(spillway_gpu_last_error(), "in another stream"));
                for (u32 i = 0; right && i < N; i++)
                    assert_int_equal(out[i], read_first ? i + 1 : i + 2);
            }
}

static void the_default_stream_waits_for_blocking_ones(void **state)
{
    (void)state;
    static u32 in[N], out[N];
    for (unsigned seed = 0; seed < SEEDS; seed++)
        for (unsigned flags = 0; flags < 2; flags++) {
            spillway_gpu_seed(seed);
            void *s = new_stream(flags);
            uint64_t a = gpu_put(in, sizeof in), b = gpu_put(in, sizeof in), c = gpu_put(in, sizeof in);
            add(s, b, a, 3);
            add(NULL, c, b, 4);
            add(s, a, c, 5);
            int error = end(s, NULL);
            assert_int_equal(error, flags == NON_BLOCKING ? 719 : 0);
            if (!error) {
                assert_int_equal(cuMemcpyDtoH_v2(out, a, sizeof out), 0);
                assert_int_equal(out[N - 1], 12);
            }
            cuMemFree_v2(a);
            cuMemFree_v2(b);
            cuMemFree_v2(c);
        }
}

/* A copy reads pinned memory when it runs: a host that does not wait overwrites it. */
static void pinned_memory_is_read_late(void **state)
{
    (void)state;
    u32 *pinned, got;
    spillway_gpu_idle(NEVER);
    void *s = new_stream(NON_BLOCKING), *e = new_event();
    assert_int_equal(cuMemHostAlloc((void **)&pinned, 4, 3), 0);
    uint64_t a = gpu_put(NULL, 4);
    for (int waits = 0; waits < 2; waits++) {
        *pinned = 1;
        assert_int_equal(cuMemcpyAsync(a, (uint64_t)(uintptr_t)pinned, 4, s), 0);
        assert_int_equal(cuEventRecord(e, s), 0);
        if (waits)
            assert_int_equal(cuEventSynchronize(e), 0);
        *pinned = 2;
        assert_int_equal(cuStreamSynchronize(s), 0);
        assert_int_equal(cuMemcpyDtoH_v2(&got, a, 4), 0);
        assert_int_equal(got, waits ? 1 : 2);
        assert_int_equal(cuEventQuery(e), 0);
    }
    assert_int_equal(end(s, NULL), 0);
    cuEventDestroy_v2(e);
    cuMemFree_v2(a);
    cuMemFreeHost(pinned);
}

/* The host computes between two values: it waits for that of the stream, and the stream for that of the host. */
struct meeting {
    volatile uint64_t ready, done;
    u32 number[N];
};

static void *compute(void *arg)
{
    struct meeting *m = arg;
    for (uint64_t turn = 1; turn <= 3; turn++) {
        while (__atomic_load_n(&m->ready, __ATOMIC_ACQUIRE) < turn)
            sched_yield();
        for (int i = 0; i < N; i++)
            m->number[i] *= 2;
        __atomic_store_n(&m->done, turn, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void streams_and_a_thread_wait_for_values(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 4; seed++) {
        struct meeting *m;
        pthread_t thread;
        static u32 in[N], out[N];
        spillway_gpu_seed(seed);
        assert_int_equal(cuMemHostAlloc((void **)&m, sizeof *m, 3), 0);
        memset(m, 0, sizeof *m);
        for (u32 i = 0; i < N; i++)
            in[i] = i;
        assert_int_equal(pthread_create(&thread, NULL, compute, m), 0);
        uint64_t a = gpu_put(in, sizeof in), number = (uint64_t)(uintptr_t)m->number;
        void *s = new_stream(NON_BLOCKING);
        for (uint64_t turn = 1; turn <= 3; turn++) {
            add(s, number, a, 1);
            assert_int_equal(cuStreamWriteValue64_v2(s, (uint64_t)(uintptr_t)&m->ready, turn, 0), 0);
            assert_int_equal(cuStreamWaitValue64_v2(s, (uint64_t)(uintptr_t)&m->done, turn, GEQ), 0);
            add(s, a, number, 0);
        }
        assert_int_equal(cuStreamSynchronize(s), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(cuMemcpyDtoH_v2(out, a, sizeof out), 0);
        for (u32 i = 0; i < N; i++)
            assert_int_equal(out[i], ((i + 1) * 2 + 1) * 4 + 2);
        assert_int_equal(end(s, NULL), 0);
        cuMemFree_v2(a);
        cuMemFreeHost(m);
    }
}

/* The device works although the host calls nothing. */
static void the_host_may_look_at_memory(void **state)
{
    (void)state;
    volatile u32 *flag;
    u32 value = 5;
    assert_int_equal(cuMemHostAlloc((void **)&flag, 4, 3), 0);
    *flag = 0;
    spillway_gpu_idle(1);
    void *s = new_stream(NON_BLOCKING);
    assert_int_equal(cuLaunchKernel(tell_kernel, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){ (void *)&flag, &value }, NULL), 0);
    while (*flag != 5)
        sched_yield();
    assert_int_equal(end(s, NULL), 0);
    cuMemFreeHost((void *)flag);
}

static int seen[4], n_seen;
static void see(void *arg) { seen[n_seen++] = (int)(intptr_t)arg; }
static void call_driver(void *arg) { *(int *)arg = cuCtxSynchronize(); }

static void host_functions_run_in_order(void **state)
{
    (void)state;
    void *s = new_stream(NON_BLOCKING), *t = new_stream(NON_BLOCKING), *e = new_event();
    int error = 0;
    spillway_gpu_idle(NEVER);
    assert_int_equal(cuLaunchHostFunc(s, see, (void *)1), 0);
    assert_int_equal(cuEventRecord(e, s), 0);
    assert_int_equal(cuStreamWaitEvent(t, e, 0), 0);
    assert_int_equal(cuLaunchHostFunc(t, see, (void *)2), 0);
    assert_int_equal(cuStreamQuery(t), 600);
    assert_int_equal(n_seen, 0); /* the device is late */
    assert_int_equal(cuStreamSynchronize(t), 0);
    assert_int_equal(n_seen, 2);
    assert_int_equal(seen[0] * 10 + seen[1], 12);
    assert_int_equal(cuLaunchHostFunc(s, call_driver, &error), 0);
    assert_int_equal(cuStreamSynchronize(s), 800); /* a driver would hang, or say so */
    assert_int_equal(error, 800);
    spillway_gpu_forget_error();
    cuEventDestroy_v2(e);
    assert_int_equal(end(s, t), 0);
    assert_int_equal(cuStreamSynchronize(s), 400);
}

/* b = a + 1 and c = a + 2 in two branches, then d = b + 3 and a = c: joined before, after, or not at all. */
static int capture(void *s, void *t, uint64_t at[4], bool joined, bool waits, void **graph)
{
    void *fork = new_event(), *join = new_event();
    assert_int_equal(cuStreamBeginCapture_v2(s, 0), 0);
    assert_int_equal(cuEventRecord(fork, s), 0);
    assert_int_equal(cuStreamWaitEvent(t, fork, 0), 0);
    add(s, at[1], at[0], 1);
    add(t, at[2], at[0], 2);
    if (joined)
        assert_int_equal(cuEventRecord(join, t), 0);
    if (joined && waits)
        assert_int_equal(cuStreamWaitEvent(s, join, 0), 0);
    add(s, at[3], at[1], 3);
    assert_int_equal(cuMemcpyAsync(at[0], at[2], N * sizeof(u32), s), 0);
    if (joined && !waits) /* too late */
        assert_int_equal(cuStreamWaitEvent(s, join, 0), 0);
    int error = cuStreamEndCapture(s, graph);
    assert_int_equal(cuEventDestroy_v2(fork), 0);
    assert_int_equal(cuEventDestroy_v2(join), 0);
    return error;
}

static void graphs_run_again_what_was_captured(void **state)
{
    (void)state;
    static u32 in[N], out[N];
    for (unsigned seed = 0; seed < SEEDS; seed++)
        for (int waits = 0; waits < 2; waits++) {
            void *s = new_stream(NON_BLOCKING), *t = new_stream(NON_BLOCKING), *graph, *exec;
            uint64_t at[4];
            spillway_gpu_seed(seed);
            for (int k = 0; k < 4; k++)
                at[k] = gpu_put(in, sizeof in);
            assert_int_equal(capture(s, t, at, false, false, &graph), 904);
            assert_int_equal(capture(s, t, at, true, waits, &graph), 0);
            assert_int_equal(cuMemcpyDtoH_v2(out, at[0], sizeof out), 0);
            assert_int_equal(out[0], 0); /* nothing has run */
            assert_int_equal(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
            assert_int_equal(cuGraphDestroy(graph), 0);
            for (int k = 0; k < 3; k++)
                assert_int_equal(cuGraphLaunch(exec, s), 0);
            int error = cuStreamSynchronize(s);
            assert_int_equal(error, waits ? 0 : 719);
            if (waits) {
                assert_int_equal(cuMemcpyDtoH_v2(out, at[0], sizeof out), 0);
                assert_int_equal(out[N - 1], 6);
                assert_int_equal(cuMemcpyDtoH_v2(out, at[3], sizeof out), 0);
                assert_int_equal(out[N - 1], 8);
            }
            spillway_gpu_forget_error();
            assert_int_equal(cuGraphExecDestroy(exec), 0);
            assert_int_equal(end(s, t), 0);
            for (int k = 0; k < 4; k++)
                cuMemFree_v2(at[k]);
        }
}

static void a_captured_stream_is_not_waited_for(void **state)
{
    (void)state;
    void *s = new_stream(NON_BLOCKING), *graph;
    assert_int_equal(cuStreamBeginCapture_v2(s, 0), 0);
    assert_int_equal(cuStreamSynchronize(s), 900);
    assert_int_equal(cuStreamEndCapture(s, &graph), 901);
    assert_int_equal(cuStreamEndCapture(s, &graph), 401);
    assert_int_equal(end(s, NULL), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stream_keeps_its_order),
        cmocka_unit_test(a_missing_wait_is_found),
        cmocka_unit_test(the_default_stream_waits_for_blocking_ones),
        cmocka_unit_test(pinned_memory_is_read_late),
        cmocka_unit_test(streams_and_a_thread_wait_for_values),
        cmocka_unit_test(the_host_may_look_at_memory),
        cmocka_unit_test(host_functions_run_in_order),
        cmocka_unit_test(graphs_run_again_what_was_captured),
        cmocka_unit_test(a_captured_stream_is_not_waited_for),
    };
    program = argv[0];
    if (!gpu_open(program) || gpu_is_real) {
        printf("skipped: %s\n", gpu_is_real ? "a GPU does not find faults" : "the PTX interpreter needs AVX2 and FMA");
        return 0;
    }
    module = gpu_module(program, "streams", true);
    gpu_must(module && !cuModuleGetFunction(&add_kernel, module, "add") &&
                 !cuModuleGetFunction(&tell_kernel, module, "tell"),
             "loading streams.ptx");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
