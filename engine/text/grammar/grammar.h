/* engine/text/grammar/grammar.h - which bytes, and so which tokens, may come next.  Internal to engine.
 *
 *     gr_builder_open -> nodes from the last to the first -> gr_compile -> gr_builder_close
 *     gr_start -> [ gr_mask, spec_sample, gr_advance_token ]*            one gr_state per row
 *
 *     gr_builder   collects nodes.  A node is a number; each is made with the node that follows it,
 * so a grammar is written from its end: gr_literal(b, "{", 1, gr_literal(b, "}", 1, GR_END)).
 *     gr_grammar   the automaton: immutable, shared by any number of rows and threads.
 *     gr_state     where a text stands in it: plain, the caller's, copied with gr_copy, so that
 * each row of a draft has its own and a rejected row is forgotten by forgetting its state.
 *     gr_tokens    a vocabulary as a trie, and the masks of states that many tokens may follow. One
 *                  per model, legal from several threads.
 *     gr_scratch   what one thread needs to make a mask.
 *
 * The automaton is a deterministic one over bytes per rule, and rules call each other; a state is a
 * set of configurations (automaton state, count, frame).  Two promises, for every grammar that
 * compiles:
 *   - every accepted prefix can finish: what cannot come to an end, or would nest deeper than
 * GR_DEPTH on the shortest way there, is not accepted in the first place;
 *   - gr_mask holds exactly the tokens that gr_advance_token takes.
 * Of more than GR_CONFIGS readings of one prefix the first are kept; that loses readings, never a
 * promise.
 *
 * Nothing here is said to the log: grammars come from requests.  gr_builder_why has the line. */
#ifndef ENGINE_GRAMMAR_H
#define ENGINE_GRAMMAR_H

#include <jansson.h>

#include "engine/text/text.h"

/* ---- building -------------------------------------------------------------------------------- */

struct gr_builder;
struct gr_grammar;

enum { GR_END = 0 }; /* the text, or the rule, may end here */

int gr_builder_open(struct gr_builder **out);
void gr_builder_close(struct gr_builder *b);
const char *gr_builder_why(const struct gr_builder *b); /* one line, "" while all is well */

/* These return a node.  After a failure they return GR_END, and gr_compile the failure's code. */
int32_t gr_literal(struct gr_builder *b, const char *p, size_t n, int32_t next);
/* A control token, by its id.  Other tokens are their bytes; control tokens are never text. */
int32_t gr_control(struct gr_builder *b, int32_t token, int32_t next);
int32_t gr_alternatives(struct gr_builder *b, const int32_t *node, size_t n);
/* Called like a function: what `rule` accepts up to its GR_END, then next. */
int32_t gr_call(struct gr_builder *b, int32_t rule, int32_t next);
int32_t gr_json_object(struct gr_builder *b, int32_t next);
/* A value that conforms to the schema (schema.c says what of JSON Schema that is). */
int32_t gr_schema(struct gr_builder *b, const json_t *schema, int32_t next);
/* The same values as Python's literals: True, False, None, and strings in either quote. */
int32_t gr_python(struct gr_builder *b, const json_t *schema, int32_t next);

/* Any tokens until one of the triggers is complete, which leads to its next; the first one complete
 * counts, of two at once the longer.  may_end: the text may also end before. */
struct gr_trigger {
    const char *text;
    size_t n;
    int32_t control; /* or ENG_NO_TOKEN */
    int32_t next;
};
int32_t gr_free_until(struct gr_builder *b, const struct gr_trigger *t, size_t n, bool may_end);

/* For loops: a node that gr_set later makes the same as another. */
int32_t gr_forward(struct gr_builder *b);
void gr_set(struct gr_builder *b, int32_t forward, int32_t node);

/* The text begins at start.  KN_EINVAL: not a schema, or nothing satisfies it; KN_EUNSUPPORTED: a
 * keyword; KN_ELIMIT: larger or deeper than the limits in automaton.h. */
int gr_compile(struct gr_grammar **out, struct gr_builder *b, int32_t start);
void gr_close(struct gr_grammar *g);
size_t gr_bytes(const struct gr_grammar *g);

/* ---- a text's state -------------------------------------------------------------------------- */

enum { GR_CONFIGS = 64, GR_FRAMES = 256, GR_DEPTH = 128 };

struct gr_frame { /* who called: where to go on, and what was counted there */
    int32_t state;
    uint32_t count;
    int16_t parent; /* -1: none */
    uint16_t depth; /* frames below, this one included */
};

struct gr_config {
    int32_t state;
    uint32_t count;
    int16_t frame;
};

struct gr_state {
    uint16_t n_config, n_frame;
    bool can_end;
    struct gr_config config[GR_CONFIGS]; /* [n_config] */
    struct gr_frame frame[GR_FRAMES];    /* [n_frame] */
};

void gr_start(const struct gr_grammar *g, struct gr_state *s);
void gr_copy(struct gr_state *to, const struct gr_state *from);
/* False when the byte cannot come here; s is then unchanged. */
bool gr_advance(const struct gr_grammar *g, struct gr_state *s, uint8_t byte);
bool gr_can_end(const struct gr_state *s);
bool gr_must_end(const struct gr_grammar *g, const struct gr_state *s); /* nothing can follow */

/* Writes a short completion (of those that nest least) and returns its length, or more than `most`
 * when it is longer: out then holds its beginning. */
size_t gr_finish(const struct gr_grammar *g, const struct gr_state *s, char *out, size_t most);

/* ---- tokens ---------------------------------------------------------------------------------- */

struct gr_tokens;
struct gr_scratch;

/* Refuses a vocabulary that lacks a byte which text may need. */
int gr_tokens_open(struct gr_tokens **out, const struct eng_vocab *v, size_t cache_bytes);
void gr_tokens_close(struct gr_tokens *t);

int gr_scratch_open(struct gr_scratch **out, const struct gr_tokens *t);
void gr_scratch_close(struct gr_scratch *x);

/* For spec_params: bit i is set when token i may come next; stop tokens where the text may end. */
void gr_mask(const struct gr_grammar *g, const struct gr_state *s, struct gr_tokens *t,
             struct gr_scratch *x, uint32_t *mask /* [spec_mask_words(n_vocab)] */);

/* False when the token cannot come here; s is then unchanged.  A stop token leaves s as it is. */
bool gr_advance_token(const struct gr_grammar *g, struct gr_state *s, const struct gr_tokens *t,
                      int32_t token);

#endif
