/* engine/cli/model_name.c - models by name: the values of -m and --draft that are no paths.
 *
 * A path that exists is used as it is.  Else the stores on this machine are searched, without a request.  run and serve
 * download a model that is found nowhere, as `ollama run` and `llama-server -hf` do; not under a service manager, which
 * would wait for the start, and not with --offline.  The other commands name the command that downloads it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/cli/cli.h"

#define LOOK_NS 20000000 /* between two looks at the child and the signals */

/* Runs `spillway pull NAME` and waits for it.  In a process of its own, the memory of libcurl and OpenSSL (8 MB) does
 * not count to the budget of the model. */
static int pull_in_child(const struct eng_config *c, const char *name)
{
    char *argv[] = { "spillway", "pull", (char *)name, c->quiet ? "--quiet" : c->verbose ? "--verbose" : NULL, NULL };
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 1 << 8; /* as if it had failed */
    if (posix_spawn_file_actions_init(&actions))
        return kn_fail(KN_ENOMEM, "no memory to start spillway pull");
    const atomic_bool *stop = eng_interrupt();
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int why = posix_spawn(&child, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    while (!why && waitpid(child, &status, WNOHANG) == 0) {
        if (atomic_load(stop))
            kill(child, SIGINT); /* a terminal has sent it one, too; a second has no further effect */
        nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
    }
    bool stopped = atomic_load(stop);
    eng_interrupt_end();
    if (why)
        return kn_fail(KN_EIO, "spillway pull cannot be started: %s", strerror(why));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : stopped ? KN_ECANCELLED : KN_EIO;
}

/* True for a word that is no path: a name of Ollama, such as qwen3:30b. */
static bool is_plain_word(const char *s)
{
    const char *dot = strrchr(s, '.');
    return !strchr(s, '/') && (!dot || strcasecmp(dot, ".gguf") != 0);
}

static int find_nowhere(const char *name)
{
    if (eng_hub_is_name(name))
        return kn_fail(KN_ENOENT, "%s: no such file, and no such model on this machine: spillway pull %s downloads it",
                       name, name);
    if (is_plain_word(name) && strchr(name, ':'))
        return kn_fail(KN_ENOENT, "%s: no such file, and Ollama has no such model; spillway list shows the models here",
                       name);
    if (access(name, F_OK) == 0)
        return 0;
    if (strchr(name, ' '))
        return kn_fail(KN_ENOENT, "'%s' is not a model: the model comes first, and then a text in quotes", name);
    return kn_fail(KN_ENOENT, "%s: %s; spillway list shows the models on this machine", name, strerror(errno));
}

/* --draft model:ORG/NAME:QUANT; a draft model is not downloaded. */
static int resolve_draft(const struct eng_config *c, struct eng_draft_option *draft)
{
    static struct eng_hub_model m;
    bool has_model = draft->kind == ENG_DRAFT_MODEL || draft->kind == ENG_DRAFT_EAGLE;
    if (!has_model || access(draft->file, F_OK) == 0)
        return 0;
    int error = eng_hub_find(&m, &c->hub, draft->file);
    if (error)
        return error == KN_ENOENT ? find_nowhere(draft->file) : error;
    if (strlen(m.path) >= sizeof draft->file)
        return kn_fail(KN_ELIMIT, "--draft: the path is longer than %zu bytes: %s", sizeof draft->file - 1, m.path);
    memcpy(draft->file, m.path, strlen(m.path) + 1);
    return 0;
}

int eng_model_resolve(struct eng_config *c, enum eng_command_id command)
{
    static struct eng_hub_model m; /* static: called once, and c->model points into it */
    const char *name = c->model;
    for (int i = 0; i < c->n_draft; i++) {
        int error = resolve_draft(c, &c->draft[i]);
        if (error)
            return error;
    }
    if (!name || !name[0] || access(name, F_OK) == 0)
        return 0;
    bool downloads = (command == ENG_run || command == ENG_serve) && !c->hub.offline && !c->notify_socket;
    int error = eng_hub_find(&m, &c->hub, name);
    if (error == KN_ENOENT && eng_hub_is_name(name) && downloads)
        error = (error = pull_in_child(c, name)) ? error : eng_hub_find(&m, &c->hub, name);
    else if (error == KN_ENOENT)
        return find_nowhere(name);
    if (error)
        return error;
    if (command == ENG_pack && m.store == ENG_HUB_OLLAMA && !c->output)
        return kn_fail(KN_EINVAL, "%s is in Ollama's store, which deletes files that it does not know: give -o FILE",
                       name);
    kn_say(KN_LOG_DEBUG, "%s: %s", name, m.path);
    c->model = m.path;
    c->no_heat = m.store == ENG_HUB_OLLAMA;
    if (!c->alias)
        c->alias = name; /* a file of a cache is named by its hash or its commit's */
    return 0;
}
