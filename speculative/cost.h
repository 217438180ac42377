/* speculative/cost.h - what a pass over t rows takes, and what stands around it.
 *
 * MoESD's account of a pass, in nanoseconds instead of ratios:
 *
 *     T(t) = max(disk U(t), fixed + dense phi(t) + load U(t) + wait miss_ns + expert U(t) phi(t K / U(t)))
 *
 *     phi(t)   growth^t - 1 up to the ridge, and its tangent from there: free, dear, then proportional
 *     U(t)     distinct experts per layer; N(t) = E (1 - (1 - K/E)^t) if chosen evenly, or as measured
 *     miss_ns  bytes not in memory over the rate of what they come from; wait is the share of it that a pass
 *              waits: the rest is hidden behind other work
 *     disk     the same where nothing was measured: all of it hides behind other work, or the other way round
 *
 * and of what stands around it in a round: a draft pass, of which there are as many as drafts are deep, and
 * choosing among the rows that were verified.
 *
 * Numbers in, numbers out. */
#ifndef SPECULATIVE_COST_H
#define SPECULATIVE_COST_H

#include <stdbool.h>

struct spec_cost_model {
    double fixed_ns;                /* what every pass reads, and its overheads */
    double dense_ns;                /* of dense work, times phi(rows) */
    double load_ns;                 /* of one expert that is read from memory, in every layer */
    double wait;                    /* of what reading misses takes */
    double disk_ns;                 /* of one expert, in every layer, as far as it is on disk */
    double expert_ns;               /* of experts' work, times U phi(rows of an expert) */
    double ridge, growth;           /* of phi: rows, > 0; and > 1, or 1: rows cost nothing.  To 0, e: phi(t) = t */
    double choose_ns, choose_row_ns;            /* what follows a pass: sampling, keeping, dropping */
    double draft_ns, draft_row_ns;              /* a draft pass: fixed, times phi(sequences) */
    double n_expert, n_used;        /* per layer; 0: dense */
};

double spec_cost_phi(double t, double ridge, double growth);

/* N(t); rows of one expert when it is U. */
double spec_cost_distinct(double n_expert, double n_used, double t);
double spec_cost_rows_of_expert(double n_used, double t, double distinct);

/* A pass without what follows it.  distinct <= 0: N(t). */
double spec_cost_pass_ns(const struct spec_cost_model *c, double t, double distinct, double miss_ns);
double spec_cost_draft_ns(const struct spec_cost_model *c, double n_seq);
double spec_cost_choose_ns(const struct spec_cost_model *c, double t);

/* Tokens of a round whose drafts are kept with probability `accept` each: (1 - a^(depth + 1)) / (1 - a). */
double spec_cost_tokens(double accept, int depth);
/* The probability with which a round has so many; above 1: none is enough. */
double spec_cost_accept(double tokens, int depth);

#endif
