/* Members about drafts (engine/api/drafts.c): a prediction in all its forms, and its tokens in the usage; which drafters
 * draft, and limits of drafts.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/api/replies.h"

static void check_prediction(enum eng_api api, const char *members, const char *want)
{
    struct eng_api_request *ask = ask_of(api, with(api, members));
    struct eng_ids ids = { 0 };
    struct eng_request r;
    assert_int_equal(eng_tokenize(fake.vocab, want, strlen(want), 0, &ids), 0);
    assert_int_equal(ask->prediction.n, ids.n);
    if (ids.n)
        assert_memory_equal(ask->prediction.id, ids.id, ids.n * sizeof *ids.id);
    eng_api_request_of_choice(ask, 0, &r);
    assert_true(r.n_reference == (int)ids.n && (!ids.n || r.reference == ask->prediction.id));
    eng_ids_free(&ids);
    eng_api_request_close(ask);
}

static void predictions_have_several_forms(void **state)
{
    (void)state;
    for (int api = ENG_API_COMPLETIONS; api <= ENG_API_MESSAGES; api++) {
        enum eng_api a = (enum eng_api)api;
        check_prediction(a, "", "");
        check_prediction(a, "\"prediction\": null", "");
        check_prediction(a, "\"prediction\": \"a text\"", "a text");
        check_prediction(a, "\"prediction\": \"\"", "");
        check_prediction(a, "\"prediction\": {\"type\": \"content\", \"content\": \"a text\"}", "a text");
        check_prediction(
            a,
            "\"prediction\": {\"type\": \"content\", \"content\": [{\"type\": \"text\", \"text\": \"a \"}, "
            "{\"type\": \"text\", \"text\": \"text\"}]}",
            "a text");
        check_prediction(a, "\"prediction\": {\"content\": \"<s> is text\"}", "<s> is text"); /* no control token */
    }
}

static void odd_predictions_are_refused(void **state)
{
    static const struct {
        const char *value, *refusal;
    } bad[] = {
        { "5", "400 prediction" },
        { "[\"a\"]", "400 prediction" },
        { "{\"type\": \"content\"}", "400 prediction.content" },
        { "{\"type\": \"file\", \"content\": \"a\"}", "400 prediction.type" },
        { "{\"type\": \"content\", \"content\": 5}", "400 prediction.content" },
        { "{\"type\": \"content\", \"content\": [5]}", "400 prediction.content[0]" },
        { "{\"type\": \"content\", \"content\": [{\"type\": \"text\"}]}", "400 prediction.content[0].text" },
        { "{\"type\": \"content\", \"content\": [{\"type\": \"image_url\", \"text\": \"a\"}]}",
          "400 prediction.content[0].type" },
    };
    char members[256];
    (void)state;
    for (int i = 0; i < LEN(bad); i++) {
        snprintf(members, sizeof members, "\"prediction\": %s", bad[i].value);
        expect(ENG_API_CHAT, with(ENG_API_CHAT, members), bad[i].refusal);
        expect(ENG_API_COMPLETIONS, with(ENG_API_COMPLETIONS, members), bad[i].refusal);
    }
    char *body = malloc(4 * FAKE_CTX);
    int n = snprintf(body, 4 * FAKE_CTX, "{\"prompt\": \"hello\", \"prediction\": \"");
    memset(body + n, 'q', FAKE_CTX + 1); /* a token each */
    strcpy(body + n + FAKE_CTX, "\"}");
    expect(ENG_API_COMPLETIONS, body, "");
    strcpy(body + n + FAKE_CTX, "q\"}");
    body[n + FAKE_CTX] = 'q';
    expect(ENG_API_COMPLETIONS, body, "400 prediction");
    free(body);
}

/* The counts depend on the answer's tokens alone, so they are the same with any drafts. */
static void check_usage(enum eng_api api, const char *members, const char *answer, const char *want)
{
    static struct said out;
    struct eng_api_request *ask = ask_of(api, with(api, members));
    struct eng_reply *r;
    out.n = 0;
    assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
    for (int i = 0; i < eng_api_request_choices(ask); i++)
        feed(r, i, answer, strlen(answer), ENG_STOP, &out);
    if (!strstr(out.data, want))
        fail_msg("%s: no %s in %s", path_of[api], want, out.data);
    if (!strstr(members, "prediction"))
        assert_null(strstr(out.data, "prediction"));
    eng_reply_close(r);
    eng_api_request_close(ask);
}

static void repeated_tokens_are_counted(void **state)
{
    static const enum eng_api apis[] = { ENG_API_COMPLETIONS, ENG_API_CHAT };
    (void)state;
    for (int i = 0; i < 2; i++) {
        check_usage(apis[i], "", "abcdefgh", "\"completion_tokens_details\":{\"reasoning_tokens\":0}}");
        check_usage(apis[i], "\"prediction\": \"abcdefgh\"", "abcdefgh",
                    "\"accepted_prediction_tokens\":8,\"rejected_prediction_tokens\":0}}");
        check_usage(apis[i], "\"prediction\": \"abcdefgh\"", "abcXefgh",
                    "\"accepted_prediction_tokens\":7,\"rejected_prediction_tokens\":1}}");
        check_usage(apis[i], "\"prediction\": \"abcdefgh\"", "XYZ",
                    "\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":8}}");
        check_usage(apis[i], "\"prediction\": \"abcdefgh\", \"n\": 2", "abcdefgh",
                    "\"accepted_prediction_tokens\":16,\"rejected_prediction_tokens\":0}}");
        check_usage(apis[i], "\"prediction\": \"ab\", \"n\": 1", "abababab",
                    "\"accepted_prediction_tokens\":2,\"rejected_prediction_tokens\":0}}");
        check_usage(apis[i],
                    "\"prediction\": \"abcdefgh\", \"stream\": true, \"stream_options\": {\"include_usage\": true}",
                    "abcdefgh", "\"accepted_prediction_tokens\":8,\"rejected_prediction_tokens\":0}}");
    }
}

/* ---- drafters and limits ------------------------------------------------------------------------- */

static void check_limits(const char *members, unsigned used, int n_max, int n_min, double p_min)
{
    for (int api = ENG_API_COMPLETIONS; api <= ENG_API_MESSAGES; api++) {
        struct eng_api_request *ask = ask_of((enum eng_api)api, with((enum eng_api)api, members));
        struct eng_request r;
        eng_api_request_of_choice(ask, 0, &r);
        assert_int_equal((uint8_t)~r.drafts.unused & 15, used);
        assert_true(r.drafts.n_max == n_max && r.drafts.n_min == n_min && r.drafts.p_min == (float)p_min);
        eng_api_request_close(ask);
    }
}

static void drafters_are_chosen_by_name(void **state)
{
    (void)state;
    static const char *const names[] = { "model", "ngram", "model", "prediction" };
    for (int i = 0; i < 4; i++)
        fake.setup.drafter[i] = names[i];
    fake.setup.n_drafter = 4;
    check_limits("", 15, 0, 0, 0);
    check_limits("\"draft\": \"auto\"", 15, 0, 0, 0);
    check_limits("\"draft\": null", 15, 0, 0, 0);
    check_limits("\"draft\": \"none\"", 0, 0, 0, 0);
    check_limits("\"draft\": []", 0, 0, 0, 0);
    check_limits("\"draft\": \"ngram\"", 2, 0, 0, 0);
    check_limits("\"draft\": \"model\"", 5, 0, 0, 0);
    check_limits("\"draft\": [\"prediction\", \"ngram\"]", 10, 0, 0, 0);
    check_limits("\"speculative.n_max\": 7, \"speculative.n_min\": 2, \"speculative.p_min\": 0.75", 15, 7, 2, 0.75);
    check_limits("\"speculative.n_max\": 0", 0, 0, 0, 0);
    check_limits("\"speculative.types\": \"none\"", 0, 0, 0, 0);
    check_limits("\"draft\": \"ngram\", \"speculative.n_max\": 1", 2, 1, 0, 0);
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"draft\": \"suffix\""), "400 draft");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"draft\": [\"ngram\", \"suffix\"]"), "400 draft");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"draft\": 5"), "400 draft");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"draft\": [5]"), "400 draft");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"speculative.n_max\": -1"), "400 speculative.n_max");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"speculative.n_min\": 0.5"), "400 speculative.n_min");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"speculative.p_min\": 1.5"), "400 speculative.p_min");
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"speculative.types\": \"draft-mtp\""), "400 speculative.types");
    fake.setup.n_drafter = 0;
    check_limits("\"draft\": \"none\"", 0, 0, 0, 0);
    expect(ENG_API_CHAT, with(ENG_API_CHAT, "\"draft\": \"ngram\""), "400 draft");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_have_several_forms),
        cmocka_unit_test(odd_predictions_are_refused),
        cmocka_unit_test(repeated_tokens_are_counted),
        cmocka_unit_test(drafters_are_chosen_by_name),
    };
    return cmocka_run_group_tests(tests, fake_open, fake_close);
}
