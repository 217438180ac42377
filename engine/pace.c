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
 * sizes in powers of two.  In a crowd that always reads, a pass now and then goes without prompts, and one takes
 * all there is of them: soon where nothing is known of so many, rarely where it is.  A machine that does
 * other things as well makes passes long for no fault of their rows, and none short: what a pass says is
 * believed readily when it is less than was known, slowly when it is more.  A size that is short enough is not
 * relied on before it was tried a few times, and is reached from the one below it. */
#include "engine/internal.h"

#define LEAST    4                              /* rows: less is nothing beside the weights read for it */
#define FEW      4                              /* passes */
#define READILY  0.5                            /* how much of what is new is believed */
#define SLOWLY   0.05
#define CRAWLS   0.4                            /* of the speed of all rows at once: less is no way to read */
#define NEARLY   0.9                            /* and this is what it gives way to */
#define MOST_CLAIM 8                            /* who read, for each who is answered */
#define ANY      1e6                            /* a stretch so long that nobody minds any */
#define LOOK     8u                             /* passes with both, until one shows what is not known */
#define LOOK_ANEW 64u                           /* or is: what a pass takes without prompts */
#define TRY      64u                            /* passes with both, until one takes all there is of prompts, */
#define TRY_ANEW 512u                           /* or takes it again */

static int size_of(int n)
{
    int size = 31 - __builtin_clz((unsigned)n | 1);
    return kn_min(size, ENG_PACE_SIZES - 1);
}

void eng_pace_init(struct eng_pace *p, double stretch) { *p = (struct eng_pace){ .stretch = stretch }; }

static void learn(struct eng_cost *c, double ns)
{
    if (ns <= 0)                                /* what it was taken from was too long itself */
        return;
    if (c->n_pass == FEW)
        c->ns += ns < c->ns ? READILY * (ns - c->ns) : SLOWLY * ((ns < 2 * c->ns ? ns : 2 * c->ns) - c->ns);
    else if (c->n_pass++ == 0 || ns < c->ns)
        c->ns = ns;
}

/* Of passes without prompts: between two that are known on the line through both, beyond them as if each row cost half
 * of what those known do. */
static double base_ns(const struct eng_pace *p, int n_due)
{
    int at = kn_min(n_due, ENG_PACE_DUE - 1), below = at, above = at;
    const struct eng_cost *base = p->base;
    while (below > 0 && !base[below].n_pass)
        below--;
    while (above < ENG_PACE_DUE && !base[above].n_pass)
        above++;
    if (below == 0 && above == ENG_PACE_DUE)
        return 0;
    if (below == 0 || above == ENG_PACE_DUE) {
        int known = below ? below : above;
        return base[known].ns * (1 + (at - known) / (2.0 * known));
    }
    double slope = above > below ? (base[above].ns - base[below].ns) / (above - below) : 0;
    return base[below].ns + slope * (at - below);
}

/* Is it time to see what a pass takes without prompts?  Of how many is known as good as of about as many. */
static bool looks(const struct eng_pace *p, int n_due)
{
    int at = kn_min(n_due, ENG_PACE_DUE - 1), n_known = 0;
    if (base_ns(p, n_due) <= 0)
        return true;
    for (int i = at - at / 8; i <= kn_min(at + at / 8, ENG_PACE_DUE - 1); i++)
        n_known += p->base[i].n_pass;
    return p->n_both - p->looked >= (n_known < FEW ? LOOK : LOOK_ANEW);
}

/* And with all there are of prompts, when passes are short otherwise?  Seldom, whatever their sizes: people wait for it. */
static bool tries(const struct eng_pace *p, int size, int all)
{
    unsigned ago = p->n_both;
    for (int i = size + 2; i < ENG_PACE_SIZES; i++)
        ago = p->n_both - p->row[i].seen < ago ? p->n_both - p->row[i].seen : ago;
    return ago >= (p->row[all].n_pass ? TRY_ANEW : TRY);
}

void eng_pace_learn(struct eng_pace *p, int n_due, int n_prompt, double pass_ns)
{
    struct eng_cost *row = &p->row[size_of(n_prompt)];
    double base = base_ns(p, n_due);
    if (n_due == 0)
        return;
    if (n_prompt == 0) {
        learn(&p->base[kn_min(n_due, ENG_PACE_DUE - 1)], pass_ns);
        p->looked = p->n_both;
    } else if (base > 0) {
        learn(row, (pass_ns - base) / n_prompt);
        row->seen = ++p->n_both;
    }
}

/* What a row costs in a crowd of so many; of the nearest size that is known from so many passes. */
static double row_ns(const struct eng_pace *p, int n, int n_pass)
{
    int at = size_of(n);
    for (int far = 0; far < ENG_PACE_SIZES; far++) {
        if (at - far >= 0 && p->row[at - far].n_pass >= n_pass)
            return p->row[at - far].ns;
        if (at + far < ENG_PACE_SIZES && p->row[at + far].n_pass >= n_pass)
            return p->row[at + far].ns;
    }
    return 0;
}

/* The most that is short enough.  Each size is tried a few times before the next. */
static int short_rows(const struct eng_pace *p, double room, int most)
{
    int n = LEAST;
    while (2 * n <= most && p->row[size_of(n)].n_pass >= FEW && row_ns(p, 2 * n, FEW) * 2 * n <= room)
        n *= 2;
    double row = row_ns(p, n, FEW);             /* within the size found, as far as the time allows */
    int fits = row > 0 && room / row < most ? (int)(room / row) : n;
    return kn_min(most, kn_max(n, kn_min(fits, 2 * n - 1)));
}

int eng_pace_rows(const struct eng_pace *p, int n_due, int n_read, int most)
{
    if (n_due == 0 || most <= LEAST || p->stretch >= ANY)
        return most;
    if (looks(p, n_due))
        return 0;
    double room = p->stretch * base_ns(p, n_due + kn_min(n_read, MOST_CLAIM * n_due)) - base_ns(p, n_due);
    int n = short_rows(p, room, most), size = size_of(n), all = size_of(most);
    bool more_is_long = p->row[size].n_pass == FEW && row_ns(p, 2 * n, FEW) * 2 * n > room;
    if (!more_is_long || all <= size + 1)
        return n;
    if (tries(p, size, all))
        return most;
    double best = p->row[all].ns;
    if (!p->row[all].n_pass || row_ns(p, n, FEW) * CRAWLS <= best)
        return n;
    while (size < all && (!p->row[size].n_pass || p->row[size].ns * NEARLY > best))
        size++;
    return kn_min(most, (2 << size) - 1);
}
