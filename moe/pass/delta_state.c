/* Recurrent states of delta nets, and the order in which the rows of a batch update them.
 *
 * A state holds, for each delta net, the last inputs of the convolution and a matrix for each value head.  It is the
 * result of one sequence up to one position.  A pass applies the sequence's rows to the state, and computes draft rows
 * on copies, head by head, so a rejected draft needs no rollback.  The inputs of draft rows outlive the pass (32 KiB
 * per row and layer, against 2 MiB of state, with 32 heads of 128 by 128).  Inputs of accepted drafts stay pending and
 * are applied when the state is next read: by the next pass that has a row of this state, or when the state is copied.
 * They are also applied before a pass with drafts of other states, because those inputs take the same memory.
 *
 * A flow is one state within a pass.  Its steps are the pending rows, then the sequence's rows, then the drafts.  Each
 * step has the index of the step before it, so chains and trees take the same code. */
#include "moe/pass/pass.h"

#include <math.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------- */

static int n_state(const struct moe_context_options *opt) { return kn_max(1, opt->n_state); }

size_t moe_states_bytes(const struct moe_model *m, const struct moe_context_options *opt)
{
    const struct moe_desc *d = &m->desc;
    size_t kept = (size_t)moe_n_delta(d) * (size_t)opt->n_draft * (size_t)moe_d_state_in(d) * sizeof(float);
    return d->delta_period ? (size_t)n_state(opt) * moe_state_bytes(d) + kept : 0;
}

int moe_states_place(struct moe_context *c, void *base)
{
    struct moe_states *s = &c->states;
    const struct moe_desc *d = &c->model->desc;
    size_t n = (size_t)d->d_state_key;
    float unit = 1.0f / sqrtf((float)d->d_state_key), *weight = kn_alloc(2 * n * sizeof *weight);
    if (!weight)
        return kn_fail(KN_ENOMEM, "no memory for a context");
    s->n = n_state(&c->opt);
    s->base = base;
    s->bytes = moe_state_bytes(d);
    s->layer_bytes = moe_state_layer_bytes(d);
    s->kept = (float *)(s->base + (size_t)s->n * s->bytes);
    for (size_t i = 0; i < n; i++) {
        weight[i] = unit;
        weight[n + i] = unit * unit; /* queries are also divided by the square root of d_state_key */
    }
    int error = kn_memory_write(&c->device, (size_t)((uint8_t *)s->unit_k - c->device.base), weight,
                                n * sizeof *weight);
    if (!error)
        error = kn_memory_write(&c->device, (size_t)((uint8_t *)s->unit_q - c->device.base), weight + n,
                                n * sizeof *weight);
    kn_free(weight);
    return error;
}

/* Takes the buffers and lists of a pass from the arena. */
void moe_states_lay_out(struct moe_context *c, struct moe_arenas *a)
{
    struct moe_states *s = &c->states;
    const struct moe_desc *d = &c->model->desc;
    size_t n = (size_t)n_state(&c->opt), n_row = (size_t)c->opt.max_row, n_kept = (size_t)c->opt.n_draft;
    size_t value = (size_t)(d->n_value_head * d->d_state_value);
    s->n_kept = c->opt.n_draft;
    s->d_in = moe_d_state_in(d);
    s->n_tok = kn_arena_take(&a->host, n, sizeof *s->n_tok);
    s->n_pending = kn_arena_take(&a->host, n, sizeof *s->n_pending);
    s->pending = kn_arena_take(&a->host, n * n_kept, sizeof *s->pending);
    s->flow_of = kn_arena_take(&a->host, n, sizeof *s->flow_of);
    s->used = kn_arena_take(&a->host, n, sizeof *s->used);
    s->step = kn_arena_take(&a->shared, n_row + n_kept, sizeof *s->step);
    s->flow = kn_arena_take(&a->shared, n_row, sizeof *s->flow);
    s->step_of = kn_arena_take(&a->host, n_row, sizeof *s->step_of);
    s->kept_of = kn_arena_take(&a->shared, n_row, sizeof *s->kept_of);
    s->in = kn_arena_take(&a->device, n_row * (size_t)s->d_in, sizeof(float));
    s->out = kn_arena_take(&a->device, (n_row + n_kept) * (size_t)s->d_in, sizeof(float));
    s->z = kn_arena_take(&a->device, n_row * value, sizeof(float));
    s->mixed = kn_arena_take(&a->device, d->delta_mixed ? n_row * ((size_t)moe_d_mix(d) + value) : 0, sizeof(float));
    s->unit_q = kn_arena_take(&a->device, (size_t)d->d_state_key, sizeof(float));
    s->unit_k = kn_arena_take(&a->device, (size_t)d->d_state_key, sizeof(float));
}

/* ---- the steps of a pass ------------------------------------------------------------------------------- */

/* Returns the flow of a state; a new flow begins with the state's pending rows. */
static struct kn_flow *flow_of(struct moe_states *s, int state)
{
    if (s->flow_of[state] < 0) {
        s->flow_of[state] = s->n_flow;
        s->flow[s->n_flow++] = (struct kn_flow){ .state = state, .n_text = s->n_pending[state] };
    }
    return &s->flow[s->flow_of[state]];
}

/* Makes state `to` a copy of state `from`, or empty if from is -1.  Pending rows of the old state `to` are dropped. */
static void set_state(struct moe_context *c, int from, int to)
{
    struct moe_states *s = &c->states;
    kn_enqueue(c->queue, COPY, copy, .to = s->base + (size_t)to * s->bytes,
               .from = from < 0 ? NULL : s->base + (size_t)from * s->bytes, .bytes = s->layer_bytes,
               .stride = s->layer_bytes, .n = moe_n_delta(&c->model->desc));
    s->n_tok[to] = from < 0 ? 0 : s->n_tok[from];
    s->n_pending[to] = 0;
}

static void count_rows(struct moe_context *c)
{
    struct moe_states *s = &c->states;
    for (int i = 0; i < c->n_row; i++) {
        const struct moe_row *r = &c->batch->row[i];
        kn_assert(r->state >= 0 && r->state < s->n);
        if (r->position == 0 && !r->draft)
            set_state(c, -1, r->state);
        struct kn_flow *f = flow_of(s, r->state);
        *(r->draft ? &f->n_draft : &f->n_text) += 1;
    }
    int n = 0;
    for (int i = 0; i < s->n_flow; i++) {
        s->flow[i].first = n;
        n += s->flow[i].n_text + s->flow[i].n_draft;
    }
    s->n_step = n;
}

static void add_pending(struct moe_states *s, struct kn_flow *f)
{
    const int32_t *pending = s->pending + (size_t)f->state * (size_t)s->n_kept;
    for (int i = 0; i < s->n_pending[f->state]; i++)
        s->step[f->first + i] = (struct kn_step){ .row = -1, .kept = pending[i], .before = i ? f->first + i - 1 : -1 };
    f->n_text = s->n_pending[f->state]; /* add_row() counts the batch's rows again */
    f->n_draft = 0;
}

/* Appends a row of the batch to its flow, and checks the order of the batch: rows of a sequence by position, then its
 * drafts, each after the row that it continues. */
static void add_row(struct moe_context *c, int row)
{
    struct moe_states *s = &c->states;
    const struct moe_row *r = &c->batch->row[row];
    struct kn_flow *f = &s->flow[s->flow_of[r->state]];
    int at = f->first + f->n_text + f->n_draft, before = at > f->first ? at - 1 : -1;
    s->kept_of[row] = -1;
    if (r->draft) {
        const struct moe_row *after = &c->batch->row[r->after];
        kn_assert(r->after >= 0 && r->after < row && after->state == r->state && s->n_draft < s->n_kept);
        kn_assert(r->position == after->position + 1 &&
                  (after->draft || s->step_of[r->after] == f->first + f->n_text - 1));
        before = s->step_of[r->after];
        s->kept_of[row] = s->n_draft++;
        f->n_draft++;
    } else {
        kn_assert(!f->n_draft && r->position == s->n_tok[r->state]);
        kn_assert(r->copy_to >= 0 && r->copy_to < s->n && (!r->copy_to || !s->used[r->copy_to]));
        if (r->copy_to)
            s->n_pending[r->copy_to] = 0;
        s->n_tok[r->state]++;
        f->n_text++;
    }
    s->step_of[row] = at;
    s->step[at] = (struct kn_step){ .row = row, .before = before, .copy_to = r->copy_to };
}

static void forget_flows(struct moe_states *s)
{
    s->n_flow = s->n_step = 0;
    for (int i = 0; i < s->n; i++)
        s->flow_of[i] = -1;
}

static void upload_lists(struct moe_context *c)
{
    const struct moe_states *s = &c->states;
    moe_upload(c, s->step, (size_t)s->n_step * sizeof *s->step);
    moe_upload(c, s->flow, (size_t)s->n_flow * sizeof *s->flow);
}

/* Computes the pending rows of one state in all layers.  Overwrites the lists of flows and steps. */
static void take_in(struct moe_context *c, int state)
{
    struct moe_states *s = &c->states;
    if (!s->n_pending[state])
        return;
    forget_flows(s);
    struct kn_flow *f = flow_of(s, state);
    s->n_step = f->n_text;
    add_pending(s, f);
    upload_lists(c);
    for (int i = 0; i < c->model->desc.n_layer; i++)
        if (moe_is_delta(&c->model->desc, i))
            moe_delta_steps(c, i);
    moe_wait(c); /* before the lists change */
    s->n_pending[state] = 0;
}

/* Sets s->used.  If the batch has drafts, which overwrite s->kept: computes the pending rows of all other states. */
static void make_room(struct moe_context *c)
{
    struct moe_states *s = &c->states;
    bool drafts = false;
    memset(s->used, 0, (size_t)s->n);
    for (int i = 0; i < c->n_row; i++) {
        drafts |= c->batch->row[i].draft;
        s->used[c->batch->row[i].state] = 1;
    }
    for (int i = 0; i < s->n && drafts; i++)
        if (!s->used[i])
            take_in(c, i);
    forget_flows(s);
}

void moe_states_begin(struct moe_context *c)
{
    struct moe_states *s = &c->states;
    s->n_draft = 0;
    make_room(c);
    count_rows(c);
    for (int i = 0; i < s->n_flow; i++)
        add_pending(s, &s->flow[i]);
    for (int i = 0; i < c->n_row; i++)
        add_row(c, i);
    upload_lists(c);
    moe_upload(c, s->kept_of, (size_t)c->n_row * sizeof *s->kept_of);
}

void moe_states_end(struct moe_context *c)
{
    struct moe_states *s = &c->states;
    for (int i = 0; i < s->n_flow; i++)
        s->n_pending[s->flow[i].state] = 0;
    for (int i = 0; i < c->n_row; i++)
        if (c->now.status[i] && !c->batch->row[i].draft)
            s->n_tok[c->batch->row[i].state] = -1;
    for (int i = 0; i < c->n_row; i++) {
        const struct moe_row *r = &c->batch->row[i];
        if (r->copy_to)
            s->n_tok[r->copy_to] = s->n_tok[r->state] < 0 ? -1 : r->position + 1;
    }
}

/* ---- between passes ------------------------------------------------------------------------------------ */

void moe_context_keep(struct moe_context *c, int state, const int32_t *row, int n)
{
    struct moe_states *s = &c->states;
    if (!s->n)
        return;
    kn_assert(state >= 0 && state < s->n && n >= 0 && n <= s->n_kept && !s->n_pending[state]);
    for (int i = 0; i < n; i++) {
        kn_assert(row[i] >= 0 && row[i] < c->n_row && s->kept_of[row[i]] >= 0);
        s->pending[(size_t)state * (size_t)s->n_kept + (size_t)i] = s->kept_of[row[i]];
    }
    s->n_pending[state] = n;
    s->n_tok[state] += n;
}

void moe_context_copy_state(struct moe_context *c, int from, int to)
{
    struct moe_states *s = &c->states;
    kn_assert(from >= 0 && from < s->n && to >= 0 && to < s->n && from != to);
    take_in(c, from);
    set_state(c, from, to);
    moe_wait(c);
}

int moe_context_state(const struct moe_context *c, int state)
{
    kn_assert(state >= 0 && state < c->states.n);
    return c->states.n_tok[state];
}
