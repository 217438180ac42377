/* The feed-forward half of a layer: experts, or one dense network.
 *
 * Experts: route, plan, request all distinct experts from the store, prefetch experts for the next layer, compute the
 * shared expert, then compute the experts that have arrived while others are still read: gate and up of all of them in
 * one parallel region, then their activation, then down in another region.
 * Outputs are stored per (row, choice) and added in the order of choices, never in the order of arrival.
 *
 * Cost of one pass at batch 1: n_used * 3 * d_model * d_expert weights at 4.5 bits, read once.  A parallel region costs
 * a few microseconds, against some 100 for reading the weights. */
#include "moe/pass/pass.h"

#include <string.h>

#define TURNS 256 /* values of gate, and of up, that activate_turns() separates at a time */

struct ffn_job {
    struct moe_context *c;
    const struct moe_layer *l;
    const int32_t *pair; /* the item's row in gate, up and acts; NULL: the item itself, and the FFN is no expert */
    struct moe_acts *acts;
    unsigned kinds;
    int d_act;
};

/* ---- activation -------------------------------------------------------------------------------------- */

/* x = gelu(gate) * up, where gelu(g) = g * sigmoid(2 * sqrt(2 / pi) * (g + 0.044715 g^3)): its approximation with tanh,
 * written with the sigmoid.  gate is overwritten. */
static void geglu(const struct moe_context *c, float *gate, const float *up, int n, float *x)
{
    const float twice = 1.5957691216057308f, cube = 0.044715f;
    for (int i = 0; i < n; i++)
        x[i] = twice * (gate[i] + cube * (gate[i] * gate[i] * gate[i]));
    c->model->ops->gate(gate, x, n);
    for (int i = 0; i < n; i++)
        x[i] = gate[i] * up[i];
}

/* Activation of n values; gate may be overwritten. */
static void activate(const struct moe_context *c, float *gate, const float *up, int n, float *x)
{
    const struct moe_desc *d = &c->model->desc;
    if (d->activation == MOE_GEGLU)
        geglu(c, gate, up, n, x);
    else if (d->swiglu_limit > 0)
        c->model->ops->swiglu_clamped(gate, up, d->swiglu_alpha, d->swiglu_limit, n, x);
    else
        c->model->ops->swiglu(gate, up, n, x);
}

/* Activation of values first .. first + n - 1 of one row, after an expert's biases, if it has any, are added. */
static void activate_part(const struct ffn_job *j, int row, int first, int n, float *gate, float *up)
{
    const struct moe_context *c = j->c;
    if (j->pair && j->l->gate_bias) {
        size_t own = (size_t)c->route_id[row] * (size_t)j->d_act + (size_t)first;
        c->model->ops->add(gate, j->l->gate_bias + own, n);
        c->model->ops->add(up, j->l->up_bias + own, n);
    }
    activate(c, gate, up, n, j->acts->x + (size_t)row * j->acts->stride + first);
}

/* Activation of one row with alternating gate and up values: first separates them, TURNS of each at a time. */
static void activate_turns(const struct ffn_job *j, int row)
{
    const float *both = j->c->gate + (size_t)row * (size_t)j->d_act * 2;
    float gate[TURNS], up[TURNS];
    for (int first = 0, n; first < j->d_act; first += n) {
        n = kn_min(TURNS, j->d_act - first);
        for (int i = 0; i < n; i++) {
            gate[i] = both[2 * (first + i)];
            up[i] = both[2 * (first + i) + 1];
        }
        activate_part(j, row, first, n, gate, up);
    }
}

static void activate_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct ffn_job *j = arg;
    struct moe_context *c = j->c;
    int row = j->pair ? j->pair[item] : item;
    size_t at = (size_t)row * (size_t)j->d_act;
    if (j->pair && c->model->gate_up_interleaved)
        activate_turns(j, row);
    else
        activate_part(j, row, 0, j->d_act, c->gate + at, c->up + at);
    moe_code_row(c, j->acts, j->kinds, j->d_act, row);
}

/* ---- work of every row ----------------------------------------------------------------------------------- */

/* y = down(activation(gate, up)) of all normalised rows: a dense layer, or a layer's shared expert with the logit of
 * its gate. */
static void run_wide(struct moe_context *c, const struct moe_layer *l, int d_act, float *y)
{
    c->product[0] = moe_product(&c->norm, &l->gate, c->gate, c->n_row);
    c->product[1] = moe_product(&c->norm, &l->up, c->up, c->n_row);
    if (l->shared_gate.n_out)
        c->product[2] = moe_product(&c->norm, &l->shared_gate, c->shared_weight, c->n_row);
    moe_products(c, l->shared_gate.n_out ? 3 : 2);
    struct ffn_job job = { c, l, NULL, &c->wide, moe_act_bit(&l->down), d_act };
    kn_parallel_for(c->team, c->n_row, activate_item, &job);
    c->product[0] = moe_product(&c->wide, &l->down, y, c->n_row);
    moe_products(c, 1);
}

void moe_dense_ffn(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    moe_rows_norm(c, l->ffn_norm, moe_act_bit(&l->gate) | moe_act_bit(&l->up), NULL, c->n_row);
    run_wide(c, l, c->model->desc.d_ff, c->y);
    moe_rows_add(c, c->y, NULL, l->ffn_out_norm);
}

/* ---- experts ----------------------------------------------------------------------------------------- */

/* The product of matrix i (0 gate, 1 up, 2 down) of the plan's e-th expert with the rows that chose the expert. */
static struct moe_product expert_product(const struct moe_context *c, int e, const struct off_view *view, int i,
                                         const struct moe_acts *in, const int32_t *x_row, float *y)
{
    const struct moe_plan *p = &c->plan;
    struct moe_product m = moe_product(in, &view->matrix[i], y, p->first[e + 1] - p->first[e]);
    m.node = view->node;
    m.mul.x_row = x_row + p->first[e];
    m.mul.y_row = p->pair + p->first[e];
    return m;
}

/* The e-th expert of the plan could not be read: the rows that need it fail with this status, the other rows do not. */
static void fail_rows(struct moe_context *c, int e, int status)
{
    for (int i = c->plan.first[e]; i < c->plan.first[e + 1]; i++)
        c->status[c->plan.row[i]] = status;
}

/* Computes the first n experts of c->arrived for their rows: gate and up, activation, down. */
static void run_arrived(struct moe_context *c, int layer, int n)
{
    const struct moe_plan *p = &c->plan;
    const struct moe_layer *l = &c->model->layer[layer];
    int n_run = 0, n_product = 0;
    for (int i = 0; i < n; i++) {
        int e = c->arrived[i];
        if (c->arrived_status[i] < 0) {
            fail_rows(c, e, c->arrived_status[i]);
            continue;
        }
        c->view[n_run] = c->view[i];
        c->arrived[n_run++] = e;
        c->product[n_product++] = expert_product(c, e, &c->view[i], 0, &c->norm, p->row, c->gate);
        if (!c->model->gate_up_interleaved)
            c->product[n_product++] = expert_product(c, e, &c->view[i], 1, &c->norm, p->row, c->up);
    }
    moe_products(c, n_product);
    for (int i = 0; i < n_run; i++) { /* consecutive experts of the plan have consecutive pairs: one parallel region */
        int begin = p->first[c->arrived[i]];
        while (i + 1 < n_run && c->arrived[i + 1] == c->arrived[i] + 1)
            i++;
        struct ffn_job job = { c, l, p->pair + begin, &c->act, l->down_acts, c->model->desc.d_expert };
        kn_parallel_for(c->team, p->first[c->arrived[i] + 1] - begin, activate_item, &job);
    }
    for (int i = 0; i < n_run; i++)
        c->product[i] = expert_product(c, c->arrived[i], &c->view[i], 2, &c->act, p->pair, c->y);
    moe_products(c, n_run);
}

struct combine_job {
    struct moe_context *c;
    const struct moe_layer *l;
};

/* Adds to the residual stream: sum of weight * output over the row's choices, in order, and then the shared expert's
 * output. */
static void combine_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct combine_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    size_t n = (size_t)d->d_model;
    if (c->status[row])
        return;
    float *sum = c->norm.x + (size_t)row * c->norm.stride; /* the normalised row has been used */
    memset(sum, 0, n * sizeof *sum);
    for (int i = 0; i < d->n_used; i++) {
        size_t pair = (size_t)row * (size_t)d->n_used + (size_t)i;
        if (j->l->down_bias)
            c->model->ops->add(c->y + pair * n, j->l->down_bias + (size_t)c->route_id[pair] * n, d->d_model);
        c->model->ops->add_scaled(sum, c->route_weight[pair], c->y + pair * n, d->d_model);
    }
    if (d->d_shared) {
        float by = j->l->shared_gate.n_out ? moe_sigmoid(c->shared_weight[row]) : 1.0f;
        c->model->ops->add_scaled(sum, by, c->shared + (size_t)row * n, d->d_model);
    }
    moe_add_row(c, row, sum, j->l->ffn_out_norm);
}

void moe_experts(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct combine_job job = { c, l };
    struct off_ticket ticket;
    unsigned shared = moe_act_bit(&l->gate) | moe_act_bit(&l->up) | moe_act_bit(&l->shared_gate);
    moe_rows_norm(c, l->ffn_norm, moe_act_bit(&l->router) | l->expert_acts | shared, NULL, c->n_row);
    moe_route(c, layer);
    moe_plan_rows(c, layer);
    c->distinct += c->plan.n_expert;
    off_fetch(c->model->store, c->plan.expert, c->mark, c->plan.n_expert, OFF_NOW, &ticket);
    moe_prefetch_layer(c, layer);
    if (d->d_shared)
        run_wide(c, l, d->d_shared, c->shared);
    int n;
    while ((n = off_wait(c->model->store, &ticket, &c->hands, c->arrived, c->view, c->arrived_status)) > 0)
        run_arrived(c, layer, n);
    off_release(c->model->store, &ticket);
    kn_parallel_for(c->team, c->n_row, combine_row, &job);
}
