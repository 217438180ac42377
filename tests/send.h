/* tests/send.h - bytes to a socket, for clients of the server. */
#ifndef TESTS_SEND_H
#define TESTS_SEND_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>

/* The server may close the connection during a send: the answer shows why, so errors are ignored. */
static inline void send_bytes(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return;
        p += k;
        n -= (size_t)k;
    }
}

/* Receives at most n bytes; a receive interrupted by a signal (stop and continue) is repeated. */
static inline ssize_t receive_bytes(int fd, void *p, size_t n)
{
    ssize_t got;
    do
        got = recv(fd, p, n, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

#endif
