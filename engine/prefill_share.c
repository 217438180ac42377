/* engine/prefill_share.c - how many prefill rows a pass may have while other sessions wait for their next token.
 *
 * Numbers in, numbers out: no clock, no session. A mixed pass has both prefill rows and due rows (decoding).
 *
 * Prefill rows make a pass longer, and every session that decodes waits for it. So a mixed pass has a time limit:
 * max_prefill_slowdown times the time that a pass will take once the sessions in prefill decode too. But where rows are
 * cheap only in large numbers, for instance because every chunk reads all experts from disk, this limit would make
 * prefill very slow: a few rows cost nearly as much as many. So if the prefill speed (rows per second) within the limit
 * is below 0.4 of the speed with all rows in one pass, the limit does not apply: mixed passes take the fewest rows that
 * reach 0.9 of the speed with all rows. With limits_mean the limit then applies to the mean of passes: after a long pass none has
 * prefill rows until the time that it took beyond its limit is made up. So prompts have the same share of the time as
 * short passes would give them, and in this share far more rows are read, many prompts at once.
 *
 * Costs are learnt from the measured time of passes: the time of a pass without prefill, by its number of rows, drafts
 * included, so that the time of drafts is not taken for a prompt's; and the time of a prefill row, by prefill size in
 * powers of two. If some session is always in prefill, now and then a pass gets no prefill rows, to learn the time of a
 * pass without prefill. The cost of rows beyond the limit is learnt from passes in which no session decodes, if there
 * are any. Otherwise a pass now and then is a trial: it takes a few times more rows than the limit allows. A later trial
 * takes a few times more again only if a row was cheaper in the last one; so no session waits for a pass of a full chunk
 * only to learn that its rows cost as much as a few. Other programs on the machine can make a pass longer, but never
 * shorter; so a lower cost is learnt fast and a higher one slowly. A size within the limit is used only after a few
 * passes of half that size. The cost of a size without a pass among the last PASSES_REMEMBERED mixed passes is forgotten:
 * with cold caches, after a start, a pass may take ten times longer, and a size that seems too dear gets no pass that
 * could correct its cost. (The costs of prefill without due rows are kept: they count where they are lower, or where no
 * other is known.) */
#include "engine/internal.h"

#include <math.h>

#define MIN_PREFILL_ROWS      4    /* always allowed: their time is small beside that of the weights that they read */
#define MIN_MEASURED_PASSES   4    /* passes until a cost counts as known */
#define WEIGHT_OF_FASTER_PASS 0.5  /* weight of a new cost that is lower than the learnt one */
#define WEIGHT_OF_SLOWER_PASS 0.05 /* weight of a higher one */
#define WEIGHT_OF_LAST_DRAFTS 0.12 /* weight of a pass in the mean of drafted rows */
#define MIN_SPEED_RATIO       0.4  /* least speed within the limit, as a share of the speed with all rows in one pass */
#define TARGET_SPEED_RATIO    0.9  /* share of that speed that is chosen where the limit does not apply */
#define MAX_PASSES_OWED       512 /* most passes without prefill after a long one: its time may have been an accident */
#define MAX_READERS_PER_DUE   8   /* most sessions in prefill counted for the limit, per session that decodes */
#define UNLIMITED_SLOWDOWN    1e6 /* from this slowdown on there is no limit */
#define PASSES_TO_FIRST_PLAIN 8u  /* mixed passes until one without prefill, if its time is unknown */
#define PASSES_BETWEEN_PLAIN  64u /* the same, if its time is known */
#define PASSES_TO_FIRST_LONG  64u /* mixed passes until a trial beyond the limit, if no cost of such a size is known */
#define PASSES_BETWEEN_LONG   512u /* the same, if one is known */
#define PASSES_REMEMBERED     512u /* mixed passes after which the cost of a size that had no pass is forgotten */
#define SIZE_STEP             2    /* a trial has up to this many sizes (powers of two) more */
#define MAX_ROW_COST_RATIO    0.87 /* cost of a row over that at half the size; above it, trials go no further */

/* The prefill size of n rows: the logarithm to base 2, rounded down. */
static int size_of(int n)
{
    int size = 31 - __builtin_clz((unsigned)n | 1);
    return kn_min(size, ENG_PREFILL_SIZES - 1);
}

void eng_prefill_share_init(struct eng_prefill_share *p, double max_slowdown, bool limits_mean)
{
    *p = (struct eng_prefill_share){ .max_prefill_slowdown = max_slowdown, .limits_mean = limits_mean };
}

static void learn(struct eng_prefill_share *p, struct eng_cost *c, double ns)
{
    c->seen = p->n_both;
    if (ns <= 0) /* the time of a pass without prefill, which was subtracted, was too long: nothing to learn */
        return;
    if (c->n_pass == MIN_MEASURED_PASSES)
        c->ns += ns < c->ns ? WEIGHT_OF_FASTER_PASS * (ns - c->ns)
                            : WEIGHT_OF_SLOWER_PASS * ((ns < 2 * c->ns ? ns : 2 * c->ns) - c->ns);
    else if (c->n_pass++ == 0 || ns < c->ns)
        c->ns = ns;
}

/* Forgets the costs of sizes without a pass among the last PASSES_REMEMBERED mixed passes. */
static void forget(const struct eng_prefill_share *p, struct eng_cost *c, int n)
{
    for (int i = 0; i < n; i++)
        if (p->n_both - c[i].seen > PASSES_REMEMBERED)
            c[i] = (struct eng_cost){ .seen = c[i].seen };
}

/* The decoding size of n rows: below 16 each number is a size of its own. */
static int decode_size_of(int n)
{
    int octave = 31 - __builtin_clz((unsigned)n | 8) - 3;
    return kn_min(8 * octave + (n >> octave), ENG_DECODE_SIZES - 1);
}

/* The middle of the numbers of rows of a decoding size. */
static double rows_of(int size)
{
    int octave = size < 16 ? 0 : size / 8 - 1;
    return ((size - 8 * octave) << octave) + 0.5 * ((1 << octave) - 1);
}

/* The nearest sizes with a known time, from `size` downwards and upwards; below 0 or above ENG_DECODE_SIZES - 1: none. */
static void known_sizes(const struct eng_prefill_share *p, int size, int *below, int *above)
{
    for (*below = size; *below >= 0 && !p->base[*below].n_pass; --*below)
        ;
    for (*above = size; *above < ENG_DECODE_SIZES && !p->base[*above].n_pass; ++*above)
        ;
}

/* The time of a pass of `to` rows, from that of one of nearly as many: a row more adds half of the mean time of its rows. */
static double at_rows(double ns, double from, double to) { return ns * (1 + (to / from - 1) / 2); }

/* The time of a pass of n_row due and drafted rows without prefill; 0: none is known. Linear between two known sizes. */
static double base_ns(const struct eng_prefill_share *p, int n_row)
{
    const struct eng_cost *base = p->base;
    int below, above;
    known_sizes(p, decode_size_of(n_row), &below, &above);
    if (below < 0 && above == ENG_DECODE_SIZES)
        return 0;
    if (below < 0 || above == ENG_DECODE_SIZES || below == above) {
        int known = below < 0 ? above : below;
        return at_rows(base[known].ns, rows_of(known), n_row);
    }
    double part = (n_row - rows_of(below)) / (rows_of(above) - rows_of(below));
    return base[below].ns + part * (base[above].ns - base[below].ns);
}

/* The rows that n_due sessions will have in a pass: their due rows, and as many drafts as lately. */
static int decode_rows(const struct eng_prefill_share *p, int n_due) { return (int)(n_due * (1 + p->drafted) + 0.5); }

/* Whether the next pass should have no prefill rows, to measure the time of n_row due and drafted rows. Its time is known
 * from enough passes of this size and its neighbours, or of a smaller and of a larger one: drafts change the size from pass
 * to pass. */
static bool plain_pass_due(const struct eng_prefill_share *p, int n_row)
{
    int size = decode_size_of(n_row), reach = n_row >= 8, below, above, n_near = 0;
    known_sizes(p, size, &below, &above);
    if (below < 0 && above == ENG_DECODE_SIZES)
        return true;
    for (int i = size - reach; i <= kn_min(size + reach, ENG_DECODE_SIZES - 1); i++)
        n_near += p->base[i].n_pass;
    if (below >= 0 && above < ENG_DECODE_SIZES)
        n_near = kn_max(n_near, kn_min(p->base[below].n_pass, p->base[above].n_pass));
    return p->n_both - p->looked >= (n_near < MIN_MEASURED_PASSES ? PASSES_TO_FIRST_PLAIN : PASSES_BETWEEN_PLAIN);
}

/* Charges the pass with the time that its prefill rows take by the learnt costs. Passes within their limit are not charged. */
static void settle_owed(struct eng_prefill_share *p, double row_ns, int n_prompt)
{
    if (!p->limits_mean)
        return;
    if (n_prompt == 0 || p->is_long)
        p->owed_ns += row_ns * n_prompt - p->room_ns;
    p->owed_ns = fmin(fmax(p->owed_ns, 0), MAX_PASSES_OWED * p->room_ns);
}

void eng_prefill_share_learn(struct eng_prefill_share *p, int n_due, int n_drafted, int n_prompt, double pass_ns)
{
    struct eng_cost *row = &p->row[size_of(n_prompt)];
    double base = base_ns(p, n_due + n_drafted);
    if (n_due)
        p->drafted += WEIGHT_OF_LAST_DRAFTS * ((double)n_drafted / n_due - p->drafted);
    if (n_due == 0) {
        if (n_prompt > 0)
            learn(p, &p->alone[size_of(n_prompt)], pass_ns / n_prompt);
    } else if (n_prompt == 0) {
        int size = decode_size_of(n_due + n_drafted);
        learn(p, &p->base[size], at_rows(pass_ns, n_due + n_drafted, rows_of(size)));
        p->looked = p->n_both;
    } else if (base > 0) {
        p->n_both++;
        learn(p, row, (pass_ns - base) / n_prompt);
        forget(p, p->base, ENG_DECODE_SIZES);
        forget(p, p->row, ENG_PREFILL_SIZES);
    }
    if (n_due > 0)
        settle_owed(p, row->ns, n_prompt);
    else
        p->owed_ns = 0;
}

/* The cost of a row in a prefill of n rows of a mixed pass, from the nearest size with at least n_pass measured passes,
 * of two equally near ones the smaller; 0: there is none. */
static double row_ns(const struct eng_prefill_share *p, int n, int n_pass)
{
    int at = size_of(n);
    for (int far = 0; far < ENG_PREFILL_SIZES; far++) {
        if (at - far >= 0 && p->row[at - far].n_pass >= n_pass)
            return p->row[at - far].ns;
        if (at + far < ENG_PREFILL_SIZES && p->row[at + far].n_pass >= n_pass)
            return p->row[at + far].ns;
    }
    return 0;
}

/* The most prefill rows, from MIN_PREFILL_ROWS up to `most`, that fit in `room` ns beside the due rows. Each size is
 * measured in a few passes before the next is used. */
static int short_rows(const struct eng_prefill_share *p, double room, int most)
{
    int n = MIN_PREFILL_ROWS;
    while (2 * n <= most && p->row[size_of(n)].n_pass >= MIN_MEASURED_PASSES &&
           row_ns(p, 2 * n, MIN_MEASURED_PASSES) * 2 * n <= room)
        n *= 2;
    double row = row_ns(p, n, MIN_MEASURED_PASSES); /* n is a power of two; up to 2 n - 1 rows, if they fit */
    int fits = row > 0 && room / row < most ? (int)(room / row) : n;
    return kn_min(most, kn_max(n, kn_min(fits, 2 * n - 1)));
}

/* ---- more rows than the limit allows; size: of the rows within the limit, all: of the rows that may be had ------- */

/* The cost of a prefill row of this size, the lower of mixed passes and of passes without due rows; 0: unknown. */
static double known_ns(const struct eng_prefill_share *p, int size)
{
    const struct eng_cost *beside = &p->row[size], *alone = &p->alone[size];
    return !alone->n_pass || (beside->n_pass && beside->ns < alone->ns) ? beside->ns : alone->ns;
}

/* Whether trials should go no further than SIZE_STEP above `size`: in the largest sizes, from all - 1 on, a row is
 * known to cost more than MIN_SPEED_RATIO of one within the limit. This cost is not trusted if it is above that of size
 * + SIZE_STEP: then it was measured with a cold cache, since a larger prefill makes no row more expensive. */
static bool no_bargain(const struct eng_prefill_share *p, int size, int all)
{
    int far = kn_max(all - 1, size + SIZE_STEP + 1);
    while (far < ENG_PREFILL_SIZES && known_ns(p, far) <= 0)
        far++;
    if (far >= ENG_PREFILL_SIZES || known_ns(p, far) <= MIN_SPEED_RATIO * known_ns(p, size))
        return false;
    return known_ns(p, size + SIZE_STEP) <= 0 || known_ns(p, far) <= known_ns(p, size + SIZE_STEP);
}

/* The largest size that is reached from `size` in steps of at most SIZE_STEP sizes, if each step is known to lower the
 * cost of a row to MAX_ROW_COST_RATIO or less per size. */
static int largest_cheaper_size(const struct eng_prefill_share *p, int size, int all)
{
    double gain = MAX_ROW_COST_RATIO;
    if (no_bargain(p, size, all))
        return size;
    for (int next = size + 1; next <= kn_min(all, size + SIZE_STEP); next++, gain *= MAX_ROW_COST_RATIO)
        if (known_ns(p, next) > 0 && known_ns(p, next) <= gain * known_ns(p, size)) {
            size = next;
            gain = 1;
        }
    return size;
}

/* Whether the next pass should be a trial of this size: the last mixed pass of this size (or half of it) or larger is
 * long ago. Trials are rare, since the sessions that decode wait for them. */
static bool long_pass_due(const struct eng_prefill_share *p, int size)
{
    unsigned ago = p->n_both;
    bool known = false;
    for (int i = size - 1; i < ENG_PREFILL_SIZES; i++) {
        ago = p->n_both - p->row[i].seen < ago ? p->n_both - p->row[i].seen : ago;
        known |= known_ns(p, i) > 0;
    }
    return ago >= (known ? PASSES_BETWEEN_LONG : PASSES_TO_FIRST_LONG);
}

/* The rows of a mixed pass. If n, the rows within the limit, are slower than MIN_SPEED_RATIO of the best speed known
 * for larger sizes: the fewest that reach TARGET_SPEED_RATIO of that speed; else n. */
static int long_rows(const struct eng_prefill_share *p, int n, int most)
{
    int size = size_of(n), all = size_of(most);
    double best = 0;
    for (int i = size + SIZE_STEP; i <= kn_min(all + 1, ENG_PREFILL_SIZES - 1); i++)
        if (known_ns(p, i) > 0 && (best <= 0 || known_ns(p, i) < best))
            best = known_ns(p, i);
    if (best <= 0 || row_ns(p, n, MIN_MEASURED_PASSES) * MIN_SPEED_RATIO <= best)
        return n;
    while (size < all && (known_ns(p, size) <= 0 || known_ns(p, size) * TARGET_SPEED_RATIO > best))
        size++;
    return kn_min(most, (2 << size) - 1);
}

/* The rows of a mixed pass that may be longer than its limit, of which n are within it. */
static int rows_beyond(const struct eng_prefill_share *p, int n, int most)
{
    int size = size_of(n), all = size_of(most);
    bool more_is_long = p->row[size].n_pass == MIN_MEASURED_PASSES &&
                        row_ns(p, 2 * n, MIN_MEASURED_PASSES) * 2 * n > p->room_ns;
    if (!more_is_long || all <= size + 1)
        return n;
    int next = kn_min(all, largest_cheaper_size(p, size, all) + SIZE_STEP);
    return long_pass_due(p, next) ? kn_min(most, 1 << next) : long_rows(p, n, most);
}

int eng_prefill_share_rows(struct eng_prefill_share *p, int n_due, int n_read, int most)
{
    int now = decode_rows(p, n_due), then = decode_rows(p, n_due + kn_min(n_read, MAX_READERS_PER_DUE * n_due));
    p->is_long = false;
    p->room_ns = p->max_prefill_slowdown * base_ns(p, then) - base_ns(p, now);
    if (n_due == 0 || most <= MIN_PREFILL_ROWS || p->max_prefill_slowdown >= UNLIMITED_SLOWDOWN)
        return most;
    if (p->owed_ns > 0 || plain_pass_due(p, now))
        return 0;
    int n = short_rows(p, p->room_ns, most), rows = rows_beyond(p, n, most);
    p->is_long = rows > n;
    return rows;
}
