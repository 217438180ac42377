/* Weights bound to a description.
 *
 * What a layer is made of stands in one table: the tensor's name, the field that takes it, its shape in
 * the description's words, and when it must be there.  Opening a model walks the table twice: once over
 * an arena that only counts, once to place.  Matrices are then read in file order and interleaved;
 * vectors are read as float32.  A tensor that nothing asked for is refused with its name: a file with
 * parts we do not know would give wrong text, not an error. */
#include "moe/internal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a layer is made of ------------------------------------------------------------------------ */

enum dim { D_ONE, D_MODEL, D_Q, D_KV, D_HEAD, D_FF, D_EXPERTS, D_EXPERT };
enum need { ALWAYS, QK_NORM, QKV_BIAS, DENSE, EXPERTS };

struct part {
    const char *name;
    enum need need;
    enum dim out, in;                           /* a vector has out D_ONE */
    size_t field;                               /* float * or struct kn_mat in struct moe_layer */
};
#define FIELD(name) offsetof(struct moe_layer, name)

static const struct part parts[] = {
    { "attn_norm.weight",    ALWAYS,   D_ONE,     D_MODEL, FIELD(attn_norm) },
    { "attn_q.weight",       ALWAYS,   D_Q,       D_MODEL, FIELD(q) },
    { "attn_k.weight",       ALWAYS,   D_KV,      D_MODEL, FIELD(k) },
    { "attn_v.weight",       ALWAYS,   D_KV,      D_MODEL, FIELD(v) },
    { "attn_output.weight",  ALWAYS,   D_MODEL,   D_Q,     FIELD(o) },
    { "attn_q_norm.weight",  QK_NORM,  D_ONE,     D_HEAD,  FIELD(q_norm) },
    { "attn_k_norm.weight",  QK_NORM,  D_ONE,     D_HEAD,  FIELD(k_norm) },
    { "attn_q.bias",         QKV_BIAS, D_ONE,     D_Q,     FIELD(q_bias) },
    { "attn_k.bias",         QKV_BIAS, D_ONE,     D_KV,    FIELD(k_bias) },
    { "attn_v.bias",         QKV_BIAS, D_ONE,     D_KV,    FIELD(v_bias) },
    { "ffn_norm.weight",     ALWAYS,   D_ONE,     D_MODEL, FIELD(ffn_norm) },
    { "ffn_gate.weight",     DENSE,    D_FF,      D_MODEL, FIELD(gate) },
    { "ffn_up.weight",       DENSE,    D_FF,      D_MODEL, FIELD(up) },
    { "ffn_down.weight",     DENSE,    D_MODEL,   D_FF,    FIELD(down) },
    { "ffn_gate_inp.weight", EXPERTS,  D_EXPERTS, D_MODEL, FIELD(router) },
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
    case D_FF:      return d->d_ff;
    case D_EXPERTS: return d->n_expert;
    case D_EXPERT:  return d->d_expert;
    }
    return 0;
}

static bool is_needed(const struct moe_desc *d, enum need need)
{
    switch (need) {
    case QK_NORM:  return d->qk_norm;
    case QKV_BIAS: return d->qkv_bias;
    case DENSE:    return d->n_expert == 0;
    case EXPERTS:  return d->n_expert > 0;
    default:       return true;
    }
}

/* ---- binding ----------------------------------------------------------------------------------------- */

struct vector_load { const struct moe_tensor *tensor; float *to; };

struct binder {
    struct moe_model *m;
    const struct moe_file *f;
    bool *used;                                 /* [tensors] */
    struct off_load *load;      int n_load;     /* NULL while counting */
    struct vector_load *vector; int n_vector;
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
                         "(F32, F16, BF16, Q8_0, Q4_K and Q6_K are)", path, name, t->gguf_type);
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

static int bind_vector(struct binder *b, const char *name, int n, bool optional, float **out)
{
    int error = 0;
    const struct moe_tensor *t = find(b, name, 1, n, 0, optional, &error);
    if (!t)
        return error;
    *out = kn_arena_take(&b->m->arena, (size_t)n, sizeof(float));
    if (b->vector)
        b->vector[b->n_vector] = (struct vector_load){ t, *out };
    b->n_vector++;
    return 0;
}

static int bind_matrix(struct binder *b, const char *name, int n_out, int n_in, bool optional,
                       struct kn_mat *out)
{
    int error = 0;
    const struct moe_tensor *t = find(b, name, n_out, n_in, 0, optional, &error);
    if (!t)
        return error;
    enum kn_format f = format_of(t);
    void *panels = kn_arena_take(&b->m->arena, 1, kn_mat_bytes(f, n_out, n_in));
    *out = (struct kn_mat){ f, n_out, n_in, panels };
    if (b->load)
        b->load[b->n_load] = (struct off_load){ { t->file, t->offset, f, n_out, n_in }, panels };
    b->n_load++;
    return 0;
}

static int bind_layer(struct binder *b, int layer)
{
    const struct moe_desc *d = &b->m->desc;
    struct moe_layer scratch = { 0 };           /* while counting there are no layers to write to */
    struct moe_layer *l = b->m->layer ? &b->m->layer[layer] : &scratch;
    for (int i = 0; i < N_PART; i++) {
        const struct part *p = &parts[i];
        if (!is_needed(d, p->need))
            continue;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", layer, p->name);
        void *field = (char *)l + p->field;
        int n_out = dim_of(d, p->out), n_in = dim_of(d, p->in);
        int error = p->out == D_ONE ? bind_vector(b, name, n_in, false, field)
                                    : bind_matrix(b, name, n_out, n_in, false, field);
        if (error)
            return error;
    }
    l->expert0 = layer * d->n_expert;
    return 0;
}

static int bind_all(struct binder *b)
{
    struct moe_model *m = b->m;
    const struct moe_desc *d = &m->desc;
    int error;
    struct moe_layer *layer = kn_arena_take(&m->arena, (size_t)d->n_layer, sizeof *layer);
    m->layer = m->arena.base ? layer : NULL;
    float *extra = NULL;
    m->rope_freq = kn_arena_take(&m->arena, (size_t)d->n_rot / 2, sizeof(float));
    if ((error = bind_matrix(b, "token_embd.weight", d->n_vocab, d->d_model, false, &m->embed)) ||
        (error = bind_vector(b, "output_norm.weight", d->d_model, false, &m->out_norm)) ||
        (error = bind_matrix(b, "output.weight", d->n_vocab, d->d_model, true, &m->head)) ||
        (error = bind_vector(b, "rope_freqs.weight", d->n_rot / 2, true, &extra)))
        return error;
    for (int i = 0; i < d->n_layer; i++)
        if ((error = bind_layer(b, i)))
            return error;
    if (!m->head.n_out)
        m->head = m->embed;
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
        expert[e].matrix[i] = (struct off_source){ t->file, t->offset + skip, format_of(t), n_out, n_in };
    }
    return 0;
}

/* Which kinds of activation codes a layer's experts read, so that rows are coded once for all of them. */
static void set_expert_acts(struct moe_model *m, const struct off_expert *expert)
{
    for (int layer = 0; layer < m->desc.n_layer; layer++)
        for (int e = 0; e < m->desc.n_expert; e++, expert++)
            for (int i = 0; i < OFF_MATRICES; i++) {
                unsigned bit = 1u << kn_format_info(expert->matrix[i].format)->act;
                if (i < OFF_MATRICES - 1)
                    m->layer[layer].expert_acts |= bit;
                else
                    m->layer[layer].down_acts |= bit;
            }
}

static int list_experts(struct binder *b, struct off_expert **out)
{
    const struct moe_desc *d = &b->m->desc;
    struct off_expert *expert = kn_calloc((size_t)d->n_layer * (size_t)d->n_expert, sizeof *expert);
    if (!expert)
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", d->n_layer * d->n_expert);
    for (int layer = 0; layer < d->n_layer; layer++)
        for (int i = 0; i < OFF_MATRICES; i++) {
            int error = bind_experts(b, layer, i, expert + (size_t)layer * (size_t)d->n_expert);
            if (error) {
                kn_free(expert);
                return error;
            }
        }
    *out = expert;
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static int read_vector(const struct moe_file *f, const struct moe_tensor *t, float *to)
{
    const struct off_files *files = moe_file_files(f);
    int n = (int)t->dim[0];
    size_t bytes = kn_row_bytes(format_of(t), n);
    void *raw = kn_alloc(bytes);
    if (!raw)
        return kn_fail(KN_ENOMEM, "no memory for a vector of %d values", n);
    int error = kn_file_read(files->fd[t->file], files->path[t->file], raw, bytes, t->offset);
    if (!error)
        kn_row_decode(format_of(t), raw, n, to);
    kn_free(raw);
    return error;
}

static int by_offset(const void *a, const void *b)
{
    const struct off_source *x = &((const struct off_load *)a)->source;
    const struct off_source *y = &((const struct off_load *)b)->source;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int read_dense(struct binder *b, const struct moe_model_options *opt)
{
    for (int i = 0; i < b->n_vector; i++) {
        int error = read_vector(b->f, b->vector[i].tensor, b->vector[i].to);
        if (error)
            return error;
        if (opt->progress)
            atomic_fetch_add(&opt->progress->done_bytes, b->vector[i].tensor->bytes);
    }
    qsort(b->load, (size_t)b->n_load, sizeof *b->load, by_offset);
    return off_load(moe_file_files(b->f), b->load, b->n_load, b->m->ops, opt->team, opt->progress);
}

/* The rope's extra divisors are a vector like any other, wanted only here. */
static int set_rotation(struct binder *b)
{
    const char *name = "rope_freqs.weight";
    const float *extra = NULL;
    for (int i = 0; i < b->n_vector; i++)
        if (moe_string_is(b->vector[i].tensor->name, name))
            extra = b->vector[i].to;
    for (int i = 0; extra && i < b->m->desc.n_rot / 2; i++)
        if (!(extra[i] >= 1e-6f && extra[i] <= 1e6f))
            return kn_fail(KN_ECORRUPT, "%s: tensor %s: value %d is no divisor of an angle: %g",
                           moe_file_path(b->f), name, i, (double)extra[i]);
    return moe_rope_freq(&b->m->desc, extra, b->m->rope_freq);
}

static int refuse_unknown(const struct binder *b)
{
    for (size_t i = 0; i < moe_file_tensor_count(b->f); i++) {
        char name[128];
        if (b->used[i])
            continue;
        moe_string_show(moe_file_tensor(b->f, i)->name, name, sizeof name);
        return kn_fail(KN_EUNSUPPORTED, "%s: tensor %s has no place in a %s model: the file is of a kind "
                       "that is not supported", moe_file_path(b->f), name, b->m->desc.arch);
    }
    return 0;
}

/* ---- open and close ------------------------------------------------------------------------------------ */

static void describe(struct moe_model *m, const struct off_expert *expert, bool tied)
{
    const struct moe_desc *d = &m->desc;
    m->shape = (struct moe_shape){
        .n_layer = d->n_layer, .d_model = d->d_model, .n_head = d->n_head, .n_kv = d->n_kv,
        .d_head = d->d_head, .n_vocab = d->n_vocab, .n_ctx_train = d->n_ctx_train,
        .n_expert = d->n_expert, .n_used = d->n_used, .d_ff = d->d_ff, .d_expert = d->d_expert,
        .dense_bytes = m->arena.used,
        .expert_bytes = expert ? off_store_bytes(expert, d->n_layer * d->n_expert) : 0,
    };
    memcpy(m->shape.arch, d->arch, sizeof m->shape.arch);
    size_t table = tied ? 0 : kn_mat_bytes(m->embed.format, d->n_vocab, d->d_model);
    m->shape.pass_bytes = m->shape.dense_bytes - table;         /* one row of the table is nothing */
    double width = d->d_model, q = d->n_head * (double)d->d_head, kv = d->n_kv * (double)d->d_head;
    double ffn = d->n_expert ? d->n_expert + 3.0 * d->n_used * d->d_expert : 3.0 * d->d_ff;
    m->shape.row_macs = width * (d->n_layer * (2 * q + 2 * kv + ffn) + d->n_vocab);
}

static int check_memory(const struct moe_model *m, size_t budget, const char *path)
{
    size_t need = m->shape.dense_bytes + m->shape.expert_bytes;
    struct kn_machine machine;
    kn_machine_get(&machine);
    size_t room = budget ? budget : machine.available_bytes;
    if (need <= room)
        return 0;
    size_t mib = (need + (1 << 20) - 1) >> 20;          /* rounded up: what is asked for is enough */
    return kn_fail(KN_ELIMIT, "%s: the weights take %zu MiB and %s %zu MiB: %s", path, mib,
                   budget ? "--host-mem is" : "this machine has free", room >> 20,
                   budget ? "raise it" : "free some, or use a smaller model");
}

static int bind_and_read(struct binder *b, const struct moe_model_options *opt)
{
    struct moe_model *m = b->m;
    struct off_expert *expert = NULL;
    int error = bind_all(b);                    /* counts */
    if (!error && m->desc.n_expert)
        error = list_experts(b, &expert);
    if (!error)
        error = refuse_unknown(b);
    if (error)
        goto done;
    describe(m, expert, !moe_file_find_tensor(b->f, "output.weight"));
    if ((error = check_memory(m, opt->host_bytes, moe_file_path(b->f))))
        goto done;
    b->load = kn_calloc((size_t)b->n_load, sizeof *b->load);
    b->vector = kn_calloc((size_t)b->n_vector, sizeof *b->vector);
    if (!b->load || !b->vector) {
        error = kn_fail(KN_ENOMEM, "no memory to list the tensors");
        goto done;
    }
    b->n_load = b->n_vector = 0;
    m->head = (struct kn_mat){ 0 };
    if ((error = kn_arena_open(&m->arena, m->arena.used, -1)) || (error = bind_all(b)))
        goto done;
    for (size_t i = 0; opt->progress && i < moe_file_tensor_count(b->f); i++)
        atomic_fetch_add(&opt->progress->total_bytes, moe_file_tensor(b->f, i)->bytes);
    if ((error = read_dense(b, opt)) || (error = set_rotation(b)))
        goto done;
    if (expert) {
        set_expert_acts(m, expert);
        error = off_store_open(&m->store, &(struct off_store_options){
            .files = *moe_file_files(b->f), .expert = expert, .n_expert = m->desc.n_layer * m->desc.n_expert,
            .ops = m->ops, .team = opt->team, .progress = opt->progress });
    }
done:
    kn_free(expert);
    return error;
}

int moe_model_open(struct moe_model **out, const struct moe_file *f, const struct moe_model_options *opt)
{
    struct moe_model *m = kn_calloc(1, sizeof *m);
    struct binder b = { .m = m, .f = f, .used = kn_calloc(moe_file_tensor_count(f) + 1, 1) };
    int error = m && b.used ? 0 : kn_fail(KN_ENOMEM, "no memory to open a model");
    if (!error) {
        m->ops = kn_ops(opt->isa);
        error = moe_desc_read(&m->desc, f);
    }
    if (!error)
        error = bind_and_read(&b, opt);
    kn_free(b.used);
    kn_free(b.load);
    kn_free(b.vector);
    if (error)
        moe_model_close(m);
    else
        *out = m;
    return error;
}

void moe_model_close(struct moe_model *m)
{
    if (!m)
        return;
    off_store_close(m->store);
    if (m->arena.base)
        kn_arena_close(&m->arena);
    kn_free(m);
}

const struct moe_shape *moe_model_shape(const struct moe_model *m) { return &m->shape; }
const struct kn_ops *moe_model_ops(const struct moe_model *m) { return m->ops; }
