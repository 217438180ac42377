/* tests/engine/head.h - writes files with random weights: EAGLE heads for models of any width, which draft trees that
 * are nearly always wrong, and a network that predicts accepted draft lengths. Numbers come from
 * below() of same_answers.h. */
#ifndef TESTS_ENGINE_HEAD_H
#define TESTS_ENGINE_HEAD_H

#include "tests/engine/same_answers.h"
#include "tests/moe/hf_folder.h"

#define HEAD_MOST_WIDTH 256

enum head_kind { HEAD_EAGLE, HEAD_EAGLE3, HEAD_ANY };

struct head_tensor {
    const char *name;
    enum head_kind of;
    uint64_t n_in, n_out;
};

/* Metadata of a head. EAGLE-3: its features are those of three of the target's n_layer layers. */
static inline void write_head_numbers(struct moe_writer *w, enum head_kind kind, uint32_t d_model, int n_layer)
{
    const struct {
        const char *key;
        uint32_t value;
    } number[] = {
        { "block_count", 1 },           { "embedding_length", d_model },  { "context_length", 2048 },
        { "feed_forward_length", 64 },  { "attention.head_count", 4 },    { "attention.head_count_kv", 2 },
        { "attention.key_length", 32 }, { "attention.value_length", 32 }, { "vocab_size", (uint32_t)n_vocab }
    };
    const char *arch = kind == HEAD_EAGLE ? "eagle" : "eagle3";
    const int32_t inner[3] = { 0, n_layer / 2, n_layer - 1 };
    float eps = 1e-6f;
    char name[64];
    moe_writer_string(w, "general.architecture", arch, strlen(arch));
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", arch);
    moe_writer_value(w, name, MOE_F32, &eps);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        snprintf(name, sizeof name, "%s.%s", arch, number[i].key);
        moe_writer_value(w, name, MOE_U32, &number[i].value);
    }
    if (kind == HEAD_EAGLE3)
        moe_writer_array(w, "eagle3.extract_layers", MOE_I32, inner, 3);
}

static inline int write_head_data(struct moe_writer *w, const struct head_tensor *t)
{
    float row[3 * HEAD_MOST_WIDTH];
    int error = 0;
    assert_in_range(t->n_in, 1, sizeof row / sizeof *row);
    for (uint64_t n = t->n_out ? t->n_out : 1; n > 0 && !error; n--) {
        for (uint64_t k = 0; k < t->n_in; k++)
            row[k] = t->n_out ? (float)below(2001) / 1e4f - 0.1f : 1.0f;
        error = moe_writer_data(w, row, t->n_in * sizeof *row);
    }
    return error;
}

/* Writes a head: four attention heads of 32, two KV heads, d_ff 64. The vocabulary of an EAGLE-3 head is half the
 * target's. */
static inline int write_head_of(const char *file, enum head_kind kind, uint32_t d_model, int n_layer)
{
    const uint64_t d = d_model, wide = kind == HEAD_EAGLE ? d : 2 * d, n_guess = (uint64_t)n_vocab / 2;
    const struct head_tensor tensor[] = { { "fc", HEAD_ANY, kind == HEAD_EAGLE ? 2 * d : 3 * d, d },
                                          { "output_norm", HEAD_ANY, d, 0 },
                                          { "output", HEAD_EAGLE3, d, n_guess },
                                          { "blk.0.attn_norm", HEAD_ANY, d, 0 },
                                          { "blk.0.attn_norm_2", HEAD_EAGLE3, d, 0 },
                                          { "blk.0.attn_q", HEAD_ANY, wide, 128 },
                                          { "blk.0.attn_k", HEAD_ANY, wide, 64 },
                                          { "blk.0.attn_v", HEAD_ANY, wide, 64 },
                                          { "blk.0.attn_output", HEAD_ANY, 128, d },
                                          { "blk.0.attn_q_norm", HEAD_EAGLE, 32, 0 },
                                          { "blk.0.attn_k_norm", HEAD_EAGLE, 32, 0 },
                                          { "blk.0.ffn_norm", HEAD_ANY, d, 0 },
                                          { "blk.0.ffn_gate", HEAD_ANY, d, 64 },
                                          { "blk.0.ffn_up", HEAD_ANY, d, 64 },
                                          { "blk.0.ffn_down", HEAD_ANY, 64, d } };
    const size_t n = sizeof tensor / sizeof *tensor;
    struct moe_writer *w;
    char name[64];
    assert_in_range(d_model, 1, HEAD_MOST_WIDTH);
    int error = moe_writer_open(&w, file);
    if (error)
        return error;
    write_head_numbers(w, kind, d_model, n_layer);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.weight", tensor[i].name);
        if (tensor[i].of == kind || tensor[i].of == HEAD_ANY)
            moe_writer_tensor(w, name, KN_F32, tensor[i].n_out ? 2 : 1,
                              (uint64_t[2]){ tensor[i].n_in, tensor[i].n_out });
    }
    if (kind == HEAD_EAGLE3)
        moe_writer_ids(w, "d2t", n_guess);
    error = moe_writer_header(w);
    for (size_t i = 0; i < n && !error; i++)
        if (tensor[i].of == kind || tensor[i].of == HEAD_ANY)
            error = write_head_data(w, &tensor[i]);
    for (uint64_t i = 0; i < n_guess && kind == HEAD_EAGLE3 && !error; i++)
        error = moe_writer_data(w, &(int64_t){ 2 * (int64_t)i + 1 }, sizeof(int64_t));
    error = error ? error : moe_writer_finish(w);
    moe_writer_close(w);
    return error;
}

/* Writes an EAGLE-3 head of the same sizes as published: a folder of BF16 tensors, with a list of layers that begins with 1
 * and so counts outputs. */
static inline void write_head_folder(const char *folder, uint32_t d_model, int n_layer)
{
    const uint64_t d = d_model, n_guess = (uint64_t)n_vocab / 2;
    const struct {
        const char *name;
        uint64_t n_in, n_out; /* n_out 0: a vector */
    } tensor[] = { { "fc", 3 * d, d },
                   { "norm", d, 0 },
                   { "lm_head", d, n_guess },
                   { "midlayer.input_layernorm", d, 0 },
                   { "midlayer.hidden_norm", d, 0 },
                   { "midlayer.self_attn.q_proj", 2 * d, 128 },
                   { "midlayer.self_attn.k_proj", 2 * d, 64 },
                   { "midlayer.self_attn.v_proj", 2 * d, 64 },
                   { "midlayer.self_attn.o_proj", 128, d },
                   { "midlayer.post_attention_layernorm", d, 0 },
                   { "midlayer.mlp.gate_proj", d, 64 },
                   { "midlayer.mlp.up_proj", d, 64 },
                   { "midlayer.mlp.down_proj", 64, d } };
    struct hf_file f = { 0 };
    char name[64], config[512];
    int64_t *apart = calloc(n_guess, sizeof *apart);
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) {
        uint64_t dim[] = { tensor[i].n_in, tensor[i].n_out },
                 n = tensor[i].n_in * (tensor[i].n_out ? tensor[i].n_out : 1);
        float *x = malloc(n * sizeof *x);
        for (uint64_t k = 0; k < n; k++)
            x[k] = tensor[i].n_out ? (float)below(2001) / 1e4f - 0.1f : 1.0f;
        snprintf(name, sizeof name, "%s.weight", tensor[i].name);
        hf_add(&f, name, x, dim, tensor[i].n_out ? 2 : 1, true);
        free(x);
    }
    for (uint64_t i = 0; i < n_guess; i++) /* tokens 1, 3, 5 .. */
        apart[i] = (int64_t)i + 1;
    hf_add_raw(&f, "d2t", "I64", apart, n_guess * sizeof *apart, &n_guess, 1);
    free(apart);
    int n = snprintf(config, sizeof config,
                     "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"model_type\":\"llama\",\"hidden_size\":%u,"
                     "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"intermediate_size\":64,"
                     "\"num_hidden_layers\":1,\"vocab_size\":%d,\"draft_vocab_size\":%llu,"
                     "\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[1,2,%d]}}",
                     d_model, n_vocab, (unsigned long long)n_guess, n_layer - 2);
    mkdir(folder, 0777);
    hf_save(folder, "config.json", config, (size_t)n);
    hf_close(&f, folder, "model.safetensors");
}

static inline void remove_head_folder(const char *folder)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static inline int write_head(const char *file, uint32_t d_model) { return write_head_of(file, HEAD_EAGLE, d_model, 0); }

/* Network that predicts the accepted draft length: random weights for n_in input features. */
static inline void write_lengths(const char *file, int n_in)
{
    enum { HIDDEN = 8 };
    const uint64_t in[] = { (uint64_t)n_in, HIDDEN, HIDDEN }, out[] = { HIDDEN, HIDDEN, SPEC_LENGTHS };
    static float weight[4096];
    struct moe_writer *w;
    char name[32];
    assert_int_equal(moe_writer_open(&w, file), 0);
    for (int i = 0; i < 4096; i++)
        weight[i] = (float)(below(2001) - 1000) / 1000;
    for (int i = 0; i < SPEC_LENGTH_LAYERS; i++) {
        snprintf(name, sizeof name, "lengths.%d.weight", i);
        assert_int_equal(moe_writer_tensor(w, name, KN_F32, 2, (uint64_t[]){ out[i], in[i] }), 0);
        snprintf(name, sizeof name, "lengths.%d.bias", i);
        assert_int_equal(moe_writer_tensor(w, name, KN_F32, 1, &out[i]), 0);
    }
    assert_int_equal(moe_writer_header(w), 0);
    for (int i = 0; i < SPEC_LENGTH_LAYERS; i++) {
        assert_int_equal(moe_writer_data(w, weight, in[i] * out[i] * sizeof *weight), 0);
        assert_int_equal(moe_writer_data(w, weight, out[i] * sizeof *weight), 0);
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
}

#endif
