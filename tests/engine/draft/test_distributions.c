/* Sampled drafts under --verify ratio and block. The accepted tokens have exactly the model's distribution, for each
 * drafter that samples; a drafter that reports another distribution than it sampled from is detected; block
 * verification applies only to drafts of a single drafter; greedy answers stay the same.
 *
 * The exact distribution of the first WORDS tokens with TOP candidates each is computed from the model's logprobs after
 * each prefix; the counts of many answers are compared with it (G-test).
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/draft/internal.h"
#include "engine/internal.h"

#define MODEL "evals/train/models/demo-target-q8_0.gguf"
#define DRAFT "model:evals/train/models/demo-draft-q8_0.gguf"
#define HEAD  "eagle:evals/train/models/demo-eagle-f16.gguf"

enum { TOP = 3, WORDS = 4, LAWS = 81, CROWD = 24 };

static const char question[] = "<|im_start|>user\nA box has 12 pens. How many pens are in 5 boxes?<|im_end|>\n"
                               "<|im_start|>assistant\nThere are";
static struct eng_ids prompt;
static struct eng_event event[1024];
static double law[LAWS];
static int32_t word[LAWS][TOP]; /* candidates after each prefix */

static struct eng_engine *open_with(const char *draft, enum spec_rule rule, int n_parallel)
{
    struct eng_engine *e;
    struct eng_options o = { .model = MODEL,
                             .isa = KN_ISA_COUNT - 1,
                             .n_ctx = 128,
                             .n_thread = 1,
                             .n_parallel = n_parallel,
                             .gamma = draft ? WORDS : 0,
                             .n_draft = draft != NULL,
                             .verify = rule };
    if (draft)
        assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    assert_int_equal(eng_open(&e, &o), 0);
    return e;
}

static struct eng_session *start(struct eng_engine *e, const int32_t *token, int n, int n_predict, uint64_t seed)
{
    struct eng_session *s;
    struct eng_request r = { .token = token, .n_token = n, .n_predict = n_predict, .n_top = TOP };
    spec_params_default(&r.sampling);
    r.sampling.temperature = 1;
    r.sampling.top_k = TOP;
    r.sampling.seed = seed;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    return s;
}

/* ---- the exact distribution ------------------------------------------------------------------------------ */

/* Fills law[] by recursion. Prefixes are numbered like a heap with TOP children: prefix b has b * TOP + 1 + k. */
static void ask_law(struct eng_engine *e, int beginning, int n_said, int number, double before)
{
    double p[TOP], sum = 0;
    if (n_said == WORDS) {
        law[number] = before;
        return;
    }
    struct eng_session *s = start(e, prompt.id, (int)prompt.n, 1, 1);
    int n = 0;
    while (n == 0)
        n = eng_step(e, event);
    assert_int_equal(event[0].n_top, TOP);
    for (int k = 0; k < TOP; k++) {
        word[beginning][k] = event[0].top[k].token;
        sum += p[k] = exp((double)event[0].top[k].logprob);
    }
    eng_session_close(s);
    for (int k = 0; k < TOP; k++) {
        assert_false(eng_vocab_is_stop(eng_vocab(e), word[beginning][k]));
        assert_int_equal(eng_ids_push(&prompt, word[beginning][k]), 0);
        ask_law(e, beginning * TOP + 1 + k, n_said + 1, number * TOP + k, before * p[k] / sum);
        prompt.n--;
    }
}

static int setup_law(void **state)
{
    (void)state;
    struct eng_engine *e = open_with(NULL, SPEC_COUPLED, 1);
    double sum = 0;
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &prompt), 0);
    ask_law(e, 0, 0, 0, 1);
    for (int i = 0; i < LAWS; i++)
        sum += law[i];
    assert_true(fabs(sum - 1) < 1e-9);
    eng_close(e);
    return 0;
}

static int teardown_law(void **state)
{
    (void)state;
    eng_ids_free(&prompt);
    return 0;
}

/* ---- many answers ------------------------------------------------------------------------------------------ */

/* Index of an answer in law[]; -1: the model could not give it. */
static int number_of(const int32_t *said)
{
    int number = 0, beginning = 0;
    for (int i = 0; i < WORDS; i++) {
        int k = 0;
        while (k < TOP && word[beginning][k] != said[i])
            k++;
        if (k == TOP)
            return -1;
        number = number * TOP + k;
        beginning = beginning * TOP + 1 + k;
    }
    return number;
}

/* G = 2 * sum of count * log(count / expected); answers expected fewer than five times count as one. */
static double deviation(const int *count, int n, int *freedom)
{
    double g = 0, rare = 0;
    int n_rare = 0;
    *freedom = -1;
    for (int i = 0; i < LAWS; i++) {
        double want = n * law[i];
        if (want < 5) {
            rare += want;
            n_rare += count[i];
            continue;
        }
        g += count[i] ? 2 * count[i] * log(count[i] / want) : 0;
        ++*freedom;
    }
    if (n_rare)
        g += 2 * n_rare * log(n_rare / rare);
    *freedom += rare > 0;
    return g;
}

/* Threshold that G exceeds by chance once in two million (Wilson and Hilferty). */
static double most_deviation(int freedom)
{
    double v = 2.0 / (9.0 * freedom);
    return freedom * pow(1 - v + 4.9 * sqrt(v), 3);
}

/* Runs n sessions, CROWD at a time; returns G over its threshold: above 1 the distribution is wrong. */
static double answer_many(struct eng_engine *e, int n)
{
    static int count[LAWS];
    struct eng_session *s[CROWD];
    int freedom;
    memset(count, 0, sizeof count);
    for (int at = 0; at < n; at += CROWD) {
        for (int i = 0; i < CROWD; i++)
            s[i] = start(e, prompt.id, (int)prompt.n, WORDS, (uint64_t)(at + i));
        for (bool runs = true; runs;) {
            assert_true(eng_step(e, event) >= 0);
            runs = false;
            for (int i = 0; i < CROWD; i++)
                runs |= eng_session_runs(s[i]);
        }
        for (int i = 0; i < CROWD; i++) {
            int n_token;
            const int32_t *token = eng_session_tokens(s[i], &n_token);
            assert_int_equal(n_token, prompt.n + WORDS);
            int number = number_of(token + prompt.n);
            if (number < 0)
                return HUGE_VAL;
            count[number]++;
            eng_session_close(s[i]);
        }
    }
    double g = deviation(count, n, &freedom);
    return g / most_deviation(freedom);
}

#ifdef DRAWS /* for a long run */
#define N_DRAW DRAWS
#elif defined __SANITIZE_ADDRESS__ /* slow, and about memory alone */
#define N_DRAW 96
#else
#define N_DRAW 264
#endif

static void what_is_kept_has_the_law(void **state)
{
    (void)state;
    static const struct {
        const char *draft;
        enum spec_rule rule;
    } tries[] = { { DRAFT, SPEC_RATIO },
                  { DRAFT, SPEC_BLOCK },
                  { DRAFT ",tree=dynamic", SPEC_RATIO },
                  { DRAFT ",tree=dynamic", SPEC_BLOCK },
                  { HEAD, SPEC_RATIO },
                  { HEAD, SPEC_BLOCK } };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct eng_engine *e = open_with(tries[i].draft, tries[i].rule, CROWD);
        double off = answer_many(e, N_DRAW / CROWD * CROWD);
        if (off > 1 || !e->stats.n_draft_kept || e->stats.n_draft_kept == e->stats.n_draft)
            fail_msg("%s, rule %d: G is %.3f of its threshold; %d of %d kept", tries[i].draft, (int)tries[i].rule, off,
                     (int)e->stats.n_draft_kept, (int)e->stats.n_draft);
#ifdef DRAWS
        printf("%s rule %d: G is %.3f of the threshold, %d of %d kept\n", tries[i].draft, (int)tries[i].rule, off,
               (int)e->stats.n_draft_kept, (int)e->stats.n_draft);
#endif
        eng_close(e);
    }
}

/* ---- a drafter that reports another distribution than it samples from ------------------------------------ */

static struct eng_drafter liar;

static void ignore_commit(struct eng_drafter *d, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_kept)
{
    (void)d, (void)s, (void)v, (void)n_new, (void)n_kept;
}
static void close_liar(struct eng_drafter *d) { (void)d; }

/* Samples from the TOP candidates, but reports the uniform distribution over the vocabulary. */
static int draft_liar(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n, int depth)
{
    (void)depth;
    for (int i = 0; i < n; i++) {
        int n_said = s[i]->n_token - (int)prompt.n, at = 0;
        struct spec_dist *q = n_node[i] && n_said < WORDS ? eng_distribution_take(d->drafting) : NULL;
        if (!q)
            continue;
        for (int k = 0; k < n_said; k++)
            for (int to = 0; to < TOP; to++)
                if (word[at][to] == s[i]->token[(int)prompt.n + k]) {
                    at = at * TOP + 1 + to;
                    break;
                }
        for (int k = 0; k < q->n; k++)
            ((float *)q->weight)[k] = 1;
        q->sum = q->n;
        int which = (int)(TOP * spec_draft_uniform(s[i]->sampling, s[i]->n_token, 0));
        spec_tree_draw(&s[i]->draft->tree, SPEC_ROOT, word[at][which], q, 0.5f, 1);
    }
    return 0;
}

static const struct eng_drafter_kind liar_kind = {
    .name = "liar", .commit = ignore_commit, .draft = draft_liar, .close = close_liar
};

static void who_lies_is_found_out(void **state)
{
    (void)state;
    struct eng_engine *e = open_with(DRAFT, SPEC_RATIO, CROWD);
    struct eng_drafter *honest = e->drafting->drafter[0];
    liar = (struct eng_drafter){ .kind = &liar_kind, .drafting = e->drafting, .can_draw = true };
    e->drafting->drafter[0] = &liar;
    double off = answer_many(e, 144);
    if (off < 1)
        fail_msg("G is %.3f of its threshold", off);
    e->drafting->drafter[0] = honest;
    eng_close(e);
}

/* ---- a drafter that repeats another ---------------------------------------------------------------------- */

/* Adds the same nodes as the tree has, as a text drafter may by chance: the tree does not change. */
static int draft_echo(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n, int depth)
{
    (void)d;
    (void)depth;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < kn_min(n_node[i], s[i]->draft->tree.n); k++) {
            struct spec_tree *t = &s[i]->draft->tree;
            spec_tree_add(t, t->parent[k], t->token[k], 0, 2);
        }
    return 0;
}

static const struct eng_drafter_kind echo_kind = {
    .name = "echo", .commit = ignore_commit, .draft = draft_echo, .close = close_liar
};

/* A chain from one sampling drafter is verified as a block. With a second drafter asked, it is verified by the ratio
 * rule, even if that one adds nothing. */
static void who_agrees_ends_the_block(void **state)
{
    (void)state;
    for (int n_drafter = 1; n_drafter <= 2; n_drafter++) {
        struct eng_engine *e = open_with(DRAFT, SPEC_BLOCK, 1);
        struct eng_drafter echo = { .kind = &echo_kind, .drafting = e->drafting, .number = 1 };
        int n_draft = 0;
        e->drafting->drafter[1] = &echo;
        e->drafting->n_drafter = n_drafter;
        for (uint64_t seed = 0; seed < 4; seed++) {
            struct eng_session *s = start(e, prompt.id, (int)prompt.n, 4 * WORDS, seed);
            while (eng_session_runs(s)) {
                assert_true(eng_step(e, event) >= 0);
                if (!s->seat || !s->seq.tree->n_draw)
                    continue;
                assert_int_equal(s->seq.tree->n, s->seq.tree->n_draw);
                assert_int_equal(s->seat->verify.rule, n_drafter == 1 ? SPEC_BLOCK : SPEC_RATIO);
                n_draft++;
            }
            eng_session_close(s);
        }
        assert_true(n_draft > 4);
        e->drafting->n_drafter = 1;
        eng_close(e);
    }
}

/* ---- unchanged answers ----------------------------------------------------------------------------------- */

/* At temperature 0, and without a sampling drafter, answers equal those without drafts. */
static void greedy_texts_are_the_same(void **state)
{
    (void)state;
    int32_t said[2][16];
    for (int way = 0; way < 2; way++) {
        struct eng_engine *e = open_with(way ? DRAFT : NULL, way ? SPEC_RATIO : SPEC_COUPLED, 1);
        struct eng_request r = { .token = prompt.id, .n_token = (int)prompt.n, .n_predict = 16 };
        struct eng_session *s;
        int n;
        spec_params_default(&r.sampling);
        r.sampling.temperature = 0;
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &r), 0);
        while (eng_session_runs(s))
            assert_true(eng_step(e, event) >= 0);
        memcpy(said[way], eng_session_tokens(s, &n) + prompt.n, sizeof said[way]);
        assert_true(!way || e->stats.n_draft_kept > 0);
        eng_close(e);
    }
    assert_memory_equal(said[0], said[1], sizeof said[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_has_the_law),
        cmocka_unit_test(who_lies_is_found_out),
        cmocka_unit_test(who_agrees_ends_the_block),
        cmocka_unit_test(greedy_texts_are_the_same),
    };
    return cmocka_run_group_tests(tests, setup_law, teardown_law);
}
