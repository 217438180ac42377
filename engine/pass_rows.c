/* engine/pass_rows.c - how many rows a pass may have: for prompts and for drafts.
 *
 * The rows' buffers take memory from experts and from the KV cache. Where the user sets no number there are as many rows
 * as memory affords (engine/plan/memory_split.c). They are chosen before the drafters are open, which need the numbers;
 * so the drafters' own memory is not known then. If it does not fit, the engine is described again with the fewest rows
 * that work. */
#include "engine/internal.h"

#define MAX_DRAFT_ROWS       512
#define DRAFTS_OF_EACH       8 /* drafted rows for each sequence, where memory is not short */
#define PREDICTION_ROWS      16
#define PREDICTION_BYTES     ((size_t)10 << 20)
#define DRAFT_LOGITS_BYTES   ((size_t)96 << 20)
#define MAX_PREFILL_SLOWDOWN 1.5 /* default of eng_options.max_prefill_slowdown */

static size_t logits_bytes(const struct eng_engine *e)
{
    return (size_t)moe_model_shape(e->assets.model)->n_vocab * sizeof(float);
}

/* The most drafted rows that the budget has memory for. Of the drafters' memory only logits count: of the rows of a tree,
 * and for --verify ratio and block. */
static int affordable_rows(const struct eng_engine *e)
{
    const struct eng_options *o = &e->assets.opt;
    struct moe_context_options context = eng_context_options(e);
    size_t beside = o->verify == SPEC_COUPLED ? 0 : logits_bytes(e);
    if (!o->n_chunk)
        context.max_row += ENG_CHUNK;
    for (int i = 0; i < o->n_draft; i++)
        if (eng_draft_properties(o->draft[i].kind)->is_network && o->draft[i].tree != ENG_TREE_CHAIN)
            beside += logits_bytes(e);
    int rows = eng_affordable_draft_rows(&(struct eng_use){ .file = e->assets.file,
                                                            .model = e->assets.model,
                                                            .context = context,
                                                            .n_parallel = o->n_parallel,
                                                            .host_mem = o->host_mem,
                                                            .device_mem = o->device_mem,
                                                            .kv_mem = o->kv_mem,
                                                            .reserved_bytes = o->reserved_bytes },
                                         beside);
    return kn_min(rows, kn_min(MAX_DRAFT_ROWS, (int)(DRAFT_LOGITS_BYTES / logits_bytes(e))));
}

/* The most drafted rows of a pass: for each sequence gamma, or a larger number that the options name. If they name none:
 * DRAFTS_OF_EACH, or as many as are affordable, but at least one. */
static int drafted_rows(const struct eng_options *o, int affordable)
{
    int each = kn_max(kn_max(o->gamma, o->room_for_gamma), o->dsi == ENG_DSI_ON ? o->lookahead : 0);
    if (each > 0)
        return kn_min(o->n_parallel * each, MAX_DRAFT_ROWS);
    return kn_min(kn_min(DRAFTS_OF_EACH * o->n_parallel, MAX_DRAFT_ROWS), kn_max(o->n_parallel, affordable));
}

static int wanted_window_rows(const struct eng_options *o)
{
    int n = 0;
    for (int i = 0; i < o->n_draft; i++)
        n += o->n_parallel * eng_draft_window_rows(&o->draft[i]);
    return n;
}

/* Rows for drafts, and of them *n_window for the windows of lookahead decoding: drafts come first. Few for predictions
 * alone, since every server has their memory, and few requests one. */
static int draft_rows(const struct eng_engine *e, enum eng_rows rows, int *n_window)
{
    const struct eng_options *o = &e->assets.opt;
    *n_window = 0;
    if (!o->n_draft || !o->gamma)
        return 0;
    if (o->gamma == ENG_GAMMA_AUTO && o->n_draft == 1 && eng_draft_properties(o->draft[0].kind)->only_copies)
        return kn_min(PREDICTION_ROWS, kn_max(1, (int)(PREDICTION_BYTES / logits_bytes(e))));
    int affordable = rows == ENG_FEWEST_ROWS ? 0 : affordable_rows(e), drafted = drafted_rows(o, affordable);
    *n_window = kn_max(0, kn_min(wanted_window_rows(o), affordable - drafted));
    return drafted + *n_window;
}

void eng_choose_rows(struct eng_engine *e, enum eng_rows rows)
{
    struct eng_options *o = &e->assets.opt;
    e->assets.n_draft_row = draft_rows(e, rows, &e->assets.n_window_row);
    if (!o->n_chunk && rows == ENG_FEWEST_ROWS)
        o->n_chunk = ENG_CHUNK;
    if (!o->n_chunk)
        o->n_chunk = eng_default_chunk(&(struct eng_use){ .model = e->assets.model,
                                                          .context = eng_context_options(e),
                                                          .n_parallel = o->n_parallel,
                                                          .host_mem = o->host_mem,
                                                          .device_mem = o->device_mem,
                                                          .kv_mem = o->kv_mem });
    eng_prefill_share_init(&e->schedule.prefill_share,
                           o->max_prefill_slowdown > 0 ? o->max_prefill_slowdown : MAX_PREFILL_SLOWDOWN,
                           e->assets.device->backend->own_memory && o->n_chunk > ENG_CHUNK);
    o->n_chunk = kn_max(o->n_chunk, o->n_parallel);
}

bool eng_has_more_rows(const struct eng_engine *e, const struct eng_options *opt)
{
    int n_window, n_draft = draft_rows(e, ENG_FEWEST_ROWS, &n_window);
    return e->assets.n_draft_row > n_draft ||
           (!opt->n_chunk && e->assets.opt.n_chunk > kn_max(ENG_CHUNK, opt->n_parallel));
}

void eng_report_rows(const struct eng_engine *e)
{
    const struct eng_options *o = &e->assets.opt;
    int wanted = o->gamma ? wanted_window_rows(o) : 0, has = e->assets.n_window_row;
    if (has < wanted)
        kn_say(
            KN_LOG_WARN,
            "--draft lookahead: a pass has room for %d rows of windows, but %d sequences need %d: with so many running, "
            "windows get fewer columns; raise --host-mem, or lower --parallel, window= or ngram=",
            has, o->n_parallel, wanted);
}
