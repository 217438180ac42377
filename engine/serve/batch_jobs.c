/* engine/serve/batch_jobs.c - the batches of /v1/batches: one thread that works on them, one batch after the other.
 *
 * The thread reads and parses the lines of a batch (engine/batch/batch.h), lends their choices to the engine thread as jobs of
 * ENG_PRIORITY_IDLE, and writes the finished answers.  The serving thread feeds the events of these jobs to their lines.
 *
 *     FREE      no line
 *     WAITING   has a choice that the engine thread has not taken yet: its places may all be in use
 *     LENT      a job of the engine thread; the serving thread feeds its line
 *     OVER      the choice has ended; LOST: its answer is not complete
 *
 * There is no state beside the folder's: whatever stops a batch (the end of the server, a full disk, a lack of memory, its
 * expiry), the batch is closed, and opened again later as after a kill: it reads its own output and answers the missing
 * lines. */
#include <string.h>
#include <time.h>

#include "engine/batch/batch.h"
#include "engine/serve/internal.h"

#define WAIT_S     1     /* between looks at the clock and at the batch's state */
#define RETRY_S    10    /* after a batch could not go on */
#define LINE_SHARE 2     /* a line has at most this part of max_body: reading it takes several times its bytes */
#define MOST_LINES 50000 /* of a batch, as in OpenAI's API: the set of their ids takes memory */

enum choice_state { FREE, WAITING, LENT, OVER, LOST };

struct choice {
    struct eng_job job;
    struct eng_batch_line *line;
    enum choice_state state; /* under lock */
    bool ended;              /* serving thread: its line needs no further event */
};

struct srv_batches {
    struct eng_server *server;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closing, woken;
    int n_choice;
    struct choice *choice; /* [n_choice] */
    struct eng_batch *batch;
    struct eng_batch_line *dealing; /* a line with choices that have no place yet, or NULL */
    bool at_end;
};

/* ---- events: on the serving thread ------------------------------------------------------------- */

void srv_batches_take_event(struct srv_batches *b, const struct eng_job_event *t)
{
    const struct eng_event *e = &t->event;
    struct choice *c = e->owner;
    bool ends = e->finish != ENG_RUNNING, cancelled = ends && e->status == KN_ECANCELLED, lost = cancelled && !c->ended;
    if (!cancelled && !c->ended) {
        struct kn_heap_guard guard = { 0 };
        kn_heap_guard(&guard);
        int got = eng_batch_line_feed(c->line, e);
        kn_heap_guard(NULL);
        lost = got < 0 || guard.denied_bytes;
        c->ended = got == 1 && !lost;
        if ((c->ended || lost) && !ends)
            eng_thread_cancel(b->server->thread, &c->job);
    }
    if (!ends)
        return;
    pthread_mutex_lock(&b->lock);
    c->state = lost ? LOST : OVER;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the batch that is worked on --------------------------------------------------------------- */

/* Waits until a choice ends, the thread is woken, or WAIT_S has passed. */
static void wait(struct srv_batches *b, int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&b->lock);
    while (!b->closing && !b->woken) {
        bool over = false;
        for (int i = 0; i < b->n_choice; i++)
            over = over || b->choice[i].state >= OVER;
        if (over || pthread_cond_timedwait(&b->changed, &b->lock, &until))
            break;
    }
    b->woken = false;
    pthread_mutex_unlock(&b->lock);
}

static bool is_closing(struct srv_batches *b)
{
    pthread_mutex_lock(&b->lock);
    bool closing = b->closing;
    pthread_mutex_unlock(&b->lock);
    return closing;
}

static enum choice_state state_of(struct srv_batches *b, const struct choice *c)
{
    pthread_mutex_lock(&b->lock);
    enum choice_state state = c->state;
    pthread_mutex_unlock(&b->lock);
    return state;
}

static void set_state(struct srv_batches *b, struct choice *c, enum choice_state state)
{
    pthread_mutex_lock(&b->lock);
    c->state = state;
    pthread_mutex_unlock(&b->lock);
}

/* Whether no place has a choice. */
static bool is_idle(struct srv_batches *b)
{
    bool idle = true;
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < b->n_choice; i++)
        idle = idle && b->choice[i].state == FREE;
    pthread_mutex_unlock(&b->lock);
    return idle;
}

/* Takes back all jobs: cancels them, and waits until they have ended, except at the end of the server, when the serving
 * thread takes no more events. */
static void take_back(struct srv_batches *b)
{
    pthread_mutex_lock(&b->lock);
    for (bool lent = true; lent;) {
        lent = false;
        for (int i = 0; i < b->n_choice; i++) {
            struct choice *c = &b->choice[i];
            if (c->state == LENT)
                eng_thread_cancel(b->server->thread, &c->job);
            else
                c->state = FREE;
            lent = lent || c->state == LENT;
        }
        if (b->closing)
            break;
        if (lent)
            pthread_cond_wait(&b->changed, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    b->dealing = NULL;
}

/* Lends the choice to the engine thread: LENT, or still WAITING. */
static void lend(struct srv_batches *b, struct choice *c)
{
    struct eng_job *job = &c->job;
    set_state(b, c, LENT); /* before the first event */
    if (eng_thread_submit(b->server->thread, &job, 1))
        set_state(b, c, WAITING);
}

static void start_choice(struct srv_batches *b, struct choice *c, uint64_t key)
{
    c->line = b->dealing;
    c->ended = false;
    c->job = (struct eng_job){ .of_batch = true };
    eng_batch_line_start(c->line, &c->job.request);
    c->job.request.owner = c;
    c->job.request.priority = ENG_PRIORITY_IDLE;
    c->job.request.user = key;
    c->job.request.salt = srv_salt(b->server, key);
    if (eng_batch_line_is_dealt(c->line))
        b->dealing = NULL;
    lend(b, c);
}

/* Gives a choice to each free place, as long as lines, memory and room on the disk are left. */
static int start_choices(struct srv_batches *b, uint64_t key)
{
    for (int i = 0; i < b->n_choice; i++) {
        struct choice *c = &b->choice[i];
        if (state_of(b, c) == WAITING)
            lend(b, c);
        if (state_of(b, c) != FREE || (!b->dealing && (b->at_end || !eng_store_has_room(b->server->store))))
            continue;
        int got = b->dealing ? 1 : eng_batch_next(b->batch, &b->dealing);
        b->at_end = got == 0;
        if (got == 1)
            start_choice(b, c, key);
        else if (got == KN_ELIMIT)
            return 0;
        else if (got < 0)
            return got;
    }
    return 0;
}

/* Writes the answers that are complete. */
static int end_choices(struct srv_batches *b)
{
    for (int i = 0; i < b->n_choice; i++) {
        struct choice *c = &b->choice[i];
        pthread_mutex_lock(&b->lock);
        enum choice_state state = c->state;
        c->state = state == OVER ? FREE : state;
        pthread_mutex_unlock(&b->lock);
        int error = state == LOST ? KN_ENOMEM : state == OVER ? eng_batch_line_end(b->batch, c->line) : 0;
        if (error)
            return error;
    }
    return 0;
}

/* Tells the store the counts, and the reason if the batch waits. */
static void tell(struct srv_batches *b, struct eng_store_batch *now)
{
    struct eng_batch_counts n;
    eng_batch_counts(b->batch, &n);
    now->total = n.total;
    now->failed = n.failed_before + n.failed;
    now->completed = n.answered_before + n.done - n.failed;
    now->output_bytes = eng_batch_output_bytes(b->batch);
    now->fault_code[0] = now->fault[0] = 0;
    if (!eng_store_has_room(b->server->store)) {
        snprintf(now->fault_code, sizeof now->fault_code, "storage_full");
        snprintf(now->fault, sizeof now->fault,
                 "the files of this server have reached their limit: the batch goes on when some are deleted");
    }
    eng_store_batch_tell(b->server->store, now);
}

/* Works until the batch must be closed; late: its expiry no longer matters.  0: all lines are finished; KN_ECANCELLED: it
 * is cancelled, or has expired, or the server ends; other KN_E*: it cannot go on now. */
static int work_on(struct srv_batches *b, struct eng_store_batch *now, bool late)
{
    struct eng_store_batch stored;
    int error;
    for (;;) {
        if (is_closing(b) || !eng_store_batch_get(b->server->store, now->id, &stored) ||
            stored.state == ENG_BATCH_CANCELLING || (!late && time(NULL) >= now->expires_s))
            return KN_ECANCELLED;
        if ((error = end_choices(b)) || (error = start_choices(b, now->key)) || (error = eng_batch_status(b->batch)))
            return error;
        tell(b, now);
        eng_store_remove_expired(b->server->store, (int64_t)time(NULL));
        if (b->at_end && !b->dealing && is_idle(b))
            return 0;
        wait(b, WAIT_S);
    }
}

/* ---- a batch from its opening to its end ------------------------------------------------------- */

static int open_batch(struct srv_batches *b, const struct eng_store_batch *now)
{
    struct eng_server *s = b->server;
    char in[ENG_PATH_BYTES], out[ENG_PATH_BYTES], errors[ENG_PATH_BYTES];
    enum eng_api api = ENG_API_CHAT;
    (void)eng_record_api(now->endpoint, &api); /* it was checked at the batch's creation */
    eng_store_path(s->store, now->input, in);
    eng_store_path(s->store, now->output, out);
    eng_store_path(s->store, now->errors, errors);
    int error = eng_batch_open(&b->batch, &(struct eng_batch_options){ .in = in,
                                                                       .out = out,
                                                                       .errors = errors,
                                                                       .most_line_bytes = s->limits.body / LINE_SHARE,
                                                                       .api = &api,
                                                                       .most_lines = MOST_LINES,
                                                                       .keep_heap_bytes = s->limits.requests,
                                                                       .most_heap_bytes = s->limits.line });
    b->at_end = false;
    b->dealing = NULL;
    return error ? error : eng_batch_begin(b->batch, &s->setup, b->n_choice + 1);
}

/* The input cannot be read as a batch: it has failed. */
static int fail_batch(struct srv_batches *b, struct eng_store_batch *now, int error)
{
    const char *code = error == KN_ENOENT   ? "input_file_missing"
                       : error == KN_ELIMIT ? "too_many_lines"
                                            : "invalid_input_file";
    snprintf(now->fault_code, sizeof now->fault_code, "%s", code);
    if (error == KN_ELIMIT)
        snprintf(now->fault, sizeof now->fault, "a batch has at most %d lines: send them as several", MOST_LINES);
    else
        snprintf(now->fault, sizeof now->fault, "%s",
                 error == KN_ENOENT
                     ? "the input file is no longer there"
                     : "the input file has no lines, or is not plain UTF-8 text with a JSON object in each line");
    eng_store_batch_tell(b->server->store, now);
    return eng_store_batch_end(b->server->store, now->id, ENG_BATCH_FAILED, (int64_t)time(NULL));
}

static int enter(struct srv_batches *b, const struct eng_store_batch *now, enum eng_batch_state state)
{
    return eng_store_batch_enter(b->server->store, now->id, state, (int64_t)time(NULL));
}

/* Makes the outputs files, and ends the batch: all answers are on disk before. */
static int end_batch(struct srv_batches *b, struct eng_store_batch *now, bool cancelled, bool expired)
{
    int error = cancelled ? 0 : enter(b, now, ENG_BATCH_FINALIZING);
    cancelled = cancelled || error == KN_ECANCELLED;
    if (error && error != KN_ECANCELLED)
        return error;
    if ((error = eng_batch_settle(b->batch)))
        return error;
    tell(b, now);
    enum eng_batch_state last = cancelled ? ENG_BATCH_CANCELLED : expired ? ENG_BATCH_EXPIRED : ENG_BATCH_COMPLETED;
    error = eng_store_batch_end(b->server->store, now->id, last, (int64_t)time(NULL));
    if (!error)
        kn_say(KN_LOG_INFO, "%s: %s; %llu lines, %llu failed", now->id,
               cancelled ? "cancelled"
               : expired ? "expired"
                         : "completed",
               (unsigned long long)now->total, (unsigned long long)now->failed);
    return error;
}

/* 0: the batch has ended; KN_ECANCELLED: it must be opened again at once, or the server ends; other KN_E*: later. */
static int run_batch(struct srv_batches *b, struct eng_store_batch *now)
{
    bool cancelled = now->state == ENG_BATCH_CANCELLING, finalizing = now->state == ENG_BATCH_FINALIZING;
    bool expired = (finalizing ? now->at_s[ENG_BATCH_FINALIZING] : (int64_t)time(NULL)) >= now->expires_s;
    int error = open_batch(b, now);
    if (error == KN_EUNSUPPORTED || error == KN_ENOENT || error == KN_ELIMIT)
        return fail_batch(b, now, error);
    if (error)
        return error;
    if (now->state == ENG_BATCH_VALIDATING && (error = enter(b, now, ENG_BATCH_IN_PROGRESS)))
        return error;
    if (expired && !cancelled) { /* on disk before the first line that says so */
        if ((error = enter(b, now, ENG_BATCH_FINALIZING)))
            return error;
        eng_batch_expire(b->batch);
    }
    if (!cancelled && (error = work_on(b, now, expired || finalizing)))
        return error;
    return end_batch(b, now, cancelled, expired);
}

/* After the end of the server the lines are closed by srv_batches_close, since the engine thread may still have them. */
static void close_batch(struct srv_batches *b)
{
    take_back(b);
    if (is_closing(b) && b->batch) {
        (void)eng_batch_settle(b->batch);
    } else {
        eng_batch_close(b->batch);
        b->batch = NULL;
    }
}

static void say_waits(struct srv_batches *b, struct eng_store_batch *now, int error)
{
    snprintf(now->fault_code, sizeof now->fault_code, "server_error");
    snprintf(now->fault, sizeof now->fault, "the batch cannot go on now (%s) and is tried again", kn_error_text(error));
    eng_store_batch_tell(b->server->store, now);
    kn_say(KN_LOG_WARN, "%s: cannot go on now (%s); it is tried again every %d s", now->id, kn_error_text(error),
           RETRY_S);
}

static void *work(void *arg)
{
    struct srv_batches *b = arg;
    struct eng_store_batch now;
    char after[ENG_STORE_ID_BYTES] = "";
    kn_thread_give_way();
    while (!is_closing(b)) {
        eng_store_remove_expired(b->server->store, (int64_t)time(NULL));
        if (!eng_store_batch_next(b->server->store, after, &now)) {
            wait(b, RETRY_S);
            after[0] = 0;
            continue;
        }
        int error = run_batch(b, &now);
        close_batch(b);
        if (error && error != KN_ECANCELLED) {
            say_waits(b, &now, error);
            memcpy(after, now.id, sizeof after);
        }
    }
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------- */

int srv_batches_open(struct eng_server *s)
{
    pthread_condattr_t monotonic;
    struct srv_batches *b = kn_calloc(1, sizeof *b);
    if (!b)
        return kn_fail(KN_ENOMEM, "no memory for batches");
    s->batches = b;
    b->server = s;
    b->n_choice = s->opt.engine.n_parallel;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    b->choice = kn_calloc((size_t)b->n_choice, sizeof *b->choice);
    if (!b->choice)
        return kn_fail(KN_ENOMEM, "no memory for batches");
    b->started = pthread_create(&b->thread, NULL, work, b) == 0;
    return b->started ? 0 : kn_fail(KN_ELIMIT, "the system cannot start a thread for batches");
}

void srv_batches_wake(struct eng_server *s)
{
    struct srv_batches *b = s->batches;
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void srv_batches_stop(struct eng_server *s)
{
    struct srv_batches *b = s->batches;
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

void srv_batches_join(struct eng_server *s)
{
    srv_batches_stop(s);
    if (s->batches && s->batches->started)
        pthread_join(s->batches->thread, NULL);
    if (s->batches)
        s->batches->started = false;
}

void srv_batches_close(struct eng_server *s)
{
    struct srv_batches *b = s->batches;
    if (!b)
        return;
    eng_batch_close(b->batch);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    kn_free(b->choice);
    kn_free(b);
    s->batches = NULL;
}
