/* engine/cli/run_answer.c - one answer of spillway run: tokens of the engine to printed text, and its statistics.
 *
 * With a chat template the text passes the same parser as in the server: reasoning is printed apart and is no part of
 * the answer; a tool call is printed as NAME {ARGUMENTS}.  Stop strings are searched in the answer only. */
#include "engine/cli/run.h"

#include <unistd.h>

void eng_run_say_seed(struct eng_run *r)
{
    if (!r->seed_said && !r->config->seed_given)
        kn_say(KN_LOG_INFO, "seed %llu", (unsigned long long)r->config->sampling.seed);
    r->seed_said = true;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* State of the answer that is being generated. */
struct telling {
    struct eng_decoder decoder;
    struct eng_stop stop;
    struct eng_answer_parser *parser; /* NULL: all text is the answer */
    struct eng_timing *t;
    bool reasons, ended; /* reasons: the last text was reasoning; ended: by a token */
};

/* Prints n bytes of the answer and keeps them for the conversation. */
static int say(struct eng_run *r, const char *text, size_t n)
{
    eng_bytes_add(&r->said, text, n);
    if (r->said.failed)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    int error = eng_printer_add(r->printer, ENG_INK_ANSWER, text, n);
    r->output_failed |= error == KN_EIO;
    return error;
}

/* Prints the part of the text that belongs to no stop string. */
static int show(struct eng_run *r, struct telling *a, const char *text, size_t n)
{
    r->shown.n = 0;
    char *out = eng_bytes_room(&r->shown, n + ENG_STOP_BYTES);
    if (!out)
        return kn_fail(KN_ENOMEM, "no memory for the answer");
    return say(r, out, eng_stop_feed(&a->stop, text, n, out));
}

/* Prints the text that was held back as the possible beginning of a stop string. */
static int show_held(struct eng_run *r, struct telling *a)
{
    char held[ENG_STOP_BYTES];
    return say(r, held, eng_stop_finish(&a->stop, held));
}

static int take_event(struct eng_run *r, struct telling *a, const struct eng_answer_event *e)
{
    bool on_new_line = r->said.n == 0 || r->said.data[r->said.n - 1] == '\n';
    int error = 0;
    if (a->stop.hit)
        return 0;
    a->reasons = e->kind == ENG_ANSWER_REASONING;
    if (e->kind == ENG_ANSWER_CONTENT)
        return show(r, a, e->text, e->n);
    if ((error = show_held(r, a)))
        return error;
    if (e->kind == ENG_ANSWER_REASONING) {
        error = eng_printer_add(r->printer, ENG_INK_REASONING, e->text, e->n);
        r->output_failed |= error == KN_EIO;
    } else if (e->kind == ENG_ANSWER_CALL) {
        if (!(error = on_new_line ? 0 : say(r, "\n", 1)) && !(error = say(r, e->text, e->n)))
            error = say(r, " ", 1);
    } else if (e->kind == ENG_ANSWER_ARGUMENTS) {
        error = say(r, e->text, e->n);
    } else {
        error = say(r, "\n", 1);
    }
    return error;
}

static int take_events(struct eng_run *r, struct telling *a, int error)
{
    struct eng_answer_event e;
    if (error)
        return kn_fail(error, "no memory for the answer");
    while (!error && eng_answer_next(a->parser, &e))
        error = take_event(r, a, &e);
    return error;
}

static int take_text(struct eng_run *r, struct telling *a, size_t n)
{
    if (n == 0)
        return 0;
    return a->parser ? take_events(r, a, eng_answer_feed(a->parser, r->piece, n)) : show(r, a, r->piece, n);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* True for the model's end tokens (unless --ignore-eos) and for the tokens of --stop-id. */
static bool ends_answer(const struct eng_run *r, int32_t token)
{
    for (int i = 0; i < r->config->n_stop_id; i++)
        if (token == r->config->stop_id[i])
            return true;
    return eng_vocab_is_stop(eng_vocab(r->engine), token) && !r->config->ignore_eos;
}

static bool goes_on(const struct telling *a) { return !a->stop.hit && !a->ended && !eng_terminal_stopped(); }

static int tell(struct eng_run *r, struct telling *a, int32_t token)
{
    a->t->n_token++;
    if (!a->t->first_ns)
        a->t->first_ns = kn_now_ns();
    int error = eng_ids_push(&r->ids, token);
    if (error)
        return error;
    if ((a->ended = ends_answer(r, token))) { /* the end token is not part of the answer */
        a->t->ended_at_once = a->t->n_token == 1;
        return 0;
    }
    error = take_text(r, a, eng_decoder_feed(&a->decoder, token, r->piece));
    if (!error && a->parser && eng_vocab_type(eng_vocab(r->engine), token) == ENG_TOKEN_CONTROL)
        error = take_events(r, a, eng_answer_control(a->parser, token));
    a->t->n_reasoning += a->reasons;
    return error;
}

static int run_steps(struct eng_run *r, const struct eng_request *request, struct telling *a)
{
    int error = eng_session_start(r->session, request);
    if (!error)
        eng_run_say_seed(r);
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

static int run_dsi(struct eng_run *r, const struct eng_request *request, struct telling *a)
{
    int32_t token[16];
    int n, error = eng_dsi_begin(r->dsi, request);
    if (!error)
        eng_run_say_seed(r);
    a->t->n_prompt = request->n_token;
    while (!error && goes_on(a) && (n = eng_dsi_wait(r->dsi, token, 16)) != 0) {
        error = n < 0 ? n : 0;
        for (int k = 0; k < n && !error && !a->stop.hit && !a->ended; k++)
            error = tell(r, a, token[k]);
    }
    return error;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int open_telling(struct eng_run *r, struct telling *a)
{
    const struct eng_config *c = r->config;
    const struct eng_vocab *v = eng_vocab(r->engine);
    int error = eng_stop_init(&a->stop, c->stop, c->n_stop);
    eng_decoder_init(&a->decoder, v, ENG_DECODE_CONTINUE | (c->special ? 0 : ENG_DECODE_SKIP_SPECIAL));
    if (error || !r->chat)
        return error;
    json_t *tools = json_array(); /* no tool is offered, but a call is recognised */
    error = eng_answer_open(
        &a->parser, &(struct eng_answer_options){ .format = &r->format,
                                                  .tools = tools,
                                                  .thinks = eng_tool_format_tokens_think(&r->format, v, &r->ids) });
    json_decref(tools);
    return error ? kn_fail(error, "no memory for the answer") : 0;
}

/* Prints the text that the decoder, the parser and the stop strings have held back. */
static int finish_text(struct eng_run *r, struct telling *a)
{
    int error = take_text(r, a, eng_decoder_finish(&a->decoder, r->piece));
    if (!error && a->parser)
        error = take_events(r, a, eng_answer_finish(a->parser, !a->ended));
    return error ? error : show_held(r, a);
}

/* Sets the breakers of DRY, once it is on: at the start or by /set. */
static int set_breakers(struct eng_run *r)
{
    struct eng_config *c = r->config;
    if (c->sampling.dry_multiplier == 0 || c->sampling.breaker)
        return 0;
    int error = eng_breakers_make(&r->breakers, eng_vocab(r->engine), c->n_breaker < 0 ? NULL : c->breaker,
                                  c->n_breaker);
    if (error)
        return kn_fail(error, "--dry-sequence-breaker: %s: give fewer or shorter texts", kn_error_text(error));
    c->sampling.breaker = r->breakers.list;
    c->sampling.n_breaker = r->breakers.n;
    return 0;
}

int eng_run_answer(struct eng_run *r, uint32_t choice, struct eng_timing *t)
{
    const struct eng_config *c = r->config;
    struct telling a = { .t = t };
    int error = set_breakers(r);
    if (error)
        return error;
    struct eng_request request = { .token = r->ids.id,
                                   .n_token = (int)r->ids.n,
                                   .n_predict = c->n_predict,
                                   .ignore_eos = c->ignore_eos,
                                   .sampling = c->sampling };
    request.sampling.choice += choice;
    if (r->ids.n > INT32_MAX)
        return kn_fail(KN_ELIMIT, "the prompt has %zu tokens", r->ids.n);
    r->said.n = 0;
    error = open_telling(r, &a);
    *t = (struct eng_timing){ .start_ns = kn_now_ns() };
    eng_stats_get(r->engine, &t->engine);
    if (moe_model_store(eng_model(r->engine)))
        off_stats_get(moe_model_store(eng_model(r->engine)), &t->store);
    if (!error)
        error = r->dsi ? run_dsi(r, &request, &a) : run_steps(r, &request, &a);
    if (!error)
        error = finish_text(r, &a);
    if (!r->output_failed && (!error || isatty(STDOUT_FILENO))) { /* a file gets no line end after a failure */
        int ended = eng_printer_end(r->printer);
        r->output_failed = ended == KN_EIO;
        error = error ? error : ended;
    }
    t->end_ns = kn_now_ns();
    t->context_full = !error && goes_on(&a) && r->ids.n >= (size_t)eng_n_ctx(r->engine) &&
                      (c->n_predict < 0 || t->n_token < c->n_predict);
    eng_answer_close(a.parser);
    return error;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Prints expert cache statistics, if experts were read since the answer's start. */
static void report_experts(const struct eng_run *r, const struct eng_timing *t)
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

/* Prints where experts were computed, if the model runs on a device with memory of its own. */
static void report_device(const struct eng_run *r, const struct eng_timing *t)
{
    struct eng_stats stats;
    eng_stats_get(r->engine, &stats);
    const struct moe_device_stats *now = &stats.device, *then = &t->engine.device;
    double kept = (double)(now->n_used - then->n_used), passed = (double)(now->n_passed - then->n_passed);
    double host = (double)(now->n_host - then->n_host), all = kept + passed + host;
    if (all > 0)
        kn_say(
            KN_LOG_INFO,
            "experts computed on the device: %.0f %% kept there, %.0f %% after a copy; on the host: %.0f %%; %.1f MB "
            "copied",
            100 * kept / all, 100 * passed / all, 100 * host / all,
            (double)(now->copied_bytes - then->copied_bytes) / 1e6);
}

static void report_drafts(const struct eng_run *r, const struct eng_timing *t)
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

void eng_run_report(const struct eng_run *r, const struct eng_timing *t)
{
    if (t->context_full)
        kn_say(KN_LOG_WARN, "the context of %d tokens is full: the answer is cut (-c N sets the context)",
               eng_n_ctx(r->engine));
    if (r->config->quiet || !t->first_ns)
        return;
    if (t->ended_at_once)
        kn_say(KN_LOG_INFO, "the model ended its answer at once");
    double prompt_s = (double)(t->first_ns - t->start_ns) / 1e9;
    double rest_s = (double)(t->end_ns - t->first_ns) / 1e9;
    kn_say(KN_LOG_INFO, "prompt %d token%s, %.1f tokens/s; answer %d token%s, %.1f tokens/s", t->n_prompt,
           t->n_prompt == 1 ? "" : "s", prompt_s > 0 ? t->n_prompt / prompt_s : 0, t->n_token,
           t->n_token == 1 ? "" : "s", rest_s > 0 ? (t->n_token - 1) / rest_s : 0);
    if (t->n_reasoning)
        kn_say(KN_LOG_INFO, "%d of the answer's tokens are reasoning", t->n_reasoning);
    report_drafts(r, t);
    report_experts(r, t);
    report_device(r, t);
}
