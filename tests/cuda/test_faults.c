/* Each function of the driver fails once while a device and a queue are opened, memory that is not pinned is copied, an
 * operation is run and waited for: an
 * error is returned or kept by the queue, or the result is right; nothing crashes or hangs.  Needs the interpreter of
 * PTX.
 *
 * One thread: not under MODE=tsan.  A module that cannot be unloaded stays in memory: not under MODE=asan. */
#include <dlfcn.h>

#include "tests/cuda/on_cuda.h"

static void (*fail_call)(const char *function, unsigned n, int code);
static void (*forget_error)(void);
static bool finds_functions;

static bool find_controls(void)
{
    void *f, *library = cuda_open() ? dlopen(CUDA_INTERPRETER, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!library)
        return false; /* the device is a real one */
    f = dlsym(library, "spillway_gpu_fail_call");
    memcpy(&fail_call, &f, sizeof f);
    f = dlsym(library, "spillway_gpu_forget_error");
    memcpy(&forget_error, &f, sizeof f);
    return fail_call && forget_error;
}

static void drop_line(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

/* Opens a device and a queue, copies from[] to x, doubles x, and closes both; the first error. */
static int scale_once(float *x, const float *from, int n)
{
    struct kn_device *device = NULL;
    struct kn_queue *queue = NULL;
    int error = kn_cuda_open(&device, 0);
    if (error)
        return error;
    struct kn_queue_options opt = {
        .device = device, .max_row = 4, .max_pos = 4096, .n_head = 4, .d_value = 64, .stages = true
    };
    error = kn_queue_open(&queue, &opt);
    if (!error) {
        kn_enqueue(queue, TRANSFER, transfer, .to = (uint8_t *)x, .from = (const uint8_t *)from,
                   .bytes = (size_t)n * sizeof *x);
        kn_enqueue(queue, SCALE, scale, .x = x, .by = 2, .n = 1, .d = n);
        error = kn_queue_wait(queue);
    }
    kn_queue_close(queue);
    kn_cuda_close(device);
    return error;
}

/* Is a failure of this function an error of the caller?  A failure to give something back, and a function that is not
 * called, are none. */
static bool is_needed(const char *symbol)
{
    static const char *const needed[] = { "cuDeviceGet",      "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
                                          "cuModuleLoadData", "cuModuleGetFunction",  "cuModuleGetGlobal_v2",
                                          "cuMemcpyAsync",    "cuStreamCreate",       "cuMemAlloc_v2",
                                          "cuLaunchKernel",   "cuStreamSynchronize",  "cuEventRecord" };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!strcmp(symbol, needed[i]))
            return true;
    return false;
}

static void every_function_may_fail(void **state)
{
    (void)state;
    static const char *const symbols[] = {
#define SYMBOL(name, symbol, parameters) #symbol,
        KN_CUDA_DRIVER(SYMBOL)
#undef SYMBOL
    };
    enum { N = 20000 }; /* enough for a copy through the buffer */
    static float from[N];
    if (!finds_functions)
        skip();
    float *x;
    assert_int_equal(kn_cuda_driver(NULL)->pinned_alloc((void **)&x, N * sizeof *x, KN_CUDA_MAPPED), 0);
    kn_log_set(drop_line, KN_LOG_ERROR);
    for (size_t k = 0; k < sizeof symbols / sizeof *symbols; k++) {
        for (int i = 0; i < N; i++)
            from[i] = (float)i;
        memset(x, 0, N * sizeof *x);
        fail_call(symbols[k], 1, 999);
        int error = scale_once(x, from, N);
        if (is_needed(symbols[k]) && !error)
            fail_msg("%s failed, and no error was returned", symbols[k]);
        fail_call("", 0, 0);
        forget_error();
        assert_true(error == 0 || error == KN_EIO || error == KN_ENODEV);
        for (int i = 0; !error && i < N; i++)
            assert_true(x[i] == 2 * (float)i);
    }
    kn_log_set(NULL, KN_LOG_WARN);
    assert_int_equal(scale_once(x, from, N), 0);
    kn_cuda_driver(NULL)->pinned_free(x);
}

static int close_all(void **state)
{
    (void)state;
    kn_cuda_close(cuda);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_function_may_fail) };
    finds_functions = find_controls();
    return cmocka_run_group_tests(tests, NULL, close_all);
}
