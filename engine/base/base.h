/* engine/base/base.h - small tools for the whole engine: reading whole files, the progress bar on a terminal, UTF-8,
 * and the names of the files beside a model.  A growing buffer with JSON is in bytes.h. */
#ifndef ENGINE_BASE_H
#define ENGINE_BASE_H

#include "kernels/core.h"

struct off_progress; /* offload/offload.h */

/* ---- files ------------------------------------------------------------------------------------- */

/* Reads a file or pipe to its end. The caller frees *text with kn_free, on failure too. */
int eng_read_all(int fd, const char *name, char **text, size_t *n);
int eng_read_file(const char *path, char **text, size_t *n);

/* Opens /dev/null in place of standard input, output and error where the process was started without them; else
 * the first file that it opens would get their number, and log lines would be written into that file. */
void eng_stdio_keep(void);

#define ENG_PATH_BYTES 4096

/* The pack file of a model: m.gguf has m.experts. */
int eng_pack_path(char *out /* [ENG_PATH_BYTES] */, const char *model);
/* The heat file of a model: m.gguf has m.gguf.heat. False: the name would be too long. */
bool eng_heat_path(char *out /* [ENG_PATH_BYTES] */, const char *model);

/* ---- progress ---------------------------------------------------------------------------------- */

/* A bar on stderr, drawn by its own thread, only on a terminal and unless quiet. It counts bytes, or the unit that
 * is given ("lines"). */
struct eng_progress;
int eng_progress_open(struct eng_progress **out, const char *what, bool quiet);
int eng_progress_open_of(struct eng_progress **out, const char *what, const char *unit, bool quiet);
struct off_progress *eng_progress_counter(struct eng_progress *p);
void eng_progress_close(struct eng_progress *p); /* ends the line with the mean rate */

/* The log's sink while a bar may be drawn: a log line replaces the bar, which is drawn again below it. */
void eng_progress_log(enum kn_level level, const char *line);

/* ---- UTF-8 ------------------------------------------------------------------------------------- */

/* The length in bytes of the character at p[n]; 0 when the bytes are not UTF-8. Then *n_bad is the number of bytes to
 * skip (at least 1), and *cut says that further bytes could still complete a character. */
int eng_utf8_next(const char *p, size_t n, int *n_bad, bool *cut);

#endif
