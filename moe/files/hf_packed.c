/* moe/files/hf_packed.c - quantised weights with codes in one tensor and scales in another.
 *
 * Input: config.json's quantization_config and the tensors of .safetensors files.  Output: for each tensor the matrix
 * in a supported format and the position of its scales.  Four kinds are read:
 *
 *   FP8     F8_E4M3 codes, NAME_scale_inv with a float for each block of weight_block_size, usually 128 by 128 values
 *           (DeepSeek-V3, Qwen3 -FP8): KN_FP8
 *   INT4    NAME_packed with eight nibbles to an I32, NAME_scale with a BF16 for each group of a row
 *           (compressed-tensors; Kimi-K2-Thinking): KN_INT4
 *   GPTQ    INT4 stored input-major: NAME.qweight with codes, NAME.scales in F16 (KN_Q4_0) or BF16 (KN_INT4),
 *           NAME.qzeros with zero points, all of which must be 8, and NAME.g_idx with the group of each input
 *   MXFP4   of gpt-oss only, recognised by tensor names: hf_tensor_names.c
 *
 * Any other method is refused by name. */
#include "moe/files/hf_folder.h"

/* ---- quantization_config ---------------------------------------------------------------------------- */

/* NULL: the key is absent or its value is null; both have the same meaning. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* Common methods that are not supported, and the reason. */
static const struct {
    const char *method, *why;
} packings[] = {
    { "awq", ", input-major codes with zero points, a format that is not implemented" },
    { "auto-round", ", which is supported only if it is published as gptq" },
    { "bitsandbytes", ", codes that index a table, a format that is not implemented" },
    { "modelopt", ", FP4 or FP8 with two levels of scales, a format that is not implemented" },
    { "fbgemm_fp8", ", FP8 with a scale for each row, a format that is not implemented" },
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
                            "%s: config.json: its weights are packed as '%s'%s; use F32, F16, BF16, "
                            "FP8 with a scale for each block, MXFP4 of gpt-oss, INT4 in groups (compressed-tensors, "
                            "gptq), or a .gguf file",
                            d->f->name, shown, why);
}

/* FP8 with a scale for each weight_block_size, usually 128 by 128 values; its width must be whole KN_FP8 blocks. */
static int read_fp8(struct moe_folder *d, const json_t *q)
{
    const json_t *size = get(q, "weight_block_size"), *rows = json_array_get(size, 0),
                 *values = json_array_get(size, 1);
    const char *fmt = json_string_value(get(q, "fmt"));
    json_int_t n_row = json_integer_value(rows), n = json_integer_value(values);
    int block = kn_format_info(KN_FP8)->block_values;
    if (json_array_size(size) != 2 || !json_is_integer(rows) || !json_is_integer(values) || n_row < 1 || n < 1 ||
        n_row > 1 << 16 || n > 1 << 16 || n % block || (fmt && strcmp(fmt, "e4m3")))
        return refuse_packing(d, "fp8 without a weight_block_size of rows by a multiple of 128 values, or not e4m3");
    d->scale_rows = (int)n_row;
    d->scale_values = (int)n;
    return d->err;
}

static bool says(const json_t *v, const char *text) { return json_is_string(v) && !strcmp(json_string_value(v), text); }

/* compressed-tensors: symmetric 4-bit integers with a scale for each group of values in a row. */
static int read_groups(struct moe_folder *d, const json_t *q)
{
    json_t *groups = json_object_get(q, "config_groups");
    const json_t *group = json_object_iter_value(json_object_iter(groups)), *w = get(group, "weights");
    json_int_t n = json_integer_value(get(w, "group_size"));
    if (!says(get(q, "format"), "pack-quantized") || json_object_size(groups) != 1 || !says(get(w, "type"), "int") ||
        !says(get(w, "strategy"), "group") || json_integer_value(get(w, "num_bits")) != 4 ||
        !json_is_true(get(w, "symmetric")) || get(w, "actorder") || get(group, "input_activations"))
        return refuse_packing(d, "compressed-tensors that are not symmetric integers of 4 bits in groups");
    if (n < 1 || n > 1 << 16 || n % kn_format_info(KN_INT4)->block_values)
        return refuse_packing(d, "compressed-tensors in groups that are no multiple of 32");
    d->scale_rows = 1;
    d->scale_values = (int)n;
    return d->err;
}

/* GPTQ: symmetric 4-bit integers with a scale for each group of values in a row, stored input-major.  Version 1 of the
 * format stores zero points minus 1. */
static int read_gptq(struct moe_folder *d, const json_t *q)
{
    const json_t *format = get(q, "checkpoint_format"), *sym = get(q, "sym");
    json_int_t n = json_integer_value(get(q, "group_size"));
    bool second = says(format, "gptq_v2");
    if (json_integer_value(get(q, "bits")) != 4)
        return refuse_packing(d, "gptq of other than 4 bits");
    if (json_is_false(sym))
        return refuse_packing(d, "gptq that is not symmetric (sym false)");
    if (format && !second && !says(format, "gptq"))
        return refuse_packing(d, "gptq whose checkpoint_format is neither gptq nor gptq_v2");
    if (n < 1 || n > 1 << 16 || n % kn_format_info(KN_Q4_0)->block_values)
        return refuse_packing(d, "gptq in groups that are no multiple of 32");
    d->scale_rows = 1;
    d->scale_values = (int)n;
    d->gptq_zeros = second ? 0x88888888 : 0x77777777;
    d->gptq_plain = json_is_true(sym) && json_is_false(get(q, "desc_act"));
    return d->err;
}

int moe_hf_packing(struct moe_folder *d)
{
    const json_t *q = get(d->config, "quantization_config");
    const char *method = json_string_value(get(q, "quant_method"));
    if (!q || d->err || (method && !strcmp(method, "mxfp4") && !strcmp(d->family->arch, "gpt-oss")))
        return d->err;
    if (method && !strcmp(method, "fp8"))
        return read_fp8(d, q);
    if (method && !strcmp(method, "compressed-tensors"))
        return read_groups(d, q);
    if (method && !strcmp(method, "gptq"))
        return read_gptq(d, q);
    return refuse_packing(d, method ? method : "");
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

int moe_refuse_stored(const struct moe_folder *d, const struct moe_stored *t, int code, const char *what)
{
    char shown[128];
    moe_string_show(t->name, shown, sizeof shown);
    return kn_fail(code, "%s: %s: tensor '%s' %s", d->f->path[t->file], kn_error_text(code), shown, what);
}

/* GGUF has the innermost dimension first; a matrix of one row becomes a vector. */
struct moe_tensor moe_as_stored(const struct moe_stored *t)
{
    struct moe_tensor out = { .gguf_type = (uint32_t)t->gguf_type,
                              .n_dim = t->n_dim ? t->n_dim : 1,
                              .dim = { 1, 1, 1, 1 },
                              .file = t->file,
                              .offset = t->offset,
                              .bytes = t->bytes };
    for (int i = 0; i < t->n_dim; i++)
        out.dim[i] = t->dim[t->n_dim - 1 - i];
    while (out.n_dim > 1 && out.dim[out.n_dim - 1] == 1)
        out.n_dim--;
    return out;
}

const struct moe_stored *moe_stored_beside(const struct moe_folder *d, const struct moe_stored *t, size_t less,
                                           const char *more)
{
    char name[1100]; /* longer than the longest valid name */
    size_t head = t->name.n - less;
    if (less > t->name.n || head + strlen(more) > sizeof name)
        return NULL;
    memcpy(name, t->name.data, head);
    memcpy(name + head, more, strlen(more));
    return moe_stored_find(d, name, head + strlen(more));
}

/* Describes t, the codes of a matrix [n_out, n_in], with its scales in tensor s as a matrix of blocks of format f. */
static int describe_packed(const struct moe_folder *d, const struct moe_stored *t, enum kn_format f, uint64_t n_in,
                           const struct moe_stored *s, struct moe_tensor *whole, struct off_scales *scales)
{
    uint64_t block = (uint64_t)kn_format_info(f)->block_values, rows = (uint64_t)d->scale_rows;
    uint64_t values = (uint64_t)d->scale_values;
    if (!values || values % block)
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "is packed, and config.json does not say how");
    int bytes = s && !strcmp(s->dtype, "BF16") ? 2 : s && !strcmp(s->dtype, "F32") && f == KN_FP8 ? 4 : 0;
    if (t->n_dim != 2 || n_in % block || !bytes || s->n_dim != 2 || s->dim[0] != (t->dim[0] + rows - 1) / rows ||
        s->dim[1] != (n_in + values - 1) / values || (f == KN_INT4 && n_in % values))
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED,
                                 f == KN_FP8 ? "is no FP8 matrix with rows of a multiple of 128 values and F32 or BF16 "
                                               "scales that match"
                                             : "is no 4-bit matrix of whole groups with BF16 scales that match");
    *whole = (struct moe_tensor){ .gguf_type = (uint32_t)kn_format_info(f)->gguf_type,
                                  .n_dim = 2,
                                  .dim = { n_in, t->dim[0], 1, 1 },
                                  .file = t->file,
                                  .offset = t->offset,
                                  .bytes = n_in / block * t->dim[0] * (uint64_t)kn_format_info(f)->block_bytes };
    *scales = (struct off_scales){ s->file, s->offset, bytes, d->scale_rows, d->scale_values, false };
    return 0;
}

/* ---- GPTQ: input-major codes --------------------------------------------------------------------------- */

static const struct moe_stored *beside_gptq(const struct moe_folder *d, const struct moe_stored *t, const char *what)
{
    return moe_stored_beside(d, t, sizeof MOE_HF_GPTQ - 1, what);
}

static bool is_matrix(const struct moe_stored *t, const char *dtype, uint64_t n_row, uint64_t n)
{
    return t && !strcmp(t->dtype, dtype) && t->n_dim == 2 && t->dim[0] == n_row && t->dim[1] == n;
}

/* Describes codes [n_in / 8][n_out]; a word holds eight consecutive inputs of one output. */
static int describe_gptq(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                         struct off_scales *scales)
{
    const struct moe_stored *s = beside_gptq(d, t, "scales"), *order = beside_gptq(d, t, "g_idx");
    uint64_t values = (uint64_t)d->scale_values, n_in = 8 * t->dim[0], n_out = t->dim[1];
    if (!d->gptq_zeros)
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "is packed, and config.json does not say how");
    bool whole_groups = t->n_dim == 2 && !strcmp(t->dtype, "I32") && n_in % values == 0 && n_out % 8 == 0;
    bool narrow = whole_groups && is_matrix(s, "BF16", n_in / values, n_out);
    if (!whole_groups || (!narrow && !is_matrix(s, "F16", n_in / values, n_out)) ||
        !is_matrix(beside_gptq(d, t, "qzeros"), "I32", n_in / values, n_out / 8) ||
        (order ? strcmp(order->dtype, "I32") || order->n_dim != 1 || order->dim[0] != n_in : !d->gptq_plain))
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED,
                                 "is no 4-bit matrix of whole groups with F16 or BF16 "
                                 "scales, qzeros and g_idx that match its shape");
    const struct kn_format_info *f = kn_format_info(narrow ? KN_INT4 : KN_Q4_0);
    *whole = (struct moe_tensor){ .gguf_type = (uint32_t)f->gguf_type,
                                  .n_dim = 2,
                                  .dim = { n_in, n_out, 1, 1 },
                                  .file = t->file,
                                  .offset = t->offset,
                                  .bytes = n_in / (uint64_t)f->block_values * n_out * (uint64_t)f->block_bytes };
    *scales = (struct off_scales){ s->file, s->offset, 2, 1, d->scale_values, true };
    return 0;
}

/* Reads t as 32-bit words and checks that word i is first + i / per; otherwise fails with the message `otherwise`.  Of
 * a last partial word the missing bytes count as equal. */
static int check_words(const struct moe_folder *d, const struct moe_stored *t, uint32_t first, uint64_t per,
                       const char *otherwise)
{
    uint32_t word[1024];
    for (uint64_t at = 0; at < t->bytes; at += sizeof word) {
        uint64_t left = t->bytes - at, n = left < sizeof word ? left : sizeof word;
        word[n / 4 % 1024] = first;
        int err = kn_file_read(d->f->fd[t->file], d->f->path[t->file], word, (size_t)n, t->offset + at);
        for (uint64_t i = 0; i < (n + 3) / 4 && !err; i++)
            if (word[i] != first + (uint32_t)((at / 4 + i) / per))
                err = moe_refuse_stored(d, t, KN_EUNSUPPORTED, otherwise);
        if (err)
            return err;
    }
    return 0;
}

int moe_hf_check_zeros(const struct moe_folder *d, const struct moe_stored *t, const char *otherwise)
{
    return check_words(d, t, 0, UINT64_MAX, otherwise);
}

int moe_hf_check_gptq(const struct moe_folder *d, const struct moe_stored *t)
{
    const struct moe_stored *order = beside_gptq(d, t, "g_idx");
    int err = check_words(d, beside_gptq(d, t, "qzeros"), d->gptq_zeros, UINT64_MAX,
                          "has zero points other than 8: only symmetric weights are supported");
    if (err || !order)
        return err;
    return check_words(d, order, 0, (uint64_t)d->scale_values,
                       "has reordered inputs (desc_act), which is not supported");
}

int moe_hf_describe(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                    struct off_scales *scales)
{
    size_t less = sizeof MOE_HF_PACKED - 1;
    *whole = moe_as_stored(t);
    *scales = (struct off_scales){ 0 };
    if (!strcmp(t->dtype, "F8_E4M3"))
        return describe_packed(d, t, KN_FP8, t->n_dim == 2 ? t->dim[1] : 0, moe_stored_beside(d, t, 0, "_scale_inv"),
                               whole, scales);
    if (moe_string_ends(t->name, "." MOE_HF_GPTQ))
        return describe_gptq(d, t, whole, scales);
    if (!strcmp(t->dtype, "I32") && moe_string_ends(t->name, MOE_HF_PACKED))
        return describe_packed(d, t, KN_INT4, t->n_dim == 2 ? 8 * t->dim[1] : 0,
                               moe_stored_beside(d, t, less, "_scale"), whole, scales);
    return 0;
}

int moe_hf_compare(const struct moe_folder *d, const struct moe_stored *a, const struct moe_stored *b, bool *same)
{
    const size_t most = (size_t)1 << 20;
    const struct moe_stored *t[2] = { a, b };
    *same = !strcmp(a->dtype, b->dtype) && !memcmp(a->dim, b->dim, sizeof a->dim) && a->bytes == b->bytes;
    if (!*same)
        return 0;
    uint8_t *bytes = kn_alloc(2 * most);
    if (!bytes)
        return kn_fail(KN_ENOMEM, "%s: no memory to compare two tensors", d->f->name);
    int err = 0;
    for (uint64_t at = 0, n; at < a->bytes && *same && !err; at += n) {
        n = a->bytes - at < most ? a->bytes - at : most;
        for (int i = 0; i < 2 && !err; i++) {
            int fd = d->f->fd[t[i]->file];
            err = kn_file_read(fd, d->f->path[t[i]->file], bytes + (size_t)i * most, (size_t)n, t[i]->offset + at);
            (void)kn_io()->forget(fd, (int64_t)(t[i]->offset + at),
                                  (int64_t)n); /* --host-mem counts the page cache, too */
        }
        *same = !err && !memcmp(bytes, bytes + most, (size_t)n);
    }
    kn_free(bytes);
    return err;
}
