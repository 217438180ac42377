/* tests/gpu/shadow.h - the last accesses of memory: finds accesses that nothing orders.
 *
 * Beside every 4 bytes of device memory there is the last writer and the last reader: the operation (a launch, copy or
 * fill of a stream) and the block of the launch.  Two accesses of which one writes must be ordered.  Operations are
 * ordered by their stream, by events or by the host's waiting.  Blocks of one launch are not, unless both accesses are
 * atomics, or one block did an atomic after a fence and the other one later (a counter of finished blocks).  Shared
 * memory has the same for the threads of a block, ordered by barriers.  A write that changes no byte is no race. */
#ifndef TESTS_GPU_SHADOW_H
#define TESTS_GPU_SHADOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gpu_use { GPU_READ, GPU_WRITE, GPU_ATOMIC };

#define GPU_STREAMS 64

/* An operation is the stream in the highest 6 bits and its count within the stream. */
#define GPU_OPERATION(stream, n) ((uint32_t)(stream) << 26 | (uint32_t)((n)&0x3ffffff))

struct gpu_clock {
    uint32_t n[GPU_STREAMS]; /* of each stream, the last operation that came before */
};

/* An operation that accesses device memory, and its block in progress. */
struct gpu_actor {
    uint32_t operation; /* 0: accesses are not recorded */
    const struct gpu_clock *before;
    uint32_t block, n_block;
    uint32_t *published; /* [n_block] when a block did an atomic after a fence; 0: it has not */
    uint32_t n_published, sees;
    bool fenced;
};

/* True: there is a race, and *with says with which access. changes: would the write change a byte? */
bool gpu_touch(struct gpu_actor *a, uint64_t address, uint64_t bytes, enum gpu_use use, bool changes,
               const char **with);
void gpu_touch_fence(struct gpu_actor *a);
void gpu_touch_atomic(struct gpu_actor *a);

struct gpu_shared_word {
    uint32_t writer, write_epoch, reader, read_epoch;
};
/* An access of shared memory by a thread: knows[w] is the epoch of warp w whose accesses came before. */
bool gpu_touch_shared(struct gpu_shared_word *word, uint32_t offset, uint32_t bytes, enum gpu_use use, bool changes,
                      uint32_t thread, uint32_t epoch, const uint32_t *knows, const char **with);

/* The same for a load or store of a whole word; false: gpu_touch_shared() must look. */
static inline bool gpu_touch_shared_fast(struct gpu_shared_word *w, enum gpu_use use, uint32_t thread, uint32_t epoch,
                                         const uint32_t *knows)
{
    uint32_t access = thread << 5 | 15u;
    bool written = w->write_epoch > knows[w->writer >> 10] && w->writer >> 5 != thread;
    bool read = w->read_epoch > knows[w->reader >> 10] && w->reader >> 5 != thread;
    if (written || use == GPU_ATOMIC || (read && use == GPU_WRITE))
        return false;
    if (use == GPU_WRITE) {
        w->writer = access;
        w->write_epoch = epoch;
    } else if (!read || w->reader >> 10 == thread >> 5) { /* an unordered read of another warp is kept */
        w->reader = access;
        w->read_epoch = epoch;
    }
    return true;
}

#endif
