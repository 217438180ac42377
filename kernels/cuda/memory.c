/* kernels/cuda/memory.c - memory of a CUDA device, and memory of the host that it copies by itself: images, which are allocated
 * as pinned memory, and memory that is pinned later. */
#include "kernels/cuda/internal.h"

#include <string.h>

static const struct kn_cuda_device *use(const struct kn_memory *m)
{
    const struct kn_cuda_device *d = (const struct kn_cuda_device *)m->device;
    d->driver->context_use(d->context);
    return d;
}

size_t kn_cuda_memory_free(const struct kn_device *device)
{
    const struct kn_cuda_device *d = use(&(struct kn_memory){ .device = device });
    size_t room = 0, total;
    unsigned error = d->driver->memory_info(&room, &total);
    return kn_cuda_failed(error, "asking for free memory") ? 0 : room;
}

int kn_cuda_memory_open(struct kn_memory *m, bool image)
{
    const struct kn_cuda_driver *driver = use(m)->driver;
    size_t bytes = m->bytes ? m->bytes : 1;
    kn_cuda_address at = 0;
    void *pinned = NULL;
    unsigned error = driver->memory_alloc(&at, bytes);
    m->base = (uint8_t *)(uintptr_t)at;
    if (!error)
        error = driver->fill(at, 0, bytes, NULL);
    if (!error && image)
        error = driver->pinned_alloc(&pinned, bytes, KN_CUDA_MAPPED);
    m->image = pinned;
    if (pinned)
        memset(pinned, 0, bytes);
    if (!error)
        error = driver->context_wait();
    if (!error)
        return 0;
    kn_memory_close(m);
    return kn_cuda_failed(error, "taking memory");
}

void kn_cuda_memory_close(struct kn_memory *m)
{
    const struct kn_cuda_driver *driver = use(m)->driver;
    driver->memory_free((kn_cuda_address)(uintptr_t)m->base);
    if (m->image)
        driver->pinned_free(m->image);
}

int kn_cuda_memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes)
{
    const struct kn_cuda_driver *driver = use(m)->driver;
    unsigned error = driver->copy((kn_cuda_address)(uintptr_t)(m->base + at), (kn_cuda_address)(uintptr_t)from, bytes,
                                  NULL);
    return kn_cuda_failed(error ? error : driver->context_wait(), "copying to the device");
}

/* A refusal is the driver's limit, and no failure of the device. */
int kn_cuda_host_pin(const struct kn_device *device, void *at, size_t bytes, const char **why)
{
    const struct kn_cuda_driver *driver = use(&(struct kn_memory){ .device = device })->driver;
    unsigned error = driver->host_register(at, bytes, KN_CUDA_MAPPED);
    if (!error)
        return 0;
    *why = NULL;
    driver->error_text(error, why);
    *why = *why ? *why : "unknown error";
    return error == KN_CUDA_OUT_OF_MEMORY ? KN_ENOMEM : KN_EUNSUPPORTED;
}

void kn_cuda_host_unpin(const struct kn_device *device, void *at)
{
    use(&(struct kn_memory){ .device = device })->driver->host_unregister(at);
}
