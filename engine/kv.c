/* Which KV slots belong to whom: a stack of free blocks.
 *
 * A position's slot is block * ENG_KV_BLOCK + position % ENG_KV_BLOCK, so that the 64 positions of one
 * attention chunk are neighbours in memory. */
#include "engine/internal.h"

int eng_kv_open(struct eng_kv *kv, int n_block)
{
    *kv = (struct eng_kv){ .free_block = kn_calloc((size_t)n_block, sizeof *kv->free_block),
                           .n_block = n_block, .n_free = n_block };
    if (!kv->free_block)
        return kn_fail(KN_ENOMEM, "no memory for %d KV blocks", n_block);
    for (int i = 0; i < n_block; i++)
        kv->free_block[i] = n_block - 1 - i;
    return 0;
}

void eng_kv_close(struct eng_kv *kv)
{
    kn_free(kv->free_block);
    *kv = (struct eng_kv){ 0 };
}

int eng_kv_reserve(struct eng_kv *kv, int32_t *slot, int *n_slot, int n)
{
    int need = kn_ceil_div(n, ENG_KV_BLOCK) - *n_slot / ENG_KV_BLOCK;
    kn_assert(*n_slot % ENG_KV_BLOCK == 0);
    if (need > kv->n_free)
        return KN_ELIMIT;
    for (; need > 0; need--) {
        int32_t block = kv->free_block[--kv->n_free];
        for (int i = 0; i < ENG_KV_BLOCK; i++)
            slot[(*n_slot)++] = block * ENG_KV_BLOCK + i;
    }
    return 0;
}

void eng_kv_release(struct eng_kv *kv, const int32_t *slot, int *n_slot, int n)
{
    int keep = kn_ceil_div(n, ENG_KV_BLOCK) * ENG_KV_BLOCK;
    while (*n_slot > keep) {
        *n_slot -= ENG_KV_BLOCK;
        kn_assert(kv->n_free < kv->n_block);
        kv->free_block[kv->n_free++] = slot[*n_slot] / ENG_KV_BLOCK;
    }
}
