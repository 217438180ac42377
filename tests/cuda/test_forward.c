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
        assert_int_equal(moe_forward(c, &(struct moe_batch){ row, n }, &result), 0);
        assert_int_equal(moe_rows_status(&result, 0, n), 0);
        memcpy(all, result.logits, (size_t)(result.n_want * g->n_vocab) * sizeof *all);
        all += result.n_want * g->n_vocab;
        done += n;
    }
    moe_context_close(c);
}

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
    for (int kv = 0; kv < KN_KV_COUNT; kv++) {
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
    struct CMUnitTest tests[sizeof name / sizeof *name];
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        tests[i] = (struct CMUnitTest){ name[i], logits_are_those_of_the_host, NULL, NULL, name[i] };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
