/* moe/files/hf_families.c - the families whose folders are read: the model_type of config.json and the rules to convert it.
 *
 * A vision model may have its language model in text_config, with a model_type of its own: struct moe_hf_outer.  Messages
 * list both tables, so that a new row is in the list of supported families, too. */
#include "moe/files/hf_folder.h"

#include <stdio.h>
#include <string.h>

static const struct moe_hf_family families[] = {
    { "llama", "llama", .turned = true },
    { "mistral", "llama", .turned = true, .windows = WINDOW_ALL },
    { "ministral", "llama", .turned = true, .windows = WINDOW_ALL },
    { "mixtral", "llama", .turned = true, .experts = true, .windows = WINDOW_ALL },
    { "qwen2", "qwen2", .windows = WINDOW_FROM },
    { "qwen3", "qwen3", .windows = WINDOW_FROM },
    { "qwen2_moe", "qwen2moe", .experts = true, .windows = WINDOW_EVEN_BEFORE },
    { "qwen3_moe", "qwen3moe", .experts = true, .windows = WINDOW_ALL },
    { "olmoe", "olmoe", .experts = true },
    { "gpt_oss", "gpt-oss", .experts = true, .post_norm = true, .expert_is_ffn = true, .transposed = true,
      .windows = WINDOW_EVEN },
    { "glm4_moe", "glm4moe", .experts = true, .post_norm = true, .sigmoid = true },
    { "minimax_m2", "minimax-m2", .experts = true, .expert_is_ffn = true, .sigmoid = true },
    { "deepseek_v2", "deepseek2", .experts = true, .latent = true },
    { "deepseek_v3", "deepseek2", .experts = true, .latent = true, .sigmoid = true },
    { "kimi_k2", "deepseek2", .experts = true, .latent = true, .sigmoid = true },
    { "gemma3_text", "gemma3", .post_norm = true, .norms_less_1 = true, .geglu = true, .windows = WINDOW_PERIOD,
      .window_period = 6, .window_rope = true },
    { "gemma4_text", "gemma4", .experts = true, .post_norm = true, .geglu = true, .windows = WINDOW_PERIOD,
      .window_period = 6, .window_rope = true, .window_heads = true },
    { "gemma4", "gemma4", .experts = true, .post_norm = true, .geglu = true, .windows = WINDOW_PERIOD,
      .window_period = 6, .window_rope = true, .window_heads = true, .nested = true,
      .aside = { "model.vision_tower.", "model.audio_tower.", "model.embed_" } },
    { "mimo_v2_flash", "mimo2", .experts = true, .sigmoid = true, .windows = WINDOW_NOT_FIRST, .window_rope = true,
      .window_heads = true, .aside = { "model.mtp." } },
    { "ernie4_5_moe", "ernie4_5-moe", .experts = true, .aside = { "model.mtp_" } },
    { "hunyuan_v1_moe", "hunyuan-moe", .experts = true, .expert_is_ffn = true, .shared_is_ffn = true },
    { "hy_v3", "hy_v3", .experts = true, .sigmoid = true },
    { "dots1", "dots1", .experts = true, .sigmoid = true, .windows = WINDOW_FROM },
    { "granitemoe", "granitemoe", .turned = true, .experts = true, .expert_is_ffn = true },
    { "granitemoeshared", "granitemoe", .turned = true, .experts = true, .expert_is_ffn = true },
    { "exaone_moe", "exaone-moe", .experts = true, .sigmoid = true, .windows = WINDOW_PERIOD, .window_period = 4,
      .mtp_apart = true },
    { "solar_open", "glm4moe", .experts = true, .post_norm = true, .sigmoid = true },
    { "smollm3", "smollm3", .turned = true },
    { "phi3", "phi3", .windows = WINDOW_ALL },
    { "ministral3", "mistral3", .turned = true, .windows = WINDOW_ALL, .query_scale = true },
    { "mistral4", "mistral4", .experts = true, .latent = true, .query_scale = true },
    { "phimoe", "phimoe", .experts = true, .expert_is_ffn = true, .windows = WINDOW_ALL },
    { "llama4_text", "llama4", .experts = true, .expert_is_ffn = true, .chunks = true, .transposed = true },
    { "qwen3_next", "qwen3next", .experts = true, .post_norm = true, .delta = true, .aside = { "model.visual." },
      .norms_less_1 = true, .mtp_apart = true },
    { "qwen3_5_moe_text", "qwen35moe", .experts = true, .post_norm = true, .delta = true, .aside = { "model.visual." },
      .norms_less_1 = true, .mtp_apart = true, .tiled = true },
    { "qwen3_5_moe", "qwen35moe", .experts = true, .post_norm = true, .delta = true, .aside = { "model.visual." },
      .norms_less_1 = true, .mtp_apart = true, .tiled = true, .nested = true },
};

/* text_config without a model_type is the first of `inner`. */
static const struct moe_hf_outer outers[] = {
    { "llama4", { "llama4_text" }, .tied = false },
    { "mistral3", { "mistral", "ministral3", "mistral4" }, .tied = true },
};

#define N(table) (sizeof(table) / sizeof *(table))

const struct moe_hf_family *moe_hf_find_family(const char *model_type)
{
    for (size_t i = 0; i < N(families); i++)
        if (!strcmp(model_type, families[i].model_type))
            return &families[i];
    return NULL;
}

const struct moe_hf_outer *moe_hf_find_outer(const char *model_type)
{
    for (size_t i = 0; i < N(outers); i++)
        if (!strcmp(model_type, outers[i].model_type))
            return &outers[i];
    return NULL;
}

static void append(char *out, size_t size, const char *name)
{
    size_t n = strlen(out);
    snprintf(out + n, size - n, "%s%s", n ? ", " : "", name);
}

void moe_hf_list_families(char *out, size_t size)
{
    *out = 0;
    for (size_t i = 0; i < N(families); i++)
        append(out, size, families[i].model_type);
    for (size_t i = 0; i < N(outers); i++)
        append(out, size, outers[i].model_type);
}

void moe_hf_list_inner(const struct moe_hf_outer *outer, char *out, size_t size)
{
    char types[128] = "";
    for (int i = 0; i < MOE_HF_INNER && outer->inner[i]; i++)
        append(types, sizeof types, outer->inner[i]);
    snprintf(out, size, "of a %s has another model_type than: %s", outer->model_type, types);
}
