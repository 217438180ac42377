/* engine/cli/text_width.h - the columns that text takes on a terminal. */
#ifndef ENGINE_CLI_TEXT_WIDTH_H
#define ENGINE_CLI_TEXT_WIDTH_H

#include <stddef.h>
#include <stdio.h>

/* The bytes of the first grapheme cluster of p[n], which is one character for a reader: a base with its combining
 * marks, an emoji of several code points, a flag.  *width: its columns; 0 for a control character.  Invalid UTF-8 is
 * one cluster per byte, one column wide. */
size_t eng_cluster_next(const char *p, size_t n, int *width);

/* The columns of the terminal that fd is; 80 if it does not say. */
int eng_terminal_columns(int fd);

/* Prints a text of ASCII words and a newline; a line that would be longer than the columns of the terminal that `out` is,
 * or than 80, ends between two words.  at: columns of the line that are printed already.  Further lines are indented. */
void eng_print_wrapped(FILE *out, int at, int indent, const char *text);

#endif
