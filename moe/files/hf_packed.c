/* moe/files/hf_packed.c - quantised weights with codes in one tensor and scales in another.
 *
 * Input: a tensor of a .safetensors file.  Output: the matrix, or stack of matrices, in a supported format and the position
 * of its scales.  These kinds are read:
 *
 *   FP8     F8_E4M3 codes, NAME_scale_inv or NAME_scale with a float for each block of weight_block_size, usually 128 by 128
 *           values (DeepSeek-V3, Qwen3 -FP8), for each row, or for the matrix (compressed-tensors, fbgemm_fp8, modelopt):
 *           KN_FP8
 *   NVFP4   U8 codes of two nibbles, NAME_scale with F8_E4M3 for each 16 values of a row, and one float for the matrix:
 *           NAME_scale_2, or its reciprocal in NAME_global_scale: KN_NVFP4
 *   INT4    NAME_packed with eight nibbles to an I32, NAME_scale with a BF16 (KN_INT4) or F16 (KN_Q4_0) for each group of a
 *           row (compressed-tensors; Kimi-K2-Thinking)
 *   GPTQ    INT4 stored by input: NAME.qweight with codes, NAME.scales, NAME.qzeros with zero points, and NAME.g_idx with the
 *           group of each input.  With zero points of 8: KN_Q4_0 (scales in F16) or KN_INT4 (BF16); else KN_UINT4 (F16)
 *           In another order of inputs (desc_act) it is decoded to F32 as it is read, by quantize only
 *   AWQ     as GPTQ, but a word of NAME.qweight has eight outputs in another order: KN_UINT4
 *   MXFP4   of gpt-oss only, recognised by tensor names: hf_tensor_names.c */
#include "moe/files/hf_folder.h"

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

static bool is_announced(const struct moe_folder *d, int kind) { return d->packings >> kind & 1; }

static int refuse_unannounced(const struct moe_folder *d, const struct moe_stored *t)
{
    return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "is packed, and config.json does not say how");
}

/* A stack of n matrices, or one, [n_out, n_in], of codes t in format f. */
static struct moe_tensor packed_tensor(const struct moe_stored *t, enum kn_format f, uint64_t n_in, uint64_t n_out,
                                       uint64_t n)
{
    const struct kn_format_info *info = kn_format_info(f);
    return (struct moe_tensor){ .gguf_type = (uint32_t)info->gguf_type,
                                .n_dim = n > 1 ? 3 : 2,
                                .dim = { n_in, n_out, n, 1 },
                                .file = t->file,
                                .offset = t->offset,
                                .bytes = n_in / (uint64_t)info->block_values * n_out * n *
                                         (uint64_t)info->block_bytes };
}

static bool is_matrix(const struct moe_stored *t, const char *dtype, uint64_t n_row, uint64_t n)
{
    return t && !strcmp(t->dtype, dtype) && t->n_dim == 2 && t->dim[0] == n_row && t->dim[1] == n;
}

static uint64_t n_value(const struct moe_stored *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

/* Which weights of a matrix [n_out, n_in], of n in a stack, share a scale of s: all, those of a row, or blocks of the
 * announced size.  False: s has another shape. */
static bool find_fp8_scales(const struct moe_folder *d, const struct moe_stored *s, const uint64_t size[3],
                            struct off_scales *out)
{
    uint64_t n = size[0], n_out = size[1], n_in = size[2], rows = (uint64_t)d->scale_rows;
    uint64_t values = (uint64_t)d->scale_values, last = s->n_dim ? s->dim[s->n_dim - 1] : 1;
    uint64_t before = s->n_dim > 1 ? s->dim[s->n_dim - 2] : 1;
    int block = kn_format_info(KN_FP8)->block_values, all_values = (int)kn_align_up((size_t)n_in, (size_t)block);
    out->rows = (int)n_out;
    out->values = all_values;
    if (n_value(s) == n && (s->n_dim < 2 || (last == 1 && (before == 1 || n > 1))))
        return true;
    out->rows = 1;
    if (n_value(s) == n * n_out && (last == 1 ? before == n_out : s->n_dim == 1))
        return true;
    out->rows = d->scale_rows;
    out->values = d->scale_values;
    return values && s->n_dim == (n > 1 ? 3 : 2) && n_value(s) == n * before * last &&
           before == (n_out + rows - 1) / rows && last == (n_in + values - 1) / values;
}

static int describe_fp8(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                        struct off_scales *scales)
{
    const struct moe_stored *s = moe_stored_beside(d, t, 0, "_scale_inv");
    if (!is_announced(d, MOE_HF_FP8))
        return refuse_unannounced(d, t);
    if (!s)
        s = moe_stored_beside(d, t, 0, "_scale");
    bool stack = t->n_dim == 3;
    const uint64_t size[3] = { stack ? t->dim[0] : 1, t->dim[stack], t->dim[stack + 1] };
    uint64_t block = (uint64_t)kn_format_info(KN_FP8)->block_values;
    int bytes = s && !strcmp(s->dtype, "BF16") ? 2 : s && !strcmp(s->dtype, "F32") ? 4 : 0;
    *scales = (struct off_scales){ .bytes = bytes };
    if ((t->n_dim != 2 && !stack) || !bytes || size[1] > INT32_MAX || size[2] > INT32_MAX - block || size[2] % block ||
        !find_fp8_scales(d, s, size, scales))
        return moe_refuse_stored(
            d, t, KN_EUNSUPPORTED,
            "is no FP8 matrix with rows of a multiple of 128 values and F32 or BF16 scales for it, its "
            "rows or blocks of the announced size");
    scales->file = s->file;
    scales->offset = s->offset;
    *whole = packed_tensor(t, KN_FP8, size[2], size[1], size[0]);
    return 0;
}

/* less: bytes at the end of the codes' name before which the names of the scales end. */
static int describe_nvfp4(const struct moe_folder *d, const struct moe_stored *t, size_t less, struct moe_tensor *whole,
                          struct off_scales *scales, const struct moe_stored **factor)
{
    const struct moe_stored *s = moe_stored_beside(d, t, less, "_scale");
    uint64_t n_in = t->n_dim == 2 ? 2 * t->dim[1] : 0, n_out = t->dim[0];
    *factor = moe_stored_beside(d, t, less, less ? "_global_scale" : "_scale_2");
    if (!is_announced(d, MOE_HF_NVFP4))
        return refuse_unannounced(d, t);
    if (!n_in || n_in % 64 || !is_matrix(s, "F8_E4M3", n_out, n_in / 16) || !*factor ||
        strcmp((*factor)->dtype, "F32") || n_value(*factor) != 1)
        return moe_refuse_stored(
            d, t, KN_EUNSUPPORTED,
            "is no NVFP4 matrix with rows of a multiple of 64 values, F8_E4M3 scales for each 16 of "
            "them and one F32 scale for the matrix");
    *whole = packed_tensor(t, KN_NVFP4, n_in, n_out, 1);
    *scales = (struct off_scales){ .file = s->file, .offset = s->offset, .bytes = 4, .rows = 1, .values = 64 };
    return 0;
}

static int describe_int4(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                         struct off_scales *scales)
{
    const struct moe_stored *s = moe_stored_beside(d, t, sizeof MOE_HF_PACKED - 1, "_scale");
    uint64_t n_in = t->n_dim == 2 ? 8 * t->dim[1] : 0, values = (uint64_t)d->group_values;
    if (!is_announced(d, MOE_HF_INT4))
        return refuse_unannounced(d, t);
    bool narrow = is_matrix(s, "BF16", t->dim[0], n_in / values);
    if (!n_in || n_in % values || (!narrow && !is_matrix(s, "F16", t->dim[0], n_in / values)))
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED,
                                 "is no 4-bit matrix of whole groups with F16 or BF16 scales that match");
    *whole = packed_tensor(t, narrow ? KN_INT4 : KN_Q4_0, n_in, t->dim[0], 1);
    *scales = (struct off_scales){
        .file = s->file, .offset = s->offset, .bytes = 2, .rows = 1, .values = d->group_values
    };
    return 0;
}

/* ---- GPTQ and AWQ: codes stored by input ---------------------------------------------------------------- */

static const struct moe_stored *beside_gptq(const struct moe_folder *d, const struct moe_stored *t, const char *what)
{
    return moe_stored_beside(d, t, sizeof MOE_HF_GPTQ - 1, what);
}

/* GPTQ codes [n_in / 8][n_out]; a word holds eight consecutive inputs of one output.  AWQ codes [n_in][n_out / 8]. */
static int describe_by_input(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                             struct off_scales *scales)
{
    const struct moe_stored *s = beside_gptq(d, t, "scales"), *zeros = beside_gptq(d, t, "qzeros");
    const struct moe_stored *order = beside_gptq(d, t, "g_idx");
    bool awq = is_announced(d, MOE_HF_AWQ4), any_zero = awq || d->gptq_any_zero;
    uint64_t values = (uint64_t)d->group_values, n_in = awq ? t->dim[0] : 8 * t->dim[0];
    uint64_t n_out = awq ? 8 * t->dim[1] : t->dim[1];
    if (!awq && !is_announced(d, MOE_HF_GPTQ4))
        return refuse_unannounced(d, t);
    bool whole_groups = t->n_dim == 2 && !strcmp(t->dtype, "I32") && n_in % values == 0 && n_out % 8 == 0;
    bool narrow = whole_groups && !any_zero && is_matrix(s, "BF16", n_in / values, n_out);
    bool ordered = order ? !strcmp(order->dtype, "I32") && order->n_dim == 1 && order->dim[0] == n_in
                         : awq || d->gptq_plain;
    if (!whole_groups || (!narrow && !is_matrix(s, "F16", n_in / values, n_out)) ||
        !is_matrix(zeros, "I32", n_in / values, n_out / 8) || !ordered)
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED,
                                 any_zero
                                     ? "is no 4-bit matrix of whole groups with F16 scales and qzeros that match its "
                                       "shape"
                                     : "is no 4-bit matrix of whole groups with F16 or BF16 "
                                       "scales, qzeros and g_idx that match its shape");
    *whole = packed_tensor(t, narrow ? KN_INT4 : any_zero ? KN_UINT4 : KN_Q4_0, n_in, n_out, 1);
    *scales = (struct off_scales){ .file = s->file,
                                   .offset = s->offset,
                                   .bytes = 2,
                                   .rows = 1,
                                   .values = d->group_values,
                                   .order = awq ? OFF_BY_INPUT_AWQ : OFF_BY_INPUT,
                                   .zero_file = zeros->file,
                                   .zero_less = d->zero_less,
                                   .zero_offset = zeros->offset,
                                   .list_file = order ? order->file : 0,
                                   .list_offset = order ? order->offset : 0 };
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

/* Reads the groups of inputs.  *listed: they are not 0, 0 .. 1, 1 .. */
static int find_listed(const struct moe_folder *d, const struct moe_stored *t, bool *listed)
{
    uint32_t word[1024], n_group = (uint32_t)(t->dim[0] / (uint64_t)d->group_values);
    for (uint64_t at = 0; at < t->bytes; at += sizeof word) {
        uint64_t left = t->bytes - at, n = left < sizeof word ? left : sizeof word;
        int err = kn_file_read(d->f->fd[t->file], d->f->path[t->file], word, (size_t)n, t->offset + at);
        for (uint64_t i = 0; i < n / 4 && !err; i++) {
            *listed |= word[i] != (uint32_t)((at / 4 + i) / (uint64_t)d->group_values);
            if (word[i] >= n_group)
                err = moe_refuse_stored(d, t, KN_ECORRUPT, "names a group beyond the last one");
        }
        if (err)
            return err;
    }
    return 0;
}

int moe_hf_check_gptq(const struct moe_folder *d, const struct moe_stored *t, bool *listed)
{
    const struct moe_stored *order = beside_gptq(d, t, "g_idx");
    int err = 0;
    if (!d->gptq_any_zero)
        err = check_words(d, beside_gptq(d, t, "qzeros"), d->gptq_zeros, UINT64_MAX,
                          "has zero points other than 8, but config.json does not say sym false");
    return err || !order ? err : find_listed(d, order, listed);
}

int moe_hf_describe_listed(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                           struct off_scales *scales)
{
    uint64_t n_in = whole->dim[0], n_out = whole->dim[1];
    if (!scales->list_offset || strcmp(beside_gptq(d, t, "scales")->dtype, "F16"))
        return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "has reordered inputs (desc_act) and scales that are not F16");
    *whole = packed_tensor(t, KN_F32, n_in, n_out, 1);
    scales->order = OFF_BY_INPUT_LISTED;
    return 0;
}

int moe_hf_describe(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                    struct off_scales *scales, const struct moe_stored **factor)
{
    size_t less = moe_string_ends(t->name, MOE_HF_PACKED) ? sizeof MOE_HF_PACKED - 1 : 0;
    *whole = moe_as_stored(t);
    *scales = (struct off_scales){ 0 };
    *factor = NULL;
    if (!strcmp(t->dtype, "F8_E4M3"))
        return describe_fp8(d, t, whole, scales);
    if (moe_string_ends(t->name, "." MOE_HF_GPTQ))
        return describe_by_input(d, t, whole, scales);
    if (!strcmp(t->dtype, "I32") && less)
        return describe_int4(d, t, whole, scales);
    if (!strcmp(t->dtype, "U8") && (less || moe_string_ends(t->name, ".weight")))
        return describe_nvfp4(d, t, less, whole, scales, factor);
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
