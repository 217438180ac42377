/* engine/kv/kv.h - which KV slots belong to which tokens: blocks, the tree of cached prefixes, kept states.
 *
 *     blocks.c        blocks of 64 slots: reserve, share, keep, evict
 *     prefix_tree.c   the tree of kept blocks, and the hash table of their keys
 *     kept_states.c   states of recurrent layers, kept at the end of a block
 *
 * This part holds integers only; keys, values and states lie in the memory of a moe_context. */
#ifndef ENGINE_KV_KV_H
#define ENGINE_KV_KV_H

#include "kernels/core.h"

#define ENG_KV_BLOCK 64 /* slots: one chunk of attention */

/* A block is free, or written by one path, or kept. A kept block is never written again, can be found by its tokens and
 * the block before it, and may be part of any number of paths. Kept blocks that no path uses stay cached until a new
 * block is needed; then the least recently used one is evicted, the end of a sequence before its beginning. */
struct eng_block {
    int32_t n_user;                    /* paths and pins that use it */
    int32_t n_token;                   /* 0: not kept; 1 to 63: a partial block, the end of a sequence */
    int32_t parent, child, next, prev; /* prefix tree of kept blocks; next, prev: siblings; -1: none */
    int32_t older, newer;              /* LRU list of kept blocks without users */
    int32_t same_hash;                 /* next block in the list of its table entry */
    uint8_t drafted;                   /* bit i: drafter i has computed its own KV for the block, from gap_end on */
    uint8_t gap_end;                   /* from this slot on all rows have stored a feature of the last layer */
    int32_t state;                     /* of a kept block: number of the kept state at its end; -1: none */
    uint64_t salt;
    uint64_t key[2]; /* hash of the salt and all tokens up to this block's end */
    int32_t token[ENG_KV_BLOCK];
};

/* Bytes that the lists of struct eng_kv take for each KV slot. A block takes its entry, a place on the free stack and
 * up to four entries of the table. */
#define ENG_KV_SLOT_BYTES ((sizeof(struct eng_block) + 5 * sizeof(int32_t) + ENG_KV_BLOCK - 1) / ENG_KV_BLOCK)

/* The recurrent layers' state at the end of a kept block. */
struct eng_kept_state {
    int32_t block;
    uint64_t used;
}; /* block: its block, -1: free, -2: taken by eng_states_take(); used: n_state_use at its last use */

struct eng_kv {
    struct eng_block *block; /* [n_block] */
    int32_t *free_block;     /* [n_unused] a stack */
    int32_t *table;          /* [n_table] first block by hash; -1: none */
    int n_block, n_table, n_unused;
    int n_free;                   /* unused blocks, and kept blocks without users */
    int32_t oldest, newest;       /* of the kept blocks without users */
    int32_t first_child;          /* first in the list of kept blocks at position 0 */
    struct eng_kept_state *state; /* [n_state] */
    int n_state;
    uint64_t n_state_use; /* counts uses, for LRU order */
    bool has_gaps;        /* mark_gap was called with rows */
    uint64_t secret[2];   /* of the hash: so no client can construct tokens with colliding keys */
};

/* The KV slots of one sequence. The first n_kept positions lie in kept blocks, the rest in blocks of its own. */
struct eng_path {
    int32_t *slot; /* by position */
    int n_slot;    /* reserved positions, whole blocks */
    int n_kept;    /* positions in kept blocks */
    uint64_t salt;
};

int eng_kv_open(struct eng_kv *kv, int n_block, const uint64_t *secret /* [2] */);
void eng_kv_close(struct eng_kv *kv);

/* Grows the path to hold n positions, by evicting cached blocks if necessary. KN_ELIMIT, and the path is unchanged,
 * if there are not enough blocks; no message. */
int eng_kv_reserve(struct eng_kv *kv, struct eng_path *path, int n);

/* Extends the path by kept whole blocks that match token[n], the sequence from position 0; returns the path's number of
 * positions. All blocks of the path must be kept already. */
int eng_kv_find(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* The number of kept blocks from position 0 that match token[n] and have users already: to share them takes none of
 * the n_free blocks. */
int eng_kv_count_shared(const struct eng_kv *kv, uint64_t salt, const int32_t *token, int n);

/* Finds, among the kept blocks that follow the path, the one with the longest common prefix with the tokens of
 * token[n], the sequence from position 0, that lie behind the path. Returns the length of this prefix: the caller
 * copies as many of the block's slots. All blocks of the path must be kept. The block is pinned (not evicted) until
 * eng_kv_unpin(). 0: no block matches, and none is pinned. */
int eng_kv_pin_like(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n, int32_t *block);
void eng_kv_unpin(struct eng_kv *kv, int32_t block);

/* Called when KV of the first n positions, the tokens token[n], is final: the whole blocks among them become kept. If a
 * block with the same prefix is kept already, the path uses that block in place of its own. */
void eng_kv_keep(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* The first n slots of `block` were copied, features too, to the block that begins at `slot`. */
void eng_kv_note_copy(struct eng_kv *kv, int32_t block, int32_t slot, int n);

/* The rows of positions from .. end - 1, in blocks of the path's own, have stored no feature of the last layer. */
void eng_kv_mark_gap(struct eng_kv *kv, const struct eng_path *path, int from, int end);
/* The first position from which on all rows up to position n - 1 have; n: the last one has not. */
int eng_kv_first_feature(const struct eng_kv *kv, const struct eng_path *path, int n);

/* Releases the path's blocks that lie wholly beyond n positions; none of them may be kept. */
void eng_kv_trim(struct eng_kv *kv, struct eng_path *path, int n);

/* Releases all blocks of the path. KV of the first n positions, the tokens token[n], stays cached until it is evicted,
 * also in a last partial block. */
void eng_kv_leave(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* Pins a kept block until eng_kv_unpin(). */
void eng_kv_pin(struct eng_kv *kv, int32_t block);

/* ---- kept_states.c: a model with recurrent layers reuses a prefix only up to a position with a kept state ---- */

int eng_states_open(struct eng_kv *kv, int n); /* n: most kept states */

/* The longest prefix of a sequence that ends with a kept state, and the blocks of this prefix. */
struct eng_kept_match {
    int state;    /* number of the kept state; -1: no such prefix */
    int n_whole;  /* positions of the prefix in whole blocks */
    int32_t tail; /* partial block with the n_tail positions behind n_whole; -1: none */
    int n_tail;
    int n_seen; /* positions in all kept whole blocks that match, also behind the last state */
};
/* Finds the longest prefix of token[n], the sequence from position 0, that ends with a kept state behind the path's
 * end. All blocks of the path must be kept; partial blocks are searched only if the path is empty. Marks the state
 * found as used. */
void eng_states_find(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n,
                     struct eng_kept_match *out);

int eng_states_take(struct eng_kv *kv); /* a free state, or else the LRU one, evicted; -1: all are taken */
/* Keeps a taken state as the state at the end of a kept block; frees the block's older state. */
void eng_states_put(struct eng_kv *kv, int state, int32_t block);
void eng_states_drop(struct eng_kv *kv, int state); /* frees a taken or kept state */

/* ---- prefix_tree.c: the tree of kept blocks and the hash table of their keys ----
 *
 * parent: the kept block before; -1: none, the block is at position 0. token: the block's tokens alone. */

/* Makes a block kept, with the n tokens in it; with n < ENG_KV_BLOCK eng_prefix_find() does not find it. */
void eng_prefix_add(struct eng_kv *kv, int32_t block, int32_t parent, uint64_t salt, const int32_t *token, int n);
/* Makes a kept block without children not kept, and drops its state. */
void eng_prefix_drop(struct eng_kv *kv, int32_t block);
/* The child of parent with these 64 tokens; -1: none. */
int32_t eng_prefix_find(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token);
/* The child of parent with the longest common prefix with token[n], and *n_same, its length; -1: none. */
int32_t eng_prefix_like(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token, int n,
                        int *n_same);

#endif
