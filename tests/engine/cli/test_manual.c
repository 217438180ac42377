/* Help, the manual page and the completion name every command, every flag and every alias of the tables.
 *
 * One thread: not under MODE=tsan. */
#include "engine/cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

static char text[1 << 18];

static void capture(void (*print)(void))
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    print();
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    rewind(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    assert_true(n > 0 && n < sizeof text - 1);
    fclose(file);
}

/* Removes troff markup, as a reader of the page sees it. */
static void strip_troff(void)
{
    char *to = text;
    for (const char *s = text; *s; s++) {
        if (s[0] != '\\')
            *to++ = *s;
        else if (s[1] == 'f')
            s += 2;
        else if (*++s == '-')
            *to++ = '-';
    }
    *to = 0;
}

/* Does the word stand between from and to, delimited? */
static bool has_word(const char *from, const char *to, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = from; (at = strstr(at, word)) && at < to; at += n)
        if (at > text && strchr(" '\n", at[-1]) && strchr(" ,'\n", at[n]))
            return true;
    return false;
}

/* --name and each alias are present. */
static void each_flag(const struct eng_option *o, const char *from, const char *to)
{
    char flag[ENG_MAX_NAME + 3];
    snprintf(flag, sizeof flag, "--%s", o->name);
    if (!has_word(from, to, flag))
        fail_msg("%s is missing", flag);
    for (const char *a = o->alias; *a;) {
        int n = (int)strcspn(a, " ");
        snprintf(flag, sizeof flag, "%.*s", n, a);
        if (!has_word(from, to, flag))
            fail_msg("%s is missing", flag);
        a += n + (a[n] == ' ');
    }
}

static void the_page_has_every_command_and_flag(void **state)
{
    const struct eng_option *o;
    char command[64];
    (void)state;
    capture(eng_manual_page);
    for (char *line = text; line; line = strchr(line + 1, '\n'))
        assert_false(line[line[0] == '\n'] == '\''); /* troff would read it as a command */
    strip_troff();
    for (int i = 0; i < ENG_COMMAND_COUNT; i++) {
        snprintf(command, sizeof command, "spillway %s", eng_command_name[i]);
        if (!has_word(text, text + sizeof text, command))
            fail_msg("%s is missing", command);
    }
    for (int i = 0; (o = eng_option_at(i)); i++) {
        each_flag(o, text, text + sizeof text);
        if (!strstr(text, o->help) && !strchr(o->help, '\'') && !strchr(o->help, '\\'))
            fail_msg("--%s has no description", o->name);
    }
}

static void the_completion_has_every_flag_of_each_command(void **state)
{
    const struct eng_option *o;
    (void)state;
    capture(eng_manual_completion);
    for (int command = 0; command < ENG_COMMAND_COUNT; command++) {
        char label[64];
        snprintf(label, sizeof label, "\n    %s)\n", eng_command_name[command]);
        const char *from = strstr(text, label), *to = from ? strstr(from, "'\n") : NULL; /* flags='...' */
        if (!from || !to)
            fail_msg("%s is missing", eng_command_name[command]);
        for (int i = 0; (o = eng_option_at(i)); i++)
            if (o->commands & 1u << command)
                each_flag(o, from, to);
    }
}

static enum eng_command_id helped;
static bool helped_all;
static void print_help(void) { eng_option_help(helped, helped_all); }

/* The position of "\n<title>\n" in the text, or NULL. */
static const char *find_title(const char *title)
{
    char line[64];
    snprintf(line, sizeof line, "\n%s\n", title);
    return strstr(text, line);
}

static void is_80_wide(void)
{
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (end - line > 80)
            fail_msg("%.*s", (int)(end - line), line);
}

static void all_help_has_the_flags_of_its_command_only(void **state)
{
    const struct eng_option *o;
    const char *at;
    (void)state;
    helped_all = true;
    for (int command = 0; command < ENG_COMMAND_COUNT; command++) {
        helped = (enum eng_command_id)command;
        capture(print_help);
        is_80_wide();
        for (int i = 0; (o = eng_option_at(i)); i++) {
            if (o->commands & 1u << command)
                each_flag(o, text, text + sizeof text);
            else if ((at = strstr(text, o->help)))
                assert_true(at[strlen(o->help)] != '\n' && at[strlen(o->help)] != ' ');
        }
    }
}

/* Each flag stands below the title of its topic, and titles without flags are left out. */
static void all_help_is_grouped(void **state)
{
    static const char *const title[] = {
#define TITLE(name, words) words,
        ENG_TOPICS(TITLE)
#undef TITLE
    };
    const struct eng_option *o;
    (void)state;
    helped_all = true;
    for (int command = 0; command < ENG_COMMAND_COUNT; command++) {
        helped = (enum eng_command_id)command;
        capture(print_help);
        const char *before = text;
        for (int topic = 1; topic < ENG_TOPIC_COUNT; topic++) {
            int n = 0;
            for (int i = 0; (o = eng_option_at(i)); i++)
                n += o->commands & 1u << command && (int)o->topic == topic;
            const char *from = find_title(title[topic]), *to = from ? strstr(from + 1, "\n\n") : NULL;
            if ((n > 0) != (from != NULL))
                fail_msg("%s: %d flags of '%s'", eng_command_name[command], n, title[topic]);
            if (!n)
                continue;
            assert_true(from > before && to);
            before = from;
            for (int i = 0; (o = eng_option_at(i)); i++)
                if (o->commands & 1u << command && (int)o->topic == topic)
                    each_flag(o, from, to);
        }
    }
}

/* --help has the common flags, each with one name and at most a short one, says where the others are, and fits on a
 * screen. */
static void help_has_the_common_flags(void **state)
{
    const struct eng_option *o;
    (void)state;
    helped_all = false;
    for (int command = 0; command < ENG_COMMAND_COUNT; command++) {
        int n_more = 0, n_line = 0;
        char flag[ENG_MAX_NAME + 4], more[48];
        helped = (enum eng_command_id)command;
        capture(print_help);
        is_80_wide();
        for (const char *line = text; (line = strchr(line, '\n')); line++)
            n_line++;
        if (n_line > 40)
            fail_msg("%s --help has %d lines", eng_command_name[command], n_line);
        for (int i = 0; (o = eng_option_at(i)); i++) {
            bool takes = o->commands & 1u << command, common = takes && o->topic == ENG_TOPIC_COMMON;
            snprintf(flag, sizeof flag, "--%s ", o->name);
            bool shown = strstr(text, flag) != NULL;
            if (takes && shown != common)
                fail_msg("%s --help: %s is%s shown", eng_command_name[command], flag, shown ? "" : " not");
            n_more += takes && !common;
        }
        snprintf(more, sizeof more, "--help-all lists %d more", n_more);
        for (char *c = text; (c = strchr(c, '\n')); c++)
            *c = ' ';
        if (!strstr(text, more))
            fail_msg("%s: not '%s'", eng_command_name[command], more);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_has_every_command_and_flag),
        cmocka_unit_test(the_completion_has_every_flag_of_each_command),
        cmocka_unit_test(all_help_has_the_flags_of_its_command_only),
        cmocka_unit_test(all_help_is_grouped),
        cmocka_unit_test(help_has_the_common_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
