/* Models by name, as users type them: pull, list, rm, and -m of the other commands; against a server on the loopback.
 *
 * One thread: not under MODE=tsan.  The server's thread takes orders that are given between two runs. */
#include <jansson.h>

#include "tests/engine/cli/program.h"
#include "tests/engine/hub/hub_server.h"

#define REPO     "Org/Tiny-GGUF"
#define SNAPSHOT "hf/hub/models--Org--Tiny-GGUF/snapshots/" HUB_SERVER_COMMIT
#define TINY     "Tiny-Q4_K_M.gguf"

static const struct hub_server_file *file;

static int start_all(void **state)
{
    static char endpoint[64];
    size_t n;
    if (make_place(state))
        return -1;
    does("synth --shape tiny -o m.gguf --format q8_0", NULL);
    char *bytes = read_bytes("m.gguf", &n);
    file = hub_server_add(TINY, bytes, n, true);
    hub_server_add("Tiny-Q8_0.gguf", "GGUF, but no model", 18, true);
    hub_server_start(REPO, 0);
    free(bytes);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", hub_server.port[0]);
    hub_endpoint = endpoint;
    return 0;
}

static int stop_all(void **state)
{
    hub_server_stop();
    return remove_place(state);
}

static int clear(void **state)
{
    char line[400];
    (void)state;
    hub_server_reset();
    snprintf(line, sizeof line, "rm -rf %s/hf %s/.ollama %s/.lmstudio", place, place, place);
    return system(line);
}

static void refused(const char *words, const char *why)
{
    int status = given(words, NULL);
    if (status != 2 || !strstr(said, why))
        fail_msg("spillway %s: status %d: %s", words, status, said);
}

static void says(const char *text)
{
    if (!strstr(said, text))
        fail_msg("not '%s' but: %s", text, said);
}

static void pull_prints_the_path(void **state)
{
    (void)state;
    does("pull " REPO, NULL);
    says("taking Q4_K_M; it also has Q8_0 (18 B)");
    says("downloading " TINY);
    says("downloaded 90 %");
    says(REPO ":Q4_K_M is complete");
    char want[600];
    snprintf(want, sizeof want, "%s\n", in_place(SNAPSHOT "/" TINY));
    assert_string_equal(printed, want);
    assert_true(same_files("m.gguf", SNAPSHOT "/" TINY));
    does("pull -q " REPO, NULL);
    assert_string_equal(said, "");
}

static void a_name_is_as_good_as_a_path(void **state)
{
    static char answer[1 << 16];
    (void)state;
    does("run m.gguf --raw hello -n 8 --seed 1 --quiet", NULL);
    memcpy(answer, printed, n_printed < sizeof answer - 1 ? n_printed : sizeof answer - 1);
    does("run " REPO " --raw hello -n 8 --seed 1 --quiet", NULL); /* downloads it */
    assert_string_equal(printed, answer);
    assert_int_equal(hub_server_count("cdn: "), 1);
    hub_server_reset();
    does("run -hf " REPO ":q4_k_m --raw hello -n 8 --seed 1 --quiet --offline", NULL);
    assert_string_equal(printed, answer);
    does("inspect " REPO, NULL);
    does("plan -m " REPO " --host-mem 1G --dram-rate 1G --disk-rate 1G", NULL);
    assert_int_equal(hub_server.n_log, 0);
}

static void a_path_wins(void **state)
{
    char line[700];
    (void)state;
    snprintf(line, sizeof line, "mkdir -p %s/Org && cp %s %s/Org/Tiny-GGUF", place, in_place("m.gguf"), place);
    assert_int_equal(system(line), 0);
    does("run " REPO " --raw hello -n 2 --seed 1 --quiet", NULL);
    assert_int_equal(hub_server.n_log, 0);
    snprintf(line, sizeof line, "rm -r %s/Org", place);
    assert_int_equal(system(line), 0);
}

static void drafts_have_names_too(void **state)
{
    (void)state;
    refused("run m.gguf --raw hello --draft model:" REPO, "spillway pull " REPO " downloads it");
    does("pull -q " REPO, NULL);
    does("run m.gguf --raw hello -n 4 --seed 1 --draft model:" REPO ":q4_k_m --gamma 2", NULL);
    refused("run m.gguf --raw hello --draft model:missing.gguf", "missing.gguf: No such file");
}

static void what_is_not_downloaded_is_named(void **state)
{
    (void)state;
    refused("inspect " REPO, "spillway pull " REPO " downloads it");
    refused("run " REPO " hello --offline", "spillway pull " REPO " downloads it");
    refused("run Org/Missing hello", "Org/Missing: no such repository");
    refused("run qwen3:30b hello", "Ollama has no such model");
    refused("run missing.gguf hello", "missing.gguf: No such file");
    refused("run folder/missing.gguf hello", "folder/missing.gguf: No such file");
    refused("pull name", "names no repository of the hub");
    const char *endpoint = hub_endpoint;
    hub_endpoint = NULL;
    refused("pull " REPO, "--offline or HF_HUB_OFFLINE is set");
    hub_endpoint = endpoint;
    assert_int_equal(hub_server_count("Tiny"), 0);
}

/* A service manager would give up waiting for the start. */
static void a_service_downloads_nothing(void **state)
{
    (void)state;
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    refused("serve " REPO " --port 0", "spillway pull " REPO " downloads it");
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(hub_server.n_log, 0);
}

/* A model of Ollama runs as it stands; nothing is written beside it. */
static void a_model_of_ollama_runs(void **state)
{
    char line[1500];
    (void)state;
    does("run m.gguf --raw hello -n 8 --seed 1 --quiet", NULL);
    char *answer = strdup(printed);
    snprintf(line, sizeof line,
             "cd %s && mkdir -p .ollama/models/blobs .ollama/models/manifests/registry.ollama.ai/library/tiny && "
             "cp m.gguf .ollama/models/blobs/sha256-%s && echo "
             "'{\"layers\":[{\"mediaType\":\"application/vnd.ollama.image.model\",\"digest\":\"sha256:%s\"}]}' "
             ">.ollama/models/manifests/registry.ollama.ai/library/tiny/1b",
             place, file->sha256, file->sha256);
    assert_int_equal(system(line), 0);
    does("run tiny:1b --raw hello -n 8 --seed 1 --quiet", NULL);
    assert_string_equal(printed, answer);
    free(answer);
    snprintf(line, sizeof line, "test $(ls %s/.ollama/models/blobs | wc -l) = 1", place);
    assert_int_equal(system(line), 0);
    refused("pack tiny:1b", "give -o FILE");
    does("list", NULL);
    assert_non_null(strstr(printed, "tiny:1b"));
    assert_int_equal(hub_server.n_log, 0);
}

static void list_shows_all_stores(void **state)
{
    json_t *v;
    char line[900];
    (void)state;
    does("list", NULL);
    says("no models in ");
    does("pull -q " REPO, NULL);
    does("pull -q " REPO ":Q8_0", NULL);
    snprintf(line, sizeof line,
             "mkdir -p %s/.lmstudio/models/Org/Mine && cp %s %s/.lmstudio/models/Org/Mine/Mine-Q6_K.gguf", place,
             in_place("m.gguf"), place);
    assert_int_equal(system(line), 0);
    hub_server_reset();
    does("list", NULL);
    assert_int_equal(hub_server.n_log, 0);
    assert_non_null(strstr(printed, "name "));
    assert_non_null(strstr(printed, REPO ":Q4_K_M"));
    assert_non_null(strstr(printed, "lmstudio"));
    does("list --json", NULL);
    char *row = strtok(printed, "\n");
    for (int i = 0; i < 3; i++) {
        assert_non_null(v = json_loads(row, 0, NULL));
        bool good = !strstr(json_string_value(json_object_get(v, "name")), "Q8_0");
        assert_int_equal(json_is_true(json_object_get(v, "runs")), good);
        assert_int_equal(json_object_get(v, "reason") != NULL, !good);
        assert_string_equal(json_string_value(json_object_get(v, "architecture")), good ? "qwen3moe" : "");
        json_decref(v);
        row = strtok(NULL, "\n");
    }
    assert_null(row);
}

static void rm_asks_first(void **state)
{
    (void)state;
    does("pull -q " REPO, NULL);
    refused("rm " REPO, "--yes confirms it");
    assert_true(is_there(SNAPSHOT "/" TINY));
    does("rm " REPO ":Q4_K_M --yes", NULL);
    says("removed " REPO ":Q4_K_M, freed ");
    assert_false(is_there(SNAPSHOT "/" TINY));
    refused("rm " REPO " -y", "is not in the hub's cache");
}

/* A signal during a download keeps the part, and the status says that not all was done.  words: the command, which is
 * signalled alone, as a service manager does. */
static void keeps_the_part(const char *words, int number)
{
    char part[400];
    struct stat st;
    int status, tries = 0;
    snprintf(part, sizeof part, "hf/hub/models--Org--Tiny-GGUF/blobs/%s.incomplete", file->sha256);
    hub_server.slow = true;
    FILE *says_to = tmpfile();
    pid_t pid = start(words, -1, -1, fileno(says_to));
    while (stat(in_place(part), &st) < 0 || st.st_size == 0) {
        usleep(2000);
        assert_true(++tries < 10000);
    }
    kill(pid, number);
    status = status_of(pid);
    n_said = take_text(says_to, said, sizeof said);
    assert_int_equal(status, 1);
    says("stopped; the part is kept, and pull continues it");
    assert_true(is_there(part));
    hub_server_reset();
    does("pull " REPO, NULL);
    says("continuing after ");
    assert_true(same_files("m.gguf", SNAPSHOT "/" TINY));
}

static void ctrl_c_keeps_the_part(void **state)
{
    keeps_the_part("pull " REPO, SIGINT);
    assert_int_equal(clear(state), 0);
    keeps_the_part("run " REPO " --raw hello -n 2", SIGINT);
    assert_int_equal(clear(state), 0);
    keeps_the_part("serve " REPO " --port 0", SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup(f, clear)
        TEST(pull_prints_the_path),   TEST(a_name_is_as_good_as_a_path),     TEST(a_path_wins),
        TEST(drafts_have_names_too),  TEST(what_is_not_downloaded_is_named), TEST(a_service_downloads_nothing),
        TEST(a_model_of_ollama_runs), TEST(list_shows_all_stores),           TEST(rm_asks_first),
        TEST(ctrl_c_keeps_the_part),
    };
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
