/* engine/plan/host_rate.h - rates of memory reads and multiply-adds of this machine, measured outside the engine's
 * own path. Internal to engine. */
#ifndef ENGINE_MEASURE_H
#define ENGINE_MEASURE_H

#include "kernels/kernels.h"

struct eng_rates {
    double dram_Bps, mac_ps;
};

/* The best of a few passes by all threads over an area of `bytes`; time grows with the area. Memory that will be used
 * repeatedly is best measured at its own size, since caches hold the same share of the area. 0: 512 MiB, more than
 * any cache, about half a second. Before a model is loaded, half of its budget may be used. */
int eng_host_rate_measure(struct eng_rates *out, const struct kn_ops *ops, struct kn_team *team, size_t bytes);

/* The same for one NUMA node: its CPUs, its memory. */
int eng_host_rate_measure_node(struct eng_rates *out, const struct kn_ops *ops, int node);

#endif
