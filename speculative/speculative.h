/* speculative/speculative.h - samples tokens, and builds, verifies and makes drafts.
 *
 *     spec_sample             samples the next token from a row of logits
 *     struct spec_tree        a draft: candidate next tokens, from one drafter or several
 *     struct spec_verify      walks a draft over the target's rows and yields the accepted tokens
 *     struct spec_drafter     drafts without a model: by matching earlier tokens
 *
 * No function here runs a model or reads a clock.  No function allocates after the open calls.
 *
 * Sampling uses a row of logits, the parameters and the history (the tokens before the position), in these steps.
 * z is a token's logit as changed by the steps so far, T the temperature.  Arithmetic is float unless double is stated:
 *   0. a NaN logit becomes -INFINITY, +INFINITY becomes FLT_MAX.  A token at -INFINITY, here or after any
 *      later step, is never sampled; a row with no other tokens is an error;
 *   1. penalties, once for each distinct token among the last repeat_last of the history, which occurs count times:
 *      z = z > 0 ? z / repetition : z * repetition, then z -= count * frequency, then z -= presence;
 *      then DRY (below);
 *      then z += add for each bias, in the order given; then z = -INFINITY for the last token of each banned sequence
 *      with its other tokens at the end of the history, for each late token if position < late_from, and where the
 *      bit of `allowed` or of the mask is 0;
 *   2. at temperature 0: the largest z, the lowest id on a tie;
 *   3. otherwise top-n-sigma and typical-p (below), then the support: tokens sorted by z descending, then id ascending,
 *      cut to a prefix.  top-k takes the first top_k tokens.  min-p takes the tokens with (z - largest z) / T, in
 *      double, at least log(min_p).  top-p takes the shortest prefix with a sum of weights of at least the weight of
 *      top_p; the weight of a probability x is floor(2^44 x); probabilities are the softmax (kernels.h's operation)
 *      over all tokens of (z - largest z) / T, computed in double.  Each of the three gives a prefix of the whole
 *      distribution at T; the shortest of these prefixes is the support.  XTC may remove tokens from it;
 *   4. argmax over the support of double z / T + g(seed, choice, position, id), the lowest id on a tie; g is a
 *      counter-based Gumbel hash (sample.c).  The same seed, choice and position give the same noise in any
 *      batch, and a drafter can use the same noise as the target.
 *
 * Steps that remove tokens, by z = -INFINITY; x is a token's probability as in top-p, at T:
 *   top-n-sigma  removes z < largest z - top_n_sigma * sigma, in double.  sigma is the standard deviation of the z
 *                above -INFINITY: the root of the mean square of their difference from their mean, with sums by
 *                ascending id;
 *   typical-p    log x = (z - largest z) / T + log(x of the largest z), in double; H is the sum of -x log x by
 *                ascending id.  Tokens are sorted by |H + log x|, rounded to float, ascending, then id.  The shortest
 *                prefix with a sum of weights of at least the weight of typical_p stays;
 *   xtc          if u < xtc_probability, and some tokens have x >= xtc_threshold: the last of these, by z descending,
 *                then id ascending, stays, and the others of these are removed.  u is a uniform hash of seed, choice
 *                and position.
 *
 * DRY lowers tokens that would continue a repetition.  h[n] are the last dry_last tokens of the history.  A breaker
 * occurs at i if its head has h[i] and its tail follows.  `most` is the number of tokens after the breaker that begins
 * last, the longest of several, or n without any; at most SPEC_DRY_LONGEST.  L(i) is the largest l <= most for which
 * the l tokens before h[i] equal the last l of h.  A token with an i >= 1, h[i] = token and L(i) >= dry_allowed gets
 * z -= min(dry_multiplier * dry_base^(L - dry_allowed), 2^100) for its largest L; not one that is the head of a breaker
 * without a tail.  The power is repeated multiplication, in double.
 *
 * With an order (has_order) the request chooses the steps.  Biases, bans and masks come first.  Then the steps of the
 * order run one after the other; each changes z, or removes tokens, for the next ones: top-k, top-p and min-p remove
 * the tokens outside their prefix of the distribution that is left.  T is 1 up to the step `temperature`; a temperature
 * of 0 ends the order, and the largest z is sampled.  Steps that are not in the order do nothing. */
#ifndef SPECULATIVE_SPECULATIVE_H
#define SPECULATIVE_SPECULATIVE_H

#include "kernels/kernels.h"

struct spec_bias {
    int32_t token;
    float add;
}; /* add may be -INFINITY: token is banned */

struct spec_sequence {
    const int32_t *token; /* [n] */
    int n;
};

/* A text at which DRY ends a repetition: any one of the head's tokens, then the tail. */
struct spec_breaker {
    const uint32_t *head; /* [spec_mask_words] */
    const int32_t *tail;  /* [n_tail] */
    int n_tail;
};

enum spec_step {
    SPEC_STEP_PENALTIES,
    SPEC_STEP_DRY,
    SPEC_STEP_TOP_N_SIGMA,
    SPEC_STEP_TOP_K,
    SPEC_STEP_TYPICAL_P,
    SPEC_STEP_TOP_P,
    SPEC_STEP_MIN_P,
    SPEC_STEP_XTC,
    SPEC_STEP_TEMPERATURE,
    SPEC_STEPS
};

#define SPEC_DRY_LONGEST 1024 /* tokens of a repetition that DRY counts */

struct spec_params {
    float temperature;                    /* >= 0 */
    int top_k;                            /* 0: off */
    float top_p, min_p;                   /* top_p 1: off; min_p 0: off */
    float typical_p, top_n_sigma;         /* typical_p 1: off; top_n_sigma 0: off */
    float xtc_probability, xtc_threshold; /* xtc_probability 0: off */
    float dry_multiplier, dry_base;       /* dry_multiplier 0: off */
    int dry_allowed, dry_last;            /* dry_last: number of last tokens that DRY looks at; -1 all */
    const struct spec_breaker *breaker;   /* [n_breaker] of DRY */
    int n_breaker;
    float repetition, presence, frequency; /* off: 1, 0, 0 */
    int repeat_last;                       /* number of last tokens that penalties look at; 0 none, -1 all */
    bool has_order;                        /* the steps are order[n_order], each at most once, and no others */
    uint8_t order[SPEC_STEPS];             /* [n_order] of enum spec_step */
    int n_order;
    uint64_t seed;
    uint32_t choice; /* index of the answer within its request: each has its own noise */
    const struct spec_bias *bias;
    int n_bias;
    const struct spec_sequence *banned; /* [n_banned] */
    int n_banned;
    const int32_t *late; /* [n_late] tokens that are never sampled at positions below late_from */
    int n_late;
    int64_t late_from;
    const uint32_t *allowed; /* [spec_mask_words] of the whole request; NULL: all */
    const uint32_t *mask;    /* [spec_mask_words] bit 0 of word 0: allow token 0; NULL: all */
};

static inline size_t spec_mask_words(int n_vocab) { return ((size_t)n_vocab + 31) / 32; }
static inline void spec_mask_allow(uint32_t *mask, int32_t token) { mask[token >> 5] |= UINT32_C(1) << (token & 31); }

void spec_params_default(struct spec_params *p);

/* Returns 0, or KN_EINVAL with a message that names the parameter and its range. */
int spec_params_check(const struct spec_params *p, int n_vocab);

/* spec_step_find: the step with this name, as llama-server accepts it (top_k, top-k, typ_p ..).
 * spec_step_of_letter: the step with this letter of llama-server's --sampling-seq.  Both return -1 if there is none. */
int spec_step_find(const char *name, size_t n);
int spec_step_of_letter(char letter);
const char *spec_step_name(enum spec_step step);

/* Adds a step to the order; false: step is -1, or in the order already. */
bool spec_order_add(struct spec_params *p, int step);
/* Sets the order to the steps of names[n], separated by semicolons; false, with p unchanged, if a name is no step's or
 * a step is repeated. */
bool spec_order_read(struct spec_params *p, const char *names, size_t n);

/* Scratch memory for one call at a time; one per thread. */
struct spec_sampler;
int spec_sampler_open(struct spec_sampler **out, int n_vocab);
void spec_sampler_close(struct spec_sampler *s);

struct spec_sampled {
    int32_t token;
    float logprob; /* log softmax after step 0 alone, T = 1 */
    float chance;  /* estimated probability that another model with similar logits
                                                       and the same noise samples this token */
};

/* Samples the token at `position`.  history[n_history] holds the tokens before it, prompt included; history ids
 * outside the vocabulary are ignored.  logits is not changed. */
int spec_sample(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
                const int32_t *history, int n_history, int64_t position, struct spec_sampled *out);

/* The n most probable tokens after step 0 alone, T = 1: most probable first, lowest id first on a tie. */
struct spec_top {
    int32_t token;
    float logprob;
};
void spec_top(struct spec_sampler *s, const float *logits /* [n_vocab] */, int n, struct spec_top *out);

/* The n tokens, n <= SPEC_RANKS, that spec_sample would return one after the other if each were banned once
 * returned.  Returns their number, less than n if the support is smaller, or an error.  exp(logprob) estimates the
 * probability that another model with similar logits and the same noise samples the token.  At temperature 0 it is
 * the softmax over all tokens after steps 0 to 2, T = 1.  Otherwise it is the softmax over the n tokens of
 * z / T + g, as if the other model's scores had one more independent Gumbel noise. */
#define SPEC_RANKS 16
int spec_rank(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
              const int32_t *history, int n_history, int64_t position, int n, struct spec_top *out);

/* spec_top, and the log probability and rank of a given token: its place, from 1, in spec_top's order. */
struct spec_given_token {
    float logprob;
    int rank;
};
struct spec_given_token spec_given_token(struct spec_sampler *s, const float *logits /* [n_vocab] */, int32_t token,
                                         int n, struct spec_top *top);

/* g of step 4. */
double spec_noise(uint64_t seed, uint32_t choice, int64_t position, int32_t token);

/* ---- distributions ------------------------------------------------------------------------------ */

/* Token token[i] has probability weight[i] / sum.  Ids ascend; a weight may be 0, the sum may not be 0. */
struct spec_dist {
    int n;
    const int32_t *token; /* [n]; NULL: 0 .. n - 1 */
    const float *weight;  /* [n] */
    double sum;           /* of the weights, added in order */
};

/* The distribution that spec_sample samples from: the softmax of z / T over the support, in the operation's float
 * precision; at temperature 0 its one token.  out points into the sampler and is valid until the sampler's next
 * call.  A drafter that samples its tokens (spec_tree_draw) calls this with its own logits to get their q. */
int spec_target(struct spec_sampler *s, const struct spec_params *p, const float *logits /* [n_vocab] */,
                const int32_t *history, int n_history, int64_t position, struct spec_dist *out);

double spec_dist_prob(const struct spec_dist *d, int32_t token);

/* The token at u of the cumulative distribution over ascending ids, 0 <= u < 1: samples from d if u is uniform. */
int32_t spec_dist_token(const struct spec_dist *d, double u);

/* The uniform random number for a drafter's n-th draw of the draft with its first token at `position`.
 * It is independent of the noise of spec_sample, of spec_verify and of drafts at other positions. */
double spec_draft_uniform(const struct spec_params *p, int64_t position, int n);

/* ---- drafts --------------------------------------------------------------------------------------- */

/* A draft is a tree of tokens that may follow the last committed token; a chain is a tree with one child per node.
 * Siblings have different tokens, so drafts of several drafters merge as a trie: a path is in the merged tree
 * exactly when it is in one of the drafts (SpecInfer's definition 4.1).
 *
 * The way a node was chosen limits the rules that may verify it:
 *   - added:  in any way (most probable, most frequent, sampled with the target's own noise);
 *   - drawn:  sampled from a distribution q, to which the draw points.  Drawing a token twice makes one node and
 *             two draws; both are tried, in their order.
 * Added nodes may be pruned freely.  Under SPEC_RATIO and SPEC_BLOCK a drawn node may be pruned only by a decision
 * that depends on nothing but the nodes before it: "stop here, for the drawn token looks poor" biases the output
 * (DSpark, appendix A).  A tree pruned by its drawn tokens is marked `depends_on_draws` and is verified by
 * SPEC_COUPLED.  Whether to draw another token at all may depend on all earlier draws. */
#define SPEC_NODES 256
#define SPEC_ROOT  (-1) /* the last committed token */

struct spec_draw {
    int16_t node;
    const struct spec_dist *q;
};

struct spec_tree {
    int n;
    int32_t token[SPEC_NODES];
    int16_t parent[SPEC_NODES];          /* an earlier node, or SPEC_ROOT */
    int16_t depth[SPEC_NODES];           /* 1: follows the root */
    uint8_t source[SPEC_NODES];          /* bit i: proposed by drafter i */
    float survival[SPEC_NODES];          /* estimated probability that the node is accepted */
    bool wants_target_token[SPEC_NODES]; /* its drafter wants the target's token after it, accepted or not */
    bool window_row
        [SPEC_NODES]; /* no draft: a row of a lookahead window.  survival is the value of its row, in tokens */
    int n_requested;  /* calls of add and draw, repeated nodes included */
    int n_draw;
    struct spec_draw draw[SPEC_NODES]; /* q must stay valid until the draft is verified */
    bool depends_on_draws;
};

void spec_tree_clear(struct spec_tree *t);

/* Finds or makes the child of parent with this token; its survival becomes the larger of both.  Returns the node, or
 * -1: the tree is full.  A draw after SPEC_NODES or more calls of add and draw marks the tree as depends_on_draws, for
 * whether there is space then depends on the drawn tokens. */
int spec_tree_add(struct spec_tree *t, int parent, int32_t token, float survival, uint8_t source);
int spec_tree_draw(struct spec_tree *t, int parent, int32_t token, const struct spec_dist *q, float survival,
                   uint8_t source);

/* A row of a lookahead window: a call of add, but an existing node stays as it is. */
int spec_tree_add_window_row(struct spec_tree *t, int parent, int32_t token, float value);

int spec_tree_n_drafted(const struct spec_tree *t); /* its nodes without rows of lookahead windows */
int spec_tree_n_accepted(const struct spec_tree *t, const int16_t *path,
                         int n_path); /* of an accepted path, likewise */

int spec_tree_child(const struct spec_tree *t, int node, int32_t token); /* -1: none */

/* Removes the nodes with keep false and all below them.  blind: keep of a node depends on no token that was drawn for
 * it, its siblings or any node below, but at most on its ancestors' tokens. */
void spec_tree_prune(struct spec_tree *t, const bool *keep /* [n] */, bool blind);

/* ---- verification ------------------------------------------------------------------------------- */

/* Finds the accepted tokens of a draft and the token that follows them.
 *
 *   SPEC_COUPLED  each row's token is the one that spec_sample returns, and the walk continues in the child with
 *                 that token.  The output is bit-identical to the output without a draft, for every drafter and
 *                 every pruning.  For added nodes, no lossless rule accepts more.
 *   SPEC_RATIO    the draws of a node's children are tried in order.  p starts as the target's distribution of the
 *                 node's next token (spec_target).  A token x drawn from q is accepted with probability
 *                 min(1, p(x) / q(x)); after a rejection p becomes the normalised positive part of p - q.  If no draw
 *                 is accepted, the token is sampled from the remaining p, and may still equal an added child.  With
 *                 one draw per node this is speculative sampling, with several SpecInfer's multi-step rule.  At a
 *                 node without draws it is SPEC_COUPLED.
 *   SPEC_BLOCK    for drawn chains: the number of accepted tokens is decided over the whole chain, which accepts
 *                 at least as many as SPEC_RATIO.  Other drafts are verified by SPEC_RATIO, also chains of which
 *                 a second drafter proposed a node.  The decision to ask a second drafter must not depend on the
 *                 drawn tokens.
 * SPEC_RATIO and SPEC_BLOCK give the same distribution of outputs as no draft, not the same output.  At temperature 0
 * every rule is SPEC_COUPLED.  Under every rule the history of a row is the committed tokens and the path to its node.
 *
 *     struct spec_verify v = { .tree = &draft, .rule = r, .params = &p,
 *                              .history = token, .n_history = n, .position = n };
 *     for (spec_verify_start(&v); v.node != SPEC_END && !status; ) {
 *         if (v.node != SPEC_ROOT && (the row failed, or tree.token[v.node] ends the sequence))
 *             spec_verify_stop(&v);
 *         else
 *             status = spec_verify_row(&v, sampler, logits of v.node's row, mask of the token after it);
 *     }
 *
 * Only rows on the walked path are asked for, in the path's order, each once: out[i] was sampled from the i-th of
 * these rows.  On an error, path and out hold the tokens accepted before it. */
enum spec_rule { SPEC_COUPLED, SPEC_RATIO, SPEC_BLOCK };

#define SPEC_END (-2)

struct spec_verify {
    const struct spec_tree *tree;
    enum spec_rule rule;              /* as requested; spec_verify_start replaces it by the rule that applies */
    const struct spec_params *params; /* its mask is ignored */
    int32_t *history;                 /* caller's; the path is appended: space for the tree's depth */
    int n_history;
    int64_t position;   /* of the first token to sample */
    const double *dice; /* random numbers of a test, in order; NULL: from the seed */

    int node;   /* node of the next row to pass; SPEC_END: the walk is done */
    int n_path; /* accepted nodes */
    int n_out;  /* tokens to commit: the path's, and one more unless the walk was
                                                       stopped at the path's end */
    int16_t path[SPEC_NODES];
    struct spec_sampled out[SPEC_NODES + 1];

    int n_dice;               /* uniform numbers used so far */
    int n_walked;             /* nodes walked, v->node included; under SPEC_BLOCK not all may be accepted */
    double carry;             /* block: probability that all nodes so far are accepted */
    struct spec_sampled last; /* block: the token after the accepted path */
};

void spec_verify_start(struct spec_verify *v);
int spec_verify_row(struct spec_verify *v, struct spec_sampler *s, const float *logits /* [n_vocab] */,
                    const uint32_t *mask /* [spec_mask_words] or NULL */);
void spec_verify_stop(struct spec_verify *v); /* there is no row for v->node: it ends the sequence, or failed */

/* ---- copying from a reference text ----------------------------------------------------------------- */

/* Follows an answer through a text that it repeats with changes: copy.c.  Only the answer's tokens decide the place, so
 * n_copied is the same with every drafter and without any. */
#define SPEC_COPY_RECENT 32

struct spec_copy {
    const int32_t *token; /* [n] the text; the caller's */
    int n;
    int at;       /* the next token to copy; n: the text is at its end; -1: the place is lost */
    int run;      /* tokens before `at` that equal the answer's last tokens, SPEC_COPY_RECENT or more; 0: a guess */
    int left;     /* the end of the last long run: a search prefers places close behind it */
    int n_lost;   /* tokens of the answer since that run */
    int n_copied; /* tokens of the answer that were the one at `at` */
    uint32_t n_recent;
    int32_t recent[SPEC_COPY_RECENT]; /* the last tokens of the answer; a ring */
};

void spec_copy_start(struct spec_copy *c, const int32_t *token, int n); /* the answer is empty */
void spec_copy_add(struct spec_copy *c, int32_t token);                 /* the answer's next token */

/* ---- drafters that need no model -------------------------------------------------------------------- */

/* Drafts the tokens that followed earlier places with the same last tokens.
 *
 *     open -> learn* -> per session: [ begin, commit (prompt), [ draft, commit ]*, end ]* -> close
 *
 *   none     drafts nothing;
 *   ngram    a chain: the continuation of the longest earlier match in the session's own tokens;
 *   suffix   a tree: the continuations of the longest matches in the session's own tokens, in learnt documents, and,
 *            if sharing is on, in ended sessions of the same salt; weighted by match length and frequency;
 *   copy     a chain: the tokens of the session's reference text;
 *   lookahead  as suffix, without documents and other sessions, but also the session's pool: n-grams that the target
 *            has made in rows of the session's window (spec_draft_window);
 *   oracle   the tokens passed to spec_drafter_set_oracle, each with the given probability, else a wrong token: for
 *            measurements.
 *
 * ngram, suffix and lookahead also draft from the reference text of a session, if it has one.
 *
 * Survival is estimated from the length of the match and the share of matches that agree: it is the rate at which such
 * drafts would have been right in this session, updated at every commit, with or without a draft.  A session reads no
 * tokens of other sessions except the shared ones above.  A draft grows while its survival is high enough; there is no
 * fixed length.
 *
 * Sessions are numbered 0 .. n_session - 1.  spec_draft may run for different sessions on different threads at the
 * same time; all other calls belong to one thread.  Memory is allocated at open: 28 bytes per remembered token, the
 * number rounded up to a power of two; the newest tokens replace the oldest.  A pool takes 16 KB per token of its
 * n-grams. */
enum spec_drafter_kind {
    SPEC_DRAFT_NONE,
    SPEC_DRAFT_NGRAM,
    SPEC_DRAFT_SUFFIX,
    SPEC_DRAFT_ORACLE,
    SPEC_DRAFT_COPY,
    SPEC_DRAFT_LOOKAHEAD
};

#define SPEC_WINDOW_COLUMNS 16 /* most columns of a lookahead window, */
#define SPEC_WINDOW_GRAM    8  /* and tokens of its n-grams */

struct spec_drafter_options {
    enum spec_drafter_kind kind;
    int n_vocab, n_session;
    int n_own;     /* remembered tokens of one session */
    int n_shared;  /* remembered tokens of ended sessions; 0: sessions share nothing */
    int n_learn;   /* remembered tokens of documents */
    int n_column;  /* lookahead: columns of a session's window, */
    int n_gram;    /* and tokens of its n-grams, 3 or more */
    double right;  /* oracle: probability that a drafted token is right */
    uint64_t seed; /* oracle */
};

struct spec_drafter;
size_t spec_drafter_bytes(const struct spec_drafter_options *opt); /* memory that open allocates */
int spec_drafter_open(struct spec_drafter **out, const struct spec_drafter_options *opt);
void spec_drafter_close(struct spec_drafter *d);

void spec_drafter_learn(struct spec_drafter *d, const int32_t *token, int n); /* a document, for all sessions */
void spec_drafter_begin(struct spec_drafter *d, int session, uint64_t salt);  /* a new sequence; ends the old */
void spec_drafter_commit(struct spec_drafter *d, int session, const int32_t *token, int n);
void spec_drafter_end(struct spec_drafter *d, int session);          /* shares its tokens if sharing is on */
void spec_drafter_end_unshared(struct spec_drafter *d, int session); /* ends it without sharing */

/* Lookahead.  Rows of a session's window in one pass, at most. */
int spec_window_rows(int n_column, int n_gram);
/* Adds rows of the session's window to the draft t, at most n_node nodes.  Their survival is spec_window_value. */
int spec_draft_window(struct spec_drafter *d, int session, int n_node, struct spec_tree *t);
/* After the pass of t, before its tokens are committed: target_token[i] is the target's token after node i, if the node
 * wants it; -1: not known.  path: the accepted nodes. */
void spec_drafter_learn_window(struct spec_drafter *d, int session, const struct spec_tree *t,
                               const int32_t *target_token /* [t->n] */, const int16_t *path, int n_path);
/* The number of tokens that a row of a window gives, over all sessions: accepted rows, and drafts from the pool where
 * the session's text had none. */
double spec_window_value(const struct spec_drafter *d);

/* Oracle: the tokens that will follow the committed ones.  The caller owns the array and keeps it valid until the next
 * call of this function or spec_drafter_begin for the session. */
void spec_drafter_set_oracle(struct spec_drafter *d, int session, const int32_t *token, int n);

/* Ngram, suffix, lookahead, copy: a text that the tokens committed from now on are expected to repeat, at least in part.
 * The caller owns the array and keeps it valid until the session's end or its next spec_drafter_begin. */
void spec_drafter_set_reference(struct spec_drafter *d, int session, const int32_t *token, int n);

/* Adds to t at most n_node nodes, at most n_depth deep, that follow the committed tokens.  source: as in spec_tree. */
void spec_draft(const struct spec_drafter *d, int session, int n_node, int n_depth, uint8_t source,
                struct spec_tree *t);

#endif
