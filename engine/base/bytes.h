/* engine/base/bytes.h - a growing byte buffer, and JSON written to it.  Internal to engine.
 *
 * Functions that add bytes return no error. When memory runs out they set `failed`, and the buffer accepts no more
 * bytes; the caller checks `failed` once, when all is added. */
#ifndef ENGINE_BASE_BYTES_H
#define ENGINE_BASE_BYTES_H

#include <jansson.h>

#include "moe/moe.h"

struct eng_bytes { /* all zero: empty */
    char *data;    /* [n] */
    size_t n, cap;
    bool failed;
};

void eng_bytes_free(struct eng_bytes *b);
/* Returns b->data + b->n, with space for n bytes there, or NULL without memory. The caller writes there and adds the
 * number of bytes written to b->n. */
char *eng_bytes_room(struct eng_bytes *b, size_t n);
void eng_bytes_add(struct eng_bytes *b, const char *p, size_t n);
void eng_bytes_text(struct eng_bytes *b, const char *text);
void eng_bytes_int(struct eng_bytes *b, int64_t n); /* as "%lld", in a tenth of the time */
void eng_bytes_format(struct eng_bytes *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A hash of h and p[n]; 0 is a usual first h. */
uint64_t eng_hash(uint64_t h, const char *p, size_t n);

/* Adds p[n] as a JSON string in quotes; invalid UTF-8 becomes U+FFFD, since JSON cannot hold it. */
void eng_bytes_quote(struct eng_bytes *b, const char *p, size_t n);
void eng_bytes_date(struct eng_bytes *b, int64_t at_s); /* seconds since 1970, as "2026-11-25T21:15:47Z" in quotes */
void eng_bytes_json(struct eng_bytes *b, const json_t *value); /* as compact JSON */
char *eng_json_text(const json_t *value);                      /* the same, for kn_free(); NULL without memory */

/* Writes the character at s.data[*at] to out as it stands in a JSON string (escaped; U+FFFD if it is not UTF-8),
 * advances *at behind it, and returns the number of bytes written. */
enum { ENG_JSON_PIECE = 8 };
size_t eng_json_piece(struct moe_string s, size_t *at, char *out /* [ENG_JSON_PIECE] */);

#endif
