/* engine/text/grammar/schema.c - JSON schemas to grammar rules.
 *
 * A schema is first normalised to a list of simple alternatives (simplify.c); each alternative becomes one
 * node per type.  Schemas are identified by address, so a schema that refers to itself is one rule that calls
 * itself.
 *
 * The grammar accepts no more than the schema and often less:
 *   - members must appear in the order of "properties", then required members without a property, then
 *     other members; these only if "additionalProperties" allows them or there are no "properties" at all;
 *   - items after those of "prefixItems" are accepted only if the schema has "items";
 *   - a format accepts one spelling of its values; a format that is not in the table is ignored;
 *   - numbers with bounds have no exponent; see json_text.c and number.c for the numbers accepted. */
#include "engine/text/grammar/schema.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_LITERALS = 64 };

struct rule {
    const json_t *schema;
    int32_t node;
};

struct reader {
    struct gr_builder *b;
    struct gr_simplifier simplifier;
    struct rule *rule; /* [n_rule] in the order met; rule[0 .. done) are complete */
    size_t n_rule, cap_rule, done;
    int32_t *table; /* [2 * GR_MOST_RULES] hash table of rules by schema address; -1: free */
};

static int32_t fail_memory(struct reader *r) { return gr_fail(r->b, KN_ENOMEM, "no memory for the schema"); }

/* ---- rules ----------------------------------------------------------------------------------- */

/* The node of a schema's rule; a new rule is added to the list and completed later. */
static int32_t rule_of(struct reader *r, const json_t *schema)
{
    size_t i = kn_mix((uintptr_t)schema) % (2 * GR_MOST_RULES);
    for (; r->table[i] >= 0; i = (i + 1) % (2 * GR_MOST_RULES))
        if (r->rule[r->table[i]].schema == schema)
            return r->rule[r->table[i]].node;
    if (r->n_rule == GR_MOST_RULES)
        return gr_fail(r->b, KN_ELIMIT, "the schema has more than %d subschemas", GR_MOST_RULES);
    if (!gr_grow((void **)&r->rule, &r->cap_rule, r->n_rule, sizeof *r->rule))
        return fail_memory(r);
    r->rule[r->n_rule] = (struct rule){ schema, gr_forward(r->b) };
    r->table[i] = (int32_t)r->n_rule;
    return r->rule[r->n_rule++].node;
}

/* ---- simple schemas to rules ----------------------------------------------------------------- */

static bool length_of(struct reader *r, const json_t *s, const char *name, uint32_t none, uint32_t *out)
{
    const json_t *v = json_object_get(s, name);
    *out = none;
    if (!v)
        return true;
    double x = json_number_value(v);
    if (!strncmp(name, "min", 3) && x > GR_MOST_ITEMS) {
        gr_fail(r->b, KN_ELIMIT, "the schema's \"%s\" is more than 65536", name);
        return false;
    }
    *out = x > INT32_MAX ? GR_NO_LIMIT : (uint32_t)x;
    return true;
}

static int32_t string_part(struct reader *r, const json_t *s)
{
    const json_t *list = json_object_get(s, "pattern");
    const char *pattern[GR_MOST_PATTERNS];
    struct gr_string x = { .pattern = pattern, .n_pattern = json_array_size(list) };
    if (!length_of(r, s, "minLength", 0, &x.least) || !length_of(r, s, "maxLength", GR_NO_LIMIT, &x.most))
        return GR_END;
    if (x.n_pattern > GR_MOST_PATTERNS)
        return gr_fail(r->b, KN_ELIMIT, "a string has more than %d patterns", GR_MOST_PATTERNS);
    if (x.least > x.most)
        return gr_forward(r->b);
    for (size_t i = 0; i < x.n_pattern; i++)
        pattern[i] = json_string_value(json_array_get(list, i));
    return gr_string_rule(r->b, &x);
}

static int32_t number_part(struct reader *r, const json_t *s, bool integer)
{
    struct gr_range x = { .least = json_object_get(s, "minimum"), .most = json_object_get(s, "maximum") };
    const json_t *above = json_object_get(s, "exclusiveMinimum"), *below = json_object_get(s, "exclusiveMaximum");
    if (above && (!x.least || json_number_value(above) >= json_number_value(x.least))) {
        x.least = above;
        x.above_least = true;
    }
    if (below && (!x.most || json_number_value(below) <= json_number_value(x.most))) {
        x.most = below;
        x.below_most = true;
    }
    return integer ? gr_integer_rule(r->b, &x) : gr_number_rule(r->b, &x);
}

static int32_t array_part(struct reader *r, const json_t *s)
{
    const json_t *first = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items");
    const size_t n = json_array_size(first);
    struct gr_items x = { .n_first = n };
    int32_t part = GR_END, *rule = kn_alloc((n + 1) * sizeof *rule);
    if (!rule)
        return gr_fail(r->b, KN_ENOMEM, "no memory for the schema");
    for (size_t i = 0; i < n; i++)
        rule[i] = rule_of(r, json_array_get(first, i));
    x.first = rule;
    if (length_of(r, s, "minItems", 0, &x.least) && length_of(r, s, "maxItems", GR_NO_LIMIT, &x.most)) {
        if (rest && !json_is_false(rest))
            x.rest = json_is_true(rest) ? r->b->base[GR_ANY] : rule_of(r, rest);
        else if (!rest && (n == 0 || x.least > n))
            x.rest = r->b->base[GR_ANY];
        part = x.least > x.most ? gr_forward(r->b) : gr_array_rule(r->b, &x);
    }
    kn_free(rule);
    return part;
}

/* If the schema has only an enum or a const, and perhaps a title and a description: the array of its values; else
 * NULL.  The values are written into the object's rule, not as a rule of their own, so that objects that differ
 * in the value of such a member differ in the bytes of one rule. */
static const json_t *literals(struct reader *r, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "enum"), *value = json_object_get(schema, "const"), *v;
    const char *name;
    if (value && !list)
        list = gr_simple_keep(&r->simplifier, json_pack("[O]", value));
    if (!list || json_array_size(list) > MOST_LITERALS)
        return NULL;
    json_object_foreach((json_t *)(uintptr_t)schema, name, v) if (strcmp(name, "enum") && strcmp(name, "const") &&
                                                                  strcmp(name, "title") &&
                                                                  strcmp(name, "description")) return NULL;
    return value && json_object_get(schema, "enum") ? NULL : list;
}

/* Members in the order of jinja2's dictsort, in which a template lists them: by name, without regard to case. */
static int by_name(const void *a, const void *b)
{
    return strcasecmp(((const struct gr_member *)a)->name, ((const struct gr_member *)b)->name);
}

static void put_member(struct reader *r, struct gr_member *m, const char *name, const json_t *schema)
{
    *m = (struct gr_member){ .name = name, .literal = literals(r, schema) };
    if (!m->literal)
        m->rule = rule_of(r, schema);
}

static int32_t object_part(struct reader *r, const json_t *s)
{
    const json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required");
    const json_t *others = json_object_get(s, "additionalProperties");
    struct gr_member *m = kn_calloc(json_object_size(properties) + json_array_size(required) + 1, sizeof *m);
    const char *name;
    json_t *v;
    int32_t other = !others && properties ? GR_END : r->b->base[GR_ANY];
    size_t n = 0;
    if (!m)
        return gr_fail(r->b, KN_ENOMEM, "no memory for the schema");
    if (json_is_false(others))
        other = GR_END;
    else if (json_is_object(others))
        other = rule_of(r, others);
    json_t *seen = json_object();
    for (size_t i = 0; seen && i < json_array_size(required); i++)
        json_object_set_new(seen, json_string_value(json_array_get(required, i)), json_true());
    json_object_foreach((json_t *)(uintptr_t)properties, name, v)
    {
        put_member(r, &m[n], name, v);
        m[n++].required = json_object_get(seen, name) != NULL;
    }
    json_object_foreach(seen, name, v)
    {
        if (json_object_get(properties, name))
            continue;
        int32_t rule = json_is_false(others) ? gr_forward(r->b) : other == GR_END ? r->b->base[GR_ANY] : other;
        const char *kept = name;
        for (size_t i = 0; i < json_array_size(required);
             i++) /* borrow the request's string, because `seen` is freed */
            if (!strcmp(json_string_value(json_array_get(required, i)), name))
                kept = json_string_value(json_array_get(required, i));
        m[n++] = (struct gr_member){ .name = kept, .rule = rule, .required = true };
    }
    if (gr_is_marked(r->b))
        qsort(m, n, sizeof *m, by_name);
    struct gr_members x = { .member = m, .n = n, .other_rule = other };
    if (other != GR_END)
        x.other_name = gr_other_names(r->b, m, n);
    int32_t part = seen ? gr_object_rule(r->b, &x) : gr_fail(r->b, KN_ENOMEM, "no memory for the schema");
    json_decref(seen);
    kn_free(m);
    return part;
}

static int32_t enum_part(struct reader *r, const json_t *s, int bits)
{
    const json_t *list = json_object_get(s, "enum");
    const char *name;
    json_t *v, *fit = gr_simple_keep(&r->simplifier, json_array());
    json_object_foreach(
        (json_t *)(uintptr_t)s, name,
        v) if (strcmp(name, "enum") &&
               strcmp(name, "type")) return gr_fail(r->b, KN_EUNSUPPORTED,
                                                    "the schema's \"%s\" beside an enum is not supported", name);
    for (size_t i = 0; fit && i < json_array_size(list); i++)
        if (gr_value_bits(json_array_get(list, i)) & bits && json_array_append(fit, json_array_get(list, i)))
            fail_memory(r);
    return fit ? gr_json_values(r->b, fit, GR_END) : GR_END;
}

/* The node of a simple schema: one alternative per type. */
static int32_t simple_rule(struct reader *r, const json_t *s)
{
    const json_t *type = json_object_get(s, "type");
    const int bits = type ? (int)json_integer_value(type) : TYPE_ALL;
    const int32_t *base = r->b->base;
    int32_t out[N_TYPE];
    size_t n = 0;
    if (json_object_get(s, "enum"))
        return enum_part(r, s, bits);
    if (bits & TYPE_NULL)
        out[n++] = base[GR_NULL];
    if (bits & TYPE_BOOLEAN)
        out[n++] = base[GR_BOOLEAN];
    if (bits & (TYPE_INTEGER | TYPE_NUMBER))
        out[n++] = number_part(r, s, !(bits & TYPE_NUMBER));
    if (bits & TYPE_STRING)
        out[n++] = string_part(r, s);
    if (bits & TYPE_ARRAY)
        out[n++] = array_part(r, s);
    if (bits & TYPE_OBJECT)
        out[n++] = object_part(r, s);
    return gr_alternatives(r->b, out, n);
}

/* If the schema is one $ref, anyOf or oneOf without other constraints: the list of the schemas that it names,
 * each of which becomes a call of its own rule.  Otherwise NULL. */
static const json_t *plain_choice(struct reader *r, const json_t *schema, const json_t *own)
{
    const json_t *ref = json_object_get(schema, "$ref"), *any = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "oneOf");
    if (json_object_size(own) > 0 || json_object_get(schema, "allOf") || !!ref + !!any + !!one != 1)
        return NULL;
    if (one && (json_object_get(schema, "discriminator") || !gr_simple_one_of(&r->simplifier, schema)))
        return NULL;
    if (!ref)
        return json_array_size(any ? any : one) > 0 ? any ? any : one : NULL;
    const json_t *target = gr_simple_resolve(&r->simplifier, ref);
    return target ? gr_simple_keep(&r->simplifier, json_pack("[O]", target)) : NULL;
}

static void write_rule(struct reader *r, const struct rule *rule)
{
    const json_t *schema = rule->schema;
    const json_t *own = json_is_object(schema) ? gr_simple_own(&r->simplifier, schema) : NULL;
    const json_t *choice = own ? plain_choice(r, schema, own) : NULL;
    json_t *list = NULL;
    if (r->b->error)
        return;
    if (choice)
        list = (json_t *)(uintptr_t)choice;
    else if (!(list = gr_simple_keep(&r->simplifier, json_array())) ||
             !gr_simple_alternatives(&r->simplifier, schema, 0, list))
        return;
    const size_t n = json_array_size(list);
    int32_t *node = kn_alloc((n + 1) * sizeof *node);
    if (!node) {
        fail_memory(r);
        return;
    }
    for (size_t i = 0; i < n; i++)
        node[i] = choice ? rule_of(r, json_array_get(list, i)) : simple_rule(r, json_array_get(list, i));
    gr_set(r->b, rule->node, gr_alternatives(r->b, node, n));
    kn_free(node);
}

int32_t gr_schema(struct gr_builder *b, const json_t *schema, int32_t next)
{
    struct reader r = { .b = b, .simplifier = { .b = b, .root = schema, .made = json_array() } };
    r.table = kn_alloc(2 * GR_MOST_RULES * sizeof *r.table);
    int32_t rule = GR_END;
    if (b->error == 0 && r.simplifier.made && r.table) {
        memset(r.table, 0xff, 2 * GR_MOST_RULES * sizeof *r.table);
        rule = rule_of(&r, schema);
        for (; r.done < r.n_rule && !b->error; r.done++) {
            const struct rule at = r.rule[r.done];
            write_rule(&r, &at);
        }
    } else {
        fail_memory(&r);
    }
    json_decref(r.simplifier.made);
    kn_free(r.rule);
    kn_free(r.table);
    return b->error ? GR_END : gr_call(b, rule, next);
}

int32_t gr_python(struct gr_builder *b, const json_t *schema, int32_t next)
{
    b->base = b->spelling[GR_PYTHON];
    int32_t node = gr_schema(b, schema, next);
    b->base = b->spelling[GR_JSON];
    return node;
}

int32_t gr_marked(struct gr_builder *b, const json_t *schema, const struct gr_trigger *quote, int32_t next)
{
    if (!b->quote.text) {
        b->quote = *quote;
        gr_marked_rules(b);
    }
    b->base = b->spelling[GR_MARKED];
    int32_t node = gr_schema(b, schema, next);
    b->base = b->spelling[GR_JSON];
    return node;
}
