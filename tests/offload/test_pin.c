/* Pinning of slots: all memory of slots is pinned for the device, each slot in one piece, and unpinned before it is freed.  A
 * device that refuses loses nothing: memory is pinned up to the device's limit, to a slot, and one line says how much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "offload/store.h"
#include "tests/emulated/late.h"
#include "tests/offload/experts.h"

static struct late_device device;

static void wait_until_pinned(struct off_store *s, struct off_stats *stats)
{
    do {
        usleep(1000);
        off_stats_get(s, stats);
    } while (stats->pinning);
}

static size_t largest_slot(const struct off_store *s)
{
    size_t bytes = 0;
    for (int i = 0; i < s->n_pool; i++)
        bytes = s->pool[i].slot_bytes > bytes ? s->pool[i].slot_bytes : bytes;
    return bytes;
}

/* The pinned bytes of a slot's memory, if they lie in one range. */
static size_t pinned_of(const struct off_slot *slot, size_t bytes)
{
    size_t n = 0;
    for (int i = 0; i < device.pins.n; i++) {
        const struct late_memory *m = &device.pins.range[i];
        if (slot->place >= m->base && slot->place + bytes <= m->base + m->bytes)
            n += bytes;
    }
    return n;
}

/* The pinned ranges are whole slots, and the first of each pool. */
static void check_ranges(const struct off_store *s)
{
    size_t bytes = 0;
    for (int i = 0; i < s->n_pool; i++) {
        const struct off_pool *p = &s->pool[i];
        for (int k = 0; k < p->n_listed; k++) {
            size_t want = k < p->n_pinned ? p->slot_bytes : 0;
            assert_int_equal(pinned_of(&s->slot[p->slot0 + k], p->slot_bytes), want);
            bytes += want;
        }
    }
    assert_int_equal(bytes, device.pins.bytes);
}

static void ask_store(struct off_store *s, const struct model *m, int n_round)
{
    struct asker *a = open_asker(s, m);
    ask_all_layers(a, n_round);
    close_asker(a);
}

/* Closes the store, and checks that nothing stays pinned. */
static void close_store(struct off_store *s)
{
    off_store_close(s);
    assert_int_equal(device.pins.n, 0);
    assert_int_equal(device.pins.bytes, 0);
}

static struct late_device fresh(void) { return late_device_apart(kn_isa_best(), 1); }

static void all_slots_are_pinned(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    for (int i = 0; i < 4; i++) {
        struct off_store *s;
        struct off_stats stats;
        nodes_set(1 + i % 2);
        device = fresh();
        faults_reset();
        faults.most = KN_LOG_INFO;
        assert_int_equal(open_store(&s, m, i < 2 ? least(m) : all(m)), 0);
        off_store_pin(s, &device.base);
        off_store_pin(s, &device.base);
        ask_store(s, m, 30);
        wait_until_pinned(s, &stats);
        check_ranges(s);
        assert_int_equal(stats.pinned_bytes, stats.slot_bytes);
        assert_int_equal(stats.pinned_bytes, device.pins.bytes);
        assert_false(stats.pin_refused);
        close_store(s);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, "are pinned"));
    }
    nodes_set(1);
    close_model(m);
}

/* Each call may be the one that is refused; the rest is pinned in other pieces. */
static void a_call_may_be_refused(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    for (int nth = 1; nth < 9; nth++) {
        struct off_store *s;
        struct off_stats stats;
        device = fresh();
        device.pins.refuse_at = nth;
        assert_int_equal(open_store(&s, m, all(m)), 0);
        off_store_pin(s, &device.base);
        ask_store(s, m, 10);
        wait_until_pinned(s, &stats);
        check_ranges(s);
        assert_int_equal(stats.pinned_bytes, stats.slot_bytes);
        close_store(s);
    }
    close_model(m);
}

static void a_limit_is_found_and_said(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    for (int part = 0; part < 5; part++) {
        struct off_store *s;
        struct off_stats stats;
        device = fresh();
        faults_reset();
        device.pins.room = part ? all(m) * (size_t)part / 5 : 1;
        assert_int_equal(open_store(&s, m, all(m)), 0);
        off_store_pin(s, &device.base);
        ask_store(s, m, 30);
        wait_until_pinned(s, &stats);
        check_ranges(s);
        assert_true(stats.pin_refused);
        assert_true(stats.pinned_bytes <= device.pins.room);
        assert_true(device.pins.room < stats.pinned_bytes + largest_slot(s));
        close_store(s);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, "refuses more (there is a limit)"));
    }
    close_model(m);
}

/* A store with memory for some experts, which may grow by *room to hold all. */
static struct off_store *open_growing(struct model *m, size_t *room)
{
    struct off_store *s;
    device = fresh();
    m->later = *room = all(m) - least(m);
    assert_int_equal(open_store(&s, m, least(m) + *room / 4), 0);
    return s;
}

/* Slots that are added later are pinned once they have been read to. */
static void slots_of_a_store_that_grows(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    struct off_stats stats;
    size_t room;
    struct off_store *s = open_growing(m, &room);
    off_store_pin(s, &device.base);
    wait_until_pinned(s, &stats);
    assert_int_equal(stats.pinned_bytes, stats.slot_bytes);
    uint64_t before = stats.pinned_bytes;
    wait_until_filled(s);
    off_store_grow(s, room);
    off_stats_get(s, &stats);
    assert_true(stats.pinning && stats.slot_bytes > before);
    ask_store(s, m, 600);
    wait_until_pinned(s, &stats);
    check_ranges(s);
    assert_int_equal(stats.pinned_bytes, stats.slot_bytes);
    close_store(s);
    close_model(m);
}

/* Slots that are pinned, or being pinned, are not taken back. */
static void pinned_slots_are_not_taken_back(void **state)
{
    (void)state;
    struct model *m = open_model(6, 7, 30);
    struct off_stats stats;
    size_t room;
    struct off_store *s = open_growing(m, &room);
    wait_until_filled(s);
    off_store_grow(s, room / 4);
    ask_store(s, m, 120);
    while (!off_store_shrink(s, room / 4)) /* a slot is being touched */
        usleep(1000);
    off_store_pin(s, &device.base);
    wait_until_pinned(s, &stats);
    off_store_grow(s, room / 4);
    while (!off_store_shrink(s, room / 4)) /* the pinned slots are not among them */
        usleep(1000);
    check_ranges(s);
    assert_true(kn_awaits_begin());
    off_store_grow(s, room / 4);
    ask_store(s, m, 120);
    while (kn_awaits_begin()) { /* until the thread waits for its turn to pin */
        kn_awaits_end();
        usleep(1000);
    }
    wait_until_quiet(s, m->n_expert);
    assert_false(off_store_shrink(s, room / 4));
    kn_awaits_end();
    wait_until_pinned(s, &stats);
    assert_int_equal(stats.pinned_bytes, stats.slot_bytes);
    assert_false(off_store_shrink(s, room / 4));
    check_ranges(s);
    ask_store(s, m, 60);
    close_store(s);
    close_model(m);
}

static int n_call(void)
{
    pthread_mutex_lock(&device.mutex);
    int n = device.pins.n_call;
    pthread_mutex_unlock(&device.mutex);
    return n;
}

/* The thread waits until no queue awaits the host; once it waits, no other queue may begin to. */
static void nothing_is_pinned_while_a_queue_awaits(void **state)
{
    struct model *m = open_model(6, 7, 30);
    struct off_store *s;
    struct off_stats stats;
    (void)state;
    device = fresh();
    assert_true(kn_awaits_begin());
    assert_int_equal(open_store(&s, m, all(m)), 0);
    off_store_pin(s, &device.base);
    while (kn_awaits_begin()) {
        kn_awaits_end();
        usleep(1000);
    }
    ask_store(s, m, 30);
    assert_int_equal(n_call(), 0);
    kn_awaits_end();
    wait_until_pinned(s, &stats);
    assert_int_equal(stats.pinned_bytes, stats.slot_bytes);
    close_store(s);
    assert_true(kn_awaits_begin());
    kn_awaits_end();
    close_model(m);
}

/* A store may close while slots are touched and pinned; a device without pinning is fine. */
static void a_store_closes_at_any_time(void **state)
{
    static const struct kn_backend plain = { .name = "plain" };
    static const struct kn_device other = { &plain };
    (void)state;
    struct model *m = open_model(6, 7, 30);
    for (int i = 0; i < 30; i++) {
        struct off_store *s;
        device = fresh();
        device.pins.refuse_at = i % 4;
        assert_int_equal(open_store(&s, m, all(m)), 0);
        off_store_pin(s, i % 5 == 4 ? &other : &device.base);
        usleep((useconds_t)(i * i * 3));
        close_store(s);
    }
    close_model(m);
}

static int end(void **state)
{
    (void)state;
    faults_off();
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_slots_are_pinned, end),
        cmocka_unit_test(a_call_may_be_refused),
        cmocka_unit_test_teardown(a_limit_is_found_and_said, end),
        cmocka_unit_test(slots_of_a_store_that_grows),
        cmocka_unit_test(pinned_slots_are_not_taken_back),
        cmocka_unit_test(nothing_is_pinned_while_a_queue_awaits),
        cmocka_unit_test(a_store_closes_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
