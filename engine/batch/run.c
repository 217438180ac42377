/* engine/batch/run.c - runs a batch on an engine of its own: choices of its lines get sessions, and one step after the other
 * feeds their events to the lines.
 *
 * Choices of the line that was read last get sessions as sessions become free.  The next line is read only when all
 * choices of this line have one, so that at most n_parallel + 1 lines are in progress and no session idles while lines
 * are left. */
#include "engine/batch/batch.h"

struct slot {
    struct eng_session *session;
    struct eng_batch_line *line;
};

struct eng_batch_run {
    struct eng_batch *batch;
    struct eng_engine *engine;
    int n_slot;
    struct slot *slot;              /* [n_slot] */
    struct eng_batch_line *dealing; /* line with choices that have no session yet, or NULL */
    struct eng_event *event;
    bool at_end; /* the input is read to its end */
};

int eng_batch_run_open(struct eng_batch_run **out, struct eng_batch *b, struct eng_engine *e,
                       const struct eng_api_setup *setup, int n_parallel)
{
    struct eng_batch_run *r = kn_calloc(1, sizeof *r);
    int error = r ? eng_batch_begin(b, setup, n_parallel + 1)
                  : kn_fail(KN_ENOMEM, "no memory for %d requests at once", n_parallel);
    if (!error) {
        r->batch = b;
        r->engine = e;
        r->slot = kn_calloc((size_t)n_parallel, sizeof *r->slot);
        r->event = kn_calloc((size_t)eng_event_room(e), sizeof *r->event);
        if (!r->slot || !r->event)
            error = kn_fail(KN_ENOMEM, "no memory for %d requests at once", n_parallel);
    }
    for (; !error && r->n_slot < n_parallel; r->n_slot++)
        if ((error = eng_session_open(&r->slot[r->n_slot].session, e)))
            break;
    if (error) {
        eng_batch_run_close(r);
        return error;
    }
    eng_batch_limit_memory(b, n_parallel, eng_n_ctx(e));
    *out = r;
    return 0;
}

void eng_batch_run_close(struct eng_batch_run *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_slot; i++)
        eng_session_close(r->slot[i].session);
    kn_free(r->slot);
    kn_free(r->event);
    kn_free(r);
}

static int feed(struct eng_batch_run *r, const struct eng_event *e)
{
    struct slot *s = e->owner;
    struct eng_batch_line *line = s->line;
    int got = eng_batch_line_feed(line, e);
    if (got < 0)
        return kn_fail(got, "no memory for an answer");
    if (got == 1)
        eng_session_stop(s->session);
    if (got == 0 && e->finish == ENG_RUNNING)
        return 0;
    s->line = NULL;
    return eng_batch_line_end(r->batch, line);
}

static int start_choice(struct eng_batch_run *r, struct slot *s)
{
    struct eng_request request;
    s->line = r->dealing;
    eng_batch_line_start(s->line, &request);
    request.owner = s;
    if (eng_batch_line_is_dealt(s->line))
        r->dealing = NULL;
    int status = eng_session_start(s->session, &request);
    if (!status)
        return 0;
    return feed(
        r, &(struct eng_event){
               .owner = s, .choice = request.choice, .token = ENG_NO_TOKEN, .finish = ENG_FAILED, .status = status });
}

/* Starts a choice in each free session, as long as lines are left.  Sets *n_busy to the number of sessions with a
 * choice. */
static int fill_slots(struct eng_batch_run *r, int *n_busy)
{
    *n_busy = 0;
    for (int i = 0; i < r->n_slot; i++) {
        while (!r->slot[i].line && !(r->at_end && !r->dealing)) {
            int got = r->dealing ? 1 : eng_batch_next(r->batch, &r->dealing);
            r->at_end = got == 0;
            if (got == 1)
                got = start_choice(r, &r->slot[i]);
            if (got < 0)
                return got;
        }
        *n_busy += r->slot[i].line != NULL;
    }
    return 0;
}

int eng_batch_run_step(struct eng_batch_run *r)
{
    int n_busy, error = fill_slots(r, &n_busy);
    if (error || (error = eng_batch_status(r->batch)))
        return error;
    if (n_busy == 0)
        return 0;
    int n = eng_step(r->engine, r->event);
    for (int i = 0; i < n; i++) {
        const struct eng_event *e = &r->event[i];
        if (!((struct slot *)e->owner)->line) /* the session was stopped: ignore its event */
            continue;
        if (e->token != ENG_NO_TOKEN && !e->of_prompt)
            eng_batch_count_token(r->batch);
        if ((error = feed(r, e)))
            return error;
    }
    return n < 0 ? n : 1;
}
