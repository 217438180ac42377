/* tests/engine/serve/http_rules.h - the rules of RFC 9112 and RFC 9110 by which the server reads a request: each row has
 * a rule with its section, a case, and the answer.
 *
 * Answer 200: the request is valid, and the connection goes on. With `closes`, it is closed after the answer. Any other
 * answer: the request is refused with this status, and the connection is closed, since the bytes that follow have no
 * known meaning. The second request of a case that smuggles one (GET /second) must never be answered.
 *
 * Rules of the kind MAY or SHOULD that the server applies in their strict form are marked "strict". */
#ifndef TESTS_ENGINE_SERVE_HTTP_RULES_H
#define TESTS_ENGINE_SERVE_HTTP_RULES_H

#include <stdbool.h>
#include <stddef.h>

#define RULES_MAX_HEADER 16384
#define RULES_MAX_BODY   16

struct rule {
    const char *section, *rule, *bytes;
    int status;
    size_t n;         /* of bytes; 0: strlen */
    const char *body; /* the expected body of a valid request; NULL: empty */
    bool closes;
};

#define H       "Host: a\r\n"
#define GET     "GET / HTTP/1.1\r\n" H
#define POST    "POST / HTTP/1.1\r\n" H
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define SECOND  "GET /second HTTP/1.1\r\n" H "\r\n"

/* clang-format off */
static const struct rule rules[] = {
    /* ---- lines -------------------------------------------------------------------------------- */
    { "2.2",   "a request",                                   GET "\r\n", .status = 200 },
    { "2.2",   "one empty line may precede a request",        "\r\n" GET "\r\n", .status = 200 },
    { "2.2",   "two may not (strict)",                        "\r\n\r\n" GET "\r\n", .status = 400 },
    { "2.2",   "no LF without CR: request line (strict)",     "GET / HTTP/1.1\n" H "\r\n", .status = 400 },
    { "2.2",   "no LF without CR: header (strict)",           "GET / HTTP/1.1\r\nHost: a\n\r\n", .status = 400 },
    { "2.2",   "no LF without CR: empty line (strict)",       GET "\n", .status = 400 },
    { "2.2",   "no CR without LF: in a value",                GET "A: b\rc\r\n\r\n", .status = 400 },
    { "2.2",   "no CR without LF: as a line's end",           "GET / HTTP/1.1\rHost: a\r\r", .status = 400 },
    { "2.2",   "no CR CR LF",                                 GET "A: b\r\r\n\r\n", .status = 400 },
    { "2.2",   "no space between request line and headers",   "GET / HTTP/1.1\r\n A: b\r\n" H "\r\n", .status = 400 },
    { "5.5*",  "no NUL in a value",                           .bytes = GET "A: b\0c\r\n\r\n", .n = sizeof(GET "A: b\0c\r\n\r\n") - 1, .status = 400 },
    { "5.5*",  "no NUL in a name",                            .bytes = GET "A\0: b\r\n\r\n", .n = sizeof(GET "A\0: b\r\n\r\n") - 1, .status = 400 },
    { "5.5*",  "no NUL in a target",                          .bytes = "GET /\0 HTTP/1.1\r\n" H "\r\n", .n = sizeof("GET /\0 HTTP/1.1\r\n" H "\r\n") - 1, .status = 400 },
    { "5.5*",  "no other control character (strict)",         GET "A: b\x01\r\n\r\n", .status = 400 },
    { "5.5*",  "no DEL (strict)",                             GET "A: b\x7f\r\n\r\n", .status = 400 },
    { "5.5*",  "TLS is not HTTP",                             "\x16\x03\x01\x02\x01\x01", .status = 400 },
    { "5.5*",  "a value may have tabs and bytes from 0x80 on", GET "A: b\tc\xff\xc3\xa4\r\n\r\n", .status = 200 },
    /* ---- request line ------------------------------------------------------------------------- */
    { "3",     "two parts, as in HTTP/0.9",                   "GET /\r\n\r\n", .status = 400 },
    { "3",     "no HTTP at all",                              "nonsense\r\n\r\n", .status = 400 },
    { "3",     "one space between the parts: two (strict)",   "GET  / HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3",     "one space between the parts: tab (strict)",   "GET\t/ HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3",     "no space at the end (strict)",                "GET / HTTP/1.1 \r\n" H "\r\n", .status = 400 },
    { "3",     "no space before the method",                  " GET / HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3",     "no space in a target",                        "GET /a b HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.1",   "a method is a token",                         "G(T / HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "9110:9.1", "an unknown method",                        "BREW / HTTP/1.1\r\n" H "\r\n", .status = 501 },
    { "9110:9.1", "a method has its case",                    "get / HTTP/1.1\r\n" H "\r\n", .status = 501 },
    { "9110:9.3.6", "no tunnels",                             "CONNECT a:80 HTTP/1.1\r\n" H "\r\n", .status = 501 },
    { "9110:9.3.8", "no loopback of requests",                "TRACE / HTTP/1.1\r\n" H "\r\n", .status = 501 },
    { "2.3",   "HTTP/1.0",                                    "GET / HTTP/1.0\r\n\r\n", .status = 200, .closes = true },
    { "2.3",   "a higher minor version is 1.1",               "GET / HTTP/1.9\r\n" H "\r\n", .status = 200 },
    { "2.3",   "a higher major version",                      "GET / HTTP/2.0\r\n" H "\r\n", .status = 505 },
    { "2.3",   "the preface of HTTP/2",                       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", .status = 505 },
    { "2.3",   "a lower major version",                       "GET / HTTP/0.9\r\n" H "\r\n", .status = 505 },
    { "2.3",   "one digit: HTTP/1.10",                        "GET / HTTP/1.10\r\n" H "\r\n", .status = 400 },
    { "2.3",   "one digit: HTTP/01.1",                        "GET / HTTP/01.1\r\n" H "\r\n", .status = 400 },
    { "2.3",   "no minor version",                            "GET / HTTP/1\r\n" H "\r\n", .status = 400 },
    { "2.3",   "its case",                                    "GET / http/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.1", "a path with a query",                         "GET /?a=b&c=%20d HTTP/1.1\r\n" H "\r\n", .status = 200 },
    { "3.2.1", "a path begins with a slash",                  "GET a HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.1", "no fragment",                                 "GET /#a HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3986:2.1", "%XX",                                      "GET /%zz HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3986:2",   "other characters are encoded (strict)",    "GET /\"<\\^ HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3986:2",   "bytes from 0x80 on are encoded (strict)",  "GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.2", "a URL",                                       "GET http://a/ HTTP/1.1\r\n" H "\r\n", .status = 200 },
    { "3.2.2", "a URL without a path",                        "GET http://a HTTP/1.1\r\n" H "\r\n", .status = 200 },
    { "3.2.2", "a URL with a query only",                     "GET HTTP://a:80?b HTTP/1.1\r\n" H "\r\n", .status = 200 },
    { "3.2.2", "a URL counts before the header Host",         "GET http://a/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", .status = 200 },
    { "3.2.2", "and not the other way round",                 "GET http://evil.example/ HTTP/1.1\r\n" H "\r\n", .status = 421 },
    { "3.2.2", "no user in a URL",                            "GET http://b@a/ HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.2", "no empty host",                               "GET http:/// HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.2", "no other scheme",                             "GET ftp://a/ HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.3", "an authority is for CONNECT only",            "GET a:80 HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.4", "* is for OPTIONS only",                       "GET * HTTP/1.1\r\n" H "\r\n", .status = 400 },
    { "3.2.4", "OPTIONS *",                                   "OPTIONS * HTTP/1.1\r\n" H "\r\n", .status = 200 },
    /* ---- header lines ------------------------------------------------------------------------- */
    { "5.1",   "no space before the colon",                   GET "A : b\r\n\r\n", .status = 400 },
    { "5.1",   "no tab before the colon",                     GET "A\t: b\r\n\r\n", .status = 400 },
    { "5.1",   "a colon",                                     GET "no colon\r\n\r\n", .status = 400 },
    { "5.1",   "a name is not empty",                         GET ": b\r\n\r\n", .status = 400 },
    { "5.1",   "a name is a token",                           GET "A(: b\r\n\r\n", .status = 400 },
    { "5.1",   "a name has no byte from 0x80 on",             GET "\xc3\xa4: b\r\n\r\n", .status = 400 },
    { "5",     "a value may be empty",                        GET "A:\r\nB: \t \r\n\r\n", .status = 200 },
    { "5.2",   "no folded line: space (strict)",              GET "A: b\r\n c\r\n\r\n", .status = 400 },
    { "5.2",   "no folded line: tab (strict)",                GET "A: b\r\n\tc\r\n\r\n", .status = 400 },
    { "5.2",   "no folded line that hides a coding",          POST "A: b\r\n Transfer-Encoding: chunked\r\n\r\n", .status = 400 },
    /* ---- Host --------------------------------------------------------------------------------- */
    { "3.2",   "HTTP/1.1 without Host",                       "GET / HTTP/1.1\r\n\r\n", .status = 400 },
    { "3.2",   "two Hosts",                                   GET "Host: a\r\n\r\n", .status = 400 },
    { "3.2",   "two Hosts in HTTP/1.0",                       "GET / HTTP/1.0\r\n" H "host: b\r\n\r\n", .status = 400 },
    { "3.2",   "two Hosts beside a URL",                      "GET http://a/ HTTP/1.1\r\n" H "Host: b\r\n\r\n", .status = 400 },
    { "3.2",   "a Host is a name: not a list",                "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", .status = 400 },
    { "3.2",   "a Host is a name: not a path",                "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", .status = 400 },
    { "3.2",   "a Host is a name: no user",                   "GET / HTTP/1.1\r\nHost: b@a\r\n\r\n", .status = 400 },
    { "3.2",   "a port is a number",                          "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", .status = 400 },
    { "3.2",   "one port",                                    "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", .status = 400 },
    { "3.2",   "a name with a port",                          "GET / HTTP/1.1\r\nHost: A:8080\r\n\r\n", .status = 200 },
    { "3.2",   "an address",                                  "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", .status = 200 },
    { "3.2",   "half an address",                             "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", .status = 400 },
    { "9110:7.4", "a name that is not the server's",          "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", .status = 421 },
    { "9110:7.4", "no name",                                  "GET / HTTP/1.1\r\nHost:\r\n\r\n", .status = 421 },
    /* ---- the end of the body ------------------------------------------------------------------ */
    { "6.3",   "Content-Length",                              POST "Content-Length: 2\r\n\r\n{}", .status = 200, .body = "{}" },
    { "6.3",   "no length and no coding: no body",            POST "\r\n", .status = 200 },
    { "6.3",   "GET may have a body",                         GET "Content-Length: 2\r\n\r\n{}", .status = 200, .body = "{}" },
    { "6.3",   "two different lengths",                       POST "Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}" SECOND, .status = 400 },
    { "6.3",   "two equal lengths (strict)",                  POST "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" SECOND, .status = 400 },
    { "6.3",   "a list of lengths (strict)",                  POST "Content-Length: 2, 2\r\n\r\n{}" SECOND, .status = 400 },
    { "6.1",   "a length and a coding (strict)",              POST "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "6.1",   "a coding and a length (strict)",              POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: hexadecimal",          POST "Content-Length: 0x1e\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: sign",                 POST "Content-Length: +30\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: negative",             POST "Content-Length: -5\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: fraction",             POST "Content-Length: 2.0\r\n\r\n{}" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: space",                POST "Content-Length: 1 2\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: words",                POST "Content-Length: two\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length is digits: empty",                POST "Content-Length:\r\n\r\n" SECOND, .status = 400 },
    { "9110:8.6", "a length may begin with zeros",            POST "Content-Length: 0000000000000000000000002\r\n\r\n{}", .status = 200, .body = "{}" },
    { "9110:15.5.14", "a body that is too long",              POST "Content-Length: 17\r\n\r\n", .status = 413 },
    { "9110:15.5.14", "a length of 2^64",                     POST "Content-Length: 18446744073709551616\r\n\r\n", .status = 413 },
    { "9110:15.5.14", "a length of 2^64 + 2",                 POST "Content-Length: 18446744073709551618\r\n\r\n{}", .status = 413 },
    { "9110:15.5.14", "a length of 60 digits",                POST "Content-Length: 999999999999999999999999999999999999999999999999999999999999\r\n\r\n", .status = 413 },
    { "6.1",   "chunked",                                     CHUNKED "2\r\n{}\r\n0\r\n\r\n", .status = 200, .body = "{}" },
    { "7",     "a coding has no case",                        POST "transfer-encoding: ChunKed\r\n\r\n2\r\n{}\r\n0\r\n\r\n", .status = 200, .body = "{}" },
    { "6.1",   "no coding in HTTP/1.0",                       "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "6.1",   "an unknown coding",                           POST "Transfer-Encoding: gzip\r\n\r\n" SECOND, .status = 501 },
    { "6.1",   "an unknown coding: identity",                 POST "Transfer-Encoding: identity\r\n\r\n" SECOND, .status = 501 },
    { "6.1",   "an unknown coding: xchunked",                 POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SECOND, .status = 501 },
    { "6.1",   "an unknown coding: in quotes",                POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" SECOND, .status = 501 },
    { "7",     "chunked has no parameter",                    POST "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n" SECOND, .status = 501 },
    { "6.1",   "an unknown coding before chunked",            POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SECOND, .status = 501 },
    { "6.3",   "chunked is the last coding",                  POST "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "6.1",   "chunked occurs once",                        POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "6.1",   "one header with codings (strict)",            POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "6.1",   "one header with codings: identity (strict)",  POST "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "5.6.1*", "no empty coding (strict)",                   POST "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    { "5.6.1*", "a coding",                                   POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n" SECOND, .status = 400 },
    /* ---- chunked bodies ----------------------------------------------------------------------- */
    { "7.1",   "several chunks, sizes with case and zeros",   CHUNKED "1\r\n{\r\n00A\r\n0123456789\r\n1\r\n}\r\n000\r\n\r\n", .status = 200, .body = "{0123456789}" },
    { "7.1",   "no body",                                     CHUNKED "0\r\n\r\n", .status = 200 },
    { "7.1",   "a size is hexadecimal digits: 0x",            CHUNKED "0x2\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size is hexadecimal digits: sign",          CHUNKED "+2\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size is hexadecimal digits: negative",      CHUNKED "-2\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size is hexadecimal digits: words",         CHUNKED "zz\r\n", .status = 400 },
    { "7.1",   "a size is hexadecimal digits: empty",         CHUNKED "\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size is hexadecimal digits: extension only", CHUNKED ";a\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size is hexadecimal digits: empty last",    CHUNKED "\r\n\r\n", .status = 400 },
    { "7.1",   "no space before a size",                      CHUNKED " 2\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "no space behind a size",                      CHUNKED "2 \r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size has at most 16 digits (strict)",       CHUNKED "00000000000000002\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a size of 2^64 - 1",                          CHUNKED "ffffffffffffffff\r\n", .status = 413 },
    { "7.1",   "chunks that are too long together",           CHUNKED "9\r\n012345678\r\n8\r\n", .status = 413 },
    { "7.1",   "a chunk that is too long",                    CHUNKED "11\r\n", .status = 413 },
    { "7.1",   "no LF without CR behind a size (strict)",     CHUNKED "2\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "no CR without LF behind a size",              CHUNKED "2\r{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a chunk ends with CRLF: longer",              CHUNKED "2\r\n{}}\r\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a chunk ends with CRLF: LF (strict)",         CHUNKED "2\r\n{}\n0\r\n\r\n", .status = 400 },
    { "7.1",   "a chunk ends with CRLF: CR",                  CHUNKED "2\r\n{}\r0\r\n\r\n", .status = 400 },
    { "7.1",   "a chunk ends with CRLF: none",                CHUNKED "2\r\n{}0\r\n\r\n", .status = 400 },
    { "7.1.1", "extensions",                                  CHUNKED "2;a;b=c;d=\"e f;\\\"\"\r\n{}\r\n0;g\r\n\r\n", .status = 200, .body = "{}" },
    { "7.1.1", "extensions with spaces",                      CHUNKED "2 ; a = b\t;c\r\n{}\r\n0\r\n\r\n", .status = 200, .body = "{}" },
    { "7.1.1", "an extension has a name",                     CHUNKED "2;\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1.1", "an extension's name is a token",              CHUNKED "2;(\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1.1", "an extension's value is not empty",           CHUNKED "2;a=\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1.1", "an extension ends with CRLF (strict)",        CHUNKED "2;a\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1.1", "no CRLF in a quoted value",                   CHUNKED "2;a=\"\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1.1", "no LF in a quoted value",                     CHUNKED "2;a=\"\n\"\r\n{}\r\n0\r\n\r\n", .status = 400 },
    { "7.1.2", "trailers",                                    CHUNKED "2\r\n{}\r\n0\r\nA: b\r\nC:\r\n\r\n", .status = 200, .body = "{}" },
    { "7.1.2", "a trailer does not count: length",            CHUNKED "2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n", .status = 200, .body = "{}" },
    { "7.1.2", "a trailer does not count: connection",        CHUNKED "2\r\n{}\r\n0\r\nConnection: close\r\n\r\n", .status = 200, .body = "{}" },
    { "7.1.2", "a trailer is NAME: VALUE",                    CHUNKED "0\r\nno colon\r\n\r\n", .status = 400 },
    { "7.1.2", "no folded trailer (strict)",                  CHUNKED "0\r\nA: b\r\n c\r\n\r\n", .status = 400 },
    { "7.1.2", "no space before a trailer's colon",           CHUNKED "0\r\nA : b\r\n\r\n", .status = 400 },
    { "7.1.2", "a trailer ends with CRLF (strict)",           CHUNKED "0\r\nA: b\n\r\n", .status = 400 },
    { "7.1.2", "no NUL in a trailer",                         .bytes = CHUNKED "0\r\nA: \0\r\n\r\n", .n = sizeof(CHUNKED "0\r\nA: \0\r\n\r\n") - 1, .status = 400 },
    { "7.1.2", "the body ends with CRLF",                     CHUNKED "0\r\n\n", .status = 400 },
    /* ---- connections and expectations --------------------------------------------------------- */
    { "9.3",   "close",                                       GET "Connection: close\r\n\r\n", .status = 200, .closes = true },
    { "9.3",   "close in a list, with case",                  GET "Connection: x, CLOSE\r\n\r\n", .status = 200, .closes = true },
    { "9.3",   "close before another word",                   GET "Connection: close, x\r\n\r\n", .status = 200, .closes = true },
    { "9.3",   "close in another header of this name",        GET "Connection: x\r\nConnection: close\r\n\r\n", .status = 200, .closes = true },
    { "9.3",   "close counts before keep-alive",              GET "Connection: keep-alive, close\r\n\r\n", .status = 200, .closes = true },
    { "9.3",   "keep-alive in HTTP/1.0",                      "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", .status = 200 },
    { "9110:10.1.1", "an unknown expectation",                POST "Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", .status = 417 },
    { "9110:10.1.1", "an expectation in HTTP/1.0 has no effect", "POST / HTTP/1.0\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", .status = 200, .body = "{}", .closes = true },
    { "9110:10.1.1", "a body that has come already",          POST "Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n{}", .status = 200, .body = "{}" },
    { "9110:10.1.1", "an expectation and a body that is too long", POST "Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n", .status = 413 },
};
/* clang-format on */

#endif
