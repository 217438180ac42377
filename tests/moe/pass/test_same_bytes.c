/* The same bytes: a sequence's logits and features are equal bit for bit, decoded alone or in batches with random
 * other sequences, prefilled in chunks of any size, as a branch of a draft tree, with any number of threads and any
 * instruction set, with F16, F32 or int8 KV, with memory for all experts, for some or for two, and with every kind of
 * reader. Every pair of these levels occurs in every model; make soak runs nearly all combinations, a share of
 * them on each model, except with the specification, which takes too long.
 *
 * The baseline is the scalar specification on one thread, one token per pass; all other runs are compared with
 * it by memcmp. (ThreadSanitizer checks threads, which share the same memory for every instruction
 * set: there the best one replaces the specification.) Models are synthetic: Q4_K experts with Q8_0
 * attention, Q6_K, F16 with odd shapes, dense, and a small one of each family with layers of its own kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/emulated/late.h"
#include "tests/moe/load.h"
#include "tests/nodes.h"

#ifdef __SANITIZE_THREAD__
#define SPECIFIED kn_isa_best()
#else
#define SPECIFIED KN_ISA_SCALAR
#endif
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define LENGTH    24 /* tokens: enough to expose a race */
#define WAY_STEP  3  /* all ways use the same memory and threads */
#define LATE_RUNS 0  /* of 3 runs, those on the device that runs operations late */
#else
#ifndef LENGTH    /* make soak: longer than the largest chunk */
#define LENGTH 80 /* longer than one chunk of attention */
#endif
#define WAY_STEP  1
#define LATE_RUNS 1
#endif
#define N_COMPANY 31
#define MAX_ROW   (512 + 9 * N_COMPANY)
#define N_ROOM    3 /* memory sizes: from the smallest that works to three quarters */
#define N_SLOT    (32 * 640)
#define N_RECALL  200                     /* token prefetch entries: half the vocabulary */
#define APART     (KN_ISA_COUNT + N_ROOM) /* the model on a device with memory of its own */
#define N_MODEL   13                      /* models sharing the combinations; coprime to their number */

struct model {
    struct moe_file *file;
    struct late_device apart;
    struct moe_model *model[APART + 1]; /* by instruction set; then the best, with less memory */
    int n_vocab;
    float *baseline[KN_KV_COUNT]; /* [LENGTH][n_vocab] */
    int d_model;
    float *feature[KN_KV_COUNT]; /* [LENGTH][d_model] as stored in their slots */
    int32_t token[LENGTH];
};

struct sequence {
    int32_t token[640], slot[640];
    int n_done;
};

static uint64_t random_state;
static int random_below(int n) { return (int)(kn_mix(random_state += KN_GOLDEN) % (uint64_t)n); }

/* ---- runs ------------------------------------------------------------------------------------------- */

struct run {
    const struct model *m;
    enum kn_kv kv;
    struct kn_team *team;
    struct late_device late;
    struct moe_context *context;
    int32_t free_slot[N_SLOT];
    int n_free;
    struct sequence target, company[N_COMPANY]; /* states 0 and 1.. of a model with recurrent states */
    struct moe_row row[MAX_ROW];
    int owner[MAX_ROW]; /* position in the target, or -1 */
};

static int n_apart; /* runs so far on a device with memory of its own */

static struct run *open_run(const struct model *m, int which, int n_thread, enum kn_kv kv)
{
    enum kn_isa isa = which < KN_ISA_COUNT ? (enum kn_isa)which : kn_isa_best();
    struct run *r = calloc(1, sizeof *r);
    r->m = m;
    r->kv = kv;
    assert_int_equal(kn_team_open(&r->team, n_thread), 0);
    struct moe_context_options o = { .max_row = MAX_ROW,
                                     .max_want = MAX_ROW,
                                     .n_slot = N_SLOT,
                                     .max_pos = 640,
                                     .kv = kv,
                                     .features.last = true,
                                     .n_state = 1 + N_COMPANY,
                                     .n_draft = LENGTH,
                                     .n_recall = N_RECALL,
                                     .team = r->team };
    if (which != APART && random_below(3) < LATE_RUNS) {
        r->late = late_device(isa, random_state);
        o.device = &r->late.base;
    }
    if (which == APART) /* the device keeps one tenth of the experts, half, all, or none */
        o.resident_bytes = moe_model_shape(m->model[which])->device_expert_bytes / 10 *
                           (size_t)(int[]){ 1, 5, 10, 0 }[n_apart++ % 4];
    assert_int_equal(moe_context_open(&r->context, m->model[which], &o), 0);
    r->context->residents.where.plans = MOE_PLANS_RANDOM;
    for (int i = 0; i < N_SLOT; i++)
        r->free_slot[i] = i;
    for (r->n_free = N_SLOT; r->n_free > 1; r->n_free--) { /* slot numbers in random order */
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
    if (late_found())
        fail_msg("%s", late_found());
    kn_team_close(r->team);
    free(r);
}

static int take_slot(struct run *r) { return r->free_slot[--r->n_free]; }

/* Adds n more tokens of a sequence; its table may grow because rows hold the pointer and the length. */
static int add_rows(struct run *r, struct sequence *s, int n, int n_row, bool is_target)
{
    for (int i = 0; i < n; i++)
        s->slot[s->n_done + i] = take_slot(r);
    for (int i = 0; i < n; i++) {
        int p = s->n_done + i;
        r->owner[n_row] = is_target ? p : -1;
        r->row[n_row++] = (struct moe_row){ .token = s->token[p],
                                            .position = p,
                                            .want_logits = is_target,
                                            .base = s->slot,
                                            .n_base = s->n_done + n,
                                            .state = is_target ? 0 : 1 + (int)(s - r->company) };
    }
    s->n_done += n;
    return n_row;
}

/* Compares the feature stored in the slot, and the one returned for a row that wants logits, up to its KV rounding. */
static void check_feature(struct run *r, int row, int n_want)
{
    size_t n = (size_t)r->m->d_model;
    const struct moe_row *p = &r->row[row];
    const float *want = r->m->feature[r->kv] + (size_t)r->owner[row] * n;
    float *got = malloc(n * sizeof *got);
    moe_context_feature(r->context, p->position < p->n_base ? p->base[p->position] : p->tail[p->position - p->n_base],
                        got);
    assert_memory_equal(got, want, n * sizeof *got);
    moe_context_last_feature(r->context, n_want, got);
    for (size_t i = 0; i < n && r->kv != KN_KV_F32; i++)
        got[i] = kn_f16_to_f32(kn_f32_to_f16(got[i]));
    assert_memory_equal(got, want, n * sizeof *got);
    free(got);
}

/* Expects some of the rows' tokens and other tokens; sometimes leaves out the call. */
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
    assert_int_equal(moe_forward(r->context, &(struct moe_batch){ .row = r->row, .n_row = n_row }, &result), 0);
    for (int i = 0, want = 0; i < n_row; i++) {
        assert_int_equal(result.status[i], 0);
        if (!r->row[i].want_logits)
            continue;
        const float *got = result.logits + (size_t)want * n;
        if (r->owner[i] >= 0) {
            assert_memory_equal(got, r->m->baseline[r->kv] + (size_t)r->owner[i] * n, n * sizeof *got);
            check_feature(r, i, want);
        }
        want++;
    }
}

/* ---- ways to process the same tokens ------------------------------------------------------------------- */

/* The branch begins after the first token, or so that it ends two tokens before the last. */
enum tree { NO_TREE, AT_START, LATE, N_TREE };
#define DEPTH (LENGTH / 4)
_Static_assert(1 + 3 * DEPTH + 9 * N_COMPANY <= MAX_ROW, "a branch with its wrong guesses and company is one pass");

struct way {
    enum kn_isa isa;
    int n_thread, chunk, n_company;
    enum tree tree;
    enum kn_kv kv;
};

static const int chunks[] = { 1, 7, 64, 512 }, companies[] = { 0, 1, 7, N_COMPANY };

/* Number of factors of a way, from isa to kv. */
enum { N_FACTOR = 6 };
static const int levels[N_FACTOR] = { KN_ISA_COUNT, 3, 4, 4, N_TREE, KN_KV_COUNT };

/* Every pair of levels of two factors is in one of these, checked by every_pair_is_in_a_way(). The specification
 * and more threads than processors, which are slow, are in as few as possible. */
static const uint8_t pairwise[][N_FACTOR] = {
    { 0, 1, 0, 0, 0, 0 }, { 1, 0, 0, 1, 2, 0 }, { 2, 0, 0, 3, 1, 1 }, { 1, 2, 0, 2, 2, 1 }, { 1, 2, 1, 0, 1, 0 },
    { 0, 0, 1, 1, 2, 1 }, { 1, 0, 1, 3, 0, 0 }, { 2, 1, 1, 2, 2, 0 }, { 2, 0, 2, 0, 2, 1 }, { 1, 1, 2, 1, 1, 1 },
    { 0, 2, 2, 3, 2, 0 }, { 1, 0, 2, 2, 0, 1 }, { 1, 0, 3, 0, 2, 0 }, { 2, 2, 3, 1, 0, 0 }, { 1, 1, 3, 3, 2, 1 },
    { 0, 0, 3, 2, 1, 0 }, { 1, 0, 0, 3, 0, 2 }, { 2, 1, 1, 0, 1, 2 }, { 0, 0, 2, 1, 2, 2 }, { 1, 2, 3, 2, 1, 2 },
    { 3, 0, 0, 0, 0, 0 }, { 3, 1, 1, 1, 1, 1 }, { 3, 2, 2, 2, 2, 2 }, { 3, 0, 3, 3, 0, 0 },
};
#define N_PAIRWISE ((int)(sizeof pairwise / sizeof *pairwise))

static struct way way_of(const uint8_t *level)
{
    enum kn_isa isa = level[0] == KN_ISA_SCALAR ? SPECIFIED : (enum kn_isa)kn_min(level[0], (int)kn_isa_best());
    return (struct way){
        isa, 1 + level[1], chunks[level[2]], companies[level[3]], (enum tree)level[4], (enum kn_kv)level[5]
    };
}

static void every_pair_is_in_a_way(void **state)
{
    (void)state;
    for (int a = 0; a < N_FACTOR; a++)
        for (int b = 0; b < a; b++)
            for (int pair = 0; pair < levels[a] * levels[b]; pair++) {
                bool found = false;
                for (int i = 0; i < N_PAIRWISE; i++)
                    found = found || pairwise[i][a] * levels[b] + pairwise[i][b] == pair;
                if (!found)
                    fail_msg("factors %d and %d are nowhere at levels %d and %d", a, b, pair / levels[b],
                             pair % levels[b]);
            }
}

/* Adds rows of the other sequences from..to-1: of all in the first pass and beside the branch; later of few, to limit
 * the run time. With the specification one row of each, otherwise one to nine. */
static int add_company(struct run *r, const struct way *w, bool all, int from, int to, int n_row)
{
    const bool brief = w->isa == KN_ISA_SCALAR;
    const int passes = kn_ceil_div(LENGTH, w->chunk);
    for (int c = from; c < to; c++)
        if ((all || (!brief && random_below(passes * w->n_company) < LENGTH / 4)) && r->company[c].n_done < 600)
            n_row = add_rows(r, &r->company[c], brief ? 1 : 1 + random_below(9), n_row, false);
    return n_row;
}

/* Adds the target's next token with a branch of the true tokens after it and wrong drafts: at every depth a sibling of
 * the true token at the same position, with a child of its own. path: the rows of the true tokens. */
static int add_tree(struct run *r, bool states, int32_t *tail, int32_t *path, int n_row)
{
    static int32_t wrong[DEPTH][DEPTH + 1];
    const struct model *m = r->m;
    const int root = n_row, prefix = r->target.n_done + 1;
    n_row = add_rows(r, &r->target, 1, n_row, true);
    for (int i = 0; i < DEPTH; i++) {
        int p = prefix + i, after = i ? path[i - 1] : root;
        tail[i] = take_slot(r);
        memcpy(wrong[i], tail, sizeof *tail * (size_t)i); /* the true path above the wrong node */
        wrong[i][i] = take_slot(r);
        wrong[i][i + 1] = take_slot(r);
        for (int k = 0; k < 2; k++) { /* without states children may precede parents */
            int child = states ? k : 1 - k;
            r->owner[n_row] = -1;
            r->row[n_row] = (struct moe_row){ .token = random_below(m->n_vocab),
                                              .position = p + child,
                                              .want_logits = child == 0,
                                              .base = r->target.slot,
                                              .tail = wrong[i],
                                              .n_base = prefix,
                                              .draft = true,
                                              .after = child ? n_row - 1 : after };
            n_row++;
        }
        r->owner[n_row] = p;
        path[i] = n_row;
        r->row[n_row++] = (struct moe_row){ .token = m->token[p],
                                            .position = p,
                                            .want_logits = true,
                                            .base = r->target.slot,
                                            .tail = tail,
                                            .n_base = prefix,
                                            .draft = true,
                                            .after = after };
    }
    return n_row;
}

/* Accepts half of the branch; the sequence continues from there. */
static void keep_some(struct run *r, const int32_t *tail, const int32_t *path)
{
    const int n_kept = DEPTH / 2;
    moe_context_keep(r->context, 0, path, n_kept);
    memcpy(r->target.slot + r->target.n_done, tail, (size_t)n_kept * sizeof *tail);
    r->target.n_done += n_kept;
}

/* Each pass has the target's next rows at a random place among other sequences' rows; one pass has the branch. */
static void run_way(const struct model *m, int which, const struct way *w)
{
    struct run *r = open_run(m, which, w->n_thread, w->kv);
    const bool states = moe_model_shape(m->model[which])->state_bytes > 0;
    int root = w->tree == NO_TREE ? LENGTH : w->tree == AT_START ? 0 : LENGTH - DEPTH - 3;
    int32_t tail[DEPTH], path[DEPTH];
    for (int pass = 0; r->target.n_done < LENGTH; pass++) {
        const bool tree = r->target.n_done == root;
        const int left = (r->target.n_done < root ? root : LENGTH) - r->target.n_done;
        const int before = random_below(w->n_company + 1);
        int n_row = add_company(r, w, !pass || tree, 0, before, 0);
        if (tree)
            n_row = add_tree(r, states, tail, path, n_row);
        else
            n_row = add_rows(r, &r->target, kn_min(w->chunk, left), n_row, true);
        check_pass(r, add_company(r, w, !pass || tree, before, w->n_company, n_row));
        if (tree)
            keep_some(r, tail, path);
    }
    close_run(r);
}

/* ---- models ------------------------------------------------------------------------------------------- */

/* Opens the model with less memory, one step more for each `room`; every other one without io_uring. */
static int open_room(struct model *m, int room, struct kn_team *team)
{
    struct moe_model *model;
    int error = moe_model_open(&model, m->file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 });
    if (error)
        return error;
    const struct moe_shape *s = moe_model_shape(model);
    m->model[KN_ISA_COUNT + room] = model;
    return moe_model_load(
        model, &(struct moe_load_options){ .team = team,
                                           .io = room % 2 ? OFF_IO_PREAD : OFF_IO_AUTO,
                                           .expert_bytes = s->expert_least + (s->expert_bytes - s->expert_least) *
                                                                                 (size_t)room / (N_ROOM - 1) * 3 / 4 });
}

/* The model on a device with memory of its own; the host has little for experts. */
static int open_apart(struct model *m, struct kn_team *team)
{
    m->apart = late_device_apart(kn_isa_best(), 3);
    m->apart.pins.refuse_at = 2;
    int error = moe_model_open(&m->model[APART], m->file,
                               &(struct moe_model_options){ .isa = kn_isa_best(), .device = &m->apart.base });
    if (error)
        return error;
    const struct moe_shape *s = moe_model_shape(m->model[APART]);
    return moe_model_load(m->model[APART], &(struct moe_load_options){ .team = team, .expert_bytes = s->expert_least });
}

static int open_model(void **state, const char *shape, enum kn_format format)
{
    struct model *m = calloc(1, sizeof *m);
    char path[64];
    struct kn_team *team;
    snprintf(path, sizeof path, "/tmp/spillway-same-%d.gguf", getpid());
    if (kn_team_open(&team, 2) != 0)
        return -1;
    struct moe_synth_options so = { .shape = shape, .n_vocab = 400, .format = format, .seed = 7, .team = team };
    int error = moe_synth(path, &so);
    if (!error)
        error = moe_file_open(&m->file, path);
    for (int isa = 0; isa < KN_ISA_COUNT && !error; isa++)
        error = load_model(&m->model[isa], m->file, (enum kn_isa)isa, team, OFF_IO_AUTO);
    for (int room = 0; room < N_ROOM && !error && moe_model_shape(m->model[0])->n_expert; room++)
        error = open_room(m, room, team);
    if (!error)
        error = open_apart(m, team);
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
static int open_gemma4(void **state) { return open_model(state, "tiny-gemma4", KN_Q8_0); }
static int open_input_scales(void **state) { return open_model(state, "tiny-llama4", KN_Q8_0); }
static int open_layer_norms(void **state) { return open_model(state, "tiny-phimoe", KN_Q8_0); }
static int open_dense(void **state) { return open_model(state, "tiny-dense", KN_Q4_K); }
#endif

static int close_model(void **state)
{
    struct model *m = *state;
    for (int i = 0; i <= APART; i++)
        moe_model_close(m->model[i]);
    moe_file_close(m->file);
    nodes_set(1);
    for (int kv = 0; kv < KN_KV_COUNT; kv++) {
        free(m->baseline[kv]);
        free(m->feature[kv]);
    }
    free(m);
    return 0;
}

static void make_baseline(struct model *m, enum kn_kv kv)
{
    size_t n = (size_t)m->n_vocab;
    float *logits = calloc(LENGTH * n, sizeof *logits);
    m->baseline[kv] = logits;
    m->feature[kv] = calloc((size_t)LENGTH * (size_t)m->d_model, sizeof *m->feature[kv]);
    struct run *r = open_run(m, SPECIFIED, 1, kv);
    for (int i = 0; i < LENGTH; i++) {
        struct moe_result result;
        assert_int_equal(add_rows(r, &r->target, 1, 0, true), 1);
        assert_int_equal(moe_forward(r->context, &(struct moe_batch){ .row = r->row, .n_row = 1 }, &result), 0);
        memcpy(logits + (size_t)i * n, result.logits, n * sizeof *logits);
        moe_context_feature(r->context, r->target.slot[i], m->feature[kv] + i * m->d_model);
    }
    close_run(r);
    float least = logits[0], most = logits[0];
    for (size_t i = 0; i < LENGTH * n; i++) {
        least = logits[i] < least ? logits[i] : least;
        most = logits[i] > most ? logits[i] : most;
    }
    assert_true(most - least > 0.5f); /* equal logits would prove nothing */
}

/* Every combination without the specification, dealt out to the models. Combinations with one token per pass and more
 * threads than processors take as long as all others together; the ways above cover them. */
static void run_share(const struct model *m)
{
    static int share;
    int n = 1, first = share++;
    for (int f = 0; f < N_FACTOR; f++)
        n *= levels[f];
    for (int i = first % N_MODEL; i < n; i += N_MODEL) {
        uint8_t level[N_FACTOR];
        for (int f = 0, rest = i; f < N_FACTOR; rest /= levels[f++])
            level[f] = (uint8_t)(rest % levels[f]);
        struct way w = way_of(level);
        if (level[0] != KN_ISA_SCALAR && (w.n_thread < 3 || w.chunk > 1))
            run_way(m, w.isa, &w);
    }
}

static void bytes_are_the_same(void **state)
{
    static const struct way with_less_room[] = {
        { 0, 2, 7, 0, NO_TREE, KN_KV_F16 },
        { 0, 3, 7, 7, AT_START, KN_KV_F32 },
        { 0, 2, 64, N_COMPANY, LATE, KN_KV_INT8 },
    };
    struct model *m = *state;
    for (enum kn_kv kv = 0; kv < KN_KV_COUNT; kv++)
        make_baseline(m, kv);
    for (int i = 0; i < 3; i++) {
        struct way w = with_less_room[i];
        w.isa = kn_isa_best();
        run_way(m, APART, &w);
    }
    for (int i = 0; i < N_PAIRWISE; i += WAY_STEP) {
        struct way w = way_of(pairwise[i]);
        run_way(m, w.isa, &w);
    }
    if (LENGTH > 512)
        run_share(m);
    for (int room = KN_ISA_COUNT; room < KN_ISA_COUNT + N_ROOM && m->model[room]; room++) {
        struct off_stats stats;
        for (int i = 0; i < 3; i++) {
            struct way w = with_less_room[i];
            w.isa = kn_isa_best();
            run_way(m, room, &w);
        }
        off_stats_get(moe_model_store(m->model[room]), &stats);
        assert_true(stats.misses > 0 && stats.n_slot < stats.n_expert);
        assert_true(room < KN_ISA_COUNT + N_ROOM - 1 || stats.soon_reads > 0);
    }
}

int main(void)
{
#define TEST(open)                                                                                                     \
    {                                                                                                                  \
#open, bytes_are_the_same, open, close_model, NULL                                                             \
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_is_in_a_way),
        TEST(open_q4_k),
        TEST(open_two_nodes),
#ifndef __SANITIZE_THREAD__ /* threads are checked with every instruction set */
        TEST(open_q6_k),
        TEST(open_f16_odd),
        TEST(open_dense),
        TEST(open_shared),
        TEST(open_norm_all),
        TEST(open_window),
        TEST(open_lead),
        TEST(open_latent),
        TEST(open_delta),
        TEST(open_gemma4),
        TEST(open_input_scales),
        TEST(open_layer_norms),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
