/* The late device of tests/emulated finds the faults of a caller, and finds nothing in a caller without. */
#include <setjmp.h>
#include <signal.h>
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

static int open_on_device(void)
{
    *late_message = 0;
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

static int open_queue(void **state)
{
    (void)state;
    device = late_device(kn_isa_best(), 1);
    return open_on_device();
}

static int open_queue_apart(void **state)
{
    (void)state;
    device = late_device_apart(kn_isa_best(), 1);
    return open_on_device();
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

/* ---- a device with memory of its own ---------------------------------------------------------------------------- */

static void transfer(void *target, const void *source)
{
    struct late_queue *q = (struct late_queue *)queue;
    do {
        kn_queue_wait(queue);
        kn_enqueue(queue, TRANSFER, transfer, .to = target, .from = source, .bytes = sizeof to);
    } while (q->n_added == q->n_run);
}

static void pieces_go_there_and_back(void **state)
{
    struct kn_memory m;
    (void)state;
    assert_int_equal(kn_memory_open(&m, &device.base, 2 * sizeof to, true), 0);
    float *image = (float *)m.image, *theirs = (float *)m.base;
    assert_true(m.image != m.base);
    memcpy(image, from, sizeof from);
    transfer(theirs, image);
    kn_enqueue(queue, SCALE, scale, .x = theirs, .by = 2, .n = 1, .d = N);
    transfer(image + N, theirs);
    kn_queue_wait(queue);
    for (int k = 0; k < N; k++)
        assert_true(image[k] == (float)k && image[N + k] == 2 * (float)k);
    assert_int_equal(kn_memory_write(&m, 0, from + 1, sizeof *from), 0);
    transfer(image, theirs);
    kn_queue_wait(queue);
    assert_true(image[0] == 1 && image[1] == 2);
    assert_null(late_found());
    kn_memory_close(&m);
}

static void memory_of_the_host_is_found(void **state)
{
    struct kn_memory m;
    (void)state;
    assert_int_equal(kn_memory_open(&m, &device.base, sizeof to, true), 0);
    kn_enqueue(queue, SCALE, scale, .x = (float *)m.image, .by = 2, .n = 1, .d = N);
    kn_queue_wait(queue);
    assert_string_equal(late_found(), "scale: x is not in the device's memory");
    *late_message = 0;
    transfer(m.image, from);
    kn_queue_wait(queue);
    assert_string_equal(late_found(), "transfer: from is not one end in the device's memory");
    *late_message = 0;
    transfer(m.base, m.image);
    m.image[3]++;
    kn_queue_wait(queue);
    assert_string_equal(late_found(), "transfer: from was changed after the operation was added, before it ran");
    kn_memory_close(&m);
}

/* A queue waits for a word that the queue beside it writes; a host that waits for both must not be needed. */
static void queues_await_words(void **state)
{
    struct kn_memory m;
    struct kn_queue *beside;
    struct kn_queue_options opt = { .device = &device.base, .team = team, .max_product = KN_PRODUCTS, .beside = queue };
    uint32_t ready = 0, done = 0;
    (void)state;
    assert_true(kn_device_can_await(&device.base));
    assert_int_equal(kn_memory_open(&m, &device.base, sizeof to, true), 0);
    assert_int_equal(kn_queue_open(&beside, &opt), 0);
    float *image = (float *)m.image, *theirs = (float *)m.base;
    for (uint32_t turn = 1; turn < 50; turn++) {
        memcpy(image, from, sizeof from);
        kn_enqueue(queue, TRANSFER, transfer, .to = m.base, .from = m.image, .bytes = sizeof to);
        kn_enqueue(queue, SIGNAL, signal, .word = &ready, .value = turn);
        kn_enqueue(queue, AWAIT, await, .word = &done, .value = turn);
        kn_enqueue(queue, SCALE, scale, .x = theirs, .by = 2, .n = 1, .d = N);
        assert_int_equal(kn_queue_await(queue, &ready, turn), 0);
        kn_enqueue(beside, SCALE, scale, .x = theirs, .by = 3, .n = 1, .d = N, .cap = 10);
        kn_enqueue(beside, SIGNAL, signal, .word = &done, .value = turn);
        kn_enqueue(queue, TRANSFER, transfer, .to = m.image, .from = m.base, .bytes = sizeof to);
        assert_int_equal(kn_queue_wait(queue), 0);
        assert_true(image[0] == 0 && image[N - 1] > 10 && image[N - 1] <= 20); /* the cap came before the factor */
    }
    assert_null(late_found());
    kn_enqueue(queue, AWAIT, await, .word = &done, .value = 100);
    assert_int_equal(kn_queue_await(queue, &ready, 100), KN_EIO);
    assert_string_equal(late_found(), "the host waits for a word that no operation writes");
    *late_message = 0;
    assert_int_equal(kn_queue_wait(queue), KN_EIO);
    assert_string_equal(late_found(), "await: the operation waits for the host, which waits for it");
    *late_message = 0;
    done = 100;
    assert_int_equal(kn_queue_wait(queue), 0);
    kn_queue_close(beside);
    kn_memory_close(&m);
}

/* ---- missing events ------------------------------------------------------------------------------------------------ */

struct two {
    struct kn_memory m;
    struct kn_queue *other;
    uint32_t *done;
};

static void open_two(struct two *t, enum late_order order)
{
    struct kn_queue_options opt = { .device = &device.base, .team = team, .max_product = KN_PRODUCTS, .beside = queue };
    device.order = order;
    assert_int_equal(kn_memory_open(&t->m, &device.base, sizeof to + sizeof *t->done, true), 0);
    t->done = (uint32_t *)(t->m.image + sizeof to);
    assert_int_equal(kn_queue_open(&t->other, &opt), 0);
}

static void close_two(struct two *t)
{
    kn_queue_wait(queue);
    kn_queue_wait(t->other);
    kn_queue_close(t->other);
    kn_memory_close(&t->m);
    *late_message = 0;
}

/* Two queues write the same memory.  The missing event is found in every order, also where no result is wrong. */
static void queues_without_an_event_are_found(void **state)
{
    struct two t;
    (void)state;
    for (int order = 0; order < LATE_ORDERS; order++)
        for (int has_event = 0; has_event < 2; has_event++) {
            open_two(&t, (enum late_order)order);
            kn_enqueue(queue, SCALE, scale, .x = (float *)t.m.base, .by = 1, .n = 1, .d = N);
            if (has_event)
                kn_enqueue(queue, SIGNAL, signal, .word = t.done, .value = 1);
            if (has_event)
                kn_enqueue(t.other, AWAIT, await, .word = t.done, .value = 1);
            kn_enqueue(t.other, SCALE, scale, .x = (float *)t.m.base + N - 1, .by = 1, .n = 1, .d = 1);
            assert_int_equal(kn_queue_wait(queue), 0);
            assert_int_equal(kn_queue_wait(t.other), 0);
            if (has_event)
                assert_null(late_found());
            else
                assert_string_equal(late_found(),
                                    "scale: x is touched by the host or another queue, and no event is between");
            close_two(&t);
        }
}

/* A word with a later value than the one that is awaited tells no more than the first that reaches it. */
static void a_later_word_orders_nothing(void **state)
{
    struct two t;
    (void)state;
    open_two(&t, LATE_FIRST);
    kn_enqueue(queue, SIGNAL, signal, .word = t.done, .value = 1);
    kn_enqueue(queue, SCALE, scale, .x = (float *)t.m.base, .by = 1, .n = 1, .d = N);
    kn_enqueue(queue, SIGNAL, signal, .word = t.done, .value = 2); /* has run when the next is added */
    kn_enqueue(t.other, AWAIT, await, .word = t.done, .value = 1);
    kn_enqueue(t.other, SCALE, scale, .x = (float *)t.m.base, .by = 1, .n = 1, .d = N);
    assert_int_equal(kn_queue_wait(t.other), 0);
    assert_string_equal(late_found(), "scale: x is touched by the host or another queue, and no event is between");
    close_two(&t);
}

/* Also where the copy has run already. */
static void the_host_that_does_not_wait_is_found(void **state)
{
    struct two t;
    (void)state;
    open_two(&t, LATE_FIRST);
    float *image = (float *)t.m.image;
    memcpy(image, from, sizeof from);
    kn_enqueue(queue, TRANSFER, transfer, .to = t.m.base, .from = t.m.image, .bytes = sizeof to);
    image[1]++;
    kn_queue_wait(queue);
    assert_string_equal(late_found(), "transfer: from was changed before the host has waited for it");
    *late_message = 0;
    kn_enqueue(queue, TRANSFER, transfer, .to = t.m.image, .from = t.m.base, .bytes = sizeof to);
    assert_true(((struct late_queue *)queue)->n_added == ((struct late_queue *)queue)->n_run);
    uint8_t filled[sizeof to];
    memset(filled, 0xee, sizeof filled);
    assert_memory_equal(image, filled, sizeof filled);
    late_host_touch(&device, image, sizeof to, false, "the image is read");
    assert_string_equal(late_found(), "the image is read by the host, which has not waited for an operation");
    *late_message = 0;
    kn_queue_wait(queue);
    assert_memory_equal(image, from, sizeof from);
    late_host_touch(&device, image, sizeof to, false, "the image is read");
    assert_null(late_found());
    close_two(&t);
}

static void memory_that_a_copy_may_touch_stays(void **state)
{
    struct kn_memory m;
    (void)state;
    device.order = LATE_FIRST;
    assert_int_equal(kn_memory_open(&m, &device.base, sizeof to, true), 0);
    kn_enqueue(queue, TRANSFER, transfer, .to = m.image, .from = m.base, .bytes = sizeof to);
    kn_memory_close(&m);
    assert_string_equal(late_found(), "memory is closed that a copy may still touch");
}

static void the_nth_call_fails(void **state)
{
    struct two t;
    struct kn_memory m, none;
    (void)state;
    open_two(&t, LATE_RANDOM);
    device.faults.open_at = device.faults.n_open + 1;
    assert_int_equal(kn_memory_open(&m, &device.base, sizeof to, true), KN_ENOMEM);
    assert_int_equal(kn_memory_open(&m, &device.base, sizeof to, true), 0);
    device.faults.op_at = device.faults.n_op + 2;
    kn_enqueue(queue, SIGNAL, signal, .word = t.done, .value = 1);
    kn_enqueue(queue, SCALE, scale, .x = (float *)t.m.base, .by = 1, .n = 1, .d = N);
    kn_enqueue(queue, SIGNAL, signal, .word = t.done, .value = 2);
    kn_enqueue(t.other, AWAIT, await, .word = t.done, .value = 2);
    assert_int_equal(kn_queue_await(queue, t.done, 2), KN_EIO);
    assert_int_equal(*t.done, 1);
    assert_int_equal(kn_queue_wait(t.other), KN_EIO);
    assert_int_equal(kn_memory_write(&m, 0, from, sizeof *from), KN_EIO);
    assert_int_equal(kn_memory_open(&none, &device.base, sizeof to, true), KN_ENOMEM);
    kn_memory_close(&m);
    close_two(&t);
}

static sigjmp_buf after_fault;
static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(after_fault, 1);
}

static void the_caller_cannot_touch_it(void **state)
{
    struct kn_memory m;
    struct sigaction was, now = { .sa_handler = on_fault };
    (void)state;
    assert_int_equal(kn_memory_open(&m, &device.base, sizeof to, false), 0);
    assert_null(m.image);
    sigaction(SIGSEGV, &now, &was);
    bool faulted = sigsetjmp(after_fault, 1);
    if (!faulted)
        *(volatile uint8_t *)m.base = 1;
    sigaction(SIGSEGV, &was, NULL);
    assert_true(faulted);
    kn_memory_close(&m);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(waits_and_finds_nothing, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(an_input_that_changes_is_found, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(a_result_is_not_there_before_a_wait, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(a_result_that_is_waited_for_stays, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(an_operation_that_never_runs_is_found, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(pieces_go_there_and_back, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(queues_await_words, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(memory_of_the_host_is_found, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(the_caller_cannot_touch_it, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(queues_without_an_event_are_found, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(a_later_word_orders_nothing, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(the_host_that_does_not_wait_is_found, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(memory_that_a_copy_may_touch_stays, open_queue_apart, close_queue),
        cmocka_unit_test_setup_teardown(the_nth_call_fails, open_queue_apart, close_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
