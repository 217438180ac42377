/* tests/engine/serve/exposition.h - a strict parser of /metrics pages. It accepts the Prometheus text format 0.0.4 with
 * further rules: every sample belongs to a family with HELP and TYPE, the samples of a family are contiguous, no series
 * occurs twice, counters end in _total and are not negative, histogram buckets rise to their count. */
#ifndef TESTS_ENGINE_SERVE_EXPOSITION_H
#define TESTS_ENGINE_SERVE_EXPOSITION_H

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/text/text.h"

#define EXPO_FAMILIES 200
#define EXPO_SAMPLES  1000
#define EXPO_LABELS   8

struct expo_family {
    char name[100], type[12];
    int n_sample;
};
struct expo_sample {
    int family;
    char series[700];       /* name{label="...",...} with labels sorted by name, without le */
    bool is_bucket, counts; /* counts: must not fall */
    double le, value;
};
struct expo {
    struct expo_family family[EXPO_FAMILIES];
    struct expo_sample sample[EXPO_SAMPLES];
    int n_family, n_sample, line;
    const char *error; /* NULL: well-formed */
};

static inline bool expo_fail(struct expo *x, const char *error)
{
    x->error = error;
    return false;
}

static inline size_t expo_name(const char *p, bool colons)
{
    size_t n = 0;
    while (isalpha((unsigned char)p[n]) || p[n] == '_' || (colons && p[n] == ':') ||
           (n && isdigit((unsigned char)p[n])))
        n++;
    return n;
}

static inline bool expo_ends(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* # HELP and # TYPE of one family, in this order. */
static inline bool expo_comment(struct expo *x, const char *line)
{
    static const char *const types[] = { "counter", "gauge", "histogram" };
    struct expo_family *last = x->n_family ? &x->family[x->n_family - 1] : NULL;
    bool is_help = !strncmp(line, "# HELP ", 7), is_type = !strncmp(line, "# TYPE ", 7);
    if (!is_help && !is_type)
        return expo_fail(x, "neither HELP nor TYPE");
    size_t n = expo_name(line + 7, true);
    if (!n || n >= sizeof last->name || line[7 + n] != ' ' || !line[8 + n])
        return expo_fail(x, "no name, or nothing after it");
    const char *text = line + 8 + n;
    if (is_help) {
        if (last && !last->type[0])
            return expo_fail(x, "a family without a type");
        if (last && !last->n_sample)
            return expo_fail(x, "a family without samples");
        for (int i = 0; i < x->n_family; i++)
            if (strlen(x->family[i].name) == n && !memcmp(x->family[i].name, line + 7, n))
                return expo_fail(x, "a family that was there before");
        if (strchr(text, '\\') || x->n_family == EXPO_FAMILIES)
            return expo_fail(x, "a backslash in a help, or too many families");
        memcpy(x->family[x->n_family++].name, line + 7, n);
        return true;
    }
    if (!last || strlen(last->name) != n || memcmp(last->name, line + 7, n) != 0 || last->type[0])
        return expo_fail(x, "a type that does not follow its help");
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, types[i]))
            strcpy(last->type, types[i]);
    if (!last->type[0])
        return expo_fail(x, "no such type");
    return expo_ends(last->name, "_total") == !strcmp(text, "counter") ||
           expo_fail(x, "counters end in _total, others do not");
}

/* {name="value",...}; escapes are \\, \" and \n. The label le is returned separately. */
static inline const char *expo_labels(struct expo *x, const char *p, struct expo_sample *s, bool *has_le)
{
    struct {
        char text[400];
        size_t n_name;
    } label[EXPO_LABELS], t;
    int n = 0;
    if (*p++ != '{')
        return p - 1;
    while (*p != '}') {
        size_t name = expo_name(p, false), at = name;
        if (!name || p[at] != '=' || p[at + 1] != '"' || n == EXPO_LABELS)
            return expo_fail(x, "no label, or too many"), NULL;
        for (at += 2; p[at] && p[at] != '"'; at++)
            if (p[at] == '\\' && !strchr("\\\"n", p[++at]))
                return expo_fail(x, "an unknown escape"), NULL;
        if (p[at] != '"' || at + 2 > sizeof label[0].text || (p[at + 1] != ',' && p[at + 1] != '}'))
            return expo_fail(x, "a label without an end"), NULL;
        if (name == 2 && !memcmp(p, "le", 2)) {
            *has_le = true;
            s->le = strtod(p + 4, NULL);
        } else {
            memset(&label[n], 0, sizeof label[n]);
            memcpy(label[n].text, p, at + 1);
            label[n++].n_name = name + 1;
        }
        p += at + 1;
        p += *p == ',';
    }
    for (int i = 0; i < n; i++)
        for (int j = i; j > 0 && strcmp(label[j - 1].text, label[j].text) > 0; j--) {
            t = label[j];
            label[j] = label[j - 1];
            label[j - 1] = t;
        }
    for (int i = 0; i < n; i++) {
        if (i && label[i].n_name == label[i - 1].n_name && !memcmp(label[i].text, label[i - 1].text, label[i].n_name))
            return expo_fail(x, "a label twice"), NULL;
        if (strlen(s->series) + strlen(label[i].text) + 3 > sizeof s->series)
            return expo_fail(x, "too long"), NULL;
        strcat(strcat(s->series, i ? "," : "{"), label[i].text);
    }
    strcat(s->series, n ? "}" : "");
    return p + 1;
}

/* A number as Go parses it: nothing may follow, and NaN has no sign. */
static inline bool expo_number(const char *p, double *out)
{
    static const char *const named[] = { "+Inf", "-Inf", "NaN" };
    char *end;
    *out = strtod(p, &end);
    for (int i = 0; i < 3; i++)
        if (!strcmp(p, named[i]))
            return true;
    return end > p && !*end && (isdigit((unsigned char)*p) || *p == '-') && !strpbrk(p, "xXpPiInN");
}

static inline bool expo_sample(struct expo *x, const char *line)
{
    static const char *const part[] = { "", "_bucket", "_sum", "_count" };
    struct expo_family *f = x->n_family ? &x->family[x->n_family - 1] : NULL;
    struct expo_sample *s = &x->sample[x->n_sample];
    size_t n = expo_name(line, true);
    bool has_le = false, known = false;
    if (!f || !f->type[0] || !n || n >= 128 || x->n_sample == EXPO_SAMPLES)
        return expo_fail(x, "a sample without a family, or without a name");
    bool histogram = !strcmp(f->type, "histogram");
    *s = (struct expo_sample){ .family = x->n_family - 1 };
    memcpy(s->series, line, n);
    for (int i = histogram; i < (histogram ? 4 : 1); i++)
        known |= strlen(f->name) + strlen(part[i]) == n && !memcmp(s->series, f->name, strlen(f->name)) &&
                 !strcmp(s->series + strlen(f->name), part[i]);
    if (!known)
        return expo_fail(x, "a sample that is not of the family before it");
    s->is_bucket = histogram && expo_ends(s->series, "_bucket");
    s->counts = !strcmp(f->type, "counter") || histogram;
    const char *p = expo_labels(x, line + n, s, &has_le);
    if (!p)
        return false;
    if (has_le != s->is_bucket)
        return expo_fail(x, "buckets have a bound, others have none");
    if (*p != ' ' || !expo_number(p + 1, &s->value))
        return expo_fail(x, "not a number");
    if (s->counts && !(s->value >= 0 && s->value < INFINITY))
        return expo_fail(x, "counts are not negative");
    for (int i = x->n_sample; i-- > 0 && x->sample[i].family == s->family;)
        if (!strcmp(x->sample[i].series, s->series) && (!s->is_bucket || x->sample[i].le == s->le))
            return expo_fail(x, "a series twice");
    f->n_sample++;
    x->n_sample++;
    return true;
}

/* Buckets rise with their bounds; the last one, le="+Inf", equals the count. */
static inline bool expo_histograms(struct expo *x)
{
    for (int i = 0; i < x->n_sample; i++) {
        const struct expo_sample *s = &x->sample[i], *before = i ? s - 1 : s;
        bool first = s->is_bucket && (!before->is_bucket || strcmp(before->series, s->series) != 0 || !i);
        if (s->is_bucket && !first && (s->le <= before->le || s->value < before->value))
            return expo_fail(x, "buckets do not rise");
        if (s->is_bucket && s->le == INFINITY &&
            (i + 2 >= x->n_sample || s[2].family != s->family || !strstr(s[1].series, "_sum") ||
             !strstr(s[2].series, "_count") || s[2].value != s->value))
            return expo_fail(x, "no sum and count after the last bucket, or another count");
        if (s->is_bucket && s->le < INFINITY && (i + 1 == x->n_sample || !s[1].is_bucket))
            return expo_fail(x, "no bucket of all");
    }
    return true;
}

static inline bool expo_is_utf8(const char *p)
{
    const char *end = p + strlen(p);
    int bad;
    bool cut;
    for (int n; p < end; p += n)
        if (!(n = eng_utf8_next(p, (size_t)(end - p), &bad, &cut)))
            return false;
    return true;
}

/* The caller frees the result. */
static inline struct expo *expo_read(const char *text)
{
    struct expo *x = calloc(1, sizeof *x);
    char line[2000];
    assert_non_null(x);
    if (!expo_is_utf8(text))
        x->error = "not UTF-8";
    for (const char *end; *text && !x->error; text = end + 1) {
        x->line++;
        end = strchr(text, '\n');
        if (!end || end - text >= (ptrdiff_t)sizeof line) {
            x->error = "a line without an end, or an endless one";
            break;
        }
        memcpy(line, text, (size_t)(end - text));
        line[end - text] = 0;
        (void)(line[0] == '#' ? expo_comment(x, line) : expo_sample(x, line));
    }
    if (!x->error && (!x->n_family || !x->family[x->n_family - 1].n_sample))
        x->error = "nothing at all, or a family without samples";
    if (!x->error)
        expo_histograms(x);
    return x;
}

/* series: as on the page, labels sorted by name. */
static inline const struct expo_sample *expo_find(const struct expo *x, const char *series)
{
    for (int i = 0; i < x->n_sample; i++)
        if (!strcmp(x->sample[i].series, series))
            return &x->sample[i];
    return NULL;
}

static inline struct expo *expo_well(const char *text)
{
    struct expo *x = expo_read(text);
    if (x->error)
        fail_msg("line %d: %s\n%s", x->line, x->error, text);
    return x;
}

/* The first counter of an earlier page that is missing or lower on a later page; NULL: none. */
static inline const char *expo_fell(const struct expo *before, const struct expo *after)
{
    for (int i = 0; i < before->n_sample; i++) {
        const struct expo_sample *a = &before->sample[i], *b = NULL;
        for (int j = 0; j < after->n_sample && !b; j++)
            if (!strcmp(after->sample[j].series, a->series) && after->sample[j].le == a->le)
                b = &after->sample[j];
        if (a->counts && (!b || b->value < a->value))
            return a->series;
    }
    return NULL;
}

#endif
