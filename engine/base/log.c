/* engine/base/log.c - the forms of a log line on stderr.
 *
 *     plain   spillway: warning: MESSAGE                            for people at a terminal
 *     text    2026-11-26T00:38:38.123Z warning MESSAGE              for the log of a service
 *     JSON    {"time":"...","level":"warning","message":"..."}      the same for programs; an event has further members
 *
 * A line is written by one call, and removes a progress bar first.  Times are UTC. */
#include "engine/base/base.h"
#include "engine/base/stderr_line.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LINE_BYTES 8192 /* a message of kn_say() with every byte escaped, and the members of an event */

static const char *const level_name[] = {
    [KN_LOG_ERROR] = "error", [KN_LOG_WARN] = "warning", [KN_LOG_INFO] = "info", [KN_LOG_DEBUG] = "debug"
};

/* The event of the message that the sink gets: set around a kn_say() by the same thread. */
static _Thread_local const struct eng_log_event *event;

static void write_time(char *out, size_t size)
{
    struct timespec now;
    struct tm t;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    size_t n = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(out + n, size - n, ".%03ldZ", now.tv_nsec / 1000000);
}

void eng_log_plain(enum kn_level level, const char *line)
{
    static const char *const mark[] = { "error: ", "warning: ", "", "" };
    eng_stderr_begin();
    fprintf(stderr, "spillway: %s%s\n", mark[level], line);
    eng_stderr_end();
}

void eng_log_text(enum kn_level level, const char *line)
{
    char time[40];
    write_time(time, sizeof time);
    eng_stderr_begin();
    fprintf(stderr, "%s %s %s\n", time, level_name[level], line);
    eng_stderr_end();
}

/* Writes the inside of a JSON string; invalid UTF-8 becomes U+FFFD.  Control characters are replaced before. */
static size_t write_escaped(char *out, size_t size, const char *s)
{
    size_t n = 0;
    while (*s && n + 6 < size) {
        int bad, length;
        bool cut;
        length = eng_utf8_next(s, strlen(s), &bad, &cut);
        if (*s == '"' || *s == '\\')
            out[n++] = '\\';
        memcpy(out + n, length ? s : "\xef\xbf\xbd", length ? (size_t)length : 3);
        n += length ? (size_t)length : 3;
        s += length ? length : bad;
    }
    out[n] = 0;
    return n;
}

void eng_log_json(enum kn_level level, const char *line)
{
    char out[LINE_BYTES], time[40];
    write_time(time, sizeof time);
    size_t n = (size_t)snprintf(out, sizeof out, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"", time,
                                level_name[level]);
    n += write_escaped(out + n, sizeof out / 2, event ? event->name : line);
    out[n++] = '"';
    const char *members = event ? event->members : "";
    n += (size_t)snprintf(out + n, sizeof out - n, "%s%s}\n", members[0] ? "," : "", members);
    eng_stderr_begin();
    fwrite(out, 1, n < sizeof out ? n : sizeof out - 1, stderr);
    eng_stderr_end();
}

void eng_log_say(enum kn_level level, const struct eng_log_event *e, const char *text)
{
    event = e;
    kn_say(level, "%s", text);
    event = NULL;
}
