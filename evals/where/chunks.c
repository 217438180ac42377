/* evals/where/chunks.c - how long prompts take, and how long decoding users wait, by the longest chunk of a prompt: the share of prompts in
 * passes (engine/prefill_share.c) and of copies (moe/pass/where.c) on simulated machines.
 *
 * limit: none, or the mean of passes: whether a pass that is longer than its limit is made up for.
 *
 * Users send a prompt, decode an answer, and send the next prompt.  A pass has the rows that the engine's schedule would give it.
 * Its layers run on the virtual clock of machine.h; prices are learnt from the times of passes and layers alone.  A longer
 * chunk takes memory of the device from experts: ROW_BYTES for each row.
 *
 *     chunks [SEED [MACHINE LOAD]] > chunks.csv */
#include "evals/where/machine.h"
#include "engine/internal.h"

#define ROW_BYTES  0.4e6 /* buffers of a pass for a row: qwen3-235b-a22b, by plan at --chunk 512 and 4096 */
#define MOST_USERS 32
/* Virtual seconds of which nothing is counted, more with slow links; three times as many follow. */
#define FIRST_S      100.0
#define MOST_PASS    12000
#define DISK         "disk "
#define MODEL_LAYERS 94.0 /* a pass has so many layers: times of the trace's are scaled */

static const struct machine machines[] = {
    { "pcie3 2ch 8GB", 12e9, 40e9, 0.3e12, 8e9, 300e9, 10e12 },
    { "pcie4 2ch 12GB", 24e9, 60e9, 0.6e12, 12e9, 350e9, 20e12 },
    { "pcie4 4ch 24GB", 24e9, 120e9, 1e12, 24e9, 900e9, 60e12 },
    { "pcie5 4ch 32GB", 52e9, 150e9, 1.2e12, 32e9, 1500e9, 80e12 },
    { "pcie3 8ch 24GB", 12e9, 160e9, 1e12, 24e9, 900e9, 40e12 },
    { "pcie4 8ch 48GB", 24e9, 200e9, 1.5e12, 48e9, 900e9, 60e12 },
    { "pcie5 12ch 80GB", 52e9, 460e9, 4e12, 80e9, 2000e9, 100e12 },
    { DISK "3.5GB/s 70GB", 3.5e9, 0, 0, 70e9, 60e9, 0.8e12 }, /* no device: all that the memory lacks is read */
};

/* User 0 sends prompts of `long_prompt` tokens, the others of `prompt`. */
static const struct load {
    const char *name;
    int n_user, long_prompt, prompt, answer;
} loads[] = {
    { "1 user", 1, 6000, 0, 200 },
    { "1 long of 8", 8, 6000, 200, 200 },
    { "8 users", 8, 2000, 2000, 200 },
    { "24 users", 24, 1000, 1000, 300 },
};

struct user {
    int left, to_tell;     /* rows of the prompt; tokens of the answer */
    double asked, told_at; /* when it sent the prompt; when it last got a token, 0: not yet */
};

struct crowd {
    struct user user[MOST_USERS];
    int n;
};

struct outcome {
    double prompt_s;                        /* from a prompt to its first token */
    double tokens_per_s, gap_s, most_gap_s; /* gap: between two tokens of a user */
};

struct tally {
    double prompt_s, gap_s, most_gap_s;
    int n_prompt, n_gap, n_token;
};

static void ask(struct user *u, const struct load *load, bool is_long, double now)
{
    *u = (struct user){ is_long ? load->long_prompt : load->prompt, load->answer, now, 0 };
}

/* Gives n rows to the prompts, the oldest first, and a token to each user that decodes. */
static void advance(struct crowd *c, const struct load *load, int n, double now, bool counts, struct tally *t)
{
    for (int i = 0; i < c->n; i++) {
        struct user *u = &c->user[i];
        if (u->left)
            continue;
        if (u->told_at > 0 && counts) {
            double gap = now - u->told_at;
            t->gap_s += gap;
            t->n_gap++;
            t->most_gap_s = fmax(t->most_gap_s, gap);
        }
        if (u->told_at == 0 && counts) {
            t->prompt_s += now - u->asked;
            t->n_prompt++;
        }
        t->n_token += counts;
        u->told_at = now;
        if (--u->to_tell == 0)
            ask(u, load, i == 0, now);
    }
    while (n > 0) {
        struct user *first = NULL;
        for (int i = 0; i < c->n; i++)
            if (c->user[i].left && (!first || c->user[i].asked < first->asked) && c->user[i].asked < now)
                first = &c->user[i];
        if (!first)
            return;
        int rows = kn_min(n, first->left);
        first->left -= rows;
        n -= rows;
    }
}

static double pass_s(struct run *r, struct world *w, const struct trace *t, const struct routes *routes, int at,
                     int n_row)
{
    double ns = 0;
    moe_residents_begin(&r->c);
    for (int l = 0; l < routes->n_layer; l++) {
        struct layer_plan p;
        plan_layer(&p, t, l, n_row, at);
        double layer = run_layer(r, w, &p, l, n_row);
        moe_where_learn(&r->c.residents.where, layer);
        ns += layer;
        free_plan(&p);
    }
    return ns * 1e-9 * MODEL_LAYERS / routes->n_layer;
}

static bool is_disk(const struct machine *m) { return !strncmp(m->name, DISK, strlen(DISK)); }

static void copy_all(struct moe_where *w)
{
    w->plans = MOE_PLANS_FIXED;
    for (int i = 0; i < MOE_ROW_BUCKETS; i++)
        w->bucket[i].share = MOE_SHARES - 1;
}

static struct outcome run(const struct trace *t, const struct machine *m, const struct load *load, int n_chunk,
                          bool limits_mean, uint64_t seed)
{
    struct routes routes = open_routes(t);
    struct run *r = malloc(sizeof *r);
    struct world w = { m, MEASURED, seed, false, 0 };
    struct crowd c = { .n = load->n_user };
    struct tally tally = { 0 };
    struct eng_prefill_share share;
    double now = 0, first_s = FIRST_S * fmax(1, 24e9 / m->link);
    open_run(r, &routes, m, OTHER_BYTES + n_chunk * ROW_BYTES);
    eng_prefill_share_init(&share, 1.5, limits_mean);
    if (is_disk(m))
        copy_all(&r->c.residents.where);
    for (int i = 0; i < c.n; i++) {
        ask(&c.user[i], load, i == 0, 0);
        c.user[i].to_tell = 1 + (int)(uniform(&w) * load->answer);
    }
    for (int pass = 0; pass < MOST_PASS && now < 4 * first_s; pass++) {
        int n_due = 0, most = 0;
        for (int i = 0; i < c.n; i++) {
            n_due += !c.user[i].left;
            most += c.user[i].left;
        }
        most = kn_min(most, n_chunk - n_due);
        int n = eng_prefill_share_rows(&share, n_due, c.n - n_due, most);
        w.at = now / (4 * first_s);
        double s = pass_s(r, &w, t, &routes, pass, n_due + n);
        now += s;
        eng_prefill_share_learn(&share, n_due, 0, n, s * 1e9);
        advance(&c, load, n, now, now > first_s, &tally);
    }
    off_store_close(routes.store);
    close_run(r);
    free(r);
    return (struct outcome){ tally.prompt_s / tally.n_prompt, tally.n_token / (now - first_s),
                             tally.gap_s / tally.n_gap, tally.most_gap_s };
}

static void measure(const struct trace *t, const struct machine *m, const struct load *load, uint64_t seed)
{
    static const int chunk[] = { 256, 512, 1024, 2048, 4096 };
    for (int i = 0; i < 2 * (int)(sizeof chunk / sizeof *chunk); i++) {
        bool limits_mean = i % 2;
        struct outcome o = run(t, m, load, chunk[i / 2], limits_mean, seed);
        printf("%s,%s,%d,%s,%.2f,%.2f,%.3f,%.2f\n", m->name, load->name, chunk[i / 2], limits_mean ? "mean" : "none",
               o.prompt_s, o.tokens_per_s, o.gap_s, o.most_gap_s);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    struct trace t = { 0 };
    int one[2] = { argc > 2 ? atoi(argv[2]) : -1, argc > 3 ? atoi(argv[3]) : -1 };
    if (!open_trace(&t, "evals/offload/traces/q30.trace.gz")) {
        fputs("chunks [SEED [MACHINE LOAD]], from the root of the tree\n", stderr);
        return 2;
    }
    puts("machine,load,chunk,limit,prompt_s,tokens_per_s,gap_s,most_gap_s");
    for (int m = 0; m < (int)(sizeof machines / sizeof *machines); m++)
        for (int l = 0; l < (int)(sizeof loads / sizeof *loads); l++)
            if ((one[0] < 0 || m == one[0]) && (one[1] < 0 || l == one[1]))
                measure(&t, &machines[m], &loads[l], argc > 1 ? (uint64_t)atol(argv[1]) : 7);
    return 0;
}
