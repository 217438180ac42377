/* The input is a line of a batch's input, and of its output. An input line becomes a request or an error
 * line that is JSON; an answer written under its custom_id is whole and is read back under it; and reading an output
 * line gives a name of at most ENG_CUSTOM_ID_MOST bytes, or none. */
#include "engine/batch/batch.h"

#include <string.h>

#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_line(const struct eng_bytes *record)
{
    json_t *told = record->n ? json_loadb(record->data, record->n, JSON_ALLOW_NUL, NULL) : NULL;
    if (record->failed || !json_is_object(told) ||
        memchr(record->data, '\n', record->n) != record->data + record->n - 1)
        abort();
    json_decref(told);
}

static void read_back(const struct eng_bytes *record, const char *want, size_t n)
{
    char name[ENG_CUSTOM_ID_MOST];
    struct eng_line line = { .text = record->data, .n = record->n - 1 };
    if (!eng_record_is_whole(&line) || eng_record_read(&line, name) != n || memcmp(name, want, n) != 0)
        abort();
}

static void try_line(const struct eng_line *line)
{
    struct eng_record r;
    struct eng_fault why = { 0 };
    struct eng_bytes record = { 0 };
    char name[ENG_CUSTOM_ID_MOST];
    if (line->n > 0 && !line->torn)
        (void)eng_record_is_whole(line);
    if (eng_record_read(line, name) > ENG_CUSTOM_ID_MOST)
        abort();
    if (eng_record_parse(&r, line, &why)) {
        if (!why.code || !why.message[0])
            abort();
        eng_record_write_fault(&record, &r, line->number, &why);
        check_line(&record);
        read_back(&record, name, eng_record_number_name(line->number, name));
    } else {
        struct eng_bytes body = { 0 };
        eng_bytes_json(&body, r.body);
        eng_record_write(&record, r.custom_id, r.n_custom_id, 200, body.data, body.n);
        check_line(&record);
        read_back(&record, r.custom_id, r.n_custom_id);
        eng_bytes_free(&body);
    }
    eng_bytes_free(&record);
    eng_record_close(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct eng_lines lines;
    struct eng_line line;
    struct eng_seen seen;
    memory_file_set(data, n);
    if (eng_lines_open(&lines, 1000, "in", n))
        abort();
    if (eng_seen_open(&seen, n + 1))
        abort();
    while (eng_lines_next(&lines, &line) == 1) {
        if (line.offset > n || line.n > n)
            abort();
        try_line(&line);
        (void)eng_seen_meet(&seen, line.text, line.n);
        if (eng_seen_meet(&seen, line.text, line.n) != ENG_MET_TWICE)
            abort();
    }
    eng_seen_close(&seen);
    eng_lines_close(&lines);
    return 0;
}
