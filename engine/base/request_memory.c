/* engine/base/request_memory.c - the limit for memory of requests: kn_heap_limit() with jansson's allocations counted, and
 * parsing JSON with too little of it.
 *
 * JSON in memory can take 100 times its text ("[[],[],[]]"), so no estimate from the text bounds it. */
#include <stdio.h>

#include "engine/base/base.h"
#include "engine/base/json.h"

void eng_request_memory_limit(size_t room)
{
    json_set_alloc_funcs(kn_heap_alloc, kn_heap_free);
    kn_heap_limit(room);
}

json_t *eng_json_load(const char *text, size_t n, size_t flags, json_error_t *error)
{
    size_t before = kn_alloc_failures();
    json_t *value = json_loadb(text, n, flags, error);
    if (!value || kn_alloc_failures() == before)
        return value;
    json_decref(value);
    if (error)
        snprintf(error->text, sizeof error->text, "no memory for it");
    return NULL;
}
