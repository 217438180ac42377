/* speculative/drafter.c - drafts from earlier tokens: the continuations of places with the same last tokens.
 *
 * It owns the remembered tokens: of each session, of documents, of ended sessions.  In come tokens as they are
 * committed; out goes a tree.  Each of the longest matches (recall.c) stands for a continuation; matches that agree
 * share a node, and the tree grows at the node with the highest survival.
 *
 * A session may also have a reference text (copy.c), of which the next tokens are a chain; and the pool of n-grams of
 * lookahead decoding (lookahead.c), which are matches like those in its tokens.
 *
 * Survival is learnt: for each class of match length and share of agreeing matches (weighted by length squared, since
 * long matches are better evidence), the rate at which the likeliest token was right.  Each commit compares the token
 * that would have been drafted with the committed one, so rates are known before any draft is verified. */
#include "speculative/internal.h"

#define N_MATCH       32  /* at most; bits of candidate.matches */
#define N_TEXT_MATCH  16  /* of them in tokens, not in a pool */
#define N_TAIL        64  /* tokens over which a match is compared */
#define N_LEARN_TOKEN 256 /* last tokens of a commit that update the rates */
#define N_LENGTH      7
#define N_SHARE       3
#define N_EDGE        64               /* candidates below the tree's nodes, not in the tree yet */
#define N_RUN         7                /* classes of the run of a reference text */
#define MIN_SURVIVAL  0.02             /* nodes with less survival are not drafted */
#define RATE_DECAY    (1 - 1.0 / 64)   /* decay per observation */
#define VALUE_DECAY   (1 - 1.0 / 1024) /* of the value of a window's rows, per token of any session */
#define PRIOR_VALUE   0.04 /* tokens that a row of a window gives, measured on the demo model (docs/drafts.md), */
#define PRIOR_ROWS    32   /* and the rows that this counts as: the default window in 4 to 5 passes */

struct rate {
    double right, asked;
};

struct session {
    struct spec_recall own;
    uint64_t salt;
    bool open;
    struct rate rate[N_LENGTH][N_SHARE];
    struct rate *guessed_rate; /* of the likeliest next token; NULL: there is none */
    int32_t guess_next;
    bool guess_of_pool;    /* no earlier place in the session's text has it */
    int64_t n_token;       /* committed */
    const int32_t *oracle; /* [n_oracle] oracle: future tokens */
    int n_oracle;
    struct spec_copy copy; /* copy.n 0: no reference text */
    struct rate copy_rate[N_RUN];
    struct spec_window window; /* lookahead, */
    struct spec_pool pool;
    uint64_t from_window; /* bit i: token i of the next commit was a row of the window */
};

struct spec_drafter {
    struct spec_drafter_options opt;
    struct kn_arena arena;
    struct spec_recall learnt, shared;
    struct session *session; /* [n_session] */
    double n_given, n_row;   /* tokens that only pools or windows gave, and rows of windows; decayed */
};

/* ---- memory ------------------------------------------------------------------------------------ */

static bool remembers(const struct spec_drafter_options *o)
{
    return o->kind == SPEC_DRAFT_NGRAM || o->kind == SPEC_DRAFT_SUFFIX || o->kind == SPEC_DRAFT_LOOKAHEAD;
}

/* Allocates from a; an arena without memory only counts the bytes. */
static void take(struct spec_drafter *d, struct kn_arena *a)
{
    const struct spec_drafter_options *o = &d->opt;
    struct session *session = kn_arena_take(a, (size_t)o->n_session, sizeof *session);
    if (o->kind == SPEC_DRAFT_SUFFIX && o->n_learn > 0)
        spec_recall_init(&d->learnt, a, o->n_learn, false);
    if (o->kind == SPEC_DRAFT_SUFFIX && o->n_shared > 0)
        spec_recall_init(&d->shared, a, o->n_shared, true);
    for (int i = 0; remembers(o) && i < o->n_session; i++) {
        struct spec_recall own;
        spec_recall_init(&own, a, o->n_own, false);
        if (session)
            session[i].own = own;
    }
    for (int i = 0; o->kind == SPEC_DRAFT_LOOKAHEAD && i < o->n_session; i++) {
        struct spec_pool pool;
        spec_pool_init(&pool, a, o->n_gram);
        if (session)
            session[i].pool = pool;
    }
    d->session = session;
}

size_t spec_drafter_bytes(const struct spec_drafter_options *opt)
{
    struct spec_drafter d = { .opt = *opt };
    struct kn_arena counted = { 0 };
    take(&d, &counted);
    return counted.used;
}

int spec_drafter_open(struct spec_drafter **out, const struct spec_drafter_options *opt)
{
    const int most = 1 << 30;
    if (opt->n_session < 1 || opt->n_vocab < 1 || opt->n_own < 0 || opt->n_own > most || opt->n_shared < 0 ||
        opt->n_shared > most || opt->n_learn < 0 || opt->n_learn > most || !(opt->right >= 0 && opt->right <= 1))
        return kn_fail(KN_EINVAL,
                       "a drafter stores at most %d tokens, and the oracle takes a probability "
                       "between 0 and 1",
                       most);
    struct spec_drafter *d = kn_calloc(1, sizeof *d);
    size_t bytes = spec_drafter_bytes(opt);
    if (!d || kn_arena_open(&d->arena, bytes, -1) < 0) {
        kn_free(d);
        return kn_fail(KN_ENOMEM, "no memory for a drafter's index of %zu MiB", bytes >> 20);
    }
    d->opt = *opt;
    take(d, &d->arena);
    *out = d;
    return 0;
}

void spec_drafter_close(struct spec_drafter *d)
{
    if (!d)
        return;
    kn_arena_close(&d->arena);
    kn_free(d);
}

/* ---- rates ------------------------------------------------------------------------------------- */

/* Prior rates: of prose, code and tables together.  A match of one token is an n-gram of a pool. */
static const double prior_rate[N_LENGTH][N_SHARE] = {
    { .15, .25, .35 }, { .20, .35, .45 }, { .25, .45, .60 }, { .30, .55, .75 },
    { .35, .65, .85 }, { .40, .70, .92 }, { .40, .75, .96 },
};

/* Prior rates of the token that a reference text names next, by the length of its run. */
static const double prior_copy_rate[N_RUN] = { .30, .45, .60, .80, .92, .96, .98 };

static void forget_rates(struct session *s)
{
    const double weight = 4; /* observations that the prior counts as */
    for (int i = 0; i < N_RUN; i++)
        s->copy_rate[i] = (struct rate){ prior_copy_rate[i] * weight, weight };
    for (int i = 0; i < N_LENGTH; i++)
        for (int k = 0; k < N_SHARE; k++)
            s->rate[i][k] = (struct rate){ prior_rate[i][k] * weight, weight };
}

static void learn_rate(struct rate *r, bool right)
{
    r->right = r->right * RATE_DECAY + right;
    r->asked = r->asked * RATE_DECAY + 1;
}

static int length_class(int length)
{
    static const int from[N_LENGTH] = { 0, 2, 3, 5, 8, 16, 32 };
    int i = N_LENGTH - 1;
    while (length < from[i])
        i--;
    return i;
}

static int run_class(int run)
{
    static const int from[N_RUN] = { 0, 1, 2, 3, 5, 9, 17 };
    int i = N_RUN - 1;
    while (run < from[i])
        i--;
    return i;
}

static int share_class(double share) { return share < 0.5 ? 0 : share < 0.95 ? 1 : 2; }

/* ---- continuations ----------------------------------------------------------------------------- */

/* The matches that a draft grows from. */
struct match_set {
    const struct session *s;
    const struct spec_tree *t;
    struct spec_match match[N_MATCH];
    int n, n_text; /* the first n_text are in tokens, the others in the pool */
};

static void find_matches(const struct spec_drafter *d, const struct session *s, struct match_set *g)
{
    int32_t tail[N_TAIL];
    int n = (int)(s->own.run < N_TAIL ? s->own.run : N_TAIL), most = N_TEXT_MATCH;
    if (d->opt.kind == SPEC_DRAFT_NGRAM)
        most = 1;
    for (int i = 0; i < n; i++)
        tail[i] = s->own.token[(s->own.n - (uint32_t)(n - i)) & s->own.mask];
    g->s = s;
    g->n = spec_recall_find(&s->own, 0, tail, n, g->match, 0, most);
    if (d->learnt.token)
        g->n = spec_recall_find(&d->learnt, 0, tail, n, g->match, g->n, most);
    if (d->shared.token)
        g->n = spec_recall_find(&d->shared, s->salt, tail, n, g->match, g->n, most);
    g->n_text = g->n;
    if (s->pool.token)
        g->n += spec_pool_find(&s->pool, tail, n, g->match + g->n, N_MATCH - g->n);
}

/* The token at depth + 1 on the path from the root to the node. */
static int32_t token_on_path(const struct spec_tree *t, int node, int depth)
{
    while (t->depth[node] > depth + 1)
        node = t->parent[node];
    return t->token[node];
}

/* The token after a node of this depth in match i's continuation.  A match that overlaps the end of the sequence, as in
 * "abab", continues into the draft itself. */
static bool next_token(const struct match_set *g, int i, int node, int depth, int32_t *out)
{
    const struct spec_match *m = &g->match[i];
    if (m->gram) {
        *out = m->length + depth < m->n_gram ? m->gram[m->length + depth] : -1;
        return *out >= 0;
    }
    uint32_t at = m->at + (uint32_t)depth, beyond = at - m->in->n;
    if (m->in != &g->s->own || beyond >= (uint32_t)depth)
        return spec_recall_token(m->in, at, out);
    *out = token_on_path(g->t, node, (int)beyond);
    return true;
}

/* A candidate node: a token and the matches that agree on it (bit i of matches: match i).  After a disagreement the
 * remaining matches agree with each other, which is no new evidence: share is the least one on the path. */
struct candidate {
    int32_t token;
    int16_t parent;
    uint32_t matches;
    double weight, share, survival;
};

static const struct candidate root_candidate = { .matches = UINT32_MAX, .share = 1, .survival = 1 };

/* All candidates below one node, the likeliest first, the others in any order; length and share are the classes of the
 * likeliest one's rate. */
struct candidates {
    int n;
    struct candidate candidate[N_MATCH];
    double weight; /* of all candidates */
    int length, share;
};

static void find_candidates(const struct match_set *g, int node, const struct candidate *to, struct candidates *f)
{
    int depth = node == SPEC_ROOT ? 0 : g->t->depth[node], longest = 0, likeliest = 0;
    f->n = 0;
    f->weight = 0;
    for (int i = 0; i < g->n; i++) {
        int32_t token;
        if (!(to->matches >> i & 1) || !next_token(g, i, node, depth, &token))
            continue;
        int k = 0, length = g->match[i].length;
        while (k < f->n && f->candidate[k].token != token)
            k++;
        if (k == f->n)
            f->candidate[f->n++] = (struct candidate){ .token = token, .parent = (int16_t)node };
        f->candidate[k].matches |= 1u << i;
        f->candidate[k].weight += (double)length * length;
        f->weight += (double)length * length;
        longest = kn_max(longest, length);
    }
    if (f->n == 0)
        return;
    for (int k = 1; k < f->n; k++)
        if (f->candidate[k].weight > f->candidate[likeliest].weight)
            likeliest = k;
    struct candidate first = f->candidate[likeliest];
    f->candidate[likeliest] = f->candidate[0];
    f->candidate[0] = first;
    for (int k = 0; k < f->n; k++) {
        double share = f->candidate[k].weight / f->weight;
        f->candidate[k].share = share < to->share ? share : to->share;
    }
    f->length = length_class(longest + depth);
    f->share = share_class(f->candidate[0].share);
}

/* ---- a tree ------------------------------------------------------------------------------------ */

/* Candidates that are not in the tree yet.  They exclude each other, so their survivals sum to at most 1; N_EDGE times
 * MIN_SURVIVAL is more. */
struct waiting {
    int n;
    struct candidate candidate[N_EDGE];
};
_Static_assert(N_EDGE >= 56, "1.1 / LEAST: there is always room");

static void add_candidates(const struct match_set *g, int node, const struct candidate *to, struct waiting *w)
{
    struct candidates f;
    find_candidates(g, node, to, &f);
    for (int k = 0; k < f.n; k++) {
        struct candidate *e = &f.candidate[k];
        const struct rate *r = &g->s->rate[f.length][f.share];
        double right = r->right / r->asked;
        double likely = right * e->weight / f.candidate[0].weight;
        if (k > 0 && right * f.weight > f.candidate[0].weight) /* all candidates together at most 1 */
            likely = (1 - right) * e->weight / (f.weight - f.candidate[0].weight);
        e->survival = to->survival * likely;
        if (e->survival < MIN_SURVIVAL)
            continue;
        kn_assert(w->n < N_EDGE);
        w->candidate[w->n++] = *e;
    }
}

static void draft_tree(const struct spec_drafter *d, const struct session *s, int n_node, int n_depth, uint8_t source,
                       struct spec_tree *t)
{
    struct match_set g;
    struct waiting w = { 0 };
    find_matches(d, s, &g);
    g.t = t;
    add_candidates(&g, SPEC_ROOT, &root_candidate, &w);
    while (n_node-- > 0 && w.n > 0) {
        int best = 0;
        for (int i = 1; i < w.n; i++)
            if (w.candidate[i].survival > w.candidate[best].survival)
                best = i;
        struct candidate e = w.candidate[best];
        w.candidate[best] = w.candidate[--w.n];
        int node = spec_tree_add(t, e.parent, e.token, (float)e.survival, source);
        if (node < 0)
            return;
        if (t->depth[node] < n_depth)
            add_candidates(&g, node, &e, &w);
    }
}

/* ---- a reference text -------------------------------------------------------------------------- */

static bool copies(const struct session *s) { return s->copy.n > 0 && s->copy.at >= 0 && s->copy.at < s->copy.n; }

static double copy_survival(const struct session *s, int depth)
{
    const struct rate *r = &s->copy_rate[run_class(s->copy.run + depth)];
    return r->right / r->asked;
}

static void draft_copy(const struct session *s, int n_node, int n_depth, uint8_t source, struct spec_tree *t)
{
    double survival = 1;
    int n = copies(s) ? kn_min(kn_min(n_node, n_depth), s->copy.n - s->copy.at) : 0;
    for (int i = 0, node = SPEC_ROOT; i < n; i++) {
        survival *= copy_survival(s, i);
        if (survival < MIN_SURVIVAL)
            return;
        node = spec_tree_add(t, node, s->copy.token[s->copy.at + i], (float)survival, source);
        if (node < 0)
            return;
    }
}

static void learn_copy(struct session *s, int32_t token)
{
    if (!s->copy.n)
        return;
    if (copies(s))
        learn_rate(&s->copy_rate[run_class(s->copy.run)], s->copy.token[s->copy.at] == token);
    spec_copy_add(&s->copy, token);
}

/* ---- the oracle -------------------------------------------------------------------------------- */

static void draft_oracle(const struct spec_drafter *d, const struct session *s, int n_node, int n_depth, uint8_t source,
                         struct spec_tree *t)
{
    uint32_t which = (uint32_t)(s - d->session);
    double survival = 1;
    for (int i = 0, node = SPEC_ROOT; i < kn_min(kn_min(n_node, n_depth), s->n_oracle); i++) {
        uint64_t stream = spec_stream(d->opt.seed, which, s->n_token + i, SPEC_FOR_ORACLE);
        bool right = spec_uniform(stream, 0) < d->opt.right;
        survival *= d->opt.right;
        node = spec_tree_add(t, node, right ? s->oracle[i] : (s->oracle[i] + 1) % d->opt.n_vocab, (float)survival,
                             source);
        if (node < 0)
            return;
    }
}

/* ---- sessions ---------------------------------------------------------------------------------- */

static struct session *session_of(const struct spec_drafter *d, int session)
{
    kn_assert(session >= 0 && session < d->opt.n_session);
    return &d->session[session];
}

void spec_drafter_learn(struct spec_drafter *d, const int32_t *token, int n)
{
    if (!d->learnt.token)
        return;
    spec_recall_start_sequence(&d->learnt, 0);
    for (int i = 0; i < n; i++)
        spec_recall_add(&d->learnt, token[i]);
}

void spec_drafter_begin(struct spec_drafter *d, int session, uint64_t salt)
{
    struct session *s = session_of(d, session);
    spec_drafter_end(d, session);
    spec_recall_clear(&s->own);
    forget_rates(s);
    s->salt = salt;
    s->open = true;
    s->guessed_rate = NULL;
    s->n_token = 0;
    s->n_oracle = 0;
    s->copy.n = 0;
    s->from_window = 0;
    if (d->opt.kind == SPEC_DRAFT_LOOKAHEAD) {
        spec_window_start(&s->window, d->opt.n_column, d->opt.n_gram);
        spec_pool_clear(&s->pool);
    }
}

/* Stores the likeliest next token, to compare it with the next committed one. */
static void guess_next(const struct spec_drafter *d, struct session *s)
{
    struct match_set g;
    struct candidates f;
    find_matches(d, s, &g);
    find_candidates(&g, SPEC_ROOT, &root_candidate, &f);
    s->guessed_rate = f.n > 0 ? &s->rate[f.length][f.share] : NULL;
    s->guess_next = f.n > 0 ? f.candidate[0].token : 0;
    s->guess_of_pool = f.n > 0 && !(f.candidate[0].matches & ((1u << g.n_text) - 1));
}

/* Of token i of a commit.  All sessions have one value, so that a new one need not measure it again.  A session's first
 * commit, its prompt, had no pool and tells nothing. */
static void learn_value(struct spec_drafter *d, const struct session *s, int32_t token, int i)
{
    if (s->n_token == 0)
        return;
    bool of_pool = s->guessed_rate && s->guess_of_pool && s->guess_next == token;
    d->n_row *= VALUE_DECAY;
    d->n_given = d->n_given * VALUE_DECAY + (of_pool || (i < 64 && s->from_window >> i & 1));
}

void spec_drafter_commit(struct spec_drafter *d, int session, const int32_t *token, int n)
{
    struct session *s = session_of(d, session);
    kn_assert(s->open);
    for (int i = 0; remembers(&d->opt) && i < n; i++) {
        learn_value(d, s, token[i], i);
        if (s->guessed_rate)
            learn_rate(s->guessed_rate, s->guess_next == token[i]);
        spec_recall_add(&s->own, token[i]);
        s->guessed_rate = NULL;
        if (n - i <= N_LEARN_TOKEN)
            guess_next(d, s);
    }
    for (int i = 0; i < n; i++)
        learn_copy(s, token[i]);
    if (s->pool.token && n > 0) {
        spec_window_give(&s->window, &s->pool); /* after the rates: no draft had these n-grams */
        spec_window_advance(&s->window, &s->own, n, token[n - 1]);
        guess_next(d, s);
    }
    s->from_window = 0;
    s->n_token += n;
    s->oracle += kn_min(n, s->n_oracle);
    s->n_oracle -= kn_min(n, s->n_oracle);
}

void spec_drafter_end(struct spec_drafter *d, int session)
{
    struct session *s = session_of(d, session);
    if (s->open && d->shared.token) {
        spec_recall_start_sequence(&d->shared, s->salt);
        for (uint32_t at = s->own.start; at != s->own.n; at++)
            spec_recall_add(&d->shared, s->own.token[at & s->own.mask]);
    }
    s->open = false;
}

void spec_drafter_end_unshared(struct spec_drafter *d, int session) { session_of(d, session)->open = false; }

void spec_drafter_set_oracle(struct spec_drafter *d, int session, const int32_t *token, int n)
{
    struct session *s = session_of(d, session);
    s->oracle = token;
    s->n_oracle = n;
}

void spec_drafter_set_reference(struct spec_drafter *d, int session, const int32_t *token, int n)
{
    kn_assert(remembers(&d->opt) || d->opt.kind == SPEC_DRAFT_COPY);
    spec_copy_start(&session_of(d, session)->copy, token, n);
}

int spec_draft_window(struct spec_drafter *d, int session, int n_node, struct spec_tree *t)
{
    struct session *s = session_of(d, session);
    kn_assert(d->opt.kind == SPEC_DRAFT_LOOKAHEAD);
    return s->open ? spec_window_lay(&s->window, t, n_node, (float)spec_window_value(d)) : 0;
}

double spec_window_value(const struct spec_drafter *d)
{
    return (d->n_given + PRIOR_VALUE * PRIOR_ROWS) / (d->n_row + PRIOR_ROWS);
}

void spec_drafter_learn_window(struct spec_drafter *d, int session, const struct spec_tree *t,
                               const int32_t *target_token, const int16_t *path, int n_path)
{
    struct session *s = session_of(d, session);
    d->n_row += t->n - spec_tree_n_drafted(t);
    s->from_window = 0;
    for (int i = 0; i < kn_min(n_path, 64); i++)
        s->from_window |= (uint64_t)t->window_row[path[i]] << i;
    spec_window_learn(&s->window, t, target_token);
}

/* A reference text whose next token is likely goes before the session's own tokens; another one after them. */
void spec_draft(const struct spec_drafter *d, int session, int n_node, int n_depth, uint8_t source, struct spec_tree *t)
{
    const struct session *s = session_of(d, session);
    int before = t->n;
    if (!s->open || n_depth < 1)
        return;
    bool first = copies(s) && copy_survival(s, 0) >= 0.5;
    if (first)
        draft_copy(s, n_node, n_depth, source, t);
    if (remembers(&d->opt))
        draft_tree(d, s, n_node - (t->n - before), n_depth, source, t);
    if (!first)
        draft_copy(s, n_node - (t->n - before), n_depth, source, t);
    if (d->opt.kind == SPEC_DRAFT_ORACLE)
        draft_oracle(d, s, n_node, n_depth, source, t);
}
