/* evals/offload/replay.c - replays a routing trace through eviction policies, and compares them with the optimum.
 *
 * Prints CSV: for each batch and share of experts that fits, the misses per pass of each policy, and
 * their ratio to Belady's optimum. A turn is one layer's in one pass: all experts that it uses are resident at
 * once and stay to its end; misses take free slots, or slots of evicted experts. The first half of the passes
 * is warm-up.
 *
 *   belady   knows the future (offload/trace.c, as in bench): the bound, not achievable
 *   oracle   our rule with every expert's true share of the turns. For independent choices no policy
 *            without the future is better: its distance to belady is the value of knowing the future
 *   ours     offload/policy.c
 *   store    the expert store itself (offload/store.h), filled before the first pass, with experts of a few bytes in a
 *            file; prefetch: it is also asked for the next layer's experts ahead, without a wrong guess. The misses are
 *            its reads
 *   lru lfu random mru s3fifo (scan-resistant); fixed: the most used in the long run stay resident
 *
 *   replay TRACE[.gz] [BATCH,BATCH... [PERCENT,PERCENT... [SCAN]]]
 *
 * Traces: evals/offload/README.md. Batch b joins b streams of the trace; a row's experts do not depend on
 * other rows, so these are the batch's uses. PERCENT of the experts fit. SCAN:
 * every so many passes one uses every expert, as a prefill chunk does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "evals/offload/trace_file.h"
#include "offload/internal.h"

#define N_PASS 240

/* ---- traces --------------------------------------------------------------------------------------- */

/* The experts that a batch uses, turn by turn. */
struct turns {
    int n_group, n_turn, n_expert, counted; /* counted: first turn that counts */
    int *first;                             /* [n_turn + 1] index in `used` of a turn's first expert */
    int32_t *used;                          /* [first[n_turn]] */
    double *share;                          /* [n_expert] long-run share of its group's turns */
    struct off_expert *expert;              /* [n_expert] for policy.c: only the groups are set */
};

static int uses_in_stream(const struct trace *t, int stream, int group, int i)
{
    const uint8_t *bits = t->bits + (size_t)stream * (size_t)t->n_pass * t->pass_bytes + t->at[group];
    int n = 0;
    for (int pass = 0; pass < t->n_pass; pass++)
        n += is_used(bits + (size_t)pass * t->pass_bytes, i);
    return n;
}

/* The long-run share of a group's experts in the rows of streams from `from` on. A share that includes this
 * sample's chance would know the future in part: the part of the experts' variance that the variance between
 * streams explains is removed. */
static void long_run_shares(const struct trace *t, int from, int group, double *share)
{
    int n = t->first[group + 1] - t->first[group], n_stream = t->n_stream - from;
    double mean = 0, scatter = 0, chance = 0;
    for (int i = 0; i < n; i++) {
        double sum = 0, squares = 0;
        for (int s = from; s < t->n_stream; s++) {
            double x = (double)uses_in_stream(t, s, group, i) / t->n_pass;
            sum += x;
            squares += x * x;
        }
        share[i] = sum / n_stream;
        mean += share[i] / n;
        chance += (squares / n_stream - share[i] * share[i]) / (n_stream > 1 ? n_stream - 1 : 1) / n;
    }
    for (int i = 0; i < n; i++)
        scatter += (share[i] - mean) * (share[i] - mean) / n;
    for (int i = 0; i < n; i++)
        share[i] = mean + (scatter > chance ? 1 - chance / scatter : 0) * (share[i] - mean);
}

/* The same for a batch's turns: rows choose independently, and every scan-th pass uses all. */
static double batch_share(double share, int batch, int scan)
{
    double unused = scan ? 1 - 1.0 / scan : 1;
    for (int row = 0; row < batch; row++)
        unused *= 1 - share;
    return 1 - unused;
}

static void make_turns(struct turns *u, const struct trace *t, int batch, int scan)
{
    *u = (struct turns){ .n_group = t->n_group,
                         .n_expert = t->n_expert,
                         .n_turn = N_PASS * t->n_group,
                         .counted = N_PASS / 2 * t->n_group };
    u->first = calloc((size_t)u->n_turn + 1, sizeof *u->first);
    u->used = calloc((size_t)N_PASS * (size_t)t->n_expert, sizeof *u->used);
    u->share = calloc((size_t)t->n_expert, sizeof *u->share);
    u->expert = calloc((size_t)t->n_expert, sizeof *u->expert);
    for (int turn = 0; turn < u->n_turn; turn++) {
        int pass = turn / t->n_group, g = turn % t->n_group;
        int32_t n = u->first[turn];
        for (int e = t->first[g]; e < t->first[g + 1]; e++) {
            bool used = scan && pass % scan == scan - 1;
            for (int row = 0; !used && row < batch; row++)
                used = is_used(row_bits(t, batch, pass, row) + t->at[g], e - t->first[g]);
            if (used)
                u->used[n++] = e;
        }
        u->first[turn + 1] = n;
    }
    int replayed = batch * kn_ceil_div(N_PASS, t->n_pass); /* streams; long-run shares come from the others, if any */
    for (int g = 0; g < t->n_group; g++) {
        long_run_shares(t, replayed < t->n_stream ? replayed : 0, g, u->share + t->first[g]);
        for (int e = t->first[g]; e < t->first[g + 1]; e++) {
            u->expert[e].group = g;
            u->share[e] = batch_share(u->share[e], batch, scan);
        }
    }
}

static void free_turns(struct turns *u)
{
    free(u->first);
    free(u->used);
    free(u->share);
    free(u->expert);
}

/* ---- policies ------------------------------------------------------------------------------------- */

struct line {
    int32_t *expert;
    int n, head, room;
}; /* a FIFO queue */

struct score {
    double goes;
    int place;
};

struct cache {
    const struct turns *u;
    int turn, n_slot, n_resident;
    int32_t *resident, *place; /* [n_slot]; [n_expert] its slot, or -1 */
    int32_t *used, *count;     /* [n_expert] last turn that used it, or -1; count */
    struct score *score;       /* [n_slot] */
    struct off_policy *policy; /* ours */
    uint8_t *again;            /* s3fifo: [n_expert] uses since it came, 3 at most */
    int32_t *left;             /* s3fifo: [n_expert] miss at which it left the small queue, or 0 */
    struct line small, main;
    int n_miss;
};

typedef double rule(const struct cache *c, int32_t e); /* the largest value is evicted first */

static double by_lru(const struct cache *c, int32_t e) { return -c->used[e]; }
static double by_mru(const struct cache *c, int32_t e) { return c->used[e]; }
static double by_lfu(const struct cache *c, int32_t e) { return -c->count[e] - c->used[e] * 1e-6; }
static double by_fixed(const struct cache *c, int32_t e) { return -c->u->share[e]; }
static double by_ours(const struct cache *c, int32_t e) { return off_policy_wait(c->policy, e); }

static double by_chance(const struct cache *c, int32_t e)
{
    return (double)(kn_mix((uint64_t)c->turn << 32 | (uint64_t)e) >> 11);
}

static double by_oracle(const struct cache *c, int32_t e)
{
    int ahead = c->u->expert[e].group - c->turn % c->u->n_group;
    return (ahead > 0 ? ahead : ahead + c->u->n_group) / (c->u->share[e] + 1e-9);
}

static const struct policy {
    const char *name;
    rule *goes;
} policies[] = {
    { "oracle", by_oracle }, { "ours", by_ours },   { "lru", by_lru }, { "lfu", by_lfu },
    { "random", by_chance }, { "fixed", by_fixed }, { "mru", by_mru }, { "s3fifo", NULL },
};

/* ---- s3fifo --------------------------------------------------------------------------------------- */

static void enter(struct line *l, int32_t e) { l->expert[(l->head + l->n++) % l->room] = e; }

static int32_t leave(struct line *l)
{
    int32_t e = l->expert[l->head];
    l->head = (l->head + 1) % l->room;
    l->n--;
    return e;
}

/* New experts wait in a small queue; an expert used again there, or that left it recently, moves to
 * the main queue, where each use gives one more round. Experts of this turn are passed over. */
static int s3fifo_victim(struct cache *c, bool any)
{
    for (int round = 0;; round++) {
        bool small = (round / 2 % 2 == 0 && c->small.n * 10 >= c->n_slot && c->small.n) || !c->main.n;
        struct line *l = small ? &c->small : &c->main;
        int32_t e = leave(l);
        if (!any && c->used[e] == c->turn)
            enter(l, e);
        else if (small && c->again[e])
            enter(&c->main, e);
        else if (!small && c->again[e])
            c->again[e]--, enter(l, e);
        else {
            c->left[e] = small ? c->n_miss : 0;
            return c->place[e];
        }
    }
}

static void s3fifo_enter(struct cache *c, int32_t e)
{
    bool loved = c->left[e] && c->n_miss - c->left[e] < c->n_slot;
    enter(loved ? &c->main : &c->small, e);
    c->again[e] = 0;
}

/* ---- one run -------------------------------------------------------------------------------------- */

static void sift(struct score *heap, int n, int at)
{
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].goes > heap[child].goes)
            child++;
        if (heap[at].goes >= heap[child].goes)
            return;
        struct score t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
    }
}

/* Makes c->score a heap of the resident experts, the first to evict on top, and returns its size.  Experts of this turn
 * are left out, unless `any` is set or all resident experts are of this turn. */
static int rank(struct cache *c, rule *goes, bool any)
{
    int n = 0;
    for (int i = 0; i < c->n_resident; i++)
        if (any || c->used[c->resident[i]] != c->turn)
            c->score[n++] = (struct score){ goes(c, c->resident[i]), i };
    for (int at = n / 2; at-- > 0;)
        sift(c->score, n, at);
    return n || any ? n : rank(c, goes, true);
}

static int ranked_victim(struct cache *c, rule *goes, int *n)
{
    if (*n <= 0)
        *n = rank(c, goes, *n == 0);
    int place = c->score[0].place;
    c->score[0] = c->score[--*n];
    sift(c->score, *n, 0);
    return place;
}

static void bring(struct cache *c, int32_t e, int at, rule *goes)
{
    if (at < c->n_resident)
        c->place[c->resident[at]] = -1;
    else
        c->n_resident++;
    c->resident[at] = e;
    c->place[e] = at;
    c->n_miss++;
    if (!goes)
        s3fifo_enter(c, e);
}

static void run_turn(struct cache *c, rule *goes)
{
    const struct turns *u = c->u;
    int begin = u->first[c->turn], end = u->first[c->turn + 1], n_other = 0, n_ranked = -1;
    if (c->policy)
        off_policy_use(c->policy, u->used + begin, end - begin, end - begin);
    for (int i = begin; i < end; i++) {
        int32_t e = u->used[i];
        c->used[e] = c->turn;
        c->count[e]++;
        c->again[e] = (uint8_t)kn_min(c->again[e] + 1, 3);
    }
    for (int i = 0; i < c->n_resident; i++)
        n_other += c->used[c->resident[i]] != c->turn;
    for (int i = begin; i < end; i++) {
        int32_t e = u->used[i];
        if (c->place[e] >= 0)
            continue;
        int at = c->n_resident;
        if (at == c->n_slot)
            at = goes ? ranked_victim(c, goes, &n_ranked) : s3fifo_victim(c, n_other-- <= 0);
        bring(c, e, at, goes);
    }
}

/* Misses of the counted passes; -1: no memory for the policy. */
static double replay(const struct turns *u, int n_slot, rule *goes)
{
    size_t n = (size_t)u->n_expert;
    struct cache c = { .u = u,
                       .n_slot = n_slot,
                       .resident = calloc(n, 4),
                       .place = calloc(n, 4),
                       .used = calloc(n, 4),
                       .count = calloc(n, 4),
                       .score = calloc(n, sizeof *c.score),
                       .again = calloc(n, 1),
                       .left = calloc(n, 4) };
    c.small = (struct line){ calloc(n, 4), 0, 0, u->n_expert };
    c.main = (struct line){ calloc(n, 4), 0, 0, u->n_expert };
    int before = 0;
    if (goes == by_ours && off_policy_open(&c.policy, u->expert, u->n_expert))
        return -1;
    memset(c.used, -1, 4 * n);
    memset(c.place, -1, 4 * n);
    for (c.turn = 0; c.turn < u->n_turn; c.turn++) {
        if (c.turn == u->counted)
            before = c.n_miss;
        run_turn(&c, goes);
    }
    off_policy_close(c.policy);
    free(c.resident);
    free(c.place);
    free(c.used);
    free(c.count);
    free(c.score);
    free(c.again);
    free(c.left);
    free(c.small.expert);
    free(c.main.expert);
    return c.n_miss - before;
}

/* ---- the store ------------------------------------------------------------------------------------ */

/* Fetches turn `turn`, and with prefetch requests the experts of the next one, as moe/pass does. */
static void store_turn(struct off_store *s, const struct turns *u, int turn, bool prefetch,
                       const struct off_hands *hands)
{
    enum { MOST = 4096 };
    static struct off_ticket soon[2]; /* of this turn, and of the next */
    static struct off_view view[MOST];
    static uint8_t mark[MOST], soon_mark[2][MOST];
    static int32_t index[MOST];
    static int status[MOST];
    const int32_t *expert = u->used + u->first[turn];
    int n = u->first[turn + 1] - u->first[turn], next = turn + 1;
    struct off_ticket t;
    off_fetch(s, expert, mark, n, OFF_NOW, &t);
    if (soon[turn % 2].n)
        off_release(s, &soon[turn % 2]);
    if (prefetch && next < u->n_turn && next % u->n_group)
        off_fetch(s, u->used + u->first[next], soon_mark[next % 2], u->first[next + 1] - u->first[next], OFF_SOON,
                  &soon[next % 2]);
    while (off_wait(s, &t, hands, index, view, status) > 0)
        ;
    off_release(s, &t);
}

/* Reads of a store with n_slot slots in the counted passes; -1 on an error, which is logged. */
static double replay_store(const struct turns *u, int n_slot, bool prefetch)
{
    enum { ROW = 34 * 8 }; /* bytes of 256 values in Q8_0: an expert */
    char path[] = "/tmp/spillway-replay-XXXXXX";
    const char *name = path;
    struct off_store *s = NULL;
    struct off_stats before = { 0 }, after = { 0 };
    struct kn_team *team = NULL;
    struct off_expert *expert = calloc((size_t)u->n_expert, sizeof *expert);
    struct off_hands hands = { .ops = kn_ops(KN_ISA_COUNT - 1), .scratch_bytes = 1 << 16 };
    int fd = mkstemp(path);
    for (int e = 0; e < u->n_expert; e++)
        expert[e] = (struct off_expert){
            .matrix[0] = { .offset = (uint64_t)e * ROW, .format = KN_Q8_0, .n_out = 1, .n_in = 256 },
            .group = u->expert[e].group
        };
    struct off_store_options o = { .files = { 1, &fd, &name }, .expert = expert, .n_expert = u->n_expert };
    o.slot_bytes = off_store_bytes(expert, u->n_expert) / (size_t)u->n_expert * (size_t)n_slot;
    hands.scratch = aligned_alloc(64, hands.scratch_bytes);
    bool good = fd >= 0 && !ftruncate(fd, (off_t)u->n_expert * ROW) && !kn_team_open(&team, 1) &&
                !off_store_open(&s, &o);
    hands.team = team;
    for (before.filling = good; before.filling; off_stats_get(s, &before))
        usleep(1000);
    for (int turn = 0; good && turn < u->n_turn; turn++) {
        if (turn == u->counted)
            off_stats_get(s, &before);
        store_turn(s, u, turn, prefetch, &hands);
    }
    if (good)
        off_stats_get(s, &after);
    off_store_close(s);
    kn_team_close(team);
    free(hands.scratch);
    free(expert);
    close(fd);
    unlink(path);
    return good ? (double)(after.reads - before.reads) : -1;
}

/* Belady's misses in the counted turns, with the best initial contents, as in bench. */
static double belady(const struct turns *u, int n_slot)
{
    struct off_trace t = { .room = (size_t)(u->first[u->n_turn] + u->n_turn) };
    bool *all = malloc((size_t)u->n_expert);
    uint64_t misses = 0;
    t.item = malloc(t.room * sizeof *t.item);
    memset(all, true, (size_t)u->n_expert);
    for (int turn = u->counted; turn < u->n_turn; turn++)
        off_trace_add(&t, u->used + u->first[turn], u->first[turn + 1] - u->first[turn]);
    if (off_trace_least(&t, all, u->n_expert, n_slot, &misses))
        misses = 0;
    free(t.item);
    free(all);
    return (double)misses;
}

/* ---- all combinations ----------------------------------------------------------------------------- */

#define MOST_NUMBERS 16

struct run {
    const char *name;
    int batch[MOST_NUMBERS], n_batch, percent[MOST_NUMBERS], n_percent, scan;
};

static void compare(const struct run *r, const struct turns *u, int batch, int percent)
{
    int n_slot = u->n_expert * percent / 100, n_pass = (u->n_turn - u->counted) / u->n_group;
    double used = (double)(u->first[u->n_turn] - u->first[u->counted]) / n_pass;
    double optimum = belady(u, n_slot);
    for (int p = -1; p < (int)(sizeof policies / sizeof *policies); p++) {
        double misses = p < 0 ? optimum : replay(u, n_slot, policies[p].goes);
        printf("%.*s,%d,%d,%d,%s,%.1f,%.2f,%.4f\n", (int)strcspn(r->name, "."), r->name, batch, r->scan, percent,
               p < 0 ? "belady" : policies[p].name, used, misses / n_pass, misses / optimum);
    }
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        double misses = replay_store(u, n_slot, prefetch);
        printf("%.*s,%d,%d,%d,%s,%.1f,%.2f,%.4f\n", (int)strcspn(r->name, "."), r->name, batch, r->scan, percent,
               prefetch ? "store+prefetch" : "store", used, misses / n_pass, misses / optimum);
    }
    fflush(stdout);
}

/* Comma-separated numbers from 1 to most; returns their count, 0 if the text is invalid. */
static int read_numbers(const char *s, int most, int *out)
{
    int n = 0;
    for (char *end; *s && n < MOST_NUMBERS; s = *end ? end + 1 : end) {
        long v = strtol(s, &end, 10);
        if (end == s || v < 1 || v > most || (*end && *end != ','))
            return 0;
        out[n++] = (int)v;
    }
    return *s ? 0 : n;
}

int main(int argc, char **argv)
{
    struct trace t = { 0 };
    struct run r = { 0 };
    bool good = argc > 1 && open_trace(&t, argv[1]);
    if (good) {
        r.name = strrchr(argv[1], '/') ? strrchr(argv[1], '/') + 1 : argv[1];
        r.n_batch = read_numbers(argc > 2 ? argv[2] : "1,4,8,16,32", t.n_stream, r.batch);
        r.n_percent = read_numbers(argc > 3 ? argv[3] : "10,20,30,40,50,60,70,80,90", 100, r.percent);
        good = r.n_batch && r.n_percent && (argc < 5 || read_numbers(argv[4], N_PASS, &r.scan) == 1);
    }
    if (!good) {
        fputs("replay TRACE[.gz] [BATCH,BATCH... [PERCENT,PERCENT... [SCAN]]]\n", stderr);
        return 2;
    }
    puts("trace,batch,scan,percent,policy,used_per_pass,misses_per_pass,to_belady");
    for (int b = 0; b < r.n_batch; b++) {
        struct turns u;
        make_turns(&u, &t, r.batch[b], r.scan);
        for (int i = 0; i < r.n_percent; i++)
            compare(&r, &u, r.batch[b], r.percent[i]);
        free_turns(&u);
    }
    free(t.first);
    free(t.at);
    free(t.bits);
    return 0;
}
