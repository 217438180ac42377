/* spillway run: one prompt, or a chat on the terminal.
 *
 * A prompt with -p or -f, or on a pipe, is text as it stands (BOS as the model asks); the answer goes to
 * stdout as it comes.  Without one, on a terminal, it is a chat: messages are put into the model's turns
 * and every turn goes on from the KV of the last. */
#include "engine/cli.h"
#include "engine/chat.h"
#include "engine/engine.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct run {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_event *event;
    char *piece, *shown;                        /* text of one token; what may be shown of it */
    struct eng_ids ids;                         /* the whole sequence */
    uint32_t n_retry;                           /* another answer to the same message: other noise */
};

static int open_run(struct run *r)
{
    const struct eng_config *c = r->config;
    struct eng_progress *bar;
    int error = eng_progress_open(&bar, "loading", c->quiet);
    if (error)
        return error;
    error = eng_open(&r->engine, &(struct eng_options){
        .model = c->model, .isa = c->isa, .kv = c->kv, .n_thread = c->n_thread, .n_parallel = 1,
        .n_ctx = c->n_ctx, .n_chunk = c->n_chunk, .host_mem = c->host_mem, .kv_mem = c->kv_mem,
        .io = c->io, .keep_heat = true, .no_pack = c->no_pack, .progress = eng_progress_counter(bar) });
    eng_progress_close(bar);
    if (error)
        return error;
    size_t room = eng_decoder_room(eng_vocab(r->engine));
    r->event = kn_calloc(1, sizeof *r->event);
    r->piece = kn_alloc(room);
    r->shown = kn_alloc(room + ENG_STOP_BYTES);
    if (!r->event || !r->piece || !r->shown)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    return eng_session_open(&r->session, r->engine);
}

static void close_run(struct run *r)
{
    eng_session_close(r->session);
    eng_close(r->engine);
    eng_ids_free(&r->ids);
    kn_free(r->event);
    kn_free(r->piece);
    kn_free(r->shown);
}

/* ---- one answer -------------------------------------------------------------------------------------- */

struct timing { uint64_t start_ns, first_ns, end_ns; int n_prompt, n_token; };

static void show(struct run *r, struct eng_stop *stop, const char *bytes, size_t n)
{
    n = eng_stop_feed(stop, bytes, n, r->shown);
    fwrite(r->shown, 1, n, stdout);
    fflush(stdout);
}

/* Generates from r->ids, which gets the answer's tokens as well. */
static int answer(struct run *r, struct timing *t)
{
    const struct eng_config *c = r->config;
    struct eng_decoder decoder;
    struct eng_stop stop;
    struct eng_request request = { .token = r->ids.id, .n_token = (int)r->ids.n, .n_predict = c->n_predict,
                                   .ignore_eos = c->ignore_eos, .sampling = c->sampling };
    request.sampling.choice += r->n_retry;
    if (r->ids.n > INT32_MAX)
        return kn_fail(KN_ELIMIT, "the prompt has %zu tokens", r->ids.n);
    int error = eng_stop_init(&stop, c->stop, c->n_stop);
    if (error || (error = eng_session_start(r->session, &request)))
        return error;
    eng_decoder_init(&decoder, eng_vocab(r->engine),
                     ENG_DECODE_CONTINUE | (c->special ? 0 : ENG_DECODE_SKIP_SPECIAL));
    *t = (struct timing){ .start_ns = kn_now_ns(),
                          .n_prompt = request.n_token - eng_session_cached(r->session) };
    while (eng_session_runs(r->session) && !eng_terminal_stopped()) {
        int n = eng_step(r->engine, r->event);
        if (n < 0 || (n > 0 && r->event->finish == ENG_FAILED))
            return n < 0 ? n : r->event->status;
        if (n == 0 || r->event->token == ENG_NO_TOKEN)   /* only the prompt was read; nothing to add */
            continue;
        t->n_token++;
        if (!t->first_ns)
            t->first_ns = kn_now_ns();
        if ((error = eng_ids_push(&r->ids, r->event->token)))
            return error;
        if (r->event->finish != ENG_STOP)       /* what ends an answer is no part of it */
            show(r, &stop, r->piece, eng_decoder_feed(&decoder, r->event->token, r->piece));
        if (stop.hit)
            eng_session_stop(r->session);
    }
    eng_session_stop(r->session);
    show(r, &stop, r->piece, eng_decoder_finish(&decoder, r->piece));
    fwrite(r->shown, 1, eng_stop_finish(&stop, r->shown), stdout);
    t->end_ns = kn_now_ns();
    return 0;
}

static void report(const struct run *r, const struct timing *t)
{
    if (r->config->quiet || !t->first_ns)
        return;
    double prompt_s = (double)(t->first_ns - t->start_ns) / 1e9;
    double rest_s = (double)(t->end_ns - t->first_ns) / 1e9;
    kn_say(KN_LOG_INFO, "prompt %d tokens, %.1f tokens/s; answer %d tokens, %.1f tokens/s", t->n_prompt,
           prompt_s > 0 ? t->n_prompt / prompt_s : 0, t->n_token,
           rest_s > 0 ? (t->n_token - 1) / rest_s : 0);
}

/* ---- a prompt -------------------------------------------------------------------------------------- */

static int read_all(int fd, const char *name, char **text, size_t *n)
{
    size_t cap = 1 << 16;
    *n = 0;
    if (!(*text = kn_alloc(cap)))
        return kn_fail(KN_ENOMEM, "%s: no memory", name);
    for (;;) {
        ssize_t got = read(fd, *text + *n, cap - *n);
        if (got <= 0)
            return got == 0 ? 0 : kn_fail(KN_EIO, "%s: cannot be read", name);
        *n += (size_t)got;
        if (*n < cap)
            continue;
        char *grown = kn_realloc(*text, cap, 2 * cap);
        if (!grown)
            return kn_fail(KN_ENOMEM, "%s: no memory for %zu bytes", name, 2 * cap);
        *text = grown;
        cap *= 2;
    }
}

static int prompt_text(const struct eng_config *c, char **text, size_t *n)
{
    if (c->prompt) {
        *n = strlen(c->prompt);
        return (*text = kn_strdup(c->prompt)) ? 0 : kn_fail(KN_ENOMEM, "no memory for the prompt");
    }
    if (!c->input)
        return read_all(STDIN_FILENO, "stdin", text, n);
    int fd, error = kn_file_open(&fd, c->input, O_RDONLY);
    if (error)
        return error;
    error = read_all(fd, c->input, text, n);
    kn_file_close(fd);
    return error;
}

static int run_prompt(struct run *r)
{
    char *text = NULL;
    size_t n = 0;
    struct timing t;
    int error = prompt_text(r->config, &text, &n);
    if (!error)
        error = eng_tokenize(eng_vocab(r->engine), text, n,
                             ENG_TEXT_ADD_BOS | (r->config->special ? ENG_TEXT_PARSE_SPECIAL : 0), &r->ids);
    kn_free(text);
    if (!error && r->ids.n == 0)
        error = kn_fail(KN_EINVAL, "the prompt is empty");
    if (error || (error = answer(r, &t)))
        return error;
    putchar('\n');
    report(r, &t);
    return 0;
}

/* ---- a chat ------------------------------------------------------------------------------------------ */

static void print_info(const struct run *r)
{
    const struct moe_shape *s = moe_model_shape(eng_model(r->engine));
    kn_say(KN_LOG_INFO, "%s, %d layers, d_model %d, %d experts of which %d are used; %zu of %d tokens",
           s->arch, s->n_layer, s->d_model, s->n_expert, s->n_used, r->ids.n, eng_n_ctx(r->engine));
}

/* The message as a turn, then the answer; a message that fails leaves the conversation as it was. */
static int take_turn(struct run *r, const char *text)
{
    size_t before = r->ids.n;
    struct timing t;
    int error = eng_chat_turn(eng_vocab(r->engine), text, &r->ids);
    if (!error)
        error = answer(r, &t);
    if (error) {
        r->ids.n = before;
        return error;
    }
    putchar('\n');
    report(r, &t);
    return eng_chat_end(eng_vocab(r->engine), &r->ids);
}

static int run_chat(struct run *r)
{
    struct eng_terminal *terminal;
    enum eng_input kind;
    const char *text;
    char *last = NULL;
    size_t last_begin = 0;
    int error = eng_chat_check(eng_vocab(r->engine), r->config->model);
    if (error || (error = eng_terminal_open(&terminal)))
        return error;
    if (eng_terminal_is_tty(terminal))
        fputs("/help lists the commands\n", stderr);
    while ((error = eng_terminal_read(terminal, &kind, &text)) == 0 && kind != ENG_INPUT_QUIT) {
        if (kind == ENG_INPUT_HELP)
            fputs(eng_terminal_help, stderr);
        else if (kind == ENG_INPUT_INFO)
            print_info(r);
        else if (kind == ENG_INPUT_CLEAR)
            r->ids.n = 0;
        if (kind == ENG_INPUT_TEXT) {
            kn_free(last);
            last = kn_strdup(text);
            last_begin = r->ids.n;
            r->n_retry = 0;
        } else if (kind == ENG_INPUT_RETRY && last) {
            r->ids.n = last_begin;
            r->n_retry++;
        } else {
            continue;
        }
        if (last)
            (void)take_turn(r, last);           /* it has said what was wrong; the chat goes on */
    }
    kn_free(last);
    eng_terminal_close(terminal);
    return error;
}

int eng_cmd_run(const struct eng_config *config)
{
    struct run r = { .config = config };
    bool chat = !config->prompt && !config->input && isatty(STDIN_FILENO);
    int error = open_run(&r);
    if (!error)
        error = chat ? run_chat(&r) : run_prompt(&r);
    close_run(&r);
    return error ? 2 : 0;
}
