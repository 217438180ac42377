/* evals/lengths/compare.c - compares predictions of the accepted draft length, on records of record.c.
 *
 *     compare NET.gguf RECORDS DRAFT PASS_ROW FIRST_PROMPT > table.csv
 *
 * The controller goes through the records from FIRST_PROMPT on as it would during generation, once learning
 * from outcomes only, once with the network's prediction before each draft; beside them the mean accepted length of all
 * records, which is unknown in practice, and the truth. error: root mean square of accepted minus predicted
 * tokens, for drafts 4 and 8 deep. speed: tokens per time when each pass uses the depth of the best expected speed,
 * over no drafts, where a draft pass takes DRAFT of a plain pass and each further row PASS_ROW of it. */
#include "engine/base/base.h"
#include "speculative/internal.h"
#include "speculative/lengths.h"
#include "engine/cli/cli.h"
#include "engine/draft/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 1 + SPEC_LENGTHS + SPEC_DEPTHS };
enum who { MEAN, ONLINE, TOLD, TRUTH, N_WHO };
static const char *const name[] = { "mean of all", "controller", "controller, told", "truth" };

struct tally {
    double square[2], tokens, time;
};

static double draft_cost, row_cost;

static const float *lengths_of(const float *record) { return record + 1; }

/* Sets out[d - 1] to the survival of a draft to depth d, from the lengths [SPEC_LENGTHS] of all widths: those of the
 * largest width, four, are used. The lengths of a chain are the same at every width. */
static void survival_of(const double *length, double *out)
{
    spec_lengths_survival(length + (SPEC_LENGTH_WIDTHS - 1) * SPEC_LENGTH_DEPTHS, out);
}

static double kept_to(const double *survival, int depth)
{
    double sum = 0;
    for (int d = 0; d < depth; d++)
        sum += survival[d];
    return sum;
}

static double time_of(int depth) { return 1 + depth * (draft_cost + row_cost); }

static int best_depth(const double *survival)
{
    int best = 0;
    for (int d = 1; d <= SPEC_DEPTHS; d++)
        if ((1 + kept_to(survival, d)) / time_of(d) > (1 + kept_to(survival, best)) / time_of(best))
            best = d;
    return best;
}

/* kept: accepted tokens of the deepest draft. */
static void judge(struct tally *t, const double *survival, int kept)
{
    int depth = best_depth(survival);
    for (int i = 0; i < 2; i++) {
        double error = kept_to(survival, 4 << i) - kn_min(kept, 4 << i);
        t->square[i] += error * error;
    }
    t->tokens += 1 + kn_min(kept, depth);
    t->time += time_of(depth);
}

/* Learns from a draft that was requested and verified whole. */
static void learn(struct spec_control *c, const float *record, int kept)
{
    static struct spec_tree tree;
    struct spec_decision d;
    float most = 1;
    int session = 0, nodes;
    spec_control_decide(c, &session, 1, 0, &d, &nodes);
    spec_tree_clear(&tree);
    for (int i = 0; i < SPEC_DEPTHS && record[1 + SPEC_LENGTHS + i] > 0; i++)
        spec_tree_add(&tree, i - 1, i, most = fminf(most, record[1 + SPEC_LENGTHS + i]), 1);
    struct spec_cut cut = { .session = 0, .tree = &tree, .n_requested = SPEC_DEPTHS };
    spec_control_cut(c, &cut, 1, 0);
    struct spec_session_outcome o = { 0, &tree, kn_min(kept, tree.n), NULL };
    spec_control_learn(c,
                       &(struct spec_outcome_of_pass){ .n_row = 1 + tree.n, .pass_ns = 1, .outcome = &o, .n_due = 1 });
}

static struct spec_control *open_control(void)
{
    struct spec_control_options o = { .n_session = 1,
                                      .n_drafter = 1,
                                      .rule = SPEC_COUPLED,
                                      .gamma = SPEC_DEPTHS,
                                      .drafter = { { .name = "draft", .max_depth = SPEC_DEPTHS } } };
    struct spec_control *c;
    return spec_control_open(&c, &o) ? NULL : c;
}

static void foresee(struct spec_control *c, const struct spec_lengths *net, const float *feature, double *survival)
{
    if (net) {
        float *room = kn_calloc(2 * (size_t)net->n_hidden, sizeof *room);
        double length[SPEC_LENGTHS], told[SPEC_DEPTHS];
        spec_lengths_predict(net, feature, room, length);
        survival_of(length, told);
        spec_control_set_survival(c, 0, 0, told);
        kn_free(room);
    }
    spec_control_survival(c, 0, 0, SPEC_DEPTHS, survival);
}

static void compare(const struct spec_lengths *net, const float *record, int n, int stride, struct tally *tally)
{
    struct spec_control *c[] = { open_control(), open_control() };
    double mean[SPEC_LENGTHS] = { 0 }, survival[SPEC_DEPTHS];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < SPEC_LENGTHS; k++)
            mean[k] += (double)lengths_of(record + (size_t)i * (size_t)stride)[k] / n;
    for (int i = 0; i < n; i++, record += stride) {
        int kept = (int)lengths_of(record)[SPEC_LENGTHS - 1];
        for (int k = 0; k < 2 && (i == 0 || record[0] != record[-stride]); k++)
            spec_control_begin(c[k], 0);
        survival_of(mean, survival);
        judge(&tally[MEAN], survival, kept);
        for (int k = 0; k < 2; k++) {
            foresee(c[k], k ? net : NULL, record + HEAD, survival);
            judge(&tally[ONLINE + k], survival, kept);
            learn(c[k], record, kept);
        }
        for (int d = 0; d < SPEC_DEPTHS; d++)
            survival[d] = d < kept;
        judge(&tally[TRUTH], survival, kept);
    }
    spec_control_close(c[0]);
    spec_control_close(c[1]);
}

int main(int argc, char **argv)
{
    struct spec_lengths net;
    struct tally tally[N_WHO] = { 0 };
    float *weights = NULL;
    char *data = NULL;
    size_t n_byte = 0;
    if (argc != 6) {
        fprintf(stderr, "compare NET.gguf RECORDS DRAFT PASS_ROW FIRST_PROMPT\n");
        return 2;
    }
    draft_cost = strtod(argv[3], NULL);
    row_cost = strtod(argv[4], NULL);
    int error = eng_lengths_read(&net, &weights, argv[1]);
    if (!error)
        error = eng_read_file(argv[2], &data, &n_byte);
    if (!error) {
        int stride = HEAD + net.n_in, n = (int)(n_byte / sizeof(float) / (size_t)stride);
        const float *record = (const float *)(void *)data;
        while (n > 0 && record[0] < strtof(argv[5], NULL)) {
            record += stride;
            n--;
        }
        compare(&net, record, n, stride, tally);
        puts("who,records,error_4,error_8,tokens_per_pass,speed");
        for (int i = 0; i < N_WHO; i++)
            printf("\"%s\",%d,%.3f,%.3f,%.3f,%.3f\n", name[i], n, sqrt(tally[i].square[0] / n),
                   sqrt(tally[i].square[1] / n), tally[i].tokens / n, tally[i].tokens / tally[i].time);
    }
    kn_free(weights);
    kn_free(data);
    return error ? 1 : 0;
}
