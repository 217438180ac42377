/* engine/serve/reader_pool.c - reader threads with two FIFO lists: waiting and done tasks. */
#include "engine/serve/reader_pool.h"

#include <pthread.h>
#include <unistd.h>

struct list {
    struct eng_task *first, **last;
};

struct eng_reader_pool {
    int wake_fd, n_thread;
    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t more;
    struct list waiting, done;
    bool closing;
    pthread_t thread[]; /* [n_thread] */
};

static void put(struct list *l, struct eng_task *t)
{
    t->next = NULL;
    *l->last = t;
    l->last = &t->next;
}

static struct eng_task *get(struct list *l)
{
    struct eng_task *t = l->first;
    if (t && !(l->first = t->next))
        l->last = &l->first;
    return t;
}

static void *work(void *arg)
{
    struct eng_reader_pool *p = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        struct eng_task *t = get(&p->waiting);
        if (!t) {
            pthread_cond_wait(&p->more, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        t->run(t);
        pthread_mutex_lock(&p->lock);
        put(&p->done, t);
        ssize_t n = write(p->wake_fd, &one, sizeof one);
        (void)n; /* EAGAIN: the counter is full, and the serving thread wakes anyway */
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int eng_reader_pool_open(struct eng_reader_pool **out, int n_thread, int wake_fd)
{
    struct eng_reader_pool *p = kn_calloc(1, sizeof *p + (size_t)n_thread * sizeof *p->thread);
    if (!p)
        return kn_fail(KN_ENOMEM, "no memory for %d threads", n_thread);
    p->wake_fd = wake_fd;
    p->waiting.last = &p->waiting.first;
    p->done.last = &p->done.first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    while (p->n_thread < n_thread && pthread_create(&p->thread[p->n_thread], NULL, work, p) == 0)
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
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    kn_free(p);
}

void eng_reader_pool_add(struct eng_reader_pool *p, struct eng_task *t)
{
    pthread_mutex_lock(&p->lock);
    put(&p->waiting, t);
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
}

struct eng_task *eng_reader_pool_take(struct eng_reader_pool *p)
{
    pthread_mutex_lock(&p->lock);
    struct eng_task *t = get(&p->done);
    pthread_mutex_unlock(&p->lock);
    return t;
}
