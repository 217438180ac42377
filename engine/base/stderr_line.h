/* engine/base/stderr_line.h - turns on stderr between log lines and the progress bar.  Internal to engine/base. */
#ifndef ENGINE_BASE_STDERR_LINE_H
#define ENGINE_BASE_STDERR_LINE_H

/* Between the two calls the thread writes whole lines; begin erases a bar, which its thread draws again later. */
void eng_stderr_begin(void);
void eng_stderr_end(void);

#endif
