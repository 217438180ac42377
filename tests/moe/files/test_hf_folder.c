/* Model folders of the transformers package: the same metadata, bytes and logits as the GGUF file of the
 * same weights; an invalid folder is refused in one line that names file and reason; a failing system call
 * leaks nothing.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/faults.h"
#include "tests/moe/hf_folder.h"
#include "tests/moe/folders.h"
#include "tests/moe/folder.h"
#include "moe/write/strip.h"

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

static char model[80]; /* the model's folder inside the test's folder */

static int setup(void **state)
{
    int error = folder_make(state);
    snprintf(model, sizeof model, "%s/model", folder);
    return error;
}

/* ---- the same model ---------------------------------------------------------------------------- */

/* Keys of GGUF files that say nothing about the model: the width of dense layers that it lacks, a scaling that there
 * is not, a list that is the usual one, and numbers without a meaning. */
static const char *const empty_keys[] = {
    "qwen35moe.feed_forward_length",
    "hunyuan-moe.rope.scaling.type",
    "hunyuan-moe.rope.scaling.factor",
    "hunyuan-moe.expert_shared_count",
    "ernie4_5-moe.interleave_moe_layer_step",
    "ernie4_5-moe.expert_shared_feed_forward_length",
    "hy_v3.expert_shared_feed_forward_length",
    "exaone-moe.attention.sliding_window_pattern",
    "exaone-moe.expert_shared_feed_forward_length",
    "gemma4.attention.shared_kv_layers",
    "gemma4.embedding_length_per_layer_input",
};

static bool is_empty_key(const char *key, const struct moe_file *gguf)
{
    if (!strcmp(key, "glm4moe.feed_forward_length") || !strcmp(key, "glm4moe.leading_dense_block_count"))
        return !moe_file_find_tensor(gguf, "blk.0.ffn_gate.weight");
    for (int i = 0; i < LEN(empty_keys); i++)
        if (!strcmp(key, empty_keys[i]))
            return true;
    return false;
}

/* Every architecture value of the GGUF file is in the folder's metadata too. */
static void same_metadata(const struct moe_file *gguf, const struct moe_file *hf)
{
    for (size_t i = 0; i < moe_file_value_count(gguf); i++) {
        const struct moe_value *v = moe_file_value(gguf, i), *w;
        char key[128];
        snprintf(key, sizeof key, "%.*s", (int)v->key.n, v->key.data);
        if (!strncmp(key, "general.", 8) || !strcmp(key, "tokenizer.ggml.pre") || strstr(key, "vocab_size"))
            continue;
        if (moe_file_find_tensor(gguf, "blk.0.attn_k_b.weight") && /* K and V in one matrix: head counts differ */
            (strstr(key, "key_length") || strstr(key, "value_length") || strstr(key, "head_count_kv")))
            continue;
        if (is_empty_key(key, gguf) ||
            (!strcmp(key, "phi3.attention.sliding_window") && moe_value_int(v, 0) == 0)) /* no window */
            continue;
        w = moe_file_find(hf, key);
        if (!w || w->type != v->type || w->n != v->n)
            fail_msg("%s is not in the folder, or another kind of value", key);
        for (size_t k = 0; k < v->n; k++)
            if (v->item == MOE_STRING) {
                struct moe_string a = ((const struct moe_string *)v->data)[k];
                struct moe_string b = ((const struct moe_string *)w->data)[k];
                assert_int_equal(a.n, b.n);
                assert_memory_equal(a.data, b.data, a.n);
            } else {
                assert_true(moe_value_float(v, k) == moe_value_float(w, k));
            }
    }
}

/* K and V of a head in one matrix are split by panels; in two of the fixtures the boundary is inside a panel. */
static bool is_in_panels(const struct moe_file *f)
{
    int64_t key = 0, n_rot = 0;
    moe_file_int(f, "deepseek2.attention.key_length", 0, 1000, &key);
    moe_file_int(f, "deepseek2.rope.dimension_count", 0, 1000, &n_rot);
    return (key - n_rot) % KN_PANEL == 0;
}

/* The GGUF file and the folder compute the same bytes. */
static void same_logits(const struct golden *g)
{
    float *x = logits_of(g, path), *y = logits_of(g, model);
    assert_memory_equal(x, y, 4 * (size_t)g->n_vocab * sizeof *x);
    free(x);
    free(y);
}

static void a_folder_is_as_its_gguf(void **state)
{
    const char *name = *state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct hf_folder h;
        struct moe_file *a, *b;
        if (hf_folder_read(&h, name))
            fail_msg("no fixture %s", name);
        hf_folder_write(&h, model, bf16, bf16 ? 3 : 1);
        assert_int_equal(hf_folder_gguf(&h, path, bf16), 0);
        assert_int_equal(moe_file_open(&a, path), 0);
        assert_int_equal(moe_file_open(&b, model), 0);
        assert_string_equal(moe_file_path(b), model);
        same_tensors(a, b);
        same_metadata(a, b);
        bool runs = is_in_panels(b);
        moe_file_close(a);
        moe_file_close(b);
        if (!runs) {
            hf_folder_free(&h);
            continue;
        }
        same_logits(&h.g);
        hf_folder_free(&h);
    }
}

/* Strips of a few rows have the bytes that moe_file_read() gives. */
static void strips_are_equal(struct moe_file *f)
{
    struct kn_team *team;
    int n_strip = 0;
    assert_int_equal(kn_team_open(&team, 2), 0);
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        const uint64_t n = t->dim[0] * t->dim[1] * t->dim[2];
        if (!moe_file_is_by_input(t))
            continue;
        const size_t one = (size_t)(t->bytes / n);
        struct moe_strip s = { .t = t, .one = one, .most = 5 * (size_t)t->dim[0] * one };
        uint8_t *want = malloc(t->bytes), *got = malloc(t->bytes);
        assert_int_equal(moe_file_read(f, t, 0, want, t->bytes), 0);
        for (uint64_t at = 0, k = 1; at < n; at += k, k = 3 * k + 1) {
            k = k < n - at ? k : n - at;
            assert_int_equal(moe_strip_read(&s, f, team, at, got + at * one, (size_t)k * one), 0);
        }
        assert_memory_equal(want, got, t->bytes);
        moe_strip_free(&s);
        free(want);
        free(got);
        n_strip++;
    }
    assert_in_range(n_strip, 3, 99);
    kn_team_close(team);
}

/* Both files quantised are equal. */
static void same_quantised(struct moe_file *a, struct moe_file *b)
{
    struct moe_quantize_options opt = { .ops = kn_ops(KN_ISA_SCALAR) };
    struct moe_file *f[2] = { a, b }, *out[2];
    char name[2][200];
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = KN_Q8_0;
    assert_int_equal(kn_team_open(&opt.team, 2), 0);
    for (int i = 0; i < 2; i++) {
        struct moe_quantized *done = calloc(moe_file_tensor_count(f[i]), sizeof *done);
        snprintf(name[i], sizeof name[i], "%s.%d", path, i);
        assert_int_equal(moe_quantize(name[i], f[i], &opt, done), 0);
        assert_int_equal(moe_file_open(&out[i], name[i]), 0);
        free(done);
    }
    kn_team_close(opt.team);
    same_tensors(out[0], out[1]);
    for (int i = 0; i < 2; i++) {
        moe_file_close(out[i]);
        remove(name[i]);
    }
}

/* Experts of llama4 stacked by input, as Meta published them: quantize reads them, and a model refuses them. */
static void stacks_by_input_are_read(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct hf_folder h;
        struct moe_file *a, *b;
        struct moe_model *m;
        int n = 0;
        assert_int_equal(hf_folder_read(&h, "llama4"), 0);
        for (int i = 0; i < h.n_tensor; i++) {
            struct hf_tensor t = h.tensor[i];
            int layer = 0;
            sscanf(t.name, "model.layers.%d.", &layer);
            if (strstr(t.name, "#.up_proj"))
                continue;
            if (strchr(t.name, '#')) {
                bool down = strstr(t.name, "down_proj");
                snprintf(t.name, sizeof t.name, "model.layers.%d.feed_forward.experts.%s_proj", layer,
                         down ? "down" : "gate_up");
                strcpy(t.how, down ? "inputs" : "fused-inputs");
            }
            h.tensor[n++] = t;
        }
        h.n_tensor = n;
        hf_folder_write(&h, model, bf16, 1);
        assert_int_equal(hf_folder_gguf(&h, path, bf16), 0);
        assert_int_equal(moe_file_open(&a, path), 0);
        assert_int_equal(moe_file_open(&b, model), 0);
        same_tensors(a, b);
        strips_are_equal(b);
        same_quantised(a, b);
        faults_reset();
        assert_int_equal(moe_model_open(&m, b, &(struct moe_model_options){ 0 }), KN_EUNSUPPORTED);
        assert_non_null(strstr(faults.line, "is a stack of experts stored by input; make a file of it first"));
        moe_file_close(a);
        moe_file_close(b);
        hf_folder_free(&h);
    }
}

/* Experts stacked in one tensor, gate and up joined, as the package holds them in memory. */
static void stacks_of_experts_are_taken_apart(void **state)
{
    (void)state;
    struct hf_folder h;
    struct moe_file *a, *b;
    int n = 0;
    assert_int_equal(hf_folder_read(&h, "qwen3moe_odd"), 0);
    for (int i = 0; i < h.n_tensor; i++) {
        struct hf_tensor t = h.tensor[i];
        int layer = 0;
        sscanf(t.name, "model.layers.%d.", &layer);
        if (strstr(t.name, "#.up_proj"))
            continue;
        if (strchr(t.name, '#')) {
            bool down = strstr(t.name, "down_proj");
            snprintf(t.name, sizeof t.name, "model.layers.%d.mlp.experts.%s_proj", layer, down ? "down" : "gate_up");
            strcpy(t.how, down ? "whole" : "fused");
        }
        h.tensor[n++] = t;
    }
    h.n_tensor = n;
    hf_folder_write(&h, model, true, 2);
    assert_int_equal(hf_folder_gguf(&h, path, true), 0);
    assert_int_equal(moe_file_open(&a, path), 0);
    assert_int_equal(moe_file_open(&b, model), 0);
    same_tensors(a, b);
    moe_file_close(a);
    moe_file_close(b);
    same_logits(&h.g);
    hf_folder_free(&h);
}

/* A model with vision contains a language model: its configuration and its tensor names are one level deeper, and
 * other tensors are ignored. */
static void within_another(const char *name, const char *model_type, const char *vision)
{
    struct hf_folder h;
    struct moe_file *a, *b;
    char config[4096];
    assert_int_equal(hf_folder_read(&h, name), 0);
    for (int i = 0; i < h.n_tensor; i++) {
        struct hf_tensor *t = &h.tensor[i];
        char inner[sizeof t->name];
        if (strncmp(t->name, "model.", 6))
            continue;
        assert_true(snprintf(inner, sizeof inner, "model.language_model.%.70s", t->name + 6) < (int)sizeof inner);
        memcpy(t->name, inner, sizeof inner);
    }
    assert_true(h.n_tensor < HF_MAX_TENSOR);
    struct hf_tensor *aside = &h.tensor[h.n_tensor++];
    *aside = (struct hf_tensor){ "", "output_norm.weight", "whole", 0, 0 };
    snprintf(aside->name, sizeof aside->name, "%s", vision);
    snprintf(config, sizeof config,
             "{\"model_type\":\"%s\",\"tie_word_embeddings\":%s,\"vision_config\":{},"
             "\"eos_token_id\":7,\"text_config\":%s}",
             model_type, strstr(h.config, "\"tie_word_embeddings\": true") ? "true" : "false", h.config);
    h.config = config;
    hf_folder_write(&h, model, false, 1);
    assert_int_equal(hf_folder_gguf(&h, path, false), 0);
    assert_int_equal(moe_file_open(&a, path), 0);
    assert_int_equal(moe_file_open(&b, model), 0);
    same_tensors(a, b);
    assert_null(moe_file_find_tensor(b, vision));
    if (moe_file_find_tensor(a, "blk.4.nextn.eh_proj.weight")) /* not a level deeper */
        assert_non_null(moe_file_find_tensor(b, "blk.4.nextn.eh_proj.weight"));
    moe_file_close(a);
    moe_file_close(b);
    same_logits(&h.g);
    hf_folder_free(&h);
}

static void a_language_model_within_another(void **state)
{
    (void)state;
    within_another("qwen35moe", "qwen3_5_moe", "model.visual.blocks.0.norm1.weight");
    within_another("gemma4_moe", "gemma4", "model.vision_tower.encoder.norm.weight");
    within_another("gemma4_dense", "gemma4", "model.embed_vision.embedding_projection.weight");
}

static char said[1024];
static void keep_line(enum kn_level level, const char *line)
{
    if (level == KN_LOG_ERROR)
        snprintf(said, sizeof said, "%s", line);
}

/* Opens the model at this path, which must be refused with a message that contains `line`. */
static void is_refused(const char *at, const char *line)
{
    struct moe_file *f;
    struct moe_model *m;
    said[0] = 0;
    kn_log_set(keep_line, KN_LOG_ERROR);
    int error = moe_file_open(&f, at);
    if (!error) {
        error = moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_SCALAR });
        moe_file_close(f);
    }
    kn_log_set(NULL, KN_LOG_INFO);
    assert_int_equal(error, KN_EUNSUPPORTED);
    if (!strstr(said, line))
        fail_msg("said '%s', not '%s'", said, line);
}

/* Models that have a family's name but parts of their own: gemma4's small ones, and heads that differ further. */
static void models_near_a_family_are_refused(void **state)
{
    static const struct {
        const char *key, *value, *line;
    } keys[] = {
        { "embedding_length_per_layer_input", "u32 32", "the program lacks embeddings for each layer" },
        { "attention.shared_kv_layers", "u32 2", "the program lacks layers that use the keys and values" },
        { "attn_logit_softcapping", "f32 0x1p+1", "logits that are limited by tanh" },
    }, fields[] = {
        { "\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 9", "adds embeddings for each layer" },
        { "\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 2", "lets layers use the keys and values" },
        { "\"head_dim\": 48, ", "\"head_dim\": 44, ", "does not say the same of all layers" },
        { "\"rope_type\": \"default\"", "\"rope_type\": \"dynamic\"", "of sliding_attention is not default" },
    };
    (void)state;
    for (int i = 0; i < LEN(keys) + LEN(fields); i++) {
        struct hf_folder h;
        char meta[128];
        assert_int_equal(hf_folder_read(&h, "gemma4_moe"), 0);
        if (i < LEN(keys)) {
            snprintf(meta, sizeof meta, "gemma4.%s ", keys[i].key);
            int at = 0;
            while (at < h.g.n_meta && strncmp(h.g.meta[at], meta, strlen(meta)))
                at++;
            snprintf(meta, sizeof meta, "gemma4.%s %s", keys[i].key, keys[i].value);
            h.g.meta[at] = meta;
            h.g.n_meta += at == h.g.n_meta;
            assert_int_equal(hf_folder_gguf(&h, path, false), 0);
            is_refused(path, keys[i].line);
        } else {
            char *at = strstr(h.config, fields[i - LEN(keys)].key);
            assert_non_null(at);
            memcpy(at, fields[i - LEN(keys)].value, strlen(fields[i - LEN(keys)].value));
            hf_folder_write(&h, model, false, 1);
            is_refused(model, fields[i - LEN(keys)].line);
        }
        hf_folder_free(&h);
    }
}

/* The folder of a mistral3 has its language model under "language_model.", in an order of names of its own, and a vision
 * part that is not used.  Its text is a ministral3, or by default a mistral. */
static void the_language_model_of_mistral3(void **state)
{
    static const char *const name[] = { "mistral3", "mistral" };
    (void)state;
    for (int k = 0; k < LEN(name); k++) {
        struct hf_folder h;
        struct moe_file *a, *b;
        char config[4096];
        assert_int_equal(hf_folder_read(&h, name[k]), 0);
        for (int i = 0; i < h.n_tensor; i++) {
            struct hf_tensor *t = &h.tensor[i];
            char inner[sizeof t->name];
            assert_true(snprintf(inner, sizeof inner, "language_model.%.70s", t->name) < (int)sizeof inner);
            memcpy(t->name, inner, sizeof inner);
        }
        h.tensor[h.n_tensor++] = (struct hf_tensor){ "vision_tower.ln_pre.weight", "output_norm.weight", "whole", 0,
                                                     0 };
        h.tensor[h.n_tensor++] = (struct hf_tensor){ "multi_modal_projector.norm.weight", "output_norm.weight", "whole",
                                                     0, 0 };
        snprintf(config, sizeof config,
                 "{\"model_type\":\"mistral3\",\"tie_word_embeddings\":false,\"vision_config\":{},\"text_config\":%s}",
                 h.config);
        char *type = k ? strstr(config + 30, "\"model_type\": \"mistral\"") : NULL;
        assert_true(!k || type);
        if (type)
            memcpy(type, "\"other_type\"", 12);
        h.config = config;
        hf_folder_write(&h, model, false, 1);
        assert_int_equal(hf_folder_gguf(&h, path, false), 0);
        assert_int_equal(moe_file_open(&a, path), 0);
        assert_int_equal(moe_file_open(&b, model), 0);
        same_tensors(a, b);
        moe_file_close(a);
        moe_file_close(b);
        same_logits(&h.g);
        hf_folder_free(&h);
    }
}

/* Settings that GGUF files have no key for, near those of a family. */
static void settings_without_a_key_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *from, *to, *says;
    } kind[] = {
        { "phimoe", "\"router_jitter_noise\": 0.01", "\"router_jitter_noise\": 0.02",
          "'router_jitter_noise' is not 0.01" },
        { "phimoe", "\"long_mscale\": 1.2", "\"long_mscale\": 1.3", "'long_mscale' is not 1.243163121016122" },
        { "llama4", "\"use_qk_norm\": true", "\"use_qk_norm\":false", "'use_qk_norm' is false without 128 experts" },
        { "llama4_128", "\"use_qk_norm\": false", "\"use_qk_norm\": true ", "'use_qk_norm' is true with 128 experts" },
        { "llama4", "\"attention_chunk_size\": 64", "\"attention_chunk_size\":  0",
          "'attention_chunk_size' is not set" },
        { "llama4", "\"chunked_attention\"", "\"full_attention\"   ", "'layer_types' is not full_attention in each" },
        { "llama4_128", "\"moe_layers\": [1", "\"moe_layers\": [0", "'moe_layers' is not each" },
        { "llama4", "\"no_rope_layers\": [1", "\"no_rope_layers\": [0", "'no_rope_layers' are not each fourth" },
        { "mistral4", "\"rope_type\": \"yarn\"", "\"rope_type\": \"none\"", "'rope_type' is not yarn" },
        { "gemma3", "\"gelu_pytorch_tanh\"", "\"gelu\"             ", "'hidden_activation' is not gelu_pytorch_tanh" },
        { "hunyuan_moe", "\"rope_type\": \"dynamic\"", "\"rope_type\": \"another\"", "'rope_type' is neither default" },
        { "hy_v3", "[\"dense\", \"sparse\", ", "[\"sparse\", \"dense\", ",
          "'mlp_layer_types' has dense layers behind" },
        { "exaone_moe", "[\"dense\", \"sparse\", ", "[\"sparse\", \"dense\", ",
          "'mlp_layer_types' has dense layers behind" },
        { "dots1", "[\"full_attention\", ", "[\"some_attention\", ", "'layer_types' has a type that is neither" },
        { "granitemoe", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "'hidden_act' is not silu" },
        { "solar_open", "\"rope_type\": \"yarn\"", "\"rope_type\": \"ntk1\"", "'rope_type' is neither default" },
        { "smollm3", "\"no_rope_layers\": [1", "\"no_rope_layers\": [0", "'no_rope_layers' are not each fourth" },
        { "phi3", "\"rope_type\": \"longrope\"", "\"rope_type\": \"longroad\"",
          "'rope_type' is neither default nor longrope" },
        { "mistral3", "\"rope_type\": \"yarn\"", "\"rope_type\": \"none\"", "'rope_type' is not yarn" },
        { "mimo_v2_flash", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "'hidden_act' is not silu" },
    };
    for (int i = 0; i < LEN(kind); i++) {
        struct hf_folder h;
        struct moe_file *f;
        assert_int_equal(hf_folder_read(&h, kind[i].name), 0);
        char *at = strstr(h.config, kind[i].from);
        if (!at)
            fail_msg("%s: no %s", kind[i].name, kind[i].from);
        assert_int_equal(strlen(kind[i].from), strlen(kind[i].to));
        memcpy(at, kind[i].to, strlen(kind[i].to));
        hf_folder_write(&h, model, false, 1);
        faults_reset();
        int got = moe_file_open(&f, model);
        if (got != KN_EUNSUPPORTED || !strstr(faults.line, kind[i].says))
            fail_msg("%d: %s: got %d: %s", i, kind[i].name, got, faults.line);
        hf_folder_free(&h);
    }
}

int main(void)
{
    static char *const name[] = {
        "llama_gqa",      "llama_rope3_tied",
        "llama_linear",   "mistral",
        "mixtral",        "qwen2",
        "qwen3_tied",     "qwen3_yarn",
        "qwen3moe_norm",  "qwen3moe_nonorm",
        "qwen3moe_odd",   "qwen2moe",
        "olmoe_clamp",    "glm4moe",
        "glm4moe_groups", "minimax_m2",
        "deepseek2_lite", "deepseek2_groups",
        "deepseek3",      "deepseek3_one_group",
        "qwen3next",      "qwen3next_odd",
        "qwen35moe",      "gemma3",
        "ernie4_5_moe",   "hunyuan_moe",
        "hy_v3",          "dots1",
        "granitemoe",     "exaone_moe",
        "solar_open",     "smollm3",
        "mistral3",       "phi3",
        "phi3_short",     "mistral4",
        "phimoe",         "llama4",
        "llama4_128",     "gemma4_moe",
        "gemma4_dense",   "mimo_v2_flash",
    };
    struct CMUnitTest tests[LEN(name) + 6];
    tests[LEN(name) + 5] = (struct CMUnitTest)cmocka_unit_test(stacks_by_input_are_read);
    tests[LEN(name) + 4] = (struct CMUnitTest)cmocka_unit_test(models_near_a_family_are_refused);
    tests[LEN(name) + 3] = (struct CMUnitTest)cmocka_unit_test(settings_without_a_key_are_refused);
    tests[LEN(name) + 2] = (struct CMUnitTest)cmocka_unit_test(the_language_model_of_mistral3);
    tests[LEN(name) + 1] = (struct CMUnitTest)cmocka_unit_test(a_language_model_within_another);
    tests[LEN(name)] = (struct CMUnitTest)cmocka_unit_test(stacks_of_experts_are_taken_apart);
    for (int i = 0; i < LEN(name); i++)
        tests[i] = (struct CMUnitTest){ name[i], a_folder_is_as_its_gguf, NULL, NULL, name[i] };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
