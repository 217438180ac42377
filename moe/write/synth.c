/* moe/write/synth.c - a GGUF file with the shape of a real model and random weights.
 *
 * Input: the name of a shape, a number of layers, a vocabulary size, a format and a random seed.  Output: a file that
 * every program can load that supports the family; the same options give the same bytes.  It serves tests and speed
 * measurements: the cost of running a model does not depend on the values of its weights under two conditions, which
 * the weights are drawn to meet:
 *
 *   - Activations keep their scale.  Weights are drawn so that every normalised input gives outputs of variance about
 *     1.  The output that a layer adds to the residual stream is scaled down to RESIDUAL of the embedding's standard
 *     deviation, so that after 48 layers the embedding is still a good third of the stream.
 *   - Routing is as spread as in a trained model.  A router row is noise, so experts are equally likely over random
 *     directions.  The residual stream is dominated by its own token and path, so different tokens choose different
 *     experts in deep layers too.  With large layer outputs they would not: attention averages over a context, the
 *     averages are common to its tokens, and they would add up.  evals/routing measures the spread.
 *
 * The file is streamed: the team makes PIECE bytes, which are then written, in tensor order. */
#include "moe/write/write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PIECE       ((size_t)32 << 20)
#define GRAIN       ((size_t)256 << 10) /* bytes per work item, about */
#define RESIDUAL    0.15f               /* deviation that each half of a layer adds, relative to the embedding's */
#define SHARPEN     1.3f                /* deviation of queries and of keys: over 1, so attention is not flat */
#define ROUTER      1.5f                /* deviation of router logits */
#define LOGIT       2.0f                /* deviation of output logits */
#define BIAS        0.1f                /* deviation of biases */
#define PER_LAYER   24                  /* tensors of a layer, at most */
#define SILU_SQUARE 0.356f              /* mean of silu(x)^2 over a normal x */
#define GATE_SQUARE 0.293f              /* mean of sigmoid(x)^2 over a normal x */
#define N_TAP       4                   /* taps of a delta net's convolution */

struct recipe { /* one tensor to write */
    char name[64];
    enum kn_format format;
    int n_dim;
    uint64_t dim[3];
    float mean, deviation;
    int n_one; /* of an F32 vector: the first values, which are 1 */
};

struct plan {
    const struct moe_synth_shape *shape;
    struct moe_desc family; /* flags of the shape's family */
    const struct moe_synth_options *opt;
    struct recipe *recipe; /* [n_recipe] in file order */
    int n_recipe, room;
    int n_layer, n_ahead, n_lead, n_vocab, n_used;
    struct moe_fallbacks fallbacks;
};

/* ---- which tensors --------------------------------------------------------------------------- */

static struct recipe *add(struct plan *p, const char *name, const char *kind, enum kn_format format, float deviation)
{
    kn_assert(p->n_recipe < p->room);
    struct recipe *r = &p->recipe[p->n_recipe++];
    *r = (struct recipe){ .format = format, .deviation = deviation };
    snprintf(r->name, sizeof r->name, "%s%s%s", name, *kind ? "." : "", kind);
    return r;
}

static struct recipe *add_vector(struct plan *p, const char *name, const char *kind, int n, float deviation)
{
    struct recipe *r = add(p, name, kind, KN_F32, deviation);
    r->n_dim = 1;
    r->dim[0] = (uint64_t)n;
    return r;
}

static void add_norm(struct plan *p, const char *name, int n, float mean)
{
    add_vector(p, name, "weight", n, 0.05f * mean)->mean = mean;
}

/* Adds a bias of n values, or with n_vec over 0 one for each of n_vec experts. */
static void add_bias(struct plan *p, const char *name, int n, int n_vec)
{
    struct recipe *r = add_vector(p, name, "bias", n, BIAS);
    r->n_dim = n_vec ? 2 : 1;
    r->dim[1] = (uint64_t)n_vec;
}

/* Adds a matrix [n_out][n_in], or with n_mat over 0 a stack of n_mat.  The product of a matrix with an input of
 * standard deviation 1 has standard deviation `gain`. */
static void add_mat(struct plan *p, const char *name, enum kn_format want, int n_in, int n_out, int n_mat, float gain)
{
    enum kn_format format = moe_format_fit(&p->fallbacks, name, want, (uint64_t)n_in);
    struct recipe *r = add(p, name, "weight", format, gain / sqrtf((float)n_in));
    r->n_dim = n_mat ? 3 : 2;
    r->dim[0] = (uint64_t)n_in;
    r->dim[1] = (uint64_t)n_out;
    r->dim[2] = (uint64_t)n_mat;
}

static const char *in_layer(char *out, size_t bytes, int layer, const char *what)
{
    snprintf(out, bytes, "blk.%d.%s", layer, what);
    return out;
}

/* Adds the tensors of a delta net.  Decays are drawn so that a state fades to one half within some 2 to 10 tokens. */
static void add_delta(struct plan *p, int layer)
{
    const struct moe_synth_shape *s = p->shape;
    int value = s->n_value_head * s->d_state, mix = 2 * s->n_key_head * s->d_state + value;
    bool both = p->family.delta_tiled; /* else ssm_ba has alpha and beta in one matrix */
    char n[48];
#define IN(what) in_layer(n, sizeof n, layer, what)
    add_norm(p, IN("attn_norm"), s->d_model, 1);
    add_mat(p, IN("attn_qkv"), KN_Q8_0, s->d_model, mix, 0, 1);
    add_mat(p, IN("attn_gate"), KN_Q8_0, s->d_model, value, 0, 1);
    add_mat(p, IN("ssm_conv1d"), KN_F32, N_TAP, mix, 0, 1);
    add_bias(p, IN("ssm_dt"), s->n_value_head, 0);
    add_vector(p, IN("ssm_a"), "", s->n_value_head, 0.05f)->mean = -0.3f;
    add_mat(p, IN(both ? "ssm_alpha" : "ssm_ba"), KN_F32, s->d_model, (both ? 1 : 2) * s->n_value_head, 0, 1);
    if (both)
        add_mat(p, IN("ssm_beta"), KN_F32, s->d_model, s->n_value_head, 0, 1);
    add_norm(p, IN("ssm_norm"), s->d_state, 1);
    add_mat(p, IN("ssm_out"), KN_Q8_0, value, s->d_model, 0, RESIDUAL / sqrtf(SILU_SQUARE));
}

/* Adds the tensors of latent attention.  Latents are normalised to standard deviation 1.  With the gain of attn_k_b the
 * keys computed from latents have deviation SHARPEN, as the rotated part of keys does. */
static void add_latent_attention(struct plan *p, int layer)
{
    const struct moe_synth_shape *s = p->shape;
    int n_q = s->n_head * s->d_head, d_plain = s->d_head - s->n_rot, low = s->d_query_latent;
    char n[48];
    add_norm(p, IN("attn_norm"), s->d_model, 1);
    if (low) {
        add_mat(p, IN("attn_q_a"), KN_Q8_0, s->d_model, low, 0, 1);
        add_norm(p, IN("attn_q_a_norm"), low, 1);
    }
    add_mat(p, low ? IN("attn_q_b") : IN("attn_q"), KN_Q8_0, low ? low : s->d_model, n_q, 0, SHARPEN);
    add_mat(p, IN("attn_kv_a_mqa"), KN_Q8_0, s->d_model, s->d_latent + s->n_rot, 0, SHARPEN);
    add_norm(p, IN("attn_kv_a_norm"), s->d_latent, 1);
    float absorb = sqrtf((float)d_plain / (float)s->d_latent);
    add_mat(p, IN("attn_k_b"), KN_Q8_0, d_plain, s->d_latent, s->n_head, SHARPEN * absorb);
    add_mat(p, IN("attn_v_b"), KN_Q8_0, s->d_latent, s->d_value, s->n_head, 1);
    add_mat(p, IN("attn_output"), KN_Q8_0, s->n_head * s->d_value, s->d_model, 0, RESIDUAL);
}

/* Deviation of the values that each half of a layer gives, before the model's own factor or norm of them. */
static float residual_gain(const struct plan *p)
{
    return RESIDUAL / (p->shape->residual_scale > 0 ? p->shape->residual_scale : 1);
}

/* True for a layer with a window, of a shape that has window_heads. */
static bool slides(const struct moe_synth_shape *s, int layer)
{
    return s->window_heads.n_kv && (layer + 1) % s->full_period && !(s->first_full && layer == 0);
}

/* Adds Q and K norms.  Where scores have no factor, smaller ones make their deviation the same. */
static void add_qk_norms(struct plan *p, int layer, int n_q, int n_k, int d_head)
{
    const struct moe_synth_shape *s = p->shape;
    bool all = s->qk_norm == MOE_QK_NORM_ALL;
    float sharpen = strcmp(s->arch, "gemma4") ? SHARPEN : SHARPEN / sqrtf(sqrtf((float)d_head));
    char n[48];
    add_norm(p, IN("attn_q_norm"), all ? n_q : d_head, sharpen);
    add_norm(p, IN("attn_k_norm"), all ? n_k : d_head, sharpen);
}

static void add_attention(struct plan *p, int layer)
{
    const struct moe_synth_shape *s = p->shape;
    bool window = slides(s, layer);
    struct moe_heads h = { s->n_kv, s->d_head, s->d_value ? s->d_value : s->d_head, 0 };
    if (window)
        h = s->window_heads;
    int n_q = s->n_head * h.d_head, n_k = h.n_kv * h.d_head, n_v = h.n_kv * h.d_value;
    float sharpen = s->qk_norm ? 1 : SHARPEN; /* with QK norms the norms sharpen */
    char n[48];
    add_norm(p, IN("attn_norm"), s->d_model, 1);
    if (p->family.fused_qkv && !s->window_heads.n_kv) {
        add_mat(p, IN("attn_qkv"), KN_Q8_0, s->d_model, n_q + n_k + n_v, 0, sharpen);
    } else {
        add_mat(p, IN("attn_q"), KN_Q8_0, s->d_model, p->family.out_gate ? 2 * n_q : n_q, 0, sharpen);
        add_mat(p, IN("attn_k"), KN_Q8_0, s->d_model, n_k, 0, sharpen);
        if (window || !s->v_is_k)
            add_mat(p, IN("attn_v"), KN_Q8_0, s->d_model, n_v, 0, 1);
    }
    add_mat(p, IN("attn_output"), KN_Q8_0, s->n_head * h.d_value, s->d_model, 0,
            p->family.out_gate ? RESIDUAL / sqrtf(GATE_SQUARE) : residual_gain(p));
    if (s->qkv_bias) {
        add_bias(p, IN("attn_q"), n_q, 0);
        add_bias(p, IN("attn_k"), n_k, 0);
        add_bias(p, IN("attn_v"), n_v, 0);
    }
    if (p->family.o_bias)
        add_bias(p, IN("attn_output"), s->d_model, 0);
    if (p->family.sinks && (window || !p->family.window_sinks))
        add_vector(p, IN("attn_sinks"), "weight", s->n_head, 1);
    if (s->qk_norm)
        add_qk_norms(p, layer, n_q, n_k, h.d_head);
}

/* Adds the biases of router and experts, the selection bias and the shared expert, as far as the family has them. */
static void add_beside_experts(struct plan *p, int layer, float down)
{
    const struct moe_synth_shape *s = p->shape;
    enum kn_format f = p->opt->format;
    char n[48];
    if (p->family.router_bias)
        add_bias(p, IN("ffn_gate_inp"), s->n_expert, 0);
    if (p->family.select_bias || s->sigmoid || s->select_bias)
        add_bias(p, IN("exp_probs_b"), s->n_expert, 0);
    if (p->family.expert_bias) {
        add_bias(p, IN("ffn_gate_exps"), s->d_expert, s->n_expert);
        add_bias(p, IN("ffn_up_exps"), s->d_expert, s->n_expert);
        add_bias(p, IN("ffn_down_exps"), s->d_model, s->n_expert);
    }
    if (p->family.shared && s->d_shared) {
        add_mat(p, IN("ffn_gate_shexp"), f, s->d_model, s->d_shared, 0, 1);
        add_mat(p, IN("ffn_up_shexp"), f, s->d_model, s->d_shared, 0, 1);
        add_mat(p, IN("ffn_down_shexp"), f, s->d_shared, s->d_model, 0, down);
    }
    if (p->family.shared == MOE_SHARED_GATED)
        add_mat(p, IN("ffn_gate_inp_shexp"), KN_F32, s->d_model, 1, 0, 1);
}

/* Adds the FFN beside the experts, with the norms and factors that the family has then. */
static void add_apart(struct plan *p, int layer, float down)
{
    const struct moe_synth_shape *s = p->shape;
    enum kn_format f = p->opt->format;
    float root = sqrtf((float)s->d_model);
    char n[48];
    add_vector(p, IN("ffn_gate_inp"), "scale", s->d_model, 0.05f * root)->mean = root;
    add_vector(p, IN("ffn_down_exps"), "scale", s->n_expert, 0.1f)->mean = 1;
    add_norm(p, IN("pre_ffw_norm_2"), s->d_model, 1);
    add_norm(p, IN("post_ffw_norm_1"), s->d_model, 1);
    add_norm(p, IN("post_ffw_norm_2"), s->d_model, 1);
    add_mat(p, IN("ffn_gate"), f, s->d_model, s->d_ff, 0, 1);
    add_mat(p, IN("ffn_up"), f, s->d_model, s->d_ff, 0, 1);
    add_mat(p, IN("ffn_down"), f, s->d_ff, s->d_model, 0, down);
}

/* Adds the FFN or the experts.  The weights of a row's experts are far from equal: the sum of their squares is about
 * 1.5 / n_used, by which the gain of the down matrices is corrected. */
static void add_ffn(struct plan *p, int layer)
{
    const struct moe_synth_shape *s = p->shape;
    enum kn_format f = p->opt->format;
    int step = kn_max(s->moe_step, 1);
    bool moe = s->n_expert > 0 && layer >= p->n_lead && (layer >= p->n_layer || (layer + 1) % step == 0);
    int n_expert = moe ? s->n_expert : 0;
    int d_ff = moe ? s->d_expert : s->d_ff;
    float share = moe ? 1.5f / (float)p->n_used : 1;
    float down = residual_gain(p) / sqrtf(SILU_SQUARE * (share < 1 ? share : 1));
    char n[48];
    add_norm(p, IN(p->family.post_norm ? "post_attention_norm" : "ffn_norm"), s->d_model, 1);
    if (p->family.layer_norm) {
        add_bias(p, IN("attn_norm"), s->d_model, 0);
        add_bias(p, IN("ffn_norm"), s->d_model, 0);
    }
    if (p->family.out_norms) {
        add_norm(p, IN("post_attention_norm"), s->d_model, RESIDUAL);
        add_norm(p, IN("post_ffw_norm"), s->d_model, RESIDUAL);
    }
    if (moe)
        add_mat(p, IN("ffn_gate_inp"), KN_F32, s->d_model, n_expert, 0, ROUTER);
    bool apart = moe && p->family.shared == MOE_SHARED_APART;
    if (!p->family.fused_ffn && !apart)
        add_mat(p, IN(moe ? "ffn_gate_exps" : "ffn_gate"), f, s->d_model, d_ff, n_expert, 1);
    add_mat(p,
            IN(apart ? "ffn_gate_up_exps"
               : moe ? "ffn_up_exps"
                     : "ffn_up"),
            f, s->d_model, p->family.fused_ffn || apart ? 2 * d_ff : d_ff, n_expert, 1);
    add_mat(p, IN(moe ? "ffn_down_exps" : "ffn_down"), moe && p->opt->down && layer % 2 ? *p->opt->down : f, d_ff,
            s->d_model, n_expert, down);
    if (apart)
        add_apart(p, layer, down);
    else if (moe)
        add_beside_experts(p, layer, down);
    if (p->family.v_norm) /* gemma4 */
        add_vector(p, IN("layer_output_scale"), "weight", 1, 0.05f)->mean = 0.9f;
}

static void add_layer(struct plan *p, int layer)
{
    if (layer < p->n_layer && moe_is_delta(&p->family, layer))
        add_delta(p, layer);
    else if (p->shape->d_latent)
        add_latent_attention(p, layer);
    else
        add_attention(p, layer);
    add_ffn(p, layer);
}

/* Adds the tensors with which an MTP layer joins a hidden state and a token's embedding, and its final norm. */
static void add_ahead(struct plan *p, int layer)
{
    int d_model = p->shape->d_model;
    char n[48];
    add_mat(p, IN("nextn.eh_proj"), KN_Q8_0, 2 * d_model, d_model, 0, 1);
    add_norm(p, IN("nextn.enorm"), d_model, 1);
    add_norm(p, IN("nextn.hnorm"), d_model, 1);
    add_norm(p, IN("nextn.shared_head_norm"), d_model, 1);
}
#undef IN

static int make_plan(struct plan *p)
{
    const struct moe_synth_shape *s = p->shape;
    p->room = 7 + PER_LAYER * (p->n_layer + p->n_ahead) + 4 * p->n_ahead;
    p->recipe = kn_calloc((size_t)p->room, sizeof *p->recipe);
    if (!p->recipe)
        return kn_fail(KN_ENOMEM, "synth: no memory for %d layers", p->n_layer);
    float scale = s->embed_scale > 0 ? s->embed_scale : p->family.embed_scale;
    add_mat(p, "token_embd", KN_Q8_0, s->d_model, p->n_vocab, 0, sqrtf((float)s->d_model) / scale);
    if (s->long_ctx) {
        int n_pair = (s->n_rot ? s->n_rot : s->d_head) / 2;
        add_vector(p, "rope_factors_long", "weight", n_pair, 0.5f)->mean = 8;
        add_vector(p, "rope_factors_short", "weight", n_pair, 0.01f)->mean = 1;
    }
    if (s->n_turned) {
        struct recipe *r = add_vector(p, "rope_freqs", "weight", s->d_head / 2, 0);
        r->mean = 1e30f;
        r->n_one = s->n_turned;
    }
    for (int i = 0; i < p->n_layer; i++)
        add_layer(p, i);
    add_norm(p, "output_norm", s->d_model, 1);
    add_mat(p, "output", KN_Q8_0, s->d_model, p->n_vocab, 0, LOGIT * (s->logit_divisor > 0 ? s->logit_divisor : 1));
    if (p->family.layer_norm) {
        add_bias(p, "output_norm", s->d_model, 0);
        add_bias(p, "output", p->n_vocab, 0);
    }
    for (int i = p->n_layer; i < p->n_layer + p->n_ahead; i++) { /* last: other tensors do not change */
        add_layer(p, i);
        add_ahead(p, i);
    }
    return 0;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static void say_u32(struct moe_writer *w, const char *arch, const char *key, int value)
{
    char full[96];
    uint32_t x = (uint32_t)value;
    snprintf(full, sizeof full, "%s.%s", arch, key);
    moe_writer_value(w, full, MOE_U32, &x);
}

static void say_f32(struct moe_writer *w, const char *arch, const char *key, float x)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    moe_writer_value(w, full, MOE_F32, &x);
}

static void say_bool(struct moe_writer *w, const char *arch, const char *key, bool value)
{
    char full[96];
    uint8_t x = value;
    snprintf(full, sizeof full, "%s.%s", arch, key);
    moe_writer_value(w, full, MOE_BOOL, &x);
}

static void say_string(struct moe_writer *w, const char *arch, const char *key, const char *s)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    moe_writer_string(w, full, s, strlen(s));
}

/* The KV heads of each layer, the layers with a window, the sizes of their heads; factors that these families have. */
static void say_window_heads(struct moe_writer *w, const struct plan *p)
{
    const struct moe_synth_shape *s = p->shape;
    int32_t n_kv[MOE_MAX_LAYER], window[MOE_MAX_LAYER];
    char full[96];
    for (int i = 0; i < p->n_layer; i++) {
        window[i] = slides(s, i);
        n_kv[i] = window[i] ? s->window_heads.n_kv : s->n_kv;
    }
    snprintf(full, sizeof full, "%s.attention.head_count_kv", s->arch);
    moe_writer_array(w, full, MOE_I32, n_kv, (size_t)p->n_layer);
    snprintf(full, sizeof full, "%s.attention.sliding_window_pattern", s->arch);
    moe_writer_array(w, full, MOE_I32, window, (size_t)p->n_layer);
    say_u32(w, s->arch, "attention.key_length_swa", s->window_heads.d_head);
    say_u32(w, s->arch, "attention.value_length_swa", s->window_heads.d_value);
    say_u32(w, s->arch, "rope.dimension_count_swa", s->window_heads.n_rot);
    if (s->v_scale > 0)
        say_f32(w, s->arch, "attention.value_scale", s->v_scale);
    if (s->logit_cap > 0)
        say_f32(w, s->arch, "final_logit_softcapping", s->logit_cap);
}

static int write_metadata(struct moe_writer *w, const struct plan *p)
{
    const struct moe_synth_shape *s = p->shape;
    const char *arch = s->arch;
    char name[96];
    snprintf(name, sizeof name, "synthetic %s, %d layers", s->name, p->n_layer);
    moe_writer_string(w, "general.architecture", arch, strlen(arch));
    moe_writer_string(w, "general.name", name, strlen(name));
    say_u32(w, "general", "file_type", (int)moe_file_type(p->opt->format));
    say_u32(w, "general", "quantization_version", MOE_QUANTIZATION_VERSION);
    say_u32(w, arch, "block_count", p->n_layer + p->n_ahead);
    if (p->n_ahead)
        say_u32(w, arch, "nextn_predict_layers", p->n_ahead);
    say_u32(w, arch, "context_length", s->n_ctx);
    say_u32(w, arch, "embedding_length", s->d_model);
    say_u32(w, arch, "feed_forward_length", s->d_ff);
    say_u32(w, arch, "attention.head_count", s->n_head);
    if (s->window_heads.n_kv)
        say_window_heads(w, p);
    else
        say_u32(w, arch, "attention.head_count_kv", s->n_kv);
    say_u32(w, arch, "attention.key_length", s->d_latent ? s->d_latent + s->n_rot : s->d_head);
    say_u32(w, arch, "attention.value_length", s->d_latent ? s->d_latent : s->d_value ? s->d_value : s->d_head);
    if (s->d_latent) {
        say_u32(w, arch, "attention.key_length_mla", s->d_head);
        say_u32(w, arch, "attention.value_length_mla", s->d_value);
        say_u32(w, arch, "attention.kv_lora_rank", s->d_latent);
        say_u32(w, arch, "attention.q_lora_rank", s->d_query_latent);
    }
    say_f32(w, arch, "attention.layer_norm_rms_epsilon", s->eps);
    say_u32(w, arch, "rope.dimension_count", s->n_rot ? s->n_rot : s->d_head);
    say_f32(w, arch, "rope.freq_base", s->rope_base);
    if (s->n_key_head) {
        say_u32(w, arch, "full_attention_interval", p->family.delta_period);
        say_u32(w, arch, "ssm.conv_kernel", N_TAP);
        say_u32(w, arch, "ssm.state_size", s->d_state);
        say_u32(w, arch, "ssm.group_count", s->n_key_head);
        say_u32(w, arch, "ssm.time_step_rank", s->n_value_head);
        say_u32(w, arch, "ssm.inner_size", s->n_value_head * s->d_state);
    }
    say_u32(w, arch, "vocab_size", p->n_vocab);
    if (s->window)
        say_u32(w, arch, "attention.sliding_window", s->window);
    if (s->linear_factor > 0) {
        say_string(w, arch, "rope.scaling.type", "linear");
        say_f32(w, arch, "rope.scaling.factor", s->linear_factor);
    }
    if (s->embed_scale > 0) {
        say_f32(w, arch, "attention.scale", s->attend_scale);
        say_f32(w, arch, "embedding_scale", s->embed_scale);
        say_f32(w, arch, "residual_scale", s->residual_scale);
        say_f32(w, arch, "logit_scale", s->logit_divisor);
    }
    if (s->long_ctx) {
        say_u32(w, arch, "rope.scaling.original_context_length", s->long_ctx);
        say_f32(w, arch, "rope.scaling.attn_factor",
                (float)sqrt(1 + kn_log((double)s->n_ctx / s->long_ctx) / kn_log(s->long_ctx)));
    }
    if (s->yarn_factor) {
        say_string(w, arch, "rope.scaling.type", "yarn");
        say_f32(w, arch, "rope.scaling.factor", (float)s->yarn_factor);
        say_u32(w, arch, "rope.scaling.original_context_length", s->yarn_ctx);
        if (s->yarn_log > 0)
            say_f32(w, arch, "rope.scaling.yarn_log_multiplier", s->yarn_log);
    }
    if (s->moe_step)
        say_u32(w, arch, "interleave_moe_layer_step", s->moe_step);
    if (s->query_growth > 0)
        say_f32(w, arch, "attention.temperature_scale", s->query_growth);
    if (s->n_expert) {
        say_u32(w, arch, "expert_count", s->n_expert);
        say_u32(w, arch, "expert_used_count", p->n_used);
        say_u32(w, arch, "expert_feed_forward_length", s->d_expert);
        if (p->family.shared == MOE_SHARED_GATED)
            say_u32(w, arch, "expert_shared_feed_forward_length", s->d_shared);
        if (p->family.shared == MOE_SHARED_PLAIN && !p->family.scaled_input)
            say_u32(w, arch, "expert_shared_count", s->d_shared / s->d_expert);
        if (p->family.shared == MOE_SHARED_PLAIN && s->d_shared % s->d_expert)
            say_u32(w, arch, "expert_shared_feed_forward_length", s->d_shared);
        if (p->n_lead)
            say_u32(w, arch, "leading_dense_block_count", p->n_lead);
        if ((p->family.gating != MOE_GATING_SOFTMAX && p->family.gating <= MOE_GATING_CHOSEN) || s->sigmoid)
            say_u32(w, arch, "expert_gating_func", (int)(s->sigmoid ? MOE_GATING_SIGMOID : p->family.gating));
        if (s->sigmoid)
            say_bool(w, arch, "expert_weights_norm", true);
        if (s->n_group) {
            say_u32(w, arch, "expert_group_count", s->n_group);
            say_u32(w, arch, "expert_group_used_count", s->n_group_used);
        }
        if (s->expert_scale > 0)
            say_f32(w, arch, "expert_weights_scale", s->expert_scale);
    }
    return moe_synth_vocab(w, s->pre, p->n_vocab, p->opt->seed);
}

/* ---- making and writing ---------------------------------------------------------------------- */

struct piece { /* blocks block0 .. block0 + n_block - 1 of a tensor */
    const struct moe_synth_fill *fill;
    uint64_t block0;
    size_t n_block, grain, block_bytes;
    uint8_t *out;
};

static void make_grain(void *arg, int item, int thread)
{
    (void)thread;
    const struct piece *p = arg;
    size_t first = (size_t)item * p->grain, left = p->n_block - first;
    moe_synth_fill(p->fill, p->block0 + first, left < p->grain ? left : p->grain, p->out + first * p->block_bytes);
}

static int write_tensor(struct moe_writer *w, const struct plan *p, int i, uint8_t *buffer)
{
    const struct recipe *r = &p->recipe[i];
    const struct kn_format_info *info = kn_format_info(r->format);
    struct moe_synth_fill fill = {
        .format = r->format,
        .mean = r->mean,
        .deviation = r->deviation,
        .seed = kn_mix(p->opt->seed + KN_GOLDEN * (uint64_t)(i + 1)),
    };
    moe_synth_fill_init(&fill);
    size_t block_bytes = (size_t)info->block_bytes;
    uint64_t n_block = r->dim[0] / (uint64_t)info->block_values;
    for (int k = 1; k < r->n_dim; k++)
        n_block *= r->dim[k];

    for (uint64_t done = 0; done < n_block;) {
        struct piece piece = {
            .fill = &fill,
            .block0 = done,
            .n_block = PIECE / block_bytes,
            .grain = GRAIN / block_bytes,
            .block_bytes = block_bytes,
            .out = buffer,
        };
        if (n_block - done < piece.n_block)
            piece.n_block = (size_t)(n_block - done);
        int n_item = (int)((piece.n_block + piece.grain - 1) / piece.grain);
        kn_parallel_for(p->opt->team, n_item, make_grain, &piece);
        for (int k = 0; done == 0 && k < r->n_one; k++)
            ((float *)(void *)buffer)[k] = 1;
        int err = moe_writer_data(w, buffer, piece.n_block * block_bytes);
        if (err)
            return err;
        if (p->opt->stop && atomic_load(p->opt->stop))
            return kn_fail(KN_ECANCELLED, "synth: stopped; nothing was written");
        done += piece.n_block;
        if (p->opt->progress)
            atomic_fetch_add(&p->opt->progress->done_bytes, piece.n_block * block_bytes);
    }
    return 0;
}

static int write_file(struct moe_writer *w, const struct plan *p, uint8_t *buffer)
{
    uint64_t total = 0;
    int err = write_metadata(w, p);
    for (int i = 0; !err && i < p->n_recipe; i++) {
        const struct recipe *r = &p->recipe[i];
        err = moe_writer_tensor(w, r->name, r->format, r->n_dim, r->dim);
        uint64_t bytes = kn_row_bytes(r->format, (int)r->dim[0]);
        for (int k = 1; k < r->n_dim; k++)
            bytes *= r->dim[k];
        total += bytes;
    }
    if (p->opt->progress)
        atomic_store(&p->opt->progress->total_bytes, total);
    if (!err)
        err = moe_writer_header(w);
    for (int i = 0; !err && i < p->n_recipe; i++)
        err = write_tensor(w, p, i, buffer);
    return err ? err : moe_writer_finish(w);
}

static int check(const struct plan *p)
{
    const struct moe_synth_options *opt = p->opt;
    if (!p->shape) {
        char names[512] = "";
        for (int i = 0; moe_synth_shape(i); i++) {
            size_t n = strlen(names);
            snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", moe_synth_shape(i));
        }
        return kn_fail(KN_EINVAL, "synth: no shape is called '%s'; there are %s", opt->shape, names);
    }
    if (opt->n_layer < 0 || opt->n_layer > 1000)
        return kn_fail(KN_EINVAL, "synth: %d layers; 1 to 1000 are allowed", opt->n_layer);
    if (opt->n_used < 0 || opt->n_used > p->shape->n_expert)
        return kn_fail(KN_EINVAL, "synth: %d experts used of the %d that %s has", opt->n_used, p->shape->n_expert,
                       opt->shape);
    if (p->n_vocab < MOE_SYNTH_VOCAB_LEAST || p->n_vocab > 1 << 20)
        return kn_fail(KN_EINVAL, "synth: a vocabulary of %d tokens; %d to %d are allowed", p->n_vocab,
                       MOE_SYNTH_VOCAB_LEAST, 1 << 20);
    return 0;
}

int moe_synth(const char *path, const struct moe_synth_options *opt)
{
    struct plan p = { .shape = moe_synth_shape_find(opt->shape), .opt = opt };
    if (p.shape) {
        moe_desc_family(&p.family, p.shape->arch);
        p.n_layer = opt->n_layer ? opt->n_layer : p.shape->n_layer;
        p.n_ahead = opt->ahead;
        p.n_lead = kn_min(p.shape->n_lead, p.n_layer - 1); /* at least one layer has experts */
        p.n_vocab = opt->n_vocab ? opt->n_vocab : p.shape->n_vocab;
        p.n_used = opt->n_used ? opt->n_used : p.shape->n_used;
    }
    int err = check(&p);
    if (err)
        return err;

    struct moe_writer *w = NULL;
    uint8_t *buffer = kn_map(PIECE, -1);
    if (!buffer)
        err = kn_fail(KN_ENOMEM, "synth: no memory for a buffer of %zu MiB", PIECE >> 20);
    if (!err)
        err = make_plan(&p);
    moe_fallbacks_log(&p.fallbacks);
    if (!err)
        err = moe_writer_open(&w, path);
    if (!err)
        err = write_file(w, &p, buffer);
    moe_writer_close(w);
    kn_free(p.recipe);
    if (buffer)
        kn_unmap(buffer, PIECE);
    return err;
}
