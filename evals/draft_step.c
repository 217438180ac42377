/* evals/draft_step.c - two draft models: one step of both, by two threads, one after the other or each by one of them.
 *
 *     draft_step MODEL MODEL [PAST]
 *
 * A step is a draft token of each sequence: the model's pass over one row of each, and the choice of the tokens. PAST tokens
 * come before it, default 256. Ways:
 *
 *     turns   the first model by both threads, then the second by both threads, as --draft model:A --draft model:B
 *     beside  each model by one thread, both at the same time
 *     half    half of the time that both models take by one thread: the bound of `beside`, and of one pass over both models,
 *             if no thread ever waited for the other
 *
 * `busy` reads 24 MB between steps: as the target's pass, it leaves the models in no near cache. Steps of the ways alternate.
 * Other programs can only make a step longer, so a figure is the time below which a twentieth of the ROUNDS steps lie. Prints
 * CSV: microseconds of a step, and ratios to `turns` with 95 % intervals (bootstrap over rounds). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe/moe.h"
#include "speculative/speculative.h"

#define MOST_SEQ    32
#define ROUNDS      600
#define DRAWS       200
#define N_THREAD    2
#define OTHER_BYTES ((size_t)24 << 20)

struct drafter {
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct moe_result result;
    struct kn_team *alone; /* one thread */
    struct spec_sampler *sampler[N_THREAD];
    int n_seq;
};

static struct kn_team *team;
static struct drafter drafter[2];
static struct moe_row row[MOST_SEQ];
static struct spec_params params;
static int32_t *slot, token[MOST_SEQ][2], chosen[2][MOST_SEQ];
static int past = 256;
static uint8_t *other;
static volatile uint64_t other_sum;

static void choose(void *arg, int i, int thread)
{
    struct drafter *d = arg;
    struct spec_sampled s;
    int n_vocab = moe_model_shape(d->model)->n_vocab;
    spec_sample(d->sampler[thread], &params, d->result.logits + (size_t)i * (size_t)n_vocab, token[i], 2, past, &s);
    chosen[d - drafter][i] = s.token;
}

static void step(struct drafter *d, struct kn_team *by)
{
    moe_context_set_team(d->context, by);
    moe_forward(d->context, &(struct moe_batch){ .row = row, .n_row = d->n_seq }, &d->result);
    kn_parallel_for(by, d->n_seq, choose, d);
}

static void beside_item(void *arg, int item, int thread)
{
    (void)arg, (void)thread;
    step(&drafter[item], drafter[item].alone);
}

enum way { TURNS, BESIDE, HALF, WAYS };

static void one_step(enum way way)
{
    if (way == BESIDE) {
        kn_parallel_for(team, 2, beside_item, NULL);
        return;
    }
    for (int i = 0; i < 2; i++)
        step(&drafter[i], way == TURNS ? team : drafter[i].alone);
}

static void read_other(void *arg, int item, int thread)
{
    const uint64_t *at = (const uint64_t *)(const void *)(other + (size_t)item * (OTHER_BYTES / 8));
    uint64_t sum = 0;
    (void)arg, (void)thread;
    for (size_t i = 0; i < OTHER_BYTES / 8 / sizeof *at; i += 8)
        sum += at[i];
    other_sum += sum;
}

/* Microseconds of a step. */
static double timed_step(enum way way, bool busy)
{
    if (busy)
        kn_parallel_for(team, 8, read_other, NULL);
    uint64_t since = kn_now_ns();
    one_step(way);
    return (double)(kn_now_ns() - since) / 1e3 / (way == HALF ? 2 : 1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The time below which one in twenty of the rounds lies. */
static double least(const double (*us)[WAYS], const int *round, int way)
{
    static double sorted[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        sorted[i] = us[round[i]][way];
    qsort(sorted, ROUNDS, sizeof *sorted, by_value);
    return sorted[ROUNDS / 20];
}

static void report(const double (*us)[WAYS], int n_seq, bool busy)
{
    static double ratio[DRAWS];
    static int round[ROUNDS];
    uint64_t random = 3;
    for (int i = 0; i < ROUNDS; i++)
        round[i] = i;
    printf("%d,%s", n_seq, busy ? "busy" : "idle");
    for (int way = 0; way < WAYS; way++)
        printf(",%.1f", least(us, round, way));
    for (int way = BESIDE; way < WAYS; way++) {
        double all = least(us, round, way) / least(us, round, TURNS);
        for (int k = 0; k < DRAWS; k++) {
            int some[ROUNDS];
            for (int i = 0; i < ROUNDS; i++)
                some[i] = (int)(kn_mix(random += KN_GOLDEN) % ROUNDS);
            ratio[k] = least(us, some, way) / least(us, some, TURNS);
        }
        qsort(ratio, DRAWS, sizeof *ratio, by_value);
        printf(",%.3f,%.3f,%.3f", all, ratio[DRAWS / 40], ratio[DRAWS - 1 - DRAWS / 40]);
    }
    printf("\n");
    fflush(stdout);
}

static void measure(int n_seq, bool busy)
{
    static double us[ROUNDS][WAYS];
    drafter[0].n_seq = drafter[1].n_seq = n_seq;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WAYS; i++) {
            int way = round % 2 ? WAYS - 1 - i : i;
            us[round][way] = timed_step((enum way)way, busy);
        }
    report((const double(*)[WAYS])us, n_seq, busy);
}

static int open_drafter(struct drafter *d, const char *path)
{
    int error = moe_file_open(&d->file, path);
    if (!error)
        error = moe_model_open(&d->model, d->file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 });
    if (!error)
        error = moe_model_load(d->model, &(struct moe_load_options){ .team = team });
    if (!error)
        error = moe_context_open(&d->context, d->model,
                                 &(struct moe_context_options){ .max_row = MOST_SEQ,
                                                                .max_want = MOST_SEQ,
                                                                .n_slot = MOST_SEQ * (past + 1),
                                                                .max_pos = past + 1,
                                                                .kv = KN_KV_F16,
                                                                .team = team });
    for (int i = 0; i < N_THREAD && !error; i++)
        error = spec_sampler_open(&d->sampler[i], moe_model_shape(d->model)->n_vocab);
    return error ? error : kn_team_open(&d->alone, 1);
}

/* Computes the tokens before the step. */
static void read_past(struct drafter *d)
{
    for (int at = 0; at <= past; at++) {
        for (int i = 0; i < MOST_SEQ; i++)
            row[i] = (struct moe_row){ .token = (int32_t)(kn_mix((uint64_t)(at * MOST_SEQ + i)) % 4000),
                                       .position = at,
                                       .want_logits = at == past,
                                       .base = slot + (size_t)i * (size_t)(past + 1),
                                       .n_base = past + 1 };
        moe_forward(d->context, &(struct moe_batch){ .row = row, .n_row = MOST_SEQ }, &d->result);
    }
}

int main(int argc, char **argv)
{
    past = argc > 3 ? atoi(argv[3]) : 256;
    if (argc < 3 || past < 1) {
        fprintf(stderr, "usage: draft_step MODEL MODEL [PAST]\n");
        return 2;
    }
    slot = calloc((size_t)(MOST_SEQ * (past + 1)), sizeof *slot);
    other = calloc(OTHER_BYTES, 1);
    if (!slot || !other || kn_team_open(&team, N_THREAD))
        return 1;
    memset(other, 1, OTHER_BYTES);
    for (int i = 0; i < MOST_SEQ * (past + 1); i++)
        slot[i] = i;
    spec_params_default(&params);
    params.temperature = 0.7f;
    for (int i = 0; i < 2; i++) {
        if (open_drafter(&drafter[i], argv[1 + i]))
            return 1;
        read_past(&drafter[i]);
    }
    puts("sequences,between,turns_us,beside_us,half_us,beside,beside_low,beside_high,half,half_low,half_high");
    for (int busy = 0; busy < 2; busy++)
        for (int n = 1; n <= MOST_SEQ; n = n == 1 ? 4 : n == 4 ? 16 : 2 * n)
            measure(n, busy);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < N_THREAD; k++)
            spec_sampler_close(drafter[i].sampler[k]);
        moe_context_close(drafter[i].context);
        moe_model_close(drafter[i].model);
        moe_file_close(drafter[i].file);
        kn_team_close(drafter[i].alone);
    }
    kn_team_close(team);
    free(slot);
    free(other);
    return 0;
}
