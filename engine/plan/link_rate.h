/* engine/plan/link_rate.h - the rate of copies from the host to a device with memory of its own, and of that memory, measured
 * outside the engine's own path.  Internal to engine. */
#ifndef ENGINE_PLAN_LINK_RATE_H
#define ENGINE_PLAN_LINK_RATE_H

#include "kernels/device.h"

#define ENG_LINK_BYTES ((size_t)16 << 20) /* that a measurement takes, of the host and of the device */

struct eng_link_rate {
    double pinned_Bps, other_Bps; /* from pinned memory of the host, 0: there is none; from other memory */
    const char *refused;          /* the driver's reason to pin no memory; NULL: it pins */
};

/* Measures by the best of a few copies.  team: fills the buffer for memory that is not pinned.  0, or KN_E*, reported. */
int eng_link_rate_measure(struct eng_link_rate *out, const struct kn_device *device, struct kn_team *team);

/* The rate at which the device reads its own memory, by the best of a few copies within it. */
int eng_device_rate_measure(double *Bps, const struct kn_device *device, struct kn_team *team);

#endif
