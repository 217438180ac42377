/* --device emulated in each command that computes: the output of the host, in any order of the device's operations, with all, some
 * or none of the experts on the device, and with memory pinned or not.
 *
 * Operations run one after the other, with hashes of the memory that they read; test_serve_device has a device's threads:
 * not under MODE=tsan, not under MODE=asan. */
#include "tests/engine/cli/device_cases.h"

static int make_models(void **state)
{
    if (make_place(state))
        return -1;
    strcpy(strrchr(program, '/'), "/tests/emulated/spillway");
    device_name = "emulated";
    there = true;
    make_files();
    return access(program, X_OK);
}

/* Lines of text for eval --text and imatrix. */
static void write_story(void)
{
    char text[6000] = "";
    for (int i = 0; strlen(text) < 3000; i++)
        snprintf(text + strlen(text), 100, "Once there were %d lines, and line %d was read.\n", i, i * i);
    write_text("story.txt", text);
}

static void commands_that_read_text(void **state)
{
    (void)state;
    write_story();
    says_as_the_host("eval -m m.gguf --text story.txt --ctx-size 256 --quiet --threads 2");
    says_as_the_host("eval -m delta.gguf --text story.txt --ctx-size 128 --kv int8 --quiet --threads 2");
}

static void commands_that_learn(void **state)
{
    (void)state;
    write_story();
    assert_int_equal(given("imatrix -m m.gguf --text story.txt -o m.imatrix --device emulated", NULL), 2);
    assert_non_null(strstr(said, "imatrix computes on the host"));
    does("fit -m m.gguf --device emulated --threads 2 --quiet", NULL);
}

/* Every drafter, with experts that change places at random between passes. */
static void drafters_while_experts_move(void **state)
{
    static const char *const drafts[] = { "-m m.gguf --draft ngram --gamma 3", "-m m.gguf --draft suffix --gamma 3",
                                          "-m m.gguf --draft model:dense.gguf --gamma 2",
                                          "-m mtp.gguf --draft mtp --gamma 2" };
    static char kept[sizeof printed];
    (void)state;
    setenv("EMULATED_MOVES", "1", 1);
    for (int i = 0; i < 4; i++) {
        char words[512];
        snprintf(words, sizeof words, RUN "%s", drafts[i]);
        does(words, NULL);
        memcpy(kept, printed, sizeof kept);
        char text[16];
        snprintf(text, sizeof text, "%d", i); /* an order for each; test_tiers has all */
        setenv("EMULATED_ORDER", text, 1);
        snprintf(words, sizeof words, RUN "%s --device emulated --device-mem %s", drafts[i],
                 strstr(drafts[i], "model:") ? "44M" : "22M");
        does(words, NULL);
        assert_string_equal(printed, kept);
    }
    unsetenv("EMULATED_ORDER");
    unsetenv("EMULATED_MOVES");
}

/* An allocation or an operation fails: one line says so, and the status is not 0.  Nothing hangs. */
static void a_device_that_fails(void **state)
{
    static const char *const fault[][2] = { { "EMULATED_OP", "1" },
                                            { "EMULATED_OP", "60" },
                                            { "EMULATED_OP", "500" },
                                            { "EMULATED_OPEN", "1" },
                                            { "EMULATED_OPEN", "4" } };
    (void)state;
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
        setenv(fault[i][0], fault[i][1], 1);
        assert_in_range(given(RUN "-m m.gguf --device emulated --device-mem 21M", NULL), 1, 2);
        assert_non_null(strstr(said, i < 3 ? "device has failed" : "device is out of memory"));
        unsetenv(fault[i][0]);
    }
}

/* The device has memory for some of the experts; the moments at which it works differ. */
static void places_and_moments(void **state)
{
    static const char *const memory[] = { "20M", "21M", "23M" };
    static char kept[sizeof printed];
    char words[512];
    (void)state;
    does(RUN "-m m.gguf", NULL);
    memcpy(kept, printed, sizeof kept);
    for (int i = 0; i < 6; i++) {
        char seed[8], pin[8];
        snprintf(seed, sizeof seed, "%d", i);
        snprintf(pin, sizeof pin, "%d", i % 4); /* 0: all is pinned */
        setenv("EMULATED_SEED", seed, 1);
        setenv("EMULATED_PIN", pin, 1);
        snprintf(words, sizeof words, RUN "-m m.gguf --device emulated --device-mem %s", memory[i / 2]);
        does(words, NULL);
        assert_string_equal(printed, kept);
        if (i % 4 == 1)
            assert_non_null(strstr(said, "0 of 4 MiB of the host's memory of experts are pinned"));
    }
    unsetenv("EMULATED_SEED");
    unsetenv("EMULATED_PIN");
}

static void commands_that_measure(void **state)
{
    (void)state;
    does("bench -m m.gguf --device emulated --prompt 3 --gen 2 --warmup 1 --json --threads 2 --batch 1,2", NULL);
    assert_non_null(strstr(printed, "\"copied_bytes\":"));
    does("plan -m m.gguf --device emulated --json --threads 2", NULL);
    assert_non_null(strstr(printed, "\"device_mem_bytes\":"));
    assert_non_null(strstr(printed, "\"device_decode\",\"batch\":32,"));
    does("plan -m m.gguf --device emulated --threads 2", NULL);
    assert_non_null(strstr(printed, "host alone"));
    does("run --raw --seed 7 -p Once -n 4 -m m.gguf --device emulated --device-mem 20M", NULL);
    assert_non_null(strstr(said, "experts computed on the device: "));
    does("run --raw --seed 7 -p Once -n 4 -m m.gguf", NULL);
    assert_null(strstr(said, "on the device"));
    setenv("EMULATED_MEMORY", "10", 1);
    assert_int_equal(given(RUN "-m m.gguf --device emulated", NULL), 2);
    unsetenv("EMULATED_MEMORY");
    assert_non_null(strstr(said, "does not fit in"));
}

/* The program that users get has no such device. */
static void no_other_program_has_it(void **state)
{
    char kept[sizeof program];
    (void)state;
    memcpy(kept, program, sizeof kept);
    strcpy(strstr(program, "/tests/emulated/"), "/spillway");
    assert_int_equal(given(RUN "-m m.gguf --device emulated", NULL), 2);
    assert_non_null(strstr(said, "there is no device 'emulated'"));
    memcpy(program, kept, sizeof kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_host), cmocka_unit_test(logits_are_those_of_the_host),
        cmocka_unit_test(a_batch_is_that_of_the_host),   cmocka_unit_test(commands_that_read_text),
        cmocka_unit_test(commands_that_learn),           cmocka_unit_test(drafters_while_experts_move),
        cmocka_unit_test(a_device_that_fails),           cmocka_unit_test(places_and_moments),
        cmocka_unit_test(commands_that_measure),         cmocka_unit_test(no_other_program_has_it),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
