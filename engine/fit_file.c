/* The constants of a cost model in a file: written by fit, read as the controller's first opinion. */
#include "engine/fit_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST "# what passes take"
#define AT(f) { #f, offsetof(struct spec_cost_model, f) }
static const struct { const char *name; size_t at; } field[] = {
    AT(fixed_ns), AT(dense_ns), AT(load_ns), AT(expert_ns), AT(ridge), AT(growth), AT(wait),
    AT(choose_ns), AT(choose_row_ns), AT(draft_ns), AT(draft_row_ns), AT(n_expert), AT(n_used),
};
#define N_FIELD (sizeof field / sizeof *field)

static double *field_of(struct spec_cost_model *c, size_t i) { return (double *)((char *)c + field[i].at); }

static int refuse_write(const char *path)
{
    return kn_fail(KN_EIO, "%s: cannot be written: %s: name another file with -o", path, strerror(errno));
}

int eng_fit_check(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return 0;                               /* who reads a pipe would take this for its end */
    int fd = open(path, O_RDWR | O_CLOEXEC), error = 0;
    if (fd < 0 && errno == ENOENT && (fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0)
        unlink(path);
    if (fd < 0 && errno != EEXIST)              /* a link to what is yet to be made */
        return refuse_write(path);
    if (fd >= 0) {
        char begins[sizeof FIRST] = "";
        ssize_t n = read(fd, begins, sizeof FIRST - 1);
        if (n != 0 && strcmp(begins, FIRST) != 0)
            error = kn_fail(KN_EINVAL, "%s: it is there and not of fit: name another file with -o", path);
        close(fd);
    }
    return error;
}

int eng_fit_write(const char *path, const char *model, const struct spec_fit *fit)
{
    struct spec_cost_model c = fit->cost;
    char name[128];                             /* who reads it takes lines of 200 bytes */
    FILE *out = fopen(path, "w");
    if (!out)
        return refuse_write(path);
    moe_string_show((struct moe_string){ model, strlen(model) }, name, sizeof name);
    fprintf(out, FIRST " on the machine that measured it, in nanoseconds (speculative/cost.h)\n"
                 "# model %s\n"
                 "# mean error %.4f, of points held back %.4f; measured up to %.0f rows\n", name, fit->error,
            fit->held_error, fit->rows_most);
    for (size_t i = 0; i < N_FIELD; i++)
        fprintf(out, "%s=%.9g\n", field[i].name, *field_of(&c, i));
    bool bad = ferror(out);
    return fclose(out) || bad ? refuse_write(path) : 0;
}

struct reading { struct spec_cost_model cost; bool seen[N_FIELD]; };

/* 0: the line is not understood. */
static int read_line(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    char *end;
    for (size_t i = 0; i < N_FIELD && !*section; i++) {
        if (strcmp(name, field[i].name))
            continue;
        double x = strtod(value, &end);
        if (end == value || *end || !(x >= 0 && x < 1e18) || r->seen[i])
            return 0;
        *field_of(&r->cost, i) = x;
        r->seen[i] = true;
        return 1;
    }
    return 0;
}

int eng_fit_read(const char *path, const struct moe_shape *shape, struct spec_cost_model *out)
{
    struct reading r = { 0 };
    int line = ini_parse(path, read_line, &r);
    if (line < 0)
        return kn_fail(KN_EIO, "%s: cannot be read: %s", path, strerror(errno));
    if (line > 0)
        return kn_fail(KN_EINVAL, "%s: line %d is none that fit writes", path, line);
    for (size_t i = 0; i < N_FIELD; i++)
        if (!r.seen[i])
            return kn_fail(KN_EINVAL, "%s: %s is missing: write it anew with fit", path, field[i].name);
    if (r.cost.growth < 1 || r.cost.ridge <= 0)
        return kn_fail(KN_EINVAL, "%s: ridge and growth make no sense: write it anew with fit", path);
    if (r.cost.n_expert != shape->n_expert || r.cost.n_used != shape->n_used)
        return kn_fail(KN_EINVAL, "%s is of a model with %g experts of which %g are used: fit this one", path,
                       r.cost.n_expert, r.cost.n_used);
    *out = r.cost;
    return 0;
}
