/* The table of parameters (engine/api/parameters.c): it has all names that clients may send, by the lists in data/.  For
 * each honoured name a value that must change the answer does; for each refused name a value is refused by name; a name
 * without effect changes nothing.
 *
 * The answer is that of a small random model over the vocabulary of setup.h, sampled as the engine samples.
 *
 * One thread: not under MODE=tsan. */
#include "engine/api/parameters.h"
#include "tests/engine/api/setup.h"

enum {
    C = 1 << ENG_API_COMPLETIONS,
    H = 1 << ENG_API_CHAT,
    R = 1 << ENG_API_RESPONSES,
    M = 1 << ENG_API_MESSAGES,
    ALL = C | H | R | M,
    ANSWER = 160 /* tokens of an answer, at most */
};

/* ---- parameters of a request --------------------------------------------------------------------- */

/* A body with the given members; a prompt and other members that the dialect requires are added if they are absent. */
static const char *body_of(enum eng_api api, const char *members)
{
    static char body[1 << 14];
    static const char *const prompt[] = { "prompt", "messages", "input", "messages" };
    char key[32], prompted[128] = "", limited[32] = "";
    snprintf(key, sizeof key, "\"%s\":", prompt[api]);
    if (!strstr(members, key))
        snprintf(prompted, sizeof prompted, "%s %s, ", key,
                 strcmp(prompt[api], "messages") ? "\"hello\"" : "[" USER "]");
    if (api == ENG_API_MESSAGES && !strstr(members, "\"max_tokens\""))
        snprintf(limited, sizeof limited, "\"max_tokens\": 99, ");
    int n = snprintf(body, sizeof body, "{%s%s%s", prompted, limited, members);
    n -= !*members * 2; /* the comma before nothing */
    snprintf(body + n, sizeof body - (size_t)n, "}");
    return body;
}

static float logit_of(int32_t last, int32_t token)
{
    uint64_t bits = kn_mix((uint64_t)(last % 7) * 1000003 + (uint64_t)token);
    double sum = -2;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> 16 * i & 0xFFFF) / 0x1p16;
    return token == FAKE_END ? 2 : (float)(sum * 5);
}

/* Samples an answer to the first choice.  It ends after n_predict tokens or at a stop token. */
static int answer_to(const struct eng_api_request *ask, int32_t *out /* [ANSWER] */)
{
    struct eng_request r;
    struct spec_sampler *s;
    int32_t history[FAKE_CTX];
    float logits[512];
    int n_vocab = eng_vocab_size(fake.vocab), n = 0;
    eng_api_request_of_choice(ask, 0, &r);
    memcpy(history, r.token, (size_t)r.n_token * sizeof *history);
    assert_int_equal(spec_params_check(&r.sampling, n_vocab), 0);
    assert_int_equal(spec_sampler_open(&s, n_vocab), 0);
    for (int at = r.n_token; n < ANSWER && (r.n_predict < 0 || n < r.n_predict); at++) {
        struct spec_sampled c;
        for (int32_t t = 0; t < n_vocab; t++)
            logits[t] = r.ignore_eos && eng_vocab_is_stop(fake.vocab, t) ? -__builtin_inff()
                                                                         : logit_of(history[at - 1], t);
        assert_int_equal(spec_sample(s, &r.sampling, logits, history, at, at, &c), 0);
        bool ends = eng_vocab_is_stop(fake.vocab, c.token);
        for (int i = 0; i < ask->n_stop_token; i++)
            ends = ends || ask->stop_token[i] == c.token;
        if (ends)
            break;
        history[at] = out[n++] = c.token;
    }
    spec_sampler_close(s);
    return n;
}

/* Everything else that a request asks for, as text. */
static const char *wish_of(const struct eng_api_request *ask)
{
    static char text[1 << 15];
    size_t at = (size_t)snprintf(
        text, sizeof text,
        "model %s each %d predict %d stream %d%d echo %d special %d stop %d logprobs %d %d %d %d "
        "grammar %d tools %d thinks %d priority %d user %llx seed %d %llx ignore %d min %d drafts %x %d %d %g;",
        ask->model, ask->n_each, ask->n_predict, ask->stream, ask->include_usage, ask->echo, ask->shows_special,
        ask->shows_stop, ask->logprobs, ask->n_top, ask->prompt_logprobs, ask->wants_prompt_logprobs,
        ask->grammar != NULL, ask->tools != NULL, ask->thinks, ask->priority, (unsigned long long)ask->user,
        ask->seed_given, (unsigned long long)ask->sampling.seed, ask->ignore_eos, ask->min_tokens,
        (unsigned)ask->drafts.unused, ask->drafts.n_max, ask->drafts.n_min, (double)ask->drafts.p_min);
    for (int i = 0; i < ask->n_stop; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, " '%s'", ask->stop[i]);
    for (int i = 0; i < ask->n_stop_token; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, " %d", ask->stop_token[i]);
    for (size_t k = 0; k < ask->prediction.n; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, " expects %d", ask->prediction.id[k]);
    for (int i = 0; i < ask->n_prompt; i++)
        for (size_t k = 0; k < ask->prompt[i].n; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%c%d", k ? ',' : ';', ask->prompt[i].id[k]);
    return text;
}

/* ---- honoured --------------------------------------------------------------------------------- */

/* `with` has the parameter, `without` does not; both have the members without which it has no effect.  answer: the
 * sampled tokens must differ; else the parsed request must. */
static const struct honoured {
    unsigned apis;
    const char *name, *without, *with;
    bool answer;
} honoured[] = {
    { C, "prompt", "", "\"prompt\": \"other\"", false },
    { H | M, "messages", "", "\"messages\": [{\"role\": \"user\", \"content\": \"other\"}]", false },
    { R, "input", "", "\"input\": \"other\"", false },
    { R, "instructions", "", "\"instructions\": \"be short\"", false },
    { M, "system", "", "\"system\": \"be short\"", false },
    { ALL, "model", "", "\"model\": \"small:latest\"", false },
    { C, "echo", "", "\"echo\": true", false },
    { C, "truncate_prompt_tokens", "\"prompt\": \"a b c\"", "\"prompt\": \"a b c\", \"truncate_prompt_tokens\": 2",
      false },
    { H | R | M, "truncate_prompt_tokens", "", "\"truncate_prompt_tokens\": 2", false },
    { H | R | M, "chat_template_kwargs", "", "\"chat_template_kwargs\": {\"enable_thinking\": true}", false },
    { H, "reasoning_effort", "", "\"reasoning_effort\": \"high\"", false },
    { R, "reasoning", "", "\"reasoning\": {\"effort\": \"high\"}", false },
    { M, "thinking", "", "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 1024}", false },

    { ALL, "temperature", "", "\"temperature\": 0", true },
    { ALL, "top_p", "", "\"top_p\": 0.1", true },
    { ALL, "top_k", "", "\"top_k\": 2", true },
    { ALL, "min_p", "", "\"min_p\": 0.9", true },
    { ALL, "typical_p", "", "\"typical_p\": 0.2", true },
    { ALL, "top_n_sigma", "", "\"top_n_sigma\": 1", true },
    { ALL, "xtc_probability", "", "\"xtc_probability\": 1", true },
    { ALL, "xtc_threshold", "\"xtc_probability\": 1", "\"xtc_probability\": 1, \"xtc_threshold\": 0.02", true },
    { ALL, "repetition_penalty", "", "\"repetition_penalty\": 3", true },
    { ALL, "repeat_penalty", "", "\"repeat_penalty\": 3", true },
    { ALL, "presence_penalty", "", "\"presence_penalty\": 2", true },
    { ALL, "frequency_penalty", "", "\"frequency_penalty\": 2", true },
    { ALL, "repeat_last_n", "\"repeat_penalty\": 3", "\"repeat_penalty\": 3, \"repeat_last_n\": 3", true },
    { ALL, "dry_multiplier", "\"top_k\": 1", "\"top_k\": 1, \"dry_multiplier\": 5", true },
    { ALL, "dry_base", "\"top_k\": 1, \"dry_multiplier\": 0.1",
      "\"top_k\": 1, \"dry_multiplier\": 0.1, \"dry_base\": 9", true },
    { ALL, "dry_allowed_length", "\"top_k\": 1, \"dry_multiplier\": 5",
      "\"top_k\": 1, \"dry_multiplier\": 5, \"dry_allowed_length\": 20", true },
    { ALL, "dry_penalty_last_n", "\"top_k\": 1, \"dry_multiplier\": 5",
      "\"top_k\": 1, \"dry_multiplier\": 5, \"dry_penalty_last_n\": 4", true },
    { ALL, "dry_sequence_breakers", "\"dry_multiplier\": 5, \"logit_bias\": [[\"q\", 90]]",
      "\"dry_multiplier\": 5, \"logit_bias\": [[\"q\", 90]], \"dry_sequence_breakers\": [\"q\"]", true },
    { ALL, "samplers", "\"top_k\": 2", "\"top_k\": 2, \"samplers\": [\"temperature\"]", true },
    { ALL, "seed", "", "\"seed\": 5", true },
    { ALL, "logit_bias", "", "\"logit_bias\": {\"5\": 90}", true },
    { ALL, "bad_words", "\"logit_bias\": [[\"q\", 90]]", "\"logit_bias\": [[\"q\", 90]], \"bad_words\": [\"q\"]",
      true },
    { ALL, "allowed_token_ids", "", "\"allowed_token_ids\": [5, 6, 7]", true },
    { C | H, "n", "", "\"n\": 2", false },

    { C | H, "response_format", "", "\"response_format\": {\"type\": \"json_object\"}", false },
    { R, "text", "", "\"text\": {\"format\": {\"type\": \"json_object\"}}", false },
    { M, "output_config", "",
      "\"output_config\": {\"format\": {\"type\": \"json_schema\", \"schema\": {\"type\": \"object\"}}}", false },
    { H, "tools", "", TOOL(""), false },
    { R, "tools", "", "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}]", false },
    { M, "tools", "", "\"tools\": [{\"name\": \"f\", \"input_schema\": {\"type\": \"object\"}}]", false },
    { H, "tool_choice", TOOL(""), TOOL("") ", \"tool_choice\": \"none\"", false },
    { R, "tool_choice", "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}]",
      "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}], \"tool_choice\": \"none\"", false },
    { M, "tool_choice", "\"tools\": [{\"name\": \"f\", \"input_schema\": {\"type\": \"object\"}}]",
      "\"tools\": [{\"name\": \"f\", \"input_schema\": {\"type\": \"object\"}}], \"tool_choice\": {\"type\": \"none\"}",
      false },

    { C | H | M, "max_tokens", "", "\"max_tokens\": 3", true },
    { H, "max_completion_tokens", "", "\"max_completion_tokens\": 3", true },
    { R, "max_output_tokens", "", "\"max_output_tokens\": 3", true },
    { C | H | R, "n_predict", "", "\"n_predict\": 3", true },
    { C | H | R, "stop", "", "\"stop\": \"x\"", false },
    { M, "stop_sequences", "", "\"stop_sequences\": [\"x\"]", false },
    { ALL, "stop_token_ids", "\"top_k\": 1, \"logit_bias\": {\"5\": 90}",
      "\"top_k\": 1, \"logit_bias\": {\"5\": 90}, \"stop_token_ids\": [5]", true },
    { ALL, "include_stop_str_in_output", "", "\"include_stop_str_in_output\": true", false },
    { ALL, "ignore_eos", "\"logit_bias\": {\"263\": 90}", "\"logit_bias\": {\"263\": 90}, \"ignore_eos\": true", true },
    { ALL, "min_tokens", "\"logit_bias\": {\"263\": 90}", "\"logit_bias\": {\"263\": 90}, \"min_tokens\": 4", true },

    { ALL, "stream", "", "\"stream\": true", false },
    { C | H | R, "stream_options", "\"stream\": true",
      "\"stream\": true, \"stream_options\": {\"include_usage\": true}", false },
    { C, "logprobs", "", "\"logprobs\": 2", false },
    { H, "logprobs", "", "\"logprobs\": true", false },
    { H, "top_logprobs", "\"logprobs\": true", "\"logprobs\": true, \"top_logprobs\": 2", false },
    { R, "top_logprobs", "", "\"top_logprobs\": 2", false },
    { C | H, "n_probs", "", "\"n_probs\": 2", false },
    { C | H, "prompt_logprobs", "", "\"prompt_logprobs\": 2", false },
    { R, "include", "", "\"include\": [\"message.output_text.logprobs\"]", false },
    { C, "skip_special_tokens", "", "\"skip_special_tokens\": false", false },
    { C | H | R, "user", "", "\"user\": \"u\"", false },
    { C | H | R, "safety_identifier", "", "\"safety_identifier\": \"u\"", false },
    { M, "metadata", "", "\"metadata\": {\"user_id\": \"u\"}", false },
    { ALL, "priority", "", "\"priority\": 3", false },
    { ALL, "draft", "", "\"draft\": \"none\"", false },
    { ALL, "speculative.n_max", "", "\"speculative.n_max\": 3", false },
    { ALL, "speculative.n_min", "", "\"speculative.n_min\": 3", false },
    { ALL, "speculative.p_min", "", "\"speculative.p_min\": 0.5", false },
    { ALL, "prediction", "", "\"prediction\": {\"type\": \"content\", \"content\": \"hello\"}", false },
};

/* Honoured names that are tested elsewhere. */
static const char *const elsewhere[] = {
    "add_special_tokens",     /* test_request.c; this vocabulary has none to add */
    "parallel_tool_calls",    /* test_messages.c: the grammar's text */
    "best_of",                /* test_request.c: refused unless it equals n */
    "add_generation_prompt",  /* test_messages.c */
    "continue_final_message", /* test_messages.c */
    "json_schema",            /* test_messages.c */
    "guided_json",            /* test_messages.c */
    "guided_regex",           /* test_messages.c */
    "guided_choice",          /* test_messages.c */
    "structured_outputs",     /* test_messages.c */
};

static void honoured_ones_change_the_answer(void **state)
{
    (void)state;
    for (int i = 0; i < LEN(honoured); i++)
        for (int api = 0; api < 4; api++) {
            const struct honoured *h = &honoured[i];
            int32_t a[ANSWER], b[ANSWER];
            char plain[1 << 15];
            if (!(h->apis >> api & 1))
                continue;
            const struct eng_parameter *e = eng_parameter_find((enum eng_api)api, h->name);
            if (!e || e->kind != ENG_HONOURED)
                fail_msg("%s: '%s' is tested, but not honoured by the table", path_of[api], h->name);
            struct eng_api_request *without = ask_of((enum eng_api)api, body_of((enum eng_api)api, h->without));
            struct eng_api_request *with = ask_of((enum eng_api)api, body_of((enum eng_api)api, h->with));
            snprintf(plain, sizeof plain, "%s", wish_of(without));
            bool same = !strcmp(plain, wish_of(with));
            if (h->answer) {
                int n = answer_to(without, a), k = answer_to(with, b);
                same = n == k && !memcmp(a, b, (size_t)n * sizeof *a);
            }
            if (same)
                fail_msg("%s: '%s' changes nothing", path_of[api], h->name);
            eng_api_request_close(without);
            eng_api_request_close(with);
        }
}

static bool is_tested(enum eng_api api, const char *name)
{
    for (int i = 0; i < LEN(honoured); i++)
        if (honoured[i].apis >> api & 1 && !strcmp(honoured[i].name, name))
            return true;
    for (int i = 0; i < LEN(elsewhere); i++)
        if (!strcmp(elsewhere[i], name))
            return true;
    return false;
}

static void each_honoured_one_is_tested(void **state)
{
    const struct eng_parameter *e;
    (void)state;
    for (int i = 0; (e = eng_parameter_at(i)); i++)
        for (int api = 0; api < 4; api++)
            if (e->apis >> api & 1 && e->kind == ENG_HONOURED && !is_tested((enum eng_api)api, e->name))
                fail_msg("%s: no test that '%s' changes the answer", path_of[api], e->name);
}

/* ---- refused, and without effect --------------------------------------------------------------- */

static void refused_ones_are_named(void **state)
{
    const struct eng_parameter *e;
    (void)state;
    for (int i = 0; (e = eng_parameter_at(i)); i++)
        for (int api = 0; api < 4; api++) {
            static const char *const values[] = { "\"surely not\"", "[{\"a\": 1}]", "7.5", "{\"a\": 1}" };
            static const char *const nothing[] = { "null", "\"\"", "[]", "{}" };
            char members[256], want[80];
            if (!(e->apis >> api & 1) || e->kind != ENG_REFUSED)
                continue;
            snprintf(want, sizeof want, "400 %s", e->name);
            for (int k = 0; k < 4; k++) {
                snprintf(members, sizeof members, "\"%s\": %s", e->name, values[k]);
                expect((enum eng_api)api, body_of((enum eng_api)api, members), want);
                snprintf(members, sizeof members, "\"%s\": %s", e->name, nothing[k]);
                expect((enum eng_api)api, body_of((enum eng_api)api, members), "");
            }
            json_t *neutral = e->neutral ? json_loads(e->neutral, 0, NULL) : json_array(), *item;
            size_t n;
            assert_true(json_is_array(neutral));
            json_array_foreach(neutral, n, item)
            {
                char *text = json_dumps(item, JSON_ENCODE_ANY);
                snprintf(members, sizeof members, "\"%s\": %s", e->name, text);
                expect((enum eng_api)api, body_of((enum eng_api)api, members), "");
                free(text);
            }
            json_decref(neutral);
        }
    expect(ENG_API_CHAT, body_of(ENG_API_CHAT, "\"mirostat\": 0.0"), ""); /* numbers by value */
    expect(ENG_API_CHAT, body_of(ENG_API_CHAT, "\"mirostat\": 2"), "400 mirostat");
}

static void the_others_change_nothing(void **state)
{
    const struct eng_parameter *e;
    (void)state;
    for (int i = 0; (e = eng_parameter_at(i)); i++)
        for (int api = 0; api < 4; api++) {
            char members[256], plain[1 << 15];
            int32_t a[ANSWER], b[ANSWER];
            if (!(e->apis >> api & 1) || e->kind != ENG_WITHOUT_EFFECT)
                continue;
            snprintf(members, sizeof members, "\"%s\": 3", e->name);
            struct eng_api_request *without = ask_of((enum eng_api)api, body_of((enum eng_api)api, ""));
            struct eng_api_request *with = ask_of((enum eng_api)api, body_of((enum eng_api)api, members));
            snprintf(plain, sizeof plain, "%s", wish_of(without));
            assert_string_equal(plain, wish_of(with));
            assert_int_equal(answer_to(without, a), answer_to(with, b));
            eng_api_request_close(without);
            eng_api_request_close(with);
        }
    expect(ENG_API_CHAT, body_of(ENG_API_CHAT, "\"a_name_in_no_table\": 3"), "");
}

/* ---- the lists of names -------------------------------------------------------------------------- */

static void no_name_is_there_twice(void **state)
{
    const struct eng_parameter *e;
    (void)state;
    for (int i = 0; (e = eng_parameter_at(i)); i++)
        for (int api = 0; api < 4; api++)
            if (e->apis >> api & 1 && eng_parameter_find((enum eng_api)api, e->name) != e)
                fail_msg("%s: '%s' is in the table twice", path_of[api], e->name);
}

static void the_table_has_the_names_of_all_clients(void **state)
{
    static const char *const lists[] = { "openai-python", "anthropic-sdk-python", "vllm", "llama-server" };
    int n_name = 0;
    (void)state;
    for (int i = 0; i < LEN(lists); i++) {
        char path[128], line[256];
        snprintf(path, sizeof path, "tests/engine/api/data/%s.txt", lists[i]);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f)) {
            char *word = strtok(line, " \n");
            int api = 0;
            if (!word || *word == '#')
                continue;
            while (api < 4 && strcmp(word, path_of[api]))
                api++;
            assert_true(api < 4);
            for (; (word = strtok(NULL, " \n")); n_name++)
                if (!eng_parameter_find((enum eng_api)api, word))
                    fail_msg("%s: the table has no '%s' of %s", lists[i], word, path_of[api]);
        }
        fclose(f);
    }
    assert_in_range(n_name, 250, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_has_the_names_of_all_clients),
        cmocka_unit_test(no_name_is_there_twice),
        cmocka_unit_test(each_honoured_one_is_tested),
        cmocka_unit_test(honoured_ones_change_the_answer),
        cmocka_unit_test(refused_ones_are_named),
        cmocka_unit_test(the_others_change_nothing),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
