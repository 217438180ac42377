/* engine/cli/bench.h - what the files of `bench` share.  Internal to engine.
 *
 * bench_run.c starts sequences, runs passes and prints the figure of a clock; bench_drafts.c compares ways of
 * drafting; cmd_bench.c is the command.  One engine, one thread. */
#ifndef ENGINE_BENCH_H
#define ENGINE_BENCH_H

#include "engine/cli/cli.h"
#include "engine/engine.h"
#include "engine/plan/host_rate.h"

#define ENG_BENCH_BATCHES 16
#define ENG_BENCH_WARM    96                    /* passes until experts that come from disk have settled, at most */

enum eng_bench_how { ENG_BENCH_NONE, ENG_BENCH_IN_TURN, ENG_BENCH_AHEAD, ENG_BENCH_HOWS };
extern const char *const eng_bench_how[ENG_BENCH_HOWS];

/* How it is drafted, and how deep: a number of tokens, or ENG_GAMMA_AUTO. */
struct eng_bench_way { enum eng_bench_how how; int gamma; };

struct eng_bench {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_rates rates;
    int batch[ENG_BENCH_BATCHES], n_batch, most;
    struct eng_session **session;               /* [most] */
    struct eng_event *event;                    /* [eng_event_room] */
    int32_t *prompt;                            /* [n_prompt] */
    struct eng_ids text;                        /* prompts are pieces of it, unless it is empty */
    int32_t *said;                              /* [most][n_gen] without drafts */
    int *n_said;                                /* [most] */
    char drafter[64];                           /* its name in the output */
    bool streams;                               /* not all experts fit */
};

struct eng_figure {
    const char *what;
    int batch;
    const char *drafter;                        /* "none" */
    struct eng_bench_way way;
    double seconds, tokens, passes, rows, logits, drafted, kept;
    double bytes, macs;                         /* of all passes */
    double experts;                             /* per layer and pass */
    double disk_Bps, least_read;                /* bytes that an optimal cache would have read */
    struct off_stats store;                     /* while it was timed */
    bool settled;
};

/* What a figure's figures are taken from: as it stood when the clock was started. */
struct eng_bench_start {
    struct eng_stats engine;
    struct off_stats store;
    struct off_trace trace;
    double disk_Bps;
    uint64_t ns;
};

/* As many sequences with prompts of their own; until every one has got a token, or n passes when n > 0. */
int  eng_bench_start_all(struct eng_bench *b, int batch);
void eng_bench_close_all(struct eng_bench *b, int batch);
int  eng_bench_run_passes(struct eng_bench *b, int batch, int n);
int  eng_bench_warm_up(struct eng_bench *b, int batch, bool *settled);     /* the number of passes, or KN_E* */

/* At most so many passes come between, of so many rows.  Stop prints the figure; tokens and logits that are 0 there are
 * counted; positions: of keys and values that were read. */
int  eng_bench_start_clock(struct eng_bench *b, struct eng_bench_start *s, int n_pass, int n_row);
int  eng_bench_stop_clock(struct eng_bench *b, struct eng_bench_start *s, struct eng_figure *f, double positions);

/* From now on it is drafted so. */
void eng_bench_draft(struct eng_bench *b, struct eng_bench_way way);
int  eng_bench_drafts(struct eng_bench *b, int batch);
int  eng_bench_check(const struct eng_config *c);       /* is what --against lists in order? */

#endif
