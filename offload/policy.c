/* Who goes when room is needed: the expert whose next use is expected last.
 *
 * Groups (layers) take turns in ascending order and round again.  An expert is used in a share p of its
 * group's turns; p is learnt, as an average at first and with a fading memory later.  When its group is
 * `ahead` turns away, its next use is expected in
 *
 *     ahead + n_group * (1 / p - 1)      turns.
 *
 * So what a large batch sweeps through layer by layer is given up right after it was used, when it is
 * furthest from its next use, and what is used in every turn stays: neither happens with LRU.
 *
 * A turn costs a few operations for each expert of the group.  Not for several threads at once. */
#include "offload/internal.h"

#define MEMORY 64                               /* turns of a group that its shares look back on */
#define FIRST_SHARE 0.1f                        /* of an expert never seen */
#define LEAST_SHARE 1e-4f

struct off_policy {
    int n_expert, n_group, turn;                /* turn: the group whose turn it is, by rank */
    int32_t *rank;                              /* [n_expert] of its group among the groups there are */
    int32_t *first, *member;                    /* [n_group + 1], [n_expert]: experts by rank */
    int32_t *n_seen;                            /* [n_group] turns seen, MEMORY at most */
    float *share;                               /* [n_expert] */
};

/* Ranks, so that layers without experts take no turn; then the members of each by counting. */
static int find_ranks(struct off_policy *p, const struct off_expert *expert)
{
    int n_id = 0;
    for (int e = 0; e < p->n_expert; e++)
        n_id = kn_max(n_id, expert[e].group + 1);
    int32_t *rank = kn_calloc((size_t)n_id, sizeof *rank);
    if (!rank)
        return KN_ENOMEM;
    for (int e = 0; e < p->n_expert; e++)
        rank[expert[e].group] = 1;
    for (int id = 0; id < n_id; id++)
        rank[id] = rank[id] ? p->n_group++ : -1;
    for (int e = 0; e < p->n_expert; e++)
        p->rank[e] = rank[expert[e].group];
    kn_free(rank);
    return 0;
}

static void list_members(struct off_policy *p)
{
    for (int e = 0; e < p->n_expert; e++)
        p->first[p->rank[e] + 1]++;
    for (int g = 0; g < p->n_group; g++)
        p->first[g + 1] += p->first[g];
    for (int e = p->n_expert; e-- > 0; )        /* n_seen counts down to where the next one goes */
        p->member[p->first[p->rank[e] + 1] - ++p->n_seen[p->rank[e]]] = e;
    for (int g = 0; g < p->n_group; g++)
        p->n_seen[g] = 0;
}

int off_policy_open(struct off_policy **out, const struct off_expert *expert, int n_expert)
{
    struct off_policy *p = kn_calloc(1, sizeof *p);
    size_t n = (size_t)n_expert;
    if (!p)
        return kn_fail(KN_ENOMEM, "no memory for the experts' statistics");
    p->n_expert = n_expert;
    p->rank = kn_calloc(n, sizeof *p->rank);
    p->member = kn_calloc(n, sizeof *p->member);
    p->share = kn_calloc(n, sizeof *p->share);
    if (!p->rank || !p->member || !p->share || find_ranks(p, expert))
        goto fail;
    p->first = kn_calloc((size_t)p->n_group + 1, sizeof *p->first);
    p->n_seen = kn_calloc((size_t)p->n_group, sizeof *p->n_seen);
    if (!p->first || !p->n_seen)
        goto fail;
    list_members(p);
    for (int e = 0; e < n_expert; e++)
        p->share[e] = FIRST_SHARE;
    *out = p;
    return 0;
fail:
    off_policy_close(p);
    return kn_fail(KN_ENOMEM, "no memory for the statistics of %d experts", n_expert);
}

void off_policy_close(struct off_policy *p)
{
    if (!p)
        return;
    kn_free(p->rank);
    kn_free(p->first);
    kn_free(p->member);
    kn_free(p->n_seen);
    kn_free(p->share);
    kn_free(p);
}

void off_policy_use(struct off_policy *p, const int32_t *expert, int n)
{
    if (!n)
        return;
    int g = p->turn = p->rank[expert[0]];
    float step = 1.0f / (float)(p->n_seen[g] + 2);
    p->n_seen[g] = kn_min(p->n_seen[g] + 1, MEMORY);
    for (int i = p->first[g]; i < p->first[g + 1]; i++)
        p->share[p->member[i]] *= 1 - step;
    for (int i = 0; i < n; i++)
        p->share[expert[i]] += step;
}

float off_policy_wait(const struct off_policy *p, int32_t expert)
{
    int ahead = p->rank[expert] - p->turn;
    float share = p->share[expert] > LEAST_SHARE ? p->share[expert] : LEAST_SHARE;
    return (float)(ahead > 0 ? ahead : ahead + p->n_group) + (float)p->n_group * (1 / share - 1);
}

float off_policy_share(const struct off_policy *p, int32_t expert) { return p->share[expert]; }

/* What is known already counts as half a memory, so that it is soon corrected when it is wrong. */
void off_policy_set_share(struct off_policy *p, int32_t expert, float share)
{
    p->share[expert] = share;
    int32_t *n_seen = &p->n_seen[p->rank[expert]];
    *n_seen = kn_max(*n_seen, MEMORY / 2);
}
