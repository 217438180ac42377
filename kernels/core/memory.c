/* Memory: small allocations, the limit of guarded ones, large mappings, arenas, and kn_alloc_forbid(), which bans
 * allocation during a pass. */
#include "kernels/core.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local bool forbidden;

void kn_alloc_forbid(bool forbid) { forbidden = forbid; }

/* ---- the limit of guarded allocations ------------------------------------------------------------------------ */

#define CHUNK_BYTES    8           /* of malloc's own before each allocation */
#define SEPARATE_BYTES (128 << 10) /* allocations of this size return to the system when they are freed */

static atomic_llong heap_used;                    /* bytes of all counted allocations */
static atomic_llong heap_most = INT64_MAX;        /* limit of heap_used for guarded allocations */
static _Thread_local struct kn_heap_guard *guard; /* NULL: the thread's allocations are not limited */
static _Thread_local size_t n_failed;             /* allocations of this thread that returned NULL */

void kn_heap_limit(size_t room)
{
    mallopt(M_MMAP_THRESHOLD,
            SEPARATE_BYTES); /* else malloc raises it, and keeps the memory that a large request has freed */
    mallopt(M_TRIM_THRESHOLD, SEPARATE_BYTES);
    atomic_store(&heap_most, room > INT64_MAX / 2 ? INT64_MAX : atomic_load(&heap_used) + (long long)room);
}

size_t kn_heap_room(void)
{
    long long left = atomic_load(&heap_most) - atomic_load(&heap_used);
    return left > 0 ? (size_t)left : 0;
}

void kn_heap_guard(struct kn_heap_guard *g) { guard = g; }

void kn_heap_trim(void) { malloc_trim(0); }

size_t kn_alloc_failures(void) { return n_failed; }

static void note_failure(size_t bytes)
{
    struct kn_heap_guard *g = guard;
    n_failed++;
    if (g && !g->denied_bytes)
        g->denied_bytes = (g->held_bytes > 0 ? (size_t)g->held_bytes : 0) + bytes;
}

/* True if the thread's guard refuses an allocation. */
static bool is_denied(size_t bytes)
{
    struct kn_heap_guard *g = guard;
    size_t left;
    if (!g)
        return false;
    if (g->stop && atomic_load_explicit(g->stop, memory_order_relaxed)) {
        n_failed++;
        return true;
    }
    left = kn_heap_room();
    if (left >= g->keep && left - g->keep >= bytes)
        return false;
    note_failure(bytes);
    return true;
}

static void *count(void *p, long long sign)
{
    long long bytes = p ? sign * (long long)(malloc_usable_size(p) + CHUNK_BYTES) : 0;
    atomic_fetch_add_explicit(&heap_used, bytes, memory_order_relaxed);
    if (guard)
        guard->held_bytes += bytes;
    return p;
}

/* Allocates and counts; NULL: the guard refuses, or the system does. */
static void *take(size_t bytes)
{
    void *p;
    if (is_denied(bytes))
        return NULL;
    if (!(p = kn_io()->alloc(bytes)) && bytes)
        note_failure(bytes);
    return count(p, 1);
}

void *kn_heap_alloc(size_t bytes) { return take(bytes); }

void *kn_heap_realloc(void *p, size_t bytes)
{
    void *grown;
    if (is_denied(bytes))
        return NULL;
    (void)count(p, -1);
    if (!(grown = kn_io()->realloc(p, bytes)) && bytes)
        note_failure(bytes);
    (void)count(grown || !bytes ? grown : p, 1);
    return grown;
}

void kn_heap_free(void *p) { kn_io()->free(count(p, -1)); }

/* ---- small allocations --------------------------------------------------------------------------------------- */

void *kn_alloc(size_t bytes)
{
    kn_assert(!forbidden);
    return take(bytes ? bytes : 1);
}

void *kn_calloc(size_t n, size_t bytes)
{
    size_t total;
    void *p = kn_mul(n, bytes, &total) ? kn_alloc(total) : NULL;
    return p ? memset(p, 0, total) : NULL;
}

void *kn_realloc(void *p, size_t old_bytes, size_t bytes)
{
    void *grown = kn_alloc(bytes);
    if (!grown)
        return NULL;
    if (p)
        memcpy(grown, p, old_bytes < bytes ? old_bytes : bytes);
    kn_free(p);
    return grown;
}

char *kn_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = kn_alloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

void kn_free(void *p)
{
    if (p)
        kn_io()->free(count(p, -1));
}

size_t kn_alloc_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.arena + m.hblkhd;
}

void *kn_map(size_t bytes, int node)
{
    kn_assert(!forbidden);
    return kn_io()->map(bytes ? bytes : 1, node);
}

void kn_unmap(void *p, size_t bytes)
{
    if (p)
        kn_io()->unmap(p, bytes ? bytes : 1);
}

void kn_map_touch(void *p, size_t bytes) { kn_io()->touch(p, bytes); }

void kn_map_sparse(void *p, size_t bytes) { kn_io()->sparse(p, bytes); }

void kn_map_drop(void *p, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = kn_align_up((uintptr_t)p, page), end = ((uintptr_t)p + bytes) / page * page;
    if (end > begin)
        kn_io()->drop((void *)begin, end - begin);
}

void kn_map_bind(void *p, size_t bytes, int node)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = kn_align_up((uintptr_t)p, page), end = kn_align_up((uintptr_t)p + bytes, page);
    if (node >= 0 && end > begin)
        kn_io()->bind((void *)begin, end - begin, node);
}

int kn_arena_open(struct kn_arena *a, size_t bytes, int node)
{
    uint8_t *base = kn_map(bytes, node);
    if (!base)
        return kn_fail(KN_ENOMEM, "no memory for %.1f MiB", (double)bytes / (1 << 20));
    *a = (struct kn_arena){ .base = base, .bytes = bytes };
    return 0;
}

void kn_arena_close(struct kn_arena *a)
{
    kn_unmap(a->base, a->bytes);
    *a = (struct kn_arena){ 0 };
}

void *kn_arena_take(struct kn_arena *a, size_t n, size_t size)
{
    size_t bytes, end;
    kn_assert(kn_mul(n, size, &bytes) && kn_add(bytes, 63, &bytes));
    bytes &= ~(size_t)63;
    kn_assert(kn_add(a->used, bytes, &end));
    kn_assert(!a->base || end <= a->bytes);
    void *p = a->base ? a->base + a->used : NULL;
    a->used = end;
    return p;
}
