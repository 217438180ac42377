/* engine/cli/cmd_imatrix.c - spillway imatrix MODEL --text FILE -o OUT.gguf: writes the importance matrix of a model.
 *
 * The text is cut into windows as by eval, and all of them are computed; moe_collector (moe/write/collect.c) sums up the
 * squares of the inputs of each matrix, for each expert by itself.  Out: a file for quantize --imatrix, in the form of
 * llama.cpp, and on stdout the number of matrices and the part of the experts that a token reached. */
#include "engine/base/base.h"
#include "engine/cli/windows.h"

#include <string.h>

static void print_result(const struct eng_config *c, const struct moe_collected *r, size_t n_tok)
{
    if (c->json) {
        printf("{\"file\":");
        eng_json_string(stdout, (struct moe_string){ c->output, strlen(c->output) });
        printf(",\"tokens\":%zu,\"matrices\":%zu,\"experts\":%zu,\"experts_reached\":%zu}\n", n_tok, r->n_matrix,
               r->n_expert, r->n_reached);
        return;
    }
    printf("%s: inputs of %zu matrices over %zu tokens", c->output, r->n_matrix, n_tok);
    if (r->n_expert)
        printf("; %zu of %zu experts were reached", r->n_reached, r->n_expert);
    putchar('\n');
}

static int collect(struct eng_windows *w, const struct eng_ids *ids)
{
    struct eng_progress *bar = NULL;
    const atomic_bool *stop = eng_interrupt();
    int error = eng_progress_open(&bar, w->config->output, w->config->quiet);
    struct off_progress *progress = error ? NULL : eng_progress_counter(bar);
    if (progress)
        atomic_store(&progress->total_bytes, ids->n);
    for (size_t at = 0; at < ids->n && !error; at += (size_t)w->n_ctx) {
        int n = ids->n - at < (size_t)w->n_ctx ? (int)(ids->n - at) : w->n_ctx;
        error = eng_window_run(w, ids->id + at, n, NULL, NULL);
        if (!error && atomic_load(stop))
            error = kn_fail(KN_ECANCELLED, "imatrix: stopped; nothing was written");
        if (progress)
            atomic_fetch_add(&progress->done_bytes, (uint64_t)n);
    }
    eng_progress_close(bar);
    return error;
}

static int write_imatrix(struct eng_windows *w)
{
    const struct eng_config *c = w->config;
    struct eng_ids ids = { 0 };
    struct moe_collected result;
    int error = kn_file_refuse_other(c->output, "GGUF", "model"); /* before the work */
    if (!error)
        error = eng_windows_tokens(w, &ids);
    if (!error && !(error = eng_windows_open(w, c->n_ctx, c->output, true)) && !(error = collect(w, &ids))) {
        struct moe_calibration text = { c->text, (int)((ids.n + (size_t)w->n_ctx - 1) / (size_t)w->n_ctx), w->n_ctx };
        error = moe_collector_write(w->collector, c->output, &text, &result);
    }
    if (!error)
        print_result(c, &result, ids.n);
    eng_ids_free(&ids);
    return error;
}

int eng_cmd_imatrix(const struct eng_config *config)
{
    struct eng_windows w = { .config = config };
    if (config->device && strcmp(config->device, "host")) {
        kn_fail(KN_EINVAL, "imatrix computes on the host: leave out --device %s", config->device);
        return 2;
    }
    int error = write_imatrix(&w);
    eng_windows_close(&w);
    return error ? 2 : 0;
}
