/* How much of prompts a pass takes while others wait for their next token.  Numbers in, numbers out.
 *
 * Rows of a prompt make a pass longer, and who is being answered waits for it.  So a pass with both may
 * take `stretch` times what one without prompts takes.  But where rows are cheap only in crowds, as when
 * every chunk drags all experts from a disk, that would make prompts crawl: a few rows cost nearly what
 * many do.  There the pass takes as many as it needs for half the speed that the largest chunk reads at.
 * What rows cost is learnt from the passes themselves, by sizes in powers of two. */
#include "engine/internal.h"

#define LEAST    16                             /* rows: less is nothing beside the weights read for it */
#define MEMORY   0.2                            /* of what is new */
#define HALF     0.5

static int size_of(int n)
{
    int size = 31 - __builtin_clz((unsigned)n | 1);
    return kn_min(size, ENG_PACE_SIZES - 1);
}

void eng_pace_init(struct eng_pace *p, double stretch) { *p = (struct eng_pace){ .stretch = stretch }; }

static void learn(double *known, double x) { *known = *known > 0 ? *known + MEMORY * (x - *known) : x; }

/* What is known of the nearest size. */
static double nearest(const double *known, int size)
{
    for (int far = 0; far < ENG_PACE_SIZES; far++) {
        if (size - far >= 0 && known[size - far] > 0)
            return known[size - far];
        if (size + far < ENG_PACE_SIZES && known[size + far] > 0)
            return known[size + far];
    }
    return 0;
}

void eng_pace_learn(struct eng_pace *p, int n_due, int n_prompt, double pass_ns)
{
    if (n_prompt == 0) {
        learn(&p->base_ns[size_of(n_due)], pass_ns);
        return;
    }
    double base = n_due ? nearest(p->base_ns, size_of(n_due)) : 0;
    double row = (pass_ns - base) / n_prompt;
    learn(&p->row_ns[size_of(n_prompt)], row > 1 ? row : 1);
}

int eng_pace_rows(const struct eng_pace *p, int n_due, int most)
{
    double base = n_due ? nearest(p->base_ns, size_of(n_due)) : 0;
    if (n_due == 0 || most <= LEAST || base <= 0)
        return most;
    double best = nearest(p->row_ns, size_of(most));
    int n = LEAST, next = LEAST;
    while (next <= most) {                      /* the largest size that is short enough, or worth its length */
        double row = nearest(p->row_ns, size_of(next));
        bool is_short = row * next <= (p->stretch - 1) * base;
        bool was_dear = nearest(p->row_ns, size_of(n)) * HALF > best;
        if (next > LEAST && !is_short && !was_dear)
            break;
        n = next;
        next *= 2;
    }
    /* within the size found, as far as the time allows */
    double row = nearest(p->row_ns, size_of(n)), room = row > 0 ? (p->stretch - 1) * base / row : most;
    int fits = room < most ? (int)room : most;
    return kn_min(most, kn_max(n, kn_min(fits, 2 * n - 1)));
}
