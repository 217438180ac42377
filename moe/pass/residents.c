/* moe/pass/residents.c - experts that a device with memory of its own keeps there.
 *
 * The memory is divided into slots of one size.  An expert gets a slot after the host has computed it: a free slot, or
 * that of the expert with the least heat if its own heat is clearly more.  Heat counts the passes in which an expert was
 * used; later ones weigh more.  At most COPIES experts move in a layer: copies stop the host's computation.
 *
 * In a layer, experts with a slot are computed by the device, the others by the host, at the same time.  The result does
 * not depend on where: outputs are stored per (row, choice).
 *
 * If all experts have room they are copied when the context is opened.  Then the device lists the experts of each layer by
 * itself, and a pass needs the host only for its rows and its logits. */
#include "moe/pass/pass.h"

#include <string.h>

#define COPIES   2     /* experts that are copied in one layer, at most */
#define GROWTH   1.02f /* weight of a use in a pass, over that in the pass before */
#define CLEARLY  1.25f /* times the heat of the expert that loses its slot */
#define RESCALE  1e20f
#define MATRICES 3

int moe_n_resident(const struct moe_model *m, const struct moe_context_options *opt)
{
    size_t n = m->resident_bytes ? opt->resident_bytes / m->resident_bytes : 0;
    return (int)(n < (size_t)m->shape.n_expert_total ? n : (size_t)m->shape.n_expert_total);
}

void moe_residents_lay_out(struct moe_context *c, struct moe_arenas *a)
{
    struct moe_residents *r = &c->residents;
    size_t n_expert = (size_t)c->model->desc.n_expert, n_all = (size_t)c->model->shape.n_expert_total;
    r->n = moe_n_resident(c->model, &c->opt);
    r->rest = kn_arena_take(&a->host, n_expert, sizeof *r->rest);
    r->rest_of = kn_arena_take(&a->host, n_expert, sizeof *r->rest_of);
    if (!r->n)
        return;
    r->slot_of = kn_arena_take(&a->host, n_all, sizeof *r->slot_of);
    r->heat = kn_arena_take(&a->host, n_all, sizeof *r->heat);
    r->slot = kn_arena_take(&a->host, (size_t)r->n, sizeof *r->slot);
    r->group = kn_arena_take(&a->shared, n_expert, sizeof *r->group);
    if (r->n < (int)n_all)
        return;
    r->all = kn_arena_take(&a->shared, n_all, sizeof *r->all);
    r->layer_formats = kn_arena_take(&a->host, (size_t)c->model->desc.n_layer, sizeof *r->layer_formats);
    r->n_distinct = kn_arena_take(&a->shared, 1, sizeof *r->n_distinct);
}

/* Copies an expert to a slot, which it keeps.  Its matrices must stay until a wait. */
static void copy_to(struct moe_context *c, int slot, int32_t expert, const struct kn_mat *matrix)
{
    struct moe_residents *r = &c->residents;
    uint8_t *at = r->memory.base + (size_t)slot * c->model->resident_bytes;
    r->slot_of[expert] = slot;
    r->slot[slot].expert = expert;
    r->slot[slot].turn = r->turn;
    r->n_copied_all++;
    for (int k = 0; k < MATRICES; k++) {
        const struct kn_mat *w = &matrix[k];
        r->slot[slot].matrix[k] = *w;
        r->slot[slot].matrix[k].data = at;
        if (w->n_out)
            kn_enqueue(c->queue, TRANSFER, transfer, .to = at, .from = w->data,
                       .bytes = kn_mat_bytes(w->format, w->n_out, w->n_in));
        at += moe_resident_bytes(w->format, w->n_out, w->n_in);
    }
}

/* Copies the n experts of a layer from number `first` on.  Returns false if one of them could not be read, or copied. */
static bool fill_layer(struct moe_context *c, int32_t first, int n)
{
    struct moe_residents *r = &c->residents;
    struct off_ticket ticket;
    bool all_there = true;
    int n_arrived;
    for (int i = 0; i < n; i++)
        r->rest[i] = first + i;
    off_fetch(c->model->store, r->rest, c->mark, n, OFF_NOW, &ticket);
    while ((n_arrived = off_wait(c->model->store, &ticket, &c->hands, c->arrived, c->view, c->arrived_status)) > 0) {
        for (int i = 0; i < n_arrived; i++)
            if (c->arrived_status[i] >= 0)
                copy_to(c, r->n_filled++, first + c->arrived[i], c->view[i].matrix);
            else
                all_there = false;
        all_there &= moe_wait(c) == 0; /* off_wait() and off_release() may evict experts that were handed out before */
    }
    off_release(c->model->store, &ticket);
    return all_there;
}

static void describe(struct moe_context *c, int layer, int32_t expert)
{
    struct moe_residents *r = &c->residents;
    const struct kn_mat *w = r->slot[r->slot_of[expert]].matrix;
    r->all[expert] = (struct kn_group){ .gate = w[0], .up = w[1], .down = w[2] };
    r->layer_formats[layer][0] |= kn_format_bit(&w[0]) | kn_format_bit(&w[1]);
    r->layer_formats[layer][1] |= kn_format_bit(&w[2]);
}

/* Copies all experts.  If one cannot be read, the others are used as if there were less room. */
static int fill(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    const struct moe_model *m = c->model;
    bool all_there = true;
    for (int l = 0; l < m->desc.n_layer && !c->error; l++)
        if (m->layer[l].router.n_out)
            all_there &= fill_layer(c, m->layer[l].expert0, m->desc.n_expert);
    for (int l = 0; all_there && l < m->desc.n_layer; l++)
        for (int e = 0; m->layer[l].router.n_out && e < m->desc.n_expert; e++)
            describe(c, l, m->layer[l].expert0 + e);
    if (all_there)
        moe_upload(c, r->all, (size_t)r->n * sizeof *r->all);
    r->is_whole = all_there && moe_wait(c) == 0;
    return c->error;
}

int moe_residents_open(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    if (!r->n)
        return 0;
    for (int e = 0; e < c->model->shape.n_expert_total; e++)
        r->slot_of[e] = -1;
    r->use = 1;
    int error = kn_memory_open(&r->memory, c->device.device, (size_t)r->n * c->model->resident_bytes, false);
    return error || !r->all ? error : fill(c);
}

bool moe_is_resident(const struct moe_context *c, int32_t expert)
{
    const struct moe_residents *r = &c->residents;
    return r->n && expert < c->model->shape.n_expert_total && r->slot_of[expert] >= 0;
}

void moe_residents_begin(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    r->use *= GROWTH;
    for (int e = 0; r->use > RESCALE && e < c->model->shape.n_expert_total; e++)
        r->heat[e] /= RESCALE;
    if (r->use > RESCALE)
        r->use = 1;
    if (r->is_whole) {
        *r->n_distinct = 0;
        moe_upload(c, r->n_distinct, sizeof *r->n_distinct);
    }
}

/* ---- all experts on the device ---------------------------------------------------------------------------------- */

bool moe_device_lists(const struct moe_context *c) { return c->residents.is_whole && !c->guess.sight; }

int moe_residents_list_all(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_residents *r = &c->residents;
    const struct kn_group *all = r->all + l->expert0;
    int n = kn_min(d->n_expert, c->n_row * d->n_used);
    memcpy(r->formats, r->layer_formats[layer], sizeof r->formats);
    kn_enqueue(c->queue, GROUP, group, .plan = moe_plan_at(c), .expert0 = l->expert0, .n_expert = d->n_expert,
               .expert = moe_at(c, all), .group = moe_at(c, r->group), .n_group = n, .n_sum = moe_at(c, r->n_distinct));
    return n;
}

void moe_residents_download(struct moe_context *c)
{
    if (moe_device_lists(c))
        moe_download(c, c->residents.n_distinct, sizeof *c->residents.n_distinct);
}

void moe_residents_end(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    if (!moe_device_lists(c))
        return;
    c->distinct = *r->n_distinct;
    r->n_used_all += (uint64_t)*r->n_distinct;
}

/* ---- some experts on the device --------------------------------------------------------------------------------- */

int moe_residents_list(struct moe_context *c, const struct moe_layer *l)
{
    struct moe_residents *r = &c->residents;
    const struct kn_plan *p = &c->plan;
    int n_there = 0;
    r->n_rest = r->n_copied = 0;
    r->formats[0] = r->formats[1] = 0;
    r->turn++;
    for (int e = 0; e < *p->n_expert; e++) {
        int32_t expert = p->expert[e];
        if (r->n)
            r->heat[expert] += r->use;
        if (!moe_is_resident(c, expert)) {
            r->rest_of[r->n_rest] = e;
            r->rest[r->n_rest++] = expert;
            continue;
        }
        struct moe_resident *s = &r->slot[r->slot_of[expert]];
        s->turn = r->turn;
        r->formats[0] |= kn_format_bit(&s->matrix[0]) | kn_format_bit(&s->matrix[1]);
        r->formats[1] |= kn_format_bit(&s->matrix[2]);
        r->group[n_there++] = (struct kn_group){ .gate = s->matrix[0],
                                                 .up = s->matrix[1],
                                                 .down = s->matrix[2],
                                                 .bias = expert - l->expert0,
                                                 .first = p->first[e],
                                                 .n = p->first[e + 1] - p->first[e] };
        r->rest[*p->n_expert - n_there] = expert;
    }
    r->n_used_all += (uint64_t)n_there;
    moe_upload(c, r->group, (size_t)n_there * sizeof *r->group);
    return n_there;
}

/* ---- which experts get a slot ------------------------------------------------------------------------------------ */

/* The slot of the expert with the least heat among those that this layer does not use; -1: there is none.  It is looked
 * for once in a turn, and again when it has been taken. */
static int coldest(struct moe_residents *r)
{
    int best = -1;
    if (r->cold_turn == r->turn)
        return r->cold;
    for (int i = 0; i < r->n_filled; i++)
        if (r->slot[i].turn != r->turn && (best < 0 || r->heat[r->slot[i].expert] < r->heat[r->slot[best].expert]))
            best = i;
    r->cold_turn = r->turn;
    r->cold = best;
    return best;
}

/* The slot that the expert may take; -1: none. */
static int slot_for(struct moe_residents *r, int32_t expert)
{
    if (r->n_filled < r->n)
        return r->n_filled++;
    int i = coldest(r);
    if (i < 0 || r->heat[expert] < CLEARLY * r->heat[r->slot[i].expert])
        return -1;
    r->slot_of[r->slot[i].expert] = -1;
    r->cold_turn = r->turn - 1;
    return i;
}

bool moe_residents_copy(struct moe_context *c, int32_t expert, const struct kn_mat *matrix)
{
    struct moe_residents *r = &c->residents;
    if (!r->n || r->n_copied == COPIES || expert >= c->model->shape.n_expert_total)
        return false;
    int i = slot_for(r, expert);
    if (i < 0)
        return false;
    copy_to(c, i, expert, matrix);
    r->n_copied++;
    return true;
}

struct moe_device_stats moe_context_device_stats(const struct moe_context *c)
{
    const struct moe_residents *r = &c->residents;
    return (struct moe_device_stats){
        .n_slot = r->n, .n_kept = r->n_filled, .n_used = r->n_used_all, .n_copied = r->n_copied_all
    };
}
