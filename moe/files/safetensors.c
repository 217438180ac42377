/* moe/files/safetensors.c - reads the header of one .safetensors file.
 *
 * A file is a 64-bit length, a JSON header of that many bytes, and the tensor data.  For each tensor the JSON holds
 * name, value type, shape, and begin and end of its data, counted from the end of the JSON.  Output: descriptions of
 * the stored tensors, added to the folder's list.
 *
 * As in gguf.c the header is untrusted input: every number is checked against the file before it is used, and an
 * error message is one line with file, tensor and reason. */
#include "moe/files/hf_folder.h"

#include <string.h>

#define HEADER_MOST ((uint64_t)100 << 20) /* the limit of the safetensors library */
#define NAME_MOST   1024
#define SHOWN       128

static const struct {
    const char *name;
    int bytes, gguf_type;
} types[] = {
    { "F32", 4, 0 },   { "F16", 2, 1 },      { "BF16", 2, 30 },    { "F64", 8, 28 },
    { "I8", 1, 24 },   { "I16", 2, 25 },     { "I32", 4, 26 },     { "I64", 8, 27 },
    { "U8", 1, -1 },   { "U16", 2, -1 },     { "U32", 4, -1 },     { "U64", 8, -1 },
    { "BOOL", 1, -1 }, { "F8_E4M3", 1, -1 }, { "F8_E5M2", 1, -1 }, { "F8_E8M0", 1, -1 },
};

struct header {
    struct moe_folder *d;
    int file;
    const char *path;
    uint64_t data, size;
};

static struct moe_string stored_name(const void *table, size_t i) { return ((const struct moe_stored *)table)[i].name; }

const struct moe_stored *moe_stored_find(const struct moe_folder *d, const char *name, size_t n)
{
    size_t i = moe_index_find(d->f, &d->by_name, stored_name, d->stored, (struct moe_string){ name, n });
    return i == SIZE_MAX ? NULL : &d->stored[i];
}

static int read_type(const struct header *h, struct moe_stored *t, const json_t *dtype, const char *field, int *bytes)
{
    const char *name = json_string_value(dtype);
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, types[i].name)) {
            t->dtype = types[i].name;
            t->gguf_type = types[i].gguf_type;
            *bytes = types[i].bytes;
            return 0;
        }
    return moe_refuse(name ? KN_EUNSUPPORTED : KN_ECORRUPT, h->path, field, "dtype %s is not known",
                      name && strlen(name) < 32 ? name : "");
}

static int read_shape(const struct header *h, struct moe_stored *t, const json_t *shape, const char *field,
                      uint64_t *bytes)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > 4)
        return moe_refuse(KN_ECORRUPT, h->path, field, "its shape is no list of at most 4 numbers");
    t->n_dim = (int)n;
    for (size_t i = 0; i < 4; i++) {
        const json_t *dim = json_array_get(shape, i);
        t->dim[i] = i < n ? (uint64_t)json_integer_value(dim) : 1;
        if (i < n && (!json_is_integer(dim) || json_integer_value(dim) < 0))
            return moe_refuse(KN_ECORRUPT, h->path, field, "dimension %zu is no number from 0 on", i);
        if (__builtin_mul_overflow(*bytes, t->dim[i], bytes) || *bytes > INT64_MAX)
            return moe_refuse(KN_ECORRUPT, h->path, field, "its shape overflows");
    }
    return 0;
}

static int read_place(const struct header *h, struct moe_stored *t, const json_t *offsets, const char *field)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) || from < 0 || to < from)
        return moe_refuse(KN_ECORRUPT, h->path, field, "its data_offsets are not two numbers, begin and end");
    if ((uint64_t)to > h->size - h->data)
        return moe_refuse(KN_ESHORT, h->path, field, "ends at byte %llu, the file at %llu: an incomplete copy?",
                          (unsigned long long)h->data + (unsigned long long)to, (unsigned long long)h->size);
    if ((uint64_t)(to - from) != t->bytes)
        return moe_refuse(KN_ECORRUPT, h->path, field, "has %lld bytes, but its type and shape need %llu",
                          (long long)(to - from), (unsigned long long)t->bytes);
    t->offset = h->data + (uint64_t)from;
    return 0;
}

static int read_tensor(const struct header *h, const char *name, size_t n, const json_t *entry)
{
    struct moe_folder *d = h->d;
    struct moe_stored t = { .file = h->file };
    char shown[SHOWN], field[SHOWN + 16];
    int bytes = 0;
    moe_string_show((struct moe_string){ name, n }, shown, sizeof shown);
    snprintf(field, sizeof field, "tensor '%s'", shown);
    if (!json_is_object(entry))
        return moe_refuse(KN_ECORRUPT, h->path, field, "is no object");
    if (!n || n > NAME_MOST)
        return moe_refuse(KN_ECORRUPT, h->path, field, "a name of %zu bytes", n);
    int err = read_type(h, &t, json_object_get(entry, "dtype"), field, &bytes);
    t.bytes = (uint64_t)bytes;
    if (!err)
        err = read_shape(h, &t, json_object_get(entry, "shape"), field, &t.bytes);
    if (!err)
        err = read_place(h, &t, json_object_get(entry, "data_offsets"), field);
    if (!err)
        err = moe_keep_string(d->f, name, n, &t.name);
    if (!err)
        err = moe_grow(d->f, (void **)&d->stored, &d->room, d->n_stored, sizeof t);
    if (err)
        return err;
    d->stored[d->n_stored++] = t;
    err = moe_index_add(d->f, &d->by_name, stored_name, d->stored, d->n_stored);
    return err > 0 ? moe_refuse(KN_ECORRUPT, h->path, field, "another file has a tensor of this name") : err;
}

static int check_overlap(const struct header *h, size_t first)
{
    const struct moe_stored *t = h->d->stored + first;
    size_t n = h->d->n_stored - first, pair[2];
    struct moe_range *r = kn_calloc(n, sizeof *r);
    if (!r)
        return kn_fail(KN_ENOMEM, "%s: no memory to order %zu tensors", h->path, n);
    size_t n_range = 0, *nth = kn_calloc(n, sizeof *nth);
    int err = nth ? 0 : kn_fail(KN_ENOMEM, "%s: no memory to order %zu tensors", h->path, n);
    for (size_t i = 0; i < n && !err; i++)
        if (t[i].bytes) { /* a tensor without values may be anywhere */
            nth[n_range] = i;
            r[n_range++] = (struct moe_range){ t[i].offset, t[i].bytes };
        }
    if (n_range)
        err = moe_ranges_overlap(h->d->f, r, n_range, pair);
    for (int i = 0; i < 2 && err > 0; i++)
        pair[i] = nth[pair[i]];
    kn_free(r);
    kn_free(nth);
    if (err <= 0)
        return err;
    char one[SHOWN], other[SHOWN], field[SHOWN + 16];
    moe_string_show(t[pair[0]].name, other, sizeof other);
    moe_string_show(t[pair[1]].name, one, sizeof one);
    snprintf(field, sizeof field, "tensor '%s'", one);
    return moe_refuse(KN_ECORRUPT, h->path, field, "overlaps tensor '%s'", other);
}

static int read_tensors(const struct header *h, const char *text, size_t n)
{
    json_error_t e;
    json_t *root = kn_json_load(text, n, JSON_REJECT_DUPLICATES, &e), *entry;
    size_t first = h->d->n_stored;
    const char *name;
    int err = 0;
    if (!root && kn_json_lacks_memory(&e))
        return kn_fail(KN_ENOMEM, "%s: no memory to read its header", h->path);
    if (!json_is_object(root)) {
        char shown[SHOWN];
        moe_string_show((struct moe_string){ e.text, strlen(e.text) }, shown, sizeof shown);
        err = moe_refuse(KN_ECORRUPT, h->path, "header", "%s", root ? "it is no JSON object" : shown);
    }
    size_t length;
    if (!err)
        json_object_keylen_foreach(root, name, length, entry) if (strcmp(name, "__metadata__") &&
                                                                  (err = read_tensor(h, name, length, entry))) break;
    json_decref(root);
    return err || h->d->n_stored == first ? err : check_overlap(h, first);
}

int moe_safetensors_read(struct moe_folder *d, int file)
{
    struct moe_file *f = d->f;
    struct header h = { .d = d, .file = file, .path = f->path[file] };
    int64_t size = kn_io()->size(f->fd[file]);
    uint64_t n = 0;
    if (size < 0)
        return kn_fail_size(h.path);
    h.size = (uint64_t)size;
    if (h.size < sizeof n)
        return moe_refuse(KN_ESHORT, h.path, "header", "the file has %lld bytes", (long long)size);
    int err = kn_file_read(f->fd[file], h.path, &n, sizeof n, 0);
    if (err)
        return err;
    if (!memcmp(&n, MOE_LFS, sizeof n))
        return moe_refuse(KN_EUNSUPPORTED, h.path, "header", MOE_LFS_SAID);
    if (n > HEADER_MOST)
        return moe_refuse(KN_ECORRUPT, h.path, "header", "invalid length %llu; the limit is %llu",
                          (unsigned long long)n, (unsigned long long)HEADER_MOST);
    h.data = sizeof n + n;
    if (h.data > h.size)
        return moe_refuse(KN_ESHORT, h.path, "header", "needs %llu bytes where the file has %llu left",
                          (unsigned long long)n, (unsigned long long)(h.size - sizeof n));
    char *text = kn_alloc((size_t)n);
    if (!text)
        return kn_fail(KN_ENOMEM, "%s: no memory for a header of %llu bytes", h.path, (unsigned long long)n);
    err = kn_file_read(f->fd[file], h.path, text, (size_t)n, sizeof n);
    if (!err)
        err = read_tensors(&h, text, (size_t)n);
    kn_free(text);
    f->header_bytes += h.data;
    return err;
}
