/* engine/internal.h - state and functions that the engine's own files share: memory, schedule, pass, sessions.
 *
 * Opening, in order:
 *     open.c                    model file, vocabulary, model, seats; closes all of them
 *     pass_rows.c               the rows that a pass may have
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
#define ENG_DECODE_SIZES  56 /* sizes of decoding, up to 511 rows: eight in each power of two */

struct eng_cost {
    double ns;
    int n_pass;
    unsigned seen;
}; /* ns: learnt from n_pass passes, counted up to 4; seen: n_both at the last of them */

struct eng_prefill_share {
    double max_prefill_slowdown;              /* time of a decode pass with prefill rows over one without */
    bool limits_mean;                         /* long passes are made up for */
    double drafted;                           /* drafted rows beside each due row: mean of the last passes */
    struct eng_cost base[ENG_DECODE_SIZES];   /* ns of a pass without prefill, by size: due and drafted rows */
    struct eng_cost row[ENG_PREFILL_SIZES];   /* ns that one prefill row adds to a decode pass, by prefill size */
    struct eng_cost alone[ENG_PREFILL_SIZES]; /* ns of one prefill row in a pass without due rows */
    unsigned n_both, looked; /* passes with due and prefill rows; n_both at the last pass with due rows alone */
    double room_ns;          /* time that prefill may add to the pass that was planned last */
    bool is_long;            /* that pass has more rows than room_ns allows */
    double owed_ns;          /* time that such passes have added beyond their room, less the room of passes since */
};

/* n_due counts the sessions that have one token left to compute when the pass is planned: each has one due row. Prefill
 * rows are the other rows of the sequences, without drafts and without the last row of a prompt. Numbers of prefill
 * rows are in units of a row at position 0: the caller counts a row at a high position as more than one
 * (position_cost). */
void eng_prefill_share_init(struct eng_prefill_share *p, double max_slowdown, bool limits_mean);
/* Plans a pass: returns its number of prefill rows, at most `most`, with n_due due rows while n_read sessions are in
 * prefill. 0: it should have none, to measure the time of n_due rows alone, or since long passes have delayed them. */
int eng_prefill_share_rows(struct eng_prefill_share *p, int n_due, int n_read, int most);
/* Learns costs from the measured time of the planned pass with n_due due, n_drafted drafted and n_prompt prefill rows. */
void eng_prefill_share_learn(struct eng_prefill_share *p, int n_due, int n_drafted, int n_prompt, double pass_ns);

/* ---- seats: buffers of a session while it has rows in passes ------------------------------------------- */

struct eng_seat {
    int number;
    int32_t *slot;             /* [n_ctx + 1 + ENG_DRAFT_NODES, in whole blocks] KV slots of the path */
    struct spec_verify verify; /* walk over the session's draft after the current pass */
    int32_t *tail;             /* [ENG_DRAFT_TAILS] of each draft node: slots from the root's child to the node */
    struct gr_state *grammar;  /* state at the node that `verify` has reached; NULL: engine without grammars */
};

#define ENG_DRAFT_TAILS (ENG_DRAFT_NODES * (ENG_DRAFT_NODES + 1) / 2)

/* ---- sessions ---------------------------------------------------------------------------------- */

#define ENG_MARKS 6 /* most positions of a session at which one pass copies the recurrent state */

struct eng_user_share {
    uint64_t user, served;
    int n_running;
}; /* served: rows computed for the user; n_running: its running sessions; 0: the entry is free */

struct eng_session {
    struct eng_engine *engine;
    bool open;
    enum eng_finish finish;
    struct eng_seat *seat; /* NULL: it waits for a seat, or does not run */
    int priority;
    uint64_t arrival;
    struct eng_user_share *share;     /* of the session's user; NULL unless it runs */
    struct eng_seq seq;               /* tokens, KV path, draft; seq.sampling points to `sampling` below */
    int n_reached;                    /* highest seq.n_kv since the session started */
    int n_cached;                     /* prompt tokens taken from the prefix cache */
    struct spec_params sampling;      /* sampling.bias points to `bias` */
    struct spec_bias *bias;           /* [ENG_REQUEST_BIAS + n_stop] the request's, then ignored stop tokens */
    const struct gr_grammar *grammar; /* or NULL */
    struct gr_state *grammar_state;   /* after all tokens so far */
    int n_top;
    bool wants_prompt_logprobs;
    int n_prompt_top, n_prompt_logprob; /* n_prompt_logprob: prompt tokens done; starts at 1, as the first has none */
    int n_prefix_seen;                  /* tokens in cached whole blocks that eng_reuse_find() matched last */
    int keep_at[ENG_MARKS], n_keep_at;  /* positions where the current pass should keep the state */
    struct eng_saved {
        int position, state;
    } saved[ENG_MARKS]; /* [n_saved] kept states that the current pass writes, with their positions */
    int n_saved;
    int first_row, want; /* in the current pass: its first row; row of logits of its last token, -1: no token due */
    void *owner;
    int choice; /* of the request */
};

/* A prompt token to report the logprob of, from the logits of the prefill row before it. */
struct eng_prompt_logprob {
    struct eng_session *session;
    int at, want; /* at: the token's position; want: the row of logits */
    struct spec_given_token known;
};

/* Buffers of one thread to compute a grammar's token mask. */
struct eng_chooser {
    struct gr_scratch *scratch; /* NULL: engine without grammars */
    uint32_t *mask;
};

/* ---- the engine, in parts: the file beside each writes it (sessions: session.c, step.c, reuse.c too) ----------- */

struct eng_assets { /* open.c; constant once open */
    struct eng_options opt;
    const struct kn_device *device;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct gr_tokens *tokens; /* NULL: no grammars */
    struct kn_team *team;
    struct spec_sampler **sampler; /* [threads] */
    int32_t *stop;                 /* [n_stop] the tokens that end an answer */
    int n_stop;
    int n_draft_row, n_window_row; /* draft rows in a pass, at most; of them, those for windows of lookahead decoding */
    double position_cost;          /* a row at position p costs as much as 1 + position_cost * p rows at position 0 */
};

struct eng_memory { /* open.c; when drafting unloads a drafter, it changes the split: eng_split_move() */
    struct eng_split split;
    double disk_Bps; /* bytes per second; 0: not measured */
};

struct eng_schedule {            /* schedule.c; prefill_share is written by prefill_share.c */
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
    struct eng_session **due; /* [n_due] sessions with a token due: it is chosen after the pass */
    int n_due;
    struct eng_prompt_logprob *prompt_logprob; /* [n_prompt_logprob], at most n_prompt_logprob_row */
    int n_prompt_logprob;
    double prompt_weight;        /* prefill rows of the pass, weighted by position_cost */
    int n_drafted;               /* drafted rows */
    int *choice_status;          /* [n_due] 0, or the error of choosing due[i]'s token */
    struct spec_top *top;        /* [rows of logits][ENG_TOP] the most likely tokens */
    struct eng_chooser *chooser; /* [threads] */
    struct moe_result result;
};

struct eng_engine {
    struct eng_assets assets;
    struct eng_memory memory;
    struct eng_kv kv; /* kv/ */
    struct eng_schedule schedule;
    struct eng_pass pass;
    struct eng_drafting *drafting;    /* draft/ */
    struct eng_stats stats;           /* of step.c, schedule.c, session.c, reuse.c; eng_stats_get() adds the others */
    atomic_uint_fast64_t advanced_ns; /* written by passes of all contexts, read by eng_advanced_ns() */
};

static inline bool eng_session_is_running(const struct eng_session *s) { return s->open && s->finish == ENG_RUNNING; }
static inline bool eng_session_is_waiting(const struct eng_session *s) { return eng_session_is_running(s) && !s->seat; }
static inline bool eng_session_owes_prompt_logprobs(const struct eng_session *s)
{
    return s->wants_prompt_logprobs && s->n_prompt_logprob < s->seq.n_prompt;
}

/* ---- schedule.c: seats and rows ----------------------------------------------------------------------- */

/* Gives seats to waiting sessions and plans the pass: sets seq.n_row of all sessions with a seat, and reserves KV for
 * these rows. */
void eng_schedule(struct eng_engine *e);
void eng_schedule_enter(struct eng_session *s, uint64_t user); /* the session starts to run */
void eng_schedule_leave(struct eng_session *s); /* the session has ended: returns its seat, KV and user share */
void eng_schedule_served(struct eng_session *s, int n_row); /* adds computed rows to its user's share */

/* reuse.c: kept states of recurrent layers, and the KV blocks that a session returns. */
bool eng_has_states(const struct eng_engine *e);       /* the model has recurrent layers */
void eng_reuse_find(struct eng_session *s);            /* continues from cached KV and state, if its tokens match */
int eng_reuse_n_sharable(const struct eng_session *s); /* most tokens that cached whole blocks could provide */
/* Whether s should get no rows in this pass, since t computes KV, or the state behind it, that s can reuse. May mark a
 * position where t keeps its state. */
bool eng_reuse_waits(struct eng_session *s, struct eng_session *t);
/* Marks the positions of a prompt where its passes should keep the state. */
void eng_reuse_mark_prompt(struct eng_session *s);
/* If the state after the first n_tok tokens is to be kept: takes a kept state and returns its number in the context, to
 * which the row copies it. 0: none. */
int eng_reuse_state_target(struct eng_session *s, int n_tok);
void eng_reuse_states_saved(struct eng_session *s); /* after the pass: joins each copied state to its kept block */
void eng_reuse_leave(struct eng_session *s);        /* returns its KV (eng_kv_leave()), and keeps its last state */

void eng_session_end(struct eng_session *s, enum eng_finish finish); /* s must be running */

/* Fails with a message if no session of the engine could run the request. */
int eng_request_check(const struct eng_engine *e, const struct eng_request *r);

/* The request's sampling. Its bias, and -inf for the stop tokens if ignore_eos is set, are written to
 * bias[ENG_REQUEST_BIAS + n_stop]. */
void eng_request_sampling(const struct eng_engine *e, const struct eng_request *r, struct spec_params *out,
                          struct spec_bias *bias);

/* ---- open.c, pass_rows.c --------------------------------------------------------------------------------- */

struct moe_context_options eng_context_options(const struct eng_engine *e);

/* Rows of a pass where the user set no number. */
enum eng_rows { ENG_AFFORDABLE_ROWS, ENG_FEWEST_ROWS };

/* Sets the rows of a pass for drafts (n_draft_row, n_window_row) and for prompts (opt.n_chunk), and the share of prompts. */
void eng_choose_rows(struct eng_engine *e, enum eng_rows rows);

/* Whether these are more rows than ENG_FEWEST_ROWS. opt: as the user set them. */
bool eng_has_more_rows(const struct eng_engine *e, const struct eng_options *opt);

/* Warns if windows of lookahead decoding have too few rows. */
void eng_report_rows(const struct eng_engine *e);

#endif
