/* engine/kv/blocks.c - blocks of KV slots: reserved by a path, kept, shared by sequences with the same prefix,
 * evicted.
 *
 * A position's slot is block * ENG_KV_BLOCK + position % ENG_KV_BLOCK, so the 64 positions of one attention chunk are
 * neighbours in memory, and a block has the same layout for every sequence that shares it. */
#include "engine/kv/kv.h"

#include <string.h>

int eng_kv_open(struct eng_kv *kv, int n_block, const uint64_t *secret)
{
    int n_table = 16;
    while (n_table < 2 * n_block)
        n_table *= 2;
    *kv = (struct eng_kv){ .n_block = n_block,
                           .n_table = n_table,
                           .n_unused = n_block,
                           .n_free = n_block,
                           .oldest = -1,
                           .newest = -1,
                           .first_child = -1,
                           .secret = { secret[0], secret[1] } };
    kv->block = kn_calloc((size_t)n_block, sizeof *kv->block);
    kv->free_block = kn_calloc((size_t)n_block, sizeof *kv->free_block);
    kv->table = kn_calloc((size_t)n_table, sizeof *kv->table);
    if (!kv->block || !kv->free_block || !kv->table) {
        eng_kv_close(kv);
        return kn_fail(KN_ENOMEM, "no memory for %d KV blocks", n_block);
    }
    for (int i = 0; i < n_block; i++)
        kv->free_block[i] = n_block - 1 - i;
    memset(kv->table, 0xff, (size_t)n_table * sizeof *kv->table);
    return 0;
}

void eng_kv_close(struct eng_kv *kv)
{
    kn_free(kv->state);
    kn_free(kv->block);
    kn_free(kv->free_block);
    kn_free(kv->table);
    *kv = (struct eng_kv){ 0 };
}

/* ---- kept blocks without users, in LRU order ----------------------------------------------------------- */

/* Appends a kept block to the LRU list as the newest. */
static void retire(struct eng_kv *kv, int32_t id)
{
    struct eng_block *b = &kv->block[id];
    b->older = kv->newest;
    b->newer = -1;
    *(kv->newest >= 0 ? &kv->block[kv->newest].newer : &kv->oldest) = id;
    kv->newest = id;
    kv->n_free++;
}

static void unretire(struct eng_kv *kv, int32_t id)
{
    const struct eng_block *b = &kv->block[id];
    *(b->older >= 0 ? &kv->block[b->older].newer : &kv->oldest) = b->newer;
    *(b->newer >= 0 ? &kv->block[b->newer].older : &kv->newest) = b->older;
    kv->n_free--;
}

/* Adds a user to a kept block. */
static void use(struct eng_kv *kv, int32_t id)
{
    if (kv->block[id].n_user++ == 0)
        unretire(kv, id);
}

/* Removes one user. Without users, a kept block enters the LRU list; another one is free. */
static void unuse(struct eng_kv *kv, int32_t id)
{
    struct eng_block *b = &kv->block[id];
    kn_assert(b->n_user > 0);
    if (--b->n_user)
        return;
    if (b->n_token) {
        retire(kv, id);
        return;
    }
    kv->free_block[kv->n_unused++] = id;
    kv->n_free++;
}

/* Returns a free block, with one user; if there is none, evicts the least recently used cached block. This block has no
 * children: each path with a child also used its parent, and released it after the child. The caller has checked
 * n_free. */
static int32_t take(struct eng_kv *kv)
{
    if (kv->n_unused == 0) {
        int32_t id = kv->oldest;
        unretire(kv, id);
        eng_prefix_drop(kv, id);
        kv->free_block[kv->n_unused++] = id;
        kv->n_free++;
    }
    int32_t id = kv->free_block[--kv->n_unused];
    kv->n_free--;
    kv->block[id].n_user = 1;
    kv->block[id].n_token = 0;
    kv->block[id].drafted = 0;
    kv->block[id].gap_end = 0;
    return id;
}

/* ---- paths ------------------------------------------------------------------------------------------ */

/* Appends the slots of a block to the path. */
static void append(struct eng_path *path, int32_t id)
{
    for (int i = 0; i < ENG_KV_BLOCK; i++)
        path->slot[path->n_slot++] = id * ENG_KV_BLOCK + i;
}

static int32_t block_at(const struct eng_path *path, int position) { return path->slot[position] / ENG_KV_BLOCK; }

static int32_t last_kept(const struct eng_path *path) { return path->n_kept ? block_at(path, path->n_kept - 1) : -1; }

int eng_kv_reserve(struct eng_kv *kv, struct eng_path *path, int n)
{
    int need = kn_ceil_div(n, ENG_KV_BLOCK) - path->n_slot / ENG_KV_BLOCK;
    if (need > kv->n_free)
        return KN_ELIMIT;
    for (; need > 0; need--)
        append(path, take(kv));
    return 0;
}

int eng_kv_find(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n)
{
    kn_assert(path->n_slot == path->n_kept);
    while (path->n_slot + ENG_KV_BLOCK <= n) {
        int32_t id = eng_prefix_find(kv, last_kept(path), path->salt, token + path->n_slot);
        if (id < 0)
            break;
        use(kv, id);
        append(path, id);
        path->n_kept = path->n_slot;
    }
    return path->n_slot;
}

int eng_kv_count_shared(const struct eng_kv *kv, uint64_t salt, const int32_t *token, int n)
{
    int count = 0;
    int32_t id = -1;
    for (int at = 0; at + ENG_KV_BLOCK <= n; at += ENG_KV_BLOCK, count++) {
        id = eng_prefix_find(kv, id, salt, token + at);
        if (id < 0 || kv->block[id].n_user == 0)
            break;
    }
    return count;
}

int eng_kv_pin_like(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n, int32_t *block)
{
    int n_same = 0;
    kn_assert(path->n_slot == path->n_kept);
    int32_t id = eng_prefix_like(kv, last_kept(path), path->salt, token + path->n_slot, n - path->n_slot, &n_same);
    if (id < 0)
        return 0;
    use(kv, id);
    *block = id;
    return n_same;
}

void eng_kv_pin(struct eng_kv *kv, int32_t block) { use(kv, block); }
void eng_kv_unpin(struct eng_kv *kv, int32_t block) { unuse(kv, block); }

/* Makes the path's first block that is not kept a kept one, with the n tokens in it. If it is whole and a block with
 * the same prefix is kept already, the path uses that one instead. */
static void keep_block(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n)
{
    int32_t id = block_at(path, path->n_kept), parent = last_kept(path);
    int32_t twin = n == ENG_KV_BLOCK ? eng_prefix_find(kv, parent, path->salt, token) : -1;
    if (twin >= 0) {
        for (int i = 0; i < ENG_KV_BLOCK; i++)
            path->slot[path->n_kept + i] = twin * ENG_KV_BLOCK + i;
        use(kv, twin);
        unuse(kv, id);
    } else {
        eng_prefix_add(kv, id, parent, path->salt, token, n);
    }
    path->n_kept += ENG_KV_BLOCK;
}

void eng_kv_keep(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n)
{
    while (path->n_kept + ENG_KV_BLOCK <= n)
        keep_block(kv, path, token + path->n_kept, ENG_KV_BLOCK);
}

/* ---- features ------------------------------------------------------------------------------------------ */

void eng_kv_note_copy(struct eng_kv *kv, int32_t block, int32_t slot, int n)
{
    kv->block[slot / ENG_KV_BLOCK].gap_end = (uint8_t)kn_min(kv->block[block].gap_end, n);
}

void eng_kv_mark_gap(struct eng_kv *kv, const struct eng_path *path, int from, int end)
{
    kn_assert(from >= path->n_kept && end <= path->n_slot);
    kv->has_gaps |= from < end;
    for (int at = from; at < end; at++)
        kv->block[block_at(path, at)].gap_end = (uint8_t)(at % ENG_KV_BLOCK + 1);
}

int eng_kv_first_feature(const struct eng_kv *kv, const struct eng_path *path, int n)
{
    int at = kv->has_gaps ? (n - 1) / ENG_KV_BLOCK * ENG_KV_BLOCK : 0;
    while (at > 0 && !kv->block[block_at(path, at)].gap_end)
        at -= ENG_KV_BLOCK;
    return n > 0 ? at + kv->block[block_at(path, at)].gap_end : 0;
}

void eng_kv_trim(struct eng_kv *kv, struct eng_path *path, int n)
{
    int keep = (int)kn_align_up((size_t)n, ENG_KV_BLOCK);
    kn_assert(keep >= path->n_kept);
    while (path->n_slot > keep) {
        path->n_slot -= ENG_KV_BLOCK;
        unuse(kv, block_at(path, path->n_slot));
    }
}

/* Releases from the end, so that in LRU order the later blocks of a sequence are older and are evicted first. */
void eng_kv_leave(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n)
{
    eng_kv_keep(kv, path, token, n);
    if (path->n_kept < n)
        keep_block(kv, path, token + path->n_kept, n - path->n_kept);
    while (path->n_slot) {
        path->n_slot -= ENG_KV_BLOCK;
        unuse(kv, block_at(path, path->n_slot));
    }
    path->n_kept = 0;
}
