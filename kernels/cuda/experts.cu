/* Router and experts: route, plan, guess, group, alone and one after the other in one launch; the activation between an FFN's products (groups.cu), of many rows, and the sum over a
 * row's experts (kernels/cpu/pass/router.c, experts.c). */
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/products.cuh"

#define THREADS KN_CUDA_ROW_THREADS /* at most: the blocks of a router's product have fewer */
#define N_WARP  (THREADS / KN_WARP)

/* ---- route -------------------------------------------------------------------------------------------------- */

/* The largest key below `below` of the values x[n], for all threads; 0: there is none. */
KN_DEVICE uint64_t block_next_key(const float *x, int n, uint64_t below)
{
    __shared__ uint64_t best[N_WARP], total;
    uint64_t key = 0;
    for (int e = (int)threadIdx.x; e < n; e += (int)blockDim.x) {
        uint64_t k = kn_rank_key(x[e], e);
        if (k < below && k > key)
            key = k;
    }
    for (int half = 16; half > 0; half /= 2)
        key = max(key, __shfl_xor_sync(KN_ALL, key, half));
    if (lane_of() == 0)
        best[warp_of()] = key;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < n_warp_of(); i++)
            key = max(key, best[i]);
        total = key;
    }
    __syncthreads();
    return total;
}

KN_DEVICE int32_t rank_id(uint64_t key) { return (int32_t) ~(uint32_t)key; }

/* Writes to id the indices of the n_used largest of x[n], in the order of choices (kernels.h). */
KN_DEVICE void block_choose(const float *x, int n, int n_used, int32_t *id)
{
    uint64_t key = UINT64_MAX;
    for (int i = 0; i < n_used; i++) {
        key = block_next_key(x, n, key);
        if (threadIdx.x == 0)
            id[i] = rank_id(key);
    }
    __syncthreads();
}

/* Ranks outside the n_group_used groups with the best scores become -infinity. */
KN_DEVICE void block_limit_groups(const struct kn_op_route &o, float *rank)
{
    __shared__ float score[KN_MAX_GROUP];
    __shared__ int32_t best[KN_MAX_GROUP];
    __shared__ bool keep[KN_MAX_GROUP];
    int n = o.n_expert / o.n_group, t = (int)threadIdx.x;
    for (int g = t; g < o.n_group; g += (int)blockDim.x) {
        uint64_t first = 0, second = 0;
        for (int e = 0; e < n; e++) {
            uint64_t key = kn_rank_key(rank[g * n + e], e);
            second = key > first ? first : max(second, key);
            first = max(first, key);
        }
        score[g] = rank[g * n + rank_id(first)];
        if (o.group_best > 1)
            score[g] += rank[g * n + rank_id(second)];
        keep[g] = false;
    }
    __syncthreads();
    block_choose(score, o.n_group, o.n_group_used, best);
    for (int i = t; i < o.n_group_used; i += (int)blockDim.x)
        keep[best[i]] = true;
    __syncthreads();
    for (int e = t; e < o.n_expert; e += (int)blockDim.x)
        rank[e] = keep[e / n] ? rank[e] : -INFINITY;
    __syncthreads();
}

/* The weight of chosen expert id[k] among those near it (pass.h), for all threads of a warp; rank: scratch. */
KN_DEVICE float warp_mix(const struct kn_op_route &o, const float *p, const int32_t *id, float *rank, int k)
{
    float m = p[id[k]];
    for (int e = lane_of(); e < o.n_expert; e += KN_WARP) {
        float size = p[e] < 0 ? -p[e] : p[e], largest = size > m ? size : m;
        bool far = (m - p[e]) / largest > o.mixer_gap || (k > 0 && e == id[0]);
        rank[e] = far ? -INFINITY : p[e];
    }
    __syncwarp();
    warp_softmax(rank, o.n_expert);
    float weight = rank[id[k]];
    __syncwarp();
    return weight;
}

/* The weights of a row's chosen experts. */
KN_DEVICE void warp_weights(const struct kn_op_route &o, const float *p, const int32_t *id, float *rank, float *weight)
{
    int t = lane_of();
    for (int i = t; i < o.n_used; i += KN_WARP)
        weight[i] = p[id[i]];
    __syncwarp();
    if (o.gating == KN_GATING_CHOSEN)
        warp_softmax(weight, o.n_used);
    for (int i = t; o.gating == KN_GATING_CHOSEN_SIGMOID && i < o.n_used; i += KN_WARP)
        weight[i] = sigmoid(weight[i]);
    for (int i = 0; o.gating == KN_GATING_MIXER && i < o.n_used; i++) {
        float mixed = warp_mix(o, p, id, rank, i);
        if (t == 0)
            weight[i] = mixed;
    }
    __syncwarp();
    float sum = 0;
    for (int i = 0; i < o.n_used; i++)
        sum += weight[i];
    __syncwarp();
    for (int i = t; i < o.n_used; i += KN_WARP) {
        float w = (o.norm_topk ? weight[i] / (sum + 1e-20f) : weight[i]) * o.scale; /* all may be 0 */
        weight[i] = o.expert_scale ? w * o.expert_scale[id[i]] : w;
    }
}

KN_DEVICE void block_route(const struct kn_op_route &o, size_t row)
{
    size_t at = row * (size_t)o.n_expert, used = row * (size_t)o.n_used;
    float *p = o.logit + at, *weight = o.weight + used, *rank = p;
    int32_t *id = o.id + used;
    int t = (int)threadIdx.x;
    for (int e = t; o.bias && e < o.n_expert; e += (int)blockDim.x)
        p[e] = p[e] + o.bias[e];
    __syncthreads();
    if (o.gating == KN_GATING_SOFTMAX && t < KN_WARP)
        warp_softmax(p, o.n_expert);
    for (int e = t; o.gating == KN_GATING_SIGMOID && e < o.n_expert; e += (int)blockDim.x)
        p[e] = sigmoid(p[e]);
    __syncthreads();
    if (o.select_bias || o.n_group > 1) {
        rank = o.rank + at;
        for (int e = t; e < o.n_expert; e += (int)blockDim.x)
            rank[e] = o.select_bias ? p[e] + o.select_bias[e] : p[e];
        __syncthreads();
        if (o.n_group > 1)
            block_limit_groups(o, rank);
    }
    block_choose(rank, o.n_expert, o.n_used, id);
    if (t < KN_WARP)
        warp_weights(o, p, id, o.rank + at, weight);
}

/* ---- plan and guess ----------------------------------------------------------------------------------------- */

/* The sum of x over the threads before this one; *all: over all of them. */
KN_DEVICE int block_sum_before(int x, int *all)
{
    __shared__ int of_warp[N_WARP];
    int sum = x, before = 0;
    for (int step = 1; step < KN_WARP; step *= 2) {
        int below = __shfl_up_sync(KN_ALL, sum, step);
        if (lane_of() >= step)
            sum += below;
    }
    if (lane_of() == KN_WARP - 1)
        of_warp[warp_of()] = sum;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < n_warp_of(); i++) {
        before += i < warp_of() ? of_warp[i] : 0;
        *all += of_warp[i];
    }
    __syncthreads();
    return before + sum - x;
}

/* A thread takes an expert: it counts the expert's pairs, and then lists them, in the order of the rows. */
KN_DEVICE void block_plan(const struct kn_op_plan &o)
{
    const struct kn_plan *p = &o.plan;
    int32_t *expert = p->expert, *first = p->first, *row = p->row, *pair = p->pair;
    int n_pair = 0, n = 0, pairs = o.rows.n * o.n_used;
    for (int e0 = 0; e0 < o.n_expert; e0 += (int)blockDim.x) {
        int e = e0 + (int)threadIdx.x, count = 0, all_pairs, all_experts;
        for (int i = 0; e < o.n_expert && i < pairs; i++)
            count += o.id[i] == e && !o.rows.status[i / o.n_used];
        int at = n_pair + block_sum_before(count, &all_pairs);
        int number = n + block_sum_before(count > 0, &all_experts);
        if (count) {
            expert[number] = o.expert0 + e;
            first[number] = at;
            for (int i = 0; i < pairs; i++)
                if (o.id[i] == e && !o.rows.status[i / o.n_used]) {
                    row[at] = i / o.n_used;
                    pair[at++] = i;
                }
        }
        n_pair += all_pairs;
        n += all_experts;
    }
    if (threadIdx.x == 0) {
        first[n] = n_pair;
        *p->n_expert = n;
    }
}

/* An expert's place in the list is the number of experts that come before it. */
KN_DEVICE void block_guess(const struct kn_op_guess &o)
{
    int pairs = o.rows.n * o.n_used, n = 0;
    for (int e = (int)threadIdx.x; e < o.n_expert; e += (int)blockDim.x) {
        float sum = 0;
        for (int i = 0; i < pairs; i++)
            if (o.id[i] == e && !o.rows.status[i / o.n_used])
                sum += o.weight[i];
        o.sum[e] = sum;
    }
    __syncthreads();
    for (int e0 = 0; e0 < o.n_expert; e0 += (int)blockDim.x) {
        int e = e0 + (int)threadIdx.x, place = 0, all;
        bool listed = e < o.n_expert && o.sum[e] > 0;
        for (int i = 0; listed && i < o.n_expert; i++)
            place += o.sum[i] > o.sum[e] || (o.sum[i] == o.sum[e] && i < e);
        if (listed)
            o.expert[place] = o.expert0 + e;
        block_sum_before(listed, &all);
        n += all;
    }
    if (threadIdx.x == 0)
        *o.n_listed = n;
}

/* Whether the plan's i-th expert is absent. */
KN_DEVICE bool is_absent(const struct kn_op_group &o, int i)
{
    return !o.expert || !o.expert[o.plan.expert[i] - o.expert0].gate.data;
}

/* The number of outputs of absent experts. */
KN_DEVICE int block_absent_outputs(const struct kn_op_group &o, int n, int *n_absent)
{
    const int32_t *first = o.plan.first;
    int outputs = 0, all;
    *n_absent = 0;
    for (int e0 = 0; e0 < n; e0 += (int)blockDim.x) {
        int e = e0 + (int)threadIdx.x;
        bool absent = e < n && is_absent(o, e);
        block_sum_before(absent ? first[e + 1] - first[e] : 0, &all);
        outputs += all;
        block_sum_before(absent, &all);
        *n_absent += all;
    }
    return outputs;
}

/* A thread numbers the outputs of an expert.  Behind those of absent experts, the i-th has its place in the plan less the
 * outputs of absent experts before it. */
KN_DEVICE void block_number_outputs(const struct kn_op_group &o, int n)
{
    const struct kn_plan *p = &o.plan;
    int n_absent, n_first = block_absent_outputs(o, n, &n_absent), before = 0;
    for (int e0 = 0; e0 < n; e0 += (int)blockDim.x) {
        int e = e0 + (int)threadIdx.x, first = e < n ? p->first[e] : 0, end = e < n ? p->first[e + 1] : 0, all;
        bool absent = e < n && is_absent(o, e);
        int absent_before = before + block_sum_before(absent ? end - first : 0, &all);
        int at = absent ? absent_before : n_first + first - absent_before;
        for (int k = first; k < end; k++, at++) {
            int32_t pair = p->pair[k];
            o.out[k] = at;
            o.place[pair] = at;
            if (o.weight)
                o.out_weight[at] = o.weight[pair];
        }
        before += all;
    }
    __syncthreads(); /* thread 0 makes the outputs of all threads visible to readers of `done` */
    if (threadIdx.x == 0) {
        *o.n_absent = n_absent;
        if (!n_absent) {
            __threadfence_system();
            *(volatile uint32_t *)o.done = o.turn;
        }
    }
}

/* A thread makes a group.  Groups are copied by words, padding included. */
KN_DEVICE void block_group(const struct kn_op_group &o)
{
    enum { WORDS = sizeof(struct kn_group) / sizeof(uint64_t) };
    static_assert(sizeof(struct kn_group) % sizeof(uint64_t) == 0, "a group is whole words");
    const struct kn_plan *p = &o.plan;
    int n = *p->n_expert;
    for (int i = (int)threadIdx.x; i < o.n_group; i += (int)blockDim.x) {
        int e = i < n ? p->expert[i] - o.expert0 : 0;
        struct kn_group *g = &o.group[i];
        const uint64_t *from = (const uint64_t *)&o.expert[e];
        for (int k = 0; k < WORDS; k++)
            ((uint64_t *)g)[k] = from[k];
        g->bias = e;
        g->first = i < n ? p->first[i] : 0;
        g->n = i < n && !(o.out && is_absent(o, i)) ? p->first[i + 1] - p->first[i] : 0;
    }
    if (threadIdx.x == 0 && o.n_sum)
        *o.n_sum += n;
    if (o.out)
        block_number_outputs(o, n);
}

/* ---- the kernels of these ------------------------------------------------------------------------------------ */

KN_KERNEL(route, THREADS, 2)(const __grid_constant__ struct kn_op_route o) { block_route(o, blockIdx.x); }
KN_KERNEL(plan, THREADS, 2)(const __grid_constant__ struct kn_op_plan o) { block_plan(o); }
KN_KERNEL(guess, THREADS, 2)(const __grid_constant__ struct kn_op_guess o) { block_guess(o); }
KN_KERNEL(group, THREADS, 2)(const __grid_constant__ struct kn_op_group o) { block_group(o); }

/* Lists the choices of all rows, by one block. */
KN_DEVICE void block_list(const struct kn_cuda_choice &c)
{
    if (c.has & 1u << KN_OP_PLAN)
        block_plan(c.plan);
    if (c.has & 1u << KN_OP_GUESS)
        block_guess(c.guess);
    if (c.has & 1u << KN_OP_GROUP) {
        __syncthreads();
        block_group(c.group);
    }
}

/* Grid: rows.  The last block to have routed its row lists the choices of all. */
KN_KERNEL(choose, THREADS, 2)(const __grid_constant__ struct kn_cuda_choice c)
{
    block_route(c.route, blockIdx.x);
    if (block_is_last(c.count, (int)gridDim.x))
        block_list(c);
}

/* Grid as of products, of one row.  The last block routes the row. */
template <class W> KN_DEVICE void choose_by_product(const struct kn_op_products &p, const struct kn_cuda_choice &c)
{
    block_product<W, 1>(p.product[blockIdx.z]);
    if (!block_is_last(c.count, (int)(gridDim.x * gridDim.z)))
        return;
    block_route(c.route, 0);
    __syncthreads();
    block_list(c);
}

#define CHOOSE(F)                                                                                                      \
    KN_KERNEL(choose_##F, KN_CUDA_SLOTS * 4, 2)                                                                        \
    (const __grid_constant__ struct kn_op_products p, const __grid_constant__ struct kn_cuda_choice c)                 \
    {                                                                                                                  \
        choose_by_product<weights_##F>(p, c);                                                                          \
    }
CHOOSE(F32)
CHOOSE(F16)
CHOOSE(BF16)

/* ---- activation --------------------------------------------------------------------------------------------- */

/* Grid: parts of a group, groups. */
KN_KERNEL(activate, THREADS, 2)(const __grid_constant__ struct kn_op_gate_up o)
{
    const struct kn_group *g = &o.group[blockIdx.y];
    int n = g->n;
    for (int i = (int)blockIdx.x; i < n; i += (int)gridDim.x)
        block_activate(o, *g, g->first + i, 0, o.d_act);
}

/* ---- the sum ------------------------------------------------------------------------------------------------ */

KN_DEVICE void block_combine(const struct kn_op_combine &o, size_t row)
{
    size_t n = (size_t)o.d_model;
    if (o.rows.status[row])
        return;
    float *sums = o.scratch.x + row * o.scratch.stride, *shared = o.shared ? o.shared + row * n : NULL;
    float by = o.shared_gate ? sigmoid(o.shared_gate[row]) : 1.0f;
    bool apart = o.expert_norm; /* the shared expert is added after a norm */
    if (o.shared && o.shared_norm)
        block_rms_norm(shared, o.shared_norm, o.eps, o.d_model, shared);
    for (size_t k = threadIdx.x; k < n; k += THREADS) {
        float sum = 0;
        for (int i = 0; i < o.n_used; i++) {
            size_t pair = row * (size_t)o.n_used + (size_t)i;
            float *y = &o.y[(o.place ? (size_t)o.place[pair] : pair) * n + k];
            if (o.down_bias)
                *y = *y + o.down_bias[(size_t)o.id[pair] * n + k];
            sum = fmaf(o.weight ? o.weight[pair] : 1.0f, *y, sum);
        }
        if (o.shared && !apart)
            sum = fmaf(by, shared[k], sum);
        sums[k] = sum;
    }
    __syncthreads();
    if (apart) {
        block_rms_norm(sums, o.expert_norm, o.eps, o.d_model, sums);
        for (size_t k = threadIdx.x; o.shared && k < n; k += THREADS)
            sums[k] = fmaf(by, shared[k], sums[k]);
        __syncthreads();
    }
    if (o.sum_norm)
        block_rms_norm(sums, o.sum_norm, o.eps, o.d_model, sums);
    for (size_t k = threadIdx.x; k < n; k += THREADS)
        o.x[row * n + k] = fmaf(o.sum_scale, sums[k], o.x[row * n + k]);
}

KN_KERNEL(combine, THREADS, 2)(const __grid_constant__ struct kn_op_combine o) { block_combine(o, blockIdx.x); }

KN_KERNEL(combine_norm, THREADS, 2)
(const __grid_constant__ struct kn_op_combine o, const __grid_constant__ struct kn_op_add_norm_code next)
{
    block_combine(o, blockIdx.x);
    __syncthreads();
    block_add_norm_code(next, blockIdx.x);
}
