/* engine/base/bytes.h - a growing byte buffer, and JSON written to it.  Internal to engine.
 *
 * Functions that add bytes return no error. When memory runs out the buffer sets `failed` and accepts no more bytes;
 * the sender of the bytes checks `failed` once. */
#ifndef ENGINE_SERVE_BYTES_H
#define ENGINE_SERVE_BYTES_H

#include <jansson.h>

#include "moe/moe.h"

struct eng_bytes { /* all zero: empty */
    char *data;    /* [n] */
    size_t n, cap;
    bool failed;
};

void eng_bytes_free(struct eng_bytes *b);
/* Space for n more bytes, or NULL without memory. The caller writes there and adds to b->n. */
char *eng_bytes_room(struct eng_bytes *b, size_t n);
void eng_bytes_add(struct eng_bytes *b, const char *p, size_t n);
void eng_bytes_text(struct eng_bytes *b, const char *text);
void eng_bytes_int(struct eng_bytes *b, int64_t n); /* as "%lld" in a tenth of the time; called once a token */
void eng_bytes_format(struct eng_bytes *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds a JSON string in quotes; invalid UTF-8 becomes U+FFFD, since JSON cannot hold it. */
void eng_bytes_quote(struct eng_bytes *b, const char *p, size_t n);
void eng_bytes_json(struct eng_bytes *b, const json_t *value);

/* Writes the character at s.data[*at] as it stands in a JSON string, advances *at, and returns the bytes written. */
enum { ENG_JSON_PIECE = 8 };
size_t eng_json_piece(struct moe_string s, size_t *at, char *out /* [ENG_JSON_PIECE] */);

#endif
