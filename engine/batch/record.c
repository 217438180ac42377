/* engine/batch/record.c - parses lines of the input, formats lines of the output, and reads the output back.
 *
 * The formats are those of OpenAI's batches:
 *
 *   in      {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *   out     {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...",
 *           "body": {...}}, "error": null}
 *   errors  the same with another status, or, for a line that is not a request,
 *           {"id": ..., "custom_id": "a" or null, "response": null, "error": {"code", "message", "line"}}
 *
 * Each line that is written ends with a member of our own, "crc32": the CRC-32 of the line's bytes before this member,
 * as eight hexadecimal digits.  So a line that a power cut has damaged is noticed, also in a copy of the file alone.
 * Lines of earlier versions have no such member.
 *
 * A line that is not a request is identified by its line number: it may have no custom_id, or another
 * line's. */
#include "engine/batch/batch.h"
#include "kernels/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- in ---------------------------------------------------------------------------------------- */

static const struct {
    const char *url;
    enum eng_api api;
} urls[] = {
    { "/v1/chat/completions", ENG_API_CHAT },
    { "/v1/completions", ENG_API_COMPLETIONS },
    { "/v1/responses", ENG_API_RESPONSES },
    { "/v1/messages", ENG_API_MESSAGES },
};

bool eng_record_api(const char *url, enum eng_api *out)
{
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        if (!strcmp(url, urls[i].url)) {
            *out = urls[i].api;
            return true;
        }
    return false;
}

static int refuse(struct eng_fault *why, const char *code, const char *message)
{
    why->code = code;
    snprintf(why->message, sizeof why->message, "%s", message);
    return KN_EINVAL;
}

static int parse_id(struct eng_record *r, struct eng_fault *why)
{
    const json_t *id = json_object_get(r->all, "custom_id");
    if (!id)
        return refuse(why, "missing_custom_id", "the line has no \"custom_id\"");
    if (!json_is_string(id) || json_string_length(id) == 0 || json_string_length(id) > ENG_CUSTOM_ID_MOST ||
        strlen(json_string_value(id)) != json_string_length(id))
        return refuse(why, "invalid_custom_id", "\"custom_id\" must be a string of 1 to 1024 bytes without NUL");
    r->custom_id = json_string_value(id);
    r->n_custom_id = json_string_length(id);
    return 0;
}

static int parse_request(struct eng_record *r, struct eng_fault *why)
{
    const json_t *method = json_object_get(r->all, "method"), *url = json_object_get(r->all, "url");
    if (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0)
        return refuse(why, "invalid_method", "\"method\" must be \"POST\"");
    r->body = json_object_get(r->all, "body");
    if (!json_is_object(r->body))
        return refuse(why, "invalid_body", "\"body\" must be an object: the request");
    if (json_is_string(url) && eng_record_api(json_string_value(url), &r->api))
        return 0;
    return refuse(why, "invalid_url",
                  "\"url\" must be /v1/chat/completions, /v1/completions, /v1/responses or /v1/messages");
}

int eng_record_parse(struct eng_record *r, const struct eng_line *line, struct eng_fault *why)
{
    json_error_t error;
    *r = (struct eng_record){ 0 };
    if (line->too_long)
        return refuse(why, "line_too_long", "the line is longer than 16 MiB");
    r->all = kn_json_load(line->text, line->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!r->all) {
        why->code = "invalid_json_line";
        snprintf(why->message, sizeof why->message, "the line is not JSON: %.160s, at byte %d", error.text,
                 error.position);
        return KN_EINVAL;
    }
    if (!json_is_object(r->all))
        return refuse(why, "invalid_json_line", "the line is not a JSON object");
    int bad = parse_id(r, why);
    return bad ? bad : parse_request(r, why);
}

void eng_record_close(struct eng_record *r)
{
    json_decref(r->all);
    r->all = NULL;
}

/* The function must not change between versions: outputs of earlier runs contain its values. */
uint64_t eng_record_hash(const char *custom_id, size_t n)
{
    uint64_t h = kn_mix(n + KN_GOLDEN);
    for (size_t i = 0; i < n; i++)
        h = kn_mix(h ^ (uint8_t)custom_id[i]) + KN_GOLDEN;
    return h;
}

/* ---- out --------------------------------------------------------------------------------------- */

#define BEGIN "{\"id\":\"batch_req_"

static void begin(struct eng_bytes *out, uint64_t id, const char *custom_id, size_t n)
{
    eng_bytes_format(out, BEGIN "%016llx\",\"custom_id\":", (unsigned long long)id);
    if (custom_id)
        eng_bytes_quote(out, custom_id, n);
    else
        eng_bytes_text(out, "null");
}

#define CHECK ",\"crc32\":\""
_Static_assert(ENG_CHECK_BYTES == sizeof CHECK - 1 + 8 + 2, "the member, and the closing brace of the line");

/* Ends the line that begins at out->data[start]: its checksum, the closing brace, the newline. */
static void end_line(struct eng_bytes *out, size_t start)
{
    uint32_t crc = out->failed ? 0 : eng_crc32(0, out->data + start, out->n - start);
    eng_bytes_format(out, CHECK "%08x\"}\n", crc);
}

void eng_record_write(struct eng_bytes *out, const char *custom_id, size_t n_custom_id, int status, const char *body,
                      size_t n_body)
{
    uint64_t id = eng_record_hash(custom_id, n_custom_id);
    size_t start = out->n;
    begin(out, id, custom_id, n_custom_id);
    eng_bytes_format(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"%016llx\",\"body\":", status,
                     (unsigned long long)kn_mix(id));
    while (n_body && body[n_body - 1] == '\n')
        n_body--;
    eng_bytes_add(out, body, n_body);
    eng_bytes_text(out, "},\"error\":null");
    end_line(out, start);
}

void eng_record_write_fault(struct eng_bytes *out, const struct eng_record *r, uint64_t number,
                            const struct eng_fault *why)
{
    size_t start = out->n;
    begin(out, kn_mix(number), r->custom_id, r->n_custom_id);
    eng_bytes_format(out, ",\"response\":null,\"error\":{\"code\":\"%s\",\"message\":", why->code);
    eng_bytes_quote(out, why->message, strlen(why->message));
    eng_bytes_format(out, ",\"line\":%llu}", (unsigned long long)number);
    end_line(out, start);
}

/* ---- back -------------------------------------------------------------------------------------- */

bool eng_record_begins(const struct eng_line *line)
{
    size_t n = line->n < sizeof BEGIN - 1 ? line->n : sizeof BEGIN - 1;
    return !memcmp(line->text, BEGIN, n) && (n == sizeof BEGIN - 1 || line->torn);
}

/* The name begins with NUL bytes, so it equals no custom_id. */
size_t eng_record_number_name(uint64_t number, char *name)
{
    memset(name, 0, 8);
    memcpy(name + 8, &number, sizeof number);
    return 8 + sizeof number;
}

/* If text stands at *p, moves *p behind it and returns true. */
static bool skip(const char **p, const char *end, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(end - *p) < n || memcmp(*p, text, n) != 0)
        return false;
    *p += n;
    return true;
}

/* p: the opening quote of a JSON string.  Returns the position after its closing quote, or NULL. */
static const char *end_of_text(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        p += *p == '\\';
    return p < end ? p + 1 : NULL;
}

bool eng_record_checksum(const char *end, uint32_t *crc)
{
    char digits[9] = "", *stop;
    if (memcmp(end, CHECK, sizeof CHECK - 1) != 0 || memcmp(end + ENG_CHECK_BYTES - 2, "\"}", 2) != 0)
        return false;
    memcpy(digits, end + sizeof CHECK - 1, 8);
    *crc = (uint32_t)strtoul(digits, &stop, 16);
    return stop == digits + 8;
}

static bool ends_with(const struct eng_line *line, const char *text)
{
    size_t n = strlen(text);
    return line->n >= n && !memcmp(line->text + line->n - n, text, n);
}

/* A line without a checksum has the end that earlier versions wrote, and no NUL bytes. */
bool eng_record_is_whole(const struct eng_line *line)
{
    uint32_t crc;
    size_t n = line->n - (line->n < ENG_CHECK_BYTES ? line->n : ENG_CHECK_BYTES);
    if (line->n > ENG_CHECK_BYTES && eng_record_checksum(line->text + n, &crc))
        return eng_crc32(0, line->text, n) == crc;
    return (ends_with(line, ",\"error\":null}") || ends_with(line, "}}")) && !memchr(line->text, 0, line->n);
}

/* The end of the line's text without the checksum and the closing brace. */
static const char *end_of_content(const struct eng_line *line)
{
    uint32_t crc;
    const char *end = line->text + line->n;
    return line->n > ENG_CHECK_BYTES && eng_record_checksum(end - ENG_CHECK_BYTES, &crc) ? end - ENG_CHECK_BYTES
                                                                                         : end - 1;
}

/* The number 17 of a text that ends with ,"line":17} or 0 if it does not end like this. */
static uint64_t last_number(const char *from, const char *end)
{
    static const char before[] = ",\"line\":";
    uint64_t number = 0, unit = 1;
    for (end--; end > from && end[-1] >= '0' && end[-1] <= '9' && unit < UINT64_C(1) << 56; unit *= 10)
        number += (uint64_t)(*--end - '0') * unit;
    size_t n = sizeof before - 1;
    return end - from > (long)n && !memcmp(end - n, before, n) ? number : 0;
}

/* Expects exactly the layout that this file writes.  Of an answer only the beginning is read, because it may be longer
 * than ENG_LINE_MOST. */
size_t eng_record_read(const struct eng_line *line, char *name)
{
    const char *p = line->text, *end = p + line->n, *after;
    if (!skip(&p, end, BEGIN) || end - p < 16)
        return 0;
    p += 16;
    if (!skip(&p, end, "\",\"custom_id\":") || p == end)
        return 0;
    after = *p == '"' ? end_of_text(p, end) : p + (skip(&(const char *){ p }, end, "null") ? 4 : 0);
    const char *rest = after;
    if (!after || after == p)
        return 0;
    if (skip(&rest, end, ",\"response\":null,\"error\":{\"code\":")) {
        uint64_t number = line->too_long ? 0 : last_number(rest, end_of_content(line));
        return number ? eng_record_number_name(number, name) : 0;
    }
    if (*p != '"' || !skip(&rest, end, ",\"response\":{\"status_code\":"))
        return 0;
    json_t *id = kn_json_load(p, (size_t)(after - p), JSON_DECODE_ANY, NULL);
    size_t n = json_string_length(id);
    if (n > ENG_CUSTOM_ID_MOST)
        n = 0;
    memcpy(name, n ? json_string_value(id) : "", n);
    json_decref(id);
    return n;
}
