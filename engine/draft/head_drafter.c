/* A head drafts: from what the model itself thought, one guess on the other.
 *
 * It is EAGLE's, a file of its own, or the layer behind the last that a checkpoint carries for this (MTP): a block of
 * the model's family, with experts in the model's store.  Row i takes the model's feature of token i and token
 * i + 1, and guesses feature i + 1, of which the model's own output matrix makes token i + 2.  Features of committed
 * tokens lie in the model's context at their slots, true ones always, so a row of committed text is computed once,
 * when it is next drafted from; guesses go on from guesses, in slots of their own that nobody reads later.  A row's
 * key and value lie at the slot of its token i + 1: whatever shares that slot shares all that the row has read.
 *
 * The layer of a checkpoint was trained to guess one token; it goes on from its own feature as it did from the
 * model's, which is how its makers run it.
 *
 * Its guesses grow into chains or trees: draft_tree.c. */
#include "engine/internal.h"

#include <string.h>

struct draft_head {
    struct eng_drafter base;
    bool told;                                  /* that texts have outgrown it */
    struct moe_file *file;                      /* NULL: it is in the model's */
    struct moe_model *model;
    struct moe_context *context;
    struct eng_trees *trees;
};

static const struct eng_drafter_kind head_kind;

/* ---- opening ------------------------------------------------------------------------------------------- */

static struct moe_context_options context_options(const struct draft_head *d, int n_slot)
{
    struct moe_context_options co = eng_trees_context(d->trees, n_slot);
    co.target = d->base.engine->context;
    return co;
}

static void close_head(struct eng_drafter *base)
{
    struct draft_head *d = (struct draft_head *)base;
    moe_context_close(d->context);
    moe_model_close(d->model);
    moe_file_close(d->file);
    eng_trees_close(d->trees);
    kn_free(d);
}

static int open_model(struct draft_head *d, const struct eng_draft_option *w)
{
    struct eng_engine *e = d->base.engine;
    if (w->kind == ENG_DRAFT_MTP)
        return moe_model_open_ahead(&d->model, e->model);
    int error = moe_file_open(&d->file, w->file);
    return error ? error : moe_model_open(&d->model, d->file, &(struct moe_model_options){ .isa = e->opt.isa,
                                                                                           .target = e->model });
}

/* The model's context keeps what all heads read. */
static int ask_features(const struct draft_head *d, const struct eng_draft_option *w)
{
    struct moe_features its = moe_model_reads(d->model), *all = &d->base.engine->features;
    if (its.n_inner && all->n_inner && memcmp(its.inner, all->inner, sizeof its.inner) != 0)
        return kn_fail(KN_EUNSUPPORTED, "%s reads other layers of the model than the head before it: name one of them",
                       w->file);
    all->last |= its.last;
    if (its.n_inner) {
        all->n_inner = its.n_inner;
        memcpy(all->inner, its.inner, sizeof its.inner);
    }
    return 0;
}

int eng_draft_head_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_option *w)
{
    struct draft_head *d = kn_calloc(1, sizeof *d);
    if (!d)
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    d->base = (struct eng_drafter){ .kind = &head_kind, .engine = e, .can_draw = true };
    int error = open_model(d, w);
    if (error || (error = eng_trees_open(&d->trees, &d->base, d->model, w->tree, true)) ||
        (error = ask_features(d, w))) {
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
    size_t kept = moe_feature_bytes(base->engine->model, one.kv, &reads);
    return (struct eng_extra){
        .weights = moe_model_shape(d->model)->dense_bytes, .step = moe_context_bytes(d->model, &one),
        .slot = moe_kv_slot_bytes(d->model, one.kv) + kept, .kept = kept,
        .n_moe_layer = moe_model_shape(d->model)->n_moe_layer };
}

static int load(struct eng_drafter *base)
{
    struct draft_head *d = (struct draft_head *)base;
    struct moe_context_options co = context_options(d, base->engine->split.n_kv_slot);
    int error = moe_model_load(d->model, &(struct moe_load_options){ .team = base->engine->team,
                                                                     .io = base->engine->opt.io });
    return error ? error : moe_context_open(&d->context, d->model, &co);
}

/* ---- sessions ------------------------------------------------------------------------------------------- */

/* Guesses were never part of what is known. */
static void commit(struct eng_drafter *base, struct eng_session *s, int n_new, int n_kept)
{
    (void)n_kept;
    eng_draft_mark(base, s, kn_max(s->n_token - n_new - 1, 0), *eng_draft_known(base, s));
}

/* ---- a draft ---------------------------------------------------------------------------------------------------- */

/* How deep a draft of s may be: a head has learnt so many positions, and beyond them guesses badly. */
static int depth_of(struct draft_head *d, const struct eng_session *s, int depth)
{
    int left = moe_model_shape(d->model)->n_ctx_train - s->n_token;
    if (left < 1 && !d->told)
        kn_say(KN_LOG_WARN, "%s was trained on %d tokens: texts beyond them go without its drafts",
               moe_file_path(d->file ? d->file : d->base.engine->file), moe_model_shape(d->model)->n_ctx_train);
    d->told |= left < 1;
    return kn_min(left, depth);
}

static int draft(struct eng_drafter *base, struct eng_session **s, const int *n_node, int n, int depth)
{
    struct draft_head *d = (struct draft_head *)base;
    eng_trees_begin(d->trees);
    for (int i = 0; i < n; i++)
        eng_trees_add(d->trees, s[i], n_node[i], depth_of(d, s[i], depth));
    return eng_trees_grow(d->trees, d->context);
}

static const struct eng_drafter_kind head_kind = {
    .name = "head", .commit = commit, .draft = draft, .close = close_head, .load = load, .need = need };
