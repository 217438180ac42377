/* engine/cli/cmd_simulate.c - `spillway simulate WHAT`: what speculation would bring.  No model, CSV on stdout.
 *
 * A simulation is a line of the table below and a file of its own. */
#include "engine/cli/simulate.h"

#include <string.h>

static const struct { const char *name; int (*run)(const struct eng_config *config); } simulations[] = {
    { "dsi", eng_simulate_dsi },
    { "moesd", eng_simulate_moesd },
};

int eng_cmd_simulate(const struct eng_config *config)
{
    for (size_t i = 0; i < sizeof simulations / sizeof *simulations; i++)
        if (!strcmp(config->what, simulations[i].name))
            return simulations[i].run(config) < 0 ? 2 : 0;
    kn_fail(KN_EINVAL, "simulate %s: there is dsi, moesd", config->what);
    return 2;
}
