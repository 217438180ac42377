/* The progress bar (engine/base/progress.c): its lines on a terminal, also for work that fails, and no output with
 * --quiet or into a file. A child shows the bar on a pseudo-terminal, the test reads the other end.
 *
 * One thread: not under MODE=tsan. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"
#include "tests/engine/pty.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

static void add(struct eng_progress *p, uint64_t done, uint64_t total)
{
    atomic_fetch_add(&eng_progress_counter(p)->done_bytes, done);
    atomic_fetch_add(&eng_progress_counter(p)->total_bytes, total);
}

/* A child that runs work() with stderr on a terminal of 60 columns. The child waits on `go` until the test has seen a
 * text. */
struct watched {
    pid_t pid;
    int tty, go;
    char seen[16384];
    size_t n;
};

static void watch(struct watched *w, void (*work)(int go))
{
    int ends[2];
    struct winsize size = { .ws_row = 24, .ws_col = 60 };
    assert_int_equal(pipe(ends), 0);
    w->n = 0;
    w->pid = fork_on_terminal(&w->tty, &size);
    if (w->pid == 0) {
        close(ends[1]);
        alarm(30);
        work(ends[0]);
        _exit(0);
    }
    close(ends[0]);
    w->go = ends[1];
    alarm(30);
}

static void see(struct watched *w, const char *text)
{
    while (!strstr(w->seen, text)) {
        ssize_t n = read(w->tty, w->seen + w->n, sizeof w->seen - 1 - w->n);
        assert_true(n > 0);
        w->n += (size_t)n;
        w->seen[w->n] = 0;
    }
}

static void end_watch(struct watched *w)
{
    int status;
    ssize_t n;
    assert_int_equal(write(w->go, "x", 1), 1);
    while ((n = read(w->tty, w->seen + w->n, sizeof w->seen - 1 - w->n)) > 0)
        w->n += (size_t)n;
    w->seen[w->n] = 0;
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_int_equal(status, 0);
    close(w->tty);
    close(w->go);
    alarm(0);
}

static void wait_for(int go)
{
    char c;
    if (read(go, &c, 1) != 1)
        _exit(4);
}

static void load_all(int go)
{
    struct eng_progress *p;
    eng_progress_open(&p, "loading", false);
    add(p, 1000000000, 4000000000);
    wait_for(go);
    eng_log_plain(KN_LOG_WARN, "in between");
    add(p, 3000000000, 0);
    eng_progress_close(p);
}

static void load_half(int go)
{
    struct eng_progress *p;
    eng_progress_open(&p, "loading", false);
    add(p, 500, 1000);
    wait_for(go);
    eng_progress_close(p);
}

static void answer_half(int go)
{
    struct eng_progress *p;
    eng_progress_open_of(&p, "answering", "lines", false);
    add(p, 4000, 16000);
    wait_for(go);
    add(p, 12000, 0);
    eng_progress_close(p);
}

static void bar_of_what_is_counted(void **state)
{
    (void)state;
    struct watched w = { 0 };
    watch(&w, answer_half);
    see(&w, "answering [=====               ]  25%  4000 of 16000 lines");
    end_watch(&w);
    assert_non_null(strstr(w.seen, "answering: 16000 lines in "));
}

static void bar_on_a_terminal(void **state)
{
    (void)state;
    struct watched w = { 0 };
    watch(&w, load_all);
    see(&w, "loading [=====               ]  25%  1.0 GB of 4.0 GB");
    end_watch(&w);
    char *line = strstr(w.seen, "\r\033[Kspillway: warning: in between\r\n");
    assert_non_null(line);
    line = strstr(line, "loading: 4.0 GB in ");
    assert_non_null(line);
    assert_string_equal(line + strlen(line) - 4, "/s\r\n");

    size_t width = 0; /* no bar is wider than the terminal */
    for (const char *c = w.seen; *c; c++) {
        if (*c == '\r' || *c == '\n')
            width = 0;
        else if (++width > 60 + strlen("\033[K"))
            fail_msg("too wide: %s", w.seen);
    }
}

/* The bar of unfinished work is erased, without a summary line. */
static void bar_of_a_failure(void **state)
{
    (void)state;
    struct watched w = { 0 };
    watch(&w, load_half);
    see(&w, "50%");
    end_watch(&w);
    assert_null(strstr(w.seen, "loading: "));
    assert_string_equal(w.seen + w.n - 4, "\r\033[K");
}

static void load_quietly(int go)
{
    struct eng_progress *p;
    eng_progress_open(&p, "loading", true);
    add(p, 1000, 1000);
    wait_for(go);
    eng_progress_close(p);
    dprintf(STDERR_FILENO, "end");
}

static void silence(void **state)
{
    (void)state;
    struct watched w = { 0 };
    watch(&w, load_quietly);
    end_watch(&w);
    assert_string_equal(w.seen, "end");

    int kept = dup(STDERR_FILENO); /* not quiet, but stderr is a file */
    FILE *f = tmpfile();
    struct eng_progress *p;
    dup2(fileno(f), STDERR_FILENO);
    int e = eng_progress_open(&p, "loading", false);
    if (e == 0) {
        add(p, 10, 10);
        eng_progress_close(p);
    }
    dup2(kept, STDERR_FILENO);
    close(kept);
    assert_int_equal(e, 0);
    assert_int_equal(lseek(fileno(f), 0, SEEK_END), 0);
    fclose(f);
    eng_progress_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bar_on_a_terminal),
        cmocka_unit_test(bar_of_what_is_counted),
        cmocka_unit_test(bar_of_a_failure),
        cmocka_unit_test(silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
