/* engine/text/grammar/schema.h - normalises JSON schemas before they become grammar rules.  Only the files
 * of engine/text/grammar include it.
 *
 * A simple schema has plain keywords only: no $ref, allOf, anyOf, oneOf; "type" is a bit set, "pattern" a
 * list. */
#ifndef ENGINE_TEXT_GRAMMAR_SCHEMA_H
#define ENGINE_TEXT_GRAMMAR_SCHEMA_H

#include "engine/text/grammar/automaton.h"

/* Bits of a simple schema's "type". */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127,
    N_TYPE = 7,
};

struct gr_simplifier {
    struct gr_builder *b; /* receives error reports */
    const json_t *root;   /* the schema that $ref paths start from */
    json_t *made;         /* an array that owns all values made here; the caller frees it */
    json_t *known;        /* apart.c: alternatives of schemas by address, or NULL; owned by `made` */
    int n_merge;
    size_t n_compare;
};

/* Appends simple schemas to out; a value conforms to `schema` if it satisfies one of them.  depth: nesting
 * of $ref, anyOf and allOf so far, 0 at the top.  False: the schema is refused. */
bool gr_simple_alternatives(struct gr_simplifier *r, const json_t *schema, int depth, json_t *out);

/* The schema's own keywords as a simple schema: without $ref, allOf, anyOf and oneOf. */
json_t *gr_simple_own(struct gr_simplifier *r, const json_t *schema);
/* Checks that no two schemas of the schema's "oneOf" share a text; false: refused. */
bool gr_simple_one_of(struct gr_simplifier *r, const json_t *schema);
/* The schema that a $ref names, or NULL (refused). */
const json_t *gr_simple_resolve(struct gr_simplifier *r, const json_t *ref);

/* apart.c.  Is it certain that no text that the grammar writes for one of the simple schemas in list a conforms to one
 * in list b, nor the other way round?  is_final: these schemas are not merged with others later. */
bool gr_simple_apart(struct gr_simplifier *r, const json_t *a, const json_t *b, bool is_final);

/* The types that a value has, and those of values that have a type of x and one of y. */
int gr_value_bits(const json_t *v);
int gr_common_types(int x, int y);
/* Equal as JSON Schema compares: 1 and 1.0 are the same number. */
bool gr_same_value(const json_t *x, const json_t *y);

/* Makes r->made the owner of a value; returns the value, or NULL without memory. */
json_t *gr_simple_keep(struct gr_simplifier *r, json_t *made);

#endif
