/* evals/load/call.h - one streamed request over HTTP, from a socket that does not block.
 *
 *     call_start -> [ call_io when the socket is ready ]* until it returns true -> call_close
 *
 * Input: an address, a path and a JSON body; output: times, of the first text and of each interval
 * between two texts. Text comes in server-sent events, in chunks or not; an event counts when it carries
 * text, thoughts or a part of a tool call. Token counts come from the server's usage, if it is sent. */
#ifndef EVALS_LOAD_CALL_H
#define EVALS_LOAD_CALL_H

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- addresses --------------------------------------------------------------------------------- */

struct address {
    const char *name;                    /* its name in the tables */
    char host[256], port[16], path[256]; /* path: before /v1, without a final slash */
    struct sockaddr_storage socket;
    socklen_t socket_bytes;
};

/* Reads [NAME=]http://host[:port][/path]; false, with a message, if it is invalid. */
static inline bool address_read(struct address *a, char *text)
{
    char *url = strstr(text, "http://"), *equals = strchr(text, '=');
    if (url && url > text && equals == url - 1)
        *equals = 0;
    else if (url != text)
        url = NULL;
    a->name = url == text ? text + 7 : text;
    if (!url || sscanf(url + 7, "%255[^:/]", a->host) != 1) {
        fprintf(stderr, "load: '%s' is no address: [NAME=]http://host:port\n", text);
        return false;
    }
    const char *rest = url + 7 + strlen(a->host);
    snprintf(a->port, sizeof a->port, "%s", rest[0] == ':' ? "" : "80");
    if (rest[0] == ':')
        rest += 1 + (sscanf(rest + 1, "%15[0-9]", a->port) == 1 ? strlen(a->port) : 0);
    snprintf(a->path, sizeof a->path, "%s", rest);
    for (size_t n = strlen(a->path); n && a->path[n - 1] == '/'; n--)
        a->path[n - 1] = 0;
    if (strlen(a->path) >= 3 && !strcmp(a->path + strlen(a->path) - 3, "/v1"))
        a->path[strlen(a->path) - 3] = 0;

    struct addrinfo *found, wish = { .ai_socktype = SOCK_STREAM };
    int e = getaddrinfo(a->host, a->port, &wish, &found);
    if (e) {
        fprintf(stderr, "load: %s:%s: %s\n", a->host, a->port, gai_strerror(e));
        return false;
    }
    memcpy(&a->socket, found->ai_addr, found->ai_addrlen);
    a->socket_bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

/* ---- a call ------------------------------------------------------------------------------------ */

enum call_state { CALL_SEND, CALL_HEAD, CALL_SIZE, CALL_DATA, CALL_AFTER, CALL_END };

struct call {
    int fd;
    enum call_state state;
    char *out; /* [n_out] head and body; n_sent bytes are sent */
    size_t n_out, n_sent;
    char *line; /* [n_line] a line of the head or of the body */
    size_t n_line, room;
    char framing[64]; /* [n_framing] a line between chunks */
    size_t n_framing;
    bool chunked, done; /* done: [DONE] was received */
    size_t left;        /* bytes left of this chunk */
    int status;
    bool is_long;                               /* the prompt is one of --long-prompts */
    uint64_t due_ns, first_ns, last_ns, end_ns; /* first, last: of text */
    long n_event, n_token, n_prompt;            /* tokens: -1 until the usage is received */
    char error[160];                            /* "": no error */
    void (*on_gap)(struct call *c, uint64_t gap_ns);
};

static inline void call_fail(struct call *c, const char *why)
{
    if (!c->error[0])
        snprintf(c->error, sizeof c->error, "%s", why);
    c->state = CALL_END;
}

/* Starts a call; waiting time counts from due_ns. Returns false when no socket can be opened. */
static inline bool call_start(struct call *c, const struct address *a, const char *path, const char *key,
                              const char *body, uint64_t due_ns)
{
    int one = 1;
    size_t n = strlen(body), room = n + 1024 + (key ? strlen(key) : 0);
    c->fd = socket(a->socket.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    c->out = malloc(room);
    if (c->fd < 0 || !c->out)
        return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->n_out = (size_t)snprintf(c->out, room,
                                "POST %s%s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                                "Accept: text/event-stream\r\nConnection: close\r\n%s%s%sContent-Length: %zu\r\n\r\n%s",
                                a->path, path, a->host, a->port, key ? "Authorization: Bearer " : "", key ? key : "",
                                key ? "\r\n" : "", n, body);
    c->due_ns = due_ns;
    c->n_token = c->n_prompt = -1;
    if (connect(c->fd, (const struct sockaddr *)&a->socket, a->socket_bytes) && errno != EINPROGRESS)
        call_fail(c, strerror(errno));
    return true;
}

static inline void call_close(struct call *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->out);
    free(c->line);
    c->out = c->line = NULL;
    c->fd = -1;
}

static inline bool has_text(const json_t *choice)
{
    static const char *const member[] = { "content", "reasoning_content", "reasoning" };
    const json_t *delta = json_object_get(choice, "delta"), *text = json_object_get(choice, "text");
    for (int i = 0; i < 3; i++)
        if (json_string_length(json_object_get(delta, member[i])) > 0)
            return true;
    return json_string_length(text) > 0 || json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static inline void call_event(struct call *c, const char *text, size_t n)
{
    json_error_t why;
    if (n == 6 && !memcmp(text, "[DONE]", 6)) {
        c->done = true;
        return;
    }
    json_t *event = json_loadb(text, n, JSON_ALLOW_NUL, &why); /* text of random weights can have any bytes */
    const json_t *usage = json_object_get(event, "usage"), *error = json_object_get(event, "error");
    if (!event)
        call_fail(c, "an event that is no JSON");
    if (json_is_object(error)) {
        const char *told = json_string_value(json_object_get(error, "message"));
        call_fail(c, told ? told : "an event with an error");
    }
    if (has_text(json_array_get(json_object_get(event, "choices"), 0))) {
        uint64_t now = now_ns();
        if (c->n_event++ == 0)
            c->first_ns = now;
        else
            c->on_gap(c, now - c->last_ns);
        c->last_ns = now;
    }
    if (json_is_object(usage)) {
        c->n_token = (long)json_integer_value(json_object_get(usage, "completion_tokens"));
        c->n_prompt = (long)json_integer_value(json_object_get(usage, "prompt_tokens"));
    }
    json_decref(event);
}

/* Handles a line of the head, of the body, or with the size of a chunk; without its line end. */
static inline void call_line(struct call *c, char *line, size_t n)
{
    if (c->state == CALL_SIZE) {
        c->left = strtoul(line, NULL, 16);
        c->state = c->left ? CALL_DATA : CALL_END;
    } else if (c->state == CALL_AFTER) {
        c->state = CALL_SIZE;
    } else if (c->state == CALL_DATA) {
        if (c->status != 200 && n)
            call_fail(c, line);
        else if (n > 5 && !memcmp(line, "data:", 5))
            call_event(c, line + 5 + (line[5] == ' '), n - 5 - (line[5] == ' '));
    } else if (!c->status) {
        if (sscanf(line, "HTTP/1.%*d %d", &c->status) != 1)
            call_fail(c, "an answer that is no HTTP");
    } else if (n == 0) {
        c->state = c->chunked ? CALL_SIZE : CALL_DATA;
        c->left = SIZE_MAX;
    } else if (!strncasecmp(line, "transfer-encoding:", 18) && strstr(line, "chunked")) {
        c->chunked = true;
    }
}

/* Lines of the body continue from chunk to chunk; lines between chunks are separate. */
static inline void call_bytes(struct call *c, const char *p, size_t n)
{
    for (size_t i = 0; i < n && c->state != CALL_END; i++) {
        bool body = c->state == CALL_DATA || c->state == CALL_HEAD;
        if (!body && c->n_framing == sizeof c->framing - 1)
            call_fail(c, "a chunk without a size");
        if (body && c->n_line + 1 >= c->room) {
            char *more = realloc(c->line, c->room = 2 * c->room + 4096);
            if (!more) {
                call_fail(c, "no memory for a line");
                return;
            }
            c->line = more;
        }
        if (c->state == CALL_DATA && c->chunked)
            c->left--;
        if (p[i] != '\n') {
            if (body)
                c->line[c->n_line++] = p[i];
            else
                c->framing[c->n_framing++] = p[i];
        } else {
            char *line = body ? c->line : c->framing;
            size_t *n_of = body ? &c->n_line : &c->n_framing, length = *n_of;
            length -= length && line[length - 1] == '\r';
            line[length] = 0;
            *n_of = 0;
            call_line(c, line, length);
        }
        if (c->state == CALL_DATA && c->chunked && !c->left)
            c->state = CALL_AFTER;
    }
}

/* Sends and reads as far as possible; returns true when the call is over; error is then set if it failed. */
static inline bool call_io(struct call *c)
{
    char buffer[16384];
    while (c->state == CALL_SEND) {
        ssize_t n = send(c->fd, c->out + c->n_sent, c->n_out - c->n_sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN))
            return false;
        if (n < 0)
            call_fail(c, strerror(errno));
        else if ((c->n_sent += (size_t)n) == c->n_out)
            c->state = CALL_HEAD;
    }
    while (c->state != CALL_END) {
        ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (n < 0) {
            call_fail(c, strerror(errno));
        } else if (n == 0) {
            if (c->state == CALL_DATA && c->n_line)
                call_bytes(c, "\n", 1); /* a body without a final newline */
            c->state = CALL_END;
        } else {
            call_bytes(c, buffer, (size_t)n);
        }
    }
    c->end_ns = now_ns();
    if (!c->error[0] && c->status != 200)
        snprintf(c->error, sizeof c->error, "HTTP status %d", c->status);
    if (!c->error[0] && !c->done)
        snprintf(c->error, sizeof c->error, "the stream ended before [DONE]");
    return true;
}

#endif
