/* MTP layers against independent code: their logits, for one token and several tokens in advance, from a
 * transformers model of the same family (tests/fixtures/make_ahead.py); the same bytes for every location of their
 * experts; they are loaded only on request; and a missing part of a file is reported.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan.  test_eagle3.c and test_forward.c run
 * nearly all of its code: not under MODE=asan. */
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/faults.h"
#include "tests/moe/change.h"
#include "tests/moe/hf_folder.h"
#include "tests/moe/load.h"
#include "tests/moe/pair.h"

static char path[96], model[96]; /* path of a file, and of a folder */
static struct kn_team *team;

static const char *pack_path, *heat_path; /* options of the models opened next; NULL: none */

static void open_written(struct pair *p, const char *where, enum kn_isa isa, bool little)
{
    assert_int_equal(moe_file_open(&p->file, where), 0);
    pair_model(p, isa, true);
    assert_int_equal(moe_model_open_ahead(&p->head, p->model), 0);
    size_t least = moe_model_shape(p->model)->expert_least;
    struct moe_load_options lo = { .team = team,
                                   .expert_bytes = little ? least : 0,
                                   .io = OFF_IO_PREAD,
                                   .pack_path = pack_path,
                                   .heat_path = heat_path };
    assert_int_equal(moe_model_load(p->model, &lo), 0);
    lo.again = true;
    assert_int_equal(moe_model_load(p->head, &lo), 0);
    moe_model_unload(p->head);
    assert_int_equal(moe_model_load(p->head, &lo), 0);
    pair_open(p, team);
}

static void open_pair(struct pair *p, const char *name, enum kn_isa isa, bool little)
{
    memset(p, 0, sizeof *p);
    assert_int_equal(golden_read(&p->g, name), 0);
    assert_int_equal(golden_write(&p->g, path), 0);
    open_written(p, path, isa, little);
}

static void close_pair(struct pair *p)
{
    pair_close(p);
    unlink(path);
}

static void guesses_are_those_of_transformers(void **state)
{
    struct pair p;
    struct golden_row r;
    char line[4096], name[128];
    int depth, pos, n[DEPTH + 1] = { 0 };
    double worst[DEPTH + 1] = { 0 };
    open_pair(&p, *state, KN_ISA_COUNT - 1, false);
    float *logits = pair_read(&p);
    snprintf(name, sizeof name, "tests/fixtures/golden/%s.ahead", (const char *)*state);
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    while (pair_next(f, line, sizeof line, &depth, &pos, &r)) {
        const float *got = pair_guess(&p, depth, pos);
        n[depth]++;
        worst[depth] = fmax(worst[depth], golden_apart(&p.g, &r, got));
        if (depth == 1) /* one row alone as in a chunk */
            assert_memory_equal(got, logits + (size_t)pos * (size_t)p.g.n_vocab, (size_t)p.g.n_vocab * sizeof *got);
    }
    fclose(f);
    free(logits);
    for (int i = 1; i <= DEPTH; i++) {
        print_message("%s, %d ahead: largest difference / largest logit %.1e of %d\n", (char *)*state, i, worst[i],
                      n[i]);
        assert_true(n[i] > 20 && worst[i] < TOLERANCE);
    }
    close_pair(&p);
}

/* Two slots for all experts, the layer's and the model's; and another instruction set. */
static void its_experts_are_where_the_others_are(void **state)
{
    struct pair all, few;
    open_pair(&all, *state, KN_ISA_COUNT - 1, false);
    open_pair(&few, *state, KN_ISA_AVX2, true);
    const struct moe_shape *s = moe_model_shape(all.model);
    assert_true(moe_model_store(all.head) == moe_model_store(all.model));
    assert_int_equal(s->n_expert_ahead, s->n_expert);
    float *a = pair_read(&all), *b = pair_read(&few);
    assert_memory_equal(a, b, (size_t)(all.g.n_tok - 1) * (size_t)all.g.n_vocab * sizeof *a);
    struct off_stats stats;
    off_stats_get(moe_model_store(few.model), &stats);
    assert_int_equal(stats.n_expert, s->n_expert_total + s->n_expert);
    assert_true(stats.n_slot < stats.n_expert / 2);
    free(a);
    free(b);
    close_pair(&all);
    close_pair(&few);
}

/* As published: the layer under its published names, with its own copies of the model's embedding and head. */
static void a_folder_guesses_the_same(void **state)
{
    struct hf_folder h;
    struct pair file = { .file = NULL }, hf = { .file = NULL };
    char command[128];
    assert_int_equal(hf_folder_read(&h, *state), 0);
    int n_layer = hf_config_int(&h, "num_hidden_layers");
    for (int i = 0; i < 2 && !strstr(h.config, "linear_attention"); i++) {
        struct hf_tensor *t = &h.tensor[h.n_tensor++];
        *t = (struct hf_tensor){ .how = "whole" };
        strcpy(t->gguf, i ? "output.weight" : "token_embd.weight");
        snprintf(t->name, sizeof t->name, "model.layers.%d.%s.weight", n_layer,
                 i ? "shared_head.head" : "embed_tokens");
    }
    hf_folder_write(&h, model, false, 2);
    assert_int_equal(hf_folder_gguf(&h, path, false), 0);
    assert_int_equal(golden_read(&file.g, *state), 0);
    assert_int_equal(golden_read(&hf.g, *state), 0);
    open_written(&file, path, KN_ISA_COUNT - 1, false);
    open_written(&hf, model, KN_ISA_COUNT - 1, true);
    const struct moe_shape *a = moe_model_shape(file.model), *b = moe_model_shape(hf.model);
    assert_true(a->n_ahead == b->n_ahead && a->ahead_bytes == b->ahead_bytes && a->dense_bytes == b->dense_bytes);
    float *x = pair_read(&file), *y = pair_read(&hf);
    assert_memory_equal(x, y, (size_t)(hf.g.n_tok - 1) * (size_t)hf.g.n_vocab * sizeof *x);
    free(x);
    free(y);
    close_pair(&hf);
    close_pair(&file);
    hf_folder_free(&h);
    snprintf(command, sizeof command, "rm -rf '%s'", model);
    assert_int_equal(system(command), 0);
}

/* Without the option the layers stay in the file, and the shape reports that the file has them. */
static void nobody_loads_it_unasked(void **state)
{
    struct golden g;
    struct moe_file *file;
    struct moe_model *with, *without = NULL;
    assert_int_equal(golden_read(&g, *state), 0);
    assert_int_equal(golden_write(&g, path), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    assert_int_equal(moe_model_open(&with, file, &(struct moe_model_options){ .ahead = true }), 0);
    assert_int_equal(load_model(&without, file, KN_ISA_COUNT - 1, team, OFF_IO_PREAD), 0);
    const struct moe_shape *a = moe_model_shape(with), *b = moe_model_shape(without);
    struct off_stats stats;
    off_stats_get(moe_model_store(without), &stats);
    assert_int_equal(stats.n_expert, b->n_expert_total);
    assert_int_equal(b->n_expert_ahead, 0);
    assert_true(a->n_ahead == 1 && b->n_ahead == 1 && a->ahead_bytes > 0 && a->ahead_bytes == b->ahead_bytes);
    assert_true(a->expert_bytes > b->expert_bytes && a->dense_bytes == b->dense_bytes);
    assert_true(a->n_expert_total == b->n_expert_total && a->expert_file_bytes == b->expert_file_bytes &&
                a->n_layer == b->n_layer && a->row_macs == b->row_macs);
    moe_model_close(with);
    moe_model_close(without);
    moe_file_close(file);
    unlink(path);
    golden_free(&g);
}

static struct moe_model *load_with_files(const struct moe_file *f, bool ahead)
{
    struct moe_model *m;
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1, .ahead = ahead }), 0);
    assert_int_equal(moe_model_load(m, &(struct moe_load_options){ .team = team,
                                                                   .io = OFF_IO_PREAD,
                                                                   .pack_path = pack_path,
                                                                   .heat_path = heat_path }),
                     0);
    return m;
}

static int n_warm(const struct moe_model *m)
{
    struct off_spot spot[64];
    struct off_stats stats;
    int n = 0;
    off_stats_get(moe_model_store(m), &stats);
    assert_true(stats.n_expert <= 64);
    assert_int_equal(stats.n_packed, moe_model_shape(m)->n_expert_total);
    off_store_look(moe_model_store(m), spot);
    for (uint64_t i = 0; i < stats.n_expert; i++)
        n += spot[i].heat > 0;
    return n;
}

/* The pack and heat files cover the model's own experts only, and are valid with and without such a layer. */
static void the_files_beside_serve_both(void **state)
{
    static char pack[128], heat[128];
    struct golden g;
    struct moe_file *file;
    struct moe_model *m;
    struct off_packed packed;
    struct pair p;
    (void)state;
    snprintf(pack, sizeof pack, "%s.experts", path);
    snprintf(heat, sizeof heat, "%s.heat", path);
    open_pair(&p, "glm4moe", KN_ISA_COUNT - 1, true);
    float *want = pair_read(&p);
    close_pair(&p);

    assert_int_equal(golden_read(&g, "glm4moe"), 0);
    assert_int_equal(golden_write(&g, path), 0);
    golden_free(&g);
    assert_int_equal(moe_file_open(&file, path), 0);
    assert_int_equal(moe_model_open(&m, file, &(struct moe_model_options){ .isa = KN_ISA_COUNT - 1 }), 0);
    struct moe_pack_options po = { .team = team, .io = OFF_IO_PREAD };
    assert_int_equal(moe_model_pack(m, pack, &po, &packed), 0);
    moe_model_close(m);
    pack_path = pack;
    heat_path = heat;
    m = load_with_files(file, true);
    assert_int_equal(n_warm(m), 0);
    moe_model_close(m);
    m = load_with_files(file, false);
    assert_int_equal(n_warm(m), 0);
    moe_model_close(m);
    moe_file_close(file);

    open_pair(&p, "glm4moe", KN_ISA_COUNT - 1, true);
    float *got = pair_read(&p);
    assert_memory_equal(got, want, (size_t)(p.g.n_tok - 1) * (size_t)p.g.n_vocab * sizeof *got);
    for (int i = 0; i < 20; i++) { /* turns that use few experts */
        struct moe_result result;
        struct moe_row row = { .token = p.g.token[i], .position = i, .base = p.slot, .n_base = p.g.n_tok };
        pair_forward(p.context, &row, 1, &result);
        pair_guess(&p, 1, i);
    }
    moe_context_close(p.guesses);
    moe_context_close(p.context);
    moe_model_close(p.head);
    moe_model_close(p.model);
    p.head = p.model = NULL;
    p.guesses = p.context = NULL;
    m = load_with_files(p.file, true);
    int n = n_warm(m);
    moe_model_close(m);
    m = load_with_files(p.file, false);
    assert_true(n > 10 && n_warm(m) == n);
    moe_model_close(m);
    close_pair(&p);
    pack_path = heat_path = NULL;
    unlink(pack);
    unlink(heat);
    free(want);
    free(got);
}

/* A row fails if its expert cannot be read; other rows succeed. */
static void a_failed_read_is_told(void **state)
{
#ifdef __SANITIZE_THREAD__ /* the fault is set while a thread reads */
    print_message("skipped: reads that fail, under ThreadSanitizer\n");
    skip();
#endif
    struct pair p;
    struct moe_result result;
    (void)state;
    open_pair(&p, "glm4moe", KN_ISA_COUNT - 1, true);
    float *logits = pair_read(&p);
    struct moe_row row = { .token = p.g.token[9],
                           .position = 8,
                           .want_logits = true,
                           .base = p.slot + 1,
                           .n_base = p.g.n_tok - 1,
                           .feature_at = p.slot[8] };
    int n_failed = 0;
    faults_listen();
    faults_at(FAULT_READ, 1, FAULT_LASTS, EIO);
    for (int i = 0; i < 12 && !n_failed; i++) { /* two slots may already hold the row's experts */
        row.token = p.g.token[9 + i];
        assert_int_equal(moe_forward(p.guesses, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result), 0);
        n_failed += result.status[0] < 0;
    }
    faults_off();
    faults_listen_off();
    assert_int_equal(n_failed, 1);
    row.token = p.g.token[9];
    do /* a row that joins a failed read fails */
        assert_int_equal(moe_forward(p.guesses, &(struct moe_batch){ .row = &row, .n_row = 1 }, &result), 0);
    while (result.status[0]);
    assert_memory_equal(result.logits, logits + 8 * (size_t)p.g.n_vocab, (size_t)p.g.n_vocab * sizeof *logits);
    free(logits);
    close_pair(&p);
}

/* Files written without the layer, or with a part of it missing. */
static void what_a_file_lacks_is_said(void **state)
{
    static const struct {
        struct change change;
        bool opens;
        const char *says;
    } tries[] = {
        { { .drop = "blk.4.nextn.eh_proj.weight" }, false, "blk.4.nextn.eh_proj.weight is missing" },
        { { .drop = "blk.4.nextn.enorm.weight" }, true, "blk.4.nextn.enorm.weight is missing" },
        { { .drop = "blk.4.nextn.hnorm.weight" }, true, "blk.4.nextn.hnorm.weight is missing" },
        { { .drop = "blk.4.attn_k.weight" }, true, "blk.4.attn_k.weight is missing" },
        { { .drop = "blk.4.ffn_up_exps.weight" }, false, "blk.4.ffn_up_exps.weight is missing" },
        { { .tensor = "blk.4.nextn.eh_proj.weight", .dim = { 64, 64 } }, true, "nextn.eh_proj.weight has shape" },
        { { .tensor = "blk.4.nextn.hnorm.weight", .dim = { 32 } }, true, "nextn.hnorm.weight has shape" },
        { { .tensor = "blk.4.ffn_up_exps.weight", .dim = { 64, 40, 9 } }, false, "ffn_up_exps.weight has shape" },
        { { .add = "blk.4.nextn.more.weight" }, true, "blk.4.nextn.more.weight is no part" },
        { { .drop = "blk.4.nextn.shared_head_norm.weight" }, true, NULL }, /* the model's own is used instead */
    };
    struct golden g;
    struct moe_file *file, *changed;
    struct moe_model *m, *head;
    char other[128];
    (void)state;
    snprintf(other, sizeof other, "%s.other", path);
    assert_int_equal(golden_read(&g, "glm4moe"), 0);
    assert_int_equal(golden_write(&g, path), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        change_write(file, &tries[i].change, other);
        assert_int_equal(moe_file_open(&changed, other), 0);
        assert_int_equal(load_model(&m, changed, KN_ISA_COUNT - 1, team, OFF_IO_PREAD), 0); /* not requested .. */
        moe_model_close(m);
        faults_listen();
        int error = moe_model_open(&m, changed, &(struct moe_model_options){ .ahead = true });
        if (tries[i].opens != !error)
            fail_msg("%zu: %d, %s", i, error, faults.line);
        if (!error && !(error = moe_model_open_ahead(&head, m)))
            moe_model_close(head);
        if (tries[i].opens)
            moe_model_close(m);
        if (!error != !tries[i].says || (error && !strstr(faults.line, tries[i].says)))
            fail_msg("%zu: %d, %s", i, error, faults.line);
        faults_listen_off();
        moe_file_close(changed);
        unlink(other);
    }
    moe_file_close(file);
    unlink(path);
    golden_free(&g);
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/spillway-head-%d.gguf", getpid());
    snprintf(model, sizeof model, "/tmp/spillway-head-%d", getpid());
    return kn_team_open(&team, 2);
}

static int teardown(void **state)
{
    (void)state;
    kn_team_close(team);
    return 0;
}

int main(void)
{
    static char *const name[] = { "glm4moe", "deepseek3_one_group", "qwen3next", "qwen35moe" };
    const struct CMUnitTest tests[] = {
#define EACH(i)                                                                                                        \
    { name[i], guesses_are_those_of_transformers, NULL, NULL, name[i] },                                               \
        { name[i], its_experts_are_where_the_others_are, NULL, NULL, name[i] },                                        \
        { name[i], a_folder_guesses_the_same, NULL, NULL, name[i] },                                                   \
        { name[i], nobody_loads_it_unasked, NULL, NULL, name[i] }
        EACH(0),
        EACH(1),
        EACH(2),
        EACH(3),
        cmocka_unit_test(the_files_beside_serve_both),
        cmocka_unit_test(a_failed_read_is_told),
        cmocka_unit_test(what_a_file_lacks_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
