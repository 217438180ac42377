/* KV blocks: no slot has two owners, a reserve is all or nothing, and everything comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/internal.h"
#include "tests/faults.h"

#define N_BLOCK 23
#define N_OWNER 7
#define MOST    (N_BLOCK * ENG_KV_BLOCK)

static struct owner { int32_t slot[MOST + ENG_KV_BLOCK]; int n_slot; } owner[N_OWNER];

/* Every slot in range, in one table only, and blocks of neighbours; the rest is free. */
static void check_owners(const struct eng_kv *kv)
{
    bool taken[MOST] = { false };
    int n = 0;
    for (int o = 0; o < N_OWNER; o++) {
        assert_int_equal(owner[o].n_slot % ENG_KV_BLOCK, 0);
        for (int i = 0; i < owner[o].n_slot; i++, n++) {
            int32_t slot = owner[o].slot[i];
            assert_true(slot >= 0 && slot < MOST && !taken[slot]);
            assert_int_equal(slot % ENG_KV_BLOCK, i % ENG_KV_BLOCK);
            assert_int_equal(slot / ENG_KV_BLOCK,
                             owner[o].slot[i / ENG_KV_BLOCK * ENG_KV_BLOCK] / ENG_KV_BLOCK);
            taken[slot] = true;
        }
    }
    assert_int_equal(kv->n_free * ENG_KV_BLOCK, MOST - n);
}

static void random_owners_never_meet(void **state)
{
    (void)state;
    struct eng_kv kv;
    uint64_t r = 3;
    int refused = 0;
    memset(owner, 0, sizeof owner);
    assert_int_equal(eng_kv_open(&kv, N_BLOCK), 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t x = kn_mix(r += KN_GOLDEN);
        struct owner *o = &owner[x % N_OWNER], before = *o;
        int n = (int)(x >> 8) % (MOST / 3) * (int)(x >> 40 & 1), free_before = kv.n_free;
        n = n < 0 ? -n : n;
        if (x >> 32 & 1) {
            int need = kn_max(0, kn_ceil_div(n, ENG_KV_BLOCK) - o->n_slot / ENG_KV_BLOCK);
            int got = eng_kv_reserve(&kv, o->slot, &o->n_slot, n);
            assert_int_equal(got, need > free_before ? KN_ELIMIT : 0);
            refused += got != 0;
            assert_int_equal(
                o->n_slot, got ? before.n_slot
                               : kn_max(before.n_slot, (int)kn_align_up((size_t)n, ENG_KV_BLOCK)));
        } else {
            eng_kv_release(&kv, o->slot, &o->n_slot, n);
            assert_int_equal(o->n_slot,
                             kn_min(before.n_slot, (int)kn_align_up((size_t)n, ENG_KV_BLOCK)));
        }
        int kept = kn_min(before.n_slot, o->n_slot);    /* what was there stays where it was */
        assert_memory_equal(o->slot, before.slot, (size_t)kept * sizeof *o->slot);
        if (i % 16 == 0)
            check_owners(&kv);
    }
    assert_true(refused > 100);
    for (int o = 0; o < N_OWNER; o++)
        eng_kv_release(&kv, owner[o].slot, &owner[o].n_slot, 0);
    assert_int_equal(kv.n_free, N_BLOCK);
    check_owners(&kv);
    eng_kv_close(&kv);
}

static void the_edges_of_a_block(void **state)
{
    (void)state;
    struct eng_kv kv;
    struct owner *o = owner;
    memset(owner, 0, sizeof owner);
    assert_int_equal(eng_kv_open(&kv, 2), 0);
    assert_int_equal(eng_kv_reserve(&kv, o->slot, &o->n_slot, 0), 0);
    assert_int_equal(o->n_slot, 0);
    assert_int_equal(eng_kv_reserve(&kv, o->slot, &o->n_slot, ENG_KV_BLOCK), 0);
    assert_int_equal(o->n_slot, ENG_KV_BLOCK);
    assert_int_equal(eng_kv_reserve(&kv, o->slot, &o->n_slot, ENG_KV_BLOCK + 1), 0);
    assert_int_equal(o->n_slot, 2 * ENG_KV_BLOCK);
    assert_int_equal(eng_kv_reserve(&kv, o->slot, &o->n_slot, 2 * ENG_KV_BLOCK + 1), KN_ELIMIT);
    eng_kv_release(&kv, o->slot, &o->n_slot, ENG_KV_BLOCK + 1);
    assert_int_equal(kv.n_free, 0);
    eng_kv_release(&kv, o->slot, &o->n_slot, ENG_KV_BLOCK);
    assert_int_equal(kv.n_free, 1);
    eng_kv_release(&kv, o->slot, &o->n_slot, 1);
    assert_int_equal(kv.n_free, 1);
    eng_kv_release(&kv, o->slot, &o->n_slot, 0);
    assert_int_equal(kv.n_free, 2);
    eng_kv_close(&kv);
}

static void without_memory_it_says_so(void **state)
{
    (void)state;
    struct eng_kv kv;
    faults_at(FAULT_ALLOC, 1, FAULT_ERROR, ENOMEM);
    assert_int_equal(eng_kv_open(&kv, 4), KN_ENOMEM);
    assert_int_equal(faults.n_line, 1);
    eng_kv_close(&kv);                                  /* half-open is fine */
    assert_true(faults_clean());
    faults_off();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_owners_never_meet),
        cmocka_unit_test(the_edges_of_a_block),
        cmocka_unit_test(without_memory_it_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
