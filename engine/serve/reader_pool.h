/* engine/serve/reader_pool.h - a few threads for work that is too long for the serving thread.  Internal to engine.
 *
 * Parsing a megabyte of JSON, rendering a template over it and compiling a schema take up to a second; the serving
 * thread may spend only microseconds on a request.  A task is memory of the caller, lent to the pool from
 * eng_reader_pool_add until eng_reader_pool_take returns it.
 * The queue has no limit of its own: the caller limits the number of tasks. */
#ifndef ENGINE_SERVE_READER_POOL_H
#define ENGINE_SERVE_READER_POOL_H

#include "kernels/core.h"

struct eng_reader_pool;

struct eng_task {
    void (*run)(struct eng_task *t); /* runs on a reader thread */
    struct eng_task *next;
};

/* wake_fd: an eventfd, written when a task is done. */
int eng_reader_pool_open(struct eng_reader_pool **out, int n_thread, int wake_fd);
void eng_reader_pool_close(struct eng_reader_pool *p); /* waits for running tasks; waiting tasks are not run */

void eng_reader_pool_add(struct eng_reader_pool *p, struct eng_task *t);
struct eng_task *eng_reader_pool_take(struct eng_reader_pool *p); /* a finished task, or NULL */

#endif
