/* kernels/cuda/fused.c - neighbouring operations in one launch, where kernels/fuse.c allows it and a kernel exists.
 *
 * A queue holds an operation that may begin such a row of operations until the next one is added.  Held operations
 * are launched before anyone waits for the queue. */
#include "kernels/cuda/internal.h"

/* The kernel that routes one row with the product of its logits, or NULL. */
static struct CUfunc_st *product_kernel(const struct kn_cuda_queue *q, const struct kn_op_products *o)
{
    static const enum kn_cuda_kernel kernels[KN_FORMAT_COUNT] = {
        [KN_F32] = KN_CUDA_choose_F32,
        [KN_F16] = KN_CUDA_choose_F16,
        [KN_BF16] = KN_CUDA_choose_BF16,
    };
    enum kn_format f = o->product[0].mul.w.format;
    for (int i = 0; i < o->n; i++)
        if (o->product[i].mul.n_row != 1 || o->product[i].mul.w.format != f)
            return NULL;
    return kernels[f] ? q->device->kernel[kernels[f]] : NULL;
}

static bool begins(const struct kn_cuda_queue *q, const struct kn_op *op)
{
    return op->kind == KN_OP_COMBINE || op->kind == KN_OP_ROUTE ||
           (op->kind == KN_OP_PRODUCTS && product_kernel(q, &op->products));
}

static void launch_combine(struct kn_cuda_queue *q)
{
    struct kn_cuda_grid g = { q->held[0].combine.rows.n, 1, 1 };
    kn_cuda_launch(q, q->device->kernel[KN_CUDA_combine_norm], g, KN_CUDA_ROW_THREADS,
                   (void *[]){ &q->held[0].combine, &q->held[1].add_norm_code });
}

/* Routes, plan and groups, or guess; the product of one row's logits may come first. */
static void launch_choice(struct kn_cuda_queue *q)
{
    struct kn_cuda_choice c = { .count = q->count };
    struct kn_op_products *p = NULL;
    for (int i = 0; i < q->n_held; i++) {
        const struct kn_op *op = &q->held[i];
        c.has |= 1u << op->kind;
        if (op->kind == KN_OP_PRODUCTS)
            p = &q->held[i].products;
        else if (op->kind == KN_OP_ROUTE)
            c.route = op->route;
        else if (op->kind == KN_OP_PLAN)
            c.plan = op->plan;
        else if (op->kind == KN_OP_GUESS)
            c.guess = op->guess;
        else
            c.group = op->group;
    }
    if (!p) {
        kn_cuda_launch(q, q->device->kernel[KN_CUDA_choose], (struct kn_cuda_grid){ c.route.n, 1, 1 },
                       KN_CUDA_ROW_THREADS, (void *[]){ &c });
        return;
    }
    struct kn_cuda_grid g = { 0, 1, p->n };
    for (int i = 0; i < p->n; i++)
        g.x = kn_max(g.x, kn_cuda_panel_grid(p->product[i].mul.w.n_out, p->product[i].mul.w.n_in, 1, 1).x);
    kn_cuda_launch(q, product_kernel(q, p), g, KN_CUDA_SLOTS * 4, (void *[]){ p, &c });
}

void kn_cuda_launch_held(struct kn_cuda_queue *q)
{
    if (q->n_held == 1)
        kn_cuda_launch_op(q, &q->held[0]);
    else if (q->n_held && q->held[0].kind == KN_OP_COMBINE)
        launch_combine(q);
    else if (q->n_held)
        launch_choice(q);
    q->n_held = 0;
}

void kn_cuda_add(struct kn_cuda_queue *q, const struct kn_op *op)
{
    if (!q->n_held || q->n_held == KN_CUDA_HELD || !kn_may_fuse(&q->held[q->n_held - 1], op))
        kn_cuda_launch_held(q);
    if (q->n_held || begins(q, op))
        q->held[q->n_held++] = *op;
    else
        kn_cuda_launch_op(q, op);
}
