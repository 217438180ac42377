/* engine/dsi.h - one sequence by distributed speculative inference (DSI): drafting never waits for verification.
 *
 *     eng_dsi_open -> [ eng_dsi_begin, eng_dsi_wait until it returns 0 ]* -> close
 *
 * Workers are threads, each with its own KV and its own cores. Target workers run the engine's model and verify; one
 * worker runs the draft model. All read experts through the engine's one store. The state machine of
 * speculative/dsi.h decides the task of each worker. The output equals that of plain decoding, to the byte.
 *
 * One thread calls this, and no thread calls eng_step() meanwhile. */
#ifndef ENGINE_DSI_H
#define ENGINE_DSI_H

#include "engine/engine.h"

struct eng_dsi;

struct eng_dsi_options {
    int n_target;  /* workers that run the engine's model and verify */
    int lookahead; /* tokens of a block; 0: by Equation 1, from the measured times */
    int n_thread;  /* threads of each target; the drafter has one. 0: one per CPU */
    /* For tests: called by a worker before each task; if it returns an error the worker is lost. Or NULL. */
    int (*meddle)(void *arg, int worker);
    void *meddle_arg;
};

/* Memory that it will allocate beside the engine's own: for eng_options.reserved_bytes. e need not be loaded. */
size_t eng_dsi_bytes(const struct eng_engine *e, const struct eng_dsi_options *o);

/* The first --draft model of the engine drafts; without one every pass is plain decoding. */
int eng_dsi_open(struct eng_dsi **out, struct eng_engine *e, const struct eng_dsi_options *o);
void eng_dsi_close(struct eng_dsi *d);

/* Uses the request's tokens, n_predict, ignore_eos and sampling only; all are copied. */
int eng_dsi_begin(struct eng_dsi *d, const struct eng_request *r);

/* Waits for tokens, writes up to `most` of them and returns their number; 0: the sequence has ended; KN_EIO: no
 * target worker is left. */
int eng_dsi_wait(struct eng_dsi *d, int32_t *token, int most);

struct eng_dsi_stats {
    uint64_t n_verify, n_draft, n_cancelled, n_lost;
    int lookahead;
};
void eng_dsi_stats(const struct eng_dsi *d, struct eng_dsi_stats *out);

#endif
