/* moe/pass/residents.c - experts that a device with memory of its own keeps there, or computes after a copy.
 *
 * The memory is divided into slots of one size.  In a layer the device computes the experts that have a slot and some of the
 * others, which are copied to a window of slots for this layer alone (where.c says how many); the host computes the rest, at
 * the same time.  Of the others those with most rows are copied.  The result does not depend on where: outputs are stored per
 * (row, choice).  The device finds its experts by the table `all`; its entries are uploaded as they change (listings.c).
 *
 * An expert gets a slot to stay if one is free, or if it is clearly hotter than the coldest expert that has one: an expert in
 * the window changes places with that one, which costs nothing; an expert that the host has computed is copied.  Such a copy has
 * to gain by more than chance, and where.c limits the time that such copies take.  Heat counts the passes in which an expert was
 * used; later ones weigh more.  It begins with the store's, which knows those of earlier runs: then free slots wait for the
 * experts that were the hottest.
 *
 * The host evicts first the experts that the device keeps.  So an expert that loses its place may be nowhere but there: then it
 * is copied back, to the host's slot of the one that has taken it.  A model that needs the memory of both is not read again.
 *
 * The window is a few slots; the others are for experts that stay.  It grows when copies are the rule, and shrinks again when they
 * no longer are.
 *
 * If all experts have room they are copied when the context is opened.  Then a pass needs the host only for its rows and its
 * logits. */
#include "moe/pass/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COPIES      2     /* experts that are copied in one layer to stay, at most */
#define GROWTH      1.02f /* weight of a use in a pass, over that in the pass before */
#define CLEARLY     1.25f /* times the heat of the expert that loses its slot, */
#define DEVIATIONS  3     /* and for a copy the heat of chance added: so many standard deviations of the difference */
#define RESCALE     1e20f
#define MATRICES    3
#define WINDOW      32 /* slots of the window: at most so many, */
#define WINDOW_PART 8  /* or a part of all; */
#define WINDOW_MIN  4  /* so many, or that part, for trials */
#define WINDOW_IDLE 64 /* passes without need of more, after which it has so few again */
#define KEPT_PASSES 50 /* a share of turns as heat: with GROWTH, heat over `use` is so many times the share */

/* The first expert that may stay on the device. */
static int32_t first_expert(const struct moe_model *m, int n_host_layer)
{
    int32_t first = 0;
    for (int i = 0; i < kn_min(n_host_layer, m->desc.n_layer); i++)
        if (m->layer[i].router.n_out)
            first = m->layer[i].expert0 + m->desc.n_expert;
    return first;
}

int moe_n_device_experts(const struct moe_model *m, int n_host_layer)
{
    return m->shape.n_expert_total - first_expert(m, n_host_layer);
}

int moe_n_resident(const struct moe_model *m, const struct moe_context_options *opt)
{
    size_t n = m->resident_bytes ? opt->resident_bytes / m->resident_bytes : 0;
    size_t most = (size_t)moe_n_device_experts(m, opt->n_host_layer);
    return (int)(n < most ? n : most);
}

static bool may_stay(const struct moe_context *c, int32_t expert)
{
    return expert >= c->residents.first && expert < c->model->shape.n_expert_total;
}

/* The largest window of n_slot slots, and with `most` WINDOW_MIN the smallest. */
static int window_of(const struct moe_context *c, int n_slot, int most)
{
    int n = kn_min(kn_max(n_slot / WINDOW_PART, 1), most);
    return n_slot < c->model->shape.n_expert_total ? kn_min(kn_min(n, n_slot / 2), c->model->desc.n_expert) : 0;
}

void moe_residents_lay_out(struct moe_context *c, struct moe_arenas *a)
{
    struct moe_residents *r = &c->residents;
    size_t n_expert = (size_t)c->model->desc.n_expert, n_all = (size_t)c->model->shape.n_expert_total;
    r->n = moe_n_resident(c->model, &c->opt);
    r->first = first_expert(c->model, c->opt.n_host_layer);
    r->n_window = window_of(c, r->n, WINDOW_MIN);
    r->rest = kn_arena_take(&a->host, n_expert, sizeof *r->rest);
    r->rest_of = kn_arena_take(&a->host, n_expert, sizeof *r->rest_of);
    r->passes = kn_arena_take(&a->host, n_expert, sizeof *r->passes);
    r->back = kn_arena_take(&a->host, n_expert, sizeof *r->back);
    if (!r->n)
        return;
    moe_where_lay_out(&r->where, c->model->desc.n_layer, &a->host);
    r->slot_of = kn_arena_take(&a->host, n_all, sizeof *r->slot_of);
    r->heat = kn_arena_take(&a->host, n_all, sizeof *r->heat);
    r->slot = kn_arena_take(&a->host, (size_t)r->n, sizeof *r->slot);
    r->group = kn_arena_take(&a->shared, n_expert, sizeof *r->group);
    r->listed = kn_arena_take(&a->device, n_expert, sizeof *r->listed);
    r->all = kn_arena_take(&a->shared, n_all, sizeof *r->all);
    r->n -= r->n_window;
}

/* ---- the table ------------------------------------------------------------------------------------------------------- */

/* The expert is in the slot. */
static void enter(struct moe_context *c, int32_t expert, int slot)
{
    struct moe_residents *r = &c->residents;
    const struct kn_mat *w = r->slot[slot].matrix;
    r->slot_of[expert] = slot;
    r->all[expert] = (struct kn_group){ .gate = w[0], .up = w[1], .down = w[2] };
    moe_upload_beside(c, &r->all[expert], sizeof *r->all);
    off_store_elsewhere(c->model->store, expert, true);
}

static void leave(struct moe_context *c, int32_t expert)
{
    struct moe_residents *r = &c->residents;
    r->slot_of[expert] = -1;
    r->all[expert].gate.data = NULL;
    moe_upload_beside(c, &r->all[expert], sizeof *r->all);
    off_store_elsewhere(c->model->store, expert, false);
}

/* ---- copies ---------------------------------------------------------------------------------------------------------- */

/* Copies a matrix between the memories.  Returns its bytes. */
static size_t copy_matrix(struct moe_context *c, const void *to, const struct kn_mat *w)
{
    size_t bytes = w->n_out ? kn_mat_bytes(w->format, w->n_out, w->n_in) : 0;
    if (bytes)
        kn_enqueue(c->copies, TRANSFER, transfer, .to = (uint8_t *)(uintptr_t)to, .from = w->data, .bytes = bytes);
    return bytes;
}

/* Copies an expert to a slot.  Its matrices must stay until a wait. */
static void copy_to(struct moe_context *c, int slot, int32_t expert, const struct kn_mat *matrix)
{
    struct moe_resident *s = &c->residents.slot[slot];
    uint8_t *at = s->at;
    s->expert = expert;
    s->turn = c->residents.turn;
    for (int k = 0; k < MATRICES; k++) {
        const struct kn_mat *w = &matrix[k];
        s->matrix[k] = *w;
        s->matrix[k].data = at;
        c->residents.total.copied_bytes += copy_matrix(c, at, w);
        at += moe_resident_bytes(w->format, w->n_out, w->n_in);
    }
    c->residents.total.n_copied++;
}

/* Copies an expert to a slot, which it keeps. */
static void copy_to_stay(struct moe_context *c, int slot, int32_t expert, const struct kn_mat *matrix)
{
    copy_to(c, slot, expert, matrix);
    enter(c, expert, slot);
}

/* The expert of a slot has lost its place, and the slot is the window's.  If the host has no copy of the expert it gets one, so that
 * the expert is not read again: in the slot of expert `left`, which has taken the place, if no other context uses that one.
 * The copy comes before all later ones to the slot.  left -1: none. */
static void bring_back(struct moe_context *c, const struct moe_resident *s, int32_t left)
{
    struct moe_residents *r = &c->residents;
    struct off_view view;
    if (!r->ticket.n || r->n_back == c->model->desc.n_expert ||
        !off_store_bring_back(c->model->store, &r->ticket, left, s->expert, &view))
        return;
    for (int k = 0; k < MATRICES; k++)
        copy_matrix(c, view.matrix[k].data, &s->matrix[k]);
    r->back[r->n_back++] = s->expert;
    r->total.n_back++;
}

void moe_residents_copied(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    while (r->n_back)
        off_store_brought_back(c->model->store, r->back[--r->n_back], !c->error);
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
                copy_to_stay(c, r->n_filled++, first + c->arrived[i], c->view[i].matrix);
            else
                all_there = false;
        all_there &= moe_wait(c) == 0; /* off_wait() and off_release() may evict experts that were handed out before */
    }
    off_release(c->model->store, &ticket);
    return all_there;
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
    r->is_whole = all_there && moe_wait(c) == 0;
    return c->error;
}

static int by_heat(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Takes the store's shares of turns for the first heat.  Without memory for it nothing is known. */
static void begin_with_kept_heat(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    int n = c->model->shape.n_expert_total;
    size_t n_may = (size_t)(n - r->first);
    float *sorted = kn_calloc(n_may, sizeof *sorted);
    if (!sorted)
        return;
    off_store_shares(c->model->store, 0, n, r->heat);
    for (int e = 0; e < n; e++)
        r->heat[e] *= KEPT_PASSES;
    memcpy(sorted, r->heat + r->first, n_may * sizeof *sorted);
    qsort(sorted, n_may, sizeof *sorted, by_heat);
    r->first_heat = sorted[r->n - 1];
    kn_free(sorted);
}

int moe_residents_open(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    if (!r->n)
        return 0;
    for (int e = 0; e < c->model->shape.n_expert_total; e++)
        r->slot_of[e] = -1;
    r->use = 1;
    moe_where_init(&r->where);
    int n_slot = r->n + r->n_window;
    int error = kn_memory_open(&r->memory, c->device.device, (size_t)n_slot * c->model->resident_bytes, false);
    for (int i = 0; i < n_slot; i++)
        r->slot[i].at = r->memory.base + (size_t)i * c->model->resident_bytes;
    if (!error && r->n == c->model->shape.n_expert_total)
        error = fill(c);
    if (error || r->is_whole)
        return error;
    if (!r->n_filled)
        begin_with_kept_heat(c);
    off_store_pin(c->model->store, c->device.device);
    return 0;
}

bool moe_is_resident(const struct moe_context *c, int32_t expert)
{
    const struct moe_residents *r = &c->residents;
    return r->n && expert < c->model->shape.n_expert_total && r->slot_of[expert] >= 0;
}

/* A window that more than WINDOW_MIN copies have not needed for long becomes small again; its slots are free. */
static void shrink_window(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    int least = window_of(c, r->n + r->n_window, WINDOW_MIN);
    uint32_t idle = r->turn - r->window_turn;
    if (r->n_window <= least || idle / WINDOW_IDLE < (uint32_t)c->model->desc.n_layer)
        return;
    r->n += r->n_window - least;
    r->n_window = least;
}

void moe_residents_begin(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    r->use *= GROWTH;
    for (int e = 0; r->use > RESCALE && e < c->model->shape.n_expert_total; e++)
        r->heat[e] /= RESCALE;
    if (r->use > RESCALE) {
        r->least_heat /= RESCALE;
        r->first_heat /= RESCALE;
        r->use = 1;
    }
    if (r->is_whole) {
        r->n_distinct = moe_sheet_take(c, 1, sizeof *r->n_distinct);
        *r->n_distinct = 0;
    } else if (r->n) {
        shrink_window(c);
    }
}

/* ---- all experts on the device ---------------------------------------------------------------------------------- */

bool moe_device_lists(const struct moe_context *c) { return c->residents.is_whole && !c->guess.sight; }

void moe_residents_list_all(struct moe_context *c, int layer)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_layer *l = &c->model->layer[layer];
    struct moe_residents *r = &c->residents;
    const struct kn_group *all = r->all + l->expert0;
    kn_enqueue(c->queue, GROUP, group, .plan = moe_plan_at(c), .expert0 = l->expert0, .n_expert = d->n_expert,
               .expert = moe_at(c, all), .group = r->listed, .n_group = moe_most_experts(c),
               .n_sum = moe_at(c, r->n_distinct));
    r->total.n_layer++;
    r->total.n_alone++;
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
    r->total.n_used += (uint64_t)*r->n_distinct;
}

/* ---- some experts on the device --------------------------------------------------------------------------------- */

void moe_residents_mark(struct moe_context *c, const struct moe_listing *g)
{
    const struct moe_desc *d = &c->model->desc;
    const struct moe_residents *r = &c->residents;
    int32_t expert0 = c->model->layer[g->layer].expert0;
    bool none = !r->n || expert0 >= c->model->shape.n_expert_total; /* draft heads have experts behind the others */
    kn_enqueue(c->queue, GROUP, group, .plan = moe_plan_at(c), .expert0 = expert0, .n_expert = d->n_expert,
               .expert = none ? NULL : moe_at(c, r->all + expert0), .group = none ? NULL : r->listed,
               .n_group = none ? 0 : moe_most_experts(c), .n_pair = c->n_row * d->n_used, .out = moe_at(c, g->out),
               .place = moe_at(c, g->place), .n_absent = moe_at(c, g->n_absent),
               .weight = g->out_weight ? c->route.weight : NULL,
               .out_weight = g->out_weight ? moe_at(c, g->out_weight) : NULL, .done = moe_listing_done(c, g->number),
               .turn = g->number);
}

int moe_residents_list(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    const struct kn_plan *p = &c->plan;
    int n_there = 0;
    r->n_rest = r->n_kept = r->n_group = r->n_round = 0;
    r->failed = false;
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
        r->slot[r->slot_of[expert]].turn = r->turn;
        r->rest[*p->n_expert - ++n_there] = expert;
    }
    r->total.n_used += (uint64_t)n_there;
    r->total.n_layer++;
    r->total.n_alone += c->listings.ahead && !r->n_rest;
    return n_there;
}

/* ---- which experts are copied for this layer ------------------------------------------------------------------------ */

static int rows_of(const struct moe_context *c, int i)
{
    int e = c->residents.rest_of[i];
    return c->plan.first[e + 1] - c->plan.first[e];
}

/* Whether the i-th of the rest is copied before the k-th: it has more rows, or as many and more heat. */
static bool is_before(const struct moe_context *c, int i, int k)
{
    const struct moe_residents *r = &c->residents;
    int more = rows_of(c, i) - rows_of(c, k);
    return more > 0 || (more == 0 && r->heat[r->rest[i]] > r->heat[r->rest[k]]);
}

static void mark_passing(struct moe_context *c, int n)
{
    struct moe_residents *r = &c->residents;
    memset(r->passes, n == r->n_rest, (size_t)r->n_rest * sizeof *r->passes);
    for (int k = 0; n < r->n_rest && k < n; k++) {
        int best = -1;
        for (int i = 0; i < r->n_rest; i++)
            if (!r->passes[i] && (best < 0 || is_before(c, i, best)))
                best = i;
        r->passes[best] = true;
    }
}

/* ---- the coldest expert, and the window --------------------------------------------------------------------------- */

/* The slot of the expert with the least heat among those that this layer does not use; -1: there is none.  It is looked
 * for once in a turn, and again when it has been taken. */
static int coldest(struct moe_residents *r)
{
    int best = -1;
    float least = HUGE_VALF;
    if (r->cold_turn == r->turn)
        return r->cold;
    for (int i = 0; i < r->n_filled; i++) {
        float heat = r->heat[r->slot[i].expert];
        least = heat < least ? heat : least;
        if (r->slot[i].turn != r->turn && (best < 0 || heat < r->heat[r->slot[best].expert]))
            best = i;
    }
    r->least_heat = least;
    r->cold_turn = r->turn;
    r->cold = best;
    return best;
}

/* The expert of slot i loses it to the last one that stays, whose slot is behind those of the experts that stay from now on.
 * Their memory stays where it is, and so does the entry of the last one in the table. */
static void drop(struct moe_context *c, int i)
{
    struct moe_residents *r = &c->residents;
    struct moe_resident *last = &r->slot[r->n], dropped = r->slot[i];
    r->slot_of[last->expert] = i;
    leave(c, dropped.expert);
    r->slot[i] = *last;
    *last = dropped;
    r->n_filled = r->n;
    r->cold_turn = r->turn - 1;
    bring_back(c, last, -1);
}

/* Takes slots for the window from the experts that stay: free ones, then those of the experts with the least heat. */
static void grow_window(struct moe_context *c, int n_window)
{
    struct moe_residents *r = &c->residents;
    while (r->n_window < n_window) {
        bool full = r->n_filled == r->n;
        int i = full ? coldest(r) : 0;
        if (i < 0)
            return;
        r->n--;
        r->n_window++;
        if (full)
            drop(c, i);
    }
}

static void fit_window(struct moe_context *c, int n_copy)
{
    struct moe_residents *r = &c->residents;
    if (n_copy <= WINDOW_MIN || !moe_where_uses_copies(&r->where, c->n_row))
        return;
    r->window_turn = r->turn;
    grow_window(c, kn_min(n_copy, window_of(c, r->n + r->n_window, WINDOW)));
}

void moe_residents_choose(struct moe_context *c, int layer)
{
    struct moe_residents *r = &c->residents;
    int n_copy = r->n_window ? moe_where_copies(&r->where, layer, c->n_row, r->n_rest) : 0;
    mark_passing(c, n_copy);
    fit_window(c, n_copy);
    r->total.n_passed += (uint64_t)n_copy;
    r->total.n_host += (uint64_t)(r->n_rest - n_copy);
}

static void upload_rows(struct moe_context *c, int first, int end)
{
    size_t d = (size_t)c->model->desc.d_model;
    float *y = moe_image(c, c->y);
    moe_upload_beside(c, y + (size_t)first * d, (size_t)(end - first) * d * sizeof *y);
}

void moe_residents_upload(struct moe_context *c)
{
    const struct moe_residents *r = &c->residents;
    int first = 0, end = 0; /* outputs of neighbours */
    for (int i = 0; i < r->n_rest; i++) {
        const int32_t *pairs = &c->plan.first[r->rest_of[i]];
        if (r->passes[i] || pairs[0] == pairs[1])
            continue;
        if (r->out[pairs[0]] != end) {
            upload_rows(c, first, end);
            first = r->out[pairs[0]];
        }
        end = r->out[pairs[0]] + pairs[1] - pairs[0];
    }
    upload_rows(c, first, end);
}

/* ---- which experts get a slot ------------------------------------------------------------------------------------ */

/* The slot that the expert may take; -1: none.  deviations: those of chance that the difference of heat must exceed.  Heat
 * over `use` is a sum of uses with falling weights; its variance is about half of it. */
static int slot_for(struct moe_context *c, int32_t expert, float deviations)
{
    struct moe_residents *r = &c->residents;
    float heat = r->heat[expert];
    if (r->n_filled < r->n)
        return heat < r->first_heat ? -1 : r->n_filled++;
    if (heat < CLEARLY * r->least_heat)
        return -1;
    int i = coldest(r);
    if (i < 0)
        return -1;
    float least = r->heat[r->slot[i].expert], more = heat - least;
    if (heat < CLEARLY * least || more * more < deviations * deviations * r->use * (heat + least) / 2)
        return -1;
    leave(c, r->slot[i].expert);
    r->cold_turn = r->turn - 1;
    return i;
}

/* The window's slot s changes places with slot i, whose expert has lost its place, or has none. */
static void change_places(struct moe_context *c, struct moe_resident *s, int i, bool exchange)
{
    struct moe_residents *r = &c->residents;
    struct moe_resident other = r->slot[i];
    r->slot[i] = *s;
    *s = other;
    enter(c, r->slot[i].expert, i);
    if (exchange)
        bring_back(c, s, r->slot[i].expert);
}

/* An expert in the window may stay. */
static void keep(struct moe_context *c, struct moe_resident *s)
{
    struct moe_residents *r = &c->residents;
    bool exchange = r->n_filled == r->n;
    int i = may_stay(c, s->expert) ? slot_for(c, s->expert, 0) : -1;
    if (i >= 0)
        change_places(c, s, i, exchange);
}

void moe_residents_pass(struct moe_context *c, const struct moe_layer *l, int e, const struct kn_mat *matrix)
{
    struct moe_residents *r = &c->residents;
    kn_assert(r->n_round < r->n_window);
    int slot = r->n + r->n_round++;
    if (r->n_round == 1)
        r->formats[0] = r->formats[1] = 0;
    copy_to(c, slot, c->plan.expert[e], matrix);
    r->formats[0] |= kn_format_bit(&matrix[0]) | kn_format_bit(&matrix[1]);
    r->formats[1] |= kn_format_bit(&matrix[2]);
    r->group[r->n_group++] = moe_plan_group(&c->plan, e, r->slot[slot].matrix, l->expert0);
    keep(c, &r->slot[slot]);
}

const struct kn_group *moe_residents_round(struct moe_context *c, int *n)
{
    struct moe_residents *r = &c->residents;
    const struct kn_group *group = r->group + r->n_group - r->n_round;
    *n = r->n_round;
    moe_upload_beside(c, group, (size_t)r->n_round * sizeof *group);
    r->n_round = 0;
    return group;
}

bool moe_residents_copy(struct moe_context *c, int32_t expert, const struct kn_mat *matrix)
{
    struct moe_residents *r = &c->residents;
    if (!r->n || r->n_kept == COPIES || !may_stay(c, expert))
        return false;
    bool exchange = r->n_filled == r->n;
    if (exchange && !moe_where_may_exchange(&r->where))
        return false;
    int i = slot_for(c, expert, DEVIATIONS);
    if (i < 0)
        return false;
    if (exchange)
        moe_where_exchanged(&r->where);
    if (exchange && r->n_window) { /* by the window, from where the other one can be copied back */
        copy_to(c, r->n, expert, matrix);
        change_places(c, &r->slot[r->n], i, true);
    } else {
        copy_to_stay(c, i, expert, matrix);
    }
    r->n_kept++;
    return true;
}

struct moe_device_stats moe_context_device_stats(const struct moe_context *c)
{
    const struct moe_residents *r = &c->residents;
    struct moe_device_stats s = r->total;
    s.n_slot = r->n;
    s.n_kept = r->n_filled;
    return s;
}
