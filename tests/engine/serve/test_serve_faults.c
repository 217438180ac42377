/* Every allocation of the server fails once while it serves, and every call at its opening; a mirror that fails, a disk
 * that gives no byte for a time, and passes that are slow.  A request that a fault hits gets one whole answer with a status, and the next request is
 * answered as ever. */
#include "tests/engine/serve/serve_client.h"
#include "moe/moe.h"
#include "tests/faults.h"
#include "tests/scratch.h"

#include <fcntl.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <sys/stat.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STEP(at) ((at) < 8 ? 1 : (at) / 4) /* fewer of the later calls */
#else
#define STEP(at) 1
#endif

static struct eng_serve_options options(void)
{
    struct eng_serve_options o = serve_defaults();
    o.engine.isa = KN_ISA_COUNT - 1;
    o.engine.io = OFF_IO_PREAD;
    return o;
}

/* ---- whole answers --------------------------------------------------------------------------- */

struct raw { /* all bytes until the server closes the connection */
    int status;
    char *text, *body;
    size_t n;
};

static struct raw ask_raw(const struct served *v, const char *path, const char *body)
{
    struct raw r = { .text = malloc(MAX_REPLY) };
    int fd = connect_to(v);
    send_request(fd, body ? "POST" : "GET", path, "Connection: close\r\n", body);
    for (ssize_t k; (k = receive_bytes(fd, r.text + r.n, MAX_REPLY - 1 - r.n)) > 0;)
        r.n += (size_t)k;
    close(fd);
    r.text[r.n] = 0;
    r.body = strstr(r.text, "\r\n\r\n");
    if (sscanf(r.text, "HTTP/1.1 %d", &r.status) != 1)
        r.status = 0;
    return r;
}

/* Whether the text is one answer with all its bytes. */
static bool is_whole(const struct raw *r)
{
    const char *length = r->body ? strcasestr(r->text, "Content-Length:") : NULL;
    if (!r->status || !r->body || strstr(r->body, "HTTP/1.1 "))
        return false;
    if (length && length < r->body)
        return strlen(r->body + 4) == strtoul(length + 15, NULL, 10);
    return r->n > 5 && !strcmp(r->text + r->n - 5, "0\r\n\r\n");
}

/* ---- every allocation while serving ------------------------------------------------------------- */

static const struct {
    const char *path, *body;
    bool same; /* the answer's body is the same every time */
} requests[] = {
    { CHAT,
      "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi\"}],"
      "\"max_tokens\":6,\"seed\":4,\"n\":2,\"stop\":[\"zz\"]}",
      false },
    { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":6,\"seed\":4,\"stream\":true}",
      false },
    { CHAT,
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":9,\"seed\":4,\"response_format\":{\"type\":"
      "\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":\"object\",\"properties\":{\"b\":{\"enum\":"
      "[1,\"c\"]}},\"required\":[\"b\"]}}}}",
      false },
    { "/v1/completions", "{\"prompt\":[\"Once\",\"Twice\"],\"max_tokens\":5,\"seed\":4,\"logprobs\":2,\"echo\":true}",
      false },
    { "/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":5,\"stream\":true}",
      false },
    { "/v1/responses", "{\"input\":\"Hi\",\"max_output_tokens\":5}", false },
    { "/tokenize", "{\"prompt\":\"Three words more\",\"return_token_strs\":true}", true },
    { "/detokenize", "{\"tokens\":[9,10,11]}", true },
    { "/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", true },
    { "/v1/models", NULL, false },
    { "/status", NULL, false },
    { "/metrics", NULL, false },
    { "/health", NULL, true },
    { "/", NULL, false },
};

static void any_allocation_may_fail(void **state)
{
    struct eng_serve_options o = options();
    struct served v;
    int n_fault = 0;
    (void)state;
    faults_reset();
    long before = faults.n_alloc;
    serve_start(&v, &o);
    char *alone = text_of(&v, 8, 3);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        struct raw good = ask_raw(&v, requests[i].path, requests[i].body);
        if (good.status != 200 || !is_whole(&good))
            fail_msg("%s: %s", requests[i].path, good.text);
        bool struck = true;
        for (long at = 1; struck; at += STEP(at)) {
            faults_again(FAULT_ALLOC, at, FAULT_ERROR, ENOMEM);
            struct raw r = ask_raw(&v, requests[i].path, requests[i].body);
            faults.way = FAULT_NONE;
            struck = faults.struck;
            if (!is_whole(&r))
                fail_msg("%s, allocation %ld: %s", requests[i].path, at, r.text);
            if (!struck && r.status != 200)
                fail_msg("%s without a fault: %s", requests[i].path, r.text);
            if (r.status == 200 && requests[i].same && strcmp(r.body, good.body) != 0)
                fail_msg("%s, allocation %ld: %s", requests[i].path, at, r.text);
            n_fault += struck;
            free(r.text);
            char *text = text_of(&v, 8, 3);
            assert_string_equal(text, alone);
            free(text);
        }
        free(good.text);
    }
    print_message("%d faults\n", n_fault);
    assert_true(n_fault > 100);
    serve_end(&v);
    assert_int_equal(faults.n_alloc, before);
    faults_off();
    free(alone);
}

/* ---- every call at the opening ----------------------------------------------------------------- */

static char folder[64], tiny[96], deep[96], model[96], mirror[96], copy[128];
static atomic_bool listens, has_ended;

static void on_line(enum kn_level level, const char *line)
{
    if (strstr(line, "listening on"))
        atomic_store(&listens, true);
    faults_line(level, line);
}

static void *serve_and_tell(void *arg)
{
    serve_thread(arg);
    atomic_store(&has_ended, true);
    return NULL;
}

/* False: it does not open, and is closed. */
static bool try_start(struct served *v, const struct eng_serve_options *o)
{
    atomic_store(&listens, false);
    atomic_store(&has_ended, false);
    if (eng_serve_open(&v->server, o))
        return false;
    v->port = eng_serve_port(v->server);
    assert_int_equal(pthread_create(&v->thread, NULL, serve_and_tell, v), 0);
    while (!atomic_load(&listens) && !atomic_load(&has_ended))
        usleep(200);
    if (atomic_load(&listens))
        return true;
    pthread_join(v->thread, NULL);
    assert_true(v->result != 0);
    eng_serve_close(v->server);
    return false;
}

/* Opens the server, asks it if it serves, and closes it.  Returns the answer's text, or NULL: it does not serve. */
static char *open_and_ask(const struct eng_serve_options *o, int *status)
{
    struct served v;
    char *text = NULL;
    *status = 0;
    if (!try_start(&v, o))
        return NULL;
    struct answer a = ask(&v, "POST", "/v1/completions", "", "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":3}");
    *status = a.status;
    const char *choices = strstr(a.body, "\"choices\""), *end = choices ? strstr(choices, "\"usage\"") : NULL;
    text = end ? strndup(choices, (size_t)(end - choices)) : strdup("");
    answer_free(&a);
    serve_end(&v);
    return text;
}

/* A server that does not open frees all; one that opens answers as ever, or with an error. */
static void any_call_at_the_opening_may_fail(void **state)
{
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error;
    } fault[] = { { FAULT_ALLOC, FAULT_ERROR, ENOMEM }, { FAULT_MAP, FAULT_ERROR, ENOMEM },
                  { FAULT_OPEN, FAULT_ERROR, EMFILE },  { FAULT_SIZE, FAULT_ERROR, EIO },
                  { FAULT_STAT, FAULT_ERROR, EIO },     { FAULT_READ, FAULT_ERROR, EIO },
                  { FAULT_READ, FAULT_EMPTY, 0 },       { FAULT_READ, FAULT_SHORT, 0 } };
    struct eng_serve_options o = options();
    int status, n_refused = 0, n_served = 0;
    (void)state;
    o.engine.model = tiny;
    o.engine.n_ctx = 64;
    o.engine.n_chunk = 16;
    o.engine.n_parallel = 1;
    o.n_queue = 1;
    o.engine.host_mem = (size_t)48 << 20;
    o.max_body = 65536;
    o.max_connection = 50;
    faults_reset();
    kn_log_set(on_line, KN_LOG_INFO);
    char *alone = open_and_ask(&o, &status);
    assert_int_equal(status, 200);
    for (size_t k = 0; k < sizeof fault / sizeof *fault; k++) {
        bool struck = true;
        for (long at = 1; struck; at += STEP(at)) {
            long n_alloc = faults.n_alloc, n_map = faults.n_map, n_open = faults.n_open;
            faults_again(fault[k].kind, at, fault[k].way, fault[k].error);
            char *text = open_and_ask(&o, &status);
            struck = faults.struck;
            faults.way = FAULT_NONE;
            if (!struck && !text)
                fail_msg("fault %zu: not served without a fault", k);
            if (text && status == 200)
                assert_string_equal(text, alone);
            else if (text && !struck)
                fail_msg("fault %zu: status %d without a fault", k, status);
            if (faults.n_alloc != n_alloc || faults.n_map != n_map || faults.n_open != n_open)
                fail_msg("fault %zu, call %ld: left: %ld allocations, %ld bytes of maps, %ld files", k, at,
                         faults.n_alloc - n_alloc, faults.n_map - n_map, faults.n_open - n_open);
            n_refused += !text;
            n_served += text != NULL;
            free(text);
        }
    }
    print_message("%d openings failed, %d served\n", n_refused, n_served);
    assert_true(n_refused > 0 && n_served > 0);
    faults_off();
    free(alone);
}

/* ---- a clock that tests move ----------------------------------------------------------------------- */

#define STALL_MS 1000

static pthread_t engine_thread;      /* which opens the model first */
static atomic_int n_open;            /* of the model */
static atomic_uint_fast64_t time_ns; /* 0: the system's clock; else the time now, which nothing moves but: */
static atomic_uint_fast64_t step_ns; /* each read of the clock by the engine thread */

static uint64_t clock_of_tests(void)
{
    if (!atomic_load(&time_ns))
        return kn_io_system.now_ns();
    if (atomic_load(&step_ns) && pthread_equal(pthread_self(), engine_thread)) {
        atomic_fetch_add(&time_ns, atomic_load(&step_ns));
        usleep(500); /* the test looks meanwhile, more than once */
    }
    return atomic_load(&time_ns);
}

static int open_of_engine(const char *path, int flags, int mode)
{
    if (!strcmp(path, deep) && atomic_fetch_add(&n_open, 1) == 0)
        engine_thread = pthread_self();
    return kn_io_system.open(path, flags, mode);
}

/* ---- drives that fail or give nothing for a time --------------------------------------------------- */

static atomic_int drive[FAULTS_FD]; /* of a file descriptor: 1: the model's, 2: the mirror's, 0: another file */
static atomic_bool mirror_fails;
static atomic_long n_read[3], n_failed;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_closed;
static atomic_int n_stuck; /* reads that have waited at the gate */

static int drive_open(const char *path, int flags, int mode)
{
    int fd = faults_open(path, flags, mode);
    if (fd >= 0 && fd < FAULTS_FD)
        atomic_store(&drive[fd], !strcmp(path, model) ? 1 : !strcmp(path, copy) ? 2 : 0);
    return fd;
}

static ssize_t drive_pread(int fd, void *buf, size_t bytes, int64_t at)
{
    int which = fd < FAULTS_FD ? atomic_load(&drive[fd]) : 0;
    atomic_fetch_add(&n_read[which], 1);
    if (which == 2 && atomic_load(&mirror_fails)) {
        atomic_fetch_add(&n_failed, 1);
        errno = EIO;
        return -1;
    }
    pthread_mutex_lock(&gate);
    while (which && is_closed) {
        atomic_fetch_add(&n_stuck, 1);
        pthread_cond_wait(&opened, &gate);
    }
    pthread_mutex_unlock(&gate);
    return faults_pread(fd, buf, bytes, at);
}

static void set_gate(bool closed)
{
    pthread_mutex_lock(&gate);
    is_closed = closed;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
}

/* A server whose memory holds few of the model's experts. */
static void start_streaming(struct served *v, bool with_mirror)
{
    static struct kn_io io;
    struct eng_serve_options o = options();
    o.stall_ms = STALL_MS;
    o.engine.model = model;
    o.engine.mirror = with_mirror ? mirror : NULL;
    o.engine.n_ctx = 256;
    o.max_body = 65536;
    o.max_connection = 100;
    faults_reset();
    io = *kn_io();
    io.open = drive_open;
    io.pread = drive_pread;
    io.now_ns = clock_of_tests;
    kn_io_set(&io);
    kn_log_set(on_line, KN_LOG_INFO);
    size_t most = 30;
    do /* the least memory, of which the test itself takes a part */
        o.engine.host_mem = most++ << 20;
    while (!try_start(v, &o));
    faults_again(FAULT_ANY, 0, FAULT_NONE, 0);
}

static void a_mirror_may_die(void **state)
{
    enum { N = 6 };
    struct served v;
    char *alone[N];
    (void)state;
    start_streaming(&v, true);
    for (int i = 0; i < N; i++)
        alone[i] = text_of(&v, 12, i);
    assert_true(atomic_load(&n_read[2]) > 0);
    atomic_store(&mirror_fails, true);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < N; i++) {
            char *text = text_of(&v, 12, i);
            assert_string_equal(text, alone[i]);
            free(text);
        }
    assert_true(atomic_load(&n_failed) > 0);
    assert_int_equal(ask_status(&v, "GET", "/ready", "", NULL), 200);
    atomic_store(&mirror_fails, false);
    serve_end(&v);
    if (faults.n_line != 1 || !strstr(faults.line, mirror))
        fail_msg("%d lines: %s", faults.n_line, faults.line);
    assert_true(faults_clean());
    faults_off();
    for (int i = 0; i < N; i++)
        free(alone[i]);
}

/* While a read waits: probes and routes that need no expert answer, and a client may leave.  The next request is answered
 * when the disk goes on. */
static void a_slow_disk_delays_only_its_readers(void **state)
{
    struct served v;
    (void)state;
    start_streaming(&v, false);
    char *alone = text_of(&v, 12, 1), *other = text_of(&v, 12, 2);
    set_gate(true);
    int leaves = -1, stays = connect_to(&v);
    for (int i = 10; atomic_load(&n_stuck) == 0; i++) { /* until a request needs an expert that is not in memory */
        assert_true(i < 100);
        leaves = connect_to(&v);
        send_request(leaves, "POST", CHAT, "Connection: close\r\n", chat(12, i, true));
        char c;
        while (atomic_load(&n_stuck) == 0 && recv(leaves, &c, 1, MSG_DONTWAIT) != 0)
            usleep(200);
        if (atomic_load(&n_stuck) == 0)
            close(leaves);
    }
    send_request(stays, "POST", CHAT, "", chat(12, 2, false));
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 200);
    assert_int_equal(ask_status(&v, "GET", "/status", "", NULL), 200);
    assert_int_equal(ask_status(&v, "POST", "/tokenize", "", "{\"prompt\":\"Hi\"}"), 200);
    close(leaves);
    while (metric(&v, "", "spillway_connections{") > 2) /* the one that stays, and this one */
        usleep(200);
    set_gate(false);
    struct answer a = read_answer(stays);
    assert_int_equal(a.status, 200);
    char *text = content(&a);
    assert_string_equal(text, other);
    answer_free(&a);
    free(text);
    close(stays);
    text = text_of(&v, 12, 1);
    assert_string_equal(text, alone);
    free(text);
    struct answer m = ask(&v, "GET", "/metrics", "", NULL);
    assert_non_null(strstr(m.body, "finished_reason=\"abort\"} 1\n"));
    answer_free(&m);
    serve_end(&v);
    assert_true(faults_clean());
    faults_off();
    free(alone);
    free(other);
}

/* A read that hangs keeps its layer from ending: after the time of a stall the server is not ready, until the read ends. */
static void a_read_that_hangs_is_a_stall(void **state)
{
    struct served v;
    (void)state;
    start_streaming(&v, false);
    set_gate(true);
    atomic_store(&n_stuck, 0);
    atomic_store(&time_ns, kn_now_ns());
    int fd = connect_to(&v), n_look = 0;
    send_request(fd, "POST", CHAT, "", chat(60, 3, false));
    while (atomic_load(&n_stuck) == 0)
        usleep(200);
    assert_int_equal(ask_status(&v, "GET", "/ready", "", NULL), 200);
    do { /* the pass may go on until it needs an expert that is being read; after 30 s the read counts as failed */
        atomic_store(&time_ns, kn_now_ns() + (STALL_MS + 1) * UINT64_C(1000000));
        usleep(1000);
        assert_true(++n_look < 25);
    } while (ask_status(&v, "GET", "/ready", "", NULL) != 503);
    assert_int_equal(ask_status(&v, "GET", "/health", "", NULL), 200);
    set_gate(false);
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
    assert_int_equal(ask_status(&v, "GET", "/ready", "", NULL), 200);
    atomic_store(&time_ns, 0);
    serve_end(&v);
    faults_off();
}

/* Passes of a model with many layers take several times --stall, but layers, also those of a drafter, end meanwhile. */
static void a_slow_pass_is_no_stall(void **state)
{
    static struct kn_io io;
    struct served v;
    struct eng_serve_options o = options();
    double n_pass = 0;
    uint64_t since = 0, longest = 0;
    (void)state;
    o.engine.model = deep;
    o.engine.n_ctx = 256;
    o.engine.n_draft = 1;
    o.engine.gamma = 4;
    o.stall_ms = STALL_MS;
    char draft[128];
    snprintf(draft, sizeof draft, "model:%s", deep);
    assert_int_equal(eng_draft_parse(&o.engine.draft[0], draft), 0);
    io = kn_io_system;
    io.open = open_of_engine;
    io.now_ns = clock_of_tests;
    kn_io_set(&io);
    kn_log_set(on_line, KN_LOG_INFO);
    assert_true(try_start(&v, &o));
    atomic_store(&time_ns, kn_now_ns());
    atomic_store(&step_ns, STALL_MS * UINT64_C(1000000) / 32);
    int fd = connect_to(&v);
    send_request(fd, "POST", "/v1/completions", "",
                 "{\"prompt\":\"Once\",\"max_tokens\":6,\"seed\":3,\"ignore_eos\":true}");
    char c;
    while (recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) != 1) {
        assert_int_equal(ask_status(&v, "GET", "/ready", "", NULL), 200);
        double n = metric(&v, "", "spillway_passes_total{");
        uint64_t now = kn_now_ns();
        if (n != n_pass || !since)
            since = now;
        n_pass = n;
        longest = now - since > longest ? now - since : longest;
    }
    print_message("%.0f passes, the longest took %.1f stalls\n", n_pass, (double)longest / 1e6 / STALL_MS);
    assert_true(longest > 2 * STALL_MS * UINT64_C(1000000));
    atomic_store(&step_ns, 0);
    struct answer a = read_answer(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
    atomic_store(&time_ns, 0);
    serve_end(&v);
    kn_io_set(NULL);
}

/* ---- files ----------------------------------------------------------------------------------------- */

static void copy_file(const char *from, const char *to)
{
    static char buffer[1 << 16];
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(in >= 0 && out >= 0);
    for (ssize_t n; (n = read(in, buffer, sizeof buffer)) > 0;)
        assert_int_equal(write(out, buffer, (size_t)n), n);
    close(in), close(out);
}

static int synth(const char *path, int n_layer, struct kn_team *team)
{
    return moe_synth(
        path, &(struct moe_synth_options){
                  .shape = "tiny", .n_layer = n_layer, .n_vocab = 300, .format = KN_Q4_K, .seed = 3, .team = team });
}

static int set_up(void **state)
{
    struct kn_team *team;
    (void)state;
    if (!scratch_make(folder, sizeof folder, "faults") || kn_team_open(&team, 1))
        return -1;
    snprintf(tiny, sizeof tiny, "%s/tiny.gguf", folder);
    snprintf(deep, sizeof deep, "%s/deep.gguf", folder);
    snprintf(model, sizeof model, "%s/model.gguf", folder);
    snprintf(mirror, sizeof mirror, "%s/mirror", folder);
    snprintf(copy, sizeof copy, "%s/model.gguf", mirror);
    int error = synth(tiny, 2, team);
    error = error ? error : synth(deep, 24, team);
    kn_team_close(team);
    if (error || mkdir(mirror, 0700))
        return -1;
    copy_file("evals/train/models/demo-target-q8_0.gguf", model);
    copy_file(model, copy);
    return 0;
}

static int tear_down(void **state)
{
    char line[256];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(any_call_at_the_opening_may_fail),
        cmocka_unit_test(a_mirror_may_die),
        cmocka_unit_test(a_slow_disk_delays_only_its_readers),
        cmocka_unit_test(a_read_that_hangs_is_a_stall),
        cmocka_unit_test(a_slow_pass_is_no_stall),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
