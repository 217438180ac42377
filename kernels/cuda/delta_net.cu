/* Gated delta nets (kernels/cpu/pass/delta_net.c).
 *
 * Columns of a head's state are independent.  A warp computes all steps of one flow for 32 columns of a head, which
 * are a tile in memory: it keeps the tile in shared memory, writes it back after the text, and loads it again for
 * drafts that do not continue the step before.  Norms of outputs and the inputs for the next pass are kernels of their
 * own. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.h"

#define THREADS KN_CUDA_ROW_THREADS
#define L2_EPS  1e-6f /* added to the squared length of queries and keys, as in training */

KN_KERNEL(part, THREADS, 2)(const __grid_constant__ struct kn_op_part o)
{
    const struct kn_net &n = o.net;
    int d_group = n.n_value_head / n.n_key_head * n.d_value, d_value = d_group * n.n_key_head;
    int one = 2 * n.d_key + 2 * d_group, d_keys = n.n_key_head * n.d_key;
    size_t row = blockIdx.x;
    const float *from = o.from + row * (size_t)(one * n.n_key_head);
    float *in = o.in + row * (size_t)kn_net_in(&n), *z = o.z + row * (size_t)d_value;
    for (int i = (int)threadIdx.x; i < one * n.n_key_head; i += THREADS) {
        int h = i / one, k = i % one;
        if (k < n.d_key)
            in[h * n.d_key + k] = from[i];
        else if (k < 2 * n.d_key)
            in[d_keys + h * n.d_key + k - n.d_key] = from[i];
        else if (k < 2 * n.d_key + d_group)
            in[2 * d_keys + h * d_group + k - 2 * n.d_key] = from[i];
        else
            z[h * d_group + k - 2 * n.d_key - d_group] = from[i];
    }
}

/* ---- inputs of steps ----------------------------------------------------------------------------------------- */

/* The inputs of a layer's steps, in kn_op_conv and kn_op_delta. */
struct inputs {
    const struct kn_net &net;
    const struct kn_flows &flows;
    const float *in, *kept;
    const uint8_t *state;
    size_t state_bytes;
};

KN_DEVICE bool is_dead(const struct kn_flows &f, const struct kn_step &t) { return t.row >= 0 && f.status[t.row]; }

KN_DEVICE const float *step_in(const struct inputs &i, const struct kn_step &t)
{
    size_t d_in = (size_t)kn_net_in(&i.net);
    return t.row >= 0 ? i.in + (size_t)t.row * d_in : i.kept + (size_t)t.kept * d_in;
}

/* The convolution input of the token `back` tokens before a step; if that is before the steps of this pass, in the
 * state. */
KN_DEVICE const float *tap_of(const struct inputs &in, int state, int step, int back)
{
    int at = step;
    for (; back > 0 && at >= 0; back--)
        at = in.flows.step[at].before;
    if (at >= 0)
        return step_in(in, in.flows.step[at]);
    return (const float *)(in.state + (size_t)state * in.state_bytes) +
           (size_t)(in.net.n_tap - 2 - back) * (size_t)kn_net_mix(&in.net);
}

/* ---- convolution --------------------------------------------------------------------------------------------- */

KN_DEVICE float softplus(float x) { return x > 20 ? x : (float)kn_log_inline(1 + kn_exp_inline((double)x)); }

/* Grid: steps. */
KN_KERNEL(conv, THREADS, 2)(const __grid_constant__ struct kn_op_conv o)
{
    __shared__ const float
        *x[KN_WARP]; /* by tap; all lanes of a warp store one, as a branch among lanes would cost more */
    const struct kn_net &n = o.net;
    const struct inputs in = { o.net, o.flows, o.in, o.kept, o.state, o.state_bytes };
    int step = (int)blockIdx.x, d_mix = kn_net_mix(&n), n_v = n.n_value_head, ratio = n_v / n.n_key_head;
    float *out = o.out + (size_t)step * (size_t)kn_net_in(&n);
    if (is_dead(o.flows, o.flows.step[step]))
        return;
    if (warp_of() == 0) {
        const struct kn_flow *f = o.flows.flow;
        while (step >= f->first + f->n_text + f->n_draft)
            f++;
        x[lane_of()] = tap_of(in, f->state, step, max(0, n.n_tap - 1 - lane_of()));
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < d_mix; c += THREADS) {
        float sum = 0;
        for (int j = 0; j < n.n_tap; j++)
            sum = fmaf(o.taps[(size_t)j * (size_t)d_mix + (size_t)c], x[j][c], sum);
        out[c] = gated(sum, sum);
    }
    __syncthreads();
    for (int h = warp_of(); h < 2 * n.n_key_head; h += n_warp_of())
        warp_rms_norm(out + h * n.d_key, h < n.n_key_head ? o.unit_q : o.unit_k, L2_EPS / (float)n.d_key, n.d_key);
    const float *rate = x[n.n_tap - 1] + d_mix;
    for (int h = (int)threadIdx.x; h < n_v; h += THREADS) {
        int at = n.by_key_head ? h / ratio * 2 * ratio + h % ratio : h, alpha = at + (n.by_key_head ? ratio : n_v);
        out[d_mix + h] = sigmoid(rate[at]);
        out[d_mix + n_v + h] = kn_expf_inline(o.decay[h] * softplus(rate[alpha] + o.decay_bias[h]));
    }
}

/* ---- the delta rule ------------------------------------------------------------------------------------------ */

/* 32 columns of one head of a flow's state; the lane has column `at`. */
struct tile {
    float *shared; /* [d_key][32] */
    size_t offset; /* floats from a state's begin to the tile */
    int head, at;
};

KN_DEVICE float *tile_of(const struct kn_op_delta &o, const struct tile &t, int state)
{
    return (float *)(o.state + (size_t)state * o.state_bytes) + t.offset;
}

KN_DEVICE void warp_copy_tile(float *to, const float *from, int d_key)
{
    __syncwarp();
    for (int i = lane_of(); i < d_key * KN_DELTA_TILE; i += KN_WARP)
        to[i] = from[i];
    __syncwarp();
}

/* Dot product of x with the lane's column. */
KN_DEVICE float column_dot(const float *x, const float *column, int d_key)
{
    float acc[4] = { 0, 0, 0, 0 };
#pragma unroll 2
    for (int i = 0; i < d_key; i += 4)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k < d_key)
                acc[k] = fmaf(x[i + k], column[(i + k) * KN_DELTA_TILE], acc[k]);
    return (acc[0] + acc[2]) + (acc[1] + acc[3]);
}

/* Runs a step on the tile, unless its row has failed.  out: store the step's output, if it is no pending row. */
KN_DEVICE void run_step(const struct kn_op_delta &o, const struct tile &t, int step, bool out)
{
    const struct kn_net &n = o.net;
    const struct kn_step s = o.flows.step[step];
    if (is_dead(o.flows, s))
        return;
    int key = n.tiled ? t.head % n.n_key_head : t.head / (n.n_value_head / n.n_key_head), d = n.d_key;
    const float *mixed = o.mixed + (size_t)step * (size_t)kn_net_in(&n), *q = mixed + key * d;
    const float *k = q + n.n_key_head * d, *v = mixed + 2 * n.n_key_head * d + t.head * n.d_value;
    const float *rate = mixed + kn_net_mix(&n);
    float beta = rate[t.head], decay = rate[n.n_value_head + t.head], *column = t.shared + lane_of();
    float value = t.at < n.d_value ? v[t.at] : 0;
    float e = beta * fmaf(-decay, column_dot(k, column, d), value);
    for (int i = 0; i < d; i++)
        column[i * KN_DELTA_TILE] = fmaf(k[i], e, decay * column[i * KN_DELTA_TILE]);
    if (out && s.row >= 0 && t.at < n.d_value)
        o.out[(size_t)s.row * o.out_stride + (size_t)(t.head * n.d_value + t.at)] = column_dot(q, column, d);
}

/* Runs the draft steps from the first one to `step`, without outputs; none if `step` is no draft. */
KN_DEVICE void run_path(const struct kn_op_delta &o, const struct tile &t, int first, int step)
{
    int depth = 0;
    for (int at = step; at >= first; at = o.flows.step[at].before)
        depth++;
    for (; depth > 0; depth--) {
        int at = step;
        for (int i = 1; i < depth; i++)
            at = o.flows.step[at].before;
        run_step(o, t, at, false);
    }
}

/* Grid: tiles of a head, heads, flows; 32 threads. */
KN_KERNEL(delta, KN_WARP, 1)(const __grid_constant__ struct kn_op_delta o)
{
    extern __shared__ float shared[];
    const struct kn_net &n = o.net;
    const struct kn_flow f = o.flows.flow[blockIdx.z];
    struct tile t = { shared, 0, (int)blockIdx.y, (int)blockIdx.x * KN_DELTA_TILE + lane_of() };
    size_t past = kn_net_past_floats(&n);
    size_t tile_floats = (size_t)n.d_key * KN_DELTA_TILE;
    t.offset = past + ((size_t)t.head * gridDim.x + blockIdx.x) * tile_floats;
    float *state = tile_of(o, t, f.state);
    int end = f.first + f.n_text, last = -1;
    warp_copy_tile(shared, state, n.d_key);
    for (int i = f.first; i < end; i++) {
        int copy = o.flows.step[i].copy_to;
        run_step(o, t, i, true);
        if (copy)
            warp_copy_tile(tile_of(o, t, copy), shared, n.d_key);
    }
    if (f.n_text)
        warp_copy_tile(state, shared, n.d_key);
    for (int i = end; i < end + f.n_draft; i++) {
        int before = o.flows.step[i].before;
        if (i > end && before != last) {
            warp_copy_tile(shared, state, n.d_key);
            run_path(o, t, end, before);
        }
        run_step(o, t, i, true);
        last = i;
    }
}

/* Norm and gate of the outputs.  Grid: steps. */
KN_KERNEL(delta_outputs, THREADS, 2)(const __grid_constant__ struct kn_op_delta o)
{
    const struct kn_net &n = o.net;
    const struct kn_step &s = o.flows.step[blockIdx.x];
    if (s.row < 0 || is_dead(o.flows, s))
        return;
    for (int h = warp_of(); h < n.n_value_head; h += n_warp_of()) {
        float *out = o.out + (size_t)s.row * o.out_stride + (size_t)(h * n.d_value);
        const float *z = o.z + ((size_t)s.row * (size_t)n.n_value_head + (size_t)h) * (size_t)n.d_value;
        warp_rms_norm(out, o.out_norm, o.eps, n.d_value);
        for (int i = lane_of(); i < n.d_value; i += KN_WARP)
            out[i] = gated(z[i], z[i]) * out[i];
    }
}

/* Stores the last n_tap - 1 convolution inputs up to a step in a state.  A thread moves one channel: entries ascend, so
 * that no value is overwritten before it has moved. */
KN_DEVICE void put_past(const struct inputs &in, int from, int step, float *past, int channel)
{
    for (int i = 0; i < in.net.n_tap - 1; i++)
        past[(size_t)i * (size_t)kn_net_mix(&in.net) + (size_t)channel] = tap_of(in, from, step,
                                                                            in.net.n_tap - 2 - i)[channel];
}

/* The inputs for the next pass: first in the copies, whose inputs may be the state's old ones.  Grid: blocks of
 * channels, flows. */
KN_KERNEL(delta_past, THREADS, 2)(const __grid_constant__ struct kn_op_delta o)
{
    const struct inputs in = { o.net, o.flows, o.in, o.kept, o.state, o.state_bytes };
    const struct kn_flow f = o.flows.flow[blockIdx.y];
    int channel = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (channel >= kn_net_mix(&o.net))
        return;
    for (int i = f.first; i < f.first + f.n_text; i++) {
        int copy = o.flows.step[i].copy_to;
        if (copy)
            put_past(in, f.state, i, (float *)(o.state + (size_t)copy * o.state_bytes), channel);
    }
    if (f.n_text)
        put_past(in, f.state, f.first + f.n_text - 1, (float *)(o.state + (size_t)f.state * o.state_bytes), channel);
}

KN_KERNEL(keep_draft, THREADS, 2)(const __grid_constant__ struct kn_op_keep_draft o)
{
    size_t row = blockIdx.x, d = (size_t)o.d;
    int to = o.to[row];
    for (size_t i = threadIdx.x; to >= 0 && i < d; i += THREADS)
        o.kept[(size_t)to * d + i] = o.in[row * d + i];
}
