/* The output of inspect: the same facts as text and as JSON, with any bytes in the names of the file.
 *
 * One thread: not under MODE=tsan. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/cli/cli.h"
#include "tests/engine/cli/json_value.h"
#include "tests/moe/gguf_bytes.h"

static char path[] = "/tmp/spillway-test-XXXXXX", output[65536];

static int setup(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return remove(path);
}

static void silent(enum kn_level level, const char *line)
{
    (void)level;
    (void)line;
}

/* Runs the command; its standard output goes to output[]. */
static int inspect(bool json, bool verbose)
{
    static struct eng_config config;
    config = (struct eng_config){ .model = path, .json = json, .verbose = verbose };
    FILE *catch = tmpfile();
    fflush(stdout);
    int kept = dup(1);
    dup2(fileno(catch), 1);
    kn_log_set(silent, KN_LOG_INFO);
    int code = eng_cmd_inspect(&config);
    kn_log_set(NULL, KN_LOG_INFO);
    dup2(kept, 1);
    close(kept);
    rewind(catch);
    output[fread(output, 1, sizeof output - 1, catch)] = '\0';
    fclose(catch);
    return code;
}

static void save_model(void)
{
    static const uint64_t expert[] = { 32, 2, 3 }, row[] = { 32, 4 };
    struct gguf g = { 0 };
    gguf_header(&g, 3, 4, 9);
    gguf_string_value(&g, "general.architecture", "strange");
    gguf_string_value(&g, "general.name", "a \"name\"\n\x1b[31m\\ \xc3\xa9 \xff");
    gguf_u32_value(&g, "strange.block_count", 7);
    gguf_u32_value(&g, "strange.expert_count", 3);
    gguf_array(&g, "strange.attention.head_count", MOE_U32, 2);
    gguf_u32(&g, 4);
    gguf_u32(&g, 6);
    gguf_string_value(&g, "strange.context_length", "not a number");
    gguf_array(&g, "tokenizer.ggml.tokens", MOE_STRING, 10);
    for (int i = 0; i < 10; i++)
        gguf_string(&g, i == 3 ? "\t\"" : "t");
    gguf_f32_value(&g, "key \"\x01", 1e30f * 1e30f);
    gguf_key(&g, "flag", MOE_BOOL);
    gguf_u8(&g, 1);
    gguf_tensor(&g, "blk.0.ffn_up_exps.weight", 3, expert, 8, 0); /* 204 bytes */
    gguf_tensor(&g, "blk.0.ffn_up.1.weight", 2, row, 8, 224);     /* 136: an expert in old files */
    gguf_tensor(&g, "blk.0.ffn_up.weight", 2, row, 8, 384);       /* 136: not an expert */
    gguf_tensor(&g, "odd\"\n", 1, row, 4711, 544);
    gguf_data(&g, 560);
    gguf_save(&g, path);
    gguf_free(&g);
}

static void lines_say_what_the_file_holds(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "architecture   strange\n",
        "name           a \"name\"\\x0a\\x1b[31m\\x5c \xc3\xa9 \\xff\n",
        "layers         7\n",
        "heads          6\n",
        "experts        3\n",
        "vocabulary     10\n",
        "  experts      340 B\n",
        "  dense        136 B\n",
        "  Q8_0              3 tensors  476 B\n",
        "  other             1 tensors  0 B\n",
        "runs here      no\n",
        "architecture \"strange\"",
        "chat template  none: --chat-template takes one\n",
    };
    save_model();
    assert_int_equal(inspect(false, false), 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(output, lines[i]))
            fail_msg("'%s' is not in:\n%s", lines[i], output);
    assert_null(strstr(output, "context"));
    assert_null(strstr(output, "metadata"));
    assert_int_equal(inspect(false, true), 0);
    assert_non_null(strstr(output, "10: \"t\", \"t\", \"t\", \"\\x09\"\", \"t\""));
    assert_non_null(strstr(output, "  odd\"\\x0a "));
    assert_non_null(strstr(output, "not finite"));
    for (const char *c = output; *c; c++)
        assert_true(*c == '\n' || (unsigned char)*c >= 0x20);
}

static void json_is_json_and_says_the_same(void **state)
{
    (void)state;
    static const char *const members[] = {
        "\"arch\":\"strange\"",
        "\"name\":\"a \\\"name\\\"\\u000a\\u001b[31m\\\\ \xc3\xa9 \\ufffd\"",
        "\"n_layer\":7",
        "\"n_head\":6",
        "\"n_vocab\":10",
        "\"expert_bytes\":340",
        "\"dense_bytes\":136",
        "architecture \\\"strange\\\" is not supported",
        "{\"type\":\"Q8_0\",\"n_tensor\":3,\"bytes\":476}",
    };
    save_model();
    for (int verbose = 0; verbose < 2; verbose++) {
        assert_int_equal(inspect(true, verbose), 0);
        const char *end = json_value(output);
        if (!end || strcmp(end, "\n"))
            fail_msg("not JSON: %s", output);
        for (size_t i = 0; i < sizeof members / sizeof *members; i++)
            if (!strstr(output, members[i]))
                fail_msg("'%s' is not in:\n%s", members[i], output);
    }
    assert_non_null(strstr(output, "\"tokenizer.ggml.tokens\":{\"n\":10,\"first\":[\"t\","));
    assert_non_null(strstr(output, ",\"t\",\"\\u0009\\\"\","));
    assert_non_null(strstr(output, "\"flag\":true"));
    assert_non_null(strstr(output, ":null"));
    assert_non_null(strstr(output, "\"name\":\"odd\\\"\\u000a\",\"type\":\"type 4711\""));
}

static void keys_that_will_be_held_wider_are_named(void **state)
{
    (void)state;
    static const uint64_t both[] = { 32, 32 }, keys[] = { 16, 32 };
    for (int i = 0; i < 3; i++) { /* quantised; float; quantised, with separate keys */
        struct gguf g = { 0 };
        gguf_header(&g, 3, 2, 1);
        gguf_string_value(&g, "general.architecture", "deepseek2");
        gguf_tensor(&g, "blk.0.attn_kv_b.weight", 2, both, i == 1 ? 1 : 8, 0);
        gguf_tensor(&g, i == 2 ? "blk.0.attn_k_b.weight" : "blk.0.attn_k_c.weight", 2, keys, 1, 2048);
        gguf_data(&g, 3072);
        gguf_save(&g, path);
        gguf_free(&g);
        assert_int_equal(inspect(false, false), 0);
        assert_int_equal(strstr(output, "held as F32") != NULL, i == 0);
    }
}

/* MTP layers, or their number alone where the converter dropped them. */
static void layers_that_guess_ahead_are_told(void **state)
{
    (void)state;
    static const uint64_t vector[] = { 32 };
    for (int left_out = 0; left_out < 2; left_out++) {
        struct gguf g = { 0 };
        gguf_header(&g, 3, 2, 3);
        gguf_string_value(&g, "general.architecture", "glm4moe");
        gguf_u32_value(&g, "glm4moe.block_count", 2);
        gguf_u32_value(&g, "glm4moe.nextn_predict_layers", 1);
        gguf_tensor(&g, "blk.0.attn_norm.weight", 1, vector, 0, 0);
        gguf_tensor(&g, left_out ? "blk.0.ffn_norm.weight" : "blk.1.nextn.enorm.weight", 1, vector, 0, 128);
        gguf_data(&g, 256);
        gguf_save(&g, path);
        gguf_free(&g);
        assert_int_equal(inspect(false, false), 0);
        assert_non_null(strstr(output, "MTP layers     1\n"));
        assert_non_null(strstr(output, left_out ? "  left out     0 B\n" : "  --draft mtp  128 B\n"));
        assert_int_equal(inspect(true, false), 0);
        assert_non_null(strstr(output, "\"n_ahead\":1,"));
        assert_non_null(strstr(output, left_out ? "\"ahead_bytes\":0" : "\"ahead_bytes\":128"));
    }
}

static void a_file_that_is_none_is_refused(void **state)
{
    (void)state;
    struct gguf g = { 0 };
    gguf_bytes(&g, "{}", 2);
    gguf_save(&g, path);
    gguf_free(&g);
    assert_int_equal(inspect(true, false), 2);
    assert_string_equal(output, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_what_the_file_holds),          cmocka_unit_test(json_is_json_and_says_the_same),
        cmocka_unit_test(keys_that_will_be_held_wider_are_named), cmocka_unit_test(layers_that_guess_ahead_are_told),
        cmocka_unit_test(a_file_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
