/* engine/dsi.h - one sequence by distributed speculative inference (DSI): drafting never waits for verification.
 *
 *     eng_dsi_open -> [ eng_dsi_begin, eng_dsi_wait until it returns 0 ]* -> close
 *
 * Workers are threads, each with its own KV and its own cores. Target workers run the engine's model and verify; each
 * draft model has a worker of its own. Target workers read experts through the engine's one store. The state machine of
 * speculative/dsi.h decides the task of each worker. The output equals that of plain decoding, to the byte.
 *
 * One thread calls this, and no thread calls eng_step() meanwhile. */
#ifndef ENGINE_DSI_H
#define ENGINE_DSI_H

#include "engine/engine.h"

struct eng_dsi;

struct eng_dsi_options {
    int n_target;  /* workers that run the engine's model and verify */
    int lookahead; /* drafted tokens that one task verifies; 0: chosen from measured times (speculative/dsi.h) */
    int n_thread;  /* threads of each target worker, 0: one per CPU; a draft worker has one */
    /* For tests, or NULL: each worker calls it before each task, with n_drafted 0, and a draft worker after each of a task's tokens,
     * with their number so far, which the caller's thread can know by then.  After an error the worker gets no more tasks. */
    int (*meddle)(void *arg, int worker, int n_drafted);
    void *meddle_arg;
};

/* Bytes that eng_dsi_open() will allocate, for eng_options.reserved_bytes. e may come from eng_describe(). */
size_t eng_dsi_bytes(const struct eng_engine *e, const struct eng_dsi_options *o);

/* The engine's drafters that are draft models draft, SPEC_DSI_DRAFTERS at most; without one there are no drafts. Refuses
 * a model with recurrent layers (KN_EUNSUPPORTED). */
int eng_dsi_open(struct eng_dsi **out, struct eng_engine *e, const struct eng_dsi_options *o);
void eng_dsi_close(struct eng_dsi *d);

/* Starts a sequence, after ending the one before. Uses the request's tokens, n_predict, ignore_eos and sampling only.
 * The tokens and the bias array are copied; other lists of `sampling` must stay valid until the sequence has ended. */
int eng_dsi_begin(struct eng_dsi *d, const struct eng_request *r);

/* Waits for tokens, writes up to `most` of them and returns their number; 0: the sequence has ended; KN_EIO: no
 * target worker is left. */
int eng_dsi_wait(struct eng_dsi *d, int32_t *token, int most);

struct eng_dsi_stats {
    uint64_t n_verify, n_draft, n_cancelled, n_lost; /* this sequence's tasks: to verify, to draft, cancelled, failed */
    int lookahead;                                   /* in use now: the longest of its drafters */
};
void eng_dsi_stats(const struct eng_dsi *d, struct eng_dsi_stats *out);

#endif
