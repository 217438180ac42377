/* engine/serve/api_keys.c - API keys from a file, compared in a time that does not depend on matching bytes. */
#include "engine/serve/api_keys.h"
#include "engine/base/base.h"

#include <string.h>
#include <strings.h>

#define MAX_KEYS 10000
#define MAX_KEY  1024 /* bytes */

struct eng_api_keys {
    char *text; /* the file's contents; each line ends with NUL */
    const char *key[MAX_KEYS];
    size_t bytes[MAX_KEYS];
    int n;
};

static int take_line(struct eng_api_keys *k, char *line, const char *path, int number)
{
    size_t skip = strspn(line, " \t"), n;
    line += skip;
    n = strlen(line);
    while (n > 0 && strchr(" \t\r", line[n - 1]))
        line[--n] = 0;
    if (n == 0 || line[0] == '#')
        return 0;
    for (size_t i = 0; i < n; i++)
        if (line[i] <= ' ' || line[i] > '~')
            return kn_fail(KN_EINVAL, "%s:%d: a key must be printable ASCII without spaces", path, number);
    if (n > MAX_KEY || k->n == MAX_KEYS)
        return kn_fail(KN_ELIMIT, "%s:%d: a file has at most %d keys, a key at most %d characters", path, number,
                       MAX_KEYS, MAX_KEY);
    k->key[k->n] = line;
    k->bytes[k->n++] = n;
    return 0;
}

int eng_api_keys_open(struct eng_api_keys **out, const char *path)
{
    size_t n = 0;
    struct eng_api_keys *k = kn_calloc(1, sizeof *k);
    if (!k)
        return kn_fail(KN_ENOMEM, "no memory for keys");
    int error = eng_read_file(path, &k->text, &n);
    if (!error && memchr(k->text, 0, n))
        error = kn_fail(KN_EINVAL, "%s: not a text file", path);
    char *grown = error ? NULL : kn_realloc(k->text, n, n + 1);
    if (!error && !grown)
        error = kn_fail(KN_ENOMEM, "no memory for keys");
    if (!error) {
        k->text = grown;
        grown[n] = 0;
        int number = 0;
        for (char *line = grown, *next; line && !error; line = next) {
            if ((next = strchr(line, '\n')))
                *next++ = 0;
            error = take_line(k, line, path, ++number);
        }
    }
    if (!error && k->n == 0)
        error = kn_fail(KN_EINVAL, "%s: the file has no keys; write one a line", path);
    if (error) {
        eng_api_keys_close(k);
        return error;
    }
    *out = k;
    return 0;
}

void eng_api_keys_close(struct eng_api_keys *k)
{
    if (!k)
        return;
    kn_free(k->text);
    kn_free(k);
}

int eng_api_keys_count(const struct eng_api_keys *k) { return k ? k->n : 0; }

int eng_api_keys_find(const struct eng_api_keys *k, const char *text)
{
    size_t n = strlen(text);
    int found = -1;
    for (int i = 0; i < k->n; i++) { /* no early exit: every key, every character of text */
        size_t differ = n ^ k->bytes[i];
        for (size_t j = 0; j < n; j++)
            differ |= (size_t)(uint8_t)(text[j] ^ k->key[i][j % k->bytes[i]]);
        int right = -(int)(differ == 0); /* all bits 1 if equal, else 0 */
        found = (found & ~right) | (i & right);
    }
    return found;
}

uint64_t eng_api_keys_id(const struct eng_api_keys *k, int i)
{
    uint64_t id = k->bytes[i];
    for (size_t j = 0; j < k->bytes[i]; j++)
        id = kn_mix(id * KN_GOLDEN + (uint8_t)k->key[i][j]);
    return id | 1;
}

const char *eng_api_keys_given(const char *authorization, const char *x_api_key)
{
    if (authorization && !strncasecmp(authorization, "Bearer ", 7))
        return authorization + 7 + strspn(authorization + 7, " ");
    return x_api_key;
}
