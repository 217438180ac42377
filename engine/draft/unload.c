/* engine/draft/unload.c - drafters that are not worth their upkeep are unloaded, and loaded again when they are.
 *
 * A drafter with a network takes memory, which could hold experts while some are on disk; and for a head the model computes the
 * features of prompts (features.c). An account (speculative/upkeep.h) compares this with the time saved by its drafts. If they
 * save less, the drafter is unloaded: the memory of its weights, buffers, keys and values goes to the expert cache, unless it
 * is that of a device. It is loaded again when the drafts promise more, as they may when more sequences are due.
 *
 * Drafters without a network are never unloaded: their upkeep is small. */
#include "engine/draft/internal.h"

#include <math.h>
#include <time.h>

#define STEPS_TO_MEAN 64 /* the number of due sequences is averaged over so many steps */
#define MAX_WAITS     50 /* for reads of experts that a drafter's memory holds */
#define WAIT_NS       200000

/* With a device that has its own memory drafters are there, where their memory cannot hold experts of the store. */
static bool can_give_memory(const struct eng_drafter *d)
{
    return d->kind->unload && !d->drafting->host.split->device.total;
}

/* It is a head at work that features of all tokens are stored for. */
static bool reads_features(const struct eng_drafter *d) { return eng_features_readers(d->drafting) >> d->number & 1; }

static bool can_be_unloaded(const struct eng_drafter *d)
{
    return can_give_memory(d) || (d->kind->unload && reads_features(d));
}

static size_t returned_bytes(const struct eng_drafting *g, const struct eng_drafter *d)
{
    struct eng_extra its = eng_drafter_need(d);
    return its.weights + its.step + eng_split_kv_bytes(g->host.split, its.slot - its.kept);
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
        if (can_give_memory(g->drafter[i]))
            bytes += returned_bytes(g, g->drafter[i]);
    return bytes;
}

/* The number of experts that fit in the drafter's memory. */
static double n_fitting(const struct eng_drafting *g, const struct eng_drafter *d)
{
    double all = (double)moe_model_shape(g->host.model)->expert_bytes;
    return (double)freed_expert_bytes(g, d) / all * g->host.split->n_expert;
}

/* The time of a plain step if so many experts are on disk, of those on disk when all drafters are loaded. */
static double plain_ns(const struct eng_drafting *g, double on_disk, double on_disk_at_most)
{
    struct spec_cost_model c = g->cost;
    c.disk_ns *= fmax(0, on_disk) / on_disk_at_most;
    return spec_cost_pass_ns(&c, g->due_mean, 0, 0) + spec_cost_choose_ns(&c, g->due_mean);
}

/* The share by which a plain step would be shorter with the drafter's memory for experts; of an unloaded one: is shorter. */
static double memory_value(const struct eng_drafting *g, const struct eng_drafter *d)
{
    double on_disk = eng_split_on_disk(g->host.split), at_most = on_disk, its = n_fitting(g, d);
    for (int i = 0; i < g->n_drafter; i++)
        at_most += g->drafter[i]->upkeep.unloaded ? n_fitting(g, g->drafter[i]) : 0;
    on_disk += d->upkeep.unloaded ? its : 0;
    if (!can_give_memory(d) || g->cost.disk_ns <= 0 || on_disk <= 0)
        return 0;
    return 1 - plain_ns(g, on_disk - its, at_most) / plain_ns(g, on_disk, at_most);
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

/* The store that the drafter's memory goes to; NULL: none. */
static struct off_store *store_for(const struct eng_drafter *d)
{
    return can_give_memory(d) ? moe_model_store(d->drafting->host.model) : NULL;
}

static void give_memory(struct eng_drafting *g, struct eng_drafter *d)
{
    kn_assert(!d->upkeep.unloaded);
    d->kind->unload(d);
    spec_upkeep_unloaded(&d->upkeep);
    if (!store_for(d))
        return;
    off_store_grow(store_for(d), returned_bytes(g, d));
    set_split(g, d, true);
}

void eng_draft_unload(struct eng_drafting *g, int drafter)
{
    forget_computed(g, g->drafter[drafter]);
    give_memory(g, g->drafter[drafter]);
}

/* Takes the drafter's memory back from the store. Reads that have begun there end soon, and between two steps only the threads
 * that fill the store begin others. */
static bool take_memory(struct off_store *store, size_t bytes)
{
    int n = 0;
    while (!off_store_shrink(store, bytes)) {
        if (++n > MAX_WAITS)
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = WAIT_NS }, NULL);
    }
    return true;
}

bool eng_draft_load_again(struct eng_drafting *g, int drafter)
{
    struct eng_drafter *d = g->drafter[drafter];
    struct off_store *store = store_for(d);
    if (d->broken || !d->upkeep.unloaded || (store && !take_memory(store, returned_bytes(g, d))))
        return false;
    if (store)
        set_split(g, d, false);
    spec_upkeep_loaded(&d->upkeep);
    int error = d->kind->load(d);
    if (!error)
        return true;
    give_memory(g, d);
    eng_draft_break(d, error);
    return false;
}

void eng_draft_load_all(struct eng_drafting *g)
{
    for (int i = 0; i < g->n_drafter; i++)
        eng_draft_load_again(g, i);
}

/* ---- the account ------------------------------------------------------------------------------------------ */

/* The networks that were asked in the step, as bits. */
static uint8_t networks_asked(const struct eng_drafting *g)
{
    int bits = g->decision.drafter == SPEC_OFF ? 0 : eng_arm_drafters(g, g->decision.drafter) & g->usable;
    for (int i = 0; i < g->n_drafter; i++)
        if (!g->drafter[i]->kind->unload)
            bits &= ~(1 << i);
    return (uint8_t)bits;
}

static void unload_and_say(struct eng_drafting *g, struct eng_drafter *d, double value)
{
    double features = 100 * spec_upkeep_feature_part(&d->upkeep);
    if (value > 0)
        kn_say(
            KN_LOG_INFO,
            "%s: its drafts save less time than its %.0f MiB as expert cache (%.1f %%) and prompts without features for "
            "it (%.1f %%) would: it is unloaded until it promises more",
            d->name, (double)freed_expert_bytes(g, d) / (1 << 20), 100 * value, features);
    else
        kn_say(KN_LOG_INFO,
               "%s: its drafts save less time than features of prompts take for it (%.1f %%): it is unloaded until it "
               "promises more",
               d->name, features);
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
            most = fmax(most, spec_control_promise(g->control, arm, g->due_number, g->n_due, arm == d->number));
    return most;
}

static void load_if_promising(struct eng_drafting *g, struct eng_drafter *d, const struct spec_upkeep_step *s)
{
    double gain = promise(g, d);
    uint64_t start = kn_now_ns();
    if (!spec_upkeep_pays(&d->upkeep, gain, s->value) || !eng_draft_load_again(g, d->number))
        return;
    d->upkeep.lost += s->plain_ns > 0 ? (double)(kn_now_ns() - start) / s->plain_ns : 0;
    kn_say(KN_LOG_INFO, "%s: loaded again: its drafts promise a gain of %.2f", d->name, gain);
}

static void weigh(struct eng_drafting *g, struct eng_drafter *d, const struct spec_upkeep_step *s)
{
    spec_control_set_memory_value(g->control, d->number, s->value);
    switch (spec_upkeep_learn(&d->upkeep, s)) {
    case SPEC_UPKEEP_UNLOAD:
        unload_and_say(g, d, s->value);
        break;
    case SPEC_UPKEEP_MAY_LOAD:
        load_if_promising(g, d, s);
        break;
    case SPEC_UPKEEP_STAY:
        break;
    }
}

/* Of a step.  Time saved by drafts, and time of reading, are divided equally among the networks that were asked. */
struct shares {
    uint8_t asked, heads; /* drafters, as bits: networks that were asked; loaded heads that features are stored for */
    double saved_ns, reading_ns;
};

/* The controller has not learnt from a step in which drafters only read. */
static struct shares shares_of_step(const struct eng_drafting *g)
{
    struct shares s = { .asked = networks_asked(g), .heads = eng_features_readers(g) & eng_draft_loaded(g) };
    int n = kn_max(1, __builtin_popcount(s.asked));
    s.saved_ns = g->no_draft_ready ? 0 : spec_control_saved_ns(g->control) / n;
    s.reading_ns = (g->no_draft_ready ? (double)g->draft_ns : spec_control_prefill_ns(g->control)) / n;
    return s;
}

/* Loaded heads share the time of features equally; an unloaded one would cost all of it. */
static double feature_ns(const struct eng_drafting *g, const struct eng_drafter *d, uint8_t heads)
{
    if (!reads_features(d))
        return 0;
    return d->upkeep.unloaded ? g->feature_ns : g->feature_ns / __builtin_popcount(heads);
}

void eng_draft_weigh_upkeep(struct eng_drafting *g, double step_ns)
{
    g->due_mean += (g->n_due - g->due_mean) / (g->due_mean > 0 ? STEPS_TO_MEAN : 1);
    struct shares shares = shares_of_step(g); /* before one is unloaded */
    double plain_ns = spec_control_plain_ns(g->control, g->n_due);
    for (int i = 0; i < g->n_drafter; i++) {
        struct eng_drafter *d = g->drafter[i];
        if (!can_be_unloaded(d) || (d->broken && d->upkeep.unloaded))
            continue;
        struct spec_upkeep_step s = { .value = memory_value(g, d),
                                      .step_ns = step_ns,
                                      .plain_ns = plain_ns > 0 ? plain_ns : step_ns,
                                      .feature_ns = feature_ns(g, d, shares.heads) };
        if (shares.asked >> i & 1) {
            s.saved_ns = shares.saved_ns;
            s.reading_ns = shares.reading_ns;
            s.step_ns -= shares.reading_ns;
        }
        weigh(g, d, &s);
    }
    g->feature_ns = 0;
}
