/* Operations that a CUDA device runs as one, where kernels/fuse.c allows it: the bytes are those of the same operations, one
 * after the other; there is one launch; and neighbours that only look alike are not taken for such.
 * One thread: not under MODE=tsan. */
#include "tests/cuda/count.h"

#include "tests/kernels/pass_case.h"

#define N_CHOICE 12 /* experts of routes: enough to leave some unused */

/* Runs the operations one by one, or together.  Returns the launches. */
static int run_ops(const struct kn_op *op, int n, bool together)
{
    struct kn_queue *queue = cuda_queue(64, 8, 64);
    calls.launches = 0;
    for (int i = 0; i < n; i++) {
        kn_queue_add(queue, &op[i]);
        if (!together)
            assert_int_equal(kn_queue_wait(queue), 0);
    }
    assert_int_equal(kn_queue_wait(queue), 0);
    kn_queue_close(queue);
    return calls.launches;
}

static void check_ops(const struct kn_op *op, int n, int n_launch)
{
    memcpy(first_image, memory, used);
    assert_int_equal(run_ops(op, n, false), n);
    memcpy(plain_image, memory, used);
    memcpy(memory, first_image, used);
    assert_int_equal(run_ops(op, n, true), n_launch);
    assert_memory_equal(memory, plain_image, used);
    assert_int_not_equal(memcmp(memory, first_image, used), 0);
}

#define NEEDS_DEVICE                                                                                                   \
    (void)state;                                                                                                       \
    if (!memory || !count_calls())                                                                                     \
        skip();                                                                                                        \
    used = 0

/* ---- a sum, and the norm after it ------------------------------------------------------------------------------------ */

static struct kn_op combine_of(float *x, const struct kn_acts *scratch)
{
    return (struct kn_op){ KN_OP_COMBINE, .combine = { .rows = rows_of_batch(),
                                                       .n_used = N_USED,
                                                       .d_model = D,
                                                       .id = LIST(4, 1, 1, 0, 5, 4, 2, 0, 1, 5),
                                                       .weight = floats(N_ROW * N_USED),
                                                       .y = floats(N_ROW * N_USED * D),
                                                       .n_expert = N_EXP,
                                                       .shared = floats(N_ROW * D),
                                                       .eps = 1e-6f,
                                                       .sum_scale = 0.4f,
                                                       .scratch = *scratch,
                                                       .x = x } };
}

static void norms_follow_sums(void **state)
{
    NEEDS_DEVICE;
    struct kn_acts out = acts(N_ROW, D, 16, Q32);
    float *x = floats(N_ROW * D);
    struct kn_op op[2] = { combine_of(x, &out),
                           { KN_OP_ADD_NORM_CODE, .add_norm_code = { .x = x,
                                                                     .weight = floats(D),
                                                                     .eps = 1e-5f,
                                                                     .n = N_ROW,
                                                                     .n_from = N_ROW,
                                                                     .d = D,
                                                                     .out = out,
                                                                     .kinds = Q32 } } };
    check_ops(op, 2, 1);
    op[1].add_norm_code.row = LIST(2, 0, 1, 1, 4); /* other rows */
    check_ops(op, 2, 2);
    op[1].add_norm_code.row = NULL;
    op[1].add_norm_code.x = floats(N_ROW * D);
    check_ops(op, 2, 2);
}

/* ---- routes ------------------------------------------------------------------------------------------------------------ */

static struct kn_op route_of(const struct kn_rows *rows, float *logit)
{
    return (struct kn_op){ KN_OP_ROUTE, .route = { .n = rows->n,
                                                   .n_expert = N_CHOICE,
                                                   .n_used = 3,
                                                   .logit = logit,
                                                   .rank = floats(rows->n * N_CHOICE),
                                                   .select_bias = floats(N_CHOICE),
                                                   .gating = KN_GATING_SIGMOID,
                                                   .n_group = 3,
                                                   .n_group_used = 2,
                                                   .group_best = 2,
                                                   .norm_topk = true,
                                                   .scale = 1.5f,
                                                   .id = take((size_t)rows->n * 3 * sizeof(int32_t)),
                                                   .weight = floats(rows->n * 3) } };
}

static struct kn_op plan_of(const struct kn_rows *rows, const struct kn_op *route)
{
    size_t n_pair = (size_t)rows->n * 3;
    return (struct kn_op){ KN_OP_PLAN, .plan = { .rows = *rows,
                                                 .n_expert = N_CHOICE,
                                                 .n_used = 3,
                                                 .expert0 = 100,
                                                 .id = route->route.id,
                                                 .plan = { .n_expert = take(4),
                                                           .expert = take(4 * N_CHOICE),
                                                           .first = take(4 * (N_CHOICE + 1)),
                                                           .row = take(4 * n_pair),
                                                           .pair = take(4 * n_pair),
                                                           .fill = take(4 * N_CHOICE) } } };
}

/* Some experts are absent. */
static struct kn_op group_of(const struct kn_op *route, const struct kn_op *plan)
{
    int n_pair = route->route.n * 3;
    struct kn_group *all = take(N_CHOICE * sizeof *all);
    for (int e = 0; e < N_CHOICE; e++) {
        all[e] = (struct kn_group){
            matrix(KN_Q8_0, 32, D), matrix(KN_Q8_0, 32, D), matrix(KN_Q8_0, D, 32), -1, 7, 8, 9
        };
        if (e % 3 == 1)
            all[e].gate.data = NULL;
    }
    return (struct kn_op){ KN_OP_GROUP, .group = { .plan = plan->plan.plan,
                                                   .expert0 = 100,
                                                   .n_expert = N_CHOICE,
                                                   .expert = all,
                                                   .group = take((size_t)n_pair * sizeof(struct kn_group)),
                                                   .n_group = n_pair,
                                                   .n_sum = LIST(40),
                                                   .n_pair = n_pair,
                                                   .out = take(4 * (size_t)n_pair),
                                                   .place = take(4 * (size_t)n_pair),
                                                   .n_absent = take(4),
                                                   .weight = route->route.weight,
                                                   .out_weight = floats(n_pair),
                                                   .done = take(4),
                                                   .turn = 4 } };
}

static struct kn_op guess_of(const struct kn_rows *rows, const struct kn_op *route)
{
    return (struct kn_op){ KN_OP_GUESS, .guess = { .rows = *rows,
                                                   .n_expert = N_CHOICE,
                                                   .n_used = 3,
                                                   .expert0 = 100,
                                                   .id = route->route.id,
                                                   .weight = route->route.weight,
                                                   .sum = floats(N_CHOICE),
                                                   .expert = take(4 * N_CHOICE),
                                                   .n_listed = take(4) } };
}

static void lists_follow_routes(void **state)
{
    NEEDS_DEVICE;
    struct kn_rows rows = rows_of_batch();
    struct kn_op op[3] = { route_of(&rows, floats(N_ROW * N_CHOICE)) };
    op[1] = plan_of(&rows, &op[0]);
    check_ops(op, 2, 1);
    op[2] = group_of(&op[0], &op[1]);
    check_ops(op, 3, 1);
    op[1] = guess_of(&rows, &op[0]);
    check_ops(op, 2, 1);
    op[1].guess.id = LIST(4, 1, 2, 0, 5, 3, 6, 0, 1, 5, 7, 4, 3, 2, 0); /* not this route's */
    check_ops(op, 2, 2);
}

/* The logits of the router and of the shared expert's gate, of n rows. */
static struct kn_op products_of(const struct kn_acts *x, enum kn_format f, float *logit, int n)
{
    struct kn_mat router = matrix(f, N_CHOICE, D), gate = matrix(f, 1, D);
    struct kn_op op = { KN_OP_PRODUCTS, .products = { .n = 2 } };
    op.products.product[0] = kn_product(x, &router, logit, n);
    op.products.product[1] = kn_product(x, &gate, floats(n), n);
    return op;
}

/* Products in formats that have no such kernel, and of several rows, are launches of their own. */
static void routes_follow_products(void **state)
{
    static const enum kn_format formats[] = { KN_F32, KN_F16, KN_BF16, KN_Q8_0 };
    for (int i = 0; i < 4; i++)
        for (int n = 1; n <= 2; n++) {
            NEEDS_DEVICE;
            struct kn_rows rows = rows_of_batch();
            rows.n = n;
            struct kn_acts x = acts(n, D, 16, Q32);
            float *logit = floats(n * N_CHOICE);
            struct kn_op op[4] = { products_of(&x, formats[i], logit, n), route_of(&rows, logit) };
            op[2] = plan_of(&rows, &op[1]);
            op[3] = group_of(&op[1], &op[2]);
            check_ops(op, 4, n == 1 && formats[i] != KN_Q8_0 ? 1 : 2);
            op[1].route.logit = floats(n * N_CHOICE);
            check_ops(op, 4, 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(norms_follow_sums), cmocka_unit_test(lists_follow_routes),
                                        cmocka_unit_test(routes_follow_products) };
    return cmocka_run_group_tests(tests, open_memory, close_memory);
}
