/* engine/open.c - opens and closes an engine.
 *
 * eng_describe() opens the file, the vocabulary and the model without weights, makes small allocations such as sessions
 * and samplers, and splits the memory budget, or refuses it. eng_open() calls it, and then reads the weights and
 * allocates the expert slots, the KV blocks and the context, each with the size given by the split. */
#include "engine/base/base.h"
#include "engine/plan/disk_rate.h"
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

struct moe_context_options eng_context_options(const struct eng_engine *e)
{
    struct eng_draft_needs needs = { .n_recall = 0 };
    if (e->drafting)
        eng_draft_needs(e->drafting, &needs);
    return (struct moe_context_options){ .max_row = e->assets.opt.n_chunk + e->assets.n_draft_row,
                                         .max_want = e->assets.opt.n_parallel + e->assets.n_draft_row +
                                                     e->assets.opt.n_prompt_logprob_row,
                                         .n_slot = e->memory.split.n_kv_slot,
                                         .n_state = e->assets.opt.n_parallel + e->memory.split.n_state,
                                         .n_draft = e->assets.n_draft_row,
                                         .max_pos = e->assets.opt.n_ctx,
                                         .max_path = 2 * e->assets.opt.n_parallel + 2,
                                         .kv = e->assets.opt.kv,
                                         .features = needs.features,
                                         .n_recall = needs.n_recall,
                                         .resident_bytes = e->memory.split.device.expert,
                                         .n_host_layer = e->assets.opt.n_host_layer,
                                         .team = e->assets.team };
}

#define FLOAT_COST 2 /* time of a float multiply-add over that of an int8 one */

static int open_session(struct eng_engine *e, struct eng_session *s)
{
    s->engine = e;
    s->seq.sampling = &s->sampling;
    s->seq.token = kn_calloc((size_t)e->assets.opt.n_ctx + 1, sizeof *s->seq.token);
    s->bias = kn_calloc((size_t)(ENG_REQUEST_BIAS + e->assets.n_stop), sizeof *s->bias);
    if (e->assets.opt.grammar_bytes)
        s->grammar_state = kn_calloc(1, sizeof *s->grammar_state);
    return s->seq.token && s->bias && (s->grammar_state || !e->assets.opt.grammar_bytes) ? 0 : KN_ENOMEM;
}

static int open_seat(struct eng_engine *e, struct eng_seat *seat, int number)
{
    seat->number = number;
    seat->slot = kn_calloc(kn_align_up((size_t)e->assets.opt.n_ctx + 1 + ENG_DRAFT_NODES, ENG_KV_BLOCK),
                           sizeof *seat->slot);
    seat->tail = kn_calloc(ENG_DRAFT_TAILS, sizeof *seat->tail);
    if (e->assets.opt.grammar_bytes)
        seat->grammar = kn_calloc(1, sizeof *seat->grammar);
    return seat->slot && seat->tail && (seat->grammar || !e->assets.opt.grammar_bytes) ? 0 : KN_ENOMEM;
}

static int open_sessions(struct eng_engine *e)
{
    size_t n = (size_t)e->assets.opt.n_session, n_seat = (size_t)e->assets.opt.n_parallel;
    int error = 0;
    e->schedule.session = kn_calloc(n, sizeof *e->schedule.session);
    e->schedule.user_share = kn_calloc(n, sizeof *e->schedule.user_share);
    e->schedule.active = kn_calloc(n_seat, sizeof(struct eng_session *));
    e->schedule.free_seat = kn_calloc(n_seat, sizeof(struct eng_seat *));
    e->schedule.seat = kn_calloc(n_seat, sizeof *e->schedule.seat);
    if (!e->schedule.session || !e->schedule.user_share || !e->schedule.active || !e->schedule.free_seat ||
        !e->schedule.seat)
        error = KN_ENOMEM;
    for (size_t i = 0; !error && i < n; i++)
        error = open_session(e, &e->schedule.session[i]);
    for (size_t i = 0; !error && i < n_seat; i++) {
        e->schedule.free_seat[i] = &e->schedule.seat[i];
        error = open_seat(e, &e->schedule.seat[i], (int)i);
    }
    return error ? kn_fail(error, "no memory for %zu sessions", n) : 0;
}

/* Allocates the buffers of a pass, and a sampler and grammar mask for each thread. Samplers have the size of the
 * vocabulary: rows of the output matrix beyond it are padding and are never sampled. */
static int open_choosers(struct eng_engine *e)
{
    int n_vocab = eng_vocab_size(e->assets.vocab), n_thread = kn_team_size(e->assets.team), error = 0;
    size_t n = (size_t)e->assets.opt.n_parallel;
    size_t n_draft = (size_t)e->assets.n_draft_row;
    e->pass.row = kn_calloc((size_t)e->assets.opt.n_chunk + n_draft, sizeof *e->pass.row);
    e->pass.due = kn_calloc(n, sizeof(struct eng_session *));
    e->pass.choice_status = kn_calloc(n, sizeof *e->pass.choice_status);
    e->pass.top = kn_calloc((n + n_draft + (size_t)e->assets.opt.n_prompt_logprob_row) * ENG_TOP, sizeof *e->pass.top);
    e->pass.prompt_logprob = kn_calloc((size_t)e->assets.opt.n_prompt_logprob_row, sizeof *e->pass.prompt_logprob);
    e->pass.chooser = kn_calloc((size_t)n_thread, sizeof *e->pass.chooser);
    e->assets.sampler = kn_calloc((size_t)n_thread, sizeof(struct spec_sampler *));
    if (!e->pass.row || !e->pass.due || !e->pass.choice_status || !e->pass.top || !e->pass.prompt_logprob ||
        !e->pass.chooser || !e->assets.sampler)
        return kn_fail(KN_ENOMEM, "no memory for a pass of %d rows", e->assets.opt.n_chunk);
    if (e->assets.opt.grammar_bytes &&
        (error = gr_tokens_open(&e->assets.tokens, e->assets.vocab, e->assets.opt.grammar_bytes)))
        return error;
    for (int i = 0; i < n_thread; i++) {
        struct eng_chooser *c = &e->pass.chooser[i];
        if ((error = spec_sampler_open(&e->assets.sampler[i], n_vocab)))
            return error;
        if (!e->assets.tokens)
            continue;
        c->mask = kn_calloc(spec_mask_words(n_vocab), sizeof *c->mask);
        if (!c->mask)
            return kn_fail(KN_ENOMEM, "no memory for a mask of %d tokens", n_vocab);
        if ((error = gr_scratch_open(&c->scratch, e->assets.tokens)))
            return error;
    }
    return 0;
}

static int list_stop_tokens(struct eng_engine *e)
{
    int n_vocab = eng_vocab_size(e->assets.vocab), n = 0;
    for (int i = 0; i < n_vocab; i++)
        n += eng_vocab_is_stop(e->assets.vocab, i);
    e->assets.stop = kn_calloc((size_t)n, sizeof *e->assets.stop);
    if (!e->assets.stop)
        return kn_fail(KN_ENOMEM, "no memory for %d stop tokens", n);
    for (int i = 0; i < n_vocab; i++)
        if (eng_vocab_is_stop(e->assets.vocab, i))
            e->assets.stop[e->assets.n_stop++] = i;
    return 0;
}

/* If requests may have reference texts and no drafter reads them, adds the one that does nothing else. Not to a model
 * with recurrent layers, where each draft row takes a state: it needs --draft for that. */
static void add_prediction(struct eng_engine *e)
{
    struct eng_options *o = &e->assets.opt;
    bool wanted = o->predictions && o->gamma && o->n_draft < ENG_DRAFTERS_MOST &&
                  (o->n_draft || !moe_model_shape(e->assets.model)->state_bytes);
    for (int i = 0; i < o->n_draft; i++)
        wanted &= !eng_draft_properties(o->draft[i].kind)->copies;
    if (wanted)
        o->draft[o->n_draft++] = (struct eng_draft_option){ .kind = ENG_DRAFT_PREDICTION };
}

static int open_model(struct eng_engine *e)
{
    struct moe_model_options mo = { .isa = e->assets.opt.isa };
    int error = kn_device_open(&e->assets.device, e->assets.opt.device, e->assets.opt.isa);
    mo.device = e->assets.device;
    for (int i = 0; i < e->assets.opt.n_draft; i++)
        mo.ahead |= eng_draft_properties(e->assets.opt.draft[i].kind)->needs_mtp_layer;
    if (error || (error = moe_file_open(&e->assets.file, e->assets.opt.model)) ||
        (error = moe_model_open(&e->assets.model, e->assets.file, &mo)) ||
        (error = eng_vocab_open(&e->assets.vocab, e->assets.file)))
        return error;
    const struct moe_shape *shape = moe_model_shape(e->assets.model);
    if (eng_vocab_size(e->assets.vocab) > shape->n_vocab)
        return kn_fail(KN_ECORRUPT, "%s: %d tokens but only %d rows of embeddings", e->assets.opt.model,
                       eng_vocab_size(e->assets.vocab), shape->n_vocab);
    if (!e->assets.opt.n_ctx) {
        int n = eng_default_ctx(e->assets.model, e->assets.opt.kv, e->assets.opt.n_parallel, e->assets.opt.host_mem,
                                e->assets.opt.device_mem, e->assets.opt.kv_mem, e->assets.opt.reserved_bytes);
        e->assets.opt.n_ctx = e->assets.opt.n_ctx_most ? kn_min(n, e->assets.opt.n_ctx_most) : n;
    }
    /* time of attention to one position (float multiply-adds) over that of all else of a row (int8 ones) */
    e->assets.position_cost = FLOAT_COST * shape->position_macs / shape->row_macs;
    add_prediction(e);
    return 0;
}

static int open_drafting(struct eng_engine *e)
{
    const struct eng_options *o = &e->assets.opt;
    double slowdown = e->schedule.prefill_share.max_prefill_slowdown;
    if (o->explain && !o->n_draft) /* otherwise each change of the decision is logged, and there is none */
        kn_say(KN_LOG_INFO, "draft: off (no drafter)");
    return eng_draft_open(&e->drafting,
                          &(struct eng_draft_options){ .draft = o->draft,
                                                       .n_draft = o->n_draft,
                                                       .gamma = o->gamma,
                                                       .dsi = o->dsi,
                                                       .lookahead = o->lookahead,
                                                       .verify = o->verify,
                                                       .fit = o->fit,
                                                       .keeps_fit = o->keep_heat,
                                                       .features = o->features,
                                                       .explain = o->explain },
                          &(struct eng_draft_host){ .file = e->assets.file,
                                                    .model = e->assets.model,
                                                    .vocab = e->assets.vocab,
                                                    .team = e->assets.team,
                                                    .sampler = e->assets.sampler,
                                                    .kv = &e->kv,
                                                    .split = &e->memory.split,
                                                    .advanced_ns = &e->advanced_ns,
                                                    .model_path = o->model,
                                                    .mirror = o->mirror,
                                                    .host_mem = o->host_mem,
                                                    .n_parallel = o->n_parallel,
                                                    .n_ctx = o->n_ctx,
                                                    .n_chunk = o->n_chunk,
                                                    .n_draft_row = e->assets.n_draft_row,
                                                    .max_prefill_slowdown = slowdown,
                                                    .isa = o->isa,
                                                    .kv_format = o->kv,
                                                    .io = o->io });
}

/* Called when the small parts are allocated, as eng_budget() measures them; the drafters' sizes are given to it. Sets
 * *retries if a pass of fewer rows may fit: then a refusal gives no message. */
static int split_memory(struct eng_engine *e, const struct eng_options *opt, enum eng_rows rows, bool *retries)
{
    struct eng_draft_needs needs;
    eng_draft_needs(e->drafting, &needs);
    *retries = rows == ENG_AFFORDABLE_ROWS && eng_has_more_rows(e, opt);
    return eng_budget(&e->memory.split,
                      &(struct eng_use){ .file = e->assets.file,
                                         .model = e->assets.model,
                                         .context = eng_context_options(e),
                                         .n_parallel = e->assets.opt.n_parallel,
                                         .host_mem = e->assets.opt.host_mem,
                                         .device_mem = e->assets.opt.device_mem,
                                         .kv_mem = e->assets.opt.kv_mem,
                                         .reserved_bytes = e->assets.opt.reserved_bytes,
                                         .reserve_of = e->assets.opt.reserve_of,
                                         .reserve_arg = e->assets.opt.reserve_arg,
                                         .drafters = needs.memory,
                                         .n_ahead = e->assets.n_draft_row / kn_max(1, e->assets.opt.n_parallel),
                                         .retries = *retries });
}

static void report_context(const struct eng_engine *e)
{
    const struct moe_shape *shape = moe_model_shape(e->assets.model);
    int n = e->assets.opt.n_ctx;
    if (n > shape->n_ctx_train)
        kn_say(KN_LOG_WARN, "--ctx-size %d: %s was trained on %d tokens, its output beyond them is poor", n,
               e->assets.opt.model, shape->n_ctx_train);
    if (shape->n_ctx_short && n > shape->n_ctx_short)
        kn_say(KN_LOG_INFO, "LongRoPE's long form, for a context of %d tokens; --ctx-size %d takes the short one", n,
               shape->n_ctx_short);
}

static int describe(struct eng_engine **out, const struct eng_options *opt, enum eng_rows rows)
{
    struct eng_engine *e = kn_calloc(1, sizeof *e);
    if (!e)
        return kn_fail(KN_ENOMEM, "no memory for the engine");
    e->assets.opt = *opt;
    e->assets.opt.n_session = kn_max(e->assets.opt.n_session, e->assets.opt.n_parallel);
    bool retries = false;
    int error = kn_team_open(&e->assets.team, opt->n_thread);
    if (!error && (error = open_model(e)) == 0)
        eng_choose_rows(e, rows);
    if (error || (error = list_stop_tokens(e)) || (error = open_sessions(e)) || (error = open_choosers(e)) ||
        (error = open_drafting(e)) || (error = split_memory(e, opt, rows, &retries))) {
        eng_close(e);
        if (!retries || error != KN_ELIMIT)
            return error;
        kn_heap_trim(); /* freed memory would count as taken */
        return describe(out, opt, ENG_FEWEST_ROWS);
    }
    *out = e;
    return 0;
}

int eng_describe(struct eng_engine **out, const struct eng_options *opt)
{
    int error = describe(out, opt, ENG_AFFORDABLE_ROWS);
    if (!error) {
        report_context(*out);
        eng_report_rows(*out);
    }
    return error;
}

static int load_model(struct eng_engine *e)
{
    char heat[ENG_PATH_BYTES], pack[ENG_PATH_BYTES];
    int error = eng_pack_path(pack, e->assets.opt.model);
    if (error)
        return error;
    bool keep = e->assets.opt.keep_heat && eng_heat_path(heat, e->assets.opt.model);
    return moe_model_load(e->assets.model,
                          &(struct moe_load_options){ .team = e->assets.team,
                                                      .expert_bytes = e->memory.split.expert,
                                                      .later_bytes = eng_draft_returnable_bytes(e->drafting),
                                                      .io = e->assets.opt.io,
                                                      .heat_path = keep ? heat : NULL,
                                                      .pack_path = e->assets.opt.no_pack ? NULL : pack,
                                                      .mirror = e->assets.opt.mirror,
                                                      .progress = e->assets.opt.progress });
}

/* KN_ECANCELLED if the caller has set its progress counter's `stop`. Called between the long parts of eng_open(); reads
 * of weights check `stop` themselves. */
static int check_cancelled(const struct eng_engine *e)
{
    return e->assets.opt.progress && atomic_load(&e->assets.opt.progress->stop) ? KN_ECANCELLED : 0;
}

int eng_open(struct eng_engine **out, const struct eng_options *opt)
{
    struct eng_engine *e;
    int error = eng_describe(&e, opt);
    if (error)
        return error;
    struct moe_context_options co = eng_context_options(e);
    co.advanced_ns = &e->advanced_ns;
    int n_ctx = e->assets.opt.n_ctx, n_own = moe_model_shape(e->assets.model)->n_ctx_train;
    uint64_t secret[2];
    if (!opt->n_ctx && n_ctx < n_own)
        kn_say(KN_LOG_INFO, "context of %d tokens; the model's own is %d: --ctx-size sets another", n_ctx, n_own);
    if (!opt->n_chunk && e->assets.opt.n_chunk > ENG_CHUNK)
        kn_say(KN_LOG_INFO, "prompts are read in chunks of up to %d tokens: --chunk sets another length",
               e->assets.opt.n_chunk);
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        error = kn_fail(KN_EIO, "no random numbers from the kernel");
    if (error || (error = check_cancelled(e)) ||
        (opt->measures_disk &&
         (error = eng_disk_measure_once(moe_file_files(e->assets.file), opt->mirror,
                                        e->memory.split.total - e->memory.split.fixed, &e->memory.disk_Bps))) ||
        (error = eng_draft_foresee(e->drafting, &e->memory.disk_Bps)) || (error = load_model(e)) ||
        (error = check_cancelled(e)) || (error = eng_kv_open(&e->kv, co.n_slot / ENG_KV_BLOCK, secret)) ||
        (error = eng_states_open(&e->kv, e->memory.split.n_state)) ||
        (error = moe_context_open(&e->assets.context, e->assets.model, &co)) || (error = check_cancelled(e)) ||
        (error = eng_draft_load(e->drafting, e->assets.context))) {
        eng_close(e);
        return error;
    }
    *out = e;
    return 0;
}

void eng_close(struct eng_engine *e)
{
    if (!e)
        return;
    for (int i = 0; e->assets.sampler && i < kn_team_size(e->assets.team); i++)
        spec_sampler_close(e->assets.sampler[i]);
    for (int i = 0; e->pass.chooser && i < kn_team_size(e->assets.team); i++) {
        gr_scratch_close(e->pass.chooser[i].scratch);
        kn_free(e->pass.chooser[i].mask);
    }
    for (int i = 0; e->schedule.session && i < e->assets.opt.n_session; i++) {
        kn_free(e->schedule.session[i].seq.token);
        kn_free(e->schedule.session[i].bias);
        kn_free(e->schedule.session[i].grammar_state);
    }
    for (int i = 0; e->schedule.seat && i < e->assets.opt.n_parallel; i++) {
        kn_free(e->schedule.seat[i].slot);
        kn_free(e->schedule.seat[i].tail);
        kn_free(e->schedule.seat[i].grammar);
    }
    eng_draft_close(e->drafting);
    gr_tokens_close(e->assets.tokens);
    moe_context_close(e->assets.context);
    moe_model_close(e->assets.model);
    kn_device_close(e->assets.device);
    eng_vocab_close(e->assets.vocab);
    moe_file_close(e->assets.file);
    eng_kv_close(&e->kv);
    kn_team_close(e->assets.team);
    kn_free(e->schedule.session);
    kn_free(e->schedule.user_share);
    kn_free(e->schedule.active);
    kn_free(e->schedule.free_seat);
    kn_free(e->schedule.seat);
    kn_free(e->pass.row);
    kn_free(e->pass.due);
    kn_free(e->pass.choice_status);
    kn_free(e->pass.top);
    kn_free(e->pass.prompt_logprob);
    kn_free(e->pass.chooser);
    kn_free(e->assets.sampler);
    kn_free(e->assets.stop);
    kn_free(e);
}

const struct moe_model *eng_model(const struct eng_engine *e) { return e->assets.model; }
const struct moe_file *eng_file(const struct eng_engine *e) { return e->assets.file; }
const struct eng_vocab *eng_vocab(const struct eng_engine *e) { return e->assets.vocab; }
const struct gr_tokens *eng_grammar_tokens(const struct eng_engine *e) { return e->assets.tokens; }
struct kn_team *eng_team(const struct eng_engine *e) { return e->assets.team; }
const struct eng_split *eng_memory(const struct eng_engine *e) { return &e->memory.split; }
int eng_fingerprint(const struct eng_engine *e, uint64_t beside, char *out)
{
    uint64_t id;
    int error = moe_file_id(e->assets.file, &id);
    if (!error)
        snprintf(out, ENG_FINGERPRINT_BYTES, "spillway-%s-%016llx", ENG_VERSION,
                 (unsigned long long)kn_mix(id + (uint64_t)e->assets.opt.kv * KN_GOLDEN + beside));
    return error;
}

double eng_disk_Bps(const struct eng_engine *e) { return e->memory.disk_Bps; }
uint64_t eng_advanced_ns(const struct eng_engine *e)
{
    return atomic_load_explicit(&e->advanced_ns, memory_order_relaxed);
}

int eng_n_ctx(const struct eng_engine *e) { return e->assets.opt.n_ctx; }
int eng_n_draft_row(const struct eng_engine *e) { return e->assets.n_draft_row; }
int eng_n_chunk(const struct eng_engine *e) { return e->assets.opt.n_chunk; }
