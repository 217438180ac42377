/* engine/text/grammar/regex.h - patterns as networks.  For the files behind grammar.h only. */
#ifndef ENGINE_REGEX_H
#define ENGINE_REGEX_H

#include "engine/text/grammar/automaton.h"

enum {
    MOST_PARTS = 1 << 13, /* parts of all patterns of a string */
    MOST_RANGES = 1 << 12,
    LAST_CODE = 0x10ffff,
};

enum part_kind { PART_CLASS, PART_SPLIT, PART_BEGIN, PART_END, PART_MATCH };

struct gr_part {
    uint8_t kind;
    int32_t a, b;           /* then; or, of a split */
    int32_t range, n_range; /* of a class */
};
struct gr_code_range {
    uint32_t lo, hi;
};

struct gr_regex_parser {
    struct gr_builder *b;
    const char *at, *whole;
    struct gr_tree *tree;   /* [MOST_PARTS] of one pattern; 0 is no tree */
    struct gr_part *part;   /* [MOST_PARTS] */
    struct gr_code_range *range; /* [MOST_RANGES] */
    int32_t n_tree, n_part, n_range;
    int nesting, work;
    bool failed;
};

/* Room for all patterns of a string; false: there is none, which the builder is told.  To be closed either way. */
bool gr_regex_open(struct gr_regex_parser *p, struct gr_builder *b);
void gr_regex_close(struct gr_regex_parser *p);

/* A whole pattern: it may begin anywhere.  Adds to p->part and p->range; where the pattern begins. */
int32_t gr_regex(struct gr_regex_parser *p, const char *text);

/* What is wrong with the pattern, the first time; 0. */
int32_t gr_regex_refuse(struct gr_regex_parser *p, int code, const char *what);

#endif
