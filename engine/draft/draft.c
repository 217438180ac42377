/* engine/draft/draft.c - one pass of drafting: opens the drafters, asks them, and limits the nodes of each sequence.
 *
 * The order of the calls, and the effect of a draft on the output, are in draft.h. Several drafters merge their drafts
 * into one tree per sequence. */
#include "engine/draft/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FREE_DRAFT_TOKENS 8 /* tokens of a draft without cost, for sequences that have no other draft ready */

/* ---- opening ------------------------------------------------------------------------------------------- */

static int open_drafter(struct eng_drafting *g, const struct eng_draft_option *o)
{
    const struct eng_draft_properties *p = eng_draft_properties(o->kind);
    struct eng_drafter **d = &g->drafter[g->n_drafter];
    int error = p->is_target    ? eng_draft_resident_open(d, g)
                : p->is_medusa  ? eng_draft_medusa_open(d, g, o)
                : p->is_head    ? eng_draft_head_open(d, g, o)
                : p->is_network ? eng_draft_model_open(d, g, o)
                                : eng_draft_text_open(d, g, o);
    if (error)
        return error;
    (*d)->number = g->n_drafter++;
    (*d)->name = p->name;
    (*d)->copies = p->copies;
    (*d)->only_copies = p->only_copies;
    (*d)->n_window = eng_draft_window_rows(o);
    return *o->lengths ? eng_lengths_open(g, (*d)->number, o->lengths) : 0;
}

static int open_drafters(struct eng_drafting *g)
{
    int error = 0;
    for (int i = 0; i < g->opt.n_draft && !error; i++)
        if (g->option[i].kind != ENG_DRAFT_NONE)
            error = open_drafter(g, &g->option[i]);
    if (error || (error = eng_overlap_open(g)) || (error = eng_prompts_open(g)) ||
        (g->prompts.row && (error = eng_beside_open(g))))
        return error;
    for (int i = 0; i < g->n_drafter; i++) {
        g->counts.any |= !g->drafter[i]->only_copies;
        g->counts.has_window |= g->drafter[i]->n_window > 0;
    }
    g->counts.overlap = g->overlap != NULL;
    return g->opt.n_draft ? eng_arms_open(g) : 0;
}

static int open_lists(struct eng_drafting *g)
{
    size_t n = (size_t)g->host.n_parallel;
    g->seat = kn_calloc(n, sizeof *g->seat);
    g->seq = kn_calloc(n, sizeof(struct eng_seq *));
    g->due = kn_calloc(n, sizeof(struct eng_seq *));
    g->n_node = kn_calloc(n, sizeof *g->n_node);
    g->n_part = kn_calloc(n, sizeof *g->n_part);
    return g->seat && g->seq && g->due && g->n_node && g->n_part
               ? 0
               : kn_fail(KN_ENOMEM, "no memory for the drafts of %zu sessions", n);
}

int eng_draft_open(struct eng_drafting **out, const struct eng_draft_options *opt, const struct eng_draft_host *host)
{
    struct eng_drafting *g = kn_calloc(1, sizeof *g);
    if (!g)
        return kn_fail(KN_ENOMEM, "no memory for drafters");
    g->host = *host;
    g->opt = *opt;
    kn_assert(opt->n_draft <= ENG_DRAFTERS_MOST);
    for (int i = 0; i < opt->n_draft; i++)
        g->option[i] = opt->draft[i];
    g->opt.draft = g->option;
    g->features.last = opt->features;
    int error = open_lists(g);
    if (error || (error = open_drafters(g)) || (error = eng_prefetch_open(g)) || (error = eng_distributions_open(g))) {
        eng_draft_close(g);
        return error;
    }
    *out = g;
    return 0;
}

int eng_draft_load(struct eng_drafting *g, struct moe_context *context)
{
    int error = 0;
    g->host.context = context;
    for (int i = 0; i < g->n_drafter && !error; i++)
        if (g->drafter[i]->kind->load)
            error = g->drafter[i]->kind->load(g->drafter[i]);
    return error;
}

void eng_draft_rest(struct eng_drafting *g) { eng_fit_settle(g, false); }

void eng_draft_close(struct eng_drafting *g)
{
    if (!g)
        return;
    eng_fit_settle(g, true);
    eng_beside_close(g);
    eng_overlap_close(g);
    eng_prompts_close(g);
    for (int i = 0; i < g->n_drafter; i++)
        g->drafter[i]->kind->close(g->drafter[i]);
    eng_lengths_close(g);
    eng_prefetch_close(g);
    eng_distributions_close(g);
    spec_control_close(g->control);
    kn_free(g->cut);
    kn_free(g->outcome);
    kn_free(g->due_number);
    kn_free(g->seat);
    kn_free(g->seq);
    kn_free(g->due);
    kn_free(g->n_node);
    kn_free(g->n_part);
    kn_free(g);
}

int eng_drafter_load_network(const struct eng_drafter *d, struct moe_model *model, const struct moe_context_options *co,
                             struct moe_context **context)
{
    const struct eng_draft_host *host = &d->drafting->host;
    struct moe_context_options watched = *co;
    watched.advanced_ns = host->advanced_ns;
    int error = moe_model_load(model, &(struct moe_load_options){ .team = host->team, .io = host->io, .again = true });
    return error ? error : moe_context_open(context, model, &watched);
}

void eng_drafter_unload_network(struct moe_model *model, struct moe_context **context)
{
    moe_context_close(*context);
    *context = NULL;
    moe_model_unload(model);
}

struct eng_extra eng_network_extra(const struct moe_model *m, const struct moe_context_options *one)
{
    struct kn_bytes step = moe_context_bytes(m, one);
    size_t dense = moe_model_shape(m)->dense_bytes;
    bool apart = moe_model_device(m)->backend->own_memory;
    return (struct eng_extra){ .weights = apart ? moe_model_shape(m)->vector_bytes : dense,
                               .step = step.host,
                               .device_weights = apart ? dense : 0,
                               .device_step = step.device,
                               .slot = moe_kv_slot_bytes(m, one->kv) };
}

struct eng_extra eng_drafter_need(const struct eng_drafter *d)
{
    return d->kind->need ? d->kind->need(d) : (struct eng_extra){ 0 };
}

void eng_draft_needs(const struct eng_drafting *g, struct eng_draft_needs *out)
{
    struct eng_extra all = { 0 };
    for (int i = 0; i < g->n_drafter; i++) {
        struct eng_extra one = eng_drafter_need(g->drafter[i]);
        all.weights += one.weights;
        all.step += one.step;
        all.device_weights += one.device_weights;
        all.device_step += one.device_step;
        all.slot += one.slot;
        all.kept += one.kept;
    }
    size_t kept = moe_feature_bytes(g->host.model, g->host.kv_format, &g->features);
    if (all.kept < kept) /* heads have counted the features that they read; match_length.c has not */
        all.slot += kept - all.kept;
    *out = (struct eng_draft_needs){ .memory = all, .features = g->features, .n_recall = g->n_recall };
}

const char *eng_draft_kind_name(const struct eng_drafting *g, int drafter) { return g->drafter[drafter]->name; }
int eng_draft_count(const struct eng_drafting *g) { return g->n_drafter; }

const struct moe_model *eng_draft_chain_model(const struct eng_drafting *g, int n)
{
    for (int i = 0; i < g->n_drafter; i++)
        if (eng_draft_is_model(g->drafter[i]) && n-- == 0)
            return eng_draft_model_of(g->drafter[i]);
    return NULL;
}

/* ---- sequences ------------------------------------------------------------------------------------------- */

/* The drafters that may draft for s, as bits. */
static uint8_t allowed_for(const struct eng_drafting *g, const struct eng_seq *s)
{
    int bits = 0;
    for (int i = 0; i < g->n_drafter; i++)
        bits |= (!g->drafter[i]->only_copies || s->n_reference) << i;
    return (uint8_t)(bits & ~s->limits.unused);
}

void eng_draft_enter(struct eng_drafting *g, struct eng_seq *s)
{
    struct eng_draft_seat *seat = &g->seat[s->number];
    s->draft = seat;
    s->tree = &seat->tree;
    spec_tree_clear(&seat->tree);
    seat->chain.n = 0;
    seat->allowed = seat->usable = allowed_for(g, s);
    g->counts.any |= seat->allowed != 0;
    if (g->control)
        eng_arms_begin(g, s);
    for (int i = 0; i < g->n_drafter; i++) {
        seat->n_computed[i] = 0;
        if (g->drafter[i]->kind->enter)
            g->drafter[i]->kind->enter(g->drafter[i], s);
    }
}

void eng_draft_leave(struct eng_drafting *g, struct eng_seq *s, bool ended)
{
    for (int i = 0; i < g->n_drafter; i++)
        if (g->drafter[i]->kind->leave)
            g->drafter[i]->kind->leave(g->drafter[i], s, ended);
    s->draft = NULL;
    s->tree = NULL;
}

int eng_draft_n_pending(const struct eng_seq *s) { return s->draft->chain.n; }

/* ---- a pass -------------------------------------------------------------------------------------------- */

/* The nodes that a tree of s may have: no more than the tokens that s may still get, less one, since the last token
 * needs no row. None in a pass with prefill rows of s. */
static int max_nodes(const struct eng_seq *s)
{
    return s->n_row > 1 ? 0 : kn_max(0, kn_min(ENG_DRAFT_NODES, s->n_max - s->n_token - 1));
}

/* The drafted nodes of them: no more than its request allows. */
static int max_drafted(const struct eng_seq *s)
{
    return s->limits.n_max ? kn_min(s->limits.n_max, max_nodes(s)) : max_nodes(s);
}

/* Drops the nodes that the requests' n_min and p_min exclude. */
static void apply_limits(struct eng_drafting *g)
{
    for (int i = 0; i < g->n_due; i++) {
        const struct eng_draft_limits *l = &g->due[i]->limits;
        struct spec_tree *t = &g->due[i]->draft->tree;
        bool keep[SPEC_NODES];
        int n = 0;
        if (!t->n || (l->n_min <= 1 && l->p_min <= 0))
            continue;
        for (int k = 0; k < t->n; n += keep[k] && !t->window_row[k], k++) {
            int parent = t->parent[k];
            float before = parent == SPEC_ROOT ? 1 : t->survival[parent];
            keep[k] = (parent == SPEC_ROOT || keep[parent]) &&
                      (t->window_row[k] || t->survival[k] >= l->p_min * before);
        }
        for (int k = 0; k < t->n && n < l->n_min; k++)
            keep[k] = t->window_row[k];
        spec_tree_prune(t, keep, false);
    }
}

/* Limits n_node to the rows of the pass, shared equally, and to the KV that is free. A draft never takes KV from a
 * session. drafters: those that will be asked, as bits; sequences that none of them may draft for get no nodes. */
static void reserve_nodes(struct eng_drafting *g, uint8_t drafters)
{
    int left = g->host.n_draft_row;
    for (int i = 0; i < g->n_due; i++) {
        struct eng_seq *s = g->due[i];
        int n = s->draft->usable & drafters ? kn_min(g->n_node[i], max_drafted(s)) : 0;
        n = kn_min(n, left / (g->n_due - i));
        if (eng_kv_reserve(g->host.kv, &s->path, s->n_kv + s->n_row + n))
            n = kn_min(n, s->path.n_slot - s->n_kv - s->n_row);
        g->n_node[i] = n;
        left -= n;
    }
}

void eng_draft_break(struct eng_drafter *d, int error)
{
    d->broken = true;
    kn_say(KN_LOG_WARN, "a drafter failed (%s): it is not used again", kn_error_text(error));
}

/* The nodes that a tree of s may have when drafter d has drafted; `drafters` are asked, in order, and share n_node equally
 * among those that may draft for s. 0: d may not. */
static int n_node_until(const struct eng_seq *s, const struct eng_drafter *d, int n_node, uint8_t drafters)
{
    unsigned its = s->draft->usable & drafters, upto = its & ((2u << d->number) - 1);
    return its >> d->number & 1 ? n_node * __builtin_popcount(upto) / __builtin_popcount(its) : 0;
}

/* Asks one of `drafters`. It may add nodes until the tree has the share of n_node up to its own (n_node_until): its
 * own share, and the nodes that earlier drafters left unused or had in common. Under SPEC_BLOCK this number may
 * depend on tokens sampled before, since tokens sampled later are tried later; but whether another drafter gets any
 * nodes must not depend on a sampled token, or the result is biased. It does not: if one drafter samples, with up to
 * five drafters, every other drafter with a draft either always gets nodes or never does. All combinations of up to
 * five were enumerated. */
_Static_assert(ENG_DRAFTERS_MOST <= 5, "of six drafters, one that stops early can leave a node to one that had none");
static void ask(struct eng_drafting *g, struct eng_drafter *d, int depth, uint8_t drafters)
{
    if (d->broken)
        return;
    for (int k = 0; k < g->n_due; k++)
        g->n_part[k] = kn_max(0, n_node_until(g->due[k], d, g->n_node[k], drafters) - g->due[k]->draft->tree.n);
    d->n_text = 0;
    int error = eng_prompts_catch_up(d, g->due, g->n_part, g->n_due);
    if (!error)
        error = d->kind->draft(d, g->due, g->n_part, g->n_due, depth);
    g->n_draft_text += d->n_text;
    if (error)
        eng_draft_break(d, error);
}

/* Adds the drafters' windows to the trees, as far as drafts have left rows of the pass, and KV is free. Under SPEC_RATIO
 * and SPEC_BLOCK the space for windows must not depend on drawn tokens, as in ask(): there a draft counts with all nodes
 * that it could have had. */
static void add_windows(struct eng_drafting *g, uint8_t drafters)
{
    int left = g->host.n_draft_row;
    bool counts = g->opt.verify == SPEC_COUPLED;
    for (int i = 0; i < g->n_due; i++)
        left -= counts ? g->due[i]->draft->tree.n : g->n_node[i];
    for (int k = 0; k < g->n_due; k++) {
        struct eng_seq *s = g->due[k];
        const struct spec_tree *t = &s->draft->tree;
        int used = counts ? t->n : g->n_node[k], most = used + kn_min(left / (g->n_due - k), max_nodes(s) - used);
        for (int i = 0; i < g->n_drafter; i++) {
            struct eng_drafter *d = g->drafter[i];
            int before = t->n, n = kn_min(d->n_window, most - used);
            if (!(drafters & s->draft->usable & 1 << i) || n <= 0 || d->broken)
                continue;
            if (eng_kv_reserve(g->host.kv, &s->path, s->n_kv + s->n_row + used + n))
                n = kn_min(n, s->path.n_slot - s->n_kv - s->n_row - used);
            d->kind->window(d, s, n);
            used += t->n - before;
            left -= t->n - before;
        }
    }
}

/* Asks the given drafters, as bits, which draft into one tree. */
static void draft(struct eng_drafting *g, uint8_t drafters, int depth)
{
    for (int i = 0; i < g->n_due; i++) /* chains from earlier passes are replaced by this draft */
        if (g->due[i]->draft->chain.n)
            eng_overlap_drop(g, g->due[i]);
    reserve_nodes(g, drafters);
    for (int i = 0; i < g->n_drafter; i++)
        if (drafters >> i & 1)
            ask(g, g->drafter[i], depth, drafters);
    add_windows(g, drafters);
}

/* Sequences without a chain get drafts from the drafters without cost. */
static void draft_free(struct eng_drafting *g)
{
    for (int i = 0; i < g->n_drafter; i++) {
        struct eng_drafter *d = g->drafter[i];
        if (!d->kind->free || d->broken)
            continue;
        for (int k = 0; k < g->n_due; k++)
            g->n_part[k] = g->due[k]->draft->chain.n || !(g->due[k]->draft->usable >> i & 1)
                               ? 0
                               : g->n_node[k] - g->due[k]->draft->tree.n;
        int error = d->kind->draft(d, g->due, g->n_part, g->n_due, FREE_DRAFT_TOKENS);
        if (error)
            eng_draft_break(d, error);
    }
}

/* The chains from the last pass become this pass's draft; during the pass they grow by `depth` more tokens. filled:
 * sequences without a chain get a draft without cost, if a drafter has one. */
static void draft_beside(struct eng_drafting *g, int depth, bool filled)
{
    for (int i = 0; i < g->n_due; i++)
        g->n_node[i] = g->due[i]->draft->chain.n ? g->due[i]->draft->chain.n : filled ? FREE_DRAFT_TOKENS : 0;
    reserve_nodes(g, UINT8_MAX);
    eng_overlap_lay(g, depth);
    if (filled) {
        draft_free(g);
        add_windows(g, UINT8_MAX);
    }
}

/* Bytes of one expert in the file. */
static double expert_bytes(const struct eng_drafting *g)
{
    const struct moe_shape *s = moe_model_shape(g->host.model);
    return (double)s->expert_file_bytes / s->n_expert_total;
}

/* Removes the nodes that the controller does not keep (spec_control_cut).  no_draft_ready stays true only if no
 * sequence asked a drafter. */
static void cut(struct eng_drafting *g)
{
    for (int i = 0; i < g->n_due; i++) {
        struct eng_draft_seat *seat = g->due[i]->draft;
        int n_requested = seat->drafter_prefilling ? 0 : g->overlap_depth ? seat->tree.n : g->n_node[i];
        g->cut[i] = (struct spec_cut){ .session = g->due[i]->number, .tree = &seat->tree, .n_requested = n_requested };
        g->no_draft_ready &= n_requested == 0 && !g->overlap_depth;
    }
    double bytes = eng_prefetch_needs(g, g->cut) ? expert_bytes(g) : 0;
    spec_control_cut(g->control, g->cut, g->n_due, bytes);
    for (int i = 0; i < g->n_due; i++)
        if (g->cut[i].n_keep < g->cut[i].tree->n)
            spec_tree_prune(&g->due[i]->draft->tree, g->cut[i].keep, g->cut[i].blind);
}

static void explain_change(const struct eng_drafting *g, const struct spec_decision *before)
{
    const struct spec_decision *now = &g->decision;
    char line[ENG_EXPLAIN_BYTES];
    if (!g->opt.explain || (before->drafter == now->drafter && before->depth == now->depth && before->why == now->why))
        return;
    eng_draft_explain(g, line, sizeof line);
    kn_say(KN_LOG_INFO, "%s", line);
}

/* Tokens that the drafter must prefill before it can draft. Others than networks that read prompts have none: they learn
 * tokens as they are committed, or need none. */
static int n_uncomputed(const struct eng_drafter *d, struct eng_seq **due, int n_due)
{
    int n = 0;
    for (int i = 0; i < n_due && d->kind->reads_prompts && !d->upkeep.unloaded; i++)
        if (due[i]->draft->usable >> d->number & 1)
            n += d->kind->n_uncomputed
                     ? d->kind->n_uncomputed(d, due[i])
                     : kn_max(0, due[i]->n_token - 1 - eng_draft_first_uncomputed(d, due[i], due[i]->n_token));
    return n;
}

static void report_uncomputed(struct eng_drafting *g)
{
    int all = 0;
    for (int i = 0; i < g->n_drafter; i++) {
        int n = n_uncomputed(g->drafter[i], g->due, g->n_due);
        spec_control_set_n_prefill(g->control, i, n);
        all += n;
    }
    if (g->n_drafter > 1)
        spec_control_set_n_prefill(g->control, g->n_drafter, all);
}

static void draft_as_decided(struct eng_drafting *g, int n_beside)
{
    for (int i = 0; i < g->n_due; i++)
        g->due_number[i] = g->due[i]->number;
    eng_arms_disable(g);
    eng_lengths_predict(g);
    report_uncomputed(g);
    spec_control_set_context(g->control, g->n_position / g->n_due);
    struct spec_decision before = g->decision;
    spec_control_decide(g->control, g->due_number, g->n_due, n_beside, &g->decision, g->n_node);
    explain_change(g, &before);
    if (g->decision.drafter == SPEC_OFF)
        return;
    g->no_draft_ready = true;
    if (g->decision.drafter == g->overlap_arm)
        draft_beside(g, g->decision.depth, false);
    else
        draft(g, eng_arm_drafters(g, g->decision.drafter) & eng_draft_loaded(g), g->decision.depth);
    apply_limits(g);
    cut(g);
    eng_prefetch_settle(g);
}

static void draft_fixed(struct eng_drafting *g)
{
    for (int i = 0; i < g->n_due; i++)
        g->n_node[i] = g->opt.gamma;
    draft(g, eng_draft_loaded(g), g->opt.gamma);
    apply_limits(g);
    eng_prefetch_settle(g);
}

static void draft_always_beside(struct eng_drafting *g)
{
    draft_beside(g, g->opt.lookahead ? g->opt.lookahead : eng_overlap_depth(g), true);
    apply_limits(g);
    eng_prefetch_settle(g);
}

void eng_draft_begin(struct eng_drafting *g)
{
    g->n_seq = g->n_due = g->n_row = 0;
    g->usable = 0;
    g->n_position = 0;
    g->no_draft_ready = false;
    g->draft_ns = 0;
    g->n_draft_text = 0;
    g->overlap_depth = 0;
    eng_distributions_clear(g);
    eng_prefetch_begin(g);
    eng_prompts_begin(g);
}

void eng_draft_add(struct eng_drafting *g, struct eng_seq *s)
{
    eng_prefetch_add_text(g, s->token + s->n_kv, s->n_row);
    g->seq[g->n_seq++] = s;
    g->n_row += s->n_row;
    eng_features_look_up(g, s);
    if (!eng_seq_is_due(s))
        return;
    spec_tree_clear(&s->draft->tree);
    s->draft->drafter_prefilling = false;
    g->n_position += s->n_token;
    g->usable |= s->draft->usable;
    g->due[g->n_due++] = s;
}

/* No drafter may draft for any sequence; the controller learns the time of the step. unloaded: one might if it were loaded. */
static void decide_plain(struct eng_drafting *g, int n_beside, bool unloaded)
{
    struct spec_decision before = g->decision;
    enum spec_why why = unloaded ? SPEC_WHY_UNLOADED : SPEC_WHY_NONE_DUE;
    spec_control_set_context(g->control, g->n_position / g->n_due);
    spec_control_decide_plain(g->control, g->n_due, n_beside, why, &g->decision);
    if (!unloaded)
        return;
    g->counts.n_decision[why]++;
    explain_change(g, &before);
}

void eng_draft_make(struct eng_drafting *g)
{
    bool unloaded = g->usable & eng_draft_unloaded(g);
    g->usable &= eng_draft_loaded(g);
    eng_features_choose(g);
    eng_prefetch_request(g);
    if (!g->usable && g->n_due && eng_draft_controller_is_on(g))
        decide_plain(g, g->n_row - g->n_due, unloaded);
    if (!g->usable || g->opt.gamma == 0)
        return;
    uint64_t start = kn_now_ns();
    if (eng_draft_always_overlaps(g))
        draft_always_beside(g);
    else if (g->opt.gamma == ENG_GAMMA_AUTO)
        draft_as_decided(g, g->n_row - g->n_due);
    else
        draft_fixed(g);
    g->counts.n_decision[eng_draft_last_reason(g)]++;
    g->draft_ns = kn_now_ns() - start;
    g->times.draft_ns += g->draft_ns;
}

static void get_store_counters(const struct eng_drafting *g, struct off_stats *out)
{
    *out = (struct off_stats){ 0 };
    if (eng_draft_controller_is_on(g) && moe_model_store(g->host.model))
        off_stats_get(moe_model_store(g->host.model), out);
}

void eng_draft_pass_starts(struct eng_drafting *g)
{
    get_store_counters(g, &g->store_before);
    bool extends = eng_overlap_start(g), reads = eng_prompts_start(g);
    g->works_beside = extends || reads;
    eng_fit_pass_starts(g);
    if (g->works_beside)
        eng_beside_start(g);
}

void eng_draft_pass_ends(struct eng_drafting *g, const struct moe_result *result)
{
    eng_features_note(g, result);
    eng_overlap_end(g, eng_beside_wait(g));
    eng_prompts_end(g);
}

/* ---- after the pass ----------------------------------------------------------------------------------------- */

void eng_draft_verified(struct eng_drafting *g, int i, const int16_t *path, int n_accepted)
{
    if (g->outcome)
        g->outcome[i] = (struct spec_session_outcome){ g->due[i]->number, &g->due[i]->draft->tree, n_accepted, path };
}

void eng_draft_commit(struct eng_drafting *g, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted,
                      bool ended)
{
    g->counts.n_draft += spec_tree_n_drafted(s->tree) > 0;
    for (int i = 0; i < n_accepted; i++)
        g->counts.n_accepted[i] += !s->tree->window_row[v->path[i]];
    if (ended)
        return;
    eng_overlap_commit(s, n_new);
    for (int i = 0; i < g->n_drafter; i++)
        if (g->drafter[i]->kind->commit)
            g->drafter[i]->kind->commit(g->drafter[i], s, v, n_new, n_accepted);
}

/* The controller learns the step's time. */
static void learn(struct eng_drafting *g, const struct eng_pass_result *r)
{
    struct off_stats now;
    get_store_counters(g, &now);
    double missed = (double)(now.read_bytes - g->store_before.read_bytes -
                             (now.early_bytes - g->store_before.early_bytes));
    eng_fit_learn(g, r, missed);
    spec_control_learn(g->control, &(struct spec_outcome_of_pass){
                                       .n_row = r->n_row,
                                       .draft_ns = (double)g->draft_ns,
                                       .pass_ns = (double)r->pass_ns,
                                       .stall_ns = (double)(now.stall_ns - g->store_before.stall_ns),
                                       .missed_bytes = missed,
                                       .experts = r->experts_per_layer,
                                       .outcome = g->outcome,
                                       .n_due = g->n_due,
                                       .n_text = g->n_draft_text,
                                       .n_beside = g->n_row - g->n_due,
                                       .overlap_ns = g->overlap_depth ? (double)eng_overlap_last(g)->took_ns : 0,
                                       .n_overlap_pass = g->overlap_depth ? eng_overlap_last(g)->n_pass : 0 });
}

void eng_draft_learn(struct eng_drafting *g, const struct eng_pass_result *r)
{
    eng_prompts_learn(g, r->pass_ns);
    eng_features_count(g, r);
    if (g->overlap)
        eng_overlap_learn(g, r->pass_ns);
    if (!eng_draft_controller_is_on(g) || !g->n_due)
        return;
    if (!g->no_draft_ready)
        learn(g, r);
    eng_draft_weigh_upkeep(g, (double)(g->draft_ns + r->pass_ns));
}
