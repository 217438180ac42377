/* Products of matrices with rows, in one parallel region.
 *
 * An item is a few panels of one matrix, of about equal cost over all matrices of the region, so eight small experts are
 * one region.  The threads of a NUMA node get the items with weights on that node.  The result of a panel does not depend
 * on this division. */
#include "kernels/cpu/pass/host.h"

struct product_job {
    const struct kn_ops *ops;
    const struct kn_product *product;
    const struct kn_piece *piece;
    int n_piece;
};

/* Computes panels panel0 .. panel1 - 1 of a product, matrix by matrix if it is a stack.  The kernel adds the offset of
 * a panel in the whole stack to y, so y is moved back by the panels of the matrices before. */
static void run_panels(const struct kn_ops *ops, const struct kn_product *p, int panel0, int panel1)
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
    const struct kn_piece *p = &j->piece[low];
    int panel0 = p->panel0 + (item - p->item0) * p->per_item;
    run_panels(j->ops, &j->product[p->product], panel0, kn_min(panel0 + p->per_item, p->panel1));
}

static int n_panel(const struct kn_product *p) { return kn_ceil_div(p->mul.w.n_out, KN_PANEL); }

/* The cost of a panel, in weight bytes: reading the weights bounds up to about 4 rows, arithmetic bounds more rows
 * (measured for Q4_K). */
static size_t panel_cost(const struct kn_product *p)
{
    size_t bytes = KN_PANEL * kn_row_bytes(p->mul.w.format, p->mul.w.n_in);
    return bytes * (size_t)kn_max(4, p->mul.n_row) / 4;
}

/* The cost of an item is about 1/32 of a thread's share, but not less than 16 KiB of weights: claiming an item costs
 * 50 ns. */
#define ITEMS_PER_THREAD 32
#define ITEM_BYTES_MIN   ((size_t)16 << 10)

static size_t item_cost(const struct kn_host_queue *q, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += panel_cost(&q->product[i]) * (size_t)n_panel(&q->product[i]);
    size_t cost = total / (size_t)(kn_team_size(q->team) * ITEMS_PER_THREAD);
    return cost < ITEM_BYTES_MIN ? ITEM_BYTES_MIN : cost;
}

/* A product with node -1 has a piece on each node; a region has up to KN_PRODUCTS such products. */
size_t kn_host_piece_room(const struct kn_team *t, int n_product)
{
    return (size_t)(n_product + KN_PRODUCTS * (kn_team_nodes(t) - 1));
}

/* Sets *out to the panels of product i that lie on this node; false: it has none there. */
static bool cut_piece(const struct kn_host_queue *q, int i, int node, struct kn_piece *out)
{
    const struct kn_product *p = &q->product[i];
    int n = n_panel(p);
    *out = (struct kn_piece){ .product = i, .panel1 = n };
    if (p->node < 0) {
        out->panel0 = kn_team_cut(q->team, n, node);
        out->panel1 = kn_team_cut(q->team, n, node + 1);
    } else if (kn_min(p->node, kn_team_nodes(q->team) - 1) != node) {
        return false;
    }
    return p->mul.n_row > 0 && out->panel0 < out->panel1;
}

void kn_host_run_products(struct kn_host_queue *q, int n)
{
    size_t cost = item_cost(q, n);
    int n_piece = 0, n_item = 0, cut[KN_NODES + 1];
    for (int node = 0; node <= KN_NODES; node++) {
        cut[node] = n_item;
        for (int i = 0; node < kn_team_nodes(q->team) && i < n; i++) {
            struct kn_piece p;
            if (!cut_piece(q, i, node, &p))
                continue;
            size_t per = cost / panel_cost(&q->product[i]);
            int n_own = p.panel1 - p.panel0;
            p.per_item = per < 1 ? 1 : per > (size_t)n_own ? n_own : (int)per;
            p.item0 = n_item;
            n_item += kn_ceil_div(n_own, p.per_item);
            q->piece[n_piece++] = p;
        }
    }
    struct product_job job = { q->ops, q->product, q->piece, n_piece };
    kn_parallel_on(q->team, cut, product_item, &job);
}

void kn_host_products(struct kn_host_queue *q, const struct kn_op_products *o)
{
    for (int i = 0; i < o->n; i++)
        q->product[i] = o->product[i];
    kn_host_run_products(q, o->n);
}
