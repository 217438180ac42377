/* Streams and events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/driver.h"

struct gpu_stream {
    int unused;
};
struct gpu_event {
    int unused;
};

/* Bytes of the host that are not known to the device are pageable: a copy may use them. */
static const char *check(uint64_t address, uint64_t bytes)
{
    return gpu_is_device(address) ? gpu_check(address, bytes) : NULL;
}

int gpu_run_copy(const struct gpu_work *w, char *error, size_t room)
{
    bool is_copy = w->kind == WORK_COPY;
    const char *reason = check(w->to, w->bytes);
    if (!reason && is_copy)
        reason = check(w->from, w->bytes);
    if (reason) {
        snprintf(error, room, "a %s of %llu bytes: %s", is_copy ? "copy" : "fill", (unsigned long long)w->bytes,
                 reason);
        return GPU_ILLEGAL_ADDRESS;
    }
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

int gpu_submit(struct gpu_stream *s, const struct gpu_work *w)
{
    (void)s;
    char error[1000] = "";
    int code = w->kind == WORK_LAUNCH ? ptx_launch_run(&w->launch, error, sizeof error)
                                      : gpu_run_copy(w, error, sizeof error);
    free(w->owned);
    if (code)
        gpu_lost(code, error);
    return GPU_OK;
}
int gpu_wait_stream(struct gpu_stream *s)
{
    (void)s;
    return gpu_lost_code();
}
int gpu_wait_all(void) { return gpu_lost_code(); }
