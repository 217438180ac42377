/* Reads the description of a model from the file's metadata.
 *
 * A model family is one row of the table in family_table.c.  All other properties are numbers in the file.  An unknown
 * architecture, an unknown value of a known key and a number out of range are refused with a message that names them. */
#include "moe/model/family.h"
#include "moe/model/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- keys: "<arch>.<name>" ------------------------------------------------------------------------ */

struct keys {
    const struct moe_file *f;
    const char *arch;
};

static const char *key(const struct keys *k, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s.%s", k->arch, name);
    return buf;
}

/* Reads a number; if the key is absent, the result is the fallback, or an error if the fallback is below 0. */
static int get_int(const struct keys *k, const char *name, int least, int most, int fallback, int *out)
{
    char buf[128];
    int64_t v = fallback;
    int found = moe_file_int(k->f, key(k, name, buf), least, most, &v);
    if (found < 0)
        return found;
    if (!found && fallback < 0)
        return kn_fail(KN_ECORRUPT, "%s: %s is missing", moe_file_path(k->f), buf);
    *out = (int)v;
    return 0;
}

static int get_float(const struct keys *k, const char *name, double least, double most, double fallback, float *out)
{
    char buf[128];
    double v = fallback;
    int found = moe_file_float(k->f, key(k, name, buf), &v);
    if (found < 0)
        return found;
    if (!(v >= least && v <= most))
        return kn_fail(KN_ECORRUPT, "%s: %s is %s", moe_file_path(k->f), buf, found ? "out of range" : "missing");
    *out = (float)v;
    return 0;
}

/* Reads a number that the file gives once, or as an array with an entry for each of n layers.  Array entries must be
 * equal: all supported families have the same number in every layer. */
static int get_int_uniform(const struct keys *k, const char *name, int n, int least, int most, int fallback, int *out)
{
    char buf[128];
    const struct moe_value *v = moe_file_find(k->f, key(k, name, buf));
    if (!v || v->type != MOE_ARRAY)
        return get_int(k, name, least, most, fallback, out);
    if (v->item == MOE_STRING || v->item == MOE_F32 || v->item == MOE_F64 || (int64_t)v->n < n)
        return kn_fail(KN_ECORRUPT, "%s: %s is not %d integers", moe_file_path(k->f), buf, n);
    int64_t first = moe_value_int(v, 0);
    for (int i = 1; i < n; i++)
        if (moe_value_int(v, (size_t)i) != first)
            return kn_fail(KN_EUNSUPPORTED,
                           "%s: %s differs from layer to layer, which no supported "
                           "family has",
                           moe_file_path(k->f), buf);
    if (first < least || first > most)
        return kn_fail(KN_ECORRUPT, "%s: %s is out of range", moe_file_path(k->f), buf);
    *out = (int)first;
    return 0;
}

/* ---- sections of the description -------------------------------------------------------------------- */

/* n_vocab is the number of rows of the embedding.  A draft head may lack the embedding, so it has the
 * key vocab_size. */
static int read_n_vocab(struct moe_desc *d, const struct keys *k)
{
    if (d->head)
        return get_int(k, "vocab_size", 1, INT32_MAX / 4, -1, &d->n_vocab);
    const struct moe_tensor *embed = moe_file_find_tensor(k->f, "token_embd.weight");
    if (!embed || embed->n_dim != 2 || embed->dim[1] < 1 || embed->dim[1] > INT32_MAX / 4)
        return kn_fail(KN_ECORRUPT, "%s: token_embd.weight is %s", moe_file_path(k->f),
                       embed ? "not a matrix" : "missing");
    d->n_vocab = (int)embed->dim[1];
    return 0;
}

/* Reads the number of KV heads.  With window_heads it may be one number in layers with a window and another one in the
 * others. */
static int read_n_kv(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    char buf[128];
    int *own = d->window ? &d->window_heads.n_kv : &d->n_kv;
    const struct moe_value *v = moe_file_find(k->f, key(k, "attention.head_count_kv", buf));
    if (!family->window_heads || !v || v->type != MOE_ARRAY) {
        int error = get_int_uniform(k, "attention.head_count_kv", d->n_layer, 1, 4096, d->n_head, &d->n_kv);
        if (family->window_heads)
            *own = d->n_kv;
        return error;
    }
    if (v->item == MOE_STRING || v->item == MOE_F32 || v->item == MOE_F64 || v->n < (size_t)d->n_layer)
        return kn_fail(KN_ECORRUPT, "%s: %s is not %d integers", moe_file_path(k->f), buf, d->n_layer);
    for (int i = 0; i < d->n_layer; i++) {
        int *n = moe_has_window(d, i) ? own : &d->n_kv;
        int64_t here = moe_value_int(v, (size_t)i);
        if (here < 1 || here > 4096)
            return kn_fail(KN_ECORRUPT, "%s: %s is out of range", moe_file_path(k->f), buf);
        if (*n && *n != here)
            return kn_fail(KN_EUNSUPPORTED, "%s: %s differs between layers that both have a window, or none",
                           moe_file_path(k->f), buf);
        *n = (int)here;
    }
    d->n_kv = d->n_kv ? d->n_kv : *own;
    *own = *own ? *own : d->n_kv;
    return 0;
}

/* Fails if the query heads cannot share the KV heads. */
static int check_sharing(const struct moe_desc *d, const struct keys *k, int n_kv)
{
    if (d->n_head % n_kv || d->n_head / n_kv > KN_MAX_Q)
        return kn_fail(KN_ECORRUPT, "%s: %d query heads do not share %d KV heads evenly (at most %d each)",
                       moe_file_path(k->f), d->n_head, n_kv, KN_MAX_Q);
    return 0;
}

/* Reads the sizes of the heads in layers with a window; without their keys they are those of the other layers. */
static int read_window_heads(struct moe_desc *d, const struct keys *k)
{
    struct moe_heads *h = &d->window_heads;
    int error;
    if ((error = get_int(k, "attention.key_length_swa", 1, KN_MAX_D_HEAD, d->d_head, &h->d_head)) ||
        (error = get_int(k, "attention.value_length_swa", 1, KN_MAX_D_HEAD, d->d_value, &h->d_value)) ||
        (error = get_int(k, "rope.dimension_count_swa", 2, h->d_head, kn_min(d->n_rot, h->d_head), &h->n_rot)) ||
        (error = check_sharing(d, k, h->n_kv)))
        return error;
    if (h->n_rot % 2)
        return kn_fail(KN_ECORRUPT, "%s: %s.rope.dimension_count_swa is odd", moe_file_path(k->f), k->arch);
    if (h->n_kv == d->n_kv && h->d_head == d->d_head && h->d_value == d->d_value && h->n_rot == d->n_rot)
        h->n_kv = 0;
    return 0;
}

static int read_heads(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error, d_head = d->d_model % d->n_head ? -1 : d->d_model / d->n_head;
    if ((error = get_int(k, "attention.key_length", 1, KN_MAX_D_HEAD, d_head, &d->d_head)) ||
        (error = get_int(k, "attention.value_length", 1, KN_MAX_D_HEAD, d->d_head, &d->d_value)) ||
        (error = get_int(k, "rope.dimension_count", 2, d->d_head, d->d_head, &d->n_rot)))
        return error;
    if (d->d_head > KN_MAX_D_HEAD)
        return kn_fail(KN_EUNSUPPORTED, "%s: heads of %d values; at most %d are supported", moe_file_path(k->f),
                       d->d_head, KN_MAX_D_HEAD);
    if ((error = check_sharing(d, k, d->n_kv)))
        return error;
    d->d_key = d->d_head;
    d->d_kept = d->d_value;
    return family->window_heads && d->window ? read_window_heads(d, k) : 0;
}

/* Reads a head size of MLA from `key` or, if the file lacks it, from or_key.  Newer files have it under *_length_mla,
 * and the size of a KV slot's key or value under *_length. */
static int get_head_int(const struct keys *k, const char *key, const char *or_key, int *out)
{
    int error = get_int(k, key, 1, KN_MAX_D_HEAD, 0, out);
    return error || *out ? error : get_int(k, or_key, 1, KN_MAX_D_HEAD, -1, out);
}

/* The norms of latents have this epsilon in all published models, even if the other norms have another one. */
#define LATENT_EPS 1e-6f

/* Reads the sizes of MLA.  The matrices of all heads are stacked in one, and each head must begin at a panel; so sizes
 * must be multiples of KN_PANEL. */
static int read_latent(struct moe_desc *d, const struct keys *k)
{
    int error;
    if ((error = get_int(k, "attention.kv_lora_rank", 1, 1 << 20, -1, &d->d_latent)) ||
        (error = get_int(k, "attention.q_lora_rank", 0, 1 << 20, 0, &d->d_query_latent)) ||
        (error = get_head_int(k, "attention.key_length_mla", "attention.key_length", &d->d_head)) ||
        (error = get_head_int(k, "attention.value_length_mla", "attention.value_length", &d->d_value)) ||
        (error = get_int(k, "rope.dimension_count", 2, d->d_head - 1, -1, &d->n_rot)))
        return error;
    d->n_kv = 1;
    d->d_key = d->d_latent + d->n_rot;
    d->d_kept = d->d_latent;
    d->latent_eps = LATENT_EPS;
    d->kv_whole = !moe_file_find_tensor(k->f, "blk.0.attn_k_b.weight") &&
                  moe_file_find_tensor(k->f, "blk.0.attn_kv_b.weight");
    int d_plain = d->d_head - d->n_rot;
    if (d->d_key > KN_MAX_D_HEAD || d->d_latent % KN_PANEL || d->d_value % KN_PANEL ||
        (d->kv_whole && d_plain % KN_PANEL))
        return kn_fail(KN_EUNSUPPORTED,
                       "%s: %s: latents of %d values and %d rotated, heads of %d and values of %d: "
                       "a latent may have at most %d in all, and sizes must be multiples of %d",
                       moe_file_path(k->f), k->arch, d->d_latent, d->n_rot, d_plain, d->d_value, KN_MAX_D_HEAD,
                       KN_PANEL);
    return 0;
}

/* Refuses a number, given by the key, that would change the mathematics in a way that no supported family has. */
static int refuse_if_set(const struct keys *k, const char *name)
{
    float x;
    int error = get_float(k, name, -1e9, 1e9, 0, &x);
    if (error || x == 0)
        return error;
    return kn_fail(KN_EUNSUPPORTED, "%s: %s.%s is %g: logits that are limited by tanh are not supported",
                   moe_file_path(k->f), k->arch, name, x);
}

/* Published gemma3 files have no key for the scale of scores.  It is 1 / sqrt(d_head), except in the model of 27B, which
 * is the one with 62 layers: there it is 1 / sqrt(d_model / n_head). */
static float usual_attend_scale(const struct moe_desc *d)
{
    bool by_model = !strcmp(d->arch, "gemma3") && d->n_layer == 62;
    return 1.0f / sqrtf((float)(by_model ? d->d_model / d->n_head : d->d_head));
}

/* Reads the factors of scores, embeddings, residual additions and logits. */
static int read_scales(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error;
    float usual = family->attend_scale > 0 ? family->attend_scale : usual_attend_scale(d);
    if ((error = get_float(k, "attention.scale", 1e-6, 1e6, usual, &d->attend_scale)) ||
        (error = refuse_if_set(k, "attn_logit_softcapping")) ||
        (error = family->logit_cap ? get_float(k, "final_logit_softcapping", 0, 1e6, 0, &d->logit_cap)
                                   : refuse_if_set(k, "final_logit_softcapping")) ||
        (family->v_scale && (error = get_float(k, "attention.value_scale", 1e-6, 1e6, 1, &d->v_scale))))
        return error;
    if (family->embed_sqrt)
        d->embed_scale = sqrtf((float)d->d_model);
    if (!family->scales)
        return 0;
    if ((error = get_float(k, "embedding_scale", 1e-6, 1e6, 1, &d->embed_scale)) ||
        (error = get_float(k, "residual_scale", 1e-6, 1e6, 1, &d->residual_scale)) ||
        (error = get_float(k, "logit_scale", 1e-6, 1e6, 1, &d->logit_scale)))
        return error;
    d->logit_scale = 1 / d->logit_scale; /* files have the divisor */
    return 0;
}

/* Reads the sliding window and the layers that have it: a list with a flag for each layer, or the period of layers
 * without a window (0: all layers have it), or else the family's period. */
static int read_window(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    char buf[128];
    int error, period = family->window_period;
    bool must = family->windows == MUST_HAVE_WINDOW;
    if (family->windows == NO_WINDOW)
        return 0;
    int usual = family->chunk ? family->chunk : must ? -1 : 0;
    if ((error = get_int(k, "attention.sliding_window", must, INT32_MAX, usual, &d->window)) || !d->window)
        return error;
    d->chunked = family->chunk > 0;
    const struct moe_value *v = moe_file_find(k->f, key(k, "attention.sliding_window_pattern", buf));
    bool list = v && v->type == MOE_ARRAY;
    if (list && (v->item == MOE_STRING || v->item == MOE_F32 || v->item == MOE_F64 || v->n < (size_t)d->n_layer))
        return kn_fail(KN_ECORRUPT, "%s: %s is not %d flags", moe_file_path(k->f), buf, d->n_layer);
    if (!list && (error = get_int(k, "attention.sliding_window_pattern", 0, 4096, period, &period)))
        return error;
    for (int i = 0; i < d->n_layer; i++)
        if (list ? moe_value_int(v, (size_t)i) != 0 : !period || i % period != period - 1)
            d->window_layers[i / 64] |= UINT64_C(1) << i % 64;
    if (family->window_rope_base > 0)
        return get_float(k, "rope.freq_base_swa", 1e-3, 1e12, family->window_rope_base, &d->window_rope_base);
    return 0;
}

static int read_sizes(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error = 0;
    if ((error = read_n_vocab(d, k)) || (error = get_int(k, "block_count", 1, MOE_MAX_LAYER, -1, &d->n_layer)) ||
        (error = get_int(k, "nextn_predict_layers", 0, d->n_layer - 1, 0, &d->n_ahead)) ||
        (error = get_int(k, "embedding_length", 1, 1 << 20, -1, &d->d_model)) ||
        (error = get_int(k, "context_length", 1, INT32_MAX, 2048, &d->n_ctx_train)) ||
        (error = get_int_uniform(k, "attention.head_count", d->n_layer, 1, 4096, -1, &d->n_head)) ||
        (error = get_float(k, "attention.layer_norm_rms_epsilon", 0, 1, -1, &d->eps)) ||
        (error = get_float(k, "attention.clamp_kqv", 0, 1e6, 0, &d->clamp_qkv)))
        return error;
    d->n_layer -= d->n_ahead;
    if ((error = read_window(d, k, family)) || (error = read_n_kv(d, k, family)) ||
        (error = family->latent ? read_latent(d, k) : read_heads(d, k, family)))
        return error;
    if (d->n_rot % 2)
        return kn_fail(KN_ECORRUPT, "%s: %s.rope.dimension_count is odd", moe_file_path(k->f), k->arch);
    return read_scales(d, k, family);
}

/* Width of the shared expert: PLAIN: its own key if the family has that, or expert_shared_count experts; GATED: its own key, or the width of dense layers. */
static int read_shared(struct moe_desc *d, const struct keys *k, const struct family *family, int d_ff)
{
    if (family->shared == MOE_SHARED_APART) {
        d->d_shared = d_ff;
        return d_ff ? 0 : kn_fail(KN_ECORRUPT, "%s: %s.feed_forward_length is missing", moe_file_path(k->f), k->arch);
    }
    int fallback = family->one_shared ? 1 : family->shared == MOE_SHARED_PLAIN && !family->shared_width ? -1 : 0;
    int count, width = 0, error = get_int(k, "expert_shared_count", 0, INT32_MAX, fallback, &count);
    if (error ||
        (family->shared_width && (error = get_int(k, "expert_shared_feed_forward_length", 0, 1 << 24, 0, &width))))
        return error;
    if (count && family->shared == MOE_SHARED_NONE)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_shared_count %d; %s has no shared experts", moe_file_path(k->f),
                       k->arch, count, k->arch);
    if (d->shared == MOE_SHARED_PLAIN && count && d->d_expert > (1 << 24) / count)
        return kn_fail(KN_ECORRUPT, "%s: %s.expert_shared_count is out of range", moe_file_path(k->f), k->arch);
    if (d->shared == MOE_SHARED_PLAIN && !count && !width)
        d->shared = MOE_SHARED_NONE;
    if (d->shared == MOE_SHARED_PLAIN)
        d->d_shared = width ? width : count * d->d_expert;
    if (d->shared == MOE_SHARED_GATED)
        return get_int(k, "expert_shared_feed_forward_length", 1, 1 << 24, d_ff ? d_ff : -1, &d->d_shared);
    return 0;
}

static int read_groups(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error;
    if ((error = get_int(k, "expert_group_count", 0, MOE_MAX_GROUP, 1, &d->n_group)) ||
        (error = get_int(k, "expert_group_used_count", 0, MOE_MAX_GROUP, 1, &d->n_group_used)))
        return error;
    if (d->n_group <= 1 || d->n_group == d->n_group_used) { /* 0: not given */
        d->n_group = 1;
        return 0;
    }
    if (d->gating != MOE_GATING_SIGMOID && !family->latent)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_group_count %d: %s has no groups of experts",
                       moe_file_path(k->f), k->arch, d->n_group, k->arch);
    int n = d->n_expert / d->n_group;
    d->group_best = d->gating == MOE_GATING_SIGMOID || family->group_pairs ? 2 : 1;
    if (d->n_expert % d->n_group || n < d->group_best || !d->n_group_used || d->n_group_used > d->n_group ||
        d->n_used > n * d->n_group_used)
        return kn_fail(KN_ECORRUPT,
                       "%s: %s.expert_group_count %d and expert_group_used_count %d do not fit %d "
                       "experts of which %d are used",
                       moe_file_path(k->f), k->arch, d->n_group, d->n_group_used, d->n_expert, d->n_used);
    return 0;
}

/* MLA families have expert_gating_func in the file.  If it is absent, a selection bias implies sigmoid, else it is
 * softmax. */
static int read_gating(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int gating, error = get_int(k, "expert_gating_func", 0, INT32_MAX, 0, &gating);
    if (error)
        return error;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", d->n_lead);
    if (family->latent || family->select_by_tensors)
        d->select_bias = moe_file_find_tensor(k->f, name) != NULL;
    if (family->latent) {
        d->gating = d->select_bias ? MOE_GATING_SIGMOID : MOE_GATING_SOFTMAX;
        if (gating == MOE_GATING_SIGMOID || gating == MOE_GATING_SOFTMAX)
            d->gating = (enum moe_gating)gating;
    }
    int usual = d->gating == MOE_GATING_MIXER            ? MOE_GATING_SOFTMAX
                : d->gating == MOE_GATING_CHOSEN_SIGMOID ? MOE_GATING_SIGMOID
                                                         : (int)d->gating;
    if (gating && gating != usual) /* 0: not given */
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_gating_func %d; only %d is supported for %s",
                       moe_file_path(k->f), k->arch, gating, usual, k->arch);
    if (d->gating == MOE_GATING_MIXER && d->n_used != 2)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_used_count is %d: %s always uses 2", moe_file_path(k->f),
                       k->arch, d->n_used, k->arch);
    return 0;
}

/* The number of layers before the first layer with a router. */
static int count_lead(const struct moe_desc *d, const struct keys *k)
{
    char name[64];
    for (int i = 0; i < d->n_layer; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        if (moe_file_find_tensor(k->f, name))
            return i;
    }
    return d->n_layer;
}

/* Reads which layers have experts.  Families other than llama4 may have no dense layers between them. */
static int read_interleaved(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int step, error = get_int(k, "interleave_moe_layer_step", 0, MOE_MAX_LAYER, 1, &step);
    if (error || step <= 1)
        return error;
    if (family->scaled_input) {
        d->moe_step = step;
        return 0;
    }
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: %s.interleave_moe_layer_step is %d: dense layers between layers with experts are "
                   "not supported",
                   moe_file_path(k->f), k->arch, step);
}

static int read_experts(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error, d_ff;
    if ((error = get_int(k, "expert_count", 0, 1 << 16, 0, &d->n_expert)))
        return error;
    if (d->n_expert == 0 && family->experts == MUST_HAVE_EXPERTS)
        return kn_fail(KN_ECORRUPT, "%s: %s.expert_count is missing", moe_file_path(k->f), k->arch);
    if (d->n_expert > 0 && family->experts == DENSE_ONLY)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_count: %s has no experts", moe_file_path(k->f), k->arch,
                       k->arch);
    if (d->n_expert && ((error = get_int(k, "leading_dense_block_count", 0, 4096,
                                         family->lead_by_tensors ? count_lead(d, k) : 0, &d->n_lead)) ||
                        (error = read_interleaved(d, k, family))))
        return error;
    if (!moe_n_sparse_before(d, d->n_layer)) /* all layers are dense: the numbers of its experts have no use */
        d->n_expert = d->n_lead = 0;
    bool dense = d->n_lead || d->moe_step > 1; /* some layers are */
    int least = d->n_expert ? 0 : 1;           /* 0: not given */
    if ((error = get_int_uniform(k, "feed_forward_length", d->n_layer, least, 1 << 24, least ? -1 : 0, &d_ff)))
        return error;
    if (d->n_expert == 0) {
        d->d_ff = d_ff;
        return 0;
    }
    char buf[128];
    int fallback = family->as_dense && d_ff ? d_ff : -1;
    if (dense && !d_ff)
        return kn_fail(KN_ECORRUPT, "%s: %s.feed_forward_length is missing", moe_file_path(k->f), k->arch);
    d->d_ff = dense ? d_ff : 0;
    d->unit_qk_norm &= d->n_expert != 128; /* Maverick has no such norms, and files do not tell */
    if ((error = get_int(k, "expert_used_count", 1, d->n_expert, -1, &d->n_used)) ||
        (error = get_int(k, "expert_feed_forward_length", 1, 1 << 24, fallback, &d->d_expert)) ||
        (error = read_gating(d, k, family)) || (error = read_shared(d, k, family, d_ff)) ||
        (error = read_groups(d, k, family)) ||
        (error = get_float(k, "expert_weights_scale", 0, 1e6, 1, &d->expert_scale)))
        return error;
    if ((error = moe_file_bool(k->f, key(k, "expert_weights_norm", buf), &d->norm_topk)) < 0)
        return error;
    if (d->expert_scale == 0) /* some converters write 0 for "no scale" */
        d->expert_scale = 1;
    return 0;
}

/* Reads RoPE's base and scaling.  YaRN multiplies cos and sin by a factor.  In MLA models with yarn_log_multiplier it
 * scales the attention scores instead, those of the part of the key without rotation too: files give one number for
 * mscale and mscale_all_dim, which are equal.  In other models it is mscale_all_dim, and divides the factor. */
static int read_rope(struct moe_desc *d, const struct keys *k)
{
    char buf[128];
    struct moe_string type = { "none", 4 };
    int error = moe_file_string(k->f, key(k, "rope.scaling.type", buf), &type);
    if (error < 0)
        return error;
    if (moe_string_is(type, "linear"))
        d->scaling = MOE_SCALING_LINEAR;
    else if (moe_string_is(type, "yarn"))
        d->scaling = MOE_SCALING_YARN;
    else if (!moe_string_is(type, "none") && !(d->long_rope && moe_string_is(type, "longrope"))) {
        char shown[64];
        moe_string_show(type, shown, sizeof shown);
        return kn_fail(KN_EUNSUPPORTED, "%s: %s is \"%s\"; none, linear and yarn are supported", moe_file_path(k->f),
                       buf, shown);
    }
    float attn = 1, whole = 0, log_multiplier = 0;
    if ((error = get_float(k, "rope.freq_base", 1e-3, 1e12, 10000, &d->rope_base)) ||
        (error = get_float(k, "rope.scaling.factor", 1e-6, 1e6, 1, &d->scaling_factor)) ||
        (error = get_int(k, "rope.scaling.original_context_length", 1, INT32_MAX, d->n_ctx_train, &d->scaling_ctx)) ||
        (error = get_float(k, "rope.scaling.yarn_beta_fast", 0, 1e6, 32, &d->beta_fast)) ||
        (error = get_float(k, "rope.scaling.yarn_beta_slow", 0, 1e6, 1, &d->beta_slow)) ||
        (error = get_float(k, "rope.scaling.attn_factor", 1e-6, 1e6, 1, &attn)) ||
        (error = get_float(k, "rope.scaling.yarn_attn_factor", 0, 1e6, 0, &whole)))
        return error;
    d->scaling_attn = attn;
    if (d->scaling != MOE_SCALING_YARN || !(d->scaling_factor > 1))
        return 0;
    double more = kn_log(d->scaling_factor);
    if ((error = get_float(k, "rope.scaling.yarn_log_multiplier", 0, 1e3, 0, &log_multiplier)))
        return error;
    if (!moe_is_latent(d)) {
        d->scaling_attn *= (float)(whole > 0 ? (double)whole : (1 + 0.1 * more) / (1 + 0.1 * log_multiplier * more));
        return 0;
    }
    if (whole > 0)
        d->scaling_attn *= whole;
    else if (!(log_multiplier > 0))
        d->scaling_attn *= (float)(1 + 0.1 * more);
    d->attend_scale *= (float)((1 + log_multiplier * more) * (1 + log_multiplier * more));
    return 0;
}

/* Reads the growth of queries with their position, and the number of positions of one step. */
static int read_query_scale(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error;
    if (!family->query_scale)
        return 0;
    if ((error = get_float(k, "attention.temperature_scale", 0, 1e3, family->query_growth, &d->query_growth)) ||
        d->query_growth == 0)
        return error;
    return get_int(k, "attention.temperature_length", 1, INT32_MAX,
                   family->query_period ? family->query_period : d->scaling_ctx, &d->query_period);
}

/* Sets the layers without a rotation. */
static void set_unrotated(struct moe_desc *d, const struct family *family)
{
    for (int i = 0; i < d->n_layer; i++)
        if ((family->rotated == EACH_FOURTH_PLAIN && i % 4 == 3) ||
            (family->rotated == WINDOWS_ROTATED && !moe_has_window(d, i)))
            d->unrotated_layers[i / 64] |= UINT64_C(1) << i % 64;
}

/* Reads the period of full-attention layers; if the file also has a list with a flag for each layer, it must match. */
static int read_delta_period(struct moe_desc *d, const struct keys *k)
{
    char buf[128];
    int error = get_int(k, "full_attention_interval", 1, 4096, d->delta_period, &d->delta_period);
    const struct moe_value *v = moe_file_find(k->f, key(k, "attention.recurrent_layers", buf));
    if (error || !v)
        return error;
    bool same = v->type == MOE_ARRAY && v->item != MOE_STRING && v->item != MOE_F32 && v->item != MOE_F64 &&
                v->n >= (size_t)d->n_layer;
    for (int i = 0; same && i < d->n_layer; i++)
        same = (moe_value_int(v, (size_t)i) != 0) == moe_is_delta(d, i);
    if (!same)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s must list all layers but every %d-th, as in %s", moe_file_path(k->f),
                       buf, d->delta_period, k->arch);
    return 0;
}

#define MOST_STATE 512 /* largest side of a value head's state matrix */

static int read_delta(struct moe_desc *d, const struct keys *k)
{
    int error, d_inner;
    if (!d->delta_period)
        return 0;
    if ((error = read_delta_period(d, k)) || (error = get_int(k, "ssm.conv_kernel", 2, MOE_MAX_TAP, -1, &d->n_tap)) ||
        (error = get_int(k, "ssm.state_size", 1, MOST_STATE, -1, &d->d_state_key)) ||
        (error = get_int(k, "ssm.group_count", 1, 4096, -1, &d->n_key_head)) ||
        (error = get_int(k, "ssm.time_step_rank", 1, 4096, -1, &d->n_value_head)) ||
        (error = get_int(k, "ssm.inner_size", 1, 4096 * MOST_STATE, -1, &d_inner)))
        return error;
    d->d_state_value = d_inner / d->n_value_head;
    if (d->n_value_head % d->n_key_head || d_inner % d->n_value_head || d->d_state_value < 1 ||
        d->d_state_value > MOST_STATE)
        return kn_fail(KN_ECORRUPT,
                       "%s: %s.ssm.inner_size %d, %d value heads and %d key heads are "
                       "not multiples of each other",
                       moe_file_path(k->f), k->arch, d_inner, d->n_value_head, d->n_key_head);
    d->delta_mixed = moe_file_find_tensor(k->f, "blk.0.ssm_in.weight") != NULL;
    d->delta_ba = moe_file_find_tensor(k->f, "blk.0.ssm_ba.weight") != NULL;
    return 0;
}

static int check_vocab(const struct moe_desc *d, const struct moe_file *f)
{
    const struct moe_value *tokens = moe_file_find(f, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == MOE_ARRAY && tokens->n > (size_t)d->n_vocab)
        return kn_fail(KN_ECORRUPT, "%s: tokenizer.ggml.tokens has %zu tokens, token_embd.weight %d rows",
                       moe_file_path(f), tokens->n, d->n_vocab);
    return 0;
}

/* EAGLE-3 reads features of three layers of its target, and may predict only a part of the target's tokens.  Without the
 * key the layers follow from the target. */
static int read_head(struct moe_desc *d, const struct keys *k)
{
    char buf[128];
    int64_t width = d->d_model;
    const struct moe_tensor *guess = moe_file_find_tensor(k->f, "d2t");
    d->n_guess = d->n_vocab;
    d->reads.last = d->head != MOE_HEAD_EAGLE3;
    if (d->head != MOE_HEAD_EAGLE3)
        return 0;
    const struct moe_value *v = moe_file_find(k->f, key(k, "target_layers", buf)); /* its name in newer files */
    if (!v)
        v = moe_file_find(k->f, key(k, "extract_layers", buf));
    if (v && (v->type != MOE_ARRAY || (v->item != MOE_I32 && v->item != MOE_U32) || v->n != MOE_INNER))
        return kn_fail(KN_ECORRUPT, "%s: %s is not three layers", moe_file_path(k->f), buf);
    for (int i = 0; v && i < MOE_INNER; i++) {
        int64_t layer = moe_value_int(v, (size_t)i);
        if (layer < 0 || layer > INT32_MAX || (i && layer <= d->reads.inner[i - 1]))
            return kn_fail(KN_ECORRUPT, "%s: %s must be layers in ascending order", moe_file_path(k->f), buf);
        d->reads.inner[d->reads.n_inner++] = (int)layer;
    }
    bool norm_each = false, norm_all = false;
    int error = moe_file_int(k->f, key(k, "target_hidden_size", buf), 1, INT32_MAX, &width);
    if (error < 0 || (error = moe_file_bool(k->f, key(k, "norm_before_residual", buf), &d->norm_first)) < 0 ||
        (error = moe_file_bool(k->f, key(k, "norm_output", buf), &d->norm_last)) < 0 ||
        (error = moe_file_bool(k->f, key(k, "fc_norm", buf), &norm_each)) < 0 ||
        (error = moe_file_bool(k->f, key(k, "norm_before_fc", buf), &norm_all)) < 0)
        return error;
    if (norm_each && norm_all)
        return kn_fail(KN_EUNSUPPORTED, "%s: fc_norm and norm_before_fc: one of them is supported",
                       moe_file_path(k->f));
    d->n_inner_norm = norm_each ? MOE_INNER : norm_all;
    if (width != d->d_model)
        return kn_fail(KN_EUNSUPPORTED, "%s: a draft head of width %d for a model of width %lld is not supported",
                       moe_file_path(k->f), d->d_model, (long long)width);
    if (guess && (guess->n_dim != 1 || guess->dim[0] < 1 || guess->dim[0] > (uint64_t)d->n_vocab))
        return kn_fail(KN_ECORRUPT, "%s: d2t is no list of at most %d tokens", moe_file_path(k->f), d->n_vocab);
    if (guess)
        d->n_guess = (int)guess->dim[0];
    return 0;
}

static const struct family *find_family(const struct moe_file *f, struct moe_string arch)
{
    char shown[64], known[512] = "";
    for (int i = 0; moe_family(i); i++) {
        if (moe_string_is(arch, moe_family(i)->arch))
            return moe_family(i);
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", moe_family(i)->arch);
    }
    moe_string_show(arch, shown, sizeof shown);
    const char *lacks = moe_family_lacks(arch);
    if (lacks) {
        kn_fail(KN_EUNSUPPORTED, "%s: architecture \"%s\" is not supported: the program lacks %s", moe_file_path(f),
                shown, lacks);
        return NULL;
    }
    kn_fail(KN_EUNSUPPORTED,
            "%s: architecture \"%s\" is not supported; supported are: %s (mistral and mixtral "
            "files say llama)",
            moe_file_path(f), shown, known);
    return NULL;
}

static void take_family(struct moe_desc *d, const struct family *family)
{
    *d = (struct moe_desc){
        .rope = family->rope,
        .fused_qkv = family->fused_qkv,
        .fused_ffn = family->fused_ffn,
        .qkv_bias = family->qkv_bias,
        .o_bias = family->o_bias,
        .sinks = family->sinks,
        .router_bias = family->router_bias,
        .select_bias = family->select_bias,
        .expert_bias = family->expert_bias,
        .post_norm = family->post_norm,
        .yarn_exact = family->yarn_exact,
        .qk_norm = family->qk_norm,
        .gating = family->gating ? family->gating : MOE_GATING_SOFTMAX,
        .shared = family->shared,
        .out_gate = family->out_gate,
        .delta_period = family->delta_period,
        .delta_tiled = family->delta_tiled,
        .out_norms = family->out_norms,
        .late_qk_norm = family->late_qk_norm,
        .window_sinks = family->window_sinks,
        .v_norm = family->v_norm,
        .activation = family->activation,
        .layer_norm = family->layer_norm,
        .unit_qk_norm = family->unit_qk_norm,
        .scaled_input = family->scaled_input,
        .mixer_gap = family->mixer_gap,
        .query_offset = family->query_offset,
        .query_unrotated = family->query_unrotated,
        .embed_scale = 1,
        .residual_scale = 1,
        .logit_scale = 1,
        .swiglu_alpha = family->swiglu_alpha,
        .swiglu_limit = family->swiglu_limit,
        .norm_topk = family->norm_topk,
        .expert_scale = 1,
        .head = family->head,
    };
    snprintf(d->arch, sizeof d->arch, "%s", family->arch);
}

void moe_desc_family(struct moe_desc *d, const char *arch)
{
    int i = 0;
    while (moe_family(i) && strcmp(moe_family(i)->arch, arch))
        i++;
    kn_assert(moe_family(i));
    take_family(d, moe_family(i));
}

/* True if the first layer without a window has no V. */
static bool lacks_v(const struct moe_desc *d, const struct keys *k)
{
    char name[64];
    int i = 0;
    while (i < d->n_layer && moe_has_window(d, i))
        i++;
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
    return i < d->n_layer && !moe_file_find_tensor(k->f, name);
}

/* Refuses models that have the family's name but parts of their own. */
static int check_near(const struct keys *k)
{
    static const struct {
        const char *arch, *key, *what;
    } near[] = {
        { "gemma4", "embedding_length_per_layer_input", "embeddings for each layer, as in the E2B and E4B models" },
        { "gemma4", "attention.shared_kv_layers", "layers that use the keys and values of earlier ones" },
    };
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        int n = 0, error = strcmp(near[i].arch, k->arch) ? 0 : get_int(k, near[i].key, 0, INT32_MAX, 0, &n);
        if (error)
            return error;
        if (n)
            return kn_fail(KN_EUNSUPPORTED, "%s: %s.%s is %d: the program lacks %s", moe_file_path(k->f), k->arch,
                           near[i].key, n, near[i].what);
    }
    return 0;
}

int moe_desc_read(struct moe_desc *d, const struct moe_file *f)
{
    struct moe_string arch;
    int error = moe_file_string(f, "general.architecture", &arch);
    if (error < 0)
        return error;
    if (error == 0)
        return kn_fail(KN_ECORRUPT, "%s: general.architecture is missing", moe_file_path(f));
    const struct family *family = find_family(f, arch);
    if (!family)
        return KN_EUNSUPPORTED;
    take_family(d, family);
    d->long_rope = family->long_rope && moe_file_find_tensor(f, "rope_factors_long.weight");
    d->fused_qkv = family->fused_qkv && moe_file_find_tensor(f, "blk.0.attn_qkv.weight");
    d->fused_ffn = family->fused_ffn && !moe_file_find_tensor(f, "blk.0.ffn_gate.weight");
    if (family->by_tensors) {
        d->qkv_bias = moe_file_find_tensor(f, "blk.0.attn_q.bias") || moe_file_find_tensor(f, "blk.0.attn_k.bias") ||
                      moe_file_find_tensor(f, "blk.0.attn_v.bias");
        d->o_bias = family->o_bias && moe_file_find_tensor(f, "blk.0.attn_output.bias");
        d->qk_norm = moe_file_find_tensor(f, "blk.0.attn_q_norm.weight") ? family->qk_norm : MOE_QK_NORM_NONE;
    }
    d->out_bias = family->out_bias && moe_file_find_tensor(f, "output.bias");
    struct keys k = { f, family->arch };
    d->layer_scales = moe_file_find_tensor(f, "blk.0.layer_output_scale.weight") != NULL;
    if ((error = read_sizes(d, &k, family)) || (error = read_experts(d, &k, family)) || (error = read_rope(d, &k)) ||
        (error = read_query_scale(d, &k, family)) || (error = read_delta(d, &k)) || (error = read_head(d, &k)) ||
        (error = check_vocab(d, f)))
        return error;
    if (d->long_rope && family->long_rope_attn > 0)
        d->scaling_attn = family->long_rope_attn;
    set_unrotated(d, family);
    d->v_is_k = family->v_is_k && d->d_value == d->d_head && lacks_v(d, &k);
    return check_near(&k);
}
