/* engine/api/internal.h - state of parsing one request body into an eng_api_request.  Internal to
 * engine/api. */
#ifndef ENGINE_API_INTERNAL_H
#define ENGINE_API_INTERNAL_H

#include "engine/api/messages.h"

struct eng_parse {
    struct eng_api_request *ask;
    const struct eng_api_setup *setup;
    struct eng_fields body;
    struct eng_refusal *why;
    struct eng_talk_tools tools;
    struct eng_talk_end end;           /* of a conversation's prompt */
    bool needs_whole;                  /* all tokens of the prompt, also of one that is longer than the context */
    struct eng_checkpoint *checkpoint; /* as in struct eng_arrival */
};

void eng_parse_no_memory(struct eng_parse *p);

/* sampling.c: reads the members about sampling, stops, length, logprobs, stream, user and priority into p->ask. */
void eng_parse_params(struct eng_parse *p, const struct eng_arrival *arrival);

/* token_lists.c: reads the members that become lists of tokens; called by eng_parse_params. */
void eng_parse_token_lists(struct eng_parse *p);

/* drafts.c: reads the members about drafts, which change the time of an answer only. */
void eng_parse_drafts(struct eng_parse *p);

#endif
