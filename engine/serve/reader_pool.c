/* engine/serve/reader_pool.c - reader threads with lists of short, long and done tasks.
 *
 * Fairness: each key has an account of the bytes that its tasks were given.  A key without waiting tasks that gets one
 * starts at the lowest account of the keys that wait, so idle time earns no credit.  Keys share accounts by their hash. */
#include "engine/serve/reader_pool.h"

#include <pthread.h>
#include <unistd.h>

#define N_ACCOUNT  256
#define TASK_BYTES 1024 /* the cost of a task beside its bytes */

struct list {
    struct eng_task *first, **last;
};

struct account {
    uint64_t bytes; /* given */
    int n_waiting;
};

struct reader {
    struct eng_reader_pool *pool;
    pthread_t thread;
    bool takes_long;
};

struct eng_reader_pool {
    int wake_fd, n_thread;
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t more;
    struct list short_tasks, long_tasks, done;
    uint64_t long_bytes; /* of all long tasks that were begun */
    struct account account[N_ACCOUNT];
    bool closing;
    struct reader reader[]; /* [n_thread] */
};

static struct account *account_of(struct eng_reader_pool *p, const struct eng_task *t)
{
    return &p->account[kn_mix(t->key) % N_ACCOUNT];
}

static void put(struct list *l, struct eng_task *t)
{
    t->next = NULL;
    *l->last = t;
    l->last = &t->next;
}

/* Removes the task at *at. */
static struct eng_task *take_at(struct list *l, struct eng_task **at)
{
    struct eng_task *t = *at;
    if (!(*at = t->next))
        l->last = at;
    return t;
}

/* Removes the task that is next, of those with at most this many bytes; NULL: there is none. */
static struct eng_task *take_next(struct eng_reader_pool *p, struct list *l, size_t most_bytes)
{
    struct eng_task **best = NULL;
    for (struct eng_task **at = &l->first; *at; at = &(*at)->next)
        if ((*at)->bytes <= most_bytes && (!best || account_of(p, *at)->bytes < account_of(p, *best)->bytes))
            best = at;
    if (!best)
        return NULL;
    account_of(p, *best)->bytes += (*best)->bytes + TASK_BYTES;
    account_of(p, *best)->n_waiting--;
    return take_at(l, best);
}

static struct eng_task *take_long(struct eng_reader_pool *p, size_t most_bytes)
{
    struct eng_task *t = take_next(p, &p->long_tasks, most_bytes);
    if (t) {
        p->long_bytes += t->bytes;
        t->most_long_bytes = p->long_bytes + t->bytes;
    }
    return t;
}

/* Called with the lock, which is released while the task runs. */
static void run(struct eng_reader_pool *p, struct eng_task *t)
{
    const uint64_t one = 1;
    pthread_mutex_unlock(&p->lock);
    t->run(t);
    pthread_mutex_lock(&p->lock);
    put(&p->done, t);
    ssize_t n = write(p->wake_fd, &one, sizeof one);
    (void)n; /* EAGAIN: the counter is full, and the serving thread wakes anyway */
}

static void *work(void *arg)
{
    struct reader *r = arg;
    struct eng_reader_pool *p = r->pool;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        struct eng_task *t = r->takes_long ? take_long(p, SIZE_MAX) : NULL;
        if (t || (t = take_next(p, &p->short_tasks, SIZE_MAX)))
            run(p, t);
        else
            pthread_cond_wait(&p->more, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool start_reader(struct eng_reader_pool *p)
{
    struct reader *r = &p->reader[p->n_thread];
    *r = (struct reader){ .pool = p, .takes_long = p->n_thread == 0 };
    return pthread_create(&r->thread, NULL, work, r) == 0;
}

int eng_reader_pool_open(struct eng_reader_pool **out, int n_thread, int wake_fd)
{
    struct eng_reader_pool *p = kn_calloc(1, sizeof *p + (size_t)n_thread * sizeof *p->reader);
    if (!p)
        return kn_fail(KN_ENOMEM, "no memory for %d threads", n_thread);
    p->wake_fd = wake_fd;
    p->short_tasks.last = &p->short_tasks.first;
    p->long_tasks.last = &p->long_tasks.first;
    p->done.last = &p->done.first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    while (p->n_thread < n_thread && start_reader(p))
        p->n_thread++;
    if (p->n_thread < n_thread) {
        eng_reader_pool_close(p);
        return kn_fail(KN_ELIMIT, "the system cannot start threads to parse requests");
    }
    *out = p;
    return 0;
}

void eng_reader_pool_close(struct eng_reader_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_thread; i++)
        pthread_join(p->reader[i].thread, NULL);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    kn_free(p);
}

static struct list *list_of(struct eng_reader_pool *p, const struct eng_task *t)
{
    return t->bytes > ENG_TASK_SHORT ? &p->long_tasks : &p->short_tasks;
}

void eng_reader_pool_add(struct eng_reader_pool *p, struct eng_task *t)
{
    pthread_mutex_lock(&p->lock);
    struct account *a = account_of(p, t);
    if (!a->n_waiting++) {
        uint64_t least = UINT64_MAX;
        for (int i = 0; i < N_ACCOUNT; i++)
            if (p->account[i].n_waiting && &p->account[i] != a && p->account[i].bytes < least)
                least = p->account[i].bytes;
        if (least != UINT64_MAX && a->bytes < least)
            a->bytes = least;
    }
    put(list_of(p, t), t);
    pthread_cond_broadcast(&p->more); /* not all threads may take this task */
    pthread_mutex_unlock(&p->lock);
}

bool eng_reader_pool_remove(struct eng_reader_pool *p, struct eng_task *t)
{
    pthread_mutex_lock(&p->lock);
    struct list *l = list_of(p, t);
    struct eng_task **at = &l->first;
    while (*at && *at != t)
        at = &(*at)->next;
    bool waits = *at != NULL;
    if (waits) {
        account_of(p, t)->n_waiting--;
        (void)take_at(l, at);
    }
    pthread_mutex_unlock(&p->lock);
    return waits;
}

void eng_reader_pool_give_way(struct eng_reader_pool *p, const struct eng_task *t)
{
    struct eng_task *shorter;
    pthread_mutex_lock(&p->lock);
    while (!p->closing && p->long_bytes < t->most_long_bytes && (shorter = take_long(p, t->bytes / ENG_TASK_SHORTER)))
        run(p, shorter);
    pthread_mutex_unlock(&p->lock);
}

struct eng_task *eng_reader_pool_take(struct eng_reader_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct eng_task *t = p->done.first ? take_at(&p->done, &p->done.first) : NULL;
    pthread_mutex_unlock(&p->lock);
    return t;
}
