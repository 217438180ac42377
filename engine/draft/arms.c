/* engine/draft/arms.c - the plans that the controller chooses among: each drafter, all of them together, and drafting
 * during passes. Says whether the controller or an option (--gamma, --dsi 1) decides; reports decisions and gains. */
#include "engine/draft/internal.h"

#include <stdio.h>
#include <string.h>

#define ALL_NAME     "all"   /* the plan that asks all drafters, if there are several */
#define OVERLAP_NAME "ahead" /* the plan that drafts during passes */

bool eng_draft_always_overlaps(const struct eng_drafting *g)
{
    return g->opt.dsi == ENG_DSI_ON && g->overlap && !eng_overlap_drafter(g)->upkeep.unloaded;
}

bool eng_draft_controller_is_on(const struct eng_drafting *g)
{
    return g->control && g->opt.gamma == ENG_GAMMA_AUTO && !eng_draft_always_overlaps(g);
}

int eng_arms_open(struct eng_drafting *g)
{
    struct spec_control_options o = { .n_session = g->host.n_parallel,
                                      .n_drafter = g->n_drafter,
                                      .max_drafted = g->host.n_draft_row,
                                      .rule = g->opt.verify,
                                      .gamma = SPEC_AUTO,
                                      .n_expert = moe_model_shape(g->host.model)->n_expert_total };
    size_t n = (size_t)g->host.n_parallel;
    for (int i = 0; i < g->n_drafter; i++) {
        o.drafter[i].name = g->drafter[i]->name;
        o.drafter[i].max_depth = SPEC_DEPTHS;
    }
    if (g->n_drafter > 1) {
        o.drafter[o.n_drafter].name = ALL_NAME;
        o.drafter[o.n_drafter++].max_depth = SPEC_DEPTHS;
    }
    g->overlap_arm = SPEC_DRAFTERS;
    if (g->overlap && g->opt.dsi == ENG_DSI_AUTO) {
        g->overlap_arm = o.n_drafter;
        o.drafter[o.n_drafter].name = OVERLAP_NAME;
        o.drafter[o.n_drafter].of = eng_overlap_drafter(g)->number;
        o.drafter[o.n_drafter].overlap = true;
        o.drafter[o.n_drafter++].max_depth = SPEC_DEPTHS;
    }
    g->cut = kn_calloc(n, sizeof *g->cut);
    g->outcome = kn_calloc(n, sizeof *g->outcome);
    g->due_number = kn_calloc(n, sizeof *g->due_number);
    if (!g->cut || !g->outcome || !g->due_number)
        return kn_fail(KN_ENOMEM, "no memory for drafts of %zu sessions", n);
    return spec_control_open(&g->control, &o);
}

uint8_t eng_arm_drafters(const struct eng_drafting *g, int arm)
{
    if (arm == g->overlap_arm)
        return (uint8_t)(1 << eng_overlap_drafter(g)->number);
    return (uint8_t)(arm < g->n_drafter ? 1 << arm : (1 << g->n_drafter) - 1);
}

uint8_t eng_draft_loaded(const struct eng_drafting *g)
{
    int bits = 0;
    for (int i = 0; i < g->n_drafter; i++)
        bits |= !g->drafter[i]->upkeep.unloaded << i;
    return (uint8_t)bits;
}

uint8_t eng_draft_unloaded(const struct eng_drafting *g)
{
    int bits = 0;
    for (int i = 0; i < g->n_drafter; i++)
        bits |= (g->drafter[i]->upkeep.unloaded && !g->drafter[i]->broken) << i;
    return (uint8_t)bits;
}

int eng_arm_count(const struct eng_drafting *g)
{
    return g->n_drafter + (g->n_drafter > 1) + (g->overlap_arm < SPEC_DRAFTERS);
}

/* A plan that has no drafter for the sequence has no draft to be expected of it. */
static void expect_none(struct eng_drafting *g, struct eng_seq *s)
{
    static const double none[SPEC_DEPTHS];
    for (int i = 0; i < eng_arm_count(g); i++)
        if (!(eng_arm_drafters(g, i) & s->draft->usable))
            spec_control_set_survival(g->control, i, s->number, none);
}

void eng_arms_begin(struct eng_drafting *g, struct eng_seq *s)
{
    spec_control_begin(g->control, s->number);
    expect_none(g, s);
}

void eng_arms_update(struct eng_drafting *g, struct eng_seq *s)
{
    for (int i = 0; i < eng_arm_count(g); i++)
        spec_control_set_survival(g->control, i, s->number, NULL);
    expect_none(g, s);
}

/* The plan of all drafters is one of several drafters. */
void eng_arms_disable(struct eng_drafting *g)
{
    for (int i = 0; i < eng_arm_count(g); i++) {
        uint8_t its = eng_arm_drafters(g, i) & g->usable;
        bool all = i == g->n_drafter && i != g->overlap_arm;
        bool off = i == g->overlap_arm && g->opt.dsi != ENG_DSI_AUTO;
        spec_control_disable(g->control, i, off || (all ? !(its & (its - 1)) : !its));
    }
}

void eng_draft_set_gamma(struct eng_drafting *g, int gamma)
{
    g->opt.gamma = gamma;
    if (gamma > 0)
        eng_draft_load_all(g);
}

void eng_draft_set_dsi(struct eng_drafting *g, enum eng_dsi_mode dsi, int lookahead)
{
    g->opt.dsi = g->overlap ? dsi : ENG_DSI_OFF;
    if (g->opt.dsi == ENG_DSI_ON)
        eng_draft_load_all(g);
    g->opt.lookahead = lookahead;
}

/* ---- reports ------------------------------------------------------------------------------------------------- */

enum spec_why eng_draft_last_reason(const struct eng_drafting *g)
{
    return eng_draft_controller_is_on(g) ? g->decision.why : SPEC_WHY_FIXED;
}

struct eng_draft_times eng_draft_times(const struct eng_drafting *g) { return g->times; }

static int explain_draft(const struct eng_drafting *g, char *out, size_t bytes)
{
    if (!g->control || !g->counts.any)
        return snprintf(out, bytes, "draft: off (no drafter)");
    if (eng_draft_always_overlaps(g))
        return snprintf(out, bytes, "draft: %s during passes (set by --dsi); %d tokens in each",
                        eng_overlap_drafter(g)->name, g->overlap_depth);
    if (g->opt.gamma != ENG_GAMMA_AUTO)
        return snprintf(out, bytes, "draft: %d tokens (set by --gamma)", g->opt.gamma);
    return spec_decision_text(g->control, &g->decision, out, bytes);
}

int eng_draft_explain(const struct eng_drafting *g, char *out, size_t bytes)
{
    int n = explain_draft(g, out, bytes);
    for (int i = 0; i < g->n_drafter && n < (int)bytes; i++)
        if (g->drafter[i]->kind->window_value && g->drafter[i]->n_window)
            n += snprintf(out + n, bytes - (size_t)n, "; lookahead: a window row gives %.3f tokens",
                          g->drafter[i]->kind->window_value(g->drafter[i]));
    return n;
}

static enum eng_drafter_state state_of(const struct eng_drafter *d)
{
    return d->broken ? ENG_DRAFTER_BROKEN : d->upkeep.unloaded ? ENG_DRAFTER_UNLOADED : ENG_DRAFTER_ASKED;
}

/* The i-th plan: the drafters, then all of them if there are several, then drafting during passes. */
static void describe(const struct eng_drafting *g, int i, struct eng_draft_choice *out)
{
    *out = (struct eng_draft_choice){ .name = ALL_NAME, .depth = g->decision.drafter == i ? g->decision.depth : 0 };
    spec_control_account(g->control, i, &out->account);
    if (i == g->overlap_arm) {
        out->name = OVERLAP_NAME;
        out->state = state_of(eng_overlap_drafter(g));
    } else if (i < g->n_drafter) {
        out->name = g->drafter[i]->name;
        out->state = state_of(g->drafter[i]);
        for (int j = 0; j < i; j++)
            out->nth += g->drafter[j]->name == out->name;
    }
    if (out->state == ENG_DRAFTER_UNLOADED) /* since the last decision */
        out->depth = 0;
}

void eng_draft_report(const struct eng_drafting *g, struct eng_drafts *out)
{
    *out = g->counts;
    out->last_why = g->decision.why;
    if (!eng_draft_controller_is_on(g) || !g->counts.any)
        return;
    out->n_choice = eng_arm_count(g);
    for (int i = 0; i < out->n_choice; i++)
        describe(g, i, &out->choice[i]);
    out->lost_ns = g->decision.lost_ns;
    out->loss_limit_ns = g->decision.loss_limit_ns;
    out->target = g->decision.target;
    out->fitted = g->fit.known;
    out->fit_error = g->fit.fitted.error;
    out->n_fit_pass = g->fit.seen.n_pass;
}

bool eng_draft_survival(const struct eng_drafting *g, double *share)
{
    struct spec_account best = { 0 }, a;
    for (int i = 0; g->control && i < g->n_drafter + (g->n_drafter > 1); i++) {
        spec_control_account(g->control, i, &a);
        if (a.n_step > best.n_step)
            best = a;
    }
    memcpy(share, best.accepted, sizeof best.accepted);
    return best.n_step > 0;
}
