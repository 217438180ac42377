/* evals/quality/requantise.c - a model's file with its matrices in another format.
 *
 * Comes in a GGUF file in formats that the kernels know; goes out the same model with the matrices of
 * experts and feed-forward networks in FORMAT and those of attention, embedding and head in DENSE
 * (FORMAT when it is not given), encoded by moe's own encoders.  Vectors and routers stay as they are, and
 * so does a matrix whose rows are no whole blocks of its format.  For measuring what a format costs.
 *
 *   requantise IN OUT FORMAT [DENSE] */
#include <stdio.h>
#include <string.h>

#include "moe/internal.h"

struct job {
    const struct moe_file *file;
    struct moe_writer *writer;
    enum kn_format format, dense;
};

static bool begins(struct moe_string s, const char *text)
{
    return s.n >= strlen(text) && memcmp(s.data, text, strlen(text)) == 0;
}

static bool contains(struct moe_string s, const char *text)
{
    return memmem(s.data, s.n, text, strlen(text)) != NULL;
}

/* What the file says of its formats and splits is no longer so. */
static int copy_value(struct moe_writer *w, const struct moe_value *v)
{
    char key[256];
    if (moe_string_is(v->key, "general.file_type") || begins(v->key, "split."))
        return 0;
    if ((size_t)snprintf(key, sizeof key, "%.*s", (int)v->key.n, v->key.data) >= sizeof key)
        return kn_fail(KN_ELIMIT, "a key of %zu characters is too long", v->key.n);
    const struct moe_string *s = v->data;
    if (v->type == MOE_ARRAY)
        return moe_writer_array(w, key, v->item, v->data, v->n);
    if (v->type == MOE_STRING)
        return moe_writer_string(w, key, s->data, s->n);
    return moe_writer_value(w, key, v->type, v->data);
}

static int formats(const struct job *j, const struct moe_tensor *t, enum kn_format *from, enum kn_format *to)
{
    if (kn_format_from_gguf(t->gguf_type, from))
        return kn_fail(KN_EUNSUPPORTED, "%.*s has a format that is not known", (int)t->name.n, t->name.data);
    *to = contains(t->name, ".ffn_") ? j->format : j->dense;
    if (t->n_dim < 2 || contains(t->name, "ffn_gate_inp") || !kn_row_bytes(*to, (int)t->dim[0]))
        *to = *from;
    return 0;
}

static int add_tensor(const struct job *j, const struct moe_tensor *t)
{
    char name[256];
    enum kn_format from, to;
    int err = formats(j, t, &from, &to);
    if (!err && (size_t)snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data) >= sizeof name)
        err = kn_fail(KN_ELIMIT, "a name of %zu characters is too long", t->name.n);
    return err ? err : moe_writer_tensor(j->writer, name, to, t->n_dim, t->dim);
}

static int write_tensor(const struct job *j, const struct moe_tensor *t)
{
    enum kn_format from, to;
    int n_in = (int)t->dim[0], err = formats(j, t, &from, &to);
    size_t from_bytes = err ? 1 : kn_row_bytes(from, n_in), to_bytes = err ? 1 : kn_row_bytes(to, n_in);
    const struct off_files *files = moe_file_files(j->file);
    uint8_t *in = kn_alloc(from_bytes), *out = kn_alloc(to_bytes);
    float *x = kn_alloc((size_t)n_in * sizeof *x);
    if (!in || !out || !x)
        err = KN_ENOMEM;
    for (uint64_t at = 0; at < t->bytes && !err; at += from_bytes) {
        err = kn_file_read(files->fd[t->file], files->path[t->file], in, from_bytes, t->offset + at);
        if (err)
            break;
        if (from != to) {
            kn_row_decode(from, in, n_in, x);
            moe_row_encode(to, x, n_in, out);
        }
        err = moe_writer_data(j->writer, from == to ? in : out, to_bytes);
    }
    kn_free(in);
    kn_free(out);
    kn_free(x);
    return err;
}

static int copy(const struct job *j)
{
    size_t n_value = moe_file_value_count(j->file), n_tensor = moe_file_tensor_count(j->file);
    int err = 0;
    for (size_t i = 0; i < n_value && !err; i++)
        err = copy_value(j->writer, moe_file_value(j->file, i));
    for (size_t i = 0; i < n_tensor && !err; i++)
        err = add_tensor(j, moe_file_tensor(j->file, i));
    if (!err)
        err = moe_writer_header(j->writer);
    for (size_t i = 0; i < n_tensor && !err; i++)
        err = write_tensor(j, moe_file_tensor(j->file, i));
    return err ? err : moe_writer_finish(j->writer);
}

int main(int argc, char **argv)
{
    struct job j = { 0 };
    struct moe_file *file = NULL;
    if (argc < 4 || argc > 5 || kn_format_find(argv[3], &j.format) ||
        kn_format_find(argv[argc - 1], &j.dense)) {
        fprintf(stderr, "usage: requantise IN OUT FORMAT [DENSE]\n");
        return 2;
    }
    int err = moe_file_open(&file, argv[1]);
    j.file = file;
    if (!err)
        err = moe_writer_open(&j.writer, argv[2]);
    if (!err)
        err = copy(&j);
    moe_writer_close(j.writer);
    moe_file_close(file);
    return err ? 1 : 0;
}
