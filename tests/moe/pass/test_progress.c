/* A pass tells that it makes progress: with each layer, with experts that have arrived, and when it ends.  A pass is then
 * not taken for one that hangs, however long it is.
 *
 * One thread: not under MODE=tsan. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/pass/pass.h"
#include "tests/moe/load.h"
#include "tests/moe/one_sequence.h"

#define N_LAYER 5
#define N_ROW   8
#define N_VOCAB 300

static atomic_uint_fast64_t advanced_ns;
static pthread_t me;
static uint64_t time_ns, last_ns;
static int n_advance;

/* Each read of the clock counts whether a new time was told since the last. */
static uint64_t counting_clock(void)
{
    if (!pthread_equal(pthread_self(), me))
        return kn_io_system.now_ns();
    n_advance += atomic_load(&advanced_ns) != last_ns;
    last_ns = atomic_load(&advanced_ns);
    return ++time_ns;
}

static int advances_of_a_pass(const struct moe_model *m, struct kn_team *team, atomic_uint_fast64_t *advanced)
{
    static const int32_t slot[N_ROW] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct moe_context_options o = one_sequence(team, N_ROW, N_ROW, 0);
    struct moe_context *c;
    struct moe_row row[N_ROW];
    struct moe_result result;
    o.advanced_ns = advanced;
    assert_int_equal(moe_context_open(&c, m, &o), 0);
    lay_sequence(row, slot, 0, N_ROW, N_VOCAB);
    n_advance = 0;
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = N_ROW }, &result), 0);
    kn_now_ns(); /* counts the last time */
    moe_context_close(c);
    return n_advance;
}

/* Of one pass of a model of this shape. */
static int advances(const char *shape, bool tells)
{
    char path[64];
    struct kn_team *team;
    struct moe_file *file;
    struct moe_model *m = NULL;
    struct moe_synth_options so = {
        .shape = shape, .n_layer = N_LAYER, .n_vocab = N_VOCAB, .format = KN_Q8_0, .seed = 7
    };
    snprintf(path, sizeof path, "/tmp/spillway-progress-%d.gguf", getpid());
    assert_int_equal(kn_team_open(&team, 1), 0);
    so.team = team;
    assert_int_equal(moe_synth(path, &so), 0);
    assert_int_equal(moe_file_open(&file, path), 0);
    unlink(path);
    assert_int_equal(load_model(&m, file, kn_isa_best(), team, OFF_IO_PREAD), 0);
    int n = advances_of_a_pass(m, team, tells ? &advanced_ns : NULL);
    moe_model_close(m);
    moe_file_close(file);
    kn_team_close(team);
    return n;
}

static void a_pass_tells_that_it_gets_further(void **state)
{
    struct kn_io io = kn_io_system;
    (void)state;
    me = pthread_self();
    io.now_ns = counting_clock;
    kn_io_set(&io);
    assert_int_equal(advances("tiny-dense", true), N_LAYER + 1); /* each layer, and the end of the pass */
    assert_true(advances("tiny", true) > 2 * N_LAYER); /* the experts of each layer, too, in one part or several */
    assert_int_equal(advances("tiny", false), 0);
    kn_io_set(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_pass_tells_that_it_gets_further) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
