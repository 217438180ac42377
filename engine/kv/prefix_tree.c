/* engine/kv/prefix_tree.c - the kept blocks: a tree of sequences with a block as node, and a hash table that finds
 * the child of a node by its 64 tokens.
 *
 * A block's key is a 128-bit SipHash-2-4 of its parent's key (for a block at position 0, of the salt) and its tokens,
 * with a secret of this process. A block is found only if salt, parent and tokens are equal too, so a collision of keys
 * is harmless. The partial block at the end of a sequence is in the tree but not in the table. */
#include "engine/kv/kv.h"

#include <string.h>

/* ---- keys ------------------------------------------------------------------------------------------ */

static inline uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static inline void sip_round(uint64_t *v)
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static void sip_word(uint64_t *v, uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    sip_round(v);
    v[0] ^= word;
}

static uint64_t sip_finish(uint64_t *v)
{
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* before: the key of the block before, or the salt and 0 */
static void make_key(const struct eng_kv *kv, const uint64_t *before, const int32_t *token, uint64_t *key)
{
    uint64_t v[4] = { kv->secret[0] ^ 0x736f6d6570736575, kv->secret[1] ^ 0x646f72616e646f6d ^ 0xee,
                      kv->secret[0] ^ 0x6c7967656e657261, kv->secret[1] ^ 0x7465646279746573 };
    sip_word(v, before[0]);
    sip_word(v, before[1]);
    for (int i = 0; i < ENG_KV_BLOCK; i += 2)
        sip_word(v, (uint32_t)token[i] | (uint64_t)(uint32_t)token[i + 1] << 32);
    sip_word(v, (uint64_t)(16 + 4 * ENG_KV_BLOCK) << 56);
    v[2] ^= 0xee;
    key[0] = sip_finish(v);
    v[1] ^= 0xdd;
    key[1] = sip_finish(v);
}

/* The key that a block after `parent` with these 64 tokens has. */
static void key_after(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token, uint64_t *key)
{
    uint64_t first[2] = { salt, 0 };
    make_key(kv, parent >= 0 ? kv->block[parent].key : first, token, key);
}

/* The table entry of a key: the first block of the list with this hash. */
static int32_t *table_at(const struct eng_kv *kv, const uint64_t *key)
{
    return &kv->table[key[0] & (uint64_t)(kv->n_table - 1)];
}

/* ---- the tree --------------------------------------------------------------------------------------- */

/* The first child of parent; -1: the first block at position 0. */
static int32_t *first_of(struct eng_kv *kv, int32_t parent)
{
    return parent >= 0 ? &kv->block[parent].child : &kv->first_child;
}

void eng_prefix_add(struct eng_kv *kv, int32_t block, int32_t parent, uint64_t salt, const int32_t *token, int n)
{
    struct eng_block *b = &kv->block[block];
    int32_t *first = first_of(kv, parent);
    kn_assert(b->n_token == 0 && n > 0 && n <= ENG_KV_BLOCK);
    b->n_token = n;
    b->state = -1;
    b->parent = parent;
    b->salt = salt;
    b->child = b->prev = -1;
    b->next = *first;
    if (b->next >= 0)
        kv->block[b->next].prev = block;
    *first = block;
    memcpy(b->token, token, (size_t)n * sizeof *token);
    if (n < ENG_KV_BLOCK)
        return;
    key_after(kv, parent, salt, token, b->key);
    int32_t *at = table_at(kv, b->key);
    b->same_hash = *at;
    *at = block;
}

void eng_prefix_drop(struct eng_kv *kv, int32_t block)
{
    struct eng_block *b = &kv->block[block];
    kn_assert(b->child < 0 && b->n_token);
    if (b->state >= 0)
        eng_states_drop(kv, b->state);
    *(b->prev >= 0 ? &kv->block[b->prev].next : first_of(kv, b->parent)) = b->next;
    if (b->next >= 0)
        kv->block[b->next].prev = b->prev;
    if (b->n_token == ENG_KV_BLOCK) {
        int32_t *at = table_at(kv, b->key);
        while (*at != block)
            at = &kv->block[*at].same_hash;
        *at = b->same_hash;
    }
    b->n_token = 0;
}

int32_t eng_prefix_find(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token)
{
    uint64_t key[2];
    key_after(kv, parent, salt, token, key);
    for (int32_t id = *table_at(kv, key); id >= 0; id = kv->block[id].same_hash) {
        const struct eng_block *b = &kv->block[id];
        if (b->key[0] == key[0] && b->key[1] == key[1] && b->parent == parent && b->salt == salt &&
            !memcmp(b->token, token, sizeof b->token))
            return id;
    }
    return -1;
}

int32_t eng_prefix_like(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token, int n,
                        int *n_same)
{
    int32_t best = -1;
    *n_same = 0;
    for (int32_t id = parent >= 0 ? kv->block[parent].child : kv->first_child; id >= 0; id = kv->block[id].next) {
        const struct eng_block *b = &kv->block[id];
        int most = kn_min(n, b->n_token), same = 0;
        while (b->salt == salt && same < most && b->token[same] == token[same])
            same++;
        if (same > *n_same) {
            *n_same = same;
            best = id;
        }
    }
    return best;
}
