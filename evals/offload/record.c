/* evals/offload/record.c - records the experts chosen by a model's rows, as a trace for replay.
 *
 * Streams run one after another, alone, so that a turn has the experts of one row. Tokens are sampled at
 * temperature 1, with another seed for each answer; prefill passes are not recorded.
 *
 *   record MODEL STREAMS PASSES [PROMPTS] > FILE
 *
 * PROMPTS has a prompt on each line, "\n" in it for a new line, and the text of special tokens for them.
 * Stream s takes lines s, s + STREAMS, ... until it has its passes. Without PROMPTS each stream starts with
 * eight random tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

#define MOST_LINE   8192
#define MOST_EXPERT 4096

struct recorder {
    struct eng_engine *engine;
    struct eng_session *session;
    struct off_store *store;
    const struct moe_shape *shape;
    struct off_trace trace; /* of one pass */
    FILE *prompts;
    int n_group, n_stream, n_pass;
    uint64_t seed;
};

/* Reads the stream's next line, unescaped; false at the end of the file. */
static bool next_prompt(struct recorder *r, int stream, int *line, char *text)
{
    while (fgets(text, MOST_LINE, r->prompts)) {
        if ((*line)++ % r->n_stream != stream)
            continue;
        char *to = text;
        for (char *at = text; *at && *at != '\n'; at++, to++) {
            bool is_break = at[0] == '\\' && at[1] == 'n';
            *to = is_break ? '\n' : *at;
            at += is_break;
        }
        *to = '\0';
        return true;
    }
    return false;
}

static int read_tokens(struct recorder *r, int stream, int *line, struct eng_ids *ids)
{
    char text[MOST_LINE];
    ids->n = 0;
    if (r->prompts && !next_prompt(r, stream, line, text))
        return kn_fail(KN_EINVAL, "there are too few prompts for stream %d", stream);
    if (r->prompts)
        return eng_tokenize(eng_vocab(r->engine), text, strlen(text), ENG_TEXT_ADD_BOS | ENG_TEXT_PARSE_SPECIAL, ids);
    for (int i = 0, error; i < 8; i++)
        if ((error = eng_ids_push(ids, (int32_t)(kn_mix(r->seed += KN_GOLDEN) % (uint64_t)r->shape->n_vocab))) != 0)
            return error;
    return 0;
}

/* Writes the pass in r->trace: a bitmap for each turn. The first pass sets r->n_group, the number of turns, and writes
 * the head of the file; false if a later pass has another number of turns, or a write has failed. */
static bool write_pass(struct recorder *r)
{
    const struct off_trace *t = &r->trace;
    int n = r->shape->n_expert, n_turn = 0;
    for (size_t at = 0; at < t->n; at += (size_t)t->item[at] + 1)
        n_turn++;
    if (!r->n_group) {
        r->n_group = n_turn;
        printf("spillway-trace 1\nstreams %d\npasses %d\ngroups %d\nexperts", r->n_stream, r->n_pass, n_turn);
        for (int g = 0; g < n_turn; g++)
            printf(" %d", n);
        puts("");
    }
    for (size_t at = 0; at < t->n; at += (size_t)t->item[at] + 1) {
        uint8_t bits[MOST_EXPERT / 8] = { 0 };
        for (int i = 0; i < t->item[at]; i++) {
            int e = t->item[at + 1 + (size_t)i] % n;
            bits[e / 8] |= (uint8_t)(1 << e % 8);
        }
        fwrite(bits, 1, (size_t)(n + 7) / 8, stdout);
    }
    return n_turn == r->n_group && !ferror(stdout);
}

/* Runs one answer, or as many of its passes as are still needed. */
static int answer(struct recorder *r, const struct eng_ids *ids, int *n_left)
{
    struct eng_request request = {
        .token = ids->id, .n_token = (int)ids->n, .n_predict = -1, .ignore_eos = !r->prompts
    };
    struct eng_event event[2];
    spec_params_default(&request.sampling);
    request.sampling.temperature = 1;
    request.sampling.seed = r->seed++;
    int error = eng_session_start(r->session, &request);
    for (bool begun = false; !error && *n_left > 0 && eng_session_runs(r->session);) {
        r->trace.n = 0;
        off_store_record(r->store, &r->trace);
        int n = eng_step(r->engine, event);
        off_store_record(r->store, NULL);
        if (n < 0 || (n > 0 && event->status))
            error = n < 0 ? n : event->status;
        else if (begun && r->trace.n && !write_pass(r))
            error = kn_fail(KN_EIO, "the trace cannot be written");
        else if (begun && r->trace.n)
            --*n_left;
        begun |= n > 0;
    }
    eng_session_stop(r->session);
    return error;
}

static int record(struct recorder *r)
{
    struct eng_ids ids = { 0 };
    int error = 0;
    for (int stream = 0; !error && stream < r->n_stream; stream++) {
        int line = 0, n_left = r->n_pass;
        if (r->prompts)
            rewind(r->prompts);
        while (!error && n_left > 0)
            if ((error = read_tokens(r, stream, &line, &ids)) == 0)
                error = answer(r, &ids, &n_left);
    }
    eng_ids_free(&ids);
    return error;
}

int main(int argc, char **argv)
{
    struct recorder r = { .n_stream = argc > 2 ? atoi(argv[2]) : 0, .n_pass = argc > 3 ? atoi(argv[3]) : 0 };
    if (argc > 4)
        r.prompts = fopen(argv[4], "r");
    if (r.n_stream < 1 || r.n_pass < 1 || (argc > 4 && !r.prompts)) {
        fputs("record MODEL STREAMS PASSES [PROMPTS] > FILE\n", stderr);
        return 2;
    }
    int error = eng_open(
        &r.engine, &(struct eng_options){ .model = argv[1], .isa = KN_ISA_COUNT - 1, .n_parallel = 1, .n_ctx = 512 });
    if (!error && !(r.store = moe_model_store(eng_model(r.engine))))
        error = kn_fail(KN_EINVAL, "%s: has no experts", argv[1]);
    if (!error && (r.shape = moe_model_shape(eng_model(r.engine)))->n_expert > MOST_EXPERT)
        error = kn_fail(KN_EUNSUPPORTED, "%d experts: at most %d", r.shape->n_expert, MOST_EXPERT);
    if (!error) {
        r.trace.room = (size_t)(r.shape->n_layer * (r.shape->n_expert + 1));
        r.trace.item = kn_calloc(r.trace.room, sizeof *r.trace.item);
        error = r.trace.item ? eng_session_open(&r.session, r.engine) : KN_ENOMEM;
    }
    if (!error)
        error = record(&r);
    eng_session_close(r.session);
    eng_close(r.engine);
    kn_free(r.trace.item);
    if (r.prompts)
        fclose(r.prompts);
    return error ? 1 : 0;
}
