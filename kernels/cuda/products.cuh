/* kernels/cuda/products.cuh - a product of panels with rows, by one block of threads.
 *
 * Four lanes compute a group of 256 inputs for a panel's 16 rows (weights.cuh), so a block of 128 threads computes 32
 * groups side by side: of one panel, or, if the rows of weights are short, of several.  Each group's sum goes to shared
 * memory, and the sums of a row are added in ascending order from +0, as kernels.h says.  Weights are read once for N
 * rows of activations; at up to some ten rows reading them takes the time. */
#ifndef KERNELS_CUDA_PRODUCTS_CUH
#define KERNELS_CUDA_PRODUCTS_CUH

#include "kernels/cuda/launch.h"
#include "kernels/cuda/weights.cuh"

/* Rows of activations and of results, as in struct kn_matmul. */
struct row_lists {
    const uint8_t *x;
    size_t x_stride;
    const int32_t *x_row;
    float *y;
    size_t y_stride;
    const int32_t *y_row;
    int n;
};

/* A stack of matrices, each of n_out rows in whole panels, but the last panel of a stack of one may be padded. */
struct panels {
    const uint8_t *data;
    int n_in, n_out, n_stack;
    float scale;
    size_t x_part, y_part;
};

/* Sums of groups, by slot, row of activations and row of weights. */
template <int N> struct __align__(16) group_sums {
    float sum[KN_CUDA_SLOTS][N][KN_PANEL];
};

/* Rows row0 .. row0 + N - 1 of the product with panels panel0 .. panel0 + kn_cuda_panels(n_in) - 1.  Rows beyond the
 * last one repeat it, and are not stored. */
template <class W, int N>
KN_DEVICE void block_product_rows(const struct panels &m, int panel0, const struct row_lists &v, int row0,
                                  struct group_sums<N> &stage)
{
    const int n_group = (m.n_in + KN_GROUP - 1) / KN_GROUP, per_panel = kn_cuda_groups(m.n_in);
    const int n_at_once = KN_CUDA_SLOTS / per_panel, n_own = (m.n_out + KN_PANEL - 1) / KN_PANEL;
    const int n_panel = n_own * m.n_stack;
    const size_t block_bytes = (size_t)KN_PANEL * W::bytes, row_blocks = (size_t)(m.n_in / W::values);
    const int slot = (int)threadIdx.x / 4, quad = (int)threadIdx.x % 4;
    const int panel = panel0 + slot / per_panel;
    float carry = 0;

    for (int first = 0; first < n_group; first += per_panel) {
        int group = first + slot % per_panel, k = group * KN_GROUP;
        if (panel < n_panel && group < n_group) {
            const uint8_t *w = m.data + ((size_t)panel * row_blocks + (size_t)(k / W::values)) * block_bytes;
            const typename W::X *x[N];
            float acc[N][4] = {};
            for (int j = 0; j < N; j++) {
                int row = min(row0 + j, v.n - 1);
                const uint8_t *at = v.x + (size_t)(v.x_row ? v.x_row[row] : row) * v.x_stride;
                at += (size_t)(panel / n_own) * m.x_part;
                x[j] = (const typename W::X *)at + (sizeof(typename W::X) == sizeof(float) ? k : group);
            }
            W::template add<N>(w, quad, x, min(KN_GROUP, m.n_in - k), acc);
            for (int j = 0; j < N; j++)
                *(float4 *)&stage.sum[slot][j][4 * quad] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n_at_once * N * KN_PANEL; i += KN_CUDA_SLOTS * 4) {
            int l = i % KN_PANEL, j = i / KN_PANEL % N, p = i / KN_PANEL / N;
            int n = min(per_panel, n_group - first), at = panel0 + p, r = at % n_own * KN_PANEL + l;
            if (at >= n_panel)
                break;                     /* so are all that follow */
            float sum = first ? carry : 0; /* more than one turn: there is one panel, and one element for a thread */
            for (int g = 0; g < n; g++)
                sum += stage.sum[p * per_panel + g][j][l];
            carry = sum;
            if (first + per_panel < n_group || r >= m.n_out || row0 + j >= v.n)
                continue;
            size_t y = (size_t)(v.y_row ? v.y_row[row0 + j] : row0 + j) * v.y_stride + (size_t)(at / n_own) * m.y_part;
            v.y[y + (size_t)r] = sum * m.scale;
        }
        __syncthreads();
    }
}

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

#endif
