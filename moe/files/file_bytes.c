/* moe/files/file_bytes.c - the table of files that a struct moe_file has open: their paths and descriptors.
 *
 * A GGUF file has one entry, a split file one for each split, a folder one for each .safetensors file. 
 * moe_file_close() closes them. */
#include "moe/files/internal.h"

int moe_file_reserve(struct moe_file *f, int n)
{
    int *fd = kn_calloc((size_t)n, sizeof *fd);
    char **names = kn_calloc((size_t)n, sizeof *names);
    if (!fd || !names) {
        kn_free(fd);
        kn_free(names);
        return kn_fail(KN_ENOMEM, "%s: no memory for %d files", f->name, n);
    }
    for (int i = 0; i < n; i++) {
        fd[i] = i < f->files.n_file ? f->fd[i] : -1;
        names[i] = i < f->files.n_file ? f->path[i] : NULL;
    }
    kn_free(f->fd);
    kn_free(f->path);
    f->fd = fd;
    f->path = names;
    f->files = (struct off_files){ n, fd, (const char *const *)names, NULL };
    return 0;
}

int moe_file_open_nth(struct moe_file *f, int file, const char *path)
{
    f->path[file] = kn_strdup(path);
    if (!f->path[file])
        return kn_fail(KN_ENOMEM, "%s: no memory for its name", path);
    return kn_file_open_read(&f->fd[file], path);
}

int moe_file_add(struct moe_file *f, const char *path, int *file)
{
    int n = f->files.n_file, err = moe_file_reserve(f, n + 1);
    if (!err)
        err = moe_file_open_nth(f, n, path);
    *file = n;
    return err;
}
