/* moe/files/hf_medusa.c - a folder of Medusa heads. Two layouts are published:
 *
 *     of head h         the authors'                    vLLM's
 *     block l           h.l.linear.weight, .bias        blocks.h.layers.l.weight, .bias
 *     output matrix     h.L.weight, L the blocks        lm_heads.h.weight; with original_lm_head one for all heads
 *     in                medusa_lm_head.safetensors      model.safetensors
 *     config.json has   medusa_num_heads                model_type medusa, num_heads
 *
 * Names of both may begin with "medusa_heads.". Tensors get the authors' names (engine/draft/medusa.c). The number of heads
 * and blocks is counted in the file: the authors' config.json says 2 heads where the file has 5. */
#include "moe/files/hf_folder.h"

#include <stdio.h>

enum part { BLOCK, BIAS, OUTPUT, SHARED_OUTPUT, TOKEN_MAP };

struct count {
    int n_head, n_layer, n_output;
    bool bias;
};

/* ---- names --------------------------------------------------------------------------------------- */

/* Whether s is the pattern, where each # stands for a number below 100, which is stored. */
static bool matches(struct moe_string s, const char *pattern, int *number)
{
    size_t at = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (at == s.n || s.data[at++] != *pattern)
                return false;
            continue;
        }
        size_t from = at;
        for (*number = 0; at < s.n && at < from + 2 && s.data[at] >= '0' && s.data[at] <= '9'; at++)
            *number = 10 * *number + (s.data[at] - '0');
        if (at == from || (s.data[from] == '0' && at > from + 1))
            return false;
        number++;
    }
    return at == s.n;
}

/* number: head and layer. False: no such part is known. */
static bool part_of(struct moe_string name, enum part *part, int number[2])
{
    static const struct {
        const char *pattern;
        enum part part;
    } known[] = {
        { "#.#.linear.weight", BLOCK },        { "#.#.linear.bias", BIAS },        { "#.#.weight", OUTPUT },
        { "blocks.#.layers.#.weight", BLOCK }, { "blocks.#.layers.#.bias", BIAS }, { "lm_heads.#.weight", OUTPUT },
        { "lm_head.weight", SHARED_OUTPUT },   { "token_map", TOKEN_MAP }
    };
    static const char before[] = "medusa_heads.";
    size_t n = sizeof before - 1;
    if (name.n > n && !memcmp(name.data, before, n))
        name = (struct moe_string){ name.data + n, name.n - n };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        number[0] = number[1] = 0;
        if (matches(name, known[i].pattern, number)) {
            *part = known[i].part;
            return true;
        }
    }
    return false;
}

/* ---- which folders --------------------------------------------------------------------------------- */

/* A model's own folder may have medusa_num_heads too, if heads were merged into it. */
int moe_hf_find_medusa(const struct moe_folder *d, enum moe_hf_medusa *out)
{
    bool here = false, pickled = false;
    int err = 0;
    const json_t *n_head = json_object_get(d->config, "medusa_num_heads"),
                 *type = json_object_get(d->config, "model_type");
    if (n_head && !(err = moe_folder_has(d, MOE_HF_MEDUSA, &here)) && !here)
        err = moe_folder_has(d, "medusa_lm_head.pt", &pickled);
    *out = here || (n_head && !type)                                            ? MOE_HF_MEDUSA_AUTHORS
           : json_is_string(type) && !strcmp(json_string_value(type), "medusa") ? MOE_HF_MEDUSA_VLLM
                                                                                : MOE_HF_NO_MEDUSA;
    if (err || !pickled)
        return err;
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: heads in a .pt file, which may hold code, are not read; convert it: python3 -c \"import torch, "
                   "safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in torch.load("
                   "'medusa_lm_head.pt', map_location='cpu', weights_only=True).items()}, '" MOE_HF_MEDUSA "')\"",
                   d->f->name);
}

/* Variants that would be computed as something else. */
static int refuse_variants(const struct moe_folder *d)
{
    const json_t *vocab = json_object_get(d->config, "vocab_size"),
                 *few = json_object_get(d->config, "truncated_vocab_size"),
                 *scale = json_object_get(d->config, "logit_scale");
    if (json_is_integer(few) && json_integer_value(few) != json_integer_value(vocab))
        return moe_refuse(KN_EUNSUPPORTED, d->f->name, "truncated_vocab_size",
                          "heads for a part of the vocabulary are not read");
    if (json_is_number(scale) && json_number_value(scale) != 1)
        return moe_refuse(KN_EUNSUPPORTED, d->f->name, "logit_scale", "heads with scaled logits are not read");
    return 0;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static int count(const struct moe_folder *d, struct count *out)
{
    for (size_t i = 0; i < d->n_stored; i++) {
        const struct moe_stored *t = &d->stored[i];
        enum part part;
        int at[2];
        if (!part_of(t->name, &part, at))
            return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "is not a tensor of Medusa heads");
        if (part == TOKEN_MAP)
            return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "is of heads for a part of the vocabulary");
        if (t->gguf_type < 0)
            return moe_refuse_stored(d, t, KN_EUNSUPPORTED, "has a type that is not read");
        out->n_head = kn_max(out->n_head, at[0] + 1);
        if (part == BLOCK)
            out->n_layer = kn_max(out->n_layer, at[1] + 1);
        out->n_output += part == OUTPUT || part == SHARED_OUTPUT;
        out->bias |= part == BIAS;
    }
    if (out->n_output)
        return 0;
    return kn_fail(
        KN_EUNSUPPORTED,
        "%s: heads without output matrices are not read: version 2 of Medusa's training code leaves them out",
        d->f->name);
}

static void compare(const struct moe_folder *d, const char *field, const char *other, int n)
{
    const json_t *x = json_object_get(d->config, field);
    x = x ? x : json_object_get(d->config, other);
    if (json_is_integer(x) && json_integer_value(x) != n)
        kn_say(KN_LOG_INFO, "%s: config.json says %s %lld, but the file has %d, which are used", d->f->name, field,
               (long long)json_integer_value(x), n);
}

static int add(struct moe_folder *d, const struct moe_stored *stored, const struct count *all, bool shared)
{
    static const char *const suffix[] = { ".linear.weight", ".linear.bias", ".weight", ".weight" };
    struct moe_tensor t = moe_as_stored(stored);
    enum part part;
    char name[48];
    int at[2], err = 0;
    if (!part_of(stored->name, &part, at) || (shared && part == OUTPUT && at[0]))
        return 0;
    snprintf(name, sizeof name, "%d.%d%s", at[0], part >= OUTPUT ? all->n_layer : at[1], suffix[part]);
    if (part == OUTPUT && at[1] && at[1] != all->n_layer)
        return moe_refuse_stored(d, stored, KN_ECORRUPT, "is an output matrix before a block");
    if ((err = moe_keep_string(d->f, name, strlen(name), &t.name)) || (err = moe_add_tensor(d->f, &t)) <= 0)
        return err;
    return moe_refuse_stored(d, stored, KN_ECORRUPT, "is present under another name too");
}

int moe_hf_medusa(struct moe_folder *d)
{
    struct count all = { 0 };
    int err = refuse_variants(d);
    if (err || (err = count(d, &all)))
        return err;
    bool shared = json_is_true(json_object_get(d->config, "original_lm_head"));
    compare(d, "medusa_num_heads", "num_heads", all.n_head);
    compare(d, "medusa_num_layers", "num_hidden_layers", all.n_layer);
    moe_put_string(d, "general.architecture", "medusa", 6);
    moe_put_u32(d, "medusa.head_count", (uint32_t)all.n_head);
    moe_put_u32(d, "medusa.block_count", (uint32_t)all.n_layer);
    moe_put_bool(d, "medusa.bias", all.bias);
    moe_put_bool(d, "medusa.shared_output", shared);
    for (size_t i = 0; i < d->n_stored && !d->err && !err; i++)
        err = add(d, &d->stored[i], &all, shared);
    return err ? err : d->err;
}
