/* engine/cli/messages.c - how much is said, and messages that a command holds back: it asks whether a model runs, and says
 * the answer in its own words. */
#include <stdio.h>

#include "engine/cli/cli.h"

static char first_error[1024];

static void keep_first(enum kn_level level, const char *line)
{
    if (level == KN_LOG_ERROR && !first_error[0])
        snprintf(first_error, sizeof first_error, "%s", line);
}

enum kn_level eng_message_level(const struct eng_config *c)
{
    return c->quiet ? KN_LOG_WARN : c->verbose ? KN_LOG_DEBUG : KN_LOG_INFO;
}

void eng_messages_hold(void)
{
    first_error[0] = 0;
    kn_log_set(keep_first, KN_LOG_ERROR);
}

const char *eng_messages_show(const struct eng_config *c)
{
    kn_log_set(eng_log_plain, eng_message_level(c));
    return first_error;
}
