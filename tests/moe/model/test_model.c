/* Opening models: a missing, misshapen or unknown part of a file is refused in one line that names
 * file, field and reason; for every failing call while a model is opened and run,
 * the result is one error or the same logits, and nothing leaks.
 *
 * Files are synthetic models of one layer, or of two where the layers differ, copied with one
 * thing changed.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "kernels/cpu/pass/host.h"
#include "moe/pass/pass.h"
#include "tests/faults.h"
#include "tests/moe/change.h"
#include "tests/moe/load.h"
#include "tests/nodes.h"

#define N_VOCAB 300
#define LEN(a)  ((int)(sizeof(a) / sizeof *(a)))

static enum off_io_kind io; /* faults in reads need OFF_IO_PREAD */
enum { TINY, DENSE, ODD, SHARED, ALL_NORM, WINDOW, LEAD, LATENT, DELTA, MIXER, CHUNKS, N_SOURCE };
static char folder[64], source_path[N_SOURCE][96], path[96];
static struct moe_file *source[N_SOURCE];

static void write_copy(int which, const struct change *c) { change_write(source[which], c, path); }

/* ---- opening and running --------------------------------------------------------------------- */

struct opened {
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
};

static void close_all(struct opened *o)
{
    moe_context_close(o->context);
    moe_model_close(o->model);
    moe_file_close(o->file);
    kn_team_close(o->team);
    *o = (struct opened){ 0 };
}

/* Opens everything from the path and computes the logits of three rows of one sequence (logits may be NULL). */
static int open_and_run(struct opened *o, const char *name, float *logits /* [N_VOCAB] */)
{
    static const int32_t slot[4] = { 2, 0, 3, 1 }, token[3] = { 7, 250, 31 };
    struct moe_row row[3];
    struct moe_result result;
    struct moe_context_options co = { .max_row = 4, .max_want = 3, .n_slot = 4, .max_pos = 4 };
    int error = 0;
    *o = (struct opened){ 0 };
    for (int i = 0; i < 3; i++)
        row[i] = (struct moe_row){ .token = token[i], .position = i, .want_logits = i == 2, .base = slot, .n_base = 4 };
    if ((error = kn_team_open(&o->team, 2)))
        return error;
    co.team = o->team;
    if ((error = moe_file_open(&o->file, name)) ||
        (error = load_model(&o->model, o->file, KN_ISA_COUNT - 1, o->team, io)) ||
        (error = moe_context_open(&o->context, o->model, &co)) ||
        (error = moe_forward(o->context, &(struct moe_batch){ .row = row, .n_row = 3 }, &result)))
        return error;
    for (int i = 0; i < 3; i++)
        if (result.status[i])
            return result.status[i];
    if (logits)
        memcpy(logits, result.logits, N_VOCAB * sizeof *logits);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    static const char *const shape[] = { "tiny",           "tiny-dense",   "tiny-odd",     "tiny-qwen2moe",
                                         "tiny-olmoe",     "tiny-gpt-oss", "tiny-glm4moe", "tiny-deepseek2",
                                         "tiny-qwen3next", "tiny-phimoe",  "tiny-llama4" };
    static const enum kn_format format[] = { KN_Q4_K, KN_Q4_K, KN_F16, KN_Q8_0, KN_F16, KN_MXFP4,
                                             KN_Q8_0, KN_Q8_0, KN_F16, KN_Q8_0, KN_Q8_0 };
    struct kn_team *team;
    strcpy(folder, "/tmp/spillway-model-XXXXXX");
    if (!mkdtemp(folder) || kn_team_open(&team, 2) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/copy.gguf", folder);
    for (int i = 0; i < N_SOURCE; i++) {
        snprintf(source_path[i], sizeof source_path[i], "%s/%s.gguf", folder, shape[i]);
        struct moe_synth_options so = { .shape = shape[i],
                                        .n_layer = i == DELTA  ? 4
                                                   : i >= LEAD ? 2
                                                               : 1,
                                        .n_vocab = N_VOCAB,
                                        .format = format[i],
                                        .seed = 5,
                                        .team = team };
        if (moe_synth(source_path[i], &so) != 0 || moe_file_open(&source[i], source_path[i]) != 0)
            return -1;
    }
    kn_team_close(team);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    for (int i = 0; i < N_SOURCE; i++)
        moe_file_close(source[i]);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* code 0: the model runs without a message, and its logits are finite. */
static void check(int which, const char *what, const struct change *c, int code, const char *says)
{
    struct opened o;
    float logits[N_VOCAB];
    write_copy(which, c);
    faults_reset();
    int got = open_and_run(&o, path, logits);
    close_all(&o);
    if (got != code || faults.n_line != (code != 0) || !faults_clean())
        fail_msg("%s: got %d, want %d; %d lines: %s", what, got, code, faults.n_line, faults.line);
    if (code && (!strstr(faults.line, path) || !strstr(faults.line, says)))
        fail_msg("%s: '%s' does not name the file and '%s'", what, faults.line, says);
    for (int i = 0; !code && i < N_VOCAB; i++)
        if (!isfinite(logits[i]))
            fail_msg("%s: logit %d is %f", what, i, (double)logits[i]);
    faults_off();
}

/* ---- invalid metadata ------------------------------------------------------------------------ */

#define BAD(k, ...)                                                                                                    \
    {                                                                                                                  \
        { .key = k, __VA_ARGS__ }, KN_ECORRUPT, k                                                                      \
    }
#define UNSUPPORTED(k, ...)                                                                                            \
    {                                                                                                                  \
        { .key = k, __VA_ARGS__ }, KN_EUNSUPPORTED, k                                                                  \
    }
#define FINE(k, ...)                                                                                                   \
    {                                                                                                                  \
        { .key = k, __VA_ARGS__ }, 0, k                                                                                \
    }
#define SAYS(code, says, k, ...)                                                                                       \
    {                                                                                                                  \
        { .key = k, __VA_ARGS__ }, code, says                                                                          \
    }
#define MISSING(k)                                                                                                     \
    {                                                                                                                  \
        { .drop = k }, KN_ECORRUPT, k                                                                                  \
    }
#define U(x)        .type = MOE_U32, .number = x
#define I(x)        .type = MOE_I32, .number = x
#define F(x)        .type = MOE_F32, .number = x
#define S(x)        .type = MOE_STRING, .text = x
#define A(of, n, x) .type = MOE_ARRAY, .item = of, .n_item = n, .number = x, .text = "x"
#define Q           "qwen3moe."

static const struct variant {
    struct change c;
    int code;
    const char *says;
} of_tiny[] = {
    MISSING("general.architecture"),
    BAD("general.architecture", U(1)),
    SAYS(KN_EUNSUPPORTED, "mamba", "general.architecture", S("mamba")),
    SAYS(KN_EUNSUPPORTED, "\"\"", "general.architecture", S("")),
    SAYS(KN_EUNSUPPORTED, "m\\xc2\\x9bx", "general.architecture", S("m\xc2\x9bx")),
    SAYS(KN_EUNSUPPORTED, "\\x1b[2J", Q "rope.scaling.type", S("\x1b[2J")),
    { { .add = "\x1b[2J" }, KN_EUNSUPPORTED, "\\x1b[2J" },
    MISSING(Q "block_count"),
    BAD(Q "block_count", U(0)),
    BAD(Q "block_count", U(4097)),
    BAD(Q "block_count", U(4294967295.0)),
    BAD(Q "block_count", I(-1)),
    BAD(Q "block_count", S("1")),
    BAD(Q "block_count", F(1)),
    BAD(Q "block_count", A(MOE_U32, 1, 1)),
    SAYS(KN_ECORRUPT, "blk.1.attn_norm.weight", Q "block_count", U(2)),
    FINE(Q "block_count", .type = MOE_U64, .number = 1),
    FINE(Q "block_count", .type = MOE_I8, .number = 1),
    MISSING(Q "embedding_length"),
    BAD(Q "embedding_length", U(0)),
    BAD(Q "embedding_length", U(1 << 24)),
    SAYS(KN_ECORRUPT, "token_embd.weight", Q "embedding_length", U(512)),
    BAD(Q "context_length", U(0)),
    BAD(Q "context_length", I(-5)),
    FINE(Q "context_length", U(1)),
    MISSING(Q "attention.head_count"),
    BAD(Q "attention.head_count", U(0)),
    BAD(Q "attention.head_count", U(5000)),
    BAD(Q "attention.head_count", I(-8)),
    BAD(Q "attention.head_count", A(MOE_STRING, 1, 0)),
    BAD(Q "attention.head_count", A(MOE_F32, 1, 8)),
    BAD(Q "attention.head_count", A(MOE_U32, 0, 8)),
    BAD(Q "attention.head_count", A(MOE_U32, 1, 0)),
    FINE(Q "attention.head_count", A(MOE_U32, 1, 8)),
    FINE(Q "attention.head_count", A(MOE_I32, 4, 8)),
    SAYS(KN_ECORRUPT, "5 query heads", Q "attention.head_count", U(5)),
    SAYS(KN_ECORRUPT, "blk.0.attn_q.weight", Q "attention.head_count", U(16)),
    BAD(Q "attention.head_count_kv", U(0)),
    BAD(Q "attention.head_count_kv", S("2")),
    SAYS(KN_ECORRUPT, "8 query heads", Q "attention.head_count_kv", U(16)),
    SAYS(KN_ECORRUPT, "8 query heads", Q "attention.head_count_kv", U(3)),
    { { .drop = Q "attention.head_count_kv" }, KN_ECORRUPT, "blk.0.attn_k.weight" },
    BAD(Q "attention.key_length", U(0)),
    BAD(Q "attention.key_length", U(KN_MAX_D_HEAD + 1)),
    BAD(Q "attention.key_length", I(-64)),
    SAYS(KN_ECORRUPT, "rope.dim", Q "attention.key_length", U(63)),
    SAYS(KN_ECORRUPT, "blk.0.attn_v.weight", Q "attention.value_length", U(32)),
    BAD(Q "attention.value_length", U(0)),
    BAD(Q "attention.value_length", U(KN_MAX_D_HEAD + 1)),
    BAD(Q "rope.dimension_count", U(0)),
    BAD(Q "rope.dimension_count", U(1)),
    BAD(Q "rope.dimension_count", U(63)),
    BAD(Q "rope.dimension_count", U(66)),
    FINE(Q "rope.dimension_count", U(32)),
    { { .drop = Q "rope.dimension_count" }, 0, "" },
    MISSING(Q "attention.layer_norm_rms_epsilon"),
    BAD(Q "attention.layer_norm_rms_epsilon", F(-1)),
    BAD(Q "attention.layer_norm_rms_epsilon", F(NAN)),
    BAD(Q "attention.layer_norm_rms_epsilon", U(1)),
    BAD(Q "attention.layer_norm_rms_epsilon", F(INFINITY)),
    MISSING(Q "expert_count"),
    SAYS(KN_ECORRUPT, Q "expert_count", Q "expert_count", U(0)),
    BAD(Q "expert_count", U(70000)),
    BAD(Q "expert_count", I(-1)),
    BAD(Q "expert_count", S("12")),
    SAYS(KN_ECORRUPT, "blk.0.ffn_gate_inp.weight", Q "expert_count", U(11)),
    SAYS(KN_ECORRUPT, "blk.0.ffn_gate_inp.weight", Q "expert_count", U(65536)),
    MISSING(Q "expert_used_count"),
    BAD(Q "expert_used_count", U(0)),
    BAD(Q "expert_used_count", U(13)),
    BAD(Q "expert_used_count", I(-3)),
    FINE(Q "expert_used_count", U(12)),
    FINE(Q "expert_used_count", U(1)),
    MISSING(Q "expert_feed_forward_length"),
    BAD(Q "expert_feed_forward_length", U(0)),
    SAYS(KN_ECORRUPT, "ffn_gate_exps", Q "expert_feed_forward_length", U(512)),
    FINE(Q "expert_gating_func", U(0)),
    FINE(Q "expert_gating_func", U(1)),
    UNSUPPORTED(Q "expert_gating_func", U(2)),
    BAD(Q "expert_gating_func", S("softmax")),
    FINE(Q "expert_shared_count", U(0)),
    UNSUPPORTED(Q "expert_shared_count", U(1)),
    FINE(Q "expert_weights_scale", F(0)),
    FINE(Q "expert_weights_scale", F(2.5)),
    BAD(Q "expert_weights_scale", F(-1)),
    BAD(Q "expert_weights_scale", F(NAN)),
    BAD(Q "expert_weights_scale", U(1)),
    BAD(Q "expert_weights_norm", U(1)),
    FINE(Q "expert_weights_norm", .type = MOE_BOOL, .number = 0),
    FINE(Q "rope.scaling.type", S("none")),
    FINE(Q "rope.scaling.type", S("linear")),
    FINE(Q "rope.scaling.type", S("yarn")),
    UNSUPPORTED(Q "rope.scaling.type", S("longrope")),
    UNSUPPORTED(Q "rope.scaling.type", S("")),
    BAD(Q "rope.scaling.type", U(1)),
    BAD(Q "rope.scaling.factor", F(0)),
    BAD(Q "rope.scaling.factor", F(-2)),
    BAD(Q "rope.scaling.factor", S("2")),
    BAD(Q "rope.freq_base", F(0)),
    BAD(Q "rope.freq_base", F(-1e4)),
    BAD(Q "rope.freq_base", F(NAN)),
    BAD(Q "rope.freq_base", S("1e6")),
    BAD(Q "rope.scaling.original_context_length", U(0)),
    BAD(Q "rope.scaling.attn_factor", F(0)),
    BAD("tokenizer.ggml.tokens", A(MOE_STRING, N_VOCAB + 1, 0)),
    FINE("tokenizer.ggml.tokens", A(MOE_STRING, N_VOCAB - 1, 0)),
    FINE("some.other.key", U(3)),
    { { .add = "rope_freqs.weight" }, KN_ECORRUPT, "rope_freqs.weight: value 0" },
};

static const struct variant of_dense[] = {
    UNSUPPORTED("qwen3.expert_count", U(8)),
    FINE("qwen3.expert_count", U(0)),
    MISSING("qwen3.feed_forward_length"),
    BAD("qwen3.feed_forward_length", U(0)),
    BAD("qwen3.feed_forward_length", U(1 << 25)),
    FINE("qwen3.feed_forward_length", A(MOE_U32, 1, 768)),
    SAYS(KN_ECORRUPT, "blk.0.ffn_gate.weight", "qwen3.feed_forward_length", U(512)),
    FINE("qwen3.attention.sliding_window", U(0)),
    FINE("qwen3.attention.sliding_window", U(2)),
    BAD("qwen3.attention.sliding_window", I(-1)),
    BAD("qwen3.attention.sliding_window", S("2")),
};

static const struct variant of_odd[] = {
    { { .add = "rope_freqs.weight" }, KN_ECORRUPT, "rope_freqs.weight has shape" },
    { { .split_experts = true }, 0, "" },
    FINE("llama.attention.key_length", U(32)),
    { { .drop = "llama.attention.key_length" }, 0, "" },
    { { .drop = "llama.attention.value_length" }, 0, "" },
    { { .drop = "llama.expert_count" }, KN_ECORRUPT, "blk.0.ffn_gate.weight" },
};

static const struct variant of_shared[] = {
    { { .drop = "qwen2moe.expert_shared_feed_forward_length" }, KN_ECORRUPT, "blk.0.ffn_gate_shexp.weight" },
    BAD("qwen2moe.expert_shared_feed_forward_length", U(0)),
    SAYS(KN_ECORRUPT, "ffn_gate_shexp", "qwen2moe.expert_shared_feed_forward_length", U(128)),
    FINE("qwen2moe.expert_weights_norm", .type = MOE_BOOL, .number = 1),
};

static const struct variant of_all_norm[] = {
    { { .drop = "olmoe.expert_feed_forward_length" }, 0, "" },
    FINE("olmoe.attention.clamp_kqv", F(1.5)),
    BAD("olmoe.attention.clamp_kqv", F(-1)),
    BAD("olmoe.attention.clamp_kqv", F(NAN)),
    UNSUPPORTED("olmoe.expert_group_count", U(2)),
    UNSUPPORTED("olmoe.expert_shared_count", U(1)),
};

static const struct variant of_window[] = {
    MISSING("gpt-oss.attention.sliding_window"),
    BAD("gpt-oss.attention.sliding_window", U(0)),
    FINE("gpt-oss.attention.sliding_window", U(1)),
    MISSING("gpt-oss.expert_feed_forward_length"),
    FINE("gpt-oss.attention.sliding_window_pattern", U(2)),
    FINE("gpt-oss.attention.sliding_window_pattern", U(0)),
    FINE("gpt-oss.attention.sliding_window_pattern", A(MOE_BOOL, 1, 1)),
    FINE("gpt-oss.attention.sliding_window_pattern", A(MOE_BOOL, 1, 0)),
    BAD("gpt-oss.attention.sliding_window_pattern", A(MOE_BOOL, 0, 1)),
    BAD("gpt-oss.attention.sliding_window_pattern", A(MOE_STRING, 1, 1)),
    UNSUPPORTED("gpt-oss.expert_gating_func", U(1)),
    FINE("gpt-oss.expert_gating_func", U(3)),
};

static const struct variant of_lead[] = {
    SAYS(KN_ECORRUPT, "blk.1.ffn_gate.weight", "glm4moe.leading_dense_block_count", U(2)),
    MISSING("glm4moe.feed_forward_length"),
    { { .drop = "glm4moe.leading_dense_block_count" }, KN_ECORRUPT, "blk.0.ffn_gate_inp.weight" },
    MISSING("glm4moe.expert_shared_count"),
    BAD("glm4moe.expert_shared_count", U(1 << 30)),
    SAYS(KN_ECORRUPT, "blk.1.ffn_gate_shexp.weight", "glm4moe.expert_shared_count", U(3)),
    UNSUPPORTED("glm4moe.expert_gating_func", U(1)),
    FINE("glm4moe.expert_group_count", U(4)),
    BAD("glm4moe.expert_group_count", U(3)),
    BAD("glm4moe.expert_group_count", U(8)),
    BAD("glm4moe.expert_group_count", U(65)),
    FINE("glm4moe.expert_group_used_count", U(1)),
    BAD("glm4moe.nextn_predict_layers", U(2)),
    FINE("glm4moe.nextn_predict_layers", U(1)),
    { { .drop = "blk.0.attn_q.bias" }, KN_ECORRUPT, "blk.0.attn_q.bias" },
    { { .drop = "blk.0.attn_q_norm.weight" }, KN_EUNSUPPORTED, "blk.0.attn_k_norm.weight" },
    { { .drop = "blk.1.attn_q_norm.weight" }, KN_ECORRUPT, "blk.1.attn_q_norm.weight" },
};

#define N "qwen3next."
static const struct variant of_delta[] = {
    MISSING(N "ssm.conv_kernel"),
    BAD(N "ssm.conv_kernel", U(1)),
    BAD(N "ssm.conv_kernel", U(9)),
    SAYS(KN_ECORRUPT, "blk.0.ssm_conv1d.weight", N "ssm.conv_kernel", U(3)),
    MISSING(N "ssm.state_size"),
    BAD(N "ssm.state_size", U(0)),
    BAD(N "ssm.state_size", U(513)),
    SAYS(KN_ECORRUPT, "blk.0.attn_qkv.weight", N "ssm.state_size", U(12)),
    MISSING(N "ssm.group_count"),
    SAYS(KN_ECORRUPT, "ssm.inner_size", N "ssm.group_count", U(3)),
    MISSING(N "ssm.time_step_rank"),
    SAYS(KN_ECORRUPT, "ssm.inner_size", N "ssm.time_step_rank", U(10)),
    MISSING(N "ssm.inner_size"),
    BAD(N "ssm.inner_size", U(95)),
    BAD(N "ssm.inner_size", U(1 << 24)),
    FINE(N "full_attention_interval", U(4)),
    BAD(N "full_attention_interval", U(0)),
    SAYS(KN_ECORRUPT, "blk.1.attn_q.weight", N "full_attention_interval", U(2)),
    UNSUPPORTED(N "attention.recurrent_layers", A(MOE_BOOL, 4, 1)),
    UNSUPPORTED(N "attention.recurrent_layers", A(MOE_STRING, 4, 1)),
    UNSUPPORTED(N "attention.recurrent_layers", U(1)),
    { { .drop = "blk.0.ssm_ba.weight" }, KN_ECORRUPT, "blk.0.ssm_beta.weight" },
};
#undef N

static const struct variant of_mixer[] = {
    UNSUPPORTED("phimoe.expert_used_count", U(3)),
    FINE("phimoe.expert_gating_func", U(1)),
    UNSUPPORTED("phimoe.expert_gating_func", U(2)),
    FINE("phimoe.attention.sliding_window", U(0)),
    { { .drop = "blk.0.attn_norm.bias" }, KN_ECORRUPT, "blk.0.attn_norm.bias" },
    { { .drop = "output_norm.bias" }, KN_ECORRUPT, "output_norm.bias" },
    { { .drop = "output.bias" }, 0, "" },
    { { .drop = "rope_factors_short.weight" }, KN_ECORRUPT, "rope_factors_short.weight" },
};

static const struct variant of_chunks[] = {
    { { .drop = "llama4.attention.sliding_window" }, 0, "" },
    BAD("llama4.attention.sliding_window", U(0)),
    BAD("llama4.attention.temperature_length", U(0)),
    BAD("llama4.attention.temperature_scale", F(-1)),
    SAYS(KN_ECORRUPT, "blk.0.ffn_gate_inp.weight", "llama4.interleave_moe_layer_step", U(1)),
    SAYS(KN_ECORRUPT, "blk.1.ffn_gate.weight", "llama4.interleave_moe_layer_step", U(3)),
    BAD("llama4.interleave_moe_layer_step", U(1 << 20)),
    MISSING("llama4.feed_forward_length"),
    UNSUPPORTED("llama4.expert_gating_func", U(1)),
    FINE("llama4.expert_gating_func", U(2)),
    SAYS(KN_ECORRUPT, "blk.1.ffn_gate_shexp.weight", "llama4.expert_shared_count", U(2)),
};

static void check_variants(int which, const struct variant *v, int n)
{
    for (int i = 0; i < n; i++) {
        char what[96];
        snprintf(what, sizeof what, "%d: %s", i, v[i].c.key ? v[i].c.key : v[i].c.drop ? v[i].c.drop : "");
        check(which, what, &v[i].c, v[i].code, v[i].says);
    }
}

static void metadata_that_is_wrong_is_refused(void **state)
{
    (void)state;
    check(TINY, "a plain copy", &(struct change){ 0 }, 0, "");
    check_variants(TINY, of_tiny, LEN(of_tiny));
    check_variants(DENSE, of_dense, LEN(of_dense));
    check_variants(ODD, of_odd, LEN(of_odd));
    check_variants(SHARED, of_shared, LEN(of_shared));
    check_variants(ALL_NORM, of_all_norm, LEN(of_all_norm));
    check_variants(WINDOW, of_window, LEN(of_window));
    check_variants(LEAD, of_lead, LEN(of_lead));
    check_variants(DELTA, of_delta, LEN(of_delta));
    check_variants(MIXER, of_mixer, LEN(of_mixer));
    check_variants(CHUNKS, of_chunks, LEN(of_chunks));
}

/* ---- invalid tensors ------------------------------------------------------------------------- */

static void check_tensor(int which, const struct moe_tensor *t)
{
    char name[96], other[100];
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
    snprintf(other, sizeof other, "x%s", name);
    bool optional = !strcmp(name, "output.weight") || !strcmp(name, "output.bias");
    check(which, name, &(struct change){ .drop = name }, optional ? 0 : KN_ECORRUPT, name);
    check(which, name, &(struct change){ .tensor = name, .rename = other }, optional ? KN_EUNSUPPORTED : KN_ECORRUPT,
          name);
    check(which, name, &(struct change){ .add = other }, KN_EUNSUPPORTED, other);
    char says[160];
    snprintf(says, sizeof says, "tensor %s has weight format TQ1_0 (34), which is not supported", name);
    if (t->dim[0] % 256 == 0)
        check(which, name, &(struct change){ .tensor = name, .gguf_type = 34 }, KN_EUNSUPPORTED, says);
    struct change more = { .tensor = name, .dim = { t->dim[0], t->dim[1] + 1, t->dim[2], 0 } };
    check(which, name, &more, KN_ECORRUPT, name);
    struct change half = { .tensor = name, .dim = { t->dim[0] / 2, t->dim[1], t->dim[2], 0 }, .gguf_type = 1 };
    check(which, name, &half, KN_ECORRUPT, name);
    struct change deep = { .tensor = name, .dim = { t->dim[0], t->dim[1], t->dim[2], 2 } };
    check(which, name, &deep, KN_ECORRUPT, name);
}

static bool contains(struct moe_string s, const char *text) { return memmem(s.data, s.n, text, strlen(text)); }

static void tensors_that_are_wrong_are_refused(void **state)
{
    (void)state;
    for (int which = TINY; which < N_SOURCE; which++)
        for (size_t i = 0; which != ODD && i < moe_file_tensor_count(source[which]); i++) {
            const struct moe_tensor *t = moe_file_tensor(source[which], i);
            if (which == DELTA &&
                (contains(t->name, "blk.1.") || contains(t->name, "blk.2.") || contains(t->name, "_ba.")))
                continue; /* as in blk.0; and _ba. selects the expected set */
            if (which == MIXER &&
                (contains(t->name, "rope_factors_long") || contains(t->name, "blk.0.attn_output.bias")))
                continue;                                               /* they select the expected set */
            bool tells = moe_string_is(t->name, "blk.0.attn_q.bias") || /* it selects the expected set */
                         moe_string_is(t->name, "blk.0.attn_q_norm.weight") ||
                         moe_string_is(t->name, "blk.1.exp_probs_b.bias");
            if (which < LEAD || !tells)
                check_tensor(which, t);
        }
    check(TINY, "one row", &(struct change){ .tensor = "token_embd.weight", .dim = { 256 } }, KN_ECORRUPT,
          "token_embd.weight");
    for (size_t i = 0; i < moe_file_tensor_count(source[ODD]); i++) {
        struct moe_string name = moe_file_tensor(source[ODD], i)->name;
        char gone[96];
        snprintf(gone, sizeof gone, "%.*s", (int)name.n, name.data);
        struct change c = { .split_experts = true, .drop = gone };
        check(ODD, gone, &c, strcmp(gone, "output.weight") ? KN_ECORRUPT : 0, gone);
    }
}

static void experts_apart_or_stacked_are_the_same(void **state)
{
    (void)state;
    struct opened o;
    float stacked[N_VOCAB], apart[N_VOCAB];
    assert_int_equal(open_and_run(&o, source_path[ODD], stacked), 0);
    close_all(&o);
    write_copy(ODD, &(struct change){ .split_experts = true });
    assert_int_equal(open_and_run(&o, path, apart), 0);
    assert_int_equal(moe_file_tensor_count(o.file), moe_file_tensor_count(source[ODD]) + 3 * 5);
    close_all(&o);
    assert_memory_equal(stacked, apart, sizeof stacked);
}

/* ---- failing calls --------------------------------------------------------------------------- */

static void whatever_fails_the_logits_are_the_same_or_it_is_said(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
        bool harmless;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM, false }, { FAULT_MAP, FAULT_ERROR, ENOMEM, false },
        { FAULT_OPEN, FAULT_ERROR, EMFILE, false },  { FAULT_SIZE, FAULT_ERROR, EIO, false },
        { FAULT_READ, FAULT_ERROR, EIO, false },     { FAULT_READ, FAULT_LASTS, EIO, false },
        { FAULT_READ, FAULT_EMPTY, 0, false },       { FAULT_READ, FAULT_ERROR, EINTR, true },
        { FAULT_READ, FAULT_SHORT, 0, true },
    };
    struct opened o;
    float want[N_VOCAB], got[N_VOCAB];
    int n_error = 0;
    assert_int_equal(open_and_run(&o, source_path[TINY], want), 0);
    close_all(&o);
    io = OFF_IO_PREAD;
    for (int i = 0; i < LEN(ways); i++) {
        bool struck = true;
        for (long n = 1; struck; n++) {
            faults_at(ways[i].kind, n, ways[i].way, ways[i].error);
            memset(got, 0, sizeof got);
            int error = open_and_run(&o, source_path[TINY], got);
            close_all(&o);
            struck = faults.struck; /* the fault may come while slots are filled */
            bool fine = error ? faults.n_line >= 1 && struck && !ways[i].harmless
                              : faults.n_line <= struck && !memcmp(got, want, sizeof got);
            if (!fine || !faults_clean())
                fail_msg("way %d, call %ld: %d, %d lines (%s), %s", i, n, error, faults.n_line, faults.line,
                         faults_clean() ? "clean" : "something is left");
            n_error += error != 0;
        }
    }
    faults_off();
    io = OFF_IO_AUTO;
    assert_true(n_error > 50);
}

static void progress_ends_where_it_said(void **state)
{
    (void)state;
    for (int which = TINY; which <= ODD; which++) {
        struct off_progress p = { 0 };
        struct kn_team *team;
        struct moe_model *m;
        assert_int_equal(kn_team_open(&team, 1), 0);
        assert_int_equal(moe_model_open(&m, source[which], &(struct moe_model_options){ 0 }), 0);
        assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team, .progress = &p }), 0);
        assert_true(p.total_bytes > 100000);
        assert_int_equal(p.done_bytes, p.total_bytes);
        moe_model_close(m);
        kn_team_close(team);
    }
}

/* The sizes reported before a model is loaded are the sizes it takes when loaded. */
static void sizes_are_known_before_anything_is_read(void **state)
{
    (void)state;
    for (int which = TINY; which <= DELTA; which = which == ODD ? DELTA : which + 1) {
        struct kn_team *team;
        struct moe_model *m;
        faults_reset();
        assert_int_equal(kn_team_open(&team, 2), 0);
        long mapped = faults.n_map;
        assert_int_equal(moe_model_open(&m, source[which], &(struct moe_model_options){ 0 }), 0);
        const struct moe_shape s = *moe_model_shape(m);
        struct moe_context_options co = { .max_row = 4, .max_want = 1, .n_slot = 4, .max_pos = 4, .team = team };
        size_t context_bytes = moe_context_bytes(m, &co).host, kv_bytes = moe_kv_slot_bytes(m, KN_KV_F16);
        assert_int_equal(faults.calls[FAULT_READ], 0);
        assert_int_equal(faults.n_map, mapped);
        assert_int_equal(s.n_expert_total, s.n_layer * s.n_expert);
        assert_true(s.expert_least <= s.expert_bytes && (s.expert_least > 0) == (s.n_expert > 0));
        assert_true(s.expert_file_bytes <= s.expert_bytes && s.pass_bytes <= s.dense_bytes);

        assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team }), 0);
        assert_memory_equal(moe_model_shape(m), &s, sizeof s);
        assert_int_equal(m->matrices.used + m->vectors.used, s.dense_bytes);
        assert_true(faults.n_map - mapped >= (long)(s.dense_bytes + s.expert_bytes));
        assert_int_equal(moe_context_bytes(m, &co).host, context_bytes);
        assert_int_equal(moe_kv_slot_bytes(m, KN_KV_F16), kv_bytes);
        moe_model_close(m);
        kn_team_close(team);
        assert_true(faults_clean());
        faults_off();
    }
}

/* The panels of every dense matrix are on the node of the threads that compute them. */
static void dense_weights_lie_over_the_nodes(void **state)
{
    (void)state;
    float one[N_VOCAB], two[N_VOCAB];
    struct opened o;
    struct kn_machine machine;
    int n_page = 0;
    assert_int_equal(open_and_run(&o, source_path[TINY], one), 0);
    close_all(&o);
    nodes_set(2);
    kn_machine_get(&machine);
    assert_int_equal(open_and_run(&o, source_path[TINY], two), 0);
    const struct moe_layer *l = &o.model->layer[0];
    const struct kn_mat *const all[] = { &l->q, &l->k, &l->v, &l->o, &l->router, &o.model->embed, &o.model->head };
    for (size_t i = 0; i < sizeof all / sizeof *all && machine.n_node == 2; i++) {
        int n_panel = kn_ceil_div(all[i]->n_out, KN_PANEL), cut = kn_team_cut(o.team, n_panel, 1);
        size_t panel = KN_PANEL * kn_row_bytes(all[i]->format, all[i]->n_in);
        const uint8_t *begin = all[i]->data, *middle = begin + (size_t)cut * panel;
        const uint8_t *end = begin + (size_t)n_panel * panel;
        begin = (const uint8_t *)kn_align_up((uintptr_t)begin, 4096);
        if (middle > begin)
            assert_int_equal(nodes_of(begin, (size_t)(middle - begin)), machine.node[0]);
        middle = (const uint8_t *)kn_align_up((uintptr_t)middle, 4096);
        if (end > middle)
            assert_int_equal(nodes_of(middle, (size_t)(end - middle)), machine.node[1]);
        n_page += begin < middle && middle < end ? (int)(end - begin) / 4096 : 0;
    }
    assert_true(n_page > 30 || machine.n_node == 1);
    close_all(&o);
    nodes_set(1);
    assert_memory_equal(one, two, sizeof one);
}

/* Experts that are evicted and read again give the same bytes as resident ones. */
static void two_experts_of_memory_are_enough(void **state)
{
    (void)state;
    float want[N_VOCAB];
    struct opened o;
    struct moe_model *m;
    static const int32_t slot[4] = { 2, 0, 3, 1 }, token[3] = { 7, 250, 31 };
    struct moe_row row[3];
    struct moe_result result;
    for (int i = 0; i < 3; i++)
        row[i] = (struct moe_row){ .token = token[i], .position = i, .want_logits = i == 2, .base = slot, .n_base = 4 };
    faults_reset();
    assert_int_equal(open_and_run(&o, source_path[TINY], want), 0);
    moe_context_close(o.context);
    assert_int_equal(moe_model_open(&m, o.file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    size_t least = moe_model_shape(m)->expert_least;
    struct moe_load_options lo = { .team = o.team, .expert_bytes = least - 1 };
    assert_int_equal(moe_model_load(m, &lo), KN_ELIMIT);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "--host-mem"));
    moe_model_close(m);
    assert_int_equal(moe_model_open(&m, o.file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    lo.expert_bytes = least;
    assert_int_equal(moe_model_load(m, &lo), 0);
    struct moe_context_options co = { .max_row = 4, .max_want = 1, .n_slot = 4, .max_pos = 4, .team = o.team };
    assert_int_equal(moe_context_open(&o.context, m, &co), 0);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(moe_forward(o.context, &(struct moe_batch){ .row = row, .n_row = 3 }, &result), 0);
        assert_memory_equal(result.logits, want, sizeof want);
    }
    moe_context_close(o.context);
    o.context = NULL;
    moe_model_close(m);
    close_all(&o);
    assert_true(faults_clean());
    faults_off();
}

/* ---- a pass allocates nothing ---------------------------------------------------------------- */

static void (*plain_softmax)(float *x, int n);
static void greedy_softmax(float *x, int n)
{
    kn_free(kn_alloc(1));
    plain_softmax(x, n);
}

/* Runs in a child process: an allocation during a pass ends the process. */
static bool dies(bool allocates)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = { 0, 0 };
        struct opened o = { 0 };
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGILL, SIG_DFL);
        signal(SIGTRAP, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr) || kn_team_open(&o.team, 1) || moe_file_open(&o.file, path) ||
            load_model(&o.model, o.file, KN_ISA_SCALAR, o.team, io) ||
            moe_context_open(&o.context, o.model,
                             &(struct moe_context_options){
                                 .max_row = 1, .max_want = 1, .n_slot = 1, .max_pos = 1, .team = o.team }))
            _exit(0);
        struct kn_ops ops = *o.model->ops;
        plain_softmax = ops.softmax;
        ops.softmax = allocates ? greedy_softmax : plain_softmax;
        ((struct kn_host_queue *)o.context->queue)->ops = &ops;
        int32_t slot = 0;
        struct moe_row row = { .token = 1, .position = 0, .want_logits = true, .base = &slot, .n_base = 1 };
        struct moe_result result;
        _exit(moe_forward(o.context, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result) == 0 ? 0 : 1);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && status != 0;
}

static void a_pass_that_allocates_dies(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__ /* does not support threads in the child of a threaded process */
    printf("skipped: a pass that allocates dies in a child, which ThreadSanitizer has no threads for\n");
    skip();
#endif
    write_copy(TINY, &(struct change){ 0 });
    assert_false(dies(false));
    assert_true(dies(true));
}

static void a_pass_allocates_nothing(void **state)
{
    (void)state;
    static const int32_t slot[4] = { 0, 1, 2, 3 };
    for (int which = TINY; which <= ODD; which++) {
        struct opened o;
        struct moe_result result;
        faults_reset();
        assert_int_equal(open_and_run(&o, source_path[which], NULL), 0);
        long before = faults.calls[FAULT_ALLOC] + faults.calls[FAULT_MAP];
        struct moe_row row = { .token = 5, .position = 3, .want_logits = true, .base = slot, .n_base = 4 };
        assert_int_equal(moe_forward(o.context, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result), 0);
        assert_int_equal(faults.calls[FAULT_ALLOC] + faults.calls[FAULT_MAP], before);
        close_all(&o);
        assert_true(faults_clean());
        faults_off();
    }
}

/* ---- memory with old contents ---------------------------------------------------------------- */

#define LONG 70 /* longer than a chunk of attention, coprime to 11 */

/* Logits of the last of LONG tokens, with KV and scratch memory filled with one byte value. */
static void run_over(struct opened *o, int isa, int fill, int n_chunk, float *logits)
{
    static int32_t slot[LONG + 1]; /* the last entry is after all positions: slot 0 */
    struct moe_row row[LONG];
    struct moe_result result;
    struct moe_model *m = NULL;
    struct moe_context_options co = {
        .max_row = LONG, .max_want = 1, .n_slot = LONG + 9, .max_pos = LONG, .kv = KN_KV_F16, .team = o->team
    };
    assert_int_equal(load_model(&m, o->file, (enum kn_isa)isa, o->team, io), 0);
    assert_int_equal(moe_context_open(&o->context, m, &co), 0);
    memset(o->context->kv.base, fill, o->context->kv.bytes);
    memset(o->context->x, fill, LONG * (size_t)m->desc.d_model * sizeof(float));
    memset(o->context->y, fill, LONG * (size_t)m->desc.d_model * sizeof(float));
    for (int i = 0; i < LONG; i++)
        slot[i] = LONG + 8 - (i * 11 + 5) % LONG;
    for (int done = 0; done < LONG; done += n_chunk) {
        int n = kn_min(n_chunk, LONG - done);
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){ .token = (done + i) * 4,
                                       .position = done + i,
                                       .base = slot,
                                       .want_logits = done + i == LONG - 1,
                                       .n_base = LONG + 1 };
        assert_int_equal(moe_forward(o->context, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
    }
    memcpy(logits, result.logits, N_VOCAB * sizeof *logits);
    moe_context_close(o->context);
    o->context = NULL;
    moe_model_close(m);
}

static void what_lay_there_before_is_never_read(void **state)
{
    (void)state;
    float want[N_VOCAB], got[N_VOCAB];
    for (int which = TINY; which <= DELTA; which = which == ODD ? DELTA : which + 1) {
        struct opened o;
        assert_int_equal(open_and_run(&o, source_path[which], NULL), 0);
        moe_context_close(o.context);
        o.context = NULL;
        run_over(&o, KN_ISA_COUNT - 1, 0, 33, want);
        for (int isa = 0; isa <= (int)kn_isa_best(); isa++) {
            run_over(&o, isa, 0xff, isa % 2 ? 1 : 33, got); /* NaN in every format */
            assert_memory_equal(got, want, sizeof got);
        }
        close_all(&o);
    }
}

/* ---- a failed row ----------------------------------------------------------------------------- */

/* Runs layer 0 over the last pass's rows again, on a residual stream of its own. */
static void run_layer(struct moe_context *c, int status, float *x /* [3][d_model] */)
{
    size_t n = 3 * (size_t)c->model->desc.d_model;
    for (size_t i = 0; i < n; i++)
        c->x[i] = (float)(kn_mix(i) % 1000) / 500 - 1;
    memset(c->kv.base, 0, c->kv.bytes);
    c->now.status[1] = status;
    moe_attention(c, 0);
    moe_experts(c, 0);
    memcpy(x, c->x, n * sizeof *x);
}

static void a_row_that_has_died_is_not_felt(void **state)
{
    (void)state;
    struct opened o;
    assert_int_equal(open_and_run(&o, source_path[TINY], NULL), 0);
    struct moe_context *c = o.context;
    static const int32_t slot[3][1] = { { 2 }, { 0 }, { 3 } };
    struct moe_row row[3];
    struct moe_result result;
    for (int i = 0; i < 3; i++) /* three sequences */
        row[i] = (struct moe_row){ .token = 40 + i, .want_logits = true, .base = slot[i], .n_base = 1 };
    struct moe_batch batch = { .row = row, .n_row = 3 };
    assert_int_equal(moe_forward(c, &batch, &result), 0);
    size_t n = (size_t)c->model->desc.d_model;
    float *alive = calloc(6 * n, sizeof *alive), *dead = alive + 3 * n;
    run_layer(c, 0, alive);
    run_layer(c, KN_EIO, dead);
    assert_memory_equal(alive, dead, n * sizeof *alive);
    assert_memory_equal(alive + 2 * n, dead + 2 * n, n * sizeof *alive);
    assert_int_equal(c->plan.first[*c->plan.n_expert], 2 * c->model->desc.n_used);
    const uint16_t *keys = (const uint16_t *)c->kv.base; /* of the first head */
    size_t d_head = (size_t)c->model->desc.d_head, written[4] = { 0 };
    for (size_t i = 0; i < 4 * d_head; i++)
        written[i / d_head] += keys[i] != 0;
    assert_true(written[2] > 0 && written[3] > 0);
    assert_true(written[0] == 0 && written[1] == 0); /* and writes no keys */
    free(alive);
    close_all(&o);
}

/* ---- several contexts over one model --------------------------------------------------------- */

struct runner {
    const struct moe_model *model;
    float logits[N_VOCAB];
    int error;
};

static void *run_context(void *arg)
{
    struct runner *r = arg;
    struct opened o = { 0 };
    int32_t slot[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct moe_result result;
    if (!(r->error = kn_team_open(&o.team, 1)))
        r->error = moe_context_open(
            &o.context, r->model,
            &(struct moe_context_options){ .max_row = 1, .max_want = 1, .n_slot = 8, .max_pos = 8, .team = o.team });
    for (int i = 0; i < 8 && !r->error; i++) {
        struct moe_row row = { .token = 10 * i, .position = i, .want_logits = true, .base = slot, .n_base = 8 };
        r->error = moe_forward(o.context, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result);
    }
    if (!r->error)
        memcpy(r->logits, result.logits, sizeof r->logits);
    close_all(&o);
    return NULL;
}

static void contexts_share_a_model(void **state)
{
    (void)state;
    struct opened o;
    struct runner alone, both[2];
    pthread_t thread[2];
    assert_int_equal(open_and_run(&o, source_path[TINY], NULL), 0);
    alone.model = both[0].model = both[1].model = o.model;
    run_context(&alone);
    assert_int_equal(alone.error, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_context, &both[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(both[i].error, 0);
        assert_memory_equal(both[i].logits, alone.logits, sizeof alone.logits);
    }
    close_all(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_that_is_wrong_is_refused),
        cmocka_unit_test(tensors_that_are_wrong_are_refused),
        cmocka_unit_test(experts_apart_or_stacked_are_the_same),
        cmocka_unit_test(whatever_fails_the_logits_are_the_same_or_it_is_said),
        cmocka_unit_test(progress_ends_where_it_said),
        cmocka_unit_test(sizes_are_known_before_anything_is_read),
        cmocka_unit_test(dense_weights_lie_over_the_nodes),
        cmocka_unit_test(two_experts_of_memory_are_enough),
        cmocka_unit_test(a_pass_that_allocates_dies),
        cmocka_unit_test(a_pass_allocates_nothing),
        cmocka_unit_test(what_lay_there_before_is_never_read),
        cmocka_unit_test(a_row_that_has_died_is_not_felt),
        cmocka_unit_test(contexts_share_a_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
