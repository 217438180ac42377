/* moe/files/hf_draft_head.c - config.json of published EAGLE-3 heads: the layers of the target that a head reads, and its
 * variants.
 *
 * Two kinds of folders are read.  Those of EAGLE's authors, SpecForge and ModelOpt have a llama's config.json with
 * draft_vocab_size, and some have eagle_config.  Those of speculators have the llama's part in transformer_layer_config.
 *
 * The features are the residual stream as it enters three layers of the target.  Lists of these layers have two
 * conventions: the list of a trainer that counts outputs begins with 1, that of one that counts inputs with 2 for the
 * same feature.  Without a list the layers follow from the target (moe/model/model.c). */
#include "moe/files/hf_folder.h"

#include <string.h>

static const struct moe_hf_family eagle3 = { "eagle3", "eagle3", .turned = true, .head = true };
static const char list_key[] = "eagle_aux_hidden_state_layer_ids", eagle_config[] = "eagle_config";

/* A member of config.json or of its eagle_config; NULL: in neither, or null. */
static const json_t *find(const struct moe_folder *d, const char *key)
{
    const json_t *v = json_object_get(d->config, key);
    if (!v || json_is_null(v))
        v = json_object_get(json_object_get(d->config, eagle_config), key);
    return json_is_null(v) ? NULL : v;
}

static void refuse(struct moe_folder *d, const char *key, const char *what)
{
    if (!d->err)
        d->err = moe_refuse(KN_EUNSUPPORTED, d->f->name, "config.json", "'%s' of an EAGLE-3 head %s", key, what);
}

static bool flag(struct moe_folder *d, const char *key, bool fallback)
{
    const json_t *v = find(d, key);
    if (v && !json_is_boolean(v))
        refuse(d, key, "is neither true nor false");
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && !strcmp(json_string_value(v), text);
}

/* Configurations of EAGLE's authors are those of a llama but for draft_vocab_size. */
static bool is_head(const json_t *config)
{
    const json_t *kind = json_object_get(config, "speculators_model_type"), *name;
    size_t i;
    json_array_foreach(json_object_get(config, "architectures"), i, name)
    {
        if (json_is_string(name) && strstr(json_string_value(name), "Eagle3"))
            return true;
    }
    return is_text(kind, "eagle3") || (is_text(json_object_get(config, "model_type"), "llama") &&
                                       json_is_integer(json_object_get(config, "draft_vocab_size")));
}

bool moe_hf_find_head(struct moe_folder *d)
{
    static const char inner[] = "transformer_layer_config";
    if (!is_head(d->config))
        return false;
    d->family = &eagle3;
    if (json_object_get(d->config, inner)) {
        json_object_del(d->config, "model_type"); /* "speculators"; the layer has its own */
        moe_hf_unnest(d, inner);
    }
    if (!d->err && !is_text(json_object_get(d->config, "model_type"), "llama"))
        refuse(d, "model_type", "is not llama, which is the only supported kind");
    return true;
}

/* Adds the layers that a list names, as layers whose inputs are read. */
static void put_layers(struct moe_folder *d)
{
    const json_t *list = find(d, list_key);
    int32_t layer[MOE_INNER];
    if (!list || d->err)
        return;
    if (json_array_size(list) != MOE_INNER) {
        refuse(d, list_key, "does not name three layers");
        return;
    }
    bool outputs = json_integer_value(json_array_get(list, 0)) == 1;
    for (size_t i = 0; i < MOE_INNER; i++) {
        json_int_t x = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || x < 0 || x >= INT32_MAX)
            refuse(d, list_key, "does not name three layers");
        layer[i] = (int32_t)(x + outputs);
    }
    moe_put_array(d, "eagle3.extract_layers", MOE_I32, layer, MOE_INNER);
}

static void put_size(struct moe_folder *d, const char *from, const char *key)
{
    const json_t *v = find(d, from);
    json_int_t x = json_integer_value(v);
    if (v && (!json_is_integer(v) || x < 1 || x > INT32_MAX))
        refuse(d, from, "is no whole number, or out of range");
    else if (v)
        moe_put_u32(d, key, (uint32_t)x);
}

void moe_hf_put_head(struct moe_folder *d)
{
    static const struct {
        const char *from, *key;
    } flags[] = { { "norm_before_residual", "eagle3.norm_before_residual" },
                  { "norm_output", "eagle3.norm_output" },
                  { "fc_norm", "eagle3.fc_norm" },
                  { "norm_before_fc", "eagle3.norm_before_fc" } };
    const json_t *type;
    size_t i;
    if (!d->family->head || d->err)
        return;
    if (d->n_layer != 1)
        refuse(d, "num_hidden_layers", "is not 1");
    if (!flag(d, "use_aux_hidden_state", true))
        refuse(d, "use_aux_hidden_state", "is false: it reads the last layer alone, as EAGLE does");
    json_array_foreach(find(d, "layer_types"), i, type)
    {
        if (!is_text(type, "full_attention"))
            refuse(d, "layer_types", "is not full_attention");
    }
    put_layers(d);
    put_size(d, "vocab_size", "eagle3.vocab_size");
    put_size(d, "target_hidden_size", "eagle3.target_hidden_size");
    for (i = 0; i < sizeof flags / sizeof *flags; i++)
        moe_put_bool(d, flags[i].key, flag(d, flags[i].from, false));
}
