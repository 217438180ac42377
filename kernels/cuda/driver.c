/* Opens the driver's library and finds its functions. */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA_LEAST   13000 /* the driver's number for CUDA 13.0: nvcc of this version has made the images */
#define DRIVER_LEAST "580" /* the first driver with CUDA 13.0 */

static const char *library = "libcuda.so.1";
static struct kn_cuda_driver functions;
static bool usable;
static char reason[240];

static bool find_functions(void *handle)
{
    static const struct {
        const char *symbol;
        size_t at;
    } wanted[] = {
#define KN_ENTRY(name, symbol, parameters) { #symbol, offsetof(struct kn_cuda_driver, name) },
        KN_CUDA_DRIVER(KN_ENTRY)
#undef KN_ENTRY
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *f = dlsym(handle, wanted[i].symbol);
        if (!f) {
            snprintf(reason, sizeof reason, "%s has no function %s: an NVIDIA driver %s or newer is needed", library,
                     wanted[i].symbol, DRIVER_LEAST);
            return false;
        }
        memcpy((char *)&functions + wanted[i].at, &f, sizeof f);
    }
    return true;
}

static void open_driver(void)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    int version = 0;
    if (!handle) {
        snprintf(reason, sizeof reason, "no NVIDIA driver: %s", dlerror());
        return;
    }
    if (!find_functions(handle))
        return;
    /* The driver reads these variables, and has no other way to be told; so they are set here, whatever the user's are.  A stream
     * that awaits a word blocks others of its channel: there are 32 channels at most.  Kernels are loaded with their
     * module: loading one at its first launch may wait for all streams, also for one that awaits the host. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    unsigned error = functions.init(0);
    const char *text = NULL;
    if (error) {
        functions.error_text(error, &text);
        snprintf(reason, sizeof reason, "the NVIDIA driver cannot be used: %s", text ? text : "unknown error");
        return;
    }
    if (functions.driver_version(&version) || version < CUDA_LEAST) {
        snprintf(reason, sizeof reason,
                 "the NVIDIA driver is too old: it supports CUDA %d.%d, and this program needs CUDA %d.%d, driver %s "
                 "or newer",
                 version / 1000, version % 1000 / 10, CUDA_LEAST / 1000, CUDA_LEAST % 1000 / 10, DRIVER_LEAST);
        return;
    }
    usable = true;
}

void kn_cuda_driver_from(const char *path) { library = path; }

const struct kn_cuda_driver *kn_cuda_driver(const char **why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    if (why)
        *why = reason;
    return usable ? &functions : NULL;
}

int kn_cuda_failed(unsigned error, const char *doing)
{
    const char *text = NULL, *name = NULL;
    if (!error)
        return 0;
    functions.error_name(error, &name);
    functions.error_text(error, &text);
    return kn_fail(error == KN_CUDA_OUT_OF_MEMORY ? KN_ENOMEM
                   : error == KN_CUDA_NO_DEVICE   ? KN_ENODEV
                                                  : KN_EIO,
                   "CUDA: %s: %s (%s)", doing, text ? text : "unknown error", name ? name : "unknown");
}
