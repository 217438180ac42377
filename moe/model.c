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

enum dim { D_ONE, D_MODEL, D_Q, D_KV, D_HEAD, D_HEADS, D_FF, D_EXPERTS, D_EXPERT, D_SHARED };
enum need {
    ALWAYS, QK_NORM_HEAD, QK_NORM_ALL, QKV_BIAS, O_BIAS, SINKS, FFN_NORM, POST_NORM,
    DENSE, EXPERTS, ROUTER_BIAS, SELECT_BIAS, EXPERT_BIAS, SHARED, SHARED_GATE
};

struct part {
    const char *name;
    enum need need;
    enum { VECTOR, MATRIX } kind;               /* float * or struct kn_mat .. */
    enum dim out, in;
    size_t field;                               /* .. in struct moe_layer */
};
#define FIELD(name) offsetof(struct moe_layer, name)

static const struct part parts[] = {
    { "attn_norm.weight",          ALWAYS,       VECTOR, D_ONE,     D_MODEL,  FIELD(attn_norm) },
    { "attn_q.weight",             ALWAYS,       MATRIX, D_Q,       D_MODEL,  FIELD(q) },
    { "attn_k.weight",             ALWAYS,       MATRIX, D_KV,      D_MODEL,  FIELD(k) },
    { "attn_v.weight",             ALWAYS,       MATRIX, D_KV,      D_MODEL,  FIELD(v) },
    { "attn_output.weight",        ALWAYS,       MATRIX, D_MODEL,   D_Q,      FIELD(o) },
    { "attn_q_norm.weight",        QK_NORM_HEAD, VECTOR, D_ONE,     D_HEAD,   FIELD(q_norm) },
    { "attn_k_norm.weight",        QK_NORM_HEAD, VECTOR, D_ONE,     D_HEAD,   FIELD(k_norm) },
    { "attn_q_norm.weight",        QK_NORM_ALL,  VECTOR, D_ONE,     D_Q,      FIELD(q_norm) },
    { "attn_k_norm.weight",        QK_NORM_ALL,  VECTOR, D_ONE,     D_KV,     FIELD(k_norm) },
    { "attn_q.bias",               QKV_BIAS,     VECTOR, D_ONE,     D_Q,      FIELD(q_bias) },
    { "attn_k.bias",               QKV_BIAS,     VECTOR, D_ONE,     D_KV,     FIELD(k_bias) },
    { "attn_v.bias",               QKV_BIAS,     VECTOR, D_ONE,     D_KV,     FIELD(v_bias) },
    { "attn_output.bias",          O_BIAS,       VECTOR, D_ONE,     D_MODEL,  FIELD(o_bias) },
    { "attn_sinks.weight",         SINKS,        VECTOR, D_ONE,     D_HEADS,  FIELD(sinks) },
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
    case D_KV:      return d->n_kv * d->d_head;
    case D_HEAD:    return d->d_head;
    case D_HEADS:   return d->n_head;
    case D_FF:      return d->d_ff;
    case D_EXPERTS: return d->n_expert;
    case D_EXPERT:  return d->d_expert;
    case D_SHARED:  return d->d_shared;
    }
    return 0;
}

/* What experts need is needed in layers that have them. */
static bool is_needed(const struct moe_desc *d, int layer, enum need need)
{
    bool dense = !d->n_expert || layer < d->n_lead;
    if (need >= EXPERTS && dense)
        return false;
    switch (need) {
    case QK_NORM_HEAD: return d->qk_norm == MOE_QK_NORM_HEAD;
    case QK_NORM_ALL:  return d->qk_norm == MOE_QK_NORM_ALL;
    case QKV_BIAS:     return d->qkv_bias;
    case O_BIAS:       return d->o_bias;
    case SINKS:        return d->sinks;
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

/* The tensor, checked to be [n_out, n_in] (times n_stack when over 0), or NULL with *error set unless
 * it may be absent. */
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
    if (t->dim[0] != (uint64_t)n_in || t->dim[1] != (uint64_t)n_out ||
        t->dim[2] != (uint64_t)(n_stack ? n_stack : 1) || t->dim[3] != 1) {
        *error = kn_fail(KN_ECORRUPT, "%s: tensor %s has shape [%llu, %llu, %llu], the metadata says "
                         "[%d, %d, %d]", path, name, (unsigned long long)t->dim[0],
                         (unsigned long long)t->dim[1], (unsigned long long)t->dim[2], n_in, n_out,
                         n_stack ? n_stack : 1);
        return NULL;
    }
    if (kn_format_from_gguf(t->gguf_type, &format) != 0) {
        *error = kn_fail(KN_EUNSUPPORTED, "%s: tensor %s has weight format %u, which is not supported yet "
                         "(F32, F16, BF16, Q8_0, Q4_K, Q6_K and MXFP4 are)", path, name, t->gguf_type);
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

static struct off_source source_of(const struct moe_tensor *t, int n_out, int n_in)
{
    return (struct off_source){ t->file, t->offset, format_of(t), n_out, n_in };
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

static int bind_matrix(struct binder *b, const char *name, int n_out, int n_in, bool optional,
                       struct kn_mat *out)
{
    int error = 0;
    const struct moe_tensor *t = find(b, name, n_out, n_in, 0, optional, &error);
    if (t) {
        *out = (struct kn_mat){ format_of(t), n_out, n_in, NULL };
        b->m->dense[b->m->n_dense++] = (struct moe_dense){ .tensor = t, .matrix = out };
    }
    return error;
}

static int bind_layer(struct binder *b, int layer)
{
    const struct moe_desc *d = &b->m->desc;
    struct moe_layer *l = &b->m->layer[layer];
    for (int i = 0; i < N_PART; i++) {
        const struct part *p = &parts[i];
        if (!is_needed(d, layer, p->need))
            continue;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", layer, p->name);
        void *field = (char *)l + p->field;
        int n_out = dim_of(d, p->out), n_in = dim_of(d, p->in);
        int error = p->kind == VECTOR ? bind_vector(b, name, n_out, n_in, false, field)
                                      : bind_matrix(b, name, n_out, n_in, false, field);
        if (error)
            return error;
    }
    l->expert0 = (layer - d->n_lead) * d->n_expert;
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
        return bind_matrix(b, "fc.weight", d->d_model, 2 * d->d_model, false, &m->fc);
    }
    if ((error = bind_matrix(b, "token_embd.weight", d->n_vocab, d->d_model, false, &m->embed)) ||
        (error = bind_matrix(b, "output.weight", d->n_vocab, d->d_model, true, &m->head)))
        return error;
    m->tied = !m->head.n_out;
    if (m->tied)
        m->head = m->embed;
    return 0;
}

static int bind_all(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    int error;
    if ((error = bind_ends(b)) ||
        (error = bind_vector(b, "output_norm.weight", 1, d->d_model, false, &m->out_norm)) ||
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

/* Matrix i of every expert of a layer, from one stacked tensor or from one tensor each. */
static int bind_experts(struct binder *b, int layer, int i, struct off_expert *expert)
{
    const struct moe_desc *d = &b->m->desc;
    int n_out = dim_of(d, expert_parts[i].out), n_in = dim_of(d, expert_parts[i].in), error = 0;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s_exps.weight", layer, expert_parts[i].name);
    const struct moe_tensor *stack = find(b, name, n_out, n_in, d->n_expert, true, &error), *t = stack;
    if (error)
        return error;
    for (int e = 0; e < d->n_expert; e++) {
        uint64_t skip = 0;
        if (!stack) {
            char one[64];
            snprintf(one, sizeof one, "blk.%d.%s.%d.weight", layer, expert_parts[i].name, e);
            if (e > 0 || moe_file_find_tensor(b->f, one))       /* neither: it is the stack that is missing */
                memcpy(name, one, sizeof name);
            if (!(t = find(b, name, n_out, n_in, 0, false, &error)))
                return error;
        } else {
            skip = (uint64_t)e * (uint64_t)n_out * kn_row_bytes(format_of(t), n_in);
        }
        expert[e].matrix[i] = source_of(t, n_out, n_in);
        expert[e].matrix[i].offset += skip;
        expert[e].group = layer;
    }
    return 0;
}

/* Which kinds of activation codes a layer's experts read, so that rows are coded once for all of them;
 * what all experts take in the file; and what a thread needs to interleave one. */
static void sum_up_experts(struct moe_model *m)
{
    for (int e = 0; e < m->shape.n_expert_total; e++) {
        const struct off_expert *x = &m->expert[e];
        for (int i = 0; i < OFF_MATRICES; i++) {
            size_t scratch = off_scratch_bytes(&x->matrix[i]);
            unsigned bit = 1u << kn_format_info(x->matrix[i].format)->act;
            if (i < OFF_MATRICES - 1)
                m->layer[x->group].expert_acts |= bit;
            else
                m->layer[x->group].down_acts |= bit;
            m->scratch_bytes = scratch > m->scratch_bytes ? scratch : m->scratch_bytes;
            m->shape.expert_file_bytes += off_file_bytes(&x->matrix[i]);
        }
    }
    m->shape.expert_bytes = off_store_bytes(m->expert, m->shape.n_expert_total);
    m->shape.expert_least = off_store_least(m->expert, m->shape.n_expert_total);
}

static int list_experts(struct binder *b)
{
    const struct moe_desc *d = &b->m->desc;
    int n_layer = d->n_layer - d->n_lead;
    b->m->expert = kn_calloc((size_t)n_layer * (size_t)d->n_expert, sizeof *b->m->expert);
    if (!b->m->expert)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", n_layer * d->n_expert);
    for (int layer = d->n_lead; layer < d->n_layer; layer++)
        for (int i = 0; i < OFF_MATRICES; i++) {
            int error = bind_experts(b, layer, i, b->m->expert + b->m->layer[layer].expert0);
            if (error)
                return error;
        }
    return 0;
}

/* Layers that guess tokens ahead come after the others. */
static bool is_ahead(const struct moe_desc *d, struct moe_string name)
{
    char prefix[32];
    for (int i = d->n_layer; i < d->n_layer + d->n_ahead; i++) {
        size_t n = (size_t)snprintf(prefix, sizeof prefix, "blk.%d.", i);
        if (name.n > n && !memcmp(name.data, prefix, n))
            return true;
    }
    return false;
}

static int refuse_unknown(const struct binder *b)
{
    int n_ahead = 0;
    for (size_t i = 0; i < moe_file_tensor_count(b->f); i++) {
        char name[128];
        if (b->used[i])
            continue;
        if (is_ahead(&b->m->desc, moe_file_tensor(b->f, i)->name)) {
            n_ahead++;
            continue;
        }
        moe_string_show(moe_file_tensor(b->f, i)->name, name, sizeof name);
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor %s has no place in a %s model: the file is of a kind "
                       "that is not supported", moe_file_path(b->f), name, b->m->desc.arch);
    }
    if (n_ahead)
        kn_say(KN_LOG_INFO, "%s: %d tensors that guess tokens ahead are left in the file",
               moe_file_path(b->f), n_ahead);
    return 0;
}

/* ---- dense weights ------------------------------------------------------------------------------------- */

static struct off_source source_of_dense(const struct moe_dense *p)
{
    return source_of(p->tensor, p->matrix->n_out, p->matrix->n_in);
}

/* Of a vector, or of one for each expert. */
static size_t n_value(const struct moe_tensor *t) { return (size_t)(t->dim[0] * t->dim[1]); }

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
    for (int i = 0; i < m->n_dense; i++)
        if (m->dense[i].vector)
            *m->dense[i].vector = kn_arena_take(a, n_value(m->dense[i].tensor), sizeof(float));
    m->rope_freq = kn_arena_take(a, (size_t)m->desc.n_rot / 2, sizeof(float));
    return n;
}

static int read_vector(const struct moe_file *f, const struct moe_tensor *t, float *to)
{
    const struct off_files *files = moe_file_files(f);
    int n = (int)t->dim[0];
    size_t row = kn_row_bytes(format_of(t), n), bytes = row * (size_t)t->dim[1];
    uint8_t *raw = kn_alloc(bytes);
    if (!raw)
        return kn_fail(KN_ENOMEM, "no memory for vectors of %zu values", n_value(t));
    int error = kn_file_read(files->fd[t->file], files->path[t->file], raw, bytes, t->offset);
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

static int read_matrices(struct moe_model *m, struct off_load *load, int n,
                         const struct moe_load_options *opt)
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
    int error = off_load(moe_file_files(m->file), opt->io, load, n, &hands, opt->progress);
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
    if (m->target) {
        kn_assert(m->target->arena.base);
        m->embed = m->target->embed;
        m->head = m->target->head;
    }
    for (int i = 0; opt->progress && i < m->n_dense; i++)
        atomic_fetch_add(&opt->progress->total_bytes, m->dense[i].tensor->bytes);
    if ((error = read_vectors(m, opt->progress)) == 0)
        error = read_matrices(m, load, n, opt);
done:
    kn_free(load);
    return error;
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

static void describe(struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    m->shape = (struct moe_shape){
        .n_layer = d->n_layer, .d_model = d->d_model, .n_head = d->n_head, .n_kv = d->n_kv,
        .d_head = d->d_head, .n_vocab = d->n_vocab, .n_ctx_train = d->n_ctx_train,
        .n_expert = d->n_expert, .n_used = d->n_used, .d_ff = d->d_ff, .d_expert = d->d_expert,
        .n_expert_total = (d->n_layer - d->n_lead) * d->n_expert,
    };
    memcpy(m->shape.arch, d->arch, sizeof m->shape.arch);
    struct kn_arena count = { 0 };
    place_dense(m, &count, NULL);
    m->shape.dense_bytes = count.used;
    for (int i = 0; i < m->n_dense; i++)        /* of the table one row, which is nothing */
        if (m->dense[i].matrix != &m->embed || m->tied)
            m->shape.pass_bytes += m->dense[i].tensor->bytes;
    double width = d->d_model, q = d->n_head * (double)d->d_head, kv = d->n_kv * (double)d->d_head;
    double dense = 3.0 * d->d_ff, block = d->n_expert + 3.0 * d->n_used * d->d_expert + 3.0 * d->d_shared;
    int n_dense = d->n_expert ? d->n_lead : d->n_layer;
    m->shape.row_macs = width * (d->n_layer * (2 * q + 2 * kv) + n_dense * dense +
                                 (d->n_layer - n_dense) * block + d->n_vocab + (d->head ? 2 * width : 0));
    if (d->n_expert)
        sum_up_experts(m);
}

int moe_model_open(struct moe_model **out, const struct moe_file *f, const struct moe_model_options *opt)
{
    struct moe_model *m = kn_calloc(1, sizeof *m);
    struct binder b = { .m = m, .f = f, .used = kn_calloc(moe_file_tensor_count(f) + 1, 1) };
    int error = m && b.used ? 0 : kn_fail(KN_ENOMEM, "no memory to open a model");
    if (error)
        goto done;
    m->file = f;
    m->target = opt->target;
    m->ops = kn_ops(opt->isa);
    if ((error = moe_desc_read(&m->desc, f)) || (error = check_target(m)))
        goto done;
    m->layer = kn_calloc((size_t)m->desc.n_layer, sizeof *m->layer);
    m->dense = kn_calloc(moe_file_tensor_count(f) + 1, sizeof *m->dense);
    if (!m->layer || !m->dense)
        error = kn_fail(KN_ENOMEM, "no memory to list the tensors");
    if (!error && (error = bind_all(&b)) == 0 && m->desc.n_expert)
        error = list_experts(&b);
    if (!error)
        error = refuse_unknown(&b);
    if (!error)
        describe(m);
done:
    kn_free(b.used);
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
        .files = *moe_file_files(m->file), .expert = m->expert, .n_expert = m->shape.n_expert_total,
        .slot_bytes = opt->expert_bytes, .io = opt->io, .heat_path = opt->heat_path,
        .pack_path = opt->pack_path, .model_id = id });
}

int moe_model_load(struct moe_model *m, const struct moe_load_options *opt)
{
    kn_assert(!m->arena.base);
    int error = load_dense(m, opt);
    if (error || (error = set_rotation(m)))
        return error;
    if (m->expert && (error = open_store(m, opt)))
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
    off_store_close(m->store);
    kn_arena_close(&m->arena);
    kn_free(m->expert);
    kn_free(m->dense);
    kn_free(m->layer);
    kn_free(m);
}

const struct moe_shape *moe_model_shape(const struct moe_model *m) { return &m->shape; }
const struct kn_ops *moe_model_ops(const struct moe_model *m) { return m->ops; }
struct off_store *moe_model_store(const struct moe_model *m) { return m->store; }
