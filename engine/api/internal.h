/* engine/api/internal.h - a body on its way to an ask.  Internal to engine/serve. */
#ifndef ENGINE_SERVE_PARSE_H
#define ENGINE_SERVE_PARSE_H

#include "engine/api/messages.h"

struct eng_parse {
    struct eng_ask *ask;
    const struct eng_api_setup *desk;
    struct eng_fields body;
    struct eng_refusal *why;
    struct eng_talk_tools tools;
};

void eng_parse_no_memory(struct eng_parse *p);

/* params.c: how tokens are chosen, where an answer ends, what is told of it, and for whom. */
void eng_parse_params(struct eng_parse *p, const struct eng_arrival *arrival);

#endif
