/* The reader threads' order of tasks: a short task passes long ones, one long task runs at a time and gives way to much
 * shorter ones, keys take turns, and a waiting task can be removed.
 *
 * The first task holds its thread until it is released, so that the order of the others does not depend on time. */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/serve/reader_pool.h"

#define LONG (ENG_TASK_SHORT + 1)

struct task {
    struct eng_task task;
    int name;
    sem_t *wait;    /* NULL: ends at once */
    bool gives_way; /* before it ends */
};

static struct {
    struct eng_reader_pool *pool;
    int wake_fd;
    sem_t begun, go_on;
    _Atomic int n_run, order[16]; /* [n_run] names of the tasks that were run */
} t;

static void run(struct eng_task *task)
{
    struct task *own = (struct task *)task;
    t.order[atomic_fetch_add(&t.n_run, 1)] = own->name;
    if (own->wait) {
        sem_post(&t.begun);
        sem_wait(own->wait);
    }
    if (own->gives_way)
        eng_reader_pool_give_way(t.pool, task);
}

static void add(struct task *task, int name, size_t bytes, uint64_t key)
{
    *task = (struct task){ .task = { .run = run, .bytes = bytes, .key = key }, .name = name };
    eng_reader_pool_add(t.pool, &task->task);
}

/* Takes the next finished task, which has this name; 0: any. */
static void expect_done(int name)
{
    struct eng_task *done;
    while (!(done = eng_reader_pool_take(t.pool))) {
        uint64_t n;
        assert_int_equal(read(t.wake_fd, &n, sizeof n), sizeof n);
    }
    if (name)
        assert_int_equal(((struct task *)done)->name, name);
}

/* Gives the first thread a long task of key 99, name 1, that runs until go_on is posted. */
static void hold(struct task *first, size_t bytes, bool gives_way)
{
    *first = (struct task){
        .task = { .run = run, .bytes = bytes, .key = 99 }, .name = 1, .wait = &t.go_on, .gives_way = gives_way
    };
    eng_reader_pool_add(t.pool, &first->task);
    sem_wait(&t.begun);
}

static void open_pool(void)
{
    t.wake_fd = eventfd(0, 0);
    t.n_run = 0;
    sem_init(&t.begun, 0, 0);
    sem_init(&t.go_on, 0, 0);
    assert_int_equal(eng_reader_pool_open(&t.pool, 2, t.wake_fd), 0);
}

static void open_with(struct task *first)
{
    open_pool();
    hold(first, LONG, false);
}

static void close_pool(void)
{
    eng_reader_pool_close(t.pool);
    close(t.wake_fd);
    sem_destroy(&t.begun);
    sem_destroy(&t.go_on);
}

static void a_short_task_passes_long_ones(void **state)
{
    struct task first, second, quick;
    (void)state;
    open_with(&first);
    add(&second, 2, LONG, 1);
    add(&quick, 3, 10, 1);
    expect_done(3);
    assert_int_equal(t.n_run, 2); /* the second long task waits for the first, although a thread is idle */
    sem_post(&t.go_on);
    expect_done(1);
    expect_done(2);
    close_pool();
}

static void keys_take_turns(void **state)
{
    static const int order[] = { 1, 2, 5, 3, 4, 6 };
    struct task first, task[5];
    (void)state;
    open_with(&first);
    add(&task[0], 2, LONG, 1);
    add(&task[1], 3, LONG, 1);
    add(&task[2], 4, LONG, 1);
    add(&task[3], 5, 3 * LONG, 2);
    add(&task[4], 6, LONG, 2);
    sem_post(&t.go_on);
    for (int i = 0; i < 6; i++)
        expect_done(order[i]);
    for (int i = 0; i < 6; i++)
        assert_int_equal(t.order[i], order[i]);
    close_pool();
}

/* A key that was idle while another was served does not get all turns at once. */
static void idle_time_earns_no_credit(void **state)
{
    struct task first, task[6];
    (void)state;
    open_with(&first);
    sem_post(&t.go_on);
    expect_done(1);
    for (int i = 0; i < 3; i++) { /* key 1 is served while key 2 is idle */
        add(&task[i], 2, LONG, 1);
        expect_done(2);
    }
    hold(&first, LONG, false);
    add(&task[0], 10, LONG, 1);
    add(&task[1], 11, LONG, 1);
    add(&task[2], 20, LONG, 2);
    add(&task[3], 21, LONG, 2);
    add(&task[4], 22, LONG, 2);
    sem_post(&t.go_on);
    expect_done(1);
    for (int i = 0; i < 5; i++)
        expect_done((const int[]){ 10, 20, 11, 21, 22 }[i]);
    close_pool();
}

static void a_waiting_task_can_be_removed(void **state)
{
    struct task first, second, third;
    (void)state;
    open_with(&first);
    add(&second, 2, LONG, 1);
    add(&third, 3, LONG, 1);
    assert_false(eng_reader_pool_remove(t.pool, &first.task));
    assert_true(eng_reader_pool_remove(t.pool, &third.task));
    assert_false(eng_reader_pool_remove(t.pool, &third.task));
    add(&third, 4, LONG, 1);
    assert_true(eng_reader_pool_remove(t.pool, &second.task));
    sem_post(&t.go_on);
    expect_done(1);
    expect_done(4);
    assert_int_equal(t.n_run, 2);
    close_pool();
}

/* While a long task runs, shorter tasks of other keys and of its own end before it, in turns; one that is more than a quarter
 * as long does not. */
static void a_long_task_gives_way_to_shorter_ones(void **state)
{
    static const int order[] = { 4, 3, 5, 1, 2 };
    struct task first, task[4];
    (void)state;
    open_pool();
    hold(&first, 16 * LONG, true);
    add(&task[0], 2, 4 * LONG + 1, 1);
    add(&task[1], 3, LONG, 99);
    add(&task[2], 4, LONG, 2);
    task[3] = (struct task){ .task = { .run = run, .bytes = 4 * LONG, .key = 2 }, .name = 5, .gives_way = true };
    assert_true(eng_reader_pool_remove(t.pool, &task[2].task));
    eng_reader_pool_add(t.pool, &task[3].task); /* gives way, too */
    add(&task[2], 4, LONG, 2);
    sem_post(&t.go_on);
    for (int i = 0; i < 5; i++)
        expect_done(order[i]);
    close_pool();
}

/* A flood of shorter tasks holds a long one up for as many bytes as it has itself, not for ever. */
static void giving_way_has_an_end(void **state)
{
    struct task first, task[12];
    int n_before = 0;
    (void)state;
    open_pool();
    hold(&first, 8 * LONG, true);
    for (int i = 0; i < 12; i++)
        add(&task[i], 2, LONG, 1);
    sem_post(&t.go_on);
    for (int i = 0; i < 13; i++) {
        struct eng_task *done;
        while (!(done = eng_reader_pool_take(t.pool))) {
            uint64_t n;
            assert_int_equal(read(t.wake_fd, &n, sizeof n), sizeof n);
        }
        if (done == &first.task)
            n_before = i;
    }
    assert_int_equal(n_before, 8);
    close_pool();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_task_passes_long_ones),
        cmocka_unit_test(keys_take_turns),
        cmocka_unit_test(idle_time_earns_no_credit),
        cmocka_unit_test(a_waiting_task_can_be_removed),
        cmocka_unit_test(a_long_task_gives_way_to_shorter_ones),
        cmocka_unit_test(giving_way_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
