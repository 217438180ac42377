/* Which neighbours a device may run as one (kernels/fuse.c): each pair of its table, and not the same pair once `next` reads another
 * array, or has another size, than `op` writes.  No operation runs.  Not under MODE=tsan: one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/pass.h"

static float x[4], other_floats[4];
static int32_t ids[4], other_ids[4];

/* The pair may be fused; not after the change, which is taken back. */
#define PAIR(op, next) assert_true(kn_may_fuse(op, next))
#define NOT_WITH(op, next, field, value)                                                                               \
    do {                                                                                                               \
        struct kn_op was = *(next);                                                                                    \
        (next)->field = value;                                                                                         \
        if (kn_may_fuse(op, next))                                                                                     \
            fail_msg("%s, %s is fused with another " #field, kn_op_name((op)->kind), kn_op_name((next)->kind));        \
        *(next) = was;                                                                                                 \
        PAIR(op, next);                                                                                                \
    } while (0)

static void a_sum_and_the_norm_of_its_rows(void **state)
{
    struct kn_op op = { KN_OP_COMBINE, .combine = { .rows.n = 3, .d_model = 64, .x = x } };
    struct kn_op next = { KN_OP_ADD_NORM_CODE, .add_norm_code = { .x = x, .n = 3, .n_from = 3, .d = 64 } };
    (void)state;
    PAIR(&op, &next);
    NOT_WITH(&op, &next, add_norm_code.x, other_floats);
    NOT_WITH(&op, &next, add_norm_code.y, other_floats);
    NOT_WITH(&op, &next, add_norm_code.row, ids);
    NOT_WITH(&op, &next, add_norm_code.n, 2);
    NOT_WITH(&op, &next, add_norm_code.d, 32);
    NOT_WITH(&op, &next, kind, KN_OP_CODE);
}

static void logits_of_a_row_and_its_route(void **state)
{
    struct kn_op op = { KN_OP_PRODUCTS, .products = { .n = 2 } };
    struct kn_op next = { KN_OP_ROUTE, .route = { .n = 1, .n_expert = 8, .n_used = 2, .logit = x } };
    (void)state;
    op.products.product[0].mul.y = other_floats;
    op.products.product[0].mul.n_row = 1;
    op.products.product[1].mul.y = x;
    op.products.product[1].mul.n_row = 1;
    op.products.product[1].mul.w.n_out = 8;
    PAIR(&op, &next);
    NOT_WITH(&op, &next, route.logit, x + 1);
    NOT_WITH(&op, &next, route.n, 2);
    NOT_WITH(&op, &next, route.n_expert, 7);
    op.products.product[1].mul.n_row = next.route.n = 2;
    assert_false(kn_may_fuse(&op, &next));
}

static void a_route_and_lists_of_its_choices(void **state)
{
    struct kn_op op = { KN_OP_ROUTE, .route = { .n = 3, .n_expert = 8, .n_used = 2, .id = ids, .weight = x } };
    struct kn_op plan = { KN_OP_PLAN, .plan = { .rows.n = 3, .n_expert = 8, .n_used = 2, .id = ids } };
    struct kn_op guess = { KN_OP_GUESS, .guess = { .rows.n = 3, .n_expert = 8, .n_used = 2, .id = ids, .weight = x } };
    (void)state;
    PAIR(&op, &plan);
    NOT_WITH(&op, &plan, plan.id, other_ids);
    NOT_WITH(&op, &plan, plan.rows.n, 2);
    NOT_WITH(&op, &plan, plan.n_used, 1);
    NOT_WITH(&op, &plan, plan.n_expert, 7);
    PAIR(&op, &guess);
    NOT_WITH(&op, &guess, guess.id, other_ids);
    NOT_WITH(&op, &guess, guess.weight, other_floats);
    NOT_WITH(&op, &guess, guess.rows.n, 2);
    NOT_WITH(&op, &guess, guess.n_used, 1);
    NOT_WITH(&op, &guess, guess.n_expert, 7);
}

static void a_plan_and_its_groups(void **state)
{
    static int32_t list[6][4];
    struct kn_plan p = { list[0], list[1], list[2], list[3], list[4], list[5] };
    struct kn_op op = { KN_OP_PLAN, .plan = { .n_expert = 8, .expert0 = 16, .plan = p } };
    struct kn_op next = { KN_OP_GROUP, .group = { .n_expert = 8, .expert0 = 16, .plan = p } };
    (void)state;
    PAIR(&op, &next);
    NOT_WITH(&op, &next, group.plan.n_expert, other_ids);
    NOT_WITH(&op, &next, group.plan.expert, other_ids);
    NOT_WITH(&op, &next, group.plan.first, other_ids);
    NOT_WITH(&op, &next, group.plan.row, other_ids);
    NOT_WITH(&op, &next, group.plan.pair, other_ids);
    NOT_WITH(&op, &next, group.expert0, 24);
    NOT_WITH(&op, &next, group.n_expert, 7);
    next.group.plan.fill = NULL; /* not read */
    PAIR(&op, &next);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_and_the_norm_of_its_rows),
        cmocka_unit_test(logits_of_a_row_and_its_route),
        cmocka_unit_test(a_route_and_lists_of_its_choices),
        cmocka_unit_test(a_plan_and_its_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
