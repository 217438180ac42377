/* engine/cli/simulate.h - the simulations of `spillway simulate WHAT`.  Internal to engine.
 *
 * Each prints CSV on stdout, and returns 0 or KN_E*. */
#ifndef ENGINE_CLI_SIMULATE_H
#define ENGINE_CLI_SIMULATE_H

#include "engine/cli/cli.h"

int eng_simulate_dsi(const struct eng_config *config);
int eng_simulate_moesd(const struct eng_config *config);

#endif
