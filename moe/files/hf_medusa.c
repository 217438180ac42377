/* moe/files/hf_medusa.c - a folder of Medusa heads as published: config.json with medusa_num_heads and
 * medusa_num_layers, and medusa_lm_head.safetensors. Its tensors keep their names (engine/draft/medusa.c). */
#include "moe/files/hf_folder.h"

#include <sys/stat.h>

#define MOST 64 /* heads, and blocks of a head */

bool moe_hf_is_medusa(const struct moe_folder *d) { return json_object_get(d->config, "medusa_num_heads") != NULL; }

static int read_count(const struct moe_folder *d, const char *field, int least, uint32_t *out)
{
    const json_t *x = json_object_get(d->config, field);
    if (!json_is_integer(x) || json_integer_value(x) < least || json_integer_value(x) > MOST)
        return moe_refuse(KN_EUNSUPPORTED, d->f->name, field, "it is not a number from %d to %d", least, MOST);
    *out = (uint32_t)json_integer_value(x);
    return 0;
}

int moe_hf_medusa_check(const struct moe_folder *d)
{
    char path[4096];
    struct stat st;
    int err = moe_folder_path(d, MOE_HF_MEDUSA, path, sizeof path);
    if (err || !stat(path, &st) || (err = moe_folder_path(d, "medusa_lm_head.pt", path, sizeof path)) ||
        stat(path, &st))
        return err;
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: heads in a .pt file, which may hold code, are not read; convert it: python3 -c \"import torch, "
                   "safetensors.torch as s; s.save_file(torch.load('medusa_lm_head.pt', map_location='cpu', "
                   "weights_only=True), '" MOE_HF_MEDUSA "')\"",
                   d->f->name);
}

int moe_hf_medusa(struct moe_folder *d)
{
    uint32_t n_head, n_layer;
    int err = read_count(d, "medusa_num_heads", 1, &n_head);
    if (err || (err = read_count(d, "medusa_num_layers", 0, &n_layer)))
        return err;
    moe_put_string(d, "general.architecture", "medusa", 6);
    moe_put_u32(d, "medusa.head_count", n_head);
    moe_put_u32(d, "medusa.block_count", n_layer);
    for (size_t i = 0; i < d->n_stored && !d->err && !err; i++) {
        struct moe_tensor t = moe_as_stored(&d->stored[i]);
        t.name = d->stored[i].name;
        err = d->stored[i].gguf_type < 0 ? moe_refuse_stored(d, &d->stored[i], KN_EUNSUPPORTED, "its type is not read")
                                         : moe_add_tensor(d->f, &t);
    }
    return err ? err : d->err;
}
