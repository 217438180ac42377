/* engine/serve/api_keys.h - the API keys that the server accepts.  Internal to engine. */
#ifndef ENGINE_SERVE_API_KEYS_H
#define ENGINE_SERVE_API_KEYS_H

#include "kernels/core.h"

struct eng_api_keys;

#define ENG_LABEL_BYTES 64

/* The words behind a key on its line: KEY label=NAME requests=N tokens-per-minute=N only=metrics.  Lines with one label
 * share its limits, so a key can be replaced while both are valid.  Without a label the n-th key has the label key-n. */
struct eng_key_rules {
    char label[ENG_LABEL_BYTES]; /* letters, digits and -_.@ */
    uint64_t label_hash;
    int most_requests;     /* at once; 0: no limit */
    int tokens_per_minute; /* of prompts and answers; 0: no limit */
    bool only_metrics;     /* may read /metrics only */
};

/* Loads a file of keys, one a line; blank lines and lines that begin with # are skipped.  A file without keys fails. */
int eng_api_keys_open(struct eng_api_keys **out, const char *path);
void eng_api_keys_close(struct eng_api_keys *k);
int eng_api_keys_count(const struct eng_api_keys *k); /* NULL: 0 */

/* Index of the key that equals text, or -1.  The time depends only on text and on the number of
 * keys, so it reveals no part of a key. */
int eng_api_keys_find(const struct eng_api_keys *k, const char *text);

/* A hash of the characters of key i, the same at any place in the file; never 0. */
uint64_t eng_api_keys_id(const struct eng_api_keys *k, int i);

const struct eng_key_rules *eng_api_keys_rules(const struct eng_api_keys *k, int i);
bool eng_api_keys_has_scraper(const struct eng_api_keys *k); /* a key is for metrics only; NULL: false */

/* The key in the header Authorization ("Bearer KEY") or, if that has none, x-api-key (KEY); NULL: neither has one. */
const char *eng_api_keys_given(const char *authorization, const char *x_api_key);

#endif
