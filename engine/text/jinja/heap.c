/* engine/text/jinja/heap.c - memory of a template or a rendering, its limit, and failure by longjmp.
 *
 * Memory is allocated in chunks, each filled from the front; all of it is freed together.  jin_fail
 * writes the message and jumps to the setjmp in template.c. */
#include "engine/text/jinja/internal.h"

#include <stdarg.h>
#include <stdio.h>

#define CHUNK_BYTES (64 << 10)

struct jin_chunk {
    struct jin_chunk *older;
    size_t bytes, used;
    _Alignas(16) char data[];
};

void jin_heap_init(struct jin_heap *h, size_t limit, struct eng_template_error *error)
{
    memset(h, 0, sizeof *h);
    memset(error, 0, sizeof *error);
    h->limit = limit;
    h->error = error;
}

void jin_heap_free(struct jin_heap *h)
{
    while (h->chunk) {
        struct jin_chunk *older = h->chunk->older;
        kn_free(h->chunk);
        h->chunk = older;
    }
}

__attribute__((noreturn)) static void refuse(struct jin_heap *h, int code, size_t bytes)
{
    h->error->line = h->line;
    snprintf(h->error->text, sizeof h->error->text,
             code == KN_ELIMIT ? "rendering the template needs more than %zu bytes of memory"
                               : "no memory for %zu bytes",
             bytes);
    jin_escape(h, code);
}

static struct jin_chunk *chunk(struct jin_heap *h, size_t bytes)
{
    size_t all;
    if (!kn_add(h->used, bytes, &all) || all > h->limit)
        refuse(h, KN_ELIMIT, h->limit);
    struct jin_chunk *c = kn_alloc(sizeof *c + bytes);
    if (!c)
        refuse(h, KN_ENOMEM, bytes);
    h->used = all;
    *c = (struct jin_chunk){ .bytes = bytes };
    return c;
}

void *jin_take(struct jin_heap *h, size_t bytes)
{
    struct jin_chunk *c = h->chunk;
    bytes = kn_align_up(bytes < SIZE_MAX / 2 ? bytes : SIZE_MAX / 2, 16);
    if (!c || bytes > c->bytes - c->used) {
        struct jin_chunk *fresh = chunk(h, bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES);
        if (c && bytes > CHUNK_BYTES / 4) { /* a large piece gets its own chunk; filling c continues */
            fresh->older = c->older;
            c->older = fresh;
        } else {
            fresh->older = c;
            h->chunk = fresh;
        }
        c = fresh;
    }
    c->used += bytes;
    return c->data + c->used - bytes;
}

void *jin_take_n(struct jin_heap *h, size_t n, size_t bytes)
{
    size_t all;
    return jin_take(h, kn_mul(n, bytes, &all) ? all : SIZE_MAX / 2);
}

void jin_escape(struct jin_heap *h, int code)
{
    h->code = code;
    longjmp(h->escape, 1);
}

void jin_fail(struct jin_heap *h, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(h->error->text, sizeof h->error->text, fmt, args);
    va_end(args);
    for (char *c = h->error->text; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    h->error->line = h->line;
    jin_escape(h, KN_EINVAL);
}
