/* evals/chat/chat.c - conversations of users that come and go, without drafts and with them, in turns: CSV.
 *
 *     chat MODEL HOST_MEM_MIB 'DRAFT[+DRAFT].. ..' USERS[,USERS].. FILE [NAME=VALUE]..
 *
 * A line of FILE has a question and an answer.  A conversation begins with some of them as earlier turns, so that its first prompt
 * has a length between `shortest` and `longest` tokens, drawn evenly on a logarithmic scale.  Then its user asks `turns` questions
 * one after the other, and each prompt holds the model's own answers to the earlier ones.  Behind an answer the user reads: the
 * next question comes when other users have got `reading` tokens.  A user without more questions leaves, and another comes.  USERS
 * lists how many users are there, in turns of `phase` tokens: 16,4 is a busy time, a quiet one, a busy one and so on.
 *
 * DRAFT is as for --draft; drafts joined by + are merged, drafts with a space between them are compared.  A way to draft is none, or
 * drafts with the controller or with a fixed depth.  Each way has an engine of its own with the same budget, so the memory of a
 * drafter counts against it.  Each way goes through the same conversations, up to the next `piece` tokens of answers in turn; the
 * other ways stand still meanwhile.  So a piece is the same work under each way, seconds apart.  The prefix cache has a conversation's
 * own earlier turns only, or with shared=1 also the turns that all conversations begin with, as it has a backend's system prompt.
 * All ways must give the same answers, which is checked.  The first `warm` tokens only warm up.  Then pieces go on, until the
 * interval of each controller's ratio is below `interval`, or `pieces` or `seconds` have passed.
 *
 * A line is a piece under one way.  Passes without prompt tokens are counted apart, as decoding.  The lines at the end are the
 * ratios of speeds over "none": of all pieces together, with half of the 95 % interval (Student's, of the pieces' deviations). */
#include "engine/base/base.h"
#include "engine/cli/bench.h"
#include "engine/engine.h"
#include "engine/text/chat_prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_USER = 64,
    MOST_TALK = 4096,
    MOST_TURN = 8,
    MOST_PHASE = 16,
    MOST_WAY = 12,
    MOST_SET = 4,
    MOST_GAMMA = 4,
    MOST_PIECE = 1000,
    MOST_LINE = 8192
};

struct settings {
    const char *model, *file;
    struct eng_options engine;
    int users[MOST_PHASE], n_phase, most_users;
    char *drafts[MOST_SET]; /* as given */
    int n_set, gammas[MOST_GAMMA], n_gamma;
    int shortest, longest, turns, reading, answer, shared, phase, warm, piece, pieces, seconds;
    double temperature, interval;
};

struct line {
    const char *question, *answer;
};

struct talk { /* a conversation, in the seat of its user */
    json_t *messages;
    struct eng_session *session; /* NULL: the user reads */
    struct eng_ids prompt, answer;
    int number, turn;
    bool here;
    double due;     /* tokens of all users at which the next question comes */
    double asked_s; /* on the way's own clock */
};

struct tally {
    double seconds, answers, tokens, first_ms, prompt, cached, passes, drafted, kept;
    double decode_seconds, decode_tokens; /* of passes without prompt tokens */
};

struct way {
    const char *drafts; /* NULL: none */
    int gamma;          /* 0, ENG_GAMMA_AUTO or a depth */
    struct eng_engine *engine;
    struct eng_event *event;
    struct talk talk[MOST_USER];
    struct tally all, piece[MOST_PIECE]; /* all: from the start */
    int n_talk;                          /* conversations begun */
};

struct chat {
    struct settings set;
    struct way way[MOST_WAY]; /* the first: without drafts */
    int n_way;
    size_t heap_bytes; /* of the process, before the first engine was opened */
    struct eng_chat *template;
    struct line *line;
    int n_line;
    uint64_t said[MOST_TALK][MOST_TURN]; /* hashes of answers; 0: unknown */
};

/* ---- conversations --------------------------------------------------------------------------------- */

static int read_lines(struct chat *c)
{
    char *text, *rest;
    size_t n;
    int error = eng_read_file(c->set.file, &text, &n);
    c->line = kn_calloc(MOST_LINE, sizeof *c->line);
    if (error || !c->line)
        return error ? error : KN_ENOMEM;
    for (char *at = strtok_r(text, "\n", &rest); at && c->n_line < MOST_LINE; at = strtok_r(NULL, "\n", &rest)) {
        json_t *json = json_loads(at, 0, NULL); /* kept until the end: the texts are its own */
        struct line l = { json_string_value(json_object_get(json, "question")),
                          json_string_value(json_object_get(json, "answer")) };
        if (l.question && l.answer)
            c->line[c->n_line++] = l;
    }
    kn_free(text);
    return c->n_line >= 2 ? 0
                          : kn_fail(KN_EINVAL, "%s: fewer than two lines with a question and an answer", c->set.file);
}

static int add_message(json_t *messages, const char *role, const char *text)
{
    return json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", text)) ? KN_ENOMEM : 0;
}

static int render(const struct chat *c, json_t *messages, struct eng_ids *out)
{
    struct eng_template_error why;
    json_t *request = json_pack("{s:O,s:b}", "messages", messages, "add_generation_prompt", 1);
    out->n = 0;
    int error = eng_chat_tokens(c->template, request, out, &why);
    json_decref(request);
    return error;
}

static const struct line *pick(const struct chat *c, int talk, int which)
{
    return &c->line[kn_mix((uint64_t)talk * 1000 + (uint64_t)which) % (uint64_t)c->n_line];
}

/* Earlier turns until the prompt has the talk's length, then the first question. */
static int begin_talk(struct chat *c, struct talk *t, int number)
{
    const struct settings *s = &c->set;
    int history = s->shared ? 0 : number;
    double at = (double)(kn_mix((uint64_t)history + 9999) % 1000) / 999;
    size_t wanted = (size_t)(s->shortest * pow((double)s->longest / s->shortest, at));
    if (number >= MOST_TALK)
        return kn_fail(KN_ELIMIT, "more than %d conversations", MOST_TALK);
    t->number = number;
    t->turn = 0;
    t->here = true;
    json_decref(t->messages);
    t->messages = json_array();
    int error = render(c, t->messages, &t->prompt);
    for (int k = 100; !error && t->prompt.n + 100 < wanted; k++) {
        const struct line *l = pick(c, history, k);
        if ((error = add_message(t->messages, "user", l->question)) ||
            (error = add_message(t->messages, "assistant", l->answer)))
            break;
        error = render(c, t->messages, &t->prompt);
    }
    return error ? error : add_message(t->messages, "user", pick(c, number, 0)->question);
}

static int ask(struct chat *c, struct way *w, struct talk *t)
{
    int error = render(c, t->messages, &t->prompt);
    if (error)
        return error;
    struct eng_request r = { .token = t->prompt.id,
                             .n_token = (int)t->prompt.n,
                             .n_predict = c->set.answer,
                             .salt = c->set.shared ? 1 : (uint64_t)t->number + 1,
                             .user = (uint64_t)t->number + 1 };
    spec_params_default(&r.sampling);
    r.sampling.temperature = (float)c->set.temperature;
    r.sampling.seed = (uint64_t)(t->number * MOST_TURN + t->turn);
    t->answer.n = 0;
    t->asked_s = w->all.seconds;
    error = eng_session_open(&t->session, w->engine);
    return error ? error : eng_session_start(t->session, &r);
}

static int text_of(const struct chat *c, const struct eng_ids *ids, char **out)
{
    const struct eng_vocab *v = eng_vocab(c->way[0].engine);
    struct eng_decoder d;
    size_t n = 0;
    eng_decoder_init(&d, v, 0);
    char *text = *out = kn_calloc(ids->n + 2, eng_decoder_room(v) + 1);
    if (!text)
        return KN_ENOMEM;
    for (size_t i = 0; i < ids->n; i++)
        n += eng_decoder_feed(&d, ids->id[i], text + n);
    n += eng_decoder_finish(&d, text + n);
    text[n] = 0;
    return 0;
}

/* The answer is complete: compares it, and adds it and the next question to the messages. */
static int end_answer(struct chat *c, struct way *w, struct talk *t)
{
    uint64_t hash = 1, *said = &c->said[t->number][t->turn];
    char *text;
    for (size_t k = 0; k < t->answer.n; k++)
        hash = kn_mix(hash + (uint64_t)t->answer.id[k] + KN_GOLDEN);
    if (*said && *said != hash)
        return kn_fail(KN_ECORRUPT, "conversation %d, turn %d: another answer with drafts: this is a bug", t->number,
                       t->turn);
    *said = hash;
    eng_session_close(t->session);
    t->session = NULL;
    t->due = w->all.tokens + c->set.reading;
    t->here = ++t->turn < c->set.turns;
    if (!t->here)
        return 0;
    int error = text_of(c, &t->answer, &text);
    if (!error && !(error = add_message(t->messages, "assistant", text)))
        error = add_message(t->messages, "user", pick(c, t->number, t->turn)->question);
    kn_free(text);
    return error;
}

/* ---- a piece --------------------------------------------------------------------------------------- */

static int take_event(struct chat *c, struct way *w, const struct eng_event *event)
{
    for (int i = 0; i < c->set.most_users; i++) {
        struct talk *t = &w->talk[i];
        if (t->session != event->session)
            continue;
        if (event->finish == ENG_FAILED)
            return event->status;
        if (event->token >= 0) {
            if (!t->answer.n) {
                w->all.first_ms += (w->all.seconds - t->asked_s) * 1e3;
                w->all.answers++;
                w->all.prompt += (double)t->prompt.n;
                w->all.cached += event->n_cached;
            }
            w->all.tokens++;
            if (event->finish != ENG_STOP && eng_ids_push(&t->answer, event->token))
                return KN_ENOMEM;
        }
        return event->finish == ENG_RUNNING ? 0 : end_answer(c, w, t);
    }
    return 0;
}

/* Lets users in and asks the questions that are due. */
static int advance_users(struct chat *c, struct way *w)
{
    const struct settings *s = &c->set;
    int n_here = 0, n_running = 0, error = 0, wanted = s->users[(int)(w->all.tokens / s->phase) % s->n_phase];
    for (int i = 0; i < s->most_users; i++) {
        n_here += w->talk[i].here;
        n_running += w->talk[i].session != NULL;
    }
    for (int i = 0; i < s->most_users && !error; i++) {
        struct talk *t = &w->talk[i];
        bool enters = !t->here && n_here < wanted;
        if (enters)
            error = begin_talk(c, t, w->n_talk++);
        if (!error && (enters || (t->here && !t->session && (w->all.tokens >= t->due || !n_running)))) {
            n_here += enters;
            n_running++;
            error = ask(c, w, t);
        }
    }
    return error;
}

/* Runs one pass and adds its counters and events. */
static int step(struct chat *c, struct way *w)
{
    struct eng_stats before, after;
    double n_token = w->all.tokens;
    eng_stats_get(w->engine, &before);
    uint64_t began = kn_now_ns();
    int error = advance_users(c, w), n = error ? error : eng_step(w->engine, w->event);
    double seconds = (double)(kn_now_ns() - began) * 1e-9;
    eng_stats_get(w->engine, &after);
    w->all.seconds += seconds;
    for (int i = 0; i < n && !error; i++)
        error = take_event(c, w, &w->event[i]);
    w->all.passes += (double)(after.n_pass - before.n_pass);
    w->all.drafted += (double)(after.n_draft - before.n_draft);
    w->all.kept += (double)(after.n_draft_kept - before.n_draft_kept);
    if (after.n_prompt_token == before.n_prompt_token) {
        w->all.decode_seconds += seconds;
        w->all.decode_tokens += w->all.tokens - n_token;
    }
    return n < 0 ? n : error;
}

/* Sets *out to the difference of the sums after and before passes until `tokens` tokens of answers. */
static int play(struct chat *c, struct way *w, double tokens, struct tally *out)
{
    struct tally before = w->all;
    int error = 0;
    while (w->all.tokens < tokens && !error)
        error = step(c, w);
    const double *a = (const double *)&w->all, *b = (const double *)&before;
    for (size_t i = 0; i < sizeof *out / sizeof(double); i++)
        ((double *)out)[i] = a[i] - b[i];
    return error;
}

/* ---- pieces in turns ------------------------------------------------------------------------------- */

static const char *way_name(const struct way *w, char out[1100])
{
    snprintf(out, 1100,
             w->gamma == ENG_GAMMA_AUTO ? "%s controller"
             : w->gamma                 ? "%s %d"
                                        : "none",
             w->drafts, w->gamma);
    return out;
}

static double over(double a, double b) { return b > 0 ? a / b : 0; }

static void print_piece(const struct chat *c, int piece, int way)
{
    const struct tally *b = &c->way[way].piece[piece];
    char name[1100];
    printf("%d,\"%s\",%.2f,%.0f,%.0f,%.2f,%.1f,%.0f,%.3f,%.0f,%.3f,%.3f,%.3f,%.2f\n", piece,
           way_name(&c->way[way], name), b->seconds, b->answers, b->tokens, over(b->tokens, b->seconds),
           over(b->first_ms, b->answers), over(b->prompt, b->answers), over(b->cached, b->prompt), b->passes,
           over(b->drafted, b->tokens), over(b->kept, b->tokens), over(b->decode_seconds, b->seconds),
           over(b->decode_tokens, b->decode_seconds));
    fflush(stdout);
}

enum figure { ALL, DECODE, FIRST };

/* Sets the numerator and the denominator of a piece's figure. */
static void parts_of(const struct tally *t, enum figure f, double *a, double *b)
{
    *a = f == ALL ? t->tokens : f == DECODE ? t->decode_tokens : t->first_ms;
    *b = f == ALL ? t->seconds : f == DECODE ? t->decode_seconds : t->answers;
}

/* Returns the figure of way k over that of no drafts, from the sums of all pieces: a piece with many prompts weighs as much as the time
 * that it takes.  *half: of the 95 % interval, by the pieces' deviations from the ratio. */
static double ratio(const struct chat *c, int k, int n, enum figure f, double *half)
{
    static double x[MOST_PIECE];
    double a = 0, b = 0, c0 = 0, d = 0, p[4];
    for (int i = 0; i < n; i++) {
        parts_of(&c->way[k].piece[i], f, &p[0], &p[1]);
        parts_of(&c->way[0].piece[i], f, &p[2], &p[3]);
        a += p[0];
        b += p[1];
        c0 += p[2];
        d += p[3];
    }
    double r = over(over(a, b), over(c0, d));
    for (int i = 0; i < n; i++) {
        parts_of(&c->way[k].piece[i], f, &p[0], &p[1]);
        parts_of(&c->way[0].piece[i], f, &p[2], &p[3]);
        x[i] = r * (1 + n * (over(p[0], a) - over(p[1], b) - over(p[2], c0) + over(p[3], d)));
    }
    eng_bench_mean(x, n, half);
    return r;
}

/* Returns the largest interval of the controllers' ratios. */
static double widest(const struct chat *c, int n)
{
    double most = 0, half;
    for (int k = 1; k < c->n_way; k++)
        if (c->way[k].gamma == ENG_GAMMA_AUTO) {
            ratio(c, k, n, ALL, &half);
            most = fmax(most, half);
        }
    return most;
}

static int run_pieces(struct chat *c)
{
    const struct settings *s = &c->set;
    uint64_t began = kn_now_ns();
    int n = 0, error = 0;
    double half = INFINITY;
    for (int k = 0; k < c->n_way && !error; k++)
        error = play(c, &c->way[k], s->warm, &c->way[k].piece[0]);
    printf(
        "piece,way,seconds,answers,tokens,tokens_per_s,first_ms,prompt_tokens,cached,passes,drafted,kept,decode_share,"
        "decode_tokens_per_s\n");
    fflush(stdout);
    while (n < s->pieces && !error && !(n >= 8 && half < s->interval) &&
           !(s->seconds && (double)(kn_now_ns() - began) * 1e-9 > s->seconds)) {
        for (int k = 0; k < c->n_way && !error; k++) {
            int way = (k + n) % c->n_way;
            error = play(c, &c->way[way], s->warm + (n + 1.0) * s->piece, &c->way[way].piece[n]);
            print_piece(c, n, way);
        }
        n += !error;
        half = widest(c, n);
    }
    for (int way = 1; way < c->n_way && !error && n; way++) {
        double h[3], r[3];
        char name[1100];
        for (int f = ALL; f <= FIRST; f++)
            r[f] = ratio(c, way, n, (enum figure)f, &h[f]);
        printf("# %s over none in %d pieces: %.3f +- %.3f; decoding %.3f +- %.3f; time to first token %.3f +- %.3f\n",
               way_name(&c->way[way], name), n, r[ALL], h[ALL], r[DECODE], h[DECODE], r[FIRST], h[FIRST]);
    }
    return error;
}

/* ---- arguments ------------------------------------------------------------------------------------- */

static int parse_list(const char *text, int *out, int most)
{
    int n = 0;
    for (char *at = (char *)(uintptr_t)text; *at && n < most; at += *at == ',') {
        char *from = at;
        out[n++] = (int)strtol(at, &at, 10);
        if (at == from)
            return kn_fail(KN_EINVAL, "'%s' is not a list of numbers, as in 16,4", text);
    }
    return n;
}

static int set_value(struct settings *s, const char *name, const char *value)
{
    struct {
        const char *name;
        int *number;
    } const numbers[] = {
        { "shortest", &s->shortest }, { "longest", &s->longest }, { "turns", &s->turns },
        { "reading", &s->reading },   { "answer", &s->answer },   { "shared", &s->shared },
        { "phase", &s->phase },       { "warm", &s->warm },       { "piece", &s->piece },
        { "pieces", &s->pieces },     { "seconds", &s->seconds }, { "threads", &s->engine.n_thread }
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name))
            return *numbers[i].number = atoi(value), 0;
    if (!strcmp(name, "temperature"))
        return s->temperature = atof(value), 0;
    if (!strcmp(name, "interval"))
        return s->interval = atof(value), 0;
    if (strcmp(name, "gammas"))
        return kn_fail(KN_EINVAL, "no setting is called '%s'", name);
    s->n_gamma = parse_list(value, s->gammas, MOST_GAMMA);
    return s->n_gamma < 0 ? s->n_gamma : 0;
}

static int parse(struct settings *s, int argc, char **argv)
{
    char *rest;
    int error = 0;
    s->model = s->engine.model = argv[1];
    s->engine.host_mem = (size_t)strtoull(argv[2], NULL, 10) << 20;
    for (char *d = strtok_r(argv[3], " ", &rest); d && s->n_set < MOST_SET; d = strtok_r(NULL, " ", &rest))
        s->drafts[s->n_set++] = d;
    if (!s->n_set || (s->n_phase = parse_list(argv[4], s->users, MOST_PHASE)) < 1)
        return KN_EINVAL;
    s->file = argv[5];
    for (int i = 6; i < argc && !error; i++) {
        char *value = strchr(argv[i], '=');
        if (value)
            *value++ = 0;
        error = value ? set_value(s, argv[i], value) : kn_fail(KN_EINVAL, "'%s' is not NAME=VALUE", argv[i]);
    }
    for (int i = 0; i < s->n_phase; i++)
        s->most_users = kn_max(s->most_users, kn_min(kn_max(s->users[i], 1), MOST_USER));
    s->engine.n_parallel = s->most_users;
    s->turns = kn_min(kn_max(s->turns, 1), MOST_TURN);
    s->pieces = kn_min(kn_max(s->pieces, 1), MOST_PIECE);
    s->phase = kn_max(s->phase, 1);
    s->engine.n_ctx = s->longest + s->turns * (s->answer + 300) + 100;
    return error;
}

static int open_way(struct chat *c, const char *drafts, int gamma)
{
    struct way *w = &c->way[c->n_way++];
    struct eng_options o = c->set.engine;
    char copy[1024], *rest;
    int error = 0;
    w->drafts = drafts;
    w->gamma = o.gamma = gamma;
    o.host_mem += kn_alloc_bytes() - c->heap_bytes; /* an engine counts the memory of the process as its own */
    snprintf(copy, sizeof copy, "%s", drafts ? drafts : "");
    for (char *d = strtok_r(copy, "+", &rest); d && !error && o.n_draft < ENG_DRAFTERS_MOST;
         d = strtok_r(NULL, "+", &rest))
        error = eng_draft_parse(&o.draft[o.n_draft++], d);
    if (error || (error = eng_open(&w->engine, &o)))
        return error;
    w->event = kn_calloc((size_t)eng_event_room(w->engine), sizeof *w->event);
    return w->event ? 0 : KN_ENOMEM;
}

static int open_all(struct chat *c)
{
    const struct settings *s = &c->set;
    if (1 + s->n_set * (1 + s->n_gamma) > MOST_WAY)
        return kn_fail(KN_ELIMIT, "more than %d ways to draft: leave out drafts or gammas", MOST_WAY);
    c->heap_bytes = kn_alloc_bytes();
    int error = open_way(c, NULL, 0);
    for (int i = 0; i < s->n_set && !error; i++) {
        error = open_way(c, s->drafts[i], ENG_GAMMA_AUTO);
        for (int k = 0; k < s->n_gamma && !error; k++)
            error = open_way(c, s->drafts[i], s->gammas[k]);
    }
    if (error)
        return error;
    const struct eng_engine *e = c->way[0].engine;
    error = eng_chat_open(&c->template, eng_file(e), eng_vocab(e), s->model);
    return error ? error : read_lines(c);
}

int main(int argc, char **argv)
{
    static struct chat c = { .set = { .engine = { .isa = KN_ISA_COUNT - 1 },
                                      .shortest = 400,
                                      .longest = 1600,
                                      .turns = 2,
                                      .reading = 200,
                                      .answer = 160,
                                      .phase = 4000,
                                      .warm = 1000,
                                      .piece = 300,
                                      .pieces = 100,
                                      .interval = 0.05 } };
    if (argc < 6) {
        fprintf(stderr, "usage: chat MODEL HOST_MEM_MIB 'DRAFT[+DRAFT].. ..' USERS[,USERS].. FILE [NAME=VALUE]..\n");
        return 2;
    }
    int error = parse(&c.set, argc, argv);
    if (!error && !(error = open_all(&c)))
        error = run_pieces(&c);
    for (int k = 0; k < c.n_way; k++)
        eng_close(c.way[k].engine);
    return error ? 1 : 0;
}
