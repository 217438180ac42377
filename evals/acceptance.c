/* evals/acceptance.c - tokens per pass of the model, by drafter and draft length.
 *
 *     acceptance MODEL PROMPTS.jsonl TEMPERATURE[:RULE] GAMMA[,GAMMA]... DRAFTER[+DRAFTER]...
 *
 * A line of PROMPTS has a question, a prompt or turns, of which the first counts: the user message. DRAFTER as for
 * --draft; several with + draft one tree. RULE as for --verify; default coupled. Each prompt is answered alone, 128
 * tokens at most; passes and tokens are counted from after the first token, which the prefill gives.
 * Prompts of more than 320 tokens are left out, as in evals/train/measure.py. Under coupled every drafter
 * must give the same answers as the previous one.
 * Intervals: 95 %, bootstrap over prompts. Prints CSV. The last two columns are times of this machine, reliable
 * only if it is idle: drafting time per drafted token, the drafter's prefill of accepted tokens included, and the
 * model's time per pass. */
#include "evals/prompts.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEW = 128, LONGEST = 320, DRAWS = 2000 };

struct counts {
    double tokens, passes;
};
struct times {
    double drafted, draft_ns, passes, pass_ns;
};

static const char *const rules[] = { "coupled", "ratio", "block" };
static enum spec_rule rule;

/* Adds the times of one step, from the statistics before and after it. */
static void add_times(struct times *t, const struct eng_stats *a, const struct eng_stats *b)
{
    t->drafted += (double)(b->n_draft - a->n_draft);
    t->draft_ns += (double)(b->draft_ns - a->draft_ns);
    t->passes += (double)(b->n_pass - a->n_pass);
    t->pass_ns += (double)(b->pass_ns - a->pass_ns);
}

/* Answers one prompt.  Returns 0; 1 if the answer has fewer than two tokens and so does not count; or KN_E*. */
static int answer(struct eng_engine *e, const struct eng_ids *ids, float temperature, struct prompt *p,
                  struct eng_event *event, struct counts *out, struct times *times)
{
    struct eng_request r = { .token = ids->id, .n_token = (int)ids->n, .n_predict = NEW };
    struct eng_session *s;
    uint64_t hash = 1;
    *out = (struct counts){ 0 };
    spec_params_default(&r.sampling);
    r.sampling.temperature = temperature;
    r.sampling.seed = (uint64_t)(p - prompts);
    int error = eng_session_open(&s, e), n_token = 0;
    if (!error)
        error = eng_session_start(s, &r);
    while (!error && eng_session_runs(s)) {
        struct eng_stats before, after;
        eng_stats_get(e, &before);
        int n = eng_step(e, event);
        eng_stats_get(e, &after);
        error = n < 0 ? n : 0;
        if (n_token > 1) /* in earlier steps a drafter prefills the prompt */
            add_times(times, &before, &after);
        out->passes += n_token > 0;
        for (int i = 0; i < n; i++, n_token++)
            hash = kn_mix(hash + (uint64_t)event[i].token + KN_GOLDEN);
    }
    eng_session_close(s);
    out->tokens = n_token - 1;
    if (!error && rule == SPEC_COUPLED && p->said && p->said != hash)
        error = kn_fail(KN_ECORRUPT, "an answer is another with drafts: this must not be");
    p->said = hash;
    return error ? error : n_token < 2;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double us_each(double ns, double n) { return n > 0 ? ns / n / 1e3 : 0; }

static void report(const char *drafter, const char *gamma, float temperature, const struct counts *c, int n,
                   double drafted, const struct times *took)
{
    static double ratio[DRAWS];
    double tokens = 0, passes = 0;
    uint64_t random = 2;
    for (int i = 0; i < n; i++) {
        tokens += c[i].tokens;
        passes += c[i].passes;
    }
    for (int k = 0; k < DRAWS; k++) {
        double t = 0, p = 0;
        for (int i = 0; i < n; i++) {
            int at = (int)(kn_mix(random += KN_GOLDEN) % (uint64_t)n);
            t += c[at].tokens;
            p += c[at].passes;
        }
        ratio[k] = t / p;
    }
    qsort(ratio, DRAWS, sizeof *ratio, by_value);
    printf("%g,%s,\"%s\",%s,%d,%.0f,%.2f,%.3f,%.3f,%.3f,%.1f,%.1f\n", (double)temperature, rules[rule], drafter, gamma,
           n, tokens, drafted / passes, tokens / passes, ratio[DRAWS / 40], ratio[DRAWS - DRAWS / 40],
           us_each(took->draft_ns, took->drafted), us_each(took->pass_ns, took->passes));
    fflush(stdout);
}

static int parse_drafters(struct eng_options *o, const char *text)
{
    char copy[1024], *rest;
    int error = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *d = strtok_r(copy, "+", &rest); d && !error && o->n_draft < ENG_DRAFTERS_MOST;
         d = strtok_r(NULL, "+", &rest))
        error = eng_draft_parse(&o->draft[o->n_draft++], d);
    return error;
}

static int measure(const char *model, const char *drafter, const char *gamma, float temperature)
{
    static struct counts counts[MOST_PROMPT];
    struct eng_options o = { .model = model,
                             .isa = KN_ISA_COUNT - 1,
                             .n_thread = 1,
                             .n_parallel = 1,
                             .n_ctx = LONGEST + NEW,
                             .gamma = !strcmp(gamma, "auto") ? ENG_GAMMA_AUTO : atoi(gamma),
                             .verify = rule };
    struct eng_engine *e;
    struct eng_chat *chat = NULL;
    struct eng_ids ids = { 0 };
    struct eng_stats stats = { 0 };
    struct times times = { 0 };
    int error = parse_drafters(&o, drafter), n = 0;
    if (error || (error = eng_open(&e, &o)))
        return error;
    struct eng_event *event = kn_calloc((size_t)eng_event_room(e), sizeof *event);
    error = event ? eng_chat_open(&chat, eng_file(e), eng_vocab(e), model) : KN_ENOMEM;
    for (int i = 0; i < n_prompt && error >= 0; i++)
        if ((error = render(chat, prompts[i].text, &ids)) == 0 && ids.n <= LONGEST)
            n += (error = answer(e, &ids, temperature, &prompts[i], event, &counts[n], &times)) == 0;
    eng_stats_get(e, &stats);
    if (error >= 0)
        report(drafter, gamma, temperature, counts, n, (double)stats.n_draft, &times);
    eng_ids_free(&ids);
    eng_chat_close(chat);
    kn_free(event);
    eng_close(e);
    return error < 0 ? error : 0;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "acceptance MODEL PROMPTS.jsonl TEMPERATURE[:RULE] GAMMA[,GAMMA]... DRAFTER[+DRAFTER]...\n");
        return 2;
    }
    const char *colon = strchr(argv[3], ':');
    while (colon && rule <= SPEC_BLOCK && strcmp(colon + 1, rules[rule]))
        rule++;
    if (rule > SPEC_BLOCK) {
        fprintf(stderr, "%s: rules are coupled, ratio and block\n", argv[3]);
        return 2;
    }
    if (read_prompts(argv[2]))
        return 2;
    puts("temperature,rule,drafter,gamma,n_prompt,n_token,drafted_per_pass,tokens_per_pass,low,high,"
         "draft_us,pass_us");
    for (int i = 5; i < argc; i++) {
        char gammas[256], *rest;
        snprintf(gammas, sizeof gammas, "%s", argv[4]);
        for (char *g = strtok_r(gammas, ",", &rest); g; g = strtok_r(NULL, ",", &rest))
            if (measure(argv[1], argv[i], g, strtof(argv[3], NULL)))
                return 1;
    }
    return 0;
}
