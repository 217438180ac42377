/* engine/serve/metrics.c - Prometheus text format 0.0.4: for each metric family its HELP, its TYPE, its values. */
#include "engine/serve/metrics.h"
#include "engine/base/base.h"
#include "engine/serve/process.h"

#include <stdio.h>
#include <string.h>

/* ---- histograms ------------------------------------------------------------------------------ */

/* vLLM's bucket bounds, which dashboards for vLLM expect; 0 ends a list. */
static const double wait_bound[] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,  0.75, 1,
                                     2.5,   5,     7.5,  10,   20,   40,   80,   160, 640,  2560, 0 };
static const double gap_bound[] = { 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                    0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80,  0 };
static const double long_bound[] = { 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680, 0 };
static const double size_bound[] = { 1,    2,    5,     10,    20,    50,     100,    200,    500,     1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 0 };

static const struct {
    const char *name, *help;
    const double *bound;
} family[] = {
#define FAMILY(id, name, help, bounds) { name, help, bounds##_bound },
    ENG_HISTOGRAMS(FAMILY)
#undef FAMILY
};

void eng_metrics_add(struct eng_metrics *m, enum eng_histogram h, double value)
{
    int i = 0;
    while (family[h].bound[i] > 0 && value > family[h].bound[i])
        i++;
    m->histogram[h].count[i]++;
    m->histogram[h].sum += value;
}

/* ---- text ------------------------------------------------------------------------------------ */

struct page {
    struct eng_bytes *out;
    char label[300];
}; /* model_name="...",engine="0" */

/* Writes p->label with the escaped model name.  Invalid UTF-8 is replaced by U+FFFD, because Prometheus would refuse
 * the whole text. */
static void make_label(struct page *p, const char *model)
{
    size_t n = (size_t)snprintf(p->label, sizeof p->label, "model_name=\"");
    while (*model && n + 20 < sizeof p->label) {
        int bad;
        bool cut;
        int length = eng_utf8_next(model, strlen(model), &bad, &cut);
        const char *text = *model == '\n' ? "\\n" : length ? model : "\xef\xbf\xbd";
        int take = *model == '\n' ? 2 : length ? length : 3;
        if (*model == '\\' || *model == '"')
            p->label[n++] = '\\';
        memcpy(p->label + n, text, (size_t)take);
        n += (size_t)take;
        model += length ? length : bad;
    }
    snprintf(p->label + n, sizeof p->label - n, "\",engine=\"0\"");
}

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    eng_bytes_format(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void line(struct page *p, const char *name, double value)
{
    eng_bytes_format(p->out, "%s{%s} %.17g\n", name, p->label, value);
}

static void one(struct page *p, const char *name, const char *type, const char *help, double value)
{
    head(p, name, type, help);
    line(p, name, value);
}

static void histogram(struct page *p, const struct eng_metrics *m, int h)
{
    char name[96];
    uint64_t sum = 0;
    snprintf(name, sizeof name, "vllm:%s", family[h].name);
    head(p, name, "histogram", family[h].help);
    for (int i = 0; family[h].bound[i] > 0; i++) {
        sum += m->histogram[h].count[i];
        eng_bytes_format(p->out, "%s_bucket{%s,le=\"%g\"} %llu\n", name, p->label, family[h].bound[i],
                         (unsigned long long)sum);
    }
    int last = 0;
    while (family[h].bound[last] > 0)
        last++;
    sum += m->histogram[h].count[last];
    eng_bytes_format(p->out, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.17g\n%s_count{%s} %llu\n", name, p->label,
                     (unsigned long long)sum, name, p->label, m->histogram[h].sum, name, p->label,
                     (unsigned long long)sum);
}

static void write_theirs(struct page *p, const struct eng_metrics *m, const struct eng_thread_report *v)
{
    static const char *const reason[] = { "stop", "length", "abort", "error" };
    const struct eng_stats *e = &v->engine;
    one(p, "vllm:num_requests_running", "gauge", "sequences in the running batch", e->n_running);
    one(p, "vllm:num_requests_waiting", "gauge", "sequences that wait for a place in the batch",
        kn_max(0, v->n_job - e->n_running));
    one(p, "vllm:kv_cache_usage_perc", "gauge", "share of the KV cache in use, 0 to 1",
        e->n_kv_block ? (double)e->n_kv_used / e->n_kv_block : 0);
    one(p, "vllm:num_preemptions_total", "counter", "sequences that lost their KV blocks to others",
        (double)e->n_preempted);
    one(p, "vllm:prefix_cache_queries_total", "counter", "prompt tokens looked up in the prefix cache",
        (double)e->n_cache_asked);
    one(p, "vllm:prefix_cache_hits_total", "counter", "prompt tokens found in the prefix cache",
        (double)e->n_cache_found);
    one(p, "vllm:prompt_tokens_total", "counter", "prompt tokens of answers that have started",
        (double)m->prompt_tokens);
    one(p, "vllm:generation_tokens_total", "counter", "generated tokens", (double)m->answer_tokens);
    head(p, "vllm:request_success_total", "counter", "finished answers by reason");
    for (int i = 0; i < ENG_ENDED_COUNT; i++)
        eng_bytes_format(p->out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", p->label, reason[i],
                         (unsigned long long)m->ended[i]);
    for (int h = 0; h < ENG_HIST_COUNT; h++)
        histogram(p, m, h);
}

/* Of a device with memory of its own. */
static void write_device(struct page *p, const struct eng_thread_report *v)
{
    const struct moe_device_stats *d = &v->engine.device;
    one(p, "spillway_device_memory_bytes", "gauge", "limit of memory on the device", (double)v->split.device.total);
    one(p, "spillway_device_expert_slots", "gauge", "experts that fit in memory of the device", (double)d->n_slot);
    one(p, "spillway_device_experts", "gauge", "experts that the device keeps now", (double)d->n_kept);
    one(p, "spillway_device_expert_slot_bytes", "gauge", "memory of the device for experts that it keeps",
        (double)d->slot_bytes);
    one(p, "spillway_device_expert_bytes", "gauge", "memory of the experts that the device keeps now",
        (double)d->kept_bytes);
    one(p, "spillway_device_expert_uses_total", "counter", "experts that the device had when a pass needed them",
        (double)d->n_used);
    one(p, "spillway_device_expert_passed_total", "counter",
        "experts that the device computed after a copy for one layer", (double)d->n_passed);
    one(p, "spillway_host_expert_uses_total", "counter", "experts that the host computed for a device",
        (double)d->n_host);
    one(p, "spillway_device_expert_copies_total", "counter", "experts copied to the device", (double)d->n_copied);
    one(p, "spillway_device_expert_returns_total", "counter", "experts copied back to the host", (double)d->n_back);
    one(p, "spillway_device_copied_bytes_total", "counter", "bytes of experts copied to the device",
        (double)d->copied_bytes);
    one(p, "spillway_device_pinned_bytes", "gauge",
        "memory of experts on the host that is pinned: the device copies it beside the host's work",
        (double)v->store.pinned_bytes);
    one(p, "spillway_device_pin_refused", "gauge", "1: the driver has refused to pin more memory of experts",
        v->store.pin_refused);
    one(p, "spillway_device_layers_total", "counter", "layers with experts of all passes", (double)d->n_layer);
    one(p, "spillway_device_layers_alone_total", "counter", "those that the device went through without the host",
        (double)d->n_alone);
    one(p, "spillway_device_failed", "gauge", "1: the device has failed, and all requests fail",
        v->engine.device_error != 0);
}

static void write_engine(struct page *p, const struct eng_thread_report *v)
{
    const struct eng_stats *e = &v->engine;
    const struct off_stats *s = &v->store;
    one(p, "spillway_passes_total", "counter", "forward passes", (double)e->n_pass);
    one(p, "spillway_pass_rows_total", "counter", "tokens computed by forward passes", (double)e->n_row);
    one(p, "spillway_pass_seconds_total", "counter", "time in forward passes", (double)e->pass_ns * 1e-9);
    one(p, "spillway_sample_seconds_total", "counter", "time in sampling", (double)e->sample_ns * 1e-9);
    one(p, "spillway_failed_passes_total", "counter", "forward passes that failed for all sequences",
        (double)v->n_failed_pass);
    one(p, "spillway_stalled_seconds", "gauge", "time since a pass last made progress, while there is work, else 0",
        (double)v->quiet_ns * 1e-9);
    one(p, "spillway_expert_hits_total", "counter", "experts that were in memory when a pass needed them",
        (double)s->hits);
    one(p, "spillway_expert_misses_total", "counter", "experts that were not in memory when a pass needed them",
        (double)s->misses);
    one(p, "spillway_expert_read_bytes_total", "counter", "bytes read from disk for experts", (double)s->read_bytes);
    one(p, "spillway_expert_reads_total", "counter", "reads of experts from disk", (double)s->reads);
    one(p, "spillway_expert_ahead_total", "counter", "experts prefetched", (double)s->soon_reads);
    one(p, "spillway_expert_ahead_used_total", "counter", "prefetched experts that were used before eviction",
        (double)s->soon_hits);
    one(p, "spillway_expert_ahead_wasted_bytes_total", "counter", "prefetched bytes that were evicted unused",
        (double)s->wasted_bytes);
    one(p, "spillway_expert_early_bytes_total", "counter", "bytes prefetched before a pass because of its tokens",
        (double)s->early_bytes);
    one(p, "spillway_expert_hidden_bytes_total", "counter", "bytes prefetched before a pass and used before eviction",
        (double)s->early_used_bytes);
    one(p, "spillway_expert_early_wasted_bytes_total", "counter", "bytes prefetched before a pass and evicted unused",
        (double)s->early_wasted_bytes);
    one(p, "spillway_expert_wait_seconds_total", "counter", "time waiting for experts with nothing to compute",
        (double)s->stall_ns * 1e-9);
    one(p, "spillway_expert_damaged_reads_total", "counter", "reads of experts with a wrong checksum",
        (double)s->damaged_reads);
    one(p, "spillway_expert_slots", "gauge", "experts that fit in memory", (double)s->n_slot);
    one(p, "spillway_experts", "gauge", "experts of the model", (double)s->n_expert);
    if (v->split.device.total)
        write_device(p, v);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* The name of a drafter; from the second of a kind on with a number: model, model-2. */
static const char *label_of(const struct eng_draft_choice *c, char *out, size_t size)
{
    if (!c->nth)
        return c->name;
    snprintf(out, size, "%s-%d", c->name, c->nth + 1);
    return out;
}

static double verdict_of(const struct eng_draft_choice *c)
{
    static const int verdict[] = {
        [SPEC_VERDICT_PAYS] = 1, [SPEC_VERDICT_LOSES] = -1, [SPEC_VERDICT_MEMORY_WORTH_MORE] = -2
    };
    if (c->state == ENG_DRAFTER_ASKED)
        return verdict[c->account.verdict];
    return c->state == ENG_DRAFTER_UNLOADED ? -3 : -4;
}

/* Writes the metrics that have a value for each entry of d->choice: each drafter, also one that was unloaded or has
 * failed; "all" for all drafters together; "ahead" for drafting during passes. */
static void write_choices(struct page *p, const struct eng_drafts *d)
{
    static const struct {
        const char *name, *type, *help;
    } of[] = {
        { "spillway_draft_steps_total", "counter", "steps with drafts of this drafter" },
        { "spillway_draft_rows_total", "counter", "draft tokens of this drafter that were verified" },
        { "spillway_draft_rows_kept_total", "counter", "draft tokens of this drafter that were accepted" },
        { "spillway_draft_depth", "gauge", "current depth; 0: this drafter is off" },
        { "spillway_draft_gain", "gauge",
          "recent speed-up: time of plain steps for the same tokens over the time of steps with drafts" },
        { "spillway_draft_verdict", "gauge",
          "1: pays, 0: too few steps to judge, -1: does not pay, -2: not worth its memory, "
          "-3: unloaded for now, -4: failed" },
    };
    char label[64];
    for (size_t f = 0; f < sizeof of / sizeof *of; f++) {
        head(p, of[f].name, of[f].type, of[f].help);
        for (int i = 0; i < d->n_choice; i++) {
            const struct eng_draft_choice *c = &d->choice[i];
            const struct spec_account *a = &c->account;
            const double value[] = { (double)a->n_step, (double)a->n_drafted, (double)a->n_accepted, c->depth,
                                     a->gain,           verdict_of(c) };
            eng_bytes_format(p->out, "%s{%s,drafter=\"%s\"} %.17g\n", of[f].name, p->label,
                             label_of(c, label, sizeof label), value[f]);
        }
    }
}

static void write_shares(struct page *p, const struct eng_drafts *d)
{
    static const char name[] = "spillway_draft_kept_share";
    char label[64];
    bool any = false;
    for (int i = 0; i < d->n_choice; i++) {
        const struct eng_draft_choice *c = &d->choice[i];
        bool gone = c->state == ENG_DRAFTER_UNLOADED;
        for (int k = 0; k < SPEC_DEPTHS && c->account.accepted[k] > 0 && !gone; k++, any = true) {
            if (!any)
                head(p, name, "gauge", "recent share of drafts accepted to at least this depth");
            eng_bytes_format(p->out, "%s{%s,drafter=\"%s\",depth=\"%d\"} %.17g\n", name, p->label,
                             label_of(c, label, sizeof label), k + 1, c->account.accepted[k]);
        }
    }
}

/* Counts steps by the reason of the draft decision.  With fixed draft options the only reason is "fixed"; with the
 * controller the others are listed.  Only steps in which a session gets its next token have a decision. */
static void write_decisions(struct page *p, const struct eng_drafts *d)
{
    static const char *const reason[SPEC_WHY_COUNT] = {
        [SPEC_WHY_FIXED] = "fixed",      [SPEC_WHY_LEARN] = "learn",
        [SPEC_WHY_REFRESH] = "refresh",  [SPEC_WHY_NO_GAIN] = "loses",
        [SPEC_WHY_LOSS_LIMIT] = "spent", [SPEC_WHY_UNLOADED] = "unloaded",
        [SPEC_WHY_GAINS] = "gains",      [SPEC_WHY_SMALL_DIFFERENCE] = "stays",
        [SPEC_WHY_TRIAL] = "trial",      [SPEC_WHY_FREE] = "free"
    };
    static const char name[] = "spillway_draft_decisions_total";
    head(p, name, "counter",
         "steps by the reason for drafts (fixed, gains, stays, trial, free) or for none (the others)");
    for (int i = 0; i < SPEC_WHY_COUNT; i++)
        if (reason[i] && (i == SPEC_WHY_FIXED) == (d->n_choice == 0))
            eng_bytes_format(p->out, "%s{%s,reason=\"%s\"} %llu\n", name, p->label, reason[i],
                             (unsigned long long)d->n_decision[i]);
}

/* Writes the counters of drafts under vLLM's names.  Position 0 is the first token of a draft. */
static void write_their_drafts(struct page *p, const struct eng_thread_report *v)
{
    static const char name[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    const struct eng_drafts *d = &v->drafts;
    one(p, "vllm:spec_decode_num_drafts_total", "counter", "drafts verified, one per sequence and step",
        (double)d->n_draft);
    one(p, "vllm:spec_decode_num_draft_tokens_total", "counter", "draft tokens verified", (double)v->engine.n_draft);
    one(p, "vllm:spec_decode_num_accepted_tokens_total", "counter", "draft tokens accepted",
        (double)v->engine.n_draft_kept);
    head(p, name, "counter", "draft tokens accepted by position in the draft");
    for (int i = 0; i < ENG_DRAFT_NODES && (i == 0 || d->n_accepted[i] > 0); i++)
        eng_bytes_format(p->out, "%s{%s,position=\"%d\"} %llu\n", name, p->label, i,
                         (unsigned long long)d->n_accepted[i]);
}

/* Tokens that drafters with a network read: beside passes, and before drafts. */
static void write_prompts_read(struct page *p, const struct eng_drafts *d)
{
    static const char name[] = "spillway_draft_prompt_tokens_total";
    head(p, name, "counter", "tokens of prompts that draft models and heads read, beside passes or before drafts");
    eng_bytes_format(p->out, "%s{%s,when=\"beside\"} %llu\n%s{%s,when=\"before\"} %llu\n", name, p->label,
                     (unsigned long long)d->n_text_beside, name, p->label, (unsigned long long)d->n_text_before);
}

/* A gauge with two lines, as measured and as the cost model predicts. */
static void write_pair(struct page *p, const char *name, const char *help, double measured, double predicted)
{
    head(p, name, "gauge", help);
    eng_bytes_format(p->out, "%s{%s,source=\"measured\"} %.17g\n%s{%s,source=\"predicted\"} %.17g\n", name, p->label,
                     measured, name, p->label, predicted);
}

/* MoESD's terms for the controller's last decision. */
static void write_target(struct page *p, const struct eng_drafts *d)
{
    const struct spec_target *t = &d->target;
    one(p, "spillway_target_rows", "gauge", "rows of the pass that the target metrics describe", t->rows);
    write_pair(p, "spillway_target_efficiency",
               "time of a pass without drafts over that of a pass with spillway_target_rows; 0: not known",
               t->efficiency, t->predicted);
    write_pair(p, "spillway_target_experts",
               "distinct experts per layer of such a pass; predicted: under uniform routing", t->experts, t->even);
    one(p, "spillway_target_full_rows", "gauge", "rows from which a pass uses nearly all experts; 0: not known",
        t->full_rows);
    one(p, "spillway_fit_known", "gauge", "1: the controller began with, or has, a fit of measured passes",
        d->fitted ? 1 : 0);
    one(p, "spillway_fit_error", "gauge", "mean error of this fit at the passes that it was fitted to", d->fit_error);
    one(p, "spillway_fit_passes_total", "counter", "passes of this run collected for the next fit",
        (double)d->n_fit_pass);
}

static void write_drafts(struct page *p, const struct eng_thread_report *v)
{
    const struct eng_drafts *d = &v->drafts;
    const struct eng_stats *e = &v->engine;
    if (!d->any)
        return;
    write_their_drafts(p, v);
    if (d->has_window) {
        one(p, "spillway_draft_window_rows_total", "counter", "rows of lookahead windows in passes",
            (double)e->n_window_row);
        one(p, "spillway_draft_window_rows_kept_total", "counter", "rows of lookahead windows that were accepted",
            (double)e->n_window_row_kept);
    }
    one(p, "spillway_draft_seconds_total", "counter", "time drafting between passes", (double)e->draft_ns * 1e-9);
    if (d->overlap) {
        one(p, "spillway_draft_beside_seconds_total", "counter", "time drafting while passes ran",
            (double)e->overlap_ns * 1e-9);
        one(p, "spillway_draft_beside_wait_seconds_total", "counter", "time that passes waited for overlapped drafting",
            (double)e->overlap_wait_ns * 1e-9);
    }
    write_prompts_read(p, d);
    write_decisions(p, d);
    if (!d->n_choice)
        return;
    write_choices(p, d);
    write_shares(p, d);
    one(p, "spillway_draft_lost_seconds", "gauge", "time lost to drafts and not regained", d->lost_ns * 1e-9);
    one(p, "spillway_draft_may_lose_seconds", "gauge", "limit of spillway_draft_lost_seconds; 0: not known yet",
        d->loss_limit_ns * 1e-9);
    write_target(p, d);
}

/* ---- accounts -------------------------------------------------------------------------------- */

#define MAX_ACCOUNTS 500 /* with lines of their own; the others are one, so that the answer stays small */

/* Sums the accounts of the line i: account i, or from MAX_ACCOUNTS on all that are left.  False: none was used. */
static bool sum_accounts(const struct eng_accounts *a, int i, struct eng_account *sum)
{
    *sum = (struct eng_account){ 0 };
    for (int k = i; k < a->n && (k == i || i == MAX_ACCOUNTS); k++) {
        const struct eng_account *one = a->account[k];
        sum->used |= one->used;
        sum->n_running += one->n_running;
        sum->n_request += one->n_request;
        sum->prompt_tokens += one->prompt_tokens;
        sum->cached_tokens += one->cached_tokens;
        sum->answer_tokens += one->answer_tokens;
        for (int j = 0; j < ENG_LIMIT_COUNT; j++)
            sum->n_refused[j] += one->n_refused[j];
    }
    snprintf(sum->rules.label, sizeof sum->rules.label, "%s",
             i == MAX_ACCOUNTS ? "(others)" : a->account[i]->rules.label);
    return sum->used;
}

enum account_value { OPEN, REQUESTS, REFUSED, PROMPT, CACHED, ANSWER, VALUE_COUNT };

static const struct {
    const char *name, *type, *help;
} account_family[VALUE_COUNT] = {
    [OPEN] = { "spillway_key_answers_running", "gauge", "answers of a key's label that run or wait" },
    [REQUESTS] = { "spillway_key_requests_total", "counter", "requests for generation that were accepted" },
    [REFUSED] = { "spillway_key_refused_total", "counter", "requests refused because of a limit of the label" },
    [PROMPT] = { "spillway_key_prompt_tokens_total", "counter", "prompt tokens of answers that have started" },
    [CACHED] = { "spillway_key_cached_tokens_total", "counter", "of these, found in the prefix cache" },
    [ANSWER] = { "spillway_key_generation_tokens_total", "counter", "generated tokens" },
};

static void write_account(struct page *p, const struct eng_account *a, enum account_value value)
{
    static const char *const limit[] = { [ENG_LIMIT_REQUESTS] = "requests", [ENG_LIMIT_TOKENS] = "tokens" };
    const double number[] = { [OPEN] = a->n_running,
                              [REQUESTS] = (double)a->n_request,
                              [PROMPT] = (double)a->prompt_tokens,
                              [CACHED] = (double)a->cached_tokens,
                              [ANSWER] = (double)a->answer_tokens };
    const char *name = account_family[value].name;
    for (int i = 0; i < ENG_LIMIT_COUNT && value == REFUSED; i++)
        eng_bytes_format(p->out, "%s{%s,key=\"%s\",limit=\"%s\"} %llu\n", name, p->label, a->rules.label, limit[i],
                         (unsigned long long)a->n_refused[i]);
    if (value != REFUSED)
        eng_bytes_format(p->out, "%s{%s,key=\"%s\"} %.17g\n", name, p->label, a->rules.label, number[value]);
}

static void write_accounts(struct page *p, const struct eng_accounts *a)
{
    struct eng_account sum;
    for (int value = 0; a && value < VALUE_COUNT; value++) {
        bool begun = false;
        for (int i = 0; i < kn_min(a->n, MAX_ACCOUNTS + 1); i++) {
            if (!sum_accounts(a, i, &sum))
                continue;
            if (!begun)
                head(p, account_family[value].name, account_family[value].type, account_family[value].help);
            begun = true;
            write_account(p, &sum, value);
        }
    }
}

/* ---- the page -------------------------------------------------------------------------------- */

void eng_metrics_write(const struct eng_metrics *m, const struct eng_gauges *now, const struct eng_thread_report *v,
                       struct eng_bytes *out)
{
    struct page p = { .out = out };
    make_label(&p, now->model);
    write_theirs(&p, m, v);
    write_engine(&p, v);
    write_drafts(&p, v);
    write_accounts(&p, now->accounts);
    head(&p, "spillway_build_info", "gauge", "1; the labels are version, commit and instruction set");
    eng_bytes_format(out, "spillway_build_info{%s,version=\"%s\",commit=\"%s\",isa=\"%s\"} 1\n", p.label, ENG_VERSION,
                     eng_commit, now->isa ? now->isa : kn_isa_name(kn_isa_best()));
    eng_process_metrics(out);
    one(&p, "spillway_ready", "gauge", "1: ready for requests", now->ready);
    one(&p, "spillway_uptime_seconds", "gauge", "time since the start", now->uptime_s);
    one(&p, "spillway_connections", "gauge", "open connections", now->n_connection);
    one(&p, "spillway_requests", "gauge", "requests being answered or waiting", now->n_call);
    one(&p, "spillway_refused_total", "counter", "requests refused because the queue was full", (double)m->n_refused);
    one(&p, "spillway_unauthorized_total", "counter", "requests without an accepted API key",
        (double)m->n_unauthorized);
    one(&p, "spillway_cut_total", "counter", "connections cut for being too slow", (double)m->n_cut);
    one(&p, "spillway_unsent_bytes", "gauge", "bytes of answers that clients have not taken yet",
        (double)now->unsent_bytes);
    one(&p, "spillway_memory_budget_bytes", "gauge", "memory budget of the process", (double)v->budget_bytes);
    one(&p, "spillway_memory_used_bytes", "gauge", "memory used by the process, without file pages",
        (double)eng_memory_used());
    head(&p, "spillway_http_responses_total", "counter", "HTTP answers by the first digit of the status");
    for (int i = 1; i < 6; i++)
        eng_bytes_format(out, "spillway_http_responses_total{%s,code=\"%dxx\"} %llu\n", p.label, i,
                         (unsigned long long)m->n_answered[i]);
}
