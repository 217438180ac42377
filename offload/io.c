/* The I/O thread: takes jobs by urgency, passes them to the reader, and reports their ends.
 *
 * A job is in the queue of its urgency until all its bytes have been handed to transfers; from then on it
 * belongs to the reader.  A job is handed out only while no job of a higher urgency is queued, and the
 * reader limits the bytes under way of each urgency.
 *
 *   lock     guards the queues, events, closing, asleep, name, the reader's mover (off_reader_mend replaces it),
 *            and of a queued job: next, urgency, begun
 *   changed  condition: `events` has risen (off_io_wait waits for it), or the I/O thread has opened its reader, or
 *            failed to (off_io_open waits for it)
 *   state    of a job: DONE is stored (release) after status and the data; pairs with the acquire of waiting threads
 *   asleep   the I/O thread is in off_reader_pull and could push a NOW transfer: the next post or raise wakes it */
#include "offload/internal.h"

#include <pthread.h>

struct queue {
    struct off_job *first, **last;
};

struct off_io {
    struct off_reader *reader;     /* used by the I/O thread only */
    const struct off_files *files; /* files, options: only while opening */
    const struct off_io_options *options;
    const char *name;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct queue queue[OFF_URGENCIES];
    uint64_t events;
    bool opened, closing, asleep;
    int error; /* of opening */
};

/* ---- queues: call with the lock held -------------------------------------------------------------- */

static void append(struct off_io *io, struct off_job *job)
{
    struct queue *q = &io->queue[job->urgency];
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
}

static bool unlink_job(struct off_io *io, struct off_job *job)
{
    struct queue *q = &io->queue[job->urgency];
    for (struct off_job **at = &q->first; *at; at = &(*at)->next)
        if (*at == job) {
            *at = job->next;
            if (!*at)
                q->last = at;
            return true;
        }
    return false;
}

static void finish(struct off_io *io, struct off_job *job)
{
    io->events++;
    atomic_store_explicit(&job->state, OFF_JOB_DONE, memory_order_release);
}

static void finish_all(struct off_io *io, struct off_job *job)
{
    for (struct off_job *next; job; job = next) {
        next = job->next;
        if (job->begun < off_reader_span(job)) /* failed before all bytes were handed out */
            unlink_job(io, job);
        finish(io, job);
    }
}

static void wake(struct off_io *io)
{
    if (io->asleep)
        off_reader_wake(io->reader);
    io->asleep = false;
}

/* ---- the thread ---------------------------------------------------------------------------------- */

static void hand_out(struct off_io *io)
{
    for (int u = OFF_NOW; u < OFF_URGENCIES; u++) {
        struct off_job *job;
        while ((job = io->queue[u].first) != NULL && off_reader_room(io->reader, (enum off_urgency)u)) {
            atomic_store_explicit(&job->state, OFF_JOB_READING, memory_order_relaxed);
            if (off_reader_push(io->reader, job))
                unlink_job(io, job);
        }
        if (job)
            return;
    }
}

/* Removes all jobs from the queues, with status KN_ECANCELLED if they have no error yet.  Those with transfers under
 * way become DONE when the transfers end, the others at once. */
static void drop_all(struct off_io *io)
{
    for (int u = OFF_NOW; u < OFF_URGENCIES; u++)
        for (struct off_job *job; (job = io->queue[u].first) != NULL;) {
            unlink_job(io, job);
            job->begun = off_reader_span(job);
            if (!job->status)
                job->status = KN_ECANCELLED;
            if (job->n_under_way == 0)
                finish(io, job);
        }
}

static void serve(struct off_io *io)
{
    for (;;) {
        if (io->closing)
            drop_all(io);
        hand_out(io);
        if (io->closing && off_reader_idle(io->reader))
            return;
        io->asleep = off_reader_room(io->reader, OFF_NOW);
        pthread_mutex_unlock(&io->lock);
        int n_late = 0;
        struct off_job *ended = off_reader_pull(io->reader, &n_late);
        pthread_mutex_lock(&io->lock);
        io->asleep = false;
        io->events += (uint64_t)n_late;
        finish_all(io, ended);
        finish_all(io, off_reader_mend(io->reader));
        io->name = off_reader_name(io->reader);
        pthread_cond_broadcast(&io->changed);
    }
}

/* The thread opens its reader itself, because a ring may only be used by the thread that made it. */
static void *io_main(void *arg)
{
    struct off_io *io = arg;
    struct off_reader *reader = NULL;
    kn_thread_hurry();
    int error = off_reader_open(&reader, io->files, io->options);
    pthread_mutex_lock(&io->lock);
    io->reader = reader;
    io->error = error;
    io->opened = true;
    pthread_cond_broadcast(&io->changed);
    if (!error)
        serve(io);
    pthread_cond_broadcast(&io->changed);
    pthread_mutex_unlock(&io->lock);
    off_reader_close(reader);
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------- */

int off_io_open(struct off_io **out, const struct off_files *files, const struct off_io_options *opt)
{
    if (files->n_file > OFF_MAX_FILES)
        return kn_fail(KN_ELIMIT, "the model has %d files; at most %d are supported", files->n_file, OFF_MAX_FILES);
    struct off_io *io = kn_calloc(1, sizeof *io);
    if (!io)
        return kn_fail(KN_ENOMEM, "no memory for reading");
    io->files = files;
    io->options = opt;
    for (int u = OFF_NOW; u < OFF_URGENCIES; u++)
        io->queue[u].last = &io->queue[u].first;
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->changed, NULL);
    bool started = pthread_create(&io->thread, NULL, io_main, io) == 0;
    pthread_mutex_lock(&io->lock);
    while (started && !io->opened)
        pthread_cond_wait(&io->changed, &io->lock);
    int error = started ? io->error : kn_fail(KN_ENOMEM, "cannot start the reading thread");
    pthread_mutex_unlock(&io->lock);
    if (error) {
        if (started)
            pthread_join(io->thread, NULL);
        pthread_cond_destroy(&io->changed);
        pthread_mutex_destroy(&io->lock);
        kn_free(io);
        return error;
    }
    io->name = off_reader_name(io->reader);
    *out = io;
    return 0;
}

void off_io_close(struct off_io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->lock);
    io->closing = true;
    wake(io);
    pthread_mutex_unlock(&io->lock);
    pthread_join(io->thread, NULL);
    pthread_cond_destroy(&io->changed);
    pthread_mutex_destroy(&io->lock);
    kn_free(io);
}

const char *off_io_name(struct off_io *io)
{
    pthread_mutex_lock(&io->lock);
    const char *name = io->name;
    pthread_mutex_unlock(&io->lock);
    return name;
}

/* ---- jobs ---------------------------------------------------------------------------------------- */

void off_io_post(struct off_io *io, struct off_job *job)
{
    kn_assert(job->bytes > 0 && (uintptr_t)job->to % OFF_PAGE == 0);
    job->status = job->n_under_way = 0;
    job->begun = 0;
    job->plain = job->mirrored = false;
    atomic_store_explicit(&job->late, false, memory_order_relaxed);
    pthread_mutex_lock(&io->lock);
    atomic_store_explicit(&job->state, OFF_JOB_QUEUED, memory_order_relaxed);
    append(io, job);
    wake(io);
    pthread_mutex_unlock(&io->lock);
}

bool off_io_cancel(struct off_io *io, struct off_job *job)
{
    pthread_mutex_lock(&io->lock);
    bool queued = atomic_load_explicit(&job->state, memory_order_relaxed) == OFF_JOB_QUEUED;
    if (queued) {
        unlink_job(io, job);
        atomic_store_explicit(&job->state, OFF_JOB_IDLE, memory_order_relaxed);
    }
    pthread_mutex_unlock(&io->lock);
    return queued;
}

void off_io_raise(struct off_io *io, struct off_job *job)
{
    pthread_mutex_lock(&io->lock);
    if (job->urgency != OFF_NOW && unlink_job(io, job)) {
        job->urgency = OFF_NOW;
        append(io, job);
        wake(io);
    }
    pthread_mutex_unlock(&io->lock);
}

int off_io_await(struct off_io *io, const struct off_job *job)
{
    uint64_t seen = off_io_events(io);
    while (atomic_load_explicit(&job->state, memory_order_acquire) != OFF_JOB_DONE)
        seen = off_io_wait(io, seen);
    return job->status;
}

/* ---- events -------------------------------------------------------------------------------------- */

uint64_t off_io_events(struct off_io *io)
{
    pthread_mutex_lock(&io->lock);
    uint64_t events = io->events;
    pthread_mutex_unlock(&io->lock);
    return events;
}

uint64_t off_io_wait(struct off_io *io, uint64_t seen)
{
    pthread_mutex_lock(&io->lock);
    while (io->events <= seen)
        pthread_cond_wait(&io->changed, &io->lock);
    uint64_t events = io->events;
    pthread_mutex_unlock(&io->lock);
    return events;
}

void off_io_nudge(struct off_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->events++;
    pthread_cond_broadcast(&io->changed);
    pthread_mutex_unlock(&io->lock);
}
