/* Without the driver's library there are no CUDA devices, and one line says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/driver.h"

static char logged[400];

static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    strncpy(logged, line, sizeof logged - 1);
}

static void a_machine_without_a_driver_has_no_devices(void **state)
{
    (void)state;
    const char *why = NULL;
    struct kn_device *device = NULL;
    assert_int_equal(kn_device_count(), 0);
    assert_null(kn_cuda_driver(&why));
    assert_non_null(strstr(why, "no NVIDIA driver"));
    assert_non_null(strstr(why, "/nowhere/libcuda.so.1"));
    kn_log_set(keep_line, KN_LOG_ERROR);
    assert_int_equal(kn_cuda_open(&device, 0), KN_ENODEV);
    assert_non_null(strstr(logged, kn_device_built() ? "no NVIDIA driver" : "built without CUDA"));
    assert_null(device);
    kn_cuda_close(NULL);
    kn_log_set(NULL, KN_LOG_ERROR);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_machine_without_a_driver_has_no_devices) };
    kn_cuda_driver_from("/nowhere/libcuda.so.1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
