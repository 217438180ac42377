/* moe/files/file.c - a model file: one GGUF file, all of its splits as one file, or a folder.
 *
 * Input: the path of the file, of its first split or of the folder.  gguf.c reads the headers of a GGUF file,
 * hf_folder.c a folder.  Output: metadata values and tensor descriptions by number or by name.  file_values.c checks
 * scalars for type and range, file_bytes.c reads the bytes of tensors.  The file owns its descriptors, the metadata and
 * the descriptions.
 *
 * Each split holds its number, the number of splits and the number of tensors in all of them; the first split holds the
 * metadata.  Split names differ only in their suffix -00001-of-0000N.gguf. */
#include "moe/files/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define SPLIT_MOST  4096
#define SUFFIX      (sizeof "-00001-of-00001.gguf" - 1)
#define SUFFIX_MOST 64 /* buffer size: fits any two ints */

/* ---- opening --------------------------------------------------------------------------------- */

/* Reads an integer of a split's header; *out is untouched if the key is absent.  Programs that split files write
 * different integer types. */
static int split_int(const struct moe_file *f, int file, const struct moe_values *values, const char *key, int64_t most,
                     int64_t *out)
{
    const struct moe_value *v = moe_find_value(f, values, key);
    if (!v)
        return 0;
    if (v->type == MOE_STRING || v->type == MOE_ARRAY || v->type == MOE_BOOL)
        return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': must be an integer", f->path[file],
                       kn_error_text(KN_ECORRUPT), key);
    int64_t x = moe_value_int(v, 0);
    if (x < 0 || x > most)
        return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': %lld is not within 0 to %lld", f->path[file],
                       kn_error_text(KN_ECORRUPT), key, (long long)x, (long long)most);
    *out = x;
    return 0;
}

static void values_free(struct moe_values *v)
{
    kn_free(v->item);
    kn_free(v->by_key.slot);
    *v = (struct moe_values){ 0 };
}

/* Opens path as entry `file` and reads its header.  Returns 1, without a message, if path is a folder. */
static int open_one(struct moe_file *f, int file, const char *path, struct moe_values *values)
{
    int err = moe_file_open_nth(f, file, path);
    return err ? err : moe_gguf_read(f, file, values);
}

/* Opens split `no` (from 0) of n; its name is derived from the first split's.  Of its metadata only the split numbers
 * are checked; none is stored. */
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
        err = kn_fail(KN_EIO, "%s: expected a split of the model, found a folder", path);
    if (!err)
        err = split_int(f, no, &values, "split.no", INT32_MAX, &its_no);
    if (!err)
        err = split_int(f, no, &values, "split.count", INT32_MAX, &its_n);
    if (!err && (its_no != no || its_n != n))
        err = kn_fail(KN_ECORRUPT, "%s: %s: expected split %d of %d, but its header says %lld of %lld", path,
                      kn_error_text(KN_ECORRUPT), no + 1, n, (long long)its_no + 1, (long long)its_n);
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
        return kn_fail(KN_EINVAL, "%s: this is split %d of %d; pass the first split", path, (int)no + 1, (int)n);
    char suffix[SUFFIX_MOST];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", 1, (int)n);
    if (strlen(path) < SUFFIX || strcmp(path + strlen(path) - SUFFIX, suffix))
        return kn_fail(KN_EINVAL,
                       "%s: this is split 1 of %d; its name must end in %s, or the "
                       "other splits cannot be found",
                       path, (int)n, suffix);
    err = moe_file_reserve(f, (int)n);
    for (int i = 1; !err && i < n; i++)
        err = open_split(f, i, (int)n);
    if (!err && n_tensor >= 0 && (uint64_t)n_tensor != f->tensors.n)
        err = kn_fail(KN_ECORRUPT,
                      "%s: %s: metadata 'split.tensors.count': %lld, but the %d "
                      "splits have %zu tensors",
                      path, kn_error_text(KN_ECORRUPT), (long long)n_tensor, (int)n, f->tensors.n);
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

/* Compares files by device and inode, so that another path to an input file is refused too. */
int moe_file_refuse_target(const struct moe_file *f, const char *path)
{
    struct stat in, out;
    for (int i = 0; i < f->files.n_file; i++)
        if (!fstat(f->fd[i], &in) && !stat(path, &out) && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return kn_fail(KN_EINVAL, "%s: this would overwrite the input; choose another output file", path);
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
