/* evals/recall.c - drafts from a sequence's own earlier tokens: tokens per pass, and whether nodes are
 * accepted as often as estimated.
 *
 *     spillway tokenize -m MODEL < FILE | recall [ngram|suffix] [NODES]
 *
 * Each line of ids is a sequence that is replayed: it is drafted, and its own next tokens decide the accepted nodes.
 * Prints CSV: one line per tenth of estimated survival, and a last one for the whole. */
#include "speculative/speculative.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWN = 8192, DEPTH = 16, TENTHS = 10 };

struct tally {
    double n_pass, n_token, n_drafted, said[TENTHS], drafted[TENTHS], kept[TENTHS];
};

static int tenth(float survival) { return kn_min((int)(survival * TENTHS), TENTHS - 1); }

/* One draft at text[at]; returns the tokens that the pass gives. */
static int pass(struct spec_drafter *d, const int32_t *text, int n, int at, int n_node, struct tally *y)
{
    struct spec_tree t;
    int node = SPEC_ROOT, n_kept = 0;
    spec_tree_clear(&t);
    spec_draft(d, 0, n_node, DEPTH, 1, &t);
    for (int i = 0; i < t.n; i++) {
        y->said[tenth(t.survival[i])] += t.survival[i];
        y->drafted[tenth(t.survival[i])]++;
    }
    while (at + n_kept < n && (node = spec_tree_child(&t, node, text[at + n_kept])) >= 0) {
        y->kept[tenth(t.survival[node])]++;
        n_kept++;
    }
    y->n_pass++;
    y->n_drafted += t.n;
    return kn_min(n_kept + 1, n - at);
}

static void replay(struct spec_drafter *d, const int32_t *text, int n, int n_node, struct tally *y)
{
    spec_drafter_begin(d, 0, 0);
    for (int at = 0, step; at < n; at += step) {
        step = pass(d, text, n, at, n_node, y);
        spec_drafter_commit(d, 0, text + at, step);
        y->n_token += step;
    }
}

static int read_ids(char *line, int32_t *id)
{
    int n = 0;
    for (char *p = line; *p;)
        if (isdigit((unsigned char)*p))
            id[n++] = (int32_t)strtol(p, &p, 10);
        else
            p++;
    return n;
}

int main(int argc, char **argv)
{
    bool ngram = argc > 1 && !strcmp(argv[1], "ngram");
    int n_node = argc > 2 ? atoi(argv[2]) : 16;
    struct spec_drafter_options o = {
        .kind = ngram ? SPEC_DRAFT_NGRAM : SPEC_DRAFT_SUFFIX, .n_vocab = 1 << 20, .n_session = 1, .n_own = OWN
    };
    struct spec_drafter *d;
    struct tally y = { 0 };
    char *line = NULL;
    size_t room = 0;
    if (n_node < 0 || n_node > SPEC_NODES || spec_drafter_open(&d, &o) < 0)
        return 2;
    while (getline(&line, &room, stdin) > 0) {
        int32_t *id = calloc(room, sizeof *id);
        if (id)
            replay(d, id, read_ids(line, id), n_node, &y);
        free(id);
    }
    free(line);
    spec_drafter_close(d);
    puts("estimated,survived,nodes");
    for (int i = 0; i < TENTHS; i++)
        if (y.drafted[i] > 0)
            printf("%.3f,%.3f,%.0f\n", y.said[i] / y.drafted[i], y.kept[i] / y.drafted[i], y.drafted[i]);
    puts("tokens_per_pass,kept_per_node,nodes_per_pass");
    printf("%.3f,%.3f,%.2f\n", y.n_token / y.n_pass, (y.n_token - y.n_pass) / y.n_drafted, y.n_drafted / y.n_pass);
    return 0;
}
