/* spillway serve: requests over HTTP until SIGTERM or Ctrl-C. */
#include "engine/cli.h"
#include "engine/serve/serve.h"

int eng_cmd_serve(const struct eng_config *c)
{
    struct eng_server *s;
    int error =
        eng_serve_open(&s, &(struct eng_serve_options){.engine = {.model = c->model,
                                                                  .isa = c->isa,
                                                                  .kv = c->kv,
                                                                  .n_thread = c->n_thread,
                                                                  .n_parallel = c->n_parallel,
                                                                  .n_ctx = c->n_ctx,
                                                                  .n_chunk = c->n_chunk,
                                                                  .host_mem = c->host_mem,
                                                                  .kv_mem = c->kv_mem,
                                                                  .io = c->io,
                                                                  .keep_heat = true,
                                                                  .no_pack = c->no_pack},
                                                       .host = c->host,
                                                       .port = c->port,
                                                       .api_key_file = c->api_key_file,
                                                       .alias = c->alias,
                                                       .cors = c->cors,
                                                       .n_queue = c->n_queue,
                                                       .max_body = c->max_body,
                                                       .max_connection = c->n_connection,
                                                       .patience_ms = c->patience_s * 1000,
                                                       .idle_ms = c->idle_s * 1000,
                                                       .ping_ms = c->ping_s * 1000,
                                                       .drain_ms = c->drain_s * 1000,
                                                       .stall_ms = c->stall_s * 1000,
                                                       .sampling = c->sampling,
                                                       .n_predict = c->n_predict,
                                                       .notify_socket = c->notify_socket,
                                                       .watchdog_us = c->watchdog_us,
                                                       .quiet = c->quiet,
                                                       .signals = true});
    if (!error) {
        error = eng_serve_run(s);
        eng_serve_close(s);
    }
    return error ? 2 : 0;
}
