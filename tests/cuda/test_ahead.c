/* A device that goes on without the host: queues that wait for words in any order that they allow; passes after one that
 * could not go ahead, while memory was pinned; and passes in which a call of the driver fails: they end with an error, and
 * nothing hangs.  Needs the interpreter of PTX.
 *
 * Threads of the interpreter share memory with the host as a GPU does: not under MODE=tsan. */
#include "moe/pass/pass.h"
#include "tests/cuda/on_cuda.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#include "tests/moe/golden.h"
#include "tests/moe/load.h"

static void (*fail_call)(const char *function, unsigned n, int code);
static void (*forget_error)(void);
static void (*seed)(unsigned long long n);
static void (*look_for_races)(int on);
static void (*set_channels)(unsigned n);

static bool find_controls(void)
{
    static const struct {
        const char *name;
        void *to;
    } controls[] = { { "spillway_gpu_fail_call", &fail_call },
                     { "spillway_gpu_forget_error", &forget_error },
                     { "spillway_gpu_seed", &seed },
                     { "spillway_gpu_races", &look_for_races },
                     { "spillway_gpu_channels", &set_channels } };
    if (!cuda_open() || !is_interpreted())
        return false;
    void *library = dlopen(CUDA_INTERPRETER, RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        void *f = dlsym(library, controls[i].name);
        memcpy(controls[i].to, &f, sizeof f);
    }
    return true;
}

static void drop_line(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

/* ---- words ------------------------------------------------------------------------------------------------------ */

#define N 300

struct meeting {
    uint32_t ready, done;
    float x[N], y[N];
};

/* y = 2 x in one queue; 3 y in the queue beside; y + y in the first.  The host looks at `ready`. */
static void meet(struct meeting *m, struct kn_queue *q, struct kn_queue *beside, uint32_t turn)
{
    for (int i = 0; i < N; i++)
        m->x[i] = (float)i;
    kn_enqueue(q, COPY, copy, .to = (uint8_t *)m->y, .from = (const uint8_t *)m->x, .bytes = sizeof m->x, .n = 1);
    kn_enqueue(q, SCALE, scale, .x = m->y, .by = 2, .n = 1, .d = N);
    kn_enqueue(q, SIGNAL, signal, .word = &m->ready, .value = turn);
    kn_enqueue(q, AWAIT, await, .word = &m->done, .value = turn);
    kn_enqueue(q, SCALE, scale, .x = m->y, .by = 1, .n = 1, .d = N, .bias = m->y);
    assert_int_equal(kn_queue_await(q, &m->ready, turn), 0);
    assert_true(m->y[1] == 2); /* the first queue waits here */
    kn_enqueue(beside, AWAIT, await, .word = &m->ready, .value = turn);
    kn_enqueue(beside, SCALE, scale, .x = m->y, .by = 3, .n = 1, .d = N);
    kn_enqueue(beside, SIGNAL, signal, .word = &m->done, .value = turn);
    assert_int_equal(kn_queue_await(q, &m->done, turn), 0);
    assert_int_equal(kn_queue_wait(q), 0);
    for (int i = 0; i < N; i++)
        assert_true(m->y[i] == 12 * (float)i);
}

static void queues_wait_for_words(void **state)
{
    struct meeting *m;
    struct kn_queue *q, *beside;
    (void)state;
    if (!seed)
        skip();
    struct kn_queue_options opt = { .device = cuda, .max_row = 4, .max_pos = 1, .n_head = 1, .n_kv = 1, .d_value = 16 };
    assert_true(kn_device_can_await(cuda));
    assert_int_equal(kn_queue_open(&q, &opt), 0);
    opt.beside = q;
    assert_int_equal(kn_queue_open(&beside, &opt), 0);
    assert_int_equal(kn_cuda_driver(NULL)->pinned_alloc((void **)&m, sizeof *m, KN_CUDA_MAPPED), 0);
    memset(m, 0, sizeof *m);
    m->ready = m->done = UINT32_MAX - 3; /* numbers wrap */
    for (uint32_t turn = 0; turn < 8; turn++) {
        seed(turn);
        meet(m, q, beside, UINT32_MAX - 2 + turn);
    }
    kn_queue_close(beside);
    kn_queue_close(q);
    kn_cuda_driver(NULL)->pinned_free(m);
}

/* Streams that share a channel would wait for each other for ever: the device does not await then. */
static void one_channel_is_found_out(void **state)
{
    (void)state;
    if (!set_channels)
        skip();
    struct kn_cuda_device *d = (struct kn_cuda_device *)cuda;
    set_channels(1);
    assert_int_equal(kn_cuda_try_await(d), 0);
    assert_false(kn_device_can_await(cuda));
    set_channels(2);
    assert_int_equal(kn_cuda_try_await(d), 0);
    assert_true(kn_device_can_await(cuda));
    set_channels(0);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

#define N_TOK 7

struct rig {
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model;
};

/* Opens the model of a file, which is then removed. */
static void open_file(struct rig *r, const char *path)
{
    assert_int_equal(moe_file_open(&r->file, path), 0);
    unlink(path);
    assert_int_equal(
        moe_model_open(&r->model, r->file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1, .device = cuda }), 0);
    assert_int_equal(moe_model_load(r->model, &(struct moe_load_options){ .team = r->team }), 0);
}

static void open_rig(struct rig *r, const char *name)
{
    char path[128];
    assert_int_equal(golden_read(&r->g, name), 0);
    snprintf(path, sizeof path, "/tmp/spillway-ahead-%d.gguf", getpid());
    assert_int_equal(golden_write(&r->g, path), 0);
    assert_int_equal(kn_team_open(&r->team, 2), 0);
    open_file(r, path);
}

static void close_file(struct rig *r)
{
    moe_model_close(r->model);
    moe_file_close(r->file);
    kn_team_close(r->team);
}

static void close_rig(struct rig *r)
{
    close_file(r);
    golden_free(&r->g);
}

/* Two passes with room for half of the experts; the first error. */
static int pass_twice(struct rig *r, float *all)
{
    struct moe_context *c;
    struct moe_context_options co = {
        .max_row = N_TOK, .max_want = N_TOK, .n_slot = 32, .max_pos = 32, .team = r->team, .kv = KN_KV_F32
    };
    int32_t slot[N_TOK];
    co.resident_bytes = moe_model_shape(r->model)->device_expert_bytes / 2;
    int error = moe_context_open(&c, r->model, &co);
    if (error)
        return error;
    for (int i = 0; i < N_TOK; i++)
        slot[i] = i;
    for (int pass = 0; !error && pass < 2; pass++) {
        struct moe_row row[N_TOK];
        struct moe_result result;
        for (int i = 0; i < N_TOK; i++)
            row[i] = (struct moe_row){
                .token = r->g.token[i], .position = i, .want_logits = i > 3, .base = slot, .n_base = N_TOK
            };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = N_TOK }, &result), 0);
        error = moe_rows_status(&result, 0, N_TOK);
        if (!error)
            memcpy(all, result.logits, (size_t)(result.n_want * r->g.n_vocab) * sizeof *all);
    }
    moe_context_close(c);
    return error;
}

/* One call after the other fails, of each function that a pass calls. */
static void a_failure_ends_the_pass(void **state)
{
    static const char *const functions[] = { "cuLaunchKernel", "cuMemcpyAsync", "cuStreamWriteValue32_v2",
                                             "cuStreamWaitValue32_v2", "cuStreamSynchronize" };
    struct rig r;
    (void)state;
    if (!fail_call)
        skip();
    open_rig(&r, "qwen3moe_norm");
    size_t n = (size_t)(N_TOK * r.g.n_vocab);
    float *right = calloc(n, sizeof *right), *now = calloc(n, sizeof *now);
    assert_int_equal(pass_twice(&r, right), 0);
    kn_log_set(drop_line, KN_LOG_ERROR);
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
        unsigned at = 1, n_failed = 0;
        for (int error = 1; error; at += 1 + at / 2) {
            seed(at);
            fail_call(functions[k], at, 999);
            error = pass_twice(&r, now);
            n_failed += error != 0;
            fail_call("", 0, 0);
            forget_error();
            if (!error)
                assert_memory_equal(now, right, n * sizeof *now);
        }
        assert_true(n_failed > 1);
    }
    kn_log_set(NULL, KN_LOG_WARN);
    assert_int_equal(pass_twice(&r, now), 0);
    assert_memory_equal(now, right, n * sizeof *now);
    free(right);
    free(now);
    close_rig(&r);
}

/* Latent attention adds operations for each round of rows: with many rounds the host does not go ahead, since the queue of a
 * stream has an end. */
static void many_operations_are_not_queued(void **state)
{
    struct moe_context *c;
    struct rig r;
    (void)state;
    if (!seed)
        skip();
    open_rig(&r, "deepseek2_lite");
    struct moe_context_options co = {
        .max_row = 32, .max_want = 1, .n_slot = 32, .max_pos = 32, .team = r.team, .kv = KN_KV_F32
    };
    co.resident_bytes = moe_model_shape(r.model)->device_expert_bytes / 2;
    assert_int_equal(moe_context_open(&c, r.model, &co), 0);
    assert_int_equal(c->latent.max_row, 32);
    for (int rounds = 1; rounds <= 32; rounds *= 2) {
        c->n_row = 32;
        c->latent.max_row = 32 / rounds;
        moe_listings_begin(c);
        assert_int_equal(c->listings.ahead, rounds < 16);
        moe_listings_leave(c);
    }
    moe_context_close(c);
    close_rig(&r);
}

/* ---- synthetic models ------------------------------------------------------------------------------------------- */

#define N_VOCAB 300

static void open_synth(struct rig *r, const char *shape, int n_layer)
{
    char path[128];
    snprintf(path, sizeof path, "/tmp/spillway-ahead-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&r->team, 2), 0);
    struct moe_synth_options so = { .shape = shape,
                                    .n_layer = n_layer,
                                    .n_used = 2,
                                    .n_vocab = N_VOCAB,
                                    .format = KN_Q8_0,
                                    .seed = 9,
                                    .team = r->team };
    assert_int_equal(moe_synth(path, &so), 0);
    open_file(r, path);
}

static int open_context(struct moe_context **out, const struct rig *r, struct moe_context_options co)
{
    co.max_row = co.max_want = N_TOK;
    co.n_slot = co.max_pos = 32;
    co.team = r->team;
    co.kv = KN_KV_F32;
    return moe_context_open(out, r->model, &co);
}

/* Tokens from .. to of sequence `state`; the last one is a draft, if so. */
static int pass(struct moe_context *c, int state, int from, int to, bool want, bool draft, float *logits)
{
    static int32_t slot[2][16];
    struct moe_row row[N_TOK];
    struct moe_result result;
    for (int i = 0; i < 16; i++)
        slot[state][i] = 16 * state + i;
    for (int p = from; p < to; p++)
        row[p - from] = (struct moe_row){ .token = 5 + 3 * p + state,
                                          .position = p,
                                          .want_logits = want,
                                          .base = slot[state],
                                          .n_base = 16,
                                          .state = state,
                                          .draft = draft && p == to - 1,
                                          .after = p - from - 1 };
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = to - from }, &result), 0);
    if (result.n_want)
        memcpy(logits, result.logits, (size_t)result.n_want * N_VOCAB * sizeof *logits);
    return moe_rows_status(&result, 0, to - from);
}

/* ---- passes while memory is being pinned ------------------------------------------------------------------------- */

static sem_t pins, let_go;

static int pin_slowly(const struct kn_device *d, void *at, size_t bytes, const char **why)
{
    (void)d, (void)at, (void)bytes, (void)why;
    sem_post(&pins);
    sem_wait(&let_go);
    return 0;
}

static void *pin(void *unused)
{
    static const struct kn_backend slow = { .name = "slow", .host_pin = pin_slowly };
    static const struct kn_device device = { &slow };
    const char *why;
    kn_host_pin(&device, unused, 1, &why);
    return NULL;
}

/* Until end_pin() a thread pins memory, if so. */
static void begin_to_pin(pthread_t *thread, bool pinning)
{
    sem_init(&pins, 0, 0);
    sem_init(&let_go, 0, 0);
    if (!pinning)
        return;
    assert_int_equal(pthread_create(thread, NULL, pin, NULL), 0);
    sem_wait(&pins);
}

static void end_pin(struct moe_context *c, pthread_t thread, bool pinning)
{
    assert_true((c->copies == c->beside) == !pinning); /* did the pass go ahead? */
    if (!pinning)
        return;
    sem_post(&let_go);
    pthread_join(thread, NULL);
}

/* The second pass waits before its first layer: it computes the pending rows of the first one. */
static void states_after_pinning(const struct rig *r, bool pinning, float *logits)
{
    struct moe_context *c;
    pthread_t thread;
    assert_int_equal(open_context(&c, r, (struct moe_context_options){ .n_state = 2, .n_draft = 2 }), 0);
    begin_to_pin(&thread, pinning);
    assert_int_equal(pass(c, 0, 0, 4, true, true, logits), 0);
    end_pin(c, thread, pinning);
    moe_context_keep(c, 0, &(int32_t){ 3 }, 1);
    assert_int_equal(pass(c, 1, 0, 3, true, true, logits + 4 * N_VOCAB), 0);
    end_pin(c, thread, false);
    assert_int_equal(pass(c, 0, 4, 6, true, false, logits + 7 * N_VOCAB), 0);
    moe_context_close(c);
}

/* The only layer with experts is the last, which computes nothing for the second pass. */
static void no_layer_after_pinning(const struct rig *r, bool pinning, float *logits)
{
    struct moe_context *c;
    pthread_t thread;
    assert_int_equal(open_context(&c, r, (struct moe_context_options){ .n_state = 0 }), 0);
    begin_to_pin(&thread, pinning);
    assert_int_equal(pass(c, 0, 0, 4, true, false, logits), 0);
    end_pin(c, thread, pinning);
    assert_int_equal(pass(c, 0, 4, 7, false, false, NULL), 0);
    end_pin(c, thread, false);
    assert_int_equal(pass(c, 0, 7, 9, true, false, logits + 4 * N_VOCAB), 0);
    moe_context_close(c);
}

static void passes_go_ahead_after_pinning(void **state)
{
    static float right[9 * N_VOCAB], now[9 * N_VOCAB];
    struct rig r;
    (void)state;
    if (!fail_call)
        skip();
    open_synth(&r, "tiny-qwen3next", 4);
    states_after_pinning(&r, false, right);
    states_after_pinning(&r, true, now);
    assert_memory_equal(now, right, sizeof now);
    close_file(&r);
    open_synth(&r, "tiny-glm4moe", 2);
    no_layer_after_pinning(&r, false, right);
    no_layer_after_pinning(&r, true, now);
    assert_memory_equal(now, right, 6 * N_VOCAB * sizeof *now);
    close_file(&r);
}

/* ---- words after a failure --------------------------------------------------------------------------------------- */

/* A context whose device has no experts of the first layer, all of the next two that the token uses, and none of the last
 * three. */
static struct moe_context *open_gapped(const struct rig *r, float *logits)
{
    struct moe_context *c;
    size_t n_slot = 2 * 2 + 1; /* one is for experts that do not stay */
    struct moe_context_options co = { .resident_bytes = n_slot * r->model->resident_sizes.bytes[0], .n_host_layer = 1 };
    struct off_stats stats;
    assert_int_equal(open_context(&c, r, co), 0);
    do { /* passes while memory is pinned do not go ahead */
        usleep(1000);
        off_stats_get(moe_model_store(r->model), &stats);
    } while (stats.pinning);
    assert_int_equal(pass(c, 0, 0, 1, true, false, logits), 0);
    assert_int_equal(pass(c, 0, 0, 1, true, false, logits), 0);
    assert_int_equal(c->residents.total.n_alone, 2);
    return c;
}

/* When the queue beside fails, which computes the experts of the first layer, the device still says by itself that it has
 * computed those of the next two. */
static void no_word_falls_after_a_failure(void **state)
{
    static float logits[N_VOCAB];
    struct rig r;
    (void)state;
    if (!fail_call)
        skip();
    look_for_races(0); /* of a failed pass the results do not count; a race would end it here */
    open_synth(&r, "tiny-olmoe", 6);
    int n_failed = 0, error = 1;
    for (unsigned at = 1; error; at++) {
        struct moe_context *c = open_gapped(&r, logits);
        kn_log_set(drop_line, KN_LOG_ERROR);
        seed(at);
        fail_call("cuStreamWriteValue32_v2", at, 999);
        error = pass(c, 0, 0, 1, true, false, logits);
        n_failed += error != 0;
        fail_call("", 0, 0);
        moe_context_close(c);
        forget_error();
        kn_log_set(NULL, KN_LOG_WARN);
    }
    assert_int_equal(n_failed, 6 + 4); /* a word for each layer, and one for each that the device lacks */
    close_file(&r);
    look_for_races(1);
}

static int close_all(void **state)
{
    (void)state;
    kn_cuda_close(cuda);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queues_wait_for_words),          cmocka_unit_test(one_channel_is_found_out),
        cmocka_unit_test(many_operations_are_not_queued), cmocka_unit_test(a_failure_ends_the_pass),
        cmocka_unit_test(passes_go_ahead_after_pinning),  cmocka_unit_test(no_word_falls_after_a_failure)
    };
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1); /* the user's: it is not kept */
    if (!find_controls())
        seed = NULL;
    return cmocka_run_group_tests(tests, NULL, close_all);
}
