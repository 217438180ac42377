/* moe/model/load.c - dense weights: their addresses in the model's arenas, and reading them.
 *
 * moe_place_dense() assigns the addresses; over arenas without memory it only counts bytes, so that the size is known
 * at open.  moe_load_dense() allocates the arenas, spreads the panels of each matrix over the nodes of the team, decodes
 * vectors to float32 and reads matrices in file order straight to their addresses.  moe_convert_vectors() then brings
 * the taps into the order of the convolution and computes the angles of the rotation and values that files lack.  For a device with memory of its
 * own moe_move_dense() copies all of this there. */
#include "moe/model/internal.h"

#include <math.h>
#include <string.h>

/* ---- places ---------------------------------------------------------------------------------- */

static struct off_source source_of_dense(const struct moe_dense *p)
{
    return moe_source_rows(p->tensor, p->row0, p->matrix->n_out, p->matrix->n_in);
}

/* Number of values of a vector tensor, which has two dimensions if it holds one vector for each expert. */
static size_t n_value(const struct moe_tensor *t) { return (size_t)(t->dim[0] * t->dim[1]); }

static void *take_panels(struct kn_arena *a, const struct kn_mat *w)
{
    return kn_arena_take(a, 1, kn_mat_bytes(w->format, w->n_out, w->n_in));
}

/* Matrices that are read come first in their arena, because a read needs memory that begins at a page; each takes whole
 * pages. */
int moe_place_dense(struct moe_model *m, struct off_load *load)
{
    struct kn_arena *a = &m->matrices, *vectors = &m->vectors;
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
            *p->vector = kn_arena_take(vectors, n_value(p->tensor), sizeof(float));
        if (p->halves) {
            p->halves->k_b.data = p->k = take_panels(a, &p->halves->k_b);
            p->halves->v_b.data = p->v = take_panels(a, &p->halves->v_b);
        }
    }
    m->rope_freq = kn_arena_take(vectors, (size_t)moe_n_pair(&m->desc), sizeof(float));
    m->long_freq = kn_arena_take(vectors, m->desc.long_rope ? (size_t)m->desc.n_rot / 2 : 0, sizeof(float));
    for (int i = 0; m->desc.v_norm && i < m->desc.n_layer; i++)
        m->layer[i].v_norm = kn_arena_take(vectors, (size_t)moe_heads(&m->desc, i).d_value, sizeof(float));
    m->unit_norm = kn_arena_take(vectors, m->desc.unit_qk_norm ? (size_t)m->desc.d_head : 0, sizeof(float));
    m->guess_token = kn_arena_take(vectors, m->guess ? (size_t)m->desc.n_guess : 0, sizeof(int32_t));
    return n;
}

/* ---- reading --------------------------------------------------------------------------------- */

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

static int read_scales_of(const struct moe_file *f, const struct moe_tensor *t, int n, float *scale)
{
    int error = moe_file_read(f, t, 0, scale, (size_t)n * sizeof *scale);
    for (int i = 0; !error && i < n; i++) {
        char name[128];
        moe_string_show(t->name, name, sizeof name);
        if (!isfinite(scale[i]))
            error = kn_fail(KN_ECORRUPT, "%s: tensor %s: scale %d is not finite", moe_file_path(f), name, i);
    }
    return error;
}

static int read_dense_scales(struct moe_model *m)
{
    int error = 0;
    for (int i = 0; i < m->n_dense && !error; i++) {
        const struct moe_dense *p = &m->dense[i];
        if (p->scale)
            error = read_scales_of(m->file, p->scale, 1, p->matrix ? &p->matrix->scale : &p->halves->v_b.scale);
    }
    return error;
}

int moe_read_expert_scales(struct moe_model *m)
{
    int n = m->desc.n_expert, error = 0;
    size_t n_all = (size_t)(m->shape.n_expert_total + m->shape.n_expert_ahead);
    float *scale = kn_alloc((size_t)n * sizeof *scale);
    if (!scale)
        return kn_fail(KN_ENOMEM, "no memory for the scales of %d experts", n);
    for (size_t first = 0, list = 0; first < n_all && !error; first += (size_t)n)
        for (int i = 0; i < OFF_MATRICES && !error; i++, list++) {
            if (!m->expert_scale[list])
                continue;
            error = read_scales_of(m->file, m->expert_scale[list], n, scale);
            for (int e = 0; e < n && !error; e++)
                m->expert[first + (size_t)e].matrix[i].scale = scale[e];
        }
    kn_free(scale);
    return error;
}

/* Checks that d2t lists tokens of the target, each once: logits are scattered by it. */
static int check_guess(const struct moe_model *m, const int64_t *token, int n)
{
    const char *path = moe_file_path(m->file);
    uint8_t *listed = n ? kn_calloc((size_t)m->desc.n_vocab, 1) : NULL;
    int error = n && !listed ? kn_fail(KN_ENOMEM, "%s: no memory to check %d tokens", path, n) : 0;
    for (int i = 0; i < n && !error; i++)
        if (token[i] < 0 || token[i] >= m->desc.n_vocab)
            error = kn_fail(KN_ECORRUPT, "%s: d2t: entry %d is token %lld of %d", path, i, (long long)token[i],
                            m->desc.n_vocab);
        else if (listed[token[i]]++)
            error = kn_fail(KN_ECORRUPT, "%s: d2t: entry %d is token %lld, which an earlier entry lists too", path, i,
                            (long long)token[i]);
    kn_free(listed);
    return error;
}

/* Reads d2t, the list of tokens that an EAGLE-3 head can predict. */
static int read_guess(struct moe_model *m)
{
    int n = m->guess ? m->desc.n_guess : 0, error = 0;
    size_t bytes = (size_t)n * sizeof(int64_t);
    int64_t *token = n ? kn_alloc(bytes) : NULL;
    if (n && !token)
        return kn_fail(KN_ENOMEM, "%s: no memory to list %d tokens", moe_file_path(m->file), n);
    if (n && !(error = moe_file_read(m->file, m->guess, 0, token, bytes)))
        error = check_guess(m, token, n);
    for (int i = 0; i < n && !error; i++)
        m->guess_token[i] = (int32_t)token[i];
    kn_free(token);
    return error;
}

struct off_files moe_files_of(const struct moe_model *m)
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
    struct off_files files = moe_files_of(m);
    int error = off_load(&files, opt->io, load, n, &hands, opt->progress);
    kn_unmap(hands.scratch, bytes);
    return error;
}

/* Binds the panels of every matrix to NUMA nodes as kernels/cpu/pass/products.c assigns them to the nodes' threads. */
static void spread_matrices(const struct off_load *load, int n, const struct kn_team *team)
{
    for (int i = 0; i < n; i++) {
        const struct off_source *s = &load[i].source;
        kn_team_bind(team, off_place_panels(s, load[i].place), kn_ceil_div(s->n_out, KN_PANEL),
                     KN_PANEL * kn_row_bytes(s->format, s->n_in));
    }
}

/* For a draft head: uses the target's embedding, output matrix and final norm in place of those that the head's file
 * lacks, and the target's store. */
static void borrow(struct moe_model *m)
{
    kn_assert(m->target->vectors.base);
    if (!m->embed.data)
        m->embed = m->target->embed;
    if (!m->head.data) {
        m->head = m->target->head;
        m->out_bias = m->target->out_bias;
    }
    if (!m->out_norm) {
        m->out_norm = m->target->out_norm;
        m->out_norm_bias = m->target->out_norm_bias;
    }
    if (m->desc.n_expert)
        m->store = m->target->store;
}

static int open_arenas(struct moe_model *m)
{
    size_t matrices = m->matrices.used, vectors = m->vectors.used; /* counted at open */
    int error = kn_arena_open(&m->matrices, matrices, -1);
    return error ? error : kn_arena_open(&m->vectors, vectors, -1);
}

uint64_t moe_dense_bytes(const struct moe_dense *p)
{
    const struct moe_tensor *t = p->tensor;
    uint64_t n_row = t->dim[1] * t->dim[2];
    return p->matrix ? t->bytes / n_row * (uint64_t)p->matrix->n_out : t->bytes;
}

int moe_load_dense(struct moe_model *m, const struct moe_load_options *opt)
{
    struct off_load *load = kn_calloc((size_t)m->n_dense, sizeof *load);
    int error = load ? 0 : kn_fail(KN_ENOMEM, "no memory to list the tensors");
    if (error || (error = open_arenas(m)))
        goto done;
    if ((error = read_dense_scales(m)))
        goto done;
    int n = moe_place_dense(m, load);
    spread_matrices(load, n, opt->team);
    if (m->tied)
        m->head = m->embed;
    if (m->target)
        borrow(m);
    for (int i = 0; opt->progress && i < m->n_dense; i++)
        atomic_fetch_add(&opt->progress->total_bytes, moe_dense_bytes(&m->dense[i]));
    if ((error = read_vectors(m, opt->progress)) == 0 && (error = read_guess(m)) == 0)
        error = moe_read_matrices(m, load, n, opt);
done:
    kn_free(load);
    return error;
}

/* ---- conversion ------------------------------------------------------------------------------ */

/* Transposes the convolution's taps from the file's [channel][tap] to [tap][channel]: the kernel's inner loop is over
 * channels. */
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

static int check_divisors(const struct moe_model *m, const char *name, const float *extra)
{
    for (int i = 0; extra && i < m->desc.n_rot / 2; i++)
        if (!(extra[i] >= 1e-6f && extra[i] <= 1e30f)) /* 1e30: the pair is not rotated */
            return kn_fail(KN_ECORRUPT, "%s: tensor %s: value %d is no valid frequency divisor: %g",
                           moe_file_path(m->file), name, i, (double)extra[i]);
    return 0;
}

/* Computes rope_freq and long_freq; the divisors of the frequencies are used only here. */
static int set_rotation(struct moe_model *m)
{
    bool both = m->desc.long_rope;
    int error = check_divisors(m, both ? "rope_factors_short.weight" : "rope_freqs.weight", m->rope_extra);
    if (error || (error = check_divisors(m, "rope_factors_long.weight", m->long_extra)) ||
        (error = moe_rope_freq(&m->desc, m->rope_extra, m->rope_freq)))
        return error;
    return both ? moe_rope_freq(&m->desc, m->long_extra, m->long_freq) : 0;
}

/* The norm of values has no weights in the file; the router's norm lacks the factor 1 / sqrt(d_model); a layer's scale
 * and the bias for its choice of experts are needed by the host. */
static void set_layers(struct moe_model *m)
{
    const struct moe_desc *d = &m->desc;
    for (int i = 0; i < d->n_layer; i++) {
        struct moe_layer *l = &m->layer[i];
        l->scale = l->out_scale ? *l->out_scale : 1;
        l->select_bias_image = l->select_bias;
        for (int k = 0; l->v_norm && k < moe_heads(d, i).d_value; k++)
            l->v_norm[k] = 1;
        for (int k = 0; l->router_norm && k < d->d_model; k++)
            l->router_norm[k] *= 1 / sqrtf((float)d->d_model);
    }
}

int moe_convert_vectors(struct moe_model *m)
{
    int error = turn_taps(m);
    for (int i = 0; m->desc.unit_qk_norm && i < m->desc.d_head; i++)
        m->unit_norm[i] = 1;
    set_layers(m);
    return error ? error : set_rotation(m);
}

/* ---- a device with memory of its own ----------------------------------------------------------- */

/* True for vectors that the host reads in a pass: the biases of experts. */
static bool is_of_host(const struct moe_model *m, float *const *vector)
{
    for (int i = 0; i < m->desc.n_layer; i++)
        if (vector == &m->layer[i].gate_bias || vector == &m->layer[i].up_bias)
            return true;
    return false;
}

/* The device's address of something in an arena that was copied to byte `at` of m->weights. */
static void *moved(const struct moe_model *m, const struct kn_arena *a, size_t at, const void *host)
{
    return host ? m->weights.base + at + ((const uint8_t *)host - a->base) : NULL;
}

/* Copies all dense weights to the device and gives the model their addresses there.  The host keeps the vectors only. */
int moe_move_dense(struct moe_model *m)
{
    size_t at = m->matrices.bytes; /* of the vectors */
    if (!m->device->backend->own_memory)
        return 0;
    int error = kn_memory_open(&m->weights, m->device, at + m->vectors.bytes, false);
    if (error || (error = kn_memory_write(&m->weights, 0, m->matrices.base, at)) ||
        (error = kn_memory_write(&m->weights, at, m->vectors.base, m->vectors.bytes)))
        return error;
    for (int i = 0; i < m->n_dense; i++) {
        const struct moe_dense *p = &m->dense[i];
        if (p->matrix)
            p->matrix->data = moved(m, &m->matrices, 0, p->matrix->data);
        if (p->halves) {
            p->halves->k_b.data = moved(m, &m->matrices, 0, p->halves->k_b.data);
            p->halves->v_b.data = moved(m, &m->matrices, 0, p->halves->v_b.data);
        }
        if (p->vector && !is_of_host(m, p->vector))
            *p->vector = moved(m, &m->vectors, at, *p->vector);
    }
    for (int i = 0; i < m->desc.n_layer; i++) {
        struct moe_layer *l = &m->layer[i];
        l->gate_bias_at = moved(m, &m->vectors, at, l->gate_bias);
        l->up_bias_at = moved(m, &m->vectors, at, l->up_bias);
        l->v_norm = moved(m, &m->vectors, at, l->v_norm);
    }
    m->rope_freq = moved(m, &m->vectors, at, m->rope_freq);
    m->long_freq = moved(m, &m->vectors, at, m->long_freq);
    m->unit_norm = moved(m, &m->vectors, at, m->unit_norm);
    m->guess_token = moved(m, &m->vectors, at, m->guess_token);
    if (m->tied)
        m->head = m->embed;
    kn_arena_close(&m->matrices);
    return 0;
}
