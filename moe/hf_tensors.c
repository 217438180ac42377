/* moe/hf_tensors.c - tensors of .safetensors files by the names, and in the shapes, that GGUF has for them.
 *
 * In comes what safetensors.c has listed; out come the tensors of a struct moe_file.  A table says what
 * becomes what.  Experts that lie one by one become one stack with a place for each; a stack that holds
 * gates and ups together becomes two; codes whose scales are a tensor of their own become blocks.  Nothing
 * moves: a tensor here is where its bytes are.  But for a few vectors that GGUF has another function of:
 * those are read and kept.
 *
 * What the table does not know keeps its name, and the model refuses it with that name.  Layers that guess
 * tokens ahead come behind the last: so they are numbered where they are like the others, and so they are
 * here where they lie apart, under "mtp.". */
#include "moe/folder.h"

#include <stdio.h>
#include <string.h>

#define SHOWN  128
#define LAYERS "layers."
#define FLOAT_MOST (1 << 24)                    /* values of a vector that is read */

/* What of a tensor becomes the tensor on the right. */
enum take {
    AS_IT_IS,
    ROTATED,                                    /* a matrix with rows of heads, which may lie in halves */
    ONE_EXPERT,                                 /* a matrix of a stack */
    STACK,                                      /* all of a stack */
    GATES, UPS,                                 /* the first, or the second, half of each of a stack's rows */
    EVEN, ODD,                                  /* of each expert's biases */
    BLOCKS, EVEN_BLOCKS, ODD_BLOCKS,            /* MXFP4, whose scales are a tensor of their own: all rows, or those */
    TRANSPOSED,                                 /* a stack with inputs first: gpt-oss before it is packed */
    MIX_ROWS, VALUE_ROWS, HEAD_ROWS,            /* with value heads in another order: behind keys, alone, a row each */
    VALUE_COLUMNS,                              /* the same of inputs */
    DECAYS,                                     /* of which the file has the logarithms */
    NOTHING
};

/* Within a layer; '#' is an expert's number. */
static const struct { const char *from, *to; enum take take; } parts[] = {
    { "input_layernorm.weight",            "attn_norm.weight", AS_IT_IS },
    { "self_attn.q_proj.weight",           "attn_q.weight", ROTATED },
    { "self_attn.k_proj.weight",           "attn_k.weight", ROTATED },
    { "self_attn.v_proj.weight",           "attn_v.weight", AS_IT_IS },
    { "self_attn.o_proj.weight",           "attn_output.weight", AS_IT_IS },
    { "self_attn.q_proj.bias",             "attn_q.bias", AS_IT_IS },
    { "self_attn.k_proj.bias",             "attn_k.bias", AS_IT_IS },
    { "self_attn.v_proj.bias",             "attn_v.bias", AS_IT_IS },
    { "self_attn.o_proj.bias",             "attn_output.bias", AS_IT_IS },
    { "self_attn.q_norm.weight",           "attn_q_norm.weight", AS_IT_IS },
    { "self_attn.k_norm.weight",           "attn_k_norm.weight", AS_IT_IS },
    { "self_attn.sinks",                   "attn_sinks.weight", AS_IT_IS },
    { "self_attn.rotary_emb.inv_freq",     NULL, NOTHING },
    { "self_attn.q_a_proj.weight",         "attn_q_a.weight", AS_IT_IS },
    { "self_attn.q_a_layernorm.weight",    "attn_q_a_norm.weight", AS_IT_IS },
    { "self_attn.q_b_proj.weight",         "attn_q_b.weight", AS_IT_IS },
    { "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", AS_IT_IS },
    { "self_attn.kv_a_layernorm.weight",   "attn_kv_a_norm.weight", AS_IT_IS },
    { "self_attn.kv_b_proj.weight",        "attn_kv_b.weight", AS_IT_IS },
    { "linear_attn.in_proj_qkvz.weight",   "ssm_in.weight", AS_IT_IS },
    { "linear_attn.in_proj_ba.weight",     "ssm_ba.weight", AS_IT_IS },
    { "linear_attn.in_proj_qkv.weight",    "attn_qkv.weight", MIX_ROWS },
    { "linear_attn.in_proj_z.weight",      "attn_gate.weight", VALUE_ROWS },
    { "linear_attn.in_proj_b.weight",      "ssm_beta.weight", HEAD_ROWS },
    { "linear_attn.in_proj_a.weight",      "ssm_alpha.weight", HEAD_ROWS },
    { "linear_attn.conv1d.weight",         "ssm_conv1d.weight", MIX_ROWS },
    { "linear_attn.dt_bias",               "ssm_dt.bias", HEAD_ROWS },
    { "linear_attn.A_log",                 "ssm_a", DECAYS },
    { "linear_attn.norm.weight",           "ssm_norm.weight", AS_IT_IS },
    { "linear_attn.out_proj.weight",       "ssm_out.weight", VALUE_COLUMNS },
    { "post_attention_layernorm.weight",   "ffn_norm.weight", AS_IT_IS },
    { "mlp.gate_proj.weight",              "ffn_gate.weight", AS_IT_IS },
    { "mlp.up_proj.weight",                "ffn_up.weight", AS_IT_IS },
    { "mlp.down_proj.weight",              "ffn_down.weight", AS_IT_IS },
    { "mlp.gate.weight",                   "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.router.weight",                 "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.router.bias",                   "ffn_gate_inp.bias", AS_IT_IS },
    { "block_sparse_moe.gate.weight",      "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.gate.e_score_correction_bias",  "exp_probs_b.bias", AS_IT_IS },
    { "mlp.e_score_correction_bias",       "exp_probs_b.bias", AS_IT_IS },
    { "block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", AS_IT_IS },
    { "mlp.experts.#.gate_proj.weight",    "ffn_gate_exps.weight", ONE_EXPERT },
    { "mlp.experts.#.up_proj.weight",      "ffn_up_exps.weight", ONE_EXPERT },
    { "mlp.experts.#.down_proj.weight",    "ffn_down_exps.weight", ONE_EXPERT },
    { "block_sparse_moe.experts.#.w1.weight", "ffn_gate_exps.weight", ONE_EXPERT },
    { "block_sparse_moe.experts.#.w3.weight", "ffn_up_exps.weight", ONE_EXPERT },
    { "block_sparse_moe.experts.#.w2.weight", "ffn_down_exps.weight", ONE_EXPERT },
    { "mlp.experts.gate_up_proj",          "ffn_gate_exps.weight", GATES },
    { "mlp.experts.gate_up_proj",          "ffn_up_exps.weight", UPS },
    { "mlp.experts.down_proj",             "ffn_down_exps.weight", STACK },
    { "mlp.experts.gate_up_proj_blocks",   "ffn_gate_exps.weight", EVEN_BLOCKS },
    { "mlp.experts.gate_up_proj_blocks",   "ffn_up_exps.weight", ODD_BLOCKS },
    { "mlp.experts.down_proj_blocks",      "ffn_down_exps.weight", BLOCKS },
    { "mlp.experts.gate_up_proj_scales",   NULL, NOTHING },
    { "mlp.experts.down_proj_scales",      NULL, NOTHING },
    { "mlp.experts.gate_up_proj_bias",     "ffn_gate_exps.bias", EVEN },
    { "mlp.experts.gate_up_proj_bias",     "ffn_up_exps.bias", ODD },
    { "mlp.experts.down_proj_bias",        "ffn_down_exps.bias", AS_IT_IS },
    { "mlp.shared_expert_gate.weight",     "ffn_gate_inp_shexp.weight", AS_IT_IS },
    { "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", AS_IT_IS },
    { "mlp.shared_expert.up_proj.weight",  "ffn_up_shexp.weight", AS_IT_IS },
    { "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", AS_IT_IS },
    { "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", AS_IT_IS },
    { "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "eh_proj.weight",                    "nextn.eh_proj.weight", AS_IT_IS },
    { "enorm.weight",                      "nextn.enorm.weight", AS_IT_IS },
    { "hnorm.weight",                      "nextn.hnorm.weight", AS_IT_IS },
    { "shared_head.norm.weight",           "nextn.shared_head_norm.weight", AS_IT_IS },
    { "shared_head.head.weight",           NULL, NOTHING },     /* the model's once more, as the next */
    { "embed_tokens.weight",               NULL, NOTHING },
};
#define N_PART (sizeof parts / sizeof *parts)

static const struct { const char *from, *to; } ends[] = {
    { "embed_tokens.weight", "token_embd.weight" },
    { "norm.weight", "output_norm.weight" },
};

/* The same of the first layer that guesses ahead, where it lies apart. */
static const char apart[] = "mtp.";
static const struct { const char *from, *to; } apart_ends[] = {
    { "fc.weight", "nextn.eh_proj.weight" },
    { "pre_fc_norm_embedding.weight", "nextn.enorm.weight" },
    { "pre_fc_norm_hidden.weight", "nextn.hnorm.weight" },
    { "norm.weight", "nextn.shared_head_norm.weight" },
};

/* Beside a tensor that is packed, and read with it. */
static const struct { const char *end, *of; } beside[] = {
    { ".weight_scale_inv", ".weight" }, { ".weight_scale", ".weight" }, { ".weight_scale", ".weight" MOE_HF_PACKED },
    { ".weight_shape", ".weight" }, { ".weight_shape", ".weight" MOE_HF_PACKED },
    { ".scales", "." MOE_HF_GPTQ }, { ".qzeros", "." MOE_HF_GPTQ }, { ".g_idx", "." MOE_HF_GPTQ },
};

/* A name taken apart: layers.N.rest, with the expert's number out of the rest, which begins at `at`. */
struct name { int layer, expert; size_t at; char rest[SHOWN]; };

/* What is before the layers' and the ends' names. */
static const char *root_of(const struct moe_folder *d)
{
    return d->family->nested ? "model.language_model." : "model.";
}

struct mapper {
    struct moe_folder *d;
    const struct moe_stored *t;                 /* the one at hand */
    struct moe_tensor whole;                    /* as it is meant: with its scales, if it has any */
    struct off_scales scales;                   /* bytes 0: none */
    size_t n_slab, *n_left;                     /* places handed out; [room] of a stack, still to come */
    int n_aside;                                /* tensors of what is no part of the language model */
    int n_ahead;                                /* layers that guess ahead */
    size_t room;                                /* tensors that there can be at most */
};

static int refuse(const struct mapper *m, int code, const char *what)
{
    return moe_refuse_stored(m->d, m->t, code, what);
}

static const struct moe_stored *find_beside(const struct mapper *m, size_t less, const char *more)
{
    return moe_stored_beside(m->d, m->t, less, more);
}

/* Digits at s, at most nine of them: how many; 0 when what follows them is not a dot. */
static size_t take_number(const char *s, size_t n, int *out)
{
    size_t i = 0;
    int x = 0;
    for (; i < n && i < 9 && s[i] >= '0' && s[i] <= '9'; i++)
        x = 10 * x + (s[i] - '0');
    *out = x;
    return i < n && s[i] == '.' ? i : 0;
}

static bool begins(struct moe_string s, const char *with)
{
    return s.n >= strlen(with) && !memcmp(s.data, with, strlen(with));
}

/* s: without the root. */
static bool take_apart(struct moe_string s, struct name *out)
{
    static const char experts[] = ".experts.";
    size_t at = sizeof LAYERS - 1, n;
    *out = (struct name){ .expert = -1 };
    if (!begins(s, LAYERS) || !(n = take_number(s.data + at, s.n - at, &out->layer)))
        return false;
    out->at = at += n + 1;
    const char *rest = s.data + at, *e = memmem(rest, s.n - at, experts, sizeof experts - 1);
    size_t left = s.n - at, head = e ? (size_t)(e - rest) + sizeof experts - 1 : 0;
    n = e ? take_number(rest + head, left - head, &out->expert) : 0;
    if (left >= sizeof out->rest)
        return false;
    if (!n) {
        out->expert = -1;
        memcpy(out->rest, rest, left);
        return true;
    }
    memcpy(out->rest, rest, head);
    out->rest[head] = '#';
    memcpy(out->rest + head + 1, rest + head + n, left - head - n);
    return true;
}

/* ---- one tensor --------------------------------------------------------------------------------- */

static int put(struct mapper *m, struct moe_tensor *t, const char *name)
{
    int err = moe_keep_string(m->d->f, name, strlen(name), &t->name);
    if (!err && (err = moe_add_tensor(m->d->f, t)) > 0)
        err = refuse(m, KN_ECORRUPT, "is there under another name too");
    return err;
}

static struct moe_layout *new_layout(struct mapper *m, struct moe_tensor *t)
{
    struct moe_layout *l = moe_keep(m->d->f, sizeof *l);
    if (l)
        *l = (struct moe_layout){ 0 };
    t->layout = l;
    return l;
}

static int add(struct mapper *m, struct moe_tensor *t, const char *name)
{
    if ((int32_t)t->gguf_type < 0) {
        char what[64];
        snprintf(what, sizeof what, "has values of type %s", m->t->dtype);
        return refuse(m, KN_EUNSUPPORTED, what);
    }
    return put(m, t, name);
}

/* One matrix or vector, alone. */
static int add_one(struct mapper *m, const char *name)
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

/* For those that move what one tensor holds. */
static int refuse_scales(const struct mapper *m)
{
    return m->scales.bytes ? refuse(m, KN_EUNSUPPORTED, "is packed where parts of it have to be put in another order") : 0;
}

/* ---- units in another order ----------------------------------------------------------------------- */

static int add_turned(struct mapper *m, struct moe_tensor *t, const char *name, struct off_turn turn)
{
    struct moe_layout *l = new_layout(m, t);
    if (!l)
        return KN_ENOMEM;
    l->turn = turn;
    return add(m, t, name);
}

/* Rows of each head: how many, from the layer's whole matrix. */
static int add_rotated(struct mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    int turn = m->d->d_head;
    if (!m->d->family->turned || t.n_dim != 2)
        return add_one(m, name);
    int err = refuse_scales(m);
    if (err)
        return err;
    if (turn < 2 || turn % 2 || t.dim[1] % (uint64_t)turn)
        return refuse(m, KN_ECORRUPT, "has rows that are no whole heads");
    return add_turned(m, &t, name, (struct off_turn){ .bytes = (size_t)(t.bytes / t.dim[1]), .n = turn, .by = 2 });
}

/* Value heads, which lie by their key heads, and are meant with those of all key heads side by side. */
static struct off_turn head_turn(const struct moe_folder *d, uint64_t first, uint64_t bytes)
{
    return (struct off_turn){ first, (size_t)bytes, d->n_value_head, d->n_key_head };
}

static int add_heads(struct mapper *m, const char *name, enum take how)
{
    const struct moe_folder *d = m->d;
    struct moe_tensor t = m->whole;
    uint64_t n_value = (uint64_t)d->n_value_head, d_value = (uint64_t)d->d_state_value, n_in = t.dim[0];
    uint64_t n_key = how == MIX_ROWS ? 2 * (uint64_t)d->n_key_head * (uint64_t)d->d_state_key : 0;
    if (t.n_dim == 3 && t.dim[1] == 1) {        /* a convolution's taps: one channel in, one out */
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

/* ---- vectors that are read -------------------------------------------------------------------------- */

/* f of each value, as F32, in the file's order. */
static int add_read(struct mapper *m, const char *name, float (*f)(float x))
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

/* Those of value heads in their order. */
static int add_decays(struct mapper *m, const char *name)
{
    const struct moe_folder *d = m->d;
    int n = d->n_value_head, err = add_read(m, name, decay_of);
    const struct moe_tensor *t = err ? NULL : moe_find_tensor(d->f, name);
    if (err || !d->family->tiled)
        return err;
    if (t->dim[0] != (uint64_t)n || !d->n_key_head || n % d->n_key_head)
        return refuse(m, KN_ECORRUPT, "is not of as many heads as config.json says");
    float *x = (float *)t->layout->data, *was = kn_alloc((size_t)n * sizeof *was);
    struct off_turn turn = head_turn(d, 0, sizeof *x);
    if (!was)
        return kn_fail(KN_ENOMEM, "%s: no memory for %d values", d->f->name, n);
    memcpy(was, x, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = was[off_turned(&turn, i)];
    kn_free(was);
    return 0;
}

/* ---- stacks ----------------------------------------------------------------------------------------- */

/* A stack's places.  There cannot be more of them than tensors that say where one is, or shapes that do. */
static struct moe_place *new_slabs(struct mapper *m, struct moe_tensor *t, size_t n, int *err)
{
    struct moe_layout *l = new_layout(m, t);
    struct moe_place *slab = l ? moe_keep(m->d->f, n * sizeof *slab) : NULL;
    *err = slab ? 0 : KN_ENOMEM;
    if (slab)
        l->slab = slab;
    return slab;
}

static int add_halves(struct mapper *m, const char *name, bool second)
{
    struct moe_tensor t = m->whole;
    uint64_t n = t.dim[2];
    int err = refuse_scales(m);
    if (err)
        return err;
    if (m->t->n_dim != 3 || t.dim[1] % 2 || n != (uint64_t)m->d->n_expert)
        return refuse(m, KN_ECORRUPT, "is no stack of gates and ups, one for each expert");
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

static int add_every_other(struct mapper *m, const char *name, bool odd)
{
    struct moe_tensor t = m->whole;
    struct moe_layout *l = new_layout(m, &t);
    if (!l)
        return KN_ENOMEM;
    if (t.dim[0] % 2 || m->t->gguf_type < 0)
        return refuse(m, KN_ECORRUPT, "is no row of gates and ups in turns");
    t.offset += odd ? t.bytes / (t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]) : 0;
    t.dim[0] /= 2;
    t.bytes /= 2;
    l->step = 2;
    return add(m, &t, name);
}

/* Blocks of 16 bytes [expert][row][block][16], their scales [expert][row][block] beside them. */
static int add_blocks(struct mapper *m, const char *name, uint64_t step, uint64_t first)
{
    const struct moe_stored *t = m->t, *s = find_beside(m, sizeof "blocks" - 1, "scales");
    uint64_t n = t->dim[2];
    if (strcmp(t->dtype, "U8") || t->n_dim != 4 || t->dim[3] != 16 || t->dim[0] != (uint64_t)m->d->n_expert ||
        t->dim[1] % step || !s || strcmp(s->dtype, "U8") || s->n_dim != 3 || memcmp(s->dim, t->dim, 3 * sizeof n))
        return refuse(m, KN_ECORRUPT, "is no stack of blocks of 4 bits, one for each expert, with scales beside it");
    struct moe_tensor out = { .gguf_type = (uint32_t)kn_format_info(KN_MXFP4)->gguf_type, .n_dim = 3,
                              .dim = { 32 * n, t->dim[1] / step, t->dim[0], 1 }, .file = t->file,
                              .offset = t->offset + first * n * 16, .bytes = t->bytes / 16 / step * 17 };
    struct moe_layout *l = new_layout(m, &out);
    struct off_scales *at = l ? moe_keep(m->d->f, sizeof *at) : NULL;
    if (!at)
        return KN_ENOMEM;
    *at = (struct off_scales){ s->file, s->offset + first * n, 1, 1, 32, false };
    l->scales = at;
    l->step = (int)step;
    return put(m, &out, name);
}

/* ---- experts one by one ------------------------------------------------------------------------- */

static struct moe_tensor *find(const struct mapper *m, const char *name)
{
    const struct moe_tensor *t = moe_find_tensor(m->d->f, name);
    return t ? &m->d->f->tensors.item[t - m->d->f->tensors.item] : NULL;
}

/* The first of a stack makes room for all. */
static int new_stack(struct mapper *m, const char *name)
{
    struct moe_tensor t = m->whole;
    size_t n = (size_t)m->d->n_expert, at = m->d->f->tensors.n;
    int err;
    if (!kn_add(m->n_slab, n, &m->n_slab) || m->n_slab > m->d->n_stored)
        return refuse(m, KN_ECORRUPT, "has not as many others beside it as there are experts");
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

static int add_expert(struct mapper *m, const char *name, int e)
{
    struct moe_tensor one = m->whole, *t = find(m, name);
    if (e >= m->d->n_expert || m->t->n_dim != 2)
        return refuse(m, KN_ECORRUPT, "is no matrix of one of the experts");
    if (!t) {
        int err = new_stack(m, name);
        if (err)
            return err;
        t = find(m, name);
    }
    struct moe_place *slab = (struct moe_place *)(t->layout ? t->layout->slab : NULL);
    if (!slab || t->dim[0] != one.dim[0] || t->dim[1] != one.dim[1] || t->gguf_type != one.gguf_type)
        return refuse(m, KN_ECORRUPT, "is unlike those of the layer's other experts");
    if (slab[e].file >= 0)
        return refuse(m, KN_ECORRUPT, "is there under another name too");
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

static int check_stacks(const struct mapper *m)
{
    const struct moe_tensors *all = &m->d->f->tensors;
    for (size_t i = 0; i < all->n && i < m->room; i++) {
        char shown[SHOWN];
        if (!m->n_left[i])
            continue;
        moe_string_show(all->item[i].name, shown, sizeof shown);
        return kn_fail(KN_ECORRUPT, "%s: %s: of %s %zu of %d experts are missing", m->d->f->name,
                       kn_error_text(KN_ECORRUPT), shown, m->n_left[i], m->d->n_expert);
    }
    return 0;
}

/* ---- all of them -------------------------------------------------------------------------------- */

/* Where config.json says that all are as they have to be, one of a stack is looked at for all of it: of a large model
 * it would be 100,000 reads to look at each. */
static int take(struct mapper *m, enum take how, const char *name, int expert)
{
    int err = moe_hf_describe(m->d, m->t, &m->whole, &m->scales);
    if (!err && m->scales.by_input && (expert < 1 || !m->d->gptq_plain))
        err = moe_hf_check_gptq(m->d, m->t);
    if (err)
        return err;
    switch (how) {
    case ROTATED:    return add_rotated(m, name);
    case ONE_EXPERT: return add_expert(m, name, expert);
    case GATES:      return add_halves(m, name, false);
    case UPS:        return add_halves(m, name, true);
    case EVEN:       return add_every_other(m, name, false);
    case ODD:        return add_every_other(m, name, true);
    case BLOCKS:     return add_blocks(m, name, 1, 0);
    case EVEN_BLOCKS: return add_blocks(m, name, 2, 0);
    case ODD_BLOCKS: return add_blocks(m, name, 2, 1);
    case TRANSPOSED: return refuse(m, KN_EUNSUPPORTED, "lies with its inputs first; MXFP4, as published, is read");
    case MIX_ROWS: case VALUE_ROWS: case HEAD_ROWS: case VALUE_COLUMNS:
        return add_heads(m, name, how);
    case DECAYS:     return add_decays(m, name);
    case NOTHING:    return 0;
    default:         return add_one(m, name);
    }
}

/* Norms' weights, but for a delta net's own, lie one below themselves in its families. */
static int take_plain(struct mapper *m, enum take how, const char *name, int expert)
{
    struct moe_string s = { name, strlen(name) };
    if (m->d->family->delta && moe_string_ends(s, "norm.weight") && !moe_string_ends(s, ".ssm_norm.weight")) {
        int err = moe_hf_describe(m->d, m->t, &m->whole, &m->scales);
        return err ? err : add_read(m, name, one_more);
    }
    return take(m, how, name, expert);
}

static int map_layer(struct mapper *m, const struct name *n)
{
    bool known = false;
    for (size_t i = 0; i < N_PART; i++) {
        char name[SHOWN];
        if (strcmp(n->rest, parts[i].from))
            continue;
        known = true;
        const char *to = parts[i].to;
        if (to && m->d->family->post_norm && !strcmp(to, "ffn_norm.weight"))
            to = "post_attention_norm.weight";
        snprintf(name, sizeof name, "blk.%d.%s", n->layer, to ? to : "");
        bool other_way = m->d->family->transposed && (parts[i].take == GATES || parts[i].take == STACK);
        int err = take_plain(m, other_way ? TRANSPOSED : parts[i].take, name, n->expert);
        if (err)
            return err;
    }
    return known ? 0 : 1;
}

/* Under its own name; or, of a layer that guesses ahead, under `head` and what is behind `skip` bytes of it. */
static int map_unknown(struct mapper *m, const char *head, size_t skip)
{
    struct moe_tensor t = moe_as_stored(m->t);
    char name[4 * SHOWN];
    size_t n = (size_t)snprintf(name, sizeof name, "%s", head);
    moe_string_show((struct moe_string){ m->t->name.data + skip, m->t->name.n - skip }, name + n, sizeof name - n);
    if (m->t->gguf_type < 0)
        t.gguf_type = UINT32_MAX;               /* nobody will read it */
    return put(m, &t, name);
}

/* Scales, and shapes, of a tensor that is there. */
static bool is_beside(const struct mapper *m)
{
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (moe_string_ends(m->t->name, beside[i].end) && find_beside(m, strlen(beside[i].end), beside[i].of))
            return true;
    return false;
}

/* Some programs give each matrix that they pack a bias of zeros, where the model has none. */
static bool is_extra_bias(const struct mapper *m, const struct name *n)
{
    static const char bias[] = ".bias", output[] = "self_attn.o_proj.bias";
    if (!moe_string_ends(m->t->name, bias) || !find_beside(m, sizeof bias - 1, "." MOE_HF_GPTQ))
        return false;
    bool known = false;
    for (size_t i = 0; i < N_PART; i++)
        known |= !strcmp(n->rest, parts[i].from);
    return !known || !strcmp(n->rest, output);
}

static int map_end(struct mapper *m, struct moe_string s)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (moe_string_is(s, ends[i].from))
            return take_plain(m, AS_IT_IS, ends[i].to, -1);
    return map_unknown(m, "", 0);
}

static int map_apart_end(struct mapper *m, struct moe_string s)
{
    char name[SHOWN];
    for (size_t i = 0; i < sizeof apart_ends / sizeof *apart_ends; i++)
        if (moe_string_is(s, apart_ends[i].from)) {
            snprintf(name, sizeof name, "blk.%d.%s", m->d->n_layer, apart_ends[i].to);
            return take_plain(m, AS_IT_IS, name, -1);
        }
    snprintf(name, sizeof name, "blk.%d.nextn.", m->d->n_layer);
    return map_unknown(m, name, sizeof apart - 1);
}

static int map_layer_or_unknown(struct mapper *m, struct name *n, size_t skip)
{
    char head[32] = "";
    size_t end = strlen(n->rest);
    bool is_ahead = n->layer >= m->d->n_layer;
    if (end > sizeof MOE_HF_PACKED && !strcmp(n->rest + end - (sizeof MOE_HF_PACKED - 1), MOE_HF_PACKED))
        n->rest[end - (sizeof MOE_HF_PACKED - 1)] = '\0';
    if (end > sizeof MOE_HF_GPTQ && !strcmp(n->rest + end - sizeof MOE_HF_GPTQ, "." MOE_HF_GPTQ))
        strcpy(n->rest + end - (sizeof MOE_HF_GPTQ - 1), "weight");
    if (is_extra_bias(m, n))
        return n->expert > 0 && m->d->gptq_plain
               ? 0 : moe_hf_check_zeros(m->d, m->t, "is a bias other than zero, which its model has no place for");
    int err = is_beside(m) ? 0 : map_layer(m, n);
    if (err <= 0)
        return err;
    if (is_ahead)
        snprintf(head, sizeof head, "blk.%d.", n->layer);
    return map_unknown(m, head, is_ahead ? skip + n->at : 0);
}

static int map(struct mapper *m)
{
    struct name n;
    struct moe_string s = m->t->name;
    if (moe_string_is(s, "lm_head.weight"))
        return m->d->tied ? 0 : take(m, AS_IT_IS, "output.weight", -1);
    if (m->d->family->delta && begins(s, "model.visual.")) {
        m->n_aside++;
        return 0;
    }
    bool is_apart = m->d->family->delta && begins(s, apart);
    const char *root = is_apart ? apart : root_of(m->d);
    if (!begins(s, root))
        return map_unknown(m, "", 0);
    s = (struct moe_string){ s.data + strlen(root), s.n - strlen(root) };
    if (!take_apart(s, &n))
        return is_apart ? map_apart_end(m, s) : map_end(m, s);
    if (is_apart) {
        m->n_ahead = n.layer < m->n_ahead ? m->n_ahead : n.layer + 1;
        n.layer += m->d->n_layer;
    }
    return map_layer_or_unknown(m, &n, strlen(root));
}

/* Layers that lie apart are counted: not every config.json says that there are any. */
static int say_layers(struct mapper *m)
{
    struct moe_folder *d = m->d;
    int n_ahead = d->family->delta ? m->n_ahead : d->n_ahead;
    char key[128];
    snprintf(key, sizeof key, "%s.block_count", d->family->arch);
    moe_put_u32(d, key, (uint32_t)(d->n_layer + n_ahead));
    snprintf(key, sizeof key, "%s.nextn_predict_layers", d->family->arch);
    if (n_ahead)
        moe_put_u32(d, key, (uint32_t)n_ahead);
    return d->err;
}

int moe_hf_tensors(struct moe_folder *d)
{
    struct mapper m = { .d = d, .room = d->f->tensors.n + 2 * d->n_stored + 1 };    /* gates and ups: two of one */
    m.n_left = kn_calloc(m.room, sizeof *m.n_left);
    int err = m.n_left ? 0 : kn_fail(KN_ENOMEM, "%s: no memory for %zu tensors", d->f->name, d->n_stored);
    for (size_t i = 0; i < d->n_stored && !err; i++) {
        m.t = &d->stored[i];
        err = map(&m);
    }
    if (!err)
        err = check_stacks(&m);
    if (!err && m.n_aside)
        kn_say(KN_LOG_INFO, "%s: %d tensors of what sees pictures are left in the files", d->f->name, m.n_aside);
    if (!err && !d->tied && !moe_find_tensor(d->f, "output.weight"))
        err = kn_fail(KN_ECORRUPT, "%s: %s: tensor lm_head.weight is missing", d->f->name, kn_error_text(KN_ECORRUPT));
    kn_free(m.n_left);
    return err ? err : say_layers(&m);
}
