/* tests/gpu/memory.h - the memory of the device: one range of addresses, whose allocations are checked byte by byte.
 *
 * An address of the device is a host address inside the arena.  For each 4 bytes of the arena there is a byte of state:
 * four bits say which of them belong to an allocation, four which hold a value that a copy, a fill or a kernel wrote.
 * Freed memory is used again as late as possible. Memory of the host that kernels may use is a list of ranges. */
#ifndef TESTS_GPU_MEMORY_H
#define TESTS_GPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct gpu_arena {
    uint64_t base, bytes;
    uint8_t *state; /* [bytes / 4] */
};
extern struct gpu_arena gpu_arena;

/* Are the bits of one half of the state (0: allocated, 4: defined) set for all bytes? The address is in the arena. */
static inline bool gpu_state_all(uint64_t address, uint64_t bytes, int half)
{
    uint64_t at = address - gpu_arena.base, end = at + bytes, word;
    const uint64_t all = 0x0f0f0f0f0f0f0f0full << half;
    if (end > gpu_arena.bytes)
        return false;
    for (; at % 4 && at < end; at++)
        if (!(gpu_arena.state[at / 4] >> (half + at % 4) & 1))
            return false;
    for (; end - at >= 32; at += 32) {
        memcpy(&word, gpu_arena.state + at / 4, 8);
        if ((word & all) != all)
            return false;
    }
    for (; end - at >= 4; at += 4)
        if ((gpu_arena.state[at / 4] >> half & 15) != 15)
            return false;
    for (; at < end; at++)
        if (!(gpu_arena.state[at / 4] >> (half + at % 4) & 1))
            return false;
    return true;
}

bool gpu_memory_open(void); /* SPILLWAY_GPU_MEMORY: MiB, 1024 if unset */
uint64_t gpu_memory_total(void);
uint64_t gpu_memory_used(void);

/* Device memory, or 0. Static memory belongs to a module. */
uint64_t gpu_alloc(uint64_t bytes);
bool gpu_free(uint64_t address); /* false: no such allocation */
bool gpu_is_device(uint64_t address);

/* Host memory that kernels may use. */
bool gpu_host_add(const void *at, uint64_t bytes, bool is_ours);
bool gpu_host_remove(const void *at, bool is_ours);
bool gpu_host_has(uint64_t address, uint64_t bytes);
bool gpu_host_meets(uint64_t address, uint64_t bytes); /* some of these bytes are such memory */

/* NULL if the bytes may be used so, else the reason. */
const char *gpu_check(uint64_t address, uint64_t bytes);
bool gpu_is_defined(uint64_t address, uint64_t bytes);
void gpu_define(uint64_t address, uint64_t bytes, bool is_defined);

#endif
