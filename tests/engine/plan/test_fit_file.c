/* The file of `spillway fit` (engine/plan/fit_file.c): numbers and drafter name are read back as written; other files
 * are refused with one line; a failed write leaves the old file.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/cli/cli.h"
#include "engine/draft/option.h"
#include "engine/plan/fit_file.h"
#include "tests/faults.h"

#define ID UINT64_C(0x12ab34cd56ef7890)

static char path[64];
static const struct moe_shape shape = { .n_expert = 16, .n_used = 2 };
static const struct eng_fitted found = { .cost = { .fixed_ns = 1.5e6,
                                                   .dense_ns = 2.25e5,
                                                   .load_ns = 1234.5,
                                                   .expert_ns = 77,
                                                   .ridge = 31.5,
                                                   .growth = 1.0625,
                                                   .wait = 0.75,
                                                   .choose_ns = 1e4,
                                                   .choose_row_ns = 33,
                                                   .n_expert = 16,
                                                   .n_used = 2,
                                                   .kv_ns = 12.5,
                                                   .copy_ns = 3e4 },
                                         .miss_ratio = 0.625,
                                         .copy_share = 0.125,
                                         .error = 0.02,
                                         .n_pass = 288 };

static void write_text(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void it_comes_back(void **state)
{
    (void)state;
    struct eng_fitted got;
    struct eng_fitted drafts = found;
    char longest[600];
    memset(longest, 'm', sizeof longest - 1);
    longest[100] = '\n';
    longest[sizeof longest - 1] = 0;
    drafts.setup = 0x1234567890abcdef;
    drafts.drafter[0] = (struct eng_fitted_drafter){ "model:d.gguf", 4567.25, 89.5, 0.75 };
    drafts.drafter[1] = (struct eng_fitted_drafter){ "eagle:h", 1, 0, 0 };
    drafts.n_drafter = 2;
    for (int i = 0; i < 2; i++) {
        const struct eng_fitted *f = i ? &drafts : &found;
        assert_int_equal(eng_fit_write(path, i ? longest : "m.gguf", ID, f), 0);
        assert_int_equal(eng_fit_read(path, &shape, ID, &got), 0);
        assert_memory_equal(&got, f, sizeof got);
    }
    unlink(path);
}

/* A drafter's name is read back as written for all characters of a file name, and differs for different drafters. */
static void drafters_have_names(void **state)
{
    (void)state;
    static const struct {
        const char *wish, *name;
    } tries[] = {
        { "model:a.gguf", "model:a.gguf" },
        { "model:/some/where/a.gguf", "model:a.gguf" },
        { "model:a/b//", "model:b" },
        { "eagle:../h.gguf", "eagle:h.gguf,tree=dynamic" },
        { "eagle:h.gguf,tree=chain", "eagle:h.gguf,tree=chain" },
        { "mtp", "mtp,tree=chain" },
        { "mtp,tree=static", "mtp,tree=static" },
        { "model:a b ;c =#.gguf", "model:a_b_;c_=#.gguf" },
        { "model:\ta\n", "model:_a_" },
        { "model:\xc3\xa4.gguf", "model:\xc3\xa4.gguf" },
        { "model:a.gguf,lengths=l", "model:a.gguf" },
        { "ngram", "" },
        { "suffix:text", "" },
        { "none", "" },
        { "oracle:0.5", "" },
    };
    struct eng_fitted f = found;
    struct eng_fitted got;
    struct eng_draft_option w;
    char name[ENG_FIT_NAME], longest[256] = "eagle:";
    for (size_t i = 0; i <= sizeof tries / sizeof *tries; i++) {
        bool last = i == sizeof tries / sizeof *tries;
        memset(longest + 6, 'n', sizeof longest - 7);
        assert_int_equal(eng_draft_parse(&w, last ? longest : tries[i].wish), 0);
        eng_draft_name(name, &w);
        assert_true(last ? strlen(name) == 6 + 120 + 13 : strcmp(name, tries[i].name) == 0);
        f.n_drafter = *name != 0;
        f.drafter[0] = (struct eng_fitted_drafter){ .ns = 123456.789, .row_ns = 987654.321, .accept = 0.98765 };
        memcpy(f.drafter[0].name, name, sizeof name);
        assert_int_equal(eng_fit_write(path, "m.gguf", ID, &f), 0);
        assert_int_equal(eng_fit_read(path, &shape, ID, &got), 0);
        assert_int_equal(got.n_drafter, f.n_drafter);
        assert_string_equal(got.drafter[0].name, name);
    }
    unlink(path);
}

static void anything_else_is_refused(void **state)
{
    (void)state;
    static const char all[] = "fixed_ns=1\ndense_ns=1\nload_ns=1\nexpert_ns=1\nridge=%s\ngrowth=1.5\nwait=1\n"
                              "choose_ns=1\nchoose_row_ns=1\ndraft_ns=0\ndraft_row_ns=%s\nn_expert=%s\nn_used=2\n%s";
    static const struct {
        const char *ridge, *row, *n_expert, *more, *says;
    } tries[] = {
        { "5", "0", "16", "", NULL },
        { "5", "0", "8", "", "8 experts" },
        { "0", "0", "16", "", "out of range" },
        { "x", "0", "16", "", "line 5" },
        { "-1", "0", "16", "", "line 5" },
        { "nan", "0", "16", "", "line 5" },
        { "5", "0", "16", "ridge=5", "line 14" },
        { "5", "0", "16", "[a]\nb=1", "line" },
        { "5", "0", "16", "more=1", "line 14" },
        { "5", "3", "16", "", NULL },
        { "5", "-3", "16", "", "line 11" },
        { "5", "3", "16", "drafter=model:a", NULL },
        { "5", "0", "16", "drafter=model:a", "takes no time" },
        { "5", "3", "16", "drafter=", "line 14" },
        { "5", "3", "16", "drafter=a\ndrafter=a", "line 15" },
        { "5", "3", "16", "[a]\ndrafter=a", "line 15" },
    };
    struct eng_fitted got;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char text[512];
        snprintf(text, sizeof text, all, tries[i].ridge, tries[i].row, tries[i].n_expert, tries[i].more);
        write_text(text);
        faults_listen();
        faults.most = KN_LOG_INFO;
        int error = eng_fit_read(path, &shape, ID, &got);
        faults.most = KN_LOG_WARN;
        if (!tries[i].says ? error || !strstr(faults.line, "older version")
                           : !error || faults.n_line != 1 || !strstr(faults.line, tries[i].says))
            fail_msg("try %zu: %d, '%s'", i, error, faults.line);
    }
    for (int way = 0; way < 6; way++) { /* formats and models */
        static const char *const head[] = { "format=2\nmodel=12ab34cd56ef7890\n",
                                            "format=2\nmodel=12ab34cd56ef7891\n",
                                            "format=2\n",
                                            "format=4\nmodel=?\nnew\n",
                                            "model=12ab34cd56ef7890\n",
                                            "format=2\nmodel=12ab34cd56ef789\n" };
        static const char *const says[] = { NULL,     "another model", "another model", "another version",
                                            "line 1", "line 2" };
        char text[512];
        int n = snprintf(text, sizeof text, "%s", head[way]);
        snprintf(text + n, sizeof text - (size_t)n, all, "5", "0", "16", "");
        write_text(text);
        faults_listen();
        int error = eng_fit_read(path, &shape, ID, &got);
        if (!says[way] ? error || faults.n_line : !error || faults.n_line != 1 || !strstr(faults.line, says[way]))
            fail_msg("way %d: %d, '%s'", way, error, faults.line);
    }
    write_text("format=3\nmodel=12ab34cd56ef7890\ndrafter=5 3 1.5 model:a\n");
    faults_listen();
    assert_true(eng_fit_read(path, &shape, ID, &got) < 0 && strstr(faults.line, "line 3"));
    write_text("fixed_ns=1\n");
    faults_listen();
    assert_true(eng_fit_read(path, &shape, ID, &got) < 0 && strstr(faults.line, "dense_ns is missing"));
    unlink(path);
    assert_int_equal(eng_fit_read(path, &shape, ID, &got), KN_EIO);
    assert_int_equal(eng_fit_write("/nowhere/at/all", "m", ID, &found), KN_ENOENT);
    faults_listen_off();
}

/* The file beside a model is used for its model, machine and options alone; any other is ignored with one line, which says
 * why, and none without a line. */
static void kept_files_are_of_one_setup(void **state)
{
    (void)state;
    struct eng_fitted kept = found, got;
    kept.setup = 77;
    static const struct {
        uint64_t id, setup;
        const char *says;
    } tries[] = { { ID, 77, NULL }, { ID, 78, "another machine" }, { ID + 1, 77, "another model" } };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        eng_fit_keep(path, "m.gguf", ID, &kept);
        faults_listen();
        faults.most = KN_LOG_INFO;
        bool used = eng_fit_read_kept(path, &shape, tries[i].id, tries[i].setup, &got);
        assert_int_equal(used, tries[i].says == NULL);
        assert_int_equal(faults.n_line, !used);
        assert_true(used || (strstr(faults.line, tries[i].says) && strstr(faults.line, "measured again")));
    }
    static const char *const texts[] = { "", "hello\n", "format=9\n", "format=2\nmodel=12ab34cd56ef7890\n" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(texts[i]);
        faults_listen();
        faults.most = KN_LOG_INFO;
        assert_false(eng_fit_read_kept(path, &shape, ID, 77, &got));
        assert_int_equal(faults.n_line, 1);
    }
    unlink(path);
    faults_listen();
    faults.most = KN_LOG_INFO;
    assert_false(eng_fit_read_kept(path, &shape, ID, 77, &got));
    assert_int_equal(faults.n_line, 0);
    faults.most = KN_LOG_WARN;
    faults_listen_off();
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static int n_in_folder(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The n-th call fails, for all n, with writes of a few bytes: the old file stays whole, or no file is left. A link is
 * followed. */
static void what_fails_leaves_the_old_file(void **state)
{
    char folder[] = "/tmp/spillway-fit-XXXXXX", file[64], link[64];
    struct eng_fitted old = found, is;
    struct stat st;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/fit", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    old.cost.fixed_ns = 7;
    for (int way = 0; way < 3; way++) { /* no file, a file, a link to a file */
        int n_call = 0, n_file = 0;
        const char *name = way == 2 ? link : file;
        for (bool struck = true; struck; n_call++) {
            unlink(file);
            assert_true(!way || eng_fit_write(file, "m.gguf", ID, &old) == 0);
            if (way == 2 && n_call == 0)
                assert_int_equal(symlink(file, link), 0);
            n_file = n_in_folder(folder);
            faults.in_pieces = true;
            faults_at(FAULT_ANY, n_call + 1, FAULT_ERROR, n_call % 2 ? ENOSPC : EIO);
            int error = eng_fit_write(name, "m.gguf", ID, &found);
            struck = faults.struck;
            assert_true(faults_clean());
            bool renamed = faults.calls[FAULT_RENAME] > 0 && (!struck || error == 0);  /* then the folder is synced */
            assert_true(renamed ? error == 0 : error == KN_EIO || error == KN_ENOMEM); /* memory is a call, too */
            assert_int_equal(faults.n_line, !renamed);
            faults_off();
            faults.in_pieces = false;
            if (!struck)
                break;
            assert_int_equal(n_in_folder(folder), n_file + (renamed && !way));
            if (renamed || way) {
                assert_int_equal(eng_fit_read(name, &shape, ID, &is), 0);
                assert_memory_equal(&is.cost, renamed ? &found.cost : &old.cost, sizeof old.cost);
            }
        }
        assert_true(n_call > 5); /* open, several writes, sync, rename */
        assert_int_equal(n_in_folder(folder), n_file + !way);
        assert_int_equal(eng_fit_read(file, &shape, ID, &is), 0);
        assert_memory_equal(&is.cost, &found.cost, sizeof found.cost);
    }
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    unlink(link);
    unlink(file);
    assert_int_equal(rmdir(folder), 0);
}

/* An unwritable output is refused before the measurement. The check leaves no file. */
static void what_cannot_be_written_is_told_first(void **state)
{
    char other[sizeof path + 8], got[8] = "";
    char *argv[] = { "-m", "/nowhere/model.gguf", "-o", "/nowhere/at/all" };
    static struct eng_config config;
    struct stat st;
    (void)state;
    snprintf(other, sizeof other, "%s-link", path);
    assert_int_equal(eng_fit_check(path), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(symlink(path, other), 0);
    faults_listen();
    assert_int_equal(eng_fit_check(other), KN_EINVAL);
    assert_non_null(strstr(faults.line, "a broken link"));
    assert_int_equal(eng_fit_write(other, "m.gguf", ID, &found), KN_EINVAL);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(eng_fit_write(path, "m.gguf", ID, &found), 0);
    assert_int_equal(eng_fit_check(other), 0);
    faults_listen();
    for (int i = 0; i < 2; i++) {
        write_text(i ? "#" : "kept"); /* for example a model */
        assert_int_equal(eng_fit_check(other), KN_EINVAL);
        assert_non_null(strstr(faults.line, "not written by fit"));
        FILE *f = fopen(other, "r");
        assert_non_null(f);
        assert_non_null(fgets(got, sizeof got, f));
        assert_string_equal(got, i ? "#" : "kept");
        fclose(f);
    }
    faults_listen_off();
    write_text("");
    assert_int_equal(eng_fit_check(other), 0);
    unlink(other);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* no reader yet */
    assert_int_equal(eng_fit_check(path), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(eng_fit_write(path, "m.gguf", ID, &found), 0);
    assert_int_equal(read(reader, got, 2), 2);
    assert_memory_equal(got, "# ", 2);
    close(reader);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    unlink(path);
    faults_listen();
    assert_int_equal(eng_fit_check("/tmp"), KN_EIO);
    assert_int_equal(eng_config_parse(&config, ENG_fit, 4, argv), 0);
    faults_listen();
    assert_int_equal(eng_cmd_fit(&config), 2);
    assert_non_null(strstr(faults.line, "/nowhere/at/all: cannot be written"));
    faults_listen_off();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back),
        cmocka_unit_test(drafters_have_names),
        cmocka_unit_test(kept_files_are_of_one_setup),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(what_fails_leaves_the_old_file),
        cmocka_unit_test(what_cannot_be_written_is_told_first),
    };
    snprintf(path, sizeof path, "/tmp/spillway-fit-%d", getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
