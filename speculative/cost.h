/* speculative/cost.h - a cost model: the time of a pass over t rows, and of the drafting and sampling around it.
 *
 * MoESD's model of a pass, in nanoseconds instead of ratios:
 *
 *     T(t) = max(disk U(t), fixed + dense phi(t) + load U(t) + wait miss_ns + expert U(t) phi(t K / U(t)))
 *
 *     phi(t)   growth^t - 1 up to the ridge, and its tangent from there: flat, then steep, then linear
 *     K, E     experts that a token uses in a layer, and all experts of a layer
 *     U(t)     distinct experts per layer; N(t) = E (1 - (1 - K/E)^t) under uniform routing, or as measured
 *     miss_ns  bytes outside memory over the rate of their source; wait is the share of miss_ns that the pass
 *              waits: the rest overlaps with other work
 *     disk     disk_ns, below, for passes without measured misses: the pass waits the share `wait` of disk U(t), and
 *              takes at least disk U(t); wait 0: the reads overlap fully with all other work
 *
 * Two terms are added by the caller: kv_ns for each position of context, counted once for each sequence, since all
 * rows of a sequence read the same keys and values; and copy_ns for each expert that a pass copies to a device.
 *
 * A round is a draft of some depth and its verification.  It takes one draft pass for each level of depth, the pass,
 * and the sampling of the verified rows.
 *
 * All functions are pure. */
#ifndef SPECULATIVE_COST_H
#define SPECULATIVE_COST_H

#include <stdbool.h>

struct spec_cost_model {
    double fixed_ns;                 /* bytes that every pass reads, and its overheads */
    double dense_ns;                 /* dense work, times phi(rows) */
    double load_ns;                  /* one expert read from memory, in every layer */
    double wait;                     /* share of miss_ns that a pass waits */
    double disk_ns;                  /* one expert in every layer, times the share on disk */
    double kv_ns;                    /* the keys and values of one position, in all layers */
    double copy_ns;                  /* the copy of one expert to a device, in every layer */
    double expert_ns;                /* work of experts, times U phi(rows per expert) */
    double ridge, growth;            /* of phi: ridge > 0 rows; growth >= 1 (1: rows are free); 0, e: phi(t) = t */
    double choose_ns, choose_row_ns; /* after a pass: sampling and committing */
    double draft_ns, draft_row_ns;   /* a draft pass: fixed, and times phi(sequences) */
    double n_expert, n_used;         /* per layer; 0: dense */
};

double spec_cost_phi(double t, double ridge, double growth);

/* N(t); and the rows per expert, t K / distinct, when t rows use `distinct` experts. */
double spec_cost_distinct(double n_expert, double n_used, double t);
double spec_cost_rows_of_expert(double n_used, double t, double distinct);

/* MoESD's T_thres: the rows from which a pass uses nearly all experts (FULL_SHARE, 95 %) under uniform routing.  Below
 * it each further row loads more experts, above it rows load almost none.  1 without experts. */
double spec_cost_full_rows(double n_expert, double n_used);

/* MoESD's target efficiency: the time of a pass over n_seq rows divided by that over n_seq (1 + depth) rows of the same
 * sequences, each with `context` positions.  1: drafted rows are free. */
double spec_cost_efficiency(const struct spec_cost_model *c, double n_seq, double depth, double context);

/* The time of a pass over t rows, without the sampling after it; of one draft pass; of the sampling of t rows.
 * distinct: U(t); <= 0: N(t). */
double spec_cost_pass_ns(const struct spec_cost_model *c, double t, double distinct, double miss_ns);
double spec_cost_draft_ns(const struct spec_cost_model *c, double n_seq);
double spec_cost_choose_ns(const struct spec_cost_model *c, double t);

/* Tokens of a round in which a drafted token is accepted with probability a: (1 - a^(depth + 1)) / (1 - a). */
double spec_cost_tokens(double accept, int depth);
/* The acceptance rate with spec_cost_tokens(rate, depth) = tokens; 0 if tokens <= 1, INFINITY if tokens > depth + 1. */
double spec_cost_accept(double tokens, int depth);

#endif
