/* speculative/verify.c - walks a draft over the target's rows and finds the accepted tokens.
 *
 * In come a tree and, one at a time, the rows of logits of the nodes that are asked for; out go the accepted path and
 * one more token.  Only rows on the walk are processed.
 *
 * While draws are tried, a row's distribution is the target's weights until one draw is rejected, and then a residual
 * over the same support, in the sampler's scratch memory.  Support and q both ascend by id, so a residual is a pass
 * over each and one to clamp and sum: 152,000 tokens are 4 MB, less than the sampler's own passes read. */
#include "speculative/internal.h"

/* ---- the distribution of a row -------------------------------------------------------------------- */

struct row_dist {
    struct spec_dist p;
    double *mass; /* [p.n]; NULL: p's weights */
    double sum;
};

static int row_dist_get(struct row_dist *l, const struct spec_verify *v, struct spec_sampler *s,
                        const struct spec_params *p, const float *logits)
{
    int e = spec_target(s, p, logits, v->history, v->n_history + v->n_walked, v->position + v->n_walked, &l->p);
    l->mass = NULL;
    l->sum = l->p.sum;
    return e;
}

static double row_dist_prob(const struct row_dist *l, int32_t token)
{
    int i = spec_dist_find(&l->p, token);
    return i < 0 ? 0 : (l->mass ? l->mass[i] : l->p.weight[i]) / l->sum;
}

#define BLOCK 256 /* tokens in a partial sum; it has four chains of additions */

static double block_sum(const double *mass, int n)
{
    double sum[4] = { 0 };
    for (int i = 0; i < n; i++)
        sum[i & 3] += mass[i];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* Subtracts q from mass, which is over p's support. */
static void subtract_dist(double *mass, const struct spec_dist *p, const struct spec_dist *q)
{
    double scale = 1 / q->sum;
    if (!p->token && !q->token) { /* same result as the merge below, in a third of its time */
        for (int i = 0; i < kn_min(p->n, q->n); i++)
            mass[i] -= q->weight[i] * scale;
        return;
    }
    for (int i = 0, j = 0; j < q->n && i < p->n; j++) {
        int32_t token = spec_dist_id(q, j);
        while (i < p->n && spec_dist_id(p, i) < token)
            i++;
        if (i < p->n && spec_dist_id(p, i) == token)
            mass[i] -= q->weight[j] * scale;
    }
}

/* The distribution becomes the positive part of carry * distribution - q, or p again if this is 0 everywhere; returns
 * the sum of that part. */
static double row_dist_subtract(struct row_dist *l, struct spec_sampler *s, double carry, const struct spec_dist *q)
{
    double *mass = spec_sampler_scratch(s), scale = carry / l->sum, sum = 0;
    int n = l->p.n;
    for (int i = 0; i < n; i++)
        mass[i] = (l->mass ? l->mass[i] : l->p.weight[i]) * scale;
    subtract_dist(mass, &l->p, q);
    for (int i = 0; i < n; i++)
        mass[i] = mass[i] > 0 ? mass[i] : 0;
    for (int i = 0; i < n; i += BLOCK)
        sum += block_sum(mass + i, kn_min(BLOCK, n - i));
    l->mass = sum > 0 ? mass : NULL; /* nothing left: q equals the distribution */
    l->sum = sum > 0 ? sum : l->p.sum;
    return sum;
}

static int32_t row_dist_token(const struct row_dist *l, double u)
{
    if (!l->mass)
        return spec_dist_token(&l->p, u);
    double at = u * l->sum, sum = 0, here;
    int i = 0, end, taken;
    for (; here = block_sum(l->mass + i, kn_min(BLOCK, l->p.n - i)), sum + here <= at; i += BLOCK)
        sum += here;
    for (end = kn_min(i + BLOCK, l->p.n), taken = i; i < end && sum <= at; i++) {
        sum += l->mass[i];
        taken = l->mass[i] > 0 ? i : taken; /* the last one with mass: by rounding, `at` may exceed the final sum */
    }
    return spec_dist_id(&l->p, taken);
}

/* ---- the walk -------------------------------------------------------------------------------------- */

static double next_uniform(struct spec_verify *v)
{
    int n = v->n_dice++;
    const struct spec_params *p = v->params;
    return v->dice ? v->dice[n]
                   : spec_uniform(spec_stream(p->seed, p->choice, v->position, SPEC_FOR_VERIFY), (uint32_t)n);
}

/* The first draw of a child of the node, from draw n on; n_draw: none. */
static int next_draw(const struct spec_tree *t, int node, int n)
{
    while (n < t->n_draw && t->parent[t->draw[n].node] != node)
        n++;
    return n;
}

static void go_to(struct spec_verify *v, int child)
{
    v->history[v->n_history + v->n_walked] = v->tree->token[child];
    v->path[v->n_walked++] = (int16_t)child;
    v->node = child;
}

/* True: the tree is a chain, each node was drawn once, and no other call proposed a node.  A second proposal of the
 * same token leaves a chain, of another token it makes a branch: if such a chain had another rule than the branching
 * tree, the rule would depend on the drawn tokens. */
static bool is_drawn_chain(const struct spec_tree *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->parent[i] != i - 1 || i >= t->n_draw || t->draw[i].node != i)
            return false;
    return t->n_draw == t->n && t->n_requested == t->n;
}

void spec_verify_start(struct spec_verify *v)
{
    const struct spec_tree *t = v->tree;
    if (v->params->temperature == 0 || t->n_draw == 0 || t->depends_on_draws)
        v->rule = SPEC_COUPLED;
    else if (v->rule == SPEC_BLOCK && !is_drawn_chain(t))
        v->rule = SPEC_RATIO;
    v->node = SPEC_ROOT;
    v->n_path = v->n_out = v->n_dice = v->n_walked = 0;
    v->carry = 1;
}

/* ---- rules that settle a row at a time ------------------------------------------------------------- */

/* Tries the draws below v->node in order; if none is accepted, samples from the residual. */
static int try_draws(struct spec_verify *v, struct spec_sampler *s, const struct spec_params *p, const float *logits,
                     struct spec_sampled *out)
{
    const struct spec_tree *t = v->tree;
    struct row_dist l;
    int e = row_dist_get(&l, v, s, p, logits);
    if (e < 0)
        return e;
    int32_t token = -1;
    for (int n = next_draw(t, v->node, 0); n < t->n_draw && token < 0; n = next_draw(t, v->node, n + 1)) {
        const struct spec_dist *q = t->draw[n].q;
        int32_t x = t->token[t->draw[n].node];
        if (next_uniform(v) * spec_dist_prob(q, x) < row_dist_prob(&l, x))
            token = x;
        else
            row_dist_subtract(&l, s, 1, q);
    }
    out->token = token >= 0 ? token : row_dist_token(&l, next_uniform(v));
    out->logprob = spec_logprob(s, logits, out->token);
    return 0;
}

/* Settles the row's token and continues the walk in its child. */
static int settle_row(struct spec_verify *v, struct spec_sampler *s, const struct spec_params *p, const float *logits)
{
    struct spec_sampled *out = &v->out[v->n_out];
    bool drawn = v->rule == SPEC_RATIO && next_draw(v->tree, v->node, 0) < v->tree->n_draw;
    int e = drawn ? try_draws(v, s, p, logits, out)
                  : spec_sample(s, p, logits, v->history, v->n_history + v->n_walked, v->position + v->n_walked, out);
    if (e < 0) {
        v->node = SPEC_END;
        return e;
    }
    v->n_out++;
    int child = spec_tree_child(v->tree, v->node, out->token);
    v->node = SPEC_END;
    if (child >= 0) {
        go_to(v, child);
        v->n_path = v->n_walked;
    }
    return 0;
}

/* ---- block verification -----------------------------------------------------------------------------
 *
 * Sun et al., "Block verification accelerates speculative decoding".  p is the target's distribution, q the drafter's.
 * The walk goes down the whole chain; each node may move the end of the accepted tokens.  carry is the probability,
 * given the tokens drafted so far, that all of them are accepted: 1 at the root; with each drafted token x it becomes
 * min(1, carry * p(x) / q(x)).  At a node, S is the sum of max(0, carry * p - q) over the vocabulary.  With probability
 * S / (S + 1 - carry) the end moves to this node; at the last node, with probability carry.  The last move counts. */

/* Ends the walk: the accepted tokens are out, then the token sampled where they end. */
static void finish_block(struct spec_verify *v)
{
    v->out[v->n_path] = v->last;
    v->n_out = v->n_path + 1;
    v->node = SPEC_END;
}

/* Accepts all walked nodes with probability carry; called when no drafted token follows them.  True: accepted. */
static bool keep_all(struct spec_verify *v)
{
    if (!(next_uniform(v) < v->carry))
        return false;
    v->n_path = v->n_walked;
    return true;
}

static int walk_block(struct spec_verify *v, struct spec_sampler *s, const struct spec_params *p, const float *logits)
{
    const struct spec_tree *t = v->tree;
    int child = v->node + 1;
    if (child == t->n) { /* all accepted, else this row would not be asked for */
        int e = spec_sample(s, p, logits, v->history, v->n_history + v->n_walked, v->position + v->n_walked, &v->last);
        if (e == 0)
            finish_block(v);
        return e;
    }
    struct row_dist l;
    int e = row_dist_get(&l, v, s, p, logits);
    if (e < 0)
        return e;
    int32_t x = t->token[child];
    const struct spec_dist *q = t->draw[child].q;
    double want = v->carry * row_dist_prob(&l, x), have = spec_dist_prob(q, x);
    double left = row_dist_subtract(&l, s, v->carry, q), rest = left + 1 - v->carry;
    if (v->node == SPEC_ROOT || next_uniform(v) * rest < left) {
        v->n_path = v->n_walked;
        v->last.token = row_dist_token(&l, next_uniform(v));
        v->last.logprob = spec_logprob(s, logits, v->last.token);
    }
    v->carry = want < have ? want / have : 1;
    if (want > 0) {
        v->out[v->n_walked] = (struct spec_sampled){ .token = x, .logprob = spec_logprob(s, logits, x) };
        go_to(v, child);
    }
    if (want == 0 || (child + 1 == t->n && !keep_all(v)))
        finish_block(v);
    return 0;
}

int spec_verify_row(struct spec_verify *v, struct spec_sampler *s, const float *logits, const uint32_t *mask)
{
    kn_assert(v->node != SPEC_END);
    struct spec_params p = *v->params;
    p.mask = mask;
    if (v->rule != SPEC_BLOCK)
        return settle_row(v, s, &p, logits);
    int e = walk_block(v, s, &p, logits);
    if (e == 0)
        return 0;
    spec_verify_stop(v);
    return v->n_out > v->n_path ? 0 : e; /* no error if the accepted path ends above this row */
}

void spec_verify_stop(struct spec_verify *v)
{
    if (v->rule == SPEC_BLOCK) {
        bool last = v->node + 1 == v->tree->n;
        if (last || keep_all(v))
            v->n_out = v->n_path;
        else
            finish_block(v);
    }
    v->node = SPEC_END;
}
