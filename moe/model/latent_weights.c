/* moe/model/latent_weights.c - the matrices K_h and V_h of latent attention, from files that have both in one.
 *
 * In older files the rows of attn_kv_b give, for each head, the elements of its key and then those of its value.  The
 * rows of the value are V_h, so their panels are copied.  The rows of the key are the columns of K_h: they are decoded,
 * transposed and repacked, in the format that bind.c has given to k_b.  One head is one work item.  The matrix as read
 * is freed after the split. */
#include "moe/model/internal.h"

#include <string.h>

struct split_job {
    const struct moe_model *m;
    const struct moe_dense *dense;
    struct kn_mat whole; /* [n_head * (d_plain + d_value), d_latent] */
    uint8_t *scratch;    /* [team size][scratch_bytes] */
    size_t scratch_bytes;
};

static size_t panel_bytes(const struct kn_mat *w) { return KN_PANEL * kn_row_bytes(w->format, w->n_in); }

/* Writes the n values x to values first, first + step, ... of `rows`, a matrix in format f (a float type). */
static void put_column(enum kn_format f, const float *x, int n, void *rows, size_t first, size_t step)
{
    for (size_t i = 0, at = first; i < (size_t)n; i++, at += step)
        if (f == KN_F32)
            ((float *)rows)[at] = x[i];
        else
            ((uint16_t *)rows)[at] = f == KN_F16 ? kn_f32_to_f16(x[i]) : kn_f32_to_bf16(x[i]);
}

/* Makes V_h and K_h of one head.  A panel has rows of one head only: those of V_h are copied, K_h is transposed. */
static void split_head(void *arg, int head, int thread)
{
    const struct split_job *j = arg;
    const struct moe_desc *d = &j->m->desc;
    const struct kn_mat *k = &j->dense->halves->k_b, *v = &j->dense->halves->v_b;
    int d_plain = d->d_head - d->n_rot, row = head * (d_plain + d->d_value);
    size_t n_value = (size_t)(d->d_value / KN_PANEL), n_key = (size_t)(d->d_latent / KN_PANEL);
    float *column = (float *)(void *)(j->scratch + (size_t)thread * j->scratch_bytes);
    void *rows = column + d->d_latent;
    memcpy(j->dense->v + (size_t)head * n_value * panel_bytes(v),
           (const uint8_t *)j->whole.data + (size_t)((row + d_plain) / KN_PANEL) * panel_bytes(v),
           n_value * panel_bytes(v));
    for (int i = 0; i < d_plain; i++) {
        kn_mat_row(&j->whole, row + i, column);
        put_column(k->format, column, d->d_latent, rows, (size_t)i, (size_t)d_plain);
    }
    j->m->ops->repack(k->format, rows, d->d_latent, d_plain, j->dense->k + (size_t)head * n_key * panel_bytes(k), 0,
                      (int)n_key);
}

static void bind_panels(const struct kn_team *team, void *panels, const struct kn_mat *w)
{
    kn_team_bind(team, panels, kn_ceil_div(w->n_out, KN_PANEL), panel_bytes(w));
}

static int load_halves(struct moe_model *m, const struct moe_dense *p, const struct moe_load_options *opt)
{
    const struct moe_desc *d = &m->desc;
    int d_plain = d->d_head - d->n_rot, n_out = d->n_head * (d_plain + d->d_value);
    struct off_load load = { .source = moe_source_of(p->tensor, 0, n_out, d->d_latent) };
    struct split_job job = { .m = m, .dense = p };
    job.scratch_bytes = kn_align_up((size_t)d->d_latent * (size_t)(d_plain + 1) * sizeof(float), 64);
    size_t place_bytes = off_place_bytes(&load.source);
    size_t scratch_bytes = (size_t)kn_team_size(opt->team) * job.scratch_bytes;
    load.place = kn_map(place_bytes, -1);
    job.scratch = kn_map(scratch_bytes, -1);
    int error = load.place && job.scratch ? moe_read_matrices(m, &load, 1, opt)
                                          : kn_fail(KN_ENOMEM, "no memory to take keys and values apart with");
    if (!error) {
        job.whole = (struct kn_mat){ load.source.format, n_out, d->d_latent, p->halves->v_b.scale,
                                     off_place_panels(&load.source, load.place) };
        bind_panels(opt->team, p->k, &p->halves->k_b);
        bind_panels(opt->team, p->v, &p->halves->v_b);
        kn_parallel_for(opt->team, d->n_head, split_head, &job);
    }
    if (load.place)
        kn_unmap(load.place, place_bytes);
    if (job.scratch)
        kn_unmap(job.scratch, scratch_bytes);
    return error;
}

int moe_latent_load(struct moe_model *m, const struct moe_load_options *opt)
{
    int error = 0;
    for (int i = 0; !error && i < m->n_dense; i++)
        if (m->dense[i].halves)
            error = load_halves(m, &m->dense[i], opt);
    return error;
}
