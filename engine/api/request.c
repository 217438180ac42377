/* engine/api/request.c - parses a body into an eng_api_request (the JSON, then the prompts or the conversation), and
 * makes the engine request of each choice from it.  ollama.c rewrites bodies of Ollama's API first; sampling.c and
 * token_lists.c read the parameters, drafts.c the members about drafts, parameters.c refuses those that cannot be
 * honoured, messages.c reads the messages, tool_choice.c the tools, and answer_format.c makes the grammar. */
#include "engine/api/ollama.h"
#include "engine/api/parameters.h"
#include "kernels/json.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- the body -------------------------------------------------------------------------------- */

size_t eng_api_request_depth(const char *text, size_t n)
{
    size_t depth = 0, most = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '[' || c == '{'))
            depth++;
        else if (!in_string && (c == ']' || c == '}'))
            depth -= depth > 0;
        most = depth > most ? depth : most;
    }
    return most;
}

static void refuse_depth(struct eng_refusal *why)
{
    eng_refuse(why, 400, NULL, NULL, "the body's JSON is nested deeper than %d levels", ENG_API_MAX_DEPTH);
}

/* The body as a JSON object, a new reference; NULL when refused. */
static json_t *load(const char *body, size_t n, struct eng_refusal *why)
{
    json_error_t e;
    *why = (struct eng_refusal){ 0 };
    if (eng_api_request_depth(body, n) > ENG_API_MAX_DEPTH) {
        refuse_depth(why);
        return NULL;
    }
    json_t *root = kn_json_load(body, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!root && json_error_code(&e) == json_error_out_of_memory)
        eng_refuse(why, 500, NULL, NULL, "no memory for the request");
    else if (!root)
        eng_refuse(why, 400, NULL, NULL, "the body is not JSON: line %d, column %d: %s", e.line, e.column, e.text);
    else if (!json_is_object(root))
        eng_refuse(why, 400, NULL, NULL, "the body must be an object, {...}");
    if (eng_refused(why)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static bool is_deeper(json_t *value, int n_level)
{
    const char *name;
    json_t *item;
    size_t i;
    if (n_level == 0)
        return json_is_object(value) || json_is_array(value);
    json_object_foreach(value, name, item) if (is_deeper(item, n_level - 1)) return true;
    json_array_foreach(value, i, item) if (is_deeper(item, n_level - 1)) return true;
    return false;
}

/* Refuses a supported parameter if its value, or its use beside another parameter, is not supported. */
static void check_use(struct eng_parse *p)
{
    int64_t n = 0;
    if (p->ask->api == ENG_API_COMPLETIONS && eng_field_int(&p->body, "best_of", 1, INT32_MAX, &n) &&
        n != p->ask->n_each)
        eng_field_refuse(&p->body, "best_of", "is not supported: all 'n' answers are returned");
}

static void read_model(struct eng_parse *p)
{
    const char *model = json_string_value(eng_field_string(&p->body, "model"));
    const char *known = eng_api_model_find(p->setup, model, eng_api_is_ollama(p->ask->form));
    p->ask->model = known ? known : p->setup->n_model ? p->setup->model[0] : "model";
    if (model && !known && !p->setup->any_model)
        eng_refuse(p->why, 404, "model_not_found", "model",
                   "the model '%.200s' does not exist; this server has '%.200s'", model, p->ask->model);
}

/* ---- length of prompts ----------------------------------------------------------------------- */

/* Tokenizing stops at this many times the context: a prompt is known to be too long then, and a shorter one gets its exact
 * length in the refusal. */
#define COUNTED_CONTEXTS 2

/* Limits the tokens of a prompt that must fit in the context, so that one that is too long costs neither time nor
 * memory. */
static void limit_prompt(const struct eng_parse *p, struct eng_ids *ids)
{
    ids->checkpoint = p->checkpoint;
    ids->most = p->needs_whole ? 0 : (size_t)p->setup->n_ctx * COUNTED_CONTEXTS;
}

/* The member that holds the prompt. */
static const char *input_name(const struct eng_parse *p)
{
    static const char *const names[] = { "prompt", "messages", "input", "messages" };
    return names[p->ask->api];
}

/* Refuses a prompt of n tokens, or of more. */
static void refuse_length(struct eng_parse *p, size_t n, bool more)
{
    eng_refuse(p->why, 400, "context_length_exceeded", input_name(p),
               "the model's maximum context length is %d tokens, and the prompt has %s%zu: shorten it", p->setup->n_ctx,
               more ? "more than " : "", n);
}

/* ---- completions' prompts -------------------------------------------------------------------- */

static void add_text_prompt(struct eng_parse *p, const json_t *text)
{
    struct eng_ids *ids = &p->ask->prompt[p->ask->n_prompt++];
    bool special = true;
    eng_field_bool(&p->body, "add_special_tokens", &special);
    limit_prompt(p, ids);
    int error = eng_tokenize(p->setup->vocab, json_string_value(text), json_string_length(text),
                             ENG_TEXT_PARSE_SPECIAL | (special ? ENG_TEXT_ADD_BOS : 0), ids);
    if (!error && !ids->n && eng_vocab_bos(p->setup->vocab) != ENG_NO_TOKEN)
        error = eng_ids_push(ids, eng_vocab_bos(p->setup->vocab));
    if (error && ids->full)
        refuse_length(p, ids->most, true);
    else if (error && !eng_refused(p->why))
        eng_refuse(p->why, error == KN_ENOMEM ? 500 : 400, NULL, "prompt",
                   error == KN_ENOMEM ? "no memory for the prompt"
                                      : "the prompt cannot be tokenized with the model's vocabulary");
}

static void add_token_prompt(struct eng_parse *p, const json_t *list)
{
    struct eng_ids *ids = &p->ask->prompt[p->ask->n_prompt++];
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= eng_vocab_size(p->setup->vocab)) {
            eng_field_refuse(&p->body, "prompt", "must contain token ids from 0 to %d",
                             eng_vocab_size(p->setup->vocab) - 1);
            return;
        }
        if (eng_ids_push(ids, (int32_t)id)) {
            eng_parse_no_memory(p);
            return;
        }
    }
}

static void read_prompts(struct eng_parse *p)
{
    json_t *value = eng_field(&p->body, "prompt"), *first = json_array_get(value, 0), *item;
    size_t n = json_is_array(first) || json_is_string(first) ? json_array_size(value) : 1, i;
    if (!value)
        eng_field_refuse(&p->body, "prompt", "is missing");
    else if (!json_is_string(value) && !json_is_array(value))
        eng_field_refuse(&p->body, "prompt", "must be a string, or a list of strings or tokens");
    else if (n > ENG_API_MAX_CHOICES)
        eng_field_refuse(&p->body, "prompt", "has %zu prompts; the limit is %d", n, ENG_API_MAX_CHOICES);
    else if (!(p->ask->prompt = kn_calloc(n, sizeof *p->ask->prompt)))
        eng_parse_no_memory(p);
    if (eng_refused(p->why))
        return;
    if (json_is_string(value))
        add_text_prompt(p, value);
    else if (!json_is_array(first) && !json_is_string(first))
        add_token_prompt(p, value);
    else
        json_array_foreach(value, i, item)
        {
            if (json_is_string(item) && json_is_string(first))
                add_text_prompt(p, item);
            else if (json_is_array(item) && json_is_array(first))
                add_token_prompt(p, item);
            else
                eng_field_refuse(&p->body, "prompt", "must contain strings only, or token ids only");
            if (eng_refused(p->why))
                return;
        }
}

/* ---- conversations --------------------------------------------------------------------------- */

/* The variables of the template; a new reference, NULL when refused. */
static json_t *read_talk(struct eng_parse *p)
{
    json_t *messages = eng_talk_messages(p->ask->api, &p->body, p->setup);
    eng_talk_end(&p->end, p->ask->api, &p->body, messages, eng_talk_thoughts(p->setup));
    eng_talk_tools(&p->tools, p->ask->api, &p->body);
    if (p->tools.choice == ENG_TOOL_NONE) { /* the template gets no tools */
        json_decref(p->tools.list);
        p->tools.list = NULL;
    }
    bool by_text = p->setup->generic_tools || p->setup->unlisted_tools;
    if (messages && by_text)
        messages = eng_talk_generic(messages, &p->tools, &p->body, p->setup);
    if (messages && p->setup->folds_results && !eng_talk_fold_results(messages))
        eng_parse_no_memory(p);
    json_t *variables = json_pack("{s:o, s:b, s:s?}", "messages", messages, "add_generation_prompt", p->end.opens,
                                  "continue_final_message", p->end.member);
    if (p->tools.list && !by_text && (!variables || json_object_set(variables, "tools", p->tools.list)))
        eng_parse_no_memory(p);
    eng_talk_thinking(variables, p->ask->api, &p->body);
    if (!variables)
        eng_parse_no_memory(p);
    if (!p->setup->chat && !eng_refused(p->why))
        eng_refuse(p->why, 400, "no_chat_template", "messages",
                   "the model has no chat template: "
                   "use /v1/completions");
    if (!eng_refused(p->why))
        return variables;
    json_decref(variables);
    return NULL;
}

static void refuse_template(struct eng_parse *p, int error, const struct eng_template_error *e)
{
    if (error == KN_ENOMEM)
        eng_parse_no_memory(p);
    else
        eng_refuse(p->why, 400, NULL, "messages", "the model's chat template failed: %s", e->text);
}

static void read_end(struct eng_parse *p, const json_t *messages)
{
    if (p->end.member)
        eng_talk_continue(p->ask, &p->end, messages, p->setup->tool_format);
    else if (p->setup->tool_format)
        p->ask->thinks = eng_tool_format_tokens_think(p->setup->tool_format, p->setup->vocab, p->ask->prompt);
}

static void read_conversation(struct eng_parse *p)
{
    struct eng_template_error e;
    json_t *variables = read_talk(p);
    if (!variables)
        return;
    if (!(p->ask->prompt = kn_calloc(1, sizeof *p->ask->prompt))) {
        eng_parse_no_memory(p);
    } else {
        p->ask->n_prompt = 1;
        limit_prompt(p, p->ask->prompt);
        int error = eng_chat_tokens(p->setup->chat, variables, p->ask->prompt, &e);
        if (error && p->ask->prompt->full)
            refuse_length(p, p->ask->prompt->most, true);
        else if (error)
            refuse_template(p, error, &e);
        else
            read_end(p, json_object_get(variables, "messages"));
    }
    json_decref(variables);
    if (eng_refused(p->why))
        return;
    p->ask->tools = json_incref(p->tools.list);
}

/* ---- the whole request ----------------------------------------------------------------------- */

static void check_choices(struct eng_parse *p)
{
    int most = p->setup->n_choice ? p->setup->n_choice : ENG_API_MAX_CHOICES;
    if (eng_api_request_choices(p->ask) > most)
        eng_field_refuse(&p->body, "n", "times the number of prompts is %d; the limit is %d",
                         eng_api_request_choices(p->ask), most);
}

/* Keeps the last tokens of each prompt: so many, or for -1 as many as leave room for the answer. */
static void truncate_prompts(struct eng_parse *p)
{
    int64_t n = 0;
    if (!eng_field_int(&p->body, "truncate_prompt_tokens", -1, INT32_MAX, &n))
        return;
    if (n == 0)
        eng_field_refuse(&p->body, "truncate_prompt_tokens", "must be -1, or at least 1");
    if (n < 0)
        n = kn_max(1, p->setup->n_ctx - kn_max(1, p->ask->n_predict));
    for (int i = 0; i < p->ask->n_prompt; i++) {
        struct eng_ids *ids = &p->ask->prompt[i];
        if (ids->n <= (size_t)n)
            continue;
        memmove(ids->id, ids->id + (ids->n - (size_t)n), (size_t)n * sizeof *ids->id);
        ids->n = (size_t)n;
    }
}

static void check_context(struct eng_parse *p)
{
    for (int i = 0; i < p->ask->n_prompt && !eng_refused(p->why); i++) {
        if (!p->ask->prompt[i].n)
            eng_field_refuse(&p->body, input_name(p), "is empty");
        else if (p->ask->prompt[i].n >= (size_t)p->setup->n_ctx)
            refuse_length(p, p->ask->prompt[i].n, false);
    }
}

static void parse(struct eng_parse *p, const struct eng_arrival *arrival)
{
    p->checkpoint = arrival->checkpoint;
    bool is_empty = eng_api_is_ollama(p->ask->form) && !eng_ollama_rewrite(p);
    p->needs_whole = arrival->count || eng_field(&p->body, "truncate_prompt_tokens");
    read_model(p);
    if (is_empty)
        return;
    eng_parse_params(p, arrival);
    eng_parameters_check(p);
    check_use(p);
    if (eng_refused(p->why))
        return;
    if (p->ask->api == ENG_API_COMPLETIONS)
        read_prompts(p);
    else
        read_conversation(p);
    truncate_prompts(p);
    if (eng_refused(p->why))
        return;
    check_choices(p);
    if (arrival->count)
        return;
    check_context(p);
    eng_parse_drafts(p);
    eng_talk_constrain(p->ask, &p->body, p->setup, &p->tools);
    if (p->ask->grammar && p->ask->min_tokens > 0) /* at its end, a grammar allows only the tokens that end an answer */
        eng_field_refuse(&p->body, "min_tokens", "is not supported with a schema or tools that constrain the answer");
}

/* A new ask without any parameters read; it owns the reference to body, which is released on failure, too.  NULL if
 * there is no memory, or if body is NULL because it was refused. */
static struct eng_api_request *new_ask(enum eng_api api, json_t *body, struct eng_refusal *why)
{
    struct eng_api_request *ask = body ? kn_calloc(1, sizeof *ask) : NULL;
    if (ask) {
        ask->api = api < ENG_API_LLAMA ? api : ENG_API_COMPLETIONS;
        ask->form = api;
        ask->body = body;
        ask->stop = kn_calloc(ENG_API_MAX_STOPS, sizeof *ask->stop);
    } else {
        json_decref(body);
    }
    if (ask && ask->stop)
        return ask;
    if (!eng_refused(why))
        eng_refuse(why, 500, NULL, NULL, "no memory for the request");
    eng_api_request_close(ask);
    return NULL;
}

static int refused(const struct eng_refusal *why) { return why->status < 500 ? KN_EINVAL : KN_ENOMEM; }

static int parse_body(struct eng_api_request **out, enum eng_api api, json_t *body, const struct eng_api_setup *setup,
                      const struct eng_arrival *arrival, struct eng_refusal *why)
{
    static const char *const prefix[] = { "cmpl-", "chatcmpl-", "resp_", "msg_", "cmpl-", "chatcmpl-", "cmpl-" };
    kn_assert(!setup->chat || setup->tool_format); /* eng_api_setup_from_template was called */
    struct eng_api_request *ask = new_ask(api, body, why);
    if (!ask)
        return refused(why);
    struct eng_parse p = { .ask = ask, .setup = setup, .why = why, .body = { .object = ask->body, .why = why } };
    snprintf(ask->id, sizeof ask->id, "%s%.*s", prefix[api], ENG_ID_BYTES - 16, arrival->id);
    ask->created_s = arrival->created_s;
    parse(&p, arrival);
    json_decref(p.tools.list);
    if (!eng_refused(why)) {
        *out = ask;
        return 0;
    }
    eng_api_request_close(ask);
    return refused(why);
}

int eng_api_request_parse(struct eng_api_request **out, enum eng_api api, const char *body, size_t n,
                          const struct eng_api_setup *setup, const struct eng_arrival *arrival, struct eng_refusal *why)
{
    return parse_body(out, api, load(body, n, why), setup, arrival, why);
}

int eng_api_request_parse_json(struct eng_api_request **out, enum eng_api api, json_t *body,
                               const struct eng_api_setup *setup, const struct eng_arrival *arrival,
                               struct eng_refusal *why)
{
    kn_assert(json_is_object(body));
    *why = (struct eng_refusal){ 0 };
    bool deep = is_deeper(body, ENG_API_MAX_DEPTH);
    if (deep)
        refuse_depth(why);
    return parse_body(out, api, deep ? NULL : json_incref(body), setup, arrival, why);
}

void eng_api_request_close(struct eng_api_request *ask)
{
    if (!ask)
        return;
    for (int i = 0; i < ask->n_prompt; i++)
        eng_ids_free(&ask->prompt[i]);
    kn_free(ask->prompt);
    eng_ids_free(&ask->prediction);
    eng_token_lists_free(&ask->lists);
    kn_free(ask->stop);
    gr_close(ask->grammar);
    json_decref(ask->tools);
    json_decref(ask->body);
    kn_free(ask);
}

void eng_api_request_of_choice(const struct eng_api_request *ask, int choice, struct eng_request *out)
{
    const struct eng_ids *prompt = &ask->prompt[choice / ask->n_each];
    *out = (struct eng_request){ .token = prompt->id,
                                 .n_token = (int)prompt->n,
                                 .n_predict = ask->n_predict,
                                 .ignore_eos = ask->ignore_eos,
                                 .sampling = ask->sampling,
                                 .grammar = ask->grammar,
                                 .reference = ask->prediction.id,
                                 .n_reference = (int)ask->prediction.n,
                                 .drafts = ask->drafts,
                                 .n_top = ask->n_top,
                                 .wants_prompt_logprobs = ask->wants_prompt_logprobs,
                                 .n_prompt_top = kn_max(ask->prompt_logprobs, ask->echo ? ask->n_top : 0),
                                 .priority = ask->priority,
                                 .user = ask->user,
                                 .choice = choice };
    out->sampling.late_from = (int64_t)prompt->n + ask->min_tokens;
    out->sampling.choice = (uint32_t)choice; /* across all prompts: equal prompts get different noise */
}

int eng_api_request_render(enum eng_api api, const char *body, size_t n, const struct eng_api_setup *setup, char **text,
                           size_t *n_text, struct eng_refusal *why)
{
    struct eng_template_error e;
    struct eng_api_request *ask = new_ask(api, load(body, n, why), why);
    if (!ask)
        return refused(why);
    struct eng_parse p = { .ask = ask, .setup = setup, .why = why, .body = { .object = ask->body, .why = why } };
    json_t *variables = read_talk(&p);
    int error = variables ? eng_chat_render(setup->chat, variables, text, n_text, &e) : 0;
    if (error)
        refuse_template(&p, error, &e);
    json_decref(variables);
    json_decref(p.tools.list);
    eng_api_request_close(ask);
    return eng_refused(why) ? refused(why) : 0;
}
