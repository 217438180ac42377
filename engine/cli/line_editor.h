/* engine/cli/line_editor.h - edits a line on a terminal: bytes of keys in, text and escape sequences out.
 *
 *     eng_editor_open -> [ eng_editor_begin -> [ eng_editor_key | eng_editor_resize ]* -> eng_editor_finish ]* -> close
 *
 * The editor does no input or output.  The caller reads keys, and writes the bytes of eng_editor_take to the terminal.
 * Keys are those of emacs and readline.  A position in the text is always between two grapheme clusters. */
#ifndef ENGINE_CLI_LINE_EDITOR_H
#define ENGINE_CLI_LINE_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

struct eng_editor;

enum eng_edit { ENG_EDIT_MORE, ENG_EDIT_LINE, ENG_EDIT_END }; /* END: Ctrl-D on an empty line */

int eng_editor_open(struct eng_editor **out, size_t most_bytes, int most_history);
void eng_editor_close(struct eng_editor *e);

/* Begins an empty line on an empty row of a terminal of this size. */
void eng_editor_begin(struct eng_editor *e, const char *prompt, int columns, int rows);

/* Takes one byte of a key.  Nothing is drawn before eng_editor_draw. */
enum eng_edit eng_editor_key(struct eng_editor *e, unsigned char byte);
void eng_editor_draw(struct eng_editor *e);

/* The terminal has another size now, and has folded its lines to it. */
void eng_editor_resize(struct eng_editor *e, int columns, int rows);

/* The same, and other output stands behind the line: draws it on new rows. */
void eng_editor_restart(struct eng_editor *e, int columns, int rows);

/* Moves behind the line, to an empty row. */
void eng_editor_finish(struct eng_editor *e);

const char *eng_editor_text(const struct eng_editor *e, size_t *n); /* NUL-terminated */
void eng_editor_remember(struct eng_editor *e, const char *text);   /* adds an entry to the history */

/* Bytes to write to the terminal; valid until the next call of any function. */
const char *eng_editor_take(struct eng_editor *e, size_t *n);

#endif
