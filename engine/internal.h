/* engine/internal.h - state and functions that the engine's own files share: memory, schedule, pass, sessions.
 *
 * Opening, in order:
 *     open.c                    model file, vocabulary, model, seats; closes all of them
 *     plan/                     splits the memory budget, or refuses it; forecasts the speed
 *     forecast.c                measures the machine's rates for the forecast
 *
 * Each step:
 *     session.c                 a request becomes a session that waits for a seat
 *     schedule.c                gives seats to sessions, and rows of the pass to each
 *     prefill_share.c           limits the prefill rows of a pass that decodes too
 *     kv/                       KV blocks, shared by sequences with the same prefix; kept states
 *     reuse.c                   which states of recurrent layers are kept, and how a sequence continues from one
 *     draft/                    drafts; draft/draft.h lists its files
 *     step.c                    lays out rows, runs the forward pass, samples, commits
 *     report.c                  counters
 *
 * dsi.c verifies one sequence with several workers instead. Commands (cli/), templates and grammars (text/), the
 * server (serve/), the API (api/) and batches (batch/) are built on engine.h. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/draft/draft.h"
#include "engine/kv/kv.h"
#include "engine/text/grammar/grammar.h"
#include "engine/plan/plan.h"

/* ---- prefill_share.c: prefill rows in a pass that also decodes ---------------------------------------- */

#define ENG_PREFILL_SIZES 14 /* sizes of prefill, by powers of two */
#define ENG_PREFILL_DUE   128

struct eng_cost {
    double ns;
    int n_pass;
    unsigned seen;
}; /* from n_pass passes, at most 4; seen: n_both at the last */

struct eng_prefill_share {
    double max_prefill_slowdown;              /* of a decode pass by its prefill rows */
    struct eng_cost base[ENG_PREFILL_DUE];    /* ns of a pass without prefill, by due rows */
    struct eng_cost row[ENG_PREFILL_SIZES];   /* ns that one prefill row adds to a decode pass, by prefill size */
    struct eng_cost alone[ENG_PREFILL_SIZES]; /* ns of one prefill row in a pass without due rows */
    unsigned n_both, looked;                  /* mixed passes; n_both at the last pure decode pass */
};

/* Costs are per row at position 0; a row at a high position costs more, and the caller weights it (position_cost).
 * A row is due if its session's next token is sampled after the pass. */
void eng_prefill_share_init(struct eng_prefill_share *p, double max_slowdown);
/* The number of prefill rows for a pass with n_due due rows, of n_read sessions in prefill; at most `most`. 0: the
 * pass measures the time of n_due rows alone. */
int eng_prefill_share_rows(const struct eng_prefill_share *p, int n_due, int n_read, int most);
void eng_prefill_share_learn(struct eng_prefill_share *p, int n_due, int n_prompt, double pass_ns);

/* ---- seats: buffers of a session while it has rows in passes ------------------------------------------- */

struct eng_seat {
    int number;
    int32_t *slot;             /* [n_ctx + 1 + ENG_DRAFT_NODES] KV slots of the path */
    struct spec_verify verify; /* verification of the pass under way */
    int32_t *tail;             /* [ENG_DRAFT_TAILS] KV slots of each node's branch */
    struct gr_state *grammar;  /* at the node that verification has reached; NULL: no grammars */
};

#define ENG_DRAFT_TAILS (ENG_DRAFT_NODES * (ENG_DRAFT_NODES + 1) / 2)

/* ---- sessions ---------------------------------------------------------------------------------- */

#define ENG_MARKS 6

struct eng_user_share {
    uint64_t user, served;
    int n_running;
}; /* n_running: its sessions; 0: the entry is free */

struct eng_session {
    struct eng_engine *engine;
    bool open;
    enum eng_finish finish;
    struct eng_seat *seat; /* NULL: it waits for a seat, or does not run */
    int priority;
    uint64_t arrival;
    struct eng_user_share *share;     /* of its user; NULL unless it runs */
    struct eng_seq seq;               /* tokens, KV path, draft; its sampling points to the struct below */
    int n_reached;                    /* highest n_kv since it started */
    int n_cached;                     /* prompt tokens taken from the prefix cache */
    struct spec_params sampling;      /* its bias points to the array below */
    struct spec_bias *bias;           /* [ENG_REQUEST_BIAS + n_stop] */
    const struct gr_grammar *grammar; /* or NULL */
    struct gr_state *grammar_state;   /* after all tokens so far */
    int n_top;
    bool wants_prompt_logprobs;
    int n_prompt_top, n_prompt_logprob; /* n_prompt_logprob: tokens reported; the first is never */
    int n_prefix_seen;                  /* tokens of whole blocks that were kept when it got its seat */
    int keep_at[ENG_MARKS], n_keep_at;  /* the pass under way should keep the state here */
    struct eng_saved {
        int position, state;
    } saved[ENG_MARKS]; /* states that the pass copies */
    int n_saved;
    int first_row, want; /* in the pass: first row; row of logits, -1: none */
    void *owner;
    int choice; /* of the request */
};

/* A prefill row; its logits give the logprob of the prompt's next token. */
struct eng_prompt_logprob {
    struct eng_session *session;
    int at, want; /* at: position of that token; want: row of logits */
    struct spec_given_token known;
};

/* Buffers of one thread to compute a grammar's token mask. */
struct eng_chooser {
    struct gr_scratch *scratch; /* NULL: no grammars */
    uint32_t *mask;
};

/* ---- the engine, in parts: each is written by the named file only, and read by all ----------------------- */

struct eng_assets { /* open.c; constant once open */
    struct eng_options opt;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct gr_tokens *tokens; /* NULL: no grammars */
    struct kn_team *team;
    struct spec_sampler **sampler; /* [threads] */
    int32_t *stop;                 /* [n_stop] the tokens that end an answer */
    int n_stop;
    int n_draft_row;      /* draft rows in a pass, at most */
    double position_cost; /* cost that a row's position adds to it, in rows at position 0 */
};

struct eng_memory { /* open.c; a drafter that is unloaded returns its part (eng_split_return) */
    struct eng_split split;
    double disk_Bps; /* bytes per second; 0: not measured */
};

struct eng_schedule {            /* schedule.c; prefill_share.c its share */
    struct eng_session *session; /* [n_session] */
    struct eng_session **active; /* [n_active] sessions with a seat, in schedule order */
    int n_active;
    struct eng_seat *seat;             /* [n_parallel] */
    struct eng_seat **free_seat;       /* [n_parallel - n_active] a stack */
    struct eng_user_share *user_share; /* [n_session] */
    uint64_t n_arrival;
    int n_due_planned; /* sessions with a token due when the pass was planned */
    struct eng_prefill_share prefill_share;
};

struct eng_pass {             /* step.c */
    struct moe_row *row;      /* [n_chunk + n_draft_row] */
    struct eng_session **due; /* [n_due] of n_parallel: a token is chosen for each after the pass */
    int n_due;
    struct eng_prompt_logprob *prompt_logprob; /* [n_prompt_logprob] of n_prompt_logprob_row */
    int n_prompt_logprob;
    double prompt_weight;        /* rows of prompts, weighted by position_cost */
    int *choice_status;          /* [n_parallel] */
    struct spec_top *top;        /* [n_parallel + n_draft_row + n_prompt_logprob_row][ENG_TOP] by row of logits */
    struct eng_chooser *chooser; /* [threads] */
    struct moe_result result;
};

struct eng_engine {
    struct eng_assets assets;
    struct eng_memory memory;
    struct eng_kv kv; /* kv/ */
    struct eng_schedule schedule;
    struct eng_pass pass;
    struct eng_drafting *drafting; /* draft/ */
    struct eng_stats stats;        /* counters of step.c, schedule.c and session.c; report.c adds the rest */
};

static inline bool eng_session_is_running(const struct eng_session *s) { return s->open && s->finish == ENG_RUNNING; }
static inline bool eng_session_is_waiting(const struct eng_session *s) { return eng_session_is_running(s) && !s->seat; }
static inline bool eng_session_owes_prompt_logprobs(const struct eng_session *s)
{
    return s->wants_prompt_logprobs && s->n_prompt_logprob < s->seq.n_prompt;
}

/* ---- schedule.c: seats and rows ----------------------------------------------------------------------- */

/* Gives seats to waiting sessions and plans the pass: sets n_row of all sessions with a seat, and reserves KV for
 * it. */
void eng_schedule(struct eng_engine *e);
void eng_schedule_enter(struct eng_session *s, uint64_t user); /* the session starts to run */
void eng_schedule_leave(struct eng_session *s);                /* it has ended: returns its seat, KV and user share */
void eng_schedule_served(struct eng_session *s, int n_row);

/* reuse.c: kept states of recurrent layers, and the KV blocks that a session returns. */
bool eng_has_states(const struct eng_engine *e);
void eng_reuse_find(struct eng_session *s);            /* takes over cached KV and state for the tokens to come */
int eng_reuse_n_sharable(const struct eng_session *s); /* tokens of the prefix that may be shared in whole blocks */
bool eng_reuse_waits(struct eng_session *s, struct eng_session *t); /* t computes the block that s needs next */
void eng_reuse_mark_prompt(struct eng_session *s);
int eng_reuse_state_target(struct eng_session *s, int n_tok); /* 0: the row's state is not copied */
void eng_reuse_states_saved(struct eng_session *s); /* after the pass: copied states are kept, with their blocks */
void eng_reuse_leave(struct eng_session *s);        /* eng_kv_leave(), and keeps the last state; for any model */

void eng_session_end(struct eng_session *s, enum eng_finish finish); /* s must be running */

/* Fails with a message if the engine cannot run the request, whatever its session. */
int eng_request_check(const struct eng_engine *e, const struct eng_request *r);

/* The request's sampling. Its bias, and -inf for the stop tokens if ignore_eos is set, are written to
 * bias[ENG_REQUEST_BIAS + n_stop]. */
void eng_request_sampling(const struct eng_engine *e, const struct eng_request *r, struct spec_params *out,
                          struct spec_bias *bias);

#endif
