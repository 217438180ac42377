/* engine/kv/kv.h - which KV slots belong to which tokens: blocks, the tree of cached prefixes, kept states.
 *
 *     blocks.c        blocks of 64 slots: reserve, share, keep, evict
 *     prefix_tree.c   the tree of kept blocks, and the hash table of their keys
 *     kept_states.c   states of recurrent layers, kept at the end of a block
 *
 * This part holds integers only; keys, values and states lie in the memory of a moe_context. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include "kernels/core.h"

#define ENG_KV_BLOCK 64 /* slots: one chunk of attention */

/* A block is free, or written by one path, or kept. A kept block is found by its tokens and by the block before it,
 * is never written again, and is shared by any number of paths. Kept blocks without a path stay until a new block is
 * needed; then the least recently used is evicted, the end of a sequence before its beginning. */
struct eng_block {
    int32_t n_user;
    int32_t n_token;                   /* 0: not kept; below ENG_KV_BLOCK: the tail of a sequence */
    int32_t parent, child, next, prev; /* kept blocks: the prefix tree; siblings are a list; -1: none */
    int32_t older, newer;              /* LRU list of kept blocks without users */
    int32_t same_hash;                 /* next block in the list of its table entry */
    uint8_t drafted;                   /* bit i: drafter i has computed its KV for the whole block */
    int32_t state;                     /* of kept blocks: the kept state at its end; -1: none */
    uint64_t salt;
    uint64_t key[2]; /* hash of the salt and all tokens up to this block's end */
    int32_t token[ENG_KV_BLOCK];
};

/* Bytes of these lists for each slot: a block, its place on the stack, two entries of the table. */
#define ENG_KV_SLOT_BYTES ((sizeof(struct eng_block) + 5 * sizeof(int32_t) + ENG_KV_BLOCK - 1) / ENG_KV_BLOCK)

/* The recurrent layers' state at the end of a kept block. */
struct eng_kept_state {
    int32_t block;
    uint64_t used;
}; /* block -1: free, -2: taken by eng_states_take */

struct eng_kv {
    struct eng_block *block; /* [n_block] */
    int32_t *free_block;     /* [n_unused] a stack */
    int32_t *table;          /* [n_table] first block by hash; -1: none */
    int n_block, n_table, n_unused;
    int n_free;                   /* unused blocks, and kept blocks without users */
    int32_t oldest, newest;       /* of the kept blocks without users */
    int32_t first_child;          /* first block in the list of those at position 0 */
    struct eng_kept_state *state; /* [n_state] */
    int n_state;
    uint64_t n_state_use; /* counts uses, for LRU order */
    uint64_t secret[2];   /* hash key: no client can construct colliding keys */
};

/* The KV slots of one sequence. The first n_kept positions lie in kept blocks, the rest in blocks of its own. */
struct eng_path {
    int32_t *slot; /* by position */
    int n_slot;    /* reserved, whole blocks */
    int n_kept;
    uint64_t salt;
};

int eng_kv_open(struct eng_kv *kv, int n_block, const uint64_t *secret /* [2] */);
void eng_kv_close(struct eng_kv *kv);

/* Grows the path to hold n positions, by evicting cached blocks if necessary. KN_ELIMIT, and the path is unchanged,
 * if there are not enough blocks; no message. */
int eng_kv_reserve(struct eng_kv *kv, struct eng_path *path, int n);

/* Extends the path by kept blocks that match token[n]; returns the path's number of positions. All blocks of the path
 * must be kept already. */
int eng_kv_find(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* The number of blocks that eng_kv_find would add and that have users already: they take no free block. */
int eng_kv_count_shared(const struct eng_kv *kv, uint64_t salt, const int32_t *token, int n);

/* Finds the kept block that matches token[n], from the path's end on, for the longest run, and returns that
 * length: the caller copies its slots. The block is pinned until eng_kv_unpin. 0: no match, nothing is pinned. */
int eng_kv_pin_like(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n, int32_t *block);
void eng_kv_unpin(struct eng_kv *kv, int32_t block);

/* The first n positions are final: their whole blocks become kept. A block with the same tokens that is kept already
 * replaces the path's own. */
void eng_kv_keep(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* Releases the blocks beyond n positions. */
void eng_kv_trim(struct eng_kv *kv, struct eng_path *path, int n);

/* Releases all blocks. The first n positions stay cached until they are evicted, a last partial block too. */
void eng_kv_leave(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* Pins a kept block, as eng_kv_pin_like() does. */
void eng_kv_pin(struct eng_kv *kv, int32_t block);

/* kept_states.c: a model with recurrent layers can reuse a prefix only up to a position with a kept state. */
int eng_states_open(struct eng_kv *kv, int n);

/* The longest prefix of token[n] that ends in a kept state, and its blocks. */
struct eng_kept_match {
    int state;    /* -1: none */
    int n_whole;  /* positions in whole blocks */
    int32_t tail; /* partial block with the n_tail positions after them; -1: none */
    int n_tail;
    int n_seen; /* positions in kept whole blocks, with a state or without */
};
void eng_states_find(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n,
                     struct eng_kept_match *out);

int eng_states_take(struct eng_kv *kv); /* takes a free state or evicts the LRU one; -1: none */
void eng_states_put(struct eng_kv *kv, int state, int32_t block); /* the taken state is that of this block's end */
void eng_states_drop(struct eng_kv *kv, int state);               /* frees a taken or kept state */

/* prefix_tree.c: the tree of kept blocks and the table of their keys. add: the block becomes kept, after parent (-1:
 * none). drop: it is no longer kept. find: the child with these 64 tokens, or -1. like: the child with the longest
 * common prefix with token[n], and its length; -1: none. */
void eng_prefix_add(struct eng_kv *kv, int32_t block, int32_t parent, uint64_t salt, const int32_t *token, int n);
void eng_prefix_drop(struct eng_kv *kv, int32_t block); /* it must have no children */
int32_t eng_prefix_find(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token);
int32_t eng_prefix_like(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token, int n,
                        int *n_same);

#endif
