/* tests/send.h - bytes to a socket, for clients of the server. */
#ifndef TESTS_SEND_H
#define TESTS_SEND_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>

/* Who cuts us while we send has its reasons: the answer tells. */
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

/* What there is, of at most n bytes; whoever was stopped and continued meanwhile waits on. */
static inline ssize_t receive_bytes(int fd, void *p, size_t n)
{
    ssize_t got;
    do
        got = recv(fd, p, n, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

#endif
