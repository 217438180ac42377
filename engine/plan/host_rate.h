/* engine/plan/host_rate.h - rates of memory reads and multiply-adds of this machine, measured outside the engine's
 * own path. Internal to engine. */
#ifndef ENGINE_PLAN_HOST_RATE_H
#define ENGINE_PLAN_HOST_RATE_H

#include "kernels/kernels.h"

struct eng_rates {
    double dram_Bps, mac_ps; /* bytes read from memory, int8 multiply-adds, per second by all threads */
};

/* Measures by the best of a few passes by all threads over an area of `bytes`, limited to 4 to 512 MiB; time grows with
 * the area. Best is the size of the memory that the engine will read repeatedly, since caches then hold the same share
 * of the area. 0: 512 MiB, more than any cache, about half a second. Before a model is loaded, half of the memory
 * budget is a suitable size. */
int eng_host_rate_measure(struct eng_rates *out, const struct kn_ops *ops, struct kn_team *team, size_t bytes);

/* Memory to measure with, in pages of its own on the team's nodes; freed by kn_unmap().  NULL: there is none, reported. */
uint8_t *eng_rate_area(struct kn_team *team, size_t bytes);

/* Opens a queue to measure products, or with `stages` transfers, of any device. */
struct kn_device;
struct kn_queue;
int eng_rate_queue(struct kn_queue **out, const struct kn_device *device, struct kn_team *team, bool stages);

/* The processor's name as the kernel gives it; empty if it gives none. */
void eng_processor_name(char *out, size_t size);

/* Measures one NUMA node, by its CPUs on its memory, with 512 MiB. */
int eng_host_rate_measure_node(struct eng_rates *out, const struct kn_ops *ops, int node);

#endif
