/* engine/base/base.h - small tools for the whole engine: reading whole files, the progress bar and the log, UTF-8,
 * and the names of the files beside a model.  A growing buffer with JSON is in bytes.h. */
#ifndef ENGINE_BASE_BASE_H
#define ENGINE_BASE_BASE_H

#include "kernels/core.h"

struct off_progress; /* offload/offload.h */

/* ---- files ------------------------------------------------------------------------------------- */

/* Read a file or pipe to its end; *n bytes, without a NUL. The caller frees *text with kn_free(), on failure too.
 * name: for messages. */
int eng_read_all(int fd, const char *name, char **text, size_t *n);
int eng_read_file(const char *path, char **text, size_t *n);

/* Opens /dev/null for each of file descriptors 0 to 2 that is closed. Otherwise the first file that the process opens
 * could get number 2, and log lines would be written into it. */
void eng_stdio_keep(void);

#define ENG_PATH_BYTES 4096

/* The pack file (the experts in memory layout) of a model: m.gguf has m.experts. KN_ELIMIT: the name would be too
 * long. */
int eng_pack_path(char *out /* [ENG_PATH_BYTES] */, const char *model);
/* The heat file (the experts' use counts) of a model: m.gguf has m.gguf.heat. False: the name would be too long. */
bool eng_heat_path(char *out /* [ENG_PATH_BYTES] */, const char *model);
/* The fit file (the fitted time of passes) of a model: m.gguf has m.gguf.fit. False: the name would be too long. */
bool eng_fit_path(char *out /* [ENG_PATH_BYTES] */, const char *model);

/* ---- progress ---------------------------------------------------------------------------------- */

/* A progress bar on stderr, drawn by its own thread; nothing is drawn if stderr is no terminal or `quiet` is set. It
 * counts bytes, or things that `unit` names ("lines"). The first string is printed before the bar. Neither string is
 * copied. */
struct eng_progress;
int eng_progress_open(struct eng_progress **out, const char *what, bool quiet);
int eng_progress_open_of(struct eng_progress **out, const char *what, const char *unit, bool quiet);
struct off_progress *eng_progress_counter(struct eng_progress *p); /* the work in progress advances it */
void eng_progress_close(struct eng_progress *p); /* replaces the bar by the total and the mean rate, if complete */

/* Bytes in decimal units, as on the labels of disks: "1.5 GB". */
void eng_size_text(char *out, size_t size, double bytes);

/* ---- log --------------------------------------------------------------------------------------- */

/* Sinks of the log (kn_log_set) that write a line to stderr, in the forms of log.c.  A bar is replaced by the line and
 * then drawn again below. */
void eng_log_plain(enum kn_level level, const char *line);
void eng_log_text(enum kn_level level, const char *line);
void eng_log_json(enum kn_level level, const char *line);

/* An event with values for programs.  eng_log_json writes the name as the message, and the members; every other sink
 * gets the text.  members: of a JSON object, without braces; at most 3 KiB. */
struct eng_log_event {
    const char *name, *members;
};
void eng_log_say(enum kn_level level, const struct eng_log_event *e, const char *text);

/* ---- UTF-8 ------------------------------------------------------------------------------------- */

/* The length in bytes of the character at the beginning of p[n]; 0 if it is not valid UTF-8. Then *n_bad is the number
 * of bytes to skip (at least 1), and *cut is true if p[n] ends within a character that more bytes could complete. */
int eng_utf8_next(const char *p, size_t n, int *n_bad, bool *cut);

#endif
