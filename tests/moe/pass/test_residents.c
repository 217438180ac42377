/* Which experts a device keeps: free slots first, then those of colder experts, never of one that the layer uses; two
 * copies in a layer at most. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "moe/pass/pass.h"

#define N_EXPERT 8
#define N_SLOT   3

static struct moe_model model;
static struct moe_layer layer;
static struct moe_context c;
static struct kn_team *team;
static int32_t n_planned, planned[N_EXPERT], first[N_EXPERT + 1];
static float weights[N_EXPERT][3][KN_PANEL];
static struct kn_group group[N_EXPERT];

static int open_context(void **state)
{
    struct kn_queue_options queue = { .device = kn_host_device(KN_ISA_COUNT - 1), .max_product = KN_PRODUCTS };
    static struct moe_resident slot[N_SLOT];
    static int32_t slot_of[N_EXPERT], rest[N_EXPERT], rest_of[N_EXPERT];
    static float heat[N_EXPERT];
    (void)state;
    if (kn_team_open(&team, 1))
        return -1;
    queue.team = team;
    model = (struct moe_model){ .resident_bytes = 3 * 256, .shape.n_expert_total = N_EXPERT, .layer = &layer };
    c = (struct moe_context){ .model = &model };
    c.shared = (struct kn_memory){ .base = (uint8_t *)group, .image = (uint8_t *)group };
    c.plan = (struct kn_plan){ .n_expert = &n_planned, .expert = planned, .first = first };
    c.residents = (struct moe_residents){ .n = 2,
                                          .slot = slot,
                                          .slot_of = slot_of,
                                          .heat = heat,
                                          .use = 1,
                                          .group = group,
                                          .rest = rest,
                                          .rest_of = rest_of };
    memset(heat, 0, sizeof heat);
    for (int e = 0; e < N_EXPERT; e++) {
        slot_of[e] = -1;
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < KN_PANEL; k++)
                weights[e][i][k] = (float)(100 * e + KN_PANEL * i + k);
    }
    return kn_memory_open(&c.residents.memory, queue.device, N_SLOT * model.resident_bytes, false) ||
           kn_queue_open(&c.queue, &queue);
}

static int close_context(void **state)
{
    (void)state;
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
    return moe_residents_list(&c, &layer);
}

static bool copy(int e)
{
    struct kn_mat m[3];
    for (int i = 0; i < 3; i++)
        m[i] = (struct kn_mat){ KN_F32, KN_PANEL, 1, weights[e][i] };
    return moe_residents_copy(&c, e, m);
}

static void check_there(int e)
{
    assert_true(moe_is_resident(&c, e));
    const struct moe_resident *s = &c.residents.slot[c.residents.slot_of[e]];
    assert_int_equal(s->expert, e);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(s->matrix[i].data, weights[e][i], sizeof weights[e][i]);
}

static void free_slots_come_first(void **state)
{
    (void)state;
    c.residents.n = 3;
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
    assert_int_equal(group[1].bias, 4);
    assert_int_equal(group[1].first, 3);
}

static void the_hotter_expert_takes_the_slot_of_the_coldest(void **state)
{
    (void)state;
    use("01");
    copy(0);
    copy(1);
    use("12");
    assert_false(copy(2)); /* as hot as expert 0, not clearly hotter */
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

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(free_slots_come_first, open_context, close_context),
        cmocka_unit_test_setup_teardown(the_hotter_expert_takes_the_slot_of_the_coldest, open_context, close_context),
        cmocka_unit_test_setup_teardown(an_expert_in_use_keeps_its_slot, open_context, close_context),
        cmocka_unit_test_setup_teardown(two_experts_take_two_slots, open_context, close_context),
        cmocka_unit_test_setup_teardown(heat_stays_finite, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
