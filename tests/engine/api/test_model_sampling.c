/* A model's own sampling defaults (engine/api/model_sampling.c): all keys of a GGUF file; flags go before them; values out
 * of range are ignored with a warning; one line names the values.
 *
 * One thread: not under MODE=tsan. */
#include "engine/api/model_sampling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char lines[4096];

static void hear(enum kn_level level, const char *line)
{
    size_t n = strlen(lines);
    snprintf(lines + n, sizeof lines - n, "%d %s\n", (int)level, line);
}

/* A file with these values: floats, or, from `whole` on, integers. */
static struct moe_file *file_with(const char *const *key, const double *x, int n, int whole, const char *sequence)
{
    char path[64];
    struct moe_writer *w;
    struct moe_file *f;
    snprintf(path, sizeof path, "/tmp/spillway-sampling-%d.gguf", (int)getpid());
    assert_int_equal(moe_writer_open(&w, path), 0);
    moe_writer_string(w, "general.architecture", "none", 4);
    for (int i = 0; i < n; i++) {
        float real = (float)x[i];
        int32_t integer = (int32_t)x[i];
        moe_writer_value(w, key[i], i < whole ? MOE_F32 : MOE_I32, i < whole ? (void *)&real : (void *)&integer);
    }
    if (sequence)
        moe_writer_string(w, "general.sampling.sequence", sequence, strlen(sequence));
    assert_int_equal(moe_writer_header(w), 0);
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
    assert_int_equal(moe_file_open(&f, path), 0);
    unlink(path);
    return f;
}

static const char *const keys[] = {
    "general.sampling.temp",          "general.sampling.top_p",
    "general.sampling.min_p",         "general.sampling.xtc_probability",
    "general.sampling.xtc_threshold", "general.sampling.penalty_repeat",
    "general.sampling.top_k",         "general.sampling.penalty_last_n",
};

static unsigned bit_of(size_t offset)
{
    unsigned bit = eng_model_sampling_bit(offset);
    assert_true(bit != 0);
    return bit;
}

/* Reads the file's values, which must leave the program's defaults as they are, and closes it. */
static void changes_nothing(struct moe_file *f, unsigned given)
{
    struct spec_params p, usual;
    spec_params_default(&p);
    usual = p;
    lines[0] = 0;
    kn_log_set(hear, KN_LOG_INFO);
    eng_model_sampling(&p, given, f);
    kn_log_set(NULL, KN_LOG_INFO);
    assert_memory_equal(&p, &usual, sizeof p);
    moe_file_close(f);
}

static void all_values_are_taken(void **state)
{
    static const double x[] = { 0.6, 0.95, 0.01, 0.5, 0.2, 1.05, 20, 128 };
    struct moe_file *f = file_with(keys, x, 8, 6, "top_k;dry;temperature");
    struct spec_params p, usual;
    (void)state;
    spec_params_default(&p);
    usual = p;
    lines[0] = 0;
    kn_log_set(hear, KN_LOG_INFO);
    eng_model_sampling(&p, 0, f);
    assert_true(p.temperature == 0.6f && p.top_p == 0.95f && p.min_p == 0.01f && p.repetition == 1.05f);
    assert_true(p.xtc_probability == 0.5f && p.xtc_threshold == 0.2f && p.top_k == 20 && p.repeat_last == 128);
    assert_true(p.has_order && p.n_order == 3 && p.order[0] == SPEC_STEP_TOP_K && p.order[1] == SPEC_STEP_DRY &&
                p.order[2] == SPEC_STEP_TEMPERATURE);
    assert_non_null(
        strstr(lines, "sampling defaults of the model: temperature 0.6, top-k 20, top-p 0.95, min-p 0.01, "));
    assert_non_null(strstr(lines, "repeat-last-n 128, its own order of steps (--sampling-defaults none: off)"));

    p = usual; /* values that the user gave stay */
    p.temperature = 1;
    eng_model_sampling(
        &p, bit_of(offsetof(struct spec_params, temperature)) | bit_of(offsetof(struct spec_params, order)), f);
    assert_true(p.temperature == 1 && p.top_k == 20 && !p.has_order);

    kn_log_set(NULL, KN_LOG_INFO);
    changes_nothing(f, ENG_MODEL_SAMPLING_NONE);
    assert_string_equal(lines, "");
    assert_int_equal(eng_model_sampling_bit(offsetof(struct spec_params, seed)), 0);
}

static void bad_values_are_ignored(void **state)
{
    static const double x[] = { -1, 1.5, __builtin_nan(""), 2, -1, 0, -2, -2 };
    struct moe_file *f = file_with(keys, x, 8, 6, "top_k;infill");
    (void)state;
    changes_nothing(f, 0);
    for (int i = 0; i < 8; i++)
        assert_non_null(strstr(lines, keys[i]));
    assert_non_null(strstr(lines, "sequence is ignored"));
    assert_null(strstr(lines, "defaults of the model"));
}

static void a_model_without_them_changes_nothing(void **state)
{
    (void)state;
    changes_nothing(file_with(keys, NULL, 0, 0, NULL), 0);
    assert_string_equal(lines, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_values_are_taken),
        cmocka_unit_test(bad_values_are_ignored),
        cmocka_unit_test(a_model_without_them_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
