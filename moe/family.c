/* What a model is, read from its metadata.
 *
 * A family is a line in a table: how its files rotate, which biases and norms it has, how it weighs its
 * experts.  Everything else is a number in the file.  What is not understood is refused with its name:
 * an unknown architecture, an unknown value of a known key, a number out of range. */
#include "moe/internal.h"

#include <stdio.h>
#include <string.h>

struct family {
    const char *arch;
    enum kn_rope rope;
    bool qkv_bias, qk_norm;
    enum { DENSE_ONLY, MAY_HAVE_EXPERTS, MUST_HAVE_EXPERTS } experts;
    bool head;
};

static const struct family families[] = {
    { "llama",    KN_ROPE_PAIRS,  false, false, MAY_HAVE_EXPERTS, false },  /* llama, mistral, mixtral */
    { "qwen2",    KN_ROPE_HALVES, true,  false, DENSE_ONLY, false },
    { "qwen3",    KN_ROPE_HALVES, false, true,  DENSE_ONLY, false },
    { "qwen3moe", KN_ROPE_HALVES, false, true,  MUST_HAVE_EXPERTS, false },
    { "eagle",    KN_ROPE_HALVES, false, true,  DENSE_ONLY, true },
};

/* ---- keys: "<arch>.<name>" ------------------------------------------------------------------------ */

struct keys { const struct moe_file *f; const char *arch; };

static const char *key(const struct keys *k, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s.%s", k->arch, name);
    return buf;
}

/* Absent is fine when there is a fallback (>= 0). */
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

static int get_float(const struct keys *k, const char *name, double least, double most, double fallback,
                     float *out)
{
    char buf[128];
    double v = fallback;
    int found = moe_file_float(k->f, key(k, name, buf), &v);
    if (found < 0)
        return found;
    if (!(v >= least && v <= most))
        return kn_fail(KN_ECORRUPT, "%s: %s is %s", moe_file_path(k->f), buf,
                       found ? "out of range" : "missing");
    *out = (float)v;
    return 0;
}

/* The i-th of a number that may be given once for all layers or as an array by layer; families here have
 * the same in every layer. */
static int get_int_uniform(const struct keys *k, const char *name, int n, int least, int most, int fallback,
                           int *out)
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
            return kn_fail(KN_EUNSUPPORTED, "%s: %s differs from layer to layer, which no supported "
                           "family has", moe_file_path(k->f), buf);
    if (first < least || first > most)
        return kn_fail(KN_ECORRUPT, "%s: %s is out of range", moe_file_path(k->f), buf);
    *out = (int)first;
    return 0;
}

/* ---- sections of the description -------------------------------------------------------------------- */

/* A head has no embedding of its own to count the tokens of. */
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

static int read_sizes(struct moe_desc *d, const struct keys *k)
{
    int error = 0;
    if ((error = read_n_vocab(d, k)) ||
        (error = get_int(k, "block_count", 1, 4096, -1, &d->n_layer)) ||
        (error = get_int(k, "embedding_length", 1, 1 << 20, -1, &d->d_model)) ||
        (error = get_int(k, "context_length", 1, INT32_MAX, 2048, &d->n_ctx_train)) ||
        (error = get_int_uniform(k, "attention.head_count", d->n_layer, 1, 4096, -1, &d->n_head)) ||
        (error = get_int_uniform(k, "attention.head_count_kv", d->n_layer, 1, 4096, d->n_head, &d->n_kv)) ||
        (error = get_float(k, "attention.layer_norm_rms_epsilon", 0, 1, -1, &d->eps)))
        return error;
    int d_head = d->d_model % d->n_head ? -1 : d->d_model / d->n_head, d_value;
    if ((error = get_int(k, "attention.key_length", 1, KN_MAX_D_HEAD, d_head, &d->d_head)) ||
        (error = get_int(k, "attention.value_length", 1, KN_MAX_D_HEAD, d->d_head, &d_value)) ||
        (error = get_int(k, "rope.dimension_count", 2, d->d_head, d->d_head, &d->n_rot)))
        return error;
    if (d->d_head > KN_MAX_D_HEAD)
        return kn_fail(KN_EUNSUPPORTED, "%s: heads of %d values; at most %d are supported",
                       moe_file_path(k->f), d->d_head, KN_MAX_D_HEAD);
    if (d_value != d->d_head)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.attention.value_length %d differs from key_length %d",
                       moe_file_path(k->f), k->arch, d_value, d->d_head);
    if (d->n_rot % 2)
        return kn_fail(KN_ECORRUPT, "%s: %s.rope.dimension_count is odd", moe_file_path(k->f), k->arch);
    if (d->n_head % d->n_kv || d->n_head / d->n_kv > KN_MAX_Q)
        return kn_fail(KN_ECORRUPT, "%s: %d query heads do not share %d KV heads evenly (at most %d each)",
                       moe_file_path(k->f), d->n_head, d->n_kv, KN_MAX_Q);
    return 0;
}

static int read_experts(struct moe_desc *d, const struct keys *k, const struct family *family)
{
    int error, gating, shared;
    if ((error = get_int(k, "expert_count", 0, 1 << 16, 0, &d->n_expert)))
        return error;
    if (d->n_expert == 0 && family->experts == MUST_HAVE_EXPERTS)
        return kn_fail(KN_ECORRUPT, "%s: %s.expert_count is missing", moe_file_path(k->f), k->arch);
    if (d->n_expert > 0 && family->experts == DENSE_ONLY)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_count: %s has no experts", moe_file_path(k->f),
                       k->arch, k->arch);
    if (d->n_expert == 0 || family->experts == MAY_HAVE_EXPERTS) {
        if ((error = get_int_uniform(k, "feed_forward_length", d->n_layer, 1, 1 << 24, -1, &d->d_ff)))
            return error;
    }
    if (d->n_expert == 0)
        return 0;
    char buf[128];
    d->norm_topk = true;
    d->expert_scale = 1;
    int fallback = d->d_ff ? d->d_ff : -1;
    if ((error = get_int(k, "expert_used_count", 1, d->n_expert, -1, &d->n_used)) ||
        (error = get_int(k, "expert_feed_forward_length", 1, 1 << 24, fallback, &d->d_expert)) ||
        (error = get_int(k, "expert_gating_func", 0, INT32_MAX, 1, &gating)) ||
        (error = get_int(k, "expert_shared_count", 0, INT32_MAX, 0, &shared)) ||
        (error = get_float(k, "expert_weights_scale", 0, 1e6, 1, &d->expert_scale)))
        return error;
    if ((error = moe_file_bool(k->f, key(k, "expert_weights_norm", buf), &d->norm_topk)) < 0)
        return error;
    if (gating > 1)                             /* 0: not said; 1: softmax */
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_gating_func %d; softmax (1) is what %s has",
                       moe_file_path(k->f), k->arch, gating, k->arch);
    if (shared)
        return kn_fail(KN_EUNSUPPORTED, "%s: %s.expert_shared_count %d; %s has no shared experts",
                       moe_file_path(k->f), k->arch, shared, k->arch);
    if (d->expert_scale == 0)                   /* written by some converters for "none" */
        d->expert_scale = 1;
    d->d_ff = 0;
    return 0;
}

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
    else if (!moe_string_is(type, "none")) {
        char shown[64];
        moe_string_show(type, shown, sizeof shown);
        return kn_fail(KN_EUNSUPPORTED, "%s: %s is \"%s\"; none, linear and yarn are supported",
                       moe_file_path(k->f), buf, shown);
    }
    float attn = 1;
    if ((error = get_float(k, "rope.freq_base", 1e-3, 1e12, 10000, &d->rope_base)) ||
        (error = get_float(k, "rope.scaling.factor", 1e-6, 1e6, 1, &d->scaling_factor)) ||
        (error = get_int(k, "rope.scaling.original_context_length", 1, INT32_MAX, d->n_ctx_train,
                         &d->scaling_ctx)) ||
        (error = get_float(k, "rope.scaling.yarn_beta_fast", 0, 1e6, 32, &d->beta_fast)) ||
        (error = get_float(k, "rope.scaling.yarn_beta_slow", 0, 1e6, 1, &d->beta_slow)) ||
        (error = get_float(k, "rope.scaling.attn_factor", 1e-6, 1e6, 1, &attn)))
        return error;
    d->scaling_attn = attn;
    if (d->scaling == MOE_SCALING_YARN && d->scaling_factor > 1)
        d->scaling_attn *= (float)(1 + 0.1 * kn_log(d->scaling_factor));
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

int moe_desc_read(struct moe_desc *d, const struct moe_file *f)
{
    struct moe_string arch;
    int error = moe_file_string(f, "general.architecture", &arch);
    if (error < 0)
        return error;
    if (error == 0)
        return kn_fail(KN_ECORRUPT, "%s: general.architecture is missing", moe_file_path(f));
    *d = (struct moe_desc){ .scaling = MOE_SCALING_NONE };
    const struct family *family = NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (moe_string_is(arch, families[i].arch))
            family = &families[i];
    if (!family) {
        char shown[64];
        moe_string_show(arch, shown, sizeof shown);
        return kn_fail(KN_EUNSUPPORTED, "%s: architecture \"%s\" is not supported; llama (and mistral, "
                       "mixtral), qwen2, qwen3 and qwen3moe are", moe_file_path(f), shown);
    }
    snprintf(d->arch, sizeof d->arch, "%s", family->arch);
    d->rope = family->rope;
    d->qkv_bias = family->qkv_bias;
    d->qk_norm = family->qk_norm;
    d->head = family->head;
    struct keys k = { f, family->arch };
    if ((error = read_sizes(d, &k)) || (error = read_experts(d, &k, family)) ||
        (error = read_rope(d, &k)) || (error = check_vocab(d, f)))
        return error;
    return 0;
}

/* ---- rotation ---------------------------------------------------------------------------------------- */

/* The pair whose wave turns `turns` times over the original context (yarn's correction dimension). */
static double yarn_pair(const struct moe_desc *d, double turns)
{
    const double two_pi = 6.283185307179586;
    return d->n_rot * kn_log(d->scaling_ctx / (turns * two_pi)) / (2 * kn_log(d->rope_base));
}

static double clamp_floor(double x, double most)
{
    return x <= 0 ? 0 : x >= most ? most : (double)(int64_t)x;
}

static double clamp_ceil(double x, double most)
{
    double down = clamp_floor(x, most);
    return down < x && down < most ? down + 1 : down;
}

int moe_rope_freq(const struct moe_desc *d, const float *extra, float *freq)
{
    double low = 0, high = 0;
    if (d->scaling == MOE_SCALING_YARN) {
        if (!(d->beta_fast > 0 && d->beta_slow > 0 && d->rope_base > 1))
            return kn_fail(KN_ECORRUPT, "the yarn scaling's betas or base are out of range");
        low = clamp_floor(yarn_pair(d, d->beta_fast), d->n_rot - 1);
        high = clamp_ceil(yarn_pair(d, d->beta_slow), d->n_rot - 1);
        if (high - low < 0.001)
            high = low + 0.001;
    }
    for (int i = 0; i < d->n_rot / 2; i++) {
        double f = 1.0 / (float)kn_pow(d->rope_base, 2.0 * i / d->n_rot);
        if (d->scaling == MOE_SCALING_LINEAR)
            f = (float)f / d->scaling_factor;
        if (d->scaling == MOE_SCALING_YARN) {
            double ramp = (i - low) / (high - low);
            double stretched = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / d->scaling_factor * stretched + f * (1 - stretched);
        }
        freq[i] = extra ? (float)f / extra[i] : (float)f;
    }
    return 0;
}
