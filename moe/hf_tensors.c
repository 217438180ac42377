/* moe/hf_tensors.c - tensors of .safetensors files by the names, and in the shapes, that GGUF has for them.
 *
 * In comes what safetensors.c has listed; out come the tensors of a struct moe_file.  A table says what
 * becomes what.  Experts that lie one by one become one stack with a place for each; a stack that holds
 * gates and ups together becomes two.  Nothing moves: a tensor here is where its bytes are.
 *
 * What the table does not know keeps its name, and the model refuses it with that name.  Layers beyond the
 * last, which guess tokens ahead, are given through as they are. */
#include "moe/folder.h"

#include <stdio.h>
#include <string.h>

#define SHOWN  128
#define LAYERS "model.layers."

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
    NOTHING
};

/* Within "model.layers.N."; '#' is an expert's number. */
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
};
#define N_PART (sizeof parts / sizeof *parts)

static const struct { const char *from, *to; } ends[] = {
    { "model.embed_tokens.weight", "token_embd.weight" },
    { "model.norm.weight", "output_norm.weight" },
    { "lm_head.weight", "output.weight" },
};

/* A name taken apart: layers.N.rest, with the expert's number out of the rest. */
struct name { int layer, expert; char rest[SHOWN]; };

struct mapper {
    struct moe_folder *d;
    const struct moe_stored *t;                 /* the one at hand */
    size_t n_slab, *n_left;                     /* places handed out; [room] of a stack, still to come */
    size_t room;                                /* tensors that there can be at most */
};

static int refuse(const struct mapper *m, int code, const char *what)
{
    char shown[SHOWN];
    moe_string_show(m->t->name, shown, sizeof shown);
    return kn_fail(code, "%s: %s: tensor '%s' %s", m->d->f->path[m->t->file], kn_error_text(code), shown, what);
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

static bool take_apart(struct moe_string s, struct name *out)
{
    static const char experts[] = ".experts.";
    size_t at = sizeof LAYERS - 1, n;
    *out = (struct name){ .expert = -1 };
    if (s.n < at || memcmp(s.data, LAYERS, at) || !(n = take_number(s.data + at, s.n - at, &out->layer)))
        return false;
    at += n + 1;
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

/* GGUF counts dimensions from the innermost; one row is a vector. */
static struct moe_tensor as_it_is(const struct moe_stored *t)
{
    struct moe_tensor out = { .gguf_type = (uint32_t)t->gguf_type, .n_dim = t->n_dim ? t->n_dim : 1,
                              .dim = { 1, 1, 1, 1 }, .file = t->file, .offset = t->offset, .bytes = t->bytes };
    for (int i = 0; i < t->n_dim; i++)
        out.dim[i] = t->dim[t->n_dim - 1 - i];
    while (out.n_dim > 1 && out.dim[out.n_dim - 1] == 1)
        out.n_dim--;
    return out;
}

static int put(struct mapper *m, struct moe_tensor *t, const char *name)
{
    int err = moe_keep_string(m->d->f, name, strlen(name), &t->name);
    if (!err && (err = moe_add_tensor(m->d->f, t)) > 0)
        err = refuse(m, KN_ECORRUPT, "is there under another name too");
    return err;
}

static int add(struct mapper *m, struct moe_tensor *t, const char *name)
{
    if (m->t->gguf_type < 0) {
        char what[64];
        snprintf(what, sizeof what, "has values of type %s", m->t->dtype);
        return refuse(m, KN_EUNSUPPORTED, what);
    }
    return put(m, t, name);
}

static struct moe_layout *new_layout(struct mapper *m, struct moe_tensor *t)
{
    struct moe_layout *l = moe_keep(m->d->f, sizeof *l);
    if (l)
        *l = (struct moe_layout){ 0 };
    t->layout = l;
    return l;
}

/* Rows of each head: how many, from the layer's whole matrix. */
static int add_rotated(struct mapper *m, const char *name)
{
    struct moe_tensor t = as_it_is(m->t);
    int turn = m->d->d_head;
    if (!m->d->family->turned || t.n_dim != 2)
        return add(m, &t, name);
    if (turn < 2 || turn % 2 || t.dim[1] % (uint64_t)turn)
        return refuse(m, KN_ECORRUPT, "has rows that are no whole heads");
    struct moe_layout *l = new_layout(m, &t);
    if (!l)
        return KN_ENOMEM;
    l->turn = turn;
    return add(m, &t, name);
}

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
    struct moe_tensor t = as_it_is(m->t);
    uint64_t n = t.dim[2];
    int err;
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
    struct moe_tensor t = as_it_is(m->t);
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
    static const char blocks[] = "blocks", scales[] = "scales";
    const struct moe_stored *t = m->t;
    char other[SHOWN];
    size_t head = t->name.n - (sizeof blocks - 1);
    memcpy(other, t->name.data, head);          /* it is in the table, so it fits */
    memcpy(other + head, scales, sizeof scales);
    const struct moe_stored *s = moe_stored_find(m->d, other, t->name.n);
    uint64_t n = t->dim[2];
    if (strcmp(t->dtype, "U8") || t->n_dim != 4 || t->dim[3] != 16 || t->dim[0] != (uint64_t)m->d->n_expert ||
        t->dim[1] % step || !s || strcmp(s->dtype, "U8") || s->n_dim != 3 || memcmp(s->dim, t->dim, 3 * sizeof n))
        return refuse(m, KN_ECORRUPT, "is no stack of blocks of 4 bits, one for each expert, with scales beside it");
    struct moe_tensor out = { .gguf_type = (uint32_t)kn_format_info(KN_MXFP4)->gguf_type, .n_dim = 3,
                              .dim = { 32 * n, t->dim[1] / step, t->dim[0], 1 }, .file = t->file,
                              .offset = t->offset + first * n * 16, .bytes = t->bytes / 16 / step * 17 };
    struct moe_layout *l = new_layout(m, &out);
    struct moe_place *at = l ? moe_keep(m->d->f, sizeof *at) : NULL;
    if (!at)
        return KN_ENOMEM;
    *at = (struct moe_place){ s->file, s->offset + first * n };
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
    struct moe_tensor t = as_it_is(m->t);
    size_t n = (size_t)m->d->n_expert, at = m->d->f->tensors.n;
    int err;
    if (!kn_add(m->n_slab, n, &m->n_slab) || m->n_slab > m->d->n_stored)
        return refuse(m, KN_ECORRUPT, "has not as many others beside it as there are experts");
    struct moe_place *slab = new_slabs(m, &t, n, &err);
    if (!slab)
        return err;
    for (size_t e = 0; e < n; e++)
        slab[e].file = -1;
    t.n_dim = 3;
    t.dim[2] = n;
    t.bytes *= n;
    kn_assert(at < m->room);
    m->n_left[at] = n;
    return add(m, &t, name);
}

static int add_expert(struct mapper *m, const char *name, int e)
{
    struct moe_tensor one = as_it_is(m->t), *t = find(m, name);
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

static int take(struct mapper *m, enum take how, const char *name, int expert)
{
    struct moe_tensor t = as_it_is(m->t);
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
    case NOTHING:    return 0;
    default:         return add(m, &t, name);
    }
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
        int err = take(m, other_way ? TRANSPOSED : parts[i].take, name, n->expert);
        if (err)
            return err;
    }
    return known ? 0 : 1;
}

/* Under its own name; a layer that guesses ahead is known by "blk.N.". */
static int map_unknown(struct mapper *m, bool ahead)
{
    struct moe_tensor t = as_it_is(m->t);
    char name[4 * SHOWN];
    size_t skip = ahead ? sizeof LAYERS - 1 : 0, n = ahead ? (size_t)snprintf(name, sizeof name, "blk.") : 0;
    moe_string_show((struct moe_string){ m->t->name.data + skip, m->t->name.n - skip }, name + n, sizeof name - n);
    if (m->t->gguf_type < 0)
        t.gguf_type = UINT32_MAX;               /* nobody will read it */
    return put(m, &t, name);
}

static int map(struct mapper *m)
{
    struct name n;
    struct moe_string s = m->t->name;
    if (take_apart(s, &n)) {
        int err = n.layer < m->d->n_layer ? map_layer(m, &n) : 1;
        return err <= 0 ? err : map_unknown(m, n.layer >= m->d->n_layer);
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (moe_string_is(s, ends[i].from)) {
            bool spare = m->d->tied && !strcmp(ends[i].to, "output.weight");
            return spare ? 0 : take(m, AS_IT_IS, ends[i].to, -1);
        }
    return map_unknown(m, false);
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
    if (!err && !d->tied && !moe_find_tensor(d->f, "output.weight"))
        err = kn_fail(KN_ECORRUPT, "%s: %s: tensor lm_head.weight is missing", d->f->name, kn_error_text(KN_ECORRUPT));
    kn_free(m.n_left);
    return err;
}
