/* engine/draft/fit.c - the fit of the time of passes that is kept beside the model.
 *
 * Passes of real requests have different numbers of rows, distinct experts and positions of context, so they are
 * measurements of MoESD's cost model already: nothing is run for them. While the controller decides, passes without
 * prompt rows and without work beside them are collected (speculative/observe.c). When the engine rests or closes, the
 * constants are fitted to the means, near those expected before (speculative/fit.c), and saved in MODEL.gguf.fit with an
 * identity of the model, the machine and the options that change the time of a pass. The next start reads them in place
 * of measuring the machine's rates: they are the controller's first estimate (cost.c). The controller corrects them by the
 * measured passes as it does any estimate, so a wrong file costs no more than any wrong estimate.
 *
 * --fit FILE is read instead, and then nothing is kept; --fit none uses the machine's rates. */
#include "engine/base/bytes.h"
#include "engine/draft/internal.h"
#include "engine/plan/host_rate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIN_PASSES  24  /* passes from which they are fitted */
#define MAX_ERROR   1.0 /* mean error of a fit; a worse one is not used */
#define LEAST_RIDGE 1   /* bounds of the ridge, in rows */
#define MOST_RIDGE  128
#define SHARE_DECAY (1 - 1 / 256.0) /* of the sums of the shares, per pass */

/* ---- the identity of a fit ---------------------------------------------------------------------------------------- */

/* A hash of the machine and of the options that change the time of a pass, the experts that a device keeps among them. The
 * host's memory budget is not: the share of experts on disk enters as a term. */
static uint64_t setup_of(const struct eng_drafting *g)
{
    const struct kn_backend *device = moe_model_device(g->host.model)->backend;
    char processor[128], text[256];
    eng_processor_name(processor, sizeof processor);
    snprintf(text, sizeof text, "%s|%d|%s|%s|%d|%d", processor, kn_team_size(g->host.team),
             kn_isa_name(moe_model_ops(g->host.model)->isa), device->name, g->host.split->device.n_resident,
             (int)g->host.kv_format);
    uint64_t id = eng_hash(0, text, strlen(text));
    return id ? id : 1;
}

static bool is(const char *option, const char *word) { return option && !strcmp(option, word); }

int eng_fit_open(struct eng_drafting *g)
{
    struct eng_kept_fit *f = &g->fit;
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    const char *file = is(g->opt.fit, "auto") ? NULL : g->opt.fit;
    if (is(file, "none"))
        return 0;
    int error = moe_file_id(g->host.file, &f->model_id);
    if (error)
        return error;
    if (file) {
        error = eng_fit_read(file, shape, f->model_id, &f->fitted);
        f->known = !error;
        return error;
    }
    f->collects = g->opt.keeps_fit && eng_fit_path(f->path, g->host.model_path);
    f->setup = setup_of(g);
    f->known = f->collects && eng_fit_read_kept(f->path, shape, f->model_id, f->setup, &f->fitted);
    f->collects &= !f->known || f->fitted.setup; /* a file that `fit -o` wrote stays */
    return 0;
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */

static uint64_t n_copied(const struct eng_drafting *g)
{
    return g->host.context ? moe_context_device_stats(g->host.context).n_copied : 0;
}

void eng_fit_pass_starts(struct eng_drafting *g)
{
    if (g->fit.collects)
        g->fit.n_copied = n_copied(g);
}

void eng_fit_learn(struct eng_drafting *g, const struct eng_pass_result *r, double missed_bytes)
{
    struct eng_kept_fit *f = &g->fit;
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    if (!f->collects || g->n_row > g->n_due || g->works_beside || r->pass_ns == 0)
        return;
    double layers = kn_max(shape->n_moe_layer, 1), copied = (double)(n_copied(g) - f->n_copied) / layers;
    spec_observe(&f->seen,
                 &(struct spec_fit_point){ .rows = r->n_row,
                                           .distinct = r->experts_per_layer,
                                           .miss_ns = f->disk_Bps > 0 ? missed_bytes / f->disk_Bps * 1e9 : 0,
                                           .kv = g->n_position,
                                           .copied = copied,
                                           .ns = (double)r->pass_ns },
                 g->n_due);
    if (shape->n_expert_total)
        f->missed = f->missed * SHARE_DECAY +
                    missed_bytes / ((double)shape->expert_file_bytes / shape->n_expert_total * layers);
    f->distinct = f->distinct * SHARE_DECAY + r->experts_per_layer;
    f->copied = f->copied * SHARE_DECAY + copied;
}

/* ---- fitting ----------------------------------------------------------------------------------------------------- */

static struct eng_fitted_drafter *find_drafter(struct eng_fitted *f, const char *name)
{
    for (int i = 0; i < f->n_drafter; i++)
        if (!strcmp(f->drafter[i].name, name))
            return &f->drafter[i];
    return NULL;
}

const struct eng_fitted_drafter *eng_fit_drafter(const struct eng_drafting *g, const char *name)
{
    return *name && g->fit.known ? find_drafter((struct eng_fitted *)&g->fit.fitted, name) : NULL;
}

/* Adds the measured times of the drafters to those in the file; the oldest entry makes room for a new one. */
static int fit_drafters(struct eng_drafting *g)
{
    struct eng_fitted *f = &g->fit.fitted;
    struct spec_fit_point point[16];
    for (int i = 0; i < g->n_drafter; i++) {
        char name[ENG_FIT_NAME];
        eng_draft_name(name, eng_draft_option_of(g, i));
        int n = *name ? spec_control_draft_points(g->control, i, point, 16) : 0;
        if (!n)
            continue;
        struct spec_cost_model c = f->cost;
        int error = spec_fit_draft(&c, point, n);
        if (error)
            return error;
        struct eng_fitted_drafter *d = find_drafter(f, name);
        if (!d && f->n_drafter == ENG_FIT_DRAFTERS)
            memmove(f->drafter, f->drafter + 1, (size_t)--f->n_drafter * sizeof *f->drafter);
        if (!d)
            d = &f->drafter[f->n_drafter++];
        double accept = spec_control_accept(g->control, i);
        snprintf(d->name, sizeof d->name, "%s", name);
        d->ns = c.draft_ns;
        d->row_ns = c.draft_row_ns;
        d->accept = accept > 0 ? fmin(accept, 1) : d->accept;
    }
    return 0;
}

/* Fits the collected passes; false: they do not give a usable model. */
static bool fit_passes(struct eng_drafting *g)
{
    struct eng_kept_fit *f = &g->fit;
    const struct moe_shape *shape = moe_model_shape(g->host.model);
    struct spec_fit_point point[SPEC_OBSERVED_POINTS];
    struct spec_fit fit;
    int n = spec_observed_points(&f->seen, point);
    struct spec_fit_input in = { .n_expert = shape->n_expert,
                                 .n_used = shape->n_used,
                                 .ridge_least = LEAST_RIDGE,
                                 .ridge_most = MOST_RIDGE,
                                 .pass = point,
                                 .n_pass = n,
                                 .expected = f->known ? &f->fitted.cost : &g->cost };
    if (n == 0 || spec_fit(&fit, &in) || fit.error > MAX_ERROR)
        return false;
    f->fitted.cost = fit.cost;
    f->fitted.error = fit.error;
    f->fitted.n_pass = (double)f->seen.n_pass;
    f->fitted.setup = f->setup;
    double even = f->distinct * eng_split_disk_share(g->host.split);
    f->fitted.miss_ratio = even > 0 ? fmin(f->missed / even, ENG_FIT_MISSES) : f->known ? f->fitted.miss_ratio : 1;
    f->fitted.copy_share = f->distinct > 0 ? fmin(f->copied / f->distinct, 1) : 0;
    f->known = true;
    return true;
}

void eng_fit_settle(struct eng_drafting *g, bool last)
{
    struct eng_kept_fit *f = &g->fit;
    uint64_t enough = last ? f->n_fitted + MIN_PASSES : f->n_fitted * 2;
    if (!f->collects || !g->control || f->seen.n_pass < MIN_PASSES || f->seen.n_pass < enough)
        return;
    f->n_fitted = f->seen.n_pass;
    if (!fit_passes(g) || fit_drafters(g))
        return;
    eng_fit_keep(f->path, g->host.model_path, f->model_id, &f->fitted);
    if (!last)
        eng_draft_set_forecast(g);
}
