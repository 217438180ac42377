/* engine/cli/input_history.c - keeps typed lines in a file that only its user can read (mode 0600).
 *
 * Each entry is a line of the file; a line end inside an entry is written as \n, a backslash as \\.  Entries are
 * appended with one write each, so that a program that ends at once loses none and several chats may share the file.
 * Loading shortens a file of more than twice the wanted entries.  Entries of more than MOST_BYTES are not kept. */
#include "engine/cli/input_history.h"

#include "engine/base/base.h"
#include "engine/base/bytes.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES 8192       /* of one entry */
#define MOST_FILE  (8u << 20) /* a longer file is emptied */

static void add_escaped(struct eng_bytes *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n' || text[i] == '\\')
            eng_bytes_add(b, text[i] == '\n' ? "\\n" : "\\\\", 2);
        else
            eng_bytes_add(b, text + i, 1);
    }
    eng_bytes_add(b, "\n", 1);
}

/* Replaces the escapes in place. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        bool escape = *s == '\\' && s[1];
        s += escape;
        *to++ = escape && *s == 'n' ? '\n' : *s;
    }
    *to = 0;
}

static int open_private(const char *path, int flags)
{
    int fd = open(path, flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || fchmod(fd, 0600) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int eng_history_append(const char *path, const char *text, size_t n)
{
    struct eng_bytes b = { 0 };
    if (n == 0 || n > MOST_BYTES)
        return 0;
    add_escaped(&b, text, n);
    int fd = open_private(path, O_WRONLY | O_APPEND);
    bool written = fd >= 0 && !b.failed && write(fd, b.data, b.n) == (ssize_t)b.n;
    if (fd >= 0)
        close(fd);
    eng_bytes_free(&b);
    return written ? 0 : KN_EIO;
}

void eng_history_load(const char *path, int most, eng_history_line *fn, void *arg)
{
    char *text = NULL;
    size_t n = 0;
    int n_line = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0)
        return;
    bool usable = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= MOST_FILE;
    int error = usable ? eng_read_all(fd, path, &text, &n) : 0;
    close(fd);
    if (!error && !usable && S_ISREG(st.st_mode))
        kn_file_save_optional(path, 0600, "", 0);
    for (size_t i = 0; i < n; i++)
        n_line += text[i] == '\n';
    char *from = text, *end = text + n, *newline;
    for (int skip = n_line - most; skip > 0; skip--)
        from = (char *)memchr(from, '\n', (size_t)(end - from)) + 1;
    if (n_line > 2 * most)
        kn_file_save_optional(path, 0600, from, (size_t)(end - from)); /* not if another chat is doing it */
    for (; from < end && (newline = memchr(from, '\n', (size_t)(end - from))); from = newline + 1) {
        *newline = 0;
        unescape(from);
        fn(arg, from);
    }
    kn_free(text);
}
