/* kernels/cuda/orders.h - a trial: do the orders of kernels/cpu/reference*.c suit a GPU?
 *
 * The specification fixes which float is added to which, when. Before that is frozen for good, each
 * kind of operation is written once the way a GPU would want it, and compared with the
 * specification by memcmp (tests/kernels/test_device.c): Q4_K by dp4a and by the int8 tensor cores,
 * a norm, attention.
 *
 * Everything comes in and goes out in host memory, on the current device; these calls are for
 * tests, and nothing about them is fast but the inner loops. 0 or KN_ENODEV, KN_ENOMEM, KN_EIO. */
#ifndef KERNELS_CUDA_ORDERS_H
#define KERNELS_CUDA_ORDERS_H

#include "kernels/kernels.h"

enum kn_orders_dot { KN_ORDERS_DP4A, KN_ORDERS_MMA };

/* All panels of a Q4_K product; x_row and y_row are the identity. */
int kn_orders_matmul(enum kn_orders_dot how, const struct kn_matmul *m);

int kn_orders_rms_norm(const float *x, const float *w, float eps, int n, float *y);

/* k and v hold n_slot rows; base n_base and tail last + 1 - n_base entries. */
int kn_orders_attend(const struct kn_attend *a, int n_slot);

#endif
