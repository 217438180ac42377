/* moe/write/synth_shapes.c - the shapes for synthetic models: published models, and tiny ones for tests. */
#include "moe/write/write.h"

#include <string.h>

static const struct moe_synth_shape shapes[] = {
    {
        .name = "qwen3-30b-a3b", .arch = "qwen3moe", .pre = "qwen2",
        .n_layer = 48, .d_model = 2048, .n_head = 32, .n_kv = 4, .d_head = 128, .d_ff = 6144,
        .n_expert = 128, .n_used = 8, .d_expert = 768, .n_vocab = 151936, .n_ctx = 40960,
        .rope_base = 1e6f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "qwen3-235b-a22b", .arch = "qwen3moe", .pre = "qwen2",
        .n_layer = 94, .d_model = 4096, .n_head = 64, .n_kv = 4, .d_head = 128, .d_ff = 12288,
        .n_expert = 128, .n_used = 8, .d_expert = 1536, .n_vocab = 151936, .n_ctx = 40960,
        .rope_base = 1e6f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "mixtral-8x7b", .arch = "llama", .pre = "llama-bpe",
        .n_layer = 32, .d_model = 4096, .n_head = 32, .n_kv = 8, .d_head = 128, .d_ff = 14336,
        .n_expert = 8, .n_used = 2, .d_expert = 14336, .n_vocab = 32000, .n_ctx = 32768,
        .rope_base = 1e6f, .eps = 1e-5f,
    }, {
        .name = "qwen2-57b-a14b", .arch = "qwen2moe", .pre = "qwen2",
        .n_layer = 28, .d_model = 3584, .n_head = 28, .n_kv = 4, .d_head = 128, .d_ff = 18944,
        .n_expert = 64, .n_used = 8, .d_expert = 2560, .n_vocab = 151936, .n_ctx = 32768,
        .d_shared = 20480, .qkv_bias = true,
        .rope_base = 1e6f, .eps = 1e-6f,
    }, {
        .name = "olmoe", .arch = "olmoe", .pre = "olmo",
        .n_layer = 16, .d_model = 2048, .n_head = 16, .n_kv = 16, .d_head = 128, .d_ff = 1024,
        .n_expert = 64, .n_used = 8, .d_expert = 1024, .n_vocab = 50304, .n_ctx = 4096,
        .rope_base = 1e4f, .eps = 1e-5f, .qk_norm = MOE_QK_NORM_ALL,
    }, {
        .name = "gpt-oss-120b", .arch = "gpt-oss", .pre = "gpt-4o",
        .n_layer = 36, .d_model = 2880, .n_head = 64, .n_kv = 8, .d_head = 64, .d_ff = 2880,
        .n_expert = 128, .n_used = 4, .d_expert = 2880, .n_vocab = 201088, .n_ctx = 131072,
        .window = 128, .yarn_factor = 32, .yarn_ctx = 4096, .qkv_bias = true,
        .rope_base = 15e4f, .eps = 1e-5f,
    }, {
        .name = "glm-4.5-air", .arch = "glm4moe", .pre = "glm4",
        .n_layer = 46, .d_model = 4096, .n_head = 96, .n_kv = 8, .d_head = 128, .d_ff = 10944,
        .n_expert = 128, .n_used = 8, .d_expert = 1408, .n_vocab = 151552, .n_ctx = 131072,
        .d_shared = 1408, .n_lead = 1, .n_rot = 64, .qkv_bias = true, .expert_scale = 1,
        .rope_base = 1e6f, .eps = 1e-5f,
    }, {
        .name = "minimax-m2", .arch = "minimax-m2", .pre = "minimax-m2",
        .n_layer = 62, .d_model = 3072, .n_head = 48, .n_kv = 8, .d_head = 128, .d_ff = 1536,
        .n_expert = 256, .n_used = 8, .d_expert = 1536, .n_vocab = 200064, .n_ctx = 196608,
        .n_rot = 64, .rope_base = 5e6f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_ALL,
    }, {
        .name = "qwen3-next-80b-a3b", .arch = "qwen3next", .pre = "qwen2",
        .n_layer = 48, .d_model = 2048, .n_head = 16, .n_kv = 2, .d_head = 256, .d_ff = 5120,
        .n_expert = 512, .n_used = 10, .d_expert = 512, .n_vocab = 151936, .n_ctx = 262144,
        .d_shared = 512, .n_rot = 64, .n_key_head = 16, .n_value_head = 32, .d_state = 128,
        .rope_base = 1e7f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "deepseek-v2-lite", .arch = "deepseek2", .pre = "deepseek-llm",
        .n_layer = 27, .d_model = 2048, .n_head = 16, .n_kv = 1, .d_head = 192, .d_ff = 10944,
        .n_expert = 64, .n_used = 6, .d_expert = 1408, .n_vocab = 102400, .n_ctx = 163840,
        .d_latent = 512, .d_value = 128, .n_rot = 64, .d_shared = 2816, .n_lead = 1, .expert_scale = 1,
        .yarn_factor = 40, .yarn_ctx = 4096, .yarn_log = 0.0707f,
        .rope_base = 1e4f, .eps = 1e-6f,
    }, {
        .name = "deepseek-v3", .arch = "deepseek2", .pre = "deepseek-v3",
        .n_layer = 61, .d_model = 7168, .n_head = 128, .n_kv = 1, .d_head = 192, .d_ff = 18432,
        .n_expert = 256, .n_used = 8, .d_expert = 2048, .n_vocab = 129280, .n_ctx = 163840,
        .d_latent = 512, .d_query_latent = 1536, .d_value = 128, .n_rot = 64, .d_shared = 2048, .n_lead = 3,
        .expert_scale = 2.5f, .sigmoid = true, .n_group = 8, .n_group_used = 4,
        .yarn_factor = 40, .yarn_ctx = 4096, .yarn_log = 0.1f,
        .rope_base = 1e4f, .eps = 1e-6f,
    }, {
        .name = "kimi-k2", .arch = "deepseek2", .pre = "kimi-k2",
        .n_layer = 61, .d_model = 7168, .n_head = 64, .n_kv = 1, .d_head = 192, .d_ff = 18432,
        .n_expert = 384, .n_used = 8, .d_expert = 2048, .n_vocab = 163840, .n_ctx = 131072,
        .d_latent = 512, .d_query_latent = 1536, .d_value = 128, .n_rot = 64, .d_shared = 2048, .n_lead = 1,
        .expert_scale = 2.827f, .sigmoid = true, .n_group = 1, .n_group_used = 1,
        .yarn_factor = 32, .yarn_ctx = 4096, .yarn_log = 0.1f,
        .rope_base = 5e4f, .eps = 1e-6f,
    }, {
        .name = "tiny", .arch = "qwen3moe", .pre = "qwen2",
        .n_layer = 3, .d_model = 256, .n_head = 8, .n_kv = 2, .d_head = 64, .d_ff = 512,
        .n_expert = 12, .n_used = 3, .d_expert = 256, .n_vocab = 2048, .n_ctx = 4096,
        .rope_base = 1e6f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "tiny-dense", .arch = "qwen3", .pre = "qwen2",
        .n_layer = 3, .d_model = 256, .n_head = 8, .n_kv = 2, .d_head = 64, .d_ff = 768,
        .n_vocab = 2048, .n_ctx = 4096,
        .rope_base = 1e6f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "tiny-qwen2moe", .arch = "qwen2moe", .pre = "qwen2",
        .n_layer = 2, .d_model = 128, .n_head = 4, .n_kv = 2, .d_head = 32, .d_ff = 256,
        .n_expert = 8, .n_used = 2, .d_expert = 64, .n_vocab = 1024, .n_ctx = 2048,
        .d_shared = 160, .qkv_bias = true,
        .rope_base = 1e6f, .eps = 1e-6f,
    }, {
        .name = "tiny-olmoe", .arch = "olmoe", .pre = "olmo",
        .n_layer = 2, .d_model = 128, .n_head = 4, .n_kv = 4, .d_head = 32, .d_ff = 64,
        .n_expert = 8, .n_used = 3, .d_expert = 64, .n_vocab = 1024, .n_ctx = 2048,
        .rope_base = 1e4f, .eps = 1e-5f, .qk_norm = MOE_QK_NORM_ALL,
    }, {
        .name = "tiny-gpt-oss", .arch = "gpt-oss", .pre = "gpt-4o",
        .n_layer = 2, .d_model = 128, .n_head = 4, .n_kv = 2, .d_head = 32, .d_ff = 96,
        .n_expert = 8, .n_used = 2, .d_expert = 96, .n_vocab = 1024, .n_ctx = 2048,
        .window = 21, .yarn_factor = 8, .yarn_ctx = 256, .qkv_bias = true,
        .rope_base = 15e4f, .eps = 1e-5f,
    }, {
        .name = "tiny-glm4moe", .arch = "glm4moe", .pre = "glm4",
        .n_layer = 3, .d_model = 128, .n_head = 4, .n_kv = 2, .d_head = 32, .d_ff = 160,
        .n_expert = 8, .n_used = 2, .d_expert = 64, .n_vocab = 1024, .n_ctx = 2048,
        .d_shared = 128, .n_lead = 1, .n_rot = 16, .qkv_bias = true, .expert_scale = 1.5f,
        .rope_base = 1e6f, .eps = 1e-5f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {                        /* value heads that share key heads; partly filled tiles */
        .name = "tiny-qwen3next", .arch = "qwen3next", .pre = "qwen2",
        .n_layer = 5, .d_model = 128, .n_head = 4, .n_kv = 2, .d_head = 32, .d_ff = 96,
        .n_expert = 8, .n_used = 2, .d_expert = 32, .n_vocab = 1024, .n_ctx = 2048,
        .d_shared = 32, .n_rot = 8, .n_key_head = 2, .n_value_head = 4, .d_state = 24,
        .rope_base = 1e7f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "tiny-qwen35moe", .arch = "qwen35moe", .pre = "qwen2",
        .n_layer = 4, .d_model = 128, .n_head = 4, .n_kv = 1, .d_head = 32, .d_ff = 96,
        .n_expert = 6, .n_used = 2, .d_expert = 64, .n_vocab = 1024, .n_ctx = 2048,
        .d_shared = 64, .n_rot = 16, .n_key_head = 2, .n_value_head = 6, .d_state = 32,
        .rope_base = 1e7f, .eps = 1e-6f, .qk_norm = MOE_QK_NORM_HEAD,
    }, {
        .name = "tiny-deepseek2", .arch = "deepseek2", .pre = "deepseek-llm",
        .n_layer = 3, .d_model = 128, .n_head = 18, .n_kv = 1, .d_head = 40, .d_ff = 160,
        .n_expert = 8, .n_used = 2, .d_expert = 64, .n_vocab = 1024, .n_ctx = 2048,
        .d_latent = 32, .d_query_latent = 64, .d_value = 16, .n_rot = 8, .d_shared = 64, .n_lead = 1,
        .expert_scale = 1.5f, .sigmoid = true, .n_group = 4, .n_group_used = 2,
        .yarn_factor = 8, .yarn_ctx = 256, .yarn_log = 0.1f,
        .rope_base = 1e4f, .eps = 1e-6f,
    }, {                        /* dense FFN rows in blocks of 32, shared expert rows in blocks of 256 */
        .name = "tiny-lite", .arch = "deepseek2", .pre = "deepseek-llm",
        .n_layer = 2, .d_model = 256, .n_head = 4, .n_kv = 1, .d_head = 40, .d_ff = 352,
        .n_expert = 8, .n_used = 2, .d_expert = 128, .n_vocab = 512, .n_ctx = 2048,
        .d_latent = 32, .d_value = 16, .n_rot = 8, .d_shared = 256, .n_lead = 1, .expert_scale = 1,
        .rope_base = 1e4f, .eps = 1e-6f,
    }, {                        /* rows that are no whole blocks; n_expert is no power of two */
        .name = "tiny-odd", .arch = "llama", .pre = "llama-bpe",
        .n_layer = 2, .d_model = 192, .n_head = 6, .n_kv = 3, .d_head = 32, .d_ff = 200,
        .n_expert = 6, .n_used = 2, .d_expert = 200, .n_vocab = 1024, .n_ctx = 2048,
        .rope_base = 1e4f, .eps = 1e-5f,
    },
};
#define N_SHAPE ((int)(sizeof shapes / sizeof *shapes))

const char *moe_synth_shape(int i)
{
    return i >= 0 && i < N_SHAPE ? shapes[i].name : NULL;
}

const struct moe_synth_shape *moe_synth_shape_find(const char *name)
{
    for (int i = 0; i < N_SHAPE; i++)
        if (!strcmp(shapes[i].name, name))
            return &shapes[i];
    return NULL;
}
