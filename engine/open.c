/* Opening: the file, the vocabulary, and a model bound but not read; then the small things, sessions and
 * samplers; then the budget is split, or refused before a weight is read; then weights, experts' slots and
 * the memory of a pass are taken, each as large as the split says. */
#include "engine/base/base.h"
#include "engine/plan/disk_rate.h"
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static struct moe_context_options context_options(const struct eng_engine *e)
{
    return (struct moe_context_options){
        .max_row = e->opt.n_chunk + e->n_draft_row, .max_want = e->opt.n_parallel + e->n_draft_row + e->opt.n_tell,
        .n_slot = e->split.n_kv_slot, .n_state = e->opt.n_parallel + e->split.n_state, .n_draft = e->n_draft_row,
        .max_pos = e->opt.n_ctx, .kv = e->opt.kv, .features = e->features, .n_recall = e->n_recall,
        .team = e->team };
}

#define MOST_DRAFT_ROWS 512
#define DRAFT_LOGITS    ((size_t)96 << 20)
#define FLOAT_COST 2                            /* of one, beside one of whole numbers */
#define STRETCH 1.5                             /* who waits for a token waits less than twice as long */

static int open_session(struct eng_engine *e, struct eng_session *s)
{
    s->engine = e;
    s->token = kn_calloc((size_t)e->opt.n_ctx + 1, sizeof *s->token);
    s->bias = kn_calloc((size_t)(ENG_REQUEST_BIAS + e->n_stop), sizeof *s->bias);
    if (e->opt.grammar_bytes)
        s->grammar_state = kn_calloc(1, sizeof *s->grammar_state);
    return s->token && s->bias && (s->grammar_state || !e->opt.grammar_bytes) ? 0 : KN_ENOMEM;
}

static int open_seat(struct eng_engine *e, struct eng_seat *seat, int number)
{
    seat->number = number;
    seat->slot = kn_calloc(kn_align_up((size_t)e->opt.n_ctx + 1 + ENG_DRAFT_NODES, ENG_KV_BLOCK),
                           sizeof *seat->slot);
    seat->tail = kn_calloc(ENG_DRAFT_TAILS, sizeof *seat->tail);
    if (e->opt.grammar_bytes)
        seat->grammar = kn_calloc(1, sizeof *seat->grammar);
    return seat->slot && seat->tail && (seat->grammar || !e->opt.grammar_bytes) ? 0 : KN_ENOMEM;
}

static int open_sessions(struct eng_engine *e)
{
    size_t n = (size_t)e->opt.n_session, n_seat = (size_t)e->opt.n_parallel;
    int error = 0;
    e->session = kn_calloc(n, sizeof *e->session);
    e->share = kn_calloc(n, sizeof *e->share);
    e->active = kn_calloc(n_seat, sizeof(struct eng_session *));
    e->free_seat = kn_calloc(n_seat, sizeof(struct eng_seat *));
    e->seat = kn_calloc(n_seat, sizeof *e->seat);
    if (!e->session || !e->share || !e->active || !e->free_seat || !e->seat)
        error = KN_ENOMEM;
    for (size_t i = 0; !error && i < n; i++)
        error = open_session(e, &e->session[i]);
    for (size_t i = 0; !error && i < n_seat; i++) {
        e->free_seat[i] = &e->seat[i];
        error = open_seat(e, &e->seat[i], (int)i);
    }
    return error ? kn_fail(error, "no memory for %zu sessions", n) : 0;
}

/* Rows of the model beyond the vocabulary are padding: they have no text, and are no choice. */
static int open_choosers(struct eng_engine *e)
{
    int n_vocab = eng_vocab_size(e->vocab), n_thread = kn_team_size(e->team), error = 0;
    size_t n = (size_t)e->opt.n_parallel;
    size_t n_draft = (size_t)e->n_draft_row;
    e->row = kn_calloc((size_t)e->opt.n_chunk + n_draft, sizeof *e->row);
    e->due = kn_calloc(n, sizeof(struct eng_session *));
    e->n_node = kn_calloc(n, sizeof *e->n_node);
    e->n_part = kn_calloc(n, sizeof *e->n_part);
    e->choice_status = kn_calloc(n, sizeof *e->choice_status);
    e->top = kn_calloc((n + n_draft + (size_t)e->opt.n_tell) * ENG_TOP, sizeof *e->top);
    e->teller = kn_calloc((size_t)e->opt.n_tell, sizeof *e->teller);
    e->chooser = kn_calloc((size_t)n_thread, sizeof *e->chooser);
    if (!e->row || !e->due || !e->n_node || !e->n_part || !e->choice_status || !e->top || !e->teller || !e->chooser)
        return kn_fail(KN_ENOMEM, "no memory for a pass of %d rows", e->opt.n_chunk);
    if (e->opt.grammar_bytes && (error = gr_tokens_open(&e->tokens, e->vocab, e->opt.grammar_bytes)))
        return error;
    for (int i = 0; i < n_thread; i++) {
        struct eng_chooser *c = &e->chooser[i];
        if ((error = spec_sampler_open(&c->sampler, n_vocab)))
            return error;
        if (!e->tokens)
            continue;
        c->mask = kn_calloc(spec_mask_words(n_vocab), sizeof *c->mask);
        if (!c->mask)
            return kn_fail(KN_ENOMEM, "no memory for a mask of %d tokens", n_vocab);
        if ((error = gr_scratch_open(&c->scratch, e->tokens)))
            return error;
    }
    return 0;
}

static int list_stop_tokens(struct eng_engine *e)
{
    int n_vocab = eng_vocab_size(e->vocab), n = 0;
    for (int i = 0; i < n_vocab; i++)
        n += eng_vocab_is_stop(e->vocab, i);
    e->stop = kn_calloc((size_t)n, sizeof *e->stop);
    if (!e->stop)
        return kn_fail(KN_ENOMEM, "no memory for %d stop tokens", n);
    for (int i = 0; i < n_vocab; i++)
        if (eng_vocab_is_stop(e->vocab, i))
            e->stop[e->n_stop++] = i;
    return 0;
}

/* Rows for drafts in a pass: as many as --gamma asks for; else for eight tokens of everyone, as far as their
 * logits do not take more than they may be worth. */
static int draft_rows(const struct eng_engine *e, int n_vocab)
{
    int n_seq = e->opt.n_parallel, each = kn_max(e->opt.gamma, e->opt.dsi == ENG_DSI_ON ? e->opt.lookahead : 0);
    if (each > 0)
        return kn_min(n_seq * each, MOST_DRAFT_ROWS);
    int rows = (int)(DRAFT_LOGITS / ((size_t)n_vocab * sizeof(float)));
    return kn_min(kn_min(8 * n_seq, MOST_DRAFT_ROWS), kn_max(n_seq, rows));
}

static int open_model(struct eng_engine *e)
{
    struct moe_model_options mo = { .isa = e->opt.isa };
    int error;
    for (int i = 0; i < e->opt.n_draft; i++)
        mo.ahead |= e->opt.draft[i].kind == ENG_DRAFT_MTP;
    if ((error = moe_file_open(&e->file, e->opt.model)) || (error = eng_vocab_open(&e->vocab, e->file)) ||
        (error = moe_model_open(&e->model, e->file, &mo)))
        return error;
    const struct moe_shape *shape = moe_model_shape(e->model);
    if (eng_vocab_size(e->vocab) > shape->n_vocab)
        return kn_fail(KN_ECORRUPT, "%s: %d tokens but only %d rows of embeddings", e->opt.model,
                       eng_vocab_size(e->vocab), shape->n_vocab);
    if (!e->opt.n_ctx)
        e->opt.n_ctx = kn_min(shape->n_ctx_train, 8192);
    else if (e->opt.n_ctx > shape->n_ctx_train)
        kn_say(KN_LOG_WARN, "--ctx-size %d: %s knows texts of %d tokens, and goes astray in longer ones", e->opt.n_ctx,
               e->opt.model, shape->n_ctx_train);
    /* attention's multiply-adds, which are in float, against all others, which are not */
    e->position_cost = FLOAT_COST * 2.0 * shape->n_layer * shape->n_head * shape->d_head / shape->row_macs;
    if (e->opt.n_draft && e->opt.gamma)
        e->n_draft_row = draft_rows(e, shape->n_vocab);
    return 0;
}

int eng_describe(struct eng_engine **out, const struct eng_options *opt)
{
    struct eng_engine *e = kn_calloc(1, sizeof *e);
    if (!e)
        return kn_fail(KN_ENOMEM, "no memory for the engine");
    e->opt = *opt;
    e->features.last = opt->features;
    if (!e->opt.n_chunk)
        e->opt.n_chunk = 512;
    e->opt.n_chunk = kn_max(e->opt.n_chunk, e->opt.n_parallel);
    e->opt.n_session = kn_max(e->opt.n_session, e->opt.n_parallel);
    eng_pace_init(&e->pace, e->opt.stretch > 0 ? e->opt.stretch : STRETCH);
    int error = kn_team_open(&e->team, opt->n_thread);
    if (error || (error = open_model(e)) || (error = list_stop_tokens(e)) || (error = open_sessions(e)) ||
        (error = open_choosers(e)) || (error = eng_drafters_open(e)) || (error = eng_expect_open(e)) ||
        (error = eng_draws_open(e)) ||
        (error = eng_budget(&e->split, &(struct eng_use){
             .file = e->file, .model = e->model, .context = context_options(e),
             .n_parallel = e->opt.n_parallel, .host_mem = e->opt.host_mem, .kv_mem = e->opt.kv_mem,
             .aside = e->opt.aside, .drafters = eng_drafters_need(e),
             .n_ahead = e->n_draft_row / kn_max(1, e->opt.n_parallel) }))) {
        eng_close(e);
        return error;
    }
    *out = e;
    return 0;
}

static int load_model(struct eng_engine *e)
{
    char heat[ENG_PATH_BYTES], pack[ENG_PATH_BYTES];
    int error = eng_pack_path(pack, e->opt.model);
    if (error)
        return error;
    bool keep = e->opt.keep_heat &&
                eng_heat_path(heat, e->opt.model);
    return moe_model_load(e->model, &(struct moe_load_options){
        .team = e->team, .expert_bytes = e->split.expert, .later_bytes = eng_draft_loan(e), .io = e->opt.io,
        .heat_path = keep ? heat : NULL, .pack_path = e->opt.no_pack ? NULL : pack, .mirror = e->opt.mirror,
        .progress = e->opt.progress });
}

/* Between what takes its time; what reads looks for itself. */
static int go_on(const struct eng_engine *e)
{
    return e->opt.progress && atomic_load(&e->opt.progress->stop) ? KN_ECANCELLED : 0;
}

int eng_open(struct eng_engine **out, const struct eng_options *opt)
{
    struct eng_engine *e;
    int error = eng_describe(&e, opt);
    if (error)
        return error;
    struct moe_context_options co = context_options(e);
    uint64_t secret[2];
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        error = kn_fail(KN_EIO, "no random numbers from the kernel");
    if (error || (error = go_on(e)) || (opt->measures_disk && (error = eng_disk_measure_once(moe_file_files(e->file), opt->mirror,
                                                                               e->split.total - e->split.fixed, &e->disk_Bps))) ||
        (error = eng_draft_foresee(e)) || (error = load_model(e)) ||
        (error = go_on(e)) || (error = eng_kv_open(&e->kv, co.n_slot / ENG_KV_BLOCK, secret)) ||
        (error = eng_states_open(&e->kv, e->split.n_state)) ||
        (error = moe_context_open(&e->context, e->model, &co)) || (error = go_on(e)) ||
        (error = eng_drafters_load(e))) {
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
    for (int i = 0; e->chooser && i < kn_team_size(e->team); i++) {
        spec_sampler_close(e->chooser[i].sampler);
        gr_scratch_close(e->chooser[i].scratch);
        kn_free(e->chooser[i].mask);
    }
    for (int i = 0; e->session && i < e->opt.n_session; i++) {
        kn_free(e->session[i].token);
        kn_free(e->session[i].bias);
        kn_free(e->session[i].grammar_state);
    }
    for (int i = 0; e->seat && i < e->opt.n_parallel; i++) {
        kn_free(e->seat[i].slot);
        kn_free(e->seat[i].tail);
        kn_free(e->seat[i].grammar);
    }
    eng_drafters_close(e);
    eng_expect_close(e);
    eng_draws_close(e);
    gr_tokens_close(e->tokens);
    moe_context_close(e->context);
    moe_model_close(e->model);
    eng_vocab_close(e->vocab);
    moe_file_close(e->file);
    eng_kv_close(&e->kv);
    kn_team_close(e->team);
    kn_free(e->session);
    kn_free(e->share);
    kn_free(e->active);
    kn_free(e->free_seat);
    kn_free(e->seat);
    kn_free(e->row);
    kn_free(e->due);
    kn_free(e->n_node);
    kn_free(e->n_part);
    kn_free(e->choice_status);
    kn_free(e->top);
    kn_free(e->teller);
    kn_free(e->chooser);
    kn_free(e->stop);
    kn_free(e);
}

const struct moe_model *eng_model(const struct eng_engine *e) { return e->model; }
const struct moe_file *eng_file(const struct eng_engine *e) { return e->file; }
const struct eng_vocab *eng_vocab(const struct eng_engine *e) { return e->vocab; }
const struct gr_tokens *eng_grammar_tokens(const struct eng_engine *e) { return e->tokens; }
struct kn_team *eng_team(const struct eng_engine *e) { return e->team; }
const struct eng_split *eng_memory(const struct eng_engine *e) { return &e->split; }
int eng_fingerprint(const struct eng_engine *e, char *out)
{
    uint64_t id;
    int error = moe_file_id(e->file, &id);
    if (!error)
        snprintf(out, ENG_FINGERPRINT_BYTES, "spillway-%s-%016llx", ENG_VERSION,
                 (unsigned long long)kn_mix(id + (uint64_t)e->opt.kv * KN_GOLDEN));
    return error;
}

double eng_disk_Bps(const struct eng_engine *e) { return e->disk_Bps; }
int eng_n_ctx(const struct eng_engine *e) { return e->opt.n_ctx; }
int eng_n_chunk(const struct eng_engine *e) { return e->opt.n_chunk; }
