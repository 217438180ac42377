/* Attention as work items of the team: a row with some of its heads, and if these are few, one span of such a row.
 *
 * Decoding one sequence has few items, one for each KV head.  If there are fewer than ITEMS_ENOUGH for each thread and
 * an item covers several spans of KN_SPAN positions, then each span is a work item: its part is written to memory, and
 * the thread that writes an item's last part joins them.  A part is 2 + d_value floats for each head; the span's keys
 * and values are 1,024 (d_key + d_value) numbers for all heads of the item, so parts are below 2 % of the bytes read.
 * The bits are the same both ways (kernels.h). */
#include "kernels/cpu/pass/host.h"

#define ITEMS_ENOUGH 4                  /* for each thread: the threads then end at nearly the same time */
#define MOST_BYTES   ((size_t)64 << 20) /* of all parts; a pass that would need more has rows as items */

static int span_of(int position) { return position / KN_SPAN; }

void kn_host_spans_lay_out(struct kn_spans *s, struct kn_arena *a, const struct kn_queue_options *opt)
{
    int n_thread = kn_team_size(opt->team), n_span = kn_ceil_div(opt->max_pos, KN_SPAN);
    *s = (struct kn_spans){ .n_item = 0 };
    if (n_thread == 1 || n_span <= 1)
        return;
    s->n_item = ITEMS_ENOUGH * n_thread - 1;
    int n_row = kn_min(opt->max_row, kn_ceil_div(s->n_item, opt->n_kv));
    size_t n = (size_t)n_row * (size_t)n_span * kn_part_floats(opt->n_head, opt->d_value);
    s->n_float = n < MOST_BYTES / sizeof(float) ? n : MOST_BYTES / sizeof(float);
    s->part = kn_arena_take(a, s->n_float, sizeof *s->part);
    s->item = kn_arena_take(a, (size_t)s->n_item, sizeof *s->item);
}

/* ---- rows as items ------------------------------------------------------------------------------------------ */

struct items_job {
    struct kn_host_queue *q;
    const struct kn_attend_items *m;
};

static void attend_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct items_job *j = arg;
    struct kn_attend a;
    if (!j->m->describe(j->m->arg, item, &a))
        return;
    j->q->ops->attend(&a);
    j->m->finish(j->m->arg, item);
}

/* ---- spans as items ----------------------------------------------------------------------------------------- */

/* Lists the spans of all items in q->spans.item; returns their number, or 0 if rows are the better items. */
static int list_spans(struct kn_host_queue *q, const struct kn_attend_items *m)
{
    struct kn_spans *s = &q->spans;
    size_t floats = 0;
    int n = 0, most = 0, n_thread = kn_team_size(q->team);
    if (n_thread == 1 || m->n_item > s->n_item || m->n_item >= ITEMS_ENOUGH * n_thread)
        return 0;
    for (int i = 0; i < m->n_item; i++) {
        struct kn_attend a;
        int n_span = m->describe(m->arg, i, &a) ? span_of(a.last) - span_of(a.first) + 1 : 0;
        s->item[i].first = n;
        s->item[i].part = floats;
        atomic_store_explicit(&s->item[i].n_left, n_span, memory_order_relaxed);
        most = kn_max(most, n_span);
        n += n_span;
        floats += n_span ? (size_t)n_span * kn_part_floats(a.n_q, a.d_value) : 0;
    }
    return most > 1 && floats <= s->n_float ? n : 0;
}

static void attend_span(void *arg, int unit, int thread)
{
    (void)thread;
    const struct items_job *j = arg;
    const struct kn_attend_items *m = j->m;
    struct kn_spans *s = &j->q->spans;
    const struct kn_ops *ops = j->q->ops;
    struct kn_attend row, a;
    int item = 0;
    while (item + 1 < m->n_item && s->item[item + 1].first <= unit)
        item++;
    m->describe(m->arg, item, &row);
    a = row;
    int nth = unit - s->item[item].first, from = (span_of(row.first) + nth) * KN_SPAN;
    a.first = kn_max(row.first, from);
    a.last = kn_min(row.last, from + KN_SPAN - 1);
    float *part = s->part + s->item[item].part;
    ops->attend_span(&a, part + (size_t)nth * kn_part_floats(a.n_q, a.d_value));
    /* acquire and release: the thread that comes last reads the parts of the others */
    if (atomic_fetch_sub(&s->item[item].n_left, 1) > 1)
        return;
    ops->attend_join(&row, part, span_of(row.last) - span_of(row.first) + 1);
    m->finish(m->arg, item);
}

void kn_host_attend_items(struct kn_host_queue *q, const struct kn_attend_items *m)
{
    struct items_job job = { q, m };
    int n_span = list_spans(q, m);
    if (n_span)
        kn_parallel_for(q->team, n_span, attend_span, &job);
    else
        kn_parallel_for(q->team, m->n_item, attend_item, &job);
}
