/* engine/cli/main.c - the program: picks the command, parses its flags, returns the exit status.
 *
 * The exit status is described in cli.h.  No other file calls exit(). */
#include "engine/base/base.h"
#include "engine/cli/options.h"
#include "kernels/device.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *about;
    eng_command *run;
} commands[ENG_COMMAND_COUNT] = {
#define COMMAND(name, text) [ENG_##name] = { #name, text, eng_cmd_##name },
    ENG_COMMANDS(COMMAND)
#undef COMMAND
};

static void print_usage(FILE *out)
{
    fprintf(out,
            "spillway %s - mixture-of-experts language models larger than the fast memory\n\n"
            "usage: spillway COMMAND [flags]\n\n",
            eng_version_text);
    for (int i = 0; i < ENG_COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].about);
    fprintf(out, "\nspillway COMMAND --help lists its common flags, --help-all all of them;\n"
                 "--version prints the version and commit, --man the manual page, --completion a\n"
                 "bash completion script.\n");
}

static int refuse_command(const char *word)
{
    const char *names[ENG_COMMAND_COUNT];
    for (int i = 0; i < ENG_COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    const char *near = eng_nearest(word, names, ENG_COMMAND_COUNT);
    size_t n = strlen(word);
    if (near)
        kn_fail(KN_EINVAL, "'%s' is not a command; did you mean %s?", word, near);
    else if (n > 5 && !strcmp(word + n - 5, ".gguf"))
        kn_fail(KN_EINVAL, "'%s' is not a command; to chat with this model: spillway run %s", word, word);
    else
        kn_fail(KN_EINVAL, "'%s' is not a command; see spillway --help", word);
    return 2;
}

static int run_command(enum eng_command_id id, int argc, char **argv)
{
    static struct eng_config config;
    int e = eng_config_parse(&config, id, argc, argv);
    if (e != 0)
        return e < 0 ? 2 : 0;
    kn_log_sink *const form[] = { [ENG_LOG_TEXT] = eng_log_text, [ENG_LOG_JSON] = eng_log_json };
    kn_log_set(id == ENG_serve ? form[config.log_format] : eng_log_plain, eng_message_level(&config));
    kn_device_keep_tests(config.cache_dir);
    e = eng_gpu_wishes(&config, id);
    e = e < 0 ? e : eng_model_resolve(&config, id);
    if (e < 0)
        return e == KN_ECANCELLED ? 1 : 2;
    return commands[id].run(&config);
}

static int dispatch(int argc, char **argv)
{
    static char help[] = "--help";
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "help") && argc > 2) { /* `help run` is `run --help` */
        argv[1] = argv[2];
        argv[2] = help;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "--help-all") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version")) {
        printf("spillway %s\n", eng_version_text);
        return 0;
    }
    if (!strcmp(argv[1], "--man") || !strcmp(argv[1], "--completion")) {
        (argv[1][2] == 'm' ? eng_manual_page : eng_manual_completion)();
        return 0;
    }
    for (int i = 0; i < ENG_COMMAND_COUNT; i++)
        if (!strcmp(argv[1], commands[i].name))
            return run_command((enum eng_command_id)i, argc - 2, argv + 2);
    return refuse_command(argv[1]);
}

int main(int argc, char **argv)
{
    eng_stdio_keep();
    int status = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        kn_fail(KN_EIO, "standard output: not all of the output could be written");
        status = 1;
    }
    exit(status);
}
