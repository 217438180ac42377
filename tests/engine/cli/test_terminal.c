/* Chat input (engine/cli/terminal.c) from a pipe and from a terminal. The terminal is a real pseudo-terminal: a child
 * reads it, the test types into the other end and waits for the expected output. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"
#include "tests/engine/pty.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MARKS "\033[?2004h" /* enables bracketed paste */

static const char *history; /* file, or NULL */

/* Reports each read as a line "kind:text", with \n in the text shown as |. */
static void report_all(struct eng_terminal *t, FILE *out)
{
    enum eng_input kind;
    const char *text;
    do {
        assert_int_equal(eng_terminal_read(t, &kind, &text), 0);
        fprintf(out, "%d:", (int)kind);
        for (const char *c = kind != ENG_INPUT_QUIT ? text : ""; *c; c++)
            fputc(*c == '\n' ? '|' : *c, out);
        fputc('\n', out);
        fflush(out);
        if (kind == ENG_INPUT_TEXT && !strcmp(text, "generate")) {
            while (!eng_terminal_stopped())
                usleep(1000);
            fprintf(out, "stopped\n");
            fflush(out);
        }
        while (kind == ENG_INPUT_TEXT && !strcmp(text, "deaf"))
            if (eng_terminal_stopped())
                dprintf(STDERR_FILENO, "heard"), sleep(60);
        if (eng_terminal_is_tty(t))
            dprintf(STDERR_FILENO, "#"); /* separates this prompt from the last */
    } while (kind != ENG_INPUT_QUIT);
}

/* ---- a pipe ------------------------------------------------------------------------------------ */

static void unheard(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

static void piped(const char *input, const char *expected)
{
    char got[4096] = "";
    struct eng_terminal *t;
    FILE *in = tmpfile(), *out = fmemopen(got, sizeof got, "w");
    assert_true(in && out);
    fputs(input, in);
    fflush(in);
    rewind(in);
    int kept = dup(STDIN_FILENO);
    assert_true(dup2(fileno(in), STDIN_FILENO) >= 0);
    __fpurge(stdin);

    assert_int_equal(eng_terminal_open(&t, "xterm", history), 0);
    assert_false(eng_terminal_is_tty(t));
    report_all(t, out);
    eng_terminal_close(t);

    fclose(out);
    fclose(in);
    dup2(kept, STDIN_FILENO);
    close(kept);
    assert_string_equal(got, expected);
}

static void lines_of_a_pipe(void **state)
{
    (void)state;
    kn_log_set(unheard, KN_LOG_ERROR);
    piped("", "2:\n");
    piped("hello\n\n   \nyou\r\nlast", "0:hello\n0:you\n0:last\n2:\n");
    piped("/help\n/set temp 1\nnext\n", "1:help\n1:set temp 1\n0:next\n2:\n");
    piped("/etc/passwd\n/ \n//etc/passwd\n /help\n///\n", "1:etc/passwd\n1: \n0:/etc/passwd\n0: /help\n0://\n2:\n");
    piped("\"\"\"one\ntwo\n\n  three\"\"\"\nafter\n", "0:one|two||  three\n0:after\n2:\n");
    piped("\"\"\"\none\n\"\"\"\n", "0:one\n2:\n");
    piped("\"\"\"one line\"\"\"\n\"\"\"\"\"\"\nafter\n", "0:one line\n0:after\n2:\n");
    piped("\"\"\"/quit\n/help\"\"\"\n\"\"\"/quit\"\"\"\n", "0:/quit|/help\n0:/quit\n2:\n");
    piped("\"\"\"never\nclosed\n", "0:never|closed\n2:\n");
    kn_log_set(NULL, KN_LOG_INFO);
}

static void long_line_of_a_pipe(void **state)
{
    (void)state;
    enum { N = 20000 };
    char *input = malloc(N + 2);
    memset(input, 'x', N);
    strcpy(input + N, "\n");
    FILE *in = tmpfile();
    fputs(input, in);
    fflush(in);
    rewind(in);
    int kept = dup(STDIN_FILENO);
    dup2(fileno(in), STDIN_FILENO);
    __fpurge(stdin);

    struct eng_terminal *t;
    enum eng_input kind;
    const char *text;
    assert_int_equal(eng_terminal_open(&t, "xterm", history), 0);
    assert_int_equal(eng_terminal_read(t, &kind, &text), 0);
    assert_int_equal(strlen(text), N);
    eng_terminal_close(t);
    fclose(in);
    dup2(kept, STDIN_FILENO);
    close(kept);
    free(input);
}

/* Killed in the middle of a message: the end sequence of bracketed paste is not written, as it was not enabled. */
static void killed_at_a_pipe(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: ThreadSanitizer puts a signal off that comes before fgets waits\n");
    skip();
#endif
    int in[2], err[2], left, status;
    char said[64];
    assert_true(pipe(in) == 0 && pipe(err) == 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct eng_terminal *t;
        enum eng_input kind;
        const char *text;
        alarm(120);
        dup2(in[0], STDIN_FILENO);
        dup2(err[1], STDERR_FILENO);
        __fpurge(stdin);
        if (eng_terminal_open(&t, "xterm", history) == 0)
            (void)eng_terminal_read(t, &kind, &text);
        _exit(2);
    }
    assert_int_equal(write(in[1], "\"\"\"\n", 4), 4);
    while (ioctl(in[0], FIONREAD, &left) == 0 && left > 0)
        usleep(500);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    close(err[1]);
    assert_int_equal(read(err[0], said, sizeof said), 0);
    close(err[0]);
    close(in[0]), close(in[1]);
}

/* ---- a terminal -------------------------------------------------------------------------------- */

struct person {
    pid_t pid;
    int tty; /* the test's end of the terminal */
    FILE *reports;
};

static void sit_down(struct person *p)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    p->pid = fork_on_terminal(&p->tty, NULL);
    if (p->pid == 0) {
        struct eng_terminal *t;
        struct termios before, after;
        close(ends[0]);
        alarm(120); /* limit for a test that hangs */
        tcgetattr(STDIN_FILENO, &before);
        if (eng_terminal_open(&t, "xterm", history) < 0 || !eng_terminal_is_tty(t))
            _exit(2);
        report_all(t, fdopen(ends[1], "w"));
        eng_terminal_close(t);
        tcgetattr(STDIN_FILENO, &after);
        _exit(before.c_lflag == after.c_lflag && before.c_iflag == after.c_iflag ? 0 : 3);
    }
    close(ends[1]);
    p->reports = fdopen(ends[0], "r");
    alarm(120);
}

/* Reads the terminal until `text` has appeared. */
static void see(struct person *p, const char *text)
{
    char seen[8192];
    size_t n = 0;
    do {
        ssize_t got = read(p->tty, seen + n, 1);
        assert_int_equal(got, 1);
        n += (size_t)got;
        seen[n] = 0;
        assert_true(n < sizeof seen - 1);
    } while (!strstr(seen, text));
}

/* Waits for a prompt. The terminal is in raw mode before it is shown. */
static void see_prompt(struct person *p, const char *text)
{
    struct termios t;
    see(p, text);
    assert_int_equal(tcgetattr(p->tty, &t), 0);
    assert_false(t.c_lflag & (ICANON | ECHO));
}

static void type(struct person *p, const char *keys)
{
    assert_int_equal(write(p->tty, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Compares the next report, then waits for the next prompt. */
static void told(struct person *p, const char *expected)
{
    char line[256];
    assert_non_null(fgets(line, sizeof line, p->reports));
    line[strcspn(line, "\n")] = 0;
    assert_string_equal(line, expected);
    if (line[0] != '2' && strcmp(line, "0:generate") != 0)
        see_prompt(p, "#" MARKS "> ");
}

static void stand_up(struct person *p, int expected)
{
    int status;
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_int_equal(status, expected);
    fclose(p->reports);
    close(p->tty);
    alarm(0);
}

static void edits_lines(void **state)
{
    (void)state;
    struct person p;
    sit_down(&p);
    see_prompt(&p, "> ");
    type(&p, "wxrld\033[D\033[D\033[D\177o\001hello \n"); /* left three times, backspace, o, Home, hello */
    told(&p, "0:hello world");
    type(&p, "gr\303\274\303\237 \346\227\245\177\346\234\254\n");
    told(&p, "0:gr\303\274\303\237 \346\234\254");
    type(&p, "\033[A\033[A\n"); /* the line before the last */
    told(&p, "0:hello world");
    type(&p, "\"\"\"a\n");
    see_prompt(&p, ". ");
    type(&p, "b\"\"\"\n");
    told(&p, "0:a|b");
    type(&p, "/info\n");
    told(&p, "1:info");
    type(&p, "\004");
    told(&p, "2:");
    stand_up(&p, 0);
}

/* The lines of a paste are one message, which can be edited further; Enter sends it. Bracketed paste is enabled at a
 * prompt, and disabled during an answer. */
static void pastes_are_one_piece(void **state)
{
    (void)state;
    struct person p;
    sit_down(&p);
    see_prompt(&p, MARKS "> ");
    type(&p, "see: \033[200~one\r\r\ttwo \303\251\r\001\033[Athree\n\r\n\033[201~ end\n");
    told(&p, "0:see: one||\ttwo \303\251|Athree end");
    type(&p, "\033[A!\n"); /* the history keeps it as one message */
    told(&p, "0:see: one||\ttwo \303\251|Athree end!");
    type(&p, "\033[200~/quit\rmore\033[201~\n");
    told(&p, "0:/quit|more");
    type(&p, "\033[200~\033[20\033[201~plain\n");
    told(&p, "0:plain");
    type(&p, "\004");
    see(&p, "\033[?2004l");
    told(&p, "2:");
    stand_up(&p, 0);
}

static void control_c(void **state)
{
    (void)state;
    struct person p;
    sit_down(&p);
    see_prompt(&p, "> ");
    type(&p, "generate\n");
    told(&p, "0:generate");
    type(&p, "\003");
    told(&p, "stopped");
    type(&p, "dropped");
    see(&p, "dropped");
    type(&p, "\003");
    see_prompt(&p, "> ");
    type(&p, "\"\"\"open\n");
    see_prompt(&p, ". ");
    type(&p, "\003"); /* leaves the block */
    see_prompt(&p, "> ");
    type(&p, "kept\n");
    told(&p, "0:kept");
    type(&p, "\003");
    see(&p, "to quit");
    see_prompt(&p, "> ");
    type(&p, "not twice in a row");
    see(&p, "row");
    type(&p, "\003");
    see_prompt(&p, "> ");
    type(&p, "\003");
    see(&p, "to quit");
    see_prompt(&p, "> ");
    type(&p, "\003");
    told(&p, "2:");
    stand_up(&p, 0);
}

/* An answer that ignores the first Ctrl-C. */
static void second_control_c(void **state)
{
    (void)state;
    struct person p;
    sit_down(&p);
    see_prompt(&p, "> ");
    type(&p, "deaf\n");
    see(&p, "deaf");
    while (fgetc(p.reports) != '\n')
        ;
    type(&p, "\003");
    see(&p, "heard");
    type(&p, "\003");
    stand_up(&p, SIGINT);
}

/* During an answer the terminal has its usual mode, but does not show the keys, and they begin the next line. */
static void keys_during_an_answer(void **state)
{
    (void)state;
    struct person p;
    struct termios t;
    sit_down(&p);
    see_prompt(&p, "> ");
    type(&p, "generate\n");
    told(&p, "0:generate");
    assert_int_equal(tcgetattr(p.tty, &t), 0);
    assert_true((t.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ISIG));
    type(&p, "early ");
    type(&p, "\003");
    told(&p, "stopped");
    type(&p, "late\n");
    told(&p, "0:late"); /* Ctrl-C has dropped the keys before it */
    type(&p, "\004");
    told(&p, "2:");
    stand_up(&p, 0);
}

/* A line that is wider than the window is drawn again after a change of size, by Ctrl-Z and by a signal. */
static void resized(void **state)
{
    (void)state;
    struct person p;
    sit_down(&p);
    assert_int_equal(ioctl(p.tty, TIOCSWINSZ, &(struct winsize){ .ws_row = 10, .ws_col = 20 }), 0);
    see_prompt(&p, "> ");
    type(&p, "12345678901234567890\346\227\245");
    see(&p, "\346\227\245\033[J\r\033[4C"); /* in the second row */
    assert_int_equal(ioctl(p.tty, TIOCSWINSZ, &(struct winsize){ .ws_row = 10, .ws_col = 10 }), 0);
    see(&p, "\346\227\245\033[J\r\033[4C"); /* in the third row */
    type(&p, "\001\033[3~");
    see(&p, "> 2345678901234567890\346\227\245\033[J\033[2A\r\033[2C");
    type(&p, "\n");
    told(&p, "0:2345678901234567890\346\227\245");
    type(&p, "\004");
    told(&p, "2:");
    stand_up(&p, 0);
}

/* Lines of earlier chats are there, and new ones are appended to a file that only the user can read. */
static void history_is_kept(void **state)
{
    (void)state;
    char name[] = "/tmp/spillway-history-XXXXXX", text[128] = "";
    struct stat st;
    struct person p;
    int fd = mkstemp(name);
    assert_true(fd >= 0 && fchmod(fd, 0644) == 0);
    assert_int_equal(write(fd, "older\none\\ntwo \\\\\n", 18), 18);
    history = name;
    sit_down(&p);
    see_prompt(&p, "> ");
    type(&p, "\033[A\n");
    told(&p, "0:one|two \\");
    type(&p, "\033[200~a\rb\033[201~\n");
    told(&p, "0:a|b");
    type(&p, "\022old\n"); /* Ctrl-R */
    told(&p, "0:older");
    type(&p, "\004");
    told(&p, "2:");
    stand_up(&p, 0);
    history = NULL;
    assert_true(fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0600);
    assert_true(pread(fd, text, sizeof text - 1, 0) > 0);
    assert_string_equal(text, "older\none\\ntwo \\\\\none\\ntwo \\\\\na\\nb\nolder\n");
    close(fd);
    unlink(name);
}

/* Killed in the middle of a line: the terminal settings are restored. */
static void killed(void **state)
{
    (void)state;
    struct person p;
    struct termios before, after;
    sit_down(&p);
    see_prompt(&p, "> ");
    type(&p, "half");
    see(&p, "half");
    tcgetattr(p.tty, &before);
    assert_false(before.c_lflag & ICANON);
    kill(p.pid, SIGTERM);
    see(&p, "\033[?2004l");
    int status;
    assert_int_equal(waitpid(p.pid, &status, 0), p.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    tcgetattr(p.tty, &after);
    assert_true((after.c_lflag & (ICANON | ECHO)) == (ICANON | ECHO));
    fclose(p.reports);
    close(p.tty);
    alarm(0);
}

/* The parent process closed the standard files. */
static void places_of_the_standard_files_are_kept(void **state)
{
    int status;
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(STDIN_FILENO);
        close(STDERR_FILENO);
        eng_stdio_keep();
        _exit(fcntl(STDIN_FILENO, F_GETFD) < 0 || open("/dev/null", O_RDONLY) <= STDERR_FILENO);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_a_pipe),
        cmocka_unit_test(long_line_of_a_pipe),
        cmocka_unit_test(killed_at_a_pipe),
        cmocka_unit_test(edits_lines),
        cmocka_unit_test(pastes_are_one_piece),
        cmocka_unit_test(control_c),
        cmocka_unit_test(second_control_c),
        cmocka_unit_test(keys_during_an_answer),
        cmocka_unit_test(resized),
        cmocka_unit_test(history_is_kept),
        cmocka_unit_test(killed),
        cmocka_unit_test(places_of_the_standard_files_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
