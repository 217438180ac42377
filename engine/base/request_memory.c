/* engine/base/request_memory.c - the limit for memory of requests: kn_heap_limit() with jansson's allocations counted.
 *
 * JSON in memory can take 100 times its text ("[[],[],[]]"), so no estimate from the text bounds it. */
#include <jansson.h>

#include "engine/base/base.h"

void eng_request_memory_limit(size_t room)
{
    json_set_alloc_funcs(kn_heap_alloc, kn_heap_free);
    kn_heap_limit(room);
}
