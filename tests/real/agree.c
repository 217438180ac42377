/* tests/real/agree.c - compares logits of this program with those that transformers computed (make_logits.py).
 *
 *     agree FIXTURE                    prints the ids of each text, one text a line, for `eval --ids`
 *     agree FIXTURE LOGITS...          one file of `eval --logits` per text: mean KL divergence, how often both have the
 *                                      same likeliest token, perplexities; status 1 beyond the limits below
 *
 * KL is computed over the kept tokens and one class of all others, in nats, from transformers to this program: at most
 * the KL of the whole distributions. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 16, STEP = 2048 };

/* Measured on SmolLM2-135M-Instruct in Q4_1: see tests/real/README.md.  The difference is that of the 8-bit
 * activations of the matrix products. */
static const double MOST_KL = 0.004, LEAST_SAME = 0.96, MOST_PERPLEXITY_RATIO = 1.01;

struct text {
    uint16_t *id;       /* [n_token] */
    double loss;        /* mean -log p of the tokens after the first */
    uint16_t *top, *nl; /* [n_token][n_top] ids, -log p * STEP */
};

struct fixture {
    uint32_t n_text, n_token, n_top;
    struct text text[MOST_TEXTS];
};

static void stop(const char *what, const char *path)
{
    fprintf(stderr, "agree: %s: %s\n", path, what);
    exit(2);
}

static void *take(FILE *f, size_t n, size_t size, const char *path)
{
    void *p = malloc(n * size);
    if (!p || fread(p, size, n, f) != n)
        stop("too short", path);
    return p;
}

static struct fixture read_fixture(const char *path)
{
    struct fixture x;
    char magic[8];
    FILE *f = fopen(path, "rb");
    if (!f)
        stop("cannot be read", path);
    if (fread(magic, 1, 8, f) != 8 || memcmp(magic, "logits 1", 8) || fread(&x, 4, 3, f) != 3 || x.n_text > MOST_TEXTS)
        stop("is not a file of make_logits.py", path);
    for (uint32_t t = 0; t < x.n_text; t++) {
        struct text *q = &x.text[t];
        q->id = take(f, x.n_token, sizeof *q->id, path);
        free(take(f, x.n_token, sizeof(float), path)); /* log(sum(exp(logits))): for readers of the file */
        if (fread(&q->loss, sizeof q->loss, 1, f) != 1)
            stop("too short", path);
        q->top = malloc((size_t)x.n_token * x.n_top * sizeof *q->top);
        q->nl = malloc((size_t)x.n_token * x.n_top * sizeof *q->nl);
        for (uint32_t i = 0; i < x.n_token; i++)
            if (fread(q->top + (size_t)i * x.n_top, 2, x.n_top, f) != x.n_top ||
                fread(q->nl + (size_t)i * x.n_top, 2, x.n_top, f) != x.n_top)
                stop("too short", path);
    }
    fclose(f);
    return x;
}

struct sums {
    double kl, loss;
    int n, n_loss, n_same;
};

/* log(sum(exp(logits))), and the index of the largest. */
static double log_total(const float *logits, size_t n, size_t *best)
{
    double sum = 0;
    *best = 0;
    for (size_t v = 1; v < n; v++)
        *best = logits[v] > logits[*best] ? v : *best;
    for (size_t v = 0; v < n; v++)
        sum += exp((double)logits[v] - (double)logits[*best]);
    return log(sum) + (double)logits[*best];
}

static void add(struct sums *s, const struct fixture *x, const struct text *t, uint32_t i, const float *logits,
                size_t n)
{
    const uint16_t *top = t->top + (size_t)i * x->n_top, *nl = t->nl + (size_t)i * x->n_top;
    size_t best;
    double total = log_total(logits, n, &best), p_rest = 1, q_rest = 1;
    for (uint32_t k = 0; k < x->n_top; k++) {
        double log_p = -(double)nl[k] / STEP, log_q = (double)logits[top[k]] - total;
        s->kl += exp(log_p) * (log_p - log_q);
        p_rest -= exp(log_p);
        q_rest -= exp(log_q);
    }
    if (p_rest > 1e-6 && q_rest > 1e-6)
        s->kl += p_rest * log(p_rest / q_rest);
    s->n++;
    s->n_same += best == top[0];
    if (i + 1 < x->n_token) {
        s->loss += total - (double)logits[t->id[i + 1]];
        s->n_loss++;
    }
}

static struct sums compare(const struct fixture *x, const struct text *t, const char *path)
{
    struct sums s = { 0 };
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        stop("cannot be read", path);
    size_t n = (size_t)ftell(f) / sizeof(float) / x->n_token;
    if (n < 2 || (size_t)ftell(f) != n * sizeof(float) * x->n_token)
        stop("does not have the logits of each token", path);
    rewind(f);
    for (uint32_t i = 0; i < x->n_token; i++) {
        float *logits = take(f, n, sizeof *logits, path);
        add(&s, x, t, i, logits, n);
        free(logits);
    }
    fclose(f);
    return s;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        stop("use: agree FIXTURE [LOGITS...]", "");
    struct fixture x = read_fixture(argv[1]);
    double kl = 0, same = 0, worst = 1;
    int n = 0;
    for (uint32_t t = 0; t < x.n_text && argc == 2; t++)
        for (uint32_t i = 0; i < x.n_token; i++)
            printf("%u%c", x.text[t].id[i], i + 1 < x.n_token ? ',' : '\n');
    if (argc == 2)
        return 0;
    if ((uint32_t)argc != 2 + x.n_text)
        stop("needs a file of logits for each text", argv[1]);
    for (uint32_t t = 0; t < x.n_text; t++) {
        struct sums s = compare(&x, &x.text[t], argv[2 + t]);
        double ours = exp(s.loss / s.n_loss), theirs = exp(x.text[t].loss);
        printf("text %u: KL %.5f, same likeliest token %.4f, perplexity %.3f, of transformers %.3f\n", t + 1,
               s.kl / s.n, (double)s.n_same / s.n, ours, theirs);
        kl += s.kl;
        same += s.n_same;
        n += s.n;
        worst = fmax(worst, fmax(ours / theirs, theirs / ours));
    }
    bool good = kl / n <= MOST_KL && same / n >= LEAST_SAME && worst <= MOST_PERPLEXITY_RATIO;
    printf(
        "all: KL %.5f (at most %.3f), same likeliest token %.4f (at least %.2f), perplexity within %.4f (at most %.2f)\n",
        kl / n, MOST_KL, same / n, LEAST_SAME, worst, MOST_PERPLEXITY_RATIO);
    return !good;
}
