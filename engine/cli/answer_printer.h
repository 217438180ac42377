/* engine/cli/answer_printer.h - writes an answer to stdout as its text arrives.
 *
 *     eng_printer_open -> [ eng_printer_add* -> eng_printer_end ]* -> eng_printer_close
 *
 * On a terminal words are wrapped whole at its present width, control characters are left out, and reasoning is dimmed.
 * A file or a pipe gets the bytes of the answer alone: no wrapping, no colour, no reasoning. */
#ifndef ENGINE_CLI_ANSWER_PRINTER_H
#define ENGINE_CLI_ANSWER_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

enum eng_ink { ENG_INK_ANSWER, ENG_INK_REASONING };

struct eng_printer;

struct eng_printer_options {
    int fd;
    bool terminal, color; /* color: escape sequences may be used; without it, lines name the reasoning */
};

int eng_printer_open(struct eng_printer **out, const struct eng_printer_options *o);
void eng_printer_close(struct eng_printer *p);

/* Adds text of whole characters.  A word is written when its end is known.  Returns 0, KN_ENOMEM, or KN_EIO after a
 * failed write. */
int eng_printer_add(struct eng_printer *p, enum eng_ink ink, const char *text, size_t n);

/* Writes the rest and ends the last line.  On a terminal an empty answer has no line. */
int eng_printer_end(struct eng_printer *p);

#endif
