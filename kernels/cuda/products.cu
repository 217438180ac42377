/* Products of matrices with rows of any number: one kernel for each format, and for one row of activations or several. */
#include "kernels/cuda/products.cuh"

/* Grid: blocks of panels, tiles of N rows, products; the largest of the launch's products. */
template <class W, int N> KN_DEVICE void block_product(const struct kn_product &p)
{
    __shared__ struct group_sums<N> stage;
    const struct kn_matmul &m = p.mul;
    struct row_lists v = { (const uint8_t *)m.x, m.x_stride, m.x_row, m.y, m.y_stride, m.y_row, m.n_row };
    struct panels w = { (const uint8_t *)m.w.data, m.w.n_in, m.w.n_out / p.n_stack, p.n_stack, m.w.scale, 0, 0 };
    int panel0 = (int)blockIdx.x * kn_cuda_panels(m.w.n_in), row0 = (int)blockIdx.y * N;
    if (p.n_stack > 1) {
        w.x_part = p.x_part;
        w.y_part = p.y_part;
    }
    if (panel0 * KN_PANEL < m.w.n_out && row0 < m.n_row)
        block_product_rows<W, N>(w, panel0, v, row0, stage);
}

#define PRODUCT(F, N)                                                                                                  \
    KN_KERNEL(product_##F##_##N, KN_CUDA_SLOTS * 4, N > 1 ? 2 : 4)                                                     \
    (const __grid_constant__ struct kn_op_products o) { block_product<weights_##F, N>(o.product[blockIdx.z]); }
#define PRODUCTS(F) PRODUCT(F, 1) PRODUCT(F, 4)
KN_CUDA_FORMATS(PRODUCTS)
