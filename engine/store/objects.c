/* engine/store/objects.c - files and batches as the API's objects.  A record on disk is the object with the key it belongs
 * to, and for a batch with the ids of its outputs. */
#include <stdlib.h>
#include <string.h>

#include "engine/store/internal.h"
#include "kernels/json.h"

static const char *const states[] = {
#define ENG_TEXT(name, text) text,
    ENG_BATCH_STATES(ENG_TEXT)
#undef ENG_TEXT
};

/* ---- written ----------------------------------------------------------------------------------- */

static void write_text(struct eng_bytes *out, const char *name, const char *text)
{
    eng_bytes_format(out, "\"%s\":", name);
    eng_bytes_quote(out, text, strlen(text));
}

/* The value, or null if it is 0 or "". */
static void write_time(struct eng_bytes *out, const char *name, int64_t at_s)
{
    eng_bytes_format(out, at_s ? ",\"%s\":%lld" : ",\"%s\":null", name, (long long)at_s);
}

static void write_id(struct eng_bytes *out, const char *name, const char *id, bool has)
{
    eng_bytes_format(out, has ? ",\"%s\":\"%s\"" : ",\"%s\":null", name, id);
}

void store_write_file(struct eng_bytes *out, const struct eng_store_file *f, bool as_record)
{
    eng_bytes_format(out, "{\"id\":\"%s\",\"object\":\"file\",\"bytes\":%llu,\"created_at\":%lld,", f->id,
                     (unsigned long long)f->bytes, (long long)f->created_s);
    write_text(out, "filename", f->name);
    eng_bytes_format(out, ",\"purpose\":\"%s\",\"status\":\"processed\"", f->is_output ? "batch_output" : "batch");
    write_time(out, "expires_at", f->expires_s);
    if (as_record)
        eng_bytes_format(out, ",\"key\":\"%016llx\"", (unsigned long long)f->key);
    eng_bytes_text(out, as_record ? "}\n" : "}");
}

static void write_fault(struct eng_bytes *out, const struct eng_store_batch *b)
{
    if (!b->fault_code[0]) {
        eng_bytes_text(out, ",\"errors\":null");
        return;
    }
    eng_bytes_text(out, ",\"errors\":{\"object\":\"list\",\"data\":[{");
    write_text(out, "code", b->fault_code);
    eng_bytes_text(out, ",");
    write_text(out, "message", b->fault);
    eng_bytes_text(out, ",\"param\":null,\"line\":null}]}");
}

void store_write_batch(struct eng_bytes *out, const struct eng_store_batch *b, bool as_record)
{
    eng_bytes_format(out, "{\"id\":\"%s\",\"object\":\"batch\",\"endpoint\":\"%s\"", b->id, b->endpoint);
    write_fault(out, b);
    eng_bytes_format(out, ",\"input_file_id\":\"%s\",\"completion_window\":\"%s\",\"status\":\"%s\"", b->input,
                     b->window, states[b->state]);
    write_id(out, "output_file_id", b->output, b->has_output);
    write_id(out, "error_file_id", b->errors, b->has_errors);
    eng_bytes_format(out, ",\"created_at\":%lld,\"expires_at\":%lld", (long long)b->created_s, (long long)b->expires_s);
    for (int i = ENG_BATCH_IN_PROGRESS; i < ENG_BATCH_STATE_COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_at", states[i]);
        write_time(out, name, b->at_s[i]);
    }
    eng_bytes_format(out, ",\"request_counts\":{\"total\":%llu,\"completed\":%llu,\"failed\":%llu},\"metadata\":%s",
                     (unsigned long long)b->total, (unsigned long long)b->completed, (unsigned long long)b->failed,
                     b->metadata ? b->metadata : "null");
    if (as_record)
        eng_bytes_format(out, ",\"key\":\"%016llx\",\"output\":\"%s\",\"error\":\"%s\"", (unsigned long long)b->key,
                         b->output, b->errors);
    eng_bytes_text(out, as_record ? "}\n" : "}");
}

/* ---- read back --------------------------------------------------------------------------------- */

static bool read_text(const json_t *o, const char *name, char *out, size_t room)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_string(v) || strlen(json_string_value(v)) >= room)
        return false;
    strcpy(out, json_string_value(v));
    return true;
}

static bool read_number(const json_t *o, const char *name, uint64_t *out)
{
    const json_t *v = json_object_get(o, name);
    *out = json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : 0;
    return json_is_integer(v) || json_is_null(v);
}

static bool read_time(const json_t *o, const char *name, int64_t *out)
{
    uint64_t n;
    bool is = read_number(o, name, &n);
    *out = (int64_t)n;
    return is;
}

static bool read_key(const json_t *o, uint64_t *out)
{
    char text[17], *end;
    if (!read_text(o, "key", text, sizeof text) || strlen(text) != 16)
        return false;
    *out = strtoull(text, &end, 16);
    return !*end;
}

static bool read_id(const json_t *o, const char *name, const char *prefix, char *out)
{
    return read_text(o, name, out, ENG_STORE_ID_BYTES) && store_is_id(prefix, out, strlen(out));
}

bool store_read_file(const char *text, size_t n, const char *id, struct eng_store_file *out)
{
    char purpose[32];
    json_t *o = kn_json_load(text, n, JSON_REJECT_DUPLICATES, NULL);
    *out = (struct eng_store_file){ 0 };
    bool is = read_id(o, "id", STORE_FILE, out->id) && !strcmp(out->id, id) && read_number(o, "bytes", &out->bytes) &&
              read_time(o, "created_at", &out->created_s) && read_time(o, "expires_at", &out->expires_s) &&
              read_text(o, "filename", out->name, sizeof out->name) &&
              read_text(o, "purpose", purpose, sizeof purpose) && read_key(o, &out->key);
    out->is_output = is && !strcmp(purpose, "batch_output");
    json_decref(o);
    return is;
}

static bool read_state(const json_t *o, enum eng_batch_state *out)
{
    char text[32];
    if (!read_text(o, "status", text, sizeof text))
        return false;
    for (int i = 0; i < ENG_BATCH_STATE_COUNT; i++)
        if (!strcmp(text, states[i])) {
            *out = (enum eng_batch_state)i;
            return true;
        }
    return false;
}

static bool read_metadata(const json_t *o, char **out)
{
    const json_t *v = json_object_get(o, "metadata");
    *out = NULL;
    if (!json_is_object(v))
        return json_is_null(v);
    *out = eng_json_text(v);
    return *out != NULL;
}

bool store_read_batch(const char *text, size_t n, const char *id, struct eng_store_batch *out)
{
    json_t *o = kn_json_load(text, n, JSON_REJECT_DUPLICATES, NULL);
    const json_t *counts = json_object_get(o, "request_counts");
    const json_t *fault = json_array_get(json_object_get(json_object_get(o, "errors"), "data"), 0);
    *out = (struct eng_store_batch){ 0 };
    bool is = read_id(o, "id", STORE_BATCH, out->id) && !strcmp(out->id, id) &&
              read_id(o, "input_file_id", STORE_FILE, out->input) && read_id(o, "output", STORE_FILE, out->output) &&
              read_id(o, "error", STORE_FILE, out->errors) &&
              read_text(o, "endpoint", out->endpoint, sizeof out->endpoint) &&
              read_text(o, "completion_window", out->window, sizeof out->window) && read_state(o, &out->state) &&
              read_time(o, "created_at", &out->created_s) && read_time(o, "expires_at", &out->expires_s) &&
              read_number(counts, "total", &out->total) && read_number(counts, "completed", &out->completed) &&
              read_number(counts, "failed", &out->failed) && read_key(o, &out->key) &&
              (!fault || (read_text(fault, "code", out->fault_code, sizeof out->fault_code) &&
                          read_text(fault, "message", out->fault, sizeof out->fault)));
    for (int i = ENG_BATCH_IN_PROGRESS; is && i < ENG_BATCH_STATE_COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_at", states[i]);
        is = read_time(o, name, &out->at_s[i]);
    }
    out->has_output = is && json_is_string(json_object_get(o, "output_file_id"));
    out->has_errors = is && json_is_string(json_object_get(o, "error_file_id"));
    is = is && read_metadata(o, &out->metadata);
    json_decref(o);
    return is;
}

/* ---- lists ------------------------------------------------------------------------------------- */

static bool is_listed(const struct eng_store *s, int i, bool is_file, uint64_t key, const struct eng_store_page *page)
{
    if (!is_file)
        return s->batch[i]->key == key;
    const struct eng_store_file *f = s->file[i];
    return f->key == key && (!page->purpose || !strcmp(page->purpose, f->is_output ? "batch_output" : "batch"));
}

int store_write_list(struct eng_store *s, uint64_t key, const struct eng_store_page *page, bool is_file,
                     struct eng_bytes *out)
{
    const int n = is_file ? s->n_file : s->n_batch, step = page->ascending ? 1 : -1;
    void *const *object = is_file ? (void *const *)s->file : (void *const *)s->batch;
    int at = page->ascending ? 0 : n - 1, n_written = 0;
    if (page->after && page->after[0]) {
        at = store_find(object, n, page->after);
        if (at < 0 || !(is_file ? s->file[at]->key == key : s->batch[at]->key == key))
            return KN_ENOENT;
        at += step;
    }
    const char *first = NULL, *last = NULL;
    eng_bytes_text(out, "{\"object\":\"list\",\"data\":[");
    for (; at >= 0 && at < n && n_written < page->limit; at += step) {
        if (!is_listed(s, at, is_file, key, page))
            continue;
        eng_bytes_text(out, n_written++ ? "," : "");
        last = object[at];
        first = first ? first : last;
        if (is_file)
            store_write_file(out, s->file[at], false);
        else
            store_write_batch(out, s->batch[at], false);
    }
    bool more = false;
    for (; at >= 0 && at < n && !more; at += step)
        more = is_listed(s, at, is_file, key, page);
    eng_bytes_text(out, "]");
    write_id(out, "first_id", first, first != NULL);
    write_id(out, "last_id", last, last != NULL);
    eng_bytes_format(out, ",\"has_more\":%s}", more ? "true" : "false");
    return 0;
}
