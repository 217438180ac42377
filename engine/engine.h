/* engine/engine.h - requests to tokens: a model opened for use, and the sessions that share its passes.
 *
 *     eng_open -> eng_session_open* -> [ eng_session_start, eng_step until it finishes ]* -> close
 *
 * A session is one sequence of tokens. eng_session_start() passes the *whole* sequence so far. Keys and values that
 * are still cached, from any session with the same salt, are reused; the rest is computed in chunks, in the same
 * passes as other sessions' tokens. A session has rows in a pass only while it has a seat. There are n_parallel seats,
 * and more sessions may be open. Sessions are ordered by priority, then by rows already computed for their user (fewer
 * first), then by age. When KV memory runs out, the last session of this order loses its seat, and its KV is computed
 * again later. A step is one forward pass over rows of the sessions with a seat, then the sampling for each session
 * with a token due: a session for which the pass computed the last token of its sequence. A session's tokens depend
 * only on its prompt, its sampling parameters, its grammar and its seed: not on the batch, chunks, waiting, threads or
 * instruction set. Drafts do not change them either, except with eng_options.verify SPEC_RATIO or SPEC_BLOCK.
 *
 * One thread calls all of this. All memory is allocated at open; a step allocates nothing. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <limits.h>

#include "engine/draft/option.h"
#include "engine/draft/report.h"
#include "engine/text/text.h"
#include "moe/moe.h"
#include "speculative/control.h"

#define ENG_VERSION "0.1.0-dev"

/* version.c: the commit that was built, with -dirty if files were changed; "" if it is not known.  The text is the version
 * with the commit in parentheses. */
extern const char eng_commit[], eng_version_text[];

struct eng_engine;
struct gr_tokens; /* engine/text/grammar/grammar.h */
struct eng_session;

struct eng_options {
    const char *model;
    enum kn_isa isa;    /* the highest instruction set to use */
    int n_host_layer;   /* experts of so many first layers are not kept on a device */
    const char *device; /* runs the passes: a name of kn_device_open(); NULL: the host */
    enum kn_kv kv;
    int n_thread;          /* 0: one per usable CPU */
    int n_parallel;        /* seats: most sessions with rows in one pass */
    int n_session;         /* most sessions open at once; below n_parallel: n_parallel */
    int n_ctx;             /* most tokens of a session; 0: eng_default_ctx() of engine/plan/plan.h */
    int n_ctx_most;        /* most tokens of that default; 0: no limit */
    int n_chunk;           /* most rows of a pass without its draft rows; 0: eng_default_chunk(); at least n_parallel */
    size_t device_mem;     /* budget of a device with memory of its own; 0: its free memory, less a margin */
    size_t host_mem;       /* budget for all memory of the process; 0: the free memory, less a margin */
    size_t reserved_bytes; /* part of host_mem that the caller will allocate */
    /* reserved_bytes for another budget, where it grows with the budget: for the smallest that works. NULL: it does not */
    size_t (*reserve_of)(const void *arg, size_t host_mem);
    const void *reserve_arg;
    size_t kv_mem; /* bytes of the KV cache; 0: n_parallel contexts, or fewer to fit experts (plan/memory_split.c) */
    double max_prefill_slowdown; /* how many times longer prefill may make a decode pass (prefill_share.c); 0: 1.5 */
    size_t grammar_bytes;        /* memory for grammar masks; 0: no request has a grammar */
    int n_prompt_logprob_row;    /* most rows of a pass that report logprobs of prompt tokens; 0: none */
    struct eng_draft_option draft[ENG_DRAFTERS_MOST];
    int n_draft;
    bool predictions; /* requests may have a reference text: adds a drafter that copies from it, if --draft has none */
    int gamma;        /* tokens drafted for each session; ENG_GAMMA_AUTO: the controller decides */
    int room_for_gamma; /* passes have room for so many drafted tokens of each session, for eng_set_gamma(); 0: no more than
                         * eng_describe() chooses */
    enum eng_dsi_mode dsi; /* whether to draft during the pass that verifies the last draft: draft/overlap.c */
    int lookahead;         /* for dsi: tokens drafted during a pass; 0: as many as its duration allows */
    enum spec_rule verify;
    const char *fit; /* file with the cost model that `fit` measured; "none"; NULL, "auto": kept, as keep_heat says */
    bool features;   /* keep the last layer's hidden state of each token, even if no drafter reads it */
    bool explain;    /* log each change of the controller's decision */
    enum off_io_kind io;
    bool keep_heat;                /* keep the experts' use counts, and the fitted time of passes, beside the model */
    bool no_pack;                  /* do not use a pack file beside the model */
    const char *mirror;            /* folder on another drive with a copy of the model's files; or NULL */
    bool measures_disk;            /* measure the disk rate at open, before weights are read */
    struct off_progress *progress; /* eng_open() counts bytes here; setting its `stop` cancels eng_open(); or NULL */
};

int eng_open(struct eng_engine **out, const struct eng_options *opt);
int eng_describe(struct eng_engine **out, const struct eng_options *opt); /* no weights: no eng_step() */
void eng_close(struct eng_engine *e);                                     /* closes its sessions too */

const struct moe_file *eng_file(const struct eng_engine *e);
const struct moe_model *eng_model(const struct eng_engine *e);
const struct eng_vocab *eng_vocab(const struct eng_engine *e);
const struct gr_tokens *eng_grammar_tokens(const struct eng_engine *e); /* NULL: opened without grammars */
struct kn_team *eng_team(const struct eng_engine *e);
const struct eng_split *eng_memory(const struct eng_engine *e); /* the split of the memory budget: plan.h */
double eng_disk_Bps(const struct eng_engine *e); /* measured read rate of the model's disk; 0: not measured */
int eng_n_ctx(const struct eng_engine *e);

/* Writes a text that names the things that an answer depends on beside its request: the program's version, the model's
 * weights (moe_file_id()), the KV format, and `beside`: a hash of the caller's own changes to prompts, 0 without any.
 * Two engines with equal fingerprints and equal metadata of the model give equal answers to the byte, if both verify
 * drafts with SPEC_COUPLED. */
enum { ENG_FINGERPRINT_BYTES = 48 };
int eng_fingerprint(const struct eng_engine *e, uint64_t beside, char *out /* [ENG_FINGERPRINT_BYTES] */);
int eng_n_chunk(const struct eng_engine *e);     /* rows of a pass without drafts, at most */
int eng_n_draft_row(const struct eng_engine *e); /* rows of drafts in a pass, at most */

/* Change the options gamma, dsi and lookahead from the next step on. The numbers must not exceed those that the
 * engine was opened with, since the buffers have their size. dsi stays off if the engine was opened with it off. */
void eng_set_gamma(struct eng_engine *e, int gamma);
void eng_set_dsi(struct eng_engine *e, enum eng_dsi_mode dsi, int lookahead);

/* Writes one line: whether the last pass drafted, and why. Returns its length, as snprintf does. */
int eng_explain(const struct eng_engine *e, char *out, size_t bytes);

#define ENG_REQUEST_BIAS 1024
#define ENG_TOP          20

/* The lowest priority: such a session has rows only in passes in which no session of another priority has any. It keeps
 * its seat and its KV meanwhile, unless others need them. */
#define ENG_PRIORITY_IDLE INT_MIN

struct gr_grammar; /* engine/text/grammar/grammar.h */

struct eng_request {
    const int32_t *token; /* the whole sequence; copied */
    int n_token;
    int n_predict;               /* tokens to add; -1: until a stop token or the end of the context */
    bool ignore_eos;             /* stop tokens are never sampled */
    struct spec_params sampling; /* its bias array, at most ENG_REQUEST_BIAS entries, is copied; mask is unused; its
                                         other lists must stay valid until the finish */
    const struct gr_grammar *grammar; /* of the tokens to generate; NULL: none; must stay valid until the finish */
    const int32_t *reference; /* [n_reference] a text that the answer may repeat, for drafts; NULL: none; must stay
                                 valid until the finish */
    int n_reference;
    struct eng_draft_limits drafts;
    int n_top;                  /* number of most likely tokens to report with each new token, at most ENG_TOP */
    bool wants_prompt_logprobs; /* also report prompt logprobs; then no prefix is reused */
    int n_prompt_top;           /* the same as n_top, for the prompt's tokens */
    int priority;               /* higher goes first, and may preempt lower; or ENG_PRIORITY_IDLE */
    uint64_t user;              /* rows are shared equally among users */
    uint64_t salt;              /* KV is shared only among requests with the same salt */
    void *owner;                /* owner, choice: the caller's; copied to each event of the request */
    int choice;
};

enum eng_finish {
    ENG_RUNNING,
    ENG_STOP,   /* a stop token */
    ENG_LENGTH, /* n_predict tokens were added, or the context is full */
    ENG_FAILED  /* status has the error; the session may be started again */
};

struct eng_event { /* a session got a token, or ended */
    struct eng_session *session;
    void *owner;
    int choice;     /* owner, choice: of the session's request */
    int n_cached;   /* prompt tokens taken from the prefix cache so far */
    int32_t token;  /* ENG_NO_TOKEN: none */
    bool of_prompt; /* a prompt token, from the second on; these events come in order, before generated tokens */
    int rank;       /* of a prompt token; 1: the most likely */
    float logprob;
    const struct spec_top *top; /* [n_top] most likely tokens; valid until the next step */
    int n_top;
    enum eng_finish finish;
    int status;
};

int eng_session_open(struct eng_session **out, struct eng_engine *e);
void eng_session_close(struct eng_session *s);
int eng_session_start(struct eng_session *s, const struct eng_request *r);
bool eng_session_runs(const struct eng_session *s); /* more steps are needed */
void eng_session_stop(struct eng_session *s);       /* ends it without an event; KV stays cached, tokens readable */

/* Sets the tokens that the oracle drafter drafts for a started session; the array must stay valid until the session
 * ends. */
void eng_session_set_oracle(struct eng_session *s, const int32_t *token, int n);
int eng_session_cached(const struct eng_session *s);   /* prompt tokens taken from the cache; 0 until it has a seat */
bool eng_session_waits(const struct eng_session *s);   /* runs, but has no seat in the passes now */
int eng_session_computed(const struct eng_session *s); /* tokens with KV, cached or computed: the progress of prefill */
const int32_t *eng_session_tokens(const struct eng_session *s, int *n);

/* Counters since open, and the state now. */
struct eng_stats {
    uint64_t n_pass, n_prompt_token, n_token;
    uint64_t pass_ns, sample_ns;
    double experts;                           /* distinct experts per layer, summed over passes */
    uint64_t n_row, n_preempted;              /* rows of passes; seats that sessions lost (preemptions) */
    uint64_t n_cache_asked, n_cache_found;    /* prompt tokens of all requests; of them, taken from the prefix cache */
    uint64_t n_draft, n_draft_kept;           /* drafted tokens that were verified; of them, accepted */
    uint64_t n_window_row, n_window_row_kept; /* rows of lookahead windows in passes; of them, accepted */
    uint64_t draft_ns;
    uint64_t overlap_ns, overlap_wait_ns; /* time of drafting during passes; time that passes waited for it */
    int n_running, n_waiting;             /* running sessions, now: with a seat; waiting for one */
    struct moe_device_stats device;       /* experts that a device with memory of its own keeps */
    int device_error;                     /* of the device that runs the passes: no request succeeds any more; or 0 */
    int n_kv_block, n_kv_used;            /* blocks; of them, used by sessions with a seat: cached ones count as free */
};
void eng_stats_get(const struct eng_engine *e, struct eng_stats *out);

/* The kinds of the engine's drafters; drafter i is bit i of eng_draft_limits.unused. Returns their number. */
int eng_drafter_names(const struct eng_engine *e, const char **name /* [ENG_DRAFTERS_MOST] */);

/* Counters of drafts, and the controller's accounts: engine/draft/report.h. */
void eng_drafts_get(const struct eng_engine *e, struct eng_drafts *out);
bool eng_drafts_survival(const struct eng_engine *e, double *share /* [SPEC_DEPTHS] */); /* eng_draft_survival() */

/* Runs one pass. Writes at most eng_event_room() events and returns their number (0 is usual during prefill), or an
 * error of the whole pass. Each started session ends with exactly one event that has a finish other than ENG_RUNNING,
 * unless eng_session_stop() or eng_session_close() ended it. */
int eng_event_room(const struct eng_engine *e);
int eng_step(struct eng_engine *e, struct eng_event *event);

/* When a pass, of the model or of a drafter, last made progress: by a layer, or by experts that arrived. 0: never. Any thread may
 * call it while the engine is open. */
uint64_t eng_advanced_ns(const struct eng_engine *e);

/* For times without sessions to run: updates the fit of the time of passes, now and then, in some milliseconds. */
void eng_rest(struct eng_engine *e);

/* ---- the speed to expect: forecast.c ------------------------------------------------------------ */

struct eng_machine; /* this and eng_setting: engine/plan/plan.h */

#define ENG_PLAN_POSITION 512 /* tokens of each sequence that forecasts assume */

/* The input of eng_plan_forecast() for this engine on the given machine; position: tokens of each sequence. */
struct eng_setting eng_forecast_setting(const struct eng_engine *e, const struct eng_machine *machine, int position);

/* The cost model of the controller's first estimate: by the machine's rates; or the fit of measured passes, if there is one,
 * with its mean error in *fit_error. */
int eng_forecast_cost(struct spec_cost_model *out, double *fit_error, const struct eng_engine *e,
                      const struct eng_setting *s);

/* Sets *out to the given rates in bytes/s, and measures those that are 0 (and always the multiply-adds), in about a
 * second. The disk is measured only if experts will be read from it; else its rate stays as given. */
int eng_forecast_rates(struct eng_machine *out, const struct eng_engine *e, size_t disk_rate, size_t dram_rate);
/* Sets *out to the smallest n_parallel among 1, 2, 4 .. 64 with which these options are expected to give at least 97 %
 * of the most tokens/s that any of them gives. */
int eng_forecast_parallel(int *out, const struct eng_options *opt);

#endif
