/* engine/kv/kv.h - which KV slots belong to which tokens: blocks, the tree of cached prefixes, kept states.
 *
 *     blocks.c        blocks of 64 slots: reserve, share, keep, evict
 *     prefix_tree.c   the tree of kept blocks and the hash table of their keys
 *     kept_states.c   states of recurrent layers, kept at the end of a block
 *
 * Only integers are kept here; keys, values and states lie in the memory of a moe_context. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include "kernels/core.h"

#define ENG_KV_BLOCK 64                         /* slots: one chunk of attention */

/* A block is free; or taken by one path that still writes it; or kept: known by its tokens and by the
 * block before it, never written again, and shared by any number of paths.  Kept blocks that no path
 * uses stay until their room is wanted, the one unused longest first, later parts of a text before
 * earlier ones. */
struct eng_block {
    int32_t n_user;
    int32_t n_token;                            /* 0: not kept; less than all: only the tail of a text */
    int32_t parent, child, next, prev;          /* kept ones: a tree of texts; siblings are a list; -1: none */
    int32_t older, newer;                       /* kept ones without users */
    int32_t same_hash;                          /* next in the table's list */
    uint8_t drafted;                            /* bit i: drafter i has keys and values for all of it */
    int32_t state;                              /* of kept ones: the kept state of its end; -1: none */
    uint64_t salt;
    uint64_t key[2];                            /* of the salt and all tokens up to this block's end */
    int32_t token[ENG_KV_BLOCK];
};

/* What the lists take of memory for each slot: a block, its place on the stack, two in the table. */
#define ENG_KV_SLOT_BYTES ((sizeof(struct eng_block) + 5 * sizeof(int32_t) + ENG_KV_BLOCK - 1) / ENG_KV_BLOCK)

/* What a model with states knew at the end of a kept block. */
struct eng_kept_state { int32_t block; uint64_t used; };        /* block -1: free, -2: taken, not put yet */

struct eng_kv {
    struct eng_block *block;                    /* [n_block] */
    int32_t *free_block;                        /* [n_unused] a stack */
    int32_t *table;                             /* [n_table] first block by key, -1: none */
    int n_block, n_table, n_unused;
    int n_free;                                 /* unused ones, and kept ones without users */
    int32_t oldest, newest;                     /* of those */
    int32_t first_child;                        /* blocks that begin a text */
    struct eng_kept_state *state;               /* [n_state] */
    int n_state;
    uint64_t n_state_use;                       /* a clock */
    uint64_t secret[2];                         /* so that nobody can choose texts whose keys meet */
};

/* The KV of one text: the first n_kept positions lie in kept blocks, the rest in its own. */
struct eng_path {
    int32_t *slot;                              /* by position */
    int n_slot;                                 /* reserved, whole blocks */
    int n_kept;
    uint64_t salt;
};

int  eng_kv_open(struct eng_kv *kv, int n_block, const uint64_t *secret /* [2] */);
void eng_kv_close(struct eng_kv *kv);

/* Grows the path to hold n positions; all or nothing. */
int  eng_kv_reserve(struct eng_kv *kv, struct eng_path *path, int n);

/* Goes on with kept blocks that hold what follows in token[n]; returns how many positions the path has.
 * All that it has must be kept. */
int  eng_kv_find(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* How many of the blocks that eng_kv_find would take have users already: they cost nothing. */
int  eng_kv_count_shared(const struct eng_kv *kv, uint64_t salt, const int32_t *token, int n);

/* The kept block that goes on most like token[n] from the path's end, and for how long: its slots are to
 * be copied.  It stays until eng_kv_unpin.  0: none, and nothing is pinned. */
int  eng_kv_pin_like(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n,
                     int32_t *block);
void eng_kv_unpin(struct eng_kv *kv, int32_t block);

/* The first n positions are written for good: whole blocks of them become kept, or make way for blocks
 * that hold the same already. */
void eng_kv_keep(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* Gives back what was reserved beyond n positions. */
void eng_kv_trim(struct eng_kv *kv, struct eng_path *path, int n);

/* Gives everything back; the first n positions stay known while there is room, a part of a block too. */
void eng_kv_leave(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* As eng_kv_pin_like() does: a kept block that stays. */
void eng_kv_pin(struct eng_kv *kv, int32_t block);

/* states.c: of a text that a model with states knows, it can go on where a state was kept. */
int  eng_states_open(struct eng_kv *kv, int n);

/* The furthest kept state on the way of token[n], and what leads there. */
struct eng_kept_match {
    int state;                                  /* -1: none */
    int n_whole;                                /* positions in whole blocks */
    int32_t tail;                               /* block of the n_tail beyond; -1: none */
    int n_tail;
    int n_seen;                                 /* positions of which whole blocks are kept, with a state or without */
};
void eng_states_find(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n,
                     struct eng_kept_match *out);

int  eng_states_take(struct eng_kv *kv);        /* a place for one, the one unused longest goes; -1: there is none */
void eng_states_put(struct eng_kv *kv, int state, int32_t block);       /* what was taken is of this block's end */
void eng_states_drop(struct eng_kv *kv, int state);                     /* it is not, or no more */

/* prefix.c: the tree of kept blocks and the table of their keys. */
void eng_prefix_add(struct eng_kv *kv, int32_t block, int32_t parent, uint64_t salt, const int32_t *token,
                    int n);
void eng_prefix_drop(struct eng_kv *kv, int32_t block);         /* has no children */
int32_t eng_prefix_find(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token);
int32_t eng_prefix_like(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token,
                        int n, int *n_same);

#endif
