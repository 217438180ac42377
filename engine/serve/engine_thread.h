/* engine/serve/engine_thread.h - the engine and the thread that runs it.  Internal to engine.
 *
 *     eng_thread_open -> [ eng_thread_submit -> eng_thread_take_events until its end -> (eng_thread_cancel) ]* -> close
 *
 * The engine thread opens the model, then loops: take submitted and cancelled jobs, run one pass, write its events.
 * It sleeps while no job runs.  Other threads use it through this header; data is exchanged under one lock, which the
 * engine thread does not hold during a pass.
 *
 * A job is one sequence.  Its memory belongs to the submitter.  From a successful submit until the event whose finish
 * is not ENG_RUNNING, the job and everything that its request points to are lent to the engine thread.  Every job ends
 * with exactly one such event, cancelled or not.  A cancelled job leaves the engine before the next pass, whether it
 * waits, prefills or decodes; other jobs are not affected.
 *
 * Events wait in a bounded buffer.  When the buffer is full, the engine thread waits until the one reader takes the
 * events, so the reader must never block: the server's reader is the serving thread, which never blocks on a client. */
#ifndef ENGINE_SERVE_ENGINE_THREAD_H
#define ENGINE_SERVE_ENGINE_THREAD_H

#include "engine/plan/plan.h"
#include "engine/engine.h"

struct eng_thread;

enum eng_thread_state { ENG_THREAD_LOADING, ENG_THREAD_READY, ENG_THREAD_FAILED };

struct eng_job {
    struct eng_request request; /* set by the submitter, with owner and choice */
    bool of_batch;              /* likewise: for the taker of the events, which owners differ by it */
    uint64_t submitted_ns;
    /* engine thread only: */
    uint64_t begun_ns;
    struct eng_session *session;
    int number; /* index in the list of running jobs */
    bool cancelled;
    struct eng_job *next;
};

/* An event of a job: owner and choice are those of the job's request, session is NULL, top points to the array below.
 * A job that is ended by its cancellation has status KN_ECANCELLED. */
struct eng_job_event {
    struct eng_event event;
    struct spec_top top[ENG_TOP];
    bool of_batch;
    uint64_t at_ns, begun_ns; /* begun_ns: the job's first pass; 0: none yet */
};

/* wake_fd: an eventfd, written when events are ready and when the state changes. */
int eng_thread_open(struct eng_thread **out, const struct eng_options *engine, int wake_fd);
/* Stops loading, cancels running jobs and asks the thread to end; does not wait. */
void eng_thread_stop(struct eng_thread *h);
/* Stops and waits for the thread.  Events not yet taken are dropped; after this no job is lent. */
void eng_thread_close(struct eng_thread *h);

enum eng_thread_state eng_thread_state(struct eng_thread *h);

/* The engine; call only when READY.  The caller may use only the engine's constant parts: vocabulary, file, shapes. */
const struct eng_engine *eng_thread_engine(struct eng_thread *h);

/* Submits all n jobs or none.  KN_ELIMIT: the jobs lent now and n more exceed n_session.
 * KN_ENODEV: not READY. */
int eng_thread_submit(struct eng_thread *h, struct eng_job *const *job, int n);
void eng_thread_cancel(struct eng_thread *h, struct eng_job *job); /* only before the job's last event is taken */

/* Sets *events to the events since the last call and returns their count.  The array is valid until the next call.
 * Only one thread may call this. */
int eng_thread_take_events(struct eng_thread *h, const struct eng_job_event **events);

struct eng_thread_report { /* engine, drafts, explain, split: as of the last pass; store, n_job, quiet_ns: current */
    struct eng_stats engine;
    struct eng_drafts drafts;
    char explain[ENG_EXPLAIN_BYTES]; /* the latest draft decision with its reason, as text; at most every 0.2 s */
    struct off_stats store;
    struct eng_split split; /* of the memory budget */
    size_t budget_bytes;
    double disk_Bps; /* measured rate of the model's disk; 0: not measured */
    int n_parallel, n_session, n_ctx;
    int n_job;              /* jobs lent now */
    uint64_t n_failed_pass; /* passes that failed as a whole */
    uint64_t quiet_ns;      /* time without progress of a pass since the first job after idling; 0: no job is lent */
};
void eng_thread_report(struct eng_thread *h, struct eng_thread_report *out);

/* The expert store; NULL: not READY, or the model has no experts. */
struct off_store *eng_thread_store(struct eng_thread *h);

#endif
