/* Experts on a device, in the host's memory and on disk: spread by chance, moved at random between passes, in every order in which
 * the emulated device can run its queues.  The logits are the host's, no event is missing, and a device that has no memory, or
 * fails in the middle, ends the pass with an error and leaves nothing waiting.  Passes of a draft by the experts in memory read
 * and move nothing, also while the host evicts experts, and have the logits of other passes where all experts are in memory.
 *
 * Linked with HOST_WRAPS.  One thread computes: not under MODE=tsan. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/emulated/host.h"
#include "tests/moe/load.h"
#include "tests/moe/one_sequence.h"

#define N_VOCAB 400
#define MOST    6 /* rows of a pass */
#define N_POS   64

static const char *const shapes[] = {
    "tiny",         "tiny-gemma4",    "tiny-qwen2moe",  "tiny-olmoe",     "tiny-gpt-oss",
    "tiny-glm4moe", "tiny-qwen3next", "tiny-qwen35moe", "tiny-deepseek2", "tiny-phimoe",
    "tiny-llama4",  "tiny-lite",      "tiny-odd",
};
#define N_SHAPE ((int)(sizeof shapes / sizeof *shapes))

struct tiers {
    struct late_device device;
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *host, *apart;
    size_t slots_bytes; /* of the device: 5 of 8 experts */
};

static int32_t slot[N_POS];

/* The model of the host has no weights yet: logits_of_host() and same_as_host() load them. */
static void open_tiers(struct tiers *t, const char *shape)
{
    char path[64];
    enum kn_format format = strcmp(shape, "tiny-odd") ? strcmp(shape, "tiny") ? KN_Q8_0 : KN_Q4_K : KN_F16;
    snprintf(path, sizeof path, "/tmp/spillway-tiers-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&t->team, 1), 0);
    struct moe_synth_options so = { .shape = shape, .n_vocab = N_VOCAB, .format = format, .seed = 7, .team = t->team };
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&t->file, path), 0);
    unlink(path);
    assert_int_equal(moe_model_open(&t->host, t->file, &(struct moe_model_options){ .isa = kn_isa_best() }), 0);
    for (int i = 0; i < N_POS; i++)
        slot[i] = i;
}

/* expert_bytes: of the host's memory for experts; 0: the least. */
static void open_apart(struct tiers *t, size_t expert_bytes)
{
    struct moe_model_options mo = { .isa = kn_isa_best(), .device = &t->device.base };
    assert_int_equal(moe_model_open(&t->apart, t->file, &mo), 0);
    const struct moe_shape *s = moe_model_shape(t->apart);
    struct moe_load_options lo = { .team = t->team,
                                   .io = OFF_IO_PREAD,
                                   .expert_bytes = expert_bytes ? expert_bytes : s->expert_least };
    assert_int_equal(moe_model_load(t->apart, &lo), 0);
    t->slots_bytes = s->device_expert_bytes * 5 / 8;
}

static void close_apart(struct tiers *t)
{
    moe_model_close(t->apart);
    late_watched = NULL;
    if (late_found())
        fail_msg("%s", late_found());
}

static void close_tiers(struct tiers *t)
{
    moe_model_close(t->host);
    moe_file_close(t->file);
    kn_team_close(t->team);
}

static int open_context(struct moe_context **c, const struct moe_model *m, struct kn_team *team, size_t slots_bytes)
{
    struct moe_context_options o = one_sequence(team, MOST, N_POS, slots_bytes);
    o.n_state = 1;
    return moe_context_open(c, m, &o);
}

/* Computes n tokens of one sequence from a position on; those at odd positions have no logits but the last. */
static void forward_by(int (*pass)(struct moe_context *, const struct moe_batch *, struct moe_result *),
                       struct moe_context *c, int position, int n, struct moe_result *result)
{
    struct moe_row row[MOST];
    lay_sequence(row, slot, position, n, N_VOCAB);
    for (int i = 0; i < n - 1; i++)
        row[i].want_logits = (position + i) % 2 == 0;
    assert_int_equal(pass(c, &(struct moe_batch){ .row = row, .n_row = n }, result), 0);
}

static void forward(struct moe_context *c, int position, int n, struct moe_result *result)
{
    forward_by(moe_forward, c, position, n, result);
}

static const int rows[] = { 5, 1, 1, 6, 2, 1, 4, 1 };
#define N_PASS ((int)(sizeof rows / sizeof *rows))

static float *logits_of_host(const struct tiers *t)
{
    struct moe_context *c;
    float *all = malloc((size_t)N_PASS * MOST * N_VOCAB * sizeof *all);
    struct moe_load_options lo = { .team = t->team, .io = OFF_IO_PREAD };
    assert_int_equal(moe_model_load(t->host, &lo), 0);
    assert_int_equal(open_context(&c, t->host, t->team, 0), 0);
    for (int i = 0, position = 0; i < N_PASS; position += rows[i++]) {
        struct moe_result r;
        forward(c, position, rows[i], &r);
        memcpy(all + (size_t)i * MOST * N_VOCAB, r.logits, (size_t)r.n_want * N_VOCAB * sizeof *all);
    }
    moe_context_close(c);
    return all;
}

static void same_bytes_in_every_order(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPE; i++) {
        struct tiers t = { .apart = NULL };
        open_tiers(&t, shapes[i]);
        float *want = logits_of_host(&t);
        for (int order = 0; order < LATE_ORDERS; order++) {
            struct moe_context *c;
            if (!late_has_run(i * LATE_ORDERS + order))
                continue;
            t.device = late_device_apart(kn_isa_best(), (uint64_t)(17 * i + order));
            t.device.order = (enum late_order)order;
            late_watched = &t.device;
            late_moves = true;
            open_apart(&t, 0);
            assert_int_equal(open_context(&c, t.apart, t.team, t.slots_bytes), 0);
            for (int k = 0, position = 0; k < N_PASS; position += rows[k++]) {
                struct moe_result r;
                forward(c, position, rows[k], &r);
                for (int row = 0; row < rows[k]; row++)
                    assert_int_equal(r.status[row], 0);
                if (memcmp(r.logits, want + (size_t)k * MOST * N_VOCAB, (size_t)r.n_want * N_VOCAB * sizeof *want))
                    fail_msg("%s, order %d, pass %d: other logits; %s", shapes[i], order, k, late_message);
            }
            struct moe_device_stats s = moe_context_device_stats(c);
            struct off_stats store;
            off_stats_get(moe_model_store(t.apart), &store);
            assert_true(s.n_used > 0 && s.n_passed > 0 && s.n_host > 0 && s.n_copied > s.n_passed);
            assert_true(store.n_slot < store.n_expert && store.misses > 0);
            moe_context_close(c);
            close_apart(&t);
        }
        free(want);
        close_tiers(&t);
    }
}

/* ---- further calls: results of the host, and of the device in every order ----------------------------- */

static struct {
    atomic_bool on;     /* this and `at` are read by I/O threads */
    _Atomic int64_t at; /* of the file; reads are of whole pages, so this byte is in those of a few experts */
    int n_row, n_failed;
} lost;

static ssize_t read_unless_lost(int fd, void *to, size_t bytes, int64_t at)
{
    int64_t lost_at = atomic_load(&lost.at);
    if (atomic_load(&lost.on) && lost_at && at <= lost_at && lost_at < at + (int64_t)bytes) {
        errno = EIO;
        return -1;
    }
    return kn_io_system.pread(fd, to, bytes, at);
}

/* Results, one behind the other. */
struct record {
    uint8_t byte[1 << 20];
    size_t n;
};

static void keep(struct record *r, const void *at, size_t bytes)
{
    assert_true(bytes <= sizeof r->byte - r->n);
    memcpy(r->byte + r->n, at, bytes);
    r->n += bytes;
}

/* Statuses, and the logits of the rows that have not failed. */
static void keep_result(struct record *r, const struct moe_batch *b, const struct moe_result *result)
{
    keep(r, result->status, (size_t)b->n_row * sizeof *result->status);
    for (int i = 0, k = 0; i < b->n_row; i++) {
        if (b->row[i].want_logits && !result->status[i])
            keep(r, result->logits + (size_t)k * N_VOCAB, N_VOCAB * sizeof *result->logits);
        k += b->row[i].want_logits;
    }
}

/* Calls `use` for a context of the host, and then for one of the device in each order, which is closed at once.  Both have the least
 * memory for experts. */
static void same_as_host(const char *shape, const struct moe_context_options *opt,
                         void (*use)(struct moe_context *c, struct record *r))
{
    static struct record want, got;
    struct tiers t = { .apart = NULL };
    struct moe_context_options o = *opt;
    struct moe_context *c;
    open_tiers(&t, shape);
    struct moe_load_options lo = { .team = t.team,
                                   .io = OFF_IO_PREAD,
                                   .expert_bytes = moe_model_shape(t.host)->expert_least };
    atomic_store(&lost.on, true);
    assert_int_equal(moe_model_load(t.host, &lo), 0);
    o.team = t.team;
    o.max_row = o.max_want = MOST;
    o.n_slot = o.max_pos = N_POS;
    assert_int_equal(moe_context_open(&c, t.host, &o), 0);
    want.n = 0;
    use(c, &want);
    moe_context_close(c);
    moe_model_close(t.host); /* and its reads end */
    t.host = NULL;
    for (int order = 0; order < LATE_ORDERS; order++) {
        t.device = late_device_apart(kn_isa_best(), (uint64_t)(3 + order));
        t.device.order = (enum late_order)order;
        late_watched = &t.device;
        late_moves = true;
        open_apart(&t, 0);
        o.resident_bytes = t.slots_bytes;
        assert_int_equal(moe_context_open(&c, t.apart, &o), 0);
        got.n = 0;
        use(c, &got);
        moe_context_close(c);
        close_apart(&t);
        assert_int_equal(got.n, want.n);
        for (size_t i = 0; i < got.n; i++)
            if (got.byte[i] != want.byte[i])
                fail_msg("%s, order %d: other results from byte %zu on", shape, order, i);
    }
    atomic_store(&lost.on, false);
    close_tiers(&t);
}

/* ---- rows with experts that cannot be read */

/* Of all rows the last ones have logits.  Others fail before the last layer drops them, and so do some that have. */
static void pass_and_lose(struct moe_context *c, struct record *r)
{
    for (int n = 0; n < 12; n++) {
        struct moe_row row[MOST];
        struct moe_result result;
        struct moe_batch b = { .row = row, .n_row = MOST };
        for (int i = 0; i < MOST; i++)
            row[i] = (struct moe_row){ .token = (n * MOST + i) * 31 % N_VOCAB,
                                       .position = i,
                                       .want_logits = i >= MOST / 2 || (n + i) % 3 == 0,
                                       .base = slot,
                                       .n_base = MOST };
        assert_int_equal(moe_forward(c, &b, &result), 0);
        keep_result(r, &b, &result);
        for (int i = 0; i < MOST; i++, lost.n_row++)
            lost.n_failed += result.status[i] != 0;
    }
}

/* Some experts of the last layer but one are lost. */
static void rows_fail_as_on_the_host(void **state)
{
    static const char *const shape[] = { "tiny-olmoe", "tiny-deepseek2" };
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tiers t = { .apart = NULL };
        char name[64];
        open_tiers(&t, shape[i]); /* the file is the same each time */
        snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", moe_model_shape(t.host)->n_layer - 2);
        const struct moe_tensor *w = moe_file_find_tensor(t.file, name);
        assert_non_null(w);
        atomic_store(&lost.at, (int64_t)(w->offset + w->bytes / 2));
        close_tiers(&t);
        lost.n_row = lost.n_failed = 0;
        same_as_host(shape[i], &(struct moe_context_options){ .n_state = 1 }, pass_and_lose);
        atomic_store(&lost.at, 0);
        assert_in_range(lost.n_failed, lost.n_row / 20, lost.n_row * 3 / 4);
    }
}

/* ---- features, and the accuracy of predictions */

static void pass_and_read_features(struct moe_context *c, struct record *r)
{
    static float feature[N_POS * 512];
    int d_model = c->model->desc.d_model;
    struct moe_result result;
    for (int k = 0, position = 0; k < N_PASS; position += rows[k++]) {
        forward(c, position, rows[k], &result);
        moe_context_last_feature(c, result.n_want - 1, feature);
        keep(r, feature, (size_t)d_model * sizeof *feature);
        int n = position + rows[k];
        moe_context_features(c, slot, n, feature);
        keep(r, feature, (size_t)n * (size_t)d_model * sizeof *feature);
    }
    moe_context_copy_slots(c, 0, N_POS / 2, 8);
    moe_context_features(c, slot + N_POS / 2, 8, feature);
    keep(r, feature, 8 * (size_t)d_model * sizeof *feature);
    moe_context_copy_slots(c, 0, N_POS / 2, 1); /* then the context is closed */
}

static void features_are_those_of_the_host(void **state)
{
    (void)state;
    struct moe_context_options o = { .features = { .last = true, .n_inner = 1, .inner = { 1 } } };
    same_as_host("tiny", &o, pass_and_read_features);
    o.kv = KN_KV_INT8;
    same_as_host("tiny-gpt-oss", &o, pass_and_read_features);
}

static void pass_and_count(struct moe_context *c, struct record *r)
{
    static struct moe_sight sight[64 * MOE_SIGHTS];
    struct moe_result result;
    memset(sight, 0, sizeof sight);
    assert_true(c->model->desc.n_layer <= 64);
    moe_context_watch(c, sight);
    for (int k = 0, position = 0; k < N_PASS; position += rows[k++])
        forward(c, position, rows[k], &result);
    moe_context_watch(c, NULL);
    keep(r, sight, sizeof sight);
    forward(c, 0, MOST, &result);
    keep(r, result.logits, N_VOCAB * sizeof *result.logits);
}

static void predictions_are_those_of_the_host(void **state)
{
    (void)state;
    same_as_host("tiny", &(struct moe_context_options){ .n_recall = 64 }, pass_and_count);
    same_as_host("tiny-gemma4", &(struct moe_context_options){ .n_recall = 0 }, pass_and_count);
}

/* ---- states with drafts that are pending while others draft */

#define N_DRAFT 3

/* The sequence's token at `from`, and a chain of drafts behind it, of which the first n_kept are accepted. */
static void draft(struct moe_context *c, struct record *r, int state, int from, int n_kept)
{
    static int32_t own[4][N_POS];
    struct moe_row row[1 + N_DRAFT];
    struct moe_batch b = { .row = row, .n_row = 1 + N_DRAFT };
    struct moe_result result;
    int32_t path[N_DRAFT];
    for (int i = 0; i < N_POS; i++)
        own[state][i] = (i + 16 * state) % N_POS;
    for (int i = 0; i <= N_DRAFT; i++) {
        row[i] = (struct moe_row){ .token = (from + i + 7 * state) * 37 % N_VOCAB,
                                   .position = from + i,
                                   .want_logits = true,
                                   .base = own[state],
                                   .n_base = from + i + 1,
                                   .state = state,
                                   .draft = i > 0,
                                   .after = i - 1 };
        if (i)
            path[i - 1] = i;
    }
    assert_int_equal(moe_forward(c, &b, &result), 0);
    keep_result(r, &b, &result);
    moe_context_keep(c, state, path, n_kept);
}

static void draft_and_copy(struct moe_context *c, struct record *r)
{
    draft(c, r, 1, 0, 2);
    draft(c, r, 2, 0, 3); /* pending rows of 1 are computed first, in the same memory */
    draft(c, r, 1, 3, 1);
    draft(c, r, 2, 4, 0);
    moe_context_copy_state(c, 1, 3); /* with its pending row */
    draft(c, r, 1, 5, 3);
    draft(c, r, 2, 5, 3);
    moe_context_copy_state(c, 1, 3);
    moe_context_copy_state(c, 2, 0); /* nothing is pending; then the context is closed */
    keep(r, (int[]){ moe_context_state(c, 3), moe_context_state(c, 0) }, 2 * sizeof(int));
}

static void states_are_those_of_the_host(void **state)
{
    (void)state;
    same_as_host("tiny-qwen3next", &(struct moe_context_options){ .n_state = 4, .n_draft = N_DRAFT }, draft_and_copy);
    same_as_host("tiny-qwen35moe", &(struct moe_context_options){ .n_state = 4, .n_draft = N_DRAFT }, draft_and_copy);
}

/* ---- two tiers without the disk */

/* Computes the passes of rows[] again and again. */
static void run_passes(struct moe_context *c, int n)
{
    struct moe_result r;
    for (int i = 0, position = 0; i < n; i++) {
        if (i % N_PASS == 0)
            position = 0;
        forward(c, position, rows[i % N_PASS], &r);
        assert_int_equal(r.status[0], 0);
        position += rows[i % N_PASS];
    }
}

static uint64_t read_bytes(const struct tiers *t)
{
    struct off_stats s;
    off_stats_get(moe_model_store(t->apart), &s);
    return s.read_bytes;
}

/* ---- reads into memory that is being copied */

/* Memory that is read into again before its copy to the device has ended: found wherever the queue is then, also if the read brings
 * the bytes that are there already. */
static void a_read_into_copied_memory_is_found(void **state)
{
    struct tiers t = { .apart = NULL };
    (void)state;
    open_tiers(&t, "tiny-olmoe");
    for (int i = 0; i < 2 * LATE_ORDERS; i++) {
        struct off_files files = *moe_file_files(t.file);
        struct off_io *io;
        struct moe_context *c;
        bool waits = i % 2;
        t.device = late_device_apart(kn_isa_best(), (uint64_t)i);
        t.device.order = (enum late_order)(i / 2);
        late_watched = &t.device;
        late_moves = false;
        open_apart(&t, 0);
        assert_int_equal(open_context(&c, t.apart, t.team, t.slots_bytes), 0);
        assert_int_equal(off_io_open(&io, &files, &(struct off_io_options){ .kind = OFF_IO_PREAD }), 0);
        uint8_t *page = kn_map(2 * OFF_PAGE, -1);
        struct off_job job = { .bytes = OFF_PAGE, .to = page, .urgency = OFF_NOW };
        off_io_post(io, &job);
        assert_int_equal(off_io_await(io, &job), 0);
        kn_enqueue(c->queue, TRANSFER, transfer, .to = c->residents.memory.base, .from = page, .bytes = OFF_PAGE);
        if (waits)
            assert_int_equal(kn_queue_wait(c->queue), 0);
        job = (struct off_job){ .bytes = OFF_PAGE, .to = page, .urgency = OFF_NOW };
        off_io_post(io, &job);
        assert_int_equal(off_io_await(io, &job), 0);
        assert_int_equal(kn_queue_wait(c->queue), 0);
        assert_true(waits == !late_found());
        *late_message = 0;
        off_io_close(io);
        moe_context_close(c);
        close_apart(&t);
        kn_unmap(page, 2 * OFF_PAGE);
    }
    close_tiers(&t);
}

/* Computes the passes of rows[] n times, and compares the logits with the host's. */
static void compare_passes(struct moe_context *c, const float *want, int n)
{
    struct moe_result result;
    for (; n > 0; n--)
        for (int k = 0, position = 0; k < N_PASS; position += rows[k++]) {
            forward(c, position, rows[k], &result);
            if (memcmp(result.logits, want + (size_t)k * MOST * N_VOCAB,
                       (size_t)result.n_want * N_VOCAB * sizeof *want))
                fail_msg("pass %d: other logits; %s", k, late_message);
        }
}

static void wait_until_filled(const struct tiers *t)
{
    struct off_stats store;
    do {
        off_stats_get(moe_model_store(t->apart), &store);
    } while (store.filling && store.n_empty);
}

/* ---- passes by the experts in memory ------------------------------------------------------------------------------ */

#define MOST_EXPERT 256

/* A draft pass changes none of this. */
struct places {
    struct moe_device_stats device;
    struct off_stats store;
    int32_t slot_of[MOST_EXPERT];
    float heat[MOST_EXPERT], use;
    uint32_t turn;
    int n[OFF_SLOT_SIZES], n_window[OFF_SLOT_SIZES]; /* of each size */
    double all_ns;
};

static void get_places(const struct tiers *t, const struct moe_context *c, struct places *out)
{
    const struct moe_residents *r = &c->residents;
    int n = c->model->shape.n_expert_total;
    assert_true(n <= MOST_EXPERT);
    *out = (struct places){
        .device = moe_context_device_stats(c), .turn = r->turn, .use = r->use, .all_ns = r->where.all_ns
    };
    for (int i = 0; i < r->n_pool; i++) {
        out->n[i] = r->pool[i].n;
        out->n_window[i] = r->pool[i].n_window;
    }
    off_stats_get(moe_model_store(t->apart), &out->store);
    memcpy(out->slot_of, r->slot_of, (size_t)n * sizeof *out->slot_of);
    memcpy(out->heat, r->heat, (size_t)n * sizeof *out->heat);
}

static void expect_same_places(const struct places *a, const struct places *b)
{
    assert_memory_equal(&a->device, &b->device, sizeof a->device);
    assert_memory_equal(a->slot_of, b->slot_of, sizeof a->slot_of);
    assert_memory_equal(a->heat, b->heat, sizeof a->heat);
    assert_memory_equal(&a->use, &b->use, sizeof a->use);
    assert_memory_equal(a->n, b->n, sizeof a->n);
    assert_memory_equal(a->n_window, b->n_window, sizeof a->n_window);
    assert_true(a->turn == b->turn && a->all_ns >= b->all_ns && a->all_ns <= b->all_ns);
    if (host_evicts) /* other reads count */
        return;
    assert_int_equal(a->store.hits, b->store.hits);
    assert_int_equal(a->store.misses, b->store.misses);
    assert_int_equal(a->store.soon_hits, b->store.soon_hits);
    assert_int_equal(a->store.early_used_bytes, b->store.early_used_bytes);
}

/* Waits until no expert is being read: reads count when they end. */
static void settle(const struct tiers *t)
{
    struct off_spot spot[MOST_EXPERT];
    int n_coming, n = moe_model_shape(t->apart)->n_expert_total;
    do {
        n_coming = 0;
        off_store_look(moe_model_store(t->apart), spot);
        for (int e = 0; e < n; e++)
            n_coming += spot[e].coming;
    } while (n_coming);
}

/* Of the last layer's experts those that rows chose were in memory, if it had enough of them. */
static bool chose_present(const struct moe_context *c)
{
    const struct moe_desc *d = &c->model->desc;
    int expert0 = c->model->layer[d->n_layer - 1].expert0, n_there = 0;
    for (int e = 0; e < d->n_expert; e++)
        n_there += c->present.there[expert0 + e];
    for (int i = 0; n_there >= d->n_used && i < *c->plan.n_expert; i++)
        if (!c->present.there[c->plan.expert[i]])
            return false;
    return true;
}

/* Outputs that the host does not write make the logits NaN. */
static void spoil_outputs(struct moe_context *c, int n_row)
{
    size_t n = (size_t)n_row * (size_t)(c->model->desc.n_used * c->model->desc.d_model);
    memset(moe_image(c, c->y), 0xff, n * sizeof *c->y);
}

/* In the last layer absent experts have no weight, where a row has others. */
static void check_weights(struct moe_context *c)
{
    const struct moe_desc *d = &c->model->desc;
    const bool *there = c->present.there + c->model->layer[d->n_layer - 1].expert0;
    for (int row = 0; row < c->n_want && !d->scaled_input; row++) {
        const void *at[] = { c->route.id + row * d->n_used, c->route.weight + row * d->n_used };
        bool some = false;
        moe_read_several(c, at, 2, (size_t)d->n_used * sizeof(int32_t));
        const int32_t *id = at[0];
        const float *weight = at[1];
        for (int i = 0; i < d->n_used; i++)
            some |= there[id[i]] && weight[i] > 0;
        for (int i = 0; some && i < d->n_used; i++)
            assert_true(there[id[i]] || !(weight[i] > 0 || weight[i] < 0));
    }
}

/* Computes the rows of a pass as a draft first: with all experts in memory to the same logits; else to finite ones. */
static bool draft_first(const struct tiers *t, struct moe_context *c, int position, int n, const float *want,
                        bool whole)
{
    struct moe_result r;
    struct places before, after;
    settle(t);
    get_places(t, c, &before);
    spoil_outputs(c, n);
    forward_by(moe_forward_present, c, position, n, &r);
    get_places(t, c, &after);
    check_weights(c);
    for (int e = 0; e < c->model->shape.n_expert_total; e++)
        assert_true(c->present.there[e] || !moe_is_resident(c, e));
    for (int row = 0; row < n; row++)
        assert_int_equal(r.status[row], 0);
    size_t n_value = (size_t)r.n_want * N_VOCAB;
    bool same = !memcmp(r.logits, want, n_value * sizeof *want);
    for (size_t i = 0; i < n_value; i++)
        assert_true(isfinite(r.logits[i]));
    assert_true(same || !whole);
    expect_same_places(&before, &after);
    if (!host_evicts) {
        assert_true(chose_present(c));
        settle(t);
        get_places(t, c, &after);
        assert_int_equal(before.store.reads, after.store.reads);
    }
    return same;
}

/* Drafts before each pass, with experts that move at random between passes.  host: of the host's memory, in experts over the
 * least; -1: all.  Returns the number of drafts that had other logits than the pass. */
static int draft_and_verify(struct tiers *t, const float *want, int order, int host)
{
    struct moe_context *c;
    int n_other = 0;
    bool whole = host < 0;
    t->device = late_device_apart(kn_isa_best(), (uint64_t)(29 * host + order + 100));
    t->device.order = (enum late_order)order;
    late_watched = &t->device;
    late_moves = true;
    const struct moe_shape *s = moe_model_shape(t->host);
    size_t one = s->expert_bytes / (size_t)s->n_expert_total;
    open_apart(t, whole ? s->expert_bytes : s->expert_least + one * (size_t)host);
    assert_int_equal(open_context(&c, t->apart, t->team, t->slots_bytes), 0);
    wait_until_filled(t);
    for (int k = 0, position = 0; k < N_PASS; position += rows[k++]) {
        struct moe_result r;
        const float *its = want + (size_t)k * MOST * N_VOCAB;
        for (int i = 0; i < 2; i++)
            n_other += !draft_first(t, c, position, rows[k], its, whole);
        forward(c, position, rows[k], &r);
        if (memcmp(r.logits, its, (size_t)r.n_want * N_VOCAB * sizeof *its))
            fail_msg("order %d, pass %d: other logits after a draft; %s", order, k, late_message);
    }
    assert_true(moe_context_is_whole(c) || !whole);
    moe_context_close(c);
    close_apart(t);
    return n_other;
}

static void drafts_move_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPE; i++) {
        struct tiers t = { .apart = NULL };
        int n_other = 0;
        open_tiers(&t, shapes[i]);
        if (!moe_model_shape(t.host)->state_bytes) {
            float *want = logits_of_host(&t);
            for (int order = 0; order < LATE_ORDERS; order++) {
                if (!late_has_run(i * LATE_ORDERS + order))
                    continue;
                assert_int_equal(draft_and_verify(&t, want, order, -1), 0);
                n_other += draft_and_verify(&t, want, order, 4 * (order % 2));
                host_evicts = true;
                n_other += draft_and_verify(&t, want, order, 2);
                host_evicts = false;
            }
            free(want);
            if (!n_other)
                fail_msg("%s: every draft is exact: all experts were in memory", shapes[i]);
        }
        close_tiers(&t);
    }
    assert_true(host_n_evicted > 0);
}

/* Neither the device nor the host has room for all experts, both together have: with `spare` slots more than experts.  The
 * host evicts those that the device keeps, and one that loses its place there, and that the host no longer has, comes back.  So
 * when both are full nothing is read any more, while experts change places at random; with fewer slots than experts it is. */
static void two_tiers_without_the_disk(void **state)
{
    static const int spare[] = { 1, 0, -2 };
    struct tiers t = { .apart = NULL };
    (void)state;
    open_tiers(&t, "tiny-olmoe");
    float *want = logits_of_host(&t);
    for (int i = 0; i < 3 * LATE_ORDERS; i++) {
        struct moe_context *c;
        struct off_stats store;
        if (!late_has_run(i))
            continue;
        t.device = late_device_apart(kn_isa_best(), (uint64_t)(5 + i));
        t.device.order = (enum late_order)(i % LATE_ORDERS);
        late_watched = &t.device;
        late_moves = true;
        memset(host_elsewhere, 0, sizeof host_elsewhere);
        const struct moe_shape *s = moe_model_shape(t.host);
        int n = s->n_expert_total, n_slot = n * 5 / 8, n_stay = n_slot - kn_min(n_slot / 8, 4);
        int n_host = n - n_stay + spare[i / LATE_ORDERS];
        open_apart(&t, s->expert_bytes / (size_t)n * (size_t)n_host);
        assert_int_equal(open_context(&c, t.apart, t.team, t.slots_bytes), 0);
        run_passes(c, 8 * N_PASS);
        assert_int_equal(moe_context_device_stats(c).n_kept, n_stay);
        wait_until_filled(&t);
        struct moe_device_stats was = moe_context_device_stats(c);
        uint64_t before = read_bytes(&t);
        compare_passes(c, want, 4);
        struct moe_device_stats is = moe_context_device_stats(c);
        off_stats_get(moe_model_store(t.apart), &store);
        printf("slots of the host %d, of the device %d, experts %d: %d came back, %.0f KB read\n", (int)store.n_slot,
               n_stay, n, (int)(is.n_back - was.n_back), (double)(read_bytes(&t) - before) / 1024);
        assert_int_equal(store.n_slot, n_host);
        assert_true(is.n_back - was.n_back > N_PASS);
        for (int e = 0; e < n; e++)
            assert_int_equal(host_elsewhere[e], moe_is_resident(c, e));
        settle(&t);
        assert_int_equal(moe_context_is_whole(c), spare[i / LATE_ORDERS] >= 0);
        if (spare[i / LATE_ORDERS] < 0)
            assert_true(read_bytes(&t) > before);
        else
            assert_int_equal(read_bytes(&t), before);
        moe_context_close(c);
        close_apart(&t);
    }
    free(want);
    close_tiers(&t);
}

/* The n-th allocation fails, for each n until none does: the context is not opened, and the next one is. */
static void out_of_memory(void **state)
{
    struct tiers t = { .apart = NULL };
    int n_failed = 0;
    (void)state;
    open_tiers(&t, "tiny-qwen3next");
    t.device = late_device_apart(kn_isa_best(), 3);
    late_watched = &t.device;
    open_apart(&t, 0);
    for (bool fails = true; fails;) {
        struct moe_context *c;
        t.device.faults.open_at = t.device.faults.n_open + ++n_failed;
        fails = open_context(&c, t.apart, t.team, t.slots_bytes) != 0;
        if (!fails)
            moe_context_close(c);
        t.device.faults.open_at = 0;
    }
    assert_in_range(n_failed, 6, 12); /* two queues of the device, and its memory, keys and values, slots */
    close_apart(&t);
    close_tiers(&t);
}

/* The n-th operation fails: the pass ends with an error in each row that had logits to get, so do all later ones, and all closes. */
static void a_device_dies(void **state)
{
    struct tiers t = { .apart = NULL };
    bool done = false;
    (void)state;
    open_tiers(&t, "tiny");
    for (int n = 1; !done; n += 1 + n / 4)
        for (int order = 0; order < LATE_ORDERS; order++) {
            struct moe_context *c;
            struct moe_result r;
            int position = 0, n_failed = 0;
            t.device = late_device_apart(kn_isa_best(), (uint64_t)n);
            t.device.order = (enum late_order)order;
            late_watched = &t.device;
            late_moves = true;
            open_apart(&t, 0);
            assert_int_equal(open_context(&c, t.apart, t.team, t.slots_bytes), 0);
            t.device.faults.op_at = n;
            for (int k = 0; k < 4; position += rows[k++]) {
                forward(c, position, rows[k], &r);
                for (int row = 0; row < rows[k]; row++)
                    assert_int_equal(r.status[row], t.device.faults.dead ? KN_EIO : 0);
                n_failed += t.device.faults.dead;
            }
            assert_int_equal(moe_context_error(c), n_failed ? KN_EIO : 0);
            done = !n_failed;
            moe_context_close(c);
            close_apart(&t);
        }
    close_tiers(&t);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_in_every_order),
        cmocka_unit_test(rows_fail_as_on_the_host),
        cmocka_unit_test(features_are_those_of_the_host),
        cmocka_unit_test(predictions_are_those_of_the_host),
        cmocka_unit_test(states_are_those_of_the_host),
        cmocka_unit_test(a_read_into_copied_memory_is_found),
        cmocka_unit_test(two_tiers_without_the_disk),
        cmocka_unit_test(drafts_move_nothing),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(a_device_dies),
    };
    struct kn_io io = kn_io_system;
    io.pread = read_unless_lost;
    kn_io_set(&io);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    host_free();
    return failed;
}
