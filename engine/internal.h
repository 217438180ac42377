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
#include "engine/draft/draft.h"
#include "engine/kv/kv.h"
#include "engine/text/grammar/grammar.h"
#include "engine/plan/plan.h"

/* ---- pace.c: how much of prompts a pass takes beside tokens that people wait for ------------------ */

#define ENG_PREFILL_SIZES 14                       /* powers of two */
#define ENG_PREFILL_DUE   128

struct eng_cost { double ns; int n_pass; unsigned seen; };  /* from so many passes, a few at most; when last */

struct eng_prefill_share {
    double max_prefill_slowdown;                             /* such a pass may take this many times one without */
    struct eng_cost base[ENG_PREFILL_DUE];         /* a pass without prompts, by rows */
    struct eng_cost row[ENG_PREFILL_SIZES];        /* what one row of a prompt adds, by how many there are */
    struct eng_cost alone[ENG_PREFILL_SIZES];      /* and what it takes in a pass that nobody waits for */
    unsigned n_both, looked;                    /* passes with both; when one last went without prompts */
};

/* Rows count here as rows at the beginning of a text; behind much of it one is as dear as several. */
void eng_prefill_share_init(struct eng_prefill_share *p, double max_slowdown);
/* Rows of the prompts of n_read in a pass with n_due others; there are `most` of them, or there is room for so many.
 * 0: this pass is to show what those others take alone. */
int  eng_prefill_share_rows(const struct eng_prefill_share *p, int n_due, int n_read, int most);
void eng_prefill_share_learn(struct eng_prefill_share *p, int n_due, int n_prompt, double pass_ns);

/* ---- seats: what a session has while it advances ------------------------------------------------------ */

struct eng_seat {
    int number;
    int32_t *slot;                              /* [n_ctx + 1 + ENG_DRAFT_NODES] the path's */
    struct spec_verify verify;                  /* of the pass under way */
    int32_t *tail;                              /* [ENG_DRAFT_TAILS] slots of each node's branch */
    struct gr_state *grammar;                   /* along the walk; NULL: no grammars */
};

#define ENG_DRAFT_TAILS (ENG_DRAFT_NODES * (ENG_DRAFT_NODES + 1) / 2)

/* ---- sessions ---------------------------------------------------------------------------------- */

#define ENG_MARKS 6

struct eng_user_share { uint64_t user, served; int n_running; };     /* n_running 0: free */

struct eng_session {
    struct eng_engine *engine;
    bool open;
    enum eng_finish finish;
    struct eng_seat *seat;                      /* NULL: it waits, or does not run */
    int priority;
    uint64_t arrival;
    struct eng_user_share *share;                    /* of its user; while it runs */
    struct eng_seq seq;                         /* tokens, KV path, draft: its sampling is the struct below */
    int n_reached;                              /* the most that n_kv has been */
    int n_cached;                               /* of the prompt, what was found and not computed */
    struct spec_params sampling;                /* its bias is the array below */
    struct spec_bias *bias;                     /* [ENG_REQUEST_BIAS + n_stop] */
    const struct gr_grammar *grammar;           /* or NULL */
    struct gr_state *grammar_state;             /* of all tokens so far */
    int n_top;
    bool wants_prompt_logprobs;
    int n_prompt_top, n_prompt_logprob;            /* told: the first so many tokens, and the very first never */
    int n_prefix_seen;                                 /* up to here its text was known to others; 0: none of it */
    int keep_at[ENG_MARKS], n_keep_at;                /* positions where the pass under way had better keep the state */
    struct eng_saved { int position, state; } saved[ENG_MARKS];         /* and where it does */
    int n_saved;
    int first_row, want;                        /* of the pass under way; want -1: no logits */
    void *owner; int choice;                    /* of the request */
};

/* A row of a prompt whose next token is told. */
struct eng_prompt_logprob {
    struct eng_session *session;
    int at, want;                               /* the token; the row of logits */
    struct spec_given_token known;
};

/* What one thread needs to hold a token to a grammar. */
struct eng_chooser {
    struct gr_scratch *scratch;                 /* NULL: no grammars */
    uint32_t *mask;
};

/* ---- the engine, in parts: each is written by the file that is named, and read by all ------------------ */

struct eng_assets {                             /* open.c; constant once open */
    struct eng_options opt;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct gr_tokens *tokens;                   /* NULL: no grammars */
    struct kn_team *team;
    struct spec_sampler **sampler;              /* [threads] */
    int32_t *stop;                              /* [n_stop] the tokens that end an answer */
    int n_stop;
    int n_draft_row;                            /* rows of drafts in a pass, at most */
    double position_cost;                       /* cost that a row's position adds to it, in rows at position 0 */
};

struct eng_memory {                             /* open.c; a drafter that is unloaded returns its part (eng_split_return) */
    struct eng_split split;
    double disk_Bps;                            /* 0: not known */
};

struct eng_schedule {                           /* schedule.c; prefill_share.c its share */
    struct eng_session *session;                /* [n_session] */
    struct eng_session **active;                /* [n_active] sessions with a seat, in schedule order */
    int n_active;
    struct eng_seat *seat;                      /* [n_parallel] */
    struct eng_seat **free_seat;                /* [n_parallel - n_active] a stack */
    struct eng_user_share *user_share;          /* [n_session] */
    uint64_t n_arrival;
    int n_due_planned;                          /* sessions with a token due when the pass was planned */
    struct eng_prefill_share prefill_share;
};

struct eng_pass {                               /* step.c */
    struct moe_row *row;                        /* [n_chunk + n_draft_row] */
    struct eng_session **due;                   /* [n_due] of n_parallel: a token is chosen for each after the pass */
    int n_due;
    struct eng_prompt_logprob *prompt_logprob;  /* [n_prompt_logprob] of n_prompt_logprob_row */
    int n_prompt_logprob;
    double prompt_weight;                       /* rows of prompts, weighted by position_cost */
    int *choice_status;                         /* [n_parallel] */
    struct spec_top *top;                       /* [n_parallel + n_draft_row + n_prompt_logprob_row][ENG_TOP] by row of logits */
    struct eng_chooser *chooser;                /* [threads] */
    struct moe_result result;
};

struct eng_engine {
    struct eng_assets assets;
    struct eng_memory memory;
    struct eng_kv kv;                           /* kv/ */
    struct eng_schedule schedule;
    struct eng_pass pass;
    struct eng_drafting *drafting;              /* draft/ */
    struct eng_stats stats;                     /* counters of step.c, schedule.c and session.c; report.c adds the rest */
};

/* ---- schedule.c: who advances ----------------------------------------------------------------------- */

/* Gives seats to those that wait, and plans the pass: sets n_row of all that have a seat, with KV for it. */
void eng_schedule(struct eng_engine *e);
void eng_schedule_enter(struct eng_session *s, uint64_t user);  /* it runs from now on */
void eng_schedule_leave(struct eng_session *s);                 /* it has ended: seat, KV and share go back */
void eng_schedule_served(struct eng_session *s, int n_row);

/* keep_state.c: which states are kept, of a model that has them. */
bool eng_has_states(const struct eng_engine *e);
void eng_reuse_state(struct eng_session *s, int n);      /* goes on from what is known of its first n tokens */
bool eng_reuse_waits_for_state(struct eng_session *s, struct eng_session *t);     /* for what t is about to compute */
void eng_reuse_mark_prompt(struct eng_session *s);
int  eng_reuse_state_target(struct eng_session *s, int n_tok);       /* where a row's state is to be copied to; 0: nowhere */
void eng_reuse_states_saved(struct eng_session *s);            /* the pass has done so; its blocks are kept */
void eng_reuse_leave(struct eng_session *s);            /* eng_kv_leave(); of any model */

void eng_session_end(struct eng_session *s, enum eng_finish finish);    /* of one that runs */
bool eng_session_owes_prompt_logprobs(const struct eng_session *s);    /* of its prompt, something is still to be told */

/* Says what is wrong with a request, whatever session gets it. */
int eng_request_check(const struct eng_engine *e, const struct eng_request *r);

/* Its sampling, with the ends that are to be ignored among bias[ENG_REQUEST_BIAS + n_stop]. */
void eng_request_sampling(const struct eng_engine *e, const struct eng_request *r, struct spec_params *out,
                          struct spec_bias *bias);

#endif
