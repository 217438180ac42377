/* How much of prompts a pass takes while others wait for their next token.  Numbers in, numbers out.
 *
 * Rows of a prompt make a pass longer, and who is being answered waits for it.  So a pass with both may
 * take `stretch` times what one will take when all of them are answered: that is the pace that such a crowd
 * lives with, and those who read have as good a claim to it.  But where rows are cheap only in crowds, as when
 * every chunk drags all experts from a disk, that would make prompts crawl: a few rows cost nearly what
 * many do.  Where it would take more than twice and a half the time that all the rows at once take, who waits for a
 * token waits long whatever is done; then rather seldom: the pass takes as many as it needs for nearly that speed.
 *
 * What rows cost is learnt from the passes themselves: those that people wait for one by one, a prompt's by
 * sizes in powers of two.  In a crowd that always reads, a pass now and then goes without prompts.  What more rows
 * than people would wait for cost is seen for nothing when nobody waits; else a pass now and then takes a few times as
 * many as are short, and only where that made a row cheaper the next such pass takes a few times as many again.  So
 * nobody waits for all the rows there are to learn that each is as dear as the first.  A machine that does
 * other things as well makes passes long for no fault of their rows, and none short: what a pass says is
 * believed readily when it is less than was known, slowly when it is more.  A size that is short enough is not
 * relied on before it was tried a few times, and is reached from the one below it. */
#include "engine/internal.h"

#define MIN_PREFILL_ROWS    4                              /* rows: less is nothing beside the weights read for it */
#define MIN_MEASURED_PASSES      4                              /* passes */
#define WEIGHT_OF_FASTER_PASS  0.5                            /* how much of what is new is believed */
#define WEIGHT_OF_SLOWER_PASS   0.05
#define MIN_SPEED_RATIO   0.4                            /* of the speed of all rows at once: less is no way to read */
#define TARGET_SPEED_RATIO   0.9                            /* and this is what it gives way to */
#define MAX_READERS_PER_DUE 8                            /* who read, for each who is answered */
#define UNLIMITED_SLOWDOWN      1e6                            /* a stretch so long that nobody minds any */
#define PASSES_TO_FIRST_PLAIN     8u                             /* passes with both, until one shows what is not known */
#define PASSES_BETWEEN_PLAIN 64u                           /* or is: what a pass takes without prompts */
#define PASSES_TO_FIRST_LONG      64u                            /* passes with both, until one takes more than is short, */
#define PASSES_BETWEEN_LONG 512u                           /* or takes it again */
#define SIZE_STEP     2                              /* sizes: how much more */
#define MAX_ROW_COST_RATIO  0.87                           /* a row, for each size: less of a gain and more are not tried */

static int size_of(int n)
{
    int size = 31 - __builtin_clz((unsigned)n | 1);
    return kn_min(size, ENG_PREFILL_SIZES - 1);
}

void eng_prefill_share_init(struct eng_prefill_share *p, double max_slowdown) { *p = (struct eng_prefill_share){ .max_prefill_slowdown = max_slowdown }; }

static void learn(struct eng_cost *c, double ns)
{
    if (ns <= 0)                                /* what it was taken from was too long itself */
        return;
    if (c->n_pass == MIN_MEASURED_PASSES)
        c->ns += ns < c->ns ? WEIGHT_OF_FASTER_PASS * (ns - c->ns) : WEIGHT_OF_SLOWER_PASS * ((ns < 2 * c->ns ? ns : 2 * c->ns) - c->ns);
    else if (c->n_pass++ == 0 || ns < c->ns)
        c->ns = ns;
}

/* Of passes without prompts: between two that are known on the line through both, beyond them as if each row cost half
 * of what those known do. */
static double base_ns(const struct eng_prefill_share *p, int n_due)
{
    int at = kn_min(n_due, ENG_PREFILL_DUE - 1), below = at, above = at;
    const struct eng_cost *base = p->base;
    while (below > 0 && !base[below].n_pass)
        below--;
    while (above < ENG_PREFILL_DUE && !base[above].n_pass)
        above++;
    if (below == 0 && above == ENG_PREFILL_DUE)
        return 0;
    if (below == 0 || above == ENG_PREFILL_DUE) {
        int known = below ? below : above;
        return base[known].ns * (1 + (at - known) / (2.0 * known));
    }
    double slope = above > below ? (base[above].ns - base[below].ns) / (above - below) : 0;
    return base[below].ns + slope * (at - below);
}

/* Is it time to see what a pass takes without prompts?  Of how many is known as good as of about as many. */
static bool plain_pass_due(const struct eng_prefill_share *p, int n_due)
{
    int at = kn_min(n_due, ENG_PREFILL_DUE - 1), n_known = 0;
    if (base_ns(p, n_due) <= 0)
        return true;
    for (int i = at - at / 8; i <= kn_min(at + at / 8, ENG_PREFILL_DUE - 1); i++)
        n_known += p->base[i].n_pass;
    return p->n_both - p->looked >= (n_known < MIN_MEASURED_PASSES ? PASSES_TO_FIRST_PLAIN : PASSES_BETWEEN_PLAIN);
}

void eng_prefill_share_learn(struct eng_prefill_share *p, int n_due, int n_prompt, double pass_ns)
{
    struct eng_cost *row = &p->row[size_of(n_prompt)];
    double base = base_ns(p, n_due);
    if (n_due == 0) {
        if (n_prompt > 0)
            learn(&p->alone[size_of(n_prompt)], pass_ns / n_prompt);
    } else if (n_prompt == 0) {
        learn(&p->base[kn_min(n_due, ENG_PREFILL_DUE - 1)], pass_ns);
        p->looked = p->n_both;
    } else if (base > 0) {
        learn(row, (pass_ns - base) / n_prompt);
        row->seen = ++p->n_both;
    }
}

/* What a row costs in a crowd of so many; of the nearest size that is known from so many passes. */
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

/* The most that is short enough.  Each size is tried a few times before the next. */
static int short_rows(const struct eng_prefill_share *p, double room, int most)
{
    int n = MIN_PREFILL_ROWS;
    while (2 * n <= most && p->row[size_of(n)].n_pass >= MIN_MEASURED_PASSES && row_ns(p, 2 * n, MIN_MEASURED_PASSES) * 2 * n <= room)
        n *= 2;
    double row = row_ns(p, n, MIN_MEASURED_PASSES);             /* within the size found, as far as the time allows */
    int fits = row > 0 && room / row < most ? (int)(room / row) : n;
    return kn_min(most, kn_max(n, kn_min(fits, 2 * n - 1)));
}

/* ---- more than is short ---- */

/* A row of a crowd of this size, by whatever is known; 0: nothing. */
static double known_ns(const struct eng_prefill_share *p, int size)
{
    const struct eng_cost *beside = &p->row[size], *alone = &p->alone[size];
    return !alone->n_pass || (beside->n_pass && beside->ns < alone->ns) ? beside->ns : alone->ns;
}

/* Is a row of all there are known to be no bargain?  Not by what was read cold, when a few were dearer still than they
 * are now: a crowd makes no row dearer. */
static bool no_bargain(const struct eng_prefill_share *p, int size, int all)
{
    int far = kn_max(all - 1, size + SIZE_STEP + 1);
    while (far < ENG_PREFILL_SIZES && known_ns(p, far) <= 0)
        far++;
    if (far >= ENG_PREFILL_SIZES || known_ns(p, far) <= MIN_SPEED_RATIO * known_ns(p, size))
        return false;
    return known_ns(p, size + SIZE_STEP) <= 0 || known_ns(p, far) <= known_ns(p, size + SIZE_STEP);
}

/* How far up rows are known to get cheaper, from what is short. */
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

/* Is it time to see what a row of so large a crowd costs?  Seldom, whatever the size: people wait for it. */
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

/* Where all the rows at once would be read far faster than n: as many as come near to that; else n. */
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

int eng_prefill_share_rows(const struct eng_prefill_share *p, int n_due, int n_read, int most)
{
    if (n_due == 0 || most <= MIN_PREFILL_ROWS || p->max_prefill_slowdown >= UNLIMITED_SLOWDOWN)
        return most;
    if (plain_pass_due(p, n_due))
        return 0;
    double room = p->max_prefill_slowdown * base_ns(p, n_due + kn_min(n_read, MAX_READERS_PER_DUE * n_due)) - base_ns(p, n_due);
    int n = short_rows(p, room, most), size = size_of(n), all = size_of(most);
    bool more_is_long = p->row[size].n_pass == MIN_MEASURED_PASSES && row_ns(p, 2 * n, MIN_MEASURED_PASSES) * 2 * n > room;
    if (!more_is_long || all <= size + 1)
        return n;
    int next = kn_min(all, largest_cheaper_size(p, size, all) + SIZE_STEP);
    return long_pass_due(p, next) ? kn_min(most, 1 << next) : long_rows(p, n, most);
}
