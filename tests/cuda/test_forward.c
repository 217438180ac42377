/* Whole passes on a CUDA device have the bytes of the host: tiny models of the families that the device can compute,
 * a prompt and some tokens after it.  The device keeps half of the experts, which it chooses meanwhile, and computes
 * some of the others after a copy; or it keeps all. */
#include "moe/pass/pass.h"
#include "tests/cuda/on_cuda.h"

#include <string.h>

#include "tests/moe/golden.h"
#include "tests/moe/load.h"

#define PROMPT 9
#define LENGTH 13

/* The interpreter is slow under sanitizers: there each family has one format of the KV cache, and each format some
 * families. ThreadSanitizer runs three families with experts, one with each format, because the host's and the device's
 * threads are the same for all. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define KV_STEP KN_KV_COUNT
#else
#define KV_STEP 1
#endif
#ifdef __SANITIZE_THREAD__
#define FIRST_FAMILY 2 /* gpt_oss, qwen3next, phimoe */
#define FAMILY_STEP  4
#else
#define FIRST_FAMILY 0
#define FAMILY_STEP  1
#endif

/* Logits of the first LENGTH tokens: the prompt's in one pass, the others one by one. */
static void run(const struct golden *g, struct moe_model *m, struct kn_team *team, enum kn_kv kv, bool keeps_all,
                float *all)
{
    struct moe_context *c;
    struct moe_context_options co = {
        .max_row = PROMPT, .max_want = PROMPT, .n_slot = 32, .max_pos = 32, .team = team, .kv = kv
    };
    int32_t slot[LENGTH];
    co.resident_bytes = moe_model_shape(m)->device_expert_bytes / (keeps_all ? 1 : 2);
    assert_int_equal(moe_context_open(&c, m, &co), 0);
    c->residents.where.plans = MOE_PLANS_RANDOM;
    for (int i = 0; i < LENGTH; i++)
        slot[i] = (i * 7 + 3) % 32;
    for (int done = 0; done < LENGTH;) {
        struct moe_row row[PROMPT];
        struct moe_result result;
        int n = done ? 1 : PROMPT;
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){ .token = g->token[done + i],
                                       .position = done + i,
                                       .want_logits = done || i % 3 == 2,
                                       .base = slot,
                                       .n_base = LENGTH };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
        assert_int_equal(moe_rows_status(&result, 0, n), 0);
        memcpy(all, result.logits, (size_t)(result.n_want * g->n_vocab) * sizeof *all);
        all += result.n_want * g->n_vocab;
        done += n;
    }
    moe_context_close(c);
}

static int n_run; /* families so far */

static void logits_are_those_of_the_host(void **state)
{
    const char *name = *state;
    char path[128];
    struct golden g;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model[2];
    if (!cuda_open())
        skip();
    assert_int_equal(golden_read(&g, name), 0);
    snprintf(path, sizeof path, "/tmp/spillway-cuda-%d.gguf", getpid());
    assert_int_equal(golden_write(&g, path), 0);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    for (int i = 0; i < 2; i++) {
        struct moe_model_options mo = { .isa = KN_ISA_COUNT - 1, .device = i ? cuda : NULL };
        assert_int_equal(moe_model_open(&model[i], file, &mo), 0);
        assert_int_equal(moe_model_load(model[i], &(struct moe_load_options){ .team = team }), 0);
    }
    bool can_await = kn_device_can_await(cuda);
    for (int kv = n_run++ % KV_STEP; kv < KN_KV_COUNT; kv += KV_STEP) {
        size_t n = (size_t)(LENGTH * g.n_vocab);
        float *host = calloc(n, sizeof *host), *device = calloc(n, sizeof *device);
        run(&g, model[0], team, (enum kn_kv)kv, false, host);
        /* once as with a driver without operations on words: the host sees each layer before it adds the next */
        ((struct kn_cuda_device *)cuda)->can_await = can_await && kv != KN_KV_INT8;
        run(&g, model[1], team, (enum kn_kv)kv, kv == KN_KV_F16, device);
        assert_memory_equal(device, host, n * sizeof *host);
        free(host);
        free(device);
    }
    ((struct kn_cuda_device *)cuda)->can_await = can_await;
    moe_model_close(model[0]);
    moe_model_close(model[1]);
    moe_file_close(file);
    kn_team_close(team);
    golden_free(&g);
}

int main(void)
{
    static char *const name[] = {
        "llama_gqa", "qwen3moe_norm", "gpt_oss",       "glm4moe",  "deepseek2_lite", "gemma3",
        "qwen3next", "gemma4_moe",    "mimo_v2_flash", "mistral4", "phimoe",         "llama4"
    };
    enum { N_NAME = sizeof name / sizeof *name, N = (N_NAME - FIRST_FAMILY + FAMILY_STEP - 1) / FAMILY_STEP };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++) {
        char *family = name[FIRST_FAMILY + i * FAMILY_STEP];
        tests[i] = (struct CMUnitTest){ family, logits_are_those_of_the_host, NULL, NULL, family };
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
