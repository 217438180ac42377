/* engine/serve/engine_thread.c - the engine thread: jobs in, passes, events out.
 *
 * New jobs are passed in a linked list; cancelled jobs have a flag set, which the engine thread checks before a
 * pass.  So no queue can overflow: at most n_session jobs are lent at once.  Events are written to one of two arrays;
 * the reader swaps the arrays.
 *
 *   lock      protects everything below it in struct eng_thread
 *   orders    the engine thread waits on this condition while no job runs
 *   room      the engine thread waits on this condition while the event array is full */
#include "engine/serve/engine_thread.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define LEAST_TOLD 1024       /* events that each array can hold, at least */
#define EXPLAIN_NS 200000000u /* interval between texts that explain draft decisions */

struct eng_thread {
    struct eng_options options;
    int wake_fd;
    pthread_t thread;
    bool started;

    struct eng_engine *engine; /* for the engine thread only; other threads: see eng_thread_engine() */
    struct eng_event *event;   /* [eng_event_room()] for the engine thread only */
    struct eng_job **running;  /* [n_running] for the engine thread only */
    int n_running;
    uint64_t explained_ns;

    pthread_mutex_t lock;
    pthread_cond_t orders, room;
    enum eng_thread_state state;
    bool closing, any_cancelled;
    struct eng_job *first, **last;      /* new jobs */
    struct eng_job_event *events[2];    /* [events_room] each */
    int events_room, n_events, writing; /* writing: index of the array that is being filled */
    bool woken;                         /* the reader was woken and has not taken the events yet */
    uint64_t lent_ns;                   /* when the first job after idling came */
    struct eng_thread_report view;
};

static void wake(struct eng_thread *h)
{
    const uint64_t one = 1;
    ssize_t n = write(h->wake_fd, &one, sizeof one);
    (void)n; /* EAGAIN: the counter is full, and the reader wakes anyway */
}

/* ---- events out: under the lock -------------------------------------------------------------- */

/* Copies an event of the engine, with a job as owner, into the array; waits while the array is full.  After the job's
 * last event the job must not be used: the reader may free it. */
static void tell(struct eng_thread *h, const struct eng_event *e, uint64_t now)
{
    const struct eng_job *job = e->owner;
    while (h->n_events == h->events_room && !h->closing)
        pthread_cond_wait(&h->room, &h->lock);
    if (h->n_events == h->events_room)
        return; /* closing: the reader has stopped */
    struct eng_job_event *t = &h->events[h->writing][h->n_events++];
    t->event = *e;
    t->event.session = NULL;
    t->event.owner = job->request.owner;
    t->event.top = t->top;
    if (e->n_top > 0)
        memcpy(t->top, e->top, (size_t)e->n_top * sizeof *e->top);
    t->of_batch = job->of_batch;
    t->at_ns = now;
    t->begun_ns = job->begun_ns;
    if (e->finish != ENG_RUNNING)
        h->view.n_job--;
}

static void tell_end(struct eng_thread *h, struct eng_job *job, int status)
{
    tell(h,
         &(struct eng_event){ .owner = job,
                              .choice = job->request.choice,
                              .token = ENG_NO_TOKEN,
                              .finish = ENG_FAILED,
                              .status = status },
         kn_now_ns());
}

/* ---- orders in ------------------------------------------------------------------------------- */

static void forget(struct eng_thread *h, struct eng_job *job)
{
    struct eng_job *last = h->running[--h->n_running];
    eng_session_close(job->session);
    h->running[job->number] = last;
    last->number = job->number;
}

/* Starts a session for the job.  The owner of the session's events is the job; tell sets the job's owner instead. */
static int start_session(struct eng_thread *h, struct eng_job *job)
{
    struct eng_request request = job->request;
    request.owner = job;
    int status = eng_session_open(&job->session, h->engine);
    return status ? status : eng_session_start(job->session, &request);
}

/* Ends each cancelled job; when closing, all jobs.  The caller holds the lock. */
static void drop_cancelled(struct eng_thread *h)
{
    h->any_cancelled = false; /* a cancel while tell_end waits for room sets it again */
    for (int i = h->n_running - 1; i >= 0; i--) {
        struct eng_job *job = h->running[i];
        if (!job->cancelled && !h->closing)
            continue;
        forget(h, job);
        tell_end(h, job, KN_ECANCELLED);
    }
}

/* Starts the jobs that have no session yet. */
static void start_sessions(struct eng_thread *h)
{
    for (int i = h->n_running - 1; i >= 0; i--) {
        struct eng_job *job = h->running[i];
        int status = job->session ? 0 : start_session(h, job);
        if (!status)
            continue;
        forget(h, job);
        pthread_mutex_lock(&h->lock);
        tell_end(h, job, status);
        pthread_mutex_unlock(&h->lock);
    }
}

/* Waits until there are jobs, and starts and cancels jobs as requested.  false: the thread must end. */
static bool take_orders(struct eng_thread *h)
{
    pthread_mutex_lock(&h->lock);
    bool rests = !h->first && !h->n_running && !h->closing;
    pthread_mutex_unlock(&h->lock);
    if (rests)
        eng_rest(h->engine);
    pthread_mutex_lock(&h->lock);
    while (!h->first && !h->n_running && !h->closing)
        pthread_cond_wait(&h->orders, &h->lock);
    for (; h->first; h->first = h->first->next) {
        h->first->number = h->n_running;
        h->running[h->n_running++] = h->first;
    }
    h->last = &h->first;
    if (h->any_cancelled || h->closing)
        drop_cancelled(h);
    bool over = h->closing;
    pthread_mutex_unlock(&h->lock);
    start_sessions(h);
    return !over;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static void tell_event(struct eng_thread *h, const struct eng_event *e, uint64_t now)
{
    if (e->finish != ENG_RUNNING)
        forget(h, e->owner);
    tell(h, e, now);
}

/* Ends every running job, after a pass that failed as a whole.  The caller holds the lock. */
static void end_all(struct eng_thread *h, int status)
{
    h->view.n_failed_pass++;
    while (h->n_running) {
        struct eng_job *job = h->running[0];
        forget(h, job);
        tell_end(h, job, status);
    }
}

static void note_begun(struct eng_thread *h, uint64_t now)
{
    for (int i = 0; i < h->n_running; i++) {
        struct eng_job *job = h->running[i];
        if (job->begun_ns || eng_session_waits(job->session))
            continue;
        job->begun_ns = now;
    }
}

static void pass(struct eng_thread *h)
{
    uint64_t before = kn_now_ns();
    int n = eng_step(h->engine, h->event);
    uint64_t now = kn_now_ns();
    struct eng_stats stats;
    struct eng_drafts drafts;
    char explain[ENG_EXPLAIN_BYTES];
    bool explains = now - h->explained_ns > EXPLAIN_NS;
    eng_stats_get(h->engine, &stats);
    eng_drafts_get(h->engine, &drafts);
    if (explains)
        eng_explain(h->engine, explain, sizeof explain);

    pthread_mutex_lock(&h->lock);
    note_begun(h, before);
    for (int i = 0; i < n; i++)
        tell_event(h, &h->event[i], now);
    if (n < 0)
        end_all(h, n);
    h->view.engine = stats;
    h->view.drafts = drafts;
    h->view.split = *eng_memory(h->engine);
    if (explains) {
        memcpy(h->view.explain, explain, sizeof explain);
        h->explained_ns = now;
    }
    bool wakes = h->n_events > 0 && !h->woken;
    h->woken |= wakes;
    pthread_mutex_unlock(&h->lock);
    if (wakes)
        wake(h);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static int open_engine(struct eng_thread *h)
{
    int error = eng_open(&h->engine, &h->options);
    if (error)
        return error;
    int room = eng_event_room(h->engine);
    h->event = kn_calloc((size_t)room, sizeof *h->event);
    h->running = kn_calloc((size_t)h->view.n_session, sizeof(struct eng_job *));
    h->events_room = kn_max(LEAST_TOLD, 4 * room);
    for (int i = 0; i < 2; i++)
        h->events[i] = kn_calloc((size_t)h->events_room, sizeof *h->events[i]);
    if (!h->event || !h->running || !h->events[0] || !h->events[1])
        return kn_fail(KN_ENOMEM, "no memory for %d events", h->events_room);
    return 0;
}

static void *run(void *arg)
{
    struct eng_thread *h = arg;
    int error = open_engine(h);
    pthread_mutex_lock(&h->lock);
    h->state = error ? ENG_THREAD_FAILED : ENG_THREAD_READY;
    h->options.progress = NULL; /* the caller may free it once READY or FAILED */
    if (!error) {
        h->view.n_ctx = eng_n_ctx(h->engine);
        h->view.budget_bytes = eng_memory(h->engine)->total;
        h->view.split = *eng_memory(h->engine);
        h->view.disk_Bps = eng_disk_Bps(h->engine);
        eng_stats_get(h->engine, &h->view.engine);
        eng_drafts_get(h->engine, &h->view.drafts);
    }
    pthread_mutex_unlock(&h->lock);
    wake(h);
    while (!error && take_orders(h))
        pass(h);
    return NULL;
}

int eng_thread_open(struct eng_thread **out, const struct eng_options *engine, int wake_fd)
{
    struct eng_thread *h = kn_calloc(1, sizeof *h);
    if (!h)
        return kn_fail(KN_ENOMEM, "not enough memory for the engine thread");
    h->options = *engine;
    h->wake_fd = wake_fd;
    h->last = &h->first;
    h->view.n_parallel = engine->n_parallel;
    h->view.n_session = kn_max(engine->n_session, engine->n_parallel);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->orders, NULL);
    pthread_cond_init(&h->room, NULL);
    h->started = pthread_create(&h->thread, NULL, run, h) == 0;
    if (!h->started) {
        eng_thread_close(h);
        return kn_fail(KN_ELIMIT, "the system cannot start the engine thread");
    }
    *out = h;
    return 0;
}

void eng_thread_stop(struct eng_thread *h)
{
    pthread_mutex_lock(&h->lock);
    if (h->options.progress)
        atomic_store(&h->options.progress->stop, true);
    h->closing = true;
    pthread_cond_signal(&h->orders);
    pthread_cond_signal(&h->room);
    pthread_mutex_unlock(&h->lock);
}

void eng_thread_close(struct eng_thread *h)
{
    if (!h)
        return;
    eng_thread_stop(h);
    if (h->started)
        pthread_join(h->thread, NULL);
    eng_close(h->engine);
    pthread_cond_destroy(&h->orders);
    pthread_cond_destroy(&h->room);
    pthread_mutex_destroy(&h->lock);
    kn_free(h->event);
    kn_free(h->running);
    kn_free(h->events[0]);
    kn_free(h->events[1]);
    kn_free(h);
}

/* ---- called by other threads ----------------------------------------------------------------- */

enum eng_thread_state eng_thread_state(struct eng_thread *h)
{
    pthread_mutex_lock(&h->lock);
    enum eng_thread_state state = h->state;
    pthread_mutex_unlock(&h->lock);
    return state;
}

const struct eng_engine *eng_thread_engine(struct eng_thread *h)
{
    kn_assert(eng_thread_state(h) == ENG_THREAD_READY);
    return h->engine;
}

int eng_thread_submit(struct eng_thread *h, struct eng_job *const *job, int n)
{
    int error = 0;
    uint64_t now = kn_now_ns();
    pthread_mutex_lock(&h->lock);
    if (h->state != ENG_THREAD_READY)
        error = KN_ENODEV; /* the caller reports the error to the client */
    else if (n > h->view.n_session - h->view.n_job)
        error = KN_ELIMIT;
    if (!error && h->view.n_job == 0)
        h->lent_ns = now;
    for (int i = 0; i < n && !error; i++) {
        job[i]->submitted_ns = now;
        job[i]->begun_ns = 0;
        job[i]->session = NULL;
        job[i]->cancelled = false;
        job[i]->next = NULL;
        *h->last = job[i];
        h->last = &job[i]->next;
        h->view.n_job++;
    }
    pthread_cond_signal(&h->orders);
    pthread_mutex_unlock(&h->lock);
    return error;
}

void eng_thread_cancel(struct eng_thread *h, struct eng_job *job)
{
    pthread_mutex_lock(&h->lock);
    job->cancelled = true;
    h->any_cancelled = true;
    pthread_mutex_unlock(&h->lock);
}

int eng_thread_take_events(struct eng_thread *h, const struct eng_job_event **events)
{
    pthread_mutex_lock(&h->lock);
    int n = h->n_events;
    *events = h->events[h->writing];
    h->writing ^= 1;
    h->n_events = 0;
    h->woken = false;
    pthread_cond_signal(&h->room);
    pthread_mutex_unlock(&h->lock);
    return n;
}

void eng_thread_report(struct eng_thread *h, struct eng_thread_report *out)
{
    uint64_t now = kn_now_ns();
    pthread_mutex_lock(&h->lock);
    uint64_t advanced = h->state == ENG_THREAD_READY ? eng_advanced_ns(h->engine) : 0;
    uint64_t since = advanced > h->lent_ns ? advanced : h->lent_ns;
    *out = h->view;
    out->quiet_ns = h->view.n_job && now > since ? now - since : 0;
    pthread_mutex_unlock(&h->lock);
    struct off_store *store = eng_thread_store(h);
    if (store)
        off_stats_get(store, &out->store);
}

struct off_store *eng_thread_store(struct eng_thread *h)
{
    return eng_thread_state(h) == ENG_THREAD_READY ? moe_model_store(eng_model(h->engine)) : NULL;
}
