/* moe/write/importance.c - importance matrices: how much the rounding error of each column of a matrix counts.
 *
 * The weight of a column is the mean square of its inputs over a calibration text: the expected squared error of a product
 * is the sum of the columns' squared errors times these, if inputs are not correlated.  llama.cpp writes them in two forms,
 * and both are read:
 *
 *     GGUF   general.type "imatrix"; for each matrix or stack of matrices NAME the tensors NAME.in_sum2 [n_in, n_matrix],
 *            sums of squares, and NAME.counts, the number of rows in each sum
 *     dat    int32 n; then n times: int32 length, name, int32 calls, int32 n_value, float32 [n_value], which are means
 *            times calls.  The text's name may follow
 *
 * The open lists the entries.  moe_importance_read() reads one and scales it for the encoders: a mean of 1 for each matrix,
 * so that counts and calls do not matter, within the limits that kn_ops.encode() states.  An expert that no row reached
 * has weights of 1. */
#include "moe/files/files.h"

#include <math.h>
#include <string.h>

#define NAME_MOST   256
#define ENTRY_MOST  (1 << 20)
#define LEAST       0x1p-16f /* of a weight, and 1 / the largest: within those of kn_ops.encode() */
#define SUMS_SUFFIX ".in_sum2"

struct entry {
    char name[NAME_MOST];
    uint64_t n_value;
    const struct moe_tensor *sums; /* of a GGUF file */
    uint64_t at;                   /* of the other form: file offset of the values */
};

struct moe_importance {
    char *path;
    struct moe_file *file; /* a GGUF file; else NULL */
    int fd;
    struct entry *entry; /* [n_entry] */
    size_t n_entry;
};

/* ---- GGUF ------------------------------------------------------------------------------------ */

static bool has_end(struct moe_string s, const char *end)
{
    size_t n = strlen(end);
    return s.n > n && !memcmp(s.data + s.n - n, end, n);
}

static int take_gguf(struct moe_importance *m, const struct moe_tensor *t)
{
    struct entry *e = &m->entry[m->n_entry];
    size_t n = t->name.n - strlen(SUMS_SUFFIX);
    if (n >= NAME_MOST)
        return kn_fail(KN_ELIMIT, "%s: an entry has a name of %zu bytes", m->path, n);
    memcpy(e->name, t->name.data, n);
    if (t->gguf_type != 0)
        return kn_fail(KN_EUNSUPPORTED, "%s: entry '%s' is not in F32", m->path, e->name);
    e->sums = t;
    e->n_value = t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
    m->n_entry++;
    return 0;
}

static int open_gguf(struct moe_importance *m)
{
    struct moe_string type = { 0 };
    int err = moe_file_open(&m->file, m->path);
    if (err)
        return err;
    if (moe_file_string(m->file, "general.type", &type) < 0 || !moe_string_is(type, "imatrix"))
        return kn_fail(KN_EINVAL, "%s: no importance matrix: its general.type is not imatrix", m->path);
    size_t n = moe_file_tensor_count(m->file);
    m->entry = kn_calloc(n + 1, sizeof *m->entry);
    if (!m->entry)
        return kn_fail(KN_ENOMEM, "%s: no memory for a list of %zu entries", m->path, n);
    for (size_t i = 0; !err && i < n; i++)
        if (has_end(moe_file_tensor(m->file, i)->name, SUMS_SUFFIX))
            err = take_gguf(m, moe_file_tensor(m->file, i));
    return err;
}

/* ---- dat ------------------------------------------------------------------------------------- */

struct reader {
    struct moe_importance *m;
    uint64_t at, size;
    int err;
};

static void take(struct reader *r, void *out, uint64_t n)
{
    if (!r->err && n > r->size - r->at)
        r->err = kn_fail(KN_ESHORT, "%s: %s: entry %zu goes on after the end of the file", r->m->path,
                         kn_error_text(KN_ESHORT), r->m->n_entry);
    if (!r->err && out)
        r->err = kn_file_read(r->m->fd, r->m->path, out, (size_t)n, r->at);
    r->at += r->err ? 0 : n;
}

/* A number within least .. most. */
static uint32_t take_number(struct reader *r, const char *what, uint32_t least, uint32_t most)
{
    uint32_t n = 0;
    take(r, &n, sizeof n);
    if (!r->err && (n < least || n > most))
        r->err = kn_fail(KN_ECORRUPT, "%s: no importance matrix: %u is no valid %s of entry %zu", r->m->path, n, what,
                         r->m->n_entry);
    return r->err ? least : n;
}

static int open_dat(struct moe_importance *m)
{
    int64_t size = kn_io()->size(m->fd);
    struct reader r = { .m = m, .size = size < 0 ? 0 : (uint64_t)size };
    uint32_t n = take_number(&r, "number of entries", 1, ENTRY_MOST);
    if (r.err)
        return r.err;
    m->entry = kn_calloc(n, sizeof *m->entry);
    if (!m->entry)
        return kn_fail(KN_ENOMEM, "%s: no memory for a list of %u entries", m->path, n);
    for (; m->n_entry < n && !r.err; m->n_entry++) {
        struct entry *e = &m->entry[m->n_entry];
        take(&r, e->name, take_number(&r, "length of the name", 1, NAME_MOST - 1));
        take_number(&r, "number of calls", 1, INT32_MAX);
        e->n_value = take_number(&r, "number of values", 1, INT32_MAX);
        e->at = r.at;
        take(&r, NULL, e->n_value * sizeof(float));
    }
    return r.err;
}

/* ---- both ------------------------------------------------------------------------------------ */

static int open_either(struct moe_importance *m)
{
    char magic[4] = { 0 };
    int err = kn_file_open_read(&m->fd, m->path);
    if (err)
        return err;
    if (kn_io()->size(m->fd) < 8)
        return kn_fail(KN_EINVAL, "%s: no importance matrix: no plain file of 8 bytes or more", m->path);
    err = kn_file_read(m->fd, m->path, magic, sizeof magic, 0);
    if (err)
        return err;
    return memcmp(magic, "GGUF", 4) ? open_dat(m) : open_gguf(m);
}

int moe_importance_open(struct moe_importance **out, const char *path)
{
    struct moe_importance *m = kn_calloc(1, sizeof *m);
    if (!m)
        return kn_fail(KN_ENOMEM, "%s: no memory to open it", path);
    m->fd = -1;
    m->path = kn_strdup(path);
    int err = m->path ? open_either(m) : kn_fail(KN_ENOMEM, "%s: no memory to open it", path);
    if (!err && !m->n_entry)
        err = kn_fail(KN_EINVAL, "%s: this importance matrix has no entries", path);
    if (err) {
        moe_importance_close(m);
        return err;
    }
    *out = m;
    return 0;
}

void moe_importance_close(struct moe_importance *m)
{
    if (!m)
        return;
    moe_file_close(m->file);
    if (m->fd >= 0)
        kn_file_close(m->fd);
    kn_free(m->entry);
    kn_free(m->path);
    kn_free(m);
}

static const struct entry *find(const struct moe_importance *m, struct moe_string name)
{
    for (size_t i = 0; i < m->n_entry; i++)
        if (moe_string_is(name, m->entry[i].name))
            return &m->entry[i];
    return NULL;
}

int moe_importance_check(const struct moe_importance *m, const struct moe_tensor *t)
{
    const struct entry *e = find(m, t->name);
    if (!e)
        return 0;
    uint64_t n_matrix = t->dim[2] * t->dim[3], n_in = e->sums ? e->sums->dim[0] : e->n_value / n_matrix;
    if (e->n_value != t->dim[0] * n_matrix || n_in != t->dim[0])
        return kn_fail(
            KN_EINVAL,
            "%s: entry '%s' has %llu values, the model's matrix has %llu columns in %llu matrices: it was made "
            "from another model",
            m->path, e->name, (unsigned long long)e->n_value, (unsigned long long)t->dim[0],
            (unsigned long long)n_matrix);
    return 1;
}

/* Scales the sums of one matrix to weights with a mean of 1. */
static int to_weights(float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] >= 0) || !isfinite(x[i]))
            return KN_ECORRUPT;
        sum += (double)x[i];
    }
    for (size_t i = 0; i < n; i++) {
        float w = sum > 0 ? (float)((double)x[i] * (double)n / sum) : 1;
        x[i] = w < LEAST ? LEAST : w > 1 / LEAST ? 1 / LEAST : w;
    }
    return 0;
}

int moe_importance_read(const struct moe_importance *m, const struct moe_tensor *t, float *weight)
{
    const struct entry *e = find(m, t->name);
    kn_assert(e);
    size_t n_in = (size_t)t->dim[0], n = (size_t)e->n_value;
    int err = e->sums ? moe_file_read(m->file, e->sums, 0, weight, n * sizeof *weight)
                      : kn_file_read(m->fd, m->path, weight, n * sizeof *weight, e->at);
    for (size_t at = 0; !err && at < n; at += n_in)
        if (to_weights(weight + at, n_in))
            err = kn_fail(KN_ECORRUPT, "%s: %s: entry '%s' has negative sums or sums that are not finite", m->path,
                          kn_error_text(KN_ECORRUPT), e->name);
    return err;
}
