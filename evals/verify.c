/* evals/verify.c - the time of a row of verification beside plain sampling, by rule, vocabulary and sampler; and
 * the time of drafting from text.
 *
 * A row under SPEC_COUPLED is spec_sample and a lookup in the tree. Under SPEC_RATIO its draft is accepted (the
 * distribution and one probability) or rejected (also a residual, and a token from it); a block always makes the
 * residual. "x" is the row's time over plain sampling, best of alternating rounds, because others share the machine.
 * Prints CSV. */
#include "speculative/speculative.h"

#include <stdio.h>
#include <stdlib.h>

#define FIGURE_NS    400000000u /* least time of a figure, of all its alternating rounds together */
#define FIGURE_TIMES 50         /* least number of rounds */
enum { MOST_VOCAB = 151936 };

struct sampler {
    const char *name;
    float temperature;
    int top_k;
    float top_p, min_p;
};

static const struct sampler samplers[] = {
    { "greedy", 0, 0, 1, 0 },
    { "plain", 1, 0, 1, 0 },
    { "top-p", 1, 0, 0.95f, 0 },
    { "default", 0.8f, 40, 0.95f, 0.05f },
};

/* A kind of row to measure.  dice: the uniform random numbers that verification draws; they determine whether the draft
 * is accepted. */
struct way {
    const char *name;
    enum spec_rule rule;
    double dice[4];
    int n_node;
};

static const struct way ways[] = {
    { "coupled", SPEC_COUPLED, { 0 }, 1 },
    { "ratio kept", SPEC_RATIO, { 0, .5, .5, .5 }, 1 },
    { "ratio rejected", SPEC_RATIO, { 1 - 0x1p-53, .5, .5, .5 }, 1 },
    { "block", SPEC_BLOCK, { .5, .5, .5, .5 }, 2 },
};

/* Nearly normal: a trained model's deviation is about 2.5. */
static void fill(float *z, int n, double deviation, uint64_t at)
{
    for (int i = 0; i < n; i++) {
        double sum = -6;
        for (int j = 0; j < 12; j++)
            sum += (double)(kn_mix(at += KN_GOLDEN) >> 11) * 0x1p-53;
        z[i] = (float)(sum * deviation);
    }
}

struct row {
    struct spec_sampler *s;
    struct spec_params p;
    struct spec_tree tree;
    struct spec_dist q;
    const float *z;
    int32_t text[SPEC_NODES];
};

static int verify_once(struct row *r, const struct way *w)
{
    struct spec_verify v = { .tree = &r->tree, .rule = w->rule, .params = &r->p, .history = r->text, .dice = w->dice };
    spec_verify_start(&v);
    return spec_verify_row(&v, r->s, r->z, NULL);
}

static int sample_once(struct row *r)
{
    struct spec_sampled c;
    return spec_sample(r->s, &r->p, r->z, r->text, 0, 0, &c);
}

/* The token with the largest probability of rejection. */
static int32_t worst_token(struct row *r)
{
    struct spec_dist p;
    int32_t worst = 0;
    double least = 2;
    if (spec_target(r->s, &r->p, r->z, NULL, 0, 0, &p) < 0)
        return 0;
    for (int i = 0; i < r->q.n; i++) {
        int32_t token = r->q.token ? r->q.token[i] : i;
        double ratio = spec_dist_prob(&p, token) / spec_dist_prob(&r->q, token);
        if (ratio < least) {
            least = ratio;
            worst = token;
        }
    }
    return worst;
}

static void report(struct row *r, int n_vocab, const struct sampler *how, const struct way *w)
{
    uint64_t best = UINT64_MAX, plain = UINT64_MAX;
    spec_tree_clear(&r->tree);
    int32_t token = w->dice[0] > 0.9 ? worst_token(r) : spec_dist_token(&r->q, 0.5);
    for (int i = 0, node = SPEC_ROOT; i < w->n_node; i++)
        node = spec_tree_draw(&r->tree, node, token, &r->q, 1, 1);
    uint64_t begin = kn_now_ns(), now = begin;
    for (int n = 0; n < FIGURE_TIMES || now - begin < FIGURE_NS; n++) {
        uint64_t t0 = kn_now_ns();
        if (verify_once(r, w) < 0)
            return;
        uint64_t t1 = kn_now_ns();
        if (sample_once(r) < 0)
            return;
        now = kn_now_ns();
        best = t1 - t0 < best ? t1 - t0 : best;
        plain = now - t1 < plain ? now - t1 : plain;
    }
    printf("%d,%s,%s,%.0f,%.0f,%.2f\n", n_vocab, how->name, w->name, (double)best * 1e-3, (double)plain * 1e-3,
           (double)best / (double)plain);
}

static int rows(int n_vocab)
{
    static float z[MOST_VOCAB], q_z[MOST_VOCAB], weight[MOST_VOCAB];
    static int32_t id[MOST_VOCAB];
    static struct row r;
    struct spec_dist q;
    if (spec_sampler_open(&r.s, n_vocab) < 0)
        return 1;
    fill(z, n_vocab, 2.5, 1);
    for (int i = 0; i < n_vocab; i++) /* a drafter that is nearly right */
        q_z[i] = z[i] + (float)(kn_mix((uint64_t)i) >> 40) * 0x1p-24f;
    r.z = z;
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) {
        spec_params_default(&r.p);
        r.p.temperature = samplers[i].temperature;
        r.p.top_k = samplers[i].top_k;
        r.p.top_p = samplers[i].top_p;
        r.p.min_p = samplers[i].min_p;
        if (spec_target(r.s, &r.p, q_z, NULL, 0, 0, &q) < 0)
            return 1;
        for (int k = 0; k < q.n; k++) {
            weight[k] = q.weight[k];
            id[k] = q.token ? q.token[k] : k;
        }
        r.q = (struct spec_dist){ q.n, q.token ? id : NULL, weight, q.sum };
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
            report(&r, n_vocab, &samplers[i], &ways[k]);
    }
    spec_sampler_close(r.s);
    return 0;
}

/* Times commit and draft of one token as a text of n tokens grows: self-copying, random, or one repeated token. */
static int drafts(int n)
{
    static const char *const kind[] = { "copy", "chance", "one token" };
    for (int k = 0; k < 3; k++) {
        struct spec_drafter_options o = {
            .kind = SPEC_DRAFT_SUFFIX, .n_vocab = 32000, .n_session = 1, .n_own = n, .n_shared = 1 << 20
        };
        struct spec_drafter *d;
        struct spec_tree t;
        uint64_t committed = 0, drafted = 0;
        if (spec_drafter_open(&d, &o) < 0)
            return 1;
        for (int pass = 0; pass < 2; pass++) {
            spec_drafter_begin(d, 0, 0);
            committed = drafted = 0;
            for (int i = 0; i < n; i++) {
                uint64_t chance = kn_mix((uint64_t)i);
                int32_t token = k == 0   ? (int32_t)(kn_mix((uint64_t)i % 600) % 32000)
                                : k == 1 ? (int32_t)(chance % 16) * (int32_t)(chance >> 60)
                                         : 5;
                uint64_t t0 = kn_now_ns();
                spec_drafter_commit(d, 0, &token, 1);
                uint64_t t1 = kn_now_ns();
                spec_tree_clear(&t);
                spec_draft(d, 0, 32, 16, 1, &t);
                drafted += kn_now_ns() - t1;
                committed += t1 - t0;
            }
        }
        printf("%d,%s,draft of %d,%.2f,,\n%d,%s,commit,%.2f,,\n", n, kind[k], t.n, (double)drafted / n * 1e-3, n,
               kind[k], (double)committed / n * 1e-3);
        spec_drafter_close(d);
    }
    return 0;
}

int main(void)
{
    puts("n_vocab,sampler,row,us,plain us,x");
    if (rows(32000) || rows(MOST_VOCAB))
        return 1;
    puts("n_token,text,what,us,,");
    return drafts(8192);
}
