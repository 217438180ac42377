/* Draft trees of a draft model. A node attends to the sequence and its own ancestors alone, to the bit; a draft depends
 * on the tokens of the sequence alone, in any batch, for all chunk sizes and instruction sets; the tree has the most
 * probable nodes, up to its limit, and contains the greedy chain. Answers stay the same. Its memory is in the plan.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan.  test_pairs.c and test_draft.c run its code:
 * not under MODE=asan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/draft/drafted.h"

#define SMALL "model:evals/train/models/demo-draft-q8_0.gguf"

static const char *const shape[] = { SMALL ",tree=dynamic", SMALL ",tree=static", SMALL };

static const char question[] =
    "<|im_start|>user\nTom has 40 marbles. He gives a quarter of them to Ann and 6 to "
    "Ben. How many marbles are left for Tom after that, and how many do Ann and Ben have together?<|im_end|>\n"
    "<|im_start|>assistant\n";
static struct eng_ids ids;

static void read_question(const struct eng_engine *e)
{
    ids.n = 0;
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
}

/* ---- context of a node ---------------------------------------------------------------------------------------- */

static int path_to(const struct spec_tree *t, int node, int32_t *token)
{
    int n = node == SPEC_ROOT ? 0 : t->depth[node];
    for (int at = node, k = n; k > 0; at = t->parent[at])
        token[--k] = t->token[at];
    return n;
}

/* Drafts again after the sequence plus the path to a node. The children's path probabilities must equal those in the
 * tree, to the bit: probability of the node times probability of the child. Returns the number of children. */
static int compare_branch(struct eng_engine *e, const int32_t *text, int n, const struct spec_tree *t, int node)
{
    int32_t longer[N_CTX];
    int n_child = 0;
    memcpy(longer, text, (size_t)n * sizeof *text);
    n += path_to(t, node, longer + n);
    const struct spec_tree *behind = tree_behind(e, longer, n, NULL);
    for (int k = 0; k < t->n; k++) {
        if (t->parent[k] != node)
            continue;
        int child = spec_tree_child(behind, SPEC_ROOT, t->token[k]);
        assert_true(child >= 0);
        float want = t->survival[node] * behind->survival[child];
        if (t->survival[k] != want)
            fail_msg("behind node %d token %d is %.9g likely, not %.9g", node, t->token[k], (double)t->survival[k],
                     (double)want);
        n_child++;
    }
    return n_child;
}

static void a_branch_is_a_text(void **state)
{
    (void)state;
    one_thread();
    for (int i = 0; i < 2; i++) {
        struct eng_engine *e = open_demo(shape[i], KN_ISA_COUNT - 1, 512);
        int32_t text[N_CTX];
        int n_child = 0, n_late = 0; /* late: nodes that do not follow their parent directly */
        read_question(e);
        eng_set_gamma(e, 25);
        int n = record(e, &ids, text, 12);
        for (int k = 0; k < n; k += 4) {
            struct spec_tree t = pass[k].tree;
            for (int node = 0; node < t.n; node++) {
                n_child += compare_branch(e, text, pass[k].n_token, &t, node);
                n_late += t.parent[node] != node - 1;
            }
        }
        assert_true(n_child > 30 && n_late > 10);
        eng_close(e);
    }
}

static void a_draft_is_of_the_text_alone(void **state)
{
    (void)state;
    one_thread();
    int32_t text[N_CTX];
    for (int i = 0; i < 2; i++) {
        struct eng_engine *e = open_demo(shape[i], KN_ISA_COUNT - 1, 512), *avx2 = open_demo(shape[i], KN_ISA_AVX2, 30);
        eng_set_gamma(e, 8);
        eng_set_gamma(avx2, 8);
        read_question(e);
        int n = record(e, &ids, text, 16), n_same = 0;
        for (int k = 0; k < n; k += 3)
            n_same += draft_again(k % 2 ? e : avx2, text, k, n);
        assert_true(n_same >= (n + 2) / 3);
        eng_close(e);
        eng_close(avx2);
    }
}

/* ---- choice of nodes ------------------------------------------------------------------------------------------ */

/* No node is more probable than its parent. A narrow tree has the most probable nodes of a wide tree. */
static void the_tree_holds_the_likeliest(void **state)
{
    (void)state;
    one_thread();
    int32_t text[N_CTX];
    struct eng_engine *e = open_demo(shape[0], KN_ISA_COUNT - 1, 512);
    read_question(e);
    int n_pass = record(e, &ids, text, MOST_PASS), n_root = 0, deepest = 0;
    for (int i = 0; i < n_pass; i++)
        for (int k = 0; k < pass[i].tree.n; k++)
            deepest = kn_max(deepest, pass[i].tree.depth[k]);
    assert_int_equal(deepest, 8);
    struct spec_tree wide = pass[0].tree;
    int n = pass[0].n_token;
    assert_int_equal(wide.n, 60);
    for (int k = 0; k < wide.n; k++) {
        int parent = wide.parent[k];
        assert_true(parent == SPEC_ROOT || wide.survival[k] <= wide.survival[parent]);
        n_root += parent == SPEC_ROOT;
    }
    assert_true(n_root > 1 && n_root < 30);
    for (int gamma = 1; gamma <= 19; gamma += 6) {
        eng_set_gamma(e, gamma);
        const struct spec_tree *t = tree_behind(e, text, n, NULL);
        assert_int_equal(t->n, gamma);
        for (int k = 0; k < gamma; k++) /* both trees are in this order */
            assert_true(t->token[k] == wide.token[k] && t->parent[k] == wide.parent[k] &&
                        t->survival[k] == wide.survival[k]);
    }
    eng_close(e);
}

/* The most probable child of each node, where the tree has one, is the chain's token there. */
static void the_greedy_chain_is_a_path(void **state)
{
    (void)state;
    one_thread();
    int32_t text[N_CTX];
    struct eng_engine *chain = open_demo(shape[2], KN_ISA_COUNT - 1, 512);
    eng_set_gamma(chain, 8);
    read_question(chain);
    int n = record(chain, &ids, text, 24), n_all = 0, n_deep = 0;
    assert_true(n > 5);
    for (int i = 0; i < 2; i++) {
        struct eng_engine *e = open_demo(shape[i], KN_ISA_COUNT - 1, 512);
        eng_set_gamma(e, 25);
        for (int k = 0; k < n; k++) {
            const struct spec_tree *c = &pass[k].tree, *t = tree_behind(e, text, pass[k].n_token, NULL);
            for (int m = 0, at = SPEC_ROOT; m < c->n; m++) {
                int best = -1;
                for (int j = 0; j < t->n; j++)
                    if (t->parent[j] == at && (best < 0 || t->survival[j] > t->survival[best]))
                        best = j;
                if (best < 0)
                    break;
                assert_int_equal(t->token[best], c->token[m]);
                at = best;
                n_deep += m == 3;
                n_all++;
            }
        }
        eng_close(e);
    }
    if (n_all < 5 * n || n_deep < n)
        fail_msg("%d of %d drafts' nodes, %d four deep", n_all, n, n_deep);
    eng_close(chain);
}

/* Runs a request at a temperature. guess[n]: first drafted token after n tokens; -1: no draft there. */
static void first_guesses(const char *draft, int gamma, uint64_t seed, int32_t *guess /* [N_CTX] */)
{
    struct eng_engine *e = open_demo(draft, KN_ISA_COUNT - 1, 512);
    struct eng_session *s;
    read_question(e);
    struct eng_request r = request(ids.id, (int)ids.n, 64, seed);
    eng_set_gamma(e, gamma);
    for (int i = 0; i < N_CTX; i++)
        guess[i] = -1;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    while (eng_session_runs(s)) {
        int n = s->seq.n_token;
        step(e);
        if (s->seat && n > (int)ids.n && s->seq.tree->n > 0)
            guess[n] = s->seq.tree->token[0];
    }
    eng_session_close(s);
    eng_close(e);
}

/* At a temperature too, the first node is the chain's token: both add the sampling noise of the target. */
static void trees_know_the_noise(void **state)
{
    (void)state;
    one_thread();
    int32_t chain[N_CTX], tree[N_CTX];
    for (int i = 0; i < 2; i++) {
        int n_both = 0;
        for (uint64_t seed = 1; seed <= 4; seed++) {
            first_guesses(shape[2], 1, seed, chain);
            first_guesses(shape[i], 4, seed, tree);
            for (int n = 0; n < N_CTX; n++) {
                bool both = chain[n] >= 0 && tree[n] >= 0;
                assert_true(!both || chain[n] == tree[n]);
                n_both += both;
            }
        }
        assert_true(n_both > 60);
    }
}

/* The static tree has at most EAGLE's width per depth, for all tokens; smaller only where a stop token ends a path. */
static void the_static_tree_is_the_plan(void **state)
{
    (void)state;
    one_thread();
    static const int width[] = { 4, 8, 8, 3, 2 };
    int32_t text[N_CTX];
    struct eng_engine *e = open_demo(shape[1], KN_ISA_COUNT - 1, 512);
    int n_whole = 0;
    eng_set_gamma(e, 25);
    read_question(e);
    int n = record(e, &ids, text, 12);
    for (int k = 0; k < n; k++) {
        int n_deep[5] = { 0 };
        for (int m = 0; m < pass[k].tree.n; m++) {
            assert_in_range(pass[k].tree.depth[m], 1, 5);
            n_deep[pass[k].tree.depth[m] - 1]++;
        }
        for (int m = 0; m < 5; m++)
            assert_true(n_deep[m] <= width[m]);
        n_whole += pass[k].tree.n == 25;
    }
    assert_true(n_whole > 2);
    eng_close(e);
}

/* No draft beyond the tokens that the request and the context allow. */
static void limits_hold(void **state)
{
    (void)state;
    one_thread();
    for (int i = 0; i < 2; i++) {
        struct eng_engine *e = open_demo(shape[i], KN_ISA_COUNT - 1, 512);
        int32_t text[N_CTX];
        read_question(e);
        memcpy(text, ids.id, ids.n * sizeof *text);
        for (int n = (int)ids.n; n < N_CTX - 10; n++)
            text[n] = ids.id[n % 40 + 5];
        struct eng_session *s = start(e, text, N_CTX - 10, 0);
        while (eng_session_runs(s)) {
            step(e);
            if (!s->seat)
                break;
            assert_true(s->seq.tree->n <= 60);
        }
        assert_int_equal(s->finish, ENG_LENGTH);
        assert_int_equal(s->seq.n_token, s->seq.n_max);
        assert_false(e->drafting->drafter[0]->broken);
        eng_session_close(s);
        for (int most = 1; most <= 4; most++) {
            struct eng_request r = request(ids.id, (int)ids.n, most, 1);
            assert_int_equal(eng_session_open(&s, e), 0);
            assert_int_equal(eng_session_start(s, &r), 0);
            while (eng_session_runs(s)) {
                int n = s->seq.n_token;
                step(e);
                assert_true(!s->seat || n == (int)ids.n || s->seq.tree->n <= s->seq.n_max - n - 1);
            }
            eng_session_close(s);
        }
        eng_close(e);
    }
}

/* ---- unchanged answers ---------------------------------------------------------------------------------------- */

static void trees_change_nothing(void **state)
{
    (void)state;
    static const struct {
        int n_parallel, n_chunk, n_block, gamma;
    } tries[] = { { 4, 100, 0, 4 }, { 3, 33, 9, 25 }, { 5, 64, 9, 12 }, { 2, 512, 9, ENG_GAMMA_AUTO } };
    uint64_t n_preempted = 0;
    for (int i = 0; i < 4; i++) {
        struct eng_options o = { .n_parallel = tries[i].n_parallel,
                                 .n_chunk = tries[i].n_chunk,
                                 .n_thread = 1 + (i == 1),
                                 .gamma = tries[i].gamma,
                                 .n_draft = 1 };
        assert_int_equal(eng_draft_parse(&o.draft[0], shape[i == 2]), 0);
        struct eng_engine *e = open_engine_with(o, tries[i].n_block);
        run_crowd(e, SHARE(12));
        assert_true(!e->drafting->drafter[0]->broken && e->stats.n_draft_kept <= e->stats.n_draft);
        assert_true(!WHOLE || i == 3 || e->stats.n_draft_kept > 0);
        n_preempted += e->stats.n_preempted;
        close_engine(e);
    }
    assert_true(!WHOLE || n_preempted > 0);
}

static void it_merges_with_others(void **state)
{
    (void)state;
    struct eng_options o = { .n_parallel = 3, .n_chunk = 64, .n_thread = 1, .gamma = 12, .n_draft = 3 };
    assert_int_equal(eng_draft_parse(&o.draft[0], "oracle:0.5"), 0);
    assert_int_equal(eng_draft_parse(&o.draft[1], shape[0]), 0);
    assert_int_equal(eng_draft_parse(&o.draft[2], shape[2]), 0);
    struct eng_engine *e = open_engine_with(o, 0);
    run_crowd(e, SHARE(6));
    assert_true(!WHOLE || e->stats.n_draft_kept > 0);
    close_engine(e);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* The memory plan includes KV slots and logit rows of tree nodes. A chain needs none. */
static void its_memory_is_foreseen(void **state)
{
    (void)state;
    size_t step[3];
    for (int i = 0; i < 3; i++) {
        struct eng_engine *e;
        struct eng_options o = demo_options(shape[i], KN_ISA_COUNT - 1, 512);
        assert_int_equal(eng_describe(&e, &o), 0);
        struct eng_draft_needs needs;
        eng_draft_needs(e->drafting, &needs);
        step[i] = needs.memory.step;
        size_t slot = needs.memory.slot, least = 3 * 70 * slot + (3 * 10 - 3) * 4096 * sizeof(float);
        assert_true(i < 2 || step[0] - step[2] > least);
        eng_close(e);
    }
    assert_int_equal(step[0], step[1]);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static void wishes_are_read_or_refused(void **state)
{
    (void)state;
    struct eng_draft_option w;
    assert_int_equal(eng_draft_parse(&w, "model:a.gguf"), 0);
    assert_true(w.kind == ENG_DRAFT_MODEL && w.tree == ENG_TREE_CHAIN);
    assert_int_equal(eng_draft_parse(&w, "model:a.gguf,tree=dynamic,lengths=b"), 0);
    assert_true(w.tree == ENG_TREE_DYNAMIC && !strcmp(w.file, "a.gguf") && !strcmp(w.lengths, "b"));
    assert_int_equal(eng_draft_parse(&w, "model:a.gguf,tree=static"), 0);
    assert_true(w.tree == ENG_TREE_STATIC);
    assert_int_equal(eng_draft_parse(&w, "model:a.gguf,tree=chain"), 0);
    assert_true(w.tree == ENG_TREE_CHAIN);
    static const char *const bad[] = { "model:a,tree",          "model:a,tree=",    "model:a,tree=beam",
                                       "model:a,tree=dynamic2", "ngram,tree=chain", "suffix,tree=dynamic",
                                       "oracle:1,tree=static" };
    assert_wishes_refused(bad, sizeof bad / sizeof *bad);
}

/* Only chains can be drafted beside a pass. */
static void a_tree_is_not_drafted_beside_every_pass(void **state)
{
    (void)state;
    struct eng_engine *e;
    struct eng_options o = demo_options(shape[0], KN_ISA_COUNT - 1, 512);
    o.gamma = ENG_GAMMA_AUTO;
    o.dsi = ENG_DSI_ON;
    faults_listen();
    int got = eng_open(&e, &o);
    if (got != KN_EUNSUPPORTED || faults.n_line != 1 || !strstr(faults.line, "leave out tree="))
        fail_msg("%d, %d lines, '%s'", got, faults.n_line, faults.line);
    o.dsi = ENG_DSI_AUTO;
    assert_int_equal(eng_open(&e, &o), 0);
    eng_close(e);
    faults_listen_off();
}

static int setup_all(void **state) { return setup_demo(state, 6); }

static int teardown_all(void **state)
{
    eng_ids_free(&ids);
    return teardown_demo(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_branch_is_a_text),
        cmocka_unit_test(a_draft_is_of_the_text_alone),
        cmocka_unit_test(the_tree_holds_the_likeliest),
        cmocka_unit_test(the_greedy_chain_is_a_path),
        cmocka_unit_test(trees_know_the_noise),
        cmocka_unit_test(the_static_tree_is_the_plan),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(trees_change_nothing),
        cmocka_unit_test(it_merges_with_others),
        cmocka_unit_test(its_memory_is_foreseen),
        cmocka_unit_test(wishes_are_read_or_refused),
        cmocka_unit_test(a_tree_is_not_drafted_beside_every_pass),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
