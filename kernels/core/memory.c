/* Memory: small allocations, large mappings, arenas, and kn_alloc_forbid(), which bans allocation during a pass. */
#include "kernels/core.h"

#include <malloc.h>
#include <string.h>
#include <unistd.h>

static _Thread_local bool forbidden;

void kn_alloc_forbid(bool forbid) { forbidden = forbid; }

void *kn_alloc(size_t bytes)
{
    kn_assert(!forbidden);
    return kn_io()->alloc(bytes ? bytes : 1);
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
        kn_io()->free(p);
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
