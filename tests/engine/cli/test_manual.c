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
static void print_help(void) { eng_option_help(helped); }

static void help_has_the_flags_of_its_command_only(void **state)
{
    const struct eng_option *o;
    const char *at;
    (void)state;
    for (int command = 0; command < ENG_COMMAND_COUNT; command++) {
        helped = (enum eng_command_id)command;
        capture(print_help);
        for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
            if (end - line > 80)
                fail_msg("%.*s", (int)(end - line), line);
        for (int i = 0; (o = eng_option_at(i)); i++) {
            if (o->commands & 1u << command)
                each_flag(o, text, text + sizeof text);
            else if ((at = strstr(text, o->help)))
                assert_true(at[strlen(o->help)] != '\n' && at[strlen(o->help)] != ' ');
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_has_every_command_and_flag),
        cmocka_unit_test(the_completion_has_every_flag_of_each_command),
        cmocka_unit_test(help_has_the_flags_of_its_command_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
