/* The arena of device memory, its allocations and their state, and the host memory that kernels may use. */
#include "tests/gpu/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRANULE      256u
#define NEAR         64u /* bytes before an allocation, in messages */
#define POISON       0xee
#define POISON_BYTES (64u << 20) /* larger allocations are not filled: their pages would be taken */

struct gpu_arena gpu_arena;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the blocks and ranges */

struct block {
    uint64_t at, bytes, room; /* room: with the gap behind */
    bool is_used;
};
static struct block *blocks; /* in the order of addresses */
static size_t n_block, block_room;
static uint64_t used_bytes, total_bytes, top;

struct range {
    uint64_t at, bytes;
    bool is_ours;
};
static struct range *ranges;
static size_t n_range;

static void *reserve(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The arena has twice the memory of the device, so that freed memory is not used again soon. */
bool gpu_memory_open(void)
{
    if (gpu_arena.base)
        return true;
    const char *mib = getenv("SPILLWAY_GPU_MEMORY");
    total_bytes = (mib && atoll(mib) > 0 ? (uint64_t)atoll(mib) : 1024) << 20;
    gpu_arena.bytes = total_bytes * 2;
    uint8_t *base = reserve(gpu_arena.bytes), *state = reserve(gpu_arena.bytes / 4);
    if (!base || !state)
        return false;
    gpu_arena.state = state;
    gpu_arena.base = (uint64_t)(uintptr_t)base;
    return true;
}

uint64_t gpu_memory_total(void) { return total_bytes; }
uint64_t gpu_memory_used(void) { return used_bytes; }

/* Sets or clears, in the state of the bytes, the bits of either half: 0 allocated, 4 defined. */
static void set_state(uint64_t address, uint64_t bytes, int half, bool on)
{
    uint64_t at = address - gpu_arena.base, end = at + bytes;
    uint8_t *state = gpu_arena.state;
    while (at < end) {
        if (at % 4 == 0 && end - at >= 4) {
            uint64_t n = (end - at) / 4;
            uint8_t bits = (uint8_t)(15 << half);
            for (uint64_t i = at / 4; i < at / 4 + n; i++)
                state[i] = on ? state[i] | bits : state[i] & (uint8_t)~bits;
            at += n * 4;
        } else {
            uint8_t bit = (uint8_t)(1 << (half + at % 4));
            state[at / 4] = on ? state[at / 4] | bit : state[at / 4] & (uint8_t)~bit;
            at++;
        }
    }
}

void gpu_define(uint64_t address, uint64_t bytes, bool is_defined) { set_state(address, bytes, 4, is_defined); }

bool gpu_is_device(uint64_t address) { return address - gpu_arena.base < gpu_arena.bytes; }

static struct block *add_block(size_t at)
{
    if (n_block == block_room) {
        block_room = block_room ? block_room * 2 : 256;
        blocks = realloc(blocks, block_room * sizeof *blocks);
        if (!blocks)
            abort();
    }
    memmove(blocks + at + 1, blocks + at, (n_block++ - at) * sizeof *blocks);
    return blocks + at;
}

/* A freed block of at least this room: neighbours are joined first, the rest stays free. */
static struct block *reuse(uint64_t room)
{
    size_t n = 0;
    for (size_t i = 0; i < n_block; i++)
        if (n && !blocks[n - 1].is_used && !blocks[i].is_used)
            blocks[n - 1].room += blocks[i].room;
        else
            blocks[n++] = blocks[i];
    n_block = n;
    for (size_t i = 0; i < n_block; i++) {
        if (blocks[i].is_used || blocks[i].room < room)
            continue;
        if (blocks[i].room > room) {
            struct block rest = { blocks[i].at + room, 0, blocks[i].room - room, false };
            *add_block(i + 1) = rest;
        }
        blocks[i].room = room;
        return blocks + i;
    }
    return NULL;
}

static uint64_t alloc_block(uint64_t bytes)
{
    if (!gpu_memory_open() || !bytes || bytes > total_bytes - used_bytes)
        return 0;
    uint64_t room = (bytes + GRANULE - 1) / GRANULE * GRANULE + GRANULE; /* a gap that no allocation has */
    struct block *b;
    if (room <= gpu_arena.bytes - top) {
        b = add_block(n_block);
        *b = (struct block){ gpu_arena.base + top, 0, room, false };
        top += room;
    } else if (!(b = reuse(room)))
        return 0;
    b->bytes = bytes;
    b->is_used = true;
    used_bytes += bytes;
    set_state(b->at, bytes, 0, true);
    set_state(b->at, bytes, 4, false);
    if (bytes <= POISON_BYTES)
        memset((void *)(uintptr_t)b->at, POISON, bytes);
    return b->at;
}

uint64_t gpu_alloc(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    uint64_t at = alloc_block(bytes);
    pthread_mutex_unlock(&lock);
    return at;
}

static struct block *find_block(uint64_t address)
{
    for (size_t i = 0; i < n_block; i++)
        if (address - blocks[i].at < blocks[i].room)
            return blocks + i;
    return NULL;
}

static bool free_block(uint64_t address)
{
    struct block *b = find_block(address);
    if (!b || b->at != address || !b->is_used)
        return false;
    b->is_used = false;
    used_bytes -= b->bytes;
    set_state(b->at, b->bytes, 0, false);
    set_state(b->at, b->bytes, 4, false);
    uint64_t page = (b->at + 4095) / 4096 * 4096, end = (b->at + b->bytes) / 4096 * 4096;
    if (end > page)
        madvise((void *)(uintptr_t)page, end - page, MADV_DONTNEED);
    return true;
}

bool gpu_free(uint64_t address)
{
    pthread_mutex_lock(&lock);
    bool found = free_block(address);
    pthread_mutex_unlock(&lock);
    return found;
}

static bool add_range(const void *at, uint64_t bytes, bool is_ours)
{
    uint64_t address = (uint64_t)(uintptr_t)at;
    for (size_t i = 0; i < n_range; i++)
        if (address < ranges[i].at + ranges[i].bytes && ranges[i].at < address + bytes)
            return false;
    ranges = realloc(ranges, (n_range + 1) * sizeof *ranges);
    if (!ranges)
        abort();
    ranges[n_range++] = (struct range){ address, bytes, is_ours };
    return true;
}

bool gpu_host_add(const void *at, uint64_t bytes, bool is_ours)
{
    pthread_mutex_lock(&lock);
    bool added = add_range(at, bytes, is_ours);
    pthread_mutex_unlock(&lock);
    return added;
}

static bool remove_range(const void *at, bool is_ours)
{
    for (size_t i = 0; i < n_range; i++)
        if (ranges[i].at == (uint64_t)(uintptr_t)at && ranges[i].is_ours == is_ours) {
            ranges[i] = ranges[--n_range];
            return true;
        }
    return false;
}

bool gpu_host_remove(const void *at, bool is_ours)
{
    pthread_mutex_lock(&lock);
    bool removed = remove_range(at, is_ours);
    pthread_mutex_unlock(&lock);
    return removed;
}

bool gpu_host_has(uint64_t address, uint64_t bytes)
{
    bool has = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_range && !has; i++)
        has = address - ranges[i].at < ranges[i].bytes && bytes <= ranges[i].bytes - (address - ranges[i].at);
    pthread_mutex_unlock(&lock);
    return has;
}

bool gpu_host_meets(uint64_t address, uint64_t bytes)
{
    bool meets = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_range && !meets; i++)
        meets = address < ranges[i].at + ranges[i].bytes && ranges[i].at < address + bytes;
    pthread_mutex_unlock(&lock);
    return meets;
}

const char *gpu_check(uint64_t address, uint64_t bytes)
{
    static _Thread_local char reason[200];
    if (gpu_host_has(address, bytes))
        return NULL;
    if (!gpu_is_device(address))
        return "out of bounds: the address is no device memory";
    if (gpu_state_all(address, bytes, 0))
        return NULL;
    pthread_mutex_lock(&lock);
    const struct block *found = find_block(address);
    const bool has_next = found && found + 1 < blocks + n_block && found[1].is_used;
    const struct block copy = found ? *found : (struct block){ 0 }, next = has_next ? found[1] : copy;
    const struct block *b = found ? &copy : NULL;
    pthread_mutex_unlock(&lock);
    if (b && !b->is_used && address - b->at < b->bytes)
        return "use of freed memory";
    if (has_next && next.at - address <= NEAR && address - b->at >= b->bytes)
        snprintf(reason, sizeof reason, "out of bounds: %llu bytes before an allocation of %llu bytes",
                 (unsigned long long)(next.at - address), (unsigned long long)next.bytes);
    else if (b && b->is_used)
        snprintf(reason, sizeof reason, "out of bounds: byte %lld of an allocation of %llu bytes",
                 (long long)(address - b->at), (unsigned long long)b->bytes);
    else
        snprintf(reason, sizeof reason, "out of bounds: the address is in no allocation");
    return reason;
}

bool gpu_is_defined(uint64_t address, uint64_t bytes)
{
    return !gpu_is_device(address) || gpu_state_all(address, bytes, 4);
}
