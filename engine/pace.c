/* How much of prompts a pass takes while others wait for their next token.  Numbers in, numbers out.
 *
 * Rows of a prompt make a pass longer, and who is being answered waits for it.  So a pass with both may
 * take `stretch` times what one without prompts takes; longer where more read than are answered, who then
 * have as good a claim: a crowd that waits for its first tokens leaves a pass half empty.  But where rows are cheap only in crowds, as when
 * every chunk drags all experts from a disk, that would make prompts crawl: a few rows cost nearly what
 * many do.  There the pass takes as many as it needs for half the speed that the largest chunk reads at.
 *
 * What rows cost is learnt from the passes themselves: those that people wait for one by one, a prompt's by
 * sizes in powers of two.  A machine that does
 * other things as well makes passes long for no fault of their rows, and none short: what a pass says is
 * believed readily when it is less than was known, slowly when it is more.  A size that was not tried a few
 * times is not relied on, and is reached from the one below it. */
#include "engine/internal.h"

#define LEAST    4                              /* rows: less is nothing beside the weights read for it */
#define FEW      4                              /* passes */
#define READILY  0.5                            /* how much of what is new is believed */
#define SLOWLY   0.05
#define HALF     0.5
#define MOST_CLAIM 8                            /* who read, for each who is answered */
#define ANY      1e6                            /* a stretch so long that nobody minds any */

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
    if (c->n_pass < FEW)
        c->ns = c->n_pass && c->ns < ns ? c->ns : ns;
    else
        c->ns += ns < c->ns ? READILY * (ns - c->ns) : SLOWLY * ((ns < 2 * c->ns ? ns : 2 * c->ns) - c->ns);
    c->n_pass++;
}

/* What is known of the nearest size, from so many passes at least. */
static double nearest(const struct eng_cost *cost, int n_cost, int at, int n_pass)
{
    for (int far = 0; far < n_cost; far++) {
        if (at - far >= 0 && cost[at - far].n_pass >= n_pass)
            return cost[at - far].ns;
        if (at + far < n_cost && cost[at + far].n_pass >= n_pass)
            return cost[at + far].ns;
    }
    return 0;
}

/* Of passes without prompts; between two that are known on the line through both.  In a crowd that always reads
 * there are none: then it is guessed from passes of which prompts had no more than half the rows. */
static double base_ns(const struct eng_pace *p, int n_due)
{
    int at = kn_min(n_due, ENG_PACE_DUE - 1), below = at, above = at;
    if (!p->base[at].n_pass && p->guess[at].n_pass)
        return p->guess[at].ns;
    while (below > 0 && !p->base[below].n_pass)
        below--;
    while (above < ENG_PACE_DUE && !p->base[above].n_pass)
        above++;
    if (below == 0 || above == ENG_PACE_DUE)
        return nearest(p->base, ENG_PACE_DUE, at, 1);
    double slope = above > below ? (p->base[above].ns - p->base[below].ns) / (above - below) : 0;
    return p->base[below].ns + slope * (at - below);
}

/* Alone a chunk pays for the weights as well, which beside others it does not: that counts until it is known
 * better. */
void eng_pace_learn(struct eng_pace *p, int n_due, int n_prompt, double pass_ns)
{
    int size = size_of(n_prompt);
    int due = kn_min(n_due, ENG_PACE_DUE - 1);
    if (n_prompt && n_prompt <= n_due)          /* between a pass whose rows cost all alike, and one where more cost nothing */
        learn(&p->guess[due], pass_ns * (2 * n_due + n_prompt) / (2.0 * (n_due + n_prompt)));
    double base = base_ns(p, n_due);
    if (n_prompt == 0 || (n_due && base <= 0 && n_prompt > n_due))
        learn(&p->base[due], pass_ns);
    else if (n_due)
        learn(&p->row[size], (pass_ns - base) / n_prompt);
    else
        learn(&p->alone[size], pass_ns / n_prompt);
}

/* What a row beside others costs in a crowd of so many. */
static double row_ns(const struct eng_pace *p, int n)
{
    double ns = nearest(p->row, ENG_PACE_SIZES, size_of(n), FEW);
    return ns > 0 ? ns : nearest(p->alone, ENG_PACE_SIZES, size_of(n), 1);
}

/* The most that has been tried beside others, and as many again. */
static int reach(const struct eng_pace *p)
{
    int size = ENG_PACE_SIZES - 1;
    while (size >= 0 && p->row[size].n_pass < FEW)
        size--;
    return size < 0 ? LEAST : kn_max(LEAST, 2 << size);
}

int eng_pace_rows(const struct eng_pace *p, int n_due, int n_read, int most)
{
    double claim = n_due ? (double)kn_min(n_read, MOST_CLAIM * n_due) / n_due : 0;
    double share = claim > p->stretch - 1 ? claim : p->stretch - 1;
    double room = share * base_ns(p, n_due);
    if (n_due == 0 || most <= LEAST || p->stretch >= ANY)
        return most;
    double alone = nearest(p->alone, ENG_PACE_SIZES, size_of(most), 1), best = alone > 0 ? alone : row_ns(p, most);
    int n = LEAST, end = kn_min(most, reach(p));
    for (int next = 2 * LEAST; next <= end; next *= 2) {    /* what is short enough, or worth its length */
        bool is_short = row_ns(p, next) * next <= room, was_dear = row_ns(p, n) * HALF > best;
        if (!is_short && !was_dear)
            break;
        n = next;
    }
    /* within the size found, as far as the time allows */
    double row = row_ns(p, n);
    int fits = row > 0 && room / row < end ? (int)(room / row) : end;
    return kn_min(end, kn_max(n, kn_min(fits, 2 * n - 1)));
}
