/* moe/model/model.c - opens, loads and closes a model.
 *
 * Open reads the description, binds the file's tensors to it (bind.c) and computes all sizes, so that memory can be
 * budgeted before weights are read.  Load reads the dense weights (load.c), splits the matrices of latent attention
 * (latent_weights.c) and opens the expert store, which reads experts on demand. */
#include "moe/model/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- open, load and close ------------------------------------------------------------------------------ */

/* Bytes of an expert's matrices on a device with memory of its own; 0: it lacks a format. */
static size_t resident_bytes(const struct moe_model *m, const struct off_expert *x)
{
    size_t bytes = 0;
    for (int i = 0; i < OFF_MATRICES; i++) {
        const struct off_source *s = &x->matrix[i];
        if (s->n_out && !kn_device_has_format(m->device, s->format))
            return 0;
        bytes += moe_resident_bytes(s->format, s->n_out, s->n_in);
    }
    return bytes;
}

/* Sets the sizes of the experts' slots on the device, and tells it their formats, if it can compute all of them. */
static int sum_up_residents(struct moe_model *m)
{
    int n = m->device->backend->own_memory && !m->target ? m->shape.n_expert_total : 0;
    struct off_sizes *sizes = &m->resident_sizes;
    for (int e = 0; e < n; e++) {
        size_t bytes = resident_bytes(m, &m->expert[e]);
        off_sizes_add(sizes, bytes);
        if (!bytes) {
            sizes->n = 0;
            return 0;
        }
    }
    if (n && !(m->resident_size_of = kn_calloc((size_t)n, sizeof *m->resident_size_of)))
        return kn_fail(KN_ENOMEM, "no memory to list %d experts", n);
    for (int e = 0; e < n; e++) {
        int size = off_sizes_find(sizes, resident_bytes(m, &m->expert[e]));
        m->resident_size_of[e] = (uint8_t)size;
        m->shape.device_expert_bytes += sizes->bytes[size];
        for (int i = 0; i < OFF_MATRICES; i++)
            if (m->expert[e].matrix[i].n_out)
                kn_device_admit(m->device, m->expert[e].matrix[i].format);
    }
    return 0;
}

/* Collects the kinds of activation codes that each layer's experts read, so that rows are quantised once for all of
 * them; the file bytes of all experts; and the scratch bytes a thread needs to interleave one expert. */
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
            size_t scratch = off_scratch_bytes(&x->matrix[i], 1);
            unsigned bit = 1u << kn_format_info(x->matrix[i].format)->act;
            if (own) {
                *(i < OFF_MATRICES - 1 ? &l->expert_acts : &l->down_acts) |= bit;
                l->expert_formats[i == OFF_MATRICES - 1] |= 1u << x->matrix[i].format;
            }
            m->scratch_bytes = scratch > m->scratch_bytes ? scratch : m->scratch_bytes;
            if (own) {
                m->shape.expert_file_bytes += off_file_bytes(&x->matrix[i]);
                m->shape.expert_format_bytes[x->matrix[i].format] += off_file_bytes(&x->matrix[i]);
            }
        }
    }
    m->shape.expert_bytes = off_store_bytes(m->expert, n_all);
    m->shape.expert_least = off_store_least(m->expert, n_all);
    if (m->target) /* a thread that waits for the shared store may interleave any expert of the target, too */
        m->scratch_bytes = m->target->scratch_bytes;
}

static void add_matrix(struct moe_model *m, const struct kn_mat *w, size_t bytes)
{
    m->shape.pass_format_bytes[w->format] += bytes;
    m->shape.row_macs += (double)w->n_out * w->n_in;
}

/* Adds this tensor to pass_bytes and row_macs of the shape.  An embedding that is not the output matrix too is not
 * counted: a batch row reads only one row of it. */
static void add_dense(struct moe_model *m, const struct moe_dense *p)
{
    const struct moe_layer *l = p->halves;
    if (p->matrix == &m->embed && !m->tied)
        return;
    if (!l) {
        m->shape.pass_bytes += moe_dense_bytes(p);
        if (p->matrix)
            add_matrix(m, p->matrix, moe_dense_bytes(p));
        return;
    }
    for (int i = 0; i < 2; i++) {
        const struct kn_mat *w = i ? &l->v_b : &l->k_b;
        size_t bytes = kn_mat_bytes(w->format, w->n_out, w->n_in);
        m->shape.pass_bytes += bytes;
        add_matrix(m, w, bytes);
    }
}

static void describe(struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    int n_moe = moe_n_sparse_before(d, d->n_layer);
    m->shape = (struct moe_shape){
        .n_layer = d->n_layer,
        .d_model = d->d_model,
        .n_head = d->n_head,
        .n_kv = d->n_kv,
        .d_head = d->d_head,
        .n_vocab = d->n_vocab,
        .n_ctx_train = d->n_ctx_train,
        .n_ctx_short = d->long_rope ? d->scaling_ctx : 0,
        .n_expert = d->n_expert,
        .n_used = d->n_used,
        .d_ff = d->d_ff,
        .d_expert = d->d_expert,
        .n_moe_layer = n_moe,
        .n_expert_total = n_moe * d->n_expert,
        .widened_bytes = m->shape.widened_bytes,
        .n_ahead = d->n_ahead,
        .n_expert_ahead = m->ahead ? d->n_expert : 0,
        .row_macs = 3.0 * n_moe * d->n_used * d->d_expert * d->d_model +
                    3.0 * moe_n_delta(d) * moe_d_state_value(d) * d->d_state_key,
        .state_bytes = moe_state_bytes(d),
    };
    memcpy(m->shape.arch, d->arch, sizeof m->shape.arch);
    for (int i = 0; i < d->n_layer; i++) {
        struct moe_heads h = moe_slot_heads(d, i);
        m->shape.position_macs += moe_is_delta(d, i) ? 0 : (double)d->n_head * (h.d_head + h.d_value);
    }
    moe_place_dense(m, NULL);
    m->shape.dense_bytes = m->matrices.used + m->vectors.used;
    m->shape.vector_bytes = m->vectors.used;
    for (int i = 0; i < m->n_dense; i++)
        add_dense(m, &m->dense[i]);
    bool own_head = false;
    for (int i = 0; i < m->n_dense; i++)
        own_head |= m->dense[i].matrix == &m->head;
    if (!own_head && !m->tied) /* uses the target's output matrix */
        m->shape.row_macs += (double)m->head.n_out * m->head.n_in;
    for (size_t i = 0; i < moe_file_tensor_count(m->file); i++)
        if (moe_is_of_blocks(moe_file_tensor(m->file, i)->name, d->n_layer, d->n_ahead))
            m->shape.ahead_bytes += moe_file_tensor(m->file, i)->bytes;
    if (d->n_expert)
        sum_up_experts(m);
}

static int bind(struct moe_model *m)
{
    int error = moe_bind(m);
    if (error)
        return error;
    describe(m);
    return sum_up_residents(m);
}

/* An EAGLE-3 head that names no layers reads those of EAGLE's authors. */
static void choose_layers(struct moe_desc *d, int n_layer)
{
    if (d->head != MOE_HEAD_EAGLE3 || d->reads.n_inner)
        return;
    d->reads = (struct moe_features){ .n_inner = MOE_INNER, .inner = { 2, n_layer / 2, n_layer - 3 } };
}

/* Checks that a draft head fits its target: feature width, layers read and vocabulary. */
static int check_target(struct moe_model *m)
{
    struct moe_desc *d = &m->desc;
    const struct moe_desc *t = m->target ? &m->target->desc : NULL;
    const char *path = moe_file_path(m->file), *whose = t ? moe_file_path(m->target->file) : "";
    if (d->head && !t)
        return kn_fail(KN_EUNSUPPORTED,
                       "%s is an EAGLE head, not a complete model: use --draft eagle:%s with the "
                       "model that it was trained on",
                       path, path);
    if (!d->head && t)
        return kn_fail(KN_EUNSUPPORTED, "%s is a %s model, not an EAGLE head: try --draft model:%s", path, d->arch,
                       path);
    if (t)
        choose_layers(d, t->n_layer);
    if (t && d->reads.n_inner && d->reads.inner[0] >= d->reads.inner[MOE_INNER - 1])
        return kn_fail(KN_EUNSUPPORTED,
                       "%s cannot draft for %s: it reads three layers of a model with at least 6, not %d", path, whose,
                       t->n_layer);
    if (t && d->d_model != t->d_model)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: its features have %d values, not %d", path, whose,
                       d->d_model, t->d_model);
    if (t && d->reads.n_inner && d->reads.inner[d->reads.n_inner - 1] > t->n_layer)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: it reads layer %d, but the model has %d layers", path,
                       whose, d->reads.inner[d->reads.n_inner - 1], t->n_layer);
    if (t && d->n_vocab != t->n_vocab)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: it has %d tokens, not %d", path, whose, d->n_vocab,
                       t->n_vocab);
    return 0;
}

/* Fails if the file has no MTP layer.  Older converters omit MTP layers, and some also omit the key with
 * their number. */
static int check_ahead(const struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    char name[64];
    if (d->window_heads.n_kv)
        return kn_fail(KN_EUNSUPPORTED, "%s: --draft mtp is not supported for %s: use another drafter",
                       moe_file_path(m->file), d->arch);
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", d->n_layer);
    if (d->n_ahead && moe_file_find_tensor(m->file, name))
        return 0;
    return kn_fail(KN_EUNSUPPORTED,
                   "%s has no MTP layer, which --draft mtp needs: "
                   "%s.nextn_predict_layers is %d and tensor %s is %s; use a file converted with the layer, or "
                   "another drafter",
                   moe_file_path(m->file), d->arch, d->n_ahead, name,
                   moe_file_find_tensor(m->file, name) ? "present" : "missing");
}

/* Fails if the device cannot compute the model. */
static int check_device(const struct moe_model *m)
{
    const struct kn_device *d = m->device;
    int error = 0;
    for (int i = 0; !error && i < m->n_dense; i++) {
        const struct moe_dense *p = &m->dense[i];
        if (p->matrix)
            error = kn_device_admit(d, p->matrix->format);
        if (p->halves && !error && !(error = kn_device_admit(d, p->halves->k_b.format)))
            error = kn_device_admit(d, p->halves->v_b.format);
    }
    return error;
}

int moe_model_open(struct moe_model **out, const struct moe_file *f, const struct moe_model_options *opt)
{
    struct moe_model *m = kn_calloc(1, sizeof *m);
    if (!m)
        return kn_fail(KN_ENOMEM, "no memory to open a model");
    *m = (struct moe_model){
        .file = f, .target = opt->target, .ops = kn_ops(opt->isa), .device = opt->device, .ahead = opt->ahead
    };
    if (m->target)
        m->device = m->target->device;
    else if (!m->device)
        m->device = kn_host_device(m->ops->isa);
    int error = moe_desc_read(&m->desc, f);
    if (error || (error = check_target(m)) || (m->ahead && (error = check_ahead(m))) || (error = bind(m)) ||
        (error = check_device(m)))
        moe_model_close(m);
    else
        *out = m;
    return error;
}

struct moe_features moe_model_reads(const struct moe_model *head) { return head->desc.reads; }

bool moe_features_of_end(const struct moe_features *f, const struct moe_model *m)
{
    return f->last || (f->n_inner && f->inner[f->n_inner - 1] == m->desc.n_layer);
}

int moe_model_open_ahead(struct moe_model **out, const struct moe_model *target)
{
    struct moe_model *m = kn_calloc(1, sizeof *m);
    kn_assert(target->ahead);
    if (!m)
        return kn_fail(KN_ENOMEM, "no memory to open an MTP layer");
    *m = (struct moe_model){ .file = target->file, .target = target, .ops = target->ops, .device = target->device };
    moe_desc_ahead(&m->desc, &target->desc);
    int error = bind(m);
    if (error || (error = check_device(m)))
        moe_model_close(m);
    else
        *out = m;
    return error;
}

static int open_store(struct moe_model *m, const struct moe_load_options *opt)
{
    uint64_t id = 0;
    int error = moe_read_expert_scales(m);
    if (!error && (opt->heat_path || opt->pack_path))
        error = moe_file_id(m->file, &id);
    if (error)
        return error;
    return off_store_open(&m->store,
                          &(struct off_store_options){ .files = moe_files_of(m),
                                                       .expert = m->expert,
                                                       .n_expert = m->shape.n_expert_total + m->shape.n_expert_ahead,
                                                       .n_beside = m->shape.n_expert_ahead,
                                                       .slot_bytes = opt->expert_bytes,
                                                       .later_bytes = opt->later_bytes,
                                                       .io = opt->io,
                                                       .heat_path = opt->heat_path,
                                                       .pack_path = opt->pack_path,
                                                       .model_id = id });
}

static void free_lists(struct moe_model *m)
{
    kn_free(m->expert);
    kn_free(m->expert_scale);
    kn_free(m->dense);
    m->expert = NULL;
    m->expert_scale = NULL;
    m->dense = NULL;
}

int moe_model_load(struct moe_model *m, const struct moe_load_options *opt)
{
    kn_assert(!m->vectors.base);
    int error = opt->mirror ? off_mirror_open(&m->mirror, opt->mirror, moe_file_files(m->file), opt->pack_path) : 0;
    if (error || (error = moe_load_dense(m, opt)) || (error = moe_latent_load(m, opt)) ||
        (error = moe_convert_vectors(m)) || (error = moe_move_dense(m)))
        return error;
    if (m->expert && !m->target && (error = open_store(m, opt)))
        return error;
    if (!opt->again)
        free_lists(m); /* the store has a copy of its list */
    return 0;
}

/* The experts of a draft head are in its target's store, and no other model uses them. */
static void leave_store(struct moe_model *m)
{
    if (!m->target)
        off_store_close(m->store);
    else if (m->store)
        off_store_forget(m->store, m->layer[0].expert0, m->desc.n_expert);
    m->store = NULL;
}

static void free_weights(struct moe_model *m)
{
    kn_memory_close(&m->weights);
    kn_arena_close(&m->matrices);
    kn_arena_close(&m->vectors);
}

void moe_model_unload(struct moe_model *m)
{
    kn_assert(m->dense); /* it was loaded with `again` */
    leave_store(m);
    free_weights(m);
    m->vectors.used = m->shape.vector_bytes; /* as counted at open */
    m->matrices.used = m->shape.dense_bytes - m->shape.vector_bytes;
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
    return off_pack(path,
                    &(struct off_pack_options){ .files = *moe_file_files(m->file),
                                                .expert = m->expert,
                                                .n_expert = m->shape.n_expert_total,
                                                .model_id = id,
                                                .io = opt->io,
                                                .ops = m->ops,
                                                .team = opt->team,
                                                .progress = opt->progress,
                                                .stop = opt->stop },
                    out);
}

void moe_model_close(struct moe_model *m)
{
    if (!m)
        return;
    leave_store(m);
    off_mirror_close(m->mirror);
    free_weights(m);
    free_lists(m);
    kn_free(m->resident_size_of);
    kn_free(m->layer);
    kn_free(m);
}

const struct moe_shape *moe_model_shape(const struct moe_model *m) { return &m->shape; }
const struct kn_ops *moe_model_ops(const struct moe_model *m) { return m->ops; }
struct off_store *moe_model_store(const struct moe_model *m) { return m->store; }
const struct kn_device *moe_model_device(const struct moe_model *m) { return m->device; }
