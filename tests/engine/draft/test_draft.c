/* Drafting (engine/draft). For each drafter and draft length every session gives the same answer as without drafts, to
 * the bit of its logprobs: in any batch, with too little KV, with grammars, penalties and stop tokens. Correct drafts
 * are accepted and save passes. Also: learned documents, automatic draft lengths.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/engine/draft/drafted.h"
#include "tests/engine/head.h"
#include "tests/engine/worst.h"

#define ROUNDS SHARE(14)

static void drafts_change_nothing(void **state)
{
    (void)state;
    static const int chunks[] = { 7, 64, 512 }, rights[] = { 0, 50, 90, 100 };
    uint64_t n_kept = 0, n_preempted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int gamma = 1 + below(12);
        struct eng_engine *e = open_worst(1 + below(5), chunks[round % 3], round % 3 ? 5 + below(8) : 0, gamma,
                                          rights[round % 4]);
        run_crowd(e, SHARE(30));
        assert_true(worst.n_node > 0);
        assert_true(e->stats.n_draft_kept <= e->stats.n_draft);
        if (rights[round % 4] == 0)
            assert_true(e->stats.n_draft_kept * 20 < e->stats.n_draft);
        n_kept += e->stats.n_draft_kept;
        n_preempted += e->stats.n_preempted;
        close_engine(e);
    }
    if (WHOLE && (n_kept < 500 || n_preempted < 5))
        fail_msg("%d kept, %d preempted", (int)n_kept, (int)n_preempted);
}

/* Correct drafts are accepted and reduce the number of passes. */
static void what_is_right_saves_passes(void **state)
{
    (void)state;
    uint64_t passes[2];
    for (int with = 0; with < 2; with++) {
        struct eng_engine *e = open_worst(1, 512, 0, with ? 4 : 0, 100);
        struct eng_session *s;
        int n = 0;
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &asked[0].request), 0);
        eng_session_set_oracle(s, asked[0].said, asked[0].n_said);
        while (eng_session_runs(s))
            n += eng_step(e, event);
        assert_int_equal(n, asked[0].n_said);
        passes[with] = e->stats.n_pass;
        close_engine(e);
    }
    assert_true(passes[0] == (uint64_t)asked[0].n_said && passes[1] * 3 < passes[0] * 2);
}

/* The grammar accepts "ab", the bias forbids the second letter: after the first, drafted or not, the session fails. */
static void a_draft_that_leads_nowhere_ends_its_text(void **state)
{
    (void)state;
    static struct spec_bias bias[ENG_REQUEST_BIAS];
    struct gr_builder *b;
    struct gr_grammar *two;
    assert_int_equal(gr_builder_open(&b), 0);
    assert_int_equal(gr_compile(&two, b, gr_literal(b, "ab", 2, GR_END), NULL), 0);
    gr_builder_close(b);
    for (int gamma = 0; gamma <= 4; gamma += 2) {
        struct eng_options o = { .n_parallel = 2, .n_chunk = 64, .gamma = gamma, .n_draft = 1 };
        assert_int_equal(eng_draft_parse(&o.draft[0], "oracle:1"), 0);
        struct eng_engine *e = open_engine_with(o, 0);
        struct eng_session *s;
        struct eng_ids ids = { 0 };
        assert_int_equal(eng_tokenize(e->assets.vocab, "aaaa", 4, 0, &ids), 0);
        assert_int_equal(ids.n, 4);
        struct eng_request r = request(ids.id, 1, 20, 1);
        r.grammar = two;
        r.sampling.bias = bias;
        for (int i = 0; i < n_vocab; i++)
            if (i != ids.id[0])
                bias[r.sampling.n_bias++] = (struct spec_bias){ i, -__builtin_inff() };
        faults_listen();
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &r), 0);
        eng_session_set_oracle(s, ids.id, (int)ids.n);
        assert_int_equal(eng_step(e, event), 1);
        assert_int_equal(event[0].token, ids.id[0]);
        assert_int_equal(eng_step(e, event), 1);
        assert_true(event[0].finish == ENG_FAILED && event[0].token == ENG_NO_TOKEN);
        faults_listen_off();
        eng_ids_free(&ids);
        close_engine(e);
    }
    gr_close(two);
}

static void a_drafter_that_fails_is_left_alone(void **state)
{
    (void)state;
    struct eng_engine *e = open_worst(3, 64, 0, 4, 50);
    worst.fails = true;
    run_crowd(e, SHARE(10));
    assert_true(worst.base.broken);
    assert_int_equal(e->stats.n_draft, 0);
    close_engine(e);
}

/* ---- real drafters --------------------------------------------------------------------------------------- */

static void run_real(const char *draft, int gamma, int n_block, uint64_t least_kept)
{
    struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .n_thread = 2, .gamma = gamma, .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    struct eng_engine *e = open_engine_with(o, n_block);
    run_crowd(e, SHARE(30));
    uint64_t n_accepted = 0;
    for (int i = 0; i < ENG_DRAFT_NODES; i++)
        n_accepted += e->drafting->counts.n_accepted[i];
    assert_int_equal(n_accepted, e->stats.n_draft_kept);
    assert_true(e->stats.n_window_row_kept <= e->stats.n_window_row);
    assert_int_equal(e->stats.n_window_row > 0, strstr(draft, "lookahead") != NULL);
    if ((WHOLE && e->stats.n_draft_kept < least_kept) || e->stats.n_draft_kept > e->stats.n_draft)
        fail_msg("%s: %d of %d kept", draft, (int)e->stats.n_draft_kept, (int)e->stats.n_draft);
    close_engine(e);
}

/* A model that drafts for itself is right except where a grammar or penalty changes the token; another model rarely
 * is. */
static void models_draft(void **state)
{
    (void)state;
    char itself[128];
    snprintf(itself, sizeof itself, "model:%s", path);
    run_real(itself, 4, 0, 200);
    run_real(itself, 1, 9, 50);
    run_real(itself, 12, 9, 200);
    snprintf(itself, sizeof itself, "model:%s,tree=dynamic", path);
    run_real(itself, 4, 0, 100);
    run_real(itself, 12, 9, 100);
    snprintf(itself, sizeof itself, "model:%s,tree=static", path);
    run_real(itself, 25, 9, 100);
}

/* The drafter prefills only tokens of the sequence: per pass the last drafted token and the one after it at most, for
 * any number of drafts. */
static void guesses_are_no_texts(void **state)
{
    (void)state;
    char itself[300];
    snprintf(itself, sizeof itself, "model:%s", path);
    struct eng_options o = { .n_parallel = 1, .n_chunk = 100, .gamma = 6, .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], itself), 0);
    struct eng_engine *e = open_engine_with(o, 0);
    struct eng_session *s;
    int n_pass = 0;
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &asked[0].request), 0);
    while (eng_session_runs(s)) {
        n_pass += eng_step(e, event) > 0;
        if (n_pass > 2) /* after the prompt and its first draft */
            assert_in_range(e->drafting->n_draft_text, 0, 2);
    }
    assert_true(n_pass > 3 && e->stats.n_draft_kept > 6);
    close_engine(e);
}

static void texts_draft(void **state)
{
    (void)state;
    run_real("ngram", 4, 0, 0);
    run_real("suffix", 6, 9, 0);
    run_real("suffix,shared", 6, 9, 0);
    run_real("lookahead", 4, 9, 0);
    run_real("lookahead,window=7,ngram=5", 2, 0, 0);
    run_real("oracle:1", 4, 0, 200);
    run_real("oracle:0.5", 4, 9, 50);
    run_real("oracle:0", 4, 9, 0);
}

/* The shared suffix drafter learns an answer up to its last pass, and drafts it for the next request at this place. */
static void a_text_is_shared_to_its_end(void **state)
{
    (void)state;
    enum { N_PROMPT = 8, N_SAID = 10, N_TEXT = 8 };
    struct eng_options o = { .n_parallel = 1, .n_chunk = 100, .gamma = 4, .n_draft = 1 };
    assert_int_equal(eng_draft_parse(&o.draft[0], "suffix,shared"), 0);
    struct eng_engine *e = open_engine_with(o, 0);
    for (int text = 0; text < N_TEXT; text++) {
        struct eng_session *s;
        int32_t token[N_PROMPT + N_SAID];
        for (int i = 0; i < N_PROMPT; i++)
            token[i] = (int32_t)(kn_mix((uint64_t)(text * N_PROMPT + i)) % 250);
        struct eng_request r = request(token, N_PROMPT, N_SAID, (uint64_t)text);
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &r), 0);
        for (int n = N_PROMPT; eng_session_runs(s);)
            for (int i = 0, got = eng_step(e, event); i < got; i++)
                token[n++] = event[i].token;
        r.n_token = N_PROMPT + N_SAID - 2;
        r.n_predict = 6;
        assert_int_equal(eng_session_start(s, &r), 0);
        assert_true(eng_step(e, event) > 0 && s->seq.tree->n >= 2);
        assert_memory_equal(s->seq.tree->token, token + r.n_token, 2 * sizeof *token);
        eng_session_close(s);
    }
    close_engine(e);
}

/* The rows of a lookahead window are rows of the text wherever its guesses are right: the target's token after them is
 * the text's next one, with the noise of its position. */
static void a_window_sees_the_text_to_come(void **state)
{
    (void)state;
    enum { N_PROMPT = 8, N_SAID = 100, MOST = 6 };
    struct {
        int at, n;
        int32_t path[MOST], said;
    } row[4 * N_SAID]; /* behind text[at]: the tokens of its path, and the target's token after them */
    int32_t text[N_PROMPT + N_SAID];
    int n_row = 0, n_right = 0, n_text = N_PROMPT;
    struct eng_options o = { .n_parallel = 1, .n_chunk = 100, .gamma = 2, .n_draft = 1 };
    struct eng_session *s;
    assert_int_equal(eng_draft_parse(&o.draft[0], "lookahead,window=4,ngram=4"), 0);
    struct eng_engine *e = open_engine_with(o, 0);
    for (int i = 0; i < N_PROMPT; i++)
        text[i] = (int32_t)(kn_mix((uint64_t)i) % 250);
    struct eng_request r = request(text, N_PROMPT, N_SAID, 5);
    assert_int_equal(eng_session_open(&s, e), 0);
    assert_int_equal(eng_session_start(s, &r), 0);
    while (eng_session_runs(s)) {
        int at = n_text - 1;
        for (int i = 0, got = eng_step(e, event); i < got; i++)
            text[n_text++] = event[i].token;
        const struct spec_tree *t = s->seq.tree;
        for (int i = 0; t && i < t->n; i++) {
            if (!t->wants_target_token[i])
                continue;
            assert_true(n_row < 4 * N_SAID && t->depth[i] <= MOST);
            row[n_row].at = at;
            row[n_row].n = t->depth[i];
            row[n_row].said = s->seq.target_token[i];
            for (int k = i; k != SPEC_ROOT; k = t->parent[k])
                row[n_row].path[t->depth[k] - 1] = t->token[k];
            n_row++;
        }
    }
    for (int i = 0; i < n_row; i++) {
        int next = row[i].at + 1;
        if (next + row[i].n >= n_text || memcmp(row[i].path, text + next, (size_t)row[i].n * sizeof *text) != 0)
            continue;
        assert_int_equal(row[i].said, text[next + row[i].n]);
        n_right++;
    }
    if (n_row < N_SAID || n_right < 5)
        fail_msg("%d rows, %d of them of the text", n_row, n_right);
    eng_session_close(s);
    close_engine(e);
}

/* A request that limits its drafts keeps its window; a window gets the rows that the pass has for it, and the warning
 * says if that is not all; and it fills passes of --dsi 1 too. */
static void a_window_has_rows_of_its_own(void **state)
{
    (void)state;
    enum { N_SAID = 40, ROWS = 7 };
    for (int way = 0; way < 3; way++) {
        struct eng_options o = { .n_parallel = way == 1 ? 100 : 1, .n_chunk = 100, .gamma = 4, .n_draft = 1 };
        assert_int_equal(eng_draft_parse(&o.draft[0], "lookahead"), 0);
        if (way == 2) {
            char itself[128];
            snprintf(itself, sizeof itself, "model:%s", path);
            o.dsi = ENG_DSI_ON;
            o.n_draft = 2;
            assert_int_equal(eng_draft_parse(&o.draft[1], itself), 0);
        }
        faults_listen();
        struct eng_engine *e = open_engine_with(o, 0);
        assert_int_equal(faults.n_line, way == 1);
        faults_listen_off();
        struct eng_session *s;
        int32_t text[8];
        for (int i = 0; i < 8; i++)
            text[i] = (int32_t)(kn_mix((uint64_t)i) % 250);
        struct eng_request r = request(text, 8, N_SAID, 5);
        r.drafts.n_max = way == 0;
        assert_int_equal(eng_session_open(&s, e), 0);
        assert_int_equal(eng_session_start(s, &r), 0);
        while (eng_session_runs(s))
            eng_step(e, event);
        uint64_t n_row = e->stats.n_window_row; /* how many passes there are beside drafting is a matter of time */
        if (n_row < (way == 2 ? e->stats.n_pass : ROWS * 5))
            fail_msg("way %d: %d rows of the window in %d passes", way, (int)n_row, (int)e->stats.n_pass);
        eng_session_close(s);
        close_engine(e);
    }
}

/* ---- documents that the suffix drafter learns ------------------------------------------------------------ */

#define TAIL 12 /* this many tokens occur at one place only */

static char document[96], from_document[128];

static void write_document(const char *text, size_t n)
{
    FILE *f = fopen(document, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static struct eng_engine *open_reader(const char *draft)
{
    struct eng_options o = {
        .n_parallel = 1, .n_chunk = 100, .gamma = 4, .n_draft = 1, .max_prefill_slowdown = ANY_STRETCH
    };
    assert_int_equal(eng_draft_parse(&o.draft[0], draft), 0);
    return open_engine_with(o, 0);
}

/* Number of the document's tokens after `at` + TAIL that the drafter drafts as one path. */
static int n_drafted(struct eng_engine *e, const struct eng_ids *ids, size_t at)
{
    const struct spec_tree *t = tree_behind(e, ids->id + at, TAIL, NULL);
    int n = 0;
    for (int node = SPEC_ROOT; at + TAIL + (size_t)n < ids->n; n++)
        if ((node = spec_tree_child(t, node, ids->id[at + TAIL + (size_t)n])) < 0)
            break;
    return n;
}

/* Random bytes, more than a session's index holds: drafted from the first to the last; not drafted without the
 * document. */
static void a_document_is_known_as_it_is(void **state)
{
    (void)state;
    enum { BYTES = 70000 };
    static char text[BYTES];
    struct eng_ids ids = { 0 };
    for (int i = 0; i < BYTES; i++)
        text[i] = (char)below(256);
    write_document(text, BYTES);
    struct eng_engine *e = open_reader(from_document), *other = open_reader("suffix");
    assert_int_equal(eng_tokenize(e->assets.vocab, text, BYTES, 0, &ids), 0);
    assert_in_range(ids.n, BYTES / 2, BYTES);
    const size_t at[] = { 0, 1, 8192, ids.n / 2, ids.n - TAIL - 4 };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        assert_true(n_drafted(e, &ids, at[i]) >= 2);
        assert_int_equal(n_drafted(other, &ids, at[i]), 0);
    }
    assert_int_equal(n_drafted(e, &ids, ids.n - TAIL - 1), 1);
    eng_ids_free(&ids);
    close_engine(e);
    close_engine(other);
    run_real(from_document, 6, 9, 0);
}

/* The document contains the answers of the sessions. */
static void a_document_of_what_is_said_saves_passes(void **state)
{
    (void)state;
    struct eng_engine *e = open_engine(1, 64, 0);
    FILE *f = fopen(document, "w");
    assert_non_null(f);
    for (int i = 0; i < N_REQUEST; i++)
        write_said(f, e->assets.vocab, &asked[i]);
    assert_int_equal(fclose(f), 0);
    close_engine(e);
    run_real(from_document, 6, 0, 200);
}

static void an_empty_document_says_nothing(void **state)
{
    (void)state;
    struct eng_ids ids = { .id = asked[0].token, .n = TAIL };
    write_document("", 0);
    struct eng_engine *e = open_reader(from_document);
    assert_int_equal(n_drafted(e, &ids, 0), 0);
    close_engine(e);
    run_real(from_document, 6, 9, 0);
}

static void a_document_that_is_not_there_is_refused(void **state)
{
    (void)state;
    refuse(path, "suffix:/nowhere/words.txt", "/nowhere/words.txt: No such file");
    refuse(path, "suffix:/tmp", "/tmp: ");
}

/* ---- draft lengths chosen by the controller -------------------------------------------------------------- */

/* Answers stay the same for all decisions of the controller with the real clock. */
static void as_many_as_pay(void **state)
{
    (void)state;
    char itself[128], line[256];
    snprintf(itself, sizeof itself, "model:%s", path);
    run_real(itself, ENG_GAMMA_AUTO, 9, 0);
    run_real("oracle:0.8", ENG_GAMMA_AUTO, 0, 0);
    run_real("suffix,shared", ENG_GAMMA_AUTO, 0, 0);
    struct eng_engine *e = open_engine(2, 64, 0);
    assert_true(eng_explain(e, line, sizeof line) > 0 && strstr(line, "no drafter"));
    close_engine(e);
}

/* Answers stay the same for all predictions of a network that chooses draft lengths. */
static void lengths_are_foreseen(void **state)
{
    (void)state;
    struct eng_options o = { .model = path, .n_parallel = 4, .n_chunk = 100, .n_draft = 1, .gamma = ENG_GAMMA_AUTO };
    struct eng_engine *e = open_engine(1, 64, 0);
    int d_model = moe_model_shape(e->assets.model)->d_model;
    char file[96], wish[256];
    close_engine(e);
    snprintf(file, sizeof file, "%s.lengths", path);
    snprintf(wish, sizeof wish, "model:%s,lengths=%s", path, file);
    assert_int_equal(eng_draft_parse(&o.draft[0], wish), 0);
    assert_string_equal(o.draft[0].lengths, file);
    write_lengths(file, d_model);
    run_real(wish, ENG_GAMMA_AUTO, 9, 0);
    run_real(wish, 4, 0, 100);
    write_lengths(file, d_model + 1);
    faults_listen();
    assert_int_equal(eng_open(&e, &o), KN_EUNSUPPORTED);
    assert_non_null(strstr(faults.line, "features of"));
    faults_listen_off();
    faults_listen();
    snprintf(o.draft[0].lengths, sizeof o.draft[0].lengths, "%s", path);
    assert_int_equal(eng_open(&e, &o), KN_EINVAL);
    assert_non_null(strstr(faults.line, "evals/lengths"));
    faults_listen_off();
    unlink(file);
}

static void several_draft_one_tree(void **state)
{
    (void)state;
    struct eng_options o = { .n_parallel = 4, .n_chunk = 100, .gamma = 8, .n_draft = 3 };
    char itself[128];
    snprintf(itself, sizeof itself, "model:%s", path);
    assert_int_equal(eng_draft_parse(&o.draft[0], itself), 0);
    assert_int_equal(eng_draft_parse(&o.draft[1], "oracle:0.5"), 0);
    assert_int_equal(eng_draft_parse(&o.draft[2], "suffix"), 0);
    struct eng_engine *e = open_engine_with(o, 12);
    run_crowd(e, SHARE(30));
    assert_true(!WHOLE || e->stats.n_draft_kept > 20); /* a slow drafter may be unloaded */
    eng_set_gamma(e, ENG_GAMMA_AUTO);
    run_crowd(e, SHARE(30));
    close_engine(e);
}

/* ---- refusals ------------------------------------------------------------------------------------------- */

static void wishes_are_read_or_refused(void **state)
{
    (void)state;
    struct eng_draft_option w;
    assert_int_equal(eng_draft_parse(&w, "model:a:b.gguf"), 0);
    assert_true(w.kind == ENG_DRAFT_MODEL && !strcmp(w.file, "a:b.gguf"));
    assert_int_equal(eng_draft_parse(&w, "oracle:0.25"), 0);
    assert_true(w.kind == ENG_DRAFT_ORACLE && w.right == 0.25);
    assert_int_equal(eng_draft_parse(&w, "suffix:words.txt,shared"), 0);
    assert_true(w.kind == ENG_DRAFT_SUFFIX && w.shared && !strcmp(w.file, "words.txt"));
    assert_int_equal(eng_draft_parse(&w, "suffix,shared"), 0);
    assert_true(w.shared && !*w.file);
    assert_int_equal(eng_draft_parse(&w, "lookahead"), 0);
    assert_int_equal(eng_draft_window_rows(&w), w.n_column - 1 + w.n_column * (w.n_gram - 2));
    assert_int_equal(eng_draft_parse(&w, "lookahead,ngram=5,window=12"), 0);
    assert_true(w.kind == ENG_DRAFT_LOOKAHEAD && w.n_column == 12 && w.n_gram == 5);
    assert_int_equal(eng_draft_window_rows(&w), 11 + 12 * 3);
    assert_int_equal(eng_draft_parse(&w, "none"), 0);
    assert_int_equal(eng_draft_window_rows(&w), 0);
    static const char *const bad[] = { "",
                                       "mod",
                                       "models:x",
                                       "model",
                                       "model:",
                                       "oracle",
                                       "oracle:",
                                       "oracle:2",
                                       "oracle:-1",
                                       "oracle:x",
                                       "ngram:3",
                                       "none:1",
                                       "ngram,shared",
                                       "suffix,x",
                                       "suffix,",
                                       "suffix:a,shared,b",
                                       "lookahead:4",
                                       "lookahead,window=0",
                                       "lookahead,window=17",
                                       "lookahead,ngram=2",
                                       "lookahead,ngram=9",
                                       "lookahead,window=",
                                       "lookahead,window=4x",
                                       "lookahead,window=0004",
                                       "lookahead,window=16,ngram=8",
                                       "lookahead,shared",
                                       "ngram,window=4",
                                       "medusa",
                                       "medusa:x,tree=wide" };
    assert_wishes_refused(bad, sizeof bad / sizeof *bad);
}

static int setup_all(void **state)
{
    int error = setup_asked(state, 21);
    snprintf(document, sizeof document, "%s.txt", path);
    snprintf(from_document, sizeof from_document, "suffix:%s", document);
    return error;
}

static int teardown_all(void **state)
{
    unlink(document);
    return teardown_asked(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(what_is_right_saves_passes),
        cmocka_unit_test(a_draft_that_leads_nowhere_ends_its_text),
        cmocka_unit_test(a_drafter_that_fails_is_left_alone),
        cmocka_unit_test(models_draft),
        cmocka_unit_test(guesses_are_no_texts),
        cmocka_unit_test(texts_draft),
        cmocka_unit_test(a_text_is_shared_to_its_end),
        cmocka_unit_test(a_window_sees_the_text_to_come),
        cmocka_unit_test(a_window_has_rows_of_its_own),
        cmocka_unit_test(a_document_is_known_as_it_is),
        cmocka_unit_test(a_document_of_what_is_said_saves_passes),
        cmocka_unit_test(an_empty_document_says_nothing),
        cmocka_unit_test(a_document_that_is_not_there_is_refused),
        cmocka_unit_test(as_many_as_pay),
        cmocka_unit_test(lengths_are_foreseen),
        cmocka_unit_test(several_draft_one_tree),
        cmocka_unit_test(wishes_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
