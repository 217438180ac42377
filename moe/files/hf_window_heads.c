/* moe/files/hf_window_heads.c - config.json of families in which layers with a window have other heads than the others:
 * the sizes of both, the rotation of a part of each head, and parts of such models that are not supported. */
#include "moe/files/hf_folder.h"

#include <string.h>

static void put_u32(struct moe_folder *d, const char *name, int64_t x)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", d->family->arch, name);
    moe_put_u32(d, key, (uint32_t)x);
}

/* A whole number from 0 to `most`; null: the fallback. */
static int64_t count(struct moe_folder *d, const char *key, int64_t most, int64_t fallback)
{
    const json_t *v = json_object_get(d->fields, key);
    if (!v || json_is_null(v))
        return fallback;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= most)
        return json_integer_value(v);
    if (!d->err)
        d->err = moe_refuse(KN_ECORRUPT, d->f->name, key, "is no whole number, or out of range");
    return fallback;
}

static void refuse(struct moe_folder *d, const char *field, const char *what)
{
    if (!d->err)
        d->err = kn_fail(KN_EUNSUPPORTED, "%s: config.json: '%s' %s, which is not supported", d->f->name, field, what);
}

static bool slides(struct moe_folder *d, int layer) { return moe_hf_has_window(d, layer, 0, d->family->window_period); }

/* Adds the number of KV heads of each layer. */
static void put_kv_heads(struct moe_folder *d, int64_t n_window, int64_t n_kv)
{
    char key[128];
    bool any_full = false, last = false;
    int32_t *each = d->err ? NULL : kn_calloc((size_t)d->n_layer + 1, sizeof *each);
    if (!each) {
        d->err = d->err ? d->err : kn_fail(KN_ENOMEM, "%s: no memory for its layers", d->f->name);
        return;
    }
    for (int i = 0; i < d->n_layer; i++) {
        bool window = slides(d, i);
        each[i] = (int32_t)(window ? n_window : n_kv);
        any_full |= !window;
        last = !window;
    }
    if (!any_full || (!last && json_object_get(d->fields, "global_head_dim"))) /* transformers would change it */
        refuse(d, "layer_types", "does not end with full_attention");
    snprintf(key, sizeof key, "%s.attention.head_count_kv", d->family->arch);
    moe_put_array(d, key, MOE_I32, each, (size_t)d->n_layer);
    kn_free(each);
}

/* An entry of per_layer_config: sets both numbers as far as it has them; false: it has others. */
static bool read_entry(const json_t *entry, int64_t *d_head, int64_t *n_kv)
{
    static const char *const known[] = { "head_dim", "num_key_value_heads" };
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(entry, known[i]);
        json_int_t x = json_integer_value(v);
        if (!v)
            continue;
        if (!json_is_integer(v) || x < 1 || x > (i ? 1 << 11 : KN_MAX_D_HEAD))
            return false;
        *(i ? n_kv : d_head) = x;
        n++;
    }
    return json_object_size(entry) == n;
}

/* per_layer_config, as transformers saves it: an entry for each layer without a window, all with the same numbers. */
static void read_layer_config(struct moe_folder *d, int64_t *d_head, int64_t *n_kv)
{
    json_t *layers = json_object_get(d->fields, "per_layer_config");
    int64_t first[2] = { 0 };
    int n = 0, n_full = 0;
    for (int i = 0; i < d->n_layer; i++) {
        char name[16];
        int64_t head = *d_head, kv = *n_kv;
        if (slides(d, i))
            continue;
        snprintf(name, sizeof name, "%d", i);
        bool fits = read_entry(json_object_get(layers, name), &head, &kv) &&
                    (!n_full || (head == first[0] && kv == first[1]));
        n += fits && json_is_object(json_object_get(layers, name));
        n_full++;
        first[0] = head;
        first[1] = kv;
    }
    if ((size_t)n != json_object_size(layers) || n != n_full || !n_full)
        refuse(d, "per_layer_config", "does not say the same of all layers with full attention");
    *d_head = first[0];
    *n_kv = first[1];
}

/* gemma4: head_dim and num_key_value_heads are those of layers with a window; num_global_key_value_heads holds only if
 * values are keys in the others.  mimo_v2_flash: layers with a window have twice as many KV heads. */
void moe_hf_window_heads(struct moe_folder *d, const json_t *rope)
{
    bool gemma = json_object_get(d->fields, "global_head_dim") != NULL;
    int64_t d_window = count(d, "head_dim", KN_MAX_D_HEAD, 0), n_kv = count(d, "num_key_value_heads", 1 << 11, 0);
    int64_t n_window = gemma ? n_kv : 2 * n_kv, d_head = count(d, "global_head_dim", KN_MAX_D_HEAD, d_window);
    if (gemma && json_is_true(json_object_get(d->fields, "attention_k_eq_v")))
        n_kv = count(d, "num_global_key_value_heads", 1 << 11, n_kv);
    if (gemma && json_is_object(json_object_get(d->fields, "per_layer_config"))) {
        d_head = d_window;
        n_kv = n_window;
        read_layer_config(d, &d_head, &n_kv);
    }
    d->d_head = (int)d_head;
    d->n_rot = (int)moe_hf_count_rotated(d, rope, d_head);
    put_u32(d, "attention.key_length", d_head);
    put_u32(d, "attention.value_length", count(d, "v_head_dim", KN_MAX_D_HEAD, d_head));
    put_u32(d, "rope.dimension_count", d->n_rot);
    if (gemma) {
        put_u32(d, "attention.key_length_swa", d_window);
        put_u32(d, "attention.value_length_swa", d_window);
        put_u32(d, "rope.dimension_count_swa", d_window);
    }
    put_kv_heads(d, n_window, n_kv);
}

/* gemma4: only the first pairs of a head are rotated, by the frequencies of a whole head; as in GGUF, the others have
 * divisors of 1e30. */
void moe_hf_proportional(struct moe_folder *d, const json_t *rope)
{
    const json_t *part = json_object_get(rope, "partial_rotary_factor"), *factor = json_object_get(rope, "factor");
    double share = part ? json_number_value(part) : 1;
    if (factor && json_number_value(factor) != 1)
        refuse(d, "factor", "of the proportional RoPE is not 1");
    if (!(share > 0 && share <= 1 && d->n_rot >= 2) && !d->err)
        d->err = moe_refuse(KN_ECORRUPT, d->f->name, "partial_rotary_factor", "is out of range");
    float *divisor = d->err ? NULL : moe_hf_add_divisors(d, "rope_freqs.weight");
    int n = (int)(share * d->d_head / 2);
    for (int i = 0; divisor && i < d->n_rot / 2; i++)
        divisor[i] = i < n ? 1 : 1e30f;
}

int moe_hf_refuse_near(struct moe_folder *d)
{
    static const struct {
        const char *key, *what;
    } near[] = {
        { "hidden_size_per_layer_input", "adds embeddings for each layer, as in the E2B and E4B models" },
        { "num_kv_shared_layers", "lets layers use the keys and values of earlier ones" },
    };
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        if (count(d, near[i].key, INT32_MAX, 0))
            refuse(d, near[i].key, near[i].what);
    return d->err;
}
