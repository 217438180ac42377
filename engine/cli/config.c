/* engine/cli/config.c - fills struct eng_config from arguments, environment and configuration file.
 *
 * A flag overrides the environment, which overrides the file, which overrides the default: the sources are
 * applied from the weakest to the strongest.  The table of options is in options.c.  This is the only file that
 * reads the environment.
 *
 * The file is INI: keys are long flag names.  The keys in the section [COMMAND] override the keys above all sections.
 * Above all sections, a key that this command does not have is ignored if any command has it, else an error.  In a
 * section, a key that the section's command does not have is an error, also when another command runs. */
#include "engine/api/model_sampling.h"
#include "engine/base/base.h"
#include "engine/cli/options.h"

#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAX_GIVEN 256        /* most flags on a command line */
#define MAX_FILE  (64 << 10) /* most bytes of a configuration file */

/* ---- the file ---------------------------------------------------------------------------------- */

struct file {
    struct eng_config *config;
    enum eng_command_id command;
    const char *path, *text, *end; /* text to end: the part that is not read yet */
    char section[64];
    bool seen[ENG_MAX_OPTION]; /* by option index: keys that the current section has had */
    int line, error;
};

/* fgets for libinih.  Rejects a line longer than the buffer: libinih would parse it as two. */
static char *read_line(char *buffer, int size, void *stream)
{
    struct file *f = stream;
    size_t left = (size_t)(f->end - f->text);
    if (left == 0 || f->error)
        return NULL;
    f->line++;
    const char *newline = memchr(f->text, '\n', left);
    size_t n = newline ? (size_t)(newline - f->text) + 1 : left;
    if (n >= (size_t)size || memchr(f->text, 0, n)) {
        f->error = kn_fail(KN_EINVAL, "%s:%d: the line is not text, or longer than %d characters", f->path, f->line,
                           size - 2);
        return NULL;
    }
    memcpy(buffer, f->text, n);
    buffer[n] = 0;
    f->text += n;
    return buffer;
}

static int find_command(const char *name)
{
    for (int i = 0; i < ENG_COMMAND_COUNT; i++)
        if (!strcmp(name, eng_command_name[i]))
            return i;
    return -1;
}

static const char *keep_text(struct eng_config *c, const char *s)
{
    size_t n = strlen(s) + 1;
    if (n > sizeof c->pool - c->pool_used)
        return NULL;
    char *kept = memcpy(c->pool + c->pool_used, s, n);
    c->pool_used += n;
    return kept;
}

static int take_key(struct file *f, const char *section, const char *name, const char *value)
{
    char flag[ENG_MAX_NAME + 32], by[512];
    int id = section[0] ? find_command(section) : (int)f->command;
    snprintf(flag, sizeof flag, "--%s", name);
    snprintf(by, sizeof by, "%s:%d", f->path, f->line);
    if (id < 0)
        return kn_fail(KN_EINVAL, "%s: [%s] is not a command", by, section);

    const struct eng_option *o = eng_option_find(flag, 1u << id);
    if (!o && (section[0] || !eng_option_find(flag, ENG_ALL_COMMANDS)))
        return eng_option_unknown(by, flag, (enum eng_command_id)id);
    if (!o || id != (int)f->command)
        return 0;
    if (strcmp(section, f->section) != 0) {
        memset(f->seen, 0, sizeof f->seen);
        snprintf(f->section, sizeof f->section, "%s", section);
    }
    if (!f->seen[eng_option_index(o)])
        eng_option_forget(f->config, o);
    f->seen[eng_option_index(o)] = true;

    const char *kept = keep_text(f->config, value);
    if (!kept)
        return kn_fail(KN_ELIMIT, "%s: the values of the file are longer than %zu bytes", by, sizeof f->config->pool);
    snprintf(by, sizeof by, "%s:%d: %s", f->path, f->line, name);
    return eng_option_set(f->config, o, kept, by);
}

static int on_key(void *user, const char *section, const char *name, const char *value)
{
    struct file *f = user;
    if (f->error == 0)
        f->error = take_key(f, section, name, value);
    return 1;
}

static int apply_file(struct eng_config *c, enum eng_command_id command, const char *path)
{
    struct file f = { .config = c, .command = command, .path = path };
    int fd;
    int e = kn_file_open_read(&fd, path);
    if (e < 0)
        return e;
    int64_t size = kn_io()->size(fd);
    char *text = NULL;
    if (size < 0 || size > MAX_FILE)
        e = kn_fail(KN_EINVAL, "%s: not a configuration file: not plain, or over %d KiB", path, MAX_FILE >> 10);
    else if (!(text = kn_alloc((size_t)size)))
        e = kn_fail(KN_ENOMEM, "%s: no memory to read the file", path);
    else
        e = kn_file_read(fd, path, text, (size_t)size, 0);
    kn_file_close(fd);
    if (e == 0) {
        f.text = text;
        f.end = text + size;
        int line = ini_parse_stream(read_line, &f, on_key, &f);
        e = f.error;
        if (e == 0 && line != 0)
            e = kn_fail(KN_EINVAL, "%s:%d: neither [command] nor name = value", path, line);
    }
    kn_free(text);
    return e;
}

/* ---- the environment --------------------------------------------------------------------------- */

/* Converts SPILLWAY_TOP_K=40 to the flag --top-k and the value 40; false for a variable without the prefix. */
static bool env_flag(const char *variable, char *flag, size_t size, const char **value)
{
    size_t skip = strlen(ENG_ENV_PREFIX), n = strcspn(variable, "=");
    if (strncmp(variable, ENG_ENV_PREFIX, skip) != 0 || !variable[n] || n - skip + 3 > size)
        return false;
    memcpy(flag, "--", 2);
    for (size_t i = skip; i < n; i++) {
        char c = variable[i];
        flag[2 + i - skip] = c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    flag[2 + n - skip] = 0;
    *value = variable + n + 1;
    return true;
}

static int apply_environment(struct eng_config *c, enum eng_command_id command)
{
    char flag[64], by[64];
    const char *value;
    for (char **v = environ; v && *v; v++) {
        if (!env_flag(*v, flag, sizeof flag, &value))
            continue;
        snprintf(by, sizeof by, "%.*s", (int)strcspn(*v, "="), *v);
        const struct eng_option *o = eng_option_find(flag, 1u << command);
        if (!eng_option_find(flag, ENG_ALL_COMMANDS))
            kn_say(KN_LOG_WARN, "%s in the environment is not an option; ignored", by);
        if (!o || !value[0])
            continue;
        eng_option_forget(c, o);
        int e = eng_option_set(c, o, value, by);
        if (e < 0)
            return e;
    }
    return 0;
}

/* ---- arguments --------------------------------------------------------------------------------- */

struct given {
    const struct eng_option *option;
    const char *value, *by;
};

struct arguments {
    struct given given[MAX_GIVEN];
    int n;
    bool help, help_all;
};

static int add_given(struct arguments *a, const struct eng_option *o, const char *value, const char *by)
{
    if (a->n == MAX_GIVEN)
        return kn_fail(KN_ELIMIT, "more than %d flags", MAX_GIVEN);
    a->given[a->n++] = (struct given){ o, value, by };
    return 0;
}

/* Takes the flag at argv[*i]; advances *i if its value is the next argument. */
static int take_flag(struct arguments *a, enum eng_command_id command, int argc, char **argv, int *i)
{
    char name[ENG_MAX_NAME + 3];
    const char *word = argv[*i], *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    if (n >= sizeof name)
        return kn_fail(KN_EINVAL, "%s: %s is unknown", eng_command_name[command], word);
    memcpy(name, word, n);
    name[n] = 0;

    const struct eng_option *o = eng_option_find(name, 1u << command);
    if (!o)
        return eng_option_unknown(eng_command_name[command], name, command);
    if (equals)
        return add_given(a, o, equals + 1, word);
    if (o->kind == ENG_FLAG)
        return add_given(a, o, "true", word);
    if (*i + 1 == argc)
        return kn_fail(KN_EINVAL, "%s: %s needs a value, %s", eng_command_name[command], word, o->value);
    ++*i;
    return add_given(a, o, argv[*i], word);
}

/* The flags that a command's words without dashes set, in this order. */
static const char *const *place_flags(enum eng_command_id command)
{
    static const char *const none[] = { NULL }, *const model[] = { "--model", NULL },
                             *const what[] = { "--what", NULL }, *const input[] = { "--input", NULL },
                             *const run[] = { "--model", "--prompt", NULL }, *const name[] = { "--name", NULL };
    if (command == ENG_simulate)
        return what;
    if (command == ENG_batch)
        return input;
    if (command == ENG_run)
        return run;
    if (command == ENG_pull || command == ENG_rm)
        return name;
    return eng_option_find("--model", 1u << command) ? model : none;
}

static bool is_given(const struct arguments *a, const struct eng_option *o)
{
    for (int i = 0; i < a->n; i++)
        if (a->given[i].option == o)
            return true;
    return false;
}

static bool is_model_name(const char *word)
{
    size_t n = strlen(word);
    return n > 5 && !strcmp(word + n - 5, ".gguf");
}

/* Refuses a word without dashes for which the command has no flag left. */
static int refuse_word(const struct arguments *a, enum eng_command_id command, const char *word)
{
    const char *name = eng_command_name[command];
    const struct eng_option *model = eng_option_find("--model", 1u << command);
    if (is_model_name(word) && model && !is_given(a, model))
        return kn_fail(KN_EINVAL, "%s: '%s' is not a flag; did you mean -m %s?", name, word, word);
    for (int i = 0; i < a->n && is_model_name(word); i++)
        if (a->given[i].option == model)
            return kn_fail(KN_EINVAL, "%s: two models, '%s' and '%s': give one, with -m", name, a->given[i].value,
                           word);
    if (command == ENG_run)
        return kn_fail(KN_EINVAL, "run: '%s' is not a flag; put a text of several words in quotes", word);
    return kn_fail(KN_EINVAL, "%s: '%s' is one word too many; see spillway %s --help", name, word, name);
}

/* Takes a word without dashes, after all flags are read: it sets the first of its flags that is not given. */
static int take_word(struct arguments *a, enum eng_command_id command, const char *word)
{
    for (const char *const *flag = place_flags(command); *flag; flag++) {
        const struct eng_option *o = eng_option_find(*flag, 1u << command);
        if (!is_given(a, o))
            return add_given(a, o, word, *flag);
    }
    return refuse_word(a, command, word);
}

static int read_arguments(struct arguments *a, enum eng_command_id command, int argc, char **argv)
{
    const char *word[MAX_GIVEN];
    int n_word = 0, e = 0;
    for (int i = 0; i < argc && e == 0; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            a->help = true;
        else if (!strcmp(argv[i], "--help-all"))
            a->help = a->help_all = true;
        else if (argv[i][0] == '-' && argv[i][1])
            e = take_flag(a, command, argc, argv, &i);
        else if (n_word < MAX_GIVEN)
            word[n_word++] = argv[i];
    }
    for (int i = 0; i < n_word && e == 0; i++)
        e = take_word(a, command, word[i]);
    return e;
}

static int apply_arguments(struct eng_config *c, const struct arguments *a)
{
    for (int i = 0; i < a->n; i++) {
        bool first = true;
        for (int j = 0; j < i; j++)
            first = first && a->given[j].option != a->given[i].option;
        if (first)
            eng_option_forget(c, a->given[i].option);
        int e = eng_option_set(c, a->given[i].option, a->given[i].value, a->given[i].by);
        if (e < 0)
            return e;
    }
    return 0;
}

/* ---- the configuration ------------------------------------------------------------------------- */

static int draw_seed(struct eng_config *c)
{
    if (getrandom(&c->sampling.seed, sizeof c->sampling.seed, 0) != sizeof c->sampling.seed)
        return kn_fail(KN_EIO, "the system provides no random numbers; give --seed");
    c->sampling.seed >>= 32; /* 32 bits: at most ten digits, so that users can type it again */
    return 0;
}

/* Removes slashes at the end of a model folder's path: the files beside it are named by this path and an ending. */
static void trim_model(struct eng_config *c)
{
    static char model[ENG_PATH_BYTES]; /* static: called once, by the main thread */
    size_t n = c->model ? strlen(c->model) : 0;
    if (n < 2 || n >= sizeof model || c->model[n - 1] != '/')
        return;
    while (n > 1 && c->model[n - 1] == '/')
        n--;
    memcpy(model, c->model, n);
    model[n] = 0;
    c->model = model;
}

/* Reads the variables that a service manager sets for its services: sd_notify(3). */
static void read_manager(struct eng_config *c)
{
    const char *us = getenv("WATCHDOG_USEC");
    c->notify_socket = getenv("NOTIFY_SOCKET");
    c->watchdog_us = us ? strtoull(us, NULL, 10) : 0;
}

/* Reads the variables that tell programs of a user's terminal and folders: no-color.org, XDG Base Directories. */
static void read_user(struct eng_config *c)
{
    const char *no_color = getenv("NO_COLOR");
    c->no_color = no_color && no_color[0];
    c->state_dir = getenv("XDG_STATE_HOME");
    c->home = getenv("HOME");
    c->terminal = getenv("TERM");
}

/* ---- the folders of models ---------------------------------------------------------------------- */

/* The first of the variables that is set, or NULL. */
static const char *first_set(const char *a, const char *b, const char *c)
{
    const char *name[] = { a, b, c };
    for (int i = 0; i < 3 && name[i]; i++) {
        const char *value = getenv(name[i]);
        if (value && value[0])
            return value;
    }
    return NULL;
}

static char place_room[8][ENG_PATH_BYTES]; /* the paths of config->hub; the last call of read_places() fills them */
static int n_place;

/* A path of the environment with another behind it, "~" at its beginning replaced.  NULL: no folder, or too long. */
static const char *place(const char *folder, const char *inner)
{
    const char *home = getenv("HOME");
    bool tilde = folder && folder[0] == '~' && (folder[1] == '/' || !folder[1]);
    if (!folder || !folder[0] || (tilde && !home))
        return NULL;
    kn_assert(n_place < (int)(sizeof place_room / sizeof *place_room));
    char *out = place_room[n_place];
    int n = snprintf(out, ENG_PATH_BYTES, "%s%s%s%s", tilde ? home : "", folder + tilde, inner[0] ? "/" : "", inner);
    return n < ENG_PATH_BYTES ? place_room[n_place++] : NULL;
}

static bool is_true(const char *value)
{
    return value && (!strcasecmp(value, "1") || !strcasecmp(value, "on") || !strcasecmp(value, "yes") ||
                     !strcasecmp(value, "true"));
}

/* Reads the variables of the hub's own client, of Ollama and of LM Studio, so that models which they keep are found. */
static void read_places(struct eng_config *c)
{
    struct eng_hub_places *h = &c->hub;
    n_place = 0;
    const char *home = getenv("HOME"), *xdg = first_set("XDG_CACHE_HOME", NULL, NULL), *hf = getenv("HF_HOME");
    const char *cache = first_set("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", NULL), *token = getenv("HF_TOKEN_PATH");
    const char *endpoint = first_set("HF_ENDPOINT", NULL, NULL), *ollama = first_set("OLLAMA_MODELS", NULL, NULL);
    if (!hf || !hf[0])
        hf = xdg ? place(xdg, "huggingface") : place(home, ".cache/huggingface");
    h->cache = cache ? place(cache, "") : place(hf, "hub");
    c->cache_dir = xdg ? place(xdg, "spillway") : place(home, ".cache/spillway");
    h->token = first_set("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", NULL);
    h->token_file = token && token[0] ? place(token, "") : place(hf, "token");
    h->endpoint = endpoint ? endpoint : "https://huggingface.co";
    h->ca_file = first_set("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE");
    h->ollama[0] = ollama ? place(ollama, "") : place(home, ".ollama/models");
    h->ollama[1] = ollama ? NULL : "/usr/share/ollama/.ollama/models";
    h->lm_studio[0] = place(home, ".lmstudio/models");
    h->lm_studio[1] = place(home, ".cache/lm-studio/models");
    h->offline = h->offline || is_true(getenv("HF_HUB_OFFLINE")) || is_true(getenv("TRANSFORMERS_OFFLINE"));
}

int eng_config_parse(struct eng_config *config, enum eng_command_id command, int argc, char **argv)
{
    static struct arguments a; /* too large for the stack; parsed once, by the main thread */
    a = (struct arguments){ 0 };
    eng_option_defaults(config, command);
    int e = read_arguments(&a, command, argc, argv);
    if (e < 0)
        return e;
    if (a.help) {
        eng_option_help(command, a.help_all);
        return 1;
    }
    const char *path = getenv(ENG_ENV_PREFIX "CONFIG");
    for (int i = 0; i < a.n; i++)
        if (!strcmp(a.given[i].option->name, "config"))
            path = a.given[i].value;
    if (path && path[0] && (e = apply_file(config, command, path)) < 0)
        return e;
    if ((e = apply_environment(config, command)) < 0 || (e = apply_arguments(config, &a)) < 0 ||
        (e = eng_option_check(config, command)) < 0)
        return e;
    trim_model(config);
    read_places(config);
    if (config->model_sampling)
        config->sampling_given = ENG_MODEL_SAMPLING_NONE;
    if (command == ENG_serve)
        read_manager(config);
    if (command == ENG_run)
        read_user(config);
    if (command == ENG_run && !config->seed_given)
        return draw_seed(config);
    return 0;
}

struct eng_options eng_config_options(const struct eng_config *c, bool answers_requests)
{
    struct eng_options o = { .model = c->model,
                             .isa = c->isa,
                             .device = c->device,
                             .device_mem = c->device_mem,
                             .n_host_layer = c->n_cpu_moe,
                             .kv = c->kv,
                             .n_thread = c->n_thread,
                             .n_parallel = c->n_parallel,
                             .n_ctx = c->n_ctx,
                             .n_chunk = c->n_chunk,
                             .host_mem = c->host_mem,
                             .kv_mem = c->kv_mem,
                             .gamma = c->gamma,
                             .verify = c->verify,
                             .explain = c->explain,
                             .fit = c->fit,
                             .io = c->io,
                             .keep_heat = !c->no_heat,
                             .no_pack = c->no_pack,
                             .mirror = c->mirror,
                             .lookahead = c->n_ahead,
                             .dsi = c->n_dsi == 1                ? ENG_DSI_ON
                                    : c->n_dsi == ENG_GAMMA_AUTO ? ENG_DSI_AUTO
                                                                 : ENG_DSI_OFF };
    o.predictions = answers_requests;
    for (int i = 0; i < c->n_draft; i++) /* --draft none adds no drafter */
        o.predictions &= c->draft[i].kind != ENG_DRAFT_NONE;
    for (int i = 0; i < c->n_draft; i++)
        if (c->draft[i].kind != ENG_DRAFT_NONE)
            o.draft[o.n_draft++] = c->draft[i];
    return o;
}
