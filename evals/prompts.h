/* evals/prompts.h - user messages from a file: a question, a prompt or the first of turns of each line of JSON,
 * formatted by the model's chat template. */
#ifndef EVALS_PROMPTS_H
#define EVALS_PROMPTS_H

#include "engine/base/base.h"
#include "engine/text/chat_prompt.h"
#include "engine/cli/cli.h"

#include <string.h>

enum { MOST_PROMPT = 1000 };

struct prompt {
    char *text;
    uint64_t said;
}; /* said: hash of the undrafted answer; 0: unknown */

static struct prompt prompts[MOST_PROMPT];
static int n_prompt;

static const char *message_of(const json_t *line)
{
    const json_t *m = json_object_get(line, "question");
    if (!m)
        m = json_object_get(line, "prompt");
    if (!m)
        m = json_array_get(json_object_get(line, "turns"), 0);
    return json_string_value(m);
}

static int read_prompts(const char *path)
{
    char *text, *rest;
    size_t n;
    int error = eng_read_file(path, &text, &n);
    if (error)
        return error;
    for (char *line = strtok_r(text, "\n", &rest); line && n_prompt < MOST_PROMPT; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json = json_loads(line, 0, NULL);
        const char *message = message_of(json);
        if (message)
            prompts[n_prompt++].text = strdup(message);
        json_decref(json);
    }
    kn_free(text);
    return n_prompt ? 0 : kn_fail(KN_EINVAL, "%s: no line has a question, a prompt or turns", path);
}

static int render(const struct eng_chat *chat, const char *message, struct eng_ids *ids)
{
    struct eng_template_error why;
    json_t *request = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content", message,
                                "add_generation_prompt", 1);
    ids->n = 0;
    int error = eng_chat_tokens(chat, request, ids, &why);
    json_decref(request);
    return error;
}

#endif
