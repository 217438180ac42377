/* tests/real/pty.c - a user at a terminal: runs a command on a new terminal and types lines into it.
 *
 *     pty PROMPT LINE... -- COMMAND [ARGUMENT...]
 *
 * Types each line, and Ctrl-D at the end, when the last line of the output has PROMPT.  Copies all output to stdout.
 * Status: that of the command; 124 if it has not ended after 60 seconds. */
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 60, MOST = 1 << 20 };

static char seen[MOST];

/* Whether the last line of the output has the prompt.  While a line is typed the editor shows prompt and line again, then a newline:
 * so only a prompt that waits for keys is in the last line. */
static bool prompts(const char *output, const char *prompt)
{
    const char *last = strrchr(output, '\n');
    return strstr(last ? last : output, prompt);
}

int main(int argc, char **argv)
{
    int n_line = 0, at = 0, master;
    while (n_line + 2 < argc && strcmp(argv[n_line + 2], "--"))
        n_line++;
    if (n_line + 3 >= argc) {
        fprintf(stderr, "use: pty PROMPT LINE... -- COMMAND [ARGUMENT...]\n");
        return 2;
    }
    struct winsize size = { .ws_row = 50, .ws_col = 200 };
    pid_t child = forkpty(&master, NULL, NULL, &size);
    if (child == 0) {
        setenv("TERM", "xterm", 1);
        execvp(argv[n_line + 3], argv + n_line + 3);
        _exit(127);
    }
    const time_t start = time(NULL);
    size_t n = 0, from = 0;
    while (child > 0 && n + 1 < MOST) {
        struct pollfd p = { .fd = master, .events = POLLIN };
        if (time(NULL) - start > SECONDS) {
            kill(child, SIGKILL);
            waitpid(child, NULL, 0);
            return 124;
        }
        if (poll(&p, 1, 200) > 0) {
            ssize_t got = read(master, seen + n, MOST - 1 - n);
            if (got <= 0)
                break;
            fwrite(seen + n, 1, (size_t)got, stdout);
            fflush(stdout);
            n += (size_t)got;
            seen[n] = 0;
            continue;
        }
        if (at > n_line || !prompts(seen + from, argv[1])) /* quiet for a moment: it waits for keys, or computes */
            continue;
        from = n;
        const char *line = at < n_line ? argv[2 + at] : "\004";
        if (write(master, line, strlen(line)) < 0 || (at < n_line && write(master, "\r", 1) < 0))
            break;
        at++;
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
