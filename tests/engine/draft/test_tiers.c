/* Every drafter on a device, with experts spread over its memory, the host's and the disk, which change places at random
 * between passes, in every order in which the emulated device can run its queues.  Each answer of a crowd is that of the request alone
 * on the host, without drafts, in each bit of its logprobs; no event is missing; and drafts are made, and accepted.  Heads are unloaded and loaded again.
 *
 * Linked with HOST_WRAPS.  Operations run one after the other, with hashes of their inputs, which takes long:
 * not under MODE=tsan, not under MODE=asan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define N_SESSION 4
#define N_REQUEST 6
#include "tests/emulated/host.h"
#include "tests/engine/head.h"
#include "tests/engine/medusa_heads.h"
#include "tests/engine/reload.h"

#define N_LAYER  4
#define N_OTHER  280 /* tokens of the model with another vocabulary */
#define MOST_ARM 3

static char dense[64], other[64], eagle[64], eagle3[64], medusa[64];

/* Drafters, of models of a shape.  A word with % names one of the files above, or `path`, the target itself. */
static const struct drafts {
    const char *shape, *word[MOST_ARM];
    enum eng_dsi_mode dsi;
    bool accepts; /* some drafts are surely right */
} cases[] = {
    { .shape = "tiny", .word = { "ngram" } },
    { .shape = "tiny", .word = { "suffix" } },
    { .shape = "tiny", .word = { "suffix,shared" }, .accepts = true },
    { .shape = "tiny", .word = { "lookahead" } },
    { .shape = "tiny", .word = { "prediction" }, .accepts = true },
    { .shape = "tiny", .word = { "model:%dense" } },
    { .shape = "tiny", .word = { "model:%target" }, .accepts = true },
    { .shape = "tiny", .word = { "model:%target" }, .dsi = ENG_DSI_ON },
    { .shape = "tiny", .word = { "model:%other" } },
    { .shape = "tiny", .word = { "eagle:%eagle,tree=chain" } },
    { .shape = "tiny", .word = { "eagle:%eagle,tree=static" } },
    { .shape = "tiny", .word = { "eagle:%eagle" } },
    { .shape = "tiny", .word = { "eagle:%3" } },
    { .shape = "tiny", .word = { "medusa:%medusa" } },
    { .shape = "tiny", .word = { "eagle:%eagle", "model:%target,tree=static", "suffix" }, .accepts = true },
    { .shape = "tiny-qwen3next", .word = { "ngram" } },
    { .shape = "tiny-qwen3next", .word = { "model:%dense,tree=static" } },
    { .shape = "tiny-qwen3next", .word = { "eagle:%eagle" } },
    { .shape = "tiny-qwen3next", .word = { "suffix,shared", "eagle:%3" }, .accepts = true },
    { .shape = "tiny-glm4moe", .word = { "mtp" } },
    { .shape = "tiny-glm4moe", .word = { "mtp,tree=dynamic", "ngram" } },
    { .shape = "tiny-glm4moe", .word = { "model:%target", "mtp" }, .accepts = true },
};
#define N_CASE ((int)(sizeof cases / sizeof *cases))

/* ---- the device, and the files -------------------------------------------------------------------------------- */

static struct late_device device;
static enum late_order order;
static uint64_t seed;

static int open_emulated(struct kn_device **out, int number)
{
    (void)number;
    device = late_device_apart(asked_isa, seed);
    device.order = order;
    late_watched = &device;
    late_moves = true;
    memset(host_elsewhere, 0, sizeof host_elsewhere);
    *out = &device.base;
    return 0;
}

static void name_file(char *to, const char *name) { snprintf(to, 64, "/tmp/spillway-tiers-%d-%s", getpid(), name); }

/* The seed of the vocabulary, too: 3 is that of the target. */
static void write_model(const char *file, const char *shape, int n_token, uint64_t from)
{
    struct kn_team *team;
    assert_int_equal(kn_team_open(&team, 1), 0);
    struct moe_synth_options so = { .shape = shape, .n_vocab = n_token, .format = KN_Q8_0, .seed = from, .team = team };
    assert_int_equal(moe_synth(file, &so), 0);
    kn_team_close(team);
}

static int write_files(void **state)
{
    (void)state;
    kn_device_offer("emulated", open_emulated);
    name_file(dense, "dense.gguf");
    name_file(other, "other.gguf");
    name_file(eagle, "eagle.gguf");
    name_file(eagle3, "eagle3.gguf");
    name_file(medusa, "medusa");
    write_model(dense, "tiny-dense", n_vocab, 3);
    write_model(other, "tiny-dense", N_OTHER, 4);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    unlink(dense);
    unlink(other);
    unlink(eagle);
    unlink(eagle3);
    remove_medusa(medusa);
    host_free();
    return 0;
}

/* ---- engines -------------------------------------------------------------------------------------------------- */

static void parse(struct eng_draft_option *to, const char *word)
{
    static const char *const key[] = { "%dense", "%other", "%eagle", "%3", "%medusa", "%target" };
    const char *const file[] = { dense, other, eagle, eagle3, medusa, path };
    char text[200];
    snprintf(text, sizeof text, "%s", word);
    for (int i = 0; i < 6; i++) {
        const char *at = strstr(word, key[i]);
        if (at)
            snprintf(text, sizeof text, "%.*s%s%s", (int)(at - word), word, file[i], at + strlen(key[i]));
    }
    assert_int_equal(eng_draft_parse(to, text), 0);
}

/* The device has room for half of the experts, the host for some. */
static struct eng_engine *open_apart(const struct drafts *d)
{
    struct eng_engine *e;
    struct eng_options o = { .device = "emulated", .n_parallel = 3, .n_chunk = 40, .gamma = 4, .dsi = d->dsi };
    for (; o.n_draft < MOST_ARM && d->word[o.n_draft]; o.n_draft++)
        parse(&o.draft[o.n_draft], d->word[o.n_draft]);
    o = asked_options(o, 0);
    assert_int_equal(eng_describe(&e, &o), 0);
    const struct moe_shape *s = moe_model_shape(e->assets.model);
    o.device_mem = eng_memory(e)->device.least + s->device_expert_bytes / 2;
    eng_close(e);
    o.host_mem = asked_memory(&o, 1, 4);
    e = open_engine_with(o, 0);
    const struct eng_split *split = eng_memory(e);
    assert_in_range(split->device.n_resident, split->n_expert / 4, split->n_expert - 1);
    return e;
}

static void come_and_go(struct eng_engine *e) { heads_come_and_go(e); }

/* ---- tests ---------------------------------------------------------------------------------------------------- */

static void run_case(const struct drafts *d)
{
    uint64_t n_draft = 0, n_kept = 0, n_used = 0, n_passed = 0, n_host = 0;
    for (order = LATE_RANDOM; order < LATE_ORDERS; order++) {
        seed++;
        struct eng_engine *e = open_apart(d);
        run_crowd(e, 2);
        asked_meddle = come_and_go;
        run_crowd(e, 1);
        asked_meddle = NULL;
        struct eng_stats s;
        eng_stats_get(e, &s);
        n_draft += s.n_draft;
        n_kept += s.n_draft_kept;
        n_used += s.device.n_used;
        n_passed += s.device.n_passed;
        n_host += s.device.n_host;
        for (int i = 0; i < e->drafting->n_drafter; i++)
            assert_false(e->drafting->drafter[i]->broken);
        close_engine(e);
        late_watched = NULL;
        if (late_found())
            fail_msg("%s, order %d: %s", d->word[0], (int)order, late_found());
    }
    print_message("%s %s: %d drafted, %d accepted\n", d->shape, d->word[0], (int)n_draft, (int)n_kept);
    assert_true(n_used > 0 && n_passed > 0 && n_host > 0);
    assert_true((n_draft > 0 || d->dsi) && n_kept >= d->accepts); /* during a pass: as many as it leaves time for */
}

/* Writes the model and heads for it, and records the answers.  Each is its request's reference, too. */
static void ask(void **state)
{
    int d_model = !strcmp(asked_shape, "tiny") ? 256 : 128;
    assert_int_equal(setup_asked(state, 11), 0);
    assert_int_equal(write_head_of(eagle, HEAD_EAGLE, (uint32_t)d_model, N_LAYER), 0);
    assert_int_equal(write_head_of(eagle3, HEAD_EAGLE3, (uint32_t)d_model, N_LAYER), 0);
    write_medusa(medusa, &(struct medusa_made){ .n_head = 3, .d = d_model, .n_token = n_vocab });
    for (int i = 0; i < N_REQUEST; i++) {
        asked[i].request.reference = asked[i].said + asked[i].n_told;
        asked[i].request.n_reference = asked[i].n_said - asked[i].n_told;
    }
}

static void drafts_change_no_byte(void **state)
{
    for (int i = 0; i < N_CASE; i++) {
        bool first = !i || strcmp(cases[i].shape, cases[i - 1].shape) != 0;
        asked_shape = cases[i].shape;
        asked_layers = N_LAYER;
        asked_ahead = !strcmp(asked_shape, "tiny-glm4moe");
        if (first)
            ask(state);
        run_case(&cases[i]);
        if (i == N_CASE - 1 || strcmp(cases[i + 1].shape, asked_shape) != 0)
            teardown_asked(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(drafts_change_no_byte) };
    return cmocka_run_group_tests(tests, write_files, remove_files);
}
