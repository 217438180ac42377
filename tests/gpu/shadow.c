/* The last accesses of device and shared memory.  A word of 4 bytes has one writer and one reader with the bytes that
 * they used; of several readers the others are forgotten, or counted as many. */
#include "tests/gpu/shadow.h"

#include <sys/mman.h>

#include "tests/gpu/memory.h"

/* The block or thread of an access: 27 bits, whether it was an atomic, the bytes of the word. */
#define ACCESS(actor, atomic, bytes) ((actor) << 5 | (uint32_t)(atomic) << 4 | (bytes))
#define ACTOR(access)                ((access) >> 5)
#define IS_ATOMIC(access)            ((access) >> 4 & 1)
#define BYTES(access)                ((access)&15)
#define MANY                         0x7ffffffu

struct word {
    uint32_t write_operation, writer, read_operation, reader;
};
static struct word *words; /* [arena bytes / 4] */

static const char *const texts[] = {
    "a write of another block of this launch", "a read of another block of this launch",
    "an earlier write in another stream",      "an earlier read in another stream",
    "a write of another thread of this block", "a read of another thread of this block",
};
enum { WRITE_OF_BLOCK, READ_OF_BLOCK, WRITE_OF_STREAM, READ_OF_STREAM, WRITE_OF_THREAD, READ_OF_THREAD };

void gpu_touch_fence(struct gpu_actor *a) { a->fenced = true; }

void gpu_touch_atomic(struct gpu_actor *a)
{
    a->sees = a->n_published;
    if (a->fenced && !a->published[a->block])
        a->published[a->block] = ++a->n_published;
}

/* Does the operation `before` end before that of a begins? */
static inline bool is_before(const struct gpu_actor *a, uint32_t before)
{
    return !before || (before & 0x3ffffff) <= a->before->n[before >> 26];
}

static bool block_is_before(const struct gpu_actor *a, uint32_t block)
{
    if (block == MANY)
        return a->sees > 0;
    return a->published[block] && a->published[block] <= a->sees;
}

/* The part of [at, at + bytes) in the word at `first`. */
static inline uint32_t bytes_in(uint64_t first, uint64_t at, uint64_t end)
{
    uint32_t from = at > first ? (uint32_t)(at - first) : 0, to = end - first < 4 ? (uint32_t)(end - first) : 4;
    return (15u << from) & ((1u << to) - 1);
}

static bool conflicts(const struct gpu_actor *a, uint32_t operation, uint32_t access, uint32_t bytes, bool atomic)
{
    if (!operation || !(BYTES(access) & bytes))
        return false;
    if (operation != a->operation)
        return !is_before(a, operation);
    return ACTOR(access) != a->block && !(atomic && IS_ATOMIC(access)) && !block_is_before(a, ACTOR(access));
}

static inline void keep(const struct gpu_actor *a, struct word *w, uint32_t bytes, enum gpu_use use)
{
    if (use == GPU_READ) {
        bool again = w->read_operation == a->operation;
        bool same = ACTOR(w->reader) == a->block, overlap = BYTES(w->reader) & bytes;
        if (again && (same || overlap))
            w->reader = ACCESS(same ? a->block : MANY, false, BYTES(w->reader) | bytes);
        else
            w->reader = ACCESS(a->block, false, bytes);
        w->read_operation = a->operation;
        return;
    }
    bool same = w->write_operation == a->operation && ACTOR(w->writer) == a->block;
    w->writer = ACCESS(a->block, use == GPU_ATOMIC, same ? BYTES(w->writer) | bytes : bytes);
    w->write_operation = a->operation;
}

bool gpu_touch(struct gpu_actor *a, uint64_t address, uint64_t bytes, enum gpu_use use, bool changes, const char **with)
{
    if (!a->operation)
        return false;
    if (!words) {
        void *p = mmap(NULL, gpu_arena.bytes * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (p == MAP_FAILED)
            return false;
        words = p;
    }
    uint64_t at = address - gpu_arena.base, end = at + bytes;
    const uint32_t mine = ACCESS(a->block, false, 15u), many = ACCESS(MANY, false, 15u);
    for (uint64_t first = at / 4 * 4; first < end; first += 4) {
        struct word *w = words + first / 4;
        if (use == GPU_READ && w->read_operation == a->operation && (w->reader == mine || w->reader == many))
            continue; /* a write since then would have been found */
        uint32_t part = bytes_in(first, at, end);
        if (changes && conflicts(a, w->write_operation, w->writer, part, use == GPU_ATOMIC)) {
            *with = texts[w->write_operation == a->operation ? WRITE_OF_BLOCK : WRITE_OF_STREAM];
            return true;
        }
        if (use != GPU_READ && changes && conflicts(a, w->read_operation, w->reader, part, false)) {
            *with = texts[w->read_operation == a->operation ? READ_OF_BLOCK : READ_OF_STREAM];
            return true;
        }
        keep(a, w, part, use);
    }
    return false;
}

/* ---- shared memory ------------------------------------------------------------------------------------- */

static bool unordered(uint32_t access, uint32_t epoch, uint32_t bytes, bool atomic, uint32_t thread,
                      const uint32_t *knows)
{
    uint32_t other = ACTOR(access);
    return epoch && (BYTES(access) & bytes) && other != thread && !(atomic && IS_ATOMIC(access)) &&
           epoch > knows[(other == MANY ? thread : other) / 32];
}

bool gpu_touch_shared(struct gpu_shared_word *word, uint32_t offset, uint32_t bytes, enum gpu_use use, bool changes,
                      uint32_t thread, uint32_t epoch, const uint32_t *knows, const char **with)
{
    for (uint32_t first = offset / 4 * 4; first < offset + bytes; first += 4) {
        struct gpu_shared_word *w = word + first / 4;
        uint32_t part = bytes_in(first, offset, offset + bytes);
        if (changes && unordered(w->writer, w->write_epoch, part, use == GPU_ATOMIC, thread, knows)) {
            *with = texts[WRITE_OF_THREAD];
            return true;
        }
        if (use == GPU_READ) {
            bool current = w->read_epoch && w->read_epoch > knows[ACTOR(w->reader) / 32] && ACTOR(w->reader) != thread;
            /* An unordered read of another warp is kept: that of this warp is ordered with the next barrier, too. */
            if (!current || ACTOR(w->reader) / 32 == thread / 32) {
                w->reader = ACCESS(thread, false, part);
                w->read_epoch = epoch;
            }
            continue;
        }
        if (changes && unordered(w->reader, w->read_epoch, part, false, thread, knows)) {
            *with = texts[READ_OF_THREAD];
            return true;
        }
        w->writer = ACCESS(thread, use == GPU_ATOMIC, part);
        w->write_epoch = epoch;
    }
    return false;
}
