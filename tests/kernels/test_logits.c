/* Operations on rows of logits: every instruction set equals the specification bit for bit and writes nothing behind its output, and
 * the bound of the noise holds.
 *
 * One thread: not under MODE=tsan. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

#define MOST  700
#define GUARD 0x7EADBEEF

static uint64_t seed;

/* Logits with many equal ones, and values that no model should give. */
static void fill(float *x, int n)
{
    static const float strange[] = { NAN, INFINITY, -INFINITY, -0.0f, 0.0f, 3e38f, -3e38f, 1e-45f };
    for (int i = 0; i < n; i++) {
        uint64_t r = kn_mix(seed += KN_GOLDEN);
        x[i] = r % 23 == 0 ? strange[r >> 32 & 7] : (float)((int)(r >> 32 & 1023) - 700) / 32;
    }
}

static const int sizes[] = { 1, 3, 4, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 130, 512, MOST };
#define N_SIZE (int)(sizeof sizes / sizeof *sizes)

static void values_are_those_of_the_specification(void **state)
{
    (void)state;
    const struct kn_ops *spec = kn_ops(KN_ISA_SCALAR);
    static float x[MOST], z[MOST + 1], its_z[MOST + 1], t[MOST + 1], its_t[MOST + 1];
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++)
        for (int k = 0; k < N_SIZE * 8; k++) {
            const struct kn_ops *ops = kn_ops(isa);
            int n = sizes[k % N_SIZE];
            fill(x, n);
            its_z[n] = its_t[n] = GUARD;
            float most = spec->clean_logits(x, n, z), its = ops->clean_logits(x, n, its_z);
            assert_true(most == its && ops->largest(z, n) == most);
            assert_memory_equal(z, its_z, (size_t)n * sizeof *z);
            assert_int_equal(ops->find_first(z, most, n), spec->find_first(z, most, n));
            assert_int_equal(ops->find_first(z, 12345, n), n);
            float sum = spec->exp_sum(z, most, n), its_sum = ops->exp_sum(z, most, n);
            assert_memory_equal(&sum, &its_sum, sizeof sum);
            double temperature = k % 3 ? 0.3 + 0.1 * k : 1;
            spec->temper(z, most, temperature, n, t);
            ops->temper(z, most, temperature, n, its_t);
            assert_memory_equal(t, its_t, (size_t)n * sizeof *t);
            assert_true(its_z[n] == GUARD && its_t[n] == GUARD);
        }
}

static void lists_are_those_of_the_specification(void **state)
{
    (void)state;
    const struct kn_ops *spec = kn_ops(KN_ISA_SCALAR);
    static float x[MOST], z[MOST];
    static int32_t id[MOST + 1], its[MOST + 1];
    int n_listed = 0;
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++)
        for (int k = 0; k < N_SIZE * 8; k++) {
            const struct kn_ops *ops = kn_ops(isa);
            int n = sizes[k % N_SIZE], from = k % 5 < n ? k % 5 : 0;
            fill(x, n);
            float most = spec->clean_logits(x, n, z);
            for (int i = 0; i <= n; i++)
                its[i] = GUARD;
            int found = spec->list_above(z, z[n / 2], n, id);
            assert_int_equal(ops->list_above(z, z[n / 2], n, its), found);
            assert_memory_equal(id, its, (size_t)found * sizeof *id);
            assert_int_equal(its[found], GUARD);
            struct kn_noise noise = { kn_mix((uint64_t)k), 1 / (0.2 + 0.1 * k), most / (0.2 + 0.1 * k) - 3 * (k % 4) };
            found = spec->list_noisy(z, from, n, &noise, id);
            n_listed += found;
            assert_int_equal(ops->list_noisy(z, from, n, &noise, its), found);
            assert_memory_equal(id, its, (size_t)found * sizeof *id);
        }
    assert_in_range(n_listed, 100, 100000);
}

/* The smallest `least` that leaves a token out is above its noise. */
static void noise_is_below_its_bound(void **state)
{
    (void)state;
    float zero = 0;
    int32_t id;
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t stream = kn_mix(i);
        double u = ((double)(kn_mix(stream + KN_GOLDEN) >> 12) + 0.5) * 0x1p-52, noise = -log(-log(u));
        struct kn_noise with = { stream, 1, noise };
        assert_int_equal(kn_ops(KN_ISA_SCALAR)->list_noisy(&zero, 0, 1, &with, &id), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_specification),
        cmocka_unit_test(lists_are_those_of_the_specification),
        cmocka_unit_test(noise_is_below_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
