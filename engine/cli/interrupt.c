/* engine/cli/interrupt.c - Ctrl-C for commands that write, or a terminal that is closed: the wish to stop becomes a
 * flag that they look at, so that ten gigabytes of a half-written file are not left on the disk. */
#include <signal.h>

#include "engine/cli/cli.h"

static atomic_bool stop;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&stop, true);
}

const atomic_bool *eng_interrupt(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, before;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)      /* nohup stays as asked */
        sigaction(SIGHUP, &action, NULL);
    return &stop;
}
