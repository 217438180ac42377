/* engine/plan/product_rate.c - the speed of matrix products in a model's formats, by the number of rows.
 *
 * Each figure is taken from the operation that passes use, KN_PRODUCTS matrices at a time, on weights that other figures have
 * driven out of the caches or not, as passes would.  The best of some windows counts, as in host_rate.c; those of a figure lie
 * apart in time. */
#include "engine/plan/product_rate.h"

#include "engine/plan/host_rate.h"
#include "kernels/pass.h"

#include <string.h>

#define AREA_BYTES ((size_t)512 << 20) /* many times any cache: of less, a part would stay cached */
#define WINDOW_NS  4000000
#define FEW_ROUNDS 3         /* at least, */
#define ENOUGH_NS  400000000 /* and until this much time has passed: a machine's slow moments last tenths of a second */
#define SMALL      0.02      /* share of the model's bytes: formats with less are not measured */

static const int rows_of[ENG_PRODUCT_ROWS] = { 1, 2, 4, 8, 16, 32 };
#define MOST_ROW 32

struct bench {
    struct kn_queue *queue;
    uint8_t *area, *x; /* weights, codes of rows: their values do not matter */
    float *y;
    size_t bytes;
    int n_in, n_out;
};

static double total(const size_t *bytes)
{
    double all = 0;
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        all += (double)bytes[f];
    return all;
}

/* One window. */
static double bytes_per_second(const struct bench *b, enum kn_format format, int n_row)
{
    enum kn_act act = kn_format_info(format)->act;
    size_t panel_bytes = kn_mat_bytes(format, KN_PANEL, b->n_in), at = 0;
    int n_out = kn_max(KN_PANEL,
                       kn_min(b->n_out, (int)(b->bytes / panel_bytes) * KN_PANEL)); /* as many as the area holds */
    size_t mat_bytes = kn_align_up(kn_mat_bytes(format, n_out, b->n_in), 64);
    uint64_t begin = kn_now_ns(), now = begin;
    double done = 0;
    for (; now - begin < WINDOW_NS; now = kn_now_ns()) {
        struct kn_op op = { .kind = KN_OP_PRODUCTS, .products.n = KN_PRODUCTS };
        for (int i = 0; i < KN_PRODUCTS; i++) {
            struct kn_acts x = { .x = NULL };
            struct kn_mat w = { format, n_out, b->n_in, 1, b->area + at };
            x.code[act] = b->x;
            x.code_stride[act] = kn_act_bytes(act, b->n_in);
            op.products.product[i] = kn_product(&x, &w, b->y + (size_t)i * MOST_ROW * (size_t)n_out, n_row);
            at = at + 2 * mat_bytes <= b->bytes ? at + mat_bytes : 0;
        }
        kn_queue_add(b->queue, &op);
        kn_queue_wait(b->queue);
        done += KN_PRODUCTS * (double)mat_bytes;
    }
    return done / ((double)(now - begin) / 1e9);
}

/* A window of each format and number of rows; *out has the best so far. */
static void measure_all(const struct bench *b, const struct moe_shape *shape, double model, double dram_Bps,
                        struct eng_products *out)
{
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        for (int i = 0; i < ENG_PRODUCT_ROWS; i++) {
            double bytes = (double)shape->pass_format_bytes[f] + (double)shape->expert_format_bytes[f];
            double rate = bytes < SMALL * model ? dram_Bps : bytes_per_second(b, (enum kn_format)f, rows_of[i]);
            out->Bps[f][i] = rate > out->Bps[f][i] ? rate : out->Bps[f][i];
        }
}

int eng_product_rate_measure(struct eng_products *out, const struct moe_shape *shape, const struct kn_device *host,
                             struct kn_team *team, size_t most, double dram_Bps)
{
    struct bench b = { .n_in = (int)kn_align_up((size_t)shape->d_model, KN_GROUP),
                       .n_out = shape->n_expert ? shape->d_expert : shape->d_ff };
    double model = total(shape->pass_format_bytes) + total(shape->expert_format_bytes);
    most = !most || most > AREA_BYTES ? AREA_BYTES : most;
    size_t least = kn_mat_bytes(KN_F32, KN_PANEL, b.n_in); /* a panel in any format */
    b.bytes = model < (double)most ? (size_t)model : most;
    b.bytes = kn_align_up(b.bytes > least ? b.bytes : least, 4096);
    size_t x_bytes = (size_t)MOST_ROW * (size_t)b.n_in * sizeof(float);
    size_t y_bytes = (size_t)KN_PRODUCTS * MOST_ROW * (size_t)b.n_out * sizeof(float),
           all = b.bytes + x_bytes + y_bytes;
    int error = eng_rate_queue(&b.queue, host, team, false);
    if (error)
        return error;
    b.area = eng_rate_area(team, all);
    if (!b.area) {
        kn_queue_close(b.queue);
        return KN_ENOMEM;
    }
    b.x = b.area + b.bytes;
    b.y = (float *)(void *)(b.x + x_bytes);
    memset(out, 0, sizeof *out);
    uint64_t begin = kn_now_ns();
    for (int round = 0; round < FEW_ROUNDS || kn_now_ns() - begin < ENOUGH_NS; round++)
        measure_all(&b, shape, model, dram_Bps, out);
    kn_queue_close(b.queue);
    kn_unmap(b.area, all);
    return 0;
}
