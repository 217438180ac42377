/* moe/files/hf_fields.c - the fields of config.json that a family's configuration class knows, with their defaults.
 *
 * The transformers package reads config.json into a class for each model_type.  A field that the file omits has the
 * class's default, and a field that the class does not know has no effect.  The table has these classes as data: one
 * "name=default" for each field that hf_config.c reads, as in transformers 5.23.  So hf_config.c reads d->fields and
 * needs neither a default nor a list of families at the place where it reads a field.  An explicit null stays null. */
#include "moe/files/hf_folder.h"

#include <string.h>

/* Fields of every class. */
#define EVERY "hidden_act=\"silu\" rope_parameters=null rope_scaling=null original_max_position_embeddings=null "

/* rope_theta is a field of no class, but all read it; the default differs. */
#define BASE        "rope_theta=10000.0 "
#define QWEN_WINDOW "use_sliding_window=false sliding_window=4096 "
#define SPARSE      "decoder_sparse_step=1 mlp_only_layers=null "
#define DELTA                                                                                                          \
    "linear_conv_kernel_dim=4 linear_key_head_dim=128 linear_value_head_dim=128 linear_num_key_heads=16 "              \
    "linear_num_value_heads=32 layer_types=null full_attention_interval=4 attn_output_gate=true "                      \
    "partial_rotary_factor=0.25 attention_bias=false head_dim=256 num_attention_heads=16 num_key_value_heads=2 "       \
    "rms_norm_eps=1e-6 max_position_embeddings=32768 hidden_size=2048 moe_intermediate_size=512 "                      \
    "shared_expert_intermediate_size=512 "
#define MISTRAL                                                                                                        \
    EVERY BASE "hidden_size=4096 intermediate_size=14336 num_hidden_layers=32 num_attention_heads=32 "                 \
               "num_key_value_heads=8 head_dim=null max_position_embeddings=131072 rms_norm_eps=1e-6 "                 \
               "tie_word_embeddings=false sliding_window=4096 layer_types=null "
#define GRANITE                                                                                                        \
    EVERY BASE "hidden_size=4096 intermediate_size=11008 num_hidden_layers=32 num_attention_heads=32 "                 \
               "num_key_value_heads=null head_dim=null max_position_embeddings=2048 rms_norm_eps=1e-6 "                \
               "tie_word_embeddings=false attention_bias=false embedding_multiplier=1.0 logits_scaling=1.0 "           \
               "residual_multiplier=1.0 attention_multiplier=1.0 num_local_experts=8 num_experts_per_tok=2 "
#define DEEPSEEK3                                                                                                      \
    EVERY BASE "hidden_size=7168 intermediate_size=18432 moe_intermediate_size=2048 num_hidden_layers=61 "             \
               "num_attention_heads=128 num_key_value_heads=128 n_shared_experts=1 n_routed_experts=256 "              \
               "routed_scaling_factor=2.5 kv_lora_rank=512 q_lora_rank=1536 qk_rope_head_dim=64 v_head_dim=128 "       \
               "qk_nope_head_dim=128 n_group=8 topk_group=4 num_experts_per_tok=8 first_k_dense_replace=3 "            \
               "norm_topk_prob=true max_position_embeddings=4096 rms_norm_eps=1e-6 tie_word_embeddings=false "         \
               "rope_interleave=true attention_bias=false "

#define GEMMA4                                                                                                         \
    "rope_scaling=null original_max_position_embeddings=null hidden_activation=\"gelu_pytorch_tanh\" "                 \
    "rope_parameters={\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,"              \
    "\"rope_theta\":1000000.0},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}} "             \
    "hidden_size=2304 intermediate_size=9216 num_hidden_layers=30 num_attention_heads=8 num_key_value_heads=4 "        \
    "head_dim=256 global_head_dim=512 num_global_key_value_heads=null max_position_embeddings=131072 "                 \
    "rms_norm_eps=1e-6 tie_word_embeddings=true attention_bias=false sliding_window=512 layer_types=null "             \
    "sliding_window_pattern=6 final_logit_softcapping=null use_bidirectional_attention=null "                          \
    "hidden_size_per_layer_input=256 attention_k_eq_v=false num_kv_shared_layers=0 enable_moe_block=false "            \
    "num_experts=null top_k_experts=null moe_intermediate_size=null per_layer_config=null "

#define LLAMA4                                                                                                         \
    EVERY "rope_theta=500000.0 hidden_size=5120 intermediate_size=8192 intermediate_size_mlp=16384 "                   \
          "num_hidden_layers=48 num_attention_heads=40 num_key_value_heads=8 head_dim=128 "                            \
          "max_position_embeddings=131072 rms_norm_eps=1e-5 tie_word_embeddings=false num_experts_per_tok=1 "          \
          "num_local_experts=16 moe_layers=null interleave_moe_layer_step=1 use_qk_norm=true no_rope_layers=null "     \
          "no_rope_layer_interval=4 attention_chunk_size=8192 layer_types=null attn_temperature_tuning=true "          \
          "floor_scale=8192 attn_scale=0.1 attention_bias=false "

static const struct {
    const char *model_type, *fields;
} classes[] = {
    { "llama", EVERY BASE "hidden_size=4096 intermediate_size=11008 num_hidden_layers=32 num_attention_heads=32 "
                          "num_key_value_heads=null head_dim=null max_position_embeddings=2048 rms_norm_eps=1e-6 "
                          "tie_word_embeddings=false attention_bias=false " },
    { "eagle3", EVERY BASE "hidden_size=4096 intermediate_size=11008 num_hidden_layers=32 num_attention_heads=32 "
                           "num_key_value_heads=null head_dim=null max_position_embeddings=2048 rms_norm_eps=1e-6 "
                           "tie_word_embeddings=false attention_bias=false " },
    { "mistral", MISTRAL }, /* with layer_types, transformers reads it as ministral */
    { "ministral", MISTRAL },
    { "mixtral", EVERY "rope_theta=1000000.0 hidden_size=4096 intermediate_size=14336 num_hidden_layers=32 "
                       "num_attention_heads=32 num_key_value_heads=8 head_dim=null max_position_embeddings=131072 "
                       "rms_norm_eps=1e-5 tie_word_embeddings=false sliding_window=null num_experts_per_tok=2 "
                       "num_local_experts=8 " },
    { "qwen2", EVERY BASE QWEN_WINDOW
      "hidden_size=4096 intermediate_size=22016 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 "
      "head_dim=null max_position_embeddings=32768 rms_norm_eps=1e-6 tie_word_embeddings=false max_window_layers=28 "
      "layer_types=null " },
    { "qwen3", EVERY BASE QWEN_WINDOW
      "hidden_size=4096 intermediate_size=22016 num_hidden_layers=32 num_attention_heads=32 num_key_value_heads=32 "
      "head_dim=128 max_position_embeddings=32768 rms_norm_eps=1e-6 tie_word_embeddings=false max_window_layers=28 "
      "layer_types=null attention_bias=false " },
    { "qwen2_moe", EVERY BASE QWEN_WINDOW SPARSE
      "hidden_size=2048 intermediate_size=5632 num_hidden_layers=24 num_attention_heads=16 num_key_value_heads=16 "
      "head_dim=null max_position_embeddings=32768 rms_norm_eps=1e-6 tie_word_embeddings=false max_window_layers=28 "
      "layer_types=null moe_intermediate_size=1408 shared_expert_intermediate_size=5632 num_experts_per_tok=4 "
      "num_experts=60 norm_topk_prob=false qkv_bias=true " },
    { "qwen3_moe", EVERY BASE QWEN_WINDOW SPARSE
      "hidden_size=2048 intermediate_size=6144 num_hidden_layers=24 num_attention_heads=32 num_key_value_heads=4 "
      "head_dim=null max_position_embeddings=32768 rms_norm_eps=1e-6 tie_word_embeddings=false attention_bias=false "
      "moe_intermediate_size=768 num_experts_per_tok=8 num_experts=128 norm_topk_prob=false " },
    { "olmoe", EVERY BASE "hidden_size=2048 intermediate_size=2048 num_hidden_layers=16 num_attention_heads=16 "
                          "num_key_value_heads=null head_dim=null max_position_embeddings=4096 rms_norm_eps=1e-5 "
                          "tie_word_embeddings=false attention_bias=false clip_qkv=null num_experts_per_tok=8 "
                          "num_experts=64 norm_topk_prob=false " },
    { "gpt_oss", "hidden_act=\"silu\" rope_scaling=null original_max_position_embeddings=null "
                 "rope_parameters={\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
                 "\"truncate\":false,\"original_max_position_embeddings\":4096} "
                 "rope_theta=150000.0 hidden_size=2880 intermediate_size=2880 num_hidden_layers=36 "
                 "num_attention_heads=64 num_key_value_heads=8 head_dim=64 max_position_embeddings=131072 "
                 "rms_norm_eps=1e-5 tie_word_embeddings=false attention_bias=true sliding_window=128 "
                 "layer_types=null num_experts_per_tok=4 num_local_experts=128 swiglu_alpha=1.702 "
                 "swiglu_limit=7.0 " },
    { "glm4_moe", EVERY BASE "hidden_size=4096 intermediate_size=10944 num_hidden_layers=46 num_attention_heads=96 "
                             "num_key_value_heads=8 head_dim=null max_position_embeddings=131072 rms_norm_eps=1e-5 "
                             "tie_word_embeddings=false attention_bias=false use_qk_norm=false "
                             "partial_rotary_factor=0.5 moe_intermediate_size=1408 num_experts_per_tok=8 "
                             "n_shared_experts=1 n_routed_experts=128 routed_scaling_factor=1.0 n_group=1 topk_group=1 "
                             "first_k_dense_replace=1 norm_topk_prob=true " },
    { "minimax_m2", EVERY "rope_theta=5000000.0 hidden_size=3072 intermediate_size=1536 num_hidden_layers=62 "
                          "num_attention_heads=48 num_key_value_heads=8 head_dim=128 max_position_embeddings=196608 "
                          "rms_norm_eps=1e-6 tie_word_embeddings=false num_experts_per_tok=8 num_local_experts=256 "
                          "partial_rotary_factor=null rotary_dim=null " },
    { "deepseek_v2",
      EVERY BASE "hidden_size=4096 intermediate_size=11008 moe_intermediate_size=1407 num_hidden_layers=32 "
                 "num_attention_heads=32 num_key_value_heads=null n_shared_experts=2 n_routed_experts=64 "
                 "routed_scaling_factor=1.0 kv_lora_rank=512 q_lora_rank=1536 qk_rope_head_dim=64 v_head_dim=128 "
                 "qk_nope_head_dim=128 n_group=null topk_group=null topk_method=\"greedy\" num_experts_per_tok=null "
                 "first_k_dense_replace=0 max_position_embeddings=2048 rms_norm_eps=1e-6 tie_word_embeddings=false "
                 "attention_bias=false " },
    { "deepseek_v3", DEEPSEEK3 },
    { "kimi_k2", DEEPSEEK3 }, /* its published configuration class is that of deepseek_v3 */
    { "gemma3_text",
      "rope_parameters=null rope_scaling=null original_max_position_embeddings=null rope_theta=1000000.0 "
      "rope_local_base_freq=10000.0 hidden_activation=\"gelu_pytorch_tanh\" hidden_size=2304 intermediate_size=9216 "
      "num_hidden_layers=26 num_attention_heads=8 num_key_value_heads=4 head_dim=256 max_position_embeddings=131072 "
      "rms_norm_eps=1e-6 tie_word_embeddings=true attention_bias=false query_pre_attn_scalar=256 sliding_window=4096 "
      "layer_types=null sliding_window_pattern=6 final_logit_softcapping=null attn_logit_softcapping=null "
      "use_bidirectional_attention=false " },
    { "gemma4_text", GEMMA4 },
    { "gemma4", GEMMA4 },
    { "mimo_v2_flash",
      EVERY "hidden_size=4096 intermediate_size=16384 num_hidden_layers=48 num_attention_heads=64 "
            "num_key_value_heads=4 head_dim=192 v_head_dim=128 max_position_embeddings=131072 rms_norm_eps=1e-5 "
            "tie_word_embeddings=false attention_bias=false moe_intermediate_size=2048 num_experts_per_tok=8 "
            "n_routed_experts=256 routed_scaling_factor=1.0 n_group=1 topk_group=1 norm_topk_prob=true "
            "sliding_window=129 sliding_window_size=null layer_types=null mlp_layer_types=null "
            "attention_value_scale=0.707 partial_rotary_factor=0.334 "
            "rope_parameters={\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":5000000.0,"
            "\"partial_rotary_factor\":0.334},\"sliding_attention\":{\"rope_type\":\"default\","
            "\"rope_theta\":10000.0,\"partial_rotary_factor\":0.334}} " },
    { "ernie4_5_moe",
      EVERY "rope_theta=500000.0 hidden_size=2560 intermediate_size=12288 num_hidden_layers=28 num_attention_heads=20 "
            "num_key_value_heads=4 head_dim=null max_position_embeddings=131072 rms_norm_eps=1e-5 "
            "tie_word_embeddings=true moe_intermediate_size=1536 moe_k=6 moe_num_experts=64 moe_num_shared_experts=2 "
            "moe_layer_start_index=1 moe_layer_end_index=-1 moe_layer_interval=1 " },
    { "hunyuan_v1_moe",
      EVERY BASE "hidden_size=4096 intermediate_size=11008 num_hidden_layers=32 num_attention_heads=32 "
                 "num_key_value_heads=null head_dim=null max_position_embeddings=2048 rms_norm_eps=1e-5 "
                 "tie_word_embeddings=false attention_bias=false num_experts=1 moe_topk=1 " },
    { "hy_v3", EVERY "rope_theta=11158840.0 hidden_size=4096 intermediate_size=13312 num_hidden_layers=80 "
                     "num_attention_heads=64 num_key_value_heads=8 head_dim=128 max_position_embeddings=131072 "
                     "rms_norm_eps=1e-5 tie_word_embeddings=false attention_bias=false num_experts=192 "
                     "num_experts_per_tok=8 num_shared_experts=1 moe_intermediate_size=1536 "
                     "router_scaling_factor=2.826 mlp_layer_types=null " },
    { "dots1", EVERY BASE "hidden_size=4608 intermediate_size=10944 moe_intermediate_size=1408 num_hidden_layers=62 "
                          "num_attention_heads=32 num_key_value_heads=32 head_dim=null max_position_embeddings=2048 "
                          "rms_norm_eps=1e-6 tie_word_embeddings=false attention_bias=false n_shared_experts=null "
                          "n_routed_experts=null n_group=1 topk_group=1 num_experts_per_tok=null "
                          "first_k_dense_replace=0 norm_topk_prob=false routed_scaling_factor=1.0 sliding_window=4096 "
                          "max_window_layers=62 layer_types=null " },
    { "granitemoe", GRANITE },
    { "granitemoeshared", GRANITE "shared_intermediate_size=0 " },
    { "exaone_moe",
      EVERY BASE "hidden_size=4096 intermediate_size=16384 num_hidden_layers=32 num_attention_heads=32 "
                 "num_key_value_heads=32 head_dim=null max_position_embeddings=2048 rms_norm_eps=1e-5 "
                 "tie_word_embeddings=false sliding_window=4096 sliding_window_pattern=4 layer_types=null "
                 "mlp_layer_types=null first_k_dense_replace=1 moe_intermediate_size=1024 num_experts=64 "
                 "num_experts_per_tok=8 num_shared_experts=1 norm_topk_prob=true routed_scaling_factor=2.5 n_group=1 "
                 "topk_group=1 " },
    { "solar_open",
      EVERY "rope_theta=1000000.0 hidden_size=4096 num_hidden_layers=48 num_attention_heads=64 num_key_value_heads=8 "
            "head_dim=128 max_position_embeddings=131072 rms_norm_eps=1e-5 tie_word_embeddings=false "
            "attention_bias=false partial_rotary_factor=null moe_intermediate_size=1280 num_experts_per_tok=8 "
            "n_shared_experts=1 n_routed_experts=128 routed_scaling_factor=1.0 n_group=1 topk_group=1 "
            "norm_topk_prob=true " },
    { "smollm3",
      EVERY "rope_theta=2000000.0 hidden_size=2048 intermediate_size=11008 num_hidden_layers=36 num_attention_heads=16 "
            "num_key_value_heads=4 head_dim=null max_position_embeddings=32768 rms_norm_eps=1e-6 "
            "tie_word_embeddings=true attention_bias=false use_sliding_window=false sliding_window=null "
            "no_rope_layers=null no_rope_layer_interval=4 layer_types=null " },
    { "phi3",
      "hidden_act=\"silu\" rope_parameters=null rope_scaling=null original_max_position_embeddings=4096 "
      "rope_theta=10000.0 partial_rotary_factor=1.0 hidden_size=3072 intermediate_size=8192 num_hidden_layers=32 "
      "num_attention_heads=32 num_key_value_heads=null head_dim=null max_position_embeddings=4096 rms_norm_eps=1e-5 "
      "tie_word_embeddings=false sliding_window=null " },
    { "ministral3",
      "hidden_act=\"silu\" rope_scaling=null original_max_position_embeddings=null rope_theta=1000000.0 "
      "rope_parameters={\"type\":\"yarn\",\"rope_theta\":1000000.0,\"factor\":16.0,"
      "\"original_max_position_embeddings\":16384,\"beta_fast\":32.0,\"beta_slow\":1.0,\"mscale_all_dim\":1.0,"
      "\"mscale\":1.0,\"llama_4_scaling_beta\":0.1} "
      "hidden_size=4096 intermediate_size=14336 num_hidden_layers=34 num_attention_heads=32 num_key_value_heads=8 "
      "head_dim=128 max_position_embeddings=262144 rms_norm_eps=1e-5 tie_word_embeddings=false sliding_window=null " },
    { "mistral4",
      "hidden_act=\"silu\" rope_scaling=null original_max_position_embeddings=null rope_theta=10000.0 "
      "rope_parameters={\"type\":\"yarn\",\"rope_theta\":10000.0,\"factor\":128.0,"
      "\"original_max_position_embeddings\":8192,\"beta_fast\":32.0,\"beta_slow\":1.0,\"mscale_all_dim\":1.0,"
      "\"mscale\":1.0,\"llama_4_scaling_beta\":0.1} "
      "hidden_size=4096 intermediate_size=12288 moe_intermediate_size=2048 num_hidden_layers=36 "
      "num_attention_heads=32 num_key_value_heads=32 n_shared_experts=1 n_routed_experts=128 "
      "routed_scaling_factor=1.0 kv_lora_rank=256 q_lora_rank=1024 qk_rope_head_dim=64 v_head_dim=128 "
      "qk_nope_head_dim=64 n_group=1 topk_group=1 num_experts_per_tok=4 first_k_dense_replace=0 norm_topk_prob=true "
      "max_position_embeddings=1048576 rms_norm_eps=1e-6 tie_word_embeddings=false rope_interleave=true "
      "attention_bias=false " },
    { "phimoe",
      EVERY "rope_theta=1000000.0 hidden_size=4096 intermediate_size=6400 num_hidden_layers=32 num_attention_heads=32 "
            "num_key_value_heads=8 head_dim=null max_position_embeddings=131072 rms_norm_eps=1e-5 "
            "tie_word_embeddings=false sliding_window=null num_experts_per_tok=2 num_local_experts=16 "
            "router_jitter_noise=0.01 attention_bias=false lm_head_bias=false " },
    { "llama4_text", LLAMA4 },
    { "qwen3_next", EVERY BASE DELTA SPARSE "intermediate_size=5632 num_hidden_layers=48 tie_word_embeddings=false "
                                            "num_experts_per_tok=10 num_experts=512 norm_topk_prob=true " },
    { "qwen3_5_moe_text", EVERY BASE DELTA "num_hidden_layers=40 tie_word_embeddings=false num_experts_per_tok=8 "
                                           "num_experts=256 " },
    { "qwen3_5_moe", EVERY BASE DELTA "num_hidden_layers=40 tie_word_embeddings=false num_experts_per_tok=8 "
                                      "num_experts=256 " },
};

/* Sets one field: the value in config.json, or the default at text, [n].  A null for rope_parameters means omitted. */
static int set_field(struct moe_folder *d, const char *name, const char *text, size_t n)
{
    const json_t *said = json_object_get(d->config, name);
    bool omitted = !said || (json_is_null(said) && !strcmp(name, "rope_parameters"));
    json_t *value = !omitted ? json_incref((json_t *)said) : kn_json_load(text, n, JSON_DECODE_ANY, NULL);
    if (!value || json_object_set_new(d->fields, name, value))
        return kn_fail(KN_ENOMEM, "%s: no memory for its configuration", d->f->name);
    return 0;
}

int moe_hf_fields(struct moe_folder *d)
{
    const char *s = NULL;
    for (size_t i = 0; i < sizeof classes / sizeof *classes && !s; i++)
        if (!strcmp(classes[i].model_type, d->family->model_type))
            s = classes[i].fields;
    kn_assert(s);
    d->fields = json_object();
    if (!d->fields)
        return kn_fail(KN_ENOMEM, "%s: no memory for its configuration", d->f->name);
    while (*s) { /* "name=default " */
        char name[64];
        size_t n_name = strcspn(s, "="), n;
        kn_assert(n_name < sizeof name);
        memcpy(name, s, n_name);
        name[n_name] = '\0';
        s += n_name + 1;
        n = strcspn(s, " ");
        int err = set_field(d, name, s, n);
        if (err)
            return err;
        s += n + 1;
    }
    return 0;
}

/* The outer config also says whether the output matrix is the embedding. */
int moe_hf_unnest(struct moe_folder *d, const char *key)
{
    json_t *inner = json_object_get(d->config, key);
    if (!json_is_object(inner))
        return d->err = moe_refuse(KN_ECORRUPT, d->f->name, "config.json", "'%s' is no object", key);
    json_incref(inner);
    json_object_del(d->config, key);
    json_object_del(inner, "tie_word_embeddings");
    if (json_object_update_missing(inner, d->config))
        d->err = kn_fail(KN_ENOMEM, "%s: no memory for its configuration", d->f->name);
    json_decref(d->config);
    d->config = inner;
    return d->err;
}
