/* engine/report.c - an engine's reports (counters, drafts, one line about the last decision to draft), and changes of
 * its draft options. */
#include "engine/internal.h"

void eng_stats_get(const struct eng_engine *e, struct eng_stats *out)
{
    *out = e->stats;
    struct eng_draft_times times = eng_draft_times(e->drafting);
    out->draft_ns = times.draft_ns;
    out->overlap_ns = times.overlap_ns;
    out->overlap_wait_ns = times.overlap_wait_ns;
    out->n_kv_block = e->kv.n_block;
    out->n_kv_used = e->kv.n_block - e->kv.n_free;
    out->n_running = e->schedule.n_active;
    if (e->assets.context) {
        out->device = moe_context_device_stats(e->assets.context);
        out->device_error = moe_context_error(e->assets.context);
    }
    out->n_waiting = 0;
    for (int i = 0; i < e->assets.opt.n_session; i++)
        out->n_waiting += eng_session_is_waiting(&e->schedule.session[i]);
}

int eng_drafter_names(const struct eng_engine *e, const char **name)
{
    int n = eng_draft_count(e->drafting);
    for (int i = 0; i < n; i++)
        name[i] = eng_draft_kind_name(e->drafting, i);
    return n;
}

void eng_drafts_get(const struct eng_engine *e, struct eng_drafts *out) { eng_draft_report(e->drafting, out); }

bool eng_drafts_survival(const struct eng_engine *e, double *share) { return eng_draft_survival(e->drafting, share); }

int eng_explain(const struct eng_engine *e, char *out, size_t bytes)
{
    return eng_draft_explain(e->drafting, out, bytes);
}

void eng_rest(struct eng_engine *e) { eng_draft_rest(e->drafting); }

void eng_set_gamma(struct eng_engine *e, int gamma) { eng_draft_set_gamma(e->drafting, gamma); }

void eng_set_dsi(struct eng_engine *e, enum eng_dsi_mode dsi, int lookahead)
{
    eng_draft_set_dsi(e->drafting, dsi, lookahead);
}
