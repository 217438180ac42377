/* tests/gpu/driver.h - declarations for the files that implement the driver's functions.
 *
 * The functions have the names and types of NVIDIA's driver API, declared here so that no header of NVIDIA's is needed.
 * Work is given to a stream as a struct gpu_work (streams.c), which runs it when its stream's turn comes. */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

#include "tests/gpu/memory.h"
#include "tests/gpu/ptx.h"

enum {
    GPU_OK = 0,
    GPU_INVALID_VALUE = 1,
    GPU_OUT_OF_MEMORY = 2,
    GPU_NOT_INITIALIZED = 3,
    GPU_INVALID_DEVICE = 101,
    GPU_INVALID_IMAGE = 200,
    GPU_INVALID_CONTEXT = 201,
    GPU_NO_BINARY = 209,
    GPU_INVALID_PTX = 218,
    GPU_INVALID_HANDLE = 400,
    GPU_ILLEGAL_STATE = 401,
    GPU_NOT_FOUND = 500,
    GPU_NOT_READY = 600,
    GPU_ILLEGAL_ADDRESS = 700,
    GPU_OUT_OF_RESOURCES = 701,
    GPU_ALREADY_REGISTERED = 712,
    GPU_NOT_REGISTERED = 713,
    GPU_LAUNCH_FAILED = 719,
    GPU_NOT_PERMITTED = 800,
    GPU_NOT_SUPPORTED = 801,
    GPU_CAPTURE_UNSUPPORTED = 900,
    GPU_CAPTURE_INVALIDATED = 901,
    GPU_CAPTURE_UNMATCHED = 903,
    GPU_CAPTURE_UNJOINED = 904,
    GPU_CAPTURE_ISOLATION = 905,
};

#define GPU_API __attribute__((visibility("default")))
/* At the begin of a function of the driver: returns an error that is due. */
#define GPU_ENTER                                                                                                      \
    do {                                                                                                               \
        int due_ = gpu_enter(__func__);                                                                                \
        if (due_)                                                                                                      \
            return due_;                                                                                               \
    } while (0)

struct gpu_stream;
struct gpu_event;

enum gpu_work_kind {
    WORK_LAUNCH,
    WORK_COPY,
    WORK_FILL,
    WORK_HOST,
    WORK_RECORD,
    WORK_WAIT_EVENT,
    WORK_WRITE,
    WORK_WAIT_VALUE
};

struct gpu_work {
    enum gpu_work_kind kind;
    uint64_t to, from, bytes, value; /* value: to write, to wait for, to fill with; bytes: of the value, too */
    uint32_t flags;
    void (*host)(void *);
    void *arg;
    struct gpu_event *event;
    uint64_t event_number; /* the recording that is waited for */
    struct ptx_launch launch;
    uint8_t *owned; /* parameters of a launch, or the source of a copy from pageable memory */
};

int gpu_enter(const char *function);
/* Keeps the first failure of the device: all later calls return it, as those of a driver do. */
void gpu_lost(int code, const char *text);
int gpu_lost_code(void);

int gpu_submit(struct gpu_stream *s, const struct gpu_work *w);
int gpu_wait_stream(struct gpu_stream *s);
int gpu_wait_all(void);
void spillway_gpu_races(int on);
void gpu_streams_seed(uint64_t seed);
bool gpu_in_host_function(void);

#endif
