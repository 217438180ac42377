/* engine/cli/batch_metrics.h - GET /metrics of the batch command.  Internal to cli. */
#ifndef ENGINE_CLI_BATCH_METRICS_H
#define ENGINE_CLI_BATCH_METRICS_H

#include "engine/batch/batch.h"
#include "engine/serve/engine_thread.h"

struct eng_watch;

/* Starts a thread that answers GET /metrics on 127.0.0.1 until eng_watch_close(); port 0: any free port, see
 * eng_watch_port().  model, the name in the metrics, is not copied. */
int eng_watch_open(struct eng_watch **out, int port, const char *model);
size_t eng_watch_bytes(void); /* the most memory that it uses */
int eng_watch_port(const struct eng_watch *w);
/* Copies the counters that later answers are made from. */
void eng_watch_tell(struct eng_watch *w, const struct eng_thread_report *view, const struct eng_batch_counts *counts);
void eng_watch_close(struct eng_watch *w);

#endif
