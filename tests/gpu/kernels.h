/* tests/gpu/kernels.h - for tests: the driver of this folder, opened as a program opens NVIDIA's, and its kernels.
 *
 * SPILLWAY_GPU_DRIVER names another library: NVIDIA's, on a machine with a GPU, which must compute the same bytes.
 * The PTX of NAME.cu is made by nvcc where there is one; otherwise, and besides, that in tests/gpu/ptx is used. */
#ifndef TESTS_GPU_KERNELS_H
#define TESTS_GPU_KERNELS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPU_FUNCTIONS(X)                                                                                               \
    X(cuInit, (unsigned))                                                                                              \
    X(cuDeviceGetCount, (int *))                                                                                       \
    X(cuDeviceGetAttribute, (int *, unsigned, int))                                                                    \
    X(cuDeviceGetName, (char *, int, int))                                                                             \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                                        \
    X(cuCtxSetCurrent, (void *))                                                                                       \
    X(cuCtxSynchronize, (void))                                                                                        \
    X(cuGetErrorName, (int, const char **))                                                                            \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                           \
    X(cuMemAlloc_v2, (uint64_t *, size_t))                                                                             \
    X(cuMemFree_v2, (uint64_t))                                                                                        \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                                     \
    X(cuMemFreeHost, (void *))                                                                                         \
    X(cuMemcpyAsync, (uint64_t, uint64_t, size_t, void *))                                                             \
    X(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t))                                                               \
    X(cuMemcpyDtoH_v2, (void *, uint64_t, size_t))                                                                     \
    X(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *))                                                      \
    X(cuModuleLoadData, (void **, const void *))                                                                       \
    X(cuModuleUnload, (void *))                                                                                        \
    X(cuModuleGetFunction, (void **, void *, const char *))                                                            \
    X(cuModuleGetGlobal_v2, (uint64_t *, size_t *, void *, const char *))                                              \
    X(cuLaunchKernel,                                                                                                  \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))        \
    X(cuLaunchHostFunc, (void *, void (*)(void *), void *))                                                            \
    X(cuStreamCreate, (void **, unsigned))                                                                             \
    X(cuStreamDestroy_v2, (void *))                                                                                    \
    X(cuStreamSynchronize, (void *))                                                                                   \
    X(cuStreamQuery, (void *))                                                                                         \
    X(cuStreamWaitEvent, (void *, void *, unsigned))                                                                   \
    X(cuStreamWriteValue64_v2, (void *, uint64_t, uint64_t, unsigned))                                                 \
    X(cuStreamWaitValue64_v2, (void *, uint64_t, uint64_t, unsigned))                                                  \
    X(cuStreamBeginCapture_v2, (void *, unsigned))                                                                     \
    X(cuStreamEndCapture, (void *, void **))                                                                           \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                              \
    X(cuGraphLaunch, (void *, void *))                                                                                 \
    X(cuGraphDestroy, (void *))                                                                                        \
    X(cuGraphExecDestroy, (void *))                                                                                    \
    X(cuEventCreate, (void **, unsigned))                                                                              \
    X(cuEventRecord, (void *, void *))                                                                                 \
    X(cuEventQuery, (void *))                                                                                          \
    X(cuEventSynchronize, (void *))                                                                                    \
    X(cuEventDestroy_v2, (void *))

/* Only of the interpreter; with a real driver they do nothing. */
#define GPU_CONTROLS(X)                                                                                                \
    X(spillway_gpu_idle, (unsigned))                                                                                   \
    X(spillway_gpu_fail_call, (const char *, unsigned, int))                                                           \
    X(spillway_gpu_forget_error, (void))                                                                               \
    X(spillway_gpu_seed, (unsigned long long))                                                                         \
    X(spillway_gpu_races, (int))

#define X(name, parameters) static int(*name) parameters;
GPU_FUNCTIONS(X)
#undef X
#define X(name, parameters)                                                                                            \
    static void name##_absent parameters {}                                                                            \
    static void(*name) parameters = name##_absent;
GPU_CONTROLS(X)
#undef X
static const char *no_error(void) { return "an error of the driver"; }
static unsigned long long no_count(void) { return 0; }
static const char *(*spillway_gpu_last_error)(void) = no_error;
static unsigned long long (*spillway_gpu_thread_instructions)(void) = no_count;
static bool gpu_is_real;

/* The folder of this program holds libcuda.so.1 and the PTX that nvcc has made. */
static inline void gpu_path(char *to, size_t room, const char *program, const char *name)
{
    const char *slash = strrchr(program, '/');
    snprintf(to, room, "%.*s/%s", slash ? (int)(slash - program) : 1, slash ? program : ".", name);
}

static inline void gpu_must(bool ok, const char *doing)
{
    if (ok)
        return;
    fprintf(stderr, "%s failed\n", doing);
    abort();
}

/* False: this processor cannot run the interpreter. */
static inline bool gpu_open(const char *program)
{
    char path[1024];
    const char *real = getenv("SPILLWAY_GPU_DRIVER");
    void *context, *f;
    gpu_is_real = real != NULL;
    setenv("SPILLWAY_GPU_MEMORY", "64", 0);
    gpu_path(path, sizeof path, program, "libcuda.so.1");
    void *library = dlopen(real ? real : path, RTLD_NOW);
    gpu_must(library, real ? real : path);
#define X(name, parameters)                                                                                            \
    f = dlsym(library, #name);                                                                                         \
    gpu_must(f || (gpu_is_real && !strncmp(#name, "spillway", 8)), #name);                                             \
    if (f)                                                                                                             \
        memcpy(&name, &f, sizeof f);
    GPU_FUNCTIONS(X)
    GPU_CONTROLS(X)
    X(spillway_gpu_last_error, )
    X(spillway_gpu_thread_instructions, )
#undef X
    if (cuInit(0) == 801)
        return false;
    gpu_must(!cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context), "opening a context");
    return true;
}

static inline char *gpu_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)n + 1);
    gpu_must(text && fread(text, 1, (size_t)n, f) == (size_t)n, path);
    fclose(f);
    return text;
}

/* The module of NAME.cu: by nvcc of this machine, or as it is kept. */
static inline void *gpu_module(const char *program, const char *name, bool kept)
{
    char path[1024], file[200];
    void *m = NULL;
    snprintf(file, sizeof file, "%s.ptx", name);
    if (kept)
        snprintf(path, sizeof path, "tests/gpu/ptx/%s", file);
    else
        gpu_path(path, sizeof path, program, file);
    char *text = gpu_read(path);
    if (text)
        gpu_must(!cuModuleLoadData(&m, text), path);
    free(text);
    return m;
}

static inline int gpu_run(void *module, const char *kernel, unsigned blocks, unsigned threads, void **parameters)
{
    void *f;
    gpu_must(!cuModuleGetFunction(&f, module, kernel), kernel);
    int error = cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
    return error ? error : cuCtxSynchronize();
}

static inline uint64_t gpu_put(const void *from, size_t bytes)
{
    uint64_t at = 0;
    gpu_must(!cuMemAlloc_v2(&at, bytes) && (!from || !cuMemcpyHtoD_v2(at, from, bytes)),
             "putting memory on the device");
    return at;
}

#endif
