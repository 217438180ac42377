/* tests/soak/serve: a public server's load and abuse, repeated many times.
 *
 *     serve [--quick] [--seconds N] [--clients N] [--host-mem SIZE] [--log FILE] PROGRAM MODEL
 *           [cancelled] [survivors] [malformed] [crowd] [mixed]
 *
 * --seconds, --clients and --log are those of the mixed load; --log appends a line every minute:
 *     t SECONDS REQUESTS TEXTS LEFT NONSENSE BUSY FAILURES ANON_KIB FILES THREADS
 * with sums since the load began, so that a run that was cut off counts for as long as it ran (tests/soak/hours.sh).
 *
 * Each part prints its counts of tries and failures, and times, which do not affect the
 * result. The exit status is 1 when an answer was lost, differed from the answer alone, or was
 * 5xx, and when the server did not end with status 0. Everything comes from a fixed seed except
 * the timing. */
#include "tests/soak/client.h"

enum { GOLDEN = 16, BATCH = 8 };

static bool quick;
static double mixed_seconds = 600;
static int n_worker = 12; /* clients of the mixed load */
static const char *log_file;
static atomic_long n_failed;

static void failed(const char *what, const char *detail)
{
    if (atomic_fetch_add(&n_failed, 1) < 10)
        fprintf(stderr, "serve: %s: %.300s\n", what, detail);
}

static const char *chat(char body[512], int n, int seed, bool stream)
{
    snprintf(body, 512,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"How many eggs are in %d dozen?\"}],"
             "\"max_tokens\":%d,\"seed\":%d,\"ignore_eos\":true%s}",
             seed, n, seed, stream ? ",\"stream\":true" : "");
    return body;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double *x, int n, double p)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    int i = (int)(p * n);
    return x[i < n ? i : n - 1];
}

/* ---- cancelled answers ------------------------------------------------------------------------ */

static void cancelled(void)
{
    int n_round = quick ? 1 : 5, n = quick ? 40 : 200;
    char body[512];
    char *alone = text_of(CHAT, chat(body, 10, 7, false));
    double worst = 0;
    for (int round = 0; round < n_round; round++) {
        int fd[200];
        for (int i = 0; i < n; i++)
            fd[i] = ask(CHAT, chat(body, 10000, i, i % 2));
        usleep(500000);
        for (int i = 0; i < n; i++)
            close(fd[i]);
        double begin = now_ms();
        char *text = text_of(CHAT, chat(body, 10, 7, false));
        double took = now_ms() - begin;
        worst = took > worst ? took : worst;
        if (strcmp(text, alone))
            failed("after answers were cancelled one is another", text);
        free(text);
    }
    free(alone);
    printf("cancelled: %d times %d requests of 10,000 tokens left after 0.5 s; the next answer "
           "took %.0f "
           "ms at most\n",
           n_round, n, worst);
}

/* ---- survivors: other clients are undisturbed ------------------------------------------------- */

static void survivors(void)
{
    int n_round = quick ? 20 : 1000, n_cut = 0, n_kept = 0;
    uint64_t random = 1;
    double end = now_ms() + (quick ? 20e3 : 240e3);
    char body[512], *golden[GOLDEN];
    for (int i = 0; i < GOLDEN; i++)
        golden[i] = text_of(CHAT, chat(body, 8 + 4 * i, i, false));
    int round = 0;
    for (; round < n_round && now_ms() < end; round++) {
        int fd[BATCH], seed[BATCH];
        bool cut[BATCH];
        for (int i = 0; i < BATCH; i++) {
            uint64_t r = next(&random);
            seed[i] = (int)(r % GOLDEN);
            cut[i] = (r >> 8) % 2;
            fd[i] = ask(CHAT, chat(body, cut[i] ? 10000 : 8 + 4 * seed[i], seed[i], (r >> 16) % 2));
            usleep((useconds_t)((r >> 24) % 2000));
        }
        for (int i = 0; i < BATCH; i++)
            if (cut[i]) {
                usleep((useconds_t)(next(&random) % 4000));
                close(fd[i]);
                n_cut++;
            }
        for (int i = 0; i < BATCH; i++)
            if (!cut[i]) {
                struct answer a = read_answer(fd[i]);
                if (a.status != 200 || strcmp(said(&a), golden[seed[i]]))
                    failed("a client that stayed got another answer than alone", a.text);
                free(a.text);
                n_kept++;
            }
    }
    for (int i = 0; i < GOLDEN; i++)
        free(golden[i]);
    printf("survivors: %d rounds of %d requests, %d cut off at random moments, %d answers compared "
           "with "
           "those alone\n",
           round, BATCH, n_cut, n_kept);
}

/* ---- malformed requests ----------------------------------------------------------------------- */

static size_t spoil_bytes(char *p, size_t n, uint64_t *random)
{
    for (int k = (int)(next(random) % 4); k >= 0; k--) {
        uint64_t r = next(random);
        size_t at = (r >> 8) % n;
        switch (r % 5) {
        case 0:
            p[at] = (char)(r >> 40);
            break;
        case 1:
            p[at] ^= (char)(1 << (r >> 40) % 8);
            break;
        case 2:
            memmove(p + at, p + at + 1, n - at - 1);
            n -= n > 1;
            break;
        case 3:
            p[at] = "\r\n:{}[]\",0-\\\0 "[(r >> 40) % 14];
            break;
        case 4:
            n = at + 1;
            break;
        }
    }
    return n;
}

/* A valid request with the values of its members exchanged. */
static size_t write_nonsense(char *out, size_t room, uint64_t *random)
{
    static const char *const path[] = { "/v1/completions", CHAT,       "/v1/responses", "/v1/messages",
                                        "/tokenize",       "/nothing", "/detokenize",   "/apply-template" };
    static const char *const member[] = {
        "prompt",      "messages", "input",           "model",    "max_tokens",   "temperature",  "top_p",    "top_k",
        "n",           "stop",     "stream",          "logprobs", "top_logprobs", "logit_bias",   "seed",     "tools",
        "tool_choice", "system",   "response_format", "user",     "tokens",       "instructions", "thinking", "echo"
    };
    static const char *const value[] = { "null",
                                         "true",
                                         "-1",
                                         "0",
                                         "1",
                                         "1e400",
                                         "1e308",
                                         "99999999999999999999",
                                         "\"\"",
                                         "\"\\u0000\"",
                                         "\"\\ud800\"",
                                         "\"x\"",
                                         "[]",
                                         "{}",
                                         "[[]]",
                                         "[null]",
                                         "[{}]",
                                         "[1,2]",
                                         "{\"a\":{}}",
                                         "[\"\"]",
                                         "[{\"role\":\"user\",\"content\":\"Hi\"}]",
                                         "[{\"role\":\"user\"}]",
                                         "[{\"role\":7,\"content\":[]}]",
                                         "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
                                         "\"required\"",
                                         "{\"type\":\"json_schema\"}",
                                         "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"$ref\":\"#\"}}}",
                                         "[[[[[[[[]]]]]]]]" };
    char body[2048] = "{\"max_tokens\":2";
    size_t n = strlen(body);
    for (int k = 0; k < 4; k++) {
        uint64_t r = next(random);
        n += (size_t)snprintf(body + n, sizeof body - n, ",\"%s\":%s", member[r % (sizeof member / sizeof *member)],
                              value[(r >> 16) % (sizeof value / sizeof *value)]);
    }
    snprintf(body + n, sizeof body - n, "}");
    return write_request(out, room, path[next(random) % 8], body);
}

/* Sends bytes that may be half a request, or ask for keep-alive: an answer comes soon or never, and its
 * first bytes give its status. */
static struct answer send_spoilt(const char *text, size_t n_text)
{
    int fd = connect_to();
    if (fd < 0)
        give_up("connect", strerror(errno));
    send_bytes(fd, text, n_text);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    poll(&p, 1, 50);
    shutdown(fd, SHUT_WR);
    return read_answer(fd);
}

enum { SENDERS = 16 };

static atomic_long n_status[600], n_sent;
static long n_malformed;
static char *malformed_golden;

static void *send_malformed(void *arg)
{
    uint64_t random = 1 + (uint64_t)(uintptr_t)arg;
    char body[512], text[4096];
    for (long i; (i = atomic_fetch_add(&n_sent, 1)) < n_malformed;) {
        struct answer a;
        if (i % 2) {
            size_t n = write_nonsense(text, sizeof text, &random);
            int fd = connect_to();
            if (fd < 0)
                give_up("connect", strerror(errno));
            send_bytes(fd, text, n);
            a = read_answer(fd);
        } else {
            size_t n = write_request(text, sizeof text, CHAT, chat(body, 2, 1, i % 4));
            a = send_spoilt(text, spoil_bytes(text, n, &random));
        }
        atomic_fetch_add(&n_status[a.status > 0 && a.status < 600 ? a.status : 0], 1);
        if (a.status >= 500 && a.status != 501)
            failed("a request that is none got", a.text);
        free(a.text);
        if (i % 1000 == 999) {
            char *after = text_of(CHAT, chat(body, 10, 9, false));
            if (strcmp(after, malformed_golden))
                failed("a good request got another answer than before", after);
            free(after);
        }
    }
    return NULL;
}

static void malformed(void)
{
    pthread_t thread[SENDERS];
    long n[6] = { 0 };
    char body[512];
    double begin = now_ms();
    n_malformed = quick ? 2000 : 100000;
    malformed_golden = text_of(CHAT, chat(body, 10, 9, false));
    for (uintptr_t i = 0; i < SENDERS; i++)
        if (pthread_create(&thread[i], NULL, send_malformed, (void *)i))
            give_up("thread", "none");
    for (int i = 0; i < SENDERS; i++)
        pthread_join(thread[i], NULL);
    free(malformed_golden);
    for (int i = 0; i < 600; i++)
        if (i != 501)
            n[i / 100] += atomic_load(&n_status[i]);
    printf("malformed: %ld requests in %.0f s: %ld were half a request and got no answer, %ld 2xx, "
           "%ld "
           "4xx, %ld 501, %ld other 5xx; a good one after every 1,000 got its answer\n",
           n_malformed, (now_ms() - begin) * 1e-3, n[0], n[2], n[4], atomic_load(&n_status[501]), n[5]);
}

/* ---- idle and slow connections ---------------------------------------------------------------- */

static atomic_bool trickles;

/* Sends one more byte each second on every connection; reopens the ones that were closed. */
static void *trickle(void *arg)
{
    int *fd = arg, n = quick ? 50 : 500;
    while (atomic_load(&trickles)) {
        for (int i = 0; i < n; i++) {
            if (send(fd[i], "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
                continue;
            close(fd[i]);
            if ((fd[i] = connect_to()) < 0)
                continue;
            const char *begin =
                i % 2 ? "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n{"
                      : "GET /hea";
            send_bytes(fd[i], begin, strlen(begin));
        }
        usleep(1000000);
    }
    for (int i = 0; i < n; i++)
        close(fd[i]);
    return NULL;
}

static void measure(double *ms, int n, const char *golden)
{
    char body[512];
    for (int i = 0; i < n; i++) {
        double begin = now_ms();
        char *text = text_of(CHAT, chat(body, 16, 5, false));
        ms[i] = now_ms() - begin;
        if (strcmp(text, golden))
            failed("a good request among idle connections got another answer", text);
        free(text);
    }
}

static void crowd(void)
{
    enum { ROUNDS = 3, EACH = 200 };
    int n_idle = quick ? 100 : 2000, n_slow = quick ? 50 : 500, each = quick ? 20 : EACH;
    static int idle[2000], slow[500];
    static double without[ROUNDS * EACH], with[ROUNDS * EACH];
    char body[512];
    char *golden = text_of(CHAT, chat(body, 16, 5, false));
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        measure(without + round * each, each, golden);
        for (int i = 0; i < n_idle; i++)
            if ((idle[i] = connect_to()) < 0)
                give_up("connect", strerror(errno));
        memset(slow, 0xFF, sizeof slow);
        atomic_store(&trickles, true);
        if (pthread_create(&thread, NULL, trickle, slow))
            give_up("thread", "none");
        usleep(500000);
        measure(with + round * each, each, golden);
        atomic_store(&trickles, false);
        pthread_join(thread, NULL);
        for (int i = 0; i < n_idle; i++)
            close(idle[i]);
        usleep(500000);
    }
    free(golden);
    int n = ROUNDS * each;
    printf("crowd: %d idle and %d slow connections, %d good requests: median %.1f ms, p99 %.1f ms; "
           "without "
           "them %.1f and %.1f\n",
           n_idle, n_slow, n, percentile(with, n, 0.5), percentile(with, n, 0.99), percentile(without, n, 0.5),
           percentile(without, n, 0.99));
}

/* ---- mixed load for a long time --------------------------------------------------------------- */

enum { MAX_WORKERS = 64, SAMPLES = 4096, LOG_MS = 60000 };

static atomic_bool mixes;
static atomic_long n_mixed, n_mixed_left, n_mixed_bad, n_mixed_text, n_mixed_busy;
static char *mixed_golden[GOLDEN];

/* One request of a random kind, with the answer that its kind requires. */
static void mixed_one(uint64_t r)
{
    static const char *const other[][2] = {
        { "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":12,\"logprobs\":2}" },
        { "/v1/completions", "{\"prompt\":[\"A\",\"B\",\"C\"],\"max_tokens\":9,\"stream\":true,\"n\":2}" },
        { "/v1/responses", "{\"input\":\"Hello\",\"max_output_tokens\":20,\"stream\":true}" },
        { "/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":20}" },
        { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":200,"
                "\"response_format\":"
                "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"enum\":[1,"
                "\"b\"]}}}}" },
        { "/tokenize", "{\"prompt\":\"Hello\"}" },
        { "/status", "" },
        { "/metrics", "" }
    };
    char body[512], nonsense[4096];
    int seed = (int)((r >> 8) % GOLDEN), fd;
    switch (r % 8) {
    case 0: /* disconnects */
        fd = ask(CHAT, chat(body, 10000, (int)(r >> 40), (r >> 16) % 2));
        usleep((useconds_t)((r >> 20) % 100000));
        close(fd);
        atomic_fetch_add(&n_mixed_left, 1);
        return;
    case 1: { /* sends garbage */
        size_t n = write_nonsense(nonsense, sizeof nonsense, &r);
        if ((fd = connect_to()) < 0)
            give_up("connect", strerror(errno));
        send_bytes(fd, nonsense, n);
        struct answer a = read_answer(fd);
        if (a.status >= 500 && a.status != 501)
            failed("nonsense got", a.text);
        free(a.text);
        atomic_fetch_add(&n_mixed_bad, 1);
        return;
    }
    case 2:
    case 3:
    case 4: {
        struct answer a = read_answer(ask(other[(r >> 8) % 8][0], other[(r >> 8) % 8][1]));
        if (a.status != 200)
            failed("a request of the mixture got", a.text);
        free(a.text);
        return;
    }
    default: {
        struct answer a = read_answer(ask(CHAT, chat(body, 8 + 4 * seed, seed, (r >> 16) % 2)));
        if (a.status == 429)
            atomic_fetch_add(&n_mixed_busy, 1);
        else if (a.status != 200 || strcmp(said(&a), mixed_golden[seed]))
            failed("an answer of the mixture is another than alone", a.text);
        free(a.text);
        atomic_fetch_add(&n_mixed_text, 1);
    }
    }
}

static void *mix(void *arg)
{
    uint64_t random = 1000 + (uint64_t)(uintptr_t)arg;
    while (atomic_load(&mixes)) {
        mixed_one(next(&random));
        atomic_fetch_add(&n_mixed, 1);
    }
    return NULL;
}

/* Slope of anonymous memory over requests in the second half: a least-squares line through all samples. */
static double slope(const struct held *h, const double *x, int n)
{
    double sx = 0, sy = 0, sxx = 0, sxy = 0, m = n - n / 2;
    for (int i = n / 2; i < n; i++) {
        double y = (double)h[i].anon_KiB;
        sx += x[i], sy += y, sxx += x[i] * x[i], sxy += x[i] * y;
    }
    double below = m * sxx - sx * sx;
    return below > 0 ? (m * sxy - sx * sy) / below * 1000 : 0;
}

/* Appends the sums so far to the log, on the disk before it returns. */
static void log_mixed(double begin_ms, const struct held *h)
{
    FILE *f = log_file ? fopen(log_file, "a") : NULL;
    if (!f) {
        if (log_file)
            give_up(log_file, strerror(errno));
        return;
    }
    fprintf(f, "t %.0f %ld %ld %ld %ld %ld %ld %ld %ld %ld\n", (now_ms() - begin_ms) * 1e-3, atomic_load(&n_mixed),
            atomic_load(&n_mixed_text), atomic_load(&n_mixed_left), atomic_load(&n_mixed_bad),
            atomic_load(&n_mixed_busy), atomic_load(&n_failed), h->anon_KiB, h->n_fd, h->n_thread);
    if (fflush(f) || fsync(fileno(f)))
        give_up(log_file, strerror(errno));
    fclose(f);
}

static void mixed(void)
{
    static struct held h[SAMPLES];
    static double x[SAMPLES];
    double seconds = quick ? 8 : mixed_seconds;
    useconds_t step = (useconds_t)(seconds * 1e6 / (quick ? 32 : 600));
    pthread_t thread[MAX_WORKERS];
    char body[512];
    int n = 0;
    for (int i = 0; i < GOLDEN; i++)
        mixed_golden[i] = text_of(CHAT, chat(body, 8 + 4 * i, i, false));
    atomic_store(&mixes, true);
    for (uintptr_t i = 0; i < (uintptr_t)n_worker; i++)
        if (pthread_create(&thread[i], NULL, mix, (void *)i))
            give_up("thread", "none");
    double begin = now_ms(), end = begin + seconds * 1e3, logged = begin;
    for (; now_ms() < end && n < SAMPLES; n++) {
        usleep(step);
        h[n] = server_held();
        x[n] = (double)atomic_load(&n_mixed);
        if (now_ms() - logged >= LOG_MS) {
            log_mixed(begin, &h[n]);
            logged = now_ms();
        }
    }
    atomic_store(&mixes, false);
    for (int i = 0; i < n_worker; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < GOLDEN; i++)
        free(mixed_golden[i]);
    struct held after = server_held();
    log_mixed(begin, &after);
    printf("mixed: %.0f s, %ld requests by %d clients: %ld texts compared with those alone, %ld "
           "left, %ld of "
           "nonsense, %ld told to come again\n",
           seconds, atomic_load(&n_mixed), n_worker, atomic_load(&n_mixed_text), atomic_load(&n_mixed_left),
           atomic_load(&n_mixed_bad), atomic_load(&n_mixed_busy));
    printf("mixed: RssAnon+VmSwap %ld KiB after a tenth, %ld at half, %ld at the end: %+.1f KiB "
           "per 1,000 "
           "requests over the second half\n",
           h[n / 10].anon_KiB, h[n / 2].anon_KiB, h[n - 1].anon_KiB, slope(h, x, n));
    printf("mixed: %ld files at half, %ld when all have left; threads %ld at half, %ld then\n", h[n / 2].n_fd,
           after.n_fd, h[n / 2].n_thread, after.n_thread);
}

/* ---- all of it ------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } part[] = { { "cancelled", cancelled },
                 { "survivors", survivors },
                 { "malformed", malformed },
                 { "crowd", crowd },
                 { "mixed", mixed } };
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (!strcmp(argv[at], "--quick"))
            quick = true;
        else if (!strcmp(argv[at], "--seconds") && at + 1 < argc)
            mixed_seconds = atof(argv[++at]);
        else if (!strcmp(argv[at], "--clients") && at + 1 < argc)
            n_worker = atoi(argv[++at]);
        else if (!strcmp(argv[at], "--host-mem") && at + 1 < argc)
            server.host_mem = argv[++at];
        else if (!strcmp(argv[at], "--log") && at + 1 < argc)
            log_file = argv[++at];
        else
            at = argc;
    }
    if (argc - at < 2 || n_worker < 1 || n_worker > MAX_WORKERS) {
        fprintf(stderr,
                "usage: serve [--quick] [--seconds N] [--clients 1..%d] [--host-mem SIZE] [--log FILE] PROGRAM "
                "MODEL [cancelled] [survivors] [malformed] [crowd] [mixed]\n",
                MAX_WORKERS);
        return 2;
    }
    server_start(argv[at], argv[at + 1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        bool asked = argc - at == 2;
        for (int k = at + 2; k < argc; k++)
            asked = asked || !strcmp(argv[k], part[i].name);
        if (asked)
            part[i].run();
    }
    if (!server_end())
        failed("the server", "did not end as it should");
    printf("%ld failures\n", atomic_load(&n_failed));
    return atomic_load(&n_failed) != 0;
}
