/* engine/serve/listen.c - opens the socket that the server listens on. */
#include "engine/serve/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* SOCKET_ROOM: bytes of the system's buffers of a connection.  They would grow to 4 MiB if the client reads nothing. */
#define SOCKET_ROOM 131072
#define BACKLOG     1024

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static int try_listen(const struct addrinfo *a)
{
    int one = 1, most = SOCKET_ROOM, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most); /* connections inherit both */
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &most, sizeof most);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int eng_listen(const char *host, int number, int *out, int *bound, bool *loopback)
{
    char port[16];
    struct sockaddr_storage mine;
    socklen_t n = sizeof mine;
    struct addrinfo *all, hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    snprintf(port, sizeof port, "%d", number);
    int error = getaddrinfo(host, port, &hints, &all), fd = -1;
    if (error)
        return kn_fail(KN_EINVAL, "--host %s: %s", host, gai_strerror(error));
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
        fd = try_listen(a);
    error = errno;
    freeaddrinfo(all);
    if (fd < 0)
        return kn_fail(KN_EINVAL, "cannot listen on %s, port %d: %s: choose another %s", host, number, strerror(error),
                       error == EADDRNOTAVAIL ? "host: an address of this machine"
                       : error == EACCES      ? "port: 1024 or above, or run as a user that may bind it"
                                              : "port, or stop the process that uses it");
    if (getsockname(fd, (struct sockaddr *)&mine, &n) == 0) {
        *loopback = is_loopback((const struct sockaddr *)&mine);
        *bound = ntohs(mine.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&mine)->sin6_port
                                                  : ((struct sockaddr_in *)(void *)&mine)->sin_port);
    }
    *out = fd;
    return 0;
}
