/* MTP layers of four model families. They draft the reference's tokens; a draft depends on the tokens of the sequence
 * alone; answers stay the same with drafts that are nearly always right or always wrong; MTP experts share the expert
 * store and leave it on unload; a file without an MTP layer is refused.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan.  test_pairs.c and test_draft.c run its code:
 * not under MODE=asan. */
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/moe/hf_folder.h"
#include "tests/engine/draft/drafted.h"

static const char *const shape[] = { "mtp", "mtp,tree=static", "mtp,tree=dynamic" };
static struct golden golden;

static bool is_out(const char *name)
{
    return strstr(name, "attn_output") || strstr(name, "ffn_down") || strstr(name, "ssm_out");
}

/* Makes drafts right: layers add little to the residual stream, and eh_proj passes on the token's embedding alone. */
static void guide(struct golden *g)
{
    for (int i = 0; i < g->n_tensor; i++) {
        struct golden_tensor *t = &g->tensor[i];
        if (is_out(t->name))
            t->scale *= 0.01f;
        if (strstr(t->name, "nextn.enorm") || strstr(t->name, "shared_head_norm") || strstr(t->name, "output_norm"))
            t->scale = 0; /* norm weights of 1 */
        if (!strstr(t->name, "eh_proj"))
            continue;
        uint64_t n_in = t->dim[0], n_out = t->dim[1];
        t->data = calloc(n_in * n_out, sizeof *t->data);
        for (uint64_t k = 0; k < n_out; k++)
            t->data[k * n_in + k] = 1;
    }
}

static void make_model(const char *name, bool guided)
{
    assert_int_equal(golden_read(&golden, name), 0);
    if (guided)
        guide(&golden);
    assert_int_equal(golden_write(&golden, path), 0);
    n_vocab = golden.n_vocab;
    random_state = 5;
    memset(asked, 0, sizeof asked); /* answers of the previous model */
    make_requests();
}

static void forget_model(void)
{
    forget_requests();
    golden_free(&golden);
    unlink(path);
}

static struct eng_engine *open_mtp(const char *draft, enum kn_isa isa, int n_chunk)
{
    struct eng_engine *e;
    struct eng_options o = { .model = path,
                             .isa = isa,
                             .kv = KN_KV_F32,
                             .n_ctx = N_CTX,
                             .n_thread = 1,
                             .n_parallel = 3,
                             .n_session = N_SESSION,
                             .n_chunk = n_chunk,
                             .max_prefill_slowdown = ANY_STRETCH,
                             .gamma = 60,
                             .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    assert_int_equal(eng_open(&e, &o), 0);
    eng_set_gamma(e, 8);
    return e;
}

/* ---- the reference implementation ----------------------------------------------------------------------- */

/* The draft tree after these n tokens, the last of them generated: a bias forces the model to choose it. */
static const struct spec_tree *tree_behind_said(struct eng_engine *e, const int32_t *text, int n)
{
    struct eng_session *s;
    struct spec_bias bias = { text[n - 1], 1e6f };
    struct eng_request r = request(text, n - 1, N_CTX, 0);
    r.sampling.temperature = 0;
    r.sampling.bias = &bias;
    r.sampling.n_bias = 1;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    while (s->seq.n_token < n)
        step(e);
    assert_int_equal(s->seq.token[n - 1], text[n - 1]);
    s->bias[0].add = 0;
    step(e);
    const struct spec_tree *t = &e->drafting->seat[s->seat->number].tree;
    eng_session_close(s);
    return t;
}

/* The first drafted token after tokens 0 .. pos + 1 equals the reference's MTP token at pos. */
static void drafts_are_the_reference_s(const char *model)
{
    char name[128], line[4096];
    int n = 0, depth, pos, most;
    snprintf(name, sizeof name, "tests/fixtures/golden/%s.ahead", model);
    struct eng_engine *e = open_mtp(shape[0], KN_ISA_COUNT - 1, 512);
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "guess %d %d %*s %d", &depth, &pos, &most) != 3 || depth != 1 || pos > N_CTX - 20)
            continue;
        const struct spec_tree *t = tree_behind_said(e, golden.token, pos + 2);
        assert_true(t->n > 0);
        if (t->token[0] != most)
            fail_msg("behind %d tokens: %d, the reference has %d", pos + 2, t->token[0], most);
        n++;
    }
    fclose(f);
    assert_true(n > 20);
    eng_close(e);
}

static void it_drafts_what_the_reference_guesses(void **state)
{
    make_model(*state, false);
    drafts_are_the_reference_s(*state);
    forget_model();
}

/* The same from a safetensors folder. */
static void a_folder_drafts_it_too(void **state)
{
    struct hf_folder h;
    char command[128];
    make_model(*state, false);
    unlink(path);
    assert_int_equal(hf_folder_read(&h, *state), 0);
    hf_folder_write(&h, path, false, 1);
    drafts_are_the_reference_s(*state);
    hf_folder_free(&h);
    forget_model();
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

/* ---- drafts depend on the tokens alone ------------------------------------------------------------------ */

static void a_draft_is_of_the_text_alone(void **state)
{
    int32_t text[N_CTX];
    make_model(*state, true);
    struct eng_ids ids = { .id = golden.token, .n = 90 };
    for (int i = 0; i < 3; i++) {
        struct eng_engine *e = open_mtp(shape[i], KN_ISA_COUNT - 1, 512), *avx2 = open_mtp(shape[i], KN_ISA_AVX2, 30);
        int n = record(e, &ids, text, 12), n_same = 0;
        for (int k = 0; k < n; k++)
            assert_true(pass[k].tree.n > 0 && pass[k].tree.n <= 8);
        for (int k = 0; k < n; k += 3)
            n_same += draft_again(k % 2 ? e : avx2, text, k, n);
        assert_true(n_same >= (n + 2) / 3);
        eng_close(e);
        eng_close(avx2);
    }
    forget_model();
}

/* ---- unchanged answers ---------------------------------------------------------------------------------- */

static void run_tries(bool guided)
{
    static const struct {
        int n_parallel, n_chunk, n_block, gamma;
    } tries[] = { { 4, 100, 0, 4 }, { 3, 33, 9, 25 }, { 4, 64, 9, 12 }, { 2, 512, 9, ENG_GAMMA_AUTO } };
    for (int i = 0; i < 4; i++) {
        struct eng_options o = { .n_parallel = tries[i].n_parallel,
                                 .n_chunk = tries[i].n_chunk,
                                 .max_prefill_slowdown = i < 3 ? ANY_STRETCH : 0,
                                 .n_thread = 1 + (i == 1),
                                 .gamma = tries[i].gamma,
                                 .n_draft = 1 };
        assert_int_equal(eng_draft_parse(&o.draft[0], shape[i % 3]), 0);
        struct eng_engine *e = open_engine_with(o, tries[i].n_block);
        asked_meddle = i == 1 ? reload_at_times : NULL;
        run_crowd(e, SHARE(16)); /* of eight, the acceptance rate is too random */
        asked_meddle = NULL;
        assert_true(!e->drafting->drafter[0]->broken && e->stats.n_draft_kept <= e->stats.n_draft);
        if (WHOLE && guided && i < 3 && e->stats.n_draft_kept * (i ? 12 : 3) < e->stats.n_draft)
            fail_msg("try %d: %d kept of %d", i, (int)e->stats.n_draft_kept, (int)e->stats.n_draft);
        close_engine(e);
    }
}

static void right_guesses_change_nothing(void **state)
{
    make_model(*state, true);
    run_tries(true);
    forget_model();
}

static void wrong_guesses_change_nothing(void **state)
{
    make_model(*state, false);
    run_tries(false);
    forget_model();
}

static void it_merges_with_others(void **state)
{
    make_model(*state, false);
    struct eng_options o = { .n_parallel = 3, .n_chunk = 64, .n_thread = 1, .gamma = 12, .n_draft = 2 };
    assert_int_equal(eng_draft_parse(&o.draft[0], "oracle:0.5"), 0);
    assert_int_equal(eng_draft_parse(&o.draft[1], shape[2]), 0);
    struct eng_engine *e = open_engine_with(o, 0);
    run_crowd(e, SHARE(6));
    assert_true(!WHOLE || e->stats.n_draft_kept > 0);
    close_engine(e);
    forget_model();
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* MTP experts share a small expert store; after unload() their slots serve the other experts. */
static void it_shares_the_store_and_leaves_it(void **state)
{
    make_model(*state, true);
    struct eng_options o = { .model = path,
                             .isa = KN_ISA_COUNT - 1,
                             .n_ctx = N_CTX,
                             .n_parallel = 3,
                             .n_thread = 1,
                             .n_session = N_SESSION,
                             .n_chunk = 64,
                             .grammar_bytes = 1 << 20,
                             .gamma = ENG_GAMMA_AUTO,
                             .n_draft = 1 };
    struct eng_engine *e;
    assert_int_equal(eng_draft_parse(&o.draft[0], shape[0]), 0);
    assert_int_equal(eng_describe(&e, &o), 0);
    o.host_mem = eng_memory(e)->least + (1 << 17);
    eng_close(e);
    assert_int_equal(eng_open(&e, &o), 0);
    const struct moe_shape *s = moe_model_shape(e->assets.model);
    struct off_stats stats;
    off_stats_get(moe_model_store(e->assets.model), &stats);
    assert_int_equal(stats.n_expert, s->n_expert_total + s->n_expert);
    assert_int_equal(e->memory.split.n_expert, s->n_expert_total + s->n_expert);
    assert_true(stats.n_slot < stats.n_expert);
    eng_set_gamma(e, 4);
    run_crowd(e, SHARE(6));
    eng_set_gamma(e, ENG_GAMMA_AUTO);
    size_t was = e->memory.split.expert, dense = e->memory.split.dense;
    eng_draft_unload(e->drafting, 0);
    assert_true(e->memory.split.expert > was && e->memory.split.dense < dense);
    struct off_spot *spot = calloc(stats.n_expert, sizeof *spot);
    off_store_look(moe_model_store(e->assets.model), spot);
    for (int i = 0; i < s->n_expert; i++) /* they are evicted first */
        assert_true(spot[s->n_expert_total + i].heat == 0);
    free(spot);
    eng_set_gamma(e, 4);
    run_crowd(e, SHARE(4));
    close_engine(e);
    forget_model();
}

/* ---- options -------------------------------------------------------------------------------------------- */

static void who_has_none_is_refused(void **state)
{
    (void)state;
    assert_int_equal(setup(NULL), 0);
    refuse(path, "mtp", "has no MTP layer");
    teardown(NULL);
}

static void wishes_are_read_or_refused(void **state)
{
    (void)state;
    struct eng_draft_option w;
    assert_int_equal(eng_draft_parse(&w, "mtp"), 0);
    assert_true(w.kind == ENG_DRAFT_MTP && w.tree == ENG_TREE_CHAIN);
    assert_int_equal(eng_draft_parse(&w, "mtp,tree=dynamic"), 0);
    assert_true(w.tree == ENG_TREE_DYNAMIC);
    assert_int_equal(eng_draft_parse(&w, "mtp,tree=static"), 0);
    assert_true(w.tree == ENG_TREE_STATIC);
    static const char *const bad[] = { "mtp:a", "mtp,tree", "mtp,shared", "mt" };
    assert_wishes_refused(bad, sizeof bad / sizeof *bad);
}

static int setup_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/spillway-mtp-%d.gguf", getpid());
    return 0;
}

int main(void)
{
    static char *const name[] = { "glm4moe", "deepseek3_one_group", "qwen3next", "qwen35moe" };
#define EACH(i)                                                                                                        \
    { name[i], it_drafts_what_the_reference_guesses, NULL, NULL, name[i] },                                            \
        { name[i], a_folder_drafts_it_too, NULL, NULL, name[i] },                                                      \
        { name[i], a_draft_is_of_the_text_alone, NULL, NULL, name[i] },                                                \
        { name[i], right_guesses_change_nothing, NULL, NULL, name[i] },                                                \
        { name[i], wrong_guesses_change_nothing, NULL, NULL, name[i] },                                                \
        { name[i], it_merges_with_others, NULL, NULL, name[i] },                                                       \
    {                                                                                                                  \
        name[i], it_shares_the_store_and_leaves_it, NULL, NULL, name[i]                                                \
    }
    const struct CMUnitTest tests[] = {
        EACH(0),
        EACH(1),
        EACH(2),
        EACH(3),
        cmocka_unit_test(who_has_none_is_refused),
        cmocka_unit_test(wishes_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, setup_path, NULL);
}
