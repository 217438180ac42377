/* engine/cli/simulate.h - what `spillway simulate WHAT` can simulate.  Internal to engine. */
#ifndef ENGINE_SIMULATE_H
#define ENGINE_SIMULATE_H

#include "engine/cli/cli.h"

int eng_simulate_dsi(const struct eng_config *config);
int eng_simulate_moesd(const struct eng_config *config);

#endif
