/* engine/option_values.c - what an option is given, from text to its field and back.
 *
 * In: an option and its text.  Out: a field of struct eng_config, or one line that says what was wanted. */
#include "engine/options.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool read_integer(const char *s, long long *out)
{
    char *end;
    if (!(s[0] == '-' || (s[0] >= '0' && s[0] <= '9')))
        return false;
    *out = strtoll(s, &end, 10);                /* too large a number becomes LLONG_MAX: out of all ranges */
    return end != s && !*end;
}

static bool read_number(const char *s, double *out)
{
    char *end;
    if (!s[0] || strspn(s, "0123456789+-.eE") != strlen(s))
        return false;
    *out = strtod(s, &end);
    return end != s && !*end && *out >= -FLT_MAX && *out <= FLT_MAX;
}

/* Digits, perhaps a fraction, perhaps K, M or G; whole bytes, rounded down. */
static bool read_size(const char *s, size_t *out)
{
    static const char unit[] = "KMG";
    char digits[32];
    double x, scale = 1;
    size_t n = strspn(s, "0123456789.");
    if (n == 0 || n >= sizeof digits)
        return false;
    memcpy(digits, s, n);
    digits[n] = 0;
    if (s[n]) {
        const char *u = strchr(unit, s[n] & ~0x20);
        if (!u || !*u || s[n + 1])
            return false;
        scale = (double)(1ull << (10 * (u - unit + 1)));
    }
    if (!read_number(digits, &x) || x * scale >= 0x1p62)
        return false;
    *out = (size_t)(x * scale);
    return true;
}

static bool read_flag(const char *s, bool *out)
{
    static const char *const yes[] = { "true", "yes", "on", "1" };
    static const char *const no[] = { "false", "no", "off", "0" };
    for (int i = 0; i < 4; i++) {
        if (!strcmp(s, yes[i]) || !strcmp(s, no[i])) {
            *out = !strcmp(s, yes[i]);
            return true;
        }
    }
    return false;
}

/* -1 is a seed to be drawn. */
static bool read_seed(const char *s, struct eng_config *c)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (!strcmp(s, "-1")) {
        c->seed_given = false;
        return true;
    }
    if (!(s[0] >= '0' && s[0] <= '9') || *end || errno)
        return false;
    c->sampling.seed = v;
    c->seed_given = true;
    return true;
}

static bool read_bias(const char *s, struct eng_config *c)
{
    char id[16];
    const char *equals = strchr(s, '=');
    size_t n = equals ? (size_t)(equals - s) : 0;
    long long token;
    double add;
    if (n == 0 || n >= sizeof id || c->sampling.n_bias == ENG_MAX_BIAS)
        return false;
    memcpy(id, s, n);
    id[n] = 0;
    if (!read_integer(id, &token) || token < 0 || token > INT32_MAX)
        return false;
    if (!strcmp(equals + 1, "-inf"))
        add = -INFINITY;
    else if (!read_number(equals + 1, &add))
        return false;
    c->bias[c->sampling.n_bias++] = (struct spec_bias){ (int32_t)token, (float)add };
    return true;
}

static bool read_isa(const char *s, enum kn_isa *out)
{
    for (int i = 0; i < KN_ISA_COUNT; i++) {
        if (!strcmp(s, kn_isa_name((enum kn_isa)i))) {
            *out = (enum kn_isa)i;
            return true;
        }
    }
    return false;
}

static const char *const kv_name[] = { [KN_KV_F16] = "f16", [KN_KV_F32] = "f32", [KN_KV_COUNT] = NULL };
static const char *const rule_name[] = { [SPEC_COUPLED] = "coupled", [SPEC_RATIO] = "ratio",
                                         [SPEC_BLOCK] = "block", NULL };
static const char *const io_name[] = { [OFF_IO_AUTO] = "auto", [OFF_IO_URING] = "uring",
                                       [OFF_IO_PREAD] = "pread", NULL };

/* The place of s in a list of names that NULL ends, or -1. */
static int find_name(const char *s, const char *const *name)
{
    for (int i = 0; name[i]; i++)
        if (!strcmp(s, name[i]))
            return i;
    return -1;
}

int eng_option_set(struct eng_config *c, const struct eng_option *o, const char *s, const char *who)
{
    void *field = (char *)c + o->at;
    char wanted[128] = "";
    long long i;
    double x;

    switch (o->kind) {
    case ENG_FLAG:
        if (read_flag(s, field))
            return 0;
        snprintf(wanted, sizeof wanted, "true or false");
        break;
    case ENG_INTEGER:
        if (read_integer(s, &i) && i >= o->least && i <= o->most) {
            *(int *)field = (int)i;
            return 0;
        }
        snprintf(wanted, sizeof wanted, "a whole number from %.0f to %.0f", o->least, o->most);
        break;
    case ENG_NUMBER:
        if (read_number(s, &x) && x >= o->least && x <= o->most) {
            *(float *)field = (float)x;
            return 0;
        }
        snprintf(wanted, sizeof wanted, "a number from %g to %g", o->least, o->most);
        break;
    case ENG_SEED:
        if (read_seed(s, c))
            return 0;
        snprintf(wanted, sizeof wanted, "a whole number below 2^64, or -1");
        break;
    case ENG_SIZE:
        if (read_size(s, field))
            return 0;
        snprintf(wanted, sizeof wanted, "a size such as 512M or 24G");
        break;
    case ENG_TEXT:
        *(const char **)field = s;
        return 0;
    case ENG_STOPS:
        if (s[0] && c->n_stop < ENG_MAX_STOP) {
            c->stop[c->n_stop++] = s;
            return 0;
        }
        snprintf(wanted, sizeof wanted, "up to %d texts, none empty", ENG_MAX_STOP);
        break;
    case ENG_BIASES:
        if (read_bias(s, c))
            return 0;
        snprintf(wanted, sizeof wanted, "up to %d of ID=NUMBER or ID=-inf", ENG_MAX_BIAS);
        break;
    case ENG_ISA:
        if (read_isa(s, field))
            return 0;
        snprintf(wanted, sizeof wanted, "scalar, avx2 or avx512");
        break;
    case ENG_DRAFTS:
        if (c->n_draft == ENG_DRAFTERS_MOST)
            return kn_fail(KN_ELIMIT, "%s: at most %d drafters", who, ENG_DRAFTERS_MOST);
        return eng_draft_parse(&c->draft[c->n_draft++], s);
    case ENG_OR_AUTO:
        if (!strcmp(s, "auto") || (read_integer(s, &i) && i >= o->least && i <= o->most)) {
            *(int *)field = !strcmp(s, "auto") ? ENG_GAMMA_AUTO : (int)i;
            return 0;
        }
        snprintf(wanted, sizeof wanted, "auto, or a whole number from %.0f to %.0f", o->least, o->most);
        break;
    case ENG_VERIFY:
        if (find_name(s, rule_name) >= 0) {
            *(enum spec_rule *)field = (enum spec_rule)find_name(s, rule_name);
            return 0;
        }
        snprintf(wanted, sizeof wanted, "coupled, ratio or block");
        break;
    case ENG_KV:
        if ((i = find_name(s, kv_name)) >= 0) {
            *(enum kn_kv *)field = (enum kn_kv)i;
            return 0;
        }
        snprintf(wanted, sizeof wanted, "f16 or f32");
        break;
    case ENG_IO:
        if ((i = find_name(s, io_name)) >= 0) {
            *(enum off_io_kind *)field = (enum off_io_kind)i;
            return 0;
        }
        snprintf(wanted, sizeof wanted, "auto, uring or pread");
        break;
    }
    return kn_fail(KN_EINVAL, "%s takes %s, not '%s'", who, wanted, s);
}

void eng_option_forget(struct eng_config *c, const struct eng_option *o)
{
    if (o->kind == ENG_STOPS)
        c->n_stop = 0;
    if (o->kind == ENG_DRAFTS)
        c->n_draft = 0;
    if (o->kind == ENG_BIASES)
        c->sampling.n_bias = 0;
}

/* ---- for those who tell of it ---------------------------------------------------------------------- */

const char *const *eng_option_choices(const struct eng_option *o)
{
    static const char *const isa_name[] = { "scalar", "avx2", "avx512", NULL };
    switch (o->kind) {
    case ENG_KV:     return kv_name;
    case ENG_IO:     return io_name;
    case ENG_ISA:    return isa_name;
    case ENG_VERIFY: return rule_name;
    default:         return NULL;
    }
}

void eng_option_default_text(const struct eng_config *c, const struct eng_option *o, char *out, size_t size)
{
    const void *field = (const char *)c + o->at;
    out[0] = 0;
    if (o->kind == ENG_INTEGER)
        snprintf(out, size, "%d", *(const int *)field);
    if (o->kind == ENG_NUMBER)
        snprintf(out, size, "%g", *(const float *)field);
    if (o->kind == ENG_KV)
        snprintf(out, size, "%s", kv_name[*(const enum kn_kv *)field]);
    if (o->kind == ENG_IO)
        snprintf(out, size, "%s", io_name[*(const enum off_io_kind *)field]);
    if (o->kind == ENG_TEXT && *(const char *const *)field)
        snprintf(out, size, "%s", *(const char *const *)field);
}
