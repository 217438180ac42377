/* moe/files/hf_tensor_names.c - maps tensors of .safetensors files to GGUF names.
 *
 * Input: the stored tensors that safetensors.c lists.  Output: the tensors of a struct moe_file.  A table gives the
 * GGUF name and the conversion, which hf_convert.c does.
 *
 * A tensor that is not in the table is added under its stored name, and moe_model_open() refuses the file with that
 * name.  MTP layers get the numbers behind the last layer: some families store them under these numbers, others under
 * "mtp.". */
#include "moe/files/hf_tensor_names.h"

#include <stdio.h>
#include <string.h>

#define LAYERS "layers."

/* Tensors of a layer: names behind "layers.N." and GGUF names behind "blk.N."; '#' is an expert's number. */
static const struct {
    const char *from, *to;
    enum moe_hf_take take;
} parts[] = {
    { "input_layernorm.weight", "attn_norm.weight", AS_IT_IS },
    { "input_layernorm.bias", "attn_norm.bias", AS_IT_IS },
    { "hidden_norm.weight", "attn_norm_2.weight", AS_IT_IS },
    { "post_attention_layernorm.bias", "ffn_norm.bias", AS_IT_IS },
    { "self_attn.q_proj.weight", "attn_q.weight", ROTATED },
    { "self_attn.k_proj.weight", "attn_k.weight", ROTATED },
    { "self_attn.v_proj.weight", "attn_v.weight", AS_IT_IS },
    { "self_attn.o_proj.weight", "attn_output.weight", AS_IT_IS },
    { "self_attn.qkv_proj.weight", "attn_qkv.weight", AS_IT_IS },
    { "self_attn.q_proj.bias", "attn_q.bias", AS_IT_IS },
    { "self_attn.k_proj.bias", "attn_k.bias", AS_IT_IS },
    { "self_attn.v_proj.bias", "attn_v.bias", AS_IT_IS },
    { "self_attn.o_proj.bias", "attn_output.bias", AS_IT_IS },
    { "self_attn.q_norm.weight", "attn_q_norm.weight", AS_IT_IS },
    { "self_attn.k_norm.weight", "attn_k_norm.weight", AS_IT_IS },
    { "self_attn.query_layernorm.weight", "attn_q_norm.weight", AS_IT_IS },
    { "self_attn.key_layernorm.weight", "attn_k_norm.weight", AS_IT_IS },
    { "self_attn.sinks", "attn_sinks.weight", AS_IT_IS },
    { "self_attn.attention_sink_bias", "attn_sinks.weight", AS_IT_IS },
    { "self_attn.rotary_emb.inv_freq", NULL, NOTHING },
    { "self_attn.q_a_proj.weight", "attn_q_a.weight", AS_IT_IS },
    { "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", AS_IT_IS },
    { "self_attn.q_b_proj.weight", "attn_q_b.weight", AS_IT_IS },
    { "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", AS_IT_IS },
    { "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", AS_IT_IS },
    { "self_attn.kv_b_proj.weight", "attn_kv_b.weight", AS_IT_IS },
    { "linear_attn.in_proj_qkvz.weight", "ssm_in.weight", AS_IT_IS },
    { "linear_attn.in_proj_ba.weight", "ssm_ba.weight", AS_IT_IS },
    { "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", MIX_ROWS },
    { "linear_attn.in_proj_z.weight", "attn_gate.weight", VALUE_ROWS },
    { "linear_attn.in_proj_b.weight", "ssm_beta.weight", HEAD_ROWS },
    { "linear_attn.in_proj_a.weight", "ssm_alpha.weight", HEAD_ROWS },
    { "linear_attn.conv1d.weight", "ssm_conv1d.weight", MIX_ROWS },
    { "linear_attn.dt_bias", "ssm_dt.bias", HEAD_ROWS },
    { "linear_attn.A_log", "ssm_a", DECAYS },
    { "linear_attn.norm.weight", "ssm_norm.weight", AS_IT_IS },
    { "linear_attn.out_proj.weight", "ssm_out.weight", VALUE_COLUMNS },
    { "post_attention_layernorm.weight", "ffn_norm.weight", AS_IT_IS },
    { "pre_feedforward_layernorm.weight", "ffn_norm.weight", AS_IT_IS },
    { "post_feedforward_layernorm.weight", "post_ffw_norm.weight", AS_IT_IS },
    { "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", AS_IT_IS },
    { "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", AS_IT_IS },
    { "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", AS_IT_IS },
    { "layer_scalar", "layer_output_scale.weight", AS_IT_IS },
    { "router.proj.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "router.scale", "ffn_gate_inp.scale", AS_IT_IS },
    { "router.per_expert_scale", "ffn_down_exps.scale", AS_IT_IS },
    { "experts.gate_up_proj", "ffn_gate_exps.weight", GATES },
    { "experts.gate_up_proj", "ffn_up_exps.weight", UPS },
    { "experts.down_proj", "ffn_down_exps.weight", STACK },
    { "mlp.gate_proj.weight", "ffn_gate.weight", AS_IT_IS },
    { "mlp.up_proj.weight", "ffn_up.weight", AS_IT_IS },
    { "mlp.down_proj.weight", "ffn_down.weight", AS_IT_IS },
    { "mlp.gate_up_proj.weight", "ffn_up.weight", AS_IT_IS },
    { "mlp.gate.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.router.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.router.bias", "ffn_gate_inp.bias", AS_IT_IS },
    { "block_sparse_moe.gate.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.gate.wg.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.router.gate.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", AS_IT_IS },
    { "mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", AS_IT_IS },
    { "mlp.expert_bias", "exp_probs_b.bias", AS_IT_IS },
    { "mlp.e_score_correction_bias", "exp_probs_b.bias", AS_IT_IS },
    { "block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", AS_IT_IS },
    { "mlp.experts.#.gate_proj.weight", "ffn_gate_exps.weight", ONE_EXPERT },
    { "mlp.experts.#.up_proj.weight", "ffn_up_exps.weight", ONE_EXPERT },
    { "mlp.experts.#.down_proj.weight", "ffn_down_exps.weight", ONE_EXPERT },
    { "block_sparse_moe.experts.#.w1.weight", "ffn_gate_exps.weight", ONE_EXPERT },
    { "block_sparse_moe.experts.#.w3.weight", "ffn_up_exps.weight", ONE_EXPERT },
    { "block_sparse_moe.experts.#.w2.weight", "ffn_down_exps.weight", ONE_EXPERT },
    { "mlp.experts.gate_up_proj", "ffn_gate_exps.weight", GATES },
    { "mlp.experts.gate_up_proj", "ffn_up_exps.weight", UPS },
    { "mlp.experts.down_proj", "ffn_down_exps.weight", STACK },
    { "block_sparse_moe.input_linear.weight", "ffn_gate_exps.weight", GATES },
    { "block_sparse_moe.input_linear.weight", "ffn_up_exps.weight", UPS },
    { "block_sparse_moe.output_linear.weight", "ffn_down_exps.weight", STACK },
    { "mlp.experts.gate_up_proj_blocks", "ffn_gate_exps.weight", EVEN_BLOCKS },
    { "mlp.experts.gate_up_proj_blocks", "ffn_up_exps.weight", ODD_BLOCKS },
    { "mlp.experts.down_proj_blocks", "ffn_down_exps.weight", BLOCKS },
    { "mlp.experts.gate_up_proj_scales", NULL, NOTHING },
    { "mlp.experts.down_proj_scales", NULL, NOTHING },
    { "mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", EVEN },
    { "mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", ODD },
    { "mlp.experts.down_proj_bias", "ffn_down_exps.bias", AS_IT_IS },
    { "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", AS_IT_IS },
    { "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", AS_IT_IS },
    { "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", AS_IT_IS },
    { "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", AS_IT_IS },
    { "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", AS_IT_IS },
    { "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "mlp.shared_mlp.gate_proj.weight", "ffn_gate_shexp.weight", AS_IT_IS },
    { "mlp.shared_mlp.up_proj.weight", "ffn_up_shexp.weight", AS_IT_IS },
    { "mlp.shared_mlp.down_proj.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "shared_mlp.input_linear.weight", "ffn_gate_shexp.weight", FIRST_HALF },
    { "shared_mlp.input_linear.weight", "ffn_up_shexp.weight", SECOND_HALF },
    { "shared_mlp.output_linear.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "feed_forward.gate_proj.weight", "ffn_gate.weight", AS_IT_IS },
    { "feed_forward.up_proj.weight", "ffn_up.weight", AS_IT_IS },
    { "feed_forward.down_proj.weight", "ffn_down.weight", AS_IT_IS },
    { "feed_forward.router.weight", "ffn_gate_inp.weight", AS_IT_IS },
    { "feed_forward.experts.#.gate_proj.weight", "ffn_gate_exps.weight", ONE_EXPERT },
    { "feed_forward.experts.#.up_proj.weight", "ffn_up_exps.weight", ONE_EXPERT },
    { "feed_forward.experts.#.down_proj.weight", "ffn_down_exps.weight", ONE_EXPERT },
    { "feed_forward.experts.gate_up_proj", "ffn_gate_exps.weight", BY_INPUT_FIRST },
    { "feed_forward.experts.gate_up_proj", "ffn_up_exps.weight", BY_INPUT_SECOND },
    { "feed_forward.experts.down_proj", "ffn_down_exps.weight", BY_INPUT },
    { "feed_forward.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", AS_IT_IS },
    { "feed_forward.shared_expert.up_proj.weight", "ffn_up_shexp.weight", AS_IT_IS },
    { "feed_forward.shared_expert.down_proj.weight", "ffn_down_shexp.weight", AS_IT_IS },
    { "final_layernorm.weight", "nextn.shared_head_norm.weight", AS_IT_IS },
    { "eh_proj.weight", "nextn.eh_proj.weight", AS_IT_IS },
    { "enorm.weight", "nextn.enorm.weight", AS_IT_IS },
    { "hnorm.weight", "nextn.hnorm.weight", AS_IT_IS },
    { "shared_head.norm.weight", "nextn.shared_head_norm.weight", AS_IT_IS },
    { "shared_head.head.weight", NULL, NOTHING }, /* this and embed_tokens: an MTP layer's copies of the model's */
    { "embed_tokens.weight", NULL, NOTHING },
};
#define N_PART (sizeof parts / sizeof *parts)

static const struct {
    const char *from, *to;
} ends[] = {
    { "embed_tokens.weight", "token_embd.weight" },
    { "norm.weight", "output_norm.weight" },
    { "norm.bias", "output_norm.bias" },
};

/* Tensors outside a layer of MTP layers stored under "mtp."; GGUF has them in the first MTP layer. */
static const char apart[] = "mtp.";
static const struct {
    const char *from, *to;
} apart_ends[] = {
    { "fc.weight", "nextn.eh_proj.weight" },
    { "pre_fc_norm_embedding.weight", "nextn.enorm.weight" },
    { "pre_fc_norm_hidden.weight", "nextn.hnorm.weight" },
    { "norm.weight", "nextn.shared_head_norm.weight" },
};

/* Tensors outside the layer of an EAGLE-3 head; some heads have them and the layer under "model.". */
static const struct {
    const char *from, *to;
    enum moe_hf_take take;
} head_ends[] = {
    { "fc.weight", "fc.weight", AS_IT_IS },
    { "fc_norm.0.weight", "fc_norm.0.weight", AS_IT_IS },
    { "fc_norm.1.weight", "fc_norm.1.weight", AS_IT_IS },
    { "fc_norm.2.weight", "fc_norm.2.weight", AS_IT_IS },
    { "input_norm.weight", "enc.output_norm.weight", AS_IT_IS },
    { "lm_head.weight", "output.weight", AS_IT_IS },
    { "d2t", "d2t", TOKENS },
    { "t2d", "", NOTHING }, /* the same list, as a flag for each token of the target */
};

/* Ends of names of tensors that belong to a quantised tensor, the name of which ends in `of`, and are read with it. */
static const struct {
    const char *end, *of;
} beside[] = {
    { "_scale_inv", "" },
    { "_scale", "" },
    { "_scale_2", "" },
    { "_scale", MOE_HF_PACKED },
    { MOE_HF_DIVISOR, ".weight" MOE_HF_PACKED },
    { ".input_scale", ".weight" }, /* this and those below: of activations in FP8 or FP4, which are not used */
    { ".input_scale_ub", ".weight" },
    { ".activation_scale", ".weight" },
    { "_activation_scale", "" },
    { ".input_global_scale", ".weight" MOE_HF_PACKED },
    { ".weight_shape", ".weight" },
    { ".weight_shape", ".weight" MOE_HF_PACKED },
    { ".scales", "." MOE_HF_GPTQ },
    { ".qzeros", "." MOE_HF_GPTQ },
    { ".g_idx", "." MOE_HF_GPTQ },
};

/* The parsed name "layers.N.REST".  REST begins at byte `at` of the name; in `rest` the expert's number is replaced by
 * '#'.  expert -1: the name has no expert's number. */
struct name {
    int layer, expert;
    size_t at;
    char rest[MOE_HF_SHOWN];
};

static bool begins(struct moe_string s, const char *with)
{
    return s.n >= strlen(with) && !memcmp(s.data, with, strlen(with));
}

/* Prefix of all names in parts[] and ends[]. */
static const char *root_of(const struct moe_folder *d)
{
    return d->family->nested ? "model.language_model." : d->wrapped ? "language_model.model." : "model.";
}

/* True for a tensor of a part of the model that is not used: vision, unsupported MTP layers. */
static bool is_aside(const struct moe_folder *d, struct moe_string name)
{
    if (d->wrapped)
        return begins(name, "vision_tower.") || begins(name, "vision_model.") || begins(name, "multi_modal_projector.");
    for (size_t i = 0; i < sizeof d->family->aside / sizeof *d->family->aside; i++)
        if (d->family->aside[i] && begins(name, d->family->aside[i]))
            return true;
    return false;
}

static const struct moe_stored *find_beside(const struct moe_hf_mapper *m, size_t less, const char *more)
{
    return moe_stored_beside(m->d, m->t, less, more);
}

/* Parses a number of at most nine digits, followed by a dot, at s.  Returns the count of digits, or 0 without
 * a match. */
static size_t take_number(const char *s, size_t n, int *out)
{
    size_t i = 0;
    int x = 0;
    for (; i < n && i < 9 && s[i] >= '0' && s[i] <= '9'; i++)
        x = 10 * x + (s[i] - '0');
    *out = x;
    return i < n && s[i] == '.' ? i : 0;
}

/* Parses s, a name without root_of(); false: not the name of a layer's tensor.  "midlayer." is layer 0 of an EAGLE-3
 * head. */
static bool take_apart(struct moe_string s, struct name *out)
{
    static const char experts[] = ".experts.", middle[] = "midlayer.";
    size_t at = sizeof LAYERS - 1, n = 0;
    *out = (struct name){ .expert = -1 };
    if (begins(s, middle))
        out->at = at = sizeof middle - 1;
    else if (!begins(s, LAYERS) || !(n = take_number(s.data + at, s.n - at, &out->layer)))
        return false;
    else
        out->at = at += n + 1;
    const char *rest = s.data + at, *e = memmem(rest, s.n - at, experts, sizeof experts - 1);
    size_t left = s.n - at, head = e ? (size_t)(e - rest) + sizeof experts - 1 : 0;
    n = e ? take_number(rest + head, left - head, &out->expert) : 0;
    if (left >= sizeof out->rest)
        return false;
    if (!n) {
        out->expert = -1;
        memcpy(out->rest, rest, left);
        return true;
    }
    memcpy(out->rest, rest, head);
    out->rest[head] = '#';
    memcpy(out->rest + head + 1, rest + head + n, left - head - n);
    return true;
}

/* ---- all of them -------------------------------------------------------------------------------- */

static int map_layer(struct moe_hf_mapper *m, const struct name *n)
{
    bool known = false;
    for (size_t i = 0; i < N_PART; i++) {
        char name[MOE_HF_SHOWN];
        if (strcmp(n->rest, parts[i].from))
            continue;
        known = true;
        const char *to = parts[i].to;
        if (m->d->family->post_norm && !strcmp(parts[i].from, "post_attention_layernorm.weight"))
            to = "post_attention_norm.weight";
        snprintf(name, sizeof name, "blk.%d.%s", n->layer, to ? to : "");
        bool other_way = m->d->family->transposed && (parts[i].take == GATES || parts[i].take == STACK);
        int err = moe_hf_take_as(m, other_way ? TRANSPOSED : parts[i].take, name, n->expert);
        if (err)
            return err;
    }
    return known ? 0 : 1;
}

/* Adds the tensor under the name `head` followed by its own name without the first `skip` bytes. */
static int map_unknown(struct moe_hf_mapper *m, const char *head, size_t skip)
{
    struct moe_tensor t = moe_as_stored(m->t);
    char name[4 * MOE_HF_SHOWN];
    size_t n = (size_t)snprintf(name, sizeof name, "%s", head);
    moe_string_show((struct moe_string){ m->t->name.data + skip, m->t->name.n - skip }, name + n, sizeof name - n);
    if (m->t->gguf_type < 0)
        t.gguf_type = UINT32_MAX; /* unknown type: listed, never read */
    return moe_hf_put(m, &t, name);
}

static bool is_packed(const struct moe_stored *t)
{
    return t && (!strcmp(t->dtype, "F8_E4M3") || !strcmp(t->dtype, "U8") || !strcmp(t->dtype, "I32"));
}

/* True if m->t is a tensor of the table beside[] (scales, shape, zero points) and its quantised tensor is
 * stored too. */
static bool is_beside(const struct moe_hf_mapper *m)
{
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (moe_string_ends(m->t->name, beside[i].end) &&
            is_packed(find_beside(m, strlen(beside[i].end), beside[i].of)))
            return true;
    return false;
}

/* True for a bias that the model does not have: some quantisers add a bias of zeros to every matrix. */
static bool is_extra_bias(const struct moe_hf_mapper *m, const struct name *n)
{
    static const char bias[] = ".bias", output[] = "self_attn.o_proj.bias";
    if (!moe_string_ends(m->t->name, bias) || !find_beside(m, sizeof bias - 1, "." MOE_HF_GPTQ))
        return false;
    bool known = false;
    for (size_t i = 0; i < N_PART; i++)
        known |= !strcmp(n->rest, parts[i].from);
    return !known || !strcmp(n->rest, output);
}

/* True for a bias or norm of attention that config.json switches off.  The transformers package ignores it, too. */
static bool is_switched_off(const struct moe_folder *d, const char *rest)
{
    static const char attention[] = "self_attn.", bias[] = ".bias";
    size_t n = strlen(rest);
    bool is_bias = !strncmp(rest, attention, sizeof attention - 1) && n > sizeof bias &&
                   !strcmp(rest + n - (sizeof bias - 1), bias);
    bool is_norm = !strcmp(rest, "self_attn.q_norm.weight") || !strcmp(rest, "self_attn.k_norm.weight");
    return (d->no_bias && is_bias) || (d->no_qk_norm && is_norm);
}

/* True for a scale of keys or values for a KV cache in FP8: "k_scale", also of a projection. */
static bool is_cache_scale(const char *rest)
{
    static const char attention[] = "self_attn.";
    const char *last = strrchr(rest, '.');
    return !strncmp(rest, attention, sizeof attention - 1) &&
           (!strcmp(last, ".k_scale") || !strcmp(last, ".v_scale") || !strcmp(last, ".q_scale"));
}

/* Maps lm_head.weight, the output matrix.  With tie_word_embeddings the embedding is the output matrix; but another
 * lm_head.weight with other values is the output matrix nevertheless, and if it is the only one of the two, it is
 * both. */
static int map_head(struct moe_hf_mapper *m)
{
    const char *root = root_of(m->d);
    char name[MOE_HF_SHOWN];
    bool same = false;
    int n = snprintf(name, sizeof name, "%sembed_tokens.weight", root);
    const struct moe_stored *embed = m->d->tied ? moe_stored_find(m->d, name, (size_t)n) : NULL;
    if (m->d->tied && !embed)
        return moe_hf_take_as(m, AS_IT_IS, "token_embd.weight", -1);
    int err = embed ? moe_hf_compare(m->d, embed, m->t, &same) : 0;
    if (err || same)
        return err;
    if (embed)
        kn_say(KN_LOG_INFO, "%s: lm_head.weight differs from the embedding: it is used although config.json ties them",
               m->d->f->name);
    return moe_hf_take_as(m, AS_IT_IS, "output.weight", -1);
}

static int map_end(struct moe_hf_mapper *m, struct moe_string s)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (moe_string_is(s, ends[i].from))
            return moe_hf_take_as(m, AS_IT_IS, ends[i].to, -1);
    return map_unknown(m, "", 0);
}

static int map_apart_end(struct moe_hf_mapper *m, struct moe_string s)
{
    char name[MOE_HF_SHOWN];
    for (size_t i = 0; i < sizeof apart_ends / sizeof *apart_ends; i++)
        if (moe_string_is(s, apart_ends[i].from)) {
            snprintf(name, sizeof name, "blk.%d.%s", m->d->n_layer, apart_ends[i].to);
            return moe_hf_take_as(m, AS_IT_IS, name, -1);
        }
    snprintf(name, sizeof name, "blk.%d.nextn.", m->d->n_layer);
    return map_unknown(m, name, sizeof apart - 1);
}

static int map_layer_or_unknown(struct moe_hf_mapper *m, struct name *n, size_t skip)
{
    char head[32] = "";
    size_t end = strlen(n->rest);
    bool is_ahead = n->layer >= m->d->n_layer;
    if (end > sizeof MOE_HF_PACKED && !strcmp(n->rest + end - (sizeof MOE_HF_PACKED - 1), MOE_HF_PACKED))
        n->rest[end - (sizeof MOE_HF_PACKED - 1)] = '\0';
    if (end > sizeof MOE_HF_GPTQ && !strcmp(n->rest + end - sizeof MOE_HF_GPTQ, "." MOE_HF_GPTQ))
        strcpy(n->rest + end - (sizeof MOE_HF_GPTQ - 1), "weight");
    if (is_extra_bias(m, n))
        return n->expert > 0 && m->d->gptq_plain
                   ? 0
                   : moe_hf_check_zeros(m->d, m->t, "is a bias other than zero, but its model has no such bias");
    int err = is_switched_off(m->d, n->rest) || is_cache_scale(n->rest) ? 0 : map_layer(m, n);
    if (err <= 0)
        return err;
    if (is_ahead)
        snprintf(head, sizeof head, "blk.%d.", n->layer);
    return map_unknown(m, head, is_ahead ? skip + n->at : 0);
}

static int map_head_tensor(struct moe_hf_mapper *m)
{
    static const char root[] = "model.";
    struct name n;
    struct moe_string s = m->t->name;
    size_t skip = begins(s, root) ? sizeof root - 1 : 0;
    s = (struct moe_string){ s.data + skip, s.n - skip };
    for (size_t i = 0; i < sizeof head_ends / sizeof *head_ends; i++)
        if (moe_string_is(s, head_ends[i].from))
            return moe_hf_take_as(m, head_ends[i].take, head_ends[i].to, -1);
    return take_apart(s, &n) ? map_layer_or_unknown(m, &n, skip) : map_end(m, s);
}

static int map(struct moe_hf_mapper *m)
{
    struct name n;
    struct moe_string s = m->t->name;
    if (!m->t->bytes || is_beside(m)) /* a matrix without rows or columns is of a part that the model lacks */
        return 0;
    if (m->d->family->head)
        return map_head_tensor(m);
    if (moe_string_is(s, m->d->wrapped ? "language_model.lm_head.weight" : "lm_head.weight"))
        return map_head(m);
    if (moe_string_is(s, "lm_head.bias") && !strcmp(m->d->family->arch, "phimoe"))
        return moe_hf_take_as(m, AS_IT_IS, "output.bias", -1);
    if (is_aside(m->d, s)) {
        m->n_aside++;
        return 0;
    }
    bool is_apart = m->d->family->mtp_apart && begins(s, apart);
    const char *root = is_apart ? apart : root_of(m->d);
    if (!begins(s, root))
        return map_unknown(m, "", 0);
    s = (struct moe_string){ s.data + strlen(root), s.n - strlen(root) };
    if (!take_apart(s, &n))
        return is_apart ? map_apart_end(m, s) : map_end(m, s);
    if (is_apart) {
        m->n_ahead = n.layer < m->n_ahead ? m->n_ahead : n.layer + 1;
        n.layer += m->d->n_layer;
    }
    return map_layer_or_unknown(m, &n, strlen(root));
}

/* Adds the layer counts.  MTP layers under "mtp." are counted by their tensors, as not every config.json has the
 * number. */
static int say_layers(struct moe_hf_mapper *m)
{
    struct moe_folder *d = m->d;
    int n_ahead = d->family->mtp_apart ? m->n_ahead : d->n_ahead;
    char key[128];
    snprintf(key, sizeof key, "%s.block_count", d->family->arch);
    moe_put_u32(d, key, (uint32_t)(d->n_layer + n_ahead));
    snprintf(key, sizeof key, "%s.nextn_predict_layers", d->family->arch);
    if (n_ahead)
        moe_put_u32(d, key, (uint32_t)n_ahead);
    return d->err;
}

static void say_aside(const struct moe_hf_mapper *m)
{
    const struct moe_folder *d = m->d;
    char names[128] = "the vision part, multi_modal_projector";
    for (size_t i = 0, n = 0; !d->wrapped && i < sizeof d->family->aside / sizeof *d->family->aside; i++)
        if (d->family->aside[i])
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", d->family->aside[i]);
    kn_say(KN_LOG_INFO, "%s: %d tensors under %s are not used", d->f->name, m->n_aside, names);
}

int moe_hf_tensors(struct moe_folder *d)
{
    struct moe_hf_mapper m = { .d = d };
    m.room = d->f->tensors.n + 2 * d->n_stored + 1; /* a tensor of gates and ups becomes two */
    m.n_left = kn_calloc(m.room, sizeof *m.n_left);
    int err = m.n_left ? 0 : kn_fail(KN_ENOMEM, "%s: no memory for %zu tensors", d->f->name, d->n_stored);
    for (size_t i = 0; i < d->n_stored && !err; i++) {
        m.t = &d->stored[i];
        err = map(&m);
    }
    if (!err)
        err = moe_hf_check_stacks(&m);
    if (!err && m.n_aside)
        say_aside(&m);
    bool may_lack = d->tied != d->family->head; /* a head without the matrix uses the target's, if it is not tied */
    if (!err && !may_lack && !moe_find_tensor(d->f, "output.weight"))
        err = kn_fail(KN_ECORRUPT, "%s: %s: tensor lm_head.weight is missing", d->f->name, kn_error_text(KN_ECORRUPT));
    kn_free(m.n_left);
    return err ? err : say_layers(&m);
}
