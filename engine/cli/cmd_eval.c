/* engine/cli/cmd_eval.c - spillway eval: logits of given tokens, or the perplexity of a text.
 *
 *   --ids 1,2,3 --logits FILE   float32 [n_ids][n_vocab], the logits after each id
 *   --text FILE                 perplexity: the text is cut into windows of --ctx-size tokens (default 512, or the
 *                               model's context if that is shorter), each computed with an empty KV cache; all tokens
 *                               but the first of each window count
 *
 * The ids are rows of the same forward pass that serves requests; --chunk: the most rows of a pass.  More tokens than
 * the model was trained on are computed with a warning. */
#include "engine/base/base.h"
#include "engine/cli/windows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- logits of ids ------------------------------------------------------------------------------- */

static int parse_ids(const char *s, struct eng_ids *ids)
{
    while (*s) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 0 || v > INT32_MAX || (*end && *end != ','))
            return kn_fail(KN_EINVAL, "--ids: '%.20s' is not a list of token ids like 1,2,3", s);
        int error = eng_ids_push(ids, (int32_t)v);
        if (error)
            return error;
        s = *end ? end + 1 : end;
    }
    return ids->n ? 0 : kn_fail(KN_EINVAL, "--ids is empty");
}

struct logits_file {
    int fd, n_vocab;
    const char *path;
    const atomic_bool *stop;
};

static int write_logits(void *arg, int i, const float *logits)
{
    const struct logits_file *out = arg;
    size_t bytes = (size_t)out->n_vocab * sizeof(float);
    if (atomic_load(out->stop))
        return kn_fail(KN_ECANCELLED, "eval: stopped; nothing was written");
    return kn_file_write(out->fd, out->path, logits, bytes, (uint64_t)i * bytes);
}

/* Writes to a .part file and renames it at the end; after a failure the .part file is deleted. */
static int write_whole(struct eng_windows *ev, const struct eng_ids *ids)
{
    const struct eng_config *c = ev->config;
    struct kn_new_file file;
    const atomic_bool *stop = eng_interrupt(); /* before the part file exists: a signal must not leave it behind */
    int error = kn_new_file_open(&file, c->logits, 0644);
    if (error)
        return error;
    struct logits_file out = { .fd = file.fd, .n_vocab = ev->n_vocab, .path = file.path, .stop = stop };
    error = eng_window_run(ev, ids->id, (int)ids->n, write_logits, &out);
    if (!error)
        error = kn_new_file_commit(&file);
    kn_new_file_close(&file);
    return error;
}

static int eval_ids(struct eng_windows *ev)
{
    const struct eng_config *c = ev->config;
    struct eng_ids ids = { 0 };
    int error = parse_ids(c->ids, &ids);
    if (error || (error = eng_windows_open(ev, (int)ids.n, c->logits, false)))
        goto done;
    for (size_t i = 0; i < ids.n; i++)
        if (ids.id[i] >= ev->n_vocab) {
            error = kn_fail(KN_EINVAL, "--ids: %d; the vocabulary has 0 to %d", ids.id[i], ev->n_vocab - 1);
            goto done;
        }
    error = write_whole(ev, &ids);
done:
    eng_ids_free(&ids);
    return error;
}

/* ---- perplexity ------------------------------------------------------------------------------------ */

struct tally {
    const int32_t *token;
    int n, n_vocab;
    double loss;
    long n_counted;
};

/* An eng_window_sink: adds the loss of token i + 1, -log softmax(logits)[token], in double for accuracy. */
static int add_loss(void *arg, int i, const float *logits)
{
    struct tally *t = arg;
    if (i + 1 >= t->n)
        return 0;
    double top = logits[0], sum = 0;
    for (int v = 1; v < t->n_vocab; v++)
        top = logits[v] > top ? logits[v] : top;
    for (int v = 0; v < t->n_vocab; v++)
        sum += kn_exp(logits[v] - top);
    t->loss += kn_log(sum) + top - logits[t->token[i + 1]];
    t->n_counted++;
    return 0;
}

static int eval_text(struct eng_windows *ev)
{
    struct eng_ids ids = { 0 };
    struct tally t = { 0 };
    int n_ctx = 0;
    int error = eng_windows_tokens(ev, &ids);
    if (error || (error = eng_windows_open(ev, ev->config->n_ctx, NULL, false)))
        goto done;
    n_ctx = ev->n_ctx;
    t.n_vocab = ev->n_vocab;
    for (size_t at = 0; at + 1 < ids.n && !error; at += (size_t)n_ctx) {
        t.token = ids.id + at;
        t.n = ids.n - at < (size_t)n_ctx ? (int)(ids.n - at) : n_ctx;
        error = eng_window_run(ev, t.token, t.n, add_loss, &t);
    }
    if (error)
        goto done;
    double mean = t.loss / (double)t.n_counted;
    if (ev->config->json)
        printf("{\"perplexity\":%.6f,\"loss\":%.8f,\"tokens\":%ld,\"window\":%d}\n", kn_exp(mean), mean, t.n_counted,
               n_ctx);
    else
        printf("perplexity %.4f  (mean loss %.5f over %ld tokens, windows of %d tokens)\n", kn_exp(mean), mean,
               t.n_counted, n_ctx);
done:
    eng_ids_free(&ids);
    return error;
}

int eng_cmd_eval(const struct eng_config *config)
{
    struct eng_windows ev = { .config = config };
    bool to = config->logits && config->logits[0];
    if (!config->ids == !config->text || !config->ids == to) {
        kn_fail(KN_EINVAL, "eval takes --ids LIST --logits FILE, or --text FILE");
        return 2;
    }
    int error = config->ids ? eval_ids(&ev) : eval_text(&ev);
    eng_windows_close(&ev);
    return error ? 2 : 0;
}
