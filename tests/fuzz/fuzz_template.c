/* The input is a template: it is refused, or rendered, or stopped at a limit. The bytes after a NUL
 * are the variables, as JSON; without them a conversation with every kind of message is rendered. */
#include "engine/text/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be nice\"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": "
    "\"text\", \"text\": \"\\u00e9 <b>\"}]}, {\"role\": \"assistant\", \"content\": null, "
    "\"tool_calls\": [{\"id\": "
    "\"abcdef123\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true, "
    "null]}}}]}, {\"role\": "
    "\"tool\", \"content\": \"21\"}], \"tools\": [{\"type\": \"function\", \"function\": "
    "{\"name\": \"f\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"array\"}}}}}], "
    "\"add_generation_prompt\": true, \"s\": \"Hello World\", \"n\": 7, \"l\": [3, 1, 2]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct eng_template_limits limits = { .memory = 16 << 20, .output = 1 << 20, .steps = 200000 };
    const char *text = (const char *)data, *end = n ? memchr(text, 0, n) : NULL;
    size_t n_text = end ? (size_t)(end - text) : n, n_out;
    struct eng_template *t = NULL;
    struct eng_template_error e;
    char *out;
    json_t *v = end ? json_loadb(end + 1, n - n_text - 1, JSON_ALLOW_NUL, NULL) : NULL;
    if (!json_is_object(v)) {
        json_decref(v);
        v = json_loads(conversation, 0, NULL);
    }
    int code = eng_template_open(&t, text, n_text, &e);
    if (!code && !(code = eng_template_render(t, v, 1700000000, &limits, &out, &n_out, &e))) {
        if (out[n_out] || n_out > limits.output)
            abort();
        kn_free(out);
    }
    if (code && (!e.text[0] || strlen(e.text) >= sizeof e.text))
        abort();
    eng_template_close(t);
    json_decref(v);
    return 0;
}
