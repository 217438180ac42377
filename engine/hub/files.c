/* engine/hub/files.c - a list of files with their sizes: of a folder on this machine, or of a server's reply. */
#include "engine/hub/internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEEPEST 4 /* folders within folders that are read */

int hub_files_add(struct hub_files *f, const char *path, uint64_t bytes)
{
    if (f->n >= HUB_MOST_FILES)
        return kn_fail(KN_ELIMIT, "%s: more than %d files in one model", path, HUB_MOST_FILES);
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 64;
        struct hub_file *grown = kn_realloc(f->file, (size_t)f->cap * sizeof *f->file, (size_t)cap * sizeof *f->file);
        if (!grown)
            return kn_fail(KN_ENOMEM, "%s: no memory for the list of files", path);
        f->file = grown;
        f->cap = cap;
    }
    char *copy = kn_strdup(path);
    if (!copy)
        return kn_fail(KN_ENOMEM, "%s: no memory for the list of files", path);
    f->file[f->n++] = (struct hub_file){ .path = copy, .bytes = bytes, .variant = -1 };
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

void hub_files_sort(struct hub_files *f)
{
    if (f->n > 1)
        qsort(f->file, (size_t)f->n, sizeof *f->file, by_path);
}

void hub_files_free(struct hub_files *f)
{
    for (int i = 0; i < f->n; i++)
        kn_free(f->file[i].path);
    kn_free(f->file);
    *f = (struct hub_files){ 0 };
}

/* Adds the files of root/inner; inner is "" or ends with a slash. */
static int scan(struct hub_files *f, const char *root, const char *inner, int depth)
{
    char path[ENG_PATH_BYTES], name[ENG_PATH_BYTES];
    struct dirent *entry;
    struct stat st;
    int error = 0;
    DIR *dir = hub_path(path, "%s/%s", root, inner) ? opendir(path) : NULL;
    if (!dir)
        return 0;
    while (!error && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || !hub_path(name, "%s%s", inner, entry->d_name) ||
            !hub_path(path, "%s/%s", root, name) || stat(path, &st) < 0)
            continue;
        if (S_ISREG(st.st_mode) && hub_is_safe_file(name))
            error = hub_files_add(f, name, (uint64_t)st.st_size);
        else if (S_ISDIR(st.st_mode) && lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && depth < DEEPEST &&
                 hub_path(name, "%s%s/", inner, entry->d_name))
            error = scan(f, root, name, depth + 1);
    }
    closedir(dir);
    return error;
}

int hub_files_scan(struct hub_files *f, const char *folder)
{
    int error = scan(f, folder, "", 0);
    hub_files_sort(f);
    return error;
}
