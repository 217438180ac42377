/* moe/write/writer.c - writes a GGUF file (version 3) from front to back.
 *
 * Input: metadata, then tensor descriptions, then the tensors' bytes in the same order.  Output: a file that gets its
 * name only when it is complete: it is written under a temporary name beside the target, synced to disk, and renamed.
 * A failure before the rename removes the temporary file.
 *
 * The two lists of the header, metadata and tensors, are buffered in memory, because their lengths come before them in
 * the file. */
#include "moe/moe.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT 32 /* GGUF's default, so general.alignment is not written */

struct bytes {
    uint8_t *data;
    size_t n, room;
};

struct moe_writer {
    struct kn_new_file file;
    struct bytes values, tensors; /* the header's two lists, as in the file */
    uint64_t n_value, n_tensor;
    uint64_t *tensor_bytes; /* [n_tensor] */
    size_t tensor_room;
    uint64_t data_bytes; /* tensors with their padding */
    bool header_done;
    uint64_t at;                    /* file offset of the next byte */
    uint64_t current, current_done; /* the tensor being written, and its bytes so far */
    int err;                        /* the first failure; later calls repeat it */
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static void put(struct moe_writer *w, struct bytes *b, const void *data, size_t n)
{
    if (w->err || !n)
        return;
    if (b->room - b->n < n) {
        size_t room = kn_align_up(b->n + n, 1 << 16) + b->room;
        uint8_t *p = kn_realloc(b->data, b->room, room);
        if (!p) {
            w->err = kn_fail(KN_ENOMEM, "%s: no memory for a header of %zu bytes", w->file.path, room);
            return;
        }
        b->data = p;
        b->room = room;
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_u32(struct moe_writer *w, struct bytes *b, uint32_t x) { put(w, b, &x, sizeof x); }
static void put_u64(struct moe_writer *w, struct bytes *b, uint64_t x) { put(w, b, &x, sizeof x); }

static void put_string(struct moe_writer *w, struct bytes *b, const char *s, size_t n)
{
    put_u64(w, b, n);
    put(w, b, s, n);
}

static size_t scalar_bytes(enum moe_type t)
{
    switch (t) {
    case MOE_U8:
    case MOE_I8:
    case MOE_BOOL:
        return 1;
    case MOE_U16:
    case MOE_I16:
        return 2;
    case MOE_U32:
    case MOE_I32:
    case MOE_F32:
        return 4;
    case MOE_U64:
    case MOE_I64:
    case MOE_F64:
        return 8;
    default:
        return 0;
    }
}

/* ---- the file under its temporary name ------------------------------------------------------- */

int moe_writer_open(struct moe_writer **out, const char *path)
{
    if (kn_file_refuse_other(path, "GGUF", "model")) /* refused here, not by the rename after hours of work */
        return KN_EINVAL;
    struct moe_writer *w = kn_calloc(1, sizeof *w);
    if (!w)
        return kn_fail(KN_ENOMEM, "%s: no memory to write it", path);
    int err = kn_new_file_open(&w->file, path, 0644);
    if (err) {
        moe_writer_close(w);
        return err;
    }
    *out = w;
    return 0;
}

void moe_writer_close(struct moe_writer *w)
{
    if (!w)
        return;
    kn_new_file_close(&w->file);
    kn_free(w->values.data);
    kn_free(w->tensors.data);
    kn_free(w->tensor_bytes);
    kn_free(w);
}

/* ---- header ---------------------------------------------------------------------------------- */

static void put_named(struct moe_writer *w, struct moe_string key, enum moe_type type)
{
    kn_assert(!w->header_done);
    put_string(w, &w->values, key.data, key.n);
    put_u32(w, &w->values, type);
    w->n_value++;
}

static void put_key(struct moe_writer *w, const char *key, enum moe_type type)
{
    put_named(w, (struct moe_string){ key, strlen(key) }, type);
}

static void put_items(struct moe_writer *w, enum moe_type item, const void *data, size_t n)
{
    if (item != MOE_STRING)
        put(w, &w->values, data, n * scalar_bytes(item));
    const struct moe_string *s = data;
    for (size_t i = 0; item == MOE_STRING && i < n; i++)
        put_string(w, &w->values, s[i].data, s[i].n);
}

int moe_writer_value(struct moe_writer *w, const char *key, enum moe_type type, const void *value)
{
    kn_assert(scalar_bytes(type));
    put_key(w, key, type);
    put(w, &w->values, value, scalar_bytes(type));
    return w->err;
}

int moe_writer_string(struct moe_writer *w, const char *key, const char *s, size_t n)
{
    put_key(w, key, MOE_STRING);
    put_string(w, &w->values, s, n);
    return w->err;
}

int moe_writer_array(struct moe_writer *w, const char *key, enum moe_type item, const void *data, size_t n)
{
    kn_assert(scalar_bytes(item) || item == MOE_STRING);
    put_key(w, key, MOE_ARRAY);
    put_u32(w, &w->values, item);
    put_u64(w, &w->values, n);
    put_items(w, item, data, n);
    return w->err;
}

int moe_writer_copy(struct moe_writer *w, const struct moe_value *v)
{
    put_named(w, v->key, v->type);
    if (v->type == MOE_ARRAY) {
        put_u32(w, &w->values, v->item);
        put_u64(w, &w->values, v->n);
    }
    put_items(w, v->item, v->data, v->n);
    return w->err;
}

static int tensor_size(struct moe_writer *w, const char *name, enum kn_format f, int n_dim, const uint64_t *dim,
                       uint64_t *bytes)
{
    size_t row = dim[0] <= INT32_MAX ? kn_row_bytes(f, (int)dim[0]) : 0;
    if (!row)
        return w->err = kn_fail(KN_EINVAL,
                                "%s: tensor '%s': rows of %llu values are no whole "
                                "blocks of %s",
                                w->file.path, name, (unsigned long long)dim[0], kn_format_info(f)->name);
    *bytes = row;
    for (int i = 1; i < n_dim; i++)
        if (!dim[i] || __builtin_mul_overflow(*bytes, dim[i], bytes) || *bytes > INT64_MAX / 2)
            return w->err = kn_fail(KN_EINVAL, "%s: tensor '%s': its size overflows", w->file.path, name);
    return 0;
}

static int list_tensor(struct moe_writer *w, const char *name, uint32_t type, int n_dim, const uint64_t *dim,
                       uint64_t bytes)
{
    kn_assert(!w->header_done && n_dim >= 1 && n_dim <= 4);
    if (w->n_tensor == w->tensor_room) {
        size_t room = w->tensor_room ? w->tensor_room * 2 : 256;
        uint64_t *p = kn_realloc(w->tensor_bytes, w->tensor_room * sizeof *p, room * sizeof *p);
        if (!p)
            return w->err = kn_fail(KN_ENOMEM, "%s: no memory for %zu tensors", w->file.path, room);
        w->tensor_bytes = p;
        w->tensor_room = room;
    }
    put_string(w, &w->tensors, name, strlen(name));
    put_u32(w, &w->tensors, (uint32_t)n_dim);
    put(w, &w->tensors, dim, (size_t)n_dim * sizeof *dim);
    put_u32(w, &w->tensors, type);
    put_u64(w, &w->tensors, w->data_bytes);
    w->tensor_bytes[w->n_tensor++] = bytes;
    w->data_bytes += kn_align_up(bytes, ALIGNMENT);
    return w->err;
}

int moe_writer_tensor(struct moe_writer *w, const char *name, enum kn_format f, int n_dim, const uint64_t *dim)
{
    uint64_t bytes = 0;
    if (w->err || tensor_size(w, name, f, n_dim, dim, &bytes))
        return w->err;
    return list_tensor(w, name, (uint32_t)kn_format_info(f)->gguf_type, n_dim, dim, bytes);
}

int moe_writer_ids(struct moe_writer *w, const char *name, uint64_t n)
{
    if (w->err)
        return w->err;
    return list_tensor(w, name, MOE_TENSOR_I64, 1, &n, n * sizeof(int64_t));
}

static void write_out(struct moe_writer *w, const void *data, size_t n)
{
    if (w->err || !n)
        return;
    w->err = kn_file_write(w->file.fd, w->file.path, data, n, w->at);
    w->at += n;
}

static void write_padding(struct moe_writer *w)
{
    static const uint8_t zero[ALIGNMENT];
    write_out(w, zero, kn_align_up(w->at, ALIGNMENT) - w->at);
}

int moe_writer_header(struct moe_writer *w)
{
    kn_assert(!w->header_done);
    struct {
        char magic[4];
        uint32_t version;
        uint64_t n_tensor, n_value;
    } head = {
        { 'G', 'G', 'U', 'F' },
        3,
        w->n_tensor,
        w->n_value,
    };
    write_out(w, &head, sizeof head);
    write_out(w, w->values.data, w->values.n);
    write_out(w, w->tensors.data, w->tensors.n);
    write_padding(w);
    w->header_done = true;
    return w->err;
}

/* ---- data ------------------------------------------------------------------------------------ */

int moe_writer_data(struct moe_writer *w, const void *data, size_t bytes)
{
    kn_assert(w->header_done);
    const uint8_t *from = data;
    while (bytes && !w->err) {
        kn_assert(w->current < w->n_tensor); /* more data than tensors added */
        uint64_t left = w->tensor_bytes[w->current] - w->current_done;
        size_t part = left < bytes ? (size_t)left : bytes;
        write_out(w, from, part);
        from += part;
        bytes -= part;
        w->current_done += part;
        if (part == left) {
            write_padding(w);
            w->current++;
            w->current_done = 0;
        }
    }
    return w->err;
}

int moe_writer_finish(struct moe_writer *w)
{
    kn_assert(w->header_done && (w->err || w->current == w->n_tensor));
    if (!w->err)
        w->err = kn_new_file_commit(&w->file);
    return w->err;
}
