/* engine/cli/run_chat.c - the chat on a terminal: messages and commands in turn, until the end of input.
 *
 * The prompt of a turn is the whole conversation; tokens whose KV is cached from earlier turns are not computed again.
 * Without a chat template each message is a text to complete, and there is no conversation. */
#include "engine/base/base.h"
#include "engine/cli/run.h"
#include "engine/cli/text_width.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define HISTORY "/spillway/history"

static void print_info(const struct eng_run *r)
{
    const struct moe_shape *s = moe_model_shape(eng_model(r->engine));
    const struct moe_value *v = moe_file_find(eng_file(r->engine), "general.name");
    char name[80];
    if (v && v->type == MOE_STRING) {
        moe_string_show(*(const struct moe_string *)v->data, name, sizeof name);
        fprintf(stderr, "%s\n", name);
    }
    fprintf(stderr, "file %s\n%s, %d layers, d_model %d, ", r->config->model, s->arch, s->n_layer, s->d_model);
    if (s->n_expert)
        fprintf(stderr, "%d experts of which %d are used by a token\n", s->n_expert, s->n_used);
    else
        fprintf(stderr, "dense (no experts)\n");
    fprintf(stderr, "%zu of %d tokens of the context are in use\n", r->ids.n, eng_n_ctx(r->engine));
}

/* The ways on when the conversation has filled the context. */
static void print_ways_on(void)
{
    eng_print_wrapped(stderr, 0, 0,
                      "/forget drops the oldest message and its answer, then /regen answers again; /clear begins a new "
                      "conversation; spillway run -c N sets the context");
}

/* Answers the messages and adds the answer to them.  On failure the last message, the user's, is removed. */
static int take_turn(struct eng_run *r, struct eng_conversation *c)
{
    struct eng_timing t;
    int error = eng_conversation_tokens(c, r->chat, &r->ids);
    if (!error && !(error = eng_run_answer(r, c->n_retry, &t))) {
        eng_run_report(r, &t);
        error = eng_conversation_add(c, "assistant", r->said.n ? r->said.data : "", r->said.n);
    }
    if (error)
        eng_conversation_drop_last(c);
    if (error ? r->ids.full || r->ids.n >= (size_t)eng_n_ctx(r->engine) : t.context_full)
        print_ways_on();
    return error;
}

/* Answers the last message.  Only a failed write ends the chat; other errors are printed already. */
static int answer_last(struct eng_run *r, struct eng_conversation *c)
{
    int error = 0;
    if (r->chat) {
        error = take_turn(r, c);
    } else {
        const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
        const json_t *text = json_object_get(last, "content");
        error = eng_run_complete(r, json_string_value(text), json_string_length(text), c->n_retry);
    }
    return r->output_failed ? error : 0;
}

static int take_message(struct eng_run *r, struct eng_conversation *c, const char *text)
{
    c->n_retry = 0;
    if (!r->chat)
        eng_conversation_clear(c);
    int error = eng_conversation_add(c, "user", text, strlen(text));
    return error ? error : answer_last(r, c);
}

/* Sets path to the file of typed lines, and makes its folder: NULL if there is none. */
static const char *history_path(const struct eng_config *c, char *path, size_t size)
{
    const char *base = c->state_dir && c->state_dir[0] == '/' ? c->state_dir : c->home;
    const char *under = base == c->home ? "/.local/state" : "";
    if (c->no_history || !base || base[0] != '/' || snprintf(path, size, "%s%s" HISTORY, base, under) >= (int)size)
        return NULL;
    for (char *slash = under[0] ? path + strlen(base) : path; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        (void)mkdir(path, 0700); /* it may be there; opening the file fails if it is not */
        *slash = '/';
    }
    return path;
}

int eng_run_chat(struct eng_run *r)
{
    struct eng_terminal *terminal = NULL;
    struct eng_conversation c = { 0 };
    char path[ENG_PATH_BYTES];
    enum eng_input kind;
    const char *text;
    struct moe_string template = r->chat ? eng_chat_text(r->chat) : (struct moe_string){ 0 };
    int error = eng_conversation_open(&c, r->config, template);
    if (!error)
        error = eng_terminal_open(&terminal, r->config->terminal, history_path(r->config, path, sizeof path));
    if (!error)
        eng_run_say_seed(r);
    if (!error && eng_terminal_is_tty(terminal))
        fputs("/help lists the commands\n", stderr);
    while (!error && (error = eng_terminal_read(terminal, &kind, &text)) == 0 && kind != ENG_INPUT_QUIT) {
        enum eng_chat_next next = ENG_CHAT_READ;
        if (kind == ENG_INPUT_TEXT)
            error = take_message(r, &c, text);
        else
            next = eng_chat_command(&c, text);
        if (next == ENG_CHAT_QUIT)
            break;
        if (next == ENG_CHAT_INFO)
            print_info(r);
        if (next == ENG_CHAT_ANSWER)
            error = answer_last(r, &c);
    }
    eng_terminal_close(terminal);
    eng_conversation_close(&c);
    return error;
}
