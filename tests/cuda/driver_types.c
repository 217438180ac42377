/* Compares kernels/cuda/driver.h with NVIDIA's cuda.h where that is installed: tests/cuda/check.sh compiles this file,
 * and nothing runs it. */
#include <cuda.h>

#include "kernels/cuda/driver.h"

#define CHECK(name, symbol, parameters)                                                                                \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), __typeof__((struct kn_cuda_driver){ 0 }.name)),   \
                   #symbol " has other parameters in cuda.h");
KN_CUDA_DRIVER(CHECK)

#define SAME(ours, theirs) _Static_assert((ours) == (unsigned)(theirs), #ours " is not " #theirs)
SAME(KN_CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(KN_CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(KN_CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(KN_CUDA_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(KN_CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(KN_CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(KN_CUDA_NOT_BELOW, CU_STREAM_WAIT_VALUE_GEQ);
SAME(KN_CUDA_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(KN_CUDA_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(KN_CUDA_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(KN_CUDA_MAPPED, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
SAME(KN_CUDA_MAPPED, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(KN_CUDA_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(KN_CUDA_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(KN_CUDA_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
