/* speculative/dsi.c - the state machine of dsi.h.
 *
 * It owns the output so far, a tree of drafted blocks that starts at the output's end, and the task of each worker.
 * An event changes the tree.  Actions are not queued but derived from the tree: spec_dsi_next() finds the first action
 * that is due, marks it as begun and returns it.  So actions and tree cannot disagree, and no queue can overflow.
 *
 * `end` is the number of output tokens, all of them the target's own.  A block is alive while it agrees with the output
 * where both have tokens, and reaches at least to `end`: a block that ends earlier gives no new token.  When no block
 * is alive, drafting restarts at the output's end.
 *
 * Verifications start in the order of their position.  So on any path the earlier ones are done or running when a later
 * one starts, and the pass that gives the output's next token has a worker.  If that worker is lost, the verification
 * at the farthest position is cancelled for it. */
#include "speculative/dsi.h"

#include <string.h>

#define MAX_TOK       (1 << 24)
#define MAX_LOOKAHEAD (1 << 16)
#define MAX_NS        (INT64_C(1) << 40) /* 18 minutes: its product with a lookahead fits */
#define NONE          (-1)

enum block_state { FREE, DRAFTING, READY };
enum verdict { UNVERIFIED, VERIFYING, VERIFIED };

struct block {
    enum block_state state;
    enum verdict verdict;
    int parent;                    /* NONE: the output */
    int drafter, worker, verifier; /* its drafter; workers that draft and verify it, or NONE */
    int at, n;                     /* output position of its first token; its tokens */
    int n_known;                   /* the tokens drafted so far; READY: n */
    int from;                      /* VERIFIED: target tokens are for positions from .. at + n */
    uint32_t drafters_asked;       /* bit i: drafter i has started from its end */
};

enum worker_state { IDLE, BUSY, CANCEL_DUE, CANCELLING, LOST }; /* CANCEL_DUE: CANCEL not yet returned */

struct worker {
    enum worker_state state;
    int role, block; /* block NONE: a pass with no draft */
    int at, n;
    uint64_t task;
    int64_t target_ns; /* of a pass, smoothed; 0: not known */
};

struct spec_dsi {
    int n_worker, n_drafter, n_block, max_lookahead, max_tok;
    struct worker *worker;               /* [n_worker] */
    struct block *block;                 /* [n_block] */
    int32_t *tokens;                     /* [n_block][2 * max_lookahead + 1] drafts, then target tokens */
    int32_t *output;                     /* [max_tok] */
    int64_t draft_ns[SPEC_DSI_DRAFTERS]; /* of a token, smoothed; 0: not known */
    int n_tok, end, emitted, lookahead;
    int restart_at;         /* position at which drafting restarted last */
    uint32_t restart_asked; /* bit i: drafter i has started from there */
    uint64_t n_task;
    bool stopped;
};

/* ---- open, close ------------------------------------------------------------------------------- */

static int check_options(const struct spec_dsi_options *o, int *n_target)
{
    *n_target = 0;
    if (o->n_worker < 1 || o->n_worker > SPEC_DSI_WORKERS || o->n_drafter < 0 || o->n_drafter > SPEC_DSI_DRAFTERS)
        return kn_fail(KN_EINVAL, "DSI takes up to %d workers and %d drafters, not %d and %d", SPEC_DSI_WORKERS,
                       SPEC_DSI_DRAFTERS, o->n_worker, o->n_drafter);
    if (o->max_lookahead < 1 || o->max_lookahead > MAX_LOOKAHEAD || o->max_tok < 1 || o->max_tok > MAX_TOK)
        return kn_fail(KN_EINVAL, "DSI takes a lookahead up to %d and up to %d tokens, not %d and %d", MAX_LOOKAHEAD,
                       MAX_TOK, o->max_lookahead, o->max_tok);
    for (int i = 0; i < o->n_worker; i++) {
        if (o->role[i] < SPEC_DSI_TARGET || o->role[i] >= o->n_drafter)
            return kn_fail(KN_EINVAL, "DSI: worker %d runs drafter %d of %d", i, o->role[i], o->n_drafter);
        *n_target += o->role[i] == SPEC_DSI_TARGET;
    }
    if (*n_target == 0)
        return kn_fail(KN_EINVAL, "DSI needs a worker that runs the target");
    return 0;
}

int spec_dsi_open(struct spec_dsi **out, const struct spec_dsi_options *o)
{
    int n_target, e = check_options(o, &n_target);
    if (e < 0)
        return e;
    struct spec_dsi *d = kn_calloc(1, sizeof *d);
    if (!d)
        goto fail;
    d->n_worker = o->n_worker;
    d->n_drafter = o->n_drafter;
    d->max_lookahead = o->max_lookahead;
    d->max_tok = o->max_tok;
    /* One block in verification and one waiting for each target, and two being drafted: more blocks would wait longer
     * than the verification of their parent takes. */
    d->n_block = (2 * n_target + 2) * kn_max(1, o->n_drafter);
    d->worker = kn_calloc((size_t)d->n_worker, sizeof *d->worker);
    d->block = kn_calloc((size_t)d->n_block, sizeof *d->block);
    d->tokens = kn_calloc((size_t)d->n_block, sizeof *d->tokens * (2 * (size_t)d->max_lookahead + 1));
    d->output = kn_calloc((size_t)d->max_tok, sizeof *d->output);
    if (!d->worker || !d->block || !d->tokens || !d->output)
        goto fail;
    for (int i = 0; i < d->n_worker; i++)
        d->worker[i] = (struct worker){ .role = o->role[i], .block = NONE };
    *out = d;
    return 0;

fail:
    spec_dsi_close(d);
    return kn_fail(KN_ENOMEM, "no memory for %d blocks of %d drafted tokens and an output of %d",
                   (2 * n_target + 2) * kn_max(1, o->n_drafter), o->max_lookahead, o->max_tok);
}

void spec_dsi_close(struct spec_dsi *d)
{
    if (!d)
        return;
    kn_free(d->worker);
    kn_free(d->block);
    kn_free(d->tokens);
    kn_free(d->output);
    kn_free(d);
}

/* ---- the tree ---------------------------------------------------------------------------------- */

static int32_t *drafts(const struct spec_dsi *d, int b)
{
    return d->tokens + (size_t)b * (2 * (size_t)d->max_lookahead + 1);
}

static int32_t *choices(const struct spec_dsi *d, int b) { return drafts(d, b) + d->max_lookahead; }

static bool finished(const struct spec_dsi *d) { return d->stopped || d->end == d->n_tok; }

static void mark_cancel(struct spec_dsi *d, int w)
{
    if (w != NONE && d->worker[w].state == BUSY)
        d->worker[w].state = CANCEL_DUE;
}

/* Frees a block and cancels its workers; its child blocks stay, with the output as their parent. */
static void free_block(struct spec_dsi *d, int b)
{
    struct block *k = &d->block[b];
    mark_cancel(d, k->worker);
    mark_cancel(d, k->verifier);
    k->state = FREE;
    for (int i = 0; i < d->n_block; i++)
        if (d->block[i].state != FREE && d->block[i].parent == b)
            d->block[i].parent = NONE;
}

/* Drops a block and all blocks below it.  The recursion is at most n_block deep. */
static void free_subtree(struct spec_dsi *d, int b)
{
    for (int i = 0; i < d->n_block; i++)
        if (d->block[i].state != FREE && d->block[i].parent == b)
            free_subtree(d, i);
    free_block(d, b);
}

static void free_all(struct spec_dsi *d)
{
    for (int b = 0; b < d->n_block; b++)
        if (d->block[b].state != FREE)
            free_block(d, b);
    for (int w = 0; w < d->n_worker; w++)
        mark_cancel(d, w);
}

/* If no block is left, all drafters restart at the output's end. */
static void restart_if_empty(struct spec_dsi *d)
{
    for (int b = 0; b < d->n_block; b++)
        if (d->block[b].state != FREE)
            return;
    d->restart_at = d->end;
    d->restart_asked = 0;
}

/* Drops the blocks and passes that cannot give the token after the output's end. */
static void drop_passed(struct spec_dsi *d)
{
    for (int b = 0; b < d->n_block; b++) {
        const struct block *k = &d->block[b];
        if ((k->state == READY && d->end > k->at + k->n) || (k->state == DRAFTING && d->end >= k->at + k->n))
            free_block(d, b);
    }
    for (int w = 0; w < d->n_worker; w++) {
        const struct worker *k = &d->worker[w];
        if (k->role == SPEC_DSI_TARGET && k->block == NONE && d->end > k->at)
            mark_cancel(d, w);
    }
    restart_if_empty(d);
}

/* Appends the output's next token: lines 7 to 12 of Algorithm 1. */
static void commit(struct spec_dsi *d, int32_t token)
{
    int at = d->end;
    d->output[d->end++] = token;
    for (int b = 0; b < d->n_block; b++) {
        const struct block *k = &d->block[b];
        if (k->state != FREE && k->at <= at && at < k->at + k->n_known && drafts(d, b)[at - k->at] != token)
            free_subtree(d, b);
    }
    if (finished(d))
        free_all(d);
    else
        drop_passed(d);
}

/* Appends all tokens that verified blocks give: lines 13 and 14. */
static void advance(struct spec_dsi *d)
{
    for (int b = 0; b < d->n_block && !finished(d);) {
        const struct block *k = &d->block[b];
        if (k->state == READY && k->verdict == VERIFIED && k->from <= d->end && d->end <= k->at + k->n) {
            commit(d, choices(d, b)[d->end - k->from]);
            b = 0;
        } else {
            b++;
        }
    }
}

/* ---- events ------------------------------------------------------------------------------------ */

static void smooth(int64_t *mean, int64_t ns)
{
    if (ns > 0)
        *mean = *mean ? *mean + (ns - *mean) / 8 : ns;
}

/* Two blocks that agree with the output: do they end at the same position, after the same tokens? */
static bool same_path(const struct spec_dsi *d, int a, int b)
{
    int p = d->block[a].at + d->block[a].n;
    if (d->block[b].at + d->block[b].n != p)
        return false;
    while (--p >= d->end && a != b) {
        while (d->block[a].at > p)
            a = d->block[a].parent;
        while (d->block[b].at > p)
            b = d->block[b].parent;
        if (drafts(d, a)[p - d->block[a].at] != drafts(d, b)[p - d->block[b].at])
            return false;
    }
    return true;
}

/* Does a token of the block, of those known, differ from the output? */
static bool is_refuted(const struct spec_dsi *d, int b)
{
    const struct block *k = &d->block[b];
    int n = kn_min(k->n_known, d->end - k->at); /* its tokens that the output has already */
    return n > 0 && memcmp(drafts(d, b), d->output + k->at, sizeof(int32_t) * (size_t)n) != 0;
}

/* Is the block, now that its tokens are known, of no use: empty, ended before the output's end, different from the
 * output, or at its end the same text as another ready block? */
static bool is_not_needed(const struct spec_dsi *d, int b)
{
    const struct block *k = &d->block[b];
    if (k->n == 0 || d->end > k->at + k->n || is_refuted(d, b))
        return true;
    for (int i = 0; i < d->n_block; i++)
        if (i != b && d->block[i].state == READY && same_path(d, i, b))
            return true;
    return false;
}

static void store_drafted(struct spec_dsi *d, int b, const struct spec_dsi_event *e)
{
    struct block *k = &d->block[b];
    kn_assert(e->n >= 0 && e->n <= k->n);
    k->n_known = e->n;
    memcpy(drafts(d, b), e->tokens, sizeof(int32_t) * (size_t)e->n);
}

/* A draft under way: it is cancelled if its tokens so far are refuted already. */
static void draft_grows(struct spec_dsi *d, int b, const struct spec_dsi_event *e)
{
    store_drafted(d, b, e);
    if (is_refuted(d, b)) {
        free_block(d, b);
        restart_if_empty(d);
    }
}

static void draft_done(struct spec_dsi *d, int b, const struct spec_dsi_event *e)
{
    struct block *k = &d->block[b];
    store_drafted(d, b, e);
    k->n = e->n;
    k->worker = NONE;
    if (is_not_needed(d, b)) {
        free_block(d, b);
        restart_if_empty(d);
    } else {
        k->state = READY;
    }
}

static void verify_done(struct spec_dsi *d, const struct worker *w, const struct spec_dsi_event *e)
{
    kn_assert(e->n == w->n + 1);
    if (w->block == NONE) {
        if (w->at == d->end)
            commit(d, e->tokens[0]);
    } else {
        struct block *k = &d->block[w->block];
        k->verdict = VERIFIED;
        k->verifier = NONE;
        k->from = w->at;
        memcpy(choices(d, w->block), e->tokens, sizeof(int32_t) * (size_t)e->n);
    }
    advance(d);
}

/* Makes the worker's task available to other workers. */
static void return_task(struct spec_dsi *d, const struct worker *w)
{
    if (w->block == NONE)
        return;
    struct block *k = &d->block[w->block];
    if (w->role == SPEC_DSI_TARGET) {
        k->verdict = UNVERIFIED;
        k->verifier = NONE;
        return;
    }
    if (k->parent != NONE)
        d->block[k->parent].drafters_asked &= ~(1u << w->role);
    else if (k->at == d->restart_at)
        d->restart_asked &= ~(1u << w->role);
    k->worker = NONE;
    free_block(d, w->block);
    restart_if_empty(d);
}

static void task_done(struct spec_dsi *d, struct worker *w, const struct spec_dsi_event *e)
{
    bool wanted = w->state == BUSY;
    if (w->role == SPEC_DSI_TARGET)
        smooth(&w->target_ns, e->took_ns);
    else if (e->n > 0)
        smooth(&d->draft_ns[w->role], e->took_ns / e->n);
    w->state = IDLE;
    if (!wanted)
        return;
    if (w->role == SPEC_DSI_TARGET)
        verify_done(d, w, e);
    else
        draft_done(d, w->block, e);
}

void spec_dsi_event(struct spec_dsi *d, const struct spec_dsi_event *e)
{
    if (e->what == SPEC_DSI_STOP) {
        d->stopped = true;
        free_all(d);
        return;
    }
    kn_assert(e->worker >= 0 && e->worker < d->n_worker);
    struct worker *w = &d->worker[e->worker];
    bool at_it = w->state == BUSY || w->state == CANCEL_DUE || w->state == CANCELLING;
    if (e->what == SPEC_DSI_JOINED) {
        if (w->state == LOST)
            w->state = IDLE;
    } else if (e->what == SPEC_DSI_FAILED) {
        bool wanted = w->state == BUSY;
        w->state = LOST;
        if (wanted)
            return_task(d, w);
    } else if (at_it && e->task == w->task) {
        if (e->what == SPEC_DSI_DONE)
            task_done(d, w, e);
        else if (e->what == SPEC_DSI_CANCELLED)
            w->state = IDLE;
        else if (w->state == BUSY)
            draft_grows(d, w->block, e);
    }
}

void spec_dsi_begin(struct spec_dsi *d, int n_tok, int lookahead)
{
    kn_assert(n_tok >= 1 && n_tok <= d->max_tok && lookahead >= 0 && lookahead <= d->max_lookahead);
    free_all(d);
    d->n_tok = n_tok;
    d->lookahead = lookahead;
    d->end = d->emitted = d->restart_at = 0;
    d->restart_asked = 0;
    d->stopped = false;
}

/* ---- lookahead --------------------------------------------------------------------------------- */

int64_t spec_dsi_servers(int64_t target_ns, int64_t draft_ns, int lookahead)
{
    kn_assert(target_ns > 0 && target_ns <= MAX_NS && draft_ns > 0 && draft_ns <= MAX_NS && lookahead > 0);
    int64_t block_ns = draft_ns > target_ns ? target_ns : draft_ns * lookahead;
    return (target_ns + block_ns - 1) / block_ns;
}

int spec_dsi_lookahead(int64_t target_ns, int64_t draft_ns, int n_target, int most)
{
    /* ceil(x) <= n exactly when x <= n, so this is the smallest k with target <= k * draft * n */
    int64_t k = n_target > 0 ? spec_dsi_servers(target_ns, draft_ns, n_target) : most;
    return k < most ? (int)k : most;
}

/* Targets may differ in speed: together they do sum(1 / time) passes a second, as many as n_target targets with the
 * harmonic mean of the times. */
void spec_dsi_rates(const struct spec_dsi *d, int drafter, struct spec_dsi_rates *out)
{
    double rate = 0;
    int n_known = 0;
    *out = (struct spec_dsi_rates){ .draft_ns = d->draft_ns[drafter] };
    for (int i = 0; i < d->n_worker; i++) {
        const struct worker *w = &d->worker[i];
        if (w->role != SPEC_DSI_TARGET || w->state == LOST)
            continue;
        out->n_target++;
        if (w->target_ns > 0) {
            rate += 1 / (double)w->target_ns;
            n_known++;
        }
    }
    if (n_known > 0)
        out->target_ns = (int64_t)(n_known / rate + 0.5);
    out->lookahead = d->lookahead;
    if (d->lookahead || !out->target_ns || !out->draft_ns)
        return;
    int share = kn_max(1, out->n_target / d->n_drafter); /* targets per drafter */
    int64_t target_ns = out->target_ns < MAX_NS ? out->target_ns : MAX_NS;
    int64_t draft_ns = out->draft_ns < MAX_NS ? out->draft_ns : MAX_NS;
    int k = spec_dsi_lookahead(target_ns, draft_ns, share, d->max_lookahead);
    /* A single target must find the next block ready when its pass ends; otherwise it begins an empty pass, and the
     * block that is ready just after waits for that pass (evals/dsi: 1.95 times plain decoding, not 2.46). */
    out->lookahead = out->n_target == 1 && k > 1 ? k - 1 : k;
}

/* Number of tokens of this drafter's next block, at position `at`.  The output's last token is never drafted: the pass
 * that verifies the token before it gives it too. */
static int block_size(const struct spec_dsi *d, int drafter, int at)
{
    struct spec_dsi_rates r;
    spec_dsi_rates(d, drafter, &r);
    return kn_min(r.lookahead ? r.lookahead : 1, d->n_tok - 1 - at);
}

/* ---- actions ----------------------------------------------------------------------------------- */

static int idle_worker(const struct spec_dsi *d, int role)
{
    for (int w = 0; w < d->n_worker; w++)
        if (d->worker[w].role == role && d->worker[w].state == IDLE)
            return w;
    return NONE;
}

static void start(struct spec_dsi *d, struct spec_dsi_action *a, enum spec_dsi_action_kind kind, int w, int b, int at,
                  int n)
{
    struct worker *k = &d->worker[w];
    k->state = BUSY;
    k->block = b;
    k->at = at;
    k->n = n;
    k->task = ++d->n_task;
    *a = (struct spec_dsi_action){ .kind = kind, .worker = w, .task = k->task, .at = at, .n = n, .block = b };
}

static bool next_cancel(struct spec_dsi *d, struct spec_dsi_action *a)
{
    for (int i = 0; i < d->n_worker; i++) {
        struct worker *w = &d->worker[i];
        if (w->state == CANCEL_DUE) {
            w->state = CANCELLING;
            *a = (struct spec_dsi_action){
                .kind = SPEC_DSI_CANCEL, .worker = i, .task = w->task, .at = w->at, .n = w->n, .block = NONE
            };
            return true;
        }
    }
    return false;
}

/* Will a running pass give the output's next token? */
static bool is_end_covered(const struct spec_dsi *d)
{
    for (int i = 0; i < d->n_worker; i++) {
        const struct worker *w = &d->worker[i];
        if (w->role == SPEC_DSI_TARGET && w->state == BUSY && w->at <= d->end && d->end <= w->at + w->n)
            return true;
    }
    return false;
}

/* The first ready block without a verification: one that would give the output's next token, or, if a running pass will
 * give that, one that would give more. */
static int first_unverified(const struct spec_dsi *d, bool covered)
{
    int best = NONE;
    for (int b = 0; b < d->n_block; b++) {
        const struct block *k = &d->block[b];
        if (k->state != READY || k->verdict != UNVERIFIED)
            continue;
        if (covered ? k->at + k->n == d->end : k->at > d->end)
            continue;
        const struct block *old = best == NONE ? NULL : &d->block[best];
        if (!old || k->at < old->at || (k->at == old->at && k->drafter < old->drafter))
            best = b;
    }
    return best;
}

/* After the loss of a worker, none may be left for the output's next token: cancels the verification at the farthest
 * position.  Its block will be verified again. */
static void free_target(struct spec_dsi *d)
{
    int farthest = NONE;
    for (int i = 0; i < d->n_worker; i++) {
        const struct worker *w = &d->worker[i];
        if (w->role != SPEC_DSI_TARGET)
            continue;
        if (w->state == CANCEL_DUE || w->state == CANCELLING)
            return; /* a worker will be idle soon */
        if (w->state == BUSY && (farthest == NONE || w->at > d->worker[farthest].at))
            farthest = i;
    }
    if (farthest != NONE) {
        return_task(d, &d->worker[farthest]);
        mark_cancel(d, farthest);
    }
}

static bool next_verify(struct spec_dsi *d, struct spec_dsi_action *a)
{
    bool covered = is_end_covered(d);
    int w = idle_worker(d, SPEC_DSI_TARGET);
    if (w == NONE) {
        if (!covered)
            free_target(d);
        return false;
    }
    int b = first_unverified(d, covered);
    if (b == NONE && covered)
        return false;
    if (b == NONE) {
        start(d, a, SPEC_DSI_VERIFY, w, NONE, d->end, 0);
        return true;
    }
    struct block *k = &d->block[b];
    int from = kn_max(k->at, d->end);
    k->verdict = VERIFYING;
    k->verifier = w;
    start(d, a, SPEC_DSI_VERIFY, w, b, from, k->at + k->n - from);
    return true;
}

/* The first position from which this drafter has not started.  *parent: the block that ends there; NONE: the output's
 * end.  False: there is no such position, or only the output's last token would follow. */
static bool find_place(const struct spec_dsi *d, int drafter, int *parent, int *at)
{
    uint32_t bit = 1u << drafter;
    bool found = d->restart_at == d->end && !(d->restart_asked & bit);
    *parent = NONE;
    *at = d->end;
    for (int b = 0; b < d->n_block && !found; b++) {
        const struct block *k = &d->block[b];
        if (k->state == READY && !(k->drafters_asked & bit) && (*parent == NONE || k->at + k->n < *at)) {
            *parent = b;
            *at = k->at + k->n;
        }
    }
    return (found || *parent != NONE) && *at < d->n_tok - 1;
}

static bool next_draft(struct spec_dsi *d, struct spec_dsi_action *a)
{
    int b = 0;
    while (b < d->n_block && d->block[b].state != FREE)
        b++;
    for (int j = 0; j < d->n_drafter && b < d->n_block; j++) {
        int parent, at, w = idle_worker(d, j);
        if (w == NONE || !find_place(d, j, &parent, &at))
            continue;
        int n = block_size(d, j, at);
        *(parent == NONE ? &d->restart_asked : &d->block[parent].drafters_asked) |= 1u << j;
        d->block[b] = (struct block){
            .state = DRAFTING, .parent = parent, .drafter = j, .worker = w, .verifier = NONE, .at = at, .n = n
        };
        start(d, a, SPEC_DSI_DRAFT, w, b, at, n);
        return true;
    }
    return false;
}

bool spec_dsi_next(struct spec_dsi *d, struct spec_dsi_action *a)
{
    if (d->emitted < d->end) {
        *a = (struct spec_dsi_action){
            .kind = SPEC_DSI_EMIT, .worker = NONE, .at = d->emitted, .n = d->end - d->emitted, .block = NONE
        };
        d->emitted = d->end;
        return true;
    }
    if (next_cancel(d, a))
        return true;
    if (finished(d))
        return false;
    return next_draft(d, a) || next_verify(d, a) || next_cancel(d, a);
}

void spec_dsi_context(const struct spec_dsi *d, const struct spec_dsi_action *a, int from, int32_t *out)
{
    int to = a->at + (a->kind == SPEC_DSI_VERIFY ? a->n : 0);
    int b = a->kind == SPEC_DSI_DRAFT ? d->block[a->block].parent : a->block;
    for (; b != NONE && to > d->end && to > from; b = d->block[b].parent) {
        const struct block *k = &d->block[b];
        int first = kn_max(kn_max(k->at, d->end), from);
        memcpy(out + (first - from), drafts(d, b) + (first - k->at), sizeof *out * (size_t)(to - first));
        to = first;
    }
    if (to > from)
        memcpy(out, d->output + from, sizeof *out * (size_t)(to - from));
}

const int32_t *spec_dsi_output(const struct spec_dsi *d, int *n_tok)
{
    *n_tok = d->emitted;
    return d->output;
}

enum spec_dsi_state spec_dsi_state(const struct spec_dsi *d)
{
    if (finished(d))
        return SPEC_DSI_FINISHED;
    for (int w = 0; w < d->n_worker; w++)
        if (d->worker[w].role == SPEC_DSI_TARGET && d->worker[w].state != LOST)
            return SPEC_DSI_RUNNING;
    return SPEC_DSI_STUCK;
}
