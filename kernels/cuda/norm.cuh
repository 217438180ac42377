/* kernels/cuda/norm.cuh - one row of add_norm_code, by one block: alone, or behind the operation before it. */
#ifndef KERNELS_CUDA_NORM_CUH
#define KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/block.cuh"

KN_DEVICE void block_add_norm_code(const struct kn_op_add_norm_code &o, size_t item)
{
    size_t row = (size_t)(o.row ? o.row[item] : (int32_t)item);
    float *x = o.x + row * (size_t)o.d;
    if (o.y) {
        float *y = o.y + item * (size_t)o.d;
        for (int i = (int)threadIdx.x; o.bias && i < o.d; i += (int)blockDim.x)
            y[i] = y[i] + o.bias[i];
        __syncthreads();
        if (o.y_norm)
            block_rms_norm(y, o.y_norm, o.eps, o.d, y);
        for (int i = (int)threadIdx.x; i < o.d; i += (int)blockDim.x)
            x[i] = fmaf(o.y_scale, y[i], x[i]);
        __syncthreads();
    }
    if (!o.weight)
        return;
    block_norm(x, o.weight, o.norm_bias, o.eps, o.d, o.out.x + item * o.out.stride);
    block_code_row(o.out, o.kinds, o.d, item);
}

#endif
