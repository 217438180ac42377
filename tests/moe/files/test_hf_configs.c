/* Folders whose config.json leaves fields out, has fields of other families, puts a RoPE scaling at the older place, or
 * has sliding windows, tied embeddings or tensors that it switches off: the logits at every position are those of the
 * transformers package (tests/fixtures/make_configs.py).  Configurations that the engine does not support are refused in
 * one line.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/moe/hf_folder.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define LEN(a)    ((int)(sizeof(a) / sizeof *(a)))
#define N_TOK     64
#define TOLERANCE 2e-5

static char model[80]; /* the model's folder inside the test's folder */

static int setup(void **state)
{
    int error = folder_make(state);
    snprintf(model, sizeof model, "%s/model", folder);
    return error || mkdir(model, 0755) ? -1 : 0;
}

static json_t *config_of(const char *name)
{
    char full[160];
    snprintf(full, sizeof full, "tests/fixtures/configs/%s.txt", name);
    char *text = hf_slurp(full), *line = text ? strstr(text, "\nconfig ") : NULL;
    json_t *config = line ? json_loads(line + 8, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    assert_non_null(config);
    free(text);
    return config;
}

static void save_config(json_t *config)
{
    char *text = json_dumps(config, 0);
    hf_save(model, "config.json", text, strlen(text));
    kn_heap_free(text);
}

static const struct golden_tensor *tensor_of(const struct golden *g, const char *name)
{
    for (int i = 0; i < g->n_tensor; i++)
        if (!strcmp(g->tensor[i].name, name))
            return &g->tensor[i];
    fail_msg("the fixture has no %s", name);
    return NULL;
}

/* Writes the fixture as a folder.  head_of: the tensor whose values lm_head.weight gets, or NULL for its own. */
static void write_folder_with(struct golden *g, const char *name, const char *head_of)
{
    static const char tokenizer[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                                    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}}";
    struct hf_file file = { 0 };
    char other[100];
    snprintf(other, sizeof other, "../configs/%s", name);
    if (golden_read(g, other))
        fail_msg("no fixture %s", name);
    json_t *config = config_of(name);
    save_config(config);
    json_decref(config);
    hf_save(model, "tokenizer.json", tokenizer, sizeof tokenizer - 1);
    for (int i = 0; i < g->n_tensor; i++) {
        const struct golden_tensor *t = &g->tensor[i];
        uint64_t n;
        bool is_copy = head_of && !strcmp(t->name, "lm_head.weight");
        float *x = golden_values(g->seed, is_copy ? tensor_of(g, head_of) : t, &n);
        hf_add(&file, t->name, x, t->dim, t->n_dim, false);
        free(x);
    }
    hf_close(&file, model, "model.safetensors");
}

static void write_folder(struct golden *g, const char *name) { write_folder_with(g, name, NULL); }

/* The logits at every position: [N_TOK][n_vocab]; the caller frees them. */
static float *all_logits(const struct golden *g, const char *name)
{
    struct kn_team *team;
    struct moe_file *f;
    struct moe_model *m;
    struct moe_context *c;
    struct moe_row row[N_TOK];
    struct moe_result result;
    int32_t slot[N_TOK];
    size_t bytes = N_TOK * (size_t)g->n_vocab * sizeof(float);
    assert_int_equal(g->n_tok, N_TOK);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&f, name), 0);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team }), 0);
    struct moe_context_options co = {
        .max_row = N_TOK, .max_want = N_TOK, .n_slot = N_TOK, .max_pos = N_TOK, .kv = KN_KV_F32, .team = team
    };
    assert_int_equal(moe_context_open(&c, m, &co), 0);
    for (int i = 0; i < N_TOK; i++) {
        slot[i] = i;
        row[i] = (struct moe_row){
            .token = g->token[i], .position = i, .want_logits = true, .base = slot, .n_base = N_TOK
        };
    }
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = N_TOK }, &result), 0);
    for (int i = 0; i < N_TOK; i++)
        assert_int_equal(result.status[i], 0);
    float *out = malloc(bytes);
    memcpy(out, result.logits, bytes);
    moe_context_close(c);
    moe_model_close(m);
    moe_file_close(f);
    kn_team_close(team);
    return out;
}

static void a_folder_is_read_as_transformers_reads_it(void **state)
{
    struct golden g;
    double worst = 0;
    write_folder(&g, *state);
    float *x = all_logits(&g, model);
    for (int i = 0; i < N_TOK; i++)
        worst = fmax(worst, golden_apart(&g, &g.row[i], x + (size_t)i * (size_t)g.n_vocab));
    if (!(worst < TOLERANCE))
        fail_msg("%s: largest difference / largest logit %.2g", (char *)*state, worst);
    free(x);
    golden_free(&g);
}

/* A GGUF file that `quantize` makes of the folder has all that the folder's configuration says. */
static void a_gguf_file_of_it_gives_the_same_bytes(void **state)
{
    struct golden g;
    struct moe_file *f;
    static struct moe_quantized done[2 * GOLDEN_MAX_TENSOR];
    struct moe_quantize_options opt = { .ops = kn_ops(KN_ISA_COUNT - 1) }; /* KN_F32 for every part */
    write_folder(&g, *state);
    assert_int_equal(KN_F32, 0);
    assert_int_equal(kn_team_open(&opt.team, 2), 0);
    assert_int_equal(moe_file_open(&f, model), 0);
    assert_true(moe_file_tensor_count(f) <= LEN(done));
    assert_int_equal(moe_quantize(path, f, &opt, done), 0);
    moe_file_close(f);
    kn_team_close(opt.team);
    float *x = all_logits(&g, model), *y = all_logits(&g, path);
    assert_memory_equal(x, y, N_TOK * (size_t)g.n_vocab * sizeof *x);
    free(x);
    free(y);
    golden_free(&g);
}

/* One field of a fixture's configuration is set to a value. */
static void a_refusal_is_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *name, *key, *value;
        int code;
        const char *says;
    } kind[] = {
        { "deepseek3_defaults", "rope_interleave", "null", KN_EUNSUPPORTED, "'rope_interleave' is not true" },
        { "deepseek3_defaults", "rope_interleave", "false", KN_EUNSUPPORTED, "'rope_interleave' is not true" },
        { "deepseek3_defaults", "routed_scaling_factor", "0", KN_EUNSUPPORTED, "'routed_scaling_factor' is 0" },
        { "deepseek3_defaults", "rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"mscale_all_dim\":1}",
          KN_EUNSUPPORTED, "'mscale_all_dim'" },
        { "deepseek3_defaults", "rope_scaling", "{\"type\":\"llama3\",\"factor\":2}", KN_ECORRUPT, "llama3" },
        { "deepseek3_defaults", "rope_scaling", "[1]", KN_ECORRUPT, "'rope_scaling' is no object" },
        { "window_qwen3", "rope_parameters", "[1]", KN_ECORRUPT, "'rope_parameters' is no object" },
        { "deepseek2_greedy", "topk_method", "\"noaux\"", KN_EUNSUPPORTED, "'topk_method'" },
        { "window_qwen3", "use_sliding_window", "false", KN_EUNSUPPORTED, "'layer_types' has sliding_attention" },
        { "window_qwen3", "layer_types", "[\"full_attention\"]", KN_ECORRUPT, "'layer_types'" },
        { "window_qwen3", "layer_types", "[\"full_attention\",\"chunked_attention\"]", KN_EUNSUPPORTED,
          "'layer_types'" },
        { "window_qwen3", "sliding_window", "0", KN_EUNSUPPORTED, "'sliding_window' is 0" },
        { "window_qwen3", "sliding_window", "-1", KN_ECORRUPT, "'sliding_window'" },
        { "window_qwen3", "rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}", KN_EUNSUPPORTED,
          "for each type of layer" },
        { "glm4_off", "partial_rotary_factor", "0.01", KN_ECORRUPT, "no part of a head is rotated" },
        { "window_qwen2_moe", "mlp_only_layers", "[1]", KN_EUNSUPPORTED, "'mlp_only_layers'" },
        { "window_mistral", "model_type", "\"mistral3\"", KN_ECORRUPT, "'text_config' is no object" },
        { "window_mistral", "model_type", "\"step3p7\"", KN_EUNSUPPORTED, "lacks another number of heads" },
        { "window_mistral", "model_type", "\"bailing_moe\"", KN_EUNSUPPORTED, "GGUF files of bailingmoe" },
        { "gemma3_old", "model_type", "\"gemma3\"", KN_EUNSUPPORTED, "lacks a vision part" },
        { "gemma3_old", "model_type", "\"gemma2\"", KN_EUNSUPPORTED, "model_type \"gemma2\" is not supported" },
        { "gemma3_old", "final_logit_softcapping", "30.0", KN_EUNSUPPORTED, "'final_logit_softcapping' is set" },
        { "gemma3_old", "hidden_activation", "\"gelu\"", KN_EUNSUPPORTED, "'hidden_activation'" },
        { "gemma3_old", "use_bidirectional_attention", "true", KN_EUNSUPPORTED, "'use_bidirectional_attention'" },
        { "gemma3_old", "query_pre_attn_scalar", "0", KN_ECORRUPT, "'query_pre_attn_scalar'" },
        { "gemma3_old", "rope_parameters", "{\"sliding_attention\":{\"rope_type\":\"linear\"}}", KN_EUNSUPPORTED,
          "'rope_type' of sliding_attention" },
        { "ernie_defaults", "moe_layer_interval", "2", KN_EUNSUPPORTED, "'moe_layer_interval' is not 1" },
        { "ernie_defaults", "moe_layer_end_index", "0", KN_EUNSUPPORTED, "'moe_layer_end_index'" },
    };
    for (int i = 0; i < LEN(kind); i++) {
        struct golden g;
        struct moe_file *f = NULL;
        write_folder(&g, kind[i].name);
        json_t *config = config_of(kind[i].name);
        json_object_set_new(config, kind[i].key, json_loads(kind[i].value, JSON_DECODE_ANY, NULL));
        save_config(config);
        json_decref(config);
        golden_free(&g);
        faults_reset();
        int got = moe_file_open(&f, model);
        if (got != kind[i].code || (got && (faults.n_line != 1 || !strstr(faults.line, kind[i].says))))
            fail_msg("%s: %s %s: got %d, want %d; %d lines: %s", kind[i].name, kind[i].key, kind[i].value, got,
                     kind[i].code, faults.n_line, faults.line);
        moe_file_close(f);
        assert_true(faults_clean());
    }
}

/* An output matrix with the values of the tied embedding is not stored twice in memory; a failing read of the comparison
 * leaves nothing behind. */
static void an_equal_output_matrix_is_the_embedding(void **state)
{
    (void)state;
    struct golden g;
    struct moe_file *f;
    write_folder_with(&g, "tied_other", "model.embed_tokens.weight");
    assert_int_equal(moe_file_open(&f, model), 0);
    assert_null(moe_file_find_tensor(f, "output.weight"));
    moe_file_close(f);
    int err = KN_EIO;
    for (long n = 1; err; n++) {
        faults_at(FAULT_READ, n, FAULT_ERROR, EIO);
        err = moe_file_open(&f, model);
        assert_true(!err || (err == KN_EIO && faults.n_line == 1));
        if (!err)
            moe_file_close(f);
        assert_true(faults_clean());
    }
    faults_reset();
    golden_free(&g);
}

/* transformers' own "no maximum" has 31 digits. */
static void whole_numbers_may_be_of_any_size(void **state)
{
    (void)state;
    struct golden g;
    struct moe_file *f;
    static const char config[] =
        "{\"model_max_length\": 1000000000000000019884624838656, \"x\": \"\\\"12345678901234567890\","
        " \"y\": [-123456789012345678901234567890, 1.00000000000000000000000001]}";
    write_folder(&g, "window_qwen2");
    hf_save(model, "tokenizer_config.json", config, sizeof config - 1);
    assert_int_equal(moe_file_open(&f, model), 0);
    moe_file_close(f);
    golden_free(&g);
}

int main(void)
{
    static char *const name[] = {
        "scaling_beside",   "other_fields",       "window_mistral",     "window_by_types",  "window_mixtral",
        "window_qwen2",     "window_qwen3",       "window_qwen2_moe",   "window_qwen3_moe", "tied_other",
        "tied_only",        "deepseek2_greedy",   "deepseek3_defaults", "deepseek3_dense",  "glm4_off",
        "minimax_defaults", "qwen3next_defaults", "qwen35_defaults",    "gemma3_old",       "ernie_defaults",
    };
    struct CMUnitTest tests[2 * LEN(name) + 3];
    for (int i = 0; i < LEN(name); i++) {
        tests[2 * i] = (struct CMUnitTest){ name[i], a_folder_is_read_as_transformers_reads_it, NULL, NULL, name[i] };
        tests[2 * i + 1] = (struct CMUnitTest){ name[i], a_gguf_file_of_it_gives_the_same_bytes, NULL, NULL, name[i] };
    }
    tests[2 * LEN(name)] = (struct CMUnitTest)cmocka_unit_test(a_refusal_is_one_line);
    tests[2 * LEN(name) + 2] = (struct CMUnitTest)cmocka_unit_test(an_equal_output_matrix_is_the_embedding);
    tests[2 * LEN(name) + 1] = (struct CMUnitTest)cmocka_unit_test(whole_numbers_may_be_of_any_size);
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
