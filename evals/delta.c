/* evals/delta.c - the speed of one core's gated delta rule, per instruction set and shape.
 *
 * Two cases: prefill (many rows through a head with its state in the cache) and
 * decode (one row through each of many heads, with states read from and written to memory). Beside each
 * figure stands its bound, measured in the same run: independent fmas on registers, and a pass that reads
 * and writes memory in place. Prints CSV. */
#include "evals/measure.h"

#include <stdio.h>

#define N_ROW 32

struct work {
    const struct kn_ops *ops;
    int d, n_head, head;
    float *state; /* [n_head][kn_delta_floats(d, d)] */
    size_t bytes; /* of all states */
    struct kn_delta_row row[N_ROW];
};

/* Reads and writes the next 4 MiB in each call, so that a call is short and nothing is cached. */
static double in_place(void *arg)
{
    struct work *w = arg;
    size_t n = (size_t)4 << 20, n_piece = w->bytes / n;
    w->head = (w->head + 1) % (int)n_piece;
    float *x = w->state + (size_t)w->head * n / sizeof *x;
    w->ops->add_scaled(x, 1e-30f, x, (int)(n / sizeof *x));
    return (double)n;
}

static double rows(const struct work *w, int head, int n_row)
{
    w->ops->delta(
        &(struct kn_delta){ w->state + (size_t)head * kn_delta_floats(w->d, w->d), w->row, n_row, w->d, w->d });
    return n_row;
}

static double chunk(void *arg) { return rows(arg, 0, N_ROW); }

static double decode(void *arg)
{
    struct work *w = arg;
    w->head = (w->head + 1) % w->n_head;
    return rows(w, w->head, 1);
}

int main(void)
{
    static float vector[4][256];
    struct work w = { .bytes = (size_t)512 << 20 };
    w.state = kn_map(w.bytes, -1);
    if (!w.state)
        return 1;
    for (size_t i = 0; i < w.bytes / sizeof *w.state; i++)
        w.state[i] = 0.01f;
    for (int i = 0; i < 3 * 256; i++)
        vector[i / 256][i % 256] = 0.05f;
    for (int i = 0; i < N_ROW; i++)
        w.row[i] = (struct kn_delta_row){ vector[0], vector[1], vector[2], 0.9f, 0.5f, vector[3] };
    printf("isa,d,what,rows_per_s,of_bound\n");
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        w.ops = kn_ops(isa);
        double peak = best_per_ns(fma_pass, &isa), moved = best_per_ns(in_place, &w);
        for (w.d = 64; w.d <= 256; w.d *= 2) {
            double floats = (double)kn_delta_floats(w.d, w.d);
            w.n_head = (int)((double)w.bytes / (floats * sizeof(float)));
            w.head = 0;
            double c = best_per_ns(chunk, &w), d = best_per_ns(decode, &w);
            printf("%s,%d,chunk,%.0f,%.2f\n", kn_isa_name(isa), w.d, c * 1e9, c * 4 * floats / peak);
            printf("%s,%d,decode,%.0f,%.2f\n", kn_isa_name(isa), w.d, d * 1e9, d * 4 * floats / moved);
        }
    }
    kn_unmap(w.state, w.bytes);
    return 0;
}
