/* The limit for memory of requests: guarded allocations are counted and refused beyond it, others are not; a guard keeps
 * room for others, and ends with its caller's stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/core.h"

#define MIB ((size_t)1 << 20)

static void the_limit_holds_for_guarded_code_only(void **state)
{
    struct kn_heap_guard guard = { 0 };
    (void)state;
    void *before = kn_alloc(MIB);
    kn_heap_limit(4 * MIB);
    size_t room = kn_heap_room();
    assert_int_equal(room, 4 * MIB);
    kn_heap_guard(&guard);
    void *a = kn_alloc(MIB), *b = kn_heap_alloc(2 * MIB);
    assert_non_null(a);
    assert_non_null(b);
    assert_true(kn_heap_room() < MIB && kn_heap_room() > MIB / 2);
    assert_true(guard.held_bytes >= (int64_t)(3 * MIB) && guard.denied_bytes == 0);
    assert_null(kn_alloc(MIB));
    assert_true(guard.denied_bytes >= 4 * MIB && guard.denied_bytes < 5 * MIB);
    assert_null(kn_heap_realloc(b, 4 * MIB)); /* b is unchanged */
    kn_free(a);
    assert_non_null(b = kn_heap_realloc(b, MIB));
    kn_heap_guard(NULL);
    void *c = kn_alloc(8 * MIB);
    assert_non_null(c);
    assert_int_equal(kn_heap_room(), 0);
    kn_free(c);
    kn_heap_free(b);
    assert_int_equal(kn_heap_room(), room);
    kn_heap_limit(SIZE_MAX);
    kn_free(before);
}

static void a_guard_keeps_room_and_stops(void **state)
{
    atomic_bool stop = false;
    struct kn_heap_guard guard = { .keep = 3 * MIB, .stop = &stop };
    (void)state;
    kn_heap_limit(4 * MIB);
    kn_heap_guard(&guard);
    assert_null(kn_alloc(2 * MIB));
    void *a = kn_alloc(MIB / 2);
    assert_non_null(a);
    guard.denied_bytes = 0;
    stop = true;
    assert_null(kn_alloc(1));
    assert_int_equal(guard.denied_bytes, 0);
    kn_heap_guard(NULL);
    kn_free(a);
    kn_heap_limit(SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_holds_for_guarded_code_only),
        cmocka_unit_test(a_guard_keeps_room_and_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
