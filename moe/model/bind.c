/* moe/model/bind.c - binds the tensors of a file to a model description.
 *
 * One table lists the tensors of a layer: name, condition under which the layer has the tensor, shape in dimensions of
 * the description, and field of struct moe_layer.  Binding looks up each tensor in the file and checks its shape.
 * Output: format and shape of each matrix, the list of dense tensors to load, and the position of each expert.  So all
 * sizes are known before any weight is read.  A tensor of the file that is in no table is refused by name: ignoring an
 * unknown part of a model would give wrong text without an error. */
#include "moe/model/internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- the tensors of a layer ------------------------------------------------------------------------- */

enum dim {
    D_ONE,
    D_MODEL,
    D_ATTEND,
    D_Q,
    D_Q_OUT,
    D_K,
    D_V,
    D_O,
    D_HEAD,
    D_HEADS,
    D_FF,
    D_EXPERTS,
    D_EXPERT,
    D_SHARED,
    D_LOW,
    D_KEPT,
    D_LATENT,
    D_PLAIN,
    D_VALUE,
    D_HALVES,
    D_MIX,
    D_STATE,
    D_MIXED,
    D_RATES,
    D_BOTH_RATES,
    D_STATE_VALUE,
    D_TAP
};
enum need {
    ALWAYS,
    NORM_BIAS,
    FFN_NORM,
    POST_NORM,
    OUT_NORMS,
    LAYER_SCALE,
    ATTENDS,
    HIGH_Q,
    LOW_Q,
    OWN_KV,
    OWN_V,
    LATENT,
    KV_SPLIT,
    KV_WHOLE,
    QK_NORM_HEAD,
    QK_NORM_ALL,
    QKV_BIAS,
    O_BIAS,
    SINKS,
    DELTA,
    DELTA_MIX,
    DELTA_MIXED,
    DELTA_RATES,
    DELTA_BA,
    DENSE,
    DENSE_APART,
    EXPERTS,
    ROUTER_BIAS,
    SELECT_BIAS,
    EXPERT_BIAS,
    SHARED,
    SHARED_GATE,
    APART
};

struct part {
    const char *name;
    enum need need;
    enum { VECTOR, MATRIX, STACK, HALVES } kind; /* STACK: a matrix for each head; HALVES: k_b and v_b in one tensor */
    enum dim out, in;
    size_t field; /* offset in struct moe_layer of the float * of a VECTOR or the struct kn_mat; unused for HALVES */
};
#define FIELD(name) offsetof(struct moe_layer, name)

static const struct part parts[] = {
    { "attn_norm.weight", ALWAYS, VECTOR, D_ONE, D_MODEL, FIELD(attn_norm) },
    { "attn_norm.bias", NORM_BIAS, VECTOR, D_ONE, D_MODEL, FIELD(attn_norm_bias) },
    { "ffn_norm.bias", NORM_BIAS, VECTOR, D_ONE, D_MODEL, FIELD(ffn_norm_bias) },
    { "attn_q.weight", HIGH_Q, MATRIX, D_Q_OUT, D_ATTEND, FIELD(q) },
    { "attn_q_a.weight", LOW_Q, MATRIX, D_LOW, D_MODEL, FIELD(q_a) },
    { "attn_q_a_norm.weight", LOW_Q, VECTOR, D_ONE, D_LOW, FIELD(q_a_norm) },
    { "attn_q_b.weight", LOW_Q, MATRIX, D_Q, D_LOW, FIELD(q) },
    { "attn_k.weight", OWN_KV, MATRIX, D_K, D_ATTEND, FIELD(k) },
    { "attn_v.weight", OWN_V, MATRIX, D_V, D_ATTEND, FIELD(v) },
    { "attn_kv_a_mqa.weight", LATENT, MATRIX, D_KEPT, D_MODEL, FIELD(kv_a) },
    { "attn_kv_a_norm.weight", LATENT, VECTOR, D_ONE, D_LATENT, FIELD(kv_a_norm) },
    { "attn_k_b.weight", KV_SPLIT, STACK, D_LATENT, D_PLAIN, FIELD(k_b) },
    { "attn_v_b.weight", KV_SPLIT, STACK, D_VALUE, D_LATENT, FIELD(v_b) },
    { "attn_kv_b.weight", KV_WHOLE, HALVES, D_HALVES, D_LATENT, 0 },
    { "attn_output.weight", ATTENDS, MATRIX, D_MODEL, D_O, FIELD(o) },
    { "attn_q_norm.weight", QK_NORM_HEAD, VECTOR, D_ONE, D_HEAD, FIELD(q_norm) },
    { "attn_k_norm.weight", QK_NORM_HEAD, VECTOR, D_ONE, D_HEAD, FIELD(k_norm) },
    { "attn_q_norm.weight", QK_NORM_ALL, VECTOR, D_ONE, D_Q, FIELD(q_norm) },
    { "attn_k_norm.weight", QK_NORM_ALL, VECTOR, D_ONE, D_K, FIELD(k_norm) },
    { "attn_q.bias", QKV_BIAS, VECTOR, D_ONE, D_Q, FIELD(q_bias) },
    { "attn_k.bias", QKV_BIAS, VECTOR, D_ONE, D_K, FIELD(k_bias) },
    { "attn_v.bias", QKV_BIAS, VECTOR, D_ONE, D_V, FIELD(v_bias) },
    { "attn_output.bias", O_BIAS, VECTOR, D_ONE, D_MODEL, FIELD(o_bias) },
    { "attn_sinks.weight", SINKS, VECTOR, D_ONE, D_HEADS, FIELD(sinks) },
    { "attn_qkv.weight", DELTA_MIX, MATRIX, D_MIX, D_MODEL, FIELD(mix) },
    { "attn_gate.weight", DELTA_MIX, MATRIX, D_STATE, D_MODEL, FIELD(z) },
    { "ssm_in.weight", DELTA_MIXED, MATRIX, D_MIXED, D_MODEL, FIELD(mixed) },
    { "ssm_beta.weight", DELTA_RATES, MATRIX, D_RATES, D_MODEL, FIELD(beta) },
    { "ssm_alpha.weight", DELTA_RATES, MATRIX, D_RATES, D_MODEL, FIELD(alpha) },
    { "ssm_ba.weight", DELTA_BA, MATRIX, D_BOTH_RATES, D_MODEL, FIELD(ba) },
    { "ssm_conv1d.weight", DELTA, VECTOR, D_MIX, D_TAP, FIELD(taps) },
    { "ssm_a", DELTA, VECTOR, D_ONE, D_RATES, FIELD(decay) },
    { "ssm_dt.bias", DELTA, VECTOR, D_ONE, D_RATES, FIELD(decay_bias) },
    { "ssm_norm.weight", DELTA, VECTOR, D_ONE, D_STATE_VALUE, FIELD(out_norm) },
    { "ssm_out.weight", DELTA, MATRIX, D_MODEL, D_STATE, FIELD(o) },
    { "post_attention_norm.weight", POST_NORM, VECTOR, D_ONE, D_MODEL, FIELD(ffn_norm) },
    { "ffn_norm.weight", FFN_NORM, VECTOR, D_ONE, D_MODEL, FIELD(ffn_norm) },
    { "post_attention_norm.weight", OUT_NORMS, VECTOR, D_ONE, D_MODEL, FIELD(attn_out_norm) },
    { "post_ffw_norm.weight", OUT_NORMS, VECTOR, D_ONE, D_MODEL, FIELD(ffn_out_norm) },
    { "layer_output_scale.weight", LAYER_SCALE, VECTOR, D_ONE, D_ONE, FIELD(out_scale) },
    { "ffn_gate.weight", DENSE_APART, MATRIX, D_FF, D_MODEL, FIELD(gate) },
    { "ffn_up.weight", DENSE_APART, MATRIX, D_FF, D_MODEL, FIELD(up) },
    { "ffn_down.weight", DENSE, MATRIX, D_MODEL, D_FF, FIELD(down) },
    { "ffn_gate_inp.weight", EXPERTS, MATRIX, D_EXPERTS, D_MODEL, FIELD(router) },
    { "ffn_gate_inp.bias", ROUTER_BIAS, VECTOR, D_ONE, D_EXPERTS, FIELD(router_bias) },
    { "exp_probs_b.bias", SELECT_BIAS, VECTOR, D_ONE, D_EXPERTS, FIELD(select_bias) },
    { "ffn_gate_exps.bias", EXPERT_BIAS, VECTOR, D_EXPERTS, D_EXPERT, FIELD(gate_bias) },
    { "ffn_up_exps.bias", EXPERT_BIAS, VECTOR, D_EXPERTS, D_EXPERT, FIELD(up_bias) },
    { "ffn_down_exps.bias", EXPERT_BIAS, VECTOR, D_EXPERTS, D_MODEL, FIELD(down_bias) },
    { "ffn_gate_shexp.weight", SHARED, MATRIX, D_SHARED, D_MODEL, FIELD(gate) },
    { "ffn_up_shexp.weight", SHARED, MATRIX, D_SHARED, D_MODEL, FIELD(up) },
    { "ffn_down_shexp.weight", SHARED, MATRIX, D_MODEL, D_SHARED, FIELD(down) },
    { "ffn_gate_inp_shexp.weight", SHARED_GATE, MATRIX, D_ONE, D_MODEL, FIELD(shared_gate) },
    { "ffn_gate.weight", APART, MATRIX, D_SHARED, D_MODEL, FIELD(gate) },
    { "ffn_up.weight", APART, MATRIX, D_SHARED, D_MODEL, FIELD(up) },
    { "ffn_down.weight", APART, MATRIX, D_MODEL, D_SHARED, FIELD(down) },
    { "ffn_gate_inp.scale", APART, VECTOR, D_ONE, D_MODEL, FIELD(router_norm) },
    { "ffn_down_exps.scale", APART, VECTOR, D_ONE, D_EXPERTS, FIELD(expert_scale) },
    { "pre_ffw_norm_2.weight", APART, VECTOR, D_ONE, D_MODEL, FIELD(expert_norm) },
    { "post_ffw_norm_1.weight", APART, VECTOR, D_ONE, D_MODEL, FIELD(shared_out_norm) },
    { "post_ffw_norm_2.weight", APART, VECTOR, D_ONE, D_MODEL, FIELD(expert_out_norm) },
};
#define N_PART ((int)(sizeof parts / sizeof *parts))

/* Experts are three tensors per layer, or in old mixtral files three tensors per expert. */
static const struct {
    const char *name;
    enum dim out, in;
} expert_parts[OFF_MATRICES] = {
    { "ffn_gate", D_EXPERT, D_MODEL },
    { "ffn_up", D_EXPERT, D_MODEL },
    { "ffn_down", D_MODEL, D_EXPERT },
};

/* A dimension in this layer. */
static int dim_of(const struct moe_desc *d, int layer, enum dim dim)
{
    struct moe_heads h = moe_heads(d, layer);
    switch (dim) {
    case D_ONE:
        return 1;
    case D_MODEL:
        return d->d_model;
    case D_ATTEND:
        return d->head == MOE_HEAD_EAGLE3 ? 2 * d->d_model : d->d_model;
    case D_Q:
        return d->n_head * h.d_head;
    case D_Q_OUT:
        return d->n_head * h.d_head * (d->out_gate ? 2 : 1);
    case D_K:
        return h.n_kv * h.d_head;
    case D_V:
        return h.n_kv * h.d_value;
    case D_O:
        return d->n_head * h.d_value;
    case D_HEAD:
        return h.d_head;
    case D_HEADS:
        return d->n_head;
    case D_LOW:
        return d->d_query_latent;
    case D_KEPT:
        return d->d_key;
    case D_LATENT:
        return d->d_latent;
    case D_PLAIN:
        return d->d_head - d->n_rot;
    case D_VALUE:
        return d->d_value;
    case D_HALVES:
        return d->n_head * (d->d_head - d->n_rot + d->d_value);
    case D_FF:
        return d->d_ff;
    case D_EXPERTS:
        return d->n_expert;
    case D_EXPERT:
        return d->d_expert;
    case D_SHARED:
        return d->d_shared;
    case D_MIX:
        return moe_d_mix(d);
    case D_STATE:
        return moe_d_state_value(d);
    case D_MIXED:
        return moe_d_mix(d) + moe_d_state_value(d);
    case D_RATES:
        return d->n_value_head;
    case D_BOTH_RATES:
        return 2 * d->n_value_head;
    case D_STATE_VALUE:
        return d->d_state_value;
    case D_TAP:
        return d->n_tap;
    }
    return 0;
}

/* True if this layer has the tensors of `need`.  In the order of enum need: those from ATTENDS up to before DELTA apply
 * only to layers with attention, from DELTA up to before DENSE only to delta nets, from EXPERTS on only to layers with
 * experts. */
static bool is_needed(const struct moe_desc *d, int layer, enum need need)
{
    bool dense = !moe_has_experts(d, layer), delta = moe_is_delta(d, layer);
    if ((need >= EXPERTS && dense) || (need >= ATTENDS && need < DELTA && delta) ||
        (need >= DELTA && need < DENSE && !delta))
        return false;
    switch (need) {
    case HIGH_Q:
        return !d->d_query_latent && !d->fused_qkv;
    case LOW_Q:
        return d->d_query_latent > 0;
    case OWN_KV:
        return !moe_is_latent(d) && !d->fused_qkv;
    case OWN_V:
        return !moe_is_latent(d) && !d->fused_qkv && !(d->v_is_k && !moe_has_window(d, layer));
    case LATENT:
        return moe_is_latent(d);
    case KV_SPLIT:
        return moe_is_latent(d) && !d->kv_whole;
    case KV_WHOLE:
        return d->kv_whole;
    case QK_NORM_HEAD:
        return d->qk_norm == MOE_QK_NORM_HEAD;
    case QK_NORM_ALL:
        return d->qk_norm == MOE_QK_NORM_ALL;
    case QKV_BIAS:
        return d->qkv_bias;
    case O_BIAS:
        return d->o_bias;
    case SINKS:
        return d->sinks && (!d->window_sinks || moe_has_window(d, layer));
    case DELTA_MIX:
        return !d->delta_mixed;
    case DELTA_MIXED:
        return d->delta_mixed;
    case DELTA_RATES:
        return !d->delta_ba;
    case DELTA_BA:
        return d->delta_ba;
    case NORM_BIAS:
        return d->layer_norm;
    case FFN_NORM:
        return !d->post_norm;
    case POST_NORM:
        return d->post_norm;
    case OUT_NORMS:
        return d->out_norms;
    case LAYER_SCALE:
        return d->layer_scales;
    case DENSE:
        return dense;
    case DENSE_APART:
        return dense && !d->fused_ffn;
    case ROUTER_BIAS:
        return d->router_bias;
    case SELECT_BIAS:
        return d->select_bias;
    case EXPERT_BIAS:
        return d->expert_bias;
    case SHARED:
        return d->shared == MOE_SHARED_PLAIN || d->shared == MOE_SHARED_GATED;
    case SHARED_GATE:
        return d->shared == MOE_SHARED_GATED;
    case APART:
        return d->shared == MOE_SHARED_APART;
    default:
        return true;
    }
}

/* ---- binding ----------------------------------------------------------------------------------------- */

#define MOST_PARTS 3 /* matrices of the model in one tensor: Q, K and V */

struct binder {
    struct moe_model *m;
    const struct moe_file *f;
    bool *used; /* [tensors] */
};

/* Finds the tensor and checks its shape and format: [n_out, n_in]; with n_stack over 0 a stack of n_stack such
 * matrices, in a third dimension or as [n_out * n_stack, n_in], which are the same bytes.  NULL: the tensor is optional
 * and absent, or *error is set. */
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
        *error = kn_fail(KN_ECORRUPT,
                         "%s: tensor %s has shape [%llu, %llu, %llu], the metadata says "
                         "[%d, %d, %d]",
                         path, name, (unsigned long long)t->dim[0], (unsigned long long)t->dim[1],
                         (unsigned long long)t->dim[2], n_in, n_out, n_stack ? n_stack : 1);
        return NULL;
    }
    if (kn_format_from_gguf(t->gguf_type, &format) != 0) {
        const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
        *error = kn_fail(KN_EUNSUPPORTED,
                         "%s: tensor %s has weight format %s (%u), which is not supported: use a "
                         "file in one of these formats:%s",
                         path, name, type ? type->name : "unknown", t->gguf_type, kn_format_list);
        return NULL;
    }
    if (kn_row_bytes(format, n_in) == 0) {
        *error = kn_fail(KN_ECORRUPT, "%s: tensor %s has rows of %d values, no whole blocks of %s", path, name, n_in,
                         kn_format_info(format)->name);
        return NULL;
    }
    b->used[t - moe_file_tensor(b->f, 0)] = true;
    return t;
}

enum kn_format moe_format_of(const struct moe_tensor *t)
{
    enum kn_format f = KN_F32;
    kn_assert(kn_format_from_gguf(t->gguf_type, &f) == 0);
    return f;
}

struct off_source moe_source_of(const struct moe_tensor *t, int e, int n_out, int n_in)
{
    const struct moe_layout *l = t->layout;
    struct off_source s = {
        .file = t->file, .offset = t->offset, .format = moe_format_of(t), .n_out = n_out, .n_in = n_in, .scale = 1
    };
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
    if (s.scales.bytes) /* scales of a stack are per row: one for each scales.values */
        s.scales.offset += row0 * (uint64_t)(n_in / s.scales.values) * (uint64_t)s.scales.bytes;
    return s;
}

struct off_source moe_source_rows(const struct moe_tensor *t, int row0, int n_out, int n_in)
{
    struct off_source s = moe_source_of(t, 0, n_out, n_in);
    s.offset += (uint64_t)row0 * kn_row_bytes(s.format, n_in);
    return s;
}

/* Whether the family has a tensor of its own with this name, as gemma4 has "ffn_gate_inp.scale", the weight of a norm. */
static bool is_own_part(const struct binder *b, const char *name)
{
    const struct moe_desc *d = &b->m->desc;
    int block, length = 0;
    if (sscanf(name, "blk.%d.%n", &block, &length) != 1 || !length)
        return false;
    for (int i = 0; i < N_PART; i++)
        if (!strcmp(parts[i].name, name + length) && is_needed(d, block - d->block0, parts[i].need))
            return true;
    return false;
}

/* Finds the tensor with the scales of n matrices that are in the tensor `name`, "X.weight": "X.scale".  NULL: there is
 * none, or *error is set.  "X.input_scale" is for activations in four bits, and not used. */
static const struct moe_tensor *find_scale(struct binder *b, const char *name, int n, int *error)
{
    static const char end[] = ".weight";
    char other[80];
    int head = (int)strlen(name) - (int)(sizeof end - 1);
    if (head < 0 || strcmp(name + head, end))
        return NULL;
    snprintf(other, sizeof other, "%.*s.input_scale", head, name);
    const struct moe_tensor *t = moe_file_find_tensor(b->f, other);
    if (t)
        b->used[t - moe_file_tensor(b->f, 0)] = true;
    snprintf(other, sizeof other, "%.*s.scale", head, name);
    t = is_own_part(b, other) ? NULL : find(b, other, 1, n, 0, true, error);
    if (t && moe_format_of(t) != KN_F32) {
        *error = kn_fail(KN_EUNSUPPORTED, "%s: tensor %s must be F32", moe_file_path(b->f), other);
        return NULL;
    }
    return t;
}

/* Binds a vector.  No bind_ function checks the space in m->dense: it has MOST_PARTS entries for each tensor of the file,
 * and every tensor is bound once. */
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
    const struct moe_tensor *scale = t ? find_scale(b, name, 1, &error) : NULL;
    if (t) {
        *out = (struct kn_mat){ moe_format_of(t), n_out * n_stack, n_in, 1, NULL };
        b->m->dense[b->m->n_dense++] = (struct moe_dense){ .tensor = t, .scale = scale, .matrix = out };
    }
    return error;
}

static int bind_matrix(struct binder *b, const char *name, int n_out, int n_in, bool optional, struct kn_mat *out)
{
    return bind_stack(b, name, n_out, n_in, 1, optional, out);
}

/* Binds a tensor that holds n matrices, one below the other.  The tensor of a folder may not have scales apart. */
static int bind_rows(struct binder *b, int layer, const char *part, int n_in, int n, const int *n_out,
                     struct kn_mat *const *out)
{
    char name[64];
    int error = 0, n_all = 0, row0 = 0;
    snprintf(name, sizeof name, "blk.%d.%s", b->m->desc.block0 + layer, part);
    for (int i = 0; i < n; i++)
        n_all += n_out[i];
    const struct moe_tensor *t = find(b, name, n_all, n_in, 0, false, &error);
    if (!t)
        return error;
    if (t->layout)
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor %s is packed, and holds several matrices", moe_file_path(b->f),
                       name);
    const struct moe_tensor *scale = find_scale(b, name, 1, &error);
    for (int i = 0; i < n; i++) {
        *out[i] = (struct kn_mat){ moe_format_of(t), n_out[i], n_in, 1, NULL };
        b->m->dense[b->m->n_dense++] = (struct moe_dense){
            .tensor = t, .scale = scale, .matrix = out[i], .row0 = row0
        };
        row0 += n_out[i];
    }
    return error;
}

static int bind_fused(struct binder *b, int layer, struct moe_layer *l)
{
    const struct moe_desc *d = &b->m->desc;
    int error = 0;
    if (d->fused_qkv)
        error = bind_rows(b, layer, "attn_qkv.weight", d->d_model, 3,
                          (const int[]){ dim_of(d, layer, D_Q), dim_of(d, layer, D_K), dim_of(d, layer, D_V) },
                          (struct kn_mat *const[]){ &l->q, &l->k, &l->v });
    if (d->fused_ffn && !error && is_needed(d, layer, DENSE))
        error = bind_rows(b, layer, "ffn_up.weight", d->d_model, 2, (const int[]){ d->d_ff, d->d_ff },
                          (struct kn_mat *const[]){ &l->gate, &l->up });
    return error;
}

/* The format of K_h, which is a part of attn_kv_b transposed: one that holds each value exactly.  Blocks run along
 * rows, so a quantised matrix cannot be transposed as blocks; its values (of 18 bits and more) become float32. */
static enum kn_format latent_key_format(enum kn_format whole)
{
    return kn_format_info(whole)->block_values == 1 ? whole : KN_F32;
}

/* Binds attn_kv_b, which has for each head the columns of k_b as rows, then the rows of v_b. */
static int bind_halves(struct binder *b, const char *name, int n_out, int n_in, struct moe_layer *l)
{
    const struct moe_desc *d = &b->m->desc;
    int error = 0, d_plain = d->d_head - d->n_rot;
    const struct moe_tensor *t = find(b, name, n_out, n_in, 0, false, &error);
    if (!t)
        return error;
    l->k_b = (struct kn_mat){ latent_key_format(moe_format_of(t)), d->n_head * d->d_latent, d_plain, 1, NULL };
    l->v_b = (struct kn_mat){ moe_format_of(t), d->n_head * d->d_value, d->d_latent, 1, NULL };
    const struct moe_tensor *scale = find_scale(b, name, 1, &error);
    b->m->dense[b->m->n_dense++] = (struct moe_dense){ .tensor = t, .scale = scale, .halves = l };
    if (l->k_b.format != moe_format_of(t))
        b->m->shape.widened_bytes += kn_mat_bytes(l->k_b.format, l->k_b.n_out, l->k_b.n_in);
    return error;
}

static int bind_part(struct binder *b, const char *name, const struct part *p, int layer)
{
    const struct moe_desc *d = &b->m->desc;
    struct moe_layer *l = &b->m->layer[layer];
    void *field = (char *)l + p->field;
    int n_out = dim_of(d, layer, p->out), n_in = dim_of(d, layer, p->in);
    switch (p->kind) {
    case VECTOR:
        return bind_vector(b, name, n_out, n_in, false, field);
    case STACK:
        return bind_stack(b, name, n_out, n_in, d->n_head, false, field);
    case HALVES:
        return bind_halves(b, name, n_out, n_in, l);
    default:
        return bind_matrix(b, name, n_out, n_in, false, field);
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
        int error = bind_part(b, name, p, layer);
        if (error)
            return error;
    }
    int error = bind_fused(b, layer, l);
    if (error)
        return error;
    int n_before = moe_n_delta_before(d, layer);
    l->nth = moe_is_delta(d, layer) ? n_before : layer - n_before;
    l->expert0 = moe_n_sparse_before(d, layer) * d->n_expert + (target ? target->shape.n_expert_total : 0);
    if (moe_has_window(d, layer))
        l->window = d->window;
    return 0;
}

/* Binds embedding, output matrix and final norm.  A draft head uses its target's embedding and output matrix, which
 * are loaded before the head. */
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
    if ((d->layer_norm && (error = bind_vector(b, "output_norm.bias", 1, d->d_model, false, &m->out_norm_bias))) ||
        (d->out_bias && (error = bind_vector(b, "output.bias", 1, d->n_vocab, false, &m->out_bias))))
        return error;
    return bind_vector(b, "output_norm.weight", 1, d->d_model, false, &m->out_norm);
}

/* Binds embedding, output matrix, final norm and fc of an MTP layer.  By definition it shares embedding and output
 * matrix with its target, but a file may hold copies of them in another format.  If the file lacks the layer's final
 * norm, the target's is used. */
static int bind_ahead_ends(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    const struct {
        const char *name;
        int n_out, n_in;
        struct kn_mat *matrix;
        float **vector;
        bool optional;
    } ends[] = {
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

/* Binds d2t, the list of tokens that an EAGLE-3 head can predict.  Without the list it predicts all tokens and may use
 * its target's output matrix. */
static int bind_guess(struct binder *b)
{
    struct moe_model *m = b->m;
    const char *path = moe_file_path(b->f);
    m->guess = moe_file_find_tensor(b->f, "d2t");
    if (!m->guess)
        return 0;
    if (m->guess->gguf_type != MOE_TENSOR_I64) {
        const struct moe_tensor_type *type = moe_tensor_type(m->guess->gguf_type);
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor d2t has type %s; a list of tokens must be I64", path,
                       type ? type->name : "unknown");
    }
    b->used[m->guess - moe_file_tensor(b->f, 0)] = true;
    return 0;
}

/* Binds d2t, fc, final norm, and embedding and output matrix of an EAGLE-3 head if it has its own. */
static int bind_eagle3_ends(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    int error;
    m->embed = m->target->embed;
    m->head = m->target->head;
    for (int i = 0; i < d->n_inner_norm; i++) {
        char name[64];
        snprintf(name, sizeof name, d->n_inner_norm == 1 ? "enc.output_norm.weight" : "fc_norm.%d.weight", i);
        if ((error = bind_vector(b, name, 1, MOE_INNER * d->d_model / d->n_inner_norm, false, &m->inner_norm[i])))
            return error;
    }
    if ((error = bind_guess(b)) ||
        (error = bind_matrix(b, "fc.weight", d->d_model, d->reads.n_inner * d->d_model, false, &m->fc)) ||
        (error = bind_matrix(b, "token_embd.weight", d->n_vocab, d->d_model, true, &m->embed)) ||
        (error = bind_matrix(b, "output.weight", d->n_guess, d->d_model, m->guess == NULL, &m->head)) ||
        (error = bind_vector(b, "blk.0.attn_norm_2.weight", 1, d->d_model, false, &m->feature_norm)))
        return error;
    return bind_vector(b, "output_norm.weight", 1, d->d_model, false, &m->out_norm);
}

static int bind_all(struct binder *b)
{
    static int (*const ends[])(struct binder * b) = { [MOE_HEAD_NONE] = bind_ends,
                                                      [MOE_HEAD_EAGLE] = bind_ends,
                                                      [MOE_HEAD_EAGLE3] = bind_eagle3_ends,
                                                      [MOE_HEAD_AHEAD] = bind_ahead_ends };
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    int error;
    if ((error = ends[d->head](b)) ||
        (error = bind_vector(b, d->long_rope ? "rope_factors_short.weight" : "rope_freqs.weight", 1, d->n_rot / 2,
                             !d->long_rope, &m->rope_extra)) ||
        (d->long_rope && (error = bind_vector(b, "rope_factors_long.weight", 1, d->n_rot / 2, false, &m->long_extra))))
        return error;
    for (int i = 0; i < d->n_layer; i++)
        if ((error = bind_layer(b, i)))
            return error;
    return 0;
}

/* ---- experts ----------------------------------------------------------------------------------------- */

/* Lists the gates and ups of a layer's experts, in a stacked tensor that has each expert's ups below its gates.  Returns
 * 1, or 0 if there is no such tensor. */
static int bind_gate_up(struct binder *b, int layer, struct off_expert *expert, const struct moe_tensor **scale)
{
    const struct moe_desc *d = &b->m->desc;
    char name[64];
    int error = 0;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", layer);
    const struct moe_tensor *t = find(b, name, 2 * d->d_expert, d->d_model, d->n_expert, true, &error);
    if (!t)
        return error;
    if (t->layout)
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor %s is packed, and holds several matrices", moe_file_path(b->f),
                       name);
    for (int e = 0; e < d->n_expert; e++)
        for (int i = 0; i < 2; i++)
            expert[e].matrix[i] = moe_source_of(t, 2 * e + i, d->d_expert, d->d_model);
    scale[0] = scale[1] = find_scale(b, name, d->n_expert, &error);
    return error ? error : 1;
}

/* Lists the position of matrix i of every expert of a layer (numbered as in the file), in one stacked tensor or in one
 * tensor per expert.  *scale: the tensor with the scales of a stack's matrices, or NULL. */
static int bind_experts(struct binder *b, int layer, int i, struct off_expert *expert, const struct moe_tensor **scale)
{
    const struct moe_desc *d = &b->m->desc;
    int n_out = dim_of(d, 0, expert_parts[i].out), n_in = dim_of(d, 0, expert_parts[i].in), error = 0;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s_exps.weight", layer, expert_parts[i].name);
    const struct moe_tensor *stack = find(b, name, n_out, n_in, d->n_expert, true, &error), *t = stack;
    if (stack)
        *scale = find_scale(b, name, d->n_expert, &error);
    if (error)
        return error;
    bool gate_up_interleaved = stack && stack->layout && stack->layout->scales && stack->layout->step == 2;
    b->m->gate_up_interleaved |= gate_up_interleaved;
    if (gate_up_interleaved && i == 1) /* ups are in the same tensor as gates */
        return 0;
    n_out *= gate_up_interleaved ? 2 : 1;
    for (int e = 0; e < d->n_expert; e++) {
        if (!stack) {
            char one[64];
            snprintf(one, sizeof one, "blk.%d.%s.%d.weight", layer, expert_parts[i].name, e);
            if (e > 0 || moe_file_find_tensor(b->f, one)) /* neither exists: the message names the stack */
                memcpy(name, one, sizeof name);
            if (!(t = find(b, name, n_out, n_in, 0, false, &error)))
                return error;
        }
        expert[e].matrix[i] = moe_source_of(t, stack ? e : 0, n_out, n_in);
        expert[e].group = layer;
    }
    return 0;
}

/* Lists the experts of n_layer layers, from the first layer with experts on. */
static int list_experts(struct binder *b, int n_layer)
{
    const struct moe_desc *d = &b->m->desc;
    b->m->expert = kn_calloc((size_t)n_layer * (size_t)d->n_expert, sizeof *b->m->expert);
    b->m->expert_scale = kn_calloc((size_t)n_layer * OFF_MATRICES, sizeof *b->m->expert_scale);
    if (!b->m->expert || !b->m->expert_scale)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", n_layer * d->n_expert);
    for (int n = 0, i = d->n_lead; n < n_layer; n++, i++) {
        while (i < d->n_layer && !moe_has_experts(d, i)) /* behind the last layer: an MTP layer */
            i++;
        int layer = d->block0 + i;
        struct off_expert *expert = b->m->expert + (size_t)n * (size_t)d->n_expert;
        const struct moe_tensor **scale = b->m->expert_scale + (size_t)n * OFF_MATRICES;
        int fused = bind_gate_up(b, layer, expert, scale), error = fused < 0 ? fused : 0;
        for (int k = fused > 0 ? 2 : 0; !error && k < OFF_MATRICES; k++)
            error = bind_experts(b, layer, k, expert, &scale[k]);
        if (error)
            return error;
    }
    return 0;
}

bool moe_is_of_blocks(struct moe_string name, int first, int n_block)
{
    char prefix[32];
    for (int i = first; i < first + n_block; i++) {
        size_t n = (size_t)snprintf(prefix, sizeof prefix, "blk.%d.", i);
        if (name.n > n && !memcmp(name.data, prefix, n))
            return true;
    }
    return false;
}

/* True for a tensor that this model does not use: of MTP layers, which follow the last layer; or, if the model is an
 * MTP head, every tensor outside its layer. */
static bool is_of_others(const struct moe_desc *d, struct moe_string name)
{
    return d->head == MOE_HEAD_AHEAD ? !moe_is_of_blocks(name, d->block0, d->n_layer)
                                     : moe_is_of_blocks(name, d->n_layer, d->n_ahead);
}

/* True for the attn_kv_b tensor of a model that uses attn_k_b and attn_v_b in its place. */
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
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: tensor %s is no part of a %s model: this kind of file "
                       "is not supported",
                       moe_file_path(b->f), name, b->m->desc.arch);
    }
    if (b->m->shape.widened_bytes)
        kn_say(KN_LOG_INFO,
               "%s: attn_kv_b is quantised along rows, but keys are used transposed and need "
               "%zu MiB as F32: a file with attn_k_b needs less",
               moe_file_path(b->f), (b->m->shape.widened_bytes >> 20) + 1);
    return 0;
}

/* Refuses matrices that only moe_file_read() brings into order. */
static int refuse_unordered(const struct moe_file *f)
{
    char shown[80];
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        const struct moe_layout *l = t->layout;
        bool listed = l && l->scales && l->scales->order == OFF_BY_INPUT_LISTED;
        if (!listed && !(l && l->n_output))
            continue;
        moe_string_show(t->name, shown, sizeof shown);
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: tensor '%s' is %s; make a file of it first: "
                       "spillway quantize FOLDER -o FILE.gguf --format q4_k",
                       moe_file_path(f), shown,
                       listed ? "GPTQ with reordered inputs (desc_act)" : "a stack of experts stored by input");
    }
    return 0;
}

int moe_bind(struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    size_t n = moe_file_tensor_count(m->file) + 1;
    struct binder b = { .m = m, .f = m->file, .used = kn_calloc(n, 1) };
    m->layer = kn_calloc((size_t)d->n_layer, sizeof *m->layer);
    m->dense = kn_calloc(MOST_PARTS * n, sizeof *m->dense);
    int error = b.used && m->layer && m->dense ? refuse_unordered(m->file)
                                               : kn_fail(KN_ENOMEM, "no memory to list the tensors");
    if (!error && (error = bind_all(&b)) == 0 && d->n_expert)
        error = list_experts(&b, moe_n_sparse_before(d, d->n_layer) + m->ahead);
    if (!error)
        error = refuse_unknown(&b);
    kn_free(b.used);
    return error;
}
