/* engine/dsi.h - one text by distributed speculative inference: drafting never waits for verification.
 *
 *     eng_dsi_open -> [ eng_dsi_begin, eng_dsi_wait until it gives nothing ]* -> close
 *
 * Workers are threads, each with its own KV and its own few cores: some run the engine's model and verify,
 * one runs the model that drafts.  All read experts through the engine's one store.  What each does, and when,
 * is the state machine's affair (speculative/dsi.h).  The text is that of plain decoding, to the byte.
 *
 * One thread calls this, and nobody steps the engine meanwhile. */
#ifndef ENGINE_DSI_H
#define ENGINE_DSI_H

#include "engine/engine.h"

struct eng_dsi;

struct eng_dsi_options {
    int n_target;                               /* workers that verify */
    int lookahead;                              /* tokens of a block; 0: as Equation 1 has it */
    int n_thread;                               /* of each target; the drafter has one.  0: all CPUs */
    /* For tests: called by a worker before each task; not 0 and the worker is lost.  Or NULL. */
    int (*meddle)(void *arg, int worker);
    void *meddle_arg;
};

/* What it will take beside the engine's own memory: for eng_options.reserved_bytes.  e need not be loaded. */
size_t eng_dsi_bytes(const struct eng_engine *e, const struct eng_dsi_options *o);

/* The engine's first drafter that is a model drafts; without one every pass is a plain one. */
int  eng_dsi_open(struct eng_dsi **out, struct eng_engine *e, const struct eng_dsi_options *o);
void eng_dsi_close(struct eng_dsi *d);

/* Tokens, n_predict, ignore_eos and sampling of the request count; it is copied but for its bias. */
int  eng_dsi_begin(struct eng_dsi *d, const struct eng_request *r);

/* Waits for tokens and writes up to `most` of them; 0: the text has ended; negative: no target is left. */
int  eng_dsi_wait(struct eng_dsi *d, int32_t *token, int most);

struct eng_dsi_stats { uint64_t n_verify, n_draft, n_cancelled, n_lost; int lookahead; };
void eng_dsi_stats(const struct eng_dsi *d, struct eng_dsi_stats *out);

#endif
