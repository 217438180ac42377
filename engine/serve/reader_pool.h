/* engine/serve/reader_pool.h - a few threads for work that takes too long for the thread that serves.  Internal to
 * engine.
 *
 * Parsing a megabyte of JSON, rendering a template over it and compiling a schema take up to a second; the
 * thread that serves has microseconds.  A task is its owner's memory, lent from eng_pool_add until
 * eng_pool_take gives it back; whoever bounds the tasks bounds the queue. */
#ifndef ENGINE_SERVE_POOL_H
#define ENGINE_SERVE_POOL_H

#include "kernels/core.h"

struct eng_pool;

struct eng_task {
    void (*run)(struct eng_task *t);            /* on one of the pool's threads */
    struct eng_task *next;
};

/* wake_fd: an eventfd that is written when a task is done. */
int  eng_pool_open(struct eng_pool **out, int n_thread, int wake_fd);
void eng_pool_close(struct eng_pool *p);        /* after the tasks under way; those that wait are not run */

void eng_pool_add(struct eng_pool *p, struct eng_task *t);
struct eng_task *eng_pool_take(struct eng_pool *p);     /* one that is done, or NULL */

#endif
