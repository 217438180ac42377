/* engine/batch/lines.c - reads lines of a file in pieces, into a buffer that grows to the longest line.
 *
 * Of a line longer than eng_lines.most only the first PIECE bytes are returned; its other bytes are skipped. */
#include "engine/batch/batch.h"

#include <errno.h>
#include <string.h>

#define PIECE ((size_t)1 << 16)

int eng_lines_open(struct eng_lines *l, int fd, const char *path, uint64_t size)
{
    *l = (struct eng_lines){ .fd = fd, .path = path, .size = size, .most = ENG_LINE_MOST, .room = PIECE };
    l->buffer = kn_alloc(l->room);
    return l->buffer ? 0 : kn_fail(KN_ENOMEM, "%s: no memory to read it", path);
}

void eng_lines_close(struct eng_lines *l)
{
    kn_free(l->buffer);
    l->buffer = NULL;
}

/* Moves the unread bytes to the start of the buffer, doubles a full buffer, and fills it from the file. */
static int fill(struct eng_lines *l)
{
    if (l->start > 0) {
        memmove(l->buffer, l->buffer + l->start, l->end - l->start);
        l->end -= l->start;
        l->start = 0;
    }
    if (l->end == l->room) {
        char *more = kn_realloc(l->buffer, l->room, 2 * l->room);
        if (!more)
            return kn_fail(KN_ENOMEM, "%s: no memory for a line of more than %zu bytes", l->path, l->room);
        l->buffer = more;
        l->room *= 2;
    }
    uint64_t left = l->size - l->at;
    size_t n = l->room - l->end < left ? l->room - l->end : (size_t)left;
    int error = kn_file_read(l->fd, l->path, l->buffer + l->end, n, l->at);
    if (error)
        return error;
    l->at += n;
    l->end += n;
    return 0;
}

/* Reads the next line, blank or not.  Returns 1, or KN_E*. */
static int next(struct eng_lines *l, struct eng_line *out)
{
    size_t looked = 0;
    *out = (struct eng_line){ .number = ++l->number, .offset = l->at - (l->end - l->start) };
    for (;;) {
        char *from = l->buffer + l->start, *newline = memchr(from + looked, '\n', l->end - l->start - looked);
        size_t n = newline ? (size_t)(newline - from) : l->end - l->start;
        if (n > l->most)
            out->too_long = true;
        if (newline || l->at == l->size) {
            out->torn = !newline;
            out->text = from;
            out->n = out->too_long ? PIECE : n;
            l->start += n + (newline != NULL);
            out->bytes = l->at - (l->end - l->start) - out->offset - (newline != NULL);
            return 1;
        }
        looked = n;
        if (out->too_long) { /* keep the first PIECE bytes, discard the others */
            l->end = l->start + PIECE;
            looked = PIECE;
        }
        int error = fill(l);
        if (error)
            return error;
    }
}

static bool is_blank(const struct eng_line *line)
{
    size_t i = 0;
    while (i < line->n && (line->text[i] == ' ' || line->text[i] == '\t'))
        i++;
    return i == line->n;
}

int eng_lines_next(struct eng_lines *l, struct eng_line *out)
{
    while (l->start < l->end || l->at < l->size) {
        int got = next(l, out);
        if (got < 0)
            return got;
        if (out->number == 1 && out->n >= 3 && !memcmp(out->text, "\xef\xbb\xbf", 3)) {
            out->text += 3; /* UTF-8 byte order mark */
            out->n -= 3;
        }
        if (out->n > 0 && out->text[out->n - 1] == '\r')
            out->n--;
        if (out->torn || !is_blank(out))
            return 1;
    }
    return 0;
}
