/* evals/trace.c - the operations of a model's passes, recorded on the host, and run again one by one on a device: where a
 * device gives other bytes than the host, it names the operation, with the model's own weights, shapes and activations.
 *
 *     trace record MODEL FILE [TOKENS [f16|f32|int8]]    a prompt of TOKENS tokens (16), four tokens after it one by one,
 *                                                        and a pass of two drafts; with keys and values in this format
 *     trace replay FILE [DEVICE]                         DEVICE: host (its scalar functions), cuda, cuda:1
 *
 * Every weight that the passes use is in the file.  Exit status: 0 all outputs are the same, 1 not, 2 it could not run. */
#include "tests/emulated/trace.h"

#include "kernels/cuda/internal.h"
#include "moe/moe.h"

enum { MOST_TOKEN = 512, AFTER = 4, DRAFTS = 2, MOST_LINES = 10 };

/* ---- record ---------------------------------------------------------------------------------------------------- */

static int32_t token(const struct moe_model *m, int position)
{
    return (int32_t)(kn_mix((uint64_t)position + 1) % (uint64_t)moe_model_shape(m)->n_vocab);
}

/* One pass over n tokens from position `first` on; drafts: they are a chain of drafts behind the last pass. */
static int pass(struct moe_context *c, const struct moe_model *m, const int32_t *slot, int first, int n, bool drafts)
{
    static struct moe_row row[MOST_TOKEN];
    struct moe_result result;
    for (int i = 0; i < n; i++)
        row[i] = (struct moe_row){ .token = token(m, first + i),
                                   .position = first + i,
                                   .want_logits = i == n - 1 || drafts,
                                   .base = slot,
                                   .n_base = first + n,
                                   .draft = drafts && i > 0,
                                   .after = i - 1 };
    int error = moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, &result);
    return error ? error : moe_rows_status(&result, 0, n);
}

static int passes(struct moe_context *c, const struct moe_model *m, int n_token)
{
    int32_t slot[MOST_TOKEN + AFTER + 1 + DRAFTS];
    int error = 0, n = n_token;
    for (int i = 0; i < n_token + AFTER + 1 + DRAFTS; i++)
        slot[i] = i;
    error = pass(c, m, slot, 0, n_token, false);
    for (; !error && n < n_token + AFTER; n++)
        error = pass(c, m, slot, n, 1, false);
    return error ? error : pass(c, m, slot, n, 1 + DRAFTS, true);
}

static int record(const char *path, const char *to, int n_token, enum kn_kv kv)
{
    struct trace_device device;
    struct kn_team *team = NULL;
    struct moe_file *file = NULL;
    struct moe_model *model = NULL;
    struct moe_context *context = NULL;
    if (!trace_open(&device, KN_ISA_COUNT - 1, to)) {
        fprintf(stderr, "trace: %s cannot be written\n", to);
        return 2;
    }
    int n_slot = n_token + AFTER + 1 + DRAFTS;
    struct moe_model_options model_options = { .isa = KN_ISA_COUNT - 1, .device = &device.base };
    struct moe_context_options options = {
        .max_row = n_token, .max_want = 1 + DRAFTS, .n_slot = n_slot, .max_pos = n_slot, .kv = kv, .n_draft = DRAFTS
    };
    int error = kn_team_open(&team, 0);
    options.team = team;
    if (!error)
        error = moe_file_open(&file, path);
    if (!error)
        error = moe_model_open(&model, file, &model_options);
    if (!error)
        error = moe_model_load(model, &(struct moe_load_options){ .team = team });
    if (!error)
        error = moe_context_open(&context, model, &options);
    if (!error)
        error = passes(context, model, n_token);
    moe_context_close(context);
    moe_model_close(model);
    moe_file_close(file);
    kn_team_close(team);
    if (!trace_close(&device)) {
        fprintf(stderr, "trace: %s is not whole: is the disk full?\n", to);
        return 2;
    }
    return error ? 2 : 0;
}

/* ---- replay ---------------------------------------------------------------------------------------------------- */

static int share(void *at, size_t bytes)
{
    return kn_cuda_failed(kn_cuda_driver(NULL)->host_register(at, bytes, KN_CUDA_MAPPED), "sharing memory");
}

static int replay(const char *path, const char *name)
{
    const struct kn_device *device;
    bool on_host = strcmp(name, "host") == 0;
    if (kn_device_open(&device, name, KN_ISA_SCALAR))
        return 2;
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        if (kn_device_has_format(device, (enum kn_format)f) && kn_device_admit(device, (enum kn_format)f))
            return 2;
    struct trace_options opt = {
        .device = device, .share = on_host ? NULL : share, .out = stdout, .most_lines = MOST_LINES
    };
    struct trace_result r = trace_replay(path, &opt);
    kn_device_close(device);
    if (r.error) {
        fprintf(stderr, "trace: %s: %s\n", path, r.error);
        return 2;
    }
    printf("%d operations on %s, %d with other outputs than the host's\n", r.n_op, name, r.n_wrong);
    return r.n_wrong > 0;
}

int main(int argc, char **argv)
{
    static const char *const kv_name[KN_KV_COUNT] = { [KN_KV_F16] = "f16", [KN_KV_F32] = "f32", [KN_KV_INT8] = "int8" };
    bool records = argc >= 4 && argc <= 6 && strcmp(argv[1], "record") == 0;
    int n_token = records && argc > 4 ? atoi(argv[4]) : 16, kv = KN_KV_F16;
    for (int i = 0; records && argc > 5 && i < KN_KV_COUNT; i++)
        if (strcmp(argv[5], kv_name[i]) == 0)
            kv = i;
    if (records && n_token > DRAFTS && n_token <= MOST_TOKEN)
        return record(argv[2], argv[3], n_token, (enum kn_kv)kv);
    if (argc >= 3 && argc <= 4 && strcmp(argv[1], "replay") == 0)
        return replay(argv[2], argc > 3 ? argv[3] : "host");
    fprintf(stderr,
            "usage: trace record MODEL FILE [TOKENS [f16|f32|int8]]    TOKENS: %d to %d\n"
            "       trace replay FILE [DEVICE]\n",
            DRAFTS + 1, MOST_TOKEN);
    return 2;
}
