/* engine/serve/reader_pool.h - a few threads for work that is too long for the serving thread.  Internal to engine.
 *
 * Parsing a megabyte of JSON, rendering a template over it and compiling a schema take up to a second; the serving
 * thread may spend only microseconds on a request.  A task is memory of the caller, lent to the pool from
 * eng_reader_pool_add until eng_reader_pool_take returns it, or eng_reader_pool_remove removes it.
 * The queue has no limit of its own: the caller limits the number of tasks.
 *
 * Long and short tasks.  The first thread takes long tasks, and short ones while no long one waits; the other threads
 * take short tasks only.  So a short task waits for short ones only, and one long task runs at a time, which bounds the
 * memory of reading.  Tasks of a kind are ordered by the bytes that their key has already been given, then by
 * arrival.
 *
 * A long task gives way to much shorter long ones (eng_reader_pool_give_way): they run on its thread, inside its call. */
#ifndef ENGINE_SERVE_READER_POOL_H
#define ENGINE_SERVE_READER_POOL_H

#include "kernels/core.h"

#define ENG_TASK_SHORT   ((size_t)256 << 10) /* bytes of the longest short task: some 50 ms of reading */
#define ENG_TASK_SHORTER 4                   /* so tasks inside a task, and again inside, add a third to its memory */

struct eng_reader_pool;

struct eng_task {
    void (*run)(struct eng_task *t); /* runs on a reader thread */
    size_t bytes;                    /* to read */
    uint64_t key;                    /* of the API key, or 0 */
    uint64_t most_long_bytes;        /* of the pool: the task gives way until then */
    struct eng_task *next;
};

/* wake_fd: an eventfd, written when a task is done.  n_thread: at least 2. */
int eng_reader_pool_open(struct eng_reader_pool **out, int n_thread, int wake_fd);
void eng_reader_pool_close(struct eng_reader_pool *p); /* waits for running tasks; waiting tasks are not run */

void eng_reader_pool_add(struct eng_reader_pool *p, struct eng_task *t);
bool eng_reader_pool_remove(struct eng_reader_pool *p, struct eng_task *t); /* false: the task runs, or is done */
/* To be called by a running long task now and then: first runs the waiting tasks that are at most 1 / ENG_TASK_SHORTER as
 * long, in the pool's order, until such tasks have been given as many bytes as this one has. */
void eng_reader_pool_give_way(struct eng_reader_pool *p, const struct eng_task *t);
struct eng_task *eng_reader_pool_take(struct eng_reader_pool *p); /* a finished task, or NULL */

#endif
