/* The products of FFNs with groups of rows: gate and up, and down (kernels/cpu/pass/experts.c).
 *
 * Groups, their matrices and lists are read here and not by the host, so that a device may make them.  A group's
 * format is known only when its block runs, and a kernel for all formats would need the registers of the largest.  So
 * there is a kernel for each format, whose blocks end at once if their group has another one, and the host launches
 * those of the formats that the device was told of (kn_cuda_admit()).  A group in a format beyond these stops the
 * device. */
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/products.cuh"

/* A group's rows of x, and of y; lists are those of the operation. */
KN_DEVICE struct row_lists rows_of(const struct kn_group &g, const struct kn_mat &w, const struct kn_acts &x,
                                   const int32_t *x_row, float *y, const int32_t *y_row)
{
    struct row_lists v;
    int act = kn_cuda_act(w.format);
    v.x = (const uint8_t *)(act == KN_ACT_F32   ? x.code[KN_ACT_F32]
                            : act == KN_ACT_Q32 ? x.code[KN_ACT_Q32]
                                                : x.code[KN_ACT_Q256]);
    v.x_stride = act == KN_ACT_F32   ? x.code_stride[KN_ACT_F32]
                 : act == KN_ACT_Q32 ? x.code_stride[KN_ACT_Q32]
                                     : x.code_stride[KN_ACT_Q256];
    v.x += x_row ? 0 : (size_t)g.first * v.x_stride;
    v.x_row = x_row ? x_row + g.first : NULL;
    v.y_stride = (size_t)w.n_out;
    v.y = y + (y_row ? 0 : (size_t)g.first * v.y_stride);
    v.y_row = y_row ? y_row + g.first : NULL;
    v.n = g.n;
    return v;
}

template <class W> KN_DEVICE void block_group(const struct kn_mat &w, const struct row_lists &v)
{
    __shared__ struct group_sums<KN_CUDA_ROWS> stage;
    struct panels m = { (const uint8_t *)w.data, w.n_in, w.n_out, 1, w.scale, 0, 0 };
    int panel0 = (int)blockIdx.x * kn_cuda_panels(w.n_in);
    if (v.n == 1) {
        block_product_rows<W, 1>(m, panel0, v, 0, *(struct group_sums<1> *)&stage);
        return;
    }
    for (int row = 0; row < v.n; row += KN_CUDA_ROWS)
        block_product_rows<W, KN_CUDA_ROWS>(m, panel0, v, row, stage);
}

/* A tile of the activation is a record of codes, or all outputs of a block if these are more; its blocks may belong to launches
 * for different formats of gate and up. */
KN_DEVICE void block_activate_last(const struct kn_cuda_group_product &o, const struct kn_group &g)
{
    int of_value = o.then.interleaved ? 2 : 1, per_block = kn_cuda_panels(g.gate.n_in) * KN_PANEL;
    int size = max(per_block, of_value * KN_GROUP), tile = (int)blockIdx.x * per_block / size;
    int first = tile * size, end = min(first + size, g.gate.n_out);
    int n = (end - first + per_block - 1) / per_block * (o.then.interleaved ? 1 : 2);
    if (!block_is_last(o.count + (size_t)blockIdx.z * (size_t)o.n_tile + (size_t)tile, n))
        return;
    for (int part = g.first; part < g.first + g.n; part++)
        block_activate(o.then, g, part, first / of_value, end / of_value);
}

/* Grid: blocks of panels; gate, up, or down alone; groups. */
template <class W> KN_DEVICE void group_product(const struct kn_cuda_group_product &o, int format)
{
    const struct kn_group &g = o.group[blockIdx.z];
    const struct kn_mat w = o.down ? g.down : blockIdx.y ? g.up : g.gate;
    if (g.n < 1)
        return;
    if (!(o.admitted >> w.format & 1))
        __trap();
    int value0 = (int)blockIdx.x * kn_cuda_panels(w.n_in) * KN_PANEL;
    if (w.format != format || value0 >= w.n_out)
        return;
    block_group<W>(w, rows_of(g, w, o.x, o.x_row, blockIdx.y ? o.up : o.y, o.y_row));
    if (o.count)
        block_activate_last(o, g);
}

#define GROUP(F)                                                                                                       \
    KN_KERNEL(group_##F, KN_CUDA_SLOTS * 4, 2)(const __grid_constant__ struct kn_cuda_group_product o)                 \
    {                                                                                                                  \
        group_product<weights_##F>(o, KN_##F);                                                                         \
    }
KN_CUDA_FORMATS(GROUP)
