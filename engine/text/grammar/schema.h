/* engine/text/grammar/schema.h - a JSON schema made simple, for the rules that are made of it.  For the files behind
 * grammar.h only. */
#ifndef ENGINE_SCHEMA_H
#define ENGINE_SCHEMA_H

#include "engine/text/grammar/automaton.h"

/* "type" of a simple schema is a number of these. */
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
    struct gr_builder *b; /* which is told what is wrong */
    const json_t *root;   /* what $ref starts from */
    json_t *made;         /* an array of what was made here, to be given back */
    int n_merge;
};

/* Appends the simple schemas of which a value must satisfy one; depth 0: nobody refers to it. */
bool gr_simple_alternatives(struct gr_simplifier *r, const json_t *schema, int depth, json_t *out);

/* What a schema asks for by itself, made simple: without $ref, allOf, anyOf and oneOf. */
json_t *gr_simple_own(struct gr_simplifier *r, const json_t *schema);
const json_t *gr_simple_resolve(struct gr_simplifier *r, const json_t *ref);

/* Keeps something made until the simplifier is done with. */
json_t *gr_simple_keep(struct gr_simplifier *r, json_t *made);

#endif
