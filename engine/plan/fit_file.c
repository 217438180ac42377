/* engine/plan/fit_file.c - the constants of a cost model in a file: written by `fit`, read as the controller's first
 * estimate.
 *
 * The file is written under another name in the same folder, synced and renamed, so a failed or killed process leaves
 * an existing file unchanged. If the path is a symbolic link, its target is replaced. A pipe or device is written
 * directly. */
#include "engine/plan/fit_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST     "# what passes take"
#define FORMAT    2 /* 1: without format and model */
#define MOST_TEXT 2048
#define AT(f)                                                                                                          \
    {                                                                                                                  \
#f, offsetof(struct spec_cost_model, f)                                                                        \
    }
static const struct {
    const char *name;
    size_t at;
} field[] = {
    AT(fixed_ns),  AT(dense_ns),      AT(load_ns),  AT(expert_ns),    AT(ridge),    AT(growth), AT(wait),
    AT(choose_ns), AT(choose_row_ns), AT(draft_ns), AT(draft_row_ns), AT(n_expert), AT(n_used),
};
#define N_FIELD (sizeof field / sizeof *field)

static double *field_of(struct spec_cost_model *c, size_t i) { return (double *)((char *)c + field[i].at); }

/* ---- writing ------------------------------------------------------------------------------------------------- */

static int refuse_write(const char *path)
{
    return kn_fail(KN_EIO, "%s: cannot be written: %s: name another file with -o", path, strerror(errno));
}

/* Whether path is a pipe or device. eng_fit_check() does not open it, since opening and closing a pipe would show its
 * reader an end of file; eng_fit_write() writes it directly, since a rename would replace it by a file. */
static bool is_no_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* Sets target to the path behind all links. */
static int find_target(char target[PATH_MAX], const char *path)
{
    struct stat st;
    if (!realpath(path, target)) {
        if (errno != ENOENT)
            return refuse_write(path);
        if (lstat(path, &st) == 0)
            return kn_fail(KN_EINVAL, "%s: a broken link: create its target, or name another file with -o", path);
        if (snprintf(target, PATH_MAX, "%s", path) >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return refuse_write(path);
        }
    }
    return 0;
}

/* Refuses an existing file that `fit` did not write; an empty one may be overwritten. */
static int check_old(const char *path)
{
    char begins[sizeof FIRST] = "";
    int fd = kn_io()->open(path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return errno == ENOENT ? 0 : refuse_write(path);
    ssize_t n = kn_io()->pread(fd, begins, sizeof FIRST - 1, 0);
    kn_file_close(fd);
    if (n < 0)
        return refuse_write(path);
    return n == 0 || !strcmp(begins, FIRST)
               ? 0
               : kn_fail(KN_EINVAL, "%s: exists and was not written by fit: name another file with -o", path);
}

/* Creates the part file too: otherwise a folder that cannot be written would be found after the measurement. */
int eng_fit_check(const char *path)
{
    char target[PATH_MAX];
    struct kn_new_file file;
    int error;
    if (is_no_file(path))
        return 0;
    if ((error = find_target(target, path)) || (error = check_old(target)) ||
        (error = kn_new_file_open(&file, target, 0644)))
        return error;
    kn_new_file_close(&file);
    return 0;
}

static int write_pipe(const char *path, const char *text, size_t n)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return refuse_write(path);
    bool bad = fwrite(text, 1, n, out) != n;
    return fclose(out) || bad ? refuse_write(path) : 0;
}

static int write_whole(const char *path, const char *text, size_t n)
{
    char target[PATH_MAX];
    int error = find_target(target, path);
    return error ? error : kn_file_save(target, 0644, text, n);
}

int eng_fit_write(const char *path, const char *model, uint64_t model_id, const struct spec_fit *fit,
                  const char *drafter)
{
    struct spec_cost_model c = fit->cost;
    char name[128], text[MOST_TEXT]; /* name: cut, since libinih accepts lines of at most 200 bytes */
    moe_string_show((struct moe_string){ model, strlen(model) }, name, sizeof name);
    size_t n = (size_t)snprintf(text, sizeof text,
                                FIRST " on the machine that measured it, in nanoseconds (speculative/cost.h)\n"
                                      "# model %s\n"
                                      "# mean error %.4f, of points held back %.4f; measured up to %.0f rows\n"
                                      "format=%d\nmodel=%016llx\n",
                                name, fit->error, fit->held_error, fit->rows_most, FORMAT,
                                (unsigned long long)model_id);
    for (size_t i = 0; i < N_FIELD; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s=%.9g\n", field[i].name, *field_of(&c, i));
    if (*drafter)
        n += (size_t)snprintf(text + n, sizeof text - n, "drafter=%s\n", drafter);
    kn_assert(n < sizeof text);
    return is_no_file(path) ? write_pipe(path, text, n) : write_whole(path, text, n);
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

struct reading {
    struct eng_fitted found;
    bool seen[N_FIELD], names_model;
    int format; /* 0: not read yet */
    uint64_t model_id;
};

/* The format comes first, so a file without it is of format 1. Nothing is read of a format that is not known. */
static int read_format(struct reading *r, const char *value)
{
    char *end;
    long format = strtol(value, &end, 10);
    if (r->format || end == value || *end || format < 2 || format > INT_MAX)
        return 0;
    r->format = (int)format;
    return 1;
}

static int read_model(struct reading *r, const char *value)
{
    char *end;
    r->model_id = strtoull(value, &end, 16);
    bool good = r->format == FORMAT && !r->names_model && strlen(value) == 16 && !*end;
    r->names_model = true;
    return good;
}

static int read_drafter(struct eng_fitted *f, const char *name)
{
    if (*f->drafter || !*name || strlen(name) >= sizeof f->drafter)
        return 0;
    snprintf(f->drafter, sizeof f->drafter, "%s", name);
    return 1;
}

/* libinih calls it for each line; returns 1, or 0 for an error: a name that is unknown or seen already, or a bad
 * value. */
static int read_line(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    char *end;
    if (!*section && !strcmp(name, "format"))
        return read_format(r, value);
    r->format = r->format ? r->format : 1;
    if (r->format > FORMAT)
        return 1;
    if (!*section && !strcmp(name, "model"))
        return read_model(r, value);
    if (!*section && !strcmp(name, "drafter"))
        return read_drafter(&r->found, value);
    for (size_t i = 0; i < N_FIELD && !*section; i++) {
        if (strcmp(name, field[i].name))
            continue;
        double x = strtod(value, &end);
        if (end == value || *end || !(x >= 0 && x < 1e18) || r->seen[i])
            return 0;
        *field_of(&r->found.cost, i) = x;
        r->seen[i] = true;
        return 1;
    }
    return 0;
}

int eng_fit_read(const char *path, const struct moe_shape *shape, uint64_t model_id, struct eng_fitted *out)
{
    struct reading r = { 0 };
    const struct spec_cost_model *c = &r.found.cost;
    int line = ini_parse(path, read_line, &r);
    if (line < 0)
        return kn_fail(KN_EIO, "%s: cannot be read: %s", path, strerror(errno));
    if (r.format > FORMAT)
        return kn_fail(KN_EINVAL, "%s: another version of spillway wrote it: run fit again", path);
    if (line > 0)
        return kn_fail(KN_EINVAL, "%s: line %d was not written by fit", path, line);
    for (size_t i = 0; i < N_FIELD; i++)
        if (!r.seen[i])
            return kn_fail(KN_EINVAL, "%s: %s is missing: run fit again", path, field[i].name);
    if (c->growth < 1 || c->ridge <= 0)
        return kn_fail(KN_EINVAL, "%s: ridge or growth is out of range: run fit again", path);
    if (*r.found.drafter && c->draft_ns <= 0 && c->draft_row_ns <= 0)
        return kn_fail(KN_EINVAL, "%s: a draft pass of %s takes no time: run fit again", path, r.found.drafter);
    if (c->n_expert != shape->n_expert || c->n_used != shape->n_used)
        return kn_fail(KN_EINVAL, "%s is for a model with %g experts, %g used per token: run fit with this model", path,
                       c->n_expert, c->n_used);
    if (r.format == FORMAT && !(r.names_model && r.model_id == model_id))
        return kn_fail(KN_EINVAL, "%s is for another model: run fit with this model", path);
    if (r.format < FORMAT)
        kn_say(KN_LOG_INFO, "%s is from an older version of spillway and does not say of which model: run fit again",
               path);
    *out = r.found;
    return 0;
}
