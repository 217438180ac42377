/* moe/write/strip.c - rows of a stack that is stored by input, for quantize.
 *
 * Neighbouring values of a row are a whole row of outputs apart in such a file, so reading a grain at a time would read a
 * few bytes for each input.  A strip is as many rows as fit its memory, usually all of a matrix.  Threads read it
 * BUNCH inputs at a time, each in one piece of n_row values, and transpose them. */
#include "moe/write/strip.h"

#include <stdatomic.h>
#include <string.h>

#define BUNCH 64

struct job {
    struct moe_strip *s;
    const struct moe_file *file;
    uint8_t *some; /* [n_thread][BUNCH][n_row] values as stored */
    _Atomic int err;
};

static void read_bunch(void *arg, int item, int thread)
{
    struct job *j = arg;
    const struct moe_strip *s = j->s;
    const uint64_t n_in = s->t->dim[0], k0 = (uint64_t)item * BUNCH, n = n_in - k0 < BUNCH ? n_in - k0 : BUNCH;
    const size_t one = s->one, stride = (size_t)s->n_row * one;
    uint8_t *some = j->some + (size_t)thread * BUNCH * stride;
    for (uint64_t k = 0; k < n && !atomic_load(&j->err); k++) {
        int err = moe_file_read_input(j->file, s->t, k0 + k, s->row, s->n_row, some + k * stride);
        if (err)
            atomic_store(&j->err, err);
    }
    for (uint64_t r = 0; r < s->n_row && !atomic_load(&j->err); r++) {
        uint8_t *to = s->data + (r * n_in + k0) * one;
        for (uint64_t k = 0; k < n; k++)
            memcpy(to + k * one, some + k * stride + r * one, one);
    }
}

/* Reads the strip from `row` on: the rest of its matrix, or as much of it as fits. */
static int fill(struct moe_strip *s, const struct moe_file *f, struct kn_team *team, uint64_t row)
{
    const size_t per_row = (size_t)s->t->dim[0] * s->one;
    const uint64_t most = s->most > per_row ? s->most / per_row : 1, left = s->t->dim[1] - row % s->t->dim[1];
    struct job j = { .s = s, .file = f };
    s->row = row;
    s->n_row = left < most ? left : most;
    if (!s->data)
        s->data = kn_alloc((size_t)(most < s->t->dim[1] ? most : s->t->dim[1]) * per_row);
    j.some = kn_alloc((size_t)kn_team_size(team) * BUNCH * (size_t)s->n_row * s->one);
    if (!s->data || !j.some) {
        kn_free(j.some);
        s->n_row = 0;
        return kn_fail(KN_ENOMEM, "quantize: no memory for %zu bytes of a stack stored by input",
                       per_row * (size_t)most);
    }
    kn_parallel_for(team, (int)((s->t->dim[0] + BUNCH - 1) / BUNCH), read_bunch, &j);
    kn_free(j.some);
    if (atomic_load(&j.err))
        s->n_row = 0;
    return atomic_load(&j.err);
}

int moe_strip_read(struct moe_strip *s, const struct moe_file *f, struct kn_team *team, uint64_t at, uint8_t *out,
                   size_t bytes)
{
    const uint64_t n_in = s->t->dim[0];
    for (size_t part; bytes; bytes -= part, at += part / s->one, out += part) {
        const uint64_t row = at / n_in;
        int err = row - s->row < s->n_row ? 0 : fill(s, f, team, row);
        if (err)
            return err;
        size_t left = (size_t)((s->row + s->n_row) * n_in - at) * s->one;
        part = left < bytes ? left : bytes;
        memcpy(out, s->data + (at - s->row * n_in) * s->one, part);
    }
    return 0;
}

void moe_strip_free(struct moe_strip *s)
{
    kn_free(s->data);
    *s = (struct moe_strip){ 0 };
}
