/* Which experts a device keeps: free slots first, then those of colder experts, never of one that the layer uses; two
 * copies in a layer at most.  Which experts pass through its window, and in which order.  The device's table names the experts
 * that are there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "moe/pass/pass.h"

#define N_EXPERT   8
#define N_SLOT     5
#define N_KEPT     3
#define SLOT_BYTES (3 * 256)

static struct moe_model model;
static struct moe_layer layer;
static struct moe_context c;
static struct moe_slot_pool *const pool = c.residents.pool;
static struct kn_team *team;
static int32_t n_planned, planned[N_EXPERT], first[N_EXPERT + 1];
static float weights[N_EXPERT][3][KN_PANEL];
static int32_t pair[2 * N_EXPERT];
static struct kn_group group[N_EXPERT], all[N_EXPERT];

/* A store of experts of one panel, of which nothing is read. */
static int open_store(void)
{
    static struct off_expert expert[N_EXPERT];
    static int fd;
    static const char *path = "zeros";
    fd = memfd_create(path, 0);
    for (int e = 0; e < N_EXPERT; e++)
        expert[e].matrix[0] = (struct off_source){ .format = KN_F32, .n_out = KN_PANEL, .n_in = 1, .scale = 1 };
    return off_store_open(&model.store, &(struct off_store_options){ .files = { 1, &fd, &path, NULL },
                                                                     .expert = expert,
                                                                     .n_expert = N_EXPERT,
                                                                     .slot_bytes = off_store_least(expert, N_EXPERT),
                                                                     .io = OFF_IO_PREAD });
}

static void divide(int n, int n_window)
{
    pool->n = n;
    pool->n_window = n_window;
    pool->n_slot = n + n_window;
}

static int open_context(void **state)
{
    struct kn_queue_options queue = { .device = kn_host_device(KN_ISA_COUNT - 1), .max_product = KN_PRODUCTS };
    static struct moe_resident slot[N_SLOT];
    static int32_t slot_of[N_EXPERT], rest[N_EXPERT], rest_of[N_EXPERT];
    static uint8_t size_of[N_EXPERT];
    static float heat[N_EXPERT];
    static bool passes[N_EXPERT];
    (void)state;
    if (kn_team_open(&team, 1))
        return -1;
    queue.team = team;
    model = (struct moe_model){ .resident_sizes = { 1, { SLOT_BYTES } },
                                .resident_size_of = size_of,
                                .shape.n_expert_total = N_EXPERT,
                                .layer = &layer,
                                .desc = { .n_used = 2, .n_layer = 1 } };
    c = (struct moe_context){ .model = &model };
    c.shared = (struct kn_memory){ .base = (uint8_t *)group, .image = (uint8_t *)group };
    c.plan = (struct kn_plan){ .n_expert = &n_planned, .expert = planned, .first = first, .pair = pair };
    c.n_row = N_EXPERT;
    c.residents = (struct moe_residents){ .n_slot = N_SLOT,
                                          .n_pool = 1,
                                          .slot = slot,
                                          .slot_of = slot_of,
                                          .heat = heat,
                                          .use = 1,
                                          .group = group,
                                          .rest = rest,
                                          .rest_of = rest_of,
                                          .passes = passes,
                                          .all = all,
                                          .where.plans = MOE_PLANS_RANDOM };
    *pool = (struct moe_slot_pool){ .slot_bytes = SLOT_BYTES, .n_expert = N_EXPERT, .n_layer_expert = N_EXPERT };
    divide(2, 1);
    memset(size_of, 0, sizeof size_of);
    memset(heat, 0, sizeof heat);
    memset(all, 0, sizeof all);
    for (int e = 0; e < N_EXPERT; e++) {
        slot_of[e] = -1;
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < KN_PANEL; k++)
                weights[e][i][k] = (float)(100 * e + KN_PANEL * i + k);
    }
    if (kn_memory_open(&c.residents.memory, queue.device, N_SLOT * SLOT_BYTES, false) ||
        kn_queue_open(&c.queue, &queue))
        return -1;
    c.copies = c.queue;
    if (open_store())
        return -1;
    for (int i = 0; i < N_SLOT; i++)
        slot[i] = (struct moe_resident){ .at = c.residents.memory.base + (size_t)i * SLOT_BYTES };
    return 0;
}

static int close_context(void **state)
{
    (void)state;
    off_store_close(model.store);
    kn_queue_close(c.queue);
    kn_memory_close(&c.residents.memory);
    kn_team_close(team);
    return 0;
}

/* A layer that uses the experts whose digits are in the text, ascending.  Returns how many the device has. */
static int use(const char *digits)
{
    moe_residents_begin(&c);
    n_planned = (int32_t)strlen(digits);
    for (int i = 0; i <= n_planned; i++)
        first[i] = i;
    for (int i = 0; i < n_planned; i++)
        planned[i] = digits[i] - '0';
    return moe_residents_list(&c);
}

static struct kn_mat *matrices(int e)
{
    static struct kn_mat m[3];
    for (int i = 0; i < 3; i++)
        m[i] = (struct kn_mat){ KN_F32, KN_PANEL, 1, 1, weights[e][i] };
    return m;
}

static bool copy(int e) { return moe_residents_copy(&c, e, matrices(e)); }

static void check_there(int e)
{
    assert_true(moe_is_resident(&c, e));
    const struct moe_resident *s = &c.residents.slot[c.residents.slot_of[e]];
    assert_int_equal(s->expert, e);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(s->matrix[i].data, weights[e][i], sizeof weights[e][i]);
    int n = 0;
    assert_ptr_equal(all[e].gate.data, s->matrix[0].data);
    for (int i = 0; i < N_EXPERT; i++) {
        assert_int_equal(all[i].gate.data != NULL, moe_is_resident(&c, i));
        n += all[i].gate.data != NULL;
    }
    assert_int_equal(n, pool->n_filled);
}

static void free_slots_come_first(void **state)
{
    (void)state;
    divide(N_KEPT, 1);
    assert_int_equal(use("024"), 0);
    assert_int_equal(c.residents.n_rest, 3);
    assert_true(copy(0));
    assert_true(copy(4));
    assert_false(copy(2)); /* two copies in a layer */
    check_there(0);
    check_there(4);
    assert_int_equal(use("0234"), 2);
    assert_int_equal(c.residents.n_rest, 2);
    assert_int_equal(c.residents.rest[0], 2);
    assert_int_equal(c.residents.rest_of[1], 2);
    assert_int_equal(c.residents.rest[2], 4); /* those that the device has come last */
    assert_int_equal(c.residents.rest[3], 0);
}

static void the_hotter_expert_takes_the_slot_of_the_coldest(void **state)
{
    (void)state;
    use("01");
    copy(0);
    copy(1);
    use("12");
    assert_false(copy(2)); /* as hot as expert 0, not clearly hotter */
    for (int i = 0; i < 5; i++)
        use("12");
    assert_false(copy(2)); /* 6 uses and 1: by chance */
    for (int i = 0; i < 5; i++)
        use("12");
    assert_true(copy(2));
    check_there(2);
    check_there(1);
    assert_false(moe_is_resident(&c, 0));
}

static void an_expert_in_use_keeps_its_slot(void **state)
{
    (void)state;
    use("01");
    copy(0);
    copy(1);
    for (int i = 0; i < 20; i++)
        use("7");
    use("017"); /* much hotter than both, which are used here */
    assert_false(copy(7));
    use("17");
    assert_true(copy(7));
    check_there(1);
    check_there(7);
}

static void two_experts_take_two_slots(void **state)
{
    (void)state;
    use("01");
    copy(0);
    copy(1);
    for (int i = 0; i < 20; i++)
        use("67");
    use("67");
    assert_true(copy(6));
    assert_true(copy(7));
    check_there(6);
    check_there(7);
}

static void heat_stays_finite(void **state)
{
    (void)state;
    use("01");
    copy(0);
    copy(1);
    for (int i = 0; i < 10000; i++)
        use("1");
    assert_true(c.residents.heat[0] < 1e-10f); /* long ago */
    assert_true(c.residents.heat[1] < HUGE_VALF && c.residents.heat[1] > 0 && c.residents.use < HUGE_VALF);
    use("5");
    assert_false(copy(5) && moe_is_resident(&c, 0)); /* expert 0 is the colder one */
    check_there(1);
}

/* A layer in which the experts of the text have so many rows, 0 to 9; their pairs are numbered from the last. */
static int use_rows(const char *digits, const char *rows)
{
    int n = 0;
    n_planned = (int32_t)strlen(digits);
    for (int i = 0; i < n_planned; i++) {
        planned[i] = digits[i] - '0';
        first[i] = n;
        n += rows[i] - '0';
    }
    first[n_planned] = n;
    for (int i = 0; i < n; i++)
        pair[i] = 2 * N_EXPERT - 1 - i;
    return moe_residents_list(&c);
}

/* Each pass uses all three; expert 2 has most of the rows. */
static void rows_make_an_expert_hot(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++)
        use_rows("012", "318");
    assert_true(fabsf(c.residents.heat[0] / c.residents.heat[1] - 3) < 0.01F);
    use("1");
    copy(1);
    use("0");
    copy(0);
    for (int i = 0; i < 5; i++)
        use("3");
    use("23");
    assert_true(copy(2)); /* expert 1 was used as often */
    assert_false(moe_is_resident(&c, 1));
    check_there(0);
    check_there(2);
}

static void copied_experts_have_most_rows(void **state)
{
    (void)state;
    use("3");
    copy(3);
    for (int round = 0; round < 50; round++) {
        assert_int_equal(use_rows("03567", "12314"), 1);
        divide(2, 2);
        c.residents.has_window = true;
        moe_residents_choose(&c, 0);
        int n = 0;
        static const int by_rows[] = { 3, 1, 0, 2 }; /* of the others 0, 5, 6, 7: with 1, 3, 1 and 4 rows */
        for (int i = 0; i < 4; i++)
            n += c.residents.passes[i];
        for (int i = 0; i < n && n < 4; i++) /* 0 and 6 have as many rows and as much heat */
            assert_true(c.residents.passes[by_rows[i]]);
    }
}

static void a_copied_expert_changes_places(void **state)
{
    int n;
    (void)state;
    use("01");
    copy(0);
    copy(1);
    divide(2, 2);
    for (int i = 0; i < 2; i++)
        use("24");
    moe_residents_pass(&c, &layer, 0, matrices(2));
    moe_residents_pass(&c, &layer, 1, matrices(4));
    const struct kn_group *g = moe_residents_round(&c, &n);
    assert_int_equal(n, 2);
    assert_int_equal(g[0].bias, 2);
    assert_memory_equal(g[1].down.data, weights[4][2], sizeof weights[4][2]);
    check_there(2); /* hotter than 0 and 1 */
    check_there(4);
    assert_int_equal(use("0124"), 2);
    moe_residents_pass(&c, &layer, 0,
                       matrices(0)); /* the memory of the experts that lost their slots is the window's */
    moe_residents_pass(&c, &layer, 1, matrices(1));
    check_there(2);
    check_there(4);
    assert_int_equal(c.residents.total.n_copied, 6);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(free_slots_come_first, open_context, close_context),
        cmocka_unit_test_setup_teardown(the_hotter_expert_takes_the_slot_of_the_coldest, open_context, close_context),
        cmocka_unit_test_setup_teardown(rows_make_an_expert_hot, open_context, close_context),
        cmocka_unit_test_setup_teardown(an_expert_in_use_keeps_its_slot, open_context, close_context),
        cmocka_unit_test_setup_teardown(two_experts_take_two_slots, open_context, close_context),
        cmocka_unit_test_setup_teardown(heat_stays_finite, open_context, close_context),
        cmocka_unit_test_setup_teardown(copied_experts_have_most_rows, open_context, close_context),
        cmocka_unit_test_setup_teardown(a_copied_expert_changes_places, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
