/* engine/cli/option_values.c - values of options: text to a field, and defaults to text.
 *
 * In: an option and its text.  Out: a field of struct eng_config, or one line of error with the accepted values. */
#include "engine/api/model_sampling.h"
#include "engine/cli/options.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- one value ------------------------------------------------------------------------------------- */

static bool read_integer(const char *s, long long *out)
{
    char *end;
    if (!(s[0] == '-' || (s[0] >= '0' && s[0] <= '9')))
        return false;
    *out = strtoll(s, &end, 10); /* overflow gives LLONG_MAX: outside every range */
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

/* True for the end of a size behind its letter: 4G, 4GB and 4GiB are the same. */
static bool ends_size(const char *s) { return !s[0] || !strcasecmp(s, "B") || !strcasecmp(s, "iB"); }

/* Digits with an optional fraction and an optional unit (B, K, M, G, T, the letters with B or iB behind them); result
 * in bytes, rounded down.  least: a smaller number needs a unit. */
static bool read_size(const char *s, double least, size_t *out)
{
    static const char unit[] = "KMGT";
    char digits[32];
    double x, scale = 1;
    size_t n = strspn(s, "0123456789.");
    if (n == 0 || n >= sizeof digits)
        return false;
    memcpy(digits, s, n);
    digits[n] = 0;
    if (s[n] && strcasecmp(s + n, "B") != 0) {
        const char *u = strchr(unit, s[n] & ~0x20);
        if (!u || !*u || !ends_size(s + n + 1))
            return false;
        scale = (double)(1ull << (10 * (u - unit + 1)));
    }
    if (!read_number(digits, &x) || x * scale >= 0x1p62 || (!s[n] && x > 0 && x < least))
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

/* Reads the value of --seed; -1: as without --seed. */
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

/* ---- options with a fixed list of values ----------------------------------------------------------- */

static const char *const isa_name[] = { [KN_ISA_SCALAR] = "scalar",
                                        [KN_ISA_AVX2] = "avx2",
                                        [KN_ISA_AVX512] = "avx512",
                                        [KN_ISA_VBMI] = "avx512vbmi",
                                        [KN_ISA_COUNT] = NULL };
static const char *const kv_name[] = {
    [KN_KV_F16] = "f16", [KN_KV_F32] = "f32", [KN_KV_INT8] = "int8", [KN_KV_COUNT] = NULL
};
static const char *const rule_name[] = {
    [SPEC_COUPLED] = "coupled", [SPEC_RATIO] = "ratio", [SPEC_BLOCK] = "block", NULL
};
static const char *const io_name[] = {
    [OFF_IO_AUTO] = "auto", [OFF_IO_URING] = "uring", [OFF_IO_PREAD] = "pread", NULL
};
static const char *const defaults_name[] = { "model", "none", NULL };
static const char *const log_name[] = { [ENG_LOG_TEXT] = "text", [ENG_LOG_JSON] = "json", [ENG_LOG_FORMS] = NULL };
_Static_assert(sizeof(enum kn_isa) == sizeof(unsigned) && sizeof(enum kn_kv) == sizeof(unsigned) &&
                   sizeof(enum eng_log_form) == sizeof(unsigned) && sizeof(enum spec_rule) == sizeof(unsigned) &&
                   sizeof(enum off_io_kind) == sizeof(unsigned),
               "the index of a name in its list is the field's value");

const char *const *eng_option_choices(const struct eng_option *o)
{
    switch (o->kind) {
    case ENG_KV:
        return kv_name;
    case ENG_IO:
        return io_name;
    case ENG_ISA:
        return isa_name;
    case ENG_VERIFY:
        return rule_name;
    case ENG_SAMPLING_DEFAULTS:
        return defaults_name;
    case ENG_LOG_FORMAT:
        return log_name;
    default:
        return NULL;
    }
}

static bool read_choice(const char *s, const char *const *name, unsigned *out)
{
    for (unsigned i = 0; name[i]; i++)
        if (!strcmp(s, name[i])) {
            *out = i;
            return true;
        }
    return false;
}

/* Writes a list as text: "scalar, avx2 or avx512". */
static void list_choices(const char *const *name, char *out, size_t size)
{
    size_t n = 0;
    for (int i = 0; name[i] && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", !i ? "" : name[i + 1] ? ", " : " or ", name[i]);
}

/* ---- an option ------------------------------------------------------------------------------------- */

static bool is_within(const struct eng_option *o, double x) { return x >= o->least && x <= o->most; }

static bool read_int(const struct eng_option *o, const char *s, int *out)
{
    long long i;
    if (!read_integer(s, &i) || !is_within(o, (double)i))
        return false;
    *out = (int)i;
    return true;
}

static bool read_float(const struct eng_option *o, const char *s, float *out)
{
    double x;
    if (!read_number(s, &x) || !is_within(o, x))
        return false;
    *out = (float)x;
    return true;
}

/* Reads the order of sampling steps as letters. */
static bool read_letters(const char *s, struct spec_params *p)
{
    p->has_order = true;
    p->n_order = 0;
    for (; *s; s++)
        if (!spec_order_add(p, spec_step_of_letter(*s)))
            return false;
    return true;
}

static bool read_breaker(const char *s, struct eng_config *c)
{
    size_t n = strlen(s);
    c->n_breaker = kn_max(c->n_breaker, 0);
    if (!strcmp(s, "none"))
        return true;
    if (n < 1 || n > ENG_BREAKER_BYTES || c->n_breaker == ENG_BREAKERS_MOST)
        return false;
    c->breaker[c->n_breaker++] = (struct moe_string){ s, n };
    return true;
}

static bool read_value(struct eng_config *c, const struct eng_option *o, const char *s)
{
    void *field = (char *)c + o->at;
    switch (o->kind) {
    case ENG_FLAG:
        return read_flag(s, field);
    case ENG_INTEGER:
        return read_int(o, s, field);
    case ENG_NUMBER:
        return read_float(o, s, field);
    case ENG_SEED:
        return read_seed(s, c);
    case ENG_SIZE:
        return read_size(s, o->least, field);
    case ENG_BIASES:
        return read_bias(s, c);
    case ENG_OR_AUTO:
        if (strcmp(s, "auto"))
            return read_int(o, s, field);
        *(int *)field = ENG_GAMMA_AUTO;
        return true;
    case ENG_STOPS:
        if (!s[0] || c->n_stop == ENG_MAX_STOP)
            return false;
        c->stop[c->n_stop++] = s;
        return true;
    case ENG_STOP_IDS:
        return c->n_stop_id < ENG_MAX_STOP && read_int(o, s, &c->stop_id[c->n_stop_id]) && ++c->n_stop_id;
    case ENG_ISA:
    case ENG_KV:
    case ENG_IO:
    case ENG_VERIFY:
    case ENG_SAMPLING_DEFAULTS:
    case ENG_LOG_FORMAT:
        return read_choice(s, eng_option_choices(o), field);
    case ENG_STEP_NAMES:
    case ENG_STEP_LETTERS:
        return o->kind == ENG_STEP_LETTERS ? read_letters(s, &c->sampling)
                                           : spec_order_read(&c->sampling, s, strlen(s));
    case ENG_BREAKERS:
        return read_breaker(s, c);
    case ENG_TEXT:
        *(const char **)field = s;
        return true;
    case ENG_DRAFTS: /* eng_option_set() parses drafters */
        break;
    }
    return false;
}

/* Writes the accepted values of an option, for the error message. */
static void say_wanted(const struct eng_option *o, char *out, size_t size)
{
    switch (o->kind) {
    case ENG_FLAG:
        snprintf(out, size, "true or false");
        break;
    case ENG_INTEGER:
        snprintf(out, size, "a whole number from %.0f to %.0f", o->least, o->most);
        break;
    case ENG_OR_AUTO:
        snprintf(out, size, "auto, or a whole number from %.0f to %.0f", o->least, o->most);
        break;
    case ENG_NUMBER:
        snprintf(out, size, "a number from %g to %g", o->least, o->most);
        break;
    case ENG_SEED:
        snprintf(out, size, "a whole number below 2^64, or -1");
        break;
    case ENG_SIZE:
        snprintf(out, size, "a size such as 512M or 24G (a number and its unit)");
        break;
    case ENG_STOPS:
        snprintf(out, size, "up to %d texts, none empty", ENG_MAX_STOP);
        break;
    case ENG_STOP_IDS:
        snprintf(out, size, "up to %d ids of tokens, whole numbers from 0", ENG_MAX_STOP);
        break;
    case ENG_BIASES:
        snprintf(out, size, "up to %d of ID=NUMBER or ID=-inf", ENG_MAX_BIAS);
        break;
    case ENG_STEP_NAMES:
        snprintf(out, size,
                 "names of sampling steps with ; between them, each at most once: penalties, dry, top_n_sigma, "
                 "top_k, typ_p, top_p, min_p, xtc, temperature");
        break;
    case ENG_STEP_LETTERS:
        snprintf(out, size, "letters of edskypmxt, each at most once");
        break;
    case ENG_BREAKERS:
        snprintf(out, size, "up to %d texts of 1 to %d bytes, or none", ENG_BREAKERS_MOST, ENG_BREAKER_BYTES);
        break;
    default:
        list_choices(eng_option_choices(o), out, size);
    }
}

int eng_option_set(struct eng_config *c, const struct eng_option *o, const char *s, const char *by)
{
    char wanted[192];
    if (o->kind == ENG_DRAFTS)
        return c->n_draft == ENG_DRAFTERS_MOST - 1
                   ? kn_fail(KN_ELIMIT, "%s: at most %d drafters", by, ENG_DRAFTERS_MOST - 1)
                   : eng_draft_parse(&c->draft[c->n_draft++], s);
    if (read_value(c, o, s)) {
        size_t sampling = offsetof(struct eng_config, sampling);
        if (o->at >= sampling && o->at < sampling + sizeof c->sampling)
            c->sampling_given |= eng_model_sampling_bit(o->at - sampling);
        return 0;
    }
    say_wanted(o, wanted, sizeof wanted);
    return kn_fail(KN_EINVAL, "%s takes %s, not '%s'", by, wanted, s);
}

void eng_option_forget(struct eng_config *c, const struct eng_option *o)
{
    if (o->kind == ENG_STOPS)
        c->n_stop = 0;
    if (o->kind == ENG_STOP_IDS)
        c->n_stop_id = 0;
    if (o->kind == ENG_BREAKERS)
        c->n_breaker = -1;
    if (o->kind == ENG_DRAFTS)
        c->n_draft = 0;
    if (o->kind == ENG_BIASES)
        c->sampling.n_bias = 0;
}

void eng_option_default_text(const struct eng_config *c, const struct eng_option *o, char *out, size_t size)
{
    const void *field = (const char *)c + o->at;
    out[0] = 0;
    if (o->kind == ENG_INTEGER)
        snprintf(out, size, "%d", *(const int *)field);
    if (o->kind == ENG_NUMBER)
        snprintf(out, size, "%g", *(const float *)field);
    if (o->kind == ENG_KV || o->kind == ENG_IO || o->kind == ENG_SAMPLING_DEFAULTS || o->kind == ENG_LOG_FORMAT)
        snprintf(out, size, "%s", eng_option_choices(o)[*(const unsigned *)field]);
    if (o->kind == ENG_TEXT && *(const char *const *)field)
        snprintf(out, size, "%s", *(const char *const *)field);
}
