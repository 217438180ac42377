/* speculative/tree.c - builds a draft: nodes, draws and pruning.
 *
 * A tree is a few hundred nodes in plain arrays, parents before children; a child is found by a linear search, which at
 * this size costs less than an index. */
#include "speculative/internal.h"

void spec_tree_clear(struct spec_tree *t)
{
    t->n = t->n_draw = t->n_requested = 0;
    t->depends_on_draws = false;
}

int spec_tree_child(const struct spec_tree *t, int node, int32_t token)
{
    for (int i = node + 1; i < t->n; i++)
        if (t->parent[i] == node && t->token[i] == token)
            return i;
    return -1;
}

int spec_tree_add(struct spec_tree *t, int parent, int32_t token, float survival, uint8_t source)
{
    kn_assert(parent >= SPEC_ROOT && parent < t->n);
    t->n_requested++;
    int i = spec_tree_child(t, parent, token);
    if (i < 0) {
        if (t->n == SPEC_NODES)
            return -1;
        i = t->n++;
        t->token[i] = token;
        t->parent[i] = (int16_t)parent;
        t->depth[i] = (int16_t)(parent == SPEC_ROOT ? 1 : t->depth[parent] + 1);
        t->source[i] = 0;
        t->survival[i] = survival;
        t->wants_target_token[i] = t->window_row[i] = false;
    }
    t->source[i] |= source;
    if (survival > t->survival[i] || t->window_row[i])
        t->survival[i] = survival;
    t->window_row[i] = false;
    return i;
}

int spec_tree_add_window_row(struct spec_tree *t, int parent, int32_t token, float value)
{
    int i = spec_tree_child(t, parent, token);
    if (i >= 0)
        t->n_requested++;
    else if ((i = spec_tree_add(t, parent, token, value, 0)) >= 0)
        t->window_row[i] = true;
    return i;
}

int spec_tree_n_drafted(const struct spec_tree *t)
{
    int n = t->n;
    for (int i = 0; i < t->n; i++)
        n -= t->window_row[i];
    return n;
}

int spec_tree_n_accepted(const struct spec_tree *t, const int16_t *path, int n_path)
{
    int n = 0;
    for (int i = 0; i < n_path; i++)
        n += !t->window_row[path[i]];
    return n;
}

/* After more than SPEC_NODES calls, whether the tree is full depends on how many draws gave the same token. */
int spec_tree_draw(struct spec_tree *t, int parent, int32_t token, const struct spec_dist *q, float survival,
                   uint8_t source)
{
    int node = spec_tree_add(t, parent, token, survival, source);
    if (t->n_requested > SPEC_NODES)
        t->depends_on_draws = true;
    if (node >= 0 && t->n_draw < SPEC_NODES)
        t->draw[t->n_draw++] = (struct spec_draw){ (int16_t)node, q };
    return node;
}

void spec_tree_prune(struct spec_tree *t, const bool *keep, bool blind)
{
    int at[SPEC_NODES], n = 0, n_draw = 0;
    for (int i = 0; i < t->n; i++) {
        int parent = t->parent[i] == SPEC_ROOT ? SPEC_ROOT : at[t->parent[i]];
        at[i] = SPEC_END;
        if (!keep[i] || parent == SPEC_END)
            continue;
        at[i] = n;
        t->token[n] = t->token[i];
        t->parent[n] = (int16_t)parent;
        t->depth[n] = t->depth[i];
        t->source[n] = t->source[i];
        t->survival[n] = t->survival[i];
        t->wants_target_token[n] = t->wants_target_token[i];
        t->window_row[n] = t->window_row[i];
        n++;
    }
    for (int i = 0; i < t->n_draw; i++)
        if (at[t->draw[i].node] >= 0)
            t->draw[n_draw++] = (struct spec_draw){ (int16_t)at[t->draw[i].node], t->draw[i].q };
    t->depends_on_draws |= t->n_draw > 0 && !blind; /* keeping all is a decision too */
    t->n_requested -= t->n_draw - n_draw;           /* a pruned chain of draws still has n_requested == n (verify.c) */
    t->n = n;
    t->n_draw = n_draw;
}
