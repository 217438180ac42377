/* Folders as the transformers package writes them: the same tables, bytes and logits as the GGUF file of the
 * same weights; what is wrong is refused in one line that names file and reason; whatever call fails,
 * nothing is left behind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/moe/hf_folder.h"
#include "tests/moe/load.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define N_TOK 48
#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

static char model[80];                          /* the folder within the test's own */

static int setup(void **state)
{
    int error = folder_make(state);
    snprintf(model, sizeof model, "%s/model", folder);
    return error;
}

/* ---- the same model ---------------------------------------------------------------------------- */

/* The logits of the last few of N_TOK tokens, read in one batch: [4][n_vocab], to be freed. */
static float *logits_of(const struct golden *g, const char *name)
{
    struct kn_team *team;
    struct moe_file *f;
    struct moe_model *m = NULL;
    struct moe_context *c;
    struct moe_row row[N_TOK];
    struct moe_result result;
    int32_t slot[N_TOK];
    size_t bytes = 4 * (size_t)g->n_vocab * sizeof(float);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&f, name), 0);
    assert_int_equal(load_model(&m, f, KN_ISA_COUNT - 1, team, OFF_IO_AUTO), 0);
    assert_int_equal(moe_model_shape(m)->n_vocab, g->n_vocab);
    struct moe_context_options co = { .max_row = N_TOK, .max_want = 4, .n_slot = N_TOK, .max_pos = N_TOK,
                                      .kv = KN_KV_F32, .team = team };
    assert_int_equal(moe_context_open(&c, m, &co), 0);
    for (int i = 0; i < N_TOK; i++) {
        slot[i] = i;
        row[i] = (struct moe_row){ .token = g->token[i], .position = i, .want_logits = i >= N_TOK - 4, .base = slot,
                                   .n_base = N_TOK };
    }
    assert_int_equal(moe_forward(c, &(struct moe_batch){ row, N_TOK }, &result), 0);
    float *out = malloc(bytes);
    memcpy(out, result.logits, bytes);
    moe_context_close(c);
    moe_model_close(m);
    moe_file_close(f);
    kn_team_close(team);
    return out;
}

/* Every tensor of the file is in the folder, with its shape and its bytes, read in pieces of no great sense. */
static void same_tensors(const struct moe_file *gguf, const struct moe_file *hf)
{
    for (size_t i = 0; i < moe_file_tensor_count(gguf); i++) {
        const struct moe_tensor *t = moe_file_tensor(gguf, i), *u;
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
        u = moe_file_find_tensor(hf, name);
        if (!u && strstr(name, "nextn"))
            continue;
        if (!u && strstr(name, "blk.4."))
            continue;                           /* the layer that guesses ahead */
        if (!u)
            fail_msg("%s is not in the folder", name);
        assert_int_equal(t->n_dim, u->n_dim);
        assert_memory_equal(t->dim, u->dim, sizeof t->dim);
        if (t->gguf_type == 0 && u->gguf_type == 30 && t->n_dim == 1)
            continue;                           /* a vector of F32 that is BF16 there */
        assert_int_equal(t->gguf_type, u->gguf_type);
        assert_int_equal(t->bytes, u->bytes);
        uint8_t *a = malloc(t->bytes), *b = malloc(t->bytes);
        assert_int_equal(moe_file_read(gguf, t, 0, a, t->bytes), 0);
        for (uint64_t at = 0, n = 4; at < u->bytes; at += n, n = n < 4000 ? 3 * n : 4) {
            n = n < u->bytes - at ? n : u->bytes - at;
            assert_int_equal(moe_file_read(hf, u, at, b + at, n), 0);
        }
        if (memcmp(a, b, t->bytes))
            fail_msg("%s has other bytes", name);
        free(a);
        free(b);
    }
}

/* What the GGUF file says of the architecture the folder says too. */
static void same_metadata(const struct moe_file *gguf, const struct moe_file *hf)
{
    for (size_t i = 0; i < moe_file_value_count(gguf); i++) {
        const struct moe_value *v = moe_file_value(gguf, i), *w;
        char key[128];
        snprintf(key, sizeof key, "%.*s", (int)v->key.n, v->key.data);
        if (!strncmp(key, "general.", 8) || !strcmp(key, "tokenizer.ggml.pre") || strstr(key, "vocab_size") ||
            strstr(key, "block_count") || strstr(key, "nextn"))
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
        moe_file_close(a);
        moe_file_close(b);
        float *x = logits_of(&h.g, path), *y = logits_of(&h.g, model);
        assert_memory_equal(x, y, 4 * (size_t)h.g.n_vocab * sizeof *x);
        free(x);
        free(y);
        hf_folder_free(&h);
    }
}

/* Experts in stacks, gates and ups as one, as the package has them in memory. */
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
    float *x = logits_of(&h.g, path), *y = logits_of(&h.g, model);
    assert_memory_equal(x, y, 4 * (size_t)h.g.n_vocab * sizeof *x);
    free(x);
    free(y);
    hf_folder_free(&h);
}

/* ---- gpt-oss: blocks and scales apart, gates and ups in turns ----------------------------------- */

#define EXPERTS "{\"model_type\":\"gpt_oss\",\"hidden_size\":128,\"intermediate_size\":96,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"num_local_experts\":8,\"num_experts_per_tok\":2," \
    "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":2048,\"sliding_window\":21,\"layer_types\":[\"sliding_attention\"," \
    "\"full_attention\"],\"rope_theta\":150000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8.0,\"beta_fast\":32.0," \
    "\"beta_slow\":1.0,\"original_max_position_embeddings\":256,\"truncate\":false},\"swiglu_limit\":7.0," \
    "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}"
#define TOKENIZER "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

static uint8_t *bytes_of(const struct moe_file *f, const char *name, const struct moe_tensor **t)
{
    *t = moe_file_find_tensor(f, name);
    assert_non_null(*t);
    uint8_t *data = malloc((*t)->bytes);
    assert_int_equal(moe_file_read(f, *t, 0, data, (*t)->bytes), 0);
    return data;
}

/* A tensor that is no expert's, as F32. */
static float *floats_of(const struct moe_file *f, const char *name, const struct moe_tensor **t)
{
    enum kn_format format;
    uint8_t *data = bytes_of(f, name, t);
    uint64_t n = (*t)->dim[0] * (*t)->dim[1];
    float *x = malloc(n * sizeof *x);
    assert_int_equal(kn_format_from_gguf((*t)->gguf_type, &format), 0);
    kn_row_decode(format, data, (int)n, x);
    free(data);
    return x;
}

static void put_float(struct hf_file *out, const struct moe_file *f, const char *from, const char *to)
{
    const struct moe_tensor *t;
    float *x = floats_of(f, from, &t);
    hf_add(out, to, x, t->dim, t->n_dim, false);
    free(x);
}

/* Rows of n tensors in turns, their blocks taken apart. */
static void put_blocks(struct hf_file *out, const struct moe_file *f, const char *const from[], int n, const char *to)
{
    const struct moe_tensor *t;
    uint8_t *data[2] = { 0 };
    char name[128];
    for (int i = 0; i < n; i++)
        data[i] = bytes_of(f, from[i], &t);
    uint64_t n_block = t->dim[0] / 32, n_row = t->dim[1], total = n_block * n_row * t->dim[2] * (uint64_t)n;
    uint8_t *blocks = calloc(total, 16), *scales = calloc(total, 1);
    for (uint64_t b = 0; b < total; b++) {
        uint64_t row = b / n_block, k = b % n_block;
        const struct kn_mxfp4 *in = (struct kn_mxfp4 *)data[row % (uint64_t)n] + row / (uint64_t)n * n_block + k;
        scales[b] = in->e;
        for (int v = 0; v < 32; v++)
            blocks[16 * b + (uint64_t)v / 2] |= (uint8_t)((v < 16 ? in->q[v] & 15 : in->q[v - 16] >> 4) << (v % 2 * 4));
    }
    const uint64_t dim[4] = { 16, n_block, n_row * (uint64_t)n, t->dim[2] };
    snprintf(name, sizeof name, "%s_blocks", to);
    hf_add_raw(out, name, "U8", blocks, 16 * total, dim, 4);
    snprintf(name, sizeof name, "%s_scales", to);
    hf_add_raw(out, name, "U8", scales, total, dim + 1, 3);
    free(blocks);
    free(scales);
    free(data[0]);
    free(data[1]);
}

static void put_pairs(struct hf_file *out, const struct moe_file *f, const char *gate, const char *up, const char *to)
{
    const struct moe_tensor *t;
    float *a = floats_of(f, gate, &t), *b = floats_of(f, up, &t);
    uint64_t n = t->dim[0] * t->dim[1], dim[2] = { 2 * t->dim[0], t->dim[1] };
    float *x = malloc(2 * n * sizeof *x);
    for (uint64_t i = 0; i < n; i++) {
        x[2 * i] = a[i];
        x[2 * i + 1] = b[i];
    }
    hf_add(out, to, x, dim, 2, false);
    free(a);
    free(b);
    free(x);
}

static void put_layer(struct hf_file *out, const struct moe_file *f, int layer)
{
    static const char *const plain[][2] = {
        { "attn_norm.weight", "input_layernorm.weight" }, { "attn_q.weight", "self_attn.q_proj.weight" },
        { "attn_k.weight", "self_attn.k_proj.weight" }, { "attn_v.weight", "self_attn.v_proj.weight" },
        { "attn_output.weight", "self_attn.o_proj.weight" }, { "attn_q.bias", "self_attn.q_proj.bias" },
        { "attn_k.bias", "self_attn.k_proj.bias" }, { "attn_v.bias", "self_attn.v_proj.bias" },
        { "attn_output.bias", "self_attn.o_proj.bias" }, { "attn_sinks.weight", "self_attn.sinks" },
        { "post_attention_norm.weight", "post_attention_layernorm.weight" },
        { "ffn_gate_inp.weight", "mlp.router.weight" }, { "ffn_gate_inp.bias", "mlp.router.bias" },
        { "ffn_down_exps.bias", "mlp.experts.down_proj_bias" },
    };
    char from[3][64], to[64];
    for (int i = 0; i < LEN(plain); i++) {
        snprintf(from[0], sizeof from[0], "blk.%d.%s", layer, plain[i][0]);
        snprintf(to, sizeof to, "model.layers.%d.%s", layer, plain[i][1]);
        put_float(out, f, from[0], to);
    }
    for (int bias = 0; bias < 2; bias++) {
        static const char *const part[3] = { "gate", "up", "down" };
        for (int i = 0; i < 3; i++)
            snprintf(from[i], sizeof from[i], "blk.%d.ffn_%s_exps.%s", layer, part[i], bias ? "bias" : "weight");
        snprintf(to, sizeof to, "model.layers.%d.mlp.experts.gate_up_proj%s", layer, bias ? "_bias" : "");
        if (bias)
            put_pairs(out, f, from[0], from[1], to);
        else
            put_blocks(out, f, (const char *const[]){ from[0], from[1] }, 2, to);
    }
    snprintf(from[2], sizeof from[2], "blk.%d.ffn_down_exps.weight", layer);
    snprintf(to, sizeof to, "model.layers.%d.mlp.experts.down_proj", layer);
    put_blocks(out, f, (const char *const[]){ from[2] }, 1, to);
}

static void quantize(const char *in, const char *out, struct kn_team *team)
{
    struct moe_quantize_options opt = { .requantize = true, .ops = kn_ops(KN_ISA_COUNT - 1), .team = team };
    struct moe_file *f;
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = i == MOE_EXPERTS ? KN_MXFP4 : KN_F32;
    assert_int_equal(moe_file_open(&f, in), 0);
    struct moe_quantized *done = calloc(moe_file_tensor_count(f), sizeof *done);
    assert_int_equal(moe_quantize(out, f, &opt, done), 0);
    free(done);
    moe_file_close(f);
}

/* The folder becomes the GGUF file that the synthetic model becomes; in place it is refused, with what to do. */
static void gpt_oss_is_put_together(void **state)
{
    (void)state;
    struct kn_team *team;
    struct moe_file *f, *a, *b;
    struct moe_model *m = NULL;
    struct hf_file out = { 0 };
    char one[160], other[160], command[200];
    snprintf(one, sizeof one, "%s/one.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    assert_int_equal(kn_team_open(&team, 2), 0);
    struct moe_synth_options so = { .shape = "tiny-gpt-oss", .n_layer = 2, .n_vocab = 300, .format = KN_MXFP4, .seed = 3,
                                    .team = team };
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&f, path), 0);
    put_float(&out, f, "token_embd.weight", "model.embed_tokens.weight");
    put_float(&out, f, "output.weight", "lm_head.weight");
    put_float(&out, f, "output_norm.weight", "model.norm.weight");
    for (int layer = 0; layer < 2; layer++)
        put_layer(&out, f, layer);
    moe_file_close(f);
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", model, model);
    assert_int_equal(system(command), 0);
    hf_save(model, "config.json", EXPERTS, sizeof EXPERTS - 1);
    hf_save(model, "tokenizer.json", TOKENIZER, sizeof TOKENIZER - 1);
    hf_close(&out, model, "model.safetensors");

    faults_reset();
    assert_int_equal(moe_file_open(&f, model), 0);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_SCALAR }), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "lies apart from its scales"));
    moe_file_close(f);
    kn_io_set(NULL);

    quantize(path, one, team);
    quantize(model, other, team);
    assert_int_equal(moe_file_open(&a, one), 0);
    assert_int_equal(moe_file_open(&b, other), 0);
    same_tensors(a, b);
    moe_file_close(a);
    moe_file_close(b);
    struct golden g = { .n_vocab = 300, .token = (int32_t[N_TOK]){ 5, 9, 33, 120 } };
    float *x = logits_of(&g, one), *y = logits_of(&g, other);
    assert_memory_equal(x, y, 4 * 300 * sizeof *x);
    free(x);
    free(y);
    kn_team_close(team);
}

int main(void)
{
    faults.in_pieces = true;
    static char *const name[] = {
        "llama_gqa", "llama_rope3_tied", "llama_linear", "mistral", "mixtral", "qwen2", "qwen3_tied", "qwen3_yarn",
        "qwen3moe_norm", "qwen3moe_nonorm", "qwen3moe_odd", "qwen2moe", "olmoe_clamp", "glm4moe", "glm4moe_groups", "minimax_m2",
    };
    struct CMUnitTest tests[LEN(name) + 2];
    tests[LEN(name) + 1] = (struct CMUnitTest)cmocka_unit_test(stacks_of_experts_are_taken_apart);
    tests[LEN(name)] = (struct CMUnitTest)cmocka_unit_test(gpt_oss_is_put_together);
    for (int i = 0; i < LEN(name); i++)
        tests[i] = (struct CMUnitTest){ name[i], a_folder_is_as_its_gguf, NULL, NULL, name[i] };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
