/* engine/draft/prompts.c - drafters with a network read the prompts, so that they are ready when a sequence decodes.
 *
 * A network drafts for a sequence once it has computed keys and values of all its tokens. These rows need no logits: a
 * pass over them ends with key and value in its last layer (moe/pass/forward.c). They are computed
 *
 *     beside a pass     while the target's pass runs and waits for experts from disk: by the thread of lower priority
 *                       (beside.c), SPAN rows at a time, so the target waits at most for one span. A model reads the
 *                       chunk that the target reads; a head needs the target's features and reads the chunk before.
 *     before a draft    the remaining tokens of the sequences that the drafter is asked for, READ_ROWS at a time, within
 *                       the limit for prefill in a step of sequences that decode (max_prefill_slowdown).  The first
 *                       token of the sequence has been sent by then.
 *
 * Where all experts are in memory the target's pass leaves no time, and nothing is read beside it. */
#include "engine/draft/internal.h"

#define READ_ROWS          256 /* rows of a pass before a draft; eng_draft_lay_text() keeps whole blocks together */
#define SPAN               ENG_KV_BLOCK
#define UNLIMITED_SLOWDOWN 1e6 /* from this max_prefill_slowdown on there is no limit */

static bool reads(const struct eng_drafter *d) { return d->context && !d->broken; }

int eng_prompts_open(struct eng_drafting *g)
{
    bool any = false;
    for (int i = 0; i < g->n_drafter; i++)
        any |= g->drafter[i]->kind->reads_prompts;
    if (!any)
        return 0;
    g->prompts.row = kn_calloc(READ_ROWS, sizeof *g->prompts.row);
    return g->prompts.row ? 0 : kn_fail(KN_ENOMEM, "no memory for drafters that read prompts");
}

void eng_prompts_close(struct eng_drafting *g) { kn_free(g->prompts.row); }

/* Lays rows for tokens of s before `end` that d has not computed, at most `room`. Returns their number. */
static int lay(struct eng_drafter *d, struct eng_seq *s, int end, int room, struct moe_row *row, int *n_row)
{
    int at = eng_draft_first_uncomputed(d, s, s->n_token), from = at;
    if (at >= end)
        return 0;
    int before = *n_row;
    at = eng_draft_lay_text(d, s, at, end, d->position_offset, room, row, n_row);
    *eng_draft_computed(d, s) = at;
    for (int i = before; i < *n_row; i++)
        row[i].want_logits = false;
    return at - from;
}

static int compute(const struct eng_drafter *d, int n_row)
{
    struct moe_result result;
    int error = n_row ? moe_forward(d->context, &(struct moe_batch){ .row = d->drafting->prompts.row, .n_row = n_row },
                                    &result)
                      : 0;
    return error ? error : moe_rows_status(&result, 0, n_row);
}

/* ---- before a draft ------------------------------------------------------------------------------------- */

static void smooth(double *mean, double x) { *mean += *mean > 0 ? (x - *mean) / 8 : x; }

void eng_prompts_begin(struct eng_drafting *g)
{
    struct eng_prompts *p = &g->prompts;
    double slower = g->host.max_prefill_slowdown, rows = INT32_MAX;
    if (slower < UNLIMITED_SLOWDOWN)
        rows = p->row_ns > 0 && p->pass_ns > 0 ? (slower - 1) * p->pass_ns / p->row_ns : 0;
    p->room = rows < INT32_MAX ? (int)rows : INT32_MAX;
}

/* The rows of due sequences that d has yet to compute before their last token. */
static int n_behind(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n)
{
    int behind = 0;
    for (int i = 0; i < n; i++)
        if (n_node[i] > 0)
            behind += kn_max(0, s[i]->n_token - 1 - eng_draft_first_uncomputed(d, s[i], s[i]->n_token));
    return behind;
}

void eng_prompts_count(struct eng_drafting *g, int n_row, uint64_t ns)
{
    smooth(&g->prompts.row_ns, (double)ns / n_row);
    g->prompts.room -= n_row;
    g->counts.n_text_before += (uint64_t)n_row;
}

int eng_prompts_catch_up(struct eng_drafter *d, struct eng_seq **s, const int *n_node, int n)
{
    struct eng_prompts *p = &d->drafting->prompts;
    int error = 0;
    if (!reads(d))
        return 0;
    moe_context_set_team(d->context, d->drafting->host.team);
    while (!error && n_behind(d, s, n_node, n) > READ_ROWS && (p->room > 0 || p->row_ns <= 0)) {
        int n_row = 0, left = READ_ROWS;
        uint64_t start = kn_now_ns();
        for (int i = 0; i < n && left > 0; i++)
            if (n_node[i] > 0)
                left -= lay(d, s[i], s[i]->n_token - 1, left, p->row, &n_row);
        kn_assert(left < READ_ROWS);
        error = compute(d, n_row);
        eng_prompts_count(d->drafting, READ_ROWS - left, kn_now_ns() - start);
    }
    return error;
}

/* ---- beside a pass -------------------------------------------------------------------------------------- */

/* The tokens of s that d can read while the pass runs: a model those of the pass too, a head those whose feature was
 * kept before. Of a sequence that decodes, not the last, which is computed with the draft behind it. */
static int n_readable(const struct eng_drafter *d, const struct eng_seq *s)
{
    int n = d->position_offset ? s->n_kv + d->position_offset : s->n_kv + s->n_row;
    return kn_min(kn_min(n, s->n_token - 1), s->path.n_slot);
}

/* Whether s has enough unread tokens: a span, or the rest of a chunk of its prompt. */
static bool is_behind(struct eng_drafter *d, struct eng_seq *s)
{
    if (!(s->draft->usable >> d->number & 1))
        return false;
    int n = n_readable(d, s) - eng_draft_first_uncomputed(d, s, s->n_token);
    return n >= (eng_seq_is_due(s) ? SPAN : 1);
}

bool eng_prompts_start(struct eng_drafting *g)
{
    struct off_store *store = moe_model_store(g->host.model);
    g->prompts.runs = false;
    if (!g->beside || g->opt.gamma == 0 || !store || off_store_is_whole(store))
        return false;
    for (int i = 0; i < g->n_drafter; i++)
        for (int k = 0; k < g->n_seq && reads(g->drafter[i]); k++)
            g->prompts.runs |= is_behind(g->drafter[i], g->seq[k]);
    return g->prompts.runs;
}

/* Reads one sequence for one drafter, until it is read or *stop is set. One span is read beside every pass, even if the
 * pass is over: so drafters get on on the busiest machine, and the work does not depend on the clock alone. */
static void read_one(struct eng_drafter *d, struct eng_seq *s, const atomic_bool *stop)
{
    struct eng_prompts *p = &d->drafting->prompts;
    while (!p->error[d->number] && !(p->n_read && atomic_load(stop)) && is_behind(d, s)) {
        int n_row = 0, n = lay(d, s, n_readable(d, s), SPAN, p->row, &n_row);
        if (n == 0)
            return;
        p->error[d->number] = compute(d, n_row);
        p->n_read += (uint64_t)n;
    }
}

void eng_prompts_run(struct eng_drafting *g, const struct eng_beside_tools *tools)
{
    struct eng_prompts *p = &g->prompts;
    for (int i = 0; p->runs && i < g->n_drafter; i++) {
        struct eng_drafter *d = g->drafter[i];
        if (!reads(d))
            continue;
        moe_context_set_team(d->context, tools->team);
        for (int k = 0; k < g->n_seq; k++)
            read_one(d, g->seq[k], tools->stop);
        moe_context_set_team(d->context, g->host.team);
    }
}

void eng_prompts_end(struct eng_drafting *g)
{
    struct eng_prompts *p = &g->prompts;
    for (int i = 0; i < g->n_drafter; i++) {
        if (p->error[i])
            eng_draft_break(g->drafter[i], p->error[i]);
        p->error[i] = 0;
    }
    g->counts.n_text_beside += p->n_read;
    p->n_read = 0;
}

void eng_prompts_learn(struct eng_drafting *g, uint64_t pass_ns)
{
    if (g->n_due)
        smooth(&g->prompts.pass_ns, (double)pass_ns);
}
