/* The same bytes: a sequence's logits and features, bit for bit, decoded alone or inside batches of random
 * company, read in chunks of any size, as a branch of a token tree, with any number of threads and any
 * instruction set, with room for all experts, for some or for two, and however they are read.
 *
 * The baseline is the scalar specification on one thread, one token per pass; everything else must equal
 * it by memcmp.  (ThreadSanitizer looks at threads, which share the same memory whatever the instruction
 * set: there the best one stands for the specification.)  Models are synthetic: Q4_K experts with Q8_0
 * attention, Q6_K, F16 with odd shapes, dense, and a small one of each family that has something of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/moe.h"
#include "tests/moe/load.h"
#include "tests/nodes.h"

#ifdef __SANITIZE_THREAD__
#define SPECIFIED kn_isa_best()
#else
#define SPECIFIED KN_ISA_SCALAR
#endif
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LENGTH    24                            /* tokens: enough for a race to show */
#elif !defined LENGTH                           /* make soak has it longer than the largest chunk */
#define LENGTH    80                            /* beyond one chunk of attention */
#endif
#define MAX_ROW   512
#define N_COMPANY 31
#define N_ROOM    3                             /* from the least that works to all but one part in four */
#define N_SLOT    (32 * 640)
#define N_RECALL  200                           /* of the vocabulary half */

struct model {
    struct moe_file *file;
    struct moe_model *model[KN_ISA_COUNT + N_ROOM];     /* by instruction set; then the best, with less room */
    int n_vocab;
    float *baseline;                            /* [LENGTH][n_vocab] */
    int d_model;
    float *feature;                             /* [LENGTH][d_model] as they lie in their slots */
    int32_t token[LENGTH];
};

struct sequence { int32_t token[640], slot[640]; int n_done; };

static uint64_t random_state;
static int random_below(int n)
{
    return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n);
}

/* ---- runs ------------------------------------------------------------------------------------------- */

struct run {
    const struct model *m;
    struct kn_team *team;
    struct moe_context *context;
    int32_t free_slot[N_SLOT];
    int n_free;
    struct sequence target, company[N_COMPANY];         /* states 0 and 1.. of a model that has them */
    struct moe_row row[MAX_ROW];
    int owner[MAX_ROW];                         /* position in the target, or -1 */
};

static struct run *open_run(const struct model *m, int which, int n_thread)
{
    struct run *r = calloc(1, sizeof *r);
    r->m = m;
    assert_int_equal(kn_team_open(&r->team, n_thread), 0);
    struct moe_context_options o = { .max_row = MAX_ROW, .max_want = MAX_ROW, .n_slot = N_SLOT,
                                     .max_pos = 640, .kv = KN_KV_F16, .features.last = true, .n_state = 1 + N_COMPANY,
                                     .n_draft = LENGTH, .n_recall = N_RECALL, .team = r->team };
    assert_int_equal(moe_context_open(&r->context, m->model[which], &o), 0);
    for (int i = 0; i < N_SLOT; i++)
        r->free_slot[i] = i;
    for (r->n_free = N_SLOT; r->n_free > 1; r->n_free--) {      /* slots are names, in no order */
        int other = random_below(r->n_free), kept = r->free_slot[other];
        r->free_slot[other] = r->free_slot[r->n_free - 1];
        r->free_slot[r->n_free - 1] = kept;
    }
    r->n_free = N_SLOT;
    memcpy(r->target.token, m->token, sizeof m->token);
    for (int c = 0; c < N_COMPANY; c++)
        for (int i = 0; i < 640; i++)
            r->company[c].token[i] = random_below(m->n_vocab);
    return r;
}

static void close_run(struct run *r)
{
    moe_context_close(r->context);
    kn_team_close(r->team);
    free(r);
}

static int take_slot(struct run *r) { return r->free_slot[--r->n_free]; }

/* n more tokens of a sequence; its table may grow because rows hold the pointer and the length. */
static int add_rows(struct run *r, struct sequence *s, int n, int n_row, bool is_target)
{
    for (int i = 0; i < n; i++)
        s->slot[s->n_done + i] = take_slot(r);
    for (int i = 0; i < n; i++) {
        int p = s->n_done + i;
        r->owner[n_row] = is_target ? p : -1;
        r->row[n_row++] = (struct moe_row){ .token = s->token[p], .position = p, .want_logits = is_target,
                                            .base = s->slot, .n_base = s->n_done + n,
                                            .state = is_target ? 0 : 1 + (int)(s - r->company) };
    }
    s->n_done += n;
    return n_row;
}

/* What went to the slot, and what is handed out of a row that wants logits, but for what its KV loses. */
static void check_feature(struct run *r, int row, const float *handed)
{
    size_t n = (size_t)r->m->d_model;
    const struct moe_row *p = &r->row[row];
    const float *want = r->m->feature + (size_t)r->owner[row] * n;
    float *got = malloc(n * sizeof *got);
    moe_context_feature(r->context, p->position < p->n_base ? p->base[p->position] : p->tail[p->position - p->n_base],
                        got);
    assert_memory_equal(got, want, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        got[i] = kn_f16_to_f32(kn_f32_to_f16(handed[i]));
    assert_memory_equal(got, want, n * sizeof *got);
    free(got);
}

/* Some of the rows' tokens, and others, now and then not the last time. */
static void expect_some(struct run *r, int n_row)
{
    int32_t token[MAX_ROW];
    int n = random_below(3) ? 1 + random_below(kn_min(n_row, 12)) : 0;
    for (int i = 0; i < n; i++)
        token[i] = random_below(3) ? r->row[random_below(n_row)].token : random_below(r->m->n_vocab);
    moe_context_expect(r->context, token, n);
    if (random_below(4) == 0)
        moe_context_expect(r->context, token, n / 2);
}

static void check_pass(struct run *r, int n_row)
{
    struct moe_result result;
    size_t n = (size_t)r->m->n_vocab;
    expect_some(r, n_row);
    assert_int_equal(moe_forward(r->context, &(struct moe_batch){ r->row, n_row }, &result), 0);
    for (int i = 0, want = 0; i < n_row; i++) {
        assert_int_equal(result.status[i], 0);
        if (!r->row[i].want_logits)
            continue;
        const float *got = result.logits + (size_t)want * n;
        if (r->owner[i] >= 0) {
            assert_memory_equal(got, r->m->baseline + (size_t)r->owner[i] * n, n * sizeof *got);
            check_feature(r, i, result.feature + (size_t)want * result.feature_stride);
        }
        want++;
    }
}

static void run_chunks(const struct model *m, int which, int n_thread, int chunk)
{
    struct run *r = open_run(m, which, n_thread);
    while (r->target.n_done < LENGTH)
        check_pass(r, add_rows(r, &r->target, kn_min(chunk, LENGTH - r->target.n_done), 0, true));
    close_run(r);
}

/* Each pass: the target's next few rows, at most so many, somewhere among one to nine rows each of random company. */
static void run_company(const struct model *m, int which, int n_thread, int n_company, int most)
{
    struct run *r = open_run(m, which, n_thread);
    while (r->target.n_done < LENGTH) {
        int n_row = 0, before = random_below(n_company + 1);
        for (int c = 0; c <= n_company; c++) {
            if (c == before)
                n_row = add_rows(r, &r->target, kn_min(1 + random_below(most), LENGTH - r->target.n_done),
                                 n_row, true);
            if (c < n_company && r->company[c].n_done < 600)
                n_row = add_rows(r, &r->company[c], 1 + random_below(9), n_row, false);
        }
        check_pass(r, n_row);
    }
    close_run(r);
}

/* A prefix, its last token in one pass with a branch of what follows, whose other nodes are wrong guesses: at
 * every depth a sibling of the true token at the same position, with a child of its own.  Some of the branch
 * is kept, and the rest is read from there. */
static void run_tree(const struct model *m, int which, int n_thread, int prefix, int depth)
{
    struct run *r = open_run(m, which, n_thread);
    bool states = moe_model_shape(m->model[which])->state_bytes > 0;
    int32_t tail[LENGTH], wrong[LENGTH][LENGTH], path[LENGTH];
    int before = prefix - 1, n_row = 0, n_kept = depth / 2;
    _Static_assert(1 + 3 * (LENGTH / 4) <= MAX_ROW, "a branch with its wrong guesses is one pass");
    if (before)
        check_pass(r, add_rows(r, &r->target, before, 0, true));
    n_row = add_rows(r, &r->target, 1, 0, true);
    for (int i = 0; i < depth; i++) {
        int p = prefix + i, after = i ? path[i - 1] : 0;
        tail[i] = take_slot(r);
        memcpy(wrong[i], tail, sizeof *tail * (size_t)i);       /* the true path above it */
        wrong[i][i] = take_slot(r);
        wrong[i][i + 1] = take_slot(r);
        for (int k = 0; k < 2; k++) {                           /* children may stand before parents, but for states */
            int child = states ? k : 1 - k;
            r->owner[n_row] = -1;
            r->row[n_row] = (struct moe_row){ .token = random_below(m->n_vocab), .position = p + child,
                                              .want_logits = child == 0, .base = r->target.slot,
                                              .tail = wrong[i], .n_base = prefix, .draft = true,
                                              .after = child ? n_row - 1 : after };
            n_row++;
        }
        r->owner[n_row] = p;
        path[i] = n_row;
        r->row[n_row++] = (struct moe_row){ .token = m->token[p], .position = p, .want_logits = true,
                                            .base = r->target.slot, .tail = tail, .n_base = prefix,
                                            .draft = true, .after = after };
    }
    check_pass(r, n_row);
    moe_context_keep(r->context, 0, path, n_kept);
    memcpy(r->target.slot + prefix, tail, (size_t)n_kept * sizeof *tail);
    r->target.n_done += n_kept;
    check_pass(r, add_rows(r, &r->target, 1, 0, true));
    while (r->target.n_done < LENGTH)
        check_pass(r, add_rows(r, &r->target, kn_min(MAX_ROW, LENGTH - r->target.n_done), 0, true));
    close_run(r);
}

/* ---- models ------------------------------------------------------------------------------------------- */

/* Room for few experts, one more step each time; every other one reads without the ring. */
static int open_room(struct model *m, int room, struct kn_team *team)
{
    struct moe_model *model;
    int error = moe_model_open(&model, m->file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 });
    if (error)
        return error;
    const struct moe_shape *s = moe_model_shape(model);
    m->model[KN_ISA_COUNT + room] = model;
    return moe_model_load(model, &(struct moe_load_options){
        .team = team, .io = room % 2 ? OFF_IO_PREAD : OFF_IO_AUTO,
        .expert_bytes = s->expert_least + (s->expert_bytes - s->expert_least) * (size_t)room / (N_ROOM - 1) * 3 / 4 });
}

static int open_model(void **state, const char *shape, enum kn_format format)
{
    struct model *m = calloc(1, sizeof *m);
    char path[64];
    struct kn_team *team;
    snprintf(path, sizeof path, "/tmp/spillway-same-%d.gguf", getpid());
    if (kn_team_open(&team, 2) != 0)
        return -1;
    struct moe_synth_options so = { .shape = shape, .n_vocab = 400, .format = format, .seed = 7,
                                    .team = team };
    int error = moe_synth(path, &so);
    if (!error)
        error = moe_file_open(&m->file, path);
    for (int isa = 0; isa < KN_ISA_COUNT && !error; isa++)
        error = load_model(&m->model[isa], m->file, (enum kn_isa)isa, team, OFF_IO_AUTO);
    for (int room = 0; room < N_ROOM && !error && moe_model_shape(m->model[0])->n_expert; room++)
        error = open_room(m, room, team);
    unlink(path);
    kn_team_close(team);
    if (error)
        return error;
    m->n_vocab = moe_model_shape(m->model[0])->n_vocab;
    m->d_model = moe_model_shape(m->model[0])->d_model;
    random_state = 11;
    for (int i = 0; i < LENGTH; i++)
        m->token[i] = random_below(m->n_vocab);
    *state = m;
    return 0;
}

static int open_q4_k(void **state) { return open_model(state, "tiny", KN_Q4_K); }
static int open_two_nodes(void **state)
{
    nodes_set(2);
    return open_model(state, "tiny", KN_Q4_K);
}
#ifndef __SANITIZE_THREAD__
static int open_q6_k(void **state) { return open_model(state, "tiny", KN_Q6_K); }
static int open_f16_odd(void **state) { return open_model(state, "tiny-odd", KN_F16); }
static int open_shared(void **state) { return open_model(state, "tiny-qwen2moe", KN_Q8_0); }
static int open_norm_all(void **state) { return open_model(state, "tiny-olmoe", KN_F16); }
static int open_window(void **state) { return open_model(state, "tiny-gpt-oss", KN_MXFP4); }
static int open_lead(void **state) { return open_model(state, "tiny-glm4moe", KN_Q8_0); }
static int open_delta(void **state) { return open_model(state, "tiny-qwen3next", KN_Q8_0); }
static int open_latent(void **state) { return open_model(state, "tiny-deepseek2", KN_Q8_0); }
static int open_dense(void **state) { return open_model(state, "tiny-dense", KN_Q4_K); }
#endif

static int close_model(void **state)
{
    struct model *m = *state;
    for (int i = 0; i < KN_ISA_COUNT + N_ROOM; i++)
        moe_model_close(m->model[i]);
    moe_file_close(m->file);
    nodes_set(1);
    free(m->baseline);
    free(m->feature);
    free(m);
    return 0;
}

static void make_baseline(struct model *m)
{
    size_t n = (size_t)m->n_vocab;
    float *logits = calloc(LENGTH * n, sizeof *logits);
    m->feature = calloc((size_t)LENGTH * (size_t)m->d_model, sizeof *m->feature);
    struct run *r = open_run(m, SPECIFIED, 1);
    for (int i = 0; i < LENGTH; i++) {
        struct moe_result result;
        assert_int_equal(add_rows(r, &r->target, 1, 0, true), 1);
        assert_int_equal(moe_forward(r->context, &(struct moe_batch){ r->row, 1 }, &result), 0);
        memcpy(logits + (size_t)i * n, result.logits, n * sizeof *logits);
        moe_context_feature(r->context, r->target.slot[i], m->feature + i * m->d_model);
    }
    close_run(r);
    float least = logits[0], most = logits[0];
    for (size_t i = 0; i < LENGTH * n; i++) {
        least = logits[i] < least ? logits[i] : least;
        most = logits[i] > most ? logits[i] : most;
    }
    assert_true(most - least > 0.5f);           /* a model that says nothing proves nothing */
    m->baseline = logits;
}

static void bytes_are_the_same(void **state)
{
    struct model *m = *state;
    static const int chunks[] = { 1, 7, 64, 512 };
    make_baseline(m);
    run_chunks(m, SPECIFIED, 2, 64);
    run_company(m, SPECIFIED, 2, 2, LENGTH / 2);
    for (enum kn_isa isa = KN_ISA_AVX2; isa <= kn_isa_best(); isa++) {
        for (int i = 0; i < 4; i++)
            run_chunks(m, isa, 1 + i % 3, chunks[i]);
        run_company(m, isa, 1, 1, 2);
        run_company(m, isa, 3, 7, 8);
        run_company(m, isa, 2, N_COMPANY, 1 + N_COMPANY);
        run_tree(m, isa, 2, 1, LENGTH / 4);
        run_tree(m, isa, 3, LENGTH * 3 / 4 - 2, LENGTH / 4);
    }
    for (int room = KN_ISA_COUNT; room < KN_ISA_COUNT + N_ROOM && m->model[room]; room++) {
        struct off_stats stats;
        run_chunks(m, room, 2, 7);
        run_company(m, room, 3, 5, 6);
        run_tree(m, room, 2, LENGTH / 2, LENGTH / 4);
        off_stats_get(moe_model_store(m->model[room]), &stats);
        assert_true(stats.misses > 0 && stats.n_slot < stats.n_expert);
        assert_true(room < KN_ISA_COUNT + N_ROOM - 1 || stats.soon_reads > 0);
    }
}

int main(void)
{
#define TEST(open) { #open, bytes_are_the_same, open, close_model, NULL }
    const struct CMUnitTest tests[] = {
        TEST(open_q4_k), TEST(open_two_nodes),
#ifndef __SANITIZE_THREAD__                     /* threads are the same for all */
        TEST(open_q6_k), TEST(open_f16_odd), TEST(open_dense), TEST(open_shared), TEST(open_norm_all),
        TEST(open_window), TEST(open_lead), TEST(open_latent), TEST(open_delta),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
