/* engine/cli/cmd_pull.c - spillway pull ORG/NAME[:QUANT]: downloads a model; its path is the result. */
#include <stdio.h>

#include "engine/cli/cli.h"

int eng_cmd_pull(const struct eng_config *c)
{
    struct eng_hub_model m;
    char bytes[32];
    int error = eng_model_pull(c, c->name, &m);
    if (error)
        return error == KN_ECANCELLED ? 1 : 2;
    eng_size_text(bytes, sizeof bytes, (double)m.bytes);
    kn_say(KN_LOG_INFO, "%s is complete, %s; spillway run %s", m.name, bytes, c->name);
    printf("%s\n", m.path);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
