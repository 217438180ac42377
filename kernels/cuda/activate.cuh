/* kernels/cuda/activate.cuh - the activation between an FFN's products: gates and ups to activations with their codes. */
#ifndef KERNELS_CUDA_ACTIVATE_CUH
#define KERNELS_CUDA_ACTIVATE_CUH

#include "kernels/cuda/block.cuh"

KN_DEVICE float activated(const struct kn_op_gate_up &o, float gate, float up)
{
    if (o.activation == KN_GEGLU) {
        const float twice = 1.5957691216057308f, cube = 0.044715f;
        return gated(gate, twice * (gate + cube * (gate * gate * gate))) * up;
    }
    if (o.limit > 0) {
        float g = o.limit < gate ? o.limit : gate, u = o.limit < up ? o.limit : up;
        u = -o.limit > u ? -o.limit : u;
        return gated(g, o.alpha * g) * (u + 1.0f);
    }
    return gated(gate, gate) * up;
}

/* Values first .. end - 1 of a part of a group; `first` begins a record of codes. */
KN_DEVICE void block_activate(const struct kn_op_gate_up &o, const struct kn_group &g, int part, int first, int end)
{
    size_t d = (size_t)o.d_act, own = (size_t)g.bias * d, row = (size_t)(o.pair ? o.pair[part] : part);
    float *x = o.act.x + row * o.act.stride;
    for (size_t k = (size_t)first + threadIdx.x; k < (size_t)end; k += blockDim.x) {
        float gate = o.interleaved ? o.gate[2 * (row * d + k)] : o.gate[row * d + k];
        float up = o.interleaved ? o.gate[2 * (row * d + k) + 1] : o.up[row * d + k];
        if (o.in_scale) {
            gate = gate * o.in_scale[row];
            up = up * o.in_scale[row];
        }
        if (o.gate_bias) {
            gate = gate + o.gate_bias[own + k];
            up = up + o.up_bias[own + k];
        }
        x[k] = activated(o, gate, up);
    }
    __syncthreads();
    code_row(o.act, o.kinds, end, row, first / KN_GROUP + warp_of(), n_warp_of());
}

#endif
