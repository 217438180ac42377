/* engine/base/read_file.c - reads a whole file or pipe into memory; keeps file descriptors 0 to 2 open. */
#include "engine/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int eng_read_all(int fd, const char *name, char **text, size_t *n)
{
    size_t cap = 1 << 16, more;
    *n = 0;
    if (!(*text = kn_alloc(cap)))
        return kn_fail(KN_ENOMEM, "%s: no memory", name);
    for (;;) {
        ssize_t got = read(fd, *text + *n, cap - *n);
        if (got < 0 && errno == EISDIR)
            return kn_fail(KN_EINVAL, "%s: is a folder, not a file", name);
        if (got <= 0)
            return got == 0 ? 0 : kn_fail(KN_EIO, "%s: cannot be read", name);
        *n += (size_t)got;
        if (*n < cap)
            continue;
        char *grown = kn_mul(cap, 2, &more) ? kn_realloc(*text, cap, more) : NULL;
        if (!grown)
            return kn_fail(KN_ENOMEM, "%s: no memory for more than %zu bytes", name, cap);
        *text = grown;
        cap = more;
    }
}

int eng_read_file(const char *path, char **text, size_t *n)
{
    int fd, error = kn_file_open(&fd, path, O_RDONLY);
    *text = NULL;
    if (error)
        return error;
    error = eng_read_all(fd, path, text, n);
    kn_file_close(fd);
    return error;
}

void eng_stdio_keep(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
        ;
    if (fd > STDERR_FILENO)
        close(fd);
}
