/* engine/api/fields.c - reads the members of a request's objects (fields.h), and writes refusals (request.h). */
#include "engine/api/fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    int status;
    const char *type, *messages_type; /* error type of OpenAI's API, of Anthropic's */
} types[] = {
    { 400, "invalid_request_error", "invalid_request_error" },
    { 401, "authentication_error", "authentication_error" },
    { 403, "permission_error", "permission_error" },
    { 404, "not_found_error", "not_found_error" },
    { 413, "invalid_request_error", "request_too_large" },
    { 429, "rate_limit_error", "rate_limit_error" },
    { 501, "not_supported_error", "api_error" },
    { 503, "unavailable_error", "overloaded_error" },
};

static int find_type(int status)
{
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
        if (types[i].status == status)
            return i;
    return -1;
}

static const char *type_of(int status, enum eng_api api)
{
    int i = find_type(status);
    if (i >= 0)
        return api == ENG_API_MESSAGES ? types[i].messages_type : types[i].type;
    if (status < 500)
        return "invalid_request_error";
    return api == ENG_API_MESSAGES ? "api_error" : "server_error";
}

static int refuse(struct eng_refusal *why, int status, const char *code, const char *param, const char *format,
                  va_list args)
{
    *why = (struct eng_refusal){ .status = status, .type = type_of(status, ENG_API_CHAT), .code = code };
    snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    vsnprintf(why->message, sizeof why->message, format, args);
    for (char *c = why->message; *c; c++) /* one line: remove line ends of a template or a body */
        *c = (uint8_t)*c < ' ' ? ' ' : *c;
    return status == 429 || status == 503 ? KN_ELIMIT : status < 500 ? KN_EINVAL : KN_EIO;
}

int eng_refuse(struct eng_refusal *why, int status, const char *code, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int error = refuse(why, status, code, param, format, args);
    va_end(args);
    return error;
}

static void quote_or_null(struct eng_bytes *out, const char *text)
{
    if (text && *text)
        eng_bytes_quote(out, text, strlen(text));
    else
        eng_bytes_text(out, "null");
}

void eng_refusal_write(struct eng_bytes *out, const struct eng_refusal *why, enum eng_api api)
{
    if (api == ENG_API_MESSAGES) {
        eng_bytes_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of(why->status, api));
        eng_bytes_quote(out, why->message, strlen(why->message));
        eng_bytes_text(out, "}}");
        return;
    }
    if (eng_api_is_ollama(api)) {
        eng_bytes_text(out, "{\"error\":");
        eng_bytes_quote(out, why->message, strlen(why->message));
        eng_bytes_text(out, "}");
        return;
    }
    eng_bytes_text(out, "{\"error\":{\"message\":");
    eng_bytes_quote(out, why->message, strlen(why->message));
    eng_bytes_format(out, ",\"type\":\"%s\",\"param\":", why->type);
    quote_or_null(out, why->param);
    eng_bytes_text(out, ",\"code\":");
    quote_or_null(out, why->code);
    eng_bytes_text(out, "}}");
}

/* ---- members --------------------------------------------------------------------------------- */

/* Appends name to path, truncated to ENG_FIELD_PATH. */
static void join(char *path /* [ENG_FIELD_PATH] */, const char *name)
{
    size_t at = strlen(path), n = strlen(name), room = ENG_FIELD_PATH - 1 - at;
    memcpy(path + at, name, n < room ? n : room);
    path[at + (n < room ? n : room)] = 0;
}

void eng_field_refuse(const struct eng_fields *f, const char *name, const char *format, ...)
{
    char path[ENG_FIELD_PATH], text[400];
    va_list args;
    if (eng_refused(f->why))
        return;
    memcpy(path, f->path, sizeof path);
    join(path, name);
    size_t n = strlen(path);
    if (n && path[n - 1] == '.')
        path[n - 1] = 0;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    eng_refuse(f->why, 400, NULL, path, "'%s' %s", path, text);
}

json_t *eng_field(const struct eng_fields *f, const char *name)
{
    json_t *value = eng_refused(f->why) ? NULL : json_object_get(f->object, name);
    return json_is_null(value) ? NULL : value;
}

bool eng_field_bool(const struct eng_fields *f, const char *name, bool *out)
{
    json_t *value = eng_field(f, name);
    if (json_is_boolean(value))
        *out = json_is_true(value);
    else if (value)
        eng_field_refuse(f, name, "must be true or false");
    return json_is_boolean(value);
}

bool eng_field_int(const struct eng_fields *f, const char *name, int64_t least, int64_t most, int64_t *out)
{
    json_t *value = eng_field(f, name);
    int64_t x = json_integer_value(value);
    bool whole = json_is_integer(value);
    if (json_is_real(value)) { /* some clients write 100.0; a double is exact up to 2^53 */
        double r = json_real_value(value);
        if (r >= -0x1p53 && r <= 0x1p53) {
            x = (int64_t)r;
            whole = (double)x == r;
        }
    }
    if (whole && x >= least && x <= most) {
        *out = x;
        return true;
    }
    if (value && most == INT64_MAX && least == INT64_MIN)
        eng_field_refuse(f, name, "must be a 64-bit integer");
    else if (value && most >= INT32_MAX && !(whole && x > most))
        eng_field_refuse(f, name, "must be an integer, at least %lld", (long long)least);
    else if (value)
        eng_field_refuse(f, name, "must be an integer from %lld to %lld", (long long)least, (long long)most);
    return false;
}

bool eng_field_number(const struct eng_fields *f, const char *name, double least, double most, double *out)
{
    json_t *value = eng_field(f, name);
    double x = json_number_value(value);
    if (json_is_number(value) && x >= least && x <= most) {
        *out = x;
        return true;
    }
    if (value)
        eng_field_refuse(f, name, "must be a number from %g to %g", least, most);
    return false;
}

json_t *eng_field_string(const struct eng_fields *f, const char *name)
{
    json_t *value = eng_field(f, name);
    if (!value || json_is_string(value))
        return value;
    eng_field_refuse(f, name, "must be a string");
    return NULL;
}

json_t *eng_field_array(const struct eng_fields *f, const char *name, size_t most)
{
    json_t *value = eng_field(f, name);
    if (value && !json_is_array(value)) {
        eng_field_refuse(f, name, "must be a list");
        return NULL;
    }
    if (json_array_size(value) > most) {
        eng_field_refuse(f, name, "has %zu items; the limit is %zu", json_array_size(value), most);
        return NULL;
    }
    return value;
}

static void expect_object(struct eng_fields *f, json_t *value)
{
    if (json_is_object(value))
        f->object = value;
    else if (value)
        eng_field_refuse(f, "", "must be an object");
}

struct eng_fields eng_field_object(const struct eng_fields *f, const char *name)
{
    struct eng_fields in = { .why = f->why };
    memcpy(in.path, f->path, sizeof in.path);
    join(in.path, name);
    join(in.path, ".");
    expect_object(&in, eng_field(f, name));
    return in;
}

struct eng_fields eng_field_item(const struct eng_fields *f, const char *name, size_t i, json_t *item)
{
    struct eng_fields in = { .why = f->why };
    char index[32];
    snprintf(index, sizeof index, "[%zu].", i);
    memcpy(in.path, f->path, sizeof in.path);
    join(in.path, name);
    join(in.path, index);
    expect_object(&in, item);
    return in;
}

int eng_field_choice(const struct eng_fields *f, const char *name, const char *const *word, int n)
{
    json_t *value = eng_field_string(f, name);
    char all[256];
    size_t at = 0;
    for (int i = 0; i < n; i++)
        if (value && !strcmp(json_string_value(value), word[i]))
            return i;
    if (!value)
        return -1;
    for (int i = 0; i < n && at < sizeof all; i++)
        at += (size_t)snprintf(all + at, sizeof all - at, "%s'%s'", i ? ", " : "", word[i]);
    eng_field_refuse(f, name, "must be one of %s", all);
    return -1;
}
