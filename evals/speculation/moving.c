/* evals/speculation/moving.c - the speedup by drafts while the number of users changes: CSV on stdout.
 *
 *     moving MODEL HOST_MEM_MIB DRAFT GEN 1,4,16,32,8,2,32,1 [ROUNDS]
 *
 * The trace is a list of phases with a number of users each; each user has a prompt of 16 tokens and generates GEN.
 * In each round one engine plays all phases without drafts, then all with drafts: the same users, the same seeds and so
 * the same tokens, which is checked. The timing is of decoding, including the controller's learning and trials; the
 * controller is not informed of phases. A line is a phase of a round; the last line of a round, phase "all", is the
 * whole round. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PROMPT   16
#define MOST_USER  64
#define MOST_PHASE 64

struct moving {
    struct eng_engine *engine;
    struct eng_event *event;
    struct eng_session *session[MOST_USER];
    int n_gen, n_phase, users[MOST_PHASE];
    int32_t *said; /* [n_phase][MOST_USER][n_gen] tokens without drafts */
};

static int32_t *said_of(const struct moving *m, int phase, int user)
{
    return m->said + ((size_t)phase * MOST_USER + (size_t)user) * (size_t)m->n_gen;
}

static int start(struct moving *m, int phase, bool drafts)
{
    int32_t prompt[N_PROMPT];
    uint64_t n_vocab = (uint64_t)eng_vocab_size(eng_vocab(m->engine));
    int error = 0;
    for (int i = 0; i < m->users[phase] && !error; i++) {
        uint64_t seed = (uint64_t)(phase * MOST_USER + i);
        for (int k = 0; k < N_PROMPT; k++)
            prompt[k] = (int32_t)(kn_mix(seed * N_PROMPT + (uint64_t)k) % n_vocab);
        struct eng_request r = { .token = prompt, .n_token = N_PROMPT, .n_predict = m->n_gen, .ignore_eos = true };
        spec_params_default(&r.sampling);
        r.sampling.temperature = 1;
        r.sampling.seed = seed;
        if (!(error = eng_session_open(&m->session[i], m->engine)) && !(error = eng_session_start(m->session[i], &r)) &&
            drafts)
            eng_session_set_oracle(m->session[i], said_of(m, phase, i), m->n_gen);
    }
    return error;
}

/* One step; counts the users that have their first token, and the users still decoding. */
static int step(struct moving *m, int n_user, int *n_begun, int *n_left)
{
    int got = eng_step(m->engine, m->event), n;
    for (int i = 0; i < got; i++)
        if (m->event[i].finish == ENG_FAILED)
            return m->event[i].status;
    *n_begun = *n_left = 0;
    for (int i = 0; i < n_user; i++) {
        eng_session_tokens(m->session[i], &n);
        *n_begun += n > N_PROMPT;
        *n_left += eng_session_runs(m->session[i]);
    }
    return got < 0 ? got : 0;
}

/* Returns the seconds of decoding; < 0: failed. */
static double play(struct moving *m, int phase, bool drafts)
{
    int n_user = m->users[phase], n_begun = 0, n_left = n_user, n;
    double seconds = -1;
    eng_set_gamma(m->engine, 0);
    int error = start(m, phase, drafts);
    while (!error && n_begun < n_user)
        error = step(m, n_user, &n_begun, &n_left);
    if (drafts)
        eng_set_gamma(m->engine, ENG_GAMMA_AUTO);
    uint64_t began = kn_now_ns();
    while (!error && n_left > 0)
        error = step(m, n_user, &n_begun, &n_left);
    if (!error)
        seconds = (double)(kn_now_ns() - began) * 1e-9;
    for (int i = 0; i < n_user && !error; i++) {
        const int32_t *token = eng_session_tokens(m->session[i], &n) + N_PROMPT;
        size_t bytes = (size_t)m->n_gen * sizeof *token;
        if (!drafts)
            memcpy(said_of(m, phase, i), token, bytes);
        else if (memcmp(said_of(m, phase, i), token, bytes)) {
            fprintf(stderr, "user %d of phase %d was told something else with drafts: this must not be\n", i, phase);
            seconds = -1;
        }
    }
    for (int i = 0; i < n_user; i++) {
        eng_session_close(m->session[i]);
        m->session[i] = NULL;
    }
    return seconds;
}

static int play_round(struct moving *m, int round)
{
    double off[MOST_PHASE], on[MOST_PHASE], off_all = 0, on_all = 0, tokens = 0;
    struct eng_stats before, after;
    for (int i = 0; i < m->n_phase; i++)
        if ((off[i] = play(m, i, false)) < 0)
            return 1;
    for (int i = 0; i < m->n_phase; i++) {
        eng_stats_get(m->engine, &before);
        if ((on[i] = play(m, i, true)) < 0)
            return 1;
        eng_stats_get(m->engine, &after);
        double n = m->users[i] * (m->n_gen - 1.0);
        printf("%d,%d,%d,%.3f,%.3f,%.4f,%llu,%llu\n", round, i, m->users[i], n / off[i], n / on[i], off[i] / on[i],
               (unsigned long long)(after.n_draft - before.n_draft),
               (unsigned long long)(after.n_draft_kept - before.n_draft_kept));
        fflush(stdout);
        tokens += n;
        off_all += off[i];
        on_all += on[i];
    }
    printf("%d,all,,%.3f,%.3f,%.4f,,\n", round, tokens / off_all, tokens / on_all, off_all / on_all);
    return 0;
}

int main(int argc, char **argv)
{
    struct moving m = { 0 };
    struct eng_options o = {
        .isa = KN_ISA_COUNT - 1, .gamma = ENG_GAMMA_AUTO, .n_draft = 1, .max_prefill_slowdown = 1e9
    };
    if (argc < 6 || eng_draft_parse(&o.draft[0], argv[3])) {
        fprintf(stderr, "usage: moving MODEL HOST_MEM_MIB DRAFT GEN USERS,USERS,... [ROUNDS]\n");
        return 2;
    }
    o.model = argv[1];
    o.host_mem = (size_t)strtoull(argv[2], NULL, 10) << 20;
    m.n_gen = atoi(argv[4]);
    for (char *s = argv[5]; *s && m.n_phase < MOST_PHASE; s += *s == ',') {
        m.users[m.n_phase] = kn_min(kn_max((int)strtol(s, &s, 10), 1), MOST_USER);
        o.n_parallel = kn_max(o.n_parallel, m.users[m.n_phase++]);
    }
    o.n_ctx = N_PROMPT + m.n_gen + 1;
    m.said = calloc((size_t)kn_max(m.n_phase, 1) * MOST_USER * (size_t)kn_max(m.n_gen, 1), sizeof *m.said);
    if (m.n_gen < 2 || !m.said || eng_open(&m.engine, &o))
        return 2;
    m.event = calloc((size_t)eng_event_room(m.engine), sizeof *m.event);
    printf("round,phase,users,off_tokens_per_s,draft_tokens_per_s,ratio,drafted,kept\n");
    int failed = m.event ? 0 : 1;
    for (int i = 0; i < (argc > 6 ? atoi(argv[6]) : 1) && !failed; i++)
        failed = play_round(&m, i);
    eng_close(m.engine);
    free(m.event);
    free(m.said);
    return failed;
}
