/* engine/cli/batch_metrics.h - GET /metrics of the batch command.  Internal to cli. */
#ifndef ENGINE_BATCH_METRICS_H
#define ENGINE_BATCH_METRICS_H

#include "engine/batch/batch.h"
#include "engine/serve/engine_thread.h"

struct eng_watch;

/* Listens on 127.0.0.1 until close; port 0: any.  model must outlive w.  eng_watch_bytes: the most memory it uses. */
int eng_watch_open(struct eng_watch **out, int port, const char *model);
size_t eng_watch_bytes(void);
int eng_watch_port(const struct eng_watch *w);
void eng_watch_tell(struct eng_watch *w, const struct eng_hub_view *view, const struct eng_batch_counts *counts);
void eng_watch_close(struct eng_watch *w);

#endif
