/* tests/engine/hub/hub_server.h - a small server on the loopback that speaks the hub's requests, with faults to order.
 *
 * Two ports, as the hub has two hosts: one answers api/models/... and .../resolve/..., the other sends large files. 
 * One thread answers one connection after the other and closes each.  Requests are logged as "GET /path", with " auth"
 * if they bring a token, " from N" if they ask for a range, and "cdn: " before those of the second port. */
#ifndef TESTS_ENGINE_HUB_HUB_SERVER_H
#define TESTS_ENGINE_HUB_HUB_SERVER_H

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/send.h"

#define HUB_SERVER_FILES  32
#define HUB_SERVER_LOG    256
#define HUB_SERVER_COMMIT "0123456789abcdef0123456789abcdef01234567"

struct hub_server_file {
    const char *path;
    char *bytes;
    size_t n;
    bool large;
    char oid[41], sha256[65];
};

static struct hub_server {
    const char *repo, *commit;
    struct hub_server_file file[HUB_SERVER_FILES];
    int n_file, listener[2], port[2], quit[2];
    pthread_t thread;
    pthread_mutex_t lock; /* of the log and of the faults below, which a test sets between two calls */
    char log[HUB_SERVER_LOG][400];
    int n_log;
    /* faults */
    int n_busy, busy_wait_s; /* this many requests get 429 */
    int n_fault;             /* this many requests get 500 */
    int n_cut;               /* this many transfers of large files end after cut_at bytes */
    size_t cut_at;
    bool no_ranges;          /* all is sent, whatever the range */
    bool wrong;              /* large files have a wrong first byte */
    bool too_much;           /* large files are longer than published */
    bool gated;              /* files get 403 */
    const char *token;       /* requests without it get 401 */
    bool slow;               /* large files arrive in many pieces */
    bool elsewhere;          /* the list's next page is at another host */
    int page;                /* files on one page of the list; 0: all */
    const char *tree, *info; /* replies instead of the true ones */
    const char *location;    /* where large files are, instead of the second port */
} hub_server = { .lock = PTHREAD_MUTEX_INITIALIZER };

static inline void hub_server_hex(char *out, const EVP_MD *kind, const char *head, size_t n_head, const void *p,
                                  size_t n)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned k = 0;
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    EVP_DigestInit_ex(c, kind, NULL);
    EVP_DigestUpdate(c, head, n_head);
    EVP_DigestUpdate(c, p, n);
    EVP_DigestFinal_ex(c, digest, &k);
    EVP_MD_CTX_free(c);
    for (unsigned i = 0; i < k; i++)
        sprintf(out + 2 * i, "%02x", digest[i]);
}

/* Adds a file; the bytes are copied. */
static inline struct hub_server_file *hub_server_add(const char *path, const void *bytes, size_t n, bool large)
{
    struct hub_server_file *f = &hub_server.file[hub_server.n_file++];
    char head[32];
    *f = (struct hub_server_file){ .path = path, .bytes = malloc(n + 1), .n = n, .large = large };
    memcpy(f->bytes, bytes, n);
    hub_server_hex(f->oid, EVP_sha1(), head, (size_t)sprintf(head, "blob %zu", n) + 1, bytes, n);
    hub_server_hex(f->sha256, EVP_sha256(), "", 0, bytes, n);
    return f;
}

/* ---- answers --------------------------------------------------------------------------------------- */

struct hub_server_request {
    char method[8], path[1024], token[256];
    size_t from;
    bool cdn, has_range;
};

static inline void hub_server_say(int fd, int status, const char *headers, const char *body)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", status,
                     strlen(body), headers);
    send_bytes(fd, text, (size_t)n);
    send_bytes(fd, body, strlen(body));
}

static inline void hub_server_tree(int fd, const char *path)
{
    static char body[1 << 16];
    char link[300] = "";
    const char *cursor = strstr(path, "cursor=");
    int first = cursor ? atoi(cursor + 7) : 0, last = hub_server.n_file;
    size_t n = (size_t)sprintf(body, "[{\"type\":\"directory\",\"oid\":\"%s\",\"size\":0,\"path\":\"d\"}",
                               hub_server.commit);
    if (hub_server.page && first + hub_server.page < last) {
        last = first + hub_server.page;
        sprintf(link, "Link: <http://127.0.0.1:%d/api/models/%s/tree/%s?recursive=true&cursor=%d>; rel=\"next\"\r\n",
                hub_server.port[hub_server.elsewhere], hub_server.repo, hub_server.commit, last);
    }
    for (int i = first; i < last; i++) {
        const struct hub_server_file *f = &hub_server.file[i];
        n += (size_t)sprintf(body + n, ",{\"type\":\"file\",\"oid\":\"%s\",\"size\":%zu,\"path\":\"%s\"", f->oid, f->n,
                             f->path);
        if (f->large)
            n += (size_t)sprintf(body + n, ",\"lfs\":{\"oid\":\"%s\",\"size\":%zu,\"pointerSize\":130}", f->sha256,
                                 f->n);
        n += (size_t)sprintf(body + n, "}");
    }
    sprintf(body + n, "]");
    hub_server_say(fd, 200, link, hub_server.tree ? hub_server.tree : body);
}

/* Sends a file from r->from on. */
static inline void hub_server_bytes(int fd, const struct hub_server_request *r, const struct hub_server_file *f,
                                    const char *headers)
{
    char head[600], range[100] = "";
    bool part = r->has_range && !hub_server.no_ranges;
    size_t from = part ? r->from : 0, more = hub_server.too_much && f->large ? 10 : 0, n = f->n - from + more;
    if (from >= f->n && f->n) {
        hub_server_say(fd, 416, "", "");
        return;
    }
    if (part)
        sprintf(range, "Content-Range: bytes %zu-%zu/%zu\r\n", from, f->n - 1, f->n);
    int k = snprintf(head, sizeof head,
                     "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %zu\r\nAccept-Ranges: bytes\r\n%s%s\r\n",
                     part ? 206 : 200, n, range, headers);
    send_bytes(fd, head, (size_t)k);
    if (!strcmp(r->method, "HEAD"))
        return;
    if (f->large && hub_server.n_cut > 0 && n > hub_server.cut_at) {
        hub_server.n_cut--;
        n = hub_server.cut_at;
    }
    char *copy = calloc(1, n + 1);
    memcpy(copy, f->bytes + from, n < f->n - from ? n : f->n - from);
    copy[0] ^= (char)(hub_server.wrong && f->large && from == 0);
    size_t piece = hub_server.slow ? n / 20 + 1 : n;
    for (size_t at = 0; at < n; at += piece) {
        send_bytes(fd, copy + at, at + piece < n ? piece : n - at);
        if (hub_server.slow)
            usleep(20000);
    }
    free(copy);
}

static inline void hub_server_resolve(int fd, const struct hub_server_request *r, const char *path)
{
    char headers[500];
    if (hub_server.gated) {
        hub_server_say(fd, 403, "X-Error-Code: GatedRepo\r\n", "Access to model is restricted");
        return;
    }
    for (int i = 0; i < hub_server.n_file; i++) {
        const struct hub_server_file *f = &hub_server.file[i];
        if (strcmp(f->path, path) != 0)
            continue;
        if (!f->large) {
            snprintf(headers, sizeof headers, "ETag: \"%s\"\r\nX-Repo-Commit: %s\r\n", f->oid, hub_server.commit);
            hub_server_bytes(fd, r, f, headers);
            return;
        }
        snprintf(headers, sizeof headers,
                 "X-Linked-Etag: \"%s\"\r\nX-Linked-Size: %zu\r\nX-Repo-Commit: %s\r\nLocation: ", f->sha256, f->n,
                 hub_server.commit);
        size_t n = strlen(headers);
        if (hub_server.location)
            snprintf(headers + n, sizeof headers - n, "%s\r\n", hub_server.location);
        else
            snprintf(headers + n, sizeof headers - n, "http://127.0.0.1:%d/%s\r\n", hub_server.port[1], f->sha256);
        hub_server_say(fd, 302, headers, "");
        return;
    }
    hub_server_say(fd, 404, "X-Error-Code: EntryNotFound\r\n", "no such file");
}

static inline void hub_server_answer(int fd, const struct hub_server_request *r)
{
    char api[300], at[300];
    int n_api = snprintf(api, sizeof api, "/api/models/%s/", hub_server.repo);
    int n_at = snprintf(at, sizeof at, "/%s/resolve/", hub_server.repo);
    const char *rest = r->path;
    if (hub_server.n_busy > 0 || hub_server.n_fault > 0) {
        char wait[64];
        bool busy = hub_server.n_busy > 0;
        --*(busy ? &hub_server.n_busy : &hub_server.n_fault);
        snprintf(wait, sizeof wait, busy ? "Retry-After: %d\r\n" : "", hub_server.busy_wait_s);
        hub_server_say(fd, busy ? 429 : 500, wait, "no");
    } else if (r->cdn) {
        for (int i = 0; i < hub_server.n_file; i++)
            if (!strcmp(r->path + 1, hub_server.file[i].sha256)) {
                hub_server_bytes(fd, r, &hub_server.file[i], "");
                return;
            }
        hub_server_say(fd, 404, "", "");
    } else if (hub_server.token && strcmp(r->token, hub_server.token) != 0)
        hub_server_say(fd, 401, r->token[0] ? "" : "X-Error-Code: RepoNotFound\r\n",
                       r->token[0] ? "Invalid credentials" : "Repository not found");
    else if (!strncmp(rest, api, (size_t)n_api) && !strncmp(rest + n_api, "revision/", 9)) {
        char body[200];
        bool known = !strcmp(rest + n_api + 9, "main") || !strcmp(rest + n_api + 9, hub_server.commit) ||
                     !strncmp(rest + n_api + 9, "main?", 5);
        snprintf(body, sizeof body, "{\"id\":\"%s\",\"sha\":\"%s\",\"siblings\":[]}", hub_server.repo,
                 hub_server.commit);
        hub_server_say(fd, known ? 200 : 404, known ? "" : "X-Error-Code: RevisionNotFound\r\n",
                       hub_server.info ? hub_server.info : body);
    } else if (!strncmp(rest, api, (size_t)n_api) && !strncmp(rest + n_api, "tree/", 5))
        hub_server_tree(fd, rest);
    else if (!strncmp(rest, at, (size_t)n_at) && strchr(rest + n_at, '/'))
        hub_server_resolve(fd, r, strchr(rest + n_at, '/') + 1);
    else
        hub_server_say(fd, 401, "X-Error-Code: RepoNotFound\r\n", "Repository not found");
}

/* ---- connections ------------------------------------------------------------------------------------ */

static inline void hub_server_connection(int fd, bool cdn)
{
    char text[8192];
    size_t n = 0;
    struct hub_server_request r = { .cdn = cdn };
    while (n < sizeof text - 1) {
        ssize_t k = receive_bytes(fd, text + n, sizeof text - 1 - n);
        if (k <= 0)
            return;
        n += (size_t)k;
        text[n] = 0;
        if (strstr(text, "\r\n\r\n"))
            break;
    }
    if (sscanf(text, "%7s %1023s", r.method, r.path) != 2)
        return;
    char *auth = strcasestr(text, "\r\nauthorization: bearer "), *range = strcasestr(text, "\r\nrange: bytes=");
    if (auth)
        sscanf(auth + 24, "%255[^\r]", r.token);
    if (range) {
        r.has_range = true;
        r.from = strtoull(range + 15, NULL, 10);
    }
    pthread_mutex_lock(&hub_server.lock);
    int at = hub_server.n_log < HUB_SERVER_LOG ? hub_server.n_log++ : HUB_SERVER_LOG - 1, k;
    k = snprintf(hub_server.log[at], sizeof hub_server.log[at], "%s%s %.300s%s", cdn ? "cdn: " : "", r.method, r.path,
                 auth ? " auth" : "");
    if (range)
        snprintf(hub_server.log[at] + k, sizeof hub_server.log[at] - (size_t)k, " from %zu", r.from);
    if (getenv("HUB_SERVER_PRINTS"))
        fprintf(stderr, "%s\n", hub_server.log[at]);
    hub_server_answer(fd, &r);
    pthread_mutex_unlock(&hub_server.lock);
}

static inline void *hub_server_run(void *unused)
{
    struct pollfd p[3] = { { hub_server.listener[0], POLLIN, 0 },
                           { hub_server.listener[1], POLLIN, 0 },
                           { hub_server.quit[0], POLLIN, 0 } };
    (void)unused;
    while (poll(p, 3, -1) >= 0 && !p[2].revents)
        for (int i = 0; i < 2; i++)
            if (p[i].revents) {
                int fd = accept(p[i].fd, NULL, NULL);
                if (fd >= 0) {
                    hub_server_connection(fd, i == 1);
                    shutdown(fd, SHUT_WR);
                    close(fd);
                }
            }
    return NULL;
}

static inline void hub_server_listen(int i, int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    int on = 1;
    hub_server.listener[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(hub_server.listener[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(hub_server.listener[i], (struct sockaddr *)&a, sizeof a) < 0 || listen(hub_server.listener[i], 16) < 0)
        abort();
    getsockname(hub_server.listener[i], (struct sockaddr *)&a, &n);
    hub_server.port[i] = ntohs(a.sin_port);
}

static inline void hub_server_start(const char *repo, int port)
{
    hub_server.repo = repo;
    hub_server.commit = HUB_SERVER_COMMIT;
    hub_server_listen(0, port);
    hub_server_listen(1, port ? port + 1 : 0);
    if (pipe(hub_server.quit) < 0 || pthread_create(&hub_server.thread, NULL, hub_server_run, NULL))
        abort();
}

static inline void hub_server_stop(void)
{
    if (write(hub_server.quit[1], "q", 1) != 1)
        abort();
    pthread_join(hub_server.thread, NULL);
    for (int i = 0; i < 2; i++) {
        close(hub_server.listener[i]);
        close(hub_server.quit[i]);
    }
    for (int i = 0; i < hub_server.n_file; i++)
        free(hub_server.file[i].bytes);
    hub_server.n_file = 0;
}

/* Forgets the log and all faults. */
static inline void hub_server_reset(void)
{
    pthread_mutex_lock(&hub_server.lock);
    hub_server.n_log = hub_server.n_busy = hub_server.n_fault = hub_server.n_cut = hub_server.page = 0;
    hub_server.no_ranges = hub_server.wrong = hub_server.too_much = hub_server.gated = hub_server.slow = false;
    hub_server.elsewhere = false;
    hub_server.token = hub_server.tree = hub_server.info = hub_server.location = NULL;
    pthread_mutex_unlock(&hub_server.lock);
}

/* Number of logged requests whose line contains `text`. */
static inline int hub_server_count(const char *text)
{
    int n = 0;
    pthread_mutex_lock(&hub_server.lock);
    for (int i = 0; i < hub_server.n_log; i++)
        n += strstr(hub_server.log[i], text) != NULL;
    pthread_mutex_unlock(&hub_server.lock);
    return n;
}

#endif
