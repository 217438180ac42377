/* Places: layout of a matrix in memory, from the read to its use.
 *
 * A read starts at a page of memory, as O_DIRECT needs, so the matrix's first byte is at `head` = offset %
 * OFF_PAGE of its place.  The panels begin at the cache line that holds the first byte: at head & ~63, less
 * than a line in front.  16 file rows and a panel have the same size P, so with d = head % 64
 *
 *     rows of panel i   at head     + i * P .. head     + (i + 1) * P
 *     panel i           at head - d + i * P .. head - d + (i + 1) * P
 *
 * and panel i ends d bytes before the rows of panel i + 1 begin.  Panels are written in ascending order, and a
 * panel's own rows are copied to scratch first, so no row is overwritten before it is copied.  The last panel
 * may be padded with zero rows, and then extends past the file's bytes, into unused memory.
 *
 * Several threads may share a matrix; each has a run: a range of panels.  The first panel of a run overwrites
 * the last d bytes of the rows in front of it, which belong to the run before: these bytes are saved before
 * the runs start.
 *
 * Cost: a panel is copied once more than if rows were read to a separate buffer, but within a core's cache (18
 * KiB for 2048-wide Q4_K); main memory sees each byte read once and written once.
 *
 * With separate scales, the codes are read to the end of the place, behind a gap.  The gap is as long as panels
 * are longer than codes, in whole pages; the scales are read into it, and copied to scratch first.  The panels
 * begin at the start of the gap.  After panel i of N, at most (i + 1) / N of the gap is used up, so panel i ends
 * no later than the codes that it is made of, and overwrites no codes of later panels.  A team makes as many panels
 * at a time as it has threads: first all threads join codes and scales, each in its scratch; then all write panels.
 *
 * With codes stored by input, every panel needs a part of each stored row.  So all codes are copied to the
 * threads' scratch, used as one buffer, before the first panel is written.  Their zero points are read into the gap
 * behind the scales. */
#include "offload/internal.h"

#include <string.h>

#define LINE      ((size_t)64)
#define MAX_RUN   64
#define RUN_BYTES ((size_t)256 << 10) /* smallest run: a shorter one saves less time than another thread costs */

static size_t panel_bytes(const struct off_source *s) { return KN_PANEL * kn_row_bytes(s->format, s->n_in); }

static int n_panel(const struct off_source *s) { return kn_ceil_div(s->n_out, KN_PANEL); }
static size_t head_of(const struct off_source *s) { return (size_t)(s->offset % OFF_PAGE); }

/* ---- sizes with separate scales ------------------------------------------------------------------ */

static bool is_apart(const struct off_source *s) { return s->scales.bytes > 0; }
static bool is_by_input(const struct off_source *s) { return is_apart(s) && s->scales.order != OFF_BY_ROW; }

/* Bytes of the codes of a row, and of a row of scales. */
static size_t code_row(const struct off_source *s)
{
    return kn_code_bytes(s->format) * (size_t)(s->n_in / kn_format_info(s->format)->block_values);
}

static size_t scale_row(const struct off_source *s)
{
    return (size_t)kn_ceil_div(s->n_in, s->scales.values) * (size_t)s->scales.bytes;
}

static size_t scale_bytes(const struct off_source *s)
{
    return is_apart(s) ? (size_t)kn_ceil_div(s->n_out, s->scales.rows) * scale_row(s) : 0;
}

static size_t zero_bytes(const struct off_source *s)
{
    bool zeros = is_by_input(s) && s->format == KN_UINT4;
    return zeros ? (size_t)(s->n_in / s->scales.values) * (size_t)s->n_out / 2 : 0;
}

static size_t page_span(size_t bytes) { return kn_align_up(bytes + OFF_PAGE - 1, OFF_PAGE); } /* at any offset */

/* Bytes of the gap: offset in the place of the first page of codes.  0 without separate scales. */
static size_t gap_of(const struct off_source *s)
{
    size_t more = is_apart(s) ? kn_mat_bytes(s->format, s->n_out, s->n_in) - (size_t)s->n_out * code_row(s) : 0;
    size_t read = zero_bytes(s) ? page_span(scale_bytes(s)) + page_span(zero_bytes(s)) : 0;
    kn_assert(scale_bytes(s) <= more);
    more = more ? page_span(more) : 0;
    return more > read ? more : read;
}

/* ---- sizes --------------------------------------------------------------------------------------- */

static size_t row_bytes(const struct off_source *s) /* of the rows as read */
{
    return is_apart(s) ? code_row(s) : kn_row_bytes(s->format, s->n_in);
}

size_t off_file_bytes(const struct off_source *s)
{
    return s->n_out ? (size_t)s->n_out * row_bytes(s) + scale_bytes(s) + zero_bytes(s) : 0;
}

/* Without separate scales panels are at least as long as rows, and both begin within the first page. */
size_t off_place_bytes(const struct off_source *s)
{
    if (!s->n_out)
        return 0;
    size_t rows = is_apart(s) ? (size_t)s->n_out * code_row(s) : kn_mat_bytes(s->format, s->n_out, s->n_in);
    return gap_of(s) + kn_align_up(rows + OFF_PAGE - 1, OFF_PAGE);
}

void off_place_jobs(const struct off_source *s, void *place, struct off_job *job, int step)
{
    uint8_t *to = place;
    job[0] = (struct off_job){ .file = s->file,
                               .offset = s->offset,
                               .bytes = off_file_bytes(s) - scale_bytes(s) - zero_bytes(s),
                               .to = to + gap_of(s) };
    job[step] = (struct off_job){
        .file = s->scales.file, .offset = s->scales.offset, .bytes = scale_bytes(s), .to = to
    };
    job[2 * step] = (struct off_job){ .file = s->scales.zero_file,
                                      .offset = s->scales.zero_offset,
                                      .bytes = zero_bytes(s),
                                      .to = to + page_span(scale_bytes(s)) };
}

size_t off_expert_bytes(const struct off_expert *e)
{
    size_t bytes = 0;
    for (int i = 0; i < OFF_MATRICES; i++)
        bytes += off_file_bytes(&e->matrix[i]);
    return bytes;
}

size_t off_slot_bytes(const struct off_expert *e)
{
    size_t bytes = 0;
    for (int i = 0; i < OFF_MATRICES; i++)
        bytes += off_place_bytes(&e->matrix[i]);
    return bytes;
}

/* Scratch memory of copies of the scales and zero points, each from a cache line on. */
static size_t kept_bytes(const struct off_source *s)
{
    return kn_align_up(scale_bytes(s), LINE) + kn_align_up(zero_bytes(s), LINE);
}

size_t off_scratch_bytes(const struct off_source *s, int n_thread)
{
    size_t turned = is_by_input(s) ? 0 : (size_t)s->turn.n * s->turn.bytes, panel = panel_bytes(s);
    size_t all = (size_t)n_thread, other = (size_t)s->scales.turn.n * s->scales.turn.bytes;
    turned = turned > other ? turned : other;
    if (is_by_input(s))
        panel = (kept_bytes(s) + (size_t)s->n_out * code_row(s) + all - 1) / all;
    else if (is_apart(s))
        panel = kept_bytes(s) + panel;
    return s->n_out ? kn_align_up(turned > panel ? turned : panel, LINE) : 0;
}

void *off_place_panels(const struct off_source *s, void *place)
{
    return is_apart(s) ? place : (uint8_t *)place + head_of(s) / LINE * LINE;
}

/* ---- panels with separate scales ----------------------------------------------------------------- */

/* Copies the scales and zero points to scratch, before panels overwrite them; returns scratch. */
static const uint8_t *take_scales(const struct off_source *s, const uint8_t *place, uint8_t *scratch)
{
    const uint8_t *zeros = place + page_span(scale_bytes(s));
    memcpy(scratch, place + s->scales.offset % OFF_PAGE, scale_bytes(s));
    memcpy(scratch + kn_align_up(scale_bytes(s), LINE), zeros + s->scales.zero_offset % OFF_PAGE, zero_bytes(s));
    return scratch;
}

/* The scratch memory behind the scales.  It holds the rows of one panel, codes joined with their scales; or, with codes
 * stored by input, a copy of all codes. */
static uint8_t *behind_scales(const struct off_source *s, uint8_t *scratch) { return scratch + kept_bytes(s); }

static const uint8_t *codes_of(const struct off_source *s, const uint8_t *place)
{
    return place + gap_of(s) + head_of(s);
}

static int rows_of_panel(const struct off_source *s, int panel)
{
    return kn_min(KN_PANEL, s->n_out - panel * KN_PANEL);
}

static void join_panel(const struct off_source *s, const uint8_t *place, const uint8_t *scales, int panel,
                       uint8_t *rows)
{
    const uint8_t *codes = codes_of(s, place);
    int block = kn_format_info(s->format)->block_values;
    size_t row = kn_row_bytes(s->format, s->n_in);
    for (int i = 0; i < rows_of_panel(s, panel); i++) {
        int r = panel * KN_PANEL + i;
        kn_join(s->format, codes + (size_t)r * code_row(s), scales + (size_t)(r / s->scales.rows) * scale_row(s),
                s->scales.bytes, s->scales.values / block, (size_t)(s->n_in / block), rows + (size_t)i * row);
    }
}

static void put_panel(const struct kn_ops *ops, const struct off_source *s, uint8_t *place, int panel,
                      const uint8_t *rows)
{
    ops->repack(s->format, rows, rows_of_panel(s, panel), s->n_in, place + (size_t)panel * panel_bytes(s), 0, 1);
}

/* Writes a panel from codes stored by input; scratch holds the scales, then the zero points, then all codes. */
static void put_columns(const struct off_source *s, uint8_t *place, int panel, uint8_t *scratch)
{
    const struct kn_columns c = {
        .codes = (const uint32_t *)(const void *)behind_scales(s, scratch),
        .zeros = (const uint32_t *)(const void *)(scratch + kn_align_up(scale_bytes(s), LINE)),
        .scales = (const uint16_t *)(const void *)scratch,
        .format = s->format,
        .awq = s->scales.order == OFF_BY_INPUT_AWQ,
        .n_out = s->n_out,
        .n_in = s->n_in,
        .per_scale = s->scales.values / kn_format_info(s->format)->block_values,
        .zero_less = s->scales.zero_less,
        .turn_first = (int)s->turn.first,
        .turn_rows = (int)s->turn.bytes,
        .turn_n = s->turn.n,
        .turn_by = s->turn.by,
    };
    kn_join_columns(&c, panel, place + (size_t)panel * panel_bytes(s));
}

/* Interleaves panels panel0..panel1-1, without separate scales.  kept: a copy of the last d bytes of these panels'
 * rows, which the thread of the next run may overwrite at any time; NULL for the last run. */
static void interleave_run(const struct kn_ops *ops, const struct off_source *s, uint8_t *place, int panel0, int panel1,
                           const uint8_t *kept, uint8_t *scratch)
{
    size_t panel = panel_bytes(s), d = head_of(s) % LINE;
    uint8_t *rows = place + head_of(s), *panels = rows - d;
    for (int i = panel0; i < panel1; i++) {
        int n_row = kn_min(KN_PANEL, s->n_out - i * KN_PANEL);
        size_t bytes = (size_t)n_row * kn_row_bytes(s->format, s->n_in);
        size_t aside = kept && i == panel1 - 1 ? d : 0;
        memcpy(scratch, rows + (size_t)i * panel, bytes - aside);
        if (aside)
            memcpy(scratch + bytes - aside, kept, aside);
        ops->repack(s->format, scratch, n_row, s->n_in, panels + (size_t)i * panel, 0, 1);
    }
}

void off_interleave(const struct kn_ops *ops, const struct off_source *s, void *place, void *scratch)
{
    if (!is_apart(s)) {
        interleave_run(ops, s, place, 0, n_panel(s), NULL, scratch);
        return;
    }
    const uint8_t *scales = take_scales(s, place, scratch);
    uint8_t *behind = behind_scales(s, scratch);
    bool by_input = is_by_input(s);
    if (by_input)
        memcpy(behind, codes_of(s, place), (size_t)s->n_out * code_row(s));
    for (int i = 0; i < n_panel(s); i++) {
        if (by_input) {
            put_columns(s, place, i, scratch);
            continue;
        }
        join_panel(s, place, scales, i, behind);
        put_panel(ops, s, place, i, behind);
    }
}

/* ---- by a team ----------------------------------------------------------------------------------- */

struct shared {
    const struct off_hands *hands;
    const struct off_source *source;
    uint8_t *place;
    int n_run;
    uint8_t kept[MAX_RUN][LINE];
    const uint8_t *scales;
    int first; /* first panel of the current round */
};

static int run_start(const struct shared *j, int run) { return (int)((int64_t)n_panel(j->source) * run / j->n_run); }

static void interleave_item(void *arg, int run, int thread)
{
    const struct shared *j = arg;
    const struct off_hands *h = j->hands;
    bool last = run == j->n_run - 1;
    interleave_run(h->ops, j->source, j->place, run_start(j, run), run_start(j, run + 1), last ? NULL : j->kept[run],
                   h->scratch + (size_t)thread * h->scratch_bytes);
}

static uint8_t *rows_of_item(const struct shared *j, int item)
{
    return behind_scales(j->source, j->hands->scratch + (size_t)item * j->hands->scratch_bytes);
}

static void join_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct shared *j = arg;
    join_panel(j->source, j->place, j->scales, j->first + item, rows_of_item(j, item));
}

static void put_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct shared *j = arg;
    put_panel(j->hands->ops, j->source, j->place, j->first + item, rows_of_item(j, item));
}

static void join_team(struct shared *j)
{
    int n = n_panel(j->source), step = kn_team_size(j->hands->team);
    j->scales = take_scales(j->source, j->place, j->hands->scratch);
    for (; j->first < n; j->first += step) {
        kn_parallel_for(j->hands->team, kn_min(step, n - j->first), join_item, j);
        kn_parallel_for(j->hands->team, kn_min(step, n - j->first), put_item, j);
    }
}

static void lift_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct shared *j = arg;
    const struct off_source *s = j->source;
    size_t all = (size_t)s->n_out * code_row(s), at = (size_t)item * RUN_BYTES;
    memcpy(behind_scales(s, j->hands->scratch) + at, codes_of(s, j->place) + at,
           all - at < RUN_BYTES ? all - at : RUN_BYTES);
}

static void column_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct shared *j = arg;
    put_columns(j->source, j->place, item, j->hands->scratch);
}

static void column_team(struct shared *j)
{
    size_t all = (size_t)j->source->n_out * code_row(j->source);
    take_scales(j->source, j->place, j->hands->scratch);
    kn_parallel_for(j->hands->team, (int)((all + RUN_BYTES - 1) / RUN_BYTES), lift_item, j);
    kn_parallel_for(j->hands->team, n_panel(j->source), column_item, j);
}

void off_interleave_team(const struct off_hands *hands, const struct off_source *s, void *place)
{
    struct shared j = { .hands = hands, .source = s, .place = place };
    size_t d = head_of(s) % LINE, runs = off_file_bytes(s) / RUN_BYTES;
    kn_assert(hands->scratch_bytes >= off_scratch_bytes(s, kn_team_size(hands->team)));
    if (is_apart(s)) {
        (is_by_input(s) ? column_team : join_team)(&j);
        return;
    }
    if (runs < 1 || panel_bytes(s) < LINE) /* with shorter panels, d bytes could be more than one panel's rows */
        runs = 1;
    j.n_run = kn_min(runs < MAX_RUN ? (int)runs : MAX_RUN, n_panel(s));
    for (int run = 0; run < j.n_run - 1; run++)
        memcpy(j.kept[run], j.place + head_of(s) + (size_t)run_start(&j, run + 1) * panel_bytes(s) - d, d);
    kn_parallel_for(hands->team, j.n_run, interleave_item, &j);
}

/* ---- strided permutation --------------------------------------------------------------------------- */

struct turn_job {
    const struct off_hands *hands;
    const struct off_stride_permutation *turn;
    uint8_t *units;
};

static void turn_item(void *arg, int item, int thread)
{
    const struct turn_job *j = arg;
    const struct off_stride_permutation *t = j->turn;
    size_t bytes = (size_t)t->n * t->bytes;
    uint8_t *units = j->units + t->first + (size_t)item * bytes;
    uint8_t *as_read = j->hands->scratch + (size_t)thread * j->hands->scratch_bytes;
    memcpy(as_read, units, bytes);
    for (int i = 0; i < t->n; i++)
        memcpy(units + (size_t)i * t->bytes, as_read + (size_t)off_stored_index(t, i) * t->bytes, t->bytes);
}

/* Brings `bytes` bytes, of which the permuted part is whole groups, into logical order. */
static void turn_bytes(const struct off_hands *hands, const struct off_stride_permutation *t, uint8_t *units,
                       size_t bytes)
{
    struct turn_job j = { hands, t, units };
    if (!t->n)
        return;
    size_t group = (size_t)t->n * t->bytes;
    kn_assert(t->n % t->by == 0 && (bytes - t->first) % group == 0 && hands->scratch_bytes >= group);
    kn_parallel_for(hands->team, (int)((bytes - t->first) / group), turn_item, &j);
}

void off_turn_team(const struct off_hands *hands, const struct off_source *s, void *place)
{
    if (is_by_input(s)) /* put_columns() does it */
        return;
    uint8_t *at = place;
    turn_bytes(hands, &s->turn, at + gap_of(s) + head_of(s), (size_t)s->n_out * row_bytes(s));
    turn_bytes(hands, &s->scales.turn, at + s->scales.offset % OFF_PAGE, scale_bytes(s));
}
