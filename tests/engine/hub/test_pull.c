/* Downloads from a server on the loopback: the cache's layout, choice of files, continuing, hashes, refusals, faults.
 *
 * One thread: not under MODE=tsan.  The server's thread takes orders that are given between two downloads. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "engine/hub/hub.h"
#include "offload/offload.h"
#include "tests/engine/hub/hub_server.h"
#include "tests/scratch.h"

#define REPO    "Org/Tiny-GGUF"
#define FOLDER  "models--Org--Tiny-GGUF"
#define LARGE_N ((size_t)300000)

static char cache[128], endpoint[64], said[16384];
static struct eng_hub_places places;
static struct eng_hub_pull_options options;
static struct off_progress progress;
static struct eng_hub_model model;
static char large[LARGE_N];
static const struct hub_server_file *q4, *q8;

static atomic_bool stop_wanted;
static const char *stop_at; /* a log line with this text sets stop_wanted */

static void keep_line(enum kn_level level, const char *line)
{
    size_t n = strlen(said);
    (void)level;
    if (stop_at && strstr(line, stop_at))
        atomic_store(&stop_wanted, true);
    snprintf(said + n, sizeof said - n, "%s\n", line);
}

static int start(void **state)
{
    (void)state;
    for (size_t i = 0; i < LARGE_N; i++)
        large[i] = (char)kn_mix(i);
    hub_server_add("README.md", "read me", 7, false);
    q4 = hub_server_add("Tiny-Q4_K_M.gguf", large, LARGE_N, true);
    q8 = hub_server_add("Tiny-Q8_0.gguf", large + 1, LARGE_N - 1, true);
    hub_server_add("BF16/Tiny-BF16-00001-of-00002.gguf", large + 2, 1000, true);
    hub_server_add("BF16/Tiny-BF16-00002-of-00002.gguf", large + 3, 1000, true);
    hub_server_add("mmproj-Tiny-F16.gguf", large, 99, true);
    hub_server_start(REPO, 0);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d/", hub_server.port[0]);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    hub_server_stop();
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    places = (struct eng_hub_places){ .cache = cache, .endpoint = endpoint };
    atomic_store(&progress.done_bytes, 0);
    options = (struct eng_hub_pull_options){ .progress = &progress, .second_ms = 1 };
    hub_server_reset();
    said[0] = 0;
    stop_at = NULL;
    atomic_store(&stop_wanted, false);
    kn_log_set(keep_line, KN_LOG_INFO);
    return scratch_make(cache, sizeof cache, "hub") ? 0 : -1;
}

static int tear_down(void **state)
{
    char line[200];
    (void)state;
    kn_log_set(NULL, KN_LOG_INFO);
    snprintf(line, sizeof line, "rm -rf %s", cache);
    return system(line);
}

static const char *in_cache(const char *format, ...)
{
    static char path[4][600];
    static int turn;
    va_list args;
    char *out = path[++turn % 4];
    int n = snprintf(out, sizeof path[0], "%s/" FOLDER "/", cache);
    va_start(args, format);
    vsnprintf(out + n, sizeof path[0] - (size_t)n, format, args);
    va_end(args);
    return out;
}

static bool has_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "rb");
    char *got = malloc(n + 1);
    size_t k = f ? fread(got, 1, n + 1, f) : 0;
    bool same = f && k == n && !memcmp(got, bytes, n);
    if (f)
        fclose(f);
    free(got);
    return same;
}

static void write_at(const char *path, const void *bytes, size_t n)
{
    char line[700];
    snprintf(line, sizeof line, "mkdir -p $(dirname %s)", path);
    assert_int_equal(system(line), 0);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(bytes, 1, n, f);
    fclose(f);
}

static int pull(const char *name)
{
    said[0] = 0;
    return eng_hub_pull(&model, &places, name, &options);
}

static void pulls(const char *name)
{
    int e = pull(name);
    if (e)
        fail_msg("pull %s: %d: %s", name, e, said);
}

static void refuses(const char *name, const char *why)
{
    int e = pull(name);
    if (e >= 0 || !strstr(said, why))
        fail_msg("pull %s: %d, and not '%s' but: %s", name, e, why, said);
    kn_log_set(keep_line, KN_LOG_INFO);
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- the way of every download ----------------------------------------------------------------------- */

static void the_cache_is_as_other_tools_want_it(void **state)
{
    char target[200] = "", want[200];
    (void)state;
    pulls(REPO);
    assert_true(strstr(said, "taking Q4_K_M; it also has BF16 (2.0 kB), Q8_0 (300 kB)"));
    assert_true(has_bytes(in_cache("refs/main"), HUB_SERVER_COMMIT, 40));
    assert_true(has_bytes(in_cache("blobs/%s", q4->sha256), large, LARGE_N));
    assert_true(readlink(in_cache("snapshots/" HUB_SERVER_COMMIT "/Tiny-Q4_K_M.gguf"), target, sizeof target - 1) > 0);
    snprintf(want, sizeof want, "../../blobs/%s", q4->sha256);
    assert_string_equal(target, want);
    assert_string_equal(model.path, in_cache("snapshots/" HUB_SERVER_COMMIT "/Tiny-Q4_K_M.gguf"));
    assert_string_equal(model.name, REPO ":Q4_K_M");
    assert_string_equal(model.label, "Q4_K_M");
    assert_int_equal(model.bytes, LARGE_N);
    assert_false(exists(in_cache("blobs/%s.incomplete", q4->sha256)));
    assert_false(exists(in_cache("blobs/%s", q8->sha256)));
    char lock[400];
    snprintf(lock, sizeof lock, "%s/.locks/" FOLDER "/%s.lock", cache, q4->sha256);
    assert_true(exists(lock));
    assert_int_equal(atomic_load(&progress.total_bytes), LARGE_N);
    assert_int_equal(atomic_load(&progress.done_bytes), LARGE_N);

    hub_server_reset(); /* again: the two lists, and no file */
    pulls(REPO ":q4_k_m");
    assert_int_equal(hub_server.n_log, 2);
    assert_int_equal(hub_server_count("resolve"), 0);
}

static void what_is_there_is_found_without_a_request(void **state)
{
    struct eng_hub_model m;
    (void)state;
    pulls(REPO ":Q8_0");
    hub_server_reset();
    assert_int_equal(eng_hub_find(&m, &places, REPO), 0);
    assert_string_equal(m.path, model.path);
    assert_int_equal(eng_hub_find(&m, &places, REPO ":q8_0"), 0);
    assert_int_equal(eng_hub_find(&m, &places, REPO "@0123456:Q8_0"), 0);
    assert_int_equal(eng_hub_find(&m, &places, REPO "@" HUB_SERVER_COMMIT), 0);
    assert_int_equal(eng_hub_find(&m, &places, "https://huggingface.co/" REPO), 0);
    assert_int_equal(eng_hub_find(&m, &places, REPO ":Q4_K_M"), KN_ENOENT);
    assert_int_equal(eng_hub_find(&m, &places, REPO "@other"), KN_ENOENT);
    assert_int_equal(hub_server.n_log, 0);
    assert_int_equal(unlink(in_cache("blobs/%s", q8->sha256)), 0); /* a link to nothing is no model */
    assert_int_equal(eng_hub_find(&m, &places, REPO), KN_ENOENT);
}

static void splits_are_taken_together(void **state)
{
    struct eng_hub_model m;
    (void)state;
    pulls(REPO ":bf16");
    assert_int_equal(model.n_file, 2);
    assert_int_equal(model.bytes, 2000);
    assert_string_equal(model.path, in_cache("snapshots/" HUB_SERVER_COMMIT "/BF16/Tiny-BF16-00001-of-00002.gguf"));
    assert_true(
        has_bytes(in_cache("snapshots/" HUB_SERVER_COMMIT "/BF16/Tiny-BF16-00002-of-00002.gguf"), large + 3, 1000));
    assert_int_equal(unlink(in_cache("snapshots/" HUB_SERVER_COMMIT "/BF16/Tiny-BF16-00002-of-00002.gguf")), 0);
    assert_int_equal(eng_hub_find(&m, &places, REPO), KN_ENOENT);
}

static void the_list_has_pages(void **state)
{
    (void)state;
    hub_server.page = 2;
    pulls(REPO ":Tiny-Q8_0.gguf");
    assert_int_equal(hub_server_count("tree"), 3);
    hub_server.page = 2;
    hub_server.elsewhere = true;
    refuses(REPO ":Q4_K_M", "goes on at another host");
    assert_int_equal(hub_server_count("cdn: GET /api"), 0);
}

static void the_token_goes_to_the_hub_only(void **state)
{
    char token[200];
    (void)state;
    hub_server.token = "secret";
    refuses(REPO, "no such repository");
    places.token = "false";
    refuses(REPO, "does not accept the token");
    snprintf(token, sizeof token, "%s/token", cache);
    write_at(token, "secret\n", 7);
    places.token = NULL;
    places.token_file = token;
    hub_server.n_log = 0;
    pulls(REPO);
    assert_int_equal(hub_server_count("resolve/" HUB_SERVER_COMMIT "/Tiny-Q4_K_M.gguf auth"), 1);
    assert_int_equal(hub_server_count("cdn: "), 1);
    for (int i = 0; i < hub_server.n_log; i++)
        assert_int_equal(!strncmp(hub_server.log[i], "cdn: ", 5), !strstr(hub_server.log[i], " auth"));
}

/* ---- continuing --------------------------------------------------------------------------------------- */

static void a_cut_connection_is_taken_up(void **state)
{
    (void)state;
    hub_server.n_cut = 7; /* more than are given up after without any byte */
    hub_server.cut_at = 30000;
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
    assert_true(strstr(said, "the connection failed"));
    assert_int_equal(hub_server_count("cdn: "), 8);
    assert_int_equal(hub_server_count("from 210000"), 2); /* of the hub, and after the redirect */
}

static void a_part_is_continued(void **state)
{
    (void)state;
    write_at(in_cache("blobs/%s.incomplete", q4->sha256), large, 123456); /* by the hub's own client */
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
    assert_true(strstr(said, "continuing after 123 kB of 300 kB"));
    assert_int_equal(hub_server_count("cdn: GET"), 1);
    assert_int_equal(hub_server_count("from 123456"), 2);
    assert_int_equal(atomic_load(&progress.total_bytes), LARGE_N - 123456);
}

static void a_whole_part_needs_no_request(void **state)
{
    (void)state;
    write_at(in_cache("blobs/%s.incomplete", q4->sha256), large, LARGE_N);
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
    assert_int_equal(hub_server_count("resolve"), 0);
}

static void a_server_without_ranges_begins_again(void **state)
{
    (void)state;
    hub_server.no_ranges = true;
    write_at(in_cache("blobs/%s.incomplete", q4->sha256), large, 123456);
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
}

static void a_part_that_is_too_long_is_dropped(void **state)
{
    (void)state;
    static char longer[LARGE_N + 1];
    write_at(in_cache("blobs/%s.incomplete", q4->sha256), longer, sizeof longer);
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
}

static void a_blob_of_the_wrong_size_is_replaced(void **state)
{
    (void)state;
    write_at(in_cache("blobs/%s", q4->sha256), large, 1000);
    pulls(REPO);
    assert_true(strstr(said, "wrong size"));
    assert_true(has_bytes(model.path, large, LARGE_N));
}

/* ---- faults --------------------------------------------------------------------------------------------- */

static void a_wrong_hash_removes_the_file(void **state)
{
    (void)state;
    hub_server.wrong = true;
    refuses(REPO, "the file was removed");
    assert_false(exists(in_cache("blobs/%s.incomplete", q4->sha256)));
    assert_false(exists(in_cache("blobs/%s", q4->sha256)));
    assert_false(exists(in_cache("refs/main")));
    hub_server.wrong = false;
    pulls(REPO);
    large[LARGE_N - 1] ^= 1; /* a wrong part is found, too */
    write_at(in_cache("blobs/%s.incomplete", q8->sha256), large, 100000);
    large[LARGE_N - 1] ^= 1;
    refuses(REPO ":Q8_0", "the file was removed");
    assert_false(exists(in_cache("blobs/%s.incomplete", q8->sha256)));
}

static void more_bytes_than_published_are_refused(void **state)
{
    (void)state;
    hub_server.too_much = true;
    refuses(REPO, "sends more than the 300000 bytes");
}

static void each_refusal_says_the_way_on(void **state)
{
    (void)state;
    refuses("Org/Missing", "Org/Missing: no such repository at http://127.0.0.1");
    assert_true(strstr(said, "set HF_TOKEN"));
    refuses(REPO "@v9", REPO " has no revision v9");
    refuses(REPO ":Q5_K_M", "has no Q5_K_M; it has BF16 (2.0 kB), Q4_K_M (300 kB), Q8_0 (300 kB)");
    hub_server.gated = true;
    refuses(REPO, REPO " is gated: accept its terms at http://127.0.0.1");
    refuses("Tiny", "names no repository");
    places.offline = true;
    hub_server_reset();
    refuses(REPO, "--offline or HF_HUB_OFFLINE is set");
    assert_int_equal(hub_server.n_log, 0);
}

static void a_busy_server_is_waited_for(void **state)
{
    (void)state;
    hub_server.n_busy = 2;
    hub_server.busy_wait_s = 3;
    pulls(REPO);
    assert_true(strstr(said, "the server limits requests (HTTP 429); trying again in 3 s"));
    hub_server.n_fault = 2;
    pulls(REPO ":Q8_0");
    assert_true(strstr(said, "the server has a fault (HTTP 500); trying again in 1 s"));
    hub_server.n_busy = 6;
    refuses(REPO ":BF16", "HTTP 429), after 6 tries");
    assert_int_equal(hub_server.n_busy, 0);
    hub_server.n_busy = 1;
    hub_server.busy_wait_s = 3600;
    refuses(REPO ":BF16", "asks to wait for 3600 s: try again later, or set HF_TOKEN");
}

static void a_connection_that_brings_nothing_is_given_up(void **state)
{
    (void)state;
    hub_server.n_cut = 100;
    hub_server.cut_at = 0;
    refuses(REPO, "after 6 tries");
    assert_int_equal(hub_server_count("cdn: "), 6);
}

static void no_network_is_said(void **state)
{
    (void)state;
    places.endpoint = "http://127.0.0.1:1";
    refuses(REPO, "http://127.0.0.1:1 cannot be reached");
    assert_true(strstr(said, "check the network"));
    assert_null(strstr(said, "trying again"));
}

/* An endpoint with https never leads to one without. */
static void plain_http_needs_a_plain_endpoint(void **state)
{
    (void)state;
    hub_server.location = "ftp://127.0.0.1/file";
    refuses(REPO, "refused an address that is not https");
    hub_server.location = "file:///etc/passwd";
    refuses(REPO, "refused an address that is not https");
}

static void a_stop_keeps_the_part(void **state)
{
    struct stat st;
    (void)state;
    hub_server.n_cut = 1;
    hub_server.cut_at = 50000;
    options.stop = &stop_wanted;
    stop_at = "trying again"; /* in the wait for the next try */
    assert_int_equal(pull(REPO), KN_ECANCELLED);
    assert_true(strstr(said, "stopped; the part is kept, and pull continues it"));
    assert_int_equal(stat(in_cache("blobs/%s.incomplete", q4->sha256), &st), 0);
    assert_int_equal(st.st_size, 50000);

    options.says_progress = true; /* while bytes arrive */
    hub_server.slow = true;
    stop_at = "downloaded 50 %";
    atomic_store(&stop_wanted, false);
    assert_int_equal(pull(REPO), KN_ECANCELLED);
    assert_int_equal(stat(in_cache("blobs/%s.incomplete", q4->sha256), &st), 0);
    assert_true(st.st_size >= 175000 && st.st_size < (off_t)LARGE_N);
    options.stop = NULL;
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
}

/* The lock of another process, as the hub's own client takes it, is waited for. */
static void a_lock_is_waited_for(void **state)
{
    char lock[400];
    (void)state;
    snprintf(lock, sizeof lock, "%s/.locks/" FOLDER "/%s.lock", cache, q4->sha256);
    write_at(lock, "", 0);
    int fd = open(lock, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    options.stop = &stop_wanted;
    stop_at = "another process downloads a file of it; waiting";
    assert_int_equal(pull(REPO), KN_ECANCELLED);
    assert_int_equal(hub_server_count("resolve"), 0);
    close(fd);
    atomic_store(&stop_wanted, false);
    pulls(REPO);
}

static void a_full_disk_is_said_before(void **state)
{
    (void)state;
    hub_server.tree =
        "[{\"type\":\"file\",\"path\":\"m-Q4_K_M.gguf\",\"oid\":\"\",\"size\":1,\"lfs\":{\"oid\":"
        "\"0123456789012345678901234567890123456789012345678901234567890123\",\"size\":4000000000000000000}}]";
    refuses(REPO, "4000 PB are to be downloaded, and ");
    assert_true(strstr(said, "HF_HUB_CACHE names another folder"));
    assert_int_equal(hub_server_count("resolve"), 0);
}

static int no_space;
static ssize_t write_until_full(int fd, const void *buf, size_t bytes, int64_t at)
{
    if (no_space && at + (int64_t)bytes > 100000) {
        errno = ENOSPC;
        return -1;
    }
    return kn_io_system.pwrite(fd, buf, bytes, at);
}

static void a_disk_that_fills_up_keeps_the_part(void **state)
{
    struct kn_io io = kn_io_system;
    struct stat st;
    (void)state;
    io.pwrite = write_until_full;
    no_space = 1;
    kn_io_set(&io);
    refuses(REPO, "No space left on device");
    assert_true(strstr(said, "the part is kept, and pull continues it"));
    kn_io_set(NULL);
    assert_int_equal(stat(in_cache("blobs/%s.incomplete", q4->sha256), &st), 0);
    assert_true(st.st_size > 0 && st.st_size <= 100000);
    pulls(REPO);
    assert_true(has_bytes(model.path, large, LARGE_N));
}

/* ---- replies that lie -------------------------------------------------------------------------------------- */

static void names_that_leave_the_cache_are_refused(void **state)
{
    static const char *const name[] = { "../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a//x.gguf",  "./x.gguf", "",
                                        "a/",        "x\\\\y.gguf", "a\\u0000.gguf",  "a\\nb.gguf", ".." };
    char tree[600];
    (void)state;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        snprintf(tree, sizeof tree, "[{\"type\":\"file\",\"path\":\"%s\",\"oid\":\"%s\",\"size\":7}]", name[i],
                 q4->oid);
        hub_server.tree = tree;
        int e = pull(REPO);
        if (e >= 0 || exists(in_cache("blobs")))
            fail_msg("'%s' is taken: %s", name[i], said);
    }
    assert_int_equal(hub_server_count("resolve"), 0);
}

static void replies_that_are_none_are_refused(void **state)
{
    static const char *const tree[] = {
        "",
        "{}",
        "[1]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\",\"size\":1}]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\",\"oid\":\"../../../../../../../../etc/passwd-12345678\",\"size\":1}]",
        "[{\"type\":\"file\",\"path\":\"a.gguf\",\"oid\":\"0123456789012345678901234567890123456789\",\"size\":-1}]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof tree / sizeof *tree; i++) {
        hub_server.tree = tree[i];
        assert_true(pull(REPO) < 0);
        assert_false(exists(in_cache("blobs")));
    }
    hub_server.tree = NULL;
    hub_server.info = "{\"sha\":\"../../..\"}";
    refuses(REPO, "names no commit");
    hub_server.info = "{";
    refuses(REPO, "is no JSON");
}

/* A file and a folder of the same name, and links that another process has laid. */
static void nothing_is_written_through_a_link(void **state)
{
    char outside[200], line[600];
    (void)state;
    snprintf(outside, sizeof outside, "%s/outside", cache);
    snprintf(line, sizeof line, "mkdir -p %s %s && ln -s %s %s", outside, in_cache("snapshots"), outside,
             in_cache("snapshots/" HUB_SERVER_COMMIT));
    assert_int_equal(system(line), 0);
    refuses(REPO, "is in the way: not a folder");
    rmdir(outside);
    assert_int_equal(unlink(in_cache("snapshots/" HUB_SERVER_COMMIT)), 0);
    snprintf(line, sizeof line, "%s/victim", cache);
    assert_int_equal(symlink(line, in_cache("blobs/%s.incomplete", q8->sha256)), 0);
    assert_true(pull(REPO ":Q8_0") < 0);
    assert_false(exists(line));
}

/* ---- a folder of safetensors -------------------------------------------------------------------------------- */

static void a_folder_is_taken_without_its_other_formats(void **state)
{
    int before = hub_server.n_file;
    struct hub_server_file kept[HUB_SERVER_FILES];
    (void)state;
    memcpy(kept, hub_server.file, sizeof kept);
    hub_server.n_file = 0;
    hub_server_add("config.json", "{}", 2, false);
    hub_server_add("tokenizer.json", large, 5000, true);
    hub_server_add("model.safetensors.index.json", "{\"a\":1}", 7, false);
    hub_server_add("model-00001-of-00002.safetensors", large, 2000, true);
    hub_server_add("model-00002-of-00002.safetensors", large + 7, 2000, true);
    hub_server_add("consolidated.safetensors", large, 3000, true);
    hub_server_add("original/model.safetensors", large, 3000, true);
    hub_server_add("pytorch_model.bin", large, 3000, true);
    pulls(REPO);
    assert_string_equal(model.path, in_cache("snapshots/" HUB_SERVER_COMMIT));
    assert_string_equal(model.name, REPO);
    assert_int_equal(model.n_file, 5);
    assert_int_equal(hub_server_count("cdn: GET"), 3);
    assert_true(has_bytes(in_cache("snapshots/" HUB_SERVER_COMMIT "/config.json"), "{}", 2));
    assert_true(has_bytes(in_cache("blobs/%s", hub_server.file[0].oid), "{}", 2)); /* by its git blob id */
    hub_server_reset();
    struct eng_hub_model m;
    assert_int_equal(eng_hub_find(&m, &places, REPO), 0);
    assert_int_equal(hub_server.n_log, 0);
    assert_int_equal(unlink(in_cache("snapshots/" HUB_SERVER_COMMIT "/model-00002-of-00002.safetensors")), 0);
    assert_int_equal(eng_hub_find(&m, &places, REPO), KN_ENOENT);
    for (int i = 0; i < hub_server.n_file; i++)
        free(hub_server.file[i].bytes);
    memcpy(hub_server.file, kept, sizeof kept);
    hub_server.n_file = before;
}

/* A small file whose bytes are not those of its git blob id. */
static void a_small_file_is_verified_too(void **state)
{
    char tree[800];
    (void)state;
    snprintf(tree, sizeof tree,
             "[{\"type\":\"file\",\"path\":\"README.md\",\"oid\":\"%s\",\"size\":7},{\"type\":\"file\","
             "\"path\":\"a.gguf\",\"oid\":\"0123456789012345678901234567890123456789\",\"size\":7}]",
             hub_server.file[0].oid);
    hub_server.tree = tree;
    struct hub_server_file *f = hub_server_add("a.gguf", "GGUF...", 7, false);
    refuses(REPO, "git blob id");
    free(f->bytes);
    hub_server.n_file--;
}

static void a_slow_server_and_lines_of_progress(void **state)
{
    (void)state;
    hub_server.slow = true;
    options.says_progress = true;
    pulls(REPO);
    assert_true(strstr(said, "downloaded 10 %") && strstr(said, "downloaded 90 %"));
    assert_true(has_bytes(model.path, large, LARGE_N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        TEST(the_cache_is_as_other_tools_want_it),
        TEST(what_is_there_is_found_without_a_request),
        TEST(splits_are_taken_together),
        TEST(the_list_has_pages),
        TEST(the_token_goes_to_the_hub_only),
        TEST(a_cut_connection_is_taken_up),
        TEST(a_part_is_continued),
        TEST(a_whole_part_needs_no_request),
        TEST(a_server_without_ranges_begins_again),
        TEST(a_part_that_is_too_long_is_dropped),
        TEST(a_blob_of_the_wrong_size_is_replaced),
        TEST(a_wrong_hash_removes_the_file),
        TEST(more_bytes_than_published_are_refused),
        TEST(each_refusal_says_the_way_on),
        TEST(a_busy_server_is_waited_for),
        TEST(a_connection_that_brings_nothing_is_given_up),
        TEST(no_network_is_said),
        TEST(plain_http_needs_a_plain_endpoint),
        TEST(a_stop_keeps_the_part),
        TEST(a_lock_is_waited_for),
        TEST(a_full_disk_is_said_before),
        TEST(a_disk_that_fills_up_keeps_the_part),
        TEST(names_that_leave_the_cache_are_refused),
        TEST(replies_that_are_none_are_refused),
        TEST(nothing_is_written_through_a_link),
        TEST(a_folder_is_taken_without_its_other_formats),
        TEST(a_small_file_is_verified_too),
        TEST(a_slow_server_and_lines_of_progress),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
