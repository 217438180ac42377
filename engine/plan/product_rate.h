/* engine/plan/product_rate.h - the speed of matrix products in a model's formats, measured on this machine. */
#ifndef ENGINE_PLAN_PRODUCT_RATE_H
#define ENGINE_PLAN_PRODUCT_RATE_H

#include "engine/plan/plan.h"

/* Measures the formats that the model's matrices have, in matrices of its experts' size.  They lie in an area of the model's
 * size, or `most` bytes if that is less, and at most 128 MiB: a small model stays in the caches in passes, too.  About a
 * tenth of a second for each format; those with a small part of the weights are taken to be as fast as memory. */
int eng_product_rate_measure(struct eng_products *out, const struct moe_shape *shape, const struct kn_device *host,
                             struct kn_team *team, size_t most, double dram_Bps);

#endif
