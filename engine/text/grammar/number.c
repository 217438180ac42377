/* engine/text/grammar/number.c - rules of numbers within bounds.
 *
 * Integers are exact.  Other numbers are compared digit by digit with the shortest decimal
 * that reads back as the bound.  They have at most 17 digits before and about 20 after the point, and no
 * exponent.  Rounding to double is monotonic, so a decimal >= the bound is also >= the bound as a double.
 * An excluded bound is replaced by the next decimal of 15 digits, which is a different double. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/automaton.h"

#define MOST_WHOLE   UINT64_C(99999999999999999) /* 17 digits */
#define MOST_INTEGER INT64_C(999999999999999999) /* 18 */

#define LEAST_BOUND 1e-40

enum { MOST_FRACTION = 20, MOST_BOUND_FRACTION = 60 };

/* ---- runs of digits -------------------------------------------------------------------------- */

static int32_t any_digits(struct gr_builder *b, size_t n, int32_t next) { return gr_digits(b, (int)n, (int)n, next); }

static int32_t digit_between(struct gr_builder *b, int lo, int hi, int32_t next)
{
    return lo <= hi ? gr_bytes_node(b, lo, hi, next) : gr_forward(b);
}

/* n digits that form a number >= the digits p[n]; with `below`, a number <= them. */
static int32_t digits_beyond(struct gr_builder *b, const char *p, size_t n, bool below, int32_t next)
{
    if (n == 0)
        return next;
    int32_t same = gr_bytes_node(b, *p, *p, digits_beyond(b, p + 1, n - 1, below, next));
    int32_t rest = any_digits(b, n - 1, next);
    return gr_either(b, same, below ? digit_between(b, '0', *p - 1, rest) : digit_between(b, *p + 1, '9', rest));
}

static int32_t digits_between(struct gr_builder *b, const char *lo, const char *hi, size_t n, int32_t next)
{
    if (n == 0)
        return next;
    if (*lo == *hi)
        return gr_bytes_node(b, *lo, *lo, digits_between(b, lo + 1, hi + 1, n - 1, next));
    int32_t edges = gr_either(b, gr_bytes_node(b, *lo, *lo, digits_beyond(b, lo + 1, n - 1, false, next)),
                              gr_bytes_node(b, *hi, *hi, digits_beyond(b, hi + 1, n - 1, true, next)));
    return gr_either(b, edges, digit_between(b, *lo + 1, *hi - 1, any_digits(b, n - 1, next)));
}

/* A whole number in lo..hi without leading zeros: one alternative per number of digits. */
static int32_t whole_between(struct gr_builder *b, uint64_t lo, uint64_t hi, int32_t next)
{
    int32_t node = gr_forward(b);
    uint64_t least = 0, most = 9;
    for (int n = 1; n <= 18; n++, least = most + 1, most = most * 10 + 9) {
        char from[24], to[24];
        uint64_t x = lo > least ? lo : least, y = hi < most ? hi : most;
        if (x > y)
            continue;
        snprintf(from, sizeof from, "%llu", (unsigned long long)x);
        snprintf(to, sizeof to, "%llu", (unsigned long long)y);
        node = gr_either(b, node, digits_between(b, from, to, strlen(from), next));
    }
    return node;
}

/* ---- integers -------------------------------------------------------------------------------- */

/* up: the smallest integer that satisfies the lower bound; else the largest that satisfies the upper bound. */
static int64_t integer_bound(const json_t *bound, bool excluded, bool up)
{
    int64_t x;
    if (json_is_integer(bound)) {
        x = json_integer_value(bound);
        x = x > MOST_INTEGER ? MOST_INTEGER + 1 : x < -MOST_INTEGER ? -MOST_INTEGER - 1 : x;
        return excluded ? x + (up ? 1 : -1) : x;
    }
    double d = json_real_value(bound);
    if (d > (double)MOST_INTEGER || d < -(double)MOST_INTEGER)
        return d > 0 ? MOST_INTEGER + 1 : -MOST_INTEGER - 1;
    x = (int64_t)d;
    if ((double)x == d)
        return excluded ? x + (up ? 1 : -1) : x;
    if (up)
        return x + (d > (double)x);
    return x - (d < (double)x);
}

int32_t gr_integer_rule(struct gr_builder *b, const struct gr_range *r)
{
    if (!r->least && !r->most)
        return b->base[GR_INTEGER];
    int64_t lo = r->least ? integer_bound(r->least, r->above_least, true) : -MOST_INTEGER;
    int64_t hi = r->most ? integer_bound(r->most, r->below_most, false) : MOST_INTEGER;
    int32_t node = gr_forward(b);
    lo = lo < -MOST_INTEGER ? -MOST_INTEGER : lo;
    hi = hi > MOST_INTEGER ? MOST_INTEGER : hi;
    if (lo > hi)
        return node;
    if (hi >= 0)
        node = gr_either(b, node, whole_between(b, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, GR_END));
    if (lo < 0) {
        int32_t minus = whole_between(b, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo, GR_END);
        node = gr_either(b, node, gr_text(b, "-", minus));
    }
    return node;
}

/* ---- decimals -------------------------------------------------------------------------------- */

/* whole + 0.fraction; no zeros at the fraction's end. */
struct decimal {
    uint64_t whole;
    bool too_large; /* more than MOST_WHOLE; the other members are unused */
    size_t n;
    char fraction[MOST_BOUND_FRACTION]; /* [n] digits */
};

/* The decimal digit[0].digit[1] .. digit[n - 1] times 10^power. */
static struct decimal decimal_of(const char *digit, int n, int power)
{
    struct decimal x = { 0 };
    for (int place = power; place >= 0; place--) {
        int i = power - place;
        x.whole = x.whole * 10 + (uint64_t)(i < n ? digit[i] - '0' : 0);
        if (x.whole > MOST_WHOLE) {
            x.too_large = true;
            return x;
        }
    }
    for (int place = -1; place >= -MOST_BOUND_FRACTION; place--) {
        int i = power - place;
        x.fraction[x.n++] = i >= 0 && i < n ? digit[i] : '0';
    }
    while (x.n > 0 && x.fraction[x.n - 1] == '0')
        x.n--;
    return x;
}

/* The decimal of a number >= 0 in the text that printf writes for "%.*e". */
static struct decimal decimal_printed(const char *text)
{
    char digit[24];
    int n = 0;
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 24)
            digit[n++] = *p;
    return decimal_of(digit, n, *p ? atoi(p + 1) : 0);
}

static struct decimal decimal_shortest(double x)
{
    char text[40];
    for (int n = 0; n <= 16; n++) {
        snprintf(text, sizeof text, "%.*e", n, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return decimal_printed(text);
}

/* Adds 1 to the number digit[n] (up) or subtracts 1; false on overflow. */
static bool digits_step(char *digit, int n, bool up)
{
    for (int i = n - 1; i >= 0; i--) {
        if (digit[i] != (up ? '9' : '0')) {
            digit[i] = (char)(digit[i] + (up ? 1 : -1));
            return true;
        }
        digit[i] = up ? '0' : '9';
    }
    return false;
}

/* The next decimal of 15 digits above x >= 0 (up), or below x > 0. */
static struct decimal decimal_next(double x, bool up)
{
    enum { N = 15 };
    char text[40], digit[N + 1];
    if (x == 0)
        return decimal_of("1", 1, -N);
    snprintf(text, sizeof text, "%.14e", x);
    double printed = strtod(text, NULL);
    int power = atoi(strchr(text, 'e') + 1);
    if (up ? printed > x : printed < x)
        return decimal_printed(text);
    digit[0] = text[0];
    memcpy(digit + 1, text + 2, N - 1);
    if (!digits_step(digit, N, up)) { /* 9.99 + 0.01 */
        memmove(digit + 1, digit, N - 1);
        digit[0] = '1';
        power++;
    }
    return decimal_of(digit, N, power);
}

static struct decimal decimal_bound(const json_t *bound, bool excluded, bool up)
{
    double x = json_number_value(bound);
    x = x < 0 ? -x : x;
    if (up && x > 0 && x < LEAST_BOUND)
        x = LEAST_BOUND; /* its digits would be truncated, which rounds down */
    if (excluded)
        return decimal_next(x, up);
    if (!json_is_integer(bound))
        return decimal_shortest(x);
    int64_t i = json_integer_value(bound);
    uint64_t whole = i < 0 ? (uint64_t)0 - (uint64_t)i : (uint64_t)i;
    return (struct decimal){ .whole = whole, .too_large = whole > MOST_WHOLE };
}

/* ---- fractions ------------------------------------------------------------------------------- */

static int32_t tail(struct gr_builder *b) { return gr_digits(b, 0, MOST_FRACTION, GR_END); }

static int32_t zeros(struct gr_builder *b)
{
    int32_t node = GR_END;
    for (int i = 0; i < MOST_FRACTION; i++)
        node = gr_either(b, GR_END, gr_text(b, "0", node));
    return node;
}

static int32_t any_fraction(struct gr_builder *b)
{
    return gr_either(b, GR_END, gr_text(b, ".", gr_digits(b, 1, MOST_FRACTION, GR_END)));
}

/* Fraction digits from place i on that are at least those of lo. */
static int32_t not_below(struct gr_builder *b, const struct decimal *lo, size_t i)
{
    if (i >= lo->n)
        return tail(b);
    return gr_either(b, gr_bytes_node(b, lo->fraction[i], lo->fraction[i], not_below(b, lo, i + 1)),
                     digit_between(b, lo->fraction[i] + 1, '9', tail(b)));
}

/* Fraction digits from place i on, or none, that are at most those of hi. */
static int32_t not_above(struct gr_builder *b, const struct decimal *hi, size_t i)
{
    if (i >= hi->n)
        return zeros(b);
    int32_t digits = gr_either(b, gr_bytes_node(b, hi->fraction[i], hi->fraction[i], not_above(b, hi, i + 1)),
                               digit_between(b, '0', hi->fraction[i] - 1, tail(b)));
    return gr_either(b, GR_END, digits);
}

static int32_t not_outside(struct gr_builder *b, const struct decimal *lo, const struct decimal *hi, size_t i)
{
    if (i >= lo->n)
        return not_above(b, hi, i);
    int l = lo->fraction[i], h = i < hi->n ? hi->fraction[i] : '0';
    if (l > h)
        return gr_forward(b);
    if (l == h)
        return gr_bytes_node(b, l, l, not_outside(b, lo, hi, i + 1));
    int32_t edges = gr_either(b, gr_bytes_node(b, l, l, not_below(b, lo, i + 1)),
                              gr_bytes_node(b, h, h, not_above(b, hi, i + 1)));
    return gr_either(b, edges, digit_between(b, l + 1, h - 1, tail(b)));
}

/* A point and `digits`; with `none` the fraction may be absent. */
static int32_t fraction(struct gr_builder *b, int32_t digits, bool none)
{
    int32_t point = gr_text(b, ".", digits);
    return none ? gr_either(b, GR_END, point) : point;
}

/* As not_above from place 0, but with at least one digit, because a point must not be the last
 * character. */
static int32_t first_digit_not_above(struct gr_builder *b, const struct decimal *hi)
{
    if (hi->n == 0)
        return gr_text(b, "0", zeros(b));
    return gr_either(b, gr_bytes_node(b, hi->fraction[0], hi->fraction[0], not_above(b, hi, 1)),
                     digit_between(b, '0', hi->fraction[0] - 1, tail(b)));
}

/* ---- numbers --------------------------------------------------------------------------------- */

static int32_t exactly(struct gr_builder *b, uint64_t whole, int32_t next)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)whole);
    return gr_text(b, text, next);
}

static int32_t at_least(struct gr_builder *b, const struct decimal *lo)
{
    return exactly(b, lo->whole, lo->n == 0 ? any_fraction(b) : fraction(b, not_below(b, lo, 0), false));
}

/* Numbers in lo..hi, without a sign. */
static int32_t decimals_between(struct gr_builder *b, const struct decimal *lo, const struct decimal *hi)
{
    if (lo->too_large)
        return gr_forward(b);
    if (hi->too_large) {
        int32_t more = lo->whole < MOST_WHOLE ? whole_between(b, lo->whole + 1, MOST_WHOLE, any_fraction(b))
                                              : gr_forward(b);
        return gr_either(b, at_least(b, lo), more);
    }
    if (lo->whole > hi->whole)
        return gr_forward(b);
    if (lo->whole == hi->whole && lo->n > 0)
        return exactly(b, lo->whole, fraction(b, not_outside(b, lo, hi, 0), false));
    int32_t top = exactly(b, hi->whole, fraction(b, first_digit_not_above(b, hi), true));
    if (lo->whole == hi->whole)
        return top;
    int32_t ends = gr_either(b, at_least(b, lo), top);
    if (hi->whole - lo->whole < 2)
        return ends;
    return gr_either(b, ends, whole_between(b, lo->whole + 1, hi->whole - 1, any_fraction(b)));
}

int32_t gr_number_rule(struct gr_builder *b, const struct gr_range *r)
{
    if (!r->least && !r->most)
        return b->base[GR_NUMBER];
    const struct decimal zero = { 0 }, endless = { .too_large = true };
    double lo = r->least ? json_number_value(r->least) : -1, hi = r->most ? json_number_value(r->most) : 1;
    int32_t node = gr_forward(b);
    if (hi > 0 || (hi == 0 && !r->below_most)) {
        struct decimal from = lo < 0 || !r->least ? zero : decimal_bound(r->least, r->above_least, true);
        struct decimal to = r->most ? decimal_bound(r->most, r->below_most, false) : endless;
        node = gr_either(b, node, decimals_between(b, &from, &to));
    }
    if (lo < 0) {
        struct decimal from = hi > 0 || (hi == 0 && !r->below_most) ? zero
                                                                    : decimal_bound(r->most, r->below_most, true);
        struct decimal to = r->least ? decimal_bound(r->least, r->above_least, false) : endless;
        node = gr_either(b, node, gr_text(b, "-", decimals_between(b, &from, &to)));
    }
    return node;
}
