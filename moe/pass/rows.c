/* Operations that several parts of a pass add to the queue. */
#include "moe/pass/pass.h"

void moe_add_norm_to(struct moe_context *c, const struct kn_acts *out, const struct moe_output *y, const float *weight,
                     const float *bias, unsigned kinds)
{
    const struct moe_desc *d = &c->model->desc;
    kn_enqueue(c->queue, ADD_NORM_CODE, add_norm_code, .x = c->x, .y = y ? y->y : NULL, .bias = y ? y->bias : NULL,
               .y_norm = y ? y->norm : NULL, .y_scale = d->residual_scale, .weight = weight, .eps = d->eps,
               .n = c->n_row, .n_from = c->n_row, .d = d->d_model, .out = *out, .kinds = kinds, .norm_bias = bias);
}

void moe_add_norm(struct moe_context *c, const struct moe_output *y, const float *weight, const float *bias,
                  unsigned kinds)
{
    moe_add_norm_to(c, &c->norm, y, weight, bias, kinds);
}

void moe_products(struct moe_context *c, const struct kn_op_products *p)
{
    kn_queue_add(c->queue, &(struct kn_op){ .kind = KN_OP_PRODUCTS, .products = *p });
}

void moe_multiply(struct moe_context *c, const struct kn_acts *in, const struct kn_mat *w, float *y, int n_row)
{
    struct kn_op_products p = { .n = 0 };
    moe_product_add(&p, in, w, y, n_row);
    moe_products(c, &p);
}
