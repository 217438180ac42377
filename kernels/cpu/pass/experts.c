/* FFNs on groups of rows: gate and up with activation, down, and the sum over a row's experts.
 *
 * Cost of one layer at batch 1: n_used * 3 * d_model * d_expert weights at 4.5 bits, read once.  A parallel region costs a
 * few microseconds, against some 100 for reading the weights. */
#include "kernels/cpu/pass/host.h"

#include <string.h>

#define TURNS 256 /* values of gate, and of up, that activate_turns() separates at a time */

/* ---- activation -------------------------------------------------------------------------------------------- */

struct gate_up_job {
    const struct kn_host_queue *q;
    const struct kn_op_gate_up *o;
};

/* x = gelu(gate) * up (pass.h); gate is overwritten. */
static void geglu(const struct kn_ops *ops, float *gate, const float *up, int n, float *x)
{
    const float twice = 1.5957691216057308f, cube = 0.044715f;
    for (int i = 0; i < n; i++)
        x[i] = twice * (gate[i] + cube * (gate[i] * gate[i] * gate[i]));
    ops->gate(gate, x, n);
    for (int i = 0; i < n; i++)
        x[i] = gate[i] * up[i];
}

/* Activation of values first .. first + n - 1 of one row, after an expert's biases, if it has any, are added. */
static void activate_part(const struct gate_up_job *j, const struct kn_group *g, int row, int first, int n, float *gate,
                          float *up)
{
    const struct kn_op_gate_up *o = j->o;
    const struct kn_ops *ops = j->q->ops;
    float *x = o->act.x + (size_t)row * o->act.stride + first;
    for (int i = 0; o->in_scale && i < n; i++) {
        gate[i] = gate[i] * o->in_scale[row];
        up[i] = up[i] * o->in_scale[row];
    }
    if (o->gate_bias) {
        size_t own = (size_t)g->bias * (size_t)o->d_act + (size_t)first;
        ops->add(gate, o->gate_bias + own, n);
        ops->add(up, o->up_bias + own, n);
    }
    if (o->activation == KN_GEGLU)
        geglu(ops, gate, up, n, x);
    else if (o->limit > 0)
        ops->swiglu_clamped(gate, up, o->alpha, o->limit, n, x);
    else
        ops->swiglu(gate, up, n, x);
}

/* Activation of one row with alternating gate and up values: first separates them, TURNS of each at a time. */
static void activate_turns(const struct gate_up_job *j, const struct kn_group *g, int row)
{
    const float *both = j->o->gate + (size_t)row * (size_t)j->o->d_act * 2;
    float gate[TURNS], up[TURNS];
    for (int first = 0, n; first < j->o->d_act; first += n) {
        n = kn_min(TURNS, j->o->d_act - first);
        for (int i = 0; i < n; i++) {
            gate[i] = both[2 * (first + i)];
            up[i] = both[2 * (first + i) + 1];
        }
        activate_part(j, g, row, first, n, gate, up);
    }
}

/* The group of an item: the last one that begins at or before it. */
static int group_of(const int *item0, int n_group, int item)
{
    int low = 0, high = n_group;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (item0[mid] <= item)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void activate_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct gate_up_job *j = arg;
    const struct kn_op_gate_up *o = j->o;
    int e = group_of(j->q->item0, o->n_group, item);
    const struct kn_group *g = &o->group[e];
    int part = g->first + item - j->q->item0[e], row = o->pair ? o->pair[part] : part;
    size_t at = (size_t)row * (size_t)o->d_act;
    if (o->interleaved)
        activate_turns(j, g, row);
    else
        activate_part(j, g, row, 0, o->d_act, o->gate + at, o->up + at);
    kn_host_code_row(j->q->ops, &o->act, o->kinds, o->d_act, row);
}

/* ---- products ---------------------------------------------------------------------------------------------- */

/* The product of matrix w with a group's rows; x_row and y_row: lists of the operation, NULL: part i has row i. */
static struct kn_product group_product(const struct kn_group *g, const struct kn_mat *w, const struct kn_acts *x,
                                       const int32_t *x_row, float *y, const int32_t *y_row)
{
    struct kn_product p = kn_product(x, w, y, g->n);
    p.node = g->node;
    if (x_row)
        p.mul.x_row = x_row + g->first;
    else
        p.mul.x = (const uint8_t *)p.mul.x + (size_t)g->first * p.mul.x_stride;
    if (y_row)
        p.mul.y_row = y_row + g->first;
    else
        p.mul.y += (size_t)g->first * p.mul.y_stride;
    return p;
}

void kn_host_gate_up(struct kn_host_queue *q, const struct kn_op_gate_up *o)
{
    int n = 0, n_item = 0;
    kn_assert(2 * o->n_group <= q->max_product);
    for (int i = 0; i < o->n_group; i++) {
        const struct kn_group *g = &o->group[i];
        q->item0[i] = n_item;
        n_item += g->n;
        q->product[n++] = group_product(g, &g->gate, &o->x, o->row, o->gate, o->pair);
        if (!o->interleaved)
            q->product[n++] = group_product(g, &g->up, &o->x, o->row, o->up, o->pair);
    }
    kn_host_run_products(q, n);
    kn_parallel_for(q->team, n_item, activate_item, &(struct gate_up_job){ q, o });
}

void kn_host_down(struct kn_host_queue *q, const struct kn_op_down *o)
{
    kn_assert(o->n_group <= q->max_product);
    for (int i = 0; i < o->n_group; i++)
        q->product[i] = group_product(&o->group[i], &o->group[i].down, &o->act, o->pair, o->y, o->pair);
    kn_host_run_products(q, o->n_group);
}

/* ---- the sum ----------------------------------------------------------------------------------------------- */

static void combine_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct kn_host_job *j = arg;
    const struct kn_op_combine *o = j->op;
    size_t n = (size_t)o->d_model;
    if (o->rows.status[row])
        return;
    float *sum = o->scratch.x + (size_t)row * o->scratch.stride;
    memset(sum, 0, n * sizeof *sum);
    for (int i = 0; i < o->n_used; i++) {
        size_t pair = (size_t)row * (size_t)o->n_used + (size_t)i;
        float *y = o->y + (o->place ? (size_t)o->place[pair] : pair) * n;
        if (o->down_bias)
            j->ops->add(y, o->down_bias + (size_t)o->id[pair] * n, o->d_model);
        j->ops->add_scaled(sum, o->weight ? o->weight[pair] : 1.0f, y, o->d_model);
    }
    if (o->expert_norm)
        j->ops->rms_norm(sum, o->expert_norm, o->eps, o->d_model, sum);
    if (o->shared) {
        float by = o->shared_gate ? kn_sigmoid(o->shared_gate[row]) : 1.0f, *shared = o->shared + (size_t)row * n;
        if (o->shared_norm)
            j->ops->rms_norm(shared, o->shared_norm, o->eps, o->d_model, shared);
        j->ops->add_scaled(sum, by, shared, o->d_model);
    }
    if (o->sum_norm)
        j->ops->rms_norm(sum, o->sum_norm, o->eps, o->d_model, sum);
    j->ops->add_scaled(o->x + (size_t)row * n, o->sum_scale, sum, o->d_model);
}

void kn_host_combine(struct kn_host_queue *q, const struct kn_op_combine *o)
{
    kn_host_for(q, o->rows.n, combine_row, o);
}
