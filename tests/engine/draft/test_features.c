/* Features of prompts (engine/draft/features.c). They are stored only for a head that is loaded. A sequence that was read
 * without them gets drafts again, behind the gap, as soon as some of its tokens have features; so do sequences
 * that share its blocks, with the same drafts. Answers are the same, wherever the gaps are.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/engine/draft/drafted.h"
#include "tests/engine/quick.h"

#define HEAD "eagle:evals/train/models/demo-eagle-f16.gguf"

static const char question[] =
    "<|im_start|>user\nTom has 40 marbles. He gives a quarter of them to Ann and 6 to Ben. How many marbles are left for "
    "Tom after that, and how many do Ann and Ben have together? Then Ann finds 7 more marbles under her bed, and Ben "
    "loses 2 of his at school. How many do all three of them have now?<|im_end|>\n<|im_start|>assistant\n";
static struct eng_ids ids;

/* While experts are on disk, passes compute all rows of the last layer. */
static void wait_for_experts(const struct eng_engine *e)
{
    while (!off_store_is_whole(moe_model_store(e->assets.model)))
        usleep(1000);
}

static struct eng_engine *open_head(int gamma)
{
    struct eng_engine *e = open_demo(HEAD, KN_ISA_COUNT - 1, 64);
    eng_set_gamma(e, gamma);
    wait_for_experts(e);
    ids.n = 0;
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    assert_in_range(ids.n, ENG_KV_BLOCK + 10, N_CTX - 2 * ENG_KV_BLOCK);
    return e;
}

static int first_feature(const struct eng_engine *e, const struct eng_session *s)
{
    return eng_kv_first_feature(&e->kv, &s->seq.path, s->seq.n_kv);
}

/* ---- when they are stored ------------------------------------------------------------------------------ */

static bool stores_for(struct eng_engine *e, uint64_t salt)
{
    struct eng_session *s = start(e, ids.id, 40, salt);
    step(e);
    bool stores = eng_draft_stores_features(e->drafting);
    assert_int_equal(first_feature(e, s), stores ? 0 : 39); /* the last row has logits */
    eng_session_close(s);
    return stores;
}

static void they_are_stored_for_a_head_at_work(void **state)
{
    (void)state;
    one_thread();
    struct eng_engine *e = open_head(4);
    assert_true(stores_for(e, 1));
    eng_draft_unload(e->drafting, 0);
    assert_false(stores_for(e, 2));
    assert_true(eng_draft_load_again(e->drafting, 0));
    assert_true(stores_for(e, 3));
    e->drafting->drafter[0]->broken = true;
    assert_false(stores_for(e, 4));
    eng_close(e);
    struct eng_options o = demo_options("ngram", KN_ISA_COUNT - 1, 64);
    for (int i = 0; i < 2; i++) {
        o.features = i;
        assert_int_equal(eng_open(&e, &o), 0);
        wait_for_experts(e);
        assert_true(stores_for(e, 1) == o.features);
        eng_close(e);
    }
}

/* ---- behind a gap ----------------------------------------------------------------------------------------- */

/* Steps until s has drafts; returns the number of its tokens then. Its answer must be text. */
static int first_draft(struct eng_engine *e, struct eng_session *s, const int32_t *text)
{
    while (eng_session_runs(s)) {
        int n = s->seq.n_token;
        step(e);
        assert_memory_equal(s->seq.token, text, (size_t)s->seq.n_token * sizeof *text);
        if (s->seq.tree && s->seq.tree->n)
            return n;
    }
    fail();
    return 0;
}

/* When the prompt of a sequence has no features, drafts come when enough tokens behind it do: not sooner, and the head reads no
 * more. The same with a gap in the middle of a block. */
static void drafts_return_behind_a_gap(void **state)
{
    (void)state;
    one_thread();
    int32_t text[N_CTX];
    struct eng_engine *e = open_head(0);
    struct eng_session *s = start(e, ids.id, (int)ids.n, 1);
    while (eng_session_runs(s))
        step(e);
    memcpy(text, s->seq.token, sizeof text);
    eng_session_close(s);
    for (int n_read = (int)ids.n - 1; n_read > 20; n_read -= 23) { /* so much of the prompt is read without the head */
        uint64_t salt = (uint64_t)(10 * n_read);
        eng_set_gamma(e, 4);
        eng_draft_unload(e->drafting, 0);
        s = start(e, ids.id, n_read, salt);
        while (s->seq.n_token == n_read)
            step(e);
        eng_session_close(s);
        assert_true(eng_draft_load_again(e->drafting, 0));
        s = start(e, text, (int)ids.n, salt);
        int n = first_draft(e, s, text), first = first_feature(e, s);
        assert_in_range(first, n_read - 1, n_read);
        assert_in_range(n - 1 - first, ENG_MIN_FEATURES, kn_max(ENG_MIN_FEATURES, (int)ids.n - n_read) + 12);
        assert_true(e->drafting->drafter[0]->n_text <= n - first);
        eng_session_close(s);
    }
    eng_close(e);
}

/* Nearly as many of them are right as without a gap: the head does not look at the tokens before it. */
static double right_drafts(struct eng_engine *e, uint64_t salt, int n_from)
{
    uint64_t n_kept = 0, n_pass = 0;
    struct eng_session *s = start(e, ids.id, (int)ids.n, salt);
    while (eng_session_runs(s)) {
        uint64_t before = e->stats.n_draft_kept;
        bool counts = s->seq.n_token >= n_from;
        step(e);
        n_kept += counts ? e->stats.n_draft_kept - before : 0;
        n_pass += counts;
    }
    eng_session_close(s);
    return (double)n_kept / (double)n_pass;
}

static void drafts_behind_a_gap_are_good(void **state)
{
    (void)state;
    one_thread();
    struct eng_engine *e = open_head(4);
    int n_from = (int)ids.n + ENG_MIN_FEATURES + 8;
    double all = right_drafts(e, 1, n_from);
    eng_draft_unload(e->drafting, 0);
    struct eng_session *s = start(e, ids.id, (int)ids.n, 2);
    while (s->seq.n_token == (int)ids.n)
        step(e);
    eng_session_close(s);
    assert_true(eng_draft_load_again(e->drafting, 0));
    double part = right_drafts(e, 2, n_from);
    print_message("tokens accepted a pass: %.2f, behind a gap %.2f\n", all, part);
    assert_true(part > 0.5 * all);
    eng_close(e);
}

/* Keys and values that the head has not computed are no numbers. */
static void spoil(struct moe_context *head) { memset(head->kv.base, 0xff, head->kv.bytes); }

/* Another session with the same blocks, and the head loaded again, draft the same behind the gap. */
static void shared_blocks_share_the_gap(void **state)
{
    (void)state;
    one_thread();
    int32_t text[N_CTX];
    struct eng_engine *e = open_head(4);
    eng_draft_unload(e->drafting, 0);
    struct eng_session *s = start(e, ids.id, (int)ids.n, 0);
    while (s->seq.n_token < (int)ids.n + 6)
        step(e);
    assert_true(eng_draft_load_again(e->drafting, 0));
    int n_pass = 0, n_same = 0;
    while (eng_session_runs(s) && n_pass < MOST_PASS) {
        pass[n_pass].n_token = s->seq.n_token;
        step(e);
        if (eng_session_runs(s) && s->seq.tree->n)
            pass[n_pass++].tree = *s->seq.tree;
    }
    int first = first_feature(e, s);
    memcpy(text, s->seq.token, sizeof text);
    assert_true(n_pass > 8);
    eng_session_close(s);
    for (int i = 0; i < 3; i++) {
        s = start(e, text, pass[3 * i].n_token, 0);
        if (i == 2) {
            reload(e);
            spoil(e->drafting->drafter[0]->context);
        }
        n_same += step_alike(e, s, text, n_pass);
        assert_int_equal(first_feature(e, s), first);
        n_same += step_alike(e, s, text, n_pass);
        eng_session_close(s);
    }
    assert_int_equal(n_same, 6);
    eng_close(e);
}

/* ---- time and disk ---------------------------------------------------------------------------------------- */

static double took_ns; /* about, by read_prompt */

static struct eng_session *read_prompt(struct eng_engine *e, uint64_t salt)
{
    struct eng_session *s = start(e, ids.id, 80, salt);
    e->drafting->feature_ns = 0;
    uint64_t ns = kn_now_ns();
    step(e);
    took_ns = (double)(kn_now_ns() - ns); /* 64 rows of a chunk */
    assert_int_equal(s->seq.n_kv, 64);
    return s;
}

/* Their time is the last layer's share of the passes that read prompts, stored or not: of six layers, or of the other five. */
static void the_last_layer_takes_its_share(void **state)
{
    (void)state;
    one_thread();
    set_quick_clock();
    struct eng_engine *e = open_head(ENG_GAMMA_AUTO);
    assert_int_equal(moe_model_shape(e->assets.model)->n_layer, 6);
    for (int i = 0; i < 2; i++) {
        struct eng_session *s = read_prompt(e, (uint64_t)i);
        assert_in_range(100 * e->drafting->feature_ns / took_ns, i ? 18 : 14, i ? 20 : 17);
        eng_set_gamma(e, 3); /* the account stands still */
        eng_session_close(s);
        eng_session_close(read_prompt(e, 10 + (uint64_t)i));
        assert_true(e->drafting->feature_ns == 0);
        eng_set_gamma(e, ENG_GAMMA_AUTO);
        eng_draft_unload(e->drafting, 0);
        e->drafting->drafter[0]->upkeep.lost = 1e9;
    }
    kn_io_set(NULL);
    eng_close(e);
}

/* With experts on disk passes compute all rows of the last layer anyway: a head has no upkeep, and no gap. */
static void on_disk_they_cost_nothing(void **state)
{
    (void)state;
    one_thread();
    struct eng_engine *e;
    struct eng_options o = demo_options(HEAD, KN_ISA_COUNT - 1, 64);
    o.gamma = ENG_GAMMA_AUTO;
    o.host_mem = (size_t)40 << 20;
    assert_int_equal(eng_open(&e, &o), 0);
    assert_true(e->memory.split.n_resident < e->memory.split.n_expert);
    eng_draft_unload(e->drafting, 0);
    e->drafting->drafter[0]->upkeep.lost = 1e9;
    struct eng_session *s = read_prompt(e, 1);
    assert_int_equal(first_feature(e, s), 0);
    assert_true(e->drafting->feature_ns == 0);
    eng_session_close(s);
    eng_close(e);
}

/* ---- whether they are worth their time ----------------------------------------------------------------------- */

static void ask(struct eng_engine *e, const int32_t *text)
{
    struct eng_session *s = start(e, ids.id, (int)ids.n, e->stats.n_pass);
    while (eng_session_runs(s))
        step(e);
    assert_memory_equal(s->seq.token, text, (size_t)N_CTX * sizeof *text);
    eng_session_close(s);
    assert_true(e->stats.n_pass < 100000);
}

/* In memory a head is unloaded when the features of prompts take more time than its drafts save; they are then not stored. It
 * comes back when its drafts promise more. They cost nothing here. */
static void a_head_must_be_worth_its_features(void **state)
{
    (void)state;
    one_thread();
    int32_t text[N_CTX];
    set_quick_clock();
    struct eng_engine *e = open_head(0);
    struct eng_drafter *head = e->drafting->drafter[0];
    struct eng_split split = e->memory.split;
    struct eng_session *s = start(e, ids.id, (int)ids.n, 1);
    while (eng_session_runs(s))
        step(e);
    memcpy(text, s->seq.token, sizeof text);
    eng_session_close(s);
    eng_set_gamma(e, ENG_GAMMA_AUTO);
    make_quick(e);
    for (int round = 0; round < 2; round++) {
        uint64_t n = e->stats.n_draft;
        while (head->upkeep.unloaded || e->stats.n_draft == n)
            ask(e, text);
        while (!head->upkeep.unloaded) {
            e->drafting->feature_ns = 1e10; /* as after very long prompts */
            ask(e, text);
        }
        assert_null(head->context);
        assert_int_equal(e->memory.split.n_resident, e->memory.split.n_expert);
        n = e->stats.n_draft;
        ask(e, text);
        assert_true(!e->drafting->stores_features && e->stats.n_draft == n);
        head->upkeep.lost = head->upkeep.feature_ns = 0;
    }
    while (head->upkeep.unloaded)
        ask(e, text);
    assert_memory_equal(&split, &e->memory.split, sizeof split);
    kn_io_set(NULL);
    eng_close(e);
}

/* ---- answers ---------------------------------------------------------------------------------------------- */

static int n_gap, n_behind; /* drafts behind a gap */

static void come_and_go(struct eng_engine *e)
{
    for (int i = 0; i < e->pass.n_due; i++) {
        const struct eng_session *s = e->pass.due[i];
        n_behind += eng_session_runs(s) && s->seat && s->seq.tree->n && first_feature(e, s) > 0;
    }
    n_gap += heads_come_and_go(e);
}

static void answers_are_the_same_with_gaps(void **state)
{
    (void)state;
    static const char *const tree[] = { HEAD ",tree=chain", HEAD, HEAD ",tree=static" };
    for (int i = 0; i < 3; i++) {
        struct eng_options o = {
            .n_parallel = 4, .n_chunk = 33 + 31 * i, .n_thread = 1 + (i == 1), .gamma = 6, .n_draft = 1
        };
        assert_int_equal(eng_draft_parse(&o.draft[0], tree[i]), 0);
        struct eng_engine *e = open_engine_with(o, i == 2 ? 9 : 0);
        wait_for_experts(e);
        asked_meddle = come_and_go;
        run_crowd(e, SHARE(100));
        asked_meddle = NULL;
        close_engine(e);
    }
    assert_true(!WHOLE || (n_gap > 30 && n_behind > 60));
}

static int setup_all(void **state) { return setup_demo(state, 5); }

static int teardown_all(void **state)
{
    eng_ids_free(&ids);
    return teardown_demo(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_stored_for_a_head_at_work), cmocka_unit_test(drafts_return_behind_a_gap),
        cmocka_unit_test(drafts_behind_a_gap_are_good),       cmocka_unit_test(shared_blocks_share_the_gap),
        cmocka_unit_test(the_last_layer_takes_its_share),     cmocka_unit_test(on_disk_they_cost_nothing),
        cmocka_unit_test(a_head_must_be_worth_its_features),  cmocka_unit_test(answers_are_the_same_with_gaps),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
