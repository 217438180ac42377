/* Gated delta nets: convolution, and the update of each value head's state.
 *
 * The order of arithmetic is that of one token at a time (kernels.h) for any batch: the tokens of a state are computed
 * one after the other, and threads work on different heads and states.  Draft rows run on a copy of a head's state.  If
 * a draft row does not continue the row computed just before it, the copy is made again and the path to the row
 * recomputed.
 *
 * Bytes of a decode row with 32 heads of 128 by 128: 2 MiB of state read and written in each layer, while the layer's
 * projections read 19 MiB (Q4_K, d_model 2048).  A prefill chunk reads the state once. */
#include "kernels/cpu/pass/host.h"

#include <string.h>

#define L2_EPS 1e-6f /* added to the squared length of queries and keys, as in training */
#define LIST   32    /* steps of a head that one kernel call computes, at most */

/* ---- inputs ------------------------------------------------------------------------------------------------ */

static void part_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_op_part *o = arg;
    const struct kn_net *net = &o->net;
    int n_key = net->n_key_head, d_group = net->n_value_head / n_key * net->d_value, d_value = d_group * n_key;
    const float *from = o->from + (size_t)row * (size_t)(kn_net_mix(net) + d_value);
    float *q = o->in + (size_t)row * (size_t)kn_net_in(net), *k = q + n_key * net->d_key;
    float *v = k + n_key * net->d_key, *z = o->z + (size_t)row * (size_t)d_value;
    for (int h = 0; h < n_key; h++, from += 2 * net->d_key + 2 * d_group) {
        memcpy(q + h * net->d_key, from, (size_t)net->d_key * sizeof *q);
        memcpy(k + h * net->d_key, from + net->d_key, (size_t)net->d_key * sizeof *k);
        memcpy(v + h * d_group, from + 2 * net->d_key, (size_t)d_group * sizeof *v);
        memcpy(z + h * d_group, from + 2 * net->d_key + d_group, (size_t)d_group * sizeof *z);
    }
}

void kn_host_part(struct kn_host_queue *q, const struct kn_op_part *o)
{
    kn_parallel_for(q->team, o->n, part_row, (void *)o);
}

/* The inputs of a layer's steps, in kn_op_conv and kn_op_delta. */
struct inputs {
    const struct kn_net *net;
    const struct kn_flows *flows;
    const float *in, *kept;
    const uint8_t *state;
    size_t state_bytes;
};

/* The inputs of a step: [kn_net_in()], in the batch's buffer or, for a pending row, among the kept ones. */
static const float *step_in(const struct inputs *i, const struct kn_step *t)
{
    size_t d_in = (size_t)kn_net_in(i->net);
    return t->row >= 0 ? i->in + (size_t)t->row * d_in : i->kept + (size_t)t->kept * d_in;
}

static bool is_dead(const struct kn_flows *f, const struct kn_step *t) { return t->row >= 0 && f->status[t->row]; }

static const struct kn_flow *flow_of_step(const struct kn_flows *flows, int step)
{
    const struct kn_flow *f = flows->flow;
    while (step >= f->first + f->n_text + f->n_draft)
        f++;
    return f;
}

/* Sets x[0 .. n_tap - 1] to the convolution inputs of the last n_tap tokens up to this step, its own last.  Those
 * before the steps of this pass are in the state; before the sequence's first token they are zeros. */
static void find_taps(const struct inputs *in, int step, const float **x)
{
    int at = step, n = in->net->n_tap - 1, left = n;
    size_t state = (size_t)flow_of_step(in->flows, step)->state;
    const float *past = (const float *)(const void *)(in->state + state * in->state_bytes);
    for (; left >= 0 && at >= 0; at = in->flows->step[at].before)
        x[left--] = step_in(in, &in->flows->step[at]);
    for (int i = n - 1; left >= 0; i--)
        x[left--] = past + (size_t)i * (size_t)kn_net_mix(in->net);
}

/* ---- convolution ------------------------------------------------------------------------------------------- */

struct conv_job {
    const struct kn_ops *ops;
    const struct kn_op_conv *o;
    struct inputs in;
};

static float softplus(float x) { return x > 20 ? x : (float)kn_log(1 + kn_exp((double)x)); }

/* Computes beta, out[0 .. n - 1], and the decay, out[n .. 2 n - 1], of the n value heads from the projected values. */
static void find_rates(const struct kn_op_conv *o, const float *in, float *out)
{
    int n = o->net.n_value_head, ratio = n / o->net.n_key_head;
    for (int h = 0; h < n; h++) {
        int at = o->net.by_key_head ? h / ratio * 2 * ratio + h % ratio : h;
        int alpha = at + (o->net.by_key_head ? ratio : n);
        out[h] = kn_sigmoid(in[at]);
        out[n + h] = kn_expf(o->decay[h] * softplus(in[alpha] + o->decay_bias[h]));
    }
}

static void convolve_step(void *arg, int step, int thread)
{
    (void)thread;
    const struct conv_job *j = arg;
    const struct kn_net *net = &j->o->net;
    const float *x[KN_MAX_TAP];
    int d_mix = kn_net_mix(net);
    if (is_dead(&j->o->flows, &j->o->flows.step[step]))
        return;
    float *q = j->o->out + (size_t)step * (size_t)kn_net_in(net), *k = q + net->n_key_head * net->d_key;
    find_taps(&j->in, step, x);
    j->ops->conv(x, j->o->taps, net->n_tap, d_mix, q);
    for (int at = 0; at < net->n_key_head * net->d_key; at += net->d_key) {
        j->ops->rms_norm(q + at, j->o->unit_q, L2_EPS / (float)net->d_key, net->d_key, q + at);
        j->ops->rms_norm(k + at, j->o->unit_k, L2_EPS / (float)net->d_key, net->d_key, k + at);
    }
    find_rates(j->o, x[net->n_tap - 1] + d_mix, q + d_mix);
}

void kn_host_conv(struct kn_host_queue *q, const struct kn_op_conv *o)
{
    struct conv_job job = { q->ops, o, { &o->net, &o->flows, o->in, o->kept, o->state, o->state_bytes } };
    kn_parallel_for(q->team, o->flows.n_step, convolve_step, &job);
}

/* ---- heads ------------------------------------------------------------------------------------------------- */

struct delta_job {
    const struct kn_host_queue *q;
    const struct kn_op_delta *o;
    struct inputs in;
};

static float *state_past(const struct delta_job *j, int state)
{
    return (float *)(void *)(j->o->state + (size_t)state * j->o->state_bytes);
}

static float *state_head(const struct delta_job *j, int state, int head)
{
    const struct kn_net *net = &j->o->net;
    return state_past(j, state) + kn_net_past_floats(net) + (size_t)head * kn_delta_floats(net->d_key, net->d_value);
}

/* A list of steps to compute in one head of one state. */
struct head {
    const struct delta_job *j;
    int head, n;
    float *state;
    struct kn_delta_row row[LIST];
    int32_t z_row[LIST]; /* row of the gate z; -1: the step has no output */
};

/* Computes the listed steps and empties the list; normalises each output and gates it by silu(z). */
static void run_list(struct head *h)
{
    const struct kn_op_delta *o = h->j->o;
    const struct kn_net *net = &o->net;
    const struct kn_ops *ops = h->j->q->ops;
    ops->delta(&(struct kn_delta){ h->state, h->row, h->n, net->d_key, net->d_value });
    for (int i = 0; i < h->n; i++) {
        const struct kn_delta_row *r = &h->row[i];
        if (!r->out)
            continue;
        size_t z = ((size_t)h->z_row[i] * (size_t)net->n_value_head + (size_t)h->head) * (size_t)net->d_value;
        ops->rms_norm(r->out, o->out_norm, o->eps, net->d_value, r->out);
        ops->swiglu(o->z + z, r->out, net->d_value, r->out);
    }
    h->n = 0;
}

/* Adds a step to the list, unless its row has failed.  out: store the step's output (pending rows have none); true once
 * per step and head. */
static void add_step(struct head *h, int step, bool out)
{
    const struct kn_op_delta *o = h->j->o;
    const struct kn_net *net = &o->net;
    const struct kn_step *t = &o->flows.step[step];
    if (is_dead(&o->flows, t))
        return;
    if (h->n == LIST)
        run_list(h);
    int key = net->tiled ? h->head % net->n_key_head : h->head / (net->n_value_head / net->n_key_head);
    const float *q = o->mixed + (size_t)step * (size_t)kn_net_in(net), *k = q + net->n_key_head * net->d_key;
    const float *v = k + net->n_key_head * net->d_key, *beta = q + kn_net_mix(net), *decay = beta + net->n_value_head;
    out &= t->row >= 0;
    float *to = out ? o->out + (size_t)t->row * o->out_stride + (size_t)(h->head * net->d_value) : NULL;
    h->z_row[h->n] = t->row;
    h->row[h->n++] = (struct kn_delta_row){ .q = q + key * net->d_key,
                                            .k = k + key * net->d_key,
                                            .v = v + h->head * net->d_value,
                                            .decay = decay[h->head],
                                            .beta = beta[h->head],
                                            .out = to };
}

/* Adds the draft steps on the path from the sequence's last step to `step`, inclusive, in order, without outputs; none
 * if `step` is no draft. */
static void add_path(struct head *h, const struct kn_flow *f, int step)
{
    const struct kn_step *all = h->j->o->flows.step;
    int first = f->first + f->n_text, depth = 0;
    for (int at = step; at >= first; at = all[at].before)
        depth++;
    for (; depth > 0; depth--) {
        int at = step;
        for (int i = 1; i < depth; i++)
            at = all[at].before;
        add_step(h, at, false);
    }
}

/* Computes the draft steps on `work`, a copy of the state.  A step that continues the step computed just before it uses
 * the copy as it is; otherwise the state is copied again and the path to the step's parent computed once more. */
static void run_drafts(struct head *h, const struct kn_flow *f, float *work)
{
    const struct kn_op_delta *o = h->j->o;
    const float *text = h->state;
    int at = -1, end = f->first + f->n_text + f->n_draft;
    h->state = work;
    for (int i = end - f->n_draft; i < end; i++) {
        int before = o->flows.step[i].before;
        if (at < 0 || before != at) {
            run_list(h);
            memcpy(work, text, kn_delta_floats(o->net.d_key, o->net.d_value) * sizeof *work);
            add_path(h, f, before);
        }
        add_step(h, i, true);
        at = i;
    }
    run_list(h);
}

static void run_head(const struct delta_job *j, const struct kn_flow *f, int head, int thread)
{
    struct head h = { .j = j, .head = head, .state = state_head(j, f->state, head) };
    size_t floats = kn_delta_floats(j->o->net.d_key, j->o->net.d_value);
    for (int i = f->first; i < f->first + f->n_text; i++) {
        int copy = j->o->flows.step[i].copy_to;
        add_step(&h, i, true);
        if (copy) {
            run_list(&h);
            memcpy(state_head(j, copy, head), h.state, floats * sizeof *h.state);
        }
    }
    run_list(&h);
    if (f->n_draft)
        run_drafts(&h, f, j->q->work + (size_t)thread * j->q->max_state_floats);
}

static void put_past(const struct delta_job *j, int step, int state)
{
    size_t d_mix = (size_t)kn_net_mix(&j->o->net);
    float *past = state_past(j, state);
    const float *x[KN_MAX_TAP];
    find_taps(&j->in, step, x);
    for (int i = 0; i < j->o->net.n_tap - 1; i++) /* ascending: x[i + 1] lies in `past` behind entry i, or outside */
        memmove(past + (size_t)i * d_mix, x[i + 1], d_mix * sizeof *past);
}

/* Stores the last n_tap - 1 convolution inputs in the state for the next pass.  The copies (copy_to) are filled first,
 * since their inputs may come from the state's old ones. */
static void keep_past(const struct delta_job *j, const struct kn_flow *f)
{
    for (int i = f->first; i < f->first + f->n_text; i++)
        if (j->o->flows.step[i].copy_to)
            put_past(j, i, j->o->flows.step[i].copy_to);
    if (f->n_text)
        put_past(j, f->first + f->n_text - 1, f->state);
}

/* Items: all heads of the first flow, of the second .., then for each flow the convolution inputs (keep_past). */
static void flow_item(void *arg, int item, int thread)
{
    const struct delta_job *j = arg;
    const struct kn_flows *flows = &j->o->flows;
    int n_head = j->o->net.n_value_head;
    if (item < flows->n_flow * n_head)
        run_head(j, &flows->flow[item / n_head], item % n_head, thread);
    else
        keep_past(j, &flows->flow[item - flows->n_flow * n_head]);
}

void kn_host_delta(struct kn_host_queue *q, const struct kn_op_delta *o)
{
    struct delta_job job = { q, o, { &o->net, &o->flows, o->in, o->kept, o->state, o->state_bytes } };
    kn_assert(kn_delta_floats(o->net.d_key, o->net.d_value) <= q->max_state_floats);
    kn_parallel_for(q->team, o->flows.n_flow * (o->net.n_value_head + 1), flow_item, &job);
}

static void keep_draft_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_op_keep_draft *o = arg;
    size_t d = (size_t)o->d;
    if (o->to[row] >= 0)
        memcpy(o->kept + (size_t)o->to[row] * d, o->in + (size_t)row * d, d * sizeof *o->kept);
}

void kn_host_keep_draft(struct kn_host_queue *q, const struct kn_op_keep_draft *o)
{
    kn_parallel_for(q->team, o->n, keep_draft_row, (void *)o);
}
