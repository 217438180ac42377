/* engine/cli/cmd_run.c - spillway run: one prompt, or a chat on the terminal.
 *
 * A prompt from -p, -f or a pipe is used as it is, without the chat template (with BOS if the model
 * asks for it); the answer is streamed to stdout.  Without a prompt, on a terminal, a chat starts:
 * the chat template formats the messages, and each turn reuses the KV of the previous ones. */
#include "engine/base/base.h"
#include "engine/api/model_sampling.h"
#include "engine/cli/cli.h"
#include "engine/text/chat_prompt.h"
#include "engine/dsi.h"
#include "engine/engine.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

struct run {
    const struct eng_config *config;
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_dsi *dsi; /* distributed speculation (--dsi); NULL: plain steps of session */
    struct eng_event *event;
    char *piece, *shown; /* piece: text of one token; shown: text to print, which begins no stop string */
    struct eng_ids ids;  /* prompt and answer */
    struct eng_chat *chat;
    json_t *messages; /* messages of the chat */
    char *said;       /* [n_said] text of the last answer */
    size_t n_said, said_room;
    struct spec_params sampling; /* of the flags, with the model's own defaults */
    struct eng_breakers breakers;
    uint32_t n_retry; /* retries of the last message; each samples with another choice index */
    bool seed_said, output_failed;
};

/* Sets o->reserved_bytes so that the engine leaves memory of its budget to the DSI workers. */
static int prepare_dsi(const struct run *r, const struct eng_dsi_options *dsi, struct eng_options *o)
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
    o->reserved_bytes = eng_dsi_bytes(e, dsi);
    eng_close(e);
    if (!r->config->n_draft)
        kn_say(KN_LOG_WARN, "--dsi without --draft model:FILE: there is no drafter");
    return 0;
}

static int open_sampling(struct run *r)
{
    const struct eng_config *c = r->config;
    r->sampling = c->sampling;
    eng_model_sampling(&r->sampling, c->sampling_given, eng_file(r->engine));
    if (r->sampling.dry_multiplier == 0)
        return 0;
    int error = eng_breakers_make(&r->breakers, eng_vocab(r->engine), c->n_breaker < 0 ? NULL : c->breaker,
                                  c->n_breaker);
    if (error)
        return kn_fail(error, "--dry-sequence-breaker: %s: give fewer or shorter texts", kn_error_text(error));
    r->sampling.breaker = r->breakers.list;
    r->sampling.n_breaker = r->breakers.n;
    return 0;
}

static int open_run(struct run *r)
{
    const struct eng_config *c = r->config;
    struct eng_dsi_options dsi = { .n_target = c->n_dsi, .lookahead = c->n_ahead, .n_thread = c->n_thread };
    struct eng_progress *bar;
    struct eng_options o = eng_config_options(c);
    int error = c->n_dsi > 1 ? prepare_dsi(r, &dsi, &o) : 0;
    if (error || (error = eng_progress_open(&bar, "loading", c->quiet)))
        return error;
    o.progress = eng_progress_counter(bar);
    error = eng_open(&r->engine, &o);
    eng_progress_close(bar);
    if (error || (error = open_sampling(r)))
        return error;
    size_t room = eng_decoder_room(eng_vocab(r->engine));
    r->event = kn_calloc((size_t)eng_event_room(r->engine), sizeof *r->event);
    r->piece = kn_alloc(room);
    r->shown = kn_alloc(room + ENG_STOP_BYTES);
    if (!r->event || !r->piece || !r->shown)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    if (c->n_dsi > 1 && (error = eng_dsi_open(&r->dsi, r->engine, &dsi)))
        return error;
    return eng_session_open(&r->session, r->engine);
}

/* Checks the stop strings before the model is loaded. */
static int check_stops(const struct eng_config *c)
{
    struct eng_stop stop;
    return eng_stop_init(&stop, c->stop, c->n_stop);
}

static int check_stop_ids(const struct run *r)
{
    const struct eng_config *c = r->config;
    int n_vocab = eng_vocab_size(eng_vocab(r->engine));
    for (int i = 0; i < c->n_stop_id; i++)
        if (c->stop_id[i] >= n_vocab)
            return kn_fail(KN_EINVAL, "--stop-id %d; the vocabulary has 0 to %d", c->stop_id[i], n_vocab - 1);
    return 0;
}

static void close_run(struct run *r)
{
    eng_chat_close(r->chat);
    json_decref(r->messages);
    kn_free(r->said);
    eng_session_close(r->session);
    eng_dsi_close(r->dsi);
    eng_close(r->engine);
    eng_ids_free(&r->ids);
    eng_breakers_free(&r->breakers);
    kn_free(r->event);
    kn_free(r->piece);
    kn_free(r->shown);
}

/* Prints the seed, once, if it was chosen at random. */
static void say_seed(struct run *r)
{
    if (!r->seed_said && !r->config->seed_given)
        kn_say(KN_LOG_INFO, "seed %llu", (unsigned long long)r->config->sampling.seed);
    r->seed_said = true;
}

/* ---- one answer ------------------------------------------------------------------------------ */

struct timing {
    uint64_t start_ns, first_ns, end_ns;
    int n_prompt, n_token;
    struct off_stats store; /* store, engine: counters at the start */
    struct eng_stats engine;
};

/* Writes to stdout.  If stdout is closed, the command fails and stops; a write that Ctrl-C interrupts is no failure. */
static int put(struct run *r, const char *s, size_t n)
{
    while (n) {
        ssize_t done = write(STDOUT_FILENO, s, n);
        if (done < 0 && errno == EINTR && eng_terminal_stopped())
            return 0;
        if (done < 0 && errno == EAGAIN)
            (void)poll(&(struct pollfd){ .fd = STDOUT_FILENO, .events = POLLOUT }, 1, -1);
        else if (done < 0 && errno != EINTR) {
            r->output_failed = true;
            return kn_fail(KN_EIO, "standard output: cannot be written: %s", strerror(errno));
        }
        s += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

/* Writes n bytes of r->shown to stdout and appends them to r->said, which the next turn's prompt contains. */
static int say(struct run *r, size_t n)
{
    int error = put(r, r->shown, n);
    if (error || n == 0)
        return error;
    if (n > r->said_room - r->n_said) {
        size_t room = 2 * (r->n_said + n);
        char *grown = kn_realloc(r->said, r->said_room, room);
        if (!grown)
            return kn_fail(KN_ENOMEM, "no memory for %zu bytes of an answer", room);
        r->said = grown;
        r->said_room = room;
    }
    memcpy(r->said + r->n_said, r->shown, n);
    r->n_said += n;
    return 0;
}

static int show(struct run *r, struct eng_stop *stop, const char *bytes, size_t n)
{
    return say(r, eng_stop_feed(stop, bytes, n, r->shown));
}

/* State of the answer that is being generated. */
struct telling {
    struct eng_decoder decoder;
    struct eng_stop stop;
    struct timing *t;
    bool ended;
};

/* True for the model's end tokens (unless --ignore-eos) and for the tokens of --stop-id. */
static bool ends_answer(const struct run *r, int32_t token)
{
    for (int i = 0; i < r->config->n_stop_id; i++)
        if (token == r->config->stop_id[i])
            return true;
    return eng_vocab_is_stop(eng_vocab(r->engine), token) && !r->config->ignore_eos;
}

static bool goes_on(const struct telling *a) { return !a->stop.hit && !a->ended && !eng_terminal_stopped(); }

static int tell(struct run *r, struct telling *a, int32_t token)
{
    a->t->n_token++;
    if (!a->t->first_ns)
        a->t->first_ns = kn_now_ns();
    int error = eng_ids_push(&r->ids, token);
    if (error || (a->ended = ends_answer(r, token)))
        return error; /* the end token is not part of the answer */
    return show(r, &a->stop, r->piece, eng_decoder_feed(&a->decoder, token, r->piece));
}

static int run_steps(struct run *r, const struct eng_request *request, struct telling *a)
{
    int error = eng_session_start(r->session, request);
    if (!error)
        say_seed(r);
    a->t->n_prompt = request->n_token;
    while (!error && eng_session_runs(r->session) && goes_on(a)) {
        int n = eng_step(r->engine, r->event);
        error = n < 0 ? n : 0;
        for (int k = 0; k < n && !error && !a->stop.hit && !a->ended; k++)
            if (r->event[k].finish == ENG_FAILED)
                error = r->event[k].status;
            else if (r->event[k].token != ENG_NO_TOKEN) /* else the step only computed prompt rows */
                error = tell(r, a, r->event[k].token);
    }
    a->t->n_prompt -= eng_session_cached(r->session);
    eng_session_stop(r->session);
    return error;
}

static int run_dsi(struct run *r, const struct eng_request *request, struct telling *a)
{
    int32_t token[16];
    int n, error = eng_dsi_begin(r->dsi, request);
    if (!error)
        say_seed(r);
    a->t->n_prompt = request->n_token;
    while (!error && goes_on(a) && (n = eng_dsi_wait(r->dsi, token, 16)) != 0) {
        error = n < 0 ? n : 0;
        for (int k = 0; k < n && !error && !a->stop.hit && !a->ended; k++)
            error = tell(r, a, token[k]);
    }
    return error;
}

/* Generates an answer to the prompt r->ids, and appends its tokens to r->ids. */
static int answer(struct run *r, struct timing *t)
{
    const struct eng_config *c = r->config;
    struct telling a = { .t = t };
    struct eng_request request = { .token = r->ids.id,
                                   .n_token = (int)r->ids.n,
                                   .n_predict = c->n_predict,
                                   .ignore_eos = c->ignore_eos,
                                   .sampling = r->sampling };
    request.sampling.choice += r->n_retry;
    if (r->ids.n > INT32_MAX)
        return kn_fail(KN_ELIMIT, "the prompt has %zu tokens", r->ids.n);
    r->n_said = 0;
    int error = eng_stop_init(&a.stop, c->stop, c->n_stop);
    if (error)
        return error;
    eng_decoder_init(&a.decoder, eng_vocab(r->engine),
                     ENG_DECODE_CONTINUE | (c->special ? 0 : ENG_DECODE_SKIP_SPECIAL));
    *t = (struct timing){ .start_ns = kn_now_ns() };
    eng_stats_get(r->engine, &t->engine);
    if (moe_model_store(eng_model(r->engine)))
        off_stats_get(moe_model_store(eng_model(r->engine)), &t->store);
    if ((error = r->dsi ? run_dsi(r, &request, &a) : run_steps(r, &request, &a)))
        return error;
    error = show(r, &a.stop, r->piece, eng_decoder_finish(&a.decoder, r->piece));
    if (!error)
        error = say(r, eng_stop_finish(&a.stop, r->shown));
    t->end_ns = kn_now_ns();
    return error;
}

/* Prints expert cache statistics, if experts were read since the answer's start. */
static void report_experts(const struct run *r, const struct timing *t)
{
    struct off_store *store = moe_model_store(eng_model(r->engine));
    struct off_stats now;
    if (!store)
        return;
    off_stats_get(store, &now);
    double hits = (double)(now.hits - t->store.hits), misses = (double)(now.misses - t->store.misses);
    double bytes = (double)(now.read_bytes - t->store.read_bytes);
    if (misses > 0)
        kn_say(KN_LOG_INFO, "experts: hit rate %.0f %% of %.0f uses, %.1f MB read; slots for %d of %d experts",
               100 * hits / (hits + misses), hits + misses, bytes / 1e6, (int)now.n_slot, (int)now.n_expert);
    if (now.early_bytes > t->store.early_bytes)
        kn_say(KN_LOG_INFO, "experts prefetched: %.1f MB, used %.1f, evicted unused %.1f",
               (double)(now.early_bytes - t->store.early_bytes) / 1e6,
               (double)(now.early_used_bytes - t->store.early_used_bytes) / 1e6,
               (double)(now.early_wasted_bytes - t->store.early_wasted_bytes) / 1e6);
}

static void report_drafts(const struct run *r, const struct timing *t)
{
    struct eng_stats now;
    eng_stats_get(r->engine, &now);
    if (r->dsi) {
        struct eng_dsi_stats dsi;
        eng_dsi_stats(r->dsi, &dsi);
        kn_say(KN_LOG_INFO, "dsi: %d verifications, %d drafts of up to %d tokens, %d cancelled", (int)dsi.n_verify,
               (int)dsi.n_draft, dsi.lookahead, (int)dsi.n_cancelled);
    }
    if (now.overlap_ns > t->engine.overlap_ns)
        kn_say(KN_LOG_INFO, "overlap: %.1f ms of drafting while passes ran, passes waited %.1f ms for drafts",
               (double)(now.overlap_ns - t->engine.overlap_ns) * 1e-6,
               (double)(now.overlap_wait_ns - t->engine.overlap_wait_ns) * 1e-6);
    if (now.n_draft > t->engine.n_draft)
        kn_say(KN_LOG_INFO, "drafts: %d of %d tokens accepted, %.2f tokens a pass",
               (int)(now.n_draft_kept - t->engine.n_draft_kept), (int)(now.n_draft - t->engine.n_draft),
               (double)(now.n_token - t->engine.n_token) / (double)(now.n_pass - t->engine.n_pass));
}

static void report(const struct run *r, const struct timing *t)
{
    if (r->config->quiet || !t->first_ns)
        return;
    double prompt_s = (double)(t->first_ns - t->start_ns) / 1e9;
    double rest_s = (double)(t->end_ns - t->first_ns) / 1e9;
    kn_say(KN_LOG_INFO, "prompt %d tokens, %.1f tokens/s; answer %d tokens, %.1f tokens/s", t->n_prompt,
           prompt_s > 0 ? t->n_prompt / prompt_s : 0, t->n_token, rest_s > 0 ? (t->n_token - 1) / rest_s : 0);
    report_drafts(r, t);
    report_experts(r, t);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

static int prompt_text(const struct eng_config *c, char **text, size_t *n)
{
    if (c->prompt) {
        *n = strlen(c->prompt);
        return (*text = kn_strdup(c->prompt)) ? 0 : kn_fail(KN_ENOMEM, "no memory for the prompt");
    }
    return c->input ? eng_read_file(c->input, text, n) : eng_read_all(STDIN_FILENO, "stdin", text, n);
}

static int run_prompt(struct run *r, const char *text, size_t n)
{
    struct timing t;
    int error = eng_tokenize(eng_vocab(r->engine), text, n,
                             ENG_TEXT_ADD_BOS | (r->config->special ? ENG_TEXT_PARSE_SPECIAL : 0), &r->ids);
    if (!error && r->ids.n == 0)
        error = kn_fail(KN_EINVAL, "the prompt is empty");
    if (error || (error = answer(r, &t)))
        return error;
    putchar('\n');
    report(r, &t);
    return 0;
}

/* ---- a chat ---------------------------------------------------------------------------------- */

static void print_info(const struct run *r)
{
    const struct moe_shape *s = moe_model_shape(eng_model(r->engine));
    fprintf(stderr, "%s, %d layers, d_model %d, %d experts of which %d are used; %zu of %d tokens\n", s->arch,
            s->n_layer, s->d_model, s->n_expert, s->n_used, r->ids.n, eng_n_ctx(r->engine));
}

static int add_message(struct run *r, const char *role, const char *text, size_t n)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", json_stringn_nocheck(text, n));
    return m && !json_array_append_new(r->messages, m) ? 0 : kn_fail(KN_ENOMEM, "no memory for a message");
}

/* Sets r->ids to the prompt of all messages.  Tokens whose KV is cached from earlier turns are not
 * computed again. */
static int prompt_of_chat(struct run *r)
{
    struct eng_template_error e = { 0 };
    json_t *request = json_pack("{s:O, s:b}", "messages", r->messages, "add_generation_prompt", 1);
    r->ids.n = 0;
    int error = request ? eng_chat_tokens(r->chat, request, &r->ids, &e)
                        : kn_fail(KN_ENOMEM, "no memory for the prompt");
    if (error && request)
        kn_fail(error, "the chat template, line %d: %s", e.line, e.text);
    json_decref(request);
    return error;
}

/* Answers the messages and adds the answer to them.  On failure the last message, the user's, is removed. */
static int take_turn(struct run *r)
{
    struct timing t;
    int error = prompt_of_chat(r);
    if (!error)
        error = answer(r, &t);
    if (!error) {
        putchar('\n');
        fflush(stdout); /* before the input prompt, also on a pipe */
        report(r, &t);
        error = add_message(r, "assistant", r->said, r->n_said);
    }
    if (error)
        json_array_remove(r->messages, json_array_size(r->messages) - 1);
    return error;
}

static int run_chat(struct run *r)
{
    struct eng_terminal *terminal;
    enum eng_input kind;
    const char *text;
    int error = eng_chat_open(&r->chat, eng_file(r->engine), eng_vocab(r->engine), r->config->model);
    if (error || (error = eng_terminal_open(&terminal)))
        return error;
    if (!(r->messages = json_array()))
        error = kn_fail(KN_ENOMEM, "no memory for messages");
    say_seed(r);
    if (eng_terminal_is_tty(terminal))
        fputs("/help lists the commands\n", stderr);
    while (!error && (error = eng_terminal_read(terminal, &kind, &text)) == 0 && kind != ENG_INPUT_QUIT) {
        size_t n = json_array_size(r->messages);
        if (kind == ENG_INPUT_HELP)
            fputs(eng_terminal_help, stderr);
        else if (kind == ENG_INPUT_INFO)
            print_info(r);
        else if (kind == ENG_INPUT_CLEAR)
            json_array_clear(r->messages);
        if (kind == ENG_INPUT_TEXT) {
            r->n_retry = 0;
            error = add_message(r, "user", text, strlen(text));
        } else if (kind == ENG_INPUT_RETRY && n) {
            r->n_retry++;
            json_array_remove(r->messages, n - 1);
        } else {
            continue;
        }
        if (!error && take_turn(r) && r->ids.n >= (size_t)eng_n_ctx(r->engine))
            fputs("/clear begins a new conversation\n", stderr); /* error is already printed; go on */
    }
    eng_terminal_close(terminal);
    return error;
}

int eng_cmd_run(const struct eng_config *config)
{
    struct run r = { .config = config };
    bool chat = !config->prompt && !config->input && isatty(STDIN_FILENO);
    char *text = NULL;
    size_t n = 0;
    int error = check_stops(config);
    if (!error && !chat) /* before loading the model, which may take minutes */
        error = prompt_text(config, &text, &n);
    if (!error && !(error = open_run(&r)) && !(error = check_stop_ids(&r)))
        error = chat ? run_chat(&r) : run_prompt(&r, text, n);
    close_run(&r);
    kn_free(text);
    return !error ? 0 : r.output_failed ? 1 : 2;
}
