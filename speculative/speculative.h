/* speculative/speculative.h - which token comes next, what is drafted for it, and which drafts are kept.
 *
 *     spec_sample             chooses the next token from a row of logits
 *     struct spec_tree        a draft: tokens that may follow, from one drafter or several
 *     struct spec_verify      walks a draft over the model's rows and yields the tokens to keep
 *     struct spec_drafter     drafts that cost no model: from what the text has said before
 *
 * All of it is numbers in, numbers out; no model, no clock, no allocation after an open.
 *
 * The choice, from a row's logits and its sampler's parameters and history.  float unless it says double:
 *   0. a NaN logit becomes -INFINITY, +INFINITY becomes FLT_MAX.  A token at -INFINITY, here or after any
 *      later step, is never chosen; a row of nothing else is an error;
 *   1. penalties, once for each token that the last repeat_last of the history hold, count times:
 *      z = z > 0 ? z / repetition : z * repetition, then z -= count * frequency, then z -= presence;
 *      then z += add for each bias, in the order given; then z = -INFINITY where the mask's bit is 0;
 *   2. temperature 0: the largest z, lowest id on a tie;
 *   3. else the support: z sorted by value descending, id ascending.  top-k keeps the first k; top-p
 *      the shortest head whose weights reach p's, where the weight of a probability x is the whole number
 *      below 2^44 x, and probabilities are the softmax (the operation of kernels.h) over all tokens of
 *      (z - largest z) / T, taken in double; min-p those with (z - largest z) / T, in double, at least
 *      log(min_p).  All three look at the distribution at T before any cut, and the shortest head wins;
 *   4. argmax over the support of double z / T + g(seed, choice, position, id), lowest id on a tie; g is a
 *      counter-based Gumbel hash (sample.c).  So the same seed, choice and position meet the same noise
 *      whatever else runs, and drafts can be coupled to it. */
#ifndef SPECULATIVE_SPECULATIVE_H
#define SPECULATIVE_SPECULATIVE_H

#include "kernels/kernels.h"

struct spec_bias { int32_t token; float add; };     /* add may be -INFINITY: never */

struct spec_params {
    float temperature;                              /* >= 0 */
    int   top_k;                                    /* 0: off */
    float top_p, min_p;                             /* 1 and 0: off */
    float repetition, presence, frequency;          /* 1, 0, 0: off */
    int   repeat_last;                              /* tokens the penalties see; 0 none, -1 all */
    uint64_t seed;
    uint32_t choice;                                /* n-th choice of one request */
    const struct spec_bias *bias;
    int n_bias;
    const uint32_t *mask;                           /* [spec_mask_words] bit 0 of word 0: token 0; NULL: all */
};

static inline size_t spec_mask_words(int n_vocab) { return ((size_t)n_vocab + 31) / 32; }

void spec_params_default(struct spec_params *p);

/* Says what is out of range, and where. */
int spec_params_check(const struct spec_params *p, int n_vocab);

/* Scratch for one call at a time. */
struct spec_sampler;
int  spec_sampler_open(struct spec_sampler **out, int n_vocab);
void spec_sampler_close(struct spec_sampler *s);

struct spec_choice {
    int32_t token;
    float logprob;                                  /* softmax after step 0 alone, T = 1 */
    float chance;                                   /* that who sees about the same, and the same noise, chooses it */
};

/* Chooses the token for `position` (of the token to come).  history[n_history] is what precedes it,
 * prompt included; ids outside the vocabulary are passed over.  logits is left as it was. */
int spec_sample(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
                const int32_t *history, int n_history, int64_t position, struct spec_choice *out);

/* The n likeliest tokens after step 0 alone, T = 1: most likely first, lowest id on a tie. */
struct spec_top { int32_t token; float logprob; };
void spec_top(struct spec_sampler *s, const float *logits /* [n_vocab] */, int n, struct spec_top *out);

/* The n tokens, at most SPEC_RANKS, that spec_sample would choose one after the other if none could be had twice;
 * returns how many there are.  Who sees about the same and the same noise chooses one of them, each with exp(logprob):
 * at temperature 0 what steps 0 to 2 make of it, T = 1, and all tokens are asked; else, of the support, as if the two
 * differed by noise of the same kind once more. */
#define SPEC_RANKS 16
int  spec_rank(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
               const int32_t *history, int n_history, int64_t position, int n, struct spec_top *out);

/* The same as spec_top, and how likely a token was that came: its rank is 1 where none was likelier. */
struct spec_known { float logprob; int rank; };
struct spec_known spec_known(struct spec_sampler *s, const float *logits /* [n_vocab] */, int32_t token, int n,
                             struct spec_top *top);

/* The Gumbel noise of step 4. */
double spec_noise(uint64_t seed, uint32_t choice, int64_t position, int32_t token);

/* ---- distributions ------------------------------------------------------------------------------ */

/* Token token[i] has probability weight[i] / sum.  Ids ascend; a weight may be 0, the sum may not. */
struct spec_dist {
    int n;
    const int32_t *token;                           /* [n]; NULL: 0 .. n - 1 */
    const float *weight;                            /* [n] */
    double sum;                                     /* of the weights, added in order */
};

/* What spec_sample draws from: the softmax of z / T over the support, in the operation's float precision; at
 * temperature 0 the one token.  It lies in the sampler until its next call.  A drafter that samples asks
 * this of its own logits. */
int spec_target(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
                const int32_t *history, int n_history, int64_t position, struct spec_dist *out);

double spec_dist_prob(const struct spec_dist *d, int32_t token);

/* The token at u, 0 <= u < 1, of the distribution laid end to end. */
int32_t spec_dist_token(const struct spec_dist *d, double u);

/* The uniform number with which a drafter samples its n-th draw of the draft that follows `position` - 1.
 * It is independent of all that spec_sample and spec_verify draw, and of other positions' drafts. */
double spec_draft_uniform(const struct spec_params *p, int64_t position, int n);

/* ---- drafts --------------------------------------------------------------------------------------- */

/* A draft is a tree of tokens that may follow the last committed one; a chain is a tree with one child each.
 * Siblings differ in token, so drafts of several drafters merge as a trie: a path is in the whole exactly
 * when it is in one of the parts (SpecInfer's definition 4.1).
 *
 * How a node was chosen decides how it may be verified:
 *   - added:  in any way at all (most likely, most frequent, with the target's own noise);
 *   - drawn:  sampled from q, which the draw keeps.  Drawing a token twice makes one node and two draws,
 *             and both count, in their order.
 * Leaving out a node is free, except that SPEC_RATIO and SPEC_BLOCK need what is drawn to stay unless the
 * decision looked at nothing but what comes before it: "stop, for this token looks poor" biases the output
 * (DSpark, appendix A).  Such a tree says `peeked`, and is verified by SPEC_COUPLED.  Whether there is a draw at
 * all may go by whatever was drawn before it. */
#define SPEC_NODES 256
#define SPEC_ROOT  (-1)                             /* the last committed token */

struct spec_draw { int16_t node; const struct spec_dist *q; };

struct spec_tree {
    int     n;
    int32_t token[SPEC_NODES];
    int16_t parent[SPEC_NODES];                     /* an earlier node, or SPEC_ROOT */
    int16_t depth[SPEC_NODES];                      /* 1: follows the root */
    uint8_t source[SPEC_NODES];                     /* bit i: drafter i proposed it */
    float   survival[SPEC_NODES];                   /* estimate that it and all before it are kept */
    int     n_asked;                                /* nodes, each as often as it was asked for */
    int     n_draw;
    struct spec_draw draw[SPEC_NODES];              /* q stays valid until the draft is verified */
    bool    peeked;
};

void spec_tree_clear(struct spec_tree *t);

/* The child of parent with this token, found or made; its survival is the larger.  -1: the tree is full.
 * A draw that might find no room makes the tree a peeked one: ask for SPEC_NODES nodes at most. */
int  spec_tree_add(struct spec_tree *t, int parent, int32_t token, float survival, uint8_t source);
int  spec_tree_draw(struct spec_tree *t, int parent, int32_t token, const struct spec_dist *q,
                    float survival, uint8_t source);

int  spec_tree_child(const struct spec_tree *t, int node, int32_t token);        /* -1: none */

/* Drops the nodes that are not to be kept and all below them.  blind: whether a node is kept depends on no
 * token that was drawn for it, its siblings or anything below, but at most on those before it. */
void spec_tree_prune(struct spec_tree *t, const bool *keep /* [n] */, bool blind);

/* ---- verification ------------------------------------------------------------------------------- */

/* Which tokens of a draft are kept, and the one that follows them.
 *
 *   SPEC_COUPLED  each row's token is what spec_sample chooses, and the walk goes on in the child that has
 *                 that token.  The output is the output without a draft, to the bit, whoever drafted and
 *                 whatever was left out.  For drafts that are added, no rule keeps more.
 *   SPEC_RATIO    the children of a node that were drawn are tried in order: x from q is kept with probability
 *                 min(1, p(x) / q(x)), else p becomes the normalised positive part of p - q; when none is
 *                 kept the token is drawn from what p is then, and may still be an added child.  With one
 *                 draw per node it is speculative sampling, with several SpecInfer's multi-step rule.  Where
 *                 nothing was drawn it is SPEC_COUPLED.
 *   SPEC_BLOCK    for chains that are drawn: how many are kept is decided over the whole chain, which keeps
 *                 at least as many as SPEC_RATIO.  Other drafts are verified by SPEC_RATIO, those too that
 *                 became a chain because somebody else proposed the same.  Whether anybody else is asked
 *                 may not depend on what was drawn.
 * The last two give the same distribution of texts as no draft, not the same text.  At temperature 0 all are
 * SPEC_COUPLED.  p is processed as by spec_sample: penalties over the path, bias, mask, cuts.
 *
 *     struct spec_verify v = { .tree = &draft, .rule = r, .params = &p,
 *                              .history = token, .n_history = n, .position = n };
 *     for (spec_verify_start(&v); v.node != SPEC_END && !status; ) {
 *         if (v.node != SPEC_ROOT && (the row failed, or tree.token[v.node] ends the text))
 *             spec_verify_stop(&v);
 *         else
 *             status = spec_verify_row(&v, sampler, logits of v.node's row, mask of what may follow it);
 *     }
 *
 * Only rows on the walked path are asked for, in its order, each once: the i-th row asked for is the one that
 * out[i] was chosen from.  An error leaves what was kept before it. */
enum spec_rule { SPEC_COUPLED, SPEC_RATIO, SPEC_BLOCK };

#define SPEC_END (-2)

struct spec_verify {
    const struct spec_tree *tree;
    enum spec_rule rule;                            /* start puts in the one that applies */
    const struct spec_params *params;               /* without mask */
    int32_t *history;                               /* room for depth tokens more: the path is written there */
    int n_history;
    int64_t position;                               /* of the first token to come */
    const double *dice;                             /* NULL: from the seed; tests say which, in order */

    int node;                                       /* whose row is wanted next; SPEC_END: none */
    int n_path;                                     /* nodes kept */
    int n_out;                                      /* tokens to commit: the path's, and one more unless stopped */
    int16_t path[SPEC_NODES];
    struct spec_choice out[SPEC_NODES + 1];

    int n_dice;                                     /* uniform numbers used so far */
    int n_walked;                                   /* nodes before the wanted row; block: kept or not */
    double carry;                                   /* block: probability that the walk so far is kept */
    struct spec_choice last;                        /* block: what follows the path */
};

void spec_verify_start(struct spec_verify *v);
int  spec_verify_row(struct spec_verify *v, struct spec_sampler *s, const float *logits /* [n_vocab] */,
                     const uint32_t *mask /* [spec_mask_words] or NULL */);
void spec_verify_stop(struct spec_verify *v);       /* no row for v->node: the text ends there, or is cut */

/* ---- drafters that need no model -------------------------------------------------------------------- */

/* Tokens that followed when a text last stood where this one stands now.
 *
 *     open -> learn* -> per session: [ begin, commit (prompt), [ draft, commit ]*, end ]* -> close
 *
 *   none     drafts nothing;
 *   ngram    a chain: what followed the longest earlier match in the session's own text;
 *   suffix   a tree: what followed the longest matches in the session's own text, in documents learnt, and
 *            in ended sessions of the same salt, if those are shared; by length and by how often;
 *   oracle   the tokens it is told, each with the given probability, else a wrong one: for measurements.
 *
 * Survival is estimated from the length of the match and how far the matches agree, by how often such drafts
 * were right in this session; that is watched at every commit, drafted or not.  Nothing is read across sessions
 * but what is said above.  A draft goes on while it may survive: it has no length to be set.
 *
 * Sessions are numbered 0 .. n_session - 1.  Drafts of different sessions may be made on different threads at
 * once; all else is one thread's.  Memory is taken at open: 28 bytes per token that is remembered, rounded up
 * to a power of two; what is older is forgotten. */
enum spec_drafter_kind { SPEC_DRAFT_NONE, SPEC_DRAFT_NGRAM, SPEC_DRAFT_SUFFIX, SPEC_DRAFT_ORACLE };

struct spec_drafter_options {
    enum spec_drafter_kind kind;
    int n_vocab, n_session;
    int n_own;                                      /* tokens of one session that are remembered */
    int n_shared;                                   /* of ended ones; 0: nothing is shared */
    int n_learn;                                    /* of documents */
    double right;                                   /* oracle: probability of the right token */
    uint64_t seed;                                  /* oracle */
};

struct spec_drafter;
size_t spec_drafter_bytes(const struct spec_drafter_options *opt);  /* what open takes */
int  spec_drafter_open(struct spec_drafter **out, const struct spec_drafter_options *opt);
void spec_drafter_close(struct spec_drafter *d);

void spec_drafter_learn(struct spec_drafter *d, const int32_t *token, int n);   /* a document, for everyone */
void spec_drafter_begin(struct spec_drafter *d, int session, uint64_t salt);    /* a new text; ends the last */
void spec_drafter_commit(struct spec_drafter *d, int session, const int32_t *token, int n);
void spec_drafter_end(struct spec_drafter *d, int session);                     /* shares it, if that is asked */
void spec_drafter_drop(struct spec_drafter *d, int session);        /* the same, but nobody learns of the text */

/* To the oracle: what will follow what is committed.  It stays the caller's, and there until told anew. */
void spec_drafter_tell(struct spec_drafter *d, int session, const int32_t *token, int n);

/* Adds to t at most n_node nodes, at most n_depth deep, that follow what was committed. */
void spec_draft(const struct spec_drafter *d, int session, int n_node, int n_depth, uint8_t source,
                struct spec_tree *t);

#endif
