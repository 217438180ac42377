/* evals/lengths/record.c - records the model's feature and the accepted length of the next draft: training data of
 * the length predictor.
 *
 *     record MODEL PROMPTS.jsonl TEMPERATURE DRAFTER > RECORDS
 *
 * Prompts as for acceptance; each is answered alone, up to 192 tokens. A pass is one record of floats: the
 * prompt's number; SPEC_LENGTHS lengths; the survival to each of SPEC_DEPTHS depths as the drafter estimates it; the
 * d_model values of the feature. One draft of 64 nodes contains the drafts of all widths and depths: the one of a
 * width and depth is the likeliest width x depth of the nodes that are not deeper. Under coupled verification the
 * accepted nodes of a part are the accepted nodes of the whole that lie in the part. */
#include "evals/prompts.h"
#include "engine/internal.h"
#include "speculative/lengths.h"

#include <stdio.h>
#include <stdlib.h>

enum { NEW = 192, LONGEST = 320 };

/* Orders nodes by survival, the earlier of equals first: parents precede children. */
static int rank(const struct spec_tree *t, int *order)
{
    for (int i = 0; i < t->n; i++) {
        int at = i;
        for (; at > 0 && t->survival[order[at - 1]] < t->survival[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return t->n;
}

/* The number of accepted nodes that lie in a part of the tree: the first `nodes` nodes by `order` that are at most
 * `depth` deep. */
static int kept_of(const struct spec_tree *t, const struct spec_verify *v, const int *order, int nodes, int depth)
{
    bool in[SPEC_NODES] = { false };
    int kept = 0;
    for (int i = 0; i < t->n && nodes > 0; i++)
        if (t->depth[order[i]] <= depth) {
            in[order[i]] = true;
            nodes--;
        }
    while (kept < v->n_path && in[v->path[kept]])
        kept++;
    return kept;
}

static void write_record(int prompt, const struct eng_session *s, const float *feature, int d_model)
{
    const struct spec_tree *t = s->seq.tree;
    float head[1 + SPEC_LENGTHS + SPEC_DEPTHS] = { (float)prompt }, *survival = head + 1 + SPEC_LENGTHS;
    int order[SPEC_NODES];
    rank(t, order);
    for (int i = 0; i < SPEC_LENGTHS; i++) {
        int depth = spec_length_depth(i);
        head[1 + i] = (float)kept_of(t, &s->seat->verify, order, spec_length_width(i) * depth, depth);
    }
    for (int i = 0; i < t->n; i++)
        if (t->depth[i] <= SPEC_DEPTHS)
            survival[t->depth[i] - 1] += t->survival[i];
    fwrite(head, sizeof *head, sizeof head / sizeof *head, stdout);
    fwrite(feature, sizeof *feature, (size_t)d_model, stdout);
}

static int answer(struct eng_engine *e, const struct eng_ids *ids, float temperature, int prompt,
                  struct eng_event *event, float *feature)
{
    struct eng_request r = { .token = ids->id, .n_token = (int)ids->n, .n_predict = NEW };
    struct eng_session *s;
    spec_params_default(&r.sampling);
    r.sampling.temperature = temperature;
    r.sampling.seed = (uint64_t)prompt;
    int error = eng_session_open(&s, e);
    if (!error)
        error = eng_session_start(s, &r);
    while (!error && eng_session_runs(s)) {
        struct eng_seat *seat = s->seat;
        bool thought = seat && s->seq.n_kv > 0;
        if (thought)
            moe_context_feature(e->assets.context, s->seq.path.slot[s->seq.n_kv - 1], feature);
        int n = eng_step(e, event);
        error = n < 0 ? n : 0;
        if (!error && thought && s->seat == seat && s->seq.tree->n) /* not the last pass, which accepts fewer tokens */
            write_record(prompt, s, feature, moe_model_shape(e->assets.model)->d_model);
    }
    eng_session_close(s);
    return error;
}

int main(int argc, char **argv)
{
    struct eng_options o = {
        .isa = KN_ISA_COUNT - 1, .n_thread = 1, .n_parallel = 1, .n_ctx = LONGEST + NEW, .features = true, .n_draft = 1
    };
    struct eng_chat *chat = NULL;
    struct eng_ids ids = { 0 };
    struct eng_engine *e;
    if (argc != 5) {
        fprintf(stderr, "record MODEL PROMPTS.jsonl TEMPERATURE DRAFTER\n");
        return 2;
    }
    o.model = argv[1];
    if (read_prompts(argv[2]) || eng_draft_parse(&o.draft[0], argv[4]))
        return 2;
    bool tree = o.draft[0].tree != ENG_TREE_CHAIN;
    o.gamma = tree ? SPEC_NODES : SPEC_DEPTHS; /* a chain has no width: a part is a prefix */
    int error = eng_open(&e, &o);
    if (error)
        return 2;
    struct eng_event *event = kn_calloc((size_t)eng_event_room(e), sizeof *event);
    float *feature = kn_calloc((size_t)moe_model_shape(e->assets.model)->d_model, sizeof *feature);
    error = event && feature ? eng_chat_open(&chat, eng_file(e), eng_vocab(e), argv[1]) : KN_ENOMEM;
    for (int i = 0; i < n_prompt && !error; i++)
        if (!(error = render(chat, prompts[i].text, &ids)) && ids.n <= LONGEST)
            error = answer(e, &ids, strtof(argv[3], NULL), i, event, feature);
    eng_ids_free(&ids);
    eng_chat_close(chat);
    kn_free(event);
    kn_free(feature);
    eng_close(e);
    return error ? 1 : 0;
}
