/* engine/api/final_message.c - how the prompt of a conversation ends: the template opens a new turn of the assistant, or
 * the last message is continued.
 *
 * A continued message is a beginning of the answer that the client wrote.  The prompt ends with its text, so the model
 * goes on in the middle of the turn.  Continued are: a last message of the assistant in chat completions and
 * messages; in responses one whose status says that it is incomplete.  In chat completions add_generation_prompt and
 * continue_final_message decide, if present, with vLLM's meaning. */
#include "engine/api/messages.h"

#include <string.h>

static json_t *last_of(const json_t *list)
{
    size_t n = json_array_size(list);
    return n ? json_array_get(list, n - 1) : NULL;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static bool is_assistant(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "assistant");
}

/* Reads the two members of chat completions.  Without them, a last message of the assistant is continued. */
static bool chat_continues(struct eng_talk_end *end, const struct eng_fields *body, bool usual)
{
    bool opens = false, continues = usual;
    bool says_opens = eng_field_bool(body, "add_generation_prompt", &opens);
    bool says_continues = eng_field_bool(body, "continue_final_message", &continues);
    if (says_opens && !says_continues)
        continues = false;
    else if (says_opens && opens && continues)
        eng_field_refuse(body, "continue_final_message", "and 'add_generation_prompt' cannot both be true");
    end->opens = says_opens ? opens : !continues;
    return continues;
}

/* True if the last item of a Responses request is an incomplete message of the assistant. */
static bool is_incomplete(const struct eng_fields *body)
{
    const json_t *item = last_of(json_object_get(body->object, "input"));
    const char *status = json_string_value(json_object_get(item, "status"));
    return is_assistant(item) && status && (!strcmp(status, "in_progress") || !strcmp(status, "incomplete"));
}

void eng_talk_end(struct eng_talk_end *end, enum eng_api api, const struct eng_fields *body, const json_t *messages,
                  const char *thoughts)
{
    static const char *const names[] = { "prompt", "messages", "input", "messages" };
    const json_t *last = last_of(messages);
    const bool calls = json_array_size(json_object_get(last, "tool_calls")) > 0;
    bool continues = is_assistant(last) && !calls && (api != ENG_API_RESPONSES || is_incomplete(body));
    *end = (struct eng_talk_end){ .opens = !continues };
    if (api == ENG_API_CHAT)
        continues = chat_continues(end, body, continues);
    if (!continues || eng_refused(body->why))
        return;
    const json_t *content = json_object_get(last, "content"), *thought = json_object_get(last, thoughts);
    end->member = !json_string_length(content) && json_string_length(thought) ? thoughts : "content";
    end->in_thoughts = end->member == thoughts;
    const json_t *text = end->in_thoughts ? thought : content;
    size_t n = json_string_length(text);
    if (calls)
        eng_field_refuse(body, "continue_final_message", "is not possible: the last message has tool calls");
    else if (!last)
        eng_field_refuse(body, "continue_final_message", "is not possible: there is no message");
    else if (api == ENG_API_MESSAGES && n && is_space(json_string_value(text)[n - 1]))
        eng_field_refuse(body, names[api], "final assistant content cannot end with trailing whitespace");
}

void eng_talk_continue(struct eng_api_request *ask, const struct eng_talk_end *end, const json_t *messages,
                       const struct eng_tool_format *format)
{
    const json_t *whole = json_object_get(last_of(messages), end->member);
    const char *text = json_string_value(whole);
    size_t n = json_string_length(whole), at = 0;
    ask->continues = true;
    if (format && is_assistant(last_of(messages)))
        ask->thinks = end->in_thoughts || eng_tool_format_text_thinks(format, text, n, &at);
    while (at < n && is_space(text[at]))
        at++;
    ask->in_text = !ask->thinks && at < n;
}
