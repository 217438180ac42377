/* kernels/cuda/cuda.h - NVIDIA GPUs as devices of device.h.
 *
 *     kn_cuda_open()      a device by its number, with the kernels that nvcc made when the program was built
 *     kn_cuda_has_format()     the weight formats that it can compute with; it has all operations
 *     kn_cuda_admit()     before the first queue: once for each format of a model's matrices
 *     kn_cuda_admit_device() at each start: on the first one with a GPU, kn_cuda_self_test()
 *     kn_queue_open() ..  as with every device
 *
 * A queue is a stream of the driver: kn_queue_add() launches an operation's kernels and returns.  The host reads
 * nothing but the operation's struct.  The memory that the struct names, and that is named there in turn (rows and
 * their slots, groups and their matrices, the plan), must be readable by the device: its own memory, or pinned host
 * memory. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/pass.h"

/* 0, or KN_ENODEV, KN_ENOMEM, KN_EIO with a message.  One context is shared by all openings of a device. */
int kn_cuda_open(struct kn_device **out, int number);
void kn_cuda_close(struct kn_device *d); /* after its queues; accepts NULL */

bool kn_cuda_has_format(enum kn_format f);

/* 0, or KN_EUNSUPPORTED with a message that names the format. */
int kn_cuda_admit(const struct kn_device *d, enum kn_format f);

/* Compares the device with the host's scalar functions, bit for bit, on small operations: rows, router, attention in
 * each KV format, products in each format.  0, KN_ENOMEM, or KN_EIO with a message that names the first that differs.
 * Different products in a format are no error: the device does not have this format. */
int kn_cuda_self_test(struct kn_device *d);

/* Tests the device, or takes the result that was kept by an earlier start; says which formats differ. */
int kn_cuda_admit_device(struct kn_device *d);

/* Keeps results in this folder; NULL: nowhere, as at first. */
void kn_cuda_keep_tests(const char *folder);

#endif
