/* evals/load/load.c - many users at once against any server with OpenAI's protocol; see README.md beside it.
 *
 *     load --users 8 --requests 64 http://127.0.0.1:8080
 *     load --users 8 --rounds 4 ours=http://127.0.0.1:8080 peer=http://127.0.0.1:8081
 *
 * A block is a number of requests to one address. With several addresses blocks alternate, forwards and
 * back (A B, B A, ...), and each round gives a ratio, so that other load on the machine affects all alike.
 * Users are closed loops (the next request after the last answer), or with --rate arrivals of a Poisson
 * process, where waiting counts from the time a request was due, not from when it could be sent. */
#include "evals/load/call.h"

#include <getopt.h>
#include <sys/epoll.h>
#include <math.h>

#define MAX_ADDRESS 8
#define MAX_USER    4096
#define MAX_ROUND   64
#define MAX_REASON  8

/* ---- options --------------------------------------------------------------------------------- */

static struct {
    struct address address[MAX_ADDRESS];
    int n_address, users, requests, rounds, max_tokens, words, long_words, warmup;
    double rate, long_share, timeout_s, temperature;
    uint64_t seed;
    const char *model, *key, *prompts;
    bool completions, ignore_eos, json;
} want = { .users = 8,
           .requests = 32,
           .rounds = 1,
           .max_tokens = 128,
           .words = 64,
           .seed = 1,
           .warmup = 1,
           .timeout_s = 600,
           .temperature = 1 };

static json_t *prompt_list; /* of --prompts: strings, or arrays of messages */

/* ---- numbers ----------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* The i-th number of a stream, in [0, 1); different seeds share no stream. */
static double uniform(uint64_t stream, uint64_t i)
{
    return (double)(mix(mix(mix(want.seed) + stream) + (i + 1) * UINT64_C(0x9E3779B97F4A7C15)) >> 11) * 0x1p-53;
}

struct samples {
    double *x;
    size_t n, cap;
};

static void add(struct samples *s, double x)
{
    if (s->n == s->cap) {
        double *more = realloc(s->x, (s->cap = 2 * s->cap + 256) * sizeof *s->x);
        if (!more) {
            fprintf(stderr, "load: no memory for %zu samples\n", s->cap);
            exit(2);
        }
        s->x = more;
    }
    s->x[s->n++] = x;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest x such that at least a share p of the sorted samples is at most x. */
static double percentile(const struct samples *s, double p)
{
    size_t i = (size_t)ceil(p * (double)s->n);
    return s->n ? s->x[i ? i - 1 : 0] : NAN;
}

/* ---- a block ----------------------------------------------------------------------------------- */

struct block {
    const struct address *to;
    int round, n_begun, n_ended, n_error, n_long; /* n_long: long prompts being prefilled */
    long n_token, n_prompt, n_event, n_counted;   /* n_counted: answers with a usage */
    uint64_t start_ns, end_ns;
    struct samples ttft, ttft_long, tbt, tbt_beside, whole;
    struct {
        char text[160];
        int n;
    } reason[MAX_REASON];
    int n_reason;
};

static struct block *running; /* the block that intervals are counted in */

static void on_gap(struct call *c, uint64_t gap_ns)
{
    if (c->is_long)
        return;
    add(&running->tbt, (double)gap_ns * 1e-9);
    if (running->n_long)
        add(&running->tbt_beside, (double)gap_ns * 1e-9);
}

static void note_reason(struct block *b, const char *text)
{
    for (int i = 0; i < b->n_reason; i++)
        if (!strcmp(b->reason[i].text, text)) {
            b->reason[i].n++;
            return;
        }
    if (b->n_reason < MAX_REASON) {
        snprintf(b->reason[b->n_reason].text, sizeof b->reason[0].text, "%s", text);
        b->reason[b->n_reason++].n = 1;
    }
}

/* ---- prompts ----------------------------------------------------------------------------------- */

/* Random words, drawn for each request from the first word on, so that hardly any prefix is cached. */
static char *make_prompt(uint64_t request, int n_word)
{
    static const char *const word[] = { "river",   "stone",  "why",      "seven",     "green",  "letter",  "walks",
                                        "under",   "old",    "bridge",   "the",       "a",      "quickly", "north",
                                        "paper",   "window", "asks",     "sugar",     "winter", "light",   "garden",
                                        "between", "small",  "table",    "remembers", "train",  "blue",    "yesterday",
                                        "count",   "every",  "mountain", "and" };
    size_t room = (size_t)n_word * 12 + 128, n = 0;
    char *text = malloc(room);
    if (!text)
        exit(2);
    for (int i = 0; i < n_word; i++)
        n += (size_t)snprintf(text + n, room - n, "%s ", word[(int)(uniform(request + 1000, (uint64_t)i) * 32)]);
    snprintf(text + n, room - n, "- write a long story with these words.");
    return text;
}

static bool read_prompts(const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    if (!f) {
        fprintf(stderr, "load: %s: %s\n", path, strerror(errno));
        return false;
    }
    prompt_list = json_array();
    for (int n = 1; getline(&line, &room, f) > 0; n++) {
        json_t *all = json_loads(line, 0, NULL), *body = json_object_get(all, "body");
        json_t *from = body ? body : all, *messages = json_object_get(from, "messages");
        json_t *prompt = messages ? messages : json_object_get(from, "prompt");
        if (!json_is_array(messages) && !json_is_string(prompt)) {
            fprintf(stderr, "load: %s:%d: neither {\"messages\": [...]} nor {\"prompt\": \"...\"}\n", path, n);
            return false;
        }
        json_array_append(prompt_list, prompt);
        json_decref(all);
    }
    free(line);
    fclose(f);
    if (json_array_size(prompt_list) == 0)
        fprintf(stderr, "load: %s is empty\n", path);
    return json_array_size(prompt_list) > 0;
}

/* The body of request i of a round; the same for every address. */
static char *make_body(uint64_t i, int round, bool is_long)
{
    uint64_t request = (uint64_t)round * 1000003u + i;
    json_t *prompt = NULL, *body = json_pack("{s:b, s:{s:b}, s:i, s:f, s:I}", "stream", 1, "stream_options",
                                             "include_usage", 1, "max_tokens", want.max_tokens, "temperature",
                                             want.temperature, "seed", (json_int_t)(want.seed + request));
    if (prompt_list && !is_long) {
        prompt = json_incref(json_array_get(prompt_list, request % json_array_size(prompt_list)));
    } else {
        char *text = make_prompt(request, is_long ? want.long_words : want.words);
        prompt = json_string(text);
        free(text);
    }
    if (want.completions && json_is_string(prompt))
        json_object_set(body, "prompt", prompt);
    else if (json_is_array(prompt))
        json_object_set(body, "messages", prompt);
    else
        json_object_set_new(body, "messages", json_pack("[{s:s, s:O}]", "role", "user", "content", prompt));
    if (want.model)
        json_object_set_new(body, "model", json_string(want.model));
    if (want.ignore_eos)
        json_object_set_new(body, "ignore_eos", json_true());
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(prompt);
    json_decref(body);
    if (!text)
        exit(2);
    return text;
}

/* ---- running a block --------------------------------------------------------------------------- */

struct user {
    struct call call;
    bool busy, reading;
};

static struct user user[MAX_USER];

static bool begin(struct block *b, struct user *u, int poll, uint64_t due_ns)
{
    bool is_long = uniform(7, (uint64_t)(b->round * want.requests + b->n_begun)) < want.long_share;
    char *body = make_body((uint64_t)b->n_begun, b->round, is_long);
    bool chat = !want.completions || strstr(body, "\"messages\":") != NULL;
    u->call = (struct call){ .is_long = is_long, .on_gap = on_gap };
    bool ok = call_start(&u->call, b->to, chat ? "/v1/chat/completions" : "/v1/completions", want.key, body, due_ns);
    free(body);
    if (!ok || epoll_ctl(poll, EPOLL_CTL_ADD, u->call.fd,
                         &(struct epoll_event){ .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = u })) {
        fprintf(stderr, "load: no connection to be had: %s\n", strerror(errno));
        return false;
    }
    u->busy = true;
    u->reading = is_long;
    b->n_long += is_long;
    b->n_begun++;
    return true;
}

static void end(struct block *b, struct user *u)
{
    struct call *c = &u->call;
    double wait = (double)(c->first_ns - c->due_ns) * 1e-9;
    if (c->error[0]) {
        b->n_error++;
        note_reason(b, c->error);
    } else {
        b->n_prompt += c->n_prompt > 0 ? c->n_prompt : 0;
        b->n_counted += c->n_token >= 0;
        add(&b->whole, (double)(c->end_ns - c->due_ns) * 1e-9);
        if (c->n_event)
            add(c->is_long ? &b->ttft_long : &b->ttft, wait);
    }
    b->n_event += c->n_event; /* events of a broken answer count as well */
    b->n_token += c->n_token >= 0 ? c->n_token : c->n_event;
    b->n_long -= u->reading;
    b->n_ended++;
    u->busy = u->reading = false;
    call_close(c);
}

static void tend(struct block *b, struct user *u)
{
    bool over = call_io(&u->call);
    if (u->reading && u->call.first_ns) { /* its prompt is prefilled */
        u->reading = false;
        b->n_long--;
    }
    if (over)
        end(b, u);
}

/* Ends calls that exceed the time limit. */
static void watch_time(struct block *b)
{
    uint64_t now = now_ns();
    for (int i = 0; i < want.users; i++) {
        struct call *c = &user[i].call;
        if (!user[i].busy || (double)(now - c->due_ns) * 1e-9 < want.timeout_s)
            continue;
        call_fail(c, "no end within --timeout");
        c->end_ns = now;
        end(b, &user[i]);
    }
}

/* Starts all due requests that have a free user.  Returns the ms to wait for events: until the next request is due, or
 * 1000. */
static int begin_due(struct block *b, int poll, int n, uint64_t *due_ns)
{
    for (int i = 0; i < want.users && b->n_begun < n; i++) {
        uint64_t now = now_ns();
        if (want.rate > 0 && *due_ns > now)
            return (int)((*due_ns - now) / 1000000) + 1;
        if (user[i].busy)
            continue;
        if (!begin(b, &user[i], poll, want.rate > 0 ? *due_ns : now))
            exit(2);
        if (want.rate > 0)
            *due_ns += (uint64_t)(-log(1 - uniform(3, (uint64_t)(b->round * n + b->n_begun))) / want.rate * 1e9);
    }
    return 1000;
}

static void run_block(struct block *b, int n)
{
    struct epoll_event event[64];
    int poll = epoll_create1(EPOLL_CLOEXEC);
    if (poll < 0)
        exit(2);
    running = b;
    b->start_ns = now_ns();
    for (uint64_t due_ns = b->start_ns; b->n_ended < n;) {
        int wait_ms = begin_due(b, poll, n, &due_ns);
        int n_event = epoll_wait(poll, event, 64, wait_ms);
        for (int i = 0; i < n_event; i++)
            if (((struct user *)event[i].data.ptr)->busy)
                tend(b, event[i].data.ptr);
        watch_time(b);
    }
    b->end_ns = now_ns();
    close(poll);
    struct samples *all[] = { &b->ttft, &b->ttft_long, &b->tbt, &b->tbt_beside, &b->whole };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->n)
            qsort(all[i]->x, all[i]->n, sizeof *all[i]->x, by_size);
}

/* ---- output ---------------------------------------------------------------------------------- */

static double seconds(const struct block *b) { return (double)(b->end_ns - b->start_ns) * 1e-9; }
static double speed(const struct block *b) { return (double)b->n_token / seconds(b); }

static json_t *tell_samples(const struct samples *s)
{
    json_t *o = json_pack("{s:I}", "n", (json_int_t)s->n);
    if (s->n) {
        json_object_set_new(o, "p50", json_real(percentile(s, 0.5)));
        json_object_set_new(o, "p90", json_real(percentile(s, 0.9)));
        json_object_set_new(o, "p99", json_real(percentile(s, 0.99)));
        json_object_set_new(o, "max", json_real(percentile(s, 1)));
    }
    return o;
}

static void tell_json(const struct block *b)
{
    json_t *reasons = json_object();
    for (int i = 0; i < b->n_reason; i++)
        json_object_set_new(reasons, b->reason[i].text, json_integer(b->reason[i].n));
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:o, s:f, s:I, s:I, s:I, s:I, s:f}", "what", "block", "to",
                          b->to->name, "round", b->round, "users", want.users, "requests", b->n_ended, "errors",
                          b->n_error, "reasons", reasons, "seconds", seconds(b), "prompt_tokens",
                          (json_int_t)b->n_prompt, "tokens", (json_int_t)b->n_token, "events", (json_int_t)b->n_event,
                          "answers_with_usage", (json_int_t)b->n_counted, "tokens_per_s", speed(b));
    json_object_set_new(o, "ttft_s", tell_samples(&b->ttft));
    json_object_set_new(o, "ttft_long_s", tell_samples(&b->ttft_long));
    json_object_set_new(o, "tbt_s", tell_samples(&b->tbt));
    json_object_set_new(o, "tbt_beside_long_s", tell_samples(&b->tbt_beside));
    json_object_set_new(o, "request_s", tell_samples(&b->whole));
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6));
    puts(text ? text : "{}");
    fflush(stdout);
    free(text);
    json_decref(o);
}

static void tell_head(FILE *out)
{
    fprintf(out, "%-20s %5s %5s %6s %9s %9s | %8s %8s %8s | %8s %8s %8s", "to", "round", "done", "failed", "tokens",
            "tokens/s", "ttft p50", "p90", "p99", "tbt p50", "p99", "max");
    fprintf(out, want.long_share > 0 ? " | %8s %8s %8s\n" : "\n", "ttft:lng", "tbt:p50", "tbt:p99");
}

static void tell_cell(FILE *out, const struct samples *s, double p, int digits)
{
    if (s->n)
        fprintf(out, " %8.*f", digits, percentile(s, p));
    else
        fprintf(out, " %8s", "-");
}

static void tell_line(FILE *out, const struct block *b)
{
    fprintf(out, "%-20.20s %5d %5d %6d %9ld %9.2f |", b->to->name, b->round + 1, b->n_ended - b->n_error, b->n_error,
            b->n_token, speed(b));
    tell_cell(out, &b->ttft, 0.5, 3);
    tell_cell(out, &b->ttft, 0.9, 3);
    tell_cell(out, &b->ttft, 0.99, 3);
    fputs(" |", out);
    tell_cell(out, &b->tbt, 0.5, 4);
    tell_cell(out, &b->tbt, 0.99, 4);
    tell_cell(out, &b->tbt, 1, 4);
    if (want.long_share > 0) {
        fputs(" |", out);
        tell_cell(out, &b->ttft_long, 0.5, 3);
        tell_cell(out, &b->tbt_beside, 0.5, 4);
        tell_cell(out, &b->tbt_beside, 0.99, 4);
    }
    fputc('\n', out);
    for (int i = 0; i < b->n_reason; i++)
        fprintf(out, "    %d: %s\n", b->reason[i].n, b->reason[i].text);
    fflush(out);
}

/* The ratio of the first address to another over all rounds: median, least, most. */
static void tell_ratio(FILE *out, const char *what, const struct address *other, struct samples *s)
{
    if (!s->n)
        return;
    qsort(s->x, s->n, sizeof *s->x, by_size);
    double middle = (s->x[(s->n - 1) / 2] + s->x[s->n / 2]) / 2;
    fprintf(out, "%-10s %s / %s: %.3f (%.3f to %.3f over %zu rounds)\n", what, want.address[0].name, other->name,
            middle, s->x[0], s->x[s->n - 1], s->n);
    if (want.json)
        printf("{\"what\":\"ratio\",\"of\":\"%s\",\"to\":\"%s\",\"over\":\"%s\",\"middle\":%.6g,\"least\":%.6g,"
               "\"most\":%.6g,\"rounds\":%zu}\n",
               what, want.address[0].name, other->name, middle, s->x[0], s->x[s->n - 1], s->n);
    free(s->x);
}

static void tell_ratios(FILE *out, struct block (*block)[MAX_ADDRESS])
{
    for (int a = 1; a < want.n_address; a++) {
        struct samples s = { 0 }, ttft = { 0 }, tbt = { 0 };
        for (int r = 0; r < want.rounds; r++) {
            const struct block *x = &block[r][0], *y = &block[r][a];
            if (x->n_error || y->n_error || !x->ttft.n || !y->ttft.n || !x->tbt.n || !y->tbt.n)
                continue;
            add(&s, speed(x) / speed(y));
            add(&ttft, percentile(&x->ttft, 0.5) / percentile(&y->ttft, 0.5));
            add(&tbt, percentile(&x->tbt, 0.99) / percentile(&y->tbt, 0.99));
        }
        if (!s.n)
            fprintf(out, "no ratio to %s: no round without a failure on either side\n", want.address[a].name);
        tell_ratio(out, "tokens/s", &want.address[a], &s);
        tell_ratio(out, "ttft p50", &want.address[a], &ttft);
        tell_ratio(out, "tbt p99", &want.address[a], &tbt);
    }
}

/* ---- arguments --------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: load [flags] [NAME=]http://host:port [[NAME=]http://host:port ...]\n\n"
    "  --users N            at once; each sends its next request when the last is answered [8]\n"
    "  --rate X             arrivals a second (Poisson) in place of loops; users are then the most at once\n"
    "  --requests N         of a block [32]\n"
    "  --rounds N           blocks for each address, in alternation [1]\n"
    "  --warmup N           requests to each address that do not count [1]\n"
    "  --max-tokens N       of each answer [128]\n"
    "  --prompts FILE       JSONL: {\"messages\": [...]}, {\"prompt\": \"...\"}, or lines of a batch\n"
    "  --prompt-words N     of generated prompts [64]\n"
    "  --long-prompts X:N   a share X of the prompts has N words; others' gaps meanwhile are told apart\n"
    "  --completions        /v1/completions, not chat\n"
    "  --ignore-eos         answers go on to --max-tokens (where the server knows the word)\n"
    "  --temperature X      [1]\n"
    "  --model NAME         for servers that want to be told\n"
    "  --api-key KEY\n"
    "  --seed N             of prompts, arrivals and answers [1]\n"
    "  --timeout S          of a request [600]\n"
    "  --json               one object a block on stdout; the table goes to stderr\n";

enum {
    USERS,
    RATE,
    REQUESTS,
    ROUNDS,
    WARMUP,
    MAX_TOKENS,
    PROMPTS,
    WORDS,
    LONG,
    COMPLETIONS,
    IGNORE_EOS,
    TEMPERATURE,
    MODEL,
    KEY,
    SEED,
    TIMEOUT,
    JSON,
    HELP
};

static const struct option flags[] = { { "users", 1, NULL, USERS },
                                       { "rate", 1, NULL, RATE },
                                       { "requests", 1, NULL, REQUESTS },
                                       { "rounds", 1, NULL, ROUNDS },
                                       { "warmup", 1, NULL, WARMUP },
                                       { "max-tokens", 1, NULL, MAX_TOKENS },
                                       { "prompts", 1, NULL, PROMPTS },
                                       { "prompt-words", 1, NULL, WORDS },
                                       { "long-prompts", 1, NULL, LONG },
                                       { "completions", 0, NULL, COMPLETIONS },
                                       { "ignore-eos", 0, NULL, IGNORE_EOS },
                                       { "temperature", 1, NULL, TEMPERATURE },
                                       { "model", 1, NULL, MODEL },
                                       { "api-key", 1, NULL, KEY },
                                       { "seed", 1, NULL, SEED },
                                       { "timeout", 1, NULL, TIMEOUT },
                                       { "json", 0, NULL, JSON },
                                       { "help", 0, NULL, HELP },
                                       { NULL, 0, NULL, 0 } };

static bool take_flag(int flag, const char *s)
{
    int *const number[] = { [USERS] = &want.users,   [REQUESTS] = &want.requests,     [ROUNDS] = &want.rounds,
                            [WARMUP] = &want.warmup, [MAX_TOKENS] = &want.max_tokens, [WORDS] = &want.words };
    switch (flag) {
    case USERS:
    case REQUESTS:
    case ROUNDS:
    case WARMUP:
    case MAX_TOKENS:
    case WORDS:
        return sscanf(s, "%d", number[flag]) == 1;
    case RATE:
        return sscanf(s, "%lf", &want.rate) == 1;
    case TEMPERATURE:
        return sscanf(s, "%lf", &want.temperature) == 1;
    case TIMEOUT:
        return sscanf(s, "%lf", &want.timeout_s) == 1;
    case LONG:
        return sscanf(s, "%lf:%d", &want.long_share, &want.long_words) == 2;
    case SEED:
        return sscanf(s, "%lu", &want.seed) == 1;
    case PROMPTS:
        want.prompts = s;
        return true;
    case MODEL:
        want.model = s;
        return true;
    case KEY:
        want.key = s;
        return true;
    case COMPLETIONS:
        return want.completions = true;
    case IGNORE_EOS:
        return want.ignore_eos = true;
    case JSON:
        return want.json = true;
    }
    return false;
}

static bool read_arguments(int argc, char **argv)
{
    int flag;
    while ((flag = getopt_long(argc, argv, "h", flags, NULL)) >= 0)
        if (!take_flag(flag, optarg)) {
            fputs(usage, stderr);
            return false;
        }
    if (want.users < 1 || want.users > MAX_USER || want.requests < 1 || want.rounds < 1 || want.rounds > MAX_ROUND ||
        optind == argc || argc - optind > MAX_ADDRESS) {
        fputs(usage, stderr);
        return false;
    }
    for (; optind < argc; optind++)
        if (!address_read(&want.address[want.n_address++], argv[optind]))
            return false;
    return !want.prompts || read_prompts(want.prompts);
}

int main(int argc, char **argv)
{
    static struct block block[MAX_ROUND][MAX_ADDRESS], warm[MAX_ADDRESS];
    if (!read_arguments(argc, argv))
        return 2;
    FILE *out = want.json ? stderr : stdout;
    int n_error = 0;
    for (int a = 0; a < want.n_address && want.warmup > 0; a++) {
        warm[a] = (struct block){ .to = &want.address[a], .round = MAX_ROUND + a };
        run_block(&warm[a], want.warmup);
        if (warm[a].n_error == want.warmup) {
            fprintf(stderr, "load: %s: %s\n", want.address[a].name, warm[a].reason[0].text);
            return 2;
        }
    }
    tell_head(out);
    for (int r = 0; r < want.rounds; r++)
        for (int i = 0; i < want.n_address; i++) {
            int a = r % 2 ? want.n_address - 1 - i : i;
            block[r][a] = (struct block){ .to = &want.address[a], .round = r };
            run_block(&block[r][a], want.requests);
            n_error += block[r][a].n_error;
            tell_line(out, &block[r][a]);
            if (want.json)
                tell_json(&block[r][a]);
        }
    tell_ratios(out, block);
    return n_error ? 1 : 0;
}
