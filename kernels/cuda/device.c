/* Opens CUDA devices, loads the kernels, and lists the devices of this machine. */
#include "kernels/cuda/internal.h"
#include "kernels/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- the machine's devices --------------------------------------------------------------------------------- */

bool kn_device_built(void) { return kn_cuda_images[0] != NULL; }

/* Without a driver the count is 0, as without a device. */
int kn_device_count(void)
{
    const struct kn_cuda_driver *d = kn_cuda_driver(NULL);
    int n = 0;
    return kn_device_built() && d && d->device_count(&n) == 0 ? n : 0;
}

const char *kn_device_why(void)
{
    const char *why = "";
    if (!kn_device_built())
        return "this program was built without CUDA";
    return kn_cuda_driver(&why) ? "no CUDA device found" : why;
}

static int find_device(const struct kn_cuda_driver **driver, int number, int *device)
{
    const char *why;
    if (!kn_device_built())
        return kn_fail(KN_ENODEV, "this program was built without CUDA");
    *driver = kn_cuda_driver(&why);
    if (!*driver)
        return kn_fail(KN_ENODEV, "%s", why);
    if ((*driver)->device_get(device, number))
        return kn_fail(KN_ENODEV, "there is no CUDA device %d", number);
    return 0;
}

int kn_device_get(int number, struct kn_device_info *out)
{
    const struct kn_cuda_driver *d;
    struct kn_device_info info = { .memory_bytes = 0 };
    int device, error = find_device(&d, number, &device);
    if (error)
        return error;
    unsigned failed = d->device_name(info.name, sizeof info.name, device);
    failed = failed ? failed : d->device_memory(&info.memory_bytes, device);
    failed = failed ? failed : d->device_attribute(&info.compute_major, KN_CUDA_MAJOR, device);
    failed = failed ? failed : d->device_attribute(&info.compute_minor, KN_CUDA_MINOR, device);
    if (failed)
        return kn_cuda_failed(failed, "asking for the device's properties");
    *out = info;
    return 0;
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

/* Finds a kernel in the modules; a kernel that is missing is a fault of the build. */
static int find_kernel(struct kn_cuda_device *d, struct CUfunc_st **out, const char *first, const char *second)
{
    char name[64];
    snprintf(name, sizeof name, "kn_run_%s%s", first, second);
    for (int i = 0; i < KN_CUDA_IMAGES; i++) {
        unsigned failed = d->driver->module_function(out, d->module[i], name);
        if (failed != KN_CUDA_NOT_FOUND)
            return kn_cuda_failed(failed, "finding a kernel");
    }
    return kn_fail(KN_EIO, "CUDA: the program has no kernel %s", name);
}

static int find_kernels(struct kn_cuda_device *d)
{
    static const char *const names[] = {
#define KN_NAME(name) #name,
        KN_CUDA_KERNELS(KN_NAME)
#undef KN_NAME
    };
    static const struct {
        enum kn_format format;
        const char *name;
    } formats[] = {
#define KN_NAME(name) { KN_##name, #name },
        KN_CUDA_FORMATS(KN_NAME)
#undef KN_NAME
    };
    int error = 0;
    for (int i = 0; !error && i < KN_CUDA_KERNEL_COUNT; i++)
        error = find_kernel(d, &d->kernel[i], names[i], "");
    for (size_t i = 0; !error && i < sizeof formats / sizeof *formats; i++) {
        enum kn_format f = formats[i].format;
        char tail[24];
        snprintf(tail, sizeof tail, "%s_1", formats[i].name);
        error = find_kernel(d, &d->product[f][0], "product_", tail);
        snprintf(tail, sizeof tail, "%s_%d", formats[i].name, KN_CUDA_ROWS);
        error = error ? error : find_kernel(d, &d->product[f][1], "product_", tail);
        error = error ? error : find_kernel(d, &d->group[f], "group_", formats[i].name);
    }
    return error;
}

/* Copies the points of the grids to a module that has products or embeddings. */
static int put_grids(const struct kn_cuda_driver *d, struct CUmod_st *module)
{
    struct kn_cuda_grids grids;
    kn_cuda_address at;
    size_t bytes;
    memcpy(grids.iq2_xxs, kn_grid_iq2_xxs, sizeof grids.iq2_xxs);
    memcpy(grids.iq2_xs, kn_grid_iq2_xs, sizeof grids.iq2_xs);
    memcpy(grids.iq2_s, kn_grid_iq2_s, sizeof grids.iq2_s);
    memcpy(grids.iq3_xxs, kn_grid_iq3_xxs, sizeof grids.iq3_xxs);
    memcpy(grids.iq3_s, kn_grid_iq3_s, sizeof grids.iq3_s);
    memcpy(grids.iq1, kn_grid_iq1, sizeof grids.iq1);
    unsigned failed = d->module_global(&at, &bytes, module, "kn_cuda_grids");
    if (failed == KN_CUDA_NOT_FOUND)
        return 0;
    kn_assert(failed || bytes == sizeof grids);
    failed = failed ? failed : d->copy(at, (kn_cuda_address)(uintptr_t)&grids, sizeof grids, NULL);
    failed = failed ? failed : d->context_wait();
    return kn_cuda_failed(failed, "copying the grids of formats");
}

/* The driver takes the code for this GPU from an image, or compiles its PTX. */
static int load_modules(struct kn_cuda_device *d)
{
    for (int i = 0; i < KN_CUDA_IMAGES; i++) {
        unsigned failed = d->driver->module_load(&d->module[i], kn_cuda_images[i]);
        if (failed == KN_CUDA_NO_BINARY)
            return kn_fail(KN_ENODEV, "CUDA: the program has no code for this GPU: compute capability 8.0 is needed");
        if (failed)
            return kn_cuda_failed(failed, "loading the kernels");
        int error = put_grids(d->driver, d->module[i]);
        if (error)
            return error;
    }
    return find_kernels(d);
}

/* ---- devices ------------------------------------------------------------------------------------------------ */

int kn_cuda_open(struct kn_device **out, int number)
{
    const struct kn_cuda_driver *driver;
    int device, error = find_device(&driver, number, &device);
    if (error)
        return error;
    struct kn_cuda_device *d = kn_calloc(1, sizeof *d);
    if (!d)
        return KN_ENOMEM;
    d->base.backend = &kn_cuda_backend;
    d->driver = driver;
    d->device = device;
    unsigned failed = driver->device_attribute(&d->n_processor, KN_CUDA_PROCESSORS, device);
    failed = failed ? failed : driver->context_retain(&d->context, device);
    failed = failed ? failed : driver->context_use(d->context);
    error = failed ? kn_cuda_failed(failed, "opening the device") : load_modules(d);
    error = error ? error : kn_cuda_try_await(d);
    if (error) {
        kn_cuda_close(&d->base);
        return error;
    }
    *out = &d->base;
    return 0;
}

void kn_cuda_close(struct kn_device *device)
{
    struct kn_cuda_device *d = (struct kn_cuda_device *)device;
    if (!d)
        return;
    if (d->context) {
        d->driver->context_use(d->context);
        for (int i = 0; i < KN_CUDA_IMAGES; i++)
            if (d->module[i])
                d->driver->module_unload(d->module[i]);
        d->driver->context_release(d->device);
    }
    kn_free(d);
}

bool kn_cuda_has_format(enum kn_format f)
{
    static const bool has[KN_FORMAT_COUNT] = {
#define KN_HAS(name) [KN_##name] = true,
        KN_CUDA_FORMATS(KN_HAS)
#undef KN_HAS
    };
    return f < KN_FORMAT_COUNT && has[f];
}

bool kn_cuda_device_has_format(const struct kn_device *device, enum kn_format f)
{
    return kn_cuda_has_format(f) && !(((const struct kn_cuda_device *)device)->differing >> f & 1);
}

int kn_cuda_admit(const struct kn_device *device, enum kn_format f)
{
    if (kn_cuda_has_format(f) && !kn_cuda_device_has_format(device, f))
        return kn_fail(KN_EUNSUPPORTED,
                       "this CUDA device computes weights in %s differently from the host: leave --device out",
                       kn_format_info(f)->name);
    if (!kn_cuda_has_format(f))
        return kn_fail(KN_EUNSUPPORTED, "CUDA devices cannot compute with weights in %s", kn_format_info(f)->name);
    _Static_assert(KN_FORMAT_COUNT <= 32, "formats are bits of a word");
    ((struct kn_cuda_device *)(uintptr_t)device)->formats |= 1u << f;
    return 0;
}
