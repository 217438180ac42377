/* The two kinds of parallel region in a forward pass: passes over rows, and matrix products.
 *
 * A pass over rows (norm, activation quantisation, addition) has one row per work item.  A region of products has a few
 * panels of one matrix per item, of about equal cost over all its matrices, so eight small experts are one region.  The
 * threads of a NUMA node get the items with weights on that node.  The result of a row or a panel does not depend on
 * this division. */
#include "moe/pass/pass.h"

/* ---- rows -------------------------------------------------------------------------------------------- */

struct row_job {
    struct moe_context *c;
    const float *weight; /* norm only */
    struct moe_acts *acts;
    unsigned kinds;
    int n_in;
    const int32_t *row; /* row[i] is the row of item i; NULL: row i */
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

void moe_rows_code(struct moe_context *c, struct moe_acts *a, unsigned kinds, int n_in, const int32_t *row, int n)
{
    struct row_job job = { .c = c, .acts = a, .kinds = kinds, .n_in = n_in, .row = row };
    kn_parallel_for(c->team, n, code_item, &job);
}

/* c->norm row `item` is computed from residual row row[item]: the final norm packs the rows that want logits. */
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
    struct row_job job = {
        .c = c, .weight = weight, .acts = &c->norm, .kinds = kinds, .n_in = c->model->desc.d_model, .row = row
    };
    kn_parallel_for(c->team, n, norm_item, &job);
}

struct add_job {
    struct moe_context *c;
    float *y;
    const float *bias, *norm;
};

void moe_add_row(struct moe_context *c, int row, float *y, const float *norm)
{
    const struct moe_desc *d = &c->model->desc;
    float *x = c->x + (size_t)row * (size_t)d->d_model;
    if (norm)
        c->model->ops->rms_norm(y, norm, d->eps, d->d_model, y);
    if (d->residual_scale != 1)
        c->model->ops->add_scaled(x, d->residual_scale, y, d->d_model);
    else
        c->model->ops->add(x, y, d->d_model);
}

static void add_row(void *arg, int row, int thread)
{
    (void)thread;
    const struct add_job *j = arg;
    int d_model = j->c->model->desc.d_model;
    size_t at = (size_t)row * (size_t)d_model;
    if (j->bias)
        j->c->model->ops->add(j->y + at, j->bias, d_model);
    moe_add_row(j->c, row, j->y + at, j->norm);
}

void moe_rows_add(struct moe_context *c, float *y, const float *bias, const float *norm)
{
    struct add_job job = { c, y, bias, norm };
    kn_parallel_for(c->team, c->n_row, add_row, &job);
}

/* ---- products ---------------------------------------------------------------------------------------- */

struct moe_product moe_product(const struct moe_acts *in, const struct kn_mat *w, float *y, int n_row)
{
    enum kn_act kind = kn_format_info(w->format)->act;
    return (struct moe_product){ .mul = { .w = *w,
                                          .x = in->code[kind],
                                          .x_stride = in->code_stride[kind],
                                          .y = y,
                                          .y_stride = (size_t)w->n_out,
                                          .n_row = n_row },
                                 .node = -1,
                                 .n_stack = 1 };
}

struct product_job {
    const struct kn_ops *ops;
    const struct moe_product *product;
    const struct moe_piece *piece;
    int n_piece;
};

/* Computes panels panel0 .. panel1 - 1 of a product, matrix by matrix if it is a stack.  The kernel adds the offset of
 * a panel in the whole stack to y, so y is moved back by the panels of the matrices before. */
static void run_panels(const struct kn_ops *ops, const struct moe_product *p, int panel0, int panel1)
{
    int n_own = kn_ceil_div(p->mul.w.n_out, KN_PANEL) / p->n_stack;
    while (panel0 < panel1) {
        size_t i = (size_t)(panel0 / n_own);
        int end = kn_min(panel1, ((int)i + 1) * n_own);
        struct kn_matmul mul = p->mul;
        mul.x = (const uint8_t *)mul.x + i * p->x_part;
        mul.y += i * (p->y_part - (size_t)(n_own * KN_PANEL));
        ops->matmul(&mul, panel0, end);
        panel0 = end;
    }
}

static void product_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct product_job *j = arg;
    int low = 0, high = j->n_piece; /* the last piece that begins at or before item */
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (j->piece[mid].item0 <= item)
            low = mid;
        else
            high = mid;
    }
    const struct moe_piece *p = &j->piece[low];
    int panel0 = p->panel0 + (item - p->item0) * p->per_item;
    run_panels(j->ops, &j->product[p->product], panel0, kn_min(panel0 + p->per_item, p->panel1));
}

static int n_panel(const struct moe_product *p) { return kn_ceil_div(p->mul.w.n_out, KN_PANEL); }

/* The cost of a panel, in weight bytes: reading the weights bounds up to about 4 rows, arithmetic bounds more rows
 * (measured for Q4_K). */
static size_t panel_cost(const struct moe_product *p)
{
    size_t bytes = KN_PANEL * kn_row_bytes(p->mul.w.format, p->mul.w.n_in);
    return bytes * (size_t)kn_max(4, p->mul.n_row) / 4;
}

/* The cost of an item is about 1/32 of a thread's share, but not less than 16 KiB of weights: claiming an item costs
 * 50 ns. */
#define ITEMS_PER_THREAD 32
#define ITEM_BYTES_MIN   ((size_t)16 << 10)

static size_t item_cost(const struct moe_context *c, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += panel_cost(&c->product[i]) * (size_t)n_panel(&c->product[i]);
    size_t cost = total / (size_t)(kn_team_size(c->team) * ITEMS_PER_THREAD);
    return cost < ITEM_BYTES_MIN ? ITEM_BYTES_MIN : cost;
}

/* A product with node -1 has a piece on each node; a region has up to 4 such products. */
size_t moe_piece_room(const struct kn_team *t, size_t n_product)
{
    return n_product + 4 * (size_t)(kn_team_nodes(t) - 1);
}

/* Sets *out to the panels of product i that lie on this node; false: it has none there. */
static bool cut_piece(const struct moe_context *c, int i, int node, struct moe_piece *out)
{
    const struct moe_product *p = &c->product[i];
    int n = n_panel(p);
    *out = (struct moe_piece){ .product = i, .panel1 = n };
    if (p->node < 0) {
        out->panel0 = kn_team_cut(c->team, n, node);
        out->panel1 = kn_team_cut(c->team, n, node + 1);
    } else if (kn_min(p->node, kn_team_nodes(c->team) - 1) != node) {
        return false;
    }
    return p->mul.n_row > 0 && out->panel0 < out->panel1;
}

void moe_products(struct moe_context *c, int n)
{
    size_t cost = item_cost(c, n);
    int n_piece = 0, n_item = 0, cut[KN_NODES + 1];
    for (int node = 0; node <= KN_NODES; node++) {
        cut[node] = n_item;
        for (int i = 0; node < kn_team_nodes(c->team) && i < n; i++) {
            struct moe_piece p;
            if (!cut_piece(c, i, node, &p))
                continue;
            size_t per = cost / panel_cost(&c->product[i]);
            int n_own = p.panel1 - p.panel0;
            p.per_item = per < 1 ? 1 : per > (size_t)n_own ? n_own : (int)per;
            p.item0 = n_item;
            n_item += kn_ceil_div(n_own, p.per_item);
            c->piece[n_piece++] = p;
        }
    }
    struct product_job job = { c->model->ops, c->product, c->piece, n_piece };
    kn_parallel_on(c->team, cut, product_item, &job);
}
