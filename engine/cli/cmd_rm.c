/* engine/cli/cmd_rm.c - spillway rm ORG/NAME[:QUANT]: removes a model from the hub's cache, after a question. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli/cli.h"

/* Asks on the terminal; anything but yes is no. */
static bool is_confirmed(const char *name, int n_file, const char *bytes)
{
    char line[16] = "";
    fprintf(stderr, "remove %s: %d file%s, frees %s? [y/N] ", name, n_file, n_file == 1 ? "" : "s", bytes);
    fflush(stderr);
    if (!fgets(line, sizeof line, stdin))
        return false;
    line[strcspn(line, "\n")] = 0;
    return !strcasecmp(line, "y") || !strcasecmp(line, "yes");
}

int eng_cmd_rm(const struct eng_config *c)
{
    struct eng_hub_removal *r;
    char bytes[32];
    if (eng_hub_removal_open(&r, &c->hub, c->name))
        return 2;
    int n = eng_hub_removal_count(r), status = 0;
    eng_size_text(bytes, sizeof bytes, (double)eng_hub_removal_bytes(r));
    if (!c->yes && !isatty(STDIN_FILENO)) {
        kn_fail(KN_EINVAL, "rm %s would remove %d file%s and free %s: --yes confirms it", c->name, n, n == 1 ? "" : "s",
                bytes);
        status = 2;
    } else if (!c->yes && !is_confirmed(c->name, n, bytes))
        kn_say(KN_LOG_INFO, "nothing was removed");
    else if (eng_hub_remove(r))
        status = 1;
    else
        kn_say(KN_LOG_INFO, "removed %s, freed %s", c->name, bytes);
    eng_hub_removal_close(r);
    return status;
}
