/* tests/engine/cli/printed.h - runs a command within the test and keeps its standard output in printed[]. */
#ifndef TESTS_ENGINE_CLI_PRINTED_H
#define TESTS_ENGINE_CLI_PRINTED_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli/cli.h"

static char printed[1 << 20];

/* arguments: words separated by spaces. Returns the exit status, or the error of refused arguments. */
static inline int print_command(enum eng_command_id id, int (*command)(const struct eng_config *c),
                                const char *arguments)
{
    static struct eng_config config;
    static char words[1024];
    char *argv[32];
    int argc = 0, error;
    printed[0] = 0;
    snprintf(words, sizeof words, "%s", arguments);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    if ((error = eng_config_parse(&config, id, argc, argv)) != 0)
        return error;
    FILE *file = tmpfile();
    fflush(stdout);
    int out = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    error = command(&config);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    fclose(file);
    return error;
}

#endif
