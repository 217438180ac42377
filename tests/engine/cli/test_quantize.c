/* The output of quantize: a line or JSON member for each tensor, a total, and refusals.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/cli/cli.h"
#include "tests/engine/cli/json_value.h"
#include "tests/moe/folder.h"

static struct eng_config config;
static char output[65536], said[1024], target[160];

static void listen(enum kn_level level, const char *line)
{
    if (level <= KN_LOG_ERROR)
        snprintf(said, sizeof said, "%s", line);
}

/* A small model in F16; attention, embedding and head have other formats. */
static int setup(void **state)
{
    struct moe_synth_options opt = { .shape = "tiny", .n_layer = 1, .n_vocab = 300, .format = KN_F16 };
    if (folder_make(state) || kn_team_open(&opt.team, 1))
        return -1;
    int err = moe_synth(path, &opt);
    kn_team_close(opt.team);
    snprintf(target, sizeof target, "%s/out.gguf", folder);
    return err;
}

static void configure(const char *format)
{
    config = (struct eng_config){ .model = path,
                                  .output = target,
                                  .format = format,
                                  .n_thread = 1,
                                  .isa = KN_ISA_COUNT - 1,
                                  .requantize = true,
                                  .quiet = false };
}

/* Runs the command with standard output in a file. */
static int quantize(void)
{
    FILE *catch = tmpfile();
    fflush(stdout);
    int kept = dup(1);
    dup2(fileno(catch), 1);
    said[0] = 0;
    kn_log_set(listen, KN_LOG_INFO);
    int code = eng_cmd_quantize(&config);
    fflush(stdout);
    kn_log_set(NULL, KN_LOG_INFO);
    dup2(kept, 1);
    close(kept);
    rewind(catch);
    output[fread(output, 1, sizeof output - 1, catch)] = '\0';
    fclose(catch);
    return code;
}

static void lines_say_what_became_of_each_tensor(void **state)
{
    (void)state;
    int n_line = 0;
    double bits, error;
    configure("q4_k");
    assert_int_equal(quantize(), 0);
    for (const char *c = output; *c; c++)
        n_line += *c == '\n';
    assert_int_equal(n_line, 15 + 1);
    assert_non_null(strstr(output, "blk.0.ffn_gate_inp.weight                  F32 to F32    32.00 bits"));
    assert_non_null(strstr(output, "token_embd.weight                         Q8_0 to Q4_K    4.50 bits"));
    const char *total = strstr(output, "15 tensors, ");
    assert_non_null(total);
    assert_int_equal(sscanf(strchr(total, ':'), ": %lf bits per weight, relative error %lf", &bits, &error), 2);
    assert_true(bits > 4.5 && bits < 4.6 && error > 0.05 && error < 0.06);
}

static void json_is_json_and_says_the_same(void **state)
{
    (void)state;
    configure("q6_k");
    config.json = true;
    config.part_format[MOE_EXPERTS] = "q8_0";
    assert_int_equal(quantize(), 0);
    const char *end = json_value(output);
    if (!end || strcmp(end, "\n"))
        fail_msg("not JSON: %s", output);
    assert_non_null(strstr(output, "{\"name\":\"blk.0.ffn_up_exps.weight\",\"from\":\"F16\",\"to\":\"Q8_0\","));
    assert_non_null(strstr(output, "{\"name\":\"output.weight\",\"from\":\"Q8_0\",\"to\":\"Q6_K\","));
}

static void every_part_s_flag_reaches_it(void **state)
{
    (void)state;
    static const char *const tensor[MOE_PART_COUNT] = {
        [MOE_EXPERTS] = "blk.0.ffn_down_exps.weight",
        [MOE_ATTENTION] = "blk.0.attn_v.weight",
        [MOE_EMBEDDING] = "token_embd.weight",
        [MOE_HEAD] = "\noutput.weight",
    };
    for (int part = 0; part < MOE_PART_COUNT; part++) {
        configure("bf16");
        config.part_format[part] = "Q4_K";
        assert_int_equal(quantize(), 0);
        for (int i = 0; i < MOE_PART_COUNT; i++) {
            char *line = tensor[i] ? strstr(output, tensor[i]) : NULL;
            assert_true(line || i == MOE_FFN);
            const char *end = line ? strchr(line + 1, '\n') : NULL;
            if (line)
                assert_int_equal(memmem(line, (size_t)(end - line), "to Q4_K", 7) != NULL, i == part);
        }
    }
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    configure("q9");
    assert_int_equal(quantize(), 2);
    assert_string_equal(said, "--format q9 is unknown; the formats are F32 F16 BF16 Q8_0 Q4_K Q6_K MXFP4 Q4_0 Q4_1 "
                              "Q5_0 Q5_1 Q5_K Q2_K Q3_K IQ4_NL IQ4_XS IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S "
                              "IQ1_S IQ1_M NVFP4");
    configure("q4_k");
    config.part_format[MOE_HEAD] = "tq1_0";
    assert_int_equal(quantize(), 2);
    assert_non_null(strstr(said, "--head tq1_0 is unknown; the formats are"));
    configure("q4_k");
    config.requantize = false;
    assert_int_equal(quantize(), 2);
    assert_non_null(strstr(said, "'token_embd.weight' is already quantised"));
    configure("q4_k");
    config.model = "/nonexistent.gguf";
    assert_int_equal(quantize(), 2);
    configure("q4_k");
    config.output = folder;
    assert_int_equal(quantize(), 2);
    assert_non_null(strstr(said, "it is a folder"));
}

/* The final rename would replace a device by a file, or a link by a file on the wrong drive. */
static void what_is_no_plain_file_is_no_target(void **state)
{
    char other[2][200];
    struct stat st;
    (void)state;
    snprintf(other[0], sizeof other[0], "%s/pipe", folder);
    assert_int_equal(mkfifo(other[0], 0600), 0);
    snprintf(other[1], sizeof other[1], "%s/leads-away", folder);
    assert_int_equal(symlink("/elsewhere/out.gguf", other[1]), 0);
    for (int i = 0; i < 2; i++) {
        configure("q4_k");
        config.output = other[i];
        assert_int_equal(quantize(), 2);
        assert_non_null(strstr(said, "this is a link or a device, which a file would replace"));
        assert_int_equal(lstat(other[i], &st), 0);
        assert_false(S_ISREG(st.st_mode));
    }
}

/* SIGHUP leaves no file, also if this test runs under nohup. Must be the last test: the stop request stays set. */
static void hung_up_on_it_leaves_nothing(void **state)
{
    char other[200];
    (void)state;
    signal(SIGHUP, SIG_DFL);
    eng_interrupt();
    raise(SIGHUP);
    configure("q4_k");
    snprintf(other, sizeof other, "%s/stopped.gguf", folder);
    config.output = other;
    assert_int_equal(quantize(), 2);
    assert_non_null(strstr(said, "stopped; nothing was written"));
    assert_int_equal(access(other, F_OK), -1);
}

static void the_input_is_no_target(void **state)
{
    (void)state;
    char other[200];
    configure("q4_k");
    config.output = path;
    assert_int_equal(quantize(), 2);
    assert_non_null(strstr(said, "would overwrite the input"));
    said[0] = 0; /* eval --logits does not overwrite its input either */
    kn_log_set(listen, KN_LOG_INFO);
    assert_int_equal(eng_cmd_eval(&(struct eng_config){ .model = path, .logits = path, .ids = "1", .n_chunk = 8 }), 2);
    kn_log_set(NULL, KN_LOG_INFO);
    assert_non_null(strstr(said, "would overwrite the input"));
    snprintf(other, sizeof other, "%s/link.gguf", folder);
    assert_int_equal(symlink(path, other), 0);
    config.output = other;
    assert_int_equal(quantize(), 2);
    assert_string_equal(output, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_what_became_of_each_tensor),
        cmocka_unit_test(json_is_json_and_says_the_same),
        cmocka_unit_test(every_part_s_flag_reaches_it),
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(the_input_is_no_target),
        cmocka_unit_test(what_is_no_plain_file_is_no_target),
        cmocka_unit_test(hung_up_on_it_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
