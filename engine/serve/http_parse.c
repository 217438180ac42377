/* engine/serve/http_parse.c - the parser of http_parse.h.
 *
 * A head arrives in any pieces.  eng_http_scan finds its end and refuses each byte that no valid head has, so a client
 * that does not speak HTTP is answered at once.  eng_http_head_parse then works on the whole head in place: it writes
 * NULs behind names and values.  Numbers in brackets are sections of RFC 9112, with "9110:" those of RFC 9110. */
#include "engine/serve/http_parse.h"

#include <string.h>
#include <strings.h>

static const struct {
    int status;
    const char *text;
} faults[] = { [ENG_HTTP_OK] = { 200, "" },
#define ENG_ROW(name, status, text) [ENG_HTTP_##name] = { status, text },
               ENG_HTTP_FAULTS(ENG_ROW)
#undef ENG_ROW
};

int eng_http_fault_status(enum eng_http_fault f) { return faults[f].status; }
const char *eng_http_fault_text(enum eng_http_fault f) { return faults[f].text; }

/* ---- characters ------------------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_space(char c) { return c == ' ' || c == '\t'; }
static bool is_control(char c) { return (unsigned char)c < ' ' || c == 0x7f; }
static bool is_in(const char *set, char c) { return c && strchr(set, c); }
static bool is_token(char c) { return is_digit(c) || is_letter(c) || is_in("!#$%&'*+-.^_`|~", c); }

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_all_tokens(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_token(p[i]))
            return false;
    return n > 0;
}

/* ---- finding the end of the head ------------------------------------------------------------- */

/* One byte of a head. */
static enum eng_http_fault scan_byte(struct eng_http_scan *s, char c)
{
    if (s->cr && c != '\n')
        return ENG_HTTP_BARE_CR;
    if (c == '\r') {
        s->cr = true;
        return ENG_HTTP_OK;
    }
    if (c == '\n') {
        if (!s->cr)
            return ENG_HTTP_BARE_LF;
        if (!s->begun && s->n_line == 0 && s->skipped)
            return ENG_HTTP_REQUEST_LINE;
        s->done = !s->begun && s->n_line > 0;
        s->skipped = s->skipped || !s->begun; /* one empty line may precede the request line [2.2] */
        s->n_line += s->begun;
        s->begun = s->cr = false;
        return ENG_HTTP_OK;
    }
    if (is_control(c) && c != '\t')
        return ENG_HTTP_CONTROL;
    s->begun = true;
    return ENG_HTTP_OK;
}

size_t eng_http_scan(struct eng_http_scan *s, const char *p, size_t n, size_t most, enum eng_http_fault *fault)
{
    size_t i = 0;
    *fault = ENG_HTTP_OK;
    while (i < n && !s->done && !*fault) {
        if (s->n == most)
            *fault = s->n_line ? ENG_HTTP_HEAD_LONG : ENG_HTTP_TARGET_LONG;
        else
            *fault = scan_byte(s, p[i]);
        if (!*fault)
            i++, s->n++;
    }
    return i;
}

/* ---- the request line ------------------------------------------------------------------------ */

/* NAME or [ADDRESS], with :PORT or without; n 0 is allowed, as in the Host of a request without an authority. */
static bool is_host(const char *p, size_t n)
{
    size_t i = 0;
    if (n && p[0] == '[') {
        for (i = 1; i < n && p[i] != ']'; i++)
            if (hex_digit(p[i]) < 0 && !is_in(":.", p[i]))
                return false;
        if (i < 3 || i++ == n)
            return false;
    } else {
        while (i < n && (is_digit(p[i]) || is_letter(p[i]) || is_in("-._", p[i])))
            i++;
    }
    if (i == n)
        return true;
    if (i == 0 || p[i++] != ':' || n - i > 5)
        return false;
    while (i < n && is_digit(p[i]))
        i++;
    return i == n;
}

/* A path with a query, of the characters that RFC 3986 allows there, without a fragment. */
static bool is_path(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (is_digit(p[i]) || is_letter(p[i]) || is_in("-._~!$&'()*+,;=:@/?", p[i]))
            continue;
        if (p[i] != '%' || n - i < 3 || hex_digit(p[i + 1]) < 0 || hex_digit(p[i + 2]) < 0)
            return false;
    }
    return n > 0;
}

/* Ends the path at its query. */
static enum eng_http_fault parse_path(struct eng_http_head *out, char *p, size_t n)
{
    if (!is_path(p, n))
        return ENG_HTTP_TARGET;
    size_t n_path = strcspn(p, "?");
    out->path = p;
    out->query = n_path < n ? p + n_path + 1 : "";
    p[n_path] = 0;
    return ENG_HTTP_OK;
}

/* http://HOST/PATH.  HOST is moved one byte to the front: its NUL then fits before the path. */
static enum eng_http_fault parse_url(struct eng_http_head *out, char *p)
{
    p += strncasecmp(p, "https:", 6) ? 7 : 8;
    size_t n_host = strcspn(p, "/?");
    char *rest = p + n_host;
    if (n_host == 0 || !is_host(p, n_host) || (*rest == '?' && !is_path(rest, strlen(rest))))
        return ENG_HTTP_TARGET;
    bool has_path = *rest == '/';
    memmove(p - 1, p, n_host);
    p[n_host - 1] = 0;
    out->host = p - 1;
    if (has_path)
        return parse_path(out, rest, strlen(rest));
    out->path = "/";
    out->query = *rest == '?' ? rest + 1 : "";
    return ENG_HTTP_OK;
}

static enum eng_http_fault parse_target(struct eng_http_head *out, char *p)
{
    size_t n = strlen(p);
    if (n > ENG_HTTP_TARGET_BYTES)
        return ENG_HTTP_TARGET_LONG;
    if (p[0] == '/')
        return parse_path(out, p, n);
    if (!strncasecmp(p, "http://", 7) || !strncasecmp(p, "https://", 8))
        return parse_url(out, p);
    if (strcmp(p, "*") != 0 || strcmp(out->method, "OPTIONS") != 0)
        return ENG_HTTP_TARGET;
    out->path = p;
    out->query = "";
    return ENG_HTTP_OK;
}

/* HTTP/1.0, or HTTP/1.1 and above as HTTP/1.1 [2.3, 9110:6.2]. */
static enum eng_http_fault parse_version(struct eng_http_head *out, const char *p)
{
    if (strlen(p) != 8 || strncmp(p, "HTTP/", 5) != 0 || !is_digit(p[5]) || p[6] != '.' || !is_digit(p[7]))
        return ENG_HTTP_REQUEST_LINE;
    out->old = p[7] == '0';
    return p[5] == '1' ? ENG_HTTP_OK : ENG_HTTP_VERSION;
}

/* METHOD SP TARGET SP VERSION, with exactly one space between [3]. */
static enum eng_http_fault parse_request_line(struct eng_http_head *out, char *line)
{
    static const char *const known[] = { "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH" };
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version || !is_all_tokens(line, (size_t)(target - line)) || target + 1 == version)
        return ENG_HTTP_REQUEST_LINE;
    *target++ = *version++ = 0;
    enum eng_http_fault fault = parse_version(out, version);
    if (fault)
        return fault;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(line, known[i]))
            out->method = line;
    return out->method ? parse_target(out, target) : ENG_HTTP_METHOD;
}

/* ---- header lines ---------------------------------------------------------------------------- */

/* NAME: VALUE, without a space before the colon; spaces around the value are no part of it [5]. */
static enum eng_http_fault parse_field(struct eng_http_head *out, char *line)
{
    char *colon = strchr(line, ':');
    if (is_space(line[0]))
        return ENG_HTTP_FOLD;
    if (!colon || !is_all_tokens(line, (size_t)(colon - line)))
        return ENG_HTTP_FIELD;
    if (out->n_field == ENG_HTTP_FIELDS)
        return ENG_HTTP_HEAD_LONG;
    char *value = colon + 1, *end;
    while (is_space(*value))
        value++;
    for (end = value + strlen(value); end > value && is_space(end[-1]);)
        end--;
    *colon = *end = 0;
    out->field[out->n_field++] = (struct eng_http_field){ line, value };
    return ENG_HTTP_OK;
}

/* The value of a header, and the number of headers of this name. */
static const char *find(const struct eng_http_head *h, const char *name, int *n)
{
    const char *value = NULL;
    *n = 0;
    for (int i = h->n_field - 1; i >= 0; i--)
        if (!strcasecmp(h->field[i].name, name)) {
            value = h->field[i].value;
            ++*n;
        }
    return value;
}

static enum eng_http_fault check_host(struct eng_http_head *out)
{
    int n;
    const char *host = find(out, "Host", &n);
    if (n > 1)
        return ENG_HTTP_HOST_TWO;
    if (n == 0)
        return out->old ? ENG_HTTP_OK : ENG_HTTP_HOST_NONE;
    if (!is_host(host, strlen(host)))
        return ENG_HTTP_HOST_SYNTAX;
    if (!out->host) /* else the target names the host, and the header does not count [3.2.2] */
        out->host = host;
    return ENG_HTTP_OK;
}

bool eng_http_next_element(const char **list, const char **p, size_t *n)
{
    if (!*list)
        return false;
    *p = *list + strspn(*list, " \t");
    *n = strcspn(*p, ",");
    *list = (*p)[*n] ? *p + *n + 1 : NULL;
    while (*n && is_space((*p)[*n - 1]))
        --*n;
    return true;
}

static bool is_word(const char *p, size_t n, const char *word) { return n == strlen(word) && !strncasecmp(p, word, n); }

/* Transfer-Encoding is chunked [6.1].  Other codings may precede it by the rule, but none is supported.  A chunked that
 * is not the last coding, or that occurs twice, leaves the end of the body unknown [6.3]. */
static enum eng_http_fault check_coding(struct eng_http_head *out, const char *list, int n_field)
{
    const char *p;
    size_t n;
    int n_coding = 0, n_chunked = 0;
    bool last = false;
    if (out->old)
        return ENG_HTTP_CODING_OLD;
    while (eng_http_next_element(&list, &p, &n)) {
        if (n == 0)
            return ENG_HTTP_CODING;
        last = is_word(p, n, "chunked");
        n_chunked += last;
        n_coding++;
    }
    if (n_field > 1 || n_chunked > 1 || (n_chunked == 1 && !last))
        return ENG_HTTP_CODING;
    out->chunked = n_chunked == 1 && n_coding == 1;
    return out->chunked ? ENG_HTTP_OK : ENG_HTTP_CODING_UNKNOWN;
}

/* Digits only: no sign, no list, no 0x [9110:8.6].  Digits behind those that exceed max_body do not count. */
static enum eng_http_fault check_length(struct eng_http_head *out, const char *p, size_t max_body)
{
    if (!*p)
        return ENG_HTTP_LENGTH;
    for (; is_digit(*p); p++)
        out->n_body = out->n_body > max_body ? out->n_body : out->n_body * 10 + (size_t)(*p - '0');
    if (*p)
        return ENG_HTTP_LENGTH;
    return out->n_body > max_body ? ENG_HTTP_BODY_LONG : ENG_HTTP_OK;
}

/* The end of the body [6.3]. */
static enum eng_http_fault check_body(struct eng_http_head *out, size_t max_body)
{
    int n_length, n_coding;
    const char *length = find(out, "Content-Length", &n_length);
    const char *coding = find(out, "Transfer-Encoding", &n_coding);
    if (n_length && n_coding)
        return ENG_HTTP_LENGTH_AND_CODING;
    if (n_length > 1)
        return ENG_HTTP_LENGTH_TWO;
    if (n_coding)
        return check_coding(out, coding, n_coding);
    return n_length ? check_length(out, length, max_body) : ENG_HTTP_OK;
}

/* Connection [9.3], and Expect, which counts from HTTP/1.1 on [9110:10.1.1]. */
static enum eng_http_fault check_connection(struct eng_http_head *out)
{
    out->keep_alive = !out->old;
    bool close = false;
    for (int i = 0; i < out->n_field; i++) {
        const struct eng_http_field *f = &out->field[i];
        const char *list = strcasecmp(f->name, "Connection") ? NULL : f->value, *p;
        for (size_t n; eng_http_next_element(&list, &p, &n);) {
            close = close || is_word(p, n, "close");
            out->keep_alive = out->keep_alive || is_word(p, n, "keep-alive");
        }
        if (out->old || strcasecmp(f->name, "Expect") != 0)
            continue;
        if (strcasecmp(f->value, "100-continue") != 0)
            return ENG_HTTP_EXPECT;
        out->expects_continue = true;
    }
    out->keep_alive = out->keep_alive && !close;
    return ENG_HTTP_OK;
}

enum eng_http_fault eng_http_head_parse(struct eng_http_head *out, char *head, size_t n, size_t max_body)
{
    enum eng_http_fault fault = ENG_HTTP_OK;
    *out = (struct eng_http_head){ 0 };
    kn_assert(max_body <= ENG_HTTP_BODY_BYTES);
    char *line = head + 2 * (n >= 2 && head[0] == '\r'), *end = head + n;
    for (bool first = true; !fault && line < end && line[0] != '\r'; first = false) {
        char *cr = memchr(line, '\r', (size_t)(end - line));
        kn_assert(cr);
        *cr = 0;
        fault = first ? parse_request_line(out, line) : parse_field(out, line);
        line = cr + 2;
    }
    if (!fault && !(fault = check_host(out)) && !(fault = check_connection(out)))
        fault = check_body(out, max_body);
    return fault;
}

/* ---- chunked bodies [7.1] -------------------------------------------------------------------- */

/* The parts of: SIZE ; NAME = VALUE CRLF DATA CRLF .. 0 CRLF NAME: VALUE CRLF .. CRLF.  Spaces may stand before and
 * behind ; and =, if a name or value follows. */
enum chunk_state {
    SIZE,
    BEFORE_SEMICOLON,
    BEFORE_NAME,
    NAME,
    BEFORE_EQUALS,
    BEFORE_VALUE,
    VALUE,
    QUOTED,
    ESCAPED,
    QUOTE_END,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER,
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    LAST_LF,
    BAD,
};

/* The state behind a character that may end a size, a name or a value. */
static int after_part(char c)
{
    return c == '\r' ? SIZE_LF : c == ';' ? BEFORE_NAME : is_space(c) ? BEFORE_SEMICOLON : BAD;
}

static int take_extension(int state, char c)
{
    switch (state) {
    case BEFORE_SEMICOLON:
        return c == ';' ? BEFORE_NAME : is_space(c) ? BEFORE_SEMICOLON : BAD;
    case BEFORE_NAME:
        return is_space(c) ? BEFORE_NAME : is_token(c) ? NAME : BAD;
    case NAME:
        return is_token(c) ? NAME : c == '=' ? BEFORE_VALUE : is_space(c) ? BEFORE_EQUALS : after_part(c);
    case BEFORE_EQUALS:
        return is_space(c) ? BEFORE_EQUALS : c == '=' ? BEFORE_VALUE : c == ';' ? BEFORE_NAME : BAD;
    case BEFORE_VALUE:
        return is_space(c) ? BEFORE_VALUE : c == '"' ? QUOTED : is_token(c) ? VALUE : BAD;
    case VALUE:
        return is_token(c) ? VALUE : after_part(c);
    case QUOTED:
        return c == '"' ? QUOTE_END : c == '\\' ? ESCAPED : is_control(c) && c != '\t' ? BAD : QUOTED;
    case ESCAPED:
        return is_control(c) && c != '\t' ? BAD : QUOTED;
    default: /* QUOTE_END */
        return after_part(c);
    }
}

static int take_trailer(int state, char c)
{
    switch (state) {
    case TRAILER:
        return c == '\r' ? LAST_LF : is_token(c) ? TRAILER_NAME : BAD;
    case TRAILER_NAME:
        return c == ':' ? TRAILER_VALUE : is_token(c) ? TRAILER_NAME : BAD;
    case TRAILER_VALUE:
        return c == '\r' ? TRAILER_LF : is_control(c) && c != '\t' ? BAD : TRAILER_VALUE;
    default: /* TRAILER_LF */
        return c == '\n' ? TRAILER : BAD;
    }
}

/* A character of the size.  The size is at most max_body before each digit, so no digit can overflow it. */
static enum eng_http_fault take_size(struct eng_http_chunks *c, char byte, size_t max_body)
{
    int digit = hex_digit(byte);
    if (digit < 0) {
        c->state = c->n_digit ? after_part(byte) : BAD;
        return ENG_HTTP_OK;
    }
    if (++c->n_digit > 16)
        return ENG_HTTP_CHUNK;
    c->left = c->left * 16 + (size_t)digit;
    return c->left > max_body ? ENG_HTTP_BODY_LONG : ENG_HTTP_OK;
}

/* A byte that is no data. */
static enum eng_http_fault take_byte(struct eng_http_chunks *c, char byte, size_t max_body, size_t most_extra)
{
    if (c->state == SIZE)
        return take_size(c, byte, max_body);
    if (c->state < SIZE_LF) {
        c->state = take_extension(c->state, byte);
        return ++c->n_extra > most_extra ? ENG_HTTP_CHUNK_LONG : ENG_HTTP_OK;
    }
    if (c->state >= TRAILER && c->state <= TRAILER_LF) {
        c->state = take_trailer(c->state, byte);
        return ++c->n_extra > most_extra ? ENG_HTTP_TRAILER_LONG : ENG_HTTP_OK;
    }
    if (byte != (c->state == DATA_CR ? '\r' : '\n')) {
        c->state = BAD;
    } else if (c->state == SIZE_LF) {
        if (c->left > max_body - c->n_body)
            return ENG_HTTP_BODY_LONG;
        c->n_body += c->left;
        c->state = c->left ? DATA : TRAILER;
        c->n_extra = c->left ? c->n_extra : 0;
    } else if (c->state == DATA_LF) {
        c->n_digit = 0;
        c->state = SIZE;
    } else if (c->state == DATA_CR) {
        c->state = DATA_LF;
    } else {
        c->done = true;
    }
    return ENG_HTTP_OK;
}

size_t eng_http_chunks_take(struct eng_http_chunks *c, const char *p, size_t n, size_t max_body, size_t most_extra,
                            const char **data, size_t *n_data, enum eng_http_fault *fault)
{
    size_t i = 0;
    *n_data = 0;
    *fault = ENG_HTTP_OK;
    while (i < n && !c->done && !*fault) {
        if (c->state == DATA) {
            *data = p + i;
            *n_data = n - i < c->left ? n - i : c->left;
            c->left -= *n_data;
            c->state = c->left ? DATA : DATA_CR;
            return i + *n_data;
        }
        *fault = take_byte(c, p[i++], max_body, most_extra);
        if (c->state == BAD && !*fault)
            *fault = ENG_HTTP_CHUNK;
    }
    return i;
}
