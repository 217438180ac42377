/* Commands of a chat (engine/cli/chat_commands.c) and the conversation that they change (conversation.c). No model: the
 * template is only its text.
 *
 * One thread: not under MODE=tsan. */
#include "engine/cli/options.h"
#include "engine/cli/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPLATE "{% if enable_thinking %}{{ reasoning_effort }}{% endif %}"

static struct eng_config config;
static struct eng_conversation talk;
static char place[] = "/tmp/spillway-chat-XXXXXX", said[4096];

static void log_line(enum kn_level level, const char *line)
{
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static int open_place(void **state)
{
    (void)state;
    kn_log_set(log_line, KN_LOG_INFO);
    return mkdtemp(place) ? chdir(place) : -1;
}

static int close_place(void **state)
{
    char line[64];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", place);
    return chdir("/") || system(line);
}

static int begin(void **state)
{
    (void)state;
    static const char template[] = TEMPLATE;
    eng_option_defaults(&config, ENG_run);
    return eng_conversation_open(&talk, &config, (struct moe_string){ .data = template, .n = strlen(template) });
}

static int end(void **state)
{
    (void)state;
    eng_conversation_close(&talk);
    return 0;
}

/* Executes a command; its messages are in said. */
static enum eng_chat_next run(const char *line)
{
    FILE *f = tmpfile();
    int kept = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(fileno(f), STDERR_FILENO);
    enum eng_chat_next next = eng_chat_command(&talk, line);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    fclose(f);
    return next;
}

/* Executes a command after which the chat reads on; the message contains the text. */
static void tells(const char *line, const char *part)
{
    assert_int_equal(run(line), ENG_CHAT_READ);
    if (!strstr(said, part) || (!part[0] && said[0]))
        fail_msg("/%s says: %s", line, said);
}

static void messages_are(const char *expected)
{
    char *text = json_dumps(talk.messages, JSON_COMPACT);
    assert_string_equal(text, expected);
    free(text);
}

static void add(const char *role, const char *text)
{
    assert_int_equal(eng_conversation_add(&talk, role, text, strlen(text)), 0);
}

static void unknown_commands_say_how_to_send_them(void **state)
{
    (void)state;
    tells("etc/passwd is a file",
          "/etc/passwd is not a command and was not sent; /help lists the commands, //etc/passwd");
    tells("", "/ is not a command");
    tells("helpp", "is not a command");
    tells("clear all", "/clear takes nothing after it");
    messages_are("[]");
}

/* No line is longer than 80 columns. */
static void lines_fit(void)
{
    for (const char *line = said, *end; (end = strchr(line, '\n')); line = end + 1)
        if (end - line > 80)
            fail_msg("%.*s", (int)(end - line), line);
}

static void the_oldest_messages_are_forgotten(void **state)
{
    (void)state;
    tells("forget", "there is no message before the last one");
    tells("system s", "");
    add("user", "a");
    add("assistant", "b");
    tells("forget", "there is no message before the last one");
    add("user", "c");
    add("assistant", "d");
    tells("forget", "3 messages are left");
    messages_are("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"c\"},"
                 "{\"role\":\"assistant\",\"content\":\"d\"}]");
    assert_int_equal(run("regen"), ENG_CHAT_ANSWER);
}

static void the_chat_goes_on(void **state)
{
    (void)state;
    tells("help", "/set NAME VALUE");
    assert_non_null(strstr(said, "//text"));
    lines_fit();
    tells("set", "top-k");
    lines_fit();
    assert_int_equal(run("exit"), ENG_CHAT_QUIT);
    assert_int_equal(run("quit"), ENG_CHAT_QUIT);
    assert_int_equal(run("info "), ENG_CHAT_INFO);
}

static void answers_are_made_again(void **state)
{
    (void)state;
    tells("regen", "there is no message to answer");
    add("user", "a");
    add("assistant", "b");
    assert_int_equal(run("regen"), ENG_CHAT_ANSWER);
    assert_int_equal(talk.n_retry, 1);
    messages_are("[{\"role\":\"user\",\"content\":\"a\"}]");
    assert_int_equal(run("retry"), ENG_CHAT_ANSWER); /* the answer has failed: the same number */
    assert_int_equal(talk.n_retry, 1);
}

static void the_system_message(void **state)
{
    (void)state;
    tells("system", "no system message");
    tells("system Be  brief. ", "");
    add("user", "a");
    tells("system", "system: Be  brief.\n");
    messages_are("[{\"role\":\"system\",\"content\":\"Be  brief.\"},{\"role\":\"user\",\"content\":\"a\"}]");
    tells("set system Other", "");
    tells("clear", "");
    messages_are("[{\"role\":\"system\",\"content\":\"Other\"}]");
    tells("system \"\"", "");
    messages_are("[]");
}

static void settings(void **state)
{
    (void)state;
    tells("set temp 0.25", "");
    assert_true(config.sampling.temperature == 0.25f);
    tells("set top_k 7", "");
    assert_int_equal(config.sampling.top_k, 7);
    tells("set seed 99", "");
    assert_true(config.sampling.seed == 99 && config.seed_given);
    tells("set predict 5", "");
    assert_int_equal(config.n_predict, 5);
    tells("set temp hot", "/set temp takes a number from 0 to 100, not 'hot'");
    tells("set temp", "/set temp needs a value");
    tells("set host x", "/set does not know host");
    tells("set threads 3", "/set does not know threads");
    tells("set", "top-k              7 ");
    assert_non_null(strstr(said, "temp               0.25"));
    assert_non_null(strstr(said, "seed               99"));
}

static void reasoning_is_switched(void **state)
{
    (void)state;
    assert_null(talk.think);
    tells("set think off", "");
    assert_string_equal(talk.think, "off");
    tells("set think high", "");
    assert_string_equal(talk.think, "high");
    tells("set think maybe", "think takes on, off, low, medium or high, not 'maybe'");
    talk.template.n = strlen("{% if enable_thinking %}");
    tells("set think high", "think takes on or off, not 'high'");
    talk.template.n = 5;
    tells("set think on", "no switch for reasoning");
}

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    fputs(text, f);
    fclose(f);
}

static void conversations_are_saved(void **state)
{
    (void)state;
    static const char all[] =
        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a \xC3\xA9\\n\"},"
        "{\"role\":\"assistant\",\"content\":\"b\"}]";
    tells("save", "/save needs a file name");
    tells("load", "/load needs a file name");
    tells("load nofile", "No such file");
    tells("system s", "");
    add("user", "a \xC3\xA9\n");
    add("assistant", "b");
    tells("save my talk.json", "saved 3 messages to my talk.json");
    tells("system \"\"", "");
    tells("clear", "");
    tells("load my talk.json", "loaded 3 messages from my talk.json");
    messages_are(all);
    tells("save my talk.json", "saved 3 messages");
    write_file("other", "no conversation");
    tells("save other", "other: exists and is no saved conversation");
    assert_int_equal(access("other.part", F_OK), -1);
    tells("save none/file", "none/file: cannot be written");
}

static void files_that_are_no_conversations(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "", "line 1" },
        { "[]", "has no member messages" },
        { "{\"messages\": 3}", "has no member messages" },
        { "{\"messages\": [{\"role\": \"user\"}]}", "message 1: needs a role and a text" },
        { "{\"messages\": [{\"content\": \"x\"}]}", "message 1: needs a role and a text" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"system\", \"content\": \"\"}]}",
          "message 2: only the first one" },
    };
    add("user", "kept");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file("bad", bad[i].text);
        tells("load bad", "bad: not a saved conversation: ");
        if (!strstr(said, bad[i].why))
            fail_msg("%s: %s", bad[i].text, said);
    }
    messages_are("[{\"role\":\"user\",\"content\":\"kept\"}]");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(unknown_commands_say_how_to_send_them),
        TEST(the_oldest_messages_are_forgotten),
        TEST(the_chat_goes_on),
        TEST(answers_are_made_again),
        TEST(the_system_message),
        TEST(settings),
        TEST(reasoning_is_switched),
        TEST(conversations_are_saved),
        TEST(files_that_are_no_conversations),
    };
    return cmocka_run_group_tests(tests, open_place, close_place);
}
