/* engine/base/bytes.c - a growing byte buffer, and JSON written to it. */
#include "engine/base/bytes.h"
#include "engine/base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t eng_hash(uint64_t h, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = kn_mix(h + KN_GOLDEN + (uint8_t)p[i]);
    return h;
}

void eng_bytes_free(struct eng_bytes *b)
{
    kn_free(b->data);
    *b = (struct eng_bytes){ 0 };
}

char *eng_bytes_room(struct eng_bytes *b, size_t n)
{
    size_t want, cap;
    if (b->failed)
        return NULL;
    if (!kn_add(b->n, n, &want) || want > SIZE_MAX / 4) {
        b->failed = true;
        return NULL;
    }
    if (want > b->cap || !b->data) {
        cap = want < 256 ? 256 : want + want / 2;
        char *grown = kn_realloc(b->data, b->cap, cap);
        if (!grown) {
            b->failed = true;
            return NULL;
        }
        b->data = grown;
        b->cap = cap;
    }
    return b->data + b->n;
}

void eng_bytes_add(struct eng_bytes *b, const char *p, size_t n)
{
    char *to = n ? eng_bytes_room(b, n) : NULL;
    if (to) {
        memcpy(to, p, n);
        b->n += n;
    }
}

void eng_bytes_text(struct eng_bytes *b, const char *text) { eng_bytes_add(b, text, strlen(text)); }

void eng_bytes_int(struct eng_bytes *b, int64_t n)
{
    char digit[24], *p = digit + sizeof digit;
    uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    do
        *--p = (char)('0' + left % 10);
    while (left /= 10);
    if (n < 0)
        *--p = '-';
    eng_bytes_add(b, p, (size_t)(digit + sizeof digit - p));
}

void eng_bytes_date(struct eng_bytes *b, int64_t at_s)
{
    char date[32] = "";
    struct tm at;
    time_t t = (time_t)at_s;
    if (gmtime_r(&t, &at))
        strftime(date, sizeof date, "\"%Y-%m-%dT%H:%M:%SZ\"", &at);
    eng_bytes_text(b, date[0] ? date : "\"\"");
}

void eng_bytes_format(struct eng_bytes *b, const char *format, ...)
{
    size_t room = 128;
    for (;;) { /* once more if `room` was too small */
        va_list args;
        char *to = eng_bytes_room(b, room);
        if (!to)
            return;
        va_start(args, format);
        int n = vsnprintf(to, room, format, args);
        va_end(args);
        kn_assert(n >= 0);
        if ((size_t)n < room) {
            b->n += (size_t)n;
            return;
        }
        room = (size_t)n + 1;
    }
}

static bool is_plain(uint8_t c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

void eng_bytes_quote(struct eng_bytes *b, const char *p, size_t n)
{
    eng_bytes_add(b, "\"", 1);
    for (size_t at = 0; at < n;) {
        char escaped[ENG_JSON_PIECE];
        size_t from = at;
        while (at < n && is_plain((uint8_t)p[at]))
            at++;
        eng_bytes_add(b, p + from, at - from);
        if (at < n)
            eng_bytes_add(b, escaped, eng_json_piece((struct moe_string){ p, n }, &at, escaped));
    }
    eng_bytes_add(b, "\"", 1);
}

static int add_json(const char *p, size_t n, void *b)
{
    eng_bytes_add(b, p, n);
    return ((struct eng_bytes *)b)->failed ? -1 : 0;
}

void eng_bytes_json(struct eng_bytes *b, const json_t *value)
{
    if (json_dump_callback(value, add_json, b, JSON_COMPACT | JSON_ENCODE_ANY))
        b->failed = true;
}

char *eng_json_text(const json_t *value)
{
    struct eng_bytes text = { 0 };
    eng_bytes_json(&text, value);
    eng_bytes_add(&text, "", 1);
    char *copy = text.failed ? NULL : kn_strdup(text.data);
    eng_bytes_free(&text);
    return copy;
}

size_t eng_json_piece(struct moe_string s, size_t *at, char *out)
{
    int bad = 1;
    bool cut;
    const char *p = s.data + *at;
    size_t n = (size_t)eng_utf8_next(p, s.n - *at, &bad, &cut);
    uint8_t c = (uint8_t)*p;
    *at += n ? n : (size_t)bad;
    if (!n)
        return (size_t)snprintf(out, ENG_JSON_PIECE, "\\ufffd");
    if (c < 0x20 || c == 0x7f)
        return (size_t)snprintf(out, ENG_JSON_PIECE, "\\u%04x", c);
    if (c == '"' || c == '\\')
        return (size_t)snprintf(out, ENG_JSON_PIECE, "\\%c", c);
    memcpy(out, p, n);
    return n;
}
