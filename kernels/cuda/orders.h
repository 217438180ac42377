/* kernels/cuda/orders.h - a trial: do the orders of float operations in kernels/cpu/reference*.c suit a GPU?
 *
 * The specification fixes the order of all float additions. To test that order on a GPU, each kind of
 * operation is written once in a GPU's natural way and compared with the specification by memcmp
 * (tests/kernels/test_device.c): Q4_K by dp4a and by int8 tensor cores, a norm, attention.
 *
 * Arguments and results are in host memory; the calls use the current device. They are for tests:
 * only the inner loops are fast. They return 0 or KN_ENODEV, KN_ENOMEM, KN_EIO. */
#ifndef KERNELS_CUDA_ORDERS_H
#define KERNELS_CUDA_ORDERS_H

#include "kernels/kernels.h"

enum kn_orders_dot { KN_ORDERS_DP4A, KN_ORDERS_MMA };

/* All panels of a Q4_K product; x_row and y_row must be NULL. */
int kn_orders_matmul(enum kn_orders_dot how, const struct kn_matmul *m);

int kn_orders_rms_norm(const float *x, const float *w, float eps, int n, float *y);

/* k and v hold n_slot slots in F16 or F32.  a->base must have n_base entries, a->tail last + 1 - n_base (none if that is
 * negative). */
int kn_orders_attend(const struct kn_attend *a, int n_slot);

#endif
