/* moe/files/hf_folder.c - reads a model folder: config.json, the .safetensors files, tokenizer.json.
 *
 * Input: a struct moe_file with the folder's path.  Output: its tables, filled as gguf.c fills them for a GGUF file.
 * The order is: config.json; the headers of model.safetensors or of the files that model.safetensors.index.json
 * lists; the conversion of tensor names and shapes; the vocabulary.  No tensor data is read here. */
#include "moe/files/hf_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES  4096
#define FILES_MOST  1024
#define CONFIG_MOST ((size_t)16 << 20)
#define INDEX_MOST  ((size_t)100 << 20)

int moe_refuse(int code, const char *path, const char *field, const char *fmt, ...)
{
    char reason[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    return kn_fail(code, "%s: %s: %s: %s", path, kn_error_text(code), field, reason);
}

/* ---- files ------------------------------------------------------------------------------------ */

int moe_folder_path(const struct moe_folder *d, const char *name, char *out, size_t bytes)
{
    size_t n = strlen(d->f->name);
    const char *between = n && d->f->name[n - 1] == '/' ? "" : "/";
    if ((size_t)snprintf(out, bytes, "%s%s%s", d->f->name, between, name) >= bytes)
        return kn_fail(KN_ELIMIT, "%s: the path is too long", d->f->name);
    return 0;
}

int moe_folder_has(const struct moe_folder *d, const char *name, bool *has)
{
    char path[PATH_BYTES];
    int err = moe_folder_path(d, name, path, sizeof path);
    int fd = err ? -1 : kn_io()->open(path, O_RDONLY | O_CLOEXEC, 0);
    *has = fd >= 0;
    if (fd >= 0)
        kn_file_close(fd);
    return err;
}

static int read_open(const struct moe_folder *d, int fd, const char *path, size_t most, char **text, size_t *n)
{
    int64_t size = kn_io()->size(fd);
    if (size < 0)
        return kn_fail_size(path);
    if ((uint64_t)size > most)
        return kn_fail(KN_ELIMIT, "%s: it has %lld bytes; the limit is %zu", path, (long long)size, most);
    char *to = kn_alloc((size_t)size + 1);
    if (!to)
        return kn_fail(KN_ENOMEM, "%s: no memory for its %lld bytes", path, (long long)size);
    int err = kn_file_read(fd, path, to, (size_t)size, 0);
    if (!err && (size_t)size >= sizeof MOE_LFS && !memcmp(to, MOE_LFS, sizeof MOE_LFS - 1))
        err = kn_fail(KN_EUNSUPPORTED, "%s: %s: " MOE_LFS_SAID, path, kn_error_text(KN_EUNSUPPORTED));
    if (err) {
        kn_free(to);
        return err;
    }
    d->f->header_bytes += (uint64_t)size;
    *text = to;
    *n = (size_t)size;
    return 0;
}

int moe_folder_text(const struct moe_folder *d, const char *name, size_t most, char **text, size_t *n)
{
    char path[PATH_BYTES];
    int err = moe_folder_path(d, name, path, sizeof path);
    *text = NULL;
    if (err)
        return err;
    int fd = kn_io()->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return kn_fail(KN_EIO, "%s: %s", path, strerror(errno));
    err = read_open(d, fd, path, most, text, n);
    kn_file_close(fd);
    return err;
}

/* Turns each whole number of more than 18 digits into a real number of almost the same value: its last two digits become
 * "e2".  Jansson refuses whole numbers beyond 64 bits, but the transformers package writes one of 31 digits as the
 * model_max_length of a tokenizer without a maximum.  No number that this program reads is that large. */
static void shorten_numbers(char *text, size_t n)
{
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            quoted = !quoted;
        i += quoted && text[i] == '\\';
        if (quoted || i >= n || text[i] < '0' || text[i] > '9')
            continue;
        size_t end = i;
        while (end < n && text[end] >= '0' && text[end] <= '9')
            end++;
        bool whole = end == n || (text[end] != '.' && text[end] != 'e' && text[end] != 'E');
        bool part = i && (text[i - 1] == '.' || text[i - 1] == 'e' || text[i - 1] == 'E' || text[i - 1] == '+');
        if (end - i > 18 && whole && !part)
            memcpy(text + end - 2, "e2", 2);
        i = end - 1;
    }
}

int moe_folder_json(const struct moe_folder *d, const char *name, size_t most, json_t **out)
{
    char *text, path[PATH_BYTES];
    size_t n = 0;
    json_error_t e;
    int err = moe_folder_text(d, name, most, &text, &n);
    *out = NULL;
    if (err || !text || (err = moe_folder_path(d, name, path, sizeof path))) {
        kn_free(text);
        return err;
    }
    shorten_numbers(text, n);
    *out = kn_json_load(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    kn_free(text);
    if (json_is_object(*out))
        return 0;
    if (!*out && kn_json_lacks_memory(&e))
        return kn_fail(KN_ENOMEM, "%s: no memory to read it", path);
    char shown[200];
    moe_string_show((struct moe_string){ e.text, strlen(e.text) }, shown, sizeof shown);
    if (*out)
        err = kn_fail(KN_ECORRUPT, "%s: %s: it is no JSON object", path, kn_error_text(KN_ECORRUPT));
    else
        err = kn_fail(KN_ECORRUPT, "%s: %s: line %d: %s", path, kn_error_text(KN_ECORRUPT), e.line, shown);
    json_decref(*out);
    *out = NULL;
    return err;
}

/* ---- metadata --------------------------------------------------------------------------------- */

static void put_value(struct moe_folder *d, const char *key, struct moe_value v)
{
    if (!d->err)
        d->err = moe_keep_string(d->f, key, strlen(key), &v.key);
    if (!d->err && (d->err = moe_add_value(d->f, &d->f->values, &v)) > 0)
        d->err = kn_fail(KN_ECORRUPT, "%s: metadata %s is set twice", d->f->name, key);
}

static const void *keep(struct moe_folder *d, const void *data, size_t bytes)
{
    void *to = d->err ? NULL : moe_keep(d->f, bytes);
    if (!to)
        d->err = d->err ? d->err : KN_ENOMEM;
    else
        memcpy(to, data, bytes);
    return to;
}

static size_t item_bytes(enum moe_type type)
{
    switch (type) {
    case MOE_STRING:
        return sizeof(struct moe_string);
    case MOE_BOOL:
        return 1;
    default:
        return 4;
    }
}

static void put(struct moe_folder *d, const char *key, enum moe_type type, const void *scalar)
{
    put_value(d, key,
              (struct moe_value){ .type = type, .item = type, .n = 1, .data = keep(d, scalar, item_bytes(type)) });
}

/* The bytes of string items must already be in memory of the moe_file: only the array is copied. */
void moe_put_array(struct moe_folder *d, const char *key, enum moe_type item, const void *data, size_t n)
{
    put_value(
        d, key,
        (struct moe_value){ .type = MOE_ARRAY, .item = item, .n = n, .data = keep(d, data, n * item_bytes(item)) });
}

void moe_put_string(struct moe_folder *d, const char *key, const char *s, size_t n)
{
    struct moe_string kept = { 0 };
    if (!d->err)
        d->err = moe_keep_string(d->f, s, n, &kept);
    put(d, key, MOE_STRING, &kept);
}

void moe_put_u32(struct moe_folder *d, const char *key, uint32_t x) { put(d, key, MOE_U32, &x); }

void moe_put_bool(struct moe_folder *d, const char *key, bool x)
{
    uint8_t byte = x;
    put(d, key, MOE_BOOL, &byte);
}

void moe_put_f32(struct moe_folder *d, const char *key, double x)
{
    float narrow = (float)x;
    put(d, key, MOE_F32, &narrow);
}

/* ---- weights ---------------------------------------------------------------------------------- */

static int open_weights(struct moe_folder *d, const char *name)
{
    char path[PATH_BYTES];
    int file, err = moe_folder_path(d, name, path, sizeof path);
    if (!err)
        err = moe_file_add(d->f, path, &file);
    return err ? err : moe_safetensors_read(d, file);
}

static bool has_name(const struct moe_folder *d, int file, const char *name)
{
    const char *slash = strrchr(d->f->path[file], '/');
    return slash && !strcmp(slash + 1, name);
}

/* The number of the open file with this name in the folder, or -1.  `last`, the previous result, is tried first. */
static int file_named(const struct moe_folder *d, const char *name, int last)
{
    if (last >= 0 && has_name(d, last, name))
        return last;
    for (int i = 0; i < d->f->files.n_file; i++)
        if (has_name(d, i, name))
            return i;
    return -1;
}

/* map: tensor names to file names.  Opens every file in a first pass; a second pass checks that each tensor is in the
 * file that map gives for it. */
static int open_indexed(struct moe_folder *d, const json_t *map)
{
    const char *tensor, *index = "model.safetensors.index.json";
    json_t *file;
    char shown[128];
    size_t n;
    int err = 0, last = -1;
    for (int pass = 0; pass < 2; pass++)
        json_object_keylen_foreach((json_t *)map, tensor, n, file)
        {
            const char *name = json_string_value(file);
            if (!name || !*name || strchr(name, '/') || strlen(name) != json_string_length(file) || strlen(name) > 255)
                return moe_refuse(KN_ECORRUPT, d->f->name, index, "weight_map has an invalid file name");
            last = file_named(d, name, last);
            if (!pass && last < 0) {
                if (d->f->files.n_file == FILES_MOST)
                    return moe_refuse(KN_ELIMIT, d->f->name, index, "more than %d files", FILES_MOST);
                if ((err = open_weights(d, name)))
                    return err;
            }
            const struct moe_stored *t = pass ? moe_stored_find(d, tensor, n) : NULL;
            if (pass && (!t || t->file != last)) {
                moe_string_show((struct moe_string){ tensor, n }, shown, sizeof shown);
                return moe_refuse(KN_ECORRUPT, d->f->name, index, "tensor '%s' is not in %s", shown, name);
            }
        }
    return 0;
}

static int open_single(struct moe_folder *d)
{
    static const char name[] = "model.safetensors", pickled[] = "pytorch_model.bin";
    bool has = false, has_pickled = false;
    int err = moe_folder_has(d, name, &has);
    if (!err && !has)
        err = moe_folder_has(d, pickled, &has_pickled);
    if (err || !has_pickled)
        return err ? err : open_weights(d, name);
    return kn_fail(KN_EUNSUPPORTED,
                   "%s: it has %s but no %s: write that file with python3 -c \"import torch, safetensors.torch as s; "
                   "s.save_file({k: v.clone() for k, v in torch.load('%s').items()}, '%s')\"",
                   d->f->name, pickled, name, pickled, name);
}

static int open_all_weights(struct moe_folder *d)
{
    json_t *index;
    int err = moe_folder_json(d, "model.safetensors.index.json", INDEX_MOST, &index);
    if (err)
        return err;
    const json_t *map = json_object_get(index, "weight_map");
    if (!index)
        err = open_single(d);
    else if (!json_object_size(map))
        err = moe_refuse(KN_ECORRUPT, d->f->name, "model.safetensors.index.json", "its weight_map names no tensors");
    else
        err = open_indexed(d, map);
    json_decref(index);
    return err;
}

/* ---- the folder ------------------------------------------------------------------------------- */

static int read_medusa(struct moe_folder *d, enum moe_hf_medusa layout)
{
    int err = layout == MOE_HF_MEDUSA_VLLM ? open_all_weights(d) : open_weights(d, MOE_HF_MEDUSA);
    return err ? err : moe_hf_medusa(d);
}

static int read_folder(struct moe_folder *d)
{
    enum moe_hf_medusa medusa = MOE_HF_NO_MEDUSA;
    int err = moe_folder_json(d, "config.json", CONFIG_MOST, &d->config);
    if (!err && !d->config)
        err = kn_fail(KN_ENOENT,
                      "%s: there is no config.json in this folder: name a .gguf file, or a folder with "
                      "config.json, tokenizer.json and .safetensors files",
                      d->f->name);
    if (!err)
        err = moe_hf_find_medusa(d, &medusa);
    if (!err && medusa)
        return read_medusa(d, medusa);
    if (!err)
        err = moe_hf_config(d);
    if (!err)
        err = open_all_weights(d);
    if (!err)
        err = moe_hf_tensors(d);
    return err || d->family->head ? err : moe_hf_vocab(d);
}

int moe_folder_open(struct moe_file *f)
{
    struct moe_folder d = { .f = f };
    int err = read_folder(&d);
    json_decref(d.config);
    json_decref(d.fields);
    kn_free(d.stored);
    kn_free(d.by_name.slot);
    return err;
}
