/* Experts on a device, in the host's memory and on disk: spread by chance, moved at random between passes, in every order in which
 * the emulated device can run its queues.  The logits are the host's, no event is missing, and a device that has no memory, or
 * fails in the middle, ends the pass with an error and leaves nothing waiting.
 *
 * Linked with HOST_WRAPS.  One thread computes: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/emulated/host.h"
#include "tests/moe/load.h"

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
    assert_int_equal(load_model(&t->host, t->file, kn_isa_best(), t->team, OFF_IO_PREAD), 0);
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
    struct moe_context_options o = { .max_row = MOST,
                                     .max_want = MOST,
                                     .n_slot = N_POS,
                                     .max_pos = N_POS,
                                     .kv = KN_KV_F16,
                                     .resident_bytes = slots_bytes,
                                     .n_state = 1,
                                     .team = team };
    return moe_context_open(c, m, &o);
}

/* Computes n tokens of one sequence from a position on; those at odd positions have no logits but the last. */
static void forward(struct moe_context *c, int position, int n, struct moe_result *result)
{
    struct moe_row row[MOST];
    for (int i = 0; i < n; i++)
        row[i] = (struct moe_row){ .token = (position + i) * 37 % N_VOCAB,
                                   .position = position + i,
                                   .want_logits = i == n - 1 || (position + i) % 2 == 0,
                                   .base = slot,
                                   .n_base = position + n };
    assert_int_equal(moe_forward(c, &(struct moe_batch){ row, n }, result), 0);
}

static const int rows[] = { 5, 1, 1, 6, 2, 1, 4, 1 };
#define N_PASS ((int)(sizeof rows / sizeof *rows))

static float *logits_of_host(const struct tiers *t)
{
    struct moe_context *c;
    float *all = malloc((size_t)N_PASS * MOST * N_VOCAB * sizeof *all);
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
        assert_int_equal(c->residents.n_filled, n_stay);
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
        cmocka_unit_test(two_tiers_without_the_disk),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(a_device_dies),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    host_free();
    return failed;
}
