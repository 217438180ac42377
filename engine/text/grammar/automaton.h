/* engine/text/grammar/automaton.h - what a grammar is made of.  For the files behind grammar.h only.
 *
 *     simplify.c                                      schemas to simple ones (schema.h)
 *     regex.c                                         patterns to networks (regex.h)
 *     schema.c, json_text.c, pattern.c, number.c      make nodes
 *     builder.c                                       holds them
 *     determine.c                                     turns nodes into states
 *     walk.c                                          steps through states
 *     mask.c                                          steps whole vocabularies */
#ifndef ENGINE_AUTOMATON_H
#define ENGINE_AUTOMATON_H

#include "engine/text/grammar/grammar.h"

/* Limits, so that no schema takes long or much: compiling the largest takes about a second and 200
 * MB. */
enum {
    GR_MOST_NODES = 1 << 19,
    GR_MOST_STATES = 1 << 18,
    GR_MOST_MEMBERS = 1 << 24, /* nodes in all states together */
    GR_MOST_RULES = 1 << 14,   /* schemas within a schema */
    GR_MOST_MERGES = 1 << 14,  /* and references followed on the way */
    GR_MOST_REFS = 64,         /* $ref, anyOf and allOf one directly in another */
    GR_MOST_ITEMS = 1 << 16,   /* minItems, minLength */
    GR_TOKEN_BYTES = 128,      /* longer tokens are never allowed */
};

#define GR_CONTROL_BYTE 0xFF /* then three bytes of the token's id */
#define GR_NO_LIMIT UINT32_MAX

/* ---- builder.c: nodes ------------------------------------------------------------------------ */

enum gr_kind {
    GR_RETURN,  /* node 0 */
    GR_BYTES,   /* a byte of lo..hi, then a */
    GR_SPLIT,   /* any of alt[a .. a + b) */
    GR_CALL,    /* rule a, then b */
    GR_COUNT,   /* only below `most`; adds one (up to `least`, if without most) */
    GR_ATLEAST, /* only from `least` on */
};

struct gr_node {
    uint8_t kind, lo, hi;
    int32_t a, b;
    uint32_t least, most;
};

/* The rules that every grammar begins with, so that their states have the same numbers in all; each twice, as
 * JSON and as Python spell values. */
enum gr_base {
    GR_ANY,
    GR_ANY_OBJECT,
    GR_ANY_ARRAY,
    GR_STRING,
    GR_NUMBER,
    GR_INTEGER,
    GR_BOOLEAN,
    GR_NULL,
    GR_INDENT,
    GR_BASES
};

struct gr_builder {
    struct gr_node *node; /* [n_node] */
    int32_t *alt;         /* [n_alt] */
    size_t n_node, cap_node, n_alt, cap_alt;
    int32_t spelling[2][GR_BASES]; /* JSON, Python */
    int32_t *base;                 /* [GR_BASES] the one that values are written in */
    int error;
    char why[200];
};

/* Keeps the first failure; returns GR_END. */
int32_t gr_fail(struct gr_builder *b, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int32_t gr_bytes_node(struct gr_builder *b, int lo, int hi, int32_t next);
int32_t gr_count(struct gr_builder *b, uint32_t least, uint32_t most, int32_t next);
int32_t gr_at_least(struct gr_builder *b, uint32_t least, int32_t next);
int32_t gr_either(struct gr_builder *b, int32_t x, int32_t y);
/* Makes room for one more element. */
bool gr_grow(void **array, size_t *cap, size_t n, size_t size);

/* ---- json_text.c: the parts of JSON ---------------------------------------------------------- */

int32_t gr_text(struct gr_builder *b, const char *text, int32_t next);
int32_t gr_digits(struct gr_builder *b, int least, int most, int32_t next);
/* One character within a string in double quotes, in every way to write it. */
int32_t gr_string_character(struct gr_builder *b, int32_t next);
/* One of the code points lo..hi within a string, each in one spelling. */
int32_t gr_code_points(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next);
void gr_base_rules(struct gr_builder *b);

struct gr_member {
    const char *name;
    int32_t rule;          /* of its value; or else */
    const json_t *literal; /* an array of all values it may have */
    bool required;
};
struct gr_members {
    const struct gr_member *member; /* [n] in the order in which they may stand */
    size_t n;
    int32_t other_name, other_rule; /* rules for members after these; GR_END: none */
};
int32_t gr_object_rule(struct gr_builder *b, const struct gr_members *m);
/* Any of these values as it stands, spelt in one way; in Python strings in either quote. */
int32_t gr_json_values(struct gr_builder *b, const json_t *array, int32_t next);

struct gr_items {
    const int32_t *first; /* [n_first] rules of the first items */
    size_t n_first;
    int32_t rest;         /* rule of all others; GR_END: none */
    uint32_t least, most; /* GR_NO_LIMIT */
};
int32_t gr_array_rule(struct gr_builder *b, const struct gr_items *items);

/* ---- pattern.c, number.c: strings and numbers ------------------------------------------------ */

struct gr_string {
    const char *const *pattern; /* [n_pattern] all of which must be found in it */
    size_t n_pattern;
    uint32_t least, most; /* characters; GR_NO_LIMIT */
};
int32_t gr_string_rule(struct gr_builder *b, const struct gr_string *s);
/* Any string but these, as a rule. */
int32_t gr_other_names(struct gr_builder *b, const struct gr_member *m, size_t n);

/* Bounds as JSON numbers, NULL for none. */
struct gr_range {
    const json_t *least, *most;
    bool above_least, below_most;
};
int32_t gr_integer_rule(struct gr_builder *b, const struct gr_range *r);
int32_t gr_number_rule(struct gr_builder *b, const struct gr_range *r);

/* ---- determine.c: states --------------------------------------------------------------------- */

struct gr_edge {
    uint8_t lo, hi;
    int32_t to;
};
struct gr_op {
    uint8_t kind;
    int32_t a, b;
    uint32_t least, most;
}; /* as in a node; a and b are states */

enum { GR_WAY_RETURN = -1, GR_WAY_NONE = -2 }; /* else an edge, or n_edge + an op */

struct gr_dstate {
    int32_t edge, op; /* the first of each */
    uint16_t n_edge, n_op;
    bool returns;
    uint16_t need;     /* frames above this one on the way to its end; NEVER */
    int32_t way;       /* the first step of that way */
    uint32_t distance; /* its bytes, counts aside */
};
#define GR_NEVER UINT16_MAX

struct gr_grammar {
    struct gr_dstate *state; /* [n_state] */
    struct gr_edge *edge;    /* by state, then by byte */
    struct gr_op *op;        /* by state */
    uint32_t *mark;          /* [n_mark] ascending: counts at which something changes */
    size_t n_state, n_edge, n_op, n_mark;
    int32_t start, n_base; /* states below n_base are the same in every grammar */
    uint64_t serial;
};

/* ---- walk.c ---------------------------------------------------------------------------------- */

/* The state after one byte; false (to is then undefined) when there is none. */
bool gr_step(const struct gr_grammar *g, const struct gr_state *from, uint8_t byte,
             struct gr_state *to);
/* Where the caller of from->config[i] goes on when the rule ends here; its frame must be one. */
void gr_returned(const struct gr_grammar *g, const struct gr_state *from, int i,
                 struct gr_state *to);

#endif
