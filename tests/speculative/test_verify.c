/* The output of verification, token by token: under SPEC_COUPLED the sequence without a draft, whatever is drafted,
 * fails or is cut, also for every small tree; and for every rule, the rows it requests, and edge cases.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/model.h"

enum { MOST_TEXT = 48, MASK_WORDS = (MOST_VOCAB + 31) / 32, END = 0 };

struct writer {
    struct spec_sampler *s;
    struct model m;
    struct spec_params p;
    bool masked, ends;  /* a mask at each token; token END ends the sequence */
    struct spec_dist q; /* the distribution reported for draws */
    float weight[MOST_VOCAB];
};

static const uint32_t *mask_after(const struct writer *w, const int32_t *text, int n, uint32_t *mask)
{
    uint64_t h = text_hash(99, text, n);
    for (int i = 0; i < MASK_WORDS; i++)
        mask[i] = (uint32_t)kn_mix(h + (uint64_t)i) | 2;
    return w->masked ? mask : NULL;
}

static int write_plain(struct writer *w, int32_t *text, int n, struct spec_sampled *out)
{
    while (n < MOST_TEXT) {
        float z[MOST_VOCAB];
        uint32_t mask[MASK_WORDS];
        struct spec_params p = w->p;
        p.mask = mask_after(w, text, n, mask);
        model_logits(&w->m, text, n, z);
        assert_int_equal(spec_sample(w->s, &p, z, text, n, n, &out[n]), 0);
        text[n] = out[n].token;
        if (text[n++] == END && w->ends)
            break;
    }
    return n;
}

/* Often the true continuation; else random tokens, or no draft. */
static void any_tree(const struct writer *w, const int32_t *to_come, int n, bool drawn, struct spec_tree *t)
{
    spec_tree_clear(t);
    if (n <= 0)
        return;
    for (int i = random_below(24); i > 0; i--) {
        int node = random_below(t->n + 1) - 1, depth = node < 0 ? 0 : t->depth[node];
        int32_t token = random_below(3) ? to_come[depth] : random_below(w->m.n_vocab + 2) - 1;
        if (depth >= n)
            continue;
        if (drawn && random_below(2) && token >= 0 && token < w->m.n_vocab)
            spec_tree_draw(t, node, token, &w->q, 1, 1);
        else
            spec_tree_add(t, node, token, 1, 1);
    }
}

/* Verifies one draft; returns the length of text after it. */
static int write_drafted(struct writer *w, const struct spec_tree *t, enum spec_rule rule, int32_t *text, int n,
                         struct spec_sampled *out)
{
    struct spec_verify v = { .tree = t, .rule = rule, .params = &w->p, .history = text, .n_history = n, .position = n };
    int n_row = 0;
    for (spec_verify_start(&v); v.node != SPEC_END;) {
        float z[MOST_VOCAB];
        uint32_t mask[MASK_WORDS];
        if (v.node != SPEC_ROOT && (random_below(20) == 0 || (w->ends && t->token[v.node] == END))) {
            spec_verify_stop(&v);
            continue;
        }
        assert_int_equal(v.n_out, n_row); /* no unnecessary row is requested */
        assert_int_equal(v.n_walked, n_row++);
        assert_int_equal(v.n_path, v.n_walked);
        assert_int_equal(v.node, v.n_walked ? v.path[v.n_walked - 1] : SPEC_ROOT);
        model_logits(&w->m, text, n + v.n_walked, z);
        assert_int_equal(spec_verify_row(&v, w->s, z, mask_after(w, text, n + v.n_walked, mask)), 0);
    }
    assert_int_equal(v.n_out, n_row);
    assert_in_range(v.n_path, v.n_out - 1, v.n_out);
    for (int i = 0; i < v.n_path; i++)
        assert_int_equal(t->token[v.path[i]], v.out[i].token);
    for (int i = 0; i < v.n_out; i++) {
        text[n + i] = v.out[i].token;
        out[n + i] = v.out[i];
    }
    return n + v.n_out;
}

static void random_writer(struct writer *w, struct spec_bias *bias)
{
    w->m = (struct model){ 2 + random_below(MOST_VOCAB - 1), random_bits(), 2 + 8 * random_unit(), NULL };
    w->s = open_sampler(w->m.n_vocab);
    w->masked = random_below(2);
    w->ends = random_below(2);
    for (int i = 0; i < w->m.n_vocab; i++)
        w->weight[i] = 1;
    w->q = (struct spec_dist){ w->m.n_vocab, NULL, w->weight, w->m.n_vocab };
    spec_params_default(&w->p);
    w->p.seed = random_bits();
    w->p.temperature = random_below(4) ? 0.5f + (float)random_unit() : 0;
    w->p.top_k = random_below(2) ? 1 + random_below(10) : 0;
    w->p.top_p = random_below(2) ? 0.5f + 0.5f * (float)random_unit() : 1;
    w->p.min_p = random_below(3) ? 0 : 0.1f;
    w->p.repetition = random_below(2) ? 1.3f : 1;
    w->p.frequency = random_below(2) ? 0.4f : 0;
    w->p.repeat_last = random_below(12) - 1;
    *bias = (struct spec_bias){ random_below(w->m.n_vocab), 1.5f };
    w->p.bias = bias;
    w->p.n_bias = random_below(2);
}

/* Every rule where it has the effect of SPEC_COUPLED: no draws, temperature 0, or depends_on_draws set. */
static void same_text_as_without_a_draft(void **state)
{
    (void)state;
    int n_kept = 0;
    random_state = 21;
    for (int trial = 0; trial < 1500; trial++) {
        struct writer w;
        struct spec_bias bias;
        int32_t text[MOST_TEXT + SPEC_NODES] = { 1, 1 }, drafted[MOST_TEXT + SPEC_NODES] = { 1, 1 };
        struct spec_sampled out[MOST_TEXT], drafted_out[MOST_TEXT];
        enum spec_rule rule = (enum spec_rule)random_below(3);
        bool drawn = random_below(2);
        random_writer(&w, &bias);
        int n = write_plain(&w, text, 2, out), at = 2, n_round = 0;
        for (; at < n; n_round++) {
            struct spec_tree t;
            any_tree(&w, text + at, n - at - 1, drawn, &t);
            t.depends_on_draws = drawn && rule != SPEC_COUPLED && w.p.temperature > 0;
            at = write_drafted(&w, &t, rule, drafted, at, drafted_out);
        }
        assert_int_equal(at, n);
        assert_memory_equal(text, drafted, (size_t)n * sizeof *text);
        assert_memory_equal(out + 2, drafted_out + 2, (size_t)(n - 2) * sizeof *out);
        n_kept += n - 2 - n_round;
        spec_sampler_close(w.s);
    }
    assert_true(n_kept > 10000); /* many drafted tokens were accepted */
}

/* ---- every small tree ----------------------------------------------------------------------------------- */

/* SPEC_COUPLED has no distribution to enumerate: for each noise its output is the one without a draft, for every
 * tree, and so for every draft, cut and policy. Checked here for all trees over few tokens, for each way of making
 * their nodes, and at temperature 0 for all tables that differ in which token is largest. */
enum { MOST_DEPTH = 3, ADD_ALL = 0, DRAW_ALL = 1, DRAW_SOME = 2, N_MADE = 3 };

struct grove {
    int n_vocab, depth, made;
    bool backwards;
    const struct spec_dist *q;
};

/* Number of trees of at most this depth: each token follows or not, and has any shallower tree below it. */
static int n_trees(int n_vocab, int depth)
{
    int n = 1;
    for (int below = depth > 0 ? 1 + n_trees(n_vocab, depth - 1) : 1, i = 0; depth > 0 && i < n_vocab; i++)
        n *= below;
    return n;
}

static void plant(const struct grove *g, int number, int parent, int depth, struct spec_tree *t)
{
    int below = depth < g->depth ? 1 + n_trees(g->n_vocab, g->depth - depth - 1) : 1;
    for (int i = 0; i < g->n_vocab && below > 1; i++, number /= below) {
        int32_t token = g->backwards ? g->n_vocab - 1 - i : i;
        if (number % below == 0)
            continue;
        bool draws = g->made == DRAW_ALL || (g->made == DRAW_SOME && t->n % 2);
        int node = draws ? spec_tree_draw(t, parent, token, g->q, 1, 1) : spec_tree_add(t, parent, token, 1, 1);
        plant(g, number % below - 1, node, depth + 1, t);
    }
}

/* For table >= 0 each base-3 digit tells, for one sequence of tokens 0 and 1, which is larger, or neither. */
static void small_logits(const struct writer *w, int table, const int32_t *text, int n, float *z)
{
    int at = 0;
    if (table < 0) {
        model_logits(&w->m, text, n, z);
        return;
    }
    for (int i = 0; i < n; i++)
        at = 2 * at + 1 + text[i];
    while (at-- > 0)
        table /= 3;
    z[0] = table % 3 == 1;
    z[1] = table % 3 == 2;
}

static void choose_plain(struct writer *w, int table, int n, struct spec_sampled *out)
{
    int32_t text[MOST_DEPTH + 1];
    for (int i = 0; i < n; i++) {
        float z[MOST_VOCAB];
        small_logits(w, table, text, i, z);
        assert_int_equal(spec_sample(w->s, &w->p, z, text, i, i, &out[i]), 0);
        assert_true(table < 0 || out[i].token == (z[1] > z[0]));
        text[i] = out[i].token;
    }
}

static void check_tree(struct writer *w, int table, const struct spec_tree *t, enum spec_rule rule,
                       const struct spec_sampled *plain)
{
    int32_t text[MOST_DEPTH + 1];
    struct spec_verify v = { .tree = t, .rule = rule, .params = &w->p, .history = text };
    int n = 0;
    for (int i = 0, node = SPEC_ROOT; i < t->n; i++)
        if (t->parent[i] == node && t->token[i] == plain[n].token) {
            node = i;
            n++;
        }
    for (spec_verify_start(&v); v.node != SPEC_END;) {
        float z[MOST_VOCAB];
        small_logits(w, table, text, v.n_walked, z);
        assert_int_equal(spec_verify_row(&v, w->s, z, NULL), 0);
    }
    assert_int_equal(v.n_path, n);
    assert_int_equal(v.n_out, n + 1);
    assert_memory_equal(v.out, plain, (size_t)(n + 1) * sizeof *plain);
}

/* All trees, by all rules that have the effect of SPEC_COUPLED for them. */
static void check_grove(struct writer *w, int table, int depth)
{
    struct spec_sampled plain[MOST_DEPTH + 1];
    choose_plain(w, table, depth + 1, plain);
    for (int way = 0; way < 2 * N_MADE; way++) {
        struct grove g = { w->m.n_vocab, depth, way / 2, way % 2, &w->q };
        for (int number = n_trees(g.n_vocab, depth); number-- > 0;) {
            struct spec_tree t;
            spec_tree_clear(&t);
            plant(&g, number, SPEC_ROOT, 0, &t);
            check_tree(w, table, &t, SPEC_COUPLED, plain);
            for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++) {
                t.depends_on_draws = g.made != ADD_ALL && w->p.temperature > 0;
                check_tree(w, table, &t, rule, plain);
            }
        }
    }
}

static void few_tokens(struct writer *w, int n_vocab)
{
    spec_sampler_close(w->s);
    w->s = open_sampler(n_vocab);
    w->m.n_vocab = w->q.n = n_vocab;
    w->q.sum = n_vocab;
    for (int i = 0; i < n_vocab; i++)
        w->weight[i] = 1;
    w->p.n_bias = 0;
}

static void any_small_tree_changes_nothing(void **state)
{
    (void)state;
    random_state = 23;
    assert_int_equal(n_trees(2, 3), 676);
    assert_int_equal(n_trees(3, 2), 729);
    for (int trial = 0; trial < 24; trial++) {
        struct writer w;
        struct spec_bias bias;
        random_writer(&w, &bias);
        few_tokens(&w, 2 + trial % 2);
        check_grove(&w, -1, trial % 2 ? 2 : 3);
        spec_sampler_close(w.s);
    }
}

static void greedy_takes_the_first_largest(void **state)
{
    (void)state;
    enum { TABLES = 2187 }; /* 3 for each of the sequences of 0 to 2 tokens */
    struct writer w;
    struct spec_bias bias;
    random_writer(&w, &bias);
    spec_params_default(&w.p);
    w.p.temperature = 0;
    few_tokens(&w, 2);
    for (int table = 0; table < TABLES; table++)
        check_grove(&w, table, 2);
    spec_sampler_close(w.s);
}

/* ---- which rule applies ------------------------------------------------------------------------------ */

static enum spec_rule rule_of(const struct spec_tree *t, enum spec_rule rule, float temperature)
{
    struct spec_params p;
    int32_t text[4];
    spec_params_default(&p);
    p.temperature = temperature;
    struct spec_verify v = { .tree = t, .rule = rule, .params = &p, .history = text };
    spec_verify_start(&v);
    return v.rule;
}

static void rule_fits_the_draft(void **state)
{
    (void)state;
    const float weight[2] = { 1, 1 };
    const struct spec_dist q = { 2, NULL, weight, 2 };
    struct spec_tree chain, tree, added, mixed;
    spec_tree_clear(&chain);
    spec_tree_draw(&chain, spec_tree_draw(&chain, SPEC_ROOT, 0, &q, 1, 1), 1, &q, 1, 1);
    tree = mixed = chain;
    spec_tree_draw(&tree, SPEC_ROOT, 0, &q, 1, 1); /* the same token twice: not a chain */
    spec_tree_add(&mixed, 1, 0, 1, 1);
    spec_tree_clear(&added);
    spec_tree_add(&added, SPEC_ROOT, 0, 1, 1);

    assert_int_equal(rule_of(&chain, SPEC_COUPLED, 1), SPEC_COUPLED);
    assert_int_equal(rule_of(&chain, SPEC_RATIO, 1), SPEC_RATIO);
    assert_int_equal(rule_of(&chain, SPEC_BLOCK, 1), SPEC_BLOCK);
    assert_int_equal(rule_of(&tree, SPEC_BLOCK, 1), SPEC_RATIO);
    assert_int_equal(rule_of(&mixed, SPEC_BLOCK, 1), SPEC_RATIO);
    spec_tree_clear(&mixed); /* a chain, drawn in another order */
    spec_tree_add(&mixed, spec_tree_add(&mixed, SPEC_ROOT, 0, 1, 1), 1, 1, 1);
    spec_tree_draw(&mixed, 0, 1, &q, 1, 1);
    spec_tree_draw(&mixed, SPEC_ROOT, 0, &q, 1, 1);
    assert_int_equal(rule_of(&mixed, SPEC_BLOCK, 1), SPEC_RATIO);
    for (int first = 0; first < 2; first++) { /* not a chain: two drafters proposed the same */
        spec_tree_clear(&mixed);
        for (int way = 0; way < 2; way++)
            if (way == first)
                spec_tree_draw(&mixed, spec_tree_draw(&mixed, SPEC_ROOT, 0, &q, 1, 1), 1, &q, 1, 1);
            else
                spec_tree_add(&mixed, spec_tree_add(&mixed, SPEC_ROOT, 0, 1, 2), 1, 1, 2);
        assert_int_equal(mixed.n, 2);
        assert_int_equal(rule_of(&mixed, SPEC_BLOCK, 1), SPEC_RATIO);
    }
    mixed = chain; /* cut by depth: still a chain */
    spec_tree_prune(&mixed, (bool[]){ true, false }, true);
    assert_int_equal(mixed.n, 1);
    assert_int_equal(rule_of(&mixed, SPEC_BLOCK, 1), SPEC_BLOCK);
    assert_int_equal(rule_of(&added, SPEC_BLOCK, 1), SPEC_COUPLED);
    assert_int_equal(rule_of(&added, SPEC_RATIO, 1), SPEC_COUPLED);
    assert_int_equal(rule_of(&chain, SPEC_BLOCK, 0), SPEC_COUPLED);
    chain.depends_on_draws = true;
    assert_int_equal(rule_of(&chain, SPEC_RATIO, 1), SPEC_COUPLED);
    assert_int_equal(rule_of(&chain, SPEC_BLOCK, 1), SPEC_COUPLED);
}

/* ---- edges ------------------------------------------------------------------------------------------- */

struct edge {
    struct spec_sampler *s;
    struct spec_params p;
    struct spec_tree t;
    struct spec_dist q;
    float weight[8];
    int32_t text[SPEC_NODES];
};

static void open_edge(struct edge *e, int n_vocab, int n_q)
{
    e->s = open_sampler(n_vocab);
    spec_params_default(&e->p);
    spec_tree_clear(&e->t);
    for (int i = 0; i < n_q; i++)
        e->weight[i] = 1;
    e->q = (struct spec_dist){ n_q, NULL, e->weight, n_q };
}

static struct spec_verify start(struct edge *e, enum spec_rule rule, const double *dice)
{
    struct spec_verify v = { .tree = &e->t, .rule = rule, .params = &e->p, .history = e->text, .dice = dice };
    spec_verify_start(&v);
    assert_int_equal(v.rule, rule);
    return v;
}

/* q equals p except for the last bit, and the die falls between: the residual is empty, and p is used to verify the
 * next draw (here it fails) and to sample. */
static void nothing_left_is_p(void **state)
{
    (void)state;
    static const double dice[] = { 1 - 0x1p-53, 0.9, 0.6, 0.6 };
    static const float one[1] = { 1 };
    const struct spec_dist point = { 1, NULL, one, 1 };
    const float z[2] = { 0, 0 };
    for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++) {
        struct edge e;
        open_edge(&e, 2, 2);
        e.q.sum = 2 - 0x1p-52 * 2;
        spec_tree_draw(&e.t, SPEC_ROOT, 0, &e.q, 1, 1);
        if (rule == SPEC_RATIO)
            spec_tree_draw(&e.t, SPEC_ROOT, 0, &point, 1, 1);
        struct spec_verify v = start(&e, rule, dice);
        assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
        if (rule == SPEC_RATIO) {
            assert_int_equal(v.n_dice, 3);
            assert_int_equal(v.n_out, 1);
            assert_int_equal(v.out[0].token, 1);
        }
        spec_sampler_close(e.s);
    }
}

/* Disjoint supports: the draft is always rejected, and the next token is the target's. A drafter may have more tokens
 * than the model. */
static void disjoint_supports(void **state)
{
    (void)state;
    static const double dice[] = { 0, 0.99, 0.99, 0.99, 0.99, 0.99, 0.99 };
    const float z[3] = { -INFINITY, 1, -INFINITY };
    for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++)
        for (int32_t token = 0; token < 8; token += 7) {
            struct edge e;
            open_edge(&e, 3, 8);
            e.weight[1] = 0;
            e.q.sum = 7;
            int node = spec_tree_draw(&e.t, SPEC_ROOT, token, &e.q, 1, 1);
            spec_tree_draw(&e.t, node, 1, &e.q, 1, 1);
            struct spec_verify v = start(&e, rule, dice);
            assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
            assert_int_equal(v.node, SPEC_END);
            assert_int_equal(v.n_path, 0);
            assert_int_equal(v.n_out, 1);
            assert_int_equal(v.out[0].token, 1);
            assert_true(v.out[0].logprob == 0);
            spec_sampler_close(e.s);
        }
}

/* A die of 0 takes no token of probability 0. */
static void least_die(void **state)
{
    (void)state;
    static const double dice[][2] = { [SPEC_RATIO] = { 0.9, 0 }, [SPEC_BLOCK] = { 0, 0.9 } };
    const float z[3] = { (float)kn_log(.2), (float)kn_log(.2), (float)kn_log(.6) };
    for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++) {
        struct edge e;
        open_edge(&e, 3, 2); /* p - q is positive for token 2 alone */
        spec_tree_draw(&e.t, SPEC_ROOT, 0, &e.q, 1, 1);
        struct spec_verify v = start(&e, rule, dice[rule]);
        assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
        assert_int_equal(v.n_out, 1);
        assert_int_equal(v.out[0].token, 2);
        spec_sampler_close(e.s);
    }
}

/* A residual over many blocks, cut or whole, against its definition: the token for each value of the die. */
static void residual_of_a_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 1500 };
    static float z[N], q_z[N], weight[N];
    static int32_t id[N];
    struct spec_sampler *s = open_sampler(N);
    random_state = 22;
    for (int trial = 0; trial < 60; trial++) {
        struct edge e;
        struct spec_dist p, q;
        double mass[N], sum = 0, at = 0, dice[2] = { 1 - 0x1p-53, trial % 5 ? random_unit() : 1 - 0x1p-53 };
        int worst = 0, want = 0;
        spec_params_default(&e.p);
        e.s = s;
        e.p.top_k = trial % 3 ? 0 : 700;
        for (int i = 0; i < N; i++) {
            z[i] = (float)random_unit() * 3;
            q_z[i] = trial % 4 ? (float)random_unit() * 3 : z[i] + (i < 900 ? 1.0f : 0.0f);
        }
        assert_int_equal(spec_target(s, &e.p, q_z, NULL, 0, 0, &q), 0);
        for (int i = 0; i < q.n; i++) {
            weight[i] = q.weight[i];
            id[i] = q.token ? q.token[i] : i;
        }
        q.weight = weight;
        q.token = q.token ? id : NULL;
        e.p.top_k = trial % 2 ? 0 : 900;
        assert_int_equal(spec_target(s, &e.p, z, NULL, 0, 0, &p), 0);
        for (int i = 0; i < N; i++) {
            mass[i] = fmax(0, spec_dist_prob(&p, i) - spec_dist_prob(&q, i));
            sum += mass[i];
            if (spec_dist_prob(&q, i) - spec_dist_prob(&p, i) > spec_dist_prob(&q, worst) - spec_dist_prob(&p, worst))
                worst = i;
        }
        while (want < N - 1 && (at += mass[want]) <= dice[1] * sum)
            want++;
        while (mass[want] == 0) /* the last token, at the largest die */
            want--;
        spec_tree_clear(&e.t);
        spec_tree_draw(&e.t, SPEC_ROOT, worst, &q, 1, 1);
        struct spec_verify v = start(&e, SPEC_RATIO, dice);
        assert_int_equal(spec_verify_row(&v, s, z, NULL), 0);
        assert_int_equal(v.n_dice, 2);
        assert_int_equal(v.out[0].token, want);
    }
    spec_sampler_close(s);
}

/* At a node without draws below drawn nodes, the token is the one that spec_sample samples. */
static void nothing_drawn_is_the_rows_own_choice(void **state)
{
    (void)state;
    static const double kept[] = { 0, 0, 0, 0 };
    const float z[4] = { 0, .1f, .2f, .3f };
    for (enum spec_rule rule = SPEC_RATIO; rule <= SPEC_BLOCK; rule++)
        for (int64_t position = 0; position < 30; position++) {
            struct edge e;
            struct spec_sampled own;
            open_edge(&e, 4, 4);
            int node = spec_tree_draw(&e.t, SPEC_ROOT, 2, &e.q, 1, 1);
            if (rule == SPEC_RATIO)
                spec_tree_add(&e.t, node, 3, 1, 1);
            struct spec_verify v = start(&e, rule, kept);
            v.position = position;
            assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
            assert_int_equal(v.node, node);
            assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
            assert_int_equal(spec_sample(e.s, &e.p, z, e.text, 1, position + 1, &own), 0);
            assert_memory_equal(&v.out[1], &own, sizeof own);
            assert_int_equal(v.n_path, 1 + (rule == SPEC_RATIO && own.token == 3));
            spec_sampler_close(e.s);
        }
}

/* Stopped before a row: nodes accepted so far stay accepted, and no token follows; a block is decided there. */
static void stops_before_a_row(void **state)
{
    (void)state;
    static const struct {
        enum spec_rule rule;
        double dice[6];
        int n_row, n_path, n_out;
    } how[] = {
        { SPEC_RATIO, { 0, 0, 0 }, 0, 0, 0 },         { SPEC_RATIO, { 0, 0, 0 }, 1, 1, 1 },
        { SPEC_RATIO, { 0, 0, 0 }, 2, 2, 2 },         { SPEC_BLOCK, { 0, 0, 0 }, 0, 0, 0 },
        { SPEC_BLOCK, { 0.9, 0.0, 0 }, 1, 1, 1 },     /* 1 accepted if a row follows */
        { SPEC_BLOCK, { 0.9, 0.999, 0 }, 1, 0, 1 },   /* none accepted; the residual token follows */
        { SPEC_BLOCK, { 0.9, 0.999, 0.0 }, 2, 2, 2 }, /* not one, but two */
    };
    /* p(0) = 0.4, q(0) = 0.5: a draft is accepted with probability .8 */
    const float z[2] = { (float)kn_log(.4), (float)kn_log(.6) };
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct edge e;
        open_edge(&e, 2, 2);
        int node = SPEC_ROOT;
        for (int n = 0; n < 3; n++)
            node = spec_tree_draw(&e.t, node, 0, &e.q, 1, 1);
        struct spec_verify v = start(&e, how[i].rule, how[i].dice);
        for (int n = 0; n < how[i].n_row; n++)
            assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
        assert_int_not_equal(v.node, SPEC_END);
        spec_verify_stop(&v);
        assert_int_equal(v.node, SPEC_END);
        assert_int_equal(v.n_path, how[i].n_path);
        assert_int_equal(v.n_out, how[i].n_out);
        for (int n = 0; n < v.n_out; n++) {
            assert_int_equal(v.out[n].token, n >= v.n_path);
            assert_true(fabs(v.out[n].logprob - kn_log(v.out[n].token ? .6 : .4)) < 1e-6);
        }
        spec_sampler_close(e.s);
    }
}

/* A row with a mask that allows no token fails alone: nodes accepted before it stay accepted. */
static void row_without_a_token(void **state)
{
    (void)state;
    static const double kept[] = { 0.9, 0, 0, 0, 0 }, ended[] = { 0.9, 0.999, 0.999, 0.999 };
    const float z[2] = { (float)kn_log(.4), (float)kn_log(.6) };
    const uint32_t none = 0;
    kn_log_set(unheard, KN_LOG_ERROR);
    for (enum spec_rule rule = SPEC_COUPLED; rule <= SPEC_BLOCK; rule++)
        for (int first = 0; first < 2; first++) {
            struct edge e;
            open_edge(&e, 2, 2);
            int node = spec_tree_draw(&e.t, SPEC_ROOT, 0, &e.q, 1, 1);
            spec_tree_draw(&e.t, node, 0, &e.q, 1, 1);
            while (rule == SPEC_COUPLED && !first) { /* a seed that samples token 0 */
                struct spec_sampled c;
                assert_int_equal(spec_sample(e.s, &e.p, z, NULL, 0, 0, &c), 0);
                if (c.token == 0)
                    break;
                e.p.seed++;
            }
            struct spec_verify v = start(&e, rule, rule == SPEC_BLOCK ? kept : NULL);
            v.dice = rule == SPEC_RATIO ? &kept[1] : v.dice;
            if (!first)
                assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
            assert_int_equal(spec_verify_row(&v, e.s, z, &none), KN_EINVAL);
            assert_int_equal(v.node, SPEC_END);
            assert_int_equal(v.n_path, first ? 0 : 1);
            assert_int_equal(v.n_out, v.n_path);
            if (rule == SPEC_BLOCK && !first) { /* a block that ends before it is unaffected */
                v = start(&e, rule, ended);
                assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
                assert_int_equal(spec_verify_row(&v, e.s, z, &none), 0);
                assert_int_equal(v.n_out, 1);
            }
            spec_sampler_close(e.s);
        }
    kn_log_set(NULL, KN_LOG_INFO);
}

/* A right draft of the largest length. */
static void longest_chain(void **state)
{
    (void)state;
    const float z[2] = { 5, -INFINITY };
    const float weight[1] = { 1 };
    const struct spec_dist q = { 1, NULL, weight, 1 };
    for (enum spec_rule rule = SPEC_COUPLED; rule <= SPEC_BLOCK; rule++) {
        struct edge e;
        int node = SPEC_ROOT, n_row = 0;
        open_edge(&e, 2, 2);
        for (int i = 0; i < SPEC_NODES; i++)
            node = spec_tree_draw(&e.t, node, 0, &q, 1, 1);
        assert_int_equal(node, SPEC_NODES - 1);
        assert_false(e.t.depends_on_draws);
        struct spec_verify v = start(&e, rule, NULL);
        kn_alloc_forbid(true);
        for (; v.node != SPEC_END; n_row++)
            assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
        kn_alloc_forbid(false);
        assert_int_equal(n_row, SPEC_NODES + 1);
        assert_int_equal(v.n_path, SPEC_NODES);
        assert_int_equal(v.n_out, SPEC_NODES + 1);
        spec_sampler_close(e.s);
    }
}

/* The same seed, position and draft give the same tokens; another position has other dice. */
static void dice_are_of_the_place(void **state)
{
    (void)state;
    const float z[4] = { 0, .1f, .2f, .3f };
    struct edge e;
    int n_differ = 0;
    open_edge(&e, 4, 4);
    for (int32_t i = 0; i < 3; i++)
        spec_tree_draw(&e.t, SPEC_ROOT, i, &e.q, 1, 1);
    for (int64_t position = 0; position < 100; position++) {
        int32_t token[3];
        for (int again = 0; again < 3; again++) {
            struct spec_verify v = {
                .tree = &e.t, .rule = SPEC_RATIO, .params = &e.p, .history = e.text, .position = position + (again == 2)
            };
            spec_verify_start(&v);
            assert_int_equal(spec_verify_row(&v, e.s, z, NULL), 0);
            token[again] = v.out[0].token;
        }
        assert_int_equal(token[0], token[1]);
        n_differ += token[0] != token[2];
        assert_true(spec_draft_uniform(&e.p, position, 0) != spec_draft_uniform(&e.p, position, 1));
        assert_true(spec_draft_uniform(&e.p, position, 0) != spec_draft_uniform(&e.p, position + 1, 0));
    }
    assert_in_range(n_differ, 20, 99);
    spec_sampler_close(e.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_as_without_a_draft),
        cmocka_unit_test(any_small_tree_changes_nothing),
        cmocka_unit_test(greedy_takes_the_first_largest),
        cmocka_unit_test(rule_fits_the_draft),
        cmocka_unit_test(nothing_left_is_p),
        cmocka_unit_test(disjoint_supports),
        cmocka_unit_test(least_die),
        cmocka_unit_test(residual_of_a_large_vocabulary),
        cmocka_unit_test(nothing_drawn_is_the_rows_own_choice),
        cmocka_unit_test(stops_before_a_row),
        cmocka_unit_test(row_without_a_token),
        cmocka_unit_test(longest_chain),
        cmocka_unit_test(dice_are_of_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
