/* Quantised tensors as quantisers publish them in folders, against the values that other code gives them
 * (tests/fixtures/quantised/packed.txt): FP8 with any scales, also in stacks of experts; NVFP4; GPTQ and AWQ with zero
 * points; all of these with the rows of heads permuted.  Similar tensors that are not supported are refused.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/moe/folders.h"
#include "tests/moe/folder.h"

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))
#define TOKENIZER                                                                                                      \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"
#define MODEL                                                                                                          \
    "{\"model_type\":\"qwen3\",\"hidden_size\":256,\"num_hidden_layers\":1,\"num_attention_heads\":4,"                 \
    "\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":512,\"rms_norm_eps\":1e-6,"                       \
    "\"max_position_embeddings\":4096,\"rope_theta\":1e6,\"tie_word_embeddings\":true,\"vocab_size\":4}"

static char *text; /* packed.txt */

/* A stored tensor with its bytes. */
struct stored {
    char name[96], dtype[12];
    uint64_t dim[3];
    int n_dim;
    uint8_t *data;
    size_t bytes;
};
static struct stored part[8];
static int n_part;

static uint8_t *unhex(const char *hex, size_t *n)
{
    static const char digits[] = "0123456789abcdef";
    *n = strcspn(hex, "\n") / 2;
    uint8_t *data = malloc(*n + 1);
    for (size_t i = 0; i < *n; i++)
        data[i] = (uint8_t)((strchr(digits, hex[2 * i]) - digits) << 4 | (strchr(digits, hex[2 * i + 1]) - digits));
    return data;
}

static void free_parts(void)
{
    while (n_part)
        free(part[--n_part].data);
}

static void read_part(const char *line)
{
    struct stored *t = &part[n_part++];
    char dims[40];
    int at = 0;
    assert_in_range(n_part, 1, LEN(part));
    memset(t, 0, sizeof *t);
    assert_int_equal(sscanf(line, "%95s %11s %39s %n", t->name, t->dtype, dims, &at), 3);
    for (char *d = strtok(dims, ","); d && *d != '-'; d = strtok(NULL, ","))
        t->dim[t->n_dim++] = strtoull(d, NULL, 10);
    t->data = unhex(line + at, &t->bytes);
}

/* Writes the folder: the parts read, and an embedding. */
static void write_folder(json_t *packing, const char *changes)
{
    struct hf_file out = { 0 };
    static const float embedding[4 * 256];
    json_t *config = json_loads(MODEL, 0, NULL), *more = json_loads(changes, 0, NULL);
    json_object_update(config, more);
    json_object_set(config, "quantization_config", packing);
    char *dump = json_dumps(config, 0);
    hf_add(&out, "model.embed_tokens.weight", embedding, (uint64_t[]){ 256, 4 }, 2, false);
    for (int i = 0; i < n_part; i++) {
        uint64_t dim[3] = { 0 };
        for (int k = 0; k < part[i].n_dim; k++)
            dim[k] = part[i].dim[part[i].n_dim - 1 - k];
        hf_add_raw(&out, part[i].name, part[i].dtype, part[i].data, part[i].bytes, dim, part[i].n_dim);
    }
    hf_save(folder, "config.json", dump, strlen(dump));
    hf_save(folder, "tokenizer.json", TOKENIZER, strlen(TOKENIZER));
    hf_close(&out, folder, "model.safetensors");
    free(dump);
    json_decref(more);
    json_decref(config);
}

/* The values of a tensor times its scale, if another tensor has one. */
static float *values_of(const struct moe_file *f, const char *name, size_t *n)
{
    const struct moe_tensor *t = moe_file_find_tensor(f, name), *scale;
    enum kn_format format;
    char other[80];
    float factor = 1;
    assert_non_null(t);
    assert_int_equal(kn_format_from_gguf(t->gguf_type, &format), 0);
    uint8_t *raw = malloc(t->bytes), *again = malloc(t->bytes);
    assert_int_equal(moe_file_read(f, t, 0, raw, t->bytes), 0);
    size_t block = (size_t)kn_format_info(format)->block_bytes;
    for (uint64_t at = 0, k = 1; at < t->bytes; at += k, k = k < 3000 ? 2 * k + 1 : 1) { /* blocks of any number */
        k = block * k < t->bytes - at ? block * k : t->bytes - at;
        assert_int_equal(moe_file_read(f, t, at, again + at, k), 0);
        k /= block;
        at += (block - 1) * k;
    }
    assert_memory_equal(raw, again, t->bytes);
    *n = t->dim[0] * t->dim[1] * t->dim[2];
    float *x = malloc(*n * sizeof *x);
    kn_row_decode(format, raw, (int)*n, x);
    snprintf(other, sizeof other, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    if ((scale = moe_file_find_tensor(f, other)))
        assert_int_equal(moe_file_read(f, scale, 0, &factor, sizeof factor), 0);
    for (size_t i = 0; i < *n; i++)
        x[i] = x[i] * factor + 0.0f; /* -0 becomes +0 */
    free(raw);
    free(again);
    return x;
}

static void compare(const char *name, const char *line, bool exact)
{
    struct moe_file *f;
    char tensor[64];
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    int at = 0;
    size_t n, bytes;
    assert_int_equal(sscanf(line, "%63s %n", tensor, &at), 1);
    if (moe_file_open(&f, folder))
        fail_msg("%s: not opened", name);
    float *x = values_of(f, tensor, &n);
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) { /* all others were recognised, too */
        struct moe_string s = moe_file_tensor(f, i)->name;
        if (memcmp(s.data, "blk.", 4) && !moe_string_is(s, "token_embd.weight") && !moe_string_is(s, "output.weight"))
            fail_msg("%s: %.*s is unknown", name, (int)s.n, s.data);
    }
    uint8_t *want = exact ? NULL : unhex(line + at, &bytes);
    for (size_t i = 0; i < n && exact; i++) {
        uint8_t b[4];
        memcpy(b, &x[i], 4);
        for (int k = 0; k < 4; k++)
            hash = (hash ^ b[k]) * UINT64_C(0x100000001B3);
    }
    if (exact && hash != strtoull(line + at, NULL, 16))
        fail_msg("%s: the values of %s have another hash", name, tensor);
    for (size_t i = 0; i < n && !exact; i++) {
        float y;
        memcpy(&y, want + 4 * i, 4);
        if (!(fabsf(x[i] - y) <= 0x1p-22f * fabsf(y)))
            fail_msg("%s: value %zu of %s is %a, not %a", name, i, tensor, (double)x[i], (double)y);
    }
    free(want);
    free(x);
    moe_file_close(f);
}

static bool begins(const char **line, const char *with)
{
    size_t n = strlen(with);
    bool is = !strncmp(*line, with, n);
    *line += is ? n : 0;
    return is;
}

static void values_are_those_of_elsewhere(void **state)
{
    (void)state;
    char name[80] = "", model[512] = "{}";
    json_t *packing = NULL;
    int n_case = 0, n_compared = 0;
    bool written = false;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        const char *at = line;
        if (begins(&at, "case ")) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "\n"), at);
            free_parts();
            written = false;
            n_case++;
        } else if (begins(&at, "config ")) {
            json_decref(packing);
            packing = json_loadb(at, strcspn(at, "\n"), 0, NULL);
        } else if (begins(&at, "model ")) {
            snprintf(model, sizeof model, "%.*s", (int)strcspn(at, "\n"), at);
        } else if (begins(&at, "tensor ")) {
            read_part(at);
        } else {
            bool exact = begins(&at, "hash ");
            assert_true(exact || begins(&at, "values "));
            if (!written)
                write_folder(packing, model);
            written = true;
            compare(name, at, exact);
            n_compared++;
        }
    }
    free_parts();
    json_decref(packing);
    assert_int_equal(n_case, 23);
    assert_int_equal(n_compared, 26);
}

/* ---- refusals ------------------------------------------------------------------------------------ */

static char said[1024];
static void keep_message(enum kn_level level, const char *s)
{
    if (level == KN_LOG_ERROR)
        snprintf(said, sizeof said, "%s", s);
}

/* Sets part[] and *packing to those of a case of the file. */
static void read_case(const char *name, json_t **packing, char model[512])
{
    const char *line = strstr(text, name);
    assert_non_null(line);
    free_parts();
    for (line += strcspn(line, "\n") + 1; strncmp(line, "case ", 5) && *line; line += strcspn(line, "\n") + 1) {
        const char *at = line;
        if (begins(&at, "config "))
            *packing = json_loadb(at, strcspn(at, "\n"), 0, NULL);
        else if (begins(&at, "model "))
            snprintf(model, 512, "%.*s", (int)strcspn(at, "\n"), at);
        else if (begins(&at, "tensor "))
            read_part(at);
    }
}

/* Of the case's tensors, the one with this end gets another type or shape, or is absent (no type). */
static const struct {
    const char *of, *end, *dtype;
    uint64_t dim[2];
    int n_dim;
    const char *key, *value, *says;
} bad[] = {
    { "NVFP4 of modelopt\n", "weight_scale", "U8", { 7, 12 }, 2, NULL, NULL, "is no NVFP4 matrix" },
    { "NVFP4 of modelopt\n", "weight_scale", "F8_E4M3", { 12, 7 }, 2, NULL, NULL, "is no NVFP4 matrix" },
    { "NVFP4 of modelopt\n", "weight_scale_2", NULL, { 0 }, 0, NULL, NULL, "is no NVFP4 matrix" },
    { "NVFP4 of modelopt\n", "weight", "U8", { 96, 7 }, 2, NULL, NULL, "is no NVFP4 matrix" },
    { "NVFP4 of modelopt\n", NULL, NULL, { 0 }, 0, "quant_algo", "\"W4A8_AWQ\"", "quant_algo W4A8_AWQ" },
    { "NVFP4 of modelopt\n", NULL, NULL, { 0 }, 0, "quant_algo", "null", "quant_algo not stated" },
    { "NVFP4 of modelopt\n", NULL, NULL, { 0 }, 0, "quant_method", "\"fbgemm_fp8\"", "config.json does not say how" },
    { "FP8, one scale\n", "weight_scale", "F16", { 1 }, 1, NULL, NULL, "is no FP8 matrix" },
    { "FP8, a scale for each row\n", "weight_scale", "F32", { 1, 8 }, 2, NULL, NULL, "is no FP8 matrix" },
    { "FP8, a scale for each row\n", "weight_scale", "F32", { 4, 2 }, 2, NULL, NULL, "is no FP8 matrix" },
    { "FP8, a scale for each row\n", "weight", "F8_E4M3", { 16, 128 }, 2, NULL, NULL, "is no FP8 matrix" },
    { "FP8 of modelopt\n", NULL, NULL, { 0 }, 0, "quant_method", "\"awq\"", "awq of other than 4 bits" },
    { "FP8, a scale for each 8 rows, permuted\n",
      NULL,
      NULL,
      { 0 },
      0,
      "weight_block_size",
      "[32,128]",
      "is no FP8 matrix" },
    { "FP8 stacks, a scale for each 16 rows\n", "_scale_inv", "F32", { 4, 2 }, 2, NULL, NULL, "is no FP8 matrix" },
    { "GPTQ with zero points\n", "qzeros", "I32", { 2, 6 }, 2, NULL, NULL, "qzeros that match" },
    { "GPTQ with zero points\n", "scales", "BF16", { 4, 24 }, 2, NULL, NULL, "F16 scales" },
    { "GPTQ with zero points\n", "g_idx", "I32", { 64 }, 1, NULL, NULL, "is no 4-bit matrix" },
    { "GPTQ with zero points\n", NULL, NULL, { 0 }, 0, "sym", "true", "zero points other than 8" },
    { "GPTQ with act-order\n", "g_idx", "I32", { 576 }, 1, NULL, NULL, "a group beyond the last" },
    { "AWQ\n", NULL, NULL, { 0 }, 0, "version", "\"gemv\"", "awq that is not version gemm" },
    { "AWQ\n", NULL, NULL, { 0 }, 0, "zero_point", "false", "awq that is not version gemm" },
    { "AWQ\n", NULL, NULL, { 0 }, 0, "group_size", "48", "no multiple of 32" },
    { "AWQ\n", NULL, NULL, { 0 }, 0, "group_size", "32", "is no 4-bit matrix" },
    { "AWQ\n", NULL, NULL, { 0 }, 0, "bits", "3", "awq of other than 4 bits" },
    { "AWQ\n", "qzeros", NULL, { 0 }, 0, NULL, NULL, "is no 4-bit matrix" },
};

static bool has_end(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcmp(name + n - m, end) && (name[n - m - 1] == '.' || *end == '_');
}

static void similar_tensors_are_refused(void **state)
{
    (void)state;
    kn_log_set(keep_message, KN_LOG_ERROR);
    for (int i = 0; i < LEN(bad); i++) {
        struct moe_file *f = NULL;
        json_t *packing = NULL;
        char model[512];
        read_case(bad[i].of, &packing, model);
        if (bad[i].key)
            json_object_set_new(packing, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
        for (int k = 0; k < n_part && bad[i].end; k++) {
            struct stored *t = &part[k];
            if (!has_end(t->name, bad[i].end))
                continue;
            if (!bad[i].dtype) {
                free(t->data);
                *t = part[--n_part];
                break;
            }
            uint64_t n = 1;
            snprintf(t->dtype, sizeof t->dtype, "%s", bad[i].dtype);
            t->n_dim = bad[i].n_dim;
            for (int d = 0; d < t->n_dim; d++)
                n *= t->dim[d] = bad[i].dim[d];
            n *= !strcmp(t->dtype, "I32") || !strcmp(t->dtype, "F32") ? 4 : strstr(t->dtype, "16") ? 2 : 1;
            t->data = realloc(t->data, n);
            memset(t->data, 1, n);
            t->bytes = n;
        }
        write_folder(packing, model);
        json_decref(packing);
        *said = 0;
        if (!moe_file_open(&f, folder))
            fail_msg("%d: %s is opened", i, bad[i].of);
        if (!strstr(said, bad[i].says))
            fail_msg("%d: %s: the message is %s", i, bad[i].of, said);
    }
    free_parts();
    kn_log_set(NULL, KN_LOG_INFO);
}

/* GPTQ with act-order is refused by a model, and written by quantize with the same values. */
static void listed_inputs_are_written_by_quantize(void **state)
{
    (void)state;
    static const char name[] = "blk.0.ffn_down.weight";
    struct moe_quantize_options opt = { .ops = kn_ops(KN_ISA_SCALAR) };
    struct moe_model *m;
    struct moe_file *f, *g;
    json_t *packing = NULL;
    char changes[512], out[128];
    size_t n, n_written;
    read_case("GPTQ with act-order\n", &packing, changes);
    write_folder(packing, changes);
    json_decref(packing);
    assert_int_equal(moe_file_open(&f, folder), 0);
    kn_log_set(keep_message, KN_LOG_ERROR);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ 0 }), KN_EUNSUPPORTED);
    kn_log_set(NULL, KN_LOG_INFO);
    assert_non_null(strstr(said, "blk.0.ffn_down.weight' is GPTQ with reordered inputs"));
    assert_non_null(strstr(said, "spillway quantize FOLDER"));
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = KN_F32;
    snprintf(out, sizeof out, "%s/written.gguf", folder);
    assert_int_equal(kn_team_open(&opt.team, 2), 0);
    struct moe_quantized *done = calloc(moe_file_tensor_count(f), sizeof *done);
    assert_int_equal(moe_quantize(out, f, &opt, done), 0);
    assert_int_equal(moe_file_open(&g, out), 0);
    float *x = values_of(f, name, &n), *y = values_of(g, name, &n_written);
    assert_int_equal(n, n_written);
    assert_memory_equal(x, y, n * sizeof *x);
    free(x);
    free(y);
    free(done);
    kn_team_close(opt.team);
    moe_file_close(g);
    moe_file_close(f);
    remove(out);
    free_parts();
}

/* The inputs of one expert in order, those of the other not: both are read as with an order of inputs. */
static void experts_with_and_without_an_order(void **state)
{
    (void)state;
    static const char mixtral[] = "{\"model_type\":\"mixtral\",\"num_local_experts\":2,\"num_experts_per_tok\":1}";
    json_t *packing = NULL;
    struct moe_file *f;
    char changes[512], end[16];
    float *x[2], *both; /* of a matrix with an order of inputs, and without */
    size_t n, n_both;
    read_case("GPTQ with act-order\n", &packing, changes);
    for (int plain = 0; plain < 2; plain++) {
        for (uint32_t i = 0; plain && i < part[3].dim[0]; i++)
            memcpy(part[3].data + 4 * i, &(uint32_t){ i / 32 }, 4);
        write_folder(packing, changes);
        assert_int_equal(moe_file_open(&f, folder), 0);
        x[plain] = values_of(f, "blk.0.ffn_down.weight", &n);
        moe_file_close(f);
    }
    for (int first = 0; first < 2; first++) { /* the expert in order */
        json_decref(packing);
        read_case("GPTQ with act-order\n", &packing, changes);
        for (int i = 0; i < 4; i++) {
            sscanf(strrchr(part[i].name, '.') + 1, "%15s", end);
            for (int e = 0; e < 2; e++) {
                struct stored *t = &part[4 * e + i];
                *t = part[i];
                snprintf(t->name, sizeof t->name, "model.layers.0.block_sparse_moe.experts.%d.w2.%s", e, end);
                t->data = e ? memcpy(malloc(t->bytes), part[i].data, t->bytes) : t->data;
            }
        }
        n_part = 8;
        for (uint32_t i = 0; i < part[3].dim[0]; i++)
            memcpy(part[4 * first + 3].data + 4 * i, &(uint32_t){ i / 32 }, 4);
        write_folder(packing, mixtral);
        assert_int_equal(moe_file_open(&f, folder), 0);
        both = values_of(f, "blk.0.ffn_down_exps.weight", &n_both);
        assert_int_equal(n_both, 2 * n);
        assert_memory_equal(both + (first ? n : 0), x[1], n * sizeof *both);
        assert_memory_equal(both + (first ? 0 : n), x[0], n * sizeof *both);
        free(both);
        moe_file_close(f);
    }
    free(x[0]);
    free(x[1]);
    json_decref(packing);
    free_parts();
}

/* modelopt's settings in a file of their own. */
static void settings_in_their_own_file(void **state)
{
    (void)state;
    static const char own[] = "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"NVFP4\","
                              "\"kv_cache_quant_algo\":\"FP8\",\"group_size\":16}}";
    json_t *packing = NULL;
    char model[512], gone[128];
    read_case("NVFP4 of modelopt\n", &packing, model);
    json_decref(packing);
    packing = json_null();
    write_folder(packing, model);
    hf_save(folder, "hf_quant_config.json", own, strlen(own));
    const char *line = strstr(text, "case NVFP4 of modelopt\n");
    line = strstr(line, "\nhash ");
    compare("hf_quant_config.json", line + 6, true);
    snprintf(gone, sizeof gone, "%s/hf_quant_config.json", folder);
    remove(gone);
    free_parts();
}

/* ---- permuted rows are loaded as they are read --------------------------------------------------- */

#define N_VOCAB 300
#define LLAMA                                                                                                          \
    "{\"model_type\":\"llama\",\"hidden_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                 \
    "\"num_key_value_heads\":2,\"head_dim\":32,\"intermediate_size\":128,\"rms_norm_eps\":1e-5,"                       \
    "\"max_position_embeddings\":512,\"rope_theta\":1e4,\"vocab_size\":300,\"quantization_config\":%s}"

enum how { FP8_ROWS, FP8_BLOCKS, NVFP4, GPTQ, GPTQ_EIGHT, GPTQ_ZEROS, AWQ, N_HOW };
static const char *const packings[N_HOW] = {
    "{\"quant_method\":\"fbgemm_fp8\"}",
    "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}",
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"sym\":true,\"desc_act\":false}",
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"sym\":false,\"desc_act\":false}",
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"sym\":false,\"desc_act\":false}",
    "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemm\",\"zero_point\":true}",
};

static uint64_t number; /* of the next random byte */
static uint8_t any_byte(void) { return (uint8_t)(kn_mix(number++) >> 40); }
static float any_float(void) { return (float)(int8_t)any_byte() / 128; }

static void put_part(struct hf_file *out, const char *name, const char *end, const char *dtype, const void *data,
                     uint64_t dim0, uint64_t dim1)
{
    char full[128];
    uint64_t bytes = dim0 * dim1 * (strchr(dtype, '8') ? 1 : strstr(dtype, "16") ? 2 : 4);
    snprintf(full, sizeof full, "%s.%s", name, end);
    hf_add_raw(out, full, dtype, data, bytes, (uint64_t[2]){ dim0, dim1 }, 2);
}

/* Codes of four bits, stored by input: AWQ's are GPTQ's of the same numbers in another order. */
static void put_by_input(struct hf_file *out, enum how how, const char *name, uint64_t n_out, uint64_t n_in)
{
    static const int awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 }; /* nibble of output i */
    uint64_t n_group = n_in / 64;
    uint32_t *codes = calloc(n_in * n_out / 8, 4), *zeros = calloc(n_group * n_out / 8, 4);
    uint16_t *scales = malloc(n_group * n_out * 2);
    for (uint64_t k = 0; k < n_in; k++)
        for (uint64_t o = 0; o < n_out; o++) {
            uint32_t q = any_byte() & 15;
            if (how == AWQ)
                codes[(k * n_out + o) / 8] |= q << 4 * awq[o % 8];
            else
                codes[k / 8 * n_out + o] |= q << 4 * (k % 8);
        }
    for (uint64_t i = 0; i < n_group * n_out; i++) {
        uint32_t zero = how == GPTQ || how == GPTQ_EIGHT ? 8 : 4 + (uint32_t)(i * 7 / 3 % 9);
        scales[i] = kn_f32_to_f16(0.01f + 0.01f * any_float());
        zeros[i / 8] |= (how == AWQ ? zero : zero - 1) << 4 * (how == AWQ ? awq[i % 8] : (int)(i % 8));
    }
    put_part(out, name, "qweight", "I32", codes, how == AWQ ? n_out / 8 : n_out, how == AWQ ? n_in : n_in / 8);
    put_part(out, name, "qzeros", "I32", zeros, n_out / 8, n_group);
    put_part(out, name, "scales", "F16", scales, n_out, n_group);
    free(codes);
    free(zeros);
    free(scales);
}

static void put_linear(struct hf_file *out, enum how how, const char *name, uint64_t n_out, uint64_t n_in)
{
    if (how >= GPTQ) {
        put_by_input(out, how, name, n_out, n_in);
        return;
    }
    uint64_t n = n_out * n_in, n_code = how == NVFP4 ? n / 2 : n, n_scale = how == NVFP4 ? n / 16 : n_out;
    uint8_t *codes = malloc(n_code), *small = malloc(n_scale);
    float *scales = malloc(n_scale * sizeof *scales), factor = 0x1.8p-8f;
    for (uint64_t i = 0; i < n_code; i++) {
        codes[i] = any_byte();
        codes[i] = how != NVFP4 && codes[i] % 128 > 100 ? 0x31 : codes[i]; /* no large numbers */
    }
    for (uint64_t i = 0; i < n_scale; i++) {
        small[i] = (uint8_t)(48 + any_byte() % 16);
        scales[i] = 0.02f + 0.01f * any_float();
    }
    put_part(out, name, "weight", how == NVFP4 ? "U8" : "F8_E4M3", codes, n_code / n_out, n_out);
    if (how == NVFP4)
        put_part(out, name, "weight_scale", "F8_E4M3", small, n_in / 16, n_out);
    if (how == NVFP4)
        put_part(out, name, "weight_scale_2", "F32", &factor, 1, 1);
    else if (how == FP8_ROWS)
        put_part(out, name, "weight_scale", "F32", scales, 1, n_out);
    else
        put_part(out, name, "weight_scale_inv", "F32", scales, n_in / 128, (n_out + 63) / 64);
    free(codes);
    free(small);
    free(scales);
}

static void write_llama(enum how how)
{
    static const struct {
        const char *name;
        uint64_t n_out;
    } linear[] = { { "self_attn.q_proj", 128 }, { "self_attn.k_proj", 64 }, { "self_attn.v_proj", 64 },
                   { "self_attn.o_proj", 128 }, { "mlp.gate_proj", 128 },   { "mlp.up_proj", 128 },
                   { "mlp.down_proj", 128 } };
    struct hf_file out = { 0 };
    char config[1024], name[96];
    float *x = malloc(N_VOCAB * 128 * sizeof *x), one[128];
    number = 1;
    for (int i = 0; i < N_VOCAB * 128; i++)
        x[i] = any_float();
    for (int i = 0; i < 128; i++)
        one[i] = 1 + any_float() / 4;
    hf_add(&out, "model.embed_tokens.weight", x, (uint64_t[]){ 128, N_VOCAB }, 2, false);
    hf_add(&out, "lm_head.weight", x, (uint64_t[]){ 128, N_VOCAB }, 2, false);
    hf_add(&out, "model.norm.weight", one, (uint64_t[]){ 128 }, 1, false);
    for (int layer = 0; layer < 2; layer++) {
        for (int i = 0; i < LEN(linear); i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, linear[i].name);
            put_linear(&out, how, name, linear[i].n_out, 128);
        }
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s_layernorm.weight", layer, i ? "input" : "post_attention");
            hf_add(&out, name, one, (uint64_t[]){ 128 }, 1, false);
        }
    }
    snprintf(config, sizeof config, LLAMA, packings[how]);
    hf_save(folder, "config.json", config, strlen(config));
    hf_save(folder, "tokenizer.json", TOKENIZER, strlen(TOKENIZER));
    hf_close(&out, folder, "model.safetensors");
    free(x);
}

static void write_gguf(enum kn_format format, struct kn_team *team)
{
    struct moe_quantize_options opt = { .requantize = true, .ops = kn_ops(KN_ISA_COUNT - 1), .team = team };
    struct moe_file *f;
    for (int i = 0; i < MOE_PART_COUNT; i++)
        opt.format[i] = i == MOE_EMBEDDING || i == MOE_HEAD ? KN_F32 : format;
    assert_int_equal(moe_file_open(&f, folder), 0);
    struct moe_quantized *done = calloc(moe_file_tensor_count(f), sizeof *done);
    assert_int_equal(moe_quantize(path, f, &opt, done), 0);
    free(done);
    moe_file_close(f);
}

static const struct golden tokens = { .n_vocab = N_VOCAB, .token = (int32_t[N_TOK]){ 5, 9, 33, 120 } };

/* A folder of a family with permuted rows gives the bits of the GGUF file of it; zero points of 8 give the bits of none;
 * AWQ gives those of GPTQ. */
static void permuted_rows_are_loaded(void **state)
{
    (void)state;
    static const enum kn_format format[] = { KN_F32, KN_F32, KN_NVFP4, KN_Q4_0 };
    struct kn_team *team;
    float *got[N_HOW] = { 0 };
    size_t bytes = 4 * N_VOCAB * sizeof(float);
    assert_int_equal(kn_team_open(&team, 2), 0);
    for (int how = 0; how < N_HOW; how++) {
        write_llama((enum how)how);
        got[how] = logits_of(&tokens, folder);
        for (int i = 0; i < 4 * N_VOCAB; i++)
            assert_true(isfinite(got[how][i]));
        if (how >= LEN(format))
            continue;
        write_gguf(format[how], team);
        float *want = logits_of(&tokens, path);
        assert_memory_equal(got[how], want, bytes);
        free(want);
    }
    assert_memory_equal(got[GPTQ_EIGHT], got[GPTQ], bytes);
    assert_memory_equal(got[AWQ], got[GPTQ_ZEROS], bytes);
    assert_true(memcmp(got[AWQ], got[GPTQ], bytes));
    for (int how = 0; how < N_HOW; how++)
        free(got[how]);
    kn_team_close(team);
}

static int setup(void **state)
{
    text = hf_slurp("tests/fixtures/quantised/packed.txt");
    return text ? folder_make(state) : -1;
}

static int teardown(void **state)
{
    free(text);
    return folder_remove(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_elsewhere),     cmocka_unit_test(settings_in_their_own_file),
        cmocka_unit_test(similar_tensors_are_refused),       cmocka_unit_test(listed_inputs_are_written_by_quantize),
        cmocka_unit_test(experts_with_and_without_an_order), cmocka_unit_test(permuted_rows_are_loaded),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
