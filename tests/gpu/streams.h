/* tests/gpu/streams.h - shared by streams.c and graphs.c. All fields are used with gpu_lock held. */
#ifndef TESTS_GPU_STREAMS_H
#define TESTS_GPU_STREAMS_H

#include <pthread.h>
#include <time.h>

#include "tests/gpu/driver.h"

struct gpu_graph;

struct gpu_event {
    uint64_t recorded, done; /* numbers of its recordings */
    struct gpu_clock clock;
    struct timespec time;
    int users; /* works and graphs that refer to it */
    bool is_destroyed;
    struct gpu_graph *capture; /* the capture that has recorded it, as its event number */
    int number;
};

struct gpu_queued {
    struct gpu_work work;
    uint64_t order; /* of all works of the device */
    struct gpu_clock host;
    struct gpu_queued *next;
};

struct gpu_stream {
    bool is_open, is_destroyed, non_blocking;
    uint64_t submitted, done;
    struct gpu_queued *first, *last;
    struct gpu_clock clock;    /* of the works that have run */
    struct gpu_graph *capture; /* works go there */
    int branch;
};

extern pthread_mutex_t gpu_lock;

struct gpu_stream *gpu_find_stream(struct gpu_stream *handle);
struct gpu_stream *gpu_open_stream(bool non_blocking); /* NULL: there are too many */
void gpu_close_stream(struct gpu_stream *s);
void gpu_release_event(struct gpu_event *e);
int gpu_enqueue(struct gpu_stream *s, const struct gpu_work *w);

/* graphs.c: works, records and waits of a stream that is being captured. */
int gpu_capture_work(struct gpu_stream *s, const struct gpu_work *w);
int gpu_capture_record(struct gpu_stream *s, struct gpu_event *e);
int gpu_capture_wait(struct gpu_stream *s, struct gpu_event *e);
void gpu_capture_break(struct gpu_stream *s);

#endif
