/* engine/serve/metrics.h - counters in Prometheus' text format.  Internal to engine.
 *
 * Counters and histograms of requests are in struct eng_metrics and belong to the serving thread; counters of the
 * engine are passed in as a struct eng_thread_report when the text is written.  Metrics named vllm: have vLLM's names
 * and labels, so that dashboards published for vLLM show them; all other names begin with spillway_. */
#ifndef ENGINE_SERVE_METRICS_H
#define ENGINE_SERVE_METRICS_H

#include "engine/base/bytes.h"
#include "engine/serve/accounts.h"
#include "engine/serve/engine_thread.h"

/* id, metric name, help text, bounds */
#define ENG_HISTOGRAMS(X)                                                                                              \
    X(TTFT, "time_to_first_token_seconds", "from a request's arrival to its first token", wait)                        \
    X(GAP, "inter_token_latency_seconds", "between two tokens of an answer", gap)                                      \
    X(E2E, "e2e_request_latency_seconds", "from a request's arrival to its end", long)                                 \
    X(QUEUE, "request_queue_time_seconds", "waiting for a place in the batch", long)                                   \
    X(PREFILL, "request_prefill_time_seconds", "from the prompt's start to the first token", long)                     \
    X(DECODE, "request_decode_time_seconds", "from the first token to the last", long)                                 \
    X(PROMPT, "request_prompt_tokens", "tokens of a prompt", size)                                                     \
    X(ANSWER, "request_generation_tokens", "tokens of an answer", size)                                                \
    X(MOST, "request_max_num_generation_tokens", "token limit of a request", size)

enum eng_histogram {
#define ENG_ENUM(name, text, help, bounds) ENG_HIST_##name,
    ENG_HISTOGRAMS(ENG_ENUM)
#undef ENG_ENUM
        ENG_HIST_COUNT
};

enum eng_ended { ENG_ENDED_STOP, ENG_ENDED_LENGTH, ENG_ENDED_ABORT, ENG_ENDED_ERROR, ENG_ENDED_COUNT };

#define ENG_MAX_BOUNDS 24

struct eng_metrics {
    struct {
        uint64_t count[ENG_MAX_BOUNDS + 1];
        double sum;
    } histogram[ENG_HIST_COUNT];
    uint64_t ended[ENG_ENDED_COUNT]; /* answers by reason of their end */
    uint64_t n_answered[6];          /* HTTP answers by first digit of the status */
    uint64_t n_refused;              /* 429: the queue was full */
    uint64_t n_unauthorized;         /* 401 */
    uint64_t n_cut;                  /* connections cut because they sent or read too slowly */
    uint64_t prompt_tokens, answer_tokens;
};

void eng_metrics_add(struct eng_metrics *m, enum eng_histogram h, double value);

struct eng_gauges { /* current values */
    const char *model, *isa;
    const struct eng_accounts *accounts; /* NULL: no keys */
    int n_connection, n_call;
    size_t unsent_bytes;
    double uptime_s;
    bool ready;
};
void eng_metrics_write(const struct eng_metrics *m, const struct eng_gauges *now, const struct eng_thread_report *v,
                       struct eng_bytes *out);

#endif
