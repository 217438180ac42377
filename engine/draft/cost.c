/* What drafts cost: the controller's first opinion, and what a drafter's memory would be worth to experts.
 *
 * Whether drafts pay at a batch hangs on how much longer a pass takes with their rows.  That is no secret: so many
 * experts more, of so many bytes, so many of them on disk, at the rates of this machine.  So the rates are
 * measured when an engine opens that has to decide, before its memory is taken and in no more than that will be,
 * and the first trial is where the forecast is best instead of where it costs least.  What passes really take
 * corrects it from the first one on.
 *
 * A drafter takes memory in which experts would stand.  While some are on disk, that makes every pass longer by a share
 * that is known; who gains less than that, over thousands of steps, is unloaded, and the store grows by his memory. */
#include "engine/plan/disk_rate.h"
#include "engine/plan/fit_file.h"
#include "engine/internal.h"
#include "engine/plan/host_rate.h"

#include <string.h>

#define JUDGE      64                           /* steps between two judgements */
#define PATIENCE   2048                         /* steps before the first */
#define WORTH      0.01                         /* of a step: memory that is worth less may stay as it is */

/* Drafters without one have little memory, and know what nobody else does. */
static bool is_network(const struct eng_drafter *d) { return d->kind->load != NULL; }

/* ---- the first opinion ---------------------------------------------------------------------------------- */

/* What is measured with is taken from the budget before the model is.  Where nothing can be known of the disk,
 * experts are taken to come as fast as from memory: a forecast without it is one, too. */
static int measure(struct eng_machine *out, struct eng_engine *e, bool fitted)
{
    const struct eng_split *split = &e->split;
    size_t bytes = split->dense + split->expert;
    struct eng_rates rates = { 1, 1 };
    int error = 0;
    if (!fitted)
        error = eng_measure(&rates, moe_model_ops(e->model), e->team, bytes);
    *out = (struct eng_machine){ 0, rates.dram_Bps, rates.mac_ps };
    if (error || split->n_resident == split->n_expert)
        return error;
    error = eng_disk_measure_once(moe_file_files(e->file), e->opt.mirror, split->total - split->fixed, &e->disk_Bps);
    out->disk_Bps = e->disk_Bps;
    return error;
}

static const struct eng_draft_option *wish_of(const struct eng_engine *e, int drafter)
{
    const struct eng_draft_option *w = e->opt.draft;
    while (w->kind == ENG_DRAFT_NONE || drafter-- > 0)
        w++;
    return w;
}

/* Its pass reads what it is made of, and experts of its own. */
static double by_size(const struct eng_engine *e, const struct eng_drafter *d)
{
    const struct moe_shape *shape = moe_model_shape(e->model);
    struct eng_extra its = eng_drafter_need(d);
    double ns = e->cost.fixed_ns * (double)its.weights / (double)shape->pass_bytes;
    if (its.n_moe_layer)
        ns += (spec_cost_pass_ns(&e->cost, 1, 0, 0) - e->cost.fixed_ns) * its.n_moe_layer / shape->n_moe_layer;
    return ns;
}

/* The one that fit measured by what it took; the others by their size. */
static void price(const struct eng_engine *e, const struct eng_fitted *f, struct spec_draft_cost *out)
{
    struct spec_draft_cost all = { 0 };
    bool met = !*f->drafter, networks = false;
    for (int i = 0; i < e->n_drafter; i++) {
        char name[ENG_FIT_NAME];
        eng_draft_name(name, wish_of(e, i));
        bool its = *name && !strcmp(name, f->drafter);
        out[i] = its ? (struct spec_draft_cost){ f->cost.draft_ns, f->cost.draft_row_ns }
                     : (struct spec_draft_cost){ .ns = by_size(e, e->drafter[i]) };
        all.ns += out[i].ns;
        all.row_ns += out[i].row_ns;
        met |= its;
        networks |= *name;
    }
    if (!met && networks)
        kn_say(KN_LOG_INFO, "%s has measured drafts of %s: those of others are foreseen by their size", e->opt.fit,
               f->drafter);
    out[e->n_drafter] = all;                    /* of several, the arm that is all of them */
    if (e->overlap_arm < SPEC_DRAFTERS)
        out[e->overlap_arm] = out[eng_overlap_drafter(e)->number];
}

int eng_draft_foresee(struct eng_engine *e)
{
    const struct moe_shape *shape = moe_model_shape(e->model);
    struct eng_fitted fitted = { 0 };
    struct eng_machine machine;
    struct spec_draft_cost draft[SPEC_DRAFTERS];
    int error = 0;
    if (!e->n_drafter || e->opt.gamma != ENG_GAMMA_AUTO)
        return 0;
    if ((e->opt.fit && (error = eng_fit_read(e->opt.fit, shape, &fitted))) ||
        (error = measure(&machine, e, e->opt.fit != NULL)))
        return error;
    eng_plan_cost(&e->cost, &(struct eng_setting){ .shape = shape, .split = &e->split, .machine = machine });
    if (e->opt.fit) {                           /* which knows all but how many experts are on disk in this budget */
        fitted.cost.disk_ns = e->cost.disk_ns * fitted.cost.wait;
        e->cost = fitted.cost;
    }
    price(e, &fitted, draft);
    spec_control_foresee(e->control, &e->cost, draft);
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static size_t gives_back(const struct eng_engine *e, const struct eng_drafter *d)
{
    struct eng_extra its = eng_drafter_need(d);
    return its.weights + its.step + (its.slot - its.kept) * (size_t)e->split.n_kv_slot;
}

/* And what of the store its own experts have, as far as it holds some of all. */
static size_t leaves(const struct eng_engine *e, const struct eng_drafter *d)
{
    double own = (double)eng_drafter_need(d).n_moe_layer * moe_model_shape(e->model)->n_expert;
    return gives_back(e, d) + (size_t)(own > 0 ? own / e->split.n_expert * (double)e->split.expert : 0);
}

size_t eng_draft_loan(const struct eng_engine *e)
{
    size_t bytes = 0;
    for (int i = 0; i < e->n_drafter && e->opt.gamma == ENG_GAMMA_AUTO; i++)
        if (is_network(e->drafter[i]))
            bytes += gives_back(e, e->drafter[i]);
    return bytes;
}

/* By what share plain steps would be shorter with so much more room for experts. */
static double worth_of(const struct eng_engine *e, size_t bytes)
{
    const struct moe_shape *shape = moe_model_shape(e->model);
    struct spec_cost_model more = e->cost;
    if (e->cost.disk_ns <= 0)
        return 0;
    double n = e->split.n_expert, missing = n - e->split.n_resident;
    double fit = (double)bytes / (double)shape->expert_bytes * n;
    more.disk_ns *= missing > fit ? 1 - fit / missing : 0;
    double now = spec_cost_pass_ns(&e->cost, e->due_mean, 0, 0) + spec_cost_choose_ns(&e->cost, e->due_mean);
    return 1 - (spec_cost_pass_ns(&more, e->due_mean, 0, 0) + spec_cost_choose_ns(&more, e->due_mean)) / now;
}

static int say_nothing(struct eng_drafter *d, struct eng_session **s, const int *n_node, int n, int depth)
{
    (void)d, (void)s, (void)n_node, (void)n, (void)depth;
    return 0;
}

static void learn_nothing(struct eng_drafter *d, struct eng_session *s, int n_new, int n_kept)
{
    (void)d, (void)s, (void)n_new, (void)n_kept;
}

static void close_nothing(struct eng_drafter *d) { (void)d; }

static const struct eng_drafter_kind gone_kind = {
    .name = "gone", .draft = say_nothing, .commit = learn_nothing, .close = close_nothing };

void eng_draft_unload(struct eng_engine *e, int drafter)
{
    struct eng_drafter *d = e->drafter[drafter];
    struct eng_extra its = eng_drafter_need(d);
    size_t bytes = gives_back(e, d);
    e->unloaded[drafter] = (struct eng_drafter){ .kind = &gone_kind, .name = d->name, .engine = e, .number = drafter };
    e->drafter[drafter] = &e->unloaded[drafter];
    if (d == eng_overlap_drafter(e))
        eng_overlap_close(e);
    d->kind->close(d);
    spec_control_dismiss(e->control, drafter);
    if (e->overlap_arm < SPEC_DRAFTERS && !e->overlap)
        spec_control_dismiss(e->control, e->overlap_arm);
    if (!moe_model_store(e->model))
        return;
    off_store_grow(moe_model_store(e->model), bytes);
    e->split.dense -= its.weights;
    e->split.step -= its.step;
    e->split.kv -= (its.slot - its.kept) * (size_t)e->split.n_kv_slot;
    e->split.expert += bytes;
    e->split.n_resident = kn_min(e->split.n_expert, (int)((double)e->split.expert /
        (double)moe_model_shape(e->model)->expert_bytes * e->split.n_expert));
}

static bool pays(const struct eng_engine *e, int arm)
{
    struct spec_account a;
    spec_control_account(e->control, arm, &a);
    return a.verdict == SPEC_PAYS;
}

/* One that helps all of them together is not judged alone. */
static bool helps_all(const struct eng_engine *e) { return e->n_drafter > 1 && pays(e, e->n_drafter); }

/* Nor is one that helps while passes run. */
static bool helps_ahead(struct eng_engine *e, const struct eng_drafter *d, double worth)
{
    if (d != eng_overlap_drafter(e) || e->overlap_arm == SPEC_DRAFTERS)
        return false;
    spec_control_price(e->control, e->overlap_arm, worth);
    return pays(e, e->overlap_arm);
}

void eng_draft_judge(struct eng_engine *e)
{
    struct spec_account a;
    if (!e->n_drafter)
        return;
    e->due_mean += (e->n_due - e->due_mean) / JUDGE;
    spec_control_account(e->control, 0, &a);
    if (a.n_all < PATIENCE || a.n_all % JUDGE || e->cost.disk_ns <= 0 || helps_all(e))
        return;
    for (int i = 0; i < e->n_drafter; i++) {
        double worth = is_network(e->drafter[i]) ? worth_of(e, leaves(e, e->drafter[i])) : 0;
        if (worth < WORTH)
            continue;
        char why[256];
        spec_control_price(e->control, i, worth);
        spec_control_account(e->control, i, &a);
        if (a.verdict == SPEC_PAYS || helps_ahead(e, e->drafter[i], worth))
            continue;
        spec_account_text(e->control, i, why, sizeof why);
        kn_say(KN_LOG_WARN, "%s; its %.0f MiB are room for experts from now on, which makes steps %.1f %% shorter", why,
               (double)leaves(e, e->drafter[i]) / (1 << 20), 100 * worth);
        eng_draft_unload(e, i);
    }
}
