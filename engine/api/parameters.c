/* engine/api/parameters.c - the table of parameters: honoured, refused, or without effect.
 *
 * The names are those of openai-python 3.57.0 (chat.completions, completions, responses), anthropic-sdk-python 2.13.0
 * (messages), vLLM's protocol at commit d5dba2d7b0ab and its older guided_* names, and llama-server's README at commit
 * 00dc8057ab28.  tests/engine/api/data has the lists; a name of a list that is missing here fails a test. */
#include "kernels/json.h"
#include "engine/api/parameters.h"

#include <limits.h>
#include <string.h>

#define C    (1u << ENG_API_COMPLETIONS)
#define H    (1u << ENG_API_CHAT)
#define R    (1u << ENG_API_RESPONSES)
#define M    (1u << ENG_API_MESSAGES)
#define TALK (H | R | M)
#define ALL  (C | TALK)

#define HONOURED(apis, name)                                                                                           \
    {                                                                                                                  \
        apis, name, ENG_HONOURED, NULL, NULL                                                                           \
    }
#define NO_EFFECT(apis, name)                                                                                          \
    {                                                                                                                  \
        apis, name, ENG_WITHOUT_EFFECT, NULL, NULL                                                                     \
    }
#define REFUSED(apis, name, neutral, instead)                                                                          \
    {                                                                                                                  \
        apis, name, ENG_REFUSED, neutral, instead                                                                      \
    }

/* clang-format off */
static const struct eng_parameter table[] = {
    /* the prompt */
    HONOURED(C, "prompt"), HONOURED(H | M, "messages"), HONOURED(R, "input"), HONOURED(R, "instructions"),
    HONOURED(M, "system"), HONOURED(ALL, "model"), HONOURED(C, "echo"), HONOURED(C, "add_special_tokens"),
    HONOURED(ALL, "truncate_prompt_tokens"), HONOURED(TALK, "add_generation_prompt"),
    HONOURED(TALK, "continue_final_message"), HONOURED(TALK, "chat_template_kwargs"), HONOURED(H, "reasoning_effort"),
    HONOURED(R, "reasoning"), HONOURED(M, "thinking"),
    REFUSED(R | M, "reasoning_effort", NULL, "is not supported here: use 'reasoning.effort' or 'output_config.effort'"),
    REFUSED(H, "echo", "[false]", "is not supported: the messages are not part of the answer"),
    REFUSED(TALK, "add_special_tokens", "[false]", "is not supported: the chat template writes the special tokens"),
    REFUSED(ALL, "chat_template", NULL, "is set by the server and cannot be part of a request"),
    REFUSED(TALK, "documents", NULL, "is not supported: write the documents into a message"),
    REFUSED(ALL, "mm_processor_kwargs", NULL, "is not supported: the model reads text only"),
    REFUSED(C, "prompt_embeds", NULL, "is not supported: give the prompt as text or tokens"),
    REFUSED(C, "suffix", NULL, "is not supported: a completion only continues the prompt"),
    REFUSED(C, "input_prefix", NULL, "is not supported: a completion only continues the prompt"),
    REFUSED(C, "input_suffix", NULL, "is not supported: a completion only continues the prompt"),
    REFUSED(C, "input_extra", NULL, "is not supported: write the context into the prompt"),
    REFUSED(R, "previous_response_id", NULL,
            "is not supported: nothing is stored, so send the whole conversation in 'input'"),
    REFUSED(R, "conversation", NULL, "is not supported: nothing is stored, so send the whole conversation in 'input'"),
    REFUSED(R, "prompt", NULL, "is not supported: use 'instructions' and 'input'"),
    REFUSED(R, "personality", NULL, "is not supported: write it into 'instructions'"),
    REFUSED(R | M, "context_management", NULL, "is not supported: shorten the conversation before you send it"),
    REFUSED(R, "truncation", "[\"disabled\", \"auto\"]", "is not supported: use 'truncate_prompt_tokens'"),
    REFUSED(M, "container", NULL, "is not supported: no code is run here"),
    REFUSED(M, "mcp_servers", NULL, "is not supported: call them from the client, as 'tools'"),

    /* sampling */
    HONOURED(ALL, "temperature"), HONOURED(ALL, "top_p"), HONOURED(ALL, "top_k"), HONOURED(ALL, "min_p"),
    HONOURED(ALL, "typical_p"), HONOURED(ALL, "top_n_sigma"), HONOURED(ALL, "xtc_probability"),
    HONOURED(ALL, "xtc_threshold"), HONOURED(ALL, "repetition_penalty"), HONOURED(ALL, "repeat_penalty"),
    HONOURED(ALL, "presence_penalty"), HONOURED(ALL, "frequency_penalty"), HONOURED(ALL, "repeat_last_n"),
    HONOURED(ALL, "dry_multiplier"), HONOURED(ALL, "dry_base"), HONOURED(ALL, "dry_allowed_length"),
    HONOURED(ALL, "dry_penalty_last_n"), HONOURED(ALL, "dry_sequence_breakers"), HONOURED(ALL, "samplers"),
    HONOURED(ALL, "seed"), HONOURED(ALL, "logit_bias"), HONOURED(ALL, "bad_words"), HONOURED(ALL, "allowed_token_ids"),
    HONOURED(C | H, "n"),
    REFUSED(R | M, "n", "[1]", "is not supported here: send the request again with another 'seed'"),
    REFUSED(C | H, "n_cmpl", "[1]", "is not supported: use 'n'"),
    REFUSED(ALL, "mirostat", "[0]", "is not supported: use 'top_p', 'min_p' or 'typical_p'"),
    REFUSED(ALL, "dynatemp_range", "[0]", "is not supported: use a fixed 'temperature'"),
    REFUSED(ALL, "adaptive_target", "[-1]", "is not supported: use 'min_p' or 'typical_p'"),
    REFUSED(ALL, "min_keep", "[0, 1]", "is not supported: each step of the sampler keeps at least one token"),
    REFUSED(ALL, "use_beam_search", "[false]", "is not supported: use 'n' for several answers"),
    REFUSED(ALL, "length_penalty", "[1]", "is not supported: it belongs to beam search"),
    REFUSED(ALL, "logits_processors", NULL, "is not supported: use 'logit_bias', 'bad_words' or 'allowed_token_ids'"),
    REFUSED(ALL, "vllm_xargs", NULL, "is not supported: no extension is loaded"),
    REFUSED(ALL, "lora", NULL, "is not supported: merge the adapter into the model's file"),
    NO_EFFECT(ALL, "mirostat_tau"), NO_EFFECT(ALL, "mirostat_eta"), NO_EFFECT(ALL, "dynatemp_exponent"),
    NO_EFFECT(ALL, "adaptive_decay"),

    /* the form of the answer */
    HONOURED(C | H, "response_format"), HONOURED(R, "text"), HONOURED(M, "output_config"),
    HONOURED(TALK, "tools"), HONOURED(TALK, "tool_choice"), HONOURED(H | R, "parallel_tool_calls"),
    HONOURED(C | H, "json_schema"), HONOURED(C | H, "guided_json"), HONOURED(C | H, "guided_regex"),
    HONOURED(C | H, "guided_choice"), HONOURED(C | H, "structured_outputs"),
    REFUSED(ALL, "grammar", NULL, "is not supported: give a schema in 'response_format'"),
    REFUSED(ALL, "guided_grammar", NULL, "is not supported: give a schema in 'response_format'"),
    REFUSED(ALL, "guided_whitespace_pattern", NULL, "is not supported: give a pattern in 'guided_regex'"),
    REFUSED(ALL, "structural_tag", NULL, "is not supported: give a schema in 'response_format'"),
    REFUSED(R | M, "response_format", NULL, "is not supported here: use 'text.format' or 'output_config.format'"),
    REFUSED(R | M, "json_schema", NULL, "is not supported here: use 'text.format' or 'output_config.format'"),
    REFUSED(R | M, "guided_json", NULL, "is not supported here: use 'text.format' or 'output_config.format'"),
    REFUSED(R | M, "guided_regex", NULL, "is not supported here: use /v1/chat/completions"),
    REFUSED(R | M, "guided_choice", NULL, "is not supported here: use /v1/chat/completions"),
    REFUSED(R | M, "structured_outputs", NULL, "is not supported here: use 'text.format' or 'output_config.format'"),
    REFUSED(H, "functions", NULL, "is not supported: use 'tools'"),
    REFUSED(H, "function_call", "[\"none\", \"auto\"]", "is not supported: use 'tool_choice'"),
    REFUSED(H, "audio", NULL, "is not supported: answers are text only"),
    REFUSED(H, "modalities", "[[\"text\"]]", "is not supported: answers are text only"),
    REFUSED(R, "image", NULL, "is not supported: answers are text only"),
    REFUSED(H, "web_search_options", NULL, "is not supported: offer a search as one of 'tools'"),
    REFUSED(H, "verbosity", "[\"medium\"]", "is not supported: write it into a message"),
    REFUSED(H | R, "moderation", NULL, "is not supported: no text is judged here"),
    REFUSED(R, "access_programs", NULL, "is not supported"),
    REFUSED(H, "include_reasoning", "[true]", "is not supported: reasoning is a part of its own in the answer"),
    REFUSED(H, "reasoning_format", "[\"auto\", \"deepseek\"]",
            "is not supported: reasoning is a part of its own in the answer"),
    REFUSED(H, "reasoning_control", "[false]", "is not supported: end the request instead"),
    REFUSED(C | H, "n_indent", "[0]", "is not supported"),
    NO_EFFECT(ALL, "guided_decoding_backend"), NO_EFFECT(R, "max_tool_calls"),

    /* its end */
    HONOURED(C | H | M, "max_tokens"), HONOURED(H, "max_completion_tokens"), HONOURED(R, "max_output_tokens"),
    HONOURED(C | H | R, "n_predict"), HONOURED(C | H | R, "stop"), HONOURED(M, "stop_sequences"),
    HONOURED(ALL, "stop_token_ids"), HONOURED(ALL, "include_stop_str_in_output"), HONOURED(ALL, "ignore_eos"),
    HONOURED(ALL, "min_tokens"), HONOURED(C, "best_of"),
    REFUSED(M, "n_predict", NULL, "is not supported here: use 'max_tokens'"),
    REFUSED(ALL, "t_max_predict_ms", "[0, -1]", "is not supported: use 'max_tokens'"),
    REFUSED(ALL, "max_repetition_pattern_size", "[0]", "is not supported: use 'dry_multiplier'"),
    REFUSED(ALL, "min_repetition_pattern_size", "[0]", "is not supported: use 'dry_multiplier'"),
    REFUSED(ALL, "repetition_min_count", "[0]", "is not supported: use 'dry_multiplier'"),

    /* its contents */
    HONOURED(ALL, "stream"), HONOURED(C | H | R, "stream_options"), HONOURED(C | H, "logprobs"),
    HONOURED(H | R, "top_logprobs"), HONOURED(C | H, "n_probs"), HONOURED(C | H, "prompt_logprobs"),
    HONOURED(R, "include"), HONOURED(C, "skip_special_tokens"),
    REFUSED(TALK, "skip_special_tokens", "[true]", "is not supported here: use /v1/completions"),
    REFUSED(ALL, "return_tokens", "[false]", "is not supported: POST /tokenize gives the tokens of a text"),
    REFUSED(ALL, "return_token_ids", "[false]", "is not supported: POST /tokenize gives the tokens of a text"),
    REFUSED(ALL, "return_tokens_as_token_ids", "[false]", "is not supported: POST /tokenize gives the tokens of a text"),
    REFUSED(ALL, "post_sampling_probs", "[false]", "is not supported: log-probabilities are the model's own"),
    REFUSED(ALL, "response_fields", NULL, "is not supported: the whole answer is sent"),
    REFUSED(R, "background", "[false]", "is not supported: answers are not stored"),
    NO_EFFECT(ALL, "spaces_between_special_tokens"), NO_EFFECT(ALL, "timings_per_token"),
    NO_EFFECT(ALL, "return_progress"), NO_EFFECT(ALL, "sse_ping_interval"), NO_EFFECT(R, "background_options"),

    /* the request's way through the server */
    HONOURED(ALL, "prediction"), HONOURED(ALL, "draft"), HONOURED(ALL, "speculative.n_max"),
    HONOURED(ALL, "speculative.n_min"), HONOURED(ALL, "speculative.p_min"),
    REFUSED(ALL, "speculative.types", "[\"none\"]", "is not supported: name drafters of the server in 'draft'"),
    HONOURED(C | H | R, "user"), HONOURED(C | H | R, "safety_identifier"), HONOURED(M, "metadata"), HONOURED(ALL, "priority"),
    REFUSED(ALL, "cache_salt", NULL, "is not supported: an API key of its own separates a user's cached prompts"),
    REFUSED(ALL, "kv_transfer_params", NULL, "is not supported"),
    NO_EFFECT(M, "user"), NO_EFFECT(H | R, "metadata"), NO_EFFECT(H | R, "store"), NO_EFFECT(TALK, "service_tier"),
    NO_EFFECT(H | R, "prompt_cache_key"), NO_EFFECT(H | R, "prompt_cache_options"),
    NO_EFFECT(H | R, "prompt_cache_retention"), NO_EFFECT(M, "cache_control"),
    NO_EFFECT(M, "diagnostics"), NO_EFFECT(M, "inference_geo"), NO_EFFECT(M, "speed"),
    NO_EFFECT(M, "user_profile_id"), NO_EFFECT(M, "workspace_id"), NO_EFFECT(ALL, "request_id"),
    NO_EFFECT(ALL, "cache_prompt"), NO_EFFECT(ALL, "id_slot"), NO_EFFECT(ALL, "n_keep"),
    NO_EFFECT(ALL, "n_cache_reuse"),
};
/* clang-format on */

enum { N_ENTRY = (int)(sizeof table / sizeof *table) };

const struct eng_parameter *eng_parameter_at(int i) { return i < N_ENTRY ? &table[i] : NULL; }

const struct eng_parameter *eng_parameter_find(enum eng_api api, const char *name)
{
    for (int i = 0; i < N_ENTRY; i++)
        if (table[i].apis >> api & 1 && !strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

static bool is_same(json_t *a, json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

/* True if the value is one of the entry's neutral ones, or empty. */
static bool asks_nothing(const struct eng_parameter *e, json_t *value)
{
    json_t *neutral, *item;
    size_t i;
    bool same = (json_is_string(value) && !json_string_length(value)) ||
                (json_is_array(value) && !json_array_size(value)) ||
                (json_is_object(value) && !json_object_size(value));
    if (same || !e->neutral)
        return same;
    neutral = kn_json_load(e->neutral, strlen(e->neutral), 0, NULL);
    json_array_foreach(neutral, i, item) same = same || is_same(item, value);
    json_decref(neutral);
    return same;
}

void eng_parameters_check(struct eng_parse *p)
{
    const char *name;
    json_t *value;
    json_object_foreach(p->body.object, name, value)
    {
        const struct eng_parameter *e = json_is_null(value) ? NULL : eng_parameter_find(p->ask->api, name);
        if (e && e->kind == ENG_REFUSED && !asks_nothing(e, value))
            eng_field_refuse(&p->body, name, "%s", e->instead);
    }
}
