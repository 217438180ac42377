/* engine/base/progress.c - the progress bar on stderr while a model loads or a command runs.
 *
 * In: the counters of total and done bytes, which other threads advance.  Out: a line on stderr with per cent, bytes,
 * bytes per second and time left.  A thread of its own draws the bar, so the working threads never wait for the
 * terminal.  The rate is that of the last 3 s and not the mean since the start, since it gives the time left.
 *
 * Without a terminal, or when quiet, no thread is started and nothing is written. */
#include "engine/base/base.h"
#include "engine/base/stderr_line.h"
#include "offload/offload.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define DRAW_NS    100000000
#define N_PAST     32 /* the rate is measured over this many drawings: 3 s */
#define ERASE_LINE "\r\033[K"

struct eng_progress {
    struct off_progress counter; /* advanced by the working threads, relaxed order */
    const char *what, *unit;     /* unit NULL: bytes */
    uint64_t start_ns;
    struct {
        uint64_t ns, bytes;
    } past[N_PAST];
    int n_drawn;
    bool drawing, closing; /* closing: guarded by stderr_mutex */
    pthread_t thread;
    pthread_cond_t wake;
};

/* Held by the bar's thread or the log while it writes to stderr; guards `shown`: the last line on stderr is a bar. */
static pthread_mutex_t stderr_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool shown;

static int columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

void eng_size_text(char *out, size_t size, double bytes)
{
    static const char *const unit[] = { "B", "kB", "MB", "GB", "TB", "PB" };
    int i = 0;
    while (bytes >= 999.5 && i < 5) {
        bytes /= 1000;
        i++;
    }
    snprintf(out, size, bytes < 9.95 && i > 0 ? "%.1f %s" : "%.0f %s", bytes, unit[i]);
}

/* Bytes, or counted items as a plain number. */
static void amount_text(double n, bool counted, char *out, size_t size)
{
    if (counted)
        snprintf(out, size, n < 9.95 && n != (int)n ? "%.1f" : "%.0f", n);
    else
        eng_size_text(out, size, n);
}

/* Records the bytes done now, and returns the rate per second since N_PAST drawings ago. */
static double rate(struct eng_progress *p, uint64_t now, uint64_t done)
{
    int oldest = p->n_drawn < N_PAST ? 0 : p->n_drawn % N_PAST;
    uint64_t ns = p->n_drawn ? p->past[oldest].ns : p->start_ns;
    uint64_t bytes = p->n_drawn ? p->past[oldest].bytes : 0;
    p->past[p->n_drawn % N_PAST].ns = now;
    p->past[p->n_drawn % N_PAST].bytes = done;
    p->n_drawn++;
    return now > ns && done > bytes ? (double)(done - bytes) / (double)(now - ns) * 1e9 : 0;
}

static void draw(struct eng_progress *p)
{
    char line[160], part[32], whole[32], speed[32], bar[21];
    uint64_t total = atomic_load_explicit(&p->counter.total_bytes, memory_order_relaxed);
    uint64_t done = atomic_load_explicit(&p->counter.done_bytes, memory_order_relaxed);
    double per_second = rate(p, kn_now_ns(), done);
    if (total == 0)
        return;
    if (done > total)
        done = total;

    int filled = (int)((double)done / (double)total * (sizeof bar - 1));
    memset(bar, ' ', sizeof bar - 1);
    memset(bar, '=', (size_t)filled);
    bar[sizeof bar - 1] = 0;
    amount_text((double)done, p->unit != NULL, part, sizeof part);
    amount_text((double)total, p->unit != NULL, whole, sizeof whole);
    amount_text(per_second, p->unit != NULL, speed, sizeof speed);
    int n = snprintf(line, sizeof line, "%s [%s] %3d%%  %s of %s%s%s  %s/s", p->what, bar,
                     (int)((double)done / (double)total * 100), part, whole, p->unit ? " " : "", p->unit ? p->unit : "",
                     speed);
    if (per_second > 0 && n < (int)sizeof line) {
        long left = (long)((double)(total - done) / per_second) + 1;
        snprintf(line + n, sizeof line - (size_t)n, "  %ld:%02ld left", left / 60, left % 60);
    }
    fprintf(stderr, ERASE_LINE "%.*s", columns() - 1, line);
    fflush(stderr);
    shown = true;
}

static void *draw_until_closed(void *arg)
{
    struct eng_progress *p = arg;
    struct timespec until;
    pthread_mutex_lock(&stderr_mutex);
    clock_gettime(CLOCK_MONOTONIC, &until);
    while (!p->closing) {
        draw(p);
        until.tv_nsec += DRAW_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        while (!p->closing && pthread_cond_timedwait(&p->wake, &stderr_mutex, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&stderr_mutex);
    return NULL;
}

int eng_progress_open(struct eng_progress **out, const char *what, bool quiet)
{
    return eng_progress_open_of(out, what, NULL, quiet);
}

int eng_progress_open_of(struct eng_progress **out, const char *what, const char *unit, bool quiet)
{
    struct eng_progress *p = kn_calloc(1, sizeof *p);
    if (!p)
        return kn_fail(KN_ENOMEM, "no memory for a progress bar");
    p->what = what;
    p->unit = unit;
    p->start_ns = kn_now_ns();
    if (!quiet && isatty(STDERR_FILENO)) {
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&p->wake, &attr);
        pthread_condattr_destroy(&attr);
        p->drawing = pthread_create(&p->thread, NULL, draw_until_closed, p) == 0;
    }
    *out = p;
    return 0;
}

struct off_progress *eng_progress_counter(struct eng_progress *p) { return &p->counter; }

/* Replaces the bar by the total and the mean rate if the work is complete, else only erases it.  Work with up to 1/64
 * of its bytes missing counts as complete: small reads are not counted. */
static void end_line(struct eng_progress *p)
{
    char bytes[32], speed[32];
    uint64_t done = atomic_load_explicit(&p->counter.done_bytes, memory_order_relaxed);
    uint64_t total = atomic_load_explicit(&p->counter.total_bytes, memory_order_relaxed);
    double seconds = (double)(kn_now_ns() - p->start_ns) * 1e-9;

    pthread_mutex_lock(&stderr_mutex);
    if (shown)
        fputs(ERASE_LINE, stderr);
    if (done > 0 && done >= total - total / 64) {
        amount_text((double)done, p->unit != NULL, bytes, sizeof bytes);
        amount_text(seconds > 0 ? (double)done / seconds : 0, p->unit != NULL, speed, sizeof speed);
        fprintf(stderr, "%s: %s%s%s in %.1f s, %s/s\n", p->what, bytes, p->unit ? " " : "", p->unit ? p->unit : "",
                seconds, speed);
    }
    shown = false;
    pthread_mutex_unlock(&stderr_mutex);
}

void eng_progress_close(struct eng_progress *p)
{
    if (!p)
        return;
    if (p->drawing) {
        pthread_mutex_lock(&stderr_mutex);
        p->closing = true;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&stderr_mutex);
        pthread_join(p->thread, NULL);
        pthread_cond_destroy(&p->wake);

        end_line(p);
    }
    kn_free(p);
}

void eng_stderr_begin(void)
{
    pthread_mutex_lock(&stderr_mutex);
    if (shown)
        fputs(ERASE_LINE, stderr);
    shown = false;
}

void eng_stderr_end(void) { pthread_mutex_unlock(&stderr_mutex); }
