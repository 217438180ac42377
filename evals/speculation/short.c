/* evals/speculation/short.c - the first passes of an engine with many users that come and go: CSV on stdout.
 *
 *     short MODEL HOST_MEM_MIB DRAFT USERS PASSES GAMMA,GAMMA,... [ROUNDS]
 *
 * Every seat has a user with a prompt of 16 tokens and an answer of 24 to 96, and then the next user, so some passes have prompt
 * rows.  In each round the same users are served without drafts, with each fixed GAMMA, and by the controller (-1), each by an
 * engine that was just opened, and only for PASSES passes.  A line is one such run: tokens per second in the first half of the
 * passes and in the second, and the speed over the run without drafts.  An engine with all weights in memory generates the tokens
 * first, for the oracle; all runs must generate the same. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PROMPT  16
#define MOST_USER 64
#define MOST_TURN 64 /* users of a seat */
#define MIN_GEN   24
#define MAX_GEN   96
#define MOST_RUN  12
#define RECORDED  6 /* the recorded run has so many times as many passes */

struct seat {
    struct eng_session *session;
    int turn, n_said;
};

struct eval {
    struct eng_options options;
    struct eng_engine *engine;
    struct eng_event *event;
    struct seat seat[MOST_USER];
    int n_user, n_pass;
    int32_t *said; /* [MOST_USER][MOST_TURN][MAX_GEN] tokens without drafts */
    int *n_said;   /* [MOST_USER][MOST_TURN] as far as they are known */
};

static int gen_of(int user, int turn)
{
    return MIN_GEN + (int)(kn_mix((uint64_t)(user * MOST_TURN + turn)) % (MAX_GEN - MIN_GEN + 1));
}
static int32_t *said_of(const struct eval *e, int user, int turn)
{
    return e->said + ((size_t)user * MOST_TURN + (size_t)turn) * MAX_GEN;
}

static int start(struct eval *e, int user)
{
    int32_t prompt[N_PROMPT];
    struct seat *s = &e->seat[user];
    uint64_t n_vocab = (uint64_t)eng_vocab_size(eng_vocab(e->engine)), seed = (uint64_t)(user * MOST_TURN + s->turn);
    for (int k = 0; k < N_PROMPT; k++)
        prompt[k] = (int32_t)(kn_mix(seed * N_PROMPT + (uint64_t)k) % n_vocab);
    struct eng_request r = {
        .token = prompt, .n_token = N_PROMPT, .n_predict = gen_of(user, s->turn), .ignore_eos = true
    };
    spec_params_default(&r.sampling);
    r.sampling.temperature = 1;
    r.sampling.seed = seed;
    s->n_said = 0;
    int error = eng_session_open(&s->session, e->engine);
    if (!error && !(error = eng_session_start(s->session, &r)) && e->n_said[user * MOST_TURN + s->turn])
        eng_session_set_oracle(s->session, said_of(e, user, s->turn), e->n_said[user * MOST_TURN + s->turn]);
    return error;
}

/* Compares the user's tokens with those of the first run, or keeps them.  Returns the new tokens; < 0: they differ. */
static int take(struct eval *e, int user)
{
    struct seat *s = &e->seat[user];
    int n, *known = &e->n_said[user * MOST_TURN + s->turn], before = s->n_said;
    const int32_t *token = eng_session_tokens(s->session, &n) + N_PROMPT;
    int32_t *said = said_of(e, user, s->turn);
    for (n = kn_max(0, n - N_PROMPT); s->n_said < n; s->n_said++) {
        if (s->n_said >= *known)
            said[(*known)++] = token[s->n_said];
        if (said[s->n_said] != token[s->n_said]) {
            fprintf(stderr, "user %d of seat %d was told something else with drafts: this must not be\n", s->turn,
                    user);
            return -1;
        }
    }
    return n - before;
}

/* One pass; a session that ended is followed by the next one of its seat.  Returns the new tokens; < 0: failed. */
static int step(struct eval *e)
{
    int got = eng_step(e->engine, e->event), all = 0;
    for (int i = 0; i < got; i++)
        if (e->event[i].finish == ENG_FAILED)
            return -1;
    for (int i = 0; i < e->n_user && got >= 0; i++) {
        int n = take(e, i);
        if (n < 0)
            return -1;
        all += n;
        if (!eng_session_runs(e->seat[i].session)) {
            eng_session_close(e->seat[i].session);
            e->seat[i].session = NULL;
            e->seat[i].turn = (e->seat[i].turn + 1) % MOST_TURN;
            if (start(e, i))
                return -1;
        }
    }
    return got < 0 ? -1 : all;
}

/* speed[0], speed[1]: tokens per second in each half of the passes.  The prompts of the first users are read before. */
static int play(struct eval *e, int gamma, double *speed)
{
    int error = eng_open(&e->engine, &e->options), n_begun = 0;
    e->event = error ? NULL : calloc((size_t)eng_event_room(e->engine), sizeof *e->event);
    if (!e->event)
        return -1;
    eng_set_gamma(e->engine, gamma);
    for (int i = 0; i < e->n_user && !error; i++) {
        e->seat[i] = (struct seat){ 0 };
        error = start(e, i);
    }
    while (!error && n_begun < e->n_user) {
        error = step(e) < 0;
        n_begun = 0;
        for (int i = 0; i < e->n_user; i++)
            n_begun += e->seat[i].n_said > 0;
    }
    for (int half = 0; half < 2 && !error; half++) {
        uint64_t began = kn_now_ns();
        double tokens = 0;
        for (int i = 0; i < e->n_pass / 2 && !error; i++) {
            int n = step(e);
            error = n < 0;
            tokens += n;
        }
        speed[half] = tokens / ((double)(kn_now_ns() - began) * 1e-9);
    }
    for (int i = 0; i < e->n_user; i++)
        eng_session_close(e->seat[i].session);
    eng_close(e->engine);
    free(e->event);
    return error;
}

int main(int argc, char **argv)
{
    struct eval e = { .options = { .isa = KN_ISA_COUNT - 1, .gamma = ENG_GAMMA_AUTO, .n_draft = 1, .fit = "none" } };
    int gamma[MOST_RUN] = { 0, -1 }, n_run = 2;
    double off[2] = { 0 }, speed[2];
    size_t host_mem;
    if (argc < 7 || eng_draft_parse(&e.options.draft[0], argv[3])) {
        fprintf(stderr, "usage: short MODEL HOST_MEM_MIB DRAFT USERS PASSES GAMMA,GAMMA,... [ROUNDS]\n");
        return 2;
    }
    e.options.model = argv[1];
    host_mem = (size_t)strtoull(argv[2], NULL, 10) << 20;
    e.options.n_parallel = e.n_user = kn_min(kn_max(atoi(argv[4]), 1), MOST_USER);
    e.options.n_ctx = N_PROMPT + MAX_GEN + 1;
    e.n_pass = RECORDED * kn_max(atoi(argv[5]), 2);
    for (char *s = argv[6]; *s && n_run < MOST_RUN; s += *s == ',')
        gamma[n_run++] = (int)strtol(s, &s, 10);
    e.said = calloc((size_t)MOST_USER * MOST_TURN * MAX_GEN, sizeof *e.said);
    e.n_said = calloc((size_t)MOST_USER * MOST_TURN, sizeof *e.n_said);
    int failed = !e.said || !e.n_said || play(&e, 0, off);
    e.options.host_mem = host_mem;
    e.n_pass /= RECORDED;
    printf("round,gamma,first_tokens_per_s,second_tokens_per_s,first_over_none,second_over_none\n");
    for (int round = 0; round < (argc > 7 ? atoi(argv[7]) : 1) && !failed; round++)
        for (int i = 0; i < n_run && !failed; i++) {
            failed = play(&e, gamma[i], speed);
            if (i == 0)
                memcpy(off, speed, sizeof off);
            printf("%d,%d,%.3f,%.3f,%.4f,%.4f\n", round, gamma[i], speed[0], speed[1], speed[0] / off[0],
                   speed[1] / off[1]);
            fflush(stdout);
        }
    free(e.said);
    free(e.n_said);
    return failed;
}
