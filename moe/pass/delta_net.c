/* A gated delta net layer: norm, projections, convolution, state update of each value head, gate, output projection.
 *
 * Rows of a batch go through the states in steps and flows (delta_state.c); kernels/pass.h has the order of arithmetic. */
#include "moe/pass/pass.h"

struct kn_net moe_net(const struct moe_desc *d)
{
    return (struct kn_net){ .n_key_head = d->n_key_head,
                            .n_value_head = d->n_value_head,
                            .d_key = d->d_state_key,
                            .d_value = d->d_state_value,
                            .n_tap = d->n_tap,
                            .tiled = d->delta_tiled,
                            .by_key_head = d->delta_ba };
}

/* Adds a product whose output is a part of the rows of c->states.in. */
static void add_product(struct moe_context *c, struct kn_op_products *p, const struct kn_mat *w, int at)
{
    moe_product_add(p, &c->norm, w, c->states.in + at, c->n_row);
    p->product[p->n - 1].mul.y_stride = (size_t)c->states.d_in;
}

static void project(struct moe_context *c, const struct moe_layer *l)
{
    struct moe_states *s = &c->states;
    struct kn_op_products p = { .n = 0 };
    int d_mix = moe_d_mix(&c->model->desc);
    if (l->mixed.n_out) {
        moe_product_add(&p, &c->norm, &l->mixed, s->mixed, c->n_row);
    } else {
        add_product(c, &p, &l->mix, 0);
        moe_product_add(&p, &c->norm, &l->z, s->z, c->n_row);
    }
    if (l->ba.n_out) {
        add_product(c, &p, &l->ba, d_mix);
    } else {
        add_product(c, &p, &l->beta, d_mix);
        add_product(c, &p, &l->alpha, d_mix + c->model->desc.n_value_head);
    }
    moe_products(c, &p);
    if (l->mixed.n_out)
        kn_enqueue(c->queue, PART, part, .net = moe_net(&c->model->desc), .from = s->mixed, .in = s->in, .z = s->z,
                   .n = c->n_row);
}

void moe_delta_steps(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_states *s = &c->states;
    struct kn_net net = moe_net(&c->model->desc);
    struct kn_flows flows = { moe_at(c, s->step), moe_at(c, s->flow),       s->n_step,
                              s->n_flow,          moe_at(c, c->now.status), c->n_row };
    const float *kept = moe_states_kept(s, l->nth);
    uint8_t *state = s->base + (size_t)l->nth * s->layer_bytes;
    kn_enqueue(c->queue, CONV, conv, .net = net, .flows = flows, .in = s->in, .kept = kept, .n_kept = s->n_kept,
               .state = state, .state_bytes = s->bytes, .taps = l->taps, .decay = l->decay, .decay_bias = l->decay_bias,
               .unit_q = s->unit_q, .unit_k = s->unit_k, .out = s->out);
    kn_enqueue(c->queue, DELTA, delta, .net = net, .flows = flows, .in = s->in, .kept = kept, .n_kept = s->n_kept,
               .state = state, .state_bytes = s->bytes, .mixed = s->out, .z = s->z, .out_norm = l->out_norm,
               .eps = c->model->desc.eps, .out = c->att.x, .out_stride = c->att.stride);
}

void moe_delta(struct moe_context *c, int layer)
{
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_states *s = &c->states;
    moe_add_norm(c, NULL, l->attn_norm, NULL, moe_delta_acts(l));
    project(c, l);
    moe_delta_steps(c, layer);
    if (s->n_draft) /* the pending rows in s->kept have been computed: their memory is free */
        kn_enqueue(c->queue, KEEP_DRAFT, keep_draft, .in = s->in, .kept = moe_states_kept(s, l->nth),
                   .to = moe_at(c, s->kept_of), .n = c->n_row, .n_kept = s->n_kept, .d = s->d_in);
    kn_enqueue(c->queue, CODE, code, .acts = c->att, .kinds = kn_act_bit(&l->o), .n = c->n_row,
               .n_in = moe_d_state_value(&c->model->desc));
    moe_multiply(c, &c->att, &l->o, c->y, c->n_row);
}
