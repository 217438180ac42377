/* engine/serve/api_keys.h - who may ask.  Internal to engine. */
#ifndef ENGINE_SERVE_KEYS_H
#define ENGINE_SERVE_KEYS_H

#include "kernels/core.h"

/* A file of keys, one a line; blank lines, and lines that begin with #, are passed over. */
struct eng_keys;
int  eng_keys_open(struct eng_keys **out, const char *path);
void eng_keys_close(struct eng_keys *k);
int  eng_keys_count(const struct eng_keys *k);          /* NULL: 0 */

/* Which of the keys this is, or -1.  The time it takes depends on the text alone, not on the keys' own. */
int  eng_keys_find(const struct eng_keys *k, const char *text);

/* A number that is this key's as long as it is the same, whatever stands before it in the file; never 0. */
uint64_t eng_keys_id(const struct eng_keys *k, int i);

/* The text of a key in the headers that clients use, "Bearer KEY" and KEY; NULL when there is none. */
const char *eng_keys_given(const char *authorization, const char *x_api_key);

#endif
