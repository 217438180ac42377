/* engine/draft/head_drafter.c - a head drafts: a layer that continues from the target's own features.
 *
 * The head is an EAGLE head in its own file, or the extra layer behind the last that a checkpoint carries for this
 * purpose (MTP): a block of the target's family, with its experts in the target's store. Row i takes the target's
 * feature of token i, and token i + 1, and predicts feature i + 1; the output matrix turns this into a distribution of
 * token i + 2. Features of committed tokens lie in the target's context at the tokens' slots and are always the
 * target's own; some may be missing (text_rows.c). So a row of committed tokens is computed once, with the next draft
 * after them. Draft rows take the head's predicted features, and lie in slots of their own that no later row reads. A
 * row's key and value lie at the slot of its token i + 1: sequences that share the slot share everything that the row
 * has read.
 *
 * An MTP layer was trained to predict one token. For later tokens the layer takes its own feature in place of the
 * target's, as its authors run it.
 *
 * Chains and trees of its tokens: tree.c. */
#include "engine/draft/internal.h"

#include <string.h>

struct draft_head {
    struct eng_drafter base;
    bool has_warned;       /* the warning about sequences beyond its context was given */
    struct moe_file *file; /* NULL: the layer is in the target's file */
    struct moe_model *model;
    struct eng_trees *trees;
};

static const struct eng_drafter_kind head_kind;

/* ---- opening ------------------------------------------------------------------------------------------- */

static struct moe_context_options context_options(const struct draft_head *d, int n_slot)
{
    struct moe_context_options co = eng_trees_context(d->trees, n_slot);
    co.target = d->base.drafting->host.context;
    return co;
}

static void close_head(struct eng_drafter *base)
{
    struct draft_head *d = (struct draft_head *)base;
    moe_context_close(d->base.context);
    moe_model_close(d->model);
    moe_file_close(d->file);
    eng_trees_close(d->trees);
    kn_free(d);
}

static int open_model(struct draft_head *d, const struct eng_draft_option *w)
{
    struct eng_drafting *g = d->base.drafting;
    if (w->kind == ENG_DRAFT_MTP)
        return moe_model_open_ahead(&d->model, g->host.model);
    int error = moe_file_open(&d->file, w->file);
    return error ? error
                 : moe_model_open(&d->model, d->file,
                                  &(struct moe_model_options){ .isa = g->host.isa, .target = g->host.model });
}

/* Adds the features that the head reads to those that the target's context keeps for all drafters. Fails if another
 * head reads other layers. */
static int ask_features(struct draft_head *d, const struct eng_draft_option *w)
{
    struct moe_features its = moe_model_reads(d->model), *all = &d->base.drafting->features;
    if (its.n_inner && all->n_inner && memcmp(its.inner, all->inner, sizeof its.inner) != 0)
        return kn_fail(KN_EUNSUPPORTED, "%s reads other layers of the model than the previous head: use one of them",
                       w->file);
    all->last |= its.last;
    if (its.n_inner) {
        all->n_inner = its.n_inner;
        memcpy(all->inner, its.inner, sizeof its.inner);
    }
    d->base.reads_last_layer = moe_features_of_end(&its, d->base.drafting->host.model);
    return 0;
}

int eng_draft_head_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *w)
{
    struct draft_head *d = kn_calloc(1, sizeof *d);
    if (!d)
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    d->base = (struct eng_drafter){ .kind = &head_kind, .drafting = g, .can_draw = true, .position_offset = 1 };
    int error = open_model(d, w);
    if (error || (error = eng_trees_open(&d->trees, &d->base, d->model, w->tree)) || (error = ask_features(d, w))) {
        close_head(&d->base);
        return error;
    }
    *out = &d->base;
    return 0;
}

static struct eng_extra need(const struct eng_drafter *base)
{
    const struct draft_head *d = (const struct draft_head *)base;
    struct moe_context_options one = context_options(d, 1);
    struct moe_features reads = moe_model_reads(d->model);
    size_t kept = moe_feature_bytes(base->drafting->host.model, one.kv, &reads);
    struct eng_extra all = eng_network_extra(d->model, &one);
    all.slot += kept;
    all.kept = kept;
    all.n_moe_layer = moe_model_shape(d->model)->n_moe_layer;
    return all;
}

static int load(struct eng_drafter *base)
{
    struct draft_head *d = (struct draft_head *)base;
    struct moe_context_options co = context_options(d, base->drafting->host.split->n_kv_slot);
    return eng_drafter_load_network(base, d->model, &co, &d->base.context);
}

static void unload(struct eng_drafter *base)
{
    eng_drafter_unload_network(((struct draft_head *)base)->model, &base->context);
}

/* ---- sessions ------------------------------------------------------------------------------------------- */

/* Draft rows lie in slots of their own: only whole blocks of committed tokens are marked as computed. */
static void commit(struct eng_drafter *base, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted)
{
    (void)v, (void)n_accepted;
    eng_draft_mark_computed(base, s, kn_max(s->n_token - n_new - 1, 0), *eng_draft_computed(base, s));
}

/* ---- a draft ---------------------------------------------------------------------------------------------------- */

/* The depth of a draft of s, limited by the context that the head was trained on: beyond it drafts are poor. */
static int depth_of(struct draft_head *d, const struct eng_seq *s, int depth)
{
    int left = moe_model_shape(d->model)->n_ctx_train - s->n_token;
    if (left < 1 && !d->has_warned)
        kn_say(KN_LOG_WARN, "%s was trained on %d tokens: longer sequences get no drafts from it",
               moe_file_path(d->file ? d->file : d->base.drafting->host.file), moe_model_shape(d->model)->n_ctx_train);
    d->has_warned |= left < 1;
    return kn_min(left, depth);
}

static int draft(struct eng_drafter *base, struct eng_seq **s, const int *n_node, int n, int depth)
{
    struct draft_head *d = (struct draft_head *)base;
    eng_trees_begin(d->trees);
    for (int i = 0; i < n; i++)
        eng_trees_add(d->trees, s[i], n_node[i], depth_of(d, s[i], depth));
    return eng_trees_grow(d->trees, d->base.context);
}

static const struct eng_drafter_kind head_kind = { .name = "head",
                                                   .commit = commit,
                                                   .draft = draft,
                                                   .close = close_head,
                                                   .load = load,
                                                   .unload = unload,
                                                   .reads_prompts = true,
                                                   .need = need };
