/* engine/text/grammar/simplify.c - normalises a JSON schema to a list of simple schemas, of which a value must
 * satisfy one.
 *
 * In: any schema.  Out: schemas with plain keywords only: $ref, allOf, anyOf and oneOf are expanded, formats
 * become patterns, and types become bits.  A schema with an unsupported keyword that would change the accepted
 * values is refused, with the keyword's name in the message. */
#include "kernels/json.h"
#include "engine/text/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int bit;
} types[] = {
    { "null", TYPE_NULL },     { "boolean", TYPE_BOOLEAN }, { "integer", TYPE_INTEGER }, { "number", TYPE_NUMBER },
    { "string", TYPE_STRING }, { "array", TYPE_ARRAY },     { "object", TYPE_OBJECT },
};
_Static_assert(sizeof types / sizeof *types == N_TYPE, "all of them");

#define DATE_OF(year, month, day) "(" year ")-" month "-" day
#define YEAR                      "\\d{3}[1-9]|\\d{2}[1-9]0|\\d[1-9]00|[1-9]000"
#define LEAP                      "\\d\\d0[48]|\\d\\d[2468][048]|\\d\\d[13579][26]|0[48]00|[2468][048]00|[13579][26]00"
#define IN_31                     DATE_OF(YEAR, "(01|03|05|07|08|10|12)", "(0[1-9]|[12]\\d|3[01])")
#define IN_30                     DATE_OF(YEAR, "(04|06|09|11)", "(0[1-9]|[12]\\d|30)")
#define IN_28                     DATE_OF(YEAR, "02", "(0[1-9]|1\\d|2[0-8])")
#define DATE                      "(" IN_31 "|" IN_30 "|" IN_28 "|" DATE_OF(LEAP, "02", "29") ")"
#define TIME                      "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE                      "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL                     "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HEX                       "[0-9a-fA-F]"
#define HOURS                     "(\\d{1,4}H(\\d{1,4}M(\\d{1,4}S)?)?|\\d{1,4}M(\\d{1,4}S)?|\\d{1,4}S)"
#define DAYS                      "(\\d{1,4}Y(\\d{1,4}M(\\d{1,4}D)?)?|\\d{1,4}M(\\d{1,4}D)?|\\d{1,4}D)"
#define PATH                      "[A-Za-z0-9._~!$&'()*+,;=:@-]"

static const struct {
    const char *name, *pattern;
} formats[] = {
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "date-time", "^" DATE "T" TIME "$" },
    { "duration", "^P(\\d{1,4}W|" DAYS "(T" HOURS ")?|T" HOURS ")$" },
    /* of bounded length: a model that repeats a character would not end them */
    { "email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,15}){0,2}@" LABEL "(\\." LABEL "){1,3}$" },
    { "hostname", "^" LABEL "(\\." LABEL "){0,3}$" },
    { "ipv4", "^" BYTE "(\\." BYTE "){3}$" },
    { "ipv6", "^(" HEX "{1,4}:){7}" HEX "{1,4}$" },
    { "uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$" },
    { "uri", "^[a-z][a-z0-9+.-]*://" LABEL "(\\." LABEL ")*(:[1-9]\\d{0,4})?(/" PATH "*)*"
             "(\\?(" PATH "|[/?])*)?(#(" PATH "|[/?])*)?$" },
};

/* Keywords that are not supported.  With the value `idle` (NULL: no such value) the keyword has no effect, so the
 * schema is accepted. */
static const struct {
    const char *name, *idle;
} refused[] = {
    { "not", NULL },
    { "if", NULL },
    { "then", "{}" },
    { "else", "{}" },
    { "dependentRequired", "{}" },
    { "dependentSchemas", "{}" },
    { "dependencies", "{}" },
    { "patternProperties", "{}" },
    { "propertyNames", "{}" },
    { "minProperties", "0" },
    { "maxProperties", NULL },
    { "contains", NULL },
    { "minContains", NULL },
    { "maxContains", NULL },
    { "uniqueItems", "false" },
    { "unevaluatedItems", "true" },
    { "unevaluatedProperties", "true" },
    { "$dynamicRef", NULL },
    { "$recursiveRef", NULL },
    { "additionalItems", "true" },
};

static bool fail(struct gr_simplifier *r, int code, const char *fmt, const char *name)
{
    gr_fail(r->b, code, fmt, name);
    return false;
}

static bool fail_memory(struct gr_simplifier *r) { return fail(r, KN_ENOMEM, "no memory for the schema%s", ""); }

json_t *gr_simple_keep(struct gr_simplifier *r, json_t *made)
{
    if (made && json_array_append_new(r->made, made) == 0)
        return made;
    fail_memory(r);
    return NULL;
}

static json_t *hold(const json_t *borrowed) { return json_incref((json_t *)(uintptr_t)borrowed); }

/* A string without U+0000: names, patterns and references end at it. */
static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

/* ---- references ------------------------------------------------------------------------------ */

static int hex_value(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes one step of the JSON pointer p, with its escapes ~0, ~1 and %XX, into out; returns the rest of p, or
 * NULL on error. */
static const char *pointer_step(const char *p, char *out, size_t most)
{
    size_t n = 0;
    for (; *p && *p != '/'; p++) {
        char c = *p;
        if (c == '~' && (p[1] == '0' || p[1] == '1'))
            c = *++p == '0' ? '~' : '/';
        else if (c == '%' && hex_value(p[1]) >= 0 && hex_value(p[2]) >= 0) {
            c = (char)(hex_value(p[1]) << 4 | hex_value(p[2]));
            p += 2;
        }
        if (n + 1 == most || !c)
            return NULL;
        out[n++] = c;
    }
    out[n] = '\0';
    return p;
}

const json_t *gr_simple_resolve(struct gr_simplifier *r, const json_t *ref)
{
    const char *text = is_text(ref) ? json_string_value(ref) : NULL, *p = text;
    const json_t *at = r->root;
    char step[512];
    if (!text || *p++ != '#') {
        fail(r, KN_EUNSUPPORTED, "$ref '%.60s': only references within the schema (#/...) are supported",
             text ? text : "");
        return NULL;
    }
    while (at && *p == '/') {
        p = pointer_step(p + 1, step, sizeof step);
        if (!p)
            break;
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(step, NULL, 10)) : json_object_get(at, step);
    }
    if (!at || !p || *p) {
        fail(r, KN_EINVAL, "$ref '%.60s' does not exist in the schema", text);
        return NULL;
    }
    return at;
}

/* ---- plain keywords: one schema on its own --------------------------------------------------- */

static int type_bit(const json_t *name)
{
    for (int i = 0; i < N_TYPE && json_is_string(name); i++)
        if (!strcmp(json_string_value(name), types[i].name))
            return types[i].bit;
    return 0;
}

/* The TYPE_ bits of the value of "type" (a string or a list of strings); 0: invalid. */
static int type_bits(const json_t *type)
{
    int bits = 0;
    if (!json_is_array(type))
        return type_bit(type);
    for (size_t i = 0; i < json_array_size(type); i++) {
        int bit = type_bit(json_array_get(type, i));
        if (!bit)
            return 0;
        bits |= bit;
    }
    return bits;
}

static bool check_refused(struct gr_simplifier *r, const json_t *schema)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *value = json_object_get(schema, refused[i].name);
        if (!value)
            continue;
        json_t *idle = refused[i].idle ? kn_json_load(refused[i].idle, strlen(refused[i].idle), JSON_DECODE_ANY, NULL)
                                       : NULL;
        bool same = idle && (json_equal(idle, value) || (json_is_object(idle) && json_is_true(value)));
        json_decref(idle);
        if (!same)
            return fail(r, KN_EUNSUPPORTED, "the schema's \"%s\" is not supported", refused[i].name);
    }
    return true;
}

enum shape { A_NUMBER, A_LENGTH, A_SCHEMA, A_LIST, A_SET, STRINGS };

static bool has_shape(const json_t *v, enum shape shape)
{
    switch (shape) {
    case A_NUMBER:
        return json_is_number(v);
    case A_LENGTH:
        return (json_is_integer(v) && json_integer_value(v) >= 0) ||
               (json_is_real(v) && json_real_value(v) >= 0 && json_real_value(v) < 1e15 &&
                (double)(int64_t)json_real_value(v) == json_real_value(v));
    case A_SCHEMA:
        return json_is_object(v) || json_is_boolean(v);
    case A_SET:
        return json_is_object(v);
    case A_LIST:
        return json_is_array(v);
    default:
        for (size_t i = 0; i < json_array_size(v); i++)
            if (!is_text(json_array_get(v, i)))
                return false;
        return json_is_array(v);
    }
}

static const struct {
    const char *name;
    enum shape shape;
} plain[] = {
    { "minimum", A_NUMBER },
    { "maximum", A_NUMBER },
    { "exclusiveMinimum", A_NUMBER },
    { "exclusiveMaximum", A_NUMBER },
    { "minLength", A_LENGTH },
    { "maxLength", A_LENGTH },
    { "minItems", A_LENGTH },
    { "maxItems", A_LENGTH },
    { "items", A_SCHEMA },
    { "prefixItems", A_LIST },
    { "properties", A_SET },
    { "required", STRINGS },
    { "additionalProperties", A_SCHEMA },
    { "enum", A_LIST },
};

/* Copies the plain keywords.  In draft 4 exclusiveMinimum is a boolean: true excludes minimum itself. */
static bool put_plain(struct gr_simplifier *r, const json_t *schema, json_t *out)
{
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        const char *name = plain[i].name;
        const json_t *v = json_object_get(schema, name);
        if (!v)
            continue;
        if (json_is_boolean(v) && !strncmp(name, "exclusive", 9)) {
            const char *bound = name[10] == 'a' ? "maximum" : "minimum";
            if (json_is_true(v) && json_object_get(schema, bound)) {
                json_object_set(out, name, json_object_get(schema, bound));
                json_object_del(out, bound);
            }
            continue;
        }
        if (!strcmp(name, "items") && json_is_array(v)) /* drafts older than 2020-12 */
            name = "prefixItems";
        else if (!has_shape(v, plain[i].shape))
            return fail(r, KN_EINVAL, "the schema's \"%s\" has the wrong type", name);
        if (json_object_set_new(out, name, hold(v)))
            return fail_memory(r);
    }
    return true;
}

/* The type bits; "multipleOf": 1 makes numbers integers. */
static bool put_type(struct gr_simplifier *r, const json_t *schema, json_t *out)
{
    const json_t *type = json_object_get(schema, "type"), *step = json_object_get(schema, "multipleOf");
    if (!type && !step)
        return true;
    int bits = type ? type_bits(type) : TYPE_ALL;
    if (!bits)
        return fail(r, KN_EINVAL,
                    "the schema's \"type\" must be one of null, boolean, integer, number, string, "
                    "array, object%s",
                    "");
    if (type && json_is_true(json_object_get(schema, "nullable")))
        bits |= TYPE_NULL;
    if (step && (!json_is_number(step) || json_number_value(step) <= 0))
        return fail(r, KN_EINVAL, "the schema's \"%s\" is not a number above 0", "multipleOf");
    if (step && json_number_value(step) != 1 && bits & (TYPE_INTEGER | TYPE_NUMBER))
        return fail(r, KN_EUNSUPPORTED, "the schema's \"%s\" is not supported, except 1", "multipleOf");
    if (step && bits & TYPE_NUMBER)
        bits = (bits & ~TYPE_NUMBER) | TYPE_INTEGER;
    return json_object_set_new(out, "type", json_integer(bits)) == 0 || fail_memory(r);
}

/* Collects "pattern" and the pattern of "format" in one list. */
static bool put_patterns(struct gr_simplifier *r, const json_t *schema, json_t *out)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    json_t *list = json_array();
    if (!list || json_object_set_new(out, "pattern", list))
        return fail_memory(r);
    if ((pattern && !is_text(pattern)) || (format && !is_text(format)))
        return fail(r, KN_EINVAL, "the schema's \"%s\" is not a string, or has U+0000",
                    is_text(pattern) || !pattern ? "format" : "pattern");
    if (pattern && json_array_append_new(list, hold(pattern)))
        return fail_memory(r);
    for (size_t i = 0; format && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(json_string_value(format), formats[i].name) &&
            json_array_append_new(list, json_string(formats[i].pattern)))
            return fail_memory(r);
    if (json_array_size(list) == 0)
        json_object_del(out, "pattern");
    return true;
}

bool gr_same_value(const json_t *x, const json_t *y)
{
    if (json_is_number(x) && json_is_number(y) && json_typeof(x) != json_typeof(y))
        return json_number_value(x) == json_number_value(y);
    return json_equal(x, y);
}

/* The values that are in both lists. */
static json_t *common_values(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            if (gr_same_value(json_array_get(a, i), json_array_get(b, k))) {
                json_array_append(out, json_array_get(a, i));
                break;
            }
    return out;
}

/* The schema's own keywords: "type" as bits, "pattern" as a list, "const" as an "enum" of one. */
json_t *gr_simple_own(struct gr_simplifier *r, const json_t *schema)
{
    json_t *out = gr_simple_keep(r, json_object());
    if (!out || !check_refused(r, schema) || !put_plain(r, schema, out) || !put_type(r, schema, out) ||
        !put_patterns(r, schema, out))
        return NULL;
    const json_t *value = json_object_get(schema, "const");
    json_t *one = value ? gr_simple_keep(r, json_pack("[O]", value)) : NULL;
    const json_t *list = json_object_get(out, "enum");
    if (value && (!one || json_object_set_new(out, "enum", list ? common_values(list, one) : json_incref(one)))) {
        fail_memory(r);
        return NULL;
    }
    return out;
}

/* ---- merging: two simple schemas into their conjunction -------------------------------------- */

static json_t *both(struct gr_simplifier *r, const json_t *a, const json_t *b)
{
    if (!a || !b)
        return (json_t *)(uintptr_t)(a ? a : b);
    return gr_simple_keep(r, json_pack("{s:[O,O]}", "allOf", a, b));
}

/* When two schemas are merged: the schema of a member that only one of them lists.  The member must satisfy
 * `others`, the additionalProperties of the schema that does not list it, too. */
static const json_t *with_others(struct gr_simplifier *r, const json_t *member, const json_t *others)
{
    return !others || json_is_true(others) ? member : json_is_false(others) ? others : both(r, member, others);
}

static bool merge_members(struct gr_simplifier *r, const json_t *a, const json_t *b, json_t *out)
{
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const json_t *oa = json_object_get(a, "additionalProperties"), *ob = json_object_get(b, "additionalProperties");
    const char *name;
    json_t *v, *all = json_object();
    if (!all || json_object_set_new(out, "properties", all))
        return fail_memory(r);
    json_object_foreach((json_t *)(uintptr_t)pa, name, v)
    {
        const json_t *other = json_object_get(pb, name), *one = other ? both(r, v, other) : with_others(r, v, ob);
        if (!one || json_object_set_new(all, name, hold(one)))
            return fail_memory(r);
    }
    json_object_foreach((json_t *)(uintptr_t)pb, name, v)
    {
        const json_t *one = json_object_get(pa, name) ? NULL : with_others(r, v, oa);
        if (one && json_object_set_new(all, name, hold(one)))
            return fail_memory(r);
    }
    if (!pa && !pb)
        json_object_del(out, "properties");
    if (oa || ob) {
        const json_t *others = json_is_false(oa) || json_is_false(ob) ? json_is_false(oa) ? oa : ob : both(r, oa, ob);
        if (!others || json_object_set_new(out, "additionalProperties", hold(others)))
            return fail_memory(r);
    }
    return true;
}

int gr_value_bits(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER | TYPE_NUMBER;
    case JSON_REAL:
        return TYPE_NUMBER | (json_real_value(v) < 1e15 && json_real_value(v) > -1e15 &&
                                      (double)(int64_t)json_real_value(v) == json_real_value(v)
                                  ? TYPE_INTEGER
                                  : 0);
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

static json_t *all_values(const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)(uintptr_t)a);
    if (out && json_array_extend(out, (json_t *)(uintptr_t)b)) {
        json_decref(out);
        return NULL;
    }
    return out;
}

int gr_common_types(int a, int b)
{
    int whole = ((a & TYPE_NUMBER) && (b & TYPE_INTEGER)) || ((b & TYPE_NUMBER) && (a & TYPE_INTEGER));
    return (a & b) | (whole ? TYPE_INTEGER : 0);
}

/* The value of a keyword in the merged schema, if both schemas have the keyword, with values x and y. */
static json_t *merge_keyword(struct gr_simplifier *r, const char *name, const json_t *x, const json_t *y)
{
    if (!strcmp(name, "type"))
        return json_integer(gr_common_types((int)json_integer_value(x), (int)json_integer_value(y)));
    if (!strcmp(name, "enum"))
        return common_values(x, y);
    if (!strcmp(name, "pattern") || !strcmp(name, "required"))
        return all_values(x, y);
    if (!strcmp(name, "items"))
        return json_incref(both(r, x, y));
    if (!strcmp(name, "prefixItems")) {
        gr_fail(r->b, KN_EUNSUPPORTED, "\"prefixItems\" in two schemas of an allOf is not supported");
        return NULL;
    }
    bool larger = json_number_value(x) > json_number_value(y);
    bool lower_bound = !strncmp(name, "min", 3) || !strcmp(name, "exclusiveMinimum");
    return hold(larger == lower_bound ? x : y);
}

static json_t *merge(struct gr_simplifier *r, const json_t *a, const json_t *b)
{
    const char *name;
    json_t *v, *out;
    if (json_object_size(a) == 0 || json_object_size(b) == 0)
        return (json_t *)(uintptr_t)(json_object_size(a) == 0 ? b : a);
    r->n_merge += 1 + (int)(json_object_size(json_object_get(a, "properties")) +
                            json_object_size(json_object_get(b, "properties"))) /
                          16;
    if (r->n_merge > GR_MOST_MERGES) {
        gr_fail(r->b, KN_ELIMIT, "the schema's allOf and anyOf combine to more than %d schemas", GR_MOST_MERGES);
        return NULL;
    }
    out = gr_simple_keep(r, json_copy((json_t *)(uintptr_t)a));
    if (!out)
        return NULL;
    if ((json_object_get(a, "items") && json_object_get(b, "prefixItems")) ||
        (json_object_get(b, "items") && json_object_get(a, "prefixItems"))) {
        gr_fail(r->b, KN_EUNSUPPORTED, "\"prefixItems\" beside \"items\" of another schema is not supported");
        return NULL;
    }
    json_object_foreach((json_t *)(uintptr_t)b, name, v)
    {
        const json_t *own = json_object_get(a, name);
        if (!strcmp(name, "properties") || !strcmp(name, "additionalProperties"))
            continue;
        if (json_object_set_new(out, name, own ? merge_keyword(r, name, own, v) : hold(v))) {
            fail_memory(r);
            return NULL;
        }
    }
    return merge_members(r, a, b, out) ? out : NULL;
}

/* ---- alternatives ---------------------------------------------------------------------------- */

/* Replaces *list by the list of the conjunctions of each schema in *list with each schema in `more`. */
static bool cross(struct gr_simplifier *r, json_t **list, const json_t *more)
{
    json_t *all = gr_simple_keep(r, json_array());
    for (size_t i = 0; all && i < json_array_size(*list); i++)
        for (size_t k = 0; k < json_array_size(more); k++) {
            json_t *one = merge(r, json_array_get(*list, i), json_array_get(more, k));
            if (!one)
                return false;
            if (json_array_append_new(all, hold(one)))
                return fail_memory(r);
        }
    *list = all;
    return all != NULL;
}

static bool cross_any(struct gr_simplifier *r, json_t **list, const json_t *any, int depth)
{
    if (!any)
        return true;
    if (!json_is_array(any) || json_array_size(any) == 0)
        return fail(r, KN_EINVAL, "the schema's \"%s\" has the wrong type", "anyOf");
    json_t *more = gr_simple_keep(r, json_array());
    for (size_t i = 0; more && i < json_array_size(any); i++)
        if (!gr_simple_alternatives(r, json_array_get(any, i), depth, more))
            return false;
    return more && cross(r, list, more);
}

static bool cross_all(struct gr_simplifier *r, json_t **list, const json_t *all, int depth)
{
    if (all && !json_is_array(all))
        return fail(r, KN_EINVAL, "the schema's \"%s\" has the wrong type", "allOf");
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *more = gr_simple_keep(r, json_array());
        if (!more || !gr_simple_alternatives(r, json_array_get(all, i), depth, more) || !cross(r, list, more))
            return false;
    }
    return true;
}

/* "oneOf" with a discriminator: its member, which each schema then requires.  NULL: none. */
static json_t *discriminated(struct gr_simplifier *r, const json_t *schema)
{
    const json_t *name = json_object_get(json_object_get(schema, "discriminator"), "propertyName");
    return is_text(name) ? gr_simple_keep(r, json_pack("[{s:[O]}]", "required", name)) : NULL;
}

/* Replaces *list by the conjunctions of its schemas with each schema of "oneOf", if no two of these share a text. */
static bool cross_one(struct gr_simplifier *r, json_t **list, const json_t *schema, int depth)
{
    const json_t *one = json_object_get(schema, "oneOf");
    json_t *all = gr_simple_keep(r, json_array()), *member = discriminated(r, schema);
    if (!one)
        return true;
    if (!json_is_array(one) || json_array_size(one) == 0)
        return fail(r, KN_EINVAL, "the schema's \"%s\" has the wrong type", "oneOf");
    json_t *branch = gr_simple_keep(r, json_array());
    for (size_t i = 0; all && branch && i < json_array_size(one); i++) {
        json_t *more = gr_simple_keep(r, json_array()), *mine = *list;
        if (!more || !gr_simple_alternatives(r, json_array_get(one, i), depth + 1, more) || !cross(r, &mine, more) ||
            (member && !cross(r, &mine, member)))
            return false;
        for (size_t k = 0; k < i; k++)
            if (!gr_simple_apart(r, json_array_get(branch, k), mine, depth == 0)) { /* or refused within */
                if (r->n_compare > GR_MOST_COMPARES)
                    return fail(r, KN_ELIMIT, "the schema's \"%s\" has too many schemas to compare", "oneOf");
                gr_fail(
                    r->b, KN_EUNSUPPORTED,
                    "schemas %zu and %zu of a \"oneOf\" may accept the same value: use \"anyOf\", or tell them apart "
                    "by type, const or a required property",
                    k + 1, i + 1);
                return false;
            }
        if (json_array_append_new(branch, hold(mine)) || json_array_extend(all, mine))
            return fail_memory(r);
    }
    *list = all;
    return all && branch;
}

bool gr_simple_one_of(struct gr_simplifier *r, const json_t *schema)
{
    json_t *list = gr_simple_keep(r, json_pack("[{}]"));
    return list && cross_one(r, &list, schema, 0);
}

bool gr_simple_alternatives(struct gr_simplifier *r, const json_t *schema, int depth, json_t *out)
{
    if (json_is_false(schema))
        return true;
    if (!json_is_object(schema) && !json_is_true(schema))
        return fail(r, KN_EINVAL, "a schema is neither an object nor a boolean%s", "");
    r->n_merge += depth > 0;
    if (depth > GR_MOST_REFS || r->n_merge > GR_MOST_MERGES)
        return fail(r, KN_ELIMIT, "the schema's references, anyOf and allOf are nested too deeply or form a cycle%s",
                    "");
    json_t *own = json_is_object(schema) ? gr_simple_own(r, schema) : gr_simple_keep(r, json_object());
    json_t *list = own ? gr_simple_keep(r, json_pack("[O]", own)) : NULL;
    const json_t *ref = json_object_get(schema, "$ref");
    if (!list)
        return false;
    if (ref) {
        const json_t *target = gr_simple_resolve(r, ref);
        json_t *more = target ? gr_simple_keep(r, json_array()) : NULL;
        if (!more || !gr_simple_alternatives(r, target, depth + 1, more) || !cross(r, &list, more))
            return false;
    }
    if (!cross_all(r, &list, json_object_get(schema, "allOf"), depth + 1) ||
        !cross_any(r, &list, json_object_get(schema, "anyOf"), depth + 1) || !cross_one(r, &list, schema, depth))
        return false;
    return json_array_extend(out, list) == 0 || fail_memory(r);
}
