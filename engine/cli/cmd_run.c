/* engine/cli/cmd_run.c - spillway run: one prompt, or a chat on the terminal.
 *
 * A prompt from the command line, a file or a pipe is the user's message of a conversation: the chat template makes the
 * prompt of it.  With --raw, or if the model has no template, the text is completed as it is (with BOS if the model
 * asks for it).  Without a prompt, on a terminal, a chat starts (run_chat.c). */
#include "engine/api/model_sampling.h"
#include "engine/base/base.h"
#include "engine/cli/run.h"
#include "engine/plan/plan.h"

#include <string.h>
#include <unistd.h>

/* Sets o->reserved_bytes so that the engine leaves memory of its budget to the DSI workers. */
static int prepare_dsi(const struct eng_run *r, const struct eng_dsi_options *dsi, struct eng_options *o)
{
    struct eng_engine *e;
    for (int i = 0; i < o->n_draft; i++)
        if (o->draft[i].kind == ENG_DRAFT_MODEL && o->draft[i].tree != ENG_TREE_CHAIN)
            return kn_fail(KN_EUNSUPPORTED,
                           "--dsi %d: drafts for workers must be chains: leave out tree= of "
                           "--draft model:",
                           dsi->n_target);
    int error = eng_describe(&e, o);
    if (error)
        return error;
    if (eng_memory(e)->device.total)
        error = kn_fail(KN_EUNSUPPORTED,
                        "--dsi with several workers runs on the host only: leave --dsi or --device out");
    o->reserved_bytes = eng_dsi_bytes(e, dsi);
    eng_close(e);
    if (error)
        return error;
    if (!r->config->n_draft)
        kn_say(KN_LOG_WARN, "--dsi without --draft model:FILE: there is no drafter");
    return 0;
}

/* Memory to read a prompt of n bytes: its JSON, the rendered template and its tokens, but at most a quarter of the
 * budget: a prompt that fits in the context needs less. */
#define PROMPT_COPIES 8
#define PROMPT_SHARE  4
#define PROMPT_LEAST  ((size_t)4 << 20) /* for any prompt: the split counts it to the program's round figure */

#define MOST_COUNTED ((size_t)1 << 16) /* tokens of a longer prompt are counted up to twice the context only */

static size_t prompt_bytes(const struct eng_config *c, size_t n)
{
    size_t most = c->host_mem ? c->host_mem / PROMPT_SHARE : SIZE_MAX;
    return n > most / PROMPT_COPIES ? most : n * PROMPT_COPIES;
}

static int open_engine(struct eng_run *r)
{
    const struct eng_config *c = r->config;
    struct eng_dsi_options dsi = { .n_target = c->n_dsi, .lookahead = c->n_ahead, .n_thread = c->n_thread };
    struct eng_progress *bar;
    struct eng_options o = eng_config_options(c, false);
    int error = c->n_dsi > 1 ? prepare_dsi(r, &dsi, &o) : 0;
    if (error || (error = eng_progress_open(&bar, "loading", c->quiet)))
        return error;
    o.progress = eng_progress_counter(bar);
    o.reserved_bytes += prompt_bytes(c, r->n_input);
    error = eng_open(&r->engine, &o);
    eng_progress_close(bar);
    if (!error && c->n_dsi > 1)
        error = eng_dsi_open(&r->dsi, r->engine, &dsi);
    return error ? error : eng_session_open(&r->session, r->engine);
}

/* Opens the chat template.  r->chat stays NULL with --raw, and for a model that has none.  A chat, but not a prompt,
 * may use a built-in template: a base model often has the vocabulary of its chat model. */
static int open_chat(struct eng_run *r, bool chat)
{
    const struct eng_config *c = r->config;
    const struct eng_vocab *v = eng_vocab(r->engine);
    const struct moe_file *f = eng_file(r->engine);
    if (c->raw)
        return 0;
    if (!c->template && !eng_chat_exists(f, chat || c->system ? v : NULL)) {
        if (c->system)
            return kn_fail(KN_EUNSUPPORTED,
                           "%s: the model has no chat template for --system: give one with "
                           "--chat-template FILE",
                           c->model);
        kn_say(KN_LOG_WARN,
               "%s: the model has no chat template (a base model?): the text is completed as it is; "
               "--chat-template FILE gives it one",
               c->model);
        return 0;
    }
    int error = c->template ? eng_chat_open_template(&r->chat, v, c->template)
                            : eng_chat_open(&r->chat, f, v, c->model);
    if (error)
        return error;
    struct moe_string text = eng_chat_text(r->chat);
    eng_tool_format_find(&r->format, text.data, text.n, v);
    return 0;
}

/* True for a terminal with escape sequences. */
static bool is_smart(const char *kind) { return kind && kind[0] && strcmp(kind, "dumb") != 0; }

static int open_run(struct eng_run *r)
{
    const struct eng_config *c = r->config;
    bool terminal = isatty(STDOUT_FILENO);
    int error = open_engine(r);
    if (error)
        return error;
    if (c->host_mem && r->n_input)
        kn_heap_limit(PROMPT_LEAST + prompt_bytes(c, r->n_input));
    size_t twice = 2 * (size_t)eng_n_ctx(r->engine); /* a prompt that is a little too long gets its exact length */
    r->ids.most = twice > MOST_COUNTED ? twice : MOST_COUNTED;
    /* In r->config, where /set changes them. */
    eng_model_sampling(&r->config->sampling, r->config->sampling_given, eng_file(r->engine));
    r->event = kn_calloc((size_t)eng_event_room(r->engine), sizeof *r->event);
    r->piece = kn_alloc(eng_decoder_room(eng_vocab(r->engine)));
    if (!r->event || !r->piece)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    error = eng_printer_open(&r->printer, &(struct eng_printer_options){ .fd = STDOUT_FILENO,
                                                                         .terminal = terminal,
                                                                         .color = terminal && !r->config->no_color &&
                                                                                  is_smart(r->config->terminal) });
    return error;
}

/* The checks that need no model come before it is loaded, which may take minutes. */
static int check_early(const struct eng_config *c)
{
    struct eng_stop stop;
    int error = eng_stop_init(&stop, c->stop, c->n_stop);
    return error ? error : eng_template_file_check(c->template);
}

static int check_stop_ids(const struct eng_run *r)
{
    const struct eng_config *c = r->config;
    int n_vocab = eng_vocab_size(eng_vocab(r->engine));
    for (int i = 0; i < c->n_stop_id; i++)
        if (c->stop_id[i] >= n_vocab)
            return kn_fail(KN_EINVAL, "--stop-id %d; the vocabulary has 0 to %d", c->stop_id[i], n_vocab - 1);
    return 0;
}

static void close_run(struct eng_run *r)
{
    eng_chat_close(r->chat);
    eng_session_close(r->session);
    eng_dsi_close(r->dsi);
    eng_breakers_free(&r->breakers);
    eng_printer_close(r->printer);
    eng_close(r->engine);
    eng_ids_free(&r->ids);
    eng_bytes_free(&r->shown);
    eng_bytes_free(&r->said);
    kn_free(r->event);
    kn_free(r->piece);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

static int prompt_text(const struct eng_config *c, char **text, size_t *n)
{
    int error = 0;
    if (c->prompt) {
        *n = strlen(c->prompt);
        error = (*text = kn_strdup(c->prompt)) ? 0 : kn_fail(KN_ENOMEM, "no memory for the prompt");
    } else {
        error = c->input ? eng_read_file(c->input, text, n) : eng_read_all(STDIN_FILENO, "stdin", text, n);
    }
    if (!error && *n == 0)
        error = kn_fail(KN_EINVAL, "the prompt is empty");
    return error;
}

/* Ends the guarded reading of a prompt of n bytes; says which limit was met. */
static int end_reading(int error, size_t n, const struct kn_heap_guard *guard)
{
    kn_heap_guard(NULL);
    if (error && guard->denied_bytes)
        return kn_fail(error,
                       "the prompt of %zu bytes takes more memory than --host-mem leaves for it: shorten it, or raise "
                       "--host-mem",
                       n);
    return error;
}

int eng_run_complete(struct eng_run *r, const char *text, size_t n, uint32_t choice)
{
    struct kn_heap_guard guard = { 0 };
    struct eng_timing t;
    unsigned flags = ENG_TEXT_ADD_BOS | (r->config->special ? ENG_TEXT_PARSE_SPECIAL : 0);
    r->ids.n = 0;
    kn_heap_guard(&guard);
    int error = eng_tokenize(eng_vocab(r->engine), text, n, flags, &r->ids);
    if (error && r->ids.full)
        kn_fail(error, ENG_PROMPT_TOO_LONG, r->ids.most);
    error = end_reading(error, n, &guard);
    if (!error && r->ids.n == 0)
        error = kn_fail(KN_EINVAL, "the prompt is empty");
    if (!error && !(error = eng_run_answer(r, choice, &t)))
        eng_run_report(r, &t);
    return error;
}

static int answer_message(struct eng_run *r, const char *text, size_t n)
{
    struct kn_heap_guard guard = { 0 };
    struct eng_conversation c;
    struct eng_timing t;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) /* of the last line of a file or a pipe */
        n--;
    kn_heap_guard(&guard);
    int error = eng_conversation_open(&c, r->config, eng_chat_text(r->chat));
    if (!error && !(error = eng_conversation_add(&c, "user", text, n)))
        error = eng_conversation_tokens(&c, r->chat, &r->ids);
    error = end_reading(error, n, &guard);
    if (!error && !(error = eng_run_answer(r, 0, &t)))
        eng_run_report(r, &t);
    eng_conversation_close(&c);
    return error;
}

int eng_cmd_run(const struct eng_config *config)
{
    static struct eng_config mine; /* a copy that /set may change; its pointers into *config stay valid */
    struct eng_run r = { .config = &mine };
    bool chat = !config->prompt && !config->input && isatty(STDIN_FILENO);
    char *text = NULL;
    size_t n = 0;
    mine = *config;
    int error = check_early(config);
    if (!error && !chat)
        error = prompt_text(config, &text, &n);
    r.n_input = n;
    if (!error && !(error = open_run(&r)) && !(error = check_stop_ids(&r)) && !(error = open_chat(&r, chat)))
        error = chat ? eng_run_chat(&r) : r.chat ? answer_message(&r, text, n) : eng_run_complete(&r, text, n, 0);
    close_run(&r);
    kn_free(text);
    return !error ? 0 : r.output_failed ? 1 : 2;
}
