/* engine/cli/model_name.c - models by name: the values of -m that are no paths, and downloads with their progress.
 *
 * A path that exists is used as it is.  Else the stores on this machine are searched, without a request.  run and serve
 * download a model that is found nowhere, as `ollama run` and `llama-server -hf` do; not under a service manager, which
 * would wait for the start, and not with --offline.  The other commands name the command that downloads it. */
#include <string.h>
#include <unistd.h>

#include "engine/cli/cli.h"

int eng_model_pull(const struct eng_config *c, const char *name, struct eng_hub_model *out)
{
    struct eng_progress *bar;
    int error = eng_progress_open(&bar, "downloading", c->quiet);
    if (error)
        return error;
    struct eng_hub_pull_options o = { .progress = eng_progress_counter(bar),
                                      .stop = eng_interrupt(),
                                      .says_progress = !isatty(STDERR_FILENO),
                                      .second_ms = 1000 };
    error = eng_hub_pull(out, &c->hub, name, &o);
    eng_progress_close(bar);
    eng_interrupt_end();
    return error;
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
    return 0; /* a path: its open says why */
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
        error = eng_model_pull(c, name, &m);
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
