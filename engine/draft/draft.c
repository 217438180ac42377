/* What may come next: drafters, the drafts of a pass, and how much of it there is.
 *
 * A draft is verified in the pass that would have computed the next token anyway, so it can only cost time,
 * never change a byte (speculative.h).  Several drafters merge their drafts in one tree. */
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILL   8                                /* tokens of a draft that costs nothing, where no other is ready */
#define ALL    "all"                            /* of several drafters, beside each of them alone */
#define AHEAD  "ahead"

/* ---- opening ------------------------------------------------------------------------------------------- */

int eng_drafters_load(struct eng_engine *e)
{
    int error = 0;
    for (int i = 0; i < e->n_drafter && !error; i++)
        if (e->drafter[i]->kind->load)
            error = e->drafter[i]->kind->load(e->drafter[i]);
    return error;
}

struct eng_extra eng_drafter_need(const struct eng_drafter *d)
{
    return d->kind->need ? d->kind->need(d) : (struct eng_extra){ 0 };
}

struct eng_extra eng_drafters_need(const struct eng_engine *e)
{
    struct eng_extra all = { 0 };
    for (int i = 0; i < e->n_drafter; i++) {
        struct eng_extra one = eng_drafter_need(e->drafter[i]);
        all.weights += one.weights;
        all.step += one.step;
        all.slot += one.slot;
        all.kept += one.kept;
    }
    size_t kept = moe_feature_bytes(e->model, e->opt.kv, &e->features);
    if (all.kept < kept)                        /* who reads them has counted them, but for draft_lengths.c */
        all.slot += kept - all.kept;
    return all;
}

/* ---- sessions come and go ------------------------------------------------------------------------------ */

void eng_draft_enter(struct eng_session *s)
{
    if (s->engine->control)
        spec_control_begin(s->engine->control, s->seat->number);
    s->seat->chain.n = 0;
    for (int i = 0; i < s->engine->n_drafter; i++) {
        s->seat->n_known[i] = 0;
        if (s->engine->drafter[i]->kind->enter)
            s->engine->drafter[i]->kind->enter(s->engine->drafter[i], s);
    }
}

void eng_draft_leave(struct eng_session *s, bool ended)
{
    for (int i = 0; i < s->engine->n_drafter; i++)
        if (s->engine->drafter[i]->kind->leave)
            s->engine->drafter[i]->kind->leave(s->engine->drafter[i], s, ended);
}

void eng_draft_commit(struct eng_session *s, int n_new, int n_kept)
{
    eng_overlap_commit(s, n_new);
    for (int i = 0; i < s->engine->n_drafter; i++)
        s->engine->drafter[i]->kind->commit(s->engine->drafter[i], s, n_new, n_kept);
}

/* ---- a pass -------------------------------------------------------------------------------------------- */

/* What a draft of s may have: no more than could be said, and the last of that needs no row.  Nothing at the
 * end of a prompt. */
static int most_nodes(const struct eng_session *s)
{
    return s->n_row > 1 ? 0 : kn_max(0, kn_min(ENG_DRAFT_NODES, s->n_most - s->n_token - 1));
}

/* What everyone wishes for in n_node, as far as there is room in the pass and in KV.  A draft never takes KV
 * from a session. */
static void share_out(struct eng_engine *e)
{
    int left = e->n_draft_row;
    for (int i = 0; i < e->n_due; i++) {
        struct eng_session *s = e->due[i];
        int n = kn_min(kn_min(e->n_node[i], most_nodes(s)), left / (e->n_due - i));
        if (eng_kv_reserve(&e->kv, &s->path, s->n_kv + s->n_row + n))
            n = kn_min(n, s->path.n_slot - s->n_kv - s->n_row);
        e->n_node[i] = n;
        left -= n;
    }
}

void eng_draft_break(struct eng_drafter *d, int error)
{
    d->broken = true;
    kn_say(KN_LOG_WARN, "a drafter failed (%s): it is not asked again", kn_error_text(error));
}

/* A drafter gets its part of the nodes, and what those before it have left or have in common.  How many that are may go
 * by what was drawn, for what is drawn later is tried later; but whether anything else is asked for beside what one has
 * drawn may not, or SPEC_BLOCK is biased.  Nor does it: of one who draws among so few, always or never is anybody else
 * asked who has something to say; all ways of up to five were tried. */
_Static_assert(ENG_DRAFTERS_MOST <= 5, "of six, a draft that ends early can leave a node to who else got none");
static void ask(struct eng_engine *e, struct eng_drafter *d, int depth, int part, int n_part)
{
    if (d->broken)
        return;
    for (int k = 0; k < e->n_due; k++)
        e->n_part[k] = e->n_node[k] * (part + 1) / n_part - e->due[k]->seat->tree.n;
    d->n_text = 0;
    int error = d->kind->draft(d, e->due, e->n_part, e->n_due, depth);
    e->n_draft_text += d->n_text;
    if (error)
        eng_draft_break(d, error);
}

/* drafter n_drafter: all of them, for one tree. */
static void draft(struct eng_engine *e, int drafter, int depth)
{
    bool all = drafter == e->n_drafter;
    for (int i = 0; i < e->n_due; i++)          /* guessed ahead, and drafted over now */
        if (e->due[i]->seat->chain.n)
            eng_overlap_drop(e->due[i]);
    share_out(e);
    for (int i = all ? 0 : drafter; i < (all ? e->n_drafter : drafter + 1); i++)
        ask(e, e->drafter[i], depth, all ? i : 0, all ? e->n_drafter : 1);
}

/* Where nothing is ready, who drafts at no cost may say something. */
static void fill_in(struct eng_engine *e)
{
    for (int i = 0; i < e->n_drafter; i++) {
        struct eng_drafter *d = e->drafter[i];
        if (!d->kind->free || d->broken)
            continue;
        for (int k = 0; k < e->n_due; k++)
            e->n_part[k] = e->due[k]->seat->chain.n ? 0 : e->n_node[k] - e->due[k]->seat->tree.n;
        int error = d->kind->draft(d, e->due, e->n_part, e->n_due, FILL);
        if (error)
            eng_draft_break(d, error);
    }
}

/* What was drafted beside the pass before, and as much again beside this one. */
static void draft_beside(struct eng_engine *e, int depth, bool filled)
{
    for (int i = 0; i < e->n_due; i++)
        e->n_node[i] = e->due[i]->seat->chain.n ? e->due[i]->seat->chain.n : filled ? FILL : 0;
    share_out(e);
    eng_overlap_lay(e, depth);
    if (filled)
        fill_in(e);
}

/* One, as it is read. */
static double expert_bytes(const struct eng_engine *e)
{
    const struct moe_shape *s = moe_model_shape(e->model);
    return (double)s->expert_file_bytes / s->n_expert_total;
}

/* What is not worth its row goes. */
static void cut(struct eng_engine *e)
{
    for (int i = 0; i < e->n_due; i++) {
        struct eng_seat *seat = e->due[i]->seat;
        int n_asked = seat->lags ? 0 : e->overlap_depth ? seat->tree.n : e->n_node[i];
        e->cut[i] = (struct spec_cut){ .session = seat->number, .tree = &seat->tree, .n_asked = n_asked };
        e->all_lag &= n_asked == 0 && !e->overlap_depth;
    }
    double bytes = eng_expect_needs(e) ? expert_bytes(e) : 0;
    spec_control_cut(e->control, e->cut, e->n_due, bytes);
    for (int i = 0; i < e->n_due; i++)
        if (e->cut[i].n_keep < e->cut[i].tree->n)
            spec_tree_prune(&e->due[i]->seat->tree, e->cut[i].keep, false);
}

static void explain(const struct eng_engine *e)
{
    char line[400];
    eng_explain(e, line, sizeof line);
    kn_say(KN_LOG_INFO, "%s", line);
}

/* Who looks texts up, without a network, takes them in as they are said. */
static int behind(const struct eng_drafter *d, struct eng_session **due, int n_due)
{
    int n = 0;
    for (int i = 0; i < n_due && d->kind->load; i++)
        n += kn_max(0, due[i]->n_token - 1 - eng_draft_first_unknown(d, due[i], due[i]->n_token));
    return n;
}

static void tell_behind(struct eng_engine *e)
{
    int all = 0;
    for (int i = 0; i < e->n_drafter; i++) {
        int n = behind(e->drafter[i], e->due, e->n_due);
        spec_control_behind(e->control, i, n);
        all += n;
    }
    if (e->n_drafter > 1)
        spec_control_behind(e->control, e->n_drafter, all);
}

static void draft_as_decided(struct eng_engine *e, int n_beside)
{
    for (int i = 0; i < e->n_due; i++)
        e->due_seat[i] = e->due[i]->seat->number;
    eng_lengths_tell(e);
    tell_behind(e);
    struct spec_decision before = e->decision;
    spec_control_decide(e->control, e->due_seat, e->n_due, n_beside, &e->decision, e->n_node);
    if (e->opt.explain && (before.drafter != e->decision.drafter || before.depth != e->decision.depth ||
                           before.why != e->decision.why))
        explain(e);
    if (e->decision.drafter == SPEC_OFF)
        return;
    e->all_lag = true;
    if (e->decision.drafter == e->overlap_arm)
        draft_beside(e, e->decision.depth, false);
    else
        draft(e, e->decision.drafter, e->decision.depth);
    cut(e);
    eng_expect_settle(e);
}

static void draft_as_told(struct eng_engine *e)
{
    for (int i = 0; i < e->n_due; i++)
        e->n_node[i] = e->opt.gamma;
    draft(e, e->n_drafter, e->opt.gamma);
    eng_expect_settle(e);
}

/* As --dsi says, until its drafter is gone. */
static bool is_always_beside(const struct eng_engine *e) { return e->opt.dsi == ENG_DSI_ON && e->overlap; }

/* Is it the controller who says how much is drafted? */
static bool decides(const struct eng_engine *e)
{
    return e->control && e->opt.gamma == ENG_GAMMA_AUTO && !is_always_beside(e);
}

static void draft_always_beside(struct eng_engine *e)
{
    draft_beside(e, e->opt.lookahead ? e->opt.lookahead : eng_overlap_depth(e), true);
    eng_expect_settle(e);
}

void eng_draft(struct eng_engine *e, int n_beside)
{
    for (int i = 0; i < e->n_due; i++) {
        spec_tree_clear(&e->due[i]->seat->tree);
        e->due[i]->seat->lags = false;
    }
    e->all_lag = false;
    e->draft_ns = 0;
    e->n_draft_text = 0;
    e->overlap_depth = 0;
    eng_draws_clear(e);
    eng_expect_begin(e);
    if (!e->n_drafter || !e->n_due || e->opt.gamma == 0)
        return;
    uint64_t start = kn_now_ns();
    if (is_always_beside(e))
        draft_always_beside(e);
    else if (e->opt.gamma == ENG_GAMMA_AUTO)
        draft_as_decided(e, n_beside);
    else
        draft_as_told(e);
    e->drafts.n_decision[decides(e) ? e->decision.why : SPEC_WHY_FIXED]++;
    e->draft_ns = kn_now_ns() - start;
    e->stats.draft_ns += e->draft_ns;
}

/* ---- what became of it ------------------------------------------------------------------------------------ */

void eng_draft_look(const struct eng_engine *e, struct off_stats *out)
{
    *out = (struct off_stats){ 0 };
    if (decides(e) && moe_model_store(e->model))
        off_stats_get(moe_model_store(e->model), out);
}

void eng_draft_learn(struct eng_engine *e, int n_row, int n_beside, uint64_t pass_ns)
{
    struct off_stats now;
    if (e->overlap)
        eng_overlap_learn(e, pass_ns);
    if (!decides(e) || !e->n_due || e->all_lag)
        return;
    eng_draft_look(e, &now);
    spec_control_learn(e->control, &(struct spec_step){
        .n_row = n_row, .draft_ns = (double)e->draft_ns, .pass_ns = (double)pass_ns,
        .stall_ns = (double)(now.stall_ns - e->store_then.stall_ns),
        .missed_bytes = (double)(now.read_bytes - e->store_then.read_bytes -
                                 (now.early_bytes - e->store_then.early_bytes)),
        .experts = e->result.experts_per_layer, .outcome = e->outcome, .n_due = e->n_due,
        .n_text = e->n_draft_text, .n_beside = n_beside,
        .ahead_ns = e->overlap_depth ? (double)eng_overlap_last(e)->took_ns : 0,
        .n_ahead = e->overlap_depth ? eng_overlap_last(e)->n_pass : 0 });
    eng_draft_judge(e);
}

int eng_explain(const struct eng_engine *e, char *out, size_t bytes)
{
    if (!e->control)
        return snprintf(out, bytes, "draft: off, there is no drafter");
    if (is_always_beside(e))
        return snprintf(out, bytes, "draft: %s ahead, as --dsi says: %d guesses beside each pass",
                        eng_overlap_drafter(e)->name, e->overlap_depth);
    if (e->opt.gamma != ENG_GAMMA_AUTO)
        return snprintf(out, bytes, "draft: %d tokens, as --gamma says", e->opt.gamma);
    return spec_decision_text(e->control, &e->decision, out, bytes);
}

static enum eng_drafter_state state_of(const struct eng_engine *e, const struct eng_drafter *d)
{
    if (!d || d == &e->unloaded[d->number])
        return ENG_DRAFTER_UNLOADED;
    return d->broken ? ENG_DRAFTER_BROKEN : ENG_DRAFTER_ASKED;
}

/* Drafters first; then all of them, if there are several; then who drafts ahead. */
static void describe(const struct eng_engine *e, int i, struct eng_draft_choice *out)
{
    *out = (struct eng_draft_choice){ .name = ALL, .depth = e->decision.drafter == i ? e->decision.depth : 0 };
    spec_control_account(e->control, i, &out->account);
    if (i == e->overlap_arm) {
        out->name = AHEAD;
        out->state = state_of(e, eng_overlap_drafter(e));
    } else if (i < e->n_drafter) {
        out->name = e->drafter[i]->name;
        out->state = state_of(e, e->drafter[i]);
        for (int j = 0; j < i; j++)
            out->nth += e->drafter[j]->name == out->name;
    }
}

void eng_drafts_get(const struct eng_engine *e, struct eng_drafts *out)
{
    *out = e->drafts;
    if (!decides(e))
        return;
    out->n_choice = e->n_drafter + (e->n_drafter > 1) + (e->overlap_arm < SPEC_DRAFTERS);
    for (int i = 0; i < out->n_choice; i++)
        describe(e, i, &out->choice[i]);
    out->lost_ns = e->decision.lost_ns;
    out->may_lose_ns = e->decision.may_lose_ns;
}

/* ---- the controller --------------------------------------------------------------------------------------- */

static int open_control(struct eng_engine *e)
{
    struct spec_control_options o = { .n_session = e->opt.n_parallel, .n_drafter = e->n_drafter,
                                      .most_drafted = e->n_draft_row, .rule = e->opt.verify,
                                      .gamma = SPEC_AUTO,
                                      .n_expert = moe_model_shape(e->model)->n_expert_total };
    size_t n = (size_t)e->opt.n_parallel;
    for (int i = 0; i < e->n_drafter; i++) {
        o.drafter[i].name = e->drafter[i]->name;
        o.drafter[i].most_depth = SPEC_DEPTHS;
    }
    if (e->n_drafter > 1) {
        o.drafter[o.n_drafter].name = ALL;
        o.drafter[o.n_drafter++].most_depth = SPEC_DEPTHS;
    }
    e->overlap_arm = SPEC_DRAFTERS;
    if (e->overlap && e->opt.dsi == ENG_DSI_AUTO) {
        e->overlap_arm = o.n_drafter;
        o.drafter[o.n_drafter].name = AHEAD;
        o.drafter[o.n_drafter].of = eng_overlap_drafter(e)->number;
        o.drafter[o.n_drafter].ahead = true;
        o.drafter[o.n_drafter++].most_depth = SPEC_DEPTHS;
    }
    e->cut = kn_calloc(n, sizeof *e->cut);
    e->outcome = kn_calloc(n, sizeof *e->outcome);
    e->due_seat = kn_calloc(n, sizeof *e->due_seat);
    e->unloaded = kn_calloc(ENG_DRAFTERS_MOST, sizeof *e->unloaded);
    if (!e->cut || !e->outcome || !e->due_seat || !e->unloaded)
        return kn_fail(KN_ENOMEM, "no memory for drafts of %zu sessions", n);
    return spec_control_open(&e->control, &o);
}

int eng_drafters_open(struct eng_engine *e)
{
    int error = 0;
    for (int i = 0; i < e->opt.n_draft && !error; i++) {
        const struct eng_draft_option *w = &e->opt.draft[i];
        if (w->kind == ENG_DRAFT_NONE)
            continue;
        struct eng_drafter **d = &e->drafter[e->n_drafter];
        error = w->kind == ENG_DRAFT_MODEL ? eng_draft_model_open(d, e, w)
                : eng_draft_properties(w->kind)->is_head               ? eng_draft_head_open(d, e, w)
                                           : eng_draft_text_open(d, e, w);
        if (error)
            break;
        (*d)->number = e->n_drafter++;
        (*d)->name = eng_draft_properties(w->kind)->name;
        if (*w->lengths)
            error = eng_lengths_open(e, (*d)->number, w->lengths);
    }
    if (error || (error = eng_overlap_open(e)))
        return error;
    e->drafts.any = e->n_drafter > 0;
    e->drafts.overlap = e->overlap != NULL;
    return e->opt.n_draft ? open_control(e) : 0;
}

void eng_drafters_close(struct eng_engine *e)
{
    eng_overlap_close(e);
    for (int i = 0; i < e->n_drafter; i++)
        e->drafter[i]->kind->close(e->drafter[i]);
    e->n_drafter = 0;
    eng_lengths_close(e);
    spec_control_close(e->control);
    kn_free(e->cut);
    kn_free(e->outcome);
    kn_free(e->due_seat);
    kn_free(e->unloaded);
}

void eng_set_gamma(struct eng_engine *e, int gamma) { e->opt.gamma = gamma; }

void eng_set_dsi(struct eng_engine *e, enum eng_dsi_mode dsi, int lookahead)
{
    e->opt.dsi = e->overlap ? dsi : ENG_DSI_OFF;
    e->opt.lookahead = lookahead;
    if (e->control && e->overlap_arm < SPEC_DRAFTERS)
        spec_control_bar(e->control, e->overlap_arm, dsi != ENG_DSI_AUTO);
}
