/* tests/engine/head.h - an EAGLE head of random weights, for models of any width: what it guesses is wrong, and
 * is a tree.  The including test draws its numbers (asked.h). */
#ifndef TESTS_ENGINE_HEAD_H
#define TESTS_ENGINE_HEAD_H

#include "tests/engine/asked.h"

#define HEAD_MOST_WIDTH 256

/* Four heads of 32, two of keys, and as much in between as there are of those. */
static inline int write_head(const char *file, uint32_t d_model)
{
    const struct { const char *key; uint32_t value; } number[] = {
        { "block_count", 1 }, { "embedding_length", d_model }, { "context_length", 2048 },
        { "feed_forward_length", 64 }, { "attention.head_count", 4 }, { "attention.head_count_kv", 2 },
        { "attention.key_length", 32 }, { "attention.value_length", 32 }, { "vocab_size", (uint32_t)n_vocab } };
    const struct { const char *name; uint64_t n_in, n_out; } tensor[] = {
        { "fc", 2 * d_model, d_model }, { "output_norm", d_model, 0 }, { "blk.0.attn_norm", d_model, 0 },
        { "blk.0.attn_q", d_model, 128 }, { "blk.0.attn_k", d_model, 64 }, { "blk.0.attn_v", d_model, 64 },
        { "blk.0.attn_output", 128, d_model }, { "blk.0.attn_q_norm", 32, 0 }, { "blk.0.attn_k_norm", 32, 0 },
        { "blk.0.ffn_norm", d_model, 0 }, { "blk.0.ffn_gate", d_model, 64 }, { "blk.0.ffn_up", d_model, 64 },
        { "blk.0.ffn_down", 64, d_model } };
    static float value[2 * HEAD_MOST_WIDTH * HEAD_MOST_WIDTH];
    struct moe_writer *w;
    float eps = 1e-6f;
    char name[64];
    assert_in_range(d_model, 1, HEAD_MOST_WIDTH);
    int error = moe_writer_open(&w, file);
    if (error)
        return error;
    moe_writer_string(w, "general.architecture", "eagle", 5);
    moe_writer_value(w, "eagle.attention.layer_norm_rms_epsilon", MOE_F32, &eps);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        snprintf(name, sizeof name, "eagle.%s", number[i].key);
        moe_writer_value(w, name, MOE_U32, &number[i].value);
    }
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) {
        snprintf(name, sizeof name, "%s.weight", tensor[i].name);
        moe_writer_tensor(w, name, KN_F32, tensor[i].n_out ? 2 : 1,
                          (uint64_t[2]){ tensor[i].n_in, tensor[i].n_out });
    }
    error = moe_writer_header(w);
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor && !error; i++) {
        uint64_t n = tensor[i].n_in * (tensor[i].n_out ? tensor[i].n_out : 1);
        for (uint64_t k = 0; k < n; k++)
            value[k] = tensor[i].n_out ? (float)below(2001) / 1e4f - 0.1f : 1.0f;
        error = moe_writer_data(w, value, n * sizeof *value);
    }
    error = error ? error : moe_writer_finish(w);
    moe_writer_close(w);
    return error;
}

#endif
