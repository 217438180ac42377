/* Quantised tensors as quantisers publish them in folders, against the values that other code gives them
 * (tests/fixtures/quantised/packed.txt): FP8 with any scales, also in stacks of experts; NVFP4; GPTQ and AWQ with zero
 * points; all of these with the rows of heads permuted.  Similar tensors that are not supported are refused.
 *
 * One thread: not under MODE=tsan. */
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
    assert_int_equal(n_case, 19);
    assert_int_equal(n_compared, 22);
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
        cmocka_unit_test(values_are_those_of_elsewhere),
        cmocka_unit_test(settings_in_their_own_file),
        cmocka_unit_test(similar_tensors_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
