/* kernels/cuda/device.cu - the CUDA devices of this machine. */
#include <cuda_runtime.h>
#include <string.h>

extern "C" {
#include "kernels/kernels.h"
}

bool kn_device_built(void)
{
    return true;
}

/* Without a driver the count is 0, as without a device. */
int kn_device_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

int kn_device_get(int device, struct kn_device_info *out)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess)
        return kn_fail(KN_ENODEV, "CUDA device %d: %s", device, cudaGetErrorString(e));

    memset(out, 0, sizeof *out);
    memcpy(out->name, p.name, sizeof out->name - 1);
    out->memory_bytes = p.totalGlobalMem;
    out->compute_major = p.major;
    out->compute_minor = p.minor;
    return 0;
}
