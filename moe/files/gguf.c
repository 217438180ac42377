/* moe/files/gguf.c - reads the header of one GGUF file.
 *
 * Input: an open file.  Output: its metadata and tensor descriptions, added to the tables of a struct moe_file.
 * Tensor data is not read here: off_load() and the expert store read it.
 *
 * A header is untrusted input.  It is read with pread through a window of 1 MiB, never mapped.  Every length is
 * compared with the bytes left in the file before it is used.  Tables grow by the entries read, not by the count in
 * the header.  Sums and products of sizes are checked for overflow.  An error message is one line with file, field
 * and reason; the error code distinguishes a short file (plausible header, missing bytes), a corrupt file (the
 * header contradicts itself) and an unsupported file. */
#include "moe/files/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WINDOW_BYTES  ((size_t)1 << 20)
#define HEADER_MOST   ((uint64_t)1 << 28) /* 256 MiB; the largest published header is near 20 MiB */
#define STRING_MOST   ((uint64_t)1 << 24) /* chat templates reach 100 KiB */
#define KEY_MOST      65535               /* the specification's limit */
#define LENGTH_ABSURD ((uint64_t)1 << 48) /* larger than any file: the length itself is damaged */
#define SHOWN         128                 /* bytes of a name shown in a message */

struct source { /* one file while its header is read */
    struct moe_file *f;
    int file;
    const char *path;
    uint64_t size, at; /* file size; offset of the next byte to read */
    uint8_t *window;
    uint64_t window_at;
    size_t window_n;
    char field[SHOWN + 64]; /* name of the field being read, for error messages */
};

static int refuse(const struct source *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static int refuse(const struct source *s, int code, const char *fmt, ...)
{
    char reason[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    return kn_fail(code, "%s: %s: %s: %s", s->path, kn_error_text(code), s->field, reason);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Checks that n * size more bytes are in the file and within the header's limit. */
static int claim(const struct source *s, uint64_t n, size_t size)
{
    uint64_t bytes, left = s->size - s->at;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes >= LENGTH_ABSURD)
        return refuse(s, KN_ECORRUPT, "invalid length %llu", (unsigned long long)n);
    if (bytes > left)
        return refuse(s, KN_ESHORT, "needs %llu bytes where the file has %llu left: an incomplete copy?",
                      (unsigned long long)bytes, (unsigned long long)left);
    if (bytes > HEADER_MOST - s->at)
        return refuse(s, KN_ELIMIT, "needs %llu more bytes; the limit of a header is %llu", (unsigned long long)bytes,
                      (unsigned long long)HEADER_MOST);
    return 0;
}

static int take(struct source *s, void *out, size_t bytes)
{
    int err = claim(s, bytes, 1);
    if (err)
        return err;
    uint8_t *to = out;
    while (bytes) {
        uint64_t skip = s->at - s->window_at;
        if (skip >= s->window_n) {
            uint64_t left = s->size - s->at;
            size_t want = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
            err = kn_file_read(s->f->fd[s->file], s->path, s->window, want, s->at);
            if (err)
                return err;
            s->window_at = s->at;
            s->window_n = want;
            skip = 0;
        }
        size_t part = s->window_n - (size_t)skip < bytes ? s->window_n - (size_t)skip : bytes;
        memcpy(to, s->window + skip, part);
        to += part;
        bytes -= part;
        s->at += part;
    }
    return 0;
}

static int take_u32(struct source *s, uint32_t *out) { return take(s, out, sizeof *out); }
static int take_u64(struct source *s, uint64_t *out) { return take(s, out, sizeof *out); }

static int take_string(struct source *s, uint64_t most, struct moe_string *out)
{
    uint64_t n;
    int err = take_u64(s, &n);
    if (!err)
        err = claim(s, n, 1);
    if (err)
        return err;
    if (n > most)
        return refuse(s, KN_ELIMIT, "a string of %llu bytes; the limit is %llu", (unsigned long long)n,
                      (unsigned long long)most);
    char *data = moe_keep(s->f, (size_t)n);
    if (!data)
        return KN_ENOMEM;
    err = take(s, data, (size_t)n);
    if (!err)
        *out = (struct moe_string){ data, (size_t)n };
    return err;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static const uint8_t scalar_bytes[MOE_TYPE_COUNT] = {
    [MOE_U8] = 1,  [MOE_I8] = 1,   [MOE_U16] = 2, [MOE_I16] = 2, [MOE_U32] = 4, [MOE_I32] = 4,
    [MOE_F32] = 4, [MOE_BOOL] = 1, [MOE_U64] = 8, [MOE_I64] = 8, [MOE_F64] = 8,
};

static int take_scalars(struct source *s, struct moe_value *v)
{
    size_t bytes = scalar_bytes[v->item];
    int err = claim(s, v->n, bytes);
    if (err)
        return err;
    uint8_t *data = moe_keep(s->f, v->n * bytes);
    if (!data)
        return KN_ENOMEM;
    err = take(s, data, v->n * bytes);
    for (size_t i = 0; !err && v->item == MOE_BOOL && i < v->n; i++)
        if (data[i] > 1)
            err = refuse(s, KN_ECORRUPT, "a boolean is %d", data[i]);
    v->data = data;
    return err;
}

static int take_strings(struct source *s, struct moe_value *v)
{
    int err = claim(s, v->n, sizeof(uint64_t)); /* every string has at least its length field */
    if (err)
        return err;
    struct moe_string *data = moe_keep(s->f, v->n * sizeof *data);
    if (!data)
        return KN_ENOMEM;
    for (size_t i = 0; !err && i < v->n; i++)
        err = take_string(s, STRING_MOST, &data[i]);
    v->data = data;
    return err;
}

static int take_type(struct source *s, enum moe_type *out)
{
    uint32_t type;
    int err = take_u32(s, &type);
    if (err)
        return err;
    if (type >= MOE_TYPE_COUNT)
        return refuse(s, KN_ECORRUPT, "value type %u; the last known is %d", type, MOE_TYPE_COUNT - 1);
    *out = (enum moe_type)type;
    return 0;
}

static int take_value(struct source *s, struct moe_value *v)
{
    int err = take_string(s, KEY_MOST, &v->key);
    if (err)
        return err;
    if (!v->key.n)
        return refuse(s, KN_ECORRUPT, "its key is empty");
    char shown[SHOWN];
    moe_string_show(v->key, shown, sizeof shown);
    snprintf(s->field, sizeof s->field, "metadata '%s'", shown);

    err = take_type(s, &v->type);
    if (err)
        return err;
    v->item = v->type;
    v->n = 1;
    if (v->type == MOE_ARRAY) {
        uint64_t n;
        err = take_type(s, &v->item);
        if (!err && v->item == MOE_ARRAY)
            err = refuse(s, KN_EUNSUPPORTED, "an array of arrays");
        if (!err)
            err = take_u64(s, &n);
        if (err)
            return err;
        v->n = (size_t)n;
    }
    return v->item == MOE_STRING ? take_strings(s, v) : take_scalars(s, v);
}

static int read_values(struct source *s, uint64_t n, struct moe_values *values)
{
    for (uint64_t i = 0; i < n; i++) {
        snprintf(s->field, sizeof s->field, "metadata %llu of %llu", (unsigned long long)i + 1, (unsigned long long)n);
        struct moe_value v;
        int err = take_value(s, &v);
        if (!err && (err = moe_add_value(s->f, values, &v)) > 0)
            err = refuse(s, KN_ECORRUPT, "the key appears twice");
        if (err)
            return err;
    }
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Computes t->bytes, checking that rows are whole blocks.  The size of a tensor of unknown type stays 0. */
static int tensor_size(const struct source *s, struct moe_tensor *t)
{
    const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
    uint64_t values = 1;
    for (int i = 0; i < 4; i++) {
        if (!t->dim[i])
            return refuse(s, KN_ECORRUPT, "dimension %d is 0", i);
        if (__builtin_mul_overflow(values, t->dim[i], &values) || values > INT64_MAX)
            return refuse(s, KN_ECORRUPT, "its dimensions overflow");
    }
    if (!type)
        return 0;
    if (t->dim[0] % (uint64_t)type->block_values)
        return refuse(s, KN_ECORRUPT, "rows of %llu values are no whole blocks of %s (%d values)",
                      (unsigned long long)t->dim[0], type->name, type->block_values);
    if (__builtin_mul_overflow(values / (uint64_t)type->block_values, (uint64_t)type->block_bytes, &t->bytes))
        return refuse(s, KN_ECORRUPT, "its size overflows");
    return 0;
}

static void name_tensor(struct source *s, const struct moe_tensor *t)
{
    char shown[SHOWN];
    moe_string_show(t->name, shown, sizeof shown);
    snprintf(s->field, sizeof s->field, "tensor '%s'", shown);
}

static int take_tensor(struct source *s, struct moe_tensor *t)
{
    *t = (struct moe_tensor){ .file = s->file, .dim = { 1, 1, 1, 1 } };
    int err = take_string(s, KEY_MOST, &t->name);
    if (err)
        return err;
    if (!t->name.n)
        return refuse(s, KN_ECORRUPT, "its name is empty");
    name_tensor(s, t);

    uint32_t n_dim;
    err = take_u32(s, &n_dim);
    if (err)
        return err;
    if (n_dim < 1 || n_dim > 4)
        return refuse(s, KN_ECORRUPT, "%u dimensions; 1 to 4 are allowed", n_dim);
    t->n_dim = (int)n_dim;
    err = take(s, t->dim, n_dim * sizeof t->dim[0]);
    if (!err)
        err = take_u32(s, &t->gguf_type);
    if (!err && t->gguf_type >= KN_TYPE_OWN && moe_tensor_type(t->gguf_type))
        return refuse(s, KN_EUNSUPPORTED, "its type %u is not a GGUF type", t->gguf_type);
    if (!err)
        err = take_u64(s, &t->offset);
    return err ? err : tensor_size(s, t);
}

static int read_tensors(struct source *s, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        snprintf(s->field, sizeof s->field, "tensor %llu of %llu", (unsigned long long)i + 1, (unsigned long long)n);
        struct moe_tensor t;
        int err = take_tensor(s, &t);
        if (!err && (err = moe_add_tensor(s->f, &t)) > 0)
            err = refuse(s, KN_ECORRUPT, "the name appears twice");
        if (err)
            return err;
    }
    return 0;
}

static int check_overlap(struct source *s, const struct moe_tensor *t, size_t n)
{
    struct moe_range *r = kn_calloc(n, sizeof *r);
    size_t pair[2];
    if (!r)
        return kn_fail(KN_ENOMEM, "%s: no memory to order %zu tensors", s->path, n);
    for (size_t i = 0; i < n; i++)
        r[i] = (struct moe_range){ t[i].offset, t[i].bytes };
    int err = moe_ranges_overlap(s->f, r, n, pair);
    kn_free(r);
    if (err <= 0)
        return err;
    char other[SHOWN];
    moe_string_show(t[pair[0]].name, other, sizeof other);
    name_tensor(s, &t[pair[1]]);
    return refuse(s, KN_ECORRUPT, "overlaps tensor '%s'", other);
}

/* Converts offsets from relative to the end of the header to relative to the start of the file, and checks them. */
static int place_tensors(struct source *s, size_t first, uint32_t alignment)
{
    struct moe_tensors *all = &s->f->tensors;
    uint64_t data = kn_align_up(s->at, alignment);
    for (size_t i = first; i < all->n; i++) {
        struct moe_tensor *t = &all->item[i];
        uint64_t end;
        name_tensor(s, t);
        if (t->offset % alignment)
            return refuse(s, KN_ECORRUPT, "offset %llu is no multiple of %u", (unsigned long long)t->offset, alignment);
        if (__builtin_add_overflow(t->offset, data, &t->offset) || __builtin_add_overflow(t->offset, t->bytes, &end) ||
            end >= LENGTH_ABSURD)
            return refuse(s, KN_ECORRUPT, "invalid position: offset %llu, %llu bytes", (unsigned long long)t->offset,
                          (unsigned long long)t->bytes);
        if (end > s->size)
            return refuse(s, KN_ESHORT, "ends at byte %llu, the file at %llu: an incomplete copy?",
                          (unsigned long long)end, (unsigned long long)s->size);
    }
    return all->n > first ? check_overlap(s, &all->item[first], all->n - first) : 0;
}

/* ---- the header ------------------------------------------------------------------------------ */

struct header {
    char magic[4];
    uint32_t version;
    uint64_t n_tensor, n_value;
};
_Static_assert(sizeof(struct header) == 24 && sizeof MOE_LFS > 24, "GGUF header");

static int read_header(struct source *s, struct header *h)
{
    snprintf(s->field, sizeof s->field, "header");
    int err = take(s, h, sizeof *h);
    if (err)
        return err;
    if (!memcmp(h, MOE_LFS, sizeof *h))
        return refuse(s, KN_EUNSUPPORTED, MOE_LFS_SAID);
    if (memcmp(h->magic, "GGUF", 4)) {
        char shown[SHOWN];
        moe_string_show((struct moe_string){ h->magic, 4 }, shown, sizeof shown);
        return refuse(s, KN_EUNSUPPORTED, "the file begins with '%s' instead of 'GGUF'", shown);
    }
    if (h->version && !(h->version & 0xffff))
        return refuse(s, KN_EUNSUPPORTED, "big-endian GGUF; convert it to little-endian");
    if (h->version != 2 && h->version != 3)
        return refuse(s, KN_EUNSUPPORTED, "GGUF version %u; versions 2 and 3 are read", h->version);
    return 0;
}

static int read_alignment(struct source *s, const struct moe_values *values, uint32_t *out)
{
    const struct moe_value *v = moe_find_value(s->f, values, "general.alignment");
    *out = 32;
    if (!v)
        return 0;
    snprintf(s->field, sizeof s->field, "metadata 'general.alignment'");
    if (v->type != MOE_U32)
        return refuse(s, KN_ECORRUPT, "must be a 32-bit unsigned integer");
    memcpy(out, v->data, sizeof *out);
    if (*out & (*out - 1) || !*out)
        return refuse(s, KN_ECORRUPT, "%u is no power of two", *out);
    if (*out % 8) /* GGUF requires it, and repacking needs aligned 16-bit fields */
        return refuse(s, KN_ECORRUPT, "%u is no multiple of 8", *out);
    return 0;
}

static int read_all(struct source *s, struct moe_values *values)
{
    struct header h;
    uint32_t alignment;
    size_t first = s->f->tensors.n;
    int err = read_header(s, &h);
    if (!err)
        err = read_values(s, h.n_value, values);
    if (!err)
        err = read_alignment(s, values, &alignment);
    if (!err)
        err = read_tensors(s, h.n_tensor);
    if (!err)
        s->f->header_bytes += s->at;
    return err ? err : place_tensors(s, first, alignment);
}

int moe_gguf_read(struct moe_file *f, int file, struct moe_values *values)
{
    struct source s = { .f = f, .file = file, .path = f->path[file] };
    int64_t size = kn_io()->size(f->fd[file]);
    if (size < 0)
        return errno == EISDIR ? 1 : kn_fail_size(s.path);
    s.size = (uint64_t)size;
    s.window = kn_alloc(s.size < WINDOW_BYTES ? (size_t)s.size : WINDOW_BYTES);
    if (!s.window)
        return kn_fail(KN_ENOMEM, "%s: no memory to read its header", s.path);
    int err = read_all(&s, values);
    kn_free(s.window);
    return err;
}
