/* The bits of attention are frozen: hashes of results with fixed inputs, for every KV format, over chunks and spans, with
 * windows, sinks and values within keys. A change of the order of operations (kernels.h) changes a hash. The inputs
 * have no NaN, because the bits of a NaN are not specified.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

#define N_POS 2600
#define D     72
#define N_Q   5

static uint64_t seed;
static float uniform(void) { return (float)(int32_t)(kn_mix(seed += KN_GOLDEN) >> 32) * 0x1p-31f; }

static const struct {
    int d_key, d_value, first, last;
    bool within, sink;
    uint64_t hash[KN_KV_COUNT]; /* f16, f32, int8 */
} cases[] = {
    { 64, 64, 0, 63, false, false, { 0x11413efb7c8e1620, 0xc6edad4206949b70, 0x487fd231e34778e5 } },
    { 64, 64, 0, 1023, false, false, { 0x309127138c78994f, 0xc836f42a33b23e6e, 0x3f19b94253e32825 } },
    { 64, 64, 0, 1024, false, true, { 0x1fe0b34fffc66820, 0xa355f45b58b69c9d, 0xd43c7c24199ba2ed } },
    { 40, 72, 1000, 2100, false, true, { 0xee72182945a53751, 0xe084bfef0e694173, 0xd03a85bb0044d86c } },
    { 72, 64, 0, 2599, true, false, { 0x5233b6297f0f0b1d, 0x09632799a95a8f16, 0x002e99957a69a38a } },
    { 72, 24, 1025, 2047, true, false, { 0x07422c46d320bfcc, 0x88ca63830d2a2794, 0xb584fc2de63faebb } },
    { 64, 64, 2047, 2048, false, true, { 0x411d4e6c64c654cf, 0x2fbce570d2d366a6, 0x8b496245b55713dc } },
    { 72, 72, 17, 2599, false, true, { 0xcb1fe77826dd9e21, 0x3cf61354ac5da736, 0xce6f70dca5ab043e } },
};

static uint64_t hash_of(enum kn_isa isa, int nth, enum kn_kv kv)
{
    static float q[N_Q * D], out[N_Q * D], sinks[N_Q], x[D];
    static float k[N_POS * D], v[N_POS * D], k_scale[N_POS * 2], v_scale[N_POS * 2];
    static int32_t slots[N_POS];
    const struct kn_ops *spec = kn_ops(KN_ISA_SCALAR);
    int d_key = cases[nth].d_key, d_value = cases[nth].d_value;
    seed = (uint64_t)nth;
    for (int i = 0; i < N_Q * D; i++)
        q[i] = 3 * uniform();
    for (int h = 0; h < N_Q; h++)
        sinks[h] = 4 * uniform();
    for (int p = 0; p < N_POS; p++) {
        size_t slot = (size_t)(p * 7 % N_POS), value = kn_kv_value_bytes(kv);
        slots[p] = (int32_t)slot;
        for (int i = 0; i < d_key; i++)
            x[i] = uniform() * (p % 97 ? 1 : 5);
        spec->kv_store(kv, x, d_key, (uint8_t *)k + slot * (size_t)d_key * value,
                       k_scale + slot * (size_t)kn_kv_blocks(d_key));
        for (int i = 0; i < d_value; i++)
            x[i] = uniform() * (p % 31 ? 1 : 0.01f);
        spec->kv_store(kv, x, d_value, (uint8_t *)v + slot * (size_t)d_value * value,
                       v_scale + slot * (size_t)kn_kv_blocks(d_value));
    }
    struct kn_attend a = { .q = q,
                           .out = out,
                           .k = k,
                           .v = cases[nth].within ? k : v,
                           .k_scale = k_scale,
                           .v_scale = cases[nth].within ? k_scale : v_scale,
                           .k_step = d_key,
                           .v_step = cases[nth].within ? d_key : d_value,
                           .base = slots,
                           .n_base = N_POS,
                           .first = cases[nth].first,
                           .last = cases[nth].last,
                           .n_q = N_Q,
                           .d_key = d_key,
                           .d_value = d_value,
                           .kv = kv,
                           .scale = 0.125f,
                           .sink = cases[nth].sink ? sinks : NULL };
    kn_ops(isa)->attend(&a);
    uint64_t hash = 0;
    for (int i = 0; i < N_Q * d_value; i++) {
        uint32_t bits;
        memcpy(&bits, &out[i], sizeof bits);
        hash = kn_mix(hash ^ bits);
    }
    return hash;
}

static void bits_are_frozen(void **state)
{
    (void)state;
    int n_wrong = 0;
    for (int isa = 0; isa < KN_ISA_COUNT; isa++)
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
            for (int kv = 0; kv < KN_KV_COUNT; kv++) {
                uint64_t hash = hash_of((enum kn_isa)isa, i, (enum kn_kv)kv);
                if (hash == cases[i].hash[kv])
                    continue;
                printf("%s, case %d, format %d: 0x%016llx\n", kn_isa_name((enum kn_isa)isa), i, kv,
                       (unsigned long long)hash);
                n_wrong++;
            }
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bits_are_frozen) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
