/* moe/files/hf_config.c - converts config.json to the metadata of a GGUF file of the same model.
 *
 * It reads d->fields, which has only the fields that the family's configuration class knows, with their defaults
 * (hf_fields.c).  Most conversions are a table of key pairs.  Settings that change the mathematics but have no GGUF key
 * in a supported family, like another activation or scoring function, are checked and refused by name.  Other unknown
 * keys are ignored, as in a GGUF file. */
#include "moe/files/hf_folder.h"

#include <math.h>
#include <string.h>

#define MOE_MAX_STEP 4096 /* of interleave_moe_layer_step */

static const char config_json[] = "config.json";

/* ---- reading: the first failure is kept in d->err ----------------------------------------------- */

static void wrong(struct moe_folder *d, const char *key, const char *what)
{
    if (!d->err)
        d->err = kn_fail(KN_ECORRUPT, "%s: %s: %s: '%s' %s", d->f->name, kn_error_text(KN_ECORRUPT), config_json, key,
                         what);
}

static int unsupported(struct moe_folder *d, const char *key, const char *what)
{
    if (!d->err)
        d->err = kn_fail(KN_EUNSUPPORTED, "%s: %s: '%s' %s, which is not supported", d->f->name, config_json, key,
                         what);
    return d->err;
}

/* NULL: the key is absent or its value is null; both have the same meaning. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

static bool get_int(struct moe_folder *d, const json_t *object, const char *key, int64_t most, int64_t *out)
{
    const json_t *v = get(object, key);
    if (!v)
        return false;
    int64_t x = json_integer_value(v);
    if (!json_is_integer(v) || x < 0 || x > most) {
        wrong(d, key, "is no whole number, or out of range");
        return false;
    }
    *out = x;
    return true;
}

static bool get_number(struct moe_folder *d, const json_t *object, const char *key, double *out)
{
    const json_t *v = get(object, key);
    if (v && !json_is_number(v))
        wrong(d, key, "is no number");
    if (!json_is_number(v))
        return false;
    *out = json_number_value(v);
    return true;
}

static bool get_bool(struct moe_folder *d, const json_t *object, const char *key, bool fallback)
{
    const json_t *v = get(object, key);
    if (v && !json_is_boolean(v))
        wrong(d, key, "is neither true nor false");
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static const char *get_string(struct moe_folder *d, const json_t *object, const char *key)
{
    const json_t *v = get(object, key);
    if (v && !json_is_string(v))
        wrong(d, key, "is no string");
    return json_string_value(v);
}

/* ---- "<arch>.<name>" ---------------------------------------------------------------------------- */

static const char *full(const struct moe_folder *d, const char *name, char key[128])
{
    snprintf(key, 128, "%s.%s", d->family->arch, name);
    return key;
}

static void put_u32(struct moe_folder *d, const char *name, int64_t x)
{
    char key[128];
    moe_put_u32(d, full(d, name, key), (uint32_t)x);
}

static void put_f32(struct moe_folder *d, const char *name, double x)
{
    char key[128];
    moe_put_f32(d, full(d, name, key), x);
}

static void put_string(struct moe_folder *d, const char *name, const char *s)
{
    char key[128];
    moe_put_string(d, full(d, name, key), s, strlen(s));
}

/* ---- keys converted by table -------------------------------------------------------------------- */

static const struct {
    const char *from, *to;
} ints[] = {
    { "hidden_size", "embedding_length" },
    { "num_attention_heads", "attention.head_count" },
    { "num_key_value_heads", "attention.head_count_kv" },
    { "intermediate_size", "feed_forward_length" },
};

static const struct {
    const char *from, *to;
} expert_ints[] = {
    { "num_experts_per_tok", "expert_used_count" },
    { "moe_intermediate_size", "expert_feed_forward_length" },
    { "shared_expert_intermediate_size", "expert_shared_feed_forward_length" },
    { "n_shared_experts", "expert_shared_count" },
    { "moe_k", "expert_used_count" },
    { "moe_num_shared_experts", "expert_shared_count" },
    { "num_shared_experts", "expert_shared_count" },
    { "shared_intermediate_size", "expert_shared_feed_forward_length" },
    { "top_k_experts", "expert_used_count" },
};

static const struct {
    const char *from, *to;
} floats[] = {
    { "rms_norm_eps", "attention.layer_norm_rms_epsilon" },
    { "clip_qkv", "attention.clamp_kqv" },
    { "routed_scaling_factor", "expert_weights_scale" },
    { "router_scaling_factor", "expert_weights_scale" },
    { "attention_multiplier", "attention.scale" },
    { "embedding_multiplier", "embedding_scale" },
    { "residual_multiplier", "residual_scale" },
    { "logits_scaling", "logit_scale" },
    { "attention_value_scale", "attention.value_scale" },
};
#define LEN(a) (sizeof(a) / sizeof *(a))

static void read_tables(struct moe_folder *d)
{
    int64_t x;
    double y;
    for (size_t i = 0; i < LEN(ints); i++)
        if (get_int(d, d->fields, ints[i].from, INT32_MAX, &x) &&
            !(d->family->window_heads && !strcmp(ints[i].to, "attention.head_count_kv")) &&
            !(d->family->chunks && !strcmp(ints[i].from, "intermediate_size"))) /* llama4's word for that of experts */
            put_u32(d, ints[i].to, x);
    for (size_t i = 0; d->family->experts && i < LEN(expert_ints); i++)
        if (get_int(d, d->fields, expert_ints[i].from, INT32_MAX, &x))
            put_u32(d, expert_ints[i].to, x);
    for (size_t i = 0; i < LEN(floats); i++)
        if (get_number(d, d->fields, floats[i].from, &y))
            put_f32(d, floats[i].to, y);
}

/* The number of experts has several names.  Each class knows two of them at most. */
static int64_t count_experts(struct moe_folder *d)
{
    static const char *const count[] = { "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts" };
    int64_t n = 0;
    for (size_t i = 0; i < LEN(count); i++)
        if (get_int(d, d->config, count[i], 1 << 16, &n))
            return n;
    for (size_t i = 0; i < LEN(count); i++)
        if (get_int(d, d->fields, count[i], 1 << 16, &n))
            return n;
    return 0;
}

/* deepseek_v2 uses groups of experts only if topk_method says so; other families use them if there are several. */
static void read_groups(struct moe_folder *d)
{
    const char *method = get_string(d, d->fields, "topk_method");
    int64_t n_group = 1, n_used = 1;
    if (method && strcmp(method, "greedy") && strcmp(method, "group_limited_greedy"))
        unsupported(d, "topk_method", "is neither greedy nor group_limited_greedy");
    if (!json_object_get(d->fields, "n_group"))
        return;
    if (!method || strcmp(method, "greedy")) {
        get_int(d, d->fields, "n_group", INT32_MAX, &n_group);
        get_int(d, d->fields, "topk_group", INT32_MAX, &n_used);
    }
    put_u32(d, "expert_group_count", n_group);
    put_u32(d, "expert_group_used_count", n_used);
}

/* Refuses settings of layers without experts in between, and another scoring function.  moe_layer_freq and scoring_func
 * are fields of published classes, not of transformers. */
static void check_experts(struct moe_folder *d)
{
    int64_t step = 1;
    const char *scoring = get_string(d, d->config, "scoring_func");
    if (scoring && d->family->sigmoid && !strcmp(scoring, "noaux_tc")) /* dots1's word for sigmoid with a bias */
        scoring = "sigmoid";
    if (scoring && strcmp(scoring, d->family->sigmoid ? "sigmoid" : "softmax"))
        unsupported(d, "scoring_func", "is not the function of this family");
    get_int(d, d->fields, "decoder_sparse_step", INT32_MAX, &step);
    if (step != 1)
        unsupported(d, "decoder_sparse_step", "is not 1");
    if (json_array_size(get(d->fields, "mlp_only_layers")))
        unsupported(d, "mlp_only_layers", "lists layers");
    step = 1;
    if (!json_object_get(d->fields, "mlp_layer_types")) /* of mimo_v2_flash a list, which transformers does not read */
        get_int(d, d->config, "moe_layer_freq", INT32_MAX, &step);
    if (step != 1)
        unsupported(d, "moe_layer_freq", "is not 1");
    if (json_object_get(d->fields, "enable_moe_block") &&
        !get_bool(d, d->fields, "enable_moe_block", false) != !d->n_expert)
        unsupported(d, "enable_moe_block", "contradicts num_experts");
}

/* Converts the number of dense layers before those with experts: first_k_dense_replace, moe_layer_start_index of
 * ernie4_5_moe, or the list mlp_layer_types.  Dense layers behind are refused. */
static void read_dense_layers(struct moe_folder *d)
{
    const json_t *types = get(d->fields, "mlp_layer_types"), *end = get(d->fields, "moe_layer_end_index");
    int64_t step = 1, n_lead = 0;
    bool said = get_int(d, d->fields, "first_k_dense_replace", INT32_MAX, &n_lead) ||
                get_int(d, d->fields, "moe_layer_start_index", INT32_MAX, &n_lead);
    get_int(d, d->fields, "moe_layer_interval", INT32_MAX, &step);
    if (step != 1)
        unsupported(d, "moe_layer_interval", "is not 1");
    if (end && json_integer_value(end) != -1 && json_integer_value(end) < d->n_layer - 1)
        unsupported(d, "moe_layer_end_index", "is not the last layer");
    if (!said && json_object_get(d->fields, "mlp_layer_types"))
        n_lead = said = 1; /* hy_v3 */
    if (types && json_array_size(types) != (size_t)d->n_layer)
        wrong(d, "mlp_layer_types", "does not have a type for each layer");
    if (types)
        n_lead = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool dense = type && !strcmp(type, "dense");
        if (!dense && (!type || strcmp(type, "sparse")))
            unsupported(d, "mlp_layer_types", "has a type that is neither dense nor sparse");
        if (dense && n_lead < (int64_t)i)
            unsupported(d, "mlp_layer_types", "has dense layers behind one with experts");
        n_lead += dense;
    }
    if (said || types)
        put_u32(d, "leading_dense_block_count", n_lead);
}

/* hunyuan_v1_moe: the number of experts of a row, given once or for each layer; and moe_intermediate_size, which
 * transformers does not read: it must be the width that transformers takes. */
static void read_each_layer(struct moe_folder *d)
{
    static const struct {
        const char *from, *to;
    } lists[] = { { "moe_topk", "expert_used_count" }, { "moe_intermediate_size", NULL } };
    int64_t d_ff = 0;
    if (!json_object_get(d->fields, "moe_topk"))
        return;
    get_int(d, d->fields, "intermediate_size", INT32_MAX, &d_ff);
    for (size_t k = 0; k < LEN(lists); k++) {
        const json_t *v = get(lists[k].to ? d->fields : d->config, lists[k].from);
        json_int_t first = json_integer_value(json_is_array(v) ? json_array_get(v, 0) : v);
        for (size_t i = 1; i < json_array_size(v); i++)
            if (json_integer_value(json_array_get(v, i)) != first)
                unsupported(d, lists[k].from, "differs from layer to layer");
        if (first < 0 || first > INT32_MAX || (v && !first))
            wrong(d, lists[k].from, "is no whole number, or out of range");
        if (lists[k].to)
            put_u32(d, lists[k].to, first);
        else if (v && first != d_ff)
            unsupported(d, lists[k].from, "is not intermediate_size");
    }
}

static void read_experts(struct moe_folder *d)
{
    const json_t *c = d->fields;
    int64_t n = 0;
    double scale = 1;
    char key[128];
    if (!d->family->experts)
        return;
    d->n_expert = (int)count_experts(d);
    put_u32(d, "expert_count", d->n_expert);
    if (d->family->expert_is_ffn && get_int(d, c, "intermediate_size", INT32_MAX, &n))
        put_u32(d, "expert_feed_forward_length", n);
    if (d->family->shared_is_ffn && n)
        put_u32(d, "expert_shared_feed_forward_length", n);
    if (json_object_get(c, "norm_topk_prob")) /* null counts as false */
        moe_put_bool(d, full(d, "expert_weights_norm", key), get_bool(d, c, "norm_topk_prob", false));
    else if (d->family->latent) /* deepseek_v2 never normalises */
        moe_put_bool(d, full(d, "expert_weights_norm", key), false);
    else if (d->family->sigmoid)
        moe_put_bool(d, full(d, "expert_weights_norm", key), true);
    if (d->family->sigmoid || d->family->latent)
        put_u32(d, "expert_gating_func", d->family->sigmoid ? MOE_GATING_SIGMOID : MOE_GATING_SOFTMAX);
    if (get_number(d, c, "routed_scaling_factor", &scale) && scale == 0) /* in GGUF, 0 is no factor */
        unsupported(d, "routed_scaling_factor", "is 0");
    if (!get_bool(d, d->config, "route_norm", true))
        unsupported(d, "route_norm", "is false");
    read_groups(d);
    read_dense_layers(d);
    read_each_layer(d);
    check_experts(d);
}

/* ---- context and heads -------------------------------------------------------------------------- */

/* True if this layer has a sliding window, as the family's class derives it from the configuration. */
bool moe_hf_has_window(struct moe_folder *d, int layer, int64_t first, int64_t period)
{
    const json_t *types = get(d->fields, "layer_types");
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    if (types)
        return type && !strcmp(type, "sliding_attention");
    switch (d->family->windows) {
    case WINDOW_FROM:
        return layer >= first;
    case WINDOW_EVEN_BEFORE:
        return layer % 2 == 0 && layer < first;
    case WINDOW_EVEN:
        return layer % 2 == 0;
    case WINDOW_PERIOD:
        return !period || (layer + 1) % period;
    case WINDOW_NOT_FIRST:
        return layer && (layer + 1) % 6;
    default:
        return true;
    }
}

static void check_layer_types(struct moe_folder *d, const json_t *types, bool has)
{
    if (types && json_array_size(types) != (size_t)d->n_layer)
        wrong(d, "layer_types", "does not have a type for each layer");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool slides = type && !strcmp(type, "sliding_attention");
        if (!slides && (!type || strcmp(type, "full_attention")))
            unsupported(d, "layer_types", "has a type that is neither sliding_attention nor full_attention");
        if (slides && !has)
            unsupported(d, "layer_types", "has sliding_attention, but sliding_window or use_sliding_window is not set");
    }
}

/* Converts the sliding window, and the list of layers that have it unless these are the family's usual ones. */
static void read_window(struct moe_folder *d)
{
    int64_t window = 0, first = INT32_MAX, period = 0;
    enum moe_hf_windows kind = d->family->windows;
    int32_t *on = NULL;
    int n = 0, n_usual = 0;
    char key[128];
    if (kind == WINDOW_NONE || d->err)
        return;
    bool has = get_int(d, d->fields, "sliding_window", INT32_MAX, &window) &&
               get_bool(d, d->fields, "use_sliding_window", !json_object_get(d->fields, "use_sliding_window"));
    if (get_int(d, d->fields, "sliding_window_size", INT32_MAX - 1, &window)) /* the row's own position comes on top */
        window++;
    check_layer_types(d, get(d->fields, "layer_types"), has);
    get_int(d, d->fields, "max_window_layers", INT32_MAX, &first);
    if (!get(d->fields, "layer_types"))
        get_int(d, d->fields, "sliding_window_pattern", INT32_MAX, &period);
    if (d->err || !has || !d->n_layer)
        return;
    if (window == 0) {
        unsupported(d, "sliding_window", "is 0");
        return;
    }
    if (!(on = kn_calloc((size_t)d->n_layer, sizeof *on))) {
        d->err = kn_fail(KN_ENOMEM, "%s: no memory for the windows of %d layers", d->f->name, d->n_layer);
        return;
    }
    for (int i = 0; i < d->n_layer; i++) {
        on[i] = moe_hf_has_window(d, i, first, period);
        n += on[i];
        n_usual += on[i] ==
                   (kind == WINDOW_EVEN ? i % 2 == 0 : kind != WINDOW_PERIOD || (i + 1) % d->family->window_period);
    }
    bool tell = n || kind == WINDOW_EVEN || kind == WINDOW_PERIOD; /* files of these families always have the key */
    if (tell)
        put_u32(d, "attention.sliding_window", window);
    if (tell && n_usual < d->n_layer)
        moe_put_array(d, full(d, "attention.sliding_window_pattern", key), MOE_I32, on, (size_t)d->n_layer);
    kn_free(on);
}

static void read_context(struct moe_folder *d)
{
    int64_t n_ctx = 0;
    if (get_int(d, d->fields, "max_position_embeddings", INT32_MAX, &n_ctx))
        put_u32(d, "context_length", n_ctx);
    read_window(d);
}

/* Converts the sizes of MLA.  The width of a head is the sum of its unrotated and rotated parts. */
static void read_latent(struct moe_folder *d)
{
    int64_t d_latent = 0, d_query = 0, n_plain = 0, n_rot = 0, d_value = 0;
    get_int(d, d->fields, "kv_lora_rank", INT32_MAX, &d_latent);
    get_int(d, d->fields, "q_lora_rank", INT32_MAX, &d_query);
    get_int(d, d->fields, "qk_nope_head_dim", KN_MAX_D_HEAD, &n_plain);
    get_int(d, d->fields, "qk_rope_head_dim", KN_MAX_D_HEAD, &n_rot);
    get_int(d, d->fields, "v_head_dim", KN_MAX_D_HEAD, &d_value);
    put_u32(d, "attention.kv_lora_rank", d_latent);
    put_u32(d, "attention.q_lora_rank", d_query);
    put_u32(d, "attention.key_length", n_plain + n_rot);
    put_u32(d, "attention.value_length", d_value);
    put_u32(d, "rope.dimension_count", n_rot);
    d->n_rot = (int)n_rot;
    if (json_object_get(d->fields, "rope_interleave") && !get_bool(d, d->fields, "rope_interleave", false))
        unsupported(d, "rope_interleave", "is not true");
}

/* The part of each head that is rotated.  Only families with the field partial_rotary_factor rotate less than all. */
int64_t moe_hf_count_rotated(struct moe_folder *d, const json_t *rope, int64_t d_head)
{
    double part = 1;
    int64_t n_rot;
    if (!json_object_get(d->fields, "partial_rotary_factor"))
        return d_head;
    if (!get_number(d, rope, "partial_rotary_factor", &part) &&
        !get_number(d, d->fields, "partial_rotary_factor", &part) &&
        get_int(d, d->fields, "rotary_dim", INT32_MAX, &n_rot))
        return n_rot;
    return part > 0 && part <= 1 ? (int64_t)((double)d_head * part) : 0;
}

static void read_heads(struct moe_folder *d, const json_t *rope)
{
    int64_t d_model = 0, n_head = 0, d_head = 0;
    get_int(d, d->fields, "hidden_size", INT32_MAX, &d_model);
    get_int(d, d->fields, "num_attention_heads", INT32_MAX, &n_head);
    if (!get_int(d, d->fields, "head_dim", KN_MAX_D_HEAD, &d_head) && n_head)
        d_head = d_model / n_head;
    if (d_head > KN_MAX_D_HEAD)
        wrong(d, "hidden_size", "gives heads that are too large");
    d->d_head = (int)d_head;
    d->n_rot = (int)moe_hf_count_rotated(d, rope, d_head);
    put_u32(d, "attention.key_length", d_head);
    put_u32(d, "attention.value_length", d_head);
    put_u32(d, "rope.dimension_count", d->n_rot);
}

float *moe_hf_add_divisors(struct moe_folder *d, const char *name)
{
    size_t n = (size_t)d->n_rot / 2;
    float *divisor = moe_keep(d->f, n * sizeof *divisor);
    struct moe_layout *layout = divisor ? moe_keep(d->f, sizeof *layout) : NULL;
    if (!layout) {
        d->err = KN_ENOMEM;
        return NULL;
    }
    *layout = (struct moe_layout){ .data = divisor };
    struct moe_tensor t = { .name = { name, strlen(name) },
                            .n_dim = 1,
                            .dim = { n, 1, 1, 1 },
                            .bytes = n * sizeof *divisor,
                            .layout = layout };
    d->err = moe_add_tensor(d->f, &t);
    return d->err ? NULL : divisor;
}

/* llama4: attention in chunks and the growth of queries.  The layers with a rotation, those with chunks and those with
 * experts must be the ones that GGUF files have, since these have no lists of them; and so must the norms of Q and K. */
static void read_chunks(struct moe_folder *d)
{
    const json_t *types = get(d->fields, "layer_types"), *layers = get(d->fields, "moe_layers");
    int64_t chunk = 0, period = 0, step = 1, d_ff = 0;
    double growth = 0;
    if (!d->family->chunks)
        return;
    if (!get_int(d, d->fields, "attention_chunk_size", INT32_MAX, &chunk) || !chunk)
        unsupported(d, "attention_chunk_size", "is not set");
    put_u32(d, "attention.sliding_window", chunk);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, i % 4 == 3 ? "full_attention" : "chunked_attention"))
            unsupported(d, "layer_types",
                        "is not full_attention in each fourth layer and chunked_attention in the others");
    }
    get_number(d, d->fields, "attn_scale", &growth);
    get_int(d, d->fields, "floor_scale", INT32_MAX, &period);
    if (json_is_boolean(get(d->fields, "attn_temperature_tuning")) &&
        !get_bool(d, d->fields, "attn_temperature_tuning", true))
        growth = 0;
    put_f32(d, "attention.temperature_scale", growth);
    put_u32(d, "attention.temperature_length", period);
    if (get_bool(d, d->fields, "use_qk_norm", true) != (d->n_expert != 128))
        unsupported(d, "use_qk_norm", d->n_expert == 128 ? "is true with 128 experts" : "is false without 128 experts");
    if (get_int(d, d->fields, "intermediate_size_mlp", INT32_MAX, &d_ff))
        put_u32(d, "feed_forward_length", d_ff);
    get_int(d, d->fields, "interleave_moe_layer_step", MOE_MAX_STEP, &step);
    put_u32(d, "interleave_moe_layer_step", step);
    if (layers && (!step || json_array_size(layers) != (size_t)(d->n_layer / step)))
        unsupported(d, "moe_layers", "is not each interleave_moe_layer_step-th layer");
    for (size_t i = 0; i < json_array_size(layers); i++)
        if (json_integer_value(json_array_get(layers, i)) != (json_int_t)(i + 1) * step - 1)
            unsupported(d, "moe_layers", "is not each interleave_moe_layer_step-th layer");
}

/* smollm3 and llama4: every fourth layer has no rotation; files have no key for that. */
static void check_rotated(struct moe_folder *d)
{
    const json_t *flags = get(d->fields, "no_rope_layers"); /* 0: the layer has no rotation */
    int64_t interval = 4;
    if (!json_object_get(d->fields, "no_rope_layer_interval"))
        return;
    get_int(d, d->fields, "no_rope_layer_interval", INT32_MAX, &interval);
    if (!flags && interval != 4)
        unsupported(d, "no_rope_layer_interval", "is not 4");
    for (size_t i = 0; json_array_size(flags) && i < (size_t)d->n_layer; i++)
        if ((json_integer_value(json_array_get(flags, i)) != 0) != (i % 4 != 3))
            unsupported(d, "no_rope_layers", "are not each fourth");
    if (get_bool(d, d->fields, "use_sliding_window", false) && get(d->fields, "sliding_window"))
        unsupported(d, "use_sliding_window", "is true");
}

/* Attention biases and Q and K norms that the configuration switches off. */
static void read_switches(struct moe_folder *d)
{
    const json_t *c = d->fields;
    d->no_bias = (json_object_get(c, "attention_bias") && !get_bool(d, c, "attention_bias", false)) ||
                 (json_object_get(c, "qkv_bias") && !get_bool(d, c, "qkv_bias", false));
    d->no_qk_norm = json_object_get(c, "use_qk_norm") && !get_bool(d, c, "use_qk_norm", false);
    if (d->no_bias && !strcmp(d->family->arch, "gpt-oss"))
        unsupported(d, "attention_bias", "is false");
}

/* ---- rotation ----------------------------------------------------------------------------------- */

/* The context of the first training, from which YaRN and Llama 3 scaling start. */
static int64_t original_context(struct moe_folder *d, const json_t *rope)
{
    static const char name[] = "original_max_position_embeddings";
    int64_t n = 0;
    if (!get_int(d, d->fields, name, INT32_MAX, &n) && !get_int(d, rope, name, INT32_MAX, &n))
        get_int(d, d->fields, "max_position_embeddings", INT32_MAX, &n);
    return n;
}

static double mscale_of(double factor, double mscale) { return factor > 1 ? 1 + 0.1 * mscale * kn_log(factor) : 1; }

/* YaRN multiplies cos and sin by attention_factor.  If that is not given, it is the quotient of two scales, or if one of
 * mscale and mscale_all_dim is missing, the usual scale.  In MLA models, mscale_all_dim also scales the scores.
 * moe/model/families.c has the same usual scale, or 1 if there is yarn_log_multiplier: attn_factor is relative
 * to that. */
static void read_yarn(struct moe_folder *d, const json_t *rope, double factor)
{
    double attention, one = 0, all = 0, x, usual = mscale_of(factor, 1);
    bool exact = !strcmp(d->family->arch, "gpt-oss");
    int64_t n = original_context(d, rope);
    if (n)
        put_u32(d, "rope.scaling.original_context_length", n);
    if (get_number(d, rope, "beta_fast", &x) && x != 0)
        put_f32(d, "rope.scaling.yarn_beta_fast", x);
    if (get_number(d, rope, "beta_slow", &x) && x != 0)
        put_f32(d, "rope.scaling.yarn_beta_slow", x);
    get_number(d, rope, "mscale", &one);
    get_number(d, rope, "mscale_all_dim", &all);
    if (!get_number(d, rope, "attention_factor", &attention))
        attention = one != 0 && all != 0 ? mscale_of(factor, one) / mscale_of(factor, all) : usual;
    if (d->family->latent && all > 0 && factor > 1) {
        put_f32(d, "rope.scaling.yarn_log_multiplier", 0.1 * all);
        usual = 1;
    }
    if (d->family->query_scale && !d->family->latent && all > 0) {
        put_f32(d, "rope.scaling.yarn_log_multiplier", all);
        usual /= mscale_of(factor, all);
    }
    if (attention != usual)
        put_f32(d, "rope.scaling.attn_factor", attention / usual);
    if (d->family->query_scale && get_number(d, rope, "llama_4_scaling_beta", &x))
        put_f32(d, "attention.temperature_scale", x);
    if (get_bool(d, rope, "truncate", true) == exact)
        unsupported(d, "truncate", exact ? "is true" : "is false");
}

/* Llama 3 scaling: short wavelengths are unchanged, long wavelengths are multiplied by factor, for wavelengths between
 * the divisor of the frequency is interpolated.  As in GGUF, the divisors become the F32 vector rope_freqs.weight. */
static void read_llama3(struct moe_folder *d, const json_t *rope, double base, double factor)
{
    double low = 0, high = 0, n_ctx = (double)original_context(d, rope);
    const double two_pi = 6.283185307179586;
    int n = d->n_rot / 2;
    if (!get_number(d, rope, "low_freq_factor", &low) || !get_number(d, rope, "high_freq_factor", &high) ||
        !(low > 0 && high >= low && n_ctx > 0)) /* equal in llama4: no wavelength lies between */
        wrong(d, "rope_type", "is llama3, but its factors are missing or out of range");
    if (n < 1)
        wrong(d, "rope_type", "is llama3, but no part of a head is rotated");
    float *divisor = d->err ? NULL : moe_hf_add_divisors(d, "rope_freqs.weight");
    for (int i = 0; divisor && i < n; i++) {
        double wave = two_pi / (double)(1.0f / (float)kn_pow(base, (double)((float)(2 * i) / (float)d->n_rot)));
        double smooth = (n_ctx / wave - low) / (high - low);
        divisor[i] = wave < n_ctx / high  ? 1
                     : wave > n_ctx / low ? (float)factor
                                          : (float)(1 / ((1 - smooth) / factor + smooth));
    }
}

/* phimoe multiplies cos and sin by two numbers of its own, for short and for long contexts.  All published models have the
 * same one; GGUF files have no key for it. */
static bool has_own_mscale(struct moe_folder *d, const json_t *rope)
{
    static const char *const names[] = { "short_mscale", "long_mscale" };
    for (size_t i = 0; i < LEN(names); i++) {
        double x = 0;
        if (!get_number(d, rope, names[i], &x) || (float)x != 1.243163121016122f)
            unsupported(d, names[i], "is not 1.243163121016122");
    }
    return !d->err;
}

/* LongRoPE: a divisor of each frequency for contexts of the first training, and one for longer contexts. */
static void read_longrope(struct moe_folder *d, const json_t *rope)
{
    static const struct {
        const char *from, *to;
    } lists[] = { { "long_factor", "rope_factors_long.weight" }, { "short_factor", "rope_factors_short.weight" } };
    int64_t n_ctx = 0, n_first = original_context(d, rope);
    double factor, attention;
    get_int(d, d->fields, "max_position_embeddings", INT32_MAX, &n_ctx);
    if (!d->err && n_first < 2)
        wrong(d, "original_max_position_embeddings", "is below 2");
    for (size_t k = 0; k < LEN(lists); k++) {
        const json_t *list = get(rope, lists[k].from);
        if (!d->err && (d->n_rot < 2 || json_array_size(list) != (size_t)d->n_rot / 2))
            wrong(d, lists[k].from, "does not have a number for each rotated pair");
        float *divisor = d->err ? NULL : moe_hf_add_divisors(d, lists[k].to);
        for (size_t i = 0; divisor && i < (size_t)d->n_rot / 2; i++)
            divisor[i] = (float)json_number_value(json_array_get(list, i));
    }
    if (d->err)
        return;
    if (!get_number(d, rope, "factor", &factor))
        factor = (double)n_ctx / (double)n_first;
    if (!strcmp(d->family->arch, "phimoe") && !has_own_mscale(d, rope))
        return;
    if (!get_number(d, rope, "attention_factor", &attention))
        attention = factor > 1 ? sqrt(1 + kn_log(factor) / kn_log((double)n_first)) : 1;
    put_u32(d, "rope.scaling.original_context_length", n_first);
    put_f32(d, "rope.scaling.attn_factor", attention);
}

/* The RoPE settings: rope_scaling if it has any, else rope_parameters; or NULL. */
static const json_t *find_rope(struct moe_folder *d)
{
    const json_t *old = get(d->fields, "rope_scaling");
    const json_t *rope = json_object_size(old) ? old : get(d->fields, "rope_parameters");
    const char *key;
    json_t *value;
    if ((old && !json_is_object(old)) || (rope && !json_is_object(rope)))
        wrong(d, old ? "rope_scaling" : "rope_parameters", "is no object");
    if (d->family->window_rope && json_is_object(get(rope, "full_attention")))
        return get(rope, "full_attention");
    json_object_foreach((json_t *)rope, key, value) if (json_is_object(value))
        unsupported(d, "rope_parameters", "has settings for each type of layer");
    return rope;
}

/* The RoPE base of layers with a window: in rope_parameters by type of layer, or in older files rope_local_base_freq.  A
 * scaling there is refused. */
static void read_window_rope(struct moe_folder *d)
{
    const json_t *rope = get(get(d->fields, "rope_parameters"), "sliding_attention");
    double base = 0;
    if (!d->family->window_rope || d->err)
        return;
    const char *type = get_string(d, rope, "rope_type");
    if (type && strcmp(type, "default"))
        unsupported(d, "rope_type", "of sliding_attention is not default");
    if (!get_number(d, rope, "rope_theta", &base))
        get_number(d, d->fields, "rope_local_base_freq", &base);
    put_f32(d, "rope.freq_base_swa", base);
}

static void read_rope(struct moe_folder *d)
{
    const json_t *rope = find_rope(d);
    double base = 0, factor = 1, alpha = 0, all;
    if (d->family->latent)
        read_latent(d);
    else if (d->family->window_heads)
        moe_hf_window_heads(d, rope);
    else
        read_heads(d, rope);
    if (!get_number(d, rope, "rope_theta", &base))
        get_number(d, d->fields, "rope_theta", &base);
    const char *type = get_string(d, rope, "rope_type");
    if (!type)
        type = get_string(d, rope, "type");
    bool stretched = type && !strcmp(type, "dynamic") && get_number(d, rope, "alpha", &alpha) && alpha > 0;
    if (stretched && d->d_head > 2 && !strcmp(d->family->arch, "hunyuan-moe")) {
        base *= kn_pow(alpha, (double)d->d_head / (d->d_head - 2));
        type = "default";
    }
    put_f32(d, "rope.freq_base", base);
    read_window_rope(d);
    if (d->family->query_scale && (!type || strcmp(type, "yarn")))
        unsupported(d, "rope_type", "is not yarn");
    if (!type || !strcmp(type, "default") || d->err)
        return;
    if (!strcmp(type, "proportional") && !strcmp(d->family->arch, "gemma4")) {
        moe_hf_proportional(d, rope);
        return;
    }
    bool phimoe = !strcmp(d->family->arch, "phimoe");
    if (phimoe || !strcmp(d->family->arch, "phi3")) { /* in phi3, whatever its type is called: longrope, su, yarn */
        if (phimoe && strcmp(type, "longrope"))
            unsupported(d, "rope_type", "is neither default nor longrope");
        if (strcmp(type, "longrope") && strcmp(type, "su") && strcmp(type, "yarn"))
            unsupported(d, "rope_type", "is neither default nor longrope");
        read_longrope(d, rope);
        return;
    }
    if (!get_number(d, rope, "factor", &factor) || !(factor >= 1 && base > 1)) {
        wrong(d, "factor", "of the RoPE scaling is missing or out of range");
        return;
    }
    bool yarn = !strcmp(type, "yarn");
    if (d->family->latent && !yarn && get_number(d, rope, "mscale_all_dim", &all) && all != 0) {
        unsupported(d, "mscale_all_dim", "is set beside a RoPE scaling other than yarn");
        return;
    }
    if (!strcmp(type, "llama3")) {
        read_llama3(d, rope, base, factor);
        return;
    }
    if (!yarn && strcmp(type, "linear")) {
        unsupported(d, "rope_type", "is neither default, linear, yarn nor llama3");
        return;
    }
    put_string(d, "rope.scaling.type", type);
    put_f32(d, "rope.scaling.factor", factor);
    if (yarn)
        read_yarn(d, rope, factor);
}

/* ---- delta nets --------------------------------------------------------------------------------- */

/* Converts the list of layers that are delta nets (all but every period-th) and the period: the number, from 1, of the
 * first full-attention layer in the list, or without a list full_attention_interval. */
static void read_layer_types(struct moe_folder *d)
{
    const json_t *types = get(d->fields, "layer_types");
    size_t n = json_array_size(types);
    int32_t *delta = d->err || !n ? NULL : kn_calloc(n, sizeof *delta);
    char key[128];
    int64_t period = 0;
    if (n && !delta && !d->err)
        d->err = kn_fail(KN_ENOMEM, "%s: no memory for the types of %zu layers", d->f->name, n);
    for (size_t i = 0; delta && i < n; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        delta[i] = type && !strcmp(type, "linear_attention");
        if (!delta[i] && (!type || strcmp(type, "full_attention")))
            unsupported(d, "layer_types", "has a type that is neither linear_attention nor full_attention");
        if (!delta[i] && !period)
            period = (int64_t)i + 1;
    }
    if (delta)
        moe_put_array(d, full(d, "attention.recurrent_layers", key), MOE_I32, delta, n);
    kn_free(delta);
    if (!period)
        get_int(d, d->fields, "full_attention_interval", 4096, &period);
    put_u32(d, "full_attention_interval", period);
}

static void read_sections(struct moe_folder *d)
{
    const json_t *list = get(find_rope(d), "mrope_section");
    int32_t section[4] = { 0 };
    char key[128];
    for (size_t i = 0; i < 3; i++)
        section[i] = (int32_t)json_integer_value(json_array_get(list, i));
    if (list)
        moe_put_array(d, full(d, "rope.dimension_sections", key), MOE_I32, section, 4);
}

static int get_small(struct moe_folder *d, const char *key)
{
    int64_t x = 0;
    get_int(d, d->fields, key, 1 << 16, &x);
    return (int)x;
}

static void read_delta(struct moe_folder *d)
{
    if (!d->family->delta)
        return;
    d->n_key_head = get_small(d, "linear_num_key_heads");
    d->n_value_head = get_small(d, "linear_num_value_heads");
    d->d_state_key = get_small(d, "linear_key_head_dim");
    d->d_state_value = get_small(d, "linear_value_head_dim");
    put_u32(d, "ssm.conv_kernel", get_small(d, "linear_conv_kernel_dim"));
    put_u32(d, "ssm.state_size", d->d_state_key);
    put_u32(d, "ssm.group_count", d->n_key_head);
    put_u32(d, "ssm.time_step_rank", d->n_value_head);
    put_u32(d, "ssm.inner_size", (int64_t)d->n_value_head * d->d_state_value);
    if (!get_bool(d, d->fields, "attn_output_gate", true))
        unsupported(d, "attn_output_gate", "is false");
    read_layer_types(d);
    read_sections(d);
}

/* ---- family and unsupported settings ------------------------------------------------------------ */

static void read_activation(struct moe_folder *d)
{
    static const char *const limits[] = { "attn_logit_softcapping", "final_logit_softcapping" };
    const char *key = d->family->geglu ? "hidden_activation" : "hidden_act", *act = get_string(d, d->fields, key);
    double x;
    if (d->family->geglu && act && strcmp(act, "gelu_pytorch_tanh"))
        unsupported(d, key, "is not gelu_pytorch_tanh");
    if (!d->family->geglu && act && strcmp(act, "silu") && strcmp(act, "swish"))
        unsupported(d, key, "is not silu");
    for (size_t i = 0; i < LEN(limits); i++)
        if (get_number(d, d->fields, limits[i], &x)) {
            if (!strcmp(limits[i], "final_logit_softcapping") && !strcmp(d->family->arch, "gemma4"))
                put_f32(d, limits[i], x);
            else
                unsupported(d, limits[i], "is set");
        }
    const json_t *both = get(d->fields, "use_bidirectional_attention"); /* "vision": not of text */
    if (!(json_is_string(both) && !strcmp(json_string_value(both), "vision")) &&
        (json_is_string(both) || get_bool(d, d->fields, "use_bidirectional_attention", false)))
        unsupported(d, "use_bidirectional_attention", "is set");
    if (!d->err)
        d->err = moe_hf_refuse_near(d);
    if (get_number(d, d->fields, "query_pre_attn_scalar", &x)) {
        if (!(x > 0))
            wrong(d, "query_pre_attn_scalar", "is not above 0");
        else
            put_f32(d, "attention.scale", 1.0f / sqrtf((float)x));
    }
    if (get_number(d, d->fields, "router_jitter_noise", &x) && x != 0.01 && !strcmp(d->family->arch, "phimoe"))
        unsupported(d, "router_jitter_noise", "is not 0.01");
    if (get_number(d, d->fields, "swiglu_limit", &x) && x != 7)
        unsupported(d, "swiglu_limit", "is not 7");
    if (get_number(d, d->fields, "swiglu_alpha", &x) && x != 1.702)
        unsupported(d, "swiglu_alpha", "is not 1.702");
    if (get_number(d, d->fields, "clip_qkv", &x) && x == 0) /* in GGUF, 0 is no clamp */
        unsupported(d, "clip_qkv", "is 0");
}

/* The language model of a vision model whose tensors are under "language_model.".  Returns its model_type. */
static const char *unwrap(struct moe_folder *d, const struct moe_hf_outer *outer)
{
    bool says_tied = get(d->config, "tie_word_embeddings") != NULL;
    char what[160];
    d->wrapped = true;
    if (moe_hf_unnest(d, "text_config"))
        return NULL;
    if (outer->tied && !says_tied && json_object_set_new(d->config, "tie_word_embeddings", json_true()))
        d->err = kn_fail(KN_ENOMEM, "%s: no memory for its configuration", d->f->name);
    const char *type = get_string(d, d->config, "model_type");
    if (!type || !strcmp(type, outer->model_type)) /* that of the outer configuration */
        return outer->inner[0];
    for (int i = 0; i < MOE_HF_INNER && outer->inner[i]; i++)
        if (!strcmp(type, outer->inner[i]))
            return outer->inner[i];
    moe_hf_list_inner(outer, what, sizeof what);
    unsupported(d, "text_config", what);
    return NULL;
}

static int find_family(struct moe_folder *d)
{
    const char *type = get_string(d, d->config, "model_type");
    const struct moe_hf_outer *outer = type ? moe_hf_find_outer(type) : NULL;
    char shown[64], known[1024];
    if (moe_hf_find_head(d) || d->err)
        return d->err;
    if (outer)
        type = unwrap(d, outer);
    if (d->err)
        return d->err;
    d->family = type ? moe_hf_find_family(type) : NULL;
    if (d->family)
        return d->family->nested ? moe_hf_unnest(d, "text_config") : 0;
    struct moe_string name = { type ? type : "", type ? strlen(type) : 0 };
    const char *lacks = moe_family_lacks(name);
    moe_string_show(name, shown, sizeof shown);
    if (lacks)
        return d->err = kn_fail(KN_EUNSUPPORTED, "%s: %s: model_type \"%s\" is not supported: the program lacks %s",
                                d->f->name, config_json, shown, lacks);
    moe_hf_list_families(known, sizeof known);
    return d->err = kn_fail(KN_EUNSUPPORTED, "%s: %s: model_type \"%s\" is not supported; supported are: %s",
                            d->f->name, config_json, shown, known);
}

/* general.name: the last component of the folder's path. */
static void put_name(struct moe_folder *d)
{
    const char *begin = d->f->name, *end = begin + strlen(begin);
    while (end > begin + 1 && end[-1] == '/')
        end--;
    for (const char *p = begin; p < end; p++)
        if (*p == '/')
            begin = p + 1;
    moe_put_string(d, "general.name", begin, (size_t)(end - begin));
}

int moe_hf_config(struct moe_folder *d)
{
    int64_t n_layer = 0, n_ahead = 0;
    if (find_family(d) || (d->err = moe_hf_fields(d)) || moe_hf_packing(d))
        return d->err;
    moe_put_string(d, "general.architecture", d->family->arch, strlen(d->family->arch));
    put_name(d);
    get_int(d, d->fields, "num_hidden_layers", 4096, &n_layer);
    get_int(d, d->config, "num_nextn_predict_layers", 4096, &n_ahead);
    d->n_layer = (int)n_layer;
    d->n_ahead = (int)n_ahead;
    d->tied = get_bool(d, d->fields, "tie_word_embeddings", false);
    read_tables(d);
    read_experts(d);
    read_switches(d);
    read_context(d);
    read_rope(d);
    check_rotated(d);
    read_chunks(d);
    read_delta(d);
    read_activation(d);
    moe_hf_put_head(d);
    return d->err;
}
