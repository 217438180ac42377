/* engine/base/bytes.h - a growing run of bytes, and JSON written to it.  Internal to engine.
 *
 * Writing never fails half-way in the caller's code: the first time there is no memory the buffer
 * remembers it, takes nothing more, and whoever sends the bytes looks at `failed` once. */
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
/* Room for n bytes more, NULL when there is none; whoever writes there adds to b->n. */
char *eng_bytes_room(struct eng_bytes *b, size_t n);
void eng_bytes_add(struct eng_bytes *b, const char *p, size_t n);
void eng_bytes_text(struct eng_bytes *b, const char *text);
void eng_bytes_int(struct eng_bytes *b, int64_t n); /* as "%d", in a tenth of the time: once a token */
void eng_bytes_format(struct eng_bytes *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Quoted; what is no UTF-8 becomes U+FFFD, since JSON cannot hold it. */
void eng_bytes_quote(struct eng_bytes *b, const char *p, size_t n);
void eng_bytes_json(struct eng_bytes *b, const json_t *value);

/* The character at s.data[*at] as it stands between quotes; returns its bytes, and goes on. */
enum { ENG_JSON_PIECE = 8 };
size_t eng_json_piece(struct moe_string s, size_t *at, char *out /* [ENG_JSON_PIECE] */);

#endif
