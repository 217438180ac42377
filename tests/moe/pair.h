/* tests/moe/pair.h - a model and a draft head, over the tokens of a fixture: the head's logits for the tokens, and
 * for the tokens that it drafts after them. */
#ifndef TESTS_MOE_PAIR_H
#define TESTS_MOE_PAIR_H

#include "tests/emulated/late.h"
#include "tests/moe/golden.h"

#define TOLERANCE 1e-4 /* of the largest logit, as in test_forward.c */
#define MOST      300
#define DEPTH     3
#define CHUNK     64
#define N_SLOT    (MOST + DEPTH) /* drafts have slots of their own, after the sequence's */

/* A model, its head, and the contexts that run both, on a device that runs operations late and has its own memory. */
struct pair {
    struct late_device late;
    struct golden g;
    struct moe_file *file;
    struct moe_model *model, *head;
    struct moe_context *context, *guesses;
    int32_t slot[N_SLOT];
    struct moe_row row[CHUNK];
};

/* Opens the model of p->file on the device. */
static inline void pair_model(struct pair *p, enum kn_isa isa, bool ahead)
{
    p->late = late_device_apart(kn_ops(isa)->isa, 1);
    struct moe_model_options o = { .isa = isa, .ahead = ahead, .device = &p->late.base };
    assert_int_equal(moe_model_open(&p->model, p->file, &o), 0);
}

/* Opens the contexts of both. */
static inline void pair_open(struct pair *p, struct kn_team *team)
{
    struct moe_context_options co = { .max_row = CHUNK,
                                      .max_want = CHUNK,
                                      .n_slot = N_SLOT,
                                      .max_pos = N_SLOT,
                                      .kv = KN_KV_F32,
                                      .features = moe_model_reads(p->head),
                                      .team = team };
    assert_int_equal(moe_context_open(&p->context, p->model, &co), 0);
    co.features = (struct moe_features){ 0 };
    co.target = p->context;
    assert_int_equal(moe_context_open(&p->guesses, p->head, &co), 0);
    for (int i = 0; i < N_SLOT; i++)
        p->slot[i] = i < p->g.n_tok ? (i * 7 + 3) % p->g.n_tok : i;
}

static inline void pair_close(struct pair *p)
{
    moe_context_close(p->guesses);
    moe_context_close(p->context);
    if (late_found())
        fail_msg("%s", late_found());
    moe_model_close(p->head);
    moe_model_close(p->model);
    moe_file_close(p->file);
    golden_free(&p->g);
}

static inline void pair_forward(struct moe_context *c, const struct moe_row *row, int n, struct moe_result *result)
{
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, result), 0);
    assert_int_equal(moe_rows_status(result, 0, n), 0);
}

/* Runs the tokens through the model and then the head: returns the head's logits of rows 0 .. n - 2. */
static inline float *pair_read(struct pair *p)
{
    struct moe_result result;
    int n = p->g.n_tok;
    float *out = calloc((size_t)n * (size_t)p->g.n_vocab, sizeof *out);
    for (int done = 0; done < n; done += CHUNK) {
        int n_row = kn_min(CHUNK, n - done);
        for (int i = 0; i < n_row; i++)
            p->row[i] = (struct moe_row){
                .token = p->g.token[done + i], .position = done + i, .base = p->slot, .n_base = n
            };
        pair_forward(p->context, p->row, n_row, &result);
    }
    for (int done = 0; done < n - 1; done += CHUNK) {
        int n_row = kn_min(CHUNK, n - 1 - done);
        for (int i = 0; i < n_row; i++) /* the head's row i holds token i + 1 */
            p->row[i] = (struct moe_row){ .token = p->g.token[done + i + 1],
                                          .position = done + i,
                                          .want_logits = true,
                                          .base = p->slot + 1,
                                          .n_base = n - 1,
                                          .feature_at = p->slot[done + i] };
        pair_forward(p->guesses, p->row, n_row, &result);
        memcpy(out + (size_t)done * (size_t)p->g.n_vocab, result.logits,
               (size_t)n_row * (size_t)p->g.n_vocab * sizeof *out);
    }
    return out;
}

/* Runs the row at pos again and continues from its features: `depth` drafts from the last true state. */
static inline const float *pair_guess(struct pair *p, int depth, int pos)
{
    struct moe_result result;
    struct moe_row row = { .token = p->g.token[pos + 1],
                           .position = pos,
                           .want_logits = true,
                           .base = p->slot + 1,
                           .n_base = pos + 1,
                           .tail = p->slot + p->g.n_tok,
                           .feature_at = p->slot[pos] };
    pair_forward(p->guesses, &row, 1, &result);
    for (int i = 2; i <= depth; i++) {
        row.token = p->g.token[pos + i];
        row.position++;
        row.from_result = true;
        row.feature_at = 0;
        pair_forward(p->guesses, &row, 1, &result);
    }
    return result.logits;
}

/* Reads one line "guess DEPTH POS .." of the fixture into r; the row follows the numbers. */
static inline bool pair_next(FILE *f, char *line, size_t bytes, int *depth, int *pos, struct golden_row *r)
{
    while (fgets(line, (int)bytes, f)) {
        char *s = line;
        if (strcmp(golden_word(&s), "guess") != 0)
            continue;
        *depth = atoi(golden_word(&s));
        *pos = atoi(golden_word(&s));
        golden_parse_row(r, s);
        return true;
    }
    return false;
}

#endif
