/* kernels/cuda/driver.h - the functions of NVIDIA's driver that this program calls.
 *
 * The driver is the library libcuda.so.1.  It is opened when the first function here is called, so one program runs on
 * machines with and without a GPU, and is built without NVIDIA's headers: the types and constants below are those of
 * cuda.h (tests/cuda/driver_types.c compares them where that header is installed).  Addresses of device memory are
 * plain pointers: with unified addressing, which all 64-bit systems have, an address names one place on host or
 * device. */
#ifndef KERNELS_CUDA_DRIVER_H
#define KERNELS_CUDA_DRIVER_H

#include "kernels/core.h"

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;

#define KN_CUDA_INVALID_VALUE 1u
#define KN_CUDA_OUT_OF_MEMORY 2u
#define KN_CUDA_NO_DEVICE     100u
#define KN_CUDA_NO_BINARY     209u /* the image holds no code for this GPU */
#define KN_CUDA_NOT_FOUND     500u
#define KN_CUDA_NOT_READY     600u

#define KN_CUDA_PROCESSORS 16u /* attributes of a device */
#define KN_CUDA_MAJOR      75u
#define KN_CUDA_MINOR      76u

#define KN_CUDA_MAPPED       3u /* cuMemHostAlloc, cuMemHostRegister: portable, and visible to the device */
#define KN_CUDA_NON_BLOCKING 1u /* cuStreamCreate */
#define KN_CUDA_NO_TIMING    2u /* cuEventCreate */
#define KN_CUDA_MEMORY_TYPE  2u /* cuPointerGetAttribute */
#define KN_CUDA_NOT_BELOW    0u /* cuStreamWaitValue32: until the difference is not negative */

typedef unsigned long long kn_cuda_address;

/* name, symbol, parameters; all return a CUresult, 0 for success. */
#define KN_CUDA_DRIVER(X)                                                                                              \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(driver_version, cuDriverGetVersion, (int *version))                                                              \
    X(error_name, cuGetErrorName, (unsigned error, const char **name))                                                 \
    X(error_text, cuGetErrorString, (unsigned error, const char **text))                                               \
    X(device_count, cuDeviceGetCount, (int *n))                                                                        \
    X(device_get, cuDeviceGet, (int *device, int number))                                                              \
    X(device_name, cuDeviceGetName, (char *name, int room, int device))                                                \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, int device))                                                \
    X(device_attribute, cuDeviceGetAttribute, (int *value, unsigned attribute, int device))                            \
    X(context_retain, cuDevicePrimaryCtxRetain, (struct CUctx_st * *context, int device))                              \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                                     \
    X(context_use, cuCtxSetCurrent, (struct CUctx_st * context))                                                       \
    X(context_wait, cuCtxSynchronize, (void))                                                                          \
    X(module_load, cuModuleLoadData, (struct CUmod_st * *module, const void *image))                                   \
    X(module_unload, cuModuleUnload, (struct CUmod_st * module))                                                       \
    X(module_function, cuModuleGetFunction, (struct CUfunc_st * *f, struct CUmod_st * module, const char *name))       \
    X(module_global, cuModuleGetGlobal_v2,                                                                             \
      (kn_cuda_address * at, size_t * bytes, struct CUmod_st * module, const char *name))                              \
    X(launch, cuLaunchKernel,                                                                                          \
      (struct CUfunc_st * f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,    \
       unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream, void **parameters, void **extra))          \
    X(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                       \
    X(memory_alloc, cuMemAlloc_v2, (kn_cuda_address * at, size_t bytes))                                               \
    X(memory_free, cuMemFree_v2, (kn_cuda_address at))                                                                 \
    X(pinned_alloc, cuMemHostAlloc, (void **at, size_t bytes, unsigned flags))                                         \
    X(pinned_free, cuMemFreeHost, (void *at))                                                                          \
    X(host_register, cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags))                                   \
    X(host_unregister, cuMemHostUnregister, (void *at))                                                                \
    X(copy, cuMemcpyAsync, (kn_cuda_address to, kn_cuda_address from, size_t bytes, struct CUstream_st * stream))      \
    X(fill, cuMemsetD8Async, (kn_cuda_address at, unsigned char value, size_t n, struct CUstream_st *stream))          \
    X(stream_create, cuStreamCreate, (struct CUstream_st * *stream, unsigned flags))                                   \
    X(stream_destroy, cuStreamDestroy_v2, (struct CUstream_st * stream))                                               \
    X(stream_wait, cuStreamSynchronize, (struct CUstream_st * stream))                                                 \
    X(pointer_attribute, cuPointerGetAttribute, (void *value, unsigned attribute, kn_cuda_address at))                 \
    X(event_create, cuEventCreate, (struct CUevent_st * *event, unsigned flags))                                       \
    X(event_destroy, cuEventDestroy_v2, (struct CUevent_st * event))                                                   \
    X(event_record, cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))                           \
    X(event_wait, cuEventSynchronize, (struct CUevent_st * event))                                                     \
    X(stream_query, cuStreamQuery, (struct CUstream_st * stream))                                                      \
    X(stream_write, cuStreamWriteValue32_v2,                                                                           \
      (struct CUstream_st * stream, kn_cuda_address at, unsigned value, unsigned flags))                               \
    X(stream_await, cuStreamWaitValue32_v2,                                                                            \
      (struct CUstream_st * stream, kn_cuda_address at, unsigned value, unsigned flags))

struct kn_cuda_driver {
#define KN_MEMBER(name, symbol, parameters) unsigned(*name) parameters;
    KN_CUDA_DRIVER(KN_MEMBER)
#undef KN_MEMBER
};

/* The driver, opened and initialised once for the process, or NULL: there is no usable driver, and *why, unless why is
 * NULL, is one line that says so.  It is not closed. */
const struct kn_cuda_driver *kn_cuda_driver(const char **why);

/* For tests, before the first call of kn_cuda_driver(): opens the library at this path. */
void kn_cuda_driver_from(const char *path);

/* The KN_E* of a driver's error, after a message "doing: the driver's words"; 0 for success. */
int kn_cuda_failed(unsigned error, const char *doing);

#endif
