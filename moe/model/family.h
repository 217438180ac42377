/* moe/model/family.h - the properties that all models of a family share, for the files of moe/model only.
 *
 *     family_table.c   a struct family for each GGUF architecture
 *     families.c       struct family and a file's metadata to a struct moe_desc
 *
 * A field that is absent from a row of the table is 0: the family lacks the property. */
#ifndef MOE_MODEL_FAMILY_H
#define MOE_MODEL_FAMILY_H

#include "moe/model/model.h"

struct family {
    const char *arch;
    enum kn_rope rope;
    enum { DENSE_ONLY, MAY_HAVE_EXPERTS, MUST_HAVE_EXPERTS } experts;
    enum moe_head head; /* kind of EAGLE draft head, if it is one */
    bool qkv_bias;
    bool out_norms, late_qk_norm;
    enum {
        ALL_ROTATED,
        EACH_FOURTH_PLAIN,
        WINDOWS_ROTATED
    } rotated;                      /* layers with a rotation: all; all but each fourth; those with a window */
    bool fused_qkv, fused_ffn;      /* Q, K and V may be one matrix; gate and up */
    bool long_rope;                 /* may have divisors of the frequencies for long contexts */
    bool query_scale;               /* queries may grow with their position */
    float query_growth;             /* default of the key attention.temperature_scale */
    int query_period, query_offset; /* period over 0: default of the key attention.temperature_length */
    bool query_unrotated, layer_norm, out_bias, unit_qk_norm, scaled_input, out_gate, delta_tiled;
    int chunk;            /* over 0: windows are chunks; default of the key attention.sliding_window */
    float long_rope_attn; /* over 0: the factor of cos and sin of models with LongRoPE, whatever the file says */
    bool scales;          /* has factors of embeddings, residual additions, and logits */
    bool embed_sqrt;      /* embeddings are multiplied by the square root of d_model */
    enum moe_activation activation;
    float window_rope_base; /* over 0: default of the key rope.freq_base_swa, which the family has */
    bool window_heads;      /* layers with a window may have other heads: keys *_swa, and a list of head_count_kv */
    bool window_sinks, v_norm, v_is_k, v_scale, logit_cap; /* v_is_k: if layers without a window have no V */
    float attend_scale;                                    /* over 0: default of the key attention.scale */
    bool o_bias, sinks, router_bias, select_bias, expert_bias, post_norm, yarn_exact;
    bool by_tensors; /* QKV biases and QK norms are optional: used if in the file */
    enum moe_qk_norm qk_norm;
    enum { NO_WINDOW, MAY_HAVE_WINDOW, MUST_HAVE_WINDOW } windows;
    int window_period; /* without a list of layers with a window: every window_period-th layer has none; 0: all have one */
    enum moe_gating gating; /* 0: softmax */
    float swiglu_alpha, swiglu_limit, mixer_gap;
    enum moe_shared shared;
    int delta_period;     /* over 0: has delta nets; default of the key full_attention_interval */
    bool latent;          /* MLA; gating is given by the file */
    bool norm_topk;       /* default of the key expert_weights_norm */
    bool as_dense;        /* experts are feed_forward_length wide by default */
    bool shared_width;    /* the shared expert's width has a key; without it, it is expert_shared_count experts wide */
    bool lead_by_tensors; /* without the key leading_dense_block_count, layers without a router are dense */
    bool select_by_tensors; /* the selection bias is optional: used if in the file */
    bool one_shared;        /* one shared expert, which no key counts, in place of expert_shared_count */
    bool group_pairs;       /* a group of experts counts by its two largest scores whatever the gating is */
};

/* Family i in the order of the table; NULL behind the last. */
const struct family *moe_family(int i);

#endif
