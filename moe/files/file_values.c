/* moe/files/file_values.c - metadata values as numbers and strings, checked for type and range.
 *
 * moe_value_int() and moe_value_float() convert a scalar or one item of an array.  moe_file_int(), _float(), _bool()
 * and _string() look up a key and return 1 with the value, 0 with the output untouched if the key is absent, or a
 * negative code with a message that names file and key. */
#include "moe/files/internal.h"

#include <math.h>
#include <string.h>

static enum moe_type number_type(const struct moe_value *v) { return v->type == MOE_ARRAY ? v->item : v->type; }

static bool is_integer(enum moe_type t) { return t <= MOE_I32 || t == MOE_U64 || t == MOE_I64; }

/* The bits of item i in a 64-bit word; scalars are stored packed, little-endian. */
static uint64_t load(const struct moe_value *v, size_t i, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, (const uint8_t *)v->data + i * bytes, bytes);
    return word;
}

int64_t moe_value_int(const struct moe_value *v, size_t i)
{
    switch (number_type(v)) {
    case MOE_U8:
    case MOE_BOOL:
        return (int64_t)load(v, i, 1);
    case MOE_I8:
        return (int8_t)load(v, i, 1);
    case MOE_U16:
        return (int64_t)load(v, i, 2);
    case MOE_I16:
        return (int16_t)load(v, i, 2);
    case MOE_U32:
        return (int64_t)load(v, i, 4);
    case MOE_I32:
        return (int32_t)load(v, i, 4);
    case MOE_U64: { /* clamped to INT64_MAX */
        uint64_t x = load(v, i, 8);
        return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    }
    case MOE_I64:
        return (int64_t)load(v, i, 8);
    case MOE_F32:
    case MOE_F64: {
        double x = moe_value_float(v, i);
        return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : 0;
    }
    default:
        return 0;
    }
}

double moe_value_float(const struct moe_value *v, size_t i)
{
    union {
        uint64_t bits;
        double x;
    } wide;
    union {
        uint32_t bits;
        float x;
    } narrow;
    switch (number_type(v)) {
    case MOE_F32:
        narrow.bits = (uint32_t)load(v, i, 4);
        return narrow.x;
    case MOE_F64:
        wide.bits = load(v, i, 8);
        return wide.x;
    case MOE_U64:
        return (double)load(v, i, 8);
    default:
        return (double)moe_value_int(v, i);
    }
}

static int wrong_kind(const struct moe_file *f, const char *key, const char *kind)
{
    return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': must be %s", f->name, kn_error_text(KN_ECORRUPT), key, kind);
}

int moe_file_int(const struct moe_file *f, const char *key, int64_t least, int64_t most, int64_t *out)
{
    const struct moe_value *v = moe_find_value(f, &f->values, key);
    if (!v)
        return 0;
    if (!is_integer(v->type))
        return wrong_kind(f, key, "an integer");
    int64_t x = moe_value_int(v, 0);
    if (x < least || x > most)
        return kn_fail(KN_ECORRUPT, "%s: %s: metadata '%s': %lld is not within %lld to %lld", f->name,
                       kn_error_text(KN_ECORRUPT), key, (long long)x, (long long)least, (long long)most);
    *out = x;
    return 1;
}

int moe_file_float(const struct moe_file *f, const char *key, double *out)
{
    const struct moe_value *v = moe_find_value(f, &f->values, key);
    if (!v)
        return 0;
    if (v->type != MOE_F32 && v->type != MOE_F64)
        return wrong_kind(f, key, "a floating-point number");
    double x = moe_value_float(v, 0);
    if (!isfinite(x))
        return wrong_kind(f, key, "finite");
    *out = x;
    return 1;
}

int moe_file_bool(const struct moe_file *f, const char *key, bool *out)
{
    const struct moe_value *v = moe_find_value(f, &f->values, key);
    if (!v)
        return 0;
    if (v->type != MOE_BOOL)
        return wrong_kind(f, key, "a boolean");
    *out = moe_value_int(v, 0) != 0;
    return 1;
}

int moe_file_string(const struct moe_file *f, const char *key, struct moe_string *out)
{
    const struct moe_value *v = moe_find_value(f, &f->values, key);
    if (!v)
        return 0;
    if (v->type != MOE_STRING)
        return wrong_kind(f, key, "a string");
    *out = *(const struct moe_string *)v->data;
    return 1;
}
