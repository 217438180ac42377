/* engine/cli/chat_commands.c - the commands of a chat: lines that begin with a slash.
 *
 * In: a line without its slash, and the conversation.  Out: the changed conversation, messages on stderr, and the next
 * step of the chat.  /set reads its values with the table of flags, so every sampling flag can be set in a chat. */
#include "engine/base/base.h"
#include "engine/cli/options.h"
#include "engine/cli/run.h"
#include "engine/cli/text_width.h"

#include <string.h>

#define BLANKS     " \t"
#define MOST_SHOWN 60 /* bytes of an unknown command */

typedef enum eng_chat_next execute(struct eng_conversation *c, const char *rest);

/* ---- the conversation ------------------------------------------------------------------------- */

static enum eng_chat_next clear(struct eng_conversation *c, const char *rest)
{
    (void)rest;
    eng_conversation_clear(c);
    return ENG_CHAT_READ;
}

static enum eng_chat_next forget(struct eng_conversation *c, const char *rest)
{
    (void)rest;
    if (eng_conversation_forget(c))
        fprintf(stderr, "%zu messages are left\n", json_array_size(c->messages));
    else
        fputs("there is no message before the last one\n", stderr);
    return ENG_CHAT_READ;
}

static enum eng_chat_next regenerate(struct eng_conversation *c, const char *rest)
{
    (void)rest;
    bool answered = !strcmp(eng_conversation_last_role(c), "assistant");
    c->n_retry += answered || !c->template.n; /* without a template answers are not kept */
    if (answered)
        eng_conversation_drop_last(c);
    if (!strcmp(eng_conversation_last_role(c), "user"))
        return ENG_CHAT_ANSWER;
    fputs("there is no message to answer\n", stderr);
    return ENG_CHAT_READ;
}

static enum eng_chat_next save(struct eng_conversation *c, const char *rest)
{
    if (!rest[0])
        fputs("/save needs a file name\n", stderr);
    else if (!eng_conversation_save(c, rest))
        fprintf(stderr, "saved %zu messages to %s\n", json_array_size(c->messages), rest);
    return ENG_CHAT_READ;
}

static enum eng_chat_next load(struct eng_conversation *c, const char *rest)
{
    if (!rest[0])
        fputs("/load needs a file name\n", stderr);
    else if (!eng_conversation_load(c, rest))
        fprintf(stderr, "loaded %zu messages from %s\n", json_array_size(c->messages), rest);
    return ENG_CHAT_READ;
}

static enum eng_chat_next set_system(struct eng_conversation *c, const char *rest)
{
    const char *now = eng_conversation_system(c);
    if (rest[0])
        (void)eng_conversation_set_system(c, strcmp(rest, "\"\"") ? rest : "");
    else
        fprintf(stderr, "%s%s\n", now ? "system: " : "no system message; /system TEXT sets one", now ? now : "");
    return ENG_CHAT_READ;
}

/* ---- settings --------------------------------------------------------------------------------- */

/* True for the flags that /set takes: numbers of the sampling, and the length. */
static bool is_setting(const struct eng_option *o)
{
    size_t sampling = offsetof(struct eng_config, sampling);
    bool samples = o->at >= sampling && o->at < sampling + sizeof(struct spec_params);
    return o->commands & 1u << ENG_run && (o->kind == ENG_INTEGER || o->kind == ENG_NUMBER || o->kind == ENG_SEED) &&
           (samples || o->at == offsetof(struct eng_config, n_predict));
}

static void print_setting(const char *name, const char *value, const char *about)
{
    int at = fprintf(stderr, "  %-18s %-10s ", name, value);
    eng_print_wrapped(stderr, at, 32, about);
}

static void list_settings(const struct eng_conversation *c)
{
    const struct eng_option *o;
    char value[64];
    for (int i = 0; (o = eng_option_at(i)); i++) {
        if (!is_setting(o))
            continue;
        eng_option_default_text(c->config, o, value, sizeof value);
        if (o->kind == ENG_SEED)
            snprintf(value, sizeof value, "%llu", (unsigned long long)c->config->sampling.seed);
        print_setting(o->name, value, o->help);
    }
    print_setting("think", c->think ? c->think : "", "reasoning, if the chat template has a switch");
    print_setting("system", eng_conversation_system(c) ? "(set)" : "", "as /system TEXT");
}

static void set_option(struct eng_conversation *c, const char *name, const char *value)
{
    char flag[ENG_MAX_NAME + 3], by[ENG_MAX_NAME + 8];
    snprintf(flag, sizeof flag, "--%s", name);
    for (char *s = flag; *s; s++) /* top_k as in requests */
        *s = *s == '_' ? '-' : *s;
    snprintf(by, sizeof by, "/set %s", flag + 2);
    const struct eng_option *o = eng_option_find(flag, 1u << ENG_run);
    if (!o || !is_setting(o))
        fprintf(stderr, "/set does not know %s; /set lists the names\n", name);
    else
        (void)eng_option_set(c->config, o, value, by);
}

static enum eng_chat_next set(struct eng_conversation *c, const char *rest)
{
    char name[ENG_MAX_NAME + 1];
    size_t n = strcspn(rest, BLANKS);
    const char *value = rest + n + strspn(rest + n, BLANKS);
    snprintf(name, sizeof name, "%.*s", (int)n, rest);
    if (!name[0])
        list_settings(c);
    else if (!strcmp(name, "system"))
        return set_system(c, value);
    else if (!value[0])
        fprintf(stderr, "/set %s needs a value\n", name);
    else if (!strcmp(name, "think"))
        (void)eng_conversation_set_think(c, value);
    else
        set_option(c, name, value);
    return ENG_CHAT_READ;
}

/* ---- the rest --------------------------------------------------------------------------------- */

static enum eng_chat_next info(struct eng_conversation *c, const char *rest)
{
    (void)c, (void)rest;
    return ENG_CHAT_INFO;
}

static enum eng_chat_next quit(struct eng_conversation *c, const char *rest)
{
    (void)c, (void)rest;
    return ENG_CHAT_QUIT;
}

static enum eng_chat_next help(struct eng_conversation *c, const char *rest);

static const struct {
    const char *word, *other; /* other: a second name, or NULL */
    const char *argument;     /* NULL: takes none */
    const char *about;
    execute *run;
} commands[] = {
    { "regen", "retry", NULL, "answer the last message again", regenerate },
    { "forget", NULL, NULL, "drop the oldest message and its answer, if the context is full", forget },
    { "clear", NULL, NULL, "begin a new conversation; the system message stays", clear },
    { "system", NULL, "TEXT", "set the system message; \"\" removes it, no TEXT prints it", set_system },
    { "set", NULL, "NAME VALUE", "set temp, top-p, seed, think on|off ...; alone, list all", set },
    { "save", NULL, "FILE", "save the conversation as JSON", save },
    { "load", NULL, "FILE", "continue a saved conversation", load },
    { "info", NULL, NULL, "print the model and the context in use", info },
    { "help", "?", NULL, "print this list", help },
    { "exit", "quit", NULL, "quit (also Ctrl-D, or Ctrl-C twice)", quit },
};

static enum eng_chat_next help(struct eng_conversation *c, const char *rest)
{
    (void)c, (void)rest;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char use[32], about[128];
        snprintf(use, sizeof use, "/%s %s", commands[i].word, commands[i].argument ? commands[i].argument : "");
        snprintf(about, sizeof about, "%s%s%s", commands[i].about, commands[i].other ? "; also /" : "",
                 commands[i].other ? commands[i].other : "");
        int at = fprintf(stderr, "  %-16s ", use);
        eng_print_wrapped(stderr, at, 19, about);
    }
    fputs("  \"\"\"              begin or end a message of several lines\n"
          "  //text           send /text to the model\n"
          "  Ctrl-C           stop the answer\n",
          stderr);
    return ENG_CHAT_READ;
}

enum eng_chat_next eng_chat_command(struct eng_conversation *c, const char *line)
{
    char rest[ENG_PATH_BYTES];
    size_t n = strcspn(line, BLANKS);
    const char *from = line + n + strspn(line + n, BLANKS);
    size_t left = strlen(from);
    while (left > 0 && strchr(BLANKS, from[left - 1]))
        left--;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *const name[] = { commands[i].word, commands[i].other };
        for (int k = 0; k < 2; k++) {
            if (!name[k] || strlen(name[k]) != n || memcmp(name[k], line, n) != 0)
                continue;
            if (left && !commands[i].argument)
                fprintf(stderr, "/%s takes nothing after it\n", name[k]);
            else if (left >= sizeof rest)
                fprintf(stderr, "/%s: the text is longer than %zu bytes\n", name[k], sizeof rest - 1);
            else {
                memcpy(rest, from, left);
                rest[left] = 0;
                return commands[i].run(c, rest);
            }
            return ENG_CHAT_READ;
        }
    }
    int shown = (int)kn_min(n, (size_t)MOST_SHOWN);
    fprintf(stderr, "/%.*s is not a command and was not sent; /help lists the commands, //%.*s sends the text\n", shown,
            line, shown, line);
    return ENG_CHAT_READ;
}
