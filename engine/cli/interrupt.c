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

static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
static struct sigaction before[3];

const atomic_bool *eng_interrupt(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (signals[i] != SIGHUP || before[i].sa_handler != SIG_IGN) /* nohup ignores it: that stays */
            sigaction(signals[i], &action, NULL);
    }
    return &stop;
}

void eng_interrupt_end(void)
{
    for (int i = 0; i < 3; i++)
        sigaction(signals[i], &before[i], NULL);
}
