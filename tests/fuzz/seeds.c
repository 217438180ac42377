/* The fuzzers' seed inputs: small valid files, one of each kind.
 *
 *   seeds FOLDER      writes FOLDER/header/..., FOLDER/model/..., FOLDER/folder/... and FOLDER/http_parse/...
 *
 * The models are complete: one layer of each family, with a few kilobytes of weights. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "moe/write/write.h"
#include "tests/engine/serve/http_rules.h"
#include "tests/moe/gguf_bytes.h"

#define N_VOCAB 8

struct kind {
    const char *name, *arch;
    enum kn_format format;
    int d_model, d_ff, n_expert;
    bool bias, norm, yarn, out_norms, select_bias;
};

static const struct kind kinds[] = {
    { "qwen3moe", "qwen3moe", KN_Q8_0, 32, 32, 3, false, true, false, false, false },
    { "mixtral", "llama", KN_F16, 32, 16, 2, false, false, false, false, false },
    { "llama", "llama", KN_F32, 16, 16, 0, false, false, true, false, false },
    { "qwen2", "qwen2", KN_BF16, 32, 16, 0, true, false, true, false, false },
    { "qwen3-q4_k", "qwen3", KN_Q4_K, 256, 16, 0, false, true, false, false, false },
    { "qwen3-q6_k", "qwen3", KN_Q6_K, 256, 16, 0, false, true, false, false, false },
    { "qwen3-iq2_s", "qwen3", KN_IQ2_S, 256, 16, 0, false, true, false, false, false },
    { "qwen3-nvfp4", "qwen3", KN_NVFP4, 64, 16, 0, false, true, false, false, false },
    { "qwen3-iq1_m", "qwen3", KN_IQ1_M, 256, 16, 0, false, true, false, false, false },
    { "qwen3-iq3_xxs", "qwen3", KN_IQ3_XXS, 256, 16, 0, false, true, false, false, false },
    { "gemma3", "gemma3", KN_BF16, 32, 16, 0, false, true, false, true, false },
    { "dots1", "dots1", KN_F16, 32, 16, 2, false, true, false, false, true },
    { "granitemoe", "granitemoe", KN_F16, 32, 16, 2, false, false, false, false, false },
    { "smollm3", "smollm3", KN_F32, 16, 16, 0, false, false, false, false, false },
    { "bailingmoe2", "bailingmoe2", KN_F16, 32, 16, 2, false, true, false, false, true },
    { "phi3", "phi3", KN_F32, 16, 16, 0, false, false, false, false, false },
    { "mistral3", "mistral3", KN_F32, 16, 16, 0, false, false, true, false, false },
    { "gemma4", "gemma4", KN_F16, 32, 16, 2, false, true, false, true, false },
    { "mimo2", "mimo2", KN_F16, 32, 16, 2, false, false, false, false, true },
    { "mistral4", "mistral4", KN_F32, 16, 16, 2, false, false, true, false, false },
    { "phimoe", "phimoe", KN_F16, 32, 16, 2, true, false, false, false, false },
    { "llama4", "llama4", KN_F16, 32, 16, 2, false, false, false, false, false },
    { "ernie4_5-moe", "ernie4_5-moe", KN_F16, 32, 16, 2, false, false, false, false, true },
    { "hunyuan-moe", "hunyuan-moe", KN_F16, 32, 16, 2, false, true, false, false, false },
    { "hy_v3", "hy_v3", KN_F16, 32, 16, 2, false, true, false, false, true },
    { "exaone-moe", "exaone-moe", KN_F16, 32, 16, 2, false, true, false, false, true },
    { "bailingmoe", "bailingmoe", KN_F16, 32, 16, 2, false, false, false, false, false },
    { "glm4moe", "glm4moe", KN_F16, 32, 16, 2, false, false, true, false, true },
};

struct model {
    struct moe_writer *w;
    const struct kind *k;
    int n_tensor;
    struct {
        enum kn_format f;
        uint64_t n;
        bool divisors;
    } t[32]; /* format and values of each tensor; divisors are positive */
};

static void tensor(struct model *m, const char *name, enum kn_format f, int n_in, int n_out, int n_mat)
{
    uint64_t dim[3] = { (uint64_t)n_in, (uint64_t)n_out, (uint64_t)n_mat };
    while (!kn_row_bytes(f, n_in))
        f = f == KN_Q8_0 ? KN_F32 : KN_Q8_0;
    moe_writer_tensor(m->w, name, f, n_mat ? 3 : n_out ? 2 : 1, dim);
    m->t[m->n_tensor].f = f;
    m->t[m->n_tensor].divisors = !strncmp(name, "rope_freqs", 10);
    m->t[m->n_tensor++].n = dim[0] * (n_out ? dim[1] : 1) * (n_mat ? dim[2] : 1);
}

/* The second half of a gemma4's layer, and its divisors of the frequencies. */
static void gemma4_tensors(struct model *m)
{
    const struct kind *k = m->k;
    static const char *const norms[] = { "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2" };
    tensor(m, "rope_freqs.weight", KN_F32, 4, 0, 0);
    tensor(m, "blk.0.layer_output_scale.weight", KN_F32, 1, 0, 0);
    tensor(m, "blk.0.ffn_gate_inp.weight", KN_F32, k->d_model, k->n_expert, 0);
    tensor(m, "blk.0.ffn_gate_inp.scale", KN_F32, k->d_model, 0, 0);
    tensor(m, "blk.0.ffn_down_exps.scale", KN_F32, k->n_expert, 0, 0);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        char name[48];
        snprintf(name, sizeof name, "blk.0.%s.weight", norms[i]);
        tensor(m, name, KN_F32, k->d_model, 0, 0);
    }
    tensor(m, "blk.0.ffn_gate.weight", k->format, k->d_model, k->d_ff, 0);
    tensor(m, "blk.0.ffn_up.weight", k->format, k->d_model, k->d_ff, 0);
    tensor(m, "blk.0.ffn_down.weight", k->format, k->d_ff, k->d_model, 0);
    tensor(m, "blk.0.ffn_gate_up_exps.weight", k->format, k->d_model, 2 * k->d_ff, k->n_expert);
    tensor(m, "blk.0.ffn_down_exps.weight", k->format, k->d_ff, k->d_model, k->n_expert);
}

/* Latent attention: 16 values of a head without rotation and 8 with one. */
static void latent_attention(struct model *m)
{
    const struct kind *k = m->k;
    tensor(m, "blk.0.attn_q.weight", k->format, k->d_model, 48, 0);
    tensor(m, "blk.0.attn_kv_a_mqa.weight", k->format, k->d_model, 24, 0);
    tensor(m, "blk.0.attn_kv_a_norm.weight", KN_F32, 16, 0, 0);
    tensor(m, "blk.0.attn_k_b.weight", k->format, 16, 16, 2);
    tensor(m, "blk.0.attn_v_b.weight", k->format, 16, 16, 2);
    tensor(m, "blk.0.attn_output.weight", k->format, 32, k->d_model, 0);
}

static void attention(struct model *m)
{
    const struct kind *k = m->k;
    enum kn_format f = k->format;
    tensor(m, "blk.0.attn_q.weight", f, k->d_model, 16, 0);
    tensor(m, "blk.0.attn_k.weight", f, k->d_model, 8, 0);
    tensor(m, "blk.0.attn_v.weight", f, k->d_model, 8, 0);
    tensor(m, "blk.0.attn_output.weight", f, 16, k->d_model, 0);
}

/* Biases of phimoe's norms and matrices; the shared expert of llama4. */
static void further(struct model *m)
{
    const struct kind *k = m->k;
    if (!strcmp(k->arch, "phimoe")) {
        tensor(m, "blk.0.attn_norm.bias", KN_F32, k->d_model, 0, 0);
        tensor(m, "blk.0.ffn_norm.bias", KN_F32, k->d_model, 0, 0);
        tensor(m, "blk.0.attn_output.bias", KN_F32, k->d_model, 0, 0);
        tensor(m, "output_norm.bias", KN_F32, k->d_model, 0, 0);
        tensor(m, "output.bias", KN_F32, N_VOCAB, 0, 0);
    }
    if (!strcmp(k->arch, "llama4")) {
        tensor(m, "blk.0.ffn_gate_shexp.weight", k->format, k->d_model, k->d_ff, 0);
        tensor(m, "blk.0.ffn_up_shexp.weight", k->format, k->d_model, k->d_ff, 0);
        tensor(m, "blk.0.ffn_down_shexp.weight", k->format, k->d_ff, k->d_model, 0);
    }
}

static void tensors(struct model *m)
{
    const struct kind *k = m->k;
    enum kn_format f = k->format;
    tensor(m, "token_embd.weight", f, k->d_model, N_VOCAB, 0);
    tensor(m, "output_norm.weight", KN_F32, k->d_model, 0, 0);
    tensor(m, "blk.0.attn_norm.weight", KN_F32, k->d_model, 0, 0);
    if (strcmp(k->arch, "glm4moe"))
        tensor(m, "blk.0.ffn_norm.weight", KN_F32, k->d_model, 0, 0);
    (strcmp(k->arch, "mistral4") ? attention : latent_attention)(m);
    further(m);
    if (k->norm) {
        tensor(m, "blk.0.attn_q_norm.weight", KN_F32, 8, 0, 0);
        tensor(m, "blk.0.attn_k_norm.weight", KN_F32, 8, 0, 0);
    }
    if (k->bias) {
        tensor(m, "blk.0.attn_q.bias", KN_F32, 16, 0, 0);
        tensor(m, "blk.0.attn_k.bias", KN_F32, 8, 0, 0);
        tensor(m, "blk.0.attn_v.bias", KN_F32, 8, 0, 0);
    }
    if (k->out_norms) {
        tensor(m, "blk.0.post_attention_norm.weight", KN_F32, k->d_model, 0, 0);
        tensor(m, "blk.0.post_ffw_norm.weight", KN_F32, k->d_model, 0, 0);
    }
    if (!strcmp(k->arch, "glm4moe"))
        tensor(m, "blk.0.post_attention_norm.weight", KN_F32, k->d_model, 0, 0);
    if (!strcmp(k->arch, "mimo2"))
        tensor(m, "blk.0.attn_sinks.weight", KN_F32, 2, 0, 0);
    if (!strcmp(k->arch, "gemma4")) {
        gemma4_tensors(m);
        return;
    }
    if (k->n_expert)
        tensor(m, "blk.0.ffn_gate_inp.weight", KN_F32, k->d_model, k->n_expert, 0);
    if (k->select_bias)
        tensor(m, "blk.0.exp_probs_b.bias", KN_F32, k->n_expert, 0, 0);
    static const char *const ffn[2][3] = {
        { "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight" },
        { "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight" },
    };
    tensor(m, ffn[k->n_expert > 0][0], f, k->d_model, k->d_ff, k->n_expert);
    tensor(m, ffn[k->n_expert > 0][1], f, k->d_model, k->d_ff, k->n_expert);
    tensor(m, ffn[k->n_expert > 0][2], f, k->d_ff, k->d_model, k->n_expert);
}

static void number(struct model *m, const char *key, uint32_t x)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", m->k->arch, key);
    moe_writer_value(m->w, full, MOE_U32, &x);
}

static void metadata(struct model *m)
{
    const struct kind *k = m->k;
    char full[96];
    float eps = 1e-6f, factor = 4;
    moe_writer_string(m->w, "general.architecture", k->arch, strlen(k->arch));
    number(m, "block_count", 1);
    number(m, "context_length", 64);
    number(m, "embedding_length", (uint32_t)k->d_model);
    number(m, "feed_forward_length", (uint32_t)k->d_ff);
    number(m, "attention.head_count", 2);
    if (strcmp(k->arch, "gemma4") && strcmp(k->arch, "mimo2")) {
        number(m, "attention.head_count_kv", 1);
    } else {
        snprintf(full, sizeof full, "%s.attention.head_count_kv", k->arch);
        moe_writer_array(m->w, full, MOE_I32, &(int32_t){ 1 }, 1);
        snprintf(full, sizeof full, "%s.attention.sliding_window_pattern", k->arch);
        moe_writer_array(m->w, full, MOE_I32, &(int32_t){ 1 }, 1);
        number(m, "attention.key_length_swa", 8);
        number(m, "attention.value_length_swa", 8);
        number(m, "rope.dimension_count_swa", 4);
    }
    number(m, "attention.key_length", 8);
    number(m, "attention.value_length", 8);
    snprintf(full, sizeof full, "%s.attention.layer_norm_rms_epsilon", k->arch);
    moe_writer_value(m->w, full, MOE_F32, &eps);
    if (k->n_expert) {
        number(m, "expert_count", (uint32_t)k->n_expert);
        number(m, "expert_used_count", 2);
        number(m, "expert_feed_forward_length", (uint32_t)k->d_ff);
    }
    if (k->out_norms || !strcmp(k->arch, "mimo2") || !strcmp(k->arch, "exaone-moe"))
        number(m, "attention.sliding_window", 8);
    if (!strcmp(k->arch, "gemma4"))
        moe_writer_value(m->w, "gemma4.final_logit_softcapping", MOE_F32, &factor);
    if (!strcmp(k->arch, "bailingmoe"))
        number(m, "expert_shared_count", 0);
    if (k->select_bias && strcmp(k->arch, "mimo2")) {
        number(m, "expert_shared_count", 0);
        number(m, "interleave_moe_layer_step", 1);
    }
    if (!strcmp(k->arch, "granitemoe")) {
        static const char *const scales[] = { "attention.scale", "embedding_scale", "residual_scale", "logit_scale" };
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
            snprintf(full, sizeof full, "%s.%s", k->arch, scales[i]);
            moe_writer_value(m->w, full, MOE_F32, &factor);
        }
    }
    if (k->yarn) {
        snprintf(full, sizeof full, "%s.rope.scaling.type", k->arch);
        moe_writer_string(m->w, full, "yarn", 4);
        snprintf(full, sizeof full, "%s.rope.scaling.factor", k->arch);
        moe_writer_value(m->w, full, MOE_F32, &factor);
    }
    if (!strcmp(k->arch, "mistral4")) {
        number(m, "attention.kv_lora_rank", 16);
        number(m, "attention.key_length_mla", 24);
        number(m, "attention.value_length_mla", 16);
        number(m, "rope.dimension_count", 8);
        number(m, "expert_shared_count", 0);
    }
    if (!strcmp(k->arch, "llama4")) {
        number(m, "interleave_moe_layer_step", 1);
        number(m, "attention.sliding_window", 8);
    }
    if (!strcmp(k->arch, "mistral3"))
        moe_writer_value(m->w, "mistral3.attention.temperature_scale", MOE_F32, &(float){ 0.1f });
}

static int write_model(const char *folder, const struct kind *k)
{
    struct model m = { .k = k };
    char path[512];
    snprintf(path, sizeof path, "%s/model/%s", folder, k->name);
    int err = moe_writer_open(&m.w, path);
    if (err)
        return err;
    metadata(&m);
    tensors(&m);
    err = moe_writer_header(m.w);
    for (int i = 0; !err && i < m.n_tensor; i++) {
        static uint8_t data[1 << 18];
        const struct kn_format_info *info = kn_format_info(m.t[i].f);
        struct moe_synth_fill fill = {
            .format = m.t[i].f, .mean = m.t[i].divisors, .deviation = m.t[i].divisors ? 0 : 0.2f, .seed = (uint64_t)i
        };
        size_t n_block = (size_t)m.t[i].n / (size_t)info->block_values;
        kn_assert(n_block * (size_t)info->block_bytes <= sizeof data);
        moe_synth_fill_init(&fill);
        moe_synth_fill(&fill, 0, n_block, data);
        err = moe_writer_data(m.w, data, n_block * (size_t)info->block_bytes);
    }
    if (!err)
        err = moe_writer_finish(m.w);
    moe_writer_close(m.w);
    return err;
}

/* Every type of value, scalar and array, an unknown tensor type, and a split that names another file. */
static void write_headers(const char *folder)
{
    static const uint64_t dim[4] = { 32, 2, 1, 1 };
    char path[512];
    for (uint32_t split = 0; split < 2; split++) {
        struct gguf g = { 0 };
        gguf_header(&g, 3 - split, 3, 4 + 2 * (MOE_TYPE_COUNT - 1));
        gguf_u32_value(&g, "general.alignment", 32);
        gguf_u32_value(&g, "split.no", 0);
        gguf_u32_value(&g, "split.count", 1 + split);
        gguf_u32_value(&g, "split.tensors.count", 3);
        for (uint32_t type = 0; type < MOE_TYPE_COUNT; type++) {
            static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
            char name[32];
            if (type == MOE_ARRAY)
                continue;
            snprintf(name, sizeof name, "scalar %u", type);
            gguf_key(&g, name, type);
            if (type == MOE_STRING)
                gguf_string(&g, "a string");
            gguf_bytes(&g, "\1\0\0\0\0\0\0\0", bytes[type]);
            snprintf(name, sizeof name, "array %u", type);
            gguf_array(&g, name, type, 2);
            for (int i = 0; type == MOE_STRING && i < 2; i++)
                gguf_string(&g, i ? "" : "item");
            gguf_bytes(&g, "\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 2 * bytes[type]);
        }
        gguf_tensor(&g, "a", 1, dim, 0, 0);
        gguf_tensor(&g, "b", 2, dim, 8, 128);
        gguf_tensor(&g, "c", 4, dim, 99, 192);
        gguf_data(&g, 224);
        snprintf(path, sizeof path, "%s/header/%s", folder, split ? "split" : "single");
        gguf_save(&g, path);
        gguf_free(&g);
    }
}

/* ---- folders: four files, one after another (fuzz_folder.c) ------------------------------------- */

static const char bytes_tokenizer[] =
    "{\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"post_processor\":{\"type\":"
    "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]},\"model\":"
    "{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"t\":1,\"h\":2,\"e\":3,\"th\":4,\"the\":5},"
    "\"merges\":[\"t h\",[\"th\",\"e\"]]}}";
static const char marks_tokenizer[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true}],\"normalizer\":{\"type\":\"Replace\","
    "\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":"
    "{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\",\"invert\":false},"
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\","
    "\"vocab\":{\"<unk>\":0,\"<0x61>\":1,\"\xe2\x96\x81\":2,\"t\":3,\"h\":4,\"th\":5},\"merges\":[[\"t\",\"h\"]]}}";
static const char pieces_tokenizer[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true}],\"normalizer\":{\"type\":\"Sequence\","
    "\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":"
    "{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":null,"
    "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\","
    "\"vocab\":{\"<unk>\":0,\"<0x61>\":1,\"\xe2\x96\x81\":2,\"t\":3,\"h\":4,\"th\":5,\"e\":6,"
    "\"the\":7},\"merges\":[[\"t\",\"h\"],[\"th\",\"e\"]]}}";
static char ranks_tokenizer[4096]; /* tiktoken.model: all bytes, and "th", "the" */
static const char roles[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"a\"},\"chat_template\":\"x\",\"auto_map\":{\"AutoTokenizer\":"
    "[\"tokenization_kimi.TikTokenTokenizer\",null]},\"added_tokens_decoder\":{\"258\":{\"content\":\"<s>\"}}}";

static void make_ranks(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    for (int b = 0; b < 256; b++)
        n += (size_t)sprintf(ranks_tokenizer + n, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    strcpy(ranks_tokenizer + n, "dGg= 256\ndGhl 257\n");
}

struct shape {
    const char *name;
    int n_dim, dim[4];
    const char *dtype;
}; /* dtype NULL: F32 */

/* d_model 16: the tensors shared by a dense and an MoE model, and the tensors of each. */
static const struct shape sixteen_shapes[] = {
    { "lm_head.weight", 2, { 8, 16 }, NULL },
    { "model.embed_tokens.weight", 2, { 8, 16 }, NULL },
    { "model.norm.weight", 1, { 16 }, NULL },
    { "model.layers.0.input_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_attention_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.q_proj.weight", 2, { 16, 16 }, NULL },
    { "model.layers.0.self_attn.k_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.self_attn.v_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.self_attn.o_proj.weight", 2, { 16, 16 }, NULL },
};
static const struct shape dense_shapes[] = {
    { "model.layers.0.mlp.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.up_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.down_proj.weight", 2, { 16, 8 }, NULL },
};
static const struct shape expert_shapes[] = {
    { "model.layers.0.block_sparse_moe.gate.weight", 2, { 2, 16 }, NULL },
    { "model.layers.0.block_sparse_moe.experts.0.w1.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.block_sparse_moe.experts.1.w1.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.block_sparse_moe.experts.0.w2.weight", 2, { 16, 8 }, NULL },
    { "model.layers.0.block_sparse_moe.experts.1.w2.weight", 2, { 16, 8 }, NULL },
    { "model.layers.0.block_sparse_moe.experts.0.w3.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.block_sparse_moe.experts.1.w3.weight", 2, { 8, 16 }, NULL },
};
static const struct shape stack_shapes[] = {
    { "model.layers.0.mlp.gate.weight", 2, { 2, 16 }, NULL },
    { "model.layers.0.mlp.experts.gate_up_proj", 3, { 2, 16, 16 }, NULL },
    { "model.layers.0.mlp.experts.down_proj", 3, { 2, 16, 8 }, NULL },
};

static const struct shape gemma_shapes[] = {
    { "model.layers.0.mlp.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.up_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.down_proj.weight", 2, { 16, 8 }, NULL },
    { "model.layers.0.pre_feedforward_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_feedforward_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.q_norm.weight", 1, { 8 }, NULL },
    { "model.layers.0.self_attn.k_norm.weight", 1, { 8 }, NULL },
};
static const struct shape gemma4_shapes[] = {
    { "model.layers.0.mlp.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.up_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.down_proj.weight", 2, { 16, 8 }, NULL },
    { "model.layers.0.layer_scalar", 1, { 1 }, NULL },
    { "model.layers.0.pre_feedforward_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_feedforward_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.pre_feedforward_layernorm_2.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_feedforward_layernorm_1.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_feedforward_layernorm_2.weight", 1, { 16 }, NULL },
    { "model.layers.0.router.proj.weight", 2, { 2, 16 }, NULL },
    { "model.layers.0.router.scale", 1, { 16 }, NULL },
    { "model.layers.0.router.per_expert_scale", 1, { 2 }, NULL },
    { "model.layers.0.experts.gate_up_proj", 3, { 2, 16, 16 }, NULL },
    { "model.layers.0.experts.down_proj", 3, { 2, 16, 8 }, NULL },
    { "model.layers.0.self_attn.q_norm.weight", 1, { 8 }, NULL },
    { "model.layers.0.self_attn.k_norm.weight", 1, { 8 }, NULL },
};
static const struct shape granite_shapes[] = {
    { "model.layers.0.block_sparse_moe.router.layer.weight", 2, { 2, 16 }, NULL },
    { "model.layers.0.block_sparse_moe.input_linear.weight", 3, { 2, 16, 16 }, NULL },
    { "model.layers.0.block_sparse_moe.output_linear.weight", 3, { 2, 16, 8 }, NULL },
    { "model.layers.0.shared_mlp.input_linear.weight", 2, { 24, 16 }, NULL },
    { "model.layers.0.shared_mlp.output_linear.weight", 2, { 16, 12 }, NULL },
};

/* Heads of 16 values, 2 experts of 32, d_model 32; 4-bit blocks with separate scales. */
static const struct shape blocks_shapes[] = {
    { "lm_head.weight", 2, { 8, 32 }, NULL },
    { "model.embed_tokens.weight", 2, { 8, 32 }, NULL },
    { "model.norm.weight", 1, { 32 }, NULL },
    { "model.layers.0.input_layernorm.weight", 1, { 32 }, NULL },
    { "model.layers.0.post_attention_layernorm.weight", 1, { 32 }, NULL },
    { "model.layers.0.self_attn.q_proj.weight", 2, { 32, 32 }, NULL },
    { "model.layers.0.self_attn.k_proj.weight", 2, { 16, 32 }, NULL },
    { "model.layers.0.self_attn.v_proj.weight", 2, { 16, 32 }, NULL },
    { "model.layers.0.self_attn.o_proj.weight", 2, { 32, 32 }, NULL },
    { "model.layers.0.self_attn.q_proj.bias", 1, { 32 }, NULL },
    { "model.layers.0.self_attn.k_proj.bias", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.v_proj.bias", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.o_proj.bias", 1, { 32 }, NULL },
    { "model.layers.0.self_attn.sinks", 1, { 2 }, NULL },
    { "model.layers.0.mlp.router.weight", 2, { 2, 32 }, NULL },
    { "model.layers.0.mlp.router.bias", 1, { 2 }, NULL },
    { "model.layers.0.mlp.experts.gate_up_proj_blocks", 4, { 2, 64, 1, 16 }, "U8" },
    { "model.layers.0.mlp.experts.gate_up_proj_scales", 3, { 2, 64, 1 }, "U8" },
    { "model.layers.0.mlp.experts.gate_up_proj_bias", 2, { 2, 64 }, NULL },
    { "model.layers.0.mlp.experts.down_proj_blocks", 4, { 2, 32, 1, 16 }, "U8" },
    { "model.layers.0.mlp.experts.down_proj_scales", 3, { 2, 32, 1 }, "U8" },
    { "model.layers.0.mlp.experts.down_proj_bias", 2, { 2, 32 }, NULL },
};

/* d_model 128 and one head of 16: FP8 with one scale for all rows of a matrix, which are fewer than 128. */
static const struct shape fp8_shapes[] = {
    { "lm_head.weight", 2, { 8, 128 }, "BF16" },
    { "model.embed_tokens.weight", 2, { 8, 128 }, "BF16" },
    { "model.norm.weight", 1, { 128 }, "BF16" },
    { "model.layers.0.input_layernorm.weight", 1, { 128 }, "BF16" },
    { "model.layers.0.post_attention_layernorm.weight", 1, { 128 }, "BF16" },
    { "model.layers.0.self_attn.q_proj.weight", 2, { 16, 128 }, "F8_E4M3" },
    { "model.layers.0.self_attn.q_proj.weight_scale_inv", 2, { 1, 1 }, NULL },
    { "model.layers.0.self_attn.k_proj.weight", 2, { 16, 128 }, "BF16" },
    { "model.layers.0.self_attn.v_proj.weight", 2, { 16, 128 }, "BF16" },
    { "model.layers.0.self_attn.o_proj.weight", 2, { 128, 16 }, "BF16" },
    { "model.layers.0.self_attn.q_norm.weight", 1, { 16 }, "BF16" },
    { "model.layers.0.self_attn.k_norm.weight", 1, { 16 }, "BF16" },
    { "model.layers.0.mlp.gate.weight", 2, { 1, 128 }, "BF16" },
    { "model.layers.0.mlp.experts.0.gate_proj.weight", 2, { 8, 128 }, "F8_E4M3" },
    { "model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv", 2, { 1, 1 }, "BF16" },
    { "model.layers.0.mlp.experts.0.up_proj.weight", 2, { 8, 128 }, "F8_E4M3" },
    { "model.layers.0.mlp.experts.0.up_proj.weight_scale_inv", 2, { 1, 1 }, "BF16" },
    { "model.layers.0.mlp.experts.0.down_proj.weight", 2, { 128, 8 }, "BF16" },
};

/* NVFP4 with one scale for each matrix, as modelopt and as compressed-tensors store it. */
static const struct shape nvfp4_shapes[] = {
    { "model.embed_tokens.weight", 2, { 8, 64 }, "BF16" },
    { "model.norm.weight", 1, { 64 }, "BF16" },
    { "model.layers.0.self_attn.q_proj.weight", 2, { 16, 32 }, "U8" },
    { "model.layers.0.self_attn.q_proj.weight_scale", 2, { 16, 4 }, "F8_E4M3" },
    { "model.layers.0.self_attn.q_proj.weight_scale_2", 1, { 1 }, NULL },
    { "model.layers.0.self_attn.q_proj.input_scale", 1, { 1 }, NULL },
    { "model.layers.0.self_attn.o_proj.weight_packed", 2, { 16, 32 }, "U8" },
    { "model.layers.0.self_attn.o_proj.weight_scale", 2, { 16, 4 }, "F8_E4M3" },
    { "model.layers.0.self_attn.o_proj.weight_global_scale", 1, { 1 }, NULL },
    { "model.layers.0.mlp.experts.0.gate_proj.weight", 2, { 8, 32 }, "U8" },
    { "model.layers.0.mlp.experts.0.gate_proj.weight_scale", 2, { 8, 4 }, "F8_E4M3" },
    { "model.layers.0.mlp.experts.0.gate_proj.weight_scale_2", 1, { 1 }, NULL },
};

/* FP8: stacks of experts, a scale for a row, one for a matrix whose rows are permuted. */
static const struct shape stack8_shapes[] = {
    { "model.embed_tokens.weight", 2, { 8, 128 }, "BF16" },
    { "model.norm.weight", 1, { 128 }, "BF16" },
    { "model.layers.0.self_attn.q_proj.weight", 2, { 32, 128 }, "F8_E4M3" },
    { "model.layers.0.self_attn.q_proj.weight_scale", 1, { 1 }, "BF16" },
    { "model.layers.0.self_attn.k_proj.weight", 2, { 16, 128 }, "F8_E4M3" },
    { "model.layers.0.self_attn.k_proj.weight_scale", 2, { 16, 1 }, "BF16" },
    { "model.layers.0.mlp.experts.gate_up_proj", 3, { 2, 16, 128 }, "F8_E4M3" },
    { "model.layers.0.mlp.experts.gate_up_proj_scale", 3, { 2, 16, 1 }, NULL },
    { "model.layers.0.mlp.experts.down_proj", 3, { 2, 8, 128 }, "F8_E4M3" },
    { "model.layers.0.mlp.experts.down_proj_scale", 3, { 2, 1, 1 }, NULL },
};

/* AWQ and GPTQ have the same names; a word has eight outputs or eight inputs. */
static const struct shape awq_shapes[] = {
    { "model.embed_tokens.weight", 2, { 8, 64 }, "BF16" },
    { "model.norm.weight", 1, { 64 }, "BF16" },
    { "model.layers.0.self_attn.q_proj.qweight", 2, { 64, 4 }, "I32" },
    { "model.layers.0.self_attn.q_proj.qzeros", 2, { 2, 4 }, "I32" },
    { "model.layers.0.self_attn.q_proj.scales", 2, { 2, 32 }, "F16" },
};
static const struct shape gptq_shapes[] = {
    { "model.embed_tokens.weight", 2, { 8, 64 }, "BF16" },
    { "model.norm.weight", 1, { 64 }, "BF16" },
    { "model.layers.0.self_attn.q_proj.qweight", 2, { 8, 32 }, "I32" },
    { "model.layers.0.self_attn.q_proj.qzeros", 2, { 2, 4 }, "I32" },
    { "model.layers.0.self_attn.q_proj.scales", 2, { 2, 32 }, "F16" },
};
static const struct shape order_shapes[] = { { "model.layers.0.self_attn.q_proj.g_idx", 1, { 64 }, "I32" } };

/* Experts one by one with the usual names; the norms of Q and K; tensors of single families. */
static const struct shape named_shapes[] = {
    { "model.layers.0.mlp.gate.weight", 2, { 2, 16 }, NULL },
    { "model.layers.0.mlp.experts.0.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.experts.1.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.experts.0.up_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.experts.1.up_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.experts.0.down_proj.weight", 2, { 16, 8 }, NULL },
    { "model.layers.0.mlp.experts.1.down_proj.weight", 2, { 16, 8 }, NULL },
};
static const struct shape bias_shapes[] = { { "model.layers.0.mlp.gate.e_score_correction_bias", 1, { 2 }, NULL } };
static const struct shape qk_shapes[] = {
    { "model.layers.0.mlp.gate.e_score_correction_bias", 1, { 2 }, NULL },
    { "model.layers.0.self_attn.q_norm.weight", 1, { 8 }, NULL },
    { "model.layers.0.self_attn.k_norm.weight", 1, { 8 }, NULL },
};
static const struct shape hunyuan_shapes[] = {
    { "model.layers.0.self_attn.query_layernorm.weight", 1, { 8 }, NULL },
    { "model.layers.0.self_attn.key_layernorm.weight", 1, { 8 }, NULL },
    { "model.layers.0.mlp.shared_mlp.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.shared_mlp.up_proj.weight", 2, { 8, 16 }, NULL },
    { "model.layers.0.mlp.shared_mlp.down_proj.weight", 2, { 16, 8 }, NULL },
};
static const struct shape fused_shapes[] = {
    { "lm_head.weight", 2, { 8, 16 }, NULL },
    { "model.embed_tokens.weight", 2, { 8, 16 }, NULL },
    { "model.norm.weight", 1, { 16 }, NULL },
    { "model.layers.0.input_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_attention_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.qkv_proj.weight", 2, { 32, 16 }, NULL },
    { "model.layers.0.self_attn.o_proj.weight", 2, { 16, 16 }, NULL },
    { "model.layers.0.mlp.gate_up_proj.weight", 2, { 16, 16 }, NULL },
    { "model.layers.0.mlp.down_proj.weight", 2, { 16, 8 }, NULL },
};
static const struct shape phimoe_shapes[] = {
    { "lm_head.bias", 1, { 8 }, NULL },
    { "model.norm.bias", 1, { 16 }, NULL },
    { "model.layers.0.input_layernorm.bias", 1, { 16 }, NULL },
    { "model.layers.0.post_attention_layernorm.bias", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.q_proj.bias", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.k_proj.bias", 1, { 8 }, NULL },
    { "model.layers.0.self_attn.v_proj.bias", 1, { 8 }, NULL },
    { "model.layers.0.self_attn.o_proj.bias", 1, { 16 }, NULL },
};

/* A vision model's language model. */
static const struct shape outer_shapes[] = {
    { "language_model.model.embed_tokens.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.norm.weight", 1, { 16 }, NULL },
    { "language_model.lm_head.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.input_layernorm.weight", 1, { 16 }, NULL },
    { "language_model.model.layers.0.post_attention_layernorm.weight", 1, { 16 }, NULL },
    { "language_model.model.layers.0.self_attn.q_proj.weight", 2, { 16, 16 }, NULL },
    { "language_model.model.layers.0.self_attn.k_proj.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.self_attn.v_proj.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.self_attn.o_proj.weight", 2, { 16, 16 }, NULL },
    { "vision_tower.patch.weight", 1, { 4 }, NULL },
};
static const struct shape mistral3_shapes[] = {
    { "language_model.model.layers.0.mlp.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.mlp.up_proj.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.mlp.down_proj.weight", 2, { 16, 8 }, NULL },
};
static const struct shape llama4_shapes[] = {
    { "language_model.model.layers.0.feed_forward.router.weight", 2, { 2, 16 }, NULL },
    { "language_model.model.layers.0.feed_forward.shared_expert.gate_proj.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.feed_forward.shared_expert.up_proj.weight", 2, { 8, 16 }, NULL },
    { "language_model.model.layers.0.feed_forward.shared_expert.down_proj.weight", 2, { 16, 8 }, NULL },
    { "language_model.model.layers.0.feed_forward.experts.gate_up_proj", 3, { 2, 16, 16 }, NULL },
    { "language_model.model.layers.0.feed_forward.experts.down_proj", 3, { 2, 8, 16 }, NULL },
};
static const struct shape latent_shapes[] = {
    { "lm_head.weight", 2, { 8, 16 }, NULL },
    { "model.embed_tokens.weight", 2, { 8, 16 }, NULL },
    { "model.norm.weight", 1, { 16 }, NULL },
    { "model.layers.0.input_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.post_attention_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.q_proj.weight", 2, { 64, 16 }, NULL },
    { "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 2, { 32, 16 }, NULL },
    { "model.layers.0.self_attn.kv_a_layernorm.weight", 1, { 16 }, NULL },
    { "model.layers.0.self_attn.kv_b_proj.weight", 2, { 64, 16 }, NULL },
    { "model.layers.0.self_attn.o_proj.weight", 2, { 16, 32 }, NULL },
};

/* EAGLE-3 heads of d_model 16, by the names of both kinds. */
static const struct shape head_shapes[] = {
    { "fc.weight", 2, { 16, 48 }, "BF16" },
    { "fc_norm.0.weight", 1, { 16 }, "BF16" },
    { "norm.weight", 1, { 16 }, "BF16" },
    { "lm_head.weight", 2, { 4, 16 }, "BF16" },
    { "d2t", 1, { 4 }, "I64" },
    { "t2d", 1, { 8 }, "BOOL" },
    { "midlayer.hidden_norm.weight", 1, { 16 }, "BF16" },
    { "midlayer.self_attn.q_proj.weight", 2, { 16, 32 }, "BF16" },
    { "midlayer.mlp.up_proj.weight", 2, { 8, 16 }, "BF16" },
};
static const struct shape medusa_shapes[] = {
    { "0.0.linear.weight", 2, { 16, 16 }, "F16" }, { "0.0.linear.bias", 1, { 16 }, "F16" },
    { "0.1.weight", 2, { 8, 16 }, "BF16" },        { "1.0.linear.weight", 2, { 16, 16 }, NULL },
    { "1.0.linear.bias", 1, { 16 }, "F16" },       { "1.1.weight", 2, { 8, 16 }, "F16" },
};
static const struct shape medusa_vllm_shapes[] = {
    { "blocks.0.layers.0.weight", 2, { 16, 16 }, "BF16" },
    { "medusa_heads.blocks.1.layers.0.weight", 2, { 16, 16 }, "BF16" },
    { "lm_heads.0.weight", 2, { 8, 16 }, "BF16" },
};
static const struct shape speculator_shapes[] = {
    { "fc.weight", 2, { 16, 48 }, NULL },
    { "embed_tokens.weight", 2, { 8, 16 }, NULL },
    { "layers.0.hidden_norm.weight", 1, { 16 }, NULL },
    { "layers.0.self_attn.k_proj.weight", 2, { 8, 32 }, NULL },
};

#define SIXTEEN "\"hidden_size\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,"

struct shapes {
    const struct shape *shape;
    int n;
};
#define ALL(list)                                                                                                      \
    {                                                                                                                  \
        list, sizeof(list) / sizeof *(list)                                                                            \
    }

static const struct {
    const char *name, *config, *tokenizer;
    struct shapes shapes[3];
} folders[] = {
    { "dense",
      "{\"model_type\":\"llama\"," SIXTEEN "\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
      "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64},"
      "\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(dense_shapes) } },
    { "gemma",
      "{\"model_type\":\"gemma3_text\"," SIXTEEN "\"head_dim\":8,\"sliding_window\":8,\"query_pre_attn_scalar\":8,"
      "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1e6},"
      "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}},\"intermediate_size\":8,",
      marks_tokenizer,
      { ALL(sixteen_shapes), ALL(gemma_shapes) } },
    { "gemma4",
      "{\"model_type\":\"gemma4_text\"," SIXTEEN "\"head_dim\":8,\"global_head_dim\":8,\"sliding_window\":8,"
      "\"num_global_key_value_heads\":1,\"layer_types\":[\"full_attention\"],\"num_experts\":2,\"top_k_experts\":1,"
      "\"enable_moe_block\":true,\"moe_intermediate_size\":8,\"hidden_size_per_layer_input\":0,"
      "\"final_logit_softcapping\":30.0,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
      "\"partial_rotary_factor\":0.5,\"rope_theta\":1e6},"
      "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}},\"intermediate_size\":8,",
      marks_tokenizer,
      { ALL(sixteen_shapes), ALL(gemma4_shapes) } },
    { "granite",
      "{\"model_type\":\"granitemoeshared\"," SIXTEEN "\"num_local_experts\":2,\"num_experts_per_tok\":1,"
      "\"embedding_multiplier\":12,\"logits_scaling\":6.0,\"residual_multiplier\":0.22,"
      "\"attention_multiplier\":0.5,\"shared_intermediate_size\":12,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(granite_shapes) } },
    { "experts",
      "{\"model_type\":\"mixtral\"," SIXTEEN "\"rope_theta\":1e6,\"num_local_experts\":2,"
      "\"num_experts_per_tok\":1,\"sliding_window\":32,\"intermediate_size\":8,",
      pieces_tokenizer,
      { ALL(sixteen_shapes), ALL(expert_shapes) } },
    { "stacks",
      "{\"model_type\":\"mixtral\"," SIXTEEN "\"num_local_experts\":2,\"num_experts_per_tok\":1,"
      "\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(stack_shapes) } },
    /* more tokens than embedding rows: the vocabulary is used, the model is refused */
    { "ranks",
      "{\"model_type\":\"llama\"," SIXTEEN "\"intermediate_size\":8,",
      ranks_tokenizer,
      { ALL(sixteen_shapes), ALL(dense_shapes) } },
    { "blocks",
      "{\"model_type\":\"gpt_oss\",\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
      "\"head_dim\":16,\"intermediate_size\":32,\"num_local_experts\":2,\"num_experts_per_tok\":1,"
      "\"sliding_window\":16,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0,"
      "\"original_max_position_embeddings\":32,\"truncate\":false},"
      "\"quantization_config\":{\"quant_method\":\"mxfp4\"},",
      bytes_tokenizer,
      { ALL(blocks_shapes) } },
    { "fp8",
      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":128,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
      "\"head_dim\":16,\"moe_intermediate_size\":8,\"num_experts\":1,\"num_experts_per_tok\":1,\"rope_theta\":1e6,"
      "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]},",
      bytes_tokenizer,
      { ALL(fp8_shapes) } },
    { "nvfp4",
      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
      "\"head_dim\":16,\"moe_intermediate_size\":8,\"num_experts\":1,\"num_experts_per_tok\":1,\"rope_theta\":1e6,"
      "\"tie_word_embeddings\":true,\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"},",
      bytes_tokenizer,
      { ALL(nvfp4_shapes) } },
    { "fp8_stacks",
      "{\"model_type\":\"mixtral\",\"hidden_size\":128,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
      "\"num_local_experts\":2,\"num_experts_per_tok\":1,\"intermediate_size\":8,\"head_dim\":16,"
      "\"tie_word_embeddings\":true,\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
      "\"format\":\"float-quantized\",\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8,\"type\":\"float\","
      "\"strategy\":\"channel\",\"symmetric\":true}}}},",
      bytes_tokenizer,
      { ALL(stack8_shapes) } },
    { "awq",
      "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
      "\"intermediate_size\":8,\"tie_word_embeddings\":true,\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,"
      "\"group_size\":32,\"version\":\"gemm\",\"zero_point\":true},",
      bytes_tokenizer,
      { ALL(awq_shapes) } },
    { "gptq",
      "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
      "\"intermediate_size\":8,\"tie_word_embeddings\":true,\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
      "\"group_size\":32,\"sym\":false,\"desc_act\":false},",
      bytes_tokenizer,
      { ALL(gptq_shapes) } },
    { "head",
      "{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"model_type\":\"llama\"," SIXTEEN "\"intermediate_size\":8,"
      "\"vocab_size\":8,\"draft_vocab_size\":4,\"fc_norm\":true,"
      "\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[1,2,3],\"use_aux_hidden_state\":true},",
      bytes_tokenizer,
      { ALL(head_shapes) } },
    { "speculator",
      "{\"architectures\":[\"Eagle3Speculator\"],\"speculators_model_type\":\"eagle3\",\"norm_before_residual\":true,"
      "\"transformer_layer_config\":{\"model_type\":\"llama\"," SIXTEEN "\"intermediate_size\":8,\"vocab_size\":8},"
      "\"eagle_aux_hidden_state_layer_ids\":[2,4,5],",
      bytes_tokenizer,
      { ALL(speculator_shapes) } },
    { "ernie",
      "{\"model_type\":\"ernie4_5_moe\"," SIXTEEN "\"moe_num_experts\":2,\"moe_k\":1,\"moe_num_shared_experts\":0,"
      "\"moe_layer_start_index\":0,\"moe_layer_end_index\":0,\"moe_layer_interval\":1,\"moe_intermediate_size\":8,"
      "\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes) } },
    { "hunyuan",
      "{\"model_type\":\"hunyuan_v1_moe\"," SIXTEEN "\"head_dim\":8,\"num_experts\":2,\"moe_topk\":1,"
      "\"rope_parameters\":{\"rope_type\":\"dynamic\",\"alpha\":1000.0,\"rope_theta\":1e4},\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes), ALL(hunyuan_shapes) } },
    { "hy_v3",
      "{\"model_type\":\"hy_v3\"," SIXTEEN "\"head_dim\":8,\"num_experts\":2,\"num_experts_per_tok\":1,"
      "\"num_shared_experts\":0,\"mlp_layer_types\":[\"sparse\"],\"router_scaling_factor\":2.8,"
      "\"moe_intermediate_size\":8,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes), ALL(qk_shapes) } },
    { "dots1",
      "{\"model_type\":\"dots1\"," SIXTEEN "\"head_dim\":8,\"n_routed_experts\":2,\"num_experts_per_tok\":1,"
      "\"n_shared_experts\":0,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
      "\"first_k_dense_replace\":0,\"sliding_window\":8,\"layer_types\":[\"sliding_attention\"],"
      "\"moe_intermediate_size\":8,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes), ALL(qk_shapes) } },
    { "exaone",
      "{\"model_type\":\"exaone_moe\"," SIXTEEN "\"head_dim\":8,\"num_experts\":2,\"num_experts_per_tok\":1,"
      "\"num_shared_experts\":0,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
      "\"mlp_layer_types\":[\"sparse\"],\"sliding_window\":8,\"layer_types\":[\"sliding_attention\"],"
      "\"moe_intermediate_size\":8,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes), ALL(qk_shapes) } },
    { "solar",
      "{\"model_type\":\"solar_open\"," SIXTEEN "\"head_dim\":8,\"n_routed_experts\":2,\"num_experts_per_tok\":1,"
      "\"n_shared_experts\":0,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,"
      "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2.0,\"rope_theta\":1e6,"
      "\"original_max_position_embeddings\":32},\"moe_intermediate_size\":8,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes), ALL(bias_shapes) } },
    { "mimo",
      "{\"model_type\":\"mimo_v2_flash\"," SIXTEEN "\"head_dim\":8,\"v_head_dim\":8,\"swa_num_attention_heads\":2,"
      "\"swa_num_key_value_heads\":1,\"swa_head_dim\":8,\"swa_v_head_dim\":8,\"n_routed_experts\":2,"
      "\"num_experts_per_tok\":1,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"sliding_window\":8,"
      "\"attention_value_scale\":0.7,\"mlp_layer_types\":[\"sparse\"],\"layer_types\":[\"full_attention\"],"
      "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e6,"
      "\"partial_rotary_factor\":0.5},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4,"
      "\"partial_rotary_factor\":0.5}},\"moe_intermediate_size\":8,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(named_shapes), ALL(bias_shapes) } },
    { "smollm3",
      "{\"model_type\":\"smollm3\"," SIXTEEN "\"no_rope_layers\":[1],\"no_rope_layer_interval\":4,"
      "\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(dense_shapes) } },
    { "phi3",
      "{\"model_type\":\"phi3\"," SIXTEEN "\"sliding_window\":8,\"original_max_position_embeddings\":32,"
      "\"rope_parameters\":{\"rope_type\":\"longrope\",\"rope_theta\":1e4,\"short_factor\":[1.0,1.1,1.2,1.3],"
      "\"long_factor\":[1.0,2.0,3.0,4.0]},\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(fused_shapes) } },
    { "phimoe",
      "{\"model_type\":\"phimoe\"," SIXTEEN "\"num_local_experts\":2,\"num_experts_per_tok\":2,"
      "\"attention_bias\":true,\"lm_head_bias\":true,\"router_jitter_noise\":0.01,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(sixteen_shapes), ALL(expert_shapes), ALL(phimoe_shapes) } },
    { "mistral3",
      "{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"," SIXTEEN
      "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2.0,\"rope_theta\":1e6,"
      "\"original_max_position_embeddings\":32,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
      "\"llama_4_scaling_beta\":0.1},\"head_dim\":8,\"intermediate_size\":8},",
      bytes_tokenizer,
      { ALL(outer_shapes), ALL(mistral3_shapes) } },
    { "mistral4",
      "{\"model_type\":\"mistral4\",\"hidden_size\":16,\"num_attention_heads\":2,\"num_key_value_heads\":2,"
      "\"q_lora_rank\":null,\"kv_lora_rank\":16,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"qk_head_dim\":32,"
      "\"v_head_dim\":16,\"n_routed_experts\":2,\"num_experts_per_tok\":1,\"n_shared_experts\":0,\"n_group\":1,"
      "\"topk_group\":1,\"first_k_dense_replace\":0,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2.0,"
      "\"rope_theta\":1e4,\"original_max_position_embeddings\":32,\"llama_4_scaling_beta\":0.1},"
      "\"moe_intermediate_size\":8,\"intermediate_size\":8,",
      bytes_tokenizer,
      { ALL(latent_shapes), ALL(named_shapes) } },
    { "llama4",
      "{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\"," SIXTEEN
      "\"head_dim\":8,\"num_local_experts\":2,\"num_experts_per_tok\":1,\"interleave_moe_layer_step\":1,"
      "\"attention_chunk_size\":8192,\"layer_types\":[\"chunked_attention\"],\"no_rope_layers\":[1],"
      "\"moe_layers\":[0],\"use_qk_norm\":true,\"intermediate_size_mlp\":8,\"intermediate_size\":8},",
      bytes_tokenizer,
      { ALL(outer_shapes), ALL(llama4_shapes) } },
    { "gptq_order",
      "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
      "\"intermediate_size\":8,\"tie_word_embeddings\":true,\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
      "\"group_size\":32,\"sym\":false,\"desc_act\":true},",
      bytes_tokenizer,
      { ALL(gptq_shapes), ALL(order_shapes) } },
    { "medusa",
      "{\"base_model_name_or_path\":\"a\",\"medusa_num_heads\":2,\"medusa_num_layers\":1,",
      bytes_tokenizer,
      { ALL(medusa_shapes) } },
    { "medusa_vllm",
      "{\"model_type\":\"medusa\",\"num_heads\":2,\"hidden_size\":16,\"vocab_size\":8,\"original_lm_head\":true,",
      bytes_tokenizer,
      { ALL(medusa_vllm_shapes) } },
};

static uint64_t add_shape(struct gguf *header, const struct shape *s, uint64_t at)
{
    char text[256], dims[64] = "";
    const char *dtype = s->dtype ? s->dtype : "F32";
    uint64_t bytes = !strcmp(dtype, "F32") || !strcmp(dtype, "I32") ? 4
                     : !strcmp(dtype, "I64")                        ? 8
                     : strstr(dtype, "F16")                         ? 2
                                                                    : 1;
    for (int i = 0; i < s->n_dim; i++) {
        snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%d", i ? "," : "", s->dim[i]);
        bytes *= (uint64_t)s->dim[i];
    }
    int n = snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%d,%d]}",
                     header->n ? "," : "{", s->name, dtype, dims, (int)at, (int)(at + bytes));
    gguf_bytes(header, text, (size_t)n);
    return at + bytes;
}

static void write_folders(const char *folder)
{
    make_ranks();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        static const char rest[] = "\"num_hidden_layers\":1,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":64}";
        struct gguf g = { 0 }, header = { 0 };
        char path[512];
        uint64_t at = 0;
        for (int list = 0; list < 3; list++)
            for (int k = 0; k < folders[i].shapes[list].n; k++)
                at = add_shape(&header, &folders[i].shapes[list].shape[k], at);
        gguf_u8(&header, '}');
        gguf_bytes(&g, folders[i].config, strlen(folders[i].config));
        gguf_bytes(&g, rest, strlen(rest));
        gguf_u8(&g, 0xff);
        gguf_bytes(&g, folders[i].tokenizer, strlen(folders[i].tokenizer));
        gguf_u8(&g, 0xff);
        gguf_bytes(&g, roles, strlen(roles));
        gguf_u8(&g, 0xff);
        gguf_u64(&g, header.n);
        gguf_bytes(&g, header.data, header.n);
        for (uint64_t k = 0; k < at; k++)
            gguf_u8(&g, (uint8_t)k);
        snprintf(path, sizeof path, "%s/folder/%s", folder, folders[i].name);
        gguf_save(&g, path);
        gguf_free(&g);
        gguf_free(&header);
    }
}

/* The cases of the table of rules for requests. */
static void write_requests(const char *folder)
{
    char path[512];
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct gguf g = { 0 };
        gguf_u8(&g, 31);
        gguf_bytes(&g, rules[i].bytes, rules[i].n ? rules[i].n : strlen(rules[i].bytes));
        snprintf(path, sizeof path, "%s/http_parse/%zu", folder, i);
        gguf_save(&g, path);
        gguf_free(&g);
    }
}

int main(int argc, char **argv)
{
    char path[512];
    if (argc != 2)
        return 2;
    static const char *const sub[] = { "", "/header", "/model", "/folder", "/http_parse" };
    for (size_t i = 0; i < sizeof sub / sizeof *sub; i++) {
        snprintf(path, sizeof path, "%s%s", argv[1], sub[i]);
        if (mkdir(path, 0755) && errno != EEXIST)
            return 1;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (write_model(argv[1], &kinds[i]))
            return 1;
    write_headers(argv[1]);
    write_folders(argv[1]);
    write_requests(argv[1]);
    return 0;
}
