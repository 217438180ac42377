/* kernels/json.h - parsing JSON with jansson, whose memory is the heap's.
 *
 * A program with this file has all of jansson's allocations made, counted and limited as those of kn_alloc() are, from its
 * start on.  kn_heap_free() frees the text of json_dumps(). */
#ifndef KERNELS_JSON_H
#define KERNELS_JSON_H

#include <jansson.h>
#include <stdbool.h>

/* json_loadb() that also fails if an allocation failed.  jansson 2.14 drops the byte of a string whose buffer cannot grow,
 * and goes on: the value would be another.  error may be NULL. */
json_t *kn_json_load(const char *text, size_t n, size_t flags, json_error_t *error);

/* Whether the load that has set this error failed for memory. */
static inline bool kn_json_lacks_memory(const json_error_t *error)
{
    return json_error_code(error) == json_error_out_of_memory;
}

#endif
