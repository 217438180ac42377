/* Names, choice of a quantisation, and models in the three stores: found, listed, removed.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <utime.h>

#include <cmocka.h>

#include "engine/hub/internal.h"
#include "tests/scratch.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define SHA(c)                                                                                                         \
    c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c  \
        c c c c c c c

static char root[128], said[8192], path[5][256];
static struct eng_hub_places places;

static void keep_line(enum kn_level level, const char *line)
{
    size_t n = strlen(said);
    (void)level;
    snprintf(said + n, sizeof said - n, "%s\n", line);
}

static int set_up(void **state)
{
    static const char *const name[] = { "hub", "ollama", "shared-ollama", "lm", "lm-old" };
    (void)state;
    if (!scratch_make(root, sizeof root, "stores"))
        return -1;
    for (int i = 0; i < 5; i++)
        snprintf(path[i], sizeof path[i], "%s/%s", root, name[i]);
    places = (struct eng_hub_places){ .cache = path[0],
                                      .ollama = { path[1], path[2] },
                                      .lm_studio = { path[3], path[4] },
                                      .endpoint = "http://127.0.0.1:1",
                                      .offline = true };
    said[0] = 0;
    kn_log_set(keep_line, KN_LOG_INFO);
    return 0;
}

static int tear_down(void **state)
{
    char line[200];
    (void)state;
    kn_log_set(NULL, KN_LOG_INFO);
    snprintf(line, sizeof line, "rm -rf %s", root);
    return system(line);
}

static const char *at(const char *name)
{
    static char out[4][1000];
    static int turn;
    snprintf(out[++turn % 4], sizeof out[0], "%s/%s", root, name);
    return out[turn % 4];
}

static void put(const char *name, const char *text)
{
    char folder[1000];
    snprintf(folder, sizeof folder, "%s", at(name));
    *strrchr(folder, '/') = 0;
    assert_int_equal(hub_make_folders(folder, strlen(root) + 1), 0);
    FILE *f = fopen(at(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool exists(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0;
}

/* A file of a snapshot: the blob, unless it exists, and the link. */
static void put_linked(const char *repo_folder, const char *commit, const char *file, const char *id, const char *text)
{
    char name[600];
    snprintf(name, sizeof name, "hub/%s/blobs/%s", repo_folder, id);
    if (!exists(name))
        put(name, text);
    snprintf(name, sizeof name, "hub/%s", repo_folder);
    assert_int_equal(hub_cache_link(at(name), commit, file, id), 0);
}

/* ---- names ---------------------------------------------------------------------------------------------- */

static void names(void **state)
{
    static const struct {
        const char *text, *repo, *revision, *which;
    } good[] = {
        { "Org/Name", "Org/Name", "", "" },
        { "Org/Name:Q4_K_M", "Org/Name", "", "Q4_K_M" },
        { "Org/Name.v1-GGUF@refs/pr/1:q8_0", "Org/Name.v1-GGUF", "refs/pr/1", "q8_0" },
        { "Org/Name@v1.0", "Org/Name", "v1.0", "" },
        { "hf.co/Org/Name:Q4_K_M", "Org/Name", "", "Q4_K_M" },
        { "https://huggingface.co/Org/Name", "Org/Name", "", "" },
        { "Org/Name:sub/File-Q4.gguf", "Org/Name", "", "sub/File-Q4.gguf" },
    };
    static const char *const bad[] = { "Name",
                                       "",
                                       "/",
                                       "Org/",
                                       "/Name",
                                       "Org/Name/x",
                                       "../Name",
                                       "Org/..",
                                       "Org/.x",
                                       "Org/a..b",
                                       "Org/a--b",
                                       "Org/Name@",
                                       "Org/Name:",
                                       "Org/Name@../x",
                                       "Org/Name@a//b",
                                       "Org/Name@a/",
                                       "Org/Name:../x",
                                       "Org/Name:/x",
                                       "models/x.gguf",
                                       "a b/c",
                                       "-x/y",
                                       "/abs/path",
                                       "./a/b",
                                       "~/a",
                                       "Org/Na\nme" };
    struct hub_name name;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!hub_name_parse(&name, good[i].text))
            fail_msg("%s is refused", good[i].text);
        assert_string_equal(name.repo, good[i].repo);
        assert_string_equal(name.revision, good[i].revision);
        assert_string_equal(name.which, good[i].which);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hub_name_parse(&name, bad[i]))
            fail_msg("'%s' is taken as %s @ %s : %s", bad[i], name.repo, name.revision, name.which);
    char longest[2000];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    longest[3] = '/';
    assert_false(hub_name_parse(&name, longest));
    longest[10] = ':';
    assert_false(hub_name_parse(&name, longest));
}

/* ---- quantisations --------------------------------------------------------------------------------------- */

static const struct {
    const char *file, *label;
} labelled[] = {
    { "Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M" },
    { "model.q8_0.gguf", "Q8_0" },
    { "x/Big-UD-Q2_K_XL-00001-of-00001.gguf", "UD-Q2_K_XL" },
    { "gpt-oss-20b-mxfp4.gguf", "MXFP4" },
    { "a-F16.gguf", "F16" },
    { "b.bf16.gguf", "BF16" },
    { "c-IQ3_XXS.gguf", "IQ3_XXS" },
    { "d-TQ1_0.gguf", "TQ1_0" },
    { "e-Q4_K_M-imat.gguf", "Q4_K_M" },
    { "ggml-model-i2.gguf", "" },
    { "quiet.gguf", "" },
    { "Qwen-2.gguf", "" },
    { "f-MXFP4_MOE.gguf", "MXFP4_MOE" },
    { "Q5_K_S/g-Q5_K_S.GGUF", "Q5_K_S" },
};

static void labels(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof labelled / sizeof *labelled; i++) {
        struct hub_files f = { 0 };
        struct hub_variant *v;
        int n;
        assert_int_equal(hub_files_add(&f, labelled[i].file, 1), 0);
        assert_int_equal(hub_variants_find(&v, &n, &f), 0);
        assert_int_equal(n, 1);
        assert_string_equal(v[0].label, labelled[i].label);
        kn_free(v);
        hub_files_free(&f);
    }
}

static int chosen(const char *files, const char *which)
{
    struct hub_files f = { 0 };
    struct hub_variant *v;
    char copy[1000];
    int n;
    snprintf(copy, sizeof copy, "%s", files);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        assert_int_equal(hub_files_add(&f, w, 1), 0);
    hub_files_sort(&f);
    assert_int_equal(hub_variants_find(&v, &n, &f), 0);
    int i = hub_variant_choose(v, n, &f, which), result = i < 0           ? i
                                                          : v[i].label[0] ? v[i].label[strlen(v[i].label) - 1]
                                                                          : '-';
    kn_free(v);
    hub_files_free(&f);
    return result;
}

static void choice(void **state)
{
    (void)state;
    assert_int_equal(chosen("a-Q2_K.gguf a-Q4_K_M.gguf a-Q8_0.gguf", ""), 'M');
    assert_int_equal(chosen("a-Q2_K.gguf a-Q8_0.gguf", ""), '0');
    assert_int_equal(chosen("a-Q2_K.gguf a-Q6_K_L.gguf", ""), 'K'); /* none of the usual ones: the first */
    assert_int_equal(chosen("a-UD-Q4_K_XL.gguf a-Q2_K.gguf", ""), 'L');
    assert_int_equal(chosen("a-UD-Q2_K_S.gguf a-Q4_K_M.gguf", "q2_k_s"), 'S');
    assert_int_equal(chosen("a-UD-Q2_K.gguf a-Q2_K.gguf", "q2_k"), 'K'); /* the one without UD- */
    assert_int_equal(chosen("a-Q4_K_M.gguf b-Q4_K_M.gguf", "Q4_K_M"), -2);
    assert_int_equal(chosen("a-Q4_K_M.gguf b-Q4_K_M.gguf", "b-Q4_K_M.gguf"), 'M');
    assert_int_equal(chosen("a-Q4_K_M.gguf b-Q4_K_M.gguf", "A-q4_k_m"), 'M');
    assert_int_equal(chosen("a-Q4_K_M.gguf", "Q8_0"), -1);
    assert_int_equal(chosen("README.md", ""), -1);
    assert_int_equal(chosen("mmproj-F16.gguf a.imatrix.gguf", ""), -1);
    assert_int_equal(chosen("config.json model.safetensors", ""), 's');
    assert_int_equal(chosen("config.json model.safetensors a-Q8_0.gguf", ""), '0');
    assert_int_equal(chosen("config.json model.safetensors a-Q8_0.gguf", "Safetensors"), 's');
    assert_int_equal(chosen("model.safetensors", ""), -1); /* no config.json */
}

/* ---- stores ------------------------------------------------------------------------------------------------ */

#define MANIFEST                                                                                                       \
    "{\"layers\":[{\"mediaType\":\"application/vnd.ollama.image.license\",\"digest\":\"sha256:" SHA(                   \
        "1") "\"},"                                                                                                    \
             "{\"mediaType\":\"application/vnd.ollama.image.model\",\"digest\":\"sha256:" SHA("c") "\",\"size\":5}]}"

static void fill(void)
{
    put_linked("models--Org--One", A, "One-Q4_K_M.gguf", SHA("2"), "22222");
    put_linked("models--Org--One", A, "One-Q8_0.gguf", SHA("3"), "3333333");
    put_linked("models--Org--One", A, "README.md", A, "r");
    put("hub/models--Org--One/refs/main", A);
    put("ollama/manifests/registry.ollama.ai/library/qwen/30b", MANIFEST);
    put("ollama/manifests/hf.co/Org/Two/Q4_K_M", MANIFEST);
    put("shared-ollama/manifests/registry.ollama.ai/me/mine/latest", MANIFEST);
    put("ollama/blobs/sha256-" SHA("c"), "GGUF1");
    put("shared-ollama/blobs/sha256-" SHA("c"), "GGUF22");
    put("lm/Org/Three/Three-Q6_K.gguf", "123");
    put("lm-old/Org/Four/config.json", "{}");
    put("lm-old/Org/Four/tokenizer.json", "{}");
    put("lm-old/Org/Four/model.safetensors", "123");
}

static void finds(const char *name, enum eng_hub_store store, const char *file)
{
    struct eng_hub_model m;
    int e = eng_hub_find(&m, &places, name);
    if (e || m.store != store || strcmp(m.path, at(file)) != 0)
        fail_msg("%s: %d, %s: %s", name, e, e ? "" : m.path, said);
}

static void each_store_is_searched(void **state)
{
    struct eng_hub_model m;
    (void)state;
    fill();
    finds("Org/One", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf");
    assert_true(strstr(said, "Org/One: taking Q4_K_M; also here: Q8_0 (7 B)"));
    finds("Org/One:One-Q8_0", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q8_0.gguf");
    finds("qwen:30b", ENG_HUB_OLLAMA, "ollama/blobs/sha256-" SHA("c"));
    finds("Org/Two:Q4_K_M", ENG_HUB_OLLAMA, "ollama/blobs/sha256-" SHA("c"));
    finds("hf.co/Org/Two:Q4_K_M", ENG_HUB_OLLAMA, "ollama/blobs/sha256-" SHA("c"));
    finds("me/mine", ENG_HUB_OLLAMA, "shared-ollama/blobs/sha256-" SHA("c"));
    finds("Org/Three", ENG_HUB_LM_STUDIO, "lm/Org/Three/Three-Q6_K.gguf");
    finds("Org/Four", ENG_HUB_LM_STUDIO, "lm-old/Org/Four");
    assert_int_equal(eng_hub_find(&m, &places, "qwen"), KN_ENOENT);
    assert_int_equal(eng_hub_find(&m, &places, "Org/Five"), KN_ENOENT);
    assert_int_equal(eng_hub_find(&m, &places, "../ollama"), KN_ENOENT);
    assert_int_equal(eng_hub_find(&m, &places, "..:x"), KN_ENOENT);
}

/* An older snapshot is good enough where main's has not the model. */
static void an_older_snapshot_is_used(void **state)
{
    struct eng_hub_model m;
    (void)state;
    fill();
    put_linked("models--Org--One", B, "One-Q8_0.gguf", SHA("4"), "new");
    put("hub/models--Org--One/refs/main", B);
    finds("Org/One:Q8_0", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" B "/One-Q8_0.gguf");
    finds("Org/One:Q4_K_M", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf");
    assert_int_equal(eng_hub_find(&m, &places, "Org/One@main:Q4_K_M"), KN_ENOENT);
    put_linked("models--Org--One", B, "One-Q4_K_M.gguf", SHA("5"), "newer");
    put("hub/models--Org--One/refs/main", "cccccccccccccccccccccccccccccccccccccccc");
    struct utimbuf early = { 1000, 1000 }, late = { 2000, 2000 };
    utime(at("hub/models--Org--One/snapshots/" A), &late); /* the one that changed last */
    utime(at("hub/models--Org--One/snapshots/" B), &early);
    finds("Org/One:Q4_K_M", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf");
    utime(at("hub/models--Org--One/snapshots/" A), &early);
    utime(at("hub/models--Org--One/snapshots/" B), &late);
    finds("Org/One:Q4_K_M", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" B "/One-Q4_K_M.gguf");
    finds("Org/One@aaaaaaa:Q4_K_M", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf");
}

static void damaged_stores_are_no_fault(void **state)
{
    struct eng_hub_model m, *list;
    int n;
    (void)state;
    assert_int_equal(eng_hub_list(&list, &n, &places), 0); /* nothing there at all */
    assert_int_equal(n, 0);
    kn_free(list);
    put("hub/models--Org--One/refs/main", "no commit");
    put("hub/models--broken/x", "");
    put("ollama/manifests/registry.ollama.ai/library/a/latest", "{");
    put("ollama/manifests/registry.ollama.ai/library/b/latest",
        "{\"layers\":[{\"mediaType\":\"application/vnd.ollama.image.model\",\"digest\":\"sha256:../../../../etc/passwd\"}]}");
    put("ollama/manifests/registry.ollama.ai/library/c/latest", MANIFEST); /* without its blob */
    put("ollama/manifests/registry.ollama.ai/library/d/latest",
        "{\"layers\":[{\"mediaType\":\"application/vnd.ollama.image.model\",\"digest\":\"sha256:x/../../../secret\"}]}");
    put("ollama/blobs/sha256-x/y", "");
    put("secret", "GGUF");
    assert_int_equal(eng_hub_list(&list, &n, &places), 0);
    assert_int_equal(n, 0);
    kn_free(list);
    assert_int_equal(eng_hub_find(&m, &places, "b"), KN_ENOENT);
    assert_int_equal(eng_hub_find(&m, &places, "c:latest"), KN_ENOENT);
    assert_int_equal(eng_hub_find(&m, &places, "d"), KN_ENOENT);
    fill();
    finds("qwen:30b", ENG_HUB_OLLAMA, "ollama/blobs/sha256-" SHA("c"));
    put("ollama/manifests/registry.ollama.ai/x/y/z", "");
    assert_int_equal(eng_hub_find(&m, &places, "x/../library/qwen:30b"), KN_ENOENT);
    put("hub/models--Org--Evil/snapshots/x", "");
    put("hub/models--Org--Evil/refs/main", "../../../outside/./././././././././././.");
    put("outside/Out-Q8_0.gguf", "GGUF");
    assert_int_equal(strlen("../../../outside/./././././././././././."), HUB_COMMIT_BYTES - 1);
    assert_int_equal(eng_hub_find(&m, &places, "Org/Evil"), KN_ENOENT);
}

static void the_list(void **state)
{
    static const char *const want[] = {
        "hub Org/One:Q4_K_M 5", "hub Org/One:Q8_0 7",      "ollama hf.co/Org/Two:Q4_K_M 5",
        "ollama qwen:30b 5",    "ollama me/mine:latest 6", "lmstudio Org/Three:Q6_K 3",
        "lmstudio Org/Four 7"
    };
    struct eng_hub_model *m, again;
    char line[700];
    int n;
    (void)state;
    fill();
    assert_int_equal(eng_hub_list(&m, &n, &places), 0);
    assert_int_equal(n, sizeof want / sizeof *want);
    for (int i = 0; i < n; i++) {
        snprintf(line, sizeof line, "%s %s %llu", eng_hub_store_name(m[i].store), m[i].name,
                 (unsigned long long)m[i].bytes);
        assert_string_equal(line, want[i]);
        assert_int_equal(eng_hub_find(&again, &places, m[i].name), 0); /* each name finds its model again */
        assert_string_equal(again.path, m[i].path);
    }
    kn_free(m);
}

/* ---- removal ------------------------------------------------------------------------------------------------- */

static uint64_t removes(const char *name)
{
    struct eng_hub_removal *r;
    int e = eng_hub_removal_open(&r, &places, name);
    if (e)
        fail_msg("%s: %s", name, said);
    uint64_t bytes = eng_hub_removal_bytes(r);
    assert_int_equal(eng_hub_remove(r), 0);
    eng_hub_removal_close(r);
    return bytes;
}

static void refuses(const char *name, const char *why)
{
    struct eng_hub_removal *r;
    said[0] = 0;
    assert_true(eng_hub_removal_open(&r, &places, name) < 0);
    if (!strstr(said, why))
        fail_msg("%s: %s", name, said);
}

static void one_quantisation_is_removed(void **state)
{
    (void)state;
    fill();
    put("hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf.heat", "1");
    put("hub/models--Org--One/snapshots/" A "/One-Q4_K_M.experts", "12");
    put("hub/models--Org--One/snapshots/" A "/One-Q8_0.experts", "12");
    assert_int_equal(removes("Org/One:q4_k_m"), 5 + 1 + 2);
    assert_false(exists("hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf"));
    assert_false(exists("hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf.heat"));
    assert_false(exists("hub/models--Org--One/snapshots/" A "/One-Q4_K_M.experts"));
    assert_false(exists("hub/models--Org--One/blobs/" SHA("2")));
    assert_true(exists("hub/models--Org--One/snapshots/" A "/One-Q8_0.experts"));
    finds("Org/One:Q8_0", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q8_0.gguf");
    refuses("Org/One:q4_k_m", "no q4_k_m in the cache; it has Q8_0 (7 B)");
}

static void a_blob_of_another_revision_stays(void **state)
{
    (void)state;
    fill();
    put_linked("models--Org--One", B, "One-Q4_K_M.gguf", SHA("2"), "22222");
    put_linked("models--Org--One", B, "Other-Q4_0.gguf", SHA("5"), "55");
    put("hub/models--Org--One/refs/v2", B);
    assert_int_equal(removes("Org/One@v2:Q4_K_M"), 0);
    finds("Org/One:Q4_K_M", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf");
    assert_int_equal(removes("Org/One@v2"), 2);
    assert_false(exists("hub/models--Org--One/snapshots/" B));
    assert_false(exists("hub/models--Org--One/refs/v2"));
    assert_true(exists("hub/models--Org--One/refs/main"));
    assert_true(exists("hub/models--Org--One/blobs/" SHA("2")));
}

/* Two names of one file in a revision: one of them goes, the blob stays. */
static void a_blob_of_another_file_stays(void **state)
{
    (void)state;
    fill();
    put_linked("models--Org--One", A, "Same-Q5_0.gguf", SHA("2"), "");
    assert_int_equal(removes("Org/One:Q5_0"), 0);
    finds("Org/One:Q4_K_M", ENG_HUB_CACHE, "hub/models--Org--One/snapshots/" A "/One-Q4_K_M.gguf");
}

static void the_last_revision_takes_the_folder_along(void **state)
{
    (void)state;
    fill();
    put("hub/models--Org--One/blobs/" SHA("9") ".incomplete", "part");
    put("outside/file", "stays");
    assert_int_equal(symlink(at("outside"), at("hub/models--Org--One/snapshots/" A "/link")), 0);
    assert_int_equal(removes("Org/One"), 5 + 7 + 1 + 4);
    assert_false(exists("hub/models--Org--One"));
    assert_true(exists("outside/file"));
    refuses("Org/One", "is not in the hub's cache");
}

/* The last quantisation is the last revision, unless another one has begun. */
static void the_last_quantisation_takes_the_folder_along(void **state)
{
    (void)state;
    put_linked("models--Org--One", A, "One-Q4_K_M.gguf", SHA("2"), "22222");
    put("hub/models--Org--One/refs/main", A);
    put("hub/models--Org--One/blobs/" SHA("9") ".incomplete", "part");
    assert_int_equal(removes("Org/One:Q4_K_M"), 5);
    assert_true(exists("hub/models--Org--One/blobs/" SHA("9") ".incomplete"));
    assert_false(exists("hub/models--Org--One/refs/main"));
    put_linked("models--Org--Two", A, "Two-Q4_K_M.gguf", SHA("2"), "22222");
    assert_int_equal(removes("Org/Two:Q4_K_M"), 5);
    assert_false(exists("hub/models--Org--Two"));
}

/* Not through a link to a folder, either. */
static void a_linked_folder_is_not_entered(void **state)
{
    (void)state;
    fill();
    put_linked("models--Org--One", B, "One-Q8_0.gguf", SHA("3"), "");
    put("outside/Out-Q2_K.gguf", "stays");
    assert_int_equal(symlink(at("outside"), at("hub/models--Org--One/snapshots/" A "/link")), 0);
    assert_int_equal(removes("Org/One"), 5 + 1);
    assert_true(exists("outside/Out-Q2_K.gguf"));
    assert_true(exists("hub/models--Org--One/blobs/" SHA("3")));
}

static void other_stores_are_not_touched(void **state)
{
    (void)state;
    fill();
    refuses("qwen:30b", "is in Ollama's store: remove it with ollama rm qwen:30b");
    refuses("Org/Two:Q4_K_M", "remove it with ollama rm hf.co/Org/Two:Q4_K_M");
    refuses("Org/Three", "is in the folder of LM Studio");
    refuses("../x", "is not in the hub's cache");
    assert_true(exists("lm/Org/Three/Three-Q6_K.gguf"));
    assert_true(exists("ollama/blobs/sha256-" SHA("c")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        TEST(names),
        TEST(labels),
        TEST(choice),
        TEST(each_store_is_searched),
        TEST(an_older_snapshot_is_used),
        TEST(damaged_stores_are_no_fault),
        TEST(the_list),
        TEST(one_quantisation_is_removed),
        TEST(a_blob_of_another_revision_stays),
        TEST(a_blob_of_another_file_stays),
        TEST(the_last_revision_takes_the_folder_along),
        TEST(the_last_quantisation_takes_the_folder_along),
        TEST(a_linked_folder_is_not_entered),
        TEST(other_stores_are_not_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
