/* engine/hub/name.c - names of models as users type them, and names of files as servers send them.
 *
 * Both become parts of paths.  So a part has only letters, digits and ".", "_", "-", and is not "." or ".."; a file
 * name of a server may have other printable characters and folders, but neither leads out of the folder it is put into.
 * */
#include "engine/hub/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

bool hub_is_part(const char *s, size_t n)
{
    if (n == 0 || n > 96 || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_word(s[i]) || (s[i] == '.' && i + 1 < n && s[i + 1] == '.'))
            return false;
    return true;
}

bool hub_is_hex(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
    return s[n] == 0;
}

bool hub_is_safe_file(const char *path)
{
    if (strlen(path) >= HUB_FILE_BYTES)
        return false;
    for (const char *part = path;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || n > 255 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)part[i] < ' ' || part[i] == '\\' || part[i] == 127)
                return false;
        part += n;
        if (!*part)
            return true;
    }
}

/* A branch, a tag or a commit: parts with slashes between them. */
static bool is_revision(const char *s, size_t n)
{
    while (n > 0) {
        size_t part = 0;
        while (part < n && s[part] != '/')
            part++;
        if (!hub_is_part(s, part) || part + 1 == n)
            return false;
        if (part == n)
            return true;
        s += part + 1;
        n -= part + 1;
    }
    return false;
}

static bool copy(char *out, size_t size, const char *s, size_t n)
{
    if (n >= size)
        return false;
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

static bool ends_with(const char *s, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n >= m && !strncasecmp(s + n - m, end, m);
}

/* Users paste addresses: https://huggingface.co/ORG/NAME, hf.co/ORG/NAME. */
static const char *skip_host(const char *s)
{
    static const char *const prefix[] = { "https://", "huggingface.co/", "hf.co/" };
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
        if (!strncmp(s, prefix[i], strlen(prefix[i])))
            s += strlen(prefix[i]);
    return s;
}

bool hub_name_parse(struct hub_name *out, const char *text)
{
    const char *s = skip_host(text), *slash = strchr(s, '/');
    *out = (struct hub_name){ .repo = "" };
    if (!slash)
        return false;
    size_t n_org = (size_t)(slash - s), n_name = strcspn(slash + 1, "@:");
    const char *rest = slash + 1 + n_name;
    if (!hub_is_part(s, n_org) || !hub_is_part(slash + 1, n_name) || ends_with(slash + 1, n_name, ".gguf") ||
        !copy(out->repo, sizeof out->repo, s, n_org + 1 + n_name) || strstr(out->repo, "--"))
        return false;
    if (*rest == '@') {
        size_t n = strcspn(rest + 1, ":");
        if (!is_revision(rest + 1, n) || !copy(out->revision, sizeof out->revision, rest + 1, n))
            return false;
        rest += 1 + n;
    }
    return !*rest ||
           (rest[1] && hub_is_safe_file(rest + 1) && copy(out->which, sizeof out->which, rest + 1, strlen(rest + 1)));
}

bool eng_hub_is_name(const char *text)
{
    struct hub_name name;
    return hub_name_parse(&name, text);
}

bool hub_path(char *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, ENG_PATH_BYTES, format, args);
    va_end(args);
    return n >= 0 && n < ENG_PATH_BYTES;
}
