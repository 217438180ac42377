/* evals/speculation/prompts.c - drafts for users with long prompts: the number of drafts, and the time to the first
 * token. CSV on stdout.
 *
 *     prompts MODEL HOST_MEM_MIB DRAFT GAMMA USERS PROMPT,PROMPT,.. GEN FILE [ROUNDS [SLOWDOWN]]
 *
 * USERS requests arrive at once, each with a prompt of PROMPT tokens from another place of the text FILE, and generate
 * GEN tokens at temperature 0. In each round one engine serves them without drafts, then with drafts of GAMMA tokens
 * ("auto": the controller decides): the same tokens, which is checked. Nothing is found in the prefix cache. Drafts are
 * counted over the passes that compute a row for a sequence behind its first answer token: passes that still read the
 * prompts of others count too. SLOWDOWN: eng_options.max_prefill_slowdown. A line is a round of one prompt length. */
#include "engine/base/base.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_USER 64

struct prompts {
    struct eng_engine *engine;
    struct eng_event *event;
    struct eng_session *session[MOST_USER];
    struct eng_ids text;
    int n_user, n_prompt, n_gen, gamma;
    uint64_t salt;
    int32_t *said; /* [n_user][n_gen] tokens without drafts */
};

struct block {
    double first_mean_ms, first_last_ms, tokens_per_s, drafted, kept; /* drafted, kept: per sequence and pass */
    int n_pass;
};

static int start(struct prompts *p, int user)
{
    size_t at = kn_mix((uint64_t)user + 77) % (p->text.n - (size_t)p->n_prompt);
    struct eng_request r = {
        .token = p->text.id + at, .n_token = p->n_prompt, .n_predict = p->n_gen, .salt = p->salt, .ignore_eos = true
    };
    spec_params_default(&r.sampling);
    r.sampling.temperature = 0;
    int error = eng_session_open(&p->session[user], p->engine);
    return error ? error : eng_session_start(p->session[user], &r);
}

/* The number of running sequences that have begun their answers. */
static int n_decoding(const struct prompts *p)
{
    int count = 0, n;
    for (int i = 0; i < p->n_user; i++) {
        eng_session_tokens(p->session[i], &n);
        count += n > p->n_prompt && eng_session_runs(p->session[i]);
    }
    return count;
}

static int check(struct prompts *p, bool drafts)
{
    for (int i = 0, n; i < p->n_user; i++) {
        const int32_t *token = eng_session_tokens(p->session[i], &n) + p->n_prompt;
        int32_t *said = p->said + (size_t)i * (size_t)p->n_gen;
        size_t bytes = (size_t)(n - p->n_prompt) * sizeof *token;
        if (!drafts)
            memcpy(said, token, bytes);
        else if (memcmp(said, token, bytes))
            return kn_fail(KN_ECORRUPT, "user %d got other tokens with drafts: this is a bug", i);
    }
    return 0;
}

/* Runs until all answers are complete; counts in *b. */
static int run(struct prompts *p, struct block *b)
{
    struct eng_stats before, now;
    double due = 0, first_ms = 0;
    uint64_t began = kn_now_ns();
    int n_first = 0, n_left = p->n_user;
    eng_stats_get(p->engine, &before);
    while (n_left > 0) {
        int n_due = n_decoding(p), got = eng_step(p->engine, p->event);
        if (got < 0)
            return got;
        due += n_due;
        n_left = 0;
        int n_begun = 0;
        for (int i = 0, n; i < p->n_user; i++) {
            eng_session_tokens(p->session[i], &n);
            n_begun += n > p->n_prompt;
            n_left += eng_session_runs(p->session[i]);
        }
        double ms = (double)(kn_now_ns() - began) * 1e-6;
        first_ms += (n_begun - n_first) * ms;
        b->first_last_ms = n_begun > n_first ? ms : b->first_last_ms;
        n_first = n_begun;
    }
    eng_stats_get(p->engine, &now);
    b->first_mean_ms = first_ms / p->n_user;
    b->tokens_per_s = (double)(now.n_token - before.n_token) / ((double)(kn_now_ns() - began) * 1e-9);
    b->drafted = (double)(now.n_draft - before.n_draft) / due;
    b->kept = (double)(now.n_draft_kept - before.n_draft_kept) / due;
    b->n_pass = (int)(now.n_pass - before.n_pass);
    return 0;
}

static int play(struct prompts *p, bool drafts, struct block *b)
{
    int error = 0;
    *b = (struct block){ 0 };
    p->salt++;
    eng_set_gamma(p->engine, drafts ? p->gamma : 0);
    for (int i = 0; i < p->n_user && !error; i++)
        error = start(p, i);
    if (!error && !(error = run(p, b)))
        error = check(p, drafts);
    for (int i = 0; i < p->n_user; i++) {
        eng_session_close(p->session[i]);
        p->session[i] = NULL;
    }
    return error;
}

static int play_round(struct prompts *p, int round)
{
    struct block off, on;
    int error = play(p, false, &off);
    if (error || (error = play(p, true, &on)))
        return error;
    printf("%d,%d,%d,%.3f,%.3f,%d,%.2f,%.2f,%.2f,%.2f,%.1f,%.1f\n", round, p->n_user, p->n_prompt, on.drafted, on.kept,
           on.n_pass, off.first_mean_ms, on.first_mean_ms, off.first_last_ms, on.first_last_ms, off.tokens_per_s,
           on.tokens_per_s);
    fflush(stdout);
    return 0;
}

static int read_text(struct prompts *p, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    int error = eng_read_file(path, &text, &n);
    if (!error)
        error = eng_tokenize(eng_vocab(p->engine), text, n, 0, &p->text);
    kn_free(text);
    return error;
}

int main(int argc, char **argv)
{
    struct prompts p = { 0 };
    struct eng_options o = { .isa = KN_ISA_COUNT - 1, .n_draft = 1 };
    if (argc < 9 || eng_draft_parse(&o.draft[0], argv[3])) {
        fprintf(stderr,
                "usage: prompts MODEL HOST_MEM_MIB DRAFT GAMMA USERS PROMPT,PROMPT,.. GEN FILE [ROUNDS [SLOWDOWN]]\n");
        return 2;
    }
    int n_round = argc > 9 ? atoi(argv[9]) : 1, most = 0, error = 0;
    o.model = argv[1];
    o.host_mem = (size_t)strtoull(argv[2], NULL, 10) << 20;
    o.gamma = p.gamma = strcmp(argv[4], "auto") ? atoi(argv[4]) : ENG_GAMMA_AUTO;
    o.n_parallel = p.n_user = kn_min(kn_max(atoi(argv[5]), 1), MOST_USER);
    p.n_gen = kn_max(atoi(argv[7]), 2);
    o.max_prefill_slowdown = argc > 10 ? atof(argv[10]) : 0;
    for (char *s = argv[6]; *s; s += *s == ',')
        most = kn_max(most, (int)strtol(s, &s, 10));
    o.n_ctx = most + p.n_gen + 1;
    p.said = calloc((size_t)p.n_user * (size_t)p.n_gen, sizeof *p.said);
    if (!p.said || eng_open(&p.engine, &o) || read_text(&p, argv[8]))
        return 2;
    p.event = calloc((size_t)eng_event_room(p.engine), sizeof *p.event);
    if (!p.event || p.text.n <= (size_t)most)
        return 2;
    printf("round,users,prompt,drafted,kept,passes,off_first_ms,on_first_ms,off_last_first_ms,on_last_first_ms,"
           "off_tokens_per_s,on_tokens_per_s\n");
    for (int i = 0; i < n_round && !error; i++)
        for (char *s = argv[6]; *s && !error; s += *s == ',') {
            p.n_prompt = (int)strtol(s, &s, 10);
            error = play_round(&p, i);
        }
    eng_close(p.engine);
    eng_ids_free(&p.text);
    free(p.event);
    free(p.said);
    return error ? 1 : 0;
}
