/* Medusa heads: their logits are those of torch (tests/fixtures/make_medusa.py), with the same bits on every instruction
 * set, in any batch and in either published layout; they take the memory that they announce, and fail cleanly without
 * it; a draft is the likeliest combinations of the heads' tokens, from the feature of the right token; heads of random
 * weights change no answer; folders that cannot be read are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "engine/draft/medusa.h"
#include "speculative/internal.h"
#include "tests/engine/medusa_heads.h"
#include "tests/engine/reload.h"
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

static struct eng_medusa *open_heads(struct moe_file **file, const char *from, const struct kn_ops *ops, int most_row)
{
    struct eng_medusa *m;
    assert_int_equal(moe_file_open(file, from), 0);
    assert_int_equal(eng_medusa_open(&m, *file, ops), 0);
    assert_int_equal(eng_medusa_load(m, team, OFF_IO_AUTO, most_row), 0);
    return m;
}

static void close_heads(struct eng_medusa *m, struct moe_file *file)
{
    eng_medusa_close(m);
    moe_file_close(file);
}

/* Computes head h for the features at .. at + n - 1. */
static void compute(struct eng_medusa *m, int h, int at, int n)
{
    for (int i = 0; i < n; i++)
        memcpy(eng_medusa_feature(m, i), feature[at + i], sizeof feature[0]);
    eng_medusa_compute(m, team, h, n);
}

static void logits_are_those_of_torch(void **state)
{
    (void)state;
    static float first[FEATURES][HEADS][TOKENS];
    read_golden();
    for (int isa = KN_ISA_COUNT - 1; isa >= 0; isa--) {
        struct moe_file *file;
        struct eng_medusa *m = open_heads(&file, FIXTURE, kn_ops((enum kn_isa)isa), FEATURES);
        struct eng_medusa_shape s = eng_medusa_shape(m);
        assert_true(s.n_head == HEADS && s.n_layer == LAYERS && s.d_model == WIDTH && s.n_vocab == TOKENS);
        for (int h = 0; h < HEADS; h++)
            for (int n = 1; n <= FEATURES; n += FEATURES - 1) /* alone, and all together */
                for (int at = 0; at < FEATURES; at += n) {
                    compute(m, h, at, n);
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
        close_heads(m, file);
    }
}

/* ---- layouts ----------------------------------------------------------------------------------------------- */

static void write_config(const char *text) { hf_save(folder, "config.json", text, strlen(text)); }

static void remove_file(const char *name)
{
    char file[192];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    unlink(file);
}

enum renaming { VLLM, VLLM_PREFIX, VLLM_SHARED, AUTHORS_SHARED };

/* The name in `to` of head h, block l, of a bias or not; l LAYERS: its output matrix. */
static void name_in(char *name, size_t bytes, enum renaming to, int h, int l, bool bias)
{
    const char *before = to == VLLM_PREFIX ? "medusa_heads." : "", *kind = bias ? "bias" : "weight";
    if (to == AUTHORS_SHARED)
        snprintf(name, bytes, l == LAYERS ? "%d.%d.weight" : "%d.%d.linear.%s", h, l, kind);
    else if (l == LAYERS)
        snprintf(name, bytes, "%slm_heads.%d.weight", before, h);
    else
        snprintf(name, bytes, "%sblocks.%d.layers.%d.%s", before, h, l, kind);
}

static void copy_tensor(struct hf_file *to, const struct moe_file *file, const char *from, const char *name)
{
    const struct moe_tensor *t = moe_file_find_tensor(file, from);
    assert_non_null(t);
    void *data = malloc(t->bytes);
    assert_int_equal(moe_file_read(file, t, 0, data, t->bytes), 0);
    hf_add_raw(to, name,
               t->gguf_type == 0   ? "F32"
               : t->gguf_type == 1 ? "F16"
                                   : "BF16",
               data, t->bytes, t->dim, t->dim[1] > 1 ? 2 : 1);
    free(data);
}

/* Writes the fixture's heads under other names; SHARED: with the first head's output matrix, once for vLLM, and for
 * each head for the authors. */
static void write_renamed(enum renaming to)
{
    struct hf_file out = { 0 };
    struct moe_file *file;
    char from[64], name[64];
    assert_int_equal(moe_file_open(&file, FIXTURE), 0);
    for (int h = 0; h < HEADS; h++)
        for (int l = 0; l <= LAYERS; l++)
            for (int bias = 0; bias <= (l < LAYERS); bias++) {
                bool shared = l == LAYERS && (to == VLLM_SHARED || to == AUTHORS_SHARED);
                name_in(from, sizeof from, AUTHORS_SHARED, shared ? 0 : h, l, bias);
                name_in(name, sizeof name, to, h, l, bias);
                if (!shared || !h || to == AUTHORS_SHARED)
                    copy_tensor(&out, file, from, name);
            }
    moe_file_close(file);
    remove_file(MEDUSA_FILE);
    remove_file("model.safetensors");
    hf_close(&out, folder, to == AUTHORS_SHARED ? MEDUSA_FILE : "model.safetensors");
    write_config(to == AUTHORS_SHARED ? "{\"medusa_num_heads\": 3}"
                 : to == VLLM_SHARED  ? "{\"model_type\": \"medusa\", \"num_heads\": 3, \"num_hidden_layers\": 2, "
                                        "\"medusa_fc_bias\": true, \"original_lm_head\": true}"
                                      : "{\"model_type\": \"medusa\", \"num_heads\": 3, \"num_hidden_layers\": 2, "
                                        "\"medusa_fc_bias\": true, \"vocab_size\": 50, \"truncated_vocab_size\": 50}");
}

/* Both folders give the same logits of all heads, bit by bit. */
static void compare(const char *one, const char *other)
{
    struct moe_file *file[2];
    const struct kn_ops *ops = kn_ops(KN_ISA_COUNT - 1);
    struct eng_medusa *a = open_heads(&file[0], one, ops, 2), *b = open_heads(&file[1], other, ops, 2);
    assert_int_equal(eng_medusa_shape(b).n_head, HEADS);
    for (int h = 0; h < HEADS; h++) {
        compute(a, h, 1, 2);
        compute(b, h, 1, 2);
        for (int i = 0; i < 2; i++)
            assert_memory_equal(eng_medusa_logits(a, i), eng_medusa_logits(b, i), TOKENS * sizeof(float));
    }
    close_heads(a, file[0]);
    close_heads(b, file[1]);
}

static void both_layouts_are_read(void **state)
{
    (void)state;
    char authors[112];
    read_golden();
    for (int to = VLLM; to <= VLLM_PREFIX; to++) {
        write_renamed((enum renaming)to);
        compare(FIXTURE, folder);
    }
    snprintf(authors, sizeof authors, "%s", folder);
    folder[strlen(folder) - 1] ^= 1;
    mkdir(folder, 0700);
    write_renamed(VLLM_SHARED);
    char vllm[112];
    snprintf(vllm, sizeof vllm, "%s", folder);
    strcpy(folder, authors);
    write_renamed(AUTHORS_SHARED);
    compare(folder, vllm);
    remove_medusa(vllm);
}

/* Published folders say 2 heads where the file has 5. */
static void heads_are_counted_in_the_file(void **state)
{
    static const char *const said[] = { "{\"medusa_num_heads\": 2, \"medusa_num_layers\": 1}",
                                        "{\"medusa_num_heads\": 5, \"medusa_num_layers\": 1}" };
    (void)state;
    struct moe_file *file;
    struct eng_medusa *m;
    faults.most = KN_LOG_INFO;
    write_medusa(folder, &(struct medusa_made){ .n_head = 5, .d = 16, .n_token = 20 });
    for (int i = 0; i < 2; i++) {
        write_config(said[i]);
        faults_listen();
        m = open_heads(&file, folder, kn_ops(0), 1);
        faults_listen_off();
        assert_int_equal(eng_medusa_shape(m).n_head, 5);
        assert_int_equal(faults.n_line, !i);
        assert_true(i || strstr(faults.line, "config.json says medusa_num_heads 2, but the file has 5"));
        close_heads(m, file);
    }
    write_medusa(folder, &(struct medusa_made){ .n_head = 9, .d = 16, .n_token = 20 });
    faults_listen();
    m = open_heads(&file, folder, kn_ops(0), 1);
    faults_listen_off();
    assert_int_equal(eng_medusa_shape(m).n_head, ENG_MEDUSA_HEADS);
    assert_non_null(strstr(faults.line, "the first 8 of its 9 Medusa heads draft"));
    faults.most = KN_LOG_WARN;
    close_heads(m, file);
}

/* ---- folders that are refused -------------------------------------------------------------------------------- */

static void refused(const char *what)
{
    struct eng_options o = asked_options(
        (struct eng_options){ .n_parallel = 1, .n_chunk = 100, .gamma = 2, .n_draft = 1 }, 0);
    struct eng_engine *e;
    char wish[128];
    snprintf(wish, sizeof wish, "medusa:%s", folder);
    assert_int_equal(eng_draft_parse(&o.draft[0], wish), 0);
    faults_listen();
    assert_true(eng_open(&e, &o) < 0);
    faults_listen_off();
    if (!strstr(faults.last, what))
        fail_msg("'%s' is not in: %s", what, faults.last);
}

static void other_folders_are_refused(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine(1, 100, 0);
    struct medusa_made m = { .n_head = 2,
                             .d = moe_model_shape(e->assets.model)->d_model,
                             .n_token = moe_model_shape(e->assets.model)->n_vocab };
    static const struct {
        const char *wrong, *said;
        int more_width, more_tokens;
    } authors[] = { { "1.0.linear.bias", "x1.0.linear.bias", 0, 0 },
                    { "0.1.weight", "x0.1.weight", 0, 0 },
                    { NULL, "its Medusa heads are for", 0, 1 },
                    { NULL, "its Medusa heads are for", 1, 0 } };
    close_engine(e);
    for (size_t i = 0; i < sizeof authors / sizeof *authors; i++) {
        struct medusa_made other = m;
        other.wrong = authors[i].wrong;
        other.d += authors[i].more_width;
        other.n_token += authors[i].more_tokens;
        write_medusa(folder, &other);
        refused(authors[i].said);
    }
    remove_file(MEDUSA_FILE);
    hf_save(folder, "medusa_lm_head.pt", "PK", 2);
    refused(".clone().contiguous()");
    remove_file("medusa_lm_head.pt");
    refused(MEDUSA_FILE);
    write_config("{\"medusa_num_heads\": 2, \"model_type\": \"llama\"}"); /* a model that heads were merged into */
    refused("model.safetensors");
    m.vllm = true;
    write_medusa(folder, &m);
    write_config("{\"model_type\": \"medusa\", \"vocab_size\": 300, \"truncated_vocab_size\": 30}");
    refused("truncated_vocab_size");
    write_config("{\"model_type\": \"medusa\", \"logit_scale\": 0.5}");
    refused("logit_scale");
    m.wrong = "blocks.1.layers.0.weight";
    write_medusa(folder, &m);
    refused("xblocks.1.layers.0.weight");
    remove_file("model.safetensors");
}

/* A tensor is missing, has another shape, or there is one too many. */
static void tensors_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        const char *name[4];
        int n_out[4];
        const char *said;
    } folders[] = { { { "0.0.linear.weight", "0.1.weight", "1.1.weight" }, { 8, 9, 9 }, "tensor 1.0.linear.weight" },
                    { { "0.0.linear.weight", "0.1.weight", "1.0.linear.weight", "1.1.weight" },
                      { 8, 9, 7, 9 },
                      "tensor 1.0.linear.weight has 7 rows of 8 values; 8 of 8 are needed" },
                    { { "0.0.linear.weight" }, { 8 }, "without output matrices" },
                    { { "0.0.linear.weight", "0.1.weight", "medusa_heads.0.1.weight" }, { 8, 9, 9 }, "another name" },
                    { { "0.8.linear.weight", "0.9.weight" }, { 8, 9 }, "have 9 blocks; at most 8" },
                    { { "0.0.linear.weight", "0.1.weight", "token_map" }, { 8, 9, 8 }, "part of the vocabulary" } };
    (void)state;
    float x[81] = { 0 };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct hf_file f = { 0 };
        struct moe_file *file = NULL;
        struct eng_medusa *m;
        for (int k = 0; k < 4 && folders[i].name[k]; k++)
            hf_add(&f, folders[i].name[k], x, (uint64_t[]){ 8, (uint64_t)folders[i].n_out[k] }, 2, false);
        hf_close(&f, folder, MEDUSA_FILE);
        write_config("{\"medusa_num_heads\": 2, \"medusa_num_layers\": 1}");
        faults_listen();
        assert_true(moe_file_open(&file, folder) || eng_medusa_open(&m, file, kn_ops(0)));
        faults_listen_off();
        moe_file_close(file);
        if (!strstr(faults.last, folders[i].said))
            fail_msg("'%s' is not in: %s", folders[i].said, faults.last);
    }
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static size_t allocated, mapped;

static void *counted_alloc(size_t bytes)
{
    allocated += bytes;
    return kn_io_system.alloc(bytes);
}

static void *counted_map(size_t bytes, int node)
{
    mapped += bytes;
    return kn_io_system.map(bytes, node);
}

/* No load takes more than was announced but for small lists, since a copy of a matrix would break a memory limit. */
static void loading_takes_the_announced_memory(void **state)
{
    (void)state;
    enum { BIG = 256, MANY = 8000 };
    struct kn_io io = kn_io_system;
    struct moe_file *file;
    struct eng_medusa *m;
    io.alloc = counted_alloc;
    io.map = counted_map;
    write_medusa(folder, &(struct medusa_made){ .n_head = 2, .d = BIG, .n_token = MANY });
    assert_int_equal(moe_file_open(&file, folder), 0);
    assert_int_equal(eng_medusa_open(&m, file, kn_ops(KN_ISA_COUNT - 1)), 0);
    struct eng_medusa_bytes bytes = eng_medusa_bytes(m, team, 3);
    kn_io_set(&io);
    allocated = mapped = 0;
    assert_int_equal(eng_medusa_load(m, team, OFF_IO_PREAD, 3), 0);
    kn_io_set(NULL);
    assert_true(bytes.weights > 2 * 2 * BIG * MANY && bytes.pass > bytes.weights * 4 / 10 &&
                bytes.pass < bytes.weights * 6 / 10);
    if (allocated + mapped > bytes.weights + bytes.buffers + 65536)
        fail_msg("%zu bytes allocated, %zu mapped; announced are %zu and %zu", allocated, mapped, bytes.weights,
                 bytes.buffers);
    close_heads(m, file);
}

static int open_and_load(void)
{
    struct moe_file *file = NULL;
    struct eng_medusa *m = NULL;
    int error = moe_file_open(&file, folder);
    if (!error && !(error = eng_medusa_open(&m, file, kn_ops(0))))
        error = eng_medusa_load(m, team, OFF_IO_PREAD, 2);
    eng_medusa_close(m);
    moe_file_close(file);
    return error;
}

/* Each allocation fails once, and all reads from one on. */
static void failures_leave_nothing_behind(void **state)
{
    static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_MAP, FAULT_OPEN, FAULT_READ };
    (void)state;
    write_medusa(folder, &(struct medusa_made){ .n_head = 2, .d = 16, .n_token = 20 });
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int n = 1;
        for (bool struck = true; struck; n++) {
            faults_at(kinds[i], n, kinds[i] == FAULT_READ ? FAULT_LASTS : FAULT_ERROR,
                      kinds[i] == FAULT_READ ? EIO : ENOMEM); /* a direct read is tried again as another */
            int error = open_and_load();
            struck = faults.struck;
            assert_true(faults_clean());
            if (!struck)
                assert_int_equal(error, 0);
            else if (kinds[i] != FAULT_OPEN && !(error < 0 && faults.n_line > 0)) /* a file may be absent */
                fail_msg("kind %d, call %d: %d, '%s'", (int)kinds[i], n, error, faults.last);
        }
        assert_true(n > 3);
    }
    faults_off();
}

/* ---- drafts -------------------------------------------------------------------------------------------------- */

static void prepare(struct eng_options *o, int n_head, const char *options)
{
    struct eng_engine *e = open_engine(1, 100, 0);
    const struct moe_shape *shape = moe_model_shape(e->assets.model);
    char wish[128];
    medusa_seed = random_state = 4;
    write_medusa(folder, &(struct medusa_made){ .n_head = n_head, .d = shape->d_model, .n_token = shape->n_vocab });
    close_engine(e);
    snprintf(wish, sizeof wish, "medusa:%s%s", folder, options);
    assert_int_equal(eng_draft_parse(&o->draft[0], wish), 0);
    o->n_draft = 1;
}

/* Heads that know nothing are harmless: in a crowd, with preemption, beside another drafter, with the controller. */
static void drafts_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .gamma = 3 + 4 * i };
        prepare(&o, 2 + i, i == 1 ? ",tree=chain" : "");
        if (i == 3)
            o.gamma = ENG_GAMMA_AUTO;
        else if (i == 2)
            assert_int_equal(eng_draft_parse(&o.draft[o.n_draft++], "ngram"), 0);
        struct eng_engine *e = open_engine_with(o, i ? 9 : 0);
        assert_true(!e->drafting->beside && !e->drafting->prompts.row); /* the heads read no prompts */
        asked_meddle = i == 2 ? reload_at_times : NULL;
        run_crowd(e, SHARE(20));
        asked_meddle = NULL;
        if (WHOLE && o.gamma != ENG_GAMMA_AUTO) /* which by the clock may draft nothing; a small crowd neither */
            assert_true(e->stats.n_draft > 0);
        close_engine(e);
    }
}

/* The first forecast: a pass reads one head, whatever their number. */
static void a_pass_costs_one_head(void **state)
{
    (void)state;
    for (int n_head = 1; n_head <= 4; n_head += 3) {
        struct eng_options o = { .n_parallel = 1, .n_chunk = 100, .n_thread = 2, .gamma = ENG_GAMMA_AUTO };
        prepare(&o, n_head, "");
        struct eng_engine *e = open_engine_with(o, 0);
        const struct moe_shape *s = moe_model_shape(e->assets.model);
        double its = 2.0 * s->d_model * (s->d_model + s->n_vocab) / (double)s->pass_bytes; /* BF16 */
        double share = spec_control_draft_ns(e->drafting->control, 0, 1, false) / e->drafting->cost.fixed_ns;
        if (!(share > 0.9 * its && share < 1.3 * its)) /* whole pages */
            fail_msg("%d heads: a pass takes %.3f of the model's, by its weights %.3f", n_head, share, its);
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

/* ---- which tokens are drafted ------------------------------------------------------------------------------------ */

enum { N_HEAD = 3, N_RANK = 10, MOST_PATH = N_RANK + N_RANK * N_RANK + N_RANK * N_RANK * N_RANK };

struct guessed { /* the heads' answers for one draft */
    struct spec_top top[N_HEAD][N_RANK];
    int likeliest[N_HEAD];
};

static void guess(struct guessed *g, struct eng_medusa *m, struct eng_engine *e, const struct eng_session *s)
{
    const struct eng_seq *seq = &s->seq;
    moe_context_feature(e->assets.context, seq->path.slot[seq->n_token - 2], eng_medusa_feature(m, 0));
    for (int h = 0; h < N_HEAD; h++) {
        eng_medusa_compute(m, team, h, 1);
        g->likeliest[h] = largest(eng_medusa_logits(m, 0), n_vocab);
        assert_int_equal(spec_rank(e->assets.sampler[0], seq->sampling, eng_medusa_logits(m, 0), seq->token,
                                   seq->n_token, seq->n_token + h, N_RANK, g->top[h]),
                         N_RANK);
    }
}

static int descending(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* The tree has the n likeliest of all combinations of the heads' tokens, and each survival is the product of its
 * tokens' probabilities. */
static void check_tree(const struct spec_tree *t, const struct guessed *g)
{
    static float all[MOST_PATH];
    float mine[SPEC_NODES];
    int n = 0;
    for (int i = 0; i < N_RANK; i++) {
        float first = all[n++] = kn_expf(g->top[0][i].logprob);
        for (int k = 0; k < N_RANK; k++) {
            float second = all[n++] = first * kn_expf(g->top[1][k].logprob);
            for (int l = 0; l < N_RANK; l++)
                all[n++] = second * kn_expf(g->top[2][l].logprob);
        }
    }
    assert_int_equal(n, MOST_PATH);
    qsort(all, MOST_PATH, sizeof *all, descending);
    for (int i = 0; i < t->n; i++) {
        int depth = t->depth[i] - 1, rank = 0;
        assert_in_range(depth, 0, N_HEAD - 1);
        while (rank < N_RANK && g->top[depth][rank].token != t->token[i])
            rank++;
        assert_true(rank < N_RANK);
        float before = t->parent[i] == SPEC_ROOT ? 1 : t->survival[t->parent[i]];
        assert_true(t->survival[i] == before * kn_expf(g->top[depth][rank].logprob));
        mine[i] = t->survival[i];
    }
    qsort(mine, (size_t)t->n, sizeof *mine, descending);
    assert_memory_equal(mine, all, (size_t)t->n * sizeof *mine);
}

/* At temperature 0 a chain's token i is the likeliest of head i; a tree has the likeliest combinations; each from the
 * feature of the token before the last. */
static void check_drafts(const char *options, int gamma, float temperature)
{
    enum { N_PROMPT = 6, N_SAID = 20 };
    struct eng_options o = { .n_parallel = 2, .n_chunk = 100, .n_thread = 1, .gamma = gamma };
    prepare(&o, N_HEAD, options);
    struct eng_engine *e = open_engine_with(o, 0);
    struct moe_file *file;
    struct eng_medusa *m = open_heads(&file, folder, moe_model_ops(e->assets.model), 1);
    struct eng_session *s;
    int32_t text[N_PROMPT];
    int n_compared = 0, deepest = 0;
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = 3 + 7 * i;
    struct eng_request r = request(text, N_PROMPT, N_SAID, 1);
    r.sampling.temperature = temperature;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    while (eng_session_runs(s)) {
        struct guessed g;
        bool drafts = s->seat && s->seq.n_kv == s->seq.n_token - 1 && s->seq.n_token > N_PROMPT;
        if (drafts)
            guess(&g, m, e, s);
        assert_true(eng_step(e, event) >= 0);
        const struct spec_tree *t = s->seq.tree;
        if (!drafts || !t)
            continue;
        if (!*options)
            check_tree(t, &g);
        for (int i = 0; i < t->n; i++, n_compared++) {
            deepest = kn_max(deepest, t->depth[i]);
            if (*options)
                assert_int_equal(t->token[i], g.likeliest[i]);
        }
    }
    assert_true(n_compared > N_SAID && (gamma < N_HEAD || deepest == N_HEAD || !*options));
    eng_session_close(s);
    close_heads(m, file);
    close_engine(e);
}

static void heads_read_the_last_feature(void **state)
{
    (void)state;
    check_drafts(",tree=chain", N_HEAD, 0);
    check_drafts(",tree=chain", 2, 0);
}

static void trees_have_the_likeliest_combinations(void **state)
{
    (void)state;
    for (int gamma = 2; gamma <= 24; gamma += 11) {
        check_drafts("", gamma, 0);
        check_drafts("", gamma, 0.7f);
    }
}

static int setup_all(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/spillway-medusa-%d", getpid());
    return setup_asked(state, 21) || kn_team_open(&team, 2) || mkdir(folder, 0700) ? -1 : 0;
}

static int teardown_all(void **state)
{
    remove_medusa(folder);
    kn_team_close(team);
    return teardown_asked(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_torch),
        cmocka_unit_test(both_layouts_are_read),
        cmocka_unit_test(heads_are_counted_in_the_file),
        cmocka_unit_test(other_folders_are_refused),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused),
        cmocka_unit_test(loading_takes_the_announced_memory),
        cmocka_unit_test(failures_leave_nothing_behind),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(a_pass_costs_one_head),
        cmocka_unit_test(heads_read_the_last_feature),
        cmocka_unit_test(trees_have_the_likeliest_combinations),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
