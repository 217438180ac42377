/* Answers on a terminal and on a pipe (engine/cli/answer_printer.c): every text is added whole and byte by byte, as
 * tokens may split it.
 *
 * One thread: not under MODE=tsan. */
#include "engine/cli/answer_printer.h"
#include "engine/cli/text_width.h"
#include "kernels/core.h"
#include "tests/engine/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static int tty, other; /* the ends of a terminal: the printer's and the test's */

static int open_terminal(void **state)
{
    struct termios t;
    (void)state;
    if (openpty(&other, &tty, NULL, NULL, NULL) != 0) {
        print_message("skipped: no pseudo-terminals here (is /dev/pts mounted?)\n");
        exit(0);
    }
    tcgetattr(tty, &t);
    t.c_oflag &= ~(tcflag_t)OPOST;
    return tcsetattr(tty, TCSANOW, &t) || fcntl(other, F_SETFL, O_NONBLOCK);
}

static void set_columns(int n)
{
    assert_int_equal(ioctl(tty, TIOCSWINSZ, &(struct winsize){ .ws_row = 10, .ws_col = (unsigned short)n }), 0);
}

/* Everything that was written.  The kernel hands a terminal's bytes on in the background, so a mark behind them shows
 * that all have arrived. */
static char *written(int fd)
{
    enum { MARK = 29 };
    static char text[4096];
    const char mark = MARK;
    size_t n = 0;
    bool complete = fd != other || write(tty, &mark, 1) != 1;
    do {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (!complete)
            assert_int_equal(poll(&p, 1, 60000), 1);
        ssize_t got = read(fd, text + n, sizeof text - 1 - n);
        n += got > 0 ? (size_t)got : 0;
        if (!complete && n && text[n - 1] == MARK) {
            complete = true;
            n--;
        }
    } while (!complete);
    text[n] = 0;
    return text;
}

/* Adds the text in pieces of n bytes, but never cuts a character. */
static void add(struct eng_printer *p, enum eng_ink ink, const char *text, size_t n)
{
    for (size_t left = strlen(text), take; left; text += take, left -= take) {
        take = n < left ? n : left;
        while (take < left && ((unsigned char)text[take] & 0xC0) == 0x80)
            take++;
        assert_int_equal(eng_printer_add(p, ink, text, take), 0);
    }
}

/* text: parts with | between them; parts alternate between answer and reasoning. */
static void prints(const struct eng_printer_options *o, int from, const char *parts, const char *expected)
{
    static const size_t sizes[] = { 1, 2, 5, 4096 };
    for (size_t i = 0; i < 4; i++) {
        struct eng_printer *p;
        char copy[1024];
        enum eng_ink ink = ENG_INK_ANSWER;
        snprintf(copy, sizeof copy, "%s", parts);
        assert_int_equal(eng_printer_open(&p, o), 0);
        for (char *part = copy, *next; part; part = next) {
            next = strchr(part, '|');
            if (next)
                *next++ = 0;
            add(p, ink, part, sizes[i]);
            ink = ink == ENG_INK_ANSWER ? ENG_INK_REASONING : ENG_INK_ANSWER;
        }
        assert_int_equal(eng_printer_end(p), 0);
        eng_printer_close(p);
        assert_string_equal(written(from), expected);
    }
}

static void on_terminal(int columns, const char *text, const char *expected)
{
    set_columns(columns);
    prints(&(struct eng_printer_options){ .fd = tty, .terminal = true }, other, text, expected);
}

static void words_are_whole(void **state)
{
    (void)state;
    on_terminal(10, "one two three four", "one two\nthree four\n");
    on_terminal(10, "one two  threefour", "one two\nthreefour\n");
    on_terminal(10, "0123456789 x", "0123456789\nx\n");
    on_terminal(10, "a 01234567890123456789 b", "a 01234567\n8901234567\n89 b\n");
    on_terminal(10, "a\n\n  b c\n", "a\n\n  b c\n");
    on_terminal(10, "a \nb", "a\nb\n");
    on_terminal(10, "123456789  ", "123456789\n");
    on_terminal(10, "a\tb c", "a\tb\nc\n");
    on_terminal(10, "", "");
    on_terminal(10, "\n", "\n");
}

static void wide_characters(void **state)
{
    (void)state;
    on_terminal(10, "\u65e5\u672c\u8a9e\u306e\u6587\u5b57", "\u65e5\u672c\u8a9e\u306e\u6587\n\u5b57\n");
    on_terminal(9, "\u65e5\u672c\u8a9e\u306e\u6587\u5b57", "\u65e5\u672c\u8a9e\u306e\n\u6587\u5b57\n");
    on_terminal(10, "\u65e5\u672c\u8a9e\u306e\u6587\u3002x", "\u65e5\u672c\u8a9e\u306e\n\u6587\u3002x\n");
    on_terminal(10, "\u65e5\u672c\u8a9eabcde", "\u65e5\u672c\u8a9e\nabcde\n");
    on_terminal(6, "ae\u0301iou bc", "ae\u0301iou\nbc\n");
    on_terminal(5, "\U0001F468\u200D\U0001F469\u200D\U0001F467\U0001F1E9\U0001F1EA\U0001F600",
                "\U0001F468\u200D\U0001F469\u200D\U0001F467\U0001F1E9\U0001F1EA\n\U0001F600\n");
    on_terminal(2, "\u65e5x\u672c", "\u65e5\nx\n\u672c\n");
    on_terminal(1, "\u65e5", "\u65e5\n"); /* narrower than a character: nothing better exists */
}

static void control_characters_are_left_out(void **state)
{
    (void)state;
    on_terminal(40, "a\033[31mb\007c\rd\302\205e\177", "a[31mbcde\n");
}

static void reasoning_is_dimmed(void **state)
{
    (void)state;
    struct eng_printer_options o = { .fd = tty, .terminal = true, .color = true };
    struct eng_printer *p;
    set_columns(10);
    assert_int_equal(eng_printer_open(&p, &o), 0);
    assert_int_equal(eng_printer_add(p, ENG_INK_REASONING, "one two three", 13), 0);
    assert_string_equal(written(other), "\033[2mone two\033[0m");
    assert_int_equal(eng_printer_add(p, ENG_INK_ANSWER, "four ", 5), 0);
    assert_string_equal(written(other), "\033[2m\nthree\n\033[0m\nfour");
    assert_int_equal(eng_printer_end(p), 0);
    assert_string_equal(written(other), "\n");
    eng_printer_close(p);
    on_terminal(10, "|thought|answer", "(reasoning)\nthought\n(answer)\nanswer\n"); /* without colour */
}

static void a_narrower_window(void **state)
{
    (void)state;
    struct eng_printer_options o = { .fd = tty, .terminal = true };
    struct eng_printer *p;
    assert_int_equal(eng_printer_open(&p, &o), 0);
    set_columns(20);
    add(p, ENG_INK_ANSWER, "one two three ", 3);
    set_columns(10); /* the terminal has folded 13 columns: 3 remain */
    add(p, ENG_INK_ANSWER, "four five", 3);
    assert_int_equal(eng_printer_end(p), 0);
    assert_string_equal(written(other), "one two three four\nfive\n");
    eng_printer_close(p);
}

static void a_pipe_gets_the_answer_alone(void **state)
{
    (void)state;
    int end[2];
    assert_int_equal(pipe2(end, O_NONBLOCK), 0);
    struct eng_printer_options o = { .fd = end[1] };
    prints(&o, end[0], "a long line of many words\tand \033[1m\r\n", "a long line of many words\tand \033[1m\r\n\n");
    prints(&o, end[0], "|thought|answer", "answer\n");
    prints(&o, end[0], "", "\n");
    close(end[0]);
    signal(SIGPIPE, SIG_IGN);
    struct eng_printer *p;
    assert_int_equal(eng_printer_open(&p, &o), 0);
    assert_int_equal(eng_printer_add(p, ENG_INK_ANSWER, "x", 1), KN_EIO);
    eng_printer_close(p);
    close(end[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_whole),
        cmocka_unit_test(wide_characters),
        cmocka_unit_test(control_characters_are_left_out),
        cmocka_unit_test(reasoning_is_dimmed),
        cmocka_unit_test(a_narrower_window),
        cmocka_unit_test(a_pipe_gets_the_answer_alone),
    };
    return cmocka_run_group_tests(tests, open_terminal, NULL);
}
