/* The feed-forward half of a layer: experts, or one dense network.
 *
 * Experts: route, plan, request all distinct experts from the store, prefetch experts for the next layer, compute the
 * shared expert, then compute the experts that have arrived while others are still read: gate and up of all of them in
 * one parallel region, then their activation, then down in another region.  A device with memory of its own lists the
 * layer's experts (listings.c), and computes the shared expert, the experts that it keeps and those that are copied to
 * it (residents.c), while the host computes the other experts and sends up their outputs.
 * Outputs are stored per (row, choice) and added in the order of choices, never in the order of arrival.
 *
 * Cost of one pass at batch 1: n_used * 3 * d_model * d_expert weights at 4.5 bits, read once.  A parallel region costs
 * a few microseconds, against some 100 for reading the weights. */
#include "moe/pass/pass.h"

#include <string.h>

/* ---- one FFN for all rows ---------------------------------------------------------------------------------- */

/* y = down(activation(gate, up)) of all rows of x: a dense layer, or a layer's shared expert. */
static void run_dense(struct moe_context *c, int layer, const struct kn_acts *x, int d_act, float *y)
{
    const struct moe_layer *l = &c->model->layer[layer];
    const struct moe_desc *d = &c->model->desc;
    const struct kn_group *group = moe_at(c, &c->dense[layer]);
    bool apart = c->shared_gate && y == c->shared_out;
    kn_enqueue(c->queue, GATE_UP, gate_up, .group = group, .n_group = 1, .n_row = c->n_row, .n_pair = c->n_row,
               .d_in = d->d_model, .d_act = d_act, .x = *x, .gate = apart ? c->shared_gate : c->gate,
               .up = apart ? c->shared_up : c->up, .activation = (enum kn_activation)d->activation,
               .alpha = d->swiglu_alpha, .limit = d->swiglu_limit, .act = c->wide, .kinds = kn_act_bit(&l->down),
               .formats = kn_format_bit(&l->gate) | kn_format_bit(&l->up));
    kn_enqueue(c->queue, DOWN, down, .group = group, .n_group = 1, .n_pair = c->n_row, .d_act = d_act,
               .d_out = d->d_model, .act = c->wide, .y = y, .formats = kn_format_bit(&l->down));
}

void moe_dense_ffn(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    moe_add_norm(c, &(struct moe_output){ c->y, l->o_bias, l->attn_out_norm }, l->ffn_norm, l->ffn_norm_bias,
                 kn_act_bit(&l->gate) | kn_act_bit(&l->up));
    run_dense(c, layer, &c->norm, c->model->desc.d_ff, c->y);
    moe_add_norm(c, &(struct moe_output){ c->y, NULL, l->ffn_out_norm }, NULL, NULL, 0);
}

/* ---- experts ----------------------------------------------------------------------------------------------- */

/* The e-th expert of the plan could not be read: the rows that need it fail with this status, the other rows do not. */
static void fail_rows(struct moe_context *c, int e, int status)
{
    if (!moe_computes_twice(c))
        moe_wait(c); /* operations read the statuses */
    for (int i = c->plan.first[e]; i < c->plan.first[e + 1]; i++)
        c->now.status[c->plan.row[i]] = status;
    c->residents.failed = true;
}

/* Computes n experts of a list for their rows, on the host. */
static void run_groups(struct moe_context *c, const struct moe_layer *l, const struct kn_group *group, int n)
{
    const struct moe_desc *d = &c->model->desc;
    int n_pair = c->n_row * d->n_used;
    struct kn_acts act = moe_acts_image(c, &c->act);
    bool twice = moe_computes_twice(c);
    const int32_t *out = twice ? c->residents.out : c->plan.pair;
    const float *weight = twice ? c->residents.weight : moe_image(c, c->route.weight);
    kn_enqueue(c->host_queue, GATE_UP, gate_up, .group = group, .n_group = n, .n_row = c->n_row, .n_pair = n_pair,
               .d_in = d->d_model, .d_act = d->d_expert, .interleaved = c->model->gate_up_interleaved,
               .row = c->plan.row, .pair = out, .x = moe_acts_image(c, &c->norm), .gate = moe_image(c, c->gate),
               .up = moe_image(c, c->up), .gate_bias = l->gate_bias, .up_bias = l->up_bias,
               .activation = (enum kn_activation)d->activation, .alpha = d->swiglu_alpha, .limit = d->swiglu_limit,
               .act = act, .kinds = l->down_acts, .in_scale = d->scaled_input ? weight : NULL);
    kn_enqueue(c->host_queue, DOWN, down, .group = group, .n_group = n, .n_pair = n_pair, .d_act = d->d_expert,
               .d_out = d->d_model, .pair = out, .act = act, .y = moe_image(c, c->y));
}

/* Experts that lie on the device; formats as in struct moe_layer. */
struct groups {
    const struct kn_group *group; /* of the device */
    int n;
    const unsigned *formats;
};

/* Computes experts by a queue of the device. */
static void run_groups_there(struct moe_context *c, struct kn_queue *q, int layer, const struct groups *g)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    bool lists = moe_device_lists(c);
    const int32_t *out = moe_at(c, lists ? c->plan.pair : c->residents.out);
    const float *weight = lists || !d->scaled_input ? c->route.weight : moe_at(c, c->residents.weight);
    int n_pair = c->n_row * d->n_used;
    kn_enqueue(q, GATE_UP, gate_up, .group = g->group, .n_group = g->n, .n_row = c->n_row, .n_pair = n_pair,
               .d_in = d->d_model, .d_act = d->d_expert, .interleaved = c->model->gate_up_interleaved,
               .row = moe_at(c, c->plan.row), .pair = out, .x = c->norm, .gate = c->gate, .up = c->up,
               .gate_bias = l->gate_bias_at, .up_bias = l->up_bias_at, .activation = (enum kn_activation)d->activation,
               .alpha = d->swiglu_alpha, .limit = d->swiglu_limit, .act = c->act, .kinds = l->down_acts,
               .formats = g->formats[0], .in_scale = d->scaled_input ? weight : NULL);
    kn_enqueue(q, DOWN, down, .group = g->group, .n_group = g->n, .n_pair = n_pair, .d_act = d->d_expert,
               .d_out = d->d_model, .pair = out, .act = c->act, .y = c->y, .formats = g->formats[1]);
}

/* The experts that the device has. */
static void run_residents(struct moe_context *c, int layer)
{
    const struct moe_residents *r = &c->residents;
    const struct moe_layer *l = &c->model->layer[layer];
    if (r->n_slot && l->expert0 < c->model->shape.n_expert_total)
        run_groups_there(c, c->queue, layer, &(struct groups){ r->listed, moe_most_experts(c), l->expert_formats });
}

/* Those that were copied for this layer. */
static void run_round(struct moe_context *c, int layer)
{
    int n;
    const struct kn_group *group = moe_residents_round(c, &n);
    if (n)
        run_groups_there(c, c->copies, layer, &(struct groups){ moe_at(c, group), n, c->residents.formats });
}

/* Of n experts that have arrived, those that are copied to the device are computed there; the others are appended to the n_done
 * in c->group; the rows of experts that could not be read fail.  Returns the number appended. */
static int list_arrived(struct moe_context *c, int layer, int n, int n_done)
{
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_residents *r = &c->residents;
    struct kn_group *group = c->group + n_done;
    for (int i = 0; i < n; i++) {
        int e = r->rest_of[c->arrived[i]];
        const struct off_view *v = &c->view[i];
        if (c->arrived_status[i] < 0) {
            fail_rows(c, e, c->arrived_status[i]);
        } else if (r->passes[c->arrived[i]]) {
            if (moe_residents_window_is_full(c, c->plan.expert[e]))
                run_round(c, layer);
            moe_residents_pass(c, l, e, v->matrix);
        } else {
            *group = moe_plan_group(&c->plan, e, v->matrix, l->expert0);
            group++->node = v->node;
        }
    }
    run_round(c, layer);
    return (int)(group - c->group) - n_done;
}

/* Waits for experts; the time is not the layer's own. */
static int wait_for_experts(struct moe_context *c)
{
    struct off_ticket *ticket = &c->residents.ticket;
    if (ticket->n_given == ticket->n) /* off_wait() would end the use of the last ones */
        return 0;
    uint64_t since = kn_now_ns();
    int n = off_wait(c->model->store, ticket, &c->hands, c->arrived, c->view, c->arrived_status);
    c->residents.stalled_ns += kn_now_ns() - since;
    return n;
}

static void release(struct moe_context *c)
{
    if (c->residents.ticket.n)
        off_release(c->model->store, &c->residents.ticket);
    c->residents.ticket.n = 0;
}

/* Computes the layer's experts that lie in memory of the host as they arrive: here, or on the device after a copy. */
static void run_rest(struct moe_context *c, int layer)
{
    struct moe_residents *r = &c->residents;
    int n, n_done = 0;
    bool copies = false;
    while ((n = wait_for_experts(c)) > 0) {
        uint64_t n_copied = r->total.n_copied;
        int n_new = list_arrived(c, layer, n, n_done);
        run_groups(c, &c->model->layer[layer], c->group + n_done, n_new);
        n_done += n_new;
        kn_queue_wait(c->host_queue); /* other experts may get the memory of these: copied back, or by off_wait() */
        moe_advance(c);
        for (int i = 0; i < n && !c->present.only; i++)
            if (c->arrived_status[i] >= 0 && !r->passes[c->arrived[i]])
                moe_residents_copy(c, r->rest[c->arrived[i]], c->view[i].matrix);
        copies = r->total.n_copied > n_copied;
        if ((copies || r->n_back) && r->ticket.n_given < r->ticket.n) {
            moe_wait_copies(c);
            moe_residents_copied(c);
        }
    }
    if (!copies) /* else when the copies are done */
        release(c);
    if (moe_computes_twice(c))
        moe_residents_upload(c);
    if (r->failed)
        moe_upload_beside(c, c->now.status, (size_t)c->n_row * sizeof *c->now.status);
}

/* Ends the experts of the layer before; its time ends now_ns. */
static void end_experts(struct moe_context *c, uint64_t now_ns)
{
    struct moe_residents *r = &c->residents;
    moe_residents_copied(c);
    release(c);
    if (r->since_ns && !c->error)
        moe_where_learn(&r->where, (double)(now_ns - r->since_ns - r->stalled_ns));
    r->since_ns = 0;
}

void moe_experts_end(struct moe_context *c) { end_experts(c, kn_now_ns()); }

/* The host has seen which experts the layer uses: it requests those that the device lacks, and predicted ones of the next
 * layer.  g: the listing with the prediction; NULL: there is none. */
static void begin_layer(struct moe_context *c, int layer, const struct moe_listing *g)
{
    struct moe_residents *r = &c->residents;
    /* Before the choice below, which counts as this layer's: it takes longer where more experts are copied. */
    uint64_t now_ns = kn_now_ns();
    end_experts(c, now_ns);
    c->distinct += *c->plan.n_expert;
    int n_there = moe_residents_list(c);
    if (c->present.only) {
        moe_present_fetch(c, layer);
        return;
    }
    off_fetch_now(c->model->store, r->rest, c->mark, r->n_rest, r->n_rest + n_there, &r->ticket);
    if (moe_computes_twice(c)) {
        moe_residents_choose(c, layer);
        r->since_ns = r->has_window ? now_ns : 0;
        r->stalled_ns = 0;
    }
    moe_prefetch_layer(c, layer, g);
}

static void end_layer(struct moe_context *c, int layer)
{
    if (c->residents.n_rest)
        run_rest(c, layer);
    else
        off_release(c->model->store, &c->residents.ticket);
}

void moe_experts_see(struct moe_context *c)
{
    const struct moe_listing *g = moe_listing_see(c);
    if (!g) {
        moe_listings_drop(c);
        return;
    }
    begin_layer(c, g->layer, g);
    if (!c->residents.n_rest) {
        end_layer(c, g->layer);
        return;
    }
    kn_enqueue(c->copies, AWAIT, await, .word = c->listings.ready, .value = g->number);
    end_layer(c, g->layer);
    kn_enqueue(c->copies, SIGNAL, signal, .word = moe_listing_done(c, g->number), .value = g->number);
}

void moe_experts_see_all(struct moe_context *c)
{
    while (c->listings.seen != c->listings.number)
        moe_experts_see(c);
}

static void run_shared(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    if (d->d_shared)
        run_dense(c, layer, c->apart.x ? &c->apart : &c->norm, d->d_shared, c->shared_out);
}

/* The device lists the layer's experts, and the host follows: at once, or later. */
static void run_listed(struct moe_context *c, struct moe_listing *g)
{
    bool ahead = c->listings.ahead;
    moe_listing_send(c, g);
    if (!ahead) {
        if (!moe_listing_see(c)) {
            moe_listings_drop(c);
            return;
        }
        begin_layer(c, g->layer, g);
    }
    run_shared(c, g->layer);
    run_residents(c, g->layer);
    if (ahead)
        moe_listing_await(c, g);
    else
        end_layer(c, g->layer);
}

static void run_on_host(struct moe_context *c, int layer)
{
    if (!moe_listing_see(c)) {
        moe_listings_drop(c);
        return;
    }
    begin_layer(c, layer, NULL);
    run_shared(c, layer);
    end_layer(c, layer);
}

/* The device has all experts: the host need not see which the layer uses. */
static void run_on_device(struct moe_context *c, int layer)
{
    c->listings.seen = c->listings.number;
    moe_residents_list_all(c, layer);
    moe_prefetch_release(c, layer);
    run_shared(c, layer);
    run_residents(c, layer);
}

/* Where combine finds the outputs: NULL: by (row, choice). */
static const int32_t *outputs_at(const struct moe_context *c)
{
    return moe_computes_twice(c) && !moe_device_lists(c) ? moe_at(c, c->residents.place) : NULL;
}

/* Adds the attention's output to the residual stream, normalises the result as input of the router, the experts and the
 * shared expert, and chooses the experts.  With MOE_SHARED_APART these are three norms, and c->apart is the input of the
 * router and then of the shared expert. */
static void choose_experts(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    const struct moe_output y = { c->y, l->o_bias, l->attn_out_norm };
    unsigned router = kn_act_bit(&l->router);
    unsigned shared = kn_act_bit(&l->gate) | kn_act_bit(&l->up) | kn_act_bit(&l->shared_gate);
    if (!c->apart.x) {
        moe_add_norm(c, &y, l->ffn_norm, l->ffn_norm_bias, router | l->expert_acts | shared);
        moe_route(c, layer, &c->norm);
        return;
    }
    moe_add_norm_to(c, &c->apart, &y, l->router_norm, NULL, router);
    moe_route(c, layer, &c->apart);
    moe_add_norm_to(c, &c->apart, NULL, l->ffn_norm, NULL, shared);
    moe_add_norm(c, NULL, l->expert_norm, NULL, l->expert_acts);
}

void moe_experts(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_listing *g = moe_listing_begin(c, layer);
    if (!g) {
        moe_prefetch_release(c, layer);
        return;
    }
    choose_experts(c, layer);
    moe_plan_rows(c, layer);
    if (moe_device_lists(c))
        run_on_device(c, layer);
    else if (moe_computes_twice(c))
        run_listed(c, g);
    else
        run_on_host(c, layer);
    if (c->error) {
        moe_prefetch_release(c, layer);
        return;
    }
    kn_enqueue(c->queue, COMBINE, combine, .rows = moe_rows(c), .n_used = d->n_used, .d_model = d->d_model,
               .id = c->route.id, .weight = d->scaled_input ? NULL : c->route.weight, .y = c->y, .place = outputs_at(c),
               .down_bias = l->down_bias, .n_expert = d->n_expert, .shared = d->d_shared ? c->shared_out : NULL,
               .shared_gate = l->shared_gate.n_out ? c->shared_weight : NULL, .sum_norm = l->ffn_out_norm,
               .eps = d->eps, .sum_scale = d->residual_scale, .scratch = c->norm, .x = c->x,
               .expert_norm = l->expert_out_norm, .shared_norm = l->shared_out_norm);
    while (c->listings.ahead && moe_listing_is_there(c))
        moe_experts_see(c);
}
