/* moe/files/hf_convert.c - describes a tensor of a folder, or a part of it, as a tensor of a GGUF file.
 *
 * Input: a tensor stored in a .safetensors file and the conversion that the name table asks for.  Output: a tensor of
 * the struct moe_file.  Experts stored one by one become one stack with a position for each; a stack of gates and ups
 * becomes two stacks; codes with scales in another tensor become blocks.  No data is copied: the layout of the result
 * refers to the stored bytes.  Exceptions are vectors of which GGUF stores a function of the values (norm weights
 * stored minus 1, decays): these are read, converted and stored in memory. */
#include "moe/files/hf_tensor_names.h"

#include <stdio.h>
#include <string.h>

#define FLOAT_MOST (1 << 24) /* largest vector, in values, that is read and converted */

static int refuse(const struct moe_hf_mapper *m, int code, const char *what)
{
    return moe_refuse_stored(m->d, m->t, code, what);
}

/* ---- one tensor --------------------------------------------------------------------------------- */

int moe_hf_put(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name)
{
    int err = moe_keep_string(m->d->f, name, strlen(name), &t->name);
    if (!err && (err = moe_add_tensor(m->d->f, t)) > 0)
        err = refuse(m, KN_ECORRUPT, "is present under another name too");
    return err;
}

static struct moe_layout *new_layout(struct moe_hf_mapper *m, struct moe_tensor *t)
{
    struct moe_layout *l = moe_keep(m->d->f, sizeof *l);
    if (l)
        *l = (struct moe_layout){ 0 };
    t->layout = l;
    return l;
}

static int add(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name)
{
    if ((int32_t)t->gguf_type < 0) {
        char what[64];
        snprintf(what, sizeof what, "has values of type %s", m->t->dtype);
        return refuse(m, KN_EUNSUPPORTED, what);
    }
    return moe_hf_put(m, t, name);
}

/* The name of the scales of the matrices in the tensor `name`, "X.weight": "X.scale". */
static int factor_name(const struct moe_hf_mapper *m, const char *name, char out[MOE_HF_SHOWN])
{
    size_t n = strlen(name), end = sizeof ".weight" - 1;
    if (n < end || strcmp(name + n - end, ".weight"))
        return refuse(m, KN_EUNSUPPORTED, "is packed, but is no matrix");
    snprintf(out, MOE_HF_SHOWN, "%.*s.scale", (int)(n - end), name);
    return 0;
}

/* The stored scale for all of the current tensor as a tensor of `n` such scales, which are all at its position. */
static struct moe_tensor factor_tensor(struct moe_hf_mapper *m, size_t n)
{
    struct moe_tensor t = { .gguf_type = (uint32_t)m->factor->gguf_type,
                            .n_dim = 1,
                            .dim = { n, 1, 1, 1 },
                            .file = m->factor->file,
                            .offset = m->factor->offset,
                            .bytes = n * sizeof(float) };
    struct moe_layout *l = new_layout(m, &t);
    if (l)
        l->inverse = moe_string_ends(m->factor->name, MOE_HF_DIVISOR);
    return t;
}

static int add_factor(struct moe_hf_mapper *m, const char *name)
{
    char other[MOE_HF_SHOWN];
    if (!m->factor)
        return 0;
    struct moe_tensor t = factor_tensor(m, 1);
    int err = factor_name(m, name, other);
    return err ? err : t.layout ? moe_hf_put(m, &t, other) : KN_ENOMEM;
}

/* Adds the tensor, with its scales if they are stored apart, and with its permutation if it has one. */
static int add_packed(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name,
                      const struct off_stride_permutation *turn)
{
    if (m->scales.bytes || turn) {
        struct moe_layout *l = new_layout(m, t);
        struct off_scales *s = l && m->scales.bytes ? moe_keep(m->d->f, sizeof *s) : NULL;
        if (!l || (m->scales.bytes && !s))
            return KN_ENOMEM;
        if (s)
            *s = m->scales;
        l->scales = s;
        if (turn)
            l->turn = *turn;
    }
    int err = add(m, t, name);
    return err ? err : add_factor(m, name);
}

static int add_one(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    return add_packed(m, &t, name, NULL);
}

static uint64_t n_scale(uint64_t n, int per) { return (n + (uint64_t)per - 1) / (uint64_t)per; }

/* Bytes of the scales of n_out rows of the current tensor. */
static uint64_t scale_bytes(const struct moe_hf_mapper *m, uint64_t n_out)
{
    const struct off_scales *s = &m->scales;
    return n_scale(n_out, s->rows) * n_scale(m->whole.dim[0], s->values) * (uint64_t)s->bytes;
}

/* ---- reordered rows and elements ------------------------------------------------------------------ */

static int refuse_cut(const struct moe_hf_mapper *m)
{
    return refuse(m, KN_EUNSUPPORTED,
                  "is packed, and its rows must be reordered or divided within a block of one scale");
}

/* Units of rows, permuted: from row `first` on, of `rows` rows each, in groups of n. */
struct row_turn {
    uint64_t first, rows;
    int n, by;
};

static int add_turned(struct moe_hf_mapper *m, const char *name, struct row_turn u)
{
    struct moe_tensor t = m->whole;
    struct off_scales *s = &m->scales;
    uint64_t n_row = t.dim[1] * t.dim[2], row = m->t->bytes / n_row, one = s->bytes ? scale_bytes(m, 1) : 0;
    struct off_stride_permutation turn = { u.first * row, (size_t)(u.rows * row), u.n, u.by };
    if (s->bytes && s->order != OFF_BY_ROW) {
        turn.first = u.first;
        turn.bytes = (size_t)u.rows;
    } else if (s->bytes && s->rows == 1) {
        s->turn = (struct off_stride_permutation){ u.first * one, (size_t)(u.rows * one), u.n, u.by };
    } else if (s->bytes && (uint64_t)s->rows < n_row) {
        uint64_t per = (uint64_t)s->rows;
        if (u.rows % per == 0 && u.first % per == 0)
            s->turn = (struct off_stride_permutation){ u.first / per * one, (size_t)(u.rows / per * one), u.n, u.by };
        else if (per % (u.rows * (uint64_t)u.n) || u.first % per)
            return refuse_cut(m);
    }
    return add_packed(m, &t, name, &turn);
}

/* Adds a Q or K matrix.  If a head's rows are stored in halves (family->turned), they are reordered to GGUF's pairs. */
static int add_rotated(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    int turn = m->d->d_head;
    if (!m->d->family->turned || t.n_dim != 2)
        return add_one(m, name);
    if (turn < 2 || turn % 2 || t.dim[1] % (uint64_t)turn)
        return refuse(m, KN_ECORRUPT, "does not have a whole number of heads");
    return add_turned(m, name, (struct row_turn){ .rows = 1, .n = turn, .by = 2 });
}

/* Value heads are stored grouped by key head; in GGUF value head i has key head i mod n_key_head.  Adds a matrix whose
 * columns are those of value heads: of a packed one, whole blocks of one scale. */
static int add_head_columns(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    struct off_scales *s = &m->scales;
    uint64_t n = (uint64_t)m->d->n_value_head, each = t.dim[0] / n, row = m->t->bytes / t.dim[1];
    struct off_stride_permutation turn = { 0, (size_t)(row / n), m->d->n_value_head, m->d->n_key_head };
    enum kn_format f;
    if (s->bytes && (kn_format_from_gguf(t.gguf_type, &f) || s->order != OFF_BY_ROW ||
                     each % (uint64_t)kn_format_info(f)->block_values))
        return refuse_cut(m);
    if (s->bytes && (uint64_t)s->values < t.dim[0]) {
        if (each % (uint64_t)s->values)
            return refuse_cut(m);
        s->turn = turn;
        s->turn.bytes = (size_t)(each / (uint64_t)s->values) * (size_t)s->bytes;
    }
    return add_packed(m, &t, name, &turn);
}

static int add_heads(struct moe_hf_mapper *m, const char *name, enum moe_hf_take how)
{
    const struct moe_folder *d = m->d;
    struct moe_tensor t = m->whole;
    uint64_t n_value = (uint64_t)d->n_value_head, d_value = (uint64_t)d->d_state_value, n_in = t.dim[0];
    uint64_t n_key = how == MIX_ROWS ? 2 * (uint64_t)d->n_key_head * (uint64_t)d->d_state_key : 0;
    if (t.n_dim == 3 && t.dim[1] == 1) { /* taps of a depthwise convolution */
        t.dim[1] = t.dim[2];
        t.dim[2] = 1;
        t.n_dim = 2;
    }
    if (!d->family->tiled || t.n_dim > 2)
        return m->scales.bytes ? add_one(m, name) : add(m, &t, name);
    uint64_t n_row = t.n_dim == 1 ? n_in : t.dim[1], each = how == HEAD_ROWS ? 1 : d_value;
    if (how == VALUE_COLUMNS ? n_in != n_value * d_value : n_row != n_key + n_value * each)
        return refuse(m, KN_ECORRUPT, "is not of as many heads as config.json says");
    if (!n_row || !n_value || !d->n_key_head || n_value % (uint64_t)d->n_key_head)
        return refuse(m, KN_ECORRUPT, "has value heads that do not share key heads evenly");
    if (how == VALUE_COLUMNS)
        return add_head_columns(m, name);
    m->whole = t;
    if (t.n_dim == 1) { /* a vector: its elements are permuted */
        struct off_stride_permutation turn = { n_key * (t.bytes / n_row), (size_t)(each * (t.bytes / n_row)),
                                               d->n_value_head, d->n_key_head };
        return add_packed(m, &t, name, &turn);
    }
    return add_turned(m, name, (struct row_turn){ n_key, each, d->n_value_head, d->n_key_head });
}

/* ---- vectors read and converted at open ------------------------------------------------------------- */

/* Adds a vector of f(value) as F32, in stored order. */
static int add_read(struct moe_hf_mapper *m, const char *name, float (*f)(float x))
{
    struct moe_tensor t = m->whole;
    const struct moe_stored *s = m->t;
    enum kn_format format;
    if (t.n_dim != 1 || t.dim[0] > FLOAT_MOST || s->gguf_type < 0 ||
        kn_format_from_gguf((uint32_t)s->gguf_type, &format) || kn_format_info(format)->block_values > 1)
        return refuse(m, KN_EUNSUPPORTED, "is no vector of F32, F16 or BF16");
    size_t n = (size_t)t.dim[0];
    float *x = moe_keep(m->d->f, n * sizeof *x);
    struct moe_layout *l = x ? new_layout(m, &t) : NULL;
    void *raw = l ? kn_alloc((size_t)t.bytes) : NULL;
    if (!raw)
        return l ? kn_fail(KN_ENOMEM, "%s: no memory for %zu values", m->d->f->name, n) : KN_ENOMEM;
    int err = kn_file_read(m->d->f->fd[t.file], m->d->f->path[t.file], raw, (size_t)t.bytes, t.offset);
    if (!err)
        kn_row_decode(format, raw, (int)n, x);
    kn_free(raw);
    if (err)
        return err;
    for (size_t i = 0; i < n; i++)
        x[i] = f(x[i]);
    m->d->f->header_bytes += t.bytes;
    l->data = x;
    t.gguf_type = (uint32_t)kn_format_info(KN_F32)->gguf_type;
    t.bytes = n * sizeof *x;
    return add(m, &t, name);
}

static float one_more(float x) { return 1 + x; }
static float decay_of(float x) { return (float)-kn_exp(x); }

/* Adds the decay of each value head, in the GGUF order of heads. */
static int add_decays(struct moe_hf_mapper *m, const char *name)
{
    const struct moe_folder *d = m->d;
    int n = d->n_value_head, err = add_read(m, name, decay_of);
    const struct moe_tensor *t = err ? NULL : moe_find_tensor(d->f, name);
    if (err || !d->family->tiled)
        return err;
    if (t->dim[0] != (uint64_t)n || !d->n_key_head || n % d->n_key_head)
        return refuse(m, KN_ECORRUPT, "is not of as many heads as config.json says");
    float *x = (float *)t->layout->data, *was = kn_alloc((size_t)n * sizeof *was);
    struct off_stride_permutation turn = { 0, sizeof *x, d->n_value_head, d->n_key_head };
    if (!was)
        return kn_fail(KN_ENOMEM, "%s: no memory for %d values", d->f->name, n);
    memcpy(was, x, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = was[off_stored_index(&turn, i)];
    kn_free(was);
    return 0;
}

/* Adds a list of tokens as the numbers that they have: stored are these less the places in the list. */
static int add_tokens(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = moe_as_stored(m->t);
    if (t.gguf_type != MOE_TENSOR_I64 || t.n_dim != 1 || t.dim[0] > FLOAT_MOST)
        return refuse(m, KN_EUNSUPPORTED, "is no list of I64");
    int64_t *token = moe_keep(m->d->f, (size_t)t.bytes);
    struct moe_layout *l = token ? new_layout(m, &t) : NULL;
    if (!l)
        return KN_ENOMEM;
    int err = kn_file_read(m->d->f->fd[t.file], m->d->f->path[t.file], token, (size_t)t.bytes, t.offset);
    for (uint64_t i = 0; !err && i < t.dim[0]; i++)
        token[i] = (int64_t)((uint64_t)token[i] + i);
    m->d->f->header_bytes += t.bytes;
    l->data = token;
    return err ? err : add(m, &t, name);
}

/* ---- stacks ----------------------------------------------------------------------------------------- */

/* Gives t a layout with positions for n matrices, and returns these, or NULL with *err set.  Callers have checked that
 * the files have n stored tensors or a stored stack of n matrices, so that n is no invented number. */
static struct moe_place *new_slabs(struct moe_hf_mapper *m, struct moe_tensor *t, size_t n, int *err)
{
    struct moe_layout *l = new_layout(m, t);
    struct moe_place *slab = l ? moe_keep(m->d->f, n * sizeof *slab) : NULL;
    *err = slab ? 0 : KN_ENOMEM;
    if (slab)
        l->slab = slab;
    return slab;
}

/* Adds part `part` of n, of the outputs, of a stack stored by input: [matrix][input][output]. */
static int add_by_input(struct moe_hf_mapper *m, const char *name, uint64_t part, uint64_t n)
{
    struct moe_tensor t = m->whole;
    enum kn_format f;
    bool is_float = !kn_format_from_gguf(t.gguf_type, &f) && (f == KN_F32 || f == KN_F16 || f == KN_BF16);
    uint64_t n_output = t.dim[0];
    if (!is_float || m->scales.bytes || t.n_dim != 3 || n_output % n)
        return refuse(m, KN_EUNSUPPORTED, "is no stack of matrices of F32, F16 or BF16, stored by input");
    struct moe_layout *l = new_layout(m, &t);
    if (!l)
        return KN_ENOMEM;
    l->n_output = n_output;
    l->output0 = part * (n_output / n);
    t.dim[0] = t.dim[1];
    t.dim[1] = n_output / n;
    t.bytes /= n;
    return add(m, &t, name);
}

/* Adds of each matrix of a stack its n_out rows from row0 on. */
static int add_stack(struct moe_hf_mapper *m, const char *name, uint64_t row0, uint64_t n_out)
{
    struct moe_tensor t = m->whole;
    uint64_t n = t.dim[2], all = t.dim[1], stored = m->t->bytes / n;
    bool shared = (uint64_t)m->scales.rows >= all; /* a scale for all rows */
    int err = 0;
    if (m->factor || (m->scales.bytes && !shared && n_out < all && n_out % (uint64_t)m->scales.rows))
        return refuse_cut(m);
    struct moe_place *slab = new_slabs(m, &t, (size_t)n, &err);
    struct off_scales *scales = slab && m->scales.bytes ? moe_keep(m->d->f, n * sizeof *scales) : NULL;
    if (err || (m->scales.bytes && !scales))
        return err ? err : KN_ENOMEM;
    ((struct moe_layout *)t.layout)->scales = scales;
    for (uint64_t e = 0; e < n; e++) {
        slab[e] = (struct moe_place){ t.file, t.offset + e * stored + stored / all * row0 };
        if (!scales)
            continue;
        scales[e] = m->scales;
        scales[e].offset += e * scale_bytes(m, all) + (shared ? 0 : scale_bytes(m, row0));
    }
    t.dim[1] = n_out;
    t.bytes = t.bytes / all * n_out;
    t.offset = slab[0].offset;
    return add(m, &t, name);
}

static int add_halves(struct moe_hf_mapper *m, const char *name, bool second)
{
    uint64_t n_out = m->whole.dim[1] / 2;
    if (m->t->n_dim != 3 || m->whole.dim[1] % 2 || m->whole.dim[2] != (uint64_t)m->d->n_expert)
        return refuse(m, KN_ECORRUPT, "is no stack of gate and up matrices of all experts");
    return add_stack(m, name, second ? n_out : 0, n_out);
}

static int add_whole_stack(struct moe_hf_mapper *m, const char *name)
{
    if (!m->scales.bytes)
        return add_one(m, name);
    if (m->t->n_dim != 3 || m->whole.dim[2] != (uint64_t)m->d->n_expert)
        return refuse(m, KN_ECORRUPT, "is no stack of matrices of all experts");
    return add_stack(m, name, 0, m->whole.dim[1]);
}

/* Adds n_out rows of a matrix, from row0 on. */
static int add_half_rows(struct moe_hf_mapper *m, const char *name, bool second)
{
    struct moe_tensor t = m->whole;
    uint64_t n_out = t.dim[1] / 2, row0 = second ? n_out : 0;
    if (t.n_dim != 2 || t.dim[1] % 2)
        return refuse(m, KN_ECORRUPT, "is no gate and up matrix of one size");
    bool shared = (uint64_t)m->scales.rows >= t.dim[1];
    if (m->scales.bytes && (m->scales.order != OFF_BY_ROW || (!shared && n_out % (uint64_t)m->scales.rows)))
        return refuse_cut(m);
    t.offset += m->t->bytes / t.dim[1] * row0;
    if (m->scales.bytes && !shared)
        m->scales.offset += scale_bytes(m, row0);
    t.dim[1] = n_out;
    t.bytes /= 2;
    return add_packed(m, &t, name, NULL);
}

static int add_every_other(struct moe_hf_mapper *m, const char *name, bool odd)
{
    struct moe_tensor t = m->whole;
    struct moe_layout *l = new_layout(m, &t);
    if (!l)
        return KN_ENOMEM;
    if (t.dim[0] % 2 || m->t->gguf_type < 0)
        return refuse(m, KN_ECORRUPT, "does not have rows of interleaved gate and up values");
    t.offset += odd ? t.bytes / (t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]) : 0;
    t.dim[0] /= 2;
    t.bytes /= 2;
    l->step = 2;
    return add(m, &t, name);
}

/* Adds every step-th row, from row `first` on, of gpt-oss's MXFP4 experts: codes are [expert][row][block][16 bytes];
 * the scales are [expert][row][block], in the tensor with "scales" in place of "blocks" in its name. */
static int add_blocks(struct moe_hf_mapper *m, const char *name, uint64_t step, uint64_t first)
{
    const struct moe_stored *t = m->t, *s = moe_stored_beside(m->d, m->t, sizeof "blocks" - 1, "scales");
    uint64_t n = t->dim[2];
    if (strcmp(t->dtype, "U8") || t->n_dim != 4 || t->dim[3] != 16 || t->dim[0] != (uint64_t)m->d->n_expert ||
        t->dim[1] % step || !s || strcmp(s->dtype, "U8") || s->n_dim != 3 || memcmp(s->dim, t->dim, 3 * sizeof n))
        return refuse(m, KN_ECORRUPT, "is no stack of MXFP4 blocks of all experts with a matching scales tensor");
    struct moe_tensor out = { .gguf_type = (uint32_t)kn_format_info(KN_MXFP4)->gguf_type,
                              .n_dim = 3,
                              .dim = { 32 * n, t->dim[1] / step, t->dim[0], 1 },
                              .file = t->file,
                              .offset = t->offset + first * n * 16,
                              .bytes = t->bytes / 16 / step * 17 };
    struct moe_layout *l = new_layout(m, &out);
    struct off_scales *at = l ? moe_keep(m->d->f, sizeof *at) : NULL;
    if (!at)
        return KN_ENOMEM;
    *at = (struct off_scales){ .file = s->file, .offset = s->offset + first * n, .bytes = 1, .rows = 1, .values = 32 };
    l->scales = at;
    l->step = (int)step;
    return moe_hf_put(m, &out, name);
}

/* ---- experts one by one ------------------------------------------------------------------------- */

static struct moe_tensor *find(const struct moe_hf_mapper *m, const char *name)
{
    const struct moe_tensor *t = moe_find_tensor(m->d->f, name);
    return t ? &m->d->f->tensors.item[t - m->d->f->tensors.item] : NULL;
}

/* The first expert of a stack allocates the positions of all; t: the stack, with dimensions of one expert. */
static int new_stack(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name, bool packed)
{
    size_t n = (size_t)m->d->n_expert, at = m->d->f->tensors.n;
    struct moe_layout *l = (struct moe_layout *)t->layout;
    int err;
    if (!kn_add(m->n_slab, n, &m->n_slab) || m->n_slab > m->d->n_stored)
        return refuse(m, KN_ECORRUPT, "is of one expert, but the files have too few tensors for all experts");
    bool inverse = l && l->inverse;
    struct moe_place *slab = new_slabs(m, t, n, &err);
    if (!slab)
        return err;
    for (size_t e = 0; e < n; e++)
        slab[e].file = -1;
    struct off_scales *scales = packed ? moe_keep(m->d->f, n * sizeof *scales) : NULL;
    if (packed && !scales)
        return KN_ENOMEM;
    l = (struct moe_layout *)t->layout;
    l->scales = scales;
    l->inverse = inverse;
    kn_assert(at < m->room);
    m->n_left[at] = n;
    return add(m, t, name);
}

/* Sets the position of expert e in the stack t. */
static int set_expert(struct moe_hf_mapper *m, struct moe_tensor *t, int e, const struct moe_tensor *one)
{
    struct moe_place *slab = (struct moe_place *)t->layout->slab;
    if (slab[e].file >= 0)
        return refuse(m, KN_ECORRUPT, "is present under another name too");
    slab[e] = (struct moe_place){ one->file, one->offset };
    if (e == 0) {
        t->file = one->file;
        t->offset = one->offset;
    }
    m->n_left[t - m->d->f->tensors.item]--;
    return 0;
}

/* Adds the scale for all of expert e to the stack's. */
static int add_expert_factor(struct moe_hf_mapper *m, const char *name, int e, bool first)
{
    char other[MOE_HF_SHOWN];
    int err = factor_name(m, name, other);
    if (err)
        return err;
    struct moe_tensor *t = find(m, other);
    if (!m->factor != !t && !first)
        return refuse(m, KN_ECORRUPT, "differs in shape or type from the layer's other experts");
    if (!m->factor)
        return 0;
    struct moe_tensor one = factor_tensor(m, (size_t)m->d->n_expert);
    if (!one.layout)
        return KN_ENOMEM;
    if (!first && one.layout->inverse != t->layout->inverse)
        return refuse(m, KN_ECORRUPT, "has another kind of scale than the layer's other experts");
    if (first) {
        if ((err = new_stack(m, &one, other, false)))
            return err;
        t = find(m, other);
    }
    return set_expert(m, t, e, &(struct moe_tensor){ .file = m->factor->file, .offset = m->factor->offset });
}

/* Makes t a stack of GPTQ matrices with listed inputs, if it is one of GPTQ: an expert whose inputs are in order has a list,
 * too. */
static void list_stack(struct moe_tensor *t)
{
    const struct moe_layout *l = t->layout;
    struct off_scales *s = l && l->slab ? (struct off_scales *)l->scales : NULL;
    const uint64_t n = t->dim[2];
    if (t->gguf_type == (uint32_t)kn_format_info(KN_INT4)->gguf_type)
        return; /* scales in BF16 */
    for (uint64_t e = 0; s && e < n; e++)
        if (l->slab[e].file >= 0 && (s[e].order != OFF_BY_INPUT || !s[e].list_offset))
            return; /* the caller finds that the types differ */
    for (uint64_t e = 0; s && e < n; e++)
        if (l->slab[e].file >= 0)
            s[e].order = OFF_BY_INPUT_LISTED;
    if (s) {
        t->gguf_type = (uint32_t)kn_format_info(KN_F32)->gguf_type;
        t->bytes = t->dim[0] * t->dim[1] * n * sizeof(float);
    }
}

static int add_expert(struct moe_hf_mapper *m, const char *name, int e)
{
    struct moe_tensor one = m->whole, *t = find(m, name);
    bool first = !t;
    if (e >= m->d->n_expert || m->t->n_dim != 2)
        return refuse(m, KN_ECORRUPT, "is no matrix, or its expert's number is too large");
    if (first) {
        struct moe_tensor stack = one;
        stack.n_dim = 3;
        stack.dim[2] = (uint64_t)m->d->n_expert;
        stack.bytes *= (uint64_t)m->d->n_expert;
        int err = new_stack(m, &stack, name, m->scales.bytes > 0);
        if (err)
            return err;
        t = find(m, name);
    }
    if (m->scales.order == OFF_BY_INPUT_LISTED)
        list_stack(t);
    if (!t->layout || !t->layout->slab || t->dim[0] != one.dim[0] || t->dim[1] != one.dim[1] ||
        t->gguf_type != one.gguf_type)
        return refuse(m, KN_ECORRUPT, "differs in shape or type from the layer's other experts");
    int err = set_expert(m, t, e, &one);
    if (!err && t->layout->scales)
        ((struct off_scales *)t->layout->scales)[e] = m->scales;
    return err ? err : add_expert_factor(m, name, e, first);
}

int moe_hf_check_stacks(const struct moe_hf_mapper *m)
{
    const struct moe_tensors *all = &m->d->f->tensors;
    for (size_t i = 0; i < all->n && i < m->room; i++) {
        char shown[MOE_HF_SHOWN];
        if (!m->n_left[i])
            continue;
        moe_string_show(all->item[i].name, shown, sizeof shown);
        return kn_fail(KN_ECORRUPT, "%s: %s: tensor %s lacks %zu of %d experts", m->d->f->name,
                       kn_error_text(KN_ECORRUPT), shown, m->n_left[i], m->d->n_expert);
    }
    return 0;
}

/* ---- all of them -------------------------------------------------------------------------------- */

/* Converts m->t as `how` says.  The zero points and the input order of a GPTQ tensor are checked first, which reads
 * other tensors.  If config.json states both, only expert 0 of each stack is checked: checking each expert would be
 * 100,000 reads for a large model. */
static int take(struct moe_hf_mapper *m, enum moe_hf_take how, const char *name, int expert)
{
    const struct moe_tensor *stack = expert >= 0 ? find(m, name) : NULL;
    int err = moe_hf_describe(m->d, m->t, &m->whole, &m->scales, &m->factor);
    bool by_input = m->scales.order == OFF_BY_INPUT, listed = false;
    if (!err && by_input && (expert < 1 || !m->d->gptq_plain))
        err = moe_hf_check_gptq(m->d, m->t, &listed);
    listed |= stack && stack->layout && stack->layout->scales &&
              stack->gguf_type == (uint32_t)kn_format_info(KN_F32)->gguf_type;
    if (!err && by_input && listed)
        err = moe_hf_describe_listed(m->d, m->t, &m->whole, &m->scales);
    if (err)
        return err;
    switch (how) {
    case ROTATED:
        return add_rotated(m, name);
    case ONE_EXPERT:
        return add_expert(m, name, expert);
    case GATES:
        return add_halves(m, name, false);
    case UPS:
        return add_halves(m, name, true);
    case STACK:
        return add_whole_stack(m, name);
    case FIRST_HALF:
        return add_half_rows(m, name, false);
    case SECOND_HALF:
        return add_half_rows(m, name, true);
    case EVEN:
        return add_every_other(m, name, false);
    case ODD:
        return add_every_other(m, name, true);
    case BLOCKS:
        return add_blocks(m, name, 1, 0);
    case EVEN_BLOCKS:
        return add_blocks(m, name, 2, 0);
    case ODD_BLOCKS:
        return add_blocks(m, name, 2, 1);
    case TRANSPOSED:
        return refuse(m, KN_EUNSUPPORTED,
                      "is stored by input; use a GGUF file of the model, or weights published by expert or as MXFP4");
    case BY_INPUT:
        return add_by_input(m, name, 0, 1);
    case BY_INPUT_FIRST:
        return add_by_input(m, name, 0, 2);
    case BY_INPUT_SECOND:
        return add_by_input(m, name, 1, 2);
    case MIX_ROWS:
    case VALUE_ROWS:
    case HEAD_ROWS:
    case VALUE_COLUMNS:
        return add_heads(m, name, how);
    case DECAYS:
        return add_decays(m, name);
    case TOKENS:
        return add_tokens(m, name);
    case NOTHING:
        return 0;
    default:
        return add_one(m, name);
    }
}

/* Some families store norm weights minus 1.  So 1 is added, except to the norm inside a delta net. */
int moe_hf_take_as(struct moe_hf_mapper *m, enum moe_hf_take how, const char *name, int expert)
{
    struct moe_string s = { name, strlen(name) };
    if (m->d->family->norms_less_1 && moe_string_ends(s, "norm.weight") && !moe_string_ends(s, ".ssm_norm.weight")) {
        int err = moe_hf_describe(m->d, m->t, &m->whole, &m->scales, &m->factor);
        return err ? err : add_read(m, name, one_more);
    }
    return take(m, how, name, expert);
}
