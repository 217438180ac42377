/* The files of a batch, without a model: lines of the input, ids that were met before, records of the output, and the
 * journal. The two output files hold whole lines after any failure and after a cut at any byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/batch/batch.h"
#include "tests/faults.h"
#include "tests/scratch.h"

static char folder[64], in[96], out[96], errors[96];

static int set_up(void **state)
{
    (void)state;
    if (!scratch_make(folder, sizeof folder, "batch"))
        return -1;
    snprintf(in, sizeof in, "%s/in", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void put(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static char got[1 << 16];

static size_t get(const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    got[n] = 0;
    fclose(f);
    return n;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static int open_lines(struct eng_lines *l, const char *text, size_t n)
{
    put(in, text, n);
    int fd = open(in, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(eng_lines_open(l, fd, in, n), 0);
    return fd;
}

static void close_lines(struct eng_lines *l)
{
    eng_lines_close(l);
    close(l->fd);
    unlink(in);
}

static void lines_are_numbered_and_placed(void **state)
{
    static const char text[] = "\xef\xbb\xbf"
                               "one\r\n \t\n\r\n  two\nthree";
    static const struct {
        const char *text;
        uint64_t number, offset;
        bool torn;
    } want[] = { { "one", 1, 0, false }, { "  two", 4, 13, false }, { "three", 5, 19, true } };
    struct eng_lines l;
    struct eng_line line;
    (void)state;
    for (int way = 0; way < 2; way++) {
        faults_reset();
        if (way)
            faults_at(FAULT_READ, 1, FAULT_SHORT, 0);
        open_lines(&l, text, sizeof text - 1);
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
            assert_int_equal(eng_lines_next(&l, &line), 1);
            assert_int_equal(line.n, strlen(want[i].text));
            assert_memory_equal(line.text, want[i].text, line.n);
            assert_int_equal(line.number, want[i].number);
            assert_int_equal(line.offset, want[i].offset);
            assert_int_equal(line.torn, want[i].torn);
            assert_false(line.too_long);
        }
        assert_int_equal(eng_lines_next(&l, &line), 0);
        close_lines(&l);
        assert_true(faults_clean());
    }
    faults_off();
}

/* Lines of lengths around the read size. */
static void lines_of_any_length_come_whole(void **state)
{
    static char text[600000];
    size_t at[16], length[16] = { 1, 65535, 65536, 65537, 5, 131071, 131072, 100000, 2 }, n = 0;
    struct eng_lines l;
    struct eng_line line;
    (void)state;
    for (int i = 0; length[i]; i++) {
        at[i] = n;
        for (size_t k = 0; k < length[i]; k++)
            text[n++] = (char)('a' + (i + (int)k) % 26);
        text[n++] = '\n';
    }
    open_lines(&l, text, n);
    for (int i = 0; length[i]; i++) {
        assert_int_equal(eng_lines_next(&l, &line), 1);
        assert_int_equal(line.n, length[i]);
        assert_int_equal(line.offset, at[i]);
        assert_memory_equal(line.text, text + at[i], line.n);
    }
    assert_int_equal(eng_lines_next(&l, &line), 0);
    close_lines(&l);
}

static void a_line_that_is_too_long_is_passed_over(void **state)
{
    size_t n = ENG_LINE_MOST + 300000;
    char *text = malloc(n + 8);
    struct eng_lines l;
    struct eng_line line;
    (void)state;
    memset(text, 'x', n);
    memcpy(text, "begin", 5);
    memcpy(text + n, "\nafter\n", 7);
    open_lines(&l, text, n + 7);
    assert_int_equal(eng_lines_next(&l, &line), 1);
    assert_true(line.too_long);
    assert_memory_equal(line.text, "begin", 5);
    assert_true(line.n < 1 << 20 && l.room <= 2 * ENG_LINE_MOST);
    assert_int_equal(eng_lines_next(&l, &line), 1);
    assert_int_equal(line.n, 5);
    assert_memory_equal(line.text, "after", 5);
    assert_int_equal(line.number, 2);
    assert_false(line.too_long);
    close_lines(&l);
    free(text);
}

/* ---- ids --------------------------------------------------------------------------------------- */

static void names_are_met_once(void **state)
{
    enum { N = 50000 };
    struct eng_seen s;
    char name[32];
    (void)state;
    assert_int_equal(eng_seen_open(&s, N), 0);
    for (int i = 0; i < N; i += 2)
        eng_seen_done(&s, name, (size_t)snprintf(name, sizeof name, "request-%d", i));
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)snprintf(name, sizeof name, "request-%d", i);
        assert_int_equal(eng_seen_meet(&s, name, n), i % 2 ? ENG_MET_NEW : ENG_MET_DONE);
        assert_int_equal(eng_seen_meet(&s, name, n), ENG_MET_TWICE);
    }
    assert_int_equal(s.n, N);
    assert_true(eng_seen_bytes(N) <= N * 48);
    eng_seen_close(&s);

    /* prefixes of the same bytes are different ids */
    assert_int_equal(eng_seen_open(&s, 8), 0);
    assert_int_equal(eng_seen_meet(&s, "a\0\0", 1), ENG_MET_NEW);
    assert_int_equal(eng_seen_meet(&s, "a\0\0", 2), ENG_MET_NEW);
    assert_int_equal(eng_seen_meet(&s, "a\0\0", 3), ENG_MET_NEW);
    eng_seen_close(&s);
}

/* ---- records ----------------------------------------------------------------------------------- */

static const struct {
    const char *line, *code, *id;
} bad[] = {
    { "{\"custom_id\":\"a\",", "invalid_json_line", NULL },
    { "[1]", "invalid_json_line", NULL },
    { "\xff", "invalid_json_line", NULL },
    { "{\"custom_id\":\"a\",\"custom_id\":\"b\"}", "invalid_json_line", NULL },
    { "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", "missing_custom_id", NULL },
    { "{\"custom_id\":7,\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_custom_id", NULL },
    { "{\"custom_id\":\"\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_custom_id", NULL },
    { "{\"custom_id\":\"a\\u0000\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_custom_id",
      NULL },
    { "{\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_method", "a" },
    { "{\"custom_id\":\"a\",\"method\":\"GET\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_method", "a" },
    { "{\"custom_id\":\"a\",\"method\":\"POST\",\"body\":{}}", "invalid_url", "a" },
    { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{}}", "invalid_url", "a" },
    { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\"}", "invalid_body", "a" },
    { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":\"{}\"}", "invalid_body", "a" },
};

static struct eng_line line_of(const char *text, size_t n)
{
    return (struct eng_line){ .text = text, .n = n, .number = 3, .bytes = n };
}

static void what_is_no_request_is_told_so(void **state)
{
    struct eng_record r;
    struct eng_fault why;
    char name[ENG_CUSTOM_ID_MOST], number[ENG_CUSTOM_ID_MOST];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct eng_line line = line_of(bad[i].line, strlen(bad[i].line));
        struct eng_bytes record = { 0 };
        assert_int_equal(eng_record_parse(&r, &line, &why), KN_EINVAL);
        assert_string_equal(why.code, bad[i].code);
        assert_true(why.message[0] != 0);
        if (bad[i].id)
            assert_string_equal(r.custom_id, bad[i].id);
        else
            assert_null(r.custom_id);
        eng_record_write_fault(&record, &r, 3, &why);
        assert_false(record.failed);
        assert_int_equal(record.data[record.n - 1], '\n');
        json_t *told = json_loadb(record.data, record.n, 0, NULL);
        const json_t *error = json_object_get(told, "error");
        assert_string_equal(json_string_value(json_object_get(error, "code")), bad[i].code);
        assert_int_equal(json_integer_value(json_object_get(error, "line")), 3);
        assert_true(json_is_null(json_object_get(told, "response")));
        json_decref(told);
        struct eng_line back = line_of(record.data, record.n - 1);
        size_t n = eng_record_read(&back, name);
        assert_int_equal(n, eng_record_number_name(3, number));
        assert_memory_equal(name, number, n);
        eng_record_close(&r);
        eng_bytes_free(&record);
    }
    struct eng_line line = line_of("{", 1);
    line.too_long = true;
    assert_int_equal(eng_record_parse(&r, &line, &why), KN_EINVAL);
    assert_string_equal(why.code, "line_too_long");
    eng_record_close(&r);
}

static const char *const ids[] = {
    "a", "request-1", "with \"quotes\" and \\ and \n", "\xc3\xa9t\xc3\xa9 \xf0\x9f\x8c\x8a", "null", "\",\"response\":{"
};

static void an_answer_names_its_request(void **state)
{
    char name[ENG_CUSTOM_ID_MOST];
    (void)state;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        struct eng_bytes record = { 0 };
        struct eng_record r;
        struct eng_fault why;
        json_t *request = json_pack("{s:s, s:s, s:s, s:{s:i}}", "custom_id", ids[i], "method", "POST", "url",
                                    "/v1/chat/completions", "body", "n", 1);
        char *text = json_dumps(request, 0);
        struct eng_line line = line_of(text, strlen(text));
        assert_int_equal(eng_record_parse(&r, &line, &why), 0);
        assert_int_equal(r.api, ENG_API_CHAT);
        assert_int_equal(json_integer_value(json_object_get(r.body, "n")), 1);
        eng_record_write(&record, r.custom_id, r.n_custom_id, 200, "{\"x\":[1]}\n", 10);
        assert_false(record.failed);
        assert_ptr_equal(memchr(record.data, '\n', record.n), record.data + record.n - 1);
        json_t *told = json_loadb(record.data, record.n, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(told, "custom_id")), ids[i]);
        const json_t *response = json_object_get(told, "response");
        assert_int_equal(json_integer_value(json_object_get(response, "status_code")), 200);
        assert_non_null(json_object_get(json_object_get(response, "body"), "x"));
        json_decref(told);
        for (int cut = 0; cut < 2; cut++) { /* of a long record only the beginning is read */
            struct eng_line back = line_of(record.data, cut ? record.n - 20 : record.n - 1);
            back.too_long = cut;
            assert_int_equal(eng_record_read(&back, name), strlen(ids[i]));
            assert_memory_equal(name, ids[i], strlen(ids[i]));
        }
        for (size_t n = 0; n < 40; n++) { /* a record cut within its id is no record */
            struct eng_line back = line_of(record.data, n);
            assert_int_equal(eng_record_read(&back, name), 0);
        }
        eng_record_close(&r);
        json_decref(request);
        free(text);
        eng_bytes_free(&record);
    }
    assert_true(eng_record_hash("a", 1) != eng_record_hash("b", 1));
    assert_true(eng_record_hash("request-1", 9) == UINT64_C(0x407dd52b1fb2666b)); /* existing outputs rely on it */
}

/* ---- the journal ------------------------------------------------------------------------------- */

enum { N_RECORD = 4 };
static char record_text[N_RECORD][256];

static struct eng_bytes make_record(int i)
{
    struct eng_bytes b = { 0 };
    char id[16];
    size_t n = (size_t)snprintf(id, sizeof id, "id-%d", i);
    eng_record_write(&b, id, n, 200, "{\"text\":\"\xc3\xa9\"}", 13);
    snprintf(record_text[i], sizeof record_text[i], "%.*s", (int)b.n, b.data);
    return b;
}

static int add(struct eng_journal *j, enum eng_outlet which, int i)
{
    struct eng_bytes b = make_record(i);
    int status = eng_journal_add(j, which, &b);
    eng_bytes_free(&b);
    return status;
}

static int open_journal(struct eng_journal *j, struct eng_seen *seen)
{
    int error = eng_journal_open(j, out, errors);
    for (int i = 0; i < ENG_OUTLETS && !error; i++)
        if (!(error = eng_journal_count(j, (enum eng_outlet)i)))
            error = eng_journal_read(j, (enum eng_outlet)i, seen);
    return error ? error : eng_journal_start(j, 1000000000);
}

static bool is_done(struct eng_seen *seen, int i)
{
    char id[16];
    return eng_seen_meet(seen, id, (size_t)snprintf(id, sizeof id, "id-%d", i)) != ENG_MET_NEW;
}

/* The file holds exactly the records 0 .. n-1. */
static void assert_records(const char *path, int n)
{
    size_t bytes = get(path), at = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(strncmp(got + at, record_text[i], strlen(record_text[i])), 0);
        at += strlen(record_text[i]);
    }
    assert_int_equal(at, bytes);
}

static void forget_files(void)
{
    unlink(out);
    unlink(errors);
}

static void a_file_cut_anywhere_goes_on(void **state)
{
    char whole[1024] = "";
    struct eng_journal j;
    struct eng_seen seen;
    (void)state;
    for (int i = 0; i < N_RECORD; i++) {
        struct eng_bytes b = make_record(i);
        eng_bytes_free(&b);
        strcat(whole, record_text[i]);
    }
    for (size_t cut = 0; cut <= strlen(whole); cut++) {
        int before = 0;
        faults_reset();
        put(out, whole, cut);
        for (size_t i = 0; i < cut; i++)
            before += whole[i] == '\n';
        assert_int_equal(eng_seen_open(&seen, 2 * N_RECORD), 0);
        assert_int_equal(open_journal(&j, &seen), 0);
        assert_int_equal(j.file[0].n_line, before);
        for (int i = 0; i < N_RECORD; i++) {
            bool done = is_done(&seen, i);
            assert_int_equal(done, i < before);
            if (!done)
                assert_int_equal(add(&j, ENG_OUTLET_ANSWERS, i), 0);
        }
        assert_int_equal(eng_journal_close(&j), 0);
        assert_int_equal(eng_journal_close(&j), 0);
        eng_seen_close(&seen);
        assert_true(faults_clean());
        assert_records(out, N_RECORD);
    }
    faults_off();
    forget_files();
}

static void zeros_of_a_power_cut_are_cut_off(void **state)
{
    char text[600] = { 0 };
    struct eng_journal j;
    struct eng_seen seen;
    (void)state;
    struct eng_bytes b = make_record(0);
    memcpy(text, b.data, b.n);
    text[b.n + 100] = '\n';
    put(out, text, sizeof text);
    eng_bytes_free(&b);
    assert_int_equal(eng_seen_open(&seen, 2 * N_RECORD), 0);
    assert_int_equal(open_journal(&j, &seen), 0);
    assert_int_equal(eng_journal_close(&j), 0);
    assert_true(is_done(&seen, 0));
    assert_records(out, 1);
    eng_seen_close(&seen);
    forget_files();
}

static void refuses(const char *answers, const char *other, const char *told)
{
    struct eng_journal j;
    struct eng_seen seen;
    faults_reset();
    assert_int_equal(eng_seen_open(&seen, 64), 0);
    int error = eng_journal_open(&j, answers, other);
    for (int i = 0; i < ENG_OUTLETS && !error; i++)
        if (!(error = eng_journal_count(&j, (enum eng_outlet)i)))
            error = eng_journal_read(&j, (enum eng_outlet)i, &seen);
    assert_int_equal(error, KN_EINVAL);
    assert_int_equal(faults.n_line, 1);
    if (!strstr(faults.line, told))
        fail_msg("told: %s", faults.line);
    eng_journal_close(&j);
    eng_seen_close(&seen);
    assert_true(faults_clean());
    faults_off();
}

static void others_and_other_files_are_refused(void **state)
{
    struct eng_journal j;
    (void)state;
    assert_int_equal(eng_journal_open(&j, out, errors), 0);
    refuses(out, errors, "another batch is writing it");
    assert_int_equal(eng_journal_close(&j), 0);
    refuses(out, out, "cannot go to one file");
    refuses(folder, errors, "it is a folder");
    put(out, "my notes\n", 9);
    refuses(out, errors, ":1: not a line of a batch's output");
    assert_int_equal(get(out), 9);
    put(out, "{\"custom_id\":\"a\"}\n{\"tor", 23);
    refuses(out, errors, ":1: not a line of a batch's output");
    assert_int_equal(get(out), 23); /* a file with foreign lines is not cut */
    put(out, "no line's end", 13);
    refuses(out, errors, ":1: not a line of a batch's output");
    assert_int_equal(get(out), 13);
    put(out, "\0\0GGUF", 6);
    refuses(out, errors, ":1: not a line of a batch's output");
    assert_int_equal(get(out), 6);
    struct eng_bytes b = make_record(0);
    size_t n = b.n;
    eng_bytes_text(&b, "another's\n{\"tor");
    put(out, b.data, b.n);
    refuses(out, errors, ":2: not a line of a batch's output");
    assert_int_equal(get(out), b.n);
    put(out, b.data, n);
    put(errors, "my notes", 8);
    assert_int_equal(eng_journal_open(&j, out, errors), KN_EINVAL); /* refused; the file is not emptied */
    assert_int_equal(eng_journal_close(&j), 0);
    assert_int_equal(get(errors), 8);
    eng_bytes_free(&b);
    forget_files();
}

/* Damage before the last whole line is refused with the lines' numbers, and nothing is cut. */
static void damage_inside_is_refused_by_number(void **state)
{
    static char whole[1024], text[1024];
    size_t from[N_RECORD + 1] = { 0 };
    (void)state;
    whole[0] = 0;
    for (int i = 0; i < N_RECORD; i++) {
        struct eng_bytes b = make_record(i);
        eng_bytes_free(&b);
        strcat(whole, record_text[i]);
        from[i + 1] = strlen(whole);
    }
    for (size_t at = 0; at < from[N_RECORD] - 1; at++) {
        char told[64];
        int line = 0;
        while (from[line + 1] <= at)
            line++;
        if (at == 0) /* then the file does not begin like an output */
            continue;
        memcpy(text, whole, sizeof text);
        text[at] ^= 1;
        put(out, text, from[N_RECORD]);
        snprintf(told, sizeof told, ":%d: not a line of a batch's output", line + 1);
        refuses(out, errors, told);
        assert_int_equal(get(out), from[N_RECORD]);
    }
    memcpy(text, whole, sizeof text); /* two holes of zeros, of which one joins two lines */
    memset(text + from[0] + 30, 0, 20);
    memset(text + from[2] - 10, 0, 20);
    put(out, text, from[N_RECORD]);
    refuses(out, errors, "(2 such lines): remove them with sed -i '1d;2d' and ");
    memset(text, 0, 40); /* at the beginning */
    put(out, text, from[N_RECORD]);
    refuses(out, errors, ":1: not a line of a batch's output");
    forget_files();
}

/* Lines without a checksum, of earlier versions. */
static void lines_without_a_checksum_count(void **state)
{
    static const char old[] = "{\"id\":\"batch_req_0123456789abcdef\",\"custom_id\":\"id-0\",\"response\":"
                              "{\"status_code\":200,\"request_id\":\"0\",\"body\":{}},\"error\":null}\n"
                              "{\"id\":\"batch_req_0123456789abcdef\",\"custom_id\":null,\"response\":null,"
                              "\"error\":{\"code\":\"c\",\"message\":\"m\",\"line\":7}}\n";
    struct eng_journal j;
    struct eng_seen seen;
    char number[16];
    (void)state;
    put(out, old, sizeof old - 1);
    assert_int_equal(eng_seen_open(&seen, 8), 0);
    assert_int_equal(open_journal(&j, &seen), 0);
    assert_int_equal(j.file[0].n_line, 2);
    assert_int_equal(eng_journal_close(&j), 0);
    assert_true(is_done(&seen, 0));
    assert_int_equal(eng_seen_meet(&seen, number, eng_record_number_name(7, number)), ENG_MET_DONE);
    eng_seen_close(&seen);
    forget_files();
}

/* A line that is longer than the reader keeps in memory is checked too. */
static void long_lines_are_checked(void **state)
{
    size_t n = ENG_LINE_MOST + 100000;
    char *body = malloc(n);
    struct eng_bytes b = { 0 };
    (void)state;
    assert_int_equal(eng_crc32(0, "123456789", 9), 0xCBF43926);
    assert_int_equal(eng_crc32(eng_crc32(0, "1234", 4), "56789", 5), 0xCBF43926);
    memset(body, 'x', n);
    body[0] = body[n - 1] = '"';
    eng_record_write(&b, "id-0", 4, 200, body, n);
    free(body);
    eng_record_write(&b, "id-1", 4, 200, "1", 1);
    for (int damaged = 0; damaged < 2; damaged++) {
        struct eng_journal j;
        b.data[n / 2] ^= damaged;
        put(out, b.data, b.n);
        if (damaged) {
            refuses(out, errors, ":1: not a line of a batch's output");
        } else {
            assert_int_equal(eng_journal_open(&j, out, errors), 0);
            assert_int_equal(eng_journal_count(&j, ENG_OUTLET_ANSWERS), 0);
            assert_int_equal(j.file[0].n_line, 2);
            assert_int_equal(eng_journal_close(&j), 0);
        }
    }
    eng_bytes_free(&b);
    forget_files();
}

/* A failed write is logged once, and the file is cut back to whole records. The first two syncs are at the opening: of the
 * folder, and of the records that are there. */
static void a_disk_that_fails_leaves_whole_lines(void **state)
{
    static const enum fault_kind kind[] = { FAULT_WRITE, FAULT_SYNC };
    struct eng_journal j;
    struct eng_seen seen;
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int lasts = 0; lasts < 2; lasts++) {
            assert_int_equal(eng_seen_open(&seen, 2 * N_RECORD), 0);
            faults_reset();
            assert_int_equal(open_journal(&j, &seen), 0);
            assert_int_equal(add(&j, ENG_OUTLET_ANSWERS, 0), 0);
            assert_int_equal(eng_journal_close(&j), 0);
            faults_at(kind[k], 2 * k + 1, lasts ? FAULT_LASTS : FAULT_ERROR, ENOSPC);
            assert_int_equal(open_journal(&j, &seen), 0);
            (void)add(&j, ENG_OUTLET_ANSWERS, 1);
            assert_int_equal(eng_journal_close(&j), KN_EIO);
            assert_int_equal(faults.n_line, 1);
            assert_non_null(strstr(faults.line, out));
            assert_non_null(strstr(faults.line, "No space left"));
            assert_true(faults_clean());
            faults_off();
            assert_records(out, 1);
            eng_seen_close(&seen);
            forget_files();
        }
}

static void what_fails_at_opening_is_said(void **state)
{
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
    } fault[] = { { FAULT_ALLOC, FAULT_ERROR }, { FAULT_OPEN, FAULT_ERROR }, { FAULT_SIZE, FAULT_ERROR },
                  { FAULT_READ, FAULT_ERROR },  { FAULT_READ, FAULT_EMPTY }, { FAULT_READ, FAULT_SHORT },
                  { FAULT_RESIZE, FAULT_ERROR } };
    struct eng_journal j;
    struct eng_seen seen;
    (void)state;
    for (size_t k = 0; k < sizeof fault / sizeof *fault; k++)
        for (long at = 1;; at++) {
            struct eng_bytes b = make_record(0);
            eng_bytes_add(&b, "{\"id\":", 6); /* an incomplete record */
            put(out, b.data, b.n);
            eng_bytes_free(&b);
            assert_int_equal(eng_seen_open(&seen, 2 * N_RECORD), 0);
            faults_at(fault[k].kind, at, fault[k].way, EIO);
            int error = open_journal(&j, &seen);
            bool struck = faults.struck;
            if (error)
                assert_true(faults.n_line == 1 && faults.line[0]);
            eng_journal_close(&j);
            assert_true(faults_clean());
            faults_off();
            if (error == 0)
                assert_records(out, 1);
            eng_seen_close(&seen);
            if (!struck)
                break;
        }
    forget_files();
}

static void many_lines_are_all_there(void **state)
{
    enum { N = 3000 };
    struct eng_journal j;
    struct eng_seen seen;
    char id[16], *body = malloc(1024);
    (void)state;
    memset(body, 'x', 1024);
    body[0] = body[1023] = '"';
    assert_int_equal(eng_seen_open(&seen, 2 * N), 0);
    assert_int_equal(open_journal(&j, &seen), 0);
    for (int i = 0; i < N; i++) {
        struct eng_bytes b = { 0 };
        eng_record_write(&b, id, (size_t)snprintf(id, sizeof id, "id-%d", i), i % 3 ? 200 : 400, body, 1024);
        assert_int_equal(eng_journal_add(&j, i % 3 ? ENG_OUTLET_ANSWERS : ENG_OUTLET_ERRORS, &b), 0);
        eng_bytes_free(&b);
    }
    assert_int_equal(eng_journal_close(&j), 0);
    assert_int_equal(open_journal(&j, &seen), 0);
    assert_int_equal(j.file[0].n_line, N - N / 3);
    assert_int_equal(j.file[1].n_line, N / 3);
    assert_int_equal(eng_journal_close(&j), 0);
    for (int i = 0; i < N; i++)
        assert_true(is_done(&seen, i));
    assert_int_equal(eng_journal_open(&j, out, errors), 0);
    assert_int_equal(eng_journal_forget(&j, ENG_OUTLET_ERRORS), 0);
    assert_int_equal(eng_journal_close(&j), 0);
    assert_int_equal(get(errors), 0);
    eng_seen_close(&seen);
    free(body);
    forget_files();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_numbered_and_placed),
        cmocka_unit_test(lines_of_any_length_come_whole),
        cmocka_unit_test(a_line_that_is_too_long_is_passed_over),
        cmocka_unit_test(names_are_met_once),
        cmocka_unit_test(what_is_no_request_is_told_so),
        cmocka_unit_test(an_answer_names_its_request),
        cmocka_unit_test(a_file_cut_anywhere_goes_on),
        cmocka_unit_test(zeros_of_a_power_cut_are_cut_off),
        cmocka_unit_test(others_and_other_files_are_refused),
        cmocka_unit_test(damage_inside_is_refused_by_number),
        cmocka_unit_test(lines_without_a_checksum_count),
        cmocka_unit_test(long_lines_are_checked),
        cmocka_unit_test(a_disk_that_fails_leaves_whole_lines),
        cmocka_unit_test(what_fails_at_opening_is_said),
        cmocka_unit_test(many_lines_are_all_there),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
