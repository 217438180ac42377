/* moe/files/hf_quantisation.c - config.json's quantization_config: which kinds of packed weights a folder has.
 *
 * Input: quantization_config, or the file hf_quant_config.json of modelopt.  Output: the bits of packings and the sizes of
 * blocks and groups in struct moe_folder.  The kind of a tensor follows from its own shape and the tensors beside it
 * (hf_packed.c); a kind that is not announced here is refused there.
 *
 * Any method that is not supported is refused by name. */
#include "moe/files/hf_folder.h"

#include <stdio.h>

#define QUANT_CONFIG      "hf_quant_config.json"
#define QUANT_CONFIG_MOST ((size_t)16 << 20)

/* NULL: the key is absent or its value is null; both have the same meaning. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

static bool says(const json_t *v, const char *text) { return json_is_string(v) && !strcmp(json_string_value(v), text); }

/* Common methods that are not supported, and the reason. */
static const struct {
    const char *method, *why;
} packings[] = {
    { "auto-round", ", which is supported only if it is published as gptq" },
    { "bitsandbytes", ", codes that index a table, a format that is not implemented" },
    { "mxfp4", ", which is supported for gpt-oss only" },
};

static int refuse_packing(struct moe_folder *d, const char *what)
{
    char shown[128];
    const char *why = "";
    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++)
        why = strcmp(what, packings[i].method) ? why : packings[i].why;
    moe_string_show((struct moe_string){ what, strlen(what) }, shown, sizeof shown);
    return d->err = kn_fail(KN_EUNSUPPORTED,
                            "%s: config.json: its weights are packed as '%s'%s; use F32, F16, BF16, FP8, NVFP4, MXFP4 "
                            "of gpt-oss, INT4 in groups (compressed-tensors, gptq, awq), or a .gguf file",
                            d->f->name, shown, why);
}

static int announce(struct moe_folder *d, int kind)
{
    d->packings |= 1u << kind;
    return d->err;
}

/* FP8 with a scale for each block of `size` rows by values, usually 128 by 128; the width must be whole KN_FP8 blocks.
 * size NULL: a scale for each row or matrix, which the shape of the scales shows. */
static int read_fp8(struct moe_folder *d, const json_t *size, const json_t *fmt)
{
    const json_t *rows = json_array_get(size, 0), *values = json_array_get(size, 1);
    json_int_t n_row = json_integer_value(rows), n = json_integer_value(values);
    int block = kn_format_info(KN_FP8)->block_values;
    if (fmt && !says(fmt, "e4m3"))
        return refuse_packing(d, "fp8 that is not e4m3");
    if (!size)
        return announce(d, MOE_HF_FP8);
    if (json_array_size(size) != 2 || !json_is_integer(rows) || !json_is_integer(values) || n_row < 1 || n < 1 ||
        n_row > 1 << 16 || n > 1 << 16 || n % block)
        return refuse_packing(d, "fp8 without a weight_block_size of rows by a multiple of 128 values");
    d->scale_rows = (int)n_row;
    d->scale_values = (int)n;
    return announce(d, MOE_HF_FP8);
}

static int read_group_size(struct moe_folder *d, const json_t *size, const char *otherwise)
{
    json_int_t n = json_integer_value(size);
    if (n < 1 || n > 1 << 16 || n % kn_format_info(KN_INT4)->block_values)
        return refuse_packing(d, otherwise);
    if (d->group_values && d->group_values != (int)n)
        return refuse_packing(d, "groups of several sizes");
    d->group_values = (int)n;
    return d->err;
}

/* One group of compressed-tensors: FP8 with scales for blocks, rows or the matrix; NVFP4; or symmetric 4-bit integers with
 * a scale for each group of values in a row.  Activations stay as they are. */
static int read_group(struct moe_folder *d, const json_t *group, const json_t *format)
{
    const json_t *w = get(group, "weights"), *strategy = get(w, "strategy"), *size = get(w, "group_size");
    json_int_t bits = json_integer_value(get(w, "num_bits"));
    bool is_float = says(get(w, "type"), "float"), symmetric = json_is_true(get(w, "symmetric"));
    if (is_float && bits == 8 && symmetric && (says(strategy, "tensor") || says(strategy, "channel")))
        return read_fp8(d, NULL, NULL);
    if (is_float && bits == 8 && symmetric && says(strategy, "block"))
        return read_fp8(d, get(w, "block_structure") ? get(w, "block_structure") : json_true(), NULL);
    if (is_float && bits == 4 && says(format, "nvfp4-pack-quantized") && json_integer_value(size) == 16)
        return announce(d, MOE_HF_NVFP4);
    if (!says(format, "pack-quantized") || !says(get(w, "type"), "int") || !says(strategy, "group") || bits != 4 ||
        !symmetric || get(w, "actorder") || get(group, "input_activations"))
        return refuse_packing(d,
                              "compressed-tensors that are not FP8, NVFP4 or symmetric integers of 4 bits in groups");
    if (read_group_size(d, size, "compressed-tensors in groups that are no multiple of 32"))
        return d->err;
    return announce(d, MOE_HF_INT4);
}

static int read_groups(struct moe_folder *d, const json_t *q)
{
    json_t *groups = json_object_get(q, "config_groups"), *group;
    const char *key;
    if (!json_object_size(groups))
        return refuse_packing(d, "compressed-tensors without config_groups");
    json_object_foreach(groups, key, group)
    {
        const json_t *own = get(group, "format");
        if (read_group(d, group, own ? own : get(q, "format")))
            return d->err;
    }
    return d->err;
}

/* GPTQ: 4-bit integers with a scale for each group of values in a row, stored input-major.  Version 1 of the format stores
 * zero points minus 1. */
static int read_gptq(struct moe_folder *d, const json_t *q)
{
    const json_t *format = get(q, "checkpoint_format"), *sym = get(q, "sym");
    bool second = says(format, "gptq_v2");
    if (json_integer_value(get(q, "bits")) != 4)
        return refuse_packing(d, "gptq of other than 4 bits");
    if (format && !second && !says(format, "gptq"))
        return refuse_packing(d, "gptq whose checkpoint_format is neither gptq nor gptq_v2");
    if (read_group_size(d, get(q, "group_size"), "gptq in groups that are no multiple of 32"))
        return d->err;
    d->gptq_zeros = second ? 0x88888888 : 0x77777777;
    d->zero_less = second ? 0 : 1;
    d->gptq_any_zero = json_is_false(sym);
    d->gptq_plain = sym && json_is_false(get(q, "desc_act"));
    return announce(d, MOE_HF_GPTQ4);
}

/* AWQ: 4-bit integers with a scale and a zero point for each group of values in a row, stored by input. */
static int read_awq(struct moe_folder *d, const json_t *q)
{
    const json_t *version = get(q, "version"), *zeros = get(q, "zero_point");
    if (json_integer_value(get(q, "bits")) != 4)
        return refuse_packing(d, "awq of other than 4 bits");
    if ((version && !says(version, "gemm") && !says(version, "GEMM")) || (zeros && !json_is_true(zeros)))
        return refuse_packing(d, "awq that is not version gemm with zero points");
    if (read_group_size(d, get(q, "group_size"), "awq in groups that are no multiple of 32"))
        return d->err;
    return announce(d, MOE_HF_AWQ4);
}

/* modelopt: NVFP4, and FP8 with a scale for each matrix or row. */
static int read_modelopt(struct moe_folder *d, const json_t *q)
{
    static const char *const algorithms[] = { "FP8", "NVFP4", "MIXED_PRECISION", "FP8_PER_CHANNEL_PER_TOKEN" };
    const char *name = json_string_value(get(q, "quant_algo"));
    char what[80];
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++)
        if (name && !strcmp(name, algorithms[i])) {
            announce(d, MOE_HF_NVFP4);
            return announce(d, MOE_HF_FP8);
        }
    snprintf(what, sizeof what, "modelopt with quant_algo %s", name ? name : "not stated");
    return refuse_packing(d, what);
}

static int read_method(struct moe_folder *d, const json_t *q)
{
    const char *method = json_string_value(get(q, "quant_method"));
    if (!method)
        return refuse_packing(d, "a method that is not stated");
    if (!strcmp(method, "mxfp4") && !strcmp(d->family->arch, "gpt-oss"))
        return d->err;
    if (!strcmp(method, "fp8"))
        return read_fp8(d, get(q, "weight_block_size"), get(q, "fmt"));
    if (!strcmp(method, "fbgemm_fp8"))
        return read_fp8(d, NULL, NULL);
    if (!strcmp(method, "compressed-tensors"))
        return read_groups(d, q);
    if (!strcmp(method, "gptq"))
        return read_gptq(d, q);
    if (!strcmp(method, "awq"))
        return read_awq(d, q);
    if (!strcmp(method, "modelopt") || !strcmp(method, "modelopt_fp4"))
        return read_modelopt(d, q);
    return refuse_packing(d, method);
}

/* Older exports of modelopt have their settings in a file of their own only. */
int moe_hf_packing(struct moe_folder *d)
{
    const json_t *q = get(d->config, "quantization_config");
    json_t *file = NULL;
    if (d->err)
        return d->err;
    if (q)
        return read_method(d, q);
    if ((d->err = moe_folder_json(d, QUANT_CONFIG, QUANT_CONFIG_MOST, &file)) || !file)
        return d->err;
    if (get(get(file, "quantization"), "quant_algo"))
        read_modelopt(d, get(file, "quantization"));
    json_decref(file);
    return d->err;
}
