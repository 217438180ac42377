/* evals/chat/chat.c - conversations of users that come and go, without drafts and with them, in alternating blocks: CSV.
 *
 *     chat MODEL HOST_MEM_MIB DRAFT[+DRAFT].. USERS[,USERS].. FILE [NAME=VALUE]..
 *
 * A line of FILE has a question and an answer.  A conversation begins with some of them as earlier turns, so that its first prompt
 * has a length between `shortest` and `longest` tokens, drawn evenly on a logarithmic scale.  Then its user asks `turns` questions
 * one after the other, and each prompt holds the model's own answers to the earlier ones.  Behind an answer the user reads: the
 * next question comes when the others have got `reading` tokens.  USERS lists how many users are there, for equal parts of the
 * conversations: 16,4,16 is a busy time, a quiet one and a busy one.
 *
 * A block is all conversations under one way to draft: none, the controller, or a fixed depth.  Blocks without drafts run on an
 * engine of their own with the same budget, so the memory of a drafter counts against it.  Nothing is found in the prefix cache
 * but a conversation's own earlier turns.  All blocks must give the same answers, which is checked.  The first round only warms
 * up.  Then rounds go on, until the interval of the controller's ratio is below 5 %, or `rounds` are done.
 *
 * A line is a block; the lines at the end are the ratios of speeds over "none" (mean over the rounds, half of the 95 % interval). */
#include "engine/base/base.h"
#include "engine/cli/bench.h"
#include "engine/engine.h"
#include "engine/text/chat_prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TALK = 512, MOST_TURN = 8, MOST_PHASE = 16, MOST_WAY = 8, MOST_ROUND = 32, MOST_LINE = 8192 };

struct settings {
    const char *model, *file;
    struct eng_options engine;
    int users[MOST_PHASE], n_phase;
    int gammas[MOST_WAY], n_way; /* gammas[0] 0: without drafts; [1] ENG_GAMMA_AUTO */
    int shortest, longest, turns, reading, answer, talks, rounds;
    double temperature;
};

struct line {
    const char *question, *answer;
};

struct talk { /* a conversation */
    json_t *messages;
    struct eng_session *session; /* NULL: the user reads, or has left */
    struct eng_ids prompt, answer;
    int turn;
    bool entered, left;
    double due; /* tokens of all users at which the next question comes */
    uint64_t asked_ns;
    uint64_t said[MOST_TURN]; /* hashes of the answers in the first block */
    bool known[MOST_TURN];
};

struct block {
    double seconds, first_ms, answers, tokens, prompt, cached, drafted, kept, passes;
};

struct chat {
    struct settings set;
    struct eng_engine *plain, *drafting;
    struct eng_event *event;
    struct eng_chat *template;
    struct line *line;
    int n_line;
    struct talk talk[MOST_TALK];
    json_t *start[MOST_TALK]; /* the messages before the first answer */
    uint64_t salt;
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
static int begin_talk(struct chat *c, int i)
{
    const struct settings *s = &c->set;
    double at = (double)(kn_mix((uint64_t)i + 9999) % 1000) / 999;
    size_t wanted = (size_t)(s->shortest * pow((double)s->longest / s->shortest, at));
    struct eng_ids ids = { 0 };
    json_t *messages = c->start[i] = json_array();
    int error = render(c, messages, &ids);
    for (int k = 100; !error && ids.n + 100 < wanted; k++) {
        const struct line *l = pick(c, i, k);
        if ((error = add_message(messages, "user", l->question)) ||
            (error = add_message(messages, "assistant", l->answer)))
            break;
        error = render(c, messages, &ids);
    }
    eng_ids_free(&ids);
    return error ? error : add_message(messages, "user", pick(c, i, 0)->question);
}

static int ask(struct chat *c, struct eng_engine *e, int i)
{
    struct talk *t = &c->talk[i];
    int error = render(c, t->messages, &t->prompt);
    if (error)
        return error;
    struct eng_request r = { .token = t->prompt.id,
                             .n_token = (int)t->prompt.n,
                             .n_predict = c->set.answer,
                             .salt = c->salt,
                             .user = (uint64_t)i + 1 };
    spec_params_default(&r.sampling);
    r.sampling.temperature = (float)c->set.temperature;
    r.sampling.seed = (uint64_t)(i * MOST_TURN + t->turn);
    t->answer.n = 0;
    t->asked_ns = kn_now_ns();
    error = eng_session_open(&t->session, e);
    return error ? error : eng_session_start(t->session, &r);
}

static int text_of(const struct chat *c, const struct eng_ids *ids, char **out)
{
    const struct eng_vocab *v = eng_vocab(c->plain);
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
static int end_answer(struct chat *c, int i, double clock)
{
    struct talk *t = &c->talk[i];
    uint64_t hash = 1;
    char *text;
    for (size_t k = 0; k < t->answer.n; k++)
        hash = kn_mix(hash + (uint64_t)t->answer.id[k] + KN_GOLDEN);
    if (t->known[t->turn] && t->said[t->turn] != hash)
        return kn_fail(KN_ECORRUPT, "conversation %d, turn %d: another answer with drafts: this is a bug", i, t->turn);
    t->known[t->turn] = true;
    t->said[t->turn] = hash;
    eng_session_close(t->session);
    t->session = NULL;
    t->due = clock + c->set.reading;
    t->left = ++t->turn == c->set.turns;
    if (t->left)
        return 0;
    int error = text_of(c, &t->answer, &text);
    if (!error && !(error = add_message(t->messages, "assistant", text)))
        error = add_message(t->messages, "user", pick(c, i, t->turn)->question);
    kn_free(text);
    return error;
}

/* ---- a block --------------------------------------------------------------------------------------- */

static int take_event(struct chat *c, struct block *b, const struct eng_event *event)
{
    for (int i = 0; i < c->set.talks; i++) {
        struct talk *t = &c->talk[i];
        if (t->session != event->session)
            continue;
        if (event->finish == ENG_FAILED)
            return event->status;
        if (event->token >= 0) {
            if (!t->answer.n) {
                b->first_ms += (double)(kn_now_ns() - t->asked_ns) * 1e-6;
                b->answers++;
                b->prompt += (double)t->prompt.n;
                b->cached += event->n_cached;
            }
            b->tokens++;
            if (event->finish != ENG_STOP && eng_ids_push(&t->answer, event->token))
                return KN_ENOMEM;
        }
        return event->finish == ENG_RUNNING ? 0 : end_answer(c, i, b->tokens);
    }
    return 0;
}

/* Lets users in and asks the questions that are due; sets *n_left to the number of users that will still ask. */
static int advance_users(struct chat *c, struct eng_engine *e, double clock, int *n_left)
{
    int n_here = 0, n_gone = 0, n_running = 0, error = 0;
    for (int i = 0; i < c->set.talks; i++) {
        n_gone += c->talk[i].left;
        n_here += c->talk[i].entered && !c->talk[i].left;
        n_running += c->talk[i].session != NULL;
    }
    *n_left = c->set.talks - n_gone;
    int wanted = c->set.users[kn_min(n_gone * c->set.n_phase / c->set.talks, c->set.n_phase - 1)];
    for (int i = 0; i < c->set.talks && !error; i++) {
        struct talk *t = &c->talk[i];
        bool enters = !t->entered && n_here < wanted;
        if (enters || (t->entered && !t->left && !t->session && (clock >= t->due || !n_running))) {
            n_here += enters;
            n_running++;
            t->entered = true;
            error = ask(c, e, i);
        }
    }
    return error;
}

static int play(struct chat *c, int gamma, struct block *b)
{
    struct eng_engine *e = gamma ? c->drafting : c->plain;
    struct eng_stats before, after;
    int error = 0, n_left;
    *b = (struct block){ 0 };
    c->salt++;
    eng_set_gamma(e, gamma);
    eng_stats_get(e, &before);
    for (int i = 0; i < c->set.talks; i++) {
        struct talk *t = &c->talk[i];
        json_decref(t->messages);
        t->messages = json_copy(c->start[i]);
        t->turn = 0;
        t->entered = t->left = false;
    }
    uint64_t began = kn_now_ns();
    while (!(error = advance_users(c, e, b->tokens, &n_left)) && n_left > 0) {
        int n = eng_step(e, c->event);
        error = n < 0 ? n : 0;
        for (int i = 0; i < n && !error; i++)
            error = take_event(c, b, &c->event[i]);
        if (error)
            break;
    }
    b->seconds = (double)(kn_now_ns() - began) * 1e-9;
    eng_stats_get(e, &after);
    b->drafted = (double)(after.n_draft - before.n_draft);
    b->kept = (double)(after.n_draft_kept - before.n_draft_kept);
    b->passes = (double)(after.n_pass - before.n_pass);
    return error;
}

/* ---- rounds ---------------------------------------------------------------------------------------- */

static const char *way_name(int gamma, char out[16])
{
    snprintf(out, 16, gamma == ENG_GAMMA_AUTO ? "controller" : gamma ? "%d" : "none", gamma);
    return out;
}

static void print_block(int round, int gamma, const struct block *b)
{
    char name[16];
    printf("%d,%s,%.2f,%.0f,%.0f,%.2f,%.1f,%.0f,%.3f,%.0f,%.3f,%.3f\n", round, way_name(gamma, name), b->seconds,
           b->answers, b->tokens, b->tokens / b->seconds, b->first_ms / b->answers, b->prompt / b->answers,
           b->cached / b->prompt, b->passes, b->drafted / b->tokens, b->kept / b->tokens);
    fflush(stdout);
}

static int run_rounds(struct chat *c)
{
    static double speed_ratio[MOST_WAY][MOST_ROUND], first_ratio[MOST_WAY][MOST_ROUND];
    int n = 0, error = 0;
    double half = INFINITY;
    char name[16];
    printf("round,way,seconds,answers,tokens,tokens_per_s,first_ms,prompt_tokens,cached,passes,drafted,kept\n");
    for (int round = 0; round <= c->set.rounds && !error && !(n >= 4 && half < 0.05); round++) {
        struct block block[MOST_WAY];
        for (int k = 0; k < c->set.n_way && !error; k++) {
            int way = (k + round) % c->set.n_way;
            error = play(c, c->set.gammas[way], &block[way]);
            if (!error)
                print_block(round, c->set.gammas[way], &block[way]);
        }
        for (int way = 0; way < c->set.n_way && !error && round > 0; way++) {
            speed_ratio[way][n] = block[0].seconds / block[way].seconds;
            first_ratio[way][n] = block[way].first_ms / block[way].answers / (block[0].first_ms / block[0].answers);
        }
        n += round > 0 && !error;
        eng_bench_mean(speed_ratio[1], n, &half);
    }
    for (int way = 1; way < c->set.n_way && !error; way++) {
        double first_half, mean = eng_bench_mean(speed_ratio[way], n, &half),
                           first = eng_bench_mean(first_ratio[way], n, &first_half);
        printf("# %s over none: %.3f +- %.3f in %d rounds; time to first token %.3f +- %.3f\n",
               way_name(c->set.gammas[way], name), mean, half, n, first, first_half);
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
    } const numbers[] = { { "shortest", &s->shortest }, { "longest", &s->longest },        { "turns", &s->turns },
                          { "reading", &s->reading },   { "answer", &s->answer },          { "talks", &s->talks },
                          { "rounds", &s->rounds },     { "threads", &s->engine.n_thread } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name))
            return *numbers[i].number = atoi(value), 0;
    if (!strcmp(name, "temperature"))
        return s->temperature = atof(value), 0;
    if (strcmp(name, "gammas"))
        return kn_fail(KN_EINVAL, "no setting is called '%s'", name);
    int n = parse_list(value, s->gammas + 2, MOST_WAY - 2);
    s->n_way = 2 + kn_max(n, 0);
    return n < 0 ? n : 0;
}

static int parse(struct settings *s, int argc, char **argv)
{
    char copy[1024], *rest;
    int error = 0;
    s->model = s->engine.model = argv[1];
    s->engine.host_mem = (size_t)strtoull(argv[2], NULL, 10) << 20;
    snprintf(copy, sizeof copy, "%s", argv[3]);
    for (char *d = strtok_r(copy, "+", &rest); d && !error && s->engine.n_draft < ENG_DRAFTERS_MOST;
         d = strtok_r(NULL, "+", &rest))
        error = eng_draft_parse(&s->engine.draft[s->engine.n_draft++], d);
    if (error || (s->n_phase = parse_list(argv[4], s->users, MOST_PHASE)) < 1)
        return error ? error : KN_EINVAL;
    s->file = argv[5];
    for (int i = 6; i < argc && !error; i++) {
        char *value = strchr(argv[i], '=');
        if (value)
            *value++ = 0;
        error = value ? set_value(s, argv[i], value) : kn_fail(KN_EINVAL, "'%s' is not NAME=VALUE", argv[i]);
    }
    for (int i = 0; i < s->n_phase; i++)
        s->engine.n_parallel = kn_max(s->engine.n_parallel, s->users[i]);
    s->talks = kn_min(s->talks ? s->talks : 2 * s->engine.n_parallel, MOST_TALK);
    s->turns = kn_min(kn_max(s->turns, 1), MOST_TURN);
    s->rounds = kn_min(kn_max(s->rounds, 1), MOST_ROUND);
    s->engine.n_ctx = s->longest + s->turns * (s->answer + 300) + 100;
    return error;
}

static int open_all(struct chat *c)
{
    struct eng_options plain = c->set.engine;
    plain.n_draft = 0;
    plain.gamma = 0;
    int error = eng_open(&c->plain, &plain);
    if (!error && !(error = eng_open(&c->drafting, &c->set.engine)))
        error = eng_chat_open(&c->template, eng_file(c->plain), eng_vocab(c->plain), c->set.model);
    if (error || (error = read_lines(c)))
        return error;
    c->event = kn_calloc((size_t)eng_event_room(c->drafting), sizeof *c->event);
    for (int i = 0; i < c->set.talks && !error; i++)
        error = begin_talk(c, i);
    return c->event ? error : KN_ENOMEM;
}

int main(int argc, char **argv)
{
    static struct chat c = { .set = { .engine = { .isa = KN_ISA_COUNT - 1, .gamma = ENG_GAMMA_AUTO },
                                      .gammas = { 0, ENG_GAMMA_AUTO },
                                      .n_way = 2,
                                      .shortest = 400,
                                      .longest = 1600,
                                      .turns = 2,
                                      .reading = 200,
                                      .answer = 160,
                                      .rounds = 12 } };
    if (argc < 6) {
        fprintf(stderr, "usage: chat MODEL HOST_MEM_MIB DRAFT[+DRAFT].. USERS[,USERS].. FILE [NAME=VALUE]..\n");
        return 2;
    }
    int error = parse(&c.set, argc, argv);
    if (!error && !(error = open_all(&c)))
        error = run_rounds(&c);
    eng_close(c.plain);
    eng_close(c.drafting);
    return error ? 1 : 0;
}
