/* engine/api/messages.h - converts the conversations and tools of three dialects to the variables of a
 * chat template.  Internal to engine/api.
 *
 * Templates expect the form of chat completions: messages with the roles system, user, assistant and
 * tool, each with its text; messages of the assistant also with tool_calls and reasoning_content.  The items of
 * Responses and the blocks of Anthropic's Messages are converted to this form.  Parts that a text model
 * cannot read, such as images, are refused by name.
 *
 * All functions report refusals in body->why. */
#ifndef ENGINE_API_MESSAGES_H
#define ENGINE_API_MESSAGES_H

#include "engine/api/fields.h"
#include "engine/tools/tools.h"

/* The messages as a new reference; NULL when refused. */
json_t *eng_talk_messages(enum eng_api api, const struct eng_fields *body, const struct eng_api_setup *setup);

/* The name of the member of a message in which the template expects reasoning. */
const char *eng_talk_thoughts(const struct eng_api_setup *setup);

/* How the prompt ends. */
struct eng_talk_end {
    bool opens;         /* with the opening of an assistant's turn: the template variable add_generation_prompt */
    const char *member; /* with the text of this member of the last message, which the answer continues; NULL: not so */
    bool in_thoughts;   /* that text is reasoning */
};
void eng_talk_end(struct eng_talk_end *end, enum eng_api api, const struct eng_fields *body, const json_t *messages,
                  const char *thoughts);
/* Sets ask->continues, thinks and in_text for end->member of the last of the messages.  format: NULL if the template has
 * none. */
void eng_talk_continue(struct eng_api_request *ask, const struct eng_talk_end *end, const json_t *messages,
                       const struct eng_tool_format *format);

/* The tools of a request and its tool_choice. */
struct eng_talk_tools {
    json_t *list; /* in the form of chat completions, a new reference; NULL: none */
    enum eng_tool_choice choice;
    const char *name; /* of NAMED: the tool; borrowed from the body */
    bool parallel;
    bool strict; /* at least one tool is strict */
};
void eng_talk_tools(struct eng_talk_tools *out, enum eng_api api, const struct eng_fields *body);

/* The messages for a template that does not express tools (setup->generic_tools or unlisted_tools), with tools->list in a
 * text; a new reference.  The reference to `messages` is released.  NULL when refused. */
json_t *eng_talk_generic(json_t *messages, const struct eng_talk_tools *tools, const struct eng_fields *body,
                         const struct eng_api_setup *setup);

/* Moves the results of tools into the messages with their calls, as a list tool_responses, for templates without the role
 * tool (setup->folds_results).  False: no memory. */
bool eng_talk_fold_results(json_t *messages);

/* Sets the template variables of the request's reasoning effort (or "thinking") and of its chat_template_kwargs. */
void eng_talk_thinking(json_t *variables, enum eng_api api, const struct eng_fields *body);

/* Sets ask->grammar from the tools and the response format, if they constrain the answer. */
void eng_talk_constrain(struct eng_api_request *ask, const struct eng_fields *body, const struct eng_api_setup *setup,
                        const struct eng_talk_tools *tools);

#endif
