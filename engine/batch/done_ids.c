/* engine/batch/done_ids.c - set of names: a hash table of 127-bit hashes under a random key.
 *
 * The key is drawn at open, so names that collide cannot be chosen: two names collide with probability 2^-127.  All
 * memory is allocated at open, for `most` names. */
#include "engine/batch/batch.h"

#include <string.h>
#include <sys/random.h>

#define MET UINT64_C(1)

static size_t slots(uint64_t most)
{
    size_t n = 64;
    while (n / 4 * 3 < most)
        n *= 2;
    return n;
}

size_t eng_seen_bytes(uint64_t most) { return slots(most) * sizeof *((struct eng_seen *)0)->slot; }

int eng_seen_open(struct eng_seen *s, uint64_t most)
{
    *s = (struct eng_seen){ .n_slot = slots(most), .most = most };
    s->slot = kn_calloc(s->n_slot, sizeof *s->slot);
    if (!s->slot)
        return kn_fail(KN_ENOMEM, "not enough memory for the ids of %llu lines", (unsigned long long)most);
    if (getrandom(s->key, sizeof s->key, 0) != sizeof s->key)
        s->key[0] = kn_now_ns(); /* this key can be guessed, so names that collide can be chosen */
    return 0;
}

void eng_seen_close(struct eng_seen *s)
{
    kn_free(s->slot);
    s->slot = NULL;
}

/* Returns the index of the slot that holds name[n], or of the free slot where the name belongs; sets *a, *b to its
 * hash. */
static size_t find(const struct eng_seen *s, const char *name, size_t n, uint64_t *a, uint64_t *b)
{
    *a = kn_mix(s->key[0] ^ n);
    *b = kn_mix(s->key[1] + KN_GOLDEN);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, name + i, n - i < 8 ? n - i : 8);
        *a = kn_mix((*a ^ word) + s->key[1]);
        *b = kn_mix((*b + word) ^ s->key[0]) + KN_GOLDEN;
    }
    *a |= *a == 0; /* 0 marks a free slot */
    *b &= ~MET;
    size_t i = (size_t)*a & (s->n_slot - 1);
    while (s->slot[i].a && (s->slot[i].a != *a || (s->slot[i].b & ~MET) != *b))
        i = (i + 1) & (s->n_slot - 1);
    return i;
}

static void put(struct eng_seen *s, size_t i, uint64_t a, uint64_t b)
{
    kn_assert(s->n < s->most);
    s->slot[i].a = a;
    s->slot[i].b = b;
    s->n++;
}

void eng_seen_done(struct eng_seen *s, const char *name, size_t n)
{
    uint64_t a, b;
    size_t i = find(s, name, n, &a, &b);
    if (!s->slot[i].a)
        put(s, i, a, b);
}

enum eng_met eng_seen_meet(struct eng_seen *s, const char *name, size_t n)
{
    uint64_t a, b;
    size_t i = find(s, name, n, &a, &b);
    if (!s->slot[i].a) {
        put(s, i, a, b | MET);
        return ENG_MET_NEW;
    }
    enum eng_met met = s->slot[i].b & MET ? ENG_MET_TWICE : ENG_MET_DONE;
    s->slot[i].b |= MET;
    return met;
}
