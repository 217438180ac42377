/* evals/offload/replay.c - a routing trace through policies that choose who goes, beside the optimum.
 *
 * Prints CSV: for each batch and share of the experts that fit, the misses per pass of each policy, and
 * their ratio to Belady's optimum, which sees the future.  A turn is a layer's: all experts it uses must
 * be there at once and stay to its end; those that were there are kept, the others are read and take
 * free slots or those of whoever goes.  The first half of the passes warms up and is not counted.
 *
 *   belady   goes: who is used last from now on.  Cannot be had; the bound
 *   oracle   our rule, told every expert's true share of the turns.  For independent choices nothing
 *            that does not see the future is better, so its distance to belady is what seeing is worth
 *   ours     offload/policy.c
 *   lru lfu random mru fixed (the most used of the whole trace stay) s3fifo (scan-resistant)
 *
 *   replay TRACE[.gz] [BATCH,BATCH...] [SCAN]
 *
 * Traces: evals/offload/README.md.  Batch b joins b streams of the trace; rows choose their experts
 * whatever their company, so this is what the batch would have used.  SCAN: every so many passes one
 * uses every expert, as a prompt's chunk does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/internal.h"

#define MOST_PASSES 320
#define NEVER INT32_MAX

/* ---- traces --------------------------------------------------------------------------------------- */

struct trace {
    int n_stream, n_pass, n_group, n_expert;    /* of all groups */
    int *first;                                 /* [n_group + 1] experts of a group */
    size_t *at, pass_bytes;                     /* [n_group] its bitmap in a pass */
    uint8_t *bits;                              /* [n_stream][n_pass][pass_bytes] */
};

/* What a batch uses, turn by turn. */
struct turns {
    int n_group, n_turn, n_expert, n_counted;   /* the last n_counted passes count */
    int *first;                                 /* [n_turn + 1] */
    int32_t *expert, *next;                     /* [first[n_turn]]; the turn of its next use */
    double *share;                              /* [n_expert] of its group's turns */
    struct off_expert *group;                   /* [n_expert] for policy.c */
};

static bool read_trace(struct trace *t, FILE *f)
{
    if (fscanf(f, "spillway-trace 1 streams %d passes %d groups %d experts", &t->n_stream, &t->n_pass,
               &t->n_group) != 3 || t->n_stream < 1 || t->n_pass < 1 || t->n_group < 1)
        return false;
    t->first = calloc((size_t)t->n_group + 1, sizeof *t->first);
    t->at = calloc((size_t)t->n_group, sizeof *t->at);
    for (int g = 0, n; g < t->n_group; g++) {
        if (fscanf(f, "%d", &n) != 1 || n < 1 || n > 65536)
            return false;
        t->at[g] = t->pass_bytes;
        t->pass_bytes += (size_t)(n + 7) / 8;
        t->first[g + 1] = t->n_expert += n;
    }
    size_t n_row = (size_t)t->n_stream * (size_t)t->n_pass;
    t->bits = malloc(n_row * t->pass_bytes);
    return t->bits && fgetc(f) == '\n' && fread(t->bits, t->pass_bytes, n_row, f) == n_row;
}

static bool open_trace(struct trace *t, const char *path)
{
    char command[512] = "";
    size_t n = strlen(path);
    bool zipped = n > 3 && !strcmp(path + n - 3, ".gz");
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *f = zipped ? popen(command, "r") : fopen(path, "rb");
    bool good = f && read_trace(t, f);
    if (f)
        zipped ? pclose(f) : fclose(f);
    return good;
}

/* Pass `pass` of a batch: each of its streams is as far on as the others, and when the streams have ended
 * they are joined anew, each begun elsewhere, so that a few make many different passes. */
static const uint8_t *row_bits(const struct trace *t, int batch, int pass, int row)
{
    int groups = t->n_stream / batch, round = pass / t->n_pass;
    int stream = round % groups * batch + row;
    int at = (pass + round / groups * (row * 7 + 1)) % t->n_pass;
    return t->bits + ((size_t)stream * (size_t)t->n_pass + (size_t)at) * t->pass_bytes;
}

static void make_turns(struct turns *u, const struct trace *t, int batch, int scan)
{
    int n_pass = MOST_PASSES;
    *u = (struct turns){ .n_group = t->n_group, .n_expert = t->n_expert, .n_turn = n_pass * t->n_group,
                         .n_counted = n_pass / 2 };
    u->first = calloc((size_t)u->n_turn + 1, sizeof *u->first);
    u->expert = calloc((size_t)n_pass * (size_t)t->n_expert, sizeof *u->expert);
    u->next = calloc((size_t)n_pass * (size_t)t->n_expert, sizeof *u->next);
    u->share = calloc((size_t)t->n_expert, sizeof *u->share);
    u->group = calloc((size_t)t->n_expert, sizeof *u->group);
    int n = 0;
    for (int turn = 0; turn < u->n_turn; turn++) {
        int pass = turn / t->n_group, g = turn % t->n_group;
        bool all = scan && pass % scan == scan - 1;
        for (int e = t->first[g]; e < t->first[g + 1]; e++) {
            int i = e - t->first[g];
            bool used = all;
            for (int row = 0; !used && row < batch; row++)
                used = row_bits(t, batch, pass, row)[t->at[g] + (size_t)i / 8] >> i % 8 & 1;
            if (used)
                u->expert[n++] = e;
            u->share[e] += used ? 1.0 / n_pass : 0;
            u->group[e].group = g;
        }
        u->first[turn + 1] = n;
    }
    int32_t *seen = malloc((size_t)t->n_expert * sizeof *seen);
    for (int e = 0; e < t->n_expert; e++)
        seen[e] = NEVER;
    for (int turn = u->n_turn; turn-- > 0; )
        for (int i = u->first[turn]; i < u->first[turn + 1]; i++) {
            u->next[i] = seen[u->expert[i]];
            seen[u->expert[i]] = turn;
        }
    free(seen);
}

static void free_turns(struct turns *u)
{
    free(u->first);
    free(u->expert);
    free(u->next);
    free(u->share);
    free(u->group);
}

/* ---- policies ------------------------------------------------------------------------------------- */

struct cache {
    const struct turns *u;
    int turn, n_slot, n_resident;
    int32_t *resident;                          /* [n_slot] */
    int32_t *held;                              /* [n_expert] the turn it was last used in, or -1 */
    int32_t *loaded;                            /* [n_expert] the turn it came in, or -1: not there */
    int32_t *next, *count;                      /* [n_expert] */
    struct off_policy *policy;
    uint8_t *freq;                              /* [n_expert] s3fifo: uses since it came, 3 at most */
    int32_t *queue, *ghost;                     /* [n_expert] s3fifo: when it entered which; when it left */
    bool *in_main;
    int32_t clock;
    int n_small;
};

typedef double score_of(const struct cache *c, int32_t e);      /* the largest goes first */

static double by_lru(const struct cache *c, int32_t e) { return -c->held[e]; }
static double by_mru(const struct cache *c, int32_t e) { return c->held[e]; }
static double by_lfu(const struct cache *c, int32_t e) { return -c->count[e] - c->held[e] * 1e-6; }
static double by_fixed(const struct cache *c, int32_t e) { return -c->u->share[e]; }
static double by_next(const struct cache *c, int32_t e) { return c->next[e]; }
static double by_ours(const struct cache *c, int32_t e) { return off_policy_wait(c->policy, e); }

static double by_chance(const struct cache *c, int32_t e)
{
    return (double)(kn_mix((uint64_t)c->turn << 32 | (uint64_t)e) >> 11);
}

static double by_oracle(const struct cache *c, int32_t e)
{
    int ahead = c->u->group[e].group - c->turn % c->u->n_group;
    return (ahead > 0 ? ahead : ahead + c->u->n_group) / (c->u->share[e] + 1e-9);
}

static const struct policy { const char *name; score_of *score; } policies[] = {
    { "belady", by_next }, { "oracle", by_oracle }, { "ours", by_ours },   { "lru", by_lru },
    { "lfu", by_lfu },     { "random", by_chance }, { "fixed", by_fixed }, { "mru", by_mru },
    { "s3fifo", NULL },
};

/* S3-FIFO: newcomers wait in a small queue; those used again there, or that had gone a short while ago,
 * go to the main queue, which gives another chance for each use.  Returns the resident's place. */
static int s3fifo_victim(struct cache *c, bool any)
{
    for (;;) {
        int oldest[2] = { -1, -1 };
        for (int i = 0; i < c->n_resident; i++) {
            int32_t e = c->resident[i];
            int *o = &oldest[c->in_main[e]];
            if ((any || c->held[e] != c->turn) && (*o < 0 || c->queue[e] < c->queue[c->resident[*o]]))
                *o = i;
        }
        bool small = oldest[0] >= 0 && (c->n_small * 10 >= c->n_slot || oldest[1] < 0);
        int at = oldest[!small];
        int32_t e = c->resident[at];
        if (small && c->freq[e] > 0) {
            c->in_main[e] = true;
            c->n_small--;
        } else if (!small && c->freq[e] > 0) {
            c->freq[e]--;
        } else {
            c->n_small -= small;
            c->ghost[e] = small ? c->clock : 0;
            return at;
        }
        c->queue[e] = ++c->clock;
    }
}

static void s3fifo_enter(struct cache *c, int32_t e)
{
    c->in_main[e] = c->ghost[e] > 0 && c->clock - c->ghost[e] < c->n_slot;
    c->n_small += !c->in_main[e];
    c->freq[e] = 0;
    c->queue[e] = ++c->clock;
}

/* The place of the resident with the largest score; those of this turn only when there is no other. */
static int victim(struct cache *c, score_of *score)
{
    int best = -1;
    double most = 0;
    for (int any = 0; best < 0; any++) {
        if (!score)
            for (int i = 0; i < c->n_resident; i++)
                if (any || c->held[c->resident[i]] != c->turn)
                    return s3fifo_victim(c, any);
        for (int i = 0; score && i < c->n_resident; i++) {
            int32_t e = c->resident[i];
            if (!any && c->held[e] == c->turn)
                continue;
            double s = score(c, e);
            if (best < 0 || s > most)
                best = i, most = s;
        }
    }
    return best;
}

static int run_turn(struct cache *c, score_of *score)
{
    const struct turns *u = c->u;
    int n_miss = 0, begin = u->first[c->turn], end = u->first[c->turn + 1];
    if (c->policy)
        off_policy_use(c->policy, u->expert + begin, end - begin);
    for (int i = begin; i < end; i++) {
        int32_t e = u->expert[i];
        c->next[e] = u->next[i];
        c->held[e] = c->turn;
        c->count[e]++;
        c->freq[e] = (uint8_t)kn_min(c->freq[e] + 1, 3);
    }
    for (int i = begin; i < end; i++) {
        int32_t e = u->expert[i];
        if (c->loaded[e] >= 0)
            continue;
        if (c->n_resident == c->n_slot) {
            int at = victim(c, score);
            c->loaded[c->resident[at]] = -1;
            c->resident[at] = c->resident[--c->n_resident];
        }
        c->resident[c->n_resident++] = e;
        c->loaded[e] = c->turn;
        s3fifo_enter(c, e);
        n_miss++;
    }
    return n_miss;
}

/* Misses per counted pass. */
static double replay(const struct turns *u, int n_slot, const struct policy *policy)
{
    size_t n = (size_t)u->n_expert;
    struct cache c = { .u = u, .n_slot = n_slot, .resident = calloc(n, 4), .held = calloc(n, 4),
                       .loaded = calloc(n, 4), .next = calloc(n, 4), .count = calloc(n, 4),
                       .freq = calloc(n, 1), .queue = calloc(n, 4), .ghost = calloc(n, 4),
                       .in_main = calloc(n, 1) };
    double missed = 0;
    if (policy->score == by_ours && off_policy_open(&c.policy, u->group, u->n_expert))
        return -1;
    memset(c.held, -1, 4 * n);
    memset(c.loaded, -1, 4 * n);
    for (c.turn = 0; c.turn < u->n_turn; c.turn++) {
        int n_miss = run_turn(&c, policy->score);
        missed += c.turn >= u->n_turn - u->n_counted * u->n_group ? n_miss : 0;
    }
    off_policy_close(c.policy);
    free(c.resident);
    free(c.held);
    free(c.loaded);
    free(c.next);
    free(c.count);
    free(c.freq);
    free(c.queue);
    free(c.ghost);
    free(c.in_main);
    return missed / u->n_counted;
}

int main(int argc, char **argv)
{
    struct trace t = { 0 };
    const char *batches = argc > 2 ? argv[2] : "1,4,8,16,32";
    const char *name = argc > 1 ? strrchr(argv[1], '/') : NULL;
    name = name ? name + 1 : argc > 1 ? argv[1] : "";
    if (argc < 2 || !open_trace(&t, argv[1])) {
        fputs("replay TRACE[.gz] [BATCH,BATCH...] [SCAN]\n", stderr);
        return 2;
    }
    puts("trace,batch,scan,share,policy,used_per_pass,misses_per_pass,to_belady");
    for (char *end; *batches; batches = *end ? end + 1 : end) {
        struct turns u;
        int batch = (int)strtol(batches, &end, 10), scan = argc > 3 ? atoi(argv[3]) : 0;
        if (end == batches || batch < 1 || batch > t.n_stream)
            return 2;
        make_turns(&u, &t, batch, scan);
        int from = u.first[u.n_turn - u.n_counted * u.n_group];
        for (int tenth = 1; tenth < 10; tenth++) {
            double optimum = 0;
            for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
                double missed = replay(&u, u.n_expert * tenth / 10, &policies[p]);
                optimum = p ? optimum : missed;
                printf("%.*s,%d,%d,0.%d,%s,%.1f,%.2f,%.4f\n", (int)strcspn(name, "."), name, batch, scan,
                       tenth, policies[p].name, (double)(u.first[u.n_turn] - from) / u.n_counted, missed,
                       missed / optimum);
                fflush(stdout);
            }
        }
        free_turns(&u);
    }
    free(t.first);
    free(t.at);
    free(t.bits);
    return 0;
}
