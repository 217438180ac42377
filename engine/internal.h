/* engine/internal.h - the engine's own insides: KV blocks and sessions. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/plan.h"

/* ---- kv.c: slot numbers, in blocks.  Integers only; the memory is the context's. ----------------- */

#define ENG_KV_BLOCK 64                         /* slots: one chunk of attention */

struct eng_kv {
    int32_t *free_block;                        /* [n_block] a stack */
    int n_block, n_free;
};

int  eng_kv_open(struct eng_kv *kv, int n_block);
void eng_kv_close(struct eng_kv *kv);
/* Grows slot[] (one per position) to hold n positions; all or nothing. */
int  eng_kv_reserve(struct eng_kv *kv, int32_t *slot, int *n_slot, int n);
/* Keeps the blocks that hold the first n positions. */
void eng_kv_release(struct eng_kv *kv, const int32_t *slot, int *n_slot, int n);

/* ---- sessions ---------------------------------------------------------------------------------- */

struct eng_session {
    struct eng_engine *engine;
    bool open;
    enum eng_finish finish;
    int32_t *token;                             /* [n_ctx + 1] */
    int n_token, n_prompt, n_most;              /* n_most: tokens it may reach */
    int n_kv;                                   /* the first n_kv have their keys and values */
    int n_cached;
    int32_t *slot;                              /* [n_ctx] by position */
    int n_slot;                                 /* reserved */
    struct spec_params sampling;                /* its bias is the array below */
    struct spec_bias *bias;                     /* [ENG_REQUEST_BIAS + n_stop] */
    int first_row, n_row, want;                 /* of the pass under way; want -1: no logits */
};

struct eng_engine {
    struct eng_options opt;
    struct eng_split split;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct kn_team *team;
    struct eng_kv kv;
    struct eng_session *session;                /* [n_parallel] */
    struct moe_row *row;                        /* [n_chunk] */
    struct spec_sampler **sampler;              /* [threads] */
    struct eng_session **due;                   /* [n_parallel] of the pass under way */
    struct spec_choice *choice;                 /* [n_parallel] */
    int *choice_status;
    int32_t *stop;                              /* [n_stop] the tokens that end a text */
    int n_stop;
    const float *logits;                        /* of the pass under way */
    int next_prefill;                           /* whose prompt goes first: round robin */
    struct eng_stats stats;
};

#endif
