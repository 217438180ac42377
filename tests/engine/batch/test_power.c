/* Power cuts during a batch's writing, thousands of them, without a model (test_batch.c has some with one).  After each
 * cut, writes to the two output files since the last sync are lost, kept or torn at random.  The next start then
 * continues, or it is refused with a line's number and a command that removes the line; at the end each record is in the
 * files once, with its bytes.  One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/batch/batch.h"
#include "tests/power.h"
#include "tests/scratch.h"

enum { N_RECORD = 24, N_SEED = 1500 };

static char folder[64], out[96], errors[96], said[1024];

static int set_up(void **state)
{
    (void)state;
    if (!scratch_make(folder, sizeof folder, "power"))
        return -1;
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(errors, sizeof errors, "%s/errors", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void listen(enum kn_level level, const char *line)
{
    if (level <= KN_LOG_WARN)
        snprintf(said, sizeof said, "%s", line);
}

/* ---- records ----------------------------------------------------------------------------------- */

static enum eng_outlet outlet_of(int i) { return i % 5 ? ENG_OUTLET_ANSWERS : ENG_OUTLET_ERRORS; }

/* Of 100 to 3,000 bytes, so that a record has some sectors of its own, or shares one. */
static struct eng_bytes make_record(int i)
{
    struct eng_bytes b = { 0 };
    char id[16], body[3000];
    size_t n = 2 + kn_mix((uint64_t)i) % 20 * 147;
    for (size_t k = 0; k < n; k++)
        body[k] = (char)('a' + kn_mix(k + (uint64_t)i * 5000) % 26);
    body[0] = body[n - 1] = '"';
    eng_record_write(&b, id, (size_t)snprintf(id, sizeof id, "id-%d", i), i % 5 ? 200 : 400, body, n);
    return b;
}

/* Each file consists of its records, each once. */
static void assert_all_once(void)
{
    for (int which = 0; which < ENG_OUTLETS; which++) {
        struct power_image have = power_read(which ? errors : out);
        size_t bytes = 0;
        have.data[have.n] = 0;
        for (int i = 0; i < N_RECORD; i++) {
            if (outlet_of(i) != (enum eng_outlet)which)
                continue;
            struct eng_bytes b = make_record(i);
            assert_non_null(memmem(have.data, have.n, b.data, b.n));
            bytes += b.n;
            eng_bytes_free(&b);
        }
        assert_int_equal(bytes, have.n);
        free(have.data);
    }
}

/* ---- lives ------------------------------------------------------------------------------------- */

static int open_journal(struct eng_journal *j, struct eng_seen *seen)
{
    int error = eng_journal_open(j, out, errors);
    for (int i = 0; i < ENG_OUTLETS && !error; i++)
        error = eng_journal_count(j, (enum eng_outlet)i);
    for (int i = 0; i < ENG_OUTLETS && !error; i++)
        error = eng_journal_read(j, (enum eng_outlet)i, seen);
    return error ? error : eng_journal_start(j, 1000000000);
}

/* One run of the program, which ends after some records. */
static int live(int n_add, bool *complete)
{
    struct eng_journal j;
    struct eng_seen seen;
    assert_int_equal(eng_seen_open(&seen, 2 * N_RECORD), 0);
    int status = open_journal(&j, &seen), n = 0;
    *complete = !status;
    for (int i = 0; i < N_RECORD && !status; i++) {
        char id[16];
        if (eng_seen_meet(&seen, id, (size_t)snprintf(id, sizeof id, "id-%d", i)) != ENG_MET_NEW)
            continue;
        if (n++ == n_add) {
            *complete = false;
            break;
        }
        struct eng_bytes b = make_record(i);
        status = eng_journal_add(&j, outlet_of(i), &b);
        eng_bytes_free(&b);
    }
    int closed = eng_journal_close(&j);
    eng_seen_close(&seen);
    return status ? status : closed;
}

struct tally {
    int n_cut, n_refused, n_other;
};

static void survive(uint64_t seed, struct tally *t)
{
    bool complete = false;
    int n_cut = 0;
    power_on(folder, kn_mix(seed));
    for (int life = 0; !complete; life++) {
        assert_true(life < 100);
        said[0] = 0;
        power_cut_at(n_cut < 4 && power_random(3) ? 1 + (long)power_random(12) : 0);
        int status = live(1 + (int)power_random(8), &complete);
        if (power.cut && power_random(4) == 0) {
            power_was_kill();
            complete = false;
        } else if (power.cut) {
            power_back();
            n_cut++;
            complete = false;
        } else if (status) {
            assert_int_equal(status, KN_EINVAL);
            assert_non_null(strstr(said, "not a line of a batch's output"));
            t->n_refused++;
            if (!power_sed(said)) { /* "name another file" */
                t->n_other++;
                unlink(strstr(said, errors) ? errors : out);
                power_forget();
            }
        }
    }
    power_back(); /* a batch that says it is done is on the disk */
    power_off();
    assert_all_once();
    t->n_cut += n_cut;
    unlink(out);
    unlink(errors);
}

static void after_any_power_cut_each_line_is_there_once(void **state)
{
    struct tally t = { 0 };
    (void)state;
    kn_log_set(listen, KN_LOG_INFO);
    for (uint64_t seed = 0; seed < N_SEED; seed++)
        survive(seed, &t);
    kn_log_set(NULL, KN_LOG_INFO);
    print_message("%d power cuts, %d refused starts, %d with another file\n", t.n_cut, t.n_refused, t.n_other);
    assert_true(t.n_cut > N_SEED && t.n_refused > N_SEED / 100 && t.n_other < t.n_refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_any_power_cut_each_line_is_there_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
