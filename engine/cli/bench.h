/* engine/cli/bench.h - shared by the files of `bench`.  Internal to engine.
 *
 * bench_run.c starts sequences, runs passes and prints the timed figures; bench_drafts.c compares ways of drafting;
 * cmd_bench.c is the command.  One engine, one thread. */
#ifndef ENGINE_CLI_BENCH_H
#define ENGINE_CLI_BENCH_H

#include "engine/cli/cli.h"
#include "engine/engine.h"
#include "engine/plan/host_rate.h"
#include "engine/plan/link_rate.h"

#define ENG_BENCH_BATCHES 16
#define ENG_BENCH_WARM    96 /* most warm-up passes, if the hit rate does not settle before */

enum eng_bench_how { ENG_BENCH_NONE, ENG_BENCH_IN_TURN, ENG_BENCH_AHEAD, ENG_BENCH_HOWS };
extern const char *const eng_bench_how[ENG_BENCH_HOWS];

/* A way of drafting: no drafts, drafts between passes (IN_TURN), or drafts during the passes that verify the drafts
 * before (AHEAD, --dsi); gamma: draft length in tokens, or ENG_GAMMA_AUTO. */
struct eng_bench_way {
    enum eng_bench_how how;
    int gamma;
};

struct eng_bench {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_rates rates;
    struct eng_link_rate link;                   /* of a device with memory of its own */
    bool apart;                                  /* there is one */
    int batch[ENG_BENCH_BATCHES], n_batch, most; /* batch sizes; most: the largest */
    struct eng_session **session;                /* [most] */
    struct eng_event *event;                     /* [eng_event_room] */
    int32_t *prompt;                             /* [n_prompt] */
    struct eng_ids text; /* the text of --file: prompts are pieces of it; empty: prompts are random tokens */
    int32_t *said;       /* [most][n_gen] tokens generated without drafts */
    int *n_said;         /* [most] tokens of each in `said` */
    char drafter[64];    /* name in the output; "": no drafter */
    bool streams;        /* not all experts fit in memory */
};

struct eng_figure {   /* one result: totals of the passes between start and stop of the clock */
    const char *what; /* "prefill", "decode" */
    int batch;
    const char *drafter; /* NULL: none */
    struct eng_bench_way way;
    double seconds, tokens, passes, rows, logits, drafted, kept; /* logits: rows with logits; kept: accepted drafts */
    double bytes,
        macs; /* bytes read from memory, and multiply-adds; with a device of its own memory, the host's alone */
    double copied_bytes,
        host_experts; /* experts copied to the device; experts that the host computed, over all passes */
    double experts;   /* distinct experts per layer, mean of the passes */
    double disk_Bps, least_read, by_share_read; /* of off_store_least_read */
    struct off_stats store;                     /* counters of the timed passes */
    bool settled;                               /* the hit rate or the controller was settled before timing */
};

/* Counters at the start of a timed section; the figure is made of the differences at its end.  trace: the experts used
 * in between; disk_Bps is measured at both ends, and the figure has the larger one. */
struct eng_bench_start {
    struct eng_stats engine;
    struct off_stats store;
    struct off_trace trace;
    double disk_Bps;
    uint64_t ns;
};

/* start_all starts `batch` sequences with different prompts; close_all closes their sessions.  run_passes steps n
 * times, or for n = 0 until every sequence has its first token. */
int eng_bench_start_all(struct eng_bench *b, int batch);
void eng_bench_close_all(struct eng_bench *b, int batch);
int eng_bench_run_passes(struct eng_bench *b, int batch, int n);
int eng_bench_warm_up(struct eng_bench *b, int batch, bool *settled); /* returns the number of passes, or KN_E* */

/* start_clock: n_pass, n_row: the most passes until stop_clock, and the most rows of a pass: they size the trace of
 * used experts.  stop_clock completes the figure and prints it.  If the caller left f->tokens 0, it is set to the
 * tokens that the engine has counted; if it left f->logits 0, to the number of rows.  positions: KV positions that
 * attention has read in all these passes. */
int eng_bench_start_clock(struct eng_bench *b, struct eng_bench_start *s, int n_pass, int n_row);
int eng_bench_stop_clock(struct eng_bench *b, struct eng_bench_start *s, struct eng_figure *f, double positions);

/* Sets the way of drafting for the next passes; eng_bench_drafts measures and prints all ways at one batch size. */
void eng_bench_draft(struct eng_bench *b, struct eng_bench_way way);
int eng_bench_drafts(struct eng_bench *b, int batch);
int eng_bench_check(const struct eng_config *c);        /* 0, or KN_EINVAL for a bad --against */
int eng_bench_most_drafted(const struct eng_config *c); /* the largest number of --against; 0: none was given */

/* The mean of x[n]; *half is set to the half width of its 95 % confidence interval (Student's t), 0 for one value. */
double eng_bench_mean(const double *x, int n, double *half);

#endif
