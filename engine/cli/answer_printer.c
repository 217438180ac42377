/* engine/cli/answer_printer.c - lines of an answer on a terminal, and its bytes on a pipe.
 *
 * In: text as tokens complete it.  Out: bytes to a file descriptor.
 *
 * On a terminal the text is cut into grapheme clusters, and the clusters are collected into words.  Blanks end a word;
 * a line may also break before and after a wide character (Chinese, Japanese, Korean, emoji), but not before closing
 * punctuation.  A word that does not fit into the rest of the line begins the next one, and the blanks before it are
 * dropped.  A word longer than a line is cut.  The width is read from the terminal for each word, so a resized window
 * needs no signal.
 *
 * Escape sequences around dimmed text end with each write: a signal that ends the program leaves no dimmed terminal. */
#include "engine/cli/answer_printer.h"

#include "engine/base/bytes.h"
#include "engine/cli/cli.h"
#include "engine/cli/text_width.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define DIM       "\033[2m"
#define RESET     "\033[0m"
#define TAB_STOP  8
#define REASONING "(reasoning)\n"
#define ANSWER    "(answer)\n"

struct eng_printer {
    struct eng_printer_options o;
    enum eng_ink ink;           /* of the pending text */
    struct eng_bytes undecided; /* bytes whose cluster may not be complete */
    struct eng_bytes blanks, word, out;
    int column, blank_width, word_width;
    bool after_wide;  /* the last cluster of the word is a wide character */
    bool any, dimmed; /* any: text was written; dimmed: `out` ends inside dimmed text */
};

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes p->out.  A write that Ctrl-C interrupts is no failure. */
static int flush_out(struct eng_printer *p)
{
    if (p->dimmed)
        eng_bytes_text(&p->out, RESET);
    p->dimmed = false;
    if (p->out.failed)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    const char *s = p->out.data;
    for (size_t n = p->out.n; n;) {
        ssize_t done = write(p->o.fd, s, n);
        if (done < 0 && errno == EINTR && eng_terminal_stopped())
            break;
        if (done < 0 && errno == EAGAIN)
            (void)poll(&(struct pollfd){ .fd = p->o.fd, .events = POLLOUT }, 1, -1);
        else if (done < 0 && errno != EINTR)
            return kn_fail(KN_EIO, "standard output: cannot be written: %s", strerror(errno));
        s += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    p->out.n = 0;
    return 0;
}

static void put(struct eng_printer *p, const char *s, size_t n)
{
    if (p->ink == ENG_INK_REASONING && p->o.color && !p->dimmed && n) {
        eng_bytes_text(&p->out, DIM);
        p->dimmed = true;
    }
    eng_bytes_add(&p->out, s, n);
    p->any |= n > 0;
}

static void end_line(struct eng_printer *p)
{
    put(p, "\n", 1);
    p->column = 0;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Writes a word that is wider than a line, cut into lines. */
static void put_cut(struct eng_printer *p, int columns)
{
    int width;
    for (size_t at = 0, n; at < p->word.n; at += n, p->column += width) {
        n = eng_cluster_next(p->word.data + at, p->word.n - at, &width);
        if (p->column > 0 && p->column + width > columns)
            end_line(p);
        put(p, p->word.data + at, n);
    }
}

static void put_word(struct eng_printer *p)
{
    int columns = eng_terminal_columns(p->o.fd);
    if (p->word.n == 0)
        return;
    if (p->column > columns) /* a narrower window has folded the line */
        p->column = (p->column - 1) % columns + 1;
    bool fits = p->column + p->blank_width + p->word_width <= columns;
    bool cut = p->word_width > columns && p->column + p->blank_width < columns;
    if (fits || cut) {
        put(p, p->blanks.data, p->blanks.n);
        p->column += p->blank_width;
    } else if (p->column > 0) {
        end_line(p);
    }
    if (p->word_width > columns) {
        put_cut(p, columns);
    } else {
        put(p, p->word.data, p->word.n);
        p->column += p->word_width;
    }
    p->blanks.n = p->word.n = 0;
    p->blank_width = p->word_width = 0;
    p->after_wide = false;
}

/* True for punctuation that may not begin a line: it ends a sentence, a part of it or a bracket. */
static bool closes(const char *s, size_t n)
{
    static const char *const marks[] = { "\u3001", "\u3002", "\uff0c", "\uff0e", "\uff01", "\uff1f", "\uff1b",
                                         "\uff1a", "\u300d", "\u300f", "\uff09", "\u3011", "\u300b", "\u3009" };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (n == strlen(marks[i]) && !memcmp(s, marks[i], n))
            return true;
    return false;
}

static void take_cluster(struct eng_printer *p, const char *s, size_t n, int width)
{
    bool wide = width > 1, first_byte_blank = *s == ' ' || *s == '\t';
    if (*s == '\n') {
        put_word(p);
        p->blanks.n = 0;
        p->blank_width = 0;
        end_line(p);
    } else if (first_byte_blank) {
        put_word(p);
        eng_bytes_add(&p->blanks, s, n);
        p->blank_width += *s == ' ' ? 1 : TAB_STOP - (p->column + p->blank_width) % TAB_STOP;
    } else if (width > 0) {
        bool closing = wide && closes(s, n);
        if (p->word.n && !closing && (wide || p->after_wide))
            put_word(p);
        eng_bytes_add(&p->word, s, n);
        p->word_width += width;
        p->after_wide = wide;
    }
}

/* Takes the complete clusters of p->undecided; with `all`, every one.  A cluster is complete if another follows, and
 * white space always is. */
static void take_clusters(struct eng_printer *p, bool all)
{
    size_t at = 0;
    while (at < p->undecided.n) {
        const char *s = p->undecided.data + at;
        int width;
        size_t n = eng_cluster_next(s, p->undecided.n - at, &width);
        bool white = *s == ' ' || *s == '\n' || *s == '\t';
        if (!all && !white && at + n == p->undecided.n)
            break;
        take_cluster(p, s, n, width);
        at += n;
    }
    p->undecided.n -= at;
    if (at)
        memmove(p->undecided.data, p->undecided.data + at, p->undecided.n);
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Writes all pending text, except blanks. */
static void settle(struct eng_printer *p)
{
    take_clusters(p, true);
    put_word(p);
    p->blanks.n = 0;
    p->blank_width = 0;
}

/* Begins reasoning, or ends it: an empty line, or without colour a line that names the next part. */
static void change_ink(struct eng_printer *p, enum eng_ink ink)
{
    settle(p);
    if (p->column > 0)
        end_line(p);
    if (p->dimmed)
        eng_bytes_text(&p->out, RESET);
    p->dimmed = false;
    if (p->o.color && p->any)
        eng_bytes_text(&p->out, "\n");
    if (!p->o.color)
        eng_bytes_text(&p->out, ink == ENG_INK_REASONING ? REASONING : ANSWER);
    p->ink = ink;
}

int eng_printer_add(struct eng_printer *p, enum eng_ink ink, const char *text, size_t n)
{
    if (n == 0)
        return 0;
    if (!p->o.terminal) {
        if (ink == ENG_INK_ANSWER)
            put(p, text, n);
        return flush_out(p);
    }
    if (ink != p->ink)
        change_ink(p, ink);
    eng_bytes_add(&p->undecided, text, n);
    take_clusters(p, false);
    if (p->undecided.failed || p->word.failed || p->blanks.failed)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    return flush_out(p);
}

int eng_printer_end(struct eng_printer *p)
{
    if (p->o.terminal)
        settle(p);
    if (!p->o.terminal || p->column > 0)
        end_line(p);
    int error = flush_out(p);
    p->ink = ENG_INK_ANSWER;
    p->column = 0;
    p->any = false;
    return error;
}

int eng_printer_open(struct eng_printer **out, const struct eng_printer_options *o)
{
    struct eng_printer *p = kn_calloc(1, sizeof *p);
    if (!p)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    p->o = *o;
    *out = p;
    return 0;
}

void eng_printer_close(struct eng_printer *p)
{
    if (!p)
        return;
    eng_bytes_free(&p->undecided);
    eng_bytes_free(&p->blanks);
    eng_bytes_free(&p->word);
    eng_bytes_free(&p->out);
    kn_free(p);
}
