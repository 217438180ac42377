/* engine/text/jinja/number.c - Python's arithmetic on 64-bit integers and on doubles.
 *
 * Integer overflow is refused.  "//" and "%" round the quotient towards minus infinity.  Powers are
 * supported for integers only: the C library's pow may differ from Python's in the last digit. */
#include "engine/text/jinja/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

__attribute__((noreturn)) static void too_large(struct jin *j) { JIN_FAIL(j, "an integer beyond 64 bits"); }

__attribute__((noreturn)) static void unsupported(struct jin *j, int op, struct jin_value a, struct jin_value b)
{
    const char *name = op == 'D' ? "//" : op == 'P' ? "** or pow()" : NULL;
    char one[2] = { (char)op, 0 };
    jin_need(j, a);
    jin_need(j, b);
    if (op == '+' && a.type == JIN_STRING)
        JIN_FAIL(j, "can only concatenate str (not \"%s\") to str", jin_type_name(b));
    JIN_FAIL(j, "unsupported operand type(s) for %s: '%s' and '%s'", name ? name : one, jin_type_name(a),
             jin_type_name(b));
}

int64_t jin_index(struct jin *j, struct jin_value v, const char *what)
{
    jin_need(j, v);
    if (!jin_is_integer(v))
        JIN_FAIL(j, "%s must be an integer, not %s", what, jin_type_name(v));
    return jin_integer(v);
}

bool jin_float_to_int(double f, int64_t *out)
{
    if (!(f > -9223372036854775809.0 && f < 9223372036854775808.0))
        return false;
    *out = (int64_t)f;
    return true;
}

int jin_compare_numbers(struct jin_value a, struct jin_value b)
{
    if (jin_is_integer(a) && jin_is_integer(b))
        return (jin_integer(a) > jin_integer(b)) - (jin_integer(a) < jin_integer(b));
    /* a long double holds every 64-bit integer */
    long double x = a.type == JIN_FLOAT ? (long double)a.f : (long double)jin_integer(a);
    long double y = b.type == JIN_FLOAT ? (long double)b.f : (long double)jin_integer(b);
    return x > y ? 1 : x < y ? -1 : x == y ? 0 : 2;
}

/* ---- integers -------------------------------------------------------------------------------- */

static int64_t floor_divide(struct jin *j, int64_t a, int64_t b, int64_t *rest)
{
    if (!b)
        JIN_FAIL(j, "integer division or modulo by zero");
    if (b == -1) {
        *rest = 0;
        if (a == INT64_MIN)
            too_large(j);
        return -a;
    }
    int64_t q = a / b, r = a % b;
    if (r && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    *rest = r;
    return q;
}

static int64_t power(struct jin *j, int64_t base, int64_t exponent)
{
    int64_t out = 1;
    while (exponent) {
        if (exponent & 1 && __builtin_mul_overflow(out, base, &out))
            too_large(j);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            too_large(j);
    }
    return out;
}

static struct jin_value integers(struct jin *j, int op, int64_t a, int64_t b)
{
    int64_t out, rest;
    switch (op) {
    case '+':
        if (__builtin_add_overflow(a, b, &out))
            too_large(j);
        return jin_int(out);
    case '-':
        if (__builtin_sub_overflow(a, b, &out))
            too_large(j);
        return jin_int(out);
    case '*':
        if (__builtin_mul_overflow(a, b, &out))
            too_large(j);
        return jin_int(out);
    case '/':
        if (!b)
            JIN_FAIL(j, "division by zero");
        if (a > (INT64_C(1) << 53) || a < -(INT64_C(1) << 53) || b > (INT64_C(1) << 53) || b < -(INT64_C(1) << 53))
            JIN_FAIL(j, "dividing integers beyond 2**53 is not supported");
        return jin_float((double)a / (double)b);
    case 'D':
        return jin_int(floor_divide(j, a, b, &rest));
    case '%':
        floor_divide(j, a, b, &rest);
        return jin_int(rest);
    default:
        if (b < 0)
            JIN_FAIL(j, "powers with a negative exponent are not supported");
        return jin_int(power(j, a, b));
    }
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* As C's fmod: x - n * y for an integer n, smaller than y in magnitude, with the sign of x.  Exact: long division
 * in binary. */
static double remainder_of(double x, double y)
{
    double a = x < 0 ? -x : x, b = y < 0 ? -y : y, t = b;
    if (!(a < INFINITY) || b != b)
        return NAN;
    if (!(b < INFINITY))
        return x;
    while (t <= a / 2)
        t *= 2;
    for (; t >= b; t /= 2)
        if (a >= t)
            a -= t;
    return x < 0 ? -a : a;
}

static struct jin_value floats(struct jin *j, int op, double a, double b)
{
    if (op == 'P')
        JIN_FAIL(j, "powers of floats are not supported");
    if (op == '+' || op == '-' || op == '*')
        return jin_float(op == '+' ? a + b : op == '-' ? a - b : a * b);
    if (b == 0)
        JIN_FAIL(j, op == '/' ? "float division by zero" : op == '%' ? "float modulo" : "float floor division by zero");
    if (op == '/')
        return jin_float(a / b);
    double rest = remainder_of(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    } else if (rest == 0) {
        rest = copysign(0, b);
    }
    if (op == '%')
        return jin_float(rest);
    if (quotient == 0)
        return jin_float(copysign(0, a / b));
    double whole = floor(quotient);
    return jin_float(quotient - whole > 0.5 ? whole + 1 : whole);
}

/* ---- sequences ------------------------------------------------------------------------------- */

static struct jin_value repeated(struct jin *j, struct jin_value v, int64_t times)
{
    if (v.type == JIN_STRING) {
        struct jin_builder b = { .j = j };
        jin_add_repeat(&b, v.s, times);
        struct jin_value out = jin_built(&b);
        out.safe = v.safe;
        return out;
    }
    struct jin_items out = { 0 };
    for (int64_t i = 0; v.list->n && i < times; i++)
        for (size_t k = 0; k < v.list->n; k++) {
            jin_charge(j, 1);
            jin_items_add(j, &out, v.list->item[k]);
        }
    return jin_items_done(j, &out, v.type);
}

static bool is_sequence(struct jin_value v)
{
    return v.type == JIN_STRING || v.type == JIN_LIST || v.type == JIN_TUPLE;
}

static struct jin_value joined(struct jin *j, struct jin_value a, struct jin_value b)
{
    if (a.type == JIN_STRING) {
        bool safe = a.safe || b.safe;
        struct jin_value out = safe ? jin_concat(j, jin_escape_html(j, a).s, jin_escape_html(j, b).s)
                                    : jin_concat(j, a.s, b.s);
        out.safe = safe;
        return out;
    }
    struct jin_items out = { 0 };
    for (int side = 0; side < 2; side++) {
        const struct jin_list *l = side ? b.list : a.list;
        jin_charge(j, l->n / 4);
        for (size_t i = 0; i < l->n; i++)
            jin_items_add(j, &out, l->item[i]);
    }
    return jin_items_done(j, &out, a.type);
}

struct jin_value jin_arithmetic(struct jin *j, int op, struct jin_value a, struct jin_value b)
{
    if (jin_is_integer(a) && jin_is_integer(b))
        return integers(j, op, jin_integer(a), jin_integer(b));
    if (jin_is_number(a) && jin_is_number(b))
        return floats(j, op, a.type == JIN_FLOAT ? a.f : (double)jin_integer(a),
                      b.type == JIN_FLOAT ? b.f : (double)jin_integer(b));
    if (op == '+' && a.type == b.type && is_sequence(a))
        return joined(j, a, b);
    if (op == '%' && a.type == JIN_STRING)
        return jin_format_percent(j, a, b);
    if (op == '*' && is_sequence(a) && jin_is_integer(b))
        return repeated(j, a, jin_integer(b));
    if (op == '*' && is_sequence(b) && jin_is_integer(a))
        return repeated(j, b, jin_integer(a));
    unsupported(j, op, a, b);
}

struct jin_value jin_negate(struct jin *j, struct jin_value v, bool minus)
{
    jin_need(j, v);
    if (!jin_is_number(v))
        JIN_FAIL(j, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jin_type_name(v));
    if (v.type == JIN_FLOAT)
        return jin_float(minus ? -v.f : v.f);
    return minus ? integers(j, '-', 0, jin_integer(v)) : jin_int(jin_integer(v));
}

/* ---- text to numbers ------------------------------------------------------------------------- */

/* Copies s to out[room] without the white space on both sides (j NULL: s has none) and without underscores between
 * digits or letters.  False if nothing is left, or if s has an underscore at another place, a NUL, or a character
 * beyond ASCII; a decimal digit beyond ASCII fails. */
static bool plain_digits(const struct jin_string *s, struct jin *j, char *out, size_t room, size_t *n)
{
    struct jin_string t = *s;
    if (j)
        t = *jin_strip(j, s, NULL, 3).s;
    *n = 0;
    for (size_t i = 0; i < t.n; i++) {
        char c = t.data[i], last = i ? t.data[i - 1] : 0, next = i + 1 < t.n ? t.data[i + 1] : 0;
        if ((uint8_t)c >= 0x80 && j) {
            int32_t code;
            jin_decode(t.data + i, t.n - i, &code);
            if (utf8proc_category(code) == UTF8PROC_CATEGORY_ND)
                JIN_FAIL(j, "numbers in digits beyond ASCII are not supported");
            return false;
        }
        bool between = ((last >= '0' && last <= '9') || ((last | 32) >= 'a' && (last | 32) <= 'z')) &&
                       ((next >= '0' && next <= '9') || ((next | 32) >= 'a' && (next | 32) <= 'z'));
        if (!c || (c == '_' && !between))
            return false;
        if (c == '_')
            continue;
        if (*n + 1 == room) {
            if (j)
                JIN_FAIL(j, "a number of more than %zu digits", room - 1);
            return false;
        }
        out[(*n)++] = c;
    }
    out[*n] = 0;
    return *n > 0;
}

bool jin_parse_int(const struct jin_string *s, int base, struct jin *j, int64_t *out)
{
    char text[512];
    size_t n, i = 0;
    if (!plain_digits(s, j, text, sizeof text, &n))
        return false;
    bool minus = text[0] == '-';
    i += minus || text[0] == '+';
    char prefix = text[i] == '0' ? text[i + 1] | 32 : 0;
    int named = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
        i += 2;
        base = named;
    } else if (base == 0) {
        base = 10;
        if (text[i] == '0' && strspn(text + i, "0") != n - i)
            return false; /* 012 is not a valid number */
    }
    bool large = false;
    int64_t value = 0; /* accumulated negative, to cover INT64_MIN */
    size_t first = i;
    for (; i < n; i++) {
        char c = text[i] | 32;
        int digit = text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (digit >= base)
            return false;
        large |= __builtin_mul_overflow(value, (int64_t)base, &value) ||
                 __builtin_sub_overflow(value, (int64_t)digit, &value);
    }
    if (i == first)
        return false;
    large |= !minus && value == INT64_MIN;
    if (large && j)
        too_large(j);
    *out = minus ? value : large ? 0 : -value;
    return !large;
}

bool jin_parse_float(const struct jin_string *s, struct jin *j, double *out)
{
    static const struct {
        const char *name;
        double value;
    } words[] = {
        { "inf", INFINITY },
        { "infinity", INFINITY },
        { "nan", NAN },
    };
    char text[512], lower[12] = { 0 };
    size_t n, i = 0;
    if (!plain_digits(s, j, text, sizeof text, &n))
        return false;
    i += text[0] == '-' || text[0] == '+';
    for (size_t k = 0; k + 1 < sizeof lower && text[i + k]; k++)
        lower[k] = text[i + k] | 32;
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        if (!strcmp(lower, words[k].name) && n - i == strlen(lower)) {
            *out = text[0] == '-' ? -words[k].value : words[k].value;
            return true;
        }
    size_t whole = strspn(text + i, "0123456789"), part = 0;
    i += whole;
    if (text[i] == '.')
        i += 1 + (part = strspn(text + i + 1, "0123456789"));
    if (!whole && !part)
        return false;
    if ((text[i] | 32) == 'e') {
        size_t sign = text[i + 1] == '-' || text[i + 1] == '+', power = strspn(text + i + 1 + sign, "0123456789");
        i += power ? 1 + sign + power : 0;
    }
    if (i != n)
        return false;
    *out = strtod(text, NULL);
    return true;
}

/* ---- rounding -------------------------------------------------------------------------------- */

static double ten_to(int64_t n)
{
    char text[32];
    snprintf(text, sizeof text, "1e%d", (int)(n > 400 ? 400 : n < -400 ? -400 : n));
    return strtod(text, NULL);
}

static struct jin_value round_integer(struct jin *j, int64_t i, int64_t digits)
{
    if (digits >= 0)
        return jin_int(i);
    if (digits < -18)
        return jin_int(0);
    int64_t unit = power(j, 10, -digits), rest, q = floor_divide(j, i, unit, &rest);
    if (2 * rest > unit || (2 * rest == unit && q & 1))
        q++;
    return integers(j, '*', q, unit);
}

/* how: 'r' to nearest (half to even), 'c' up, 'f' down */
struct jin_value jin_round(struct jin *j, struct jin_value v, int64_t digits, int how)
{
    char text[400];
    double f;
    jin_need(j, v);
    if (!jin_is_number(v))
        JIN_FAIL(j, "type %s doesn't define __round__ method", jin_type_name(v));
    if (how == 'r') {
        if (v.type != JIN_FLOAT)
            return round_integer(j, jin_integer(v), digits);
        if (v.f != v.f || v.f - v.f != 0 || digits > 30)
            return v;
        if (digits < 0)
            JIN_FAIL(j, "rounding floats to tens is not supported");
        snprintf(text, sizeof text, "%.*f", (int)digits, v.f); /* correctly rounded from the exact value */
        return jin_float(strtod(text, NULL));
    }
    f = v.type == JIN_FLOAT ? v.f : (double)jin_integer(v);
    if (digits < 0)
        JIN_FAIL(j, "rounding to tens is not supported");
    f *= ten_to(digits);
    f = how == 'c' ? ceil(f) : floor(f);
    return jin_float(f / ten_to(digits) + 0.0);
}
