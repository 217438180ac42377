/* Files that appear under their name when they are complete: kn_new_file.  After any failure, a kill and a power cut
 * there is the old file or the new one, and no other process's part file is followed, shared or renamed.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/faults.h"
#include "tests/power.h"
#include "tests/scratch.h"

#define PART ".spillway.part"

static char folder[64], path[96], part[128], aside[96];

static int set_up(void **state)
{
    (void)state;
    if (!scratch_make(folder, sizeof folder, "new"))
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(part, sizeof part, "%s" PART, path);
    snprintf(aside, sizeof aside, "%s/aside", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    unlink(aside);
    return rmdir(folder);
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void holds(const char *name, const char *text)
{
    char got[64] = "";
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, text);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(name, &st) == 0;
}

static int write_new(const char *text)
{
    struct kn_new_file f;
    int error = kn_new_file_open(&f, path, 0644);
    if (!error && !(error = kn_file_write(f.fd, f.path, text, strlen(text), 0)))
        error = kn_new_file_commit(&f);
    kn_new_file_close(&f);
    return error;
}

static void a_left_part_file_is_replaced(void **state)
{
    (void)state;
    put(path, "old");
    put(part, "of a killed process, and longer than the new text");
    assert_int_equal(link(part, aside), 0); /* a second name of it keeps its bytes */
    assert_int_equal(write_new("new"), 0);
    holds(path, "new");
    holds(aside, "of a killed process, and longer than the new text");
    assert_false(is_there(part));
    unlink(aside);
}

static void a_second_writer_is_refused(void **state)
{
    struct kn_new_file first, second;
    (void)state;
    put(path, "old");
    faults_reset();
    assert_int_equal(kn_new_file_open(&first, path, 0600), 0);
    assert_int_equal(kn_new_file_open(&second, path, 0600), KN_EINVAL);
    kn_new_file_close(&second);
    assert_true(faults.n_line == 1 && strstr(faults.line, path) && strstr(faults.line, "another process"));
    assert_int_equal(kn_file_write(first.fd, first.path, "new", 3, 0), 0);
    assert_int_equal(kn_new_file_replace(&first), 0);
    kn_new_file_close(&first);
    holds(path, "new");
    assert_false(is_there(part));
    assert_true(faults_clean());
    faults_off();
}

static void what_is_in_the_way_stays(void **state)
{
    struct kn_new_file f;
    (void)state;
    put(path, "old");
    put(aside, "not to be touched");
    faults_reset();
    assert_int_equal(symlink(aside, part), 0);
    assert_int_equal(write_new("new"), KN_EIO);
    assert_non_null(strstr(faults.line, path));
    assert_non_null(strstr(faults.line, "remove it"));
    holds(aside, "not to be touched");
    unlink(part);
    assert_int_equal(mkfifo(part, 0600), 0);
    assert_int_equal(write_new("new"), KN_EIO); /* and it does not wait for a reader */
    unlink(part);
    holds(path, "old");

    /* the part file is exchanged while it is written */
    assert_int_equal(kn_new_file_open(&f, path, 0644), 0);
    assert_int_equal(unlink(part), 0);
    put(part, "another's");
    assert_int_equal(kn_new_file_commit(&f), KN_EIO);
    kn_new_file_close(&f);
    holds(part, "another's");
    holds(path, "old");
    unlink(part);
    assert_true(faults_clean());
    faults_off();
}

/* Each call fails in turn: the path then names the old file or the new one, no part file is left, and messages have the
 * final name. */
static void any_call_may_fail(void **state)
{
    static const enum fault_kind kind[] = { FAULT_ALLOC, FAULT_OPEN, FAULT_SIZE,  FAULT_STAT,
                                            FAULT_WRITE, FAULT_SYNC, FAULT_RENAME };
    (void)state;
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        bool struck = true;
        for (long at = 1; struck; at++) {
            put(path, "old");
            put(part, "left");
            faults_at(kind[k], at, FAULT_ERROR, EIO);
            int error = write_new("new");
            struck = faults.struck;
            assert_true(faults_clean());
            if (error) {
                assert_int_equal(faults.n_line, 1);
                assert_int_equal(strncmp(strstr(faults.line, folder), path, strlen(path)), 0);
                assert_int_equal(strstr(faults.line, folder)[strlen(path)], ':');
            }
            faults_off();
            holds(path, error ? "old" : "new");
            if (is_there(part)) /* only where it could not be replaced */
                holds(part, "left");
            unlink(part);
        }
    }
}

static void after_a_power_cut_the_file_is_whole(void **state)
{
    (void)state;
    faults_listen();
    int n_old = 0, n_new = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        put(path, "old");
        power_on(folder, kn_mix(seed));
        power_cut_at((long)(seed % 8));
        int error = write_new("new");
        error = error || power.cut; /* a cut during the sync of the folder is no error */
        power_back();
        power_off();
        struct power_image have = power_read(path);
        bool is_new = have.n == 3 && !memcmp(have.data, "new", 3);
        assert_true(is_new || (error && have.n == 3 && !memcmp(have.data, "old", 3)));
        free(have.data);
        n_old += !is_new;
        n_new += is_new;
        unlink(part);
    }
    faults_listen_off();
    assert_true(n_old > 20 && n_new > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_left_part_file_is_replaced),
        cmocka_unit_test(a_second_writer_is_refused),
        cmocka_unit_test(what_is_in_the_way_stays),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(after_a_power_cut_the_file_is_whole),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
