/* Invalid folders: .safetensors headers, indexes, configurations and vocabularies with one fault each
 * are refused in one line that names the file and the reason; a failing system call while a folder is
 * opened leaks nothing.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/moe/hf_folder.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

static char model[80];
static struct hf_folder source;

static int setup(void **state)
{
    int error = folder_make(state);
    snprintf(model, sizeof model, "%s/model", folder);
    return error ? error : hf_folder_read(&source, "qwen3moe_odd");
}

static int teardown(void **state)
{
    hf_folder_free(&source);
    return folder_remove(state);
}

static void assert_refused(const char *what, int code, const char *name, const char *says)
{
    struct moe_file *f = (void *)0x1;
    faults_reset();
    faults_own(); /* JSON */
    int got = moe_file_open(&f, model);
    if (got != code || faults.n_line != 1 || f != (void *)0x1)
        fail_msg("%s: got %d in %d lines (%s), want %d", what, got, faults.n_line, faults.line, code);
    if (!strstr(faults.line, model) || !strstr(faults.line, name) || !strstr(faults.line, says))
        fail_msg("%s: '%s' lacks '%s' or '%s'", what, faults.line, name, says);
    assert_true(faults_clean());
}

static void assert_fine(const char *what)
{
    struct moe_file *f = NULL;
    faults_reset();
    faults_own();
    if (moe_file_open(&f, model))
        fail_msg("%s: %s", what, faults.line);
    moe_file_close(f);
    assert_true(faults_clean());
}

#define GPTQ(bits, group, sym, format)                                                                                 \
    "{\"quant_method\":\"gptq\",\"bits\":" #bits ",\"group_size\":" #group ",\"sym\":" #sym                            \
    ",\"checkpoint_format\":\"" format "\"}"

/* ---- headers ----------------------------------------------------------------------------------- */

/* Writes a header length, the header's text, and n_data bytes of data. */
static void save_header(uint64_t n, const char *text, size_t n_data)
{
    static uint8_t file[4096];
    size_t len = strlen(text);
    memcpy(file, &n, sizeof n);
    memcpy(file + sizeof n, text, len);
    memset(file + sizeof n + len, 1, n_data);
    hf_save(model, "model.safetensors", file, sizeof n + len + n_data);
}

#define GOOD "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"
#define ENTRY(type, shape, offsets)                                                                                    \
    "{" GOOD ",\"b\":{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void headers_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *what, *text;
        int code;
        const char *says;
    } kind[] = {
        { "no JSON", "{\"a\":", KN_ECORRUPT, "header" },
        { "a list", "[]", KN_ECORRUPT, "no JSON object" },
        { "twice", "{" GOOD "," GOOD "}", KN_ECORRUPT, "duplicate" },
        { "a number", "{" GOOD ",\"b\":1}", KN_ECORRUPT, "'b': is no object" },
        { "no name", "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", KN_ECORRUPT, "a name of 0" },
        { "escapes", "{\"\\u001b[2J\":1}", KN_ECORRUPT, "'\\x1b[2J'" },
        { "no type", ENTRY("1", "[2]", "[16,24]"), KN_ECORRUPT, "'b': dtype" },
        { "another type", ENTRY("\"F6\"", "[2]", "[16,24]"), KN_EUNSUPPORTED, "dtype F6" },
        { "no shape", ENTRY("\"F32\"", "2", "[16,24]"), KN_ECORRUPT, "its shape" },
        { "5 dimensions", ENTRY("\"F32\"", "[1,1,1,1,2]", "[16,24]"), KN_ECORRUPT, "its shape" },
        { "bytes for nothing", ENTRY("\"F32\"", "[0]", "[16,20]"), KN_ECORRUPT, "4 bytes" },
        { "less than nothing", ENTRY("\"F32\"", "[-2]", "[16,24]"), KN_ECORRUPT, "dimension 0" },
        { "a half", ENTRY("\"F32\"", "[2.5]", "[16,24]"), KN_ECORRUPT, "dimension 0" },
        { "2^63 values", ENTRY("\"U8\"", "[4294967296,2147483648]", "[16,24]"), KN_ECORRUPT, "overflows" },
        { "2^66 values", ENTRY("\"F32\"", "[4294967296,4294967296,4]", "[16,24]"), KN_ECORRUPT, "overflows" },
        { "no place", ENTRY("\"F32\"", "[2]", "[16]"), KN_ECORRUPT, "data_offsets" },
        { "backwards", ENTRY("\"F32\"", "[2]", "[24,16]"), KN_ECORRUPT, "data_offsets" },
        { "before it", ENTRY("\"F32\"", "[2]", "[-8,0]"), KN_ECORRUPT, "data_offsets" },
        { "beyond it", ENTRY("\"F32\"", "[2]", "[28,36]"), KN_ESHORT, "'b': ends at byte" },
        { "far beyond it", ENTRY("\"F32\"", "[2]", "[9223372036854775800,9223372036854775807]"), KN_ESHORT, "'b'" },
        { "another size", ENTRY("\"F32\"", "[2]", "[16,28]"), KN_ECORRUPT, "12 bytes" },
        { "overlap", ENTRY("\"F32\"", "[2]", "[12,20]"), KN_ECORRUPT, "'b': overlaps tensor 'a'" },
        { "the same place", ENTRY("\"F32\"", "[4]", "[0,16]"), KN_ECORRUPT, "overlaps" },
    };
    hf_folder_write(&source, model, false, 1);
    for (int i = 0; i < LEN(kind); i++) {
        save_header(strlen(kind[i].text), kind[i].text, 32);
        assert_refused(kind[i].what, kind[i].code, "model.safetensors", kind[i].says);
    }
    save_header(UINT64_C(1) << 40, "{}", 32);
    assert_refused("a header of 2^40", KN_ECORRUPT, "model.safetensors", "invalid length");
    save_header(UINT64_MAX, "{}", 32);
    assert_refused("a header of 2^64 - 1", KN_ECORRUPT, "model.safetensors", "invalid length");
    uint64_t note;
    memcpy(&note, "version ", 8);
    save_header(note, "https://git-lfs.github.com/spec/v1\noid sha256:", 32);
    assert_refused("a git-lfs note", KN_EUNSUPPORTED, "model.safetensors", "git lfs pull fetches it");
    save_header(35, "{}", 32);
    assert_refused("a longer header", KN_ESHORT, "model.safetensors", "34 left");
    hf_save(model, "model.safetensors", "1234567", 7);
    assert_refused("7 bytes", KN_ESHORT, "model.safetensors", "7 bytes");
    hf_save(model, "model.safetensors", "", 0);
    assert_refused("empty", KN_ESHORT, "model.safetensors", "0 bytes");
}

/* ---- index and files --------------------------------------------------------------------------- */

static void save_json(const char *name, json_t *root)
{
    char *text = json_dumps(root, JSON_ENCODE_ANY);
    hf_save(model, name, text, strlen(text));
    kn_heap_free(text);
}

static json_t *load_json(const char *name)
{
    char full[200];
    json_error_t e;
    snprintf(full, sizeof full, "%s/%s", model, name);
    json_t *root = json_load_file(full, 0, &e);
    assert_non_null(root);
    return root;
}

static void remove_file(const char *name)
{
    char full[200];
    snprintf(full, sizeof full, "%s/%s", model, name);
    assert_int_equal(remove(full), 0);
}

static void indexes_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *what, *tensor, *file;
        int code;
        const char *says;
    } kind[] = {
        { "elsewhere", "lm_head.weight", "model-00002-of-00002.safetensors", KN_ECORRUPT,
          "'lm_head.weight' is not in" },
        { "nowhere", "x", "model-00001-of-00002.safetensors", KN_ECORRUPT, "tensor 'x'" },
        { "no file", "x", "model-00003-of-00002.safetensors", KN_ENOENT, "model-00003" },
        { "above", "x", "../model.safetensors", KN_ECORRUPT, "invalid file name" },
        { "nameless", "x", "", KN_ECORRUPT, "invalid file name" },
        { "a number", "x", NULL, KN_ECORRUPT, "invalid file name" },
    };
    const char *name = "model.safetensors.index.json";
    for (int i = 0; i < LEN(kind); i++) {
        hf_folder_write(&source, model, false, 2);
        json_t *root = load_json(name), *map = json_object_get(root, "weight_map");
        assert_string_equal(json_string_value(json_object_get(map, "lm_head.weight")),
                            "model-00001-of-00002.safetensors");
        json_object_set_new(map, kind[i].tensor, kind[i].file ? json_string(kind[i].file) : json_integer(1));
        save_json(name, root);
        assert_refused(kind[i].what, kind[i].code, "", kind[i].says);
        json_decref(root);
    }
    hf_save(model, name, "{}", 2);
    assert_refused("empty", KN_ECORRUPT, name, "weight_map");
    hf_save(model, name, "[]", 2);
    assert_refused("a list", KN_ECORRUPT, name, "no JSON object");
    remove_file(name);
    assert_refused("neither", KN_ENOENT, "model.safetensors", "No such file");
}

/* One value of config.json is replaced or (NULL) removed. */
static void configurations_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        int code;
        const char *says;
    } kind[] = {
        { "model_type", "\"bert\"", KN_EUNSUPPORTED, "model_type \"bert\"" },
        { "model_type", NULL, KN_EUNSUPPORTED, "model_type \"\"" },
        { "model_type", "7", KN_ECORRUPT, "'model_type' is no string" },
        { "hidden_size", "\"72\"", KN_ECORRUPT, "'hidden_size'" },
        { "hidden_size", "-1", KN_ECORRUPT, "'hidden_size'" },
        { "hidden_size", "4294967296", KN_ECORRUPT, "'hidden_size'" },
        { "num_hidden_layers", "1.5", KN_ECORRUPT, "'num_hidden_layers'" },
        { "rms_norm_eps", "true", KN_ECORRUPT, "'rms_norm_eps'" },
        { "tie_word_embeddings", "0", KN_ECORRUPT, "'tie_word_embeddings'" },
        { "norm_topk_prob", "1", KN_ECORRUPT, "'norm_topk_prob'" },
        { "hidden_act", "\"gelu\"", KN_EUNSUPPORTED, "'hidden_act'" },
        { "decoder_sparse_step", "2", KN_EUNSUPPORTED, "'decoder_sparse_step'" },
        { "mlp_only_layers", "[0]", KN_EUNSUPPORTED, "'mlp_only_layers'" },
        { "scoring_func", "\"sigmoid\"", KN_EUNSUPPORTED, "'scoring_func'" },
        { "rope_parameters", "{\"rope_type\":\"longrope\",\"factor\":2}", KN_EUNSUPPORTED, "'rope_type'" },
        { "rope_parameters", "{\"rope_type\":\"yarn\"}", KN_ECORRUPT, "'factor'" },
        { "rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":false}", KN_EUNSUPPORTED,
          "'truncate'" },
        { "rope_parameters", "{\"rope_type\":\"llama3\",\"factor\":2}", KN_ECORRUPT, "llama3" },
        { "quantization_config", GPTQ(3, 128, true, "gptq"), KN_EUNSUPPORTED, "'gptq of other than 4 bits'" },
        { "quantization_config", GPTQ(8, 128, true, "gptq"), KN_EUNSUPPORTED, "'gptq of other than 4 bits'" },
        { "quantization_config", GPTQ(4, 48, true, "gptq"), KN_EUNSUPPORTED, "no multiple of 32" },
        { "quantization_config", GPTQ(4, -1, true, "gptq"), KN_EUNSUPPORTED, "no multiple of 32" },
        { "quantization_config", GPTQ(4, 128, true, "marlin"), KN_EUNSUPPORTED, "neither gptq nor gptq_v2" },
        { "quantization_config", "{\"quant_method\":\"auto-round\"}", KN_EUNSUPPORTED,
          "'auto-round', which is supported only" },
        { "quantization_config", "{\"quant_method\":\"awq\"}", KN_EUNSUPPORTED, "'awq of other than 4 bits'" },
        { "quantization_config", "{\"quant_method\":\"hqq\"}", KN_EUNSUPPORTED, "packed as 'hqq'; use F32" },
        { "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", KN_EUNSUPPORTED,
          "fp8 without a weight_block_size" },
        { "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,100]}", KN_EUNSUPPORTED,
          "128 values" },
        { "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", KN_EUNSUPPORTED,
          "128 values" },
        { "quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\",\"weight_block_size\":[128,128]}",
          KN_EUNSUPPORTED, "not e4m3" },
        { "quantization_config", "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"}",
          KN_EUNSUPPORTED, "compressed-tensors without config_groups" },
        { "quantization_config", "{\"quant_method\":\"mxfp4\"}", KN_EUNSUPPORTED, "packed as 'mxfp4'" },
        { "num_experts", "6", KN_ECORRUPT, "number is too large" },
        { "num_experts", "8", KN_ECORRUPT, "lacks 1 of 8 experts" },
        { "num_experts", "60000", KN_ECORRUPT, "too few tensors" },
        { "num_experts", "70000", KN_ECORRUPT, "'num_experts'" },
    };
    hf_folder_write(&source, model, false, 1);
    json_t *root = load_json("config.json");
    for (int i = 0; i < LEN(kind); i++) {
        json_t *copy = json_deep_copy(root);
        if (kind[i].value)
            json_object_set_new(copy, kind[i].key, json_loads(kind[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(copy, kind[i].key);
        save_json("config.json", copy);
        assert_refused(kind[i].key, kind[i].code, "", kind[i].says);
        json_decref(copy);
    }
    save_json("config.json", root);
    assert_fine("as it was");
    json_decref(root);
    hf_save(model, "config.json", "{\"a\":}", 6);
    assert_refused("no JSON", KN_ECORRUPT, "config.json", "line 1");
}

/* A window is a key and no limit of the context.  A tied embedding is the output matrix only if lm_head.weight has the
 * same values. */
static void configurations_that_say_more(void **state)
{
    (void)state;
    struct moe_file *f;
    int64_t n = 0;
    hf_folder_write(&source, model, false, 1);
    json_t *root = load_json("config.json");
    json_object_set_new(root, "tie_word_embeddings", json_true());
    json_object_set_new(root, "use_sliding_window", json_true());
    json_object_set_new(root, "sliding_window", json_integer(100));
    save_json("config.json", root);
    faults_reset();
    assert_int_equal(moe_file_open(&f, model), 0);
    assert_non_null(moe_file_find_tensor(f, "output.weight"));
    assert_int_equal(moe_file_int(f, "qwen3moe.context_length", 0, 5000, &n), 1);
    assert_int_equal(n, 1024);
    assert_int_equal(moe_file_int(f, "qwen3moe.attention.sliding_window", 0, 5000, &n), 1);
    assert_int_equal(n, 100);
    assert_null(moe_file_find(f, "qwen3moe.attention.sliding_window_pattern"));
    moe_file_close(f);
    json_object_set_new(root, "use_sliding_window", json_false());
    json_object_set_new(root, "tie_word_embeddings", json_false());
    save_json("config.json", root);
    assert_int_equal(moe_file_open(&f, model), 0);
    assert_non_null(moe_file_find_tensor(f, "output.weight"));
    assert_null(moe_file_find(f, "qwen3moe.attention.sliding_window"));
    moe_file_close(f);
    json_decref(root);
    save_header(strlen("{" GOOD "}"), "{" GOOD "}", 16);
    assert_refused("no head", KN_ECORRUPT, "", "lm_head.weight is missing");
}

/* ---- gptq -------------------------------------------------------------------------------------- */

enum { Q_IN = 64, Q_OUT = 8, Q_GROUP = 32, Q_EXPERTS = 7 };

/* One fault of a GPTQ matrix: the tensor `of` ("qweight" or a companion) gets this dtype and shape where set, is left
 * out for dtype "", and has `more` added to its word number `at`. */
struct gptq_fault {
    const char *of, *dtype;
    uint64_t dim[2];
    int at;
    uint32_t more;
};

static void put_gptq(struct hf_file *out, const char *name, uint32_t zeros, const struct gptq_fault *fault)
{
    static const struct {
        const char *end, *dtype;
        uint64_t dim[2];
        int n_dim;
    } parts[] = {
        { "qweight", "I32", { Q_OUT, Q_IN / 8 }, 2 },
        { "qzeros", "I32", { Q_OUT / 8, Q_IN / Q_GROUP }, 2 },
        { "scales", "F16", { Q_OUT, Q_IN / Q_GROUP }, 2 },
        { "g_idx", "I32", { Q_IN, 1 }, 1 },
        { "bias", "F16", { Q_OUT, 1 }, 1 },
    };
    for (int i = 0; i < LEN(parts); i++) {
        const struct gptq_fault *f = fault && !strcmp(fault->of, parts[i].end) ? fault : &(struct gptq_fault){ 0 };
        const char *dtype = f->dtype ? f->dtype : parts[i].dtype;
        const uint64_t *dim = f->dim[0] ? f->dim : parts[i].dim;
        uint32_t word[2 * Q_IN * Q_OUT] = { 0 };
        char full[128];
        for (int w = 0; w < LEN(word) && strcmp(parts[i].end, "bias"); w++)
            word[w] = i == 1 ? zeros : i == 3 ? (uint32_t)w / Q_GROUP : 0x3c003c00;
        word[f->at] += f->more;
        snprintf(full, sizeof full, "%s.%s", name, parts[i].end);
        if (*dtype)
            hf_add_raw(out, full, dtype, word, dim[0] * dim[1] * (strchr(dtype, '6') ? 2 : 4), dim, parts[i].n_dim);
    }
}

/* Saves one matrix outside the experts and one of each expert; the `nth` of all these has the fault. */
static void save_gptq(const char *format, const char *order, uint32_t zeros, int nth, const struct gptq_fault *fault)
{
    struct hf_file out = { 0 };
    json_t *root = load_json("config.json");
    char name[96];
    json_t *q = json_pack("{s:s,s:i,s:i,s:b,s:s}", "quant_method", "gptq", "bits", 4, "group_size", Q_GROUP, "sym", 1,
                          "checkpoint_format", format);
    if (*order)
        json_object_set_new(q, "desc_act", json_boolean(*order == 't'));
    json_object_set_new(root, "quantization_config", q);
    save_json("config.json", root);
    json_decref(root);
    put_gptq(&out, "model.layers.0.self_attn.o_proj", zeros, nth == 0 ? fault : NULL);
    for (int e = 0; e < Q_EXPERTS; e++) {
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.up_proj", e);
        put_gptq(&out, name, zeros, nth == 1 + e ? fault : NULL);
    }
    hf_add(&out, "lm_head.weight", (float[4]){ 0 }, (uint64_t[2]){ 2, 2 }, 2, false);
    hf_close(&out, model, "model.safetensors");
}

static void gptq_that_is_wrong(void **state)
{
    (void)state;
    static const char shape[] = "is no 4-bit matrix of whole groups";
    static const struct {
        const char *what;
        struct gptq_fault fault;
        const char *says;
    } kind[] = {
        { "another zero point", { .of = "qzeros", .at = 1, .more = 0x00100000 }, "has zero points other than 8" },
        { "a bias", { .of = "bias", .at = 3, .more = 0x3c000000 }, "is a bias other than zero" },
        { "8 bits", { .of = "qweight", .dim = { Q_OUT, Q_IN / 4 } }, shape },
        { "floats", { .of = "qweight", .dtype = "F32" }, shape },
        { "no whole groups", { .of = "qweight", .dim = { Q_OUT, Q_IN / 8 - 2 } }, shape },
        { "wide scales", { .of = "scales", .dtype = "F32" }, shape },
        { "fewer scales", { .of = "scales", .dim = { Q_OUT, 1 } }, shape },
        { "no scales", { .of = "scales", .dtype = "" }, shape },
        { "no zeros", { .of = "qzeros", .dtype = "" }, shape },
        { "fewer zeros", { .of = "qzeros", .dim = { 1, 1 } }, shape },
        { "a shorter order", { .of = "g_idx", .dim = { Q_IN / 2, 1 } }, shape },
        { "no order", { .of = "g_idx", .dtype = "" }, shape },
    };
    hf_folder_write(&source, model, false, 1);
    static const struct {
        const char *format, *order;
        uint32_t zeros;
    } fine[] = {
        { "gptq", "false", 0x77777777 },
        { "gptq", "true", 0x77777777 },
        { "gptq", "", 0x77777777 },
        { "gptq_v2", "false", 0x88888888 },
    };
    for (int i = 0; i < LEN(fine); i++) {
        save_gptq(fine[i].format, fine[i].order, fine[i].zeros, 0, NULL);
        assert_fine("gptq");
        save_gptq(fine[i].format, fine[i].order, ~fine[i].zeros, 0, NULL); /* the other GPTQ version */
        assert_refused("zeros of the other version", KN_EUNSUPPORTED, "qzeros", "has zero points other than 8");
    }
    for (int i = 0; i < LEN(kind); i++)
        for (int nth = 0; nth < 1 + Q_EXPERTS; nth += Q_EXPERTS) {
            save_gptq("gptq", "true", 0x77777777, nth, &kind[i].fault);
            assert_refused(kind[i].what, KN_EUNSUPPORTED, nth ? "experts.6.up_proj" : "o_proj", kind[i].says);
        }
    save_gptq("gptq", "true", 0x77777777, 0, &(struct gptq_fault){ .of = "g_idx", .at = Q_IN - 1, .more = 1 });
    assert_refused("a group beyond the last", KN_ECORRUPT, "o_proj", "names a group beyond the last one");
    save_gptq("gptq", "true", 0x77777777, 0, &(struct gptq_fault){ .of = "g_idx", .at = Q_IN - 1, .more = UINT32_MAX });
    assert_fine("inputs in another order");
    save_gptq("gptq", "false", 0x77777777, 0, &(struct gptq_fault){ .of = "g_idx", .dtype = "" });
    assert_fine("inputs in order, as config.json says");
    save_gptq("gptq", "true", 0x77777777, 0, NULL);
    char full[200];
    snprintf(full, sizeof full, "%s/model.safetensors", model);
    struct stat s;
    assert_int_equal(stat(full, &s), 0);
    assert_int_equal(truncate(full, s.st_size - 1), 0);
    assert_refused("a file cut short", KN_ESHORT, "model.safetensors", "an incomplete copy");
}

/* ---- failing system calls ---------------------------------------------------------------------- */

static void nothing_is_left(const struct hf_folder *h, int most)
{
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error, code;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM, KN_ENOMEM }, { FAULT_OPEN, FAULT_ERROR, EIO, KN_EIO },
        { FAULT_SIZE, FAULT_ERROR, EIO, KN_EIO },        { FAULT_READ, FAULT_ERROR, EIO, KN_EIO },
        { FAULT_READ, FAULT_EMPTY, 0, KN_ESHORT },
    };
    hf_folder_write(h, model, true, 2);
    for (int k = 0; k < LEN(ways); k++) {
        long n = 0;
        int err;
        do {
            struct moe_file *f = NULL;
            faults_at(ways[k].kind, ++n, ways[k].way, ways[k].error);
            faults_own();
            err = moe_file_open(&f, model);
            if (err) {
                assert_int_equal(err, ways[k].code);
                assert_int_equal(faults.n_line, 1);
                assert_null(f);
            }
            moe_file_close(f);
            assert_true(faults_clean());
        } while (err);
        assert_in_range(n, 6, most);
    }
}

/* The second model has vectors that are read at open. */
static void whatever_fails_nothing_is_left(void **state)
{
    (void)state;
    struct hf_folder h;
    nothing_is_left(&source, 20000);
    assert_int_equal(hf_folder_read(&h, "qwen35moe"), 0);
    nothing_is_left(&h, 20000);
    hf_folder_free(&h);
}

int main(void)
{
    faults.in_pieces = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_are_wrong),
        cmocka_unit_test(indexes_that_are_wrong),
        cmocka_unit_test(configurations_that_are_wrong),
        cmocka_unit_test(configurations_that_say_more),
        cmocka_unit_test(gptq_that_is_wrong),
        cmocka_unit_test(whatever_fails_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
