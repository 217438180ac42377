/* /metrics. Pages are well-formed for all model names and all states; counters never fall; the numbers about drafts are
 * consistent: after every step of a crowd of sessions, while drafters are unloaded, and as a client of the server reads
 * them. */
#include <stdatomic.h>
#include <unistd.h>

#include "engine/serve/metrics.h"
#include "tests/engine/serve/exposition.h"
#include "tests/engine/serve/serve_client.h"
#include "tests/engine/quick.h"

/* ---- the parser of pages --------------------------------------------------------------------------------- */

#define GOOD                                                                                                           \
    "# HELP a_total what\n# TYPE a_total counter\na_total{x=\"\\\\\\\"\\n\",y=\"2\"} 1\n"                              \
    "a_total{x=\"1\"} 2e+06\n"
#define HIST "# HELP h what\n# TYPE h histogram\n"

static void what_is_wrong_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } table[] = {
        { GOOD "# HELP g what\n# TYPE g gauge\ng -1\n" HIST
               "h_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 4.5\nh_count 3\n",
          NULL },
        { "", "nothing at all" },
        { "a_total 1\n", "without a family" },
        { "# HELP a_total what\na_total 1\n", "without a family" },
        { "# TYPE a_total counter\na_total 1\n", "does not follow" },
        { "# HELP a_total what\n# TYPE b_total counter\nb_total 1\n", "does not follow" },
        { "# HELP a what\n# TYPE a counter\na 1\n", "end in _total" },
        { "# HELP a_total what\n# TYPE a_total gauge\na_total 1\n", "end in _total" },
        { "# HELP a what\n# TYPE a number\na 1\n", "no such type" },
        { "# HELP a what\n# TYPE a gauge\n", "without samples" },
        { "# HELP a what\n# TYPE a gauge\n" GOOD, "without samples" },
        { "# HELP a what\n" GOOD, "without a type" },
        { "# HELP a \n# TYPE a gauge\na 1\n", "nothing after it" },
        { GOOD GOOD, "was there before" },
        { GOOD "b_total 1\n", "not of the family" },
        { GOOD "a_total{y=\"2\",x=\"\\\\\\\"\\n\"} 1\n", "a series twice" },
        { GOOD "a_total{y=\"2\",y=\"3\"} 1\n", "a label twice" },
        { GOOD "a_total{y=\"2\\t\"} 1\n", "unknown escape" },
        { GOOD "a_total{y=\"2\"x\"} 1\n", "without an end" },
        { GOOD "a_total{2=\"2\"} 1\n", "no label" },
        { GOOD "a_total{x=\"\xff\"} 1\n", "not UTF-8" },
        { GOOD "a_total{le=\"1\"} 1\n", "others have none" },
        { GOOD "a_total -1\n", "not negative" },
        { GOOD "a_total NaN\n", "not negative" },
        { GOOD "a_total -nan\n", "not a number" },
        { GOOD "a_total 1 2\n", "not a number" },
        { GOOD "a_total\n", "not a number" },
        { GOOD "a_total 1", "without an end" },
        { GOOD "\n", "without a family" },
        { GOOD "# EOF\n", "neither HELP" },
        { HIST "h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 4\nh_count 1\n", "do not rise" },
        { HIST "h_bucket{le=\"1\"} 2\nh_bucket{le=\"0.5\"} 2\nh_bucket{le=\"+Inf\"} 2\nh_sum 4\nh_count 2\n",
          "do not rise" },
        { HIST "h_bucket{le=\"1\"} 2\nh_sum 4\nh_count 2\n", "no bucket of all" },
        { HIST "h_bucket{le=\"+Inf\"} 2\nh_sum 4\nh_count 3\n", "another count" },
        { HIST "h_bucket{le=\"+Inf\"} 2\nh_count 2\nh_sum 4\n", "no sum and count" },
        { HIST "h 2\n", "not of the family" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct expo *x = expo_read(table[i].text);
        if (!x->error != !table[i].error || (x->error && !strstr(x->error, table[i].error)))
            fail_msg("%s: '%s', not '%s'", table[i].text, x->error, table[i].error);
        free(x);
    }
    struct expo *before = expo_well(GOOD);
    struct expo *after = expo_well("# HELP a_total what\n# TYPE a_total counter\n"
                                   "a_total{y=\"2\",x=\"\\\\\\\"\\n\"} 0\na_total{x=\"1\"} 3\n");
    assert_string_equal(expo_fell(before, after), "a_total{x=\"\\\\\\\"\\n\",y=\"2\"}");
    assert_null(expo_fell(before, before));
    after->n_sample = 0;
    assert_non_null(expo_fell(before, after));
    free(before);
    free(after);
}

/* ---- written pages --------------------------------------------------------------------------------------- */

static char *written(const char *model, const struct eng_thread_report *v)
{
    static const struct eng_metrics none;
    struct eng_bytes out = { 0 };
    eng_metrics_write(&none, &(struct eng_gauges){ .model = model }, v, &out);
    eng_bytes_add(&out, "", 1);
    assert_false(out.failed);
    return out.data;
}

/* Model names of any bytes and any length. */
static void any_name_is_written_well(void **state)
{
    (void)state;
    static const struct {
        const char *name, *label;
    } table[] = {
        { "m", "m" },
        { "a\"b\\c\nd", "a\\\"b\\\\c\\nd" },
        { "\xe9t\xc3\xa9", "\xef\xbf\xbdt\xc3\xa9" },
        { "\xe2\x82", "\xef\xbf\xbd" },
        { "\xf0\x9f\x90\x8c", "\xf0\x9f\x90\x8c" },
    };
    char line[200], name[400];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *text = written(table[i].name, &(struct eng_thread_report){ 0 });
        free(expo_well(text));
        snprintf(line, sizeof line, "\nspillway_ready{model_name=\"%s\",engine=\"0\"} 0\n", table[i].label);
        if (!strstr(text, line))
            fail_msg("no %s", line);
        kn_free(text);
    }
    for (size_t n = 200; n < 300; n++)
        for (size_t i = 1; i < sizeof table / sizeof *table; i++) {
            memset(name, 'x', n);
            for (size_t at = n, k = 0; k < 10; k++, at += strlen(table[i].name))
                strcpy(name + at, table[i].name);
            char *text = written(name, &(struct eng_thread_report){ 0 });
            free(expo_well(text));
            kn_free(text);
        }
}

static struct eng_thread_report some_view(void)
{
    struct eng_thread_report v = { .engine = { .n_draft = 50, .n_draft_kept = 31, .draft_ns = 2500000000u },
                                   .drafts = { .any = true,
                                               .n_draft = 20,
                                               .n_accepted = { 18, 9, 4 },
                                               .n_choice = 5,
                                               .lost_ns = 1e6,
                                               .loss_limit_ns = 4e6,
                                               .target = { 12, 0.5, 0.625, 9.5, 12.75, 23 },
                                               .fitted = true,
                                               .fit_error = 0.03125,
                                               .n_fit_pass = 77 } };
    for (int i = SPEC_WHY_FIXED; i < SPEC_WHY_COUNT; i++)
        v.drafts.n_decision[i] = 10 + (uint64_t)i;
    v.drafts.choice[0] = (struct eng_draft_choice){
        "model", 0, ENG_DRAFTER_ASKED, 3, { SPEC_VERDICT_PAYS, 20, 40, 25, { 0.9, 0.5, 0.25 }, 1.5, 0 }
    };
    v.drafts.choice[1] = (struct eng_draft_choice){
        "model", 1, ENG_DRAFTER_UNLOADED, 0, { SPEC_VERDICT_MEMORY_WORTH_MORE, 7, 10, 6, { 0.9 }, 1.01, 0.1 }
    };
    v.drafts.choice[2] = (struct eng_draft_choice){ "ngram", 0, ENG_DRAFTER_BROKEN, 0, { .gain = 1 } };
    v.drafts.choice[3] = (struct eng_draft_choice){
        "all", 0, ENG_DRAFTER_ASKED, 0, { .verdict = SPEC_VERDICT_LOSES, .gain = 0.99 }
    };
    v.drafts.choice[4] = (struct eng_draft_choice){
        "ahead", 0, ENG_DRAFTER_ASKED, 0, { .verdict = SPEC_VERDICT_MEMORY_WORTH_MORE, .gain = 1 }
    };
    return v;
}

static double said_of(const struct expo *x, const char *family, const char *labels)
{
    char series[300];
    snprintf(series, sizeof series, "%s{%s}", family, labels);
    const struct expo_sample *s = expo_find(x, series);
    if (!s)
        fail_msg("no %s", series);
    return s->value;
}

#define OF_ALL "engine=\"0\",model_name=\"m\""

static double said_by(const struct expo *x, const char *family, const char *drafter)
{
    char labels[200];
    snprintf(labels, sizeof labels, "drafter=\"%s\"," OF_ALL, drafter);
    return said_of(x, family, labels);
}

static void each_drafter_is_told_of(void **state)
{
    (void)state;
    struct eng_thread_report v = some_view();
    char *text = written("m", &v);
    struct expo *x = expo_well(text);
    static const char *const name[] = { "model", "model-2", "ngram", "all", "ahead" };
    static const double verdict[] = { 1, -3, -4, -1, -2 };
    for (int i = 0; i < 5; i++) {
        const struct spec_account *a = &v.drafts.choice[i].account;
        assert_true(said_by(x, "spillway_draft_steps_total", name[i]) == (double)a->n_step);
        assert_true(said_by(x, "spillway_draft_rows_total", name[i]) == (double)a->n_drafted);
        assert_true(said_by(x, "spillway_draft_rows_kept_total", name[i]) == (double)a->n_accepted);
        assert_true(said_by(x, "spillway_draft_depth", name[i]) == v.drafts.choice[i].depth);
        assert_true(said_by(x, "spillway_draft_gain", name[i]) == a->gain);
        assert_true(said_by(x, "spillway_draft_verdict", name[i]) == verdict[i]);
    }
    assert_true(said_of(x, "spillway_draft_kept_share", "depth=\"3\",drafter=\"model\"," OF_ALL) == 0.25);
    assert_null(strstr(text, "depth=\"4\"")); /* not measured; an unloaded drafter has no rates */
    assert_null(strstr(text, "model-2\",depth"));
    assert_true(said_of(x, "spillway_draft_decisions_total", OF_ALL ",reason=\"spent\"") == 10 + SPEC_WHY_LOSS_LIMIT);
    assert_true(said_of(x, "vllm:spec_decode_num_drafts_total", OF_ALL) == 20);
    assert_true(said_of(x, "vllm:spec_decode_num_draft_tokens_total", OF_ALL) == 50);
    assert_true(said_of(x, "vllm:spec_decode_num_accepted_tokens_total", OF_ALL) == 31);
    assert_true(said_of(x, "vllm:spec_decode_num_accepted_tokens_per_pos_total", OF_ALL ",position=\"2\"") == 4);
    assert_null(strstr(text, "position=\"3\""));
    assert_true(said_of(x, "spillway_draft_seconds_total", OF_ALL) == 2.5);
    assert_true(said_of(x, "spillway_draft_lost_seconds", OF_ALL) == 0.001);
    assert_true(said_of(x, "spillway_draft_may_lose_seconds", OF_ALL) == 0.004);
    assert_true(said_of(x, "spillway_target_rows", OF_ALL) == 12);
    assert_true(said_of(x, "spillway_target_efficiency", OF_ALL ",source=\"measured\"") == 0.5);
    assert_true(said_of(x, "spillway_target_efficiency", OF_ALL ",source=\"predicted\"") == 0.625);
    assert_true(said_of(x, "spillway_target_experts", OF_ALL ",source=\"measured\"") == 9.5);
    assert_true(said_of(x, "spillway_target_experts", OF_ALL ",source=\"predicted\"") == 12.75);
    assert_true(said_of(x, "spillway_target_full_rows", OF_ALL) == 23);
    assert_true(said_of(x, "spillway_fit_known", OF_ALL) == 1);
    assert_true(said_of(x, "spillway_fit_error", OF_ALL) == 0.03125);
    assert_true(said_of(x, "spillway_fit_passes_total", OF_ALL) == 77);
    assert_null(strstr(text, "reason=\"fixed\""));
    assert_null(strstr(text, "_beside_"));
    free(x);
    kn_free(text);
}

/* With fixed options there is no gain of a drafter; without drafters there are no draft metrics. */
static void nothing_is_told_of_nobody(void **state)
{
    (void)state;
    struct eng_thread_report v = some_view();
    v.drafts.n_choice = 0;
    v.drafts.overlap = true;
    v.drafts.n_text_beside = 21;
    v.drafts.n_text_before = 22;
    char *text = written("m", &v);
    struct expo *x = expo_well(text);
    assert_true(said_of(x, "spillway_draft_decisions_total", OF_ALL ",reason=\"fixed\"") == 10 + SPEC_WHY_FIXED);
    assert_true(said_of(x, "spillway_draft_beside_seconds_total", OF_ALL) == 0);
    assert_true(said_of(x, "spillway_draft_prompt_tokens_total", OF_ALL ",when=\"beside\"") == 21);
    assert_true(said_of(x, "spillway_draft_prompt_tokens_total", OF_ALL ",when=\"before\"") == 22);
    assert_null(strstr(text, "drafter="));
    assert_null(strstr(text, "reason=\"gains\""));
    free(x);
    kn_free(text);
    v.drafts.any = false;
    text = written("m", &v);
    free(expo_well(text));
    assert_null(strstr(text, "draft"));
    assert_null(strstr(text, "spec_decode"));
    kn_free(text);
}

/* ---- an engine ------------------------------------------------------------------------------------------- */

static struct expo *last;              /* page of the previous step, or NULL */
static uint64_t decisions, passes_due; /* decisions of the controller, passes with rows */

static void watch(struct eng_engine *e)
{
    struct eng_thread_report v = { 0 };
    eng_stats_get(e, &v.engine);
    eng_drafts_get(e, &v.drafts);
    if (moe_model_store(e->assets.model))
        off_stats_get(moe_model_store(e->assets.model), &v.store);
    char *text = written("m", &v);
    struct expo *now = expo_well(text);
    const char *fell = last ? expo_fell(last, now) : NULL;
    if (fell)
        fail_msg("%s: %.17g, then %.17g", fell, expo_find(last, fell)->value,
                 expo_find(now, fell) ? expo_find(now, fell)->value : -1);
    free(last);
    last = now;
    kn_free(text);

    uint64_t accepted = 0, before = v.drafts.n_draft;
    for (int i = 0; i < ENG_DRAFT_NODES; i++) {
        assert_true(v.drafts.n_accepted[i] <= before);
        accepted += before = v.drafts.n_accepted[i];
    }
    assert_int_equal(accepted, v.engine.n_draft_kept);
    assert_true(v.engine.n_draft >= v.drafts.n_draft);
    decisions = 0;
    for (int i = 0; i < SPEC_WHY_COUNT; i++)
        decisions += v.drafts.n_decision[i];
    passes_due += e->pass.n_due > 0;
    assert_int_equal(decisions, passes_due);
    assert_int_equal(v.drafts.n_decision[SPEC_WHY_NONE_DUE], 0);
}

/* With memory for a part of the experts, so that passes read experts. */
static struct eng_engine *open_drafting(int gamma, enum eng_dsi_mode dsi)
{
    struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .gamma = gamma, .dsi = dsi, .n_draft = 3 };
    snprintf(o.draft[0].file, sizeof o.draft[0].file, "%s", path);
    o.draft[0].kind = o.draft[2].kind = ENG_DRAFT_MODEL;
    o.draft[1].kind = ENG_DRAFT_SUFFIX;
    memcpy(o.draft[2].file, o.draft[0].file, sizeof o.draft[2].file);
    passes_due = 0;
    free(last);
    last = NULL;
    struct eng_engine *e = open_engine_with(o, 12);
    o.host_mem = e->memory.split.total - e->memory.split.spare - moe_model_shape(e->assets.model)->expert_bytes / 2;
    close_engine(e);
    return open_engine_with(o, 12);
}

static void close_drafting(struct eng_engine *e)
{
    close_engine(e);
    free(last);
    last = NULL;
}

/* The counters of a drafter stay after it is unloaded in the middle of answers. */
static void unload_some(struct eng_engine *e)
{
    struct eng_drafts before, after;
    eng_drafts_get(e, &before);
    eng_draft_unload(e->drafting, 0);
    eng_draft_unload(e->drafting, 2);
    eng_drafts_get(e, &after);
    assert_int_equal(after.n_choice, before.n_choice);
    for (int i = 0; i < after.n_choice; i++) {
        const struct spec_account *a = &before.choice[i].account, *b = &after.choice[i].account;
        assert_true(before.choice[i].state == ENG_DRAFTER_ASKED);
        assert_true(after.choice[i].state == (i == 1 || i == 3 ? ENG_DRAFTER_ASKED : ENG_DRAFTER_UNLOADED));
        assert_true(a->n_step == b->n_step && a->n_drafted == b->n_drafted && a->n_accepted == b->n_accepted);
    }
}

/* The controller decides. Draft rows in its accounts agree with the verified rows. */
static void counts_only_rise(void **state)
{
    (void)state;
    struct eng_drafts d;
    set_quick_clock();
    asked_meddle = watch;
    for (int ahead = 0; ahead < 2; ahead++) {
        uint64_t rows = 0, accepted = 0;
        struct eng_engine *e = open_drafting(ENG_GAMMA_AUTO, ahead ? ENG_DSI_AUTO : ENG_DSI_OFF);
        make_quick(e);
        do {
            run_crowd(e, SHARE(12));
            eng_drafts_get(e, &d);
            assert_true(e->stats.n_pass < 20000);
        } while (WHOLE && !ahead &&
                 (!d.n_accepted[1] || !d.choice[0].account.n_accepted || !d.n_decision[SPEC_WHY_GAINS]));
        assert_int_equal(d.n_choice, 4 + ahead);
        for (int i = 0; i < d.n_choice; i++) {
            rows += d.choice[i].account.n_drafted;
            accepted += d.choice[i].account.n_accepted;
            assert_true(d.choice[i].account.accepted[0] >= 0 && d.choice[i].account.accepted[0] <= 1);
        }
        assert_true(rows >= e->stats.n_draft && accepted >= e->stats.n_draft_kept && d.n_decision[SPEC_WHY_LEARN] > 0);
        unload_some(e);
        watch(e);
        assert_true(said_by(last, "spillway_draft_verdict", "model") == -3);
        assert_true(said_by(last, "spillway_draft_verdict", "model-2") == -3);
        assert_true(said_by(last, "spillway_draft_depth", "model") == 0);
        assert_true(!ahead || said_by(last, "spillway_draft_verdict", "ahead") == -3);
        passes_due -= e->pass.n_due > 0; /* the crowd watches this pass once more */
        run_crowd(e, SHARE(20));         /* they may be loaded again */
        close_drafting(e);
    }
    asked_meddle = NULL;
    kn_io_set(NULL);
}

/* Options decide: a fixed depth, or overlap in each pass. */
static void options_decide_for_one_reason(void **state)
{
    (void)state;
    asked_meddle = watch;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct eng_engine *e = open_drafting(3, ahead ? ENG_DSI_ON : ENG_DSI_OFF);
        struct eng_drafts d;
        do { /* a small crowd may have no draft accepted */
            run_crowd(e, SHARE(12));
            eng_drafts_get(e, &d);
            assert_true(e->stats.n_pass < 20000);
        } while (!d.n_accepted[0]);
        watch(e);
        assert_true(d.n_choice == 0 && d.any && d.overlap == ahead);
        assert_true(d.n_draft > 0);
        assert_int_equal(d.n_decision[SPEC_WHY_FIXED], decisions);
        assert_true(decisions > 0);
        close_drafting(e);
    }
    asked_meddle = NULL;
}

static void hear_nothing(enum kn_level level, const char *line) { (void)level, (void)line; }

/* ---- the server ------------------------------------------------------------------------------------------ */

static struct expo *scraped(const struct served *v, bool drafts)
{
    struct answer a = ask(v, "GET", "/metrics", "", NULL);
    assert_int_equal(a.status, 200);
    assert_true((strstr(a.body, "spillway_draft_") != NULL) == drafts);
    assert_true((strstr(a.body, "vllm:spec_decode_") != NULL) == drafts);
    struct expo *x = expo_well(a.body);
    answer_free(&a);
    return x;
}

#define OF_DEMO "engine=\"0\",model_name=\"demo-draft-q8_0\""

/* From the first page on, before any request. */
static void a_server_tells_of_its_drafts(void **state)
{
    (void)state;
    kn_log_set(hear_nothing, KN_LOG_INFO);
    for (int drafts = 0; drafts < 2; drafts++) {
        struct eng_serve_options o = serve_defaults();
        struct served v;
        o.engine.isa = KN_ISA_COUNT - 1;
        o.engine.gamma = ENG_GAMMA_AUTO;
        o.engine.n_draft = drafts;
        if (drafts)
            assert_int_equal(eng_draft_parse(&o.engine.draft[0], "suffix"), 0);
        serve_start(&v, &o);
        struct expo *before = scraped(&v, drafts), *after;
        for (int i = 0; i < 3; i++) {
            free(text_of(&v, 120, i));
            after = scraped(&v, drafts);
            assert_ptr_equal(expo_fell(before, after), NULL);
            free(before);
            before = after;
        }
        if (drafts) {
            assert_true(said_of(before, "spillway_draft_decisions_total", OF_DEMO ",reason=\"learn\"") > 0);
            assert_true(said_of(before, "spillway_draft_gain", "drafter=\"suffix\"," OF_DEMO) > 0);
        }
        free(before);
        serve_end(&v);
    }
    kn_log_set(NULL, KN_LOG_INFO);
}

static int setup_all(void **state) { return setup_asked(state, 71); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_found),
        cmocka_unit_test(any_name_is_written_well),
        cmocka_unit_test(each_drafter_is_told_of),
        cmocka_unit_test(nothing_is_told_of_nobody),
        cmocka_unit_test(counts_only_rise),
        cmocka_unit_test(options_decide_for_one_reason),
        cmocka_unit_test(a_server_tells_of_its_drafts),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_asked);
}
