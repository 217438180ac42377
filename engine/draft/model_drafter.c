/* engine/draft/model_drafter.c - a small model with the same vocabulary drafts for the target: for all sessions
 * together, one pass for each token of a chain or each level of a tree. A model with another vocabulary:
 * other_vocabulary.c.
 *
 * Or the target itself drafts, where some of its experts are on disk: in a pass of a draft rows choose among the experts on
 * the device and in memory (moe_forward_present). It needs no memory of its own, since its keys and values lie at slots that the
 * target's pass writes again, the last committed token's among them, before any row reads them.
 *
 * It samples with the session's parameters and the target's noise, so where both models have the same distribution
 * they choose the same token. Under --verify ratio or block it samples from its own distribution instead
 * (distributions.c). Its keys and values lie at the slots of the session's path, in memory of its own. Committed
 * tokens are computed with the next draft, at most MAX_PREFILL_ROWS of them (and one for each session) in a pass; a
 * session that needs more gets no draft until the drafter has computed them all.
 *
 * The draft tokens of a chain lie at the slots of their positions, so the KV of accepted ones stays valid. Those of a
 * tree lie in slots of the tree (tree.c), so accepted ones are computed again with the next draft.
 *
 * During the target's pass, chains are extended (overlap.c). */
#include "engine/draft/internal.h"

#include <string.h>

#define MAX_PREFILL_ROWS 256 /* rows of a pass, beside one for each session */

struct item { /* a session in a draft */
    struct eng_seq *s;
    int most, n;             /* draft tokens: limit and number, counted behind n_token */
    int node;                /* tree node of the last draft token */
    float survival;          /* probability of all of them, by this model */
    struct eng_chain *chain; /* drafting during a pass: tokens are added here; NULL: to the tree */
    struct spec_dist *dist; /* distribution to sample the next token from; NULL: spec_sample, with the target's noise */
    bool fresh, goes_on;    /* fresh: it has had no row in this draft */
};

struct draft_model {
    struct eng_drafter base;
    struct moe_file *file;       /* NULL: the target itself drafts */
    struct moe_model *model;     /* NULL as well */
    struct eng_trees *trees;     /* NULL: drafts are chains */
    struct moe_row *row;         /* [MAX_PREFILL_ROWS + n_parallel] */
    bool beside;                 /* a pass of the target runs meanwhile */
    struct item *item;           /* [n_parallel] */
    struct spec_sampled *choice; /* [n_parallel] by row of logits */
    struct item **chooses;       /* [n_parallel] */
    struct moe_result result;
};

static const struct eng_drafter_kind model_kind, resident_kind;

bool eng_draft_is_resident(const struct eng_drafter *d) { return d->kind == &resident_kind; }
bool eng_draft_is_model(const struct eng_drafter *d) { return d->kind == &model_kind; }

const struct moe_model *eng_draft_model_of(const struct eng_drafter *d)
{
    return ((const struct draft_model *)d)->model;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Whether the vocabulary is the target's, and says so if not; either model may have padding rows beyond. */
static bool has_vocab_of_target(const struct eng_drafting *g, const struct eng_vocab *v, const char *path)
{
    int n = eng_vocab_size(g->host.vocab), n_here = eng_vocab_size(v), id = 0;
    while (n == n_here && id < n && eng_vocab_text(v, id).n == eng_vocab_text(g->host.vocab, id).n &&
           !memcmp(eng_vocab_text(v, id).data, eng_vocab_text(g->host.vocab, id).data, eng_vocab_text(v, id).n))
        id++;
    if (n != n_here)
        kn_say(KN_LOG_INFO, "%s has another vocabulary, of %d tokens, not %d: its drafts are passed on as text", path,
               n_here, n);
    else if (id < n)
        kn_say(KN_LOG_INFO, "%s has another vocabulary, token %d differs: its drafts are passed on as text", path, id);
    return n == n_here && id == n;
}

int eng_draft_open_network(struct moe_model **out, struct moe_file *file, const struct eng_drafting *g,
                           const struct eng_draft_option *w)
{
    struct moe_model_options opt = { .isa = g->host.isa, .device = moe_model_device(g->host.model) };
    int error = moe_model_open(out, file, &opt);
    if (error || !moe_model_shape(*out)->state_bytes)
        return error;
    return kn_fail(KN_EUNSUPPORTED,
                   "%s cannot draft: the state of its recurrent layers cannot be rolled back; "
                   "--draft model: takes a model with attention in every layer",
                   w->file);
}

void eng_draft_check_length(const struct moe_model *m, const struct eng_drafting *g, const struct eng_draft_option *w)
{
    int n = moe_model_shape(m)->n_ctx_train;
    if (n < g->host.n_ctx)
        kn_say(KN_LOG_WARN, "%s was trained on %d tokens: its drafts beyond them will be poor", w->file, n);
}

/* All weights stay in memory, experts too. */
struct eng_extra eng_whole_network_extra(const struct moe_model *m, const struct moe_context_options *one)
{
    struct eng_extra all = eng_network_extra(m, one);
    all.weights += moe_model_shape(m)->expert_bytes;
    return all;
}

static struct moe_context_options context_options(const struct draft_model *d, int n_slot)
{
    const struct eng_drafting *g = d->base.drafting;
    if (d->trees) /* a tree's options are larger */
        return eng_trees_context(d->trees, n_slot);
    return (struct moe_context_options){ .max_row = MAX_PREFILL_ROWS + g->host.n_parallel,
                                         .max_want = g->host.n_parallel,
                                         .n_slot = n_slot,
                                         .max_pos = g->host.n_ctx,
                                         .max_path = 2 * g->host.n_parallel + 2,
                                         .kv = g->host.kv_format,
                                         .team = g->host.team };
}

static void close_model(struct eng_drafter *base)
{
    struct draft_model *d = (struct draft_model *)base;
    moe_context_close(d->base.context);
    moe_model_close(d->model);
    moe_file_close(d->file);
    eng_trees_close(d->trees);
    kn_free(d->row);
    kn_free(d->item);
    kn_free(d->choice);
    kn_free(d->chooses);
    kn_free(d);
}

/* A drafter without a network yet; NULL: no memory. */
static struct draft_model *new_drafter(struct eng_drafting *g, const struct eng_drafter_kind *kind)
{
    struct draft_model *d = kn_calloc(1, sizeof *d);
    size_t n = (size_t)g->host.n_parallel;
    if (!d)
        return NULL;
    d->base = (struct eng_drafter){
        .kind = kind, .drafting = g, .can_draw = true, .team = g->host.team, .sampler = g->host.sampler
    };
    d->row = kn_calloc(MAX_PREFILL_ROWS + n, sizeof *d->row);
    d->item = kn_calloc(n, sizeof *d->item);
    d->choice = kn_calloc(n, sizeof *d->choice);
    d->chooses = kn_calloc(n, sizeof(struct item *));
    if (d->row && d->item && d->choice && d->chooses)
        return d;
    close_model(&d->base);
    return NULL;
}

/* Takes the file over, also on failure. */
static int open_same(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *w,
                     struct moe_file *file)
{
    struct draft_model *d = new_drafter(g, &model_kind);
    if (!d) {
        moe_file_close(file);
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    }
    d->file = file;
    int error = eng_draft_open_network(&d->model, file, g, w);
    if (!error && w->tree != ENG_TREE_CHAIN)
        error = eng_trees_open(&d->trees, &d->base, d->model, w->tree);
    if (error) {
        close_model(&d->base);
        return error;
    }
    eng_draft_check_length(d->model, g, w);
    *out = &d->base;
    return 0;
}

int eng_draft_model_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *w)
{
    struct moe_file *file;
    struct eng_vocab *vocab;
    int error = moe_file_open(&file, w->file);
    if (error)
        return error;
    if ((error = eng_vocab_open(&vocab, file))) {
        moe_file_close(file);
        return error;
    }
    if (!has_vocab_of_target(g, vocab, w->file))
        return eng_draft_other_open(out, g, w, file, vocab);
    eng_vocab_close(vocab);
    return open_same(out, g, w, file);
}

int eng_draft_resident_open(struct eng_drafter **out, struct eng_drafting *g)
{
    const struct moe_shape *s = moe_model_shape(g->host.model);
    if (!s->n_expert || s->state_bytes)
        return kn_fail(KN_EUNSUPPORTED, "--draft resident: %s",
                       !s->n_expert ? "the model has no experts"
                                    : "the state of the model's recurrent layers cannot be rolled back");
    struct draft_model *d = new_drafter(g, &resident_kind);
    if (!d)
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    *out = &d->base;
    return 0;
}

static struct eng_extra need(const struct eng_drafter *base)
{
    const struct draft_model *d = (const struct draft_model *)base;
    struct moe_context_options one = context_options(d, 1);
    return eng_whole_network_extra(d->model, &one);
}

static int load(struct eng_drafter *base)
{
    struct draft_model *d = (struct draft_model *)base;
    struct moe_context_options co = context_options(d, base->drafting->host.split->n_kv_slot);
    return eng_drafter_load_network(base, d->model, &co, &d->base.context);
}

static void unload(struct eng_drafter *base)
{
    eng_drafter_unload_network(((struct draft_model *)base)->model, &base->context);
}

/* ---- sessions ------------------------------------------------------------------------------------------- */

/* Sets the number of computed tokens: the sequence before the pass, and the first accepted tokens that this drafter
 * drafted. Behind them KV is of rejected tokens, or missing because another drafter drafted the token. */
static void commit(struct eng_drafter *base, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted)
{
    int *n = eng_draft_computed(base, s), before = s->n_token - n_new, mine = 0;
    while (mine < n_accepted && s->tree->source[v->path[mine]] >> base->number & 1)
        mine++;
    if (base == eng_overlap_drafter(base->drafting))
        mine = kn_max(mine, s->draft->n_chain_accepted);
    *n = kn_min(*n, before + mine);
    eng_draft_mark_computed(base, s, kn_max(before - 1, 0), kn_min(*n, s->n_token));
}

/* ---- a draft --------------------------------------------------------------------------------------------- */

/* The target has computed all tokens but the last. */
static int lay_last(struct draft_model *d, const struct item *it, int *n_row)
{
    const struct eng_seq *s = it->s;
    int at = s->n_token + it->n - 1;
    kn_assert(s->n_kv == s->n_token - 1);
    d->row[(*n_row)++] = (struct moe_row){
        .token = s->token[at], .position = at, .want_logits = true, .base = s->path.slot, .n_base = s->path.n_slot
    };
    return at + 1;
}

/* Lays rows for the tokens that the drafter has not computed, as far as the pass has room; each of the n_behind
 * sequences after this one keeps room for a row. If the rows reach the last token, its logits are wanted; else the
 * sequence gets no draft. */
static void lay_rows(struct draft_model *d, struct item *it, int n_behind, int *n_row, int *n_want)
{
    int n_text = it->s->n_token + it->n, at = *eng_draft_computed(&d->base, it->s);
    if (it->fresh)
        at = kn_min(eng_draft_first_uncomputed(&d->base, it->s, n_text), n_text - 1);
    it->fresh = false;
    int room = MAX_PREFILL_ROWS + d->base.drafting->host.n_parallel - n_behind - *n_row;
    at = d->model ? eng_draft_lay_text(&d->base, it->s, at, n_text, 0, room, d->row, n_row) : lay_last(d, it, n_row);
    *eng_draft_computed(&d->base, it->s) = at;
    it->goes_on = at == n_text;
    it->s->draft->drafter_prefilling |= !it->goes_on;
    it->dist = it->goes_on && eng_draft_samples(d->base.drafting, it->s) ? eng_distribution_take(d->base.drafting)
                                                                         : NULL;
    if (it->goes_on)
        d->chooses[(*n_want)++] = it;
}

static void choose_item(void *arg, int i, int thread)
{
    struct draft_model *d = arg;
    struct item *it = d->chooses[i];
    struct eng_seq *s = it->s;
    int n = s->n_token + it->n;
    const struct moe_model *m = d->model ? d->model : d->base.drafting->host.model;
    const float *logits = d->result.logits + (size_t)i * (size_t)moe_model_shape(m)->n_vocab;
    struct spec_sampler *sampler = d->base.sampler[thread];
    if (!eng_draft_samples(d->base.drafting, s)) {
        it->goes_on = !spec_sample(sampler, s->sampling, logits, s->token, n, n, &d->choice[i]);
        return;
    }
    it->goes_on = it->dist && !eng_distribution_fill(it->dist, sampler, s, n, logits);
    if (it->goes_on)
        d->choice[i] = eng_distribution_draw(&d->base, s, it->dist, it->n);
}

/* Adds a token to the draft. A stop token gets no node: the target's row before it decides whether the text ends. But a
 * token sampled from the drafter's distribution always gets a node. */
static void extend(struct draft_model *d, struct item *it, const struct spec_sampled *c)
{
    struct eng_seq *s = it->s;
    struct spec_tree *t = &s->draft->tree;
    uint8_t source = (uint8_t)(1 << d->base.number);
    bool ends = eng_vocab_is_stop(d->base.drafting->host.vocab, c->token);
    int node = -1;
    it->survival *= c->chance;
    if (it->chain && !ends)
        eng_chain_add(it->chain, c->token, c->chance);
    else if (it->dist)
        node = spec_tree_draw(t, it->node, c->token, it->dist, it->survival, source);
    else if (!ends)
        node = spec_tree_add(t, it->node, c->token, it->survival, source);
    it->goes_on = (it->chain || node >= 0) && !ends;
    if (!it->goes_on)
        return;
    s->token[s->n_token + it->n++] = c->token;
    it->node = node;
    if (!it->chain) /* during a pass the disk reads for the pass */
        eng_prefetch_add(d->base.drafting, c->token);
    it->goes_on = it->n < it->most;
}

/* One pass over all sessions that continue: one more token for each. Returns their number, or an error. */
static int draft_token(struct draft_model *d, int n_item)
{
    int n_row = 0, n_want = 0;
    for (int i = 0; i < n_item; i++)
        if (d->item[i].goes_on)
            lay_rows(d, &d->item[i], n_item - 1 - i, &n_row, &n_want);
    if (n_row == 0)
        return 0;
    const struct moe_batch rows = { .row = d->row, .n_row = n_row };
    int error = d->model ? moe_forward(d->base.context, &rows, &d->result)
                         : moe_forward_present(d->base.drafting->host.context, &rows, &d->result);
    if (error || (error = moe_rows_status(&d->result, 0, n_row)))
        return error;
    kn_parallel_for(d->base.team, n_want, choose_item, d);
    for (int i = 0; i < n_want; i++)
        if (d->chooses[i]->goes_on)
            extend(d, d->chooses[i], &d->choice[i]);
    if (!d->beside)
        eng_prefetch_request(d->base.drafting);
    return n_want;
}

static int draft_trees(struct draft_model *d, struct eng_seq **s, const int *n_node, int n, int depth)
{
    eng_trees_begin(d->trees);
    for (int i = 0; i < n; i++)
        eng_trees_add(d->trees, s[i], n_node[i], depth);
    return eng_trees_grow(d->trees, d->base.context);
}

static int draft_chains(struct draft_model *d, struct eng_seq **s, const int *n_node, int n, int depth)
{
    int n_item = 0, going = 1;
    for (int i = 0; i < n; i++)
        if (n_node[i] > 0)
            d->item[n_item++] = (struct item){ .s = s[i],
                                               .most = kn_min(n_node[i], depth),
                                               .node = SPEC_ROOT,
                                               .survival = 1,
                                               .fresh = true,
                                               .goes_on = true };
    while (going > 0)
        going = draft_token(d, n_item);
    return going;
}

static int draft(struct eng_drafter *base, struct eng_seq **s, const int *n_node, int n, int depth)
{
    struct draft_model *d = (struct draft_model *)base;
    moe_context_set_team(base->context, base->team);
    return d->trees ? draft_trees(d, s, n_node, n, depth) : draft_chains(d, s, n_node, n, depth);
}

static int note_whole(struct eng_drafter *base)
{
    if (eng_split_is_whole(base->drafting->host.split))
        kn_say(KN_LOG_INFO, "all experts fit in memory: --draft resident drafts nothing once they are there");
    return 0;
}

/* None where all experts are on the device or in memory: a draft would take as long as the pass. */
static int draft_by_target(struct eng_drafter *base, struct eng_seq **s, const int *n_node, int n, int depth)
{
    struct draft_model *d = (struct draft_model *)base;
    if (moe_context_is_whole(base->drafting->host.context))
        return 0;
    return draft_chains(d, s, n_node, n, depth);
}

static int draft_beside(struct eng_drafter *base, struct eng_seq **s, const int *n_more, int n, const atomic_bool *stop,
                        int *n_pass)
{
    struct draft_model *d = (struct draft_model *)base;
    int n_item = 0, going = 1;
    for (int i = 0; i < n; i++) {
        struct eng_chain *chain = &s[i]->draft->chain;
        if (n_more[i] == 0)
            continue;
        memcpy(s[i]->token + s[i]->n_token, chain->token, (size_t)chain->n * sizeof *chain->token);
        d->item[n_item++] = (struct item){
            .s = s[i], .most = chain->n + n_more[i], .n = chain->n, .chain = chain, .fresh = true, .goes_on = true
        };
    }
    d->beside = true;
    moe_context_set_team(base->context, base->team);
    for (*n_pass = 0; n_item && going > 0 && !(*n_pass && atomic_load(stop)); *n_pass += going > 0)
        going = draft_token(d, n_item);
    d->beside = false;
    return going < 0 ? going : 0;
}

static const struct eng_drafter_kind model_kind = { .name = "model",
                                                    .commit = commit,
                                                    .draft = draft,
                                                    .overlap = draft_beside,
                                                    .close = close_model,
                                                    .load = load,
                                                    .unload = unload,
                                                    .reads_prompts = true,
                                                    .need = need };

static const struct eng_drafter_kind resident_kind = {
    .name = "resident", .draft = draft_by_target, .load = note_whole, .close = close_model
};
