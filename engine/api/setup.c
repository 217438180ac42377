/* engine/api/setup.c - the setup of a model for the API: name, fingerprint, chat template, and the format of its
 * tool calls. */
#include <string.h>

#include "engine/api/model_sampling.h"
#include "engine/api/request.h"

void eng_api_model_name(char *out, size_t bytes, const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, bytes, "%s", slash ? slash + 1 : path);
    size_t n = strlen(out);
    if (n > 5 && !strcmp(out + n - 5, ".gguf"))
        out[n - 5] = 0;
}

const char *eng_api_model_find(const struct eng_api_setup *setup, const char *name, bool tagged)
{
    static const char tag[] = ":latest";
    size_t n = name ? strlen(name) : 0, n_tag = sizeof tag - 1;
    for (int i = 0; i < setup->n_model && name; i++)
        if (!strcmp(name, setup->model[i]))
            return setup->model[i];
    if (!tagged || n <= n_tag || strcmp(name + n - n_tag, tag) != 0)
        return NULL;
    for (int i = 0; i < setup->n_model; i++)
        if (strlen(setup->model[i]) == n - n_tag && !memcmp(name, setup->model[i], n - n_tag))
            return setup->model[i];
    return NULL;
}

/* A hash of the template that replaces the model's own; 0: none does. */
static uint64_t template_id(const struct eng_chat *chat, const char *path)
{
    struct moe_string text = path && chat ? eng_chat_text(chat) : (struct moe_string){ 0 };
    return eng_hash(0, text.data, text.n);
}

int eng_api_model_open(struct eng_api_model *m, struct eng_api_setup *setup, const struct eng_engine *e,
                       const char *path, const char *template)
{
    const struct eng_vocab *v = eng_vocab(e);
    int error = template ? eng_chat_open_template(&m->chat, v, template)
                         : eng_chat_open(&m->chat, eng_file(e), v, path);
    setup->vocab = v;
    setup->chat = m->chat;
    setup->gr_tokens = eng_grammar_tokens(e);
    setup->fingerprint = eng_fingerprint(e, template_id(m->chat, template), m->fingerprint) ? NULL : m->fingerprint;
    setup->n_ctx = eng_n_ctx(e);
    setup->n_drafter = eng_drafter_names(e, setup->drafter);
    eng_model_sampling(&setup->sampling, setup->sampling_given, eng_file(e));
    eng_api_setup_from_template(setup, &m->format);
    return error;
}

void eng_api_model_close(struct eng_api_model *m) { eng_chat_close(m->chat); }

/* ---- the chat template ----------------------------------------------------------------------- */

/* Renders the variables (reference stolen); true if the text contains `part`. */
static bool renders(const struct eng_api_setup *setup, json_t *variables, const char *part)
{
    struct eng_template_error e;
    char *text = NULL;
    size_t n;
    bool has = variables && !eng_chat_render(setup->chat, variables, &text, &n, &e) &&
               memmem(text, n, part, strlen(part));
    json_decref(variables);
    kn_free(text);
    return has;
}

static bool lists_tools(const struct eng_api_setup *setup)
{
    static const char name[] = "probe_k7";
    const char *const lead[] = { "user", "system" };
    for (int i = 0; i < 2; i++)
        if (renders(setup,
                    json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}}}}], s:b}",
                              "messages", "role", lead[i], "content", "a", "role", i ? "user" : "assistant", "content",
                              "b", "tools", "type", "function", "function", "name", name, "description", "d",
                              "parameters", "type", "object", "properties", "x", "type", "string", "description", "e",
                              "add_generation_prompt", 1),
                    name))
            return true;
    return false;
}

static bool has_system(const struct eng_api_setup *setup)
{
    static const char text[] = "probe k7";
    return renders(setup,
                   json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b}", "messages", "role", "system", "content", text, "role",
                             "user", "content", "b", "add_generation_prompt", 1),
                   text);
}

/* True if the template of this format renders a message of the role tool as the result of a call. */
static bool has_results(const struct eng_api_setup *setup)
{
    return renders(setup,
                   json_pack("{s:[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{s:s}}}]}, {s:s, s:s, s:s, s:s}]}",
                             "messages", "role", "user", "content", "a", "role", "assistant", "content", "",
                             "tool_calls", "id", "abcdefghi", "type", "function", "function", "name", "f", "arguments",
                             "x", "y", "role", "tool", "tool_call_id", "abcdefghi", "name", "f", "content", "b"),
                   "<|tool_response>response:f{");
}

/* Renders a conversation with one tool call, with the arguments `given` (reference stolen).  The caller frees the text
 * with kn_free.  NULL: the template fails. */
static char *render_call(const struct eng_api_setup *setup, json_t *given)
{
    struct eng_template_error e;
    char *text = NULL;
    size_t n;
    json_t *variables = json_pack("{s:[{s:s, s:s}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}], s:b}", "messages", "role",
                                  "user", "content", "a", "role", "assistant", "content", "", "tool_calls", "id",
                                  "abcdefghi", "type", "function", "function", "name", "f", "arguments", given,
                                  "add_generation_prompt", 0);
    if (variables && eng_chat_render(setup->chat, variables, &text, &n, &e))
        text = NULL;
    json_decref(variables);
    return text;
}

void eng_api_setup_from_template(struct eng_api_setup *setup, struct eng_tool_format *format)
{
    setup->text_arguments = setup->generic_tools = setup->unlisted_tools = setup->no_system = false;
    setup->folds_results = false;
    setup->tool_format = NULL;
    if (!setup->chat)
        return;
    struct moe_string template = eng_chat_text(setup->chat);
    eng_tool_format_find(format, template.data, template.n, setup->vocab);
    setup->tool_format = format;
    setup->no_system = !has_system(setup);
    setup->generic_tools = format->syntax == ENG_SYNTAX_NONE;
    setup->unlisted_tools = !setup->generic_tools && !lists_tools(setup);
    setup->folds_results = format->syntax == ENG_SYNTAX_MARKED && !has_results(setup);
    if (setup->generic_tools)
        eng_tool_format_generic(format);
    char *object = render_call(setup, json_pack("{s:s}", "k7", "v7"));
    char *text = render_call(setup, json_string("{\"k7\": \"v7\"}"));
    if (text && (!object || strstr(object, "'k7'"))) /* the template refuses an object, or prints it as Python does */
        setup->text_arguments = true;
    kn_free(object);
    kn_free(text);
}
