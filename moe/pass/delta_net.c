/* A gated delta net layer: norm, projections, convolution, state update of each value head, gate, output projection,
 * residual add.
 *
 * The order of arithmetic is that of one token at a time (kernels.h) for any batch: the tokens of a state are computed
 * one after the other, and threads work on different heads and states.  Draft rows run on a copy of a head's state.  If
 * a draft row does not continue the row computed just before it, the copy is made again and the path to the row
 * recomputed.
 *
 * Bytes of a decode row with 32 heads of 128 by 128: 2 MiB of state read and written in each layer, while the layer's
 * projections read 19 MiB (Q4_K, d_model 2048).  A prefill chunk reads the state once. */
#include "moe/pass/pass.h"

#include <string.h>

#define L2_EPS 1e-6f /* added to the squared length of queries and keys, as in training */
#define LIST   32    /* steps of a head that one kernel call computes, at most */

/* The delta net layer that is being computed. */
struct delta_job {
    struct moe_context *c;
    struct moe_states *s;
    const struct moe_desc *d;
    const struct moe_layer *l;
};

static float *state_head(const struct moe_context *c, int state, int nth, int head)
{
    const struct moe_desc *d = &c->model->desc;
    size_t inputs = kn_align_up((size_t)(d->n_tap - 1) * (size_t)moe_d_mix(d), 16);
    size_t one = kn_delta_floats(d->d_state_key, d->d_state_value);
    return moe_state_layer(&c->states, state, nth) + inputs + (size_t)head * one;
}

/* The inputs of a step in the nth delta net: [d_in], in the batch's buffer or, for a pending row, in s->kept. */
static float *step_in(const struct moe_states *s, int nth, const struct moe_step *t)
{
    size_t d_in = (size_t)s->d_in;
    return t->row >= 0 ? s->in + (size_t)t->row * d_in
                       : s->kept + ((size_t)nth * (size_t)s->n_kept + (size_t)t->kept) * d_in;
}

/* ---- inputs ------------------------------------------------------------------------------------------------ */

/* Splits one row of the product with l->mixed: for each key head in turn its query, key, values and gates.  Older files
 * have this single matrix in place of mix and z. */
static void part_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct delta_job *j = arg;
    const struct moe_desc *d = j->d;
    int n_key = d->n_key_head, d_group = d->n_value_head / n_key * d->d_state_value, d_value = d_group * n_key;
    const float *from = j->s->mixed + (size_t)row * (size_t)(moe_d_mix(d) + d_value);
    float *q = j->s->in + (size_t)row * (size_t)j->s->d_in, *k = q + n_key * d->d_state_key;
    float *v = k + n_key * d->d_state_key, *z = j->s->z + (size_t)row * (size_t)d_value;
    for (int h = 0; h < n_key; h++, from += 2 * d->d_state_key + 2 * d_group) {
        memcpy(q + h * d->d_state_key, from, (size_t)d->d_state_key * sizeof *q);
        memcpy(k + h * d->d_state_key, from + d->d_state_key, (size_t)d->d_state_key * sizeof *k);
        memcpy(v + h * d_group, from + 2 * d->d_state_key, (size_t)d_group * sizeof *v);
        memcpy(z + h * d_group, from + 2 * d->d_state_key + d_group, (size_t)d_group * sizeof *z);
    }
}

static struct moe_product product(const struct moe_context *c, const struct kn_mat *w, int at)
{
    struct moe_product p = moe_product(&c->norm, w, c->states.in + at, c->n_row);
    p.mul.y_stride = (size_t)c->states.d_in;
    return p;
}

static void project(struct delta_job *j)
{
    struct moe_context *c = j->c;
    const struct moe_layer *l = j->l;
    int n = 0, d_mix = moe_d_mix(j->d);
    if (l->mixed.n_out) {
        c->product[n++] = moe_product(&c->norm, &l->mixed, j->s->mixed, c->n_row);
    } else {
        c->product[n++] = product(c, &l->mix, 0);
        c->product[n++] = moe_product(&c->norm, &l->z, j->s->z, c->n_row);
    }
    if (l->ba.n_out) {
        c->product[n++] = product(c, &l->ba, d_mix);
    } else {
        c->product[n++] = product(c, &l->beta, d_mix);
        c->product[n++] = product(c, &l->alpha, d_mix + j->d->n_value_head);
    }
    moe_products(c, n);
    if (l->mixed.n_out)
        kn_parallel_for(c->team, c->n_row, part_row, j);
}

/* ---- convolution ------------------------------------------------------------------------------------------- */

static bool is_dead(const struct moe_context *c, const struct moe_step *t) { return t->row >= 0 && c->status[t->row]; }

static const struct moe_flow *flow_of_step(const struct moe_states *s, int step)
{
    const struct moe_flow *f = s->flow;
    while (step >= f->first + f->n_text + f->n_draft)
        f++;
    return f;
}

/* Sets x[0 .. n_tap - 1] to the convolution inputs of the last n_tap tokens up to this step, its own last.  Those
 * before the steps of this pass are in the state; before the sequence's first token they are zeros. */
static void find_taps(const struct delta_job *j, int step, const float **x)
{
    const struct moe_states *s = j->s;
    int nth = j->l->nth, d_mix = moe_d_mix(j->d), at = step, n = j->d->n_tap - 1;
    const float *past = moe_state_layer(s, flow_of_step(s, step)->state, nth);
    int left = n;
    for (; left >= 0 && at >= 0; at = s->step[at].before)
        x[left--] = step_in(s, nth, &s->step[at]);
    for (int i = n - 1; left >= 0; i--)
        x[left--] = past + (size_t)i * (size_t)d_mix;
}

static float softplus(float x) { return x > 20 ? x : (float)kn_log(1 + kn_exp((double)x)); }

/* Computes beta, out[0 .. n - 1], and the decay, out[n .. 2 n - 1], of the n value heads from the projected values. */
static void find_rates(const struct delta_job *j, const float *in, float *out)
{
    const struct moe_desc *d = j->d;
    int n = d->n_value_head, ratio = n / d->n_key_head;
    for (int h = 0; h < n; h++) {
        int at = d->delta_ba ? h / ratio * 2 * ratio + h % ratio : h, alpha = at + (d->delta_ba ? ratio : n);
        out[h] = moe_sigmoid(in[at]);
        out[n + h] = kn_expf(j->l->decay[h] * softplus(in[alpha] + j->l->decay_bias[h]));
    }
}

static void convolve_step(void *arg, int step, int thread)
{
    (void)thread;
    const struct delta_job *j = arg;
    const struct moe_desc *d = j->d;
    const struct kn_ops *ops = j->c->model->ops;
    const struct moe_step *t = &j->s->step[step];
    const float *x[MOE_MAX_TAP];
    int d_mix = moe_d_mix(d);
    if (is_dead(j->c, t))
        return;
    float *q = j->s->out + (size_t)step * (size_t)j->s->d_in, *k = q + d->n_key_head * d->d_state_key;
    find_taps(j, step, x);
    ops->conv(x, j->l->taps, d->n_tap, d_mix, q);
    for (int at = 0; at < d->n_key_head * d->d_state_key; at += d->d_state_key) {
        ops->rms_norm(q + at, j->s->unit_q, L2_EPS / (float)d->d_state_key, d->d_state_key, q + at);
        ops->rms_norm(k + at, j->s->unit_k, L2_EPS / (float)d->d_state_key, d->d_state_key, k + at);
    }
    find_rates(j, x[d->n_tap - 1] + d_mix, q + d_mix);
}

/* ---- heads ------------------------------------------------------------------------------------------------- */

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
    const struct delta_job *j = h->j;
    const struct moe_desc *d = j->d;
    const struct kn_ops *ops = j->c->model->ops;
    ops->delta(&(struct kn_delta){ h->state, h->row, h->n, d->d_state_key, d->d_state_value });
    for (int i = 0; i < h->n; i++) {
        const struct kn_delta_row *r = &h->row[i];
        if (!r->out)
            continue;
        size_t z = ((size_t)h->z_row[i] * (size_t)d->n_value_head + (size_t)h->head) * (size_t)d->d_state_value;
        ops->rms_norm(r->out, j->l->out_norm, d->eps, d->d_state_value, r->out);
        ops->swiglu(j->s->z + z, r->out, d->d_state_value, r->out);
    }
    h->n = 0;
}

/* Adds a step to the list, unless its row has failed.  out: store the step's output (pending rows have none); true once
 * per step and head. */
static void add_step(struct head *h, int step, bool out)
{
    const struct delta_job *j = h->j;
    const struct moe_desc *d = j->d;
    const struct moe_step *t = &j->s->step[step];
    if (is_dead(j->c, t))
        return;
    if (h->n == LIST)
        run_list(h);
    int ratio = d->n_value_head / d->n_key_head, d_mix = moe_d_mix(d);
    int key = d->delta_tiled ? h->head % d->n_key_head : h->head / ratio;
    const float *q = j->s->out + (size_t)step * (size_t)j->s->d_in, *k = q + d->n_key_head * d->d_state_key;
    const float *v = k + d->n_key_head * d->d_state_key, *beta = q + d_mix, *decay = beta + d->n_value_head;
    out &= t->row >= 0;
    float *to = out ? j->c->att.x + (size_t)t->row * j->c->att.stride + (size_t)(h->head * d->d_state_value) : NULL;
    h->z_row[h->n] = t->row;
    h->row[h->n++] = (struct kn_delta_row){ .q = q + key * d->d_state_key,
                                            .k = k + key * d->d_state_key,
                                            .v = v + h->head * d->d_state_value,
                                            .decay = decay[h->head],
                                            .beta = beta[h->head],
                                            .out = to };
}

/* Adds the draft steps on the path from the sequence's last step to `step`, inclusive, in order, without outputs; none
 * if `step` is no draft. */
static void add_path(struct head *h, const struct moe_flow *f, int step)
{
    const struct moe_step *all = h->j->s->step;
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
static void run_drafts(struct head *h, const struct moe_flow *f, float *work)
{
    const struct moe_states *s = h->j->s;
    const float *text = h->state;
    int at = -1, end = f->first + f->n_text + f->n_draft;
    h->state = work;
    for (int i = end - f->n_draft; i < end; i++) {
        int before = s->step[i].before;
        if (at < 0 || before != at) {
            run_list(h);
            memcpy(work, text, kn_delta_floats(h->j->d->d_state_key, h->j->d->d_state_value) * sizeof *work);
            add_path(h, f, before);
        }
        add_step(h, i, true);
        at = i;
    }
    run_list(h);
}

/* Number of the state that becomes a copy of the state after this step; 0: none. */
static int copy_of(const struct delta_job *j, int step)
{
    int row = j->s->step[step].row;
    return row >= 0 ? j->c->batch->row[row].copy_to : 0;
}

static void run_head(const struct delta_job *j, const struct moe_flow *f, int head, int thread)
{
    struct head h = { .j = j, .head = head, .state = state_head(j->c, f->state, j->l->nth, head) };
    size_t floats = kn_delta_floats(j->d->d_state_key, j->d->d_state_value);
    for (int i = f->first; i < f->first + f->n_text; i++) {
        int copy = copy_of(j, i);
        add_step(&h, i, true);
        if (copy) {
            run_list(&h);
            memcpy(state_head(j->c, copy, j->l->nth, head), h.state, floats * sizeof *h.state);
        }
    }
    run_list(&h);
    if (f->n_draft)
        run_drafts(&h, f, j->s->work + (size_t)thread * floats);
}

static void put_past(const struct delta_job *j, int step, int state)
{
    size_t d_mix = (size_t)moe_d_mix(j->d);
    float *past = moe_state_layer(j->s, state, j->l->nth);
    const float *x[MOE_MAX_TAP];
    find_taps(j, step, x);
    for (int i = 0; i < j->d->n_tap - 1; i++) /* ascending: x[i + 1] lies in `past` behind entry i, or outside */
        memmove(past + (size_t)i * d_mix, x[i + 1], d_mix * sizeof *past);
}

/* Stores the last n_tap - 1 convolution inputs in the state for the next pass.  The copies (copy_to) are filled first,
 * since their inputs may come from the state's old ones. */
static void keep_past(const struct delta_job *j, const struct moe_flow *f)
{
    for (int i = f->first; i < f->first + f->n_text; i++)
        if (copy_of(j, i))
            put_past(j, i, copy_of(j, i));
    if (f->n_text)
        put_past(j, f->first + f->n_text - 1, f->state);
}

/* Items: all heads of the first flow, of the second .., then for each flow the convolution inputs (keep_past). */
static void flow_item(void *arg, int item, int thread)
{
    const struct delta_job *j = arg;
    int n_head = j->d->n_value_head, n_flow = j->s->n_flow;
    if (item < n_flow * n_head)
        run_head(j, &j->s->flow[item / n_head], item % n_head, thread);
    else
        keep_past(j, &j->s->flow[item - n_flow * n_head]);
}

/* ---- the layer ------------------------------------------------------------------------------------------------ */

void moe_delta_steps(struct moe_context *c, int layer)
{
    struct delta_job job = { c, &c->states, &c->model->desc, &c->model->layer[layer] };
    kn_parallel_for(c->team, c->states.n_step, convolve_step, &job);
    kn_parallel_for(c->team, c->states.n_flow * (job.d->n_value_head + 1), flow_item, &job);
}

/* Copies the inputs of a draft row to s->kept.  The pending rows there have been computed: their memory is free. */
static void keep_draft(void *arg, int row, int thread)
{
    (void)thread;
    const struct delta_job *j = arg;
    struct moe_states *s = j->s;
    struct moe_step t = { .row = -1, .kept = s->kept_of[row] };
    if (t.kept >= 0)
        memcpy(step_in(s, j->l->nth, &t), s->in + (size_t)row * (size_t)s->d_in, (size_t)s->d_in * sizeof(float));
}

void moe_delta(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    struct delta_job job = { c, &c->states, &c->model->desc, l };
    moe_rows_norm(c, l->attn_norm, moe_delta_acts(l), NULL, c->n_row);
    project(&job);
    moe_delta_steps(c, layer);
    if (c->states.n_draft)
        kn_parallel_for(c->team, c->n_row, keep_draft, &job);
    moe_rows_code(c, &c->att, moe_act_bit(&l->o), job.d->n_value_head * job.d->d_state_value, NULL, c->n_row);
    c->product[0] = moe_product(&c->att, &l->o, c->y, c->n_row);
    moe_products(c, 1);
    moe_rows_add(c, c->y, NULL, NULL);
}
