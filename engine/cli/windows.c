/* engine/cli/windows.c - the model and the tokens of eval and imatrix. */
#include "engine/cli/windows.h"

#include "engine/base/base.h"
#include "engine/engine.h"
#include "engine/plan/plan.h"

static int load_weights(struct eng_windows *ev, const struct eng_split *split)
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
static void set_window(struct eng_windows *ev, int n_ctx)
{
    int n_train = moe_model_shape(ev->model)->n_ctx_train;
    ev->n_ctx = n_ctx ? n_ctx : kn_min(DEFAULT_WINDOW, n_train);
    if (ev->n_ctx > n_train)
        kn_say(KN_LOG_WARN, "%s was trained on %d tokens: its logits for the tokens %d to %d of %s are poor",
               ev->config->model, n_train, n_train + 1, ev->n_ctx, ev->config->text ? "each window" : "--ids");
}

int eng_windows_open(struct eng_windows *ev, int n_ctx, const char *output, bool collect)
{
    const struct eng_config *c = ev->config;
    struct eng_split split;
    int error = moe_file_open(&ev->file, c->model);
    if (error || (output && (error = moe_file_refuse_target(ev->file, output))) ||
        (error = kn_team_open(&ev->team, c->n_thread)) || (error = kn_device_open(&ev->device, c->device, c->isa)) ||
        (error = moe_model_open(&ev->model, ev->file,
                                &(struct moe_model_options){ .isa = c->isa, .device = ev->device })))
        return error;
    if (collect && (error = moe_collector_open(&ev->collector, ev->model)))
        return error;
    set_window(ev, n_ctx);
    n_ctx = ev->n_ctx;
    ev->n_chunk = kn_min(c->n_chunk ? c->n_chunk : ENG_CHUNK, n_ctx);
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
    if (collect)
        co.device = moe_collector_device(ev->collector);
    co.n_slot = split.n_kv_slot;
    co.resident_bytes = split.device.expert;
    co.n_host_layer = c->n_cpu_moe;
    return moe_context_open(&ev->context, ev->model, &co);
}

void eng_windows_close(struct eng_windows *ev)
{
    moe_context_close(ev->context);
    moe_collector_close(ev->collector);
    moe_model_close(ev->model);
    kn_device_close(ev->device);
    moe_file_close(ev->file);
    kn_team_close(ev->team);
    kn_free(ev->row);
    kn_free(ev->slot);
}

int eng_window_run(struct eng_windows *ev, const int32_t *token, int n, eng_window_sink *sink, void *arg)
{
    for (int done = 0; done < n;) {
        int n_row = kn_min(ev->n_chunk, n - done), error;
        for (int i = 0; i < n_row; i++)
            ev->row[i] = (struct moe_row){
                .token = token[done + i], .position = done + i, .want_logits = true, .base = ev->slot, .n_base = n
            };
        struct moe_result result;
        if ((error = moe_forward(ev->context, &(struct moe_batch){ .row = ev->row, .n_row = n_row }, &result)))
            return error;
        for (int i = 0; i < n_row; i++) {
            if (result.status[i])
                return result.status[i];
            if (sink && (error = sink(arg, done + i, result.logits + (size_t)i * (size_t)ev->n_vocab)))
                return error;
        }
        done += n_row;
    }
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

static int read_tokens(struct eng_windows *ev, struct eng_ids *ids)
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

int eng_windows_tokens(struct eng_windows *ev, struct eng_ids *ids)
{
    struct kn_heap_guard guard = { 0 };
    kn_heap_limit(text_room(ev->config->host_mem));
    kn_heap_guard(&guard);
    int error = read_tokens(ev, ids);
    kn_heap_guard(NULL);
    kn_heap_trim();
    if (!error && ids->n < 2)
        error = kn_fail(KN_EINVAL, "%s: too short to measure: fewer than 2 tokens", ev->config->text);
    return error;
}
