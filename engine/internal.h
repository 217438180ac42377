/* engine/internal.h - the engine's own insides: KV blocks, who advances, what is drafted, sessions.
 *
 * What happens once, in order:
 *     open.c                    the file, the vocabulary, the model, seats; and all of it closed
 *     budget.c, plan.c          memory is split, or refused; advise.c: what speed to expect of it
 *
 * and with every step:
 *     session.c                 a request becomes a sequence that waits for a seat
 *     schedule.c, pace.c        who has a seat, and how many rows of a pass each gets
 *     kv.c, prefix.c            their KV slots; texts that begin alike share them
 *     states.c, keep_state.c    what recurrent layers know of a text: kept states, and which are worth it
 *     draft.c                   who drafts, and how much
 *       draft_text.c, draft_model.c, draft_head.c     those who can
 *       draft_tree.c              guesses that go on from guesses
 *       draft_known.c           what of a text they have taken in
 *       draft_draws.c           what their tokens were drawn from
 *       draft_lengths.c         how much of a draft will be kept, foreseen
 *       draft_price.c           what a draft costs, and what a drafter's memory would be worth to experts
 *     expect.c                  experts that the rows to come will need are asked for
 *     overlap.c                 a drafter goes on while the pass runs
 *     step.c                    rows laid out, one pass, choices, commit
 *
 * dsi.c has one text verified by several workers instead.  Commands (cli.h), vocabularies (text.h), templates
 * (jinja/), grammars, the server and batches stand above all this and see engine.h. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/text/grammar/grammar.h"
#include "engine/plan/plan.h"
#include "speculative/control.h"
#include "speculative/lengths.h"

/* ---- pace.c: how much of prompts a pass takes beside tokens that people wait for ------------------ */

#define ENG_PACE_SIZES 14                       /* powers of two */
#define ENG_PACE_DUE   128

struct eng_cost { double ns; int n_pass; unsigned seen; };  /* from so many passes, a few at most; when last */

struct eng_pace {
    double stretch;                             /* such a pass may take this many times one without */
    struct eng_cost base[ENG_PACE_DUE];         /* a pass without prompts, by rows */
    struct eng_cost row[ENG_PACE_SIZES];        /* what one row of a prompt adds, by how many there are */
    struct eng_cost alone[ENG_PACE_SIZES];      /* and what it takes in a pass that nobody waits for */
    unsigned n_both, looked;                    /* passes with both; when one last went without prompts */
};

/* Rows count here as rows at the beginning of a text; behind much of it one is as dear as several. */
void eng_pace_init(struct eng_pace *p, double stretch);
/* Rows of the prompts of n_read in a pass with n_due others; there are `most` of them, or there is room for so many.
 * 0: this pass is to show what those others take alone. */
int  eng_pace_rows(const struct eng_pace *p, int n_due, int n_read, int most);
void eng_pace_learn(struct eng_pace *p, int n_due, int n_prompt, double pass_ns);

/* ---- seats: what a session has while it advances ------------------------------------------------------ */

/* Guesses that follow a text one after the other, made while the pass before them still runs: overlap.c. */
struct eng_chain {
    int n;
    int32_t token[ENG_DRAFT_NODES];
    float odds[ENG_DRAFT_NODES];                /* that it is right if those before it are, as its drafter sees it */
};

struct eng_seat {
    int number;
    int32_t *slot;                              /* [n_ctx + 1 + ENG_DRAFT_NODES] the path's */
    struct spec_tree tree;                      /* the draft of the pass under way */
    struct spec_verify verify;                  /* and what became of it */
    struct eng_chain chain;
    int n_held;                                 /* of the tokens that came last, and of the chain: as was guessed */
    int32_t *tail;                              /* [ENG_DRAFT_TAILS] slots of each node's branch */
    struct gr_state *grammar;                   /* along the walk; NULL: no grammars */
    int n_known[ENG_DRAFTERS_MOST];             /* tokens that each drafter has taken in */
    bool lags;                                  /* who was to draft was still taking in the text */
};

#define ENG_DRAFT_TAILS (ENG_DRAFT_NODES * (ENG_DRAFT_NODES + 1) / 2)

/* ---- sessions ---------------------------------------------------------------------------------- */

#define ENG_MARKS 6

struct eng_share { uint64_t user, served; int n_running; };     /* n_running 0: free */

struct eng_session {
    struct eng_engine *engine;
    bool open;
    enum eng_finish finish;
    struct eng_seat *seat;                      /* NULL: it waits, or does not run */
    int priority;
    uint64_t arrival;
    struct eng_share *share;                    /* of its user; while it runs */
    int32_t *token;                             /* [n_ctx + 1] */
    int n_token, n_prompt, n_most;              /* n_most: tokens it may reach */
    int n_kv;                                   /* the first n_kv have their keys and values */
    int n_reached;                              /* the most that n_kv has been */
    int n_cached;                               /* of the prompt, what was found and not computed */
    struct eng_path path;                       /* while it has a seat */
    struct spec_params sampling;                /* its bias is the array below */
    struct spec_bias *bias;                     /* [ENG_REQUEST_BIAS + n_stop] */
    const struct gr_grammar *grammar;           /* or NULL */
    struct gr_state *grammar_state;             /* of all tokens so far */
    int n_top;
    bool tells_prompt;
    int n_prompt_top, n_prompt_told;            /* told: the first so many tokens, and the very first never */
    const int32_t *told;                        /* [n_told] what it will say, for the oracle; the caller's */
    int n_told;
    int branch;                                 /* up to here its text was known to others; 0: none of it */
    int mark[ENG_MARKS], n_mark;                /* positions where the pass under way had better keep the state */
    struct eng_saved { int position, state; } saved[ENG_MARKS];         /* and where it does */
    int n_saved;
    int first_row, n_row, want;                 /* of the pass under way, without drafts; want -1: no logits */
};

/* A row of a prompt whose next token is told. */
struct eng_teller {
    struct eng_session *session;
    int at, want;                               /* the token; the row of logits */
    struct spec_known known;
};

/* What one thread needs to choose a token. */
struct eng_chooser {
    struct spec_sampler *sampler;
    struct gr_scratch *scratch;                 /* NULL: no grammars */
    uint32_t *mask;
};

/* expect.c: what the rows of a pass are expected to need. */
#define ENG_RECALL 8192                         /* tokens whose experts are remembered, at most */

struct eng_expect {
    int32_t *token;                             /* [n_chunk + n_draft_row] expected: of texts, then of drafts */
    int n, n_text;
    struct spec_need *need;                     /* [n_draft_row] of nodes, session by session */
    int32_t *expert;                            /* [n_draft_row * n_layer * n_used] theirs */
    bool *brought;                              /* [n_expert_total] texts need it; false between calls */
};

/* draft_draws.c: what the tokens of a draft were drawn from. */
struct eng_draws {
    struct spec_dist *law;                      /* [n_most] */
    float *weight;                              /* [n_most][n_vocab] theirs */
    int n, n_most, n_vocab;                     /* n_most 0: nobody draws */
};

struct eng_engine {
    struct eng_options opt;
    struct eng_split split;
    double disk_Bps;                            /* 0: not known */
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct gr_tokens *tokens;                   /* NULL: no grammars */
    struct kn_team *team;
    struct eng_kv kv;
    struct eng_pace pace;
    struct eng_session *session;                /* [n_session] */
    struct eng_session **active;                /* [n_active] those with a seat, who goes first first */
    int n_active;
    struct eng_seat *seat;                      /* [n_parallel] */
    struct eng_seat **free_seat;                /* [n_parallel - n_active] a stack */
    struct eng_share *share;                    /* [n_session] */
    int n_answered;                             /* who had a token due when the pass was laid out */
    uint64_t n_arrival;
    struct eng_drafter *drafter[ENG_DRAFTERS_MOST];     /* [n_drafter] */
    int n_drafter;
    struct eng_drafter *unloaded;               /* [ENG_DRAFTERS_MOST] stand where one was that is gone */
    struct spec_cost_model cost;                /* as foreseen; all 0: nobody asked */
    double due_mean;                            /* sequences due, lately */
    struct spec_control *control;               /* NULL: no drafters */
    struct eng_lengths *lengths[ENG_DRAFTERS_MOST];     /* of each drafter; NULL: it has none */
    struct spec_decision decision;              /* of the pass under way */
    struct spec_cut *cut;                       /* [n_parallel] */
    struct spec_outcome *outcome;               /* [n_parallel] in the order of due */
    int *due_seat;                              /* [n_parallel] their seats' numbers */
    uint64_t draft_ns; int n_draft_text;        /* of the pass under way: drafting, and what it took in for that */
    bool all_lag;                               /* it was to have drafts, and says nothing of what they are worth */
    struct eng_overlap *overlap;                  /* NULL: nobody drafts while a pass runs */
    int overlap_arm;                              /* of the controller: to draft ahead */
    int overlap_depth;                            /* guesses beside the pass under way; 0: none */
    struct off_stats store_then;                /* before the pass under way */
    struct moe_row *row;                        /* [n_chunk + n_draft_row] */
    int n_draft_row;                            /* rows of drafts in a pass, at most */
    int n_recall;                               /* tokens whose experts are remembered; 0: nothing looks ahead */
    struct eng_expect expect;
    struct eng_draws draws;
    struct moe_features features;               /* what drafters read of what the model thinks */
    struct eng_chooser *chooser;                /* [threads] */
    struct eng_session **due;                   /* [n_parallel] of the pass under way */
    int n_due;
    int *n_node, *n_part;                       /* [n_parallel] that its draft may have; from one drafter */
    double position_cost;                       /* what a row's position adds to it, of a row's own */
    double prompt_weight;                       /* rows of prompts in the pass under way, so counted */
    int *choice_status;                         /* [n_parallel] */
    struct spec_top *top;                       /* [n_parallel + n_draft_row + n_tell][ENG_TOP] by row of logits */
    struct eng_teller *teller;                  /* [n_teller] of the pass under way, at most n_tell */
    int n_teller;
    int32_t *stop;                              /* [n_stop] the tokens that end a text */
    int n_stop;
    struct moe_result result;                   /* of the pass under way */
    struct eng_stats stats;
    struct eng_drafts drafts;                   /* its counts */
};

/* ---- schedule.c: who advances ----------------------------------------------------------------------- */

/* Gives seats to those that wait, and plans the pass: sets n_row of all that have a seat, with KV for it. */
void eng_schedule(struct eng_engine *e);
void eng_schedule_enter(struct eng_session *s, uint64_t user);  /* it runs from now on */
void eng_schedule_leave(struct eng_session *s);                 /* it has ended: seat, KV and share go back */
void eng_schedule_served(struct eng_session *s, int n_row);

/* keep_state.c: which states are kept, of a model that has them. */
bool eng_has_states(const struct eng_engine *e);
void eng_state_find(struct eng_session *s, int n);      /* goes on from what is known of its first n tokens */
bool eng_state_waits(struct eng_session *s, struct eng_session *t);     /* for what t is about to compute */
void eng_state_mark_prompt(struct eng_session *s);
int  eng_state_copy_to(struct eng_session *s, int n_tok);       /* where a row's state is to be copied to; 0: nowhere */
void eng_state_saved(struct eng_session *s);            /* the pass has done so; its blocks are kept */
void eng_state_leave(struct eng_session *s);            /* eng_kv_leave(); of any model */

void eng_session_end(struct eng_session *s, enum eng_finish finish);    /* of one that runs */
bool eng_session_tells(const struct eng_session *s);    /* of its prompt, something is still to be told */

/* Says what is wrong with a request, whatever session gets it. */
int eng_request_check(const struct eng_engine *e, const struct eng_request *r);

/* Its sampling, with the ends that are to be ignored among bias[ENG_REQUEST_BIAS + n_stop]. */
void eng_request_sampling(const struct eng_engine *e, const struct eng_request *r, struct spec_params *out,
                          struct spec_bias *bias);

/* ---- draft.c: what may come next ----------------------------------------------------------------------- */

/* A drafter is one of several kinds behind this table.  Its KV, if it has any, lies in memory of its own at
 * the slots of the session's path: what is true of a slot is true there too. */
struct eng_drafter_kind {
    const char *name;
    bool free;                                  /* a draft takes no time worth naming */
    /* The session has got a seat; or loses it.  NULL: nothing is to be done. */
    void (*enter)(struct eng_drafter *d, struct eng_session *s);
    void (*leave)(struct eng_drafter *d, struct eng_session *s, bool ended);
    /* Tokens were committed, and the text goes on; n_kept of them were in the draft. */
    void (*commit)(struct eng_drafter *d, struct eng_session *s, int n_new, int n_kept);
    /* Adds at most n_node[i] nodes to the tree of s[i], about `depth` deep; KV for as many more is reserved. */
    int  (*draft)(struct eng_drafter *d, struct eng_session **s, const int *n_node, int n, int depth);
    /* Adds n_more[i] guesses to the chain of s[i], a pass of its own for each, until *stop, but one at least;
     * n_pass: how many passes.  The model's own pass runs meanwhile: it writes nothing but the chains, what is
     * its own, and the tokens behind the text.  NULL: it cannot. */
    int  (*overlap)(struct eng_drafter *d, struct eng_session **s, const int *n_more, int n, const atomic_bool *stop,
                  int *n_pass);
    void (*close)(struct eng_drafter *d);
    int  (*load)(struct eng_drafter *d);        /* NULL: nothing is to be read */
    struct eng_extra (*need)(const struct eng_drafter *d);      /* beside what open took; NULL: nothing */
};

struct eng_drafter {
    const struct eng_drafter_kind *kind;
    const char *name;
    struct eng_engine *engine;
    int number;                                 /* its bit in a tree's source */
    struct kn_team *team;                       /* who computes, and chooses: the engine's, or overlap.c's */
    struct eng_chooser *chooser;                /* [threads] */
    bool can_draw;                              /* from a distribution of its own, where that is asked for */
    bool broken;                                /* it has failed once */
    int n_text;                                 /* tokens of texts that it has taken in for its last draft */
};

/* Opens what e->opt.draft names, so far that its memory is known; eng_drafters_load takes the memory. */
int  eng_drafters_open(struct eng_engine *e);
int  eng_drafters_load(struct eng_engine *e);
void eng_drafters_close(struct eng_engine *e);
struct eng_extra eng_drafter_need(const struct eng_drafter *d);
struct eng_extra eng_drafters_need(const struct eng_engine *e);

void eng_draft_break(struct eng_drafter *d, int error);       /* it has failed */

/* Drafts for those of the pass that are due: their seats' trees. */
void eng_draft(struct eng_engine *e, int n_beside);
void eng_draft_look(const struct eng_engine *e, struct off_stats *out);     /* the store, if anyone learns */
void eng_draft_learn(struct eng_engine *e, int n_row, int n_beside, uint64_t pass_ns);
void eng_draft_enter(struct eng_session *s);
void eng_draft_leave(struct eng_session *s, bool ended);
void eng_draft_commit(struct eng_session *s, int n_new, int n_kept);

/* draft_price.c: tells the controller what passes and drafts are expected to take here; nothing is loaded yet. */
int  eng_draft_foresee(struct eng_engine *e);
/* Bytes that drafters may give back to experts while all runs. */
size_t eng_draft_loan(const struct eng_engine *e);
/* After a step: a drafter that was not worth its memory for long goes, and says why. */
void eng_draft_judge(struct eng_engine *e);
void eng_draft_unload(struct eng_engine *e, int drafter);

int  eng_draft_text_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_option *w);
int  eng_draft_model_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_option *w);
bool eng_draft_is_model(const struct eng_drafter *d);
const struct moe_model *eng_draft_model_of(const struct eng_drafter *d);
int  eng_draft_head_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_option *w);

/* draft_tree.c: drafts of a network, all sessions' together.  Open before its memory is known; a context for it is
 * opened with these options at least; then for each draft: begin, add the sessions, grow.  A head's row i takes token
 * i + 1 and what is thought of token i, so it lies at position i; anyone else's lies at its token's own. */
struct eng_trees;
int  eng_trees_open(struct eng_trees **out, struct eng_drafter *d, const struct moe_model *m, enum eng_tree tree,
                    bool is_head);
void eng_trees_close(struct eng_trees *t);
struct moe_context_options eng_trees_context(const struct eng_trees *t, int n_slot);   /* slots behind are guesses' */
void eng_trees_begin(struct eng_trees *t);
void eng_trees_add(struct eng_trees *t, struct eng_session *s, int n_node, int depth);      /* 0 of either: no draft */
int  eng_trees_grow(struct eng_trees *t, struct moe_context *c);

/* expect.c: experts of what will be computed.  Begin expects the texts' own rows; drafters add what they draft and
 * ask, a pass at a time; settle expects what is left.  Needs puts into e->cut what nodes would have to wait for; false:
 * nothing is known of that. */
int  eng_expect_open(struct eng_engine *e);
void eng_expect_close(struct eng_engine *e);
void eng_expect_begin(struct eng_engine *e);
void eng_expect_add(struct eng_engine *e, int32_t token);
void eng_expect_ask(struct eng_engine *e);
bool eng_expect_needs(struct eng_engine *e);
void eng_expect_settle(struct eng_engine *e);

/* draft_lengths.c: a network foresees how much of a drafter's next drafts is kept; those of the pass that are due. */
int  eng_lengths_open(struct eng_engine *e, int drafter, const char *path);
int  eng_lengths_read(struct spec_lengths *out, float **weights, const char *path);    /* weights: to be freed, always */
void eng_lengths_close(struct eng_engine *e);
void eng_lengths_tell(struct eng_engine *e);

/* draft_draws.c: whether the session's drafts are drawn; a law to be filled, NULL: there is no more room; filling it
 * with what logits make of the text so far (any thread); and the drafter's n-th draw of a draft, from it. */
int  eng_draws_open(struct eng_engine *e);
void eng_draws_close(struct eng_engine *e);
void eng_draws_clear(struct eng_engine *e);     /* another pass */
bool eng_draws(const struct eng_session *s);
struct spec_dist *eng_draws_take(struct eng_engine *e);
int  eng_draws_keep(struct spec_dist *law, struct spec_sampler *sampler, const struct eng_session *s, int n_history,
                    const float *logits);
struct spec_choice eng_draws_token(const struct eng_drafter *d, const struct eng_session *s,
                                   const struct spec_dist *law, int n);

/* draft_known.c: what a network has taken in of a text; tokens, from the first on. */
int *eng_draft_known(const struct eng_drafter *d, struct eng_session *s);
int  eng_draft_first_unknown(const struct eng_drafter *d, struct eng_session *s, int n_text);
/* Blocks that end at or before n are known: to everyone who has them in his path. */
void eng_draft_mark(struct eng_drafter *d, struct eng_session *s, int from, int n);
/* How many tokens a pass may take in next: a block that may be shared is written whole, in one pass, by one
 * session.  0: there is no room. */
int  eng_draft_span(const struct eng_session *s, int at, int n_text, int room);

/* ---- overlap.c: drafting goes on while a pass verifies ------------------------------------------------------ */

/* The first drafter that can; refuses, if drafting ahead is wished for and none can. */
int  eng_overlap_open(struct eng_engine *e);
void eng_overlap_close(struct eng_engine *e);
const struct eng_drafter *eng_overlap_drafter(const struct eng_engine *e);        /* NULL: none */

static inline void eng_chain_add(struct eng_chain *c, int32_t token, float odds)
{
    c->token[c->n] = token;
    c->odds[c->n++] = odds;
}

/* A pass: what chains hold becomes the draft of those that are due, at most n_node[i] nodes; they grow while
 * the pass runs, by `depth` guesses beyond what it verifies. */
void eng_overlap_lay(struct eng_engine *e, int depth);
void eng_overlap_start(struct eng_engine *e);
void eng_overlap_wait(struct eng_engine *e);
/* Tokens were committed: what still holds stays. */
void eng_overlap_commit(struct eng_session *s, int n_new);
void eng_overlap_drop(struct eng_session *s);

/* What it came to in the pass under way: passes of the drafter, and how long it was at them. */
struct eng_overlapped { int n_pass; uint64_t took_ns, waited_ns; };
const struct eng_overlapped *eng_overlap_last(const struct eng_engine *e);

/* How many guesses a pass leaves time for, from those that were measured. */
int  eng_overlap_depth(const struct eng_engine *e);
void eng_overlap_learn(struct eng_engine *e, uint64_t pass_ns);

#endif
