/* The feed-forward half of a layer: experts, or one dense network.
 *
 * Experts: route, plan, request all distinct experts from the store, prefetch experts for the next layer, compute the
 * shared expert, then compute the experts that have arrived while others are still read: gate and up of all of them in
 * one parallel region, then their activation, then down in another region.  The experts lie in memory of the host and are
 * computed there: a device with memory of its own hands over the plan and the codes of the rows, gets the outputs, and
 * computes the shared expert and the experts that it keeps (residents.c) meanwhile.
 * Outputs are stored per (row, choice) and added in the order of choices, never in the order of arrival.
 *
 * Cost of one pass at batch 1: n_used * 3 * d_model * d_expert weights at 4.5 bits, read once.  A parallel region costs
 * a few microseconds, against some 100 for reading the weights. */
#include "moe/pass/pass.h"

/* ---- one FFN for all rows ---------------------------------------------------------------------------------- */

/* y = down(activation(gate, up)) of all normalised rows: a dense layer, or a layer's shared expert. */
static void run_dense(struct moe_context *c, int layer, int d_act, float *y)
{
    const struct moe_layer *l = &c->model->layer[layer];
    const struct moe_desc *d = &c->model->desc;
    const struct kn_group *group = moe_at(c, &c->dense[layer]);
    kn_enqueue(c->queue, GATE_UP, gate_up, .group = group, .n_group = 1, .n_row = c->n_row, .n_pair = c->n_row,
               .d_in = d->d_model, .d_act = d_act, .x = c->norm, .gate = c->gate, .up = c->up,
               .activation = (enum kn_activation)d->activation, .alpha = d->swiglu_alpha, .limit = d->swiglu_limit,
               .act = c->wide, .kinds = kn_act_bit(&l->down),
               .formats = kn_format_bit(&l->gate) | kn_format_bit(&l->up));
    kn_enqueue(c->queue, DOWN, down, .group = group, .n_group = 1, .n_pair = c->n_row, .d_act = d_act,
               .d_out = d->d_model, .act = c->wide, .y = y, .formats = kn_format_bit(&l->down));
}

void moe_dense_ffn(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    moe_add_norm(c, &(struct moe_output){ c->y, l->o_bias, l->attn_out_norm }, l->ffn_norm, l->ffn_norm_bias,
                 kn_act_bit(&l->gate) | kn_act_bit(&l->up));
    run_dense(c, layer, c->model->desc.d_ff, c->y);
    moe_add_norm(c, &(struct moe_output){ c->y, NULL, l->ffn_out_norm }, NULL, NULL, 0);
}

/* ---- experts ----------------------------------------------------------------------------------------------- */

/* The e-th expert of the plan could not be read: the rows that need it fail with this status, the other rows do not. */
static void fail_rows(struct moe_context *c, int e, int status)
{
    moe_wait(c); /* operations read the statuses */
    for (int i = c->plan.first[e]; i < c->plan.first[e + 1]; i++)
        c->now.status[c->plan.row[i]] = status;
    moe_upload(c, c->now.status, (size_t)c->n_row * sizeof *c->now.status);
}

/* Appends the first n experts of c->arrived to the n_done in c->group; the rows of experts that could not be read fail.
 * Returns the number of experts appended. */
static int list_arrived(struct moe_context *c, const struct moe_layer *l, int n, int n_done)
{
    const struct kn_plan *p = &c->plan;
    struct kn_group *group = c->group + n_done;
    for (int i = 0; i < n; i++) {
        int e = c->residents.rest_of[c->arrived[i]];
        const struct off_view *v = &c->view[i];
        if (c->arrived_status[i] < 0)
            fail_rows(c, e, c->arrived_status[i]);
        else
            *group++ = (struct kn_group){ .gate = v->matrix[0],
                                          .up = v->matrix[1],
                                          .down = v->matrix[2],
                                          .node = v->node,
                                          .bias = p->expert[e] - l->expert0,
                                          .first = p->first[e],
                                          .n = p->first[e + 1] - p->first[e] };
    }
    return (int)(group - c->group) - n_done;
}

/* Computes n experts of a list for their rows. */
static void run_groups(struct moe_context *c, const struct moe_layer *l, const struct kn_group *group, int n)
{
    const struct moe_desc *d = &c->model->desc;
    int n_pair = c->n_row * d->n_used;
    struct kn_acts act = moe_acts_image(c, &c->act);
    kn_enqueue(c->host_queue, GATE_UP, gate_up, .group = group, .n_group = n, .n_row = c->n_row, .n_pair = n_pair,
               .d_in = d->d_model, .d_act = d->d_expert, .interleaved = c->model->gate_up_interleaved,
               .row = c->plan.row, .pair = c->plan.pair, .x = moe_acts_image(c, &c->norm),
               .gate = moe_image(c, c->gate), .up = moe_image(c, c->up), .gate_bias = l->gate_bias,
               .up_bias = l->up_bias, .activation = (enum kn_activation)d->activation, .alpha = d->swiglu_alpha,
               .limit = d->swiglu_limit, .act = act, .kinds = l->down_acts,
               .in_scale = d->scaled_input ? moe_image(c, c->route.weight) : NULL);
    kn_enqueue(c->host_queue, DOWN, down, .group = group, .n_group = n, .n_pair = n_pair, .d_act = d->d_expert,
               .d_out = d->d_model, .pair = c->plan.pair, .act = act, .y = moe_image(c, c->y));
}

/* The experts that the device keeps: their first half; then, when the host's outputs are there, their second half, which
 * writes outputs between those. */
static void run_residents_gate_up(struct moe_context *c, const struct moe_layer *l, int n)
{
    const struct moe_desc *d = &c->model->desc;
    kn_enqueue(c->queue, GATE_UP, gate_up, .group = moe_at(c, c->residents.group), .n_group = n, .n_row = c->n_row,
               .n_pair = c->n_row * d->n_used, .d_in = d->d_model, .d_act = d->d_expert,
               .interleaved = c->model->gate_up_interleaved, .row = moe_at(c, c->plan.row),
               .pair = moe_at(c, c->plan.pair), .x = c->norm, .gate = c->gate, .up = c->up,
               .gate_bias = l->gate_bias_at, .up_bias = l->up_bias_at, .activation = (enum kn_activation)d->activation,
               .alpha = d->swiglu_alpha, .limit = d->swiglu_limit, .act = c->act, .kinds = l->down_acts,
               .formats = c->residents.formats[0], .in_scale = d->scaled_input ? c->route.weight : NULL);
}

static void run_residents_down(struct moe_context *c, int n)
{
    const struct moe_desc *d = &c->model->desc;
    kn_enqueue(c->queue, DOWN, down, .group = moe_at(c, c->residents.group), .n_group = n,
               .n_pair = c->n_row * d->n_used, .d_act = d->d_expert, .d_out = d->d_model,
               .pair = moe_at(c, c->plan.pair), .act = c->act, .y = c->y, .formats = c->residents.formats[1]);
}

/* Computes the layer's experts that lie in memory of the host, as they arrive. */
static void run_on_host(struct moe_context *c, const struct moe_layer *l, struct off_ticket *ticket)
{
    int n, n_done = 0;
    while ((n = off_wait(c->model->store, ticket, &c->hands, c->arrived, c->view, c->arrived_status)) > 0) {
        int n_new = list_arrived(c, l, n, n_done);
        bool copies = false;
        run_groups(c, l, c->group + n_done, n_new);
        n_done += n_new;
        for (int i = 0; i < n; i++)
            if (c->arrived_status[i] >= 0)
                copies |= moe_residents_copy(c, c->residents.rest[c->arrived[i]], c->view[i].matrix);
        kn_queue_wait(c->host_queue); /* off_wait() and off_release() may evict experts that were handed out before */
        if (copies)
            moe_wait(c);
    }
    off_release(c->model->store, ticket);
    moe_upload(c, moe_image(c, c->y),
               (size_t)(c->n_row * c->model->desc.n_used) * (size_t)c->model->desc.d_model * sizeof *c->y);
}

/* Copies a layer's rows to the host: the plan of their experts, and the codes that the experts read. */
static void download_rows(struct moe_context *c, const struct moe_layer *l)
{
    const struct kn_plan *p = &c->plan;
    const struct kn_acts norm = moe_acts_image(c, &c->norm);
    size_t n_expert = (size_t)c->model->desc.n_expert, n_row = (size_t)c->n_row;
    size_t n_pair = n_row * (size_t)c->model->desc.n_used;
    moe_download(c, p->n_expert, sizeof *p->n_expert);
    moe_download(c, p->expert, n_expert * sizeof *p->expert);
    moe_download(c, p->first, (n_expert + 1) * sizeof *p->first);
    moe_download(c, p->row, n_pair * sizeof *p->row);
    moe_download(c, p->pair, n_pair * sizeof *p->pair);
    if (c->recall.learns)
        moe_download(c, moe_image(c, c->route.id), n_pair * sizeof *c->route.id);
    if (c->model->desc.scaled_input)
        moe_download(c, moe_image(c, c->route.weight), n_pair * sizeof *c->route.weight);
    for (int kind = 0; kind < KN_ACT_COUNT; kind++)
        if (l->expert_acts & 1u << kind)
            moe_download(c, norm.code[kind], n_row * norm.code_stride[kind]);
}

/* Computes the experts of a layer as soon as the host knows which they are: those that the device keeps, and the others. */
static void run_listed(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    const struct moe_desc *d = &c->model->desc;
    struct off_ticket ticket;
    download_rows(c, l);
    if (moe_wait(c)) {
        moe_prefetch_release(c, layer);
        return;
    }
    c->distinct += *c->plan.n_expert;
    int n_there = moe_residents_list(c, l), n_rest = c->residents.n_rest;
    off_fetch_now(c->model->store, c->residents.rest, c->mark, n_rest, n_rest + n_there, &ticket);
    moe_prefetch_layer(c, layer);
    if (d->d_shared)
        run_dense(c, layer, d->d_shared, c->shared_out);
    if (n_there)
        run_residents_gate_up(c, l, n_there);
    if (n_rest)
        run_on_host(c, l, &ticket);
    else
        off_release(c->model->store, &ticket);
    if (n_there)
        run_residents_down(c, n_there);
}

/* The device has all experts: it lists and computes them without the host. */
static void run_on_device(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    const struct moe_desc *d = &c->model->desc;
    int n = moe_residents_list_all(c, layer);
    moe_prefetch_release(c, layer);
    if (d->d_shared)
        run_dense(c, layer, d->d_shared, c->shared_out);
    run_residents_gate_up(c, l, n);
    run_residents_down(c, n);
}

void moe_experts(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    unsigned shared = kn_act_bit(&l->gate) | kn_act_bit(&l->up) | kn_act_bit(&l->shared_gate);
    moe_add_norm(c, &(struct moe_output){ c->y, l->o_bias, l->attn_out_norm }, l->ffn_norm, l->ffn_norm_bias,
                 kn_act_bit(&l->router) | l->expert_acts | shared);
    moe_route(c, layer);
    moe_plan_rows(c, layer);
    if (moe_device_lists(c))
        run_on_device(c, layer);
    else
        run_listed(c, layer);
    if (c->error)
        return;
    kn_enqueue(c->queue, COMBINE, combine, .rows = moe_rows(c), .n_used = d->n_used, .d_model = d->d_model,
               .id = c->route.id, .weight = d->scaled_input ? NULL : c->route.weight, .y = c->y,
               .down_bias = l->down_bias, .n_expert = d->n_expert, .shared = d->d_shared ? c->shared_out : NULL,
               .shared_gate = l->shared_gate.n_out ? c->shared_weight : NULL, .sum_norm = l->ffn_out_norm,
               .eps = d->eps, .sum_scale = d->residual_scale, .scratch = c->norm, .x = c->x);
}
