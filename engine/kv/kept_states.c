/* engine/kv/kept_states.c - kept states, by number: the recurrent layers' state at the end of a kept block.
 *
 * A model with recurrent layers can continue a cached prefix only at a position with a kept state. So states are kept
 * at a few positions of a sequence (engine/reuse.c chooses them), and a prefix is reused up to the last of these. A
 * kept state belongs to one block and is dropped with it; the least recently used state is evicted for a new one. This
 * file handles numbers only; the states lie in the memory of the moe_context. */
#include "engine/kv/kv.h"

#include <string.h>

enum { FREE = -1, TAKEN = -2 }; /* values of eng_kept_state.block */

int eng_states_open(struct eng_kv *kv, int n)
{
    kv->state = kn_calloc((size_t)n + 1, sizeof *kv->state);
    if (!kv->state)
        return kn_fail(KN_ENOMEM, "no memory for %d states", n);
    kv->n_state = n;
    for (int i = 0; i < n; i++)
        kv->state[i].block = FREE;
    return 0;
}

/* ---- finding ------------------------------------------------------------------------------------------ */

/* Finds the longest partial block after `parent` that matches the tokens from position `at` on and has a state; sets
 * *out if its prefix is longer than that of *out. */
static void find_tail(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token, int at, int n,
                      struct eng_kept_match *out)
{
    int32_t id = parent >= 0 ? kv->block[parent].child : kv->first_child;
    for (; id >= 0; id = kv->block[id].next) {
        const struct eng_block *b = &kv->block[id];
        if (b->state < 0 || b->n_token == ENG_KV_BLOCK || b->salt != salt || at + b->n_token > n ||
            at + b->n_token <= out->n_whole + out->n_tail ||
            memcmp(b->token, token + at, (size_t)b->n_token * sizeof *token))
            continue;
        *out = (struct eng_kept_match){ .state = b->state, .n_whole = at, .tail = id, .n_tail = b->n_token };
    }
}

/* Partial blocks are looked for only if the path is empty, so that a session in the middle of prefill needs no copy. */
void eng_states_find(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n,
                     struct eng_kept_match *out)
{
    int at = path->n_slot;
    int32_t id = at ? path->slot[at - 1] / ENG_KV_BLOCK : -1;
    kn_assert(at == path->n_kept);
    *out = (struct eng_kept_match){ .state = -1, .n_whole = at, .tail = -1 };
    for (;;) {
        if (path->n_slot == 0)
            find_tail(kv, id, path->salt, token, at, n, out);
        id = at + ENG_KV_BLOCK <= n ? eng_prefix_find(kv, id, path->salt, token + at) : -1;
        if (id < 0)
            break;
        at += ENG_KV_BLOCK;
        if (kv->block[id].state >= 0)
            *out = (struct eng_kept_match){ .state = kv->block[id].state, .n_whole = at, .tail = -1 };
    }
    out->n_seen = at;
    if (out->state >= 0)
        kv->state[out->state].used = ++kv->n_state_use;
}

/* ---- keeping ------------------------------------------------------------------------------------------ */

void eng_states_drop(struct eng_kv *kv, int state)
{
    struct eng_kept_state *k = &kv->state[state];
    if (k->block >= 0)
        kv->block[k->block].state = -1;
    k->block = FREE;
}

int eng_states_take(struct eng_kv *kv)
{
    int best = -1;
    for (int i = 0; i < kv->n_state; i++) {
        const struct eng_kept_state *k = &kv->state[i];
        if (k->block == FREE) {
            best = i;
            break;
        }
        if (k->block != TAKEN && (best < 0 || k->used < kv->state[best].used))
            best = i;
    }
    if (best < 0)
        return -1;
    eng_states_drop(kv, best);
    kv->state[best].block = TAKEN;
    return best;
}

void eng_states_put(struct eng_kv *kv, int state, int32_t block)
{
    struct eng_kept_state *k = &kv->state[state];
    kn_assert(k->block == TAKEN && kv->block[block].n_token);
    if (kv->block[block].state >= 0) /* kept by a session with the same tokens: the new state replaces it */
        eng_states_drop(kv, kv->block[block].state);
    *k = (struct eng_kept_state){ .block = block, .used = ++kv->n_state_use };
    kv->block[block].state = state;
}
