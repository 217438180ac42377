/* Streams and events.  The work of each stream is a queue; one thread, the device, runs the works one at a time.
 *
 * A work may run when it is the first of its stream and waits for nothing: an event, a value in memory, works of the
 * default stream.  Of the streams whose first work may run, the seed chooses one: two works that no event orders run in
 * either order.  The device is late: it starts when the host waits for something, or after a while (1 ms) without new
 * work, for hosts that look at memory which the device writes.
 *
 * A clock of each stream holds, for all streams, the operations that came before: it is handed on by events, by values
 * that a stream writes and another waits for, and by the host when it has waited.  The shadow of memory (shadow.h) asks
 * it whether two accesses are ordered. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/streams.h"

static struct gpu_stream streams[GPU_STREAMS]; /* the first is the default stream */
static struct gpu_clock host_clock;
pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_work, has_run;
static bool is_started, looks_for_races = true;
static unsigned idle_ms = 1; /* without new work, until the device starts by itself */
static int n_waiting;
static unsigned n_channel; /* streams of a channel run as one queue; 0: each stream has its own */
static uint64_t n_order, n_submitted, n_done, choice_seed;
static struct timespec last_submit;
static unsigned n_asked; /* since then, whether a stream is ready: a host that asks again waits */
static _Thread_local bool in_host_function;

/* The clocks of values that streams have written. */
static struct {
    uint64_t address;
    struct gpu_clock clock;
} written[64];
static unsigned n_written;

static void join(struct gpu_clock *to, const struct gpu_clock *from)
{
    for (int s = 0; s < GPU_STREAMS; s++)
        to->n[s] = to->n[s] < from->n[s] ? from->n[s] : to->n[s];
}

static int number_of(const struct gpu_stream *s) { return (int)(s - streams); }

struct gpu_stream *gpu_find_stream(struct gpu_stream *s)
{
    if (!s || s == (void *)1 || s == (void *)2) /* the default stream's other names */
        return streams;
    if (s < streams || s >= streams + GPU_STREAMS || !s->is_open || s->is_destroyed)
        return NULL;
    return s;
}

bool gpu_in_host_function(void) { return in_host_function; }

void gpu_streams_seed(uint64_t seed)
{
    pthread_mutex_lock(&gpu_lock);
    choice_seed = seed;
    pthread_mutex_unlock(&gpu_lock);
}

/* For tests and programs that share memory with the device in ways that the clocks do not see. */
GPU_API void spillway_gpu_races(int on)
{
    pthread_mutex_lock(&gpu_lock);
    looks_for_races = on;
    pthread_mutex_unlock(&gpu_lock);
}

/* For tests: how long the device waits for the host to wait, when there is no new work. */
GPU_API void spillway_gpu_idle(unsigned ms)
{
    pthread_mutex_lock(&gpu_lock);
    idle_ms = ms;
    if (is_started)
        pthread_cond_signal(&has_work);
    pthread_mutex_unlock(&gpu_lock);
}

/* For tests: a GPU has few channels; the driver takes their number from CUDA_DEVICE_MAX_CONNECTIONS. */
GPU_API void spillway_gpu_channels(unsigned n)
{
    pthread_mutex_lock(&gpu_lock);
    n_channel = n;
    pthread_mutex_unlock(&gpu_lock);
}

/* ---- running one work, without the lock ------------------------------------------------------------------ */

static int touch_range(struct gpu_actor *a, uint64_t at, uint64_t bytes, enum gpu_use use, char *error, size_t room)
{
    const char *with;
    if (!gpu_is_device(at) || !gpu_touch(a, at, bytes, use, true, &with))
        return GPU_OK;
    snprintf(error, room, "race: a copy or fill %s %llu bytes of device memory at %#llx, unordered with %s",
             use == GPU_READ ? "reads" : "writes", (unsigned long long)bytes, (unsigned long long)at, with);
    return GPU_LAUNCH_FAILED;
}

static int run_copy(const struct gpu_work *w, struct gpu_actor *a, char *error, size_t room)
{
    bool is_copy = w->kind == WORK_COPY;
    const char *reason = gpu_is_device(w->to) ? gpu_check(w->to, w->bytes) : NULL;
    if (!reason && is_copy && gpu_is_device(w->from))
        reason = gpu_check(w->from, w->bytes);
    if (reason) {
        snprintf(error, room, "a %s of %llu bytes: %s", is_copy ? "copy" : "fill", (unsigned long long)w->bytes,
                 reason);
        return GPU_ILLEGAL_ADDRESS;
    }
    int code = is_copy ? touch_range(a, w->from, w->bytes, GPU_READ, error, room) : GPU_OK;
    if (!code)
        code = touch_range(a, w->to, w->bytes, GPU_WRITE, error, room);
    if (code)
        return code;
    if (!is_copy)
        memset((void *)(uintptr_t)w->to, (int)w->value, w->bytes);
    else
        memmove((void *)(uintptr_t)w->to, (const void *)(uintptr_t)w->from, w->bytes);
    if (!gpu_is_device(w->to))
        return GPU_OK;
    if (!is_copy || gpu_is_defined(w->from, w->bytes))
        gpu_define(w->to, w->bytes, true);
    else
        for (uint64_t i = 0; i < w->bytes; i++)
            gpu_define(w->to + i, 1, gpu_is_defined(w->from + i, 1));
    return GPU_OK;
}

static uint64_t read_value(const struct gpu_work *w)
{
    return w->bytes == 8 ? __atomic_load_n((const uint64_t *)(uintptr_t)w->to, __ATOMIC_ACQUIRE)
                         : __atomic_load_n((const uint32_t *)(uintptr_t)w->to, __ATOMIC_ACQUIRE);
}

static int write_value(const struct gpu_work *w, struct gpu_actor *a, char *error, size_t room)
{
    const char *reason = gpu_check(w->to, w->bytes);
    if (reason) {
        snprintf(error, room, "a stream writes a value: %s", reason);
        return GPU_ILLEGAL_ADDRESS;
    }
    (void)a; /* values are for others to wait for: no race */
    if (w->bytes == 8)
        __atomic_store_n((uint64_t *)(uintptr_t)w->to, w->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)(uintptr_t)w->to, (uint32_t)w->value, __ATOMIC_RELEASE);
    if (gpu_is_device(w->to))
        gpu_define(w->to, w->bytes, true);
    return GPU_OK;
}

static int run_work(struct gpu_work *w, struct gpu_actor *a, char *error, size_t room)
{
    switch (w->kind) {
    case WORK_LAUNCH:
        w->launch.operation = a->operation;
        w->launch.before = a->before;
        return ptx_launch_run(&w->launch, error, room);
    case WORK_COPY:
    case WORK_FILL:
        return run_copy(w, a, error, room);
    case WORK_WRITE:
        return write_value(w, a, error, room);
    case WORK_HOST:
        in_host_function = true;
        w->host(w->arg);
        in_host_function = false;
        return GPU_OK;
    default:
        return GPU_OK;
    }
}

/* ---- the device ------------------------------------------------------------------------------------------- */

static bool value_is_there(const struct gpu_work *w)
{
    uint64_t v = read_value(w), want = w->bytes == 8 ? w->value : (uint32_t)w->value;
    int64_t difference = w->bytes == 8 ? (int64_t)(v - want) : (int32_t)((uint32_t)v - (uint32_t)want);
    switch (w->flags & 3) {
    case 0:
        return difference >= 0;
    case 1:
        return v == want;
    case 2:
        return (v & want) != 0;
    default:
        return ~(v | want) != 0;
    }
}

/* May the first work of this stream run?  The default stream and blocking streams wait for each other, and so do those of a
 * channel. */
static bool may_run(const struct gpu_stream *s)
{
    const struct gpu_queued *q = s->first;
    if (!q)
        return false;
    for (int k = 0; k < GPU_STREAMS; k++) {
        const struct gpu_stream *other = streams + k;
        bool ordered = other != s && (s == streams ? !other->non_blocking : other == streams && !s->non_blocking);
        ordered |= other != s && n_channel && (unsigned)number_of(s) % n_channel == (unsigned)k % n_channel;
        if (ordered && other->first && other->first->order < q->order)
            return false;
    }
    if (q->work.kind == WORK_WAIT_EVENT)
        return q->work.event->done >= q->work.event_number;
    return q->work.kind != WORK_WAIT_VALUE || value_is_there(&q->work);
}

/* Without a seed, the oldest work; with one, any, and often one of the same stream again. */
static struct gpu_stream *choose(struct gpu_stream *before)
{
    struct gpu_stream *ready[GPU_STREAMS], *oldest = NULL;
    unsigned n = 0;
    for (int k = 0; k < GPU_STREAMS; k++)
        if (may_run(streams + k)) {
            ready[n++] = streams + k;
            if (!oldest || streams[k].first->order < oldest->first->order)
                oldest = streams + k;
        }
    if (!n || !choice_seed)
        return oldest;
    uint64_t r = ptx_random(&choice_seed);
    for (unsigned k = 0; k < n; k++)
        if (ready[k] == before && r & 1)
            return before;
    return ready[(r >> 1) % n];
}

void gpu_release_event(struct gpu_event *e)
{
    if (e && !--e->users && e->is_destroyed)
        free(e);
}

/* The clock of the work, before it runs. */
static void advance(struct gpu_stream *s, const struct gpu_queued *q)
{
    join(&s->clock, &q->host);
    for (int k = 0; k < GPU_STREAMS; k++)
        if (s == streams ? !streams[k].non_blocking : !k && !s->non_blocking)
            join(&s->clock, &streams[k].clock);
    if (q->work.kind == WORK_WAIT_EVENT)
        join(&s->clock, &q->work.event->clock);
    for (unsigned k = 0; k < 64 && q->work.kind == WORK_WAIT_VALUE; k++)
        if (written[k].address == q->work.to)
            join(&s->clock, &written[k].clock);
    if (q->work.kind == WORK_WAIT_VALUE)
        join(&s->clock, &host_clock); /* the host may have written it */
}

static void publish(struct gpu_stream *s, const struct gpu_queued *q)
{
    struct gpu_event *e = q->work.event;
    if (q->work.kind == WORK_RECORD) {
        e->clock = s->clock;
        e->done = q->work.event_number;
        clock_gettime(CLOCK_MONOTONIC, &e->time);
    }
    if (q->work.kind == WORK_WRITE) {
        unsigned k = 0;
        while (k < 64 && written[k].address != q->work.to)
            k++;
        k = k < 64 ? k : n_written++ % 64;
        written[k].address = q->work.to;
        written[k].clock = s->clock;
    }
}

static void run_first(struct gpu_stream *s)
{
    struct gpu_queued *q = s->first;
    char error[1000] = "";
    advance(s, q);
    struct gpu_clock before = s->clock;
    uint32_t n = ++s->clock.n[number_of(s)];
    uint32_t published = 0;
    struct gpu_actor a = { .operation = looks_for_races ? GPU_OPERATION(number_of(s), n) : 0,
                           .before = &before,
                           .n_block = 1,
                           .published = &published };
    int code = 0;
    if (!gpu_lost_code()) { /* a lost device only counts its work as done */
        pthread_mutex_unlock(&gpu_lock);
        code = run_work(&q->work, &a, error, sizeof error);
        pthread_mutex_lock(&gpu_lock);
    }
    if (code)
        gpu_lost(code, error);
    publish(s, q);
    gpu_release_event(q->work.event);
    s->first = q->next;
    s->last = s->first ? s->last : NULL;
    s->done++;
    n_done++;
    free(q->work.owned);
    free(q);
    if (s->is_destroyed && !s->first)
        s->is_open = false;
    pthread_cond_broadcast(&has_run);
}

static bool is_idle_long(struct timespec *until)
{
    struct timespec now;
    *until = last_submit;
    until->tv_sec += idle_ms / 1000;
    until->tv_nsec += idle_ms % 1000 * 1000000;
    if (until->tv_nsec >= 1000000000) {
        until->tv_nsec -= 1000000000;
        until->tv_sec++;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
}

static void *device(void *unused)
{
    struct gpu_stream *s = NULL;
    struct timespec until;
    (void)unused;
    pthread_mutex_lock(&gpu_lock);
    for (;;) {
        if (n_done == n_submitted)
            pthread_cond_wait(&has_work, &gpu_lock);
        else if (!n_waiting && n_asked < 2 && !is_idle_long(&until))
            pthread_cond_timedwait(&has_work, &gpu_lock, &until);
        else if ((s = choose(s)))
            run_first(s);
        else { /* all wait for values that the host will write */
            pthread_mutex_unlock(&gpu_lock);
            nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
            pthread_mutex_lock(&gpu_lock);
        }
    }
    return NULL;
}

static int start_device(void)
{
    pthread_condattr_t monotonic;
    pthread_t thread;
    if (is_started)
        return GPU_OK;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&has_work, &monotonic);
    pthread_cond_init(&has_run, &monotonic);
    const char *channels = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    n_channel = channels ? (unsigned)strtoul(channels, NULL, 10) : 0;
    streams[0].is_open = true;
    if (pthread_create(&thread, NULL, device, NULL))
        return GPU_OUT_OF_MEMORY;
    pthread_detach(thread);
    is_started = true;
    return GPU_OK;
}

/* ---- submitting and waiting --------------------------------------------------------------------------------- */

/* A copy from pageable memory has been staged when its call returns.  A copy from memory of which a part is registered is
 * refused. */
static int stage(struct gpu_work *w)
{
    if (w->kind != WORK_COPY || gpu_is_device(w->from) || gpu_host_has(w->from, w->bytes))
        return GPU_OK;
    if (gpu_host_meets(w->from, w->bytes))
        return GPU_INVALID_VALUE;
    w->owned = malloc(w->bytes);
    if (!w->owned)
        return GPU_OUT_OF_MEMORY;
    memcpy(w->owned, (const void *)(uintptr_t)w->from, w->bytes);
    w->from = (uint64_t)(uintptr_t)w->owned;
    return GPU_OK;
}

/* With the lock. */
int gpu_enqueue(struct gpu_stream *s, const struct gpu_work *w)
{
    if (s->capture)
        return gpu_capture_work(s, w);
    struct gpu_queued *q = calloc(1, sizeof *q);
    if (!q)
        return GPU_OUT_OF_MEMORY;
    q->work = *w;
    int error = stage(&q->work);
    if (!error)
        error = start_device();
    if (error) {
        free(q);
        return error;
    }
    q->order = ++n_order;
    q->host = host_clock;
    if (s->last)
        s->last->next = q;
    else
        s->first = q;
    s->last = q;
    if (w->event)
        w->event->users++;
    s->submitted++;
    n_submitted++;
    clock_gettime(CLOCK_MONOTONIC, &last_submit);
    n_asked = 0;
    pthread_cond_signal(&has_work);
    return GPU_OK;
}

int gpu_submit(struct gpu_stream *handle, const struct gpu_work *w)
{
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int error = s ? gpu_enqueue(s, w) : GPU_INVALID_HANDLE;
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

/* With the lock: until the stream has run the works that it has now. */
static void wait_for(struct gpu_stream *s)
{
    uint64_t target = s->submitted;
    n_waiting++;
    pthread_cond_signal(&has_work);
    while (is_started && s->done < target)
        pthread_cond_wait(&has_run, &gpu_lock);
    n_waiting--;
    join(&host_clock, &s->clock);
}

int gpu_wait_stream(struct gpu_stream *handle)
{
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    bool captured = s && s->capture;
    if (captured)
        gpu_capture_break(s);
    else if (s)
        wait_for(s);
    pthread_mutex_unlock(&gpu_lock);
    return captured ? GPU_CAPTURE_UNSUPPORTED : s ? gpu_lost_code() : GPU_INVALID_HANDLE;
}

int gpu_wait_all(void)
{
    pthread_mutex_lock(&gpu_lock);
    for (int k = 0; k < GPU_STREAMS; k++)
        if (streams[k].is_open)
            wait_for(streams + k);
    pthread_mutex_unlock(&gpu_lock);
    return gpu_lost_code();
}

/* ---- the functions of streams ---------------------------------------------------------------------------------- */

/* The clock of a stream's place goes on: numbers of operations are not used twice. */
struct gpu_stream *gpu_open_stream(bool non_blocking)
{
    int k = 1;
    while (k < GPU_STREAMS && streams[k].is_open)
        k++;
    if (start_device() || k == GPU_STREAMS)
        return NULL;
    streams[k].is_open = true;
    streams[k].is_destroyed = false;
    streams[k].non_blocking = non_blocking;
    streams[k].capture = NULL;
    return streams + k;
}

void gpu_close_stream(struct gpu_stream *s)
{
    s->is_destroyed = true;
    s->is_open = s->first != NULL;
}

GPU_API int cuStreamCreate(struct gpu_stream **stream, unsigned flags)
{
    GPU_ENTER;
    if (!stream || flags > 1)
        return GPU_INVALID_VALUE;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_open_stream(flags & 1);
    if (s)
        *stream = s;
    pthread_mutex_unlock(&gpu_lock);
    return s ? GPU_OK : GPU_OUT_OF_MEMORY;
}
GPU_API int cuStreamCreateWithPriority(struct gpu_stream **stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

GPU_API int cuStreamDestroy_v2(struct gpu_stream *handle)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    bool ok = s && s != streams;
    if (ok)
        gpu_close_stream(s);
    pthread_mutex_unlock(&gpu_lock);
    return ok ? GPU_OK : GPU_INVALID_HANDLE;
}

GPU_API int cuStreamSynchronize(struct gpu_stream *s)
{
    GPU_ENTER;
    return gpu_wait_stream(s);
}

GPU_API int cuStreamQuery(struct gpu_stream *handle)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int code = !s ? GPU_INVALID_HANDLE : s->done < s->submitted ? GPU_NOT_READY : GPU_OK;
    if (!code)
        join(&host_clock, &s->clock);
    if (code == GPU_NOT_READY && n_asked++)
        pthread_cond_signal(&has_work);
    pthread_mutex_unlock(&gpu_lock);
    return code ? code : gpu_lost_code();
}

GPU_API int cuLaunchHostFunc(struct gpu_stream *s, void (*host)(void *), void *arg)
{
    GPU_ENTER;
    return host ? gpu_submit(s, &(struct gpu_work){ .kind = WORK_HOST, .host = host, .arg = arg }) : GPU_INVALID_VALUE;
}

static int value(struct gpu_stream *s, enum gpu_work_kind kind, uint64_t at, uint64_t v, unsigned flags, unsigned bytes)
{
    if (at % bytes || gpu_check(at, bytes))
        return GPU_INVALID_VALUE;
    return gpu_submit(s, &(struct gpu_work){ .kind = kind, .to = at, .value = v, .flags = flags, .bytes = bytes });
}

GPU_API int cuStreamWriteValue32_v2(struct gpu_stream *s, uint64_t at, uint32_t v, unsigned flags)
{
    GPU_ENTER;
    return value(s, WORK_WRITE, at, v, flags, 4);
}
GPU_API int cuStreamWriteValue64_v2(struct gpu_stream *s, uint64_t at, uint64_t v, unsigned flags)
{
    GPU_ENTER;
    return value(s, WORK_WRITE, at, v, flags, 8);
}
GPU_API int cuStreamWaitValue32_v2(struct gpu_stream *s, uint64_t at, uint32_t v, unsigned flags)
{
    GPU_ENTER;
    return value(s, WORK_WAIT_VALUE, at, v, flags, 4);
}
GPU_API int cuStreamWaitValue64_v2(struct gpu_stream *s, uint64_t at, uint64_t v, unsigned flags)
{
    GPU_ENTER;
    return value(s, WORK_WAIT_VALUE, at, v, flags, 8);
}

/* ---- the functions of events ------------------------------------------------------------------------------------- */

GPU_API int cuEventCreate(struct gpu_event **event, unsigned flags)
{
    GPU_ENTER;
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? GPU_OK : GPU_OUT_OF_MEMORY;
}

/* Frees the event also after an error. */
GPU_API int cuEventDestroy_v2(struct gpu_event *e)
{
    int error = gpu_enter(__func__);
    if (!e)
        return GPU_INVALID_HANDLE;
    pthread_mutex_lock(&gpu_lock);
    e->is_destroyed = true;
    e->users++;
    gpu_release_event(e);
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

GPU_API int cuEventRecord(struct gpu_event *e, struct gpu_stream *handle)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int error = e && s ? GPU_OK : GPU_INVALID_HANDLE;
    bool captured = !error && s->capture;
    if (captured)
        error = gpu_capture_record(s, e);
    else if (!error)
        error = gpu_enqueue(s, &(struct gpu_work){ .kind = WORK_RECORD, .event = e, .event_number = e->recorded + 1 });
    if (!error && !captured) {
        e->recorded++;
        e->capture = NULL;
    }
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

/* An event that was never recorded is no reason to wait. */
GPU_API int cuStreamWaitEvent(struct gpu_stream *handle, struct gpu_event *e, unsigned flags)
{
    GPU_ENTER;
    (void)flags;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int error = e && s ? GPU_OK : GPU_INVALID_HANDLE;
    if (!error && (s->capture || e->capture))
        error = gpu_capture_wait(s, e);
    else if (!error && e->recorded)
        error = gpu_enqueue(s, &(struct gpu_work){ .kind = WORK_WAIT_EVENT, .event = e, .event_number = e->recorded });
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

GPU_API int cuEventQuery(struct gpu_event *e)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    bool done = e->done == e->recorded;
    if (done)
        join(&host_clock, &e->clock);
    pthread_mutex_unlock(&gpu_lock);
    return done ? gpu_lost_code() : GPU_NOT_READY;
}

GPU_API int cuEventSynchronize(struct gpu_event *e)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    uint64_t target = e->recorded;
    n_waiting++;
    pthread_cond_signal(&has_work);
    while (is_started && e->done < target)
        pthread_cond_wait(&has_run, &gpu_lock);
    n_waiting--;
    join(&host_clock, &e->clock);
    pthread_mutex_unlock(&gpu_lock);
    return gpu_lost_code();
}

/* The time is that of the interpreter: it says nothing about a GPU. */
GPU_API int cuEventElapsedTime(float *ms, struct gpu_event *from, struct gpu_event *to)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    bool done = from->recorded && to->recorded && from->done == from->recorded && to->done == to->recorded;
    if (done)
        *ms = (float)(to->time.tv_sec - from->time.tv_sec) * 1e3f +
              (float)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6f;
    pthread_mutex_unlock(&gpu_lock);
    return done ? GPU_OK : GPU_NOT_READY;
}
GPU_API int cuEventElapsedTime_v2(float *ms, struct gpu_event *from, struct gpu_event *to)
{
    return cuEventElapsedTime(ms, from, to);
}
