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
#include "engine/cli/cli.h"
#include "engine/engine.h"
#include "engine/plan/plan.h"
#include "engine/text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct eval {
    const struct eng_config *config;
    struct kn_team *team;
    const struct kn_device *device;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct moe_row *row;
    int32_t *slot;
    int n_ctx, n_chunk, n_vocab;
};

/* Called for each token i of a window, in order, with the logits [n_vocab] after it; nonzero ends the window. */
typedef int eval_sink(void *arg, int i, const float *logits);

static int load_weights(struct eval *ev, const struct eng_split *split)
{
    struct eng_progress *bar = NULL;
    char pack[ENG_PATH_BYTES];
    int error = eng_pack_path(pack, ev->config->model);
    if (error || (error = eng_progress_open(&bar, "loading", ev->config->quiet)))
        return error;
    error = moe_model_load(ev->model, &(struct moe_load_options){ .team = ev->team,
                                                                  .expert_bytes = split->expert,
                                                                  .io = ev->config->io,
                                                                  .pack_path = ev->config->no_pack ? NULL : pack,
                                                                  .mirror = ev->config->mirror,
                                                                  .progress = eng_progress_counter(bar) });
    eng_progress_close(bar);
    return error;
}

#define DEFAULT_WINDOW 512

/* Sets ev->n_ctx, the length of a window: n_ctx, or the default if that is 0. */
static void set_window(struct eval *ev, int n_ctx)
{
    int n_train = moe_model_shape(ev->model)->n_ctx_train;
    ev->n_ctx = n_ctx ? n_ctx : kn_min(DEFAULT_WINDOW, n_train);
    if (ev->n_ctx > n_train)
        kn_say(KN_LOG_WARN, "%s was trained on %d tokens: its logits for the tokens %d to %d of %s are poor",
               ev->config->model, n_train, n_train + 1, ev->n_ctx, ev->config->text ? "each window" : "--ids");
}

static int open_eval(struct eval *ev, int n_ctx)
{
    const struct eng_config *c = ev->config;
    struct eng_split split;
    int error = moe_file_open(&ev->file, c->model);
    if (error || (c->logits && (error = moe_file_refuse_target(ev->file, c->logits))) ||
        (error = kn_team_open(&ev->team, c->n_thread)) || (error = kn_device_open(&ev->device, c->device, c->isa)) ||
        (error = moe_model_open(&ev->model, ev->file,
                                &(struct moe_model_options){ .isa = c->isa, .device = ev->device })))
        return error;
    set_window(ev, n_ctx);
    n_ctx = ev->n_ctx;
    ev->n_chunk = kn_min(c->n_chunk, n_ctx);
    ev->n_vocab = moe_model_shape(ev->model)->n_vocab;
    ev->row = kn_calloc((size_t)ev->n_chunk, sizeof *ev->row);
    ev->slot = kn_calloc((size_t)n_ctx, sizeof *ev->slot);
    if (!ev->row || !ev->slot)
        return kn_fail(KN_ENOMEM, "no memory for %d rows", n_ctx);
    for (int i = 0; i < n_ctx; i++)
        ev->slot[i] = i;
    struct moe_context_options co = {
        .max_row = ev->n_chunk, .max_want = ev->n_chunk, .max_pos = n_ctx, .kv = c->kv, .team = ev->team, .max_path = 1
    };
    if ((error = eng_budget(&split, &(struct eng_use){ .file = ev->file,
                                                       .model = ev->model,
                                                       .context = co,
                                                       .n_parallel = 1,
                                                       .host_mem = c->host_mem,
                                                       .device_mem = c->device_mem,
                                                       .kv_mem = c->kv_mem })) ||
        (error = load_weights(ev, &split)))
        return error;
    co.n_slot = split.n_kv_slot;
    co.resident_bytes = split.device.expert;
    return moe_context_open(&ev->context, ev->model, &co);
}

static void close_eval(struct eval *ev)
{
    moe_context_close(ev->context);
    moe_model_close(ev->model);
    kn_device_close(ev->device);
    moe_file_close(ev->file);
    kn_team_close(ev->team);
    kn_free(ev->row);
    kn_free(ev->slot);
}

/* Computes the n tokens of a window from position 0, and calls sink for each. */
static int run_window(struct eval *ev, const int32_t *token, int n, eval_sink *sink, void *arg)
{
    for (int done = 0; done < n;) {
        int n_row = kn_min(ev->n_chunk, n - done), error;
        for (int i = 0; i < n_row; i++)
            ev->row[i] = (struct moe_row){
                .token = token[done + i], .position = done + i, .want_logits = true, .base = ev->slot, .n_base = n
            };
        struct moe_result result;
        if ((error = moe_forward(ev->context, &(struct moe_batch){ ev->row, n_row }, &result)))
            return error;
        for (int i = 0; i < n_row; i++) {
            if (result.status[i])
                return result.status[i];
            if ((error = sink(arg, done + i, result.logits + (size_t)i * (size_t)ev->n_vocab)))
                return error;
        }
        done += n_row;
    }
    return 0;
}

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
static int write_whole(struct eval *ev, const struct eng_ids *ids)
{
    const struct eng_config *c = ev->config;
    struct kn_new_file file;
    const atomic_bool *stop = eng_interrupt(); /* before the part file exists: a signal must not leave it behind */
    int error = kn_new_file_open(&file, c->logits, 0644);
    if (error)
        return error;
    struct logits_file out = { .fd = file.fd, .n_vocab = ev->n_vocab, .path = file.path, .stop = stop };
    error = run_window(ev, ids->id, (int)ids->n, write_logits, &out);
    if (!error)
        error = kn_new_file_commit(&file);
    kn_new_file_close(&file);
    return error;
}

static int eval_ids(struct eval *ev)
{
    const struct eng_config *c = ev->config;
    struct eng_ids ids = { 0 };
    int error = parse_ids(c->ids, &ids);
    if (error || (error = open_eval(ev, (int)ids.n)))
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

/* An eval_sink: adds the loss of token i + 1, -log softmax(logits)[token], in double for accuracy. */
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

static int read_text(const char *path, char **text, size_t *n)
{
    int fd, error = kn_file_open_read(&fd, path);
    if (error)
        return error;
    int64_t bytes = kn_io()->size(fd);
    *text = bytes < 0 ? NULL : kn_alloc((size_t)bytes);
    error = bytes < 0 ? kn_fail(KN_EIO, "%s: not a plain file", path)
            : !*text  ? kn_fail(KN_ENOMEM, "%s: no memory for %lld bytes", path, (long long)bytes)
                      : kn_file_read(fd, path, *text, (size_t)bytes, 0);
    *n = (size_t)bytes;
    kn_file_close(fd);
    return error;
}

/* Memory for the text and its tokens, before the model is loaded: the budget without the program's own memory. */
#define PROGRAM_BYTES ((size_t)24 << 20)

static size_t text_room(size_t host_mem)
{
    return !host_mem ? SIZE_MAX : host_mem > 2 * PROGRAM_BYTES ? host_mem - PROGRAM_BYTES : host_mem / 2;
}

static int tokens_of_text(struct eval *ev, struct eng_ids *ids)
{
    struct moe_file *f;
    struct eng_vocab *vocab = NULL;
    char *text = NULL;
    size_t n;
    int error = moe_file_open(&f, ev->config->model);
    if (error)
        return error;
    if (!(error = eng_vocab_open(&vocab, f)) && !(error = read_text(ev->config->text, &text, &n)))
        error = eng_tokenize(vocab, text, n, ENG_TEXT_ADD_BOS | (ev->config->special ? ENG_TEXT_PARSE_SPECIAL : 0),
                             ids);
    kn_free(text);
    eng_vocab_close(vocab);
    moe_file_close(f);
    return error;
}

static int eval_text(struct eval *ev)
{
    struct eng_ids ids = { 0 };
    struct tally t = { 0 };
    int n_ctx = 0;
    struct kn_heap_guard guard = { 0 };
    kn_heap_limit(text_room(ev->config->host_mem));
    kn_heap_guard(&guard);
    int error = tokens_of_text(ev, &ids);
    kn_heap_guard(NULL);
    kn_heap_trim();
    if (!error && ids.n < 2)
        error = kn_fail(KN_EINVAL, "%s: too short to measure: fewer than 2 tokens", ev->config->text);
    if (error || (error = open_eval(ev, ev->config->n_ctx)))
        goto done;
    n_ctx = ev->n_ctx;
    t.n_vocab = ev->n_vocab;
    for (size_t at = 0; at + 1 < ids.n && !error; at += (size_t)n_ctx) {
        t.token = ids.id + at;
        t.n = ids.n - at < (size_t)n_ctx ? (int)(ids.n - at) : n_ctx;
        error = run_window(ev, t.token, t.n, add_loss, &t);
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
    struct eval ev = { .config = config };
    bool to = config->logits && config->logits[0];
    if (!config->ids == !config->text || !config->ids == to) {
        kn_fail(KN_EINVAL, "eval takes --ids LIST --logits FILE, or --text FILE");
        return 2;
    }
    int error = config->ids ? eval_ids(&ev) : eval_text(&ev);
    close_eval(&ev);
    return error ? 2 : 0;
}
