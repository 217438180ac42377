/* Combinations of serving options on the demo model: drafter, draft length, parallel sessions, temperature, arrival
 * together or one by one, KV for all sessions or so little that some are preempted, shared prompt prefixes, experts in
 * memory or on disk, threads. A few rows contain every pair of levels of any two options. In each row every answer
 * equals the answer of the same request alone without drafts, including each bit of its logprobs.
 *
 *     test_pairs [--from ROW] [--seconds N] [--rows N]
 *
 * With an argument the program runs the full product instead, from the given row (0), until the limit or the end. A
 * failing row is printed by its number; --from ROW --rows 1 repeats that row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define N_TEXT    36 /* the last two are long; the rest cover a row's sessions */
#define N_SHORT   (N_TEXT - 2)
#define N_SESSION N_TEXT
#define N_REQUEST (4 * N_TEXT) /* per text: temperature 0 or 1, shared prefix or not */
#include "tests/engine/head.h"
#include "tests/engine/medusa_heads.h"

#define MODELS "evals/train/models/demo-"
#define MODEL  MODELS "target-q8_0.gguf"
#define DRAFT  "model:" MODELS "draft-q8_0.gguf"
#define BOOST  "model:" MODELS "boost-q8_0.gguf"
#define EAGLE  "eagle:" MODELS "eagle-f16.gguf"

/* ---- the product ------------------------------------------------------------------------------------------ */

enum factor { DRAFTER, GAMMA, AT_ONCE, THREADS, HOT, AS_THEY_COME, CRAMPED, ALIKE, FEW_EXPERTS, N_FACTOR };

#define N_DRAFTER  12
#define MOST_LEVEL N_DRAFTER
#define PRODUCT    (N_DRAFTER * 10 * 7 * 3 << 5)
#define STRIDE     37813 /* coprime to PRODUCT: the walk visits each row once */
static const int n_level[N_FACTOR] = { N_DRAFTER, 10, 7, 3, 2, 2, 2, 2, 2 };

static char document[64], from_document[96], head[64], from_head[96]; /* head: a folder of an EAGLE-3 head */
static char medusa[64], from_medusa[96];                              /* a folder of Medusa heads */
static const char *const drafter[N_DRAFTER][2] = { { "ngram" },
                                                   { "suffix" },
                                                   { from_document },
                                                   { DRAFT },
                                                   { DRAFT, "ngram" },
                                                   { DRAFT, BOOST },
                                                   { EAGLE },
                                                   { EAGLE ",tree=static" },
                                                   { EAGLE ",tree=chain" },
                                                   { "lookahead,window=5,ngram=4" },
                                                   { from_head },
                                                   { from_medusa, "ngram" } };
static const int at_once[] = { 1, 2, 3, 5, 8, 16, 32 };

/* Levels of gamma: 0, 1 to 8, auto. */
static int gamma_of(const int *row) { return row[GAMMA] < 9 ? row[GAMMA] : ENG_GAMMA_AUTO; }

static int number_of(const int *row)
{
    int number = 0;
    for (int f = 0; f < N_FACTOR; f++)
        number = number * n_level[f] + row[f];
    return number;
}

static void row_of(int *row, int number)
{
    for (int f = N_FACTOR - 1; f >= 0; number /= n_level[f--])
        row[f] = number % n_level[f];
}

/* ---- rows that cover every pair --------------------------------------------------------------------------- */

#define MOST_ROW 132
#define TRIES    40 /* candidate rows, of which the best is chosen */

static int chosen[MOST_ROW][N_FACTOR];
static int met[N_FACTOR][N_FACTOR][MOST_LEVEL][MOST_LEVEL]; /* number of rows with both levels */

/* Number of uncovered pairs between this level of factor f and the levels already set in the row (not -1). */
static int n_new(const int *row, int f, int level)
{
    int n = 0;
    for (int g = 0; g < N_FACTOR; g++)
        n += g != f && row[g] >= 0 && !met[f][g][level][row[g]];
    return n;
}

/* Starts a row with a pair that no row covers yet. False: all pairs are covered. */
static bool begin_row(int *row)
{
    int first = below(N_FACTOR);
    for (int f = 0; f < N_FACTOR; f++)
        row[f] = -1;
    for (int i = 0; i < N_FACTOR; i++)
        for (int f = (first + i) % N_FACTOR, g = 0; g < N_FACTOR; g++)
            for (int at = below(n_level[f]), k = 0; k < n_level[f]; k++)
                for (int l = 0; g != f && l < n_level[g]; l++)
                    if (!met[f][g][(at + k) % n_level[f]][l]) {
                        row[f] = (at + k) % n_level[f];
                        row[g] = l;
                        return true;
                    }
    return false;
}

/* Sets the other factors in random order, each to the level with the most uncovered pairs; for threads the lowest of
 * these levels. Returns the number of newly covered pairs. */
static int fill_row(int *row)
{
    int all = 1;
    for (int i = 0, first = below(N_FACTOR); i < N_FACTOR; i++) {
        int f = (first + i) % N_FACTOR, best = -1, most = -1;
        if (row[f] >= 0)
            continue;
        for (int at = f == THREADS ? 0 : below(n_level[f]), k = 0; k < n_level[f]; k++) {
            int level = (at + k) % n_level[f], n = n_new(row, f, level);
            if (n > most) {
                most = n;
                best = level;
            }
        }
        row[f] = best;
        all += most;
    }
    return all;
}

static int choose_rows(void)
{
    int n = 0, row[N_FACTOR];
    random_state = 1;
    memset(met, 0, sizeof met);
    while (begin_row(row)) {
        int most = 0;
        assert_true(n < MOST_ROW);
        for (int k = 0; k < TRIES && begin_row(row); k++) {
            int all = fill_row(row);
            if (all > most) {
                most = all;
                memcpy(chosen[n], row, sizeof row);
            }
        }
        for (int f = 0; f < N_FACTOR; f++)
            for (int g = 0; g < N_FACTOR; g++)
                met[f][g][chosen[n][f]][chosen[n][g]]++;
        n++;
    }
    return n;
}

/* Counts the pairs again from the chosen rows alone. */
static void every_pair_is_in_a_row(void **state)
{
    (void)state;
    int n = choose_rows(), n_pair = 0;
    for (int f = 0; f < N_FACTOR; f++)
        for (int g = 0; g < f; g++)
            for (int a = 0; a < n_level[f]; a++)
                for (int b = 0; b < n_level[g]; b++, n_pair++) {
                    int k = 0;
                    while (k < n && !(chosen[k][f] == a && chosen[k][g] == b))
                        k++;
                    if (k == n)
                        fail_msg("level %d of factor %d and level %d of factor %d are in no row", a, f, b, g);
                }
    print_message("%d rows, %d pairs\n", n, n_pair);
    assert_true(n < PRODUCT / 500);
    for (int number = 0; number < PRODUCT; number += 7) {
        int row[N_FACTOR];
        row_of(row, number);
        assert_int_equal(number_of(row), number);
    }
}

/* ---- requests --------------------------------------------------------------------------------------------- */

static struct eng_engine *alone;
static struct eng_ids ids[N_TEXT];

static void write_text(char *out, size_t bytes, int i)
{
    static const char *const name[] = { "Tom", "Ann", "Ben", "Mary", "Sam", "Lucy", "Max" };
    static const char *const thing[] = { "marbles", "apples", "books", "pens", "cookies" };
    const char *who = name[i % 7], *other = name[(i + 1 + i / 7) % 7], *what = thing[i % 5];
    snprintf(out, bytes,
             "<|im_start|>user\n%s has %d %s. %s gives %s %d more and takes %d of them, and then brings %d "
             "boxes with %d %s each. How many %s does %s have in the end, and how many more than before? Write down "
             "each step of it, and the sum.<|im_end|>\n<|im_start|>assistant\n",
             who, 12 + i, what, other, who, 3 + i % 4, 1 + i % 3, 2 + i % 6, 5 + i % 9, what, what, who);
}

#define SAME (ENG_KV_BLOCK + 1) /* tokens of the shared prefix */

/* Prompts end before, at or after a block's end. Most answers grow into the next block, the long ones into two: more
 * than the blocks reserved at the start. */
static void make_request(struct asked *a, int i, bool alike, bool hot)
{
    int n = 50 + i % 13, n_same = alike ? SAME : 0;
    memcpy(a->token, ids[0].id, (size_t)n_same * sizeof *a->token);
    memcpy(a->token + n_same, ids[i].id, (size_t)n * sizeof *a->token);
    a->request = request(a->token, n_same + n, i < N_SHORT ? 12 + i % 5 : ENG_KV_BLOCK + 20, (uint64_t)i + 1);
    a->request.ignore_eos = i % 3 != 0;
    a->request.sampling.temperature = hot;
}

/* The answer of a request alone, computed at its first use. */
static const struct asked *asked_of(int i, bool alike, bool hot)
{
    struct asked *a = &asked[(2 * hot + alike) * N_TEXT + i];
    if (a->n_said)
        return a;
    make_request(a, i, alike, hot);
    a->request.salt = 1 + (uint64_t)(a - asked); /* no cache hit from another request */
    say_in(alone, a);
    assert_true(a->n_said > 0 && a->finish != ENG_FAILED);
    return a;
}

/* Some of the answers, as the document of the suffix drafter. */
static void write_document(void)
{
    FILE *f = fopen(document, "w");
    assert_non_null(f);
    for (int i = 0; i < 4 * 5; i++)
        write_said(f, eng_vocab(alone), asked_of(i / 4, i & 1, i & 2));
    assert_int_equal(fclose(f), 0);
}

/* ---- a row ------------------------------------------------------------------------------------------------ */

static const int *now; /* the current row */
static struct {
    uint64_t n_draft, n_kept;
} drafted[N_DRAFTER];
static uint64_t n_preempted, n_found;

/* Rows with two long sessions that run until one is preempted. Single thread: with more threads than CPUs the row would
 * take too long. */
static bool is_long(const int *row)
{
    int n = at_once[row[AT_ONCE]];
    return row[CRAMPED] && !row[THREADS] && (n == 3 || n == 5);
}

static struct eng_engine *open_row(const int *row)
{
    static const int chunk[] = { 40, 100, 512 };
    int most_block = 2 + row[ALIKE] + is_long(row), least = most_block + 1;
    struct eng_options o = { .n_parallel = at_once[row[AT_ONCE]],
                             .n_chunk = chunk[number_of(row) % 3],
                             .n_thread = 1 + row[THREADS],
                             .n_ctx = most_block * ENG_KV_BLOCK,
                             .gamma = gamma_of(row) };
    int n_block = !row[CRAMPED] ? 0 : is_long(row) ? least : kn_max(least, o.n_parallel + 2);
    for (; o.n_draft < 2 && drafter[row[DRAFTER]][o.n_draft]; o.n_draft++)
        assert_int_equal(eng_draft_parse(&o.draft[o.n_draft], drafter[row[DRAFTER]][o.n_draft]), 0);
    o = asked_options(o, n_block);
    if (row[FEW_EXPERTS])
        o.host_mem = asked_memory(&o, 1, 3);
    return open_engine_with(o, n_block);
}

static void start(struct eng_engine *e, const int *row, int i, int priority)
{
    struct eng_session *s;
    const struct asked *a = asked_of(i, row[ALIKE], row[HOT]);
    assert_int_equal(eng_session_open(&s, e), 0);
    running[s - e->schedule.session] = (struct running){ .asked = a };
    struct eng_request r = a->request;
    r.salt = row[ALIKE] ? 0 : r.salt;
    r.priority = priority;
    assert_int_equal(eng_session_start(s, &r), 0);
}

#define LATE 2

/* Does the next session start now? With little KV the last ones start after the first event, at a higher priority. */
static bool comes(const int *row, int n_left, int n_heard)
{
    return n_left > 0 && !(row[CRAMPED] && n_left <= LATE && !n_heard) && (!row[AS_THEY_COME] || below(3));
}

/* More sessions than seats: some wait, and later find cached prefixes. */
static void say_all(struct eng_engine *e, const int *row)
{
    int n = at_once[row[AT_ONCE]] + LATE, n_left = n, n_ended = 0, n_heard = 0, n_long = is_long(row) ? 2 : 0;
    int next = below(N_SHORT);
    memset(running, 0, sizeof running);
    for (int step = 0; n_ended < n; step++) {
        assert_true(step < 5000);
        for (; comes(row, n_left, n_heard); n_left--)
            start(e, row, n_long ? N_TEXT - n_long-- : next++ % N_SHORT, row[CRAMPED] && n_left <= LATE);
        int got = eng_step(e, event);
        assert_in_range(got, 0, eng_event_room(e));
        n_heard += got;
        for (int i = 0; i < got; i++) {
            hear(e, &event[i]);
            if (event[i].finish == ENG_RUNNING)
                continue;
            eng_session_close(event[i].session);
            n_ended++;
        }
    }
}

static void count(const struct eng_engine *e, const int *row)
{
    struct off_stats s;
    off_stats_get(moe_model_store(e->assets.model), &s);
    assert_true(row[FEW_EXPERTS] == (s.n_slot < s.n_expert));
    assert_true(gamma_of(row) || !e->stats.n_draft);
    assert_true(row[CRAMPED] || !e->stats.n_preempted);
    for (int i = 0; i < e->drafting->n_drafter; i++)
        assert_true(!e->drafting->drafter[i]->broken);
    drafted[row[DRAFTER]].n_draft += e->stats.n_draft;
    drafted[row[DRAFTER]].n_kept += e->stats.n_draft_kept;
    n_preempted += e->stats.n_preempted;
    n_found += row[ALIKE] ? e->stats.n_cache_found : 0;
}

static void run_row(const int *row)
{
    now = row;
    random_state = (uint64_t)number_of(row);
    faults_listen();
    struct eng_engine *e = open_row(row);
    say_all(e, row);
    count(e, row);
    close_engine(e);
    faults_listen_off();
    now = NULL;
}

static int tell_row(void **state)
{
    (void)state;
    if (!now)
        return 0;
    const char *const *d = drafter[now[DRAFTER]];
    print_message("row %d: drafts %s%s%s, gamma %d, %d at once, %d threads, temperature %d%s%s%s%s\n", number_of(now),
                  d[0], d[1] ? " " : "", d[1] ? d[1] : "", gamma_of(now), at_once[now[AT_ONCE]], 1 + now[THREADS],
                  now[HOT], now[AS_THEY_COME] ? ", as they come" : "", now[CRAMPED] ? ", little KV" : "",
                  now[ALIKE] ? ", alike" : "", now[FEW_EXPERTS] ? ", few experts" : "");
    return 0;
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
#define SHARE_OF_ROWS(n) ((n) / 45 + 1) /* a row takes a minute here */
#elif defined __SANITIZE_ADDRESS__
#define SHARE_OF_ROWS(n) ((n) / 20 + 1)
#else
#define SHARE_OF_ROWS SHARE
#endif

static void every_pair_says_the_same(void **state)
{
    (void)state;
    int n = choose_rows(), step = kn_ceil_div(n, SHARE_OF_ROWS(n));
    for (int i = 0; i < n; i += step)
        run_row(chosen[i]);
    for (int i = 0; i < N_DRAFTER - 1; i++) /* random weights of the last: few are right */
        if (WHOLE && (drafted[i].n_kept == 0 || drafted[i].n_kept > drafted[i].n_draft))
            fail_msg("%s: %d kept of %d", drafter[i][0], (int)drafted[i].n_kept, (int)drafted[i].n_draft);
    if (WHOLE && (n_preempted < 40 || n_found < 5000))
        fail_msg("%d preempted, %d prompt tokens found", (int)n_preempted, (int)n_found);
}

static int64_t from, seconds = INT64_MAX, rows = PRODUCT;

static void every_row_says_the_same(void **state)
{
    (void)state;
    uint64_t start = kn_now_ns();
    int64_t n = 0;
    for (; n < rows && (int64_t)(kn_now_ns() - start) / 1000000000 < seconds; n++) {
        static int row[N_FACTOR]; /* still valid when tell_row prints it after a failure */
        row_of(row, (int)((from % PRODUCT + n * STRIDE) % PRODUCT));
        run_row(row);
    }
    print_message("%lld rows of %d\n", (long long)n, PRODUCT);
}

static int setup_demo(void **state)
{
    (void)state;
    char text[600];
    snprintf(path, sizeof path, "%s", MODEL);
    snprintf(document, sizeof document, "/tmp/spillway-pairs-%d.txt", getpid());
    snprintf(from_document, sizeof from_document, "suffix:%s", document);
    snprintf(head, sizeof head, "/tmp/spillway-pairs-%d-head", getpid());
    snprintf(from_head, sizeof from_head, "eagle:%s", head);
    n_vocab = 4096;
    random_state = 2;
    write_head_folder(head, 256, 6);
    snprintf(medusa, sizeof medusa, "/tmp/spillway-pairs-%d-medusa", getpid());
    snprintf(from_medusa, sizeof from_medusa, "medusa:%s", medusa);
    write_medusa(medusa, &(struct medusa_made){ .n_head = 4, .d = 256, .n_token = n_vocab });
    alone = open_engine(1, 512, 0);
    for (int i = 0; i < N_TEXT; i++) {
        write_text(text, sizeof text, i);
        assert_int_equal(eng_tokenize(eng_vocab(alone), text, strlen(text), ENG_TEXT_PARSE_SPECIAL, &ids[i]), 0);
        assert_in_range(ids[i].n, SAME, N_CTX);
    }
    write_document();
    return 0;
}

static int teardown_demo(void **state)
{
    (void)state;
    close_engine(alone);
    for (int i = 0; i < N_TEXT; i++)
        eng_ids_free(&ids[i]);
    remove_head_folder(head);
    remove_medusa(medusa);
    return unlink(document);
}

static void read_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        int64_t *to = !strcmp(argv[i], "--from")      ? &from
                      : !strcmp(argv[i], "--seconds") ? &seconds
                      : !strcmp(argv[i], "--rows")    ? &rows
                                                      : NULL;
        char *end = "";
        if (to && i + 1 < argc)
            *to = strtoll(argv[i + 1], &end, 10);
        if (to && i + 1 < argc && *argv[i + 1] && !*end && *to >= 0)
            continue;
        fprintf(stderr, "test_pairs: [--from ROW] [--seconds N] [--rows N], not %s\n", argv[i]);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest pairs[] = {
        cmocka_unit_test(every_pair_is_in_a_row),
        cmocka_unit_test_teardown(every_pair_says_the_same, tell_row),
    };
    const struct CMUnitTest product[] = { cmocka_unit_test_teardown(every_row_says_the_same, tell_row) };
    read_arguments(argc, argv);
    return argc > 1 ? cmocka_run_group_tests(product, setup_demo, teardown_demo)
                    : cmocka_run_group_tests(pairs, setup_demo, teardown_demo);
}
