/* --device emulated in each command that computes: the output of the host, in any order of the device's operations, with all, some
 * or none of the experts on the device, and with memory pinned or not.
 *
 * Operations run one after the other, with hashes of the memory that they read; test_serve_device has a device's threads:
 * not under MODE=tsan, not under MODE=asan. */
#include "tests/engine/cli/device_cases.h"
#include "tests/engine/serve/serve_client.h"

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

/* The least --host-mem of deep.gguf with --draft resident on the device. */
static long long least_memory(void)
{
    long long bytes = 0;
    does("plan --json -m deep.gguf --threads 2 --draft resident --device emulated", NULL);
    const char *at = strstr(printed, "\"least_bytes\":");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"least_bytes\":%lld", &bytes), 1);
    return bytes;
}

/* --draft resident: experts on the device, in the host's memory and on disk change places at random between passes. */
static void the_model_drafts_by_its_experts(void **state)
{
    static const char *const how[] = { "--temp 0 --gamma 3", "--temp 0.7 --gamma 3", "--temp 0.7 --gamma auto",
                                       "--temp 0.7 --gamma 2 --draft ngram", "--temp 0 --gamma 5 --kv int8" };
    static char kept[sizeof printed];
    char words[512], text[16];
    (void)state;
    does("synth --shape tiny --layers 8 -o deep.gguf", NULL);
    long long least = least_memory();
    snprintf(words, sizeof words,
             "plan -m deep.gguf --threads 2 --ctx-size 512 --host-mem %lld --device emulated --device-mem 21M", least);
    does(words, NULL);
    assert_non_null(strstr(printed, "experts are on disk: --draft resident"));
    for (int i = 0; i < 5; i++) {
        int n_kept = 0, n_draft = 0;
        snprintf(words, sizeof words, "run --raw --seed 7 -p Once -n 24 --threads 2 -m deep.gguf %s",
                 strstr(how[i], "int8") ? "--temp 0 --kv int8"
                 : i                    ? "--temp 0.7"
                                        : "--temp 0");
        does(words, NULL);
        memcpy(kept, printed, sizeof kept);
        snprintf(words, sizeof words,
                 "run --raw --seed 7 -p Once -n 24 --threads 2 -m deep.gguf --draft resident %s --ctx-size 512 "
                 "--host-mem %lld --device emulated --device-mem 21M",
                 how[i], least + (1 << 20) * (i % 2));
        snprintf(text, sizeof text, "%d", i % 4);
        setenv("EMULATED_ORDER", text, 1);
        setenv("EMULATED_MOVES", "1", 1);
        does(words, NULL);
        unsetenv("EMULATED_ORDER");
        unsetenv("EMULATED_MOVES");
        assert_string_equal(printed, kept);
        const char *at = strstr(said, "drafts: ");
        if (strstr(how[i], "auto"))
            continue;
        assert_non_null(at);
        assert_int_equal(sscanf(at, "drafts: %d of %d tokens accepted", &n_kept, &n_draft), 2);
        assert_true(n_draft > 10);
    }
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

/* ---- serve ---------------------------------------------------------------------------------------------------- */

/* Starts the server; its messages go to `says`.  Returns its process once it listens, with the port in v. */
static pid_t start_server(struct served *v, const char *words, FILE *says)
{
    pid_t pid = start(words, -1, -1, fileno(says));
    for (const char *at = NULL; !at; usleep(1000)) {
        ssize_t n = pread(fileno(says), said, sizeof said - 1, 0);
        said[n > 0 ? n : 0] = 0;
        at = strstr(said, "listening on http://127.0.0.1:");
        if (at && strchr(at, '\n'))
            v->port = atoi(at + strlen("listening on http://127.0.0.1:"));
        at = v->port ? at : NULL;
        if (!at && waitpid(pid, NULL, WNOHANG) != 0)
            fail_msg("spillway %s: ends at once: %s", words, said);
    }
    return pid;
}

/* Asks for a completion of 8 tokens; returns the connection. */
static int ask_for_completion(const struct served *v, int seed)
{
    char body[200];
    int fd = connect_to(v);
    snprintf(body, sizeof body, "{\"prompt\":\"Once %d\",\"max_tokens\":8,\"seed\":%d,\"ignore_eos\":true}", seed,
             seed);
    send_request(fd, "POST", "/v1/completions", "", body);
    return fd;
}

static char *read_completion(int fd)
{
    struct answer a = read_answer(fd);
    close(fd);
    if (a.status != 200)
        fail_msg("status %d: %s", a.status, a.body);
    json_t *root = json_loads(a.body, 0, NULL);
    const char *text = json_string_value(json_object_get(json_array_get(json_object_get(root, "choices"), 0), "text"));
    assert_non_null(text);
    char *copy = strdup(text);
    json_decref(root);
    answer_free(&a);
    return copy;
}

/* The texts of three requests at once, by a server that a signal ends then.  Returns whether a device computes. */
#define N_ASKER 3
static bool texts_of_server(const char *words, int signal, char *text[N_ASKER])
{
    struct served v = { .port = 0 };
    int fd[N_ASKER];
    FILE *says = tmpfile();
    assert_non_null(says);
    pid_t pid = start_server(&v, words, says);
    for (int i = 0; i < N_ASKER; i++)
        fd[i] = ask_for_completion(&v, i);
    for (int i = 0; i < N_ASKER; i++)
        text[i] = read_completion(fd[i]);
    struct answer a = ask(&v, "GET", "/metrics", "", NULL);
    bool device = strstr(a.body, "spillway_device_memory_bytes{") != NULL;
    answer_free(&a);
    kill(pid, signal);
    int status = status_of(pid);
    n_said = take_text(says, said, sizeof said);
    if (status != 0)
        fail_msg("spillway %s: status %d: %s", words, status, said);
    return device;
}

#define SERVE "serve --port 0 --parallel 2 --ctx-size 256 --threads 2 "
static void completions_are_those_of_the_host(void **state)
{
    static const char *const words[] = { "-m m.gguf", "-m m.gguf --draft ngram --gamma 3 --device-mem 24M",
                                         "-m m.gguf --draft model:dense.gguf --dsi 1 --device-mem 50M",
                                         "-m delta.gguf --draft suffix --gamma 2" };
    (void)state;
    setenv("EMULATED_MOVES", "1", 1);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char *host[N_ASKER], *apart[N_ASKER], command[256];
        snprintf(command, sizeof command, SERVE "%s", words[i]);
        assert_false(texts_of_server(command, SIGTERM, host));
        strcat(command, " --device emulated");
        assert_true(texts_of_server(command, i % 2 ? SIGINT : SIGTERM, apart));
        for (int k = 0; k < N_ASKER; k++) {
            assert_string_equal(apart[k], host[k]);
            free(host[k]);
            free(apart[k]);
        }
    }
    unsetenv("EMULATED_MOVES");
}

/* The device fails while a server answers: the request gets 500, and the server is ended by a signal as ever. */
static void a_server_whose_device_fails_lives(void **state)
{
    struct served v = { .port = 0 };
    FILE *says = tmpfile();
    (void)state;
    setenv("EMULATED_OP", "300", 1);
    pid_t pid = start_server(&v, SERVE "-m m.gguf --device emulated --device-mem 24M", says);
    struct answer a = ask(&v, "POST", "/v1/completions", "",
                          "{\"prompt\":\"Once\",\"max_tokens\":40,\"ignore_eos\":true}");
    assert_int_equal(a.status, 500);
    answer_free(&a);
    assert_int_equal(ask_status(&v, "GET", "/ready", "", NULL), 503);
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 200);
    kill(pid, SIGTERM);
    assert_int_equal(status_of(pid), 0);
    n_said = take_text(says, said, sizeof said);
    assert_non_null(strstr(said, "the emulated device has failed"));
    unsetenv("EMULATED_OP");
}

/* Each command of the help takes --device or refuses it in one line; the tests above are of those that take it. */
static void each_command_takes_it_or_refuses(void **state)
{
    static const char *const take[] = { "run", "serve", "eval", "batch", "bench", "fit", "plan" };
    static const char *const by_host[] = { "imatrix -m m.gguf --text in.jsonl -o m.imatrix" };
    static char help[8192];
    int n_take = 0, n_refuse = 0;
    (void)state;
    does("help", NULL);
    memcpy(help, printed, sizeof help);
    char *rest, *line = strtok_r(strstr(help, "\n\n  ") + 2, "\n", &rest);
    for (; line && !strncmp(line, "  ", 2); line = strtok_r(NULL, "\n", &rest)) {
        char name[32], words[128];
        bool takes = false;
        assert_int_equal(sscanf(line, " %31s", name), 1);
        for (size_t i = 0; i < sizeof take / sizeof *take; i++)
            takes |= !strcmp(name, take[i]);
        n_take += takes;
        if (takes)
            continue;
        n_refuse++;
        bool host = !strncmp(by_host[0], name, strlen(name));
        snprintf(words, sizeof words, "%s --device emulated", host ? by_host[0] : name);
        assert_int_equal(given(words, NULL), 2);
        if (!strstr(said, host ? "computes on the host: leave out --device" : "--device is not a flag of ") ||
            strchr(said, '\n') != said + n_said - 1)
            fail_msg("spillway %s: says %s", words, said);
    }
    assert_int_equal(n_take, sizeof take / sizeof *take);
    assert_true(n_refuse > 8);
    assert_int_equal(given(RUN "-m m.gguf --draft model:dense.gguf --dsi 2 --device emulated", NULL), 2);
    assert_non_null(strstr(said, "leave --dsi or --device out"));
}

/* The number of MiB behind these words in the last messages. */
static int mib_behind(const char *words)
{
    const char *at = strstr(said, words);
    if (!at)
        fail_msg("says %s", said);
    return atoi(at + strlen(words));
}

static long planned(const char *key)
{
    const char *at = strstr(printed, key);
    assert_non_null(at);
    return atol(at + strlen(key));
}

/* Experts of two sizes.  A device without room for one of each keeps none, and one line says which budget would do. */
static void sizes_of_experts(void **state)
{
    static char kept[sizeof printed];
    char words[512];
    (void)state;
    does("synth --shape tiny --format f32 --down q8_0 -o sizes.gguf", NULL);
    does(RUN "-m sizes.gguf", NULL);
    memcpy(kept, printed, sizeof kept);
    assert_int_equal(given(RUN "-m sizes.gguf --device emulated --device-mem 1M", NULL), 2);
    int least = mib_behind("set --device-mem to "), enough = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, RUN "-m sizes.gguf --device emulated --device-mem %dM", i ? enough : least);
        does(words, NULL);
        assert_string_equal(printed, kept);
        assert_int_equal(strstr(said, "the device keeps no experts: ") != NULL, !i);
        enough = i ? enough : mib_behind("set --device-mem to ");
    }
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "plan -m sizes.gguf --device emulated --json --device-mem %dM --ctx-size 4096",
                 enough - i);
        does(words, NULL);
        long n = planned("\"n_device_resident\":"), bytes = planned("\"device_expert_bytes\":");
        if (i)
            assert_true(n == 0 && bytes == 0);
        else /* one of each: three matrices of 65536 floats, or the third in blocks of 34 bytes */
            assert_true(n == 2 && bytes == 3 * 262144 + 2 * 262144 + 69632);
    }
    does("run --raw --seed 7 -p Once -n 4 -m sizes.gguf --device emulated", NULL);
    assert_non_null(strstr(said, "all 36 experts were copied to the device: 24 MiB"));
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
        cmocka_unit_test(answers_are_those_of_the_host),
        cmocka_unit_test(logits_are_those_of_the_host),
        cmocka_unit_test(a_batch_is_that_of_the_host),
        cmocka_unit_test(commands_that_read_text),
        cmocka_unit_test(commands_that_learn),
        cmocka_unit_test(drafters_while_experts_move),
        cmocka_unit_test(the_model_drafts_by_its_experts),
        cmocka_unit_test(a_device_that_fails),
        cmocka_unit_test(places_and_moments),
        cmocka_unit_test(commands_that_measure),
        cmocka_unit_test(completions_are_those_of_the_host),
        cmocka_unit_test(a_server_whose_device_fails_lives),
        cmocka_unit_test(each_command_takes_it_or_refuses),
        cmocka_unit_test(sizes_of_experts),
        cmocka_unit_test(no_other_program_has_it),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
