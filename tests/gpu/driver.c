/* libcuda.so.1 for tests: the functions of NVIDIA's driver API about devices, memory, modules and launches, over the
 * interpreter.  streams.c has those about streams and events.
 *
 * Environment: SPILLWAY_GPU_MEMORY (MiB, 1024), SPILLWAY_GPU_ARCH (compute capability times 10, 90), SPILLWAY_GPU_SEED
 * (0: everything in its order), SPILLWAY_GPU_FAIL (FUNCTION:N[:CODE], the N-th call of a function, or of any with *,
 * fails), SPILLWAY_GPU_RACES (0: races are not looked for).  An error of a kernel is written on stderr and kept for
 * spillway_gpu_last_error(). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/driver.h"

#define MAX_THREADS       1024u
#define MAX_SHARED        (48u << 10)
#define MAX_SHARED_OPT_IN (99u << 10) /* the least of sm_80 to sm_120 */

static bool initialized;
static _Atomic int lost_code;
static char lost_text[1000];
static uint64_t seed_now;
static int retained;

/* ---- failures ----------------------------------------------------------------------------------------- */

static char fault_name[64];
static unsigned fault_at, fault_seen;
static int fault_code;

/* For tests: the n-th call from now on of a function ("*": of any) returns code. n = 0: none. */
GPU_API void spillway_gpu_fail_call(const char *function, unsigned n, int code)
{
    snprintf(fault_name, sizeof fault_name, "%s", function);
    fault_at = n;
    fault_code = code;
    fault_seen = 0;
}

/* The text of the last error of the device, also after it was forgotten. */
GPU_API const char *spillway_gpu_last_error(void) { return lost_text; }
GPU_API unsigned long long spillway_gpu_thread_instructions(void) { return ptx_thread_instructions(); }

/* For tests: the device works again, as in a new process. */
GPU_API void spillway_gpu_forget_error(void)
{
    gpu_wait_all();
    lost_code = 0;
}

/* For tests: order of blocks, warps and streams from now on. 0: as they come. */
GPU_API void spillway_gpu_seed(unsigned long long seed)
{
    seed_now = seed;
    gpu_streams_seed(seed);
}

int gpu_enter(const char *function)
{
    if (fault_at && (!strcmp(fault_name, "*") || !strcmp(fault_name, function)) && ++fault_seen == fault_at)
        return fault_code;
    if (gpu_in_host_function()) {
        gpu_lost(GPU_NOT_PERMITTED, "a host function of a stream calls the driver");
        return GPU_NOT_PERMITTED;
    }
    return initialized ? lost_code : GPU_NOT_INITIALIZED;
}

void gpu_lost(int code, const char *text)
{
    if (lost_code)
        return;
    snprintf(lost_text, sizeof lost_text, "%s", text);
    lost_code = code;
    fprintf(stderr, "GPU (interpreted): %s\n", text);
}

int gpu_lost_code(void) { return lost_code; }

static void read_environment(void)
{
    const char *seed = getenv("SPILLWAY_GPU_SEED"), *races = getenv("SPILLWAY_GPU_RACES"),
               *fail = getenv("SPILLWAY_GPU_FAIL");
    if (seed)
        spillway_gpu_seed(strtoull(seed, NULL, 0));
    if (races)
        spillway_gpu_races(atoi(races));
    if (fail && strchr(fail, ':')) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(fail, ":"), fail);
        char *end;
        unsigned n = (unsigned)strtoul(strchr(fail, ':') + 1, &end, 0);
        spillway_gpu_fail_call(name, n, *end == ':' ? atoi(end + 1) : GPU_OUT_OF_MEMORY);
    }
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    { 0, "CUDA_SUCCESS", "no error" },
    { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
    { 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device" },
    { 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { 600, "CUDA_ERROR_NOT_READY", "device not ready" },
    { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
    { 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch" },
    { 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped" },
    { 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region" },
    { 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address" },
    { 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture" },
    { 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work" },
    { 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream" },
};

GPU_API int cuGetErrorName(int code, const char **name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *name = errors[i].name;
            return GPU_OK;
        }
    *name = NULL;
    return GPU_INVALID_VALUE;
}

GPU_API int cuGetErrorString(int code, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *text = errors[i].text;
            return GPU_OK;
        }
    *text = NULL;
    return GPU_INVALID_VALUE;
}

/* ---- devices and contexts ------------------------------------------------------------------------------ */

static int arch(void)
{
    const char *text = getenv("SPILLWAY_GPU_ARCH");
    int v = text ? atoi(text) : 0;
    return v >= 50 ? v : 90;
}

/* The interpreter's arithmetic is compiled for AVX2 and FMA. */
GPU_API int cuInit(unsigned flags)
{
    if (flags)
        return GPU_INVALID_VALUE;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return GPU_NOT_SUPPORTED;
    if (!initialized)
        read_environment();
    initialized = true;
    int due = gpu_enter(__func__);
    if (due)
        return due;
    return gpu_memory_open() ? GPU_OK : GPU_OUT_OF_MEMORY;
}

GPU_API int cuDriverGetVersion(int *version)
{
    if (!version)
        return GPU_INVALID_VALUE;
    *version = 13000;
    return GPU_OK;
}

GPU_API int cuDeviceGetCount(int *n)
{
    GPU_ENTER;
    *n = 1;
    return GPU_OK;
}

GPU_API int cuDeviceGet(int *device, int number)
{
    GPU_ENTER;
    if (number)
        return GPU_INVALID_DEVICE;
    *device = 0;
    return GPU_OK;
}

GPU_API int cuDeviceGetName(char *name, int room, int device)
{
    GPU_ENTER;
    if (device || room < 1)
        return GPU_INVALID_DEVICE;
    snprintf(name, (size_t)room, "PTX interpreter");
    return GPU_OK;
}

GPU_API int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    GPU_ENTER;
    if (device)
        return GPU_INVALID_DEVICE;
    memcpy(uuid, "PTX interpreter", 16);
    return GPU_OK;
}
GPU_API int cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

GPU_API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    GPU_ENTER;
    if (device)
        return GPU_INVALID_DEVICE;
    *bytes = gpu_memory_total();
    return GPU_OK;
}

GPU_API int cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
    static const struct {
        unsigned attribute;
        int value;
    } known[] = {
        { 1, (int)MAX_THREADS },
        { 2, 1024 },
        { 3, 1024 },
        { 4, 64 },
        { 5, 0x7fffffff },
        { 6, 65535 },
        { 7, 65535 },
        { 8, (int)MAX_SHARED },
        { 9, 64 << 10 },
        { 10, 32 },
        { 12, 65536 },
        { 13, 1000000 },
        { 16, 4 },
        { 19, 1 },
        { 31, 1 },
        { 36, 1000000 },
        { 37, 256 },
        { 38, 4 << 20 },
        { 39, 1536 },
        { 40, 2 },
        { 41, 1 },
        { 50, 0 },
        { 81, 100 << 10 },
        { 82, 65536 },
        { 91, 1 },
        { 97, (int)MAX_SHARED_OPT_IN },
        { 99, 1 },
        { 111, 1024 },
        { 113, 1 },
        { 122, 1 },
        { 123, 1 },
    };
    GPU_ENTER;
    if (device)
        return GPU_INVALID_DEVICE;
    *value = attribute == 75 ? arch() / 10 : attribute == 76 ? arch() % 10 : 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute)
            *value = known[i].value;
    return GPU_OK;
}

static int the_context;

GPU_API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    GPU_ENTER;
    if (device)
        return GPU_INVALID_DEVICE;
    retained++;
    *context = &the_context;
    return GPU_OK;
}

GPU_API int cuDevicePrimaryCtxRelease_v2(int device)
{
    if (device || !retained)
        return GPU_INVALID_CONTEXT;
    retained--;
    return GPU_OK;
}

static _Thread_local void *current;

GPU_API int cuCtxSetCurrent(void *context)
{
    GPU_ENTER;
    if (context && context != &the_context)
        return GPU_INVALID_CONTEXT;
    current = context;
    return GPU_OK;
}

GPU_API int cuCtxGetCurrent(void **context)
{
    GPU_ENTER;
    *context = current;
    return GPU_OK;
}

GPU_API int cuCtxSynchronize(void)
{
    GPU_ENTER;
    return gpu_wait_all();
}

/* Most functions need a current context, as a driver's do. */
#define GPU_ENTER_CONTEXT                                                                                              \
    GPU_ENTER;                                                                                                         \
    if (!current)                                                                                                      \
    return GPU_INVALID_CONTEXT

/* ---- memory -------------------------------------------------------------------------------------------- */

GPU_API int cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    GPU_ENTER_CONTEXT;
    *total = gpu_memory_total();
    *unused = *total - gpu_memory_used();
    return GPU_OK;
}

GPU_API int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
    GPU_ENTER_CONTEXT;
    if (!at || !bytes)
        return GPU_INVALID_VALUE;
    uint64_t address = gpu_alloc(bytes);
    if (!address)
        return GPU_OUT_OF_MEMORY;
    *at = address;
    return GPU_OK;
}

GPU_API int cuMemFree_v2(uint64_t at)
{
    GPU_ENTER_CONTEXT;
    int error = gpu_wait_all(); /* as the driver does */
    return error ? error : !at || gpu_free(at) ? GPU_OK : GPU_INVALID_VALUE;
}

GPU_API int cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    GPU_ENTER_CONTEXT;
    (void)flags;
    if (!bytes)
        return GPU_INVALID_VALUE;
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        return GPU_OUT_OF_MEMORY;
    memset(p, 0xee, bytes);
    gpu_host_add(p, bytes, true);
    *at = p;
    return GPU_OK;
}

GPU_API int cuMemFreeHost(void *at)
{
    GPU_ENTER_CONTEXT;
    int error = gpu_wait_all();
    if (error)
        return error;
    if (!gpu_host_remove(at, true))
        return GPU_INVALID_VALUE;
    free(at);
    return GPU_OK;
}

GPU_API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    GPU_ENTER_CONTEXT;
    (void)flags;
    if (!at || !bytes)
        return GPU_INVALID_VALUE;
    return gpu_host_add(at, bytes, false) ? GPU_OK : GPU_ALREADY_REGISTERED;
}

GPU_API int cuMemHostUnregister(void *at)
{
    GPU_ENTER_CONTEXT;
    int error = gpu_wait_all();
    return error ? error : gpu_host_remove(at, false) ? GPU_OK : GPU_NOT_REGISTERED;
}

GPU_API int cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags)
{
    GPU_ENTER_CONTEXT;
    if (flags || !gpu_host_has((uint64_t)(uintptr_t)host, 1))
        return GPU_INVALID_VALUE;
    *device = (uint64_t)(uintptr_t)host;
    return GPU_OK;
}

/* Only the type of memory: 1 of the host, 2 of the device. */
GPU_API int cuPointerGetAttribute(void *value, unsigned attribute, uint64_t at)
{
    GPU_ENTER_CONTEXT;
    if (attribute != 2)
        return GPU_NOT_SUPPORTED;
    unsigned type = gpu_is_device(at) ? 2 : gpu_host_has(at, 1) ? 1 : 0;
    if (!type)
        return GPU_INVALID_VALUE;
    memcpy(value, &type, sizeof type);
    return GPU_OK;
}

static int copy(uint64_t to, uint64_t from, size_t bytes, struct gpu_stream *s, bool wait)
{
    struct gpu_work w = { .kind = WORK_COPY, .to = to, .from = from, .bytes = bytes };
    if (!bytes)
        return GPU_OK;
    if (!to || !from)
        return GPU_INVALID_VALUE;
    int error = gpu_submit(s, &w);
    return error || !wait ? error : gpu_wait_stream(s);
}

GPU_API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, struct gpu_stream *s)
{
    GPU_ENTER_CONTEXT;
    return copy(to, from, bytes, s, false);
}
GPU_API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct gpu_stream *s)
{
    GPU_ENTER_CONTEXT;
    return copy(to, (uint64_t)(uintptr_t)from, bytes, s, false);
}
GPU_API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct gpu_stream *s)
{
    GPU_ENTER_CONTEXT;
    return copy((uint64_t)(uintptr_t)to, from, bytes, s, false);
}
GPU_API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct gpu_stream *s)
{
    GPU_ENTER_CONTEXT;
    return copy(to, from, bytes, s, false);
}
GPU_API int cuMemcpy(uint64_t to, uint64_t from, size_t bytes)
{
    GPU_ENTER_CONTEXT;
    return copy(to, from, bytes, NULL, true);
}
GPU_API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    GPU_ENTER_CONTEXT;
    return copy(to, (uint64_t)(uintptr_t)from, bytes, NULL, true);
}
GPU_API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    GPU_ENTER_CONTEXT;
    return copy((uint64_t)(uintptr_t)to, from, bytes, NULL, true);
}
GPU_API int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes)
{
    GPU_ENTER_CONTEXT;
    return copy(to, from, bytes, NULL, true);
}

GPU_API int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, struct gpu_stream *s)
{
    GPU_ENTER_CONTEXT;
    struct gpu_work w = { .kind = WORK_FILL, .to = to, .bytes = n, .value = value };
    return n ? gpu_submit(s, &w) : GPU_OK;
}
GPU_API int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n)
{
    int error = cuMemsetD8Async(to, value, n, NULL);
    return error ? error : gpu_wait_stream(NULL);
}

/* ---- modules ------------------------------------------------------------------------------------------- */

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct fatbin_entry { /* followed by more, up to header_bytes */
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t arch;
    uint64_t unused, flags, unused2, unpacked_bytes;
};
#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_PTX   1

/* nvcc packs PTX by zstd unless it is run with --no-compress. */
static bool unpack(char *to, size_t bytes, const void *from, size_t packed)
{
    static void *library;
    size_t (*decompress)(void *, size_t, const void *, size_t) = NULL;
    if (!library)
        library = dlopen("libzstd.so.1", RTLD_NOW);
    void *f = library ? dlsym(library, "ZSTD_decompress") : NULL;
    memcpy(&decompress, &f, sizeof f);
    return decompress && decompress(to, bytes, from, packed) == bytes;
}

/* The PTX of an image, to be freed: of those in a fat binary, that for the newest architecture which is not too new. */
static char *find_ptx(const void *image)
{
    struct fatbin_header h;
    memcpy(&h.magic, image, sizeof h.magic);
    if (h.magic != FATBIN_MAGIC)
        return !memcmp(image, "\177ELF", 4) ? NULL : strdup(image);
    memcpy(&h, image, sizeof h);
    const char *at = (const char *)image + h.header_bytes, *end = at + h.bytes, *best = NULL;
    struct fatbin_entry e = { 0 }, best_entry = { 0 };
    for (; at + sizeof e <= end; at += e.header_bytes + e.bytes) {
        memcpy(&e, at, sizeof e);
        if (e.kind == FATBIN_PTX && e.arch <= (uint32_t)arch() && e.arch >= best_entry.arch) {
            best = at;
            best_entry = e;
        }
    }
    if (!best)
        return NULL;
    size_t bytes = best_entry.packed_bytes ? best_entry.unpacked_bytes : best_entry.bytes;
    char *text = calloc(1, bytes + 1);
    if (text && !best_entry.packed_bytes)
        memcpy(text, best + best_entry.header_bytes, bytes);
    else if (text && !unpack(text, bytes, best + best_entry.header_bytes, best_entry.packed_bytes)) {
        fprintf(stderr, "GPU (interpreted): the PTX is packed, and there is no libzstd.so.1: use nvcc --no-compress\n");
        free(text);
        return NULL;
    }
    return text;
}

GPU_API int cuModuleLoadData(struct ptx_module **module, const void *image)
{
    GPU_ENTER_CONTEXT;
    char error[400];
    if (!module || !image)
        return GPU_INVALID_VALUE;
    char *text = find_ptx(image);
    if (!text)
        return GPU_NO_BINARY;
    const char *target = strstr(text, ".target sm_");
    struct ptx_module *m = NULL;
    int code = target && atoi(target + 11) > arch() ? GPU_NO_BINARY : GPU_OK;
    if (!code && !(m = ptx_parse(text, error, sizeof error))) {
        fprintf(stderr, "GPU (interpreted): %s\n", error);
        snprintf(lost_text, sizeof lost_text, "%s", error);
        code = GPU_INVALID_PTX;
    }
    free(text);
    if (m)
        *module = m;
    return code;
}

GPU_API int cuModuleLoadDataEx(struct ptx_module **module, const void *image, unsigned n, unsigned *option,
                               void **value)
{
    (void)n, (void)option, (void)value;
    return cuModuleLoadData(module, image);
}

GPU_API int cuModuleUnload(struct ptx_module *m)
{
    GPU_ENTER_CONTEXT;
    int error = gpu_wait_all();
    if (!error)
        ptx_module_free(m);
    return error;
}

GPU_API int cuModuleGetFunction(struct ptx_function **f, struct ptx_module *m, const char *name)
{
    GPU_ENTER_CONTEXT;
    struct ptx_function *found = ptx_find(m, name);
    if (!found || !found->is_kernel)
        return GPU_NOT_FOUND;
    *f = found;
    return GPU_OK;
}

GPU_API int cuModuleGetGlobal_v2(uint64_t *at, size_t *bytes, struct ptx_module *m, const char *name)
{
    GPU_ENTER_CONTEXT;
    for (uint32_t i = 0; i < m->n_variable; i++)
        if (!strcmp(m->variable[i].name, name)) {
            if (at)
                *at = m->variable[i].address;
            if (bytes)
                *bytes = m->variable[i].bytes;
            return GPU_OK;
        }
    return GPU_NOT_FOUND;
}

GPU_API int cuFuncGetAttribute(int *value, unsigned attribute, const struct ptx_function *f)
{
    GPU_ENTER_CONTEXT;
    const int known[] = { f->max_threads ? (int)f->max_threads : (int)MAX_THREADS,
                          (int)f->shared_bytes,
                          0,
                          (int)f->local_bytes,
                          32,
                          arch(),
                          arch(),
                          0,
                          f->max_dynamic_shared };
    if (attribute >= sizeof known / sizeof *known)
        return GPU_INVALID_VALUE;
    *value = known[attribute];
    return GPU_OK;
}

GPU_API int cuFuncSetAttribute(struct ptx_function *f, unsigned attribute, int value)
{
    GPU_ENTER_CONTEXT;
    if (attribute == 9) /* preferred share of shared memory */
        return GPU_OK;
    if (attribute != 8 || value < 0 || (uint32_t)value + f->shared_bytes > MAX_SHARED_OPT_IN)
        return GPU_INVALID_VALUE;
    f->max_dynamic_shared = value;
    return GPU_OK;
}

GPU_API int cuLaunchKernel(struct ptx_function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                           unsigned bz, unsigned shared, struct gpu_stream *s, void **parameters, void **extra)
{
    GPU_ENTER_CONTEXT;
    uint64_t threads = (uint64_t)bx * by * bz, room = f->max_dynamic_shared ? (unsigned)f->max_dynamic_shared : 0;
    uint64_t limit = f->max_threads ? f->max_threads : MAX_THREADS;
    if (room + f->shared_bytes < MAX_SHARED)
        room = MAX_SHARED - f->shared_bytes;
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || gx > 0x7fffffff || !threads || bz > 64 || extra ||
        shared > room || (f->n_param && !parameters))
        return GPU_INVALID_VALUE;
    if (threads > limit || f->shared_bytes > MAX_SHARED)
        return threads > MAX_THREADS ? GPU_INVALID_VALUE : GPU_OUT_OF_RESOURCES;
    struct gpu_work w = { .kind = WORK_LAUNCH };
    struct ptx_launch *l = &w.launch;
    *l = (struct ptx_launch){ .f = f, .grid = { gx, gy, gz }, .block = { bx, by, bz }, .dynamic_shared = shared };
    l->shared_bytes = shared ? (f->shared_bytes + 15u) / 16 * 16 + shared : f->shared_bytes;
    l->seed = seed_now ? ptx_random(&seed_now) | 1 : 0;
    w.owned = calloc(1, f->param_bytes + 16);
    if (!w.owned)
        return GPU_OUT_OF_MEMORY;
    for (uint32_t k = 0; k < f->n_param; k++)
        memcpy(w.owned + f->param[k].offset, parameters[k], f->param[k].bytes);
    l->param = w.owned;
    int error = gpu_submit(s, &w);
    if (error)
        free(w.owned);
    return error;
}
