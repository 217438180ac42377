/* evals/foresight.c - how well the experts of a layer are predicted: by its own router on the rows one, two and
 * three layers earlier, and by the experts that the rows' tokens used the last time.
 *
 *     foresight MODEL BATCH[,BATCH]... TOKENS PROMPTS
 *
 * PROMPTS has a prompt on each line, "\n" in it for a new line, and the text of special tokens for them. BATCH
 * prompts are answered at once, at temperature 1 with a seed each, until TOKENS are generated; passes with prompt
 * rows are neither counted nor remembered. Precision: share of predicted experts that were used; recall: share of
 * used experts that were predicted. Prints CSV, a line for each layer and one for all. */
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PROMPT = 1000, MOST_LINE = 8192, MOST_BATCH = 64 };

static char *prompts[MOST_PROMPT];
static int n_prompt;

static void unescape(char *text)
{
    char *to = text;
    for (char *at = text; *at && *at != '\n'; at++, to++) {
        bool is_break = at[0] == '\\' && at[1] == 'n';
        *to = is_break ? '\n' : *at;
        at += is_break;
    }
    *to = '\0';
}

static int read_prompts(const char *path)
{
    char line[MOST_LINE];
    FILE *f = fopen(path, "r");
    if (!f)
        return kn_fail(KN_EINVAL, "%s cannot be opened", path);
    while (n_prompt < MOST_PROMPT && fgets(line, sizeof line, f)) {
        unescape(line);
        if (!(prompts[n_prompt++] = strdup(line)))
            break;
    }
    fclose(f);
    return n_prompt ? 0 : kn_fail(KN_EINVAL, "%s has no prompts", path);
}

static int start(struct eng_engine *e, struct eng_session *s, int which)
{
    struct eng_ids ids = { 0 };
    const char *text = prompts[which % n_prompt];
    int error = eng_tokenize(eng_vocab(e), text, strlen(text), ENG_TEXT_ADD_BOS | ENG_TEXT_PARSE_SPECIAL, &ids);
    struct eng_request r = { .token = ids.id, .n_token = (int)ids.n, .n_predict = 128 };
    spec_params_default(&r.sampling);
    r.sampling.temperature = 1;
    r.sampling.seed = (uint64_t)which;
    if (!error)
        error = eng_session_start(s, &r);
    eng_ids_free(&ids);
    return error;
}

static void report(const struct eng_engine *e, const struct moe_sight *sight, int batch)
{
    static const char *const how[MOE_SIGHTS] = { "1", "2", "3", "token" };
    int n_layer = moe_model_shape(eng_model(e))->n_layer;
    for (int k = 0; k < MOE_SIGHTS; k++) {
        struct moe_sight all = { 0 };
        for (int layer = 0; layer <= n_layer; layer++) {
            const struct moe_sight *s = layer < n_layer ? &sight[layer * MOE_SIGHTS + k] : &all;
            if (!s->used)
                continue;
            printf("%d,%s,", batch, how[k]);
            printf(layer < n_layer ? "%d" : "all", layer);
            printf(",%.4f,%.4f\n", s->guessed ? (double)s->right / (double)s->guessed : 0,
                   (double)s->right / (double)s->used);
            if (layer < n_layer)
                all = (struct moe_sight){ all.guessed + s->guessed, all.used + s->used, all.right + s->right };
        }
    }
}

/* A session without an answer in progress starts the next prompt; answers in progress at the end stay unfinished. */
static int measure(struct eng_engine *e, struct moe_sight *sight, int batch, int n_token)
{
    struct eng_event event[MOST_BATCH * 2];
    struct eng_session *s[MOST_BATCH];
    int error = 0, which = 0, n_said = 0;
    for (int i = 0; i < batch && !error; i++)
        error = eng_session_open(&s[i], e);
    while (!error && n_said < n_token) {
        bool reads = false;
        for (int i = 0; i < batch && !error; i++) {
            if (!eng_session_runs(s[i]))
                error = start(e, s[i], which++);
            reads |= s[i]->seq.n_token - s[i]->seq.n_kv > 1;
        }
        moe_context_watch(e->assets.context, reads ? NULL : sight);
        int n = error ? error : eng_step(e, event);
        error = n < 0 ? n : 0;
        n_said += reads ? 0 : n;
    }
    for (int i = 0; i < batch; i++)
        eng_session_close(s[i]);
    return error;
}

static int measure_batch(const char *path, int batch, int n_token)
{
    struct eng_engine *e;
    struct eng_options o = { .model = path,
                             .isa = KN_ISA_COUNT - 1,
                             .n_parallel = batch,
                             .n_ctx = 768,
                             .n_draft = 1,
                             .draft = { { .kind = ENG_DRAFT_NGRAM } },
                             .gamma = ENG_GAMMA_AUTO };
    int error = eng_open(&e, &o); /* with a drafter, the experts of tokens are remembered */
    if (error)
        return error;
    eng_set_gamma(e, 0);
    struct moe_sight *sight = kn_calloc((size_t)moe_model_shape(eng_model(e))->n_layer * MOE_SIGHTS, sizeof *sight);
    error = sight ? measure(e, sight, batch, n_token) : KN_ENOMEM;
    if (!error)
        report(e, sight, batch);
    kn_free(sight);
    eng_close(e);
    return error;
}

int main(int argc, char **argv)
{
    if (argc != 5 || atoi(argv[3]) < 1) {
        fputs("foresight MODEL BATCH[,BATCH]... TOKENS PROMPTS\n", stderr);
        return 2;
    }
    if (read_prompts(argv[4]))
        return 2;
    puts("batch,distance,layer,precision,recall");
    for (char *rest, *b = strtok_r(argv[2], ",", &rest); b; b = strtok_r(NULL, ",", &rest)) {
        int batch = atoi(b);
        if (batch < 1 || batch > MOST_BATCH || measure_batch(argv[1], batch, atoi(argv[3])))
            return 2;
    }
    return 0;
}
