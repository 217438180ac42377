/* moe/files/file.c - a model file: one GGUF file, all of its splits as if they were one, or a folder.
 *
 * Owns the file descriptors and everything the headers say (gguf.c reads them, folder.c what is in a
 * folder).  In comes the path of the file, of its first split or of the folder; out come metadata values
 * and tensor descriptions, by number or by name, scalars checked for kind and range, and tensors' bytes.
 *
 * A split says its number, how many there are and how many tensors they hold together; the first
 * has the metadata.  Their names differ only in -00001-of-0000N.gguf at the end. */
#include "moe/files/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define SPLIT_MOST 4096
#define SUFFIX     (sizeof "-00001-of-00001.gguf" - 1)
#define SUFFIX_MOST 64                      /* for numbers that are no split's */

/* ---- opening --------------------------------------------------------------------------------- */

/* Integers of a split's header; a missing one leaves the value.  Kinds differ between the programs
 * that wrote it. */
static int split_int(const struct moe_file *f, int file, const struct moe_values *values,
                     const char *key, int64_t most, int64_t *out)
{
    const struct moe_value *v = moe_find_value(f, values, key);
    if (!v)
        return 0;
    if (v->type == MOE_STRING || v->type == MOE_ARRAY || v->type == MOE_BOOL)
        return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': must be an integer", f->path[file],
                       kn_error_text(KN_ECORRUPT), key);
    int64_t x = moe_value_int(v, 0);
    if (x < 0 || x > most)
        return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': %lld is not within 0 to %lld",
                       f->path[file], kn_error_text(KN_ECORRUPT), key, (long long)x,
                       (long long)most);
    *out = x;
    return 0;
}

static void values_free(struct moe_values *v)
{
    kn_free(v->item);
    kn_free(v->by_key.slot);
    *v = (struct moe_values){ 0 };
}

/* 1: it is a folder. */
static int open_one(struct moe_file *f, int file, const char *path, struct moe_values *values)
{
    int err = moe_file_open_nth(f, file, path);
    return err ? err : moe_gguf_read(f, file, values);
}

/* Split `no` of n, whose name is made from the first's.  Its metadata is only about itself. */
static int open_split(struct moe_file *f, int no, int n)
{
    const char *first = f->path[0];
    size_t stem = strlen(first) - SUFFIX;
    char *path = kn_alloc(stem + SUFFIX_MOST);
    if (!path)
        return kn_fail(KN_ENOMEM, "%s: no memory for the name of split %d", first, no + 1);
    memcpy(path, first, stem);
    snprintf(path + stem, SUFFIX_MOST, "-%05d-of-%05d.gguf", no + 1, n);

    struct moe_values values = { 0 };
    int64_t its_no = -1, its_n = -1;
    int err = open_one(f, no, path, &values);
    if (err > 0)
        err = kn_fail(KN_EIO, "%s: it is a folder", path);
    if (!err)
        err = split_int(f, no, &values, "split.no", INT32_MAX, &its_no);
    if (!err)
        err = split_int(f, no, &values, "split.count", INT32_MAX, &its_n);
    if (!err && (its_no != no || its_n != n))
        err = kn_fail(KN_ECORRUPT, "%s: %s: it should be split %d of %d, and says %lld of %lld",
                      path, kn_error_text(KN_ECORRUPT), no + 1, n, (long long)its_no + 1,
                      (long long)its_n);
    values_free(&values);
    kn_free(path);
    return err;
}

static int open_splits(struct moe_file *f)
{
    int64_t no = 0, n = 1, n_tensor = -1;
    const char *path = f->path[0];
    int err = split_int(f, 0, &f->values, "split.count", SPLIT_MOST, &n);
    if (!err)
        err = split_int(f, 0, &f->values, "split.no", SPLIT_MOST, &no);
    if (!err)
        err = split_int(f, 0, &f->values, "split.tensors.count", INT64_MAX, &n_tensor);
    if (err || n <= 1)
        return err;

    if (no)
        return kn_fail(KN_EINVAL, "%s: this is split %d of %d; give the first", path, (int)no + 1,
                       (int)n);
    char suffix[SUFFIX_MOST];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", 1, (int)n);
    if (strlen(path) < SUFFIX || strcmp(path + strlen(path) - SUFFIX, suffix))
        return kn_fail(KN_EINVAL, "%s: it is split 1 of %d, so its name must end in %s for the "
                       "others to be found", path, (int)n, suffix);
    err = moe_file_reserve(f, (int)n);
    for (int i = 1; !err && i < n; i++)
        err = open_split(f, i, (int)n);
    if (!err && n_tensor >= 0 && (uint64_t)n_tensor != f->tensors.n)
        err = kn_fail(KN_ECORRUPT, "%s: %s: metadata 'split.tensors.count': %lld, but the %d "
                      "splits have %zu tensors", path, kn_error_text(KN_ECORRUPT), (long long)n_tensor,
                      (int)n, f->tensors.n);
    return err;
}

static int open_any(struct moe_file *f)
{
    int err = moe_file_reserve(f, 1);
    if (!err)
        err = open_one(f, 0, f->name, &f->values);
    if (err <= 0)
        return err ? err : open_splits(f);
    kn_file_close(f->fd[0]);
    kn_free(f->path[0]);
    f->files.n_file = 0;
    return moe_folder_open(f);
}

int moe_file_open(struct moe_file **out, const char *path)
{
    struct moe_file *f = kn_calloc(1, sizeof *f);
    if (!f)
        return kn_fail(KN_ENOMEM, "%s: no memory to open it", path);
    f->hash_seed = kn_mix(kn_now_ns() + KN_GOLDEN);
    f->name = kn_strdup(path);
    int err = f->name ? 0 : kn_fail(KN_ENOMEM, "%s: no memory to open it", path);
    if (!err)
        err = open_any(f);
    if (err) {
        moe_file_close(f);
        return err;
    }
    *out = f;
    return 0;
}

void moe_file_close(struct moe_file *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->files.n_file; i++) {
        kn_file_close(f->fd[i]);
        kn_free(f->path[i]);
    }
    kn_free(f->fd);
    kn_free(f->path);
    kn_free(f->name);
    values_free(&f->values);
    kn_free(f->tensors.item);
    kn_free(f->tensors.by_name.slot);
    for (struct moe_text_chunk *b = f->text, *next; b; b = next) {
        next = b->next;
        kn_free(b);
    }
    kn_free(f);
}

/* The rename at the end of writing would put the output in the input's place. */
int moe_file_refuse_target(const struct moe_file *f, const char *path)
{
    struct stat in, out;
    for (int i = 0; i < f->files.n_file; i++)
        if (!fstat(f->fd[i], &in) && !stat(path, &out) && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return kn_fail(KN_EINVAL, "%s: it is what is read; name another file to write", path);
    return kn_file_refuse_target(path);
}

/* ---- looking up ------------------------------------------------------------------------------ */

const char *moe_file_path(const struct moe_file *f) { return f->name; }
const struct off_files *moe_file_files(const struct moe_file *f) { return &f->files; }
uint64_t moe_file_header_bytes(const struct moe_file *f) { return f->header_bytes; }
size_t moe_file_value_count(const struct moe_file *f) { return f->values.n; }
size_t moe_file_tensor_count(const struct moe_file *f) { return f->tensors.n; }

const struct moe_value *moe_file_value(const struct moe_file *f, size_t i)
{
    kn_assert(i < f->values.n);
    return &f->values.item[i];
}

const struct moe_tensor *moe_file_tensor(const struct moe_file *f, size_t i)
{
    kn_assert(i < f->tensors.n);
    return &f->tensors.item[i];
}

const struct moe_value *moe_file_find(const struct moe_file *f, const char *key)
{
    return moe_find_value(f, &f->values, key);
}

const struct moe_tensor *moe_file_find_tensor(const struct moe_file *f, const char *name)
{
    return moe_find_tensor(f, name);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Where the byte lies that is meant to be `at`, of a matrix; *left: so many follow it in either order. */
static uint64_t turned_from(const struct off_turn *t, uint64_t at, uint64_t *left)
{
    if (at < t->first) {
        *left = t->first - at;
        return at;
    }
    uint64_t unit = (at - t->first) / t->bytes, in = (at - t->first) % t->bytes, n = (uint64_t)t->n;
    *left = t->bytes - in;
    return t->first + (unit / n * n + (uint64_t)off_turned(t, (int)(unit % n))) * t->bytes + in;
}

/* A vector's values that lie apart. */
static int read_apart(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    uint8_t some[4096];
    size_t step = (size_t)t->layout->step, one = (size_t)moe_tensor_type(t->gguf_type)->block_bytes;
    kn_assert(from % one == 0 && bytes % one == 0 && step * one <= sizeof some);
    for (size_t part; bytes; bytes -= part, from += part, out += part) {
        size_t n = sizeof some / (step * one);
        n = n < bytes / one ? n : bytes / one;
        part = n * one;
        int error = kn_file_read(f->fd[t->file], f->path[t->file], some, ((n - 1) * step + 1) * one,
                                 t->offset + from * step);
        if (error)
            return error;
        for (size_t i = 0; i < n; i++)
            memcpy(out + i * one, some + i * step * one, one);
    }
    return 0;
}

enum { SOME = 128, ROWS = 64 };                 /* blocks of a row, or a block of rows, at a time */

/* Of blocks whose scales lie apart n, in one row: block `col` of row `row` of matrix e. */
static int join_some(const struct moe_file *f, const struct moe_tensor *t, uint64_t e, uint64_t row, uint64_t col,
                     size_t n, uint8_t *out)
{
    uint8_t codes[SOME * 128], scale[SOME * 4];
    const struct moe_layout *l = t->layout;
    const struct off_scales *s = &l->scales[l->slab ? e : 0];
    enum kn_format format = KN_F32;
    kn_assert(kn_format_from_gguf(t->gguf_type, &format) == 0 && n <= SOME);
    uint64_t block = (uint64_t)kn_format_info(format)->block_values, code = kn_code_bytes(format);
    struct moe_place at = { t->file, t->offset };
    if (l->slab)
        at = l->slab[e];
    else
        row += e * t->dim[1];
    row *= l->step ? (uint64_t)l->step : 1;
    uint64_t per_row = (t->dim[0] + (uint64_t)s->values - 1) / (uint64_t)s->values;
    uint64_t per_scale = (uint64_t)s->values / block;
    uint64_t first = row / (uint64_t)s->rows * per_row + col / per_scale;
    size_t n_scale = (size_t)((col + n - 1) / per_scale - col / per_scale) + 1;
    int error = kn_file_read(f->fd[at.file], f->path[at.file], codes, n * code,
                             at.offset + (row * (t->dim[0] / block) + col) * code);
    if (!error)
        error = kn_file_read(f->fd[s->file], f->path[s->file], scale, n_scale * (size_t)s->bytes,
                             s->offset + first * (uint64_t)s->bytes);
    if (!error)
        kn_join(format, codes, scale, s->bytes, (int)per_scale, n, out);
    return error;
}

/* The same where inputs come first: of n rows block `col`, n_row blocks apart; five reads, however many rows. */
static int join_column(const struct moe_file *f, const struct moe_tensor *t, uint64_t e, uint64_t row, uint64_t col,
                       size_t n, uint64_t n_row, uint8_t *out)
{
    uint32_t word[4][ROWS], code[4];
    uint16_t scale[ROWS];
    const struct off_scales *s = &t->layout->scales[t->layout->slab ? e : 0];
    enum kn_format format = KN_F32;
    kn_assert(kn_format_from_gguf(t->gguf_type, &format) == 0 && n <= ROWS);
    struct moe_place at = t->layout->slab ? t->layout->slab[e] : (struct moe_place){ t->file, t->offset };
    size_t block = (size_t)kn_format_info(format)->block_bytes;
    uint64_t n_out = t->dim[1], group = col * (uint64_t)kn_format_info(format)->block_values / (uint64_t)s->values;
    int error = kn_file_read(f->fd[s->file], f->path[s->file], scale, n * sizeof *scale,
                             s->offset + (group * n_out + row) * sizeof *scale);
    for (uint64_t i = 0; i < 4 && !error; i++)
        error = kn_file_read(f->fd[at.file], f->path[at.file], word[i], n * sizeof *code,
                             at.offset + ((4 * col + i) * n_out + row) * sizeof *code);
    for (size_t r = 0; r < n && !error; r++) {
        for (int i = 0; i < 4; i++)
            code[i] = word[i][r];
        kn_join(format, code, &scale[r], sizeof *scale, 1, 1, out + r * n_row * block);
    }
    return error;
}

static int read_turned(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
    size_t block = (size_t)type->block_bytes;
    uint64_t n_row = t->dim[0] / (uint64_t)type->block_values, at = from / block, left = bytes / block, rows, cols;
    kn_assert(from % block == 0 && bytes % block == 0);
    for (; left; left -= rows * cols, at += rows * cols, out += rows * cols * block) {
        uint64_t row = at / n_row, col = at % n_row, below = t->dim[1] - row % t->dim[1];
        rows = col ? 1 : left / n_row;
        rows = rows < 1 ? 1 : rows < below ? rows : below;
        rows = rows < ROWS ? rows : ROWS;
        cols = n_row - col < left ? n_row - col : left;
        for (uint64_t c = 0; c < cols; c++) {
            int error = join_column(f, t, row / t->dim[1], row % t->dim[1], col + c, (size_t)rows, n_row,
                                    out + c * block);
            if (error)
                return error;
        }
    }
    return 0;
}

static int read_joined(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
    const struct off_scales *s = t->layout->scales;
    size_t block = (size_t)type->block_bytes, left = bytes / block, n;
    uint64_t n_row = t->dim[0] / (uint64_t)type->block_values, at = from / block;
    uint64_t per_scale = (uint64_t)s->values / (uint64_t)type->block_values;
    kn_assert(from % block == 0 && bytes % block == 0);
    for (; left; left -= n, at += n, out += n * block) {
        uint64_t row = at / n_row, col = at % n_row;
        uint64_t most = per_scale > 1 ? per_scale - col % per_scale : SOME;     /* one's begin with it */
        n = n_row - col < left ? (size_t)(n_row - col) : left;
        n = n < most ? n : (size_t)most;
        n = n < SOME ? n : SOME;
        int error = join_some(f, t, row / t->dim[1], row % t->dim[1], col, n, out);
        if (error)
            return error;
    }
    return 0;
}

int moe_file_read(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, void *out, size_t bytes)
{
    const struct moe_layout *l = t->layout;
    uint8_t *to = out;
    kn_assert(from <= t->bytes && bytes <= t->bytes - from);
    if (!l)
        return kn_file_read(f->fd[t->file], f->path[t->file], out, bytes, t->offset + from);
    if (l->data)
        memcpy(out, (const uint8_t *)l->data + from, bytes);
    if (l->data)
        return 0;
    if (l->scales)
        return (l->scales->by_input ? read_turned : read_joined)(f, t, from, out, bytes);
    if (l->step)
        return read_apart(f, t, from, out, bytes);
    uint64_t slab = t->bytes / (t->dim[2] * t->dim[3]);
    for (size_t part; bytes; bytes -= part, from += part, to += part) {
        struct moe_place at = { t->file, t->offset + from / slab * slab };
        uint64_t within = from % slab, left = slab - within;
        if (l->slab)
            at = l->slab[from / slab];
        if (l->turn.n)
            within = turned_from(&l->turn, within, &left);
        part = left < bytes ? (size_t)left : bytes;
        int error = kn_file_read(f->fd[at.file], f->path[at.file], to, part, at.offset + within);
        if (error)
            return error;
    }
    return 0;
}

/* ---- identity --------------------------------------------------------------------------------- */

#define N_SAMPLE 16

static uint64_t fold(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)data + i, bytes - i < 8 ? bytes - i : 8);
        h = kn_mix(h + KN_GOLDEN + word);
    }
    return h;
}

int moe_file_id(const struct moe_file *f, uint64_t *out)
{
    uint64_t h = f->tensors.n, sample[64];
    for (size_t i = 0; i < f->tensors.n; i++) {
        const struct moe_tensor *t = &f->tensors.item[i];
        uint64_t shape[4] = { t->offset, t->bytes, t->gguf_type, (uint64_t)t->file };
        h = fold(fold(h, shape, sizeof shape), t->name.data, t->name.n);
    }
    for (size_t i = 0; i < N_SAMPLE && f->tensors.n; i++) {     /* of the weights: one fine-tune is not another */
        const struct moe_tensor *t = &f->tensors.item[f->tensors.n * i / N_SAMPLE];
        size_t bytes = t->bytes < sizeof sample ? (size_t)t->bytes : sizeof sample;
        if (t->layout && t->layout->scales)     /* whole blocks */
            bytes -= bytes % (size_t)moe_tensor_type(t->gguf_type)->block_bytes;
        int error = moe_file_read(f, t, 0, sample, bytes);
        if (error)
            return error;
        h = fold(h, sample, bytes);
    }
    *out = h;
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static enum moe_type number_type(const struct moe_value *v)
{
    return v->type == MOE_ARRAY ? v->item : v->type;
}

static bool is_integer(enum moe_type t)
{
    return t <= MOE_I32 || t == MOE_U64 || t == MOE_I64;
}

/* Item i as its bits in a 64-bit word; every scalar is stored packed, little-endian. */
static uint64_t load(const struct moe_value *v, size_t i, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, (const uint8_t *)v->data + i * bytes, bytes);
    return word;
}

int64_t moe_value_int(const struct moe_value *v, size_t i)
{
    switch (number_type(v)) {
    case MOE_U8: case MOE_BOOL: return (int64_t)load(v, i, 1);
    case MOE_I8:  return (int8_t)load(v, i, 1);
    case MOE_U16: return (int64_t)load(v, i, 2);
    case MOE_I16: return (int16_t)load(v, i, 2);
    case MOE_U32: return (int64_t)load(v, i, 4);
    case MOE_I32: return (int32_t)load(v, i, 4);
    case MOE_U64: {                             /* what does not fit is as large as can be */
        uint64_t x = load(v, i, 8);
        return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    }
    case MOE_I64: return (int64_t)load(v, i, 8);
    case MOE_F32: case MOE_F64: {
        double x = moe_value_float(v, i);
        return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : 0;
    }
    default: return 0;
    }
}

double moe_value_float(const struct moe_value *v, size_t i)
{
    union { uint64_t bits; double x; } wide;
    union { uint32_t bits; float x; } narrow;
    switch (number_type(v)) {
    case MOE_F32: narrow.bits = (uint32_t)load(v, i, 4); return narrow.x;
    case MOE_F64: wide.bits = load(v, i, 8); return wide.x;
    case MOE_U64: return (double)load(v, i, 8);
    default:      return (double)moe_value_int(v, i);
    }
}

bool moe_string_is(struct moe_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.data, text, s.n);
}

static int wrong_kind(const struct moe_file *f, const char *key, const char *kind)
{
    return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': must be %s", f->name,
                   kn_error_text(KN_ECORRUPT), key, kind);
}

int moe_file_int(const struct moe_file *f, const char *key, int64_t least, int64_t most,
                 int64_t *out)
{
    const struct moe_value *v = moe_file_find(f, key);
    if (!v)
        return 0;
    if (!is_integer(v->type))
        return wrong_kind(f, key, "an integer");
    int64_t x = moe_value_int(v, 0);
    if (x < least || x > most)
        return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': %lld is not within %lld to %lld",
                       f->name, kn_error_text(KN_ECORRUPT), key, (long long)x, (long long)least,
                       (long long)most);
    *out = x;
    return 1;
}

int moe_file_float(const struct moe_file *f, const char *key, double *out)
{
    const struct moe_value *v = moe_file_find(f, key);
    if (!v)
        return 0;
    if (v->type != MOE_F32 && v->type != MOE_F64)
        return wrong_kind(f, key, "a floating-point number");
    double x = moe_value_float(v, 0);
    if (!isfinite(x))
        return wrong_kind(f, key, "finite");
    *out = x;
    return 1;
}

int moe_file_bool(const struct moe_file *f, const char *key, bool *out)
{
    const struct moe_value *v = moe_file_find(f, key);
    if (!v)
        return 0;
    if (v->type != MOE_BOOL)
        return wrong_kind(f, key, "a boolean");
    *out = moe_value_int(v, 0) != 0;
    return 1;
}

int moe_file_string(const struct moe_file *f, const char *key, struct moe_string *out)
{
    const struct moe_value *v = moe_file_find(f, key);
    if (!v)
        return 0;
    if (v->type != MOE_STRING)
        return wrong_kind(f, key, "a string");
    *out = *(const struct moe_string *)v->data;
    return 1;
}
