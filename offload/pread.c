/* Transfers by threads with pread: for systems without io_uring, or by request.
 *
 * `depth` threads take transfers from one queue and put them into another when they have ended.  A transfer
 * costs a thread switch or two.
 *
 *   lock     guards all fields below it
 *   work     the threads wait for it: a transfer was queued, or the pool closes
 *   news     the thread in pull waits for it: a transfer has ended, or another thread called wake */
#include "offload/internal.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct pool {
    struct off_mover mover;
    pthread_t *thread; /* [depth] */
    pthread_mutex_t lock;
    pthread_cond_t work, news;
    struct off_transfer *first, **last; /* queued */
    struct off_transfer *ended;
    bool woken, closing;
};

static void *pool_main(void *arg)
{
    struct pool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->first && !p->closing)
            pthread_cond_wait(&p->work, &p->lock);
        struct off_transfer *t = p->first;
        if (!t)
            break;
        p->first = t->next;
        if (!p->first)
            p->last = &p->first;
        pthread_mutex_unlock(&p->lock);
        ssize_t n = kn_io()->pread(t->fd, t->to, t->bytes, (int64_t)t->offset);
        t->result = n < 0 ? -errno : n;
        pthread_mutex_lock(&p->lock);
        t->next = p->ended;
        p->ended = t;
        pthread_cond_signal(&p->news);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void pool_push(struct off_mover *m, struct off_transfer *t)
{
    struct pool *p = (struct pool *)m;
    t->next = NULL;
    pthread_mutex_lock(&p->lock);
    *p->last = t;
    p->last = &t->next;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

/* The time wait_ns from now, by the clock that p->news waits with, not by struct kn_io's: a test's clock must not
 * change how long the thread sleeps. */
static struct timespec after(uint64_t wait_ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + wait_ns % 1000000000u;
    t.tv_sec += (time_t)(wait_ns / 1000000000u + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

static struct off_transfer *pool_pull(struct off_mover *m, uint64_t wait_ns)
{
    struct pool *p = (struct pool *)m;
    struct timespec until = after(wait_ns == UINT64_MAX ? 0 : wait_ns);
    int error = wait_ns ? 0 : ETIMEDOUT;
    pthread_mutex_lock(&p->lock);
    while (!p->ended && !p->woken && error != ETIMEDOUT)
        error = wait_ns == UINT64_MAX ? pthread_cond_wait(&p->news, &p->lock)
                                      : pthread_cond_timedwait(&p->news, &p->lock, &until);
    struct off_transfer *ended = p->ended;
    p->ended = NULL;
    p->woken = false;
    pthread_mutex_unlock(&p->lock);
    return ended;
}

static void pool_wake(struct off_mover *m)
{
    struct pool *p = (struct pool *)m;
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_cond_signal(&p->news);
    pthread_mutex_unlock(&p->lock);
}

static void pool_close(struct off_mover *m)
{
    struct pool *p = (struct pool *)m;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    while (p->mover.depth > 0)
        pthread_join(p->thread[--p->mover.depth], NULL);
    pthread_cond_destroy(&p->news);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    kn_free(p->thread);
    kn_free(p);
}

static const struct off_mover_ops pool_ops = {
    .name = "pread",
    .close = pool_close,
    .push = pool_push,
    .pull = pool_pull,
    .wake = pool_wake,
};

int off_pread_open(struct off_mover **out, int depth)
{
    struct pool *p = kn_calloc(1, sizeof *p);
    pthread_t *thread = kn_calloc((size_t)depth, sizeof *thread);
    if (!p || !thread) {
        kn_free(p);
        kn_free(thread);
        return kn_fail(KN_ENOMEM, "no memory for %d reading threads", depth);
    }
    p->mover.ops = &pool_ops;
    p->thread = thread;
    p->last = &p->first;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->news, &attr);
    pthread_condattr_destroy(&attr);
    int n = 0;
    while (n < depth && pthread_create(&thread[n], NULL, pool_main, p) == 0)
        n++;
    p->mover.depth = n; /* a pool with fewer threads works too */
    if (n == 0) {
        pool_close(&p->mover);
        return kn_fail(KN_ENOMEM, "cannot start a reading thread");
    }
    *out = &p->mover;
    return 0;
}
