/* tests/soak/client.h - starts a server process, and a minimal client.
 *
 *     server_start -> [ connect_to -> send_request -> read_answer ] -> server_end
 *
 * Answers are compared in their JSON-escaped form: equal characters have equal
 * escapes, in a body and split into events. */
#ifndef TESTS_SOAK_CLIENT_H
#define TESTS_SOAK_CLIENT_H

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core.h"
#include "tests/send.h"

#define CHAT "/v1/chat/completions"

static struct {
    pid_t pid;
    int port;
    const char *host_mem;
} server = { .host_mem = "256M" };

static _Noreturn inline void give_up(const char *what, const char *detail)
{
    int status;
    if (waitpid(server.pid, &status, WNOHANG) == server.pid)
        fprintf(stderr, "serve: the server ended with status 0x%x\n", (unsigned)status);
    else
        kill(server.pid, SIGKILL);
    fprintf(stderr, "serve: %s: %s\n", what, detail);
    exit(1);
}

static inline double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static inline uint64_t next(uint64_t *random) { return kn_mix(*random += KN_GOLDEN); }

/* ---- connections ----------------------------------------------------------------------------- */

static inline int connect_to(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)server.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval limit = { 600, 0 }; /* no byte for so long: the answer is lost */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        give_up("socket", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline size_t write_request(char *out, size_t room, const char *path, const char *body)
{
    return (size_t)snprintf(out, room,
                            "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                            *body ? "POST" : "GET", path, strlen(body), body);
}

/* Opens a connection and sends a request. */
static inline int ask(const char *path, const char *body)
{
    char text[4096];
    int fd = connect_to();
    if (fd < 0)
        give_up("connect", strerror(errno));
    send_bytes(fd, text, write_request(text, sizeof text, path, body));
    return fd;
}

/* ---- answers --------------------------------------------------------------------------------- */

struct answer {
    int status; /* 0: no answer came */
    char *text; /* [n_text] head and body as received */
    size_t n_text;
};

static inline struct answer read_answer(int fd)
{
    struct answer a = { 0 };
    size_t room = 0;
    for (ssize_t n = 1; n > 0; a.n_text += n > 0 ? (size_t)n : 0) {
        if (a.n_text + 4097 > room && !(a.text = realloc(a.text, room = 2 * room + 16384)))
            give_up("an answer", "no memory for it");
        n = receive_bytes(fd, a.text + a.n_text, 4096);
        if (n < 0 && errno == EAGAIN)
            give_up("an answer", "none for ten minutes");
    }
    a.text[a.n_text] = 0;
    if (sscanf(a.text, "HTTP/1.%*d %d", &a.status) != 1)
        a.status = 0;
    close(fd);
    return a;
}

/* Joins the content of a body or of all events, in place. */
static inline char *said(struct answer *a)
{
    char *to = a->text, *from = a->text;
    while ((from = strstr(from, "\"content\":\""))) {
        for (from += 11; *from && *from != '"'; from++) {
            if (*from == '\\')
                *to++ = *from++;
            *to++ = *from;
        }
    }
    *to = 0;
    return a->text;
}

/* The content of a good request's answer; the caller frees it. */
static inline char *text_of(const char *path, const char *body)
{
    struct answer a = read_answer(ask(path, body));
    if (a.status != 200)
        give_up("a good request was refused", a.text);
    return said(&a);
}

/* ---- the server ------------------------------------------------------------------------------ */

static inline void server_start(const char *program, const char *model)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rlimit files;
    char port[16];
    if (bind(fd, (struct sockaddr *)&a, n) || getsockname(fd, (struct sockaddr *)&a, &n))
        give_up("no free port", strerror(errno));
    close(fd);
    server.port = ntohs(a.sin_port);
    snprintf(port, sizeof port, "%d", server.port);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    server.pid = fork();
    if (server.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* a soak that is ended early leaves no server */
        execl(program, program, "serve", "-m", model, "--port", port, "--parallel", "8", "--queue", "256", "--host-mem",
              server.host_mem, "--max-connections", "4096", "--quiet", (char *)NULL);
        perror(program);
        _exit(2);
    }
    for (int i = 0; i < 6000; i++) {
        if ((fd = connect_to()) >= 0) {
            char text[256];
            send_bytes(fd, text, write_request(text, sizeof text, "/health", ""));
            struct answer h = read_answer(fd);
            free(h.text);
            if (h.status == 200)
                return;
        }
        usleep(10000);
    }
    give_up("the server", "not ready after a minute");
}

/* Whether the server ended with status 0 when asked to. */
static inline bool server_end(void)
{
    int status;
    kill(server.pid, SIGTERM);
    return waitpid(server.pid, &status, 0) == server.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Resources of the process. */
struct held {
    long anon_KiB, n_fd, n_thread; /* anon: resident and swapped */
};

static inline struct held server_held(void)
{
    struct held h = { 0 };
    char path[64], line[256];
    long x;
    snprintf(path, sizeof path, "/proc/%d/status", server.pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "RssAnon: %ld", &x) == 1 || sscanf(line, "VmSwap: %ld", &x) == 1)
            h.anon_KiB += x;
        else if (sscanf(line, "Threads: %ld", &x) == 1)
            h.n_thread = x;
    }
    if (f)
        fclose(f);
    snprintf(path, sizeof path, "/proc/%d/fd", server.pid);
    DIR *d = opendir(path);
    for (h.n_fd = -2; d && readdir(d);) /* does not count . and .. */
        h.n_fd++;
    if (d)
        closedir(d);
    return h;
}

#endif
