/* The late device of tests/emulated finds the faults of a caller, and finds nothing in a caller without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/emulated/late.h"

#define N 64

static struct late_device device;
static struct kn_team *team;
static struct kn_queue *queue;
static float from[N], to[N], x[N];

static int open_queue(void **state)
{
    (void)state;
    *late_message = 0;
    device = late_device(kn_isa_best(), 1);
    for (int i = 0; i < N; i++)
        from[i] = (float)i;
    memset(to, 0, sizeof to);
    memset(x, 0, sizeof x);
    struct kn_queue_options opt = { .device = &device.base,
                                    .max_row = 1,
                                    .max_pos = 1,
                                    .n_head = 1,
                                    .n_kv = 1,
                                    .d_value = 1,
                                    .max_product = KN_PRODUCTS };
    int error = kn_team_open(&team, 1);
    opt.team = team;
    return error ? error : kn_queue_open(&queue, &opt);
}

static int close_queue(void **state)
{
    (void)state;
    kn_queue_close(queue);
    kn_team_close(team);
    return 0;
}

/* Adds a copy that surely has not run when this returns. */
static void add_copy(float *target, const float *source)
{
    struct late_queue *q = (struct late_queue *)queue;
    do {
        kn_queue_wait(queue);
        kn_enqueue(queue, COPY, copy, .to = (uint8_t *)target, .from = (const uint8_t *)source, .bytes = sizeof to,
                   .n = 1);
    } while (q->n_added == q->n_run);
}

static void waits_and_finds_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        memset(x, 0, sizeof x);
        memset(to, 0, sizeof to);
        kn_enqueue(queue, COPY, copy, .to = (uint8_t *)to, .from = (const uint8_t *)from, .bytes = sizeof to, .n = 1);
        kn_enqueue(queue, COPY, copy, .to = (uint8_t *)x, .from = (const uint8_t *)to, .bytes = sizeof to, .n = 1);
        kn_enqueue(queue, SCALE, scale, .x = to, .by = 2, .n = 1, .d = N);
        kn_queue_wait(queue);
        for (int k = 0; k < N; k++)
            assert_true(x[k] == (float)k && to[k] == 2 * (float)k);
    }
    assert_null(late_found());
}

static void an_input_that_changes_is_found(void **state)
{
    (void)state;
    add_copy(to, from);
    from[3] = -1;
    kn_queue_wait(queue);
    assert_string_equal(late_found(), "copy: from was changed after the operation was added, before it ran");
}

static void a_result_is_not_there_before_a_wait(void **state)
{
    (void)state;
    add_copy(to, from);
    uint8_t filled[sizeof to];
    memset(filled, 0xee, sizeof filled);
    assert_memory_equal(to, filled, sizeof to);
    kn_queue_wait(queue);
    assert_memory_equal(to, from, sizeof to);
    assert_null(late_found());
}

/* An operation that waits reads or writes the memory: it is not filled for a later one. */
static void a_result_that_is_waited_for_stays(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        add_copy(to, from);
        kn_enqueue(queue, COPY, copy, .to = (uint8_t *)x, .from = (const uint8_t *)to, .bytes = sizeof to, .n = 1);
        kn_enqueue(queue, COPY, copy, .to = (uint8_t *)to, .from = (const uint8_t *)(i % 2 ? x : from),
                   .bytes = sizeof to, .n = 1);
        kn_queue_wait(queue);
        assert_memory_equal(x, from, sizeof x);
        assert_memory_equal(to, from, sizeof to);
    }
    assert_null(late_found());
}

static void an_operation_that_never_runs_is_found(void **state)
{
    (void)state;
    add_copy(to, from);
    kn_queue_set_team(queue, team);
    assert_string_equal(late_found(), "copy: the operation had not run when the team was changed");
    *late_message = 0;
    kn_queue_close(queue);
    assert_string_equal(late_found(), "copy: the operation had not run when its queue was closed");
    kn_team_close(team);
    assert_int_equal(open_queue(state), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(waits_and_finds_nothing, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(an_input_that_changes_is_found, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(a_result_is_not_there_before_a_wait, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(a_result_that_is_waited_for_stays, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(an_operation_that_never_runs_is_found, open_queue, close_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
