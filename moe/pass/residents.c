/* moe/pass/residents.c - experts that a device with memory of its own keeps there.
 *
 * The memory is divided into slots of one size.  An expert gets a slot after the host has computed it: a free slot, or
 * that of the expert with the least heat if its own heat is clearly more.  Heat counts the passes in which an expert was
 * used; later ones weigh more.  At most COPIES experts move in a layer: copies stop the host's computation.
 *
 * In a layer, experts with a slot are computed by the device, the others by the host, at the same time.  The result does
 * not depend on where: outputs are stored per (row, choice). */
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
}

int moe_residents_open(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    if (!r->n)
        return 0;
    for (int e = 0; e < c->model->shape.n_expert_total; e++)
        r->slot_of[e] = -1;
    r->use = 1;
    return kn_memory_open(&r->memory, c->device.device, (size_t)r->n * c->model->resident_bytes, false);
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
}

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
                                                 .node = -1,
                                                 .bias = expert - l->expert0,
                                                 .first = p->first[e],
                                                 .n = p->first[e + 1] - p->first[e] };
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
    uint8_t *at = r->memory.base + (size_t)i * c->model->resident_bytes;
    r->slot_of[expert] = i;
    r->slot[i].expert = expert;
    r->slot[i].turn = r->turn;
    r->n_copied++;
    r->n_copied_all++;
    for (int k = 0; k < MATRICES; k++) {
        const struct kn_mat *w = &matrix[k];
        r->slot[i].matrix[k] = *w;
        r->slot[i].matrix[k].data = at;
        if (w->n_out)
            kn_enqueue(c->queue, TRANSFER, transfer, .to = at, .from = w->data,
                       .bytes = kn_mat_bytes(w->format, w->n_out, w->n_in));
        at += moe_resident_bytes(w->format, w->n_out, w->n_in);
    }
    return true;
}

struct moe_device_stats moe_context_device_stats(const struct moe_context *c)
{
    const struct moe_residents *r = &c->residents;
    return (struct moe_device_stats){
        .n_slot = r->n, .n_kept = r->n_filled, .n_used = r->n_used_all, .n_copied = r->n_copied_all
    };
}
