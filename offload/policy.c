/* The choice of experts to evict.
 *
 * Groups (layers) are used in ascending order, cyclically.  Keeping an expert until its group's next turn
 * occupies a slot for `ahead` turns, and saves a read with the probability p that the turn uses the expert.
 * A slot saves most reads per turn where p / ahead is largest, so the expert with the largest ahead / p is
 * evicted first.  To plan for several rounds of the groups gives no better value, because each further round
 * is at least `ahead` turns.  Special rules of other caches follow from this one: if a large batch uses all experts
 * of each layer, an expert is evicted right after use, when its next use is furthest away; an expert used in
 * nearly every turn stays; an expert used once by chance is evicted in the next turns.
 *
 * p is predicted for each turn from the share of turns that used the expert, over three time windows:
 *
 *     p = mean + sum over windows k of weight[k] * (used[k] - mean used[k])      means over the group
 *
 * where the first mean is that of the middle window.
 *
 * The weights are those that would have predicted past turns best (least squares, over all groups, with
 * exponential forgetting).  So the policy learns how well the last tokens, the present conversation and the
 * long run predict the next turn, and pure noise gets no weight: with one sequence the last tokens predict
 * best; with independent choices no window predicts anything, and p is the mean.
 *
 * Experts that a device keeps count as used like the others, so that p is right when the device no longer keeps them, but
 * are not read: until then their slots are evicted first, and those of experts that the host alone has last.
 *
 * A turn costs some 20 operations for each expert of the group.  Not thread-safe. */
#include "offload/internal.h"

#include <string.h>

#define N_MEMORY     3
#define FIRST_CHANCE 0.1f  /* p of an expert until its group's first turn */
#define LEAST_CHANCE 0.05f /* lowest p, as a share of the group's mean */
#define FADE         0.995 /* factor per turn on the sums that the weights are computed from */
#define MANY_TURNS   10000 /* cap of n_turn; larger values make no difference */
#define ELSEWHERE    1e-9f /* p of a read of an expert that the caller has elsewhere: below all others */
#define KNOWN_TURNS  16    /* n_turn of a group is at least this once off_policy_set_share was called for it */

static const float memory[N_MEMORY] = { 2, 16, 256 }; /* time windows, in turns */

struct group {
    int32_t first, n_turn;
}; /* experts first .. next group's first - 1 */

struct off_policy {
    int n_expert, n_group, turn; /* turn: the group of the current turn */
    struct group *group;         /* [n_group + 1] */
    int32_t *group_of;           /* [n_expert] index of the expert's group, from 0 */
    float *used[N_MEMORY];       /* [n_expert] share of turns, fading, per window */
    float *chance;               /* [n_expert] p of the group's next turn */
    float *now;                  /* [n_expert] 1 if used in the current turn, else 0 */
    bool *elsewhere;             /* [n_expert] the caller has the expert elsewhere */
    /* Fading sums over the experts of each turn, x[k] = used[k] - its mean: square[k][r] of x[k] * x[r], product[k] of
     * x[k] * (now - its mean). */
    double square[N_MEMORY][N_MEMORY], product[N_MEMORY];
    double weight[N_MEMORY];
};

int off_policy_open(struct off_policy **out, const struct off_expert *expert, int n_expert)
{
    size_t n = (size_t)n_expert;
    struct off_policy *p = kn_calloc(1, sizeof *p);
    if (!p)
        goto fail;
    p->n_expert = n_expert;
    p->group = kn_calloc(n + 1, sizeof *p->group);
    p->group_of = kn_calloc(n, sizeof *p->group_of);
    p->chance = kn_calloc(n, sizeof *p->chance);
    p->now = kn_calloc(n, sizeof *p->now);
    p->elsewhere = kn_calloc(n, sizeof *p->elsewhere);
    bool room = p->group && p->group_of && p->chance && p->now && p->elsewhere;
    for (int k = 0; k < N_MEMORY; k++)
        room &= (p->used[k] = kn_calloc(n, sizeof *p->used[k])) != NULL;
    if (!room)
        goto fail;
    for (int e = 0; e < n_expert; e++) {
        kn_assert(e == 0 || expert[e].group >= expert[e - 1].group);
        if (e == 0 || expert[e].group > expert[e - 1].group)
            p->group[p->n_group++].first = e;
        p->group_of[e] = p->n_group - 1;
        p->chance[e] = FIRST_CHANCE;
    }
    p->group[p->n_group].first = n_expert;
    p->turn = p->n_group - 1;
    p->weight[N_MEMORY - 1] = 1;
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
    kn_free(p->group);
    kn_free(p->group_of);
    kn_free(p->chance);
    kn_free(p->now);
    kn_free(p->elsewhere);
    for (int k = 0; k < N_MEMORY; k++)
        kn_free(p->used[k]);
    kn_free(p);
}

static float mean(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / (float)n;
}

/* Solves for the weights by Gaussian elimination.  A little is added to the diagonal: windows longer than the number of
 * turns so far hold equal shares, which would make the matrix singular. */
static void solve(struct off_policy *p)
{
    double a[N_MEMORY][N_MEMORY + 1];
    for (int r = 0; r < N_MEMORY; r++) {
        memcpy(a[r], p->square[r], sizeof p->square[r]);
        a[r][r] += 1e-3 * a[r][r] + 1e-9;
        a[r][N_MEMORY] = p->product[r];
    }
    for (int k = 0; k < N_MEMORY; k++)
        for (int r = k + 1; r < N_MEMORY; r++)
            for (int c = N_MEMORY; c >= k; c--)
                a[r][c] -= a[r][k] / a[k][k] * a[k][c];
    for (int k = N_MEMORY; k-- > 0;) {
        p->weight[k] = a[k][N_MEMORY] / a[k][k];
        for (int r = 0; r < k; r++)
            a[r][N_MEMORY] -= a[r][k] * p->weight[k];
    }
}

/* Updates the weights from used[], not yet updated by this turn, and the experts that this turn used (now[]). */
static void learn_weights(struct off_policy *p, int first, int n)
{
    float mean_now = mean(p->now + first, n), mean_used[N_MEMORY];
    float square[N_MEMORY][N_MEMORY] = { 0 }, product[N_MEMORY] = { 0 };
    for (int k = 0; k < N_MEMORY; k++)
        mean_used[k] = mean(p->used[k] + first, n);
    for (int e = first; e < first + n; e++) {
        float x[N_MEMORY], y = p->now[e] - mean_now;
        for (int k = 0; k < N_MEMORY; k++) {
            x[k] = p->used[k][e] - mean_used[k];
            product[k] += x[k] * y;
            for (int r = 0; r <= k; r++)
                square[k][r] += x[k] * x[r];
        }
    }
    for (int k = 0; k < N_MEMORY; k++) {
        p->product[k] = FADE * p->product[k] + (double)product[k];
        for (int r = 0; r <= k; r++)
            p->square[r][k] = p->square[k][r] = FADE * p->square[k][r] + (double)square[k][r];
    }
    solve(p);
}

/* Updates used[] by this turn: plain averages while the group has had fewer turns than the window, then exponentially
 * fading ones. */
static void remember(struct off_policy *p, int first, int n, int n_turn)
{
    for (int k = 0; k < N_MEMORY; k++) {
        float seen = (float)n_turn + 0.5f, step = 1 / (seen < memory[k] ? seen : memory[k]);
        for (int e = first; e < first + n; e++)
            p->used[k][e] += step * (p->now[e] - p->used[k][e]);
    }
}

static void predict(struct off_policy *p, int first, int n)
{
    float level = mean(p->used[1] + first, n), least = LEAST_CHANCE * level;
    for (int e = first; e < first + n; e++)
        p->chance[e] = level;
    for (int k = 0; k < N_MEMORY; k++) {
        float weight = (float)p->weight[k], mean_used = mean(p->used[k] + first, n);
        for (int e = first; e < first + n; e++)
            p->chance[e] += weight * (p->used[k][e] - mean_used);
    }
    for (int e = first; e < first + n; e++)
        p->chance[e] = p->chance[e] < least ? least : p->chance[e] > 1 ? 1 : p->chance[e];
}

/* A turn that used all experts of the group (a long prompt) does not distinguish them: only p->turn is set. */
void off_policy_use(struct off_policy *p, const int32_t *expert, int n_here, int n_used)
{
    if (!n_used)
        return;
    struct group *g = &p->group[p->turn = p->group_of[expert[0]]];
    int first = g->first, n = g[1].first - first;
    for (int i = 0; i < n_used; i++)
        p->elsewhere[expert[i]] = i >= n_here;
    if (n_used == n)
        return;
    for (int i = 0; i < n_used; i++)
        p->now[expert[i]] = 1;
    if (g->n_turn > 1)
        learn_weights(p, first, n);
    g->n_turn = kn_min(g->n_turn + 1, MANY_TURNS);
    remember(p, first, n, g->n_turn);
    predict(p, first, n);
    for (int i = 0; i < n_used; i++)
        p->now[expert[i]] = 0;
}

int off_policy_ahead(const struct off_policy *p, int32_t expert)
{
    int ahead = p->group_of[expert] - p->turn;
    return ahead > 0 ? ahead : ahead + p->n_group;
}

float off_policy_wait(const struct off_policy *p, int32_t expert)
{
    return (float)off_policy_ahead(p, expert) / (p->elsewhere[expert] ? ELSEWHERE : p->chance[expert]);
}

void off_policy_set_elsewhere(struct off_policy *p, int32_t expert, bool elsewhere)
{
    p->elsewhere[expert] = elsewhere;
}

bool off_policy_is_elsewhere(const struct off_policy *p, int32_t expert) { return p->elsewhere[expert]; }

float off_policy_heat(const struct off_policy *p, int32_t expert) { return p->used[1][expert]; }

float off_policy_share(const struct off_policy *p, int32_t expert) { return p->used[N_MEMORY - 1][expert]; }

void off_policy_set_share(struct off_policy *p, int32_t expert, float share)
{
    struct group *g = &p->group[p->group_of[expert]];
    g->n_turn = kn_max(g->n_turn, KNOWN_TURNS);
    for (int k = 0; k < N_MEMORY; k++)
        p->used[k][expert] = share;
    p->chance[expert] = share > LEAST_CHANCE * FIRST_CHANCE ? share : LEAST_CHANCE * FIRST_CHANCE;
}
