/* The forms of log lines: each is one line of its form, whatever bytes the message has.
 *
 * One thread: not under MODE=tsan. */
#include "engine/base/base.h"

#include <fcntl.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include <cmocka.h>

static char text[16384];

/* Logs a message, or an event if e is given, in this form; `text` gets the bytes written to stderr. */
static void log_in(kn_log_sink *form, enum kn_level level, const struct eng_log_event *e, const char *message)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    kn_log_set(form, KN_LOG_DEBUG);
    if (e)
        eng_log_say(level, e, message);
    else
        kn_say(level, "%s", message);
    kn_log_set(NULL, KN_LOG_INFO);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

#define TIME "2[0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\\.[0-9]{3}Z"

static void matches(const char *pattern)
{
    regex_t r;
    assert_int_equal(regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&r, text, 0, NULL, 0))
        fail_msg("%s is not %s", text, pattern);
    regfree(&r);
}

static void lines_have_their_form(void **state)
{
    (void)state;
    log_in(eng_log_plain, KN_LOG_WARN, NULL, "a message");
    matches("^spillway: warning: a message\n$");
    log_in(eng_log_plain, KN_LOG_INFO, NULL, "a message");
    matches("^spillway: a message\n$");
    log_in(eng_log_text, KN_LOG_ERROR, NULL, "a message");
    matches("^" TIME " error a message\n$");
    log_in(eng_log_text, KN_LOG_DEBUG, NULL, "a message");
    matches("^" TIME " debug a message\n$");
    log_in(eng_log_json, KN_LOG_INFO, NULL, "a message");
    matches("^\\{\"time\":\"" TIME "\",\"level\":\"info\",\"message\":\"a message\"\\}\n$");
}

static void events_have_members_in_json_only(void **state)
{
    (void)state;
    const struct eng_log_event e = { "answered", "\"tokens\":5,\"key\":null" };
    log_in(eng_log_json, KN_LOG_INFO, &e, "5 tokens");
    matches("\"message\":\"answered\",\"tokens\":5,\"key\":null\\}\n$");
    log_in(eng_log_text, KN_LOG_INFO, &e, "5 tokens");
    matches(" info 5 tokens\n$");
    log_in(eng_log_json, KN_LOG_INFO, NULL, "later"); /* the event is over */
    matches("\"message\":\"later\"\\}\n$");
}

/* JSON whatever the bytes: quotes, backslashes, line ends, invalid and cut UTF-8, and the longest message. */
static void any_message_is_json(void **state)
{
    (void)state;
    static const struct {
        const char *message, *read;
    } some[] = {
        { "say \"no\" to C:\\x", "say \"no\" to C:\\x" },
        { "two\nlines\t", "two?lines?" },
        { "caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac" },
        { "\xff\xfe and \xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd and \xef\xbf\xbd" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        log_in(eng_log_json, KN_LOG_INFO, NULL, some[i].message);
        json_t *line = json_loads(text, 0, NULL);
        if (!line)
            fail_msg("%s", text);
        assert_string_equal(json_string_value(json_object_get(line, "message")), some[i].read);
        json_decref(line);
    }
    static char longest[4000];
    memset(longest, '\\', sizeof longest - 1);
    log_in(eng_log_json, KN_LOG_INFO, NULL, longest);
    json_t *line = json_loads(text, 0, NULL);
    assert_non_null(line);
    assert_true(strlen(json_string_value(json_object_get(line, "message"))) == 1023);
    json_decref(line);
    memset(longest, '\xff', sizeof longest - 1);
    log_in(eng_log_json, KN_LOG_INFO, NULL, longest);
    line = json_loads(text, 0, NULL);
    assert_non_null(line);
    json_decref(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_their_form),
        cmocka_unit_test(events_have_members_in_json_only),
        cmocka_unit_test(any_message_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
