/* engine/base/json.h - parsing JSON.  Internal to engine. */
#ifndef ENGINE_BASE_JSON_H
#define ENGINE_BASE_JSON_H

#include <jansson.h>

/* json_loadb() that also fails if an allocation failed.  jansson 2.14 drops the byte of a string whose buffer cannot grow,
 * and goes on: the value would be another.  error may be NULL. */
json_t *eng_json_load(const char *text, size_t n, size_t flags, json_error_t *error);

#endif
