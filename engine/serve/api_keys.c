/* engine/serve/api_keys.c - API keys with their rules from a file, compared in a time that does not depend on matching
 * bytes. */
#include "engine/serve/api_keys.h"
#include "engine/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_KEYS 10000
#define MAX_KEY  1024 /* bytes */

struct eng_api_keys {
    char *text; /* the file's contents; each line ends with NUL */
    const char *key[MAX_KEYS];
    size_t bytes[MAX_KEYS];
    struct eng_key_rules rules[MAX_KEYS];
    int n, n_scraper;
};

static uint64_t hash(const char *s, size_t n)
{
    uint64_t id = n;
    for (size_t i = 0; i < n; i++)
        id = kn_mix(id * KN_GOLDEN + (uint8_t)s[i]);
    return id;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool read_count(const char *s, int *out)
{
    size_t n = strlen(s);
    if (n < 1 || n > 9 || strspn(s, "0123456789") != n)
        return false;
    *out = atoi(s);
    return *out > 0;
}

/* Labels stand in logs and metrics.  Those of keys without one are reserved. */
static bool read_label(const char *s, char *out)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.@";
    size_t n = strlen(s);
    if (n < 1 || n >= ENG_LABEL_BYTES || strspn(s, good) != n || (!strncmp(s, "key-", 4) && s[4] >= '0' && s[4] <= '9'))
        return false;
    memcpy(out, s, n + 1);
    return true;
}

static int take_rule(struct eng_key_rules *r, const char *word, const char *path, int number)
{
    const char *value = strchr(word, '=');
    size_t n = value ? (size_t)(value++ - word) : 0;
    if (n == 5 && !strncmp(word, "label", n))
        return read_label(value, r->label)
                   ? 0
                   : kn_fail(KN_EINVAL, "%s:%d: a label has 1 to %d letters, digits and -_.@, and is not key-NUMBER",
                             path, number, ENG_LABEL_BYTES - 1);
    if (n == 8 && !strncmp(word, "requests", n) && read_count(value, &r->most_requests))
        return 0;
    if (n == 17 && !strncmp(word, "tokens-per-minute", n) && read_count(value, &r->tokens_per_minute))
        return 0;
    if (!strcmp(word, "only=metrics")) {
        r->only_metrics = true;
        return 0;
    }
    return kn_fail(KN_EINVAL,
                   "%s:%d: behind a key stand label=NAME, requests=N, tokens-per-minute=N, only=metrics, with N from 1",
                   path, number); /* the word may be a part of the key, so it is not said */
}

/* Lines with the same label have the same limits: those of the line that has any. */
static int join_rules(struct eng_api_keys *k, struct eng_key_rules *r, const char *path, int number)
{
    for (int i = 0; i < k->n; i++) {
        struct eng_key_rules *o = &k->rules[i];
        if (o->label_hash != r->label_hash || strcmp(o->label, r->label) != 0)
            continue;
        bool none = !r->most_requests && !r->tokens_per_minute, others = o->most_requests || o->tokens_per_minute;
        if (!none && (o->most_requests != r->most_requests || o->tokens_per_minute != r->tokens_per_minute))
            return kn_fail(KN_EINVAL, "%s:%d: label %s has %s on an earlier line: write its limits on its first line",
                           path, number, r->label, others ? "other limits" : "no limits");
        r->most_requests = o->most_requests;
        r->tokens_per_minute = o->tokens_per_minute;
        return 0;
    }
    return 0;
}

static int take_line(struct eng_api_keys *k, char *line, const char *path, int number)
{
    static const char space[] = " \t\r";
    char *left = line + strspn(line, space), *key = strsep(&left, space), *word;
    size_t n = strlen(key);
    if (n == 0 || key[0] == '#')
        return 0;
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return kn_fail(KN_EINVAL, "%s:%d: a key must be printable ASCII without spaces", path, number);
    if (n > MAX_KEY || k->n == MAX_KEYS)
        return kn_fail(KN_ELIMIT, "%s:%d: a file has at most %d keys, a key at most %d characters", path, number,
                       MAX_KEYS, MAX_KEY);
    struct eng_key_rules rules = { 0 };
    snprintf(rules.label, sizeof rules.label, "key-%d", k->n + 1);
    int error = 0;
    while (!error && (word = strsep(&left, space)))
        if (word[0])
            error = take_rule(&rules, word, path, number);
    rules.label_hash = hash(rules.label, strlen(rules.label));
    if (error || (error = join_rules(k, &rules, path, number)))
        return error;
    k->key[k->n] = key;
    k->bytes[k->n] = n;
    k->rules[k->n++] = rules;
    k->n_scraper += rules.only_metrics;
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

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

uint64_t eng_api_keys_id(const struct eng_api_keys *k, int i) { return hash(k->key[i], k->bytes[i]) | 1; }

const struct eng_key_rules *eng_api_keys_rules(const struct eng_api_keys *k, int i) { return &k->rules[i]; }
bool eng_api_keys_has_scraper(const struct eng_api_keys *k) { return k && k->n_scraper > 0; }

const char *eng_api_keys_given(const char *authorization, const char *x_api_key)
{
    if (authorization && !strncasecmp(authorization, "Bearer ", 7))
        return authorization + 7 + strspn(authorization + 7, " ");
    return x_api_key;
}
