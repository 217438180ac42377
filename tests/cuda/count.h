/* tests/cuda/count.h - a driver that counts launches and copies. */
#ifndef TESTS_CUDA_COUNT_H
#define TESTS_CUDA_COUNT_H

#include "tests/cuda/on_cuda.h"

static struct calls {
    int launches, copies;
} calls;
static const struct kn_cuda_driver *counted;

static unsigned count_launch(struct CUfunc_st *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream,
                             void **parameters, void **extra)
{
    calls.launches++;
    return counted->launch(f, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                           extra);
}

static unsigned count_copy(kn_cuda_address to, kn_cuda_address from, size_t bytes, struct CUstream_st *stream)
{
    calls.copies++;
    return counted->copy(to, from, bytes, stream);
}

/* From now on the device counts.  False: there is no device. */
static bool count_calls(void)
{
    static struct kn_cuda_driver counting;
    if (!cuda_open())
        return false;
    struct kn_cuda_device *d = (struct kn_cuda_device *)cuda;
    if (d->driver != &counting) {
        counted = d->driver;
        counting = *counted;
        counting.launch = count_launch;
        counting.copy = count_copy;
        d->driver = &counting;
    }
    return true;
}

#endif
