/* Passes over rows, and products: the two kinds of parallel region that a forward pass is made of.
 *
 * Row passes (norm, code) take a row per item.  Products take a few panels per item, over all matrices
 * of the region together, so that eight small experts are one region of even pieces.  What a row or a
 * panel yields never depends on the pieces. */
#include "moe/internal.h"

/* ---- rows -------------------------------------------------------------------------------------------- */

struct row_job {
    struct moe_context *c;
    const float *weight;                        /* norm only */
    struct moe_acts *acts;
    unsigned kinds;
    int n_in;
    const int32_t *row;                         /* i-th row of the pass; NULL: i */
};

void moe_code_row(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in, int row)
{
    for (int kind = KN_ACT_F32 + 1; kind < KN_ACT_COUNT; kind++)
        if (kinds & 1u << kind)
            c->model->ops->quantize(kind, a->x + (size_t)row * a->stride, n_in,
                                    (uint8_t *)a->code[kind] + (size_t)row * a->code_stride[kind]);
}

static void code_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct row_job *j = arg;
    moe_code_row(j->c, j->acts, j->kinds, j->n_in, j->row ? j->row[item] : item);
}

void moe_rows_code(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in,
                   const int32_t *row, int n)
{
    struct row_job job = { .c = c, .acts = a, .kinds = kinds, .n_in = n_in, .row = row };
    kn_parallel_for(c->team, n, code_item, &job);
}

/* The i-th norm row comes from residual row row[i]: the last norm packs the rows that want logits. */
static void norm_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct row_job *j = arg;
    struct moe_context *c = j->c;
    const struct moe_desc *d = &c->model->desc;
    int from = j->row ? j->row[item] : item;
    c->model->ops->rms_norm(c->x + (size_t)from * (size_t)d->d_model, j->weight, d->eps, d->d_model,
                            c->norm.x + (size_t)item * c->norm.stride);
    moe_code_row(c, j->acts, j->kinds, j->n_in, item);
}

void moe_rows_norm(struct moe_context *c, const float *weight, unsigned kinds, const int32_t *row, int n)
{
    struct row_job job = { .c = c, .weight = weight, .acts = &c->norm, .kinds = kinds,
                           .n_in = c->model->desc.d_model, .row = row };
    kn_parallel_for(c->team, n, norm_item, &job);
}

/* ---- products ---------------------------------------------------------------------------------------- */

struct kn_matmul moe_product(const struct moe_acts *in, const struct kn_mat *w, float *y, int n_row)
{
    enum kn_act kind = kn_format_info(w->format)->act;
    return (struct kn_matmul){ .w = *w, .x = in->code[kind], .x_stride = in->code_stride[kind],
                               .y = y, .y_stride = (size_t)w->n_out, .n_row = n_row };
}

struct product_job {
    const struct kn_ops *ops;
    const struct kn_matmul *product;
    const int *first, *panels;
    int n;
};

static void product_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct product_job *j = arg;
    int low = 0, high = j->n;                   /* the last product whose first item is not past item */
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (j->first[mid] <= item)
            low = mid;
        else
            high = mid;
    }
    const struct kn_matmul *p = &j->product[low];
    int panel0 = (item - j->first[low]) * j->panels[low];
    int panel1 = kn_min(panel0 + j->panels[low], kn_ceil_div(p->w.n_out, KN_PANEL));
    j->ops->matmul(p, panel0, panel1);
}

/* A piece costs its weight bytes while few rows use them, and operations after that: about 4 rows of
 * Q4_K take as long as the bytes do. */
static size_t panel_cost(const struct kn_matmul *p)
{
    size_t bytes = KN_PANEL * kn_row_bytes(p->w.format, p->w.n_in);
    return bytes * (size_t)kn_max(4, p->n_row) / 4;
}

/* Pieces of about 1/32 of a thread's share, but not under 16 KiB of weights: a claim costs 50 ns. */
#define PIECES_PER_THREAD 32
#define PIECE_BYTES_MIN   ((size_t)16 << 10)

void moe_products(struct moe_context *c, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += panel_cost(&c->product[i]) * (size_t)kn_ceil_div(c->product[i].w.n_out, KN_PANEL);
    size_t piece = total / (size_t)(kn_team_size(c->team) * PIECES_PER_THREAD);
    if (piece < PIECE_BYTES_MIN)
        piece = PIECE_BYTES_MIN;
    int n_item = 0;
    for (int i = 0; i < n; i++) {
        int n_panel = kn_ceil_div(c->product[i].w.n_out, KN_PANEL);
        size_t per = piece / panel_cost(&c->product[i]);
        c->product_panels[i] = per < 1 ? 1 : per > (size_t)n_panel ? n_panel : (int)per;
        c->product_first[i] = n_item;
        n_item += c->product[i].n_row ? kn_ceil_div(n_panel, c->product_panels[i]) : 0;
    }
    c->product_first[n] = n_item;
    struct product_job job = { c->model->ops, c->product, c->product_first, c->product_panels, n };
    kn_parallel_for(c->team, n_item, product_item, &job);
}
