/* EAGLE-3 heads against independent code: their logits, for one token and several tokens in advance, from transformers'
 * modules assembled as published (tests/fixtures/make_eagle3.py), in chunks and row by row, with features in both
 * precisions; heads published as folders of safetensors, of both kinds; and faults of a file are reported.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/faults.h"
#include "tests/moe/change.h"
#include "tests/moe/hf_folder.h"
#include "tests/moe/load.h"
#include "tests/moe/pair.h"

#define MOST_ID 512

static char path[96], head_path[96];
static struct kn_team *team;

/* Removes a file, or a folder with its files. */
static void remove_all(const char *name)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", name);
    assert_int_equal(system(command), 0);
}

/* A head of a fixture; g's n_vocab is the size of its draft vocabulary. */
struct head {
    struct golden g;
    char *config; /* of a folder: config.json; otherwise NULL */
    int32_t
        id[MOST_ID]; /* [n_id] d2t: draft vocabulary to model ids, of a folder less the places in the list; 0: none */
    int32_t listed[MOST_ID]; /* of a folder: draft vocabulary to model ids */
    int n_id, n_listed;
    FILE *guesses; /* positioned at the lines of guesses */
    struct moe_file *file;
};

static int read_ids(int32_t id[MOST_ID], char *s)
{
    int n = 0;
    golden_word(&s);
    for (; *s; n++) {
        assert_true(n < MOST_ID);
        id[n] = atoi(golden_word(&s));
    }
    return n;
}

static void head_read(struct head *h, const char *fixture)
{
    static char line[8192];
    char name[128];
    memset(h, 0, sizeof *h);
    snprintf(name, sizeof name, "tests/fixtures/golden/%s.eagle3", fixture);
    assert_non_null(h->guesses = fopen(name, "r"));
    h->g.text = calloc(1, 1 << 16);
    char *keep = h->g.text;
    for (long at = 0; fgets(line, sizeof line, h->guesses); at = ftell(h->guesses)) {
        if (!strncmp(line, "guess ", 6)) {
            fseek(h->guesses, at, SEEK_SET);
            return;
        }
        line[strcspn(line, "\n")] = 0;
        strcpy(keep, line); /* meta lines stay for golden_write() */
        if (!strncmp(line, "ids d2t ", 8))
            h->n_id = read_ids(h->id, keep + 4);
        else if (!strncmp(line, "listed ", 7))
            h->n_listed = read_ids(h->listed, keep);
        else if (!strncmp(line, "config ", 7))
            h->config = strdup(keep + 7);
        else if (line[0] != '#')
            golden_parse_line(&h->g, keep);
        keep += strlen(line) + 1;
    }
    fail();
}

static void head_free(struct head *h)
{
    fclose(h->guesses);
    golden_free(&h->g);
    free(h->config);
    remove_all(head_path);
}

/* As published: matrices and vectors in BF16, d2t in I64, t2d in BOOL. */
static void head_write_folder(struct head *h)
{
    struct hf_file f = { 0 };
    int64_t id[MOST_ID];
    uint8_t flag[MOST_ID] = { 0 };
    const uint64_t n_all = MOST_ID, n_id = (uint64_t)h->n_id;
    for (int i = 0; i < h->g.n_tensor; i++) {
        const struct golden_tensor *t = &h->g.tensor[i];
        uint64_t n;
        float *x = golden_values(h->g.seed, t, &n);
        hf_add(&f, t->name, x, t->dim, t->n_dim, true);
        free(x);
    }
    for (int i = 0; i < h->n_id; i++)
        id[i] = h->id[i];
    if (h->n_id) {
        hf_add_raw(&f, "d2t", "I64", id, n_id * sizeof *id, &n_id, 1);
        hf_add_raw(&f, "t2d", "BOOL", flag, n_all, &n_all, 1);
    }
    mkdir(head_path, 0777);
    hf_save(head_path, "config.json", h->config, strlen(h->config));
    hf_close(&f, head_path, "model.safetensors");
}

static void head_write(struct head *h)
{
    struct moe_writer *w;
    int64_t id[MOST_ID];
    if (h->config) {
        head_write_folder(h);
        return;
    }
    assert_int_equal(moe_writer_open(&w, head_path), 0);
    for (int i = 0; i < h->g.n_meta; i++)
        assert_int_equal(golden_write_meta(w, h->g.meta[i]), 0);
    for (int i = 0; i < h->g.n_tensor; i++)
        moe_writer_tensor(w, h->g.tensor[i].name, KN_F32, h->g.tensor[i].n_dim, h->g.tensor[i].dim);
    if (h->n_id)
        moe_writer_ids(w, "d2t", (uint64_t)h->n_id);
    assert_int_equal(moe_writer_header(w), 0);
    for (int i = 0; i < h->g.n_tensor; i++)
        assert_int_equal(golden_write_tensor(w, h->g.seed, &h->g.tensor[i]), 0);
    for (int i = 0; i < h->n_id; i++)
        id[i] = h->id[i];
    if (h->n_id)
        moe_writer_data(w, id, (size_t)h->n_id * sizeof *id);
    assert_int_equal(moe_writer_finish(w), 0);
    moe_writer_close(w);
}

static int open_head(struct pair *p, struct head *h, enum kn_isa isa)
{
    int error = moe_file_open(&h->file, head_path);
    return error ? error
                 : moe_model_open(&p->head, h->file, &(struct moe_model_options){ .isa = isa, .target = p->model });
}

/* The target's fixture has the head's name, without its last word if the head is a folder. */
static void open_target(struct pair *p, const char *fixture, enum kn_isa isa)
{
    char target[64];
    memset(p, 0, sizeof *p);
    snprintf(target, sizeof target, "%s", fixture);
    if (strstr(target, "_deep_"))
        *strrchr(target, '_') = '\0';
    assert_int_equal(golden_read(&p->g, target), 0);
    assert_int_equal(golden_write(&p->g, path), 0);
    assert_int_equal(moe_file_open(&p->file, path), 0);
    pair_model(p, isa, false);
    assert_int_equal(moe_model_load(p->model, &(struct moe_load_options){ .team = team, .io = OFF_IO_PREAD }), 0);
}

static void close_target(struct pair *p, struct head *h)
{
    head_free(h);
    moe_model_close(p->model);
    moe_file_close(p->file);
    golden_free(&p->g);
}

static void open_both(struct pair *p, struct head *h, const char *fixture, enum kn_isa isa)
{
    open_target(p, fixture, isa);
    head_read(h, fixture);
    head_write(h);
    assert_int_equal(open_head(p, h, isa), 0);
    struct moe_load_options lo = { .team = team, .io = OFF_IO_PREAD, .again = true };
    assert_int_equal(moe_model_load(p->head, &lo), 0);
    moe_model_unload(p->head);
    assert_int_equal(moe_model_load(p->head, &lo), 0);
    pair_open(p, team);
}

static void close_both(struct pair *p, struct head *h)
{
    pair_close(p);
    moe_file_close(h->file);
    head_free(h);
    unlink(path);
}

/* The logits of the draft vocabulary, in the list's order; checks that all other logits are excluded. */
static const float *among(const struct pair *p, const struct head *h, const float *logits)
{
    static float out[MOST_ID];
    int n_likely = 0;
    for (int i = 0; i < p->g.n_vocab; i++)
        n_likely += !isinf(logits[i]);
    assert_int_equal(n_likely, h->g.n_vocab);
    const int32_t *token = h->n_listed ? h->listed : h->id;
    if (!h->n_id)
        return logits;
    for (int i = 0; i < h->n_id; i++)
        out[i] = logits[token[i]];
    return out;
}

static void guesses_are_those_of_transformers(void **state)
{
    struct pair p;
    struct head h;
    struct golden_row r;
    char line[4096];
    int depth, pos, n[DEPTH + 1] = { 0 };
    double worst[DEPTH + 1] = { 0 };
    open_both(&p, &h, *state, KN_ISA_COUNT - 1);
    float *logits = pair_read(&p);
    while (pair_next(h.guesses, line, sizeof line, &depth, &pos, &r)) {
        const float *got = pair_guess(&p, depth, pos);
        n[depth]++;
        worst[depth] = fmax(worst[depth], golden_apart(&h.g, &r, among(&p, &h, got)));
        if (depth == 1) /* one row alone as in a chunk */
            assert_memory_equal(got, logits + (size_t)pos * (size_t)p.g.n_vocab, (size_t)p.g.n_vocab * sizeof *got);
    }
    free(logits);
    for (int i = 1; i <= DEPTH; i++) {
        print_message("%s, %d ahead: largest difference / largest logit %.1e of %d\n", (char *)*state, i, worst[i],
                      n[i]);
        assert_true(n[i] > 20 && worst[i] < TOLERANCE);
    }
    close_both(&p, &h);
}

/* Rows of both kinds in one pass: one continues from another draft row, one has the sequence's features. */
static void rows_of_both_kinds_share_a_pass(void **state)
{
    struct pair p;
    struct head h;
    struct moe_result result;
    open_both(&p, &h, *state, KN_ISA_COUNT - 1);
    size_t n = (size_t)p.g.n_vocab, d = (size_t)moe_model_shape(p.model)->d_model;
    float *text = pair_read(&p), *want = calloc(n, sizeof *want), *thought = calloc(2 * d, sizeof *thought);
    memcpy(want, pair_guess(&p, 2, 100), n * sizeof *want);
    struct moe_row row[2] = { { .token = p.g.token[101],
                                .position = 100,
                                .want_logits = true,
                                .base = p.slot + 1,
                                .n_base = 101,
                                .tail = p.slot + p.g.n_tok,
                                .feature_at = p.slot[100] } };
    pair_forward(p.guesses, row, 1, &result);
    row[0].token = p.g.token[102];
    row[0].position = 101;
    row[0].from_result = true;
    row[0].feature_at = 0;
    row[1] = (struct moe_row){ .token = p.g.token[41],
                               .position = 40,
                               .want_logits = true,
                               .base = p.slot + 1,
                               .n_base = 41,
                               .tail = p.slot + p.g.n_tok + 2,
                               .feature_at = p.slot[40] };
    pair_forward(p.guesses, row, 2, &result);
    assert_memory_equal(result.logits, want, n * sizeof *want);
    assert_memory_equal(result.logits + n, text + 40 * n, n * sizeof *want);
    moe_context_last_feature(p.guesses, 1, thought);
    pair_forward(p.guesses, row + 1, 1, &result);
    moe_context_last_feature(p.guesses, 0, thought + d);
    assert_memory_equal(thought + d, thought, d * sizeof *thought);
    free(text);
    free(want);
    free(thought);
    close_both(&p, &h);
}

static void every_instruction_set_says_the_same(void **state)
{
    struct pair p[2];
    struct head h[2];
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        open_both(&p[i], &h[i], *state, i ? KN_ISA_AVX2 : KN_ISA_COUNT - 1);
        logits[i] = pair_read(&p[i]);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)(p[0].g.n_tok - 1) * (size_t)p[0].g.n_vocab * sizeof(float));
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        close_both(&p[i], &h[i]);
    }
}

/* The draft vocabulary is kept when the head is quantised. */
static void it_guesses_among_the_same_quantised(void **state)
{
    struct pair p;
    struct head h;
    struct golden_row r;
    struct moe_file *whole;
    char line[4096], from[128];
    int depth, pos;
    struct moe_quantize_options qo = { .ops = kn_ops(KN_ISA_COUNT - 1), .team = team };
    for (int i = 0; i < MOE_PART_COUNT; i++)
        qo.format[i] = KN_F16;
    open_target(&p, *state, KN_ISA_COUNT - 1);
    head_read(&h, *state);
    head_write(&h);
    snprintf(from, sizeof from, "%s.f32", head_path);
    assert_int_equal(rename(head_path, from), 0);
    assert_int_equal(moe_file_open(&whole, from), 0);
    struct moe_quantized *done = calloc(moe_file_tensor_count(whole), sizeof *done);
    assert_int_equal(moe_quantize(head_path, whole, &qo, done), 0);
    moe_file_close(whole);
    remove_all(from);
    free(done);
    assert_int_equal(open_head(&p, &h, KN_ISA_COUNT - 1), 0);
    assert_int_equal(moe_model_load(p.head, &(struct moe_load_options){ .team = team, .io = OFF_IO_PREAD }), 0);
    pair_open(&p, team);
    free(pair_read(&p));
    while (pair_next(h.guesses, line, sizeof line, &depth, &pos, &r))
        assert_true(golden_apart(&h.g, &r, among(&p, &h, pair_guess(&p, depth, pos))) < 0.01);
    close_both(&p, &h);
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

/* Sets a member of config.json; NULL: removes it. */
static void set_member(struct head *h, const char *key, const char *value)
{
    json_t *config = json_loads(h->config, 0, NULL);
    assert_non_null(config);
    if (value)
        assert_int_equal(json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        json_object_del(config, key);
    free(h->config);
    h->config = json_dumps(config, 0);
    json_decref(config);
}

/* Trainers list the outputs of layers or the inputs of the next ones, at two places; without a list the layers are those
 * that EAGLE's code takes, of eight layers the inputs of 2, 4 and 5. */
static void lists_of_layers_mean_the_same(void **state)
{
    static const char *const config[][2] = {
        { "eagle_config", NULL },
        { "eagle_config", "{\"eagle_aux_hidden_state_layer_ids\":[1,3,4],\"use_aux_hidden_state\":true}" },
        { "eagle_aux_hidden_state_layer_ids", "[2,4,5]" },
        { "architectures", "[\"LlamaForCausalLM\"]" },
    };
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct pair p;
        struct head h;
        open_target(&p, "qwen3moe_deep_eagle", KN_ISA_COUNT - 1);
        head_read(&h, "qwen3moe_deep_eagle");
        set_member(&h, config[i][0], config[i][1]);
        head_write(&h);
        assert_int_equal(open_head(&p, &h, KN_ISA_COUNT - 1), 0);
        struct moe_features reads = moe_model_reads(p.head);
        assert_int_equal(reads.n_inner, 3);
        assert_memory_equal(reads.inner, ((int[]){ 2, 4, 5 }), sizeof reads.inner);
        moe_model_close(p.head);
        moe_file_close(h.file);
        close_target(&p, &h);
    }
    unlink(path);
}

/* ---- faults of a file ---------------------------------------------------------------------------------------- */

/* Opens the pair: the head is refused with this code and a line that contains `what`. */
static void assert_said(struct pair *p, struct head *h, int code, const char *what)
{
    const char *fixture = h->config ? "qwen3moe_deep_eagle" : "qwen3moe_norm";
    faults_listen();
    head_write(h);
    int error = open_head(p, h, KN_ISA_COUNT - 1);
    if (!error)
        error = moe_model_load(p->head, &(struct moe_load_options){ .team = team, .io = OFF_IO_PREAD });
    faults_listen_off();
    if (error != code || !strstr(faults.line, what))
        fail_msg("%d, \"%s\" where %d, \"%s\" was to come", error, faults.line, code, what);
    moe_model_close(p->head);
    moe_file_close(h->file);
    p->head = NULL;
    h->file = NULL;
    head_free(h);
    head_read(h, fixture);
}

static char *meta_of(struct head *h, const char *key)
{
    for (int i = 0; i < h->g.n_meta; i++)
        if (strstr(h->g.meta[i], key) == h->g.meta[i])
            return h->g.meta[i];
    fail();
    return NULL;
}

static void what_is_wrong_is_said(void **state)
{
    struct pair p;
    struct head h;
    (void)state;
    open_target(&p, "qwen3moe_norm", KN_ISA_COUNT - 1);
    head_read(&h, "qwen3moe_norm");
    strcpy(meta_of(&h, "eagle3.extract_layers"), "eagle3.extract_layers arr_i32 3 0 1 4");
    assert_said(&p, &h, KN_EUNSUPPORTED, "it reads layer 4, but the model has 3 layers");
    strcpy(meta_of(&h, "eagle3.extract_layers"), "eagle3.target_layers arr_i32 3 0 2 1");
    assert_said(&p, &h, KN_ECORRUPT, "eagle3.target_layers must be layers in ascending order");
    strcpy(meta_of(&h, "eagle3.extract_layers"), "eagle3.extract_layers arr_i32 3 1 0 2");
    assert_said(&p, &h, KN_ECORRUPT, "eagle3.extract_layers must be layers in ascending order");
    strcpy(meta_of(&h, "eagle3.extract_layers"), "eagle3.extract_layers arr_i32 2 0 1");
    assert_said(&p, &h, KN_ECORRUPT, "eagle3.extract_layers is not three layers");
    strcpy(meta_of(&h, "eagle3.target_hidden_size"), "eagle3.target_hidden_size u32 80");
    assert_said(&p, &h, KN_EUNSUPPORTED, "a draft head of width 64 for a model of width 80");
    h.id[7] = 310;
    assert_said(&p, &h, KN_ECORRUPT, "d2t: entry 7 is token 310 of 310");
    h.id[9] = -1;
    assert_said(&p, &h, KN_ECORRUPT, "d2t: entry 9 is token -1");
    h.id[9] = h.id[8];
    assert_said(&p, &h, KN_ECORRUPT, "which an earlier entry lists too");
    h.n_id--;
    assert_said(&p, &h, KN_ECORRUPT, "output.weight has shape");
    h.n_id = 0;
    assert_said(&p, &h, KN_ECORRUPT, "output.weight has shape");
    h.g.n_tensor--;
    assert_said(&p, &h, KN_ECORRUPT, "output.weight is missing");
    close_target(&p, &h);
    unlink(path);
}

static void what_is_wrong_with_a_folder_is_said(void **state)
{
    static const struct {
        const char *key, *value, *what;
        int code;
    } wrong[] = {
        { "num_hidden_layers", "2", "'num_hidden_layers' of an EAGLE-3 head is not 1", KN_EUNSUPPORTED },
        { "model_type", "\"deepseek_v3\"", "'model_type' of an EAGLE-3 head is not llama", KN_EUNSUPPORTED },
        { "eagle_config", "{\"use_aux_hidden_state\":false}", "it reads the last layer alone", KN_EUNSUPPORTED },
        { "layer_types", "[\"sliding_attention\"]", "is not full_attention", KN_EUNSUPPORTED },
        { "fc_norm", "true", "tensor fc_norm.0.weight is missing", KN_ECORRUPT },
        { "eagle_config", "{\"norm_before_fc\":true}", "tensor enc.output_norm.weight is missing", KN_ECORRUPT },
        { "norm_before_residual", "1", "is neither true nor false", KN_EUNSUPPORTED },
        { "eagle_aux_hidden_state_layer_ids", "[1,2]", "does not name three layers", KN_EUNSUPPORTED },
        { "eagle_aux_hidden_state_layer_ids", "[1,2,\"3\"]", "does not name three layers", KN_EUNSUPPORTED },
        { "eagle_aux_hidden_state_layer_ids", "[2,4,9]", "it reads layer 9, but the model has 8 layers",
          KN_EUNSUPPORTED },
        { "eagle_aux_hidden_state_layer_ids", "[5,4,2]", "must be layers in ascending order", KN_ECORRUPT },
        { "vocab_size", "304", "it has 304 tokens, not 305", KN_EUNSUPPORTED },
        { "vocab_size", "null", "eagle3.vocab_size is missing", KN_ECORRUPT },
        { "target_hidden_size", "128", "a draft head of width 64 for a model of width 128", KN_EUNSUPPORTED },
        { "tie_word_embeddings", "3", "'tie_word_embeddings' is neither true nor false", KN_ECORRUPT },
        { "hidden_act", "\"relu2\"", "'hidden_act' is not silu", KN_EUNSUPPORTED },
        { "hidden_size", "96", "its features have 96 values, not 64", KN_EUNSUPPORTED },
    };
    struct pair p;
    struct head h;
    (void)state;
    open_target(&p, "qwen3moe_deep_eagle", KN_ISA_COUNT - 1);
    head_read(&h, "qwen3moe_deep_eagle");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        set_member(&h, wrong[i].key, wrong[i].value);
        assert_said(&p, &h, wrong[i].code, wrong[i].what);
    }
    h.id[109] = 196;
    assert_said(&p, &h, KN_ECORRUPT, "d2t: entry 109 is token 305 of 305");
    h.id[3] = INT32_MIN;
    assert_said(&p, &h, KN_ECORRUPT, "d2t: entry 3 is token -2147483645");
    h.g.tensor[h.g.n_tensor] = h.g.tensor[1];
    strcpy(h.g.tensor[h.g.n_tensor++].name, "midlayer.self_attn.q_norm.weight");
    assert_said(&p, &h, KN_EUNSUPPORTED, "is no part of a eagle3 model");
    strcpy(h.g.tensor[0].name, "fc_norm.0.weight");
    assert_said(&p, &h, KN_ECORRUPT, "fc.weight is missing");
    close_target(&p, &h);
    unlink(path);
}

/* Older heads have weights in Python's own format: the line says how to convert them. */
static void weights_in_pickles_are_refused(void **state)
{
    struct moe_file *f = NULL;
    struct head h;
    (void)state;
    head_read(&h, "qwen3moe_deep_eagle");
    mkdir(head_path, 0777);
    hf_save(head_path, "config.json", h.config, strlen(h.config));
    hf_save(head_path, "pytorch_model.bin", "PK", 2);
    faults_listen();
    assert_int_equal(moe_file_open(&f, head_path), KN_EUNSUPPORTED);
    faults_listen_off();
    assert_non_null(strstr(faults.line, "torch.load('pytorch_model.bin')"));
    head_free(&h);
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/spillway-eagle3-%d.gguf", (int)getpid());
    snprintf(head_path, sizeof head_path, "/tmp/spillway-eagle3-%d-head.gguf", (int)getpid());
    return kn_team_open(&team, 2);
}

static int teardown(void **state)
{
    (void)state;
    kn_team_close(team);
    return 0;
}

#define OF(test, target)                                                                                               \
    {                                                                                                                  \
#test "(" target ")", test, NULL, NULL, (void *)target                                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OF(guesses_are_those_of_transformers, "qwen3moe_norm"),
        OF(guesses_are_those_of_transformers, "glm4moe"),
        OF(guesses_are_those_of_transformers, "qwen3moe_deep_eagle"),
        OF(guesses_are_those_of_transformers, "qwen3moe_deep_speculators"),
        OF(guesses_are_those_of_transformers, "qwen3moe_deep_eagle31"),
        OF(guesses_are_those_of_transformers, "qwen3moe_deep_last"),
        OF(rows_of_both_kinds_share_a_pass, "qwen3moe_norm"),
        OF(rows_of_both_kinds_share_a_pass, "glm4moe"),
        OF(rows_of_both_kinds_share_a_pass, "qwen3moe_deep_eagle31"),
        OF(every_instruction_set_says_the_same, "qwen3moe_norm"),
        OF(it_guesses_among_the_same_quantised, "qwen3moe_norm"),
        OF(it_guesses_among_the_same_quantised, "qwen3moe_deep_eagle"),
        cmocka_unit_test(lists_of_layers_mean_the_same),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(what_is_wrong_with_a_folder_is_said),
        cmocka_unit_test(weights_in_pickles_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
