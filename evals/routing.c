/* evals/routing.c - the number of experts that t tokens use, and the spread of the logits.
 *
 * Feeds t sequences of distinct random tokens through a model and looks at their last tokens, one
 * of each sequence in a batch. Prints CSV: the distinct experts per layer, beside the expected number for
 * independent uniform choices of n_used, N(t) = E (1 - (1 - K/E)^t); the root mean square of the logits,
 * and the mean correlation of the first sequence's logits with those of each other sequence (1: every context
 * gives the same, 0: independent).
 *
 *   routing MODEL [PAST]              PAST tokens before the last one, default 64 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe/moe.h"

#define MOST_SEQ 64

struct run {
    struct moe_model *model;
    struct moe_context *context;
    const struct moe_shape *shape;
    int32_t *slot; /* [MOST_SEQ][past + 1] the sequences' own slots */
    int past;
};

static int feed(struct run *r, int n_seq, int first, int n_pos, bool want, struct moe_result *out)
{
    struct moe_row *row = kn_calloc((size_t)(n_seq * n_pos), sizeof *row);
    if (!row)
        return KN_ENOMEM;
    for (int i = 0; i < n_seq * n_pos; i++) {
        int seq = i / n_pos, pos = first + i % n_pos;
        uint64_t noise = kn_mix(KN_GOLDEN * (uint64_t)(seq * 100003 + pos + 1));
        row[i] = (struct moe_row){
            .token = (int32_t)(noise % (unsigned)r->shape->n_vocab),
            .position = pos,
            .want_logits = want,
            .base = r->slot + (size_t)seq * (size_t)(r->past + 1),
            .n_base = r->past + 1,
        };
    }
    int err = moe_forward(r->context, &(struct moe_batch){ .row = row, .n_row = n_seq * n_pos }, out);
    kn_free(row);
    return err;
}

static double correlation(const float *a, const float *b, int n)
{
    double ab = 0, aa = 0, bb = 0, ma = 0, mb = 0;
    for (int i = 0; i < n; i++) {
        ma += (double)a[i] / n;
        mb += (double)b[i] / n;
    }
    for (int i = 0; i < n; i++) {
        double x = (double)a[i] - ma, y = (double)b[i] - mb;
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return ab / sqrt(aa * bb);
}

static void report(const struct run *r, int t, const struct moe_result *result)
{
    int n = r->shape->n_vocab, e = r->shape->n_expert, pairs = 0;
    double square = 0, alike = 0;
    for (int i = 0; i < t * n; i++)
        square += (double)result->logits[i] * (double)result->logits[i];
    for (int i = 1; i < t; i++, pairs++)
        alike += correlation(result->logits, result->logits + (size_t)i * (size_t)n, n);
    double independent = e ? e * (1 - kn_pow(1 - (double)r->shape->n_used / e, t)) : 0;
    printf("%d,%d,%.2f,%.2f,%.3f,%.3f,%.3f\n", r->past, t, result->experts_per_layer, independent,
           independent > 0 ? result->experts_per_layer / independent : 0, sqrt(square / t / n),
           pairs ? alike / pairs : 0);
}

static int measure(struct run *r)
{
    struct moe_result result;
    int err = 0;
    for (int seq = 0; !err && seq < MOST_SEQ * (r->past + 1); seq++)
        r->slot[seq] = seq;
    for (int pos = 0; !err && pos < r->past; pos++)
        err = feed(r, MOST_SEQ, pos, 1, false, &result);
    puts("past,tokens,experts_per_layer,independent,ratio,logit_deviation,logit_correlation");
    for (int t = 1; !err && t <= MOST_SEQ; t *= 2) {
        err = feed(r, t, r->past, 1, true, &result);
        if (!err)
            report(r, t, &result);
    }
    return err;
}

int main(int argc, char **argv)
{
    struct run r = { .past = argc > 2 ? atoi(argv[2]) : 64 };
    struct moe_file *f = NULL;
    struct kn_team *team = NULL;
    if (argc < 2 || r.past < 0 || kn_team_open(&team, 0) || moe_file_open(&f, argv[1]))
        return 2;
    int err = moe_model_open(&r.model, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 });
    if (!err)
        err = moe_model_load(r.model, &(struct moe_load_options){ .team = team });
    if (!err) {
        r.shape = moe_model_shape(r.model);
        struct moe_context_options co = {
            .max_row = MOST_SEQ,
            .max_want = MOST_SEQ,
            .n_slot = MOST_SEQ * (r.past + 1),
            .max_pos = r.past + 1,
            .kv = KN_KV_F16,
            .team = team,
        };
        r.slot = kn_calloc((size_t)co.n_slot, sizeof *r.slot);
        err = r.slot ? moe_context_open(&r.context, r.model, &co) : KN_ENOMEM;
    }
    if (!err)
        err = measure(&r);
    moe_context_close(r.context);
    moe_model_close(r.model);
    moe_file_close(f);
    kn_free(r.slot);
    kn_team_close(team);
    return err ? 1 : 0;
}
