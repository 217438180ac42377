/* engine/draft/unload.c - whether a drafter is worth its memory.
 *
 * A drafter takes memory that could hold experts. While some experts are on disk, that memory would make every pass
 * shorter by a share that can be computed. A drafter that gains less than this share, over thousands of steps, is
 * unloaded, and its memory goes to the expert cache. Drafters without a network are never unloaded: their memory is
 * small. */
#include "engine/draft/internal.h"

#define STEPS_BETWEEN_VERDICTS 64   /* steps between two verdicts */
#define MIN_STEPS_TO_VERDICT   2048 /* steps before the first */
#define MIN_MEMORY_VALUE       0.01 /* share of a step: memory that is worth less stays with its drafter */

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
        if (g->drafter[i]->kind->is_network)
            bytes += returned_bytes(g, g->drafter[i]);
    return bytes;
}

/* The share by which a plain step would be shorter with `bytes` more for experts. */
static double memory_value(const struct eng_drafting *g, size_t bytes)
{
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    struct spec_cost_model more = g->cost;
    if (g->cost.disk_ns <= 0)
        return 0;
    double n = g->host.split->n_expert, missing = eng_split_on_disk(g->host.split);
    double fit = (double)bytes / (double)shape->expert_bytes * n;
    more.disk_ns *= missing > fit ? 1 - fit / missing : 0;
    double now = spec_cost_pass_ns(&g->cost, g->due_mean, 0, 0) + spec_cost_choose_ns(&g->cost, g->due_mean);
    return 1 - (spec_cost_pass_ns(&more, g->due_mean, 0, 0) + spec_cost_choose_ns(&more, g->due_mean)) / now;
}

static int draft_nothing(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n, int depth)
{
    (void)d, (void)s, (void)n_node, (void)n, (void)depth;
    return 0;
}

static void close_nothing(struct eng_drafter *d) { (void)d; }

static const struct eng_drafter_kind unloaded_kind = { .name = "unloaded",
                                                       .draft = draft_nothing,
                                                       .close = close_nothing };

void eng_draft_unload(struct eng_drafting *g, int drafter)
{
    struct eng_drafter *d = g->drafter[drafter];
    struct eng_extra its = eng_drafter_need(d);
    size_t bytes = returned_bytes(g, d);
    g->unloaded[drafter] = (struct eng_drafter){
        .kind = &unloaded_kind, .name = d->name, .drafting = g, .number = drafter
    };
    g->drafter[drafter] = &g->unloaded[drafter];
    if (d == eng_overlap_drafter(g))
        eng_overlap_close(g);
    d->kind->close(d);
    spec_control_remove_drafter(g->control, drafter);
    if (g->overlap_arm < SPEC_DRAFTERS && !g->overlap)
        spec_control_remove_drafter(g->control, g->overlap_arm);
    if (!moe_model_store(g->host.model))
        return;
    off_store_grow(moe_model_store(g->host.model), bytes);
    its.slot -= its.kept;
    eng_split_return(g->host.split, &its, moe_model_shape(g->host.model)->expert_bytes);
}

static bool pays(const struct eng_drafting *g, int arm)
{
    struct spec_account a;
    spec_control_account(g->control, arm, &a);
    return a.verdict == SPEC_VERDICT_PAYS;
}

/* A drafter is not unloaded while the plan of all drafters pays. */
static bool all_drafters_pay(const struct eng_drafting *g) { return g->n_drafter > 1 && pays(g, g->n_drafter); }

/* A drafter is not unloaded while drafting during passes with it pays for its memory, a share `worth` of a step. */
static bool overlap_pays(struct eng_drafting *g, const struct eng_drafter *d, double worth)
{
    if (d != eng_overlap_drafter(g) || g->overlap_arm == SPEC_DRAFTERS)
        return false;
    spec_control_set_memory_value(g->control, g->overlap_arm, worth);
    return pays(g, g->overlap_arm);
}

void eng_draft_unload_unprofitable(struct eng_drafting *g)
{
    struct spec_account a;
    if (!g->n_drafter)
        return;
    g->due_mean += (g->n_due - g->due_mean) / STEPS_BETWEEN_VERDICTS;
    spec_control_account(g->control, 0, &a);
    if (a.n_all < MIN_STEPS_TO_VERDICT || a.n_all % STEPS_BETWEEN_VERDICTS || g->cost.disk_ns <= 0 ||
        all_drafters_pay(g))
        return;
    for (int i = 0; i < g->n_drafter; i++) {
        double worth = g->drafter[i]->kind->is_network ? memory_value(g, freed_expert_bytes(g, g->drafter[i])) : 0;
        if (worth < MIN_MEMORY_VALUE)
            continue;
        char why[256];
        spec_control_set_memory_value(g->control, i, worth);
        spec_control_account(g->control, i, &a);
        if (a.verdict == SPEC_VERDICT_PAYS || overlap_pays(g, g->drafter[i], worth))
            continue;
        spec_account_text(g->control, i, why, sizeof why);
        kn_say(KN_LOG_WARN, "%s; unloaded now: its %.0f MiB go to the expert cache and make steps %.1f %% shorter", why,
               (double)freed_expert_bytes(g, g->drafter[i]) / (1 << 20), 100 * worth);
        eng_draft_unload(g, i);
    }
}
