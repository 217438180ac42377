/* Files and batches on disk: kept over a new start, left by a kill, limits, keys, and calls that fail.
 * One thread: not under MODE=tsan. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/store/store.h"
#include "tests/faults.h"
#include "tests/scratch.h"

#define MOST ((uint64_t)100000)

static char folder[256];

static int setup(void **state)
{
    (void)state;
    return scratch_make(folder, sizeof folder, "store") ? 0 : -1;
}

static int teardown(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static struct eng_store *open_store(void)
{
    struct eng_store *s = NULL;
    assert_int_equal(eng_store_open(&s, folder, MOST), 0);
    return s;
}

static int upload(struct eng_store *s, uint64_t key, const char *name, size_t n, char *id)
{
    struct eng_store_upload u;
    char piece[1000];
    int error = eng_store_upload_open(&u, s);
    memset(piece, 'x', sizeof piece);
    for (size_t at = 0; at < n && !error; at += sizeof piece)
        error = eng_store_upload_write(&u, piece, n - at < sizeof piece ? n - at : sizeof piece);
    u.record.key = key;
    snprintf(u.record.name, sizeof u.record.name, "%s", name);
    if (id)
        strcpy(id, u.record.id);
    if (!error)
        error = eng_store_upload_commit(&u);
    eng_store_upload_close(&u);
    return error;
}

/* The list of files (batches: false) of a key, as text. */
static char *list(struct eng_store *s, uint64_t key, const struct eng_store_page *page, bool files)
{
    struct eng_bytes out = { 0 };
    assert_int_equal(files ? eng_store_files_write(s, key, page, &out) : eng_store_batches_write(s, key, page, &out),
                     0);
    eng_bytes_add(&out, "", 1);
    assert_false(out.failed);
    return out.data;
}

static int count(struct eng_store *s, uint64_t key, bool files)
{
    char *text = list(s, key, &(struct eng_store_page){ .limit = 1000 }, files);
    int n = 0;
    for (const char *p = text; (p = strstr(p, files ? "\"object\":\"file\"" : "\"object\":\"batch\"")); p++)
        n++;
    kn_free(text);
    return n;
}

static void put(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(kn_file_save(path, 0600, text, strlen(text)), 0);
}

static bool is_there(const char *name, const char *end)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, end);
    return access(path, F_OK) == 0;
}

static void files_are_kept(void **state)
{
    (void)state;
    char a[ENG_STORE_ID_BYTES], b[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    struct eng_store *s = open_store(), *other;
    struct eng_store_file f;
    int fd;
    assert_int_equal(eng_store_open(&other, folder, MOST), KN_EINVAL); /* one server at a time */
    assert_int_equal(upload(s, 1, "../\"in\".jsonl", 2500, a), 0);
    assert_int_equal(upload(s, 2, "other", 10, b), 0);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(eng_store_file_get(s, 1, a, &f), 0);
        assert_true(f.bytes == 2500 && f.key == 1 && !f.is_output && !strcmp(f.name, "../\"in\".jsonl"));
        assert_int_equal(eng_store_file_get(s, 2, a, &f), KN_ENOENT);
        assert_int_equal(eng_store_file_get(s, 1, "file-../../x", &f), KN_ENOENT);
        assert_int_equal(eng_store_file_open(s, 2, a, &fd, &f), KN_ENOENT);
        assert_int_equal(eng_store_file_delete(s, 2, a, batch), KN_ENOENT);
        assert_true(count(s, 1, true) == 1 && count(s, 2, true) == 1 && count(s, 0, true) == 0);
        assert_int_equal(eng_store_used_bytes(s), 2510);
        eng_store_close(s);
        s = open_store();
    }
    assert_int_equal(eng_store_file_open(s, 1, a, &fd, &f), 0);
    assert_int_equal(eng_store_file_delete(s, 1, a, batch), 0);
    char text[3] = "";
    assert_true(pread(fd, text, 2, 2498) == 2 && !strcmp(text, "xx")); /* still readable */
    close(fd);
    assert_true(!is_there(a, "") && !is_there(a, ".json") && count(s, 1, true) == 0);
    assert_int_equal(eng_store_used_bytes(s), 10);
    assert_int_equal(eng_store_file_delete(s, 2, b, batch), 0);
    eng_store_close(s);
}

static void lists_have_pages(void **state)
{
    (void)state;
    char id[5][ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES], want[200];
    struct eng_store *s = open_store();
    for (int i = 0; i < 5; i++)
        assert_int_equal(upload(s, i == 2 ? 8 : 7, "f", 1, id[i]), 0);
    struct eng_store_page page = { .limit = 2 };
    char *text = list(s, 7, &page, true);
    snprintf(want, sizeof want, "],\"first_id\":\"%s\",\"last_id\":\"%s\",\"has_more\":true}", id[4], id[3]);
    assert_non_null(strstr(text, want));
    kn_free(text);
    page.after = id[3];
    text = list(s, 7, &page, true);
    snprintf(want, sizeof want, "],\"first_id\":\"%s\",\"last_id\":\"%s\",\"has_more\":false}", id[1], id[0]);
    assert_non_null(strstr(text, want));
    kn_free(text);
    page = (struct eng_store_page){ .limit = 9, .ascending = true, .after = id[0], .purpose = "batch" };
    text = list(s, 7, &page, true);
    snprintf(want, sizeof want, "],\"first_id\":\"%s\",\"last_id\":\"%s\",\"has_more\":false}", id[1], id[4]);
    assert_non_null(strstr(text, want));
    kn_free(text);
    page.purpose = "batch_output";
    text = list(s, 7, &page, true);
    assert_non_null(strstr(text, "\"data\":[],\"first_id\":null,\"last_id\":null,\"has_more\":false}"));
    kn_free(text);
    page.after = id[2]; /* another key's */
    assert_int_equal(eng_store_files_write(s, 7, &page, &(struct eng_bytes){ 0 }), KN_ENOENT);
    for (int i = 0; i < 5; i++)
        assert_int_equal(eng_store_file_delete(s, i == 2 ? 8 : 7, id[i], batch), 0);
    eng_store_close(s);
}

static void bytes_have_a_limit(void **state)
{
    (void)state;
    char id[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    struct eng_store *s = open_store();
    assert_int_equal(upload(s, 1, "a", MOST + 1, NULL), KN_ELIMIT);
    assert_int_equal(eng_store_used_bytes(s), 0); /* its bytes were removed */
    assert_true(eng_store_has_room(s));
    assert_int_equal(upload(s, 1, "a", MOST, id), 0);
    assert_false(eng_store_has_room(s));
    assert_int_equal(upload(s, 1, "a", 1, NULL), KN_ELIMIT);
    assert_int_equal(eng_store_file_delete(s, 1, id, batch), 0);
    assert_int_equal(upload(s, 1, "a", 1, id), 0);
    assert_int_equal(eng_store_file_delete(s, 1, id, batch), 0);
    eng_store_close(s);
}

static void files_expire(void **state)
{
    (void)state;
    struct eng_store_upload u;
    struct eng_store *s = open_store();
    assert_int_equal(eng_store_upload_open(&u, s), 0);
    u.record.expires_s = 1000;
    strcpy(u.record.name, "a");
    assert_int_equal(eng_store_upload_commit(&u), 0);
    eng_store_upload_close(&u);
    eng_store_close(s);
    s = open_store();
    eng_store_remove_expired(s, 999);
    assert_int_equal(count(s, 0, true), 1);
    eng_store_remove_expired(s, 1000);
    assert_int_equal(count(s, 0, true), 0);
    eng_store_close(s);
}

#define DIGITS "0123456789abcdef01234567"

/* The remains of an unfinished upload are removed; other files in the folder are not touched. */
static void leavings_are_removed(void **state)
{
    (void)state;
    put("file-" DIGITS, "bytes without a record");
    put("file-" DIGITS ".spillway.part", "half");
    put("batch_" DIGITS ".json.spillway.part", "half");
    put("notes.txt", "mine");
    put("file-short", "mine");
    struct eng_store *s = open_store();
    assert_true(!is_there("file-" DIGITS, "") && !is_there("file-" DIGITS, ".spillway.part"));
    assert_false(is_there("batch_" DIGITS ".json", ".spillway.part"));
    assert_true(is_there("notes.txt", "") && is_there("file-short", ""));
    eng_store_close(s);
}

/* A record that cannot be read is reported, and nothing is removed then: the bytes may be those of the record. */
static void unreadable_records_stay(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "{", "[]", "{\"id\":\"file-" DIGITS "\"}" };
    faults.most = KN_LOG_WARN;
    faults_listen();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("file-" DIGITS ".json", bad[i]);
        put("file-f23456789abcdef012345678", "bytes of some file");
        struct eng_store *s = open_store();
        assert_non_null(strstr(faults.last, "not a record that can be read"));
        assert_int_equal(count(s, 0, true), 0);
        assert_true(is_there("file-" DIGITS, ".json") && is_there("file-f23456789abcdef012345678", ""));
        eng_store_close(s);
    }
    faults_listen_off();
    char path[400];
    snprintf(path, sizeof path, "%s/file-" DIGITS ".json", folder);
    unlink(path);
    eng_store_close(open_store());
    assert_false(is_there("file-f23456789abcdef012345678", ""));
}

static void make_output(const struct eng_store *s, const char *id, const char *text)
{
    char path[ENG_PATH_BYTES];
    eng_store_path(s, id, path);
    assert_int_equal(kn_file_save(path, 0600, text, strlen(text)), 0);
}

static struct eng_store_batch create(struct eng_store *s, const char *input)
{
    struct eng_store_batch b = { .key = 1, .endpoint = "/v1/completions", .window = "24h" };
    char metadata[] = "{\"a\":\"b\"}";
    strcpy(b.input, input);
    b.metadata = metadata;
    assert_int_equal(eng_store_batch_create(s, &b, 1000, 500), 0);
    b.metadata = NULL;
    return b;
}

static void assert_batch(struct eng_store *s, const char *id, const char *has)
{
    struct eng_bytes out = { 0 };
    assert_int_equal(eng_store_batch_write(s, 1, id, &out), 0);
    eng_bytes_add(&out, "", 1);
    if (!strstr(out.data, has))
        fail_msg("%s has no %s", out.data, has);
    eng_bytes_free(&out);
}

static void batches_go_through_their_states(void **state)
{
    (void)state;
    char input[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    struct eng_store *s = open_store();
    struct eng_store_batch got, b = { .key = 1 };
    assert_int_equal(upload(s, 1, "in", 10, input), 0);
    assert_int_equal(eng_store_batch_create(s, &b, 0, 1), KN_ENOENT);
    strcpy(b.input, input);
    b.key = 2;
    assert_int_equal(eng_store_batch_create(s, &b, 0, 1), KN_ENOENT); /* another key's file */
    b = create(s, input);
    assert_int_equal(eng_store_batch_write(s, 2, b.id, NULL), KN_ENOENT);
    assert_int_equal(eng_store_batch_cancel(s, 2, b.id, 1, NULL), KN_ENOENT);
    assert_true(count(s, 1, false) == 1 && count(s, 2, false) == 0);
    assert_batch(s, b.id, "\"status\":\"validating\",\"output_file_id\":null");
    assert_int_equal(eng_store_batch_enter(s, b.id, ENG_BATCH_IN_PROGRESS, 1001), 0);
    assert_int_equal(eng_store_file_delete(s, 1, input, batch), KN_EINVAL); /* the batch reads it */
    assert_string_equal(batch, b.id);
    make_output(s, b.output, "an answer\n");
    make_output(s, b.errors, "");
    for (int again = 0; again < 2; again++) { /* an output that grows is no leaving */
        eng_store_close(s);
        s = open_store();
        assert_true(is_there(b.output, "") && is_there(b.errors, ""));
        assert_true(eng_store_batch_next(s, "", &got) && !strcmp(got.id, b.id) && got.expires_s == 1500);
        assert_true(got.at_s[ENG_BATCH_IN_PROGRESS] == 1001 && !eng_store_batch_next(s, b.id, &got));
        assert_int_equal(eng_store_used_bytes(s), 20);
    }
    got.total = 5;
    got.completed = 1;
    got.output_bytes = 10;
    eng_store_batch_tell(s, &got);
    assert_int_equal(eng_store_used_bytes(s), 20);
    assert_int_equal(eng_store_batch_enter(s, b.id, ENG_BATCH_FINALIZING, 1002), 0);
    assert_int_equal(eng_store_batch_cancel(s, 1, b.id, 1003, NULL), KN_EINVAL);
    assert_int_equal(eng_store_batch_end(s, b.id, ENG_BATCH_COMPLETED, 1003), 0);
    for (int again = 0; again < 2; again++) {
        assert_batch(s, b.id, "\"total\":5,\"completed\":1,\"failed\":0},\"metadata\":{\"a\":\"b\"}}");
        assert_batch(s, b.id, "\"error_file_id\":null");
        assert_batch(s, b.id, b.output);
        assert_true(count(s, 1, true) == 2 && !is_there(b.errors, "") && !eng_store_batch_next(s, "", &got));
        assert_int_equal(eng_store_used_bytes(s), 20);
        eng_store_close(s);
        s = open_store();
    }
    assert_int_equal(eng_store_file_delete(s, 1, input, batch), 0);
    assert_int_equal(eng_store_file_delete(s, 1, b.output, batch), 0);
    eng_store_close(s);
}

static void batches_are_cancelled(void **state)
{
    (void)state;
    char input[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    struct eng_store *s = open_store();
    struct eng_store_batch got;
    assert_int_equal(upload(s, 1, "in", 10, input), 0);
    struct eng_store_batch b = create(s, input), c = create(s, input);
    assert_true(strcmp(b.id, c.id) < 0);
    assert_int_equal(eng_store_batch_cancel(s, 1, b.id, 1001, NULL), 0);
    assert_int_equal(eng_store_batch_cancel(s, 1, b.id, 1002, NULL), 0); /* again: no change */
    assert_int_equal(eng_store_batch_enter(s, b.id, ENG_BATCH_IN_PROGRESS, 1003), KN_ECANCELLED);
    eng_store_close(s);
    s = open_store();
    assert_true(eng_store_batch_get(s, b.id, &got) && got.state == ENG_BATCH_CANCELLING);
    assert_int_equal(got.at_s[ENG_BATCH_CANCELLING], 1001);
    assert_int_equal(eng_store_batch_end(s, b.id, ENG_BATCH_CANCELLED, 1004), 0);
    assert_batch(s, b.id, "\"cancelled_at\":1004");
    assert_int_equal(eng_store_batch_cancel(s, 1, b.id, 1005, NULL), KN_EINVAL);
    assert_true(eng_store_batch_next(s, "", &got) && !strcmp(got.id, c.id));
    assert_int_equal(eng_store_batch_end(s, c.id, ENG_BATCH_FAILED, 1004), 0);
    assert_int_equal(eng_store_file_delete(s, 1, input, batch), 0);
    eng_store_close(s);
}

/* The oldest batch that has ended makes room for a new one. */
static void batches_have_a_limit(void **state)
{
    (void)state;
    static char id[ENG_STORE_BATCHES][ENG_STORE_ID_BYTES];
    char input[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    struct eng_store *s = open_store();
    struct eng_store_batch b, got;
    assert_int_equal(upload(s, 1, "in", 10, input), 0);
    while (eng_store_batch_next(s, "", &got)) /* none of the tests before is left unfinished */
        fail();
    for (int i = 0; i < ENG_STORE_BATCHES; i++)
        strcpy(id[i], create(s, input).id);
    b = (struct eng_store_batch){ .key = 1, .endpoint = "/v1/completions", .window = "24h" };
    strcpy(b.input, input);
    assert_int_equal(eng_store_batch_create(s, &b, 1, 1), KN_ELIMIT);
    assert_int_equal(eng_store_batch_end(s, id[5], ENG_BATCH_FAILED, 1), 0);
    assert_int_equal(eng_store_batch_create(s, &b, 1, 1), 0);
    assert_false(eng_store_batch_get(s, id[5], &got));
    assert_true(eng_store_batch_get(s, id[4], &got) && !is_there(id[5], ".json") && is_there(b.id, ".json"));
    while (eng_store_batch_next(s, "", &got))
        assert_int_equal(eng_store_batch_end(s, got.id, ENG_BATCH_FAILED, 1), 0);
    assert_int_equal(eng_store_file_delete(s, 1, input, batch), 0);
    eng_store_close(s);
}

/* Each call of the system fails once: then the upload and the batch are whole, or not there, also after a new start. */
static void any_call_may_fail(void **state)
{
    (void)state;
    static const enum fault_kind kinds[] = { FAULT_OPEN, FAULT_WRITE, FAULT_SYNC, FAULT_RENAME, FAULT_ALLOC };
    char first[ENG_STORE_ID_BYTES], id[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    struct eng_store *s = open_store();
    assert_int_equal(upload(s, 1, "in", 10, first), 0);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bool struck = true;
        for (long at = 1; struck; at++) {
            struct eng_store_batch b = { .key = 1, .endpoint = "/v1/completions", .window = "24h" };
            strcpy(b.input, first);
            faults_at(kinds[k], at, FAULT_ERROR, ENOSPC);
            int error = upload(s, 1, "in", 1500, id);
            int also = eng_store_batch_create(s, &b, 1000, 500);
            struck = faults.struck;
            faults_off();
            for (int again = 0; again < 2; again++) {
                struct eng_store_file f;
                struct eng_store_batch got;
                assert_int_equal(eng_store_file_get(s, 1, id, &f), error ? KN_ENOENT : 0);
                assert_true(is_there(id, "") == !error && is_there(id, ".json") == !error);
                assert_int_equal(eng_store_batch_next(s, "", &got), !also);
                assert_int_equal(eng_store_used_bytes(s), error ? 10 : 1510);
                eng_store_close(s);
                s = open_store();
            }
            if (!also)
                assert_int_equal(eng_store_batch_end(s, b.id, ENG_BATCH_FAILED, 1), 0);
            if (!error)
                assert_int_equal(eng_store_file_delete(s, 1, id, batch), 0);
        }
    }
    assert_int_equal(eng_store_file_delete(s, 1, first, batch), 0);
    eng_store_close(s);
}

static void a_folder_that_cannot_be_used(void **state)
{
    (void)state;
    struct eng_store *s = NULL;
    char path[400];
    faults.most = KN_LOG_ERROR;
    faults_listen();
    put("plain", "x");
    snprintf(path, sizeof path, "%s/plain", folder);
    assert_true(eng_store_open(&s, path, MOST) < 0);
    assert_non_null(strstr(faults.last, "--files needs a folder"));
    assert_true(eng_store_open(&s, "/proc/nowhere", MOST) < 0);
    assert_non_null(strstr(faults.last, "--files needs a folder"));
    assert_null(s);
    faults_listen_off();
    snprintf(path, sizeof path, "%s/new", folder);
    assert_int_equal(eng_store_open(&s, path, MOST), 0); /* made if it is not there */
    eng_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_kept),
        cmocka_unit_test(lists_have_pages),
        cmocka_unit_test(bytes_have_a_limit),
        cmocka_unit_test(files_expire),
        cmocka_unit_test(leavings_are_removed),
        cmocka_unit_test(unreadable_records_stay),
        cmocka_unit_test(batches_go_through_their_states),
        cmocka_unit_test(batches_are_cancelled),
        cmocka_unit_test(batches_have_a_limit),
        cmocka_unit_test(any_call_may_fail),
        cmocka_unit_test(a_folder_that_cannot_be_used),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
