/* Error texts, the log's sink, assertions, the clock.
 *
 * The log's sink is one of the program's few globals: main (or a test) sets it once, before threads start. */
#include "kernels/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void stderr_sink(enum kn_level level, const char *line)
{
    static const char *const mark[] = { "error: ", "warning: ", "", "" };
    fprintf(stderr, "spillway: %s%s\n", mark[level], line);
}

static kn_log_sink *sink = stderr_sink;
static enum kn_level most_said = KN_LOG_INFO;

const char *kn_error_text(int code)
{
    switch (code) {
#define KN_CASE(name, value, text)                                                                                     \
    case name:                                                                                                         \
        return text;
        KN_ERRORS(KN_CASE)
#undef KN_CASE
    }
    return "no error";
}

void kn_log_set(kn_log_sink *s, enum kn_level most)
{
    sink = s ? s : stderr_sink;
    most_said = most;
}

static void say(enum kn_level level, const char *fmt, va_list args)
{
    if (level > most_said)
        return;
    char line[1024];
    vsnprintf(line, sizeof line, fmt, args);
    for (char *c = line; *c; c++) /* names from files must not break or forge log lines */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    sink(level, line);
}

void kn_say(enum kn_level level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(level, fmt, args);
    va_end(args);
}

int kn_fail(int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(KN_LOG_ERROR, fmt, args);
    va_end(args);
    return code;
}

_Noreturn void kn_assert_failed(const char *file, int line, const char *cond)
{
    fprintf(stderr, "spillway: broken invariant at %s:%d: %s\n", file, line, cond);
    __builtin_trap();
}

uint64_t kn_now_ns(void) { return kn_io()->now_ns(); }
