/* tests/send.h - bytes to a socket, for clients of the server. */
#ifndef TESTS_SEND_H
#define TESTS_SEND_H

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

#endif
