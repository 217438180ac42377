/* tests/moe/gguf_bytes.h - writes GGUF files byte by byte, so that they can be invalid.
 *
 *     struct gguf g = { 0 };
 *     gguf_header(&g, 3, 1, 1);                        version, tensors, metadata
 *     gguf_u32_value(&g, "general.alignment", 0);
 *     gguf_tensor(&g, "a", 2, (uint64_t[]){ 4, 2 }, 0, 0);
 *     gguf_data(&g, 32);                               padding, then 32 bytes
 *     gguf_save(&g, path);
 *     gguf_free(&g);
 *
 * Nothing is checked: the test sets all counts, lengths, types and offsets.
 * */
#ifndef TESTS_MOE_GGUF_BYTES_H
#define TESTS_MOE_GGUF_BYTES_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "moe/moe.h"

struct gguf {
    uint8_t *data;
    size_t n, room;
};

static inline void gguf_bytes(struct gguf *g, const void *data, size_t n)
{
    if (g->room - g->n < n) {
        g->room = 2 * (g->n + n) + 1024;
        g->data = realloc(g->data, g->room);
        if (!g->data)
            abort();
    }
    if (n)
        memcpy(g->data + g->n, data, n);
    g->n += n;
}

static inline void gguf_u8(struct gguf *g, uint8_t x) { gguf_bytes(g, &x, sizeof x); }
static inline void gguf_u32(struct gguf *g, uint32_t x) { gguf_bytes(g, &x, sizeof x); }
static inline void gguf_u64(struct gguf *g, uint64_t x) { gguf_bytes(g, &x, sizeof x); }
static inline void gguf_f32(struct gguf *g, float x) { gguf_bytes(g, &x, sizeof x); }

static inline void gguf_string(struct gguf *g, const char *s)
{
    gguf_u64(g, strlen(s));
    gguf_bytes(g, s, strlen(s));
}

static inline void gguf_header(struct gguf *g, uint32_t version, uint64_t n_tensor, uint64_t n_value)
{
    gguf_bytes(g, "GGUF", 4);
    gguf_u32(g, version);
    gguf_u64(g, n_tensor);
    gguf_u64(g, n_value);
}

/* Adds a key and the type of its value; the caller adds the value. */
static inline void gguf_key(struct gguf *g, const char *key, uint32_t type)
{
    gguf_string(g, key);
    gguf_u32(g, type);
}

static inline void gguf_u32_value(struct gguf *g, const char *key, uint32_t x)
{
    gguf_key(g, key, MOE_U32);
    gguf_u32(g, x);
}

static inline void gguf_f32_value(struct gguf *g, const char *key, float x)
{
    gguf_key(g, key, MOE_F32);
    gguf_f32(g, x);
}

static inline void gguf_string_value(struct gguf *g, const char *key, const char *s)
{
    gguf_key(g, key, MOE_STRING);
    gguf_string(g, s);
}

/* Adds a key and an array's head; the caller adds the items. */
static inline void gguf_array(struct gguf *g, const char *key, uint32_t item, uint64_t n)
{
    gguf_key(g, key, MOE_ARRAY);
    gguf_u32(g, item);
    gguf_u64(g, n);
}

static inline void gguf_tensor(struct gguf *g, const char *name, uint32_t n_dim, const uint64_t *dim, uint32_t type,
                               uint64_t offset)
{
    gguf_string(g, name);
    gguf_u32(g, n_dim);
    gguf_bytes(g, dim, (n_dim < 8 ? n_dim : 8) * sizeof *dim);
    gguf_u32(g, type);
    gguf_u64(g, offset);
}

static inline void gguf_data(struct gguf *g, size_t n)
{
    while (g->n % 32)
        gguf_u8(g, 0);
    for (size_t i = 0; i < n; i++)
        gguf_u8(g, (uint8_t)i);
}

/* hole: bytes of a sparse hole after the end. */
static inline void gguf_save_sparse(const struct gguf *g, const char *path, uint64_t hole)
{
    FILE *f = fopen(path, "wb");
    if (!f || (g->n && fwrite(g->data, 1, g->n, f) != g->n) || fflush(f) ||
        (hole && truncate(path, (off_t)(g->n + hole))) || fclose(f))
        abort();
}

static inline void gguf_save(const struct gguf *g, const char *path) { gguf_save_sparse(g, path, 0); }

static inline void gguf_free(struct gguf *g)
{
    free(g->data);
    *g = (struct gguf){ 0 };
}

#endif
