/* A server whose model runs on a device with memory of its own: the answers are those of the host.  When the device
 * fails, requests get 500 and a reason, /ready says so, and the server lives. */
#include "engine/internal.h"
#include "tests/emulated/late.h"
#include "tests/engine/serve/serve_client.h"

#define EXPERTS "evals/train/models/demo-target-q8_0.gguf"

static struct late_device device;

static int open_emulated(struct kn_device **out, int number)
{
    (void)number;
    device = late_device_apart(kn_isa_best(), 5);
    *out = &device.base;
    return 0;
}

static struct eng_serve_options options(const char *name)
{
    struct eng_serve_options o = serve_defaults();
    o.engine.isa = KN_ISA_COUNT - 1;
    o.engine.device = name;
    return o;
}

static void answers_are_those_of_the_host(void **state)
{
    struct served v;
    char *text[2][3];
    (void)state;
    for (int where = 0; where < 2; where++) {
        struct eng_serve_options o = options(where ? "emulated" : NULL);
        serve_start(&v, &o);
        for (int i = 0; i < 3; i++)
            text[where][i] = text_of(&v, 9, i);
        serve_end(&v);
    }
    for (int i = 0; i < 3; i++) {
        assert_string_equal(text[1][i], text[0][i]);
        free(text[0][i]);
        free(text[1][i]);
    }
    assert_null(late_found());
}

static struct eng_options options_of_chunk(const char *name, int n_chunk, size_t device_mem)
{
    return (struct eng_options){ .model = EXPERTS,
                                 .n_ctx = 2048,
                                 .n_chunk = n_chunk,
                                 .n_parallel = 1,
                                 .device = name,
                                 .device_mem = device_mem,
                                 .n_thread = 1,
                                 .isa = KN_ISA_COUNT - 1 };
}

static int chunk_of(const struct eng_options *o)
{
    struct eng_engine *e = NULL;
    assert_int_equal(eng_describe(&e, o), 0);
    int n = eng_n_chunk(e);
    assert_int_equal(e->schedule.prefill_share.limits_mean, n > ENG_CHUNK);
    eng_close(e);
    return n;
}

static int chunk_with(const char *name, int n_chunk, size_t device_mem)
{
    struct eng_options o = options_of_chunk(name, n_chunk, device_mem);
    return chunk_of(&o);
}

/* A device that lacks experts reads prompts in longer chunks, unless the user sets a length; and beside long chunks decoding keeps
 * its mean pace. */
static void chunks_are_long_where_experts_are_copied(void **state)
{
    (void)state;
    size_t some = (size_t)20 << 20, all = (size_t)128 << 20;
    assert_in_range(chunk_with("emulated", 0, some), 513, 4096);
    assert_int_equal(chunk_with("emulated", 512, some), 512);
    assert_int_equal(chunk_with("emulated", 7, some), 7);
    assert_int_equal(chunk_with("emulated", 0, all), 512);
    assert_int_equal(chunk_with(NULL, 0, 0), 512);
}

/* A model with many experts, and a small one that drafts for it. */
static void make_pair(char target[64], char draft[64])
{
    struct kn_team *team;
    struct moe_synth_options large = { .shape = "tiny", .n_layer = 48, .n_vocab = 400, .format = KN_Q8_0, .seed = 7 };
    struct moe_synth_options small = { .shape = "tiny-dense", .n_vocab = 400, .format = KN_Q8_0, .seed = 7 };
    snprintf(target, 64, "/tmp/spillway-chunks-%d.gguf", getpid());
    snprintf(draft, 64, "/tmp/spillway-chunks-%d.draft", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    large.team = small.team = team;
    assert_int_equal(moe_synth(target, &large), 0);
    assert_int_equal(moe_synth(draft, &small), 0);
    kn_team_close(team);
}

/* The least memory of a device for these options, in steps of 1 MiB. */
static size_t least_device_memory(struct eng_options o)
{
    for (o.device_mem = (size_t)4 << 20; o.device_mem < (size_t)256 << 20; o.device_mem += (size_t)1 << 20) {
        struct eng_engine *e = NULL;
        if (!eng_describe(&e, &o)) {
            eng_close(e);
            return o.device_mem;
        }
    }
    fail_msg("no memory is enough");
    return 0;
}

/* The length of chunks is chosen before the drafters are open.  If no room is left for them, chunks have the usual length; but a length
 * that the user has set is kept. */
static void drafters_come_before_long_chunks(void **state)
{
    char target[64], draft[64];
    struct eng_engine *e = NULL;
    struct eng_options alone = options_of_chunk("emulated", ENG_CHUNK, 0);
    (void)state;
    make_pair(target, draft);
    alone.model = target;
    struct eng_options drafts = alone;
    drafts.draft[0].kind = ENG_DRAFT_MODEL;
    snprintf(drafts.draft[0].file, sizeof drafts.draft[0].file, "%s", draft);
    drafts.n_draft = 1;
    drafts.gamma = 3;
    alone.device_mem = drafts.device_mem = least_device_memory(drafts);
    alone.n_chunk = drafts.n_chunk = 0;
    int n_long = chunk_of(&alone);
    assert_in_range(n_long, ENG_CHUNK + 1, 4096);
    assert_int_equal(chunk_of(&drafts), ENG_CHUNK);
    drafts.n_chunk = n_long;
    assert_int_equal(eng_describe(&e, &drafts), KN_ELIMIT);
    unlink(target);
    unlink(draft);
}

/* A model with experts: the device keeps those for which it has memory. */
static void the_third_tier_is_shown(void **state)
{
    struct served v;
    struct eng_serve_options o = options("emulated");
    (void)state;
    o.engine.model = EXPERTS;
    o.engine.device_mem = (size_t)24 << 20; /* not for all experts */
    serve_start(&v, &o);
    free(text_of(&v, 9, 1));
    double slots = metric(&v, "", "spillway_device_expert_slots{"), kept = metric(&v, "", "spillway_device_experts{");
    assert_true(slots > 0 && kept > 0 && kept <= slots);
    double bytes = metric(&v, "", "spillway_device_expert_bytes{");
    assert_true(bytes > 0 && bytes <= metric(&v, "", "spillway_device_expert_slot_bytes{"));
    assert_true(metric(&v, "", "spillway_device_expert_slot_bytes{") < (double)o.engine.device_mem);
    assert_true(metric(&v, "", "spillway_device_expert_uses_total{") > 0);
    assert_true(metric(&v, "", "spillway_device_expert_copies_total{") >= kept);
    double layers = metric(&v, "", "spillway_device_layers_total{");
    assert_true(layers > 0 && metric(&v, "", "spillway_device_layers_alone_total{") <= layers);
    assert_true(metric(&v, "", "spillway_device_memory_bytes{") == (double)o.engine.device_mem);
    assert_true(metric(&v, "", "spillway_device_copied_bytes_total{") > 0);
    assert_true(metric(&v, "", "spillway_device_failed{") == 0);
    while (metric(&v, "", "spillway_device_pinned_bytes{") == 0)
        usleep(1000);
    assert_true(metric(&v, "", "spillway_device_pin_refused{") == 0);
    struct answer a = ask(&v, "GET", "/status", "", NULL);
    assert_non_null(strstr(a.body, "\"device\":{\"total\":25165824,"));
    assert_non_null(strstr(a.body, "\"pinned_bytes\":"));
    answer_free(&a);
    serve_end(&v);
    assert_null(late_found());
}

static void a_device_that_fails_is_said(void **state)
{
    struct served v;
    struct eng_serve_options o = options("emulated");
    (void)state;
    serve_start(&v, &o);
    free(text_of(&v, 4, 1));
    assert_int_equal(ask_status(&v, "GET", "/ready", "", NULL), 200);
    late_error = KN_EIO;
    for (int i = 0; i < 2; i++) {
        struct answer a = ask(&v, "POST", CHAT, "", chat(4, 1, false));
        assert_int_equal(a.status, 500);
        answer_free(&a);
    }
    struct answer a = ask(&v, "GET", "/ready", "", NULL);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "the device has failed"));
    answer_free(&a);
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 200);
    serve_end(&v);
    late_error = 0;
}

static int offer(void **state)
{
    (void)state;
    kn_device_offer("emulated", open_emulated);
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_host),    cmocka_unit_test(chunks_are_long_where_experts_are_copied),
        cmocka_unit_test(drafters_come_before_long_chunks), cmocka_unit_test(the_third_tier_is_shown),
        cmocka_unit_test(a_device_that_fails_is_said),
    };
    return cmocka_run_group_tests(tests, offer, NULL);
}
