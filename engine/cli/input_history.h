/* engine/cli/input_history.h - the file with the lines that users typed into chats. */
#ifndef ENGINE_CLI_INPUT_HISTORY_H
#define ENGINE_CLI_INPUT_HISTORY_H

#include <stddef.h>

/* Calls fn for each kept line, oldest first, at most `most` of them; also shortens a file that has grown too long.  A
 * file that is not there, or cannot be read, has no lines. */
typedef void eng_history_line(void *arg, const char *text);
void eng_history_load(const char *path, int most, eng_history_line *fn, void *arg);

/* Appends a line; a message of several lines is one.  Returns 0, or KN_EIO without a message. */
int eng_history_append(const char *path, const char *text, size_t n);

#endif
