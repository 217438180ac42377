/* speculative/lookahead.c - lookahead decoding: n-grams that the target itself makes, without a second model (Fu et al.,
 * "Break the sequential dependency of LLM inference using lookahead decoding").
 *
 * A window forecasts the tokens to come: n_column columns of n_level tokens.  Token j of column i is the forecast i + j
 * positions after the sequence's last token, which is token 0 of column 0.  The window's rows join the pass of the
 * drafts, as nodes of the same tree: token 0 of the columns is a chain below the root, and the other tokens of a column
 * are a chain below its token 0.  So each row sees the tokens of its own path, as in the paper's mask, and a forecast
 * that is right is accepted as any draft is.
 *
 * After the pass the target's token after the last of a column completes the column to an n-gram, which goes to the
 * pool.  Then each column drops its first token and appends the new one: it forecasts one position later, from a text
 * that the passes before have improved (a Jacobi iteration).  The columns move with the sequence: if it grows by more
 * than one token, the first columns are dropped, and new ones are added after the last.  A new column repeats the tokens
 * of the one before it for the same positions; the rest are tokens of the sequence, drawn at random. */
#include "speculative/internal.h"

void spec_window_start(struct spec_window *w, int n_column, int n_gram)
{
    kn_assert(n_column >= 1 && n_column <= SPEC_WINDOW_COLUMNS && n_gram >= 3 && n_gram <= SPEC_WINDOW_GRAM);
    *w = (struct spec_window){ .n_column = n_column, .n_level = n_gram - 1 };
    for (int i = 0; i < n_column; i++)
        w->next[i] = -1;
}

int spec_window_rows(int n_column, int n_gram) { return n_column - 1 + n_column * (n_gram - 2); }

static int32_t token_at_random(struct spec_window *w, const struct spec_recall *text)
{
    uint32_t n = text->n - text->start;
    int32_t token = 0;
    return n && spec_recall_token(text, text->start + (uint32_t)(kn_mix(++w->n_random) % n), &token) ? token : 0;
}

static void fill_column(struct spec_window *w, const struct spec_recall *text, int i)
{
    for (int j = 0; j < w->n_level; j++)
        w->token[j][i] = i > 0 && j + 1 < w->n_level ? w->token[j + 1][i - 1] : token_at_random(w, text);
}

void spec_window_advance(struct spec_window *w, const struct spec_recall *text, int n_new, int32_t last)
{
    bool computed = false;
    for (int i = 0; i < w->n_column; i++)
        computed |= w->next[i] >= 0;
    for (int i = 0; i < w->n_column && computed; i++) {
        for (int j = 0; j + 1 < w->n_level; j++)
            w->token[j][i] = w->token[j + 1][i];
        w->token[w->n_level - 1][i] = w->next[i] >= 0 ? w->next[i] : token_at_random(w, text);
        w->next[i] = -1;
    }
    int n_left = kn_max(0, w->n_column - (n_new - computed));
    for (int j = 0; j < w->n_level; j++)
        memmove(w->token[j], w->token[j] + (w->n_column - n_left), (size_t)n_left * sizeof w->token[j][0]);
    for (int i = n_left; i < w->n_column; i++)
        fill_column(w, text, i);
    w->token[0][0] = last;
}

/* Adds columns as long as a whole one fits in n_node nodes. */
int spec_window_lay(const struct spec_window *w, struct spec_tree *t, int n_node, float value)
{
    int before = t->n, start = SPEC_ROOT;
    for (int i = 0; i < w->n_column && t->n - before + w->n_level - (i == 0) <= n_node; i++) {
        if (i > 0 && (start = spec_tree_add_window_row(t, start, w->token[0][i], value)) < 0)
            break;
        int node = start;
        for (int j = 1; j < w->n_level; j++)
            if ((node = spec_tree_add_window_row(t, node, w->token[j][i], value)) < 0)
                return t->n - before;
        t->wants_target_token[node] = true;
    }
    return t->n - before;
}

/* The tree may have been pruned since the window was laid. */
void spec_window_learn(struct spec_window *w, const struct spec_tree *t, const int32_t *target_token)
{
    int start = SPEC_ROOT;
    for (int i = 0; i < w->n_column; i++) {
        if (i > 0 && (start = spec_tree_child(t, start, w->token[0][i])) < 0)
            return;
        int node = start;
        for (int j = 1; j < w->n_level && node != SPEC_END; j++) {
            node = spec_tree_child(t, node, w->token[j][i]);
            node = node < 0 ? SPEC_END : node;
        }
        if (node != SPEC_END && t->wants_target_token[node])
            w->next[i] = target_token[node];
    }
}

void spec_window_give(const struct spec_window *w, struct spec_pool *pool)
{
    for (int i = 0; i < w->n_column; i++) {
        int32_t gram[SPEC_WINDOW_GRAM];
        for (int j = 0; j < w->n_level; j++)
            gram[j] = w->token[j][i];
        gram[w->n_level] = w->next[i];
        if (w->next[i] >= 0)
            spec_pool_add(pool, gram);
    }
}

/* ---- the pool ---------------------------------------------------------------------------------------
 *
 * The latest n-grams with the same first token, or with first tokens of the same hash: a set of SPEC_POOL_WAYS, the
 * latest first.  An n-gram that is made again moves to the front. */

void spec_pool_init(struct spec_pool *p, struct kn_arena *a, int n_gram)
{
    *p = (struct spec_pool){ .n_gram = n_gram };
    p->token = kn_arena_take(a, (size_t)SPEC_POOL_SETS * SPEC_POOL_WAYS * (size_t)n_gram, sizeof *p->token);
}

void spec_pool_clear(struct spec_pool *p)
{
    memset(p->token, 0xff, (size_t)SPEC_POOL_SETS * SPEC_POOL_WAYS * (size_t)p->n_gram * sizeof *p->token);
}

static int32_t *set_of(const struct spec_pool *p, int32_t first)
{
    size_t set = kn_mix((uint32_t)first) % SPEC_POOL_SETS;
    return p->token + set * SPEC_POOL_WAYS * (size_t)p->n_gram;
}

void spec_pool_add(struct spec_pool *p, const int32_t *gram)
{
    size_t n = (size_t)p->n_gram;
    int32_t *set = set_of(p, gram[0]), way = 0;
    while (way < SPEC_POOL_WAYS - 1 && memcmp(set + (size_t)way * n, gram, n * sizeof *gram) != 0)
        way++;
    memmove(set + n, set, (size_t)way * n * sizeof *set);
    memcpy(set, gram, n * sizeof *set);
}

int spec_pool_find(const struct spec_pool *p, const int32_t *tail, int n_tail, struct spec_match *out, int most)
{
    int n = 0;
    for (int length = kn_min(p->n_gram - 1, n_tail); length > 0; length--) {
        const int32_t *end = tail + n_tail - length, *set = set_of(p, *end);
        for (int way = 0; way < SPEC_POOL_WAYS && n < most; way++, set += p->n_gram)
            if (memcmp(set, end, (size_t)length * sizeof *set) == 0)
                out[n++] = (struct spec_match){ .gram = set, .n_gram = p->n_gram, .length = length };
    }
    return n;
}
