/* engine/serve/process.h - numbers of this process that the system keeps, under the names that Prometheus' client
 * libraries use.  Internal to engine. */
#ifndef ENGINE_SERVE_PROCESS_H
#define ENGINE_SERVE_PROCESS_H

#include "engine/base/bytes.h"

/* Writes process_cpu_seconds_total and the others; those that /proc does not have are left out. */
void eng_process_metrics(struct eng_bytes *out);

/* Resident bytes of the process without pages of files; 0 if the system does not report them. */
size_t eng_memory_used(void);

#endif
