/* engine/draft/cost.c - the expected cost of drafts: the controller's first estimate.
 *
 * Whether drafts pay at a batch size depends on how much longer a pass takes with their rows: it reads more experts, of
 * a known size, some of them from disk, at the rates of this machine. The rates are measured when an engine with
 * drafters opens, before its memory is taken and in no more memory than that. So the first trial is made where the
 * forecast is best, instead of where it costs least. With a fit of earlier passes (fit.c, --fit) only the disk is
 * measured. The measured time of passes corrects the estimate from the first pass on. */
#include "engine/plan/disk_rate.h"
#include "engine/draft/internal.h"
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
    if (error || eng_split_is_whole(split))
        return error;
    error = eng_disk_measure_once(moe_file_files(g->host.file), g->host.mirror, split->total - split->fixed, disk_Bps);
    out->disk_Bps = *disk_Bps;
    return error;
}

const struct eng_draft_option *eng_draft_option_of(const struct eng_drafting *g, int drafter)
{
    const struct eng_draft_option *w = g->opt.draft;
    while (w->kind == ENG_DRAFT_NONE || drafter-- > 0)
        w++;
    return w;
}

/* The target's passes without its waits for the disk. */
static struct spec_draft_forecast by_target(const struct eng_drafting *g)
{
    struct spec_cost_model c = g->cost;
    double most = kn_max(2, g->host.n_parallel);
    c.disk_ns = 0;
    double one = spec_cost_pass_ns(&c, 1, 0, 0), all = spec_cost_pass_ns(&c, most, 0, 0);
    return (struct spec_draft_forecast){ .ns = one, .row_ns = (all - one) / (most - 1) };
}

/* The time of a drafter's pass by its size: the weights that it reads, and its experts in the model's store. */
static struct spec_draft_forecast by_size(const struct eng_drafting *g, const struct eng_drafter *d)
{
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    struct eng_extra its = eng_drafter_need(d);
    size_t reads = its.pass ? its.pass : its.weights + its.device_weights;
    double ns = g->cost.fixed_ns * (double)reads / (double)shape->pass_bytes;
    if (its.n_moe_layer)
        ns += (spec_cost_pass_ns(&g->cost, 1, 0, 0) - g->cost.fixed_ns) * its.n_moe_layer / shape->n_moe_layer;
    return (struct spec_draft_forecast){ .ns = ns };
}

/* Forecasts the draft time of every plan: measured if the fit knows this drafter, else by its size. */
static void price(const struct eng_drafting *g, struct spec_draft_forecast *out)
{
    struct spec_draft_forecast all = { 0 };
    bool met = !g->fit.fitted.n_drafter, networks = false;
    for (int i = 0; i < g->n_drafter; i++) {
        char name[ENG_FIT_NAME];
        eng_draft_name(name, eng_draft_option_of(g, i));
        const struct eng_fitted_drafter *its = eng_fit_drafter(g, name);
        out[i] = its ? (struct spec_draft_forecast){ its->ns, its->row_ns, its->accept }
                 : eng_draft_is_resident(g->drafter[i]) ? by_target(g)
                                                        : by_size(g, g->drafter[i]);
        all.ns += out[i].ns;
        all.row_ns += out[i].row_ns;
        met |= its != NULL;
        networks |= *name;
    }
    if (!met && networks && !g->fit.collects)
        kn_say(KN_LOG_INFO, "%s has measured drafts of %s: the time of other drafters is estimated by their size",
               g->opt.fit, g->fit.fitted.drafter[0].name);
    out[g->n_drafter] = all; /* the plan that asks all of several drafters */
    if (g->overlap_arm < SPEC_DRAFTERS)
        out[g->overlap_arm] = out[eng_overlap_drafter(g)->number];
}

/* Adds to the fit the shares of experts on disk, under this budget, and of copies to a device. */
static struct spec_cost_model complete(const struct eng_fitted *f, double even_disk_ns)
{
    struct spec_cost_model c = f->cost;
    c.disk_ns = even_disk_ns * f->miss_ratio;
    c.load_ns += c.copy_ns * f->copy_share;
    return c;
}

void eng_draft_set_forecast(struct eng_drafting *g)
{
    struct spec_draft_forecast draft[SPEC_DRAFTERS] = { 0 };
    if (g->fit.known)
        g->cost = complete(&g->fit.fitted, g->even_disk_ns);
    price(g, draft);
    spec_control_set_forecast(g->control, &g->cost, draft);
}

int eng_draft_apply_fit(struct eng_drafting *g, struct spec_cost_model *cost, double *fit_error)
{
    int error = eng_fit_open(g);
    if (error || !g->fit.known)
        return error;
    *cost = complete(&g->fit.fitted, cost->disk_ns);
    *fit_error = g->fit.fitted.error;
    return 0;
}

int eng_draft_foresee(struct eng_drafting *g, double *disk_Bps)
{
    struct eng_machine machine;
    if (!g->counts.any || g->opt.gamma != ENG_GAMMA_AUTO) /* for predictions alone no start takes longer */
        return 0;
    int error = eng_fit_open(g);
    if (error || (error = measure(&machine, g, g->fit.known, disk_Bps)))
        return error;
    eng_plan_cost(&g->cost,
                  &(struct eng_setting){ .shape = moe_model_shape(g->host.model),
                                         .split = g->host.split,
                                         .machine = machine,
                                         .kv_slot_bytes = moe_kv_slot_bytes(g->host.model, g->host.kv_format) });
    g->even_disk_ns = g->cost.disk_ns;
    g->fit.disk_Bps = machine.disk_Bps;
    eng_draft_set_forecast(g);
    return 0;
}
