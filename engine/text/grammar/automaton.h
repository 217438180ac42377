/* engine/text/grammar/automaton.h - nodes and states of a grammar.  Only the files of
 * engine/text/grammar include it.
 *
 *     simplify.c                                      normalises JSON schemas (schema.h)
 *     apart.c                                         can two schemas of a oneOf accept the same text?
 *     regex.c                                         patterns to NFAs (regex.h)
 *     schema.c, json_text.c, pattern.c, number.c      make nodes
 *     builder.c                                       stores nodes
 *     determine.c                                     nodes to deterministic states (subset construction)
 *     ways.c                                          paths from each state to the end of its rule
 *     walk.c                                          advances a gr_state by bytes
 *     mask.c                                          masks over the whole vocabulary */
#ifndef ENGINE_TEXT_GRAMMAR_AUTOMATON_H
#define ENGINE_TEXT_GRAMMAR_AUTOMATON_H

#include "engine/text/grammar/grammar.h"

/* Limits on the cost of one schema.  Compiling the largest schema within them takes about a second and
 * 200 MB. */
enum {
    GR_MOST_NODES = 1 << 19,
    GR_MOST_STATES = 1 << 18,
    GR_MOST_MEMBERS = 1 << 24,  /* sizes of the states' node sets, summed */
    GR_MOST_RULES = 1 << 14,    /* subschemas of a schema */
    GR_MOST_MERGES = 1 << 14,   /* merges of two schemas, and references followed */
    GR_MOST_COMPARES = 1 << 21, /* comparisons of two schemas of a oneOf, and of their members */
    GR_MOST_REFS = 64,          /* directly nested $ref, anyOf and allOf */
    GR_MOST_PATTERNS = 32,      /* of one string */
    GR_MOST_ITEMS = 1 << 16,    /* value of minItems, minLength */
    GR_TOKEN_BYTES = 128,       /* longer tokens are never allowed */
};

#define GR_CONTROL_BYTE 0xFF /* a control token becomes this byte and three bytes of its id, high first */
#define GR_NO_LIMIT     UINT32_MAX

/* ---- builder.c: nodes ------------------------------------------------------------------------ */

enum gr_kind {
    GR_RETURN,  /* the end of a rule; always node 0 */
    GR_BYTES,   /* one byte in lo..hi, then node a */
    GR_SPLIT,   /* any of the nodes alt[a .. a + b) */
    GR_CALL,    /* rule a, then node b */
    GR_COUNT,   /* count + 1, then node a; no path if count == most.  most GR_NO_LIMIT: count stays at `least` */
    GR_ATLEAST, /* node a if count >= least, else no path */
};

struct gr_node {
    uint8_t kind, lo, hi;
    int32_t a, b;
    uint32_t least, most;
};

/* Base rules: every grammar begins with them, so their states have the same numbers in all grammars, and
 * all grammars share the cached masks of these states.  Each base rule exists in JSON and in Python
 * spelling; in marked spelling only in grammars with such values. */
enum gr_base {
    GR_ANY,
    GR_ANY_OBJECT,
    GR_ANY_ARRAY,
    GR_STRING,
    GR_NAME, /* of a member: as GR_STRING, but in marked spelling */
    GR_NUMBER,
    GR_INTEGER,
    GR_BOOLEAN,
    GR_NULL,
    GR_INDENT,
    GR_BASES
};

/* The spelling of values.  GR_MARKED is gr_marked's (grammar.h). */
enum gr_spelling {
    GR_JSON,
    GR_PYTHON,
    GR_MARKED,
    GR_SPELLINGS,
    GR_SHARED = GR_MARKED /* base rules of every grammar */
};

struct gr_builder {
    struct gr_node *node; /* [n_node] */
    int32_t *alt;         /* [n_alt] */
    size_t n_node, cap_node, n_alt, cap_alt;
    int32_t spelling[GR_SPELLINGS][GR_BASES]; /* base rules */
    int32_t *base;                            /* [GR_BASES] the row of `spelling` in use */
    struct gr_trigger quote;                  /* GR_MARKED: the marker around strings */
    int error;                                /* 0 or the code of the first failure */
    char why[200];
};

/* Records a failure unless an earlier failure is recorded; returns GR_END. */
int32_t gr_fail(struct gr_builder *b, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int32_t gr_bytes_node(struct gr_builder *b, int lo, int hi, int32_t next);
int32_t gr_count(struct gr_builder *b, uint32_t least, uint32_t most, int32_t next);
int32_t gr_at_least(struct gr_builder *b, uint32_t least, int32_t next);
int32_t gr_either(struct gr_builder *b, int32_t x, int32_t y);
/* Grows the array, if needed, to hold n + 1 elements; false: no memory. */
bool gr_grow(void **array, size_t *cap, size_t n, size_t size);

/* ---- json_text.c: JSON values ---------------------------------------------------------------- */

int32_t gr_text(struct gr_builder *b, const char *text, int32_t next);
int32_t gr_digits(struct gr_builder *b, int least, int most, int32_t next);
/* The quote around a string: a double quote, or in marked spelling the marker. */
int32_t gr_quote(struct gr_builder *b, int32_t next);
/* One character of a string in gr_quote(), in every valid spelling (plain or escaped). */
int32_t gr_string_character(struct gr_builder *b, int32_t next);
/* One code point in lo..hi of a string in gr_quote(); each code point has one valid spelling. */
int32_t gr_code_points(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next);
/* The same as text: without quotes around it and escapes, so each code point is its UTF-8. */
int32_t gr_bare_code_points(struct gr_builder *b, uint32_t lo, uint32_t hi, int32_t next);
void gr_base_rules(struct gr_builder *b);
void gr_marked_rules(struct gr_builder *b); /* the base rules of GR_MARKED, by b->quote */
bool gr_is_marked(const struct gr_builder *b);

struct gr_member {
    const char *name;
    int32_t rule;          /* rule of the member's value, if literal is NULL */
    const json_t *literal; /* an array of all allowed values, or NULL */
    bool required;
};
struct gr_members {
    const struct gr_member *member; /* [n] in the order in which they must appear */
    size_t n;
    int32_t other_name, other_rule; /* rules of the name and the value of further members, after these; GR_END: none */
};
int32_t gr_object_rule(struct gr_builder *b, const struct gr_members *m);
/* Any value of the array, each in one spelling; in Python spelling, strings in single or double quotes. */
int32_t gr_json_values(struct gr_builder *b, const json_t *array, int32_t next);

struct gr_items {
    const int32_t *first; /* [n_first] rules of the first items */
    size_t n_first;
    int32_t rest;         /* rule of further items; GR_END: none allowed */
    uint32_t least, most; /* number of items; most may be GR_NO_LIMIT */
};
int32_t gr_array_rule(struct gr_builder *b, const struct gr_items *items);

/* ---- pattern.c, number.c: strings and numbers ------------------------------------------------ */

struct gr_string {
    const char *const *pattern; /* [n_pattern <= GR_MOST_PATTERNS] the string must match all of them */
    size_t n_pattern;
    uint32_t least, most; /* number of characters; most may be GR_NO_LIMIT */
    bool is_bare;         /* the text itself, not a JSON string: without quotes and escapes */
};
int32_t gr_string_rule(struct gr_builder *b, const struct gr_string *s);
/* The rule of any string except the names of m[n]. */
int32_t gr_other_names(struct gr_builder *b, const struct gr_member *m, size_t n);

/* Bounds as JSON numbers; NULL: no bound. */
struct gr_range {
    const json_t *least, *most;
    bool above_least, below_most; /* `least` itself, `most` itself is excluded */
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
}; /* GR_CALL, GR_COUNT or GR_ATLEAST as in struct gr_node, but a and b are states */

/* Values of gr_dstate.way; a value i >= 0 is edge i of the state if i < n_edge, else its operation i - n_edge. */
enum { GR_WAY_RETURN = -1, GR_WAY_NONE = -2 };

struct gr_dstate {
    int32_t edge, op; /* index of its first edge, of its first op */
    uint16_t n_edge, n_op;
    bool returns;        /* the rule may end here */
    uint16_t need;       /* fewest further nested calls on a path to the rule's end; GR_NEVER: no path */
    uint16_t token_need; /* the same on a path that consists of whole tokens; >= need; of states after a whole token */
    int32_t way;         /* first step of the path that needs the fewest frames */
    uint32_t distance;   /* length of that path in bytes, a required repetition counted as one byte */
};
#define GR_NEVER UINT16_MAX

struct gr_grammar {
    struct gr_dstate *state; /* [n_state] */
    struct gr_edge *edge;    /* [n_edge] sorted by state, then by byte */
    struct gr_op *op;        /* [n_op] sorted by state */
    uint32_t *mark;          /* [n_mark] ascending: all `least` and `most` that counts are compared with */
    size_t n_state, n_edge, n_op, n_mark;
    int32_t start, n_base;          /* states below n_base are the same in every grammar of one vocabulary */
    uint64_t serial;                /* unique per grammar: a key of the mask cache */
    const struct gr_tokens *tokens; /* the tokens of token_need; NULL: every byte is a token */
    bool is_exact;                  /* token_need == need in all states */
};

/* ---- mask.c: the trie of the tokens ---------------------------------------------------------- */

struct gr_trie {
    size_t n_node;
    uint8_t *byte, *depth; /* [n_node] in preorder; depth of the root 0 */
    int32_t *skip;         /* [n_node] the first node after this node's subtree */
    int32_t *first;        /* [n_node + 1] tokens that end at node i: id[first[i] .. first[i + 1]) */
    int32_t *id;           /* token ids sorted by text */
    bool *is_rare;         /* [n_node] the node or a node below it has a byte that is no token of its own */
    bool single[256];      /* the byte is a token of its own */
};
const struct gr_trie *gr_trie_of(const struct gr_tokens *t);

/* ---- ways.c: paths to the end ---------------------------------------------------------------- */

/* Sets need, token_need, way and distance of all states, and is_exact. */
int gr_find_ways(struct gr_builder *b, struct gr_grammar *g);
/* Reports that no sequence of tokens satisfies the grammar, although a sequence of bytes does. */
void gr_fail_tokens(struct gr_builder *b, const struct gr_grammar *g);

/* ---- walk.c ---------------------------------------------------------------------------------- */

/* Computes the state after one byte; false, with *to undefined, if the byte is not accepted.  gr_step is for a byte
 * within a token: any bytes may complete the text.  gr_step_last is for the last byte of a token: only whole
 * tokens may complete it. */
bool gr_step(const struct gr_grammar *g, const struct gr_state *from, uint8_t byte, struct gr_state *to);
bool gr_step_last(const struct gr_grammar *g, const struct gr_state *from, uint8_t byte, struct gr_state *to);
/* The state of the byte that each edge of `state` leads to; -1: none. */
int32_t gr_follow(const struct gr_grammar *g, int32_t state, uint8_t byte);
/* Computes the state after the rule of from->config[i] has returned to the rule that called it.  The
 * configuration must have a frame. */
void gr_returned(const struct gr_grammar *g, const struct gr_state *from, int i, struct gr_state *to);

#endif
