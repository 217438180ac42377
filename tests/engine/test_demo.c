/* The demo model. Its files have the recorded SHA-256 sums, and its answer to one prompt equals the recorded text byte
 * for byte: with all experts in memory or a few, alone or in a batch, on every instruction set.
 *
 * The answer was recorded once; one changed bit in any operation soon changes a sampled token.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/plan/disk_rate.h"
#include "engine/draft/internal.h"
#include "engine/internal.h"
#include "engine/plan/plan.h"

#define FOLDER "evals/train/models"
#define MODEL  FOLDER "/demo-target-q8_0.gguf"

static const char prompt[] = "<|im_start|>user\nHow many eggs are in 3 dozen?<|im_end|>\n<|im_start|>assistant\n";
static const char said[] =
    "If Hugo `Permutation` gave them to 7 eggs, then the number of eggs that L beans is 55/4 = 9 eggs\n"
    "Mapter gave away half of the remaining then he remained on 9 - 2 = 4 eggs\n"
    "The answer is 4.";

static void files_are_what_was_trained(void **state)
{
    (void)state;
    assert_int_equal(system("cd " FOLDER " && sha256sum --quiet -c SHA256SUMS"), 0);
}

static void answer(struct eng_engine *e, int company, char *out /* [4096] */)
{
    struct eng_session *session[4];
    struct eng_event event[4];
    struct eng_ids ids = { 0 };
    struct eng_decoder decoder;
    size_t n = 0;
    assert_int_equal(
        eng_tokenize(eng_vocab(e), prompt, strlen(prompt), ENG_TEXT_ADD_BOS | ENG_TEXT_PARSE_SPECIAL, &ids), 0);
    for (int i = 0; i <= company; i++) {
        struct eng_request r = { .token = ids.id, .n_token = (int)ids.n, .n_predict = 64 };
        spec_params_default(&r.sampling);
        r.sampling.temperature = 1;
        r.sampling.seed = i ? (uint64_t)(100 + i) : 7;
        assert_int_equal(eng_session_open(&session[i], e), 0);
        assert_int_equal(eng_session_start(session[i], &r), 0);
    }
    eng_decoder_init(&decoder, eng_vocab(e), 0);
    while (eng_session_runs(session[0])) {
        int got = eng_step(e, event);
        assert_true(got >= 0);
        for (int i = 0; i < got; i++)
            if (event[i].session == session[0] && event[i].token != ENG_NO_TOKEN && event[i].finish != ENG_STOP)
                n += eng_decoder_feed(&decoder, event[i].token, out + n);
    }
    out[n] = 0;
    for (int i = 0; i <= company; i++)
        eng_session_close(session[i]);
    eng_ids_free(&ids);
}

static void it_says_what_it_always_said(void **state)
{
    (void)state;
    char text[4096];
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
    int first = 2 * (int)kn_isa_best(); /* test_same_bytes.c runs the others */
#else
    int first = 0;
#endif
    for (int way = first; way < 2 * KN_ISA_COUNT; way++) {
        struct eng_engine *e;
        struct eng_options o = {
            .model = MODEL, .isa = (enum kn_isa)(way / 2), .n_thread = 2, .n_parallel = 4, .n_ctx = 256, .n_chunk = 16
        };
        if (o.isa > kn_isa_best())
            break;
        if (way % 2) { /* most experts stay on disk */
            assert_int_equal(eng_describe(&e, &o), 0);
            o.host_mem = eng_memory(e)->least + ((size_t)4 << 20);
            eng_close(e);
        }
        assert_int_equal(eng_open(&e, &o), 0);
        assert_int_equal(eng_memory(e)->n_resident < eng_memory(e)->n_expert, way % 2);
        answer(e, way % 3, text);
        assert_string_equal(text, said);
        eng_close(e);
    }
}

/* A budget a few MiB above the least: the pass forecast includes the disk time, if the disk can be measured here. */
static void the_disk_is_in_the_forecast(void **state)
{
    (void)state;
    struct eng_options o = { .model = MODEL,
                             .isa = KN_ISA_COUNT - 1,
                             .n_thread = 1,
                             .n_parallel = 1,
                             .n_ctx = 256,
                             .n_chunk = 16,
                             .gamma = ENG_GAMMA_AUTO,
                             .n_draft = 1 };
    struct eng_engine *e;
    double rate;
    assert_int_equal(eng_draft_parse(&o.draft[0], "ngram"), 0);
    assert_int_equal(eng_describe(&e, &o), 0);
    o.host_mem = eng_memory(e)->least + ((size_t)4 << 20);
    eng_close(e);
    assert_int_equal(eng_open(&e, &o), 0);
    assert_true(e->memory.split.dense + e->memory.split.expert < ENG_DISK_BYTES);
    if (eng_disk_measure(MODEL, NULL, ENG_DISK_LEAST, &rate) == 0)
        assert_true(e->drafting->cost.disk_ns > 0);
    eng_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_what_was_trained),
        cmocka_unit_test(it_says_what_it_always_said),
        cmocka_unit_test(the_disk_is_in_the_forecast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
