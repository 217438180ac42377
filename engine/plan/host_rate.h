/* engine/plan/host_rate.h - rates of this machine, measured outside the engine's own path.  Internal. */
#ifndef ENGINE_MEASURE_H
#define ENGINE_MEASURE_H

#include "kernels/kernels.h"

struct eng_rates { double dram_Bps, mac_ps; };

/* Best of a few passes over so many bytes, by all threads; the longer the more there are.  What will be used over
 * and over is best measured at its own size: what caches hold of it they hold of the area.  0: 512 MiB, more
 * than any cache; about half a second.  Before a model is there, half of its budget is not too much. */
int eng_host_rate_measure(struct eng_rates *out, const struct kn_ops *ops, struct kn_team *team, size_t bytes);

/* The same for one of the machine's nodes: its processors, its memory. */
int eng_host_rate_measure_node(struct eng_rates *out, const struct kn_ops *ops, int node);

#endif
