/* moe/model/load.c - dense weights: their addresses in the model's arena, and reading them.
 *
 * moe_place_dense() assigns the addresses; over an arena without memory it only counts bytes, so that the size is known
 * at open.  moe_load_dense() allocates the arena, spreads the panels of each matrix over the nodes of the team, decodes
 * vectors to float32 and reads matrices in file order straight to their addresses.  moe_convert_vectors() then brings
 * the taps into the order of the convolution and computes the angles of the rotation. */
#include "moe/model/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- places ---------------------------------------------------------------------------------- */

static struct off_source source_of_dense(const struct moe_dense *p)
{
    return moe_source_of(p->tensor, 0, p->matrix->n_out, p->matrix->n_in);
}

/* Number of values of a vector tensor, which has two dimensions if it holds one vector for each expert. */
static size_t n_value(const struct moe_tensor *t) { return (size_t)(t->dim[0] * t->dim[1]); }

static void *take_panels(struct kn_arena *a, const struct kn_mat *w)
{
    return kn_arena_take(a, 1, kn_mat_bytes(w->format, w->n_out, w->n_in));
}

/* Matrices come first in the arena, because a read needs memory that begins at a page; each takes whole pages. */
int moe_place_dense(struct moe_model *m, struct kn_arena *a, struct off_load *load)
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
    m->rope_freq = kn_arena_take(a, (size_t)(moe_n_rotation(&m->desc) * m->desc.n_rot / 2), sizeof(float));
    m->guess_token = kn_arena_take(a, m->guess ? (size_t)m->desc.n_guess : 0, sizeof(int32_t));
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

/* Reads d2t, the list of tokens that an EAGLE-3 head can predict. */
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
    qsort(load, (size_t)n, sizeof *load, by_offset);
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

int moe_load_dense(struct moe_model *m, const struct moe_load_options *opt)
{
    struct off_load *load = kn_calloc((size_t)m->n_dense, sizeof *load);
    int error = load ? kn_arena_open(&m->arena, m->shape.dense_bytes, -1)
                     : kn_fail(KN_ENOMEM, "no memory to list the tensors");
    if (error)
        goto done;
    int n = moe_place_dense(m, &m->arena, load);
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

/* Computes rope_freq; rope_freqs.weight, optional divisors of the frequencies, is used only here. */
static int set_rotation(struct moe_model *m)
{
    const float *extra = m->rope_extra;
    for (int i = 0; extra && i < m->desc.n_rot / 2; i++)
        if (!(extra[i] >= 1e-6f && extra[i] <= 1e6f))
            return kn_fail(KN_ECORRUPT,
                           "%s: tensor rope_freqs.weight: value %d is no valid frequency divisor: "
                           "%g",
                           moe_file_path(m->file), i, (double)extra[i]);
    return moe_rope_freq(&m->desc, extra, m->rope_freq);
}

int moe_convert_vectors(struct moe_model *m)
{
    int error = turn_taps(m);
    return error ? error : set_rotation(m);
}
