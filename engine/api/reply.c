/* engine/api/reply.c - turns tokens into parts of an answer, and passes the parts to the writer of the request's
 * dialect.
 *
 * Stop strings are searched in the content only, not in the reasoning and not in the arguments of
 * calls.  Logprobs are reported for tokens of the content only.  A token is known to belong to the
 * content when the answer parser (tools.h) gives its text as content. */
#include "engine/api/dialect.h"

#include <string.h>

#define MOST_EQUAL_CALLS 3 /* with the same name and the same arguments in an answer: it ends with the last of them */

/* ---- logprobs -------------------------------------------------------------------------------- */

static void add_entry(struct eng_reply *r, struct eng_choice *c, const struct eng_event *t)
{
    size_t n_top = (size_t)r->ask->n_top, i = (size_t)c->n_entry;
    if (c->n_entry == c->entry_cap) {
        size_t old = (size_t)c->entry_cap, cap = old ? 2 * old : 32;
        struct eng_entry *entry = kn_realloc(c->entry, old * sizeof *entry, cap * sizeof *entry);
        if (entry)
            c->entry = entry;
        struct spec_top *top = !n_top ? NULL : kn_realloc(c->top, old * n_top * sizeof *top, cap * n_top * sizeof *top);
        if (top)
            c->top = top;
        if (!entry || (n_top && !top)) {
            r->out.failed = true;
            return;
        }
        c->entry_cap = (int)cap;
    }
    c->entry[i] = (struct eng_entry){ .token = t->token, .logprob = t->logprob };
    for (size_t k = 0; k < n_top; k++)
        c->top[i * n_top + k] = (int)k < t->n_top ? t->top[k] : (struct spec_top){ ENG_NO_TOKEN, 0 };
    c->n_entry++;
}

static void add_given(struct eng_reply *r, struct eng_choice *c, const struct eng_event *t)
{
    size_t n = r->ask->prompt[c->index / r->ask->n_each].n;
    if (!c->given) {
        c->given = kn_calloc(n, sizeof *c->given);
        c->n_given = 1;
    }
    if (!c->given) {
        r->out.failed = true;
        return;
    }
    kn_assert((size_t)c->n_given < n);
    struct eng_prompt_token *g = &c->given[c->n_given++];
    *g = (struct eng_prompt_token){ .logprob = t->logprob, .rank = t->rank, .n_top = t->n_top };
    for (int k = 0; k < t->n_top; k++)
        g->top[k] = t->top[k];
}

/* Removes entries [from, to), which were passed to the dialect or are not content. */
static void remove_entries(struct eng_reply *r, struct eng_choice *c, int from, int to)
{
    size_t left = (size_t)(c->n_entry - to), n_top = (size_t)r->ask->n_top;
    if (from == to)
        return;
    memmove(c->entry + from, c->entry + to, left * sizeof *c->entry);
    if (n_top)
        memmove(c->top + (size_t)from * n_top, c->top + (size_t)to * n_top, left * n_top * sizeof *c->top);
    c->n_entry -= to - from;
}

/* True if the concatenated texts of the entries from `first` on begin with text[n]. */
static bool stands_at(const struct eng_reply *r, const struct eng_choice *c, int first, const char *text, size_t n)
{
    size_t at = 0;
    for (int i = first; i < c->n_entry && at < n; i++) {
        struct moe_string s = eng_vocab_text(r->setup->vocab, c->entry[i].token);
        if (memcmp(text + at, s.data, s.n < n - at ? s.n : n - at) != 0)
            return false;
        at += s.n;
    }
    return at >= n;
}

/* Called when the answer parser gives text[n] as content.  Finds the pending entries that text consists of and counts
 * them in n_sure.  The entries before them are the tokens of a marker, at most MARK, and are removed.  If text is not
 * found, because its tokens are not valid UTF-8, no entry is removed. */
static void settle_entries(struct eng_reply *r, struct eng_choice *c, const char *text, size_t n)
{
    enum { MARK = 64 };
    int first = c->n_sure, last = kn_min(c->n_entry, first + MARK);
    size_t at = 0, at_char = c->n_text_char, seen = 0;
    while (first < last && !stands_at(r, c, first, text, n))
        first++;
    if (first < last)
        remove_entries(r, c, c->n_sure, first);
    for (; c->n_sure < c->n_entry && at < n; c->n_sure++) {
        struct eng_entry *e = &c->entry[c->n_sure];
        for (; seen <= at; seen++) /* counts the bytes that begin a character, except text[0] */
            at_char += seen > 0 && ((uint8_t)text[seen] & 0xC0) != 0x80;
        e->at = c->n_text + at;
        e->at_char = at_char;
        at += eng_vocab_text(r->setup->vocab, e->token).n;
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

static struct eng_part *open_part(const struct eng_choice *c) { return c->is_open ? &c->part[c->n_part - 1] : NULL; }

static void close_part(struct eng_reply *r, struct eng_choice *c)
{
    struct eng_part *p = open_part(c);
    if (!p)
        return;
    if (r->ask->stream)
        r->dialect->part_end(r, c, p);
    c->is_open = false;
}

/* Writes a call's id: nine letters and digits, from a hash of the answer's id, the choice and the number of the call,
 * so that the ids in a conversation are distinct. */
static void name_call(char *id, const struct eng_reply *r, const struct eng_choice *c)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    uint64_t x = eng_hash(0, r->ask->id, strlen(r->ask->id));
    x = kn_mix(x + (uint64_t)c->index * UINT64_C(1000003) + (uint64_t)c->n_call);
    for (int i = 0; i < ENG_CALL_ID - 1; i++, x /= 62)
        id[i] = letters[x % 62];
    id[ENG_CALL_ID - 1] = 0;
}

static struct eng_part *begin_part(struct eng_reply *r, struct eng_choice *c, enum eng_part_kind kind, const char *name,
                                   size_t n)
{
    close_part(r, c);
    if (c->n_part == c->part_cap) {
        size_t old = (size_t)c->part_cap, cap = old ? 2 * old : 4;
        struct eng_part *grown = kn_realloc(c->part, old * sizeof *grown, cap * sizeof *grown);
        if (!grown) {
            r->out.failed = true;
            return NULL;
        }
        c->part = grown;
        c->part_cap = (int)cap;
    }
    struct eng_part *p = &c->part[c->n_part++];
    *p = (struct eng_part){ .kind = kind, .call = c->n_call, .first_entry = c->n_told };
    eng_bytes_add(&p->name, name, n);
    p->hash = eng_hash(n, name, n);
    r->out.failed |= p->name.failed;
    if (kind == ENG_PART_CALL) {
        name_call(p->id, r, c);
        c->n_call++;
    }
    c->is_open = true;
    if (r->ask->stream)
        r->dialect->part_begin(r, c, p);
    return p;
}

static void add_to_part(struct eng_reply *r, struct eng_choice *c, enum eng_part_kind kind, const char *text, size_t n)
{
    struct eng_part *p = open_part(c);
    int first = c->n_told;
    if (!n)
        return;
    if ((!p || p->kind != kind) && !(p = begin_part(r, c, kind, "", 0)))
        return;
    if (kind == ENG_PART_TEXT)
        while (c->n_told < c->n_sure && c->entry[c->n_told].at < c->n_shown)
            c->n_told++;
    if (kind == ENG_PART_CALL)
        p->hash = eng_hash(p->hash, text, n);
    if (r->keeps)
        eng_bytes_add(&p->text, text, n);
    r->out.failed |= p->text.failed;
    if (r->ask->stream)
        r->dialect->part_more(r, c, p, text, n, first);
    if (!r->keeps) {
        remove_entries(r, c, 0, c->n_told);
        c->n_sure -= c->n_told;
        c->n_told = 0;
    }
}

/* ---- events of the answer parser ------------------------------------------------------------- */

/* Adds the n bytes in r->shown to the choice's text; they belong to no stop string. */
static void show(struct eng_reply *r, struct eng_choice *c, size_t n)
{
    c->n_shown += n;
    add_to_part(r, c, ENG_PART_TEXT, r->shown.data, n);
}

static void take_content(struct eng_reply *r, struct eng_choice *c, const char *text, size_t n)
{
    r->shown.n = 0;
    char *out = eng_bytes_room(&r->shown, n + ENG_STOP_BYTES);
    if (!out) {
        r->out.failed = true;
        return;
    }
    settle_entries(r, c, text, n);
    c->n_text += n;
    for (size_t i = 0; i < n; i++)
        c->n_text_char += ((uint8_t)text[i] & 0xC0) != 0x80;
    if (c->n_token < r->ask->min_tokens) { /* no stop string ends the answer yet */
        memcpy(out, text, n);
        show(r, c, n);
        return;
    }
    size_t n_out = eng_stop_feed(&c->stop, text, n, out);
    if (c->stop.hit && r->ask->shows_stop) { /* held and new bytes had room for it */
        const char *stop = c->stop.text[c->stop.which];
        memcpy(out + n_out, stop, strlen(stop));
        n_out += strlen(stop);
    }
    show(r, c, n_out);
}

/* Called when content ends or a call or reasoning begins: adds the bytes that were held back as the possible beginning
 * of a stop string. */
static void flush_content(struct eng_reply *r, struct eng_choice *c)
{
    r->shown.n = 0;
    char *out = eng_bytes_room(&r->shown, ENG_STOP_BYTES);
    if (out)
        show(r, c, eng_stop_finish(&c->stop, out));
    else
        r->out.failed = true;
}

/* Ends the call.  A small model that must call a tool may write the same call for ever. */
static void end_call(struct eng_reply *r, struct eng_choice *c, bool is_whole)
{
    int n = 0;
    for (int i = 0; is_whole && i < c->n_part; i++)
        n += c->part[i].kind == ENG_PART_CALL && c->part[i].hash == c->part[c->n_part - 1].hash;
    c->repeats = n >= MOST_EQUAL_CALLS;
    close_part(r, c);
}

static void take_event(struct eng_reply *r, struct eng_choice *c, const struct eng_answer_event *e)
{
    if (c->stop.hit || c->repeats)
        return;
    if (e->kind == ENG_ANSWER_CONTENT) {
        take_content(r, c, e->text, e->n);
        return;
    }
    flush_content(r, c);
    c->n_entry = c->n_sure; /* the entries after the last content are not content */
    if (e->kind == ENG_ANSWER_REASONING)
        add_to_part(r, c, ENG_PART_THOUGHTS, e->text, e->n);
    else if (e->kind == ENG_ANSWER_CALL)
        begin_part(r, c, ENG_PART_CALL, e->text, e->n);
    else if (e->kind == ENG_ANSWER_ARGUMENTS)
        add_to_part(r, c, ENG_PART_CALL, e->text, e->n);
    else
        end_call(r, c, e->whole);
}

static void take_events(struct eng_reply *r, struct eng_choice *c, int error)
{
    struct eng_answer_event e;
    r->out.failed |= error != 0;
    while (!error && eng_answer_next(c->parser, &e))
        take_event(r, c, &e);
}

static void take_text(struct eng_reply *r, struct eng_choice *c, size_t n)
{
    if (c->parser && n)
        take_events(r, c, eng_answer_feed(c->parser, r->piece.data, n));
    else if (n)
        take_content(r, c, r->piece.data, n);
}

/* ---- a choice -------------------------------------------------------------------------------- */

static void take_token(struct eng_reply *r, struct eng_choice *c, const struct eng_event *t)
{
    const struct eng_vocab *v = r->setup->vocab;
    const enum eng_token_type type = eng_vocab_type(v, t->token);
    const bool control = type == ENG_TOKEN_CONTROL;
    char *out;
    r->piece.n = 0;
    if (!(out = eng_bytes_room(&r->piece, eng_decoder_room(v)))) {
        r->out.failed = true;
        return;
    }
    if (r->ask->logprobs)
        add_entry(r, c, t);
    if (!r->ask->shows_special && (control || type == ENG_TOKEN_UNKNOWN)) /* a character does not span such a token */
        take_text(r, c, eng_decoder_finish(&c->decoder, out));
    take_text(r, c, eng_decoder_feed(&c->decoder, t->token, out));
    if (c->parser && control)
        take_events(r, c, eng_answer_control(c->parser, t->token));
    if (open_part(c) && open_part(c)->kind == ENG_PART_THOUGHTS)
        c->n_thought++;
}

/* Ends a choice: adds the text that was held back, reports the end, and after the last choice ends the reply. */
static void end_choice(struct eng_reply *r, struct eng_choice *c, enum eng_end end)
{
    char *out;
    r->piece.n = 0;
    if (!c->stop.hit && (out = eng_bytes_room(&r->piece, eng_decoder_room(r->setup->vocab))))
        take_text(r, c, eng_decoder_finish(&c->decoder, out));
    if (!c->stop.hit && c->parser)
        take_events(r, c, eng_answer_finish(c->parser, end == ENG_END_LENGTH));
    if (!c->stop.hit)
        flush_content(r, c);
    close_part(r, c);
    c->end = c->stop.hit ? ENG_END_STRING : end == ENG_END_STOP && c->n_call ? ENG_END_CALLS : end;
    r->n_ended++;
    if (r->ask->stream)
        r->dialect->choice_end(r, c);
    if (r->n_ended < r->n_choice)
        return;
    if (r->ask->stream)
        r->dialect->end(r);
    else
        r->dialect->body(r);
    r->began = r->done = true;
}

static bool ends_answer(const struct eng_reply *r, const struct eng_event *t)
{
    if (t->finish == ENG_STOP)
        return true;
    for (int i = 0; i < r->ask->n_stop_token; i++)
        if (t->token == r->ask->stop_token[i])
            return true;
    return false;
}

static void fail_choice(struct eng_reply *r, const struct eng_event *t)
{
    struct eng_refusal why;
    eng_refuse(&why, t->status == KN_ENOMEM || t->status == KN_ELIMIT ? 503 : 500, NULL, NULL,
               "the answer could not be completed: %s", kn_error_text(t->status));
    eng_reply_fail(r, &why);
}

int eng_reply_feed(struct eng_reply *r, const struct eng_event *t)
{
    struct eng_choice *c = &r->choice[t->choice];
    c->n_cached = kn_max(c->n_cached, t->n_cached);
    if (r->done || c->end)
        return 1;
    if (t->finish == ENG_FAILED) {
        c->end = ENG_END_FAILED;
        fail_choice(r, t);
        return 1;
    }
    if (t->of_prompt) {
        add_given(r, c, t);
        return r->out.failed ? KN_ENOMEM : 0;
    }
    if (r->ask->stream)
        eng_reply_begin(r);
    if (!r->first_ns)
        r->first_ns = kn_now_ns();
    c->n_token += t->token != ENG_NO_TOKEN;
    if (t->token != ENG_NO_TOKEN && c->copy.n)
        spec_copy_add(&c->copy, t->token);
    bool ends = ends_answer(r, t); /* the token that ends an answer is not part of it */
    if (t->token != ENG_NO_TOKEN && !ends)
        take_token(r, c, t);
    if (ends || c->stop.hit || c->repeats)
        end_choice(r, c, ENG_END_STOP);
    else if (t->finish == ENG_LENGTH)
        end_choice(r, c, ENG_END_LENGTH);
    if (r->out.failed)
        return KN_ENOMEM;
    r->n_whole = r->out.n;
    return c->end != ENG_END_NONE;
}

/* ---- the reply ------------------------------------------------------------------------------- */

static const struct eng_dialect *const dialects[] = {
    [ENG_API_COMPLETIONS] = &eng_dialect_completions,
    [ENG_API_CHAT] = &eng_dialect_chat,
    [ENG_API_RESPONSES] = &eng_dialect_responses,
    [ENG_API_MESSAGES] = &eng_dialect_messages,
    [ENG_API_LLAMA] = &eng_dialect_llama,
    [ENG_API_OLLAMA_CHAT] = &eng_dialect_ollama,
    [ENG_API_OLLAMA_GENERATE] = &eng_dialect_ollama,
};

static void write_head(struct eng_bytes *out, const struct eng_api_request *ask, const char *fingerprint)
{
    eng_bytes_text(out, "\"id\":");
    eng_bytes_quote(out, ask->id, strlen(ask->id));
    eng_bytes_format(out, ",\"created\":%lld,\"model\":", (long long)ask->created_s);
    eng_bytes_quote(out, ask->model, strlen(ask->model));
    eng_bytes_text(out, ",\"system_fingerprint\":");
    if (fingerprint)
        eng_bytes_quote(out, fingerprint, strlen(fingerprint));
    else
        eng_bytes_text(out, "null");
}

static int open_choice(struct eng_reply *r, int i)
{
    struct eng_choice *c = &r->choice[i];
    c->index = i;
    spec_copy_start(&c->copy, r->ask->prediction.id, (int)r->ask->prediction.n);
    eng_decoder_init(&c->decoder, r->setup->vocab,
                     ENG_DECODE_CONTINUE | (r->ask->shows_special ? 0 : ENG_DECODE_SKIP_SPECIAL));
    int error = eng_stop_init(&c->stop, r->ask->stop, r->ask->n_stop);
    if (error || r->ask->api == ENG_API_COMPLETIONS || !r->setup->tool_format)
        return error;
    return eng_answer_open(&c->parser, &(struct eng_answer_options){ .format = r->setup->tool_format,
                                                                     .tools = r->ask->tools,
                                                                     .thinks = r->ask->thinks,
                                                                     .continues = r->ask->continues,
                                                                     .in_text = r->ask->in_text });
}

int eng_reply_open(struct eng_reply **out, const struct eng_api_request *ask, const struct eng_api_setup *setup)
{
    struct eng_reply *r = kn_calloc(1, sizeof *r);
    int error = 0;
    if (!r)
        return kn_fail(KN_ENOMEM, "no memory for an answer");
    r->ask = ask;
    r->setup = setup;
    r->dialect = dialects[ask->form];
    r->opened_ns = kn_now_ns();
    r->status = 200;
    r->keeps = !ask->stream || ask->form == ENG_API_RESPONSES || (r->dialect->whole_calls && ask->tools);
    r->choice = kn_calloc((size_t)eng_api_request_choices(ask), sizeof *r->choice);
    write_head(&r->head, ask, setup->fingerprint);
    if (!r->choice || r->head.failed)
        error = kn_fail(KN_ENOMEM, "no memory for an answer");
    for (; !error && r->n_choice < eng_api_request_choices(ask); r->n_choice++)
        error = open_choice(r, r->n_choice);
    if (error) {
        eng_reply_close(r);
        return error;
    }
    *out = r;
    return 0;
}

static void close_choice(struct eng_choice *c)
{
    for (int i = 0; i < c->n_part; i++) {
        eng_bytes_free(&c->part[i].name);
        eng_bytes_free(&c->part[i].text);
    }
    kn_free(c->part);
    kn_free(c->entry);
    kn_free(c->top);
    kn_free(c->given);
    eng_answer_close(c->parser);
}

void eng_reply_close(struct eng_reply *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_choice; i++)
        close_choice(&r->choice[i]);
    kn_free(r->choice);
    eng_bytes_free(&r->out);
    eng_bytes_free(&r->taken);
    eng_bytes_free(&r->head);
    eng_bytes_free(&r->piece);
    eng_bytes_free(&r->shown);
    kn_free(r);
}

void eng_reply_begin(struct eng_reply *r)
{
    if (r->began || !r->ask->stream)
        return;
    r->began = true;
    r->dialect->begin(r);
    if (!r->out.failed)
        r->n_whole = r->out.n;
}

void eng_reply_fail(struct eng_reply *r, const struct eng_refusal *why)
{
    if (r->done && !r->out.failed)
        return;
    if (r->out.failed) { /* removes the events that were not written whole, or the body */
        r->out.n = r->n_whole;
        r->out.failed = false;
        r->began = r->began && r->ask->stream;
    }
    if (r->began) {
        r->dialect->error(r, why);
    } else {
        r->status = why->status;
        eng_refusal_write(&r->out, why, r->ask->form);
    }
    r->began = r->done = true;
}

bool eng_reply_began(const struct eng_reply *r) { return r->began; }
bool eng_reply_takes_comments(const struct eng_reply *r) { return r->ask->stream && !r->dialect->lines; }
bool eng_reply_done(const struct eng_reply *r) { return r->done; }
int eng_reply_status(const struct eng_reply *r) { return r->status; }

const char *eng_reply_type(const struct eng_reply *r)
{
    if (!r->ask->stream || r->status != 200)
        return "application/json";
    return r->dialect->lines ? "application/x-ndjson" : "text/event-stream";
}

const char *eng_reply_take(struct eng_reply *r, size_t *n)
{
    struct eng_bytes given = r->taken;
    r->taken = r->out;
    if (r->out.failed)
        r->taken.n = r->n_whole;
    r->n_whole = 0;
    r->out = (struct eng_bytes){ .data = given.data, .cap = given.cap, .failed = r->taken.failed };
    *n = r->taken.n;
    return r->taken.data;
}

int eng_reply_tokens(const struct eng_reply *r, int choice) { return r->choice[choice].n_token; }

const char *eng_reply_finish(const struct eng_reply *r, int choice)
{
    static const char *const names[] = { NULL, "stop", "stop", "length", "tool_calls", "error" };
    return names[r->choice[choice].end];
}

void eng_reply_count(struct eng_bytes *out, const struct eng_api_request *ask)
{
    eng_bytes_format(out, "{%s\"input_tokens\":%zu}",
                     ask->api == ENG_API_RESPONSES ? "\"object\":\"response.input_tokens\"," : "", ask->prompt[0].n);
}
