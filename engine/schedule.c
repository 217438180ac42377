/* engine/schedule.c - seats for waiting sessions; rows and KV for the sessions with a seat.
 *
 * Sessions are ordered by higher priority, then fewer rows computed for the session's user, then earlier arrival. A
 * free seat goes to the first waiting session if KV has space for its sequence; a waiting session of higher priority
 * may take the seat of the last session. In a pass every session with a token due gets one row; the prefill rows that
 * the pass may have besides (prefill_share.c) go to the other sessions in this order. When KV runs out the last session
 * in the order loses its seat (it is preempted). Its blocks stay cached until they are evicted; evicted KV is computed
 * again, to the same bits. A preempted session gets a seat again only if its whole sequence fits, or if no other
 * session is active; so two sessions cannot evict each other's blocks forever. The first session always advances.
 *
 * Sessions of ENG_PRIORITY_IDLE have rows only while no other session is active, so they do not lengthen the passes of
 * other sessions. */
#include "engine/internal.h"

#define HUGE_WEIGHT 1e12 /* no limit */

/* ---- the order -------------------------------------------------------------------------------------- */

/* Whether a comes before b. A session is active while it has a seat. */
static bool before(const struct eng_session *a, const struct eng_session *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (a->share != b->share && a->share->served != b->share->served)
        return a->share->served < b->share->served;
    return a->arrival < b->arrival;
}

/* Sorts the sessions with a seat; by insertion, since the list is nearly in order already. */
static void sort_active(struct eng_engine *e)
{
    for (int i = 1; i < e->schedule.n_active; i++) {
        struct eng_session *s = e->schedule.active[i];
        int at = i;
        for (; at > 0 && before(s, e->schedule.active[at - 1]); at--)
            e->schedule.active[at] = e->schedule.active[at - 1];
        e->schedule.active[at] = s;
    }
}

static struct eng_session *first_waiting(struct eng_engine *e)
{
    struct eng_session *first = NULL;
    for (int i = 0; i < e->assets.opt.n_session; i++) {
        struct eng_session *s = &e->schedule.session[i];
        if (eng_session_is_waiting(s) && (!first || before(s, first)))
            first = s;
    }
    return first;
}

/* ---- shares: rows computed for each user, while one of the user's sessions runs ----------------------- */

static struct eng_user_share *share_of(struct eng_engine *e, uint64_t user)
{
    struct eng_user_share *free_one = NULL;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < e->assets.opt.n_session; i++) {
        struct eng_user_share *x = &e->schedule.user_share[i];
        if (x->n_running && x->user == user)
            return x;
        if (!x->n_running)
            free_one = x;
        else if (x->served < least)
            least = x->served;
    }
    kn_assert(free_one);
    /* a new user starts at the lowest served count: idle time earns no credit */
    *free_one = (struct eng_user_share){ .user = user, .served = least == UINT64_MAX ? 0 : least };
    return free_one;
}

void eng_schedule_enter(struct eng_session *s, uint64_t user)
{
    s->share = share_of(s->engine, user);
    s->share->n_running++;
    s->arrival = s->engine->schedule.n_arrival++;
}

void eng_schedule_served(struct eng_session *s, int n_row) { s->share->served += (uint64_t)n_row; }

/* ---- seats ------------------------------------------------------------------------------------------ */

static void take_seat(struct eng_session *s)
{
    struct eng_engine *e = s->engine;
    s->seat = e->schedule.free_seat[e->assets.opt.n_parallel - e->schedule.n_active - 1];
    s->seq.number = s->seat->number;
    s->seq.path.slot = s->seat->slot;
    s->n_prefix_seen = s->n_saved = 0;
    e->schedule.active[e->schedule.n_active++] = s;
    eng_draft_enter(e->drafting, &s->seq);
}

static void leave_seat(struct eng_session *s, bool ended)
{
    struct eng_engine *e = s->engine;
    int i = 0;
    if (!s->seat)
        return;
    eng_draft_leave(e->drafting, &s->seq, ended);
    eng_reuse_leave(s);
    while (e->schedule.active[i] != s)
        i++;
    for (e->schedule.n_active--; i < e->schedule.n_active; i++)
        e->schedule.active[i] = e->schedule.active[i + 1];
    e->schedule.free_seat[e->assets.opt.n_parallel - e->schedule.n_active - 1] = s->seat;
    s->seat = NULL;
    s->seq.n_kv = s->seq.n_row = 0;
}

static void preempt(struct eng_session *s)
{
    leave_seat(s, false);
    s->engine->stats.n_preempted++;
}

void eng_schedule_leave(struct eng_session *s)
{
    leave_seat(s, true);
    s->share->n_running--;
    s->share = NULL;
}

/* The KV blocks that s needs: for all tokens so far and up to ENG_KV_BLOCK more, as its length limit allows. */
static int blocks_of(const struct eng_session *s)
{
    return kn_ceil_div(kn_min(s->seq.n_max, s->seq.n_token + ENG_KV_BLOCK), ENG_KV_BLOCK);
}

/* Whether the free KV blocks suffice for waiting session s and for the blocks that the active sessions still need. Kept
 * blocks that s can share with active sessions take no free block. */
static bool fits(struct eng_engine *e, const struct eng_session *s)
{
    int need = blocks_of(s) - eng_kv_count_shared(&e->kv, s->seq.path.salt, s->seq.token, eng_reuse_n_sharable(s));
    for (int i = 0; i < e->schedule.n_active; i++)
        need += kn_max(0, blocks_of(e->schedule.active[i]) - e->schedule.active[i]->seq.path.n_slot / ENG_KV_BLOCK);
    return need <= e->kv.n_free;
}

/* Whether waiting session s would fit if all active sessions of lower priority were preempted. */
static bool fits_without_lower(const struct eng_engine *e, const struct eng_session *s)
{
    int need = blocks_of(s), n_free = e->kv.n_free;
    for (int i = 0; i < e->schedule.n_active; i++) {
        const struct eng_session *a = e->schedule.active[i];
        int has = a->seq.path.n_slot / ENG_KV_BLOCK;
        if (a->priority < s->priority)
            n_free += has;
        else
            need += kn_max(0, blocks_of(a) - has);
    }
    return need <= n_free;
}

static void give_seats(struct eng_engine *e)
{
    for (struct eng_session *s; (s = first_waiting(e)) != NULL;) {
        struct eng_session *last = e->schedule.n_active ? e->schedule.active[e->schedule.n_active - 1] : NULL;
        if (last && (e->schedule.n_active == e->assets.opt.n_parallel || !fits(e, s))) {
            if (last->priority >= s->priority || !fits_without_lower(e, s))
                return;
            preempt(last);
            continue;
        }
        take_seat(s);
        sort_active(e);
    }
}

/* ---- the pass --------------------------------------------------------------------------------------- */

static bool is_due(const struct eng_session *s) { return s->seq.n_token - s->seq.n_kv == 1; }

/* Reserves KV for n more rows of active session i; preempts sessions behind it in the order if necessary, the last one
 * first. False: KV does not suffice, and session i itself was preempted unless it is the only active one. */
static bool reserve(struct eng_engine *e, int i, int n)
{
    struct eng_session *s = e->schedule.active[i];
    while (eng_kv_reserve(&e->kv, &s->seq.path, s->seq.n_kv + n)) {
        if (e->schedule.n_active - 1 == i) {
            if (e->schedule.n_active > 1)
                preempt(s);
            return false;
        }
        preempt(e->schedule.active[e->schedule.n_active - 1]);
    }
    return true;
}

/* The prefill rows that the pass can still take: their number, the number of them that report prompt log-probabilities,
 * and their time, in rows at position 0. */
struct room {
    int rows, logprob_rows;
    double weight;
};

/* The number of prefill rows of active session i, after a look for cached KV. 0 if it waits for KV that a session
 * before it computes. With prompt logprobs and no token to add, the prompt's last token needs no row. */
static int prompt_rows(struct eng_engine *e, int i, struct room *left)
{
    struct eng_session *s = e->schedule.active[i];
    eng_reuse_find(s);
    if (eng_has_states(e))
        eng_reuse_mark_prompt(s);
    double each = 1 + e->assets.position_cost * s->seq.n_kv;
    int room = left->weight >= each * left->rows ? left->rows : kn_max(0, (int)__builtin_ceil(left->weight / each));
    if (eng_session_owes_prompt_logprobs(s)) {
        int n = kn_min(s->seq.n_prompt - (s->seq.n_prompt >= s->seq.n_max) - s->seq.n_kv,
                       kn_min(room, left->logprob_rows));
        left->logprob_rows -= n;
        return n;
    }
    if (s->seq.path.n_slot == s->seq.n_kv && !is_due(s))
        for (int j = 0; j < i; j++)
            if (eng_reuse_waits(s, e->schedule.active[j]))
                return 0;
    return kn_min(s->seq.n_token - s->seq.n_kv, room);
}

/* The number of active sessions, from the first on, that may have rows in this pass: all, but no idle ones behind a
 * session of another priority. */
static int count_taking_part(const struct eng_engine *e)
{
    int n = e->schedule.n_active;
    while (n > 1 && e->schedule.active[n - 1]->priority == ENG_PRIORITY_IDLE &&
           e->schedule.active[0]->priority != ENG_PRIORITY_IDLE)
        n--;
    return n;
}

/* The time of all prefill that the first n_session active sessions need, up to `rows` rows, in rows at position 0. */
static int weight_of_all(const struct eng_engine *e, int n_session, int rows)
{
    double weight = 0;
    for (int i = 0; i < n_session; i++) {
        const struct eng_session *s = e->schedule.active[i];
        int n = is_due(s) ? 0 : kn_min(s->seq.n_token - s->seq.n_kv, rows);
        weight += n * (1 + e->assets.position_cost * (s->seq.n_kv + 0.5 * n));
        rows -= n;
    }
    return (int)(weight + 0.5);
}

void eng_schedule(struct eng_engine *e)
{
    int n_due = 0;
    sort_active(e);
    give_seats(e);
    const int n_session = count_taking_part(e);
    for (int i = 0; i < e->schedule.n_active; i++) {
        e->schedule.active[i]->seq.n_row = e->schedule.active[i]->n_keep_at = 0;
        n_due += i < n_session && is_due(e->schedule.active[i]);
    }
    e->schedule.n_due_planned = n_due;
    struct room left = { .rows = e->assets.opt.n_chunk - n_due, .logprob_rows = e->assets.opt.n_prompt_logprob_row };
    int most = weight_of_all(e, n_session, left.rows),
        paced = eng_prefill_share_rows(&e->schedule.prefill_share, n_due, n_session - n_due, most);
    left.weight = paced < most ? paced : HUGE_WEIGHT;
    for (int i = 0; i < n_session && i < e->schedule.n_active; i++) { /* reserve() may preempt the last ones */
        struct eng_session *s = e->schedule.active[i];
        bool due = is_due(s);
        int n = due ? 1 : prompt_rows(e, i, &left);
        if (n == 0 || !reserve(e, i, n))
            continue;
        s->seq.n_row = n;
        if (!due) {
            left.rows -= n;
            left.weight -= n * (1 + e->assets.position_cost * s->seq.n_kv);
        }
    }
}
