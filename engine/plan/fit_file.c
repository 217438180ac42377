/* engine/plan/fit_file.c - the constants of a cost model in a file, the controller's first estimate: written by `fit`, or
 * kept beside the model by commands that run it.
 *
 * The file is written under another name in the same folder, synced and renamed, so a failed or killed process leaves
 * an existing file unchanged. If the path is a symbolic link, its target is replaced. A pipe or device is written
 * directly. */
#include "engine/plan/fit_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST     "# what passes take"
#define FORMAT    3 /* 1: without format and model; 2: one drafter, no contexts, no device */
#define MOST_TEXT 4096
#define AT(f, first, last)                                                                                             \
    {                                                                                                                  \
#f, offsetof(struct eng_fitted, f), first, last                                                                \
    }
static const struct {
    const char *name; /* in the file without "cost." */
    size_t at;
    int first, last; /* formats that have it */
} field[] = {
    AT(cost.fixed_ns, 1, FORMAT),  AT(cost.dense_ns, 1, FORMAT),  AT(cost.load_ns, 1, FORMAT),
    AT(cost.expert_ns, 1, FORMAT), AT(cost.ridge, 1, FORMAT),     AT(cost.growth, 1, FORMAT),
    AT(cost.wait, 1, FORMAT),      AT(cost.choose_ns, 1, FORMAT), AT(cost.choose_row_ns, 1, FORMAT),
    AT(cost.draft_ns, 1, 2),       AT(cost.draft_row_ns, 1, 2),   AT(cost.n_expert, 1, FORMAT),
    AT(cost.n_used, 1, FORMAT),    AT(cost.kv_ns, 3, FORMAT),     AT(cost.copy_ns, 3, FORMAT),
    AT(miss_ratio, 3, FORMAT),     AT(copy_share, 3, FORMAT),     AT(error, 3, FORMAT),
    AT(n_pass, 3, FORMAT),
};
#define N_FIELD (sizeof field / sizeof *field)

static double *field_of(struct eng_fitted *f, size_t i) { return (double *)((char *)f + field[i].at); }

static const char *name_of(size_t i)
{
    const char *dot = strchr(field[i].name, '.');
    return dot ? dot + 1 : field[i].name;
}

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

/* Writes the file's text; returns its length. */
static size_t write_text(char text[MOST_TEXT], const char *model, uint64_t model_id, const struct eng_fitted *fit)
{
    struct eng_fitted f = *fit;
    char name[128]; /* cut, since libinih accepts lines of at most 200 bytes */
    moe_string_show((struct moe_string){ model, strlen(model) }, name, sizeof name);
    size_t n = (size_t)snprintf(text, MOST_TEXT,
                                FIRST " on the machine that measured it, in nanoseconds (speculative/cost.h)\n"
                                      "# model %s\nformat=%d\nmodel=%016llx\n",
                                name, FORMAT, (unsigned long long)model_id);
    if (f.setup)
        n += (size_t)snprintf(text + n, MOST_TEXT - n, "setup=%016llx\n", (unsigned long long)f.setup);
    for (size_t i = 0; i < N_FIELD; i++)
        if (field[i].last == FORMAT)
            n += (size_t)snprintf(text + n, MOST_TEXT - n, "%s=%.9g\n", name_of(i), *field_of(&f, i));
    for (int i = 0; i < f.n_drafter; i++)
        n += (size_t)snprintf(text + n, MOST_TEXT - n, "drafter=%.6g %.6g %.4g %s\n", f.drafter[i].ns,
                              f.drafter[i].row_ns, f.drafter[i].accept, f.drafter[i].name);
    kn_assert(n < MOST_TEXT);
    return n;
}

int eng_fit_write(const char *path, const char *model, uint64_t model_id, const struct eng_fitted *fit)
{
    char text[MOST_TEXT];
    size_t n = write_text(text, model, model_id, fit);
    return is_no_file(path) ? write_pipe(path, text, n) : write_whole(path, text, n);
}

void eng_fit_keep(const char *path, const char *model, uint64_t model_id, const struct eng_fitted *fit)
{
    char text[MOST_TEXT];
    kn_file_save_optional(path, 0644, text, write_text(text, model, model_id, fit));
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

struct reading {
    struct eng_fitted found;
    bool seen[N_FIELD], names_model;
    int format; /* 0: not read yet */
    uint64_t model_id;
    char why[160]; /* the reason that the file is not used */
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

static bool read_id(uint64_t *id, const char *value)
{
    char *end;
    *id = strtoull(value, &end, 16);
    return strlen(value) == 16 && !*end;
}

static int read_model(struct reading *r, const char *value)
{
    bool good = r->format >= 2 && !r->names_model && read_id(&r->model_id, value);
    r->names_model = true;
    return good;
}

static bool read_number(double *out, const char **value)
{
    char *end;
    double x = strtod(*value, &end);
    if (end == *value || !(x >= 0 && x < 1e18))
        return false;
    *out = x;
    *value = end;
    return true;
}

/* Format 3: NS ROW_NS ACCEPT NAME. Before: NAME alone, with its times in draft_ns and draft_row_ns. */
static int read_drafter(struct reading *r, const char *value)
{
    struct eng_fitted *f = &r->found;
    if (f->n_drafter >= (r->format < 3 ? 1 : ENG_FIT_DRAFTERS))
        return 0;
    struct eng_fitted_drafter *d = &f->drafter[f->n_drafter++];
    if (r->format >= 3 && !(read_number(&d->ns, &value) && read_number(&d->row_ns, &value) &&
                            read_number(&d->accept, &value) && d->accept <= 1 && *value++ == ' '))
        return 0;
    if (!*value || strlen(value) >= sizeof d->name)
        return 0;
    snprintf(d->name, sizeof d->name, "%s", value);
    return 1;
}

/* libinih calls it for each line; returns 1, or 0 for an error: a name that is unknown or seen already, or a bad
 * value. */
static int read_line(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    if (!*section && !strcmp(name, "format"))
        return read_format(r, value);
    r->format = r->format ? r->format : 1;
    if (r->format > FORMAT)
        return 1;
    if (!*section && !strcmp(name, "model"))
        return read_model(r, value);
    if (!*section && !strcmp(name, "setup"))
        return r->format >= 3 && !r->found.setup && read_id(&r->found.setup, value);
    if (!*section && !strcmp(name, "drafter"))
        return read_drafter(r, value);
    for (size_t i = 0; i < N_FIELD && !*section; i++) {
        if (strcmp(name, name_of(i)) != 0)
            continue;
        if (r->seen[i] || r->format < field[i].first || r->format > field[i].last ||
            !read_number(field_of(&r->found, i), &value) || *value)
            return 0;
        r->seen[i] = true;
        return 1;
    }
    return 0;
}

static bool reject(struct reading *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->why, sizeof r->why, format, args);
    va_end(args);
    return false;
}

/* Reads a file and checks it against the model; false: r->why says why it is not used. */
static bool read_file(struct reading *r, const char *path, const struct moe_shape *shape, uint64_t model_id)
{
    struct eng_fitted *f = &r->found;
    const struct spec_cost_model *c = &f->cost;
    int line = ini_parse(path, read_line, r);
    if (line < 0)
        return reject(r, "cannot be read: %s", strerror(errno));
    if (r->format > FORMAT)
        return reject(r, "another version of spillway wrote it");
    if (line > 0)
        return reject(r, "line %d was not written by fit", line);
    for (size_t i = 0; i < N_FIELD; i++)
        if (!r->seen[i] && r->format >= field[i].first && r->format <= field[i].last)
            return reject(r, "%s is missing", name_of(i));
    if (r->format < 3 && f->n_drafter) {
        f->drafter[0].ns = c->draft_ns;
        f->drafter[0].row_ns = c->draft_row_ns;
    }
    f->cost.draft_ns = f->cost.draft_row_ns = 0;
    if (r->format < 3)
        f->miss_ratio = 1;
    if (c->fixed_ns + c->dense_ns <= 0)
        return reject(r, "passes take no time");
    if (c->growth < 1 || c->ridge <= 0 || f->miss_ratio > ENG_FIT_MISSES || f->copy_share > 1)
        return reject(r, "ridge, growth or a share is out of range");
    for (int i = 0; i < f->n_drafter; i++)
        if (f->drafter[i].ns <= 0 && f->drafter[i].row_ns <= 0)
            return reject(r, "a draft pass of %s takes no time", f->drafter[i].name);
    if (c->n_expert != shape->n_expert || c->n_used != shape->n_used)
        return reject(r, "it is for a model with %g experts, %g used per token", c->n_expert, c->n_used);
    if (r->format >= 2 && !(r->names_model && r->model_id == model_id))
        return reject(r, "it is for another model");
    return true;
}

int eng_fit_read(const char *path, const struct moe_shape *shape, uint64_t model_id, struct eng_fitted *out)
{
    struct reading r = { 0 };
    errno = 0;
    if (!read_file(&r, path, shape, model_id))
        return kn_fail(errno && !r.format ? KN_EIO : KN_EINVAL, "%s: %s: run fit with this model, or use --fit auto",
                       path, r.why);
    if (r.format < 2)
        kn_say(KN_LOG_INFO, "%s is from an older version of spillway and does not say of which model: run fit again",
               path);
    *out = r.found;
    return 0;
}

bool eng_fit_read_kept(const char *path, const struct moe_shape *shape, uint64_t model_id, uint64_t setup,
                       struct eng_fitted *out)
{
    struct reading r = { 0 };
    if (access(path, F_OK))
        return false;
    bool good = read_file(&r, path, shape, model_id);
    if (good && r.found.setup && r.found.setup != setup) { /* 0: from `fit -o` */
        snprintf(r.why, sizeof r.why, "it was measured on another machine or with other options");
        good = false;
    }
    if (!good)
        kn_say(KN_LOG_INFO, "%s is not used: %s; passes are measured again", path, r.why);
    else
        *out = r.found;
    return good;
}
