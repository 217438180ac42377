/* speculative/cost.h - what a pass over t rows takes, and what speculation gains by it.
 *
 * MoESD's account of a pass, in nanoseconds instead of ratios:
 *
 *     T(t) = max(disk U(t), fixed + dense phi(t) + load U(t) + miss_ns + expert U(t) phi(t K / U(t)))
 *
 *     phi(t)   growth^t - 1 up to the ridge, and its tangent from there: free, dear, then proportional
 *     U(t)     distinct experts per layer; N(t) = E (1 - (1 - K/E)^t) if chosen evenly, or as measured
 *     miss_ns  bytes not in memory over the rate they come at, less what is hidden behind other work
 *     disk     the same where nothing was measured: all of it hides behind other work, or the other way round
 *
 * and of a round: `depth` draft passes, one verification of t = sum of (1 + what is drafted) rows, and
 * choosing.  The paper's printed algorithm counts one draft pass and adds a plain pass to the denominator; its
 * equation 4 does neither, and equation 4 is what stands here.
 *
 * Numbers in, numbers out. */
#ifndef SPECULATIVE_COST_H
#define SPECULATIVE_COST_H

#include <stdbool.h>

struct spec_cost_model {
    double fixed_ns;                /* what every pass reads, and its overheads */
    double dense_ns;                /* of dense work, times phi(rows) */
    double load_ns;                 /* of one expert that is read from memory, in every layer */
    double disk_ns;                 /* of one expert, in every layer, as far as it is on disk */
    double expert_ns;               /* of experts' work, times U phi(rows of an expert) */
    double ridge, growth;           /* of phi: rows, > 0; and > 1, or 1: rows cost nothing.  To 0, e: phi(t) = t */
    double choose_ns, choose_row_ns;            /* what follows a pass: sampling, keeping, dropping */
    double draft_ns, draft_row_ns;              /* a draft pass: fixed, times phi(sequences) */
    double n_expert, n_used;        /* per layer; 0: dense */
};

double spec_cost_phi(double t, double ridge, double growth);

/* N(t); the rows from which it is at least `share` of all; rows of one expert when it is U. */
double spec_cost_distinct(double n_expert, double n_used, double t);
int    spec_cost_threshold(double n_expert, double n_used, double share);
double spec_cost_rows_of_expert(double n_used, double t, double distinct);

/* A pass without what follows it.  distinct <= 0: N(t). */
double spec_cost_pass_ns(const struct spec_cost_model *c, double t, double distinct, double miss_ns);
double spec_cost_miss_ns(double missed_bytes, double Bps, double hidden_ns);
double spec_cost_draft_ns(const struct spec_cost_model *c, double n_seq);
double spec_cost_choose_ns(const struct spec_cost_model *c, double t);

/* Tokens of a round whose drafts are kept with probability `accept` each: (1 - a^(depth + 1)) / (1 - a). */
double spec_cost_tokens(double accept, int depth);

struct spec_round {                 /* what speculation with n_seq sequences comes to */
    double rows, tokens;            /* verified, and won, by all sequences together */
    double off_ns, draft_ns, pass_ns, choose_ns;
    double efficiency;              /* off_ns / pass_ns: the paper's target efficiency */
    double speedup;
};
void spec_cost_round(struct spec_round *out, const struct spec_cost_model *c, int n_seq, int depth, double accept);

#endif
