/* A device that goes on without the host: queues that wait for words in any order that they allow, and passes in which a
 * call of the driver fails: they end with an error, and nothing hangs.  Needs the interpreter of PTX.
 *
 * Threads of the interpreter share memory with the host as a GPU does: not under MODE=tsan. */
#include "moe/pass/pass.h"
#include "tests/cuda/on_cuda.h"

#include <string.h>

#include "tests/moe/golden.h"
#include "tests/moe/load.h"

static void (*fail_call)(const char *function, unsigned n, int code);
static void (*forget_error)(void);
static void (*seed)(unsigned long long n);

static bool find_controls(void)
{
    static const struct {
        const char *name;
        void *to;
    } controls[] = { { "spillway_gpu_fail_call", &fail_call },
                     { "spillway_gpu_forget_error", &forget_error },
                     { "spillway_gpu_seed", &seed } };
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

/* ---- passes ------------------------------------------------------------------------------------------------------ */

#define N_TOK 7

struct rig {
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model;
};

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
        assert_int_equal(moe_forward(c, &(struct moe_batch){ row, N_TOK }, &result), 0);
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
    char path[128];
    struct rig r;
    (void)state;
    if (!fail_call)
        skip();
    assert_int_equal(golden_read(&r.g, "qwen3moe_norm"), 0);
    snprintf(path, sizeof path, "/tmp/spillway-ahead-%d.gguf", getpid());
    assert_int_equal(golden_write(&r.g, path), 0);
    assert_int_equal(kn_team_open(&r.team, 2), 0);
    assert_int_equal(moe_file_open(&r.file, path), 0);
    unlink(path);
    assert_int_equal(
        moe_model_open(&r.model, r.file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1, .device = cuda }), 0);
    assert_int_equal(moe_model_load(r.model, &(struct moe_load_options){ .team = r.team }), 0);
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
    moe_model_close(r.model);
    moe_file_close(r.file);
    kn_team_close(r.team);
    golden_free(&r.g);
}

static int close_all(void **state)
{
    (void)state;
    kn_cuda_close(cuda);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(queues_wait_for_words),
                                        cmocka_unit_test(a_failure_ends_the_pass) };
    if (!find_controls())
        seed = NULL;
    return cmocka_run_group_tests(tests, NULL, close_all);
}
