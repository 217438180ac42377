/* Multipart bodies: accepted ones, each rule that is broken once, and the same events however the bytes are cut.
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/multipart.h"

#define TYPE "multipart/form-data; boundary=abc"

/* Writes the events as text, such as [name|file name]content[name]content. */
static enum eng_multipart_fault read_all(const char *type, const char *p, size_t n, size_t piece, char *out,
                                         bool *ended)
{
    static struct eng_multipart m;
    enum eng_multipart_event event;
    enum eng_multipart_fault fault = eng_multipart_open(&m, type);
    const char *data;
    size_t n_data;
    *out = 0;
    *ended = false;
    for (size_t i = 0; i < n && !fault;) {
        size_t k = n - i < piece ? n - i : piece, taken;
        for (size_t j = 0; j < k && !fault; j += taken) {
            taken = eng_multipart_take(&m, p + i + j, k - j, &event, &data, &n_data, &fault);
            assert_true(taken <= k - j && (taken || event != ENG_MULTIPART_NONE || fault));
            assert_true((event == ENG_MULTIPART_DATA) == (n_data > 0));
            if (event == ENG_MULTIPART_PART)
                out += sprintf(out, m.is_file ? "[%s|%s]" : "[%s]", m.name, m.file_name);
            if (event == ENG_MULTIPART_DATA) {
                memcpy(out, data, n_data);
                out += n_data;
                *out = 0;
            }
            *ended = *ended || event == ENG_MULTIPART_END;
        }
        i += k;
    }
    return fault;
}

#define PART(name) "--abc\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n"

static const struct {
    const char *type, *body, *events;
    enum eng_multipart_fault fault;
} table[] = {
    { TYPE, PART("purpose") "batch\r\n--abc--\r\n", "[purpose]batch", ENG_MULTIPART_OK },
    { TYPE, PART("a") "1\r\n" PART("b") "2\r\n--abc--", "[a]1[b]2", ENG_MULTIPART_OK },
    { TYPE, PART("a") "\r\n--abc--\r\n", "[a]", ENG_MULTIPART_OK },
    { TYPE, PART("a") "\r\n--ab\r\n--abd\r\r\n--abc--\r\n", "[a]\r\n--ab\r\n--abd\r", ENG_MULTIPART_OK },
    { TYPE, PART("a") "x--abc--\r\n\r\n--abc--\r\n", "[a]x--abc--\r\n", ENG_MULTIPART_OK },
    { "Multipart/Form-Data;charset=utf-8; boundary=\"abc\"", PART("a") "1\r\n--abc--", "[a]1", ENG_MULTIPART_OK },
    { TYPE,
      "--abc\r\ncontent-type: application/octet-stream\r\ncontent-disposition: form-data; name=file; "
      "filename=\"a\\\"b\\\\ ../c\"; filename*=UTF-8''x\r\ncontent-transfer-encoding: binary\r\n\r\n{}\n\r\n--abc--",
      "[file|a\"b\\ ../c]{}\n", ENG_MULTIPART_OK },
    { TYPE, "--abc--\r\n", "", ENG_MULTIPART_OK },
    { NULL, "", "", ENG_MULTIPART_TYPE },
    { "application/json", "", "", ENG_MULTIPART_TYPE },
    { "multipart/form-data", "", "", ENG_MULTIPART_TYPE },
    { "multipart/form-data; boundary=", "", "", ENG_MULTIPART_TYPE },
    { "multipart/form-data; boundary=\"a \"", "", "", ENG_MULTIPART_TYPE },
    { "multipart/form-data; boundary=\"a\"b", "", "", ENG_MULTIPART_TYPE },
    { "multipart/form-data; boundary=a; boundary=a", "", "", ENG_MULTIPART_TYPE },
    { "multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x", "", "",
      ENG_MULTIPART_TYPE },
    { "multipart/form-datax; boundary=a", "", "", ENG_MULTIPART_TYPE },
    { TYPE, "preamble\r\n" PART("a") "1\r\n--abc--", "", ENG_MULTIPART_DELIMITER },
    { TYPE, "--abd", "", ENG_MULTIPART_DELIMITER },
    { TYPE, "--abc \r\n", "", ENG_MULTIPART_DELIMITER },
    { TYPE, "--abc\n", "", ENG_MULTIPART_DELIMITER },
    { TYPE, "--abc\r-", "", ENG_MULTIPART_DELIMITER },
    { TYPE, "--abc-x", "", ENG_MULTIPART_DELIMITER },
    { TYPE, PART("a") "1\r\n--abcd", "[a]1", ENG_MULTIPART_DELIMITER },
    { TYPE, "--abc\r\nno colon\r\n\r\n", "", ENG_MULTIPART_HEAD },
    { TYPE, "--abc\r\n: x\r\n\r\n", "", ENG_MULTIPART_HEAD },
    { TYPE, "--abc\r\n folded: x\r\n\r\n", "", ENG_MULTIPART_HEAD },
    { TYPE, "--abc\r\na: x\ny\r\n\r\n", "", ENG_MULTIPART_HEAD },
    { TYPE, "--abc\r\n\r\n1", "", ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: attachment; name=a\r\n\r\n", "", ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: form-data\r\n\r\n", "", ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: form-data; name=\"a\r\n\r\n", "", ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: form-data; name=a; name=b\r\n\r\n", "", ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: form-data; name=a; filename=b; filename=b\r\n\r\n", "",
      ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=a\r\n\r\n", "",
      ENG_MULTIPART_DISPOSITION },
    { TYPE, "--abc\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64\r\n\r\n", "",
      ENG_MULTIPART_CODING },
    { TYPE, PART("a") "1\r\n--abc--\r\nmore", "[a]1", ENG_MULTIPART_AFTER },
    { TYPE, PART("a") "1\r\n--abc--x", "[a]1", ENG_MULTIPART_AFTER },
    { TYPE, PART("a") "1\r\n--abc--\rx", "[a]1", ENG_MULTIPART_AFTER },
};

static void test_table(void **state)
{
    (void)state;
    char events[4096];
    bool ended;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t n = strlen(table[i].body);
        for (size_t piece = 1; piece <= n + 1; piece++) {
            enum eng_multipart_fault fault = read_all(table[i].type, table[i].body, n, piece, events, &ended);
            if (fault != table[i].fault || strcmp(events, table[i].events) != 0 ||
                (!fault && ended != (table[i].fault == ENG_MULTIPART_OK)))
                fail_msg("case %zu in pieces of %zu: fault %d, %s", i, piece, fault, events);
        }
        assert_true(!table[i].fault || eng_multipart_fault_text(table[i].fault)[0]);
    }
}

/* A body that ends early has no END, wherever it is cut. */
static void test_cut(void **state)
{
    (void)state;
    static const char body[] = PART("a") "1\r\n" PART("b") "2\r\n--abc--";
    char events[4096];
    bool ended;
    for (size_t n = 0; n < sizeof body; n++) {
        assert_int_equal(read_all(TYPE, body, n, 7, events, &ended), ENG_MULTIPART_OK);
        assert_true(ended == (n == sizeof body - 1));
    }
}

static void test_limits(void **state)
{
    (void)state;
    static char body[ENG_MULTIPART_PARTS * 100 + ENG_MULTIPART_HEAD_BYTES + 1000], events[4096];
    bool ended;
    char *p = body;
    for (int i = 0; i < ENG_MULTIPART_PARTS; i++)
        p += sprintf(p, PART("a") "1\r\n");
    sprintf(p, "--abc--");
    assert_int_equal(read_all(TYPE, body, strlen(body), 64, events, &ended), ENG_MULTIPART_OK);
    assert_true(ended);
    sprintf(p, PART("a") "1\r\n");
    assert_int_equal(read_all(TYPE, body, strlen(body), 64, events, &ended), ENG_MULTIPART_PARTS_MANY);
    p = body + sprintf(body, "--abc\r\nContent-Disposition: form-data; name=\"");
    memset(p, 'n', ENG_MULTIPART_NAME_BYTES);
    for (int more = 0; more < 2; more++) {
        strcpy(p + ENG_MULTIPART_NAME_BYTES - 1 + more, "\"\r\n\r\n");
        assert_int_equal(read_all(TYPE, body, strlen(body), 64, events, &ended),
                         more ? ENG_MULTIPART_NAME_LONG : ENG_MULTIPART_OK);
        p[ENG_MULTIPART_NAME_BYTES - 1] = 'n';
    }
    p = body + sprintf(body, "--abc\r\nContent-Disposition: form-data; name=a\r\nx: ");
    size_t n = ENG_MULTIPART_HEAD_BYTES - (size_t)(p - body - 7) - 4;
    memset(p, 'x', n + 1);
    for (int more = 0; more < 2; more++) {
        strcpy(p + n + more, "\r\n\r\n");
        assert_int_equal(read_all(TYPE, body, strlen(body), 64, events, &ended),
                         more ? ENG_MULTIPART_HEAD_LONG : ENG_MULTIPART_OK);
        p[n] = 'x';
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
