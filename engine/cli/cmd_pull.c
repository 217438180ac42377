/* engine/cli/cmd_pull.c - spillway pull ORG/NAME[:QUANT]: downloads a model; its path is the result. */
#include <stdio.h>
#include <unistd.h>

#include "engine/cli/cli.h"

static int pull(const struct eng_config *c, struct eng_hub_model *out)
{
    struct eng_progress *bar;
    int error = eng_progress_open(&bar, "downloading", c->quiet);
    if (error)
        return error;
    struct eng_hub_pull_options o = { .progress = eng_progress_counter(bar),
                                      .stop = eng_interrupt(),
                                      .says_progress = !isatty(STDERR_FILENO),
                                      .second_ms = 1000 };
    error = eng_hub_pull(out, &c->hub, c->name, &o);
    eng_progress_close(bar);
    return error;
}

int eng_cmd_pull(const struct eng_config *c)
{
    struct eng_hub_model m;
    char bytes[32];
    int error = pull(c, &m);
    if (error)
        return error == KN_ECANCELLED ? 1 : 2;
    eng_size_text(bytes, sizeof bytes, (double)m.bytes);
    kn_say(KN_LOG_INFO, "%s is complete, %s", m.name, bytes);
    printf("%s\n", m.path);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
