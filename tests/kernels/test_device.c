/* The CUDA devices of the machine are counted, and their properties are plausible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

static char logged[400];

static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    strncpy(logged, line, sizeof logged - 1);
}

static void devices_are_counted_and_described(void **state)
{
    (void)state;
    int n = kn_device_count();
    assert_true(n >= 0);
    assert_true(kn_device_built() || n == 0);
    struct kn_device_info info;
    for (int i = 0; i < n; i++) {
        assert_int_equal(kn_device_get(i, &info), 0);
        assert_true(strlen(info.name) > 0 && info.memory_bytes > 0 && info.compute_major > 0);
    }
    kn_log_set(keep_line, KN_LOG_ERROR);
    assert_int_equal(kn_device_get(n, &info), KN_ENODEV);
    assert_true(strlen(logged) > 0);
    kn_log_set(NULL, KN_LOG_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(devices_are_counted_and_described) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
