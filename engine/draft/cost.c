/* engine/draft/cost.c - the expected cost of drafts: the controller's first estimate.
 *
 * Whether drafts pay at a batch size depends on how much longer a pass takes with their rows: it reads more experts, of
 * a known size, some of them from disk, at the rates of this machine. The rates are measured when an engine with
 * drafters opens, before its memory is taken and in no more memory than that. So the first trial is made where the
 * forecast is best, instead of where it costs least. The measured time of passes corrects the estimate from the first
 * pass on. */
#include "engine/plan/disk_rate.h"
#include "engine/draft/internal.h"
#include "engine/plan/fit_file.h"
#include "engine/plan/host_rate.h"

#include <string.h>

/* ---- the first estimate --------------------------------------------------------------------------------- */

/* The buffers of the measurement are part of the budget, before the model is loaded. If the disk rate cannot be
 * measured, experts are assumed to arrive as fast as from memory: a rough forecast is better than none. */
static int measure(struct eng_machine *out, const struct eng_drafting *g, bool fitted, double *disk_Bps)
{
    const struct eng_split *split = g->host.split;
    size_t bytes = split->dense + split->expert;
    struct eng_rates rates = { 1, 1 };
    int error = 0;
    if (!fitted)
        error = eng_host_rate_measure(&rates, moe_model_ops(g->host.model), g->host.team, bytes);
    *out = (struct eng_machine){ .dram_Bps = rates.dram_Bps, .mac_ps = rates.mac_ps };
    if (error || split->n_resident == split->n_expert)
        return error;
    error = eng_disk_measure_once(moe_file_files(g->host.file), g->host.mirror, split->total - split->fixed, disk_Bps);
    out->disk_Bps = *disk_Bps;
    return error;
}

static const struct eng_draft_option *option_of(const struct eng_drafting *g, int drafter)
{
    const struct eng_draft_option *w = g->opt.draft;
    while (w->kind == ENG_DRAFT_NONE || drafter-- > 0)
        w++;
    return w;
}

/* The time of a drafter's pass by its size: its own weights, and its experts in the model's store. */
static double by_size(const struct eng_drafting *g, const struct eng_drafter *d)
{
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    struct eng_extra its = eng_drafter_need(d);
    double ns = g->cost.fixed_ns * (double)(its.weights + its.device_weights) / (double)shape->pass_bytes;
    if (its.n_moe_layer)
        ns += (spec_cost_pass_ns(&g->cost, 1, 0, 0) - g->cost.fixed_ns) * its.n_moe_layer / shape->n_moe_layer;
    return ns;
}

/* Forecasts the draft time of every plan: measured if the fit file has measured this drafter, else by its size. */
static void price(const struct eng_drafting *g, const struct eng_fitted *f, struct spec_draft_forecast *out)
{
    struct spec_draft_forecast all = { 0 };
    bool met = !*f->drafter, networks = false;
    for (int i = 0; i < g->n_drafter; i++) {
        char name[ENG_FIT_NAME];
        eng_draft_name(name, option_of(g, i));
        bool its = *name && !strcmp(name, f->drafter);
        out[i] = its ? (struct spec_draft_forecast){ f->cost.draft_ns, f->cost.draft_row_ns }
                     : (struct spec_draft_forecast){ .ns = by_size(g, g->drafter[i]) };
        all.ns += out[i].ns;
        all.row_ns += out[i].row_ns;
        met |= its;
        networks |= *name;
    }
    if (!met && networks)
        kn_say(KN_LOG_INFO, "%s has measured drafts of %s: the time of other drafters is estimated by their size",
               g->opt.fit, f->drafter);
    out[g->n_drafter] = all; /* the plan that asks all of several drafters */
    if (g->overlap_arm < SPEC_DRAFTERS)
        out[g->overlap_arm] = out[eng_overlap_drafter(g)->number];
}

int eng_draft_foresee(struct eng_drafting *g, double *disk_Bps)
{
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    struct eng_fitted fitted = { 0 };
    struct eng_machine machine;
    struct spec_draft_forecast draft[SPEC_DRAFTERS];
    uint64_t id;
    int error = 0;
    if (!g->n_drafter || g->opt.gamma != ENG_GAMMA_AUTO)
        return 0;
    if ((g->opt.fit &&
         ((error = moe_file_id(g->host.file, &id)) || (error = eng_fit_read(g->opt.fit, shape, id, &fitted)))) ||
        (error = measure(&machine, g, g->opt.fit != NULL, disk_Bps)))
        return error;
    eng_plan_cost(&g->cost, &(struct eng_setting){ .shape = shape, .split = g->host.split, .machine = machine });
    if (g->opt.fit) { /* it lacks only the share of experts on disk under this budget */
        fitted.cost.disk_ns = g->cost.disk_ns * fitted.cost.wait;
        g->cost = fitted.cost;
    }
    price(g, &fitted, draft);
    spec_control_set_forecast(g->control, &g->cost, draft);
    return 0;
}
