/* engine/serve/http_parse.h - heads and chunked bodies of HTTP/1 requests.  Internal to engine.
 *
 *     eng_http_scan over arriving bytes until the head is whole -> eng_http_head_parse
 *     eng_http_chunks_take over the bytes of a chunked body until chunks.done
 *
 * Pure functions over bytes: no socket, no clock, no allocation.
 *
 * Two servers in a row that read a request differently can be made to see different requests (request smuggling).  So
 * this parser is strict: where RFC 9112 and 9110 let a recipient repair or refuse a request, it refuses, and it accepts
 * each rule's own syntax only.  tests/engine/serve/http_rules.h is the table of the rules, with cases and answers. */
#ifndef ENGINE_SERVE_HTTP_PARSE_H
#define ENGINE_SERVE_HTTP_PARSE_H

#include "kernels/core.h"

#define ENG_HTTP_FIELDS       100             /* header lines of a request, at most */
#define ENG_HTTP_TARGET_BYTES 8192            /* of a request target, at most */
#define ENG_HTTP_BODY_BYTES   (SIZE_MAX / 32) /* the largest max_body: sizes below it cannot overflow by one digit */

/* name, status, message to the client */
#define ENG_HTTP_FAULTS(X)                                                                                             \
    X(CONTROL, 400, "the head has a control character")                                                                \
    X(BARE_LF, 400, "a line ends with LF instead of CRLF")                                                             \
    X(BARE_CR, 400, "a CR without LF")                                                                                 \
    X(REQUEST_LINE, 400, "the request line is not METHOD TARGET HTTP/1.1")                                             \
    X(METHOD, 501, "this HTTP method is not supported")                                                                \
    X(TARGET, 400, "the request target is neither a path nor an http URL")                                             \
    X(TARGET_LONG, 414, "the request target is too long")                                                              \
    X(VERSION, 505, "only HTTP/1.0 and HTTP/1.1 are supported")                                                        \
    X(FIELD, 400, "a header line is not NAME: VALUE")                                                                  \
    X(FOLD, 400, "a header line is folded: it begins with a space")                                                    \
    X(HEAD_LONG, 431, "the headers of this request are too long")                                                      \
    X(HOST_NONE, 400, "HTTP/1.1 needs a Host header")                                                                  \
    X(HOST_TWO, 400, "more than one Host header")                                                                      \
    X(HOST_SYNTAX, 400, "the Host header is not NAME or NAME:PORT")                                                    \
    X(HOST_FOREIGN, 421, "this server does not answer for this host name: see --allowed-host")                         \
    X(LENGTH, 400, "Content-Length is not one decimal number")                                                         \
    X(LENGTH_TWO, 400, "more than one Content-Length header")                                                          \
    X(LENGTH_AND_CODING, 400, "both Content-Length and Transfer-Encoding")                                             \
    X(CODING, 400, "Transfer-Encoding is not chunked, once and last")                                                  \
    X(CODING_OLD, 400, "HTTP/1.0 has no Transfer-Encoding")                                                            \
    X(CODING_UNKNOWN, 501, "the only transfer coding that is supported is chunked")                                    \
    X(EXPECT, 417, "the only expectation that is supported is 100-continue")                                           \
    X(BODY_LONG, 413, "the body of this request is too large")                                                         \
    X(CHUNK, 400, "the chunked body is not valid")                                                                     \
    X(CHUNK_LONG, 413, "the chunk extensions of this body are too long")                                               \
    X(TRAILER_LONG, 431, "the trailers of this request are too long")                                                  \
    X(MEMORY, 503, "no memory for this request now")                                                                   \
    X(SLOW, 408, "the request did not arrive in time: see --timeout")

enum eng_http_fault {
    ENG_HTTP_OK,
#define ENG_ENUM(name, status, text) ENG_HTTP_##name,
    ENG_HTTP_FAULTS(ENG_ENUM)
#undef ENG_ENUM
        ENG_HTTP_FAULT_COUNT
};

int eng_http_fault_status(enum eng_http_fault f);
const char *eng_http_fault_text(enum eng_http_fault f);

/* ---- the head -------------------------------------------------------------------------------- */

struct eng_http_scan { /* all zero: no byte yet */
    size_t n;          /* bytes so far */
    int n_line;        /* lines before this one that are not empty */
    bool begun, cr;    /* this line has a character; the last byte is CR */
    bool skipped;      /* an empty line before the request line */
    bool done;         /* the empty line that ends the head has come */
};

/* Takes bytes of a head, at most `most` over all calls, and returns their number: n, or fewer when the head is done or
 * *fault is set.  Refuses control characters and lines that do not end with CRLF. */
size_t eng_http_scan(struct eng_http_scan *s, const char *p, size_t n, size_t most, enum eng_http_fault *fault);

struct eng_http_field {
    const char *name, *value;
};

struct eng_http_head {
    const char *method; /* one of those that eng_http_head_parse knows */
    const char *path;   /* as sent, without the query; begins with / or is * */
    const char *query;  /* as sent, without the question mark; "": none */
    const char *host;   /* of the target if it is a URL, else of the header Host; NULL: none (HTTP/1.0) */
    struct eng_http_field field[ENG_HTTP_FIELDS];
    int n_field;
    bool old; /* HTTP/1.0 */
    bool keep_alive, chunked,
        expects_continue; /* expects_continue: the client waits for 100 before it sends the body */
    size_t n_body;        /* if not chunked */
};

/* Parses a head that eng_http_scan has passed.  The strings of *out point into head[n], which is changed.  A body of
 * more than max_body bytes is a fault. */
enum eng_http_fault eng_http_head_parse(struct eng_http_head *out, char *head, size_t n, size_t max_body);

/* Takes the next element of a comma separated list, without the spaces around it; false at the end of the list, or if it is
 * NULL. */
bool eng_http_next_element(const char **list, const char **p, size_t *n);

/* ---- a chunked body -------------------------------------------------------------------------- */

struct eng_http_chunks { /* all zero: no byte yet */
    int state, n_digit;
    size_t left;    /* bytes of this chunk that are still to come */
    size_t n_body;  /* sum of the chunk sizes so far */
    size_t n_extra; /* bytes of extensions, or of trailers */
    bool done;
};

/* Takes bytes up to the end of the next piece of data, data[*n_data] (which may be empty), or of the body, and
 * returns their number.  Trailers are checked and dropped.  most_extra: limit of the bytes of all extensions, and of
 * all trailers. */
size_t eng_http_chunks_take(struct eng_http_chunks *c, const char *p, size_t n, size_t max_body, size_t most_extra,
                            const char **data, size_t *n_data, enum eng_http_fault *fault);

#endif
