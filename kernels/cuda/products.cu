/* Products of matrices with rows of any number: one kernel for each format, and for one row of activations or several. */
#include "kernels/cuda/products.cuh"

#define PRODUCT(F, N)                                                                                                  \
    KN_KERNEL(product_##F##_##N, KN_CUDA_SLOTS * 4, N > 1 ? 2 : 4)                                                     \
    (const __grid_constant__ struct kn_op_products o) { block_product<weights_##F, N>(o.product[blockIdx.z]); }
#define PRODUCTS(F) PRODUCT(F, 1) PRODUCT(F, 4)
KN_CUDA_FORMATS(PRODUCTS)
