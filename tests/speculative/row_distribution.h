/* tests/speculative/row_distribution.h - the exact distribution of a verification's output.
 *
 * Small tables, every draft, every interval of every die. A verifier is a function of its dice that is constant on
 * intervals; bisection finds the ends to the last bit, so the output distribution is a sum of products of lengths.
 * Tables give the variants: the shape of a draft, the policy that leaves out some of it, the processing of the two
 * distributions are processed, and the rule. */
#ifndef TESTS_SPECULATIVE_ROW_DISTRIBUTION_H
#define TESTS_SPECULATIVE_ROW_DISTRIBUTION_H

#include "tests/speculative/model.h"

enum { SMALL = 5, MOST_LENGTH = 4, MOST_LAW = 125, MOST_CONTEXT = 40, MOST_DICE = 32, MOST_STEP = 5 };

/* A draft in the order in which it is made. how: 'q' and 'r' are sampled, each from a drafter of its own; a digit adds
 * the token first_added + digit. under: the step that made its parent; -1: the root. */
struct step {
    int under;
    char how;
};
struct shape {
    const char *name;
    int n;
    struct step step[MOST_STEP];
};

/* The draft made so far. */
struct draft {
    const struct shape *shape;
    int32_t token[MOST_STEP];
    int node[MOST_STEP];      /* SPEC_END: the step was not taken */
    struct kept q[MOST_STEP]; /* the distribution sampled from, and the one reported for it */
    struct spec_tree tree;    /* survival: the product of q along the path */
};

/* The nodes that are left out. before: decides step i with q known and the token unknown; after: decides a node with
 * everything known. says: the policy reports that it looked at the draws. */
struct policy {
    const char *name;
    bool (*before)(const struct draft *d, int i);
    bool (*after)(const struct draft *d, int node);
    bool says;
};

struct verifier {
    void (*start)(struct spec_verify *v);
    int (*row)(struct spec_verify *v, struct spec_sampler *s, const float *logits, const uint32_t *mask);
    void (*stop)(struct spec_verify *v);
};

static const struct verifier true_verifier = { spec_verify_start, spec_verify_row, spec_verify_stop };

struct table {
    struct spec_sampler *s;
    struct model target, drafter[2];
    struct spec_params p, drafter_p[2];
    enum spec_rule rule;
    const struct shape *shape;
    const struct policy *policy;
    const struct verifier *verifier;
    bool masked;                            /* masked: a mask of allowed tokens for each prefix */
    bool boasts;                            /* boasts: drafters report their whole distribution, uncut */
    int32_t first_added, end;               /* end: the walk stops at this token; -1: none */
    int length;                             /* of the compared sequences */
    int32_t said[MOST_LENGTH + SPEC_NODES]; /* [n_said] before the draft; empty for enumeration */
    int n_said;
    struct kept p_after[MOST_CONTEXT];
    double law[MOST_LAW], kept; /* law: of sequences; kept: mean accepted drafted tokens */
    struct draft d;
};

/* ---- the target ---------------------------------------------------------------------------------------- */

/* The index of a sequence of less than MOST_LENGTH tokens. */
static inline int context(int n_vocab, const int32_t *text, int n)
{
    int at = 0, first = 0, size = 1;
    for (int i = 0; i < n; i++) {
        at = at * n_vocab + text[i];
        first += size;
        size *= n_vocab;
    }
    return first + at;
}

static inline int law_size(const struct table *c)
{
    int size = 1;
    for (int i = 0; i < c->length; i++)
        size *= c->target.n_vocab;
    return size;
}

/* Allows a part of the vocabulary, never an empty one. */
static inline const uint32_t *mask_after(const struct table *c, const int32_t *text, int n, uint32_t *mask)
{
    uint32_t all = (1u << c->target.n_vocab) - 1;
    *mask = (uint32_t)(text_hash(c->target.seed ^ 99, text, n) >> 20) & all;
    *mask = *mask ? *mask : all;
    return c->masked ? mask : NULL;
}

static inline void find_after(struct table *c, int32_t *text, int n)
{
    uint32_t mask;
    struct spec_params p = c->p;
    p.mask = mask_after(c, text, n, &mask);
    model_dist(c->s, &c->target, &p, text, n, &c->p_after[context(c->target.n_vocab, text, n)]);
    for (text[n] = 0; n + 1 < c->length && text[n] < c->target.n_vocab; text[n]++)
        find_after(c, text, n + 1);
}

static inline void find_target(struct table *c)
{
    int32_t text[MOST_LENGTH];
    find_after(c, text, 0);
}

/* Adds all sequences that begin with text[n], each with its probability. */
static inline void add_texts(const struct table *c, int32_t *text, int n, double prob, double *law)
{
    int n_vocab = c->target.n_vocab;
    if (n >= c->length) {
        law[context(n_vocab, text, c->length) - context(n_vocab, (int32_t[MOST_LENGTH]){ 0 }, c->length)] += prob;
        return;
    }
    for (int32_t t = 0; t < n_vocab; t++) {
        double here = spec_dist_prob(&c->p_after[context(n_vocab, text, n)].d, t);
        text[n] = t;
        if (here > 0)
            add_texts(c, text, n + 1, prob * here, law);
    }
}

static inline double law_error(const struct table *c)
{
    double want[MOST_LAW] = { 0 }, worst = 0;
    int32_t text[MOST_LENGTH];
    add_texts(c, text, 0, 1, want);
    for (int i = 0; i < law_size(c); i++)
        worst = fmax(worst, fabs(want[i] - c->law[i]));
    return worst;
}

/* ---- a round -------------------------------------------------------------------------------------------- */

static inline bool has_draws(const struct spec_tree *t, int node)
{
    for (int i = 0; i < t->n_draw; i++)
        if (t->parent[t->draw[i].node] == node)
            return true;
    return false;
}

static inline int table_row(struct table *c, struct spec_verify *v, int32_t *text)
{
    float z[MOST_VOCAB];
    uint32_t mask;
    int n = v->n_history + v->n_walked;
    model_logits(&c->target, text, n, z);
    return c->verifier->row(v, c->s, z, mask_after(c, text, n, &mask));
}

/* One round. The walk stops at a node without draws or at the end token: the target's own tokens follow there. */
static inline void round_with(struct table *c, const double *dice, struct spec_verify *v, int32_t *text)
{
    const struct spec_tree *t = &c->d.tree;
    *v = (struct spec_verify){ .tree = t, .rule = c->rule, .params = &c->p, .history = text, .dice = dice };
    for (c->verifier->start(v); v->node != SPEC_END;)
        if (v->rule == SPEC_COUPLED || !has_draws(t, v->node) || (v->node >= 0 && t->token[v->node] == c->end))
            c->verifier->stop(v);
        else
            assert_int_equal(table_row(c, v, text), 0);
}

/* The target's own tokens: a node without draws uses no die, and its row's token is the one that spec_sample picks. */
static inline void follow(struct table *c, const double *dice)
{
    const struct spec_tree *t = &c->d.tree;
    int32_t text[SPEC_NODES];
    struct spec_verify v = { .tree = t, .rule = c->rule, .params = &c->p, .history = text, .dice = dice };
    for (c->verifier->start(&v); v.node != SPEC_END;) {
        bool own = v.rule == SPEC_COUPLED || !has_draws(t, v.node);
        int n = v.n_walked, n_dice = v.n_dice;
        assert_int_equal(table_row(c, &v, text), 0);
        if (own) {
            float z[MOST_VOCAB];
            uint32_t mask;
            struct spec_sampled choice;
            struct spec_params p = c->p;
            p.mask = mask_after(c, text, n, &mask);
            model_logits(&c->target, text, n, z);
            assert_int_equal(spec_sample(c->s, &p, z, text, n, n, &choice), 0);
            assert_memory_equal(&v.out[n], &choice, sizeof choice);
            assert_int_equal(v.n_dice, n_dice);
        }
    }
}

/* The result of a round when the dice from n on are all low or all high; two rounds with equal signs are equal. */
struct sign {
    int n_dice, n_out;
    int32_t token[MOST_LENGTH + 2];
};

static inline struct sign sign_of(struct table *c, double *dice, int n, bool high)
{
    struct sign g = { 0 };
    struct spec_verify v;
    int32_t text[SPEC_NODES];
    for (int i = n; i < MOST_DICE; i++)
        dice[i] = high ? 1 - 1e-9 : 1e-9;
    round_with(c, dice, &v, text);
    g.n_dice = v.n_dice;
    g.n_out = v.n_out;
    for (int i = 0; i < v.n_out; i++)
        g.token[i] = v.out[i].token;
    return g;
}

static inline bool same_sign(struct table *c, double *dice, int n, double at, const struct sign *as /* [2] */)
{
    dice[n] = at;
    for (int way = 0; way < 2; way++) {
        struct sign now = sign_of(c, dice, n + 1, way);
        if (memcmp(&now, &as[way], sizeof now) != 0)
            return false;
    }
    return true;
}

static inline void count_round(struct table *c, const double *dice, double prob)
{
    struct spec_verify v;
    int32_t text[SPEC_NODES], out[SPEC_NODES];
    round_with(c, dice, &v, text);
    for (int i = 0; i < v.n_out; i++)
        out[i] = v.out[i].token;
    c->kept += v.n_path * prob;
    add_texts(c, out, v.n_out, prob, c->law);
    if (c->verifier == &true_verifier)
        follow(c, dice);
}

/* Goes through the intervals of die n, from 0 on: an interval ends where the sign changes, and no sign comes twice. */
static inline void explore(struct table *c, double *dice, int n, double prob)
{
    if (sign_of(c, dice, n, false).n_dice <= n) {
        count_round(c, dice, prob);
        return;
    }
    for (double begin = 0, end; begin < 1; begin = end) {
        double low = begin, high = 1 - 0x1p-53;
        dice[n] = begin;
        struct sign now[2] = { sign_of(c, dice, n + 1, false), sign_of(c, dice, n + 1, true) };
        if (same_sign(c, dice, n, high, now))
            low = high;
        for (double mid; mid = low + (high - low) / 2, mid > low && mid < high;)
            if (same_sign(c, dice, n, mid, now))
                low = mid;
            else
                high = mid;
        end = low < high ? high : 1;
        dice[n] = begin;
        explore(c, dice, n + 1, prob * (end - begin));
    }
}

/* ---- all drafts ------------------------------------------------------------------------------------------ */

static inline void verify_draft(struct table *c, double prob)
{
    double dice[MOST_DICE];
    struct spec_tree whole = c->d.tree;
    if (c->policy && c->policy->after) {
        bool stays[SPEC_NODES];
        for (int i = 0; i < whole.n; i++)
            stays[i] = c->policy->after(&c->d, i);
        spec_tree_prune(&c->d.tree, stays, !c->policy->says);
    }
    explore(c, dice, 0, prob);
    c->d.tree = whole;
}

/* Finds the distribution that step i samples from, and the one that it reports. */
static inline void find_q(struct table *c, int i, struct kept *drawn)
{
    const struct step *step = c->shape->step;
    int32_t text[MOST_LENGTH + MOST_STEP];
    int n = c->n_said, n_path = 0, path[MOST_STEP], of = step[i].how == 'r';
    memcpy(text, c->said, (size_t)n * sizeof *text);
    for (int at = step[i].under; at >= 0; at = step[at].under)
        path[n_path++] = at;
    while (n_path > 0)
        text[n++] = c->d.token[path[--n_path]];
    model_dist(c->s, &c->drafter[of], &c->drafter_p[of], text, n, drawn);
    c->d.q[i] = *drawn;
    keep(&c->d.q[i], &drawn->d);
    if (c->boasts) {
        struct spec_params whole = c->drafter_p[of];
        whole.top_k = 0;
        model_dist(c->s, &c->drafter[of], &whole, text, n, &c->d.q[i]);
    }
}

static inline void draft_all(struct table *c, int i, double prob)
{
    if (i == c->shape->n) {
        verify_draft(c, prob);
        return;
    }
    const struct step step = c->shape->step[i];
    struct spec_tree before = c->d.tree;
    int parent = step.under < 0 ? SPEC_ROOT : c->d.node[step.under];
    bool draws = step.how >= 'a';
    struct kept q;
    c->d.node[i] = SPEC_END;
    if (parent != SPEC_END && draws)
        find_q(c, i, &q);
    if (parent == SPEC_END || (c->policy && c->policy->before && !c->policy->before(&c->d, i))) {
        draft_all(c, i + 1, prob);
        return;
    }
    float survival = parent == SPEC_ROOT ? 1 : before.survival[parent];
    if (!draws) {
        c->d.token[i] = (c->first_added + step.how - '0') % c->target.n_vocab;
        c->d.node[i] = spec_tree_add(&c->d.tree, parent, c->d.token[i], survival, 1);
        draft_all(c, i + 1, prob);
        c->d.tree = before;
        return;
    }
    for (int32_t t = 0; t < c->target.n_vocab; t++) {
        double here = spec_dist_prob(&q.d, t);
        if (here == 0)
            continue;
        c->d.token[i] = t;
        c->d.node[i] = spec_tree_draw(&c->d.tree, parent, t, &c->d.q[i].d, survival * (float)here, 1);
        draft_all(c, i + 1, prob * here);
        c->d.tree = before;
    }
}

static inline void find_law(struct table *c)
{
    memset(c->law, 0, sizeof c->law);
    c->kept = 0;
    c->d.shape = c->shape;
    find_target(c);
    spec_tree_clear(&c->d.tree);
    draft_all(c, 0, 1);
}

/* ---- processing of the two distributions ------------------------------------------------------------------ */

/* Supports overlap in part, or not at all, and differ between the nodes of a tree. */
enum { PLAIN, HOT, TOP_2, TOP_1, POINT, PENALTIES, MASKS, MIN_P, N_PROCESS };

static inline void process(struct table *c, int how)
{
    spec_params_default(&c->p);
    c->p.temperature = 0.8f;
    c->drafter_p[0] = c->p;
    c->drafter_p[0].temperature = how == HOT ? 1.5f : 0.8f;
    if (how == TOP_2 || how == TOP_1)
        c->p.top_k = c->drafter_p[0].top_k = how == TOP_2 ? 2 : 1;
    if (how == POINT) /* a drafter that picks its likeliest token samples from a point */
        c->drafter_p[0].top_k = 1;
    if (how == PENALTIES) {
        c->p.top_p = 0.7f;
        c->p.repetition = 1.6f;
        c->p.frequency = 0.5f;
    }
    if (how == MIN_P) {
        c->p.min_p = c->drafter_p[0].min_p = 0.3f;
        c->p.presence = 1.5f;
        c->drafter_p[0].presence = -1;
    }
    c->drafter_p[1] = c->drafter_p[0];
    c->drafter_p[1].temperature = 1.2f;
    c->masked = how == MASKS;
}

static inline void open_table(struct table *c, const struct shape *shape, int n_vocab, int how, enum spec_rule rule)
{
    *c = (struct table){ .target = { n_vocab, random_bits(), 3, NULL },
                         .s = open_sampler(n_vocab),
                         .rule = rule,
                         .drafter = { { n_vocab, random_bits(), 3, NULL }, { n_vocab, random_bits(), 3, NULL } },
                         .shape = shape,
                         .verifier = &true_verifier,
                         .end = -1,
                         .length = 3 };
    process(c, how);
}

#endif
