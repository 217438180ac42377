/* engine/serve/engine_thread.h - the engine and the one thread that runs it.  Internal to engine.
 *
 *     eng_hub_open -> [ eng_hub_submit -> eng_hub_take until its end -> (eng_hub_cancel) ]* -> close
 *
 * The hub's thread opens the model, then goes round: take orders, one pass, tell what came of it.  It
 * sleeps when nothing runs.  Everybody else talks to it through this header; what crosses over does so
 * under one lock that is held for copying alone, once per pass.
 *
 * A job is one sequence.  It is its asker's memory; from a submit that succeeds to the told event whose
 * finish is not ENG_RUNNING it is lent to the hub, and so is everything that its request points to.  Every
 * job ends with exactly one such event, cancelled or not.  A cancelled job leaves the engine before the
 * next pass, whether it waits, reads its prompt or decodes, and nobody else notices.
 *
 * What is told waits in a bounded buffer.  A full one stops the engine until its one reader has taken it,
 * so the reader must never wait for anybody; the server's reads nothing else and is never blocked by a
 * client. */
#ifndef ENGINE_SERVE_HUB_H
#define ENGINE_SERVE_HUB_H

#include "engine/plan/plan.h"
#include "engine/engine.h"

struct eng_hub;

enum eng_hub_state { ENG_HUB_LOADING, ENG_HUB_READY, ENG_HUB_FAILED };

struct eng_job {
    struct eng_request request;                 /* the asker's, with owner and choice */
    uint64_t submitted_ns;
    /* the hub's alone */
    uint64_t begun_ns;
    struct eng_session *session;
    int number;                                 /* among those that run */
    bool cancelled;
    struct eng_job *next;
};

/* An event of a job: owner and choice are of the job's request, session is NULL, top is the array below.
 * A job that was cancelled ends with the status KN_ECANCELLED. */
struct eng_job_event {
    struct eng_event event;
    struct spec_top top[ENG_TOP];
    uint64_t at_ns, begun_ns;                   /* begun: in the passes for the first time; 0: never */
};

/* wake_fd: an eventfd that is written when there is something to take, and when the state changes. */
int  eng_hub_open(struct eng_hub **out, const struct eng_options *engine, int wake_fd);
/* Loading stops, what runs is cancelled, and the thread ends as soon as it can. */
void eng_hub_stop(struct eng_hub *h);
/* Waits for that.  What was not taken by then is gone: no job outlives this. */
void eng_hub_close(struct eng_hub *h);

enum eng_hub_state eng_hub_state(struct eng_hub *h);

/* Once READY: the engine, of which only what never changes may be used (vocabulary, file, shapes). */
const struct eng_engine *eng_hub_engine(struct eng_hub *h);

/* All of them or none.  KN_ELIMIT: there is no room for so many now. */
int  eng_hub_submit(struct eng_hub *h, struct eng_job *const *job, int n);
void eng_hub_cancel(struct eng_hub *h, struct eng_job *job);    /* any time before its end is taken */

/* What was told since the last call; valid until the next.  From one thread. */
int  eng_hub_take(struct eng_hub *h, const struct eng_job_event **told);

#define ENG_EXPLAIN_BYTES 384

struct eng_hub_view {                           /* as of the last pass, but for the store */
    struct eng_stats engine;
    struct eng_drafts drafts;
    char explain[ENG_EXPLAIN_BYTES];            /* what one did about drafts lately, and why */
    struct off_stats store;
    struct eng_split split;                     /* of the budget */
    size_t budget_bytes;
    double disk_Bps;                            /* what the model's disk can do; 0: not known */
    int n_parallel, n_session, n_ctx;
    int n_job;                                  /* lent now */
    uint64_t n_failed_pass;                     /* passes that failed as a whole */
    uint64_t quiet_ns;                          /* since jobs last moved; 0 while there are none */
};
void eng_hub_look(struct eng_hub *h, struct eng_hub_view *out);

/* Where experts are now; NULL: there are none, or not yet. */
struct off_store *eng_hub_store(struct eng_hub *h);

#endif
