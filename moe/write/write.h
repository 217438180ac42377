/* moe/write/write.h - parts of the synthetic models that synth.c writes.
 *
 * moe/moe.h declares the functions of this folder.  A moe_writer writes one GGUF file: metadata, then the header, then
 * the bytes of each tensor in order; the file appears under its name when moe_writer_finish() returns, and
 * moe_writer_close() removes an unfinished file.  moe_quantize() writes the model of an open file in other formats,
 * moe_synth() a model with the shape of a published one and random weights.  Both open and close a moe_writer and use
 * the caller's team.
 *
 *     writer.c         struct moe_writer           quantize.c       moe_quantize()
 *     importance.c     struct moe_importance       collect.c        struct moe_collector
 *     synth.c          moe_synth(): the tensors and metadata of a shape, in order
 *     synth_shapes.c   the shapes                  synth_fill.c     random values of a tensor
 *     synth_vocab.c    a vocabulary                synth_tiny.c     the shapes of tests */
#ifndef MOE_WRITE_WRITE_H
#define MOE_WRITE_WRITE_H

#include "moe/model/model.h"

/* The numbers of a published model, or of a small model for tests. */
struct moe_synth_shape {
    const char *name, *arch, *pre; /* pre: name of the pre-tokenizer */
    int n_layer, d_model, n_head, n_kv, d_head, d_ff, n_vocab, n_ctx;
    int n_expert, n_used, d_expert; /* n_expert 0: dense layers of d_ff */
    int d_shared;
    int window, yarn_factor, yarn_ctx; /* 0: none */
    int long_ctx;                      /* longer contexts have other divisors of RoPE's frequencies; 0: no divisors */
    float rope_base, eps;
    bool qkv_bias;
    enum moe_qk_norm qk_norm;
    int n_lead, n_rot;                     /* n_rot 0: d_head */
    int n_key_head, n_value_head, d_state; /* of delta nets; 0: none */
    float expert_scale;                    /* 0: 1 */
    int d_latent, d_query_latent, d_value; /* of latent attention; all 0: none, values are d_head wide */
    float yarn_log;                        /* rope.scaling.yarn_log_multiplier; 0: none */
    float query_growth;                    /* attention.temperature_scale; 0: none */
    int moe_step;                          /* interleave_moe_layer_step; 0: none */
    int n_group, n_group_used;             /* 0: no groups */
    bool sigmoid;                          /* sigmoid gating with a selection bias; a row's weights sum to 1 */
    bool select_bias;                      /* a selection bias, where the family's models may lack it */
    float linear_factor;                   /* of linear RoPE scaling; 0: none */
    float embed_scale, residual_scale, logit_divisor, attend_scale; /* keys of granitemoe; 0: none */
    struct moe_heads window_heads; /* of all layers but each full_period-th, the first with first_full; n_kv 0: none */
    int full_period, n_turned;     /* n_turned: rotated pairs of a head in full layers; 0: all */
    bool first_full, v_is_k;       /* v_is_k: full layers have no V */
    float v_scale, logit_cap;      /* 0: none */
};
const struct moe_synth_shape *moe_synth_shape_find(const char *name); /* synth_shapes.c; or NULL */
const struct moe_synth_shape *moe_tiny_shape(int i);                  /* synth_tiny.c, i >= 0; or NULL */

/* synth_fill.c: random values of one tensor, as stored in a file: mean + deviation * noise.  moe_synth_fill() writes
 * blocks block0 .. block0 + n_block - 1.  Block i depends on the struct and i only, so threads may fill any parts.
 * Quantised formats ignore the mean, theirs is 0.  The caller sets format, mean, deviation and seed;
 * moe_synth_fill_init() then computes the block scales. */
struct moe_synth_fill {
    enum kn_format format;
    float mean, deviation;
    uint64_t seed;
    uint16_t d[16], dmin[16]; /* block scales, one of which is drawn for each block */
};
void moe_synth_fill_init(struct moe_synth_fill *f);
void moe_synth_fill(const struct moe_synth_fill *f, uint64_t block0, size_t n_block, void *out);

/* synth_vocab.c: adds the tokenizer.* metadata of n_vocab tokens (at least MOE_SYNTH_VOCAB_LEAST) to w. */
#define MOE_SYNTH_VOCAB_LEAST (256 + 3)
int moe_synth_vocab(struct moe_writer *w, const char *pre, int n_vocab, uint64_t seed);

#endif
