/* Weights bound to a description.
 *
 * What a layer is made of stands in one table: the tensor's name, the field that takes it, its shape in
 * the description's words, and when it must be there.  Opening a model walks the table, binds formats and
 * shapes and notes what is to be read, so that sizes are known before anything is; a tensor that nothing
 * asked for is refused with its name: a file with parts we do not know would give wrong text, not an
 * error.  Loading takes the memory, reads dense matrices in file order to where they stay, vectors as
 * float32, and opens the store that reads experts as they are needed. */
#include "moe/internal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a layer is made of ------------------------------------------------------------------------ */

enum dim {
    D_ONE, D_MODEL, D_Q, D_Q_OUT, D_K, D_V, D_O, D_HEAD, D_HEADS, D_FF, D_EXPERTS, D_EXPERT, D_SHARED,
    D_LOW, D_KEPT, D_LATENT, D_PLAIN, D_VALUE, D_HALVES,
    D_MIX, D_STATE, D_MIXED, D_RATES, D_BOTH_RATES, D_STATE_VALUE, D_TAP
};
enum need {
    ALWAYS, FFN_NORM, POST_NORM,
    ATTENDS, HIGH_Q, LOW_Q, OWN_KV, LATENT, KV_SPLIT, KV_WHOLE, QK_NORM_HEAD, QK_NORM_ALL, QKV_BIAS, O_BIAS, SINKS,
    DELTA, DELTA_MIX, DELTA_MIXED, DELTA_RATES, DELTA_BA,
    DENSE, EXPERTS, ROUTER_BIAS, SELECT_BIAS, EXPERT_BIAS, SHARED, SHARED_GATE
};

struct part {
    const char *name;
    enum need need;
    enum { VECTOR, MATRIX, STACK, HALVES } kind;        /* float *, or struct kn_mat: [n_head] of them, two in one .. */
    enum dim out, in;
    size_t field;                               /* .. in struct moe_layer */
};
#define FIELD(name) offsetof(struct moe_layer, name)

static const struct part parts[] = {
    { "attn_norm.weight",          ALWAYS,       VECTOR, D_ONE,     D_MODEL,  FIELD(attn_norm) },
    { "attn_q.weight",             HIGH_Q,       MATRIX, D_Q_OUT,   D_MODEL,  FIELD(q) },
    { "attn_q_a.weight",           LOW_Q,        MATRIX, D_LOW,     D_MODEL,  FIELD(q_a) },
    { "attn_q_a_norm.weight",      LOW_Q,        VECTOR, D_ONE,     D_LOW,    FIELD(q_a_norm) },
    { "attn_q_b.weight",           LOW_Q,        MATRIX, D_Q,       D_LOW,    FIELD(q) },
    { "attn_k.weight",             OWN_KV,       MATRIX, D_K,       D_MODEL,  FIELD(k) },
    { "attn_v.weight",             OWN_KV,       MATRIX, D_V,       D_MODEL,  FIELD(v) },
    { "attn_kv_a_mqa.weight",      LATENT,       MATRIX, D_KEPT,    D_MODEL,  FIELD(kv_a) },
    { "attn_kv_a_norm.weight",     LATENT,       VECTOR, D_ONE,     D_LATENT, FIELD(kv_a_norm) },
    { "attn_k_b.weight",           KV_SPLIT,     STACK,  D_LATENT,  D_PLAIN,  FIELD(k_b) },
    { "attn_v_b.weight",           KV_SPLIT,     STACK,  D_VALUE,   D_LATENT, FIELD(v_b) },
    { "attn_kv_b.weight",          KV_WHOLE,     HALVES, D_HALVES,  D_LATENT, 0 },
    { "attn_output.weight",        ATTENDS,      MATRIX, D_MODEL,   D_O,      FIELD(o) },
    { "attn_q_norm.weight",        QK_NORM_HEAD, VECTOR, D_ONE,     D_HEAD,   FIELD(q_norm) },
    { "attn_k_norm.weight",        QK_NORM_HEAD, VECTOR, D_ONE,     D_HEAD,   FIELD(k_norm) },
    { "attn_q_norm.weight",        QK_NORM_ALL,  VECTOR, D_ONE,     D_Q,      FIELD(q_norm) },
    { "attn_k_norm.weight",        QK_NORM_ALL,  VECTOR, D_ONE,     D_K,      FIELD(k_norm) },
    { "attn_q.bias",               QKV_BIAS,     VECTOR, D_ONE,     D_Q,      FIELD(q_bias) },
    { "attn_k.bias",               QKV_BIAS,     VECTOR, D_ONE,     D_K,      FIELD(k_bias) },
    { "attn_v.bias",               QKV_BIAS,     VECTOR, D_ONE,     D_V,      FIELD(v_bias) },
    { "attn_output.bias",          O_BIAS,       VECTOR, D_ONE,     D_MODEL,  FIELD(o_bias) },
    { "attn_sinks.weight",         SINKS,        VECTOR, D_ONE,     D_HEADS,  FIELD(sinks) },
    { "attn_qkv.weight",           DELTA_MIX,    MATRIX, D_MIX,     D_MODEL,  FIELD(mix) },
    { "attn_gate.weight",          DELTA_MIX,    MATRIX, D_STATE,   D_MODEL,  FIELD(z) },
    { "ssm_in.weight",             DELTA_MIXED,  MATRIX, D_MIXED,   D_MODEL,  FIELD(mixed) },
    { "ssm_beta.weight",           DELTA_RATES,  MATRIX, D_RATES,   D_MODEL,  FIELD(beta) },
    { "ssm_alpha.weight",          DELTA_RATES,  MATRIX, D_RATES,   D_MODEL,  FIELD(alpha) },
    { "ssm_ba.weight",             DELTA_BA,     MATRIX, D_BOTH_RATES, D_MODEL, FIELD(ba) },
    { "ssm_conv1d.weight",         DELTA,        VECTOR, D_MIX,     D_TAP,    FIELD(taps) },
    { "ssm_a",                     DELTA,        VECTOR, D_ONE,     D_RATES,  FIELD(decay) },
    { "ssm_dt.bias",               DELTA,        VECTOR, D_ONE,     D_RATES,  FIELD(decay_bias) },
    { "ssm_norm.weight",           DELTA,        VECTOR, D_ONE,     D_STATE_VALUE, FIELD(out_norm) },
    { "ssm_out.weight",            DELTA,        MATRIX, D_MODEL,   D_STATE,  FIELD(o) },
    { "post_attention_norm.weight", POST_NORM,   VECTOR, D_ONE,     D_MODEL,  FIELD(ffn_norm) },
    { "ffn_norm.weight",           FFN_NORM,     VECTOR, D_ONE,     D_MODEL,  FIELD(ffn_norm) },
    { "ffn_gate.weight",           DENSE,        MATRIX, D_FF,      D_MODEL,  FIELD(gate) },
    { "ffn_up.weight",             DENSE,        MATRIX, D_FF,      D_MODEL,  FIELD(up) },
    { "ffn_down.weight",           DENSE,        MATRIX, D_MODEL,   D_FF,     FIELD(down) },
    { "ffn_gate_inp.weight",       EXPERTS,      MATRIX, D_EXPERTS, D_MODEL,  FIELD(router) },
    { "ffn_gate_inp.bias",         ROUTER_BIAS,  VECTOR, D_ONE,     D_EXPERTS, FIELD(router_bias) },
    { "exp_probs_b.bias",          SELECT_BIAS,  VECTOR, D_ONE,     D_EXPERTS, FIELD(select_bias) },
    { "ffn_gate_exps.bias",        EXPERT_BIAS,  VECTOR, D_EXPERTS, D_EXPERT, FIELD(gate_bias) },
    { "ffn_up_exps.bias",          EXPERT_BIAS,  VECTOR, D_EXPERTS, D_EXPERT, FIELD(up_bias) },
    { "ffn_down_exps.bias",        EXPERT_BIAS,  VECTOR, D_EXPERTS, D_MODEL,  FIELD(down_bias) },
    { "ffn_gate_shexp.weight",     SHARED,       MATRIX, D_SHARED,  D_MODEL,  FIELD(gate) },
    { "ffn_up_shexp.weight",       SHARED,       MATRIX, D_SHARED,  D_MODEL,  FIELD(up) },
    { "ffn_down_shexp.weight",     SHARED,       MATRIX, D_MODEL,   D_SHARED, FIELD(down) },
    { "ffn_gate_inp_shexp.weight", SHARED_GATE,  MATRIX, D_ONE,     D_MODEL,  FIELD(shared_gate) },
};
#define N_PART ((int)(sizeof parts / sizeof *parts))

/* Experts come three tensors a layer, or in old mixtral files three tensors an expert. */
static const struct { const char *name; enum dim out, in; } expert_parts[OFF_MATRICES] = {
    { "ffn_gate", D_EXPERT, D_MODEL }, { "ffn_up", D_EXPERT, D_MODEL }, { "ffn_down", D_MODEL, D_EXPERT },
};

static int dim_of(const struct moe_desc *d, enum dim dim)
{
    switch (dim) {
    case D_ONE:     return 1;
    case D_MODEL:   return d->d_model;
    case D_Q:       return d->n_head * d->d_head;
    case D_Q_OUT:   return d->n_head * d->d_head * (d->out_gate ? 2 : 1);
    case D_K:       return d->n_kv * d->d_head;
    case D_V:       return d->n_kv * d->d_value;
    case D_O:       return d->n_head * d->d_value;
    case D_HEAD:    return d->d_head;
    case D_HEADS:   return d->n_head;
    case D_LOW:     return d->d_query_latent;
    case D_KEPT:    return d->d_key;
    case D_LATENT:  return d->d_latent;
    case D_PLAIN:   return d->d_head - d->n_rot;
    case D_VALUE:   return d->d_value;
    case D_HALVES:  return d->n_head * (d->d_head - d->n_rot + d->d_value);
    case D_FF:      return d->d_ff;
    case D_EXPERTS: return d->n_expert;
    case D_EXPERT:  return d->d_expert;
    case D_SHARED:  return d->d_shared;
    case D_MIX:     return moe_d_mix(d);
    case D_STATE:   return moe_d_state_value(d);
    case D_MIXED:   return moe_d_mix(d) + moe_d_state_value(d);
    case D_RATES:   return d->n_value_head;
    case D_BOTH_RATES: return 2 * d->n_value_head;
    case D_STATE_VALUE: return d->d_state_value;
    case D_TAP:     return d->n_tap;
    }
    return 0;
}

/* What experts need is needed in layers that have them; so with attention and delta nets. */
static bool is_needed(const struct moe_desc *d, int layer, enum need need)
{
    bool dense = !d->n_expert || layer < d->n_lead, delta = moe_is_delta(d, layer);
    if ((need >= EXPERTS && dense) || (need >= ATTENDS && need < DELTA && delta) ||
        (need >= DELTA && need < DENSE && !delta))
        return false;
    switch (need) {
    case HIGH_Q:       return !d->d_query_latent;
    case LOW_Q:        return d->d_query_latent > 0;
    case OWN_KV:       return !moe_is_latent(d);
    case LATENT:       return moe_is_latent(d);
    case KV_SPLIT:     return moe_is_latent(d) && !d->kv_whole;
    case KV_WHOLE:     return d->kv_whole;
    case QK_NORM_HEAD: return d->qk_norm == MOE_QK_NORM_HEAD;
    case QK_NORM_ALL:  return d->qk_norm == MOE_QK_NORM_ALL;
    case QKV_BIAS:     return d->qkv_bias;
    case O_BIAS:       return d->o_bias;
    case SINKS:        return d->sinks;
    case DELTA_MIX:    return !d->delta_mixed;
    case DELTA_MIXED:  return d->delta_mixed;
    case DELTA_RATES:  return !d->delta_ba;
    case DELTA_BA:     return d->delta_ba;
    case FFN_NORM:     return !d->post_norm;
    case POST_NORM:    return d->post_norm;
    case DENSE:        return dense;
    case ROUTER_BIAS:  return d->router_bias;
    case SELECT_BIAS:  return d->select_bias;
    case EXPERT_BIAS:  return d->expert_bias;
    case SHARED:       return d->shared != MOE_SHARED_NONE;
    case SHARED_GATE:  return d->shared == MOE_SHARED_GATED;
    default:           return true;
    }
}

/* ---- binding ----------------------------------------------------------------------------------------- */

struct binder {
    struct moe_model *m;
    const struct moe_file *f;
    bool *used;                                 /* [tensors] */
};

/* The tensor, checked to be [n_out, n_in] (times n_stack when over 0, in another dimension or one below
 * the other: the same bytes), or NULL with *error set unless it may be absent. */
static const struct moe_tensor *find(struct binder *b, const char *name, int n_out, int n_in, int n_stack,
                                     bool optional, int *error)
{
    const char *path = moe_file_path(b->f);
    const struct moe_tensor *t = moe_file_find_tensor(b->f, name);
    if (!t) {
        if (!optional)
            *error = kn_fail(KN_ECORRUPT, "%s: tensor %s is missing", path, name);
        return NULL;
    }
    enum kn_format format;
    uint64_t deep = n_stack ? (uint64_t)n_stack : 1;
    bool flat = t->dim[1] == (uint64_t)n_out * deep && t->dim[2] == 1;
    if (t->dim[0] != (uint64_t)n_in || t->dim[3] != 1 ||
        (!flat && (t->dim[1] != (uint64_t)n_out || t->dim[2] != deep))) {
        *error = kn_fail(KN_ECORRUPT, "%s: tensor %s has shape [%llu, %llu, %llu], the metadata says "
                         "[%d, %d, %d]", path, name, (unsigned long long)t->dim[0],
                         (unsigned long long)t->dim[1], (unsigned long long)t->dim[2], n_in, n_out,
                         n_stack ? n_stack : 1);
        return NULL;
    }
    if (kn_format_from_gguf(t->gguf_type, &format) != 0) {
        const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
        *error = kn_fail(KN_EUNSUPPORTED, "%s: tensor %s has weight format %s (%u), which is not supported: take a "
                         "file of these:%s", path, name, type ? type->name : "unknown", t->gguf_type, kn_format_list);
        return NULL;
    }
    if (kn_row_bytes(format, n_in) == 0) {
        *error = kn_fail(KN_ECORRUPT, "%s: tensor %s has rows of %d values, no whole blocks of %s", path,
                         name, n_in, kn_format_info(format)->name);
        return NULL;
    }
    b->used[t - moe_file_tensor(b->f, 0)] = true;
    return t;
}

static enum kn_format format_of(const struct moe_tensor *t)
{
    enum kn_format f = KN_F32;
    kn_assert(kn_format_from_gguf(t->gguf_type, &f) == 0);
    return f;
}

struct off_source moe_source_of(const struct moe_tensor *t, int e, int n_out, int n_in)
{
    const struct moe_layout *l = t->layout;
    struct off_source s = { .file = t->file, .offset = t->offset, .format = format_of(t), .n_out = n_out, .n_in = n_in };
    size_t row = kn_row_bytes(s.format, n_in);
    if (l)
        s.turn = l->turn;
    if (l && l->scales) {
        s.scales = l->scales[l->slab ? e : 0];
        row = kn_code_bytes(s.format) * (size_t)(n_in / kn_format_info(s.format)->block_values);
    }
    if (l && l->slab) {
        s.file = l->slab[e].file;
        s.offset = l->slab[e].offset;
        return s;
    }
    uint64_t row0 = (uint64_t)e * (uint64_t)n_out;
    s.offset += row0 * row;
    if (s.scales.bytes)                         /* of a stack there is one for each row and so many values */
        s.scales.offset += row0 * (uint64_t)(n_in / s.scales.values) * (uint64_t)s.scales.bytes;
    return s;
}

/* Every tensor is asked for once, so there is room for all of them. */
static int bind_vector(struct binder *b, const char *name, int n_out, int n, bool optional, float **out)
{
    int error = 0;
    const struct moe_tensor *t = find(b, name, n_out, n, 0, optional, &error);
    if (t)
        b->m->dense[b->m->n_dense++] = (struct moe_dense){ .tensor = t, .vector = out };
    return error;
}

static int bind_stack(struct binder *b, const char *name, int n_out, int n_in, int n_stack, bool optional,
                      struct kn_mat *out)
{
    int error = 0;
    const struct moe_tensor *t = find(b, name, n_out, n_in, n_stack, optional, &error);
    if (t) {
        *out = (struct kn_mat){ format_of(t), n_out * n_stack, n_in, NULL };
        b->m->dense[b->m->n_dense++] = (struct moe_dense){ .tensor = t, .matrix = out };
    }
    return error;
}

static int bind_matrix(struct binder *b, const char *name, int n_out, int n_in, bool optional,
                       struct kn_mat *out)
{
    return bind_stack(b, name, n_out, n_in, 1, optional, out);
}

/* Two matrices in one tensor, a head's rows of one and then of the other. */
static int bind_halves(struct binder *b, const char *name, int n_out, int n_in, struct moe_layer *l)
{
    const struct moe_desc *d = &b->m->desc;
    int error = 0, d_plain = d->d_head - d->n_rot;
    const struct moe_tensor *t = find(b, name, n_out, n_in, 0, false, &error);
    if (!t)
        return error;
    l->k_b = (struct kn_mat){ moe_latent_key_format(format_of(t)), d->n_head * d->d_latent, d_plain, NULL };
    l->v_b = (struct kn_mat){ format_of(t), d->n_head * d->d_value, d->d_latent, NULL };
    b->m->dense[b->m->n_dense++] = (struct moe_dense){ .tensor = t, .halves = l };
    if (l->k_b.format != format_of(t))
        b->m->shape.widened_bytes += kn_mat_bytes(l->k_b.format, l->k_b.n_out, l->k_b.n_in);
    return 0;
}

static int bind_part(struct binder *b, const char *name, const struct part *p, struct moe_layer *l)
{
    const struct moe_desc *d = &b->m->desc;
    void *field = (char *)l + p->field;
    int n_out = dim_of(d, p->out), n_in = dim_of(d, p->in);
    switch (p->kind) {
    case VECTOR: return bind_vector(b, name, n_out, n_in, false, field);
    case STACK:  return bind_stack(b, name, n_out, n_in, d->n_head, false, field);
    case HALVES: return bind_halves(b, name, n_out, n_in, l);
    default:     return bind_matrix(b, name, n_out, n_in, false, field);
    }
}

static int bind_layer(struct binder *b, int layer)
{
    const struct moe_desc *d = &b->m->desc;
    const struct moe_model *target = b->m->target;
    struct moe_layer *l = &b->m->layer[layer];
    for (int i = 0; i < N_PART; i++) {
        const struct part *p = &parts[i];
        if (!is_needed(d, layer, p->need))
            continue;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", d->block0 + layer, p->name);
        int error = bind_part(b, name, p, l);
        if (error)
            return error;
    }
    int n_before = moe_n_delta_before(d, layer);
    l->nth = moe_is_delta(d, layer) ? n_before : layer - n_before;
    l->expert0 = (layer - d->n_lead) * d->n_expert + (target ? target->shape.n_expert_total : 0);
    if (d->window && layer % d->window_period != d->window_period - 1)
        l->window = d->window;
    return 0;
}

/* Where tokens come in and logits go out; of a head both are its target's, whose weights are there when its
 * own are loaded. */
static int bind_ends(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    int error;
    if (d->head) {
        m->embed = m->target->embed;
        m->head = m->target->head;
        if ((error = bind_matrix(b, "fc.weight", d->d_model, 2 * d->d_model, false, &m->fc)))
            return error;
    } else if ((error = bind_matrix(b, "token_embd.weight", d->n_vocab, d->d_model, false, &m->embed)) ||
               (error = bind_matrix(b, "output.weight", d->n_vocab, d->d_model, true, &m->head))) {
        return error;
    }
    m->tied = !m->head.n_out;
    if (m->tied)
        m->head = m->embed;
    return bind_vector(b, "output_norm.weight", 1, d->d_model, false, &m->out_norm);
}

/* The same of a layer that guesses ahead.  By its definition it shares embedding and output with its target; a
 * file may have them twice, and then in another format, or none of the norm. */
static int bind_ahead_ends(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    const struct { const char *name; int n_out, n_in; struct kn_mat *matrix; float **vector; bool optional; } ends[] = {
        { "eh_proj", d->d_model, 2 * d->d_model, &m->fc, NULL, false },
        { "enorm", 1, d->d_model, NULL, &m->embed_norm, false },
        { "hnorm", 1, d->d_model, NULL, &m->feature_norm, false },
        { "shared_head_norm", 1, d->d_model, NULL, &m->out_norm, true },
        { "embed_tokens", d->n_vocab, d->d_model, &m->embed, NULL, true },
        { "shared_head_head", d->n_vocab, d->d_model, &m->head, NULL, true },
    };
    m->embed = m->target->embed;
    m->head = m->target->head;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.nextn.%s.weight", d->block0, ends[i].name);
        int error = ends[i].vector
            ? bind_vector(b, name, 1, ends[i].n_in, ends[i].optional, ends[i].vector)
            : bind_matrix(b, name, ends[i].n_out, ends[i].n_in, ends[i].optional, ends[i].matrix);
        if (error)
            return error;
    }
    return 0;
}

static int bind_all(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    int error;
    if ((error = d->head == MOE_HEAD_AHEAD ? bind_ahead_ends(b) : bind_ends(b)) ||
        (error = bind_vector(b, "rope_freqs.weight", 1, d->n_rot / 2, true, &m->rope_extra)))
        return error;
    for (int i = 0; i < d->n_layer; i++)
        if ((error = bind_layer(b, i)))
            return error;
    return 0;
}

/* A head is of one target: its features and its tokens are what the head reads. */
static int check_target(const struct moe_model *m)
{
    const struct moe_desc *d = &m->desc, *t = m->target ? &m->target->desc : NULL;
    const char *path = moe_file_path(m->file), *whose = t ? moe_file_path(m->target->file) : "";
    if (d->head && !t)
        return kn_fail(KN_EUNSUPPORTED, "%s is an EAGLE head, no model of its own: --draft eagle:%s beside the "
                       "model that it was trained on", path, path);
    if (!d->head && t)
        return kn_fail(KN_EUNSUPPORTED, "%s is a %s model, no EAGLE head: --draft model:%s may take it", path,
                       d->arch, path);
    if (t && d->d_model != t->d_model)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: its features have %d values, not %d", path,
                       whose, d->d_model, t->d_model);
    if (t && d->n_vocab != t->n_vocab)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: it has %d tokens, not %d", path, whose,
                       d->n_vocab, t->n_vocab);
    return 0;
}

/* ---- experts ----------------------------------------------------------------------------------------- */

/* Matrix i of every expert of a layer, the file's number of it, from one stacked tensor or from one tensor each. */
static int bind_experts(struct binder *b, int layer, int i, struct off_expert *expert)
{
    const struct moe_desc *d = &b->m->desc;
    int n_out = dim_of(d, expert_parts[i].out), n_in = dim_of(d, expert_parts[i].in), error = 0;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s_exps.weight", layer, expert_parts[i].name);
    const struct moe_tensor *stack = find(b, name, n_out, n_in, d->n_expert, true, &error), *t = stack;
    if (error)
        return error;
    bool in_turns = stack && stack->layout && stack->layout->scales && stack->layout->step == 2;
    b->m->in_turns |= in_turns;
    if (in_turns && i == 1)                     /* they come with the gates */
        return 0;
    n_out *= in_turns ? 2 : 1;
    for (int e = 0; e < d->n_expert; e++) {
        if (!stack) {
            char one[64];
            snprintf(one, sizeof one, "blk.%d.%s.%d.weight", layer, expert_parts[i].name, e);
            if (e > 0 || moe_file_find_tensor(b->f, one))       /* neither: it is the stack that is missing */
                memcpy(name, one, sizeof name);
            if (!(t = find(b, name, n_out, n_in, 0, false, &error)))
                return error;
        }
        expert[e].matrix[i] = moe_source_of(t, stack ? e : 0, n_out, n_in);
        expert[e].group = layer;
    }
    return 0;
}

/* Which kinds of activation codes a layer's experts read, so that rows are coded once for all of them;
 * what all experts take in the file; and what a thread needs to interleave one. */
static void sum_up_experts(struct moe_model *m)
{
    int n_all = m->shape.n_expert_total + m->shape.n_expert_ahead;
    for (int e = 0; e < n_all; e++) {
        const struct off_expert *x = &m->expert[e];
        bool own = e < m->shape.n_expert_total;
        struct moe_layer *l = own ? &m->layer[x->group - m->desc.block0] : NULL;
        for (int i = 0; i < OFF_MATRICES; i++) {
            if (!x->matrix[i].n_out)
                continue;
            size_t scratch = off_scratch_bytes(&x->matrix[i]);
            unsigned bit = 1u << kn_format_info(x->matrix[i].format)->act;
            if (own)
                *(i < OFF_MATRICES - 1 ? &l->expert_acts : &l->down_acts) |= bit;
            m->scratch_bytes = scratch > m->scratch_bytes ? scratch : m->scratch_bytes;
            m->shape.expert_file_bytes += own ? off_file_bytes(&x->matrix[i]) : 0;
        }
    }
    m->shape.expert_bytes = off_store_bytes(m->expert, n_all);
    m->shape.expert_least = off_store_least(m->expert, n_all);
    if (m->target)                              /* what waits for the store may have to interleave any of its experts */
        m->scratch_bytes = m->target->scratch_bytes;
}

/* Of so many layers, from the first that has some on. */
static int list_experts(struct binder *b, int n_layer)
{
    const struct moe_desc *d = &b->m->desc;
    b->m->expert = kn_calloc((size_t)n_layer * (size_t)d->n_expert, sizeof *b->m->expert);
    if (!b->m->expert)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", n_layer * d->n_expert);
    for (int n = 0; n < n_layer; n++)
        for (int i = 0; i < OFF_MATRICES; i++) {
            int error = bind_experts(b, d->block0 + d->n_lead + n, i, b->m->expert + (size_t)n * (size_t)d->n_expert);
            if (error)
                return error;
        }
    return 0;
}

static bool is_of_blocks(struct moe_string name, int first, int n_block)
{
    char prefix[32];
    for (int i = first; i < first + n_block; i++) {
        size_t n = (size_t)snprintf(prefix, sizeof prefix, "blk.%d.", i);
        if (name.n > n && !memcmp(name.data, prefix, n))
            return true;
    }
    return false;
}

/* Layers that guess tokens ahead come after the others; a head that is one of them is in no other. */
static bool is_of_others(const struct moe_desc *d, struct moe_string name)
{
    return d->head == MOE_HEAD_AHEAD ? !is_of_blocks(name, d->block0, d->n_layer)
                                     : is_of_blocks(name, d->n_layer, d->n_ahead);
}

/* Both halves in one, beside the halves themselves. */
static bool is_spare(const struct moe_desc *d, struct moe_string name)
{
    static const char end[] = ".attn_kv_b.weight";
    size_t n = sizeof end - 1;
    return moe_is_latent(d) && !d->kv_whole && name.n > n && !memcmp(name.data + name.n - n, end, n);
}

static int refuse_unknown(const struct binder *b)
{
    const struct moe_desc *d = &b->m->desc;
    for (size_t i = 0; i < moe_file_tensor_count(b->f); i++) {
        const struct moe_tensor *t = moe_file_tensor(b->f, i);
        char name[128];
        if (b->used[i] || is_spare(d, t->name) || is_of_others(d, t->name))
            continue;
        moe_string_show(t->name, name, sizeof name);
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor %s has no place in a %s model: the file is of a kind "
                       "that is not supported", moe_file_path(b->f), name, b->m->desc.arch);
    }
    if (b->m->shape.widened_bytes)
        kn_say(KN_LOG_INFO, "%s: attn_kv_b is quantised along rows; its keys are used the other way, and take "
               "%zu MiB as F32: files with attn_k_b take less", moe_file_path(b->f),
               (b->m->shape.widened_bytes >> 20) + 1);
    return 0;
}

/* ---- dense weights ------------------------------------------------------------------------------------- */

static struct off_source source_of_dense(const struct moe_dense *p)
{
    return moe_source_of(p->tensor, 0, p->matrix->n_out, p->matrix->n_in);
}

/* Of a vector, or of one for each expert. */
static size_t n_value(const struct moe_tensor *t) { return (size_t)(t->dim[0] * t->dim[1]); }

static void *take_panels(struct kn_arena *a, const struct kn_mat *w)
{
    return kn_arena_take(a, 1, kn_mat_bytes(w->format, w->n_out, w->n_in));
}

/* Matrices first: they take whole pages, and reads want theirs to begin with one.  load: [n_dense], filled
 * with them, or NULL over an arena that counts.  Returns how many they are. */
static int place_dense(struct moe_model *m, struct kn_arena *a, struct off_load *load)
{
    int n = 0;
    for (int i = 0; i < m->n_dense; i++) {
        const struct moe_dense *p = &m->dense[i];
        if (!p->matrix)
            continue;
        struct off_source source = source_of_dense(p);
        void *place = kn_arena_take(a, 1, off_place_bytes(&source));
        if (load) {
            p->matrix->data = off_place_panels(&source, place);
            load[n] = (struct off_load){ source, place };
        }
        n++;
    }
    for (int i = 0; i < m->n_dense; i++) {
        struct moe_dense *p = &m->dense[i];
        if (p->vector)
            *p->vector = kn_arena_take(a, n_value(p->tensor), sizeof(float));
        if (p->halves) {
            p->halves->k_b.data = p->k = take_panels(a, &p->halves->k_b);
            p->halves->v_b.data = p->v = take_panels(a, &p->halves->v_b);
        }
    }
    m->rope_freq = kn_arena_take(a, (size_t)m->desc.n_rot / 2, sizeof(float));
    return n;
}

static int read_vector(const struct moe_file *f, const struct moe_tensor *t, float *to)
{
    int n = (int)t->dim[0];
    size_t row = kn_row_bytes(format_of(t), n), bytes = row * (size_t)t->dim[1];
    uint8_t *raw = kn_alloc(bytes);
    if (!raw)
        return kn_fail(KN_ENOMEM, "no memory for vectors of %zu values", n_value(t));
    int error = moe_file_read(f, t, 0, raw, bytes);
    for (size_t i = 0; !error && i < t->dim[1]; i++)
        kn_row_decode(format_of(t), raw + i * row, n, to + i * (size_t)n);
    kn_free(raw);
    return error;
}

static int read_vectors(struct moe_model *m, struct off_progress *progress)
{
    for (int i = 0; i < m->n_dense; i++) {
        const struct moe_dense *p = &m->dense[i];
        int error = p->vector ? read_vector(m->file, p->tensor, *p->vector) : 0;
        if (error)
            return error;
        if (p->vector && progress)
            atomic_fetch_add(&progress->done_bytes, p->tensor->bytes);
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct off_source *x = &((const struct off_load *)a)->source;
    const struct off_source *y = &((const struct off_load *)b)->source;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static struct off_files files_of(const struct moe_model *m)
{
    struct off_files files = *moe_file_files(m->file);
    files.mirror = m->mirror;
    return files;
}

int moe_read_matrices(struct moe_model *m, struct off_load *load, int n, const struct moe_load_options *opt)
{
    struct off_hands hands = { .ops = m->ops, .team = opt->team };
    for (int i = 0; i < n; i++) {
        size_t bytes = off_scratch_bytes(&load[i].source);
        hands.scratch_bytes = bytes > hands.scratch_bytes ? bytes : hands.scratch_bytes;
    }
    size_t bytes = (size_t)kn_team_size(opt->team) * hands.scratch_bytes;
    hands.scratch = kn_map(bytes, -1);
    if (!hands.scratch)
        return kn_fail(KN_ENOMEM, "no memory to interleave matrices with");
    qsort(load, (size_t)n, sizeof *load, by_offset);
    struct off_files files = files_of(m);
    int error = off_load(&files, opt->io, load, n, &hands, opt->progress);
    kn_unmap(hands.scratch, bytes);
    return error;
}

/* Each node's threads have a part of every matrix near to them: the panels that moe_products() gives them. */
static void spread_matrices(const struct off_load *load, int n, const struct kn_team *team)
{
    for (int i = 0; i < n; i++) {
        const struct off_source *s = &load[i].source;
        kn_team_bind(team, off_place_panels(s, load[i].place), kn_ceil_div(s->n_out, KN_PANEL),
                     KN_PANEL * kn_row_bytes(s->format, s->n_in));
    }
}

/* What a head has not of its own. */
static void borrow(struct moe_model *m)
{
    kn_assert(m->target->arena.base);
    if (!m->embed.data)
        m->embed = m->target->embed;
    if (!m->head.data)
        m->head = m->target->head;
    if (!m->out_norm)
        m->out_norm = m->target->out_norm;
    if (m->desc.n_expert)
        m->store = m->target->store;
}

static int load_dense(struct moe_model *m, const struct moe_load_options *opt)
{
    struct off_load *load = kn_calloc((size_t)m->n_dense, sizeof *load);
    int error = load ? kn_arena_open(&m->arena, m->shape.dense_bytes, -1)
                     : kn_fail(KN_ENOMEM, "no memory to list the tensors");
    if (error)
        goto done;
    int n = place_dense(m, &m->arena, load);
    spread_matrices(load, n, opt->team);
    if (m->tied)
        m->head = m->embed;
    if (m->target)
        borrow(m);
    for (int i = 0; opt->progress && i < m->n_dense; i++)
        atomic_fetch_add(&opt->progress->total_bytes, m->dense[i].tensor->bytes);
    if ((error = read_vectors(m, opt->progress)) == 0 && (error = moe_read_matrices(m, load, n, opt)) == 0)
        error = moe_latent_load(m, opt);
done:
    kn_free(load);
    return error;
}

/* The convolution goes over channels: the taps of a channel, side by side in the file, become a row each. */
static int turn_taps(struct moe_model *m)
{
    int n_tap = m->desc.n_tap, n = moe_d_mix(&m->desc);
    float *was = m->desc.delta_period ? kn_alloc((size_t)n_tap * (size_t)n * sizeof *was) : NULL;
    if (m->desc.delta_period && !was)
        return kn_fail(KN_ENOMEM, "no memory for %d taps", n_tap * n);
    for (int layer = 0; layer < m->desc.n_layer; layer++) {
        float *taps = m->layer[layer].taps;
        if (!taps)
            continue;
        memcpy(was, taps, (size_t)n_tap * (size_t)n * sizeof *was);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n_tap; j++)
                taps[(size_t)j * (size_t)n + (size_t)i] = was[(size_t)i * (size_t)n_tap + (size_t)j];
    }
    kn_free(was);
    return 0;
}

/* The rope's extra divisors are a vector like any other, wanted only here. */
static int set_rotation(struct moe_model *m)
{
    const float *extra = m->rope_extra;
    for (int i = 0; extra && i < m->desc.n_rot / 2; i++)
        if (!(extra[i] >= 1e-6f && extra[i] <= 1e6f))
            return kn_fail(KN_ECORRUPT, "%s: tensor rope_freqs.weight: value %d is no divisor of an angle: "
                           "%g", moe_file_path(m->file), i, (double)extra[i]);
    return moe_rope_freq(&m->desc, extra, m->rope_freq);
}

/* ---- open, load and close ------------------------------------------------------------------------------ */

/* Bytes of it that a pass reads, and multiply-adds of a row with it; of the table of embeddings one row,
 * which is nothing. */
static void add_dense(struct moe_model *m, const struct moe_dense *p)
{
    const struct moe_layer *l = p->halves;
    if (p->matrix == &m->embed && !m->tied)
        return;
    if (!l) {
        m->shape.pass_bytes += p->tensor->bytes;
        m->shape.row_macs += p->matrix ? (double)p->matrix->n_out * p->matrix->n_in : 0;
        return;
    }
    for (int i = 0; i < 2; i++) {
        const struct kn_mat *w = i ? &l->v_b : &l->k_b;
        m->shape.pass_bytes += kn_mat_bytes(w->format, w->n_out, w->n_in);
        m->shape.row_macs += (double)w->n_out * w->n_in;
    }
}

static void describe(struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    int n_moe = d->n_expert ? d->n_layer - d->n_lead : 0;
    m->shape = (struct moe_shape){
        .n_layer = d->n_layer, .d_model = d->d_model, .n_head = d->n_head, .n_kv = d->n_kv,
        .d_head = d->d_head, .n_vocab = d->n_vocab, .n_ctx_train = d->n_ctx_train,
        .n_expert = d->n_expert, .n_used = d->n_used, .d_ff = d->d_ff, .d_expert = d->d_expert,
        .n_moe_layer = n_moe, .n_expert_total = n_moe * d->n_expert, .widened_bytes = m->shape.widened_bytes,
        .n_ahead = d->n_ahead, .n_expert_ahead = m->ahead ? d->n_expert : 0,
        .row_macs = 3.0 * n_moe * d->n_used * d->d_expert * d->d_model +
                    3.0 * moe_n_delta(d) * moe_d_state_value(d) * d->d_state_key,
        .position_macs = (double)(d->n_layer - moe_n_delta(d)) * d->n_head * (d->d_key + d->d_kept),
        .state_bytes = moe_state_bytes(d),
    };
    memcpy(m->shape.arch, d->arch, sizeof m->shape.arch);
    struct kn_arena count = { 0 };
    place_dense(m, &count, NULL);
    m->shape.dense_bytes = count.used;
    for (int i = 0; i < m->n_dense; i++)
        add_dense(m, &m->dense[i]);
    bool own_head = false;
    for (int i = 0; i < m->n_dense; i++)
        own_head |= m->dense[i].matrix == &m->head;
    if (!own_head && !m->tied)                  /* the output matrix is its target's */
        m->shape.row_macs += (double)m->head.n_out * m->head.n_in;
    for (size_t i = 0; i < moe_file_tensor_count(m->file); i++)
        if (is_of_blocks(moe_file_tensor(m->file, i)->name, d->n_layer, d->n_ahead))
            m->shape.ahead_bytes += moe_file_tensor(m->file, i)->bytes;
    if (d->n_expert)
        sum_up_experts(m);
}

/* Older converters left such layers out, and some of them what says that there are any. */
static int check_ahead(const struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", d->n_layer);
    if (d->n_ahead && moe_file_find_tensor(m->file, name))
        return 0;
    return kn_fail(KN_EUNSUPPORTED, "%s has no layer that guesses ahead, which --draft mtp needs: "
                   "%s.nextn_predict_layers is %d and tensor %s is %s; take a file that was written with it, or "
                   "another drafter",
                   moe_file_path(m->file), d->arch, d->n_ahead, name,
                   moe_file_find_tensor(m->file, name) ? "there" : "missing");
}

/* What the description asks for, found in the file. */
static int bind(struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    size_t n = moe_file_tensor_count(m->file) + 1;
    struct binder b = { .m = m, .f = m->file, .used = kn_calloc(n, 1) };
    m->layer = kn_calloc((size_t)d->n_layer, sizeof *m->layer);
    m->dense = kn_calloc(n, sizeof *m->dense);
    int error = b.used && m->layer && m->dense ? 0 : kn_fail(KN_ENOMEM, "no memory to list the tensors");
    if (!error && (error = bind_all(&b)) == 0 && d->n_expert)
        error = list_experts(&b, d->n_layer - d->n_lead + m->ahead);
    if (!error)
        error = refuse_unknown(&b);
    kn_free(b.used);
    if (!error)
        describe(m);
    return error;
}

int moe_model_open(struct moe_model **out, const struct moe_file *f, const struct moe_model_options *opt)
{
    struct moe_model *m = kn_calloc(1, sizeof *m);
    if (!m)
        return kn_fail(KN_ENOMEM, "no memory to open a model");
    *m = (struct moe_model){ .file = f, .target = opt->target, .ops = kn_ops(opt->isa), .ahead = opt->ahead };
    int error = moe_desc_read(&m->desc, f);
    if (error || (error = check_target(m)) || (m->ahead && (error = check_ahead(m))) || (error = bind(m)))
        moe_model_close(m);
    else
        *out = m;
    return error;
}

int moe_model_open_ahead(struct moe_model **out, const struct moe_model *target)
{
    struct moe_model *m = kn_calloc(1, sizeof *m);
    kn_assert(target->ahead);
    if (!m)
        return kn_fail(KN_ENOMEM, "no memory to open a layer that guesses ahead");
    *m = (struct moe_model){ .file = target->file, .target = target, .ops = target->ops };
    moe_desc_ahead(&m->desc, &target->desc);
    int error = bind(m);
    if (error)
        moe_model_close(m);
    else
        *out = m;
    return error;
}

static int open_store(struct moe_model *m, const struct moe_load_options *opt)
{
    uint64_t id = 0;
    int error = opt->heat_path || opt->pack_path ? moe_file_id(m->file, &id) : 0;
    if (error)
        return error;
    return off_store_open(&m->store, &(struct off_store_options){
        .files = files_of(m), .expert = m->expert,
        .n_expert = m->shape.n_expert_total + m->shape.n_expert_ahead, .n_beside = m->shape.n_expert_ahead,
        .slot_bytes = opt->expert_bytes, .later_bytes = opt->later_bytes, .io = opt->io, .heat_path = opt->heat_path,
        .pack_path = opt->pack_path, .model_id = id });
}

int moe_model_load(struct moe_model *m, const struct moe_load_options *opt)
{
    kn_assert(!m->arena.base);
    int error = opt->mirror ? off_mirror_open(&m->mirror, opt->mirror, moe_file_files(m->file), opt->pack_path) : 0;
    if (error || (error = load_dense(m, opt)) || (error = turn_taps(m)) || (error = set_rotation(m)))
        return error;
    if (m->expert && !m->target && (error = open_store(m, opt)))
        return error;
    kn_free(m->expert);                         /* the store has its own */
    kn_free(m->dense);
    m->expert = NULL;
    m->dense = NULL;
    return 0;
}

int moe_model_pack(const struct moe_model *m, const char *path, const struct moe_pack_options *opt,
                   struct off_packed *out)
{
    uint64_t id;
    if (!m->expert)
        return kn_fail(KN_EINVAL, "%s: it has no experts to pack", moe_file_path(m->file));
    int error = moe_file_refuse_target(m->file, path);
    if (error || (error = moe_file_id(m->file, &id)))
        return error;
    return off_pack(path, &(struct off_pack_options){
        .files = *moe_file_files(m->file), .expert = m->expert, .n_expert = m->shape.n_expert_total,
        .model_id = id, .io = opt->io, .ops = m->ops, .team = opt->team, .progress = opt->progress,
        .stop = opt->stop }, out);
}

void moe_model_close(struct moe_model *m)
{
    if (!m)
        return;
    if (!m->target)
        off_store_close(m->store);
    else if (m->store)                          /* nobody else asks for these */
        off_store_forget(m->store, m->layer[0].expert0, m->desc.n_expert);
    off_mirror_close(m->mirror);
    kn_arena_close(&m->arena);
    kn_free(m->expert);
    kn_free(m->dense);
    kn_free(m->layer);
    kn_free(m);
}

const struct moe_shape *moe_model_shape(const struct moe_model *m) { return &m->shape; }
const struct kn_ops *moe_model_ops(const struct moe_model *m) { return m->ops; }
struct off_store *moe_model_store(const struct moe_model *m) { return m->store; }
