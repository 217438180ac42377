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
 * A draft grows a level a pass, all sessions' together.  A chain and the static tree are plans: which ranks
 * follow which.  The dynamic tree (EAGLE-2) takes the likeliest successors of the likeliest paths, and of all
 * that it has seen the likeliest nodes; a path is never likelier than its beginning, so they are a tree. */
#include "engine/internal.h"

#include <string.h>

#define MOST_ROW    256                         /* rows of text in a pass */
#define MOST_WANT   64                          /* rows that are continued in a pass, or one of each session */
#define TREE_DEPTH  8
#define TOP         10                          /* successors that are looked at, and rows of a level */
#define N_SCRATCH   (TOP * (TREE_DEPTH - 1))    /* slots of a session's guesses; a chain needs fewer */
#define MOST_GUESS  (TOP + TOP * TOP * (TREE_DEPTH - 1))

/* Nodes of a plan, most worth having first, parents before children. */
struct plan { int8_t parent, rank; };

/* The 25 nodes of EAGLE's own tree: 4, 8, 8, 3 and 2 to a depth. */
static const struct plan eagle_plan[] = {
    { -1, 0 }, { 0, 0 }, { 1, 0 }, { -1, 1 }, { 2, 0 }, { 0, 1 }, { 3, 0 }, { 4, 0 }, { -1, 2 }, { 1, 1 },
    { 5, 0 }, { 6, 0 }, { 0, 2 }, { 8, 0 }, { -1, 3 }, { 2, 1 }, { 1, 2 }, { 12, 0 }, { 14, 0 }, { 3, 1 },
    { 4, 1 }, { 2, 2 }, { 5, 1 }, { 8, 1 }, { 12, 1 },
};
static const struct plan chain_plan[SPEC_DEPTHS] = {
    { -1, 0 }, { 0, 0 }, { 1, 0 }, { 2, 0 }, { 3, 0 }, { 4, 0 }, { 5, 0 }, { 6, 0 },
    { 7, 0 }, { 8, 0 }, { 9, 0 }, { 10, 0 }, { 11, 0 }, { 12, 0 }, { 13, 0 }, { 14, 0 },
};

#define PLAN_WIDTH 4                            /* successors that a plan has of one guess, at most */

struct shape { const struct plan *plan; int n_plan, depth; };   /* plan NULL: dynamic */

static const struct shape shapes[] = {
    [ENG_TREE_DYNAMIC] = { NULL, 0, TREE_DEPTH },
    [ENG_TREE_STATIC]  = { eagle_plan, (int)(sizeof eagle_plan / sizeof *eagle_plan), TREE_DEPTH },
    [ENG_TREE_CHAIN]   = { chain_plan, SPEC_DEPTHS, SPEC_DEPTHS },
};

struct guess {
    int32_t token;
    bool ends;                                  /* the text: nothing follows */
    const struct spec_dist *law;                /* that it was drawn from; NULL: it was chosen */
    int parent, depth;                          /* a guess, or SPEC_ROOT; 1: follows the text */
    int plan;                                   /* its place in the plan */
    int want;                                   /* its row among those with logits, in the pass that had it */
    int scratch, node;                          /* its row's slot; its node of the tree */
    float survival;
};

struct item {                                   /* a session in a draft */
    struct eng_session *s;
    const struct shape *shape;
    int most, depth, level, width;              /* nodes it may have; levels; and done; rows of a level */
    bool goes_on, draws;
    int root_want, n_scratch, n_guess, n_best, n_front, first_want;
    int best[ENG_DRAFT_NODES];                  /* [n_best] the likeliest, first first; of equals the earlier */
    int front[TOP];                             /* [n_front] whose successors are asked for */
    struct guess guess[MOST_GUESS];
    int32_t tail[N_SCRATCH][SPEC_DEPTHS];       /* slots of the branch that ends in each scratch slot */
};

struct draft_head {
    struct eng_drafter base;
    enum eng_tree tree;
    bool told;                                  /* that texts have outgrown it */
    struct moe_file *file;                      /* NULL: it is in the model's */
    struct moe_model *model;
    struct moe_context *context;
    int n_want;                                 /* at most, in a pass */
    int n_expected;                                /* tokens that were expected before it drafted */
    struct moe_row *row;                        /* [MOST_ROW + n_want] */
    struct item *item;                          /* [n_parallel] */
    struct item **asks;                         /* [n_want] whose row of logits it is */
    struct spec_dist **law;                     /* [n_want] likewise, that its successors are drawn from; or NULL */
    struct spec_top *top;                       /* [n_want][TOP] by row of logits */
    int *n_top;                                 /* [n_want] */
    struct moe_result result;
};

static const struct eng_drafter_kind head_kind;

static bool is_chain(const struct item *it) { return it->shape == &shapes[ENG_TREE_CHAIN]; }

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Slots behind those of texts are its own, for guesses. */
static struct moe_context_options context_options(const struct draft_head *d, int n_slot)
{
    const struct eng_engine *e = d->base.engine;
    return (struct moe_context_options){
        .max_row = MOST_ROW + d->n_want, .max_want = d->n_want, .n_slot = n_slot + e->opt.n_parallel * N_SCRATCH,
        .max_pos = e->opt.n_ctx, .kv = e->opt.kv, .target = e->context, .team = e->team };
}

static void close_head(struct eng_drafter *base)
{
    struct draft_head *d = (struct draft_head *)base;
    moe_context_close(d->context);
    moe_model_close(d->model);
    moe_file_close(d->file);
    kn_free(d->row);
    kn_free(d->item);
    kn_free(d->asks);
    kn_free(d->law);
    kn_free(d->top);
    kn_free(d->n_top);
    kn_free(d);
}

static int take_room(struct draft_head *d, int n_parallel)
{
    d->n_want = d->tree == ENG_TREE_CHAIN ? n_parallel : kn_max(MOST_WANT, n_parallel);
    size_t n = (size_t)d->n_want;
    d->row = kn_calloc(MOST_ROW + n, sizeof *d->row);
    d->item = kn_calloc((size_t)n_parallel, sizeof *d->item);
    d->asks = kn_calloc(n, sizeof(struct item *));
    d->law = kn_calloc(n, sizeof(struct spec_dist *));
    d->top = kn_calloc(n * TOP, sizeof *d->top);
    d->n_top = kn_calloc(n, sizeof *d->n_top);
    return d->row && d->item && d->asks && d->law && d->top && d->n_top
               ? 0 : kn_fail(KN_ENOMEM, "no memory for a drafter");
}

static int open_model(struct draft_head *d, const struct eng_draft_wish *w)
{
    struct eng_engine *e = d->base.engine;
    if (w->kind == ENG_DRAFT_MTP)
        return moe_model_open_ahead(&d->model, e->model);
    int error = moe_file_open(&d->file, w->file);
    return error ? error : moe_model_open(&d->model, d->file, &(struct moe_model_options){ .isa = e->opt.isa,
                                                                                           .target = e->model });
}

/* The model's context keeps what all heads read. */
static int ask_features(const struct draft_head *d, const struct eng_draft_wish *w)
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

int eng_draft_head_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_wish *w)
{
    struct draft_head *d = kn_calloc(1, sizeof *d);
    if (!d)
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    d->base = (struct eng_drafter){ .kind = &head_kind, .engine = e, .can_draw = true };
    d->tree = w->tree;
    int error = take_room(d, e->opt.n_parallel);
    if (error || (error = open_model(d, w)) || (error = ask_features(d, w))) {
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

/* ---- a level's rows ---------------------------------------------------------------------------------------- */

static void ask(struct draft_head *d, struct item *it, int guess, int *n_want)
{
    if (it->n_front == 0)
        it->first_want = *n_want;
    it->front[it->n_front++] = guess;
    *(guess == SPEC_ROOT ? &it->root_want : &it->guess[guess].want) = *n_want;
    d->law[*n_want] = it->draws ? eng_draws_take(d->base.engine) : NULL;
    d->asks[(*n_want)++] = it;
}

/* Rows for what it does not know yet of a text; the first token has none.  The text's last is continued, if
 * there is room to reach it; else there will be no draft.  n_behind others are to have at least a row each. */
static void lay_text(struct draft_head *d, struct item *it, int n_behind, int *n_row, int *n_want)
{
    struct eng_session *s = it->s;
    int room = MOST_ROW + d->base.engine->opt.n_parallel - n_behind - *n_row;
    int at = kn_min(eng_draft_first_unknown(&d->base, s, s->n_token), s->n_token - 1), from = at;
    while (at < s->n_token && room > 0) {
        int n = eng_draft_span(s, at, s->n_token, room);
        if (n == 0)
            break;
        room -= n;
        for (; n > 0; n--, at++)
            if (at > 0)
                d->row[(*n_row)++] = (struct moe_row){
                    .token = s->token[at], .position = at - 1, .want_logits = at == s->n_token - 1,
                    .base = s->path.slot + 1, .n_base = s->path.n_slot - 1,
                    .feature_slot = s->path.slot[at - 1] };
    }
    eng_draft_mark(&d->base, s, from, kn_min(at, s->path.n_kept));
    d->base.n_text += at - from;
    *eng_draft_known(&d->base, s) = at;
    it->goes_on = at == s->n_token && at > 1;
    s->seat->lags |= at < s->n_token;
    if (it->goes_on)
        ask(d, it, SPEC_ROOT, n_want);
}

/* A row for a guess; the feature it goes on from was of the last pass. */
static void lay_guess(struct draft_head *d, struct item *it, int guess, int *n_row, int *n_want)
{
    struct eng_session *s = it->s;
    const struct eng_engine *e = d->base.engine;
    struct guess *g = &it->guess[guess];
    const struct guess *parent = g->parent == SPEC_ROOT ? NULL : &it->guess[g->parent];
    int own = it->n_scratch++;
    int32_t *tail = it->tail[own];
    if (parent)
        memcpy(tail, it->tail[parent->scratch], (size_t)(g->depth - 1) * sizeof *tail);
    tail[g->depth - 1] = e->split.n_kv_slot + s->seat->number * N_SCRATCH + own;
    g->scratch = own;
    d->row[(*n_row)++] = (struct moe_row){
        .token = g->token, .position = s->n_token - 2 + g->depth, .want_logits = true,
        .base = s->path.slot + 1, .n_base = s->n_token - 1, .tail = tail,
        .feature = d->result.feature + (size_t)(parent ? parent->want : it->root_want) * d->result.feature_stride };
    ask(d, it, guess, n_want);
}

static void lay_level(struct draft_head *d, struct item *it, int n_behind, int *n_row, int *n_want)
{
    int n = it->n_front, front[TOP];
    memcpy(front, it->front, sizeof front);
    it->n_front = 0;
    if (it->level == 0)
        lay_text(d, it, n_behind, n_row, n_want);
    for (int i = 0; it->level > 0 && i < n; i++)
        lay_guess(d, it, front[i], n_row, n_want);
}

/* ---- guesses -------------------------------------------------------------------------------------------------- */

/* A chain chooses as the model will, with the same noise. */
static int choose(const struct item *it, struct spec_sampler *sampler, const float *logits, struct spec_top *top)
{
    const struct eng_session *s = it->s;
    struct spec_choice c;
    int n = s->n_token + it->level;
    if (spec_sample(sampler, &s->sampling, logits, s->token, n, n, &c))
        return 0;
    *top = (struct spec_top){ c.token, s->sampling.temperature > 0 ? (float)kn_log((double)c.chance) : c.logprob };
    return 1;
}

/* The same in a tree: the model's choice is the largest of logit / T + noise, so what the head has near the top
 * of that is likely, as if the two differed by noise of the same kind once more. */
static void weigh(const struct item *it, struct spec_top *top, int n)
{
    const struct spec_params *p = &it->s->sampling;
    double key[TOP], sum = 0, likeliest = (double)top[0].logprob;
    for (int i = 0; i < n; i++) {
        struct spec_top t = top[i];
        double k = kn_exp(((double)t.logprob - likeliest) / (double)p->temperature +
                          spec_noise(p->seed, p->choice, it->s->n_token + it->level, t.token));
        int at = i;
        for (; at > 0 && key[at - 1] < k; at--) {
            key[at] = key[at - 1];
            top[at] = top[at - 1];
        }
        key[at] = k;
        top[at] = t;
        sum += k;
    }
    for (int i = 0; i < n; i++)
        top[i].logprob = (float)kn_log(key[i] > sum * 1e-30 ? key[i] / sum : 1e-30);
}

/* As many draws as the plan has successors of any guess, each of the whole distribution. */
static int draw(const struct draft_head *d, const struct item *it, int i, struct spec_sampler *sampler,
                const float *logits, struct spec_top *top)
{
    const struct eng_session *s = it->s;
    int guess = it->front[i - it->first_want], n = is_chain(it) ? 1 : PLAN_WIDTH;
    if (!d->law[i] || eng_draws_keep(d->law[i], sampler, s, s->n_token + (is_chain(it) ? it->level : 0), logits))
        return 0;
    for (int k = 0; k < n; k++) {
        struct spec_choice c = eng_draws_token(&d->base, s, d->law[i], (guess + 1) * TOP + k);
        top[k] = (struct spec_top){ c.token, c.logprob };
    }
    return n;
}

static void choose_row(void *arg, int i, int thread)
{
    struct draft_head *d = arg;
    struct item *it = d->asks[i];
    struct spec_sampler *sampler = d->base.engine->chooser[thread].sampler;
    const float *logits = d->result.logits + (size_t)i * (size_t)moe_model_shape(d->model)->n_vocab;
    struct spec_top *top = d->top + (size_t)i * TOP;
    if (it->draws) {
        d->n_top[i] = draw(d, it, i, sampler, logits, top);
        return;
    }
    if (is_chain(it)) {
        d->n_top[i] = choose(it, sampler, logits, top);
        return;
    }
    d->n_top[i] = kn_min(TOP, eng_vocab_size(d->base.engine->vocab));
    spec_top(sampler, logits, d->n_top[i], top);
    if (it->s->sampling.temperature > 0)
        weigh(it, top, d->n_top[i]);
}

/* Among the best it has a place or it is forgotten.  A token that ends the text needs no row: the model itself
 * says it, or not.  What was drawn stays all the same; plans are no larger than there is room. */
static void add_guess(struct draft_head *d, struct item *it, int parent, const struct spec_top *top, int plan,
                      const struct spec_dist *law)
{
    bool ends = eng_vocab_is_stop(d->base.engine->vocab, top->token);
    float before = parent == SPEC_ROOT ? 1 : it->guess[parent].survival;
    float survival = before * (float)kn_exp(top->logprob);
    int at = it->n_best;
    if (ends && !law)
        return;
    while (at > 0 && it->guess[it->best[at - 1]].survival < survival)
        at--;
    if (at == it->most)
        return;
    it->n_best = kn_min(it->n_best + 1, it->most);
    memmove(it->best + at + 1, it->best + at, (size_t)(it->n_best - at - 1) * sizeof *it->best);
    it->best[at] = it->n_guess;
    it->guess[it->n_guess++] = (struct guess){ .token = top->token, .ends = ends, .law = law, .parent = parent,
                                               .depth = it->level + 1, .plan = plan, .survival = survival };
}

static void add_successors(struct draft_head *d, struct item *it, int i)
{
    int parent = it->front[i], want = it->first_want + i;
    int plan = parent == SPEC_ROOT ? SPEC_ROOT : it->guess[parent].plan;
    const struct spec_top *top = d->top + (size_t)want * TOP;
    const struct shape *shape = it->shape;
    for (int k = 0; !shape->plan && k < d->n_top[want]; k++)
        add_guess(d, it, parent, &top[k], 0, NULL);
    for (int k = 0; k < kn_min(shape->n_plan, it->most); k++)
        if (shape->plan[k].parent == plan && shape->plan[k].rank < d->n_top[want])
            add_guess(d, it, parent, &top[shape->plan[k].rank], k, d->law[want]);
}

/* Whether a guess is to be continued. */
static bool continues(const struct item *it, const struct guess *g)
{
    const struct shape *shape = it->shape;
    bool any = !shape->plan;
    for (int k = 0; k < kn_min(shape->n_plan, it->most) && !any; k++)
        any = shape->plan[k].parent == g->plan;
    return any && !g->ends && g->depth == it->level;
}

static void extend(struct draft_head *d, struct item *it)
{
    int n = it->n_front;
    for (int i = 0; i < n; i++)
        add_successors(d, it, i);
    it->level++;
    it->n_front = 0;
    for (int i = 0; i < it->n_best && it->n_front < it->width && it->level < it->depth; i++)
        if (continues(it, &it->guess[it->best[i]]))
            it->front[it->n_front++] = it->best[i];
    it->goes_on = it->n_front > 0;
    if (is_chain(it) && it->goes_on)                /* penalties look at the guesses as well */
        it->s->token[it->s->n_token + it->level - 1] = it->guess[it->front[0]].token;
}

/* ---- a draft ---------------------------------------------------------------------------------------------------- */

/* The draft as it would be if it ended here: what is only looked at on the way is not to be verified. */
static void expect(struct draft_head *d, int n_item)
{
    struct eng_engine *e = d->base.engine;
    e->expect.n = d->n_expected;
    for (int i = 0; i < n_item; i++)
        for (int k = 0; k < d->item[i].n_best; k++)
            eng_expect_add(e, d->item[i].guess[d->item[i].best[k]].token);
    eng_expect_ask(e);
}

/* One pass over all sessions that go on: a level more for each.  Returns how many rows were continued. */
static int draft_level(struct draft_head *d, int n_item)
{
    int n_row = 0, n_want = 0;
    for (int i = 0; i < n_item; i++)
        if (d->item[i].goes_on)
            lay_level(d, &d->item[i], n_item - 1 - i, &n_row, &n_want);
    if (n_row == 0)
        return 0;
    int error = moe_forward(d->context, &(struct moe_batch){ d->row, n_row }, &d->result);
    if (error || (error = moe_rows_status(&d->result, 0, n_row)))
        return error;
    kn_parallel_for(d->base.engine->team, n_want, choose_row, d);
    for (int i = 0; i < n_item; i++)
        if (d->item[i].goes_on)
            extend(d, &d->item[i]);
    expect(d, n_item);
    return n_want;
}

/* Parents stand before children there.  What was drawn, in the order in which it was drawn: by how likely it is
 * would be no order that chance has chosen. */
static void plant(struct draft_head *d, struct item *it)
{
    struct spec_tree *t = &it->s->seat->tree;
    uint8_t source = (uint8_t)(1 << d->base.number);
    for (int i = 0; i < it->n_best; i++) {
        struct guess *g = &it->guess[it->draws ? i : it->best[i]];
        int parent = g->parent == SPEC_ROOT ? SPEC_ROOT : it->guess[g->parent].node;
        g->node = SPEC_END;
        if (parent != SPEC_END)
            g->node = g->law ? spec_tree_draw(t, parent, g->token, g->law, g->survival, source)
                             : spec_tree_add(t, parent, g->token, g->survival, source);
        if (g->node < 0)
            g->node = SPEC_END;
    }
}

/* A dynamic tree is what it is because of what was guessed, so nothing of it may be drawn. */
static const struct shape *shape_of(const struct draft_head *d, bool draws)
{
    bool chain = d->base.engine->opt.verify == SPEC_BLOCK;
    if (draws && d->tree == ENG_TREE_DYNAMIC)
        return &shapes[chain ? ENG_TREE_CHAIN : ENG_TREE_STATIC];
    return &shapes[d->tree];
}

/* How deep a draft of s may be: a head has learnt so many positions, and beyond them guesses badly. */
static int depth_of(struct draft_head *d, const struct eng_session *s, int n_node, int depth)
{
    int left = moe_model_shape(d->model)->n_ctx_train - s->n_token;
    if (left < 1 && !d->told)
        kn_say(KN_LOG_WARN, "%s was trained on %d tokens: texts beyond them go without its drafts",
               moe_file_path(d->file ? d->file : d->base.engine->file), moe_model_shape(d->model)->n_ctx_train);
    d->told |= left < 1;
    return kn_min(kn_min(n_node, left), kn_min(depth, shape_of(d, eng_draws(s))->depth));
}

static int draft(struct eng_drafter *base, struct eng_session **s, const int *n_node, int n, int depth)
{
    struct draft_head *d = (struct draft_head *)base;
    int n_item = 0, going = 1;
    for (int i = 0; i < n; i++) {
        int deep = depth_of(d, s[i], n_node[i], depth);
        struct item *it = &d->item[n_item];
        if (deep < 1)
            continue;
        n_item++;
        it->s = s[i];
        it->draws = eng_draws(s[i]);
        it->shape = shape_of(d, it->draws);
        it->most = n_node[i];
        it->depth = deep;
        it->goes_on = true;
        it->level = it->n_scratch = it->n_guess = it->n_best = it->n_front = 0;
    }
    for (int i = 0; i < n_item; i++)
        d->item[i].width = kn_min(TOP, d->n_want / n_item);
    d->n_expected = base->engine->expect.n;
    while (going > 0)
        going = draft_level(d, n_item);
    for (int i = 0; i < n_item && !going; i++)
        plant(d, &d->item[i]);
    return going;
}

static const struct eng_drafter_kind head_kind = {
    .name = "head", .commit = commit, .draft = draft, .close = close_head, .load = load, .need = need };
