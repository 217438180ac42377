/* kernels/cuda/absent.c - stubs for kernels/cuda/ in a build without nvcc: there is no device. */
#include "kernels/cuda/orders.h"

static int no_device(void) { return kn_fail(KN_ENODEV, "this program was built without CUDA"); }

bool kn_device_built(void) { return false; }

int kn_device_count(void) { return 0; }

int kn_device_get(int device, struct kn_device_info *out)
{
    (void)device;
    (void)out;
    return no_device();
}

int kn_orders_matmul(enum kn_orders_dot how, const struct kn_matmul *m)
{
    (void)how;
    (void)m;
    return no_device();
}

int kn_orders_rms_norm(const float *x, const float *w, float eps, int n, float *y)
{
    (void)x;
    (void)w;
    (void)eps;
    (void)n;
    (void)y;
    return no_device();
}

int kn_orders_attend(const struct kn_attend *a, int n_slot)
{
    (void)a;
    (void)n_slot;
    return no_device();
}
