/* Medusa heads: their logits are those of torch (tests/fixtures/make_medusa.py), with the same bits on every instruction
 * set and in any batch; a draft is made of the heads' likeliest tokens, from the feature of the right token; heads of
 * random weights change no answer; folders that cannot be read are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "engine/draft/medusa.h"
#include "tests/engine/same_answers.h"

#define FIXTURE "tests/fixtures/medusa"
enum { HEADS = 3, LAYERS = 2, WIDTH = 40, TOKENS = 50, FEATURES = 5 };

static char folder[96];
static struct kn_team *team;

/* ---- the network ---------------------------------------------------------------------------------------- */

static float feature[FEATURES][WIDTH], golden[FEATURES][HEADS][TOKENS];

static void read_golden(void)
{
    FILE *f = fopen(FIXTURE "/features.txt", "r");
    assert_non_null(f);
    for (int i = 0; i < FEATURES; i++) {
        for (int k = 0; k < WIDTH; k++)
            assert_int_equal(fscanf(f, "%a", &feature[i][k]), 1);
        for (int h = 0; h < HEADS; h++)
            for (int k = 0; k < TOKENS; k++)
                assert_int_equal(fscanf(f, "%a", &golden[i][h][k]), 1);
    }
    fclose(f);
}

static void logits_are_those_of_torch(void **state)
{
    (void)state;
    static float first[FEATURES][HEADS][TOKENS];
    struct moe_file *file;
    read_golden();
    assert_int_equal(moe_file_open(&file, FIXTURE), 0);
    for (int isa = KN_ISA_COUNT - 1; isa >= 0; isa--) {
        const struct kn_ops *ops = kn_ops((enum kn_isa)isa);
        struct eng_medusa *m;
        assert_int_equal(eng_medusa_open(&m, file, ops), 0);
        struct eng_medusa_shape s = eng_medusa_shape(m);
        assert_true(s.n_head == HEADS && s.n_layer == LAYERS && s.d_model == WIDTH && s.n_vocab == TOKENS);
        assert_int_equal(eng_medusa_load(m, team, FEATURES), 0);
        for (int h = 0; h < HEADS; h++)
            for (int n = 1; n <= FEATURES; n += FEATURES - 1) /* alone, and all together */
                for (int at = 0; at < FEATURES; at += n) {
                    for (int i = 0; i < n; i++)
                        memcpy(eng_medusa_feature(m, i), feature[at + i], sizeof feature[0]);
                    eng_medusa_compute(m, team, h, n);
                    for (int i = 0; i < n; i++) {
                        const float *logits = eng_medusa_logits(m, i), *want = golden[at + i][h];
                        for (int k = 0; k < TOKENS; k++)
                            if (!(logits[k] > want[k] - 1e-4f && logits[k] < want[k] + 1e-4f))
                                fail_msg("head %d, feature %d, token %d: %g, torch has %g", h, at + i, k,
                                         (double)logits[k], (double)want[k]);
                        if (isa == KN_ISA_COUNT - 1 && n == 1)
                            memcpy(first[at][h], logits, sizeof first[0][0]);
                        assert_memory_equal(logits, first[at + i][h], sizeof first[0][0]);
                    }
                }
        eng_medusa_close(m);
    }
    moe_file_close(file);
}

/* ---- folders ---------------------------------------------------------------------------------------------- */

static void write_file(const char *name, const void *data, size_t n)
{
    char file[192];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_config(const char *text) { write_file("config.json", text, strlen(text)); }

static void remove_file(const char *name)
{
    char file[192];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    unlink(file);
}

/* Random heads of n_head blocks of one layer each, F32, for a model of this shape; one tensor may be left out or get
 * another name. */
static void write_heads(int n_head, int d, int n_token, const char *wrong)
{
    static char header[4096];
    size_t n = 0, bytes = 0;
    for (int h = 0; h < n_head; h++) {
        const struct {
            const char *name;
            int out, in;
        } t[] = { { "0.linear.weight", d, d }, { "0.linear.bias", d, 0 }, { "1.weight", n_token, d } };
        for (int k = 0; k < 3; k++) {
            size_t size = (size_t)t[k].out * (size_t)kn_max(t[k].in, 1) * sizeof(float);
            char shape[48], name[64];
            snprintf(name, sizeof name, "%d.%s", h, t[k].name);
            snprintf(shape, sizeof shape, t[k].in ? "%d, %d" : "%d", t[k].out, t[k].in);
            n += (size_t)snprintf(header + n, sizeof header - n,
                                  "%s\"%s%s\": {\"dtype\": \"F32\", \"shape\": [%s], \"data_offsets\": [%zu, %zu]}",
                                  n ? ", " : "{", !strcmp(name, wrong) ? "x" : "", name, shape, bytes, bytes + size);
            bytes += size;
        }
    }
    n += (size_t)snprintf(header + n, sizeof header - n, "}");
    uint64_t length = n;
    uint8_t *all = malloc(sizeof length + n + bytes);
    assert_non_null(all);
    memcpy(all, &length, sizeof length);
    memcpy(all + sizeof length, header, n);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        float x = (float)(below(2001) - 1000) / 4000;
        memcpy(all + sizeof length + n + i * sizeof x, &x, sizeof x);
    }
    write_file("medusa_lm_head.safetensors", all, sizeof length + n + bytes);
    free(all);
}

static char last_line[512];
static void keep_line(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void refused(const char *what)
{
    struct eng_options o = asked_options(
        (struct eng_options){ .n_parallel = 1, .n_chunk = 100, .gamma = 2, .n_draft = 1 }, 0);
    struct eng_engine *e;
    char wish[128];
    snprintf(wish, sizeof wish, "medusa:%s", folder);
    assert_int_equal(eng_draft_parse(&o.draft[0], wish), 0);
    kn_log_set(keep_line, KN_LOG_ERROR);
    last_line[0] = 0;
    assert_true(eng_open(&e, &o) < 0);
    kn_log_set(NULL, KN_LOG_WARN);
    if (!strstr(last_line, what))
        fail_msg("'%s' is not in: %s", what, last_line);
}

static void other_folders_are_refused(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine(1, 100, 0);
    int d = moe_model_shape(e->assets.model)->d_model, n_token = moe_model_shape(e->assets.model)->n_vocab;
    close_engine(e);
    write_config("{\"medusa_num_heads\": 2, \"medusa_num_layers\": 1}");
    remove_file("medusa_lm_head.safetensors");
    refused("medusa_lm_head.safetensors");
    write_file("medusa_lm_head.pt", "PK", 2);
    refused("convert it");
    remove_file("medusa_lm_head.pt");
    write_heads(2, d, n_token, "1.0.linear.bias");
    refused("1.0.linear.bias");
    write_heads(2, d, n_token, "0.1.weight");
    refused("0.1.weight");
    write_heads(2, d, n_token + 1, "");
    refused("heads for a model of");
    write_heads(2, d + 1, n_token, "");
    refused("heads for a model of");
    write_config("{\"medusa_num_heads\": 3, \"medusa_num_layers\": 1}");
    refused("2.0.linear.weight");
    write_config("{\"medusa_num_heads\": 9, \"medusa_num_layers\": 1}");
    refused("medusa.head_count");
    write_config("{\"medusa_num_heads\": 2, \"medusa_num_layers\": \"1\"}");
    refused("medusa_num_layers");
}

/* ---- drafts -------------------------------------------------------------------------------------------------- */

static void prepare(struct eng_options *o, int n_head, const char *options)
{
    struct eng_engine *e = open_engine(1, 100, 0);
    char wish[128], config[96];
    random_state = 4;
    write_heads(n_head, moe_model_shape(e->assets.model)->d_model, moe_model_shape(e->assets.model)->n_vocab, "");
    snprintf(config, sizeof config, "{\"medusa_num_heads\": %d, \"medusa_num_layers\": 1}", n_head);
    write_config(config);
    close_engine(e);
    snprintf(wish, sizeof wish, "medusa:%s%s", folder, options);
    assert_int_equal(eng_draft_parse(&o->draft[0], wish), 0);
    o->n_draft = 1;
}

/* Heads that know nothing are harmless: in a crowd, with preemption, with --verify ratio. */
static void drafts_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .gamma = 3 + 4 * i };
        prepare(&o, 2 + i, i == 1 ? ",tree=chain" : "");
        struct eng_engine *e = open_engine_with(o, i ? 9 : 0);
        run_crowd(e, SHARE(20));
        assert_true(e->stats.n_draft > 0);
        close_engine(e);
    }
}

static int largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* At temperature 0 a chain's token i is the likeliest of head i, from the feature of the token before the last. */
static void heads_read_the_last_feature(void **state)
{
    (void)state;
    enum { N_PROMPT = 6, N_SAID = 20, N_HEAD = 3 };
    struct eng_options o = { .n_parallel = 2, .n_chunk = 100, .n_thread = 1, .gamma = N_HEAD };
    prepare(&o, N_HEAD, ",tree=chain");
    struct eng_engine *e = open_engine_with(o, 0);
    struct moe_file *file;
    struct eng_medusa *m;
    struct eng_session *s;
    int32_t text[N_PROMPT];
    int n_compared = 0;
    assert_int_equal(moe_file_open(&file, folder), 0);
    assert_int_equal(eng_medusa_open(&m, file, moe_model_ops(e->assets.model)), 0);
    assert_int_equal(eng_medusa_load(m, team, 1), 0);
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = 3 + 7 * i;
    struct eng_request r = request(text, N_PROMPT, N_SAID, 1);
    r.sampling.temperature = 0;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    while (eng_session_runs(s)) {
        int32_t want[N_HEAD];
        bool drafts = s->seat && s->seq.n_kv == s->seq.n_token - 1 && s->seq.n_token > N_PROMPT;
        for (int h = 0; drafts && h < N_HEAD; h++) {
            moe_context_feature(e->assets.context, s->seq.path.slot[s->seq.n_token - 2], eng_medusa_feature(m, 0));
            eng_medusa_compute(m, team, h, 1);
            want[h] = largest(eng_medusa_logits(m, 0), n_vocab);
        }
        assert_true(eng_step(e, event) >= 0);
        const struct spec_tree *t = s->seq.tree;
        for (int h = 0; drafts && t && h < t->n; h++, n_compared++)
            assert_int_equal(t->token[h], want[h]);
    }
    assert_true(n_compared > N_SAID);
    eng_session_close(s);
    eng_medusa_close(m);
    moe_file_close(file);
    close_engine(e);
}

static int setup_all(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/spillway-medusa-%d", getpid());
    return setup_asked(state, 21) || kn_team_open(&team, 2) || mkdir(folder, 0700) ? -1 : 0;
}

static int teardown_all(void **state)
{
    remove_file("config.json");
    remove_file("medusa_lm_head.safetensors");
    rmdir(folder);
    kn_team_close(team);
    return teardown_asked(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_torch),
        cmocka_unit_test(other_folders_are_refused),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(heads_read_the_last_feature),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
