/* evals/grammar.c - the cost of constraining output to a grammar: compiling a schema, and a mask for each token.
 *
 *     grammar MODEL.gguf SCHEMAS [N]      CSV: one line per schema, over N random walks of tokens
 *     grammar - SCHEMAS N SEED            N random texts per schema, one per line after "# " and
 *                                         the schema's number
 *     grammar = CASES                     the instances of each line's "valid" and "invalid" that are
 *                                         misjudged
 *
 * SCHEMAS is a file with one JSON schema per line. A step of a walk tries the ids from a random one on and takes the
 * first allowed token; a stop token is passed over with probability 1/2. A walk ends with a stop token or after 400
 * tokens. The N walks are taken twice: "first" computes the masks, "later" finds them cached. A text is up to 299
 * random allowed bytes, completed by gr_finish; texts are for a validator (evals/grammar.py). */
#include "engine/text/grammar/grammar.h"
#include "speculative/speculative.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 400, MOST_BYTES = 1 << 20 };

static uint64_t random_state;
static uint64_t random_bits(void) { return kn_mix(random_state += KN_GOLDEN); }

struct cost {
    uint64_t n, sum_ns, most_ns;
};

static void count(struct cost *c, uint64_t ns)
{
    c->n++;
    c->sum_ns += ns;
    c->most_ns = c->most_ns > ns ? c->most_ns : ns;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Takes any allowed byte, with equal probabilities. */
static bool random_step(const struct gr_grammar *g, struct gr_state *s, char *out)
{
    static struct gr_state next;
    uint8_t may[256];
    uint64_t n = 0;
    for (int byte = 0; byte < 256; byte++) {
        gr_copy(&next, s);
        if (gr_advance(g, &next, (uint8_t)byte))
            may[n++] = (uint8_t)byte;
    }
    if (n == 0)
        return false;
    *out = (char)may[random_bits() % n];
    return gr_advance(g, s, (uint8_t)*out);
}

static size_t walk_bytes(const struct gr_grammar *g, char *out)
{
    static struct gr_state s;
    size_t n = 0, most = random_bits() % 300;
    gr_start(g, &s);
    while (n < most && !(gr_can_end(&s) && random_bits() % 8 == 0) && random_step(g, &s, out + n))
        n++;
    return n + gr_finish(g, &s, out + n, MOST_BYTES - n);
}

static void print_walks(const struct gr_grammar *g, int n_walk)
{
    static char text[MOST_BYTES];
    for (int i = 0; i < n_walk; i++) {
        size_t n = walk_bytes(g, text);
        if (n >= MOST_BYTES)
            continue;
        for (size_t k = 0; k < n; k++) /* blanks between tokens only: no string holds a raw newline */
            putchar(text[k] == '\n' ? ' ' : text[k]);
        putchar('\n');
    }
}

/* ---- instances ------------------------------------------------------------------------------- */

static bool takes(const struct gr_grammar *g, const char *text)
{
    static struct gr_state s;
    gr_start(g, &s);
    for (; *text; text++)
        if (!gr_advance(g, &s, (uint8_t)*text))
            return false;
    return gr_can_end(&s);
}

static void print_wrong(const struct gr_grammar *g, const json_t *texts, bool want, const char *line)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        if (takes(g, text) != want)
            printf("%s: %s of %s", want ? "REFUSED" : "TAKEN", text, line);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int32_t pick(const uint32_t *mask, int n_vocab, const struct eng_vocab *v, bool can_end)
{
    int32_t from = (int32_t)(random_bits() % (uint64_t)n_vocab);
    for (int32_t i = 0; i < n_vocab; i++) {
        int32_t id = (from + i) % n_vocab;
        if ((mask[id >> 5] >> (id & 31) & 1) && (!eng_vocab_is_stop(v, id) || (can_end && random_bits() % 2)))
            return id;
    }
    return ENG_NO_TOKEN;
}

static void walk_tokens(const struct gr_grammar *g, const struct eng_vocab *v, struct gr_tokens *t,
                        struct gr_scratch *x, uint32_t *mask, struct cost *mask_cost, struct cost *step_cost)
{
    static struct gr_state s;
    gr_start(g, &s);
    for (int i = 0; i < MOST_TOKENS; i++) {
        uint64_t t0 = kn_now_ns();
        gr_mask(g, &s, t, x, mask);
        count(mask_cost, kn_now_ns() - t0);
        int32_t id = pick(mask, eng_vocab_size(v), v, gr_can_end(&s));
        if (id == ENG_NO_TOKEN || eng_vocab_is_stop(v, id))
            return;
        t0 = kn_now_ns();
        kn_assert(gr_advance_token(g, &s, t, id));
        count(step_cost, kn_now_ns() - t0);
    }
}

static void measure(const struct gr_grammar *g, int line, double compile_ms, const struct eng_vocab *v,
                    struct gr_tokens *t, struct gr_scratch *x, uint32_t *mask, int n_walk)
{
    struct cost first = { 0 }, later = { 0 }, step = { 0 };
    for (int i = 0; i < n_walk; i++) { /* the same walks, twice */
        random_state = (uint64_t)i;
        walk_tokens(g, v, t, x, mask, &first, &step);
    }
    for (int i = 0; i < n_walk; i++) {
        random_state = (uint64_t)i;
        walk_tokens(g, v, t, x, mask, &later, &step);
    }
    printf("%d,%.3f,%zu,%llu,%.1f,%.1f,%.1f,%.1f,%.2f\n", line, compile_ms, gr_bytes(g), (unsigned long long)first.n,
           (double)first.sum_ns / 1e3 / (double)first.n, (double)first.most_ns / 1e3,
           (double)later.sum_ns / 1e3 / (double)later.n, (double)later.most_ns / 1e3,
           step.n ? (double)step.sum_ns / 1e3 / (double)step.n : 0);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "use: grammar MODEL.gguf|- SCHEMAS [N [SEED]]\n");
        return 2;
    }
    bool cases = !strcmp(argv[1], "="), texts = cases || !strcmp(argv[1], "-");
    struct moe_file *file = NULL;
    struct eng_vocab *v = NULL;
    struct gr_tokens *t = NULL;
    struct gr_scratch *x = NULL;
    uint32_t *mask = NULL;
    FILE *in = fopen(argv[2], "r");
    uint64_t t0 = kn_now_ns();
    if (!in || (!texts && (moe_file_open(&file, argv[1]) || eng_vocab_open(&v, file))))
        return 2;
    if (!texts) {
        t0 = kn_now_ns();
        if (gr_tokens_open(&t, v, (size_t)64 << 20) || gr_scratch_open(&x, t))
            return 2;
        fprintf(stderr, "%d tokens, opened in %.1f ms\n", eng_vocab_size(v), (double)(kn_now_ns() - t0) / 1e6);
        mask = calloc(spec_mask_words(eng_vocab_size(v)), sizeof *mask);
        printf("schema,compile_ms,bytes,masks,first_us,first_most_us,later_us,later_most_us,step_"
               "us\n");
    }
    char *line = NULL;
    size_t cap = 0;
    int n_walk = argc > 3 ? atoi(argv[3]) : 20;
    random_state = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    for (int i = 0; getline(&line, &cap, in) > 0; i++) {
        json_t *schema = json_loads(line, JSON_DECODE_ANY, NULL);
        struct gr_builder *b = NULL;
        struct gr_grammar *g = NULL;
        t0 = kn_now_ns();
        if (!schema || gr_builder_open(&b))
            return 2;
        int e = gr_compile(&g, b, gr_schema(b, cases ? json_object_get(schema, "schema") : schema, GR_END), t);
        double ms = (double)(kn_now_ns() - t0) / 1e6;
        if (cases && e == KN_EINVAL && json_array_size(json_object_get(schema, "valid")))
            printf("REFUSED: %s of %s", gr_builder_why(b), line);
        if (cases) {
            if (!e)
                print_wrong(g, json_object_get(schema, "valid"), true, line);
            if (!e)
                print_wrong(g, json_object_get(schema, "invalid"), false, line);
        } else if (texts)
            printf("# %d %s\n", i, gr_builder_why(b));
        else if (e)
            fprintf(stderr, "schema %d: %s\n", i, gr_builder_why(b));
        if (!e && texts && !cases)
            print_walks(g, n_walk);
        else if (!e && !texts)
            measure(g, i, ms, v, t, x, mask, n_walk);
        gr_close(g);
        gr_builder_close(b);
        json_decref(schema);
    }
    free(line);
    fclose(in);
    free(mask);
    gr_scratch_close(x);
    gr_tokens_close(t);
    eng_vocab_close(v);
    moe_file_close(file);
    return 0;
}
