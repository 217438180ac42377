/* Writing GGUF: the written file reads back equal, and an unfinished file never appears.
 *
 * One thread: not under MODE=tsan. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "moe/moe.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d))
        n++;
    closedir(d);
    return n - 2; /* . and .. */
}

static const uint64_t dims[3][3] = { { 5 }, { 64, 3 }, { 256, 2, 2 } };
static uint8_t payload[20 + 204 + 576];

/* Writes one file of three tensors, its bytes in pieces that ignore the tensors' borders. */
static int write_one(size_t piece)
{
    static const struct moe_string words[2] = { { "x", 1 }, { "", 0 } };
    static const int16_t shorts[3] = { -1, 0, 7 };
    struct moe_writer *w = NULL;
    uint32_t n = 42;
    int err = moe_writer_open(&w, path);
    if (!err)
        err = moe_writer_string(w, "general.architecture", "none", 4);
    if (!err)
        err = moe_writer_value(w, "n", MOE_U32, &n);
    if (!err)
        err = moe_writer_array(w, "words", MOE_STRING, words, 2);
    if (!err)
        err = moe_writer_array(w, "shorts", MOE_I16, shorts, 3);
    if (!err)
        err = moe_writer_tensor(w, "a", KN_F32, 1, dims[0]);
    if (!err)
        err = moe_writer_tensor(w, "b", KN_Q8_0, 2, dims[1]);
    if (!err)
        err = moe_writer_tensor(w, "c", KN_Q4_K, 3, dims[2]);
    if (!err)
        err = moe_writer_header(w);
    for (size_t at = 0, part; !err && at < sizeof payload; at += part) {
        part = sizeof payload - at < piece ? sizeof payload - at : piece;
        err = moe_writer_data(w, payload + at, part);
    }
    if (!err)
        err = moe_writer_finish(w);
    moe_writer_close(w);
    return err;
}

static void check_one(void)
{
    struct moe_file *f;
    int64_t n;
    faults_reset();
    assert_int_equal(moe_file_open(&f, path), 0);
    assert_int_equal(moe_file_int(f, "n", 0, 99, &n), 1);
    assert_int_equal(n, 42);
    const struct moe_string *words = moe_file_find(f, "words")->data;
    assert_true(moe_string_is(words[0], "x"));
    assert_int_equal(moe_value_int(moe_file_find(f, "shorts"), 0), -1);
    assert_int_equal(moe_value_int(moe_file_find(f, "shorts"), 2), 7);
    const uint8_t *want = payload;
    for (size_t i = 0; i < 3; i++) {
        uint8_t got[1024];
        const struct moe_tensor *t = moe_file_tensor(f, i);
        assert_int_equal(t->offset % 32, 0);
        assert_memory_equal(t->dim, dims[i], (size_t)t->n_dim * sizeof *t->dim);
        assert_int_equal(kn_file_read(moe_file_files(f)->fd[0], path, got, t->bytes, t->offset), 0);
        assert_memory_equal(got, want, t->bytes);
        want += t->bytes;
    }
    assert_ptr_equal(want, payload + sizeof payload);
    moe_file_close(f);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    static const size_t pieces[] = { 1, 7, 20, 224, sizeof payload };
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)kn_mix(i + 1);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        faults_reset();
        assert_int_equal(write_one(pieces[i]), 0);
        assert_int_equal(count_files(), 1);
        check_one();
    }
    remove(path);
    assert_true(faults_clean());
}

/* The n-th call fails, for all n: no file appears where none existed, and an existing file is
 * unchanged. */
static void whatever_fails_nothing_appears(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        int error;
    } ways[] = {
        { FAULT_ALLOC, ENOMEM }, { FAULT_OPEN, EIO },   { FAULT_WRITE, ENOSPC },
        { FAULT_SYNC, EIO },     { FAULT_RENAME, EIO },
    };
    for (int old = 0; old < 2; old++)
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            long n = 0, calls;
            do {
                remove(path);
                FILE *f = old ? fopen(path, "wb") : NULL;
                assert_true(!old || (fputs("GGUF, old", f) >= 0 && !fclose(f)));
                faults_at(ways[k].kind, ++n, FAULT_ERROR, ways[k].error);
                int err = write_one(100);
                calls = faults.calls[ways[k].kind];
                if (err) {
                    assert_int_equal(err, ways[k].kind == FAULT_ALLOC ? KN_ENOMEM : KN_EIO);
                    assert_int_equal(faults.n_line, 1);
                    assert_non_null(strstr(faults.line, "model.gguf"));
                    assert_int_equal(count_files(), old);
                }
                assert_true(faults_clean());
                if (!err)
                    check_one();
            } while (calls >= n); /* until there is no n-th call */
            assert_in_range(n, 2, 2000);
        }
    remove(path);
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const uint64_t wrong[][2] = {
        { 48, 1 }, { 0, 1 }, { 64, 0 }, { UINT64_C(1) << 32, 1 }, { 64, UINT64_C(1) << 62 }, { 64, UINT64_C(1) << 57 },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moe_writer *w;
        faults_reset();
        assert_int_equal(moe_writer_open(&w, path), 0);
        assert_int_equal(moe_writer_tensor(w, "t", KN_Q8_0, 2, wrong[i]), KN_EINVAL);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, "'t'"));
        moe_writer_close(w);
        assert_int_equal(count_files(), 0);
        assert_true(faults_clean());
    }
}

static void a_folder_is_no_target(void **state)
{
    (void)state;
    struct moe_writer *w = NULL;
    faults_reset();
    assert_int_equal(moe_writer_open(&w, folder), KN_EINVAL);
    assert_int_equal(faults.n_line, 1);
    assert_null(w);
    assert_true(faults_clean());
}

int main(void)
{
    faults.in_pieces = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_no_target),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(whatever_fails_nothing_appears),
        cmocka_unit_test(sizes_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
