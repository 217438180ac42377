/* engine/cli/interrupt.c - SIGINT, SIGTERM and SIGHUP for commands that write files: the signal sets a flag that the
 * command polls, so that a half-written file of ten gigabytes is not left on the disk. */
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
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup ignores it: that stays */
        sigaction(SIGHUP, &action, NULL);
    return &stop;
}
