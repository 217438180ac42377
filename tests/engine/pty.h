/* tests/engine/pty.h - starts a child process on its own pseudo-terminal. */
#ifndef TESTS_ENGINE_PTY_H
#define TESTS_ENGINE_PTY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pty.h>
#include <sys/types.h>

/* Like forkpty(). Skips the test with a message on machines without pseudo-terminals. */
static inline pid_t fork_on_terminal(int *tty, const struct winsize *size)
{
    pid_t pid = forkpty(tty, NULL, NULL, size);
    if (pid < 0) {
        print_message("skipped: no pseudo-terminals here (is /dev/pts mounted?)\n");
        skip();
    }
    return pid;
}

#endif
