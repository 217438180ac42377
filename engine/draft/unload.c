/* engine/draft/unload.c - drafters that are not worth their memory are unloaded, and loaded again when they are.
 *
 * A drafter with a network takes memory that could hold experts. While some experts are on disk, an account (speculative/memory.h)
 * compares the time saved by its drafts with the time that the memory would save. If the drafts save less, the memory of the
 * drafter's weights, buffers, keys and values goes to the expert cache. It is taken back when the drafts promise more, as they
 * may when more sequences are due.
 *
 * Drafters without a network are never unloaded: their memory is small. */
#include "engine/draft/internal.h"

#include <math.h>

#define STEPS_TO_MEAN 64 /* the number of due sequences is averaged over so many steps */

static size_t returned_bytes(const struct eng_drafting *g, const struct eng_drafter *d)
{
    struct eng_extra its = eng_drafter_need(d);
    size_t kv = g->host.split->device.total ? 0 : (its.slot - its.kept) * (size_t)g->host.split->n_kv_slot;
    return its.weights + its.step + kv; /* of the host: a device's memory cannot hold other experts of the store */
}

/* returned_bytes, and the memory of the drafter's own experts in the store, by their share of all experts. */
static size_t freed_expert_bytes(const struct eng_drafting *g, const struct eng_drafter *d)
{
    double own = (double)eng_drafter_need(d).n_moe_layer * moe_model_shape(g->host.model)->n_expert;
    return returned_bytes(g, d) + (size_t)(own > 0 ? own / g->host.split->n_expert * (double)g->host.split->expert : 0);
}

size_t eng_draft_returnable_bytes(const struct eng_drafting *g)
{
    size_t bytes = 0;
    for (int i = 0; i < g->n_drafter && g->opt.gamma == ENG_GAMMA_AUTO; i++)
        if (g->drafter[i]->kind->unload)
            bytes += returned_bytes(g, g->drafter[i]);
    return bytes;
}

/* The share by which a plain step would be shorter with the drafter's memory for experts; of an unloaded one: is shorter. */
static double memory_value(const struct eng_drafting *g, const struct eng_drafter *d)
{
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    struct spec_cost_model more = g->cost; /* of the split with all drafters loaded */
    if (g->cost.disk_ns <= 0)
        return 0;
    double n = g->host.split->n_expert, missing = eng_split_on_disk(g->host.split);
    double fit = (double)freed_expert_bytes(g, d) / (double)shape->expert_bytes * n;
    if (d->memory.unloaded)
        missing += fit;
    more.disk_ns *= missing > fit ? 1 - fit / missing : 0;
    double now = spec_cost_pass_ns(&g->cost, g->due_mean, 0, 0) + spec_cost_choose_ns(&g->cost, g->due_mean);
    return 1 - (spec_cost_pass_ns(&more, g->due_mean, 0, 0) + spec_cost_choose_ns(&more, g->due_mean)) / now;
}

/* ---- unloading, and loading again ------------------------------------------------------------------------- */

/* Moves the drafter's memory from or to the experts' part of the split. */
static void set_split(const struct eng_drafting *g, const struct eng_drafter *d, bool to_experts)
{
    struct eng_extra its = eng_drafter_need(d);
    its.slot -= its.kept;
    eng_split_move(g->host.split, &its, moe_model_shape(g->host.model)->expert_bytes, to_experts);
}

/* Its keys and values are lost. */
static void forget_computed(struct eng_drafting *g, const struct eng_drafter *d)
{
    for (int i = 0; i < g->host.n_parallel; i++) {
        g->seat[i].n_computed[d->number] = 0;
        if (d == eng_overlap_drafter(g))
            g->seat[i].chain.n = 0;
    }
    for (int i = 0; i < g->host.kv->n_block; i++)
        g->host.kv->block[i].drafted &= (uint8_t) ~(1 << d->number);
}

static void give_memory(struct eng_drafting *g, struct eng_drafter *d)
{
    kn_assert(!d->memory.unloaded);
    d->kind->unload(d);
    spec_memory_set_loaded(&d->memory, false);
    if (!moe_model_store(g->host.model))
        return;
    off_store_grow(moe_model_store(g->host.model), returned_bytes(g, d));
    set_split(g, d, true);
}

void eng_draft_unload(struct eng_drafting *g, int drafter)
{
    forget_computed(g, g->drafter[drafter]);
    give_memory(g, g->drafter[drafter]);
}

bool eng_draft_load_again(struct eng_drafting *g, int drafter)
{
    struct eng_drafter *d = g->drafter[drafter];
    struct off_store *store = moe_model_store(g->host.model);
    if (d->broken || !d->memory.unloaded || (store && !off_store_shrink(store, returned_bytes(g, d))))
        return false;
    if (store)
        set_split(g, d, false);
    spec_memory_set_loaded(&d->memory, true);
    int error = d->kind->load(d);
    if (!error)
        return true;
    give_memory(g, d);
    eng_draft_break(d, error);
    return false;
}

/* ---- the account ------------------------------------------------------------------------------------------ */

/* The time that plans with the drafter have saved so far; the plan of all drafters counts for each of them. */
static double saved_ns(const struct eng_drafting *g, const struct eng_drafter *d)
{
    struct spec_account a;
    double ns = 0;
    for (int arm = 0; arm < eng_arm_count(g); arm++)
        if (eng_arm_drafters(g, arm) >> d->number & 1) {
            spec_control_account(g->control, arm, &a);
            ns += a.saved_ns;
        }
    return ns;
}

static void unload_and_say(struct eng_drafting *g, struct eng_drafter *d, double value)
{
    char why[256];
    spec_control_set_memory_value(g->control, d->number, value);
    spec_account_text(g->control, d->number, why, sizeof why);
    kn_say(KN_LOG_INFO, "%s; its %.0f MiB go to the expert cache until it promises more: steps are %.1f %% shorter",
           why, (double)freed_expert_bytes(g, d) / (1 << 20), 100 * value);
    eng_draft_unload(g, d->number);
}

/* The gain expected of plans with the drafter, over that of the plan just followed. */
static double promise(const struct eng_drafting *g, const struct eng_drafter *d)
{
    double most = 1;
    for (int i = 0; i < g->n_due; i++)
        g->due_number[i] = g->outcome[i].session;
    for (int arm = 0; arm < eng_arm_count(g); arm++)
        if (eng_arm_drafters(g, arm) >> d->number & 1)
            most = fmax(most, spec_control_promise(g->control, arm, g->due_number, g->n_due));
    return most;
}

static void load_if_promising(struct eng_drafting *g, struct eng_drafter *d, double value, double step_ns)
{
    double gain = promise(g, d);
    uint64_t start = kn_now_ns();
    if (!spec_memory_pays(gain, value) || !eng_draft_load_again(g, d->number))
        return;
    d->memory.lost += (double)(kn_now_ns() - start) / step_ns;
    kn_say(KN_LOG_INFO, "%s: loaded again: its drafts promise a gain of %.2f", d->name, gain);
}

void eng_draft_weigh_memory(struct eng_drafting *g, double step_ns)
{
    bool known = g->decision.why != SPEC_WHY_LEARN && g->decision.why != SPEC_WHY_REFRESH;
    g->due_mean += (g->n_due - g->due_mean) / STEPS_TO_MEAN;
    for (int i = 0; i < g->n_drafter; i++) {
        struct eng_drafter *d = g->drafter[i];
        double value = d->kind->unload ? memory_value(g, d) : 0;
        if (!d->kind->unload)
            continue;
        switch (spec_memory_step(&d->memory, value, step_ns, saved_ns(g, d), known && g->usable >> i & 1)) {
        case SPEC_MEMORY_UNLOAD:
            unload_and_say(g, d, value);
            break;
        case SPEC_MEMORY_MAY_LOAD:
            load_if_promising(g, d, value, step_ns);
            break;
        case SPEC_MEMORY_STAY:
            break;
        }
    }
}
