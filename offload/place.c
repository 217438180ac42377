/* Places: how a matrix lies in memory, from its landing to its use.
 *
 * A read lands at the start of a page, as O_DIRECT wants it, so the file's bytes begin `head` = offset %
 * OFF_PAGE behind it.  The panels begin at the cache line that holds the first byte: head & ~63, less than
 * a line in front.  16 file rows and a panel take the same P bytes, so with d = head % 64
 *
 *     rows of panel i   at head     + i * P .. head     + (i + 1) * P
 *     panel i           at head - d + i * P .. head - d + (i + 1) * P
 *
 * and panel i ends where the rows of panel i + 1 begin, or d bytes before: in ascending order, with a
 * panel's own rows copied away first, nothing is overwritten that is still to be read.  The last panel may
 * be filled up with zero rows and then grows behind the file's bytes, where nothing is left.
 *
 * When several threads share a matrix, each takes a run of panels.  The first panel of a run takes the last
 * d bytes of rows in front of it, which belong to another run: those are kept aside before the runs start.
 *
 * Cost: a panel is copied once more than when it went from a landing buffer, but within a core's cache
 * (18 KiB for 2048-wide Q4_K); main memory sees each byte read once and written once. */
#include "offload/internal.h"

#include <string.h>

#define LINE     ((size_t)64)
#define MAX_RUN  64
#define RUN_BYTES ((size_t)256 << 10)           /* less is not worth a thread */

static size_t panel_bytes(const struct off_source *s)
{
    return KN_PANEL * kn_row_bytes(s->format, s->n_in);
}

static int n_panel(const struct off_source *s) { return kn_ceil_div(s->n_out, KN_PANEL); }
static size_t head_of(const struct off_source *s) { return (size_t)(s->offset % OFF_PAGE); }

size_t off_file_bytes(const struct off_source *s)
{
    return s->n_out ? (size_t)s->n_out * kn_row_bytes(s->format, s->n_in) : 0;
}

/* Panels are the longer of the two, and begin no later than a page's last byte. */
size_t off_place_bytes(const struct off_source *s)
{
    return s->n_out ? kn_align_up(kn_mat_bytes(s->format, s->n_out, s->n_in) + OFF_PAGE - 1, OFF_PAGE) : 0;
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

size_t off_scratch_bytes(const struct off_source *s)
{
    size_t rows = (size_t)s->turn * kn_row_bytes(s->format, s->n_in), panel = panel_bytes(s);
    return s->n_out ? kn_align_up(rows > panel ? rows : panel, LINE) : 0;
}

void *off_place_panels(const struct off_source *s, void *place)
{
    return (uint8_t *)place + head_of(s) / LINE * LINE;
}

/* Panels panel0..panel1-1.  kept, unless NULL: the last d bytes of their rows, which may be gone by then. */
static void interleave_run(const struct kn_ops *ops, const struct off_source *s, uint8_t *place,
                           int panel0, int panel1, const uint8_t *kept, uint8_t *scratch)
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
    interleave_run(ops, s, place, 0, n_panel(s), NULL, scratch);
}

/* ---- by a team ----------------------------------------------------------------------------------- */

struct shared {
    const struct off_hands *hands;
    const struct off_source *source;
    uint8_t *place;
    int n_run;
    uint8_t kept[MAX_RUN][LINE];
};

static int run_start(const struct shared *j, int run)
{
    return (int)((int64_t)n_panel(j->source) * run / j->n_run);
}

static void interleave_item(void *arg, int run, int thread)
{
    const struct shared *j = arg;
    const struct off_hands *h = j->hands;
    bool last = run == j->n_run - 1;
    interleave_run(h->ops, j->source, j->place, run_start(j, run), run_start(j, run + 1),
                   last ? NULL : j->kept[run], h->scratch + (size_t)thread * h->scratch_bytes);
}

void off_interleave_team(const struct off_hands *hands, const struct off_source *s, void *place)
{
    struct shared j = { .hands = hands, .source = s, .place = place };
    size_t d = head_of(s) % LINE, runs = off_file_bytes(s) / RUN_BYTES;
    kn_assert(hands->scratch_bytes >= off_scratch_bytes(s));
    if (runs < 1 || panel_bytes(s) < LINE)      /* then d bytes would be more than one panel's rows */
        runs = 1;
    j.n_run = kn_min(runs < MAX_RUN ? (int)runs : MAX_RUN, n_panel(s));
    for (int run = 0; run < j.n_run - 1; run++)
        memcpy(j.kept[run], j.place + head_of(s) + (size_t)run_start(&j, run + 1) * panel_bytes(s) - d, d);
    kn_parallel_for(hands->team, j.n_run, interleave_item, &j);
}

/* ---- rows in another order ------------------------------------------------------------------------- */

static void turn_item(void *arg, int item, int thread)
{
    const struct shared *j = arg;
    const struct off_source *s = j->source;
    size_t row = kn_row_bytes(s->format, s->n_in), bytes = (size_t)s->turn * row;
    uint8_t *rows = j->place + head_of(s) + (size_t)item * bytes;
    uint8_t *as_read = j->hands->scratch + (size_t)thread * j->hands->scratch_bytes;
    memcpy(as_read, rows, bytes);
    for (int i = 0; i < s->turn; i++)
        memcpy(rows + (size_t)i * row, as_read + (size_t)(i / 2 + i % 2 * (s->turn / 2)) * row, row);
}

void off_turn_team(const struct off_hands *hands, const struct off_source *s, void *place)
{
    struct shared j = { .hands = hands, .source = s, .place = place };
    kn_assert(s->turn % 2 == 0 && s->n_out % s->turn == 0 && hands->scratch_bytes >= off_scratch_bytes(s));
    kn_parallel_for(hands->team, s->n_out / s->turn, turn_item, &j);
}
