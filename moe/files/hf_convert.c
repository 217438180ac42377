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

/* Adds the whole tensor, with its scales if they are stored apart. */
static int add_one(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    if (m->scales.bytes) {
        struct moe_layout *l = new_layout(m, &t);
        struct off_scales *s = l ? moe_keep(m->d->f, sizeof *s) : NULL;
        if (!s)
            return KN_ENOMEM;
        *s = m->scales;
        l->scales = s;
    }
    return add(m, &t, name);
}

/* Fails if the current tensor has its scales in another tensor.  Conversions that reorder or split a tensor call it. */
static int refuse_scales(const struct moe_hf_mapper *m)
{
    return m->scales.bytes ? refuse(m, KN_EUNSUPPORTED, "is packed, but its rows or columns must be reordered") : 0;
}

/* ---- reordered rows and elements ------------------------------------------------------------------ */

static int add_turned(struct moe_hf_mapper *m, struct moe_tensor *t, const char *name,
                      struct off_stride_permutation turn)
{
    struct moe_layout *l = new_layout(m, t);
    if (!l)
        return KN_ENOMEM;
    l->turn = turn;
    return add(m, t, name);
}

/* Adds a Q or K matrix.  If a head's rows are stored in halves (family->turned), they are reordered to GGUF's pairs. */
static int add_rotated(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    int turn = m->d->d_head;
    if (!m->d->family->turned || t.n_dim != 2)
        return add_one(m, name);
    int err = refuse_scales(m);
    if (err)
        return err;
    if (turn < 2 || turn % 2 || t.dim[1] % (uint64_t)turn)
        return refuse(m, KN_ECORRUPT, "does not have a whole number of heads");
    return add_turned(m, &t, name,
                      (struct off_stride_permutation){ .bytes = (size_t)(t.bytes / t.dim[1]), .n = turn, .by = 2 });
}

/* The stored order of value heads: grouped by key head.  In GGUF value head i has key head i mod n_key_head.  bytes: of
 * one head's rows or columns; first: offset of the first head. */
static struct off_stride_permutation head_turn(const struct moe_folder *d, uint64_t first, uint64_t bytes)
{
    return (struct off_stride_permutation){ first, (size_t)bytes, d->n_value_head, d->n_key_head };
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
    uint64_t row = t.bytes / n_row;
    int err = refuse_scales(m);
    if (err || how == VALUE_COLUMNS)
        return err ? err : add_turned(m, &t, name, head_turn(d, 0, row / n_value));
    return add_turned(m, &t, name, head_turn(d, n_key * row, each * row));
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
    struct off_stride_permutation turn = head_turn(d, 0, sizeof *x);
    if (!was)
        return kn_fail(KN_ENOMEM, "%s: no memory for %d values", d->f->name, n);
    memcpy(was, x, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = was[off_stored_index(&turn, i)];
    kn_free(was);
    return 0;
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

static int add_halves(struct moe_hf_mapper *m, const char *name, bool second)
{
    struct moe_tensor t = m->whole;
    uint64_t n = t.dim[2];
    int err = refuse_scales(m);
    if (err)
        return err;
    if (m->t->n_dim != 3 || t.dim[1] % 2 || n != (uint64_t)m->d->n_expert)
        return refuse(m, KN_ECORRUPT, "is no stack of gate and up matrices of all experts");
    struct moe_place *slab = new_slabs(m, &t, (size_t)n, &err);
    if (!slab)
        return err;
    t.dim[1] /= 2;
    t.bytes /= 2;
    for (uint64_t e = 0; e < n; e++)
        slab[e] = (struct moe_place){ t.file, t.offset + (2 * e + second) * (t.bytes / n) };
    t.offset = slab[0].offset;
    return add(m, &t, name);
}

static int add_half_rows(struct moe_hf_mapper *m, const char *name, bool second)
{
    struct moe_tensor t = m->whole;
    int err = refuse_scales(m);
    if (err)
        return err;
    if (t.n_dim != 2 || t.dim[1] % 2)
        return refuse(m, KN_ECORRUPT, "is no gate and up matrix of one size");
    t.dim[1] /= 2;
    t.bytes /= 2;
    t.offset += second ? t.bytes : 0;
    return add(m, &t, name);
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
    *at = (struct off_scales){ s->file, s->offset + first * n, 1, 1, 32, false };
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

/* The first expert of a stack allocates the positions of all. */
static int new_stack(struct moe_hf_mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    size_t n = (size_t)m->d->n_expert, at = m->d->f->tensors.n;
    int err;
    if (!kn_add(m->n_slab, n, &m->n_slab) || m->n_slab > m->d->n_stored)
        return refuse(m, KN_ECORRUPT, "is of one expert, but the files have too few tensors for all experts");
    struct moe_place *slab = new_slabs(m, &t, n, &err);
    if (!slab)
        return err;
    for (size_t e = 0; e < n; e++)
        slab[e].file = -1;
    struct off_scales *scales = m->scales.bytes ? moe_keep(m->d->f, n * sizeof *scales) : NULL;
    if (m->scales.bytes && !scales)
        return KN_ENOMEM;
    ((struct moe_layout *)t.layout)->scales = scales;
    t.n_dim = 3;
    t.dim[2] = n;
    t.bytes *= n;
    kn_assert(at < m->room);
    m->n_left[at] = n;
    return add(m, &t, name);
}

static int add_expert(struct moe_hf_mapper *m, const char *name, int e)
{
    struct moe_tensor one = m->whole, *t = find(m, name);
    if (e >= m->d->n_expert || m->t->n_dim != 2)
        return refuse(m, KN_ECORRUPT, "is no matrix, or its expert's number is too large");
    if (!t) {
        int err = new_stack(m, name);
        if (err)
            return err;
        t = find(m, name);
    }
    struct moe_place *slab = (struct moe_place *)(t->layout ? t->layout->slab : NULL);
    if (!slab || t->dim[0] != one.dim[0] || t->dim[1] != one.dim[1] || t->gguf_type != one.gguf_type)
        return refuse(m, KN_ECORRUPT, "differs in shape or type from the layer's other experts");
    if (slab[e].file >= 0)
        return refuse(m, KN_ECORRUPT, "is present under another name too");
    slab[e] = (struct moe_place){ one.file, one.offset };
    if (t->layout->scales)
        ((struct off_scales *)t->layout->scales)[e] = m->scales;
    if (e == 0) {
        t->file = one.file;
        t->offset = one.offset;
    }
    m->n_left[t - m->d->f->tensors.item]--;
    return 0;
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
    int err = moe_hf_describe(m->d, m->t, &m->whole, &m->scales);
    if (!err && m->scales.by_input && (expert < 1 || !m->d->gptq_plain))
        err = moe_hf_check_gptq(m->d, m->t);
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
        return refuse(
            m, KN_EUNSUPPORTED,
            "is stored input-major; use a GGUF file of the model, or weights published by expert or as MXFP4");
    case MIX_ROWS:
    case VALUE_ROWS:
    case HEAD_ROWS:
    case VALUE_COLUMNS:
        return add_heads(m, name, how);
    case DECAYS:
        return add_decays(m, name);
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
        int err = moe_hf_describe(m->d, m->t, &m->whole, &m->scales);
        return err ? err : add_read(m, name, one_more);
    }
    return take(m, how, name, expert);
}
