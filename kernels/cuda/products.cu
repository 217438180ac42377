/* Products of matrices with rows of any number: one kernel for each format, and for one row of activations or several.
 * */
#include "kernels/cuda/products.cuh"

/* Grid: blocks of panels, tiles of N rows. */
#define PRODUCT(F, N)                                                                                                  \
    KN_KERNEL(product_##F##_##N, KN_CUDA_SLOTS * 4, N > 1 ? 2 : 4)                                                     \
    (const __grid_constant__ struct kn_product p)                                                                      \
    {                                                                                                                  \
        __shared__ struct group_sums<N> stage;                                                                         \
        const struct kn_matmul &m = p.mul;                                                                             \
        struct row_lists v = { (const uint8_t *)m.x, m.x_stride, m.x_row, m.y, m.y_stride, m.y_row, m.n_row };         \
        struct panels w = { (const uint8_t *)m.w.data,    m.w.n_in,                                                    \
                            m.w.n_out / p.n_stack,        p.n_stack,                                                   \
                            p.n_stack > 1 ? p.x_part : 0, p.n_stack > 1 ? p.y_part : 0 };                              \
        block_product_rows<weights_##F, N>(w, (int)blockIdx.x * kn_cuda_panels(m.w.n_in), v, (int)blockIdx.y * N,      \
                                           stage);                                                                     \
    }
#define PRODUCTS(F) PRODUCT(F, 1) PRODUCT(F, 4)
KN_CUDA_FORMATS(PRODUCTS)
