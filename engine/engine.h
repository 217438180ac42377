/* engine/engine.h - requests to tokens: a model opened for use, and the sessions that share its passes.
 *
 *     eng_open -> eng_session_open* -> [ eng_session_start, eng_step until it finishes ]* -> close
 *
 * A session is one sequence of tokens.  Starting one hands over the *whole* sequence so far; keys and
 * values that are still there from any session of the same salt are used again, the rest is computed in
 * chunks beside the other sessions' tokens.  More sessions may be open than advance at once (n_parallel):
 * the others wait, and who is next goes by priority, by what the user has had, by age; when KV memory runs
 * out the last of that order waits as well, and is computed again later.  A step is one forward pass over
 * rows of the sessions that advance, then the choices for those that have tokens due.  What a session
 * yields depends on its tokens, its sampling and its seed, and on nothing else: not on company, chunks,
 * waiting, threads or instruction set.
 *
 * One thread calls all of this.  Everything is taken when it opens; a step allocates nothing. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/draft/option.h"
#include "engine/draft/report.h"
#include "engine/text/text.h"
#include "moe/moe.h"
#include "speculative/control.h"

#define ENG_VERSION "0.1.0"

struct eng_engine;
struct gr_tokens;                               /* engine/text/grammar/grammar.h */
struct eng_session;

struct eng_options {
    const char *model;
    enum kn_isa isa;                            /* at most */
    enum kn_kv kv;
    int n_thread;                               /* 0: one per usable CPU */
    int n_parallel;                             /* sessions that advance at once */
    int n_session;                              /* that may be open; 0: n_parallel */
    int n_ctx;                                  /* tokens per session; 0: the model's, at most 8192 */
    int n_chunk;                                /* rows of a pass; 0: 512 */
    size_t host_mem;                            /* everything the process takes; 0: what is free */
    size_t reserved_bytes;                               /* of it, what the caller will take himself */
    size_t kv_mem;                              /* 0: n_parallel * n_ctx, as far as that is sound */
    double max_prefill_slowdown;                             /* of a pass by prompts: pace.c; 0: 1.5 */
    size_t grammar_bytes;                       /* for masks of grammars; 0: no request has one */
    int n_prompt_logprob_row;                                 /* rows of a pass whose prompt tokens are told; 0: none ever is */
    struct eng_draft_option draft[ENG_DRAFTERS_MOST];
    int n_draft;
    int gamma;                                  /* tokens drafted of each session; ENG_GAMMA_AUTO: as pays */
    enum eng_dsi_mode dsi;                         /* draft while a pass verifies: overlap.c */
    int lookahead;                              /* guesses beside a pass; 0: as it leaves time for */
    enum spec_rule verify;
    const char *fit;                            /* what `fit` found of this model, a file; or NULL */
    bool features;                              /* keep what the model thinks of each token: for who reads it */
    bool explain;                               /* say when another decides who drafts, and why */
    enum off_io_kind io;
    bool keep_heat;                             /* keep what is learnt of experts in a file beside the model */
    bool no_pack;                               /* leave a pack file beside the model alone */
    const char *mirror;                         /* folder on another drive with a copy of the model's files; or NULL */
    bool measures_disk;                         /* before anything is read, in the room that the model takes later */
    struct off_progress *progress;              /* of opening, which its stop ends; may be NULL */
};

int  eng_open(struct eng_engine **out, const struct eng_options *opt);
int  eng_describe(struct eng_engine **out, const struct eng_options *opt);   /* no weights: nothing runs */
void eng_close(struct eng_engine *e);           /* closes its sessions too */

const struct moe_file *eng_file(const struct eng_engine *e);
const struct moe_model *eng_model(const struct eng_engine *e);
const struct eng_vocab *eng_vocab(const struct eng_engine *e);
const struct gr_tokens *eng_grammar_tokens(const struct eng_engine *e);     /* NULL: opened without grammars */
struct kn_team *eng_team(const struct eng_engine *e);
const struct eng_split *eng_memory(const struct eng_engine *e);     /* how the budget is split: plan.h */
double eng_disk_Bps(const struct eng_engine *e);    /* what the model's disk can do; 0: not known */
int eng_n_ctx(const struct eng_engine *e);

/* What the bytes of an answer depend on beside its request, in one word: the program, the model's weights, how
 * keys and values are kept.  The same word, the same bytes. */
enum { ENG_FINGERPRINT_BYTES = 48 };
int  eng_fingerprint(const struct eng_engine *e, char *out /* [ENG_FINGERPRINT_BYTES] */);
int eng_n_chunk(const struct eng_engine *e);    /* rows of a pass without drafts, at most */
int eng_n_draft_row(const struct eng_engine *e);        /* rows of drafts in a pass, at most */

/* As the options, from the next step on; at most what the engine was opened with. */
void eng_set_gamma(struct eng_engine *e, int gamma);
void eng_set_dsi(struct eng_engine *e, enum eng_dsi_mode dsi, int lookahead);

/* One line: whether the last pass drafted, and why. */
int eng_explain(const struct eng_engine *e, char *out, size_t bytes);

#define ENG_REQUEST_BIAS 1024
#define ENG_TOP 20

struct gr_grammar;                              /* engine/text/grammar/grammar.h */

struct eng_request {
    const int32_t *token;                       /* [n_token] the whole sequence; copied */
    int n_token;
    int n_predict;                              /* tokens to add; -1: until it ends */
    bool ignore_eos;                            /* stop tokens are never chosen */
    struct spec_params sampling;                /* its bias, at most ENG_REQUEST_BIAS, is copied; no mask */
    const struct gr_grammar *grammar;           /* of the tokens to come, or NULL; outlives the session's run */
    int n_top;                                  /* likeliest tokens to tell of each, at most ENG_TOP */
    bool wants_prompt_logprobs;                          /* how likely the prompt's own tokens were, too: nothing of it is */
    int n_prompt_top;                           /* found computed then; and so many of the likeliest beside each */
    int priority;                               /* higher goes first, and takes the place of lower */
    uint64_t user;                              /* whose tokens these are: users get the same share */
    uint64_t salt;                              /* KV is shared only among sessions of one salt */
    void *owner; int choice;                    /* the caller's: each event of the request carries them */
};

enum eng_finish {
    ENG_RUNNING,
    ENG_STOP,                                   /* the model said so */
    ENG_LENGTH,                                 /* n_predict, or the context is full */
    ENG_FAILED                                  /* status says why; the session may be started again */
};

struct eng_event {                              /* a session got a token, or ended */
    struct eng_session *session;
    void *owner; int choice;                    /* of its request */
    int n_cached;                               /* prompt tokens found computed, so far */
    int32_t token;                              /* ENG_NO_TOKEN: none */
    bool of_prompt;                             /* a token that was given: from the second on, in order, before */
    int rank;                                   /* any other event; and 1 where none was likelier */
    float logprob;
    const struct spec_top *top;                 /* [n_top] of the request; valid until the next step */
    int n_top;
    enum eng_finish finish;
    int status;
};

int  eng_session_open(struct eng_session **out, struct eng_engine *e);
void eng_session_close(struct eng_session *s);
int  eng_session_start(struct eng_session *s, const struct eng_request *r);
bool eng_session_runs(const struct eng_session *s);     /* more steps are needed */
void eng_session_stop(struct eng_session *s);   /* no more tokens; KV and tokens stay */

/* Tells the oracle what the session, started, will say; the caller keeps it until the session ends. */
void eng_session_set_oracle(struct eng_session *s, const int32_t *token, int n);
int  eng_session_cached(const struct eng_session *s);   /* prompt tokens found computed; known once it advances */
bool eng_session_waits(const struct eng_session *s);    /* runs, but has no place in the passes now */
int  eng_session_computed(const struct eng_session *s); /* tokens whose KV is there: a prompt's progress */
const int32_t *eng_session_tokens(const struct eng_session *s, int *n);

/* What passes have cost so far. */
struct eng_stats {
    uint64_t n_pass, n_prompt_token, n_token;
    uint64_t pass_ns, sample_ns;
    double experts;                             /* distinct ones per layer, summed over passes */
    uint64_t n_row, n_preempted;                /* rows of passes; times that a session lost its KV */
    uint64_t n_cache_asked, n_cache_found;      /* prompt tokens looked for, and found computed */
    uint64_t n_draft, n_draft_kept;             /* tokens drafted and verified; of them, kept */
    uint64_t draft_ns;
    uint64_t overlap_ns, overlap_wait_ns;           /* drafting while passes ran; what passes then waited for it */
    int n_running, n_waiting;                   /* sessions, now */
    int n_kv_block, n_kv_used;                  /* of sessions that run; what is only kept is free */
};
void eng_stats_get(const struct eng_engine *e, struct eng_stats *out);

/* What became of drafts so far, and what the controller makes of it: engine/draft/report.h. */
void eng_drafts_get(const struct eng_engine *e, struct eng_drafts *out);
bool eng_drafts_survival(const struct eng_engine *e, double *share /* [SPEC_DEPTHS] */);        /* eng_draft_survival() */

/* One pass.  Fills event[eng_event_room()] and returns how many; 0 too while prompts are being read.  Every
 * session that is started and not stopped ends with one event whose finish is not ENG_RUNNING. */
int eng_event_room(const struct eng_engine *e);
int eng_step(struct eng_engine *e, struct eng_event *event);

/* ---- the speed to expect: forecast.c ------------------------------------------------------------ */

struct eng_machine;                             /* engine/plan/plan.h, as eng_setting */

#define ENG_PLAN_POSITION 512                   /* tokens that a sequence is taken to have */

/* The setting of an opened engine on the given machine. */
struct eng_setting eng_forecast_setting(const struct eng_engine *e, const struct eng_machine *machine, int position);

/* Measures the rates that are not given (0), in about a second; the disk's only when experts will be read from it. */
int eng_forecast_rates(struct eng_machine *out, const struct eng_engine *e, size_t disk_rate, size_t dram_rate);
/* The number of sequences at once that is expected to be fastest under these options. */
int eng_forecast_parallel(int *out, const struct eng_options *opt);

#endif
