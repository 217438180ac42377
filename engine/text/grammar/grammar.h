/* engine/text/grammar/grammar.h - grammars that constrain generated text, and the token masks of their
 * states.  Internal to engine.
 *
 *     gr_builder_open -> nodes from the last to the first -> gr_compile -> gr_builder_close
 *     gr_start -> [ gr_mask, spec_sample, gr_advance_token ]*            one gr_state per row
 *
 *     gr_builder   collects nodes.  A node is named by a number.  A node is made with the number of
 *                  its successor, so a grammar is built from its end:
 *                  gr_literal(b, "{", 1, gr_literal(b, "}", 1, GR_END)).
 *     gr_grammar   the compiled automaton: immutable, shared by any number of rows and threads.
 *     gr_state     the position of one text in the automaton: a plain struct in the caller's memory,
 *                  copied with gr_copy.  Each row of a draft has its own gr_state; to reject the row,
 *                  the caller drops that gr_state.
 *     gr_tokens    a vocabulary as a trie, with a cache of masks.  One per model; its functions may be
 *                  called from several threads.
 *     gr_scratch   scratch memory of one thread for making masks.
 *
 * Each rule is a deterministic automaton over bytes, and rules call each other.  A gr_state is a set of
 * configurations (automaton state, count, call frame).  For every grammar that compiles:
 *   - every accepted prefix can be completed: a byte is refused if after it no end of the text is
 *     reachable with at most GR_DEPTH nested calls, and a token if no further tokens reach it;
 *   - gr_mask sets exactly the tokens that gr_advance_token accepts.
 * If a prefix leads to more than GR_CONFIGS configurations, the surplus is dropped: some valid
 * continuations are then refused, but both properties still hold.
 *
 * Building and compiling log nothing, because grammars come from requests; gr_builder_why has the
 * reason. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_H

#include <jansson.h>

#include "engine/text/text.h"

/* ---- building -------------------------------------------------------------------------------- */

struct gr_builder;
struct gr_grammar;

enum { GR_END = 0 }; /* the node at which the text, or the rule, may end */

int gr_builder_open(struct gr_builder **out);
void gr_builder_close(struct gr_builder *b);
const char *gr_builder_why(const struct gr_builder *b); /* the first failure in one line; "": none */

/* These return a node.  After a failure they return GR_END, and gr_compile returns its error code. */
int32_t gr_literal(struct gr_builder *b, const char *p, size_t n, int32_t next);
/* The control token with this id, then next.  Control tokens never match bytes of text. */
int32_t gr_control(struct gr_builder *b, int32_t token, int32_t next);
/* Any one of node[n]. */
int32_t gr_alternatives(struct gr_builder *b, const int32_t *node, size_t n);
/* A call: the text that `rule` accepts up to its GR_END, then next. */
int32_t gr_call(struct gr_builder *b, int32_t rule, int32_t next);
int32_t gr_json_object(struct gr_builder *b, int32_t next);
/* A JSON value that conforms to the schema (schema.c lists the supported part of JSON Schema). */
int32_t gr_schema(struct gr_builder *b, const json_t *schema, int32_t next);
/* Text that matches the regular expression (regex.c) as a whole. */
int32_t gr_pattern(struct gr_builder *b, const char *pattern, int32_t next);
/* The values of gr_schema as Python literals: True, False, None, and strings in single or double quotes. */
int32_t gr_python(struct gr_builder *b, const json_t *schema, int32_t next);

/* Any tokens up to the end of the first trigger, t[n], then the `next` of that trigger.  The first
 * trigger is the one that is complete first; of two that end at the same byte, the longer.  may_end:
 * the text may also end without a trigger. */
struct gr_trigger {
    const char *text;
    size_t n;
    int32_t control; /* the control token that is the trigger; ENG_NO_TOKEN: text[n] is the trigger */
    int32_t next;
};
int32_t gr_free_until(struct gr_builder *b, const struct gr_trigger *t, size_t n, bool may_end);
/* The values of gr_schema without blanks and escapes: strings stand between two markers `quote` (its next is not used), and
 * names of members without quotes, in the order of the alphabet.  A string with a length or a pattern has no <. */
int32_t gr_marked(struct gr_builder *b, const json_t *schema, const struct gr_trigger *quote, int32_t next);

/* gr_forward makes a placeholder node, so that a loop can refer to a node that does not exist yet;
 * gr_set later makes the placeholder equal to `node`.  A placeholder that was not set accepts nothing. */
int32_t gr_forward(struct gr_builder *b);
void gr_set(struct gr_builder *b, int32_t forward, int32_t node);

struct gr_tokens;

/* Compiles the grammar that begins at node `start`; the caller closes *out with gr_close.  tokens: those that will
 * write the text; must outlive *out; NULL: any vocabulary in which every byte is a token.  KN_EINVAL: a schema is not
 * valid, or no text satisfies the grammar; KN_EUNSUPPORTED: a keyword is not supported, or the tokens cannot
 * write any text of the grammar; KN_ELIMIT: larger or deeper than the limits in automaton.h; KN_ENOMEM. */
int gr_compile(struct gr_grammar **out, struct gr_builder *b, int32_t start, const struct gr_tokens *tokens);
void gr_close(struct gr_grammar *g);
size_t gr_bytes(const struct gr_grammar *g); /* memory of the grammar */

/* ---- state of a text ------------------------------------------------------------------------- */

enum { GR_CONFIGS = 64, GR_FRAMES = 256, GR_DEPTH = 128 };

struct gr_frame { /* one call of a rule: the state to return to, and the count of the calling rule */
    int32_t state;
    uint32_t count;
    int16_t parent; /* -1: none */
    uint16_t depth; /* number of frames up to the root, including this one */
};

struct gr_config {
    int32_t state;
    uint32_t count;
    int16_t frame;
};

struct gr_state {
    uint16_t n_config, n_frame;
    bool can_end;                        /* the text may end here */
    struct gr_config config[GR_CONFIGS]; /* [n_config] */
    struct gr_frame frame[GR_FRAMES];    /* [n_frame] */
};

void gr_start(const struct gr_grammar *g, struct gr_state *s);
void gr_copy(struct gr_state *to, const struct gr_state *from);
/* Returns false, with s unchanged, if the grammar does not accept the byte here. */
bool gr_advance(const struct gr_grammar *g, struct gr_state *s, uint8_t byte);
bool gr_can_end(const struct gr_state *s);
bool gr_must_end(const struct gr_grammar *g, const struct gr_state *s); /* no byte can follow */

/* Writes a completion of the text to out[most] and returns its length, 0 if the text may end here.  It continues the
 * configuration with the shortest way to the end, by the path that needs the fewest nested calls: the completion is
 * short, but not always the shortest.  If it is longer than `most` bytes, out holds its first `most` bytes and the
 * result is more than `most`. */
size_t gr_finish(const struct gr_grammar *g, const struct gr_state *s, char *out, size_t most);

/* ---- tokens ---------------------------------------------------------------------------------- */

struct gr_scratch;

/* v must outlive *out; cache_bytes is the size of the mask cache. */
int gr_tokens_open(struct gr_tokens **out, const struct eng_vocab *v, size_t cache_bytes);
void gr_tokens_close(struct gr_tokens *t);

int gr_scratch_open(struct gr_scratch **out, const struct gr_tokens *t);
void gr_scratch_close(struct gr_scratch *x);

/* Fills the mask of spec_params: bit i is 1 if token i may come next.  The bits of the stop tokens are 1
 * if the text may end here.  t: the tokens that g was compiled for. */
void gr_mask(const struct gr_grammar *g, const struct gr_state *s, struct gr_tokens *t, struct gr_scratch *x,
             uint32_t *mask /* [spec_mask_words(n_vocab)] */);

/* Returns false, with s unchanged, if the grammar does not accept the token here.  An accepted stop
 * token leaves s unchanged too. */
bool gr_advance_token(const struct gr_grammar *g, struct gr_state *s, const struct gr_tokens *t, int32_t token);

#endif
