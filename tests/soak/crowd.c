/* tests/soak/crowd: random sessions on engines with random options.
 *
 *     crowd [--seconds N] [--seed FIRST] [--count N]
 *
 * Each seed runs in a process of its own. It makes a small model of some family, computes the answer of each of a few
 * requests alone, and opens engines of any width, memory, drafters, rule and reader; sessions start, continue, are
 * preempted and cancelled, drafting modes change meanwhile, reads fail. Every finished session must have the answer
 * that it has alone, and no memory or file may leak. A failing seed is reported with its options: --seed S --count 1
 * repeats it. The exit status is 1 when a seed failed. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/head.h"
#include "tests/engine/worst.h"

#define ENGINES 3   /* of one seed */
#define ENDS    16  /* sessions finished in each */
#define HANG    900 /* seconds after which a process counts as hung */

/* Memory shared with the waiting parent process. */
static struct told {
    char drew[1024];
    long n_pass, n_preempted, n_found, n_draft, n_kept, n_gone, n_back;
    double overlap_s;
} * told;

/* ---- random options --------------------------------------------------------------------------------------- */

static char small[96], head[96];       /* a draft model and a draft head */
static char lengths[96], document[96]; /* length predictor; document that drafters learn */
static bool has_states;

static void name_files(void)
{
    snprintf(small, sizeof small, "%s.small", path);
    snprintf(head, sizeof head, "%s.head", path);
    snprintf(lengths, sizeof lengths, "%s.lengths", path);
    snprintf(document, sizeof document, "%s.txt", path);
}

/* Writes random tokens of the vocabulary, between bytes that are not text. */
static void write_document(const struct eng_vocab *v)
{
    FILE *f = fopen(document, "w");
    assert_non_null(f);
    for (int i = 0; i < N_REQUEST; i++)
        if (below(2))
            write_said(f, v, &asked[i]);
        else
            fprintf(f, "%c\xff%d", 0, below(100));
    assert_int_equal(fclose(f), 0);
}

static void draw_model(void)
{
    static const struct {
        const char *shape;
        int n_layer;
    } models[] = { { "tiny", 2 },           { "tiny-dense", 2 },   { "tiny-qwen2moe", 2 },  { "tiny-olmoe", 2 },
                   { "tiny-gpt-oss", 2 },   { "tiny-glm4moe", 3 }, { "tiny-qwen3next", 4 }, { "tiny-qwen35moe", 4 },
                   { "tiny-deepseek2", 3 }, { "tiny-odd", 2 } };
    struct eng_engine *e;
    struct kn_team *team;
    int i = below((int)(sizeof models / sizeof *models));
    asked_shape = models[i].shape;
    asked_layers = models[i].n_layer;
    asked_kv = (enum kn_kv)below(KN_KV_COUNT);
    asked_tell = below(2) ? 1 + below(40) : 0;
    asked_ahead = below(2);
    assert_int_equal(setup(NULL), 0);
    name_files();
    make_requests();
    assert_int_equal(eng_describe(&e, &(struct eng_options){ .model = path, .n_thread = 1, .n_parallel = 1 }), 0);
    has_states = eng_has_states(e);
    assert_int_equal(write_head(head, (uint32_t)moe_model_shape(eng_model(e))->d_model), 0);
    write_lengths(lengths, moe_model_shape(eng_model(e))->d_model);
    write_document(eng_vocab(e));
    eng_close(e);
    assert_int_equal(kn_team_open(&team, 1), 0);
    assert_int_equal(
        moe_synth(
            small,
            &(struct moe_synth_options){
                .shape = "tiny-dense", .n_layer = 1, .n_vocab = n_vocab, .format = KN_Q8_0, .seed = 3, .team = team }),
        0);
    kn_team_close(team);
}

static void draw_drafter(char *wish, size_t bytes)
{
    static const char *const words[] = { "ngram", "suffix", "suffix,shared", "oracle:1", "oracle:0.7" };
    static const char *const trees[] = { "", ",tree=static", ",tree=chain", ",tree=dynamic" };
    bool foreseen = below(3) == 0;
    const char *with = foreseen ? ",lengths=" : "", *file = foreseen ? lengths : "";
    switch (below(6)) {
    case 0:
        snprintf(wish, bytes, "model:%s%s%s%s", has_states || below(2) ? small : path, trees[below(4)], with, file);
        break;
    case 1:
        snprintf(wish, bytes, "eagle:%s%s%s%s", head, trees[below(4)], with, file);
        break;
    case 2:
        snprintf(wish, bytes, "suffix:%s%s", document, below(2) ? ",shared" : "");
        break;
    case 3:
        if (asked_ahead) {
            snprintf(wish, bytes, "mtp%s", trees[below(4)]);
            break;
        }
        /* fall through */
    default:
        snprintf(wish, bytes, "%s", words[below(5)]);
    }
}

/* Picks drafters; says gets their options. */
static void draw_drafters(struct eng_options *o, char *says, size_t bytes)
{
    for (o->n_draft = 0; o->n_draft < ENG_DRAFTERS_MOST - 1 && below(3);) {
        char wish[256];
        draw_drafter(wish, sizeof wish);
        assert_int_equal(eng_draft_parse(&o->draft[o->n_draft++], wish), 0);
        size_t n = strlen(says);
        snprintf(says + n, bytes - n, " %s", wish);
    }
}

/* Picks the overlap mode: off without a draft model, not always if the first drafter makes trees. */
static enum eng_dsi_mode draw_dsi(const struct eng_options *o)
{
    int i = 0;
    while (i < o->n_draft && o->draft[i].kind != ENG_DRAFT_MODEL)
        i++;
    if (i == o->n_draft || below(2))
        return ENG_DSI_OFF;
    return o->draft[i].tree == ENG_TREE_CHAIN && below(2) ? ENG_DSI_ON : ENG_DSI_AUTO;
}

static struct eng_options draw_options(void)
{
    static const int chunks[] = { 1, 7, 64, 100, 512 };
    struct eng_options o = { .n_parallel = 1 + below(6),
                             .n_chunk = chunks[below(5)],
                             .n_thread = 1 + below(3),
                             .gamma = below(3) ? 1 + below(12) : ENG_GAMMA_AUTO,
                             .io = below(2) ? OFF_IO_PREAD : OFF_IO_AUTO };
    char drafts[512] = "";
    draw_drafters(&o, drafts, sizeof drafts);
    if (!o.n_draft && o.gamma > 0 && below(2)) {
        o.n_draft = 1; /* no drafter: always the worst one */
        snprintf(drafts, sizeof drafts, " the worst");
    }
    int n_block = below(3) ? 4 + (o.n_draft > 0) + below(8) : 0, part = below(8);
    asked_isa = (enum kn_isa)(below(8) ? KN_ISA_COUNT - 1 : below(KN_ISA_COUNT));
    if (o.n_draft && below(4) == 0)
        o.verify = below(2) ? SPEC_RATIO : SPEC_BLOCK;
    else
        o.dsi = draw_dsi(&o);
    o.lookahead = o.dsi ? below(6) : 0;
    o = asked_options(o, n_block);
    if (part < 4)
        o.host_mem = asked_memory(&o, (size_t)part, 5);
    snprintf(told->drew, sizeof told->drew,
             "%s, kv %d, isa %d, %d parallel, chunk %d, %d threads, %d blocks of KV, memory for %d/5, io %d, "
             "gamma %d, rule %d, dsi %d, drafts%s",
             asked_shape, (int)o.kv, (int)o.isa, o.n_parallel, o.n_chunk, o.n_thread, n_block, part < 4 ? part : 5,
             (int)o.io, o.gamma, (int)o.verify, (int)o.dsi, o.n_draft ? drafts : " none");
    return o;
}

/* ---- one engine ---------------------------------------------------------------------------------------------- */

static struct eng_options opened;

/* Changes the drafting mode at any step, unloads drafters and loads them again. */
static void meddle(struct eng_engine *e)
{
    static const enum eng_dsi_mode mode[] = { ENG_DSI_OFF, ENG_DSI_ON, ENG_DSI_AUTO };
    int which = below(200), drafter = below(ENG_DRAFTERS_MOST);
    bool autos = opened.gamma == ENG_GAMMA_AUTO;
    if (which == 0)
        eng_set_gamma(e, autos ? below(2) ? below(9) : ENG_GAMMA_AUTO : below(opened.gamma + 1));
    if (which == 1 && opened.dsi)
        eng_set_dsi(e, mode[below(3)], below(6));
    if (which >= 2 && which < 10 && autos && drafter < opened.n_draft && e->drafting->drafter[drafter]->kind->unload) {
        if (e->drafting->drafter[drafter]->upkeep.unloaded) {
            told->n_back += eng_draft_load_again(e->drafting, drafter);
        } else {
            eng_draft_unload(e->drafting, drafter);
            told->n_gone++;
        }
    }
}

static void count(const struct eng_engine *e)
{
    told->n_pass += (long)e->stats.n_pass;
    told->n_preempted += (long)e->stats.n_preempted;
    told->n_found += (long)e->stats.n_cache_found;
    told->n_draft += (long)e->stats.n_draft;
    told->n_kept += (long)e->stats.n_draft_kept;
    told->overlap_s += (double)e->drafting->times.overlap_ns * 1e-9;
}

static void run_engine(void)
{
    struct eng_engine *e;
    opened = draw_options();
    asked_reads_fail = opened.io == OFF_IO_PREAD && opened.host_mem && below(2);
    if (asked_reads_fail) {
        faults_reset();
        snprintf(told->drew + strlen(told->drew), sizeof told->drew - strlen(told->drew), "; reads fail");
    }
    assert_int_equal(eng_open(&e, &opened), 0);
    assert_in_range(eng_event_room(e), 1, 1024);
    if (opened.n_draft && !e->drafting->n_drafter) {
        worst = (struct worst){ .engine = e,
                                .base = { .kind = &worst_kind, .drafting = e->drafting },
                                .right = below(101) };
        e->drafting->drafter[e->drafting->n_drafter++] = &worst.base;
    }
    if (has_states && below(3) == 0)
        e->kv.n_state = kn_min(e->kv.n_state, below(3));
    if (asked_reads_fail)
        faults_now(FAULT_READ, 2 + below(200), FAULT_OFTEN, EIO);
    asked_meddle = opened.n_draft ? meddle : NULL;
    run_crowd(e, ENDS);
    if (asked_reads_fail)
        faults_now(FAULT_READ, 1, FAULT_NONE, 0);
    count(e);
    close_engine(e);
    if (asked_reads_fail) {
        assert_true(faults_clean());
        faults_off();
    }
}

static void everyone_says_what_he_says_alone(void **state)
{
    random_state = kn_mix(*(const uint64_t *)*state);
    draw_model();
    for (int i = 0; i < ENGINES; i++)
        run_engine();
    forget_requests();
}

/* ---- seeds ---------------------------------------------------------------------------------------------------- */

static int run_seed(uint64_t seed)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_prestate(everyone_says_what_he_says_alone, &seed) };
    alarm(HANG);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}

/* Prints the end of a failed process's output file. */
static void show_end(FILE *said)
{
    char text[4096];
    fseek(said, 0, SEEK_END);
    long n = ftell(said), most = (long)sizeof text;
    fseek(said, n > most ? -most : -n, SEEK_END);
    fwrite(text, 1, fread(text, 1, sizeof text, said), stderr);
}

static bool seed_holds(uint64_t seed)
{
    FILE *said = tmpfile();
    int status = 0;
    pid_t pid = said ? fork() : -1;
    *told->drew = 0;
    if (pid == 0) {
        dup2(fileno(said), STDOUT_FILENO);
        dup2(fileno(said), STDERR_FILENO);
        exit(run_seed(seed));
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        fprintf(stderr, "crowd: no process for seed %llu\n", (unsigned long long)seed);
        exit(2);
    }
    snprintf(path, sizeof path, ASKED_PATH, (int)pid);
    name_files();
    unlink(path);
    unlink(small);
    unlink(head);
    unlink(lengths);
    unlink(document);
    if (status) {
        show_end(said);
        fprintf(stderr, "crowd: seed %llu ended with status 0x%x: %s\n", (unsigned long long)seed, (unsigned)status,
                told->drew);
    }
    fclose(said);
    return status == 0;
}

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (!*text || *end) {
        fprintf(stderr, "crowd: %s is no number\n", text);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    uint64_t seconds = UINT64_MAX, seed = 1, n_most = UINT64_MAX, n = 0, n_failed = 0, start = kn_now_ns();
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t *to = !strcmp(argv[i], "--seconds") ? &seconds
                       : !strcmp(argv[i], "--seed")  ? &seed
                       : !strcmp(argv[i], "--count") ? &n_most
                                                     : NULL;
        if (to)
            *to = number(argv[i + 1]);
    }
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED)
        return 2;
    for (; n < n_most && (kn_now_ns() - start) / 1000000000 < seconds; n++)
        n_failed += !seed_holds(seed + n);
    printf(
        "crowds: seeds %llu to %llu, %d engines each: %llu failed; %ld passes, %ld preempted, "
        "%ld prompt tokens found, %ld drafted, %ld kept, %.0f s beside passes, %ld drafters sent away, %ld called back\n",
        (unsigned long long)seed, (unsigned long long)(seed + n - 1), ENGINES, (unsigned long long)n_failed,
        told->n_pass, told->n_preempted, told->n_found, told->n_draft, told->n_kept, told->overlap_s, told->n_gone,
        told->n_back);
    return n_failed != 0;
}
