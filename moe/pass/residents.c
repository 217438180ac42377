/* moe/pass/residents.c - experts that a device with memory of its own keeps there, or computes after a copy.
 *
 * The memory is divided into slots, for experts of each size (slot_pools.c).  In a layer the device computes the experts that
 * have a slot and some of the others, which are copied to a window of slots for this layer alone (where.c says how many); the
 * host computes the rest, at the same time.  Of the others the experts with most rows are copied.  The result does not depend on
 * where: outputs are stored per (row, choice).  The device finds its experts by the table `all`; its entries are uploaded as they
 * change (listings.c).
 *
 * An expert gets a slot to stay if one is free, or if it is clearly hotter than the coldest expert of its size that has one: an
 * expert in the window changes places with that one, which costs nothing; an expert that the host has computed is copied.  Such a
 * copy has to gain by more than chance, and where.c limits the time that such copies take.  Heat counts the passes that used an
 * expert; a pass counts by the expert's rows over those of the layer's mean one, and later passes weigh more.  Heat begins with
 * the store's, which knows earlier runs: then free slots wait for the experts that were the hottest.
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
#define WINDOW_MOST 32 /* slots of the largest */
#define KEPT_PASSES 50 /* a share of turns as heat: with GROWTH, heat over `use` is so many times the share */

static bool may_stay(const struct moe_context *c, int32_t expert)
{
    return expert >= c->residents.first && expert < c->model->shape.n_expert_total;
}

void moe_residents_lay_out(struct moe_context *c, struct moe_arenas *a)
{
    struct moe_residents *r = &c->residents;
    size_t n_expert = (size_t)c->model->desc.n_expert, n_all = (size_t)c->model->shape.n_expert_total;
    moe_slot_pools_share(r, c->model, &c->opt);
    r->rest = kn_arena_take(&a->host, n_expert, sizeof *r->rest);
    r->rest_of = kn_arena_take(&a->host, n_expert, sizeof *r->rest_of);
    r->passes = kn_arena_take(&a->host, n_expert, sizeof *r->passes);
    r->back = kn_arena_take(&a->host, n_expert, sizeof *r->back);
    if (!r->n_slot)
        return;
    moe_where_lay_out(&r->where, c->model->desc.n_layer, &a->host);
    r->slot_of = kn_arena_take(&a->host, n_all, sizeof *r->slot_of);
    r->heat = kn_arena_take(&a->host, n_all, sizeof *r->heat);
    r->slot = kn_arena_take(&a->host, (size_t)r->n_slot, sizeof *r->slot);
    r->group = kn_arena_take(&a->shared, n_expert, sizeof *r->group);
    r->listed = kn_arena_take(&a->device, n_expert, sizeof *r->listed);
    r->all = kn_arena_take(&a->shared, n_all, sizeof *r->all);
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
    const uint8_t *end = s->at + moe_slot_pool_of(c, expert)->slot_bytes;
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
    kn_assert(at <= end);
    c->residents.total.n_copied++;
}

static int free_slot(struct moe_slot_pool *p) { return p->first + p->n_filled++; }

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
                copy_to_stay(c, free_slot(moe_slot_pool_of(c, first + c->arrived[i])), first + c->arrived[i],
                             c->view[i].matrix);
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
    if (r->is_whole)
        kn_say(KN_LOG_INFO, "all %d experts were copied to the device: %llu MiB", r->n_slot,
               (unsigned long long)(r->total.copied_bytes >> 20));
    return c->error;
}

static int by_heat(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Takes the store's shares of turns for the first heat: free slots of a pool wait for as many experts.  Without memory for
 * it nothing is known. */
static void begin_with_kept_heat(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    int n_all = c->model->shape.n_expert_total;
    float *sorted = kn_calloc((size_t)(n_all - r->first), sizeof *sorted);
    if (!sorted)
        return;
    off_store_shares(c->model->store, 0, n_all, r->heat);
    for (int e = 0; e < n_all; e++)
        r->heat[e] *= KEPT_PASSES;
    for (int i = 0; i < r->n_pool; i++) {
        struct moe_slot_pool *p = &r->pool[i];
        size_t n = 0;
        for (int e = r->first; e < n_all; e++)
            if (moe_slot_pool_of(c, e) == p)
                sorted[n++] = r->heat[e];
        qsort(sorted, n, sizeof *sorted, by_heat);
        p->first_heat = p->n ? sorted[p->n - 1] : 0;
    }
    kn_free(sorted);
}

/* Opens the memory of the slots. */
static int open_slots(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    size_t bytes = 0;
    for (int i = 0; i < r->n_pool; i++)
        bytes += (size_t)r->pool[i].n_slot * r->pool[i].slot_bytes;
    int error = kn_memory_open(&r->memory, c->device.device, bytes, false);
    uint8_t *at = r->memory.base;
    for (int i = 0; !error && i < r->n_pool; i++)
        for (int k = 0; k < r->pool[i].n_slot; k++, at += r->pool[i].slot_bytes)
            r->slot[r->pool[i].first + k].at = at;
    return error;
}

int moe_residents_open(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    if (!r->n_slot)
        return 0;
    for (int e = 0; e < c->model->shape.n_expert_total; e++)
        r->slot_of[e] = -1;
    r->use = 1;
    moe_where_init(&r->where);
    int error = open_slots(c);
    bool fits = !r->first && r->n_slot == c->model->shape.n_expert_total;
    if (!error && fits)
        error = fill(c);
    if (error || r->is_whole)
        return error;
    if (!fits)
        begin_with_kept_heat(c);
    off_store_pin(c->model->store, c->device.device);
    return 0;
}

/* The store outlives the context. */
void moe_residents_close(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    for (int e = 0; r->slot_of && e < c->model->shape.n_expert_total; e++)
        if (r->slot_of[e] >= 0)
            off_store_elsewhere(c->model->store, e, false);
    kn_memory_close(&r->memory);
}

bool moe_is_resident(const struct moe_context *c, int32_t expert)
{
    const struct moe_residents *r = &c->residents;
    return r->n_slot && expert < c->model->shape.n_expert_total && r->slot_of[expert] >= 0;
}

void moe_residents_begin(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    if (c->present.only && !r->is_whole) /* nothing changes */
        return;
    r->use *= GROWTH;
    for (int e = 0; r->use > RESCALE && e < c->model->shape.n_expert_total; e++)
        r->heat[e] /= RESCALE;
    for (int i = 0; r->use > RESCALE && i < r->n_pool; i++) {
        r->pool[i].least_heat /= RESCALE;
        r->pool[i].first_heat /= RESCALE;
    }
    r->use = r->use > RESCALE ? 1 : r->use;
    if (r->is_whole) {
        r->n_distinct = moe_sheet_take(c, 1, sizeof *r->n_distinct);
        *r->n_distinct = 0;
        return;
    }
    for (int i = 0; i < r->n_pool; i++)
        moe_slot_pool_shrink_window(r, &r->pool[i], c->model->desc.n_layer);
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
    bool none = !r->n_slot ||
                expert0 >= c->model->shape.n_expert_total; /* draft heads have experts behind the others */
    kn_enqueue(c->queue, GROUP, group, .plan = moe_plan_at(c), .expert0 = expert0, .n_expert = d->n_expert,
               .expert = none ? NULL : moe_at(c, r->all + expert0), .group = none ? NULL : r->listed,
               .n_group = none ? 0 : moe_most_experts(c), .n_pair = c->n_row * d->n_used, .out = moe_at(c, g->out),
               .place = moe_at(c, g->place), .n_absent = moe_at(c, g->n_absent),
               .weight = g->out_weight ? c->route.weight : NULL,
               .out_weight = g->out_weight ? moe_at(c, g->out_weight) : NULL, .done = moe_listing_done(c, g->number),
               .turn = g->number);
}

/* The rows of an expert over those of the layer's mean one: where a pass uses nearly all experts, the use alone tells nothing. */
static float weight_of(const struct kn_plan *p, int e)
{
    return (float)((p->first[e + 1] - p->first[e]) * *p->n_expert) / (float)p->first[*p->n_expert];
}

int moe_residents_list(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    const struct kn_plan *p = &c->plan;
    int n_there = 0;
    r->n_rest = r->n_kept = r->n_group = 0;
    r->failed = false;
    r->turn += !c->present.only;
    for (int e = 0; e < *p->n_expert; e++) {
        int32_t expert = p->expert[e];
        if (r->n_slot && !c->present.only)
            r->heat[expert] += r->use * weight_of(p, e);
        if (!moe_is_resident(c, expert)) {
            r->rest_of[r->n_rest] = e;
            r->rest[r->n_rest++] = expert;
            continue;
        }
        r->slot[r->slot_of[expert]].turn = r->turn;
        r->rest[*p->n_expert - ++n_there] = expert;
    }
    if (c->present.only)
        return n_there;
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

static bool can_pass(struct moe_context *c, int i) { return moe_slot_pool_of(c, c->residents.rest[i])->n_window > 0; }

/* Marks n experts of the rest: only experts in a pool with a window, all n_can of them or the ones with most rows. */
static void mark_passing(struct moe_context *c, int n, int n_can)
{
    struct moe_residents *r = &c->residents;
    for (int i = 0; i < r->n_rest; i++)
        r->passes[i] = n && n == n_can && can_pass(c, i);
    for (int k = 0; n < n_can && k < n; k++) {
        int best = -1;
        for (int i = 0; i < r->n_rest; i++)
            if (!r->passes[i] && can_pass(c, i) && (best < 0 || is_before(c, i, best)))
                best = i;
        r->passes[best] = true;
    }
}

/* ---- the window --------------------------------------------------------------------------------------------------- */

/* The expert of slot i gives it to the pool's last expert that stays; the last one's slot belongs to the window from now on.
 * Their memory stays where it is, and so does the entry of the last one in the table. */
static void drop(struct moe_context *c, struct moe_slot_pool *p, int i)
{
    struct moe_residents *r = &c->residents;
    struct moe_resident *last = &r->slot[p->first + p->n], dropped = r->slot[i];
    r->slot_of[last->expert] = i;
    leave(c, dropped.expert);
    r->slot[i] = *last;
    *last = dropped;
    p->n_filled = p->n;
    p->cold_turn = r->turn - 1;
    bring_back(c, last, -1);
}

/* Takes slots for a window from the experts that stay: free ones, then those of the experts with the least heat. */
static void grow_window(struct moe_context *c, struct moe_slot_pool *p, int n_window)
{
    while (p->n_window < n_window) {
        bool full = p->n_filled == p->n;
        int i = full ? moe_slot_pool_coldest(&c->residents, p) : 0;
        if (i < 0)
            return;
        p->n--;
        p->n_window++;
        if (full)
            drop(c, p, i);
    }
}

static void fit_windows(struct moe_context *c)
{
    struct moe_residents *r = &c->residents;
    int n_copy[OFF_SLOT_SIZES] = { 0 };
    for (int i = 0; i < r->n_rest; i++)
        n_copy[moe_slot_pool_of(c, r->rest[i]) - r->pool] += r->passes[i];
    for (int i = 0; i < r->n_pool; i++) {
        struct moe_slot_pool *p = &r->pool[i];
        if (n_copy[i] <= MOE_WINDOW_LEAST)
            continue;
        p->window_turn = r->turn;
        grow_window(c, p, kn_min(n_copy[i], moe_slot_pool_window(p, WINDOW_MOST)));
    }
}

void moe_residents_choose(struct moe_context *c, int layer)
{
    struct moe_residents *r = &c->residents;
    int n_can = 0;
    for (int i = 0; r->has_window && i < r->n_rest; i++)
        n_can += can_pass(c, i);
    int n_copy = r->has_window ? moe_where_copies(&r->where, layer, c->n_row, n_can) : 0;
    mark_passing(c, n_copy, n_can);
    if (n_copy > MOE_WINDOW_LEAST && moe_where_uses_copies(&r->where, c->n_row))
        fit_windows(c);
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
 * over `use` is a sum of uses with falling weights; its variance is about half of it where uses count one, as in passes of few
 * rows.  In passes of many rows an expert's uses count more or less than one, and its variance may be larger. */
static int slot_for(struct moe_context *c, struct moe_slot_pool *p, int32_t expert, float deviations)
{
    struct moe_residents *r = &c->residents;
    float heat = r->heat[expert];
    if (p->n_filled < p->n)
        return heat < p->first_heat ? -1 : free_slot(p);
    if (heat < CLEARLY * p->least_heat)
        return -1;
    int i = moe_slot_pool_coldest(r, p);
    if (i < 0)
        return -1;
    float least = r->heat[r->slot[i].expert], more = heat - least;
    if (heat < CLEARLY * least || more * more < deviations * deviations * r->use * (heat + least) / 2)
        return -1;
    leave(c, r->slot[i].expert);
    p->cold_turn = r->turn - 1;
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
static void keep(struct moe_context *c, struct moe_slot_pool *p, struct moe_resident *s)
{
    bool exchange = p->n_filled == p->n;
    int i = may_stay(c, s->expert) ? slot_for(c, p, s->expert, 0) : -1;
    if (i >= 0)
        change_places(c, s, i, exchange);
}

bool moe_residents_window_is_full(struct moe_context *c, int32_t expert)
{
    const struct moe_slot_pool *p = moe_slot_pool_of(c, expert);
    return p->n_round == p->n_window;
}

void moe_residents_pass(struct moe_context *c, const struct moe_layer *l, int e, const struct kn_mat *matrix)
{
    struct moe_residents *r = &c->residents;
    struct moe_slot_pool *p = moe_slot_pool_of(c, c->plan.expert[e]);
    kn_assert(p->n_round < p->n_window);
    int slot = p->first + p->n + p->n_round++;
    if (!r->n_round++)
        r->formats[0] = r->formats[1] = 0;
    copy_to(c, slot, c->plan.expert[e], matrix);
    r->formats[0] |= kn_format_bit(&matrix[0]) | kn_format_bit(&matrix[1]);
    r->formats[1] |= kn_format_bit(&matrix[2]);
    r->group[r->n_group++] = moe_plan_group(&c->plan, e, r->slot[slot].matrix, l->expert0);
    keep(c, p, &r->slot[slot]);
}

const struct kn_group *moe_residents_round(struct moe_context *c, int *n)
{
    struct moe_residents *r = &c->residents;
    const struct kn_group *group = r->group + r->n_group - r->n_round;
    *n = r->n_round;
    moe_upload_beside(c, group, (size_t)r->n_round * sizeof *group);
    r->n_round = 0;
    for (int i = 0; i < r->n_pool; i++)
        r->pool[i].n_round = 0;
    return group;
}

/* A pool without a window exchanges no experts: the one that lost its place could not be copied back. */
bool moe_residents_copy(struct moe_context *c, int32_t expert, const struct kn_mat *matrix)
{
    struct moe_residents *r = &c->residents;
    if (!r->n_slot || r->n_kept == COPIES || !may_stay(c, expert))
        return false;
    struct moe_slot_pool *p = moe_slot_pool_of(c, expert);
    bool exchange = p->n_filled == p->n;
    if (exchange && (!p->n_window || !moe_where_may_exchange(&r->where)))
        return false;
    int i = slot_for(c, p, expert, DEVIATIONS);
    if (i < 0)
        return false;
    if (exchange) { /* by the window, from where the other one can be copied back */
        int by = p->first + p->n;
        moe_where_exchanged(&r->where);
        copy_to(c, by, expert, matrix);
        change_places(c, &r->slot[by], i, true);
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
    for (int i = 0; i < r->n_pool; i++) {
        const struct moe_slot_pool *p = &r->pool[i];
        s.n_slot += p->n;
        s.n_kept += p->n_filled;
        s.slot_bytes += (size_t)p->n * p->slot_bytes;
        s.kept_bytes += (size_t)p->n_filled * p->slot_bytes;
    }
    return s;
}
