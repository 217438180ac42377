/* moe/model/model.c - a model is opened, loaded and closed.
 *
 * Opening reads the description, binds the file's tensors to it (bind.c) and sums up what they take, so that
 * a budget can be made before anything is read.  Loading takes the memory, reads dense matrices in file order
 * to where they stay, vectors as float32, and opens the store that reads experts as they are needed. */
#include "moe/model/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    m->guess_token = kn_arena_take(a, m->guess ? (size_t)m->desc.n_guess : 0, sizeof(int32_t));
    return n;
}

static int read_vector(const struct moe_file *f, const struct moe_tensor *t, float *to)
{
    int n = (int)t->dim[0];
    size_t row = kn_row_bytes(moe_format_of(t), n), bytes = row * (size_t)t->dim[1];
    uint8_t *raw = kn_alloc(bytes);
    if (!raw)
        return kn_fail(KN_ENOMEM, "no memory for vectors of %zu values", n_value(t));
    int error = moe_file_read(f, t, 0, raw, bytes);
    for (size_t i = 0; !error && i < t->dim[1]; i++)
        kn_row_decode(moe_format_of(t), raw + i * row, n, to + i * (size_t)n);
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

/* Which tokens a head guesses among. */
static int read_guess(struct moe_model *m)
{
    int n = m->guess ? m->desc.n_guess : 0, error = 0;
    const char *path = moe_file_path(m->file);
    size_t bytes = (size_t)n * sizeof(int64_t);
    int64_t *token = n ? kn_alloc(bytes) : NULL;
    if (n && !token)
        return kn_fail(KN_ENOMEM, "%s: no memory to list %d tokens", path, n);
    if (n)
        error = moe_file_read(m->file, m->guess, 0, token, bytes);
    for (int i = 0; i < n && !error; i++) {
        if (token[i] < 0 || token[i] >= m->desc.n_vocab)
            error = kn_fail(KN_ECORRUPT, "%s: d2t: entry %d is token %lld of %d", path, i, (long long)token[i],
                            m->desc.n_vocab);
        m->guess_token[i] = (int32_t)token[i];
    }
    kn_free(token);
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
        size_t bytes = off_scratch_bytes(&load[i].source, kn_team_size(opt->team));
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
    if ((error = read_vectors(m, opt->progress)) == 0 && (error = read_guess(m)) == 0)
        error = moe_read_matrices(m, load, n, opt);
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
            size_t scratch = off_scratch_bytes(&x->matrix[i], 1);
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
        if (moe_is_of_blocks(moe_file_tensor(m->file, i)->name, d->n_layer, d->n_ahead))
            m->shape.ahead_bytes += moe_file_tensor(m->file, i)->bytes;
    if (d->n_expert)
        sum_up_experts(m);
}

static int bind(struct moe_model *m)
{
    int error = moe_bind(m);
    if (!error)
        describe(m);
    return error;
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
    if (t && d->reads.n_inner && d->reads.inner[d->reads.n_inner - 1] >= t->n_layer)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: it reads layer %d of %d", path, whose,
                       d->reads.inner[d->reads.n_inner - 1], t->n_layer);
    if (t && d->n_vocab != t->n_vocab)
        return kn_fail(KN_EUNSUPPORTED, "%s cannot draft for %s: it has %d tokens, not %d", path, whose,
                       d->n_vocab, t->n_vocab);
    return 0;
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

struct moe_features moe_model_reads(const struct moe_model *head) { return head->desc.reads; }

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
    if (error || (error = load_dense(m, opt)) || (error = moe_latent_load(m, opt)) || (error = turn_taps(m)) ||
        (error = set_rotation(m)))
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
