/* engine/cli/inspect_use.c - the part of `spillway inspect` that says whether a model runs on this machine, the memory
 * that it needs, the speed to expect, and the forms of its chats.
 *
 * The model is described without its weights, as `plan` does it.  First with any amount of memory and the smallest
 * default context: the smallest budget that works is known even if this machine has less memory.  Then with the memory
 * that is free.  The first error of these is the reason why the model does not run here.  The forecast of speed is that
 * of `plan` for one request; it measures the machine's rates, which takes about a second. */
#include "engine/cli/inspect_use.h"
#include "engine/api/request.h"
#include "engine/plan/plan.h"
#include "engine/cli/text_width.h"
#include "engine/tools/tools.h"

#include <string.h>
#include <sys/stat.h>

#define SMALL_CTX 8192 /* the default context is never smaller, unless the model's own is */
#define MIB       ((size_t)1 << 20)

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int eng_inspect_open(struct moe_file **out, const struct eng_config *c, char *why, size_t bytes)
{
    eng_messages_hold();
    int error = moe_file_open(out, c->model);
    const char *reason = eng_messages_show(c);
    if (error == KN_EUNSUPPORTED && !is_folder(c->model)) /* no GGUF file that can be read */
        error = KN_ECORRUPT;
    if (error && error != KN_EUNSUPPORTED)
        kn_fail(error, "%s", reason);
    snprintf(why, bytes, "%s", reason);
    return error;
}

static void put_runs(struct eng_sheet *s, bool runs)
{
    eng_sheet_begin(s, "runs", "runs here");
    fputs(s->json ? (runs ? "true" : "false") : runs ? "yes" : "no", s->out);
    eng_sheet_end(s);
}

void eng_inspect_refused(struct eng_sheet *s, const char *why)
{
    put_runs(s, false);
    eng_sheet_sentence(s, "why", "  why", why);
}

/* ---- memory and speed --------------------------------------------------------------------------------- */

/* The needs of a model, as described under one budget. */
struct needs {
    struct moe_shape shape;
    struct eng_split split;
    int n_ctx;
};

static struct needs needs_of(const struct eng_engine *e)
{
    return (struct needs){ *moe_model_shape(eng_model(e)), *eng_memory(e), eng_n_ctx(e) };
}

/* least: bytes of the smallest budget that works, for n_least tokens. */
static void put_memory(struct eng_sheet *s, const struct needs *n, size_t least, int n_least)
{
    /* the measured parts differ by a few pages between runs: 1 MiB more is always enough */
    size_t least_mib = (least + MIB - 1) / MIB + 1;
    eng_sheet_open(s, "memory", '{', "memory");
    eng_sheet_bytes(s, "dense_bytes", "dense", n->shape.dense_bytes);
    if (n->shape.expert_bytes) {
        eng_sheet_bytes(s, "expert_bytes", "experts", n->shape.expert_bytes);
        eng_sheet_bytes(s, "expert_least_bytes", "at least", n->shape.expert_least);
    }
    if (s->json)
        eng_sheet_count(s, "n_ctx", "", (uint64_t)n->n_ctx);
    eng_sheet_begin(s, "kv_bytes", "KV cache");
    if (s->json)
        fprintf(s->out, "%zu", n->split.kv_least);
    else {
        eng_print_bytes(s->out, n->split.kv_least);
        fprintf(s->out, " for %d tokens, the default context", n->n_ctx);
    }
    eng_sheet_end(s);
    if (n->shape.state_bytes)
        eng_sheet_bytes(s, "state_bytes", "state", n->shape.state_bytes);
    eng_sheet_begin(s, "least_host_mem_bytes", "smallest");
    fprintf(s->out, s->json ? "%zu" : "--host-mem %zuM", s->json ? least_mib * MIB : least_mib);
    if (!s->json)
        fprintf(s->out, ", for %d tokens", n_least);
    eng_sheet_end(s);
    eng_sheet_close(s, '}');
}

static void put_no_forecast(struct eng_sheet *s, const char *why)
{
    if (s->json) {
        eng_sheet_begin(s, "forecast", "");
        fputs("null", s->out);
        eng_sheet_sentence(s, "no_forecast", "", why);
    } else
        eng_sheet_sentence(s, "", "forecast", why);
}

/* The forecast of `plan` for one request. */
static void put_forecast(struct eng_sheet *s, const struct eng_config *c, const struct eng_engine *e)
{
    struct eng_machine machine;
    struct eng_forecast f;
    char line[160];
    eng_messages_hold();
    int error = eng_forecast_rates(&machine, e, 0, 0);
    eng_messages_show(c);
    if (error) {
        put_no_forecast(s,
                        "none: the disk cannot be measured with this file; spillway plan --disk-rate takes its rate");
        return;
    }
    int position = kn_min(ENG_PLAN_POSITION, eng_n_ctx(e));
    struct eng_setting setting = eng_forecast_setting(e, &machine, position);
    eng_plan_forecast(&f, &setting, 1);
    eng_sheet_begin(s, "forecast", "forecast");
    if (s->json) {
        fprintf(s->out, "{\"batch\":1,\"position\":%d,\"tokens_per_s\":%.3f,\"bound_by\":\"%s\"}", position,
                f.tokens_per_s, f.bound_by);
        return;
    }
    snprintf(line, sizeof line, "%.*f tokens/s for one request at %d tokens, bound by %s; spillway plan tells more",
             f.tokens_per_s < 10 ? 1 : 0, f.tokens_per_s, position, f.bound_by);
    eng_print_wrapped(s->out, s->column, s->column, line);
}

/* True if family and tensors are known.  The description below opens the vocabulary first: an unknown family would be
 * refused for its tokenizer. */
static bool binds(const struct moe_file *f)
{
    struct moe_model *m = NULL;
    bool known = !moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 });
    moe_model_close(m);
    return known;
}

static void put_run(struct eng_sheet *s, const struct eng_config *c, const struct moe_file *f)
{
    struct eng_engine *e = NULL;
    struct needs small = { .n_ctx = 0 }, here = { .n_ctx = 0 };
    struct eng_options o = {
        .model = c->model, .isa = KN_ISA_COUNT - 1, .n_parallel = 1, .host_mem = ENG_ANY_MEMORY, .n_ctx_most = SMALL_CTX
    };
    size_t own = kn_alloc_bytes(); /* of this command: a description measures all allocations of the process */
    eng_messages_hold();
    bool known = binds(f) && !eng_describe(&e, &o), fits = false;
    if (known) {
        small = here = needs_of(e);
        eng_close(e);
        o.host_mem = 0;
        o.n_ctx_most = 0;
        fits = !eng_describe(&e, &o);
    }
    const char *reason = eng_messages_show(c);
    if (fits) {
        here = needs_of(e);
        put_runs(s, true);
    } else
        eng_inspect_refused(s, reason);
    if (known)
        put_memory(s, &here, small.split.least - own, small.n_ctx);
    if (fits) {
        put_forecast(s, c, e);
        eng_close(e);
    } else if (known)
        put_no_forecast(s, "none: it does not fit; spillway plan --host-mem SIZE forecasts it for a larger machine");
}

/* ---- chats --------------------------------------------------------------------------------------------- */

static void put_reasoning(struct eng_sheet *s, const struct eng_tool_format *format)
{
    const char *open = eng_tool_format_thought(format, false), *close = eng_tool_format_thought(format, true);
    eng_sheet_begin(s, "reasoning", "reasoning");
    if (s->json && open) {
        fputs("{\"open\":", s->out);
        eng_json_string(s->out, eng_sheet_text(open));
        fputs(",\"close\":", s->out);
        eng_json_string(s->out, eng_sheet_text(close));
        fputc('}', s->out);
    } else if (s->json)
        fputs(format->thinks ? "\"channel\"" : "null", s->out);
    else if (open)
        fprintf(s->out, "between %s and %s", open, close);
    else
        fputs(format->thinks ? "in a channel of its own" : "none that its template shows", s->out);
    eng_sheet_end(s);
}

/* Prints the template that a server uses for this file, and the forms of calls and reasoning in it. */
static void put_chat(struct eng_sheet *s, const struct eng_config *c, const struct moe_file *f)
{
    struct eng_vocab *vocab = NULL;
    struct eng_api_setup setup = { 0 };
    struct eng_tool_format format;
    struct eng_chat *chat = NULL;
    eng_messages_hold();
    int error = eng_vocab_open(&vocab, f);
    bool own = eng_chat_exists(f, NULL), some = own || (!error && eng_chat_exists(f, vocab));
    if (!error && some)
        error = eng_chat_open(&chat, f, vocab, moe_file_path(f));
    const char *reason = eng_messages_show(c);
    eng_sheet_string(s, "chat_template", "chat template",
                     eng_sheet_text(own    ? "in the file"
                                    : some ? "built in, chosen by the vocabulary"
                                           : "none: --chat-template takes one"));
    if (error)
        eng_sheet_sentence(s, "chat_refusal", "  refused", reason);
    if (chat) {
        setup.vocab = vocab;
        setup.chat = chat;
        eng_api_setup_from_template(&setup, &format);
        eng_sheet_string(s, "tool_calls", "tool calls",
                         eng_sheet_text(setup.generic_tools ? "generic" : eng_tool_format_name(&format)));
        put_reasoning(s, &format);
    }
    eng_chat_close(chat);
    eng_vocab_close(vocab);
}

void eng_inspect_use(struct eng_sheet *s, const struct eng_config *c, const struct moe_file *f)
{
    put_run(s, c, f);
    put_chat(s, c, f);
}
