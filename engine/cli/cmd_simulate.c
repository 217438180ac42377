/* engine/cli/cmd_simulate.c - `spillway simulate WHAT`: simulations of speculation, without a model; CSV on stdout.
 *
 * Each simulation has a line in the table below and a file of its own. */
#include "engine/cli/simulate.h"

#include <string.h>

static const struct {
    const char *name;
    int (*run)(const struct eng_config *config);
} simulations[] = {
    { "dsi", eng_simulate_dsi },
    { "moesd", eng_simulate_moesd },
};

int eng_cmd_simulate(const struct eng_config *config)
{
    for (size_t i = 0; i < sizeof simulations / sizeof *simulations; i++)
        if (!strcmp(config->what, simulations[i].name))
            return simulations[i].run(config) < 0 ? 2 : 0;
    kn_fail(KN_EINVAL, "simulate %s is unknown; use dsi or moesd", config->what);
    return 2;
}
