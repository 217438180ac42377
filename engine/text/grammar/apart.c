/* engine/text/grammar/apart.c - can a text that is written for one schema conform to another?
 *
 * A value conforms to "oneOf" if it conforms to exactly one of its schemas.  A grammar cannot exclude the values of
 * one schema from those of another, so "oneOf" is accepted where this file proves that no two of its schemas
 * share a text: by their types, fixed values, bounds, numbers of items, or members.
 *
 * The proof may use the limits of written texts, which are narrower than the schema (schema.c): no members beside
 * "properties" without "additionalProperties", and no items beside "prefixItems" without "items".  That holds for a
 * schema that is not merged with another one later (struct apart, is_final).  "Not apart" means not proved. */
#include "engine/text/grammar/schema.h"

#include <stdio.h>
#include <string.h>

enum { MOST_NESTING = 12, MOST_PLACES = 64 };

struct apart {
    struct gr_simplifier *r;
    bool is_final; /* the rules are written from these schemas as they are */
    int nesting;
};

static bool simple_apart(struct apart *x, const json_t *a, const json_t *b);
static bool excludes(struct apart *x, const json_t *s, const json_t *value);

static int type_bits_of(const json_t *s)
{
    const json_t *type = json_object_get(s, "type");
    return type ? (int)json_integer_value(type) : TYPE_ALL;
}

/* The simple alternatives of any schema; NULL: refused, or nested too deeply to compare.  They are computed once per
 * schema. */
static const json_t *alternatives(struct apart *x, const json_t *schema)
{
    char key[40];
    snprintf(key, sizeof key, "%d %p", x->is_final, (const void *)schema);
    json_t *known = x->r->known, *list = json_object_get(known, key);
    if (list || x->nesting >= MOST_NESTING)
        return list;
    if (!known && !(known = x->r->known = gr_simple_keep(x->r, json_object())))
        return NULL;
    list = gr_simple_keep(x->r, json_array());
    if (!list || !gr_simple_alternatives(x->r, schema, x->is_final ? 0 : 1, list))
        return NULL;
    return json_object_set(known, key, list) ? NULL : list;
}

/* Counts comparisons; false: too many. */
static bool count(struct apart *x, size_t n) { return (x->r->n_compare += n) <= GR_MOST_COMPARES; }

static bool all_apart(struct apart *x, const json_t *a, const json_t *b)
{
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            if (!simple_apart(x, json_array_get(a, i), json_array_get(b, k)))
                return false;
    return true;
}

/* As simple_apart, of two schemas with any keywords. */
static bool schemas_apart(struct apart *x, const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_false(b))
        return true;
    if (!a || !b || json_is_true(a) || json_is_true(b))
        return false;
    x->nesting++;
    const json_t *all_a = alternatives(x, a), *all_b = all_a ? alternatives(x, b) : NULL;
    bool apart = all_b && all_apart(x, all_a, all_b);
    x->nesting--;
    return apart;
}

/* Does no alternative of the schema admit the value? */
static bool schema_excludes(struct apart *x, const json_t *schema, const json_t *value)
{
    if (json_is_false(schema) || !schema || json_is_true(schema))
        return json_is_false(schema);
    x->nesting++;
    const json_t *all = alternatives(x, schema);
    bool none = all != NULL;
    for (size_t i = 0; i < json_array_size(all) && none; i++)
        none = excludes(x, json_array_get(all, i), value);
    x->nesting--;
    return none;
}

/* ---- numbers --------------------------------------------------------------------------------- */

struct bound {
    double at;
    bool is_set, is_excluded;
};

/* The tighter of an included and an excluded bound. */
static struct bound bound_of(const json_t *s, const char *included, const char *excluded, bool lower)
{
    const json_t *in = json_object_get(s, included), *ex = json_object_get(s, excluded);
    double x = json_number_value(in), y = json_number_value(ex);
    if (ex && (!in || (lower ? y >= x : y <= x)))
        return (struct bound){ y, true, true };
    return (struct bound){ x, in != NULL, false };
}

/* Is every number within `most` below every number within `least`?  Bounds beyond 2^53 may be rounded, so equal
 * ones prove nothing. */
static bool is_below(struct bound most, struct bound least)
{
    if (!most.is_set || !least.is_set)
        return false;
    bool is_exact = most.at < 0x1p53 && most.at > -0x1p53;
    return most.at < least.at || (most.at == least.at && is_exact && (most.is_excluded || least.is_excluded));
}

static struct bound least_of(const json_t *s) { return bound_of(s, "minimum", "exclusiveMinimum", true); }
static struct bound most_of(const json_t *s) { return bound_of(s, "maximum", "exclusiveMaximum", false); }

/* ---- lengths --------------------------------------------------------------------------------- */

static double length_of(const json_t *s, const char *name, double none)
{
    const json_t *v = json_object_get(s, name);
    return v ? json_number_value(v) : none;
}

static bool lengths_apart(const json_t *a, const json_t *b, const char *least, const char *most)
{
    return length_of(a, most, 1e300) < length_of(b, least, 0) || length_of(b, most, 1e300) < length_of(a, least, 0);
}

static size_t characters(const json_t *text)
{
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(text); i++)
        n += (json_string_value(text)[i] & 0xC0) != 0x80;
    return n;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static const json_t *item_at(const json_t *s, size_t i)
{
    const json_t *first = json_object_get(s, "prefixItems");
    return i < json_array_size(first) ? json_array_get(first, i) : json_object_get(s, "items");
}

/* Does the grammar write no more items than "prefixItems" for a, while b needs more? */
static bool too_few_items(const struct apart *x, const json_t *a, const json_t *b)
{
    const size_t n = json_array_size(json_object_get(a, "prefixItems"));
    return x->is_final && n > 0 && !json_object_get(a, "items") && length_of(a, "minItems", 0) <= (double)n &&
           length_of(b, "minItems", 0) > (double)n;
}

static bool arrays_apart(struct apart *x, const json_t *a, const json_t *b)
{
    const double least = kn_max(length_of(a, "minItems", 0), length_of(b, "minItems", 0));
    if (lengths_apart(a, b, "minItems", "maxItems") || too_few_items(x, a, b))
        return true;
    for (size_t i = 0; (double)i < least && i < MOST_PLACES; i++)
        if (schemas_apart(x, item_at(a, i), item_at(b, i)))
            return true;
    return false;
}

/* ---- objects --------------------------------------------------------------------------------- */

static bool requires(const json_t *s, const char *name)
{
    const json_t *required = json_object_get(s, "required");
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!strcmp(json_string_value(json_array_get(required, i)), name))
            return true;
    return false;
}

/* The schema of a member; NULL: any value. */
static const json_t *member_of(const json_t *s, const char *name)
{
    const json_t *own = json_object_get(json_object_get(s, "properties"), name);
    return own ? own : json_object_get(s, "additionalProperties");
}

/* Does the grammar never write this member for a? */
static bool never_writes(struct apart *x, const json_t *a, const char *name)
{
    const json_t *properties = json_object_get(a, "properties");
    return x->is_final && count(x, json_array_size(json_object_get(a, "required"))) && properties &&
           !json_object_get(properties, name) && !json_object_get(a, "additionalProperties") && !requires(a, name);
}

/* A text for a that conforms to b has the members that either requires. */
static bool member_apart(struct apart *x, const json_t *a, const json_t *b, const char *name)
{
    return schemas_apart(x, member_of(a, name), member_of(b, name)) || json_is_false(member_of(a, name)) ||
           json_is_false(member_of(b, name)) ||
           (count(x, 1 + json_array_size(json_object_get(b, "required"))) && requires(b, name) &&
            never_writes(x, a, name));
}

static bool objects_apart(struct apart *x, const json_t *a, const json_t *b)
{
    const json_t *const both[] = { json_object_get(a, "required"), json_object_get(b, "required") };
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < json_array_size(both[side]); i++)
            if (member_apart(x, a, b, json_string_value(json_array_get(both[side], i))))
                return true;
    return false;
}

/* ---- one value ------------------------------------------------------------------------------- */

static bool number_excluded(const json_t *s, const json_t *value)
{
    const struct bound at = { json_number_value(value), true, false };
    return is_below(at, least_of(s)) || is_below(most_of(s), at);
}

static bool array_excluded(struct apart *x, const json_t *s, const json_t *value)
{
    const size_t n = json_array_size(value);
    if ((double)n < length_of(s, "minItems", 0) || (double)n > length_of(s, "maxItems", 1e300))
        return true;
    for (size_t i = 0; i < n && i < MOST_PLACES; i++)
        if (schema_excludes(x, item_at(s, i), json_array_get(value, i)))
            return true;
    return false;
}

static bool object_excluded(struct apart *x, const json_t *s, const json_t *value)
{
    const json_t *required = json_object_get(s, "required");
    const char *name;
    json_t *v;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i))))
            return true;
    json_object_foreach((json_t *)(uintptr_t)value, name, v)
    {
        if (schema_excludes(x, member_of(s, name), v))
            return true;
    }
    return false;
}

/* Does the value certainly not conform to the simple schema s?  Patterns are not looked at. */
static bool excludes(struct apart *x, const json_t *s, const json_t *value)
{
    const json_t *list = json_object_get(s, "enum");
    bool listed = !list;
    if (!count(x, 1 + json_array_size(list)))
        return false;
    for (size_t i = 0; i < json_array_size(list) && !listed; i++)
        listed = gr_same_value(json_array_get(list, i), value);
    if (!listed || !(gr_value_bits(value) & type_bits_of(s)))
        return true;
    switch (json_typeof(value)) {
    case JSON_INTEGER:
    case JSON_REAL:
        return number_excluded(s, value);
    case JSON_STRING:
        return (double)characters(value) < length_of(s, "minLength", 0) ||
               (double)characters(value) > length_of(s, "maxLength", 1e300);
    case JSON_ARRAY:
        return array_excluded(x, s, value);
    case JSON_OBJECT:
        return object_excluded(x, s, value);
    default:
        return false;
    }
}

/* ---- two simple schemas ---------------------------------------------------------------------- */

static bool type_apart(struct apart *x, const json_t *a, const json_t *b, int bit)
{
    switch (bit) {
    case TYPE_INTEGER:
    case TYPE_NUMBER:
        return is_below(most_of(a), least_of(b)) || is_below(most_of(b), least_of(a));
    case TYPE_STRING:
        return lengths_apart(a, b, "minLength", "maxLength");
    case TYPE_ARRAY:
        return arrays_apart(x, a, b);
    case TYPE_OBJECT:
        return objects_apart(x, a, b);
    default:
        return false;
    }
}

/* Is it certain that no text that the grammar writes for a conforms to b? */
static bool simple_apart(struct apart *x, const json_t *a, const json_t *b)
{
    const json_t *list = json_object_get(a, "enum"), *other = b;
    const int bits = gr_common_types(type_bits_of(a), type_bits_of(b));
    if (!count(x, 1))
        return false;
    if (!list) {
        list = json_object_get(b, "enum");
        other = a;
    }
    if (list) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *v = json_array_get(list, i);
            bool fits = gr_value_bits(v) & type_bits_of(other == b ? a : b);
            if (fits && !excludes(x, other, v))
                return false;
        }
        return true;
    }
    for (int bit = 1; bit < TYPE_ALL; bit <<= 1)
        if (bits & bit && !type_apart(x, a, b, bit))
            return false;
    return true;
}

bool gr_simple_apart(struct gr_simplifier *r, const json_t *a, const json_t *b, bool is_final)
{
    struct apart x = { .r = r, .is_final = is_final };
    return all_apart(&x, a, b) && all_apart(&x, b, a);
}
