/* Copies to a CUDA device from memory of the host: from pinned memory, from other memory through the buffer of pinned pieces, by a
 * team or one thread, and without a buffer.  The bytes are the same; other memory may be written as soon as the copy was
 * added. */
#include "tests/cuda/on_cuda.h"

#define MOST (KN_CUDA_STAGES * KN_CUDA_STAGE_BYTES + 12345)

static uint8_t *from;
static struct kn_memory there;

static void fill(int seed, size_t bytes)
{
    uint64_t x = (uint64_t)seed * KN_GOLDEN;
    for (size_t i = 0; i < bytes; i++)
        from[i] = (uint8_t)((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
}

/* Copies bytes at an odd place to the device.  rewrites: writes them after the copy was added. */
static void copy_and_compare(struct kn_queue *queue, size_t bytes, int seed, bool rewrites)
{
    size_t at = (size_t)seed * 16;
    uint8_t *want = malloc(bytes);
    fill(seed, at + bytes);
    memcpy(want, from + at, bytes);
    kn_enqueue(queue, TRANSFER, transfer, .to = there.base + at, .from = from + at, .bytes = bytes);
    if (rewrites)
        memset(from, 0, at + bytes);
    kn_enqueue(queue, TRANSFER, transfer, .to = there.image, .from = there.base + at, .bytes = bytes);
    assert_int_equal(kn_queue_wait(queue), 0);
    assert_memory_equal(there.image, want, bytes);
    free(want);
}

static void copy_all_sizes(bool stages, struct kn_team *team, bool rewrites)
{
    static const size_t sizes[] = {
        1, 4096, 65536, 65537, 1000001, KN_CUDA_STAGE_BYTES, KN_CUDA_STAGE_BYTES + 1, 5 << 20, MOST - 10000
    };
    struct kn_queue *queue;
    struct kn_queue_options opt = { .device = cuda,
                                    .max_row = 4,
                                    .max_pos = 64,
                                    .n_head = 1,
                                    .n_kv = 1,
                                    .d_value = 64,
                                    .team = team,
                                    .stages = stages };
    assert_int_equal(kn_queue_open(&queue, &opt), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        copy_and_compare(queue, sizes[i], (int)i + 1, rewrites);
    kn_queue_close(queue);
}

static void bytes_are_the_same(void **state)
{
    struct kn_team *team;
    const char *why = NULL;
    (void)state;
    if (!cuda_open())
        skip();
    is_interpreted(); /* it runs nothing before it is waited for */
    from = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(from, MAP_FAILED);
    assert_int_equal(kn_memory_open(&there, cuda, MOST, true), 0);
    assert_int_equal(kn_team_open(&team, 3), 0);
    copy_all_sizes(true, team, true);
    copy_all_sizes(true, NULL, true);
    copy_all_sizes(false, NULL, true);
    assert_int_equal(kn_host_pin(cuda, from, kn_align_up(MOST, 4096), &why), 0);
    copy_all_sizes(true, team, false);
    assert_true(kn_host_pin(cuda, from, 4096, &why) < 0); /* it is pinned */
    assert_non_null(why);
    kn_host_unpin(cuda, from);
    copy_all_sizes(true, team, true);
    kn_memory_close(&there);
    munmap(from, MOST);
    kn_team_close(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bytes_are_the_same) };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kn_cuda_close(cuda);
    return failed;
}
