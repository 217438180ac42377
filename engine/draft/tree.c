/* engine/draft/tree.c - chains and trees of a network's draft: one level per pass, for all sequences together.
 *
 * head_drafter.c and model_drafter.c add the sequences and their limits. This file lays out the rows: first the
 * tokens of a sequence that the network has not computed, then the candidates, level by level. A candidate is a
 * drafted token that may become a node of the tree. Its row has a slot of its own, behind all KV slots, which its
 * descendants see and no later draft reads. Accepted tokens are computed again, as part of the sequence, with the
 * next draft: rows in a pass that reads the same weights anyway.
 *
 * A chain and the static tree are plans: fixed lists of which rank follows which node. The dynamic tree (EAGLE-2)
 * continues the most probable candidates of each level, and ends as the most probable of all candidates. A path is
 * never more probable than its prefix, so the result is a tree. */
#include "engine/draft/internal.h"

#include <string.h>

#define MAX_PREFILL_ROWS 256 /* prefill rows in a pass */
/* Rows with logits of a tree's pass, if its levels can be so wide; more if a pass verifies more. */
#define MIN_LOGIT_ROWS 64
#define TREE_DEPTH     8
#define MAX_SUCCESSORS 10                                  /* successors considered of a row, and rows of a level */
#define N_SCRATCH      (MAX_SUCCESSORS * (TREE_DEPTH - 1)) /* slots of a session's candidates; a chain needs fewer */
#define MAX_GUESS      (MAX_SUCCESSORS + MAX_SUCCESSORS * MAX_SUCCESSORS * (TREE_DEPTH - 1))
_Static_assert(MAX_SUCCESSORS <= SPEC_RANKS, "spec_rank ranks no more tokens");

/* A node of a plan. A plan lists its nodes by falling value, parents before children. parent: index of an earlier node;
 * -1: the root. rank: of the token among the parent's successors, 0 the most probable (or the first sample). */
struct plan {
    int8_t parent, rank;
};

/* The 25 nodes of EAGLE's own tree: 4, 8, 8, 3 and 2 at depths 1 to 5. */
static const struct plan eagle_plan[] = {
    { -1, 0 }, { 0, 0 }, { 1, 0 }, { -1, 1 }, { 2, 0 }, { 0, 1 },  { 3, 0 },  { 4, 0 }, { -1, 2 },
    { 1, 1 },  { 5, 0 }, { 6, 0 }, { 0, 2 },  { 8, 0 }, { -1, 3 }, { 2, 1 },  { 1, 2 }, { 12, 0 },
    { 14, 0 }, { 3, 1 }, { 4, 1 }, { 2, 2 },  { 5, 1 }, { 8, 1 },  { 12, 1 },
};
static const struct plan chain_plan[SPEC_DEPTHS] = {
    { -1, 0 }, { 0, 0 }, { 1, 0 }, { 2, 0 },  { 3, 0 },  { 4, 0 },  { 5, 0 },  { 6, 0 },
    { 7, 0 },  { 8, 0 }, { 9, 0 }, { 10, 0 }, { 11, 0 }, { 12, 0 }, { 13, 0 }, { 14, 0 },
};

#define PLAN_WIDTH 4 /* successors of one node in a plan, at most */

struct shape {
    const struct plan *plan;
    int n_plan, depth;
}; /* plan NULL: dynamic */

static const struct shape shapes[] = {
    [ENG_TREE_DYNAMIC] = { NULL, 0, TREE_DEPTH },
    [ENG_TREE_STATIC] = { eagle_plan, (int)(sizeof eagle_plan / sizeof *eagle_plan), TREE_DEPTH },
    [ENG_TREE_CHAIN] = { chain_plan, SPEC_DEPTHS, SPEC_DEPTHS },
};

struct guess {
    int32_t token;
    bool ends;                    /* a stop token: it has no successor */
    const struct spec_dist *dist; /* the distribution that it was sampled from; NULL: it was chosen by rank */
    int parent, depth;            /* parent: index in item.guess, or SPEC_ROOT; depth 1: child of the root */
    int plan;                     /* its index in the plan */
    int want;                     /* index of its row of logits, in the pass that computed it */
    int scratch, node;            /* index of its row's scratch slot; index of its tree node, SPEC_END: none */
    float survival;
};

struct item { /* a session in a draft */
    struct eng_seq *s;
    const struct shape *shape;
    int most, depth, level, width; /* max nodes; max levels; levels done; max rows of a level */
    bool goes_on, draws;           /* it has rows in the next pass; its tokens are sampled (eng_draft_samples) */
    /* Rows of logits in a pass: root_want of the last token, first_want the first of this item. */
    int root_want, n_scratch, n_guess, n_best, n_front, first_want;
    int best[ENG_DRAFT_NODES]; /* [n_best] by falling probability; of equals the earlier */
    int front[MAX_SUCCESSORS]; /* [n_front] candidates that the next level continues */
    struct guess guess[MAX_GUESS];
    int32_t tail[N_SCRATCH][SPEC_DEPTHS]; /* slots of the branch that ends in each scratch slot */
};

struct eng_trees {
    struct eng_drafter *drafter;
    const struct moe_model *model;
    enum eng_tree tree;
    int n_want;     /* rows with logits in a pass, at most */
    int n_expected; /* tokens in the prefetch list before this draft */
    int n_item;
    struct moe_row *row;     /* [MAX_PREFILL_ROWS + n_want] */
    struct item *item;       /* [n_item] of n_parallel */
    struct item **row_item;  /* [n_want] the item of each row of logits */
    struct spec_dist **dist; /* [n_want] the row's distribution to sample successors from; NULL entry: none */
    struct spec_top *top;    /* [n_want][MAX_SUCCESSORS] the row's successors */
    int *n_top;              /* [n_want] */
    struct moe_result result;
};

static bool is_chain(const struct item *it) { return it->shape == &shapes[ENG_TREE_CHAIN]; }

/* ---- opening ------------------------------------------------------------------------------------------- */

int eng_trees_open(struct eng_trees **out, struct eng_drafter *d, const struct moe_model *m, enum eng_tree tree)
{
    struct eng_trees *t = kn_calloc(1, sizeof *t);
    int n_parallel = d->drafting->host.n_parallel;
    if (!t)
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    t->drafter = d;
    t->model = m;
    t->tree = tree;
    t->n_want = n_parallel;
    if (tree != ENG_TREE_CHAIN)
        t->n_want = kn_max(n_parallel,
                           kn_min(kn_max(d->drafting->host.n_draft_row, MIN_LOGIT_ROWS), n_parallel * MAX_SUCCESSORS));
    size_t n = (size_t)t->n_want;
    t->row = kn_calloc(MAX_PREFILL_ROWS + n, sizeof *t->row);
    t->item = kn_calloc((size_t)n_parallel, sizeof *t->item);
    t->row_item = kn_calloc(n, sizeof(struct item *));
    t->dist = kn_calloc(n, sizeof(struct spec_dist *));
    t->top = kn_calloc(n * MAX_SUCCESSORS, sizeof *t->top);
    t->n_top = kn_calloc(n, sizeof *t->n_top);
    if (!t->row || !t->item || !t->row_item || !t->dist || !t->top || !t->n_top) {
        eng_trees_close(t);
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    }
    *out = t;
    return 0;
}

void eng_trees_close(struct eng_trees *t)
{
    if (!t)
        return;
    kn_free(t->row);
    kn_free(t->item);
    kn_free(t->row_item);
    kn_free(t->dist);
    kn_free(t->top);
    kn_free(t->n_top);
    kn_free(t);
}

struct moe_context_options eng_trees_context(const struct eng_trees *t, int n_slot)
{
    const struct eng_drafting *g = t->drafter->drafting;
    return (struct moe_context_options){ .max_row = MAX_PREFILL_ROWS + t->n_want,
                                         .max_want = t->n_want,
                                         .n_slot = n_slot + g->host.n_parallel * N_SCRATCH,
                                         .max_pos = g->host.n_ctx,
                                         .max_path = 2 * g->host.n_parallel + 2, /* text and guesses of each, in turn */
                                         .kv = g->host.kv_format,
                                         .team = g->host.team };
}

/* ---- a level's rows ---------------------------------------------------------------------------------------- */

static void want_logits(struct eng_trees *t, struct item *it, int guess, int *n_want)
{
    if (it->n_front == 0)
        it->first_want = *n_want;
    it->front[it->n_front++] = guess;
    *(guess == SPEC_ROOT ? &it->root_want : &it->guess[guess].want) = *n_want;
    t->dist[*n_want] = it->draws ? eng_distribution_take(t->drafter->drafting) : NULL;
    t->row_item[(*n_want)++] = it;
}

/* Lays rows for the tokens that the drafter has not computed, as far as the pass has room; each of the n_behind
 * sequences after this one keeps room for a row. Candidates follow the last token once it is computed; else there is
 * no draft. */
static void lay_text(struct eng_trees *t, struct item *it, int n_behind, int *n_row, int *n_want)
{
    struct eng_seq *s = it->s;
    int room = MAX_PREFILL_ROWS + t->drafter->drafting->host.n_parallel - n_behind - *n_row,
        back = t->drafter->position_offset;
    int at = kn_min(eng_draft_first_uncomputed(t->drafter, s, s->n_token), s->n_token - 1);
    at = eng_draft_lay_text(t->drafter, s, at, s->n_token, back, room, t->row, n_row);
    *eng_draft_computed(t->drafter, s) = at;
    it->goes_on = at == s->n_token && at > back;
    s->draft->drafter_prefilling |= at < s->n_token;
    if (it->goes_on)
        want_logits(t, it, SPEC_ROOT, n_want);
}

/* Lays a row for a candidate. For a head, the row's feature is the head's output for the parent, from the last pass. */
static void lay_guess(struct eng_trees *t, struct item *it, int guess, int *n_row, int *n_want)
{
    struct eng_seq *s = it->s;
    struct guess *g = &it->guess[guess];
    const struct guess *parent = g->parent == SPEC_ROOT ? NULL : &it->guess[g->parent];
    int own = it->n_scratch++, back = t->drafter->position_offset, before = parent ? parent->want : it->root_want;
    int32_t *tail = it->tail[own];
    if (parent)
        memcpy(tail, it->tail[parent->scratch], (size_t)(g->depth - 1) * sizeof *tail);
    tail[g->depth - 1] = t->drafter->drafting->host.split->n_kv_slot + s->number * N_SCRATCH + own;
    g->scratch = own;
    t->row[(*n_row)++] = (struct moe_row){ .token = g->token,
                                           .position = s->n_token - 1 + g->depth - back,
                                           .want_logits = true,
                                           .base = s->path.slot + back,
                                           .n_base = s->n_token - back,
                                           .first = eng_draft_first_position(t->drafter, s),
                                           .tail = tail,
                                           .from_result = back > 0,
                                           .feature_at = before };
    want_logits(t, it, guess, n_want);
}

static void lay_level(struct eng_trees *t, struct item *it, int n_behind, int *n_row, int *n_want)
{
    int n = it->n_front, front[MAX_SUCCESSORS];
    memcpy(front, it->front, sizeof front);
    it->n_front = 0;
    if (it->level == 0)
        lay_text(t, it, n_behind, n_row, n_want);
    for (int i = 0; it->level > 0 && i < n; i++)
        lay_guess(t, it, front[i], n_row, n_want);
}

/* ---- candidates ----------------------------------------------------------------------------------------------- */

/* The successor in a chain: sampled with the target's parameters and noise. Returns the number of tokens in top. */
static int choose(const struct item *it, struct spec_sampler *sampler, const float *logits, struct spec_top *top)
{
    const struct eng_seq *s = it->s;
    struct spec_sampled c;
    int n = s->n_token + it->level;
    if (spec_sample(sampler, s->sampling, logits, s->token, n, n, &c))
        return 0;
    *top = (struct spec_top){ c.token, s->sampling->temperature > 0 ? (float)kn_log((double)c.chance) : c.logprob };
    return 1;
}

/* The successors in a tree: the tokens that sampling with the target's parameters and noise would give first, second
 * and so on (spec_rank). Penalties count the sequence's own tokens only, since candidates have different prefixes. */
static int rank(const struct item *it, struct spec_sampler *sampler, const float *logits, struct spec_top *top)
{
    const struct eng_seq *s = it->s;
    int n = spec_rank(sampler, s->sampling, logits, s->token, s->n_token, s->n_token + it->level, MAX_SUCCESSORS, top);
    return kn_max(n, 0);
}

/* The successors of a node whose tokens are sampled: 1 for a chain, PLAN_WIDTH for the static tree. Each is sampled by
 * itself from the distribution in t->dist, so a token may come twice. */
static int draw(const struct eng_trees *t, const struct item *it, int i, struct spec_sampler *sampler,
                const float *logits, struct spec_top *top)
{
    const struct eng_seq *s = it->s;
    int guess = it->front[i - it->first_want], n = is_chain(it) ? 1 : PLAN_WIDTH;
    if (!t->dist[i] ||
        eng_distribution_fill(t->dist[i], sampler, s, s->n_token + (is_chain(it) ? it->level : 0), logits))
        return 0;
    for (int k = 0; k < n; k++) {
        struct spec_sampled c = eng_distribution_draw(t->drafter, s, t->dist[i], (guess + 1) * MAX_SUCCESSORS + k);
        top[k] = (struct spec_top){ c.token, c.logprob };
    }
    return n;
}

static void choose_row(void *arg, int i, int thread)
{
    struct eng_trees *t = arg;
    struct item *it = t->row_item[i];
    struct spec_sampler *sampler = t->drafter->drafting->host.sampler[thread];
    const float *logits = t->result.logits + (size_t)i * (size_t)moe_model_shape(t->model)->n_vocab;
    struct spec_top *top = t->top + (size_t)i * MAX_SUCCESSORS;
    if (it->draws) {
        t->n_top[i] = draw(t, it, i, sampler, logits, top);
        return;
    }
    if (is_chain(it)) {
        t->n_top[i] = choose(it, sampler, logits, top);
        return;
    }
    t->n_top[i] = rank(it, sampler, logits, top);
}

/* Adds a candidate if it is among the `most` best, else drops it. A stop token gets no node: the target's row before it
 * decides whether the text ends. A sampled one gets a node, as all sampled tokens must; they are never more than
 * `most`, since only the first `most` entries of a plan are used. */
static void add_guess(struct eng_trees *t, struct item *it, int parent, const struct spec_top *top, int plan,
                      const struct spec_dist *dist)
{
    bool ends = eng_vocab_is_stop(t->drafter->drafting->host.vocab, top->token);
    float before = parent == SPEC_ROOT ? 1 : it->guess[parent].survival;
    float survival = before * (float)kn_exp(top->logprob);
    int at = it->n_best;
    if (ends && !dist)
        return;
    while (at > 0 && it->guess[it->best[at - 1]].survival < survival)
        at--;
    if (at == it->most)
        return;
    it->n_best = kn_min(it->n_best + 1, it->most);
    memmove(it->best + at + 1, it->best + at, (size_t)(it->n_best - at - 1) * sizeof *it->best);
    it->best[at] = it->n_guess;
    it->guess[it->n_guess++] = (struct guess){ .token = top->token,
                                               .ends = ends,
                                               .dist = dist,
                                               .parent = parent,
                                               .depth = it->level + 1,
                                               .plan = plan,
                                               .survival = survival };
}

static void add_successors(struct eng_trees *t, struct item *it, int i)
{
    int parent = it->front[i], want = it->first_want + i;
    int plan = parent == SPEC_ROOT ? SPEC_ROOT : it->guess[parent].plan;
    const struct spec_top *top = t->top + (size_t)want * MAX_SUCCESSORS;
    const struct shape *shape = it->shape;
    for (int k = 0; !shape->plan && k < t->n_top[want]; k++)
        add_guess(t, it, parent, &top[k], 0, NULL);
    for (int k = 0; k < kn_min(shape->n_plan, it->most); k++)
        if (shape->plan[k].parent == plan && shape->plan[k].rank < t->n_top[want])
            add_guess(t, it, parent, &top[shape->plan[k].rank], k, t->dist[want]);
}

/* Whether a candidate is continued at the next level. */
static bool continues(const struct item *it, const struct guess *g)
{
    const struct shape *shape = it->shape;
    bool any = !shape->plan;
    for (int k = 0; k < kn_min(shape->n_plan, it->most) && !any; k++)
        any = shape->plan[k].parent == g->plan;
    return any && !g->ends && g->depth == it->level;
}

static void extend(struct eng_trees *t, struct item *it)
{
    int n = it->n_front;
    for (int i = 0; i < n; i++)
        add_successors(t, it, i);
    it->level++;
    it->n_front = 0;
    for (int i = 0; i < it->n_best && it->n_front < it->width && it->level < it->depth; i++)
        if (continues(it, &it->guess[it->best[i]]))
            it->front[it->n_front++] = it->best[i];
    it->goes_on = it->n_front > 0;
    if (is_chain(it) && it->goes_on) /* penalties of a chain count its drafted tokens */
        it->s->token[it->s->n_token + it->level - 1] = it->guess[it->front[0]].token;
}

/* ---- a draft ---------------------------------------------------------------------------------------------------- */

/* Requests experts for the draft as it would be if it ended here; dropped candidates are not requested. */
static void prefetch_experts(struct eng_trees *t)
{
    struct eng_drafting *g = t->drafter->drafting;
    eng_prefetch_truncate(g, t->n_expected);
    for (int i = 0; i < t->n_item; i++)
        for (int k = 0; k < t->item[i].n_best; k++)
            eng_prefetch_add(g, t->item[i].guess[t->item[i].best[k]].token);
    eng_prefetch_request(g);
}

/* One pass over all sessions that continue: one more level for each. Returns the number of rows with logits, 0: no
 * session continues; or an error. */
static int draft_level(struct eng_trees *t, struct moe_context *c)
{
    int n_row = 0, n_want = 0;
    for (int i = 0; i < t->n_item; i++)
        if (t->item[i].goes_on)
            lay_level(t, &t->item[i], t->n_item - 1 - i, &n_row, &n_want);
    if (n_row == 0)
        return 0;
    int error = moe_forward(c, &(struct moe_batch){ .row = t->row, .n_row = n_row }, &t->result);
    if (error || (error = moe_rows_status(&t->result, 0, n_row)))
        return error;
    kn_parallel_for(t->drafter->drafting->host.team, n_want, choose_row, t);
    for (int i = 0; i < t->n_item; i++)
        if (t->item[i].goes_on)
            extend(t, &t->item[i]);
    prefetch_experts(t);
    return n_want;
}

/* Adds the candidates to the tree, parents before children. Sampled ones are added in the order of sampling: an order
 * by probability would depend on the samples and bias verification. */
static void write_tree(const struct eng_trees *t, struct item *it)
{
    struct spec_tree *tree = &it->s->draft->tree;
    uint8_t source = (uint8_t)(1 << t->drafter->number);
    for (int i = 0; i < it->n_best; i++) {
        struct guess *g = &it->guess[it->draws ? i : it->best[i]];
        int parent = g->parent == SPEC_ROOT ? SPEC_ROOT : it->guess[g->parent].node;
        g->node = SPEC_END;
        if (parent != SPEC_END)
            g->node = g->dist ? spec_tree_draw(tree, parent, g->token, g->dist, g->survival, source)
                              : spec_tree_add(tree, parent, g->token, g->survival, source);
        if (g->node < 0)
            g->node = SPEC_END;
    }
}

/* The shape of a draft. A dynamic tree depends on the drafted tokens, so it cannot be sampled: the static tree is
 * used, or a chain under SPEC_BLOCK. */
static const struct shape *shape_of(const struct eng_trees *t, bool draws)
{
    bool chain = t->drafter->drafting->opt.verify == SPEC_BLOCK;
    if (draws && t->tree == ENG_TREE_DYNAMIC)
        return &shapes[chain ? ENG_TREE_CHAIN : ENG_TREE_STATIC];
    return &shapes[t->tree];
}

void eng_trees_begin(struct eng_trees *t) { t->n_item = 0; }

void eng_trees_add(struct eng_trees *t, struct eng_seq *s, int n_node, int depth)
{
    const struct shape *shape = shape_of(t, eng_draft_samples(t->drafter->drafting, s));
    struct item *it = &t->item[t->n_item];
    int deep = kn_min(kn_min(n_node, depth), shape->depth);
    if (deep < 1)
        return;
    t->n_item++;
    it->s = s;
    it->draws = eng_draft_samples(t->drafter->drafting, s);
    it->shape = shape;
    it->most = n_node;
    it->depth = deep;
    it->goes_on = true;
    it->level = it->n_scratch = it->n_guess = it->n_best = it->n_front = 0;
}

int eng_trees_grow(struct eng_trees *t, struct moe_context *c)
{
    int going = 1;
    for (int i = 0; i < t->n_item; i++)
        t->item[i].width = kn_min(MAX_SUCCESSORS, t->n_want / t->n_item);
    t->n_expected = t->drafter->drafting->prefetch.n;
    while (going > 0)
        going = draft_level(t, c);
    for (int i = 0; i < t->n_item && !going; i++)
        write_tree(t, &t->item[i]);
    return going;
}
