/* EAGLE heads. A head drafts the reference's tokens and probabilities; its draft depends on the tokens of the sequence
 * alone, in any batch, for all chunk sizes and instruction sets, and with KV computed by another session. The tree has
 * the most probable nodes. Answers stay the same. A head that does not fit the model is refused.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan.  test_pairs.c and test_draft.c run its code:
 * not under MODE=asan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/moe/change.h"
#include "tests/engine/draft/drafted.h"
#include "tests/engine/head.h"

#define HEAD "evals/train/models/demo-eagle-f16.gguf"

static char other[96]; /* file of another head */
static const char *const shape[] = { ("eagle:" HEAD ",tree=chain"), ("eagle:" HEAD ",tree=static"), ("eagle:" HEAD) };

static struct eng_engine *open_eagle(const char *draft, enum kn_isa isa, int n_chunk)
{
    struct eng_engine *e = open_demo(draft, isa, n_chunk);
    eng_set_gamma(e, 8);
    return e;
}

/* ---- the reference implementation --------------------------------------------------------------------- */

/* Compares one line of data/eagle.txt: "draft N", then pairs of token and probability. The line is skipped if the
 * model's own token differs, which happens where two tokens are nearly equally probable. Returns the number of nodes
 * compared. */
static double apart; /* sum of differences over nodes */

static int compare_draft(struct eng_engine *e, const int32_t *text, char *line)
{
    char *rest, *word = strtok_r(line, " \n", &rest);
    int n = atoi(word), n_right = 0, node = SPEC_ROOT;
    double all = 1; /* parent's path probability: compares nodes one by one */
    struct eng_session *s = start(e, text, n - 1, (uint64_t)n);
    while (s->seq.n_token < n)
        step(e);
    const struct spec_tree *t = s->seq.tree;
    if (s->seq.n_token == n && s->seq.token[n - 1] == text[n - 1]) {
        step(e);
        while ((word = strtok_r(NULL, " \n", &rest))) {
            int token = atoi(word);
            double p = atof(strtok_r(NULL, " \n", &rest)), here;
            assert_true(++node < t->n);
            here = t->survival[node] / all;
            if (t->token[node] != token || fabs(here - p) > 0.06)
                fail_msg("behind %d tokens, guess %d: %d at %.4f, the reference has %d at %.4f", n, node,
                         t->token[node], here, token, p);
            all = t->survival[node];
            n_right++;
            apart += fabs(here - p);
        }
    }
    eng_session_close(s);
    return n_right;
}

static void it_drafts_what_the_reference_does(void **state)
{
    (void)state;
    one_thread();
    struct eng_engine *e = open_eagle(shape[0], KN_ISA_COUNT - 1, 512);
    FILE *f = fopen("tests/engine/data/eagle.txt", "r");
    char line[4096];
    int32_t text[N_CTX];
    int n_right = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        int n = 0;
        char *rest, *word = strtok_r(line, " \n", &rest);
        if (!strcmp(word, "draft"))
            n_right += compare_draft(e, text, rest);
        else
            while ((word = strtok_r(NULL, " \n", &rest)))
                text[n++] = atoi(word);
    }
    fclose(f);
    eng_close(e);
    if (n_right <= 40 || apart > 0.006 * n_right)
        fail_msg("%d guesses are right, %.4f apart", n_right, apart / n_right);
}

/* ---- drafts depend on the tokens alone ---------------------------------------------------------------- */

static const char question[] =
    "<|im_start|>user\nTom has 40 marbles. He gives a quarter of them to Ann and 6 to "
    "Ben. How many marbles are left for Tom after that, and how many do Ann and Ben have together?<|im_end|>\n"
    "<|im_start|>assistant\n";

static void a_draft_is_of_the_text_alone(void **state)
{
    (void)state;
    one_thread();
    struct eng_ids ids = { 0 };
    int32_t text[N_CTX];
    int widest = 0;
    for (int i = 0; i < 3; i++) {
        struct eng_engine *e = open_eagle(shape[i], KN_ISA_COUNT - 1, 512),
                          *avx2 = open_eagle(shape[i], KN_ISA_AVX2, 30);
        ids.n = 0;
        assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
        int n = record(e, &ids, text, 16);
        for (int k = 0; k < n; k++) {
            assert_true(pass[k].tree.n > 0 && pass[k].tree.n <= 8);
            for (int m = 0; m < pass[k].tree.n; m++)
                widest += pass[k].tree.parent[m] != m - 1;
        }
        assert_true(i == 0 ? widest == 0 : widest > 0);
        int n_same = 0;
        for (int k = 0; k < n; k += 3)
            n_same += draft_again(k % 2 ? e : avx2, text, k, n);
        assert_true(n_same >= (n + 2) / 3);
        eng_close(e);
        eng_close(avx2);
    }
    eng_ids_free(&ids);
}

enum { ECHO_WIDTH = 256 }; /* of the demo model */

static void add_matrix(struct hf_file *f, const char *name, uint64_t n_in, uint64_t n_out, uint64_t ones_from)
{
    float *x = calloc(n_in * n_out, sizeof *x);
    for (uint64_t i = 0; ones_from < n_in && i < n_out; i++)
        x[i * n_in + ones_from + i] = 1;
    hf_add(f, name, x, (uint64_t[]){ n_in, n_out }, 2, false);
    free(x);
}

/* Adds a tensor of the model, as floats. */
static void add_of_model(struct hf_file *f, const struct moe_file *model, const char *from, const char *name)
{
    const struct moe_tensor *t = moe_file_find_tensor(model, from);
    enum kn_format format;
    assert_non_null(t);
    assert_int_equal(kn_format_from_gguf(t->gguf_type, &format), 0);
    uint8_t *raw = malloc(t->bytes);
    float *x = malloc(t->dim[0] * t->dim[1] * sizeof *x);
    assert_int_equal(moe_file_read(model, t, 0, raw, t->bytes), 0);
    for (uint64_t i = 0; i < t->dim[1]; i++)
        kn_row_decode(format, raw + i * (t->bytes / t->dim[1]), (int)t->dim[0], x + i * t->dim[0]);
    hf_add(f, name, x, t->dim, t->n_dim, false);
    free(raw);
    free(x);
}

/* A head that passes on the last layer's output, and multiplies it as the model does: its drafts repeat the last token. */
static void write_echo(const char *folder)
{
    static const char config[] = "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"model_type\":\"llama\","
                                 "\"hidden_size\":256,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
                                 "\"head_dim\":16,\"intermediate_size\":16,\"num_hidden_layers\":1,"
                                 "\"vocab_size\":4096,\"draft_vocab_size\":4096,\"rms_norm_eps\":1e-6,"
                                 "\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[2,3,6]}}";
    static const struct {
        const char *name;
        uint64_t n_in, n_out;
    } zero[] = { { "midlayer.self_attn.q_proj.weight", 2 * ECHO_WIDTH, 32 },
                 { "midlayer.self_attn.k_proj.weight", 2 * ECHO_WIDTH, 16 },
                 { "midlayer.self_attn.v_proj.weight", 2 * ECHO_WIDTH, 16 },
                 { "midlayer.self_attn.o_proj.weight", 32, ECHO_WIDTH },
                 { "midlayer.mlp.gate_proj.weight", ECHO_WIDTH, 16 },
                 { "midlayer.mlp.up_proj.weight", ECHO_WIDTH, 16 },
                 { "midlayer.mlp.down_proj.weight", 16, ECHO_WIDTH } };
    static const char *const norm[] = { "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight",
                                        "midlayer.post_attention_layernorm.weight", "norm.weight" };
    struct hf_file f = { 0 };
    struct moe_file *model;
    assert_int_equal(moe_file_open(&model, DEMO), 0);
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
        add_matrix(&f, zero[i].name, zero[i].n_in, zero[i].n_out, zero[i].n_in);
    add_matrix(&f, "fc.weight", 3 * ECHO_WIDTH, ECHO_WIDTH, 2 * ECHO_WIDTH);
    for (size_t i = 0; i < sizeof norm / sizeof *norm; i++)
        add_of_model(&f, model, "output_norm.weight", norm[i]);
    add_of_model(&f, model, moe_file_find_tensor(model, "output.weight") ? "output.weight" : "token_embd.weight",
                 "lm_head.weight");
    moe_file_close(model);
    mkdir(folder, 0777);
    hf_save(folder, "config.json", config, sizeof config - 1);
    hf_close(&f, folder, "model.safetensors");
}

/* The features that a head on inner layers gets are those of its row: with another row's its drafts would be others. */
static void the_features_are_those_of_the_row(void **state)
{
    (void)state;
    one_thread();
    struct eng_ids ids = { 0 };
    int32_t text[N_CTX];
    char draft[128];
    write_echo(other);
    snprintf(draft, sizeof draft, "eagle:%s,tree=chain", other);
    struct eng_engine *e = open_eagle(draft, KN_ISA_COUNT - 1, 33);
    eng_set_gamma(e, 3);
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    int n = record(e, &ids, text, 24), n_right = 0, n_all = 0;
    for (int k = 0; k < n; k++)
        for (int m = 0; m < pass[k].tree.n; m++, n_all++)
            n_right += pass[k].tree.token[m] == text[pass[k].n_token - 1];
    if (n_all < 40 || n_right < 0.95 * n_all)
        fail_msg("%d of %d drafted tokens repeat the last one", n_right, n_all);
    eng_close(e);
    eng_ids_free(&ids);
    remove_head_folder(other);
}

/* No node is more probable than its parent. A narrow tree has the most probable nodes of a wide tree. */
static void the_tree_holds_the_likeliest(void **state)
{
    (void)state;
    one_thread();
    struct eng_ids ids = { 0 };
    int32_t text[N_CTX];
    struct eng_engine *e = open_eagle(shape[2], KN_ISA_COUNT - 1, 512);
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    eng_set_gamma(e, 60);
    record(e, &ids, text, 1);
    struct spec_tree wide = pass[0].tree;
    int n = pass[0].n_token;
    assert_int_equal(wide.n, 60);
    int n_child[60] = { 0 }, n_continued = 0;
    for (int k = 0; k < wide.n; k++) {
        int parent = wide.parent[k];
        assert_true(parent == SPEC_ROOT || wide.survival[k] <= wide.survival[parent]);
        n_continued += parent != SPEC_ROOT && wide.depth[k] == 2 && n_child[parent]++ == 0;
    }
    assert_true(n_continued > 3);
    for (int gamma = 2; gamma <= 20; gamma += 6) {
        eng_set_gamma(e, gamma);
        const struct spec_tree *t = tree_behind(e, text, n, NULL);
        int deepest = 0;
        assert_int_equal(t->n, gamma);
        for (int k = 0; k < gamma; k++) { /* both trees are in this order */
            assert_true(t->token[k] == wide.token[k] && t->parent[k] == wide.parent[k] &&
                        t->survival[k] == wide.survival[k]);
            assert_true(k == 0 || t->survival[k] <= t->survival[k - 1]);
            deepest = kn_max(deepest, t->depth[k]);
        }
        assert_true(gamma < 8 || deepest > 2);
    }
    eng_close(e);
    eng_ids_free(&ids);
}

/* A chain forced by a bias to another first token, and the tree that contains the same path: equal probabilities, to
 * the bit. */
static void a_branch_is_a_chain(void **state)
{
    (void)state;
    one_thread();
    struct eng_ids ids = { 0 };
    struct eng_engine *chain = open_eagle(shape[0], KN_ISA_COUNT - 1, 512),
                      *tree = open_eagle(shape[2], KN_ISA_COUNT - 1, 512);
    int n_same = 0;
    texts_may_end = true; /* probabilities are those before tokens are forbidden */
    eng_set_gamma(tree, 60);
    assert_int_equal(eng_tokenize(eng_vocab(tree), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct eng_session *s;
        struct eng_request r = request(ids.id, (int)ids.n, N_CTX, seed);
        r.sampling.temperature = 0.7f;
        assert_int_equal(eng_session_open(&s, chain), 0);
        assert_int_equal(eng_session_start(s, &r), 0);
        while (s->seq.n_token == (int)ids.n)
            step(chain);
        int32_t text[N_CTX];
        int n = s->seq.n_token;
        memcpy(text, s->seq.token, (size_t)n * sizeof *text);
        eng_session_close(s);
        const struct spec_tree *t = tree_behind(tree, text, n, NULL);
        struct spec_bias but = { t->token[0], -1e6f };
        const struct spec_tree *c = tree_behind(chain, text, n, &but);
        assert_true(c->n > 0 && c->token[0] != t->token[0]);
        for (int k = 0, at = SPEC_ROOT; k < c->n && (at = spec_tree_child(t, at, c->token[k])) >= 0; k++) {
            assert_true(t->survival[at] == c->survival[k]);
            n_same += k > 1;
        }
    }
    texts_may_end = false;
    if (n_same < 2)
        fail_msg("%d nodes", n_same);
    eng_close(chain);
    eng_close(tree);
    eng_ids_free(&ids);
}

/* At a temperature the drafter adds the sampling noise, which determines the target's choice, to its own probabilities.
 * These requests take 175 passes without the noise, 144 with the noise only among the most probable tokens without
 * it. */
static void the_noise_is_known(void **state)
{
    (void)state;
    one_thread();
    struct eng_ids ids = { 0 };
    struct eng_engine *e = open_eagle(shape[2], KN_ISA_COUNT - 1, 512);
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct eng_session *s;
        struct eng_request r = request(ids.id, (int)ids.n, 48, seed);
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &r), 0);
        while (eng_session_runs(s))
            step(e);
        eng_session_close(s);
    }
    assert_int_equal(e->stats.n_token, 6 * 48);
    if (e->stats.n_pass >= 136)
        fail_msg("%d passes", (int)e->stats.n_pass);
    eng_close(e);
    eng_ids_free(&ids);
}

/* ---- unchanged answers -------------------------------------------------------------------------------- */

static void heads_change_nothing(void **state)
{
    (void)state;
    static const struct {
        int n_parallel, n_chunk, n_block, gamma;
    } tries[] = { { 4, 100, 0, 4 }, { 3, 33, 9, 25 }, { 4, 64, 9, 12 }, { 2, 512, 9, ENG_GAMMA_AUTO } };
    for (int i = 0; i < 4; i++) {
        struct eng_options o = { .n_parallel = tries[i].n_parallel,
                                 .n_chunk = tries[i].n_chunk,
                                 .n_thread = 1 + (i == 1),
                                 .gamma = tries[i].gamma,
                                 .n_draft = 1 };
        assert_int_equal(eng_draft_parse(&o.draft[0], shape[i % 3]), 0);
        struct eng_engine *e = open_engine_with(o, tries[i].n_block);
        asked_meddle = i == 1 ? reload_at_times : NULL;
        run_crowd(e, SHARE(8));
        asked_meddle = NULL;
        assert_true(!e->drafting->drafter[0]->broken && e->stats.n_draft_kept <= e->stats.n_draft);
        assert_true(!WHOLE || i == 3 || e->stats.n_draft_kept > 0);
        close_engine(e);
    }
}

/* Features of inner layers are stored per KV slot like those of the last layer: found by cache hits, and moved. */
static void nor_do_heads_on_inner_layers(void **state)
{
    (void)state;
    static const char *const trees[] = { ",tree=chain", ",tree=static", "" };
    for (int i = 0; i < 3; i++) {
        struct eng_options o = {
            .n_parallel = 3, .n_chunk = 33 + 31 * i, .n_thread = 1 + (i == 1), .gamma = 9, .n_draft = 1
        };
        char draft[128];
        snprintf(draft, sizeof draft, "eagle:%s%s", other, trees[i]);
        if (i == 2)
            write_head_folder(other, 256, 6);
        else
            assert_int_equal(write_head_of(other, HEAD_EAGLE3, 256, 6), 0);
        assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
        struct eng_engine *e = open_engine_with(o, i ? 9 : 0);
        run_crowd(e, SHARE(6));
        assert_true(!e->drafting->drafter[0]->broken && (!WHOLE || e->stats.n_draft > 100));
        close_engine(e);
        remove_head_folder(other);
    }
}

static void it_merges_with_others(void **state)
{
    (void)state;
    struct eng_options o = { .n_parallel = 3, .n_chunk = 64, .n_thread = 1, .gamma = 12, .n_draft = 2 };
    assert_int_equal(eng_draft_parse(&o.draft[0], "oracle:0.5"), 0);
    assert_int_equal(eng_draft_parse(&o.draft[1], shape[2]), 0);
    struct eng_engine *e = open_engine_with(o, 0);
    run_crowd(e, SHARE(6));
    assert_true(!WHOLE || e->stats.n_draft_kept > 0);
    close_engine(e);
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void make_other(const char *from, const struct change *change)
{
    struct moe_file *f;
    assert_int_equal(moe_file_open(&f, from), 0);
    change_write(f, change, other);
    moe_file_close(f);
}

static void it_stops_at_the_end_of_its_positions(void **state)
{
    (void)state;
    one_thread();
    struct eng_ids ids = { 0 };
    int32_t text[N_CTX];
    char draft[128];
    make_other(HEAD, &(struct change){ .key = "eagle.context_length", .type = MOE_U32, .number = 70 });
    snprintf(draft, sizeof draft, "eagle:%s", other);
    struct eng_engine *e = open_eagle(draft, KN_ISA_COUNT - 1, 512);
    assert_int_equal(eng_tokenize(eng_vocab(e), question, strlen(question), ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    faults_listen();
    int before = faults.n_line, n = record(e, &ids, text, MOST_PASS), drafted = 0;
    for (int i = 0; i < n; i++) {
        drafted += pass[i].tree.n > 0;
        for (int k = 0; k < pass[i].tree.n; k++)
            assert_true(pass[i].n_token + pass[i].tree.depth[k] <= 70);
    }
    assert_true(drafted > 0 && drafted < n);
    assert_int_equal(faults.n_line, before + 1);
    assert_non_null(strstr(faults.line, "was trained on 70 tokens"));
    faults_listen_off();
    eng_close(e);
    eng_ids_free(&ids);
    unlink(other);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const struct {
        struct change change;
        const char *says;
    } tries[] = {
        { { .key = "eagle.vocab_size", .type = MOE_U32, .number = 4097 }, "it has 4097 tokens, not 4096" },
        { { .drop = "eagle.vocab_size" }, "eagle.vocab_size is missing" },
        { { .key = "eagle.embedding_length", .type = MOE_U32, .number = 128 },
          "its features have 128 values, not 256" },
        { { .drop = "fc.weight" }, "tensor fc.weight is missing" },
        { { .drop = "blk.0.attn_q_norm.weight" }, "tensor blk.0.attn_q_norm.weight is missing" },
        { { .add = "output.weight" }, "tensor output.weight is no part" },
    };
    char draft[128];
    snprintf(draft, sizeof draft, "eagle:%s", other);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        make_other(HEAD, &tries[i].change);
        refuse(DEMO, draft, tries[i].says);
        unlink(other);
    }
    refuse(DEMO, "eagle:" DEMO, "not an EAGLE head");
    refuse(DEMO, "eagle:/nowhere", "/nowhere");
    refuse(HEAD, "none", HEAD);
    write_head_folder(other, 128, 6);
    refuse(DEMO, draft, "its features have 128 values, not 256");
    remove_head_folder(other);
}

static void wishes_are_read_or_refused(void **state)
{
    (void)state;
    struct eng_draft_option w;
    assert_int_equal(eng_draft_parse(&w, "eagle:a.gguf"), 0);
    assert_true(w.kind == ENG_DRAFT_EAGLE && w.tree == ENG_TREE_DYNAMIC && !strcmp(w.file, "a.gguf"));
    assert_int_equal(eng_draft_parse(&w, "eagle:a.gguf,tree=static"), 0);
    assert_true(w.tree == ENG_TREE_STATIC);
    assert_int_equal(eng_draft_parse(&w, "eagle:a.gguf,tree=chain"), 0);
    assert_true(w.tree == ENG_TREE_CHAIN);
    static const char *const bad[] = {
        "eagle", "eagle:", "eagle:a,tree", "eagle:a,tree=", "eagle:a,tree=round", "eagle:a,shared", "model:a,tree=round"
    };
    assert_wishes_refused(bad, sizeof bad / sizeof *bad);
}

static int setup_all(void **state)
{
    snprintf(other, sizeof other, "/tmp/spillway-head-%d.gguf", getpid());
    return setup_demo(state, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_drafts_what_the_reference_does),
        cmocka_unit_test(a_draft_is_of_the_text_alone),
        cmocka_unit_test(the_features_are_those_of_the_row),
        cmocka_unit_test(the_tree_holds_the_likeliest),
        cmocka_unit_test(a_branch_is_a_chain),
        cmocka_unit_test(the_noise_is_known),
        cmocka_unit_test(heads_change_nothing),
        cmocka_unit_test(nor_do_heads_on_inner_layers),
        cmocka_unit_test(it_merges_with_others),
        cmocka_unit_test(it_stops_at_the_end_of_its_positions),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(wishes_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_demo);
}
