/* Folders with packed weights and separate scale tensors: MXFP4 as gpt-oss is published, FP8 with a scale for each
 * block, INT4 in groups, GPTQ, NVFP4. Read in place they give the bits of the GGUF file of the same weights, with every
 * instruction set, with few expert slots, and from a pack file; the output of quantize does too.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/moe/folders.h"
#include "tests/moe/folder.h"

#define LEN(a)  ((int)(sizeof(a) / sizeof *(a)))
#define N_VOCAB 300

static char model[80]; /* the model's folder inside the test's folder */
static struct kn_team *team;
static const struct golden tokens = { .n_vocab = N_VOCAB, .token = (int32_t[N_TOK]){ 5, 9, 33, 120 } };

static int setup(void **state)
{
    int error = folder_make(state);
    snprintf(model, sizeof model, "%s/model", folder);
    return error ? error : kn_team_open(&team, 2);
}

static int teardown(void **state)
{
    kn_team_close(team);
    return folder_remove(state);
}

static void same_logits(const float *want, const char *name, struct run by)
{
    float *got = logits_by(&tokens, name, by);
    assert_memory_equal(got, want, 4 * N_VOCAB * sizeof *want);
    free(got);
}

/* Compares the folder with the GGUF file in every way of running. */
static void same_as(const char *gguf)
{
    char pack[160];
    struct off_packed packed;
    struct moe_file *f;
    struct moe_model *m;
    float *want = logits_of(&tokens, gguf);
    for (int i = 1; i < 4 * N_VOCAB; i++)
        assert_true(isfinite(want[i]));
    for (enum kn_isa isa = KN_ISA_SCALAR; isa <= kn_isa_best(); isa++)
        same_logits(want, model, (struct run){ .isa = isa });
    same_logits(want, model, (struct run){ .isa = KN_ISA_COUNT - 1, .least = true });
    snprintf(pack, sizeof pack, "%s/experts", folder);
    remove(pack);
    assert_int_equal(moe_file_open(&f, model), 0);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    assert_int_equal(moe_model_pack(m, pack, &(struct moe_pack_options){ .team = team }, &packed), 0);
    moe_model_close(m);
    moe_file_close(f);
    same_logits(want, model, (struct run){ .isa = KN_ISA_COUNT - 1, .pack = pack });
    free(want);
}

static void make_folder(const char *config, const char *tokenizer, struct hf_file *weights)
{
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", model, model);
    assert_int_equal(system(command), 0);
    hf_save(model, "config.json", config, strlen(config));
    hf_save(model, "tokenizer.json", tokenizer, strlen(tokenizer));
    hf_close(weights, model, "model.safetensors");
}

/* ---- gpt-oss: separate blocks and scales, gate and up rows interleaved ------------------------- */

#define EXPERTS                                                                                                              \
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":128,\"intermediate_size\":96,\"num_hidden_layers\":2,"                      \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"num_local_experts\":8,\"num_experts_per_tok\":2," \
    "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":2048,\"sliding_window\":21,\"layer_types\":[\"sliding_attention\","   \
    "\"full_attention\"],\"rope_theta\":150000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8.0,\"beta_fast\":32.0,"  \
    "\"beta_slow\":1.0,\"original_max_position_embeddings\":256,\"truncate\":false},\"swiglu_limit\":7.0,"                   \
    "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}"
#define TOKENIZER                                                                                                      \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

static uint8_t *bytes_of(const struct moe_file *f, const char *name, const struct moe_tensor **t)
{
    *t = moe_file_find_tensor(f, name);
    assert_non_null(*t);
    uint8_t *data = malloc((*t)->bytes);
    assert_int_equal(moe_file_read(f, *t, 0, data, (*t)->bytes), 0);
    return data;
}

/* A tensor outside the experts, as F32. */
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

/* Interleaves the rows of n tensors and separates their codes from their scales. */
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
        { "attn_norm.weight", "input_layernorm.weight" },
        { "attn_q.weight", "self_attn.q_proj.weight" },
        { "attn_k.weight", "self_attn.k_proj.weight" },
        { "attn_v.weight", "self_attn.v_proj.weight" },
        { "attn_output.weight", "self_attn.o_proj.weight" },
        { "attn_q.bias", "self_attn.q_proj.bias" },
        { "attn_k.bias", "self_attn.k_proj.bias" },
        { "attn_v.bias", "self_attn.v_proj.bias" },
        { "attn_output.bias", "self_attn.o_proj.bias" },
        { "attn_sinks.weight", "self_attn.sinks" },
        { "post_attention_norm.weight", "post_attention_layernorm.weight" },
        { "ffn_gate_inp.weight", "mlp.router.weight" },
        { "ffn_gate_inp.bias", "mlp.router.bias" },
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

static void quantize(const char *in, const char *out, enum kn_format experts)
{
    struct moe_quantize_options opt = { .requantize = true, .ops = kn_ops(KN_ISA_COUNT - 1), .team = team };
    struct moe_file *f;
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = i == MOE_EXPERTS ? experts : KN_F32;
    assert_int_equal(moe_file_open(&f, in), 0);
    struct moe_quantized *done = calloc(moe_file_tensor_count(f), sizeof *done);
    assert_int_equal(moe_quantize(out, f, &opt, done), 0);
    free(done);
    moe_file_close(f);
}

/* Reads the folder in place, and as the GGUF file converted from it. */
static void gpt_oss_is_read_in_place(void **state)
{
    (void)state;
    struct moe_file *f, *a, *b;
    struct hf_file out = { 0 };
    char one[160], other[160];
    snprintf(one, sizeof one, "%s/one.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    struct moe_synth_options so = {
        .shape = "tiny-gpt-oss", .n_layer = 2, .n_vocab = N_VOCAB, .format = KN_MXFP4, .seed = 3, .team = team
    };
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&f, path), 0);
    put_float(&out, f, "token_embd.weight", "model.embed_tokens.weight");
    put_float(&out, f, "output.weight", "lm_head.weight");
    put_float(&out, f, "output_norm.weight", "model.norm.weight");
    for (int layer = 0; layer < 2; layer++)
        put_layer(&out, f, layer);
    moe_file_close(f);
    make_folder(EXPERTS, TOKENIZER, &out);

    quantize(path, one, KN_MXFP4);
    quantize(model, other, KN_MXFP4);
    assert_int_equal(moe_file_open(&a, one), 0);
    assert_int_equal(moe_file_open(&b, other), 0);
    same_tensors(a, b);
    moe_file_close(a);
    moe_file_close(b);
    same_as(one);
    same_as(other);
}

/* ---- FP8 with a scale for each 128 by 128 values, INT4 with one for each group of a row, GPTQ ----- */

#define QWEN                                                                                                                \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":256,\"num_hidden_layers\":2,\"num_attention_heads\":8,"                  \
    "\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":512,\"moe_intermediate_size\":256,\"num_experts\":12," \
    "\"num_experts_per_tok\":3,\"norm_topk_prob\":true,\"rms_norm_eps\":1e-6,\"max_position_embeddings\":4096,"             \
    "\"rope_theta\":1e6,\"quantization_config\":%s}"
#define GROUPS                                                                                                             \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{"              \
    "\"input_activations\":null,\"targets\":[\"Linear\"],\"weights\":{\"actorder\":null,\"group_size\":%d,\"num_bits\":4," \
    "\"strategy\":\"group\",\"symmetric\":true,\"type\":\"int\"}}}}"

#define GPTQ(more)                                                                                                     \
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":%d,\"sym\":true," more                                       \
    "\"modules_in_block_to_quantize\":[[\"self_attn.q_proj\"]]}"

/* zeros: eight zero points in one stored word; 0: not GPTQ, where inputs come first. */
struct kind {
    const char *name, *packing;
    bool fp8, narrow;
    int rows, values;
    uint32_t zeros;
    bool half, nvfp4;
};

#define NV_GROUPS                                                                                                      \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{\"group_0\":{"    \
    "\"targets\":[\"Linear\"],\"weights\":{\"group_size\":%d,\"num_bits\":4,\"strategy\":\"tensor_group\","            \
    "\"symmetric\":true,\"type\":\"float\"}}}}"

static const struct kind kinds[] = {
    { "fp8, scales in F32", "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}", true, false,
      128, 128, 0, false, false },
    { "fp8, scales in BF16",
      "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"activation_scheme\":\"dynamic\"}", true, true, 128,
      128, 0, false, false },
    { "fp8, other blocks", "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[48,256]}", true, true, 48,
      256, 0, false, false },
    { "int4 in groups of 32", GROUPS, false, true, 1, 32, 0, false, false },
    { "int4 in groups of 128", GROUPS, false, true, 1, 128, 0, false, false },
    { "gptq in groups of 32", GPTQ("\"desc_act\":false,"), false, true, 1, 32, 0x77777777, true, false },
    { "gptq in groups of 128", GPTQ("\"checkpoint_format\":\"gptq\","), false, true, 1, 128, 0x77777777, true, false },
    { "gptq_v2, scales in BF16", GPTQ("\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\","), false, true, 1, 64,
      0x88888888, false, false },
#ifndef __SANITIZE_ADDRESS__ /* the memory is that of the next */
    { .name = "nvfp4 of modelopt",
      .packing = "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":%d}",
      .values = 16,
      .nvfp4 = true },
#endif
    { .name = "nvfp4 of compressed-tensors", .packing = NV_GROUPS, .narrow = true, .values = 16, .nvfp4 = true },
};

/* Published codes and scales; and the expected values, or blocks of Q4_0, in `meant`. */
struct packed {
    uint8_t *codes, *scales, *meant;
    uint64_t n_code, n_scale, n_meant;
};

/* Returns the code nearest to x; *value gets the code's value. */
static uint8_t fp8_code(double x, double *value)
{
    double size = fabs(x);
    int e = size < 0x1p-6 ? -6 : ilogb(size), q = (int)lrint(ldexp(size, 3 - e));
    if (q == 16) {
        e++;
        q = 8;
    }
    int code = q < 8 ? q : (e + 6) * 8 + q;
    code = kn_min(code, 0x7E);
    *value = copysign(code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10), x);
    return (uint8_t)(code | (x < 0 ? 0x80 : 0));
}

static float scale_of(const struct kind *k, const float *x, uint64_t n_in, uint64_t n_row, uint64_t n)
{
    float most = 1e-6f;
    for (uint64_t r = 0; r < n_row; r++)
        for (uint64_t c = 0; c < n; c++)
            most = fmaxf(most, fabsf(x[r * n_in + c]));
    most /= k->fp8 ? 448 : 7;
    return k->narrow ? hf_cut(most) : most;
}

static void pack_value(const struct kind *k, struct packed *p, uint64_t at, float x, float scale)
{
    if (k->fp8) {
        double value;
        p->codes[at] = fp8_code((double)x / (double)scale, &value);
        float meant = (float)((double)scale * value);
        memcpy(p->meant + 4 * at, &meant, sizeof meant);
        return;
    }
    int q = kn_max(0, kn_min(15, (int)lrintf(x / scale) + 8)), in = (int)(at % 32);
    struct kn_q4_0 *block = (struct kn_q4_0 *)(void *)p->meant + at / 32;
    p->codes[at / 2] |= (uint8_t)(q << at % 2 * 4);
    block->d = kn_f32_to_f16(scale);
    block->q[in % 16] |= (uint8_t)(q << in / 16 * 4);
}

static struct packed pack(const struct kind *k, const float *x, uint64_t n_out, uint64_t n_in)
{
    uint64_t rows = (uint64_t)k->rows, values = (uint64_t)k->values, n = n_out * n_in, bytes = k->narrow ? 2 : 4;
    uint64_t n_row = (n_out + rows - 1) / rows, n_col = (n_in + values - 1) / values;
    struct packed p = { .n_code = k->fp8 ? n : n / 2,
                        .n_scale = n_row * n_col * bytes,
                        .n_meant = k->fp8 ? 4 * n : n / 32 * sizeof(struct kn_q4_0) };
    p.codes = calloc(p.n_code, 1);
    p.scales = calloc(p.n_scale, 1);
    p.meant = calloc(p.n_meant, 1);
    for (uint64_t b = 0; b < n_row * n_col; b++) {
        uint64_t r0 = b / n_col * rows, c0 = b % n_col * values;
        uint64_t r1 = r0 + rows < n_out ? r0 + rows : n_out, c1 = c0 + values < n_in ? c0 + values : n_in;
        float scale = scale_of(k, x + r0 * n_in + c0, n_in, r1 - r0, c1 - c0);
        memcpy(p.scales + b * bytes, (uint8_t *)&scale + 4 - bytes, bytes);
        for (uint64_t i = r0; i < r1; i++)
            for (uint64_t c = c0; c < c1; c++)
                pack_value(k, &p, i * n_in + c, x[i * n_in + c], scale);
    }
    return p;
}

/* Transposes items of `item` bytes from [n_row][n_col] to [n_col][n_row]. */
static uint8_t *turned(const uint8_t *from, uint64_t n_row, uint64_t n_col, size_t item)
{
    uint8_t *to = malloc(n_row * n_col * item);
    for (uint64_t r = 0; r < n_row; r++)
        for (uint64_t c = 0; c < n_col; c++)
            memcpy(to + (c * n_row + r) * item, from + (r * n_col + c) * item, item);
    return to;
}

/* Puts a matrix with inputs first and its companion tensors; name: without the suffix. Adds a bias of zeros where the
 * model has no bias. */
static void put_gptq(const struct kind *k, struct hf_file *out, const struct packed *p, uint64_t n_out, uint64_t n_in,
                     const char *name)
{
    uint64_t n_group = n_in / (uint64_t)k->values, n_zero = n_group * n_out / 8;
    uint8_t *codes = turned(p->codes, n_out, n_in / 8, 4), *scales = turned(p->scales, n_out, n_group, 2);
    uint32_t *zeros = calloc(n_zero, 4), *order = calloc(n_in, 4);
    uint16_t *bias = calloc(n_out, 2), *d = (uint16_t *)(void *)scales;
    char full[192];
    for (uint64_t i = 0; i < n_group * n_out && k->half; i++)
        d[i] = kn_f32_to_f16(kn_bf16_to_f32(d[i]));
    for (uint64_t i = 0; i < n_zero; i++)
        zeros[i] = k->zeros;
    for (uint64_t i = 0; i < n_in; i++)
        order[i] = (uint32_t)(i / (uint64_t)k->values);
    const struct {
        const char *end, *dtype;
        const void *data;
        size_t bytes;
        uint64_t dim[2];
        int n_dim;
    } part[] = {
        { "qweight", "I32", codes, p->n_code, { n_out, n_in / 8 }, 2 },
        { "qzeros", "I32", zeros, 4 * n_zero, { n_out / 8, n_group }, 2 },
        { "scales", k->half ? "F16" : "BF16", scales, p->n_scale, { n_out, n_group }, 2 },
        { "g_idx", "I32", order, 4 * n_in, { n_in }, 1 },
        { "bias", "F16", bias, 2 * n_out, { n_out }, 1 },
    };
    for (int i = 0; i < LEN(part) - (strstr(name, "q_proj") || strstr(name, "k_proj") || strstr(name, "v_proj")); i++) {
        snprintf(full, sizeof full, "%s%s", name, part[i].end);
        hf_add_raw(out, full, part[i].dtype, part[i].data, part[i].bytes, part[i].dim, part[i].n_dim);
    }
    free(codes);
    free(scales);
    free(zeros);
    free(order);
    free(bias);
}

/* The scale of all of expert e; in compressed-tensors its reciprocal is stored. */
static float nv_stored(const struct kind *k, int e)
{
    float factor = 0x1p-12f * (float)(1 + e % 3);
    return k->narrow ? 1 / factor : factor;
}

static float nv_factor(const struct kind *k, int e) { return k->narrow ? 1 / nv_stored(k, e) : nv_stored(k, e); }

/* NVFP4: encoded as in a GGUF file, and these blocks taken apart. */
static void put_nvfp4(const struct kind *k, struct hf_file *out, const float *x, const uint64_t dim[2],
                      const char *name, int e, struct kn_nvfp4 *meant)
{
    uint64_t n = dim[0] * dim[1];
    uint8_t *codes = calloc(n / 2, 1), *scales = calloc(n / 16, 1);
    float *less = malloc(n * sizeof *less), stored = nv_stored(k, e);
    char full[192];
    for (uint64_t i = 0; i < n; i++)
        less[i] = x[i] / nv_factor(k, e);
    kn_ops(KN_ISA_SCALAR)->encode(KN_NVFP4, less, NULL, n, meant);
    for (uint64_t i = 0; i < n; i++) {
        const struct kn_nvfp4 *b = meant + i / 64;
        uint64_t sub = i % 64 / 16, v = i % 16;
        int q = b->q[8 * sub + v % 8] >> (v < 8 ? 0 : 4) & 15;
        codes[i / 2] |= (uint8_t)(q << i % 2 * 4);
        scales[i / 16] = b->d[sub];
    }
    snprintf(full, sizeof full, "%s%s", name, k->narrow ? "_packed" : "");
    hf_add_raw(out, full, "U8", codes, n / 2, (uint64_t[2]){ dim[0] / 2, dim[1] }, 2);
    snprintf(full, sizeof full, "%s_scale", name);
    hf_add_raw(out, full, "F8_E4M3", scales, n / 16, (uint64_t[2]){ dim[0] / 16, dim[1] }, 2);
    snprintf(full, sizeof full, "%s%s", name, k->narrow ? "_global_scale" : "_scale_2");
    hf_add_raw(out, full, "F32", &stored, sizeof stored, (uint64_t[1]){ 1 }, k->narrow);
    free(codes);
    free(scales);
    free(less);
}

/* Adds a matrix to the folder, and its values to the expected ones. */
static void put_packed(const struct kind *k, struct hf_file *out, const float *x, uint64_t n_out, uint64_t n_in,
                       const char *name, uint8_t *meant)
{
    struct packed p = pack(k, x, n_out, n_in);
    uint64_t rows = (uint64_t)k->rows, values = (uint64_t)k->values, shape[2] = { n_out, n_in };
    uint64_t scales[2] = { (n_in + values - 1) / values, (n_out + rows - 1) / rows };
    char full[192];
    if (k->zeros) {
        snprintf(full, sizeof full, "%.*s", (int)(strlen(name) - strlen("weight")), name);
        put_gptq(k, out, &p, n_out, n_in, full);
    } else {
        snprintf(full, sizeof full, "%s%s", name, k->fp8 ? "" : "_packed");
        hf_add_raw(out, full, k->fp8 ? "F8_E4M3" : "I32", p.codes, p.n_code,
                   (uint64_t[2]){ k->fp8 ? n_in : n_in / 8, n_out }, 2);
        snprintf(full, sizeof full, "%s%s", name, k->fp8 ? "_scale_inv" : "_scale");
        hf_add_raw(out, full, k->narrow ? "BF16" : "F32", p.scales, p.n_scale, scales, 2);
    }
    snprintf(full, sizeof full, "%s_shape", name);
    if (!k->fp8 && !k->zeros)
        hf_add_raw(out, full, "I64", shape, sizeof shape, (uint64_t[1]){ 2 }, 1);
    memcpy(meant, p.meant, p.n_meant);
    free(p.codes);
    free(p.scales);
    free(p.meant);
}

static const char *const hf_names[][2] = {
    { "token_embd.weight", "model.embed_tokens.weight" },
    { "output.weight", "lm_head.weight" },
    { "output_norm.weight", "model.norm.weight" },
    { "attn_norm.weight", "input_layernorm.weight" },
    { "ffn_norm.weight", "post_attention_layernorm.weight" },
    { "ffn_gate_inp.weight", "mlp.gate.weight" },
    { "attn_q_norm.weight", "self_attn.q_norm.weight" },
    { "attn_k_norm.weight", "self_attn.k_norm.weight" },
    { "attn_q.weight", "self_attn.q_proj.weight" },
    { "attn_k.weight", "self_attn.k_proj.weight" },
    { "attn_v.weight", "self_attn.v_proj.weight" },
    { "attn_output.weight", "self_attn.o_proj.weight" },
    { "ffn_gate_exps.weight", "mlp.experts.%d.gate_proj.weight" },
    { "ffn_up_exps.weight", "mlp.experts.%d.up_proj.weight" },
    { "ffn_down_exps.weight", "mlp.experts.%d.down_proj.weight" },
};

/* The folder's name of a GGUF tensor, of expert e. */
static void hf_name(const char *gguf, int e, char out[160])
{
    int layer, at = 0;
    char form[120];
    bool in_layer = sscanf(gguf, "blk.%d.%n", &layer, &at) == 1;
    for (int i = 0; i < LEN(hf_names); i++)
        if (!strcmp(gguf + at, hf_names[i][0])) {
            snprintf(form, sizeof form, in_layer ? "model.layers.%d.%s" : "%.0d%s", in_layer ? layer : 0,
                     hf_names[i][1]);
            const char *number = strstr(form, "%d");
            if (number)
                snprintf(out, 160, "%.*s%d%s", (int)(number - form), form, e, number + 2);
            else
                snprintf(out, 160, "%s", form);
            return;
        }
    fail_msg("no name for %s", gguf);
}

/* Puts one tensor of the F32 file f into the folder; returns *bytes of its expected content in format *to. */
static uint8_t *put_tensor(const struct kind *k, struct hf_file *out, const struct moe_file *f, const char *name,
                           enum kn_format *to, uint64_t *bytes)
{
    const struct moe_tensor *t;
    float *x = (float *)(void *)bytes_of(f, name, &t);
    bool attention = strstr(name, ".attn_") && !strstr(name, "norm");
    bool packed = strstr(name, "_exps") || ((k->fp8 || k->zeros || k->nvfp4) && attention);
    uint64_t n_in = t->dim[0], n_out = t->dim[1], one = n_in * n_out;
    char full[160];
    *to = packed && k->nvfp4 ? KN_NVFP4 : packed && !k->fp8 ? KN_Q4_0 : KN_F32;
    *bytes = t->bytes / 4 / 64 * kn_row_bytes(*to, 64);
    uint8_t *meant = malloc(*bytes);
    if (!packed) {
        hf_name(name, 0, full);
        hf_add(out, full, x, t->dim, t->n_dim, false);
        memcpy(meant, x, *bytes);
    }
    for (uint64_t e = 0; packed && e < t->dim[2]; e++) {
        hf_name(name, (int)e, full);
        if (k->nvfp4) {
            put_nvfp4(k, out, x + e * one, t->dim, full, (int)e,
                      (struct kn_nvfp4 *)(void *)(meant + e * (*bytes / t->dim[2])));
            continue;
        }
        put_packed(k, out, x + e * one, n_out, n_in, full, meant + e * (*bytes / t->dim[2]));
    }
    free(x);
    return meant;
}

/* Makes the folder `model`, and a GGUF file with the expected values. */
static void make_packed(const struct kind *k, const struct moe_file *f, const char *gguf)
{
    struct hf_file out = { 0 };
    struct moe_writer *w;
    char config[2048], packing[512];
    uint8_t *data[64];
    uint64_t bytes[64];
    size_t n = moe_file_tensor_count(f), n_all = 0;
    assert_in_range(n, 1, 40);
    assert_int_equal(moe_writer_open(&w, gguf), 0);
    for (size_t i = 0; i < moe_file_value_count(f); i++)
        assert_int_equal(moe_writer_copy(w, moe_file_value(f, i)), 0);
    for (size_t i = 0; i < n; i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        enum kn_format to;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
        data[n_all] = put_tensor(k, &out, f, name, &to, &bytes[n_all]);
        assert_int_equal(moe_writer_tensor(w, name, to, t->n_dim, t->dim), 0);
        n_all++;
        if (to != KN_NVFP4)
            continue;
        float *factor = malloc(t->dim[2] * sizeof *factor);
        for (uint64_t e = 0; e < t->dim[2]; e++)
            factor[e] = nv_factor(k, (int)e);
        strcpy(strstr(name, ".weight"), ".scale");
        data[n_all] = (uint8_t *)factor;
        bytes[n_all++] = t->dim[2] * sizeof *factor;
        assert_int_equal(moe_writer_tensor(w, name, KN_F32, 1, (uint64_t[4]){ t->dim[2], 1, 1, 1 }), 0);
    }
    assert_int_equal(moe_writer_header(w), 0);
    for (size_t i = 0; i < n_all; i++) {
        assert_int_equal(moe_writer_data(w, data[i], bytes[i]), 0);
        free(data[i]);
    }
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
    snprintf(packing, sizeof packing, k->packing, k->values);
    snprintf(config, sizeof config, QWEN, packing);
    make_folder(config, TOKENIZER, &out);
}

/* Where the folder's format is a GGUF format: reads in pieces that start and end inside rows and experts are equal. */
static void same_blocks(const struct moe_file *gguf, const struct moe_file *hf)
{
    for (size_t i = 0; i < moe_file_tensor_count(gguf); i++) {
        const struct moe_tensor *t, *u;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)moe_file_tensor(gguf, i)->name.n, moe_file_tensor(gguf, i)->name.data);
        uint8_t *a = bytes_of(gguf, name, &t), *b = bytes_of(hf, name, &u);
        size_t block = t->gguf_type == 40 ? sizeof(struct kn_nvfp4) : sizeof(struct kn_q4_0);
        assert_int_equal(t->gguf_type, u->gguf_type);
        assert_int_equal(t->bytes, u->bytes);
        assert_memory_equal(a, b, t->bytes);
        memset(b, 0, t->bytes);
        bool in_blocks = t->gguf_type == 2 || t->gguf_type == 40;
        for (uint64_t at = 0, n = block; in_blocks && at < t->bytes; at += n, n = n < 100000 ? 3 * n : block) {
            n = n < t->bytes - at ? n : t->bytes - at;
            assert_int_equal(moe_file_read(hf, u, at, b + at, n), 0);
        }
        if (in_blocks)
            assert_memory_equal(a, b, t->bytes);
        free(a);
        free(b);
    }
}

static void packed_weights_are_read_in_place(void **state)
{
    const struct kind *k = *state;
    struct moe_file *f, *a, *b;
    char whole[160], one[160], other[160];
    snprintf(whole, sizeof whole, "%s/whole.gguf", folder);
    snprintf(one, sizeof one, "%s/one.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    struct moe_synth_options so = {
        .shape = "tiny", .n_layer = 2, .n_vocab = N_VOCAB, .format = KN_F32, .seed = 5, .team = team
    };
    assert_int_equal(moe_synth(path, &so), 0);
    quantize(path, whole, KN_F32);
    assert_int_equal(moe_file_open(&f, whole), 0);
    make_packed(k, f, one);
    moe_file_close(f);
    same_as(one);
    if (k->half || k->nvfp4) {
        assert_int_equal(moe_file_open(&a, one), 0);
        assert_int_equal(moe_file_open(&b, model), 0);
        same_blocks(a, b);
        moe_file_close(a);
        moe_file_close(b);
    }
    quantize(model, other, KN_F32); /* each value as decoded */
    quantize(one, whole, KN_F32);
    assert_int_equal(moe_file_open(&a, whole), 0);
    assert_int_equal(moe_file_open(&b, other), 0);
    same_tensors(a, b);
    moe_file_close(a);
    moe_file_close(b);
}

int main(void)
{
    struct CMUnitTest tests[LEN(kinds) + 1] = { cmocka_unit_test(gpt_oss_is_read_in_place) };
    for (int i = 0; i < LEN(kinds); i++)
        tests[i + 1] = (struct CMUnitTest){ kinds[i].name, packed_weights_are_read_in_place, NULL, NULL,
                                            (void *)&kinds[i] };
    return cmocka_run_group_tests(tests, setup, teardown);
}
