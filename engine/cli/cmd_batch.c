/* engine/cli/cmd_batch.c - spillway batch: answers a file of requests into a file of answers.
 *
 * batch/batch.h describes a batch and its state after a crash.  This file opens the model, sets the memory
 * and the number of sessions, and shows progress: a bar on a terminal, otherwise a line every 10 s.  Ctrl-C ends
 * the batch after the current step; finished answers stay in the file, and the same command resumes.
 *
 * Exit: 0 every line has an answer, 1 some have none, 2 usage or refused. */
#include "engine/base/base.h"
#include "engine/cli/batch_metrics.h"
#include "engine/cli/cli.h"
#include "engine/plan/plan.h"

#include <string.h>
#include <unistd.h>

#define SAY_NS        10000000000 /* between two progress lines without a terminal */
#define TELL_NS       200000000   /* between two updates of --metrics-port */
#define GRAMMAR_BYTES ((size_t)16 << 20)
#define UNTOLD_CTX    8192 /* largest context that is chosen if --ctx-size is 0 */

struct job {
    const struct eng_config *config;
    struct eng_batch *batch;
    struct eng_batch_run *run;
    struct eng_engine *engine;
    struct eng_api_model model;
    struct eng_progress *bar;
    struct eng_watch *watch; /* NULL: no --metrics-port */
    int n_parallel;
    uint64_t start_ns, said_ns, told_ns;
    char errors[ENG_PATH_BYTES], name[ENG_PATH_BYTES];
};

static int open_batch(struct job *j)
{
    const struct eng_config *c = j->config;
    const char *name = c->errors ? c->errors : c->output;
    if (snprintf(j->errors, sizeof j->errors, "%s%s", name, c->errors ? "" : ".errors") >= (int)sizeof j->errors)
        return kn_fail(KN_ELIMIT, "%s: the name is too long", c->output);
    return eng_batch_open(&j->batch,
                          &(struct eng_batch_options){
                              .in = c->input, .out = c->output, .errors = j->errors, .retry_failed = c->retry_failed });
}

static int open_watch(struct job *j)
{
    if (!j->config->metrics_port)
        return 0;
    int error = eng_watch_open(&j->watch, j->config->metrics_port, j->name);
    struct eng_batch_counts n;
    eng_batch_counts(j->batch, &n);
    if (!error)
        eng_watch_tell(j->watch, &(struct eng_thread_report){ 0 }, &n);
    return error;
}

/* Opens the engine without a limit of prefill rows beside decoding: in a batch the latency of a token does not
 * matter. */
static int open_engine(struct job *j)
{
    const struct eng_config *c = j->config;
    struct eng_options o = eng_config_options(c, true);
    o.max_prefill_slowdown = 1e9;
    o.n_ctx_most = UNTOLD_CTX; /* memory is reserved for requests of this length */
    o.grammar_bytes = GRAMMAR_BYTES;
    int error = 0;
    if (!o.n_parallel) {
        o.reserved_bytes = eng_batch_bytes(j->batch, 1, UNTOLD_CTX);
        error = eng_forecast_parallel(&o.n_parallel, &o);
    }
    if (error)
        return error;
    while (!c->n_parallel && o.n_parallel > 1 && o.host_mem && /* lines get at most half of the budget */
           eng_batch_bytes(j->batch, o.n_parallel, o.n_ctx ? o.n_ctx : UNTOLD_CTX) > o.host_mem / 2)
        o.n_parallel /= 2;
    j->n_parallel = o.n_parallel;
    o.reserved_bytes = eng_batch_bytes(j->batch, o.n_parallel, o.n_ctx ? o.n_ctx : UNTOLD_CTX) +
                       (j->watch ? eng_watch_bytes() : 0);
    if ((error = eng_progress_open(&j->bar, "loading", c->quiet)))
        return error;
    o.progress = eng_progress_counter(j->bar);
    o.n_prompt_logprob_row = ENG_API_TELL_ROWS;
    error = eng_open(&j->engine, &o);
    eng_progress_close(j->bar);
    j->bar = NULL;
    return error;
}

/* Sets up the API for the model.  Without a chat template it answers completions only. */
static int open_setup(struct job *j, struct eng_api_setup *setup)
{
    const char *template = j->config->template;
    int error = eng_api_model_open(&j->model, setup, j->engine, j->config->model, template);
    return error == KN_EUNSUPPORTED && !template ? 0 : error;
}

/* ---- progress ---------------------------------------------------------------------------------- */

static void say(const struct eng_batch_counts *n, double seconds)
{
    uint64_t past = n->before + n->done;
    double left = n->done ? seconds / (double)n->done * (double)(n->total - past) : 0;
    kn_say(KN_LOG_INFO, "%llu of %llu lines, %llu failed, %.1f tokens/s, %.0f:%02d left", (unsigned long long)past,
           (unsigned long long)n->total, (unsigned long long)n->failed, seconds > 0 ? (double)n->n_token / seconds : 0,
           (double)(uint64_t)(left / 60), (int)left % 60);
}

static void tell_watch(struct job *j, const struct eng_batch_counts *n, uint64_t now)
{
    struct eng_thread_report v = { .n_parallel = j->n_parallel, .budget_bytes = eng_memory(j->engine)->total };
    struct off_store *store = moe_model_store(eng_model(j->engine));
    eng_stats_get(j->engine, &v.engine);
    eng_drafts_get(j->engine, &v.drafts);
    if (store)
        off_stats_get(store, &v.store);
    v.n_job = v.engine.n_running + v.engine.n_waiting;
    eng_watch_tell(j->watch, &v, n);
    j->told_ns = now;
}

static void tell_progress(struct job *j)
{
    struct eng_batch_counts n;
    eng_batch_counts(j->batch, &n);
    uint64_t now = kn_now_ns();
    if (j->watch && now - j->told_ns >= TELL_NS)
        tell_watch(j, &n, now);
    struct off_progress *p = eng_progress_counter(j->bar);
    atomic_store_explicit(&p->done_bytes, n.done, memory_order_relaxed);
    atomic_store_explicit(&p->total_bytes, n.total - n.before, memory_order_relaxed);
    if (isatty(STDERR_FILENO) || now - j->said_ns < SAY_NS)
        return;
    j->said_ns = now;
    say(&n, (double)(now - j->start_ns) * 1e-9);
}

static void tell_end(struct job *j, bool stopped)
{
    struct eng_batch_counts n;
    eng_batch_counts(j->batch, &n);
    double seconds = (double)(kn_now_ns() - j->start_ns) * 1e-9;
    uint64_t missing = n.total - n.before - n.done, failed = n.failed + n.failed_before;
    if (j->config->json)
        printf("{\"lines\":%llu,\"before\":%llu,\"done\":%llu,\"failed\":%llu,\"missing\":%llu,\"tokens\":%llu,"
               "\"seconds\":%.3f,\"tokens_per_s\":%.3f}\n",
               (unsigned long long)n.total, (unsigned long long)n.before, (unsigned long long)n.done,
               (unsigned long long)failed, (unsigned long long)missing, (unsigned long long)n.n_token, seconds,
               seconds > 0 ? (double)n.n_token / seconds : 0);
    if (n.before)
        kn_say(KN_LOG_INFO, "%llu line%s done by earlier runs", (unsigned long long)n.before,
               n.before == 1 ? " was" : "s were");
    kn_say(KN_LOG_INFO, "%llu line%s done, %llu token%s, %.1f tokens/s", (unsigned long long)n.done,
           n.done == 1 ? "" : "s", (unsigned long long)n.n_token, n.n_token == 1 ? "" : "s",
           seconds > 0 ? (double)n.n_token / seconds : 0);
    if (failed)
        kn_say(KN_LOG_WARN, "%llu line%s failed: see %s (--retry-failed retries %s)", (unsigned long long)failed,
               failed == 1 ? "" : "s", j->errors, failed == 1 ? "it" : "them");
    if (missing)
        kn_say(KN_LOG_WARN, "%s with %llu line%s left: run the same command to resume",
               stopped ? "interrupted" : "ended", (unsigned long long)missing, missing == 1 ? "" : "s");
}

/* ---- the job ----------------------------------------------------------------------------------- */

/* Runs the batch and returns the exit status.  All answers are synced to disk before the final counts are reported; the
 * progress counts answers that are still in memory. */
static int work(struct job *j, const struct eng_api_setup *setup, const atomic_bool *stop)
{
    int got = eng_batch_run_open(&j->run, j->batch, j->engine, setup, j->n_parallel);
    if (got)
        return 2;
    if (eng_progress_open_of(&j->bar, "answering", "lines", j->config->quiet))
        return 2;
    j->start_ns = j->said_ns = kn_now_ns();
    for (got = 1; got == 1 && !atomic_load(stop);) {
        got = eng_batch_run_step(j->run);
        tell_progress(j);
    }
    eng_progress_close(j->bar);
    int kept = eng_batch_settle(j->batch);
    struct eng_batch_counts n;
    eng_batch_counts(j->batch, &n);
    tell_end(j, got == 1);
    return got || kept || n.failed + n.failed_before ? 1 : 0;
}

int eng_cmd_batch(const struct eng_config *config)
{
    struct job j = { .config = config };
    const atomic_bool *stop = eng_interrupt();
    int status = 2;
    eng_api_model_name(j.name, sizeof j.name, config->model);
    const char *name = config->alias ? config->alias : j.name;
    struct eng_api_setup setup = { .model = &name,
                                   .n_model = 1,
                                   .any_model = true,
                                   .n_predict = config->n_predict,
                                   .sampling = config->sampling,
                                   .sampling_given = config->sampling_given,
                                   .breaker = config->n_breaker < 0 ? NULL : config->breaker,
                                   .n_breaker = config->n_breaker };
    if (!eng_template_file_check(config->template) && !open_batch(&j) && !open_watch(&j) && !open_engine(&j) &&
        !open_setup(&j, &setup))
        status = work(&j, &setup, stop);
    eng_watch_close(j.watch);
    eng_batch_run_close(j.run);
    eng_batch_close(j.batch);
    eng_api_model_close(&j.model);
    eng_close(j.engine);
    return status;
}
