/* engine/api/messages.h - conversations and tools of three dialects as a chat template wants them.
 * Internal to engine/serve.
 *
 * A template knows one form, that of chat completions: messages of system, user, assistant and
 * tool, each with its text, the assistant's with tool_calls and reasoning_content too.  Responses'
 * items and Anthropic's blocks become the same; what a text model cannot read is refused by name.
 */
#ifndef ENGINE_SERVE_TALK_H
#define ENGINE_SERVE_TALK_H

#include "engine/api/fields.h"
#include "engine/tools/tools.h"

/* The messages, a new reference; NULL when refused. */
json_t *eng_talk_messages(enum eng_api api, const struct eng_fields *body,
                          const struct eng_api_setup *desk);

/* What may be called, and whether it has to be. */
struct eng_talk_tools {
    json_t *list; /* a new reference; NULL: none */
    enum eng_tool_choice choice;
    const char *name; /* NAMED: which; the body's */
    bool parallel;
    bool strict; /* one of them says so */
};
void eng_talk_tools(struct eng_talk_tools *out, enum eng_api api, const struct eng_fields *body);

/* What may be said about thinking becomes variables of the template. */
void eng_talk_thinking(json_t *variables, enum eng_api api, const struct eng_fields *body);

/* The ask's grammar, of what tools and response format want. */
void eng_talk_constrain(struct eng_ask *ask, const struct eng_fields *body,
                        const struct eng_api_setup *desk, const struct eng_talk_tools *tools);

#endif
