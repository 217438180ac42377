/* engine/draft/medusa_drafter.c - Medusa heads draft: each predicts a token at another distance from the target's last
 * feature, without regard to the tokens between (medusa.c).
 *
 * The heads start from the feature of the last computed token, the one before the sequence's last: head i predicts the
 * i-th token of the draft, from 0. Each head's likeliest tokens are ranked with the target's noise (spec_rank), and the
 * draft is the tree of their likeliest combinations, or a chain of the likeliest ones: a node's survival is the product
 * of its tokens' probabilities. The heads keep nothing between drafts, so they read no prompts and have no KV. */
#include "engine/draft/internal.h"
#include "engine/draft/medusa.h"

#include <string.h>

#define RANKS 10 /* tokens of a head that the tree considers */
_Static_assert(RANKS <= SPEC_RANKS, "spec_rank ranks no more tokens");

struct guesses {
    int n[ENG_MEDUSA_HEADS]; /* of each head */
    struct spec_top top[ENG_MEDUSA_HEADS][RANKS];
};

struct item { /* a sequence in a draft */
    struct eng_seq *seq;
    int n_node, depth; /* most nodes; heads that have been computed for it */
    struct guesses *guesses;
};

struct draft_medusa {
    struct eng_drafter base;
    struct moe_file *file;
    struct eng_medusa *heads;
    enum eng_tree tree;
    struct item *item; /* [n_item] of n_parallel; the first n_row have row i of the heads */
    int32_t *slot;     /* [n_item] of their features */
    int n_item, n_row;
    struct guesses *guesses; /* [n_parallel] */
    int head;                /* that is being ranked */
    atomic_int error;        /* of a rank */
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static void close_medusa(struct eng_drafter *base)
{
    struct draft_medusa *d = (struct draft_medusa *)base;
    eng_medusa_close(d->heads);
    moe_file_close(d->file);
    kn_free(d->item);
    kn_free(d->slot);
    kn_free(d->guesses);
    kn_free(d);
}

static int check(const struct draft_medusa *d, const struct eng_draft_option *w)
{
    const struct eng_draft_host *host = &d->base.drafting->host;
    const struct moe_shape *model = moe_model_shape(host->model);
    struct eng_medusa_shape its = eng_medusa_shape(d->heads);
    if (its.d_model != model->d_model || its.n_vocab != model->n_vocab)
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: its Medusa heads are for hidden size %d and %d tokens of vocabulary; %s has %d and %d",
                       w->file, its.d_model, its.n_vocab, host->model_path, model->d_model, model->n_vocab);
    if (w->tree == ENG_TREE_STATIC)
        return kn_fail(KN_EUNSUPPORTED, "--draft: medusa drafts tree=dynamic or tree=chain, not tree=static");
    return 0;
}

static int open_parts(struct draft_medusa *d, const struct eng_draft_option *w)
{
    const struct eng_draft_host *host = &d->base.drafting->host;
    size_t n = (size_t)host->n_parallel;
    int error = moe_file_open(&d->file, w->file);
    if (error || (error = eng_medusa_open(&d->heads, d->file, moe_model_ops(host->model))) || (error = check(d, w)))
        return error;
    d->tree = w->tree;
    d->item = kn_calloc(n, sizeof *d->item);
    d->slot = kn_calloc(n, sizeof *d->slot);
    d->guesses = kn_calloc(n, sizeof *d->guesses);
    return d->item && d->slot && d->guesses ? 0 : kn_fail(KN_ENOMEM, "no memory for a drafter");
}

static const struct eng_drafter_kind medusa_kind;

int eng_draft_medusa_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *w)
{
    struct draft_medusa *d = kn_calloc(1, sizeof *d);
    if (!d)
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    d->base = (struct eng_drafter){ .kind = &medusa_kind, .drafting = g };
    int error = open_parts(d, w);
    if (error) {
        close_medusa(&d->base);
        return error;
    }
    g->features.last = true;
    *out = &d->base;
    return 0;
}

static struct eng_extra need(const struct eng_drafter *base)
{
    const struct draft_medusa *d = (const struct draft_medusa *)base;
    const struct eng_draft_host *host = &base->drafting->host;
    struct eng_medusa_bytes bytes = eng_medusa_bytes(d->heads, host->team, host->n_parallel);
    return (struct eng_extra){ .weights = bytes.weights, .pass = bytes.pass, .step = bytes.buffers };
}

static int load(struct eng_drafter *base)
{
    const struct eng_draft_host *host = &base->drafting->host;
    return eng_medusa_load(((struct draft_medusa *)base)->heads, host->team, host->io, host->n_parallel);
}

static void unload(struct eng_drafter *base) { eng_medusa_unload(((struct draft_medusa *)base)->heads); }

/* ---- a draft ------------------------------------------------------------------------------------------- */

/* Penalties count the sequence's own tokens only, as in tree.c. */
static void rank_item(void *arg, int i, int thread)
{
    struct draft_medusa *d = arg;
    const struct item *it = &d->item[i];
    const struct eng_seq *s = it->seq;
    int n = spec_rank(d->base.drafting->host.sampler[thread], s->sampling, eng_medusa_logits(d->heads, i), s->token,
                      s->n_token, s->n_token + d->head, RANKS, it->guesses->top[d->head]);
    it->guesses->n[d->head] = kn_max(n, 0);
    if (n < 0)
        atomic_store(&d->error, n);
}

/* A node that may come next: the token of this rank of the head at its depth. */
struct candidate {
    int parent, depth, rank; /* depth 0: follows the root */
    float before, survival;  /* before: its parent's */
};

static void add(const struct guesses *g, struct candidate *open, int *n_open, struct candidate c)
{
    if (c.rank >= g->n[c.depth])
        return;
    c.survival = c.before * kn_expf(g->top[c.depth][c.rank].logprob);
    open[(*n_open)++] = c;
}

/* The tree takes the likeliest candidate, time and again; then its first successor and its next sibling become candidates.
 * Without t, nothing is added. The result says whether a candidate behind the last computed head could have been taken. */
static bool grow(const struct draft_medusa *d, const struct item *it, struct spec_tree *t)
{
    struct candidate open[2 * ENG_DRAFT_NODES + 2];
    int n_open = 0, n_node = kn_min(it->n_node, ENG_DRAFT_NODES);
    bool deeper = false;
    add(it->guesses, open, &n_open, (struct candidate){ .parent = SPEC_ROOT, .before = 1 });
    for (int n = 0; n < n_node && n_open > 0; n++) {
        int best = 0, node = SPEC_ROOT;
        for (int i = 1; i < n_open; i++)
            if (open[i].survival > open[best].survival)
                best = i;
        struct candidate c = open[best];
        open[best] = open[--n_open];
        if (t && (node = spec_tree_add(t, c.parent, it->guesses->top[c.depth][c.rank].token, c.survival,
                                       (uint8_t)(1 << d->base.number))) < 0)
            return deeper;
        if (d->tree != ENG_TREE_CHAIN)
            add(it->guesses, open, &n_open, (struct candidate){ c.parent, c.depth, c.rank + 1, c.before, 0 });
        if (c.depth + 1 < it->depth)
            add(it->guesses, open, &n_open, (struct candidate){ node, c.depth + 1, 0, c.survival, 0 });
        else
            deeper |= n + 1 < n_node;
    }
    return deeper;
}

/* The features of the last computed tokens; a sequence of one token has none, and one that begins behind
 * a cached prompt may have none. */
static void list(struct draft_medusa *d, struct eng_seq **s, const int *n_node, int n)
{
    d->n_item = 0;
    for (int i = 0; i < n; i++) {
        if (n_node[i] <= 0 || !eng_has_last_feature(s[i]))
            continue;
        d->slot[d->n_item] = s[i]->path.slot[s[i]->n_kv - 1];
        d->item[d->n_item] = (struct item){ s[i], n_node[i], 0, &d->guesses[d->n_item] };
        d->n_item++;
    }
    d->n_row = d->n_item;
    moe_context_features(d->base.drafting->host.context, d->slot, d->n_item, eng_medusa_feature(d->heads, 0));
}

/* The sequences that a deeper head can give no node to, since likelier ones fill their drafts, leave the rows. */
static void drop_full(struct draft_medusa *d)
{
    size_t bytes = (size_t)eng_medusa_shape(d->heads).d_model * sizeof(float);
    for (int i = d->n_row - 1; i >= 0; i--) {
        d->item[i].depth = d->head + 1;
        if (grow(d, &d->item[i], NULL))
            continue;
        struct item full = d->item[i];
        d->item[i] = d->item[--d->n_row];
        d->item[d->n_row] = full;
        if (i < d->n_row)
            memcpy(eng_medusa_feature(d->heads, i), eng_medusa_feature(d->heads, d->n_row), bytes);
    }
}

static int draft(struct eng_drafter *base, struct eng_seq **s, const int *n_node, int n, int depth)
{
    struct draft_medusa *d = (struct draft_medusa *)base;
    struct kn_team *team = base->drafting->host.team;
    depth = kn_min(depth, eng_medusa_shape(d->heads).n_head);
    list(d, s, n_node, n);
    atomic_store(&d->error, 0);
    for (d->head = 0; d->head < depth && d->n_row > 0; d->head++) {
        eng_medusa_compute(d->heads, team, d->head, d->n_row);
        kn_parallel_for(team, d->n_row, rank_item, d);
        drop_full(d);
    }
    for (int i = 0; i < d->n_item && depth > 0; i++)
        grow(d, &d->item[i], &d->item[i].seq->draft->tree);
    return atomic_load(&d->error);
}

static const struct eng_drafter_kind medusa_kind = {
    .name = "medusa", .draft = draft, .load = load, .unload = unload, .close = close_medusa, .need = need
};
