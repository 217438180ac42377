/* engine/serve/notify.c - the protocol of sd_notify(3): one datagram. */
#include "engine/serve/notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void eng_notify(const char *socket_path, const char *line)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    size_t n = socket_path ? strlen(socket_path) : 0;
    if (n < 2 || n >= sizeof to.sun_path || (socket_path[0] != '/' && socket_path[0] != '@'))
        return;
    memcpy(to.sun_path, socket_path, n);
    if (to.sun_path[0] == '@')
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}
