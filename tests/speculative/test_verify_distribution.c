/* The output distribution of verification against its theorem: every rule, on drafts of every shape, cut by every
 * policy, with distributions processed in every way, enumerated (row_distribution.h) to 1e-12. Policies that must bias
 * the output do. SPEC_COUPLED has no distribution of its own: test_verify.c checks it on all trees.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/row_distribution.h"

/* ---- spec_target ------------------------------------------------------------------------------------ */

/* The distribution of spec_target is the frequency of spec_sample's tokens, with the same support. */
static void target_is_what_sample_draws_from(void **state)
{
    (void)state;
    enum { N = 4000 };
    random_state = 1;
    for (int trial = 0; trial < 60; trial++) {
        struct model m = { 1 + random_below(12), random_bits(), 4, NULL };
        struct spec_sampler *s = open_sampler(m.n_vocab);
        struct spec_params p;
        struct kept k;
        int32_t text[4] = { 0, random_below(m.n_vocab), 0, 1 };
        float z[MOST_VOCAB];
        int count[MOST_VOCAB] = { 0 };
        uint32_t mask = (uint32_t)random_bits() | 1;
        spec_params_default(&p);
        p.temperature = trial % 10 ? 0.3f + (float)random_unit() : 0;
        p.top_k = trial & 1 ? 1 + random_below(m.n_vocab) : 0;
        p.top_p = trial & 2 ? (float)random_unit() : 1;
        p.min_p = trial & 4 ? 0.2f * (float)random_unit() : 0;
        p.repetition = trial & 8 ? 1.5f : 1;
        p.mask = trial & 16 ? &mask : NULL;
        model_logits(&m, text, 4, z);
        model_dist(s, &m, &p, text, 4, &k);

        for (int64_t position = 0; position < N; position++) {
            struct spec_sampled c;
            assert_int_equal(spec_sample(s, &p, z, text, 4, position, &c), 0);
            count[c.token]++;
        }
        double sum = 0;
        for (int32_t t = 0; t < m.n_vocab; t++) {
            double prob = spec_dist_prob(&k.d, t), want = prob * N;
            assert_true(fabs(count[t] - want) <= 5 * sqrt(want * (1 - prob)) + 1e-3);
            sum += prob;
        }
        assert_true(fabs(sum - 1) < 1e-14);
        assert_true(spec_dist_prob(&k.d, -1) == 0 && spec_dist_prob(&k.d, m.n_vocab) == 0);
        assert_int_equal(spec_dist_token(&k.d, 0),
                         k.d.token && k.d.weight[0] > 0 ? k.d.token[0] : spec_dist_token(&k.d, 0));
        spec_sampler_close(s);
    }
}

/* Weights of 0 are never drawn, at either end. */
static void dist_lays_end_to_end(void **state)
{
    (void)state;
    static const int32_t id[5] = { 1, 4, 6, 7, 30 };
    static const float weight[5] = { 0, 1, 0, 3, 0 };
    const struct spec_dist d = { 5, id, weight, 4 };
    assert_int_equal(spec_dist_token(&d, 0), 4);
    assert_int_equal(spec_dist_token(&d, 0.25 - 0x1p-54), 4);
    assert_int_equal(spec_dist_token(&d, 0.25), 7);
    assert_int_equal(spec_dist_token(&d, 1 - 0x1p-53), 7);
    assert_true(spec_dist_prob(&d, 7) == 0.75 && spec_dist_prob(&d, 5) == 0 && spec_dist_prob(&d, 30) == 0);
}

/* ---- shapes ------------------------------------------------------------------------------------------- */

static const struct shape shapes[] = {
    { "one", 1, { { -1, 'q' } } },
    { "chain of 2", 2, { { -1, 'q' }, { 0, 'q' } } },
    { "chain of 3", 3, { { -1, 'q' }, { 0, 'q' }, { 1, 'q' } } },
    { "chain of 4", 4, { { -1, 'q' }, { 0, 'q' }, { 1, 'q' }, { 2, 'q' } } },
    { "two", 2, { { -1, 'q' }, { -1, 'q' } } },
    { "three", 3, { { -1, 'q' }, { -1, 'q' }, { -1, 'q' } } },
    { "four", 4, { { -1, 'q' }, { -1, 'q' }, { -1, 'q' }, { -1, 'q' } } },
    { "two, one below the first", 3, { { -1, 'q' }, { -1, 'q' }, { 0, 'q' } } },
    { "two, one below the second", 3, { { -1, 'q' }, { -1, 'q' }, { 1, 'q' } } },
    { "two below one", 3, { { -1, 'q' }, { 0, 'q' }, { 0, 'q' } } },
    { "two, one below each", 4, { { -1, 'q' }, { -1, 'q' }, { 0, 'q' }, { 1, 'q' } } },
    { "two, two below the first", 4, { { -1, 'q' }, { -1, 'q' }, { 0, 'q' }, { 0, 'q' } } },
    /* from two drafters, each with a distribution of its own */
    { "one of each", 2, { { -1, 'q' }, { -1, 'r' } } },
    { "three of both", 3, { { -1, 'q' }, { -1, 'r' }, { -1, 'q' } } },
    { "chain of both", 3, { { -1, 'q' }, { 0, 'r' }, { 1, 'q' } } },
    { "chain, then one of the other", 3, { { -1, 'q' }, { 0, 'q' }, { -1, 'r' } } },
    { "two chains", 4, { { -1, 'q' }, { 0, 'q' }, { -1, 'r' }, { 2, 'r' } } },
    { "both below one", 3, { { -1, 'q' }, { 0, 'q' }, { 0, 'r' } } },
    /* some drawn, some added without a distribution */
    { "added, drawn", 2, { { -1, '0' }, { -1, 'q' } } },
    { "drawn, two added", 3, { { -1, 'q' }, { -1, '0' }, { -1, '1' } } },
    { "drawn, two added below", 3, { { -1, 'q' }, { 0, '0' }, { 0, '1' } } },
    { "added, drawn, drawn below it", 4, { { -1, '0' }, { -1, 'q' }, { 1, 'q' }, { 0, 'q' } } },
    { "added chain, drawn chain", 4, { { -1, '0' }, { 0, '1' }, { -1, 'q' }, { 2, 'q' } } },
    { "drawn chain, added chain", 4, { { -1, 'q' }, { 0, 'q' }, { -1, '0' }, { 2, '0' } } },
    { "all kinds", 4, { { -1, 'q' }, { -1, '0' }, { -1, 'r' }, { 2, 'r' } } },
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes, CHAIN_2 = 1, CHAIN_4 = 3, TWO = 4, THREE = 5 };

static bool is_drawn(const struct shape *s, int i) { return s->step[i].how >= 'a'; }

/* Properties of a shape that a policy may handle wrongly. */
enum {
    DRAWN = 1,   /* has a drawn node */
    BELOW = 2,   /* a drawn node below a drawn node */
    BESIDE = 4,  /* a drawn node after a sibling */
    MIXED = 8,   /* that was made another way */
    LATER = 16,  /* drawn at the root, and not first */
    BEHIND = 32, /* a drawn chain, and a last node that is not below it */
};

static bool is_behind(const struct shape *s)
{
    bool chain = s->n > 2 && s->step[s->n - 1].under != s->n - 2;
    for (int i = 0; i < s->n - 1; i++)
        chain &= is_drawn(s, i) && s->step[i].under == i - 1;
    return chain;
}

static int kind_of(const struct shape *s)
{
    int kind = DRAWN | (is_behind(s) ? BEHIND : 0);
    for (int i = 0; i < s->n; i++) {
        int under = s->step[i].under;
        if (!is_drawn(s, i))
            continue;
        kind |= under >= 0 && is_drawn(s, under) ? BELOW : 0;
        kind |= under < 0 && i > 0 ? LATER : 0;
        for (int j = 0; j < i; j++)
            if (s->step[j].under == under)
                kind |= BESIDE | (s->step[i].how != s->step[j].how ? MIXED : 0);
    }
    return kind;
}

/* ---- policies ------------------------------------------------------------------------------------------ */

#define SURE 0.4f            /* survival above which a path is taken; about half of the nodes */
enum { POOR = 1, ENDS = 0 }; /* tokens */

static float before_it(const struct draft *d, int node)
{
    int parent = d->tree.parent[node];
    return parent == SPEC_ROOT ? 1 : d->tree.survival[parent];
}

static double entropy(const struct spec_dist *q)
{
    double sum = 0;
    for (int i = 0; i < q->n; i++)
        if (q->weight[i] > 0)
            sum -= q->weight[i] / q->sum * kn_log(q->weight[i] / q->sum);
    return sum;
}

/* The entropy of q is below 0.85. Added tokens count as clear. */
static bool is_clear(const struct draft *d, int i) { return !is_drawn(d->shape, i) || entropy(&d->q[i].d) < 0.85; }

static int parent_of(const struct draft *d, int i)
{
    int under = d->shape->step[i].under;
    return under < 0 ? SPEC_ROOT : d->node[under];
}

/* The step that made the node (or its first sibling); -1: none. */
static int first_step(const struct draft *d, int node, bool any_sibling)
{
    for (int i = 0; i < d->shape->n; i++)
        if (d->node[i] != SPEC_END && (d->node[i] == node || (any_sibling && parent_of(d, i) == d->tree.parent[node])))
            return i;
    return -1;
}

/* Policies that decide a step before its token is known. */
static bool two_rows(const struct draft *d, int i)
{
    (void)i;
    return d->tree.n < 2;
}
static bool two_deep(const struct draft *d, int i)
{
    return parent_of(d, i) == SPEC_ROOT || d->tree.depth[parent_of(d, i)] < 2;
}
static bool clear_step(const struct draft *d, int i) { return is_clear(d, i); }
static bool likely_so_far(const struct draft *d, int i)
{
    return parent_of(d, i) == SPEC_ROOT || d->tree.survival[parent_of(d, i)] > SURE;
}
static bool text_goes_on(const struct draft *d, int i)
{
    return parent_of(d, i) == SPEC_ROOT || d->tree.token[parent_of(d, i)] != ENDS;
}
static bool goes_on_and_room(const struct draft *d, int i) { return text_goes_on(d, i) && two_rows(d, i); }
static bool last_after_good(const struct draft *d, int i)
{
    return i < d->shape->n - 1 || i == 0 || d->node[i - 1] == SPEC_END || d->token[i - 1] != POOR;
}

/* Levels of one node: only the likeliest of a level is extended. */
static bool below_the_likeliest(const struct draft *d, int i)
{
    int parent = parent_of(d, i);
    for (int k = 0; parent != SPEC_ROOT && k < d->tree.n; k++)
        if (d->tree.depth[k] == d->tree.depth[parent] && d->tree.survival[k] > d->tree.survival[parent])
            return false;
    return true;
}

/* Pruning of nodes that are known; `says` tells whether the policy reports that it looked. */
static bool one_deep(const struct draft *d, int node) { return d->tree.depth[node] < 2; }
static bool likely_before(const struct draft *d, int node) { return before_it(d, node) > SURE; }
static bool clear_siblings(const struct draft *d, int node) { return is_clear(d, first_step(d, node, true)); }
static bool clear_maker(const struct draft *d, int node) { return is_clear(d, first_step(d, node, false)); }
static bool one_row(const struct draft *d, int node)
{
    (void)d;
    return node < 1;
}
static bool likely(const struct draft *d, int node) { return d->tree.survival[node] > SURE; }
static bool not_poor(const struct draft *d, int node) { return d->tree.token[node] != POOR; }
static bool good_below(const struct draft *d, int node) { return spec_tree_child(&d->tree, node, POOR) < 0; }
static bool good_beside(const struct draft *d, int node)
{
    int i = first_step(d, node, false);
    for (int j = i + 1; j < d->shape->n; j++)
        if (d->shape->step[j].under == d->shape->step[i].under && d->node[j] >= 0 && d->token[j] == POOR)
            return false;
    return true;
}

/* faulty: a shape with one of these properties gets a biased output; 0: none does. Under SPEC_BLOCK more shapes are
 * biased, because the rule depends on which rows were requested. */
static const struct {
    struct policy is;
    int faulty, faulty_block;
} policies[] = {
    { { "all", NULL, NULL, false }, 0, 0 },
    { { "rows, as they are drawn", two_rows, NULL, false }, 0, 0 },
    { { "depth", two_deep, NULL, false }, 0, 0 },
    { { "entropy, before it is drawn", clear_step, NULL, false }, 0, 0 },
    { { "survival so far", likely_so_far, NULL, false }, 0, 0 },
    { { "until the text ends", text_goes_on, NULL, false }, 0, 0 },
    { { "until it ends, and then others", goes_on_and_room, NULL, false }, 0, 0 },
    { { "below the likeliest", below_the_likeliest, NULL, false }, 0, 0 },
    { { "the last, by the one before it", last_after_good, NULL, false }, 0, BEHIND },
    { { "depth, pruned", NULL, one_deep, false }, 0, 0 },
    { { "survival so far, pruned", NULL, likely_before, false }, 0, 0 },
    { { "entropy, pruned with its siblings", NULL, clear_siblings, false }, 0, 0 },
    { { "entropy, pruned", NULL, clear_maker, false }, MIXED, 0 },
    { { "rows, pruned", NULL, one_row, false }, LATER, 0 },
    { { "survival of the token itself", NULL, likely, false }, DRAWN, 0 },
    { { "the token itself", NULL, not_poor, false }, DRAWN, 0 },
    { { "its descendants", NULL, good_below, false }, BELOW, 0 },
    { { "tokens drawn after it", NULL, good_beside, false }, BESIDE, 0 },
    { { "the token itself, and says so", NULL, not_poor, true }, 0, 0 },
    { { "its descendants, and says so", NULL, good_below, true }, 0, 0 },
    { { "tokens drawn after it, and says so", NULL, good_beside, true }, 0, 0 },
};
enum { N_POLICY = sizeof policies / sizeof *policies };

/* ---- the exact distribution ------------------------------------------------------------------------------ */

#ifdef __SANITIZE_ADDRESS__ /* checks memory, not distributions */
enum { MOST_TABLE = 20, POLICY_STEP = 4 };
#else
enum { MOST_TABLE = 20, POLICY_STEP = 1 };
#endif

/* The largest vocabulary that a few milliseconds allow. */
static int vocab_of(const struct shape *s) { return s->n < 3 ? 4 : s->n < 4 ? 3 : 2 + (s != &shapes[CHAIN_4]); }

/* The largest error over all ways of processing, with a table each; a token is added after the other. */
static double worst_error(struct table *c, const struct shape *s, const struct policy *policy, enum spec_rule rule,
                          int32_t end)
{
    double worst = 0;
    for (int how = 0; how < N_PROCESS; how++) {
        open_table(c, s, vocab_of(s), how, rule);
        c->policy = policy;
        c->end = end;
        c->length = s == &shapes[CHAIN_4] ? 4 : 3;
        c->first_added = how % c->target.n_vocab;
        find_law(c);
        worst = fmax(worst, law_error(c));
        spec_sampler_close(c->s);
    }
    return worst;
}

/* Rules by shapes by policies: an allowed policy keeps the target's distribution, a faulty one changes some table's. */
static void law_is_the_targets(void **state)
{
    (void)state;
    static struct table c;
    random_state = 4;
    for (int k = 0; k < N_POLICY; k += POLICY_STEP)
        for (int i = 0; i < N_SHAPE; i++)
            for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++) {
                int faulty = policies[k].faulty | (rule == SPEC_BLOCK ? policies[k].faulty_block : 0);
                bool biased = faulty & kind_of(&shapes[i]);
                double error = 0;
                for (int n = biased ? MOST_TABLE : 1; n > 0 && error < 1e-3; n--)
                    error = fmax(error, worst_error(&c, &shapes[i], &policies[k].is, rule, -1));
                if (biased ? error < 1e-3 : !(error < 1e-12))
                    fail_msg("%s, %s, rule %d: off by %g", policies[k].is.name, shapes[i].name, (int)rule, error);
            }
}

/* A sequence that ends in the middle of a draft: the walk stops there, and later tokens come from another request. */
static void ends_do_not_matter(void **state)
{
    (void)state;
    static struct table c;
    random_state = 5;
    for (int i = 0; i < N_SHAPE; i++)
        for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++) {
            double error = worst_error(&c, &shapes[i], &policies[0].is, rule, ENDS);
            if (!(error < 1e-12))
                fail_msg("%s, rule %d: off by %g", shapes[i].name, (int)rule, error);
        }
}

/* On every chain the block rule accepts at least as many tokens as the ratio rule, and more on the whole. */
static void blocks_keep_more(void **state)
{
    (void)state;
    double more = 0;
    for (int trial = 0; trial < 40; trial++) {
        double kept[3];
        for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++) {
            static struct table c;
            random_state = (uint64_t)(60 + trial);
            open_table(&c, &shapes[CHAIN_2 + trial % 2], 3, trial / 2 % N_PROCESS, rule);
            find_law(&c);
            kept[rule] = c.kept;
            spec_sampler_close(c.s);
        }
        assert_true(kept[SPEC_BLOCK] > kept[SPEC_RATIO] - 1e-12);
        more += kept[SPEC_BLOCK] - kept[SPEC_RATIO];
    }
    assert_true(more > 0.2);
}

/* ---- known numbers ---------------------------------------------------------------------------------- */

/* p = (.5 .3 .2) and q = (.2 .3 .5): one draw is accepted with probability .7, one of two with .76, one of three with
 * .808. q's likeliest token as a point, without a draw, is accepted with p's own .2, however often.
 * p = (.5 .4 .1) and q = (.1 .2 .7): .4, and with a second draw, of which only token 2 is rejected, .58. */
static void draws_kept_golden(void **state)
{
    (void)state;
    static const double p[2][3] = { { .5, .3, .2 }, { .5, .4, .1 } }, q[2][3] = { { .2, .3, .5 }, { .1, .2, .7 } };
    static const struct {
        int shape, of, how;
        double kept;
    } golden[] = {
        { 0, 0, PLAIN, .7 },    { TWO, 0, PLAIN, .76 }, { THREE, 0, PLAIN, .808 }, { 0, 1, PLAIN, .4 },
        { TWO, 1, PLAIN, .58 }, { 0, 0, POINT, .2 },    { THREE, 0, POINT, .2 },
    };
    static struct table c;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        open_table(&c, &shapes[golden[i].shape], 3, golden[i].how, SPEC_RATIO);
        c.target.prob = p[golden[i].of];
        c.drafter[0].prob = q[golden[i].of];
        c.p.temperature = c.drafter_p[0].temperature = 1;
        find_law(&c);
        assert_true(fabs(c.kept - golden[i].kept) < 1e-6);
        assert_true(law_error(&c) < 1e-12);
        spec_sampler_close(c.s);
    }
}

/* The same p with added nodes: q's likeliest is accepted with probability .2, its two likeliest with .5; drafted
 * with the target's own noise, .6308. Five standard errors of 100,000 trials are .0079 at most. */
static void added_kept_golden(void **state)
{
    (void)state;
    enum { N = 100000 };
    const double p_prob[3] = { .5, .3, .2 }, q_prob[3] = { .2, .3, .5 };
    const struct model target = { 3, 0, 0, p_prob }, draft = { 3, 0, 0, q_prob };
    struct spec_sampler *s = open_sampler(3);
    struct spec_params p;
    float z[3], q[3];
    int kept[3] = { 0 };
    spec_params_default(&p);
    p.seed = 3;
    model_logits(&target, NULL, 0, z);
    model_logits(&draft, NULL, 0, q);
    for (int64_t position = 0; position < N; position++)
        for (int kind = 0; kind < 3; kind++) {
            struct spec_tree t;
            struct spec_sampled own;
            int32_t text[4];
            spec_tree_clear(&t);
            assert_int_equal(spec_sample(s, &p, q, NULL, 0, position, &own), 0);
            spec_tree_add(&t, SPEC_ROOT, kind < 2 ? 2 : own.token, 1, 1);
            if (kind == 1)
                spec_tree_add(&t, SPEC_ROOT, 1, 1, 1);
            struct spec_verify v = { .tree = &t,
                                     .rule = kind ? SPEC_RATIO : SPEC_COUPLED,
                                     .params = &p,
                                     .history = text,
                                     .position = position };
            spec_verify_start(&v);
            assert_int_equal(spec_verify_row(&v, s, z, NULL), 0);
            kept[kind] += v.n_path;
        }
    assert_in_range(kept[0], (int)(.1921 * N), (int)(.2079 * N));
    assert_in_range(kept[1], (int)(.4921 * N), (int)(.5079 * N));
    assert_in_range(kept[2], (int)(.6229 * N), (int)(.6387 * N));
    spec_sampler_close(s);
}

/* DSpark's counter-example: p = (.7 .3), q = (.5 .5), and a draft is dropped because of the drawn token. Without
 * depends_on_draws the output is (.85 .15); with it the draft is verified by SPEC_COUPLED, which is unaffected. */
static void peeking_must_be_said(void **state)
{
    (void)state;
    static const double p[2] = { .7, .3 }, q[2] = { .5, .5 };
    static struct table c;
    for (int says = 0; says < 2; says++)
        for (enum spec_rule rule = SPEC_COUPLED; rule <= SPEC_BLOCK; rule++) {
            const struct policy policy = { "dropped if poor", NULL, not_poor, says };
            double first = 0;
            open_table(&c, &shapes[0], 2, PLAIN, rule);
            c.target.prob = p;
            c.drafter[0].prob = q;
            c.p.temperature = c.drafter_p[0].temperature = 1;
            c.policy = &policy;
            find_law(&c);
            for (int i = 0; i < 4; i++) /* sequences that begin with token 0 */
                first += c.law[i];
            assert_true(fabs(first - (says || rule == SPEC_COUPLED ? .7 : .85)) < 1e-6);
            spec_sampler_close(c.s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(target_is_what_sample_draws_from),
        cmocka_unit_test(dist_lays_end_to_end),
        cmocka_unit_test(law_is_the_targets),
        cmocka_unit_test(ends_do_not_matter),
        cmocka_unit_test(blocks_keep_more),
        cmocka_unit_test(draws_kept_golden),
        cmocka_unit_test(added_kept_golden),
        cmocka_unit_test(peeking_must_be_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
