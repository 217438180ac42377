/* engine/cli/conversation.c - the messages of spillway run: system message, saved files, the prompt of the template.
 *
 * A saved file is {"messages": [...]}, as in the body of a chat request and in the input of spillway render. */
#include "kernels/json.h"
#include "engine/base/base.h"
#include "engine/cli/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *role_of(const json_t *message) { return json_string_value(json_object_get(message, "role")); }

int eng_conversation_open(struct eng_conversation *c, struct eng_config *config, struct moe_string template)
{
    *c = (struct eng_conversation){ .config = config, .messages = json_array(), .template = template };
    if (!c->messages)
        return kn_fail(KN_ENOMEM, "no memory for messages");
    return config->system ? eng_conversation_set_system(c, config->system) : 0;
}

void eng_conversation_close(struct eng_conversation *c) { json_decref(c->messages); }

/* ---- messages -------------------------------------------------------------------------------- */

static json_t *message(const char *role, const char *text, size_t n)
{
    return json_pack("{s:s, s:o}", "role", role, "content", json_stringn_nocheck(text, n));
}

int eng_conversation_add(struct eng_conversation *c, const char *role, const char *text, size_t n)
{
    json_t *m = message(role, text, n);
    return m && !json_array_append_new(c->messages, m) ? 0 : kn_fail(KN_ENOMEM, "no memory for a message");
}

void eng_conversation_drop_last(struct eng_conversation *c)
{
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

const char *eng_conversation_last_role(const struct eng_conversation *c)
{
    size_t n = json_array_size(c->messages);
    return n ? role_of(json_array_get(c->messages, n - 1)) : "";
}

const char *eng_conversation_system(const struct eng_conversation *c)
{
    const json_t *first = json_array_get(c->messages, 0);
    const char *role = role_of(first);
    return role && !strcmp(role, "system") ? json_string_value(json_object_get(first, "content")) : NULL;
}

int eng_conversation_set_system(struct eng_conversation *c, const char *text)
{
    json_t *m = text[0] ? message("system", text, strlen(text)) : NULL;
    if (text[0] && !m)
        return kn_fail(KN_ENOMEM, "no memory for a message");
    if (eng_conversation_system(c))
        json_array_remove(c->messages, 0);
    return !m || !json_array_insert_new(c->messages, 0, m) ? 0 : kn_fail(KN_ENOMEM, "no memory for a message");
}

void eng_conversation_clear(struct eng_conversation *c)
{
    size_t kept = eng_conversation_system(c) ? 1 : 0;
    while (json_array_size(c->messages) > kept)
        eng_conversation_drop_last(c);
    c->n_retry = 0;
}

bool eng_conversation_forget(struct eng_conversation *c)
{
    size_t first = eng_conversation_system(c) ? 1 : 0, next = first + 1;
    while (next < json_array_size(c->messages) && strcmp(role_of(json_array_get(c->messages, next)), "user") != 0)
        next++;
    if (next >= json_array_size(c->messages))
        return false;
    for (; next > first; next--)
        json_array_remove(c->messages, first);
    return true;
}

/* ---- reasoning ------------------------------------------------------------------------------- */

static bool template_has(const struct eng_conversation *c, const char *name)
{
    return c->template.n && memmem(c->template.data, c->template.n, name, strlen(name));
}

int eng_conversation_set_think(struct eng_conversation *c, const char *value)
{
    static const char *const efforts[] = { "low", "medium", "high" };
    bool has_switch = template_has(c, "enable_thinking") || template_has(c, "thinking");
    bool has_effort = template_has(c, "reasoning_effort");
    bool known = has_switch && (!strcmp(value, "on") || !strcmp(value, "off"));
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        known = known || (has_effort && !strcmp(value, efforts[i]));
    if (!has_switch && !has_effort)
        return kn_fail(KN_EINVAL, "think: the chat template has no switch for reasoning");
    if (!known)
        return kn_fail(KN_EINVAL, "think takes %s, not '%s'",
                       !has_effort  ? "on or off"
                       : has_switch ? "on, off, low, medium or high"
                                    : "low, medium or high",
                       value);
    snprintf(c->think_text, sizeof c->think_text, "%s", value);
    c->think = c->think_text;
    return 0;
}

/* Sets the template's variables: enable_thinking (Qwen, GLM, SmolLM3), thinking (DeepSeek), reasoning_effort. */
static int set_think(json_t *request, const char *think)
{
    bool off = !strcmp(think, "off"), effort = !off && strcmp(think, "on") != 0;
    return json_object_set_new(request, "enable_thinking", json_boolean(!off)) ||
           json_object_set_new(request, "thinking", json_boolean(!off)) ||
           (effort && json_object_set_new(request, "reasoning_effort", json_string(think)));
}

/* ---- the prompt ------------------------------------------------------------------------------ */

int eng_conversation_tokens(const struct eng_conversation *c, const struct eng_chat *chat, struct eng_ids *ids)
{
    struct eng_template_error e = { 0 };
    json_t *request = json_pack("{s:O, s:b}", "messages", c->messages, "add_generation_prompt", 1);
    ids->n = 0;
    if (!request || (c->think && set_think(request, c->think))) {
        json_decref(request);
        return kn_fail(KN_ENOMEM, "no memory for the prompt");
    }
    int error = eng_chat_tokens(chat, request, ids, &e);
    json_decref(request);
    for (char *s = e.text; *s; s++)
        *s = *s == '\n' || *s == '\r' ? ' ' : *s;
    if (error && ids->full)
        return kn_fail(error, ENG_PROMPT_TOO_LONG, ids->most);
    if (error && e.line)
        kn_fail(error, "the chat template, line %d: %s", e.line, e.text);
    else if (error)
        kn_fail(error, "the chat template: %s", e.text);
    return error;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool is_message(const json_t *m) { return role_of(m) && json_is_string(json_object_get(m, "content")); }

/* The messages of a saved file, a new reference; NULL: it is not one, and why[n_why] says why. */
static json_t *read_messages(const char *text, size_t n, char *why, size_t n_why)
{
    json_error_t e;
    json_t *all = kn_json_load(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
    json_t *messages = json_object_get(all, "messages"), *m;
    size_t i;
    snprintf(why, n_why, all ? "has no member messages" : "line %d: %s", e.line, e.text);
    json_array_foreach(messages, i, m)
    {
        const char *role = role_of(m);
        bool late = role && i > 0 && !strcmp(role, "system");
        if (!is_message(m) || late) {
            snprintf(why, n_why, "message %zu: %s", i + 1,
                     late ? "only the first one can be the system's" : "needs a role and a text as content");
            messages = NULL;
            break;
        }
    }
    messages = json_is_array(messages) ? json_incref(messages) : NULL;
    json_decref(all);
    return messages;
}

int eng_conversation_load(struct eng_conversation *c, const char *path)
{
    char why[256], *text;
    size_t n;
    int error = eng_read_file(path, &text, &n);
    json_t *messages = error ? NULL : read_messages(text, n, why, sizeof why);
    kn_free(text);
    if (!error && !messages)
        return kn_fail(KN_EINVAL, "%s: not a saved conversation: %s", path, why);
    if (error)
        return error;
    json_decref(c->messages);
    c->messages = messages;
    c->n_retry = 0;
    return 0;
}

/* True if path names no file, or a saved conversation, which may be replaced. */
static bool may_write(const char *path)
{
    char why[256], *text;
    size_t n;
    if (access(path, F_OK) != 0)
        return true;
    json_t *messages = eng_read_file(path, &text, &n) ? NULL : read_messages(text, n, why, sizeof why);
    bool may = messages != NULL;
    kn_free(text);
    json_decref(messages);
    return may;
}

static int write_whole(const char *path, const char *text)
{
    int error = kn_file_refuse_target(path);
    return error ? error : kn_file_save(path, 0644, text, strlen(text));
}

int eng_conversation_save(const struct eng_conversation *c, const char *path)
{
    json_t *all = json_pack("{s:O}", "messages", c->messages);
    char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
    int error = !text ? kn_fail(KN_ENOMEM, "no memory for the conversation")
                : may_write(path)
                    ? write_whole(path, text)
                    : kn_fail(KN_EINVAL, "%s: exists and is no saved conversation: choose another name", path);
    kn_heap_free(text);
    json_decref(all);
    return error;
}
