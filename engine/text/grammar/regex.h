/* engine/text/grammar/regex.h - regular expressions as NFAs over code points.  Only the files of
 * engine/text/grammar include it. */
#ifndef ENGINE_TEXT_GRAMMAR_REGEX_H
#define ENGINE_TEXT_GRAMMAR_REGEX_H

#include "engine/text/grammar/automaton.h"

enum {
    MOST_PARTS = 1 << 13, /* NFA states of all patterns of one string */
    MOST_RANGES = 1 << 12,
    LAST_CODE = 0x10ffff,
};

enum part_kind { PART_CLASS, PART_SPLIT, PART_BEGIN, PART_END, PART_MATCH };

struct gr_part { /* an NFA state */
    uint8_t kind;
    int32_t a, b;           /* a: the successor; SPLIT: a and b are the two successors */
    int32_t range, n_range; /* CLASS: matches ranges range .. range + n_range - 1 of the parser */
};
struct gr_code_range {
    uint32_t lo, hi;
};

struct gr_regex_parser {
    struct gr_builder *b;
    const char *at, *whole;
    struct gr_tree *tree;        /* [MOST_PARTS] syntax tree of one pattern; index 0 is unused */
    struct gr_part *part;        /* [MOST_PARTS] */
    struct gr_code_range *range; /* [MOST_RANGES] */
    int32_t n_tree, n_part, n_range;
    int nesting, work;
    bool failed;
    bool is_anchored; /* patterns must match the whole text */
};

/* Allocates memory for all patterns of one string; false: no memory, reported to the builder.  The caller
 * calls gr_regex_close in both cases. */
bool gr_regex_open(struct gr_regex_parser *p, struct gr_builder *b);
void gr_regex_close(struct gr_regex_parser *p);

/* Compiles a pattern, which may match at any place of the string unless p->is_anchored.  Appends to p->part and p->range; returns
 * the NFA's start state. */
int32_t gr_regex(struct gr_regex_parser *p, const char *text);

/* Reports an error in the pattern to the builder, unless an earlier error was reported; returns 0. */
int32_t gr_regex_refuse(struct gr_regex_parser *p, int code, const char *what);

#endif
